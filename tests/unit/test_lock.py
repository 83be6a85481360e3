"""The lock: between processes, inside one, and across fork.

Also beside code that opens and closes the file, and when the file behind the path changes.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import lastword
from lastword.errors import LastwordError, LockLostError, LogDirLockedError, OfflineError
from lastword.files import OsFiles
from lastword.files import lock as lock_file
from tests.support.linux import PORTABLE, linux_only

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "w+")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
sys.stdin.read()
"""

TRY = """
import fcntl, sys
file = open(sys.argv[1], "r+")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("free")
except OSError:
    print("locked")
"""


TAKE = """
import sys
from lastword.errors import LogDirLockedError
from lastword.files import OsFiles
try:
    OsFiles().lock(sys.argv[1]).release()
    print("free")
except LogDirLockedError as error:
    print(type(error).__name__, error.pid)
"""


def taken_elsewhere(path: Path) -> str:
    done = subprocess.run([sys.executable, "-c", TAKE, str(path)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@contextmanager
def held_elsewhere(path: Path) -> Iterator[int]:
    """Hold the lock in another process as Kafka does; yield its pid."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == b"held\n"
    try:
        yield process.pid
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def seen_from_outside(path: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-S", "-c", TRY, str(path)], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / ".lock"


def test_another_process_is_refused_and_let_in_after(path: Path) -> None:
    with OsFiles().lock(path) as lock:
        assert lock.held
        assert seen_from_outside(path) == "locked"
    assert not lock.held
    assert seen_from_outside(path) == "free"


def test_the_holder_is_named(path: Path) -> None:
    with held_elsewhere(path) as pid, pytest.raises(LogDirLockedError) as caught:
        OsFiles().lock(path)
    assert caught.value.pid == pid
    assert f"{path.parent} is in use by process {pid}" in caught.value.message
    if Path("/proc").exists() and not PORTABLE:
        assert caught.value.process and caught.value.process.startswith("python")
        assert f"process {pid} (python" in caught.value.message
    OsFiles().lock(path).release()


def test_the_same_process_is_refused_too_and_keeps_its_lock(path: Path) -> None:
    lock = OsFiles().lock(path)
    descriptors = len(list(Path("/dev/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(LogDirLockedError, match=str(os.getpid())):
            OsFiles().lock(path)
        assert seen_from_outside(path) == "locked", (
            "the refused attempt must not close a descriptor of the file"
        )
    assert len(list(Path("/dev/fd").iterdir())) == descriptors, "a refused attempt keeps none"
    lock.release()
    OsFiles().lock(path).release()


def test_other_names_of_the_same_file_are_the_same_lock(path: Path, tmp_path: Path) -> None:
    (tmp_path / "other").symlink_to(tmp_path)
    lock = OsFiles().lock(path)
    with pytest.raises(LogDirLockedError):
        OsFiles().lock(tmp_path / "other" / ".lock")
    os.link(path, tmp_path / "hard")
    with pytest.raises(LogDirLockedError):
        OsFiles().lock(tmp_path / "hard")
    assert seen_from_outside(path) == "locked"
    lock.release()


def test_the_file_stays_when_the_lock_is_released_and_locks_nothing(path: Path) -> None:
    for _ in range(2):
        OsFiles().lock(path).release()
        assert path.read_bytes() == b""


@linux_only
def test_code_that_closes_the_file_frees_nothing(path: Path) -> None:
    """A POSIX lock of the process would be released: Kafka, and a second writer, could open the log."""
    lock = OsFiles().lock(path)
    path.read_bytes()
    with path.open("r+"):
        pass
    assert seen_from_outside(path) == "locked", "by Kafka's kind of lock"
    assert taken_elsewhere(path) == f"LogDirLockedError {os.getpid()}", "and the holder is still named"
    lock.release()
    assert seen_from_outside(path) == "free"


@linux_only
def test_a_copy_of_the_directory_frees_nothing(tmp_path: Path) -> None:
    """A backup in the same process copies `.lock` too."""
    root = tmp_path / "data"
    with lastword.open(root, "a", log_cleaner_enable=False) as logs:
        logs.state("users")["ada"] = 1
        shutil.copytree(root, tmp_path / "backup")
        assert seen_from_outside(root / ".lock") == "locked"
        assert taken_elsewhere(root / ".lock") == f"LogDirLockedError {os.getpid()}"
        logs.state("users")["bob"] = 2
    with lastword.open(root) as logs:
        assert dict(logs.state("users")) == {"ada": 1, "bob": 2}


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_lost_lock_takes_the_directory_offline(tmp_path: Path, how: str) -> None:
    root = tmp_path / "data"
    logs = lastword.open(root, "a", log_cleaner_enable=False)
    users = logs.create_topic("users", cleanup_policy="compact", segment_bytes=2_000)
    for _number in range(30):
        users.append(b"key", b"x" * 150)
    (root / ".lock").unlink()
    if how == "replaced":
        (root / ".lock").touch()
    before = sorted(path.relative_to(root) for path in root.rglob("*"))
    for change in (
        lambda: users.append(b"key", b"x" * 1_900),  # needs a new segment
        lambda: users.append(b"key", b"y", ack="disk"),
        lambda: logs.create_topic("orders"),
        lambda: users.set_config(segment_bytes=3_000),
        logs.sync,
    ):
        with pytest.raises((LockLostError, OfflineError), match=rf"\.lock was {how} while this process held"):
            change()
    with pytest.raises(LastwordError):
        logs.clean("users")
    assert users.read().position == {0: 0}, "reading goes on"
    assert len(list(users.read())) >= 30
    with pytest.raises(LastwordError):
        logs.close()
    assert sorted(path.relative_to(root) for path in root.rglob("*")) == before, "nothing was made or removed"
    with lastword.open(root, "a", log_cleaner_enable=False) as logs:
        logs.topic("users").append(b"key", b"again")


def test_a_second_opening_that_is_refused_changes_nothing_for_the_first(tmp_path: Path) -> None:
    """A commit of this process tries to open the directory again and again, while it is open here."""
    root = tmp_path / "data"
    logs = lastword.open(root, "a", log_cleaner_enable=False)
    logs.create_topic("users")
    with pytest.raises(LogDirLockedError):
        lastword.open(root, "a")
    (root / ".lock").rename(root / "away")
    with pytest.raises((LockLostError, OfflineError), match="removed"):
        logs.create_topic("orders")
    (root / "away").rename(root / ".lock")
    with pytest.raises(LogDirLockedError):
        lastword.open(root, "a")
    with pytest.raises((LockLostError, OfflineError), match="removed"):
        logs.create_topic("orders")  # the failure is final until the directory is opened again
    with pytest.raises(LastwordError):
        logs.close()
    lastword.open(root, "a").close()


def test_release_twice_frees_nothing_of_the_next_holder(path: Path) -> None:
    first = OsFiles().lock(path)
    first.release()
    second = OsFiles().lock(path)
    first.release()
    assert second.held
    assert seen_from_outside(path) == "locked"
    second.release()


def test_a_file_that_was_removed_between_opening_and_locking_is_not_the_lock(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka removes the file when it stops. A lock on the removed file would exclude no process."""
    real = lock_file._lock
    stops = []

    def kafka_stops_meanwhile(fd: int) -> None:
        if not stops:
            stops.append(path.unlink())
            path.touch()  # and another process makes its own file
        real(fd)

    monkeypatch.setattr(lock_file, "_lock", kafka_stops_meanwhile)
    lock = OsFiles().lock(path)
    monkeypatch.undo()
    assert stops
    assert seen_from_outside(path) == "locked"
    lock.release()


def test_a_forked_child_holds_nothing_and_frees_nothing(path: Path) -> None:
    lock = OsFiles().lock(path)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        answers = [str(lock.held)]
        try:
            OsFiles().lock(path)
            answers.append("taken")
        except LogDirLockedError as error:
            answers.append(f"refused {error.pid == os.getppid()}")
        lock.release()
        os.write(writing, " ".join(answers).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 100) == b"False refused True"
    os.close(reading)
    os.close(writing)
    assert lock.held
    assert seen_from_outside(path) == "locked"
    lock.release()


def test_a_child_does_not_keep_the_lock_of_a_parent_that_has_ended(path: Path) -> None:
    parent = """
import os, sys, time
from lastword.files import OsFiles
lock = OsFiles().lock(sys.argv[1])
if os.fork() == 0:
    print("forked", flush=True)
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", parent, str(path)], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == b"forked\n"
        assert taken_elsewhere(path).startswith("LogDirLockedError")
        process.kill()
        process.wait()
        assert taken_elsewhere(path) == "free", "the child lives, and holds nothing"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
