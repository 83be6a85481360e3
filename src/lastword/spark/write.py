"""The batch sink: rows to staged batches to offsets.

Where it runs. `writer(...)` once, in a Python process beside the driver: it checks the frame and makes the
topic if it is new. `write()` once for each attempt of each task, in a worker: it packs rows into record
batches and stages them (`staging.py`). `commit()` once, beside the driver: it takes the directory's lock
and appends what was staged; `abort()` instead, if the job failed.

What travels. The writer to the tasks; from each task a `StagedMessage` with the files of that attempt.

Order. Rows keep their order within a task, and tasks are appended in the order of Spark's partitions. So a
frame that is sorted as a whole (`orderBy`, or `repartitionByRange` and `sortWithinPartitions`) lands sorted
in every partition of the log, written by many tasks; of a frame that is not sorted, only rows of one Spark
partition keep their order.

When tasks fail. A retry or a speculative copy stages files of its own, and only the files that a message
names are appended. Nothing is in the log before `commit`; an abort leaves a log as it was. A commit that
was stopped half-way has appended some partitions and not others; made again for the same job it adds only
the rest.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from lastword.errors import LogDirLockedError, SparkOptionError
from lastword.files import DEFAULT, Files
from lastword.logdir.log_dir import LogDirectory
from lastword.spark import staging
from lastword.spark.options import WriteOptions
from lastword.spark.schema import SinkColumns
from lastword.spark.targets import Target, make_target

if TYPE_CHECKING:
    import pyarrow as pa


log = logging.getLogger(__name__)

LOCK_WAIT_SECONDS = 30.0
"""How long a commit waits for another writer to leave the directory."""


def prepare_writer(options: WriteOptions, columns: SinkColumns) -> LogWriter:
    """Check that the rows can go where they are told to, make the topic if it is new, compile the kernels.

    A wrong call changes nothing: all checks come before the topic is made. The lock is tried, so that a job
    does not run for an hour to find the directory taken.
    """
    from lastword import kernels

    if options.topic is None and columns.topic is None:
        raise SparkOptionError("no topic is given", remedy="option `topic`, or a column topic")
    if columns.ignored:
        log.warning("lastword: columns that no record has are left out: %s", ", ".join(columns.ignored))
    target = make_target(options, columns) if options.topic is not None else None
    kernels.warm()
    directory = LogDirectory.open(options.path, "r")
    every = directory.topic_partitions()
    home = next((tp for tp in every if target is None or tp.topic == target.topic), None)
    if home is None:
        raise SparkOptionError(
            f"{options.path} has no topic yet", remedy="make one, or give the option `topic`"
        )
    writer = LogWriter(options, columns, target, directory.directory(*home))
    staging.open_job(DEFAULT, writer.home, writer.job)
    return writer


def open_waiting(path: str) -> LogDirectory:
    """The directory, to append; waits LOCK_WAIT_SECONDS for another writer to leave it."""
    deadline = time.monotonic() + LOCK_WAIT_SECONDS
    while True:
        try:
            return LogDirectory.open(path, "a")
        except LogDirLockedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


@dataclass
class StagedMessage(WriterCommitMessage):
    """What one task has staged."""

    staged: tuple[staging.StagedFile, ...]


class LogWriter(DataSourceArrowWriter):
    """One write of one frame. `job` names what it stages; a new one for each writer."""

    def __init__(self, options: WriteOptions, columns: SinkColumns, target: Target | None, home: str) -> None:
        self.settings = options
        self.columns = columns
        self.target = target
        self.home = home
        self.job = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """One attempt of one task."""
        from pyspark import TaskContext

        from lastword.spark.rows import TaskRows

        context = TaskContext.get()
        task = (context.partitionId(), context.taskAttemptId()) if context is not None else (0, 0)
        rows = TaskRows(self.settings, self.columns, self.target, self.job, task)
        try:
            for batch in iterator:
                rows.add(batch)
            staged = rows.finish()
        except BaseException:
            rows.remove()
            raise
        if not staging.job_is_open(DEFAULT, self.home, self.job):
            rows.remove()
        return StagedMessage(staged)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append what the messages name, in the order of Spark's partitions, and acknowledge it at `ack`."""
        staged: dict[tuple[str, int], list[staging.StagedFile]] = {}
        for message in messages:
            for one in message.staged if isinstance(message, StagedMessage) else ():
                staged.setdefault((one.topic, one.partition), []).append(one)
        if not staged:
            self.abort([])  # nothing to append; an attempt that lost may have left something
            return
        with open_waiting(self.settings.path) as directory:
            staging.close_job(DEFAULT, self.home, self.job)
            for (topic, partition), files in sorted(staged.items()):
                partition_log = directory.log(topic, partition)
                staging.take_in(partition_log, self.job, files, sync=self.settings.ack == "disk")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what any attempt has staged, also those that no message names. Never touches the log."""
        staging.close_job(DEFAULT, self.home, self.job)
        discard_job(self.settings.path, self.job)


def discard_job(path: str, job: str, files: Files = DEFAULT) -> None:
    """Remove a job's staged files from every partition, found by listing."""
    directory = LogDirectory.open(path, "r", files)
    for tp in directory.topic_partitions():
        staging.discard(files, directory.directory(tp.topic, tp.partition), job)
