"""The tour's walks state how many modules a call runs through; a script counts them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {
    "append to disk": "3-partition.md",
    "one cleaning": "6-cleaning.md",
    "restore": "7-directory.md",
}


@pytest.fixture(scope="module")
def counted() -> dict[str, list[str]]:
    script = ROOT / "scripts" / "walks.py"
    done = subprocess.run([sys.executable, script, "--json"], capture_output=True, text=True, check=True)
    return {name: walk["modules"] for name, walk in json.loads(done.stdout).items()}


@pytest.mark.parametrize("walk", PAGES)
def test_a_walk_has_the_modules_that_the_tour_says(walk: str, counted: dict[str, list[str]]) -> None:
    """The call runs through as many modules as stated, and every file that the walk links."""
    text = (ROOT / "docs" / "tour" / PAGES[walk]).read_text(encoding="utf-8")
    section = text.partition(f"## Walk: {walk}\n")[2].partition("\n## ")[0]
    stated = re.search(r"runs through (\d+) modules", section)
    assert stated is not None
    assert len(counted[walk]) == int(stated[1]), counted[walk]
    linked = re.findall(r"src/lastword/([\w/]+)\.py\)", section)
    assert linked and not {name.replace("/", ".") for name in linked} - set(counted[walk])
