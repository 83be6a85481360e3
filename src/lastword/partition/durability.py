"""What of a log survives a power cut: the syncs, the synced mark, and the check of where a log must end.

Two rules keep what survives a prefix of the log, without a hole: a segment is synced before its successor is
created, and the directory is synced with the first sync that relies on a new name. The recovery point moves
only after the indexes are synced too, because recovery does not read what is below it.

The synced mark is `<partition>/lastword/synced`, version 2, 18 bytes, big endian:

```
i16 version, 2   i64 offset   i32 leader epoch, -1 without one   u32 CRC-32C of the bytes before
```

Everything below the offset was synced, so a power cut cannot have taken it: damage below the mark comes from
the drive, and is never cut off as a torn tail. The offset was the log end when the mark was written, so a
batch or a segment ends there. The file is written in place after each sync and is not synced itself. If a
power cut takes the newest value, recovery reads an older one, which protects less but is never too high. The
mark is synced only where the log is cut and the mark is lowered.

A broker that uses the directory in between does not read the mark, and may truncate the log below it. Brokers
begin a leader epoch whenever they lead. So a mark whose epoch is not the newest of `leader-epoch-checkpoint`
may be outdated, and is only a hint (`Mark.is_current`).

`LogEnd` combines the facts that say where a log must end:

    mark             current: the log does not end below it, and if no broker ever had the directory and no
                     log in it is a copy, the batches above it leave no gap
    recovery point   everything below it was synced (a text file without a checksum)
    clean stop       the log ends at the recovery point, where the newest producer snapshot is, too
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import google_crc32c

from lastword.clock import Clock
from lastword.errors import CorruptBatchError, FileVanishedError, LastwordError, StorageError
from lastword.files import Files, Handle, Steps, run_steps, sync_along
from lastword.partition.checkpoint_file import LeaderEpochs, read_offset_lines
from lastword.segment import names
from lastword.segment.append import SegmentAppender
from lastword.segment.segment import Segment


class FailureLatch:
    """The first failure after which memory and files of an open log may differ.

    The failure is final: the log must be opened again, and recovery repairs it. An interrupt (Ctrl-C) in the
    middle of a change is such a failure, unless the change takes back what it has done.
    """

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self.error: LastwordError | None = None

    def latch(self, error: LastwordError) -> None:
        """Keep the first error."""
        self.error = self.error or error

    def latch_if_offline(self, error: LastwordError) -> None:
        """Keep the error if the drive is offline."""
        if self._files.offline(self._directory) is not None:
            self.latch(error)

    @contextlib.contextmanager
    def latching(self) -> Iterator[None]:
        """Guard a change that may be half done when it fails."""
        with self.latching_if_interrupted():
            try:
                yield
            except LastwordError as error:
                self.latch(error)
                raise

    @contextlib.contextmanager
    def latching_if_interrupted(self) -> Iterator[None]:
        """Guard a change that leaves the log unchanged when it fails, but not when it is interrupted."""
        try:
            yield
        except LastwordError:
            raise
        except BaseException as error:
            self.latch(self._interrupted(error))
            raise

    def _interrupted(self, error: BaseException) -> StorageError:
        return StorageError(
            f"a change of {self._directory} was interrupted ({type(error).__name__})",
            remedy="close the directory and open it again: recovery repairs the log",
            file=self._directory,
        )

    @contextlib.contextmanager
    def latching_if_offline(self) -> Iterator[None]:
        """Guard a change that leaves the log unchanged when it fails, unless the drive is offline."""
        try:
            yield
        except LastwordError as error:
            self.latch_if_offline(error)
            raise


class GroupCommit:
    """A mutex whose waiters may return without a turn if the holder's work served them.

    Callers that sync at the same time share one sync.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # taken itself: the block of a condition takes four more calls
        self._changed = threading.Condition(self._lock)
        self._busy = False
        self._waiting = 0

    def begin(self, served: Callable[[], bool] | None = None) -> bool:
        """Wait for the turn; return True. Return False, without a turn, as soon as `served` holds."""
        with self._lock:
            while self._busy and not (served and served()):
                self._waiting += 1
                try:
                    self._changed.wait()
                finally:
                    self._waiting -= 1
            if served and served():
                return False
            self._busy = True
            return True

    def end(self) -> None:
        """End the turn."""
        with self._lock:
            self._busy = False
            if self._waiting:
                self._changed.notify_all()

    @contextlib.contextmanager
    def turn(self, served: Callable[[], bool] | None = None) -> Iterator[bool]:
        """Take the turn, as `begin` does, in a block."""
        mine = self.begin(served)
        try:
            yield mine
        finally:
            if mine:
                self.end()


