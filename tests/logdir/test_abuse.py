"""reliability 11, 13, 14, 15: damaged checkpoints, hostile names, links, permissions, locks.

Each ends in one of: fine, a typed error with nothing changed, repaired, one partition or directory offline.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lastword.errors import (
    InvalidTopicError,
    LogDirLockedError,
    NotAPartitionError,
    StorageError,
    TopicExistsError,
    UnknownTopicError,
)
from lastword.files import DEFAULT
from lastword.logdir import LogDirectory
from lastword.segment import names
from lastword.testing.unsynced import UNSYNCED
from tests.partition.logs import append, build_batch, opened_directory, pair, records
from tests.support.users import NOBODY, public_directory, run_as

CHECKPOINTS = (names.RECOVERY_POINTS, names.LOG_STARTS, names.FIRST_DIRTY, names.HIGH_WATERMARKS)


def write_directory(path: Path, partitions: int = 1, count: int = 8) -> None:
    with opened_directory(path) as logs:
        logs.create_topic("users", partitions, {"segment.bytes": "400"})
        for partition in range(partitions):
            append(logs, "users", partition, count)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"0",
        b"0\n",
        b"0\n1\n",
        b"7\n1\nusers 0 3\n",
        b"0\n1\nusers 0 -3\n",
        b"0\n1\nusers 0 4000000000000\n",
        b"0\n2\nusers 0 3\nusers 0 4\n",
        b"\xff\xfe\x00",
        b"0\n1\nusers 0\n",
        b"0\n1\nusers -1 3\n",
        b"0\n9\nusers 0 3\n",
        b"0\n-1\n",
        "0\n1\nusers 0 ٣\n".encode(),
    ],
)
def test_11_damaged_checkpoints_cost_no_record(tmp_path: Path, data: bytes, clean: bool) -> None:
    write_directory(tmp_path)
    for name in CHECKPOINTS:
        (tmp_path / name).write_bytes(data)
    if not clean:
        (tmp_path / names.CLEAN_SHUTDOWN).unlink()
    for mode in "ra":
        with opened_directory(tmp_path, mode) as logs:
            assert records(logs.view("users", 0)) == [pair(n) for n in range(8)]
    with opened_directory(tmp_path) as logs:
        logs.set_first_dirty("users", 0, 4)
        assert logs.log("users", 0).log_start == 0 and logs.first_dirty("users", 0) == 4


def test_11_a_gigabyte_of_checkpoint_is_not_read(tmp_path: Path) -> None:
    write_directory(tmp_path)
    with open(tmp_path / names.LOG_STARTS, "r+b") as file:  # noqa: PTH123
        file.truncate(1 << 30)  # sparse
    began = time.monotonic()
    with opened_directory(tmp_path, "r") as logs:
        assert len(records(logs.view("users", 0))) == 8
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "name", ["..", ".", "/etc", "a/../b", "a\0b", "a\nb", "", " ", "x" * 250, "é", "a b", "../../tmp/x"]
)
def test_13_hostile_names(tmp_path: Path, name: str) -> None:
    root = tmp_path / "d"
    write_directory(root)
    before = sorted(str(p) for p in tmp_path.rglob("*"))
    with opened_directory(root) as logs:
        for call in (
            lambda: logs.create_topic(name),
            lambda: logs.delete_topic(name),
            lambda: logs.log(name, 0),
            lambda: logs.view(name, 0),
        ):
            with pytest.raises((InvalidTopicError, UnknownTopicError)):
                call()
    assert sorted(str(p) for p in tmp_path.rglob("*")) == before


def test_13_the_longest_name_lives_and_dies(tmp_path: Path) -> None:
    name = "x" * 249
    with opened_directory(tmp_path) as logs:
        logs.create_topic(name)
        logs.delete_topic(name)
        marked = [p.name for p in tmp_path.iterdir() if p.name.endswith("-delete")]
        assert len(marked) == 1 and len(marked[0]) <= 255
        logs.create_topic(name)
    with opened_directory(tmp_path) as logs:
        assert logs.topics() == [name]


def test_13_case_twins_are_two_topics(tmp_path: Path) -> None:
    with opened_directory(tmp_path) as logs:
        logs.create_topic("users")
        logs.create_topic("Users")
        assert logs.topics() == ["Users", "users"]
        with pytest.raises(TopicExistsError):
            logs.create_topic("users")


@pytest.mark.parametrize("link", ["partition", "lock"])
def test_13_links_are_not_followed(tmp_path: Path, link: str) -> None:
    root, outside = tmp_path / "d", tmp_path / "outside"
    write_directory(root)
    outside.mkdir()
    if link == "partition":
        shutil.move(root / "users-0", outside / "users-0")
        (root / "users-0").symlink_to(outside / "users-0")
    else:
        (outside / "lock").write_bytes(b"")
        (root / names.LOCK).unlink()
        (root / names.LOCK).symlink_to(outside / "lock")
    before = sorted(str(p) for p in outside.rglob("*"))
    for mode in "ra" if link == "partition" else "a":
        with (
            pytest.raises((NotAPartitionError, StorageError)) as caught,
            opened_directory(root, mode) as logs,
        ):
            logs.view("users", 0)
        assert str(root) in str(caught.value)
    assert sorted(str(p) for p in outside.rglob("*")) == before


def test_13_a_linked_segment_is_not_written_through(tmp_path: Path) -> None:
    write_directory(tmp_path / "d", count=2)
    log = tmp_path / "d" / "users-0" / names.segment_file(0, names.LOG)
    outside = tmp_path / "outside"
    outside.write_bytes(log.read_bytes())
    log.unlink()
    log.symlink_to(outside)
    before = outside.read_bytes()
    with opened_directory(tmp_path / "d") as logs, pytest.raises(NotAPartitionError, match="symbolic link"):
        logs.log("users", 0).append_batch(build_batch(2))
    assert outside.read_bytes() == before


AS_NOBODY = """
import sys
from lastword.logdir import LogDirectory
from lastword.errors import LastwordError
def tried(call):
    try:
        return call()
    except LastwordError as error:
        return type(error).__name__
