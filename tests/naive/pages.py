"""Dead bitmaps as a set of offsets."""

from __future__ import annotations


class Offsets(set[int]):
    def count_between(self, first: int, last: int) -> int:
        return sum(first <= offset <= last for offset in self)
