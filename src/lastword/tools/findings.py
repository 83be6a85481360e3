"""Problems and counts of a verification, and the walk over all batches of a file, also damaged batches.

`segment.scan.SoundWalk`, which recovery uses, stops at the first damage. `LenientWalk` continues: after a bad
checksum at the position that the length gives, after a bad length at the next valid batch.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from lastword.errors import DataError, DecompressionLimitError
from lastword.files import Handle
from lastword.partition.recovery import Cut
from lastword.records.batch import BatchHeader
from lastword.records.formats import crc_ok, read_header
from lastword.segment import names
from lastword.segment.scan import Damage, is_zeroed, sound_batch_after
from lastword.segment.stored import SegmentId
from lastword.values import Value
from lastword.wire import OVERHEAD_BYTES, SMALLEST_LENGTH, STEP_BYTES

OPEN = "open it to write"
RESTORE = "restore the file from a copy"
INDEX_CODES = {
    names.INDEX: "bad-index",
    names.TIME_INDEX: "bad-time-index",
    names.TXN_INDEX: "bad-txn-index",
}
"""The code of a damaged index, by its extension: `dump` and `verify` report the same."""
REMOVE_CODES = (
    "bad-snapshot",
    "bad-accounts",
    "bad-survivorship",
    "bad-garbage-summary",
    "bad-key-index",
    "bad-note",
    "bad-synced",
)


@dataclass(frozen=True, slots=True)
class Problem(Value):
    """A violated invariant, or damage.

    Attributes:
        file: The file.
        position: Byte in the file; None for the file as a whole.
        offset: Offset of the record; None if unknown.
        code: A short stable name. Kafka's files: bad-crc incomplete-batch bad-length bad-header bad-codec
            bad-payload bad-records bad-record bad-control undecodable-record decompression-limit
            unknown-magic offsets-fall missing-log missing-index bad-index (.index) bad-time-index
            (.timeindex) bad-txn-index (.txnindex) bad-checkpoint checkpoint-out-of-range bad-epochs
            bad-snapshot bad-properties topic-id wrong-log-end not-a-partition unreadable.
            Private files (docs/formats.md): bad-lease bad-removal-log bad-quarantine bad-survivorship
            bad-accounts bad-garbage-summary bad-key-index bad-synced bad-note bad-journal bad-writers
            bad-commit bad-begun bad-job-file bad-partition-list bad-producer-ids bad-settings newer-version.
            `dump` reports damage of a small file with the code of `verify`.
            Objects of a bucket: lost-object truncated-object longer-object damaged-manifest.
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

        Opening does not check the small files of closed segments (reads check the parts that they use). For a
        segment without its offset index, opening scans the segment and builds all its indexes; only the
        newest valid producer snapshot is needed; private files with derived data are written again.
        """
        if self.code in INDEX_CODES.values():
            return self.file.rpartition(".")[0] + names.INDEX
        return self.file if self.code in REMOVE_CODES else None

    def __str__(self) -> str:
        where = self.file if self.position is None else f"{self.file} position {self.position}"
        return f"{where}: {self.code}: {self.text.removeprefix(where + ': ')}"


def bad_records(file: str, header: BatchHeader, error: DataError) -> Problem:
    """Return the problem of a batch whose records cannot be read.

    A batch above the decompression limit may be valid: the remedy raises the limit.
    """
    code, remedy = "bad-record", ""
    if isinstance(error, DecompressionLimitError):
        code, remedy = error.code, error.remedy or ""
    return Problem(file, header.position, header.base_offset, code, error.message, False, remedy)


MAX_PROBLEMS = 10_000  # a file of random bytes has millions


class EpochRun(NamedTuple):
    """Consecutive batches with the same leader epoch: base offsets of the first and the last."""

    first: int
    last: int
    epoch: int


@dataclass(slots=True)
class Findings:
    """Counts and problems of one check.

    Attributes:
        batches: Batches read.
        records: Records read.
        read_bytes: Bytes read.
        problems: The problems, at most `MAX_PROBLEMS`.
        valid: Identity and time (ms) of the segments that were checked with their indexes and have no
            problem. A later check skips them. None of them ends inside a transaction.
        epochs: For each segment, its batches by leader epoch.
        cuts: The log files that an opening to write would cut or remove.
    """

    batches: int = 0
    records: int = 0
    read_bytes: int = 0
    problems: list[Problem] = field(default_factory=list)
    valid: set[tuple[SegmentId, int]] = field(default_factory=set)
    epochs: dict[tuple[SegmentId, int], list[EpochRun]] = field(default_factory=dict)
    cuts: list[Cut] = field(default_factory=list)

    def report(self, problem: Problem) -> None:
        """Add a problem, if there is room."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)

    def add(
        self,
        file: str,
        position: int | None,
        offset: int | None,
        code: str,
        text: str,
        repairable: bool = False,
    ) -> None:
        """Add a problem from its fields."""
        self.report(Problem(file, position, offset, code, text, repairable))

    def add_error(self, error: DataError, file: str) -> None:
        """Add the damage that an error states; it is in `file` unless the error names another one."""
        self.add(error.file or file, error.position, error.offset, error.code, error.message)


