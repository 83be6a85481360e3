"""What Kafka's cleaner would do, cause by cause. `tests/kafka/test_as_kafka.py` compares with brokers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.clock import ManualClock
from lastword.config import TopicConfig
from lastword.records.batch import BatchBuilder
from lastword.tools.as_kafka import KafkaVerdict, verdict_of
from tests.fakes.hasty import HastyFiles

NOW = 1_795_168_800_000
HOUR = 3_600_000


@pytest.fixture
def logs(tmp_path: Path) -> Any:
    clock = ManualClock(NOW)
    with lastword.open(tmp_path, "a", clock=clock, files=HastyFiles(), log_cleaner_enable=False) as opened:
        yield opened


def filled(logs: Any, closed: int = 3, stamps: dict[int, int] | None = None, **settings: Any) -> Any:
    """Return a topic with closed segments of 10 records each, and one record in the active segment."""
    topic = logs.create_topic("t", **{"cleanup_policy": "compact", **settings})
    for number in range(closed):
        for record in range(10):
            stamp = (stamps or {}).get(number * 10 + record, NOW - HOUR)
            topic.append(b"k%d" % (record % 3), b"v" * 50, timestamp=stamp)
        logs.dirs.log("t", 0).roll()
    topic.append(b"k", b"v", timestamp=NOW - HOUR)
    return topic


def verdict(logs: Any, *, first_dirty: int | None = None, now: int = NOW, **settings: Any) -> KafkaVerdict:
    config: TopicConfig = logs.dirs.config("t")
    if settings:
        config = logs.dirs.settings.changed(settings).topic("t")
    return verdict_of(logs.dirs.view("t", 0), config, first_dirty, now)


def codes(found: KafkaVerdict) -> list[str]:
    return [found.action, *(reason.code for reason in found.reasons)]


def test_due_by_ratio_and_not_below_it(logs: Any) -> None:
    filled(logs)
    assert codes(verdict(logs)) == ["clean", "above-ratio", "active-segment"]
    found = verdict(logs, first_dirty=20)
    assert codes(found) == ["keep", "below-ratio", "active-segment"]
    assert found.dirty_ratio == pytest.approx(1 / 3, abs=0.01)
    assert found.reasons[0].numbers["min_cleanable_dirty_ratio"] == 0.5
    assert codes(verdict(logs, first_dirty=20, min_cleanable_dirty_ratio=0.3))[0] == "clean"
    # A first dirty offset inside a segment: Kafka counts that segment as clean and as dirty.
    assert verdict(logs, first_dirty=15).dirty_ratio == pytest.approx(2 / 4, abs=0.01)


def test_the_checkpoint_outside_of_the_log_counts_as_its_start(logs: Any) -> None:
    filled(logs)
    assert verdict(logs, first_dirty=31).first_dirty == 31
    assert verdict(logs, first_dirty=32).first_dirty == 0


def test_an_active_segment_alone(logs: Any) -> None:
    filled(logs, closed=0)
    found = verdict(logs)
    assert codes(found) == ["keep", "active-segment"]
    assert "closed with the first record whose timestamp is after" in found.reasons[0].text
    assert "none has come" in verdict(logs, segment_ms="1m").reasons[0].text


def test_everything_clean(logs: Any) -> None:
    topic = filled(logs)
    logs.dirs.log("t", 0).roll()
    assert codes(verdict(logs, first_dirty=topic.bounds()[0][1])) == ["keep", "nothing-dirty"]


def test_a_lag_and_a_record_with_a_future_timestamp_which_holds_all_behind_it(logs: Any) -> None:
    filled(logs, stamps={14: NOW + 50 * 60_000})
    found = verdict(logs, min_compaction_lag_ms=1000)
    assert codes(found) == ["clean", "above-ratio", "future-timestamp", "active-segment"]
    assert found.uncleanable == 10
    assert "50 m in the future" in found.reasons[1].text
    assert codes(verdict(logs, min_compaction_lag_ms=1000, first_dirty=10)) == [
        "keep",
        "future-timestamp",
        "active-segment",
    ]
    assert codes(verdict(logs)) == [
        "clean",
        "above-ratio",
        "active-segment",
    ]  # without a lag it holds nothing
    found = verdict(logs, min_compaction_lag_ms=2 * HOUR)
    assert codes(found) == ["keep", "compaction-lag", "active-segment"]
    assert found.reasons[0].numbers["until"] == NOW + HOUR


def test_an_undecided_transaction(logs: Any) -> None:
    topic = logs.create_topic("t", cleanup_policy="compact")
    topic.append(b"a", b"1")
    logs.dirs.log("t", 0).roll()
    builder = BatchBuilder(producer_id=77, producer_epoch=0, base_sequence=0, transactional=True)
    builder.append(NOW, b"b", b"2")
    logs.dirs.log("t", 0).append_batch(builder.build())
    logs.dirs.log("t", 0).roll()
    topic.append(b"c", b"3")
    found = verdict(logs, first_dirty=1)
    assert codes(found) == ["keep", "undecided-transaction", "active-segment"]
    assert "producer 77" in found.reasons[0].text
    assert found.reasons[0].numbers["offset"] == 1
    assert codes(verdict(logs)) == ["clean", "above-ratio", "undecided-transaction", "active-segment"]


def test_policies(logs: Any) -> None:
    filled(logs, cleanup_policy="delete", retention_ms="-1", retention_bytes="-1")
    assert codes(verdict(logs)) == ["keep", "no-policy"]
    assert codes(verdict(logs, cleanup_policy="none")) == ["keep", "empty-policy"]


def test_max_compaction_lag(logs: Any) -> None:
    filled(logs)
    assert codes(verdict(logs, first_dirty=20, max_compaction_lag_ms="30m"))[:2] == [
        "clean",
        "max-compaction-lag",
    ]
    assert codes(verdict(logs, first_dirty=20, max_compaction_lag_ms="2h"))[0] == "keep"


def test_damage_that_the_cleaner_cannot_pass(logs: Any, tmp_path: Path) -> None:
    filled(logs, compression_type="zstd")
    path = tmp_path / "t-0" / "00000000000000000010.log"
    data = bytearray(path.read_bytes())
    data[65:90] = bytes(25)
    path.write_bytes(data)
    found = verdict(logs)
    assert codes(found) == ["keep", "uncleanable", "above-ratio", "active-segment"]
    assert found.reasons[0].numbers == {"base_offset": 10, "position": 0}


def test_a_cleaner_that_never_came(logs: Any, tmp_path: Path) -> None:
    filled(logs)
    wrote = int((tmp_path / "t-0" / "00000000000000000020.log").stat().st_mtime * 1000)
    assert "idle-cleaner" not in codes(verdict(logs, now=wrote + 9 * 60_000, min_compaction_lag_ms=0))
    found = verdict(logs, now=wrote + 11 * 60_000)
    assert codes(found) == ["clean", "above-ratio", "idle-cleaner", "active-segment"]
    assert found.reasons[1].numbers["waited_ms"] >= 10 * 60_000
