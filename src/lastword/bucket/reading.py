"""`ObjectReads`: read files that are ranges of objects, with read-ahead.

A request costs tens of milliseconds, so a read fetches more bytes than its range when the reads of a file
follow each other: at first `FIRST_BYTES`, then `GROWTH` times the last range, up to `BLOCK_BYTES`.

A scan is a *stream* of blocks that threads fetch while the caller decodes. It goes on in the next log of the
partition, because a log in a bucket has a segment for each commit, and a pause at the start of each would be
longer than the transfer of its bytes. A stream begins with one block and has `GROWTH` times as many in flight
after each block that is read, up to `AHEAD_BLOCKS` of all streams together.

A scan from the end of each file to its beginning (`will_read_back`) has its next range in flight, also that
of the file that follows.

Short reads in no order (`will_read_pieces`) fetch pieces of `FIRST_BYTES`. Those that were read last stay in
memory.

Memory is bounded: by `AHEAD_BLOCKS` blocks ahead, and `HELD_BYTES` of all open files.

The objects that this process has uploaded last stay in memory, if a server sets `tail_bytes`: its consumers
read mostly what was just committed. A read of them needs no request.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import NamedTuple

from lastword.bucket.manifest import Entry, Patch, lost_object
from lastword.errors import FileVanishedError, LastwordError, NotPermittedError, ObjectVanishedError
from lastword.files import FileFacts, Handle, WouldWait
from lastword.files.interface import Buffer
from lastword.objects.interface import ObjectStore

FIRST_BYTES = 64 << 10
BULK_BYTES = 1 << 20
"""A read of this size is part of a scan."""
BLOCK_BYTES = 4 << 20
"""At 100 MB/s a block takes 42 ms, and its request 30 ms: 24 requests have the bandwidth of 14 connections.

