"""Ctrl-C at random moments of calls: no lock stays held, and the process goes on with the log."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword import metrics
from tests.support.exhaustive import few

CALLS: dict[str, Callable[[Any, Any], object]] = {
    "append": lambda topic, state: topic.append(b"k", b"v"),
    "extend": lambda topic, state: topic.extend([(b"k", b"v")] * 3),
    "set": lambda topic, state: state.__setitem__("k", 1),
    "incr": lambda topic, state: state.incr("n"),
}


def held(locks: dict[str, Any]) -> list[str]:
    """Return the names of the locks that another thread cannot get."""
    names: list[str] = []

    def look() -> None:
        for name, lock in locks.items():
            if lock.acquire(timeout=1):
                lock.release()
            else:
                names.append(name)

    looking = threading.Thread(target=look)
    looking.start()
    looking.join()
    return names


@pytest.mark.parametrize("name", CALLS)
def test_no_lock_stays_held(tmp_path: Path, name: str) -> None:
    rng, call = random.Random(name), CALLS[name]
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    with lastword.open(tmp_path / "log", "a", log_cleaner_enable=False) as logs:
        topic, state = logs.create_topic("t", cleanup_policy="compact"), logs.state("s")
        for _ in range(3):  # modules are loaded
            call(topic, state)
        dirs, contents = logs.dirs, state._contents
        assert contents is not None
        locks: dict[str, Any] = {each: dirs.log(each, 0).lock for each in ("t", "s")}
        locks |= {"commits": dirs.commits, "moment": dirs.moment, "metrics": metrics._appends}
        locks |= {"turn": contents.turn, "reading": contents.reading}
        try:
            for _ in range(few(1200)):
                try:
                    over = time.monotonic() + 0.1  # an interrupt in a finalizer is not raised
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0002, 0.0006))
                    while time.monotonic() < over:
                        call(topic, state)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    assert held(locks) == []
        finally:
            signal.signal(signal.SIGALRM, before)
        call(topic, state)
        shown = topic.bounds(), dict(state)
    with lastword.open(tmp_path / "log") as logs:
        assert (logs["t"].bounds(), dict(logs.state("s"))) == shown
