"""The batch source: offset ranges in, Arrow batches out.

Where it runs. `partitions()` runs once for each loaded DataFrame, in a Python process beside the driver; it
reads file names and indexes, never records. `read()` runs once for each task that Spark starts, in a worker.

What travels. The options and the schema inside the reader, and for each task a `LogPartition`: a topic, a
partition and two offsets. File names do not travel: between planning and reading the cleaner may replace
files, so a task finds the segments of its offsets itself. A DataFrame is a snapshot of a log's end: its
second action reads the same offsets again.

When tasks fail. Nothing is written, so a retry or a second copy of a task reads the same records; a cleaning
between the two may have removed superseded ones. A file that vanishes during a task is found again. With
`view` latest or changes, a cleaning may have used records above the planned end, so that keys would be
missing. Each task checks this in the files it has opened (`partition.moment`), and raises an error that says
to load again. Records that are really lost (the log start has passed the range, the log was truncated) are an
error, unless `failOnDataLoss` is false.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lastword.errors import FileVanishedError, OffsetOutOfRangeError
from lastword.files import DEFAULT, Files
from lastword.logdir.identity import read_topic_id
from lastword.partition.outcomes import Outcomes
from lastword.partition.view import PartitionView
from lastword.spark import snapshot, splits
from lastword.spark.bootstrap import Shipped, ensure_compiled, need_directory
from lastword.spark.hide_traceback import hide_traceback
from lastword.spark.options import ReadOptions
from lastword.spark.schema import CHANGE, arrow_schema, check_projection
from lastword.spark.splits import MAX_RELOADS, cut_points, overlapping, past_gap

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from lastword.records.chunk import Chunk
    from lastword.records.columns import RecordColumns

CHUNK_BYTES = 2 << 20
"""The size of a chunk that is read and decoded. Arrow batches of 1-4 MB are transferred to the JVM fastest:
smaller ones cost calls, larger ones memory (50 MB halve the speed).
"""

ARROW_BATCH_BYTES = 4 << 20


@dataclass(frozen=True)
class LogPartition(InputPartition):
    """The work of one task: the records of one partition of a log with start <= offset < end.

    topic_id   id of the planned topic, if it has one; another topic of that name has other records
    in_stream  the task is part of a micro-batch; records above `end` are in later micro-batches
    """

    topic: str
    partition: int
    directory: str
    start: int
    end: int
    topic_id: str | None = None
    in_stream: bool = False

    @classmethod
    def of(cls, chosen: snapshot.Chosen, start: int, end: int, *, in_stream: bool = False) -> LogPartition:
        return cls(chosen.topic, chosen.partition, chosen.directory, start, end, chosen.topic_id, in_stream)

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


class LogReader(Shipped, DataSourceReader):
    """One loaded DataFrame.

    `pushFilters` is not implemented: in PySpark 4.1 to 4.3 the filters of one query leak into another query
    on the same DataFrame, which then lacks rows without an error. Options select instead.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self.columns = check_projection(schema, options.view)

    @hide_traceback
    def partitions(self) -> list[InputPartition]:
        """Return all tasks, in order of topic, partition and offset. Compiles the kernels first, so that
        tasks need not.
        """
        chosen = snapshot.choose(self.options)
        ensure_compiled()
        return plan(chosen, self.options)

    @hide_traceback
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield Arrow batches of a task's records. Spark passes a bare partition if the plan is empty."""
        if not isinstance(partition, LogPartition):
            return iter(())
        return read_batches(partition, self.options, self.schema, self.columns)


def plan(
    chosen: list[snapshot.Chosen], options: ReadOptions, *, in_stream: bool = False
) -> list[InputPartition]:
    """Return the tasks. For the newest record of each key, one task needs all records of a partition."""
    tasks: list[InputPartition] = []
    if options.view != "log":
        for one in chosen:
            if one.start < one.end:
                tasks.append(LogPartition.of(one, one.start, one.end, in_stream=in_stream))
        return tasks
    points = [(one, cut_points(one)) for one in chosen if one.start < one.end]
    total_bytes = sum(found[-1][1] for _, found in points)
    limit = splits.task_bytes(total_bytes, options.max_partition_bytes, options.min_partitions)
    for one, found in points:
        for span in splits.cut_by_bytes(found, limit):
            parts = [span]
            if options.max_partition_records:
                behind = partial(past_gap, one.view, end=span.end)
                parts = splits.cut_by_records(span, options.max_partition_records, behind)
            for part in parts:
                tasks.append(LogPartition.of(one, part.start, part.end, in_stream=in_stream))
    return tasks


def read_batches(
    task: LogPartition,
    options: ReadOptions,
    schema: StructType,
    columns: tuple[str, ...],
    files: Files = DEFAULT,
) -> Iterator[pa.RecordBatch]:
    """Yield the task's rows in offset order, with `columns`, in the Arrow schema that Spark requires."""
    if options.view != "log":
        from lastword.spark.latest import newest_chunks

        chunks = newest_chunks(task, options, files, tombstones=options.view == "changes")
    else:
        chunks = log_chunks(task, options, files)
    yield from to_spark(chunks, task, options, schema, columns)


