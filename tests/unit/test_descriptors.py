"""A bounded number of descriptors for any number of handles."""

from __future__ import annotations

import errno
import gc
import os
import random
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from lastword.errors import FileVanishedError, SyncFailedError
from lastword.files import OsFiles
from lastword.files.real import OsHandle
from tests.support.linux import open_paths
from tests.support.threads import together


def open_here(path: Path) -> int:
    """Return the number of this process's descriptors below `path`."""
    return sum(name.startswith(str(path)) for name in open_paths())


def write_files(path: Path, count: int) -> list[Path]:
    files = [path / f"{number:04d}" for number in range(count)]
    for number, file in enumerate(files):
        file.write_bytes(b"%04d" % number)
    return files


def test_handles_share_a_few_descriptors(tmp_path: Path) -> None:
    files = OsFiles(max_open=7)
    handles = [files.open_read(path) for path in write_files(tmp_path, 100)]
    order = list(range(100)) * 3
    random.Random(1).shuffle(order)
    for number in order:
        assert handles[number].pread(10, 0) == b"%04d" % number
        assert handles[number].size() == 4
    assert open_here(tmp_path) <= 7
    for handle in handles:
        handle.close()
    assert open_here(tmp_path) == 0 and len(files.descriptors) == 0


def test_writers_too_and_nothing_is_lost(tmp_path: Path) -> None:
    files = OsFiles(max_open=3)
    handles = [files.open_append(tmp_path / str(n), create=True, exclusive=True) for n in range(20)]
    for turn in range(4):
        for number, handle in enumerate(handles):
            assert handle.append(b"%02d%d." % (number, turn)) == 4 * turn
    for number, handle in enumerate(handles):
        assert handle.pread(99, 0) == b"".join(b"%02d%d." % (number, turn) for turn in range(4))
        handle.truncate(4)
        handle.fsync()
    assert open_here(tmp_path) <= 3
    assert {(tmp_path / str(n)).stat().st_size for n in range(20)} == {4}


def test_what_is_not_synced_is_synced_before_its_descriptor_goes(tmp_path: Path, monkeypatch) -> None:
    """The kernel reports a failed write-back only to a process that has the file open."""
    files = OsFiles(max_open=2)
    synced: list[int] = []
    monkeypatch.setattr("lastword.files.system.sync_content", lambda fd: synced.append(fd))
    first = files.open_append(tmp_path / "one", create=True)
    first.append(b"x")
    second = files.open_append(tmp_path / "two", create=True)
    third = files.open_append(
        tmp_path / "three", create=True
    )  # the second was not written to: it is closed first
    assert not synced and second.fd == -1 and first.fd >= 0
    third.append(b"x")
    files.open_append(tmp_path / "four", create=True)
    assert len(synced) == 1 and first.fd == -1


def test_a_handle_that_is_appended_to_keeps_its_descriptor(tmp_path: Path, monkeypatch) -> None:
    """The number of a closed descriptor is reused: the bytes would be written to another file."""
    files = OsFiles(max_open=1)
    handle = files.open_append(tmp_path / "one", create=True)
    real = os.pwrite

    def pwrite(fd: int, data: bytes, position: int) -> int:
        files.open_append(tmp_path / "two", create=True).close()
        assert handle.fd == fd
        return real(fd, data, position)

    monkeypatch.setattr("os.pwrite", pwrite)
    handle.append(b"one")
    monkeypatch.undo()
    assert (tmp_path / "one").read_bytes() == b"one" and not handle.pins
    files.open_append(tmp_path / "two", create=True)
    assert handle.fd == -1
    handle.append(b"two")
    assert (tmp_path / "one").read_bytes() == b"onetwo"


def test_a_handle_that_is_used_while_it_is_chosen_keeps_its_descriptor(tmp_path: Path, monkeypatch) -> None:
    """The user takes no lock: the eviction has found no pin, syncs, and then the use begins."""
    files = OsFiles(max_open=1)
    handle = files.open_append(tmp_path / "one", create=True)
    handle.append(b"one")
    real = handle.fd
    monkeypatch.setattr("lastword.files.system.sync_content", lambda fd: files.descriptors.acquire(handle))
    files.open_append(tmp_path / "two", create=True)
    monkeypatch.undo()
    assert handle.fd == real and handle.pins == [None]
    handle.pins.pop()
    assert handle.pread(9, 0) == b"one" and not handle.pins
    files.open_append(tmp_path / "three", create=True)
    assert handle.fd == -1 and not handle.unsynced


@pytest.mark.parametrize("moment", ["before its sync", "after its sync", "after it was found synced"])
def test_bytes_of_an_append_that_no_pin_shows_any_more_are_synced_before_the_descriptor_goes(
    tmp_path: Path, monkeypatch, moment: str
) -> None:
    """Another thread appends while an eviction has chosen its handle: only the mark shows the bytes."""
    files = OsFiles(max_open=1)
    handle = files.open_append(tmp_path / "one", create=True)
    handle.__class__ = _AppendsOnce
    synced: list[int] = []
    monkeypatch.setattr("lastword.files.system.sync_content", lambda fd: synced.append(os.fstat(fd).st_size))
    if moment != "after it was found synced":
        handle.append(b"one")
    handle.__dict__["appends_at"] = moment
    files.open_append(tmp_path / "two", create=True)
    files.open_append(tmp_path / "three", create=True)
    assert handle.fd == -1 and not handle.unsynced and synced[-1] == handle.size()
    assert "appends_at" not in handle.__dict__


