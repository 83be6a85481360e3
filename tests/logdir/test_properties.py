"""6X: checkpoints and directories. Numbers about epochs are in `tests/partition/test_epochs.py`, those
about the log-start checkpoint in `tests/retention/test_6v.py`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lastword.clock import ManualClock
from lastword.errors import CorruptFileError, StorageError
from lastword.logdir import LogDirectory, TopicPartition
from lastword.logdir.checkpoints import OffsetCheckpoint
from lastword.segment import names
from lastword.testing.unsynced import UNSYNCED
from tests.properties.support import T, batch, records_of


def home(root: Path, clock: ManualClock | None = None) -> LogDirectory:
    return LogDirectory.open(root, "a", UNSYNCED, clock or ManualClock(T))


def filled(root: Path, count: int = 3) -> None:
    with home(root) as logs:
        logs.create_topic("users")
        logs.log("users", 0).append_batches([batch(0, b"a")] * count)


def test_6X_333_offset_checkpoints(tmp_path: Path) -> None:
    """6X.333: An offset checkpoint is written, overwritten and read; an empty file is an empty map; a
    wrong version is an error.
    """
    checkpoint = OffsetCheckpoint(UNSYNCED, str(tmp_path), names.RECOVERY_POINTS)
    path = Path(checkpoint.path)
    assert checkpoint.read() == {}
    orders = TopicPartition("orders", 3)
    for offset in (42, 7):
        checkpoint.update({orders: offset})
        assert path.read_bytes() == b"0\n1\norders 3 %d\n" % offset
        assert checkpoint.read() == {orders: offset}
    many = {TopicPartition("t", number): 10 * number for number in range(1000)}
    checkpoint.update(many)
    assert checkpoint.read() == {orders: 7} | many
    path.write_bytes(b"")
    assert checkpoint.read() == {}
    path.write_bytes(b"10\n0\n")  # `test_checkpoints.py` has other damage
    with pytest.raises(CorruptFileError):
        checkpoint.read()
    assert checkpoint.read_valid() == {}  # the cost is a longer recovery


@pytest.mark.parametrize(
    "text", ['{"version":0,"brokerEpoch":7}', '{"version":9,"more":[1]}', "", "nonsense"]
)
def test_6X_335_the_clean_shutdown_file(tmp_path: Path, text: str) -> None:
    """6X.335: The clean-shutdown file stores a broker epoch; unknown fields are ignored.

    Here: Only the existence of the file counts, because very old brokers left it empty; the broker epoch is
    always -1.
    """
    filled(tmp_path)
    marker = tmp_path / names.CLEAN_SHUTDOWN
    assert json.loads(marker.read_text()) == {"version": 0, "brokerEpoch": -1}
    marker.write_text(text)
    with home(tmp_path) as logs:
        assert logs.recovery.clean
    marker.unlink()
    logs = home(tmp_path)
    assert not logs.recovery.clean
    logs.abandon()


def test_6X_339_the_recovery_point_checkpoint(tmp_path: Path) -> None:
    """6X.339: The recovery-point checkpoint has each log's own recovery point."""
    with home(tmp_path) as logs:
        logs.create_topic("users", 3)
        for number in range(3):
            logs.log("users", number).append_batches([batch(0, b"a")] * (number + 1))
        logs.log("users", 1).flush()
        logs.sync()
        recovery_points = logs.checkpoints.recovery_points.read()
        assert recovery_points == {
            TopicPartition("users", number): logs.log("users", number).recovery_point for number in range(3)
        }
        assert recovery_points[TopicPartition("users", 2)] == 3
    with home(tmp_path) as logs:  # lines of unchanged partitions stay
        logs.log("users", 0).append_batch(batch(0, b"a"))
        logs.sync()
        assert logs.checkpoints.recovery_points.read() == recovery_points | {TopicPartition("users", 0): 2}


def test_6X_341_directories_of_a_broker_that_are_no_topics(tmp_path: Path) -> None:
    """6X.341: The directory remote-log-index-cache is ignored."""
    filled(tmp_path)
    for name in ("remote-log-index-cache", "__cluster_metadata-0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / names.segment_file(0, names.LOG)).write_bytes(batch(0, b"a"))
    with home(tmp_path) as logs:
        assert logs.topics() == ["users"] and len(logs.topic_partitions()) == 1
    for name in ("remote-log-index-cache", "__cluster_metadata-0"):
        assert (tmp_path / name / names.segment_file(0, names.LOG)).exists()


def test_6X_342_a_deleted_directory_waits_for_its_delay(tmp_path: Path) -> None:
    """6X.342: A deleted directory is renamed; open files follow, and removal waits for the delay.

    An open reader continues to read the renamed files.
    """
    clock = ManualClock(T)
    with home(tmp_path, clock) as logs:
        logs.create_topic("users", 1, {"file.delete.delay.ms": "1m"})
        log = logs.log("users", 0)
        log.append_batch(batch(0, b"a"))
        reader = log.view().segments[0]
        header = next(reader.headers())
        logs.delete_topic("users")
        (gone,) = [p for p in tmp_path.iterdir() if p.name.endswith("-delete")]
        assert logs.topics() == [] and not (tmp_path / "users-0").exists()
        assert [p.name for p in gone.glob("*.log")] == [names.segment_file(0, names.LOG)]
        assert records_of(reader.read_batch(header))[0].value == b"a"
        logs.create_topic("users")  # another topic of that name does not affect the deletion
        clock.advance(59_999)
        assert logs.remove_deferred() == 0 and gone.exists()
        clock.advance(1)
        assert logs.remove_deferred() == 1 and not gone.exists()
        assert logs.topics() == ["users"]


def test_a_partition_that_was_renamed_away_fails_the_close(tmp_path: Path) -> None:
    """The error is typed, and the other partitions are closed cleanly."""
    logs = home(tmp_path)
    logs.create_topic("users", 2)
    for number in range(2):
        logs.log("users", number).append_batches([batch(0, b"a")] * 3)
    (tmp_path / "users-0").rename(tmp_path / "away")
    with pytest.raises(StorageError):
        logs.close()
    assert not (tmp_path / names.CLEAN_SHUTDOWN).exists()
    with home(tmp_path) as logs:
        assert logs.partitions("users") == [1] and logs.log("users", 1).log_end == 3
