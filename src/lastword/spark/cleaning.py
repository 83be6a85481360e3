"""The cleaner on Spark: the driver plans and swaps, and a task for each partition scans and rewrites.

Where it runs. `clean` runs in the caller's process. It opens the directory to append (so it holds the lock
from the plan to the last swap), rolls and syncs, and makes a plan for each partition, by the strategy of the
library. Each plan is a task on an executor, which reads segments and writes certified outputs into
`<partition>/lastword/`, below a private name (`clean_tasks`). The caller's process swaps the outputs of a
partition in while tasks of others run; many partitions are opened, rolled, synced and swapped by threads,
which wait for the drive together. Partitions that are due by their garbage index are chosen for the
drive as a whole, by `cleaner.drive.DriveCleaner` with a `SparkExecutor`. A partition that is too large for
one task is cleaned in many steps (`clean_tasks.build_sharded`).

What travels. Out: a `Plan` and a directory. Back: a `PreparedCleaning` (names, offsets, sums), or the error;
no record. The garbage index is a file of the partition; the task opens and saves it.

A partition of a log in a bucket is cleaned by one task: the task runs the library's cleaning as a transaction
and commits it (`bucket`). A giant one is divided, as in a directory: the driver commits the job, the files
that its tasks uploaded, and at the end the outputs.

When tasks fail. Only the driver publishes, so a lost task leaves files that the next cleaning removes. If the
call itself fails or is interrupted, running tasks are cancelled and their files are removed. Damage in one
partition quarantines that partition and leaves the others to be cleaned; it is raised at the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from lastword.api.cleaning import check_quarantine
from lastword.cleaner.drive import DriveCleaner, Outcome, measure
from lastword.cleaner.engine.cleaning import below
from lastword.cleaner.engine.partition import alone, chosen_plan, prepare
from lastword.cleaner.engine.report import CleanRound, PreparedCleaning
from lastword.cleaner.engine.sinks import Publisher
from lastword.cleaner.inspection import DrivePartition, dry_partitions, scan_plan
from lastword.cleaner.policy.choose import by_accounts
from lastword.cleaner.policy.plan import CleanRequest, Plan
from lastword.clock import SystemClock
from lastword.errors import (
    BusyError,
    LastwordError,
    NoPolicyError,
    NotPermittedError,
    PartialFailure,
    QuarantinedError,
    UnknownTopicError,
)
from lastword.files import DEFAULT, OVERLAP_FROM, OVERLAP_THREADS, Files, overlapped
from lastword.ingest.apply import Watch, open_to_append
from lastword.logdir.checkpoints import TopicPartition
from lastword.logdir.log_dir import LogDirectory
from lastword.partition.directory_segments import DirectorySegments
from lastword.spark import clean_tasks, remote
from lastword.spark import job as jobs
from lastword.spark.bucket import JobPlace, change, job_place, open_directory, transaction
from lastword.spark.clean_tasks import BucketClean, ChosenTask, CleanTask, PlanTask, RemoteScanTask
from lastword.spark.job import ShardedJob
from lastword.spark.options import CleanOptions
from lastword.spark.remote import LedgerParams, RemoteBuild
from lastword.spark.schema import frame_of
from lastword.spark.tasks import described, results_as_completed, run_tasks
from lastword.values import Meter, ProgressLike

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lastword.api.open_dirs import OpenDirs
    from lastword.cleaner.policy.generational import Choice, SegmentRun
    from lastword.config import TopicConfig
    from lastword.partition.log import PartitionLog
    from lastword.partition.view import PartitionView


def clean_directory(
    spark: SparkSession, path: str, topic: str | None, partition: int | None, options: CleanOptions
) -> DataFrame:
    """Clean partitions of a directory, which is open to append from the first plan to the last swap."""
    with ExitStack() as held:
        held.enter_context(described(spark, "lastword clean"))
        directory = held.enter_context(open_to_append(path))
        held.callback(Watch(directory).close)  # commits of writers are ingested meanwhile
        held.enter_context(directory.checkpoints_together())
        outcomes: list[Outcome] = []
        due, strategy, progress = options["due"], options["strategy"], options["progress"]
        chosen = _chosen(directory, topic, partition)
        accounted = {tp for tp in chosen if due and by_accounts(directory.topic_config(tp.topic), strategy)}
        tasks: list[CleanTask] = []
        giants: list[tuple[ShardedJob, int]] = []
        rest = [tp for tp in chosen if tp not in accounted]
        sizes = _sizes(directory, chosen if progress is not None else rest)
        meter = Meter("clean", progress, sum(sizes.values()))
        rest = _largest_first(rest, sizes)
        prepared = _prepared(directory, rest, options, held, tasks, giants)
        results = results_as_completed(spark, clean_tasks.build, prepared)
        published = _publish_each(directory, tasks, results, len(rest))
        with _outputs_removed(directory, tasks), closing(results), closing(published):
            for outcome in published:
                with meter.part(sizes[outcome.tp]):
                    outcomes.append(outcome)
        cleaned = {_of(task.plan) for task in tasks}.union(_of(job.plan) for job, _ in giants)
        with meter.part(sum(sizes[tp] for tp in rest if tp not in cleaned)):
            pass  # partitions that are kept as they are
        for job, now_ms in giants:
            with meter.progress_part(sizes[_of(job.plan)]) as part:
                built = clean_tasks.build_sharded(spark, JobPlace(path), job, now_ms, part)
                outcomes.append(_publish(directory, job.plan, built, job))
        rounds = [result for outcome in outcomes for result in outcome.results]
        failed = [outcome.error for outcome in outcomes if outcome.error is not None]
        if accounted:
            cleaner, others = _drive_cleaner(spark, directory, accounted, strategy)
            with meter.part(sum(sizes.get(tp, 0) for tp in accounted)):
                rounds += cleaner.clean(others)
            failed += [error for tp, error in cleaner.errors.items() if tp in accounted]
    _raise_failed(rounds, failed)
    # The results of one partition stay in their order.
    rounds.sort(key=lambda result: (result.topic, result.partition))
    return frame_of(spark, CleanRound, rounds)


def plan_directory(
    spark: SparkSession, path: str, topic: str | None, partition: int | None, options: CleanOptions
) -> DataFrame:
    """Return the plans of a directory that is only read; partitions above `task_bytes` are divided."""
    directory = LogDirectory.open(path, "r")
    due, strategy, progress = options["due"], options["strategy"], options["progress"]
    chosen = _chosen(directory, topic, partition)
    accounted = {tp for tp in chosen if due and by_accounts(directory.topic_config(tp.topic), strategy)}
    plans: dict[TopicPartition, Plan] = {}
    rest = [tp for tp in chosen if tp not in accounted]
    sizes = _sizes(directory, chosen if progress is not None else rest)
    meter = Meter("plan", progress, sum(sizes.values()))
    tasks, giants = [], []
    for tp in _largest_first(rest, sizes):
        config = directory.topic_config(tp.topic)
        request = CleanRequest.of(directory, tp, strategy, due=due)
        if sizes[tp] > options["task_bytes"]:
            giants.append((tp, config, request))
        else:
            tasks.append((tp, PlanTask(directory.directory(*tp), config, request, sizes[tp])))
    with described(spark, "lastword plan"):
        for number, planned in results_as_completed(spark, clean_tasks.plan, [task for _, task in tasks]):
            tp = tasks[number][0]
            with meter.part(sizes[tp]):
                plans[tp] = planned
        for tp, config, request in giants:
            with meter.progress_part(sizes[tp]) as part:
                plans[tp] = _plan_giant(spark, directory.view(*tp), config, request, options["scratch"], part)
        if accounted:
            cleaner, others = _drive_cleaner(spark, directory, accounted, strategy, dry=True)
            with meter.part(sum(sizes.get(tp, 0) for tp in accounted)):
                planned_due = cleaner.plan(others)
            plans.update((_of(plan), plan) for plan in planned_due)
            for error in cleaner.errors.values():
                raise error
    return frame_of(spark, Plan, [plans[tp] for tp in chosen])


def clean_bucket(
    spark: SparkSession,
    given: BucketClean,
    topic: str | None,
    partition: int | None,
    task_bytes: int,
    progress: ProgressLike | None,
) -> DataFrame:
    """Clean or plan each partition of a log in a bucket in a task, as a transaction of its own.

    A partition above `task_bytes` is divided, unless it is due by its garbage index.
    """
    directory = open_directory(given.path, given.storage)
    chosen = _chosen(directory, topic, partition)
    sizes = _sizes(directory, chosen)
    tasks = [
        replace(given, topic=tp.topic, partition=tp.partition, size_bytes=sizes[tp])
        for tp in _largest_first(chosen, sizes)
    ]
    giants = []
    for task in tasks:
        config = directory.topic_config(task.topic)
        if task.size_bytes > task_bytes and not (given.due and by_accounts(config, given.strategy)):
            giants.append(task)
    small = [task for task in tasks if task not in giants]
    verb = "plan" if given.dry else "clean"
    meter = Meter(verb, progress, sum(sizes.values()))
    rows: list[Any] = []
    failed: list[LastwordError] = []
    with described(spark, f"lastword {verb}"):
        for number, (results, errors) in results_as_completed(spark, clean_tasks.clean_in_bucket, small):
            with meter.part(small[number].size_bytes):
                rows += results
            failed += errors
        for giant in giants:
            with meter.progress_part(giant.size_bytes) as part:
                results, errors = _divide_in_bucket(spark, giant, part)
            rows += results
            failed += errors
    # A partition in quarantine is skipped, unless its topic is named.
    failed = [error for error in failed if topic or not isinstance(error, QuarantinedError)]
    if failed and given.dry:
        raise failed[0]
    rows.sort(key=lambda row: (row.topic, row.partition))
    _raise_failed(rows, failed)
    return frame_of(spark, Plan if given.dry else CleanRound, rows)


def _raise_failed(done: list[Any], failed: Sequence[LastwordError]) -> None:
    note = f"{len(done)} other partitions were cleaned, {len(failed)} were not"
    PartialFailure.check(done, failed, note)


def _divide_in_bucket(
    spark: SparkSession, task: BucketClean, progress: ProgressLike | None
) -> tuple[list[Any], list[LastwordError]]:
    """Clean or plan a giant partition of a log in a bucket; return the results and the errors."""
    path, storage = task.path, task.storage
    if task.dry:
        try:
            begun = change(path, storage, partial(_begin_plan, task))
        except NotPermittedError:  # a plan in one task needs no room in the store
            ((results, errors),) = run_tasks(spark, clean_tasks.clean_in_bucket, [task])
            return results, errors
        if isinstance(begun, Plan):
            return [begun], []
        with job_place(path, storage, begun.directory) as place, _files_removed(place, begun):
            return [clean_tasks.plan_sharded(spark, place, begun, progress)], []
    if open_directory(path, storage).topic_config(task.topic).lastword_ttl_ms >= 0:
        ((_, errors),) = run_tasks(spark, clean_tasks.clean_in_bucket, [replace(task, only_expires=True)])
        if errors:
            return [], errors
    try:
        job = transaction(path, storage, partial(_begin, task))
        if job is None:
            return [], []
        with job_place(path, storage, job.directory) as place:
            built = clean_tasks.build_sharded(spark, place, job, job.plan.now_ms, progress)
            outcome = transaction(path, storage, partial(_end, place, job, built), uploads=place.uploads)
    except LastwordError as error:
        return [], [error]
    return list(outcome.results), [] if outcome.error is None else [outcome.error]


def _begin(task: BucketClean, dirs: OpenDirs) -> ShardedJob | None:
    """Begin the divided cleaning of a partition, or continue that of a killed driver; None: nothing to do."""
    directory, tp = dirs.log_dir(task.topic, task.partition), TopicPartition(task.topic, task.partition)
    log, config = directory.log(*tp), directory.topic_config(tp.topic)
    job = _unfinished(log)
    if job is not None:
        return replace(job, plan=replace(job.plan, now_ms=log.clock.now_ms()))
    plan = prepare(log, config, CleanRequest.of(directory, tp, task.strategy, due=task.due))
    if plan.action == "clean":
        return jobs.start(log.files, log.directory, log.segments, plan)
    check_quarantine(dirs, *tp)
    return None


def _begin_plan(task: BucketClean, files: Files) -> ShardedJob | Plan:
    """Begin the divided plan of a partition, or return the plan that keeps the partition."""
    directory, tp = open_directory(task.path, task.storage, files), TopicPartition(task.topic, task.partition)
    view, config = directory.view(*tp), directory.topic_config(tp.topic)
    request = CleanRequest.of(directory, tp, task.strategy, due=task.due)
    chosen = chosen_plan(view, config, request, files, directory.clock)
    if chosen.action != "clean":
        return chosen
    return jobs.start(files, view.directory, view.segments, chosen, rewrites=False)


def _end(
    place: JobPlace, job: ShardedJob, built: PreparedCleaning | LastwordError, dirs: OpenDirs
) -> Outcome:
    """Publish the outputs of a divided cleaning, in the transaction that removes its files."""
    place.check(dirs.files, job.directory)
    return _publish(dirs.log_dir(job.plan.topic, job.plan.partition), job.plan, built, job)


@contextmanager
def _files_removed(place: JobPlace, job: ShardedJob) -> Iterator[None]:
    """Remove the files of a divided plan when the block ends."""
    try:
        yield
    finally:
        with suppress(BusyError):  # another process removed them
            place.change(job.directory, lambda files: jobs.remove(files, job.directory))


class SparkExecutor:
    """The executor of a `DriveCleaner` that scans and rewrites all due partitions in Spark tasks."""

    parallel = True

    def __init__(self, spark: SparkSession, directory: LogDirectory) -> None:
        self._spark = spark
        self._directory = directory

    def scan(
        self, partitions: Sequence[DrivePartition], drive: str, now_ms: int
    ) -> Iterator[tuple[DrivePartition, LastwordError | None]]:
        """Scan the new segments of each partition in a task, the largest first."""
        tasks = []
        sizes = _sizes(self._directory, [partition.tp for partition in partitions])
        partitions = sorted(partitions, key=lambda partition: -sizes[partition.tp])
        for partition in partitions:
            log, plan = scan_plan(partition, now_ms)
            params = LedgerParams.of(partition)
            tasks.append(
                RemoteScanTask(log.directory, plan, partition.config, params, not partition.ledgers.saves)
            )
        for number, scanned in results_as_completed(self._spark, clean_tasks.scan, tasks):
            partition = partitions[number]
            if isinstance(scanned, LastwordError):
                yield partition, scanned
                continue
            remote.save(self._directory.files, tasks[number].directory, scanned.accounts)
            partition.ledgers.cached_stats[partition.tp] = scanned.stats
            yield partition, None

    def rewrite(self, runs: Sequence[tuple[DrivePartition, Sequence[SegmentRun]]]) -> Iterator[Outcome]:
        """Rewrite the runs of each partition in a task, and publish the outputs here."""
        tasks: list[CleanTask] = []
        with ExitStack() as held:
            for partition, chosen in runs:
                log = self._directory.log(*partition.tp)
                held.enter_context(alone(log.files, log.directory))
                plan = prepare(log, partition.config, partition.request())
                if plan.action != "clean":
                    yield Outcome(partition.tp)
                    continue
                params = LedgerParams.of(partition)
                tasks.append(CleanTask(log.directory, plan, partition.config, params, tuple(chosen)))
            tasks.sort(key=lambda task: -sum(run.read_bytes for run in task.runs or ()))
            held.enter_context(_outputs_removed(self._directory, tasks))
            results = held.enter_context(closing(results_as_completed(self._spark, clean_tasks.build, tasks)))
            yield from _publish_each(self._directory, tasks, results, len(tasks))

    def plan(
        self, chosen: Sequence[tuple[DrivePartition, Plan, Sequence[Choice]]]
    ) -> Iterator[tuple[DrivePartition, Plan]]:
        """Count each plan in a task."""
        tasks = [
            ChosenTask(
                self._directory.directory(*partition.tp),
                plan,
                partition.config,
                LedgerParams.of(partition),
                tuple(choices),
            )
            for partition, plan, choices in chosen
        ]
        plans = run_tasks(self._spark, clean_tasks.plan_chosen, tasks)
        yield from zip((partition for partition, _, _ in chosen), plans, strict=True)


def _drive_cleaner(
    spark: SparkSession,
    directory: LogDirectory,
    selected: Collection[TopicPartition],
    strategy: str | None,
    *,
    dry: bool = False,
) -> tuple[DriveCleaner, set[TopicPartition]]:
    """Return a cleaner of the drive, and the partitions that it may not choose.

    The space target is for all partitions that are cleaned by accounts, so the cleaner inspects all of them.
    """
    partitions = [
        DrivePartition.of(tp, directory)
        for tp in directory.topic_partitions()
        if by_accounts(directory.topic_config(tp.topic), strategy)
    ]
    cleaner = DriveCleaner(
        directory.path,
        dry_partitions(partitions) if dry else partitions,
        SparkExecutor(spark, directory),
        space_target=directory.settings.instance.lastword_space_target,
        clock=directory.clock,
    )
    return cleaner, {partition.tp for partition in partitions if partition.tp not in selected}


def _publish_each(
    directory: LogDirectory,
    tasks: Sequence[CleanTask],
    results: Iterable[tuple[int, PreparedCleaning | RemoteBuild | LastwordError]],
    partitions: int,
) -> Generator[Outcome]:
    """Publish each result as it arrives, and yield the outcomes in the order of the results.

    Publishing waits for 15 syncs, so that many partitions are published on threads. No thread runs any more
    when the generator ends. `partitions`: the most results that may arrive.
    """
    if partitions < OVERLAP_FROM:
        for number, built in results:
            yield _publish(directory, tasks[number].plan, built)
        return
    running: deque[Future[Outcome]] = deque()
    with ThreadPoolExecutor(OVERLAP_THREADS, thread_name_prefix="lastword-publish") as pool:
        try:
            for number, built in results:
                running.append(pool.submit(_publish, directory, tasks[number].plan, built))
                while running[0].done() or len(running) > 4 * OVERLAP_THREADS:
                    yield running.popleft().result()
                    if not running:
                        break
            while running:
                yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()


def _publish(
    directory: LogDirectory,
    plan: Plan,
    built: PreparedCleaning | RemoteBuild | LastwordError,
    job: ShardedJob | None = None,
) -> Outcome:
    """Publish what a task, or a job of many tasks, built; the job's files are removed."""
    tp = _of(plan)
    log = directory.log(*tp)
    results: list[CleanRound] = []
    error: LastwordError | None = None
    try:
        if isinstance(built, LastwordError):
            raise built
        for result in _published(directory, log, built, job):
            results.append(result)
    except LastwordError as raised:
        error = raised
    if job is not None:
        jobs.remove(log.files, job.directory)
    complete = error is None and all(result.complete for result in results)
    return Outcome(tp, tuple(results), error, complete)


