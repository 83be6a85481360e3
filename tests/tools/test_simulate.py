"""The simulator: its results equal a plain calculation, and it uses the cleaner's own choice of runs.

Its figures equal those of theory and of record-level simulations of the policy.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from bench.traffic import KINDS, traffic
from hypothesis import given, settings
from hypothesis import strategies as st

import lastword
from lastword.config import TopicConfig
from lastword.errors import UnknownSettingError, UsageError
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.transactions import Outcomes
from lastword.partition.view import PartitionView
from lastword.records.batch import BatchBuilder
from lastword.tools.overwrites import _Sampler, trace_log, trace_of_keys
from lastword.tools.simulate import SimulatedLog, TracedPartition, closings, simulate
from lastword.units import NEVER
from tests.api.conftest import tree_digest
from tests.build import LogBuilder
from tests.cleaner.transactional import Producer
from tests.support.exhaustive import few, stride

KEYS = 20_000 // stride(2)
UPDATES = 15 if stride(2) == 1 else 10
LIVE_SEGMENTS = 50


def settings_of(keys=KEYS, **changes):
    given = {"segment_bytes": keys * 100 // LIVE_SEGMENTS, "delete_retention_ms": keys // 2}
    given["cleanup_policy"] = frozenset({"compact"})
    return TopicConfig(**(given | changes))


@cache
def cost(
    kind, strategy="generational", *, keys=KEYS, updates=UPDATES, skew=0.99, space_target=1.5, **changes
):
    trace = traffic(kind, keys, keys * updates, seed=1, skew=skew).trace()
    part = TracedPartition("t", 0, trace, settings_of(keys, **changes))
    return simulate([part], strategy=strategy, space_target=space_target).drive


def rows(keys, sizes=None, tombstones=(), times=None):
    keys = np.array(keys, np.int64)
    tombstone = np.zeros(keys.size, bool)
    tombstone[list(tombstones)] = True
    return trace_of_keys(
        keys,
        size_bytes=np.full(keys.size, 100) if sizes is None else np.array(sizes),
        time_ms=np.arange(keys.size) if times is None else np.array(times),
        tombstone=tombstone,
    )


# ---------------------------------------------------------------- superseding records


@given(st.lists(st.integers(0, 5), max_size=40))
def test_links_like_a_dict(keys):
    trace = rows(keys)
    newest, previous, superseding = {}, [], [NEVER] * len(keys)
    for row, key in enumerate(keys):
        previous.append(newest.get(key, -1))
        if key in newest:
            superseding[newest[key]] = row
        newest[key] = row
    assert trace.previous.tolist() == previous
    assert trace.superseding.tolist() == superseding
    numbers = dict(zip(keys, trace.key.tolist(), strict=True))
    assert [numbers[key] for key in keys] == trace.key.tolist()
    assert sorted(numbers.values()) == list(range(len(numbers)))


@given(
    st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.integers(1, 9)), max_size=40), st.integers(0, 20)
)
def test_live_bytes_like_a_dict(records, retention_ms):
    live_bytes = rows(
        [key for key, _, _ in records],
        [size for _, _, size in records],
        [row for row, (_, tombstone, _) in enumerate(records) if tombstone],
    ).live_bytes(retention_ms)
    for count in range(len(records) + 1):
        newest = {key: (row, tomb, size) for row, (key, tomb, size) in enumerate(records[:count])}
        live = sum(
            size
            for row, tomb, size in newest.values()
            if not tomb or count - 1 < row + retention_ms or (count == row + 1 and retention_ms > 0)
        )
        assert live_bytes[count] == live


def log(tmp_path, records, **config):
    with lastword.open(tmp_path / "data", "a", **config) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        for key, value in records:
            topic.append(key, value, timestamp=1000)
    return lastword.open(tmp_path / "data")


def test_a_real_log_is_read_off(tmp_path):
    records = [(b"k%d" % (n % 7), b"v" * 30 if n % 5 else None) for n in range(60)]
    with log(tmp_path, records, segment_bytes=1000) as logs:
        segments = logs.dirs.view("t", 0).segments
        assert len(segments) > 3
        trace = trace_log(segments, salt=b"s", loaded_below=20)
        again = trace_log(segments, salt=b"another")
        size = sum(segment.size for segment in segments)
    assert trace.previous.tolist() == rows([n % 7 for n in range(60)]).previous.tolist()
    assert trace.tombstone.tolist() == [n % 5 == 0 for n in range(60)]
    assert abs(int(trace.size_bytes.sum()) - size) <= 60 and (trace.loaded, trace.share) == (20, 1.0)
    assert set(trace.time_ms.tolist()) == {1000}
    assert again.previous.tolist() == trace.previous.tolist()


def test_a_large_log_is_sampled_by_whole_keys(tmp_path):
    with lastword.open(tmp_path / "data", "a") as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        topic.extend((b"k%d" % (n % 4000), b"v" * 50) for n in range(20_000))
        segments = logs.dirs.view("t", 0).segments
        trace = trace_log(segments, salt=b"s", most_rows=6000)
        size = sum(segment.size for segment in segments)
    assert trace.share == 0.25 and 3000 < len(trace) < 8000
    assert trace.size_bytes.sum() == pytest.approx(size, rel=0.05)
    records = np.sort(np.bincount(trace.key))[:-1]  # an extra key may stand for the missing records
    assert set(records.tolist()) == {5}  # each key with all its records


@pytest.mark.parametrize("hot", [False, True])
def test_a_sample_with_or_without_a_hot_key_costs_the_same(hot):
    generated = traffic("zipf", 4000, 20_000, seed=5)
    config = settings_of(10_000)
    exact = simulate([TracedPartition("t", 0, generated.trace(), config)], strategy="generational").drive
    hashes = np.random.default_rng(2).integers(0, 2**64 - 1, 4000, np.uint64)
    hottest = np.bincount(generated.keys).argmax()
    hashes[hottest] = 0 if hot else 2**64 - 2
    kept = _Sampler(15_000)
    offsets = np.arange(generated.keys.size)
    for part in np.array_split(offsets, 20):
        kept.take(
            hashes[generated.keys[part]], part, part, np.full(part.size, 100.0), generated.tombstone[part]
        )
    trace = kept.trace(4000)
    assert trace.share == 0.5
    assert trace.size_bytes.sum() == pytest.approx(2_400_000, rel=0.01)
    sampled = simulate([TracedPartition("t", 0, trace, config)], strategy="generational").drive
    assert sampled.write_amplification == pytest.approx(exact.write_amplification, rel=0.1)


def test_aborted_and_keyless_records_have_no_say(tmp_path):
    log = LogBuilder(tmp_path)
    producer = Producer(log)
    producer.put(("a", "1"), ("b", "1")).commit()
    producer.put(("a", "aborted")).abort()
    producer.put(("b", "2"), transactional=False)
    keyless = BatchBuilder()
    keyless.append(5, None, b"no key")
    log.log.append_batch(keyless.build())
    log.log.sync()
    view = PartitionView.load(DirectorySegments(log.files, log.directory))
    trace = trace_log(view.segments, salt=b"s", outcomes=Outcomes(view, view.log_end))
    assert trace.previous.tolist() == [-1, -1, 1]
    assert trace.key.tolist()[1] == trace.key.tolist()[2] != trace.key.tolist()[0]


def test_a_log_without_records():
    kept = _Sampler(10)
    assert len(kept.trace(0)) == 0
    simulated = simulate([TracedPartition("t", 0, kept.trace(0), settings_of())]).drive
    assert (simulated.rounds, simulated.write_amplification, simulated.segments) == (0, 0.0, 1)


# ---------------------------------------------------------------- on paper


def test_segments_close_by_size_and_by_time():
    trace = rows(range(10), times=[0, 1, 2, 3, 50, 51, 52, 53, 54, 55])
    assert closings(trace, 300, 1000) == [3, 6, 9]
    assert closings(trace, 10_000, 20) == [4]
    assert closings(rows([]), 300, 20) == []


class Naive:
    """A partition as sets and dicts."""

    def __init__(self, trace):
        self.trace = trace
        self.on_disk, self.newest, self.dead = [], {}, set()

    def scan(self, first, end):
        for row in range(first, end):
            self.on_disk.append(row)
            key = int(self.trace.key[row])
            if self.newest.get(key) in self.on_disk:
                self.dead.add(self.newest[key])
            self.newest[key] = row

    def rewrite(self, base, end):
        self.on_disk = [row for row in self.on_disk if not (base <= row < end and row in self.dead)]

    def garbage(self, base, end):
        size = self.trace.size_bytes
        return sum(int(size[row]) for row in self.on_disk if base <= row < end and row in self.dead)


@settings(max_examples=few(60), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(1, 300)), min_size=1, max_size=80),
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 4), st.integers(1, 3)), max_size=12),
)
def test_garbage_on_paper_like_the_twin(records, rewrites):
    trace = rows([key for key, _ in records], [size for _, size in records])
    paper = SimulatedLog("t", 0, trace, settings_of(segment_bytes=600))
    twin = Naive(trace)
    todo = list(rewrites)
    for number, end in enumerate(paper.ends):
        first = paper.closed_rows
        paper.close(end, number)
        paper.scan_ripe(number, NEVER // 2)
        twin.scan(first, end)
        if todo:
            at, length, files = todo.pop()
            at = min(at, len(paper.segments) - 1)
            last = min(at + length, len(paper.segments)) - 1
            bounds = paper.segments[at].base_offset, paper.segments[last].next_offset
            read, written = paper.rewrite(at, last, files, number)
            assert read - written == twin.garbage(*bounds)
            twin.rewrite(*bounds)
        for segment in paper.segments:
            bounds = segment.base_offset, segment.next_offset
            assert segment.rows.tolist() == [row for row in twin.on_disk if bounds[0] <= row < bounds[1]]
            assert segment.dead_bytes == twin.garbage(*bounds)
            assert segment.size_bytes == trace.size_bytes[segment.rows].sum()
        edges = [segment.base_offset for segment in paper.segments[1:]]
        assert edges == [segment.next_offset for segment in paper.segments[:-1]]


def test_rent_is_the_integral_of_garbage():
    trace = rows([1, 2, 1, 3, 2, 4, 5, 6])
    paper = SimulatedLog("t", 0, trace, settings_of(segment_bytes=200))
    for t, end in ((10, 2), (20, 4), (35, 6)):
        paper.close(end, t)
        paper.scan_ripe(t, t)
    first = paper.account().segments[0]
    assert (first.dead_bytes, first.garbage_age, first.garbage_age_at) == (200, 100 * (35 - 20), 35)
    assert first.oldest_dead_ms == 20 and first.written_at == 10
    assert first.death_rate == pytest.approx(10 + (1 - np.exp(-4 * 15 / 25)) * (100 / 15 - 10))


def test_a_tombstone_waits_for_older_copies_and_then_for_its_readers():
    trace = rows([1, 2, 1, 3, 4, 5, 6, 7, 8, 9], tombstones=[2])
    paper = SimulatedLog("t", 0, trace, settings_of(segment_bytes=200, delete_retention_ms=10))
    for t, end in ((10, 2), (20, 4)):
        paper.close(end, t)
        paper.scan_ripe(t, t)
        paper.expire_tombstones(t, t)
    assert [segment.blocked_bytes for segment in paper.segments] == [0, 100]
    paper.rewrite(0, 0, 1, 20)
    paper.expire_tombstones(25, 25)  # its clock starts
    assert [(s.blocked_bytes, s.dead_bytes) for s in paper.segments] == [(0, 0), (0, 0)]
    paper.expire_tombstones(34, 34)
    assert paper.segments[1].dead_bytes == 0
    paper.expire_tombstones(35, 35)
    assert paper.segments[1].dead_bytes == 100


def test_records_under_the_compaction_lag_are_no_garbage():
    trace = rows([1] * 40)
    part = TracedPartition("t", 0, trace, settings_of(segment_bytes=200, min_compaction_lag_ms=1000))
    assert simulate([part], space_target=1.1).drive.rounds == 0
    part = replace(part, config=settings_of(segment_bytes=200))
    assert simulate([part], space_target=1.1).drive.rounds > 0


def test_max_compaction_lag_is_kept():
    trace = traffic("uniform", 1000, 2000, seed=1).trace()
    lazy = simulate([TracedPartition("t", 0, trace, settings_of(1000))], space_target=10).drive
    strict = simulate(
        [TracedPartition("t", 0, trace, settings_of(1000, max_compaction_lag_ms=200))], space_target=10
    ).drive
    assert strict.written_bytes > 2 * lazy.written_bytes
    assert strict.space_amplification < lazy.space_amplification


def test_what_is_loaded_costs_nothing():
    trace = traffic("uniform", 1000, 2000, seed=1).trace()
    assert trace.loaded == 1000
    simulation = simulate([TracedPartition("t", 0, trace, settings_of(2000))]).drive
    assert (simulation.records, simulation.appended_bytes) == (2000, 200_000)
    assert simulation.curve[0].appended_bytes >= 100_000 and simulation.curve[-1].appended_bytes == 300_000


def test_the_same_twice():
    assert cost("zipf", keys=1000, updates=1) == cost.__wrapped__("zipf", keys=1000, updates=1)
    assert set(KINDS) == {"uniform", "zipf", "hot-cold", "drift", "insert-only", "ttl", "deletes"}
    with pytest.raises(ValueError, match="unknown strategy"):
        cost("zipf", "levelled", keys=100, updates=1)


def test_a_drive_shares_its_target():
    still = traffic("insert-only", 2000, 2000, seed=1).trace(per_ms=1)
    hot = traffic("uniform", 500, 4000, seed=2).trace(per_ms=2)
    config = settings_of(1000)
    alone = simulate([TracedPartition("hot", 0, hot, config)]).drive
    both = simulate([TracedPartition("hot", 0, hot, config), TracedPartition("still", 0, still, config)])
    assert both.partitions[1].written_bytes == 0
    assert both.drive.written_bytes == both.partitions[0].written_bytes < 0.7 * alone.written_bytes
    assert both.drive.space_amplification_peak < 1.55 < both.partitions[0].space_amplification_peak
    turned = simulate([TracedPartition("still", 0, still, config), TracedPartition("hot", 0, hot, config)])
    assert turned.drive.written_bytes == both.drive.written_bytes


# ---------------------------------------------------------------- the verb


def test_the_verb_shows_todays_settings_beside_others(tmp_path):
    with lastword.open(tmp_path / "data", "a", log_cleaner_enable=False) as logs:
        users = logs.create_topic("users", 2, cleanup_policy="compact", segment_bytes=700)
        other = logs.create_topic("other", cleanup_policy="compact")
        for number in range(120):
            users.append(b"k%d" % (number * number % 31), b"v" * 40, partition=number % 2)
        other.append(b"a", b"b")
    before = tree_digest(tmp_path / "data")
    with lastword.open(tmp_path / "data") as logs:
        today = logs.simulate("users", 0)
        assert [(simulation.topic, simulation.partition, simulation.settings) for simulation in today] == [
            ("users", 0, {})
        ]
        assert logs.simulate("users", 0) == today
        simulations = logs.simulate("users", lastword_space_target=4.0, min_cleanable_dirty_ratio=0.9)
        assert [(simulation.partition, bool(simulation.settings)) for simulation in simulations] == [
            *((0, False), (0, True), (1, False), (1, True)),
            *((-1, False), (-1, True)),
        ]
        tried = {"lastword_space_target": 4.0, "min_cleanable_dirty_ratio": 0.9}
        assert simulations[1].settings == simulations[5].settings == tried
        assert simulations[4].written_bytes == simulations[0].written_bytes + simulations[2].written_bytes
        assert simulations[5].written_bytes < simulations[4].written_bytes > 0
        assert simulations[5].space_amplification > simulations[4].space_amplification
        assert {simulation.strategy for simulation in logs.simulate("users", 1, strategy="broker")} == {
            "broker",
            logs.topic("users").config.lastword_strategy,
        }
        assert [simulation.topic for simulation in logs.simulate()] == ["other", "users", "users", ""]
        with pytest.raises(UsageError, match="unknown strategy 'levelled'"):
            logs.simulate("users", strategy="levelled")
        with pytest.raises(UnknownSettingError, match="nearest: segment_bytes"):
            logs.simulate("users", segment_byte=100)
        heard = []
        logs.simulate("users", progress=heard.append)
        assert heard[-1].verb == "simulate" and heard[-1].done_bytes == heard[-1].total_bytes
    assert tree_digest(tmp_path / "data") == before


def test_what_was_cleaned_before_is_only_loaded(tmp_path):
    with lastword.open(tmp_path / "data", "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic(
            "t", cleanup_policy="compact", segment_bytes=1000, lastword_strategy="kafka"
        )
        for number in range(60):
            topic.append(b"k%d" % (number % 40), b"v" * 40)
        logs.clean("t")
        assert logs.simulate("t")[0].records == 0
        for number in range(30):
            topic.append(b"k%d" % (number % 3), b"v" * 40)
        assert logs.simulate("t")[0].records == 30


# ---------------------------------------------------------------- the policy's own figures


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "skew", "written"),
    [("uniform", 0, 0.72), ("zipf", 0.8, 0.81), ("zipf", 0.99, 0.60), ("hot-cold", 0, 0.34)],
)
def test_written_bytes_at_the_default_target(kind, skew, written):
    simulation = cost(kind, skew=skew)
    assert simulation.write_amplification == pytest.approx(written, rel=0.1)
    assert simulation.space_amplification == pytest.approx(1.49, abs=0.02)
    assert simulation.space_amplification_peak <= 1.53


@pytest.mark.slow
def test_uniform_updates_cost_what_theory_says():
    """1/S = (1-u)/(-ln u), w = u/(1-u): at uniform updates, keeping the order costs nothing."""
    for target, written in ((1.25, 1.69), (2.0, 0.255)):
        simulation = cost("uniform", updates=8, space_target=target, min_cleanable_dirty_ratio=0.9)
        assert simulation.write_amplification == pytest.approx(written, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["uniform", "zipf", "hot-cold"])
def test_kafkas_rule_writes_the_log_once_more(kind):
    simulation = cost(kind, "broker")
    assert simulation.write_amplification == pytest.approx(0.95, rel=0.1)
    assert simulation.space_amplification == pytest.approx(1.51, abs=0.05)
    assert simulation.space_amplification_peak == pytest.approx(2.02, abs=0.03)
    assert cost(kind).write_amplification < 0.75 * simulation.write_amplification


@pytest.mark.slow
def test_inserts_and_keys_that_expire_cost_nothing():
    assert cost("insert-only").written_bytes == 0
    expiring = cost("ttl")
    assert expiring.written_bytes == 0 and expiring.space_amplification_peak < 1.7
    assert cost("insert-only", "kafka").written_bytes == 0  # Kafka's cleaner rewrites all of it
    assert cost("insert-only", "broker").write_amplification > 1.2
    assert cost("ttl", "broker").write_amplification > 0.9


def test_no_round_has_its_reason():
    """A log that fills no segment has nothing to clean, and a drive may be within its target."""
    trace = rows([1, 1, 1, 1, 1, 1, 2, 3])

    def idle(strategy, **changes):
        config = TopicConfig(cleanup_policy=frozenset({"compact"}), **changes)
        simulated = simulate([TracedPartition("t", 0, trace, config)], strategy=strategy)
        assert simulated.drive.idle == simulated.partitions[0].idle and bool(simulated.drive.rounds) != bool(
            simulated.drive.idle
        )
        return simulated.drive.idle

    for strategy in ("generational", "kafka", "broker"):
        assert idle(strategy) == (
            "no segment was closed: the active segment, which is not cleaned, has 800 B of "
            "segment.bytes=1.0 GiB"
        )
        assert idle(strategy, segment_bytes=200) == ""
    trace = rows([1, 2, 3, 4, 5, 6, 7, 1])
    assert "within its target of 1.5" in idle("generational", segment_bytes=200)
