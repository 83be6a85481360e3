"""CPU seconds of the tests by folder, at the end of a run of pytest.

The CPU of a test is that of its process and of the child processes that ended during the test. A process that
serves many tests counts for the test in which it ends. What imports and collects the tests counts for none.

`[tool.lastword.cpu]` in pyproject.toml has a budget for each folder. A folder above it is marked; the run
does not fail, because machines differ.

The tests of engines have a table for each of their parts (`tests/support/part.py`). The line of the machine
counts every process: it shows whether the elapsed time is CPU or waiting.
"""

from __future__ import annotations

import gc
import os
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CPU = "cpu_seconds"
MOST_TESTS = 15
"""Tests that are named one by one."""
FEWEST_TESTS = 500
"""A run of fewer tests prints no table."""
STAT = Path("/proc/stat")


def spent() -> float:
    """Return the CPU seconds of this process and of its child processes that ended."""
    return sum(os.times()[:4])


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Collect garbage a hundredth as often: histories make much of it in little time."""
    before = gc.get_threshold()
    gc.set_threshold(50_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def of_machine(stat: str) -> Counter[str]:
    """Return the CPU seconds of all cores since the machine started: busy, idle, and taken by its host.

    Args:
        stat: The text of /proc/stat.
    """
    ticks = [int(word) / os.sysconf("SC_CLK_TCK") for word in stat.split("\n", 1)[0].split()[1:9]]
    *working, idle, waiting, interrupts, soft_interrupts, stolen = ticks
    return Counter(busy=sum(working) + interrupts + soft_interrupts, idle=idle + waiting, stolen=stolen)


def budgets(pyproject: Path) -> dict[str, float]:
    """Return the budget of each folder, and of each part of the engines, in CPU seconds."""
    table = tomllib.loads(pyproject.read_text(encoding="utf-8"))["tool"]["lastword"]["cpu"]
    return {folder: float(seconds) for folder, seconds in table.items()}


def lines(by_test: dict[str, float], budgets: dict[str, float]) -> list[str]:
    """Return the table of the folders with their budgets, and the most expensive tests."""
    folders: dict[str, list[float]] = defaultdict(list)
    for test, seconds in by_test.items():
        folders[os.path.dirname(test.partition("::")[0])].append(seconds)
    table = [f"CPU seconds of {len(by_test):,} tests: {sum(by_test.values()):.0f}"]
    for folder, amounts in sorted(folders.items(), key=lambda entry: -sum(entry[1])):
        total, budget = sum(amounts), budgets.get(folder)
        row = f"  {folder:<24} {total:8.1f}  {len(amounts):6,} tests"
        if budget is not None:
            row += f"  budget {budget:4.0f}{'  ABOVE' if total > budget else ''}"
        table.append(row)
    table.append("the most expensive tests:")
    for test, seconds in sorted(by_test.items(), key=lambda entry: -entry[1])[:MOST_TESTS]:
        table.append(f"  {seconds:8.1f}  {test}")
    return table


class CpuTable:
    """A plugin: measures each test where it runs, and prints the table where all are reported."""

    def __init__(self) -> None:
        self._machine = self._read_machine()
        self._began = 0.0
        self._by_test: dict[str, float] = {}

    def _read_machine(self) -> Counter[str]:
        return of_machine(STAT.read_text()) if STAT.exists() else Counter()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        self._began = spent()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        result = yield
        item.user_properties.append((CPU, spent() - self._began))
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self._by_test[report.nodeid] = dict(report.user_properties).get(CPU, 0.0)

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        if len(self._by_test) < FEWEST_TESTS:
            return
        for line in lines(self._by_test, budgets(config.rootpath / "pyproject.toml")):
            terminalreporter.write_line(line)
        now = self._read_machine()
        if not now:  # no Linux
            return
        seconds = ", ".join(f"{kind} {amount - self._machine[kind]:.0f}" for kind, amount in now.items())
        terminalreporter.write_line(
            f"CPU seconds of the machine's {os.cpu_count()} cores meanwhile: {seconds}"
        )
