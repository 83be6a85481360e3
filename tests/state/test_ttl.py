"""Values with a time to live: a state hides expired values immediately, a tombstone ends them for readers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lastword
from lastword.api.contents import Contents
from lastword.clock import ManualClock
from lastword.errors import StorageError, UsageError
from lastword.state import ttl as engine
from lastword.state.ttl import ExpiryWatch, expire_values, expires_at, header_of
from lastword.units import NEVER
from tests.support.exhaustive import few

HOUR = 3_600_000


def records(logs: Any) -> list[tuple[Any, Any]]:
    topic = logs.topic("s", key_serializer="str", value_serializer="json")
    return [(record.key, record.value) for record in topic.read()]


def expire(logs: Any, watch: ExpiryWatch | None = None, at_once: bool = True) -> int:
    log = logs.dirs.log("s", 0)
    return expire_values(
        log, logs.dirs.config("s"), watch or ExpiryWatch(), map_bytes=1 << 20, at_once=at_once
    )


@pytest.mark.parametrize(
    ("topic_ttl_ms", "headers", "expected"),
    [
        (-1, (header_of(5),), NEVER),
        (0, (), NEVER),
        (0, (header_of(5),), 105),
        (7, (), 107),
        (7, (header_of(5),), 105),
        (7, (header_of(-1),), NEVER),
        (7, (header_of(0),), 100),
        (7, (("lastword.ttl.ms", b"soon"),), 107),
        (7, (("lastword.ttl.ms", None),), 107),
        (7, (header_of(5), header_of(6)), 106),
    ],
)
def test_when_a_value_expires(topic_ttl_ms: int, headers: tuple[Any, ...], expected: int) -> None:
    assert expires_at(100, headers, topic_ttl_ms) == expected
    assert expires_at(-1, headers, topic_ttl_ms) == NEVER


def test_a_topics_time_to_live(logs: Any, clock: ManualClock) -> None:
    state = logs.state("s", lastword_ttl_ms="1h")
    state["a"] = 1
    clock.advance(HOUR // 2)
    state["b"] = 2
    clock.advance(HOUR // 2 - 1)
    assert dict(state) == {"a": 1, "b": 2}
    assert expire(logs) == 0
    clock.advance(1)
    assert dict(state) == {"b": 2}
    assert len(state) == 1 and "a" not in state and state.get("a") is None
    assert records(logs) == [("a", 1), ("b", 2)], "readers of the log still see it"
    assert expire(logs) == 1
    assert records(logs) == [("a", 1), ("b", 2), ("a", None)]
    assert expire(logs) == 0, "twice is once"
    state.refresh()
    assert dict(state) == {"b": 2}


def test_an_open_state_follows_a_change_of_the_time_to_live(
    logs: Any, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = logs.state("s", lastword_ttl_ms="1h")
    state["old"] = 1
    clock.advance(HOUR)
    state["new"] = 2
    assert dict(state) == {"new": 2}
    logs.set_config("s", lastword_ttl_ms="2h")
    assert dict(state) == {"old": 1, "new": 2}, "it has no tombstone yet"
    logs.set_config("s", lastword_ttl_ms="30m")
    clock.advance(HOUR // 2)
    assert dict(state) == {}
    logs.set_config("s", lastword_ttl_ms=None)
    assert dict(state) == {"old": 1, "new": 2}
    state["new"] = 3
    logs.set_config("s", lastword_ttl_ms="1h")
    with monkeypatch.context() as failing, pytest.raises(StorageError):
        failing.setattr(Contents, "_restore", lambda *given: (_ for _ in ()).throw(StorageError("no")))
        len(state)
    assert dict(state) == {"new": 3}, "a restore that failed is repeated"


def test_a_values_own_time_to_live(logs: Any, clock: ManualClock) -> None:
    state = logs.state("s", lastword_ttl_ms=0)
    state["ever"] = 0
    state.set("short", 1, ttl="1m")
    state.set("ever too", 2, ttl=-1)
    topic = logs.topic("s")
    topic.append("other", 3, headers={"lastword.ttl.ms": b"60000"})
    state.refresh()
    clock.advance(60_000)
    assert dict(state) == {"ever": 0, "ever too": 2}
    assert expire(logs) == 2
    state.close()
    assert dict(logs.state("s")) == {"ever": 0, "ever too": 2}


def test_it_is_refused_where_nothing_expires(logs: Any) -> None:
    state = logs.state("s")
    with pytest.raises(UsageError, match=r"lastword\.ttl\.ms is -1") as caught:
        state.set("a", 1, ttl="1m")
    assert "a" not in state
    exec(str(caught.value.remedy), {"logs": logs})
    state.set("a", 1, ttl="1m")
    with pytest.raises(UsageError):
        state.set("a", 1, ttl=-5)
    assert state["a"] == 1


@pytest.mark.parametrize("when", ["before the lock", "before the first look"])
def test_an_append_that_comes_in_between_wins(
    logs: Any, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The append comes between the read of the newest values and the tombstone."""
    state = logs.state("s", lastword_ttl_ms="1h")
    state["a"], state["b"] = 1, 1
    clock.advance(HOUR)
    calls: list[int] = []
    real = engine._keys

    def keys(log: Any, start: int, end: int) -> Any:
        calls.append(end)
        if len(calls) == 1 and when == "before the first look":
            logs.topic("s").append("a", 2)
            end = log.log_end
        range_keys = real(log, start, end)
        if len(calls) == 1 and when == "before the lock":
            logs.topic("s").append("a", 2)
        return range_keys

    monkeypatch.setattr(engine, "_keys", keys)
    watch = ExpiryWatch()
    assert expire(logs, watch) == 1
    assert len(calls) == 2
    assert records(logs)[2:] == [("a", 2), ("b", None)]
    assert watch.next_due_ms <= clock.now_ms(), "it is looked at again"
    assert dict(logs.state("s")) == {"a": 2}


