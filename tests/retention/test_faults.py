"""Every failing call and every crash of expiring and trimming, of one partition and of many together.

Allowed: all was done, nothing, or the first part. The log start is at its old or its new place, every record
from there on is there, and the next try finishes. A partition that fails changes nothing in the others.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lastword import retention
from lastword.clock import ManualClock
from lastword.errors import DiskFullError, LastwordError, StorageError
from lastword.logdir.checkpoints import PartitionCheckpoints, TopicPartition
from lastword.segment import names
from lastword.testing.unsynced import UNSYNCED
from tests.build import every_stop
from tests.fakes import ForgetfulFiles, RecordingFiles
from tests.fakes.failing import KINDS, FailingFiles
from tests.partition.logs import indexes_fit, records
from tests.retention.support import DELETED, HOUR, NOW, Log
from tests.support.exhaustive import stride
from tests.support.waiting import until

SETTINGS = {"cleanup.policy": "delete", "retention.ms": "1h"}


def prepare(root: Path, partitions: int = 1) -> None:
    """Make two old segments, one whose end is young, and an active segment; all synced."""
    for number in range(partitions):
        log = Log(root, partition=number, partitions=partitions, **SETTINGS)
        log.fill(10, age_ms=2 * HOUR).fill(8).close()


Errors = dict[TopicPartition, LastwordError]


def expire(log: Log, partitions: list[TopicPartition]) -> Errors:
    results = retention.expire(log.home, partitions)
    return {tp: result for tp, result in results.items() if isinstance(result, LastwordError)}


def expire_all(log: Log, partitions: list[TopicPartition]) -> Errors:
    log.clock.advance(3 * HOUR)
    return expire(log, partitions)


def trim_inside(log: Log, partitions: list[TopicPartition]) -> Errors:
    return retention.trim(log.home, dict.fromkeys(partitions, 12))


Run = Callable[[Log, list[TopicPartition]], Errors]
WORK: dict[str, tuple[Run, int, int]] = {
    "expire": (expire, 10, 1),
    "expire all": (expire_all, 18, 1),
    "trim": (trim_inside, 12, 1),
    "expire all of two": (expire_all, 18, 2),
    "trim two": (trim_inside, 12, 2),
}
"""The call, the log start after it, and the number of partitions."""
WORKS = pytest.mark.parametrize(
    "work",
    [
        pytest.param(name, marks=pytest.mark.slow if partitions > 1 else ())
        for name, (_, _, partitions) in WORK.items()
    ],
)


def open_all(log: Log) -> list[TopicPartition]:
    partitions = log.home.topic_partitions()
    log.home.logs(partitions)
    return partitions


def check(root: Path, goal: int, done: bool, label: str = "", partitions: int = 1) -> None:
    for number in range(partitions):
        check_partition(root, goal, done, label, number)


def check_partition(root: Path, goal: int, done: bool, label: str, number: int) -> None:
    """Check, at two openings, that no record from the log start on is lost and the end is unchanged."""
    clock = ManualClock(NOW)
    for _ in range(2):
        log = Log(root, clock, partition=number)
        start = log.log.log_start
        assert start in ((goal,) if done else (0, goal)), label
        assert log.log.log_end == 18, label
        assert [offset for offset, _, _ in records(log.log)] == list(range(start, 18)), label
        assert indexes_fit(log.log), label
        log.log.remove_prefix()
        assert log.bases[0] <= start and (len(log.bases) == 1 or log.bases[1] > start), label
        log.close()
        assert log.named(DELETED) == [], label
        assert not [*root.glob("*.tmp"), *log.path.rglob("*.tmp")], label
    log = Log(root, clock, partition=number)
    log.trim(goal)
    assert log.log.log_start == goal
    log.close()


@pytest.mark.parametrize(
    "kind",
    [pytest.param(fault, marks=pytest.mark.slow if fault in ("EIO", "EROFS") else ()) for fault in KINDS],
)
@WORKS
def test_17_every_failing_call(tmp_path: Path, work: str, kind: str) -> None:
    """reliability 17 and 19: full drive, bad drive, read-only, no handles, at the n-th call for every n."""
    run, goal, partitions = WORK[work]
    prepare(tmp_path / "start", partitions)

    def failing_at(number: int) -> bool:
        root = tmp_path / "run"
        shutil.copytree(tmp_path / "start", root)
        files = FailingFiles(UNSYNCED, kind, number)
        log = Log(root, files=files)
        opened = open_all(log)
        files.arm()
        failed = run(log, opened)
        for tp in opened:
            assert tp in failed or log.home.log(*tp).log_start == goal
        if kind != "EIO on fsync":  # after which the fake refuses every change
            assert len(set(map(id, failed.values()))) <= 1, "only the checkpoint's failure is that of two"
        if failed and kind != "EIO on fsync":
            files.disarm()
            again = run(log, opened)  # the next try finishes, in the same process
            for tp in opened:
                assert tp in again or log.home.log(*tp).log_start == goal
            for tp, error in again.items():
                # After a sync that could not even begin, the partition is offline until it is opened again.
                assert kind == "EMFILE" and isinstance(error, StorageError) and str(tp) in str(failed[tp])
            failed = again
        try:
            log.close()
        except LastwordError:
            log.home.abandon()
        check(root, goal, not failed, f"{kind} {number}", partitions)
        shutil.rmtree(root)
        return not files.hit

    assert every_stop(failing_at, stride(2) if partitions == 1 else stride(10)) >= (
        0 if kind == "EMFILE" else 1
    )


def test_files_of_a_removal_that_failed_half_way_go_after_the_delay(tmp_path: Path) -> None:
    """They stayed, with all of their bytes, until the next opening."""
    prepare(tmp_path)
    files = RecordingFiles(UNSYNCED)
    log = Log(tmp_path, files=files)
    (partition,) = open_all(log)
    second = names.segment_file(5, names.LOG)
    files.fail = lambda call: (
        StorageError("no") if call.name == "rename" and call.path.endswith(second) else None
    )
    assert list(expire(log, [partition])) == [partition] and log.bases == [5, 10, 15]
    assert log.named(DELETED)
    files.fail = None
    log.clock.advance(log.log.config.file_delete_delay_ms + 1)
    log.log.remove_deferred()
    assert log.named(DELETED) == [] and log.bases == [5, 10, 15]
    log.close()


def test_a_power_cut_brings_no_removed_record_back(tmp_path: Path) -> None:
    """The log start is removed from the checkpoint only when the removed names are durably gone."""
    root = tmp_path / "root"
    root.mkdir()
    prepare(root)
    files = ForgetfulFiles(root)
    log = Log(root, files=files)
    assert log.log
    log.home.sync()  # so that the next sync has nothing left of the opening
    log.expire()
    log.home.sync()  # removes the line from the checkpoint
    assert "users" not in (root / names.LOG_STARTS).read_text()
    image = files.crash()
    image.write(tmp_path / "image")
    assert Log(tmp_path / "image").log.log_start == 10
    log.home.abandon()


# ---------------------------------------------------------------- the checkpoint of many partitions


THREE = [TopicPartition("users", number) for number in range(3)]


def many(root: Path, files: Any = UNSYNCED) -> Log:
    prepare(root, 3)
    log = Log(root, files=files)
    log.home.logs(THREE)
    return log


def tree(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("run", [expire, trim_inside])
def test_many_log_starts_are_durable_together_before_the_first_file_is_removed(
    tmp_path: Path, run: Run
) -> None:
    files = RecordingFiles(UNSYNCED)
    log = many(tmp_path, files)
    begin = len(files.calls)
    assert run(log, THREE) == {}
    calls = files.calls[begin:]
    durable = [at for at, call in enumerate(calls) if call.name == "fsync_dir" and call.path == str(tmp_path)]
    removed = [at for at, call in enumerate(calls) if str(call.detail).endswith(DELETED)]
    assert len(durable) == 1 and len(removed) >= 6 and durable[0] < removed[0]
    assert any(call.name == "fsync_dir" and "users-" in call.path for call in calls[removed[-1] :])
    assert not any(call.name == "unlink" and call.path.endswith(DELETED) for call in calls)
    log.close()


@pytest.mark.parametrize("run", [expire, trim_inside])
def test_a_checkpoint_that_cannot_be_written_leaves_every_partition_as_it_was(
    tmp_path: Path, run: Run
) -> None:
    def full(call: Any) -> LastwordError | None:
        return DiskFullError("full") if call.path.endswith(names.LOG_STARTS + ".tmp") else None

    files = RecordingFiles(UNSYNCED, fail=None)
    log = many(tmp_path, files)
    before = tree(tmp_path)
    files.fail = full
    assert {type(error) for error in run(log, THREE).values()} == {DiskFullError}
    assert tree(tmp_path) == before and log.bases == [0, 5, 10, 15]
    files.fail = None
    log.home.sync()
    assert (tmp_path / names.LOG_STARTS).read_text() == "0\n0\n", "a log start that was not raised"
    assert run(log, THREE) == {}
    log.close()


def test_checkpoints_that_are_written_between_two_logs_keep_the_log_starts_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync writes the log starts of all logs, also of those whose log start is only in the checkpoint."""
    log = many(tmp_path)
    real = PartitionCheckpoints._raise_log_start
    seen = []

    def sync_first(self: Any, *given: Any) -> None:
        log.home.sync()
        seen.append(log.home.checkpoints.log_starts.read())
        real(self, *given)

    monkeypatch.setattr(PartitionCheckpoints, "_raise_log_start", sync_first)
    assert trim_inside(log, THREE) == {}
    assert seen == [{("users", number): 12 for number in range(3)}] * 3
    log.close()


