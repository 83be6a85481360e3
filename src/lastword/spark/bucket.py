"""A log in a bucket on Spark: what driver and tasks read, what tasks upload, and the commits.

Nothing is shared between driver and executors but the store. Each process has one `Bucket` for each URL with
its options; a call takes the newest version with one conditional request, so that planning costs the same
number of requests for any number of partitions.

Where it runs. A read is planned beside the driver and runs in tasks, as over a directory (`read`). In a write
each task stages its rows in a private copy and uploads the staged files; the driver adopts them in one
transaction, which ingests them as a directory does and swaps the manifest once. A cleaning is a transaction
of its own for each partition, in a task; the commits of different partitions are merged. A giant partition
is cleaned in many tasks (`JobPlace`): each uploads its files, the driver commits them to the log under the
name of the job, where later tasks read them, and the last commit swaps the outputs in and removes the job.

What travels. The URL and the options of the store; from each task of a write the entries of its files (names
of objects, or the bytes of files up to 1 KiB). Credentials travel only if the caller gives them as options;
no text shows them.

When tasks fail. Uploads that no commit names are removed by a later collection. The driver announces the
uploads before the tasks begin (`Bucket.begin_uploads`), so that no collection removes them before the commit;
a commit that comes after `KEEP_UPLOADS_MS` is refused with UploadsGoneError. A commit whose swap was lost is
found in the history, and the batch of a named writer is ingested once, as in a directory.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from lastword.api.opening import open as open_log_dir
from lastword.bucket.files import BucketFiles
from lastword.bucket.manifest import Entry
from lastword.bucket.scratch import ScratchSpace
from lastword.clock import SystemClock
from lastword.errors import BusyError, FileVanishedError
from lastword.files import DEFAULT, Files
from lastword.logdir.log_dir import LogDirectory
from lastword.objects import is_url, open_store, probe
from lastword.spark.options import NO_STORAGE, StorageOptions

if TYPE_CHECKING:
    from lastword.api.logs import LogDir
    from lastword.api.open_dirs import Mode, OpenDirs
    from lastword.bucket.commit import Bucket

T = TypeVar("T")

# ---------------------------------------------------------------- the newest version

_opened: dict[tuple[str, StorageOptions], tuple[Bucket, BucketFiles]] = {}


def bucket_at(url: str, storage: StorageOptions) -> Bucket:
    """Return the bucket of a log, the same one for each call in this process."""
    return _at(url, storage)[0]


def files_at(path: str, storage: StorageOptions = NO_STORAGE) -> Files:
    """Return the files of a log: those of the system for a directory, for a URL those of the newest version.

    For a URL this is one conditional request, if the log has not changed since the last call.
    """
    if not is_url(path):
        return DEFAULT
    bucket, files = _at(path, storage)
    files.snapshot = bucket.load().snapshot
    return files


def _at(url: str, storage: StorageOptions) -> tuple[Bucket, BucketFiles]:
    opened = _opened.get((url, storage))
    if opened is None:
        from lastword.bucket.commit import Bucket

        bucket = Bucket(open_store(url, dict(storage.items)))
        files = bucket.files(bucket.load().snapshot)

        def newest_names(key: str) -> bool:
            files.snapshot = bucket.load().snapshot
            return bucket.names(key)

        bucket.reads.on_vanished = newest_names
        opened = _opened.setdefault((url, storage), (bucket, files))
    return opened


def open_directory(
    path: str, storage: StorageOptions = NO_STORAGE, files: Files | None = None
) -> LogDirectory:
    """Open a log directory, or the newest version of a log in a bucket, to read."""
    return LogDirectory.open(path, "r", files or files_at(path, storage))


def open_logs(path: str, storage: StorageOptions, mode: Mode = "r") -> LogDir:
    """Open a log as `lastword.open` does, without a background cleaner."""
    if is_url(path):
        return open_log_dir(path, mode, storage_options=dict(storage.items), log_cleaner_enable=False)
    return open_log_dir([path], mode, log_cleaner_enable=False)


# ---------------------------------------------------------------- changes

KEEP_UPLOADS_MS = 24 * 3600 * 1000
"""The time from the beginning of a write to its commit, at most."""


def change(path: str, storage: StorageOptions, work: Callable[[Files], T]) -> T:
    """Change files of a log: of a directory in place, in a bucket by a transaction, which may run again."""
    return bucket_at(path, storage).transaction(work) if is_url(path) else work(DEFAULT)


def transaction(
    url: str, storage: StorageOptions, work: Callable[[OpenDirs], T], *, uploads: str | None = None
) -> T:
    """Run `work` on a private copy of a log in a bucket, and commit it."""
    from lastword.api.bucket_dirs import in_private, merged_settings

    load = merged_settings(url, None, {})
    return in_private(bucket_at(url, storage), load, SystemClock(), work, uploads=uploads)


def begin_uploads(url: str, storage: StorageOptions, query: str | None) -> str:
    """Announce the uploads of a write; return the name under which they are kept.

    Spark makes one writer for the tasks of a micro-batch and another for its commit: with `query`, the
    checkpoint of a streaming query, the second one finds the name of the first.
    """
    bucket = bucket_at(url, storage)
    if bucket not in _probed:
        probe(bucket.store)
        _probed.add(bucket)
    prefix = "spark-" if query is None else f"spark-{hashlib.sha256(query.encode()).hexdigest()[:16]}-"
    if query is not None:
        loaded = bucket.load()
        enough_ms = max(loaded.modified_ms, bucket.clock.now_ms()) + KEEP_UPLOADS_MS // 2
        for name, pin in loaded.manifest.uploads.items():
            if name.startswith(prefix) and pin.until_ms > enough_ms:
                return name
    name = f"{prefix}{uuid.uuid4().hex}"
    bucket.begin_uploads(name, KEEP_UPLOADS_MS)
    return name


_probed: set[Bucket] = set()


@contextmanager
def private_copy(url: str, storage: StorageOptions) -> Iterator[BucketFiles]:
    """Yield a private copy of the newest version, whose changes a task uploads and does not commit."""
    bucket = bucket_at(url, storage)
    with ScratchSpace(None, bucket.clock) as scratch:
        snapshot = bucket.load().snapshot
        yield BucketFiles(bucket.url, snapshot, bucket.reads, scratch=scratch, rng=bucket.rng)


# ---------------------------------------------------------------- a job of many tasks


@dataclass(frozen=True, slots=True)
class JobPlace:
    """Where the files of a divided cleaning are: in a directory that all tasks see.

    Attributes:
        path: The log.
    """

    path: str

    def files(self) -> Files:
        """Return the files as they are now."""
        return DEFAULT

    def in_task(self, work: Callable[[Files], T]) -> tuple[T, dict[str, Entry]]:
        """Run a step, which writes new files; return its result, and the new files that are in the store."""
        return work(DEFAULT), {}

    def check(self, files: Files, directory: str) -> None:
        """Raise BusyError if the job in `directory` is gone: no file may bring back a removed topic."""
        if not files.is_dir(directory):
            raise BusyError(
                f"{directory}: another process removed the files of this cleaning",
                remedy="clean again",
                file=directory,
            )

    def adopt(self, directory: str, entries: Mapping[str, Entry]) -> None:
        """Commit files that tasks of the job in `directory` uploaded: there are none."""

    def change(self, directory: str, work: Callable[[Files], object]) -> None:
        """Change files of the job in `directory`; in a bucket, commit. `work` may run again."""
        work(DEFAULT)


@dataclass(frozen=True, slots=True)
class BucketPlace(JobPlace):
    """Where the files of a divided cleaning are: in a bucket.

    A task changes a private copy of the newest version and uploads the new files. The driver commits them, so
    that later tasks, and a driver that continues after a kill, read the newest version.

    Attributes:
        storage: Options of its store.
        uploads: The name under which uploads of tasks are kept until they are committed.
    """

    storage: StorageOptions
    uploads: str

    def files(self) -> Files:
        """As `JobPlace.files`."""
        return files_at(self.path, self.storage)

    def in_task(self, work: Callable[[Files], T]) -> tuple[T, dict[str, Entry]]:
        """As `JobPlace.in_task`."""
        bucket = bucket_at(self.path, self.storage)
        vanished = bucket.reads.vanished
        with private_copy(self.path, self.storage) as files:
            result = work(files)
            if bucket.reads.vanished != vanished:  # the step may have taken a file as absent
                raise FileVanishedError(
                    f"{self.path}: the version that a task read is too old",
                    remedy="clean again",
                    file=self.path,
                )
            uploaded = bucket.upload(dict(files.changes()))
        return result, {key: entry for key, entry in uploaded.items() if entry is not None}

    def adopt(self, directory: str, entries: Mapping[str, Entry]) -> None:
        """Commit files that tasks of the job in `directory` uploaded."""
        if entries:
            self._commit(directory, lambda files: files.adopt(entries))

    def change(self, directory: str, work: Callable[[Files], object]) -> None:
        """As `JobPlace.change`."""
        self._commit(directory, work)

    def _commit(self, directory: str, work: Callable[[BucketFiles], object]) -> None:
        def checked(files: BucketFiles) -> None:
            self.check(files, directory)
            work(files)

        bucket = bucket_at(self.path, self.storage)
        bucket.transaction(checked, uploads=self.uploads, ends_uploads=False)


@contextmanager
def job_place(path: str, storage: StorageOptions, directory: str) -> Iterator[BucketPlace]:
    """Yield the place of the job in `directory`, in a bucket, and end its uploads.

    A driver that continues the job of one that was killed continues its uploads.
    """
    name = begin_uploads(path, storage, directory)
    try:
        yield BucketPlace(path, storage, name)
    finally:
        bucket_at(path, storage).end_uploads(name)
