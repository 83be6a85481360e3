"""Damage as a value."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from lastword.errors import DataError, DecompressionLimitError
from lastword.records.batch import BatchHeader
from lastword.segment import names
from lastword.values import Value

OPEN = "open it to write"
RESTORE = "restore the file from a copy"
_INDEX_CODES = ("bad-index", "bad-time-index", "bad-txn-index")
_REMOVE_CODES = ("bad-snapshot", "bad-accounts", "bad-survivorship", "bad-note", "bad-synced")


@dataclass(frozen=True, slots=True)
class Problem(Value):
    """One thing that is not as it must be.

    Attributes:
        file: Where it is.
        position: Byte in the file; None for the file as a whole.
        offset: Offset of the record it concerns; None if unknown.
        code: A short stable name. Of Kafka's files: bad-crc incomplete-batch bad-header bad-record
            decompression-limit unknown-magic offsets-fall missing-log missing-index bad-index bad-time-index
            bad-txn-index bad-checkpoint checkpoint-out-of-range bad-epochs bad-snapshot bad-properties
            topic-id wrong-end not-a-partition unreadable. Of private files (docs/formats.md): bad-lease
            bad-removal-log bad-quarantine bad-survivorship bad-accounts bad-synced bad-note bad-journal
            bad-writers bad-commit bad-begun bad-job-file bad-partition-list bad-settings newer-version.
        text: What is wrong.
        repairable: True: derived data or a torn tail, which opening the directory to append repairs, once the
            file `remove` is gone. False: see `remedy`.
        remedy: What to do.
    """

    file: str
    position: int | None
    offset: int | None
    code: str
    text: str
    repairable: bool
    remedy: str = ""

    def __post_init__(self) -> None:
        if not self.remedy:
            remedy = RESTORE
            if self.remove is not None:
                remedy = f"rm {shlex.quote(self.remove)}, then {OPEN}"
            elif self.repairable:
                remedy = OPEN
            object.__setattr__(self, "remedy", remedy)

    @property
    def remove(self) -> str | None:
        """The file to remove first, if one must be: small files of closed segments are not looked at when a
        directory is opened (reads check what they use of them). A segment without its offset index is walked
        and gets all its indexes anew; of producer snapshots only the newest sound one is needed; private
        files with derived data are written again.
        """
        if self.code in _INDEX_CODES:
            return self.file.rpartition(".")[0] + names.INDEX
        return self.file if self.code in _REMOVE_CODES else None

    def __str__(self) -> str:
        where = self.file if self.position is None else f"{self.file} position {self.position}"
        return f"{where}: {self.code}: {self.text.removeprefix(where + ': ')}"


def bad_records(file: str, header: BatchHeader, error: DataError) -> Problem:
    """Return the problem of a batch whose records cannot be read. One that passes the bound on decompression
    may be sound: its remedy raises the bound."""
    code, remedy = "bad-record", ""
    if isinstance(error, DecompressionLimitError):
        code, remedy = error.code, error.remedy or ""
    return Problem(file, header.position, header.base_offset, code, error.message, False, remedy)
