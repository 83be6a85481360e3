"""The storage interface: `Files` opens and names files, a `Handle` is one open file.

Durability:

1. Bytes of a finished `append` or `pwrite` survive a killed process, not a power cut.
2. After `Handle.fsync` the bytes and the size of the file survive a power cut, but not yet its name.
3. After `Files.fsync_dir(parent)` the creations, renames and removals in `parent` before the call survive.

A failed sync is final. It raises `SyncFailedError`, and so does every later change below the same root, until
`guard(root)` is called again (opening the directory again does that). Handles opened before the failure never
work again.
"""

from __future__ import annotations

import contextlib
import io
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from lastword.errors import LastwordError, StorageError
from lastword.values import Closing

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from socket import socket

    from lastword.files.lock import FileLock

T = TypeVar("T")
R = TypeVar("R")
Path = str | os.PathLike[str]
Syncs = Sequence[Callable[[], object]]
Steps = Generator[Syncs, None, R]
"""Work in steps. It yields the syncs that its next step relies on, and goes on when they have returned; the
error of a sync is raised at that `yield`. See `run_steps` and `run_together`."""
Buffer = Any
"""Bytes-like: bytes, bytearray, memoryview or a contiguous NumPy array."""
SENT_BYTES = 256 << 10
"""Most bytes that storage without `os.sendfile` reads for one send."""


def real_path(path: Path) -> str:
    """Return the path without links, as the name of a directory in metrics; a URL as it is."""
    text = os.fspath(path)
    return text if "://" in text else os.path.realpath(text)


def normal_path(path: Path) -> str:
    """Return the path without `.` and without a slash at its end; a URL as it is."""
    text = os.fspath(path)
    return text if "://" in text else os.path.normpath(text)


class FileFacts(NamedTuple):
    """Facts of a file or directory.

    Attributes:
        size: Bytes.
        mtime_ms: Time of the last change.
        inode: Number that is unique on its drive.
        kind: "file", "dir", "link" for a symbolic link (whose other facts are those of its target), or
            "other" for a pipe, a socket or a device. Storage without these kinds may use "file" for all.
    """

    size: int  # bytes
    mtime_ms: int
    inode: int
    kind: str = "file"


class DirVersion(NamedTuple):
    """The state of the names in a directory.

    Attributes:
        stamp: Differs after a change of the names, if the directory was quiet for long enough before.
        is_settled: Whether it was: every later change gives another stamp. Times of files are coarse, so two
            changes that follow each other closely may have the same stamp.
        quiet_ms: The time since the last change.
    """

    stamp: object
    is_settled: bool
    quiet_ms: int


class WouldWait(Exception):
    """A read needs a request, in a block of `Files.without_requests`."""


class GivenBytes(bytearray):
    """Bytes that nothing changes after they were appended to a file."""

    is_given = True


class Handle(Closing, ABC):
    """One open file; also a context manager. A garbage-collected handle is closed.

    Positions are bytes from the start of the file.
    """

    path: str
    growth_slows_sync = False
    """Whether a sync takes longer if the file grew than if its bytes were written over, as on a drive."""

    @abstractmethod
    def pread(self, n: int, position: int) -> bytes:
        """Read `n` bytes from `position`; fewer only at the end of the file."""

    @abstractmethod
    def pread_into(self, buffer: Buffer, position: int) -> int:
        """Fill a writable buffer from `position`; return the bytes read: fewer only at the file's end."""

    def send_to(self, sock: socket, n: int, position: int) -> int:
        """Send up to `n` bytes from `position` to a socket; return the bytes sent, 0 at the end of the file.

        BlockingIOError: a non-blocking socket takes nothing now. ConnectionError: it is closed.
        """
        return sock.send(self.pread(min(n, SENT_BYTES), position))

    @abstractmethod
    def append(self, data: Buffer) -> int:
        """Write all of `data` at the end of the file and return the position of its first byte.

        Atomic: if the drive is full, the file is cut back to its previous size and `DiskFullError` states the
        missing room. There is one writer per file: the caller serializes concurrent appends.
        """

    @abstractmethod
    def pwrite(self, data: Buffer, position: int) -> None:
        """Write all of `data` at `position`."""

    @abstractmethod
    def truncate(self, size: int) -> None:
        """Set the size of the file."""

    @abstractmethod
    def fsync(self) -> None:
        """Wait until bytes and size are on the drive. `SyncFailedError` takes the root offline."""

    def start_sync(self, position: int, size: int) -> None:
        """Start to write these bytes to the drive ahead of an `fsync`. Promises nothing, never fails."""

    def will_read(self, start: int, end: int) -> None:
        """Note that a scan of these bytes follows, and that no other bytes are read ahead. Reads nothing."""

    def will_read_back(self) -> None:
        """Note that a scan follows, from the end of the file to its beginning. It may be read ahead."""

    def will_read_pieces(self) -> None:
        """Note that short reads in no order follow. The storage may keep what was read."""

    def ends_scan(self) -> None:
        """Note that a scan that comes to this file goes on in no other file. Reads nothing."""

    def may_shrink_to(self, size: int) -> None:
        """Note that the file may become as short as `size` bytes while it is open to read."""

    @abstractmethod
    def stat(self) -> FileFacts:
        """Return the facts of the open file."""

    @abstractmethod
    def close(self) -> None:
        """Close; a second close does nothing."""

    def size(self) -> int:
        """Return the size of the file in bytes."""
        return self.stat().size


