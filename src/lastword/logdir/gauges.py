"""Sizes and ends of the logs that are open, and how many are quarantined, for whoever looks at the metrics.

They change with every append, so they are measured when somebody looks and not before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from lastword import metrics
from lastword.files import Files
from lastword.logdir.checkpoints import TopicPartition
from lastword.partition import leases
from lastword.partition.log import PartitionLog
from lastword.segment import names

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


class LogGauges:
    """The gauges of one log directory. `logs` gives its open logs. Its counters begin to show, at 0."""

    def __init__(
        self, root: str, files: Files, logs: Callable[[], Mapping[TopicPartition, PartitionLog]]
    ) -> None:
        self._root = root
        self._files = files
        self._logs = logs
        self._shown: set[TopicPartition] = set()
        for counter in _CLEANINGS:
            counter.add(0, os.path.realpath(root))
        for result in metrics.ROUND_RESULTS:
            metrics.CLEANER_ROUNDS.add(0, os.path.realpath(root), result)
        metrics.watch(self)

    def measure(self) -> None:
        logs = dict(self._logs())
        quarantined = quarantined_bytes = 0
        for tp, log in logs.items():
            labels = tp.topic, str(tp.partition)
            segments = log.segments
            size_bytes = sum(segment.size for segment in segments)
            metrics.LOG_SIZE_BYTES.set(size_bytes, *labels)
            metrics.LOG_START_OFFSET.set(log.log_start, *labels)
            metrics.LOG_END_OFFSET.set(log.log_end, *labels)
            metrics.LOG_SEGMENTS.set(len(segments), *labels)
            held = leases.load(self._files, log.directory, log.clock.now_ms())
            if held.live:
                metrics.LEASE_LAG_OFFSETS.set(max(0, log.log_end - held.floor), *labels)
            else:
                metrics.LEASE_LAG_OFFSETS.remove(*labels)
            if self._files.exists(os.path.join(log.directory, names.PRIVATE, names.QUARANTINE)):
                quarantined += 1
                quarantined_bytes += size_bytes
        metrics.QUARANTINED_BYTES.set(quarantined_bytes, os.path.realpath(self._root))
        metrics.QUARANTINED_PARTITIONS.set(quarantined, os.path.realpath(self._root))
        self._forget(self._shown - logs.keys())
        self._shown = set(logs)

    def close(self) -> None:
        metrics.unwatch(self)
        self._forget(self._shown)
        metrics.QUARANTINED_PARTITIONS.remove(os.path.realpath(self._root))
        metrics.QUARANTINED_BYTES.remove(os.path.realpath(self._root))

    def _forget(self, gone: set[TopicPartition]) -> None:
        for tp in gone:
            for gauge in _PER_PARTITION:
                gauge.remove(tp.topic, str(tp.partition))
            for accounted in _ACCOUNTED:
                for exact in ("true", "false"):
                    accounted.remove(tp.topic, str(tp.partition), exact)
