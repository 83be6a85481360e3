"""A verb is linear in partitions, in topics and in segments: counted in calls, not in seconds."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import threading
import time
from collections import Counter
from datetime import UTC, datetime

import pytest

import lastword
from lastword import files as storage
from lastword.cleaner import drive
from lastword.cleaner.policy.groups import OutputLimits, cut, group
from lastword.cli import main
from lastword.clock import ManualClock
from lastword.config import Settings
from lastword.errors import PartialFailure, StorageError
from lastword.files import DEFAULT, OsFiles
from lastword.ingest.apply import commit
from lastword.ingest.staging import CommitManifest, SharedWriter
from lastword.logdir import log_dir
from lastword.logdir.log_dir import LogDirectory
from lastword.partition import PartitionLog
from lastword.records.batch import BatchBuilder
from lastword.segment.names import FIRST_DIRTY, LOG_STARTS
from tests.cleaner.test_outgrown import work_of
from tests.fakes.recording import RecordingFiles
from tests.support.exhaustive import stride

FEW, MANY = 10 // stride(2), 100 // stride(2)
NOW_MS = 1_795_168_800_000


@pytest.fixture(scope="module", params=["generational", "kafka", "delete"])
def directories(request, tmp_path_factory):
    root = tmp_path_factory.mktemp(request.param)
    policy = (
        {"cleanup_policy": "delete"}
        if request.param == "delete"
        else {
            "cleanup_policy": "compact",
            "lastword_strategy": request.param,
        }
    )
    for count in (FEW, MANY):
        with lastword.open(root / str(count), "a", clock=ManualClock(NOW_MS)) as logs:
            logs.create_topic("users", count, **policy)
    return root


def files_after(seconds):
    """Return storage whose clock shows a time after (or before) that of the system."""
    files = OsFiles()
    files.now_ns = lambda: time.time_ns() + int(seconds * 1e9)
    return files


def recorded(path, work, files=DEFAULT):
    """Return the storage calls of `work`, with those of opening."""
    files = RecordingFiles(files)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(storage, "DEFAULT", files)
        work(path)
    return files.calls


def root_listings(calls, path):
    return sum(call.name == "listdir" and call.path == str(path) for call in calls)


def calls_of(path, work):
    """Return the number of storage calls of `work`, with those of opening, and how many list the root."""
    calls = recorded(path, work, files_after(3600))  # the root was quiet for long
    return len(calls), root_listings(calls, path)


def check_in_proportion(root, work, few, many):
    """Check that ten times the partitions or topics take ten times the calls, and no more listings of all."""
    few, many = (calls_of(root / str(count), work) for count in (few, many))
    assert many[0] <= 10.5 * few[0], (few, many)
    assert many[1] == few[1], "each listing of the root names all of them: their number must not grow"


def root_files_written(path, work):
    """Return how often `work` writes each file of the root."""
    written = [call.detail for call in recorded(path, work) if call.name == "rename"]
    return Counter(os.path.relpath(name, path) for name in written if os.path.dirname(name) == str(path))


def command(*words):
    def work(path):
        assert main.run([words[0], str(path), *words[1:], "-q"]) == 0

    return work


def describe(path):
    with lastword.open(path) as logs:
        assert len(logs.topic("users").describe()) == int(path.name)


@pytest.mark.parametrize(
    "work",
    [
        command("ls"),
        command("ls", "--quick", "--segments"),
        command("explain"),
        command("clean", "--dry-run"),
        command("clean", "--dry-run", "--due"),
        describe,
    ],
    ids=["ls", "ls-segments", "explain", "dry-run", "due", "describe"],
)
def test_ten_times_the_partitions_take_ten_times_the_calls(directories, work, capsys):
    check_in_proportion(directories, work, FEW, MANY)


# ---------------------------------------------------------------- work that changes the directory


def create(path):
    with lastword.open(path, "a", log_cleaner_enable=False, clock=ManualClock(NOW_MS)) as logs:
        logs.create_topic("users", int(path.name), cleanup_policy="compact")


def with_logs(call):
    def work(path):
        with lastword.open(path, "a", log_cleaner_enable=False, clock=ManualClock(NOW_MS)) as logs:
            call(logs)

    return work


def commit_to_each(path, job="job"):
    """Commit as the sink does, without Spark: one staged file with a run for each partition."""
    files = storage.DEFAULT
    writer = SharedWriter(files, str(path), job, 0, 0)
    for number in range(int(path.name)):
        for value in (b"old", b"new"):
            builder = BatchBuilder()
            builder.append(NOW_MS, b"key", value)
            writer.write("users", number, builder.build(0), 1)
    commit(
        str(path),
        CommitManifest(job, writer.close(sync=True), sync=True),
        files,
        lambda: LogDirectory.open(path, "a", files),
        patience_seconds=10,
    )


def expire_all(path):
    with lastword.open(path, "a", log_cleaner_enable=False, clock=ManualClock(NOW_MS)) as logs:
        logs.topic("users").set_config(cleanup_policy="delete", retention_bytes=0)
        assert len(logs.expire()) == int(path.name)


def expire_in_the_background(path):
    with lastword.open(path, "a", log_cleaner_enable=False, clock=ManualClock(NOW_MS)) as logs:
        logs.topic("users").set_config(cleanup_policy="delete", retention_bytes=0)
        work = work_of(logs, logs.dirs.clock)
        assert [done.result for done in work.chores(())] == ["expired"] * int(path.name)


CHANGES = {
    "create": create,
    "commit": commit_to_each,
    "clean": with_logs(lambda logs: logs.clean()),
    "clean again": with_logs(lambda logs: logs.clean()),
    "expire": with_logs(lambda logs: logs.expire()),
    "trim": with_logs(lambda logs: logs.topic("users").trim(before=1)),
    "expire all": expire_all,
}


@pytest.mark.slow
def test_changing_all_partitions_takes_calls_in_proportion_to_them(tmp_path):
    """The verbs run in turn on one directory."""
    few, many = ({}, {})
    for count, seen in ((FEW, few), (MANY, many)):
        for name, work in CHANGES.items():
            seen[name] = calls_of(tmp_path / str(count), work)
            with lastword.open(tmp_path / str(count)) as logs:
                assert len(logs.topic("users").describe()) == count
    for name in CHANGES:
        assert many[name][0] <= 10.5 * few[name][0], (name, few, many)
        assert many[name][1] <= few[name][1] + 1, (name, few, many)


def test_a_commit_costs_a_constant_number_of_calls_for_each_partition(tmp_path):
    """Counted as the difference of 50 and 10 partitions: the first commit into a topic, and the second.

    Syncs: log, two indexes, directory; in the first commit also the leader epochs, and the snapshot, which
    the second renames.
    """
    counted = {}
    for count in (10, 50):
        path = tmp_path / str(count)
        create(path)
        for number in (1, 2):
            calls = recorded(path, lambda path, number=number: commit_to_each(path, f"job{number}"))
            assert sum(call.name == "create" and "staged" in call.path for call in calls) == 1
            counted[count, number] = Counter(call.name for call in calls)
    for number, syncs, calls in ((1, 6, 59), (2, 4, 59)):
        few, many = (counted[count, number] for count in (10, 50))
        assert many["fsync"] + many["fsync_dir"] - few["fsync"] - few["fsync_dir"] == 40 * syncs
        assert many["listdir"] - few["listdir"] == 40 * 2
        assert many.total() - few.total() <= 40 * calls, (few, many)


@pytest.mark.parametrize("stop", ["clean", "killed"])
def test_an_open_lists_the_directory_of_a_partition_once(tmp_path, stop):
    """After a stop that was not clean twice, and its private directory too."""
    path = tmp_path / "4"
    create(path)
    commit_to_each(path)
    directory = LogDirectory.open(path, "a")
    directory.logs([("users", number) for number in range(4)])
    directory.close() if stop == "clean" else directory.abandon()
    files = RecordingFiles(DEFAULT)
    with LogDirectory.open(path, "a", files) as directory:
        before = len(files.calls)
        directory.logs([("users", number) for number in range(4)])
        listed = Counter(
            os.path.relpath(call.path, path) for call in files.calls[before:] if call.name == "listdir"
        )
    for number in range(4):
        assert listed[f"users-{number}"] == (1 if stop == "clean" else 2)
        assert listed[f"users-{number}/lastword"] == (1 if stop == "clean" else 2)


@pytest.mark.parametrize("run", [CHANGES["trim"], expire_all, expire_in_the_background])
def test_root_files_are_written_equally_often_for_few_and_many(tmp_path, run):
    """One line for each partition in each write: a write for each partition would be quadratic."""
    few, many = (tmp_path / "3", tmp_path / "30")
    for path in (few, many):
        create(path)
        commit_to_each(path)
    written = root_files_written(few, run)
    assert written[LOG_STARTS] in (1, 2)  # raised together, and at the end
    assert written == root_files_written(many, run)


@pytest.mark.parametrize("strategy", ["generational", "kafka"])
def test_the_cleaner_checkpoint_is_not_written_for_each_partition(tmp_path, strategy):
    def written(count):
        path = tmp_path / str(count)
        create(path)
        commit_to_each(path)
        calls = recorded(path, with_logs(lambda logs: logs.clean(strategy=strategy)))
        with lastword.open(path) as logs:
            assert [row.first_dirty for row in logs.topic("users").describe()] == [2] * count
        return sum(call.name == "rename" and call.detail.endswith(FIRST_DIRTY) for call in calls)

    assert written(5) == written(50) == 1


def test_the_checkpoint_of_a_cleaning_is_seen_before_it_is_written(tmp_path):
    path = tmp_path / "2"
    create(path)
    commit_to_each(path)
    with LogDirectory.open(path, "a") as directory:
        with directory.checkpoints_together():
            directory.set_first_dirty("users", 0, 1)
            assert directory.first_dirty("users", 0) == 1
            assert directory.checkpoints.first_dirty.read() == {}
            directory.set_first_dirty("users", 0, 2)  # a second cleaning: the first is written
            assert directory.checkpoints.first_dirty.read() == {("users", 0): 1}
            directory.truncate("users", 0, 1)
            assert directory.first_dirty("users", 0) == 0
        assert directory.checkpoints.first_dirty.read() == {("users", 0): 0}


def test_a_partition_that_cannot_be_trimmed_does_not_stop_the_others(tmp_path, monkeypatch, capsys):
    path = tmp_path / "3"
    create(path)
    commit_to_each(path)
    real = PartitionLog.remove_prefix

    def failing(self):
        if self.partition == 1:
            raise StorageError("cannot rename", file=self.directory)
        return real(self)

    with monkeypatch.context() as patched:
        patched.setattr(PartitionLog, "remove_prefix", failing)
        assert main.run(["trim", str(path), "users", "--before", "1", "--yes"]) not in (0, 2)
        out, err = capsys.readouterr()
        assert "users-0: starts at 1" in out and "users-2: starts at 1" in out and "users-1" not in out
        assert "cannot rename" in err
        with lastword.open(path, "a", log_cleaner_enable=False) as logs:
            with pytest.raises(StorageError) as failure:
                logs.topic("users").trim(2)
            assert isinstance(failure.value, PartialFailure) and failure.value.results == {0: 2, 2: 2}


# ---------------------------------------------------------------- topics


TOPIC_VERBS = {
    "ls": command("ls"),
    "clean --due": command("clean", "--dry-run", "--due"),
    "topics": with_logs(lambda logs: logs.topics()),
    "duplication": with_logs(lambda logs: logs.duplication()),
    "audit": with_logs(lambda logs: logs.audit(delivered=logs)),
    "verify": with_logs(lambda logs: logs.verify()),
    "plan": with_logs(lambda logs: logs.plan()),
    "clean": with_logs(lambda logs: logs.clean()),
    "expire": with_logs(lambda logs: logs.expire()),
}


@pytest.fixture(scope="module")
def topics(tmp_path_factory):
    root = tmp_path_factory.mktemp("topics")
    for count in (5, 50):
        with lastword.open(root / str(count), "a", clock=ManualClock(NOW_MS)) as logs:
            for number in range(count):
                logs.create_topic(f"t{number}").extend([(b"key", b"value")] * 2)
            logs.set_config(cleanup_policy="compact,delete")
    for checkpoint in root.glob("*/*-checkpoint"):  # one of this second is read for each partition
        os.utime(checkpoint, (NOW_MS // 1000, NOW_MS // 1000))
    return root


@pytest.mark.parametrize("verb", TOPIC_VERBS)
def test_ten_times_the_topics_take_ten_times_the_calls(topics, verb):
    check_in_proportion(topics, TOPIC_VERBS[verb], 5, 50)


# ---------------------------------------------------------------- segments of one partition


FEW_SEGMENTS, MANY_SEGMENTS = 20 // stride(2), 80 // stride(2)


def append_segments(path):
    """Append a segment of eight records at a time, of which the last is superseded by the next segment."""
    count = int(path.name)
    with lastword.open(path, "a", clock=ManualClock(NOW_MS)) as logs:
        topic = logs.create_topic(
            "users", cleanup_policy="compact,delete", segment_bytes=1024, retention_ms=-1
        )
        for number in range(count):
            keys = [b"%08d" % (8 * number + key) for key in range(7)]
            topic.extend((key, bytes(80)) for key in (*keys, b"the same"))
        assert len(logs.dirs.log("users", 0).segments) == count


@pytest.fixture(scope="module")
def segments(tmp_path_factory):
    root = tmp_path_factory.mktemp("segments")
    for count in (FEW_SEGMENTS, MANY_SEGMENTS):
        append_segments(root / str(count))
    return root


def functions_called(work):
    """Return how many functions `work` calls in this thread."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    gc.collect()
    gc.disable()  # a collection calls the finalizers of other tests' objects
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def effort_of(path, work):
    """Return what `work` costs: storage calls, names listed, and calls of functions in this thread.

    The threads that look after the directory meanwhile are not counted: how often they look depends on time.
    """

    class Listing(RecordingFiles):
        storage = names = 0

        def do(self, call, action, half=None):
            self.storage += is_counted()
            return super().do(call, action, half)

        def listdir(self, path):
            listing = super().listdir(path)
            self.names += len(listing) * is_counted()
            return listing

    def is_counted():
        return not threading.current_thread().name.startswith(("lastword-ingest", "lastword-cleaner"))

    files = Listing(DEFAULT)
    with lastword.open(path, "a", clock=ManualClock(NOW_MS), files=files) as logs:
        logs.dirs.log("users", 0)
        files.storage = files.names = 0
        calls = functions_called(lambda: work(logs))
    return {"storage": files.storage, "names": files.names, "functions": calls}


