"""Tests replace only what the package has: a replacement of a name that is gone would test nothing.

`monkeypatch` and `mock.patch` check that themselves, unless the call has `raising=False`.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]


def imported(tree: ast.Module) -> dict[str, Any]:
    """Return what the imports at the top of a module name in the package."""
    names: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "lastword":
            for alias in node.names:
                module = importlib.import_module(node.module)
                if not hasattr(module, alias.name):
                    module = importlib.import_module(f"{node.module}.{alias.name}")
                names[alias.asname or alias.name] = getattr(module, alias.name, module)
    return names


def replaced(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield name and attribute of each replacement that nothing else checks."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                    yield target.value.id, target.attr
        elif isinstance(node, ast.Call) and any(keyword.arg == "raising" for keyword in node.keywords):
            match node.args:
                case [ast.Name(id=owner), ast.Constant(value=str(name)), *_]:
                    yield owner, name


def has(owner: Any, name: str) -> bool:
    """Return whether a module or class has an attribute; a class also if its objects have it."""
    return hasattr(owner, name) or (inspect.isclass(owner) and f"self.{name}" in inspect.getsource(owner))


def gone(path: Path) -> list[str]:
    """Return the replacements of a module whose names the package does not have."""
    text = path.read_text()
    if re.search(r"^ *\w+\.\w+ = |raising=", text, re.MULTILINE) is None:
        return []
    tree = ast.parse(text)
    pairs, names = list(replaced(tree)), imported(tree)
    wrong = [(owner, name) for owner, name in pairs if owner in names and not has(names[owner], name)]
    return [f"{path.name}: {owner}.{name}" for owner, name in wrong]


@pytest.mark.slow
def test_every_replaced_name_exists() -> None:
    paths = [path for path in TESTS.rglob("*.py") if "spark" not in path.parts]  # these import PySpark
    assert len(paths) > 300
    assert [text for path in paths for text in gone(path)] == []


def test_a_name_that_is_gone_is_found(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text(
        "from lastword.partition import scan\n"
        "from lastword.partition.log import PartitionLog\n"
        "scan.NO_SUCH_BYTES = scan.PLAIN_BYTES_LOADED = 1\n"
        "def test(monkeypatch):\n"
        "    monkeypatch.setattr(PartitionLog, 'no_such', None, raising=False)\n"
        "    monkeypatch.setattr(PartitionLog, 'append_batch', None, raising=False)\n"
    )
    assert gone(planted) == ["planted.py: scan.NO_SUCH_BYTES", "planted.py: PartitionLog.no_such"]
