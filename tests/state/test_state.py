"""A mapping whose changes are a log: what it keeps, what it restores, what it refuses."""

import threading

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import lastword
from lastword import errors
from lastword.partition import scan


def records(logs, name="users"):
    return [(r.key, r.value) for r in logs.topic(name).read()]


def test_it_is_made_compacted_with_its_serializers(logs):
    users = logs.state("users", partitions=2)
    config = logs.topic("users").config
    assert config.cleanup_policy == frozenset({"compact"})
    assert (config.lastword_key_serializer, config.lastword_value_serializer) == ("str", "json")
    assert users.topic.partitions == 2
    with lastword.open(logs.paths[0]) as beside:
        with pytest.raises(errors.UnknownTopicError):
            beside.state("user")
        with pytest.raises(errors.ReadOnlyError):
            beside.state("users")["a"] = 1


def test_every_change_is_a_record(logs):
    users = logs.state("users")
    users["ada"] = {"city": "London"}
    users["bob"] = None
    del users["ada"]
    assert records(logs) == [("ada", {"city": "London"}), ("bob", None), ("ada", None)]
    assert dict(users) == {"bob": None} and users.position == {0: 3}
    assert list(logs.topic("users").read())[1].is_tombstone is False
    with pytest.raises(KeyError):
        del users["ada"]
    with pytest.raises(KeyError):
        users["ada"]
    assert len(records(logs)) == 3


def test_a_value_that_was_taken_out_and_changed_is_not_half_kept(logs):
    users = logs.state("users")
    users["ada"] = {"tags": []}
    users["ada"]["tags"].append("x")
    assert users["ada"] == {"tags": []}
    with users.edit("ada") as ada:
        ada["tags"].append("x")
    assert users["ada"] == {"tags": ["x"]} and len(records(logs)) == 2
    with users.edit("ada"):
        pass  # nothing changed, nothing written
    with pytest.raises(ZeroDivisionError), users.edit("ada") as ada:
        ada["tags"].append(1 / 0)
    with pytest.raises(KeyError), users.edit("nobody"):
        pass
    assert len(records(logs)) == 2


def test_default_counts_up(logs):
    totals = logs.state("totals", default=int)
    totals["a"] += 1
    totals["a"] += 1
    assert totals["b"] == 0 and "b" not in totals and totals.get("b") is None
    assert totals.setdefault("c", 5) == 5
    with pytest.raises(KeyError):
        totals.pop("b")
    assert totals.pop("b", 7) == 7 and totals.pop("a") == 2
    assert records(logs, "totals") == [("a", 1), ("a", 2), ("c", 5), ("a", None)]


def test_update_and_clear_are_one_call_each(tmp_path):
    from lastword.files import OsFiles
    from tests.doubles.recording import RecordingFiles

    files = RecordingFiles(OsFiles())
    with lastword.open(tmp_path / "data", "a", files=files, lastword_ack="disk") as logs:
        users = logs.state("users")
        users["x"] = 0

        def syncs(call):
            before = len(files.calls)
            call()
            return sum(c.name == "fsync" and c.path.endswith(".log") for c in files.calls[before:])

        assert syncs(lambda: users.update({"a": 1, "b": 2}, c=3)) == 1
        assert users.position == {0: 4}
        assert syncs(users.clear) == 1
        assert syncs(lambda: users.update()) == 0
        assert dict(users) == {} and users.position == {0: 8}
    assert dict(lastword.open(tmp_path / "data").state("users")) == {}


@pytest.mark.parametrize("plain", [True, False])
def test_restore(logs, monkeypatch, plain):
    limit = 1 << 40 if plain else -1
    monkeypatch.setattr(scan, "PLAIN_BYTES", limit)
    monkeypatch.setattr(scan, "PLAIN_BYTES_LOADED", limit)
    users = logs.state("users", partitions=2)
    users.update({f"key {n}": {"n": n} for n in range(300)})
    users.update({f"key {n}": {"n": -n} for n in range(100)})
    for n in range(50):
        del users[f"key {n}"]
    with lastword.open(logs.paths[0]) as beside:
        told = []
        restored = beside.state("users", progress=told.append)
        assert dict(restored) == dict(users) and len(restored) == 250
        assert restored.position == users.position
        assert sum(r.keys for r in restored.restored) == 250
        assert [r.end_offset for r in restored.restored] == [restored.position[0], restored.position[1]]
        assert {p.verb for p in told} == {"restore"} and told[-1].done_bytes == told[-1].total_bytes
        logs.clean("users")
        assert dict(beside.state("users")) == dict(users)


@pytest.mark.parametrize("plain", [True, False])
def test_as_of_an_earlier_end(logs, monkeypatch, plain):
    limit = 1 << 40 if plain else -1
    monkeypatch.setattr(scan, "PLAIN_BYTES", limit)
    monkeypatch.setattr(scan, "PLAIN_BYTES_LOADED", limit)
    users = logs.state("users")
    users.update({"a": 1, "b": 1})  # offsets 0 and 1 are one batch
    users["a"] = 2
    assert dict(logs.state("users", end=1)) == {"a": 1}
    assert dict(logs.state("users", end=2)) == {"a": 1, "b": 1}
    old = logs.state("users", end={0: 2})
    assert old.position == {0: 2}
    for change in (lambda: old.update(a=1), lambda: old.pop("a"), old.clear):
        with pytest.raises(errors.ReadOnlyError):
            change()
    with pytest.raises(errors.UsageError):
        old.refresh()
    assert dict(users) == {"a": 2, "b": 1}


