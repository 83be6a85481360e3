"""`logs.cleaner`: what the background thread cleans and leaves alone, and what other calls do meanwhile."""

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from functools import partial
from itertools import count, repeat, takewhile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lastword
from lastword import metrics
from lastword.background.work import DIRTY, OVERDUE
from lastword.clock import ManualClock
from lastword.errors import (
    BusyError,
    OffsetOutOfRangeError,
    QuarantinedError,
    ReadOnlyError,
    StorageError,
    UsageError,
)
from lastword.logdir import TopicPartition
from lastword.testing.unsynced import UNSYNCED, UnsyncedFiles
from tests.api.conftest import BEGIN_MS
from tests.support.damage import flip
from tests.support.exhaustive import stride
from tests.support.threads import meanwhile
from tests.support.waiting import until

HOUR = 3_600_000
USERS = TopicPartition("users", 0)


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("lastword-cleaner")]


@pytest.fixture
def logs(tmp_path, clock):
    with lastword.open(tmp_path / "data", "a", clock=clock, files=UNSYNCED) as opened:
        yield opened
    assert not threads()


def filled(logs, name="users", count=40, keys=4, value_bytes=100, **config):
    """Make a topic of many small segments, most of their bytes garbage."""
    config = {
        "cleanup_policy": "compact",
        "segment_bytes": 2000,
        "min_cleanable_dirty_ratio": 0.1,
        "lastword_strategy": "kafka",
    } | config
    topic = logs.create_topic(name, **config)
    for number in range(count):
        topic.append(b"k%d" % (number % keys), b"%d" % number + b"." * value_bytes)
    return topic


def newest(topic):
    return {record.key: record.value for record in topic.read(view="newest")}


def turn(logs):
    """Run one background round in this thread."""
    return logs.cleaner._scheduler.turn()


def turns(logs, most=150):
    """Run background rounds in this thread until nothing is due, fewer than `most`; return how many."""
    count = len(list(takewhile(turn, repeat(logs, most))))
    assert count < most, logs.cleaner.history()[-5:]
    return count


def leftovers(logs):
    return [str(directory) for path in logs.paths for directory in Path(path).rglob("rewrite-*")]


# ---------------------------------------------------------------- beginning and end


def test_it_runs_where_a_directory_is_open_to_append(tmp_path):
    with lastword.open(tmp_path / "data", "a", files=UNSYNCED, log_cleaner_threads=2) as logs:
        assert len(threads()) == 2
        status = logs.cleaner.status()
        assert (status.running, status.threads, status.alive, status.deaths) == (True, 2, 2, 0)
        assert str(status).startswith("2 of 2 threads; ")
        assert logs.cleaner.stop() and not threads() and not logs.cleaner.status().running
        logs.cleaner.start()
        assert len(threads()) == 2
    assert not threads()
    with lastword.open(tmp_path / "data", "a", log_cleaner_enable=False) as logs:
        assert not threads() and not logs.cleaner.status().running
    with lastword.open(tmp_path / "data", "a", clock=ManualClock()):
        assert not threads()
    with lastword.open(tmp_path / "data") as logs:
        assert not threads() and not logs.cleaner.status().running and logs.cleaner.history() == []
        for call in (
            logs.cleaner.start,
            lambda: logs.cleaner.pause("users", 0),
            lambda: logs.cleaner.set_budget(5),
        ):
            with pytest.raises(ReadOnlyError):
                call()


