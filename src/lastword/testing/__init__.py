"""Tools for tests of programs that use lastword: a log builder, a manual clock, a pytest fixture.

    from lastword.testing import Clock, LogBuilder

    clock = Clock()
    with LogBuilder(tmp_path, clock).topic("users").put("a", 1).roll().delete("a").open() as logs:
        ...

The fixture `logs` is an open, empty log directory: put `pytest_plugins =
["lastword.testing.pytest_plugin"]` into the conftest.py of your tests.
"""

from lastword.clock import ManualClock as Clock
from lastword.testing.builder import LogBuilder

__all__ = ["Clock", "LogBuilder"]
