"""The metrics of appending, reading and restoring."""

import os
import sys
from pathlib import Path

from lastword import metrics
from tests.support.threads import meanwhile


def test_appends_reads_and_restores_are_counted(logs):
    topic = logs.create_topic("counted", cleanup_policy="compact")
    before = metrics.APPEND_SECONDS.count("disk")
    topic.append(b"a", b"1")
    topic.extend([(b"b", b"2"), (b"c", b"3")], ack="disk")
    size = sum(segment.size_bytes for segment in topic.segments())
    assert metrics.APPEND_RECORDS.value("counted") == 3
    assert metrics.APPEND_BYTES.value("counted") == size
    assert metrics.APPEND_SECONDS.count("disk") == before + 1
    assert len(list(topic.read())) == 3
    assert metrics.READ_BYTES.value("counted") == size
    logs.state("counted")
    assert metrics.STATE_RESTORE_SECONDS.value("counted") > 0


def test_sizes_and_quarantine_are_measured_when_somebody_looks(logs):
    topic = logs.create_topic("measured", cleanup_policy="compact")
    topic.append(b"a", b"1")
    topic.append(b"a", b"2")
    list(metrics.metrics())
    size = sum(segment.size_bytes for segment in topic.segments())
    assert metrics.LOG_SIZE_BYTES.value("measured", "0") == size > 0
    assert metrics.LOG_END_OFFSET.value("measured", "0") == 2
    assert metrics.LOG_SEGMENTS.value("measured", "0") == 1
    root = os.path.realpath(logs.paths[0])
    assert metrics.QUARANTINED_PARTITIONS.value(root) == 0
    private = Path(root, "measured-0", "lastword")
    private.mkdir(exist_ok=True)
    (private / "quarantine").write_text("{}")
    list(metrics.metrics())
    assert metrics.QUARANTINED_PARTITIONS.value(root) == 1
    logs.close()
    list(metrics.metrics())
    assert metrics.LOG_SIZE_BYTES.value("measured", "0") == 0
    assert (root,) not in dict(metrics.QUARANTINED_PARTITIONS.samples())


def test_counters_of_cleanings_show_at_0_before_anything_happened(logs):
    """The rule increase(certificate_failures_total) misses the first failure if its counter begins at 1."""
    root = os.path.realpath(logs.paths[0])
    shown = {metric.name: dict(metric.samples()) for metric in metrics.metrics()}
    for name in ("certificate_failures_total", "cleaner_read_bytes_total", "cleaner_freed_bytes_total"):
        assert shown[name][root,] == 0
    for result in metrics.ROUND_RESULTS:
        assert shown["cleaner_rounds_total"][root, result] == 0
    assert () in shown["cleaner_thread_deaths_total"]


class Measured:
    def measure(self):
        pass


def test_metrics_are_read_while_directories_open_and_close():
    """A monitoring system reads the metrics of a process whose threads open directories and servers."""

    def open_and_close():
        measured = Measured()
        metrics.watch(measured)
        metrics.unwatch(measured)

    many = [Measured() for _ in range(300)]
    for measured in many:
        metrics.watch(measured)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with meanwhile(open_and_close, open_and_close):
            for _ in range(1000):
                metrics.metrics()
    finally:
        sys.setswitchinterval(interval)
        for measured in many:
            metrics.unwatch(measured)
