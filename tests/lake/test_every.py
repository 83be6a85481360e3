"""Check `lastword export --every` as a process: its lines, an error that passes, and two ways to end it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lastword
from tests.lake.histories import rows_of

pytestmark = pytest.mark.slow


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Any]:
    with lastword.open(tmp_path / "data", "a", log_cleaner_enable=False) as logs:
        yield logs.create_topic(
            "users", cleanup_policy="compact", key_serializer="str", value_serializer="str"
        )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_exports_follow_a_writer_until_a_signal(data: Any, tmp_path: Path, number: int, code: int) -> None:
    data.append("a", "1")
    command = [sys.executable, "-m", "lastword", "export", str(tmp_path / "data"), "users"]
    command += ["--to", f"delta:{tmp_path}/table", "--every", "50ms", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        data.append("b", "2")
        data.delete("a")
        second = json.loads(process.stdout.readline())
        while second["end_offsets"] != {"0": 3}:  # an export may come between the two changes
            second = json.loads(process.stdout.readline())
        process.send_signal(number)
        summary = json.loads(process.stdout.read())
        assert process.wait() == code
    assert (first["type"], first["version"]) == ("exported", 0)
    assert summary["exports"] == second["version"] + 1 and summary["failed"] == 0
    assert list(rows_of(str(tmp_path / "table")).values()) == [("b", "2")]