def test_looking_imports_nothing_heavy(tmp_path):
    """Many checks of a compacted topic in which nothing is due, in a directory that is open for a moment."""
    code = f"""
import sys, time, lastword
with lastword.open({str(tmp_path / "data")!r}, "a", log_cleaner_backoff_ms=1) as logs:
    topic = logs.create_topic("users", cleanup_policy="compact", lastword_strategy="kafka")
    topic.append(b"a", b"1", ack="os")
    looked = []
    look = logs.cleaner.background._work.next
    logs.cleaner.background._work.next = lambda *given: (looked.append(1), look(*given))[1]
    while len(looked) < 5:
        time.sleep(0.005)
print([name for name in ("numba", "pyarrow", "prometheus_client") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]" and done.stderr == ""


@pytest.mark.parametrize("strategy", ["kafka", "generational"])
def test_a_check_plans_only_the_partitions_that_have_changed(logs, clock, monkeypatch, strategy):
    """Partitions whose log, settings and garbage are as before, and the drive, are not inspected again."""
    from lastword.background import work as background
    from lastword.cleaner import inspection
    from lastword.cleaner.policy import choose

    topic = logs.create_topic(
        "many", 20, cleanup_policy="compact", lastword_strategy=strategy, min_cleanable_dirty_ratio=1.0
    )
    topic.append(b"a", b"1", partition=3)
    logs.dirs.log("many", 3).roll()  # the drive has a closed segment, so its accounts are inspected
    turns(logs)
    clock.advance(int(background.KEEP_SECONDS * 1000))
    calls = Counter()
    for module, name in ((choose, "choose_for"), (inspection, "_inspect_partition")):

        def counted(*given, call=getattr(module, name), name=name, **options):
            calls[name] += 1
            return call(*given, **options)

        monkeypatch.setattr(module, name, counted)

    def checked():
        calls.clear()
        assert not turn(logs)
        return calls["choose_for"], calls["_inspect_partition"]

    inspected = 20 if strategy == "generational" else 0
    assert checked() == (20, inspected)
    assert checked() == (0, 0)
    topic.append(b"b", b"1", partition=7)
    assert checked() == (1, inspected)
    assert checked() == (0, 0)
    topic.set_config(segment_bytes="1MiB")
    assert checked() == (20, inspected)
    assert checked() == (0, 0)
    clock.advance(int(background.KEEP_SECONDS * 1000))  # lags and tombstones become due with time
    assert checked() == (20, inspected)


# ---------------------------------------------------------------- what it cleans


def test_what_is_due_is_cleaned_and_what_has_no_policy_is_not_touched(logs):
    due = filled(logs)
    unknown = filled(logs, "unknown", cleanup_policy=None)
    deleted = filled(logs, "deleted", cleanup_policy="delete")
    before, ends = newest(due), {topic.name: list(topic.read()) for topic in (unknown, deleted)}
    turns(logs)
    assert [done.topic for done in logs.cleaner.history()] == ["users"]
    assert newest(due) == before and len(list(due.read())) < 15
    assert {topic.name: list(topic.read()) for topic in (unknown, deleted)} == ends
    root = os.path.realpath(logs.paths[0])
    assert metrics.CLEANER_LAST_PICK.value(root) == BEGIN_MS / 1000
    assert metrics.LOG_DIRTY_RATIO.value("users", "0") == 0


def test_the_overdue_first_then_the_dirtiest(logs, clock):
    filled(logs, "much", count=200)
    filled(logs, "more", count=60)
    filled(logs, "late", count=20, min_cleanable_dirty_ratio=0.99, max_compaction_lag_ms="30m")
    filled(logs, "later", count=20, max_compaction_lag_ms="10m")
    logs.clean("more")
    topic = logs.topic("more")
    for number in range(40):
        topic.append(b"k%d" % number, b"." * 100)
    clock.advance(HOUR)
    work = logs.cleaner.background._work
    urgencies = {}
    held = set()
    (drive,) = work.drives()
    while (task := work.next(drive, held)) is not None:
        urgencies[task.partition.topic] = task.urgency
        held.add(task.partition)
    assert list(urgencies) == ["later", "late", "much", "more"]
    assert [urgency.rank for urgency in urgencies.values()] == [OVERDUE, OVERDUE, DIRTY, DIRTY]
    assert metrics.CLEANER_OVERDUE_SECONDS.value("later", "0") == 3000
    assert metrics.CLEANER_OVERDUE_SECONDS.value("much", "0") == 0


def test_retention_runs_by_its_own_timer(logs, clock):
    topic = filled(logs, cleanup_policy="delete", retention_ms="1h")
    clock.advance(2 * HOUR)
    logs.cleaner.start()
    clock.advance(15_000)
    until(logs.cleaner.history)
    (done,) = logs.cleaner.history()
    assert done.result == "expired" and done.deletion.segments > 2 and done.round is None
    assert list(topic.read()) == []
    topic.append(b"a", b"b")
    clock.advance(2 * HOUR)
    until(lambda: clock.advance(15_000) or len(logs.cleaner.history()) == 2)


class Devices(UnsyncedFiles):
    """Files with drives: each has this many directories, whose names end with their numbers."""

    def __init__(self, directories):
        super().__init__()
        self.directories = directories

    def device(self, path):
        return int(Path(path).name[-1]) // self.directories if Path(path).exists() else super().device(path)


def test_all_partitions_of_several_directories_by_drive(tmp_path, clock):
    paths = [tmp_path / name for name in ("d0", "d2", "d3")]
    for path in paths:
        path.mkdir()
    settings = {"log_cleaner_io_max_bytes_per_second": "5MiB", "drives": {str(paths[2]): "1MiB"}}
    with lastword.open(paths, "a", clock=clock, files=Devices(2), **settings) as logs:
        topic = logs.create_topic(
            "users", 6, cleanup_policy="compact", segment_bytes=2000, lastword_strategy="kafka"
        )
        for number in range(200):
            topic.append(b"k%d" % (number % 12), b"%d" % number + b"." * 100)
        first, second = logs.cleaner.status().drives
        assert first.dirs == (str(paths[0]),) and second.dirs == (str(paths[1]), str(paths[2]))
        assert (first.bytes_per_second, second.bytes_per_second) == (5 << 20, 1 << 20)
        before = newest(topic)
        turns(logs)
        assert newest(topic) == before
        done = logs.cleaner.history()
        assert sorted(entry.partition for entry in done) == list(range(6))
        assert {entry.drive for entry in done} == {str(paths[0]), str(paths[1])}
        used = {status.drive: status.used_bytes for status in logs.cleaner.status().drives}
        for drive, size in used.items():
            rounds = [entry.round for entry in done if entry.drive == drive]
            assert size >= sum(report.read_bytes + report.written_bytes for report in rounds) > 0
        logs.cleaner.set_budget(None)
        logs.cleaner.set_budget("7MiB", paths[2])
        rates = [status.bytes_per_second for status in logs.cleaner.status().drives]
        assert rates == [None, 7 << 20]
        logs.set_config(log_cleaner_backoff_ms="30s")
        assert [status.bytes_per_second for status in logs.cleaner.status().drives] == rates
        assert logs.cleaner._scheduler.backoff_ms == 30_000


def test_the_most_urgent_task_is_next_after_one_of_another_drive(tmp_path, clock):
    """An inspection of each drive finds several tasks. The first of the drive that waits is not skipped."""

    paths = [tmp_path / name for name in ("d0", "d1")]
    for path in paths:
        path.mkdir()
    with lastword.open(paths, "a", clock=clock, files=Devices(1)) as logs:
        drives = {}
        for number in range(8):
            lag = "10m" if number % 4 < 2 else "7d"
            topic = filled(logs, f"t{number}", count=40 + number, max_compaction_lag_ms=lag)
            drives.setdefault(logs.dirs.log_dir(topic.name, 0).path, []).append(topic.name)
        assert len(drives) == 2 and all(len(names) == 4 for names in drives.values())
        clock.advance(HOUR)
        ran = []
        scheduler = logs.cleaner._scheduler
        while (task := scheduler.pick()) is not None:
            ran.append((task.urgency, task.partition.topic))
            scheduler.run(task)
        assert len(ran) == 8
        assert [urgency for urgency, _ in ran] == sorted(urgency for urgency, _ in ran)


def test_by_accounts_what_is_new_is_scanned_and_then_the_best_run_of_the_drive_goes(logs, clock):
    """Runs are cleaned until the drive is within its target: half as much again as its live data.

    The target covers the whole drive, so logs without garbage leave more room for the others. They are read
    once and never rewritten.
    """
    settings = {"lastword_strategy": "generational", "min_cleanable_dirty_ratio": 0.9}
    hot = filled(logs, count=150, keys=4, **settings)
    once = filled(logs, "once", count=60, keys=1000, **settings)
    cleaner, before = logs.cleaner, {topic.name: newest(topic) for topic in (hot, once)}
    seen = []
    while (task := cleaner._scheduler.pick()) is not None:
        seen.append((type(task).__name__, task.partition.topic))
        cleaner._scheduler.run(task)
    assert seen[:2] == [("ScanTask", "once"), ("ScanTask", "users")]
    assert set(seen[2:]) == {
        ("RunTask", "users"),
        ("ScanTask", "users"),
    }  # the scan of the new files reads no bytes
    done = cleaner.history()
    assert len(done) == seen.count(("RunTask", "users")) and {entry.round.strategy for entry in done} == {
        "generational"
    }
    assert all(entry.result == "ok" and entry.round.freed_bytes > 0 for entry in done)
    assert {topic.name: newest(topic) for topic in (hot, once)} == before
    assert metrics.LOG_GARBAGE_BYTES.value("once", "0", "true") == 0
    once_bytes = sum(segment.size_bytes for segment in once.segments())
    assert metrics.LOG_LIVE_BYTES.value("once", "0", "true") == once_bytes
    closed = [segment for segment in once.segments() if not segment.active]
    assert metrics.LOG_LIVE_RECORDS.value("once", "0", "true") == sum(segment.records for segment in closed)
    assert metrics.LOG_TOMBSTONES.value("once", "0", "true") == 0
    shares = [metrics.LOG_DIRTY_RATIO.value(name, "0") for name in ("users", "once")]
    assert shares[1] == 0 and 0 <= shares[0] < 0.5
    for number in range(40):
        hot.append(b"k%d" % (number % 4), b"." * 100)
    logs.cleaner.pause("users", 0)
    assert not turn(logs)
    logs.cleaner.resume("users", 0)
    task = cleaner._scheduler.pick()
    assert type(task).__name__ == "ScanTask"  # only the segments that were closed since
    used = cleaner.status().drives[0].used_bytes
    cleaner._scheduler.run(task)
    assert cleaner.status().drives[0].used_bytes - used < 10_000


@pytest.mark.parametrize("wrong", ["a directory that is offline", "a partition that cannot be opened"])
def test_what_cannot_be_cleaned_does_not_hold_up_the_others(tmp_path, clock, wrong):
    paths, failed = [tmp_path / "one", tmp_path / "two"], []

    class Offline(UnsyncedFiles):
        def offline(self, path):
            return StorageError("EIO") if str(path) in failed else super().offline(path)

    with lastword.open(paths, "a", clock=clock, files=Offline()) as logs:
        topic = logs.create_topic("users", 2, cleanup_policy="compact", segment_bytes=2000)
        for number in range(100):
            topic.append(b"k%d" % (number % 4), b"." * 100, partition=number % 2)
    if wrong == "a partition that cannot be opened":
        (paths[0] / "users-0").rename(tmp_path / "users-0")
        (paths[0] / "users-0").symlink_to(tmp_path / "users-0")
    with lastword.open(paths, "a", clock=clock, files=Offline()) as logs:
        if wrong == "a directory that is offline":
            failed.append(str(paths[0]))
        turns(logs)
        done = logs.cleaner.history()
        assert {entry.partition for entry in done if entry.result == "ok"} == {1}
        assert all("symbolic link" in entry.error for entry in done if entry.result == "failed")
        assert len(logs.cleaner.status().drives) == 1
        failed.clear()


# ---------------------------------------------------------------- control by the user


def test_a_paused_partition_is_left_alone_and_pauses_are_counted(logs):
    filled(logs)
    assert str(logs.cleaner.pause("users", 0)) and logs.cleaner.pause("users", 0).pauses == 2
    assert not turn(logs)
    (shown,) = logs.cleaner.status().partitions
    assert (shown.topic, shown.partition, shown.state, shown.pauses) == ("users", 0, "paused", 2)
    logs.cleaner.resume("users", 0)
    assert not turn(logs)
    assert logs.clean("users")  # a paused topic is cleaned when it is named
    logs.cleaner.resume("users", 0)
    assert logs.cleaner.status().partitions == ()


def test_damage_quarantines_one_partition_until_it_is_mended_and_retried(logs, clock):
    topic = filled(logs)
    filled(logs, "others")
    assert logs.cleaner.retry("users", 0) is None
    before = newest(topic)
    file = sorted(Path(logs.paths[0], "users-0").glob("*.log"))[2]
    flip(file, 100)
    turns(logs)
    assert sorted((entry.topic, entry.result) for entry in logs.cleaner.history()) == [
        ("others", "ok"),
        ("users", "failed"),
    ]
    (shown,) = logs.cleaner.status().partitions
    assert shown.state == "quarantined" and file.name in shown.reason + str(logs.cleaner.history()[-1].error)
    clock.advance(24 * HOUR)
    assert not turn(logs)
    with pytest.raises(QuarantinedError, match="stays in quarantine") as caught:
        logs.cleaner.retry("users", 0)
    assert caught.value.file == str(file) and caught.value.position is not None
    list(metrics.metrics())
    root = os.path.realpath(logs.paths[0])
    assert metrics.QUARANTINED_PARTITIONS.value(root) == 1
    size_bytes = sum(path.stat().st_size for path in file.parent.glob("*.log"))
    assert metrics.QUARANTINED_BYTES.value(root) == size_bytes
    flip(file, 100)
    assert logs.cleaner.retry("users", 0).ok
    assert turn(logs) and logs.cleaner.history()[-1].result == "ok"
    assert newest(topic) == before and logs.cleaner.status().partitions == ()


def test_a_quarantine_of_an_earlier_process_is_seen_and_its_removal_too(logs, tmp_path):
    filled(logs)
    note = Path(logs.paths[0], "users-0", "lastword", "quarantine")
    note.parent.mkdir(exist_ok=True)
    note.write_text('{"reason": "bad", "time_ms": 5}')
    assert not turn(logs)
    assert [partition.state for partition in logs.cleaner.status().partitions] == ["quarantined"]
    note.unlink()
    assert turn(logs) and logs.cleaner.history()[-1].result == "ok"


def test_a_topic_that_is_gone_leaves_no_pause_to_the_next_of_its_name(logs):
    filled(logs)
    logs.cleaner.pause("users", 0)
    logs.delete_topic("users")
    filled(logs)
    assert turn(logs)


# ---------------------------------------------------------------- calls during a round


@pytest.fixture(params=["kafka", "generational"])
def slow(tmp_path, request):
    """Yield a directory whose background round (or the scan before it) is running, and takes minutes."""
    with lastword.open(
        tmp_path / "data",
        "a",
        files=UNSYNCED,
        log_cleaner_backoff_ms=1,
        log_cleaner_enable=False,
        lastword_strategy=request.param,
    ) as logs:
        topic = filled(logs)
        logs.cleaner.set_budget(1000)
        logs.cleaner.start()
        until(lambda: logs.cleaner.status().drives[0].throttled_seconds > 0)
        yield logs, topic
    assert not threads()


def abandoned(logs):
    """Return whether the first round was aborted; an aborted scan is not in the history."""
    return [done.result for done in logs.cleaner.history()][:1] in (["aborted"], [])


def test_closing_ends_it_soon_and_leaves_nothing_behind(slow):
    logs, topic = slow
    before = newest(topic)
    assert logs.cleaner.status().drives[0].running == ("users-0",)
    began = time.monotonic()
    logs.close()
    assert time.monotonic() - began < 5
    assert abandoned(logs) and not leftovers(logs) and not threads()
    with lastword.open(logs.paths[0]) as again:
        assert newest(again.topic("users")) == before


@pytest.mark.parametrize("verb", ["trim", "clean", "expire", "delete", "pause", "policy"])
def test_no_call_waits_for_it(slow, verb):
    """6K.114: A topic that changes from compact to delete has its cleaning aborted, once for each
    partition.

    Here: A background cleaning is aborted; a cleaning that was called ends under the settings it began with.
    """
    logs, topic = slow
    began = time.monotonic()
    if verb == "trim":
        assert topic.trim(10) == {0: 10}
    elif verb == "clean":
        logs.cleaner.pause("users", 0)
        logs.cleaner.set_budget(None)
        assert logs.clean("users")[0].complete
    elif verb == "expire":
        logs.expire("users")
    elif verb == "delete":
        logs.delete_topic("users")
        assert logs.topics() == []
    elif verb == "pause":
        assert logs.cleaner.pause("users", 0).kind == "paused"
    else:
        topic.set_config(cleanup_policy="delete")
        until(lambda: not logs.cleaner.status().drives[0].running)
    assert time.monotonic() - began < 5
    until(lambda: abandoned(logs))
    assert not [
        path for path in leftovers(logs) if verb != "clean" and not logs.cleaner.status().drives[0].running
    ]


def test_appends_and_reads_go_on_beside_it_and_without_its_budget_it_ends(slow):
    """A pause that waits for its end gives up in time."""
    logs, topic = slow
    values = newest(topic) | {b"k0": b"newer"}
    began = time.monotonic()
    topic.append(b"k0", b"newer")
    assert newest(topic) == values
    with pytest.raises(BusyError):
        logs.cleaner.pause("users", 0, abort=False, timeout=0.02)
    assert [partition.pauses for partition in logs.cleaner.status().partitions] == [0]
    assert time.monotonic() - began < 10 and not logs.cleaner.history()
    logs.cleaner.set_budget(None)
    until(logs.cleaner.history)
    assert logs.cleaner.history()[0].result == "ok" and newest(topic) == values


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["kafka", "generational"])
def test_a_process_that_forgets_to_close_leaves_nothing_behind(tmp_path, strategy):
    """The process ends while a round sleeps for its budget."""
    with lastword.open(tmp_path / "data", "a", log_cleaner_enable=False) as logs:
        before = newest(filled(logs, lastword_strategy=strategy))
    code = f"""
