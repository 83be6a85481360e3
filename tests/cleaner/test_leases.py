"""Leases in a round: without a lease, the clock alone lets a reader keep a deleted key."""

import pytest

import lastword
from lastword.cleaner.engine import lease_guard
from lastword.clock import ManualClock
from lastword.errors import LeaseRefusedError
from lastword.files import DEFAULT
from lastword.logdir.checkpoints import TopicPartition
from lastword.partition import leases, removal_log
from tests.cleaner.test_accounted import Log as Accounted

BEGIN = 1_795_168_800_000
HOUR = 3_600_000
DAY = 24 * HOUR


@pytest.fixture
def clock():
    return ManualClock(BEGIN)


@pytest.fixture
def logs(tmp_path, clock):
    with lastword.open(tmp_path / "data", "a", clock=clock, log_cleaner_enable=False) as opened:
        yield opened


class Replica:
    """A reader that keeps the newest value of every key, and may stop at any position."""

    def __init__(self, topic):
        self.topic = topic
        self.position = 0
        self.values = {}

    def read(self, end="latest"):
        for record in self.topic.read(self.position, end):
            if record.value is None:
                self.values.pop(record.key, None)
            else:
                self.values[record.key] = record.value
            self.position = record.offset + 1
        if end == "latest":
            self.position = self.topic.bounds()[0][1]


def history(logs, strategy="kafka"):
    """Write a value, its tombstone, and records after both."""
    topic = logs.create_topic("users", cleanup_policy="compact", lastword_strategy=strategy)
    topic.append(b"bob", b"old")
    topic.append(b"ada", b"1")
    topic.append(b"bob", None)
    topic.append(b"ada", b"2")
    return topic


def clean_until_tombstones_go(logs, topic, clock):
    """Clean twice with the horizon in between: the clock alone would remove every tombstone."""
    logs.clean(topic.name)
    clock.advance(25 * HOUR)
    topic.append(b"tick", b"%d" % clock.now_ms())
    return logs.clean(topic.name)


def offsets(topic):
    return [record.offset for record in topic.read()]


def test_a_deleted_key_comes_back_under_a_clock_only_rule(logs, clock):
    """A reader stops between put and tombstone, and continues after the tombstone's 24 h."""
    topic = history(logs)
    reader = Replica(topic)
    reader.read(end=2)
    assert reader.values == {b"bob": b"old", b"ada": b"1"}
    clean_until_tombstones_go(logs, topic, clock)
    assert 2 not in offsets(topic)
    reader.read()
    assert reader.values[b"bob"] == b"old"  # deleted in the log, forever live in the replica
    assert b"bob" not in {record.key for record in topic.read(view="newest")}


@pytest.mark.parametrize("strategy", ["kafka", "generational"])
def test_with_a_lease_it_does_not(logs, clock, strategy):
    topic = history(logs, strategy)
    reader = Replica(topic)
    lease = topic.lease("replica")
    reader.read(end=2)
    lease.advance(reader.position)
    clean_until_tombstones_go(logs, topic, clock)
    assert 2 in offsets(topic)
    reader.read()
    lease.advance(reader.position)
    assert b"bob" not in reader.values
    clock.advance(25 * HOUR)
    topic.append(b"tick", b"again")
    (done,) = logs.clean(topic.name)
    assert done.complete and done.removed.tombstone == 1
    assert 2 not in offsets(topic)
    assert leases.dropped_up_to(DEFAULT, logs.dirs.log_dir("users", 0).directory("users", 0)) == 3


def test_a_lapsed_lease_frees_the_tombstone_and_its_reader_is_told(logs, clock):
    topic = history(logs)
    lease = topic.lease("replica", position=2, max_age="1h")
    clean_until_tombstones_go(logs, topic, clock)
    assert 2 not in offsets(topic)
    with pytest.raises(LeaseRefusedError, match="lapsed 24 h ago"):
        lease.advance(3)
    with pytest.raises(LeaseRefusedError):
        topic.lease("other", position=2)
    assert topic.lease("other", position=3).position == 3


