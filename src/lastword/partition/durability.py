"""How far a log survives a power cut, the syncs that move that on, and the failure that ends it.

Two rules make what survives a prefix of the log and never a log with a hole: a segment is synced before its
successor is created, and the directory is synced with the first sync that relies on a new name. The recovery
point moves only after the indexes are synced too, for what lies below it is not looked at again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator

from lastword.clock import Clock
from lastword.errors import LastwordError
from lastword.files import Files
from lastword.partition.epochs import LeaderEpochs
from lastword.partition.segment_store import SegmentStore
from lastword.partition.synced import SyncedMark
from lastword.segment.append import SegmentAppender
from lastword.segment.segment import Segment


class FailureLatch:
    """The first failure after which memory and files of an open log may differ. It is final: the log is
    opened again, and recovery repairs it."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self.error: LastwordError | None = None

    def latch(self, error: LastwordError) -> None:
        self.error = self.error or error

    def latch_if_offline(self, error: LastwordError) -> None:
        if self._files.offline(self._directory) is not None:
            self.latch(error)

    @contextlib.contextmanager
    def latching(self) -> Iterator[None]:
        """Guard a change that may leave a half of itself."""
        try:
            yield
        except LastwordError as error:
            self.latch(error)
            raise

    @contextlib.contextmanager
    def latching_if_offline(self) -> Iterator[None]:
        """Guard a change that leaves the log as it was when it fails, unless the drive went offline."""
        try:
            yield
        except LastwordError as error:
            self.latch_if_offline(error)
            raise


class GroupCommit:
    """A mutex that lets waiters go without a turn, if the holder's work served them: callers that sync at the
    same time share one sync."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._busy = False

    @contextlib.contextmanager
    def turn(self, served: Callable[[], bool] | None = None) -> Iterator[bool]:
        """Wait for the turn; yield True. Yield False, without a turn, as soon as `served` holds."""
        with self._changed:
            while self._busy and not (served and served()):
                self._changed.wait()
            mine = not (served and served())
            if mine:
                self._busy = True
        try:
            yield mine
        finally:
            if mine:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()


class Durability:
    """What is synced of one open log. A sync, and a change of the files, needs the turn of `group_commit`.

    Attributes:
        synced_to: Everything below this offset survives a power cut.
        recovery_point: Everything below it is on the drive with its indexes; recovery begins here.
        directory_unsynced: A name may be missing after a power cut.
    """

    def __init__(
        self,
        store: SegmentStore,
        clock: Clock,
        failure: FailureLatch,
        epochs: LeaderEpochs,
        *,
        unsynced: Iterable[Segment],
        synced_to: int,
        recovery_point: int,
    ) -> None:
        self.group_commit = GroupCommit()
        self.mark = SyncedMark(store.files, store.directory, epochs)
        self.synced_to = synced_to
        self.recovery_point = recovery_point
        self.directory_unsynced = True  # recovery may have made names: the first sync makes them durable
        self._store = store
        self._clock = clock
        self._failure = failure
        self._synced_ms = clock.now_ms()
        self._unsynced = list(unsynced)

    def is_due(self, log_end: int, messages: int, interval_ms: int) -> bool:
        """Are `messages` offsets unsynced, or is one for longer than `interval_ms`? No timer runs: this is
        called after each append."""
        waiting = log_end - self.synced_to
        if waiting >= messages:
            return True
        return waiting > 0 and self._clock.now_ms() - self._synced_ms >= interval_ms

    def begin_segment(self, segment: Segment) -> None:
        """Track a segment that is new, or will be appended to again; all others are synced."""
        self._unsynced = [segment]

    def forget(self, gone: Iterable[Segment], left: Iterable[Segment]) -> None:
        """Drop segments that were removed from the log, except those that are `left`."""
        bases = {s.base_offset for s in gone} - {s.base_offset for s in left}
        self._unsynced = [s for s in self._unsynced if s.base_offset not in bases]

    def lower(self, offset: int) -> None:
        """Note that the log was cut: offsets from here on will be given again."""
        self.synced_to = min(self.synced_to, offset)
        self.recovery_point = min(self.recovery_point, offset)

    def sync_files(self, appender: SegmentAppender, end: int, *, indexes: bool) -> None:
        """Sync every file with offsets below `end` that may not be durable. The caller has the turn."""
        unsynced = list(self._unsynced)
        with self._failure.latching():
            self._sync(appender, unsynced, indexes)
        self._unsynced = [
            s for s in self._unsynced if s not in unsynced or s.base_offset == appender.base_offset
        ]
        if end > self.synced_to:
            self.synced_to = end
            self._synced_ms = self._clock.now_ms()
            with contextlib.suppress(LastwordError):  # it only protects; the sync itself has succeeded
                self.mark.write(end)
        if indexes:
            self.recovery_point = max(self.recovery_point, end)

    def _sync(self, appender: SegmentAppender, unsynced: list[Segment], indexes: bool) -> None:
        for segment in unsynced:
            if segment.base_offset != appender.base_offset:
                self._store.sync(segment)  # from before this process, or from before a recovery
        appender.sync_log()
        if indexes:
            appender.sync_indexes()
        if self.directory_unsynced:
            self.directory_unsynced = False
            try:
                self._store.sync_names()
            except LastwordError:
                self.directory_unsynced = True
                raise
