"""Fixtures and settings of all tests."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import random
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from lastword import metrics
from tests.support import linux, stores
from tests.support.cpu import CpuTable
from tests.support.exhaustive import EXHAUSTIVE, stride
from tests.support.stores import Server, ServerMissing

# Machines that run tests are busy, so the time of an example is no property of the code.
settings.register_profile("lastword", deadline=None, max_examples=200 // stride(20))
settings.load_profile("lastword")

# Hypothesis parses every module of the source for constants, which it draws now and then: 4 to 15 s of CPU in
# each process after a change, and other examples of a test with each other test beside it. At night only.
if not EXHAUSTIVE:
    with suppress(ImportError):  # the oldest versions that are allowed draw no constants
        from hypothesis.internal.conjecture import providers

        providers._get_local_constants = lambda: providers._local_constants

if linux.PORTABLE:
    linux.take_calls_away()

# Crash tests make and remove thousands of directories. In memory that takes a tenth of the time. tests/fakes
# simulates the losses of a disk, so no real disk is needed.
MEMORY = "/dev/shm"
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)

# A shell starts background processes with SIGINT ignored, and their child processes inherit that. Some tests
# send SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(CpuTable())
    # Under nohup a hang-up is ignored, and every process that a test starts would ignore it, too. A handler
    # is not inherited. The variable tells the workers, which this process starts.
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN or "TESTS_UNDER_NOHUP" in os.environ:
        os.environ["TESTS_UNDER_NOHUP"] = "1"
        signal.signal(signal.SIGHUP, lambda number, frame: None)


@pytest.hookimpl(trylast=True)  # after tests/kafka/conftest.py, which adds marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse a test of an engine outside ENGINES in the Makefile: `make test-engines` would not run it."""
    line = re.search(r"^ENGINES := (.*)$", (config.rootpath / "Makefile").read_text(), re.MULTILINE)
    assert line is not None
    paths = [config.rootpath / path for path in line[1].split()]
    for item in items:
        engines = [mark for mark in ("spark", "kafka", "beside") if item.get_closest_marker(mark)]
        if engines and not any(item.path.is_relative_to(path) for path in paths):
            raise pytest.UsageError(
                f"{item.nodeid} is marked {engines[0]}: add its path to ENGINES in the Makefile"
            )


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in a loop of its own, for at most 30 s."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), 30))
    return True


gc.disable()  # while ten thousand tests are imported and collected: 7 s of CPU in each process of pytest


def pytest_collection_finish() -> None:
    """Exclude the tests themselves, about ten thousand, from every garbage collection."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module")
def frozen() -> None:
    """Exclude the libraries that earlier tests imported from the many collections of this module's tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def spark_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let Spark run from a SPARK_HOME whose processes start fast (`farm`, `class_archive`)."""
    pytest.importorskip("pyspark")
    from tests.spark.clusters import class_archive, farm

    with pytest.MonkeyPatch.context() as patch:
        # A JVM that the archive does not fit would say so in its output, which Spark's launcher reads.
        patch.setenv("JDK_JAVA_OPTIONS", f"-XX:SharedArchiveFile={class_archive()} -Xlog:disable")
        patch.setenv("SPARK_HOME", str(farm(tmp_path_factory.mktemp("spark"))))
        yield


@pytest.fixture
def short_lived_jvms(monkeypatch: pytest.MonkeyPatch, spark_home: None) -> None:
    """Halve the CPU of this test's JVMs: one compiler and one collector are enough."""
    options = os.environ["JDK_JAVA_OPTIONS"]
    monkeypatch.setenv("JDK_JAVA_OPTIONS", f"{options} -XX:+UseSerialGC -XX:TieredStopAtLevel=1")


@pytest.fixture(autouse=True)
def _seeded(request: pytest.FixtureRequest) -> Iterator[None]:
    """Draw salts, names and nonces of this process from a seed: a test sees the same ones in each run.

    The seed is the name of the test and TESTS_SEED (`make chance`). Processes that a test starts have none.
    """
    rng = random.Random(f"{os.environ.get('TESTS_SEED', '')} {request.node.nodeid}")
    of_system, process = os.urandom, os.getpid()

    def drawn(size: int) -> bytes:
        return rng.randbytes(size) if os.getpid() == process else of_system(size)  # two forks differ

    with pytest.MonkeyPatch.context() as patch:  # not the test's own: its paths would be removed first
        patch.setattr(os, "urandom", drawn)
        patch.setattr(random, "_urandom", drawn)  # SystemRandom, and so secrets
        yield


@pytest.fixture(autouse=True)
def _only_its_own_gauges() -> Iterator[None]:
    """Clear the gauges of directories that an earlier test left open when its process "died".

    The times of syncs are kept for each directory: without this, an export of thousands of them takes 4 s.
    """
    metrics._measured.clear()
    metrics.FSYNC_SECONDS._values.clear()
    yield


# Servers of object storage. Those in this process start once for the session, when the first test needs them.


@contextmanager
def _started(server: AbstractContextManager[Server]) -> Iterator[Server]:
    with ExitStack() as stack:
        try:
            running = stack.enter_context(server)
        except ServerMissing as missing:
            if missing.must_not_skip:
                raise
            pytest.skip(str(missing))
        yield running


@pytest.fixture(scope="session")
def moto() -> Iterator[Server]:
    with _started(stores.moto()) as server:
        yield server


@pytest.fixture(scope="session")
def gcs() -> Iterator[Server]:
    with _started(stores.gcs()) as server:
        yield server


@pytest.fixture
def azurite(tmp_path: Path) -> Iterator[Server]:
    with _started(stores.azurite(tmp_path / "azurite.log")) as server:
        yield server


@pytest.fixture
def s3mock(tmp_path: Path) -> Iterator[Server]:
    with _started(stores.s3mock(tmp_path / "s3mock.log")) as server:
        yield server


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the requests of this process to stores, by method."""
    from lastword.objects.remote import RemoteStore

    counted: Counter[str] = Counter()

    def counting(name: str) -> Callable[..., Any]:
        method = getattr(RemoteStore, name)

        def call(self: Any, *arguments: Any, **options: Any) -> Any:
            counted[name] += 1
            return method(self, *arguments, **options)

        return call

    for name in ("get", "get_range", "put", "put_file", "create", "swap", "list", "facts", "delete"):
        monkeypatch.setattr(RemoteStore, name, counting(name))
    return counted
