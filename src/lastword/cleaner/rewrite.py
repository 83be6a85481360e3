"""A group of segments into one, driven by the dead bitmaps: no key is looked at.

Chunk by chunk of verified batches: a batch without dead records is copied byte for byte, one with dead
records only is left out, the others are cut. A batch keeps its base and last offset, codec, producer and
leader epoch; its largest timestamp is taken anew (create time), and it gets a delete horizon when a
tombstone survives its first cleaning.

What is left of neighbours goes into one batch, of about `BATCH_BYTES` of plain records at most: small batches
compress badly and cost a header each. Only where nothing differs that a batch keeps once for all its records,
and never batches of producers, transactions or control records (`kernels.join`). A batch that lost nothing
takes part only if it is small, with less than half of that; so what was joined is left alone afterwards.

Two kinds of batch stay at least as a header of 61 bytes: the last one of the group, so that the file covers
its range of offsets, and the last one of each producer, whose sequence the log must remember until it forgets
a silent one (`producer.id.expiration.ms`). What becomes of control batches `transactions` says.

Entries of magic 0 and 1 keep magic and codec. A compressed one is cut inside; nothing holds the place of one
that goes, for these formats have no empty batch. Then the output ends where its last survivor does, and the
next segment's base covers the rest.

Memory: one chunk in, one output buffer out, whatever the size of the group. With a second thread it is
`records.lanes.LANES` chunks and two buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import numpy as np
from google_crc32c import value as crc32c
from numpy.typing import NDArray

from lastword import kernels
from lastword.cleaner.choose import Plan
from lastword.cleaner.groups import Group
from lastword.cleaner.report import TombstonesWaiting
from lastword.cleaner.transactions import NOTHING, Found, is_forgotten
from lastword.files import Files
from lastword.kernels import table as fields
from lastword.kernels.digest import sum_contents
from lastword.kernels.join import JOINING_FIELDS, MOST_BYTES, OPEN_PLAIN, OPEN_ROW, TARGET_BYTES
from lastword.kernels.pack import seal_batch
from lastword.kernels.repack import (
    AS_BITS,
    CLOCK,
    DROP,
    EMPTIED,
    JOINED,
    KEEP_BASE,
    MIXED,
    RETAIN,
    mark_dead_rows,
    repack_rows,
    room_needed,
)
from lastword.records.batch import CHECKED_FROM, CRC_POSITION, HEADER_BYTES, read_header
from lastword.records.chunk import Chunk
from lastword.records.columns import decode_columns
from lastword.records.compression import compress
from lastword.records.lanes import in_lanes, prepared
from lastword.records.legacy_build import filter_entry
from lastword.records.legacy_rows import header_of
from lastword.records.reader import read_records
from lastword.resolve import DeadBitmaps, Resolution, SegmentFacts
from lastword.segment import names
from lastword.segment.index_builder import IndexBuilder
from lastword.segment.segment import Segment
from lastword.segment.txn_index import AbortedTransaction, encode_entries

OUT_BYTES = 4 << 20
OUT_ROWS = 1 << 14
BATCH_BYTES = 32 << 10
"""What joined batches are filled up to, in plain bytes. Whoever wants one record inflates its whole batch, so
no more than compression needs: Zipf-distributed keys under zstd, written in batches of 16 KiB, take 1.40
times their bytes a record when each batch is cut by itself, 1.08 times when joined up to 16 KiB, 1.03 up to
32 and 1.02 up to 64."""

_MASK = (1 << 64) - 1
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What a rewrite says it did; `certificate` looks whether it is true.

    content_digest   sum over the survivors as they lie in the sources; size_bytes: of the output
    next_offset      one past the last batch that it must hold
    control_digest   sum over the control batches that stay; markers: records of those that went
    """

    size_bytes: int
    content_digest: int
    tombstones: TombstonesWaiting
    next_offset: int
    control_digest: int
    markers: int


@dataclass(slots=True)
class _Looked:
    """A chunk of a source, to be taken; what was found in it when it was looked at.

    horizon_ms  delete horizon for its tombstones without one, -1: none
    contents    sum of the content digests of its survivors
    retain      uint8 a batch: what is to be done with it, other than its bits say
    """

    chunk: Chunk
    horizon_ms: int
    contents: int = 0
    retain: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))


