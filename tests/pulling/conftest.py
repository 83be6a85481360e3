from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import lastword
from lastword.pulling import leader
from lastword.server import Server
from lastword.testing.unsynced import UNSYNCED


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader, "WAIT_MS", 20)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[lastword.LogDir]:
    """The log directory that is served as the cluster."""
    with lastword.open(tmp_path / "source", "a", files=UNSYNCED, log_cleaner_enable=False) as logs:
        yield logs


@pytest.fixture
def cluster(source: lastword.LogDir) -> Iterator[Server]:
    with lastword.serve(source, "127.0.0.1:0") as server:
        yield server


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The directory that topics are pulled to."""
    return tmp_path / "copy"
