"""`explain`: each record of a key with the rule that keeps or frees it, and whether the result is true."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lastword
from lastword.api import explaining
from lastword.cleaner.engine.cleaning import CleanContext
from lastword.cleaner.engine.liveness import refresh
from lastword.clock import ManualClock
from lastword.errors import CorruptBatchError, UsageError
from lastword.files import DEFAULT
from lastword.logdir.checkpoints import TopicPartition
from lastword.partition import scan
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.view import PartitionView
from lastword.tools import explain as tool
from tests.api.conftest import BEGIN_MS, tree_digest
from tests.build import LogBuilder as PartitionBuilder
from tests.cleaner.transactional import Producer
from tests.support.cleaning import plan as plan_of
from tests.support.damage import flip
from tests.support.exhaustive import few

HOUR = 3_600_000


@pytest.fixture
def clock():
    return ManualClock(BEGIN_MS)


@pytest.fixture
def logs(tmp_path, clock):
    with lastword.open(tmp_path / "data", "a", clock=clock, log_cleaner_enable=False) as opened:
        yield opened


def create_topic(logs, name="t", partitions=1, **config):
    config.setdefault("lastword_strategy", "kafka")
    return logs.create_topic(name, partitions, key_serializer="str", cleanup_policy="compact", **config)


def roll(logs, name="t"):
    logs.dirs.log(name, 0).roll()


def rules(explanation):
    return [(version.offset, version.kept, version.reason) for version in explanation.versions]


@pytest.mark.parametrize("walk", [tool._plain, tool._bulk])
def test_no_version_is_told_twice_though_batches_were_joined_behind_the_walk(logs, walk):
    """A batch may by then have records that were walked and records that were not."""
    topic = create_topic(logs, lastword_strategy="generational")
    for number in range(60):
        topic.append(f"k{number}", b"v" * 40)
        if number % 20 == 19:
            roll(logs)
    view = PartitionView.load(DirectorySegments(DEFAULT, logs.dirs.log_dir("t", 0).directory("t", 0)))
    versions = walk(view, b"k5")
    seen = [next(versions)[0]]
    for number in range(6, 60, 2):
        topic.append(f"k{number}", b"w")
    roll(logs)
    (done,) = logs.clean(topic.name)
    assert done.segments_after < done.segments_before
    assert seen + [version[0] for version in versions] == [5]


def test_a_superseded_value_and_a_tombstone_in_the_active_segment(logs):
    topic = create_topic(logs)
    topic.append("bob", b"1")
    topic.delete("bob")
    explanation = logs.explain(topic.name, key="bob")
    assert rules(explanation) == [(0, False, "active-segment"), (1, True, "tombstone-horizon")]
    assert explanation.versions[0].superseded_by == 1
    assert explanation.versions[0].until == BEGIN_MS + 7 * 24 * HOUR
    assert [version.tombstone for version in explanation.versions] == [False, True]
    assert explanation.plan.action == "keep" and explanation.plan.due is False
    assert str(explanation).splitlines()[-1] == "t-0 is not due: no closed segments"
    assert logs.explain("t", key="bob") == explanation


def test_no_partition_is_read_after_the_one_that_has_the_key(logs, monkeypatch):
    topic = create_topic(logs, partitions=4)
    topic.append("bob", b"1")
    read, explain_one = [], explaining._explain_partition
    monkeypatch.setattr(
        explaining, "_explain_partition", lambda *given: read.append(given[2]) or explain_one(*given)
    )
    assert logs.explain(topic.name, key="bob").versions and len(read) == 1
    assert logs.explain(topic.name, key="ada").versions == ()


def test_a_record_whose_killer_is_not_closed_yet_waits_for_the_killer(logs):
    topic = create_topic(logs)
    topic.append("a", b"1")
    roll(logs)
    topic.append("a", b"2")
    assert rules(logs.explain(topic.name, key="a")) == [(0, False, "active-segment"), (1, True, "newest")]
    roll(logs)
    assert rules(logs.explain(topic.name, key="a")) == [(0, False, "next-round"), (1, True, "newest")]


def test_a_young_segment_waits_for_its_lag(logs, clock):
    topic = create_topic(logs, min_compaction_lag_ms="2h")
    for value in (b"1", b"2"):
        topic.append("a", value)
    roll(logs)
    explanation = logs.explain(topic.name, key="a")
    assert rules(explanation)[0] == (0, False, "compaction-lag")
    assert explanation.versions[0].until == BEGIN_MS + 2 * HOUR
    clock.advance(2 * HOUR + 1)
    assert rules(logs.explain(topic.name, key="a"))[0] == (0, False, "next-round")


def test_a_tombstone_from_its_horizon_to_its_end(logs, clock):
    topic = create_topic(logs, delete_retention_ms="3h")
    topic.append("a", b"1")
    topic.delete("a")
    logs.clean(topic.name)
    (version,) = logs.explain(topic.name, key="a").versions
    assert (version.kept, version.reason, version.until) == (True, "tombstone-horizon", BEGIN_MS + 3 * HOUR)
    clock.advance(3 * HOUR)
    topic.lease("replica", position=1, max_age="1h")
    (version,) = logs.explain(topic.name, key="a").versions
    assert (version.kept, version.reason, version.until) == (True, "lease", BEGIN_MS + 4 * HOUR)
    assert "replica is at 1" in version.text
    clock.advance(HOUR + 1)
    assert rules(logs.explain(topic.name, key="a")) == [(1, True, "log-end")]
    topic.append("b", b"1")
    explanation = logs.explain(topic.name, key="a")
    assert rules(explanation) == [(1, False, "next-round")]
    assert [lease.name for lease in explanation.leases.lapsed] == ["replica"]
    logs.clean(topic.name)
    assert logs.explain(topic.name, key="a").versions == ()


def test_a_blocked_tombstone_under_the_generational_strategy(logs):
    topic = create_topic(logs, lastword_strategy="generational")
    topic.append("a", b"1")
    roll(logs)
    topic.delete("a")
    roll(logs)
    explanation = logs.explain(topic.name, key="a")
    assert rules(explanation) == [(0, False, "next-round"), (1, True, "older-segment-not-clean")]
    assert "1 older copy on disk" in explanation.versions[1].text


def test_without_a_policy_everything_stays(logs):
    topic = logs.create_topic("plain", key_serializer="str")
    topic.append("a", b"1")
    topic.append("a", b"2")
    explanation = logs.explain("plain", key="a")
    assert rules(explanation) == [(0, True, "no-policy"), (1, True, "newest")]
    assert "is never cleaned" in explanation.verdict


def test_a_quarantined_partition_says_why_and_since_when(logs, tmp_path):
    topic = create_topic(logs)
    for n in range(4):
        topic.append("a", b"%d" % n)
    file = next((tmp_path / "data" / "t-0").glob("*.log"))
    flip(file, 65, 0xFF)
    with pytest.raises(CorruptBatchError):
        logs.clean(topic.name)
    explanation = logs.explain(topic.name)
    assert explanation.quarantine is not None and explanation.quarantine.time_ms == BEGIN_MS
    assert "is quarantined since 2026-11-20 10:00:00Z" in explanation.verdict
    assert explanation.plan.reasons[0].code == "quarantined"


def test_aborted_and_undecided_transactions(tmp_path):
    log = PartitionBuilder(tmp_path)
    producer = Producer(log)
    producer.put(("a", "1"), ("b", "1")).commit()
    producer.put(("a", "aborted")).abort()
    log.log.roll()
    producer.put(("a", "open"))
    view = PartitionView.load(DirectorySegments(log.files, log.directory))
    clock = ManualClock(BEGIN_MS)
    plan = plan_of(view, log.config, files=DEFAULT, clock=clock, first_dirty=None, due=True)
    explanation = tool.explain(view, log.config, plan, key=b"a", now_ms=plan.now_ms)
    assert rules(explanation) == [
        (0, True, "newest"),
        (3, False, "next-round"),
        (5, True, "undecided-transaction"),
    ]
    assert explanation.versions[1].text.startswith("aborted-transaction")
    log.log.close()


def test_a_key_that_lies_in_another_partition_than_its_own_is_found(logs):
    topic = create_topic(logs, partitions=3)
    home = topic.append("a", b"1").partition
    assert logs.explain(topic.name, key="a").partition == home
    topic.append("b", b"1", partition=2)
    assert logs.explain(topic.name, key="b").partition == 2
    assert logs.explain(topic.name, key="nobody").versions == ()
    with pytest.raises(UsageError, match="3 partitions"):
        logs.explain(topic.name)
    assert logs.explain(topic.name, 1).partition == 1


def test_looking_at_damage_quarantines_nothing(logs, tmp_path):
    """A reader changes nothing and takes no lock. Only calls that cover a damaged partition raise its error.

    Rounds set a damaged partition aside, durably.
    """
    for name in ("sound", "torn"):
        topic = create_topic(logs, name, lastword_strategy="generational")
        topic.extend([("a", b"1"), ("a", b"2")])
        roll(logs, name)
    log = tmp_path / "data" / "torn-0" / f"{0:020}.log"
    log.write_bytes(log.read_bytes()[:-1] + b"?")
    before = tree_digest(tmp_path)
    with lastword.open(tmp_path / "data") as looked:
        explanation = looked.explain("sound", key="a")
        assert explanation.plan.due and not explanation.quarantine and len(explanation.versions) == 2
        with pytest.raises(CorruptBatchError) as caught:
            looked.explain("torn")
        assert "quarantine" not in caught.value.message
        with pytest.raises(CorruptBatchError) as caught:
            looked.plan(due=True)
        assert [plan.topic for plan in caught.value.results] == ["sound"]
    assert tree_digest(tmp_path) == before


def test_the_space_target_is_judged_over_the_whole_drive(logs):
    """As in the scheduler, the garbage of the other topics counts too."""
    for name in ("one", "two"):
        topic = create_topic(logs, name, lastword_strategy="generational")
        topic.extend([("a", bytes(500))] * 8)
        roll(logs, name)
    plans = {plan.topic: plan for plan in logs.plan(due=True)}
    assert {name: logs.explain(name).plan.reasons for name in plans} == {
        name: plan.reasons for name, plan in plans.items()
    }


def test_both_ways_of_reading_find_the_same(logs, monkeypatch):
    topic = create_topic(logs)
    for n in range(300):
        topic.append(f"k{n % 7}", b"x" * (n % 50) if n % 11 else None)
    explanations = [logs.explain(topic.name, key="k3")]
    monkeypatch.setattr(scan, "is_short", lambda *_: len(explanations) > 1)
    explanations.append(logs.explain(topic.name, key="k3"))
    monkeypatch.setattr(scan, "is_short", lambda *_: True)
    explanations.append(logs.explain(topic.name, key="k3"))
    assert len(explanations[0].versions) > 20
    assert explanations[0] == explanations[1] == explanations[2]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abc")),
        st.tuples(st.just("delete"), st.sampled_from("abc")),
        st.tuples(st.sampled_from(["roll", "clean", "wait"]), st.just("")),
    ),
    min_size=4,
    max_size=25,
)


def versions_after(logs, topic, clock, history):
    for operation, key in history:
        if operation == "put":
            topic.append(key, b"v")
        elif operation == "delete":
            topic.delete(key)
        elif operation == "roll":
            roll(logs)
        elif operation == "clean":
            logs.clean(topic.name)
        else:
            clock.advance(2 * HOUR)
    return {v.offset: v for key in "abc" for v in logs.explain(topic.name, key=key).versions}


@settings(max_examples=few(25), deadline=None)
@given(history=STEPS)
def test_what_it_says_is_what_a_due_round_does(tmp_path_factory, history):
    """The next round is due and nothing blocks it: it removes exactly the records predicted for it."""
    clock = ManualClock(BEGIN_MS)
    path = tmp_path_factory.mktemp("explain") / "data"
    with lastword.open(path, "a", clock=clock, log_cleaner_enable=False) as logs:
        topic = create_topic(logs, delete_retention_ms="1h", min_cleanable_dirty_ratio=0.0)
        said = versions_after(logs, topic, clock, history)
        assert set(said) == {record.offset for record in topic.read()}
        if logs.explain(topic.name).plan.action != "clean":
            return
        logs.clean(topic.name, due=True)
        left = {record.offset for record in topic.read()}
        gone = {offset for offset, version in said.items() if version.reason == "next-round"}
        assert set(said) - left == gone
        assert all(not said[offset].kept for offset in gone)


def test_accounts_tell_when_a_tombstone_may_go(logs, clock):
    """The accounts' clock starts when the last older record of the key has gone."""
    topic = create_topic(logs, lastword_strategy="generational", delete_retention_ms="3h")
    topic.append("a", b"1")
    topic.delete("a")
    topic.append("b", b"1")
    logs.clean(topic.name)
    with logs.dirs.log_dir("t", 0).ledgers.of(TopicPartition("t", 0), logs.dirs.log("t", 0)) as ledger:
        log = logs.dirs.log("t", 0)
        refresh(log, log.segments, ledger, logs.plan(topic.name, due=True)[-1], CleanContext(DEFAULT, clock))
    (version,) = logs.explain(topic.name, key="a").versions
    assert (version.kept, version.reason, version.until) == (True, "tombstone-horizon", BEGIN_MS + 3 * HOUR)
    clock.advance(3 * HOUR)
    assert rules(logs.explain(topic.name, key="a")) == [(1, False, "next-round")]


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(history=STEPS)
def test_what_goes_was_free_to_go_by_its_own_word(tmp_path_factory, history):
    """A round of strategy `generational` removes no record that was predicted to stay longer."""
    clock = ManualClock(BEGIN_MS)
    path = tmp_path_factory.mktemp("explain") / "data"
    with lastword.open(path, "a", clock=clock, log_cleaner_enable=False) as logs:
        topic = create_topic(logs, lastword_strategy="generational", delete_retention_ms="1h")
        said = versions_after(logs, topic, clock, history)
        logs.clean(topic.name)
        for offset in said.keys() - {record.offset for record in topic.read()}:
            version = said[offset]
            assert not version.kept or version.tombstone
            assert version.until is None or version.reason == "active-segment"
        for version in said.values():
            if version.reason == "next-round":
                assert version.offset not in {record.offset for record in topic.read()}
