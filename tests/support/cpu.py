"""CPU seconds of the tests by folder, at the end of a run of pytest.

The CPU of a test is that of its process and of the child processes that ended during the test. A process that
serves many tests counts for the test in which it ends. What imports and collects the tests counts for none.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

CPU = "cpu_seconds"
MOST_TESTS = 15
"""Tests that are named one by one."""
FEWEST_TESTS = 500
"""A run of fewer tests prints no table."""


def spent() -> float:
    """Return the CPU seconds of this process and of its child processes that ended."""
    return sum(os.times()[:4])


class CpuTable:
    """A plugin: measures each test where it runs, and prints the table where all are reported."""

    def __init__(self) -> None:
        self._began = 0.0
        self._by_test: dict[str, float] = {}

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

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if len(self._by_test) < FEWEST_TESTS:
            return
        folders: dict[str, list[float]] = defaultdict(list)
        for test, seconds in self._by_test.items():
            folders[os.path.dirname(test.partition("::")[0])].append(seconds)
        write = terminalreporter.write_line
        write(f"CPU seconds of {len(self._by_test)} tests: {sum(self._by_test.values()):.0f}")
        for folder, amounts in sorted(folders.items(), key=lambda entry: -sum(entry[1])):
            write(f"  {folder:<24} {sum(amounts):8.1f}  {len(amounts):6,} tests")
        write("the most expensive tests:")
        for test, seconds in sorted(self._by_test.items(), key=lambda entry: -entry[1])[:MOST_TESTS]:
            write(f"  {seconds:8.1f}  {test}")
