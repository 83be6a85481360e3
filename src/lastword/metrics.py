"""Counters, gauges and histograms of this process. They cost little, and are always on.

Each metric is a module constant; code calls `add`, `set` or `observe` with its label values. Only
`register()` needs prometheus_client: it exports the same numbers under the prefix `lastword_`. Labels never
contain keys.
"""

from __future__ import annotations

import os
import threading
import weakref
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from copy import copy
from typing import Any, Protocol

from lastword.errors import MissingError
from lastword.version import __version__

PREFIX = "lastword_"
SECONDS_BUCKETS = (
    1e-5, 2.5e-5, 1e-4, 2.5e-4, 1e-3, 2.5e-3, 1e-2, 2.5e-2, 0.1, 0.25, 1.0, 2.5, 10.0, 60.0, 600.0
)  # fmt: skip

_all: list[Metric] = []
Labels = tuple[str, ...]


class Metric:
    """A named number (or histogram) for each combination of label values."""

    kind = ""

    def __init__(self, name: str, text: str, labels: Labels = (), lock: threading.Lock | None = None) -> None:
        self.name = name
        self.text = text
        self.labels = labels
        self._lock = lock or threading.Lock()
        self._values: dict[Labels, Any] = {} if labels or self.kind == "histogram" else {(): 0}
        _all.append(self)

    def value(self, *labels: str) -> Any:
        """Return the current number; 0 before the first event."""
        with self._lock:
            return self._values.get(labels, 0)

    def samples(self) -> list[tuple[Labels, Any]]:
        """Return (label values, number) for every combination of labels, sorted."""
        with self._lock:
            return sorted((labels, copy(value)) for labels, value in self._values.items())

    def remove(self, *labels: str) -> None:
        """Remove a combination of labels, for example when a topic is deleted."""
        with self._lock:
            self._values.pop(labels, None)


class Counter(Metric):
    """A number that only grows.

    It is exported after its first `add`, which may add 0: an alert rule cannot see the increase of a counter
    that appears with its first event.
    """

    kind = "counter"

    def add(self, amount: float, *labels: str) -> None:
        """Add to the number."""
        with self._lock:
            self._values[labels] = self._values.get(labels, 0) + amount


class Gauge(Metric):
    """A number that rises and falls."""

    kind = "gauge"

    def set(self, value: float, *labels: str) -> None:
        """Set the number."""
        with self._lock:
            self._values[labels] = value

    def add(self, amount: float, *labels: str) -> None:
        """Add to the number; a negative amount subtracts."""
        with self._lock:
            self._values[labels] = self._values.get(labels, 0) + amount


class Histogram(Metric):
    """Counts per bucket (the last bucket has no upper bound), then the sum of all values."""

    kind = "histogram"

    def observe(self, seconds: float, *labels: str) -> None:
        """Count one duration."""
        bucket = bisect_left(SECONDS_BUCKETS, seconds)
        with self._lock:
            counts = self._values.get(labels) or self._add_counts(labels)
            counts[bucket] += 1
            counts[-1] += seconds

    def _add_counts(self, labels: Labels) -> list[Any]:
        counts = self._values[labels] = [0] * (len(SECONDS_BUCKETS) + 1) + [0.0]
        return counts

    def count(self, *labels: str) -> int:
        """Return the number of durations observed."""
        with self._lock:
            return sum(self._values.get(labels, (0,))[:-1])


# ---------------------------------------------------------------- the names

_PARTITION = ("topic", "partition")
LOG_SIZE_BYTES = Gauge("log_size_bytes", "Bytes of all segments", _PARTITION)
LOG_START_OFFSET = Gauge("log_start_offset", "First offset that may be read", _PARTITION)
LOG_END_OFFSET = Gauge("log_end_offset", "Offset that the next record gets", _PARTITION)
LOG_SEGMENTS = Gauge("log_segments", "Segments, including the active segment", _PARTITION)
LOG_LIVE_BYTES = Gauge("log_live_bytes", "Bytes of live records, at the last check", (*_PARTITION, "exact"))
LOG_GARBAGE_BYTES = Gauge(
    "log_garbage_bytes", "Bytes that a cleaning could drop, at the last check", (*_PARTITION, "exact")
)
LOG_LIVE_RECORDS = Gauge(
    "log_live_records", "Records of closed segments that no newer record replaced", (*_PARTITION, "exact")
)
LOG_TOMBSTONES = Gauge("log_tombstones", "Live tombstones of closed segments", (*_PARTITION, "exact"))
LOG_DIRTY_RATIO = Gauge(
    "log_dirty_ratio", "Dirty bytes divided by cleanable bytes, at the last check", _PARTITION
)
CLEANER_OVERDUE_SECONDS = Gauge(
    "cleaner_overdue_seconds", "Seconds since max.compaction.lag.ms passed, at the last check", _PARTITION
)
LEASE_LAG_OFFSETS = Gauge(
    "lease_lag_offsets", "Offsets between the slowest live lease and the log end", _PARTITION
)