A scan is to have that of 8, also if its threads wait for a busy machine."""
AHEAD_BLOCKS = 24
CHANGE_BLOCKS = 8
"""A change reads ranges of this number of blocks: 32 MiB. Decoding is slower than the store, so three
requests at the same time are enough."""
GROWTH = 4
HELD_BYTES = 32 << 20
PIECES_BYTES = HELD_BYTES // 2
"""Pieces of one file that stay in memory."""
IDLE_BLOCKS = 4 * AHEAD_BLOCKS
"""A stream is given up when this number of blocks of other streams was read since its last."""
FILES_PASSED = 64
"""Files without an object of their own that a stream passes in search of its next block."""

NextFile = Callable[[str], tuple[str, Entry] | None]
"""Returns the file that a scan reads after the file at a path."""


class _Place(NamedTuple):
    """A position in a file, from which a stream goes on."""

    path: str
    entry: Entry
    position: int


class _Block(NamedTuple):
    """A range that is fetched ahead."""

    data: Future[Buffer]
    stream: _Stream
    place: _Place


class _Below(NamedTuple):
    """The range of a file that a backward scan reads next."""

    start: int
    end: int
    data: Future[Buffer]


_Key = tuple[str, int]  # object, position of the first byte in it


class _Stream:
    """The blocks that are fetched ahead of one scan. `ObjectReads` has its lock."""

    def __init__(self, next_file: NextFile, place: _Place, blocks: int, ends: Container[str]) -> None:
        self.next_file = next_file
        self.ends = ends  # paths of files after which no scan goes on
        self.blocks = blocks  # of a range
        self.place: _Place | None = place  # of the next block; None: the scan has no more
        self.keys: OrderedDict[_Key, None] = OrderedDict()
        self.depth = 1
        self.last_read = 0  # number of the last block that was read of it

    def next_place(self) -> _Place | None:
        """Return where the next block begins, in this file or a later one."""
        for _ in range(FILES_PASSED):
            if self.place is None:
                return None
            path, entry, position = self.place
            if entry.object is not None and position < entry.size:
                return self.place
            following = None if path in self.ends else self.next_file(path)
            self.place = None if following is None else _Place(*following, 0)
        return None


class ObjectReads:
    """Opens files that are stored as ranges of objects.

    Args:
        store: The store of the objects.
        ahead_blocks: Blocks that are fetched before they are read, of all files together.
    """

    def __init__(self, store: ObjectStore, ahead_blocks: int = AHEAD_BLOCKS) -> None:
        self._store = store
        self.on_vanished: Callable[[str], bool] = lambda key: False
        """Called with the key of an object that is gone. Returns whether the newest version names it: then
        the object is lost. Otherwise the version that was read is too old."""
        self.again: Callable[[Callable[[], Buffer]], Buffer] = lambda read: read()
        """Returns the result of a read, which it repeats if the read fails."""
        self.vanished = 0
        """Number of requests for objects of versions that were too old."""
        self._pool: ThreadPoolExecutor | None = None
        self._threads = ahead_blocks
        self._lock = threading.RLock()
        self._blocks: dict[_Key, _Block] = {}
        self._ends: weakref.WeakValueDictionary[str, _ObjectHandle] = weakref.WeakValueDictionary()
        self._blocks_read = 0
        self._read_whole: OrderedDict[str, None] = OrderedDict()  # files after files that were read in one
        self.tail_bytes = 0
        """Bytes of the objects that were uploaded last, which stay in memory."""
        self._tail: OrderedDict[str, tuple[int, bytes]] = OrderedDict()  # position and bytes, oldest first
        self._tail_size = 0
        self._thread = threading.local()
        self._held: OrderedDict[int, tuple[weakref.ref[_ObjectHandle], int]] = OrderedDict()
        self._held_bytes = 0
        self._finalized: deque[tuple[int, _Stream | None]] = deque()  # handles that were not closed

    def open(
        self,
        path: str,
        entry: Entry,
        patch: Patch | None = None,
        next_file: NextFile = lambda path: None,
        blocks: int = 1,
    ) -> Handle:
        """Open a stored file to read.

        Args:
            path: Its path.
            entry: Where it is stored.
            patch: Instead of the stored one.
            next_file: Returns the file that a scan reads after another one.
            blocks: The longest range that is read, in blocks.
        """
        patch = self.patch_of(entry) if patch is None else patch
        return _ObjectHandle(path, entry, self, patch, next_file, blocks)

    def patch_of(self, entry: Entry) -> Patch | None:
        """Return the patch of a file; None if it has none."""
        if entry.patch is None:
            return None
        key, position, size = entry.patch
        return Patch.decode(self._range(key, position, size), f"{self._store.url}/{key}")

    def fetch(self, entry: Entry, position: int, size: int) -> Buffer:
        """Return bytes of a file as they are stored; they are within it."""
        if entry.object is None:
            return entry.data[position : position + size]
        return self._range(entry.object, entry.position + position, size)

    def _range(self, key: str, start: int, size: int) -> Buffer:
        position, kept = self._tail.get(key, (0, b""))
        if position <= start and start + size <= position + len(kept):
            return memoryview(kept)[start - position :][:size]
        self.check_may_wait()
        try:
            return self.again(partial(self._store.get_range, key, start, size))
        except ObjectVanishedError as error:
            if self.on_vanished(key):
                raise lost_object(f"{self._store.url}/{key}", "the newest version of the log") from error
            with self._lock:
                self.vanished += 1
            raise FileVanishedError(
                f"{self._store.url}/{key} was removed: the version that was read is too old",
                remedy="read again; a read that takes longer than lastword.objects.retention.ms needs a pin",
                file=error.file,
            ) from error

    def whole(self, entry: Entry) -> bytes:
        """Return all bytes of a file."""
        if not entry.size:
            return b""
        patch = self.patch_of(entry)
        return bytes(_patched(self.fetch(entry, 0, entry.size), 0, patch))

    # -------------------------------------------------------------- tail

    @contextmanager
    def without_requests(self) -> Iterator[None]:
        """As `Files.without_requests`."""
        before, self._thread.may_not_wait = getattr(self._thread, "may_not_wait", False), True
        try:
            yield
        finally:
            self._thread.may_not_wait = before

    def check_may_wait(self) -> None:
        """Raise WouldWait in a block of `without_requests`."""
        if getattr(self._thread, "may_not_wait", False):
            raise WouldWait

    def keep(self, key: str, parts: Sequence[Buffer]) -> None:
        """Keep an object that was uploaded, in place of the oldest ones."""
        if sum(map(len, parts)) <= self.tail_bytes:
            self._keep(key, 0, b"".join(parts))  # one part of bytes is not copied

    def _keep(self, key: str, position: int, data: bytes) -> None:
        with self._lock:
            self._tail_size += len(data) - len(self._tail.pop(key, (0, b""))[1])
            self._tail[key] = position, data
            while self._tail_size > self.tail_bytes:
                self._tail_size -= len(self._tail.popitem(last=False)[1][1])

    def take_in(self, ranges: Mapping[str, range]) -> None:
        """Keep ranges of objects, the last ones, in place of the oldest ones; one request for each.

        A range that cannot be read is left out.
        """
        chosen, size = [], 0
        for key, positions in reversed(list(ranges.items())):
            size += len(positions)
            if size > self.tail_bytes:
                break
            if not self._is_kept(key, positions.start, len(positions)):
                chosen.append((key, positions.start, len(positions)))
        with self._lock:
            fetched = [self._threads_ahead().submit(self._range, *part) for part in reversed(chosen)]
        for (key, position, _), data in zip(reversed(chosen), fetched, strict=True):
            with suppress(LastwordError):
                self._keep(key, position, bytes(data.result()))

    def keeps(self, entry: Entry) -> bool:
        """Return whether a file is in memory."""
        return entry.object is not None and self._is_kept(entry.object, entry.position, entry.size)

    def _is_kept(self, key: str, start: int, size: int) -> bool:
        position, kept = self._tail.get(key, (0, b""))
        return position <= start and start + size <= position + len(kept)

    # -------------------------------------------------------------- read-ahead

    def take(self, entry: Entry, position: int) -> _Block | None:
        """Return the block that was fetched ahead from this position on; fetch more of its stream."""
        if entry.object is None:
            return None
        key = entry.object, entry.position + position
        with self._lock:
            self._forget_finalized()
            block = self._blocks.get(key)
            if block is None:
                return None
            stream = block.stream
            for first in list(stream.keys):
                if first == key:
                    break
                self._drop(first)  # the scan has passed the block
            self._blocks.pop(key, None)
            stream.keys.pop(key, None)
            self._blocks_read += 1
            stream.last_read = self._blocks_read
            stream.depth = min(GROWTH * stream.depth, max(self._threads // stream.blocks, 1))
            self._fetch_ahead(stream)
            return block

    def begin(self, next_file: NextFile, place: _Place, blocks: int) -> _Stream:
        """Begin a stream of ranges of this number of blocks at a place, which a scan reads next."""
        stream = _Stream(next_file, place, blocks, self._ends)
        with self._lock:
            self._forget_finalized()
            stream.last_read = self._blocks_read
            self._fetch_ahead(stream)
        return stream

    def end_after(self, handle: _ObjectHandle) -> None:
        """Let no scan go on after this file while it is open."""
        with self._lock:
            self._ends[handle.path] = handle

    def is_scan(self, path: str, next_file: NextFile) -> bool:
        """Return whether the file before was read in one as well, as this one is now."""
        with self._lock:
            is_next = self._read_whole.pop(path, self) is None
            following = next_file(path)
            if following is not None:
                self._read_whole[following[0]] = None
                if len(self._read_whole) > FILES_PASSED:
                    self._read_whole.popitem(last=False)
            return is_next

    def begin_fetch(self, entry: Entry, position: int, size: int) -> Future[Buffer]:
        """Fetch bytes of a file in another thread."""
        with self._lock:
            return self._threads_ahead().submit(self.fetch, entry, position, size)

    def _threads_ahead(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="lastword-read-ahead")
        return self._pool

    def _fetch_ahead(self, stream: _Stream) -> None:
        while len(stream.keys) < stream.depth and (place := stream.next_place()) is not None:
            path, entry, position = place
            assert entry.object is not None
            key = entry.object, entry.position + position
            if key in self._blocks or not self._has_room(stream):
                return
            size = min(stream.blocks * BLOCK_BYTES, entry.size - position)
            data = self._threads_ahead().submit(self._range, *key, size)
            self._blocks[key] = _Block(data, stream, place)
            stream.keys[key] = None
            stream.place = _Place(path, entry, position + size)

    def _has_room(self, stream: _Stream) -> bool:
        """Return whether the stream may have another block; other streams give up more than their share."""
        if self._blocks_ahead() < self._threads:
            return True
        others = {id(block.stream): block.stream for block in list(self._blocks.values())}
        others.pop(id(stream), None)
        for other in others.values():
            if self._blocks_read - other.last_read > IDLE_BLOCKS:
                self.end(other)
        if self._blocks_ahead() < self._threads:
            return True
        longest = max(others.values(), key=lambda other: len(other.keys), default=None)
        if longest is None or len(longest.keys) < len(stream.keys) + 2:
            return False
        last = next(reversed(longest.keys))
        longest.place = self._blocks[last].place  # the stream goes on there
        self._drop(last)
        return True

    def _blocks_ahead(self) -> int:
        return sum(block.stream.blocks for block in self._blocks.values())

    def _drop(self, key: _Key) -> None:
        """Give up a block."""
        block = self._blocks.pop(key)
        block.data.cancel()
        block.stream.keys.pop(key, None)

    def end(self, stream: _Stream) -> None:
        """Give up the blocks of a stream."""
        with self._lock:
            for key in list(stream.keys):
                self._drop(key)
            stream.place = None

    # -------------------------------------------------------------- bytes of open files

    def hold(self, handle: _ObjectHandle, size: int) -> None:
        """Count the bytes that an open file has in memory; free those that were read longest ago."""
        with self._lock:
            self._forget_finalized()
            _, before = self._held.pop(id(handle), (None, 0))
            self._held_bytes += size - before
            if size:
                self._held[id(handle)] = weakref.ref(handle), size
            while self._held_bytes > HELD_BYTES and len(self._held) > 1:
                _, (oldest, freed) = self._held.popitem(last=False)
                self._held_bytes -= freed
                if (other := oldest()) is not None:
                    other.free()

    def closed(self, handle: _ObjectHandle) -> None:
        """Forget an open file."""
        with self._lock:
            self.hold(handle, 0)
            if self._ends.get(handle.path) is handle:
                del self._ends[handle.path]

    def finalized(self, handle: _ObjectHandle, stream: _Stream | None) -> None:
        """Note a handle that the garbage collector frees.

        Takes no lock: the collector may run in a thread that starts while the starting one has the lock.
        """
        self._finalized.append((id(handle), stream))

    def _forget_finalized(self) -> None:
        while self._finalized:
            number, stream = self._finalized.popleft()
            _, freed = self._held.pop(number, (None, 0))
            self._held_bytes -= freed
            if stream is not None:
                self.end(stream)

    def close(self) -> None:
        """End the threads."""
        with self._lock:
            for key in list(self._blocks):
                self._drop(key)
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)
                self._pool = None


def _no_file(path: str) -> None:
    """Return None: no file follows."""


def _patched(data: Buffer, position: int, patch: Patch | None) -> Buffer:
    """Return bytes of a file from a position on with the patch of the file."""
    if patch is None:
        return data
    patched = bytearray(data)
    patch.apply(patched, position)
    return patched


class _ObjectHandle(Handle):
    """A file in a range of an object."""

    def __init__(
        self,
        path: str,
        entry: Entry,
        reads: ObjectReads,
        patch: Patch | None,
        next_file: NextFile,
        blocks: int,
    ) -> None:
        self.path = path
        self._blocks = blocks
        self._patch = patch
        self._entry = entry
        self._reads = reads
        self._next_file = next_file
        self._lock = threading.Lock()
        self._nothing: tuple[int, Buffer] = (0, b"" if entry.object is not None else entry.data)
        self._held = self._nothing  # position and bytes in memory; another thread may free them
        self._end = 0  # of the last range that was read
        self._window = FIRST_BYTES
        self._stream: _Stream | None = None  # while it has blocks of this file
        self._range: tuple[int, int] | None = None  # of the only scan (`will_read`)
        self._is_back = False  # a scan reads backward (`will_read_back`), and has not come to the beginning
        self._below: _Below | None = None  # what it reads next
        self._pieces: OrderedDict[int, Buffer] | None = None  # by position, the one read longest ago first

    def will_read(self, start: int, end: int) -> None:
        """As `Handle.will_read`."""
        with self._lock:
            self._end_stream()
            self._range = start, min(end, self._entry.size)

    def will_read_back(self) -> None:
        """As `Handle.will_read_back`."""
        with self._lock:
            if not self._is_back and self._entry.object is not None:
                self._is_back = True
                self._fetch_below(self._entry.size)

    def will_read_pieces(self) -> None:
        """As `Handle.will_read_pieces`."""
        with self._lock:
            if self._pieces is None and self._entry.object is not None:
                self._pieces = OrderedDict()

    def _fetch_below(self, end: int) -> None:
        """Begin to fetch the range that ends here, if there is one."""
        self._below = None
        if end:
            start = max(end - self._blocks * BLOCK_BYTES, 0)
            self._below = _Below(start, end, self._reads.begin_fetch(self._entry, start, end - start))

    def _end_back(self) -> None:
        self._is_back = False
        if self._below is not None:
            self._below.data.cancel()
            self._below = None

    def ends_scan(self) -> None:
        """As `Handle.ends_scan`."""
        self._reads.end_after(self)

    def pread(self, n: int, position: int) -> bytes:
        """As `Handle.pread`."""
        return b"".join(self._parts(n, position))

    def pread_into(self, buffer: Buffer, position: int) -> int:
        """As `Handle.pread_into`."""
        view, done = memoryview(buffer).cast("B"), 0
        for part in self._parts(len(view), position):
            view[done : done + len(part)] = part
            done += len(part)
        return done

    def _parts(self, n: int, position: int) -> Iterator[memoryview]:
        """Yield `n` bytes from a position on, or those up to the end of the file, as they come to memory."""
        wanted, done = min(n, max(self._entry.size - position, 0)), 0
        with self._lock:
            start, held = self._held
            while done < wanted:
                at = position + done
                if not 0 <= at - start < len(held):
                    start, held = self._load(at, wanted - done)
                part = memoryview(held)[at - start : at - start + wanted - done]
                yield part
                done += len(part)
            if self._is_back:
                if not position:
                    self._end_back()
            elif len(held) > FIRST_BYTES and position + done == self._entry.size:
                # A scan goes on in another file. Its caller looks at the last batch again.
                tail = memoryview(held)[-FIRST_BYTES:]
                self._held = self._entry.size - len(tail), bytes(tail)
                self._reads.hold(self, len(tail))

    def free(self) -> None:
        """Free the bytes in memory."""
        self._held = self._nothing
        if self._pieces is not None:
            self._pieces = OrderedDict()  # a thread that reads may be changing the other one

    def _load(self, position: int, wanted: int) -> tuple[int, Buffer]:
        """Hold bytes of which one is at `position`; return their position and them. Fetch ahead in a scan."""
        if self._reads.keeps(self._entry) and self._stream is None:
            data = self._reads.fetch(self._entry, position, wanted)
            return position, _patched(data, position, self._patch)
        if self._pieces is not None and wanted <= FIRST_BYTES:
            return self._piece(self._pieces, position - position % FIRST_BYTES)
        self._reads.check_may_wait()
        if self._is_back:
            return self._load_back(position, wanted)
        block = self._reads.take(self._entry, position)
        if block is not None:
            self._stream = block.stream
            data = block.data.result()
        else:
            self._end_stream()
            follows, entry, next_file = 0 < position == self._end, self._entry, self._next_file
            is_in_range = self._range is not None and self._range[0] <= position < self._range[1]
            if self._range is not None and is_in_range:
                follows, self._window = True, self._blocks * BLOCK_BYTES
                entry, next_file = entry._replace(size=self._range[1]), _no_file
            longest = self._blocks * BLOCK_BYTES
            self._window = min(GROWTH * self._window, longest) if follows else FIRST_BYTES
            size = min(max(self._window, min(wanted, longest)), entry.size - position)
            if is_in_range or self._is_scan(position, wanted, size):
                if self._blocks > 1:  # a change waits for the whole file: no record is needed soon
                    size = min(longest, entry.size - position)
                place = _Place(self.path, entry, position + size)
                self._stream = self._reads.begin(next_file, place, self._blocks)
            data = self._reads.fetch(self._entry, position, size)
        self._end = position + len(data)
        if self._end == (self._entry.size if self._range is None else self._range[1]):
            self._stream = None  # its blocks are of the files that follow
        data = _patched(data, position, self._patch)
        self._hold(position, data)
        return self._held

    def _piece(self, pieces: OrderedDict[int, Buffer], start: int) -> tuple[int, Buffer]:
        """Return a piece of the file and its position."""
        data = pieces.pop(start, None)
        if data is None:
            size = min(FIRST_BYTES, self._entry.size - start)
            data = _patched(self._reads.fetch(self._entry, start, size), start, self._patch)
        pieces[start] = data
        if len(pieces) > PIECES_BYTES // FIRST_BYTES:
            pieces.popitem(last=False)
        self._hold(start, data)
        return self._held

    def _load_back(self, position: int, wanted: int) -> tuple[int, Buffer]:
        """As `_load` while a scan reads the file from its end to its beginning."""
        below = self._below
        if below is None or not below.start <= position < below.end:  # the rest of a read across two ranges
            data = self._reads.fetch(self._entry, position, wanted)
            return position, _patched(data, position, self._patch)
        data = below.data.result()
        self._fetch_below(below.start)
        self._hold(below.start, _patched(data, below.start, self._patch))
        return self._held

    def _hold(self, position: int, data: Buffer) -> None:
        self._held = position, data
        self._reads.hold(self, len(data) + len(self._pieces or ()) * FIRST_BYTES)

    def _is_scan(self, position: int, wanted: int, size: int) -> bool:
        if self._entry.object is None:
            return False
        if position == 0 and wanted == self._entry.size == size:
            return self._reads.is_scan(self.path, self._next_file) or size >= BULK_BYTES
        return wanted >= BULK_BYTES or self._window >= BULK_BYTES

    def _end_stream(self) -> None:
        if self._stream is not None:
            self._reads.end(self._stream)
            self._stream = None

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
            self._end_stream()
            self._end_back()
            self.free()
            self._reads.closed(self)

    def __del__(self) -> None:
        self._reads.finalized(self, self._stream)
