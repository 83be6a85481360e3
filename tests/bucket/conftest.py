"""A log in a store in memory, of its own for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest

import lastword

_numbers = count()


@pytest.fixture
def url() -> str:
    return f"memory://tests-{next(_numbers)}/log"


@pytest.fixture
def opened(url: str) -> Iterator[Callable[..., lastword.LogDir]]:
    """Open the log; everything is closed at the end of the test."""
    opened: list[lastword.LogDir] = []

    def open_log(mode: str = "a", **settings: object) -> lastword.LogDir:
        given = {"lastword_commit_linger_ms": 0, "log_cleaner_enable": False, **settings}
        opened.append(lastword.open(url, mode, **given))  # type: ignore[arg-type]
        return opened[-1]

    yield open_log
    for logs in opened:
        logs.close()
