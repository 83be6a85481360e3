"""A cleaning with little room: it frees what it can, and uses no block for what cannot be done."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.errors import DiskFullError, PartialFailure
from lastword.testing.unsynced import UnsyncedFiles
from tests.support.damage import flip


class FullFiles(UnsyncedFiles):
    """A drive with this much room."""

    room = 1 << 40

    def free_bytes(self, path: Any) -> int:
        return self.room


def fill(root: Path, live: list[int], *, garbage: int = 300 << 10, closed: tuple[int, ...] = ()) -> None:
    """Write a partition for each size of its newest value; those in `closed` have a closed segment."""
    with lastword.open(root, "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic("t", len(live), cleanup_policy="compact")
        for number, size in enumerate(live):
            for value in (os.urandom(garbage), os.urandom(garbage), os.urandom(size)):
                topic.append(b"key", value, partition=number)
            if number in closed:
                logs.dirs.log("t", number).roll()


def logs_of(root: Path, partition: int) -> list[str]:
    return sorted(path.name for path in (root / f"t-{partition}").glob("*.log"))


def test_the_smallest_output_first_and_closed_segments_before_active_ones(tmp_path: Path) -> None:
    """Every active segment was closed first, in the order of the numbers, until no block was left."""
    fill(tmp_path, [200_000, 3000, 2000, 1000], closed=(1,))
    files = FullFiles()
    with lastword.open(tmp_path, "a", files=files, log_cleaner_enable=False) as logs:
        files.room = 64 << 10
        with pytest.raises(PartialFailure) as caught:
            logs.clean()
        assert logs_of(tmp_path, 0) == [f"{0:020}.log"]  # not closed
    failed = caught.value.errors
    assert len(failed) == 1 and isinstance(failed[0], DiskFullError)
    assert failed[0].needed_bytes is not None and failed[0].needed_bytes > 200_000
    assert "t-0 needs 2" in str(failed[0])
    assert [result.partition for result in caught.value.results] == [1, 3, 2]


def test_enough_room_keeps_the_order(tmp_path: Path) -> None:
    fill(tmp_path, [3000, 2000, 1000])
    with lastword.open(tmp_path, "a", files=FullFiles(), log_cleaner_enable=False) as logs:
        assert [result.partition for result in logs.clean()] == [0, 1, 2]


@pytest.fixture
def small_drive(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB in memory; only the root user may mount it."""
    drive = tmp_path / "drive"
    drive.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(drive)]
    if os.geteuid() or not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("cannot mount a file system")
    yield drive
    subprocess.run(["umount", "-l", str(drive)], check=True)


def test_a_full_drive_is_cleaned(small_drive: Path) -> None:
    """Its first partitions need more than is free: they took the last blocks, and nothing was freed."""
    live = [150_000, 150_000, 120_000, 120_000, *[1000] * 6]
    fill(small_drive / "data", live)
    with (small_drive / "filler").open("wb") as filler:
        filler.write(bytes(_free(small_drive) - (80 << 10)))
    assert _free(small_drive) == 80 << 10
    with lastword.open(small_drive / "data", "a", log_cleaner_enable=False) as logs:
        logs.clean()
    assert _free(small_drive) > len(live) * (500 << 10)


def _free(path: Path) -> int:
    facts = os.statvfs(path)
    return facts.f_bavail * facts.f_frsize


def test_damage_is_reported_beside_what_is_cleaned(tmp_path: Path) -> None:
    """The partition is in quarantine for the second pass, which must not drop the error of the first."""
    fill(tmp_path, [3000, 2000, 1000], closed=(0, 1))
    path = tmp_path / "t-0" / f"{0:020}.log"
    flip(path, 1000)
    files = FullFiles()
    with lastword.open(tmp_path, "a", files=files, log_cleaner_enable=False) as logs:
        files.room = 64 << 10
        with pytest.raises(PartialFailure) as caught:
            logs.clean()
    assert [error.code for error in caught.value.errors] == ["bad-crc"]
    assert [result.partition for result in caught.value.results] == [1, 2]