import lastword
"""


def as_nobody(code: str) -> str:
    """Return the output of a script that a user other than root runs."""
    done = run_as(NOBODY, "-c", AS_NOBODY + code)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def public() -> Iterator[Path]:
    """Yield a directory that every user can reach."""
    with public_directory() as path:
        yield path


def open_up(root: Path) -> None:
    for path in [root, *root.rglob("*")]:
        path.chmod(0o777 if path.is_dir() else 0o666)


def test_14_one_unreadable_partition_the_others_serve(public: Path) -> None:
    write_directory(public / "d", 2)
    open_up(public / "d")
    for path in (public / "d" / "users-0").glob("*.log"):
        path.chmod(0)
    printed = as_nobody(f"""
for mode in "ra":
    logs = LogDirectory.open({str(public / "d")!r}, mode)
    print(tried(lambda: logs.view("users", 0)), logs.view("users", 1).log_end)
    logs.abandon()
""")
    assert printed == "NotPermittedError 8\nNotPermittedError 8"


def test_14_a_read_only_directory_can_be_read(public: Path) -> None:
    write_directory(public / "d")
    open_up(public / "d")
    for path in [public / "d", *(public / "d").rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = sorted((str(p), p.stat().st_mtime_ns) for p in (public / "d").rglob("*"))
    printed = as_nobody(f"""
with lastword.open({str(public / "d")!r}) as logs:
    print(len(list(logs.topic("users").read())))
print(tried(lambda: lastword.open({str(public / "d")!r}, "a")))
""")
    assert printed == "8\nNotPermittedError"
    open_up(public / "d")
    assert [name for name, _ in before] == sorted(str(p) for p in (public / "d").rglob("*"))


def test_14_an_unreadable_directory_of_several_goes_offline_alone(public: Path) -> None:
    import lastword

    roots = [str(public / "d1"), str(public / "d2")]
    with lastword.open(roots, "a", files=UNSYNCED) as logs:
        logs.create_topic("users", 2)
        logs.topic("users").append(b"k", b"v", partition=1)
    for root in roots:
        open_up(Path(root))
    Path(roots[0]).chmod(0)
    printed = as_nobody(f"""
for mode in "ra":
    with lastword.open({roots!r}, mode) as logs:
        users = logs.topic("users")
        print(list(logs.offline) == [{roots[0]!r}], users.partitions,
              [r.value for r in users.read(partition=1)], tried(lambda: list(users.read(partition=0))))
""")
    Path(roots[0]).chmod(0o777)
    assert printed == "\n".join(["True 2 [b'v'] OfflineError"] * 2)


def test_15_second_writers_and_stale_locks(tmp_path: Path) -> None:
    """6X.337: A second writer of a directory fails; after the first one stopped, the lock is free.

    Here: The lock file stays, so that no writer locks a file that was deleted. Without a writer, it locks
    nothing.
    """
    write_directory(tmp_path)
    root = str(tmp_path)
    opening = f"""
import os, sys, time
from lastword.logdir import LogDirectory
logs = LogDirectory.open({root!r}, "a")
print("mine", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", opening], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "mine\n"
        began = time.monotonic()
        with pytest.raises(LogDirLockedError) as caught:
            LogDirectory.open(tmp_path, "a", DEFAULT)
        assert time.monotonic() - began < 10 and caught.value.pid == other.pid
        other.kill()
        other.wait()
    with LogDirectory.open(tmp_path, "a", DEFAULT) as logs:  # a killed process holds no lock
        child = os.fork()
        if child == 0:  # an inherited handle does not give the child the lock: it stays the parent's
            try:
                LogDirectory.open(tmp_path, "a", DEFAULT)
                os._exit(1)
            except LogDirLockedError:
                os._exit(0)
            except BaseException:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        with pytest.raises(LogDirLockedError):
            LogDirectory.open(tmp_path, "a", DEFAULT)
        assert logs.log("users", 0).log_end == 8
    assert (tmp_path / names.LOCK).exists()
    LogDirectory.open(tmp_path, "a", DEFAULT).close()
