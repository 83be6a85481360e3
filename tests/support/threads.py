"""Calls that run at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Begin all calls at one moment, each in a thread of its own; return their results when all have ended.

    Raises:
        BaseException: The error of the first of the calls that failed.
    """
    begin = threading.Barrier(len(calls))

    def begun(call: Callable[[], Any]) -> Any:
        begin.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(begun, call) for call in calls]
    return [future.result() for future in futures]


@contextmanager
def meanwhile(*calls: Callable[[], Any]) -> Iterator[threading.Event]:
    """Make each call again and again, in a thread of its own, until the block ends or a call fails.

    Yields the event that is set then.

    Raises:
        BaseException: The error of the first of the calls that failed.
    """
    over = threading.Event()

    def again(call: Callable[[], Any]) -> None:
        try:
            while not over.is_set():
                call()
        finally:
            over.set()

    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(again, call) for call in calls]
        try:
            yield over
        finally:
            over.set()
    for future in futures:
        future.result()
