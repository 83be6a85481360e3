from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest

from lastword.errors import (
    DiskFullError,
    FileTakenError,
    FileVanishedError,
    NotPermittedError,
    StorageError,
    SyncFailedError,
)
from lastword.files import (
    DEFAULT,
    Files,
    OsFiles,
    Steps,
    interface,
    overlapped,
    run_steps,
    run_together,
    sync_along,
    system,
)
from lastword.metrics import DIR_OFFLINE
from tests.fakes.recording import RecordingFiles


@pytest.fixture
def files() -> OsFiles:
    return OsFiles()


def broken(*arguments: object) -> NoReturn:
    raise OSError(errno.EIO, "Input/output error")


@pytest.fixture
def size_limit() -> Iterator[None]:
    """Limit files to 10,000 bytes.

    The system writes the bytes that fit, then refuses, as a full disk does.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_append_says_where_and_takes_any_buffer(files: OsFiles, tmp_path: Path) -> None:
    with files.open_append(tmp_path / "a", create=True) as handle:
        assert handle.append(b"hello") == 0
        assert handle.append(memoryview(bytearray(b"world"))) == 5
        assert handle.append(np.arange(2, dtype=">i4")) == 10
        assert handle.size() == 18
        handle.pwrite(b"J", 0)
        handle.fsync()
    assert (tmp_path / "a").read_bytes() == b"Jelloworld\0\0\0\0\0\0\0\1"


@pytest.mark.parametrize("method", [OsFiles, None])
def test_bytes_are_sent_to_a_socket_as_far_as_it_takes_them(method: type | None, tmp_path: Path) -> None:
    data = os.urandom(3 << 20)
    (tmp_path / "a").write_bytes(data)
    handle = OsFiles().open_read(tmp_path / "a")
    send = handle.send_to if method else lambda *given: interface.Handle.send_to(handle, *given)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        position, received = 5, bytearray()
        while position < len(data):
            try:
                position += send(ours, len(data) - position, position)
            except BlockingIOError:
                received += theirs.recv(1 << 20)
        assert send(ours, 10, len(data)) == 0
        ours.shutdown(socket.SHUT_WR)
        while piece := theirs.recv(1 << 20):
            received += piece
        assert bytes(received) == data[5:]
        theirs.close()
        with pytest.raises(ConnectionError):
            for _ in range(2):
                send(ours, 100, 0)


def test_reads_end_at_the_end(files: OsFiles, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"hello")
    handle = files.open_read(tmp_path / "a")
    assert handle.pread(3, 1) == b"ell"
    assert handle.pread(100, 3) == b"lo"
    assert handle.pread(100, 50) == b""
    assert handle.pread(1 << 62, 2) == b"llo", "a wrong length allocates nothing"
    room = np.zeros(4, dtype=np.uint8)
    assert handle.pread_into(room, 3) == 2
    assert bytes(room) == b"lo\0\0"
    with pytest.raises(ValueError):
        handle.pread(-1, 0)
    handle.close()
    handle.close()


def test_missing_and_taken_names(files: OsFiles, tmp_path: Path) -> None:
    with pytest.raises(FileVanishedError):
        files.open_read(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        files.unlink(tmp_path / "none")
    files.unlink(tmp_path / "none", missing_ok=True)
    files.open_append(tmp_path / "a", create=True, exclusive=True).close()
    with pytest.raises(FileTakenError):
        files.open_append(tmp_path / "a", create=True, exclusive=True)
    with pytest.raises(FileTakenError):
        files.mkdir(tmp_path / "a")
    assert files.stat(tmp_path / "none") is None
    assert files.stat(tmp_path / "a" / "b") is None
    assert files.exists(tmp_path / "a")


def test_only_regular_files_are_opened(files: OsFiles, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        with pytest.raises(StorageError, match="not a regular file"):
            files.open_read(tmp_path / name)
    (tmp_path / "a").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(StorageError, match="symbolic link"):
        files.open_append(tmp_path / "link")


def test_a_full_disk_takes_the_append_back(files: OsFiles, tmp_path: Path, size_limit: None) -> None:
    handle = files.open_append(tmp_path / "a", create=True)
    handle.append(b"x" * 9_000)
    with pytest.raises(DiskFullError) as caught:
        handle.append(b"y" * 5_000)
    assert caught.value.needed_bytes == 5_000
    assert caught.value.free_bytes is not None
    assert caught.value.file == str(tmp_path / "a")
    assert handle.size() == 9_000, "nothing half-written"
    assert handle.append(b"z" * 1_000) == 9_000, "what fits still fits"


def test_a_failed_write_is_cut_back(files: OsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = files.open_append(tmp_path / "a", create=True)
    handle.append(b"good")
    real = os.pwrite
    calls = []

    def short_then_broken(fd: int, data: bytes, position: int) -> int:
        calls.append(position)
        if len(calls) == 1:
            return real(fd, bytes(data)[:2], position)
        broken()

    monkeypatch.setattr(os, "pwrite", short_then_broken)
    with pytest.raises(StorageError, match="Input/output error"):
        handle.append(b"batch")
    monkeypatch.undo()
    assert calls == [4, 6]
    assert (tmp_path / "a").read_bytes() == b"good"


def test_short_writes_are_completed(files: OsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: real(fd, bytes(data)[:3], position))
    handle = files.open_append(tmp_path / "a", create=True)
    assert handle.append(b"hello world") == 0
    assert handle.append(np.arange(4, dtype=np.int16)) == 11
    assert (tmp_path / "a").read_bytes()[:11] == b"hello world"
    assert handle.size() == 19


def test_a_tail_that_cannot_be_cut_back_takes_no_append(
    files: OsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = files.open_append(tmp_path / "a", create=True)
    monkeypatch.setattr(os, "pwrite", broken)
    monkeypatch.setattr(os, "ftruncate", broken)
    with pytest.raises(StorageError):
        handle.append(b"x")
    monkeypatch.undo()
    with pytest.raises(StorageError, match="torn tail"):
        handle.append(b"x")
    handle.truncate(0)
    assert handle.append(b"x") == 0


class TestFailedSync:
    @pytest.fixture
    def broken_fsync(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """Make fsync fail once and then report success, as Linux does."""
        calls: list[int] = []
        real = system.sync

        def once(fd: int) -> None:
            calls.append(fd)
            broken() if len(calls) == 1 else real(fd)

        for name in ("sync", "sync_content"):
            monkeypatch.setattr(system, name, once)
        return calls

    def test_it_is_final_for_the_whole_root(
        self, files: OsFiles, tmp_path: Path, broken_fsync: list[int]
    ) -> None:
        (tmp_path / "p-0").mkdir()
        files.guard(tmp_path)
        handle = files.open_append(tmp_path / "p-0" / "a", create=True)
        other = files.open_append(tmp_path / "b", create=True)
        handle.append(b"x")
        with pytest.raises(SyncFailedError, match="EIO") as caught:
            handle.fsync()
        assert caught.value.errno == errno.EIO
        for change in (
            handle.fsync,
            lambda: handle.append(b"x"),
            lambda: other.append(b"x"),
            other.fsync,
            lambda: other.truncate(0),
            lambda: files.fsync_dir(tmp_path),
            lambda: files.rename(tmp_path / "b", tmp_path / "c"),
            lambda: files.open_append(tmp_path / "d", create=True),
            lambda: files.mkdir(tmp_path / "q-0"),
        ):
            with pytest.raises(SyncFailedError):
                change()
        assert len(broken_fsync) == 1, "never asked again"
        assert DIR_OFFLINE.value(str(tmp_path)) == 1
        assert isinstance(files.offline(tmp_path / "p-0"), SyncFailedError)
        assert handle.pread(1, 0) == b"x", "looking goes on"

    def test_opening_again_resets_it_but_old_handles_stay_refused(
        self, files: OsFiles, tmp_path: Path, broken_fsync: list[int]
    ) -> None:
        files.guard(tmp_path)
        old = files.open_append(tmp_path / "a", create=True)
        with pytest.raises(SyncFailedError):
            old.fsync()
        files.guard(tmp_path)
        assert files.offline(tmp_path) is None
        assert DIR_OFFLINE.value(str(tmp_path)) == 0
        with files.open_append(tmp_path / "a") as handle:
            handle.append(b"x")
            handle.fsync()
        with pytest.raises(SyncFailedError):
            old.append(b"y")

    def test_other_roots_go_on(self, files: OsFiles, tmp_path: Path, broken_fsync: list[int]) -> None:
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            files.guard(tmp_path / name)
        with pytest.raises(SyncFailedError):
            files.fsync_dir(tmp_path / "one")
        files.open_append(tmp_path / "two" / "a", create=True).append(b"x")
        with pytest.raises(SyncFailedError):
            files.open_append(tmp_path / "one" / "a", create=True)

    def test_an_unguarded_directory_goes_offline_alone(
        self, files: OsFiles, tmp_path: Path, broken_fsync: list[int]
    ) -> None:
        handle = files.open_append(tmp_path / "a", create=True)
        with pytest.raises(SyncFailedError):
            handle.fsync()
        with pytest.raises(SyncFailedError):
            files.open_append(tmp_path / "b", create=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_read_only_directory_refuses_changes_by_permission(files: OsFiles, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(NotPermittedError):
            files.open_append(tmp_path / "a", create=True)
    finally:
        tmp_path.chmod(0o700)


def test_a_read_only_drive_refuses_changes(
    files: OsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(NotPermittedError, match="Read-only file system"):
        files.rename(tmp_path / "a", tmp_path / "b")


def test_atomic_replacement_leaves_the_old_file_when_it_fails(
    files: OsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write_atomic(tmp_path / "f", b"old")

    monkeypatch.setattr(system, "sync_content", broken)
    with pytest.raises(SyncFailedError):
        files.write_atomic(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"old"


def test_names(files: OsFiles, tmp_path: Path) -> None:
    files.mkdir(tmp_path / "d")
    files.write_atomic(tmp_path / "d" / "b", b"1")
    files.write_atomic(tmp_path / "d" / "a", b"22")
    assert files.listdir(tmp_path / "d") == ["a", "b"]
    files.set_mtime(tmp_path / "d" / "a", 1_700_000_000_123)
    facts = files.stat(tmp_path / "d" / "a")
    assert facts is not None
    assert (facts.size, facts.mtime_ms) == (2, 1_700_000_000_123)
    files.rename(tmp_path / "d" / "a", tmp_path / "d" / "b")
    assert files.read_bytes(tmp_path / "d" / "b") == b"22"
    files.truncate(tmp_path / "d" / "b", 1)
    assert files.read_bytes(tmp_path / "d" / "b") == b"2"
    with pytest.raises(FileVanishedError):
        files.read_bytes(tmp_path / "d" / "a")
    with pytest.raises(StorageError, match="not a regular file"):
        files.read_bytes(tmp_path / "d")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "keep").write_bytes(b"")
    (tmp_path / "d" / "link").symlink_to(tmp_path / "outside")
    files.remove_tree(tmp_path / "d")
    assert files.listdir(tmp_path) == ["outside"]
    assert files.listdir(tmp_path / "outside") == ["keep"], "links are not followed"
    assert files.is_dir(tmp_path) and not files.is_dir(tmp_path / "d")
    assert DEFAULT.free_bytes(tmp_path) > 0


# ---------------------------------------------------------------- many files


@pytest.mark.parametrize("threads", [None, 1, 5])
def test_work_on_many_files_returns_in_their_order(threads: int | None) -> None:
    assert overlapped(lambda item: item * 2, range(200), threads=threads) == list(range(0, 400, 2))
    assert overlapped(lambda item: item, []) == []


class Waits:
    """Work that waits, and counts how many items wait together."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now = self.most = self.items = 0

    def __call__(self, item: int) -> None:
        with self.lock:
            self.now, self.items = self.now + 1, self.items + 1
            self.most = max(self.most, self.now)
        time.sleep(0.002)
        with self.lock:
            self.now -= 1