def first_of(*arguments):
    return lambda logs: next(iter(logs.topic("users").read(*arguments)))


SEGMENT_READS = {
    "one record": first_of(50, 51),
    "from an offset": first_of(50),
    "from a time": first_of(datetime.fromtimestamp(0, UTC)),
    "all": lambda logs: logs.topic("users").read().arrow().read_all(),
    "newest values": lambda logs: logs.topic("users").read(view="newest").arrow().read_all(),
    "ls": lambda logs: logs.topic("users").segments(),
    "explain": lambda logs: logs.explain(),
    "plan": lambda logs: logs.plan(),
    "duplication": lambda logs: logs.duplication(by="segment"),
    "verify": lambda logs: logs.verify(),
    "audit": lambda logs: logs.audit(delivered=logs),
}


@pytest.mark.parametrize("verb", SEGMENT_READS)
def test_four_times_the_segments_take_four_times_the_calls(segments, verb):
    _, few, many = (  # the first loads modules
        effort_of(segments / str(count), SEGMENT_READS[verb])
        for count in (FEW_SEGMENTS, FEW_SEGMENTS, MANY_SEGMENTS)
    )
    # The root is listed once more if it was changed a moment ago, which depends on the load of the machine.
    once_more = {"names": len(list((segments / str(MANY_SEGMENTS)).iterdir()))}
    for kind in few:
        assert many[kind] <= 4.2 * few[kind] + once_more.get(kind, 0), (kind, few, many)


