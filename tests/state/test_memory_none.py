"""States without values in memory: what they read, when, and what is refused. `test_states_model.py` compares
their content with a dict, beside everything that changes a log."""

import asyncio
import threading

import pytest

import lastword
from lastword import errors
from lastword.api import indexed_contents
from lastword.api.indexed_contents import IndexedContents
from lastword.api.state_log import StateLog
from lastword.files import OsFiles
from lastword.keys import index
from lastword.keys.index import KeyIndex
from lastword.records.batch import BatchBuilder
from tests.fakes.recording import RecordingFiles
from tests.state import memory
from tests.support.linux import linux_only
from tests.support.threads import together
from tests.transactions import end_transaction


@pytest.fixture
def users(logs):
    return logs.state("users", memory="none")


def records(logs):
    return [(r.key, r.value) for r in logs.topic("users").read()]


def test_opening_reads_no_log(tmp_path):
    with lastword.open(tmp_path / "data", "a") as logs:
        logs.state("users").update({str(n): "x" * 100 for n in range(3000)})

    def reads(memory):
        files = RecordingFiles(OsFiles())
        with lastword.open(tmp_path / "data", files=files) as logs:
            before = len(files.calls)
            state = logs.state("users", memory=memory)
            opened = [call for call in files.calls[before:] if call.path.endswith(".log")]
            assert state["7"] == "x" * 100
            return opened

    assert reads("none") == [] and reads("values") != []


def test_own_changes_are_not_read_back(users, monkeypatch):
    assert users.get("a") is None  # from here on the index follows the log
    monkeypatch.setattr(KeyIndex, "_read", lambda *_: pytest.fail("the tail was read"))
    for number in range(100):
        users["a"] = number
        assert users["a"] == number and users.incr("b") == number + 1
    del users["a"]
    assert "a" not in users and users.pop("b") == 100


def test_own_changes_are_not_read_back_behind_an_open_transaction(logs, users, monkeypatch):
    begin(logs, 7, b"a", b"0")
    users["a"] = 1
    assert users["a"] == 1
    with monkeypatch.context() as patch:
        patch.setattr(index, "at_one_moment", lambda *_: pytest.fail("the tail was read"))
        users["b"] = 2
        assert users["b"] == 2
    end_transaction(logs.dirs.log("users", 0), 7, 0, True)
    assert dict(users) == {"a": 1, "b": 2}


def begin(logs, producer, key, value):
    builder = BatchBuilder(producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)
    builder.append(0, key, value)
    logs.dirs.log("users", 0).append_batch(builder.build())


@pytest.mark.parametrize("is_open", [False, True])
def test_an_own_change_hides_no_record_before_it(logs, users, is_open):
    if is_open:
        begin(logs, 7, b"t", b"0")
    users["a"] = 1
    assert users["a"] == 1
    logs.topic("users").append("b", 2)
    users["c"] = 3
    assert (users["a"], users["b"], users["c"]) == (1, 2, 3)


def test_nothing_comes_between_the_value_that_was_read_and_its_replacement(logs, users, monkeypatch):
    append_if, added = StateLog.append_if, ["n", "other"]

    def late(self, *arguments):
        if added:
            key = added.pop(0)
            logs.topic("users").append(key, 100)
        return append_if(self, *arguments)

    users["n"] = 1
    monkeypatch.setattr(StateLog, "append_if", late)
    assert users.incr("n") == 101 and not added and users["other"] == 100
    assert [value for key, value in records(logs) if key == "n"] == [1, 100, 101]


def test_the_overlay_of_a_writer_is_bounded_and_the_background_makes_runs(logs, users, monkeypatch):
    monkeypatch.setattr(index, "OVERLAY_ENTRIES", 20)
    found = logs.dirs.key_index("users", 0, logs.dirs.log("users", 0).directory)
    assert users.get("a") is None
    for number in range(100):
        users[str(number)] = number
    assert len(found._overlay) == 20 and not found._runs
    logs.cleaner.background.scheduler.work_on()
    assert not found._overlay and found._runs and found.end == 100
    for number in range(9):
        users[str(number)] = -number
    logs.cleaner.background.scheduler.work_on()
    assert len(found._overlay) == 9  # not yet half full
    users["9"] = -9
    logs.cleaner.background.scheduler.work_on()
    assert not found._overlay
    assert [users[str(n)] for n in range(12)] == [*range(0, -10, -1), 10, 11]


def test_a_set_does_not_wait_for_an_index_in_use(logs, users):
    found = logs.dirs.key_index("users", 0, logs.dirs.log("users", 0).directory)
    users["a"] = users.get("a", 0)
    held, done = threading.Event(), threading.Event()

    def merge():
        with found.lock:
            held.set()
            assert done.wait(20)

    thread = threading.Thread(target=merge)
    thread.start()
    assert held.wait(20)
    users["a"] = 1
    done.set()
    thread.join()
    assert users["a"] == 1


def test_a_change_is_tried_again_if_its_key_changed_and_only_then(logs, users):
    topic = logs.topic("users")
    users["n"] = 1
    calls = []

    def change(value, key, times):
        if len(calls) < times:
            topic.append(key, 10 * value)
        calls.append(value)
        return value + 1

    assert users.change("n", lambda value: change(value, "other", 1)) == 2
    assert calls == [1]
    calls.clear()
    assert users.change("n", lambda value: change(value, "n", 1)) == 21
    assert calls == [2, 20]


