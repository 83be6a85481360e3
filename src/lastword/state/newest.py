"""Read the newest record of every key in a range of offsets: to restore a state, and for `view="newest"`.

A short range is replayed into a dict. A long range is resolved: the map pass marks superseded records, and a
second pass over the bytes yields the others. This needs memory for the map and one bit per record, however
large the values are. For a mapping, a second thread does both, and the caller makes Python objects. If little
of a log was superseded, a mapping takes every record in order instead: the result is the same, and finding
the few superseded records would take longer.

The result is of one moment (`partition.moment`): the files are open before the first decision. If a cleaning
replaced files before they were open, files and end are computed again, before the first record is yielded.

Resolving works on whole batches. If the range ends inside a batch, records outside the range would supersede
records inside. So that batch is not resolved but replayed. A batch that is cut at its start does no harm:
older records supersede nothing.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from lastword.arrow import arrow_loaded, has_arrow, pa
from lastword.partition import scan
from lastword.partition.moment import Range, at_one_moment
from lastword.partition.transactions import Decisions, Outcomes
from lastword.partition.view import PartitionView
from lastword.records.record import RawRecord
from lastword.segment.segment import Segment

if TYPE_CHECKING:
    from lastword.files import Handle
    from lastword.records.chunk import Chunk, SkipRows
    from lastword.records.columns import RecordColumns
    from lastword.resolve import Resolution
    from lastword.resolve.facts import TransactionOutcomes


T = TypeVar("T")
BytesDone = Callable[[int, int], None]
"""Receives (bytes done, total bytes)."""


class _Closed(Exception):
    """The caller has closed the generator."""


def prefetch(
    work: Callable[[BytesDone], Iterator[T]], progress: BytesDone | None, slot_count: int
) -> Generator[T]:
    """Yield the items of `work` in order, while a thread produces more.

    The caller must close the generator: the thread then ends at its next item or progress report, and is
    joined. An error of `work` is raised after the items before it.

    Args:
        work: Takes a function for progress reports, and yields items. Runs in the thread.
        progress: Receives the progress reports, in the caller's thread.
        slot_count: The most items in memory, the one in use included.
    """
    messages: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
    slots = threading.Semaphore(slot_count)
    closed = threading.Event()

    def report(done: int, total: int) -> None:
        if closed.is_set():
            raise _Closed
        messages.put(("progress", (done, total)))

    def run() -> None:
        error: BaseException | None = None
        try:
            for item in work(report):
                slots.acquire()
                if closed.is_set():
                    return
                messages.put(("item", item))
        except BaseException as work_error:
            error = work_error
        messages.put(("end", error))

    thread = threading.Thread(target=run, name="lastword-ahead", daemon=True)
    thread.start()
    try:
        while True:
            kind, content = messages.get()
            if kind == "item":
                yield content
                slots.release()
            elif kind == "end":
                if content is not None:
                    raise content
                return
            elif progress is not None:
                progress(*content)
    finally:
        closed.set()
        slots.release()
        thread.join()


_PREFETCHED_PARTS = 4  # parts that wait for the caller, at most: each is a chunk of records
_LARGE_BYTES = 64 << 20  # a range of this size is resolved by two threads; a smaller one takes under a second
_ARROW_BYTES = 128 << 20  # for a smaller range the import of pyarrow takes longer than slices of bytes
_MOSTLY_CLEAN = 4  # a log is mostly clean if at most one byte in this number is above the cleaned offset


@dataclass(frozen=True, slots=True)
class Pairs:
    """Keys and values, as two lists of one length.

    Attributes:
        keys: The keys.
        values: Their values; None for a tombstone.
        size_bytes: Bytes of all keys and values.
        deletes: A value is None.
    """

    keys: list[bytes]
    values: list[bytes | None]
    size_bytes: int
    deletes: bool

    @classmethod
    def of(cls, keys: list[bytes], values: list[bytes | None]) -> Pairs:
        """Make pairs and compute their size."""
        size_bytes = sum(map(len, keys)) + sum(len(value) for value in values if value)
        return cls(keys, values, size_bytes, None in values)


class ValueBuffer:
    """The newest values of one partition during its restore.

    Attributes:
        data: Key to value.
        size_bytes: Bytes of all keys and values: an upper bound, exact after `recount`.
    """

    def __init__(self) -> None:
        self.data: dict[bytes, bytes] = {}
        self.size_bytes = 0
        self._exact = True

    def put(self, pairs: Pairs) -> None:
        """Add pairs in order: a later value replaces an earlier one, None removes the key."""
        # A small dict first: its hashes are in the cache when the large dict is filled.
        values = dict(zip(pairs.keys, pairs.values, strict=True))
        size_before = len(self.data)
        self.data.update(values)  # type: ignore[arg-type]  # the last step removes a None
        # The size of a replaced value is not subtracted: the lookup would cost as much as the update.
        self._exact = self._exact and len(self.data) - size_before == len(pairs.keys) and not pairs.deletes
        self.size_bytes += pairs.size_bytes
        if pairs.deletes:
            for key, value in values.items():
                if value is None:
                    del self.data[key]

    def recount(self) -> int:
        """Make `size_bytes` exact and return it; counts again if a value was replaced or deleted."""
        if not self._exact:
            self.size_bytes = sum(map(len, self.data)) + sum(map(len, self.data.values()))
            self._exact = True
        return self.size_bytes


@dataclass(frozen=True, slots=True)
class NewestRecords:
    """Some of the newest records of a range: `records`, or the `columns` of `chunk`."""

    records: list[RawRecord]
    columns: RecordColumns | None = None
    chunk: Chunk | None = None

    def __len__(self) -> int:
        return len(self.records if self.columns is None else self.columns)

    def raw(self) -> list[RawRecord]:
        """Return an object for each record."""
        if self.columns is None or self.chunk is None:
            return self.records
        from lastword.records.columns import raw_records

        return raw_records(self.columns, self.chunk)


def newest(
    range_: Range,
    *,
    tombstones: bool,
    map_bytes: int,
    keys: frozenset[bytes] | None = None,
    plain: bool | None = None,
    progress: BytesDone | None = None,
    committed: bool = True,
) -> Generator[RawRecord]:
    """Yield the newest record of each key in a range, by offset. Records without a key are left out.

    Args:
        range_: The range. After the first record its start and end are those that were used.
        tombstones: Also yield tombstones; False: a key whose newest record is a tombstone is left out.
        map_bytes: Memory of the key map of a long range.
        keys: Only these keys.
        plain: Replay the range (True) or resolve it (False). None: by its size.
        progress: Receives (bytes done, total bytes).
        committed: Leave out aborted transactions; the range must end at or below the last stable offset.

    Raises:
        OffsetOutOfRangeError: as `at_one_moment`.
        ReadOvertakenError: as `at_one_moment`.
    """
    return at_one_moment(
        range_,
        lambda view, start, end: _newest(
            view, start, end, tombstones, map_bytes, keys, plain, progress, committed
        ),
    )


def _newest(
    view: PartitionView,
    start: int,
    end: int,
    tombstones: bool,
    map_bytes: int,
    keys: frozenset[bytes] | None,
    plain: bool | None,
    progress: BytesDone | None,
    committed: bool,
) -> Iterator[RawRecord]:
    if keys is None and (scan.is_short(view, start, end) if plain is None else plain):
        yield from scan.newest_records(view, start, end, tombstones=tombstones, committed=committed)
        return
    if keys is not None and plain is not False:
        yield from replayed(view, start, end, tombstones, keys, committed)
        return
    for part in _resolved(view, start, end, tombstones, map_bytes, progress, committed):
        records = part.raw()
        yield from records if keys is None else (record for record in records if record.key in keys)


def newest_pairs(
    range_: Range,
    *,
    tombstones: bool,
    map_bytes: int,
    first_dirty: int | None = None,
    plain: bool | None = None,
    progress: BytesDone | None = None,
) -> Generator[Pairs]:
    """Yield keys and values of the newest records, which costs a fraction of `newest`. Must be closed.

    A mapping to which all pairs are applied in order holds the newest values; None removes a key.

    Args:
        range_: The range, as in `newest`.
        tombstones: Also yield tombstones.
        map_bytes: Memory of the key map of a long range.
        first_dirty: The log is clean below this offset. If that is most of the range, a key may be yielded
            more than once, and tombstones are yielded even if `tombstones` is False.
        plain: As in `newest`.
        progress: As in `newest`.
    """

    def pairs(view: PartitionView, start: int, end: int) -> Generator[Pairs]:
        if scan.is_short(view, start, end) if plain is None else plain:
            values = scan.newest_values(view, start, end)
            keys = [key for key, value in values.items() if tombstones or value is not None]
            yield Pairs.of(keys, [values[key] for key in keys])
            return
        in_order = first_dirty is not None and _is_mostly_clean(view, start, end, first_dirty)
        size = sum(segment.size for segment in view.segment_set.between(start, end))
        convert = _binaries if has_arrow() and (arrow_loaded() or size >= _ARROW_BYTES) else _sliced

        def work(report: BytesDone) -> Iterator[_Binaries | Pairs]:
            if in_order:
                return map(convert, _every_pair(view, start, end, report))
            return map(convert, _resolved(view, start, end, tombstones, map_bytes, report, threads=2))

        with closing(prefetch(work, progress, _PREFETCHED_PARTS)) as parts:
            for part in parts:
                yield part.pairs() if isinstance(part, _Binaries) else part

    return at_one_moment(range_, pairs)


def _is_mostly_clean(view: PartitionView, start: int, end: int, first_dirty: int) -> bool:
    """Estimate by whole segments whether little is dirty. Only the time of the restore depends on it."""
    segments = view.segment_set.between(start, end)
    dirty = sum(segment.size for segment in segments if segment.base_offset >= first_dirty)
    return dirty * _MOSTLY_CLEAN <= sum(segment.size for segment in segments)


def _every_pair(view: PartitionView, start: int, end: int, report: BytesDone) -> Iterator[NewestRecords]:
    """Yield every record with a key, in order."""
    total = sum(segment.size for segment in view.segment_set.between(start, end))
    done = 0
    for chunk, columns in scan.columns(view, start, end):
        keyed = columns.key_length >= 0
        yield NewestRecords([], columns if keyed.all() else columns.select(keyed), chunk)
        done += chunk.size_bytes
        report(min(done, total), total)


def newest_parts(
    range_: Range,
    *,
    tombstones: bool,
    map_bytes: int,
    committed: bool = True,
    progress: BytesDone | None = None,
) -> Generator[NewestRecords]:
    """Yield the newest records without an object per record where the range is long.

    Each item holds the columns of a chunk, which are valid until the next item, or a list of records. The
    arguments are those of `newest`.
    """

    def parts(view: PartitionView, start: int, end: int) -> Iterator[NewestRecords]:
        if scan.is_short(view, start, end):
            short = scan.newest_records(view, start, end, tombstones=tombstones, committed=committed)
            yield NewestRecords(list(short))
            return
        from lastword.records.chunk import SCAN_BYTES

        # A batch of Arrow for each chunk: larger chunks have fewer.
        yield from _resolved(
            view, start, end, tombstones, map_bytes, progress, committed, chunk_bytes=SCAN_BYTES
        )

    return at_one_moment(range_, parts)


def replayed(
    view: PartitionView,
    start: int,
    end: int,
    tombstones: bool,
    keys: frozenset[bytes] | None,
    committed: bool = True,
) -> Iterator[RawRecord]:
    """Yield the newest record of each key, of these `keys` if given, by decoding record after record."""
    newest_records: dict[bytes, RawRecord] = {}
    for record in scan.records(view, start, end, keys=keys, committed=committed):
        if record.key is not None:
            # Removed first, so that the dict stays in the order of offsets.
            newest_records.pop(record.key, None)
            newest_records[record.key] = record
    return (record for record in newest_records.values() if tombstones or record.value is not None)


# ---------------------------------------------------------------- long ranges


@dataclass(frozen=True, slots=True)
class SegmentSlice:
    """The whole batches of a segment in a range: a source of `resolve`.

    Attributes:
        segment: The segment.
        base_offset: The first offset of the range in the segment, or of the batch with that offset.
        next_offset: The offset after the slice.
        first: Position of the first batch.
        last: Position after the last batch.
    """

    segment: Segment
    base_offset: int
    next_offset: int
    first: int
    last: int

    @property
    def size(self) -> int:
        """Return the bytes of the slice."""
        return self.last - self.first

    @property
    def file(self) -> str:
        """Return the path of the segment's .log file."""
        return self.segment.file

    @property
    def handle(self) -> Handle:
        """Return the file."""
        return self.segment.handle

    def cuts(self, part_bytes: int) -> list[int]:
        """Return positions from `first` to `last`, of indexed batches about `part_bytes` apart."""
        inside = [p for p in self.segment.cuts(part_bytes) if self.first < p < self.last]
        return [self.first, *inside, self.last]

    def chunk_reader(
        self, *, chunk_bytes: int = 1 << 20, verify: bool = True, skip_rows: SkipRows | None = None
    ) -> Iterator[Chunk]:
        """Read the slice in chunks of whole batches, as `Segment.chunk_reader` does."""
        return self.segment.chunk_reader(
            self.first, self.last, chunk_bytes=chunk_bytes, verify=verify, skip_rows=skip_rows
        )


