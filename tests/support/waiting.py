"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def until(condition: Callable[[], Result], seconds: float = 60, pause: float = 0.005) -> Result:
    """Return the first true result of the condition; fail if there is none in this time."""
    end = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < end, f"it did not happen within {seconds} s"
        time.sleep(pause)
    return result
