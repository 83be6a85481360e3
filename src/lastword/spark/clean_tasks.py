"""The Spark tasks of `clean` and `plan`: one for each partition, or many for a giant partition.

A task of a whole partition works on a view and without a lock. A fault of the data is returned as a result,
and other partitions are cleaned. Any other error fails the task, so that Spark starts it again.

A giant partition is cleaned in the steps of `sharded.py`, in order, each a Spark job.

Where it runs. `build_sharded` runs in the process that has the log open. It starts a Spark job for each step
and waits. Each task does one unit, shard or group. Large data passes through files that all tasks see; in a
bucket, through objects that the driver commits (`bucket.JobPlace`).

What travels. The name of the job's directory and a number go to a task; nothing, or the error, comes back,
and in a bucket the names of the objects. No record and no key travels.

When tasks fail. The file of a step gets its name only when it is complete. So a dead attempt leaves no
result, the next attempt starts again, and two attempts at the same time write the same file. When the driver
dies, the next `clean` of the partition finds the job and runs the remaining steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from lastword.api import cleaning
from lastword.cleaner.drive import planned
from lastword.cleaner.engine.cleaning import CleanContext, clean
from lastword.cleaner.engine.liveness import FullScan
from lastword.cleaner.engine.partition import plan_partition
from lastword.cleaner.engine.report import CleanRound, PreparedCleaning
from lastword.cleaner.engine.sinks import Collector
from lastword.cleaner.policy.plan import CleanRequest, Plan
from lastword.clock import SystemClock
from lastword.errors import LastwordError, PartialFailure, StorageError
from lastword.files import DEFAULT, Files
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.view import PartitionView
from lastword.spark import job as jobs
from lastword.spark import remote, sharded
from lastword.spark.bootstrap import need_directory
from lastword.spark.bucket import JobPlace, open_logs, transaction
from lastword.spark.job import ShardedJob
from lastword.spark.remote import LedgerParams, RemoteBuild, RemoteScan
from lastword.spark.tasks import described, repeated, results_as_completed
from lastword.values import Progress, ProgressLike

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lastword.api.open_dirs import OpenDirs
    from lastword.bucket.manifest import Entry
    from lastword.cleaner.policy.generational import Choice, SegmentRun
    from lastword.config import TopicConfig
    from lastword.spark.options import StorageOptions

_T = TypeVar("_T")

_REPORT_EVERY_S = 0.5
COMMIT_EVERY_S = 30.0
"""In a bucket the results of a step's tasks are committed after this time, and at the end of the step."""

# ---------------------------------------------------------------- one task for a partition


@dataclass(frozen=True, slots=True)
class _OfPlan:
    """The plan of a partition, and its settings."""

    directory: str
    plan: Plan
    config: TopicConfig

    @property
    def size_bytes(self) -> int:
        """Return the most that the task reads."""
        return self.plan.total_bytes


@dataclass(frozen=True, slots=True)
class CleanTask(_OfPlan):
    """The input of `build`: one cleaning of a partition, or with `params` one for each of `runs`.

    `runs` None: one cleaning of all garbage.
    """

    params: LedgerParams | None = None
    runs: tuple[SegmentRun, ...] | None = None

    @property
    def size_bytes(self) -> int:
        """Return the most that the task reads."""
        return self.plan.total_bytes if self.runs is None else sum(run.read_bytes for run in self.runs)


@dataclass(frozen=True, slots=True)
class RemoteScanTask(_OfPlan):
    """The input of `scan`: a partition with new records. `dry`: nothing is saved."""

    params: LedgerParams
    dry: bool


@dataclass(frozen=True, slots=True)
class ChosenTask(_OfPlan):
    """The input of `plan_chosen`: the choices for a drive that concern one of its partitions."""

    params: LedgerParams
    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True)
class PlanTask:
    """The input of `plan`: one partition of `size_bytes`."""

    directory: str
    config: TopicConfig
    request: CleanRequest
    size_bytes: int


