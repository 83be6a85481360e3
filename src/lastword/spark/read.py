"""Read the records of one task: offset ranges in, Arrow batches out.

Where it runs. `source.LogReader.partitions()` runs once for each loaded DataFrame, in a Python process beside
the driver; it reads file names and indexes, never records. `read_task` runs once for each task that Spark
starts, in a worker. Only workers import this module: it loads NumPy and the kernels.

What travels. The options and the schema inside the reader, and for each task a `LogPartition`: a topic, a
partition, two offsets, and the segments of a partition that has few. Many small partitions share a task,
which has one for each (`SharedTask`). Between planning and reading the cleaner may replace files: a task
opens the planned segments if they are still there, and else lists the partition again. A DataFrame is a
snapshot of a log's end: its second action reads the same offsets again.

When tasks fail. Nothing is written, so a retry or a second copy of a task reads the same records; a cleaning
between the two may have removed superseded ones. A file that vanishes during a task is found again. With
`view` newest or changes, a cleaning may have used records above the planned end, so that keys would be
missing. Each task checks this in the files that it has opened (`partition.moment`), and raises an error with
the remedy to load again. Lost records (the log start has passed the range, the log was truncated) are an
error, unless `failOnDataLoss` is false.

A task shows all records of its range, or the newest record of each key, without tombstones (`view=newest`) or
with them (`view=changes`). This needs no shuffle: a key belongs to one partition of the log, so one task has
all of its records. The task scans its partition for liveness (an exact map marks every superseded record
dead) and then reads it again, without dead records. Spark's own way (`groupBy(key).agg(max_by(...))`) sends
every version of every key through the JVM and a sort. If an exact garbage index of the partition is saved,
the first pass of `newest` scans only newer records.

With an end below the log's end, both views return the newest records as of that end. If a cleaning used
records from that end on, older versions were removed and no result would be correct: OffsetOutOfRangeError
(`partition.moment`). This applies to a given end, and to the end of a DataFrame that was loaded before the
cleaning; load it again.

A micro-batch of a stream is not refused. It shows the newest record of each key in its range. A key whose
newest record there was superseded by one above the range is in a later batch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from lastword.api.arrow import headers_of, joined
from lastword.arrow import pa, pc
from lastword.config import Settings
from lastword.errors import (
    CorruptBatchError,
    FileVanishedError,
    OffsetOutOfRangeError,
    ReadOvertakenError,
    ValueFormatError,
)
from lastword.files import DEFAULT, Files
from lastword.kernels import BAD_OFFSET
from lastword.kernels import table as fields
from lastword.logdir.identity import known_topic_id
from lastword.logdir.topics import register_limits
from lastword.partition.directory_segments import DirectorySegments, read_log_start
from lastword.partition.moment import Range
from lastword.partition.transactions import Decisions, Outcomes
from lastword.partition.view import PartitionView
from lastword.records.chunk import Chunk, ChunkJoiner
from lastword.records.columns import (
    RecordColumns,
    binary_array,
    decode_columns,
    decode_live,
    microseconds,
    to_arrow,
)
from lastword.records.record import RawRecord
from lastword.spark.bootstrap import check_seen, collector_paused
from lastword.spark.bucket import files_at
from lastword.spark.options import LATEST, Bound, ReadOptions
from lastword.spark.schema import CHANGE, CORRUPT, FORMATTED, EngineSchema, arrow_schema
from lastword.spark.splits import MAX_RELOADS, LogPartition, parts_of
from lastword.state.changes import from_accounts

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql.datasource import InputPartition

    from lastword.value_formats.interface import ValueFormat

CHUNK_BYTES = 2 << 20
"""The size of a chunk that is read and decoded. Arrow batches of 1-4 MB are transferred to the JVM fastest:
smaller batches cost calls, larger batches memory (50 MB halve the speed).
"""

ARROW_BATCH_BYTES = 4 << 20
JOINED_BYTES = 1 << 20
Rows = tuple[Chunk, RecordColumns] | list[RawRecord]


# ---------------------------------------------------------------- Arrow batches


def read_task(
    task: InputPartition,
    options: ReadOptions,
    schema: EngineSchema,
    columns: tuple[str, ...],
    files: Files | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all parts of a task, as `read_batches`; batches of small parts are joined."""
    parts, files = parts_of(task), files or files_at(options.path, options.storage)
    for root in dict.fromkeys(os.path.dirname(part.directory) for part in parts):
        register_limits(root, files)
    target = arrow_schema(schema)
    if len(parts) == 1 or options.view != "log" or decoders_of(columns, options):
        batches = (batch for part in parts for batch in read_batches(part, options, target, columns, files))
        yield from joined(batches, JOINED_BYTES)
        return
    with collector_paused():  # a shared task has few bytes
        yield from joined(read_together(parts, options, target, columns, files), JOINED_BYTES)


