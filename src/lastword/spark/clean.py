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
from lastword.spark.sharded import TASK_BYTES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lastword.cleaner.built import BuiltGroup, BuiltRound
    from lastword.cleaner.choose import Plan
    from lastword.cleaner.job import Job
    from lastword.cleaner.report import CleanRound
    from lastword.config import TopicConfig
    from lastword.logdir.checkpoints import TopicPartition
    from lastword.logdir.log_dir import LogDirectory
    from lastword.partition.log import PartitionLog
    from lastword.partition.view import PartitionView
    from lastword.values import ProgressLike


def clean(
    spark: SparkSession,
    path: str,
    topic: str | None = None,
    partition: int | None = None,
    *,
    due: bool = False,
    strategy: str | None = None,
    scratch: str | None = None,
    task_bytes: int = TASK_BYTES,
    progress: ProgressLike | None = None,
) -> DataFrame:
    """Clean now, and return one row for each round: the columns of `CleanRound`.

    path       a log directory that this process and all executors see under this name
    topic      None: every topic whose cleanup.policy is known to compact
    partition  None: all of the topic's
    due        only what the scheduler would choose; otherwise all garbage goes that may go
    strategy   None is `kafka` here, whatever the topic's own: executors have no garbage accounts, so a round
               takes the whole log, and is due by the dirty ratio
    scratch    a directory that all executors see, for the files of a round that is shared out; None: the
               partition's own. A round needs there a third to two thirds of the partition's bytes
    task_bytes a partition with more bytes than this to clean is shared out over tasks (`cleaner.sharded`)
    progress   hears how far such a round is

    Runs at the call, once; the rows are local. Each task takes `log.cleaner.dedupe.buffer.size` of memory
    for its map. A shared-out round that was killed is gone on with by the next call, for a day.
    LogDirLockedError, UnknownTopicError, NoPolicyError (of a topic that was named); the first error of a
    partition is raised when the others are done.
    """
    from lastword.spark.session import need_pyspark

    need_pyspark()
    from lastword.spark.shipping import shared_path

    path = shared_path(path)
    from lastword.cleaner import cleaner
    from lastword.cleaner import job as jobs
    from lastword.cleaner.report import CleanRound
    from lastword.logdir.inbox import Watch
    from lastword.logdir.log_dir import LogDirectory
    from lastword.spark import sharded as distributed
    from lastword.spark.frames import frame_of

    rounds: list[CleanRound] = []
    failed: list[LastwordError] = []
    with ExitStack() as held:
        directory = held.enter_context(LogDirectory.open(path, "a"))
        held.callback(Watch(directory).close)  # writers go on while this holds the lock
        tasks: list[RoundTask] = []
        giants: list[tuple[Job, int]] = []
        for tp in _chosen(directory, topic, partition):
            log, config = directory.log(*tp), directory.topic_config(tp.topic)
            held.enter_context(cleaner.alone(log.directory))
            job = _left_behind(log)
            if job is not None:
                giants.append((job, log.clock.now_ms()))
                continue
            arguments = _arguments(directory, tp, config, due, strategy)
            plan = cleaner.prepare(log, config, **arguments)
            if plan.action != "clean":
                continue
            if sum(one.size for one in cleaner.below(log.segments, plan.limit)) > task_bytes:
                job = jobs.start(log.files, log.directory, log.segments, plan, scratch=scratch)
                giants.append((job, plan.now_ms))
            else:
                tasks.append(RoundTask(log.directory, plan))
        for task, built in zip(tasks, build_rounds(spark, tasks), strict=True):
            _close(directory, task.plan, built, rounds, failed)
        for job, now_ms in giants:
            _close(directory, job.plan, distributed.build(spark, job, now_ms, progress), rounds, failed, job)
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
    scratch: str | None = None,
    task_bytes: int = TASK_BYTES,
    progress: ProgressLike | None = None,
) -> DataFrame:
    """What `clean` would do now, to the byte, and why: one row for each partition, the columns of `Plan`.

    Takes no lock and changes no segment: each task resolves its partition and rewrites it into nothing. One
    that `clean` would share out over tasks is shared out here too, with scratch files meanwhile.
    """
    from lastword.spark.session import need_pyspark

    need_pyspark()
    from lastword.spark.shipping import shared_path

    path = shared_path(path)
    from lastword.cleaner.choose import Plan
    from lastword.logdir.log_dir import LogDirectory
    from lastword.spark.frames import frame_of

    directory = LogDirectory.open(path, "r")
    chosen = _chosen(directory, topic, partition)
    found: dict[TopicPartition, Plan] = {}
    tasks, sizes, giants = {}, [], []
    for tp in chosen:
        config, view = directory.topic_config(tp.topic), directory.view(*tp)
        arguments = _arguments(directory, tp, config, due, strategy)
        size = sum(segment.size for segment in view.segments)
        if size > task_bytes:
            giants.append((tp, view, config, arguments))
        else:
            tasks[tp] = PlanTask(directory.directory(*tp), config, arguments)
            sizes.append(size)
    found.update(zip(tasks, _largest_first(spark, _plan_one, list(tasks.values()), sizes), strict=True))
    for tp, view, config, arguments in giants:
        found[tp] = _plan_giant(spark, view, config, arguments, scratch, progress)
    return frame_of(spark, Plan, [found[tp] for tp in chosen])


def _plan_giant(
    spark: SparkSession,
    view: PartitionView,
    config: TopicConfig,
    arguments: dict[str, Any],
    scratch: str | None,
    progress: ProgressLike | None,
) -> Plan:
    from lastword.cleaner import cleaner
    from lastword.cleaner import job as jobs
    from lastword.clock import SystemClock
    from lastword.files import DEFAULT
    from lastword.spark import sharded as distributed

    chosen = cleaner.chosen_plan(view, config, DEFAULT, SystemClock(), **arguments)
    if chosen.action != "clean":
        return chosen
    job = jobs.start(DEFAULT, view.directory, view.segments, chosen, scratch=scratch, rewrites=False)
    try:
        return distributed.plan(spark, job, progress)
    finally:
        jobs.remove(DEFAULT, job.directory)


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


def _left_behind(log: PartitionLog) -> Job | None:
    """A shared-out round whose driver died, made ready to go on."""
    from lastword.cleaner import job as jobs

    job = jobs.unfinished(log.files, log.directory, log.clock)
    if job is not None:
        log.sync()
        jobs.go_on(log.files, job)
    return job


def _close(
    directory: LogDirectory,
    plan: Plan,
    built: BuiltRound | LastwordError,
    rounds: list[CleanRound],
    failed: list[LastwordError],
    job: Job | None = None,
) -> None:
    """Publish what was built, and take the round or its error down."""
    from lastword.cleaner import cleaner
    from lastword.cleaner import job as jobs

    log = directory.log(plan.topic, plan.partition)
    done = set() if job is None else set(jobs.published(log.files, job).values())

    def swap(log: PartitionLog, one: BuiltGroup) -> None:
        if one.output.base_offset not in done:
            cleaner.swap_group(log, one)

    try:
        if isinstance(built, LastwordError):
            raise built
        found = cleaner.publish(
            log,
            built,
            record_first_dirty=lambda offset: directory.set_first_dirty(plan.topic, plan.partition, offset),
            swap=swap,
        )
        rounds.append(found)
    except LastwordError as error:
        failed.append(error)
    if job is not None:
        jobs.remove(log.files, job.directory)


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
