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
missing. Each task checks this in the files that it has opened (`partition.moment`), and raises an error with
the remedy to load again. Lost records (the log start has passed the range, the log was truncated) are an
error, unless `failOnDataLoss` is false.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lastword.files import DEFAULT, Files
from lastword.spark.bootstrap import Shipped, ensure_compiled, hide_traceback
from lastword.spark.options import ReadOptions
from lastword.spark.schema import CHANGE, arrow_schema, check_projection
from lastword.spark.splits import LogPartition, choose, plan

if TYPE_CHECKING:
    import pyarrow as pa

    from lastword.records.chunk import Chunk
    from lastword.records.columns import RecordColumns

ARROW_BATCH_BYTES = 4 << 20


class LogReader(Shipped, DataSourceReader):
    """The reader of one loaded DataFrame.

    `pushFilters` is not implemented: in PySpark 4.1 to 4.3 the filters of one query leak into another query
    on the same DataFrame, which then lacks rows without an error. Options select instead.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self.columns = check_projection(schema, options.view)

    @hide_traceback
    def partitions(self) -> list[InputPartition]:
        """Return all tasks, in order of topic, partition and offset."""
        ranges = choose(self.options)
        ensure_compiled()  # here, so that no task compiles
        return plan(ranges, self.options)

    @hide_traceback
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield Arrow batches of a task's records. Spark passes another type if the plan is empty."""
        if not isinstance(partition, LogPartition):
            return iter(())
        return read_batches(partition, self.options, self.schema, self.columns)


def read_batches(
    task: LogPartition,
    options: ReadOptions,
    schema: StructType,
    columns: tuple[str, ...],
    files: Files = DEFAULT,
) -> Iterator[pa.RecordBatch]:
    """Yield the task's rows in offset order, with `columns`, in the Arrow schema that Spark requires."""
    from lastword.spark.chunks import log_chunks, newest_chunks

    if options.view != "log":
        chunks = newest_chunks(task, options, files, tombstones=options.view == "changes")
    else:
        chunks = log_chunks(task, options, files)
    yield from to_spark(chunks, task, options, schema, columns)


def to_spark(
    chunks: Iterator[tuple[Chunk, RecordColumns]],
    task: LogPartition,
    options: ReadOptions,
    schema: StructType,
    columns: tuple[str, ...],
) -> Iterator[pa.RecordBatch]:
    """Convert chunks to Arrow batches of at most about ARROW_BATCH_BYTES, in the schema of Spark."""
    import pyarrow as pa

    from lastword.records.columns import to_arrow

    target = arrow_schema(schema)
    names = tuple(name for name in columns if name != CHANGE)
    keys: Any = None
    if options.keys is not None:
        keys = pa.array(options.keys, pa.binary())
        names = names if "key" in names else (*names, "key")
    for chunk, records in chunks:
        if len(records) == 0:
            continue
        batch = to_arrow(records, chunk, names, topic=task.topic, partition=task.partition)
        if CHANGE in columns:
            batch = batch.add_column(columns.index(CHANGE), CHANGE, changes(records))
        if keys is not None:
            batch = only_keys(batch, keys)
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


def only_keys(batch: pa.RecordBatch, keys: pa.Array) -> pa.RecordBatch:
    """Return the rows with one of the keys."""
    import pyarrow.compute as pc

    return batch.filter(pc.is_in(batch.column("key"), value_set=keys, skip_nulls=True))
