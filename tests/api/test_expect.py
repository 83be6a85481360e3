"""`expect=`: append a record only if the newest one of its key is known."""

from __future__ import annotations

import threading
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import lastword
from lastword.clock import ManualClock
from lastword.errors import ConflictError, KeyRequiredError, RecordTooLargeError, UsageError
from tests.support.exhaustive import few
from tests.support.threads import together
from tests.transactions import begin_transaction, end_transaction

JSON = {"key_serializer": "str", "value_serializer": "json"}
HOUR_MS = 3_600_000
_numbers = count()


@pytest.fixture(params=["index", "no index", "delete", "bucket"])
def topic(request, tmp_path):
    """A topic of three partitions whose keys are looked up in each way."""
    place = tmp_path / "data" if request.param != "bucket" else f"memory://expect-{next(_numbers)}/log"
    policy = "delete" if request.param == "delete" else "compact"
    with lastword.open(place, "a", lastword_commit_linger_ms=0, log_cleaner_enable=False) as logs:
        config = {"lastword_key_index": False} if request.param == "no index" else {}
        yield logs.create_topic("t", 3, cleanup_policy=policy, **JSON, **config)


def refused(call, *arguments, **options):
    """Return the offset that was found instead. Nothing was written."""
    with pytest.raises(ConflictError) as caught:
        call(*arguments, **options)
    assert "t-" in str(caught.value) and "get_record" in caught.value.remedy and not caught.value.retriable
    return caught.value.offset


def test_only_the_expected_record_is_replaced(topic):
    first = topic.append("a", 1, expect=lastword.ABSENT)
    topic.append("b", 1)
    assert refused(topic.append, "a", 2, expect=lastword.ABSENT) == first.offset
    second = topic.append("a", 2, expect=first.offset)
    assert topic.get_record("a").offset == second.offset
    assert refused(topic.append, "a", 3, expect=first.offset) == second.offset
    assert refused(topic.delete, "a", expect=second.offset + 1) == second.offset
    assert topic.get("a") == 2 and topic.get("b") == 1
    assert sum(end for _, end in topic.bounds().values()) == 3


def test_a_deletion_counts(topic):
    first = topic.append("a", 1)
    gone = topic.delete("a", expect=first.offset)
    for offset in (first.offset, gone.offset):  # the tombstone is removed some day: it answers as if it were
        assert refused(topic.append, "a", 2, expect=offset) is None
    assert topic.append("a", 2, expect=lastword.ABSENT).offset == gone.offset + 1


def test_the_partition_of_the_record_counts(topic):
    topic.append("a", 1, partition=2)
    home = topic.append("a", 2, partition=1, expect=lastword.ABSENT)
    assert refused(topic.append, "a", 3, partition=2, expect=home.offset + 7) == 0


def test_calls_that_cannot_be_meant_are_refused(topic):
    for options, error in [
        ({"key": None, "expect": 0}, KeyRequiredError),
        ({"key": "a", "expect": "latest"}, UsageError),
        ({"key": "a", "expect": True}, UsageError),
        ({"key": "a", "expect": 0, "producer": "p", "sequence": 1}, UsageError),
    ]:
        with pytest.raises(error):
            topic.append(value=1, **options)
    with pytest.raises(RecordTooLargeError):
        topic.append("a", "x" * (2 << 20), expect=lastword.ABSENT)
    assert sum(end for _, end in topic.bounds().values()) == 0


def test_a_counter_of_several_threads_loses_no_update(topic):
    threads, steps = 4, 10 if topic.dirs.holds_logs else 3
    topic.append("n", 0)

    def add():
        for _ in range(steps):
            while True:
                record = topic.get_record("n")
                with suppress(ConflictError):
                    topic.append("n", record.value + 1, expect=record.offset)
                    break

    together(*[add] * threads)
    assert topic.get("n") == threads * steps


def test_the_check_and_the_append_are_one_step(topic, monkeypatch):
    """A record that another thread appends after the lookup, and before the append, would be lost."""
    if not topic.dirs.holds_logs:
        pytest.skip("in a bucket the swap of the manifest decides: tests/bucket/test_log.py")
    from lastword.api import keys

    first, find_one = topic.append("a", 1), keys.find_one
    other = threading.Thread(target=topic.append, args=("a", "other"))

    def found(*arguments, **options):
        result = find_one(*arguments, **options)
        if not other.ident:
            other.start()
            other.join(0.05)
            assert other.is_alive()  # it waits for the log
        return result

    monkeypatch.setattr(keys, "find_one", found)
    assert topic.append("a", 2, expect=first.offset).offset == first.offset + 1
    other.join()
    assert topic.get("a") == "other"


def test_a_record_of_an_open_or_aborted_transaction_does_not_count(logs):
    topic = logs.create_topic("t", cleanup_policy="compact", **JSON)
    first, log = topic.append("a", 1), logs.dirs.log("t", 0)
    begin_transaction(log, 5, (b"a", b"2"))
    second = topic.append("a", 3, expect=first.offset)
    for expect in (first.offset, lastword.ABSENT):  # an own record behind the open transaction does count
        assert refused(topic.append, "a", 9, expect=expect) == second.offset
    topic.append("b", 1, expect=lastword.ABSENT)
    assert refused(topic.append, "b", 2, expect=lastword.ABSENT) == second.offset + 1
    end_transaction(log, 5, 0, commit=False)
    assert topic.append("a", 4, expect=second.offset).offset == second.offset + 3


