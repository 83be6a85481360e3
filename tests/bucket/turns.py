"""`Turns`: several processes over one store, of which one runs at a time; a seed chooses which.

Each process is a thread. The thread that has the turn gives it to another thread only before a request to the
store, so a seed determines the whole history. The store's clock moves with each request.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from lastword.clock import ManualClock
from tests.fakes.objects import Stopped


class Process:
    """One process of a history: the name of its store, and the thread that runs it."""

    def __init__(self, name: str, script: Callable[[Process], None]) -> None:
        self.name = name
        self.script = script
        self.asleep_until = 0
        self.gate = threading.Lock()
        self.gate.acquire()


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
        self._over = threading.Lock()
        self._over.acquire()
        self.steps = 0
        self.stopped = False
        self.failure: BaseException | None = None

    def run(self, processes: Sequence[Process]) -> None:
        """Run all processes to their ends. Raises the first exception that a process did not handle."""
        self._alive = list(processes)
        for process, worker in zip(processes, _workers(len(processes)), strict=True):
            worker.start_job(lambda process=process: self._run(process))
        self._next().gate.release()
        self._over.acquire()
        if self.failure is not None:
            raise self.failure

    def _run(self, process: Process) -> None:
        process.gate.acquire()
        try:
            if not self.stopped:
                process.script(process)
        except Stopped:
            pass
        except BaseException as error:
            self.failure = self.failure or error
            self.stopped = True
        self._alive.remove(process)
        if self._alive:
            self._next().gate.release()
        else:
            self._over.release()

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
                following.gate.release()
                process.gate.acquire()
        if self.stopped:
            raise Stopped(process.name)

    def sleep(self, process: Process, ms: int, steps: int) -> None:
        """Let a process sleep while others send `steps` requests; the store's clock moves by `ms`."""
        process.asleep_until = self.steps + steps
        self._clock.advance(ms)


class _Worker(threading.Thread):
    """A thread that runs one job after the other: a history of 2 ms has no time to start threads."""

    def __init__(self) -> None:
        super().__init__(name="history", daemon=True)
        self._given = threading.Lock()
        self._given.acquire()
        self._job: Callable[[], None] | None = None
        self.start()

    def start_job(self, job: Callable[[], None]) -> None:
        self._job = job
        self._given.release()

    def run(self) -> None:
        while True:
            self._given.acquire()
            assert self._job is not None
            self._job()


_idle: list[_Worker] = []


def _workers(count: int) -> list[_Worker]:
    """Return workers without a job. A worker whose job ended takes the next one as soon as it waits."""
    while len(_idle) < count:
        _idle.append(_Worker())
    return _idle[:count]


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
