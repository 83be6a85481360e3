"""`Turns`: several processes over one store, of which one runs at a time; a seed chooses which.

Each process is a greenlet: it has a stack of its own in the same thread. It gives the turn to another process
only before a request to the store, so a seed determines the whole history. The store's clock moves with each
request.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from greenlet import greenlet

from lastword.clock import ManualClock
from tests.fakes.objects import Stopped


class Process:
    """One process of a history: the name of its store, and the greenlet that runs it."""

    def __init__(self, name: str, script: Callable[[Process], None]) -> None:
        self.name = name
        self.script = script
        self.asleep_until = 0
        self.stack: greenlet


class Turns:
    """Gives the turn to one process after the other.

    Args:
        rng: Chooses the next process.
        clock: The store's clock.
        switch: How often the turn goes to another process, of the requests.
        step_ms: The longest time between two requests.
    """

    def __init__(self, rng: random.Random, clock: ManualClock, switch: float, step_ms: int) -> None:
        self._rng = rng
        self._clock = clock
        self._switch = switch
        self._step_ms = step_ms
        self._alive: list[Process] = []
        self.steps = 0
        self.stopped = False
        self.failure: BaseException | None = None

    def run(self, processes: Sequence[Process]) -> None:
        """Run all processes to their ends. Raises the first exception that a process did not handle."""
        self._alive = list(processes)
        for process in processes:
            process.stack = greenlet(self._run)
        while self._alive:
            process = self._next()
            process.stack.switch(process)  # returns when a process has ended
        if self.failure is not None:
            raise self.failure

    def _run(self, process: Process) -> None:
        try:
            if not self.stopped:
                process.script(process)
        except Stopped:
            pass
        except BaseException as error:
            self.failure = self.failure or error
            self.stopped = True
        self._alive.remove(process)

    def _next(self) -> Process:
        awake = [process for process in self._alive if process.asleep_until <= self.steps]
        return self._rng.choice(awake or self._alive)

    def before_request(self, process: Process) -> None:
        """Give other processes their turns. Raises Stopped if the history is over."""
        self.steps += 1
        self._clock.advance(int(self._rng.random() * self._step_ms))
        if process.asleep_until > self.steps or self._rng.random() < self._switch:
            following = self._next()
            if following is not process:
                following.stack.switch(following)
        if self.stopped:
            raise Stopped(process.name)

    def sleep(self, process: Process, ms: int, steps: int) -> None:
        """Let a process sleep while others send `steps` requests; the store's clock moves by `ms`."""
        process.asleep_until = self.steps + steps
        self._clock.advance(ms)


@contextmanager
def patched(*patches: tuple[object, str, object]) -> Iterator[None]:
    """Replace attributes: (object, name, value)."""
    before = [(target, name, getattr(target, name)) for target, name, _ in patches]
    for target, name, value in patches:
        setattr(target, name, value)
    try:
        yield
    finally:
        for target, name, value in before:
            setattr(target, name, value)
