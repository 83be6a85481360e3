from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from lastword import metrics
from lastword.errors import StorageError
from lastword.files import OsFiles
from tests.support.threads import together


def test_counters_add_up_over_threads() -> None:
    counter = metrics.APPEND_RECORDS
    before = counter.value("threads")
    together(*[lambda: [counter.add(1, "threads") for _ in range(2000)]] * 4)
    assert counter.value("threads") - before == 8000


def test_a_sync_is_measured(tmp_path: Path) -> None:
    files = OsFiles()
    files.guard(tmp_path)
    files.write_atomic(tmp_path / "a", b"x")
    assert metrics.FSYNC_SECONDS.count(str(tmp_path)) == 2


def test_prometheus_shows_the_same_numbers() -> None:
    metrics.APPEND_RECORDS.add(3, "shown")
    metrics.LOG_SEGMENTS.set(7, "shown", "0")
    metrics.APPEND_SECONDS.observe(0.02, "disk-shown")
    metrics.APPEND_SECONDS.observe(5000, "disk-shown")
    registry = CollectorRegistry()
    metrics.register(registry)
    text = generate_latest(registry).decode()
    assert 'lastword_append_records_total{topic="shown"} 3.0' in text
    assert 'lastword_log_segments{partition="0",topic="shown"} 7.0' in text
    assert 'lastword_append_duration_seconds_bucket{ack="disk-shown",le="0.01"} 0.0' in text
    assert 'lastword_append_duration_seconds_bucket{ack="disk-shown",le="0.025"} 1.0' in text
    assert 'lastword_append_duration_seconds_bucket{ack="disk-shown",le="+Inf"} 2.0' in text
    assert 'lastword_append_duration_seconds_sum{ack="disk-shown"} 5000.02' in text
    metrics.LOG_SEGMENTS.remove("shown", "0")
    assert 'partition="0",topic="shown"' not in generate_latest(registry).decode()


def test_a_drive_that_cannot_be_asked_blanks_no_other_figure() -> None:
    class Failed:
        def measure(self) -> None:
            raise StorageError("EIO")

    failed = Failed()
    metrics.watch(failed)
    metrics.LOG_SEGMENTS.set(7, "beside", "0")
    registry = CollectorRegistry()
    metrics.register(registry)
    assert 'partition="0",topic="beside"' in generate_latest(registry).decode()
    metrics.unwatch(failed)


def test_a_sample_stays_as_it_was_when_the_next_duration_comes() -> None:
    metrics.APPEND_SECONDS.observe(0.02, "sampled")
    sample = dict(metrics.APPEND_SECONDS.samples())["sampled",]
    metrics.APPEND_SECONDS.observe(0.02, "sampled")
    assert (sum(sample[:-1]), metrics.APPEND_SECONDS.count("sampled")) == (1, 2)
