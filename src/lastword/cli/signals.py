"""How SIGINT, SIGTERM and SIGHUP end a command: at a safe point, with exit code 128 + the signal's number.

A command that only looks is interrupted where it is. One that changes a directory is `held` from before it
is opened until it is closed: a signal is noted, and takes effect where the command allows it (`released`:
while it waits for its input or for a lock; `noted`: where it asks). So the directory is always closed, with
the marker of a clean stop, and only then the process ends.

A second signal, a second or more after the first, ends the process at once: the next opening recovers. (One
hang-up of a terminal can arrive twice, from the kernel and from the shell.)

Handlers are installed for one command line, by `cli.main.run`, and never by the library.
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
"""A second signal within this time is taken for the first one again."""


class Ended(KeyboardInterrupt):
    """A signal ended the command. Handled wherever Ctrl-C is."""


class _State:
    def __init__(self) -> None:
        self.first: int | None = None
        self.at = 0.0
        self.depth = 0  # of `held`


_state = _State()


def noted() -> bool:
    """Is the command to end?"""
    return _state.first is not None


def first() -> int | None:
    """Number of the signal that ends the command."""
    return _state.first


def settle() -> None:
    """The signal has done what it was sent for: the command ends with its own exit code."""
    _state.first = None


def exit_code() -> int:
    return 128 + (_state.first or signal.SIGINT)


def name() -> str:
    return signal.Signals(_state.first or signal.SIGINT).name


@contextmanager
def installed() -> Iterator[None]:
    """Handle signals until the end of a command line. One that the process was started to ignore, as by
    nohup, stays ignored."""
    global _state
    before, _state = _state, _State()
    handlers = {}
    with suppress(ValueError):  # not the main thread, which alone gets signals
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
    """From here on signals are only noted."""
    _state.depth += 1
    try:
        yield
    finally:
        _state.depth -= 1


@contextmanager
def released() -> Iterator[None]:
    """A place in `held` where the command may be interrupted; one that was noted interrupts here."""
    depth, _state.depth = _state.depth, 0
    try:
        if noted():
            raise Ended
        yield
    finally:
        _state.depth = depth


def interruptible(wait: Callable[[], T]) -> T:
    """Call a function that waits, as in `released`; cheap enough for each line of a file."""
    depth, _state.depth = _state.depth, 0
    try:
        if _state.first is not None:
            raise Ended
        return wait()
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
            os.write(2, b"ended at once; the next opening recovers what was not finished\n")
        os._exit(128 + number)