class Output:
    """The new segment while it is made: a .log that grows, and at the end its indexes."""

    def __init__(self, files: Files, directory: str, base_offset: int, plan: Plan) -> None:
        self._files = files
        self.directory = directory
        self.base_offset = base_offset
        self.file = self._path(names.LOG)
        self.handle = files.open_append(self.file, create=True, exclusive=True)
        self.indexes = IndexBuilder(base_offset, plan.index_interval_bytes)
        self._synced = False

    def _path(self, extension: str) -> str:
        return f"{self.directory}/{names.segment_file(self.base_offset, extension)}"

    def sync(self) -> None:
        """Make the .log durable: all of it is written."""
        if not self._synced:
            self.handle.fsync()
            self._synced = True

    def finish(self, mtime_ms: int, aborted: Sequence[AbortedTransaction] = ()) -> None:
        """Write the indexes, and make all of it durable. The files take the time of the last source's.

        `aborted`: entries of the transaction index; without any there is none.
        """
        self.indexes.finish()
        self.sync()
        self.handle.close()
        indexes = {
            names.INDEX: bytes(self.indexes.offset_entries),
            names.TIME_INDEX: bytes(self.indexes.time_entries),
        }
        if aborted:
            indexes[names.TXN_INDEX] = encode_entries(aborted)
        for extension, entries in indexes.items():
            with self._files.open_append(self._path(extension), create=True, exclusive=True) as handle:
                handle.append(entries)
                handle.fsync()
        for extension in (names.LOG, *indexes):
            self._files.set_mtime(self._path(extension), mtime_ms)
        self._files.fsync_dir(self.directory)


def rewrite(
    group: Group,
    sources: Sequence[Segment],
    resolution: Resolution,
    plan: Plan,
    output: Output | None,
    progress: Callable[[int], None],
    transactions: Found = NOTHING,
    second: Executor | None = None,
) -> Rewritten:
    """Write the survivors of `group` to `output`; None only counts, to the byte.

    `progress` hears the bytes read, chunk by chunk, and may raise to stop. `second`: a thread that reads,
    verifies and inflates ahead; the result is the same. Raises CorruptBatchError for a source that is not
    what its checksums say.
    """
    retained = _last_of_producers(resolution.segments)
    facts = resolution.segments[group.first : group.last + 1]
    contents = controls = markers = 0
    ends_with_old = False

    def wholly_dead(table: NDArray[np.int64]) -> NDArray[np.uint8]:
        marks = np.empty(table.shape[0], np.uint8)
        mark_dead_rows(table, table.shape[0], *resolution.dead.arrays, marks)
        return marks

    def read(lanes: int) -> Iterator[_Looked]:
        for number, one in enumerate(facts, group.first):
            clocks = one.tombstones_without_horizon or number in transactions.segments
            horizon_ms = plan.now_ms + plan.delete_retention_ms if clocks else -1
            reader = sources[number].chunk_reader(verify=True, unwanted=wholly_dead)
            for chunk in in_lanes(reader, lanes, verify_later=True):
                yield _Looked(chunk, horizon_ms)

    def look(one: _Looked) -> None:
        chunk = one.chunk
        chunk.verify()
        chunk.inflate()
        total, _, row, status = sum_contents(chunk.plain, chunk.table, chunk.rows, *resolution.dead.arrays)
        if status != kernels.OK:
            chunk.raise_status(row, status)
        one.contents = int(total)
        one.retain = _retain(chunk, group.next_offset, retained, transactions, plan)

    with closing(prepared(read, look, second)) as chunks:
        writer = _Writer(output, resolution.dead, plan.max_message_bytes, chunks.leave)
        for one in chunks:
            chunk = one.chunk
            contents += one.contents
            gone = one.retain == DROP
            controls += control_digest(chunk.table[~gone])
            markers += int(chunk.table[gone, fields.COUNT].sum())
            writer.take(chunk, one.retain, one.horizon_ms)
            ends_with_old = bool(chunk.table[-1, fields.MAGIC] < 2)
            progress(chunk.size_bytes)
        writer.flush()
        chunks.settle()
    return Rewritten(
        size_bytes=writer.written_bytes,
        content_digest=contents & _MASK,
        tombstones=writer.tombstones(sum(f.tombstones for f in facts)),
        next_offset=max(writer.next_offset, group.base_offset) if ends_with_old else group.next_offset,
        control_digest=controls & _MASK,
        markers=markers,
    )


