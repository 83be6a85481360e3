"""Run a function for each of some values, as Spark tasks.

There are two ways with one interface. With a SparkContext each value is a job of one task: it starts within
milliseconds, and the caller uses its result while other jobs run. Many values with a small `size_bytes` share
tasks: to start a task costs as much as to clean a small partition. Spark Connect has no SparkContext: there
all tasks are the partitions of one small data source, whose `read` calls the function, and all results arrive
together. (`mapInArrow` would require pandas.)

What travels. Function and values are pickled to workers, results are pickled back. The function must be
importable on the workers, which need lastword anyway.

When tasks fail. An exception in the function fails the attempt, and Spark starts another, as often as
`spark.task.maxFailures` allows. So the function may run twice, with speculation even at the same time; the
result of one attempt is returned. After the last attempt the error is raised here, tasks that have not begun
are dropped, and running tasks are cancelled. An interrupt of this process does likewise.

Each job has the description of its caller (`described`) and the name of its partition, so Spark's UI shows
`lastword clean: users-3`.
"""

from __future__ import annotations

import base64
import os
import pickle
import threading
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from lastword.spark.bootstrap import Shipped, ensure_compiled, need_directory, typed
from lastword.spark.bucket import files_at
from lastword.spark.options import NO_STORAGE

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

SCHEMA = StructType([StructField("task", IntegerType()), StructField("result", BinaryType())])
_MAX_JOBS = 64
"""The least limit of jobs that run at the same time. The limit is twice the number of cores if that is more:
enough to keep them busy, and to make Spark request more executors if it may.
"""


SINGLE_TASKS = 32
"""This many values have a task each; then the more values there were, the more share a task."""
MOST_SHARED = 32
SMALL_BYTES = 1 << 20
"""A value shares a task if its `size_bytes` is at most this."""