def test_what_lies_below_the_floor_goes_and_the_rest_of_the_garbage_too(logs, clock):
    topic = logs.create_topic("users", cleanup_policy="compact", lastword_strategy="kafka")
    for key in (b"a", b"b"):
        topic.append(key, b"v")
        topic.append(key, None)
    topic.lease("replica", position=2)  # has read the tombstone at 1, not the tombstone at 3
    clean_until_tombstones_go(logs, topic, clock)
    assert offsets(topic) == [3, 4]
    topic.append(b"tick", b"replaces the one before")
    (done,) = logs.clean("users")
    assert done.complete
    assert offsets(topic) == [3, 5]


def test_a_lease_that_comes_while_a_round_rewrites_stops_it(logs, clock, monkeypatch):
    topic = history(logs)
    logs.clean(topic.name)
    clock.advance(25 * HOUR)
    topic.append(b"tick", b"1")
    directory = logs.dirs.log_dir("users", 0).directory("users", 0)
    before = offsets(topic)
    highest = lease_guard.highest_due

    def meanwhile(*arguments, **more):
        offset = highest(*arguments, **more)
        topic.lease("late", position=2)
        return offset

    monkeypatch.setattr(lease_guard, "highest_due", meanwhile)
    (done,) = logs.clean(topic.name)
    monkeypatch.undo()
    assert not done.complete and done.stopped_by == "lease"
    assert "stopped before its end by a lease" in str(done)
    assert done.freed_bytes == 0
    assert offsets(topic) == before
    assert leases.dropped_up_to(DEFAULT, directory) == 0
    (again,) = logs.clean(topic.name)  # later, with the new floor
    assert again.complete
    assert 2 in offsets(topic)


def test_the_note_is_exact_and_written_before_the_swap(logs, clock, monkeypatch):
    topic = history(logs)
    logs.clean(topic.name)
    clock.advance(25 * HOUR)
    for n in range(3):
        topic.append(b"ada", b"more %d" % n)
    directory = logs.dirs.log_dir("users", 0).directory("users", 0)
    log = logs.dirs.log_dir("users", 0).log("users", 0)
    seen = []
    replace = log.replace

    def looking(old, new):
        seen.append(leases.dropped_up_to(DEFAULT, directory))
        return replace(old, new)

    monkeypatch.setattr(log, "replace", looking)
    logs.clean(topic.name)
    assert seen == [3]
    assert offsets(topic) == [6]


def test_a_lease_that_comes_between_note_and_look_stops_the_swap(logs, clock, monkeypatch):
    topic = history(logs)
    logs.clean(topic.name)
    clock.advance(25 * HOUR)
    topic.append(b"tick", b"1")
    directory = logs.dirs.log_dir("users", 0).directory("users", 0)
    note = removal_log.note_dropped

    def racing(files, place, offset):
        # The reader has read the note before this round changes it, and writes its lease now.
        leases.write(files, place, leases.LeaseFacts("racer", 2, clock.now_ms(), DAY, 0))
        return note(files, place, offset)

    monkeypatch.setattr(removal_log, "note_dropped", racing)
    (done,) = logs.clean(topic.name)
    assert not done.complete
    assert 2 in offsets(topic)
    assert leases.dropped_up_to(DEFAULT, directory) == 3


@pytest.mark.parametrize("strategy", ["kafka", "generational"])
def test_a_plan_names_the_lease_that_keeps_a_tombstone(logs, clock, strategy):
    topic = logs.create_topic("users", cleanup_policy="compact", lastword_strategy=strategy)
    topic.append(b"bob", b"old")
    topic.append(b"bob", None)
    topic.append(b"ada", b"2")
    topic.lease("replica", position=1)
    logs.clean("users")
    (plan,) = logs.plan("users")
    assert "lease" not in [reason.code for reason in plan.reasons], "its own time holds it back"
    clock.advance(25 * HOUR)
    (plan,) = logs.plan("users")
    assert (plan.action, plan.reasons[0].code) == ("keep", "lease")
    assert plan.reasons[0].text.startswith("replica is at 1, lapses ")
    assert plan.reasons[0].text.endswith("1 tombstone waits")
    topic.append(b"ada", b"3")
    (plan,) = logs.plan("users")
    assert plan.action == "clean" and plan.reasons[-1].code == "lease"
    (done,) = logs.clean("users")
    assert done.complete and done.stopped_by == "" and done.removed.tombstone == 0


