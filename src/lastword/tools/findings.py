"""Problems and counts that a verification collects, and the batches that indexes are checked against."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import NamedTuple

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


MAX_PROBLEMS = 10_000  # a file of noise has millions; the first ones tell the story


class EpochRun(NamedTuple):
    """Neighbouring batches with one leader epoch: base offsets of the first and the last of them."""

    first: int
    last: int
    epoch: int


@dataclass(slots=True)
class Findings:
    """Counts and problems of one check.

    Attributes:
        sound: (inode, size, mtime) of the log files that were checked with their indexes and have no problem.
            A later check skips them. None of them ends inside a transaction.
        epochs: of each log file, which batches have which leader epoch.
    """

    batches: int = 0
    records: int = 0
    read_bytes: int = 0
    problems: list[Problem] = field(default_factory=list)
    sound: set[tuple[int, int, int]] = field(default_factory=set)
    epochs: dict[tuple[int, int, int], list[EpochRun]] = field(default_factory=dict)

    def report(self, problem: Problem) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)

    def add(
        self, file: str, position: int | None, offset: int | None, code: str, text: str, repairable: bool
    ) -> None:
        self.report(Problem(file, position, offset, code, text, repairable))


@dataclass(slots=True)
class BatchPositions:
    """What the indexes of a segment are checked against: position, last offset and largest timestamp so
    far. `old`: positions of messages of magic 0 and 1."""

    positions: dict[int, int] = field(default_factory=dict)
    old: set[int] = field(default_factory=set)
    largest: dict[int, int] = field(default_factory=dict)
    running: int = -1

    def add(self, header: BatchHeader) -> None:
        self.positions[header.position] = header.last_offset
        if header.magic < 2:
            self.old.add(header.position)
        self.running = max(self.running, header.max_timestamp)
        self.largest[header.last_offset] = self.running

    def indexed(self, offset: int, position: int) -> bool:
        """May an index say that `offset` is reached by the batch at `position`?"""
        last = self.positions.get(position)
        if last is None or position not in self.old:
            return last == offset
        return last <= offset and offset in self.largest