def control_digest(table: NDArray[np.int64]) -> int:
    """A sum over the control batches among these rows: each one's offset, producer, epoch and records."""
    rows = table[(table[:, fields.ATTRIBUTES] & fields.CONTROL) != 0]
    if not rows.size:
        return 0
    mixed = np.zeros(rows.shape[0], np.uint64)
    for column in (fields.LAST_OFFSET, fields.PRODUCER_ID, fields.PRODUCER_EPOCH, fields.COUNT):
        mixed = (mixed ^ rows[:, column].astype(np.uint64)) * _SPREAD
        mixed ^= mixed >> np.uint64(29)
    return int(mixed.sum())


def _last_of_producers(facts: Sequence[SegmentFacts]) -> dict[int, int]:
    """Of each producer below the limit, the last offset of its last data batch."""
    last: dict[int, int] = {}
    for one in facts:
        last.update(one.last_of_producers)
    return last


def _retain(
    chunk: Chunk, next_offset: int, producers: dict[int, int], transactions: Found, plan: Plan
) -> NDArray[np.uint8]:
    """What the kernel is to do with each batch of the chunk, other than its bits say."""
    last_offsets = chunk.table[:, fields.LAST_OFFSET]
    control = (chunk.table[:, fields.ATTRIBUTES] & fields.CONTROL) != 0
    at_end = last_offsets == next_offset - 1
    retain = np.where(at_end & ~control, np.uint8(RETAIN), np.uint8(AS_BITS))
    ids = chunk.table[:, fields.PRODUCER_ID]
    if producers and ids.max() >= 0:
        for row in np.flatnonzero((ids >= 0) & ~control).tolist():
            producer_id = int(ids[row])
            if producers[producer_id] != last_offsets[row]:
                continue
            spoke_ms = max(
                int(chunk.table[row, fields.MAX_TIMESTAMP]), transactions.spoke_ms.get(producer_id, -1)
            )
            if not is_forgotten(producer_id, spoke_ms, plan.now_ms, plan.producer_expiration_ms):
                retain[row] = RETAIN
    for row in np.flatnonzero(control).tolist():
        offset = int(last_offsets[row])
        if offset in transactions.due and not at_end[row]:
            retain[row] = DROP
        elif offset in transactions.unclocked:
            retain[row] = CLOCK
    return retain


@dataclass(slots=True)
class _Buffer:
    """Batches for the output: their bytes, a row for each, and its class."""

    out: NDArray[np.uint8]
    table: NDArray[np.int64]
    classes: NDArray[np.int64]
    rows: int = 0
    bytes: int = 0

    @classmethod
    def empty(cls) -> _Buffer:
        return cls(
            np.empty(OUT_BYTES + kernels.SLACK, np.uint8),
            np.empty((OUT_ROWS, fields.FIELDS), np.int64),
            np.empty(OUT_ROWS, np.int64),
        )


