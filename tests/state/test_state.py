"""A mapping whose changes are a log: the values that it keeps and restores, and the calls that it refuses.

`tests/model/test_states_model.py` compares states with a dict, in random sequences of changes.
"""

import copy
import pickle
import time
from decimal import Decimal
from itertools import islice

import pytest

import lastword
from lastword import errors
from lastword.api import contents
from lastword.api import state as state_module
from lastword.api.contents import Contents
from lastword.partition import scan
from tests.support.threads import together


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
    from tests.fakes.recording import RecordingFiles

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


def test_sync_writes_what_it_must(tmp_path):
    """One sync for each partition of this topic that changed, and its mark of what is synced."""
    from lastword.files import OsFiles
    from tests.fakes.recording import RecordingFiles

    files = RecordingFiles(OsFiles())
    with lastword.open(tmp_path / "data", "a", files=files, log_cleaner_enable=False) as logs:
        logs.create_topic("users", 4, key_serializer="str", value_serializer="json", cleanup_policy="compact")
        users, others = logs.state("users"), logs.state("others")
        for n in range(40):
            users[f"user-{n}"] = others[f"user-{n}"] = n
        users.sync()
        unsynced = logs.dirs.log("others", 0)
        assert unsynced.synced_to < unsynced.log_end == 40
        users["user-1"] = 2
        for expected in (["fsync", "pwrite"], []):
            before = len(files.calls)
            users.sync()
            calls = [call for call in files.calls[before:] if call.changes]
            assert [call.name for call in calls] == expected
        for n in range(40):
            users[f"user-{n}"] = 3
        logs.dirs.log_dir(
            "users", 0
        ).roll()  # it syncs the records; the name of the new segment is not durable yet
        before = len(files.calls)
        users.sync()
        assert "fsync_dir" in [call.name for call in files.calls[before:]]


def test_sync_of_partitions_that_were_added_and_of_a_topic_that_was_made_again(logs):
    users = logs.state("users", partitions=1)
    users["ada"] = 1
    logs.dirs.directories[0].add_partitions("users", [1, 2], logs.dirs.topic_id("users"))
    logs.dirs.partitions_added()  # as the server does
    topic = logs.topic("users")
    for number in range(3):
        topic.append("bob", number, partition=number)
    users.sync()
    opened = [logs.dirs.log("users", number) for number in range(3)]
    assert [log.synced_to for log in opened] == [log.log_end for log in opened] == [2, 1, 1]
    logs.delete_topic("users")
    again = logs.state("users", partitions=2)
    again.update({f"user {n}": n for n in range(20)})
    again.sync()
    opened = [logs.dirs.log("users", number) for number in range(2)]
    assert [log.synced_to for log in opened] == [log.log_end for log in opened]
    assert sum(log.log_end for log in opened) == 20