def test_the_pause_between_two_reads_holds_after_the_date_was_set_back(logs: Any, clock: ManualClock) -> None:
    state, watch = logs.state("s", lastword_ttl_ms="1h"), ExpiryWatch()
    state["a"] = 1
    clock.advance(HOUR)
    assert expire(logs, watch, at_once=False) == 1
    clock.set_date(clock.now_ms() - 24 * HOUR)
    state["b"] = 2
    clock.advance(HOUR)
    assert expire(logs, watch, at_once=False) == 1


def test_a_shorter_time_to_live_holds_at_once(logs: Any, clock: ManualClock) -> None:
    """The process kept the time of the next expiry by the old setting, a month away."""
    state, watch = logs.state("s", lastword_ttl_ms="30d"), ExpiryWatch()
    state["a"] = 1
    assert expire(logs, watch, at_once=False) == 0
    logs.set_config("s", lastword_ttl_ms="1h")
    clock.advance(HOUR)
    assert expire(logs, watch, at_once=False) == 1


def test_values_of_a_topic_that_is_made_again_expire(logs: Any, clock: ManualClock) -> None:
    """The process kept the time of the next expiry in the topic that was deleted."""
    watch = ExpiryWatch()
    logs.state("s", lastword_ttl_ms="1h").set("a", 1, ttl="30d")
    assert expire(logs, watch, at_once=False) == 0
    logs.delete_topic("s")
    state = logs.state("s", lastword_ttl_ms="1h")
    state["b"] = 1
    state.set("c", 1, ttl="30d")
    clock.advance(HOUR)
    assert expire(logs, watch, at_once=False) == 1


def test_a_copy_of_a_cluster_expires_nothing_and_is_cleaned(logs: Any, clock: ManualClock) -> None:
    state = logs.state("s", lastword_ttl_ms="1h")
    state["a"] = 1
    state["a"] = 2
    logs.set_config("s", lastword_pulled_from="a cluster")
    logs.dirs.log("s", 0).roll()
    clock.advance(2 * HOUR)
    assert expire(logs) == 0
    logs.clean("s")
    assert records(logs) == [("a", 2)]


def test_an_open_transaction_holds_the_tombstone_back(logs: Any, clock: ManualClock) -> None:
    from tests.cleaner.transactional import Producer

    state = logs.state("s", lastword_ttl_ms="1h")
    state["a"] = 1
    clock.advance(HOUR)

    builder: Any = SimpleNamespace(codec=0, log=logs.dirs.log("s", 0), clock=clock)
    producer = Producer(builder)
    producer.put(("a", "2"))
    watch = ExpiryWatch()
    assert expire(logs, watch) == 0
    producer.abort()
    assert expire(logs, watch) == 1


