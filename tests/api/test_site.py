"""The documentation site is built without a warning, and its reference has every public name."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lastword
from lastword.cli.main import CHANGE, INSPECT, SET_UP
from tests.support.exhaustive import only_exhaustive

ROOT = Path(__file__).parents[2]


def test_links_of_a_page_of_the_site(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    adapted = importlib.import_module("site_pages").adapted
    picture = "![Picture 1](state-1.svg)"
    assert adapted(picture, "notebooks/state.md") == picture
    assert (
        adapted("[a](docs/kafka.md#clean) [b](src/lastword/wire.py)", "index.md") == "[a](kafka.md#clean) b"
    )


@pytest.mark.slow
@only_exhaustive
def test_the_site(tmp_path):
    pytest.importorskip("mkdocs")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={
            **os.environ,
            "NO_MKDOCS_2_WARNING": "1",
            "SITE_NOTEBOOKS": "",
            "SITE_REPOSITORY": "https://host.example/owner/name",
            "SITE_SEPARATE_SIGNATURES": "false",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stdout + done.stderr
    assert "pre-wrap" in (tmp_path / "site.css").read_text(encoding="utf-8"), "no line of code is cut off"
    home = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "https://host.example/owner/name/edit/main/README.md" in home
    assert 'scheme="slate"' in home and "Switch to dark" in home
    sources = re.findall(r'(?:src|href)="([^"#]+)"', home)
    assert [s for s in sources if "://" in s and "host.example" not in s and "squidfunk" not in s] == []
    assert "offline-search.js" in sources and (tmp_path / "offline-search.js").exists()
    assert (tmp_path / "search" / "search_index.js").exists(), "the search works from a disk"
    entries = json.loads((tmp_path / "search" / "search_index.json").read_text(encoding="utf-8"))["docs"]
    boosts = {entry["location"]: entry.get("boost", 1) for entry in entries}
    assert boosts["kafka.html"] > boosts["reliability.html"] > boosts["formats/lease.html"]
    assert boosts["not-shrinking.html"] > boosts["reference/values.html"]
    commands = (tmp_path / "commands.html").read_text(encoding="utf-8")
    for names in (INSPECT, CHANGE, SET_UP):
        for name in names:
            assert f'id="{name}"' in commands and f"lastword {name} " in commands, name
    pages = [tmp_path / "reference.html", *(tmp_path / "reference").glob("*.html")]
    assert max(page.stat().st_size for page in tmp_path.rglob("*.html")) < 300_000
    page = "".join(page.read_text(encoding="utf-8") for page in pages)
    for name in ("state", "spark"):
        assert "lastword" in (tmp_path / "notebooks" / f"{name}.html").read_text(encoding="utf-8")
    anchors = set(re.findall(r'id="([\w.]+)"', page))
    for name in lastword.__all__:
        if name not in ("metrics", "spark"):
            assert f"lastword.{name}" in anchors, name
    for name in (
        "Clock.advance",
        "LogBuilder.put",
    ):
        assert f"lastword.testing.{name}" in anchors, name
    for name in ("State.incr", "State.change", "Reader.close", "LogDir.state", "LogDir.clean", "Topic.lease"):
        assert f"lastword.{name}" in anchors, name
    assert "lastword.metrics.register" in anchors and " at 0x" not in page
    for heading in ("session", "clean", "audit", "restore"):
        assert re.search(rf'id="lastword\.spark\.[\w.]*{heading}"', page), heading
