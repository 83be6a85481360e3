"""Commits from outside: each is ingested whole and only once, whichever process dies at any step."""

from __future__ import annotations

import gc
import itertools
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import lastword
from lastword.clock import ManualClock
from lastword.errors import (
    BusyError,
    CorruptFileError,
    DataError,
    DiskFullError,
    LastwordError,
    SyncFailedError,
)
from lastword.files import DEFAULT, Files, OsFiles, interface
from lastword.ingest import apply, staging
from lastword.ingest.apply import open_to_append
from lastword.ingest.staging import CommitManifest, next_number, pending
from lastword.logdir.checkpoints import TopicPartition
from lastword.logdir.log_dir import LogDirectory
from lastword.logdir.log_dir_set import move
from lastword.partition import staged_batches
from lastword.records.batch import BatchBuilder
from lastword.segment import names
from tests.fakes.forgetful import ForgetfulFiles
from tests.fakes.recording import Call, RecordingFiles
from tests.retention.support import expire_partition, raise_log_start
from tests.support.exhaustive import stride
from tests.support.linux import open_paths
from tests.support.threads import meanwhile

NOW_MS = 1_795_168_800_000
HOUR_MS = 3600 * 1000
WAYS = pytest.mark.parametrize("way", ["copied", "adopted", "shared", "together"], indirect=True)
"""How staged batches enter the log: copied, as segments, or copied from a file of many partitions; together:
the logs are opened and closed as if they were many, but with one thread for the syncs."""
SHARED = False


@pytest.fixture
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let `stage` make files for this way."""
    if request.param == "adopted":  # no file is too small
        monkeypatch.setattr(staged_batches, "MIN_SIZE_RATIO", 0.0)
    if request.param == "together":
        monkeypatch.setattr(interface, "OVERLAP_FROM", 1)
        monkeypatch.setattr(interface, "OVERLAP_THREADS", 1)
    monkeypatch.setattr(sys.modules[__name__], "SHARED", request.param in ("shared", "together"))
    return str(request.param)


def make(root: Path, partitions: int = 2, files: Files = DEFAULT) -> None:
    with LogDirectory.open(str(root), "a", files, ManualClock(NOW_MS)) as directory:
        directory.create_topic("t", partitions, {"cleanup.policy": "compact"})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a directory with the topic t of two partitions."""
    make(tmp_path)
    return tmp_path


def batch(*values: str) -> bytes:
    builder = BatchBuilder(0)
    for value in values:
        builder.append(NOW_MS, value.encode(), value.encode())
    return builder.build(0)


def stage(
    root: Path, job: str, parts: dict[int, list[str]], files: Files = DEFAULT
) -> tuple[staging.StagedRun, ...]:
    """Stage the runs of one attempt: a batch for each value of each partition."""
    if SHARED:
        shared = staging.SharedWriter(files, str(root), job, 0, 0)
        for number, values in parts.items():
            for value in values:
                shared.write("t", number, batch(value), 1)
        return shared.close(sync=True)
    staged_files = []
    for number, values in parts.items():
        writer = staging.StagedWriter(files, str(root), "t", number, job, 0, 0)
        for value in values:
            writer.write(batch(value), 1)
        closed = writer.close(sync=True)
        assert closed is not None
        staged_files.append(closed)
    return tuple(staged_files)


def commit(root: Path, manifest: CommitManifest, files: Files = DEFAULT, patience: float = 5.0) -> None:
    clock = ManualClock(NOW_MS)
    apply.commit(
        str(root),
        manifest,
        files,
        lambda: LogDirectory.open(str(root), "a", files, clock),
        patience_seconds=patience,
    )


def leave(root: Path, manifest: CommitManifest) -> None:
    """Leave a commit to be ingested, as a driver that died right after it."""
    number = next_number(DEFAULT, str(root), NOW_MS)
    DEFAULT.write_atomic(root / f"lastword.inbox-{number:020d}-{manifest.commit_id}", manifest.encoded())


def values(root: Path) -> dict[int, list[str]]:
    with lastword.open(root) as logs:
        contents: dict[int, list[str]] = {0: [], 1: []}
        for record in logs.topic("t").read():
            contents[record.partition].append(record.value.decode())
        return contents


def leftovers(root: Path) -> list[str]:
    return sorted(
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file()
        and (
            path.name.startswith(("lastword.inbox", "lastword.applying", "lastword.staged", "lastword.begun"))
            or "staging-" in str(path)
        )
    )


