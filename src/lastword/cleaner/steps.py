"""Telling how far a round is, and asking whether to go on: after every chunk, so that a stop leaves nothing
half-done.
"""

from __future__ import annotations

from collections.abc import Callable

from lastword.clock import Clock
from lastword.values import Progress, ProgressLike


class Stopped(Exception):
    """The caller asked to stop. Never leaves the cleaner."""


class Steps:
    """Tells progress and asks whether to stop, after each chunk. Steps are taken by one thread; `check` is
    safe from several."""

    def __init__(
        self,
        verb: str,
        source_bytes: int,
        clock: Clock,
        progress: ProgressLike | None,
        stop: Callable[[], bool] | None,
    ) -> None:
        self.clock = clock
        self._verb = verb
        self._map_bytes = source_bytes
        self._total_bytes = 2 * source_bytes  # at most: every segment mapped once and rewritten
        self._done_bytes = 0
        self._started = clock.monotonic()
        self._progress = progress
        self._stop = stop
        self._given_up = False

    def mapped(self, done_bytes: int, total_bytes: int) -> None:
        """After a chunk of the map pass; further passes make the way longer."""
        self._total_bytes += total_bytes - self._map_bytes
        self._map_bytes = total_bytes
        self._step(done_bytes - self._done_bytes)

    def expect(self, rewrite_bytes: int) -> None:
        """What is left to do, once it is known."""
        self._total_bytes = self._done_bytes + rewrite_bytes

    def rewritten(self, chunk_bytes: int) -> None:
        self._step(chunk_bytes)

    def give_up(self) -> None:
        """Whatever still takes steps is to end: nobody wants it any more."""
        self._given_up = True

    def check(self) -> None:
        """Raise Stopped where the round is to end."""
        if self._given_up or (self._stop is not None and self._stop()):
            raise Stopped

    def _step(self, chunk_bytes: int) -> None:
        self.check()
        self._done_bytes += chunk_bytes
        if self._progress is not None:
            seconds = self.clock.monotonic() - self._started
            self._progress(Progress.at(self._verb, self._done_bytes, self._total_bytes, seconds))