def test_many_files_wait_for_the_drive_together_and_few_do_not() -> None:
    few, many = Waits(), Waits()
    overlapped(few, range(interface.OVERLAP_FROM - 1))
    overlapped(many, range(10 * interface.OVERLAP_FROM))
    assert few.most == 1
    assert 4 <= many.most <= interface.OVERLAP_THREADS
    assert many.items == 10 * interface.OVERLAP_FROM


def test_files_that_do_not_wait_get_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(perf_counter=time.perf_counter, thread_time=time.perf_counter)
    monkeypatch.setattr(interface, "time", clock)  # on a busy machine a thread waits for its core, too
    names = set()

    def compute(item: int) -> int:
        names.add(threading.current_thread().name)
        return sum(range(5_000))

    overlapped(compute, range(3 * interface.OVERLAP_FROM))
    assert names == {threading.current_thread().name}


def test_the_first_error_in_order_is_raised_when_no_thread_runs() -> None:
    running = Waits()

    def work(item: int) -> None:
        running(item)
        if item in (20, 30):
            raise StorageError(f"item {item}")

    with pytest.raises(StorageError, match="item 20"):
        overlapped(work, range(400), threads=8)
    assert running.now == 0 and running.items < 400


def test_a_directory_belongs_to_the_root_that_its_real_path_is_in(tmp_path: Path) -> None:
    """Whether it is reached through links, below another root, or before the root is guarded."""
    for name in ("logs/users-0/lastword", "logs/inner/orders-0", "beside/data"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "logs")
    (tmp_path / "beside" / "in").symlink_to(tmp_path / "logs" / "users-0")
    (tmp_path / "logs" / "out").symlink_to(tmp_path / "beside")
    logs, inner, neither = f"{tmp_path}/logs", f"{tmp_path}/logs/inner", None
    files = OsFiles()
    for guarded in ([], [logs], [logs, inner]):
        for root in guarded:
            files.guard(root)
        for _ in range(2):  # the second time from memory
            for directory, root in {
                "logs": logs,
                "logs/users-0": logs,
                "logs/users-0/lastword": logs,
                "logs/users-0/../inner": inner,
                "link/users-0/lastword": logs,
                "beside/in/lastword": logs,
                "logs/inner": inner,
                "logs/inner/orders-0": inner,
                "link/inner/orders-0": inner,
                "logs/out": neither,
                "logs/out/data": neither,
                "beside/data": neither,
            }.items():
                expected = root
                if expected not in guarded:
                    expected = logs if root == inner and logs in guarded else neither
                real = os.path.realpath(tmp_path / directory)
                assert files._root(f"{tmp_path}/{directory}/file").path == (expected or real), directory


