"""The documentation site is built without a warning, and its reference has every public name."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lastword

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_site(tmp_path):
    pytest.importorskip("mkdocs")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stdout + done.stderr
    page = (tmp_path / "reference.html").read_text(encoding="utf-8")
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