class Durability:
    """What of one open log is synced. A sync, and a change of the files, needs the turn of `group_commit`.

    Attributes:
        synced_to: Everything below this offset survives a power cut.
        recovery_point: Everything below this offset is on the drive with its indexes; recovery begins here.
        directory_unsynced: A name may be missing after a power cut.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        clock: Clock,
        failure: FailureLatch,
        epochs: LeaderEpochs,
        *,
        unsynced: Iterable[Segment],
        synced_to: int,
        recovery_point: int,
    ) -> None:
        self.group_commit = GroupCommit()
        self.mark = SyncedMark(files, directory, epochs)
        self.synced_to = synced_to
        self.recovery_point = recovery_point
        self.directory_unsynced = True  # recovery may have made names: the first sync makes them durable
        self._files = files
        self._directory = directory
        self._clock = clock
        self._failure = failure
        self._synced_at = clock.monotonic()  # a date that is set back must not keep records unsynced
        self._unsynced = list(unsynced)

    def is_due(self, log_end: int, messages: int, interval_ms: int) -> bool:
        """Return whether `messages` offsets are unsynced, or an offset for longer than `interval_ms`.

        No timer runs: this is called after each append.
        """
        waiting = log_end - self.synced_to
        if waiting >= messages:
            return True
        return waiting > 0 and (self._clock.monotonic() - self._synced_at) * 1000 >= interval_ms

    def begin_segment(self, segment: Segment) -> None:
        """Track a segment that is new or will be appended to again; all others are synced."""
        self._unsynced = [segment]

    def forget(self, gone: Iterable[Segment], left: Iterable[Segment]) -> None:
        """Drop segments that were removed from the log, except those that are `left`."""
        bases = {s.base_offset for s in gone} - {s.base_offset for s in left}
        self._unsynced = [s for s in self._unsynced if s.base_offset not in bases]

    def lower(self, offset: int) -> None:
        """Lower both offsets after a cut: offsets from here on will be assigned again."""
        self.synced_to = min(self.synced_to, offset)
        self.recovery_point = min(self.recovery_point, offset)

    def sync_files(self, appender: SegmentAppender, end: int, *, indexes: bool) -> None:
        """Sync every file with offsets below `end` that may not be durable. The caller has the turn."""
        if indexes or self.directory_unsynced or not self._is_alone(appender):
            run_steps(self.syncing(appender, end, indexes=indexes))
            return
        try:  # as `syncing`, for the log file alone
            appender.sync_log()
        except LastwordError as error:
            self._failure.latch(error)
            raise
        self._note_synced(end)

    def _is_alone(self, appender: SegmentAppender) -> bool:
        """Return whether no other segment than the active one may be unsynced."""
        unsynced = self._unsynced
        return not unsynced or (len(unsynced) == 1 and unsynced[0].base_offset == appender.base_offset)

    def syncing(
        self, appender: SegmentAppender, end: int, *, indexes: bool, snapshot: Steps[None] | None = None
    ) -> Steps[None]:
        """As `sync_files`, in steps.

        The first syncs of `snapshot` are made together with those of the segments, which it has no part in.
        So a snapshot gets its name when the batches that it is computed from are durable.
        """
        try:
            appender.open_to_sync(indexes=indexes)
        except FileVanishedError as error:
            self._failure.latch(error)
            raise
        unsynced = list(self._unsynced)
        # Segments from before this process, or from before a recovery, and the active segment.
        older = [partial(self._sync_closed, s) for s in unsynced if s.base_offset != appender.base_offset]
        try:
            syncs = *older, appender.sync_log, *((appender.sync_indexes,) if indexes else ())
            yield from sync_along(syncs, snapshot)
            if self.directory_unsynced:
                self.directory_unsynced = False
                try:
                    yield (partial(self._files.fsync_dir, self._directory),)
                except BaseException:  # an interrupt, too: the names are not durable
                    self.directory_unsynced = True
                    raise
        except LastwordError as error:
            self._failure.latch(error)
            raise
        self._unsynced = [
            s for s in self._unsynced if s not in unsynced or s.base_offset == appender.base_offset
        ]
        self._note_synced(end)
        if indexes:
            self.recovery_point = max(self.recovery_point, end)

    def _sync_closed(self, segment: Segment) -> None:
        """Make all bytes of a closed segment durable."""
        for extension in names.SEGMENT_EXTENSIONS:
            if self._files.exists(segment.stored.path(extension)):
                with segment.stored.open_append(extension) as handle:
                    handle.fsync()

    def _note_synced(self, end: int) -> None:
        if end > self.synced_to:
            self.synced_to = end
            self._synced_at = self._clock.monotonic()
            try:
                self.mark.write(end)
            except LastwordError:  # the mark only protects a sync, which has succeeded
                return


# ---------------------------------------------------------------- the synced mark


VERSION = 2
_FIELDS = struct.Struct(">hqi")
_CRC = struct.Struct(">I")
_BYTES = _FIELDS.size + _CRC.size
_NO_EPOCH = -1


class Mark(NamedTuple):
    """A synced mark.

    Attributes:
        offset: 0: none, or a damaged one.
        is_current: No broker has led since the mark was written.
        is_alone: No broker ever had the directory, and nothing was copied from one. A follower appends the
            leader's batches, with the gaps of a compacted log, and begins no epoch.
    """

    offset: int = 0
    is_current: bool = False
    is_alone: bool = False


class SyncedMark:
    """Write the mark of one partition, with the newest leader epoch."""

    def __init__(self, files: Files, directory: str, epochs: LeaderEpochs) -> None:
        self._files = files
        self._directory = directory
        self._epochs = epochs
        self._handle: Handle | None = None

    def lower(self, offset: int) -> None:
        """Lower the mark, synced. A higher mark must not return: offsets from here on are assigned again."""
        if read_synced(self._files, self._directory) > offset:
            self.write(offset).fsync()

    def write(self, offset: int) -> Handle:
        """Write that everything below `offset` is synced; return the file."""
        if self._handle is None:
            private = f"{self._directory}/{names.PRIVATE}"
            path = f"{private}/{names.SYNCED}"
            try:
                self._handle = self._files.open_append(path)
            except FileVanishedError:
                if not self._files.exists(private):
                    self._files.mkdir(private)
                self._handle = self._files.open_append(path, create=True)
        self._handle.pwrite(encode_mark(offset, self._epochs.latest), 0)
        return self._handle

    def close(self) -> None:
        """Close the file."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None