def read_batches(
    task: LogPartition,
    options: ReadOptions,
    target: pa.Schema,
    columns: tuple[str, ...],
    files: Files = DEFAULT,
) -> Iterator[pa.RecordBatch]:
    """Yield the task's rows in offset order, with `columns`, in the Arrow schema that Spark requires."""
    if task.found is not None:
        rows = indexed_records(task, options, files)
        if rows is not None:
            yield from to_spark(rows, task, options, target, columns)
            return
    if options.view != "log":
        chunks = newest_chunks(task, options, files, tombstones=options.view == "changes")
    else:
        between = chunks_between(task, options, files)
        chunks = ((chunk, selected(chunk, hidden, first, task.end)) for chunk, hidden, first in between)
    yield from to_spark(chunks, task, options, target, columns)


def read_together(
    parts: Sequence[LogPartition],
    options: ReadOptions,
    target: pa.Schema,
    columns: tuple[str, ...],
    files: Files,
) -> Iterator[pa.RecordBatch]:
    """As `read_batches` of each part. Small chunks are decoded and converted together.

    For a small partition, the calls for its arrays cost more than its records.
    """
    joiner = ChunkJoiner(JOINED_BYTES)
    owners: list[LogPartition] = []  # the part of each chunk in `joiner`

    def converted() -> Iterator[pa.RecordBatch]:
        if owners:
            records, chunk, counts = decode_joined(*joiner.take())
            numbers = np.repeat(np.array([part.partition for part in owners], np.int32), counts)
            yield from to_spark(iter([(chunk, records)]), owners[0], options, target, columns, numbers)
            owners.clear()

    for part in parts:
        for chunk, hidden, first in chunks_between(part, options, files):
            base_offset = int(chunk.table[0, fields.BASE_OFFSET])
            is_whole = hidden is None and first <= base_offset and chunk.next_offset <= part.end
            if owners and (not is_whole or part.topic != owners[0].topic or not joiner.add(chunk)):
                yield from converted()
            elif owners:
                owners.append(part)
                continue
            if is_whole and joiner.add(chunk):
                owners.append(part)
            else:
                records = selected(chunk, hidden, first, part.end)
                yield from to_spark(iter([(chunk, records)]), part, options, target, columns)
    yield from converted()


def decode_joined(chunk: Chunk, chunks: Sequence[Chunk]) -> tuple[RecordColumns, Chunk, NDArray[np.intp]]:
    """Return the columns of a joined chunk, the chunk, and the number of records of each of its chunks."""
    try:
        records = decode_columns(chunk)
    except CorruptBatchError:
        for each in chunks:
            decode_columns(each)  # raises it with the name of its file
        raise
    ends = np.cumsum([each.rows for each in chunks])
    return records, chunk, np.diff(np.searchsorted(records.row, ends), prepend=0)