def test_sync_of_all_partitions_although_one_fails(logs, monkeypatch):
    users = logs.state("users", partitions=3)
    users.update({f"user {n}": n for n in range(30)})
    first, *others = (logs.dirs.log("users", number) for number in range(3))
    monkeypatch.setattr(first, "sync", lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        users.sync()
    assert [log.synced_to for log in others] == [log.log_end for log in others]


@pytest.fixture(params=[True, False], ids=["plain", "kernels"])
def both_ways(request, monkeypatch):
    """Read every range in plain Python, or with kernels."""
    monkeypatch.setattr(scan, "is_short", lambda *given: request.param)


def test_restore(logs, both_ways):
    users = logs.state("users", partitions=2)
    users.update({f"key {n}": {"n": n} for n in range(300)})
    users.update({f"key {n}": {"n": -n} for n in range(100)})
    for n in range(50):
        del users[f"key {n}"]
    with lastword.open(logs.paths[0]) as beside:
        reports = []
        restored = beside.state("users", progress=reports.append)
        assert dict(restored) == dict(users) and len(restored) == 250
        assert restored.position == users.position
        assert sum(r.keys for r in restored.restored) == 250
        assert [r.end_offset for r in restored.restored] == [restored.position[0], restored.position[1]]
        assert {p.verb for p in reports} == {"restore"} and reports[-1].done_bytes == reports[-1].total_bytes
        logs.clean("users")
        assert dict(beside.state("users")) == dict(users)


def test_as_of_an_earlier_end(logs, both_ways):
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


@pytest.mark.parametrize("new", [1, 2, 3])
def test_refresh_reads_a_topic_that_was_created_again(logs, new):
    """The new log is shorter than the position, as long, and longer."""
    logs.state("users").update({"a": 1, "b": 1})
    with lastword.open(logs.paths[0]) as beside:
        seen = beside.state("users")
        logs.delete_topic("users")
        users = logs.state("users")
        users.update({f"new{number}": number for number in range(new)})
        assert seen.refresh() == new
        assert dict(seen) == dict(users) and seen.position == {0: new}
        users["a"] = 2
        assert seen.refresh() == 1


def test_what_is_held_is_counted_where_two_partitions_have_one_key(logs):
    topic = logs.create_topic("twice", partitions=2, cleanup_policy="compact")
    for partition, value in ((0, b"x" * 40), (1, b"y" * 3)):
        topic.append(b"k", value, partition=partition)
    state = logs.state("twice", key_serializer="bytes", value_serializer="bytes")
    assert dict(state) == {b"k": b"yyy"}
    assert sum(entry.bytes for entry in state.restored) == len(b"k" + b"yyy")


def test_memory_bounds_the_values(logs):
    users = logs.state("users")
    users.update({str(n): "x" * 100 for n in range(100)})
    users.update({str(n): "y" for n in range(90)})
    users.close()
    assert len(logs.state("users", memory=3000)) == 100
    with pytest.raises(errors.StateTooLargeError, match="memory"):
        logs.state("users", memory=1000)
    assert len(logs.state("users", memory="3KiB")) == 100
    for wrong in (-1, "-1KiB", "a lot", [], "1 MiBB"):
        with pytest.raises(errors.UsageError, match=r"memory=.* is (not a size|below 0)"):
            logs.state("users", memory=wrong)


def test_memory_is_that_of_the_values_of_now(logs, tmp_path):
    users = logs.state("users")
    users["kept"] = "x" * 100
    with lastword.open(logs.dirs.paths[0]) as others:
        seen = others.state("users", memory=1000)
        for number in range(50):
            users["replaced"] = f"{number:03}" * 100
            seen.refresh()
            del users["replaced"]
            seen.refresh()
        assert dict(seen) == {"kept": "x" * 100}
        users.update({"replaced": "x" * 1000})
        with pytest.raises(errors.StateTooLargeError, match="memory"):
            seen.refresh()


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
    from tests.fakes.recording import RecordingFiles

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


def from_four_threads(work):
    """Run `work` 500 times in each of four threads."""

    def run():
        for _ in range(500):
            work()

    together(*[run] * 4)


@pytest.mark.parametrize(
    "step",
    [
        lambda totals: totals.incr("n"),
        lambda totals: totals.change("n", lambda value: value + 1),
        lambda totals: totals.change("n", lambda value: value + 1, default=0),
    ],
    ids=["incr", "change", "change with a default"],
)
def test_no_increment_is_lost_between_threads(logs, step, monkeypatch):
    """Every read yields: a thread that reads between another's read and write would lose an increment."""
    totals = logs.state("totals", default=int)
    original = type(totals).__getitem__

    def yielding(self, key):
        value = original(self, key)
        time.sleep(0)  # another thread runs now, if the lock lets it
        return value

    monkeypatch.setattr(type(totals), "__getitem__", yielding)
    from_four_threads(lambda: step(totals))
    assert totals["n"] == 2000 and len(records(logs, "totals")) == 2000
    assert dict(logs.state("totals")) == {"n": 2000}


def test_an_iteration_goes_on_beside_changes(logs):
    """It raised RuntimeError or KeyError when another thread added or deleted a key."""
    users = logs.state("users")
    for view, rest in (
        (users.items, [("c", 3)]),
        (users.values, [3]),
        (users.keys, ["b", "c"]),
        (users.__iter__, ["b", "c"]),
    ):
        users.clear()
        users.update(a=1, b=2, c=3)
        iteration = iter(view())
        next(iteration)
        del users["b"]
        users["d"] = 4
        assert list(iteration) == rest
    assert ("c", 3) in users.items() and 4 in users.values() and len(users.items()) == 3


def test_an_absent_key_with_a_default_has_no_item(logs):
    totals = logs.state("totals", default=int)
    totals["a"] = 1
    assert ("a", 1) in totals.items() and ("x", 0) not in totals.items() and not {("x", 0)} & totals.items()
    assert 1 in totals.values() and 0 not in totals.values()
    with logs.transaction() as tx:
        assert ("x", 0) not in tx.state("totals").items()


def test_popitem_and_bool_do_not_list_the_keys_each_time(logs, monkeypatch):
    users = logs.state("users")
    users.update({str(number): number for number in range(300)})
    listings = []
    monkeypatch.setattr(Contents, "all_keys", lambda self: 1 / 0)
    monkeypatch.setattr(contents, "LISTED", 100)
    monkeypatch.setattr(contents, "islice", lambda *given: listings.append(1) or islice(*given))
    popped = []
    while users:
        key, value = users.popitem()
        popped.append(key)
        if value == 7:
            users["new"] = 1
            del users["20"], users["250"]
    kept = [str(number) for number in range(300) if number not in (20, 250)]
    assert popped == [*kept, "new"] and len(listings) <= 4
    with pytest.raises(KeyError):
        users.popitem()


@pytest.mark.parametrize("memory", ["values", "none"])
def test_a_function_that_writes_its_own_key_ends(logs, monkeypatch, memory):
    monkeypatch.setattr(state_module, "ATTEMPTS", 20)
    users = logs.state("users", memory=memory)
    users["n"] = 0
    with pytest.raises(errors.BusyError, match="20 times"):
        users.change("n", lambda value: users.incr("n") + value)
    assert users["n"] == 20 and users.incr("n") == 21


def test_threads_pop_each_item_once(logs):
    totals = logs.state("totals")
    totals.update({str(n): n for n in range(2000)})
    popped = []
    from_four_threads(lambda: popped.append(totals.popitem()))
    assert sorted(value for _, value in popped) == list(range(2000))
    with pytest.raises(KeyError):
        totals.popitem()
    assert len(totals) == len(logs.state("totals")) == 0


def test_change_writes_one_record_or_none(logs):
    users = logs.state("users")
    users["ada"] = "turin"
    assert users.change("ada", str.upper) == "TURIN"
    assert users.change("ada", str.upper) == "TURIN"  # the same value: nothing is written
    assert records(logs) == [("ada", "turin"), ("ada", "TURIN")]
    with pytest.raises(ZeroDivisionError):
        users.change("ada", lambda value: 1 / 0)
    with pytest.raises(KeyError):
        users.change("bob", str.upper)
    with pytest.raises(errors.SerializerError):
        users.change("ada", lambda value: {1, 2})
    assert users.change("bob", lambda value: value + 1, default=4) == 5
    assert users.change("ada", lambda value: None) is None  # a value that JSON can write
    assert users.change("ada", lambda value: users.DELETE) is users.DELETE
    assert users.change("eve", lambda value: users.DELETE, default=0) is users.DELETE  # the key was absent
    assert records(logs)[2:] == [("bob", 5), ("ada", None), ("ada", None)] and dict(users) == {"bob": 5}


def test_incr(logs):
    totals = logs.state("totals", value_serializer="float64")
    assert totals.incr("a") == 1 and totals.incr("a", -0.5) == 0.5 and totals["a"] == 0.5
    mixed = logs.state("mixed", default=lambda: 10)
    assert mixed.incr("a", 5) == 15
    mixed.update(text="x", flag=True, nothing=None)
    written = len(records(logs, "mixed"))
    for key in ("text", "flag", "nothing"):
        with pytest.raises(errors.UsageError, match="is no number"):
            mixed.incr(key)
    with pytest.raises(errors.UsageError, match="is no number"):
        mixed.incr("a", "1")
    assert len(records(logs, "mixed")) == written


@pytest.mark.parametrize("value", [0, 1.5, True, None, "x", Decimal(1), (1, 2), b"x", frozenset()], ids=repr)
def test_edit_of_what_cannot_be_changed_in_place_is_refused(logs, value):
    """`with s.edit("n") as n: n += 1` rebinds a name: without an error, the change would be lost."""
    state = logs.state("any", value_serializer=(pickle.dumps, pickle.loads), default=lambda: value)
    state["there"] = value
    for key in ("there", "absent"):
        entered = False
        with pytest.raises(errors.UsageError, match="cannot be changed in place") as caught, state.edit(key):
            entered = True
        assert not entered and "state.change(key" in caught.value.remedy
    assert len(state) == 1 and logs["any"].bounds() == {0: (0, 1)}


def test_it_joins_and_copies_as_a_dict_does(logs):
    users = logs.state("users")
    users["ada"] = [1]
    assert users | {"bob": 2} == {"ada": [1], "bob": 2}
    assert {"ada": 0, "bob": 2} | users == {"ada": [1], "bob": 2}
    same = users
    users |= {"bob": 2}
    users |= [("eve", 3)]
    assert same is users and dict(users) == {"ada": [1], "bob": 2, "eve": 3}
    for duplicate in (users.copy(), copy.copy(users), copy.deepcopy(users)):
        assert type(duplicate) is dict and duplicate == dict(users)
        duplicate["ada"].append(2)
    assert users["ada"] == [1]
    for other in (5, [1]):
        with pytest.raises(TypeError):
            users | other


def test_a_key_that_the_serializer_refuses_is_not_in_it(logs):
    users = logs.state("users")
    users["1"] = "x"
    assert 1 not in users and users.get(1) is None and users.get(1, 5) == 5 and users.pop(1, 6) == 6
    with pytest.raises(KeyError):
        users.pop(1)
    for call in (lambda: users.__setitem__(1, "x"), lambda: users.setdefault(1, "x"), lambda: users[1]):
        with pytest.raises(errors.SerializerError):
            call()
    assert dict(users) == {"1": "x"}


CONTRADICTIONS = {
    "another value serializer": ({"value_serializer": "msgpack"}, "its values are json"),
    "another key serializer": ({"key_serializer": "int64"}, "its keys are str"),
    "bytes to write": ({"value_serializer": "bytes"}, "its values are json"),
    "more partitions": ({"partitions": 4}, "partitions is 2, not 4"),
    "another setting": ({"segment_bytes": "2MiB"}, "segment.bytes is 1MiB, not 2MiB"),
    "a setting that was not given": ({"retention_ms": "1h"}, "retention.ms is 7d, not 1h"),
}


@pytest.mark.parametrize(("given", "message"), CONTRADICTIONS.values(), ids=list(CONTRADICTIONS))
def test_what_contradicts_the_topic_is_refused(logs, given, message):
    """Without an error, a writer would make the mistake and its readers would find it."""
    config = {"partitions": 2, "segment_bytes": "1MiB"}
    logs.state("users", **config)["ada"] = 1
    with pytest.raises(errors.InvalidSettingError, match=message) as caught:
        logs.state("users", **config | given)
    assert caught.value.remedy
    if "key_serializer" not in given and "value_serializer" not in given:
        with pytest.raises(errors.InvalidSettingError, match=message):
            logs.create_topic("users", exist_ok=True, **given)
    elif "bytes" not in given.values():
        for ask in (logs.topic, lambda name, **more: logs.create_topic(name, exist_ok=True, **more)):
            with pytest.raises(errors.InvalidSettingError, match=message):
                ask("users", **given)
    assert dict(logs.state("users", **config)) == {"ada": 1}
    assert dict(logs.state("users", key_serializer="str", value_serializer="json")) == {"ada": 1}


def test_the_remedy_of_a_contradicting_setting_works(logs):
    logs.state("users", segment_bytes="1MiB")
    with pytest.raises(errors.InvalidSettingError) as caught:
        logs.state("users", segment_bytes="2MiB", min_compaction_lag_ms="1h")
    exec(caught.value.remedy.removeprefix("to change it: "), {"logs": logs})
    assert logs.state("users", segment_bytes="2MiB", min_compaction_lag_ms=3_600_000).topic.partitions == 1


def test_settings_are_compared_with_the_saved_ones_and_not_with_those_of_this_process(tmp_path):
    for _ in range(2):
        with lastword.open(tmp_path / "data", "a", segment_bytes="3MiB") as logs:
            logs.state("users", segment_bytes="1MiB")


def test_in_mode_r_bytes_can_be_read_as_they_are(logs):
    logs.state("users")["ada"] = 1
    with lastword.open(logs.paths[0]) as beside:
        assert dict(beside.state("users", value_serializer="bytes")) == {"ada": b"1"}
        assert dict(beside.state("users", value_serializer=(str.encode, bytes.decode))) == {"ada": "1"}
        for given in ({"value_serializer": "msgpack"}, {"partitions": 3}, {"segment_bytes": 14}):
            with pytest.raises(errors.InvalidSettingError):
                beside.state("users", **given)


def test_settings_of_a_new_topic(logs):
    users = logs.state("users", segment_bytes="16MiB", delete_retention_ms="1h")
    assert users.topic.config.segment_bytes == 16 << 20
    assert users.topic.config.cleanup_policy == frozenset({"compact"})
    with pytest.raises(errors.UnknownSettingError, match="segment_bytes"):
        logs.state("others", segment_byts="16MiB")
    assert "others" not in logs


POLICIES = {
    "delete": ({"cleanup_policy": "delete"}, "retention .retention.ms = 7d. deletes keys"),
    "both": ({"cleanup_policy": "compact,delete"}, "retention .retention.ms = 7d. deletes keys"),
    "by size": (
        {"cleanup_policy": "compact,delete", "retention_ms": -1, "retention_bytes": 10},
        "retention .retention.bytes = 10.",
    ),
    "delete without a limit": ({"cleanup_policy": "delete", "retention_ms": -1}, "never removed"),
    "none": ({}, "no cleanup.policy"),
}


@pytest.mark.parametrize(("config", "message"), POLICIES.values(), ids=list(POLICIES))
def test_a_topic_that_would_lose_its_keys_is_refused(logs, config, message):
    """Retention removes keys without a tombstone: the next restore would not have them."""
    logs.create_topic("users", key_serializer="str", value_serializer="json", **config).append("ada", 1)
    with pytest.raises(errors.UsageError, match=message) as caught:
        logs.state("users")
    if config:
        with pytest.raises(errors.UsageError, match=message):
            logs.state("new", **config)
        assert "new" not in logs
    with lastword.open(logs.paths[0]) as beside:  # reading is allowed
        assert dict(beside.state("users")) == {"ada": 1}
    assert dict(logs.state("users", end=1)) == {"ada": 1}  # read only
    exec(caught.value.remedy.partition(";")[0], {"logs": logs})
    assert dict(logs.state("users")) == {"ada": 1}


def test_both_policies_without_a_limit_keep_every_key(logs):
    logs.state("users", cleanup_policy="compact,delete", retention_ms=-1)["ada"] = 1
    assert dict(logs.state("users")) == {"ada": 1}


def test_a_topic_that_was_made_with_its_default_serializers(logs):
    """`create_topic` saves "bytes"; the error says so, and its remedy works."""
    logs.create_topic("users", cleanup_policy="compact")
    users = logs.state("users")
    with pytest.raises(errors.SerializerError, match="saved with the topic as bytes") as caught:
        users["ada"] = 1
    assert 'key_serializer="str"' in caught.value.remedy
    users.close()
    users = logs.state("users", key_serializer="str")
    with pytest.raises(errors.SerializerError, match=r"value .* saved with the topic as bytes") as caught:
        users["ada"] = {"city": "Turin"}
    assert 'value_serializer="json"' in caught.value.remedy
    users.close()
    logs.state("users", key_serializer="str", value_serializer="json")["ada"] = {"city": "Turin"}
    assert dict(logs.state("users")) == {b"ada": b'{"city":"Turin"}'}  # no reader fails
