"""`Worker`: one thread of the scheduler."""

from __future__ import annotations

import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

from lastword import metrics
from lastword.clock import Clock

if TYPE_CHECKING:
    from lastword.cleaner.scheduler import Scheduler


class Worker:
    """One thread. Between its looks it has only a weak reference to the scheduler."""

    def __init__(self, scheduler: Scheduler, clock: Clock, number: int) -> None:
        self.number = number
        self.wake = threading.Event()
        self.leave = False
        self.counted = False
        self._clock = clock
        wake = self.wake
        self._scheduler = weakref.ref(scheduler, lambda _: wake.set())
        self._thread = threading.Thread(target=self._run, name=f"lastword-cleaner-{number}", daemon=True)

    def start(self, wait_seconds: float, *, counted: bool) -> None:
        self._begin_at = self._clock.monotonic() + wait_seconds
        if counted:
            self._count(1)
        self._thread.start()

    def join(self, deadline: float) -> bool:
        if self._thread is not threading.current_thread():
            self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def _count(self, change: int) -> None:
        self.counted = change > 0
        metrics.CLEANER_THREADS_ALIVE.add(change)

    def _run(self) -> None:
        died = True
        try:
            with suppress(Exception):  # a bug, or no memory: what it was is in the history
                self._loop()
                died = False
        finally:
            if self.counted:
                self._count(-1)
            scheduler = self._scheduler()
            if scheduler is None:
                metrics.CLEANER_THREADS.add(-1)
            elif died:
                scheduler.replace(self)

    def _loop(self) -> None:
        seconds = self._begin_at - self._clock.monotonic()
        while True:
            self._clock.wait(self.wake, seconds)
            self.wake.clear()
            scheduler = self._scheduler()
            if scheduler is None or scheduler.stopping or self.leave:
                return
            if not self.counted:
                self._count(1)
            scheduler.work_on()
            seconds = max(scheduler.backoff_ms, 1) / 1000
            if scheduler.stopping or self.leave:
                return
            del scheduler