SEGMENT_CHANGES = {
    "append": lambda logs: [logs.topic("users").append(b"key", bytes(900)) for _ in range(count_of(logs))],
    "clean": lambda logs: logs.clean(strategy="kafka"),
    "clean by accounts": lambda logs: logs.clean(strategy="generational"),
    "trim": lambda logs: logs.topic("users").trim(before=4 * count_of(logs)),
    "expire": lambda logs: (
        logs.topic("users").set_config(retention_bytes=5000),
        logs.expire(),
    ),
}


def count_of(logs):
    return int(os.path.basename(logs.paths[0]))


@pytest.mark.parametrize("verb", SEGMENT_CHANGES)
def test_changing_four_times_the_segments_takes_four_times_the_calls(segments, tmp_path, verb):
    """An output is as large as a source, so there are as many swaps, or rolls, as segments."""
    efforts = []
    for attempt, count in (("loads modules", FEW_SEGMENTS), ("few", FEW_SEGMENTS), ("many", MANY_SEGMENTS)):
        path = tmp_path / attempt / str(count)
        shutil.copytree(segments / str(count), path)
        efforts.append(effort_of(path, SEGMENT_CHANGES[verb]))
    _, few, many = efforts
    for kind in few:
        assert many[kind] <= 4.2 * few[kind], (kind, few, many)


