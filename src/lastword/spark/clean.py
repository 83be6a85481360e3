"""`clean` and `plan`. `cleaning.py` does the work, and needs PySpark."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Unpack

from lastword.objects import is_url
from lastword.spark.bootstrap import shared_log
from lastword.spark.options import CLEAN_DEFAULTS, CleanOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def clean(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topic: str | None = None,
    partition: int | None = None,
    **options: Unpack[CleanOptions],
) -> DataFrame:
    """Clean partitions with tasks, at the call, and return a local row for each cleaning.

    Each task takes `log.cleaner.dedupe.buffer.size` of memory for its map.

    Args:
        spark: The session.
        path: A log directory that this process and all executors see under this name, or the URL of a log in
            a bucket.
        topic: None: every topic whose cleanup.policy is known to compact.
        partition: None: all partitions of the topic.
        due: Clean only what the settings make due, as `LogDir.clean(due=True)`, in as many cleanings as that
            takes. Otherwise remove all garbage that may be removed.
        strategy: Chooses the segments; None: the setting lastword.strategy. `generational` starts from the
            saved garbage index and saves it for the next cleaning, by Spark or by the library.
        scratch: A directory that all executors see, for the files of a divided cleaning; None: the directory
            of the partition. The files take the size of all keys and 5 bytes for each record. In a bucket
            it has no effect: the files are in the bucket.
        task_bytes: A partition with more bytes than this to clean is divided over tasks and cleaned as a
            whole. A partition that is due by its garbage index is never divided.
        progress: Called with a `Progress` as partitions, and the steps of a divided cleaning, are done. The
            next call continues a killed divided cleaning, for a day.
        storage_options: Options of the store of a log in a bucket; without them, those of the environment.

    Returns:
        The columns of `CleanRound`.

    Raises:
        LogDirLockedError: Another process has the directory open to append.
        UnknownTopicError: There is no such topic or partition.
        NoPolicyError: The named topic has no known cleanup.policy.
        PartialFailure: Some partitions failed; the others were cleaned.
    """
    return _run(spark, path, topic, partition, options, dry=False)


def plan(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topic: str | None = None,
    partition: int | None = None,
    **options: Unpack[CleanOptions],
) -> DataFrame:
    """Return the plan of `clean` for each partition, exact to the byte, with its reasons.

    This takes no lock and changes no segment. Each task scans its partition, or opens its garbage index and
    scans new records, and counts the bytes of the rewrite. A partition that `clean` would divide is divided
    here too, and has scratch files until the plan is ready.

    Args:
        spark: The session.
        path: As in `clean`.
        topic: As in `clean`.
        partition: As in `clean`.
        **options: As in `clean`.

    Returns:
        The columns of `Plan`.

    Raises:
        UnknownTopicError: There is no such topic or partition.
        NoPolicyError: The named topic has no known cleanup.policy.
        DataError: A partition is damaged. No plan is returned.
    """
    return _run(spark, path, topic, partition, options, dry=True)


def _run(
    spark: SparkSession,
    path: str | os.PathLike[str],
    topic: str | None,
    partition: int | None,
    options: CleanOptions,
    *,
    dry: bool,
) -> DataFrame:
    """Clean or plan, in a directory or in a bucket."""
    unknown = options.keys() - CLEAN_DEFAULTS.keys()
    if unknown:
        raise TypeError(f"unexpected keyword argument {min(unknown)!r}; known: {', '.join(CLEAN_DEFAULTS)}")
    given = CLEAN_DEFAULTS | options
    path, storage = shared_log(path, given["storage_options"])
    from lastword.spark import cleaning
    from lastword.spark.clean_tasks import BucketClean

    if is_url(path):
        task = BucketClean(path, storage, given["due"], given["strategy"], dry)
        return cleaning.clean_bucket(spark, task, topic, partition, given["task_bytes"], given["progress"])
    run = cleaning.plan_directory if dry else cleaning.clean_directory
    return run(spark, path, topic, partition, given)
