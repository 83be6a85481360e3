"""Functions as tasks, without a JVM: the jobs of one call, and what the caller's thread does for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

pytest.importorskip("pyspark")

from lastword.errors import UsageError
from lastword.spark import tasks


class Context:
    """A SparkContext as far as `results_as_completed` needs it."""

    defaultParallelism = 2

    def __init__(self) -> None:
        self.cancelled: list[str] = []

    def getLocalProperty(self, name: str) -> None:
        return None

    def cancelJobsWithTag(self, tag: str) -> None:
        self.cancelled.append(tag)


def double(value: int) -> int:
    return 2 * value


def refuse(value: int) -> int:
    raise UsageError(f"not {value}")


class Gate:
    """Values whose jobs end when the last of them has been taken."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.begun = threading.Event()

    def __iter__(self) -> Iterator[int]:
        yield from range(self.count)
        self.begun.set()

    def one_job(self, context: Any, tag: str, given: Any, call: tasks.TaskCall) -> bytes:
        assert self.begun.wait(60)
        return call(None)


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Context:
    made = Context()
    monkeypatch.setattr(tasks, "_context", lambda spark: made)
    monkeypatch.setattr(tasks, "_inheriting", lambda spark, function: function)
    return made


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch, context: Context) -> Gate:
    made = Gate(300)
    monkeypatch.setattr(tasks, "_one_job", made.one_job)
    return made


def test_waiting_for_a_result_does_not_visit_the_other_jobs(
    context: Context, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every job that was under way was visited for each job that began, and for each result."""
    visits = 0
    really = Future.done

    def done(future: Future[Any]) -> bool:
        nonlocal visits
        visits += 1
        return really(future)

    monkeypatch.setattr(Future, "done", done)
    spark: Any = None
    results = dict(tasks.results_as_completed(spark, double, gate))
    assert results == {number: 2 * number for number in range(gate.count)}
    assert visits <= gate.count and context.cancelled == []


def test_an_error_cancels_the_other_jobs(context: Context, gate: Gate) -> None:
    spark: Any = None
    with pytest.raises(UsageError, match="not "):
        list(tasks.results_as_completed(spark, refuse, gate))
    assert len(context.cancelled) == 1
