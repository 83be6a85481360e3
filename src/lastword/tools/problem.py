"""Damage as a value."""

from __future__ import annotations

from dataclasses import dataclass

from lastword.segment import names
from lastword.values import Value

_INDEX_CODES = ("bad-index", "bad-time-index", "bad-txn-index")


@dataclass(frozen=True, slots=True)
class Problem(Value):
    """One thing that is not as it must be.

    file, position   where; position is a byte in the file, None for the file as a whole
    offset           the record it concerns, None if unknown
    code             a short stable name: bad-crc incomplete-batch bad-header bad-record unknown-magic
                     offsets-fall missing-index bad-index bad-time-index bad-txn-index bad-checkpoint
                     checkpoint-out-of-range bad-snapshot unreadable
    repairable       True: derived data or a torn tail, which opening the directory to append repairs, once
                     the file `remove` is gone; False: restore from a copy
    """

    file: str
    position: int | None
    offset: int | None
    code: str
    text: str
    repairable: bool

    @property
    def remove(self) -> str | None:
        """The file to remove first, if one must be: small files of closed segments are not looked at when a
        directory is opened (reads check what they use of them). A segment without its offset index is walked
        and gets all its indexes anew; of producer snapshots only the newest sound one is needed.
        """
        if self.code in _INDEX_CODES:
            return self.file.rpartition(".")[0] + names.INDEX
        return self.file if self.code == "bad-snapshot" else None

    def __str__(self) -> str:
        where = self.file if self.position is None else f"{self.file} position {self.position}"
        return f"{where}: {self.code}: {self.text.removeprefix(where + ': ')}"
