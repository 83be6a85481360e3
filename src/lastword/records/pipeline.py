"""Chunks made ready by two threads, and given out in order.

What a chunk needs before its turn (verifying, inflating, parsing) depends on no other chunk; only reading is
done one chunk at a time. With a second thread both are done ahead of whoever takes them, and the taker does
them, too, whenever the next chunk is not ready yet: so both are busy, whichever part takes longer. Chunks are
taken one after another, by the caller alone: what comes of it is the same to the bit. What the caller makes
of them he may leave to be finished (compressed, written), one piece of work after another.

    second   read 1  prepare 1   read 2  prepare 2   read 4 ...
    caller   read 0  prepare 0   take 0   take 1     read 3  prepare 3   take 2 ...
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Generic, TypeVar

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
            yield Chunk(chunk.raw.copy(), chunk.uncompressed.copy(), chunk.table.copy(), chunk.file)


def prepared(
    read: Callable[[int], Iterator[T]], prepare: Callable[[T], None], second: Executor | None
) -> Prepared[T]:
    """Everything of `read(lanes)`, in order, after `prepare` was called for it. To be closed.

    `read` is asked by one thread at a time; `prepare` may run for two things at once. What was given out
    holds until the next one is asked for. Errors of either come when it is that thing's turn.
    """
    return _Alone(read(1), prepare) if second is None else _Pipeline(read(LANES), prepare, second)


class Prepared(ABC, Iterator[T]):
    """Things that are ready, one after another; and work on what came of them that may be left behind."""

    def __init__(self) -> None:
        self._each = self._all()

    def __next__(self) -> T:
        return next(self._each)

    def close(self) -> None:
        """No thread is at work for it any more. Work that was left and not settled may never be done."""
        self._each.close()

    @abstractmethod
    def _all(self) -> Generator[T]: ...

    @abstractmethod
    def leave(self, work: Callable[[], None]) -> bool:
        """Have `work` done by whoever is free; is it done already? All that was left before is. Raises the
        error of either."""

    @abstractmethod
    def settle(self) -> None:
        """All that was left is done. Raises its error."""


class _Alone(Prepared[T]):
    def __init__(self, items: Iterator[T], prepare: Callable[[T], None]) -> None:
        self._source = items
        self._prepare_value = prepare
        super().__init__()

    def _all(self) -> Generator[T]:
        for one in self._source:
            self._prepare_value(one)
            yield one

    def leave(self, work: Callable[[], None]) -> bool:
        work()
        return True

    def settle(self) -> None:
        pass


class _Item(Generic[T]):
    """Something to be worked on. `claimed`: somebody does, or has."""

    def __init__(self, value: T) -> None:
        self.value = value
        self.claimed = False
        self.done = False
        self.error: BaseException | None = None


class _Pipeline(Prepared[T]):
    """The second thread does what was left, reads, and prepares while all lanes are full; the caller prepares
    what he waits for, and does the rest while the second thread does other work. So neither has to wait for
    the other to hand over reading. All fields are guarded by `_changed`, which only these two threads wait
    for.
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
        self._left: _Item[Callable[[], None]] | None = None
        super().__init__()

    def _all(self) -> Generator[T]:
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
                work = self._preparing() or self._reading() or self._finishing()
                if work is None:
                    self._changed.wait()
                    continue
            work()

    def _help(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                work = self._finishing() or self._reading() or self._preparing()
                if work is None:
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
                return partial(self._do, item, partial(self._prepare_value, item.value))
        return None

    def _finishing(self) -> Callable[[], None] | None:
        """To do what was left, if nobody does."""
        left = self._left
        if left is None or left.claimed:
            return None
        left.claimed = True
        return partial(self._do, left, left.value)

    def leave(self, work: Callable[[], None]) -> bool:
        self.settle()
        with self._changed:
            self._left = _Item(work)
            self._changed.notify()
        return False

    def settle(self) -> None:
        while True:
            with self._changed:
                left = self._left
                if left is None or left.done:
                    self._left = None
                    break
                work = self._finishing() or self._preparing() or self._reading()
                if work is None:
                    self._changed.wait()
                    continue
            work()
        if left is not None and left.error is not None:
            raise left.error

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

    def _do(self, item: _Item[Any], work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            item.error = error
        with self._changed:
            item.done = True
            self._changed.notify()
