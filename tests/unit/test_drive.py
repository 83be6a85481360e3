"""One sync of the whole drive in place of many syncs of files."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from lastword.errors import LockLostError
from lastword.files import OsFiles, Steps, drive, interface, run_together, system
from lastword.files.lock import FileLock
from tests.support.threads import together


class Kernel:
    """A kernel that counts the changes of each file and directory, and those that a sync has made durable.

    during   called in the middle of a `syncfs`: what it changes is not durable
    fails    each `syncfs` fails
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.changed: Counter[int] = Counter()
        self.durable: Counter[int] = Counter()
        self.calls: Counter[str] = Counter()
        self.during: Callable[[], None] = lambda: None
        self.fails = False
        monkeypatch.setattr(drive, "_syncfs", lambda: self.syncfs)
        monkeypatch.setattr(drive, "_type_of", lambda fd: 0xEF53)
        monkeypatch.setattr(drive, "waiting_bytes", lambda: 0)
        for call, name in (("sync", "fsync"), ("sync_content", "fdatasync")):
            monkeypatch.setattr(system, call, partial(self.sync, name))

    def syncfs(self, fd: int) -> int:
        self.calls["syncfs"] += 1
        written = Counter(self.changed)
        self.during()
        if self.fails:
            return -1
        self.durable |= written
        return 0

    def sync(self, name: str, fd: int) -> None:
        self.calls[name] += 1
        number = os.fstat(fd).st_ino
        self.durable[number] = self.changed[number]

    def change(self, path: Path) -> None:
        self.changed[path.stat().st_ino] += 1

    def is_durable(self, path: Path) -> bool:
        number = path.stat().st_ino
        return self.durable[number] == self.changed[number]


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(monkeypatch)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "log").touch()
    return tmp_path


@pytest.fixture
def files(root: Path) -> Iterator[OsFiles]:
    files = OsFiles(max_open=600)
    with files.lock(root / ".lock"):
        files.guard(root)
        yield files


@pytest.mark.parametrize("seed", range(40))
def test_a_sync_that_returns_leaves_its_changes_durable(
    seed: int, kernel: Kernel, files: OsFiles, root: Path
) -> None:
    """Writes, renames and syncs before, in and after syncs of the drive, which may fail."""
    rng = random.Random(seed)
    handles = {name: files.open_append(root / name / "log") for name in "ab"}

    def write(name: str) -> None:
        rng.choice((partial(handles[name].append, b"x"), partial(handles[name].pwrite, b"y", 0)))()
        kernel.change(root / name / "log")

    def rename(name: str) -> None:
        (root / name / "from").touch()
        files.rename(root / name / "from", root / name / "to")
        kernel.change(root / name)

    def sync_file(name: str) -> None:
        handles[name].fsync()
        assert kernel.is_durable(root / name / "log")

    def sync_names(name: str) -> None:
        files.fsync_dir(root / name)
        assert kernel.is_durable(root / name)

    def some(actions: tuple[Callable[[str], None], ...], most: int) -> None:
        for _ in range(rng.randrange(most)):
            rng.choice(actions)(rng.choice("ab"))

    changes, syncs = (write, rename), (sync_file, sync_names)
    kernel.during = partial(some, changes, 2)
    for _ in range(20):
        some(changes + syncs, 5)
        kernel.fails = rng.random() < 0.2
        with files.synced_drive(root) as is_synced:
            assert is_synced != kernel.fails
            some(changes + syncs, 6)


def test_syncs_in_the_block_do_no_work_of_their_own(kernel: Kernel, files: OsFiles, root: Path) -> None:
    handle = files.open_append(root / "a" / "log")
    handle.append(b"x")
    files.rename(root / "b" / "log", root / "b" / "moved")
    with files.synced_drive(root) as is_synced:
        assert is_synced
        handle.fsync()
        files.fsync_dir(root / "b")
        assert kernel.calls == {"syncfs": 1} and not handle.unsynced
        # Other threads may rely on changes that others made meanwhile.
        for sync in (handle.fsync, partial(files.fsync_dir, root / "b")):
            together(sync)
        assert kernel.calls == {"syncfs": 1, "fdatasync": 1, "fsync": 1}
    handle.fsync()
    files.fsync_dir(root / "b")
    assert kernel.calls == {"syncfs": 1, "fdatasync": 2, "fsync": 2}


