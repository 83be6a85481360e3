"""scripts/figures.py on a package that has one example of each figure."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "figures.py"))

SOURCES = {
    "__init__.py": "",
    "one.py": '''
"""A docstring is no code.

Nor are its further lines.
"""

from typing import TYPE_CHECKING

from house.two import Shelf

if TYPE_CHECKING:
    from house.sub.four import Late


class Room(Shelf):
    _own = 1

    def open(self, room: "Late") -> int:
        return self._own + self._board + room._replace().size  # a comment
''',
    "two.py": """
class Shelf:
    def __init__(self) -> None:
        self._board = 2
""",
    "sub/__init__.py": "",
    "sub/one.py": "class Shelf: ...\n",
    "sub/four.py": """
from .. import two
from ..one import Room


class Late(Room):
    def many(self, a, b, c, d, e, f, g, h, i, j, *k, **l):
        from ..two import _hidden
        return two._secret or self._board
""",
    "kernels/__init__.py": "",
    "kernels/wide.py": "def wide(a, b, c, d, e, f, g, h, i, j, k, l): ...\n",
}


@pytest.fixture
def house(tmp_path: Path) -> Path:
    for name, source in SOURCES.items():
        path = tmp_path / "house" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source.lstrip("\n"), encoding="utf-8")
    return tmp_path / "house"


FIGURES: dict[str, Any] = {
    "modules": 8,
    "classes": 4,
    "functions": 4,
    "code_lines": 8 + 3 + 1 + 6 + 1,
    "function_lines": {"median": 2, "p90": 3, "p99": 3, "max": 3},
    "imported_once": ["one.py <- house.sub.four", "sub/four.py <- house.one"],
    # `_own` belongs to the module, `_replace` to tuples; `_board` is inherited.
    "private_reaches": [
        "sub/four.py:7 house.two._hidden",
        "sub/four.py:8 self._board",
        "sub/four.py:8 two._secret",
    ],
    "many_parameters": ["sub/four.py:6 many (12)"],  # `self` does not count; the kernel is exempt
    "circles": [  # a type-only import closes it
        {"modules": ["house.one", "house.sub.four"], "shortest": ["house.one", "house.sub.four", "house.one"]}
    ],
    "doubled_classes": ["Shelf: house.sub.one, house.two"],
    "doubled_modules": ["one: house.one, house.sub.one"],
}


def test_each_figure(house: Path) -> None:
    result = json.loads(json.dumps(SCRIPT["figures"]([house])).replace(f"{house}/", ""))
    assert {name: result[name] for name in FIGURES} == FIGURES
    assert result["module_lines"]["max"] == 18 and "two.py (3)" in result["small_modules"]


@pytest.mark.slow
def test_no_function_of_the_source_has_many_parameters() -> None:
    """But kernels and commands."""
    count = 0

    def parsed() -> Iterator[Any]:
        nonlocal count
        for module in SCRIPT["parse"](SCRIPT["PACKAGES"]):
            count += 1
            yield module

    assert SCRIPT["many_parameters"](parsed()) == []
    assert count > 200


def test_both_forms(house: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SCRIPT["main"](["--json", str(house)])
    assert json.loads(capsys.readouterr().out) == SCRIPT["figures"]([house])
    SCRIPT["main"]([str(house)])
    assert "reaches into private members of other modules: 3\n" in capsys.readouterr().out


def test_a_closed_pipe_is_no_error(house: Path) -> None:
    script = ROOT / "scripts" / "figures.py"
    process = subprocess.Popen(
        [sys.executable, script, house], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == "" and process.wait() == 0
    process.stderr.close()


def imports_of_the_source() -> dict[str, list[str]]:
    """Return the modules that each module names in an import: for type checkers, and in functions, too."""
    source = ROOT / "src"
    paths = {
        ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__"): path
        for path in source.glob("lastword/**/*.py")
    }
    imported = re.compile(r"^ *from (lastword[\w.]*) import (?:\(([^)]*)\)|([^#\n]*))", re.MULTILINE)
    edges = {}
    for module, path in paths.items():
        named = set()
        for base, lines, line in imported.findall(path.read_text(encoding="utf-8")):
            for name in re.findall(r"(\w+)(?: as \w+)?", lines or line):
                named.add(f"{base}.{name}" if f"{base}.{name}" in paths else base)
        edges[module] = sorted(named - {module})
    return edges


@pytest.fixture(scope="module")
def imports() -> dict[str, list[str]]:
    return imports_of_the_source()


def test_the_source_has_no_circle(imports: dict[str, list[str]]) -> None:
    assert len(imports) > 200 and "lastword.api.topics" in imports["lastword.api.logs"]
    assert SCRIPT["circles"](imports) == []


@pytest.mark.parametrize("package", ["api", "server"])
def test_the_floors_hold_for_names_of_type_checkers(package: str, imports: dict[str, list[str]]) -> None:
    """`lint-imports` checks the floors without these names."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    container = f"lastword.{package}"
    (contract,) = (
        contract
        for contract in settings["tool"]["importlinter"]["contracts"]
        if contract.get("containers") == [container]
    )
    floors = {
        f"{container}.{name}": number
        for number, names in enumerate(contract["layers"])
        for name in names.split(" | ")
    }
    assert {
        (module, target)
        for module, number in floors.items()
        for target in imports[module]
        if target.startswith(f"{container}.") and floors[target] <= number
    } == set()