class Files(ABC):
    """The storage: opens, names, syncs and locks files.

    Methods raise `StorageError` (an `OSError` with errno), `FileVanishedError` for a file that does not
    exist, `FileTakenError` for one that already exists, `NotPermittedError` for a forbidden call.

    Files and directories made in a log directory get owner, group and permissions by the rule of owner.py;
    `WrongUserError` if this process may not assign them.
    """

    file_cost_bytes = 0.0
    """The cost to read a segment of its own, in bytes that are read in that time. 0 on a drive."""
    takes_buffers = False
    """Whether an append keeps the memory of `GivenBytes`, and of a `GivenBuffer`, in place of a copy."""
    derived_cost = 0.0
    """The price of a byte or a file that is written only to avoid a scan, in bytes or files of that scan. It
    is 0 on a drive: there such a file is written whenever it is smaller than the log."""
    replayed_bytes = 0
    """How many bytes of a log a reader replays rather than that the writer writes a byte of a producer
    snapshot. 0 on a drive: a snapshot is written at each roll, as by a broker."""
    reuses_numbers = True
    """Whether a new file may get the number of a removed one (`FileFacts.inode`), as inodes of a drive."""
    sends_requests = False
    """Whether a read may need a request of some tens of milliseconds."""

    def without_requests(self) -> contextlib.AbstractContextManager[None]:
        """Raise WouldWait, in this block and thread, for a read that needs a request."""
        return contextlib.nullcontext()

    def check_may_wait(self) -> None:  # noqa: B027  not every storage sends requests
        """Raise WouldWait in a block of `without_requests`."""

    @abstractmethod
    def open_read(self, path: Path) -> Handle:
        """Open a file to read."""

    @abstractmethod
    def open_append(self, path: Path, *, create: bool = False, exclusive: bool = False) -> Handle:
        """Open a file to read and write. `create`: make it if absent; `exclusive`: it must be absent."""

    @abstractmethod
    def listdir(self, path: Path) -> list[str]:
        """List the names in a directory, sorted."""

    def dir_version(self, path: Path) -> DirVersion | None:
        """Return the state of the names in a directory. None: the storage has none, or there is no directory.

        It costs less than a listing of many names.
        """
        return None

    def stamp(self, path: Path) -> object:
        """Return a value that is another one after a change of a file, or of the names in a directory.

        None: it does not exist. For a directory, `DirVersion.is_settled` says whether that is certain.
        """
        version = self.dir_version(path)
        return self.stat(path), None if version is None else version.stamp

    def have_stamps(self, stamps: Iterable[tuple[Path, object]]) -> bool:
        """Return whether each path has its stamp of an earlier call of `stamp`."""
        return all(self.stamp(path) == before for path, before in stamps)

    @abstractmethod
    def stat(self, path: Path) -> FileFacts | None:
        """Return the facts of a file or directory; None if it does not exist."""

    @abstractmethod
    def is_dir(self, path: Path) -> bool:
        """Return whether the path is a directory, or a link to one."""

    def is_link(self, path: Path) -> bool:
        """Return whether the path is a symbolic link. Storage without links returns False."""
        return False

    @abstractmethod
    def mkdir(self, path: Path) -> None:
        """Make a directory. Durable after `fsync_dir` of the parent."""

    @abstractmethod
    def rmdir(self, path: Path) -> None:
        """Remove an empty directory. Durable after `fsync_dir` of the parent."""

    @abstractmethod
    def rename(self, source: Path, target: Path) -> None:
        """Rename atomically; replaces a file at `target`. Durable after `fsync_dir` of the parents."""

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name, which must be absent. Durable after `fsync_dir` of the parent.

        Raises:
            FileTakenError: There is a file of this name.
            StorageError: The storage has one name for each file.
        """
        raise StorageError(f"cannot link {source}: each file has one name here", file=os.fspath(source))

    @abstractmethod
    def unlink(self, path: Path, missing_ok: bool = False) -> None:
        """Remove a file. Durable after `fsync_dir` of the parent."""

    @abstractmethod
    def fsync_dir(self, path: Path) -> None:
        """Wait until the names in a directory are on the drive. `SyncFailedError` takes the root offline."""

    @abstractmethod
    def set_mtime(self, path: Path, ms: int) -> None:
        """Set the time of a file's last change, in ms since 1970."""

    @abstractmethod
    def lock(self, path: Path) -> FileLock:
        """Take the exclusive lock of a lock file, which is made if absent.

        If the file is removed or replaced later, the guarded root of its directory goes offline
        (`LockLostError`).

        Raises:
            LogDirLockedError: another holder has the lock; the error names it.
        """

    @abstractmethod
    def free_bytes(self, path: Path) -> int:
        """Return the room left for this user on the drive of `path`."""

    @abstractmethod
    def guard(self, root: Path) -> None:
        """Take everything below `root` offline together after a failed sync; a second call resets that."""

    @abstractmethod
    def offline(self, path: Path) -> LastwordError | None:
        """Return the failed sync that took `path` offline, if any."""

    def check_lock(self, root: Path) -> None:  # noqa: B027 - storage may have no locks
        """Raise LockLostError, and take `root` offline, if its lock was held here and its file is gone."""

    def synced_drive(self, root: Path) -> contextlib.AbstractContextManager[bool]:
        """Sync everything that was written below `root`; syncs of this thread in the block return at once.

        Yields whether the storage could do that; if not, each sync in the block does its own work.
        """
        return contextlib.nullcontext(False)

    def check_owner(self, directory: Path) -> None:  # noqa: B027 - storage may have no owners
        """Raise WrongUserError unless new files in `directory` can get their owner. Changes nothing."""

    @property
    def together(self) -> int:
        """Return the number of work items, each with a few unsynced files, that `run_together` joins."""
        return TOGETHER

    def identity(self, path: Path) -> str:
        """Return a text that is the same for all paths of one directory, and for no other directory."""
        return real_path(path)

    def device(self, path: Path) -> int:
        """Return a number that is the same for all paths on one drive. Storage without drives returns 0."""
        return 0

    # Composed of the methods above, so that fakes see each step.

    def exists(self, path: Path) -> bool:
        """Return whether there is a file or directory at `path`."""
        return self.stat(path) is not None

    def truncate(self, path: Path, size: int) -> None:
        """Set the size of a file."""
        with self.open_append(path) as handle:
            handle.truncate(size)

    def read_bytes(self, path: Path) -> bytes:
        """Read a whole file."""
        with self.open_read(path) as handle:
            return handle.pread(handle.size(), 0)

    def checked_bytes(self, path: Path) -> bytes | None:
        """Return the bytes of a file that the storage has in memory, under a checksum that it has verified.

        None for every other file. Reads nothing.
        """
        return None

    def write_new(self, path: Path, data: bytes, *, sync: bool = True) -> None:
        """Write a file that does not exist yet. With `sync` its bytes are durable then, its name is not."""
        with self.open_append(path, create=True, exclusive=True) as handle:
            if data:
                handle.append(data)
            if sync:
                handle.fsync()

    def write_atomic(self, path: Path, data: bytes | Iterable[bytes], *, sync_name: bool = True) -> None:
        """Write atomically: temporary file, then rename. Durable when the call returns.

        Order of syncs: the content before the rename, so that the name never points to missing bytes; then
        the directory, so that a caller may rely on the new name.

        Args:
            path: The file.
            data: Its content, as a whole or in pieces.
            sync_name: Sync the directory. False: the caller does it before it relies on the name; until then
                a power cut leaves the file as it was, or as it is.
        """
        run_steps(self.writing_atomic(path, data, sync_name=sync_name))

    def writing_atomic(
        self, path: Path, data: bytes | Iterable[bytes], *, sync_name: bool = True
    ) -> Steps[None]:
        """As `write_atomic`, in steps."""
        path = os.fspath(path)
        scratch = f"{path}.tmp"  # Kafka's suffix for such files; Kafka ignores them in every directory
        self.unlink(scratch, missing_ok=True)
        try:
            with self.open_append(scratch, create=True, exclusive=True) as handle:
                for piece in (data,) if isinstance(data, (bytes, bytearray, memoryview)) else data:
                    handle.append(piece)
                yield (handle.fsync,)
            self.rename(scratch, path)
        except LastwordError:
            with contextlib.suppress(LastwordError):  # the first error is the one to report
                self.unlink(scratch, missing_ok=True)
            raise
        if sync_name:
            yield (partial(self.fsync_dir, os.path.dirname(path) or "."),)

    def remove_tree(self, path: Path) -> None:
        """Remove a directory and its content without following links.

        Durable after `fsync_dir` of the parent.
        """
        path = os.fspath(path)
        for name in self.listdir(path):
            child = os.path.join(path, name)
            if self.is_dir(child) and not os.path.islink(child):
                self.remove_tree(child)
            else:
                self.unlink(child, missing_ok=True)
        self.rmdir(path)


