"""Several directories as one: placing, topic ids, a directory that fails, a partition in two places."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from lastword.errors import (
    CorruptFileError,
    DuplicatePartitionError,
    InconsistentTopicIdError,
    OfflineError,
    StorageError,
)
from lastword.files import DEFAULT
from lastword.logdir import LogDirectory
from lastword.logdir.log_dir_set import LogDirSet, read_partition_list
from lastword.logdir.topics import Listing
from lastword.segment import names
from lastword.testing.unsynced import UNSYNCED
from tests.partition.logs import append, opened_directory, pair, records


def spread_over(*paths: Path, mode: str = "a") -> LogDirSet:
    return LogDirSet([opened_directory(path, mode) for path in paths], {})


def close(spread: LogDirSet) -> None:
    for directory in spread.directories:
        directory.close()


def create(spread: LogDirSet, topic: str, partitions: int) -> None:
    for number, (log_dir, numbers) in enumerate(spread.assign({topic: partitions}).items()):
        log_dir.create_topic(topic, numbers[topic], topic_id=spread.topic_id(topic) if number else None)
    spread.write_list()


def test_fewest_partitions_first(tmp_path: Path) -> None:
    spread = spread_over(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    create(spread, "one", 1)
    create(spread, "users", 5)
    counts = [len(log_dir.topic_partitions()) for log_dir in spread.directories]
    assert counts == [2, 2, 2]
    log_dirs = spread.log_dirs_by_topic()
    assert list(log_dirs) == ["one", "users"] and list(log_dirs["users"]) == [0, 1, 2, 3, 4]
    ids = {log_dir.topic_id("users") for log_dir in spread.directories}
    assert len(ids) == 1 and None not in ids
    for partition in range(5):
        append(spread.log_dir("users", partition), "users", partition, partition)
    close(spread)
    spread = spread_over(tmp_path / "a", tmp_path / "b", tmp_path / "c", mode="r")
    for partition, log_dir in spread.log_dirs_by_topic()["users"].items():
        assert records(log_dir.view("users", partition)) == [pair(n) for n in range(partition)]


def test_the_list_of_all_is_in_every_root_and_only_with_several(tmp_path: Path) -> None:
    spread = spread_over(tmp_path / "a", tmp_path / "b")
    create(spread, "users", 3)
    close(spread)
    lists = [read_partition_list(DEFAULT, str(tmp_path / root / names.PARTITION_LIST)) for root in "ab"]
    assert lists == 2 * [[("users", 0), ("users", 1), ("users", 2)]]
    with opened_directory(tmp_path / "alone") as alone:
        alone.create_topic("x")
        LogDirSet([alone], {})
    assert not (tmp_path / "alone" / names.PARTITION_LIST).exists()


def test_an_offline_directory_raises_for_its_partitions_and_the_rest_serves(tmp_path: Path) -> None:
    spread = spread_over(tmp_path / "a", tmp_path / "b")
    create(spread, "users", 4)
    close(spread)
    error = StorageError("cannot list b: Input/output error", errno=5)
    with opened_directory(tmp_path / "a") as alone:
        spread = LogDirSet([alone], {str(tmp_path / "b"): error})
        log_dirs = spread.log_dirs_by_topic()["users"]
        assert list(log_dirs) == [0, 1, 2, 3]  # the number stays: it decides the partition of a key
        append(spread.log_dir("users", 0), "users", 0, 2)
        for partition in (1, 3):
            log_dir = spread.log_dir("users", partition)
            assert log_dir is not None
            with pytest.raises(OfflineError, match="Input/output error") as caught:
                log_dir.log("users", partition)
            assert caught.value.errno == 5 and caught.value.kafka_code == 56
        with pytest.raises(OfflineError):
            spread.assign({"users": 1})
        assert list(spread.offline) == [str(tmp_path / "b")]


def test_a_directory_that_fails_later_keeps_its_partitions_known(tmp_path: Path) -> None:
    spread = spread_over(tmp_path / "a", tmp_path / "b")
    create(spread, "users", 2)
    spread.log_dirs_by_topic()
    shutil.rmtree(tmp_path / "b")
    (tmp_path / "b").write_bytes(b"")

    def broken() -> Listing:
        raise StorageError("cannot list b: Input/output error", errno=5)

    spread.directories[1].listing = broken  # type: ignore[method-assign]
    assert list(spread.log_dirs_by_topic()["users"]) == [0, 1]
    assert list(spread.offline) == [str(tmp_path / "b")]
    append(spread.log_dir("users", 0), "users", 0, 1)
    spread.directories[0].close()
    spread.directories[1].abandon()


def test_one_partition_in_two_directories_is_refused(tmp_path: Path) -> None:
    for root in "ab":
        with opened_directory(tmp_path / root) as logs:
            logs.create_topic("users")
    before = sorted(str(p) for p in tmp_path.rglob("*"))
    for mode in "ra":
        directories = [opened_directory(tmp_path / root, mode) for root in "ab"]
        spread = LogDirSet(directories, {})
        log_dir = spread.log_dir("users", 0)
        assert log_dir is not None and not spread.serves(log_dir)
        assert spread.log_dirs_by_topic()["users"].keys() == spread.log_dirs("users").keys() == {0}
        for held in (log_dir, spread.log_dirs("users")[0], spread.log_dirs_by_topic()["users"][0]):
            with pytest.raises(DuplicatePartitionError, match="users-0 is in"):
                held.view("users", 0)
        for directory in directories:
            directory.close()
    after = sorted(str(p) for p in tmp_path.rglob("*") if p.name != "lastword.partitions")
    assert after == before


def test_another_topic_of_that_name(tmp_path: Path) -> None:
    """6X.336: `partition.metadata` with the same topic id is accepted, with another it is an error.

    A stray partition of another topic is not served.
    """
    with opened_directory(tmp_path / "a") as logs:
        logs.create_topic("users", 2)
    with opened_directory(tmp_path / "b") as logs:
        logs.create_topic("users", 2)
    shutil.rmtree(tmp_path / "a" / "users-1")
    shutil.copytree(tmp_path / "b" / "users-1", tmp_path / "a" / "users-1")
    for mode in "ra":
        with opened_directory(tmp_path / "a", mode) as logs:
            assert records(logs.view("users", 0)) == []
            with pytest.raises(InconsistentTopicIdError, match="users-1 has the topic id") as caught:
                logs.view("users", 1)
            assert caught.value.kafka_code == 103 and caught.value.exit_code == 3


def test_and_over_several_directories(tmp_path: Path) -> None:
    for root, partition in (("a", 0), ("b", 1)):
        with opened_directory(tmp_path / root) as logs:
            logs.create_topic("users", [partition])
    spread = spread_over(tmp_path / "a", tmp_path / "b")
    assert spread.log_dir("users", 0).log("users", 0).log_end == 0  # type: ignore[union-attr]
    with pytest.raises(InconsistentTopicIdError):
        spread.log_dir("users", 1).log("users", 1)  # type: ignore[union-attr]
    close(spread)


def test_damaged_metadata_costs_its_partition_only(tmp_path: Path) -> None:
    with opened_directory(tmp_path) as logs:
        logs.create_topic("users", 2)
    (tmp_path / "users-0" / names.PARTITION_METADATA).write_bytes(b"nonsense")
    with opened_directory(tmp_path) as logs:
        with pytest.raises(CorruptFileError):
            logs.log("users", 0)
        append(logs, "users", 1, 1)


class TestMarkedDirectories:
    def name(self, marker: str) -> str:
        return f"users-1.{'ab' * 16}-{marker}"

    def test_a_brokers_own_are_left_alone_and_shown(self, tmp_path: Path) -> None:
        with opened_directory(tmp_path) as logs:
            logs.create_topic("users", 2)
        for marker in ("stray", "future"):
            shutil.copytree(tmp_path / "users-1", tmp_path / self.name(marker))
        for mode in "ra":
            with opened_directory(tmp_path, mode) as logs:
                assert logs.partitions("users") == [0, 1]
                assert {(entry.topic, entry.partition, entry.marker) for entry in logs.set_aside()} == {
                    ("users", 1, "stray"),
                    ("users", 1, "future"),
                }
        assert (tmp_path / self.name("stray") / names.PARTITION_METADATA).exists()
        assert (tmp_path / self.name("future") / names.PARTITION_METADATA).exists()

    def test_delete_is_finished(self, tmp_path: Path) -> None:
        with opened_directory(tmp_path) as logs:
            logs.create_topic("users", 2)
        (tmp_path / "users-1").rename(tmp_path / self.name("delete"))
        with opened_directory(tmp_path, "r") as logs:
            assert logs.partitions("users") == [0]
        assert (tmp_path / self.name("delete")).exists()
        with opened_directory(tmp_path) as logs:
            assert logs.partitions("users") == [0]
        assert not (tmp_path / self.name("delete")).exists()

    def test_a_directory_of_strays_alone_is_a_log_directory(self, tmp_path: Path) -> None:
        with opened_directory(tmp_path / "made") as logs:
            logs.create_topic("users")
        bare = tmp_path / "bare"
        bare.mkdir()
        shutil.copytree(tmp_path / "made" / "users-0", bare / f"users-0.{'0' * 32}-stray")
        with opened_directory(bare, "r") as logs:
            assert logs.topics() == [] and len(logs.set_aside()) == 1


def test_partitions_are_looked_into_once(tmp_path: Path) -> None:
    """A second search reads new directories only."""
    with opened_directory(tmp_path) as logs:
        logs.create_topic("users")
    for number in range(1, 2000):
        path = tmp_path / f"users-{number}"
        path.mkdir()
        (path / names.segment_file(0, names.LOG)).touch()
    listed: list[str] = []
    with LogDirectory.open(tmp_path, "r", _Listing(listed)) as logs:  # type: ignore[arg-type]
        assert len(logs.partitions("users")) == 2000
        listed.clear()
        assert len(logs.partitions("users")) == 2000
        assert listed == [str(tmp_path)]
        (tmp_path / "users-7" / names.segment_file(0, names.LOG)).unlink()
        os.rmdir(tmp_path / "users-7")  # noqa: PTH106
        assert 7 not in logs.partitions("users")


class _Listing:
    def __init__(self, listed: list[str]) -> None:
        self._listed = listed

    def listdir(self, path: str) -> list[str]:
        self._listed.append(str(path))
        return UNSYNCED.listdir(path)

    def dir_version(self, path: str) -> None:
        """Give no version, so that every search lists the root."""

    def __getattr__(self, name: str):  # type: ignore[no-untyped-def]
        return getattr(UNSYNCED, name)


def test_the_marker_of_one_does_not_depend_on_the_other(tmp_path: Path) -> None:
    """The marker is written for the healthy directory and not for the one with a failing log (6X.338)."""
    spread = spread_over(tmp_path / "a", tmp_path / "b")
    create(spread, "users", 2)
    append(spread.log_dir("users", 0), "users", 0, 1)
    spread.directories[0].log("users", 0).retire(StorageError("gone", errno=5))
    for directory in spread.directories:
        directory.close()
    assert not (tmp_path / "a" / names.CLEAN_SHUTDOWN).exists()
    assert json.loads((tmp_path / "b" / names.CLEAN_SHUTDOWN).read_text())["version"] == 0


def test_a_damaged_partition_list_is_ignored(tmp_path: Path) -> None:
    spread = spread_over(tmp_path / "a", tmp_path / "b")
    create(spread, "users", 2)
    lists = [tmp_path / root / names.PARTITION_LIST for root in "ab"]
    lists[0].write_bytes(lists[0].read_bytes().replace(b"users", b"uters"))
    assert spread.read_list() == [("users", 0), ("users", 1)]
    spread.write_list()
    assert read_partition_list(DEFAULT, str(lists[0])) == [("users", 0), ("users", 1)]
    close(spread)
