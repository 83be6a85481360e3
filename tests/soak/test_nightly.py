"""Check that the nightly workflow runs `make nightly`, which includes every longer proof."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
PROOFS = {
    "test",
    "exhaustive",
    "model",
    "crash",
    "damage",
    "odd",
    "variations",
    "kills",
    "differential",
    "soak",
    "pipeline",
    "pipeline-bucket",
    "readers",
    "bucket",
    "bucket-processes",
    "frames",
    "second-opinion",
    "hostile",
    "clients",
    "clusters",
    "kills-server",
    "kills-spark",
    "memory-spark",
    "settings",
    "release-check",
    "bench",
}


def test_nightly_has_every_longer_proof() -> None:
    (line,) = re.findall(r"for proof in (.*); do", MAKEFILE)
    named = {word.strip("'").split()[0] for word in re.findall(r"'[^']*'|\S+", line)}
    assert named == PROOFS
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    assert named <= targets


def test_workflows_call_what_anyone_can_call() -> None:
    workflows = ROOT / ".github" / "workflows"
    scheduled, ordinary = ((workflows / f"{name}.yml").read_text() for name in ("nightly", "ci"))
    assert "schedule:" in scheduled and "run: make nightly\n" in scheduled
    assert "schedule:" not in ordinary and "run: .ci/run\n" in ordinary
    assert (ROOT / ".ci" / "run").is_file()