@dataclass(frozen=True, slots=True)
class BucketClean:
    """The input of `clean_in_bucket`: one partition, and the arguments of the library's `clean` or `plan`.

    `only_expires`: only values are expired, because many tasks clean the partition after that.
    """

    path: str
    storage: StorageOptions
    due: bool
    strategy: str | None
    dry: bool = False
    only_expires: bool = False
    topic: str = ""
    partition: int = -1
    size_bytes: int = 0


def clean_in_bucket(task: BucketClean) -> tuple[list[Any], list[LastwordError]]:
    """Clean or plan a partition of a log in a bucket, and commit; return the results and the errors."""

    def clean_one(dirs: OpenDirs) -> list[CleanRound]:
        if task.only_expires:
            cleaning.expire_old_values(dirs, task.topic, task.partition)
            return []
        return cleaning.clean(
            dirs, task.topic, task.partition, due=task.due, strategy=task.strategy, progress=None, stop=None
        )

    def done() -> list[Any]:
        if not task.dry:
            return transaction(task.path, task.storage, clean_one)
        with open_logs(task.path, task.storage) as logs:
            plans = logs.plan(task.topic, task.partition, due=task.due, strategy=task.strategy)
            return [plan for plan in plans if isinstance(plan, Plan) and plan.action != "delete"]

    try:
        return done(), []
    except PartialFailure as failure:
        return list(failure.results), list(failure.errors)
    except StorageError:
        raise
    except LastwordError as error:
        return [], [error]


def build(task: CleanTask) -> PreparedCleaning | RemoteBuild | LastwordError:
    """Rewrite the segments of a partition; publish nothing."""

    def built() -> PreparedCleaning | RemoteBuild:
        view, context = _view(task.directory), _context(dry=False)
        if task.params is None:
            return clean(view, task.plan, FullScan(), Collector(task.plan), context)
        return remote.build(view, task.config, task.plan, task.params, task.runs, context)

    return return_faults(built)


def scan(task: RemoteScanTask) -> RemoteScan | LastwordError:
    """Scan the new records of a partition."""

    def scanned() -> RemoteScan:
        view = _view(task.directory)
        return remote.scan(view, task.config, task.plan, task.params, _context(dry=task.dry))

    return return_faults(scanned)


def plan(task: PlanTask) -> Plan:
    """Plan the cleaning of a partition and count its bytes."""
    return plan_partition(_view(task.directory), task.config, task.request, _context(dry=True))


def plan_chosen(task: ChosenTask) -> Plan:
    """Plan the chosen runs of a partition and count their bytes."""
    view, context = _view(task.directory), _context(dry=True)
    ledger, _ = remote.up_to_date(view, task.plan, task.params, context)
    return planned(view, task.config, task.plan, ledger, task.choices, context)


def _view(directory: str) -> PartitionView:
    return PartitionView.load(DirectorySegments(DEFAULT, directory))


def _context(*, dry: bool) -> CleanContext:
    return CleanContext(DEFAULT, SystemClock(), dry=dry)


def return_faults(work: Callable[[], _T]) -> _T | LastwordError:
    """Return a fault of the data as the result. Any other error fails the task, which Spark repeats."""
    try:
        return work()
    except StorageError:
        raise
    except LastwordError as error:
        return error


# ---------------------------------------------------------------- many tasks for a giant partition


def build_sharded(
    spark: SparkSession, place: JobPlace, job: ShardedJob, now_ms: int, progress: ProgressLike | None = None
) -> PreparedCleaning | LastwordError:
    """Run the remaining steps of a giant partition; return the outputs, or the first fault of the data."""
    clock = SystemClock()
    started = clock.monotonic()
    with _reporting(place, job, progress):
        fault = _map(spark, place, job)
        seconds = clock.monotonic() - started
        if fault is None:
            fault = _rewrite(spark, place, job, now_ms)
    return fault or sharded.prepared(place.files(), job, seconds)


