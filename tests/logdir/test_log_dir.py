"""Opening, closing and reading of a whole log directory."""

from __future__ import annotations

import gc
import os
import shutil
import weakref
from pathlib import Path

import pytest

from lastword.clock import ManualClock
from lastword.errors import (
    CorruptBatchError,
    DiskFullError,
    NotALogDirError,
    ReadOnlyError,
    StorageError,
    TopicExistsError,
    UnknownSettingError,
    UnknownTopicError,
    UsageError,
)
from lastword.files import OsFiles
from lastword.logdir import LogDirectory, TopicPartition
from lastword.segment import names
from lastword.testing.unsynced import UNSYNCED
from tests.fakes import RecordingFiles, Stopped
from tests.golden.loader import case
from tests.partition.logs import NOW, append, batch, opened_directory, pair, records
from tests.retention.support import raise_log_start
from tests.support.exhaustive import stride
from tests.support.settings import set_topic_config


def tree(root: Path) -> dict[str, bytes | None]:
    return {
        str(p.relative_to(root)): p.read_bytes() if p.is_file() else None for p in sorted(root.rglob("*"))
    }


def test_files_for_a_broker(tmp_path: Path) -> None:
    with opened_directory(tmp_path / "d") as logs:
        logs.create_topic("users", 2)
        assert logs.topic_id("users") is not None
        append(logs, "users", 0, 3)
    root = tmp_path / "d"
    fields = dict(line.split("=") for line in (root / names.META_PROPERTIES).read_text().splitlines()[1:])
    assert fields["version"] == "1" and len(fields["cluster.id"]) == len(fields["directory.id"]) == 22
    metadata = {(root / f"users-{n}" / names.PARTITION_METADATA).read_text() for n in (0, 1)}
    assert len(metadata) == 1
    text = metadata.pop()
    assert text.startswith("version: 0\ntopic_id: ") and not text.endswith("\n")
    assert (root / "users-0" / names.LEADER_EPOCHS).read_text() == "0\n1\n0 0\n"
    for directory, end in (("users-0", 3), ("users-1", 0)):
        assert (root / directory / names.segment_file(end, names.SNAPSHOT)).exists()
    only_dirs = [p.name for p in root.iterdir() if p.is_dir()]
    assert sorted(only_dirs) == ["users-0", "users-1"]


def test_reading_changes_nothing(tmp_path: Path) -> None:
    case("dir-clean").unpack(tmp_path)
    root = tmp_path / "data"
    before = tree(root)
    with opened_directory(root, "r") as logs:
        for topic in logs.topics():
            for partition in logs.partitions(topic):
                logs.view(topic, partition)
        for change in (
            lambda: logs.create_topic("x"),
            lambda: logs.delete_topic("orders"),
            lambda: logs.log("orders", 0),
            lambda: logs.set_first_dirty("orders", 0, 1),
            logs.sync,
        ):
            with pytest.raises(ReadOnlyError):
                change()
    assert tree(root) == before


def test_a_bare_directory_of_partitions(tmp_path: Path) -> None:
    with opened_directory(tmp_path / "made") as logs:
        logs.create_topic("users")
        append(logs, "users", 0, 5)
    bare = tmp_path / "bare" / "users-0"
    bare.mkdir(parents=True)
    for path in (tmp_path / "made" / "users-0").glob("*.log"):
        (bare / path.name).write_bytes(path.read_bytes())
    with opened_directory(tmp_path / "bare", "r") as logs:
        assert records(logs.view("users", 0)) == [pair(n) for n in range(5)]
        assert logs.topic_id("users") is None
    with opened_directory(tmp_path / "bare") as logs:
        append(logs, "users", 0, 1)
        assert logs.log("users", 0).log_end == 6
    assert not (tmp_path / "bare" / names.META_PROPERTIES).exists()


