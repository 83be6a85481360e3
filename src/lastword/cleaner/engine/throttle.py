"""Limit the bytes per second that cleanings of a drive read and write.

A `DriveBudget` is shared by all cleanings of a drive, in the background or in a call. Bytes are earned at the
rate. A caller books its bytes behind all earlier bookings, and sleeps until its bytes are earned. So no byte
is used before it is earned, except for one piece. The earned bytes exceed the booked ones by at most
`CREDIT_SECONDS` of the rate, which makes up for idle moments. In any stretch of T seconds at most
`rate * (T + CREDIT_SECONDS)` and one piece are used: with pieces of `PIECE_SECONDS`, 3 % above the rate for
T = 2.

A `PacedHandle` takes every byte that a cleaning reads from segments, or writes to outputs and scratch files,
out of the budget, piece by piece. So the budget holds for any chunk size, for scan, rewrite and certificate,
and a cleaning that sleeps can be stopped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lastword import metrics
from lastword.clock import Clock
from lastword.errors import LastwordError, UsageError
from lastword.files import FileFacts, Files, Handle, real_path
from lastword.segment.stored import StoredFacts, StoredSegment

CREDIT_SECONDS = 0.04
PIECE_SECONDS = 0.02
SMALLEST_PIECE_BYTES = 1 << 12
LARGEST_PIECE_BYTES = 1 << 20
NAP_SECONDS = 0.05  # the longest time until a stop, or another rate, takes effect


class Stopped(Exception):
    """The caller requested a stop. This exception never leaves the cleaner."""


class DriveBudget:
    """Bytes per second of one drive; None: no limit. Safe from any thread.

    Attributes:
        used_bytes: Taken since it was made, limited or not.
        throttled_seconds: Slept for the budget, of all threads together.
    """

    def __init__(self, bytes_per_second: int | None, clock: Clock, drive: str = "") -> None:
        self.drive = drive
        self.used_bytes = 0
        self.throttled_seconds = 0.0
        self._clock = clock
        self._lock = threading.Lock()
        self._rate = _checked(bytes_per_second)
        self._booked = 0.0  # bytes that were requested
        self._earned = 0.0  # bytes that may have been used by now
        self._earned_at = clock.monotonic()
        metrics.CLEANER_THROTTLED_SECONDS.add(0, drive)

    @property
    def bytes_per_second(self) -> int | None:
        """Return the rate."""
        return self._rate

    def set(self, bytes_per_second: int | None) -> None:
        """Set another rate, from now on, also for sleeping callers."""
        rate = _checked(bytes_per_second)
        with self._lock:
            self._earn()
            self._rate = rate

    @property
    def piece_bytes(self) -> int:
        """Return how many bytes to take in one call, so that the drive is used evenly."""
        rate = self._rate
        if rate is None:
            return LARGEST_PIECE_BYTES
        return min(max(int(rate * PIECE_SECONDS), SMALLEST_PIECE_BYTES), LARGEST_PIECE_BYTES)

    def take(self, size_bytes: int, stop: Callable[[], bool] | None = None) -> None:
        """Return when these bytes may be read or written, in the order of the calls.

        Raises:
            Stopped: `stop()` returned true meanwhile; no bytes were taken.
        """
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
                    self._earned += size_bytes  # for later callers
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
    """The drive of each log directory, and each drive's budget.

    A drive is what the system calls a device; its name is the first of its directories. `limit` holds for
    each drive by itself, `own` (path: rate) for the drive of the path.
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
            real = real_path(path)
            self._drive_of[real] = self._by_device.setdefault(files.device(real), real)
        self._budgets = {drive: DriveBudget(None, clock, drive) for drive in self._by_device.values()}
        self.set_all(limit, own or {})

    def set_all(self, limit: int | None, own: Mapping[str, int]) -> None:
        """Set another limit for every drive that has no limit of its own."""
        rates = dict.fromkeys(self._budgets, limit)
        for path, rate in own.items():
            drive = self._find(path)
            if drive is not None:
                rates[drive] = rate
        for drive, budget in self._budgets.items():
            budget.set(rates[drive])

    @property
    def names(self) -> list[str]:
        """Return the names of the drives."""
        return list(self._budgets)

    def drive_of(self, directory: str) -> str:
        """Return the drive of a log directory that was given."""
        return self._drive_of[real_path(directory)]

    def directories(self, drive: str) -> list[str]:
        """Return the directories of a drive."""
        return [directory for directory, on in self._drive_of.items() if on == drive]

    def budget(self, drive: str) -> DriveBudget:
        """Return the budget of a drive, by its name or by any path on it.

        Raises:
            UsageError: No log directory is on that drive.
        """
        budget = self._budgets.get(drive)
        if budget is None:
            name = self._find(drive)
            if name is None:
                raise UsageError(
                    f"no log directory is on the drive of {drive!r}",
                    remedy=f"one of {', '.join(self._budgets)}",
                )
            budget = self._budgets[name]
        return budget

    def _find(self, path: str) -> str | None:
        try:
            return self._by_device.get(self._files.device(path))
        except LastwordError:  # the path does not exist
            return None