def test_who_holds_the_lock_takes_in_while_others_append(root: Path) -> None:
    with lastword.open(root, "a") as logs:
        topic = logs.topic("t")
        with meanwhile(lambda: topic.append(b"mine", b"mine", partition=0)):
            for n in range(5):
                files = stage(root, f"j{n}", {0: [f"{n}-{m}" for m in range(20)], 1: [f"{n}c"]})
                commit(root, CommitManifest(f"j{n}", files, sync=False))
    contents = values(root)
    assert [v for v in contents[0] if v != "mine"] == [f"{n}-{m}" for n in range(5) for m in range(20)]
    for n in range(5):  # the log is locked while the batches of a commit are appended
        first = contents[0].index(f"{n}-0")
        assert contents[0][first + 19] == f"{n}-19"
    assert contents[1] == [f"{n}c" for n in range(5)] and leftovers(root) == []


@pytest.mark.parametrize("patience", [0, 0.1])
def test_a_broker_that_does_not_look_makes_it_fail_and_nothing_is_written(
    root: Path, patience: float
) -> None:
    """Without patience, or after a pause of this process, the manifest stayed to be ingested later."""
    manifest = CommitManifest("j", stage(root, "j", {0: ["a"]}), sync=True)
    with open_to_append(str(root)), pytest.raises(BusyError, match="nothing was written"):
        commit(root, manifest, patience=patience)
    assert values(root) == {0: [], 1: []}
    assert not pending(DEFAULT, str(root))


def test_the_same_batch_of_the_same_writer_comes_in_once(root: Path) -> None:
    for job, sequence in (("a", 0), ("b", 0), ("c", 1), ("d", 0), ("e", 2)):
        files = stage(root, job, {0: [job], 1: [job]})
        commit(root, CommitManifest(job, files, sync=False, writer="q", sequence=sequence))
    assert values(root) == {0: ["a", "c", "e"], 1: ["a", "c", "e"]} and leftovers(root) == []


@pytest.mark.parametrize(
    "damage", [Path.unlink, lambda file: file.write_bytes(b"short")], ids=["gone", "short"]
)
def test_a_damaged_staged_file_is_refused_and_the_next_commit_comes_in(
    root: Path, damage: Callable[[Path], object]
) -> None:
    bad = CommitManifest("bad", stage(root, "bad", {0: ["x"], 1: ["y"]}), sync=True)
    damage(next((root / "t-1").rglob("*.batches")))
    with pytest.raises(DataError, match="not as its writer left it"):
        commit(root, bad)
    commit(root, CommitManifest("good", stage(root, "good", {0: ["a"]}), sync=True))
    assert values(root) == {0: ["a"], 1: []}  # all files are checked before the first is ingested


@WAYS
def test_a_staged_byte_that_changed_is_met_before_anything_is_appended(root: Path, way: str) -> None:
    first = CommitManifest("first", stage(root, "first", {0: ["a"], 1: ["b"]}), sync=True)
    commit(root, first)
    bad = CommitManifest("bad", stage(root, "bad", {0: ["x"], 1: ["y", "z"]}), sync=True)
    pattern = "lastword.staged-bad-*" if SHARED else "t-1/lastword/*/*.batches"
    file = next(root.glob(pattern))
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(DataError, match="CRC"):
        commit(root, bad)
    assert values(root) == {0: ["a"], 1: ["b"]}


def test_a_topic_that_is_gone_is_refused(root: Path) -> None:
    manifest = CommitManifest("j", stage(root, "j", {0: ["a"]}), sync=True)
    with lastword.open(root, "a", log_cleaner_enable=False) as logs:
        logs.delete_topic("t")
        with pytest.raises(DataError, match="t-0 does not exist any more"):
            commit(root, manifest)


@WAYS
@pytest.mark.parametrize(
    ("setting", "value", "why"),
    [
        ("max_message_bytes", 1500, r"t-1: a batch of 20\d\d bytes is larger than .* = 1500"),
        ("segment_bytes", 1500, r"t-1: a batch of 20\d\d bytes is larger than .* = 1500"),
        ("lastword_pulled_from", "a cluster", "t-0 .*a copy that is pulled from the cluster a cluster"),
    ],
)
def test_settings_that_were_changed_since_the_staging_refuse_the_whole_commit(
    root: Path, way: str, setting: str, value: Any, why: str
) -> None:
    """Partition 0 got its batches, then partition 1 refused those above the limit."""
    commit(root, CommitManifest("first", stage(root, "first", {0: ["a"], 1: ["b"]}), sync=True))
    runs = stage(root, "j", {0: ["c"], 1: ["d", "e" * 1000, "f"]})
    with lastword.open(root, "a", log_cleaner_enable=False) as logs:
        logs.set_config("t", **{setting: value})
    with pytest.raises(DataError, match=why):
        commit(root, CommitManifest("j", runs, sync=True))
    assert values(root) == {0: ["a"], 1: ["b"]} and leftovers(root) == []
    with lastword.open(root, "a", log_cleaner_enable=False) as logs:
        logs.topic("t").trim(1)  # the refused commit holds nothing back