def plan_sharded(
    spark: SparkSession, place: JobPlace, job: ShardedJob, progress: ProgressLike | None = None
) -> Plan:
    """Run the steps of `build_sharded`, but count bytes and write no segments. Return the exact plan."""
    with _reporting(place, job, progress):
        fault = _map(spark, place, job) or _rewrite(spark, place, job, job.plan.now_ms)
    if fault is not None:
        raise fault
    return sharded.planned(place.files(), job)


def _map(spark: SparkSession, place: JobPlace, job: ShardedJob) -> LastwordError | None:
    while left := jobs.units_left(place.files(), job):
        results = _run(spark, place, "extract", sharded.extract, job, left)
        fault = _first_fault(results)
        offsets = [result.offset for result in results if isinstance(result, sharded.TransactionMet)]
        if fault is None and offsets:
            fault = _first_fault(
                _run(spark, place, "transactions", sharded.read_transactions, job, [min(offsets)])
            )
        if fault is not None:
            return fault
    left = jobs.shards_left(place.files(), job)
    fault = _first_fault(_run(spark, place, "resolve", sharded.resolve_shard, job, left))
    if fault is None:
        left = jobs.marks_left(place.files(), job)
        fault = _first_fault(_run(spark, place, "mark", sharded.mark_unit, job, left))
    if fault is None:
        place.change(job.directory, lambda files: sharded.merge(files, job))
    return fault


def _rewrite(spark: SparkSession, place: JobPlace, job: ShardedJob, now_ms: int) -> LastwordError | None:
    left = jobs.groups_left(place.files(), job)
    step = partial(sharded.rewrite_group, now_ms=now_ms, clock=SystemClock())
    return _first_fault(_run(spark, place, "rewrite", step, job, left))


def _run(
    spark: SparkSession,
    place: JobPlace,
    name: str,
    step: Callable[..., Any],
    job: ShardedJob,
    numbers: Sequence[int],
) -> list[Any]:
    """Run a step for some of its numbers, and commit the files that its tasks uploaded."""
    clock, task = SystemClock(), partial(_run_step, place, step, job.directory)
    results: dict[int, Any] = {}
    uploaded: dict[str, Entry] = {}
    committed = clock.monotonic()
    with (
        described(spark, f"{job.plan.topic}-{job.plan.partition} {name}"),
        closing(results_as_completed(spark, task, numbers)) as completed,
    ):
        for number, (result, entries) in completed:
            results[number] = result
            uploaded |= entries
            if clock.monotonic() - committed > COMMIT_EVERY_S:
                place.adopt(job.directory, uploaded)
                uploaded, committed = {}, clock.monotonic()
    place.adopt(job.directory, uploaded)
    return [results[number] for number in range(len(numbers))]


def _first_fault(results: Sequence[Any]) -> LastwordError | None:
    return next((result for result in results if isinstance(result, LastwordError)), None)


# ---------------------------------------------------------------- a step, on an executor


def _run_step(
    place: JobPlace, step: Callable[..., Any], directory: str, number: int
) -> tuple[Any, dict[str, Entry]]:
    """Run a step for a number; return its result or its fault, and the files that were uploaded."""

    def stepped(files: Files) -> Any:
        need_directory(directory, files)
        return return_faults(partial(step, files, directory, number))

    return place.in_task(stepped)


# ---------------------------------------------------------------- the progress of a giant partition


@contextmanager
def _reporting(place: JobPlace, job: ShardedJob, progress: ProgressLike | None) -> Iterator[None]:
    """Report the progress of a job, from its files, while its steps run."""
    if progress is None:
        yield
        return
    clock = SystemClock()
    started = clock.monotonic()
    verb = "clean" if job.rewrites else "plan"

    def report() -> None:
        done, total = jobs.done_bytes(place.files(), job)
        progress(Progress.at(verb, done, total, clock.monotonic() - started))

    with repeated(report, _REPORT_EVERY_S, "lastword-progress"):
        yield
    report()
