"""`lastword.spark.copy`: copy topics to another log, with tasks that copy the files.

Where it runs. The driver takes a view of each partition, and lists the files that the target lacks. Tasks
copy these files: into `lastword/copy/` of a partition in a directory, or as uploads to a bucket. The driver
does the other steps of `lastword.logdir.copies` for all partitions; a bucket gets one commit.

What travels. Out: names, numbers and sizes of files. Back: the entries of uploaded files (names of objects,
or the bytes of files up to 1 KiB). With `verify` the names of the logs travel out, and back the first log
that differs.

When tasks fail. Nothing is published before the driver's part. In a directory, the next copy uses the files
that are complete; in a bucket a collection removes the uploads. If a cleaning of the source has replaced a
file before it is copied, the driver takes a new view of the partition.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from lastword.api.copying import (
    CopyFailed,
    Copying,
    CopyResult,
    check_different,
    storage_of_both,
    wanted_topics,
)
from lastword.errors import FileVanishedError, LastwordError, StorageError
from lastword.files import DEFAULT
from lastword.logdir import copies
from lastword.logdir.checkpoints import TopicPartition
from lastword.objects import is_url
from lastword.spark.bootstrap import check_seen, need_pyspark, shared_log, shared_path
from lastword.spark.bucket import begin_uploads, bucket_at, files_at, open_logs, private_copy, transaction
from lastword.spark.options import StorageOptions
from lastword.values import ProgressLike, in_groups

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lastword.api.open_dirs import OpenDirs
    from lastword.bucket.manifest import Entry
    from lastword.logdir.copies import Brought, SourceFile, SourceLog

ATTEMPTS = 20
"""How often a partition is copied again because a cleaning has replaced its files."""
TASK_BYTES = 256 << 20
"""A task copies files of about this size, at least one."""


def copy(
    spark: SparkSession,
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    topics: str | Sequence[str] | None = None,
    *,
    verify: bool = False,
    storage_options: Mapping[str, str] | None = None,
    source_storage_options: Mapping[str, str] | None = None,
    progress: ProgressLike | None = None,
) -> DataFrame:
    """Copy topics to another log, at the call, with tasks: `lastword.copy` for large logs.

    Args:
        spark: The session.
        source: A log directory that this process and all executors see under this name, or the URL of a log
            in a bucket. It is not changed.
        target: Another one. It is made if it is absent.
        topics: Their names; None: every topic.
        verify: Read the source and the target again in tasks, and compare the digests of all segments.
        storage_options: Options of the bucket; of both, if both are URLs.
        source_storage_options: Options of the source's bucket, if they are others.
        progress: Called with a `Progress` as files are copied.

    Returns:
        The columns of `CopyResult`.

    Raises:
        InconsistentTopicIdError: The target has another topic of the same name.
        UsageError: The target has records of its own in one of the partitions; or options of a bucket are
            given for directories.
        PartialFailure: Partitions were not copied; has the results of the others. It is also an instance
            of the first error's class.
    """
    need_pyspark()
    from lastword.spark.schema import frame_of

    read_with, write_with = storage_of_both([source], target, storage_options, source_storage_options)
    from_path, from_storage = shared_log(source, read_with)
    to_path = shared_path(target)
    check_different([from_path], to_path)
    to_storage = StorageOptions.of(to_path, write_with)
    with open_logs(from_path, from_storage) as read:
        names = wanted_topics(read, topics)
        with open_logs(to_path, to_storage, "a") as written:
            places = _Places(from_path, from_storage, to_path, to_storage)
            rows = _SparkCopying(spark, places, read.dirs, written.dirs).run(names, verify, progress)
    return frame_of(spark, CopyResult, rows)


@dataclass(frozen=True, slots=True)
class _Places:
    """The source and the target. `path` and `storage` are those of the source."""

    path: str
    storage: StorageOptions
    target: str
    target_storage: StorageOptions


@dataclass(frozen=True, slots=True)
class _Send(_Places):
    """Files of one partition for a task to copy."""

    tp: TopicPartition
    directory: str
    partition: str
    chosen: tuple[SourceFile, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Compare(_Places):
    """The logs of one partition for a task to compare."""

    directory: str
    partition: str
    logs: tuple[SourceFile, ...]
    size_bytes: int


@dataclass(slots=True)
class _Sent:
    """What tasks have copied of one partition."""

    log: SourceLog
    copied_bytes: int = 0
    entries: dict[str, Entry] = field(default_factory=dict)


class _SparkCopying(Copying):
    """One call of `copy` on Spark."""

    def __init__(self, spark: SparkSession, places: _Places, source: OpenDirs, target: OpenDirs) -> None:
        super().__init__(source, target, lambda: False)
        self.most_bytes = None  # tasks have copied the files
        self._spark = spark
        self._places = places
        self._sent: dict[TopicPartition, _Sent] = {}
        self._differences: dict[TopicPartition, str | LastwordError | None] = {}

    # -------------------------------------------------------------- bring

    def bring_all(self, partitions: Sequence[TopicPartition]) -> None:
        """As `Copying.bring_all`, with one commit to a bucket."""
        places, uploads = self._places, None
        if is_url(places.target):
            uploads = begin_uploads(places.target, places.target_storage, None)
        try:
            self._send_all(partitions)
            todo = [tp for tp in partitions if tp in self._sent and tp not in self.failed]
            while todo:
                try:
                    done = self._commit(partial(self.round, todo), todo, uploads)
                except CopyFailed:
                    todo = [tp for tp in todo if tp not in self.failed]
                    continue
                for tp, (log, brought) in done.items():
                    self.note(tp, log, replace(brought, copied_bytes=self._sent[tp].copied_bytes))
                break
        finally:
            if uploads is not None:
                bucket_at(places.target, places.target_storage).end_uploads(uploads)
        self.target.refresh()

    def _commit(
        self,
        work: Callable[[OpenDirs], dict[TopicPartition, tuple[SourceLog, Brought]]],
        todo: Sequence[TopicPartition],
        uploads: str | None,
    ) -> dict[TopicPartition, tuple[SourceLog, Brought]]:
        if uploads is None:
            return self.target.transaction(work)
        entries = {key: entry for tp in todo for key, entry in self._sent[tp].entries.items()}

        def adopt(dirs: OpenDirs) -> dict[TopicPartition, tuple[SourceLog, Brought]]:
            dirs.directories[0].files.adopt(entries)  # type: ignore[attr-defined]
            return work(dirs)

        return transaction(self._places.target, self._places.target_storage, adopt, uploads=uploads)

    def bring(self, dirs: OpenDirs, tp: TopicPartition, most_bytes: int | None) -> tuple[SourceLog, Brought]:
        """As `Copying.bring`, with the files that tasks have copied."""
        log = self._sent[tp].log
        return log, copies.bring(log, dirs.log_dir(*tp), tp)

    def _send_all(self, partitions: Sequence[TopicPartition]) -> None:
        """Copy the files of partitions in tasks; those of a partition again if a cleaning has removed one."""
        from lastword.spark.tasks import described, results_as_completed

        todo = list(partitions)
        for attempt in range(ATTEMPTS):
            if not todo:
                return
            if attempt:
                self.source.refresh()
            tasks = [task for tp in todo for task in self._tasks_of(tp)]
            gone = set()
            with described(self._spark, f"lastword copy: {self._places.target}"):
                for number, result in results_as_completed(self._spark, _send, tasks):
                    task = tasks[number]
                    if isinstance(result, FileVanishedError):
                        gone.add(task.tp)
                    elif isinstance(result, LastwordError):
                        self.failed[task.tp] = result
                    else:
                        copied_bytes, entries = result
                        self._sent[task.tp].copied_bytes += copied_bytes
                        self._sent[task.tp].entries |= entries
                        self.count(task.size_bytes)
            todo = [tp for tp in todo if tp in gone and tp not in self.failed]
        for tp in todo:
            self.failed[tp] = FileVanishedError(
                f"{tp}: a cleaning replaced files of the source {ATTEMPTS} times",
                remedy="copy again",
                file=self._places.path,
            )

    def _tasks_of(self, tp: TopicPartition) -> Iterator[_Send]:
        places = self._places
        try:
            first_dirty = self.source.first_dirty(*tp)
            log = copies.SourceLog.of(self.source.checked_view(*tp), first_dirty)
            target = self.target.log_dir(*tp)
            chosen = copies.files_to_send(log, target, tp)
        except LastwordError as error:
            self.failed[tp] = error
            return
        before = self._sent.get(tp)
        self._sent[tp] = _Sent(log, *((before.copied_bytes, before.entries) if before else ()))
        for group, size_bytes in in_groups(chosen, lambda file: file.size, TASK_BYTES):
            yield _Send(
                places.path, places.storage, places.target, places.target_storage,
                tp, log.directory, target.directory(*tp), tuple(group), size_bytes,
            )  # fmt: skip

    # -------------------------------------------------------------- verify

    def verify_all(self, partitions: Sequence[TopicPartition]) -> None:
        """As `Copying.verify_all`, with digests that tasks compute."""
        self.target.refresh()
        self._compare([tp for tp in partitions if tp not in self.failed])
        super().verify_all(partitions)

    def difference(self, tp: TopicPartition) -> str | None:
        """As `Copying.difference`, in a task."""
        if tp not in self._differences:
            self._compare([tp])
        result = self._differences.pop(tp)
        if isinstance(result, LastwordError):
            raise result
        return result

    def _compare(self, partitions: Sequence[TopicPartition]) -> None:
        from lastword.spark.tasks import described, run_tasks

        places = self._places
        tasks = [
            _Compare(
                places.path, places.storage, places.target, places.target_storage,
                self.logs[tp].directory,
                self.target.log_dir(*tp).directory(*tp),
                tuple(segment.log for segment in self.logs[tp].segments),
                sum(segment.log.size for segment in self.logs[tp].segments),
            )
            for tp in partitions
        ]  # fmt: skip
        with described(self._spark, f"lastword copy: compare with {places.target}"):
            self._differences |= zip(partitions, run_tasks(self._spark, _compare, tasks), strict=True)


# ---------------------------------------------------------------- tasks


def _send(task: _Send) -> tuple[int, dict[str, Entry]] | LastwordError:
    """Copy files; return the bytes, and the entries of files that were uploaded."""
    source, own = files_at(task.path, task.storage), uuid.uuid4().hex
    try:
        if not is_url(task.target):
            check_seen(task.partition)
            return copies.send(source, task.directory, task.chosen, DEFAULT, task.partition, own), {}
        with private_copy(task.target, task.target_storage) as files:
            copied_bytes = copies.send(source, task.directory, task.chosen, files, task.partition, own)
            uploaded = bucket_at(task.target, task.target_storage).upload(dict(files.changes()))
        return copied_bytes, {key: entry for key, entry in uploaded.items() if entry is not None}
    except FileVanishedError as error:
        return error
    except StorageError:
        raise
    except LastwordError as error:
        return error


def _compare(task: _Compare) -> str | LastwordError | None:
    source, target = files_at(task.path, task.storage), files_at(task.target, task.target_storage)
    try:
        return copies.difference(source, task.directory, task.logs, target, task.partition)
    except FileVanishedError as error:
        return error