class InSteps:
    """Work of two steps, each with two syncs. Keeps their order by item, and the threads of the steps."""

    def __init__(self, fails: dict[int, BaseException] | None = None) -> None:
        self.waits = Waits()
        self.events: dict[int, list[str]] = {}
        self.step_threads: set[str] = set()
        self.fails = fails or {}

    def __call__(self, item: int) -> Steps[int]:
        events = self.events.setdefault(item, [])

        def sync(name: str) -> Callable[[], None]:
            def run() -> None:
                self.waits(item)
                if name == "b" and item in self.fails:
                    raise self.fails[item]
                events.append(name)

            return run

        try:
            for syncs in ("ab", "cd"):
                self.step_threads.add(threading.current_thread().name)
                events.append("step")
                yield [sync(name) for name in syncs]
        finally:
            events.append("end")
        return 2 * item


def test_work_in_steps_waits_for_its_syncs_before_the_next_step() -> None:
    work = InSteps()
    assert run_steps(work(3)) == 6
    assert work.events[3] == ["step", "a", "b", "step", "c", "d", "end"]


@pytest.mark.parametrize("count", [0, interface.OVERLAP_FROM - 1, 2 * interface.TOGETHER + 1])
@pytest.mark.parametrize("any_thread", [False, True])
def test_work_items_in_steps_share_their_waits_and_keep_their_order(
    count: int, any_thread: bool, tmp_path: Path
) -> None:
    work = InSteps()
    works = [work(item) for item in range(count)]
    done = run_together(works, OsFiles(max_open=8), tmp_path, any_thread=any_thread)
    assert done == list(range(0, 2 * count, 2))
    assert all(events == ["step", "a", "b", "step", "c", "d", "end"] for events in work.events.values())
    if not any_thread:
        assert len(work.step_threads) <= 1
    together = count >= interface.OVERLAP_FROM
    assert work.waits.most <= interface.OVERLAP_THREADS and (work.waits.most >= 4) == together