def test_files_of_another_drive_are_synced_by_themselves(
    kernel: Kernel, files: OsFiles, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileLock, "device", root.stat().st_dev + 1)  # as if `a` were a mount point
    handle = files.open_append(root / "a" / "log")
    with files.synced_drive(root) as is_synced:
        assert is_synced
        handle.fsync()
        files.fsync_dir(root / "a")
    assert kernel.calls == {"syncfs": 1, "fdatasync": 1, "fsync": 1}


@pytest.mark.parametrize("fails", [False, True])
def test_many_items_are_synced_with_one_call_in_each_round(
    fails: bool, kernel: Kernel, files: OsFiles, root: Path
) -> None:
    count = 2 * files.together
    kernel.fails = fails

    def work(number: int) -> Steps[int]:
        with files.open_append(root / f"file-{number}", create=True) as handle:
            handle.append(b"x")
            yield (handle.fsync,)
            handle.append(b"y")
            yield (handle.fsync,)
        return number

    assert run_together([work(number) for number in range(count)], files, root) == list(range(count))
    assert kernel.calls["syncfs"] == 4 and kernel.calls["fdatasync"] == (2 * count if fails else 0)


def sync_names(files: OsFiles, root: Path) -> Steps[None]:
    yield (partial(files.fsync_dir, root),)


def test_few_items_and_a_directory_without_a_lock_use_no_sync_of_the_drive(
    kernel: Kernel, files: OsFiles, root: Path
) -> None:
    unlocked = OsFiles()
    unlocked.guard(root)
    with unlocked.synced_drive(root) as is_synced:
        assert not is_synced

    run_together([sync_names(files, root) for _ in range(interface.OVERLAP_FROM - 1)], files, root)
    assert kernel.calls == {"fsync": interface.OVERLAP_FROM - 1}


def test_a_lost_lock_is_reported_by_each_sync(kernel: Kernel, files: OsFiles, root: Path) -> None:
    (root / ".lock").unlink()
    results = run_together([sync_names(files, root) for _ in range(interface.OVERLAP_FROM)], files, root)
    assert all(isinstance(result, LockLostError) for result in results) and not kernel.calls


@pytest.mark.parametrize(
    ("release", "kind", "waiting_bytes", "is_synced"),
    [
        ("6.1.0-amd64", 0xEF53, 0, True),
        ("5.8.0", 0x58465342, drive.MOST_WAITING_BYTES, True),
        ("5.7.19", 0xEF53, 0, False),
        ("4.19.0", 0xEF53, 0, False),
        ("unknown", 0xEF53, 0, False),
        ("6.1.0", 0x6969, 0, False),  # NFS
        ("6.1.0", 0x794C7630, 0, False),  # overlay
        ("6.1.0", 0xEF53, drive.MOST_WAITING_BYTES + 1, False),
    ],
)
def test_it_is_used_where_it_promises_as_much(
    release: str,
    kind: int,
    waiting_bytes: int,
    is_synced: bool,
    monkeypatch: pytest.MonkeyPatch,
    fresh_function: None,
) -> None:
    facts = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((facts[0], facts[1], release, *facts[3:])))
    monkeypatch.setattr(drive, "_type_of", lambda fd: kind)
    monkeypatch.setattr(drive, "waiting_bytes", lambda: waiting_bytes)
    monkeypatch.setattr(drive, "libc", lambda: Libc)
    assert drive.sync_drive(0) == is_synced


class Libc:
    """The C library, in which each `syncfs` succeeds."""

    @staticmethod
    def syncfs(fd: int) -> int:
        return 0


@pytest.fixture
def fresh_function() -> Iterator[None]:
    drive._syncfs.cache_clear()
    yield
    drive._syncfs.cache_clear()


def test_the_facts_of_this_machine(files: OsFiles, root: Path) -> None:
    assert drive.waiting_bytes() >= 0
    fd = os.open(root, os.O_RDONLY)
    try:
        assert drive._type_of(fd) > 0 and drive._type_of(-1) == 0
        assert drive.sync_drive(fd) in (True, False) and not drive.sync_drive(-1)
    finally:
        os.close(fd)
    handle = files.open_append(root / "a" / "log")
    handle.append(b"x")
    with files.synced_drive(root):
        handle.fsync()
    assert not handle.unsynced
