"""One at a time, and whoever was served meanwhile need not wait: how callers of a sync share one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Turns:
    """A mutex whose waiters look up whenever somebody is done, instead of queueing."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._busy = False

    @contextmanager
    def turn(self, served: Callable[[], bool] | None = None) -> Iterator[bool]:
        """Wait for the turn; true if it was got. False, without a turn, as soon as `served` holds."""
        with self._changed:
            while self._busy and not (served and served()):
                self._changed.wait()
            mine = not (served and served())
            if mine:
                self._busy = True
        try:
            yield mine
        finally:
            if mine:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()
