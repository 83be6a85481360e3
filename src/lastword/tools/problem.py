"""Damage as a value."""

from __future__ import annotations

from dataclasses import dataclass

from lastword.values import Value


@dataclass(frozen=True, slots=True)
class Problem(Value):
    """One thing that is not as it must be.

    file, position   where; position is a byte in the file, None for the file as a whole
    offset           the record it concerns, None if unknown
    code             a short stable name: bad-crc incomplete-batch bad-header bad-record unknown-magic
                     offsets-fall missing-index bad-index bad-time-index bad-txn-index bad-checkpoint
                     checkpoint-out-of-range bad-snapshot unreadable
    repairable       True: derived data or a torn tail, which opening the directory repairs; False: restore
                     from a copy
    """

    file: str
    position: int | None
    offset: int | None
    code: str
    text: str
    repairable: bool

    def __str__(self) -> str:
        where = self.file if self.position is None else f"{self.file} position {self.position}"
        return f"{where}: {self.code}: {self.text}"
