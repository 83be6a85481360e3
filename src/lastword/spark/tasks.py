"""Running a function of ours once for each of some values, as Spark tasks.

The tasks are the partitions of a small data source whose `read` calls the function. `mapInArrow` would want
pandas and an RDD a SparkContext; a data source wants neither, and works on Spark Connect. Function and
values travel pickled in an option, answers pickled in a binary column. The function must be importable on
the workers (they need lastword anyway).

When tasks fail: an exception from the function fails the attempt, and Spark starts another as
`spark.task.maxFailures` says. An attempt may so run twice, also at the same time with speculation; the
answer of one of them comes back.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from lastword.spark.shipping import Shipped, need_directory, typed
from lastword.spark.warm import ensure_compiled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = StructType([StructField("task", IntegerType()), StructField("answer", BinaryType())])


def run_tasks(spark: SparkSession, function: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
    """function(value) of each value, computed on the executors; answers in the order of the values."""
    if not values:
        return []
    ensure_compiled()  # here, or each worker would compile them for itself
    spark.dataSource.register(TaskSource)
    work = base64.b64encode(pickle.dumps((function, list(values)))).decode()
    try:
        rows = spark.read.format(TaskSource.name()).option("work", work).load().collect()
    except PySparkException as error:
        raise typed(error) from error
    answers = {row["task"]: pickle.loads(row["answer"]) for row in rows}
    return [answers[index] for index in range(len(values))]


@dataclass(frozen=True)
class Task(InputPartition):
    index: int
    work: bytes


class TaskSource(Shipped, DataSource):
    """Not for users: its one option is made by `run_tasks`."""

    @classmethod
    def name(cls) -> str:
        return "lastword_tasks"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return TaskReader(self.options["work"])


class TaskReader(Shipped, DataSourceReader):
    def __init__(self, work: str) -> None:
        self.work = work

    def partitions(self) -> list[InputPartition]:
        function, values = pickle.loads(base64.b64decode(self.work))
        return [Task(index, pickle.dumps((function, value))) for index, value in enumerate(values)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, bytes]]:
        assert isinstance(partition, Task)
        function, value = pickle.loads(partition.work)
        place = getattr(value, "directory", None) or getattr(value, "path", None)
        if isinstance(place, str):
            need_directory(place)
        yield partition.index, pickle.dumps(function(value))
