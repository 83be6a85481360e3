"""`watch`: present values, then every change, under a lease; beside cleaners, transactions, other writers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.clock import ManualClock
from lastword.errors import InvalidSettingError, LeaseRefusedError, OffsetOutOfRangeError, UsageError
from lastword.partition import leases
from lastword.testing.unsynced import UNSYNCED
from tests.api.conftest import Busy
from tests.transactions import begin_transaction, end_transaction

NOW = 1_700_000_000_000
HOUR_MS = 3_600_000
TOPIC = "users"


@pytest.fixture
def clock() -> Busy:
    return Busy(NOW)


@pytest.fixture
def writer(tmp_path: Path, clock: Busy) -> Iterator[lastword.LogDir]:
    with lastword.open(tmp_path / "d", "a", clock=clock, files=UNSYNCED, log_cleaner_enable=False) as logs:
        logs.create_topic(
            TOPIC, partitions=2, segment_bytes=300, cleanup_policy="compact", delete_retention_ms=1000
        )
        yield logs


@pytest.fixture(params=["r", "a"])
def logs(request: pytest.FixtureRequest, writer: lastword.LogDir, clock: Busy) -> Iterator[lastword.LogDir]:
    """The directory opened without a lock, and as the process that writes it."""
    if request.param == "a":
        yield writer
    else:
        with lastword.open(writer.paths[0], clock=clock, files=UNSYNCED) as looking:
            yield looking


def clean(logs: lastword.LogDir, clock: ManualClock) -> None:
    """Clean until every tombstone is gone that no lease holds, but for the newest records."""
    for _ in range(3):
        logs.clean(TOPIC)
        clock.advance(2000)


def apply(held: dict[Any, Any], records: Any) -> None:
    for record in records:
        if record.is_tombstone:
            held.pop(record.key, None)
        else:
            held[record.key] = record.value


def fill(logs: lastword.LogDir, values: range, partition: int = 0) -> None:
    for value in values:
        logs[TOPIC].append(b"fill", b"%d" % value, partition=partition)


def delete_for_good(logs: lastword.LogDir, clock: ManualClock, key: bytes) -> None:
    """Delete a key, and clean until its tombstone is gone, unless a lease holds it."""
    logs[TOPIC].delete(key, partition=0)
    fill(logs, range(20))
    clean(logs, clock)


def test_present_values_then_each_change(logs, writer, clock):
    topic = writer[TOPIC]
    for n in range(6):
        topic.append(b"k%d" % (n % 2), b"%d" % n, partition=0)
    clock.todo = [
        lambda: topic.append(b"k0", b"6", partition=0),
        lambda: topic.delete(b"k1", partition=0),
        lambda: topic.append(b"x", b"7", partition=1),
    ]
    with logs[TOPIC].watch(start="newest", timeout=1) as changes:
        shown = [(record.partition, record.offset, record.key, record.value) for record in changes]
        assert shown == [
            (0, 4, b"k0", b"4"),
            (0, 5, b"k1", b"5"),
            (0, 6, b"k0", b"6"),
            (0, 7, b"k1", None),
            (1, 0, b"x", b"7"),
        ]
        assert changes.position == {0: 8, 1: 1}
        (name,) = {info.name for info in logs[TOPIC].leases()}
        assert changes.lease.name == name
    assert logs[TOPIC].leases() == []


@pytest.mark.parametrize("start", ["latest", "earliest"])
def test_without_present_values(logs, writer, clock, start):
    topic = writer[TOPIC]
    topic.extend([(b"a", b"1"), (b"a", b"2")], partition=0)
    clock.todo = [lambda: topic.append(b"a", b"3", partition=0)]
    with logs[TOPIC].watch(start=start, timeout=1) as changes:
        values = [record.value for record in changes]
    assert values == {"latest": [b"3"], "earliest": [b"1", b"2", b"3"]}[start]


@pytest.mark.parametrize("leased", [True, False])
def test_a_deletion_between_both_parts_is_shown(logs, writer, clock, leased, monkeypatch):
    """Without the lease, the cleaner takes the tombstone away, and the watch keeps the deleted key."""
    if not leased:
        monkeypatch.setattr(leases.Leases, "floor", leases.NO_FLOOR)
    topic = writer[TOPIC]
    topic.extend([(b"a", b"1"), (b"b", b"2")], partition=0)
    with logs[TOPIC].watch(start="newest", timeout=0) as changes:
        held: dict[bytes, bytes] = {}
        apply(held, [next(changes)])
        delete_for_good(writer, clock, b"a")
        apply(held, changes)
        assert (b"a" in held) is not leased
        assert held[b"b"] == b"2" and held[b"fill"] == b"19"
    clean(writer, clock)
    fill(writer, range(20))
    clean(writer, clock)
    assert b"a" not in {record.key for record in topic.read()}, "closed, it holds no tombstone"


def test_an_open_transaction_holds_it_up_and_an_aborted_one_is_not_shown(logs, writer, clock):
    topic, log = writer[TOPIC], writer.dirs.log(TOPIC, 0)
    topic.append(b"a", b"1", partition=0)
    begin_transaction(log, 1, (b"a", None), (b"b", b"2"))
    topic.append(b"c", b"3", partition=0)
    begin_transaction(log, 2, (b"c", None))
    with logs[TOPIC].watch(start="newest", timeout=0) as changes:
        assert [record.value for record in changes] == [b"1"]
    clock.todo = [
        lambda: end_transaction(log, 2, 0, commit=False),
        lambda: end_transaction(log, 1, 0, commit=True),
    ]
    with logs[TOPIC].watch(start="newest", timeout=1) as changes:
        shown = [(record.key, record.value) for record in changes]
    assert shown == [(b"a", b"1"), (b"a", None), (b"b", b"2"), (b"c", b"3")]


def test_after_an_age_without_a_read_it_is_refused_if_a_deletion_is_gone(logs, writer, clock):
    topic = writer[TOPIC]
    topic.extend([(b"a", b"1"), (b"b", b"2")], partition=0)
    with logs[TOPIC].watch(start="newest", max_age="1h", timeout=0) as changes:
        held: dict[bytes, bytes] = {}
        apply(held, changes)
        clock.advance(2 * HOUR_MS)
        topic.append(b"b", b"3", partition=0)
        apply(held, changes.take(10))
        assert held == {b"a": b"1", b"b": b"3"}, "it had lapsed, and nothing was lost"
        clock.advance(2 * HOUR_MS)
        delete_for_good(writer, clock, b"a")
        position = changes.position
        for _ in range(2):
            with pytest.raises(LeaseRefusedError, match=r"it lapsed .* ago, and tombstones") as refused:
                changes.take(10)
            assert 'watch(start="newest")' in refused.value.remedy
            assert changes.position == position
    with pytest.raises(LeaseRefusedError, match="tombstones up to"):
        logs[TOPIC].watch(start=position)


def test_a_record_is_not_returned_after_a_pause_in_which_the_lease_lapsed(logs, writer, clock):
    """The pause is in the middle of the records of one read."""
    topic = writer[TOPIC]
    topic.extend([(b"k%d" % n, b"1") for n in range(9)], partition=0)
    with logs[TOPIC].watch(start="earliest", max_age="1h", timeout=0) as changes:
        assert next(changes).offset == 0
        clock.advance(2 * HOUR_MS)
        delete_for_good(writer, clock, b"k0")
        for _ in range(2):
            with pytest.raises(LeaseRefusedError):
                next(changes)
        assert changes.position[0] == 1


def test_it_renews_its_lease_while_it_waits(logs, writer, clock):
    seen = []
    with logs[TOPIC].watch(max_age="1h") as changes:
        writer[TOPIC].append(b"a", b"1", partition=0)
        waits = [lambda: clock.advance(HOUR_MS // 2)] * 9
        clock.todo = [*waits, lambda: seen.extend(logs[TOPIC].leases(0)), changes.close]
        assert [record.value for record in changes] == [b"1"]
    assert [(info.position, info.lapsed) for info in seen] == [(1, False)]


def test_a_lease_with_a_name_stays_and_the_next_watch_continues(logs, writer, clock):
    topic = writer[TOPIC]
    topic.extend([(b"a", b"1"), (b"b", b"2")], partition=0)
    held: dict[bytes, bytes] = {}
    with logs[TOPIC].watch(start="newest", lease="replica", timeout=0) as changes:
        apply(held, changes)
        assert changes.lease.position == {0: 0, 1: 0}, "its caller moves it"
        changes.lease.advance(changes.position)
    delete_for_good(writer, clock, b"a")
    with logs[TOPIC].watch(start="newest", lease="replica", timeout=0) as changes:
        first = next(changes)
        assert (first.key, first.is_tombstone) == (b"a", True)
        apply(held, [first])
        apply(held, changes)
        saved = changes.position
    assert held == {b"b": b"2", b"fill": b"19"}
    with logs[TOPIC].watch(start=saved, lease="replica", timeout=0) as changes:
        assert list(changes) == []
    assert {info.name for info in topic.leases()} == {"replica"}
    with logs[TOPIC].watch(lease="other", timeout=0) as changes:
        assert changes.lease.position == saved, "a new one begins where the watch does"


def test_a_partition_that_is_added_gets_the_lease_before_it_is_read(logs, writer, clock):
    topic = writer[TOPIC]
    topic.append(b"a", b"1", partition=0)

    def add() -> None:
        writer.dirs.directories[0].add_partitions(TOPIC, [2], writer.dirs.topic_id(TOPIC))
        writer.dirs.partitions_added()
        writer[TOPIC].append(b"new", b"2", partition=2)
        clock.advance(1100)

    clock.todo = [add, lambda: clock.advance(100), lambda: writer[TOPIC].append(b"new", b"3", partition=2)]
    with logs[TOPIC].watch(start="newest", timeout=3) as changes:
        assert [record.value for record in changes] == [b"1", b"2", b"3"]
        assert {info.partition for info in logs[TOPIC].leases()} == {0, 1, 2}
    assert logs[TOPIC].leases() == []


def test_a_log_that_is_cut_below_the_position_is_refused(logs, writer):
    topic = writer[TOPIC]
    for n in range(6):
        topic.append(b"k%d" % n, b"1", partition=0)
    with logs[TOPIC].watch(start="earliest", timeout=0) as changes:
        assert len(list(changes)) == 6
        writer.dirs.log_dir(TOPIC, 0).truncate(TOPIC, 0, 3)
        for n in range(6):
            topic.append(b"k%d" % n, b"other", partition=0)
        with pytest.raises(LeaseRefusedError, match="the log was cut at 3"):
            changes.take(10)


@pytest.mark.parametrize("name", [None, "kept"])
def test_a_cut_above_the_position_is_no_matter(logs, writer, clock, name):
    topic = writer[TOPIC]
    for n in range(6):
        topic.append(b"k%d" % n, b"%d" % n, partition=0)
    with logs[TOPIC].watch(start={0: 2}, lease=name, max_age="1h", timeout=0) as changes:
        writer.dirs.log_dir(TOPIC, 0).truncate(TOPIC, 0, 3)
        topic.append(b"k9", b"9", partition=0)
        assert [record.value for record in changes] == [b"2", b"9"]
        topic.append(b"k9", b"10", partition=0)
        clock.advance(HOUR_MS // 2)
        assert [record.value for record in changes] == [b"10"]
        changes.lease.advance(changes.position)


def test_what_was_trimmed_before_it_was_read_is_an_error(logs, writer):
    with logs[TOPIC].watch(timeout=0) as changes:
        fill(writer, range(20))
        writer[TOPIC].trim(15, partition=0)
        with pytest.raises(OffsetOutOfRangeError, match="log start"):
            next(changes)


def test_leases_of_watches_that_were_not_closed_are_released_by_a_later_one(logs, clock):
    topic = logs[TOPIC]
    left = [topic.watch(max_age="1h") for _ in range(2)]
    named = topic.lease("watch-mine", max_age="1h")
    clock.advance(2 * HOUR_MS + 1)
    with topic.watch() as changes:
        assert {info.name for info in topic.leases()} == {changes.lease.name, named.name}
    with pytest.raises(LeaseRefusedError):
        left[0].take(1)


def test_mistakes(logs):
    topic = logs[TOPIC]
    for wrong in (
        {"start": "newst"},
        {"start": {7: 0}},
        {"timeout": -1},
        {"keys": "ada"},
        {"max_age": "soon"},
        {"max_age": 0},
        {"lease": "a/b"},
    ):
        with pytest.raises(UsageError):
            topic.watch(**wrong)
    with pytest.raises(OffsetOutOfRangeError):
        topic.watch(start=5)
    assert topic.leases() == []


def test_closing_ends_it_and_a_closed_directory_is_no_error(writer, clock):
    changes = writer[TOPIC].watch()
    clock.todo = [changes.close]
    assert list(changes) == []
    left = writer[TOPIC].watch()
    writer.close()
    left.close()


def test_other_serializers_end_it(writer):
    with writer[TOPIC].watch(timeout=0) as changes:
        writer[TOPIC].set_config(lastword_value_serializer="json")
        with pytest.raises(InvalidSettingError):
            changes.take(1)


def test_as_arrow(logs, writer):
    writer[TOPIC].extend([(b"a", b"1"), (b"a", b"2"), (b"b", b"3")], partition=0)
    with logs[TOPIC].watch(start="newest", timeout=0) as changes:
        assert changes.arrow().read_all()["value"].to_pylist() == [b"2", b"3"]


def test_a_state_shows_its_changes(tmp_path):
    with lastword.open(tmp_path, "a", files=UNSYNCED) as logs:
        users = logs.state("users")
        users["ada"] = {"city": "Rome"}
        with users.watch(start="newest", timeout=0) as changes:
            assert [(record.key, record.value) for record in changes.take(9)] == [("ada", {"city": "Rome"})]
            users["bob"] = 1
            del users["ada"]
            assert [(record.key, record.value) for record in changes.take(9)] == [("bob", 1), ("ada", None)]
        users.close()
        with pytest.raises(UsageError, match="closed"):
            users.watch()


async def test_in_a_loop(tmp_path):
    async with lastword.aopen(tmp_path, "a", files=UNSYNCED, log_cleaner_enable=False) as logs:
        carts = await logs.state("carts")
        await carts.set("ada", 1)
        topic = carts.state.topic
        shown = []
        async with carts.watch(start="newest", lease="replica", prefetch=1) as changes:
            async for record in changes:
                shown.append((record.key, record.value))
                if record.is_tombstone:
                    break
                if record.value == 1:
                    await carts.set("bob", 2)
                    await carts.delete("ada")
            assert changes.lease is not None
            await logs.run(changes.lease.advance, changes.position)
        assert shown == [("ada", 1), ("bob", 2), ("ada", None)]
        assert [info.position for info in topic.leases()] == [3]
        async with carts.watch(timeout=0.01) as changes:
            assert [record async for record in changes] == []
            assert len(topic.leases()) == 2
        assert len(topic.leases()) == 1
        changes = carts.watch(timeout=5)
        waiting = asyncio.create_task(changes.__anext__())
        await asyncio.sleep(0)
        await changes.aclose()  # while it takes its lease
        with pytest.raises(StopAsyncIteration):
            await waiting
        assert len(topic.leases()) == 1


def test_in_a_bucket():
    url = "memory://watched/log"
    with lastword.open(url, "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic("users", cleanup_policy="compact", partitions=2)
        topic.append(b"a", b"1", partition=0)
        with lastword.open(url) as looking, looking["users"].watch(start="newest", timeout=0.5) as changes:
            assert next(changes).value == b"1"
            assert {info.position for info in topic.leases()} == {0}
            topic.delete(b"a", partition=0)
            assert next(changes).is_tombstone
        assert topic.leases() == []


@pytest.mark.parametrize("seed", range(5))
def test_what_a_watch_holds_is_the_newest_values(writer, clock, seed):
    """A model: random changes, transactions, cleanings and restarts, for all keys and for some.

    At each moment at which nothing is undecided, what a watch has shown equals the newest values.
    """
    rng = random.Random(seed)
    names = [b"k%d" % n for n in range(8)]
    writer[TOPIC].extend([(rng.choice(names), b"old") for _ in range(10)])
    model: dict[bytes, bytes] = {}
    apply(model, writer[TOPIC].newest())
    chosen = frozenset(rng.sample(names, 3))
    watches: dict[Any, tuple[lastword.Watch, dict[Any, Any]]] = {
        (keys, name): (writer[TOPIC].watch(keys, start="newest", lease=name, max_age="1h", timeout=0), {})
        for keys, name in ((None, None), (chosen, None), (None, "kept"))
    }
    reached: dict[Any, dict[int, int]] = {which: {} for which in watches}
    producer = 0
    for step in range(60):
        match rng.randrange(7):
            case 0 | 1 | 2:
                pairs = [(rng.choice(names), None if rng.random() < 0.3 else b"%d" % step) for _ in range(4)]
                writer[TOPIC].extend(pairs)
            case 3:
                producer += 1
                key = next(key for key in names if writer[TOPIC]._partition_of(key) == 0)
                log = writer.dirs.log(TOPIC, 0)
                begin_transaction(log, producer, (key, None if rng.random() < 0.5 else b"t%d" % step))
                if rng.random() < 0.5:
                    watch, held = watches[chosen, None]
                    apply(held, watch.take(rng.randrange(5)))
                end_transaction(log, producer, 0, commit=rng.random() < 0.6)
            case 4:
                clean(writer, clock)
            case 5:
                clock.advance(rng.randrange(HOUR_MS // 8))
            case 6:
                which = rng.choice(list(watches))
                watch, held = watches[which]
                for _ in range(rng.randrange(4)):
                    for record in watch.take(3):
                        assert record.offset >= reached[which].get(record.partition, 0)
                        reached[which][record.partition] = record.offset + 1
                        apply(held, [record])
                if which[1] and rng.random() < 0.5:  # a process that ends, and the next one
                    watch.lease.advance(watch.position)
                    watch.close()
                    again = writer[TOPIC].watch(start="newest", lease="kept", max_age="1h", timeout=0)
                    watches[which] = again, held
    newest: dict[bytes, bytes] = {}
    apply(newest, writer[TOPIC].newest())
    for (keys, _), (watch, held) in watches.items():
        for _ in range(
            2
        ):  # with timeout=0 a loop that begins between two partitions looks at the second alone
            apply(held, watch)
        assert held == {key: value for key, value in newest.items() if keys is None or key in keys}
        watch.close()
