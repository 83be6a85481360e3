"""Log directories for the tests of the public API."""

import hashlib
from pathlib import Path

import pytest

import lastword
from lastword.clock import ManualClock

BEGIN_MS = 1_795_168_800_000  # 2026-11-20 10:00:00Z


@pytest.fixture
def clock():
    return ManualClock(BEGIN_MS)


@pytest.fixture
def logs(tmp_path, clock):
    with lastword.open(tmp_path / "data", "a", clock=clock) as opened:
        yield opened


def tree_digest(path):
    """Return a digest of the names, kinds and contents of everything below a path, which may not exist."""
    digest = hashlib.sha256()
    for one in sorted(Path(path).rglob("*")):
        digest.update(str(one.relative_to(path)).encode() + (b"/" if one.is_dir() else b""))
        if one.is_file():
            digest.update(hashlib.sha256(one.read_bytes()).digest())
    return digest.hexdigest()
