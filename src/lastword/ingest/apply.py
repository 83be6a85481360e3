"""Ingest commits in the process that has the log directory open to append.

The order for one commit: rename the manifest to `applying-`; verify all of its staged batches; open all logs;
note all log ends, durably (`staged_batches.LogEnds`); append to each partition; save writer and sequence, or
mark the commit; remove the manifest, durably; remove the note and the staged files. The settings of the
topics are checked before the note: settings that are changed later do not refuse a part of the commit. So a
commit that is refused has appended nothing, except when its files are damaged between two tries. A note
without its manifest belongs to a commit that is complete.

The order in one partition: append the batches; sync the log, or close it. A process that opens the directory
for a commit only (`commit`) closes each log there, so that the log is synced once, with its indexes and its
producer snapshot; many logs of small batches are closed together. The clean-shutdown marker follows when the
directory is closed; after a crash before, a closed log is recovered like any other. Repeated after a stop at
any point, it appends what is missing and nothing twice: a batch checksum covers neither base offset nor
leader epoch, so the batches above the noted log end can be compared with the staged batches. Batches of a
shared file or of a small one are appended; a large file becomes a segment by a rename
(`partition.staged_batches`), and is then found in the log as the beginning of a segment. A partition with a
file of its own gets the `committed` mark, and its staged files are removed then, so that a bulk load does not
need its room twice. No other process appends in between: the log's lock is held, and after a crash commits
are finished before anything else is appended.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache, partial
from itertools import groupby
from typing import NamedTuple

from lastword.clock import Clock, SystemClock
from lastword.config import Settings
from lastword.errors import (
    BusyError,
    CorruptFileError,
    DataError,
    FileVanishedError,
    LastwordError,
    LogDirLockedError,
    UsageError,
)
from lastword.files import Files, Handle, overlapped
from lastword.ingest import staging
from lastword.ingest.staging import (
    REFUSED_FORM,
    CommitManifest,
    StagedRun,
    Writers,
    entries,
    next_number,
    pending,
    pending_commits,
    read_refusal,
)
from lastword.logdir.log_dir import LogDirectory
from lastword.partition import staged_batches
from lastword.partition.log import PartitionLog
from lastword.partition.staged_batches import (
    Block,
    LogEnds,
    blocks_between,
    blocks_of,
    discard,
    joined,
    staging_dir,
)
from lastword.segment import names
from lastword.wire import HEADER_BYTES

logger = logging.getLogger(__name__)

KEEP_REFUSED_MS = 7 * 24 * 3600 * 1000
KEEP_COMMITTED_MS = 3600 * 1000
"""How long the mark of a commit without a name is kept after its manifest is removed.

