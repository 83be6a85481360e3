"""A log in a store in memory, of its own for each test, and one on the double."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from random import Random
from typing import Any

import pytest

import lastword
from lastword.api.bucket_dirs import BucketDirs, merged_settings
from lastword.api.logs import LogDir
from lastword.bucket.commit import Bucket
from lastword.clock import ManualClock, SystemClock
from tests.fakes.objects import Bucket as Objects

_numbers = count()
START_MS = SystemClock().now_ms()


def on_double(
    objects: Objects,
    mode: Any = "a",
    *,
    clock: ManualClock | None = None,
    faults: Any = None,
    seed: int = 1,
    **settings: object,
) -> LogDir:
    """Open a log on the double, as a new process does, with a clock of its own."""
    clock = clock or ManualClock(START_MS)
    bucket = Bucket(objects.process(faults=faults), clock=clock, rng=Random(seed))
    given = merged_settings("s3://double", None, {"lastword_commit_linger_ms": 0, **settings})
    return LogDir(BucketDirs(bucket, mode, given, clock))


@pytest.fixture
def objects() -> Objects:
    return Objects()


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
