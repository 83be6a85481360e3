"""Calls that run at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
