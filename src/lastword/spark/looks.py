"""The verbs that look, as DataFrames: `duplication`, `audit`, `verify`, `restore`; and `expire`, which
changes but reads no record.

Where it runs. `duplication` and `verify` give each task a partition, or some segments of one, call what the
library calls (`tools`), and put the answers together in the caller's process. `audit` and `restore` are
DataFrames over the source: lazy, planned by Spark, and each log's newest records come without a shuffle.
`expire` runs in the caller's process.

What travels. Names and numbers out; back sketches (128 KiB each), counts, problems. Records only where the
result is made of records.

When tasks fail. Nothing is changed, so a retry looks again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from lastword.api.places import Places
from lastword.errors import UsageError
from lastword.partition import losses
from lastword.spark.partition_keys import BULK
from lastword.wire import INT64_MAX

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from lastword.api.found import By
    from lastword.tools.duplication import Duplication
    from lastword.tools.verify import Verification

TASK_BYTES = 256 << 20
"""Of a partition that is sketched by several tasks, about so much each; whole segments."""


def duplication(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topic: str | None = None,
    partition: int | None = None,
    *,
    exact: bool = False,
    by: By = "partition",
) -> DataFrame:
    """How much is superseded: the rows of `LogDir.duplication`, counted or sketched by tasks.

    Sketches of parts merge, so a partition is spread over tasks (not by segment, where each row needs all
    later keys); exact counts of a topic need all of its keys in one place, so each topic is one task.
    """
    import lastword
    from lastword.api.duplicates import check_by
    from lastword.spark.frames import frame_of
    from lastword.spark.session import need_pyspark
    from lastword.spark.shipping import shared_log
    from lastword.spark.tasks import run_tasks
    from lastword.tools.duplication import Duplication, of_sketches
    from lastword.tools.sketches import Sketch

    need_pyspark()
    check_by(by)
    path = shared_log(path)
    with lastword.open([path]) as logs:
        places = Places(logs)
        chosen = places.chosen(topic, partition)
        if exact or by == "segment":
            work = [_Counted(path, name, partition, exact, by) for name in chosen]
            rows = [row for found in run_tasks(spark, _count, work) for row in found]
            return frame_of(spark, Duplication, rows)
        pieces: list[_Piece] = []
        for name, numbers in chosen.items():
            for number in numbers:
                view = places.view(name, number)
                pieces += _pieces(
                    name, number, view.directory, [(s.base_offset, s.size) for s in view.segments]
                )
        whole = {name: len(places.views(name)) == len(numbers) for name, numbers in chosen.items()}
    sketches: dict[tuple[str, int], Sketch] = {}
    for piece, data in zip(pieces, run_tasks(spark, _sketch, pieces), strict=True):
        place = piece.topic, piece.partition
        one = Sketch.from_bytes(data)
        sketches[place] = Sketch.merged([sketches[place], one]) if place in sketches else one
    rows = []
    for name, numbers in chosen.items():
        rows += of_sketches(name, {n: sketches[name, n] for n in numbers}, by, whole=whole[name])
    return frame_of(spark, Duplication, rows)


@dataclass(frozen=True, slots=True)
class _Counted:
    path: str
    topic: str
    partition: int | None
    exact: bool
    by: By


def _count(work: _Counted) -> list[Duplication]:
    import lastword

    with lastword.open([work.path]) as logs:
        return logs.duplication(work.topic, work.partition, exact=work.exact, by=work.by)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Segments of one partition with first <= base offset < end."""

    topic: str
    partition: int
    directory: str
    first: int
    end: int


def _pieces(topic: str, partition: int, directory: str, segments: Sequence[tuple[int, int]]) -> list[_Piece]:
    """A partition in runs of whole segments, each of about TASK_BYTES; at least one."""
    starts, size = [-1], 0
    for base_offset, size_bytes in segments:
        if size and size + size_bytes > TASK_BYTES:
            starts.append(base_offset)
            size = 0
        size += size_bytes
    ends = [*starts[1:], INT64_MAX]
    return [_Piece(topic, partition, directory, first, end) for first, end in zip(starts, ends, strict=True)]


