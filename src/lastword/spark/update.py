"""A streaming query whose result is a keyed log: output modes `update` and `complete`.

Spark gives a sink in Python the output mode `append` only, and refuses `update` before it calls the sink. In
`foreachBatch` Spark has all three modes. So `update_stream` starts a query with `foreachBatch`, and each
micro-batch is one write of the batch sink (`write`).

    update      the batch has the rows that changed: they are appended as they are
    complete    the batch has the whole result: it is joined with the newest values of the topic, and only
                differences are appended; a key that is not in the result gets a tombstone

Where it runs. `update_stream` runs in the caller's process: it checks the frame and makes the topic if it is
new. `BatchUpdate` runs once for each micro-batch, beside the driver; on Spark Connect in a Python process of
the server.

Once. A batch is named by the id of its query and its number, as in the streaming sink (`write`), so a batch
that Spark runs again after a crash adds nothing. `foreachBatch` does not pass the id of the query. It is read
from the file `metadata` of the checkpoint, where Spark keeps it over restarts; Spark writes that file before
the first batch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from lastword.errors import UsageError
from lastword.spark.bootstrap import Shipped, as_pattern, conf_value, need_pyspark, shared_path
from lastword.spark.bucket import files_at
from lastword.spark.options import FORMAT, StorageOptions, parse_write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MODES = ("update", "complete")


def update_stream(
    frame: DataFrame,
    path: str | os.PathLike[str],
    topic: str,
    *,
    checkpoint: str | os.PathLike[str],
    mode: Literal["update", "complete"] = "update",
    trigger: Mapping[str, Any] | None = None,
    name: str | None = None,
    options: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Start a query that keeps the newest row of each key of a streaming result in a topic.

    A batch that Spark runs again is added once. Works on Spark Connect.

    Args:
        frame: A streaming DataFrame with the columns of the sink: `key`, `value`, if wanted `headers` and
            `timestamp`; in mode update also `partition`. A null value deletes its key.
        path: A log directory that this process and all executors see under this name, or the URL of a log in
            a bucket.
        topic: The topic; made if it is new. In mode complete it must belong to the query: a key that another
            program wrote is not in the result, and is deleted.
        checkpoint: The query's checkpointLocation.
        mode: `update` appends the rows that changed in a batch. `complete` compares the whole result with the
            newest values of the topic and appends only differences, with a tombstone for each key that
            vanished; the result has one row for each key.
        trigger: The arguments of `DataStreamWriter.trigger`: `{"availableNow": True}`.
        name: The query's name.
        options: Options of the sink: `{"partitions": 8, "cleanup.policy": "compact"}`.
        storage_options: Options of the store of a log in a bucket; without them, those of the environment.

    Returns:
        The started query.

    Raises:
        UsageError: The frame is no stream, or the mode or the trigger is another one.
        SparkOptionError: A column or an option is wrong.
        KeyRequiredError: There is no column `key`.
        UnknownTopicError: The query has written to this topic, which was deleted since.
    """
    need_pyspark()
    from lastword.spark.schema import incomparable, sink_columns
    from lastword.spark.targets import make_target

    if mode not in MODES:
        raise UsageError(
            f"mode {mode!r} is not update or complete",
            remedy='rows that are only ever added: frame.writeStream.format("lastword").outputMode("append")',
        )
    if not frame.isStreaming:
        raise UsageError(
            "the frame is no stream",
            remedy='frame.write.format("lastword").mode("append"), or load it with spark.readStream',
        )
    path = shared_path(path)
    texts = {option: conf_value(value) for option, value in (options or {}).items()}
    texts |= StorageOptions.of(path, storage_options).named()
    parsed = parse_write({**texts, "path": path, "topic": topic}, stream=True)
    columns = sink_columns(frame.schema, parsed.formats)
    if mode == "complete" and (columns.key is None or columns.partition is not None):
        raise UsageError(
            "mode complete needs a column key, and chooses the partition by the key",
            remedy="select key, value, if wanted headers, timestamp",
        )
    for position in (columns.key or 0, columns.value) if mode == "complete" else ():
        field = frame.schema.fields[position]
        kind = incomparable(field.dataType)
        if kind is not None:
            raise UsageError(
                f"mode complete compares column {field.name}, and Spark compares no {kind}",
                remedy="make a map an array: map_entries(m); a variant text: to_json(v)",
            )
    checkpoint = os.fspath(checkpoint)
    update = BatchUpdate(path, topic, checkpoint, mode, texts)
    writer = frame.writeStream.foreachBatch(update).outputMode(mode)
    writer = writer.option("checkpointLocation", checkpoint)
    if name is not None:
        writer = writer.queryName(name)
    if trigger is not None:
        for kind in {"continuous", "realTime"} & trigger.keys():  # Spark refuses these when it starts
            raise UsageError(
                f"trigger {kind} is not for a function of each batch",
                remedy='trigger={"processingTime": "1 second"} or {"availableNow": True}',
            )
        writer = writer.trigger(**trigger)
    make_target(parsed, columns, checkpoint)  # after every check
    return writer.start()