def encode_mark(offset: int, epoch: int | None) -> bytes:
    """Return the bytes of the mark at an offset. `epoch`: the newest leader epoch."""
    data = _FIELDS.pack(VERSION, offset, _NO_EPOCH if epoch is None else epoch)
    return data + _CRC.pack(google_crc32c.value(data))


def read_synced(files: Files, directory: str) -> int:
    """Return the offset below which everything was synced; 0 if it is not known."""
    return _read(files, directory)[0]


def read_mark(files: Files, directory: str, epochs: LeaderEpochs | None = None) -> Mark:
    """Return the mark, and whether it is current. `epochs`: those of the partition, if they were read."""
    return _mark(files, directory, *_read(files, directory), epochs)


def _mark(files: Files, directory: str, offset: int, epoch: int, epochs: LeaderEpochs | None = None) -> Mark:
    if offset == 0:
        return Mark()
    latest = (epochs or LeaderEpochs.load(files, directory)).latest
    is_current = epoch == (_NO_EPOCH if latest is None else latest)
    root, _ = names.root_and_name(directory)
    return Mark(offset, is_current, not files.exists(f"{root}/{names.HIGH_WATERMARKS}"))


def _read(files: Files, directory: str) -> tuple[int, int]:
    path = f"{directory}/{names.PRIVATE}/{names.SYNCED}"
    try:
        return decode_mark(files.read_bytes(path)) or (0, _NO_EPOCH)
    except LastwordError:
        return 0, _NO_EPOCH