# ---------------------------------------------------------------- many files


OVERLAP_FROM = 64
"""The least number of items that `overlapped` gives to threads."""
OVERLAP_SAMPLE = 8
"""Items that `overlapped` works on before it decides."""
OVERLAP_THREADS = 16


def overlapped(work: Callable[[T], R], items: Sequence[T], *, threads: int | None = None) -> list[R]:
    """Return work(item) for each item; many items run on threads, so that they wait for the drive together.

    A drive finishes syncs of different files that run at the same time with one write of its journal: on a
    drive where a sync takes milliseconds, a hundred of them take about as long as ten in a row. Each item
    must have files of its own. Then a crash leaves for each item what it leaves if the items run one after
    another.

    Args:
        work: Reads, writes and syncs the files of one item.
        items: The items.
        threads: How many run at the same time. None: 1 below OVERLAP_FROM items, else as many as the first
            items waited longer than they computed, at most OVERLAP_THREADS.

    Raises:
        LastwordError: The first one, in the order of the items, when no thread runs any more. Later items may
            have been worked on.
    """
    results: list[R] = []
    if threads is None:
        threads = 1
        if len(items) >= OVERLAP_FROM:
            wall, cpu = time.perf_counter(), time.thread_time()
            results = [work(item) for item in items[:OVERLAP_SAMPLE]]
            wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
            threads = min(OVERLAP_THREADS, int(wall / max(cpu, 1e-6)))
    rest = items[len(results) :]
    if threads < 2 or len(rest) < 2:
        return results + [work(item) for item in rest]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(threads, len(rest)), thread_name_prefix="lastword-files") as pool:
        return results + list(pool.map(work, rest))


