"""The sink, batch and streaming: rows become staged batches, and staged batches one commit.

Where it runs. `writer(...)` runs once (in a stream: once for each micro-batch), in a Python process beside
the driver. It checks the frame and makes the topic if it is new. `write()` runs once for each attempt of each
task, in a worker. It packs rows into record batches and stages them (`ingest.staging`). `commit()` runs once,
beside the driver: it puts one manifest into the directory's inbox (`ingest.staging`) and waits until it is
ingested: by this process if the lock is free, otherwise by the holder of the lock. If the job failed,
`abort()` runs instead.

What travels. The writer to the tasks; from each task a `StagedMessage` with the files of that attempt.

Order. Rows keep their order within a task, and tasks are appended in the order of Spark's partitions. So a
frame that is sorted as a whole (`orderBy`, or `repartitionByRange` and `sortWithinPartitions`) is sorted in
every partition of the log, although many tasks write it. In a frame that is not sorted, only rows of one
Spark partition keep their order.

When tasks fail. A retry or a speculative copy stages files of its own, and only the files that a message
names are appended. Nothing is in the log before the commit, and an abort does not change the log. A commit is
one rename: a driver that dies before it has written nothing; one that dies after it has written everything,
as soon as a process opens the directory to append.

Once. A stream names itself and its batch (`query id`, `batch id`); a batch write can do so by the options
`producer` and `sequence`. A batch that was ingested under such a name, for the same option `topic`, is not
ingested again. A name is forgotten a month after its last batch (`ingest.staging.KEEP_WRITERS_MS`). Staged
files of a job that died before its commit are removed after a week, and no others.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from lastword.errors import SparkOptionError
from lastword.files import DEFAULT, Files
from lastword.ingest import staging
from lastword.ingest.apply import commit
from lastword.ingest.staging import Manifest, StagedFile, Writers, pending_commits
from lastword.logdir.log_dir import LogDirectory
from lastword.partition.staged_batches import discard
from lastword.spark.bootstrap import Shipped, ensure_compiled, hide_traceback, need_directory
from lastword.spark.options import WriteOptions
from lastword.spark.rows import TargetTopic, TaskRows, make_target
from lastword.spark.schema import SinkColumns

if TYPE_CHECKING:
    import pyarrow as pa


log = logging.getLogger(__name__)

QUERY = "sql.streaming.queryId"
BATCH = "streaming.sql.batchId"
"""Local properties in which Spark gives a task its streaming query, constant over restarts, and its batch."""


def prepare(options: WriteOptions, columns: SinkColumns, *, stream: bool = False) -> WriteJob:
    """Return the job of a write: check the rows, make the topic if it is new, compile the kernels.

    A wrong call changes nothing, because all checks are done before the topic is made. Only making the topic
    needs the directory's lock.
    """
    if options.topic is None and columns.topic is None:
        raise SparkOptionError("no topic is given", remedy="option `topic`, or a column topic")
    if columns.ignored:
        log.warning("lastword: columns that no record has are left out: %s", ", ".join(columns.ignored))
    target = make_target(options, columns) if options.topic is not None else None
    ensure_compiled()
    directory = LogDirectory.open(options.path, "r")
    partitions = directory.topic_partitions()
    first = next((tp for tp in partitions if target is None or tp.topic == target.topic), None)
    if first is None:
        raise SparkOptionError(
            f"{options.path} has no topic yet", remedy="make one, or give the option `topic`"
        )
    job = WriteJob(uuid.uuid4().hex, options, columns, target, directory.directory(*first), stream)
    if not stream:
        staging.open_staging(DEFAULT, job.directory, job.name)
    return job


@dataclass
class StagedMessage(WriterCommitMessage):
    """The files that one task has staged, their job, and for a stream its query."""

    files: tuple[StagedFile, ...]
    job: str
    writer: str | None = None


@dataclass(frozen=True)
class WriteJob:
    """One write of one frame: the values that its tasks and its driver share.

    `name` is part of the names of its staged files. `directory` is the partition that has its `open` mark.
    A write in `foreachBatch` is not a `stream`.
    """

    name: str
    options: WriteOptions
    columns: SinkColumns
    target: TargetTopic | None
    directory: str
    stream: bool = False

    def writer_of(self, producer: str) -> str:
        """Return the name under which the sequence of a batch is kept.

        A sequence counts per topic, because `foreachBatch` may write several topics with one number, and a
        copied checkpoint may continue in another topic; a recreated topic has no batch yet. `/` is in no
        topic's name and in no id.
        """
        if self.target is None:
            return f"/{producer}"
        return "/".join(filter(None, (self.target.topic, self.target.topic_id, producer)))

    def stage(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Stage the rows of one attempt of one task."""
        from pyspark import TaskContext

        need_directory(self.directory)
        context = TaskContext.get()
        task = (context.partitionId(), context.taskAttemptId()) if context is not None else (0, 0)
        query = context.getLocalProperty(QUERY) if context is not None and self.stream else None
        if query is None:
            name, writer, batch = self.name, None, -1
        else:
            # The tasks and the commit have different writers of Spark, so the job is named here.
            batch = int(context.getLocalProperty(BATCH))
            name, writer = f"{self.name}-{batch}", self.writer_of(f"spark-{query}")
        rows = TaskRows(self.options, self.columns, self.target, name, task)
        try:
            for frame in iterator:
                rows.add(frame)
            files = rows.finish()
        except BaseException:
            rows.remove()
            raise
        if self._is_over(writer, batch):
            rows.remove()
        return StagedMessage(files, name, writer)

    def _is_over(self, writer: str | None, batch: int) -> bool:
        """Return whether the job ended while this attempt was staging; then its files are not needed."""
        if writer is None:
            return not staging.is_staging_open(DEFAULT, self.directory, self.name)
        return Writers.load(DEFAULT, self.options.path).last(writer) >= batch

    def commit(
        self, messages: list[WriterCommitMessage | None], writer: str | None, sequence: int | None
    ) -> None:
        """Append the files of the messages, in the order of Spark's partitions, and acknowledge at `ack`."""
        staged = [message for message in messages if isinstance(message, StagedMessage)]
        files = [file for message in staged for file in message.files]
        if not files:
            self.abort(staged)  # nothing to append; a failed attempt may have left files
            return
        job = staged[0].job
        path = self.options.path
        if sequence is not None and Writers.load(DEFAULT, path).last(writer) >= sequence:
            log.warning(
                "lastword: batch %d of %s came before, or one above it: it adds nothing", sequence, writer
            )
        staging.close_staging(DEFAULT, self.directory, job)
        manifest = Manifest(
            job, tuple(files), sync=self.options.ack == "disk", writer=writer, sequence=sequence
        )
        commit(
            path,
            manifest,
            DEFAULT,
            lambda: LogDirectory.open(path, "a"),
            patience_seconds=self.options.commit_timeout_ms / 1000,
        )
        discard_job(path, job)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove the staged files of every attempt, including attempts that no message names.

        This never changes the log, nor the files of a pending commit.
        """
        jobs = {self.name, *(message.job for message in messages if isinstance(message, StagedMessage))}
        for job in jobs:
            staging.close_staging(DEFAULT, self.directory, job)
            if job not in pending_commits(DEFAULT, self.options.path):
                discard_job(self.options.path, job)


class LogWriter(Shipped, DataSourceArrowWriter):
    """The writer of a batch."""

    def __init__(self, job: WriteJob) -> None:
        self.job = job

    @hide_traceback
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Stage the rows of one attempt of one task."""
        return self.job.stage(iterator)

    @hide_traceback
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append the staged files."""
        producer = self.job.options.producer
        writer = None if producer is None else self.job.writer_of(producer)
        self.job.commit(messages, writer, self.job.options.sequence)

    @hide_traceback
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove the staged files."""
        self.job.abort(messages)


class LogStreamWriter(Shipped, DataSourceStreamArrowWriter):
    """The writer of one micro-batch of a streaming query.

    If the driver dies before Spark has noted the commit, Spark runs the batch again. It then has the same
    query and batch id, and adds nothing.
    """

    def __init__(self, job: WriteJob) -> None:
        self.job = job

    @hide_traceback
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Stage the rows of one attempt of one task."""
        return self.job.stage(iterator)

    @hide_traceback
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Append the staged files, once for each batch id."""
        writer = next((message.writer for message in messages if isinstance(message, StagedMessage)), None)
        self.job.commit(messages, writer, None if writer is None else batchId)

    @hide_traceback
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Remove the staged files."""
        self.job.abort(messages)


def discard_job(path: str, job: str, files: Files = DEFAULT) -> None:
    """Remove a job's staged files from every partition, by listing."""
    directory = LogDirectory.open(path, "r", files)
    for tp in directory.topic_partitions():
        discard(files, directory.directory(tp.topic, tp.partition), job)