@pytest.mark.parametrize("count", [50, 200])
def test_a_sync_that_fails_ends_its_item_only(count: int, tmp_path: Path) -> None:
    work = InSteps({7: StorageError("item 7")})
    done = run_together([work(item) for item in range(count)], OsFiles(), tmp_path)
    assert str(done.pop(7)) == "item 7" and len(done) == count - 1
    assert done == [2 * item for item in range(count) if item != 7]
    assert work.events[7] == ["step", "a", "end"]


@pytest.mark.parametrize("fails", [None, "snapshot", "other"])
def test_syncs_along_with_the_first_ones_of_work_in_steps(fails: str | None) -> None:
    events: list[str] = []

    def sync(name: str) -> None:
        events.append(name)
        if name == fails:
            raise StorageError(name)

    def work() -> Steps[None]:
        try:
            yield (partial(sync, "snapshot"),)
        except StorageError:
            events.append("cleared")
            raise
        yield (partial(sync, "name"),)

    steps = sync_along((partial(sync, "other"),), work())
    if fails is None:
        run_steps(steps)
        assert events == ["other", "snapshot", "name"]
    else:
        with pytest.raises(StorageError, match=fails):
            run_steps(steps)
        assert events[-2:] == [fails, "cleared"]
    run_steps(sync_along((partial(sync, "alone"),), None))
    assert events[-1] == "alone"


