"""Limit the bytes per second that cleanings of a drive read and write.

A `DriveBudget` is shared by all cleanings of a drive, in the background or in a call. Bytes are earned at the
rate. A caller books its bytes behind those that were booked before, and sleeps until they are earned. So no
byte is used before it is earned, except for one piece. The earned bytes exceed the booked ones by at most
`CREDIT_SECONDS` of the rate, which makes up for idle moments. In any stretch of T seconds at most `rate * (T
+ CREDIT_SECONDS)` and one piece are used: with pieces of `PIECE_SECONDS`, 3 % above the rate for T = 2.

`PacedFiles` takes every byte that a cleaning reads or writes out of the budget, piece by piece. So the budget
holds for any chunk size, for scan, rewrite and certificate, and a cleaning that sleeps can be stopped.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lastword import metrics
from lastword.clock import Clock
from lastword.errors import LastwordError, UsageError
from lastword.files import FileFacts, FileLock, Files, Handle
from lastword.segment.segment import Segment
from lastword.segment.stored import StoredFacts, StoredSegment

CREDIT_SECONDS = 0.04
PIECE_SECONDS = 0.02
SMALLEST_PIECE_BYTES = 1 << 12
LARGEST_PIECE_BYTES = 1 << 20
NAP_SECONDS = 0.05  # a stop, or another rate, is seen after so long


class Stopped(Exception):
    """The caller asked to stop. Never leaves the cleaner."""


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
        budget = self._budgets.get(drive)
        if budget is None:
            name = self._find(drive)
            if name is None:
                raise UsageError(
                    f"no log directory lies on the drive of {drive!r}",
                    remedy=f"one of {', '.join(self._budgets)}",
                )
            budget = self._budgets[name]
        return budget

    def _find(self, path: str) -> str | None:
        try:
            return self._by_device.get(self._files.device(path))
        except LastwordError:  # a path that is not there
            return None


class PacedFiles(Files):
    """`files`, with reads and writes taken from `budget`. `stop` is asked while it sleeps: `Stopped`."""

    def __init__(self, files: Files, budget: DriveBudget, stop: Callable[[], bool] | None = None) -> None:
        self._files = files
        self._budget = budget
        self._stop = stop

    def segments(self, segments: Sequence[Segment]) -> list[Segment]:
        """The same segments, read through here."""
        return [
            segment.read_through(
                PacedStored(segment.stored, self._budget, self._stop),
                self.paced(segment.handle) if segment.size else None,
            )
            for segment in segments
        ]

    def paced(self, handle: Handle) -> Handle:
        return PacedHandle(handle, self._budget, self._stop)

    def open_read(self, path: Any) -> Handle:
        return self.paced(self._files.open_read(path))

    def open_append(self, path: Any, *, create: bool = False, exclusive: bool = False) -> Handle:
        return self.paced(self._files.open_append(path, create=create, exclusive=exclusive))

    # ---- the rest moves no bytes

    def listdir(self, path: Any) -> list[str]:
        return self._files.listdir(path)

    def stat(self, path: Any) -> FileFacts | None:
        return self._files.stat(path)

    def is_dir(self, path: Any) -> bool:
        return self._files.is_dir(path)

    def mkdir(self, path: Any) -> None:
        self._files.mkdir(path)

    def rmdir(self, path: Any) -> None:
        self._files.rmdir(path)

    def rename(self, source: Any, target: Any) -> None:
        self._files.rename(source, target)

    def unlink(self, path: Any, missing_ok: bool = False) -> None:
        self._files.unlink(path, missing_ok=missing_ok)

    def fsync_dir(self, path: Any) -> None:
        self._files.fsync_dir(path)

    def truncate(self, path: Any, size: int) -> None:
        self._files.truncate(path, size)

    def set_mtime(self, path: Any, ms: int) -> None:
        self._files.set_mtime(path, ms)

    def lock(self, path: Any) -> FileLock:
        return self._files.lock(path)

    def free_bytes(self, path: Any) -> int:
        return self._files.free_bytes(path)

    def guard(self, root: Any) -> None:
        self._files.guard(root)

    def offline(self, path: Any) -> LastwordError | None:
        return self._files.offline(path)

    def check_owner(self, directory: Any) -> None:
        self._files.check_owner(directory)

    def device(self, path: Any) -> int:
        return self._files.device(path)


class PacedStored:
    """A stored segment whose bytes are taken from a budget."""

    def __init__(self, stored: StoredSegment, budget: DriveBudget, stop: Callable[[], bool] | None) -> None:
        self.base_offset = stored.base_offset
        self._stored = stored
        self._budget = budget
        self._stop = stop

    def path(self, extension: str) -> str:
        return self._stored.path(extension)

    def facts(self) -> StoredFacts | None:
        return self._stored.facts()

    def open_read(self) -> Handle:
        return PacedHandle(self._stored.open_read(), self._budget, self._stop)

    def open_append(self, extension: str, *, create: bool = False, exclusive: bool = False) -> Handle:
        handle = self._stored.open_append(extension, create=create, exclusive=exclusive)
        return PacedHandle(handle, self._budget, self._stop)

    def read(self, extension: str) -> bytes | None:
        data = self._stored.read(extension)
        for done in range(0, len(data or b""), self._budget.piece_bytes):
            self._budget.take(min(self._budget.piece_bytes, len(data or b"") - done), self._stop)
        return data

    def remove(self, extension: str) -> None:
        self._stored.remove(extension)

    def seal(self, extensions: Sequence[str], mtime_ms: int) -> None:
        self._stored.seal(extensions, mtime_ms)


class PacedHandle(Handle):
    """One file. A large write is several small ones: what fails in its middle leaves a part behind, which is
    right for files that nobody reads before they are complete, and for no others."""

    def __init__(self, handle: Handle, budget: DriveBudget, stop: Callable[[], bool] | None) -> None:
        self.path = handle.path
        self._handle = handle
        self._budget = budget
        self._stop = stop

    def pread(self, n: int, position: int) -> bytes:
        buffer = bytearray(max(0, min(n, self._handle.size() - position)))
        return bytes(buffer[: self.pread_into(buffer, position)])

    def pread_into(self, buffer: Any, position: int) -> int:
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
        self._budget.take(memoryview(data).nbytes, self._stop)
        self._handle.pwrite(data, position)

    def truncate(self, size: int) -> None:
        self._handle.truncate(size)

    def fsync(self) -> None:
        self._handle.fsync()

    def stat(self) -> FileFacts:
        return self._handle.stat()

    def close(self) -> None:
        self._handle.close()