def _published(
    directory: LogDirectory, log: PartitionLog, built: PreparedCleaning | RemoteBuild, job: ShardedJob | None
) -> Iterator[CleanRound]:
    tp, ledgers = TopicPartition(log.topic, log.partition), directory.ledgers

    record = partial(directory.set_first_dirty, *tp)
    if isinstance(built, RemoteBuild):
        ledgers.cached_stats.pop(tp, None)
        for result in remote.publish(log, built, record_first_dirty=record):
            measure(ledgers, result)
            yield result
            if not result.complete:
                return
        ledgers.cached_stats[tp] = built.after
        return
    done = () if job is None else jobs.published(log.files, job).values()
    yield Publisher(log, built.plan, record, done).publish(built)


def _plan_giant(
    spark: SparkSession,
    view: PartitionView,
    config: TopicConfig,
    request: CleanRequest,
    scratch: str | None,
    progress: ProgressLike | None,
) -> Plan:
    chosen = chosen_plan(view, config, request, DEFAULT, SystemClock())
    if chosen.action != "clean":
        return chosen
    job = jobs.start(DEFAULT, view.directory, view.segments, chosen, scratch=scratch, rewrites=False)
    try:
        return clean_tasks.plan_sharded(spark, JobPlace(view.directory), job, progress)
    finally:
        jobs.remove(DEFAULT, job.directory)