_appends = threading.Lock()  # of the three metrics that change with every append
APPEND_RECORDS = Counter("append_records_total", "Records appended", ("topic",), _appends)
APPEND_BYTES = Counter("append_bytes_total", "Bytes appended, batch headers included", ("topic",), _appends)
READ_BYTES = Counter("read_bytes_total", "Bytes read for readers", ("topic",))
KEY_INDEX_DROPS = Counter(
    "key_index_drops_total", "Key indexes that did not fit their log and were dropped", ("topic",)
)
STATE_RESTORE_SECONDS = Gauge("state_restore_seconds", "Duration of the last restore of a state", ("topic",))

APPEND_SECONDS = Histogram("append_duration_seconds", "Time from call to acknowledgement", ("ack",), _appends)
FSYNC_SECONDS = Histogram("fsync_duration_seconds", "Duration of an fsync of a file or directory", ("dir",))

CLEANER_READ_BYTES = Counter("cleaner_read_bytes_total", "Bytes read by cleanings", ("dir",))
CLEANER_WRITTEN_BYTES = Counter("cleaner_written_bytes_total", "Bytes written by cleanings", ("dir",))
CLEANER_FREED_BYTES = Counter("cleaner_freed_bytes_total", "Bytes freed by cleanings", ("dir",))
ROUND_RESULTS = ("ok", "partial", "aborted", "failed")
CLEANER_ROUNDS = Counter("cleaner_rounds_total", "Cleanings by result", ("dir", "result"))
CLEANER_ROUND_SECONDS = Histogram("cleaner_round_duration_seconds", "Duration of a cleaning", ("dir",))
CLEANER_MAP_USED_RATIO = Gauge(
    "cleaner_map_used_ratio", "Used share of the key map after the last cleaning", ("dir",)
)
CLEANER_LAST_PICK = Gauge(
    "cleaner_last_pick_timestamp_seconds",
    "Time when the cleaner last chose a partition, in seconds since 1970",
    ("dir",),
)
CLEANER_LAST_CHECK = Gauge(
    "cleaner_last_check_timestamp_seconds",
    "Time when the cleaner last checked a drive for work, in seconds since 1970",
    ("drive",),
)
CLEANER_THROTTLED_SECONDS = Counter(
    "cleaner_throttled_seconds_total", "Seconds slept to keep the drive's I/O budget", ("drive",)
)
CLEANER_THREADS = Gauge("cleaner_threads", "Configured cleaner threads")
CLEANER_THREADS_ALIVE = Gauge("cleaner_threads_alive", "Running cleaner threads")
CLEANER_THREAD_DEATHS = Counter("cleaner_thread_deaths_total", "Cleaner threads that died and were replaced")
QUARANTINED_PARTITIONS = Gauge("cleaner_quarantined_partitions", "Partitions in quarantine", ("dir",))
QUARANTINED_BYTES = Gauge("cleaner_quarantined_bytes", "Bytes of partitions in quarantine", ("dir",))
DIR_OFFLINE = Gauge("dir_offline", "1 after a failed sync, until the directory is opened again", ("dir",))
CERTIFICATE_FAILURES = Counter(
    "certificate_failures_total", "Rewrites that failed their certificate", ("dir",)
)

MONITOR_LAST_PASS = Gauge(
    "monitor_last_pass_timestamp_seconds",
    "Time when `lastword ls --metrics` last ended a pass over a directory, in seconds since 1970",
    ("dir",),
)
MONITOR_PASS_SECONDS = Gauge("monitor_pass_duration_seconds", "Duration of that pass", ("dir",))
MONITOR_READ_BYTES = Counter("monitor_read_bytes_total", "Bytes of records read by its passes", ("dir",))
MONITOR_FAILED = Gauge(
    "monitor_failed_partitions", "Partitions that its last pass could not measure", ("dir",)
)
MONITOR_ERRORS = Counter(
    "monitor_errors_total", "Partitions and directories that its passes could not measure", ("dir",)
)

EXPORTS = Counter("exports_total", "Exports to a table, by result", ("topic", "result"))
EXPORT_ROWS = Counter(
    "export_rows_total", "Rows added, removed and rewritten by exports", ("topic", "change")
)
EXPORT_WRITTEN_BYTES = Counter("export_written_bytes_total", "Bytes written by exports", ("topic",))
EXPORT_SECONDS = Histogram("export_duration_seconds", "Duration of an export", ("topic",))
EXPORT_LAST_SUCCESS = Gauge(
    "export_last_success_timestamp_seconds", "Time of the last export that ended, since 1970", ("topic",)
)