class TestRefusals:
    @pytest.mark.parametrize("mode", ["r", "a"])
    def test_something_else(self, tmp_path: Path, mode: str) -> None:
        (tmp_path / "holiday.jpg").write_bytes(b"x")
        (tmp_path / "my-project-2").mkdir()
        before = tree(tmp_path)
        with pytest.raises(NotALogDirError):
            opened_directory(tmp_path, mode)
        assert tree(tmp_path) == before

    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(NotALogDirError):
            opened_directory(tmp_path / "x", "r")
        with pytest.raises(NotALogDirError):
            opened_directory(tmp_path, "r")
        (tmp_path / "file").write_bytes(b"")
        for mode in "ra":
            with pytest.raises(NotALogDirError):
                opened_directory(tmp_path / "file", mode)

    def test_a_partitions_own_directory(self, tmp_path: Path) -> None:
        with opened_directory(tmp_path) as logs:
            logs.create_topic("users")
        for mode in "ra":
            with pytest.raises(NotALogDirError, match="one partition"):
                opened_directory(tmp_path / "users-0", mode)

    @pytest.mark.parametrize("mode", ["w", "x", "r+", ""])
    def test_other_modes(self, tmp_path: Path, mode: str) -> None:
        with pytest.raises(UsageError):
            opened_directory(tmp_path, mode)

    def test_topics(self, tmp_path: Path) -> None:
        with opened_directory(tmp_path) as logs:
            logs.create_topic("users", 2)
            with pytest.raises(TopicExistsError):
                logs.create_topic("users")
            assert not logs.create_topic("users", 7, exist_ok=True)
            assert logs.partitions("users") == [0, 1]
            with pytest.raises(UnknownTopicError, match="'users'"):
                logs.log("user", 0)
            with pytest.raises(UnknownTopicError, match="no partition 2"):
                logs.log("users", 2)
            with pytest.raises(UnknownSettingError):
                logs.create_topic("more", 1, {"cleanup.polcy": "compact"})
            assert logs.topics() == ["users"]


def test_one_damaged_partition_stays_closed_the_others_serve(tmp_path: Path) -> None:
    """6T.239: An I/O error while loading takes its directory offline and does not abort the start.

    Here: No error aborts the opening of other partitions.

    Partitions are loaded when they are first used. A damaged partition raises its error each time, and the
    clean-shutdown marker is not written. `test_log_dir_set.py` tests a directory that fails as a whole.
    """
    logs = opened_directory(tmp_path)
    logs.create_topic("users", 2)
    for partition in (0, 1):
        append(logs, "users", partition, 6)
    logs.sync()
    logs.abandon()
    path = tmp_path / "users-0" / names.segment_file(0, names.LOG)
    damaged = bytearray(path.read_bytes())
    damaged[80] ^= 1
    path.write_bytes(damaged)
    with opened_directory(tmp_path) as logs:
        for _ in range(2):
            with pytest.raises(CorruptBatchError):
                logs.log("users", 0)
        append(logs, "users", 1, 1)
        assert [tp for tp, _ in logs.recovery.offline] == [TopicPartition("users", 0)]
    assert path.read_bytes() == damaged
    assert not (tmp_path / names.CLEAN_SHUTDOWN).exists()


def test_6X_338_the_marker_comes_back_when_all_were_recovered(tmp_path: Path) -> None:
    """6X.338: No clean-shutdown marker is written for a directory with a failing log, nor before all logs
    were loaded; other directories get theirs.

    After a crash every partition must have been recovered once before the directory counts as clean.
    """
    with opened_directory(tmp_path) as logs:
        logs.create_topic("users", 2)
    logs = opened_directory(tmp_path)
    append(logs, "users", 0, 1)
    assert not (tmp_path / names.CLEAN_SHUTDOWN).exists()
    logs.abandon()
    with opened_directory(tmp_path) as logs:
        logs.log("users", 0)
    assert not (tmp_path / names.CLEAN_SHUTDOWN).exists()  # users-1 was not checked
    with opened_directory(tmp_path) as logs:
        logs.log("users", 0)
        logs.log("users", 1)
    assert (tmp_path / names.CLEAN_SHUTDOWN).exists()


def test_deleting_a_topic(tmp_path: Path) -> None:
    """6C.21: A partition that is removed loses its line in the cleaner checkpoint.
    6X.334: Writing a checkpoint does not fail if the directory was renamed.

    Here: A partition's log is closed before its directory is renamed, and takes no checkpoint then.

    Kafka's lenient write ignores that the directory was renamed. Here the partition's lines in the
    checkpoints are removed, too.
    """
    with opened_directory(tmp_path) as logs:
        logs.create_topic("users", 2, {"cleanup.policy": "compact"})
        logs.create_topic("other")
        for topic in ("users", "other"):
            append(logs, topic, 0, 3)
            logs.set_first_dirty(topic, 0, 2)
        logs.sync()
        logs.delete_topic("users")
        logs.sync()
        assert (tmp_path / names.FIRST_DIRTY).read_text() == "0\n1\nother 0 2\n"
        assert "users" not in (tmp_path / names.RECOVERY_POINTS).read_text()
        assert logs.topics() == ["other"]
        assert logs.create_topic("users")
        assert logs.first_dirty("users", 0) is None
        assert logs.topic_config("users").cleanup_policy is None
        assert logs.log("users", 0).log_end == 0
    assert "users 0 3" not in (tmp_path / names.RECOVERY_POINTS).read_text()