def _resolved(
    view: PartitionView,
    start: int,
    end: int,
    tombstones: bool,
    map_bytes: int,
    progress: BytesDone | None,
    committed: bool = True,
    threads: int = 1,
    chunk_bytes: int = 1 << 20,
) -> Iterator[NewestRecords]:
    """Resolve a range, then read its live records, `chunk_bytes` at a time. The files are held open."""
    from lastword.records.columns import decode_live, raw_records

    parts, cut = slices_of(view, start, end)
    total = 2 * sum(part.size for part in parts)

    def report_scan(done: int, _: int) -> None:
        if progress is not None:
            progress(min(done, total // 2), total)

    outcomes = Outcomes(view, end) if committed else Decisions()
    threads = threads if total >= 2 * _LARGE_BYTES else 1
    dead = resolution_of(view, parts, outcomes, map_bytes, report_scan, threads).dead
    tail = {record.key: record for record in replayed(view, cut, end, True, None, committed)}
    done = total // 2
    for part in parts:
        for chunk in part.chunk_reader(chunk_bytes=chunk_bytes, skip_rows=dead.wholly_dead):
            columns = decode_live(chunk, dead.arrays, start, tombstones=tombstones)
            if tail:
                yield NewestRecords([r for r in raw_records(columns, chunk) if r.key not in tail])
            else:
                yield NewestRecords([], columns, chunk)
            done += chunk.size_bytes
            if progress is not None:
                progress(min(done, total), total)
    yield NewestRecords([record for record in tail.values() if tombstones or record.value is not None])


def resolution_of(
    view: PartitionView,
    parts: Sequence[SegmentSlice],
    outcomes: TransactionOutcomes,
    map_bytes: int,
    progress: BytesDone,
    threads: int = 1,
) -> Resolution:
    """Resolve the slices of a view for a read."""
    from lastword.resolve import ScratchPlace, resolve

    return resolve(
        parts,
        map_bytes=map_bytes,
        salt=os.urandom(16),
        now_ms=None,
        outcomes=outcomes,
        progress=progress,
        threads=threads,
        place=ScratchPlace.for_read(view.directory),
        by_hash=True,
    )


def slices_of(view: PartitionView, start: int, end: int) -> tuple[list[SegmentSlice], int]:
    """Return the slices to resolve, and the offset from which the range must be replayed.

    That offset is `end` if no batch is cut.
    """
    parts = []
    cut = end
    segments = view.segment_set.between(start, end)
    for number, segment in enumerate(segments):
        first = segment.position_of(start)
        final, last = number == len(segments) - 1, segment.size
        # No search where the whole segment is in the range: behind a damaged offset it would end too early.
        is_cut = final and end != segment.next_offset
        if is_cut:
            last = segment.end_position_of(end)
        if is_cut and first < last:
            for header in segment.headers(segment.position_of(end - 1), last):
                if header.last_offset >= end:
                    cut, last = min(max(segment.first_offset_of(header), start), end), header.position
                    break
        following = max(cut, segment.base_offset) if final else segments[number + 1].base_offset
        if first < last:
            base_offset = segment.base_offset
            if first:  # the first batch may begin below the start of the range
                header = next(segment.headers(first, last))
                base_offset = max(base_offset, min(start, segment.first_offset_of(header)))
            parts.append(SegmentSlice(segment, base_offset, following, first, last))
    return parts, cut


class _Binaries(NamedTuple):
    """Keys and values as Arrow arrays that own their memory."""

    keys: pa.Array
    values: pa.Array
    size_bytes: int

    def pairs(self) -> Pairs:
        # An array of objects takes a quarter of the time of slicing each value.
        keys = self.keys.to_numpy(zero_copy_only=False).tolist()
        values = self.values.to_numpy(zero_copy_only=False).tolist()
        return Pairs(keys, values, self.size_bytes, self.values.null_count > 0)


def _binaries(part: NewestRecords) -> _Binaries | Pairs:
    """Convert with Arrow, a column after the other."""
    columns, chunk = part.columns, part.chunk
    if columns is None or chunk is None:
        return _pairs_of(part.records)
    from lastword.records.columns import binary_array

    return _Binaries(
        binary_array(chunk.uncompressed, columns.key_position, columns.key_length),
        binary_array(chunk.uncompressed, columns.value_position, columns.value_length),
        int(columns.key_length.sum()) + int(columns.value_length.clip(0).sum()),
    )


def _sliced(part: NewestRecords) -> _Binaries | Pairs:
    """Convert without Arrow, a slice after the other."""
    columns, chunk = part.columns, part.chunk
    if columns is None or chunk is None:
        return _pairs_of(part.records)
    from lastword.records.columns import byte_strings

    keys: list[Any] = byte_strings(chunk.uncompressed, columns.key_position, columns.key_length)
    return Pairs.of(keys, byte_strings(chunk.uncompressed, columns.value_position, columns.value_length))


def _pairs_of(records: list[RawRecord]) -> Pairs:
    keyed = {record.key: record.value for record in records if record.key is not None}
    return Pairs.of(list(keyed), list(keyed.values()))