@dataclass(slots=True)
class BatchPositions:
    """Positions, last offsets and running largest timestamps of a segment's batches, to check its indexes.

    `old`: positions of messages of magic 0 and 1.
    """

    positions: dict[int, int] = field(default_factory=dict)
    old: set[int] = field(default_factory=set)
    largest: dict[int, int] = field(default_factory=dict)
    running: int = -1

    def add(self, header: BatchHeader) -> None:
        """Add a batch."""
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


_BLOCK_BYTES = 1 << 20

Report = Callable[[Problem], None]


@dataclass(frozen=True, slots=True)
class Step:
    """A batch: its header with its position in the file, its bytes, and whether its checksum is right."""

    header: BatchHeader
    data: bytes
    valid: bool


class LenientWalk:
    """Iterates over the batches in the first `end` bytes of `handle`, and reports damage to `report`.

    `is_last`: the segment is the last of its log, so recovery would cut a torn tail. After the walk,
    `read_bytes` is the number of bytes read, and `tail` the position of an incomplete last batch, or None.
    """

    def __init__(
        self, handle: Handle, file: str, end: int, base_offset: int, report: Report, *, is_last: bool = True
    ) -> None:
        self._handle = handle
        self._file = file
        self._end = end
        self._base_offset = base_offset
        self._report = report
        self._is_last = is_last
        self._next_offset = base_offset
        self.position = 0
        self.read_bytes = 0
        self.tail: int | None = None

    def __iter__(self) -> Iterator[Step]:
        block, block_start = b"", self.position
        while self.position < self._end:
            block_position = self.position - block_start
            bytes_left = self._end - self.position
            length, need = -1, STEP_BYTES
            if len(block) - block_position >= STEP_BYTES:
                length = int.from_bytes(block[block_position + 8 : block_position + 12], "big", signed=True)
                need = length + OVERHEAD_BYTES if length >= SMALLEST_LENGTH else bytes_left + 1
            if need > bytes_left:
                if not self._skip(length, bytes_left):
                    return
                block, block_start = b"", self.position
                continue
            if len(block) - block_position < need:
                block = self._handle.pread(min(max(_BLOCK_BYTES, need), bytes_left), self.position)
                block_start = self.position
                self.read_bytes += len(block)
                if len(block) < need:
                    self._problem("incomplete-batch", "the file became shorter while it was read", True)
                    return
                continue
            step = self._step(block[block_position : block_position + need])
            self.position += need
            if step is not None:
                self._next_offset = step.header.next_offset
                yield step

    def _step(self, data: bytes) -> Step | None:
        try:
            header = read_header(data, 0, len(data), self._file, file_position=self.position)
        except DataError as error:
            self._problem(error.code, error.message, False, int.from_bytes(data[:8], "big", signed=True))
            return None
        valid = crc_ok(data, header, 0)
        if not valid:
            self._problem(
                "bad-crc",
                f"the checksum of the batch at offset {header.base_offset} is wrong",
                False,
                header.base_offset,
            )
        return Step(header, data, valid)

    def _skip(self, length: int, bytes_left: int) -> bool:
        """Report invalid bytes at the position and move after them. False if no valid batch follows."""
        damage = Damage(self.position, self._next_offset, "bad-length", "")
        next_position = sound_batch_after(self._handle, self._file, damage, self._end, self._base_offset)
        if next_position is None:
            self.tail = self.position
            if not (self._is_last and is_zeroed(self._handle, self.position, self._end)):  # room for appends
                self._problem(
                    "incomplete-batch", f"the last {bytes_left} bytes are not a whole batch", self._is_last
                )
            return False
        self._problem(
            "bad-length",
            f"the length {length} is invalid; {next_position - self.position} bytes were skipped",
            False,
            self._next_offset,
        )
        self.position = next_position
        return True

    def _problem(self, code: str, text: str, repairable: bool, offset: int | None = None) -> None:
        self._report(Problem(self._file, self.position, offset, code, text, repairable))
