"""Work that a thread does ahead of whoever uses it.

Reading, verifying, resolving and decoding are system calls and kernels, which do without the interpreter's
lock; making Python objects of what they find needs it. With a thread for the first and the caller for the
second, both cores of a restore are busy.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
BytesDone = Callable[[int, int], None]
"""Hears (bytes done, bytes in all)."""


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
    """The caller wants no more."""


def prefetch(
    work: Callable[[BytesDone], Iterator[T]], progress: BytesDone | None, slot_count: int
) -> Generator[T]:
    """What `work` yields, in order, while a thread makes more: `most` at once, with the one in use.

    `work` is given the function that it tells its progress to; `progress` hears it in the caller's thread.
    An error of `work` is raised after all that came before it. To be closed: the thread then ends at the
    next thing that it tells or yields, and is waited for.
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
