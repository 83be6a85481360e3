"""What share of its bytes a segment still has alive at a certain age, learned from one rewrite after another.

Used where keys cannot be looked at closely enough. For each power of two of the age (bytes appended to the
drive since the segment was written) one share, weighted exponentially: `alpha * observed + (1 - alpha) *
old`. An estimate by age alone confirms itself (nothing looks dirty, so nothing is cleaned and nothing
learned), so it is scaled until the live bytes sum up to what a count of the distinct keys says.

`<partition>/lastword/survivorship`: framed JSON, replaced as a whole. Only figures for choosing: a damaged
file is ignored, and learning starts again.
"""

from __future__ import annotations

from collections.abc import Sequence

from lastword.errors import LastwordError
from lastword.files import Files
from lastword.files.framed import Framed

_AGE_UNIT = 1 << 10
_CLASSES = 54

FORM = Framed(
    "survivorship", 1, "bad-survivorship", "remove the file: the next cleanings learn the shares again"
)


def age_class(age_bytes: int) -> int:
    """Which power of two an age lies in; 0 below a KiB."""
    return min((max(age_bytes, 0) // _AGE_UNIT).bit_length(), _CLASSES - 1)


class Survivorship:
    """Shares by age, from 0 to 1."""

    def __init__(self, live_ratio: dict[int, float] | None = None) -> None:
        self.live_ratio = {} if live_ratio is None else dict(live_ratio)

    def observe(self, age_bytes: int, size_bytes: int, live_bytes: int, alpha: float) -> None:
        """A rewrite met a segment of this age."""
        if size_bytes <= 0:
            return
        seen = min(max(live_bytes / size_bytes, 0.0), 1.0)
        age = age_class(age_bytes)
        old = self.live_ratio.get(age)
        self.live_ratio[age] = seen if old is None else alpha * seen + (1 - alpha) * old

    def expected(self, age_bytes: int) -> float | None:
        """The share at an age: that of the nearest class that was seen; None before the first."""
        if not self.live_ratio:
            return None
        wanted = age_class(age_bytes)
        return self.live_ratio[min(self.live_ratio, key=lambda age: (abs(age - wanted), age))]

    def spread(self, sizes: Sequence[int], ages: Sequence[int], live_bytes: float) -> list[float]:
        """Live bytes of each of some segments, `live_bytes` in all: by their ages, none above its size."""
        weights = [self.expected(age) for age in ages]
        live = [float(s) * (1.0 if w is None else max(w, 1e-3)) for s, w in zip(sizes, weights, strict=True)]
        wanted = min(max(live_bytes, 0.0), float(sum(sizes)))
        for _ in range(8):  # what one segment cannot take the others do
            total = sum(live)
            if total <= 0 or abs(total - wanted) <= 1e-9 * wanted:
                break
            if total > wanted:
                live = [one * wanted / total for one in live]
                break
            room = sum(one for one, size in zip(live, sizes, strict=True) if one < size)
            if room <= 0:
                live = [
                    one + (size - one) * (wanted - total) / max(sum(sizes) - total, 1.0)
                    for one, size in zip(live, sizes, strict=True)
                ]
                break
            factor = 1 + (wanted - total) / room
            live = [
                min(one * factor, size) if one < size else one for one, size in zip(live, sizes, strict=True)
            ]
        return live

    # -------------------------------------------------------------- on disk

    @classmethod
    def load(cls, files: Files, path: str) -> Survivorship:
        try:
            fields = FORM.load(files, path)
            if fields is None:
                return cls()
            ratios = {int(age): float(ratio) for age, ratio in fields["live_ratio"].items()}
        except (LastwordError, ValueError, KeyError, TypeError, AttributeError):
            return cls()
        sound = all(0 <= age < _CLASSES and 0.0 <= ratio <= 1.0 for age, ratio in ratios.items())
        return cls(ratios) if sound else cls()

    def save(self, files: Files, path: str) -> None:
        """Its directory exists."""
        ratios = {str(age): round(self.live_ratio[age], 6) for age in sorted(self.live_ratio)}
        FORM.save(files, path, {"live_ratio": ratios})
