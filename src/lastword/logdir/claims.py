"""`Claims`: who may remove or rewrite the segments of a partition, or move it. One at a time.

Who waits is seen by who holds, so that a background round, which can be done another time, ends at its next
safe point.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from lastword.logdir.checkpoints import TopicPartition


class Claims:
    """The claims on the partitions of one directory, under its `lock`, which nobody holds while it waits."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._claims: dict[TopicPartition, threading.RLock] = {}
        self._wanted: Counter[TopicPartition] = Counter()  # threads that wait for a claim

    @contextmanager
    def claim(self, tp: TopicPartition) -> Iterator[None]:
        """Held inside; waits for who has it. The same thread may claim again."""
        with self._lock:
            mine = self._claims.setdefault(tp, threading.RLock())
        if not mine.acquire(blocking=False):
            with self._lock:
                self._wanted[tp] += 1
            try:
                mine.acquire()
            finally:
                with self._lock:
                    self._wanted[tp] -= 1
        try:
            yield
        finally:
            mine.release()

    @contextmanager
    def try_claim(self, tp: TopicPartition) -> Iterator[bool]:
        """Held inside if nobody else has it; says which."""
        with self._lock:
            mine = self._claims.setdefault(tp, threading.RLock())
        got = mine.acquire(blocking=False)
        try:
            yield got
        finally:
            if got:
                mine.release()

    def wanted(self, tp: TopicPartition) -> bool:
        """Does somebody wait?"""
        return self._wanted[tp] > 0