import sys, time, lastword
settings = dict(log_cleaner_backoff_ms=1, log_cleaner_io_max_bytes_per_second=1000)
logs = lastword.open({str(tmp_path / "data")!r}, "a", **settings)
while not logs.cleaner.status().drives[0].throttled_seconds:
    time.sleep(0.01)
print(logs.cleaner.status().drives[0].running)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "('users-0',)" and done.stderr == ""
    assert not list(tmp_path.rglob("rewrite-*"))
    with lastword.open(tmp_path / "data") as logs:
        assert newest(logs.topic("users")) == before


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["kafka", "generational"])
def test_everything_at_once(tmp_path, strategy):
    """For a second beside eager background threads, nothing fails and nothing is lost.

    Two writers and a reader run beside a thread that trims, expires, cleans and moves, and one that creates
    and deletes topics.
    """
    paths = [tmp_path / "one", tmp_path / "two"]
    wrote = {}
    with lastword.open(
        paths,
        "a",
        files=UNSYNCED,
        log_cleaner_backoff_ms=1,
        log_cleaner_threads=2,
        segment_bytes=4000,
        lastword_strategy=strategy,
    ) as logs:
        topic = logs.create_topic("users", 2, cleanup_policy="compact", min_cleanable_dirty_ratio=0.01)

        def write(partition, rounds):
            round_ = next(rounds)
            key, value = b"%d-%d" % (partition, round_ % 50), b"%d" % round_ + b"." * 100
            try:
                topic.append(key, value, partition=partition)
            except BusyError:  # the partition is being moved
                return
            wrote[key] = value

        def read():
            try:
                offsets = [(record.partition, record.offset) for record in topic.read()]
            except OffsetOutOfRangeError:  # trimmed meanwhile
                return
            assert offsets == sorted(set(offsets))

        def keep_house(rounds):
            round_ = next(rounds)
            number = round_ % 2
            try:
                (logs.clean, logs.expire)[number]("users", number)
                if round_ % 5 == 0:
                    logs.move("users", number, paths[round_ // 5 % 2])
            except (BusyError, UsageError):
                pass
            logs.cleaner.pause("users", number)
            logs.cleaner.resume("users", number)
            logs.cleaner.status()

        def come_and_go():
            other = filled(logs, "passing", count=30)
            threading.Event().wait(0.01)
            assert len(newest(other)) == 4
            logs.delete_topic("passing")

        def cleaned():
            return [done for done in logs.cleaner.history() if (done.topic, done.result) == ("users", "ok")]

        writers = [partial(write, partition, count()) for partition in range(2)]
        with meanwhile(*writers, read, partial(keep_house, count()), come_and_go) as over:
            over.wait(3 / stride(3))
            if strategy == "kafka":  # by accounts, each manual cleaning brings the drive within its target
                until(lambda: over.is_set() or cleaned(), seconds=30)
        assert newest(topic) == wrote
        history = logs.cleaner.history()
        assert not [done.error for done in history if done.result == "failed"]
        assert logs.cleaner.status().deaths == 0
    assert not threads() and not [str(directory) for path in paths for directory in path.rglob("rewrite-*")]
    with lastword.open(paths) as logs:
        assert logs.verify().ok and newest(logs.topic("users")) == wrote


def with_a_tombstone(logs, clock, delete_retention_ms):
    """Return a topic that was cleaned two hours ago, with a tombstone of this offset in it."""
    topic = filled(logs, keys=400, lastword_strategy="generational", delete_retention_ms=delete_retention_ms)
    offset = topic.append(b"k0", None).offset
    for number in range(40):
        topic.append(b"z%d" % number, b"." * 100)
    logs.clean("users")
    clock.advance(2 * HOUR)
    return topic, offset


def tombstones_after_turns(logs):
    """Return what the background knows of tombstones when it has nothing more to do."""
    turns(logs, 5)
    return logs.dirs.log_dir("users", 0).ledgers.cached_stats[USERS].tombstones


def test_a_tombstone_that_a_lease_keeps_is_looked_at_once_and_goes_when_the_lease_goes_on(logs, clock):
    topic, offset = with_a_tombstone(logs, clock, HOUR)
    lease = topic.lease("replica")

    waiting = tombstones_after_turns(logs)
    assert waiting.held_from == offset and waiting.due_to < 0
    lease.advance(offset + 1)
    clock.advance(5_000)  # leases are read again after this time
    waiting = tombstones_after_turns(logs)
    assert waiting.held_from > offset and waiting.due_to == offset  # garbage; the drive is within its target


def test_tombstones_are_checked_again_when_they_have_to_wait_less(logs, clock):
    topic, offset = with_a_tombstone(logs, clock, 100 * HOUR)
    assert tombstones_after_turns(logs).due_to < 0
    topic.set_config(delete_retention_ms=HOUR)
    assert tombstones_after_turns(logs).due_to == offset


def test_a_partition_that_cannot_be_looked_at_is_told_once(logs, clock, caplog, monkeypatch):
    filled(logs, keys=50, lastword_strategy="generational")
    from lastword.cleaner import inspection
    from lastword.errors import CorruptFileError

    def fails(*given):
        raise CorruptFileError("users-0: its checkpoint is damaged")

    monkeypatch.setattr(inspection, "_inspect_partition", fails)
    for _ in range(3):
        turn(logs)
    assert [record.message for record in caplog.records].count(
        "lastword: not cleaned: users-0: its checkpoint is damaged"
    ) == 1


@pytest.mark.parametrize("strategy", ["kafka", "generational"])
def test_what_is_overdue_overtakes_a_round_of_its_drive(logs, clock, strategy):
    """The overdue partition is the next one; a round that is itself overdue is not overtaken."""
    filled(logs, "large")
    work = logs.cleaner._scheduler.work
    (drive,) = work.drives()
    under_way = work.next(drive, ())
    assert under_way.urgency.rank == DIRTY and not work.overtakes(under_way, {under_way.partition})
    late = filled(logs, "late", max_compaction_lag_ms=HOUR, lastword_strategy=strategy)
    held = {under_way.partition}
    if strategy == "generational":
        work.forget()
        assert work.next(drive, held).run(lambda: False).result == "scanned"
        assert not work.overtakes(under_way, held)
    clock.advance(2 * HOUR)  # the active segment is closed by then, and no account has its records
    done = []
    while work.overtakes(under_way, held):
        task = work.next(drive, held)
        assert (task.partition.topic, task.urgency.rank) == (late.name, OVERDUE)
        assert not work.overtakes(task, {task.partition})
        done.append(task.run(lambda: False).result)
        assert len(done) <= 3
    assert done == (["ok"] if strategy == "kafka" else ["scanned", "ok", "scanned"])


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(
    topics=st.lists(
        st.tuples(
            st.sampled_from(["kafka", "generational"]),
            st.integers(0, 60),  # records
            st.integers(1, 20),  # keys
            st.integers(0, 4),  # n: every (n + 1)-th record is a tombstone; 0: none
            st.sampled_from([HOUR, 1 << 62]),  # max.compaction.lag.ms
        ),
        min_size=1,
        max_size=4,
    ),
    hours=st.integers(0, 60),
)
def test_while_nothing_changes_the_background_goes_quiet(tmp_path_factory, topics, hours):
    """No round is chosen again and again: a round that was done does not become due by itself."""
    clock = ManualClock(BEGIN_MS)
    with lastword.open(tmp_path_factory.mktemp("quiet"), "a", clock=clock, files=UNSYNCED) as logs:
        for number, (strategy, records, keys, tombstones, lag_ms) in enumerate(topics):
            topic = logs.create_topic(
                f"t{number}",
                cleanup_policy="compact",
                segment_bytes=600,
                min_cleanable_dirty_ratio=0.1,
                max_compaction_lag_ms=lag_ms,
                lastword_strategy=strategy,
            )
            for n in range(records):
                value = None if tombstones and n % (tombstones + 1) == 0 else b"." * 60
                topic.append(b"k%d" % (n % keys), value)
        clock.advance(hours * HOUR)
        turns(logs)
        for _ in range(8):  # the back-offs of two minutes end, but no delete horizon passes
            clock.advance(15_000)
            turns(logs)
        quiet = 0
        for _ in range(40):
            clock.advance(60_000)
            quiet = quiet + 1 if turns(logs) == 0 else 0
        assert quiet >= 15, logs.cleaner.history()[-5:]
