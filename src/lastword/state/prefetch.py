"""Prefetch: a thread produces items ahead of the caller.

Reading, verifying, resolving and decoding are system calls and kernels, which release the interpreter's lock;
making Python objects of the result needs it. With a thread for the first and the caller for the second, a
restore keeps two cores busy.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
BytesDone = Callable[[int, int], None]
"""Receives (bytes done, total bytes)."""


@dataclass(frozen=True, slots=True)
class _Item(Generic[T]):
    item: T


@dataclass(frozen=True, slots=True)
class _Progress:
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class _End:
    error: BaseException | None


class _Closed(Exception):
    """The caller has closed the generator."""


def prefetch(
    work: Callable[[BytesDone], Iterator[T]], progress: BytesDone | None, slot_count: int
) -> Generator[T]:
    """Yield the items of `work` in order, while a thread produces more.

    The caller must close the generator: the thread then ends at its next item or progress report, and is
    joined. An error of `work` is raised after the items before it.

    Args:
        work: Takes a function for progress reports, and yields items. Runs in the thread.
        progress: Receives the progress reports, in the caller's thread.
        slot_count: The most items in memory, the one in use included.
    """
    messages: queue.SimpleQueue[_Item[T] | _Progress | _End] = queue.SimpleQueue()
    slots = threading.Semaphore(slot_count)
    closed = threading.Event()

    def report(done: int, total: int) -> None:
        if closed.is_set():
            raise _Closed
        messages.put(_Progress(done, total))

    def run() -> None:
        error: BaseException | None = None
        try:
            for item in work(report):
                slots.acquire()
                if closed.is_set():
                    return
                messages.put(_Item(item))
        except BaseException as work_error:
            error = work_error
        messages.put(_End(error))

    thread = threading.Thread(target=run, name="lastword-ahead", daemon=True)
    thread.start()
    try:
        while True:
            match messages.get():
                case _Item(item):
                    yield item
                    slots.release()
                case _Progress(done, total):
                    if progress is not None:
                        progress(done, total)
                case _End(error):
                    if error is not None:
                        raise error
                    return
    finally:
        closed.set()
        slots.release()
        thread.join()
