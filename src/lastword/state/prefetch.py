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
class _Made(Generic[T]):
    item: T


@dataclass(frozen=True, slots=True)
class _Told:
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class _Ended:
    error: BaseException | None


class _GivenUp(Exception):
    """The caller wants no more."""


def run_ahead(
    work: Callable[[BytesDone], Iterator[T]], progress: BytesDone | None, most: int
) -> Generator[T]:
    """What `work` yields, in order, while a thread makes more: `most` at once, with the one in use.

    `work` is given the function that it tells its progress to; `progress` hears it in the caller's thread.
    An error of `work` is raised after all that came before it. To be closed: the thread then ends at the
    next thing that it tells or yields, and is waited for.
    """
    news: queue.SimpleQueue[_Made[T] | _Told | _Ended] = queue.SimpleQueue()
    room = threading.Semaphore(most)
    given_up = threading.Event()

    def tell(done: int, total: int) -> None:
        if given_up.is_set():
            raise _GivenUp
        news.put(_Told(done, total))

    def run() -> None:
        error: BaseException | None = None
        try:
            for item in work(tell):
                room.acquire()
                if given_up.is_set():
                    return
                news.put(_Made(item))
        except BaseException as raised:
            error = raised
        news.put(_Ended(error))

    thread = threading.Thread(target=run, name="lastword-ahead", daemon=True)
    thread.start()
    try:
        while True:
            match news.get():
                case _Made(item):
                    yield item
                    room.release()
                case _Told(done, total):
                    if progress is not None:
                        progress(done, total)
                case _Ended(error):
                    if error is not None:
                        raise error
                    return
    finally:
        given_up.set()
        room.release()
        thread.join()