def test_a_commit_looks_the_settings_of_a_topic_up_once_for_all_its_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lookups(partitions: int) -> int:
        root, calls = tmp_path / str(partitions), []
        make(root, partitions)
        monkeypatch.setattr(sys.modules[__name__], "SHARED", True)
        runs = stage(root, "j", {number: ["a"] for number in range(partitions)})
        shared = {run.name for run in runs}
        (staged,) = (staging.StagedPath(str(root / name), runs) for name in shared)
        with LogDirectory.open(str(root), "r") as directory:
            staged.check_batches(DEFAULT, lambda topic: calls.append(topic) or directory.topic_config(topic))
        return len(calls)

    assert lookups(2) == lookups(20) == 1


def test_a_damaged_memory_of_writers_stops_commits_with_names(root: Path) -> None:
    commit(root, CommitManifest("j", stage(root, "j", {0: ["a"]}), sync=True, writer="q", sequence=0))
    (root / "lastword.writers").write_text("{")
    with pytest.raises(DataError, match="which batches were written is not known"):
        commit(root, CommitManifest("k", stage(root, "k", {0: ["b"]}), sync=True, writer="q", sequence=1))
    assert values(root)[0] == ["a"]


def test_a_commit_into_an_existing_partition_does_each_thing_once(root: Path) -> None:
    """The calls of each partition are the costs of a commit into thousands of them."""
    for job in ("h", "i", "j"):  # `i` and `j` rename the producer snapshot of the commit before
        shared = [staging.SharedWriter(DEFAULT, str(root), job, order, 0) for order in range(3)]
        for order, writer in enumerate(shared):
            writer.write("t", 0, batch(f"{job}{order}"), 1)
        runs = tuple(run for writer in shared for run in writer.close(sync=True))
        files = RecordingFiles(OsFiles())
        commit(root, CommitManifest(job, runs, sync=True), files)
    assert values(root)[0] == [f"{job}{order}" for job in "hij" for order in range(3)]
    calls = Counter((call.name, Path(call.path).name) for call in files.calls if "/t-0" in call.path)
    log = f"{0:020d}.log"
    assert [calls[name, log] for name in ("open_append", "append", "fsync")] == [1, 1, 1]
    assert calls["rename", f"{6:020d}.snapshot"] == calls["fsync_dir", "t-0"] == 1
    assert not any(name in ("create", "unlink") for name, _ in calls)
    assert [calls["listdir", name] for name in ("t-0", "lastword")] == [1, 1]  # when opened
    assert sum(calls.values()) == 49


@pytest.mark.parametrize("commits", [1, 2])
def test_a_snapshot_gets_its_name_when_its_log_is_durable(root: Path, commits: int) -> None:
    """The first commit writes a snapshot at its log end, the second one renames it."""
    for number in range(commits):
        job = f"j{number}"
        files = RecordingFiles(OsFiles())
        commit(root, CommitManifest(job, stage(root, job, {0: ["a"]}), sync=True), files)
    steps = [(call.name, Path(call.path).name) for call in files.changes if "/t-0" in call.path]
    named = steps.index(("rename", f"{1:020d}.snapshot" + (".tmp" if commits == 1 else "")))
    for extension in ("log", "index", "timeindex"):
        assert steps.index(("fsync", f"{0:020d}.{extension}")) < named
    assert steps.index(("fsync_dir", "t-0")) > named


def is_append(call: Call) -> bool:
    return call.name == "append" and call.path.endswith(".log")


ON_THREADS = pytest.mark.parametrize("much_bytes", [0, 16 << 20], ids=["on threads", "one by one"])


@ON_THREADS
def test_a_full_drive_leaves_the_commit_to_be_taken_in_later(
    root: Path, monkeypatch: pytest.MonkeyPatch, much_bytes: int
) -> None:
    monkeypatch.setattr(apply, "PARALLEL_BYTES", much_bytes)
    monkeypatch.setattr(apply, "PARALLEL_PARTITION_BYTES", 0)

    files = RecordingFiles(OsFiles(), fail=lambda call: DiskFullError("full") if is_append(call) else None)
    manifest = CommitManifest("j", stage(root, "j", {0: ["a"], 1: ["b"]}), sync=True)
    leave(root, manifest)
    open_to_append(str(root), files, ManualClock(NOW_MS)).close()
    assert pending(DEFAULT, str(root))
    files.fail = None
    open_to_append(str(root), files, ManualClock(NOW_MS)).close()
    assert values(root) == {0: ["a"], 1: ["b"]}


