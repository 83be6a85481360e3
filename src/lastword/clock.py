"""The one source of "now". Nothing else asks the system for the time, so tests can set it."""

from __future__ import annotations

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


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._elapsed_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._elapsed_ms / 1000

    def advance(self, ms: int) -> None:
        """Let `ms` milliseconds pass on both counters."""
        if ms < 0:
            raise ValueError("time passes forward; use set_date to move the date back")
        self._now_ms += ms
        self._elapsed_ms += ms

    def set_date(self, now_ms: int) -> None:
        """Move the date only, as a clock correction does."""
        self._now_ms = now_ms
