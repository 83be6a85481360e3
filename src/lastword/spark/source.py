"""`format("lastword")`: the data source class that Spark loads, and what it creates.

    spark.read.format("lastword").option("subscribe", "users").load("data")
    df.write.format("lastword").mode("append").option("topic", "users").save("data")

Options are in `options.py`, columns in `schema.py`. For each step (the schema, the plan of a read, a write)
Spark creates a new `LastwordDataSource` with the user's options, in a Python process beside the driver.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.errors import PySparkException
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from lastword.arrow import pa
from lastword.errors import LastwordError, SparkOptionError
from lastword.spark.bootstrap import (
    Shipped,
    collector_paused,
    ensure_compiled,
    hide_closed_connections,
    hide_traceback,
    typed,
)
from lastword.spark.options import (
    CHOICES,
    NO_STORAGE,
    ReadOptions,
    StorageOptions,
    parse_read,
    parse_schema,
    parse_write,
)
from lastword.spark.schema import (
    SINK_SCHEMA,
    EngineSchema,
    ExportedSchema,
    check_projection,
    schema_of_read,
    sink_columns,
    struct_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

hide_closed_connections()

CHECKPOINT = "checkpointlocation"
OF_QUERY = (CHECKPOINT, "queryname")
"""The query's own options, which Spark passes to its sink together with ours."""


class LastwordDataSource(Shipped, DataSource):
    """A keyed, compacted log in a directory, as a source and a sink."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "lastword"

    @hide_traceback
    def schema(self) -> StructType | str:
        """Return the schema. Spark calls this if the user gives no schema.

        Wrong options are reported here, before any action. A view with the option `topic` is a sink for
        `INSERT INTO`: its columns are key and value.
        """
        if "topic" in self.options and not any(name in self.options for name in CHOICES):
            parse_write(self.options, warn=False)
            return SINK_SCHEMA
        # Spark does not pass whether a batch or a stream is loaded; `reader` and `streamReader` check.
        schema = schema_of_read(parse_schema(self.options))
        if not isinstance(schema, str):
            return ExportedSchema(schema.fields)
        if "pysail" in sys.modules:
            raise SparkOptionError(
                "Sail takes no type of a column from an option",
                remedy=".schema('key binary, value struct<city:string,population:bigint>, offset long')",
            )
        return schema

    @hide_traceback
    def reader(self, schema: EngineSchema) -> DataSourceReader:
        """Return the reader of a batch."""
        return LogReader(parse_read(self.options), schema)

    @hide_traceback
    def writer(self, schema: EngineSchema, overwrite: bool) -> DataSourceArrowWriter:
        """Return the writer of a batch, for which the topic is made if it is new."""
        from lastword.spark.write import LogWriter, prepare

        if overwrite:
            raise SparkOptionError(
                "a log is only ever appended to: mode overwrite is refused",
                remedy='use .mode("append"); for a fresh log delete the topic first, or take another name',
            )
        if not isinstance(schema, StructType) and CHECKPOINT in self.options:
            raise SparkOptionError(
                "Sail runs a stream of this format as one batch, without its checkpoint",
                remedy="write batches, or run the stream on Spark",
            )
        options = parse_write(self.options)
        return LogWriter(prepare(options, sink_columns(struct_of(schema), options.formats)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream."""
        from lastword.spark.stream import LogStreamReader

        try:
            return LogStreamReader(parse_read(self.options, stream=True), schema)
        except LastwordError as refused:
            # An error raised here would become an error of PySpark about a missing reader.
            return RefusedStream(refused)

    @hide_traceback
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """Return the writer of one micro-batch."""
        from lastword.spark.write import LogStreamWriter, prepare

        if overwrite:
            raise SparkOptionError(
                "a log is only ever appended to: output mode complete is refused",
                remedy="lastword.spark.update_stream(frame, path, topic, mode='complete', ...) appends the "
                "differences; outputMode('append') adds rows",
            )
        given = {name: text for name, text in self.options.items() if name.lower() not in OF_QUERY}
        query = next((text for name, text in self.options.items() if name.lower() == CHECKPOINT), None)
        options = parse_write(given, stream=True)
        columns = sink_columns(schema, options.formats)
        return LogStreamWriter(prepare(options, columns, stream=True, query=query))


class LogReader(Shipped, DataSourceReader):
    """The reader of one loaded DataFrame.

    `pushFilters` is not implemented: in PySpark 4.1 to 4.3 the filters of one query leak into another query
    on the same DataFrame, which then lacks rows without an error. Options select instead.
    """

    def __init__(self, options: ReadOptions, schema: EngineSchema) -> None:
        self.options = options
        self.schema = schema
        self.columns = check_projection(struct_of(schema), options.view, options.formats)

    @hide_traceback
    def partitions(self) -> list[InputPartition]:
        """Return all tasks, in order of topic, partition and offset."""
        from lastword.spark.splits import choose, plan

        ensure_compiled()  # here, so that no task compiles
        with collector_paused():
            return plan(choose(self.options), self.options)

    @hide_traceback
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield Arrow batches of a task's records."""
        from lastword.spark.read import read_task

        yield from read_task(partition, self.options, self.schema, self.columns)


class RefusedStream(Shipped, DataSourceStreamReader):
    """The stand-in for a reader that cannot be created: every call raises the reason."""

    def __init__(self, refused: LastwordError) -> None:
        self.refused = refused

    @hide_traceback
    def _refuse(self, *arguments: Any, **named: Any) -> NoReturn:
        raise self.refused

    initialOffset = latestOffset = partitions = read = _refuse


def load(
    spark: SparkSession,
    path: str,
    topic: str,
    numbers: Sequence[int],
    *,
    view: str,
    schema: str | StructType | None = None,
    formats: Mapping[str, str] | None = None,
    ends: dict[int, int] | None = None,
    storage: StorageOptions = NO_STORAGE,
) -> DataFrame:
    """Return a DataFrame of some partitions of one topic, with the options of formats."""
    reader = spark.read.format("lastword").option("view", view)
    reader = reader.option("assign", json.dumps({topic: list(numbers)})).options(**(formats or {}))
    reader = reader.options(**storage.named())
    if schema is not None:
        reader = reader.schema(schema)
    if ends is not None:
        reader = reader.option("endingOffsets", json.dumps({topic: {str(n): end for n, end in ends.items()}}))
    try:
        return reader.load(path)
    except PySparkException as error:
        raise typed(error) from None