def test_what_it_reads(logs: Any, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read twice before a value is due."""
    state = logs.state("s", lastword_ttl_ms="10h")
    state.update({f"k{i}": i for i in range(100)})
    passes = []
    real = engine.newest
    monkeypatch.setattr(engine, "newest", lambda *a, **k: passes.append(1) or real(*a, **k))
    watch = ExpiryWatch()
    for _ in range(9):
        assert expire(logs, watch, at_once=False) == 0
        state["more"] = 1
        clock.advance(HOUR)
    assert len(passes) == 1
    clock.advance(HOUR)
    assert expire(logs, watch, at_once=False) == 100
    assert len(passes) == 2
    state.set("now", 1, ttl=0.001)
    clock.advance(1000)
    assert expire(logs, watch, at_once=False) == 0, "at most once in a twentieth of the time to live"
    clock.advance(HOUR)
    assert expire(logs, watch, at_once=False) == 1


def test_clean_and_the_background_do_it(logs: Any, clock: ManualClock) -> None:
    state = logs.state("s", lastword_ttl_ms="1h", delete_retention_ms="1h")
    state["a"] = 1
    state["b"] = 1
    clock.advance(HOUR)
    state["b"] = 2
    assert "time-to-live: expired" in str(logs.explain("s", key="a"))
    assert "time-to-live: expires" in str(logs.explain("s", key="b"))
    logs.clean("s")
    assert records(logs) == [("b", 2), ("a", None)]
    clock.advance(HOUR)
    logs.clean("s")
    assert records(logs) == [("b", None)], "b expired, and the tombstone of a went"
    state.refresh()
    state["c"] = 3
    clock.advance(HOUR)
    from tests.cleaner.test_outgrown import work_of

    list(work_of(logs, clock).chores(()))
    assert ("c", None) in records(logs)
    with lastword.open(logs.paths[0], clock=clock) as beside:
        assert dict(beside.state("s")) == {}


ACTIONS = st.one_of(
    st.tuples(st.just("set"), st.sampled_from("abc"), st.sampled_from([None, 0, 5, 20, 1000])),
    st.tuples(st.just("del"), st.sampled_from("abc"), st.none()),
    st.tuples(st.just("wait"), st.just(""), st.integers(1, 30)),
    st.tuples(st.sampled_from(["expire", "clean", "reopen", "refresh"]), st.just(""), st.none()),
)


@settings(deadline=None, max_examples=few(40))
@given(st.lists(ACTIONS, max_size=20), st.sampled_from([0, 10, 50]))
def test_as_a_dict_with_times_to_live(
    tmp_path_factory: pytest.TempPathFactory, actions: list[Any], topic_ttl: int
) -> None:
    root, clock = tmp_path_factory.mktemp("ttl"), ManualClock()
    logs = lastword.open(root / "d", "a", clock=clock)
    state = logs.state("s", lastword_ttl_ms=topic_ttl)
    model: dict[str, tuple[int, int]] = {}
    for number, (action, key, more) in enumerate(actions):
        if action == "set":
            state.set(key, number, ttl=None if more is None else more / 1000)
            life = more if more is not None else (topic_ttl or None)
            model[key] = number, NEVER if life is None else clock.now_ms() + life
        elif action == "del":
            state.pop(key, None)
            model.pop(key, None)
        elif action == "wait":
            clock.advance(more)
        elif action == "expire":
            expire(logs)
        elif action == "clean":
            logs.clean("s")
        elif action == "refresh":
            state.refresh()
        else:
            logs.close()
            logs = lastword.open(root / "d", "a", clock=clock)
            state = logs.state("s")
        model = {key: value for key, value in model.items() if value[1] > clock.now_ms()}
        assert dict(state) == {key: value for key, (value, _) in model.items()}
    expire(logs)
    topic = logs.topic("s")
    assert {r.key: r.value for r in topic.read(view="newest")} == dict(state)
    logs.close()


def test_a_change_keeps_the_own_time_to_live_of_a_value(logs: Any, clock: ManualClock) -> None:
    state = logs.state("s", lastword_ttl_ms=0)
    state.set("n", 1, ttl="1h")
    state.set("list", [], ttl="1h")
    clock.advance(HOUR // 2)
    assert state.incr("n") == 2 and state.change("n", lambda value: value + 1) == 3
    with state.edit("list") as value:
        value.append(1)
    assert state.remaining("n") == 3600
    clock.advance(HOUR - 1)
    assert dict(state) == {"n": 3, "list": [1]} and state.remaining("n") == 0.001
    state.close()
    state = logs.state("s")
    assert state.incr("n") == 4 and state.remaining("n") == 3600 and state.remaining("list") == 0.001
    state.touch("list")
    assert state.remaining("list") == 3600
    state.touch("list", ttl=5)
    assert state.remaining("list") == 5
    state["n"] = 0  # a new value, without a time of its own
    assert state.remaining("n") is None
    clock.advance(HOUR)
    assert dict(state) == {"n": 0}
    for call in (lambda: state.touch("list"), lambda: state.remaining("list")):
        with pytest.raises(KeyError):
            call()


def test_times_of_replaced_values_take_no_memory(logs: Any, clock: ManualClock) -> None:
    state = logs.state("s", ttl="1h")
    for number in range(1000):
        state[f"key {number % 3}"] = number
        clock.advance(1)
    assert len(state._contents._expiring) < 200
    clock.advance(HOUR - 2)
    assert dict(state) == {"key 0": 999} and state.remaining("key 0") == 0.001


@pytest.mark.parametrize("ttl", [10**15, 1e300, "99999999999d"])
def test_a_time_to_live_that_no_header_holds_is_refused(logs: Any, ttl: Any) -> None:
    state = logs.state("s", lastword_ttl_ms=60_000)
    with pytest.raises(UsageError, match="no time to live"):
        state.set("a", 1, ttl=ttl)
    state.set("a", 1, ttl=10**15 - 1)
    assert state.remaining("a") == 10**15 - 1


def test_a_time_to_live_for_every_value_of_a_state(logs: Any, clock: ManualClock) -> None:
    state = logs.state("s", ttl="1h")
    state["a"] = 1
    state.update(b=2, c=3)
    state.set("d", 4, ttl="2h")
    logs["s"].append("e", 5)
    clock.advance(HOUR)
    assert dict(state) == {"d": 4, "e": 5} and dict(logs.state("s", ttl=-1)) == {"d": 4, "e": 5}
    logs.create_topic("forever", cleanup_policy="compact")
    with pytest.raises(UsageError, match="do not expire"):
        logs.state("forever", ttl="1h")