class _AppendsOnce(OsHandle):
    """A handle to which another thread appends at a moment of an eviction."""

    @property
    def unsynced(self) -> bool:
        now = self.__dict__["unsynced"]
        if not now:
            self._append_at("after it was found synced")
        return now

    @unsynced.setter
    def unsynced(self, now: bool) -> None:
        self.__dict__["unsynced"] = now

    def sync_before_closing(self) -> None:
        self._append_at("before its sync")
        super().sync_before_closing()
        self._append_at("after its sync")

    def _append_at(self, moment: str) -> None:
        if self.__dict__.get("appends_at") == moment:
            del self.__dict__["appends_at"]
            self.append(b"two")


def test_an_append_that_ends_after_a_sync_has_begun_counts_as_unsynced(tmp_path: Path, monkeypatch) -> None:
    files = OsFiles(max_open=1)
    handle = files.open_append(tmp_path / "one", create=True)
    real = os.pwrite

    def pwrite(fd: int, data: bytes, position: int) -> int:
        handle.fsync()
        return real(fd, data, position)

    monkeypatch.setattr("os.pwrite", pwrite)
    handle.append(b"one")
    assert handle.unsynced
    handle.pwrite(b"two", 0)
    assert handle.unsynced


def test_a_failed_sync_before_closing_takes_the_directory_offline(tmp_path: Path, monkeypatch) -> None:
    files = OsFiles(max_open=1)
    files.guard(tmp_path)
    handle = files.open_append(tmp_path / "one", create=True)
    handle.append(b"x")

    def fails(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("lastword.files.system.sync_content", fails)
    with pytest.raises(SyncFailedError):
        files.open_append(tmp_path / "two", create=True)
    assert not (tmp_path / "two").exists()
    with pytest.raises(SyncFailedError):
        handle.fsync()
    assert files.offline(tmp_path) is not None


def test_another_file_under_the_name_is_not_taken_for_the_first(tmp_path: Path) -> None:
    files = OsFiles(max_open=1)
    (tmp_path / "a").write_bytes(b"old")
    handle = files.open_read(tmp_path / "a")
    (tmp_path / "new").write_bytes(b"new")
    (tmp_path / "new").rename(tmp_path / "a")
    assert handle.pread(3, 0) == b"old"  # still open
    files.open_read(tmp_path / "a").close()  # uses the only descriptor
    with pytest.raises(FileVanishedError):
        handle.pread(3, 0)
    (tmp_path / "a").unlink()
    with pytest.raises(FileVanishedError):
        handle.stat()


def test_a_closed_handle_stays_closed(tmp_path: Path) -> None:
    files = OsFiles()
    (tmp_path / "a").write_bytes(b"x")
    handle = files.open_read(tmp_path / "a")
    handle.close()
    handle.close()
    with pytest.raises(OSError):
        handle.pread(1, 0)


def test_garbage_gives_its_descriptor_back(tmp_path: Path) -> None:
    files = OsFiles(max_open=5)
    for path in write_files(tmp_path, 50):
        files.open_read(path).pread(1, 0)
    gc.collect()
    assert open_here(tmp_path) == 0 and len(files.descriptors) == 0


def test_threads_never_read_each_others_files(tmp_path: Path) -> None:
    """They would if a descriptor were closed while another thread reads through its number."""
    files = OsFiles(max_open=3)
    handles = [files.open_read(path) for path in write_files(tmp_path, 30)]

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(400):
            number = rng.randrange(30)
            assert handles[number].pread(4, 0) == b"%04d" % number

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        together(*(partial(work, seed) for seed in range(4)))
    finally:
        sys.setswitchinterval(before)


def test_no_descriptor_left_in_the_system(tmp_path: Path) -> None:
    """After EMFILE below its own limit, `OsFiles` closes some of its descriptors and continues."""
    code = f"""
import os, resource
from lastword.files import OsFiles
from lastword.files.real import OsHandle
from tests.support.linux import open_paths
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
files = OsFiles(max_open=1000)
handles = []
for number in range(200):
    handle = files.open_append({str(tmp_path)!r} + "/" + str(number), create=True)
    handle.append(b"%d" % number)
    handles.append(handle)
files.fsync_dir({str(tmp_path)!r})
assert len(files.listdir({str(tmp_path)!r})) == 200
assert all(handles[n].pread(9, 0) == b"%d" % n for n in range(200))
print("fine")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "fine\n", done.stderr


def test_the_bound_follows_the_limit_of_the_process() -> None:
    code = """
import resource
from lastword.files import OsFiles
from lastword.files.real import OsHandle
from tests.support.linux import open_paths
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
for soft in (64, 256, 1024):
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    print(OsFiles().descriptors.limit)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["32", "128", "512"]
