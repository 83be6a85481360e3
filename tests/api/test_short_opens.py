"""A directory that is open for a moment loads few modules, and the background thread does not clean it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import lastword


def test_a_new_topic_does_not_wake_the_background(tmp_path: Path) -> None:
    """The background thread started a cleaning before its first back-off, and removed new records."""
    for number in range(8):
        with lastword.open(tmp_path / str(number), "a") as logs:
            topic = logs.create_topic("t", cleanup_policy="compact")
            for n in range(6):
                topic.append(b"k", b"%d" % n)
            logs.dirs.log("t", 0).roll()
            topic.append(b"k", b"newest")
        with lastword.open(tmp_path / str(number)) as logs:
            assert sum(1 for _ in logs.topic("t").read()) == 7


NEEDED_LATER = (
    "lastword.accounts",
    "lastword.api.batches",
    "lastword.api.reader",
    "lastword.api.reader",
    "lastword.config.keywords",
    "lastword.kernels",
    "lastword.resolve",
    "lastword.retention",
    "lastword.state",
    "lastword.tools",
    "numpy",
    "pyarrow",
    "tomlkit",
)
"""Modules that the first append, read or cleaning loads, not the opening."""
PROGRAM = """
import json, sys
import lastword
with lastword.open(sys.argv[1], "a", log_cleaner_enable=sys.argv[2] == "True") as logs:
    logs.create_topic("t", cleanup_policy="compact")
    print(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.parametrize(("cleaner", "most"), [(False, 86), (True, 100)])
def test_the_first_open_loads_few_modules(tmp_path: Path, cleaner: bool, most: int) -> None:
    """A module takes about 1 ms, so the count stands for the time, which a test cannot measure well."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "data"), str(cleaner)],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = json.loads(done.stdout)
    assert [name for name in NEEDED_LATER if name in loaded] == []
    assert any(name.startswith("lastword.cleaner") for name in loaded) == cleaner
    assert len([name for name in loaded if name.startswith("lastword")]) <= most
    assert len(loaded) <= most + 130
