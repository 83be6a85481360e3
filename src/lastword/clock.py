"""The only source of the current time, so that tests can set it."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """The date, for timestamps and horizons, and a monotonic counter, for durations."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970, UTC. May jump in both directions when the system's date is set."""

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start. Never decreases."""

    def boottime(self) -> float:
        """Return seconds from an arbitrary start, with those in which the machine was suspended."""

    def sleep(self, seconds: float) -> None:
        """Block this thread for a number of seconds of `monotonic`."""

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until the event is set or `seconds` of `monotonic` have passed; return whether it is set."""


_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""On macOS, CLOCK_MONOTONIC counts while the machine is suspended."""


class SystemClock:
    """The clock of the operating system."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970, UTC."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start."""
        return time.monotonic()

    def boottime(self) -> float:
        """Return seconds from an arbitrary start, with those in which the machine was suspended."""
        return time.clock_gettime(_BOOTTIME)

    def sleep(self, seconds: float) -> None:
        """Block this thread for a number of seconds of `monotonic`."""
        if seconds > 0:
            time.sleep(seconds)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until the event is set or `seconds` of `monotonic` have passed; return whether it is set."""
        return event.wait(max(0.0, seconds))


class ShiftedClock(SystemClock):
    """The clock of the operating system, with the date of another machine.

    Args:
        ahead_ms: The other machine's date minus this machine's.
    """

    def __init__(self, ahead_ms: int) -> None:
        self._ahead_ms = ahead_ms

    def now_ms(self) -> int:
        """Return milliseconds since 1970, UTC, on the other machine."""
        return super().now_ms() + self._ahead_ms


POLL_SECONDS = 0.005


class StandingClock:
    """A clock that moves only in `sleep` and in the methods of its subclass.

    `wait` blocks until the event is set or another thread has moved the clock far enough.
    """

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._elapsed_ms = 0
        self._slept = 0.0  # seconds below one millisecond, not yet in the two counters

    def now_ms(self) -> int:
        """Return milliseconds since 1970, UTC."""
        return self._now_ms

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start."""
        return self._elapsed_ms / 1000 + self._slept

    def boottime(self) -> float:
        """As `monotonic`."""
        return self.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block this thread for a number of seconds of `monotonic`."""
        whole_ms, rest_ms = divmod(self._slept * 1000 + max(0.0, seconds) * 1000, 1)
        self._slept = rest_ms / 1000
        self._move(int(whole_ms))

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until the event is set or `seconds` of `monotonic` have passed; return whether it is set."""
        end = self.monotonic() + seconds
        while not event.is_set() and self.monotonic() < end:
            event.wait(POLL_SECONDS)
        return event.is_set()

    def _move(self, ms: int) -> None:
        self._now_ms += ms
        self._elapsed_ms += ms

    def _date(self, now_ms: int) -> None:
        self._now_ms = now_ms


class ManualClock(StandingClock):
    """A clock that moves only when `sleep`, `advance` or `set_date` is called, in milliseconds."""

    def advance(self, ms: int) -> None:
        """Move both counters forward by `ms` milliseconds."""
        if ms < 0:
            raise ValueError("time passes forward; use set_date to move the date back")
        self._move(ms)

    def set_date(self, now_ms: int) -> None:
        """Move the date only, as a clock correction does."""
        self._date(now_ms)