def test_the_runs_of_many_segments_are_rewritten_together(segments, tmp_path, monkeypatch):
    """An inspection visits every segment: with many of them it is not made after each run."""
    rounds, values = {}, {}
    for segments_per_run in (drive.SEGMENTS_PER_RUN, 8):
        path = tmp_path / str(segments_per_run)
        shutil.copytree(segments / str(MANY_SEGMENTS), path)
        monkeypatch.setattr(drive, "SEGMENTS_PER_RUN", segments_per_run)
        with lastword.open(path, "a", clock=ManualClock(NOW_MS)) as logs:
            logs.topic("users").set_config(min_cleanable_dirty_ratio=0.01)
            results = logs.clean(due=True, strategy="generational")
            assert all(result.complete for result in results) and logs.verify().ok
            rounds[segments_per_run] = len(results)
            values[segments_per_run] = [(r.offset, r.key) for r in logs.topic("users").read()]
    (few, kept), (many, same) = zip(rounds.values(), values.values(), strict=True)
    assert 1 <= many < few / 2
    assert len(same) == len(kept) < 8 * MANY_SEGMENTS


class Facts:
    """A segment of one live KiB and one dead record."""

    dead_records, tombstones_without_horizon, size_bytes, live_bytes = 1, 0, 2048, 1024

    def __init__(self, number):
        self.base_offset, self.next_offset = 10 * number, 10 * number + 10


