"""The table of CPU seconds marks each folder above its budget, and every folder has a budget."""

from __future__ import annotations

from pathlib import Path

from tests.support.cpu import budgets, lines

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


def test_every_folder_with_tests_has_a_budget() -> None:
    folders = {str(path.parent.relative_to(ROOT)) for path in ROOT.glob("tests/**/test_*.py")}
    assert set(budgets(ROOT / "pyproject.toml")) == folders