def test_a_partition_that_fails_is_left_out_of_the_checkpoint(tmp_path: Path) -> None:
    log = many(tmp_path)
    starts = {TopicPartition("users", number): offset for number, offset in enumerate((12, 99, 13))}
    errors = retention.trim(log.home, starts)
    assert [str(tp) for tp in errors] == ["users-1"]
    assert log.home.checkpoints.log_starts.read() == {("users", 0): 12, ("users", 2): 13}
    assert [log.home.log("users", number).log_start for number in range(3)] == [12, 0, 13]
    log.close()


def held_elsewhere(log: Log, number: int) -> Iterator[None]:
    """Hold the claim of a partition in another thread, until the generator continues."""
    claimed, release = threading.Event(), threading.Event()

    def hold() -> None:
        with log.home.claim("users", number):
            claimed.set()
            release.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    assert claimed.wait(10)
    yield
    release.set()
    thread.join()


@pytest.mark.parametrize("number", range(3))
def test_a_claimed_partition_is_left_out_or_waited_for(tmp_path: Path, number: int) -> None:
    """A thread that waits for a partition holds no claim, and has finished the partitions before."""
    log = many(tmp_path)
    holding = held_elsewhere(log, number)
    next(holding)
    others = [tp for tp in THREE if tp.partition != number]
    assert list(retention.expire(log.home, THREE, wait=False)) == others
    log.clock.advance(3 * HOUR)
    waiting = threading.Thread(target=lambda: retention.expire(log.home, THREE))
    waiting.start()
    until(lambda: log.home.wanted("users", number))
    for tp in others:
        with log.home.try_claim(*tp) as free:
            assert free
        assert log.home.log(*tp).log_start == (18 if number else 10)
    next(holding, None)
    waiting.join(10)
    assert [log.home.log(*tp).log_start for tp in THREE] == [18] * 3
    log.close()
