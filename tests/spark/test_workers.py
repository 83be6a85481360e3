"""What a Spark worker keeps from task to task."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

pytest.importorskip("pyspark")

from pyspark import cloudpickle

from lastword.spark import bootstrap
from lastword.spark.tasks import TaskCall


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(bootstrap, "_frozen_modules", 0)
    gc.unfreeze()  # another test may have frozen objects that this test counts
    yield
    gc.unfreeze()


def start_task() -> int:
    """Unpack a task as a worker does; return the count of objects that the collector skips."""
    cloudpickle.loads(cloudpickle.dumps(TaskCall(len, ())))
    return gc.get_freeze_count()


def test_the_collector_passes_over_what_was_there_before_a_task(
    frozen: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = start_task()
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec(bootstrap.DAEMON, None))
    kept = start_task()
    assert kept > before + 10_000
    objects = [[] for _ in range(1000)]
    assert start_task() < kept + len(objects)  # frozen once: objects that tasks make are collected as usual
    monkeypatch.setitem(sys.modules, "a_module_that_was_loaded_meanwhile", ModuleType("new"))
    assert start_task() >= kept + len(objects)


def test_a_closed_connection_prints_no_traceback_in_a_worker() -> None:
    """The daemon prints the errors of a worker; that of a closed connection has no meaning."""
    program = """
import sys, traceback, types
sys.modules["__main__"].__spec__ = types.SimpleNamespace(name=sys.argv[1])
from lastword.spark.bootstrap import hide_closed_connections
hide_closed_connections()
for error in (BrokenPipeError("closed"), ValueError("wrong")):
    try:
        raise error
    except BaseException:
        traceback.print_exc()
"""
    printed = {}
    for name in ("pyspark.daemon", "another"):
        run = subprocess.run(
            [sys.executable, "-c", program, name], capture_output=True, text=True, check=True
        )
        printed[name] = "closed" in run.stderr, "wrong" in run.stderr
    assert printed == {"pyspark.daemon": (False, True), "another": (True, True)}
