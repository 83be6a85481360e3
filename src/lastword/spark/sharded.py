"""One giant partition on many executors: the steps of `cleaner.sharded` as Spark jobs, one after another.

Where it runs. `build` in the process that holds the log open: it starts a job per step and waits. Each task
does one unit, shard or group; all that is large passes through files that all tasks see.

What travels. The name of the job's directory and a number; back comes nothing, or the error. No record, no
key.

When tasks fail. A step's file has its name only when it is whole, so an attempt that died left nothing that
counts and a second one starts anew; two at once write the same. When the driver dies, the next `clean` of the
partition finds the job and does what is left.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from lastword.errors import LastwordError, StorageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lastword.cleaner.distributed.job import ShardedJob
    from lastword.cleaner.engine.report import PreparedCleaning
    from lastword.cleaner.policy.plan import Plan
    from lastword.values import ProgressLike

TASK_BYTES = 1 << 30
"""A partition with more bytes than this below its limit is worked on by many tasks. Up to there one task,
which needs no scratch files, is fast enough."""

_TOLD_EVERY_S = 0.5


def build(
    spark: SparkSession, job: ShardedJob, now_ms: int, progress: ProgressLike | None = None
) -> PreparedCleaning | LastwordError:
    """Every step that is left, and what was built; or the first fault of the data."""
    from lastword.cleaner.distributed import sharded
    from lastword.clock import SystemClock
    from lastword.files import DEFAULT

    clock = SystemClock()
    started = clock.monotonic()
    with _telling(job, progress):
        fault = _map(spark, job)
        seconds = clock.monotonic() - started
        if fault is None:
            fault = _rewrite(spark, job, now_ms)
    return fault or sharded.prepared(DEFAULT, job, seconds)


def plan(spark: SparkSession, job: ShardedJob, progress: ProgressLike | None = None) -> Plan:
    """The same steps, written into nothing: the exact plan."""
    from lastword.cleaner.distributed import sharded
    from lastword.files import DEFAULT

    with _telling(job, progress):
        fault = _map(spark, job) or _rewrite(spark, job, job.plan.now_ms)
    if fault is not None:
        raise fault
    return sharded.planned(DEFAULT, job)


def _map(spark: SparkSession, job: ShardedJob) -> LastwordError | None:
    from lastword.cleaner.distributed import job as jobs
    from lastword.cleaner.distributed import sharded
    from lastword.files import DEFAULT

    while left := jobs.units_left(DEFAULT, job):
        answers = _run(spark, _extract, job, left)
        fault = _first_fault(answers)
        met = [answer.offset for answer in answers if isinstance(answer, sharded.TransactionMet)]
        if fault is None and met:
            fault = _first_fault(_run(spark, _read_transactions, job, [min(met)]))
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

    return run_tasks(spark, partial(_faults_kept, step, job.directory), numbers)


def _first_fault(answers: Sequence[Any]) -> LastwordError | None:
    return next((answer for answer in answers if isinstance(answer, LastwordError)), None)


# ---------------------------------------------------------------- on an executor


def _faults_kept(step: Callable[..., Any], directory: str, number: int) -> Any:
    """A fault of the data is an answer; anything else fails the task, so that Spark tries it again."""
    from lastword.spark.bootstrap import need_directory

    need_directory(directory)
    try:
        return step(directory, number)
    except StorageError:
        raise
    except LastwordError as error:
        return error


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
def _telling(job: ShardedJob, progress: ProgressLike | None) -> Iterator[None]:
    """Tell how far a job is, from the files that are there, while its steps run."""
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

    def tell() -> None:
        done, total = jobs.done_bytes(DEFAULT, job)
        progress(Progress.at(verb, done, total, clock.monotonic() - started))

    def keep_telling() -> None:
        while not ended.wait(_TOLD_EVERY_S):
            tell()

    thread = threading.Thread(target=keep_telling, name="lastword-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    tell()
