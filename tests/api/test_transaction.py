"""`LogDir.transaction`: changes of several keys and topics, all or nothing."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext, suppress
from itertools import count
from typing import Any

import pytest

import lastword
from lastword.api.transaction import POSITIONS_TOPIC, Committer
from lastword.errors import (
    BusyError,
    ConflictError,
    DiskFullError,
    KeyRequiredError,
    ReadOnlyError,
    RecordTooLargeError,
    SerializerError,
    StorageError,
    TransactionTooLargeError,
    UsageError,
)
from lastword.files import DEFAULT, OVERLAP_THREADS
from lastword.logdir.identity import TRANSACTION
from lastword.logdir.transaction_state import TRANSACTIONS_TOPIC
from lastword.partition.log import PartitionLog
from lastword.segment import names
from tests.fakes.recording import RecordingFiles
from tests.support.threads import together
from tests.transactions import begin_transaction

JSON: dict[str, Any] = {"cleanup_policy": "compact", "key_serializer": "str", "value_serializer": "json"}
QUIET: dict[str, Any] = {"lastword_commit_linger_ms": 0, "log_cleaner_enable": False}
KEYS = [f"k{number}" for number in range(9)]
"""Keys of all three partitions of `events`."""
_numbers = count()


def commit(logs, value, keys=KEYS):
    """Append the value to keys of `events` in one transaction."""
    with logs.transaction() as tx:
        for key in keys:
            tx.append("events", key, value)


@pytest.fixture(params=["directory", "bucket"])
def place(request, tmp_path):
    return str(tmp_path / "data") if request.param == "directory" else f"memory://tx-{next(_numbers)}/log"


@pytest.fixture(params=["values", "none"])
def memory(request, place):
    """Where the values of a state are. In a bucket they are in memory."""
    if request.param == "none" and "://" in place:
        pytest.skip('memory="none" is refused in a bucket')
    return {} if request.param == "values" else {"memory": "none"}


@pytest.fixture
def opened(place):
    with lastword.open(place, "a", **QUIET) as logs:
        logs.create_topic("events", 3, **JSON)
        logs.create_topic("log", cleanup_policy="delete")
        yield logs


def ends(logs, *names_):
    names_ = names_ or ("events", "log")
    return {name: sum(end for _, end in logs[name].bounds().values()) for name in names_}


def test_changes_of_several_topics(opened, place, memory):
    state = opened.state("totals", default=int, **memory)
    state["old"] = 1
    with opened.transaction() as tx:
        totals = tx.state("totals")
        totals["a"] += 1
        totals["a"] += 1
        del totals["old"]
        for number in range(5):
            tx.append("events", f"k{number}", number, headers={"h": b"v"}, timestamp=1_700_000_000_000)
        tx.delete("events", "k4")
        tx.append("log", None, b"plain")
        tx.position("job", {0: 7, 2: 9})
        tx.position("batch", 4)
        assert dict(totals) == {"a": 2} and "old" not in totals and len(totals) == 1
        assert tx.get("events", "k3") == 3 and tx.get("events", "k4", "gone") == "gone"
        assert totals.get("nothing") is None and totals["nothing"] == 0
        assert dict(state) == {"old": 1} and opened["events"].get("k3") is None
        assert ends(opened) == {"events": 0, "log": 0} and opened.position("job") is None
    for logs in (opened, lastword.open(place)):
        assert logs["events"].get_many([f"k{n}" for n in range(5)]) == {f"k{n}": n for n in range(4)}
        assert logs["events"].get_record("k3").headers == (("h", b"v"),)
        assert logs["events"].get_record("k3").timestamp == 1_700_000_000_000
        assert [record.value for record in logs["log"].read()] == [b"plain"]
        assert logs.position("job") == {0: 7, 2: 9} and logs.position("batch") == 4
        assert logs.position("other") is None and POSITIONS_TOPIC in logs
        assert dict(logs.state("totals")) == {"a": 2}
    assert len(list(opened["totals"].read(view="changes"))) == 2  # two values of a key are one record
    assert not opened.transactions()


def test_a_block_that_raises_writes_nothing(opened):
    with pytest.raises(ZeroDivisionError), opened.transaction() as tx:
        tx.append("events", "a", 1)
        tx.state("totals")["a"] = 1
        raise ZeroDivisionError
    assert ends(opened) == {"events": 0, "log": 0} and not opened.state("totals")
    with opened.transaction():
        pass
    assert ends(opened) == {"events": 0, "log": 0}


def test_what_cannot_be_appended_is_refused_in_the_block(opened):
    with opened.transaction(max_bytes=5000) as tx:
        for call, error in [
            (lambda: tx.append("events", None, 1), KeyRequiredError),
            (lambda: tx.append("events", "a", {1, 2}), SerializerError),
            (lambda: tx.append("events", "a", "x" * (2 << 20)), RecordTooLargeError),
            (lambda: tx.append("events", "a", 1, partition=3), UsageError),
            (lambda: tx.position("job", "latest"), UsageError),
            (lambda: tx.append("events", "a", "x" * 5000), TransactionTooLargeError),
        ]:
            with pytest.raises(error):
                call()
        with pytest.raises(KeyError):
            del tx.state("totals")["a"]
        tx = opened.transaction()
        with pytest.raises(UsageError, match="not open"):
            tx.append("events", "a", 1)
    with pytest.raises(TransactionTooLargeError), opened.transaction(max_bytes=5000) as tx:
        tx.append("events", "a", "x" * 5000)
    assert ends(opened) == {"events": 0, "log": 0}


def test_a_reader_is_refused(opened, place):
    with lastword.open(place) as logs, pytest.raises(ReadOnlyError), logs.transaction():
        pass


def test_a_value_that_was_read_must_still_be_there(opened, place, memory):
    state = opened.state("totals", **memory)
    state["a"] = 1
    with pytest.raises(ConflictError, match="totals"), opened.transaction() as tx:
        tx.append("log", None, b"x")
        tx.state("totals")["a"] += 1
        opened["totals"].append("a", 5)
    assert state["a"] == 5 and ends(opened)["log"] == 0
    with opened.transaction() as tx:  # what was not read may change
        tx.state("totals")["b"] = 1
        opened["totals"].append("a", 6)
        tx.append("log", None, b"x")
    assert dict(state) == {"a": 6, "b": 1} and len(list(opened["log"].read())) == 1


@pytest.fixture
def busy(monkeypatch):
    """Let another writer append to a topic whenever a state has compared its values with the log."""
    from lastword.api.contents import Contents
    from lastword.api.indexed_contents import IndexedContents

    def begin(topic, key):
        for kind, name in ((Contents, "check"), (IndexedContents, "get")):
            compare = getattr(kind, name)

            def followed(*arguments, compare=compare):
                result = compare(*arguments)
                topic.append(key, 1)
                return result

            monkeypatch.setattr(kind, name, followed)

    return begin


@pytest.mark.parametrize("memory", ["values", "none"])
@pytest.mark.parametrize("written", ["totals", "log"])
def test_a_writer_of_other_keys_does_not_stop_a_transaction(logs, memory, busy, written):
    state = logs.state("totals", memory=memory)
    logs.create_topic("log", cleanup_policy="delete")
    state["a"] = 1
    with logs.transaction() as tx:
        tx.append("log", None, str(tx.state("totals")["a"]).encode())
        if written == "totals":
            tx.state("totals")["a"] += 1
        busy(logs["totals"], "other")
    assert logs["totals"].get("a") == (2 if written == "totals" else 1)
    assert logs["log"].bounds()[0][1] > 0 and logs["totals"].get("other") == 1


@pytest.mark.parametrize("memory", ["values", "none"])
@pytest.mark.parametrize("written", ["totals", "log"])
def test_a_value_that_changes_after_the_comparison_is_a_conflict(logs, memory, busy, written):
    """Also in a topic to which the block writes nothing."""
    state = logs.state("totals", memory=memory)
    logs.create_topic("log", cleanup_policy="delete")
    state["a"] = 2
    with pytest.raises(ConflictError), logs.transaction() as tx:
        tx.append("log", None, str(tx.state("totals")["a"]).encode())
        if written == "totals":
            tx.state("totals")["b"] = 3
        busy(logs["totals"], "a")
    assert logs["log"].bounds()[0][1] == 0 and logs["totals"].get("b") is None


def test_threads_that_count_in_transactions_lose_nothing(opened, memory):
    steps = 10 if opened.dirs.holds_logs else 3
    state = opened.state("totals", default=int, **memory)

    def add():
        for _ in range(steps):
            while True:
                with suppress(ConflictError):
                    with opened.transaction() as tx:
                        tx.state("totals")["n"] += 1
                        tx.append("events", f"e{tx.state('totals')['n']}", 1)
                    break
            if opened.dirs.holds_logs:
                state.incr("n")

    together(*[add] * 3)
    assert state["n"] == 3 * steps * (2 if opened.dirs.holds_logs else 1)
    assert len(list(opened["events"].newest())) == 3 * steps


def test_readers_of_the_process_see_all_partitions_or_none(opened):
    """Two topics and four partitions: every read of several of them shows one transaction."""
    keys = [f"k{n}" for n in range(12)]
    state, events = opened.state("totals", partitions=2), opened["events"]
    stop = threading.Event()

    def read():
        while not stop.is_set():
            several = {
                "get_many": set(events.get_many(keys).values()),
                "newest": {record.value for record in events.newest()},
                "copy": set(state.copy().values()),
            }
            assert all(len(values) <= 1 for values in several.values()), several
            before = events.get("k1", 0)  # of another partition than k2
            assert events.get("k2", 0) >= before
            assert state.get("k1", 0) >= before or not opened.dirs.holds_logs

    def write():
        try:
            for number in range(1, 60 if opened.dirs.holds_logs else 6):
                with opened.transaction() as tx:
                    for key in keys:
                        tx.append("events", key, number)
                        tx.state("totals")[key] = number
        finally:
            stop.set()

    together(read, read, write)


# ---------------------------------------------------------------- in a directory


class Counted:
    """A directory whose syncs are counted."""

    def __init__(self, path):
        self.files = RecordingFiles(DEFAULT)
        self.logs = lastword.open(path, "a", files=self.files, **QUIET)
        self.logs.create_topic("events", 3, **JSON)

    def syncs_of(self, keys):
        self.files.calls.clear()
        commit(self.logs, 1, keys)
        return [call.path.split("/")[-2] for call in self.files.calls if call.name == "fsync"]


def test_one_wait_for_one_partition_and_two_for_several(tmp_path):
    counted = Counted(tmp_path)
    with counted.logs as logs:
        counted.syncs_of(["k1"])  # the names of a new log are synced, too
        assert counted.syncs_of(["k1"]) == [f"events-{logs['events'].get_record('k1').partition}"]
        assert names.TRANSACTION not in {path.name for path in tmp_path.iterdir()}
        header = next(logs["events"]._view(logs["events"].get_record("k1").partition).segments[0].headers(0))
        assert (header.producer_id, header.transactional) == (-1, False)
        counted.syncs_of(KEYS)  # makes the topic of the decisions
        for _ in range(2):
            syncs = counted.syncs_of(KEYS)
            assert sorted(syncs) == ["__transaction_state-0", "events-0", "events-1", "events-2"]
            assert syncs[-1] == "__transaction_state-0"
        one, two = (
            next(key for key in KEYS if logs["events"].get_record(key).partition == number)
            for number in (0, 1)
        )
        assert "events-2" in counted.syncs_of([one, two])  # the marker of the one before
        assert "events-2" not in counted.syncs_of([one, two])
        assert (tmp_path / names.TRANSACTION).exists()
    assert not (tmp_path / names.TRANSACTION).exists()


def test_many_records_of_one_partition_are_one_transaction(logs):
    topic = logs.create_topic("one", **JSON)
    with logs.transaction() as tx:
        for number in range(3000):
            tx.append("one", f"k{number}", "x" * 400)
    assert len(topic.get_many([f"k{number}" for number in range(3000)])) == 3000
    assert sum(1 for _ in topic.read()) == 3000 == topic.bounds()[0][1] - 1  # and the marker


@pytest.mark.parametrize("name", ["append_batches", "sync", "append_batch"])
def test_a_failure_before_the_decision_leaves_nothing(logs, monkeypatch, name):
    """The third call fails: in the second partition, or for the decision."""
    topic = logs.create_topic("events", 3, **JSON)
    commit(logs, 0, ["k1", "k2"])
    call, calls = getattr(PartitionLog, name), []

    def failing(log, *arguments, **options):
        calls.append(log.name)
        if len(calls) == 2:
            raise DiskFullError("full")
        return call(log, *arguments, **options)

    monkeypatch.setattr(PartitionLog, name, failing)
    if name == "append_batch":  # two appends of batches come before: the first one is the decision
        calls.append("")
    with pytest.raises(DiskFullError):
        commit(logs, 1)
    monkeypatch.undo()
    assert topic.get_many(KEYS) == {"k1": 0, "k2": 0} and not logs.transactions()
    commit(logs, 2)
    assert set(topic.get_many(KEYS).values()) == {2}


def test_a_failure_after_the_decision_is_completed_by_the_next_opening(tmp_path, monkeypatch):
    with lastword.open(tmp_path, "a", **QUIET) as logs:
        logs.create_topic("events", 3, **JSON)
        end = Committer._end

        def failing(self, log, marker):
            if log.partition == 1:
                raise DiskFullError("full")
            end(self, log, marker)

        monkeypatch.setattr(Committer, "_end", failing)
        with pytest.raises(DiskFullError, match="is committed"):
            commit(logs, 1)
        monkeypatch.undo()
        with pytest.raises(BusyError, match="interrupted"):
            commit(logs, 2)
        assert {transaction.transactional_id for transaction in logs.transactions()} == {
            "lastword.transaction"
        }
    with lastword.open(tmp_path, "a", **QUIET) as logs:
        assert set(logs["events"].get_many(KEYS).values()) == {1} and not logs.transactions()
        commit(logs, 3)
        assert set(logs["events"].get_many(KEYS).values()) == {3}


def test_a_decision_that_is_written_but_not_synced_is_left_to_the_next_opening(tmp_path, monkeypatch):
    """With `flush.messages=1` the append of the decision syncs it, and the drive may be full then."""
    with lastword.open(tmp_path, "a", **QUIET) as logs:
        logs.create_topic("events", 3, **JSON)
        append = PartitionLog.append_batch

        def failing(log, *arguments, **options):
            append(log, *arguments, **options)
            raise DiskFullError("full")

        monkeypatch.setattr(PartitionLog, "append_batch", failing)
        with pytest.raises(DiskFullError, match="an opening to write will show"):
            commit(logs, 1)
        monkeypatch.undo()
        assert not logs["events"].get_many(KEYS)
    with lastword.open(tmp_path, "a", **QUIET) as logs:
        assert set(logs["events"].get_many(KEYS).values()) == {1} and not logs.transactions()


def test_a_damaged_partition_keeps_its_transaction(tmp_path, monkeypatch, caplog):
    """The outcome of what cannot be opened now is not lost: further transactions wait for it."""
    with lastword.open(tmp_path, "a", **QUIET) as logs:
        logs.create_topic("events", 3, **JSON)
        monkeypatch.setattr(Committer, "_marker", lambda self, producer, *, commit: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            commit(logs, 1)
        monkeypatch.undo()
    log = tmp_path / "events-2" / "00000000000000000000.log"
    data = log.read_bytes()
    log.write_bytes(data[:-9])
    with lastword.open(tmp_path, "a", **QUIET) as logs:
        assert "events-2" in caplog.text
        with pytest.raises(lastword.errors.DataError):
            commit(logs, 2, ["k1", "k2", "k3", "k4"])
    log.write_bytes(data)
    with lastword.open(tmp_path, "a", **QUIET) as logs:
        assert set(logs["events"].get_many(KEYS).values()) == {1}


def test_epochs_that_are_used_up(logs, monkeypatch):
    from lastword.api import transaction

    monkeypatch.setattr(transaction, "LAST_EPOCH", 2)
    topic = logs.create_topic("events", 3, **JSON)
    for number in range(8):
        commit(logs, number)
        assert set(topic.get_many(KEYS).values()) == {number}
    assert len(logs.dirs.log("events", 0).producers) == 3


def test_without_its_note_no_transaction_begins(tmp_path):
    """After a power cut, an opening ends the transactions of the producer that the note names."""
    full = [DiskFullError("full")]
    files = RecordingFiles(
        DEFAULT,
        fail=lambda call: full[0] if full and call.changes and names.TRANSACTION in call.path else None,
    )
    with lastword.open(tmp_path, "a", files=files, **QUIET) as logs:
        logs.create_topic("events", 3, **JSON)
        for result in (pytest.raises(DiskFullError), nullcontext()):
            with result:
                commit(logs, 1)
            full.clear()
        note = TRANSACTION.load(DEFAULT, str(tmp_path / names.TRANSACTION))
        assert note and {p.producer_id for p in logs.dirs.log("events", 0).producers} == {note["producer_id"]}


def test_a_topic_that_takes_no_records_refuses_the_block(logs, monkeypatch):
    logs.create_topic("events", 3, **JSON)
    copied = logs.create_topic("copied", **JSON, lastword_pulled_from="there")
    with pytest.raises(lastword.errors.LastwordError), logs.transaction() as tx:
        tx.append("events", "a", 1)
        tx.append("copied", "a", 1)
    assert ends(logs, "events", "copied") == {"events": 0, "copied": 0} and not logs.transactions()
    assert copied.get("a") is None


def test_a_foreign_open_transaction_stays(tmp_path):
    with lastword.open(tmp_path, "a", **QUIET) as logs:
        logs.create_topic("events", 2, **JSON)
        begin_transaction(logs.dirs.log("events", 1), 7, (b"a", b"1"))
        with logs.transaction() as tx:
            tx.append("events", "a", 1, partition=0)
            tx.append("events", "a", 1, partition=1)
        assert [transaction.producer_id for transaction in logs.transactions()] == [7]
    with lastword.open(tmp_path, "a", **QUIET) as logs:
        assert [transaction.producer_id for transaction in logs.transactions()] == [7]


@pytest.mark.parametrize("failure", [ValueError("closed"), KeyboardInterrupt()])
def test_what_cannot_be_taken_back_is_not_committed_by_the_next_one(tmp_path, monkeypatch, failure):
    """A transaction that raised left its batches open; the marker of the next one committed both."""
    with lastword.open(tmp_path, "a", **QUIET) as logs:
        logs.create_topic("events", 3, **JSON)

        def failing(self, logs, *marker):
            if logs:  # not before the first batch
                raise failure

        monkeypatch.setattr(Committer, "_sync", failing)
        monkeypatch.setattr(Committer, "_end", failing)
        with pytest.raises(type(failure)):
            commit(logs, "taken back")
        monkeypatch.undo()
        for keys in (KEYS, KEYS[:1]):  # also one that is a plain batch: readers stay before the open one
            with pytest.raises(BusyError, match="interrupted"):
                commit(logs, "later", keys)
    with lastword.open(tmp_path, "a", **QUIET) as logs:
        assert not list(logs["events"].read()) and not logs.transactions()


def test_a_deletion_and_a_move_wait_for_a_transaction(tmp_path):
    places = [tmp_path / "a", tmp_path / "b"]
    with lastword.open(places, "a", **QUIET) as logs, ThreadPoolExecutor(2) as pool:
        for name in ("moved", "deleted"):
            logs.create_topic(name, **JSON)
        log_dir = logs.dirs.log_dir("moved", 0)
        (other,) = (str(place) for place in places if str(place) != log_dir.path)
        with logs.dirs.commits:
            calls = pool.submit(logs.move, "moved", 0, other), pool.submit(logs.delete_topic, "deleted")
            assert not wait(calls, 0.1).done
        for call in calls:
            call.result()
        assert logs.dirs.log_dir("moved", 0).path == other and "deleted" not in logs


def test_transactions_go_on_after_the_deletion_of_a_topic(tmp_path):
    with lastword.open(tmp_path, "a", **QUIET) as logs:
        for name in "abc":
            logs.create_topic(name, **JSON)
        for names_ in ("ab", "bc"):
            with logs.transaction() as tx:
                for name in names_:
                    tx.append(name, "k", 1)
            if "a" in logs:
                logs.delete_topic("a")
        assert logs["c"].get("k") == 1
    with lastword.open(tmp_path, "r") as logs:
        assert [logs[name].get("k") for name in "bc"] == [1, 1]


def test_transactions_go_on_after_the_log_of_the_decisions_is_closed(tmp_path):
    """By a move to another directory, or a deletion: the next transaction opens it there, or makes it."""
    places = [str(tmp_path / name) for name in "ab"]
    with lastword.open(places, "a", **QUIET) as logs:
        logs.create_topic("events", 3, **JSON)
        commit(logs, 1)
        (other,) = set(places) - {logs.dirs.log_dir(TRANSACTIONS_TOPIC, 0).path}
        logs.move(TRANSACTIONS_TOPIC, 0, other)
        commit(logs, 2)
        assert logs.dirs.log_dir(TRANSACTIONS_TOPIC, 0).path == other
        logs.delete_topic(TRANSACTIONS_TOPIC)
        commit(logs, 3)
        assert logs.dirs.log(TRANSACTIONS_TOPIC, 0).log_end == 1
    with lastword.open(places, "a", **QUIET) as logs:
        assert set(logs["events"].get_many(KEYS).values()) == {3} and not logs.transactions()


def _sync_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("lastword-sync")}


def test_the_threads_of_syncs_are_kept_until_the_close(tmp_path):
    before = _sync_threads()
    with lastword.open(tmp_path, "a", **QUIET) as logs:
        logs.create_topic("events", 3, **JSON)
        commit(logs, 1)
        first = _sync_threads() - before
        for number in range(OVERLAP_THREADS):
            commit(logs, number)
        assert first and first <= _sync_threads() and len(_sync_threads() - before) <= OVERLAP_THREADS
    assert not _sync_threads() - before


def test_nothing_is_taken_back_while_a_sync_runs(tmp_path, monkeypatch):
    """The sync of one partition fails before that of another one ends."""
    taken_back, has_failed, sync, abort = (
        threading.Event(),
        threading.Event(),
        PartitionLog.sync,
        Committer._abort,
    )

    def syncing(log):
        if log.topic == "events" and log.partition == 0:
            has_failed.set()
            raise StorageError("failed")
        if log.topic == "events":
            assert has_failed.wait(10) and not taken_back.wait(0.05)
            ended.append(log.partition)
        sync(log)

    def aborting(self, logs):
        taken_back.set()
        return abort(self, logs)

    with lastword.open(tmp_path, "a", **QUIET) as logs:
        logs.create_topic("events", 3, **JSON)
        ended: list[int] = []
        monkeypatch.setattr(PartitionLog, "sync", syncing)
        monkeypatch.setattr(Committer, "_abort", aborting)
        with pytest.raises(StorageError):
            commit(logs, 1)
        monkeypatch.undo()
        assert taken_back.is_set() and sorted(ended) == [1, 2]
        commit(logs, 2)
        assert set(logs["events"].get_many(KEYS).values()) == {2}


def test_an_opening_without_one_of_the_directories_ends_nothing(tmp_path, monkeypatch):
    """The decision may be in the other directory: what is committed there would be aborted here."""
    places = [str(tmp_path / name) for name in "ab"]
    with lastword.open(places, "a", **QUIET) as logs:
        for name in "xyz":
            logs.create_topic(name, **JSON)
        monkeypatch.setattr(Committer, "_marker", None)
        with pytest.raises(TypeError), logs.transaction() as tx:
            for name in "xyz":
                tx.append(name, "k", 1)
        monkeypatch.undo()
    for place in places:
        with lastword.open(place, "a", **QUIET) as logs:
            assert not any(list(topic.read()) for topic in logs.topics() if topic.name in "xyz")
    with lastword.open(places, "a", **QUIET) as logs:
        assert [logs[name].get("k") for name in "xyz"] == [1, 1, 1] and not logs.transactions()


def test_a_state_in_a_block_is_a_mapping_like_others(opened, memory):
    state = opened.state("s", default=int, **memory)
    state.update(a=1, b=2, c=3)
    with opened.transaction() as tx:
        inside = tx.state("s")
        assert inside.pop("x", None) is None and inside.pop("a") == 1
        assert inside.setdefault("y", 5) == 5 and inside.setdefault("b", 7) == 2
        assert 5 not in inside and "a" not in inside
        assert sorted(inside.items()) == [("b", 2), ("c", 3), ("y", 5)] and sorted(inside.values()) == [
            2,
            3,
            5,
        ]
        with pytest.raises(KeyError):
            inside.pop("a")
        opened["s"].append("c", 4)  # was only seen in an iteration
        gone = inside.popitem()[0]
    assert gone not in state and len(state) == 2


def test_a_state_in_a_block_takes_other_keys_as_a_dict_and_is_cleared_in_one_pass(
    opened, memory, monkeypatch
):
    state = opened.state("s", **memory)
    state.update({str(number): number for number in range(50)})
    kind, listings = type(state._contents), []
    all_keys = kind.all_keys
    with opened.transaction() as tx:
        inside = tx.state("s")
        assert inside.get(5, "none") == "none" and inside.pop(5, "none") == "none" and 5 not in inside
        with monkeypatch.context() as patch:
            patch.setattr(kind, "all_keys", lambda self: listings.append(1) or all_keys(self))
            inside.clear()
        assert len(inside) == 0 and len(listings) == 1
        opened["s"].append("3", "other")  # an iteration, which `clear` is, compares nothing
        inside["new"] = 1
    assert dict(state.items()) == {"new": 1}
    for call in (lambda: list(inside), lambda: list(inside.items()), lambda: len(inside), inside.clear):
        with pytest.raises(UsageError, match="not open"):  # it has what was not written, if a block raises
            call()


def test_older_values_are_no_part_of_a_transaction(opened):
    opened.state("s")["a"] = 1
    with pytest.raises(UsageError, match="end="), opened.transaction() as tx:
        tx.state("s", end=1)


def test_a_state_that_a_block_has_named_may_be_opened_otherwise(tmp_path):
    with lastword.open(tmp_path, "a", **QUIET) as logs:
        with logs.transaction() as tx:
            tx.state("s")["a"] = 1
        with logs.state("s", memory="none") as state:
            assert state["a"] == 1
            with logs.transaction() as tx:
                tx.state("s")["a"] = 2
            assert state["a"] == 2
        logs.delete_topic("s")
        assert not logs.state("s")


def test_a_value_that_is_set_often_takes_its_memory_once(opened):
    opened.state("s", ttl="1h")
    with opened.transaction(max_bytes=2000) as tx:
        for number in range(500):
            tx.state("s")["a"] = number
    with pytest.raises(UsageError, match="max_bytes"):
        opened.transaction(max_bytes=0)


@pytest.mark.parametrize("position", [{"a": 1}, {0: -1}, {0: 1.5}, {-1: 3}, {0: None}, -3, "x"])
def test_a_position_that_could_not_be_read_is_refused(opened, position):
    with pytest.raises(UsageError, match="reached="), opened.transaction() as tx:
        tx.position("job", position)
    assert opened.position("job") is None