def test_a_lease_below_a_tombstone_that_accounts_had_marked_as_due(tmp_path, monkeypatch):
    """The round that finds the lease stops; the next round cleans all but that tombstone, to its end."""
    log = Accounted(tmp_path)
    log.put((b"bob", b"old"))
    log.put((b"bob", None))
    log.put((b"ada", b"1"), roll=True)
    log.clean()
    log.clock.advance(25 * HOUR)
    for n in range(3):
        log.put((b"ada", b"more %d" % n))

    def late_lease(position):
        arguments = {"log_start": 0, "log_end": 6, "now_ms": log.clock.now_ms()}
        return leases.register(DEFAULT, log.log.directory, "late", position, **arguments)

    check = lease_guard.check

    def meanwhile(*arguments):
        late_lease(1)
        return check(*arguments)

    monkeypatch.setattr(lease_guard, "check", meanwhile)
    stopped = log.clean()
    monkeypatch.undo()
    assert not stopped.complete
    assert [offset for offset, *_ in log.records()] == [1, 2, 3, 4, 5]
    done = log.clean()
    assert done.complete
    assert [offset for offset, *_ in log.records()] == [1, 5]
    assert log.ledger.rebuilt_because == ""
    log.clock.advance(25 * HOUR)
    late_lease(6)
    log.put((b"ada", b"last"))
    log.clean()
    assert [offset for offset, *_ in log.records()] == [6]
    log.close()


@pytest.mark.parametrize("strategy", ["kafka", "generational"])
def test_a_cut_leaves_no_tombstone_below_a_lease_that_its_reader_has_not_seen(logs, clock, strategy):
    topic = logs.create_topic("users", cleanup_policy="compact", lastword_strategy=strategy)
    for value in range(4):
        topic.append(b"bob", b"%d" % value)
    lease = topic.lease("replica", position=4, max_age="30d")
    logs.dirs.log_dir("users", 0).truncate("users", 0, 2)
    topic.append(b"bob", None)  # at offset 2, which the lease had passed
    topic.append(b"ada", b"1")
    for _ in range(3):
        logs.clean("users")
        clock.advance(25 * HOUR)
        topic.append(b"ada", b"%d" % clock.now_ms())
    (shown,) = topic.leases()
    assert 2 in offsets(topic) and (shown.position, shown.cut_from) == (2, 4)
    assert str(shown).endswith("; was at 4 when the log was cut")
    with pytest.raises(LeaseRefusedError, match="the log was cut at 2 since"):
        lease.advance(4)
    topic.lease("replica").advance(4)  # the reader went back to 2, and read again
    logs.clean("users")
    assert 2 not in offsets(topic)


@pytest.mark.parametrize("strategy", ["kafka", "generational"])
def test_our_own_rounds_are_no_other_cleaner(logs, clock, strategy):
    """Also: a checkpoint that our rounds did not write shows another cleaner, even after our next round."""
    topic = logs.create_topic("users", cleanup_policy="compact", lastword_strategy=strategy)
    home = logs.dirs.log_dir("users", 0)
    directory = home.directory("users", 0)
    for number in range(3):
        topic.append(b"ada", b"%d" % number)
        logs.clean("users")
        topic.lease(f"r{number}", position=number)
    assert removal_log.load(DEFAULT, directory).elsewhere == 0
    assert home.first_dirty("users", 0) == 3
    topic.append(b"ada", b"3")
    topic.append(b"ada", b"4")
    home.checkpoints.first_dirty.update({TopicPartition("users", 0): 5})  # as a broker writes it
    topic.append(b"ada", b"5")
    logs.clean("users")
    assert removal_log.load(DEFAULT, directory).elsewhere_up_to == 5 < home.first_dirty("users", 0)
    with pytest.raises(LeaseRefusedError, match="another cleaner"):
        topic.lease("new", position=4)
