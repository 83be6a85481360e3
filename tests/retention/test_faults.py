"""Every failing call and every crash of expiring and trimming.

Allowed: all was done, nothing, or the first part. The log start is at its old or its new place, every record
from there on is there, and the next try finishes.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lastword.clock import ManualClock
from lastword.errors import LastwordError, StorageError
from lastword.segment import names
from tests.build import every_stop
from tests.fakes import ForgetfulFiles, RecordingFiles, Stopped
from tests.fakes.failing import KINDS, FailingFiles
from tests.partition.logs import indexes_fit, records
from tests.partition.nosync import UNSYNCED
from tests.retention.support import DELETED, HOUR, NOW, Log
from tests.support.exhaustive import stride

SETTINGS = {"cleanup.policy": "delete", "retention.ms": "1h"}


def prepare(root: Path, files: object = UNSYNCED) -> None:
    """Make two old segments, one whose end is young, and an active segment; all synced."""
    Log(root, files=files, **SETTINGS).fill(10, age_ms=2 * HOUR).fill(8).close()


def expire(log: Log) -> None:
    log.expire()


def expire_all(log: Log) -> None:
    log.clock.advance(3 * HOUR)
    log.expire()


def trim_inside(log: Log) -> None:
    log.trim(12)


WORK = {"expire": (expire, 10), "expire all": (expire_all, 18), "trim": (trim_inside, 12)}


def check(root: Path, goal: int, done: bool, label: str = "") -> None:
    """Check, at two openings, that no record from the log start on is lost and the end is unchanged."""
    clock = ManualClock(NOW)
    for _ in range(2):
        log = Log(root, clock)
        start = log.log.log_start
        assert start in ((goal,) if done else (0, goal)), label
        assert log.log.log_end == 18, label
        assert [offset for offset, _, _ in records(log.log)] == list(range(start, 18)), label
        assert indexes_fit(log.log), label
        log.log.remove_prefix()
        assert log.bases[0] <= start and (len(log.bases) == 1 or log.bases[1] > start), label
        log.close()
        assert log.named(DELETED) == [] and not list(root.rglob("*.tmp")), label
    log = Log(root, clock)
    log.trim(goal)
    assert log.log.log_start == goal
    log.close()


@pytest.mark.parametrize("work", WORK)
def test_every_kill(tmp_path: Path, work: str) -> None:
    prepare(tmp_path / "start")
    run, goal = WORK[work]

    def stopped_at(number: int) -> bool:
        root = tmp_path / "run"
        shutil.copytree(tmp_path / "start", root)
        files = RecordingFiles(UNSYNCED)
        log = Log(root, files=files)
        assert log.log
        files.stop_at = len(files.changes) + number
        finished = False
        try:
            run(log)
            finished = True
        except Stopped:
            pass
        files.stop()
        check(root, goal, finished, f"kill {number}")
        shutil.rmtree(root)
        return finished

    assert every_stop(stopped_at) > 5


@pytest.mark.parametrize(
    "seeds", [pytest.param(1, marks=pytest.mark.quick), pytest.param(12 // stride(4), marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("work", WORK)
def test_every_power_cut(tmp_path: Path, work: str, seeds: int) -> None:
    root = tmp_path / "root"
    root.mkdir()
    prepare(root)
    run, goal = WORK[work]
    files = ForgetfulFiles(root)
    log = Log(root, files=files)
    assert log.log
    run(log)
    files.mark("done")
    log.log.remove_prefix()
    log.home.sync()
    log.home.abandon()
    images = list(files.images(seeds=range(seeds)))
    for image in images[:: 4 if seeds == 1 else 1]:
        image.write(tmp_path / "image")
        check(tmp_path / "image", goal, "done" in image.marks, image.label)
        shutil.rmtree(tmp_path / "image")
    assert len(images) > 20


@pytest.mark.parametrize(
    "kind",
    [pytest.param(fault, marks=pytest.mark.slow if fault in ("EIO", "EROFS") else ()) for fault in KINDS],
)
@pytest.mark.parametrize("work", WORK)
def test_17_every_failing_call(tmp_path: Path, work: str, kind: str) -> None:
    """reliability 17 and 19: full drive, bad drive, read-only, no handles, at the n-th call for every n."""
    prepare(tmp_path / "start")
    run, goal = WORK[work]

    def failing_at(number: int) -> bool:
        root = tmp_path / "run"
        shutil.copytree(tmp_path / "start", root)
        files = FailingFiles(UNSYNCED, kind, number)
        log = Log(root, files=files)
        assert log.log
        files.arm()
        failed: LastwordError | None = None
        try:
            run(log)
        except LastwordError as error:
            failed = error
        start = log.log.log_start if failed is None else None
        assert start in (None, goal)
        if failed is not None and kind != "EIO on fsync":
            files.disarm()
            try:
                run(log)  # the next try finishes, in the same process
                assert log.log.log_start == goal
                failed = None
            except StorageError:
                # After a sync that could not even begin, the partition is offline until it is opened again.
                assert kind == "EMFILE" and "users-0" in str(failed)
        try:
            log.close()
        except LastwordError:
            log.home.abandon()
        check(root, goal, failed is None, f"{kind} {number}")
        shutil.rmtree(root)
        return not files.hit

    assert every_stop(failing_at) >= (0 if kind == "EMFILE" else 1)


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
