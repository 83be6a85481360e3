"""Copying a partition into another log directory, with every crash of a copy that replaces segments."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pytest

import lastword
from lastword.clock import ManualClock
from lastword.errors import DiskFullError, LastwordError
from lastword.logdir import LogDirectory, TopicPartition
from lastword.logdir.copies import Brought, SourceLog, bring
from lastword.segment import names
from lastword.testing.unsynced import UNSYNCED
from tests.build import every_stop
from tests.fakes import ForgetfulFiles, RecordingFiles
from tests.fakes.failing import FailingFiles
from tests.partition.logs import NOW, indexes_fit, opened_directory, records
from tests.retention.support import raise_log_start
from tests.support.exhaustive import stride

USERS = TopicPartition("users", 0)


def copied(root: Path, target: LogDirectory) -> Brought:
    """Copy users-0 of root/a."""
    with opened_directory(root / "a", "r") as source:
        log = SourceLog.of(source.view(*USERS), source.first_dirty(*USERS))
        return bring(log, target, USERS)


def content(path: Path) -> list:
    with opened_directory(path, "r") as directory:
        return records(directory.view(*USERS))


def prepare(root: Path) -> tuple[list, list]:
    """Make a log in a and its copy in b; then append to a, and clean it. Return the records before and after.

    The first segments of b have to be replaced, its last ones stay, and new ones follow.
    """
    with lastword.open(root / "a", "a", log_cleaner_enable=False, clock=ManualClock(NOW)) as logs:
        topic = logs.create_topic("users", segment_bytes=700, cleanup_policy="compact")
        for number in range(24):
            topic.append(b"same" if number < 8 else b"key %d" % number, b"x" * 150)
    lastword.copy(root / "a", root / "b", clock=ManualClock(NOW))
    before = content(root / "b")
    with lastword.open(root / "a", "a", log_cleaner_enable=False, clock=ManualClock(NOW)) as logs:
        topic = logs["users"]
        logs.clean("users")
        topic.lease("reader", position=24)
        for number in range(24, 32):
            topic.append(b"key %d" % number, b"y" * 150)
    return before, content(root / "a")


def check(root: Path, before: list, after: list, *, done: bool = False) -> None:
    """Check that the copy is a prefix of the old or of the new log, and that the next copy ends the work."""
    target = opened_directory(root / "b")
    log = target.log(*USERS)
    there = records(log)
    assert there in (before[: len(there)], after[: len(there)])
    assert indexes_fit(log)
    assert not done or there == after
    copied(root, target)
    assert records(target.log(*USERS)) == after and indexes_fit(target.log(*USERS))
    target.close()
    assert (root / "b" / names.CLEAN_SHUTDOWN).exists()
    private = root / "b" / "users-0" / names.PRIVATE
    assert not (private / names.COPY).exists() and (private / "lease-reader").exists()


def test_a_copy_sends_what_differs(tmp_path: Path) -> None:
    _, after = prepare(tmp_path)
    kept = {path.name: path.stat().st_ino for path in (tmp_path / "b" / "users-0").glob("*.log")}
    with opened_directory(tmp_path / "b") as target:
        first = copied(tmp_path, target)
        assert first.copied_segments == 4 and first.removed_segments == 2 and first.whole
        assert copied(tmp_path, target) == Brought(0, 0, 0, True)
        assert records(target.log(*USERS)) == after
    now = {path.name: path.stat().st_ino for path in (tmp_path / "b" / "users-0").glob("*.log")}
    assert len(kept.items() & now.items()) == 5
    times = [
        {path.name: path.stat().st_mtime_ns // 10**6 for path in (tmp_path / name / "users-0").glob("*.log")}
        for name in "ab"
    ]
    assert times[0] == times[1]
    assert lastword.open(tmp_path / "b").verify().ok


def test_a_rewrite_of_the_same_size_is_sent(tmp_path: Path) -> None:
    """Size, name and time of a rewritten log may be those of the log before; its number is another."""
    prepare(tmp_path)
    with opened_directory(tmp_path / "b") as target:
        copied(tmp_path, target)
        log = min((tmp_path / "a" / "users-0").glob("*.log"))
        facts = log.stat()
        shutil.copy2(log, tmp_path / "other")
        (tmp_path / "other").rename(log)
        assert (log.stat().st_size, log.stat().st_mtime_ns) == (facts.st_size, facts.st_mtime_ns)
        assert copied(tmp_path, target).copied_segments == 1


def test_segments_that_the_target_has_rewritten_are_sent_again(tmp_path: Path) -> None:
    _, after = prepare(tmp_path)
    with lastword.open(tmp_path / "b", "a", log_cleaner_enable=False, clock=ManualClock(NOW)) as logs:
        logs.clean()
    with opened_directory(tmp_path / "b") as target:
        copied(tmp_path, target)
        assert records(target.log(*USERS)) == after


def test_the_log_start_of_a_copy_is_that_of_its_source_after_a_kill(tmp_path: Path) -> None:
    prepare(tmp_path)
    target = opened_directory(tmp_path / "b")
    raise_log_start(target, *USERS, 3)
    copied(tmp_path, target)
    assert target.log(*USERS).log_start == 0
    target.abandon()
    with opened_directory(tmp_path / "b") as target:
        assert target.log(*USERS).log_start == 0


def test_a_copy_that_fails_leaves_the_log_start(tmp_path: Path) -> None:
    prepare(tmp_path)
    files = RecordingFiles(UNSYNCED)
    with opened_directory(tmp_path / "b", files=files) as target:
        raise_log_start(target, *USERS, 3)
        files.fail = lambda call: DiskFullError("planted") if call.path.endswith("/copied.tmp") else None
        with pytest.raises(DiskFullError):
            copied(tmp_path, target)
        files.fail = None
        assert target.log(*USERS).log_start == 3
    with opened_directory(tmp_path / "b") as target:
        assert target.log(*USERS).log_start == 3


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(1), marks=pytest.mark.quick),
        pytest.param(range(6)[:: stride(3)], marks=pytest.mark.slow),
    ],
)
def test_kills_and_power_cuts(tmp_path: Path, seeds: range) -> None:
    root = tmp_path / "root"
    before, after = prepare(root)
    files = ForgetfulFiles(root)
    target = opened_directory(root / "b", files=files)
    target.log(*USERS)
    copied(root, target)
    files.mark("copied")
    target.close()
    images = list(files.images(range(0, len(files.journal) + 1, stride(6)), seeds=seeds))
    assert len(images) > 100
    every = 100 if len(seeds) == 1 else stride(18)
    kills = files.kills(range(0, len(files.journal) + 1, every))
    for image in [*images[::every], *kills]:
        image.write(tmp_path / "image")
        check(tmp_path / "image", before, after, done="copied" in image.marks)


@pytest.mark.slow
def test_every_failing_call(tmp_path: Path) -> None:
    """A full drive, at any call: a typed error, and the next copy ends the work."""
    before, after = prepare(tmp_path / "start")

    def failing_at(number: int) -> bool:
        root = tmp_path / "run"
        shutil.copytree(tmp_path / "start", root)
        files = FailingFiles(UNSYNCED, "ENOSPC", number)
        target = opened_directory(root / "b", files=files)
        files.arm()
        with suppress(DiskFullError):
            copied(root, target)
        files.disarm()
        try:
            target.close()
        except LastwordError:
            target.abandon()
        check(root, before, after)
        shutil.rmtree(root)
        return not files.hit

    assert every_stop(failing_at, stride(4)) > 20
