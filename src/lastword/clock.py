"""The one source of "now". Nothing else asks the system for the time, so tests can set it."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """What a clock tells: the date for timestamps and horizons, a steady counter for durations."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, UTC. May jump either way when the system's date is set."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start. Never goes back."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let so many seconds of `monotonic` pass in this thread."""
        ...

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until the event is set, at most so many seconds of `monotonic`. Is it set?"""
        ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(max(0.0, seconds))


POLL_SECONDS = 0.005


class ManualClock:
    """A clock that stands still until it is moved.

    Who sleeps moves it; who waits for an event waits until somebody else has moved it far enough.
    """

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._elapsed_ms = 0
        self._slept = 0.0  # seconds below one millisecond, not yet in the two counters

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._elapsed_ms / 1000 + self._slept

    def sleep(self, seconds: float) -> None:
        whole_ms, rest_ms = divmod(self._slept * 1000 + max(0.0, seconds) * 1000, 1)
        self._slept = rest_ms / 1000
        self.advance(int(whole_ms))

    def wait(self, event: threading.Event, seconds: float) -> bool:
        end = self.monotonic() + seconds
        while not event.is_set() and self.monotonic() < end:
            event.wait(POLL_SECONDS)
        return event.is_set()

    def advance(self, ms: int) -> None:
        """Let `ms` milliseconds pass on both counters."""
        if ms < 0:
            raise ValueError("time passes forward; use set_date to move the date back")
        self._now_ms += ms
        self._elapsed_ms += ms

    def set_date(self, now_ms: int) -> None:
        """Move the date only, as a clock correction does."""
        self._now_ms = now_ms