def run_tasks(spark: SparkSession, function: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
    """Return function(value) for each value, computed on executors, in the order of the values."""
    results = dict(results_as_completed(spark, function, values))
    return [results[number] for number in range(len(values))]


def results_as_completed(
    spark: SparkSession, function: Callable[[Any], Any], values: Iterable[Any]
) -> Generator[tuple[int, Any]]:
    """Yield (number of the value, function(value)) as each result becomes available.

    `values` may be a slow generator: the tasks of earlier values run meanwhile. Spark starts tasks in the
    order of the values.
    """
    context = _context(spark)
    if context is None:
        yield from enumerate(_in_one_job(spark, function, list(values)))
        return
    ensure_compiled()  # here, so that no worker compiles
    tag = f"lastword-{uuid.uuid4()}"
    under_way: dict[Future[bytes], list[int]] = {}
    done: SimpleQueue[Future[bytes]] = SimpleQueue()

    def results(future: Future[bytes]) -> Iterator[tuple[int, Any]]:
        numbers = under_way.pop(future)
        try:
            values = pickle.loads(future.result())
        except Exception as error:  # PySpark's, or Py4J's
            _raise_typed(error)
        yield from zip(numbers, values, strict=True)

    limit = max(_MAX_JOBS, 2 * context.defaultParallelism)
    job = partial(_one_job, context, tag, context.getLocalProperty(DESCRIPTION))
    with ThreadPoolExecutor(limit, thread_name_prefix="lastword-task") as pool:
        try:
            for group in share_tasks(values):
                call = TaskCall(function, [value for _, value in group])
                future = pool.submit(_inheriting(spark, job), call)
                under_way[future] = [number for number, _ in group]
                future.add_done_callback(done.put)
                while not done.empty():
                    yield from results(done.get())
            while under_way:
                yield from results(done.get())
        finally:
            if under_way:
                for future in under_way:
                    future.cancel()
                context.cancelJobsWithTag(tag)


def share_tasks(values: Iterable[Any]) -> Iterator[list[tuple[int, Any]]]:
    """Yield groups of values with their numbers, each for one task. A value is taken when it is needed."""
    group: list[tuple[int, Any]] = []
    for number, value in enumerate(values):
        size_bytes = getattr(value, "size_bytes", None)
        if size_bytes is None or size_bytes > SMALL_BYTES:
            yield [(number, value)]
            continue
        group.append((number, value))
        if len(group) >= min(number // SINGLE_TASKS, MOST_SHARED):
            yield group
            group = []
    if group:
        yield group


def _called(function: Callable[[Any], Any], values: Sequence[Any]) -> bytes:
    """Call the function for each value, on an executor."""
    results = []
    for value in values:
        root = getattr(value, "path", None)
        directory = getattr(value, "directory", None) or root
        if isinstance(directory, str):
            need_directory(directory, files_at(root or directory, getattr(value, "storage", NO_STORAGE)))
        results.append(function(value))
    return pickle.dumps(results)


# ---------------------------------------------------------------- what Spark shows of a job


DESCRIPTION = "spark.job.description"
GROUP = "spark.jobGroup.id"
"""The local properties that hold the description and the group of a thread's jobs."""

POLL_SECONDS = 0.5


@contextmanager
def described(spark: SparkSession, text: str) -> Iterator[None]:
    """Give the jobs of a block a description in Spark's UI; on Spark Connect the text is a tag.

    The text follows a description that the thread has already, with a colon.
    """
    context = _context(spark)
    if context is None:
        spark.addTag(text)
        try:
            yield
        finally:
            spark.removeTag(text)
        return
    before: Any = context.getLocalProperty(DESCRIPTION)  # None removes a property
    context.setJobDescription(f"{before}: {text}" if before else text)
    try:
        yield
    finally:
        context.setLocalProperty(DESCRIPTION, before)


@contextmanager
def reporting(spark: SparkSession, report: Callable[[int, int], None] | None) -> Iterator[None]:
    """Call `report` with the number of tasks that ended, and of all tasks so far, of the jobs of a block.

    Without Spark Connect, jobs are found by their group: the caller's, or for this block one of its own.
    """
    if report is None:
        yield
        return
    context = _context(spark)
    if context is None:

        def on_progress(*, stages: Iterable[Any] | None, **_: Any) -> None:
            known = list(stages or ())
            if tasks := sum(stage.num_tasks for stage in known):
                report(sum(stage.num_completed_tasks for stage in known), tasks)

        handler: Any = on_progress  # PySpark's annotation wants a subclass of its own; it calls any function
        spark.registerProgressHandler(handler)
        try:
            yield
        finally:
            spark.removeProgressHandler(handler)
        return
    group: Any = context.getLocalProperty(GROUP)
    name = group or f"lastword-{uuid.uuid4()}"
    context.setLocalProperty(GROUP, name)
    tracker = context.statusTracker()
    before = set(tracker.getJobIdsForGroup(name))

    def poll() -> None:
        jobs = [tracker.getJobInfo(number) for number in set(tracker.getJobIdsForGroup(name)) - before]
        numbers = [number for job in jobs if job for number in job.stageIds]
        stages = [stage for stage in map(tracker.getStageInfo, numbers) if stage]
        if tasks := sum(stage.numTasks for stage in stages):
            report(sum(stage.numCompletedTasks for stage in stages), tasks)

    try:
        with repeated(poll, POLL_SECONDS, "lastword-progress"):
            yield
    finally:
        context.setLocalProperty(GROUP, group)


@contextmanager
def repeated(call: Callable[[], None], seconds: float, name: str) -> Iterator[None]:
    """Call a function every `seconds` in a thread of this name, until the block ends."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            call()

    thread = threading.Thread(target=repeat, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


# ---------------------------------------------------------------- a job for each


def _context(spark: SparkSession) -> SparkContext | None:
    """Return the SparkContext; None on Spark Connect, and on platforms that hide it."""
    try:
        return spark.sparkContext
    except PySparkException:
        return None


class TaskCall(Shipped):
    """A function and the values of one task, callable there."""

    def __init__(self, function: Callable[[Any], Any], values: Sequence[Any]) -> None:
        self.function = function
        self.values = values

    def __call__(self, _: Any) -> bytes:
        """Return the pickled results."""
        return _called(self.function, self.values)


def _one_job(context: SparkContext, tag: str, given: str | None, call: TaskCall) -> bytes:
    more = f" and {len(call.values) - 1} more" if len(call.values) > 1 else ""
    name = f"{_name_of(call.values[0])}{more}"
    context.setJobDescription(f"{given}: {name}" if given else name)
    context.addJobTag(tag)
    try:
        (result,) = context.parallelize([0], 1).map(call).collect()
        return bytes(result)
    finally:
        context.removeJobTag(tag)  # the thread is reused


def _name_of(value: Any) -> str:
    """Return the partition or topic that a task is for."""
    directory = getattr(value, "directory", None)
    if directory is not None:
        return str(os.path.basename(directory))
    topic, partition = getattr(value, "topic", None), getattr(value, "partition", None)
    if topic is None:
        return str(value)
    return str(topic) if partition is None else f"{topic}-{partition}"


def _inheriting(spark: SparkSession, function: Callable[[TaskCall], bytes]) -> Callable[[TaskCall], bytes]:
    """Make a thread inherit the caller's job group, pool and description."""
    from pyspark import inheritable_thread_target

    inheriting: Callable[[TaskCall], bytes] = inheritable_thread_target(spark)(function)
    return inheriting


def _raise_typed(error: Exception) -> NoReturn:
    ours = typed(error)
    if ours is error:
        raise error
    raise ours from None  # Spark's error has the same text and a hundred lines of the JVM


# ---------------------------------------------------------------- one job for all


def _in_one_job(spark: SparkSession, function: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
    if not values:
        return []
    ensure_compiled()
    spark.dataSource.register(TaskSource)
    work = base64.b64encode(pickle.dumps((function, list(values)))).decode()
    tag = f"lastword-{uuid.uuid4()}"
    spark.addTag(tag)
    try:
        rows = spark.read.format(TaskSource.name()).option("work", work).load().collect()
    except PySparkException as error:
        _raise_typed(error)
    except BaseException:  # an interrupt of this process: the server would continue
        spark.interruptTag(tag)
        raise
    finally:
        spark.removeTag(tag)
    results = {row["task"]: pickle.loads(row["result"]) for row in rows}
    by_number: dict[int, Any] = {}
    for task, group in enumerate(share_tasks(values)):
        by_number.update(zip((number for number, _ in group), results[task], strict=True))
    return [by_number[number] for number in range(len(values))]


@dataclass(frozen=True)
class TaskInput(InputPartition):
    """The pickled function and values of one task."""

    index: int
    work: bytes


class TaskSource(Shipped, DataSource):
    """The data source of `_in_one_job`, not for users."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "lastword_tasks"

    def schema(self) -> StructType:
        """Return the number of the task and the pickled results."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader."""
        return TaskReader(self.options["work"])


class TaskReader(Shipped, DataSourceReader):
    """The reader of a TaskSource: a task for each group of values."""

    def __init__(self, work: str) -> None:
        self.work = work

    def partitions(self) -> list[InputPartition]:
        """Return a task for each group of values."""
        function, values = pickle.loads(base64.b64decode(self.work))
        return [
            TaskInput(index, pickle.dumps((function, [value for _, value in group])))
            for index, group in enumerate(share_tasks(values))
        ]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, bytes]]:
        """Yield the results of one task."""
        assert isinstance(partition, TaskInput)
        yield partition.index, _called(*pickle.loads(partition.work))
