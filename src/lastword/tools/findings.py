"""Problems and counts that a verification collects, and the batches that indexes are checked against."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import NamedTuple

from lastword.errors import DataError, DecompressionLimitError
from lastword.records.batch import BatchHeader
from lastword.segment import names
from lastword.segment.stored import SegmentId
from lastword.values import Value

OPEN = "open it to write"
RESTORE = "restore the file from a copy"
_INDEX_CODES = ("bad-index", "bad-time-index", "bad-txn-index")
_REMOVE_CODES = ("bad-snapshot", "bad-accounts", "bad-survivorship", "bad-note", "bad-synced")


@dataclass(frozen=True, slots=True)
class Problem(Value):
    """A violated invariant, or damage.

    Attributes:
        file: The file.
        position: Byte in the file; None for the file as a whole.
        offset: Offset of the record; None if unknown.
        code: A short stable name. Kafka's files: bad-crc incomplete-batch bad-header bad-record
            decompression-limit unknown-magic offsets-fall missing-log missing-index bad-index bad-time-index
            bad-txn-index bad-checkpoint checkpoint-out-of-range bad-epochs bad-snapshot bad-properties
            topic-id wrong-end not-a-partition unreadable. Private files (docs/formats.md): bad-lease
            bad-removal-log bad-quarantine bad-survivorship bad-accounts bad-synced bad-note bad-journal
            bad-writers bad-commit bad-begun bad-job-file bad-partition-list bad-settings newer-version.
        text: A description.
        repairable: True: derived data or a torn tail, which is repaired when the directory is opened to
            append, after the file `remove` was removed. False: see `remedy`.
        remedy: The remedy.
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
        """The file to remove before the directory is opened to append; None: no file.

        Opening does not check the small files of closed segments (reads check the parts that they use). A
        segment without its offset index is scanned and gets all its indexes again; only the newest valid
        producer snapshot is needed; private files with derived data are written again.
        """
        if self.code in _INDEX_CODES:
            return self.file.rpartition(".")[0] + names.INDEX
        return self.file if self.code in _REMOVE_CODES else None

    def __str__(self) -> str:
        where = self.file if self.position is None else f"{self.file} position {self.position}"
        return f"{where}: {self.code}: {self.text.removeprefix(where + ': ')}"


def bad_records(file: str, header: BatchHeader, error: DataError) -> Problem:
    """Return the problem of a batch whose records cannot be read. A batch above the decompression limit may
    be
    valid: the remedy raises the limit."""
    code, remedy = "bad-record", ""
    if isinstance(error, DecompressionLimitError):
        code, remedy = error.code, error.remedy or ""
    return Problem(file, header.position, header.base_offset, code, error.message, False, remedy)


MAX_PROBLEMS = 10_000  # a file of random bytes has millions; the first ones are enough


class EpochRun(NamedTuple):
    """Consecutive batches with the same leader epoch: base offsets of the first and the last."""

    first: int
    last: int
    epoch: int


@dataclass(slots=True)
class Findings:
    """Counts and problems of one check.

    Attributes:
        sound: Identity and time (ms) of the logs that were checked with their indexes and have no problem.
            A later check skips them. None of them ends inside a transaction.
        epochs: of each log, which batches have which leader epoch.
    """

    batches: int = 0
    records: int = 0
    read_bytes: int = 0
    problems: list[Problem] = field(default_factory=list)
    sound: set[tuple[SegmentId, int]] = field(default_factory=set)
    epochs: dict[tuple[SegmentId, int], list[EpochRun]] = field(default_factory=dict)

    def report(self, problem: Problem) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)

    def add(
        self, file: str, position: int | None, offset: int | None, code: str, text: str, repairable: bool
    ) -> None:
        self.report(Problem(file, position, offset, code, text, repairable))


@dataclass(slots=True)
class BatchPositions:
    """Positions, last offsets and running largest timestamps of a segment's batches, to check its indexes.
    `old`: positions of messages of magic 0 and 1."""

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
        """Return whether an index entry (offset, position) is valid."""
        last = self.positions.get(position)
        if last is None or position not in self.old:
            return last == offset
        return last <= offset and offset in self.largest
