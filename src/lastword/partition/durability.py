"""How far a log survives a power cut, and the syncs that move that on.

Two rules make what survives a prefix of the log and never a log with a hole: a segment is synced before its
successor is created, and the directory is synced with the first sync that relies on a new name. The recovery
point moves only after the indexes are synced too, for what lies below it is not looked at again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from lastword.clock import Clock
from lastword.errors import LastwordError
from lastword.files import Files
from lastword.partition.health import Health
from lastword.partition.synced import SyncedMark
from lastword.partition.turns import Turns
from lastword.segment import names
from lastword.segment.append import SegmentAppender
from lastword.segment.segment import Segment
from lastword.segment.txn_index import TransactionIndex


class Durability:
    """Of one open log. Whoever syncs, or changes which files there are, has the turn (`turns`).

    synced_to           everything below this offset survives a power cut
    recovery_point      everything below it is on the drive with its indexes; recovery begins here
    directory_unsynced  a name may be missing after a power cut
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        clock: Clock,
        health: Health,
        *,
        unsynced: Iterable[Segment],
        synced_to: int,
        recovery_point: int,
        epoch: Callable[[], int | None],
    ) -> None:
        self.turns = Turns()
        self.mark = SyncedMark(files, directory, epoch)
        self.synced_to = synced_to
        self.recovery_point = recovery_point
        self.directory_unsynced = True  # recovery may have made names: the first sync makes them durable
        self._files = files
        self._directory = directory
        self._clock = clock
        self._health = health
        self._synced_ms = clock.now_ms()
        self._unsynced = list(unsynced)

    def is_due(self, log_end: int, messages: int, interval_ms: int) -> bool:
        """Is more unsynced than `messages`, or something for longer than `interval_ms`? Asked at each append:
        nothing here wakes up by itself."""
        waiting = log_end - self.synced_to
        if waiting >= messages:
            return True
        return waiting > 0 and self._clock.now_ms() - self._synced_ms >= interval_ms

    def begun(self, segment: Segment) -> None:
        """All other segments are synced; this one is new, or will be written again."""
        self._unsynced = [segment]

    def forget(self, gone: Iterable[Segment], left: Iterable[Segment]) -> None:
        """These are not the log's any more, but for those that were left."""
        bases = {s.base_offset for s in gone} - {s.base_offset for s in left}
        self._unsynced = [s for s in self._unsynced if s.base_offset not in bases]

    def lower(self, offset: int) -> None:
        """The log was cut: offsets from here on will be given again."""
        self.synced_to = min(self.synced_to, offset)
        self.recovery_point = min(self.recovery_point, offset)

    def sync_files(
        self, appender: SegmentAppender, aborted: TransactionIndex, end: int, *, indexes: bool
    ) -> None:
        """Sync all that holds offsets below `end` and may not be durable; the turn is taken."""
        unsynced = list(self._unsynced)
        self._health.fatal(lambda: self._sync(appender, aborted, unsynced, indexes))
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

    def _sync(
        self, appender: SegmentAppender, aborted: TransactionIndex, unsynced: list[Segment], indexes: bool
    ) -> None:
        for segment in unsynced:
            if segment.base_offset != appender.base_offset:
                self._sync_closed(segment)
        appender.sync_log()
        if indexes:
            appender.sync_indexes()
            if aborted.entries:
                aborted.sync()
        if self.directory_unsynced:
            self.directory_unsynced = False
            try:
                self._files.fsync_dir(self._directory)
            except LastwordError:
                self.directory_unsynced = True
                raise

    def _sync_closed(self, segment: Segment) -> None:
        """A closed segment from before this process, or from before a recovery: all its files."""
        for extension in names.SEGMENT_EXTENSIONS:
            path = segment.path(extension)
            if self._files.exists(path):
                with self._files.open_append(path) as handle:
                    handle.fsync()
