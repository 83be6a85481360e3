"""A log in a bucket through the public interface: the same results as over a directory."""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow
import pytest

import lastword
from lastword.api import bucket_dirs, bucket_records
from lastword.api.bucket_cleaner import CHECK_AGAIN_SECONDS, GROWN_SEGMENTS, BucketWork
from lastword.api.open_dirs import OpenDirs
from lastword.background.scheduler import Scheduler
from lastword.background.states import States
from lastword.bucket import commit, scratch
from lastword.bucket.commit import READ_ATTEMPTS, Bucket, Loaded
from lastword.bucket.files import BucketFiles
from lastword.bucket.manifest import Entry
from lastword.clock import ManualClock
from lastword.errors import (
    BusyError,
    ConflictError,
    KeyRequiredError,
    LeaseRefusedError,
    NotALogDirError,
    NotPermittedError,
    ReadOnlyError,
    RecordTooLargeError,
    StorageError,
    UncertainRequestError,
    UnknownTopicError,
    UploadsGoneError,
    UsageError,
)
from lastword.kernels.native import cache_folder
from lastword.objects.remote import RemoteStore
from tests.support.threads import together

Open = Callable[..., lastword.LogDir]
ROWS = [(f"k{i % 50}", {"n": i}) for i in range(1000)]
JSON = {"key_serializer": "str", "value_serializer": "json", "cleanup_policy": "compact"}


def superseded_twice(logs: lastword.LogDir) -> lastword.Topic:
    """Make a topic of 1,000 keys with three records each."""
    topic = logs.create_topic("users", **JSON)
    for _ in range(3):
        topic.extend([(f"k{number}", {"n": number}) for number in range(1000)])
    return topic


def outcome_of_next(work: BucketWork, logs: lastword.LogDir, *, stop: bool = False) -> Any:
    """Run the next task in the background; return its outcome."""
    task = work.next(logs.dirs.paths[0], ())
    assert task is not None
    return task.run(lambda: stop)


def no_answer(store: object, key: object = "memory://", *given: object, **options: object) -> Any:
    raise UncertainRequestError.of(str(key), "request", "no answer", write=True)


def shown(topic: lastword.Topic) -> list[tuple]:
    return sorted((r.partition, r.offset, r.key, r.value and r.value["n"]) for r in topic.read())


def test_another_process_reads_what_was_acknowledged(opened: Open) -> None:
    topic = opened().create_topic("users", **JSON)
    reader = opened("r")["users"]
    for number in range(3):
        topic.append("a", {"n": number})
        if number == 1:  # as the first read of a new version, and of one record
            assert [r.value["n"] for r in reader.read(number, number + 1, partition=0)] == [number]
        assert shown(reader)[-1] == (0, number, "a", number)
    writer = opened()["users"]
    assert writer.append("b", {"n": 9}).offset == 3
    assert topic.append("c", {"n": 9}).offset == 4
    assert [offset for _, offset, *_ in shown(reader)] == [0, 1, 2, 3, 4]
    for there in (reader, writer):
        assert there.record_at(3).value == {"n": 9} and there.record_at(5) is None
        assert [record and record.value["n"] for record in there.records_at([4, 0, 5])] == [9, 0, None]


