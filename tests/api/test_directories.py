"""Several directories as one, retention and trimming, as users see them."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import lastword
from lastword.cli.main import run
from lastword.clock import ManualClock
from lastword.errors import (
    DuplicatePartitionError,
    LastwordError,
    LockLostError,
    LogDirLockedError,
    NoPolicyError,
    OfflineError,
    OffsetOutOfRangeError,
    PartialFailure,
    StorageError,
    SyncFailedError,
    TopicExistsError,
    UnknownTopicError,
    UsageError,
)
from lastword.logdir import LogDirectory, TopicPartition
from lastword.metrics import DIR_OFFLINE
from lastword.partition import PartitionLog
from lastword.testing.unsynced import UNSYNCED
from tests.fakes import RecordingFiles, Stopped
from tests.fakes.failing import FailingFiles
from tests.support.threads import meanwhile

HOUR = 3_600_000


def opened(path: object, mode: str = "a", **more):  # type: ignore[no-untyped-def]
    return lastword.open(path, mode, **({"files": UNSYNCED, "clock": ManualClock()} | more))  # type: ignore[arg-type]


@pytest.fixture
def roots(tmp_path: Path) -> list[str]:
    return [str(tmp_path / name) for name in ("d1", "d2", "d3")]


def fill(logs, topic: str = "users", count: int = 60) -> dict[bytes, bytes]:  # type: ignore[no-untyped-def]
    pairs = {b"k%d" % n: b"v%d" % n for n in range(count)}
    logs.topic(topic).extend(pairs)
    return pairs


def test_a_partition_that_is_deleted_meanwhile_keeps_its_first_error(tmp_path: Path) -> None:
    with lastword.open([tmp_path / "a", tmp_path / "b"], "a") as logs:
        logs.create_topic("t")

        def use(log_dir: LogDirectory) -> None:
            if logs.dirs.has_topic("t"):
                logs.delete_topic("t")
            log_dir.view("t", 0)

        with pytest.raises(UnknownTopicError, match="no topic 't'"):
            logs.dirs.at("t", 0, use)


def test_the_setting_log_dirs_opens_them_together(roots: list[str], tmp_path: Path) -> None:
    with opened(roots) as logs:
        logs.create_topic("users", 5)
        pairs = fill(logs)
    settings = f"log.dirs = {roots}\n"
    for root in roots:
        (tmp_path / "other.toml").write_text(settings)
        with opened(root, config=tmp_path / "other.toml") as logs:
            assert logs.paths[0] == root and sorted(logs.paths) == sorted(roots)
            assert {record.key: record.value for record in logs.topic("users").read()} == pairs
    with opened([roots[0]], "r", config=tmp_path / "other.toml") as logs:
        assert logs.paths == [roots[0]]  # an explicit list names all the directories
    copy = shutil.copytree(roots[0], tmp_path / "copy")
    with pytest.raises(UsageError, match=r"copy is not in log\.dirs"):
        opened(copy, config=tmp_path / "other.toml")
    (tmp_path / "other.toml").write_text('log.dirs = "d1,d2"\n')
    with pytest.raises(UsageError, match="'d1' is not absolute"):
        opened(roots[0], config=tmp_path / "other.toml")


@pytest.mark.parametrize("mode", ["r", "a"])
def test_a_file_in_the_directory_widens_no_call(roots: list[str], mode: str) -> None:
    """A user who may write into a log directory must not choose other directories to be opened or cleaned."""
    with opened(roots[1]) as logs:
        logs.create_topic("victim")
    with opened(roots[0]) as logs:
        logs.create_topic("users")
    file = Path(roots[0], "lastword.toml")
    kept = file.read_text() if file.exists() else ""
    file.write_text(f"log.dirs = {roots[:2]}\n{kept}")
    with pytest.raises(UsageError, match=r"lists more directories \(log\.dirs\)") as caught:
        opened(roots[0], mode)
    assert roots[1] in caught.value.message and f'config="{file}"' in (caught.value.remedy or "")
    with opened(roots[0], mode, config=file) as logs:
        assert {topic.name for topic in logs.topics()} == {"users", "victim"}
    with opened(roots[:1], mode) as logs:
        assert logs.paths == roots[:1]
    file.write_text(f"log.dirs = {roots[:1]}\n{kept}")
    with opened(roots[0], mode) as logs:  # the list names only the directory itself
        assert logs.paths == roots[:1]


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_the_caller_may_name_log_dirs(roots: list[str], how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(roots) as logs:
        logs.create_topic("users", 3)
    settings: dict[str, object] = {}
    if how == "argument":
        settings["log_dirs"] = roots
    else:
        monkeypatch.setenv("LASTWORD_LOG_DIRS", ",".join(roots))
    with opened(roots[1], "r", **settings) as logs:
        assert sorted(logs.paths) == sorted(roots)


def test_a_topic_is_spread_and_read_as_one(roots: list[str]) -> None:
    with opened(roots) as logs:
        logs.create_topic("users", 5, cleanup_policy="compact")
        pairs = fill(logs)
        assert [len(list(Path(root).glob("users-*"))) for root in roots] == [2, 2, 1]
        assert {info.dir for info in logs.topic("users").describe()} == set(roots)
    with opened(list(reversed(roots)), "r") as logs:  # the order of the list does not matter
        assert {r.key: r.value for r in logs.topic("users").read()} == pairs
        assert logs.topic("users").config.cleanup_policy == {"compact"}
        assert logs.topic("users").partitions == 5


def test_settings_lie_in_one_place(roots: list[str]) -> None:
    with opened(roots) as logs:
        logs.create_topic("users", 3, cleanup_policy="compact", key_serializer="str")
        logs.create_topic("events", 3, cleanup_policy="delete", retention_ms="1h")
        assert sum(Path(root, "lastword.toml").exists() for root in roots) == 1
        logs.topic("users").set_config(segment_bytes="1MiB")
        logs.delete_topic("events")
    with opened(roots, "r") as logs:
        assert [topic.name for topic in logs.topics()] == ["users"]
        assert logs.topic("users").config.segment_bytes == 1 << 20
        assert logs.topic("users").schema.saved[0] == "str"


def test_a_topic_that_is_created_while_its_name_is_deleted_keeps_its_settings(
    roots: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LogDirectory.delete_topics

    def delete_topics(directory: LogDirectory, topics: Sequence[str]) -> dict[str, LastwordError]:
        errors = real(directory, topics)
        directory.create_topic("t", 1, {"segment_bytes": 1 << 20})  # as by another thread: the lock is free
        return errors

    with opened(roots[0]) as logs:
        logs.create_topic("t", segment_bytes="2MiB")
        monkeypatch.setattr(LogDirectory, "delete_topics", delete_topics)
        logs.delete_topic("t")
        assert logs.topic("t").config.segment_bytes == 1 << 20


@pytest.mark.parametrize("count", [1, 2])
def test_a_new_topic_never_gets_the_settings_of_one_whose_deletion_was_killed(
    tmp_path: Path, count: int
) -> None:
    begun = [str(tmp_path / "begun" / f"d{number}") for number in range(count)]
    with opened(begun) as logs:
        logs.create_topic("t", 3, cleanup_policy="delete", retention_ms="1s")
    left = set()
    for stop in range(1000):
        shutil.copytree(tmp_path / "begun", tmp_path / "run")
        at = [path.replace("begun", "run") for path in begun]
        files = RecordingFiles(UNSYNCED)
        logs = opened(at, files=files)
        files.stop_at = files._changes + stop
        with suppress(Stopped):
            logs.delete_topic("t")
        is_deleted = not files.stopped
        files.stop()
        with opened(at) as logs:
            left.add(len(list(logs.dirs.topics())))
            if logs.dirs.has_topic("t"):
                assert logs.topic("t").config.retention_ms == 1000
                logs.delete_topic("t")
            assert not list((tmp_path / "run").glob("*/lastword.topic-*"))  # a broker may make a topic
            assert logs.create_topic("t", 3).config.retention_ms == 7 * 24 * 3_600_000
        shutil.rmtree(tmp_path / "run")
        if is_deleted:
            break
    assert left == {0, 1}


class TestBesideAMove:
    """Reads, appends and cleanings go on: each has found the partition in its old place."""

    @pytest.fixture
    def logs(self, roots: list[str], monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
        with opened(roots[:2], log_cleaner_enable=False, file_delete_delay_ms=0) as logs:
            logs.create_topic("t", cleanup_policy="compact", segment_bytes=500)
            fill(logs, "t")
            yield logs

    @staticmethod
    def places(logs, roots: list[str]) -> list[str]:  # type: ignore[no-untyped-def]
        """Return the directory of the partition, and the other one."""
        return sorted(roots[:2], key=lambda root: not Path(root, "t-0").exists())

    def test_reads_that_have_begun(self, logs, roots: list[str]) -> None:  # type: ignore[no-untyped-def]
        here, there = self.places(logs, roots)
        state = logs.state("t", memory="none")
        reads = logs["t"].read(), logs["t"].newest(), state.items()
        old = logs.dirs.log("t", 0)
        logs.move("t", 0, there)
        logs.clean("t")
        for read in reads:
            assert len(list(read)) == 60
        view = old.view()
        view.refresh()
        assert view.directory == os.path.join(there, "t-0") and view.log_end == 60
        logs.move("t", 0, here)
        for _ in range(2):
            view.refresh()
        assert view.directory == os.path.join(here, "t-0")

    @pytest.mark.parametrize("name", ["get", "get_many", "state"])
    def test_a_lookup(self, logs, roots: list[str], monkeypatch: pytest.MonkeyPatch, name: str) -> None:  # type: ignore[no-untyped-def]
        topic, state = logs["t"], logs.state("t", memory="none")
        old = logs.dirs.log("t", 0)
        logs.move("t", 0, self.places(logs, roots)[1])
        log, given = logs.dirs.log, [old]
        monkeypatch.setattr(logs.dirs, "log", lambda *tp: given.pop() if given else log(*tp))
        found = {
            "get": lambda: topic.get(b"k7"),
            "get_many": lambda: topic.get_many([b"k7"])[b"k7"],
            "state": lambda: state[b"k7"],
        }[name]()
        assert found == b"v7" and not given

    def test_an_append(self, logs, roots: list[str], monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
        topic, old = logs["t"], logs.dirs.log("t", 0)
        logs.move("t", 0, self.places(logs, roots)[1])
        log = logs.dirs.log
        for number, append in enumerate([topic.append, lambda *pair: topic.extend([pair])]):
            given = [old]
            monkeypatch.setattr(logs.dirs, "log", lambda *tp, given=given: given.pop() if given else log(*tp))
            append(b"k", b"%d" % number)
            assert topic.get(b"k") == b"%d" % number and not given
            topic._logs.clear()

    def test_a_log_that_is_not_open_and_a_cleaning(self, logs, roots, monkeypatch) -> None:  # type: ignore[no-untyped-def]
        old = logs.dirs.log_dir("t", 0)
        logs.move("t", 0, self.places(logs, roots)[1])
        log_dir, given = logs.dirs.log_dir, []
        monkeypatch.setattr(logs.dirs, "log_dir", lambda *tp: given.pop() if given else log_dir(*tp))
        for use in (logs.dirs.log, logs.dirs.view):
            given.append(old)
            assert use("t", 0).directory.startswith(self.places(logs, roots)[0]) and not given
        given[:] = [old] * 2
        assert logs.clean("t") and not given

    def test_a_watch_goes_on_after_a_move_there_and_back(self, logs, roots: list[str]) -> None:  # type: ignore[no-untyped-def]
        with logs["t"].watch() as watch:
            logs["t"].append(b"a", b"1")
            assert [record.key for record in watch.take(10)] == [b"a"]
            for place in reversed(self.places(logs, roots)):
                logs.move("t", 0, place)
            logs["t"].append(b"b", b"1")
            assert [record.key for record in watch.take(10)] == [b"b"]


@pytest.mark.parametrize("alone", [True, False])
def test_a_partition_that_was_moved_away_takes_no_settings_with_it(roots: list[str], alone: bool) -> None:
    """A kill leaves the directory of a moved partition as that of a deleted one, beside the settings."""
    two, name = roots[:2], f"t-0.{0:032x}-delete"
    with opened(two) as logs:
        logs.create_topic("t", retention_ms="1s")
        logs.move("t", 0, two[1])
    shutil.copytree(Path(two[1], "t-0"), Path(two[0], name))
    with opened(two[0] if alone else two):
        assert not Path(two[0], name).exists()
    with opened(two) as logs:
        assert logs.topic("t").config.retention_ms == 1000


def test_a_topic_that_is_created_in_another_directory_while_its_name_is_deleted_keeps_its_settings(
    roots: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, threads = LogDirectory.delete_topics, []

    def delete_topics(directory: LogDirectory, topics: Sequence[str]) -> dict[str, LastwordError]:
        errors = real(directory, topics)
        threads.append(threading.Thread(target=lambda: logs.create_topic("t", segment_bytes=1 << 20)))
        threads[0].start()
        threads[0].join(0.2)  # it waits for the end of the deletion
        return errors

    with opened(roots) as logs:
        logs.create_topic("first", segment_bytes="4MiB")  # the settings are in its directory
        logs.create_topic("t", segment_bytes="2MiB")
        monkeypatch.setattr(LogDirectory, "delete_topics", delete_topics)
        logs.delete_topic("t")
        threads[0].join()
        assert logs.topic("t").config.segment_bytes == 1 << 20


def test_other_topics_are_created_while_a_deletion_waits_for_a_cleaning(roots: list[str]) -> None:
    with opened(roots) as logs, ThreadPoolExecutor(2) as pool:
        logs.create_topic("t")
        directory = logs.dirs.partitions("t")[0]
        with directory.claim("t", 0):
            deletions = [pool.submit(logs.delete_topic, "t") for _ in range(2)]
            while directory._locks._wanted[TopicPartition("t", 0)] < 2:
                time.sleep(0.001)
            assert logs.create_topic("other", segment_bytes="1MiB").config.segment_bytes == 1 << 20
        errors = [deletion.exception() for deletion in deletions]
        assert sorted(type(error).__name__ for error in errors) == ["NoneType", "UnknownTopicError"]
        assert list(logs.dirs.topics()) == ["other"]


def test_a_change_of_settings_while_a_topic_is_deleted_leaves_none(
    roots: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, threads = LogDirectory.set_config, []

    def set_config(directory: LogDirectory, *given: object) -> None:
        threads.append(threading.Thread(target=lambda: logs.delete_topic("t")))
        threads[0].start()
        threads[0].join(0.2)  # it waits for the end of the change
        real(directory, *given)  # type: ignore[arg-type]

    with opened(roots[0]) as logs:
        logs.create_topic("t")
        monkeypatch.setattr(LogDirectory, "set_config", set_config)
        logs.set_config("t", retention_ms=1)
        threads[0].join()
        assert logs.dirs.topics() == {} and not Path(roots[0], "lastword.topic-t.toml").exists()


def test_a_failed_creation_changes_no_settings_that_were_there(roots: list[str]) -> None:
    files = RecordingFiles(UNSYNCED)
    with opened(roots, files=files) as logs:
        logs.create_topic("first")
        by_hand = '[topics.t]\nretention.ms = "2d"  # before the topic is created\n'
        Path(logs.dirs.settings_file).write_text(by_hand)
        for call_name in ("mkdir", "rename"):
            error = StorageError("planted")
            files.fail = lambda call, name=call_name, error=error: (  # type: ignore[misc]
                error if call.name == name and ("/t-" in call.path or "toml" in call.path) else None
            )
            with pytest.raises(StorageError):
                logs.create_topic("t", 3, segment_bytes="1MiB")
            files.fail = None
            assert Path(logs.dirs.settings_file).read_text() == by_hand
        assert logs.create_topic("t", 3).config.retention_ms == 2 * 24 * 3_600_000


def test_a_topic_that_cannot_be_deleted_keeps_its_settings_in_another_directory(roots: list[str]) -> None:
    files = RecordingFiles(UNSYNCED)
    with opened(roots, files=files) as logs:
        logs.create_topic("t", 3, segment_bytes="1MiB", cleanup_policy="compact")
        error = StorageError("planted")
        files.fail = lambda call: error if call.name == "rename" and call.path.endswith("t-1") else None
        with pytest.raises(StorageError):
            logs.delete_topic("t")
        files.fail = None
        config = logs.dirs.config("t")
        assert (config.segment_bytes, config.cleanup_policy) == (1 << 20, {"compact"})
        logs.delete_topic("t")
        assert "topics.t" not in Path(logs.dirs.settings_file).read_text()


class TestOneThatFails:
    def broken(self, path: str) -> RecordingFiles:
        """Return files that cannot list this directory."""
        error = StorageError(f"cannot list {path}: Input/output error", file=path, errno=5)
        return RecordingFiles(
            UNSYNCED,
            fail=lambda call: error if call.name == "listdir" and call.path.startswith(path) else None,
        )

    def test_the_rest_serves(self, roots: list[str]) -> None:
        with opened(roots) as logs:
            logs.create_topic("users", 6, cleanup_policy="compact")
            pairs = fill(logs)
        with opened(roots, files=self.broken(roots[1])) as logs:
            assert list(logs.offline) == [roots[1]]
            assert DIR_OFFLINE.value(os.path.realpath(roots[1])) == 1
            users = logs.topic("users")
            assert users.partitions == 6  # not fewer: keys would be assigned to other partitions
            seen: dict[bytes, bytes] = {}
            for partition in range(6):
                if partition in (1, 4):
                    with pytest.raises(OfflineError, match="Input/output error"):
                        list(users.read(partition=partition))
                    with pytest.raises(OfflineError):
                        users.append(b"k", b"v", partition=partition)
                else:
                    seen.update({r.key: r.value for r in users.read(partition=partition)})
                    users.append(b"more", b"v", partition=partition)
            assert seen.items() <= pairs.items() and 0 < len(seen) < len(pairs)
            with pytest.raises(PartialFailure) as caught:
                logs.clean()
            assert isinstance(caught.value, OfflineError) and len(caught.value.results) == 4
            for call in (lambda: logs.create_topic("new"), lambda: logs.delete_topic("users")):
                with pytest.raises(OfflineError):
                    call()
            with pytest.raises(TopicExistsError):
                logs.create_topic("users")
        with opened(roots) as logs:
            assert logs.offline == {}
            assert DIR_OFFLINE.value(os.path.realpath(roots[1])) == 0
            assert {r.key for r in logs.topic("users").read(partition=1)} <= pairs.keys()

    def test_a_failed_sync_while_open(self, roots: list[str]) -> None:
        with opened(roots[:2]) as logs:
            logs.create_topic("users", 2, cleanup_policy="compact")

        class OneRoot(FailingFiles):
            """A failure stays in the directory in which it happened."""

            def offline(self, path):  # type: ignore[no-untyped-def]
                return self._offline if str(path).startswith(roots[0]) else None

            def _fails(self, call):  # type: ignore[no-untyped-def]
                return super()._fails(call) if call.path.startswith(roots[0]) else None

        files = OneRoot(UNSYNCED, "EIO on fsync", 0)
        logs = opened(roots[:2], files=files)
        users = logs.topic("users")
        for partition in (0, 1):
            users.append(b"k", b"v", partition=partition)
        files.arm()
        with pytest.raises(SyncFailedError):
            users.append(b"k", b"v", partition=0, ack="disk")
        for _ in range(2):
            with pytest.raises(SyncFailedError):
                users.append(b"k", b"v", partition=0)
            users.append(b"k", b"v", partition=1, ack="disk")
        assert list(logs.offline) == [roots[0]]
        assert [r.value for r in users.read(partition=1)] == [b"v"] * 3
        with pytest.raises(SyncFailedError):
            logs.close()
        assert not Path(roots[0], ".kafka_cleanshutdown").exists()
        assert Path(roots[1], ".kafka_cleanshutdown").exists()

    @pytest.mark.parametrize("is_empty", [False, True])
    def test_a_drive_that_is_unmounted(self, roots: list[str], tmp_path: Path, is_empty: bool) -> None:
        """Its partitions are known still: with fewer, keys would be assigned to others."""
        logs = opened(roots[:2])
        users = logs.create_topic("users", 2, cleanup_policy="compact")
        for partition in (0, 1):
            users.append(b"k", b"v", partition=partition)
        Path(roots[1]).rename(tmp_path / "unmounted")
        if is_empty:
            Path(roots[1]).mkdir()
        for _ in range(2):
            assert [topic.partitions for topic in logs.topics()] == [2]
            assert "users" in logs and list(logs.offline) == [roots[1]]
            logs.topic("users").append(b"k", b"w", partition=0)
        assert len(list(logs.topic("users").read(partition=0))) == 3
        for call in (logs.sync, logs.close):
            with pytest.raises(LockLostError):
                call()

    @pytest.mark.parametrize("directories", [1, 3])
    def test_a_sync_goes_on_after_a_failure(
        self, roots: list[str], monkeypatch: pytest.MonkeyPatch, directories: int
    ) -> None:
        """In other directories, and in other partitions of the directory."""
        with opened(roots[:directories]) as logs:
            users = logs.create_topic("users", 6, cleanup_policy="compact")
            for partition in range(6):
                users.append(b"k", b"v", partition=partition)
            flush, failed = PartitionLog.flush, logs.dirs.log("users", 0)

            def fails(log: PartitionLog) -> None:
                if log is failed:
                    raise SyncFailedError("Input/output error")
                flush(log)

            monkeypatch.setattr(PartitionLog, "flush", fails)
            with pytest.raises(SyncFailedError):
                logs.sync()
            monkeypatch.undo()
            synced = [logs.dirs.log("users", partition).synced_to for partition in range(6)]
            assert synced == [0, 1, 1, 1, 1, 1]

    def test_no_part_of_a_topic_is_removed_while_another_is_offline(self, roots: list[str]) -> None:
        class Second(type(UNSYNCED)):  # type: ignore[misc]
            failed = False

            def offline(self, path):  # type: ignore[no-untyped-def]
                failed = self.failed and str(path).startswith(roots[1])
                return SyncFailedError.of("x.log", "EIO", roots[1], 5) if failed else None

        files = Second()
        with opened(roots[:2], files=files) as logs:
            logs.create_topic("users", 2)
            files.failed = True
            with pytest.raises(OfflineError):
                logs.delete_topic("users")
            files.failed = False
            assert logs.topic("users").partitions == 2

    def test_all_of_them(self, roots: list[str]) -> None:
        with opened(roots[:1]) as logs:
            logs.create_topic("users")
        with pytest.raises(StorageError):
            opened(roots[:1], files=self.broken(roots[0]))

    def test_a_lock_is_no_failure(self, roots: list[str]) -> None:
        with opened(roots[1]), pytest.raises(LogDirLockedError):
            opened(roots)
        with opened(roots):  # and no lock is left
            pass


def test_one_partition_twice(roots: list[str]) -> None:
    """The partition that is in two directories is refused; the other topics are read, written and cleaned."""
    with opened(roots[0]) as logs:
        logs.create_topic("users", 2, cleanup_policy="compact")
        logs.create_topic("others", cleanup_policy="compact")
    shutil.copytree(f"{roots[0]}/users-0", f"{roots[1]}/users-0")
    before = sorted(Path(roots[1]).iterdir())
    for mode in ("a", "r"):
        with opened(roots[:2], mode) as logs:
            if mode == "a":
                for value in (b"1", b"2"):
                    logs.topic("others").append(b"k", value)
                    logs.topic("users").append(b"k", value, partition=1)
                with pytest.raises(DuplicatePartitionError):
                    logs.topic("users").append(b"k", b"v", partition=0)
                with pytest.raises(DuplicatePartitionError):
                    logs.delete_topic("users")
                with pytest.raises(PartialFailure) as caught:
                    logs.clean()
                assert isinstance(caught.value.errors[0], DuplicatePartitionError)
                assert {round.topic for round in caught.value.results} == {"users", "others"}
            assert [record.value for record in logs.topic("others").read()] == [b"2"]
            assert [record.value for record in logs.topic("users").read(partition=1)] == [b"2"]
            with pytest.raises(DuplicatePartitionError):
                list(logs.topic("users").read())
    assert set(before) <= set(Path(roots[1]).iterdir()) and Path(roots[0], "users-0").exists()
    with opened(roots[:1]):
        pass


def test_moving(roots: list[str]) -> None:
    with opened(roots[:2]) as logs:
        logs.create_topic("users", 2, cleanup_policy="compact")
        pairs = fill(logs)
        users = logs.topic("users")
        logs.move("users", 0, roots[1])
        assert {info.dir for info in users.describe()} == {roots[1]}
        users.append(b"after", b"x", partition=0)
        for partition, path in ((0, roots[1]), (0, roots[2]), (7, roots[0])):
            with pytest.raises(UsageError):
                logs.move("users", partition, path)
        logs.clean()
    with opened(roots[:2], "r") as logs:
        assert {r.key: r.value for r in logs.topic("users").read()} == pairs | {b"after": b"x"}
    assert all(Path(root, ".kafka_cleanshutdown").exists() for root in roots[:2])


class TestTrim:
    def test_before_an_offset(self, tmp_path: Path) -> None:
        with opened(tmp_path / "d") as logs:
            users = logs.create_topic("users")
            users.extend([(b"k%d" % n, b"v") for n in range(10)])
            assert users.trim(4) == {0: 4}
            assert users.trim(2) == {0: 4}
            assert [r.offset for r in users.read()] == list(range(4, 10))
            with pytest.raises(OffsetOutOfRangeError, match="above log end"):
                users.trim(11)
            with pytest.raises(OffsetOutOfRangeError, match=r"below log start 4 \(trim, ") as caught:
                users.read(start=3)
            assert caught.value.kafka_code == 1
            assert users.trim(10) == {0: 10}
            assert users.append(b"k", b"v").offset == 10
        with opened(tmp_path / "d", "r") as logs:
            assert [r.offset for r in logs.topic("users").read()] == [10]

    def test_before_a_time(self, tmp_path: Path) -> None:
        clock = ManualClock()
        with opened(tmp_path / "d", clock=clock) as logs:
            users = logs.create_topic("users", 2)
            for _ in range(5):
                for partition in (0, 1):
                    users.append(b"k", b"v", partition=partition)
                clock.advance(HOUR)
            now = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
            assert users.trim(now - timedelta(hours=3), partition=0) == {0: 2}
            assert users.trim(now - timedelta(hours=2)) == {0: 3, 1: 3}
            assert users.trim(now) == {0: 5, 1: 5}

    def test_all_partitions_or_none(self, tmp_path: Path) -> None:
        with opened(tmp_path / "d") as logs:
            users = logs.create_topic("users", 2)
            users.append(b"k", b"v", partition=0)
            with pytest.raises(OffsetOutOfRangeError):
                users.trim(1)
            assert users.bounds() == {0: (0, 1), 1: (0, 0)}


class TestExpire:
    def test_a_plan_is_a_value_and_so_is_what_was_done(self, tmp_path: Path) -> None:
        clock = ManualClock()
        with opened(tmp_path / "d", clock=clock) as logs:
            events = logs.create_topic(
                "events", cleanup_policy="delete", retention_ms="1h", segment_bytes=300
            )
            for _ in range(6):
                events.append(b"k", b"v" * 100)
                clock.advance(HOUR // 2)
            plans = [plan for plan in logs.plan() if plan.action == "delete"]
            assert len(plans) == 1 and plans[0].reasons[0].code == "retention.ms"
            done = logs.expire("events")
            assert [d.segments for d in done] == [plans[0].segments]
            assert done[0].freed_bytes == plans[0].free_bytes and done[0].log_start == plans[0].log_start
            assert logs.expire("events") == [] and logs.expire() == []
            assert not [plan for plan in logs.plan() if plan.action == "delete"]

    def test_only_with_a_policy(self, tmp_path: Path) -> None:
        clock = ManualClock()
        with opened(tmp_path / "d", clock=clock) as logs:
            bare = logs.create_topic("bare")
            bare.append(b"k", b"v")
            clock.advance(365 * 24 * HOUR)
            assert logs.expire() == []
            with pytest.raises(NoPolicyError):
                logs.expire("bare")
            assert bare.bounds() == {0: (0, 1)}

    def test_while_it_is_cleaned_appended_and_read(self, tmp_path: Path) -> None:
        """A rewrite and a removal wait for each other; a reader gets every record above the log start."""
        with opened(tmp_path / "d") as logs:
            users = logs.create_topic(
                "users", cleanup_policy="compact,delete", segment_bytes=2000, retention_bytes=6000
            )

            def read() -> None:
                try:
                    offsets = [r.offset for r in users.read()]
                except OffsetOutOfRangeError:
                    return  # records that it was reading were removed
                assert offsets == sorted(offsets)

            with meanwhile(logs.clean, logs.expire, read):
                for number in range(400):
                    users.append(b"k%d" % (number % 50), b"v" * 50)
            assert {r.key for r in users.read()} <= {b"k%d" % n for n in range(50)}


def test_ls_shows_what_is_set_aside(roots: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with opened(roots[:1]) as logs:
        logs.create_topic("users", 2)
    stray = f"users-1.{'0f' * 16}-stray"
    shutil.move(f"{roots[0]}/users-1", f"{roots[0]}/{stray}")
    assert run(["ls", roots[0], "--json"]) == 0
    assert f'"type":"set-aside","dir":"{roots[0]}","name":"{stray}"' in capsys.readouterr().out
    assert run(["ls", roots[0]]) == 0
    assert f"not served: {roots[0]}/{stray}" in capsys.readouterr().err
