"""How many bytes a second the cleaning of a drive may read and write, all together.

One `DriveBudget` for each drive, shared by every round there, in the background or called for. Bytes are
earned at the rate; who takes books his own behind those that were booked before, and sleeps until those have
been earned. So nothing is used before it was earned, but one piece. What is earned runs ahead of what is
booked by at most `CREDIT_SECONDS` of the rate, to make up for moments in which nobody asked. In any stretch
of T seconds at most `rate * (T + CREDIT_SECONDS)` and one piece are used: with pieces of `PIECE_SECONDS`, 3 %
above the rate for T = 2.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence

from lastword import metrics
from lastword.cleaner.steps import Stopped
from lastword.clock import Clock
from lastword.errors import LastwordError, UsageError
from lastword.files import Files

CREDIT_SECONDS = 0.04
PIECE_SECONDS = 0.02
SMALLEST_PIECE_BYTES = 1 << 12
LARGEST_PIECE_BYTES = 1 << 20
NAP_SECONDS = 0.05  # a stop, or another rate, is seen after so long


class DriveBudget:
    """Bytes per second of one drive; None: no limit. Safe from any thread.

    used_bytes         taken since it was made, limited or not
    throttled_seconds  slept for it, of all threads together
    """

    def __init__(self, bytes_per_second: int | None, clock: Clock, drive: str = "") -> None:
        self.drive = drive
        self.used_bytes = 0
        self.throttled_seconds = 0.0
        self._clock = clock
        self._lock = threading.Lock()
        self._rate = _checked(bytes_per_second)
        self._booked = 0.0  # bytes that were ever asked for
        self._earned = 0.0  # bytes that may have been used by now
        self._earned_at = clock.monotonic()
        metrics.CLEANER_THROTTLED_SECONDS.add(0, drive)

    @property
    def bytes_per_second(self) -> int | None:
        return self._rate

    def set(self, bytes_per_second: int | None) -> None:
        """Another rate, from now on, also for who is asleep."""
        rate = _checked(bytes_per_second)
        with self._lock:
            self._earn()
            self._rate = rate

    @property
    def piece_bytes(self) -> int:
        """What to take at once, so that the drive is used evenly."""
        rate = self._rate
        if rate is None:
            return LARGEST_PIECE_BYTES
        return min(max(int(rate * PIECE_SECONDS), SMALLEST_PIECE_BYTES), LARGEST_PIECE_BYTES)

    def take(self, size_bytes: int, stop: Callable[[], bool] | None = None) -> None:
        """Returns when these bytes may be read or written; who came first goes first. `Stopped` when `stop()`
        says so meanwhile; nothing was taken then."""
        with self._lock:
            self._earn()
            mine = self._booked
            self._booked += size_bytes
        while True:
            with self._lock:
                self._earn()
                short = mine - self._earned
                if self._rate is None or short < 0.5:  # bytes: a rounding is no reason to sleep
                    self.used_bytes += size_bytes
                    return
                seconds = min(short / self._rate, NAP_SECONDS)
            if stop is not None and stop():
                with self._lock:
                    self._earned += size_bytes  # for those who come after
                raise Stopped
            self._clock.sleep(seconds)
            with self._lock:
                self.throttled_seconds += seconds
            metrics.CLEANER_THROTTLED_SECONDS.add(seconds, self.drive)

    def _earn(self) -> None:
        now = self._clock.monotonic()
        if self._rate is None:
            self._earned = self._booked
        else:
            most = self._booked + self._rate * CREDIT_SECONDS
            self._earned = min(self._earned + (now - self._earned_at) * self._rate, most)
        self._earned_at = now


def _checked(bytes_per_second: int | None) -> int | None:
    if bytes_per_second is not None and bytes_per_second < 1:
        raise UsageError(
            f"a budget of {bytes_per_second} bytes per second would never end",
            remedy="give at least 1, or None for no limit",
        )
    return bytes_per_second


class Drives:
    """Which log directory lies on which drive, and each drive's budget.

    A drive is what the system calls a device; it is named by the first of its directories. `limit` holds for
    each drive by itself, `own` (path: rate) for the drive that the path lies on.
    """

    def __init__(
        self,
        paths: Sequence[str],
        files: Files,
        clock: Clock,
        *,
        limit: int | None = None,
        own: Mapping[str, int] | None = None,
    ) -> None:
        self._files = files
        self._by_device: dict[int, str] = {}
        self._drive_of: dict[str, str] = {}
        for path in paths:
            real = os.path.realpath(path)
            self._drive_of[real] = self._by_device.setdefault(files.device(real), real)
        self._budgets = {drive: DriveBudget(None, clock, drive) for drive in self._by_device.values()}
        self.set_all(limit, own or {})

    def set_all(self, limit: int | None, own: Mapping[str, int]) -> None:
        """Another limit for every drive, but for those that have their own."""
        rates = dict.fromkeys(self._budgets, limit)
        for path, rate in own.items():
            drive = self._find(path)
            if drive is not None:
                rates[drive] = rate
        for drive, budget in self._budgets.items():
            budget.set(rates[drive])

    @property
    def names(self) -> list[str]:
        return list(self._budgets)

    def drive_of(self, directory: str) -> str:
        """The drive of a log directory that was given."""
        return self._drive_of[os.path.realpath(directory)]

    def directories(self, drive: str) -> list[str]:
        return [directory for directory, on in self._drive_of.items() if on == drive]

    def budget(self, drive: str) -> DriveBudget:
        """The budget of a drive: by its name, or by any path on it. UsageError if no directory lies there."""
        found = self._budgets.get(drive)
        if found is None:
            name = self._find(drive)
            if name is None:
                raise UsageError(
                    f"no log directory lies on the drive of {drive!r}",
                    remedy=f"one of {', '.join(self._budgets)}",
                )
            found = self._budgets[name]
        return found

    def _find(self, path: str) -> str | None:
        try:
            return self._by_device.get(self._files.device(path))
        except LastwordError:  # a path that is not there
            return None