@pytest.mark.parametrize("count", [50, 90])
def test_an_interrupt_in_a_sync_ends_all_items(count: int, tmp_path: Path) -> None:
    """Each item that was begun has ended when the error is raised: it holds no lock and no file any more."""
    work = InSteps({7: KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        run_together([work(item) for item in range(count)], OsFiles(), tmp_path)
    assert work.waits.now == 0 and all(events[-1] == "end" for events in work.events.values())


def test_a_handle_that_the_garbage_collector_closes_does_not_stop_an_eviction(tmp_path: Path) -> None:
    """The garbage collector runs while the open handles are copied."""

    class Collected(OrderedDict):  # type: ignore[type-arg]
        copies = 0

        def items(self) -> Any:
            self.copies += 1
            if self.copies == 1:
                raise RuntimeError("OrderedDict mutated during iteration")
            return super().items()

    files = OsFiles(max_open=2)
    files.descriptors._open = Collected()
    handles = []
    for number in range(4):
        handles.append(files.open_append(tmp_path / str(number), create=True))
        handles[-1].append(b"x")
        handles[-1].fsync()
    assert len(files.descriptors) <= 2 and files.descriptors._open.copies > 1
    assert [handle.pread(1, 0) for handle in handles] == [b"x"] * 4


def test_opening_files_above_the_limit_does_not_visit_all_open_ones_each_time(tmp_path: Path) -> None:
    class Counted(OrderedDict):  # type: ignore[type-arg]
        visited = 0

        def items(self) -> Any:
            self.visited += len(self)
            return super().items()

    files = OsFiles(max_open=64)
    files.descriptors._open = Counted()
    handles = [files.open_append(tmp_path / str(number), create=True) for number in range(640)]
    assert len(files.descriptors) <= 64 < len(handles)
    assert files.descriptors._open.visited < 20 * len(handles)


@pytest.mark.parametrize("files", [OsFiles(), RecordingFiles(OsFiles())], ids=["own loop", "calls of stamp"])
def test_a_stamp_is_another_one_after_each_change(files: Files, tmp_path: Path) -> None:
    root, file, absent = tmp_path / "root", tmp_path / "file", tmp_path / "absent"
    root.mkdir()
    file.write_bytes(b"one")
    os.utime(file, ns=(0, 0))
    os.utime(root, ns=(0, 0))

    def changed(path: Path, change: Callable[[], object]) -> bool:
        stamps = [(known, files.stamp(known)) for known in (root, file, absent)]
        assert files.have_stamps(stamps)
        change()
        return not files.have_stamps(stamps)

    assert changed(file, lambda: file.write_bytes(b"longer"))
    assert changed(root, lambda: (root / "name").touch())
    assert changed(absent, absent.touch)
    assert changed(absent, absent.unlink)
    assert not changed(file, lambda: None)
