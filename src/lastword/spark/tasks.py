"""Run a function for each of some values, as Spark tasks.

There are two ways with one interface. With a SparkContext each value is a job of one task: it starts within
milliseconds, and the caller uses its result while other jobs run. Spark Connect has no SparkContext: there
all values are the partitions of one small data source, whose `read` calls the function, and all results
arrive together. (`mapInArrow` would require pandas.)

What travels. Function and values are pickled to workers, results are pickled back. The function must be
importable on the workers, which need lastword anyway.

When tasks fail. An exception in the function fails the attempt, and Spark starts another, as often as
`spark.task.maxFailures` allows. So the function may run twice, with speculation even at the same time; the
result of one attempt is returned. After the last attempt the error is raised here, tasks that have not begun
are dropped, and running tasks are cancelled.
"""

from __future__ import annotations

import base64
import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from lastword.spark.bootstrap import Shipped, ensure_compiled, need_directory, typed

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

SCHEMA = StructType([StructField("task", IntegerType()), StructField("result", BinaryType())])
_MAX_JOBS = 64
"""The least limit of jobs that run at the same time. The limit is twice the number of cores if that is more:
enough to keep them busy, and to make Spark request more executors if it may.
"""


def run_tasks(spark: SparkSession, function: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
    """Return function(value) for each value, computed on executors, in the order of the values."""
    results = dict(results_as_completed(spark, function, values))
    return [results[number] for number in range(len(values))]


def results_as_completed(
    spark: SparkSession, function: Callable[[Any], Any], values: Iterable[Any]
) -> Iterator[tuple[int, Any]]:
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
    under_way: dict[Future[bytes], int] = {}

    def results(done: Iterable[Future[bytes]]) -> Iterator[tuple[int, Any]]:
        for future in done:
            number = under_way.pop(future)
            try:
                yield number, pickle.loads(future.result())
            except Exception as error:  # PySpark's, or Py4J's
                _raise_typed(error)

    limit = max(_MAX_JOBS, 2 * context.defaultParallelism)
    with ThreadPoolExecutor(limit, thread_name_prefix="lastword-task") as pool:
        try:
            for number, value in enumerate(values):
                job = _inheriting(spark, _one_job)
                under_way[pool.submit(job, context, tag, TaskCall(function, value))] = number
                yield from results([future for future in under_way if future.done()])
            while under_way:
                yield from results(wait(under_way, return_when=FIRST_COMPLETED).done)
        finally:
            if under_way:
                for future in under_way:
                    future.cancel()
                context.cancelJobsWithTag(tag)


def _called(function: Callable[[Any], Any], value: Any) -> bytes:
    """Call the function, on an executor."""
    directory = getattr(value, "directory", None) or getattr(value, "path", None)
    if isinstance(directory, str):
        need_directory(directory)
    return pickle.dumps(function(value))


# ---------------------------------------------------------------- a job for each


def _context(spark: SparkSession) -> SparkContext | None:
    """Return the SparkContext; None on Spark Connect, and on platforms that hide it."""
    try:
        return spark.sparkContext
    except PySparkException:
        return None


class TaskCall(Shipped):
    """A function and one value, callable in a task."""

    def __init__(self, function: Callable[[Any], Any], value: Any) -> None:
        self.function = function
        self.value = value

    def __call__(self, _: Any) -> bytes:
        """Return the pickled result."""
        return _called(self.function, self.value)


def _one_job(context: SparkContext, tag: str, call: TaskCall) -> bytes:
    context.addJobTag(tag)
    try:
        (result,) = context.parallelize([0], 1).map(call).collect()
        return bytes(result)
    finally:
        context.removeJobTag(tag)  # the thread is reused


def _inheriting(spark: SparkSession, function: Callable[..., bytes]) -> Callable[..., bytes]:
    """Make a thread inherit the caller's job group, pool and description."""
    from pyspark import inheritable_thread_target

    return inheritable_thread_target(spark)(function)


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
    try:
        rows = spark.read.format(TaskSource.name()).option("work", work).load().collect()
    except PySparkException as error:
        _raise_typed(error)
    results = {row["task"]: pickle.loads(row["result"]) for row in rows}
    return [results[index] for index in range(len(values))]


@dataclass(frozen=True)
class TaskInput(InputPartition):
    """The pickled function and value of one task."""

    index: int
    work: bytes


class TaskSource(Shipped, DataSource):
    """The data source of `_in_one_job`, not for users."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "lastword_tasks"

    def schema(self) -> StructType:
        """Return the number of the value and the pickled result."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader."""
        return TaskReader(self.options["work"])


class TaskReader(Shipped, DataSourceReader):
    """The reader of a TaskSource: a task for each value."""

    def __init__(self, work: str) -> None:
        self.work = work

    def partitions(self) -> list[InputPartition]:
        """Return a task for each value."""
        function, values = pickle.loads(base64.b64decode(self.work))
        return [TaskInput(index, pickle.dumps((function, value))) for index, value in enumerate(values)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, bytes]]:
        """Yield the result of one task."""
        assert isinstance(partition, TaskInput)
        yield partition.index, _called(*pickle.loads(partition.work))
