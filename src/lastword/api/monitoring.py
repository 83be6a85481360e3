"""`Monitor`: the gauges of partitions that another process may write, for `lastword ls --metrics`.

A pass makes a view of each partition and sets the gauges of a process with the lock (`LogGauges`). For a
compacted topic it also counts the garbage of the closed segments, with garbage indexes that are never saved:
each segment is read once, and once more when a cleaner has rewritten it. The indexes stay in memory within
`log.cleaner.dedupe.buffer.size`; what does not fit is read again when its partition has a new segment.

A partition that cannot be measured loses its gauges, so that no old figure is taken for one of now, and is
counted as an error. The others are measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lastword import metrics
from lastword.cleaner.engine.cleaning import CleanContext
from lastword.cleaner.engine.throttle import Stopped
from lastword.cleaner.inspection import DrivePartition, inspect, scan_partition
from lastword.errors import LastwordError
from lastword.files import real_path
from lastword.logdir.checkpoints import TopicPartition
from lastword.logdir.open_partitions import forget_garbage, forget_gauges, measure_log
from lastword.partition.reads import read_again
from lastword.values import Value

if TYPE_CHECKING:
    from lastword.api.open_dirs import OpenDirs, Topics
    from lastword.logdir.ledgers import Ledgers
    from lastword.logdir.log_dir import LogDirectory


@dataclass(frozen=True, slots=True)
class Pass(Value):
    """One pass of a monitor.

    Attributes:
        partitions: Partitions that were measured.
        read_bytes: Bytes of records that were read.
        seconds: Its duration.
        errors: The error of each partition or directory that was not measured, by its name.
    """

    partitions: int
    read_bytes: int
    seconds: float
    errors: dict[str, str]


class Monitor:
    """Measures partitions of directories that are open to read. Not safe from several threads.

    Args:
        dirs: The directories.
        topics: The topics; None: all, also those that are created later.
        partition: The partition of the only topic; None: all.
    """

    def __init__(self, dirs: OpenDirs, topics: Topics = None, partition: int | None = None) -> None:
        self._dirs = dirs
        self._chosen = topics, partition
        self._ledgers: dict[str, Ledgers] = {}
        self._shown: set[TopicPartition] = set()

    def measure(self, stop: Callable[[], bool] = lambda: False) -> Pass:
        """Measure every partition once.

        Args:
            stop: Called while it runs; True ends the pass, which then counts for no metric of its own.
        """
        clock = self._dirs.clock
        began = clock.monotonic()
        errors = {path: error.message for path, error in self._dirs.offline.items()}
        failed = Counter(map(real_path, errors))
        read_bytes: Counter[str] = Counter()
        quarantined: Counter[str] = Counter()
        quarantined_bytes: Counter[str] = Counter()
        measured: set[TopicPartition] = set()
        try:
            chosen = [TopicPartition._make(tp) for tp in self._dirs.select(*self._chosen)]
        except LastwordError as error:  # a directory that is gone, or a topic
            chosen, errors = [], errors | {str(self._dirs.paths[0]): error.message}
            failed[real_path(self._dirs.paths[0])] += 1
        for tp in chosen:
            root = real_path(self._dirs.paths[0])
            try:
                log_dir = self._dirs.log_dir(*tp)
                root = real_path(log_dir.path)
                size_bytes, is_quarantined, read = read_again(partial(self._measure, tp, log_dir, stop))
            except Stopped:
                break
            except LastwordError as error:
                errors[str(tp)] = error.message
                failed[root] += 1
                continue
            measured.add(tp)
            read_bytes[root] += read
            quarantined[root] += is_quarantined
            quarantined_bytes[root] += size_bytes * is_quarantined
        done = Pass(len(measured), read_bytes.total(), clock.monotonic() - began, errors)
        if not stop():
            forget_gauges(self._shown - measured)
            self._shown = measured
            for root in map(real_path, self._dirs.paths):
                metrics.QUARANTINED_PARTITIONS.set(quarantined[root], root)
                metrics.QUARANTINED_BYTES.set(quarantined_bytes[root], root)
                metrics.MONITOR_READ_BYTES.add(read_bytes[root], root)
                metrics.MONITOR_FAILED.set(failed[root], root)
                metrics.MONITOR_ERRORS.add(failed[root], root)
                metrics.MONITOR_PASS_SECONDS.set(done.seconds, root)
                metrics.MONITOR_LAST_PASS.set(clock.now_ms() / 1000, root)
        return done

    def _measure(
        self, tp: TopicPartition, log_dir: LogDirectory, stop: Callable[[], bool]
    ) -> tuple[int, bool, int]:
        """Set the gauges of a partition; return its size, whether it is in quarantine, and the bytes read."""
        if stop():
            raise Stopped
        now_ms = self._dirs.clock.now_ms()
        view = log_dir.view(*tp)
        size_bytes, is_quarantined = measure_log(tp, view, self._dirs.files, now_ms)
        self._shown.add(tp)
        if not self._dirs.config(tp.topic).compacts:
            forget_garbage(tp)
            return size_bytes, is_quarantined, 0
        ledgers = self._ledgers.get(log_dir.path)
        if ledgers is None:
            ledgers = self._ledgers[log_dir.path] = log_dir.new_ledgers(saves=False)
        partition = DrivePartition(tp, log_dir, ledgers, {tp: view}, closed_only=True)
        read_bytes = 0
        for _ in range(2):  # as it was counted before, and with its new segments
            found = inspect([partition], log_dir.path, now_ms=now_ms, space_target=1.0)
            for error in found.errors.values():
                raise error
            if not found.stale:
                break
            context = CleanContext(self._dirs.files, self._dirs.clock, stop=stop, dry=True)
            read_bytes += scan_partition(partition, log_dir.path, now_ms, context)
        return size_bytes, is_quarantined, read_bytes
