from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import lastword
from lastword.clock import ManualClock
from lastword.server import Server
from lastword.testing.unsynced import UNSYNCED
from tests.server.client import Client


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[lastword.LogDir]:
    with lastword.open(tmp_path / "data", "a", files=UNSYNCED, log_cleaner_enable=False) as logs:
        yield logs


@pytest.fixture
def server(logs: lastword.LogDir) -> Iterator[Server]:
    with lastword.serve(logs, "127.0.0.1:0") as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server) as client:
        yield client