def test_a_topic_is_not_made_with_the_checkpoints_of_another(tmp_path: Path) -> None:
    """The partition of before was removed by hand; its log start would be that of the new one."""
    with opened_directory(tmp_path) as logs:
        logs.create_topic("users")
        append(logs, "users", 0, 10)
        raise_log_start(logs, "users", 0, 10)
    shutil.rmtree(tmp_path / "users-0")
    files = RecordingFiles(UNSYNCED)
    logs = LogDirectory.open(tmp_path, "a", files, ManualClock(NOW))
    files.fail = lambda call: (
        DiskFullError("planted") if call.name == "create" and call.path.endswith("checkpoint.tmp") else None
    )
    with pytest.raises(DiskFullError):
        logs.create_topic("users", 1, {"cleanup.policy": "compact"})
    files.fail = None
    assert logs.topics() == [] and logs.topic_config("users").cleanup_policy is None
    logs.create_topic("users")
    assert logs.log("users", 0).log_end == 0
    logs.close()


def test_a_close_that_is_interrupted_frees_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a notebook the directory could not be opened again: a second close does nothing."""
    logs = opened_directory(tmp_path)
    logs.create_topic("users")
    logs.delete_topic("users")  # its files are removed at the close
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(os, "unlink", interrupt)
        logs.close()
    with opened_directory(tmp_path) as again:
        assert again.topics() == []


def test_a_close_frees_the_logs_without_the_collector(tmp_path: Path) -> None:
    directory = opened_directory(tmp_path)
    directory.create_topic("t", 3)
    logs = [weakref.ref(directory.log("t", number)) for number in range(3)]
    directory.close_logs([("t", 0)])
    gc.disable()
    try:
        directory.close()
        assert [log() for log in logs] == [None] * 3
    finally:
        gc.enable()


def test_a_partition_that_could_not_be_deleted_is_as_it_was(tmp_path: Path) -> None:
    """Its log start stays, and records that were not synced before are synced by the next sync."""
    with opened_directory(tmp_path) as logs:
        logs.create_topic("users", 2)
        append(logs, "users", 1, 10)
        raise_log_start(logs, "users", 1, 5)
    files = RecordingFiles(UNSYNCED)
    logs = LogDirectory.open(tmp_path, "a", files, ManualClock(NOW))
    append(logs, "users", 1, 3)
    raise_log_start(logs, "users", 1, 7)
    files.fail = lambda call: (
        StorageError("planted") if call.name == "rename" and call.path.endswith("users-1") else None
    )
    with pytest.raises(StorageError):
        logs.delete_topic("users")
    files.fail = None
    log = logs.log("users", 1)
    assert (log.log_start, log.log_end, log.synced_to) == (7, 13, 10)
    logs.close()
    with opened_directory(tmp_path) as logs:
        assert logs.log("users", 1).log_start == 7


def test_topics_are_deleted_together_but_one_that_cannot_be_renamed(tmp_path: Path) -> None:
    files = RecordingFiles(UNSYNCED)
    logs = LogDirectory.open(tmp_path, "a", files, ManualClock(NOW))
    for topic in ("a", "b", "c"):
        logs.create_topic(topic, 1, {"cleanup.policy": "compact"})
    error = StorageError("planted")
    files.fail = lambda call: error if call.name == "rename" and call.path.endswith("b-0") else None
    files.calls.clear()
    assert logs.delete_topics(["a", "b", "c"]) == {"b": error}
    assert logs.topics() == ["b"] and len(list(tmp_path.glob("*-delete"))) == 2
    logs.remove_settings(["a", "c"])
    # One of the root with the names of the partitions, and one with those of the files of settings.
    assert [call.name for call in files.changes].count("fsync_dir") == 2
    files.fail = None
    for topic in ("a", "c"):
        logs.create_topic(topic)
    policies = [logs.topic_config(topic).cleanup_policy for topic in ("a", "b", "c")]
    assert policies == [None, {"compact"}, None]
    assert list(logs.delete_topics(["absent", "b"])) == ["absent"] and logs.topics() == ["a", "c"]
    logs.close()


def test_a_creation_that_is_killed_leaves_no_settings_to_a_new_topic(tmp_path: Path) -> None:
    topics = {f"t{number}": [0, 1] for number in range(5)}
    outcomes = []
    for stop in range(0, 1000, stride(3)):
        root = tmp_path / str(stop)
        files = RecordingFiles(UNSYNCED)
        logs = LogDirectory.open(root, "a", files, ManualClock(NOW))
        files.stop_at = files._changes + stop
        try:
            logs.create_topics(topics, {name: {"retention.ms": 1} for name in topics}, {})
            files.stop_at = None
            break
        except Stopped:
            with opened_directory(root) as logs:
                outcomes.append((bool(logs.topics()), logs.settings.is_set("retention.ms", "t0")))
                assert logs.create_topic("t0", exist_ok=True) is not outcomes[-1][0]
                assert logs.settings.is_set("retention.ms", "t0") is outcomes[-1][0]
            assert not list(root.glob("*.toml.tmp"))
    assert logs.topics() == list(topics)
    logs.close()
    assert outcomes == sorted(outcomes, key=lambda outcome: (outcome[1], outcome[0]))
    assert len(outcomes) > 50 // stride(3) and (True, False) not in outcomes


def test_a_deletion_that_is_killed_leaves_a_topic_with_its_settings_or_none(tmp_path: Path) -> None:
    """Also if the settings were in a table of lastword.toml. A new topic of that name has none of them."""
    for table in (True, False):
        for stop in range(1000):
            root = tmp_path / f"{table}-{stop}"
            files = RecordingFiles(UNSYNCED)
            logs = LogDirectory.open(root, "a", files, ManualClock(NOW))
            logs.create_topic("users", 2, {"retention.ms": 1})
            if table:
                (root / "lastword.topic-users.toml").unlink()
                (root / "lastword.toml").write_text("[topics.users]\nretention.ms = 1\n")
                logs.reload_settings()
            files.stop_at = files._changes + stop
            try:
                logs.delete_topic("users")
                files.stop_at = None
                break
            except Stopped:
                with opened_directory(root) as logs:
                    if logs.topics():
                        assert logs.topic_config("users").retention_ms == 1
                        logs.delete_topic("users")
                    assert not logs.settings.is_set("retention.ms", "users")  # a broker may make a topic
                    logs.create_topic("users")
                    assert not logs.settings.is_set("retention.ms", "users")
        assert stop > 4 and not list(root.glob("lastword.topic*"))
        logs.close()


def test_first_dirty_is_kept_beside_others(tmp_path: Path) -> None:
    with opened_directory(tmp_path) as logs:
        logs.create_topic("users")
        append(logs, "users", 0, 5)
        (tmp_path / names.FIRST_DIRTY).write_text("0\n1\nforeign 7 42\n")
        logs.set_first_dirty("users", 0, 4)
        assert logs.first_dirty("users", 0) == 4
        logs.set_first_dirty("users", 0, 99)
        assert logs.first_dirty("users", 0) == 5
    assert "foreign 7 42" in (tmp_path / names.FIRST_DIRTY).read_text()


def test_settings_hold_at_once(tmp_path: Path) -> None:
    with opened_directory(tmp_path) as logs:
        logs.create_topic("users")
        log = logs.log("users", 0)
        set_topic_config(logs, "users", {"max.message.bytes": 150})
        assert log.config.max_message_bytes == 150
        set_topic_config(logs, "users", {"max.message.bytes": None})
        assert log.config.max_message_bytes == 1048588


@pytest.mark.parametrize("fully", [False, True])
def test_truncation_lowers_every_checkpoint_first(tmp_path: Path, fully: bool) -> None:
    with opened_directory(tmp_path) as logs:
        logs.create_topic("users", settings={"segment.bytes": 700})
        append(logs, "users", 0, 30)
        logs.sync()
        logs.set_first_dirty("users", 0, 25)
        tp = TopicPartition("users", 0)
        logs.checkpoints.high_watermarks.update({tp: 30})
        logs.truncate("users", 0, 12, fully=fully)
        log = logs.log("users", 0)
        assert (log.log_end, log.log_start) == (12, 12 if fully else 0)
        for checkpoint in (logs.checkpoints.recovery_points, logs.checkpoints.high_watermarks):
            assert checkpoint.read()[tp] == 12
        assert (logs.first_dirty("users", 0) or 0) <= 12
        append(logs, "users", 0, 3)
        logs.abandon()
    with opened_directory(tmp_path) as logs:
        log = logs.log("users", 0)
        assert (log.log_end, log.log_start) == (15, 12 if fully else 0)


def test_producers_are_forgotten_after_the_time_of_the_setting(tmp_path: Path) -> None:
    with opened_directory(tmp_path) as logs:
        logs.create_topic("users")
        logs.log("users", 0).append_batch(batch((b"k", b"v"), producer_id=3, timestamp=1))
    (tmp_path / names.SETTINGS).write_text('producer.id.expiration.ms = "1ms"\n')
    with opened_directory(tmp_path) as logs:
        assert logs.log("users", 0).producers == []


def test_another_process_may_make_the_directory_at_the_same_time(tmp_path: Path) -> None:
    """Two Spark jobs write to a directory that neither has made: one of them failed with "File exists"."""

    class Racing(OsFiles):
        def mkdir(self, path: str | os.PathLike[str]) -> None:
            Path(path).mkdir()
            super().mkdir(path)

    directory = LogDirectory.open(tmp_path / "a" / "b", "a", Racing())
    directory.close()
    assert (tmp_path / "a" / "b" / "meta.properties").exists()
