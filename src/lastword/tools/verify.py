"""Everything that must hold in a log directory, checked without a lock and without changing anything.

    every batch        length, magic, checksum; its records decode and are as many as the header says
    every segment      offsets ascend, lie at or above its base and below the next segment's base
    offset index       each entry is the last offset and the position of a batch (of magic 0 and 1: of the
                       last and of the first message that were appended together)
    time index         each entry is the largest timestamp so far, and the last offset of the batch that
                       reached it, or (as brokers before 3.0 wrote) an offset inside it
    transaction index  it has an entry for every aborted transaction whose marker lies in its segment
    checkpoints        well formed, and no offset above the log end

`quick` reads headers and checks checksums not at all: what it costs is the indexes and a header per batch.
Its count of records leaves out those in compressed entries of magic 0 and 1, which only reading them tells.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from lastword.clock import Clock, SystemClock
from lastword.errors import CorruptFileError, DataError, FileVanishedError, LastwordError
from lastword.files import Files
from lastword.partition.checkpoint_file import number, read_lines
from lastword.partition.transactions import OpenTransactions, control_of
from lastword.partition.view import PartitionView
from lastword.records.batch import BatchHeader
from lastword.records.legacy import UNKNOWN_COUNT
from lastword.segment import names
from lastword.segment.offset_index import OffsetIndex
from lastword.segment.segment import Segment
from lastword.segment.time_index import TimeIndex
from lastword.segment.txn_index import ENTRY as TXN_ENTRY
from lastword.segment.txn_index import AbortedTransaction, check_entries, decode_entries
from lastword.tools.problem import Problem
from lastword.tools.walk import Walk
from lastword.values import Progress, ProgressLike, Value

KERNEL_BYTES = 4 << 20  # from here on loading the kernels costs less than decoding records in Python
MAX_PROBLEMS = 10_000  # a file of noise has millions; the first ones tell the story


@dataclass(frozen=True, slots=True)
class Verification(Value):
    """What was checked, and all that is wrong. `ok` is True only if nothing is."""

    ok: bool
    batches: int
    records: int
    read_bytes: int
    problems: tuple[Problem, ...]

    def __str__(self) -> str:
        text = f"{self.batches} batches, {self.records} records"
        return f"sound: {text}" if self.ok else f"{len(self.problems)} problems in {text}"


@dataclass(slots=True)
class _Account:
    batches: int = 0
    records: int = 0
    read_bytes: int = 0
    problems: list[Problem] = field(default_factory=list)

    def report(self, problem: Problem) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)

    def add(
        self, file: str, position: int | None, offset: int | None, code: str, text: str, repairable: bool
    ) -> None:
        self.report(Problem(file, position, offset, code, text, repairable))


@dataclass(slots=True)
class _Batches:
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


def verify(
    files: Files,
    roots: Iterable[str],
    partitions: Sequence[tuple[str, int, str]],
    *,
    quick: bool = False,
    progress: ProgressLike | None = None,
    clock: Clock | None = None,
) -> Verification:
    """Check the checkpoints of `roots` and the logs `partitions` (topic, partition, directory)."""
    clock = clock or SystemClock()
    began = clock.monotonic()
    account = _Account()
    # Checkpoints are read before the logs: a log end only grows, so a checkpoint above it is wrong whoever
    # appends meanwhile.
    checkpoints = [
        (path, row) for root in roots for path in _checkpoints(root) for row in _rows(files, path, account)
    ]
    views: list[PartitionView] = []
    for _, _, directory in partitions:
        try:
            views.append(PartitionView.load(files, directory))
        except DataError as error:
            account.add(
                error.file or directory, error.position, error.offset, error.code, error.message, False
            )
        except LastwordError as error:
            account.add(directory, None, None, "unreadable", error.message, False)
    total = sum(segment.size for view in views for segment in view.segments)
    done = 0
    ends: dict[tuple[str, int], int] = {}
    for view in views:
        done = _verify_log(files, view, quick, account, done, total, began, clock, progress)
        _verify_tail(files, view, account)
        ends[view.topic, view.partition] = view.log_end
        _verify_partition_files(files, view.directory, account)
    for path, (topic, partition, offset) in checkpoints:
        end = ends.get((topic, partition))
        if end is not None and not 0 <= offset <= end:
            account.add(
                path,
                None,
                offset,
                "checkpoint-out-of-range",
                f"{topic}-{partition}: offset {offset} is above log end {end}",
                True,
            )
    return Verification(
        not account.problems, account.batches, account.records, account.read_bytes, tuple(account.problems)
    )


def _checkpoints(root: str) -> list[str]:
    kinds = (names.RECOVERY_POINTS, names.LOG_STARTS, names.HIGH_WATERMARKS, names.FIRST_DIRTY)
    return [os.path.join(root, name) for name in kinds]


def _rows(files: Files, path: str, account: _Account) -> list[tuple[str, int, int]]:
    try:
        return [(row[0], number(row[1], path), number(row[2], path)) for row in read_lines(files, path, 3)]
    except CorruptFileError as error:
        account.add(path, None, None, "bad-checkpoint", error.message, True)
        return []


# ---------------------------------------------------------------- one log


def _verify_log(
    files: Files,
    view: PartitionView,
    quick: bool,
    account: _Account,
    done: int,
    total: int,
    began: float,
    clock: Clock,
    progress: ProgressLike | None,
) -> int:
    segments = list(view.segments)
    next_offset = 0
    transactions = OpenTransactions()
    for place, segment in enumerate(segments):
        if segment.base_offset < next_offset:
            account.add(
                segment.file,
                None,
                segment.base_offset,
                "offsets-fall",
                f"the segment before it goes up to {next_offset - 1}",
                False,
            )
        following = segments[place + 1].base_offset if place + 1 < len(segments) else None
        try:
            next_offset = _verify_segment(files, segment, following, quick, account, transactions)
        except FileVanishedError:
            # A rewrite was published meanwhile; what took this segment's place was certified when it was
            # built.
            next_offset = following or next_offset
        done += segment.size
        if progress is not None:
            progress(Progress.at("verify", done, total, clock.monotonic() - began))
    return done


def _verify_segment(
    files: Files,
    segment: Segment,
    following: int | None,
    quick: bool,
    account: _Account,
    transactions: OpenTransactions,
) -> int:
    """Check one segment and its indexes; returns the offset after its last one. `transactions`: those that
    are open where it begins, and then where it ends."""
    batches = _Batches()
    aborted: list[AbortedTransaction] = []
    next_offset = segment.base_offset
    before = len(account.problems)
    walked = (
        _quick_headers(segment, account)
        if quick
        else _sound_headers(segment, account, transactions, aborted, is_last=following is None)
    )
    for header in walked:
        if header.base_offset < next_offset or header.last_offset < header.base_offset:
            account.add(
                segment.file,
                header.position,
                header.base_offset,
                "offsets-fall",
                f"offsets {header.base_offset}-{header.last_offset} do not follow {next_offset - 1}",
                False,
            )
        if following is not None and header.last_offset >= following:
            account.add(
                segment.file,
                header.position,
                header.base_offset,
                "offsets-fall",
                f"offset {header.last_offset} belongs to the next segment, which begins with {following}",
                False,
            )
        next_offset = max(next_offset, header.last_offset + 1)
        account.batches += 1
        account.records += max(header.count, 0)
        batches.add(header)
    # Positions behind damage are not known to the index check, and in the middle of a swap the indexes
    # have other names.
    if len(account.problems) == before and not segment.suffix:
        _verify_offset_index(files, segment, batches, account)
        _verify_time_index(files, segment, batches, account)
        _verify_txn_index(files, segment, next_offset, aborted, account)
    return next_offset


def _quick_headers(segment: Segment, account: _Account) -> Iterable[BatchHeader]:
    try:
        for header in segment.headers():
            account.read_bytes += header.size if header.size < 4096 else 4096
            yield header
    except DataError as error:
        account.add(segment.file, error.position, error.offset, error.code, error.message, False)


def _sound_headers(
    segment: Segment,
    account: _Account,
    transactions: OpenTransactions,
    aborted: list[AbortedTransaction],
    *,
    is_last: bool,
) -> Iterable[BatchHeader]:
    """Every batch, its records looked at; the transactions that a marker here aborts go to `aborted`."""
    walk = Walk(
        segment.handle, segment.file, 0, segment.size, segment.base_offset, account.report, is_last=is_last
    )
    large = segment.size > KERNEL_BYTES
    for step in walk:
        if step.sound:
            count = _decoded(step.data) if large else None
            if count is None:
                count = _verify_records(step.data, step.header, segment.file, account)
            if step.header.count == UNKNOWN_COUNT:
                account.records += count
            entry = _decided(step.data, step.header, segment.file, transactions)
            if entry is not None:
                aborted.append(entry)
        yield step.header
    account.read_bytes += walk.read_bytes


def _decided(
    data: bytes, header: BatchHeader, file: str, transactions: OpenTransactions
) -> AbortedTransaction | None:
    if header.transactional and not header.control:
        transactions.begin(header.producer_id, header.base_offset)
    try:
        marker = control_of(data, header, file, position=0)
    except DataError:  # `_verify_records` tells
        return None
    if marker is None or not marker.marker:
        return None
    completed = transactions.end(header.producer_id, header.last_offset, marker)
    return transactions.index_entry(completed) if completed is not None else None


def _decoded(data: bytes) -> int | None:
    """How many records the kernels read in this batch; None if not all: then plain Python tells what is
    wrong."""
    from lastword.records.chunk import chunk_of
    from lastword.records.columns import decode_columns

    try:
        return len(decode_columns(chunk_of(data, verify=False), include_control=True))
    except DataError:
        return None


def _verify_records(data: bytes, header: BatchHeader, file: str, account: _Account) -> int:
    """Look at every record; how many there are."""
    from lastword.records.formats import read_records

    count = 0
    try:
        last = header.base_offset - 1 if header.count != UNKNOWN_COUNT else -1
        for record in read_records(data, header, file, position=0):
            if record.offset <= last or record.offset > header.last_offset:
                account.add(
                    file,
                    header.position,
                    record.offset,
                    "offsets-fall",
                    f"offset {record.offset} follows {last}",
                    False,
                )
                return count
            last = record.offset
            count += 1
    except DataError as error:
        account.add(file, header.position, header.base_offset, "bad-record", error.message, False)
    return count


def _verify_offset_index(files: Files, segment: Segment, batches: _Batches, account: _Account) -> None:
    path = segment.path(names.INDEX)
    if not files.exists(path):
        if segment.size:
            account.add(path, None, None, "missing-index", "there is none", True)
        return
    index = OffsetIndex(files.read_bytes(path), segment.base_offset, segment.size)
    for place, entry in enumerate(index.entries()):
        if not batches.indexed(entry.offset, entry.position):
            account.add(
                path,
                8 * place,
                entry.offset,
                "bad-index",
                f"no batch that ends with offset {entry.offset} lies at position {entry.position}",
                True,
            )
            return
    if index.damaged and segment.size == (files.stat(segment.file) or segment).size:
        account.add(path, index.size_bytes, None, "bad-index", "the entries from here on make no sense", True)


def _verify_time_index(files: Files, segment: Segment, batches: _Batches, account: _Account) -> None:
    path = segment.path(names.TIME_INDEX)
    if not files.exists(path):
        if segment.size:
            account.add(path, None, None, "missing-index", "there is none", True)
        return
    index = TimeIndex(files.read_bytes(path), segment.base_offset)
    last_offsets = list(batches.largest)
    for place, entry in enumerate(index.entries()):
        at = bisect_left(last_offsets, entry.offset)
        largest = batches.largest[last_offsets[at]] if at < len(last_offsets) else None
        if largest is None and segment.active:
            continue  # appended after the log was listed
        if largest != entry.timestamp:
            account.add(
                path,
                12 * place,
                entry.offset,
                "bad-time-index",
                f"timestamp {entry.timestamp} is not the largest up to offset {entry.offset}",
                True,
            )
            return
    if index.damaged:
        account.add(
            path, index.size_bytes, None, "bad-time-index", "the entries from here on make no sense", True
        )


def _verify_txn_index(
    files: Files,
    segment: Segment,
    next_offset: int,
    aborted: Sequence[AbortedTransaction],
    account: _Account,
) -> None:
    """An entry may begin below what is left of its transaction, and stay when nothing is left of it."""
    path = segment.path(names.TXN_INDEX)
    entries: list[AbortedTransaction] = []
    if files.exists(path):
        try:
            entries = decode_entries(files.read_bytes(path), path)
            check_entries(entries, segment.base_offset, path)
        except CorruptFileError as error:
            account.add(path, error.position, error.offset, "bad-txn-index", error.message, True)
            return
    known = {(entry.producer_id, entry.last_offset): entry.first_offset for entry in entries}
    for one in aborted:
        first = known.get((one.producer_id, one.last_offset))
        if first is None or first > one.first_offset:
            account.add(
                path,
                None,
                one.last_offset,
                "bad-txn-index",
                f"no entry for the transaction of producer {one.producer_id} that begins with offset "
                f"{one.first_offset} and is aborted at {one.last_offset}",
                True,
            )
            return
    for place, entry in enumerate(entries):
        if entry.last_offset >= next_offset and not segment.active:
            account.add(
                path,
                place * TXN_ENTRY.size,
                entry.last_offset,
                "bad-txn-index",
                f"offset {entry.last_offset} is not in this segment",
                True,
            )
            return


def _verify_tail(files: Files, view: PartitionView, account: _Account) -> None:
    """Bytes behind the last sound batch: an append that a kill left unfinished, unless somebody is writing
    it now."""
    last = view.active
    facts = files.stat(last.file) if last is not None else None
    if last is None or facts is None or facts.size <= last.size or facts.inode != last.inode:
        return
    with files.open_read(last.file) as handle:
        if not handle.pread(facts.size - last.size, last.size).strip(b"\0"):
            return  # room that Kafka reserved
    try:
        now = PartitionView.load(files, view.directory)
    except LastwordError:
        return  # it is changing
    if now.log_end == view.log_end:
        account.add(
            last.file,
            last.size,
            None,
            "incomplete-batch",
            f"{facts.size - last.size} bytes behind the last sound batch",
            True,
        )


def _verify_partition_files(files: Files, directory: str, account: _Account) -> None:
    """Snapshots and the leader epochs: small files that `dump` knows how to check."""
    from lastword.tools.dump import dump

    for name in files.listdir(directory):
        parsed = names.parse_segment_file(name)
        if name == names.LEADER_EPOCHS or (
            parsed and parsed.extension == names.SNAPSHOT and not parsed.suffix
        ):
            try:
                for entry in dump(os.path.join(directory, name), files=files):
                    if isinstance(entry, Problem):
                        account.report(entry)
            except FileVanishedError:
                continue
