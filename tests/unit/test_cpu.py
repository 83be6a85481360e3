"""The table of CPU seconds marks each folder above its budget, and every folder has a budget."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.cpu import budgets, lines, of_machine

ROOT = Path(__file__).parents[2]


def test_a_folder_above_its_budget_is_marked() -> None:
    spent = {
        "tests/a/test_x.py::test_1": 3.0,
        "tests/a/test_x.py::test_2": 2.5,
        "tests/b/test_y.py::test": 4.0,
    }
    table = lines(spent, {"tests/a": 5, "tests/b": 5})
    assert table[0] == "CPU seconds of 3 tests: 10"
    assert [line.split() for line in table[1:3]] == [
        ["tests/a", "5.5", "2", "tests", "budget", "5", "ABOVE"],
        ["tests/b", "4.0", "1", "tests", "budget", "5"],
    ]
    assert table[4].split() == ["4.0", "tests/b/test_y.py::test"]


def test_the_seconds_of_the_machine_are_all_in_one_kind() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    text = " ".join(str(ticks << place) for place in range(len(names)))
    machine = of_machine(f"cpu  {text} 0 0\ncpu0 1 1 1\n")
    assert machine == {"busy": 1 + 2 + 4 + 32 + 64, "idle": 8 + 16, "stolen": 128}


def test_every_folder_with_tests_has_a_budget() -> None:
    folders = {str(path.parent.relative_to(ROOT)) for path in ROOT.glob("tests/**/test_*.py")}
    assert set(budgets(ROOT / "pyproject.toml")) == folders
