"""Chunks made ready by two threads, and given out in order.

What a chunk needs before its turn (verifying, inflating, parsing) depends on no other chunk; only reading is
done one chunk at a time. With a second thread both are done ahead of whoever takes them, and the taker does
them, too, whenever the next chunk is not ready yet: so both are busy, whichever part takes longer. Chunks are
taken one after another, by the caller alone: what comes of it is the same to the bit.

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


def in_lanes(reader: Iterator[Chunk], lanes: int, *, verify_later: bool = False) -> Iterator[Chunk]:
    """What `reader` gives; each chunk holds until the `lanes`-th one after it is asked for. With several
    lanes records may be compressed still: `Chunk.inflate` is the caller's, and with `verify_later`
    `Chunk.verify` before.
    """
    if lanes == 1:
        yield from reader
    elif isinstance(reader, ChunkReader):
        reader.in_lanes(lanes, verify_later=verify_later)
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


class _Item(Generic[T]):
    """Something that was read. `claimed`: somebody prepares it, or has."""

    def __init__(self, value: T) -> None:
        self.value = value
        self.claimed = False
        self.done = False
        self.error: BaseException | None = None


class _Pipeline(Generic[T]):
    """The second thread reads, and prepares while all lanes are full; the caller prepares what he waits for,
    and reads while the second thread does other work. So neither has to wait for the other to hand over
    reading. All fields are guarded by `_changed`, which only these two threads wait for.
    """

    def __init__(self, items: Iterator[T], prepare: Callable[[T], None], second: Executor) -> None:
        self._source = items
        self._prepare_value = prepare
        self._second = second
        self._changed = threading.Condition()
        self._items: dict[int, _Item[T]] = {}  # read and not yet taken, by number
        self._taken = 0
        self._count = 0  # that were read
        self._busy = False  # somebody reads
        self._ended = False  # nothing more will be read
        self._closed = False  # nor taken
        self._error: BaseException | None = None  # of reading: comes after all that was read

    def __iter__(self) -> Iterator[T]:
        helping = self._second.submit(self._help)
        try:
            while (item := self._next()) is not None:
                if item.error is not None:
                    raise item.error
                yield item.value
                with self._changed:
                    del self._items[self._taken]
                    self._taken += 1
                    self._changed.notify()
        finally:
            with self._changed:
                self._closed = True
                self._changed.notify()
            if not helping.cancel():
                helping.result()
        if self._error is not None:
            raise self._error

    def _next(self) -> _Item[T] | None:
        """The next thing, prepared; None: there is none."""
        while True:
            with self._changed:
                item = self._items.get(self._taken)
                if item is not None and item.done:
                    return item
                if item is None and self._ended:
                    return None
                work = self._preparing() or self._reading()
                if work is None:
                    self._changed.wait()
                    continue
            work()

    def _help(self) -> None:
        while True:
            with self._changed:
                work = None if self._closed else self._reading() or self._preparing()
                if work is None:
                    if self._closed or self._ended:
                        return
                    self._changed.wait()
                    continue
            work()

    def _reading(self) -> Callable[[], None] | None:
        """To read the next one, if nobody else does and a lane is free."""
        if self._busy or self._ended or self._count - self._taken >= LANES:
            return None
        self._busy = True
        return self._read

    def _preparing(self) -> Callable[[], None] | None:
        """To prepare the oldest one that nobody prepares."""
        for item in self._items.values():
            if not item.claimed:
                item.claimed = True
                return partial(self._prepare, item)
        return None

    def _read(self) -> None:
        found: _Item[T] | None = None
        failed: BaseException | None = None
        try:
            found = _Item(next(self._source))
        except StopIteration:
            pass
        except BaseException as error:
            failed = error
        with self._changed:
            self._busy = False
            if found is None:
                self._ended, self._error = True, failed
            else:
                self._items[self._count] = found
                self._count += 1
            self._changed.notify()

    def _prepare(self, item: _Item[T]) -> None:
        try:
            self._prepare_value(item.value)
        except BaseException as error:
            item.error = error
        with self._changed:
            item.done = True
            self._changed.notify()
