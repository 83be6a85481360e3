"""Batches on their way into the log: staged by tasks, taken in by whoever holds the log open to append.

Below <partition>/lastword/:

    staging-<job>/<task>-<attempt>.batches    whole batches, base offset 0 in each
    staging-<job>/begun.json                  where the log ended when taking in began (framed JSON)
    committed-<job>                           this partition has taken in the job
    open-<job>                                attempts may still stage (in one partition: `home`)

An attempt writes into files of its own, so two attempts of one task never meet, and what a lost attempt
left is never named by a commit. In a batch's checksum neither base offset nor leader epoch takes part, so
taking in means to give out offsets, and no record is touched. A small file's batches are appended; a large
one becomes a segment by a rename (`adopting`).

Valid when: a commit (`logdir.inbox`) names the file. Durable: synced by its task, before it is named. A
crash while taking in leaves a part of the batches in the log; `begun.json` says from where on to compare,
batch by batch, what is there already, so the same commit can be made again and adds only what is missing. A
file that is gone by then must be found there as a segment's beginning.
Until the commit is complete, records from there on are neither cleaned nor trimmed nor moved
(`incomplete_commit`).
Nobody else appends to the partition in between: the log's lock is held, and after a crash commits are
finished before anything else. An abort removes staged files and never a record: what was taken in stays.

A job is aborted, and one that had speculative copies is committed, while attempts may still run. So commit
and abort first remove the job's `open` mark and then what is staged, and an attempt stages first and then
looks for the mark: whichever comes last cleans up.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from lastword.errors import CorruptFileError, FileTakenError, FileVanishedError, StorageError
from lastword.files import Files, Handle
from lastword.partition import adopting
from lastword.partition.block import Block, blocks_of
from lastword.partition.incomplete_commit import BEGUN, STAGING, staging_dir
from lastword.segment import names
from lastword.wire import HEADER_BYTES

if TYPE_CHECKING:
    from lastword.partition.log import PartitionLog

COMMITTED, OPEN = "committed-", "open-"
BATCHES = ".batches"
KEEP_MARKS_MS = 7 * 24 * 3600 * 1000
"""How long a partition remembers that it took in a job, and how long a job may leave staged files behind."""

AHEAD_BYTES = 4 << 20
"""So much is handed to the drive at once while a task goes on."""


@dataclass(frozen=True, slots=True)
class StagedFile:
    """What one attempt of one task holds ready for one partition of the log."""

    topic: str
    partition: int
    task: int
    name: str
    size_bytes: int
    records: int


def private_dir(directory: str) -> str:
    return os.path.join(directory, names.PRIVATE)


def open_job(files: Files, home: str, job: str) -> None:
    """Allow attempts to stage. `home` is the directory of a partition."""
    private = private_dir(home)
    make_dir(files, private)
    files.open_append(os.path.join(private, OPEN + job), create=True).close()


def job_is_open(files: Files, home: str, job: str) -> bool:
    return files.exists(os.path.join(private_dir(home), OPEN + job))


def close_job(files: Files, home: str, job: str) -> None:
    """From now on, attempts of the job remove what they stage."""
    files.unlink(os.path.join(private_dir(home), OPEN + job), missing_ok=True)


class StagedWriter:
    """One attempt's file for one partition, made at the first batch."""

    def __init__(
        self, files: Files, root: str, topic: str, partition: int, job: str, task: tuple[int, int]
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.size_bytes = 0
        self.records = 0
        self._ahead = 0  # up to here the drive was asked to begin
        self._files = files
        self._private = private_dir(os.path.join(root, names.partition_dir(topic, partition)))
        self._directory = os.path.join(self._private, STAGING + job)
        self._task, attempt = task
        self._name = f"{self._task:05d}-{attempt}{BATCHES}"
        self._handle: Handle | None = None

    def write(self, data: bytes | memoryview, records: int) -> None:
        """Whole batches, one behind another."""
        if self._handle is None:
            for directory in (self._private, self._directory):
                make_dir(self._files, directory)
            path = os.path.join(self._directory, self._name)
            self._handle = self._files.open_append(path, create=True, exclusive=True)
        self._handle.append(data)
        self.size_bytes += len(data)
        if (
            self.size_bytes - self._ahead >= AHEAD_BYTES
        ):  # it is synced soon: here, or when it becomes a segment
            self._handle.start_sync(self._ahead, self.size_bytes - self._ahead)
            self._ahead = self.size_bytes
        self.records += records

    def close(self, sync: bool) -> StagedFile | None:
        """None if nothing was written. After it, with `sync`, the batches survive a power cut."""
        if self._handle is None:
            return None
        if sync:
            self._handle.fsync()
            for directory in (self._directory, self._private, os.path.dirname(self._private)):
                self._files.fsync_dir(directory)
        self._handle.close()
        return StagedFile(self.topic, self.partition, self._task, self._name, self.size_bytes, self.records)

    def remove(self) -> None:
        """Take back what this attempt has staged."""
        if self._handle is not None:
            self._handle.close()
            self._files.unlink(os.path.join(self._directory, self._name), missing_ok=True)
            with contextlib.suppress(StorageError):  # other attempts' files are in it, or it is gone
                self._files.rmdir(self._directory)


def make_dir(files: Files, path: str) -> None:
    """Make a directory that another task may be making at the same time, if it is not there."""
    if not files.exists(path):
        with contextlib.suppress(FileTakenError):
            files.mkdir(path)


def check(files: Files, directory: str, job: str, staged: Iterable[StagedFile]) -> None:
    """CorruptFileError if a file is not as its task left it, unless the partition has taken it in already."""
    if files.exists(os.path.join(private_dir(directory), COMMITTED + job)):
        return
    folder = staging_dir(directory, job)
    begun = files.exists(os.path.join(folder, BEGUN))
    found = {one.name: _size(files, os.path.join(folder, one.name)) for one in staged}
    # One that is gone from a commit that was begun is a segment, which `take_in` makes sure of.
    missing = [one.name for one in staged if found[one.name] not in (one.size_bytes, -1 if begun else None)]
    if missing:
        raise CorruptFileError(
            f"{folder}: {', '.join(missing)} of this job is not as its task left it; nothing was appended to "
            f"{os.path.basename(directory)}",
            remedy="run the job again",
            file=folder,
        )


def check_batches(files: Files, directory: str, job: str, staged: Iterable[StagedFile]) -> None:
    """CorruptBatchError for a byte that changed since its task wrote it: asked of all partitions before the
    first is appended to, or a commit that is refused would have added something."""
    if files.exists(os.path.join(private_dir(directory), COMMITTED + job)):
        return
    for one in staged:
        path = os.path.join(staging_dir(directory, job), one.name)
        if files.exists(path):  # or else it was checked when it became a segment
            for block in blocks_of(files, path):
                block.check(path)


def take_in(
    log: PartitionLog, job: str, staged: Iterable[StagedFile], *, sync: bool, waiting: Container[str] = ()
) -> int:
    """Append a job's batches to the log, in the order of their tasks; returns how many records were
    new. What jobs staged whose commits are `waiting` stays, however old it is.

    The order: remember where the log ends; append; sync the log; remember that the job is in; remove what
    was staged. Made again after a stop at any point, it adds what is missing and nothing twice.
    """
    files, directory = log.files, log.directory
    wanted = sorted(staged, key=lambda one: one.task)
    mark = os.path.join(private_dir(directory), COMMITTED + job)
    if not wanted or files.exists(mark):
        log.end_commit(job)
        return 0
    folder = staging_dir(directory, job)
    check(files, directory, job, wanted)
    with log.lock:  # nobody's batch may come between these, or a second try could not tell its own
        already = _Already(files, _appended_since(log, log.begin_commit(job)))
        before = log.log_end
        for one in wanted:
            path = os.path.join(folder, one.name)
            if already.adopted(one, path) or (
                already.is_over and adopting.suits(log.config, one.size_bytes) and log.adopt(path)
            ):
                continue
            for block in blocks_of(files, path):
                # Without `sync`, too: a directory that was opened for this commit syncs when it is closed.
                log.append_batches(already.missing(block), sync_follows=True)
        added = log.log_end - before  # staged batches have an offset for each record, and no other
    if sync:
        log.sync()
    files.write_atomic(mark, b"")
    _forget_old(files, directory, log.clock.now_ms(), waiting)
    log.end_commit(job)
    return added


class _Found(NamedTuple):
    """A batch that was appended since a commit began. `begins`: a segment."""

    identity: tuple[int, int]
    begins: bool


class _Already:
    """What earlier tries have appended: each a run of the job's batches in their order, maybe with others'
    batches between two tries."""

    def __init__(self, files: Files, found: list[_Found]) -> None:
        self._files = files
        self._found = found
        self._at = 0

    @property
    def is_over(self) -> bool:
        """From here on nothing of the job is in the log."""
        return self._at == len(self._found)

    def adopted(self, one: StagedFile, path: str) -> bool:
        """Has this file become a segment? Then it is not where it was staged any more."""
        if self._files.exists(path):
            return False
        for at in range(self._at, len(self._found)):
            end, size_bytes = at, 0
            while self._found[at].begins and end < len(self._found) and size_bytes < one.size_bytes:
                size_bytes += self._found[end].identity[0]
                end += 1
            if size_bytes == one.size_bytes:
                self._at = end
                return True
        raise CorruptFileError(f"{path} is gone, and not in the log", remedy="run the job again", file=path)

    def missing(self, block: Block) -> Sequence[memoryview]:
        """The batches of the next block that are not there."""
        if self.is_over:
            return block
        return [batch for batch in block if not self.has(batch)]

    def has(self, batch: memoryview) -> bool:
        """Asked batch by batch; the first one that is not there ends it."""
        wanted = _identity(batch) if self._at < len(self._found) else None
        for at in range(self._at, len(self._found)):
            if self._found[at].identity == wanted:
                self._at = at + 1
                return True
        self._at = len(self._found)
        return False


def _appended_since(log: PartitionLog, offset: int) -> list[_Found]:
    """The batches from `offset` on, which an earlier try of this commit may have appended."""
    found = []
    for segment in log.segments:
        if segment.next_offset > offset:
            for header in segment.headers(segment.position_of(offset)):
                if header.base_offset >= offset:
                    found.append(_Found(_identity(segment.read_batch(header)), header.position == 0))
    return found


def _identity(batch: bytes | memoryview) -> tuple[int, int]:
    """What tells a batch from another however it was appended: the header's checksum changes with the time
    of append.
    """
    return len(batch), zlib.crc32(memoryview(batch)[HEADER_BYTES:])


def _size(files: Files, path: str) -> int:
    facts = files.stat(path)
    return -1 if facts is None else facts.size


def _forget_old(files: Files, directory: str, now_ms: int, waiting: Container[str]) -> None:
    """Drop marks, and staged files of jobs that died before their commit, that nobody has touched for a
    week."""
    private = private_dir(directory)
    for name in files.listdir(private):
        path = os.path.join(private, name)
        if not name.startswith((STAGING, COMMITTED, OPEN)) or name.partition("-")[2] in waiting:
            continue
        facts = files.stat(path)
        if facts is None or facts.mtime_ms > now_ms - KEEP_MARKS_MS:
            continue
        try:
            if name.startswith(STAGING):
                files.remove_tree(path)
            else:
                files.unlink(path, missing_ok=True)
        except FileVanishedError:
            continue
