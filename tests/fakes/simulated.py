"""`SimulatedClock`: real threads in simulated time.

Time passes only when all threads sleep. It then advances to the moment at which the first one wakes. So an
hour of sleep takes no time, and no thread wakes late.

    clock = SimulatedClock()
    clock.run(work_of_a, work_of_b)       # each in its own thread, until all have returned
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class SimulatedClock:
    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._began_ms = now_ms
        self._now = 0.0
        self._awake = 0
        self._wakes: list[float] = []
        self._moved = threading.Condition()

    def now_ms(self) -> int:
        return self._began_ms + int(self._now * 1000)

    def monotonic(self) -> float:
        return self._now

    boottime = monotonic

    def sleep(self, seconds: float) -> None:
        with self._moved:
            wake = self._now + max(0.0, seconds)
            self._wakes.append(wake)
            self._awake -= 1
            self._pass()
            while self._now < wake:
                self._moved.wait()
            self._wakes.remove(wake)
            self._awake += 1

    def wait(self, event: threading.Event, seconds: float) -> bool:
        end = self._now + seconds
        while not event.is_set() and self._now < end:
            self.sleep(min(0.01, end - self._now))
        return event.is_set()

    def _pass(self) -> None:
        """Advance to the next moment at which a thread wakes, if all threads sleep."""
        if self._awake == 0 and self._wakes and min(self._wakes) > self._now:
            self._now = min(self._wakes)
            self._moved.notify_all()

    def run(self, *works: Callable[[], object]) -> None:
        failed: list[BaseException] = []

        def body(work: Callable[[], object]) -> None:
            try:
                work()
            except BaseException as error:
                failed.append(error)
            finally:
                with self._moved:
                    self._awake -= 1
                    self._pass()

        self._awake += len(works)
        threads = [threading.Thread(target=body, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        if failed:
            raise failed[0]
