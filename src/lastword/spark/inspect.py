"""Verbs as DataFrames: `duplication`, `verify`, `restore`, `expire`, `audit` and `lag`; and `erase`.

Where it runs. `duplication` gives each task a topic, `verify` a partition; they call the functions of `tools`
and combine the results in the caller's process. `restore` and `audit` are DataFrames
over the source: lazy, planned by Spark, and without a shuffle for the newest records of each log. `audit`
groups these records with the delivered offsets by key. `expire`, `erase` and `lag` run in the caller's
process; `expire` reads no record, `lag` at most one of each partition.

What travels. Names and numbers to tasks; counts and problems back; records only if
the result consists of records.

When tasks fail. Tasks change nothing, so a retry reads again. `erase` may be repeated.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from lastword.api.schema import PARTITIONERS
from lastword.errors import DataError, LastwordError, UsageError
from lastword.files import DEFAULT, Files
from lastword.partition import removal_log
from lastword.segment import names
from lastword.spark.bootstrap import as_pattern, shared_directory, shared_log, typed
from lastword.spark.bucket import files_at, open_logs
from lastword.values import Meter, ProgressLike

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructField

    from lastword.api.logs import LogDir
    from lastword.api.open_dirs import By, OpenDirs
    from lastword.cleaner.engine.erasure import SpanSet
    from lastword.logdir.checkpoints import TopicPartition
    from lastword.spark.options import StorageOptions
    from lastword.tools.duplication import Duplication
    from lastword.tools.erasure import Erasure
    from lastword.tools.verify import Verification


def duplication(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topic: str | None = None,
    partition: int | None = None,
    *,
    by: By = "partition",
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Count superseded records: the rows of `LogDir.duplication`.

    A count of a topic needs all of its keys in one place, so each topic is one task.
    """
    path, storage = shared_log(path, storage_options)
    from lastword.api.inspections import check_by
    from lastword.spark.schema import frame_of
    from lastword.spark.tasks import described, run_tasks
    from lastword.tools.duplication import Duplication

    check_by(by)
    with open_logs(path, storage) as logs:
        chosen = logs.dirs.select_by_topic(topic, partition)
    work = [_CountTask(path, storage, name, partition, by) for name in chosen]
    with described(spark, "lastword duplication"):
        rows = [row for counts in run_tasks(spark, _count, work) for row in counts]
    return frame_of(spark, Duplication, rows)


@dataclass(frozen=True, slots=True)
class _CountTask:
    path: str
    storage: StorageOptions
    topic: str
    partition: int | None
    by: By


def _count(work: _CountTask) -> list[Duplication]:
    with open_logs(work.path, work.storage) as logs:
        return logs.duplication(work.topic, work.partition, by=work.by)


# ---------------------------------------------------------------- verify


