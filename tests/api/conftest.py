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


class Busy(ManualClock):
    """A clock that runs one action in each sleep."""

    def __init__(self, now_ms):
        super().__init__(now_ms)
        self.todo = []
        self.sleeps = []

    def sleep(self, seconds):
        self.sleeps.append(seconds)
        super().sleep(seconds)
        if self.todo:
            self.todo.pop(0)()


def tree_digest(path):
    """Return a digest of the names, kinds and contents of everything below a path, which may not exist."""
    digest = hashlib.sha256()
    for entry in sorted(Path(path).rglob("*")):
        digest.update(str(entry.relative_to(path)).encode() + (b"/" if entry.is_dir() else b""))
        if entry.is_file():
            digest.update(hashlib.sha256(entry.read_bytes()).digest())
    return digest.hexdigest()
