from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

import lastword
from lastword.errors import CorruptFileError
from lastword.files import DEFAULT
from lastword.logdir.checkpoints import (
    LogStart,
    OffsetCheckpoint,
    TopicPartition,
    read_offsets,
)
from lastword.logdir.identity import new_id, read_topic_id
from lastword.logdir.log_dir import LogDirectory
from lastword.partition import checkpoint_file, removal_log
from lastword.partition.checkpoint_file import read_offset_lines
from lastword.partition.staged_batches import LogEnds, incomplete_commit_offset
from lastword.segment import names
from lastword.testing.unsynced import UNSYNCED
from tests.fakes.recording import RecordingFiles
from tests.partition.logs import batch


def test_blanks_of_any_number(tmp_path: Path) -> None:
    path = tmp_path / "c"
    path.write_bytes(b"0\n1\na   0 \t 7\n")
    assert read_offsets(DEFAULT, str(path)) == {TopicPartition("a", 0): 7}


def test_partition_metadata(tmp_path: Path) -> None:
    path = tmp_path / "partition.metadata"
    assert read_topic_id(DEFAULT, str(tmp_path)) is None
    path.write_bytes(b"version: 0\ntopic_id: Tz1YQeE9QeWVYn2ySRjWHg")
    assert read_topic_id(DEFAULT, str(tmp_path)) == "Tz1YQeE9QeWVYn2ySRjWHg"
    for bad in (
        b"",
        b"version: 0",
        b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
        b"\xff",
        b"topic_id: x\nversion: y",
    ):
        path.write_bytes(bad)
        with pytest.raises(CorruptFileError):
            read_topic_id(DEFAULT, str(tmp_path))


def test_ids() -> None:
    ids = {new_id(random.Random(seed)) for seed in range(200)}
    assert len(ids) == 200 and all(len(i) == 22 and not i.startswith("-") for i in ids)


def test_one_line_is_told_without_reading_the_file_again(tmp_path: Path) -> None:
    """The new line is returned after every change, by any writer."""
    files = RecordingFiles(UNSYNCED)
    checkpoint = OffsetCheckpoint(files, str(tmp_path), "offsets")
    first, second = TopicPartition("a", 0), TopicPartition("a", 1)
    assert checkpoint.get(first) is None
    checkpoint.update({first: 5})
    assert [checkpoint.get(first), checkpoint.get(second), checkpoint.get(first)] == [5, None, 5]
    assert files.count("pread") == 1
    checkpoint.update({second: 6})
    assert [checkpoint.get(first), checkpoint.get(second)] == [5, 6]
    OffsetCheckpoint(UNSYNCED, str(tmp_path), "offsets").update({first: 70})
    assert checkpoint.get(first) == 70
    (tmp_path / "offsets").unlink()
    assert checkpoint.get(first) is None


@pytest.mark.parametrize("partitions", [10, 40])
def test_files_of_the_root_are_read_once_for_all_partitions(tmp_path: Path, partitions: int) -> None:
    """They have a line for each partition, so reading them for each partition would be quadratic."""
    with LogDirectory.open(tmp_path, "a", UNSYNCED) as directory:
        directory.create_topic("t", partitions)
        logs = directory.logs([("t", number) for number in range(partitions)])
        for log in logs.values():
            log.append_batches([batch((b"a", b"1"), (b"b", b"2"))])
        directory.raise_log_starts({TopicPartition(*tp): LogStart(1, "a test") for tp in logs})
        directory.set_first_dirty("t", 0, 1)
    LogEnds("commit", {f"t-{number}": 2 for number in range(partitions)}).save(UNSYNCED, str(tmp_path))
    root_files = [path for path in tmp_path.iterdir() if path.is_file()]
    for path in root_files:
        os.utime(path, (1, 1))
    for number in range(partitions):
        (tmp_path / f"t-{number}" / "lastword" / "synced").unlink()  # the recovery points are witnesses then
    files = RecordingFiles(UNSYNCED)
    directory = LogDirectory.open(tmp_path, "r", files)
    for number in range(partitions):
        view = directory.view("t", number)
        assert (view.log_start, view.log_end) == (1, 2)
        assert incomplete_commit_offset(files, view.directory) == 2
        assert removal_log.first_dirty(files, view.directory) == (1 if number == 0 else 0)
    reads = Counter(Path(call.path).name for call in files.calls if call.name == "open_read")
    checkpoints = names.LOG_STARTS, names.RECOVERY_POINTS, names.FIRST_DIRTY, names.BEGUN
    assert {name: reads[name] for name in checkpoints} == dict.fromkeys(checkpoints, 1)


def test_a_file_of_the_root_is_read_again_when_it_was_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_file, "SETTLED_MS", 5000)
    path, started = tmp_path / names.LOG_STARTS, int(time.time())
    for offset, age_seconds in ((1, 20), (2, 10), (3, 0), (4, 0)):
        path.write_bytes(b"0\n1\nt 0 %d\n" % offset)  # under the same number: as if it was used again
        os.utime(path, (started - age_seconds, started - age_seconds))
        assert read_offset_lines(DEFAULT, str(path)).offsets == {"t-0": offset}
    path.unlink()
    assert read_offset_lines(DEFAULT, str(path)).offsets == {}


def test_a_start_in_remote_storage_stays(tmp_path: Path) -> None:
    """With tiered storage a broker checkpoints a log start below the first segment of its drive, and starts
    at 0 without it: records that were deleted would be read again from the remote storage.
    """
    root = tmp_path / "data"
    with lastword.open(root, "a") as logs:
        for name in ("tiered", "trimmed"):
            logs.create_topic(name, cleanup_policy="delete", segment_bytes="1KiB").extend(
                [(b"k%d" % n, b"v" * 400) for n in range(9)]
            )
        first = logs.dirs.log("tiered", 0).segments[0].base_offset
        logs["trimmed"].trim(1)
    for path in (root / "tiered-0").glob(f"{first:020d}.*"):
        path.unlink()  # only the remote storage has the segment
    checkpoint = root / "log-start-offset-checkpoint"
    checkpoint.write_text("0\n2\ntiered 0 1\ntrimmed 0 1\n")
    with lastword.open(root, "a") as logs:
        assert logs["tiered"].bounds()[0][0] > 1
        logs["tiered"].append(b"k", b"v")
    assert checkpoint.read_text() == "0\n2\ntiered 0 1\ntrimmed 0 1\n"