def test_a_change_is_tried_again_if_a_transaction_of_its_key_was_committed(logs, users):
    log = logs.dirs.log("users", 0)
    users["n"] = 1
    begin(logs, 7, b"n", b"50")
    seen = []

    def change(value):
        if not seen:
            end_transaction(log, 7, 0, True)
        seen.append(value)
        return value + 1

    assert users.change("n", change) == 51 and seen == [1, 50]


def test_no_update_is_lost_between_threads(logs, users):
    def add():
        for number in range(50):
            users.incr("n")
            users[f"{threading.get_ident()}"] = number
            assert users["n"] > number

    together(*[add] * 4)
    assert users["n"] == 200 and len(users) == 5


def test_tasks_change_one_value(tmp_path):
    async def main(kind):
        async with lastword.aopen(tmp_path / kind, "a") as logs:
            carts = await logs.state("carts", memory=kind)

            async def add(number):
                await carts.change("ada", lambda items: [*items, number], default=[])
                await carts.incr("count")

            await asyncio.gather(*(add(number) for number in range(30)))
            assert await carts.get("count") == 30
            return await carts.get("ada"), await carts.copy()

    for kind in ("values", "none"):
        ada, copied = asyncio.run(main(kind))
        assert sorted(ada) == list(range(30)) and copied == {"ada": ada, "count": 30}


def test_many_changes_are_written_in_parts(logs, users, monkeypatch):
    monkeypatch.setattr(indexed_contents, "PART", 3)
    taken = []

    def pairs():
        for number in range(7):
            taken.append((number, logs.topic("users").bounds()[0][1]))
            yield str(number), number

    users.update(pairs())
    assert taken[-1] == (6, 6) and taken[2] == (2, 0)
    users.clear()
    assert len(users) == 0 and not users and len(records(logs)) == 14


def test_its_text_counts_nothing(users, monkeypatch):
    users["a"] = 1
    monkeypatch.setattr(IndexedContents, "__len__", lambda self: pytest.fail("a pass"))
    assert repr(users) == "State('users', memory='none')" and "users" in users._repr_html_()


def test_an_iteration_is_of_one_moment(users):
    users.update(a=1, b=2, c=3)
    iteration = iter(users.items())
    next(iteration)
    del users["b"]
    users["d"] = 4
    assert list(iteration) == [("b", 2), ("c", 3)]
    assert users.copy() == users | {} == {"a": 1, "c": 3, "d": 4}


def test_in_mode_r_each_read_is_of_now(logs, users):
    with lastword.open(logs.paths[0]) as beside:
        seen = beside.state("users", memory="none")
        for number in range(3):
            users["a"] = number
            assert seen["a"] == number and dict(seen) == {"a": number}
        assert seen.refresh() == 0 and seen.restored == () and seen.position == users.position == {0: 3}
        for change in (lambda: seen.update(a=1), lambda: seen.incr("a"), seen.clear):
            with pytest.raises(errors.ReadOnlyError):
                change()


def test_a_key_of_another_partition_is_found_and_yielded_once(logs):
    users = logs.state("users", memory="none", partitions=3)
    topic = logs.topic("users")
    home = topic._partition_of(b"a")
    first, second = (n for n in range(3) if n != home)
    topic.append("a", 1, partition=first)
    topic.append("a", 2, partition=second)
    assert users["a"] == 2 and list(users.items()) == [("a", 2)]
    users["a"] = 3
    assert users["a"] == 3 and list(users.items()) == [("a", 3)]


def test_without_an_index_each_read_is_a_scan(logs):
    users = logs.state("users", memory="none", lastword_key_index=False)
    users.update(a=1, b=2)
    users["a"] = 3
    assert users["a"] == 3 and "c" not in users and users.change("b", lambda value: value + 1) == 3


def test_the_states_of_a_topic_have_one_kind(logs, users):
    assert repr(logs.state("users")) == repr(users)
    with pytest.raises(errors.UsageError, match="memory=none"):
        logs.state("users", memory="values")
    users.close()
    assert repr(logs.state("users", memory="values")) == "State('users', 0 keys)"


@pytest.mark.parametrize("given", [{"end": 1}, {"snapshot": "users.parquet"}, {"memory": "some"}], ids=str)
def test_what_has_no_meaning_is_refused(logs, given):
    with pytest.raises(errors.UsageError, match=next(iter(given))):
        logs.state("users", **{"memory": "none"} | given)
    assert "users" not in logs


def test_what_would_read_the_log_for_each_call_is_refused(users):
    users["a"] = 1
    with pytest.raises(errors.UsageError, match="popitem") as refused:
        users.popitem()
    exec(refused.value.remedy, {"state": users})
    assert dict(users) == {}


def test_a_bucket_is_refused():
    with lastword.open("memory://none", "a") as logs, pytest.raises(errors.UsageError, match="bucket"):
        logs.state("users", memory="none")


@pytest.mark.slow
@linux_only
def test_the_memory_is_bounded(tmp_path):
    """`make memory-state N=100000000` has the large size."""
    peaks = memory.measure(str(tmp_path / "data"), 20_000)
    assert max(peaks.values()) < memory.LIMIT_MB