def test_an_answer_survives_a_cleaning_and_an_opening(tmp_path, clock):
    for _ in range(2):
        with lastword.open(tmp_path / "data", "a", clock=clock) as logs:
            topic = logs.create_topic("t", cleanup_policy="compact", exist_ok=True, **JSON)
            gone = topic.append("gone", 1)
            topic.delete("gone")
            kept = topic.append("kept", 1)
            logs.dirs.log("t", 0).roll()
            clock.advance(48 * HOUR_MS)
            for _ in range(2):
                logs.clean("t")
                clock.advance(48 * HOUR_MS)
            assert refused(topic.append, "gone", 2, expect=gone.offset) is None
            topic.append("gone", 2, expect=lastword.ABSENT)
            topic.append("kept", 2, expect=kept.offset)


def test_a_state(logs, clock):
    state = logs.state("t", ttl="1m")
    state.set("a", 1, expect=lastword.ABSENT)
    assert state.offset("a") == 0 and state.offset("b") is None
    assert refused(state.set, "a", 2, expect=lastword.ABSENT) == 0
    logs.topic("t").append("a", 5)  # a writer that is no state
    assert refused(state.set, "a", 2, expect=0) == 1 and state["a"] == 5
    state.set("a", 6, expect=1)
    assert state["a"] == 6 and state.remaining("a") == 60
    clock.advance(61_000)
    assert "a" not in state and state.offset("a") is None
    assert refused(state.set, "a", 7, expect=2) is None  # it has expired, and no tombstone is there yet
    state.set("a", 7, expect=lastword.ABSENT)
    assert refused(state.delete, "a", expect=2) == 3 and dict(state) == {"a": 7}
    state.delete("a", expect=3)
    assert not state
    with pytest.raises(KeyError):
        state.delete("a")


async def test_in_an_event_loop(tmp_path):
    async with lastword.aopen(tmp_path, "a") as logs:
        topic = await logs.create_topic("t", cleanup_policy="compact", **JSON)
        first = await topic.append("a", 1, expect=lastword.ABSENT)
        with pytest.raises(ConflictError):
            await topic.append("a", 2, expect=lastword.ABSENT)
        await topic.delete("a", expect=first.offset)
        state = await logs.state("s")
        await state.set("a", 1, expect=lastword.ABSENT)
        with pytest.raises(ConflictError):
            await state.set("a", 1, expect=await state.offset("a") + 1)
        await state.delete("a", expect=await state.offset("a"))
        assert state.state.copy() == {}


class ExpectModel(RuleBasedStateMachine):
    """A topic and a state of it, changed by calls that expect something, against a dict of newest offsets."""

    KEYS = st.sampled_from("abc")

    @initialize(segment_bytes=st.sampled_from([200, 1 << 20]), index=st.booleans())
    def start(self, segment_bytes, index):
        self.clock = ManualClock()
        self.place = Path(self.directory.name if hasattr(self, "directory") else self._made())
        self.logs = lastword.open(self.place, "a", clock=self.clock)
        self.topic = self.logs.create_topic(
            "t", cleanup_policy="compact", segment_bytes=segment_bytes, lastword_key_index=index, **JSON
        )
        self.state = self.logs.state("t")
        self.newest = {}  # key -> (offset, value), value None: deleted
        self.end = 0

    def _made(self):
        import tempfile

        self.directory = tempfile.TemporaryDirectory()
        return self.directory.name

    @rule(
        key=KEYS,
        value=st.one_of(st.none(), st.integers(0, 9)),
        guess=st.integers(-1, 30),
        right=st.booleans(),
    )
    def append(self, key, value, guess, right):
        offset, known = self.newest.get(key, (None, None))
        found = None if known is None else offset
        expect = found if right else (None if guess < 0 else guess)
        given = lastword.ABSENT if expect is None else expect
        try:
            self.topic.append(key, value, expect=given)
        except ConflictError as error:
            assert expect != found and error.offset == found
        else:
            assert expect == found
            self.noted(key, value)

    @rule(key=KEYS, value=st.integers(0, 9), right=st.booleans())
    def set_in_the_state(self, key, value, right):
        found = self.state.offset(key)
        offset, known = self.newest.get(key, (None, None))
        assert found == (None if known is None else offset)
        expect = found if right else (0 if found is None else None)
        try:
            self.state.set(key, value, expect=lastword.ABSENT if expect is None else expect)
        except ConflictError:
            assert not right
        else:
            assert right
            self.noted(key, value)

    def noted(self, key, value):
        self.newest[key] = self.end, value
        self.end += 1

    @rule(key=KEYS)
    def append_plainly(self, key):
        self.topic.append(key, -1)
        self.noted(key, -1)

    @rule()
    def clean(self):
        self.clock.advance(48 * HOUR_MS)
        self.logs.clean("t")

    @rule()
    def open_again(self):
        self.logs.close()
        self.logs = lastword.open(self.place, "a", clock=self.clock)
        self.topic, self.state = self.logs["t"], self.logs.state("t")

    @invariant()
    def the_log_has_what_was_written(self):
        values = {key: value for key, (_, value) in self.newest.items() if value is not None}
        assert dict(self.state) == values == {r.key: r.value for r in self.topic.newest()}
        assert self.topic.bounds() == {0: (0, self.end)}

    def teardown(self):
        if hasattr(self, "logs"):
            self.logs.close()
            self.directory.cleanup()


TestExpectModel = ExpectModel.TestCase
TestExpectModel.settings = settings(
    max_examples=few(50),
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.parametrize("memory", ["values", "none"])
def test_the_offset_of_a_state_is_that_of_its_value(logs, memory):
    """Behind an open transaction the offset was that of an older value, and each call a conflict."""
    state = logs.state("s", memory=memory)
    state["k"] = 1
    begin_transaction(logs.dirs.log("s", 0), 5, (b"a", b"2"))
    state["k"] = 2
    assert state.offset("k") == 2 and state.offset("x") is None
    state.set("k", 3, expect=state.offset("k"))
    assert state["k"] == 3
