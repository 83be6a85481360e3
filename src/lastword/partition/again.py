"""Read again: a cleaning replaced a file that a reader had listed.

Readers that can continue where they are (`reads`), or that must not change their answer (`moment`), have
loops of their own with the same bound.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from lastword.errors import FileVanishedError

T = TypeVar("T")

ATTEMPTS = 100


def read_again(read: Callable[[], T], renew: Callable[[], object] = lambda: None) -> T:
    """Return the result of `read`, which begins again if a cleaning replaced a file that it had listed.

    Args:
        read: Reads one or more logs, and changes nothing. It makes its views, or uses those of `renew`.
        renew: Called before each repetition.

    Raises:
        FileVanishedError: Files were replaced again and again.
    """
    for _ in range(ATTEMPTS - 1):
        with suppress(FileVanishedError):
            return read()
        with suppress(FileVanishedError):
            renew()
    return read()
