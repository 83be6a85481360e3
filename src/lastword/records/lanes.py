"""Chunks made ready by two threads, and given out in order.

What a chunk needs before its turn (reading, verifying, inflating, parsing) depends on no other chunk. With a
second thread that is done ahead of whoever takes them, and the taker does it, too, whenever the next chunk is
not ready yet: so both are busy, whichever part takes longer. Only reading is done one chunk at a time. They
are taken one after another, by the caller alone: what comes of it is the same to the bit.

    second   read 1  prepare 1   read 2  prepare 2   read 4 ...
    caller   read 0  prepare 0   take 0   take 1     read 3  prepare 3   take 2 ...
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Generic, TypeVar

from lastword.records.chunk import Chunk, ChunkReader

T = TypeVar("T")

LANES = 4  # chunks that are read and not yet taken, at most


def second_thread(name: str, threads: int) -> AbstractContextManager[Executor | None]:
    """One thread beside the caller's, ended when the context is left; None where only one may be used."""
    return ThreadPoolExecutor(1, thread_name_prefix=name) if threads > 1 else nullcontext()


def in_lanes(reader: Iterator[Chunk], lanes: int) -> Iterator[Chunk]:
    """What `reader` gives; each chunk holds until the `lanes`-th one after it is asked for. With several
    lanes records may be compressed still: `Chunk.inflate` is the caller's.
    """
    if lanes == 1:
        yield from reader
    elif isinstance(reader, ChunkReader):
        reader.in_lanes(lanes)
        yield from reader
    else:
        for chunk in reader:
            yield Chunk(chunk.raw.copy(), chunk.plain.copy(), chunk.table.copy(), chunk.file)


def prepared(
    read: Callable[[int], Iterator[T]], prepare: Callable[[T], None], second: Executor | None
) -> Generator[T]:
    """Everything of `read(lanes)`, in order, after `prepare` was called for it. To be closed.

    `read` is asked by one thread at a time; `prepare` may run for two things at once. What was given out
    holds until the next one is asked for. Errors of either come when it is that thing's turn.
    """
    if second is not None:
        yield from _Pipeline(read(LANES), prepare, second)
        return
    for one in read(1):
        prepare(one)
        yield one


class _Pipeline(Generic[T]):
    """`_free` has a permit for each lane; who reads takes one, and it comes back once the caller has finished
    with what was read.
    """

    def __init__(self, items: Iterator[T], prepare: Callable[[T], None], second: Executor) -> None:
        self._items = items
        self._prepare = prepare
        self._second = second
        self._free = threading.Semaphore(LANES)
        self._reading = threading.Lock()
        self._changed = threading.Condition()
        self._ready: dict[int, tuple[T, BaseException | None]] = {}
        self._count = 0  # that were read
        self._ended = False  # no more will be read
        self._error: BaseException | None = None  # of reading: comes after all that was read

    def __iter__(self) -> Iterator[T]:
        helping = self._second.submit(self._help)
        taken = 0
        try:
            while True:
                ready = self._ready.pop(taken, None)
                if ready is not None:
                    item, error = ready
                    if error is not None:
                        raise error
                    yield item
                    taken += 1
                    self._free.release()
                elif self._ended and taken == self._count:
                    break
                elif not self._ended and self._free.acquire(blocking=False):
                    self._next()
                else:
                    with self._changed:
                        self._changed.wait_for(partial(self._news, taken))
        finally:
            self._ended = True
            self._free.release()  # the helper may be waiting for a lane
            if not helping.cancel():
                helping.result()
        if self._error is not None:
            raise self._error

    def _news(self, number: int) -> bool:
        return number in self._ready or (self._ended and number == self._count)

    def _help(self) -> None:
        while not self._ended:
            self._free.acquire()
            self._next()

    def _next(self) -> None:
        """Read one thing, and prepare it."""
        with self._reading:
            found: list[T] = []
            if not self._ended:
                try:
                    found.append(next(self._items))
                except StopIteration:
                    pass
                except BaseException as error:
                    self._error = error
            if not found:
                self._end()
                return
            number = self._count
            self._count += 1
        failed: BaseException | None = None
        try:
            self._prepare(found[0])
        except BaseException as error:
            failed = error
        with self._changed:
            self._ready[number] = found[0], failed
            self._changed.notify_all()

    def _end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._free.release()
