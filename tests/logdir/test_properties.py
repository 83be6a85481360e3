"""Properties 333 to 342: checkpoints, markers, topic ids and directories.

328-332: test_checkpoints.py, by `TestLeaderEpochs`; 340: tests/retention.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lastword.clock import ManualClock
from lastword.errors import CorruptFileError, InconsistentTopicIdError, LogDirLockedError, StorageError
from lastword.files import DEFAULT
from lastword.logdir import LogDirectory, TopicPartition
from lastword.logdir.checkpoints import Checkpoints, OffsetCheckpoint
from lastword.logdir.identity import check_topic_id, format_partition_metadata
from lastword.partition.checkpoint_file import EpochEntry, LeaderEpochs
from lastword.segment import names
from lastword.testing.unsynced import UNSYNCED
from tests.partition.logs import NOW, build_batch

ID, OTHER = "Tz1YQeE9QeWVYn2ySRjWHg", "Uz1YQeE9QeWVYn2ySRjWHg"


def opened(path: Path, mode: str = "a", clock: ManualClock | None = None) -> LogDirectory:
    return LogDirectory.open(path, mode, UNSYNCED, clock or ManualClock(NOW))


def append(logs: LogDirectory, topic: str, partition: int, count: int) -> None:
    log = logs.log(topic, partition)
    for _ in range(count):
        log.append_batch(build_batch(log.log_end))


def epochs(path: Path, *entries: tuple[int, int]) -> LeaderEpochs:
    return LeaderEpochs(UNSYNCED, str(path), [EpochEntry(*entry) for entry in entries])


def listed(leader_epochs: LeaderEpochs) -> list[tuple[int, int]]:
    return [(entry.epoch, entry.start_offset) for entry in leader_epochs.entries]


def test_6X_328_epochs_and_offsets_rise(tmp_path: Path) -> None:
    """6X.328: Epochs and their start offsets strictly increase; a conflicting newer entry is replaced."""
    leader_epochs = epochs(tmp_path)
    for epoch, offset in ((1, 5), (2, 6), (3, 6), (3, 9), (5, 4), (4, 20), (6, 30)):
        leader_epochs.assign(epoch, offset)
        pairs = listed(leader_epochs)
        assert pairs == sorted(pairs) and len({o for _, o in pairs}) == len({e for e, _ in pairs}) == len(
            pairs
        )
    assert listed(leader_epochs) == [(4, 20), (6, 30)]  # a newer entry removes the entries that contradict it


def test_6X_329_the_same_epoch_keeps_its_start(tmp_path: Path) -> None:
    """6X.329: Assigning the same epoch again does not move its start."""
    leader_epochs = epochs(tmp_path, (2, 6))
    leader_epochs.assign(2, 10)
    assert listed(leader_epochs) == [(2, 6)]


def test_6X_330_from_the_end(tmp_path: Path) -> None:
    """6X.330: Truncation from the end drops the epochs that start at or after the offset."""
    for offset, left in ((8, [(2, 6)]), (9, [(2, 6), (3, 8)]), (12, [(2, 6), (3, 8), (4, 11)])):
        leader_epochs = epochs(tmp_path, (2, 6), (3, 8), (4, 11))
        leader_epochs.truncate_from_end(offset)
        assert listed(leader_epochs) == left


def test_6X_331_from_the_start(tmp_path: Path) -> None:
    """6X.331: Truncation from the start drops older epochs and moves the start of the one that contains
    the offset.
    """
    every = [(2, 6), (3, 8), (4, 11)]
    for offset, left in ((9, [(3, 9), (4, 11)]), (15, [(4, 15)]), (1, every), (6, every)):
        leader_epochs = epochs(tmp_path, *every)
        leader_epochs.truncate_from_start(offset)
        assert listed(leader_epochs) == left


def test_6X_332_epochs_persist(tmp_path: Path) -> None:
    """6X.332: Epochs persist from one instance to the next."""
    leader_epochs = epochs(tmp_path)
    leader_epochs.assign(2, 6)
    leader_epochs.assign(4, 11)
    assert listed(LeaderEpochs.load(UNSYNCED, str(tmp_path))) == [(2, 6), (4, 11)]


def test_6X_333_offset_checkpoints(tmp_path: Path) -> None:
    """6X.333: An offset checkpoint is written, overwritten and read; an empty file is an empty map; a
    wrong version is an error.
    """
    checkpoint = OffsetCheckpoint(UNSYNCED, str(tmp_path), names.RECOVERY_POINTS)
    path = tmp_path / names.RECOVERY_POINTS
    assert checkpoint.read() == {}
    path.write_bytes(b"")
    assert checkpoint.read() == {}
    many = {TopicPartition(f"t{n % 7}", n): n * n for n in range(500)}
    checkpoint.update(many)
    assert checkpoint.read() == many
    checkpoint.update({TopicPartition("t0", 0): 5})
    assert checkpoint.read() == many | {TopicPartition("t0", 0): 5}
    path.write_bytes(b"1\n0\n")
    with pytest.raises(CorruptFileError, match="version 1"):
        checkpoint.read()
    assert not (tmp_path / (names.RECOVERY_POINTS + ".tmp")).exists()


def test_6X_334_writing_where_the_directory_was_renamed_away(tmp_path: Path) -> None:
    """6X.334: Writing a checkpoint does not fail if the directory was renamed.

    Here: A partition's log is closed before its directory is renamed, and takes no checkpoint then.

    No other process may rename a partition of a directory that lastword has locked. If one does, the error is
    typed, and the other partitions are closed cleanly.
    """
    logs = opened(tmp_path)
    logs.create_topic("users", 2)
    append(logs, "users", 0, 3)
    append(logs, "users", 1, 3)
    (tmp_path / "users-0").rename(tmp_path / "away")
    with pytest.raises(StorageError):
        logs.close()
    assert not (tmp_path / names.CLEAN_SHUTDOWN).exists()
    with opened(tmp_path) as logs:
        assert logs.partitions("users") == [1] and logs.log("users", 1).log_end == 3


@pytest.mark.parametrize(
    "text", [b"", b'{"version":0,"brokerEpoch":7}', b'{"version":9,"brokerEpoch":7,"more":[1]}', b"nonsense"]
)
def test_6X_335_only_that_the_marker_is_there_counts(tmp_path: Path, text: bytes) -> None:
    """6X.335: The clean-shutdown file stores a broker epoch; unknown fields are ignored.

    Here: Only that the file exists counts; no broker epoch is written.
    """
    with opened(tmp_path) as logs:
        logs.create_topic("users")
    assert json.loads((tmp_path / names.CLEAN_SHUTDOWN).read_text()) == {"version": 0, "brokerEpoch": -1}
    (tmp_path / names.CLEAN_SHUTDOWN).write_bytes(text)
    with opened(tmp_path) as logs:
        assert logs.recovery.clean
    (tmp_path / names.CLEAN_SHUTDOWN).unlink()
    with opened(tmp_path) as logs:
        assert not logs.recovery.clean


def test_6X_336_topic_ids(tmp_path: Path) -> None:
    """6X.336: `partition.metadata` with the same topic id is accepted, with another it is an error."""
    assert check_topic_id(UNSYNCED, str(tmp_path), ID) is None, "not known"
    written = format_partition_metadata(ID)
    (tmp_path / names.PARTITION_METADATA).write_bytes(written)
    assert check_topic_id(UNSYNCED, str(tmp_path), ID) == ID
    with pytest.raises(InconsistentTopicIdError, match=f"has the topic id {ID}, the topic has {OTHER}"):
        check_topic_id(UNSYNCED, str(tmp_path), OTHER)
    assert (tmp_path / names.PARTITION_METADATA).read_bytes() == written


def test_6X_337_two_on_one_directory(tmp_path: Path) -> None:
    """6X.337: A second writer of a directory fails; after the first one stopped, the lock is free.

    Here: The lock file stays and locks nothing.

    `.lock` stays because its removal cannot be made safe (files/lock.py).
    """
    with opened(tmp_path), pytest.raises(LogDirLockedError):
        opened(tmp_path)
    with opened(tmp_path):
        pass


def test_6X_338_no_marker_with_a_failing_log(tmp_path: Path) -> None:
    """6X.338: No clean-shutdown marker is written for a directory with a failing log, nor before all logs
    were loaded; other directories get theirs.
    """
    with opened(tmp_path) as logs:
        logs.create_topic("users", 2)
        append(logs, "users", 0, 1)
        logs.log("users", 1).retire(StorageError("gone", errno=5))
    assert not (tmp_path / names.CLEAN_SHUTDOWN).exists()


def test_6X_338_none_if_not_everything_was_recovered(tmp_path: Path) -> None:
    """6X.338: No clean-shutdown marker is written for a directory with a failing log, nor before all logs
    were loaded; other directories get theirs.
    """
    logs = opened(tmp_path)
    logs.create_topic("users", 2)
    logs.abandon()
    with opened(tmp_path) as logs:
        append(logs, "users", 0, 1)
    assert not (tmp_path / names.CLEAN_SHUTDOWN).exists()


def test_6X_339_recovery_points_are_each_logs_own(tmp_path: Path) -> None:
    """6X.339: The recovery-point checkpoint has each log's own recovery point."""
    with opened(tmp_path) as logs:
        logs.create_topic("users", 3)
        for partition in range(3):
            append(logs, "users", partition, 4 + partition)
        logs.log("users", 1).flush()
        logs.sync()
        append(logs, "users", 2, 5)
        recovery_points = Checkpoints(UNSYNCED, str(tmp_path)).recovery_points.read()
        for partition in range(3):
            assert (
                recovery_points[TopicPartition("users", partition)]
                == logs.log("users", partition).recovery_point
            )
    recovery_points = Checkpoints(UNSYNCED, str(tmp_path)).recovery_points.read()
    assert [recovery_points[TopicPartition("users", n)] for n in range(3)] == [4, 5, 11]