class _Writer:
    """Collects batches in one buffer and appends it when it is full. Compressing and appending are left to
    `leave`; with two threads the next buffer is filled meanwhile.
    """

    def __init__(
        self,
        output: Output | None,
        dead: DeadBitmaps,
        max_message_bytes: int,
        leave: Callable[[Callable[[], None]], bool],
    ) -> None:
        self._output = output
        self._dead = dead
        self._leave = leave
        first = _Buffer.empty()
        self._out, self._table, self._classes = first.out, first.table, first.classes
        self._spare: _Buffer | None = None
        self._joining = np.full(JOINING_FIELDS, -1, np.int64)
        self._joining[TARGET_BYTES] = BATCH_BYTES
        # What does not compress grows a little, under snappy by a sixth.
        self._joining[MOST_BYTES] = max_message_bytes * 3 // 4
        self._side = np.empty(BATCH_BYTES // 2 + kernels.SLACK, np.uint8)
        self._position = 0
        self._row = 0
        self._first_due: tuple[int, bytes] | None = None  # (horizon, a copy of its batch)
        self.written_bytes = 0
        self.next_offset = -1

    def take(self, chunk: Chunk, retain: NDArray[np.uint8], horizon_ms: int) -> None:
        old = chunk.table[:, fields.MAGIC] < 2
        if not old.any():
            self._take_batches(chunk, 0, chunk.rows, retain, horizon_ms)
            return
        borders = [0, *(np.flatnonzero(old[1:] != old[:-1]) + 1).tolist(), chunk.rows]
        for first, end in pairwise(borders):
            if old[first]:
                self._take_entries(chunk, first, end)
            else:
                self._take_batches(chunk, first, end, retain, horizon_ms)

    def _take_batches(
        self, chunk: Chunk, row: int, end: int, retain: NDArray[np.uint8], horizon_ms: int
    ) -> None:
        """Rows of magic 2."""
        while True:
            row, self._position, self._row, _kept, status = repack_rows(
                chunk.raw,
                chunk.plain,
                chunk.table,
                end,
                row,
                retain,
                *self._dead.arrays,
                horizon_ms,
                KEEP_BASE,
                self._out,
                self._position,
                self._table,
                self._row,
                self._classes,
                self._joining,
                self._side,
            )
            if self._row:
                self.next_offset = max(
                    self.next_offset, int(self._table[self._row - 1, fields.LAST_OFFSET]) + 1
                )
            if status == kernels.OK:
                return
            if status != kernels.FULL:
                chunk.raise_status(row, status)
            self._flush_but_open(int(room_needed(chunk.table, row, self._side)) + kernels.SLACK)

    def _take_entries(self, chunk: Chunk, first: int, end: int) -> None:
        """Rows of magic 0 and 1: whole ones are copied in runs, wrappers with dead messages are cut."""
        table = chunk.table[first:end]
        ends = table[:, fields.LAST_OFFSET].copy()
        whole = ~self._dead.mask(ends)  # of an uncompressed entry: its only message
        parts: list[tuple[int, int, bytes]] = []  # rows [a, b): a wrapper that was cut
        for row in np.flatnonzero(table[:, fields.ATTRIBUTES] & fields.CODEC).tolist():
            gone = self._dead.count(int(table[row, fields.BASE_OFFSET]), int(ends[row]) + 1)
            whole[row] = gone == 0
            if 0 < gone < table[row, fields.COUNT]:
                data, ends[row] = self._cut(chunk, first + row)
                parts.append((row, row + 1, data))
        edges = np.flatnonzero(np.diff(whole.astype(np.int8), prepend=0, append=0)).tolist()
        parts += [(a, b, b"") for a, b in zip(edges[::2], edges[1::2], strict=True)]
        for a, b, data in sorted(parts):
            if data:
                self._put(np.frombuffer(data, np.uint8))
            else:
                stop = table[b - 1, fields.POSITION] + table[b - 1, fields.SIZE]
                self._put(chunk.raw[table[a, fields.POSITION] : stop])
            self.next_offset = int(ends[b - 1]) + 1

    def _cut(self, chunk: Chunk, row: int) -> tuple[bytes, int]:
        """A wrapper without its dead messages, and the last offset that it has then."""
        alone = Chunk(chunk.raw, chunk.plain, chunk.table[row : row + 1], chunk.file)
        keep = ~self._dead.mask(decode_columns(alone).offset)
        header, at = header_of(chunk.table, row), int(chunk.table[row, fields.POSITION])
        left = filter_entry(chunk.raw, header, keep.tolist(), chunk.file, position=at)
        if left is None:
            raise AssertionError("a wrapper that keeps a message")
        return left.data, left.last_offset

    def _put(self, data: NDArray[np.uint8]) -> None:
        if self._position + data.size > self._out.size - kernels.SLACK:
            self.flush()
            if data.size > self._out.size - kernels.SLACK:
                self._out = np.empty(data.size + kernels.SLACK, np.uint8)
        self._out[self._position : self._position + data.size] = data
        self._position += data.size
        self._joining[OPEN_ROW] = -1

    def _flush_but_open(self, room: int) -> None:
        """Append what was collected, and keep a last batch that may take more records; make `room` behind
        it. So the output does not depend on when its buffer was full.
        """
        row = int(self._joining[OPEN_ROW])
        if row < 0:
            self.flush()
            kept = 0
        else:
            open_row, open_class = self._table[row].copy(), int(self._classes[row])
            start, kept = int(open_row[fields.POSITION]), int(open_row[fields.SIZE])
            data, beside = self._out[start : start + kept].copy(), int(self._joining[OPEN_PLAIN])
            self._row, self._position = row, start
            self.flush()
        if kept + room > self._out.size:
            self._out = np.empty(kept + room, np.uint8)
        if kept:
            self._out[:kept] = data
            open_row[[fields.POSITION, fields.FILE_POSITION]] = 0
            open_row[[fields.PLAIN_POSITION, fields.PLAIN_END]] -= start
            self._table[0], self._classes[0] = open_row, open_class
            self._row, self._position = 1, kept
            self._joining[OPEN_ROW], self._joining[OPEN_PLAIN] = 0, beside

    def flush(self) -> None:
        """Have what was collected appended, and begin anew."""
        if self._position:
            full = _Buffer(self._out, self._table, self._classes, self._row, self._position)
            self._note_first_due(self._table[: self._row])
            if not self._leave(partial(self._append, full)):
                # Of the one before nothing is left to append.
                self._spare, free = full, self._spare or _Buffer.empty()
                self._out, self._table, self._classes = free.out, free.table, free.classes
        self._position = 0
        self._row = 0
        self._joining[OPEN_ROW] = -1

    def tombstones(self, count: int) -> TombstonesWaiting:
        if not count or self._first_due is None:
            return TombstonesWaiting(count)
        horizon_ms, batch = self._first_due
        header = read_header(batch, 0, len(batch), "<output>")
        first = next((r.offset for r in read_records(batch, header) if r.value is None), -1)
        return TombstonesWaiting(count, first, horizon_ms) if first >= 0 else TombstonesWaiting(count)

    def _append(self, full: _Buffer) -> None:
        """To the output; batches with a codec whose records are plain are compressed first."""
        out, table, classes = full.out, full.table[: full.rows], full.classes[: full.rows]
        attributes = table[:, fields.ATTRIBUTES]
        joined = classes == JOINED
        coded = (attributes & fields.CODEC) != 0
        compressed = ((classes == MIXED) | joined) & coded
        for row in np.flatnonzero(joined & ~coded).tolist():
            seal_batch(out, int(table[row, fields.POSITION]), int(table[row, fields.SIZE]))
        for row in np.flatnonzero((classes == EMPTIED) & (table[:, fields.PRODUCER_ID] < 0)).tolist():
            start = int(table[row, fields.POSITION])
            _without_timestamp(out[start : start + HEADER_BYTES])
        done = 0
        parts: list[memoryview | bytes] = []
        for row in np.flatnonzero(compressed).tolist():
            start = int(table[row, fields.POSITION])
            parts.append(out[done:start].data)
            done = start + int(table[row, fields.SIZE])
            parts.append(_compressed(int(attributes[row]) & fields.CODEC, out[start:done]))
        rest = out[done : full.bytes]
        data = b"".join([*parts, rest.data]) if parts else rest
        if len(data):
            self.written_bytes += len(data)
            if self._output is not None:
                self._output.handle.append(data)

    def _note_first_due(self, table: NDArray[np.int64]) -> None:
        """Remember the batch whose horizon comes first, to name its tombstone in the report."""
        special = table[:, fields.ATTRIBUTES] & (fields.HORIZON | fields.CONTROL)
        clocked = np.flatnonzero((special == fields.HORIZON) & (table[:, fields.COUNT] > 0))
        if clocked.size:
            row = clocked[np.argmin(table[clocked, fields.BASE_TIMESTAMP])]
            horizon_ms = int(table[row, fields.BASE_TIMESTAMP])
            if self._first_due is None or horizon_ms < self._first_due[0]:
                start, size = int(table[row, fields.POSITION]), int(table[row, fields.SIZE])
                batch = self._out[start : start + size].tobytes()
                if self._classes[row] in (MIXED, JOINED):  # its records are still plain
                    attributes = int(table[row, fields.ATTRIBUTES]) & ~fields.CODEC
                    batch = batch[:CHECKED_FROM] + attributes.to_bytes(2, "big") + batch[CHECKED_FROM + 2 :]
                self._first_due = (horizon_ms, batch)


def _without_timestamp(header: NDArray[np.uint8]) -> None:
    """A header that only holds the end of the range has no record with a timestamp, so it has none either:
    an index entry for it would point at a time that no record has.
    """
    header[35:43] = 0xFF
    crc = crc32c(header[CHECKED_FROM:].tobytes())
    header[CRC_POSITION:CHECKED_FROM] = np.frombuffer(crc.to_bytes(4, "big"), np.uint8)


def _compressed(codec: int, batch: NDArray[np.uint8]) -> bytes:
    """The batch with its plain records compressed, length and checksum set anew."""
    data = batch.tobytes()
    checked = data[CHECKED_FROM:HEADER_BYTES] + compress(codec, data[HEADER_BYTES:])
    length = len(checked) + CHECKED_FROM - 12
    return (
        data[:8]
        + length.to_bytes(4, "big")
        + data[12:CRC_POSITION]
        + crc32c(checked).to_bytes(4, "big")
        + checked
    )
