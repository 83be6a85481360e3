"""Keep the logs of one directory that are open to append, with their locks and gauges.

A partition is recovered when it is first used, according to how its last writer left it. It stays open until
the directory is closed or the partition leaves it. A damaged partition is offline from then on.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from lastword import metrics
from lastword.clock import Clock
from lastword.config import TopicConfig
from lastword.errors import DiskFullError, LastwordError
from lastword.files import Files, Steps, real_path, run_together
from lastword.logdir.checkpoints import TopicPartition
from lastword.partition import leases
from lastword.partition.log import PartitionLog
from lastword.partition.open import opening
from lastword.partition.recovery import Recovery, Repaired
from lastword.segment import names

if TYPE_CHECKING:
    from lastword.partition.view import PartitionView


class DirRecovery(NamedTuple):
    """What opening to append repaired.

    clean        the last writer stopped cleanly; None in mode "r", which repairs nothing
    partitions   in the order in which they were opened
    offline      partitions that could not be opened, with the reason
    """

    path: str
    clean: bool | None
    partitions: tuple[Recovery, ...]
    offline: tuple[tuple[TopicPartition, LastwordError], ...]

    @property
    def repaired(self) -> tuple[Repaired, ...]:
        """All repairs."""
        return tuple(repaired for partition in self.partitions for repaired in partition.repaired)


class _Left(NamedTuple):
    """How the last writer left a partition. `clean`: all promises of a clean stop hold."""

    recovery_point: int
    log_start: int
    clean: bool


class OpenPartitions:
    """The open logs of one directory. `logs` may be read without a lock; the rest needs the directory's lock.

    logs        the open logs
    offline     partitions that are damaged or refused, with the error that every use of them raises
    left_clean  the directory's clean-shutdown marker existed
    on_roll     called after each roll of a log, with the log's lock held
    """

    def __init__(self, files: Files, clock: Clock, rng: random.Random, on_roll: Callable[[], None]) -> None:
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.offline: dict[TopicPartition, LastwordError] = {}
        self.left_clean = False
        self._files = files
        self._clock = clock
        self._rng = rng
        self._on_roll = on_roll
        self._closed: dict[TopicPartition, PartitionLog] = {}
        self._recovered: list[Recovery] = []
        self._left: dict[TopicPartition, _Left] = {}

    # -------------------------------------------------------------- how they were left

    def found(
        self,
        clean: bool,
        recovery_points: Mapping[TopicPartition, int],
        log_starts: Mapping[TopicPartition, int],
    ) -> None:
        """Set how the last writer left the directory: `clean` by its marker, and its checkpoints."""
        self.left_clean = clean
        for tp in recovery_points.keys() | log_starts.keys():
            self._left[tp] = _Left(recovery_points.get(tp, 0), log_starts.get(tp, 0), clean)

    def made(self, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions that were just made and are empty."""
        for tp in partitions:
            self._left[tp] = _Left(0, 0, clean=True)

    def came(self, tp: TopicPartition, recovery_point: int, log_start: int) -> None:
        """Add a partition that was copied from elsewhere, for which the marker does not count."""
        self._left[tp] = _Left(recovery_point, log_start, clean=False)
        self.offline.pop(tp, None)

    def _how_left(self, tp: TopicPartition) -> _Left:
        return self._left.get(tp) or _Left(0, 0, self.left_clean)

    # -------------------------------------------------------------- open

    def opening(
        self,
        tp: TopicPartition,
        directory: str,
        config: TopicConfig,
        *,
        first_dirty: Callable[[], int | None],
        producer_expiration_ms: int,
    ) -> Steps[PartitionLog]:
        """Recover the partition in `directory` and open it.

        DataError if it is damaged; nothing is opened then.
        """
        left = self._how_left(tp)
        log, recovery = yield from opening(
            self._files,
            directory,
            config,
            self._clock,
            recovery_point=left.recovery_point,
            log_start=left.log_start,
            first_dirty=lambda: first_dirty() or 0,
            clean=left.clean,
            rng=self._rng,
            producer_expiration_ms=producer_expiration_ms,
        )
        log.tail.on_roll = self._on_roll
        self._recovered.append(recovery)
        if config.compacts and self._is_idle(log):
            with suppress(DiskFullError):  # the log can be read and shortened; retention tries it again
                log.roll_if_due()
        self.logs[tp] = log
        return log

    def _is_idle(self, log: PartitionLog) -> bool:
        """Return whether only time can close the active segment, because nothing was appended for long.

        The file's time decides, not the records' times: a log of old records would get a new segment at every
        opening.
        """
        config, active = log.config, log.active
        limit = min(config.segment_ms, config.max_compaction_lag_ms)
        return active.size > 0 and self._clock.now_ms() - active.mtime_ms > limit

    def recovery(self, path: str, mode: str) -> DirRecovery:
        """Return the report of all openings so far."""
        clean = self.left_clean if mode == "a" else None
        return DirRecovery(path, clean, tuple(self._recovered), tuple(sorted(self.offline.items())))

    # -------------------------------------------------------------- close

    @property
    def used(self) -> dict[TopicPartition, PartitionLog]:
        """Return the open logs, and those that were closed before the directory."""
        return self._closed | self.logs

    def closed(self, tp: TopicPartition) -> None:
        """Drop a log that was closed cleanly. `used` has it, because its checkpoints are not written yet."""
        log = self._closed[tp] = self.logs.pop(tp)
        self._left[tp] = _Left(log.recovery_point, log.log_start, clean=True)

    def let_go(self, tp: TopicPartition) -> None:
        """Close a partition that leaves the directory, and drop it.

        If it does not leave because of an error, the next use recovers it as it was left here.
        """
        log = self.logs.pop(tp, None)
        if log is not None:
            log.abandon()
            self._left[tp] = _Left(log.recovery_point, log.log_start, clean=False)
        self._closed.pop(tp, None)
        self.offline.pop(tp, None)

    def refuse(self, tp: TopicPartition, why: LastwordError) -> None:
        """Close a partition, and raise `why` in every use of it."""
        log = self.logs.pop(tp, None)
        if log is not None:
            log.retire(why)
            log.abandon()
        self.offline[tp] = why

    def gone(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop partitions that were let go, and whose names are gone."""
        for tp in partitions:
            self._left.pop(tp, None)

    def close(self, root: str) -> tuple[bool, LastwordError | None]:
        """Close every log of the directory `root`, also after one has failed.

        Returns:
            Whether all partitions that were used keep the promises of a clean stop, and the first error.
        """
        closed = run_together([log.closing() for log in self.logs.values()], self._files, root)
        failed = next((result for result in closed if isinstance(result, LastwordError)), None)
        return not self.offline and all(result is True for result in closed), failed

    def drop(self) -> None:
        """Drop the logs of a closed directory. They refer to it, so only the collector would free them."""
        self.logs.clear()
        self._closed.clear()

    def were_left_clean(self, partitions: Iterable[TopicPartition]) -> bool:
        """Return whether those of the partitions that were never opened keep the promises of a clean stop."""
        return all(tp in self.logs or self._how_left(tp).clean for tp in partitions)

    def abandon(self) -> None:
        """Close all files as a killed process would."""
        for log in self.logs.values():
            log.abandon()


# ---------------------------------------------------------------- exclusive changes


class PartitionLocks:
    """Exclusive locks for removing, rewriting or moving the segments of a partition.

    A thread that waits is visible to the holder, so that a background cleaning, which can run later, ends at
    its next safe point. `lock` of the directory is never held while a thread waits here.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._locks: dict[TopicPartition, threading.RLock] = {}
        self._wanted: Counter[TopicPartition] = Counter()  # number of waiting threads

    @contextmanager
    def claim(self, tp: TopicPartition, *, waits: bool) -> Iterator[bool]:
        """Hold a partition's lock inside the block; yield whether it is held. The lock is reentrant.

        `waits`: until another thread has released it. Else the block runs without the lock.
        """
        with self._lock:
            mine = self._locks.setdefault(tp, threading.RLock())
        got = mine.acquire(blocking=False)
        if waits and not got:
            with self._lock:
                self._wanted[tp] += 1
            try:
                got = mine.acquire()
            finally:
                with self._lock:
                    self._wanted[tp] -= 1
        try:
            yield got
        finally:
            if got:
                mine.release()

    def wanted(self, tp: TopicPartition) -> bool:
        """Return whether a thread waits for the lock."""
        return self._wanted[tp] > 0


# ---------------------------------------------------------------- gauges


_PER_PARTITION = (
    metrics.LOG_SIZE_BYTES,
    metrics.LOG_START_OFFSET,
    metrics.LOG_END_OFFSET,
    metrics.LOG_SEGMENTS,
    metrics.LEASE_LAG_OFFSETS,
    metrics.LOG_DIRTY_RATIO,
    metrics.CLEANER_OVERDUE_SECONDS,
)
_ACCOUNTED = (
    metrics.LOG_LIVE_BYTES,
    metrics.LOG_GARBAGE_BYTES,
    metrics.LOG_LIVE_RECORDS,
    metrics.LOG_TOMBSTONES,
)
_CLEANINGS = (
    metrics.CLEANER_READ_BYTES,
    metrics.CLEANER_WRITTEN_BYTES,
    metrics.CLEANER_FREED_BYTES,
    metrics.CERTIFICATE_FAILURES,
)


def measure_log(
    tp: TopicPartition, log: PartitionLog | PartitionView, files: Files, now_ms: int
) -> tuple[int, bool]:
    """Set the gauges of a log as it is now. Return its size in bytes, and whether it is in quarantine."""
    labels, segments = (tp.topic, str(tp.partition)), log.segments
    size_bytes = sum(segment.size for segment in segments)
    metrics.LOG_SIZE_BYTES.set(size_bytes, *labels)
    metrics.LOG_START_OFFSET.set(log.log_start, *labels)
    metrics.LOG_END_OFFSET.set(log.log_end, *labels)
    metrics.LOG_SEGMENTS.set(len(segments), *labels)
    held = leases.load(files, log.directory, now_ms)
    if held.live:
        metrics.LEASE_LAG_OFFSETS.set(max(0, log.log_end - held.floor), *labels)
    else:
        metrics.LEASE_LAG_OFFSETS.remove(*labels)
    return size_bytes, files.exists(os.path.join(log.directory, names.PRIVATE, names.QUARANTINE))


def forget_gauges(gone: Iterable[TopicPartition]) -> None:
    """Remove the gauges of partitions."""
    for tp in gone:
        for gauge in _PER_PARTITION:
            gauge.remove(tp.topic, str(tp.partition))
        forget_garbage(tp)


def forget_garbage(tp: TopicPartition) -> None:
    """Remove the gauges of a partition that only compacted topics have."""
    for accounted in _ACCOUNTED:
        for exact in ("true", "false"):
            accounted.remove(tp.topic, str(tp.partition), exact)


class LogGauges:
    """Gauges of one log directory: sizes and ends of the open logs, and quarantined partitions.

    They change with every append, so they are measured only when the metrics are read. Creating the object
    makes the directory's counters visible, at 0.
    """

    def __init__(
        self, root: str, files: Files, logs: Callable[[], Mapping[TopicPartition, PartitionLog]]
    ) -> None:
        self._root = real_path(root)  # once: it costs a system call for each level
        self._files = files
        self._logs = logs
        self._shown: set[TopicPartition] = set()
        for counter in _CLEANINGS:
            counter.add(0, self._root)
        for result in metrics.ROUND_RESULTS:
            metrics.CLEANER_ROUNDS.add(0, self._root, result)
        metrics.watch(self)

    def measure(self) -> None:
        """Set the gauges."""
        logs = dict(self._logs())
        quarantined = quarantined_bytes = 0
        for tp, log in logs.items():
            size_bytes, is_quarantined = measure_log(tp, log, self._files, log.clock.now_ms())
            if is_quarantined:
                quarantined += 1
                quarantined_bytes += size_bytes
        metrics.QUARANTINED_BYTES.set(quarantined_bytes, self._root)
        metrics.QUARANTINED_PARTITIONS.set(quarantined, self._root)
        forget_gauges(self._shown - logs.keys())
        self._shown = set(logs)

    def close(self) -> None:
        """Remove the gauges."""
        metrics.unwatch(self)
        forget_gauges(self._shown)
        metrics.QUARANTINED_PARTITIONS.remove(self._root)
        metrics.QUARANTINED_BYTES.remove(self._root)
