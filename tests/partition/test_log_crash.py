"""Appending, rolling, syncing and closing, stopped at every change.

Each test also checks every image that a power cut could leave.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lastword.errors import CorruptBatchError
from lastword.files import DEFAULT
from lastword.partition import PartitionView
from lastword.partition.directory_segments import DirectorySegments
from lastword.testing.unsynced import UNSYNCED
from tests.fakes import ForgetfulFiles, Image, RecordingFiles, Stopped
from tests.fakes.forgetful import keep_all
from tests.partition.logs import fill, indexes_fit, leftovers, make, opened, pair, records
from tests.support.exhaustive import stride


def acked(marks: list[str]) -> tuple[int, int]:
    """Return the counts of records acknowledged at os and at disk before a moment."""
    levels = {"os": 0, "disk": 0}
    for mark in marks:
        level, count = mark.split()
        levels[level] = int(count)
    return max(levels.values()), levels["disk"]


def check_prefix(directory: str, least: int, label: str, *, holes: bool = False) -> None:
    """Check that readers and a recovery find a prefix of the appended records, at least `least` records.

    With `holes`, unsynced bytes may be missing before others that exist. A reader then meets damage before
    sound batches: it must raise an error, not end silently. Recovery cuts there.
    """
    view = PartitionView.load(DirectorySegments(UNSYNCED, directory))
    try:
        seen = records(view)
        assert seen == [pair(n) for n in range(len(seen))], label
        assert len(seen) == view.log_end >= least, label
    except CorruptBatchError as error:
        assert holes and (error.offset is None or error.code != "bad-crc" or error.offset >= least), label
    log, _ = opened(directory, files=UNSYNCED)
    pairs = records(log)
    assert pairs == [pair(n) for n in range(log.log_end)], label
    assert log.log_end >= least, label
    assert log.log_end <= view.log_end, label
    assert leftovers(directory) == [], label
    assert indexes_fit(log), label
    fill(log, 3)
    end = log.log_end
    log.abandon()
    again, second = opened(directory, files=UNSYNCED)
    assert again.log_end == end, label
    assert second.repaired == (), label
    assert records(again) == [pair(n) for n in range(end)], label
    again.close()


def work(directory: str, files: ForgetfulFiles) -> None:
    log, _ = opened(directory, files=files)
    for number in range(20):
        fill(log, 1)
        files.mark(f"os {number + 1}")
        if number in (2, 9, 10, 15):
            log.sync()
            files.mark(f"disk {number + 1}")
    log.close()
    files.mark("disk 20")


@pytest.mark.slow
def test_every_power_cut_leaves_a_prefix(tmp_path: Path) -> None:
    directory = make(tmp_path / "work")
    files = ForgetfulFiles(tmp_path / "work")
    work(directory, files)
    count = 0
    for image in files.images(moments=range(0, len(files.journal) + 1, stride(15)), seeds=range(2)):
        _check_image(image, tmp_path / "image", files)
        count += 1
    assert count > 100


@pytest.mark.quick
def test_some_power_cuts_leave_a_prefix(tmp_path: Path) -> None:
    directory = make(tmp_path / "work")
    files = ForgetfulFiles(tmp_path / "work")
    work(directory, files)
    for image in files.images(moments=range(0, len(files.journal) + 1, 23), seeds=range(1)):
        _check_image(image, tmp_path / "image", files)


def test_every_kill_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    directory = make(tmp_path / "work")
    files = ForgetfulFiles(tmp_path / "work")
    work(directory, files)
    for upto in range(0, len(files.journal) + 1, stride(3)):
        image = files.crash(upto, keep_all, f"kill after {upto}")
        at_os, _ = acked(image.marks)
        image.write(tmp_path / "image")
        check_prefix(str(tmp_path / "image" / "users-0"), at_os, f"{image.label}\n{files.story()}")
        shutil.rmtree(tmp_path / "image")


def _check_image(image: Image, target: Path, files: ForgetfulFiles) -> None:
    _, at_disk = acked(image.marks)
    image.write(target)
    directory = target / "users-0"
    directory.mkdir(exist_ok=True)
    check_prefix(str(directory), at_disk, f"{image.label}\n{files.story()}", holes=True)
    shutil.rmtree(target)


def test_a_stop_with_a_torn_write(tmp_path: Path) -> None:
    for stop in range(0, 60, 7):
        directory = make(tmp_path / f"stop{stop}")
        files = RecordingFiles(DEFAULT, stop_at=stop, torn=True)
        appended = 0
        try:
            log, _ = opened(directory, files=files)
            for _ in range(20):
                fill(log, 1)
                appended += 1
            log.close()
        except Stopped:
            pass
        check_prefix(directory, appended, f"stop {stop}")


def test_a_hole_in_what_was_never_synced_ends_the_log(tmp_path: Path) -> None:
    """Pages may reach the drive in any order: an unsynced page is lost, and a later page is written."""
    directory = make(tmp_path)
    log, _ = opened(directory)
    fill(log, 2)
    log.sync()
    fill(log, 3)
    path = log.active.file
    third = next(h for h in log.active.headers() if h.base_offset == 2)
    log.abandon()
    cut_bytes = Path(path).stat().st_size - third.position  # the batches, and zeros behind them
    with Path(path).open("r+b") as file:
        file.seek(third.position)
        file.write(bytes(third.size))
    log, recovery = opened(directory)
    assert log.log_end == 2
    assert recovery.repaired[0].code == "torn-tail" and recovery.repaired[0].offset == 2
    assert recovery.cut_bytes == cut_bytes >= 3 * third.size
    assert Path(path).stat().st_size == third.position
