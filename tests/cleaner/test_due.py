"""Due work by garbage accounts, over a whole log directory."""

import os
import random

import pytest

import lastword
from lastword import metrics
from lastword.cleaner.engine.liveness import restrict_to_run
from lastword.cleaner.engine.transactions import NOTHING
from lastword.cleaner.policy.generational import SegmentRun
from lastword.cleaner.policy.groups import OutputLimits
from lastword.clock import ManualClock
from lastword.errors import PartialFailure
from lastword.files import DEFAULT
from lastword.resolve import DeadBitmaps, Resolution, SegmentFacts
from tests.fakes.recording import RecordingFiles
from tests.support.damage import flip

NOW = 1_700_000_000_000
HOUR = 3_600_000


def opened(path, clock=None, files=DEFAULT, **settings):
    settings = {"lastword_strategy": "generational", "segment_bytes": 4000} | settings
    return lastword.open(str(path), "a", clock=clock or ManualClock(NOW), files=files, **settings)


def fill(topic, count, keys, rng, value=b"v" * 80):
    """Append `count` records in batches of ten."""
    for _ in range(count // 10 or 1):
        pairs = [(b"k%d" % rng.randrange(keys), value + b"%d" % rng.randrange(1000)) for _ in range(10)]
        topic.extend(pairs, partition=0)


def newest(topic):
    values = {}
    for record in topic.read():
        values[record.key] = record.value
    return {key: value for key, value in values.items() if value is not None}


def space(logs):
    info = [partition for topic in logs.topics() for partition in topic.describe()]
    return sum(partition.size_bytes for partition in info) / sum(partition.live_bytes for partition in info)


@pytest.fixture
def clock():
    return ManualClock(NOW)


def test_within_the_target_nothing_is_cleaned_and_it_says_so(tmp_path, clock):
    rng = random.Random(1)
    with opened(tmp_path, clock) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        topic.extend([(b"k%d" % number, b"v" * 80) for number in range(200)])
        assert logs.clean(due=True) == []
        (plan,) = logs.plan(due=True)
        assert plan.action == "keep"
        assert plan.exact
        assert plan.reasons[0].code == "not-worth-it"
        assert "within its target of 1.5" in plan.reasons[0].text
        fill(topic, 10, 200, rng)
        assert logs.clean(due=True) == []


def test_above_the_target_runs_go_until_it_holds(tmp_path, clock):
    rng = random.Random(2)
    with opened(tmp_path, clock) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        fill(topic, 2000, 300, rng)
        before = newest(topic)
        (plan,) = logs.plan(due=True)
        assert plan.action == "clean"
        assert not plan.exact and "write ~" in str(plan), "each run is chosen after the one before"
        assert plan.reasons[0].code in ("ceiling", "target")
        rounds = logs.clean(due=True)
        assert rounds
        assert all(clean_round.strategy == "generational" and clean_round.complete for clean_round in rounds)
        assert sum(clean_round.written_bytes for clean_round in rounds) == pytest.approx(
            plan.write_bytes, rel=0.02
        )
        assert space(logs) < 1.6
        assert newest(topic) == before
        assert logs.clean(due=True) == []


def test_garbage_becomes_overdue_though_each_cleaning_opens_the_log(tmp_path, clock):
    """The accounts take more bytes than the log, so they are not saved; the age of garbage is."""
    settings = {"segment_bytes": 1 << 20, "segment_ms": HOUR // 6, "compression_type": "zstd"}
    with opened(tmp_path, clock, **settings) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact", max_compaction_lag_ms=HOUR)
        topic.extend([(b"%08d" % number, b"v") for number in range(8000)])
        topic.extend([(b"%08d" % number, b"w") for number in range(100)])
    freed = []
    for _ in range(5):
        clock.advance(HOUR // 2)
        with opened(tmp_path, clock, log_cleaner_enable=False, **settings) as logs:
            freed.append(sum(done.removed.superseded for done in logs.clean(due=True)))
    assert freed == [0, 0, 0, 100, 0]


def test_a_plan_of_one_run_is_exact(tmp_path, clock):
    with opened(tmp_path, clock, segment_bytes=1 << 20) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        topic.extend([(b"k%d" % (number % 20), b"v" * 80) for number in range(2000)])
        logs.dirs.log("t", 0).roll()
        (plan,) = logs.plan(due=True)
        (done,) = logs.clean(due=True)
        assert plan.exact and plan.free_bytes > 0
        assert (plan.write_bytes, plan.free_bytes) == (done.written_bytes, done.freed_bytes)


def test_plan_says_to_the_byte_what_an_explicit_clean_does(tmp_path, clock):
    rng = random.Random(3)
    with opened(tmp_path, clock) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        fill(topic, 500, 60, rng)
        (plan,) = logs.plan()
        (done,) = logs.clean()
        assert plan.exact
        assert (plan.write_bytes, plan.free_bytes) == (done.written_bytes, done.freed_bytes)
        assert plan.read_bytes == done.read_bytes
        assert space(logs) == pytest.approx(1.0, abs=0.02)


def test_a_plan_beside_accounts_that_are_only_in_memory_is_an_estimate(tmp_path, clock):
    """It scans the log, which the cleaning does not; their groups of small segments may differ."""
    rng = random.Random(3)
    with opened(tmp_path, clock) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        topic.append(b"deleted", None)
        for count in (300, 10, 10):
            fill(topic, count, 200, rng)
            (plan,) = logs.plan()
            (done,) = logs.clean()
        assert plan.read_bytes > done.read_bytes and not plan.exact and "read ~" in str(plan)
        fill(topic, 10, 200, rng)
    with opened(tmp_path, clock) as logs:
        (plan,) = logs.plan()
        (done,) = logs.clean()
        assert plan.exact and (plan.read_bytes, plan.write_bytes) == (done.read_bytes, done.written_bytes)


def test_a_due_plan_beside_accounts_that_are_only_in_memory_is_an_estimate(tmp_path, clock):
    rng = random.Random(3)
    with opened(tmp_path, clock, segment_bytes=1 << 20, lastword_space_target=1.1) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        topic.append(b"deleted", None)
        for count in (600, 10, 10):
            fill(topic, count, 200, rng)
            logs.dirs.log("t", 0).roll()
            (plan,) = logs.plan(due=True)
            logs.clean(due=True)
        assert not plan.exact
    with opened(tmp_path, clock, lastword_space_target=1.1) as logs:
        (plan,) = logs.plan(due=True)
        assert plan.exact


@pytest.mark.parametrize("strategy", ["kafka", "generational"])
def test_plan_knows_that_a_due_round_closes_an_old_active_segment(tmp_path, clock, strategy):
    with opened(tmp_path, clock, segment_bytes=1 << 20, segment_ms=HOUR) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        fill(topic, 500, 20, random.Random(8))
        assert [plan.action for plan in logs.plan(due=True, strategy=strategy)] == ["keep"]
        clock.advance(2 * HOUR)
        (planned,) = logs.plan(due=True, strategy=strategy)
        assert logs.explain("t", key=b"k3").versions[0].reason == "next-round"
        (done,) = logs.clean(due=True, strategy=strategy)
        assert planned.action == "clean" and planned.rolls_active
        assert (planned.write_bytes, planned.free_bytes) == (done.written_bytes, done.freed_bytes)


def test_the_scan_of_a_look_counts_as_read(tmp_path, clock):
    with opened(tmp_path, clock) as logs:
        fill(logs.create_topic("t", cleanup_policy="compact"), 2000, 300, random.Random(9))
        name = os.path.realpath(tmp_path)
        before = metrics.CLEANER_READ_BYTES.value(name)
        closed = sum(segment.size_bytes for segment in logs.topic("t").segments(0) if not segment.active)
        rounds = logs.clean(due=True)
        read = metrics.CLEANER_READ_BYTES.value(name) - before
        assert read == closed + sum(clean_round.read_bytes for clean_round in rounds)


def test_a_round_over_accounts_that_are_up_to_date_reads_only_what_it_rewrites(tmp_path, clock):
    rng = random.Random(4)
    files = RecordingFiles(DEFAULT)
    with opened(tmp_path, clock, files) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        for number in range(1000):  # segments of cold data at the start
            topic.append(b"cold%d" % number, b"v" * 80, partition=0)
        fill(topic, 300, 20, rng)
        logs.clean()
        fill(topic, 300, 20, rng)
        logs.clean()
        fill(topic, 3, 2, rng)
        size = sum(segment.size for segment in logs.dirs.log("t", 0).segments)
        files.calls.clear()
        (done,) = logs.clean()
        read = {
            call.path
            for call in files.calls
            if call.name in ("pread", "pread_into") and call.path.endswith(".log")
        }
        bases = [int(path[-24:-4]) for path in read]
        assert min(bases) >= 1000  # none of the cold segments
        assert done.read_bytes < size / 10
        assert done.removed.superseded > 0


def test_one_target_for_the_drive_partitions_lend_their_room(tmp_path, clock):
    rng = random.Random(5)
    with opened(tmp_path, clock) as logs:
        cold = logs.create_topic("cold", cleanup_policy="compact")
        hot = logs.create_topic("hot", cleanup_policy="compact", min_cleanable_dirty_ratio=1.0)
        for number in range(0, 2000, 10):
            cold.extend([(b"k%d" % (number + i), b"v" * 80) for i in range(10)], partition=0)
        fill(hot, 400, 50, rng)
        assert logs.clean(due=True) == []
        fill(hot, 4000, 50, rng)
        rounds = logs.clean(due=True)
        assert {clean_round.topic for clean_round in rounds} == {"hot"}


def test_only_the_named_topic_is_cleaned_though_another_pays_more(tmp_path, clock):
    rng = random.Random(6)
    with opened(tmp_path, clock) as logs:
        for name in ("a", "b"):
            fill(logs.create_topic(name, cleanup_policy="compact"), 1500, 50, rng)
        assert {clean_round.topic for clean_round in logs.clean("a", due=True)} == {"a"}
        assert {plan.topic for plan in logs.plan("b", due=True)} == {"b"}


def test_one_damaged_partition_stops_no_other(tmp_path, clock):
    rng = random.Random(7)
    with opened(tmp_path, clock) as logs:
        for name in ("a", "b"):
            fill(logs.create_topic(name, cleanup_policy="compact"), 1500, 50, rng)
    file = sorted((tmp_path / "a-0").glob("*.log"))[2]
    flip(file, 100)
    with opened(tmp_path, clock) as logs:
        with pytest.raises(PartialFailure) as caught:
            logs.clean(due=True)
        assert {clean_round.topic for clean_round in caught.value.results} == {"b"}
        assert logs.plan("a", due=True)[0].reasons[0].code == "quarantined"


@pytest.mark.slow
def test_a_map_that_does_not_fit_is_sampled_and_only_the_chosen_run_is_rewritten(tmp_path, clock):
    with opened(tmp_path, clock, log_cleaner_dedupe_buffer_size=65536, segment_bytes=60_000) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        for _ in range(4):
            topic.extend([(b"key-%08d" % n, b"v" * 30) for n in range(6000)], partition=0)
        before = newest(topic)
        rounds = logs.clean(due=True)
        assert rounds
        assert rounds[0].map_passes > 1
        assert newest(topic) == before
        assert not logs.dirs.log_dir("t", 0).ledgers.held(("t", 0)).exact
        # 1.5 by the estimate, which counts records as live if the active segment supersedes them (a fifth).
        assert 1.0 < space(logs) < 2.1, "of 4.0 before"
        assert all(clean_round.segments_before - clean_round.segments_after < 8 for clean_round in rounds)
        assert logs.clean(due=True) == []
        first = logs.dirs.first_dirty("t", 0)
        assert first in (None, 0), "garbage is left, so nothing may count as clean"
        (plan,) = logs.plan("t")
        assert not plan.exact and plan.free_bytes > 0
        (done,) = logs.clean("t")
        assert done.map_passes > 1 and done.freed_bytes > 0
        assert space(logs) == 1.0 and newest(topic) == before


def resolved(*segments):
    """Return a resolution: each segment has (dead records, due tombstones), a tombstone without horizon."""
    facts = [
        SegmentFacts(10 * i, 10 * i + 10, 400, 10, dead, 300, 100, 0, 1, 1, due, 0, 0)
        for i, (dead, due) in enumerate(segments)
    ]
    return Resolution(tuple(facts), DeadBitmaps.of([]), 1, 9, 0, 0, 0.0, 0, 30, 0, 0, 0.0)


def test_a_part_of_a_sampled_log_lets_no_tombstone_go_before_the_value_it_deletes():
    limits = OutputLimits(1000, 1 << 20, 4096)
    run = SegmentRun("t", 0, 2, 2, 20, 30, 400, 300, 100, 1, 1)
    clean_below = resolved((0, 0), (0, 0), (3, 1))
    groups, by, _ = restrict_to_run(clean_below, NOTHING, limits, run)
    assert [(group.first, group.last) for group in groups] == [(2, 2)]
    assert by.segments[2].tombstones_without_horizon == 1
    groups, by, _ = restrict_to_run(resolved((5, 0), (0, 0), (3, 0)), NOTHING, limits, run)
    assert [(group.first, group.last) for group in groups] == [(2, 2)]
    assert by.segments[2].tombstones_without_horizon == 0, "an older copy may lie below: no clock starts"
    groups, _, _ = restrict_to_run(resolved((5, 0), (0, 0), (3, 1)), NOTHING, limits, run)
    assert [(group.first, group.last) for group in groups] == [(0, 1), (2, 2)], "one goes: all below first"


def test_files_that_their_indexes_keep_apart_are_not_chosen_again_and_again(tmp_path, clock):
    config = {"segment_bytes": 1 << 20, "index_interval_bytes": 10, "segment_index_bytes": 120}
    with opened(tmp_path, clock, **config) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        for number in range(70):
            topic.append(b"k%d" % number, b"v", partition=0)
            logs.dirs.log("t", 0).roll()
        files = [segment.base_offset for segment in logs.dirs.log("t", 0).segments]
        assert logs.clean(due=True) == []
        assert logs.plan("t", due=True)[0].action == "keep"
        assert [segment.base_offset for segment in logs.dirs.log("t", 0).segments] == files


def test_small_files_of_a_log_without_garbage_are_merged_when_there_are_too_many(tmp_path, clock):
    with opened(tmp_path, clock, segment_bytes=1 << 20) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        for number in range(70):
            topic.append(b"k%d" % number, b"v", partition=0)
            logs.dirs.log("t", 0).roll()
        before = newest(topic)
        rounds = logs.clean(due=True)
        assert sum(clean_round.removed.total for clean_round in rounds) == 0
        assert len(logs.dirs.log("t", 0).segments) <= 68
        assert newest(topic) == before
        assert logs.clean(due=True) == []


def test_a_lag_that_is_raised_takes_the_say_of_younger_records_back(tmp_path, clock):
    rng = random.Random(8)
    with opened(tmp_path, clock) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        fill(topic, 200, 20, rng)
        clock.advance(2 * HOUR)
        fill(topic, 200, 20, rng)
        logs.clean(due=True)
        fill(topic, 200, 20, rng)
        topic.set_config(min_compaction_lag_ms=HOUR)
        old = [record.offset for record in topic.read() if record.timestamp < NOW + HOUR]
        logs.clean()
        logs.clean(due=True)
        young = [record.offset for record in topic.read() if record.timestamp >= NOW + HOUR]
        assert {record.offset for record in topic.read()} <= set(old) | set(young)
        assert len(young) >= 200