def _sketch(piece: _Piece) -> bytes:
    """A sketch of the piece's records. Of a log that is rewritten between two tasks a record may count in
    both pieces or in none, if the rewrite joined segments over their border."""
    from lastword.files import DEFAULT
    from lastword.partition.view import PartitionView
    from lastword.tools.duplication import sketch_of

    view = PartitionView.load(DEFAULT, piece.directory)
    return sketch_of(view, lambda base_offset: piece.first <= base_offset < piece.end).to_bytes()


# ---------------------------------------------------------------- verify


def verify(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topic: str | None = None,
    partition: int | None = None,
    *,
    quick: bool = False,
) -> DataFrame:
    """Check every checksum, index, checkpoint and invariant, a task for each partition: the problems, one a
    row; none if all is sound. Changes nothing."""
    import lastword
    from lastword.spark.frames import frame_of
    from lastword.spark.session import need_pyspark
    from lastword.spark.shipping import shared_log
    from lastword.spark.tasks import run_tasks
    from lastword.tools.problem import Problem

    need_pyspark()
    path = shared_log(path)
    with lastword.open([path]) as logs:
        chosen = Places(logs).chosen(topic, partition)
    work = [_Checked(path, name, number, quick) for name in chosen for number in chosen[name]]
    problems: dict[Problem, None] = {}  # a checkpoint that cannot be read is met by every task
    for found in run_tasks(spark, _verify, work):
        problems.update(dict.fromkeys(found.problems))
    return frame_of(spark, Problem, list(problems))


@dataclass(frozen=True, slots=True)
class _Checked:
    path: str
    topic: str
    partition: int
    quick: bool


def _verify(work: _Checked) -> Verification:
    import lastword

    with lastword.open([work.path]) as logs:
        return logs.verify(work.topic, work.partition, quick=work.quick)


# ---------------------------------------------------------------- audit and restore