def to_spark(
    chunks: Iterable[Rows],
    task: LogPartition,
    options: ReadOptions,
    target: pa.Schema,
    columns: tuple[str, ...],
    numbers: NDArray[np.int32] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Convert records to Arrow batches of at most about ARROW_BATCH_BYTES, in the schema of Spark.

    `numbers`: the partition of each record, of several partitions of one topic; None: that of the task.
    """
    names = tuple(name for name in columns if name not in (CHANGE, CORRUPT)) or ("offset",)
    decoders = decoders_of(columns, options)
    if decoders:
        names = tuple(dict.fromkeys((*names, *decoders, "offset")))
    keys: Any = None
    if options.keys is not None:
        keys = pa.array(options.keys, pa.binary())
        names = names if "key" in names else (*names, "key")
    for each in chunks:
        partition = task.partition if numbers is None else numbers
        if isinstance(each, list):
            batch = _of_raw(each, names, task)
            deletes = np.array([record.value is None for record in each], np.bool_)
        else:
            chunk, records = each
            if len(records) == 0:
                continue
            batch = to_arrow(records, chunk, names, topic=task.topic, partition=partition)
            deletes = records.value_length < 0
        if CHANGE in columns:
            batch = batch.append_column(CHANGE, changes(deletes))
        if keys is not None:
            batch = batch.filter(pc.is_in(batch.column("key"), value_set=keys, skip_nulls=True))
        if decoders:
            batch = decoded(batch, decoders, target, task, options)
        arrays = [
            array if array.type == field.type else array.cast(field.type)
            for array, field in zip((batch.column(name) for name in columns), target, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=target)
        rows = max(1, batch.num_rows * ARROW_BATCH_BYTES // max(batch.nbytes, 1))
        for first in range(0, batch.num_rows, rows):
            yield batch.slice(first, rows)


def _of_raw(records: list[RawRecord], names: tuple[str, ...], task: LogPartition) -> pa.RecordBatch:
    """Return an Arrow batch as `to_arrow` does."""
    count = len(records)
    columns: dict[str, Callable[[], pa.Array]] = {
        "key": lambda: pa.array([record.key for record in records], pa.binary()),
        "value": lambda: pa.array([record.value for record in records], pa.binary()),
        "topic": lambda: pa.array([task.topic] * count, pa.string()),
        "partition": lambda: pa.array([task.partition] * count, pa.int32()),
        "offset": lambda: pa.array([record.offset for record in records], pa.int64()),
        "timestamp": lambda: pa.array(
            microseconds(np.array([record.timestamp for record in records], np.int64)),
            pa.timestamp("us", tz="UTC"),
        ),
        "timestampType": lambda: pa.array([record.timestamp_type for record in records], pa.int32()),
        "headers": lambda: headers_of(records),
    }
    return pa.RecordBatch.from_arrays([columns[name]() for name in names], names=list(names))


def changes(deletes: NDArray[np.bool_]) -> pa.Array:
    """Return the change (`upsert` or `delete`) of each record."""
    kinds = pa.array(deletes.astype("int8"), pa.int8())
    return pa.DictionaryArray.from_arrays(kinds, pa.array(["upsert", "delete"])).cast(pa.string())


# ---------------------------------------------------------------- columns with a format


def decoders_of(columns: tuple[str, ...], options: ReadOptions) -> dict[str, ValueFormat]:
    """Return the format of each column to decode.

    `_corrupt_record` needs all columns with a format. If events say what is deleted, view newest and column
    `change` need the values.
    """
    needs_deletions = options.view == "newest" or CHANGE in columns
    decoders = {}
    for name in FORMATTED:
        value_format = options.formats.of(name)
        if value_format is not None and (
            name in columns or CORRUPT in columns or (value_format.has_deletions and needs_deletions)
        ):
            decoders[name] = value_format
    return decoders


def decoded(
    batch: pa.RecordBatch,
    decoders: dict[str, ValueFormat],
    target: pa.Schema,
    task: LogPartition,
    options: ReadOptions,
) -> pa.RecordBatch:
    """Return the batch with decoded columns, and with `_corrupt_record` in mode permissive.

    A value that decodes to a deletion is not in view newest, and has the change `delete`.

    ValueFormatError for the first row that cannot be decoded, in mode failfast.
    """
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    deleted: pa.Array | None = None
    corrupt: dict[int, dict[str, Any]] = {}
    for name, value_format in decoders.items():
        number = target.get_field_index(name)
        kind = target.field(number).type if number >= 0 else value_format.unselected_type()
        raw = columns[name]
        if kind is None:  # not selected, and only the user's schema would have its type
            continue
        result = value_format.decode(raw, kind)
        if result.problems and not options.formats.permissive:
            row, reason = min(result.problems.items())
            offset = columns["offset"][row].as_py()
            raise ValueFormatError.at(task.name, offset, name, value_format.name, reason)
        for row, reason in result.problems.items():
            noted = corrupt.setdefault(row, {})
            reasons = [*([noted["reason"]] if noted else []), f"{name}: {reason}"]
            noted.update({name: raw[row].as_py(), "reason": "; ".join(reasons)})
        columns[name] = result.column
        if value_format.has_deletions:
            valid = np.asarray(result.column.is_valid())
            valid[list(result.problems)] = True
            deleted = pa.array(~valid)
    if deleted is not None and CHANGE in columns:
        columns[CHANGE] = pc.if_else(deleted, "delete", columns[CHANGE])
    if (number := target.get_field_index(CORRUPT)) >= 0:
        rows = [corrupt.get(row) for row in range(batch.num_rows)]
        columns[CORRUPT] = pa.array(rows, target.field(number).type)
    batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    return batch if deleted is None or options.view != "newest" else batch.filter(pc.invert(deleted))


# ---------------------------------------------------------------- all records


def selected(chunk: Chunk, hidden: NDArray[np.bool_] | None, first: int, end: int) -> RecordColumns:
    """Return the records of a chunk from `chunks_between`: those of the range that are not hidden."""
    records = within(decode_columns(chunk), first, end)
    return records if hidden is None else records.select(~hidden[records.row])


def within(columns: RecordColumns, start: int, end: int) -> RecordColumns:
    """Return the records with start <= offset < end. Offsets rise, so this is a slice."""
    first, last = np.searchsorted(columns.offset, [start, end]).tolist()
    return columns if (first, last) == (0, len(columns)) else columns.select(slice(first, last))


def chunks_between(
    task: LogPartition, options: ReadOptions, files: Files
) -> Iterator[tuple[Chunk, NDArray[np.bool_] | None, int]]:
    """Yield chunks of whole batches that cover a range, across segments, gaps, and concurrent rewrites.

    Each chunk is yielded with a mask of the rows of aborted transactions, or None, and with the first offset
    that counts: a batch may begin below the range, or with records that another file has yielded.
    """
    offset = task.start
    for view in views_of(task, options, files):
        offset = check_loss(task, view, offset, options)
        outcomes = outcomes_of(view, task, options)
        try:
            segments = view.segment_set.between(offset, task.end)
            bases = (segment.base_offset for segment in segments[1:])
            for segment, following in zip_longest(segments, bases):
                # A segment below the end is read to its last byte: a damaged offset must not hide a batch.
                first = segment.position_of(offset)
                last = segment.end_position_of(task.end) if following is None else segment.size
                for chunk in segment.chunk_reader(first, last, chunk_bytes=CHUNK_BYTES):
                    if following is not None and chunk.next_offset > following:
                        chunk.raise_status(chunk.rows - 1, BAD_OFFSET)
                    hidden = None if outcomes is None else outcomes.hidden(chunk)
                    reached = chunk.next_offset
                    yield chunk, hidden, offset
                    offset = max(offset, reached)
        except FileVanishedError:
            continue
        return


def views_of(task: LogPartition, options: ReadOptions, files: Files) -> Iterator[PartitionView]:
    """Yield a view of the partition for each attempt to read it; none if its loss is to be ignored.

    The first is that of the plan, if it came with the task. It holds as long as its files do: a segment that
    was replaced since cannot be opened. A trimmed log and a recreated topic are not read from it.

    Raises:
        FileVanishedError: The files changed MAX_RELOADS times during an attempt.
    """
    planned = task.version
    if planned is not None and read_log_start(files, task.directory) <= planned.log_start:
        own_id = None if task.topic_id is None else known_topic_id(files, task.directory)
        if own_id in (None, task.topic_id):
            store = DirectorySegments(files, task.directory)
            yield PartitionView(store, store.from_portable(planned))
    for _ in range(MAX_RELOADS):
        view = view_of(task, options, files)
        if view is None:
            return
        yield view
    raise FileVanishedError(f"{task.directory}: its files changed {MAX_RELOADS} times while they were read")


def view_of(task: LogPartition, options: ReadOptions, files: Files) -> PartitionView | None:
    """Return the current view of the partition, or None if its loss is to be ignored.

    A partition is lost if it is missing, or belongs to a recreated topic.
    """
    is_there = options.fail_on_data_loss or files.is_dir(task.directory)
    if not is_there and files.is_dir(os.path.dirname(task.directory)):
        return None
    check_seen(task.directory, files)
    view = PartitionView.load(DirectorySegments(files, task.directory))
    if task.topic_id is None or known_topic_id(files, task.directory) in (None, task.topic_id):
        return view
    if not options.fail_on_data_loss:
        return None
    raise OffsetOutOfRangeError(
        f"{task.name}: the topic was deleted and recreated since this was planned",
        remedy="load it again",
        file=task.directory,
    )


def check_loss(task: LogPartition, view: PartitionView, offset: int, options: ReadOptions) -> int:
    """Return the offset at which to continue.

    OffsetOutOfRangeError if records of the range were lost after planning. A gap is no loss: a cleaning
    changes neither log start nor log end.
    """
    if options.fail_on_data_loss:
        lost = None
        if view.log_start > offset:
            lost = OffsetOutOfRangeError.below(task.name, offset, view.log_start)
        elif view.log_end < task.end:
            lost = OffsetOutOfRangeError.above(task.name, task.end, view.log_end)
        if lost is not None:
            lost.remedy = "load it again, or set failOnDataLoss to false to read what is there"
            raise lost
    return max(offset, view.log_start)


def outcomes_of(view: PartitionView, task: LogPartition, options: ReadOptions) -> Outcomes | None:
    """Return the transaction outcomes that a task needs; None if it shows all records."""
    return Outcomes(view, task.end) if options.isolation == "read_committed" else None


# ---------------------------------------------------------------- the newest of each key


def newest_chunks(
    task: LogPartition, options: ReadOptions, files: Files, *, tombstones: bool
) -> Iterator[Rows]:
    """Yield decoded chunks with only the newest record of each key of the range.

    Without `tombstones`, a key whose newest record has no value is left out. A batch that extends over the
    end of the range is replayed, and its records are the last item.

    Both passes must read the same files. A cleaning that is published between them restarts the task, as long
    as it has yielded nothing; after that the segments are open and stay readable.
    """
    from lastword.state.newest import replayed, resolution_of, slices_of

    committed = options.isolation == "read_committed"
    for view in views_of(task, options, files):
        start = check_loss(task, view, task.start, options)
        if start >= task.end:  # the whole range is lost, and its loss is ignored
            return
        try:
            view = held(view, start, task, options)
            parts, cut = slices_of(view, start, task.end)
            outcomes = outcomes_of(view, task, options)
            memory = map_bytes(os.path.dirname(task.directory), files)
            resolution = None
            if not tombstones and start <= view.log_start:
                resolution = from_accounts(view, parts, outcomes, memory)
            if resolution is None:
                resolution = resolution_of(view, parts, outcomes or Decisions(), memory, lambda done, _: None)
            tail = list(replayed(view, cut, task.end, True, None, committed))
        except FileVanishedError:
            continue
        dead, superseding = resolution.dead, pa.array([record.key for record in tail], pa.binary())
        try:
            for part in parts:
                for chunk in part.chunk_reader(chunk_bytes=CHUNK_BYTES, skip_rows=dead.wholly_dead):
                    records = decode_live(chunk, dead.arrays, start, tombstones=tombstones)
                    if tail:
                        keys = binary_array(chunk.uncompressed, records.key_position, records.key_length)
                        records = records.select(~np.asarray(pc.is_in(keys, value_set=superseding)))
                    yield chunk, records
        except FileVanishedError as error:
            raise ReadOvertakenError.of(task.name, task.directory) from error
        yield [record for record in tail if tombstones or record.value is not None]
        return


INDEXED_TOGETHER = 64
"""The records of a key index that are read at a time."""
HELD_BYTES = 16 << 20
"""Values of about this size are held from the check of their records on. Further records are read again."""


def indexed_records(
    task: LogPartition, options: ReadOptions, files: Files
) -> Iterator[list[RawRecord]] | None:
    """Return the newest records of the keys: those that a key index has found, and those above the index.

    None: a record is not as the index says, so that the whole range is to be read. Then the index is wrong,
    or a cleaning has removed the record for a newer one that is above the end of the range.
    """
    from lastword.partition.lookups import records_at
    from lastword.state.newest import newest

    keys = frozenset(options.keys or ())
    for view in views_of(task, options, files):
        start = check_loss(task, view, task.start, options)
        if start >= task.end:
            break
        try:
            view = held(view, start, task, options)
            rest = Range(view, max(start, task.indexed_to), task.end)
            above = {r.key: r for r in newest(rest, tombstones=True, map_bytes=0, keys=keys)}
            found = [(at, key) for at, key in task.found or () if at >= start and key not in above]
            groups: list[tuple[list[int], list[RawRecord | None] | None]] = []
            held_bytes = 0
            for first in range(0, len(found), INDEXED_TOGETHER):
                group = found[first : first + INDEXED_TOGETHER]
                offsets = [offset for offset, _ in group]
                records = records_at(view, offsets, committed=True)
                if [None if record is None else record.key for record in records] != [
                    key for _, key in group
                ]:
                    return None
                held_bytes += sum(len(record.value or b"") for record in records if record is not None)
                groups.append((offsets, records if held_bytes <= HELD_BYTES else None))
        except FileVanishedError:
            continue
        return _rows_of(task, view, groups, above)
    return iter(())


def _rows_of(
    task: LogPartition,
    view: PartitionView,
    groups: list[tuple[list[int], list[RawRecord | None] | None]],
    above: Mapping[bytes | None, RawRecord],
) -> Iterator[list[RawRecord]]:
    """Yield the records of groups, which are read if they are not held, and those above."""
    from lastword.partition.lookups import records_at

    try:
        for offsets, records in groups:
            records = records or records_at(view, offsets, committed=True)
            yield [record for record in records if record is not None and record.value is not None]
    except FileVanishedError as error:
        raise ReadOvertakenError.of(task.name, task.directory) from error
    yield [record for record in above.values() if record.value is not None]


def held(view: PartitionView, start: int, task: LogPartition, options: ReadOptions) -> PartitionView:
    """Open the files of the task's range.

    Raises:
        FileVanishedError: A file was replaced.
        OffsetOutOfRangeError: The files lack keys as of the given end.
        ReadOvertakenError: The files lack keys as of the end that was "latest" when the DataFrame was
            loaded.
    """
    if task.in_stream:
        return view.held(start)
    try:
        return Range(view, start, task.end).held()
    except OffsetOutOfRangeError as error:
        if options.end != Bound(everywhere=LATEST):
            error.remedy = f"load it again; where its end was given: {error.remedy}"
            raise
        raise ReadOvertakenError(
            f"{task.name}: the log was cleaned since this DataFrame was loaded, with records from its end, "
            f"offset {task.end}, on: what was newest then is not known any more",
            remedy="load it again; to use it more than once, cache it",
            file=task.directory,
        ) from error


def map_bytes(path: str, files: Files) -> int:
    """Return the memory for the key map of a task: log.cleaner.dedupe.buffer.size / log.cleaner.threads."""
    return Settings.load(path, files=files).instance.map_bytes
