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
files of a job that died before its commit are removed an hour after its last task ended, and no others: a
task gives a sign of life while it runs (`ingest.staging.keep_alive`).
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from lastword.arrow import pa, pc
from lastword.bucket.files import BucketFiles
from lastword.clock import SystemClock
from lastword.errors import DataError, KeyRequiredError, LastwordError, RecordTooLargeError, SparkOptionError
from lastword.files import DEFAULT, Files, overlapped
from lastword.ingest import staging
from lastword.ingest.apply import check_refusal, commit, ingest_pending
from lastword.ingest.staging import (
    OWN_FILE_BYTES,
    CommitManifest,
    SharedWriter,
    StagedRun,
    StagedWriter,
    Writers,
    discard_all,
    next_number,
    pending_commits,
)
from lastword.logdir.log_dir import LogDirectory
from lastword.objects import is_url
from lastword.segment import names
from lastword.spark.bootstrap import (
    Shipped,
    collector_paused,
    ensure_compiled,
    hide_traceback,
    need_directory,
)
from lastword.spark.bucket import (
    begin_uploads,
    bucket_at,
    files_at,
    open_directory,
    private_copy,
    transaction,
)
from lastword.spark.options import WriteOptions
from lastword.spark.schema import SinkColumns
from lastword.spark.targets import TargetTopic, check_own, existing_target, make_target, partitions_of
from lastword.spark.tasks import repeated

if TYPE_CHECKING:
    import numpy as np

    from lastword.api.open_dirs import OpenDirs
    from lastword.bucket.manifest import Entry
    from lastword.records.pack import AppendColumns, Workspace
    from lastword.value_formats.interface import ValueFormat

log = logging.getLogger(__name__)

QUERY = "sql.streaming.queryId"
BATCH = "streaming.sql.batchId"
"""Local properties in which Spark gives a task its streaming query, constant over restarts, and its batch."""

UNNUMBERED = 1 << 62
"""The least order of a task without a number: a thread of Sail, which stages under a random one."""

# ---------------------------------------------------------------- one write


def prepare(
    options: WriteOptions, columns: SinkColumns, *, stream: bool = False, query: str | None = None
) -> WriteJob:
    """Return the job of a write: check the rows, make the topic if it is new, compile the kernels.

    A wrong call changes nothing, because all checks are done before the topic is made. Only making the topic
    needs the directory's lock.

    Args:
        options: The options.
        columns: The columns of the frame.
        stream: The write is a micro-batch.
        query: The checkpoint of its query, if it is known.
    """
    if options.topic is None and columns.topic is None:
        raise SparkOptionError("no topic is given", remedy="option `topic`, or a column topic")
    if columns.ignored:
        log.warning("lastword: columns that no record has are left out: %s", ", ".join(columns.ignored))
    target = make_target(options, columns, query) if options.topic is not None else None
    ensure_compiled()
    directory = open_directory(options.path, options.storage)
    partitions = directory.topic_partitions()
    first = next((tp for tp in partitions if target is None or tp.topic == target.topic), None)
    if first is None:
        raise SparkOptionError(
            f"{options.path} has no topic yet", remedy="make one, or give the option `topic`"
        )
    job = WriteJob(uuid.uuid4().hex, options, columns, target, directory.directory(*first), stream)
    if is_url(options.path):
        uploads = begin_uploads(options.path, options.storage, query)
        return BucketJob(job.name, options, columns, target, job.directory, stream, uploads)
    if not stream:
        staging.open_staging(DEFAULT, job.directory, job.name)
    return job


