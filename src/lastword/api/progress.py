"""`progress=`: True for a line on stderr, or a function of `Progress`; and one meter over many parts."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lastword.values import Progress, ProgressLike


def listener(progress: ProgressLike | bool | None) -> ProgressLike | None:
    """The function to call, or None."""
    if progress is True:
        return _Line()
    return progress or None


class _Line:
    """One line of stderr that is overwritten, at most ten times a second."""

    def __init__(self) -> None:
        self._last = 0.0

    def __call__(self, progress: Progress) -> None:
        finished = progress.done_bytes >= progress.total_bytes
        now = time.monotonic()
        if finished or now - self._last >= 0.1:
            self._last = now
            eta = "" if progress.eta_seconds is None else f", {progress.eta_seconds:.0f} s left"
            sys.stderr.write(f"\r{progress}{eta}\x1b[K" + ("\n" if finished else ""))
            sys.stderr.flush()


class Meter:
    """Adds up parts of a long call, each of which counts its own bytes from zero."""

    def __init__(self, verb: str, progress: ProgressLike | bool | None, total_bytes: int) -> None:
        self._verb = verb
        self._tell = listener(progress)
        self._total = total_bytes
        self._done = 0
        self._began = time.monotonic()

    @contextmanager
    def part(self, size_bytes: int) -> Iterator[Callable[[int, int], None] | None]:
        """Gives a function of (done, total) for one part, or None when nobody listens; the part may count
        in units of its own, its share of the whole is `size_bytes`."""
        tell = self._tell
        if tell is None:
            yield None
            return

        def update(done: int, total: int) -> None:
            within = size_bytes * done // total if total else size_bytes
            self._say(tell, self._done + min(within, size_bytes))

        yield update
        self._done += size_bytes
        self._say(tell, self._done)

    @contextmanager
    def progress_part(self, size_bytes: int) -> Iterator[ProgressLike | None]:
        """The same for a part that tells `Progress` values."""
        with self.part(size_bytes) as update:
            yield None if update is None else (lambda value: update(value.done_bytes, value.total_bytes))

    def _say(self, tell: ProgressLike, done: int) -> None:
        tell(Progress.at(self._verb, done, max(self._total, done), time.monotonic() - self._began))
