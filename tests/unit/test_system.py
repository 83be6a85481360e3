"""System calls that only some systems have, and the way without them."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from lastword.files import OsFiles, system
from lastword.files.scratch import Scratch
from tests.support.linux import SITE

FULL = 51  # F_FULLFSYNC of macOS


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the syncs that are made; none reaches the system."""
    made: list[str] = []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda fd, name=name: made.append(name), raising=False)
    monkeypatch.delattr(fcntl, "F_FULLFSYNC", raising=False)
    return made


def offer_full_sync(monkeypatch: pytest.MonkeyPatch, calls: list[str], code: int = 0) -> None:
    def call(fd: int, request: int, *arguments: Any) -> int:
        assert request == FULL
        calls.append("full")
        if code:
            raise OSError(code, os.strerror(code))
        return 0

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", FULL, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", call)


def test_the_content_is_synced_without_its_times_where_the_system_can(
    calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    system.sync_content(0)
    system.sync(0)
    monkeypatch.delattr(os, "fdatasync")
    system.sync_content(0)
    assert calls == ["fdatasync", "fsync", "fsync"]


@pytest.mark.parametrize(
    ("code", "made"), [(0, ["full"]), (errno.ENOTSUP, ["full", "fsync"]), (errno.EIO, ["full"])]
)
def test_the_cache_of_the_drive_is_written_where_fsync_does_not_do_it(
    calls: list[str], monkeypatch: pytest.MonkeyPatch, code: int, made: list[str]
) -> None:
    """Where it is refused, an ordinary sync follows; not where it failed.

    The second call would return success for pages that the first could not write.
    """
    offer_full_sync(monkeypatch, calls, code)
    for sync in (system.sync, system.sync_content):
        calls.clear()
        with pytest.raises(OSError, match="Input/output error") if code == errno.EIO else nullcontext():
            sync(0)
        assert [call.replace("fdatasync", "fsync") for call in calls] == made


def test_room_is_allocated_by_zeros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    scratch = Scratch(str(tmp_path / "one"))
    scratch.grow(5000)[:3] = b"abc"
    size = (3 << 20) + 7
    room = scratch.grow(size)
    assert room[:4] == b"abc\0" and len(room) == scratch.size() == size
    assert os.fstat(scratch._fd).st_blocks * 512 >= size, "no hole is left"
    scratch.close()


def test_a_file_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    scratch = Scratch.without_name(str(tmp_path))
    assert not list(tmp_path.iterdir())
    assert scratch.append(b"abc") == 0 and scratch.pread(10, 1) == b"bc"
    scratch.close()


def test_a_socket_gets_the_bytes_of_a_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sendfile", raising=False)
    (tmp_path / "one").write_bytes(b"abcdef")
    left, right = socket.socketpair()
    with left, right, OsFiles().open_read(tmp_path / "one") as handle:
        assert handle.send_to(left, 3, 1) == 3 and right.recv(10) == b"bcd"
        assert handle.send_to(left, 3, 6) == 0
        left.setblocking(False)
        with pytest.raises(BlockingIOError):
            for _ in range(1 << 20):
                handle.send_to(left, 6, 0)


WITHOUT = """
import fcntl, os, socket, sys
assert not hasattr(os, "fdatasync") and not hasattr(fcntl, "F_OFD_SETLK")
import lastword
from lastword.errors import LogDirLockedError
from lastword.files import OsFiles
from lastword.files.drive import sync_drive, waiting_bytes

root = sys.argv[1]
with lastword.open(root, "a", log_cleaner_enable=False) as logs:
    users = logs.create_topic("users", cleanup_policy="compact", segment_bytes=2000)
    for number in range(100):
        users.append(b"%d" % (number % 3), b"x" * 100, ack="disk")
    child = os.fork()
    if child == 0:
        try:
            lastword.open(root, "a")
        except LogDirLockedError as error:
            os._exit(error.pid == os.getppid())
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1, "the holder is named"
    fd = os.open(root, os.O_RDONLY)
    assert not sync_drive(fd) and waiting_bytes() == 0
    for key in (b"0", b"1", b"2"):
        logs.state("ages")[key.decode()] = 1
    with lastword.serve(logs, "127.0.0.1:0") as server:
        host, port = server.bootstrap_servers.split(":")
        socket.create_connection((host, int(port))).close()
with lastword.open(root) as logs:
    assert len(list(logs.topic("users").read())) == 100
    assert dict(logs.state("ages")) == {"0": 1, "1": 1, "2": 1}
print("done")
"""


def test_a_log_is_written_and_read_without_what_only_linux_has(tmp_path: Path) -> None:
    """The whole suite runs so with `LASTWORD_PORTABLE=1 make check`."""
    path = os.pathsep.join([str(SITE), *filter(None, sys.path)])
    done = subprocess.run(
        # From 3.12 on, Python warns of a fork beside a thread, which an open log has.
        [sys.executable, "-W", "ignore:This process", "-c", WITHOUT, str(tmp_path / "data")],
        env=os.environ | {"PYTHONPATH": path, "LASTWORD_PORTABLE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("done\n", "")