It lets a committer whose call failed repeat the call. Later, a repetition is refused, because its staged
files are gone. Each mark costs every later commit a `stat`.
"""
PARALLEL_BYTES = 16 << 20
"""A commit of more bytes uses a thread for each core; a smaller one uses threads only to overlap syncs."""
PARALLEL_PARTITION_BYTES = 1 << 20
"""So does a commit of fewer bytes for each partition."""
LONGEST_PAUSE_SECONDS = 5.0
"""How long `Watch` waits at most before a commit is tried again."""


def open_to_append(
    path: str | os.PathLike[str],
    files: Files | None = None,
    clock: Clock | None = None,
    settings: Settings | Callable[[], Settings] | None = None,
    *,
    rng: random.Random | None = None,
    beside: Mapping[str, str] | None = None,
) -> LogDirectory:
    """Open a log directory to append, and ingest the commits that wait before anything else is appended.

    A commit that cannot be ingested now stays in the inbox, with a warning. Arguments and errors are those of
    `LogDirectory.open`.
    """
    directory = LogDirectory.open(path, "a", files, clock, settings, rng=rng, beside=beside)
    try:
        ingest_pending(directory)
    except LastwordError as error:
        logger.warning("lastword: the inbox of %s: %s", directory.path, error)
    except BaseException:
        directory.close()
        raise
    return directory


def ingest_pending(directory: LogDirectory, *, close_logs: bool = False) -> int:
    """Ingest all commits that wait, the oldest first. Return the number of records appended.

    `close_logs`: the directory was opened for this only, so each log is closed when it has its batches.

    A commit that cannot be ingested (a staged file is damaged, a topic is gone) is set aside as refused, and
    the next commit follows. After a StorageError or CapacityError the commit stays, to be tried again.
    """
    files, root = directory.files, directory.path
    if not pending(files, root):
        if files.exists(os.path.join(root, names.BEGUN)):
            directory.end_commit()  # a complete commit: a crash prevented the removal of its note
        return 0
    added = 0
    # A commit that was begun is first: its batches are the last ones in the log.
    for entry in sorted(
        entries(files, root), key=lambda entry: (entry.prefix != names.APPLYING, entry.number)
    ):
        applying = os.path.join(root, names.APPLYING + entry.name)
        if entry.prefix == names.INBOX:
            directory.end_commit()  # the note of a complete commit
            try:
                files.rename(os.path.join(root, names.INBOX + entry.name), applying)
            except FileVanishedError:
                continue  # the committer took it back
        partitions: Iterable[tuple[str, int]]
        marks: list[str] = []
        try:
            manifest = CommitManifest.decoded(files.read_bytes(applying), applying)
            added += _apply(directory, manifest, close_logs=close_logs)
            partitions = {(run.topic, run.partition) for run in manifest.runs if run.position is None}
            for tp in partitions:
                marks.append(staging.committed_mark(directory.directory(*tp), entry.commit_id))
        except (DataError, UsageError) as error:
            logger.warning("lastword: a commit was refused: %s", error)
            REFUSED_FORM.save(files, os.path.join(root, names.REFUSED + entry.name), {"reason": str(error)})
            partitions = directory.topic_partitions()
        files.unlink(applying, missing_ok=True)
        files.fsync_dir(root)
        directory.end_commit()
        staging.discard_all(files, root, entry.commit_id, partitions)
        for mark in marks:
            files.unlink(mark, missing_ok=True)
    _remove_old(directory)
    return added


def _apply(directory: LogDirectory, manifest: CommitManifest, *, close_logs: bool) -> int:
    writers = Writers.load(directory.files, directory.path)
    named = manifest.writer is not None and manifest.sequence is not None
    files, root, commit_id = directory.files, directory.path, manifest.commit_id
    if staging.is_committed(files, root, commit_id):
        return 0
    if named and writers.last(manifest.writer) >= (manifest.sequence or 0):
        return 0
    staged: dict[tuple[str, int], list[StagedRun]] = {}
    for run in manifest.runs:
        staged.setdefault((run.topic, run.partition), []).append(run)
    existing = set(directory.topic_partitions())
    gone = [f"{topic}-{number}" for topic, number in staged if (topic, number) not in existing]
    if gone:
        raise UsageError(f"{', '.join(sorted(gone))} does not exist any more", remedy="run the job again")
    partitions, size_bytes = sorted(staged), sum(run.size_bytes for run in manifest.runs)
    log_ends = staged_batches.load_log_ends(files, root)
    is_begun = log_ends is not None and log_ends.commit_id == commit_id
    threads = _threads(len(partitions), size_bytes)
    needed = staging.needed_files(files, root, manifest, is_begun=is_begun)
    if not is_begun:
        for topic, number in sorted(dict(reversed(partitions)).items()):  # the first partition of each topic
            directory.topic_config(topic).check_takes_records(f"{topic}-{number}")
    staging.check(
        files,
        needed,
        threads=threads and min(threads, len(needed)),
        config_of=None if is_begun else directory.topic_config,
    )
    # Every log is opened before the first is appended to: a commit that is refused has added nothing.
    logs = directory.logs(partitions)
    noted = log_ends if is_begun else None
    began = {tp: log.begin_commit(_noted_end(log, noted)) for tp, log in logs.items()}
    if not is_begun:
        LogEnds(commit_id, {logs[tp].name: offset for tp, offset in began.items()}).save(files, root)
    sync = manifest.sync or named
    waiting, now_ms = pending_commits(files, root), directory.clock.now_ms()

    @cache  # a commit may have staged files in each partition
    def is_abandoned(other: str) -> bool:
        return other not in waiting and staging.is_abandoned(files, root, other, now_ms)

    with ExitStack() as opened:
        shared = {
            name: opened.enter_context(files.open_read(os.path.join(root, name)))
            for name in {run.name for run in manifest.runs if run.position is not None}
        }

        def append(tp: tuple[str, int], finish: Callable[[], None] | None = None) -> int:
            added = ingest(logs[tp], commit_id, staged[tp], began[tp], finish=finish, shared=shared)
            log = logs[tp]
            listing = log.private_names if close_logs else None  # a log that is open for long may get others
            staging.remove_old(files, log.directory, now_ms, is_abandoned, listing)
            return added

        def finished(tp: tuple[str, int]) -> int:
            finish = partial(directory.close_logs, [tp]) if close_logs else logs[tp].sync if sync else None
            return append(tp, finish)

        # The files of its own that a partition has are removed as soon as its log is closed.
        owners = {(run.topic, run.partition) for run in manifest.runs if run.position is None}
        each, small = partitions, list[tuple[str, int]]()
        if close_logs:
            each, small = sorted(owners), [tp for tp in partitions if tp not in owners]
        added = sum(overlapped(finished, each, threads=threads))
        for first in range(0, len(small), files.together):
            together = small[first : first + files.together]
            added += sum(overlapped(append, together, threads=threads))
            directory.close_logs(together)
    if manifest.writer is not None and manifest.sequence is not None:
        writers.note(manifest.writer, manifest.sequence, directory.clock.now_ms())
        writers.save(files, root)
    else:
        staging.mark_committed(files, root, commit_id)
    return added


def _noted_end(log: PartitionLog, log_ends: LogEnds | None) -> int | None:
    """Return the log end at which an earlier try of the commit began; None: this is the first try.

    A note that was there when the log was opened holds the log back: without that, no note is looked for.
    """
    if log.incomplete_commit_offset is None or log_ends is None:
        return None
    return log_ends.offsets.get(names.root_and_name(log.directory)[1])


def _threads(partitions: int, size_bytes: int) -> int | None:
    """Return the number of threads for this many bytes; None: `overlapped` decides by the drive's waits.

    Reading, checking and writing release the interpreter's lock. For a small partition that takes less time
    than other threads take to get the lock.
    """
    if size_bytes < PARALLEL_BYTES or size_bytes < partitions * PARALLEL_PARTITION_BYTES:
        return None
    return min(partitions, os.cpu_count() or 1)


def _remove_old(directory: LogDirectory) -> None:
    """Remove what commits left that are complete, that were refused, or whose committers died.

    Called when no manifest is `applying-`, so no mark is needed to finish its commit.
    """
    files, now_ms = directory.files, directory.clock.now_ms()
    staging.remove_old_shared(files, directory.path, now_ms)
    for name in files.listdir(directory.path):
        if name[: len(names.OURS)] != names.OURS:  # that of a partition
            continue
        is_mark = name.startswith(names.COMMITTED)
        unfinished = name.startswith(names.INBOX) and name.endswith(".tmp")
        if not (is_mark or unfinished or name.startswith(names.REFUSED)):
            continue
        path = os.path.join(directory.path, name)
        facts = files.stat(path)
        if facts is not None and facts.mtime_ms < now_ms - (
            KEEP_COMMITTED_MS if is_mark else KEEP_REFUSED_MS
        ):
            files.unlink(path, missing_ok=True)


# ---------------------------------------------------------------- one partition


def ingest(
    log: PartitionLog,
    commit_id: str,
    staged: Iterable[StagedRun],
    began: int,
    *,
    finish: Callable[[], None] | None,
    shared: Mapping[str, Handle] | None = None,
) -> int:
    """Append a commit's staged batches to one log, in their order. Return the number of records appended.

    Args:
        log: The log.
        commit_id: The commit.
        staged: The staged runs of this partition.
        began: The log end at which the commit began, which is noted durably.
        finish: Syncs or closes the log when it has the batches; None: neither.
        shared: The open shared files of the runs, by name.
    """
    files, directory = log.files, log.directory
    # A writer that has both kinds of files wrote its shared one first.
    wanted = sorted(staged, key=lambda run: (run.order, run.position is None))
    mark, folder = staging.committed_mark(directory, commit_id), staging_dir(directory, commit_id)
    owns_files = None in [run.position for run in wanted]
    if owns_files and files.exists(mark):
        discard(files, directory, commit_id)
        return 0
    with log.lock:  # the batches of a commit are neighbours in the log
        appended = _Appended(files, _appended_since(log, began))
        before = log.log_end
        for is_shared, runs in groupby(wanted, key=lambda run: run.position is not None):
            if is_shared:
                _append_missing(log, appended, joined(_blocks_of_shared(runs, shared or {})))
                continue
            for run in runs:
                path = os.path.join(folder, run.name)
                if appended.as_segment(run, path) or (
                    appended.is_over
                    and staged_batches.is_worth_a_segment(log.config, run.size_bytes)
                    and log.ingest_file(path)
                ):
                    continue
                _append_missing(log, appended, blocks_of(files, path))
        added = log.log_end - before  # a staged batch has an offset for each record, and no others
    if finish is not None:
        finish()
    if owns_files:
        files.write_atomic(mark, b"")
        discard(files, directory, commit_id)
    return added


def _blocks_of_shared(runs: Iterable[StagedRun], shared: Mapping[str, Handle]) -> Iterator[Block]:
    """Yield the batches of runs in shared files."""
    for run in runs:
        assert run.position is not None
        yield from blocks_between(shared[run.name], run.position, run.position + run.size_bytes)


def _append_missing(log: PartitionLog, appended: _Appended, blocks: Iterable[Block]) -> None:
    """Append the batches that the log does not have, each block with one write."""
    for block in blocks:
        # Without `sync`, too: a directory that was opened for this commit syncs when it is closed.
        log.append_batches(appended.missing(block), sync_follows=True, is_begun=True)


class _Batch(NamedTuple):
    """A batch that was appended since a commit began. `begins`: it is the first of a segment."""

    identity: tuple[int, int]
    begins: bool


class _Appended:
    """The batches that earlier tries of a commit have appended.

    Each try is a run of the commit's batches in their order, perhaps with other batches between two tries.
    """

    def __init__(self, files: Files, batches: list[_Batch]) -> None:
        self._files = files
        self._batches = batches
        self._at = 0

    @property
    def is_over(self) -> bool:
        """Return whether no more batches of the commit are in the log."""
        return self._at == len(self._batches)

    def as_segment(self, file: StagedRun, path: str) -> bool:
        """Return whether the file became a segment: it was renamed, and is in the log."""
        if self._files.exists(path):
            return False
        for at in range(self._at, len(self._batches)):
            end, size_bytes = at, 0
            while self._batches[at].begins and end < len(self._batches) and size_bytes < file.size_bytes:
                size_bytes += self._batches[end].identity[0]
                end += 1
            if size_bytes == file.size_bytes:
                self._at = end
                return True
        raise CorruptFileError(f"{path} is gone, and not in the log", remedy="run the job again", file=path)

    def missing(self, block: Block) -> Sequence[memoryview]:
        """Return the batches of the next block that are not in the log."""
        if self.is_over:
            return block
        return [batch for batch in block if not self._has(batch)]

    def _has(self, batch: memoryview) -> bool:
        """Return whether the next batch is in the log. After the first missing batch all are missing."""
        wanted = _identity(batch) if self._at < len(self._batches) else None
        for at in range(self._at, len(self._batches)):
            if self._batches[at].identity == wanted:
                self._at = at + 1
                return True
        self._at = len(self._batches)
        return False


def _appended_since(log: PartitionLog, offset: int) -> list[_Batch]:
    """Return the batches from `offset` on: an earlier try of the commit may have appended them."""
    batches = []
    for segment in log.segments:
        if segment.next_offset > offset:
            for header in segment.headers(segment.position_of(offset)):
                if header.base_offset >= offset:
                    batches.append(_Batch(_identity(segment.read_batch(header)), header.position == 0))
    return batches


def _identity(batch: bytes | memoryview) -> tuple[int, int]:
    """Return the size and the checksum of a batch's records, which appending does not change.

    The header's own checksum changes with the time of the append.
    """
    return len(batch), zlib.crc32(memoryview(batch)[HEADER_BYTES:])


# ---------------------------------------------------------------- while the directory is open


class Watch:
    """A thread that ingests commits while a directory is open to append.

    It reads the root's modification time (about a microsecond), and lists the root only if that time has
    changed, as a rename into the directory changes it, or if a commit is left over. A commit that cannot be
    ingested now, because the drive is full, is tried again after pauses that double: each try verifies all of
    its staged batches.
    """

    def __init__(self, directory: LogDirectory, every_seconds: float = 0.1) -> None:
        self._directory = weakref.ref(directory)  # a directory that is dropped without a close ends its watch
        self._every = every_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lastword-ingest", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        changed_ms, pause = 0, self._every
        while not self._stop.wait(pause):
            directory = self._directory()
            if directory is None:
                return
            checked_ms = self._check(directory, changed_ms)
            pause = self._every if checked_ms is not None else min(2 * pause, LONGEST_PAUSE_SECONDS)
            changed_ms = checked_ms or 0
            del directory

    def _check(self, directory: LogDirectory, last_ms: int) -> int | None:
        """Ingest if the root has changed since `last_ms`; 0: it counts as changed.

        Returns:
            The root's modification time; None: a commit could not be ingested.
        """
        try:
            facts = directory.files.stat(directory.path)
            changed_ms = 0 if facts is None else facts.mtime_ms
            if changed_ms == last_ms and not self._is_recent(changed_ms):
                return last_ms
            ingest_pending(directory)
            return changed_ms
        except LastwordError as error:
            logger.warning("lastword: the inbox of %s: %s", directory.path, error)
            return None

    @staticmethod
    def _is_recent(changed_ms: int) -> bool:
        """Return whether a later change could have the same modification time: file times are coarse."""
        return not changed_ms or time.time_ns() // 1_000_000 - changed_ms < 1000

    def close(self) -> None:
        """Stop the thread. Returns when nothing is being ingested any more."""
        self._stop.set()
        self._thread.join()


# ---------------------------------------------------------------- commit from another process


def commit(
    root: str,
    manifest: CommitManifest,
    files: Files,
    open_log_dir: Callable[[], LogDirectory],
    *,
    patience_seconds: float,
    clock: Clock | None = None,
) -> None:
    """Put the manifest into the inbox, and return when it is ingested, by this process or another.

    Args:
        root: The log directory.
        manifest: The commit.
        files: The storage.
        open_log_dir: Opens the directory to append, or raises LogDirLockedError.
        patience_seconds: How long to wait for another process to ingest the manifest.
        clock: Numbers the manifest, and waits.

    Raises:
        BusyError: The holder of the lock did not ingest the manifest in time: it is a broker, or does not
            watch the inbox. The manifest was removed, and nothing was written.
        DataError: The commit was refused; its staged files are damaged, or a topic is gone.
    """
    clock = clock or SystemClock()
    name = f"{next_number(files, root, clock.now_ms()):020d}-{manifest.commit_id}"
    waiting = os.path.join(root, names.INBOX + name)
    applying = os.path.join(root, names.APPLYING + name)
    refused = os.path.join(root, names.REFUSED + name)
    files.write_atomic(waiting, manifest.encoded())
    deadline = clock.monotonic() + patience_seconds
    while True:
        check_refusal(files, refused, manifest)
        if not files.exists(waiting) and not files.exists(applying):
            if files.exists(refused):
                continue
            return
        try:
            with open_log_dir() as directory:
                ingest_pending(directory, close_logs=True)
                continue
        except LogDirLockedError as error:
            late = clock.monotonic() - deadline
            if late > 0:
                _stop_waiting(error, files, root, waiting, applying, late, patience_seconds)
        except LastwordError as error:
            if not _add_outcome(error, files, root, waiting, applying, manifest.commit_id):
                continue  # this manifest is ingested: another one failed
            raise
        clock.sleep(0.05)


def check_refusal(files: Files, refused: str, manifest: CommitManifest) -> None:
    """Raise DataError with the reason if the commit was refused."""
    if files.exists(refused):
        reason = read_refusal(files, refused)
        raise DataError(f"commit {manifest.commit_id} was refused: {reason}", file=refused)


def _stop_waiting(
    error: LogDirLockedError,
    files: Files,
    root: str,
    waiting: str,
    applying: str,
    late: float,
    patience_seconds: float,
) -> None:
    """Raise BusyError if the commit was taken back, or has been in progress for ten times the patience."""
    if _take_back(files, root, waiting):
        raise BusyError(
            f"{error.message}, and did not ingest the commit within {patience_seconds:.0f} s; "
            "nothing was written",
            remedy="stop that process, or use a process that has the directory open in mode 'a'",
        ) from error
    if late > 10 * patience_seconds and files.exists(applying):
        raise BusyError(
            f"{error.message}, and has been ingesting the commit for {late:.0f} s; the outcome is not known",
            remedy="run the job again with the same producer and sequence: it is appended once",
        ) from error


def _add_outcome(
    error: LastwordError, files: Files, root: str, waiting: str, applying: str, commit_id: str
) -> bool:
    """Add to the error what became of the commit. False if the commit is ingested."""
    if _take_back(files, root, waiting):
        outcome = f"commit {commit_id} was taken back, and nothing was written"
    elif files.exists(applying):
        outcome = (
            f"commit {commit_id} was begun, and is completed when the directory is next opened to append"
        )
    else:
        return False
    error.message += f"; {outcome}"
    error.args = (error.message,)
    return True


def _take_back(files: Files, root: str, waiting: str) -> bool:
    """Remove the manifest from the inbox. False if another process has begun to ingest it."""
    try:
        files.unlink(waiting)
    except FileVanishedError:
        return False
    files.fsync_dir(root)
    return True