def test_refresh_takes_in_what_others_appended(logs):
    users = logs.state("users")
    users.update({"a": 1, "b": 1})
    with lastword.open(logs.paths[0]) as beside:
        seen = beside.state("users")
        assert seen.refresh() == 0
        users["a"] = 2
        del users["b"]
        users["c"] = 3
        assert dict(seen) == {"a": 1, "b": 1}
        assert seen.refresh() == 3
        assert dict(seen) == {"a": 2, "c": 3} and seen.position == {0: 5}


def test_own_changes_do_not_hide_those_of_others(logs):
    users = logs.state("users")
    logs.topic("users").append("other", 1)
    users["own"] = 2
    assert "other" not in users
    users.update(own=3)
    users.refresh()
    assert dict(users) == {"other": 1, "own": 3}


def test_what_is_held_is_counted_where_two_partitions_have_one_key(logs):
    topic = logs.create_topic("twice", partitions=2, cleanup_policy="compact")
    for partition, value in ((0, b"x" * 40), (1, b"y" * 3)):
        topic.append(b"k", value, partition=partition)
    state = logs.state("twice", key_serializer="bytes", value_serializer="bytes")
    assert dict(state) == {b"k": b"yyy"}
    assert sum(one.bytes for one in state.restored) == len(b"k" + b"yyy")


def test_max_bytes(logs):
    users = logs.state("users")
    users.update({str(n): "x" * 100 for n in range(100)})
    users.update({str(n): "y" for n in range(90)})
    assert len(logs.state("users", max_bytes=3000)) == 100
    with pytest.raises(errors.StateTooLargeError, match="max_bytes"):
        logs.state("users", max_bytes=1000)


def test_what_the_serializers_refuse_changes_nothing(logs):
    users = logs.state("users")
    for call in (
        lambda: users.__setitem__("a", {1, 2}),
        lambda: users.__setitem__(1, "x"),
        lambda: users.update({"a": 1, "b": object()}),
        lambda: users[b"a"],
    ):
        with pytest.raises(errors.SerializerError):
            call()
    assert records(logs) == [] and dict(users) == {}


def test_a_failed_append_does_not_show_in_the_mapping(tmp_path):
    from lastword.files import OsFiles
    from tests.doubles.recording import RecordingFiles

    full = []
    files = RecordingFiles(
        OsFiles(), fail=lambda call: errors.DiskFullError("full") if full and call.name == "append" else None
    )
    with lastword.open(tmp_path / "data", "a", files=files) as logs:
        users = logs.state("users")
        users["a"] = 1
        full.append(True)
        for change in (lambda: users.update(b=2), lambda: users.__setitem__("a", 2), lambda: users.pop("a")):
            with pytest.raises(errors.DiskFullError):
                change()
        full.clear()
        assert dict(users) == {"a": 1}
        assert dict(logs.state("users")) == {"a": 1}


def test_closed(logs):
    users = logs.state("users")
    users["a"] = 1
    users.sync()
    users.close()
    for call in (lambda: users["a"], lambda: len(users), lambda: users.update(a=1), users.refresh):
        with pytest.raises(errors.UsageError, match="closed"):
            call()
    assert "closed" in repr(users)


def test_from_many_threads(logs):
    totals = logs.state("totals", default=int)

    def work(name):
        for _ in range(50):
            with totals.edit(name) as value:
                pass
            totals[name] = value + 1

    threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert dict(totals) == {f"t{n}": 50 for n in range(4)}
    assert dict(logs.state("totals")) == dict(totals)


class StateIsADict(RuleBasedStateMachine):
    """Whatever is done to it, and however often it is opened again, it holds what a dict would hold."""

    keys = st.sampled_from(["a", "b", "c", "", "é"])
    values = st.none() | st.integers() | st.text(max_size=3)

    @initialize()
    def start(self):
        import tempfile

        self.directory = tempfile.TemporaryDirectory()
        self.model = {}
        self.open()

    def open(self):
        self.logs = lastword.open(self.directory.name, "a", segment_bytes=300)
        self.state = self.logs.state("users", partitions=2)

    def teardown(self):
        self.logs.close()
        self.directory.cleanup()

    @rule(key=keys, value=values)
    def put(self, key, value):
        self.state[key] = self.model[key] = value

    @rule(key=keys)
    def remove(self, key):
        assert self.state.pop(key, "absent") == self.model.pop(key, "absent")

    @rule(changes=st.dictionaries(keys, values))
    def update(self, changes):
        self.state.update(changes)
        self.model.update(changes)

    @rule()
    def clear(self):
        self.state.clear()
        self.model.clear()

    @rule()
    def clean(self):
        self.logs.clean("users")

    @rule()
    def open_again(self):
        self.logs.close()
        self.open()

    @rule()
    def refresh(self):
        self.state.refresh()

    @invariant()
    def is_the_dict(self):
        assert dict(self.state) == self.model and len(self.state) == len(self.model)


TestStateIsADict = pytest.mark.slow(StateIsADict.TestCase)
TestStateIsADict.settings = settings(
    max_examples=30, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