def decode_mark(data: bytes) -> tuple[int, int] | None:
    """Return offset and epoch of a mark's bytes; None if they are damaged."""
    if len(data) != _BYTES:
        return None
    version, offset, epoch = _FIELDS.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _FIELDS.size)
    if version != VERSION or google_crc32c.value(data[: _FIELDS.size]) != crc:
        return None
    return max(offset, 0), epoch


# -------------------------------------------------------------------- where the log must end


class LogEnd(NamedTuple):
    """What a directory says about the end of a log, apart from the log itself.

    Attributes:
        clean: The last holder stopped cleanly: its clean-shutdown marker was there.
        recovery_point: From the checkpoint; 0: not known.
        mark: The synced mark.
        snapshots: Offsets of the producer snapshots.
    """

    clean: bool
    recovery_point: int
    mark: Mark
    snapshots: Collection[int]

    def is_torn_tail(self, offset: int, *, followed: bool) -> bool:
        """Return whether a crash during an append can have left the damaged bytes from `offset` on.

        `followed`: valid batches are behind them. A mark that is not current counts only then.
        """
        if self.clean and (followed or self.contradicts(offset) is not None):
            return False
        mark = self.mark.offset if followed or self.mark.is_current else 0
        return offset >= max(mark, 0 if self.clean else self.recovery_point)

    @property
    def contiguous_from(self) -> int | None:
        """The offset above which no batch leaves a gap; None: not known."""
        mark = self.mark
        return mark.offset if mark.offset and mark.is_current and mark.is_alone else None

    def contradicts(self, end: int) -> int | None:
        """Return where the log must end if it cannot end at `end`; None if it can.

        A current mark has a checksum: the log does not end below it, and a mark at its end decides. Otherwise
        up to three witnesses name the exact end after a clean stop. Each may be damaged, so the log's own end
        holds unless more witnesses name another offset. A snapshot below the end is no witness: the newest
        one may have been removed.
        """
        mark = self.mark.offset if self.mark.is_current else 0
        if end == mark:
            return None
        if not self.clean:
            return mark if end < mark else None
        snapshot = max(self.snapshots, default=0)
        witnesses = [self.recovery_point, mark, snapshot if snapshot >= end else 0]
        others = [offset for offset in witnesses if offset not in (0, end)]
        if not others:
            return None
        named = max(others, key=others.count)
        return named if others.count(named) > witnesses.count(end) else None


def wrong_end(file: str, position: int, end: int, expected: int, *, clean: bool) -> CorruptBatchError:
    """Return the error of a log that must not end at `end`. `position`: where its last batch ends."""
    known = "the last writer stopped cleanly at" if clean else "it was synced up to"
    if end < expected:
        missing = f"offset {end} is" if expected == end + 1 else f"offsets {end}-{expected - 1} are"
        text = f"the log ends at offset {end}, {known} {expected}: {missing} missing"
    else:
        text = f"the log ends at offset {end}, {known} {expected}: a batch has a wrong base offset"
    return CorruptBatchError.damage(text, "wrong-log-end", file, position, min(end, expected))


def read_log_end(files: Files, directory: str, end: int, listing: Collection[str]) -> LogEnd | None:
    """Return what a reader without the lock can see of the log's end.

    None if nothing could contradict a log that ends at `end`. `listing`: the names in the directory.
    """
    root, _ = names.root_and_name(directory)
    clean = files.exists(os.path.join(root, names.CLEAN_SHUTDOWN))
    offset, epoch = _read(files, directory)
    if not clean and offset in (0, end):
        return None
    recovery_point = recovery_point_of(files, directory) if clean else 0
    if clean and offset == recovery_point == end:
        return None  # two of three witnesses, whether the mark is current or not: no epochs are read
    mark = _mark(files, directory, offset, epoch)
    if not clean or (mark.is_current and mark.offset == end):
        return LogEnd(clean, 0, mark, ())
    return LogEnd(clean, recovery_point, mark, names.snapshot_offsets(listing))


def recovery_point_of(files: Files, directory: str) -> int:
    """Return the partition's line of the recovery-point checkpoint; 0 if there is none."""
    root, name = names.root_and_name(directory)
    return read_offset_lines(files, os.path.join(root, names.RECOVERY_POINTS)).offsets.get(name, 0)