def log_chunks(
    task: LogPartition, options: ReadOptions, files: Files
) -> Iterator[tuple[Chunk, RecordColumns]]:
    """Yield decoded chunks with only the records of the task's range."""
    from lastword.records.columns import decode_columns

    for chunk, hidden, first in chunks_between(task, options, files):
        found = within(decode_columns(chunk), first, task.end)
        yield chunk, found if hidden is None else found.select(~hidden[found.row])


def within(columns: RecordColumns, start: int, end: int) -> RecordColumns:
    """Return the records with start <= offset < end. Offsets rise, so this is a slice."""
    import numpy as np

    first, last = np.searchsorted(columns.offset, [start, end]).tolist()
    return columns if (first, last) == (0, len(columns)) else columns.select(slice(first, last))


def chunks_between(
    task: LogPartition, options: ReadOptions, files: Files
) -> Iterator[tuple[Chunk, NDArray[np.bool_] | None, int]]:
    """Yield chunks of whole batches that cover a range, across segments, gaps, and concurrent rewrites.

    Each comes with the rows of aborted transactions, if these are hidden and exist, and with the first offset
    that counts: a batch may begin below the range, or with records that another file has yielded.
    """
    from lastword.kernels import BAD_OFFSET

    offset = task.start
    for _ in range(MAX_RELOADS):
        view = view_of(task, options, files)
        if view is None:
            return
        offset = check_loss(task, view, offset, options)
        outcomes = outcomes_of(view, task, options)
        try:
            found = overlapping(view, offset, task.end)
            for segment, following in zip_longest(found, (one.base_offset for one in found[1:])):
                # Everything below the end is read to its last byte: a damaged offset must not hide a batch.
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
    raise FileVanishedError(f"{task.directory}: its files changed {MAX_RELOADS} times while they were read")


def view_of(task: LogPartition, options: ReadOptions, files: Files) -> PartitionView | None:
    """Return the current view of the partition. A partition that is gone, or belongs to another topic now, is
    an error, or None if such a loss is to be ignored.
    """
    if options.fail_on_data_loss or not files.is_dir(os.path.dirname(task.directory)):
        need_directory(task.directory)
    elif not files.is_dir(task.directory):
        return None
    else:
        need_directory(task.directory)
    view = PartitionView.load(files, task.directory)
    if task.topic_id is None or read_topic_id(files, task.directory) in (None, task.topic_id):
        return view
    if not options.fail_on_data_loss:
        return None
    raise OffsetOutOfRangeError(
        f"{task.name}: the topic was deleted and made anew since this was planned",
        remedy="load it again",
        file=task.directory,
    )


def check_loss(task: LogPartition, view: PartitionView, offset: int, options: ReadOptions) -> int:
    """Return the offset at which to continue. OffsetOutOfRangeError if records of the range were lost after
    planning.

    A gap is no loss: a cleaning changes neither log start nor log end.
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


def to_spark(
    chunks: Iterator[tuple[Chunk, RecordColumns]],
    task: LogPartition,
    options: ReadOptions,
    schema: StructType,
    columns: tuple[str, ...],
) -> Iterator[pa.RecordBatch]:
    """Split into Arrow batches of at most about ARROW_BATCH_BYTES, of the schema that Spark requires."""
    import pyarrow as pa

    from lastword.records.columns import to_arrow

    target = arrow_schema(schema)
    names = tuple(name for name in columns if name != CHANGE)
    wanted: Any = None
    if options.keys is not None:
        wanted = pa.array(options.keys, pa.binary())
        names = names if "key" in names else (*names, "key")
    for chunk, records in chunks:
        if len(records) == 0:
            continue
        batch = to_arrow(records, chunk, names, topic=task.topic, partition=task.partition)
        if CHANGE in columns:
            batch = batch.add_column(columns.index(CHANGE), CHANGE, changes(records))
        if wanted is not None:
            batch = only_keys(batch, wanted)
        arrays = [
            array if array.type == field.type else array.cast(field.type)
            for array, field in zip(batch.columns[: len(columns)], target, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=target)
        rows = max(1, batch.num_rows * ARROW_BATCH_BYTES // max(batch.nbytes, 1))
        for first in range(0, batch.num_rows, rows):
            yield batch.slice(first, rows)


def changes(records: RecordColumns) -> pa.Array:
    """Return the change (`upsert` or `delete`) of each record."""
    import pyarrow as pa

    kinds = pa.array((records.value_length < 0).astype("int8"), pa.int8())
    return pa.DictionaryArray.from_arrays(kinds, pa.array(["upsert", "delete"])).cast(pa.string())


def only_keys(batch: pa.RecordBatch, wanted: pa.Array) -> pa.RecordBatch:
    import pyarrow.compute as pc

    return batch.filter(pc.is_in(batch.column("key"), value_set=wanted, skip_nulls=True))


def map_bytes(path: str) -> int:
    """Return the memory for the key map of one task: `log.cleaner.dedupe.buffer.size` over
    `log.cleaner.threads`.
    """
    from lastword.config import Settings

    return Settings.load(os.fspath(path)).instance.map_bytes