# ---------------------------------------------------------------- work in steps


TOGETHER = 96
"""The least value of `Files.together`: the work items that `run_together` takes a step of before their syncs.
Each has about four unsynced files, for which half of the usual 1,024 descriptors are enough."""


def run_steps(steps: Steps[R]) -> R:
    """Run work in steps, with each sync in its place. Return its result."""
    try:
        syncs = next(steps)
        while True:
            try:
                for sync in syncs:
                    sync()
            except BaseException as error:
                syncs = steps.throw(error)
            else:
                syncs = next(steps)
    except StopIteration as end:
        result: R = end.value
        return result


def sync_along(syncs: Syncs, steps: Steps[None] | None) -> Steps[None]:
    """Make syncs together with the first ones of work in steps, and continue that work."""
    first = () if steps is None else next(steps, ())
    try:
        yield (*syncs, *first)
    except BaseException as error:
        if steps is not None and first:
            steps.throw(error)  # it removes its temporary files, and raises the error
        raise
    if steps is not None:
        yield from steps


def run_together(
    works: Sequence[Steps[R]], files: Files, root: Path, *, any_thread: bool = False
) -> list[R | LastwordError]:
    """Run work in steps, each with files of its own; return their results, or the errors that ended them.

    One thread takes a step of many items. Then the drive is synced as a whole, or if the storage cannot do
    that, other threads wait for the syncs of all items. Threads that each do all of an item (`overlapped`)
    would mostly wait for the interpreter's lock. The order of one item's steps and syncs is that of
    `run_steps`. An error of another class than LastwordError ends all items.

    Args:
        works: The items.
        files: The storage of their files, which are below `root`.
        root: A guarded root.
        any_thread: The steps of an item need not run on one thread, and wait for reads (`overlapped`).
    """
    if len(works) < OVERLAP_FROM:
        return [_result(steps) for steps in works]
    from concurrent.futures import ThreadPoolExecutor

    results: list[R | LastwordError] = []
    with ThreadPoolExecutor(OVERLAP_THREADS, thread_name_prefix="lastword-files") as pool:
        for first in range(0, len(works), files.together):
            together, step_threads = works[first : first + files.together], None if any_thread else 1
            results += _in_rounds(together, files, root, pool, step_threads)
    return results


