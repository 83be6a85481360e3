"""Timers by the clock of the log, in the thread of the event loop."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections.abc import Callable

from lastword.clock import Clock, SystemClock

POLL_SECONDS = 0.01
"""How often a clock that does not run by itself is read while a timer waits."""
RETRY_MS = 500
MOST_RETRY_MS = 60_000
"""The first and the longest time to the next try of what failed: to load a state, to append a marker."""
_log = logging.getLogger("lastword.server")


class Timer:
    """A call that is due at a time of the clock."""

    __slots__ = ("call", "due")

    def __init__(self, due: float, call: Callable[[], None] | None) -> None:
        self.due = due
        self.call = call

    def cancel(self) -> None:
        """Drop the call."""
        self.call = None

    def postpone(self, due: float) -> bool:
        """Set a later time; return whether the call is still to come, and is not due earlier than before."""
        if self.call is None or due < self.due:
            return False
        self.due = due
        return True


NO_TIMER = Timer(0.0, None)
"""A timer that is cancelled, where none was started."""


class Timers:
    """Calls in the thread of the event loop, due by the clock of the log. A test moves that clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._runs = isinstance(clock, SystemClock)
        self._heap: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._next: asyncio.TimerHandle | None = None

    def after(self, milliseconds: int, call: Callable[[], None]) -> Timer:
        """Return a timer that calls `call` when this time has passed."""
        timer = Timer(self._clock.monotonic() + milliseconds / 1000, call)
        self._push(timer)
        if self._heap[0][2] is timer:
            self._schedule()
        return timer

    def again(self, timer: Timer, milliseconds: int, call: Callable[[], None]) -> Timer:
        """Return a timer that calls `call` when this time has passed: the given one, if it can be postponed.

        A timer that is postponed keeps its place in memory, however often that happens.
        """
        if timer.postpone(self._clock.monotonic() + milliseconds / 1000):
            return timer
        timer.cancel()
        return self.after(milliseconds, call)

    def cancel(self) -> None:
        """Drop all calls."""
        self._heap.clear()
        self._schedule()

    def _push(self, timer: Timer) -> None:
        heapq.heappush(self._heap, (timer.due, next(self._numbers), timer))

    def _schedule(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
        while self._heap and self._heap[0][2].call is None:
            heapq.heappop(self._heap)
        if self._heap:
            seconds = max(0.0, self._heap[0][0] - self._clock.monotonic()) if self._runs else POLL_SECONDS
            self._next = self._loop.call_later(seconds, self.run)

    def run(self) -> None:
        """Make the calls that are due. A clock that jumped calls this in the thread of the event loop."""
        now = self._clock.monotonic()
        while self._heap and self._heap[0][0] <= now:
            timer = heapq.heappop(self._heap)[2]
            if timer.call is not None and timer.due > now:  # it was postponed
                self._push(timer)
                continue
            call, timer.call = timer.call, None
            if call is not None:
                try:
                    call()
                except Exception:  # the other timers go on
                    _log.exception("a timer failed")
        self._schedule()
