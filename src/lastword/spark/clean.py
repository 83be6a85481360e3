"""The cleaner on Spark: the driver chooses and swaps, one task for each partition of the log maps and
rewrites.

Where it runs. `clean` in the caller's process: it opens the directory for writing (so the lock is held from
the choice to the last swap), rolls and syncs, and makes a plan for each partition. Each plan is a task:
`cleaner.build` on an executor, which reads segments and writes certified outputs into
`<partition>/lastword/`, under a name of its own. Back in the caller's process `cleaner.publish` swaps them
in.

What travels. Out: a `Plan` and a directory. Back: a `BuiltRound` (names, offsets, sums), or the error. No
record.

When tasks fail. Nothing is published but by the driver, so a lost task leaves files that nobody looks at,
and the next round removes them. Damage in one partition sets that partition aside and leaves the others to
be cleaned; it is raised at the end.

The tasks are the partitions of a small data source, `RoundTasks`: its `read` does the work and yields one
row. So neither pandas nor a SparkContext is needed, and Spark Connect works where client and executors see
the same storage.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lastword.errors import LastwordError, NoPolicyError, UnknownTopicError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lastword.cleaner.built import BuiltRound
    from lastword.cleaner.choose import Plan
    from lastword.cleaner.report import CleanRound
    from lastword.config import TopicConfig
    from lastword.logdir.checkpoints import TopicPartition
    from lastword.logdir.log_dir import LogDirectory


def clean(
    spark: SparkSession,
    path: str,
    topic: str | None = None,
    partition: int | None = None,
    *,
    due: bool = False,
    strategy: str | None = None,
) -> DataFrame:
    """Clean now, and return one row for each round: the columns of `CleanRound`.

    path       a log directory that this process and all executors see under this name
    topic      None: every topic whose cleanup.policy is known to compact
    partition  None: all of the topic's
    due        only what the scheduler would choose; otherwise all garbage goes that may go
    strategy   None is `kafka` here, whatever the topic's own: executors have no garbage accounts, so a round
               takes the whole log, and is due by the dirty ratio

    Runs at the call, once; the rows are local. Each task takes `log.cleaner.dedupe.buffer.size` of memory
    for its map. LogDirLockedError, UnknownTopicError, NoPolicyError (of a topic that was named); the first
    error of a partition is raised when the others are done.
    """
    from lastword.spark.session import need_pyspark

    need_pyspark()
    from lastword.cleaner import cleaner
    from lastword.cleaner.report import CleanRound
    from lastword.logdir.inbox import Watch
    from lastword.logdir.log_dir import LogDirectory
    from lastword.spark.frames import frame_of

    rounds: list[CleanRound] = []
    failed: list[LastwordError] = []
    with ExitStack() as held:
        directory = held.enter_context(LogDirectory.open(path, "a"))
        held.callback(Watch(directory).close)  # writers go on while this holds the lock
        tasks: list[RoundTask] = []
        for tp in _chosen(directory, topic, partition):
            log, config = directory.log(*tp), directory.topic_config(tp.topic)
            held.enter_context(cleaner.alone(log.directory))
            arguments = _arguments(directory, tp, config, due, strategy)
            plan = cleaner.prepare(log, config, **arguments)
            if plan.action == "clean":
                tasks.append(RoundTask(log.directory, plan))
        for task, built in zip(tasks, build_rounds(spark, tasks), strict=True):
            if isinstance(built, LastwordError):
                failed.append(built)
                continue
            try:
                rounds.append(_publish(directory, task.plan, built))
            except LastwordError as error:
                failed.append(error)
    if failed:
        failed[0].add_note(f"{len(rounds)} other partitions were cleaned, {len(failed)} were not")
        raise failed[0]
    return frame_of(spark, CleanRound, rounds)


def plan(
    spark: SparkSession,
    path: str,
    topic: str | None = None,
    partition: int | None = None,
    *,
    due: bool = False,
    strategy: str | None = None,
) -> DataFrame:
    """What `clean` would do now, to the byte, and why: one row for each partition, the columns of `Plan`.

    Takes no lock and changes nothing: each task resolves its partition and rewrites it into nothing.
    """
    from lastword.spark.session import need_pyspark

    need_pyspark()
    from lastword.cleaner.choose import Plan
    from lastword.logdir.log_dir import LogDirectory
    from lastword.spark.frames import frame_of

    directory = LogDirectory.open(path, "r")
    tasks, sizes = [], []
    for tp in _chosen(directory, topic, partition):
        config = directory.topic_config(tp.topic)
        arguments = _arguments(directory, tp, config, due, strategy)
        tasks.append(PlanTask(directory.directory(*tp), config, arguments))
        sizes.append(sum(segment.size for segment in directory.view(*tp).segments))
    return frame_of(spark, Plan, _largest_first(spark, _plan_one, tasks, sizes))


@dataclass(frozen=True, slots=True)
class RoundTask:
    """One partition's round, for an executor."""

    directory: str
    plan: Plan


