"""The same work in several partitions of a directory, on as many threads as there are cores, if it is much.

Reading, checking and writing hold no lock of the interpreter. Of little work each thread would only wait for
the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TypeVar

P = TypeVar("P")
T = TypeVar("T")

MUCH_BYTES = 16 << 20


def side_by_side(work: Callable[[P], T], places: Iterable[P], size_bytes: int) -> list[T]:
    """What `work` gives for each place, in their order. `size_bytes`: how much all of it reads.

    An error is raised when nothing runs any more: that of the first place, in their order, that had one.
    Places after it may have been worked on, or not.
    """
    places = list(places)
    threads = min(len(places), os.cpu_count() or 1)
    if threads < 2 or size_bytes < MUCH_BYTES:
        return [work(place) for place in places]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads, thread_name_prefix="lastword-inbox") as pool:
        given = [pool.submit(work, place) for place in places]
        try:
            return [one.result() for one in given]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