def test_a_cleaning_joins_small_segments_so_that_readers_send_fewer_requests(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = opened().create_topic("users", **JSON)
    for number in range(70):
        topic.append(f"k{number}", {"n": number, "text": "x" * 1500})
    requests: list[str] = []
    get_range = RemoteStore.get_range

    def counted(store: RemoteStore, key: str, start: int, size: int) -> object:
        requests.append(key)
        return get_range(store, key, start, size)

    monkeypatch.setattr(RemoteStore, "get_range", counted)

    def requests_of_a_read() -> int:
        requests.clear()
        assert len(list(opened("r")["users"].read(view="newest"))) == 70
        return len(requests)

    assert requests_of_a_read() >= 70
    (round_,) = opened().clean("users", due=True)
    assert (round_.segments_before, round_.records_kept) == (70, 70)
    assert requests_of_a_read() <= 2 * round_.segments_after <= 20
    assert opened().dirs.log_dir("users", 0).ledgers.file_cost_bytes >= BucketFiles.file_cost_bytes > 0


def test_threads_share_a_commit(opened: Open, url: str) -> None:
    logs = opened(lastword_commit_linger_ms=50)
    topic = logs.create_topic("users", **JSON)
    begun = len(logs.dirs.newest.manifest.history)
    appended = together(*(partial(topic.append, "k", {"n": n}) for n in range(12)))
    logs.dirs.refresh()
    assert sorted(result.offset for result in appended) == list(range(12))
    assert len(logs.dirs.newest.manifest.history) - begun < 12


def test_the_time_of_a_commit_is_part_of_the_next_linger(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = opened(lastword_commit_linger_ms=1000)
    topic = logs.create_topic("users", **JSON)
    swap, began = RemoteStore.swap, []

    def slow(*given: Any) -> Any:
        began.append(time.monotonic())
        time.sleep(0.8)
        return swap(*given)

    monkeypatch.setattr(RemoteStore, "swap", slow)
    for number in range(2):
        topic.append("k", {"n": number})
    assert 0.8 < began[1] - began[0] < 1.5  # 1.8 if the second one waited for the whole linger


def test_sync_waits_for_a_commit_under_way(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if no other call waits: a server that ends its session has no commit after it."""
    logs = opened()
    topic = logs.create_topic("users", **JSON)
    topic.append("k", {"n": 0})
    store: Any = logs.dirs._bucket.store  # type: ignore[attr-defined]
    swap, began, may_go_on = store.swap, threading.Event(), threading.Event()

    def held(*given: Any) -> Any:
        began.set()
        assert may_go_on.wait(20)
        return swap(*given)

    monkeypatch.setattr(store, "swap", held)
    done = topic.begin_append("k", {"n": 1})
    assert done is not None and began.wait(20)
    syncing = threading.Thread(target=logs.sync)
    syncing.start()
    syncing.join(0.1)
    assert syncing.is_alive()
    may_go_on.set()
    syncing.join()
    assert done.result(20).offset == 1


def test_headers_of_an_iterator_are_kept_when_a_commit_runs_again(opened: Open) -> None:
    logs = opened(lastword_commit_linger_ms=500)
    users = logs.create_topic("users", cleanup_policy="compact")

    def append() -> None:
        users.append(b"k", b"v", headers=((name, b"x") for name in ("a", "b")))

    def refused() -> None:  # the shared commit runs again without it
        with pytest.raises(KeyRequiredError):
            users.append(None, b"v")

    together(append, refused)
    assert [record.headers for record in users.read()] == [(("a", b"x"), ("b", b"x"))]


def test_an_iterator_is_committed_in_groups(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_records, "GROUP_BYTES", 20 * 2 * bucket_records.RECORD_BYTES)
    topic = opened().create_topic("users", **JSON)

    def rows(count: int) -> Iterator[tuple[str, dict[str, int] | None]]:
        for number in range(count):
            yield f"k{number:0128d}"[:64], {"n": number}
        if count > 50:
            raise RuntimeError("no more rows")

    assert topic.extend(rows(50)) == 50
    with pytest.raises(RuntimeError):
        topic.extend(rows(51))
    assert len(shown(topic)) == 90  # the groups before the failure are in the log
    table = pyarrow.table({"key": [b"a"] * 60, "value": [b'{"n": 1}'] * 60})
    reader = pyarrow.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=10))
    plain = opened().topic("users", key_serializer="bytes", value_serializer="bytes")
    assert plain.extend(reader) == 60
    assert topic.bounds() == {0: (0, 150)}


def test_closing_commits_what_waits(opened: Open) -> None:
    logs = opened(lastword_commit_linger_ms=60_000)
    logs.state("totals")["a"] = 1
    logs.close()
    assert dict(opened("r").state("totals")) == {"a": 1}


def test_leases_trim_settings_and_deletion(opened: Open) -> None:
    logs = opened()
    topic = logs.create_topic("users", **JSON)
    topic.extend(ROWS)
    lease = topic.lease("reader", position=5)
    lease.advance(7)
    assert [info.position for info in opened("r")["users"].leases()] == [7]
    lease.release()
    with pytest.raises(LeaseRefusedError):
        _ = lease.position
    assert topic.trim(100) == {0: 100}
    assert topic.bounds() == {0: (100, 1000)}
    logs.set_config("users", segment_bytes="1MiB")
    assert opened("r")["users"].config.segment_bytes == 1 << 20
    logs.delete_topic("users")
    assert list(opened("r")) == []
    with pytest.raises(UnknownTopicError):
        topic.append("k", {"n": 1})


def test_follow_shows_records_of_another_writer(opened: Open) -> None:
    topic = opened().create_topic("users", **JSON)
    follower = iter(opened("r")["users"].read("latest", follow=True, timeout=30))
    topic.append("a", {"n": 1})
    assert next(follower).value == {"n": 1}


def test_the_background_cleaner_cleans_and_collects(opened: Open) -> None:
    logs = opened(log_cleaner_enable=True, log_cleaner_backoff_ms=10)
    topic = logs.create_topic("users", min_cleanable_dirty_ratio=0.1, lastword_strategy="kafka", **JSON)
    topic.extend(ROWS)
    for _ in range(3000):
        if logs.cleaner.history():
            break
        threading.Event().wait(0.01)
    assert logs.cleaner.history()[0].result == "ok"
    assert len(shown(topic)) == 50


def test_the_background_cleaner_checks_a_partition_that_has_grown(opened: Open) -> None:
    """Each check sends the garbage index again."""
    clock = ManualClock(1_795_168_800_000)
    logs = opened(clock=clock)
    topic = logs.create_topic("users", **JSON)
    topic.extend([(f"k{i}", {"n": i}) for i in range(1000)])
    work = BucketWork(logs.dirs, States(clock))

    def checks() -> int:
        """Run every check that is needed; return how many there were."""
        for number in range(10):
            task = work.next(logs.dirs.paths[0], ())
            if task is None:
                return number
            task.run(lambda: False)
        raise AssertionError("there is always another check")

    assert (checks(), checks()) == (1, 0)
    topic.append("k1", {"n": -1})
    assert checks() == 0
    topic.extend([(f"n{i}", {"n": i}) for i in range(200)])
    assert (checks(), checks()) == (1, 0)
    for number in range(GROWN_SEGMENTS):
        topic.append(f"k{number}", {"n": -1})
    assert (checks(), checks()) == (1, 0)
    clock.sleep(CHECK_AGAIN_SECONDS)
    assert (checks(), checks()) == (1, 0)
    topic.set_config(max_compaction_lag_ms=60_000)
    topic.append("k1", {"n": -2})
    assert checks() == 0
    clock.sleep(31)
    assert checks() == 2  # a cleaning of what is overdue, and a check of its result


def test_a_pin_keeps_the_objects_of_a_version(opened: Open, tmp_path: Path) -> None:
    logs = opened()
    topic = logs.create_topic("users", **JSON)
    topic.extend(ROWS)
    reader = opened("r")["users"].read()
    with opened("r").pin(max_age="1h"):
        records = iter(reader)
        first = next(records)
        logs.clean("users")
        for _ in range(3):
            assert logs.collect(retention=0).removed_objects == 0
        assert [record.offset for record in (first, *records)] == list(range(1000))
        assert logs.dirs.collect(retention_ms=0).pinned_objects > 0
    assert logs.collect(retention=0).removed_objects > 0
    with lastword.open(tmp_path / "d", "a") as directory, pytest.raises(UsageError, match="is a directory"):
        directory.pin()


def test_uploads_of_a_job_are_kept_until_its_commit(opened: Open) -> None:
    logs = opened()
    logs.create_topic("users", **JSON)
    bucket = logs.dirs._bucket
    bucket.begin_uploads("job", keep_ms=3_600_000)
    bucket.store.put("objects/" + "0" * 32, b"x" * 10)
    for _ in range(3):
        logs.collect(retention=0)
    assert bucket.store.facts("objects/" + "0" * 32) is not None
    entry = Entry(1, 10, 0, "objects/" + "0" * 32)
    bucket.transaction(lambda files: files.adopt({"note": entry}), uploads="job")
    assert bucket.load().snapshot.entry("note") == entry and not bucket.load().manifest.uploads
    with pytest.raises(UploadsGoneError):
        bucket.transaction(lambda files: files.adopt({"other": entry}), uploads="job")
    assert bucket.load().snapshot.entry("other") is None


def bucket_of(logs: lastword.LogDir) -> Bucket:
    assert isinstance(logs.dirs, bucket_dirs.BucketDirs)
    return logs.dirs._bucket


def plans_of(logs: lastword.LogDir) -> list[tuple[object, ...]]:
    """Return what a plan says, without its time."""
    return [
        (p.topic, p.partition, p.action, p.limit, p.reasons, p.exact, p.free_bytes)
        for p in logs.plan(due=True)
    ]


@pytest.mark.parametrize("deletes", [False, True])
def test_a_plan_reads_no_garbage_index_that_is_up_to_date(
    opened: Open, requests: Counter[str], deletes: bool
) -> None:
    """Only the plan of a partition that has new records reads, and the plans are those of the indexes."""
    logs = opened(lastword_space_target=3.0)
    topic = logs.create_topic("t", 30, cleanup_policy="compact", segment_bytes="16KiB")
    for _ in range(3):
        values = (None if deletes and n % 50 == 0 else b"v" * 100 for n in range(3000))
        topic.extend((b"k%d" % n, value) for n, value in enumerate(values))
    logs.clean(due=True)
    reader = opened("r", lastword_space_target=3.0)
    requests.clear()
    plans = plans_of(reader)
    assert {plan[2] for plan in plans} == {"keep"}
    assert requests == {"get": 1}
    requests.clear()
    logs.clean(due=True)
    assert requests["get_range"] == requests["swap"] == 0
    topic.append(b"k7", b"new", partition=3)
    requests.clear()
    changed = plans_of(reader)
    assert requests.total() <= 10, requests
    bucket_of(logs).transaction(without_summaries)
    requests.clear()
    assert plans_of(reader) == changed
    assert requests["get_range"] >= 30
    assert [plan for plan in changed if plan[1] != 3] == [plan for plan in plans if plan[1] != 3]


def without_summaries(files: BucketFiles) -> None:
    for number in range(30):
        files.unlink(f"{files.root}/t-{number}/lastword/garbage-summary")


def test_a_summary_of_other_segments_or_damaged_is_not_used(opened: Open) -> None:
    """What is due is found, also by a summary of the log before its last append and cleaning."""
    logs = opened()
    topic = logs.create_topic("t", cleanup_policy="compact", segment_bytes="4KiB")
    topic.extend((b"k%d" % n, b"v" * 50) for n in range(200))
    logs.clean(due=True)
    path = f"{bucket_of(logs).url}/t-0/lastword/garbage-summary"
    old = bucket_of(logs).files(bucket_of(logs).load().snapshot).read_bytes(path)
    topic.extend((b"k%d" % n, b"w" * 50) for n in range(200))
    topic.extend((b"k%d" % n, b"x" * 50) for n in range(200))
    (right,) = logs.plan(due=True)
    assert right.action == "clean" and right.free_bytes
    for content in (old, b"lastword garbage-summary 1 00000000\n{}\n", old[:-20]):

        def put(files: BucketFiles, content: bytes = content) -> None:
            files.write_atomic(path, content)

        bucket_of(logs).transaction(put)
        (plan,) = logs.plan(due=True)
        assert (plan.action, plan.free_bytes) == (right.action, right.free_bytes)
    assert [problem.code for problem in logs.verify().problems] == ["bad-garbage-summary"]
    logs.clean(due=True)
    assert logs.verify().ok


def test_retention_by_time_reads_only_what_may_be_removed(opened: Open, requests: Counter[str]) -> None:
    logs, hour = opened(), 3_600_000
    now = logs.dirs.clock.now_ms()
    topic = logs.create_topic("t", partitions=20, cleanup_policy="delete", retention_ms="1h")
    for age in (3 * hour, 0):
        for number in range(20):
            stamp = now - age if number == 3 else now
            topic.append(b"k", b"v" * 2000, timestamp=stamp, partition=number)  # not in the manifest itself
    reader = opened("r")
    requests.clear()
    (plan,) = [plan for plan in reader.plan() if plan.action == "delete"]
    assert (plan.partition, plan.segments) == (3, 1)
    assert requests["get_range"] == 1  # of the segment to remove
    requests.clear()
    assert [(done.partition, done.segments) for done in logs.expire()] == [(3, 1)]
    assert requests["get_range"] == 1
    requests.clear()
    assert not logs.expire() and requests["get_range"] == 0


def test_a_time_index_that_lacks_its_end_removes_no_record(opened: Open) -> None:
    logs, hour = opened(), 3_600_000
    now = logs.dirs.clock.now_ms()
    topic = logs.create_topic("t", cleanup_policy="delete", retention_ms="1h")
    for _ in range(2):
        topic.append(b"k", b"v", timestamp=now)
    index = "00000000000000000000.timeindex"

    def shorten(files: BucketFiles) -> None:
        old = (now - 2 * hour).to_bytes(8, "big") + bytes(4)
        files.write_atomic(f"{files.root}/t-0/{index}", old)

    bucket_of(logs).transaction(shorten)
    assert not logs.expire()
    assert [record.offset for record in topic.read()] == [0, 1]


def test_what_cannot_be_in_a_bucket_is_refused(opened: Open, url: str) -> None:
    with pytest.raises(NotALogDirError):
        lastword.open(url)
    logs = opened()
    for max_age in (0, -1):  # such a pin would hold no object
        with pytest.raises(UsageError, match="max_age"):
            logs.pin(max_age=max_age)
    with pytest.raises(UsageError, match="retention"):
        logs.collect(retention=-1)
    topic = logs.create_topic("users", **JSON)
    for records in (5, "text"):
        with pytest.raises(UsageError, match="extend takes records"):
            topic.extend(records)
    with pytest.raises(UsageError, match='ack="os"'):
        topic.append("k", {"n": 1}, ack="os")
    with pytest.raises(ReadOnlyError):
        opened("r")["users"].append("k", {"n": 1})
    with pytest.raises(UsageError, match="storage_options"):
        lastword.open("data", storage_options={"region": "x"})


CHANGES: dict[str, Callable[[lastword.LogDir], object]] = {
    "clean": lambda logs: logs.clean("users"),
    "expire": lambda logs: logs.expire(),
    "trim": lambda logs: logs["users"].trim(2),
    "create": lambda logs: logs.create_topic("new"),
    "delete": lambda logs: logs.delete_topic("users"),
    "set_config": lambda logs: logs.set_config("users", segment_ms="1d"),
    "retry": lambda logs: logs.cleaner.retry("users", 0),
    "collect": lambda logs: logs.collect(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_log_that_is_open_to_read_is_not_changed(
    opened: Open, requests: Counter[str], change: Callable[[lastword.LogDir], object]
) -> None:
    users = opened().create_topic("users", **JSON)
    for number in range(3):
        users.append("k", {"n": number}, producer="loader", sequence=number)
    logs = opened("r")
    requests.clear()
    with pytest.raises(ReadOnlyError):
        change(logs)
    assert logs["users"].last_sequence("loader") == 2
    assert not requests.keys() & {"put", "create", "swap", "delete"}
    assert [record.offset for record in users.read()] == [0, 1, 2]
    lease = logs["users"].lease("copy")  # a reader's own
    lease.advance(1)
    lease.release()


def test_calls_cost_the_requests_that_the_page_states(
    opened: Open, requests: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "CHANGES_BYTES", 1 << 20)  # no page: the page states how many there are
    monkeypatch.setattr(commit, "CONFIRMED_SECONDS", 60.0)

    def sent() -> tuple[int, int]:
        """Return writes and reads since the last call."""
        writes = sum(requests[kind] for kind in ("put", "create", "swap", "list"))
        reads = requests["get"] + requests["get_range"]
        requests.clear()
        return writes, reads

    logs = opened()
    assert sent() == (10, 6)  # with a list of the objects that a lost manifest would leave
    for partitions in (1, 30):
        topic = logs.create_topic(f"users-{partitions}", partitions, **JSON)
        sent()
        for _ in range(2):
            topic.append("k", {"n": 1})
        assert sent() == (2, int(partitions == 1))  # the first append of a process reads the manifest
        topic.append("k", {"n": 1})
        assert sent() == (1, 0)
        logs[topic.name].append("k", {"n": 1})
        assert sent() == (1, 1)
        topic.extend((str(number), {"n": number}) for number in range(2000))
        assert sent() == (2, 0)
    opened()
    assert sent() == (8, 4)
    reader = opened("r")
    assert sent() == (0, 1)
    assert len(list(reader["users-1"].read())) == 2004
    writes, reads = sent()
    assert writes == 0 and 2 <= reads <= 2 + 3 * len(reader["users-1"].segments(0))


def test_settings_that_could_not_be_read_are_read_by_the_next_call(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = opened(), opened("r")
    writer.create_topic("t1")
    drives = {f"/{number:020}": "1MiB" for number in range(60)}
    writer.set_config(None, drives=drives)  # so that lastword.toml has an object of its own
    reader.dirs.refresh()
    writer.set_config(None, segment_bytes="2MiB")
    reading = RemoteStore.get_range

    left = iter(range(1, READ_ATTEMPTS))

    def no_answer(store: RemoteStore, key: str, *place: int) -> object:
        if next(left, None) is None:
            monkeypatch.setattr(RemoteStore, "get_range", reading)
        raise UncertainRequestError.of(key, "read", "no answer", write=False)

    monkeypatch.setattr(RemoteStore, "get_range", no_answer)
    with pytest.raises(UncertainRequestError):
        reader.dirs.refresh()
    reader.dirs.refresh()
    assert reader.dirs.config("t1").segment_bytes == 2 << 20


def test_a_thread_does_not_go_back_to_an_older_version(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that loaded a version and is not running does not hide a later append from another thread."""
    logs = opened()
    logs.create_topic("t").append(b"a", b"1")
    bucket, other_read = bucket_of(logs), threading.Event()
    load, slow = bucket.load, threading.Thread(target=logs.dirs.refresh)

    def paused() -> Loaded:
        loaded = load()
        if threading.current_thread() is slow:
            loading.set()
            other_read.wait(0.5)
        return loaded

    loading = threading.Event()
    monkeypatch.setattr(bucket, "load", paused)
    slow.start()
    loading.wait()
    logs["t"].append(b"b", b"2")
    logs.dirs.refresh()
    other_read.set()
    slow.join()
    assert logs.dirs.newest is load().snapshot  # type: ignore[attr-defined]


def test_a_check_that_failed_or_was_stopped_is_repeated(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = opened()
    superseded_twice(logs)
    work = BucketWork(logs.dirs, States(logs.dirs.clock))
    transaction = logs.dirs.transaction
    monkeypatch.setattr(logs.dirs, "transaction", no_answer)
    done = outcome_of_next(work, logs)
    assert done.result == "failed" and not done.damaged
    monkeypatch.setattr(logs.dirs, "transaction", transaction)
    outcome_of_next(work, logs, stop=True)

    def while_settings_change(do: Callable[..., object]) -> object:
        result = transaction(do)
        work.forget()
        return result

    monkeypatch.setattr(logs.dirs, "transaction", while_settings_change)
    assert outcome_of_next(work, logs).result == "ok"


@pytest.fixture
def store_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """An event without which no swap is sent from now on."""
    event, swap = threading.Event(), RemoteStore.swap

    def waiting(store: RemoteStore, *given: object) -> object:
        event.wait(30)
        return swap(store, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(RemoteStore, "swap", waiting)
    yield event
    event.set()


def test_a_change_of_a_state_takes_the_same_work_however_many_wait(
    opened: Open, request: pytest.FixtureRequest
) -> None:
    state = opened().state("users")
    state["k"] = 0
    state.sync()
    store_waits = request.getfixturevalue("store_waits")
    calls = Counter[str]()

    def called(frame: object, event: str, argument: object) -> None:
        calls[event] += 1

    counts = []
    for _ in range(4):
        calls.clear()
        sys.setprofile(called)
        for number in range(200):
            state["k"] = number
        sys.setprofile(None)
        counts.append(calls["call"])
    store_waits.set()
    state.sync()
    assert max(counts) < 2 * min(counts)  # the garbage collector may run meanwhile
    assert state["k"] == 199


def test_a_state_waits_for_a_store_that_is_slower(
    opened: Open, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_dirs, "MOST_WAITING_BYTES", 1000)
    state = opened(lastword_commit_bytes=1000).state("users")
    state["k"] = 0
    state.sync()
    store_waits = request.getfixturevalue("store_waits")
    changed = 0

    def change() -> None:
        nonlocal changed
        for number in range(200):
            state["k"] = number
            changed += 1

    thread = threading.Thread(target=change)
    thread.start()
    thread.join(0.5)
    assert thread.is_alive()
    assert changed < 50
    store_waits.set()
    thread.join()
    state.sync()
    assert dict(opened("r").state("users")) == {"k": 199}


def test_only_damage_puts_a_partition_in_quarantine(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = opened()
    topic = superseded_twice(logs)
    work = BucketWork(logs.dirs, States(logs.dirs.clock))
    reading = RemoteStore.get_range

    def flipped(store: RemoteStore, key: str, *place: int) -> object:
        data = bytearray(reading(store, key, *place))
        data[len(data) // 2] ^= 1
        return bytes(data)

    for get_range, damaged in ((no_answer, False), (flipped, True)):
        monkeypatch.setattr(RemoteStore, "get_range", get_range)
        done = outcome_of_next(work, logs)
        assert (done.result, done.damaged) == ("failed", damaged)
    monkeypatch.setattr(RemoteStore, "get_range", reading)
    assert len(list(topic.read())) == 3000


def test_errors_of_the_store_end_no_background_work(
    opened: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logs = opened()
    superseded_twice(logs)
    states = States(logs.dirs.clock)
    scheduler = Scheduler(
        BucketWork(logs.dirs, states), clock=logs.dirs.clock, states=states, chores_ms=0, backoff_ms=1
    )

    def not_allowed(store: RemoteStore, prefix: str = "") -> object:
        raise NotPermittedError.verb(store.url, "list")

    monkeypatch.setattr(RemoteStore, "list", not_allowed)
    for _ in range(
        2
    ):  # the removal of objects fails, and the cleaning, during which it is tried again, does not
        scheduler.work_on()
    assert [done.result for done in scheduler.history] == ["ok"]
    monkeypatch.setattr(
        logs.dirs,
        "refresh",
        lambda **_: not_allowed(bucket_of(logs).store),  # type: ignore[arg-type]
    )
    scheduler.work_on()
    assert [record.message for record in caplog.records] == [
        f"lastword: in the background: {logs.dirs.paths[0]}: the credentials do not allow to list"
    ]


def test_small_changes_need_no_directory_for_temporary_files(
    opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache_folder()
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "absent")])
    logs = opened()
    topic = logs.create_topic("users", **JSON)
    for _ in range(3):
        topic.extend(ROWS)
    (cleaned,) = logs.clean()
    assert cleaned.records_kept == 50
    monkeypatch.setattr(scratch, "MEMORY_BYTES", 1000)
    for directory in (None, str(tmp_path / "gone")):
        monkeypatch.setattr(tempfile, "tempdir", directory)
        with pytest.raises(StorageError, match="no scratch directory"):
            topic.extend(ROWS)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    topic.extend(ROWS)
    assert len(shown(topic)) == 1050
    assert list(tmp_path.iterdir()) == []


def test_changes_of_a_state_are_committed_again_after_an_error(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = opened(clock=ManualClock())  # attempts do not wait
    state = logs.state("users")
    state["k"] = 0
    state.sync()
    reads = {name: getattr(RemoteStore, name) for name in ("get", "put", "swap")}

    for round_number, failing in enumerate(reads):
        opened().set_config("users", segment_bytes=f"{round_number + 1}MiB")  # refuses the swap
        state["k"] = state["large"] = f"{round_number}" * 2000
        monkeypatch.setattr(RemoteStore, failing, no_answer)
        with pytest.raises(StorageError if failing == "put" else BusyError):
            state.sync()
        with pytest.raises((StorageError, BusyError)):
            state["not taken"] = 1
        monkeypatch.setattr(RemoteStore, failing, reads[failing])
        for _ in range(2):  # the first may raise the error of the attempt that `state[...] =` began
            try:
                state.sync()
                break
            except (StorageError, BusyError):
                continue
        else:
            raise AssertionError("it was not committed again")
        assert "not taken" not in state
        assert dict(opened("r").state("users")) == dict(state)


def test_a_newer_change_of_a_state_stays_the_newest_if_the_older_one_is_committed_again(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = opened(lastword_commit_linger_ms=50)
    state = logs.state("users")
    state["k"] = 0
    state.sync()
    swap, both_changed = RemoteStore.swap, threading.Event()

    def refused(store: RemoteStore, *given: object) -> object:
        both_changed.wait(30)
        raise NotPermittedError.verb(store.url, "write")

    monkeypatch.setattr(RemoteStore, "swap", refused)
    state["k"] = 1
    time.sleep(0.2)  # its commit is under way
    state["k"] = 2
    both_changed.set()
    time.sleep(0.2)  # the second one waits for the first, and not only for the linger time
    monkeypatch.setattr(RemoteStore, "swap", swap)
    state.sync()
    assert [record.value for record in opened("r")["users"].read()] == [0, 1, 2]


@pytest.mark.parametrize("use", ["sync", "change", "update", "refresh"])
def test_a_change_that_the_commit_refuses_does_not_stay_in_the_state(opened: Open, use: str) -> None:
    """The state showed it for ever, and the log never got it."""
    logs = opened()
    state, other = logs.state("users"), logs.state("other")
    state["k"] = "kept"
    state.sync()
    opened().set_config("users", max_message_bytes="1KiB")  # which `logs` has not read yet
    other["k"] = state["waits"] = 1
    state["k"] = "v" * 5000
    state["waits"] = 2
    if use != "sync":
        with pytest.raises(RecordTooLargeError):
            logs.sync()
        other["k"] = 2  # which is none of its changes
    else:  # a read of another thread, or the background cleaner, does not take the error
        time.sleep(0.2)
        assert [*logs] == ["other", "users"]
        logs.clean("users")
    with pytest.raises(RecordTooLargeError):
        match use:
            case "sync":
                state.sync()
            case "change":
                state["new"] = 1
            case "update":
                state.update({"new": 1})
            case "refresh":
                state.refresh()
    assert dict(state) == {"k": "kept", "waits": 2} == dict(opened("r").state("users"))
    state["new"] = 3
    logs.sync()
    assert dict(state) == {"k": "kept", "waits": 2, "new": 3} == dict(opened("r").state("users"))
    assert dict(other) == dict(opened("r").state("other"))


def test_a_tombstone_is_explained_in_both_modes(opened: Open) -> None:
    """Mode "a" raised ReadOnlyError, because the partitions of a bucket are no open logs."""
    clock = ManualClock()
    logs = opened(clock=clock)
    state = logs.state("users")
    state["ada"] = 1
    del state["ada"]
    state.sync()
    logs.clean("users")
    clock.advance(3_600_000)
    explanations = {str(opened(mode, clock=clock).explain("users", key="ada")) for mode in "ra"}
    assert len(explanations) == 1 and "may go at" in explanations.pop()


def test_a_state_refuses_a_record_that_is_too_large_at_the_call(opened: Open) -> None:
    """A refusal by the commit left it in the state, and the log never got it."""
    logs = opened()
    state = logs.state("users", max_message_bytes="1KiB")
    state["kept"] = "v"
    for change in ({"kept": "v" * 5000}, {"new": "v", "large": "v" * 5000}):
        with pytest.raises(RecordTooLargeError):
            state.update(change)
    with pytest.raises(RecordTooLargeError):
        state["kept"] = "v" * 5000
    state.sync()
    assert dict(state) == dict(opened("r").state("users")) == {"kept": "v"}

    packed = logs.state("packed", max_message_bytes="1KiB", compression_type="gzip")
    packed["k"] = "v" * 5000  # its batch is small enough
    packed.sync()
    assert dict(opened("r").state("packed")) == {"k": "v" * 5000}


def test_a_cleaning_removes_values_whose_time_to_live_has_passed(opened: Open) -> None:
    """Their tombstones are appended by the transaction that cleans."""
    clock = ManualClock(1_700_000_000_000)
    logs = opened(clock=clock)
    state = logs.state("visits", lastword_ttl_ms=100)
    state["a"], state["b"] = 1, 2
    state.sync()
    clock.advance(50)
    state["b"] = 3
    state.sync()
    clock.advance(60)
    (done,) = logs.clean()
    assert done.removed.superseded == 2
    assert [(record.key, record.value) for record in logs["visits"].read()] == [("b", 3), ("a", None)]
    assert not logs.verify().problems


def test_an_open_file_of_a_private_copy_has_what_is_written_through_another_handle(opened: Open) -> None:
    logs = opened()
    logs.create_topic("users", **JSON).append("a", {"n": 1})

    def work(dirs: OpenDirs) -> None:
        files = dirs.files
        path = f"{files.root}/users-0/{1:020}.log"
        size = files.stat(path).size
        with files.open_read(path) as reading, files.open_append(path) as one, files.open_append(path) as two:
            one.append(b"abc")
            two.append(b"def")
            assert reading.pread(10, size) == one.pread(10, size) == two.pread(10, size) == b"abcdef"
            assert reading.size() == size + 6
        path = f"{files.root}/users-0/{0:020}.log"
        with files.open_read(path) as reading, files.open_append(path) as one, files.open_append(path) as two:
            one.pwrite(b"xy", 3)
            assert reading.pread(2, 3) == two.pread(2, 3) == b"xy"
            two.pwrite(b"z", 3)
            assert reading.pread(2, 3) == one.pread(2, 3) == b"zy"
        raise KeyError("nothing is committed")

    with pytest.raises(KeyError):
        logs.dirs.transaction(work)


def test_a_counter_of_several_processes_loses_no_update(opened: Open) -> None:
    """The swap of the manifest decides: after a lost one, `expect=` is compared with the newest version."""
    opened().create_topic("users", **JSON).append("n", 0)
    refused = Counter[str]()
    steps = 4

    def add(writer: int) -> None:
        logs = opened()
        topic, state = logs["users"], logs.state("users")
        for _ in range(steps):
            while True:
                record = topic.get_record("n")
                assert record is not None
                try:
                    if writer % 2:
                        topic.append("n", record.value + 1, expect=record.offset)
                    else:
                        state.set("n", record.value + 1, expect=record.offset)
                        assert state["n"] >= record.value + 1
                    break
                except ConflictError:
                    refused[str(writer)] += 1

    together(*(partial(add, n) for n in range(3)))
    reader = opened("r")["users"]
    assert reader.get("n") == 3 * steps == reader.bounds()[0][1] - 1
    assert refused


def test_a_lookup_in_a_commit_stores_no_index(opened: Open) -> None:
    logs = opened()
    topic = logs.create_topic("users", **JSON)
    topic.extend([(f"k{n}", {"n": n}) for n in range(2000)])

    def work(dirs: OpenDirs) -> None:
        topic._on(dirs).append("k1", {"n": -1}, expect=1)

    logs.dirs.transaction(work)
    names = logs.dirs._read_files.listdir(f"{logs.dirs.paths[0]}/users-0")
    assert names and "keys" not in " ".join(names)
    assert "keys" not in " ".join(logs.dirs._read_files.listdir(f"{logs.dirs.paths[0]}/users-0/lastword"))
