"""Define the records of the soak: each follows from its offset alone, so every reader can check it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


@dataclass(frozen=True)
class Workload:
    """A workload on `keys` keys. A tenth of them gets most records; one record in ten is a tombstone."""

    records: int
    keys: int
    seed: int

    def mixed(self, first: int, end: int) -> NDArray[np.uint64]:
        """Return a hash of each offset in [first, end)."""
        with np.errstate(over="ignore"):
            hashes = (np.arange(first, end, dtype=np.uint64) + np.uint64(self.seed + 1)) * np.uint64(_STEP)
            hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(_MIX_1)
            hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(_MIX_2)
            return hashes ^ (hashes >> np.uint64(31))

    def numbers(self, first: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the key number of each offset, and whether its record is a tombstone."""
        mixed = self.mixed(first, end)
        hot = (mixed >> np.uint64(60)) < 12
        low = mixed & np.uint64((1 << 32) - 1)
        number = np.where(hot, low % np.uint64(max(self.keys // 10, 1)), low % np.uint64(self.keys))
        return number.astype(np.int64), (mixed >> np.uint64(40)) % np.uint64(10) == 0

    def pairs(self, first: int, end: int) -> list[tuple[bytes, bytes | None]]:
        numbers, deletes = self.numbers(first, end)
        return [
            (key_of(number), None if gone else value_of(offset))
            for offset, number, gone in zip(
                range(first, end), numbers.tolist(), deletes.tolist(), strict=True
            )
        ]

    def wrong(
        self, offsets: Sequence[int], keys: Sequence[bytes], values: Sequence[bytes | None]
    ) -> str | None:
        """Return the first difference between these records and the workload; None if there is none."""
        for offset, key, value in zip(offsets, keys, values, strict=True):
            number, gone = self._one(offset)
            expected = (key_of(number), None if gone else value_of(offset))
            if (key, value) != expected:
                return f"offset {offset} holds {(key, value)!r}, written was {expected!r}"
        return None

    def _one(self, offset: int) -> tuple[int, bool]:
        mixed = (offset + self.seed + 1) * _STEP & _MASK
        mixed = (mixed ^ (mixed >> 30)) * _MIX_1 & _MASK
        mixed = (mixed ^ (mixed >> 27)) * _MIX_2 & _MASK
        mixed ^= mixed >> 31
        low = mixed & ((1 << 32) - 1)
        number = low % max(self.keys // 10, 1) if mixed >> 60 < 12 else low % self.keys
        return number, (mixed >> 40) % 10 == 0


def key_of(number: int) -> bytes:
    return b"key-%09d" % number


def value_of(offset: int) -> bytes:
    return b"value of %d " % offset + b"." * (offset % 40)