def audit(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topic: str | None = None,
    partition: int | None = None,
    *,
    delivered: DataFrame,
) -> DataFrame:
    """Per key, the newest offset that was delivered against the newest that is logged: a row for each key
    that is not right, as `LogDir.audit` names it. Lazy.

    topic       None: the only one
    delivered   columns `key` (binary, or string as its UTF-8) and `offset`; `partition` if it is known. Of a
                key that is there twice the newest offset counts; a row without a partition counts wherever
                its key is logged. Where only one partition is asked for, such a key that is not logged
                belongs to the partition that the topic's partitioner gives
    """
    import lastword
    from lastword.spark.session import need_pyspark
    from lastword.spark.shipping import shared_log

    need_pyspark()
    path = shared_log(path)
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    known = _known_partitions(delivered)
    with lastword.open([path]) as logs:
        places = Places(logs)
        topic = places.one_topic(topic)
        numbers = places.chosen(topic, partition)[topic]
        gone_below = {number: places.gone_below(topic, number) for number in numbers}
        partitioner = logs.topic(topic).config.lastword_partitioner or "murmur2"
        count = len(places.views(topic))
    changes = load(
        spark,
        path,
        topic,
        numbers,
        view="changes",
        schema="key binary, partition int, offset long, change string",
    )
    at = F.col("partition")
    none = F.lit(None)
    logged = changes.where(F.col("key").isNotNull()).select(
        "key",
        "partition",
        F.col("offset").alias("logged_offset"),
        (F.col("change") == "delete").alias("deleted"),
        none.cast("long").alias("delivered_offset"),
    )
    other = delivered.select(
        F.coalesce(F.col("key").cast("binary"), _refused("key")).alias("key"),
        (at if known else none).cast("int").alias("partition"),
        none.cast("long").alias("logged_offset"),
        none.cast("boolean").alias("deleted"),
        F.coalesce(F.col("offset").cast("long"), _refused("offset")).alias("delivered_offset"),
    )
    if partition is not None:
        other = other.where(at.isNull() | (at == partition))
    # One row for each key and partition; what a row without a partition delivered counts for every partition
    # where its key is logged, and is a row of its own only if the key is logged nowhere.
    of_key = Window.partitionBy("key")
    sides = (
        logged.union(other)
        .withColumn("anywhere", F.max(F.when(at.isNull(), F.col("delivered_offset"))).over(of_key))
        .withColumn("is_logged", F.count("logged_offset").over(of_key) > 0)
        .groupBy("key", "partition")
        .agg(
            F.max("logged_offset").alias("logged_offset"),
            F.max("deleted").alias("deleted"),
            F.max("delivered_offset").alias("delivered_offset"),
            F.max("anywhere").alias("anywhere"),
            F.max("is_logged").alias("is_logged"),
        )
        .where(at.isNotNull() | ~F.col("is_logged"))
    )
    # Keys of no partition of the topic have not left it; of one that is not said they may have left any.
    bounds = F.when(at.isNull(), F.lit(max(gone_below.values(), default=0))).otherwise(F.lit(0))
    for number, bound in gone_below.items():
        bounds = F.when(at == number, F.lit(bound)).otherwise(bounds)
    logged_offset, said = F.col("logged_offset"), F.col("delivered_offset")
    delivered_offset = F.when(logged_offset.isNull(), said).otherwise(F.greatest(said, F.col("anywhere")))
    kind = (
        F.when(logged_offset.isNull(), F.when(delivered_offset < bounds, "gone").otherwise("phantom"))
        .when(delivered_offset.isNull(), F.when(~F.col("deleted"), "missing"))
        .when(delivered_offset < logged_offset, "stale")
        .when(delivered_offset > logged_offset, "phantom")
    )
    rows = sides.select(
        F.lit(topic).alias("topic"),
        "partition",
        "key",
        kind.alias("kind"),
        "logged_offset",
        delivered_offset.alias("delivered_offset"),
    ).where(F.col("kind").isNotNull())
    if partition is None or count == 1 or partitioner not in BULK:
        return rows
    return rows.where(F.col("partition").isNotNull() | (_placed(partitioner, count) == partition))


def _known_partitions(delivered: DataFrame) -> bool:
    """Does the frame say partitions? UsageError if it has no key and offset, or keys that are no bytes."""
    from pyspark.sql.types import BinaryType, StringType

    if not hasattr(delivered, "schema"):
        raise UsageError(
            f"delivered is {delivered!r}, no DataFrame", remedy="a DataFrame of the columns key and offset"
        )
    names = {field.name.lower(): field for field in delivered.schema.fields}
    for name in ("key", "offset"):
        if name not in names:
            raise UsageError(
                f"delivered has no column {name!r}; it has {', '.join(delivered.columns)}",
                remedy="columns key and offset; partition if you know it",
            )
    if not isinstance(names["key"].dataType, BinaryType | StringType):
        raise UsageError(
            f"the column key of delivered is {names['key'].dataType.simpleString()}",
            remedy="keys are bytes: binary, or string as its UTF-8",
        )
    return "partition" in names


def _refused(column: str) -> Column:
    from pyspark.sql import functions as F

    return F.raise_error(F.lit(f"delivered has a row without {column}: leave such rows out"))


def _placed(partitioner: str, count: int) -> Column:
    """The partition where the partitioner puts the key of a row."""
    from pyspark.sql import functions as F

    def partition_of(key: Any) -> int:
        from lastword.api.partitioners import PARTITIONERS

        return PARTITIONERS[partitioner](bytes(key), count)

    return F.udf(partition_of, "int", useArrow=False)("key")