def _result(steps: Steps[R]) -> R | LastwordError:
    try:
        return run_steps(steps)
    except LastwordError as error:
        return error


def _in_rounds(
    works: Sequence[Steps[R]], files: Files, root: Path, pool: Executor, step_threads: int | None
) -> list[R | LastwordError]:
    """Run work in steps; in each round all items take a step, then their syncs run."""
    results: dict[int, R | LastwordError] = {}

    def step(number: int) -> Syncs | None:
        """Take a step of an item; return its syncs, or None at its end."""
        steps, error = works[number], errors[number]
        try:
            return next(steps) if error is None else steps.throw(error)
        except StopIteration as end:
            results[number] = end.value
        except LastwordError as failure:
            results[number] = failure
        return None

    errors: dict[int, BaseException | None] = dict.fromkeys(range(len(works)))
    try:
        while errors:
            taken = zip(errors, overlapped(step, list(errors), threads=step_threads), strict=True)
            syncs = {number: each for number, each in taken if each is not None}
            errors = dict(zip(syncs, _synced(list(syncs.values()), files, root, pool), strict=True))
    finally:
        for steps in works:
            steps.close()  # here, not in the thread of the garbage collector: an item may hold a lock
    return [results[number] for number in range(len(works))]


def _synced(waiting: list[Syncs], files: Files, root: Path, pool: Executor) -> list[BaseException | None]:
    """Call the syncs of all items; return the first error of each."""
    if len(waiting) >= OVERLAP_THREADS:
        with files.synced_drive(root) as is_synced:
            if is_synced:
                return _first_errors(waiting)
    # The syncs of several items are one call of the pool, which costs as much as a short sync.
    size = -(-len(waiting) // OVERLAP_THREADS) or 1
    shares = [waiting[first : first + size] for first in range(0, len(waiting), size)]
    return list(chain.from_iterable(pool.map(_first_errors, shares)))


def _first_errors(works: Iterable[Syncs]) -> list[BaseException | None]:
    """Call the syncs of several items; return the first error of each."""
    return [_first_error(syncs) for syncs in works]


def _first_error(syncs: Syncs) -> BaseException | None:
    """Call the syncs, up to the first that raises; return its error."""
    try:
        for sync in syncs:
            sync()
    except BaseException as error:
        return error
    return None


class PositionedFile(io.RawIOBase):
    """A file for Arrow's readers, of `size` bytes. `read_at` takes a size and a position; `end` closes it."""

    def __init__(
        self, size: int, read_at: Callable[[int, int], bytes], end: Callable[[], object] = lambda: None
    ) -> None:
        self._size = size
        self._read_at = read_at
        self._end = end
        self._at = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position and return it."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Read from the position on; -1: to the end."""
        left = max(0, self._size - self._at)
        data = self._read_at(left if size < 0 else min(size, left), self._at)
        self._at += len(data)
        return data

    def close(self) -> None:
        """Close the file."""
        self._end()
        super().close()
