"""`ObjectReads`: read files that are ranges of objects, with read-ahead.

A request costs tens of milliseconds, so a read fetches more than it was asked for when the reads of a file
follow each other: at first `FIRST_BYTES`, then twice the last range, up to `BLOCK_BYTES`. From then on the
next blocks are fetched by threads while the caller decodes: at most `AHEAD_BLOCKS` of all files together, so
memory is bounded.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from lastword.bucket.manifest import Entry, Patch
from lastword.errors import FileVanishedError, NotPermittedError, ObjectVanishedError
from lastword.files import FileFacts, Handle
from lastword.files.interface import Buffer
from lastword.objects.interface import ObjectStore

FIRST_BYTES = 64 << 10
BLOCK_BYTES = 8 << 20
AHEAD_BLOCKS = 8


class ObjectReads:
    """Opens files that are stored as ranges of objects.

    Args:
        store: The store of the objects.
        ahead_blocks: Blocks that are fetched before they are asked for, of all files together.
    """

    def __init__(self, store: ObjectStore, ahead_blocks: int = AHEAD_BLOCKS) -> None:
        self._store = store
        self.on_vanished: Callable[[], None] = lambda: None
        """Called when an object is gone: the version that names it is too old."""
        self._room = threading.Semaphore(ahead_blocks)
        self._pool: ThreadPoolExecutor | None = None
        self._threads = ahead_blocks
        self._lock = threading.Lock()

    def open(self, path: str, entry: Entry, patch: Patch | None = None) -> Handle:
        """Open a stored file to read. `patch`: instead of the stored one."""
        return _ObjectHandle(path, entry, self, self.patch_of(entry) if patch is None else patch)

    def patch_of(self, entry: Entry) -> Patch | None:
        """Return the patch of a file; None if it has none."""
        if entry.patch is None:
            return None
        key, position, size = entry.patch
        return Patch.decode(self._range(key, position, size), f"{self._store.url}/{key}")

    def fetch(self, entry: Entry, position: int, size: int, patch: Patch | None = None) -> Buffer:
        """Return bytes of a file; they are within it."""
        if entry.object is None:
            return entry.data[position : position + size]
        data = self._range(entry.object, entry.position + position, size)
        if patch is None:
            return data
        patched = bytearray(data)
        patch.apply(patched, position)
        return patched

    def _range(self, key: str, start: int, size: int) -> Buffer:
        try:
            return self._store.get_range(key, start, size)
        except ObjectVanishedError as error:
            self.on_vanished()
            raise FileVanishedError(
                f"{self._store.url}/{key} was removed: the version that was read is too old",
                remedy="read again; a read that takes longer than lastword.objects.retention.ms needs a pin",
                file=error.file,
            ) from error

    def whole(self, entry: Entry) -> bytes:
        """Return all bytes of a file."""
        return bytes(self.fetch(entry, 0, entry.size, self.patch_of(entry))) if entry.size else b""

    def fetch_ahead(
        self, entry: Entry, position: int, size: int, patch: Patch | None
    ) -> Future[Buffer] | None:
        """Begin to fetch bytes in a thread; None if there is no room for another block."""
        if self._threads < 1 or not self._room.acquire(blocking=False):
            return None
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="lastword-read-ahead")
            return self._pool.submit(self.fetch, entry, position, size, patch)

    def release(self, block: Future[Buffer]) -> None:
        """Give the room of a fetched block back."""
        block.cancel()
        self._room.release()

    def close(self) -> None:
        """End the threads."""
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)
                self._pool = None


class _ObjectHandle(Handle):
    """A file in a range of an object."""

    def __init__(self, path: str, entry: Entry, reads: ObjectReads, patch: Patch | None) -> None:
        self.path = path
        self._patch = patch
        self._entry = entry
        self._reads = reads
        self._lock = threading.Lock()
        self._start = 0  # of the bytes in memory
        self._held: Buffer = b"" if entry.object is not None else entry.data
        self._window = FIRST_BYTES
        self._ahead: OrderedDict[int, Future[Buffer]] = OrderedDict()  # by position

    def pread(self, n: int, position: int) -> bytes:
        """As `Handle.pread`."""
        n = min(n, self._entry.size - position)
        if n <= 0:
            return b""
        data = bytearray(n)
        self.pread_into(data, position)
        return bytes(data)

    def pread_into(self, buffer: Buffer, position: int) -> int:
        """As `Handle.pread_into`."""
        view = memoryview(buffer).cast("B")
        wanted = min(len(view), max(self._entry.size - position, 0))
        done = 0
        with self._lock:
            while done < wanted:
                at = position + done
                held = at - self._start
                if not 0 <= held < len(self._held):
                    self._load(at, wanted - done)
                    held = at - self._start
                part = memoryview(self._held)[held : held + wanted - done]
                view[done : done + len(part)] = part
                done += len(part)
        return done

    def _load(self, position: int, wanted: int) -> None:
        """Hold the bytes from `position` on, and fetch ahead if the reads follow each other."""
        follows = bool(self._held) and position == self._start + len(self._held)
        block = self._ahead.pop(position, None)
        if block is not None:
            try:
                self._held = block.result()
            finally:
                self._reads.release(block)
            self._start = position
        else:
            self._forget_ahead()
            self._window = min(2 * self._window, BLOCK_BYTES) if follows else FIRST_BYTES
            size = min(
                max(self._window, wanted if wanted <= BLOCK_BYTES else BLOCK_BYTES), self._left(position)
            )
            self._held = self._reads.fetch(self._entry, position, size, self._patch)
            self._start = position
        if self._window == BLOCK_BYTES or len(self._held) >= BLOCK_BYTES:
            self._fetch_ahead()

    def _left(self, position: int) -> int:
        return self._entry.size - position

    def _fetch_ahead(self) -> None:
        position = self._start + len(self._held)
        if self._ahead:
            position = next(reversed(self._ahead)) + BLOCK_BYTES
        while position < self._entry.size:
            size = min(BLOCK_BYTES, self._left(position))
            block = self._reads.fetch_ahead(self._entry, position, size, self._patch)
            if block is None:
                return
            self._ahead[position] = block
            position += size

    def _forget_ahead(self) -> None:
        while self._ahead:
            _, block = self._ahead.popitem()
            self._reads.release(block)

    def append(self, data: Buffer) -> int:
        """Refuse: the file is open to read."""
        raise self._read_only()

    def pwrite(self, data: Buffer, position: int) -> None:
        """Refuse: the file is open to read."""
        raise self._read_only()

    def truncate(self, size: int) -> None:
        """Refuse: the file is open to read."""
        raise self._read_only()

    def _read_only(self) -> NotPermittedError:
        return NotPermittedError(f"{self.path} is open to read", remedy="open it to append", file=self.path)

    def fsync(self) -> None:
        """Do nothing: an object does not change."""

    def stat(self) -> FileFacts:
        """As `Handle.stat`."""
        return FileFacts(self._entry.size, self._entry.mtime_ms, self._entry.number)

    def close(self) -> None:
        """As `Handle.close`."""
        with self._lock:
            self._forget_ahead()
            if self._entry.object is not None:
                self._held = b""

    def __del__(self) -> None:
        if self._ahead:
            self._forget_ahead()