def restore(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topic: str | None = None,
    partition: int | None = None,
    *,
    end: int | datetime | Literal["latest"] = "latest",
    to: str | os.PathLike[str] | None = None,
) -> DataFrame:
    """The newest value of every key, as a lazy DataFrame of the source's columns; with `to`, written at the
    call as a directory of Parquet files from which `state(snapshot=)` starts, and one row of `Restored` for
    each partition is returned.

    topic  None: the only one
    end    as of then: an offset, an aware datetime. OffsetOutOfRangeError where the log was cleaned with what
           came after, also if that happens before the DataFrame is used: then restore again
    """
    import lastword
    from lastword.api.ranges import ranges
    from lastword.spark.session import need_pyspark
    from lastword.spark.shipping import shared_log, shared_path

    need_pyspark()
    path = shared_log(path)
    if to is not None:
        to = shared_path(to, "directory of a restore")
    with lastword.open([path]) as logs:
        places = Places(logs)
        topic = places.one_topic(topic)
        numbers = places.chosen(topic, partition)[topic]
        views = {number: places.view(topic, number) for number in numbers}
        # How often the log was cut is read before the files are listed: a later cut then refuses the copy.
        cuts = {n: losses.load(places.files, view.directory).cut_count for n, view in views.items()}
        for one in views.values():
            one.refresh()
        chosen = [one.settled() for one in ranges(views, "earliest", end)]
        ends = {one.partition: one.end for one in chosen}
        frame = load(spark, path, topic, numbers, view="latest", ends=ends)
        if to is None:
            return frame
        return _written(spark, places, topic, frame, ends, cuts, to, complete=end == "latest")


def _written(
    spark: SparkSession,
    places: Places,
    topic: str,
    frame: DataFrame,
    ends: dict[int, int],
    cuts: dict[int, int],
    to: str,
    *,
    complete: bool,
) -> DataFrame:
    import time

    from pyspark.sql import functions as F

    from lastword.spark.frames import frame_of
    from lastword.state.snapshot_file import Reach, mark_directory
    from lastword.state.state import Restored

    began = time.monotonic()
    # Asked before the records are read: a tombstone that goes later is younger than this.
    reach = Reach(topic, places.topic_id(topic), ends, places.now_ms() if complete else -1, cuts)
    frame.select("topic", "partition", "offset", "timestamp", "key", "value").write.mode("error").parquet(to)
    mark_directory(places.files, to, reach)
    written = spark.read.parquet(to)
    counted = (
        written.groupBy("partition").agg(F.count("*"), F.sum(F.length("key") + F.length("value"))).collect()
    )
    found = {row[0]: (row[1], row[2] or 0) for row in counted}
    seconds = time.monotonic() - began
    rows = [Restored(topic, n, end, *found.get(n, (0, 0)), seconds) for n, end in sorted(ends.items())]
    return frame_of(spark, Restored, rows)


def load(
    spark: SparkSession,
    path: str,
    topic: str,
    numbers: Sequence[int],
    *,
    view: str,
    schema: str | None = None,
    ends: dict[int, int] | None = None,
) -> DataFrame:
    """The source, for some partitions of one topic."""
    import json

    reader = spark.read.format("lastword").option("view", view)
    reader = reader.option("assign", json.dumps({topic: list(numbers)}))
    if schema is not None:
        reader = reader.schema(schema)
    if ends is not None:
        reader = reader.option("endingOffsets", json.dumps({topic: {str(n): end for n, end in ends.items()}}))
    return reader.load(path)


# ---------------------------------------------------------------- expire


def expire(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topic: str | None = None,
    partition: int | None = None,
) -> DataFrame:
    """Apply retention by time, size and log start now: a row for each partition that lost segments. Runs at
    the call, in the caller's process: no record is read for it."""
    import lastword
    from lastword.retention import Deletion
    from lastword.spark.frames import frame_of
    from lastword.spark.session import need_pyspark
    from lastword.spark.shipping import shared_log

    need_pyspark()
    path = shared_log(path)
    with lastword.open([path], "a", log_cleaner_enable=False) as logs:
        return frame_of(spark, Deletion, logs.expire(topic, partition))