class BatchUpdate(Shipped):
    """The function of `foreachBatch`: writes one micro-batch under the name of its query and batch."""

    def __init__(self, path: str, topic: str, checkpoint: str, mode: str, options: dict[str, str]) -> None:
        self.path = path
        self.topic = topic
        self.checkpoint = checkpoint
        self.mode = mode
        self.options = options
        self._query_id: str | None = None

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Append the rows of the batch, or the differences that it makes."""
        spark = batch.sparkSession
        if self._query_id is None:
            self._query_id = query_id(spark, self.checkpoint)
        if self.mode == "update":
            rows = batch
        else:
            rows = differences(spark, self.path, self.topic, batch, self.options)
        writer = rows.write.format("lastword").mode("append").options(**self.options)
        writer.options(topic=self.topic, producer=f"spark-{self._query_id}", sequence=number).save(self.path)


def query_id(spark: SparkSession, checkpoint: str) -> str:
    """Return the id of the query that has this checkpoint, on any file system that Spark reads."""
    lines = spark.read.text(as_pattern(os.path.join(checkpoint, "metadata"))).collect()
    return str(json.loads("".join(row[0] for row in lines))["id"])


def differences(
    spark: SparkSession, path: str, topic: str, result: DataFrame, options: Mapping[str, str]
) -> DataFrame:
    """Return the records that turn the newest values of a topic into the result.

    A key that exists stays in its partition; a new key has a null partition, for which the sink uses the
    topic's partitioner. Columns with a format are compared decoded, others as bytes.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import BinaryType, IntegerType, StructType

    from lastword.spark.source import load
    from lastword.spark.targets import existing_target

    names = {field.name.lower(): field.name for field in result.schema.fields}
    given = {name.lower(): text for name, text in options.items()}
    formats = {name: given[name.lower()] for name in FORMAT if name.lower() in given}
    schema = StructType()
    for name in ("key", "value"):
        has_format = f"{name}_format" in formats
        schema = schema.add(name, result.schema[names[name]].dataType if has_format else BinaryType())
    now = result.select(
        *(F.col(names[field.name]).cast(field.dataType).alias(field.name) for field in schema.fields),
        *(F.col(names[name]).alias(name) for name in ("headers", "timestamp") if name in names),
    ).alias("now")
    schema = schema.add("partition", IntegerType())
    storage = parse_write({**given, "path": path, "topic": topic}, stream=True, warn=False).storage
    numbers = range(existing_target(path, topic, files_at(path, storage)).partitions)
    newest = load(
        spark, path, topic, numbers, view="newest", schema=schema, formats=formats, storage=storage
    ).alias("newest")
    joined = now.join(newest, F.col("now.key") == F.col("newest.key"), "full_outer")
    return joined.where(~F.col("now.value").eqNullSafe(F.col("newest.value"))).select(
        F.coalesce("now.key", "newest.key").alias("key"),
        "now.value",
        "newest.partition",
        *(f"now.{name}" for name in ("headers", "timestamp") if name in names),
    )
