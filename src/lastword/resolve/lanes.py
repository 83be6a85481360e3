"""Chunks made ready for the map, one after another, or by two threads.

Reading, verifying, inflating, parsing and hashing need nothing that the map holds. With two threads a helper
does that for the chunks ahead, and so does the caller whenever the next one is not ready yet. Only reading is
done one chunk at a time, and the map takes the chunks in their order: the result is the same to the bit.

    helper   read 1  fill 1   read 2  fill 2   read 4 ...
    caller   read 0  fill 0   map 0   map 1    read 3  fill 3   map 2 ...
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from lastword import kernels
from lastword.kernels import piece
from lastword.kernels import table as fields
from lastword.records.chunk import Chunk, ChunkReader
from lastword.resolve.facts import SegmentSource
from lastword.resolve.rules import LAST_HASH, Rules

FEW_RECORDS = 4096  # of a piece that is used again at once: it stays in the cache
MOST_RECORDS = 1 << 16  # of a piece that waits for its turn
LANES = 4  # chunks that are read and not yet in the map, at most


class Piece:
    """Records made ready for the map, and where in their chunk the next ones begin. Used again and again."""

    def __init__(self, records: int = FEW_RECORDS) -> None:
        self.cursor = np.zeros(piece.CURSOR_FIELDS, np.int64)
        self._make(records)

    def _make(self, records: int) -> None:
        self.hashes = np.empty((2, records), np.uint64)
        self.spans = np.empty((piece.SPAN_FIELDS, records), np.int64)
        self.pages = np.empty(records, np.int64)
        self.homes = np.empty((2, records), np.int64)

    def start(self, rules: Rules, *, first_pass: bool, old_due: bool) -> None:
        """At the beginning of a chunk."""
        self.cursor[piece.ROW] = 0
        self.cursor[piece.ORDINAL] = 0
        self.cursor[piece.KEYLESS_GO] = rules.keyless_go
        self.cursor[piece.NOW] = rules.now_ms
        self.cursor[piece.OLD_DUE] = old_due
        self.cursor[piece.DUE_BELOW] = rules.due_below
        self.cursor[piece.FIRST_PASS] = first_pass
        self.cursor[piece.KEEP_COPIES] = rules.keep_copies
        self.cursor[piece.SAMPLED] = rules.last_hash != LAST_HASH

    def room_for(self, chunk: Chunk) -> None:
        """Room for all records of a chunk, within bounds."""
        counted = int(chunk.table[chunk.data_rows(), fields.COUNT].clip(0).sum())
        if counted > self.spans.shape[1]:
            self._make(min(counted, MOST_RECORDS))

    def fill(self, chunk: Chunk, fates: NDArray[np.uint8], words: NDArray[np.uint64]) -> bool:
        """The next records; False when there are none. Raises CorruptBatchError."""
        if self.cursor[piece.ROW] >= chunk.rows:
            return False
        status = piece.fill_piece(
            chunk.plain,
            chunk.table,
            fates,
            chunk.rows,
            self.cursor,
            words,
            self.hashes,
            self.spans,
            self.pages,
        )
        if status != kernels.OK:
            chunk.raise_status(int(self.cursor[piece.ROW]), status)
        return True


def chunks_of(source: SegmentSource, chunk_bytes: int, lanes: int) -> Iterator[Chunk]:
    """The chunks of a segment; each holds until the `lanes`-th one after it is asked for."""
    reader = source.chunk_reader(chunk_bytes=chunk_bytes, verify=True)
    if lanes == 1:
        yield from reader
    elif isinstance(reader, ChunkReader):
        reader.in_lanes(lanes)
        yield from reader
    else:
        for chunk in reader:
            yield Chunk(chunk.raw.copy(), chunk.plain.copy(), chunk.table.copy(), chunk.file)


Read = Callable[[int], Iterator[tuple[int, Chunk]]]
Begin = Callable[["Piece", int, Chunk], NDArray[np.uint8]]
Fill = Callable[["Piece", Chunk, NDArray[np.uint8]], bool]


@dataclass(slots=True)
class Ready:
    """A chunk, and its pieces one after another; or what went wrong with it."""

    segment: int
    chunk: Chunk
    piece: Piece
    more: Callable[[], bool] | None = None
    first: bool | None = None  # None: nobody has asked `more` yet
    error: Exception | None = None

    def filled(self) -> bool:
        """Is there a piece for the map? Asked again, it is the next one. Raises what went wrong."""
        if self.error is not None:
            raise self.error
        assert self.more is not None
        first, self.first = self.first, None
        return self.more() if first is None else first


def prepared(read: Read, begin: Begin, fill: Fill, threads: int) -> Generator[Ready]:
    """Every chunk of `read(lanes)`, in order. `begin` is called for one after another, in order; then `fill`,
    which may be called by two threads at once, for different chunks.
    """
    if threads > 1:
        yield from _Pipeline(read, begin, fill)
        return
    made = Piece()
    for segment, chunk in read(1):
        yield _begun(begin, fill, made, segment, chunk)


def _begun(begin: Begin, fill: Fill, made: Piece, segment: int, chunk: Chunk) -> Ready:
    """Errors are kept: what is wrong with the chunk as a whole comes first."""
    ready = Ready(segment, chunk, made)
    try:
        ready.more = partial(fill, made, chunk, begin(made, segment, chunk))
    except Exception as error:
        ready.error = error
    return ready


class _Pipeline:
    """`_free` has a permit for each lane; who reads a chunk takes one, and it comes back once the caller has
    finished with that chunk.
    """

    def __init__(self, read: Read, begin: Begin, fill: Fill) -> None:
        self._chunks = read(LANES)
        self._begin = begin
        self._fill = fill
        self._pieces = [Piece() for _ in range(LANES)]
        self._free = threading.Semaphore(LANES)
        self._reading = threading.Lock()
        self._changed = threading.Condition()
        self._ready: dict[int, Ready] = {}
        self._count = 0  # chunks read
        self._ended = False  # no more will be read
        self._error: BaseException | None = None  # of reading: comes after all that was read

    def __iter__(self) -> Iterator[Ready]:
        helper = threading.Thread(target=self._help, name="lastword-resolve", daemon=True)
        helper.start()
        taken = 0
        try:
            while True:
                ready = self._ready.pop(taken, None)
                if ready is not None:
                    yield ready
                    taken += 1
                    self._free.release()
                elif self._ended and taken == self._count:
                    break
                elif not self._ended and self._free.acquire(blocking=False):
                    self._prepare()
                else:
                    with self._changed:
                        self._changed.wait_for(partial(self._news, taken))
        finally:
            self._ended = True
            self._free.release()  # the helper may be waiting for a lane
            helper.join()
        if self._error is not None:
            raise self._error

    def _news(self, number: int) -> bool:
        return number in self._ready or (self._ended and number == self._count)

    def _help(self) -> None:
        while not self._ended:
            self._free.acquire()
            self._prepare()

    def _prepare(self) -> None:
        """Read a chunk, and make its first piece."""
        with self._reading:
            found = None
            if not self._ended:
                try:
                    found = next(self._chunks, None)
                except BaseException as error:
                    self._error = error
            if found is None:
                self._end()
                return
            number = self._count
            made = self._pieces[number % LANES]
            ready = _begun(self._begin, self._fill, made, *found)
            self._count += 1
            if ready.error is not None:
                self._ended = True
        if ready.more is not None:
            try:
                made.room_for(ready.chunk)
                ready.first = ready.more()
            except Exception as error:
                ready.error = error
        with self._changed:
            self._ready[number] = ready
            self._changed.notify_all()

    def _end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._free.release()