def test_grouping_takes_time_in_proportion_to_the_segments_of_a_group():
    def calls(segments):
        facts = [Facts(number) for number in range(segments)]
        limits = OutputLimits(1 << 30, 10 << 20, 4096)
        assert len(group(facts, limits)) == len(cut(facts, 0, segments - 1, limits)) == 1
        return functions_called(lambda: (group(facts, limits), cut(facts, 0, segments - 1, limits)))

    assert calls(400) <= 4.2 * calls(100)


def test_a_creation_loads_the_settings_once(tmp_path, monkeypatch):
    loads = []
    load = Settings.load
    with lastword.open(tmp_path / "log", "a", clock=ManualClock(NOW_MS)) as logs:
        monkeypatch.setattr(
            Settings, "load", lambda *given, **named: loads.append(1) or load(*given, **named)
        )
        for number in range(3):
            logs.create_topic(f"t{number}", retention_ms=number)
            assert len(loads) == number + 1
            assert logs.topic(f"t{number}").config.retention_ms == number


@pytest.mark.parametrize("seconds", [3600, -3600], ids=["quiet", "just-changed"])
def test_a_call_for_each_topic_lists_a_root_that_is_quiet_only_once(topics, seconds):
    """A root that was just changed is listed for each call: a later change may have the same time."""
    files = RecordingFiles(files_after(seconds))
    path = topics / "50"
    with lastword.open(path, files=files) as logs:
        names_of = [topic.name for topic in logs.topics()]
        before = root_listings(files.calls, path)
        for name in names_of:
            assert logs.topic(name).bounds() == {0: (0, 2)}
        assert (root_listings(files.calls, path) == before) == (seconds > 0)


def test_the_creation_of_a_topic_does_not_list_the_root(tmp_path):
    """Not the tenth, and not the two-hundredth."""
    files, path = RecordingFiles(files_after(-3600)), tmp_path / "log"
    with lastword.open(path, "a", clock=ManualClock(NOW_MS), files=files) as logs:
        logs.create_topic("first")
        before = root_listings(files.calls, path)
        for number in range(200):
            logs.create_topic(f"t{number}")
        assert root_listings(files.calls, path) == before
        logs.delete_topic("t7")
        assert "t7" not in logs and "t8" in logs and len(logs) == 200
        assert root_listings(files.calls, path) == before


def test_a_topic_that_another_process_makes_or_removes_is_seen(tmp_path):
    path = tmp_path / "log"
    with lastword.open(path, "a", clock=ManualClock(NOW_MS)) as logs:
        logs.create_topic("a")
    with lastword.open(path, files=files_after(3600)) as reader:
        assert list(reader) == ["a"]
        with lastword.open(path, "a", clock=ManualClock(NOW_MS)) as logs:
            logs.create_topic("b")
            assert list(reader) == ["a", "b"]
            logs.delete_topic("a")
            assert list(reader) == ["b"]
        (path / "b-0").rename(path / "c-0")
        assert list(reader) == ["c"] and "b" not in reader


@pytest.mark.parametrize("seconds", [-3600, 3600], ids=["soon", "later"])
def test_a_removal_by_hand_during_an_own_change_is_seen_later(tmp_path, monkeypatch, seconds):
    path, files = tmp_path / "log", files_after(-3600)
    with lastword.open(path, "a", clock=ManualClock(NOW_MS), files=files) as logs:
        logs.create_topic("a")

        def make(*given, **named):
            shutil.rmtree(path / "a-0")
            return make_partitions(*given, **named)

        make_partitions = log_dir.make_partitions
        monkeypatch.setattr(log_dir, "make_partitions", make)
        logs.create_topic("b")
        files.now_ns = files_after(seconds).now_ns
        assert list(logs) == (["b"] if seconds > 0 else ["a", "b"])