def _prepared(
    directory: LogDirectory,
    chosen: list[TopicPartition],
    options: CleanOptions,
    held: ExitStack,
    tasks: list[CleanTask],
    giants: list[tuple[ShardedJob, int]],
) -> Iterator[CleanTask]:
    """Yield a task for each partition to clean, in the given order, while earlier tasks run.

    The task is added to `tasks`; a partition that is too large for one task is added to `giants`.
    """
    due, strategy = options["due"], options["strategy"]

    def prepared(tp: TopicPartition) -> ShardedJob | Plan:
        log, config = directory.log(*tp), directory.topic_config(tp.topic)
        return _unfinished(log) or prepare(log, config, CleanRequest.of(directory, tp, strategy, due=due))

    count = OVERLAP_FROM if len(chosen) >= OVERLAP_FROM else 1
    for first in range(0, len(chosen), count):
        together = chosen[first : first + count]
        for tp in together:
            held.enter_context(alone(directory.files, directory.directory(*tp)))
        for tp, plan in zip(together, overlapped(prepared, together), strict=True):
            log, config = directory.log(*tp), directory.topic_config(tp.topic)
            if isinstance(plan, ShardedJob):
                giants.append((plan, log.clock.now_ms()))
                continue
            if plan.action != "clean":
                continue
            if sum(segment.size for segment in below(log.segments, plan.limit)) > options["task_bytes"]:
                job = jobs.start(log.files, log.directory, log.segments, plan, scratch=options["scratch"])
                giants.append((job, plan.now_ms))
                continue
            by_index = by_accounts(config, strategy)
            params = LedgerParams.of(DrivePartition.of(tp, directory)) if by_index else None
            tasks.append(CleanTask(log.directory, plan, config, params))
            yield tasks[-1]