@dataclass
class StagedMessage(WriterCommitMessage):
    """The runs that one task has staged, the ids of their topics, their job, and for a stream its query.

    In a bucket also the entries of the uploaded files by path, and the name under which they are kept.
    """

    runs: tuple[StagedRun, ...]
    job: str
    writer: str | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    entries: Mapping[str, Entry] = field(default_factory=dict)
    uploads: str | None = None


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

    @property
    def needed(self) -> str:
        """The directory that a task must see. A topic of no row may be deleted meanwhile."""
        return self.directory if self.target is not None else self.options.path

    def stage(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Stage the rows of one attempt of one task."""
        need_directory(self.needed)
        name, task, writer, batch = self._in_task()
        rows = TaskRows(self.options, self.columns, self.target, name, task)
        try:
            with kept_alive(self.options.path, name):
                for frame in iterator:
                    rows.add(frame)
                runs = rows.finish()
        except BaseException:
            rows.remove()
            raise
        if self._is_over(writer, batch):
            rows.remove()
        return StagedMessage(runs, name, writer, rows.topic_ids)

    def _in_task(self) -> tuple[str, tuple[int, int], str | None, int]:
        """Return the job's name, the task with its attempt, and for a stream the writer and the batch."""
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            return self.name, (UNNUMBERED + uuid.uuid4().int % UNNUMBERED, 0), None, -1
        task = context.partitionId(), context.taskAttemptId()
        query = context.getLocalProperty(QUERY) if self.stream else None
        number = context.getLocalProperty(BATCH)
        if query is None or number is None:
            return self.name, task, None, -1
        # Spark makes one writer for the tasks and another for the commit, so the job is named here.
        batch = int(number)
        return f"{self.name}-{batch}", task, self.writer_of(f"spark-{query}"), batch

    def _is_over(self, writer: str | None, batch: int) -> bool:
        """Return whether the job ended while this attempt was staging; then its files are not needed."""
        if writer is None:
            # The mark goes with its partition: then the files are kept until an hour after the job's end.
            is_there = DEFAULT.is_dir(self.directory)
            return is_there and not staging.is_staging_open(DEFAULT, self.directory, self.name)
        return Writers.load(DEFAULT, self.options.path).last(writer) >= batch

    def commit(
        self, messages: list[WriterCommitMessage | None], writer: str | None, sequence: int | None
    ) -> None:
        """Append the runs of the messages, in the order of Spark's partitions, and acknowledge at `ack`."""
        staged = [message for message in messages if isinstance(message, StagedMessage)]
        runs = in_order(staged)
        if not runs:
            self.abort(staged)  # nothing to append; a failed attempt may have left files
            return
        job = staged[0].job
        path = self.options.path
        check_topics(LogDirectory.open(path, "r"), staged)
        warn_of_repetition(DEFAULT, path, writer, sequence)
        staging.close_staging(DEFAULT, self.directory, job)
        manifest = CommitManifest(
            job, runs, sync=self.options.ack == "disk", writer=writer, sequence=sequence
        )
        with collector_paused():
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


@dataclass(frozen=True)
class BucketJob(WriteJob):
    """A write to a log in a bucket: tasks upload what they have staged, and the driver swaps once.

    `uploads` is the name under which the uploads are kept until the commit.
    """

    uploads: str = ""

    def stage(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """As `WriteJob.stage`, in a private copy of the log, whose new files are uploaded."""
        path, storage = self.options.path, self.options.storage
        name, task, writer, _ = self._in_task()
        with private_copy(path, storage) as files:
            need_directory(self.needed, files)
            rows = TaskRows(self.options, self.columns, self.target, name, task, files)
            for frame in iterator:
                rows.add(frame)
            runs = rows.finish()
            uploaded = bucket_at(path, storage).upload(dict(files.changes()))
        entries = {key: entry for key, entry in uploaded.items() if entry is not None}
        return StagedMessage(runs, name, writer, rows.topic_ids, entries, self.uploads)

    def commit(
        self, messages: list[WriterCommitMessage | None], writer: str | None, sequence: int | None
    ) -> None:
        """As `WriteJob.commit`, in one transaction. UploadsGoneError if it comes too late."""
        path, storage = self.options.path, self.options.storage
        staged = [message for message in messages if isinstance(message, StagedMessage)]
        runs = in_order(staged)
        if runs and not warn_of_repetition(files_at(path, storage), path, writer, sequence):
            manifest = CommitManifest(staged[0].job, runs, sync=True, writer=writer, sequence=sequence)
            entries = {key: entry for message in staged for key, entry in message.entries.items()}
            ingest = partial(ingest_uploaded, manifest, entries, staged)
            transaction(path, storage, ingest, uploads=staged[0].uploads)
        self.abort(staged)  # ends the uploads that the commit has not ended

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Give up the uploads of every attempt; a collection removes them. This never changes the log."""
        bucket = bucket_at(self.options.path, self.options.storage)
        given = (message.uploads for message in messages if isinstance(message, StagedMessage))
        for name in dict.fromkeys((self.uploads, *given)):
            if name is not None:
                bucket.end_uploads(name)


def in_order(messages: Sequence[StagedMessage]) -> tuple[StagedRun, ...]:
    """Return the runs of the messages; those of a task without a number get the place of its message."""
    return tuple(
        run if run.order < UNNUMBERED else replace(run, order=place)
        for place, message in enumerate(messages)
        for run in message.runs
    )


def check_topics(directory: LogDirectory, messages: Sequence[StagedMessage]) -> None:
    """Raise DataError if a topic was recreated since rows were staged for it: the rows are not for that one.

    Its partitions may be others, and the name of a batch counts for the topic that is gone.
    """
    existing = set(directory.topics())
    for topic, staged_id in sorted({item for message in messages for item in message.topic_ids.items()}):
        topic_id = directory.topic_id(topic) if topic in existing else None
        if topic_id not in (None, staged_id):
            raise DataError(
                f"topic {topic} was deleted and recreated since rows were staged for it; nothing was written",
                remedy="run the job again",
                file=directory.path,
            )


def ingest_uploaded(
    manifest: CommitManifest, entries: Mapping[str, Entry], messages: Sequence[StagedMessage], dirs: OpenDirs
) -> None:
    """Ingest the staged files of a commit, which are in the store, in a private copy of the log.

    DataError if the commit is refused: a topic is gone, for example.
    """
    (directory,) = dirs.directories
    check_topics(directory, messages)
    files, root = directory.files, directory.path
    assert isinstance(files, BucketFiles)
    files.adopt(entries)
    name = f"{next_number(files, root, directory.clock.now_ms()):020d}-{manifest.commit_id}"
    files.write_atomic(os.path.join(root, names.INBOX + name), manifest.encoded())
    ingest_pending(directory)
    check_refusal(files, os.path.join(root, names.REFUSED + name), manifest)


def warn_of_repetition(files: Files, path: str, writer: str | None, sequence: int | None) -> bool:
    """Return whether the batch of a writer was ingested before, with a warning."""
    if sequence is None or Writers.load(files, path).last(writer) < sequence:
        return False
    log.warning(
        "lastword: batch %d of %s, or a later one, was written before: it adds nothing", sequence, writer
    )
    return True


@contextmanager
def kept_alive(path: str, job: str) -> Iterator[None]:
    """Give signs of life of a job while a task stages, and while it waits for rows."""

    def keep() -> None:
        with suppress(LastwordError):  # the task itself meets a failing drive
            staging.keep_alive(DEFAULT, path, job, SystemClock().now_ms())

    with repeated(keep, staging.ALIVE_EVERY_SECONDS, "lastword-alive"):
        yield


class JobWriter(Shipped):
    """The part that the writers of a batch and of a micro-batch share."""

    def __init__(self, job: WriteJob) -> None:
        self.job = job

    @hide_traceback
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Stage the rows of one attempt of one task."""
        return self.job.stage(iterator)

    @hide_traceback
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int = -1) -> None:
        """Remove the staged files."""
        self.job.abort(messages)


class LogWriter(JobWriter, DataSourceArrowWriter):
    """The writer of a batch."""

    @hide_traceback
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append the staged files."""
        producer = self.job.options.producer
        writer = None if producer is None else self.job.writer_of(producer)
        self.job.commit(messages, writer, self.job.options.sequence)


class LogStreamWriter(JobWriter, DataSourceStreamArrowWriter):
    """The writer of one micro-batch of a streaming query.

    If the driver dies before Spark has noted the commit, Spark runs the batch again. It then has the same
    query and batch id, and adds nothing.
    """

    @hide_traceback
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Append the staged files, once for each batch id."""
        writer = next((message.writer for message in messages if isinstance(message, StagedMessage)), None)
        self.job.commit(messages, writer, None if writer is None else batchId)


def discard_job(path: str, job: str) -> None:
    """Remove a job's staged files from every partition, by listing."""
    discard_all(DEFAULT, path, job, LogDirectory.open(path, "r").topic_partitions())


# ---------------------------------------------------------------- the rows of a task


PACK_BYTES = 1 << 20
"""Rows of a topic are packed when about this many bytes per partition are pending: enough for many batches,
and few enough to stay in the CPU's cache.
"""
PENDING_BYTES = 32 << 20
"""Limit for pending rows of all topics in one task. Above it, the topic with the most bytes is packed early.
"""
BATCH_BYTES = 64 << 10
"""Size of a record batch before compression. Kafka's producer uses 16 KiB because it must not wait. A bulk
load may wait, and larger batches compress better.
"""


@dataclass
class PendingRows:
    """Pending rows of one topic, with the partition of each, and its staged files of this attempt."""

    target: TargetTopic
    writers: dict[int, StagedWriter] = field(default_factory=dict)
    parts: list[pa.RecordBatch] = field(default_factory=list)
    numbers: list[np.ndarray] = field(default_factory=list)
    size_bytes: int = 0


class TaskRows:
    """The rows of one attempt of a task."""

    def __init__(
        self,
        options: WriteOptions,
        columns: SinkColumns,
        target: TargetTopic | None,
        job: str,
        task: tuple[int, int],
        files: Files = DEFAULT,
    ) -> None:
        self._options = options
        self._columns = columns
        self._targets = {target.topic: target} if target is not None else {}
        self._target = target
        self._job = job
        self._task = task
        self._files = files
        self._shared = SharedWriter(files, options.path, job, *task)
        self._pending: dict[str, PendingRows] = {}
        self._pending_bytes = 0
        self._workspace: Workspace | None = None
        self._keyless_partition = task[0]
        self._clock = SystemClock()

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the rows of one Arrow batch, and pack a topic that has enough."""
        if batch.num_rows == 0:
            return
        now_ms = self._clock.now_ms()
        rows = normal_rows(batch, self._columns, self._options, now_ms)
        rows, batch = with_deletions(rows, batch, self._columns)
        if self._target is not None:
            self._keep(self._target, rows, batch, now_ms)
            return
        assert self._columns.topic is not None
        for topic, indices in _groups_of(batch.column(self._columns.topic)):
            self._keep(self._known(topic), rows.take(indices), batch.take(indices), now_ms)

    def finish(self) -> tuple[StagedRun, ...]:
        """Pack all pending rows and return the staged runs, which `ack=disk` has synced."""
        for pending in self._pending.values():
            self._pack(pending)
        sync = self._options.ack == "disk"
        closed = overlapped(lambda writer: writer.close(sync), self._writers())
        # A partition gets a file of its own after its runs in the shared file, never before.
        return (*self._shared.close(sync), *(run for run in closed if run is not None))

    @property
    def topic_ids(self) -> dict[str, str]:
        """The ids of the topics that have rows, as far as the topics have an id."""
        targets = (pending.target for pending in self._pending.values())
        return {target.topic: target.topic_id for target in targets if target.topic_id is not None}

    def remove(self) -> None:
        """Remove the staged files of this attempt."""
        self._shared.remove()
        for writer in self._writers():
            writer.remove()

    def _writers(self) -> list[StagedWriter]:
        return [writer for pending in self._pending.values() for writer in pending.writers.values()]

    def _known(self, topic: str | None) -> TargetTopic:
        """Return a row's topic. Tasks cannot make topics, because only the driver takes the lock."""
        if topic is None:
            raise SparkOptionError("a row has no topic", remedy="fill the column, or give the option `topic`")
        if topic not in self._targets:
            check_own(topic)
            self._targets[topic] = existing_target(self._options.path, topic, self._files)
        return self._targets[topic]

    def _keep(self, target: TargetTopic, rows: pa.RecordBatch, batch: pa.RecordBatch, now_ms: int) -> None:
        """Add rows of one topic: assign partitions, and check keys and timestamps."""
        import numpy as np

        check_timestamps(target, rows.column("timestamp"), now_ms)
        numbers = self._partitions(target, rows, batch)
        keys = rows.column("key")
        if target.config.compacts and keys.null_count:
            first = int(np.flatnonzero(np.asarray(keys.is_null()))[0])
            raise KeyRequiredError.of(f"{target.topic}-{int(numbers[first])}")
        pending = self._pending.setdefault(target.topic, PendingRows(target))
        pending.parts.append(rows)
        pending.numbers.append(numbers)
        pending.size_bytes += rows.nbytes
        self._pending_bytes += rows.nbytes
        if pending.size_bytes >= PACK_BYTES * target.partitions:
            self._pack(pending)
        while self._pending_bytes > PENDING_BYTES:
            self._pack(max(self._pending.values(), key=lambda rows: rows.size_bytes))

    def _partitions(self, target: TargetTopic, rows: pa.RecordBatch, batch: pa.RecordBatch) -> Any:
        """Return the int64 partition of each row.

        The frame's column decides, else the partitioner. Rows without a key rotate by batch.
        """
        import numpy as np

        numbers = np.full(rows.num_rows, -1, np.int64)
        if self._columns.partition is not None:
            given = batch.column(self._columns.partition)
            numbers = np.asarray(given.fill_null(-1)).astype(np.int64)
            wrong = (numbers >= target.partitions) | ((numbers < 0) & np.asarray(given.is_valid()))
            if wrong.any():
                raise SparkOptionError(
                    f"{target.topic} has no partition {int(numbers[wrong][0])}; it has {target.partitions}",
                    remedy="leave the column null to let the partitioner choose",
                )
        keys = rows.column("key")
        open_rows = numbers < 0
        keyed = open_rows & np.asarray(keys.is_valid())
        if keyed.all():
            return partitions_of(keys, target)
        if keyed.any():
            numbers[keyed] = partitions_of(keys.take(_indices(keyed)), target)
        if (numbers < 0).any():
            numbers[numbers < 0] = self._keyless_partition % target.partitions
            self._keyless_partition += 1
        return numbers

    def _pack(self, pending: PendingRows) -> None:
        """Encode pending rows as record batches, partition by partition, in their order."""
        import numpy as np

        from lastword.records.pack import AppendColumns

        if not pending.parts:
            return
        key, value, timestamp, headers = (
            pa.concat_arrays([part.column(i) for part in pending.parts]) for i in range(4)
        )
        some = headers if headers.null_count < len(headers) else None
        columns = AppendColumns.of(key, value, timestamp.to_numpy(), some)
        numbers = np.concatenate(pending.numbers)
        counts = np.bincount(numbers)
        present = np.flatnonzero(counts).tolist()
        most_shared = OWN_FILE_BYTES * numbers.size // max(pending.size_bytes, 1)  # rows
        for number in np.flatnonzero(counts > most_shared).tolist():
            if number not in pending.writers:
                given = self._files, self._options.path, pending.target.topic, number, self._job, *self._task
                pending.writers[number] = StagedWriter(*given)
        if len(present) == 1:
            self._write(pending, present[0], columns)
        else:
            kind = np.uint16 if counts.size <= 1 << 16 else np.int64
            order = np.argsort(numbers.astype(kind), kind="stable")
            done = 0
            for number in present:
                self._write(pending, number, columns.take(order[done : done + counts[number]]))
                done += int(counts[number])
        self._pending_bytes -= pending.size_bytes
        pending.parts.clear()
        pending.numbers.clear()
        pending.size_bytes = 0

    def _write(self, pending: PendingRows, number: int, columns: AppendColumns) -> None:
        """Append the record batches of one partition to its staged file, or to the shared file."""
        from lastword.records.pack import Workspace, pack

        config, writer = pending.target.config, pending.writers.get(number)
        self._workspace = self._workspace or Workspace()
        most = min(config.max_message_bytes, config.segment_bytes)
        for run in pack(
            columns,
            codec=config.codec,
            level=config.compression_level,
            batch_bytes=min(BATCH_BYTES, most),
            workspace=self._workspace,
        ):
            if max(run.sizes) > most:
                setting = "max.message.bytes" if most == config.max_message_bytes else "segment.bytes"
                raise RecordTooLargeError(
                    f"{pending.target.topic}: a record needs a batch of {max(run.sizes)} bytes, "
                    f"above {setting} {most}",
                    remedy=f"raise {setting}, or split the value",
                )
            if writer is not None:
                writer.write(run.data, run.records)
            else:
                self._shared.write(pending.target.topic, number, run.data, run.records)


def normal_rows(
    batch: pa.RecordBatch, columns: SinkColumns, options: WriteOptions, now_ms: int
) -> pa.RecordBatch:
    """Convert rows to the columns for packing: key and value binary, timestamp int64 (ms), headers."""
    import numpy as np

    def bytes_of(position: int | None, value_format: ValueFormat | None) -> pa.Array:
        if position is None:
            return pa.nulls(batch.num_rows, pa.binary())
        array = batch.column(position)
        if value_format is not None:
            return value_format.encode(array)
        return array if pa.types.is_binary(array.type) else array.cast(pa.binary())

    value = bytes_of(columns.value, columns.value_format)
    if value.null_count and options.null_value == "error":
        raise SparkOptionError(
            "a row has no value, which would delete its key",
            remedy="filter such rows, or set nullValue to delete",
        )
    if columns.timestamp is None:
        timestamp = pa.array(np.full(batch.num_rows, now_ms, np.int64))
    else:
        micros = batch.column(columns.timestamp).cast(pa.timestamp("us")).cast(pa.int64())
        timestamp = pa.array(micros.fill_null(0).to_numpy(zero_copy_only=False) // 1000)
        if micros.null_count:
            timestamp = pc.if_else(micros.is_valid(), timestamp, pa.scalar(now_ms, pa.int64()))
        if pc.min(timestamp).as_py() < 0:
            raise SparkOptionError(
                "a row's timestamp is before 1970", remedy="leave it null to take the time of writing"
            )
    kind = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
    headers = (
        pa.nulls(batch.num_rows, kind)
        if columns.headers is None
        else batch.column(columns.headers).cast(kind)
    )
    each = headers.flatten()
    if each.null_count or each.field("key").null_count:
        raise SparkOptionError(
            "a row has a header without a key", remedy="filter its headers; their values may be null"
        )
    return pa.RecordBatch.from_arrays(
        [bytes_of(columns.key, columns.key_format), value, timestamp, headers],
        names=["key", "value", "timestamp", "headers"],
    )


def check_timestamps(target: TargetTopic, timestamps: pa.Array, now_ms: int) -> None:
    """Raise SparkOptionError if a timestamp is outside the bounds of the topic, as `Topic.append` does."""
    config, bounds = target.config, pc.min_max(timestamps).as_py()
    if config.message_timestamp_type != "CreateTime":
        return
    earliest = now_ms - config.message_timestamp_before_max_ms
    latest = now_ms + config.message_timestamp_after_max_ms
    for timestamp in (bounds["min"], bounds["max"]):
        if not earliest <= timestamp <= latest:
            raise SparkOptionError(
                f"{target.topic}: a row's timestamp of {timestamp} is too far from now",
                remedy="see message.timestamp.before.max.ms and message.timestamp.after.max.ms of the topic",
            )


def with_deletions(
    rows: pa.RecordBatch, batch: pa.RecordBatch, columns: SinkColumns
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Put the deletion of the format, if it has one, in front of each row without a value.

    Both records have the key, timestamp and headers of the row. `batch` gets as many rows as `rows`.
    """
    import numpy as np

    value = rows.column("value")
    if columns.value_format is None or not value.null_count:
        return rows, batch
    event = columns.value_format.deletion(batch.column(columns.value).type)
    if event is None:
        return rows, batch
    copies = 1 + np.asarray(value.is_null())
    order = np.repeat(np.arange(len(value)), copies)
    first = np.append(True, order[1:] != order[:-1])
    twice = rows.take(pa.array(order))
    filled = pc.if_else(pa.array(first), pc.fill_null(twice.column("value"), event), twice.column("value"))
    return twice.set_column(1, "value", filled), batch.take(pa.array(order))


def _indices(mask: Any) -> pa.Array:
    import numpy as np

    return pa.array(np.flatnonzero(mask))


def _groups_of(column: pa.Array) -> Iterator[tuple[str | None, pa.Array]]:
    """Yield (value, indices of its rows) for each value of a string column, in order of appearance."""
    import numpy as np

    encoded = column.dictionary_encode(null_encoding="encode")
    codes = np.asarray(encoded.indices)
    for code, value in enumerate(encoded.dictionary.to_pylist()):
        yield value, _indices(codes == code)
