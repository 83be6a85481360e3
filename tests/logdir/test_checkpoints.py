from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from lastword.errors import CorruptFileError
from lastword.files import DEFAULT
from lastword.logdir.checkpoints import (
    Checkpoints,
    LogStart,
    OffsetCheckpoint,
    TopicPartition,
    read_offsets,
)
from lastword.logdir.identity import format_partition_metadata, new_id, read_topic_id
from lastword.logdir.log_dir import LogDirectory
from lastword.partition import checkpoint_file, removal_log
from lastword.partition.checkpoint_file import EpochEntry, LeaderEpochs, read_offset_lines
from lastword.partition.staged_batches import LogEnds, incomplete_commit_offset
from lastword.segment import names
from lastword.testing.unsynced import UNSYNCED
from tests.fakes.recording import RecordingFiles
from tests.partition.logs import batch


def test_golden(tmp_path: Path) -> None:
    checkpoints = Checkpoints(DEFAULT, str(tmp_path))
    checkpoints.first_dirty.update({TopicPartition("orders", 3): 42})
    path = tmp_path / "cleaner-offset-checkpoint"
    assert path.read_bytes() == b"0\n1\norders 3 42\n"
    assert read_offsets(DEFAULT, str(path)) == {TopicPartition("orders", 3): 42}
    checkpoints.first_dirty.update({}, drop=[TopicPartition("orders", 3)])
    assert path.read_bytes() == b"0\n0\n"


def test_absent_or_empty_is_an_empty_map(tmp_path: Path) -> None:
    path = tmp_path / "cleaner-offset-checkpoint"
    assert read_offsets(DEFAULT, str(path)) == {}
    path.write_bytes(b"")
    assert read_offsets(DEFAULT, str(path)) == {}


def test_blanks_of_any_number(tmp_path: Path) -> None:
    path = tmp_path / "c"
    path.write_bytes(b"0\n1\na   0 \t 7\n")
    assert read_offsets(DEFAULT, str(path)) == {TopicPartition("a", 0): 7}


def test_partition_metadata(tmp_path: Path) -> None:
    assert (
        format_partition_metadata("Tz1YQeE9QeWVYn2ySRjWHg") == b"version: 0\ntopic_id: Tz1YQeE9QeWVYn2ySRjWHg"
    )
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


class TestLeaderEpochs:
    def epochs(self, path: Path, *entries: tuple[int, int]) -> LeaderEpochs:
        return LeaderEpochs(DEFAULT, str(path), [EpochEntry(*e) for e in entries])

    def listed(self, epochs: LeaderEpochs) -> list[tuple[int, int]]:
        return [(e.epoch, e.start_offset) for e in epochs.entries]

    def test_assign(self, tmp_path: Path) -> None:
        epochs = self.epochs(tmp_path)
        epochs.assign(0, 0)
        assert (tmp_path / "leader-epoch-checkpoint").read_bytes() == b"0\n1\n0 0\n"
        epochs.assign(0, 7)
        assert self.listed(epochs) == [(0, 0)]
        epochs.assign(2, 10)
        epochs.assign(3, 8)
        assert self.listed(epochs) == [(0, 0), (3, 8)]
        epochs.assign(-1, 9)
        assert self.listed(LeaderEpochs.load(DEFAULT, str(tmp_path))) == [(0, 0), (3, 8)]

    def test_truncate(self, tmp_path: Path) -> None:
        for offset, left in ((8, [(2, 6)]), (9, [(2, 6), (3, 8)])):
            epochs = self.epochs(tmp_path, (2, 6), (3, 8), (4, 11))
            epochs.truncate_from_end(offset)
            assert self.listed(epochs) == left
        for offset, left in (
            (9, [(3, 9), (4, 11)]),
            (15, [(4, 15)]),
            (1, [(2, 6), (3, 8), (4, 11)]),
            (6, [(2, 6), (3, 8), (4, 11)]),
        ):
            epochs = self.epochs(tmp_path, (2, 6), (3, 8), (4, 11))
            epochs.truncate_from_start(offset)
            assert self.listed(epochs) == left


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
