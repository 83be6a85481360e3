"""scripts/limits.py on a repository of two packages, and the table of limits of this one."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("limits")


@pytest.fixture
def run(
    limits: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, list[str]]]:
    """Return a function that checks a repository with this table; it returns exit code and printed lines."""
    source = tmp_path / "src" / "lastword"
    for name, text in {
        "errors.py": "A = 1\n",
        "api/__init__.py": '"""Three lines\n\nthat do not count."""\n',
        "api/topic.py": 'B = 2\n\n# no code\nC = """two\n\nthree"""\n',
        "server/inner/node.py": "import os  # one line\nprint(os)\n",
    }.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text, encoding="utf-8")

    def checked(table: str, *options: str) -> tuple[int, list[str]]:
        (tmp_path / "pyproject.toml").write_text(f"[tool.lastword.limits]\n{table}", encoding="utf-8")
        code = limits.main(["--root", str(tmp_path), *options])
        return code, capsys.readouterr().out.splitlines()

    return checked


FITTING = "api = 4\nlastword = 1\nserver = 2\n"


def test_limits_that_do_not_hold(run: Callable[..., tuple[int, list[str]]]) -> None:
    """A package above its limit, a package without a limit, and a limit of no package."""
    assert run(FITTING) == (0, [])
    code, (above, without, absent) = run("api = 3\nlastword = 1\nspark = 9\n")
    assert code == 1
    assert above == (
        "api has 4 code lines, and its limit is 3: make the package smaller, or raise the limit in "
        "[tool.lastword.limits] of pyproject.toml and give the reason in the commit"
    )
    assert without.startswith("server has 2 code lines and no limit")
    assert absent.startswith("spark is no package")


def test_a_module_that_is_too_long(
    limits: ModuleType, run: Callable[..., tuple[int, list[str]]], tmp_path: Path
) -> None:
    topic = tmp_path / "src" / "lastword" / "api" / "topic.py"
    text = topic.read_text(encoding="utf-8")
    topic.write_text(text + "\n" * (limits.MODULE_LINES - text.count("\n")), encoding="utf-8")
    assert run(FITTING) == (0, [])
    topic.write_text(topic.read_text(encoding="utf-8") + "# one line more\n", encoding="utf-8")
    code, (line,) = run(FITTING)
    assert code == 1 and line.startswith("api/topic.py has 901 lines, and a module has at most 900")


def test_the_suggested_table_is_a_tenth_larger(
    limits: ModuleType, run: Callable[..., tuple[int, list[str]]]
) -> None:
    assert list(limits.suggested({"api": 7672, "state": 100})) == ["api = 8440", "state = 110"]
    code, lines = run("", "--suggest")
    assert code == 0 and run("\n".join(lines)) == (0, [])


def test_each_package_has_a_limit() -> None:
    """`make lint` counts the lines; this test only compares the names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = {path.parent.name for path in (ROOT / "src" / "lastword").glob("*/__init__.py")}
    assert set(project["tool"]["lastword"]["limits"]) == packages | {"lastword"}