def verify(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topic: str | None = None,
    partition: int | None = None,
    *,
    quick: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Check every checksum, index, checkpoint and invariant, as tasks. Changes nothing.

    A task checks a partition, or many small ones.

    Returns:
        A row for each problem; none if all is valid.
    """
    path, storage = shared_log(path, storage_options)
    from lastword.spark.schema import frame_of
    from lastword.spark.tasks import described, run_tasks
    from lastword.tools.findings import Problem

    with open_logs(path, storage) as logs:
        chosen = [
            (name, number, logs.dirs.log_dir(name, number).directory(name, number))
            for name, number in logs.dirs.select(topic, partition)
        ]
    files = files_at(path, storage)
    sizes = [_log_bytes(files, directory) for _, _, directory in chosen]
    work = [
        _VerifyTask(path, storage, quick, tuple(chosen[number][:2] for number in group))
        for group in share_verify(sizes)
    ]
    problems: dict[Problem, None] = {}  # an unreadable checkpoint is a problem of every task
    with described(spark, "lastword verify"):
        for verification in run_tasks(spark, _verify, work):
            problems.update(dict.fromkeys(verification.problems))
    return frame_of(spark, Problem, list(problems))


VERIFY_BYTES = 16 << 20
"""Partitions of a verification share a task up to about this many bytes."""
VERIFY_TASKS = 32
"""This many partitions have a task each; then the more there are, the more small ones share a task."""
MOST_VERIFY_TASKS = 4096
"""Each task lists the log directory and reads its checkpoints, which have a line for each partition."""


def share_verify(sizes: Sequence[int]) -> Iterator[list[int]]:
    """Yield groups of partitions, each for one task, as positions in the sequence of their bytes."""
    most_bytes = max(VERIFY_BYTES, sum(sizes) // MOST_VERIFY_TASKS)
    most = -(-len(sizes) // VERIFY_TASKS)
    group: list[int] = []
    group_bytes = 0
    for number, size_bytes in enumerate(sizes):
        if group and (len(group) == most or group_bytes + size_bytes > most_bytes):
            yield group
            group, group_bytes = [], 0
        group.append(number)
        group_bytes += size_bytes
    if group:
        yield group


def _log_bytes(files: Files, directory: str) -> int:
    """Return the bytes of a partition's log files; 0 if it cannot be read, which its check reports."""
    with suppress(LastwordError):
        facts = [
            files.stat(os.path.join(directory, name))
            for name in files.listdir(directory)
            if name.endswith(names.LOG)
        ]
        return sum(each.size for each in facts if each is not None)
    return 0


@dataclass(frozen=True, slots=True)
class _VerifyTask:
    path: str
    storage: StorageOptions
    quick: bool
    partitions: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        topic, partition = self.partitions[0]
        more = f" and {len(self.partitions) - 1} more" if len(self.partitions) > 1 else ""
        return f"{topic}-{partition}{more}"


def _verify(work: _VerifyTask) -> Verification:
    from lastword.tools.verify import verify

    with open_logs(work.path, work.storage) as logs:
        dirs = logs.dirs
        present = set(dirs.select(None, None))
        for tp in work.partitions:
            if tp not in present:
                dirs.select(*tp)  # raises the error of a topic that was deleted meanwhile
        partitions = [(*tp, dirs.log_dir(*tp).directory(*tp)) for tp in work.partitions]
        return verify(dirs.files, dirs.paths, partitions, quick=work.quick, clock=dirs.clock)


# ---------------------------------------------------------------- restore


def restore(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topic: str | None = None,
    partition: int | None = None,
    *,
    end: int | datetime | Literal["latest"] = "latest",
    to: str | os.PathLike[str] | None = None,
    progress: ProgressLike | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the newest value of every key, as a lazy DataFrame of the source's columns.

    With `to`, the rows are written at the call as a directory of Parquet files, from which `state(snapshot=)`
    starts, and the result is one row of `Restored` for each partition.

    Args:
        spark: The session.
        path: The log directory.
        topic: None: the only topic.
        partition: None: all partitions.
        end: An offset or an aware datetime: the values as of that end.
        to: A new directory to write, as absolute or relative path.
        progress: With `to`: called with a `Progress` as tasks end.
        storage_options: Options of the store of a log in a bucket; without them, those of the environment.

    Raises:
        UsageError: `to` exists.
        OffsetOutOfRangeError: The log was cleaned with records above `end`. If that happens before the
            DataFrame is used, call restore again.
    """
    path, storage = shared_log(path, storage_options)
    from lastword.api.reader import ranges
    from lastword.spark.source import load

    if to is not None:
        to = shared_directory(
            to,
            "directory of a restore",
            "name a path; for a URL: restore(...).write.parquet(URL), without to=",
        )
        if DEFAULT.exists(to):
            raise UsageError(
                f"{to} exists, and a restore writes a new directory", remedy="remove it, or name another"
            )
    with open_logs(path, storage) as logs:
        dirs = logs.dirs
        topic = dirs.only_topic(topic)
        numbers = dirs.select_by_topic(topic, partition)[topic]
        views = {number: dirs.view(topic, number) for number in numbers}
        # Read before the files are listed: a truncation after that invalidates the copy.
        cuts = {n: removal_log.load(dirs.files, view.directory).cut_count for n, view in views.items()}
        for view in views.values():
            view.refresh()
        settled = [range_.settled() for range_ in ranges(views, "earliest", end)]
        ends = {range_.partition: range_.end for range_ in settled}
        frame = load(spark, path, topic, numbers, view="newest", ends=ends, storage=storage)
        if to is None:
            return frame
        size_bytes = sum(segment.size for view in views.values() for segment in view.segments)
        whole = Meter("restore", progress, size_bytes).part(size_bytes)
        held = {range_.partition: range_.view.held_back(range_.end) for range_ in settled}
        return _written(spark, dirs, topic, frame, ends, cuts, held, to, whole, complete=end == "latest")


def _written(
    spark: SparkSession,
    dirs: OpenDirs,
    topic: str,
    frame: DataFrame,
    ends: dict[int, int],
    cuts: dict[int, int],
    held: dict[int, str | None],
    to: str,
    whole: AbstractContextManager[Callable[[int, int], None] | None],
    *,
    complete: bool,
) -> DataFrame:
    import time

    from pyspark.sql import functions as F

    from lastword.api.restore import Restored
    from lastword.spark.schema import frame_of
    from lastword.spark.tasks import described, reporting
    from lastword.state.snapshot_file import Reach, mark_directory

    began = time.monotonic()
    # Before the records are read: a tombstone that is removed later is younger than this.
    reach = Reach(topic, dirs.topic_id(topic), ends, dirs.clock.now_ms() if complete else -1, cuts)
    rows = frame.select("topic", "partition", "offset", "timestamp", "key", "value")
    with described(spark, f"lastword restore: {topic}"):
        with whole as report, reporting(spark, report):
            rows.write.mode("error").parquet(to)
        mark_directory(DEFAULT, to, reach)
        by_partition = spark.read.parquet(as_pattern(to)).groupBy("partition")
        counted = by_partition.agg(F.count("*"), F.sum(F.length("key") + F.length("value"))).collect()
    counts = {row[0]: (row[1], row[2] or 0) for row in counted}
    seconds = time.monotonic() - began
    restored = [
        Restored(topic, n, end, *counts.get(n, (0, 0)), seconds, held[n]) for n, end in sorted(ends.items())
    ]
    return frame_of(spark, Restored, restored)


# ---------------------------------------------------------------- expire


def expire(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topic: str | None = None,
    partition: int | None = None,
    *,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Apply retention by time, size and log start, in the caller's process. Reads no record.

    Returns:
        A row for each partition that lost segments.
    """
    path, storage = shared_log(path, storage_options)
    from lastword.retention import Deletion
    from lastword.spark.schema import frame_of

    with open_logs(path, storage, "a") as logs:
        return frame_of(spark, Deletion, logs.expire(topic, partition))


# ---------------------------------------------------------------- erase


def erase(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topic: str,
    frame: DataFrame,
    *,
    now: bool = False,
    dry_run: bool = False,
    storage_options: Mapping[str, str] | None = None,
) -> Erasure:
    """Remove keys and all their values from every file of a topic: `Topic.erase` with keys of a DataFrame.

    Tasks compute the distinct keys, and which of them each partition has. The caller's process appends the
    tombstones, rewrites and searches; it holds the bytes of the keys, and about 150 bytes more for each. A
    key of a partition gets a new tombstone, also if it has one.

    Args:
        spark: The session.
        path: The log.
        topic: The topic.
        frame: A column `key`, of binary or string: the keys as they are in the log.
        now: As of `Topic.erase`.
        dry_run: As of `Topic.erase`.
        storage_options: For a bucket, as of `lastword.open`.

    Returns:
        The certificate. Its `save` writes it.

    Raises:
        UsageError: There is no column `key` of such a type, or a key is null.
    """
    path, storage = shared_log(path, storage_options)
    from pyspark.sql.functions import col

    from lastword.api.erasing import erase
    from lastword.cleaner.engine.erasure import SpanSet

    kinds = {field.name: field.dataType.typeName() for field in frame.schema.fields}
    if kinds.get("key") not in ("binary", "string"):
        raise UsageError(
            f"the keys need a column `key` of binary or string, not {kinds}",
            remedy='keys.selectExpr("cast(id as string) as key")',
        )
    # Kept by the tasks: the frame may have other rows when it is computed again.
    rows = frame.select(col("key").cast("binary").alias("key")).distinct().persist()
    try:
        keys = SpanSet(_ascending(rows), is_sorted=True)
        with open_logs(path, storage, "r" if dry_run else "a") as logs:
            found = {} if dry_run else _keys_found(spark, logs, topic, rows, keys, path, storage)
            return erase(logs.dirs, topic, keys, now=now, dry_run=dry_run, found=found)
    finally:
        rows.unpersist()


def _ascending(rows: DataFrame) -> Iterator[bytes]:
    """Yield the keys of a frame, ascending."""
    last = b""
    for row in rows.orderBy("key").toLocalIterator():
        if row.key is None:
            raise UsageError("a key is null", remedy='keys.where("key is not null")')
        assert last <= row.key, "keys of Spark are not in the order of their bytes"
        last = bytes(row.key)
        yield last


def _keys_found(
    spark: SparkSession,
    logs: LogDir,
    topic: str,
    rows: DataFrame,
    keys: SpanSet,
    path: str,
    storage: StorageOptions,
) -> dict[int, tuple[NDArray[np.int64], int]]:
    """Return the numbers of the keys that each partition has, and its log end before.

    Empty if a partition is damaged.
    """
    import numpy as np

    from lastword.spark.source import load
    from lastword.spark.tasks import described

    ends = {number: end for number, (_, end) in logs[topic].bounds().items()}
    found = {number: array("q") for number in ends}
    options = {"isolationLevel": "read_uncommitted"}
    records = load(spark, path, topic, list(ends), view="log", formats=options, storage=storage)
    pairs = records.select("partition", "key").join(rows, "key", "leftsemi").distinct()
    try:
        with described(spark, f"lastword erase: {topic}"):
            for row in pairs.toLocalIterator():
                found[row.partition].append(keys.number(bytes(row.key)))
    except Exception as error:
        if not isinstance(typed(error), DataError):
            raise
        return {}  # the other partitions are erased nevertheless
    numbers = {number: np.array(each, np.int64) for number, each in found.items()}
    # -1: tasks that were lost have computed other keys. The search finds the records of those left out.
    return {number: (each[each >= 0], ends[number]) for number, each in numbers.items()}


# ---------------------------------------------------------------- lag


@dataclass(frozen=True, slots=True)
class Lag:
    """The distance of a streaming query from the end of one partition.

    position      the next offset that the query reads
    lag_offsets   offsets that are left to read: as many as records, or more, because a cleaning leaves gaps
    lag_seconds   the age of the first record that is left; 0.0 if there is none
    """

    topic: str
    partition: int
    position: int
    log_end: int
    lag_offsets: int
    lag_seconds: float


def lag(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topic: str | None = None,
    partition: int | None = None,
    *,
    query: StreamingQuery,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Compare the last progress of a streaming query with the end of the log as it is now.

    Args:
        spark: The session.
        path: The log directory that the query reads.
        topic: None: all topics of the query.
        partition: None: all partitions of the topic.
        query: A running or stopped query. It may have sources of other kinds.
        storage_options: Options of the store of a log in a bucket; without them, those of the environment.

    Returns:
        A row of `Lag` for each partition that the query has read; none before its first progress. The end is
        that of a committed read: the last stable offset.
    """
    path, storage = shared_log(path, storage_options)
    from lastword.spark.schema import frame_of

    rows = []
    with open_logs(path, storage) as logs:
        chosen = set(logs.dirs.select(topic, partition))
        now_ms = logs.dirs.clock.now_ms()
        for tp, position in sorted(_positions(query).items()):
            if tp not in chosen:
                continue
            view = logs.dirs.view(*tp)
            end = min(view.stable_offset, view.log_end)
            start, seconds = max(position, view.log_start), 0.0
            if start < end:
                whole = logs.topic(tp.topic, key_serializer="bytes", value_serializer="bytes")
                left = next(iter(whole.read(start, end, partition=tp.partition)), None)
                seconds = 0.0 if left is None else max(0, now_ms - left.timestamp) / 1000
            rows.append(Lag(*tp, position, end, max(0, end - start), seconds))
    return frame_of(spark, Lag, rows)


def _positions(query: StreamingQuery) -> dict[TopicPartition, int]:
    """Return the next offset of each partition, by the last progress of the query's sources of this format.

    Spark gives no name of a Python source: sources of this format have offsets of its shape.
    """
    from lastword.spark.stream import of_json

    progress = query.lastProgress
    positions: dict[TopicPartition, int] = {}
    for source in [] if progress is None else progress["sources"]:
        end = source["endOffset"]
        end = json.loads(end) if isinstance(end, str) else end
        if "Python" not in source["description"] or not isinstance(end, dict):
            continue
        with suppress(LastwordError):
            for tp, offset in of_json(end)[0].items():
                positions[tp] = min(offset, positions.get(tp, offset))
    return positions


# ---------------------------------------------------------------- audit


def audit(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topic: str | None = None,
    partition: int | None = None,
    *,
    delivered: DataFrame,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Compare the newest delivered offset of each key with the newest logged offset. Lazy.

    A delivered row with a null key or offset fails the job that uses the result, with a `UsageError` in the
    text of Spark's exception, as `LogDir.audit` raises it.

    Args:
        spark: The session.
        path: The log directory.
        topic: None: the only topic.
        partition: None: all partitions.
        delivered: Columns `key` (binary, or string as its UTF-8) and `offset`; `partition` if it is known. If
            a key has several rows, the newest offset counts. A row without a partition counts for each
            partition where its key is logged. With `partition`, such a key that is not logged belongs to the
            partition that the topic's partitioner returns.
        storage_options: Options of the store of a log in a bucket; without them, those of the environment.

    Returns:
        A row for each key whose offsets differ, with the kinds of `LogDir.audit`.
    """
    path, storage = shared_log(path, storage_options)
    from pyspark.sql import functions as F

    from lastword.spark.targets import NAMED_PARTITIONERS

    _check_columns(delivered)
    with open_logs(path, storage) as logs:
        dirs = logs.dirs
        topic = dirs.only_topic(topic)
        numbers = dirs.select_by_topic(topic, partition)[topic]
        gone_below = {number: dirs.gone_below(topic, number) for number in numbers}
        partitioner = logs.topic(topic).config.lastword_partitioner or "murmur2"
        count = len(dirs.views(topic))
    logged = _logged_offsets(spark, path, storage, topic, numbers)
    keys = _by_key(logged.union(_delivered_offsets(delivered, partition)))
    rows = _wrong_keys(keys, topic, gone_below)
    if partition is None or count == 1 or partitioner not in NAMED_PARTITIONERS:
        return rows
    return rows.where(F.col("partition").isNotNull() | (_assigned(partitioner, count) == partition))


def _logged_offsets(
    spark: SparkSession, path: str, storage: StorageOptions, topic: str, numbers: Sequence[int]
) -> DataFrame:
    """Return the newest offset of each logged key, and whether it is a tombstone."""
    from pyspark.sql import functions as F

    from lastword.spark.source import load

    schema = "key binary, partition int, offset long, change string"
    changes = load(spark, path, topic, numbers, view="changes", schema=schema, storage=storage)
    return changes.where(F.col("key").isNotNull()).select(
        "key",
        "partition",
        F.col("offset").alias("logged_offset"),
        (F.col("change") == "delete").alias("deleted"),
        F.lit(None).cast("long").alias("delivered_offset"),
    )


def _delivered_offsets(delivered: DataFrame, partition: int | None) -> DataFrame:
    """Return the delivered offsets in the columns of `_logged_offsets`."""
    from pyspark.sql import functions as F

    none = F.lit(None)
    number = F.col("partition") if "partition" in _names(delivered) else none
    rows = delivered.select(
        _required("key", "binary", delivered),
        number.cast("int").alias("partition"),
        none.cast("long").alias("logged_offset"),
        none.cast("boolean").alias("deleted"),
        _required("offset", "long", delivered).alias("delivered_offset"),
    )
    if partition is None:
        return rows
    return rows.where(F.col("partition").isNull() | (F.col("partition") == partition))


def _by_key(rows: DataFrame) -> DataFrame:
    """Return one row for each key and partition, with the newest logged and delivered offsets.

    An offset that was delivered without a partition (`anywhere`) counts for each partition where its key is
    logged. It is a row of its own only if the key is logged nowhere.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    number = F.col("partition")
    of_key = Window.partitionBy("key")
    return (
        rows.withColumn("anywhere", F.max(F.when(number.isNull(), F.col("delivered_offset"))).over(of_key))
        .withColumn("is_logged", F.count("logged_offset").over(of_key) > 0)
        .groupBy("key", "partition")
        .agg(
            F.max("logged_offset").alias("logged_offset"),
            F.max("deleted").alias("deleted"),
            F.max("delivered_offset").alias("delivered_offset"),
            F.max("anywhere").alias("anywhere"),
            F.max("is_logged").alias("is_logged"),
        )
        .where(number.isNotNull() | ~F.col("is_logged"))
    )


def _wrong_keys(keys: DataFrame, topic: str, gone_below: dict[int, int]) -> DataFrame:
    """Return the rows of `_by_key` whose offsets differ, with their kind.

    A key of a partition that the topic does not have cannot have been removed from it. A key without a
    partition may have been removed from any partition.
    """
    from pyspark.sql import functions as F

    number = F.col("partition")
    removed_below = F.when(number.isNull(), F.lit(max(gone_below.values(), default=0))).otherwise(F.lit(0))
    for partition, offset in gone_below.items():
        removed_below = F.when(number == partition, F.lit(offset)).otherwise(removed_below)
    logged, reported = F.col("logged_offset"), F.col("delivered_offset")
    delivered = F.when(logged.isNull(), reported).otherwise(F.greatest(reported, F.col("anywhere")))
    kind = (
        F.when(logged.isNull(), F.when(delivered < removed_below, "gone").otherwise("phantom"))
        .when(delivered.isNull(), F.when(~F.col("deleted"), "missing"))
        .when(delivered < logged, "stale")
        .when(delivered > logged, "phantom")
    )
    columns = (
        F.lit(topic).alias("topic"),
        "partition",
        "key",
        kind.alias("kind"),
        "logged_offset",
        delivered.alias("delivered_offset"),
    )
    return keys.select(*columns).where(F.col("kind").isNotNull())


def _names(delivered: DataFrame) -> dict[str, StructField]:
    return {field.name.lower(): field for field in delivered.schema.fields}


def _check_columns(delivered: DataFrame) -> None:
    """Raise UsageError if the frame has no key and offset, or keys that are not bytes."""
    from pyspark.sql.types import BinaryType, StringType

    if not hasattr(delivered, "schema"):
        raise UsageError(
            f"delivered is {delivered!r}, no DataFrame", remedy="a DataFrame of the columns key and offset"
        )
    names = _names(delivered)
    for name in ("key", "offset"):
        if name not in names:
            raise UsageError(
                f"delivered has no column {name!r}; it has {', '.join(delivered.columns)}",
                remedy="columns key and offset, and partition if you have it",
            )
    if not isinstance(names["key"].dataType, BinaryType | StringType):
        raise UsageError(
            f"the column key of delivered is {names['key'].dataType.simpleString()}",
            remedy="keys are bytes: binary, or string as its UTF-8",
        )


def _required(column: str, kind: str, delivered: DataFrame) -> Column:
    """Return a column, or the error of a row with a null in it; the text names the row by its other columns.

    Spark has no exception class of a library for an expression, so the text begins with the name of ours.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import BinaryType

    names = _names(delivered)
    row: list[Column] = []
    for name in ("key", "offset", "partition"):
        if name in names and name != column:
            is_binary = isinstance(names[name].dataType, BinaryType)
            value = F.hex(name) if is_binary else F.col(name).cast("string")
            row += [F.lit(f", {name} "), F.coalesce(value, F.lit("null"))]
    text = f"{UsageError.__name__}: delivered has a row with a null in column {column}"
    remedy = UsageError("", remedy=f'leave such rows out: delivered.where("{column} IS NOT NULL")')
    refused = F.raise_error(F.concat(F.lit(text), *row, F.lit(str(remedy))))
    return F.coalesce(F.col(column).cast(kind), refused.cast(kind)).alias(column)


def _assigned(partitioner: str, count: int) -> Column:
    """Return the partitioner's partition of the key of a row."""
    from pyspark.sql import functions as F

    def partition_of(key: Any) -> int:
        return PARTITIONERS[partitioner](bytes(key), count)

    return F.udf(partition_of, "int", useArrow=False)("key")