SERVER_REQUESTS = Counter(
    "server_requests_total", "Requests of Kafka clients, by the first error of the answer", ("api", "error")
)
SERVER_REQUEST_SECONDS = Histogram(
    "server_request_duration_seconds", "Time from a request that is received to its answer", ("api",)
)
SERVER_RECEIVED_BYTES = Counter("server_received_bytes_total", "Bytes of requests", ("api",))
SERVER_SENT_BYTES = Counter("server_sent_bytes_total", "Bytes of answers", ("api",))
SERVER_CONNECTIONS = Gauge("server_connections", "Open connections of Kafka clients", ("address",))
SERVER_HELD_BYTES = Gauge(
    "server_held_bytes", "Memory of requests that are incomplete or in work, and of answers", ("address",)
)
SERVER_ACTIVE = Gauge(
    "server_active", "1 if this is the active server of a log in a bucket, 0 if it is a standby", ("address",)
)
SERVER_REFUSED_CONNECTIONS = Counter(
    "server_refused_connections_total",
    "Connections that the server closed: limit, authentication, slow, or malformed requests",
    ("reason",),
)

is_exported = False
"""Whether `register` was called. A server counts its requests only then."""

BUILD_INFO = Gauge("build_info", "Always 1; the labels name the versions", ("version", "python"))


def count_append(topic: str, records: int, size_bytes: int, ack: str, seconds: float) -> None:
    """Count one call that appended: the records, the bytes and the duration, with one turn of their lock."""
    bucket, of_topic, of_ack = bisect_left(SECONDS_BUCKETS, seconds), (topic,), (ack,)
    with _appends:  # not `acquire` and `try`: an interrupt (Ctrl-C) between both would leave it held
        totals = APPEND_RECORDS._values
        totals[of_topic] = totals.get(of_topic, 0) + records
        totals = APPEND_BYTES._values
        totals[of_topic] = totals.get(of_topic, 0) + size_bytes
        counts = APPEND_SECONDS._values.get(of_ack) or APPEND_SECONDS._add_counts(of_ack)
        counts[bucket] += 1
        counts[-1] += seconds


class Measured(Protocol):
    """An object whose gauges are set only when the metrics are read."""

    def measure(self) -> None:
        """Set the gauges."""


_measured: weakref.WeakSet[Measured] = weakref.WeakSet()
_measuring = threading.Lock()  # a set that grows in another thread cannot be iterated


def watch(measured: Measured) -> None:
    """Call `measured.measure()` before the metrics are read, while the object exists."""
    with _measuring:
        _measured.add(measured)


def unwatch(measured: Measured) -> None:
    """End the calls that `watch` started."""
    with _measuring:
        _measured.discard(measured)


def _renew_locks_after_fork() -> None:
    """Make the locks again in a forked child: another thread may have held one when the process forked."""
    global _appends, _measuring
    shared, _appends, _measuring = _appends, threading.Lock(), threading.Lock()
    for metric in _all:
        metric._lock = _appends if metric._lock is shared else threading.Lock()


os.register_at_fork(after_in_child=_renew_locks_after_fork)


def metrics() -> Iterator[Metric]:
    """Iterate over all metrics with their current numbers, for tests and other exporters."""
    with _measuring:
        each = list(_measured)
    for measured in each:
        with suppress(OSError):  # the metrics of a failed drive keep their last numbers
            measured.measure()
    return iter(_all)


def register(registry: Any = None) -> None:
    """Export all metrics in a prometheus_client registry. Call it once for each registry.

    Args:
        registry: None: the default registry of prometheus_client.

    Raises:
        MissingError: prometheus_client is not installed.
    """
    global is_exported
    import platform

    is_exported = True
    BUILD_INFO.set(1, __version__, platform.python_version())
    try:
        from prometheus_client import REGISTRY
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    except ImportError:
        raise MissingError.package(
            "lastword.metrics.register", "prometheus-client", "prometheus-client>=0.20"
        ) from None

    class Collector:
        def collect(self) -> Iterator[Any]:
            for metric in metrics():
                name = PREFIX + metric.name
                if metric.kind == "histogram":
                    family = HistogramMetricFamily(name, metric.text, labels=metric.labels)
                    for labels, counts in metric.samples():
                        total, buckets = 0, []
                        for bound, count in zip((*SECONDS_BUCKETS, None), counts[:-1], strict=True):
                            total += count
                            buckets.append(("+Inf" if bound is None else repr(bound), total))
                        family.add_metric(labels, buckets, sum_value=counts[-1])
                else:
                    family_type = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
                    family = family_type(name, metric.text, labels=metric.labels)
                    for labels, value in metric.samples():
                        family.add_metric(labels, value)
                yield family

    (REGISTRY if registry is None else registry).register(Collector())