def large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files of two batches and more become segments."""
    monkeypatch.setattr(
        staged_batches, "is_worth_a_segment", lambda config, size_bytes: size_bytes > 2 * len(batch("a")) - 1
    )


def three_tasks(root: Path, job: str, sizes: tuple[int, ...], files: Files = DEFAULT) -> Any:
    """Stage a file for partition 0 by each task; `sizes` are the numbers of batches."""
    staged_files = []
    for task, size in enumerate(sizes):
        writer = staging.StagedWriter(files, str(root), "t", 0, job, task, 0)
        for number in range(size):
            writer.write(batch(f"{job}{task}{number}"), 1)
        staged_files.append(writer.close(sync=True))
    return tuple(staged_files)


@pytest.mark.slow
def test_a_kill_or_a_power_cut_while_files_become_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some files are copied, some renamed: each batch is there only once, in order, or none is."""
    large_ones(monkeypatch)
    root = tmp_path / "data"
    make(root, 1)
    files = ForgetfulFiles(root)
    allowed: list[list[str]] = [[]]
    for sequence, sizes in enumerate([(2, 2), (1, 2, 1), (3, 2)]):
        job = "jkl"[sequence]
        manifest = CommitManifest(
            job, three_tasks(root, job, sizes, files), True, writer="q", sequence=sequence
        )
        commit(root, manifest, files)
        files.mark(f"returned {job}")
        new = [f"{job}{task}{n}" for task, size in enumerate(sizes) for n in range(size)]
        allowed.append(allowed[-1] + new)
    assert len(list((root / "t-0").glob("*.log"))) == 5
    seen = set()
    images = list(files.images(seeds=range(1)))[:: 5 * stride(4)]
    for image in [*images, *files.kills(range(0, len(files.journal) + 1, stride(9)))]:
        target = tmp_path / "image"
        image.write(target)
        open_to_append(str(target), clock=ManualClock(NOW_MS)).close()
        contents = values(target)[0]
        assert contents in allowed[len(image.marks) :], image.label
        seen.add(len(contents))
        with lastword.open(target, "a", log_cleaner_enable=False) as logs:
            logs.topic("t").append(b"after", b"after")
            assert values(target)[0] == [*contents, "after"]
            assert not image.label.startswith("kill") or logs.verify("t").problems == ()
    assert seen == {len(outcome) for outcome in allowed}


@pytest.mark.slow
@WAYS
@ON_THREADS
def test_a_kill_or_a_power_cut_at_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, much_bytes: int
) -> None:
    """A commit that returned survives; every commit that survives is whole, and comes in once if it is made
    again under its name.
    """
    monkeypatch.setattr(apply, "PARALLEL_BYTES", much_bytes)
    monkeypatch.setattr(apply, "PARALLEL_PARTITION_BYTES", 0)
    root = tmp_path / "data"
    make(root)
    files = ForgetfulFiles(root)
    jobs = {"j": {0: ["a", "b"], 1: ["c"]}, "k": {0: ["d"], 1: ["e"]}}

    def commit_all(root: Path, files: Files, prefix: str) -> None:
        for sequence, (job, parts) in enumerate(jobs.items()):
            job = prefix + job
            staged_files = stage(root, job, parts, files)
            commit(root, CommitManifest(job, staged_files, True, writer="q", sequence=sequence), files)
            if isinstance(files, ForgetfulFiles):
                files.mark(f"returned {job}")

    commit_all(root, files, "")
    none, first, both = {0: [], 1: []}, {0: ["a", "b"], 1: ["c"]}, {0: ["a", "b", "d"], 1: ["c", "e"]}
    seen = set()
    every = stride(192 if way == "together" else 96)
    kills = files.kills(range(0, len(files.journal) + 1, stride(15)))
    for image in [*[*files.images(seeds=range(1))][::every], *kills]:
        target = tmp_path / "image"
        image.write(target)
        open_to_append(str(target), clock=ManualClock(NOW_MS)).close()
        allowed = [none, first, both][len(image.marks) :]
        contents = values(target)
        assert contents in allowed, image.label
        seen.add(len(contents[0]))
        commit_all(target, DEFAULT, "again-")
        assert values(target) == both, image.label
        # Files of a driver that died before its commit are removed by age.
        left = [name for name in leftovers(target) if not name.endswith(".tmp")]
        assert not [name for name in left if "again" in name], left
    assert seen == {0, 2, 3}


