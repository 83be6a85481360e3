"""The keys of a map in a mapped file: the same results, and anonymous memory only for the slots."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from lastword.errors import DiskFullError, StorageError
from lastword.files import scratch
from lastword.files.scratch import Scratch, new_path
from lastword.resolve import MapFull, RunningResolution
from tests.naive.pack import Record, encode_batch
from tests.naive.strategies import T
from tests.resolve.support import MemorySegment, segments
from tests.resolve.test_resolver import dense, synthetic

SALT = b"salt"


def test_keys_in_a_file_or_in_memory(tmp_path: Path) -> None:
    sources = synthetic(1, 3000, 700, 500)
    plain = RunningResolution(map_bytes=1 << 20, salt=SALT)
    spilled = RunningResolution(map_bytes=1 << 14, salt=SALT, scratch=str(tmp_path))
    for running in (plain, spilled):
        running.add_segments(sources[:3])
        running.add_segments(sources[3:])
    assert spilled.facts() == plain.facts()
    assert spilled.tombstones().copies.tolist() == plain.tombstones().copies.tolist()
    assert not list(tmp_path.iterdir()), "the file has no name"
    back = RunningResolution.from_parts(spilled.to_parts(), map_bytes=1 << 14, scratch=str(tmp_path))
    assert back.facts() == plain.facts()


def test_only_slots_are_anonymous(tmp_path: Path) -> None:
    """Keys of 200 bytes, more than a megabyte together: the file grows, the budget counts only the slots."""
    count = 20_000
    rows = np.zeros((count, 200), np.uint8)
    rows[:, :8] = np.arange(count, dtype=np.uint64).reshape(-1, 1).view(np.uint8)
    running = RunningResolution(map_bytes=10 * count + 4096, salt=SALT, scratch=str(tmp_path))
    running.add_segments(dense(rows))
    assert running.distinct_keys == count
    assert running.memory_bytes < 12 * count
    with pytest.raises(MapFull):
        RunningResolution(map_bytes=10 * count, salt=SALT).add_segments(dense(rows))


def test_a_budget_too_small_for_the_slots(tmp_path: Path) -> None:
    records = [Record(i, T, b"%05d" % i, b"") for i in range(400)]
    running = RunningResolution(map_bytes=2048, salt=SALT, scratch=str(tmp_path))
    with pytest.raises(MapFull):
        running.add_segments(segments([encode_batch(records)], []))


def test_a_full_drive_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = scratch.allocate

    def full(fd: int, size: int) -> None:
        if size > 1 << 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(fd, size)

    monkeypatch.setattr(scratch, "allocate", full)
    records = [Record(i, T, b"%05d" % i + bytes(3000), b"") for i in range(500)]
    running = RunningResolution(map_bytes=1 << 16, salt=SALT, scratch=str(tmp_path))
    with pytest.raises(DiskFullError, match=r"cannot enlarge .*lastword-scratch-"):
        running.add_segments([MemorySegment(encode_batch(records), 0, 500)])
    assert not list(tmp_path.iterdir())


def test_scratch_bytes_stay_while_it_grows(tmp_path: Path) -> None:
    scratch = Scratch(str(tmp_path / "one"))
    small = scratch.grow(4096)
    small[:3] = b"abc"
    large = scratch.grow(1 << 16)
    large[3:6] = b"def"
    assert small[:6] == large[:6] == b"abcdef"
    scratch.close()
    with pytest.raises(StorageError, match="cannot open"):
        Scratch(str(tmp_path / "absent" / "one"))


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    """A process was killed between the creation of the file and the removal of its name."""
    left = Path(new_path(str(tmp_path)))
    for name in (left.name, "lastword-scratch-notes", "mine"):
        (tmp_path / name).write_bytes(b"x")
    new_path(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lastword-scratch-notes", "mine"]
