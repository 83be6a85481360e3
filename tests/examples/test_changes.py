"""The pipeline of changes: a server over a bucket that is killed twice, and a table that Spark keeps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("confluent_kafka")
pytest.importorskip("moto")

PROGRAM = Path(__file__).parents[2] / "examples" / "changes_pipeline.py"
pytestmark = [pytest.mark.spark, pytest.mark.beside, pytest.mark.usefixtures("short_lived_jvms")]


def test_changes_reach_a_table_though_the_server_is_killed_twice(tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    lines = [line for line in done.stdout.splitlines() if line.endswith("the table is the same")]
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(lines) == 3 and sum("was killed" in line for line in lines) == 2