@dataclass(frozen=True, slots=True)
class PlanTask:
    """One partition's plan, for an executor."""

    directory: str
    config: TopicConfig
    arguments: dict[str, Any]


def build_rounds(spark: SparkSession, tasks: list[RoundTask]) -> list[BuiltRound | LastwordError]:
    """Map and rewrite on the executors; the answers in the order of the tasks."""
    return _largest_first(spark, _build_one, tasks, [task.plan.total_bytes for task in tasks])


def _largest_first(
    spark: SparkSession, function: Callable[[Any], Any], tasks: list[Any], sizes: list[int]
) -> list[Any]:
    """Spark starts tasks in order, so the largest go first and the last to start are short ones."""
    from lastword.spark.tasks import run_tasks

    order = sorted(range(len(tasks)), key=lambda i: -sizes[i])
    answers = dict(zip(order, run_tasks(spark, function, [tasks[i] for i in order]), strict=True))
    return [answers[i] for i in range(len(tasks))]


def _build_one(task: RoundTask) -> BuiltRound | LastwordError:
    """On an executor. A fault of the data is an answer, and other partitions go on; anything else fails the
    task, so that Spark tries it again.
    """
    from lastword.cleaner.cleaner import build
    from lastword.clock import SystemClock
    from lastword.errors import StorageError
    from lastword.files import DEFAULT
    from lastword.partition.view import PartitionView

    try:
        view = PartitionView.load(DEFAULT, task.directory)
        return build(view, task.plan, files=DEFAULT, clock=SystemClock())
    except StorageError:
        raise
    except LastwordError as error:
        return error


def _plan_one(task: PlanTask) -> Plan:
    """On an executor."""
    from lastword.cleaner import cleaner
    from lastword.clock import SystemClock
    from lastword.files import DEFAULT
    from lastword.partition.view import PartitionView

    view = PartitionView.load(DEFAULT, task.directory)
    return cleaner.plan(view, task.config, files=DEFAULT, clock=SystemClock(), **task.arguments)


def _publish(directory: LogDirectory, plan: Plan, built: BuiltRound) -> CleanRound:
    from lastword.cleaner import cleaner

    return cleaner.publish(
        directory.log(plan.topic, plan.partition),
        built,
        record_first_dirty=lambda offset: directory.set_first_dirty(plan.topic, plan.partition, offset),
    )


def _chosen(directory: LogDirectory, topic: str | None, partition: int | None) -> list[TopicPartition]:
    """The partitions that were asked for; of topics that nobody named, those that may be cleaned."""
    if topic is None:
        compacting = {name for name in directory.topics() if directory.topic_config(name).compacts}
        return [tp for tp in directory.topic_partitions() if tp.topic in compacting]
    numbers = directory.partitions(topic)
    if directory.topic_config(topic).cleanup_policy is None:
        raise NoPolicyError.of(topic, directory.path)
    if partition is not None and partition not in numbers:
        raise UnknownTopicError(
            f"{topic} has no partition {partition} in {directory.path}",
            remedy=f"it has {', '.join(map(str, numbers))}",
            file=directory.path,
        )
    return [
        tp for tp in directory.topic_partitions() if tp.topic == topic and partition in (None, tp.partition)
    ]


def _arguments(
    directory: LogDirectory, tp: TopicPartition, config: TopicConfig, due: bool, strategy: str | None
) -> dict[str, Any]:
    """What choosing needs beside the log and its settings."""
    return {
        "first_dirty": directory.first_dirty(*tp),
        "due": due,
        "strategy": strategy or "kafka",
        "map_bytes": directory.settings.instance.map_bytes,
    }
