"""One giant partition on many executors: the steps of `cleaner.distributed.sharded` as Spark jobs, in order.

Where it runs. `build` runs in the process that has the log open. It starts a Spark job for each step and
waits. Each task does one unit, shard or group. Large data passes through files that all tasks see.

What travels. The name of the job's directory and a number go to a task; nothing, or the error, comes back. No
record and no key travels.

When tasks fail. The file of a step gets its name only when it is complete. So a dead attempt leaves no
result, the next attempt starts again, and two attempts at the same time write the same file. When the driver
dies, the next `clean` of the partition finds the job and runs the remaining steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from lastword.errors import LastwordError
from lastword.spark.clean_tasks import return_faults

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lastword.cleaner.distributed.job import ShardedJob
    from lastword.cleaner.engine.report import PreparedCleaning
    from lastword.cleaner.policy.plan import Plan
    from lastword.values import ProgressLike

TASK_BYTES = 1 << 30
"""A partition with more bytes than this below its limit is divided over tasks. Up to this size, one task is
fast enough, and it needs no scratch files.
"""

_REPORT_EVERY_S = 0.5


def build(
    spark: SparkSession, job: ShardedJob, now_ms: int, progress: ProgressLike | None = None
) -> PreparedCleaning | LastwordError:
    """Run the remaining steps and return the outputs, or the first fault of the data."""
    from lastword.cleaner.distributed import sharded
    from lastword.clock import SystemClock
    from lastword.files import DEFAULT

    clock = SystemClock()
    started = clock.monotonic()
    with _reporting(job, progress):
        fault = _map(spark, job)
        seconds = clock.monotonic() - started
        if fault is None:
            fault = _rewrite(spark, job, now_ms)
    return fault or sharded.prepared(DEFAULT, job, seconds)


def plan(spark: SparkSession, job: ShardedJob, progress: ProgressLike | None = None) -> Plan:
    """Run the same steps, but count bytes instead of writing segments. Return the exact plan."""
    from lastword.cleaner.distributed import sharded
    from lastword.files import DEFAULT

    with _reporting(job, progress):
        fault = _map(spark, job) or _rewrite(spark, job, job.plan.now_ms)
    if fault is not None:
        raise fault
    return sharded.planned(DEFAULT, job)


def _map(spark: SparkSession, job: ShardedJob) -> LastwordError | None:
    from lastword.cleaner.distributed import job as jobs
    from lastword.cleaner.distributed import sharded
    from lastword.files import DEFAULT

    while left := jobs.units_left(DEFAULT, job):
        results = _run(spark, _extract, job, left)
        fault = _first_fault(results)
        offsets = [result.offset for result in results if isinstance(result, sharded.TransactionMet)]
        if fault is None and offsets:
            fault = _first_fault(_run(spark, _read_transactions, job, [min(offsets)]))
        if fault is not None:
            return fault
    fault = _first_fault(_run(spark, _resolve, job, jobs.shards_left(DEFAULT, job)))
    if fault is None:
        sharded.merge(DEFAULT, job)
    return fault


def _rewrite(spark: SparkSession, job: ShardedJob, now_ms: int) -> LastwordError | None:
    from lastword.cleaner.distributed import job as jobs
    from lastword.files import DEFAULT

    left = jobs.groups_left(DEFAULT, job)
    return _first_fault(_run(spark, partial(_rewrite_one, now_ms), job, left))


def _run(spark: SparkSession, step: Callable[..., Any], job: ShardedJob, numbers: Sequence[int]) -> list[Any]:
    from lastword.spark.tasks import run_tasks

    return run_tasks(spark, partial(_run_step, step, job.directory), numbers)


def _first_fault(results: Sequence[Any]) -> LastwordError | None:
    return next((result for result in results if isinstance(result, LastwordError)), None)


# ---------------------------------------------------------------- on an executor


def _run_step(step: Callable[..., Any], directory: str, number: int) -> Any:
    from lastword.spark.bootstrap import need_directory

    need_directory(directory)
    return return_faults(partial(step, directory, number))


def _extract(directory: str, number: int) -> Any:
    from lastword.cleaner.distributed import sharded
    from lastword.files import DEFAULT

    return sharded.extract(DEFAULT, directory, number)


def _read_transactions(directory: str, first_offset: int) -> None:
    from lastword.cleaner.distributed import sharded
    from lastword.files import DEFAULT

    sharded.read_transactions(DEFAULT, directory, first_offset)


def _resolve(directory: str, number: int) -> None:
    from lastword.cleaner.distributed import sharded
    from lastword.files import DEFAULT

    sharded.resolve_shard(DEFAULT, directory, number)


def _rewrite_one(now_ms: int, directory: str, number: int) -> None:
    from lastword.cleaner.distributed import sharded
    from lastword.clock import SystemClock
    from lastword.files import DEFAULT

    sharded.rewrite_group(DEFAULT, directory, number, now_ms, SystemClock())


# ---------------------------------------------------------------- progress


@contextmanager
def _reporting(job: ShardedJob, progress: ProgressLike | None) -> Iterator[None]:
    """Report the progress of a job, from its files, while its steps run."""
    if progress is None:
        yield
        return
    from lastword.cleaner.distributed import job as jobs
    from lastword.clock import SystemClock
    from lastword.files import DEFAULT
    from lastword.values import Progress

    clock, ended = SystemClock(), threading.Event()
    started = clock.monotonic()
    verb = "clean" if job.rewrites else "plan"

    def report() -> None:
        done, total = jobs.done_bytes(DEFAULT, job)
        progress(Progress.at(verb, done, total, clock.monotonic() - started))

    def keep_reporting() -> None:
        while not ended.wait(_REPORT_EVERY_S):
            report()

    thread = threading.Thread(target=keep_reporting, name="lastword-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    report()
