"""Chunks prepared by two threads, and returned in order.

Preparing a chunk (verifying, decompressing, parsing) depends on no other chunk; only reading is done one
chunk at a time. With a second thread both are done ahead. The consumer does them, too, whenever the next
chunk is not prepared yet: so both threads are busy, whichever part takes longer. The caller alone consumes
the chunks, one after another, so the result is the same to the bit. The caller may defer the rest of its own
work (compress, write), one piece of work at a time.

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

SLOTS = 4  # chunks read and not yet taken, at most


def second_thread(name: str, threads: int) -> AbstractContextManager[Executor | None]:
    """Return a context with one thread beside the caller's; None in it if only one thread may be used."""
    return ThreadPoolExecutor(1, thread_name_prefix=name) if threads > 1 else nullcontext()


def in_slots(reader: Iterator[Chunk], slots: int, *, verify_later: bool = False) -> Iterator[Chunk]:
    """Yield the chunks of `reader`; each is valid until the `slots`-th one after it is read.

    With several slots records may still be compressed: the caller calls `Chunk.decompress`, and with
    `verify_later` first `Chunk.verify`.
    """
    if slots == 1:
        yield from reader
    elif isinstance(reader, ChunkReader):
        reader.in_slots(slots, verify_later=verify_later)
        yield from reader
    else:
        for chunk in reader:
            yield Chunk(chunk.raw.copy(), chunk.uncompressed.copy(), chunk.table.copy(), chunk.file)


def prepared(
    read: Callable[[int], Iterator[T]], prepare: Callable[[T], None], second: Executor | None
) -> Prepared[T]:
    """Yield all items of `read(slots)`, in order, after `prepare` was called for each. Close the result.

    One thread at a time reads; `prepare` may run for two items at the same time. An item is valid until the
    next one is taken. An error of reading or preparing is raised when it is that item's turn.
    """
    return _Serial(read(1), prepare) if second is None else _Pipeline(read(SLOTS), prepare, second)


class Prepared(ABC, Iterator[T]):
    """Prepared items, one after another, and deferred work on them."""

    def __init__(self) -> None:
        self._each = self._all()

    def __next__(self) -> T:
        return next(self._each)

    def close(self) -> None:
        """Stop the work of the other thread. Deferred work that was not drained may never be done."""
        self._each.close()

    @abstractmethod
    def _all(self) -> Generator[T]: ...

    @abstractmethod
    def defer(self, work: Callable[[], None]) -> bool:
        """Have `work` done by the next idle thread, after all work that was deferred before.

        Returns whether it is done already. Raises the error of earlier work, or of this work if it is done.
        """

    @abstractmethod
    def drain(self) -> None:
        """Wait until all deferred work is done. Raises its error."""


class _Serial(Prepared[T]):
    def __init__(self, items: Iterator[T], prepare: Callable[[T], None]) -> None:
        self._source = items
        self._prepare_value = prepare
        super().__init__()

    def _all(self) -> Generator[T]:
        for item in self._source:
            self._prepare_value(item)
            yield item

    def defer(self, work: Callable[[], None]) -> bool:
        work()
        return True

    def drain(self) -> None:
        pass


class _WorkItem(Generic[T]):
    """An item to work on. `claimed`: a thread works on it or has finished."""

    def __init__(self, value: T) -> None:
        self.value = value
        self.claimed = False
        self.done = False
        self.error: BaseException | None = None


class _Pipeline(Prepared[T]):
    """The pipeline of two threads.

    The second thread does deferred work, reads, and prepares while all slots are full. The caller prepares
    the item that it waits for, and does the rest while the second thread does other work. So neither waits
    for the other to hand over reading. All fields are guarded by `_changed`, which only these two threads
    wait for.
    """

    def __init__(self, items: Iterator[T], prepare: Callable[[T], None], second: Executor) -> None:
        self._source = items
        self._prepare_value = prepare
        self._second = second
        self._changed = threading.Condition()
        self._items: dict[int, _WorkItem[T]] = {}  # read and not yet taken, by number
        self._taken = 0
        self._count = 0  # items read
        self._busy = False  # a thread reads
        self._ended = False  # all items are read
        self._closed = False  # no more items will be taken
        self._error: BaseException | None = None  # of reading: raised after all items that were read
        self._deferred: _WorkItem[Callable[[], None]] | None = None
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

    def _next(self) -> _WorkItem[T] | None:
        """Return the next item, prepared; None at the end."""
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
        """Return the work to read the next item, if no other thread reads and a slot is free."""
        if self._busy or self._ended or self._count - self._taken >= SLOTS:
            return None
        self._busy = True
        return self._read

    def _preparing(self) -> Callable[[], None] | None:
        """Return the work to prepare the oldest item that is not claimed."""
        for item in self._items.values():
            if not item.claimed:
                item.claimed = True
                return partial(self._do, item, partial(self._prepare_value, item.value))
        return None

    def _finishing(self) -> Callable[[], None] | None:
        """Return the deferred work, if it is not claimed."""
        deferred = self._deferred
        if deferred is None or deferred.claimed:
            return None
        deferred.claimed = True
        return partial(self._do, deferred, deferred.value)

    def defer(self, work: Callable[[], None]) -> bool:
        self.drain()
        with self._changed:
            self._deferred = _WorkItem(work)
            self._changed.notify()
        return False

    def drain(self) -> None:
        while True:
            with self._changed:
                deferred = self._deferred
                if deferred is None or deferred.done:
                    self._deferred = None
                    break
                work = self._finishing() or self._preparing() or self._reading()
                if work is None:
                    self._changed.wait()
                    continue
            work()
        if deferred is not None and deferred.error is not None:
            raise deferred.error

    def _read(self) -> None:
        item: _WorkItem[T] | None = None
        failed: BaseException | None = None
        try:
            item = _WorkItem(next(self._source))
        except StopIteration:
            pass
        except BaseException as error:
            failed = error
        with self._changed:
            self._busy = False
            if item is None:
                self._ended, self._error = True, failed
            else:
                self._items[self._count] = item
                self._count += 1
            self._changed.notify()

    def _do(self, item: _WorkItem[Any], work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            item.error = error
        with self._changed:
            item.done = True
            self._changed.notify()