@contextmanager
def _outputs_removed(directory: LogDirectory, tasks: Sequence[CleanTask]) -> Iterator[None]:
    """Remove the files that tasks wrote and nothing published, if the block fails or is interrupted.

    No task may run any more when the block ends.
    """
    try:
        yield
    except BaseException:
        for task in tasks:
            DirectorySegments(directory.files, task.directory).discard_outputs()
        raise


def _of(plan: Plan) -> TopicPartition:
    return TopicPartition(plan.topic, plan.partition)


def _sizes(directory: LogDirectory, chosen: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the bytes of each partition's segments."""
    if directory.mode == "a":
        directory.logs(chosen)  # many are opened at the same time
    return {tp: directory.view(*tp).segment_set.size for tp in chosen}


def _largest_first(
    chosen: Sequence[TopicPartition], sizes: dict[TopicPartition, int]
) -> list[TopicPartition]:
    """Order partitions by size: Spark starts tasks in order, so the last tasks are short."""
    return sorted(chosen, key=lambda tp: -sizes[tp])


def _unfinished(log: PartitionLog) -> ShardedJob | None:
    """Return a divided cleaning whose driver died, ready to continue; None without one."""
    job = jobs.unfinished(log.files, log.directory, log.clock)
    if job is not None:
        log.sync()
        jobs.go_on(log.files, job)
    return job


def _chosen(directory: LogDirectory, topic: str | None, partition: int | None) -> list[TopicPartition]:
    """Return the requested partitions; without a topic, the partitions of all topics that compact."""
    if topic is None:
        compacting = {name for name in directory.topics() if directory.topic_config(name).compacts}
        return [tp for tp in directory.topic_partitions() if tp.topic in compacting]
    numbers = directory.partitions(topic)
    if directory.topic_config(topic).policy is None:
        raise NoPolicyError.of(topic, directory.path, directory.topic_config(topic).unread)
    if partition is not None and partition not in numbers:
        raise UnknownTopicError(
            f"{topic} has no partition {partition} in {directory.path}",
            remedy=f"it has {', '.join(map(str, numbers))}",
            file=directory.path,
        )
    return [
        tp for tp in directory.topic_partitions() if tp.topic == topic and partition in (None, tp.partition)
    ]
