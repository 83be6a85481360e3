"""End a command on SIGINT, SIGTERM or SIGHUP at a safe point, with exit code 128 + the number of the signal.

A read-only command is interrupted immediately. A command that changes a directory holds signals (`held`) from
before the directory is opened until it is closed. A held signal takes effect only where the command allows
it: in `interruptible`, while the command waits for input or for a lock, and where the command checks `noted`.
So the directory is always closed, with the marker of a clean stop, before the process ends.

A second signal, at least one second after the first, ends the process immediately: the next opening recovers.
(When a terminal hangs up, SIGHUP can arrive twice: from the kernel and from the shell.)

`cli.main.run` installs the handlers for one command line; the library never does.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

T = TypeVar("T")

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME_SECONDS = 1.0
"""A second signal within this time counts as a repetition of the first."""


class Ended(KeyboardInterrupt):
    """Raised when a signal ends the command. Handled wherever KeyboardInterrupt is."""


class _Signals:
    def __init__(self) -> None:
        self.first: int | None = None
        self.at = 0.0
        self.depth = 0  # of `held`


_state = _Signals()


def noted() -> bool:
    """Return whether a signal has come that ends the command."""
    return _state.first is not None


def settle(*normal: int) -> None:
    """Drop a signal that is a normal way to end this command, which then has its own exit code."""
    if _state.first in normal:
        _state.first = None


def exit_code() -> int:
    """Return the exit code for the signal."""
    return 128 + (_state.first or signal.SIGINT)


def name() -> str:
    """Return the name of the signal."""
    return signal.Signals(_state.first or signal.SIGINT).name


@contextmanager
def installed() -> Iterator[None]:
    """Handle signals until the end of a command line.

    A signal that is ignored when the process starts, as under nohup, stays ignored.
    """
    global _state
    before, _state = _state, _Signals()
    handlers = {}
    with suppress(ValueError):  # only the main thread may install handlers
        for number in ENDING:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                handlers[number] = signal.signal(number, _handle)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        _state = before


@contextmanager
def held() -> Iterator[None]:
    """Note signals without interrupting."""
    _state.depth += 1
    try:
        yield
    finally:
        _state.depth -= 1


def interruptible(call: Callable[[], T]) -> T:
    """Call a function that a signal may interrupt inside `held`; cheap enough for each line of a file.

    A signal that was noted earlier interrupts here.
    """
    depth, _state.depth = _state.depth, 0
    try:
        if _state.first is not None:
            raise Ended
        return call()
    finally:
        _state.depth = depth


def _handle(number: int, frame: object) -> None:
    now = time.monotonic()
    if _state.first is None:
        _state.first, _state.at = number, now
        if _state.depth == 0:
            raise Ended
    elif now - _state.at >= SAME_SECONDS:
        with suppress(OSError):
            os.write(2, b"ended immediately; the next opening recovers unfinished work\n")
        os._exit(128 + number)
