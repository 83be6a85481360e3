"""Verbs as DataFrames: `duplication`, `verify`, `restore` and `expire`. (`audit` has a module of its own.)

Where it runs. `duplication` and `verify` give each task a partition, or some segments of one, call the
functions of `tools`, and combine the results in the caller's process. `restore` is a DataFrame over the
source: lazy, planned by Spark, and each log's newest records come without a shuffle. `expire` runs in the
caller's process and reads no record.

What travels. Names and numbers to tasks; sketches (128 KiB each), counts and problems back. Records only if
the result consists of records.

When tasks fail. Tasks change nothing, so a retry reads again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from lastword.partition import losses
from lastword.wire import INT64_MAX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lastword.api.open_dirs import By, OpenDirs
    from lastword.tools.duplication import Duplication
    from lastword.tools.verify import Verification

TASK_BYTES = 256 << 20
"""A partition that is sketched by several tasks is divided into about this many bytes each; whole segments.
"""


def duplication(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topic: str | None = None,
    partition: int | None = None,
    *,
    exact: bool = False,
    by: By = "partition",
) -> DataFrame:
    """Count superseded records: the rows of `LogDir.duplication`, counted or sketched by tasks.

    Sketches of parts can be merged, so a partition is spread over tasks (not by segment, because each row
    needs all later keys). Exact counts of a topic need all of its keys in one place, so each topic is one
    task.
    """
    import lastword
    from lastword.api.duplicates import check_by
    from lastword.spark.bootstrap import shared_log
    from lastword.spark.result_frames import frame_of
    from lastword.spark.session import need_pyspark
    from lastword.spark.tasks import run_tasks
    from lastword.tools.duplication import Duplication, of_sketches
    from lastword.tools.sketches import Sketch

    need_pyspark()
    check_by(by)
    path = shared_log(path)
    with lastword.open([path]) as logs:
        dirs = logs.dirs
        chosen = dirs.select_by_topic(topic, partition)
        if exact or by == "segment":
            work = [_Counted(path, name, partition, exact, by) for name in chosen]
            rows = [row for found in run_tasks(spark, _count, work) for row in found]
            return frame_of(spark, Duplication, rows)
        pieces: list[_Piece] = []
        for name, numbers in chosen.items():
            for number in numbers:
                view = dirs.view(name, number)
                pieces += _pieces(
                    name, number, view.directory, [(s.base_offset, s.size) for s in view.segments]
                )
        whole = {name: len(dirs.views(name)) == len(numbers) for name, numbers in chosen.items()}
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
    """Divide a partition into runs of whole segments, each of about TASK_BYTES; at least one."""
    starts, size = [-1], 0
    for base_offset, size_bytes in segments:
        if size and size + size_bytes > TASK_BYTES:
            starts.append(base_offset)
            size = 0
        size += size_bytes
    ends = [*starts[1:], INT64_MAX]
    return [_Piece(topic, partition, directory, first, end) for first, end in zip(starts, ends, strict=True)]


def _sketch(piece: _Piece) -> bytes:
    """Sketch the records of a piece. If the log is rewritten between two tasks, a record may count in both
    pieces or in none, if the rewrite joined segments over their border.
    """
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
    """Check every checksum, index, checkpoint and invariant, with a task for each partition. Changes nothing.

    Returns:
        A row for each problem; none if all is valid.
    """
    import lastword
    from lastword.spark.bootstrap import shared_log
    from lastword.spark.result_frames import frame_of
    from lastword.spark.session import need_pyspark
    from lastword.spark.tasks import run_tasks
    from lastword.tools.findings import Problem

    need_pyspark()
    path = shared_log(path)
    with lastword.open([path]) as logs:
        chosen = logs.dirs.select_by_topic(topic, partition)
    work = [_Checked(path, name, number, quick) for name in chosen for number in chosen[name]]
    problems: dict[Problem, None] = {}  # every task reports an unreadable checkpoint
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


# ---------------------------------------------------------------- restore


def restore(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topic: str | None = None,
    partition: int | None = None,
    *,
    end: int | datetime | Literal["latest"] = "latest",
    to: str | os.PathLike[str] | None = None,
) -> DataFrame:
    """Return the newest value of every key, as a lazy DataFrame of the source's columns.

    With `to`, the rows are written at the call as a directory of Parquet files, from which `state(snapshot=)`
    starts, and the result is one row of `Restored` for each partition.

    Args:
        topic: None: the only topic.
        end: An offset or an aware datetime; restores the values as of then.

    Raises:
        OffsetOutOfRangeError: The log was cleaned with records above `end`. If that happens before the
            DataFrame is used, call restore again.
    """
    import lastword
    from lastword.api.ranges import ranges
    from lastword.spark.bootstrap import shared_log, shared_path
    from lastword.spark.session import need_pyspark
    from lastword.spark.source import load

    need_pyspark()
    path = shared_log(path)
    if to is not None:
        to = shared_path(to, "directory of a restore")
    with lastword.open([path]) as logs:
        dirs = logs.dirs
        topic = dirs.only_topic(topic)
        numbers = dirs.select_by_topic(topic, partition)[topic]
        views = {number: dirs.view(topic, number) for number in numbers}
        # Read before the files are listed: a truncation after that invalidates the copy.
        cuts = {n: losses.load(dirs.files, view.directory).cut_count for n, view in views.items()}
        for one in views.values():
            one.refresh()
        chosen = [one.settled() for one in ranges(views, "earliest", end)]
        ends = {one.partition: one.end for one in chosen}
        frame = load(spark, path, topic, numbers, view="latest", ends=ends)
        if to is None:
            return frame
        return _written(spark, dirs, topic, frame, ends, cuts, to, complete=end == "latest")


def _written(
    spark: SparkSession,
    dirs: OpenDirs,
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

    from lastword.spark.result_frames import frame_of
    from lastword.state.snapshot_file import Reach, mark_directory
    from lastword.state.state import Restored

    began = time.monotonic()
    # Before the records are read: a tombstone that is removed later is younger than this.
    reach = Reach(topic, dirs.topic_id(topic), ends, dirs.clock.now_ms() if complete else -1, cuts)
    frame.select("topic", "partition", "offset", "timestamp", "key", "value").write.mode("error").parquet(to)
    mark_directory(dirs.files, to, reach)
    written = spark.read.parquet(to)
    counted = (
        written.groupBy("partition").agg(F.count("*"), F.sum(F.length("key") + F.length("value"))).collect()
    )
    found = {row[0]: (row[1], row[2] or 0) for row in counted}
    seconds = time.monotonic() - began
    rows = [Restored(topic, n, end, *found.get(n, (0, 0)), seconds) for n, end in sorted(ends.items())]
    return frame_of(spark, Restored, rows)


# ---------------------------------------------------------------- expire


def expire(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topic: str | None = None,
    partition: int | None = None,
) -> DataFrame:
    """Apply retention by time, size and log start now. Runs at the call, in the caller's process, and reads
    no record.

    Returns:
        A row for each partition that lost segments.
    """
    import lastword
    from lastword.retention import Deletion
    from lastword.spark.bootstrap import shared_log
    from lastword.spark.result_frames import frame_of
    from lastword.spark.session import need_pyspark

    need_pyspark()
    path = shared_log(path)
    with lastword.open([path], "a", log_cleaner_enable=False) as logs:
        return frame_of(spark, Deletion, logs.expire(topic, partition))
