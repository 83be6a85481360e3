"""The examples with a Kafka client, and the tests that docs/testing.md prints."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from tests.testing.test_plugin import ROOT, run

pytest.importorskip("confluent_kafka")

PLUGIN = ("-p", "lastword.testing.pytest_plugin")  # an installed lastword loads it by itself


def run_pytest(*arguments: str, cwd: Path) -> str:
    return run("-m", "pytest", "-q", "-p", "no:cacheprovider", *PLUGIN, *arguments, cwd=cwd)


def printed(page: str) -> str:
    """Return the Python blocks of a page that have tests, as one program."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)
    return "\n\n".join(block for block in blocks if "def test_" in block)


@pytest.mark.slow
def test_the_printed_tests_pass(tmp_path: Path) -> None:
    pytest.importorskip("aiokafka")
    (tmp_path / "test_page.py").write_text(printed("docs/testing.md"))
    assert "8 passed" in run_pytest(".", cwd=tmp_path)


@pytest.mark.slow
def test_a_consumer_is_tested_with_the_fixture() -> None:
    assert "5 passed" in run_pytest(cwd=ROOT / "examples" / "consumer")


@pytest.mark.slow
def test_change_events_restore_their_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "change_events.py"))["main"](str(tmp_path))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and all(line.endswith("the table from them is the same") for line in lines)


@pytest.mark.slow
def test_a_killed_worker_restores_its_table_from_the_changelog(tmp_path: Path) -> None:
    assert runpy.run_path(str(ROOT / "examples" / "table.py"))["main"](str(tmp_path))