def test_6X_341_remote_log_index_cache_and_metadata_are_ignored(tmp_path: Path) -> None:
    """6X.341: The directory remote-log-index-cache is ignored."""
    with opened(tmp_path) as logs:
        logs.create_topic("users")
    for name in ("remote-log-index-cache", "__cluster_metadata-0", "nobody", "x-1"):
        (tmp_path / name).mkdir()
    (tmp_path / "__cluster_metadata-0" / f"{0:020d}.log").touch()
    for mode in "ra":
        with opened(tmp_path, mode) as logs:
            assert logs.topics() == ["users"]


def test_6X_342_a_deleted_topics_files_wait(tmp_path: Path) -> None:
    """6X.342: A deleted directory is renamed; open files follow, and removal waits for the delay."""
    clock = ManualClock(NOW)
    with opened(tmp_path, clock=clock) as logs:
        logs.create_topic("users", 1, {"file.delete.delay.ms": "1m"})
        append(logs, "users", 0, 5)
        view = logs.view("users", 0)
        first = view.segments[0]
        assert first.handle.size() > 0
        logs.delete_topic("users")
        assert logs.topics() == []
        marked = list(tmp_path.glob("users-0.*-delete"))
        assert len(marked) == 1 and (marked[0] / names.segment_file(0, names.LOG)).exists()
        assert len(list(first.headers())) == 5  # readers that started before finish
        clock.advance(59_999)
        logs.remove_deferred()
        assert marked[0].exists()
        clock.advance(1)
        assert logs.remove_deferred() == 1 and not marked[0].exists()
        logs.create_topic("users")
        assert logs.log("users", 0).log_end == 0
        logs.delete_topic("users")
    assert not list(tmp_path.glob("*-delete"))  # at the latest when the log is closed


def test_342_and_after_a_kill_at_opening(tmp_path: Path) -> None:
    code = f"""
import os
from lastword.logdir import LogDirectory
logs = LogDirectory.open({str(tmp_path)!r}, "a")
logs.create_topic("users")
logs.delete_topic("users")
os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    assert list(tmp_path.glob("users-0.*-delete"))
    with LogDirectory.open(tmp_path, "a", DEFAULT) as logs:
        assert logs.topics() == []
    assert not list(tmp_path.glob("*-delete"))
