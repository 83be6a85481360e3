from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import lastword
from lastword.clock import ManualClock
from lastword.server import Server
from lastword.testing.unsynced import UNSYNCED
from tests.server.client import Client

Opened = Callable[..., lastword.LogDir]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    """Open the log of a test. The tests in the folder `bucket` open one in a bucket."""
    return partial(lastword.open, tmp_path / "data", "a", files=UNSYNCED, log_cleaner_enable=False)


@pytest.fixture
def logs(opened: Opened) -> Iterator[lastword.LogDir]:
    with opened() as logs:
        yield logs


@pytest.fixture
def server(logs: lastword.LogDir) -> Iterator[Server]:
    with lastword.serve(logs, "127.0.0.1:0") as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server) as client:
        yield client
