"""Garbage of each segment as a value: exact, or estimated from a sample of the keys.

In a sample, the estimate is the dead bytes divided by the share of the keys. If a segment has too few sampled
keys, the estimate for the whole log is spread over the segments by `Survivorship`: the live share of a
segment's bytes at a certain age, learned from each rewrite. For each power of two of the age (bytes appended
to the drive since the segment was written) one share is kept, weighted exponentially:
`alpha * observed + (1 - alpha) * old`. An estimate by age alone would confirm itself (nothing looks dirty, so
nothing is cleaned and nothing learned), so it is scaled until the live bytes sum up to the count of the
distinct keys.

`<partition>/lastword/survivorship`: framed JSON, replaced as a whole. The figures are only used to choose: a
damaged file is ignored, and learning starts again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lastword.accounts import SegmentAccount
from lastword.accounts.tracking import Tracking
from lastword.errors import LastwordError
from lastword.files import Files
from lastword.files.framed import Framed

if TYPE_CHECKING:
    from lastword.config import TopicConfig


_AGE_UNIT = 1 << 10
_CLASSES = 54

FORM = Framed(
    "survivorship", 1, "bad-survivorship", "remove the file: the next cleanings learn the shares again"
)


def age_class(age_bytes: int) -> int:
    """Return the power of two that an age is in; 0 below a KiB."""
    return min((max(age_bytes, 0) // _AGE_UNIT).bit_length(), _CLASSES - 1)


class Survivorship:
    """Live shares of segments by age, from 0 to 1."""

    def __init__(self, live_ratio: dict[int, float] | None = None) -> None:
        self.live_ratio = {} if live_ratio is None else dict(live_ratio)

    def observe(self, age_bytes: int, size_bytes: int, live_bytes: int, alpha: float) -> None:
        """Update the share of an age with a segment that a rewrite read."""
        if size_bytes <= 0:
            return
        seen = min(max(live_bytes / size_bytes, 0.0), 1.0)
        age = age_class(age_bytes)
        old = self.live_ratio.get(age)
        self.live_ratio[age] = seen if old is None else alpha * seen + (1 - alpha) * old

    def expected(self, age_bytes: int) -> float | None:
        """Return the share at an age: that of the nearest known class; None if no class is known."""
        if not self.live_ratio:
            return None
        wanted = age_class(age_bytes)
        return self.live_ratio[min(self.live_ratio, key=lambda age: (abs(age - wanted), age))]

    def spread(self, sizes: Sequence[int], ages: Sequence[int], live_bytes: float) -> list[float]:
        """Return the live bytes of each segment, `live_bytes` in all: by their ages, none above its size."""
        weights = [self.expected(age) for age in ages]
        live = [float(s) * (1.0 if w is None else max(w, 1e-3)) for s, w in zip(sizes, weights, strict=True)]
        wanted = min(max(live_bytes, 0.0), float(sum(sizes)))
        for _ in range(8):  # bytes that do not fit one segment go to the others
            total = sum(live)
            if total <= 0 or abs(total - wanted) <= 1e-9 * wanted:
                break
            if total > wanted:
                live = [live_bytes * wanted / total for live_bytes in live]
                break
            room = sum(live_bytes for live_bytes, size in zip(live, sizes, strict=True) if live_bytes < size)
            if room <= 0:
                live = [
                    live_bytes + (size - live_bytes) * (wanted - total) / max(sum(sizes) - total, 1.0)
                    for live_bytes, size in zip(live, sizes, strict=True)
                ]
                break
            factor = 1 + (wanted - total) / room
            live = [
                min(live_bytes * factor, size) if live_bytes < size else live_bytes
                for live_bytes, size in zip(live, sizes, strict=True)
            ]
        return live

    # -------------------------------------------------------------- on disk

    @classmethod
    def load(cls, files: Files, path: str) -> Survivorship:
        """Return the saved shares; none if the file is absent or damaged."""
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
        """Save the shares. The directory of `path` exists."""
        ratios = {str(age): round(self.live_ratio[age], 6) for age in sorted(self.live_ratio)}
        FORM.save(files, path, {"live_ratio": ratios})


TIME_INDEX_ENTRY_BYTES = 12
FEWEST_SAMPLED_KEYS = 250
"""With fewer sampled keys per segment, a dirty segment may look clean for long: then the estimate is
spread."""


def dead_bytes(
    tracking: Tracking, write_clock: int, survivorship: Survivorship, first: int = 0, end: int | None = None
) -> list[float]:
    """Return the garbage of each segment, or of the entries `first` to before `end`, exact or estimated.

    An estimate may depend on all segments.
    """
    if tracking.exact:
        return [float(segment.dead_bytes) for segment in tracking.facts(first, end)]
    return _estimates(tracking, write_clock, survivorship)[first:end]


def _estimates(tracking: Tracking, write_clock: int, survivorship: Survivorship) -> list[float]:
    facts = tracking.facts()
    estimates = [
        min(
            entry.own_dead_bytes + max(segment.dead_bytes - entry.own_seen_bytes, 0) / tracking.share,
            float(entry.size_bytes),
        )
        for entry, segment in zip(tracking.entries, facts, strict=True)
    ]
    records = sum(segment.records for segment in facts)
    if records and tracking.share * records / len(facts) < FEWEST_SAMPLED_KEYS:
        sizes = [entry.size_bytes for entry in tracking.entries]
        ages = [write_clock - entry.written_at for entry in tracking.entries]
        live = survivorship.spread(sizes, ages, sum(sizes) - sum(estimates))
        return [max(size - live_bytes, 0.0) for size, live_bytes in zip(sizes, live, strict=True)]
    return estimates


def indexed_bytes(config: TopicConfig) -> int:
    """Return the bytes that a segment may hold for its time index to fit.

    The index has an entry for each interval, and one more.
    """
    entries = config.segment_index_bytes // TIME_INDEX_ENTRY_BYTES
    return max(entries * max(config.index_interval_bytes, 1) - 1, 1)


def segment_accounts(
    tracking: Tracking, dead: Sequence[float], blocked_bytes: Sequence[int]
) -> tuple[SegmentAccount, ...]:
    """Return the account of each segment.

    In a sample all figures are estimates.

    Args:
        tracking: The tracked keys with their segments.
        dead: Garbage of each segment, in bytes.
        blocked_bytes: Bytes of blocked tombstones in each segment.
    """
    share, segments = tracking.share, []
    for entry, segment, garbage, held in zip(
        tracking.entries, tracking.facts(), dead, blocked_bytes, strict=True
    ):
        died = max(segment.dead_records - entry.own_seen_records, 0) / share
        segments.append(
            SegmentAccount(
                base_offset=segment.base_offset,
                next_offset=segment.next_offset,
                size_bytes=entry.size_bytes,
                records=segment.records,
                dead_records=segment.dead_records if tracking.exact else min(round(died), segment.records),
                dead_bytes=round(garbage),
                tombstones=round(segment.tombstones / share),
                blocked_tombstone_bytes=held,
                garbage_age=entry.garbage_age,
                garbage_age_at=entry.garbage_age_at,
                written_at=entry.written_at,
                death_rate=max(entry.death_rate, 0.0),
                oldest_dead_ms=entry.oldest_dead_ms,
                exact=tracking.exact,
            )
        )
    return tuple(segments)