def test_the_lock_is_free_again_after_a_take_in_that_failed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "lastword.inbox-00000000000000000001-j").write_bytes(b"x")
    monkeypatch.setattr(apply, "ingest_pending", lambda directory: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        open_to_append(str(root))
    monkeypatch.undo()
    open_to_append(str(root)).close()


def test_staged_files_of_a_dead_commit_go_after_an_hour(root: Path) -> None:
    """Its sign of life may be in any partition; a completed commit is not a dead one."""
    jobs = ("dead", "alive", "late", "made")
    files = {job: stage(root, job, {0: ["x"], 1: ["y"]}) for job in jobs}
    for path in root.rglob("staging-*"):
        DEFAULT.set_mtime(path, NOW_MS - HOUR_MS)
    staging.keep_alive(DEFAULT, str(root), "alive", NOW_MS)  # in one partition, for both
    DEFAULT.set_mtime(root / "t-1/lastword/staging-late", NOW_MS - HOUR_MS + 1)
    manifest = CommitManifest("made", files["made"], sync=True)
    (root / f"lastword.inbox-{NOW_MS:020d}-made").write_bytes(manifest.encoded())
    for number in range(2):
        staging.remove_old(
            DEFAULT,
            str(root / f"t-{number}"),
            NOW_MS,
            lambda job: staging.is_abandoned(DEFAULT, str(root), job, NOW_MS),
        )
    left = sorted(path.name.removeprefix("staging-") for path in root.rglob("staging-*"))
    assert left == ["alive", "alive", "late", "late", "made", "made"]


def test_a_directory_that_was_let_go_ends_its_watch(root: Path) -> None:
    directory = open_to_append(str(root))
    watch = apply.Watch(directory, every_seconds=0.01)
    directory.close()
    del directory
    gc.collect()
    watch._thread.join(timeout=5)
    assert not watch._thread.is_alive()


def test_commits_that_waited_for_long_all_come_in(root: Path) -> None:
    """Three drivers died right after their commits, and the directory was not opened for a month."""
    for n in range(3):
        leave(root, CommitManifest(f"j{n}", stage(root, f"j{n}", {0: [str(n)]}), sync=True))
    later = ManualClock(time.time_ns() // 1_000_000 + 30 * 86_400_000)  # files have the real time
    open_to_append(str(root), DEFAULT, later).close()
    assert values(root)[0] == ["0", "1", "2"] and leftovers(root) == []


def test_a_driver_is_told_that_the_drive_is_full(root: Path) -> None:
    """The driver stops trying; the error says that the begun commit is completed when there is room."""
    manifest = CommitManifest("j", stage(root, "j", {0: ["a"]}), sync=True)

    tries = itertools.count()

    def full(call: Call) -> LastwordError | None:
        assert not is_append(call) or next(tries) < 20, "it tries for ever"
        return DiskFullError("no room") if is_append(call) else None

    with pytest.raises(DiskFullError, match="no room; commit j was begun, and is completed when"):
        commit(root, manifest, RecordingFiles(OsFiles(), fail=full))
    open_to_append(str(root)).close()
    assert values(root)[0] == ["a"]


def test_a_log_that_cannot_be_closed_has_its_batches_only_once(root: Path) -> None:
    """The batches of partition 1 are appended when its snapshot fails; partition 0 is closed already."""
    manifest = CommitManifest("j", stage(root, "j", {0: ["a"], 1: ["b", "c"]}), sync=True)

    def full(call: Any) -> LastwordError | None:
        is_snapshot = call.name == "create" and call.path.endswith("t-1/00000000000000000002.snapshot.tmp")
        return DiskFullError("no room") if is_snapshot else None

    with pytest.raises(DiskFullError, match="no room; commit j was begun, and is completed when"):
        commit(root, manifest, RecordingFiles(OsFiles(), fail=full))
    assert not (root / names.CLEAN_SHUTDOWN).exists()
    open_to_append(str(root)).close()
    assert values(root) == {0: ["a"], 1: ["b", "c"]} and leftovers(root) == []


def test_a_log_that_a_commit_closed_is_opened_again_by_the_next(root: Path) -> None:
    """Two commits wait; the process that makes the second ingests both, and stops cleanly."""
    first = CommitManifest("j", stage(root, "j", {0: ["a"], 1: ["b"]}), sync=True)
    leave(root, first)
    commit(root, CommitManifest("k", stage(root, "k", {0: ["c"]}), sync=True))
    assert values(root) == {0: ["a", "c"], 1: ["b"]}
    with LogDirectory.open(str(root), "a", DEFAULT, ManualClock(NOW_MS)) as directory:
        assert directory.checkpoints.recovery_points.read() == {("t", 0): 2, ("t", 1): 1}
        assert [directory.log("t", number).log_end for number in range(2)] == [2, 1]
        assert directory.recovery.clean and directory.recovery.repaired == ()


def test_a_commit_that_was_not_begun_is_taken_back(root: Path) -> None:
    manifest = CommitManifest("j", stage(root, "j", {0: ["a"]}), sync=True)

    def opens() -> LogDirectory:
        raise DiskFullError("no room")

    with pytest.raises(DiskFullError, match="no room; commit j was taken back"):
        apply.commit(str(root), manifest, DEFAULT, opens, patience_seconds=1)
    assert not pending(DEFAULT, str(root))


def test_a_log_that_does_not_open_is_met_before_anything_is_appended(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is refused as a whole: a repeat would append it twice to the partitions that had it."""
    manifest = CommitManifest("j", stage(root, "j", {0: ["a"], 1: ["b"]}), True, writer="q", sequence=0)
    real = LogDirectory._opening_log

    def opening_log(self: LogDirectory, tp: TopicPartition, *more: Any) -> Any:
        if tp.partition == 1:
            raise CorruptFileError("t-1 is damaged")
        return (yield from real(self, tp, *more))

    with monkeypatch.context() as patched:
        patched.setattr(LogDirectory, "_opening_log", opening_log)
        with pytest.raises(DataError, match="t-1 is damaged"):
            commit(root, manifest)
    assert values(root) == {0: [], 1: []}


@pytest.mark.parametrize("way", ["shared"], indirect=True)
def test_shared_files_of_a_dead_commit_go_after_an_hour(root: Path, way: str) -> None:
    """A sign of life of a writer counts for its commit only; a commit that was made keeps its file."""
    jobs = ("dead", "dead-1", "alive", "alive-1", "made")
    runs = {job: stage(root, job, {0: ["x"], 1: ["y"]}) for job in jobs}
    for path in root.glob("lastword.staged-*"):
        DEFAULT.set_mtime(path, NOW_MS - HOUR_MS)
    for job in ("alive", "alive-1"):
        staging.keep_alive(DEFAULT, str(root), job, NOW_MS)
    manifest = CommitManifest("made", runs["made"], sync=True)
    (root / f"lastword.inbox-{NOW_MS:020d}-made").write_bytes(manifest.encoded())
    staging.remove_old_shared(DEFAULT, str(root), NOW_MS)
    left = sorted(path.name for path in root.glob("lastword.staged-*"))
    assert left == sorted(f"lastword.staged-{job}-00000-0" for job in ("alive", "alive-1", "made"))


@pytest.mark.parametrize("way", ["shared"], indirect=True)
def test_only_the_files_of_the_commit_are_removed(root: Path, way: str) -> None:
    runs = {job: stage(root, job, {0: [job], 1: [job]}) for job in ("j", "j-1")}
    commit(root, CommitManifest("j", runs["j"], sync=True))
    assert [path.name for path in root.glob("lastword.staged-*")] == ["lastword.staged-j-1-00000-0"]
    commit(root, CommitManifest("j-1", runs["j-1"], sync=True))
    assert values(root) == {0: ["j", "j-1"], 1: ["j", "j-1"]} and leftovers(root) == []


def test_batches_of_both_kinds_of_files_keep_the_order_of_their_writers(tmp_path: Path) -> None:
    """A partition gets a file of its own after its runs in the shared file of the writer."""
    make(tmp_path, 1)
    runs: list[staging.StagedRun] = []
    for order in (1, 0):
        shared = staging.SharedWriter(DEFAULT, str(tmp_path), "j", order, 0)
        writer = staging.StagedWriter(DEFAULT, str(tmp_path), "t", 0, "j", order, 0)
        for letter in "abc":
            shared.write("t", 0, batch(f"{order}{letter}"), 1)
        writer.write(batch(f"{order}d"), 1)
        closed = writer.close(sync=True)
        assert closed is not None
        runs += [closed, *shared.close(sync=True)]
    commit(tmp_path, CommitManifest("j", tuple(runs), sync=True))
    assert values(tmp_path)[0] == [f"{order}{letter}" for order in (0, 1) for letter in "abcd"]


def test_marks_of_commits_without_a_name_go_after_an_hour(root: Path) -> None:
    """They stayed for a week, and each commit looked at all of them."""
    for job, age_ms in (("old", HOUR_MS + 1), ("young", HOUR_MS - 1), ("new", 0)):
        commit(root, CommitManifest(job, stage(root, job, {0: [job]}), sync=True))
        DEFAULT.set_mtime(root / f"lastword.committed-{job}", NOW_MS - age_ms)
    commit(root, CommitManifest("last", stage(root, "last", {0: ["last"]}), sync=True))
    marks = sorted(path.name for path in root.glob("lastword.committed-*"))
    assert marks == [f"lastword.committed-{job}" for job in ("last", "new", "young")]


def test_an_old_mark_counts_while_its_manifest_is_there(root: Path) -> None:
    """Killed after the mark was written; the directory is opened a month later."""
    runs = stage(root, "j", {0: ["a"]})
    commit(root, CommitManifest("j", runs, sync=True))
    DEFAULT.set_mtime(root / "lastword.committed-j", NOW_MS - 720 * HOUR_MS)
    stage(root, "j", {0: ["a"]})
    (root / f"lastword.applying-{NOW_MS:020d}-j").write_bytes(CommitManifest("j", runs, True).encoded())
    open_to_append(str(root), clock=ManualClock(NOW_MS)).close()
    assert values(root)[0] == ["a"] and leftovers(root) == []
    assert not list(root.glob("lastword.committed-*"))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"format":2,"job":"j","files":[]}', "another version"),
        (b'{"format":4,"job":"j","files":[]}', "another version"),
        (b"zz", "no commit"),
        (b"{}", "no commit"),
    ],
)
def test_a_manifest_that_is_none_or_of_another_version_is_refused(root: Path, body: bytes, why: str) -> None:
    manifest = b"%08x %s\n" % (zlib.crc32(body), body)
    (root / f"lastword.inbox-{NOW_MS:020d}-j").write_bytes(manifest)
    open_to_append(str(root), clock=ManualClock(NOW_MS)).close()
    (refused,) = root.glob("lastword.refused-*")
    assert why in refused.read_text() and values(root) == {0: [], 1: []}
    with pytest.raises(CorruptFileError, match="its checksum differs"):
        CommitManifest.decoded(manifest.replace(b" ", b"0 "), "f")


@WAYS
def test_a_note_of_a_complete_commit_holds_nothing_back(root: Path, way: str) -> None:
    """Killed after the manifest was removed, before the note: an equal commit afterwards is another one."""
    commit(root, CommitManifest("j", stage(root, "j", {0: ["a"], 1: ["b"]}), sync=True))
    staged_batches.LogEnds("j", {"t-0": 0, "t-1": 0}).save(DEFAULT, str(root))
    with LogDirectory.open(str(root)) as directory:
        assert directory.view("t", 0).incomplete_commit_offset == 0
    commit(root, CommitManifest("k", stage(root, "k", {0: ["a"], 1: ["b"]}), sync=True))
    assert values(root) == {0: ["a", "a"], 1: ["b", "b"]} and leftovers(root) == []
    staged_batches.LogEnds("k", {"t-0": 1}).save(DEFAULT, str(root))
    with open_to_append(str(root)) as directory:
        assert directory.log("t", 0).incomplete_commit_offset is None and leftovers(root) == []


@WAYS
def test_a_damaged_note_refuses_the_commit(root: Path, way: str) -> None:
    """Batches that are in the log could not be recognized. Until then nothing is cleaned."""
    manifest = CommitManifest("j", stage(root, "j", {0: ["a"], 1: ["b"]}), sync=True)
    (root / f"lastword.applying-{NOW_MS:020d}-j").write_bytes(manifest.encoded())
    (root / names.BEGUN).write_bytes(b"lastword commit-begun 1 00000000\n{}\n")
    with LogDirectory.open(str(root)) as directory:
        assert directory.view("t", 0).incomplete_commit_offset == 0
    open_to_append(str(root), clock=ManualClock(NOW_MS)).close()
    assert values(root) == {0: [], 1: []} and leftovers(root) == []
    assert len(list(root.glob("lastword.refused-*"))) == 1


def half_in(root: Path, monkeypatch: pytest.MonkeyPatch, **config: object) -> None:
    """Leave a commit half ingested, and open the directory without room for the rest.

    The commit has five batches, each in a segment of its own; the drive had room for three.
    """
    with open_to_append(str(root), DEFAULT, ManualClock(NOW_MS)) as directory:
        directory.create_topic("t", 1, {"cleanup.policy": "compact", "segment.bytes": 80, **config})
        directory.log("t", 0).append_batches([bytearray(batch("a")), bytearray(batch("z"))])
    files = stage(root, "j", {0: ["a", "a", "a", "b", "c"]})
    DEFAULT.write_atomic(root / f"lastword.inbox-{1:020d}-j", CommitManifest("j", files, sync=True).encoded())
    room = itertools.count()

    def full(call: Call) -> LastwordError | None:
        return DiskFullError("full") if is_append(call) and next(room) >= 3 else None

    monkeypatch.setattr(staged_batches, "BLOCK_BYTES", 20)
    open_to_append(str(root), RecordingFiles(OsFiles(), fail=full), ManualClock(NOW_MS)).close()
    monkeypatch.setattr(apply, "ingest_pending", lambda directory: 0)


def test_what_came_in_of_a_commit_is_not_cleaned_before_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If they were cleaned, batches already there would not be recognized, and would be appended twice."""
    for strategy, due in itertools.product(("kafka", "generational"), (False, True)):
        root = tmp_path / f"{strategy}{due}"
        with monkeypatch.context() as patch:
            half_in(root, patch, **{"lastword.strategy": strategy, "min.cleanable.dirty.ratio": 0})
            later = ManualClock(NOW_MS + 86_400_000)
            with lastword.open(root, "a", log_cleaner_enable=False, clock=later) as logs:
                plan = logs.plan("t", due=due)[0]
                logs.clean("t", due=due)
                if not due:
                    assert "unfinished-commit" in [reason.code for reason in plan.reasons]
                    lines = [str(version) for version in logs.explain("t", key=b"a", partition=0).versions]
                    assert any("unfinished-commit" in line for line in lines), lines
        open_to_append(str(root)).close()
        assert values(root)[0] == ["a", "z", "a", "a", "a", "b", "c"]


def test_nor_trimmed_moved_or_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        half_in(tmp_path / "one", patch, **{"cleanup.policy": "delete", "retention.ms": 1})
        later = ManualClock(NOW_MS + 86_400_000)
        with open_to_append(str(tmp_path / "one"), clock=later) as directory:
            with pytest.raises(BusyError, match="t-0 cannot begin at 3: the commit that begins at 2"):
                raise_log_start(directory, "t", 0, 3)
            other = open_to_append(str(tmp_path / "two"))
            with other, pytest.raises(BusyError, match="t-0 cannot be moved"):
                move(directory, other, "t", 0)
            assert expire_partition(directory, "t", 0).log_start == 2
    open_to_append(str(tmp_path / "one")).close()
    assert values(tmp_path / "one")[0] == ["a", "a", "a", "b", "c"]


def test_a_commit_that_is_refused_half_way_holds_nothing_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        half_in(tmp_path, patch)
    (staging,) = (tmp_path / "t-0" / "lastword").glob("staging-j/*.batches")
    staging.write_bytes(b"?" * staging.stat().st_size)
    with open_to_append(str(tmp_path)) as directory:
        assert directory.log("t", 0).incomplete_commit_offset is None
        assert list(tmp_path.glob("lastword.refused-*")) and not staging.exists()


@WAYS
def test_settings_that_are_changed_while_a_commit_comes_in_refuse_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    manifest = CommitManifest("j", stage(root, "j", {0: ["a", "b"], 1: ["c", "d" * 99]}), sync=True)
    real = staged_batches.LogEnds.save

    def save(self: staged_batches.LogEnds, files: Files, root: str) -> None:
        real(self, files, root)
        logs.set_config("t", max_message_bytes=100)

    monkeypatch.setattr(staged_batches.LogEnds, "save", save)
    with lastword.open(root, "a") as logs:
        commit(root, manifest)
    assert values(root) == {0: ["a", "b"], 1: ["c", "d" * 99]} and leftovers(root) == []


@pytest.mark.parametrize("why", ["moved", "failed"])
def test_a_log_that_takes_no_batch_is_met_before_anything_is_appended(
    root: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """It was moved to another directory, or a write of another thread failed, since it was opened."""
    with LogDirectory.open(f"{root}-other", "a", DEFAULT, ManualClock(NOW_MS)) as other:
        other.create_topic("others")
    manifest = CommitManifest("j", stage(root, "j", {0: ["a"], 1: ["b"]}), sync=True)
    real = LogDirectory.logs

    def logs(self: LogDirectory, partitions: Any) -> Any:
        opened = real(self, partitions)
        if why == "moved":
            with LogDirectory.open(f"{root}-other", "a", DEFAULT, ManualClock(NOW_MS)) as target:
                move(self, target, "t", 1)
        else:
            opened["t", 1].retire(DiskFullError("planted"))
        return opened

    with monkeypatch.context() as patch, pytest.raises(LastwordError):
        patch.setattr(LogDirectory, "logs", logs)
        commit(root, manifest)
    assert values(root)[0] == []


def test_a_commit_that_fails_is_tried_again_after_longer_pauses(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try reads all staged batches. A try that succeeds ends the pauses."""
    pauses: list[float] = []
    tries: list[int] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout or 0.0)
            return len(pauses) > 12

    def ingest_pending(directory: LogDirectory) -> None:
        tries.append(len(pauses))
        if len(tries) < 9:
            raise DiskFullError("planted")

    monkeypatch.setattr(apply, "ingest_pending", ingest_pending)
    with LogDirectory.open(str(root), "a") as directory:
        fake = SimpleNamespace(Event=Stop, Thread=threading.Thread)
        monkeypatch.setattr(apply, "threading", fake)
        apply.Watch(directory)._thread.join()
    assert pauses[:9] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    assert pauses[9:] == [0.1, 0.1, 0.1, 0.1] and tries[:9] == list(range(1, 10))


@pytest.mark.parametrize("shared", [False, True])
def test_a_staged_file_that_is_not_synced_is_closed(root: Path, shared: bool) -> None:
    files = RecordingFiles(
        OsFiles(), fail=lambda call: SyncFailedError("no") if call.name == "fsync" else None
    )
    writer: Any
    if shared:
        writer = staging.SharedWriter(files, str(root), "j", 0, 0)
        writer.write("t", 0, batch("a"), 1)
    else:
        writer = staging.StagedWriter(files, str(root), "t", 0, "j", 0, 0)
        writer.write(batch("a"), 1)
    with pytest.raises(SyncFailedError):
        writer.close(sync=True)
    assert not [path for path in open_paths() if str(root) in path]