class PacedStored:
    """A stored segment whose bytes are taken from a budget."""

    def __init__(self, stored: StoredSegment, budget: DriveBudget, stop: Callable[[], bool] | None) -> None:
        self.base_offset = stored.base_offset
        self._stored = stored
        self._budget = budget
        self._stop = stop

    def path(self, extension: str) -> str:
        """Return the path of a file of the segment."""
        return self._stored.path(extension)

    def facts(self) -> StoredFacts | None:
        """Return the facts of the segment, or None."""
        return self._stored.facts()

    def open_read(self) -> Handle:
        """Open the .log to read within the budget."""
        return PacedHandle(self._stored.open_read(), self._budget, self._stop)

    def open_append(self, extension: str, *, create: bool = False, exclusive: bool = False) -> Handle:
        """Open a file to append within the budget."""
        handle = self._stored.open_append(extension, create=create, exclusive=exclusive)
        return PacedHandle(handle, self._budget, self._stop)

    def read(self, extension: str) -> bytes | None:
        """Return the content of a file, read within the budget; None if it is absent."""
        data = self._stored.read(extension)
        for done in range(0, len(data or b""), self._budget.piece_bytes):
            self._budget.take(min(self._budget.piece_bytes, len(data or b"") - done), self._stop)
        return data

    def open_index(self, extension: str) -> Handle | None:
        """Open an index for short reads, which are not limited; None: it is read as a whole."""
        return self._stored.open_index(extension)

    def checked(self, extension: str) -> bytes | None:
        """Return the content of a file that needs no read; None if it does."""
        return self._stored.checked(extension)

    def remove(self, extension: str) -> None:
        """Remove a file."""
        self._stored.remove(extension)

    def seal(self, extensions: Sequence[str], mtime_ms: int) -> None:
        """Set the times of the files and make their names durable."""
        self._stored.seal(extensions, mtime_ms)


class PacedHandle(Handle):
    """One file, read and written in pieces that are taken from the budget.

    A large write is several small ones, so a failure may leave a part behind. That is safe only for files
    that are not read before they are complete.
    """

    def __init__(self, handle: Handle, budget: DriveBudget, stop: Callable[[], bool] | None) -> None:
        self.path = handle.path
        self._handle = handle
        self._budget = budget
        self._stop = stop

    def will_read(self, start: int, end: int) -> None:
        """As `Handle.will_read`."""
        self._handle.will_read(start, end)

    def will_read_back(self) -> None:
        """As `Handle.will_read_back`."""
        self._handle.will_read_back()

    def will_read_pieces(self) -> None:
        """As `Handle.will_read_pieces`."""
        self._handle.will_read_pieces()

    def ends_scan(self) -> None:
        """As `Handle.ends_scan`."""
        self._handle.ends_scan()

    def may_shrink_to(self, size: int) -> None:
        """As `Handle.may_shrink_to`."""
        self._handle.may_shrink_to(size)

    def pread(self, n: int, position: int) -> bytes:
        """Read up to `n` bytes at a position."""
        buffer = bytearray(max(0, min(n, self._handle.size() - position)))
        return bytes(buffer[: self.pread_into(buffer, position)])

    def pread_into(self, buffer: Any, position: int) -> int:
        """Read into a buffer at a position; return the number of bytes."""
        view = memoryview(buffer).cast("B")
        done = 0
        while done < len(view):
            piece = view[done : done + self._budget.piece_bytes]
            self._budget.take(len(piece), self._stop)
            got = self._handle.pread_into(piece, position + done)
            done += got
            if got < len(piece):
                break
        return done

    def append(self, data: Any) -> int:
        """Append, and return the position of the first byte."""
        view = memoryview(data).cast("B")
        begin, done = self._handle.size(), 0
        while done < len(view):
            piece = view[done : done + self._budget.piece_bytes]
            self._budget.take(len(piece), self._stop)
            at = self._handle.append(piece)
            if done == 0:
                begin = at
            done += len(piece)
        return begin

    def pwrite(self, data: Any, position: int) -> None:
        """Write at a position."""
        self._budget.take(memoryview(data).nbytes, self._stop)
        self._handle.pwrite(data, position)

    def truncate(self, size: int) -> None:
        """Cut the file to a size."""
        self._handle.truncate(size)

    def fsync(self) -> None:
        """Make the file durable."""
        self._handle.fsync()

    def stat(self) -> FileFacts:
        """Return the facts of the file."""
        return self._handle.stat()

    def close(self) -> None:
        """Close the file."""
        self._handle.close()
