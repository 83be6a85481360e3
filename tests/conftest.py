"""What all tests share."""

from __future__ import annotations

import gc
import os
import shutil
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from lastword import metrics
from tests.support.exhaustive import stride

# Machines that run tests are busy: how long an example takes says nothing about the code.
settings.register_profile("lastword", deadline=None, max_examples=200 // stride(4))
settings.load_profile("lastword")

# Crash tests make and remove thousands of directories. In memory that costs a tenth; what a disk may lose is
# the business of tests/fakes, not of the disk below.
MEMORY = "/dev/shm"
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)

# A shell starts what it runs in the background deaf to Ctrl-C, and so are all processes below. Some tests
# press it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Leave the tests themselves out of every garbage collection: there are seven thousand."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def short_lived_jvms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the JVMs of this test take half the CPU: one compiler and one collector are enough."""
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")


@pytest.fixture(autouse=True)
def _only_its_own_gauges() -> Iterator[None]:
    """A test that lets a process "die" leaves its open directories behind; no later test measures those."""
    metrics._measured.clear()
    yield
