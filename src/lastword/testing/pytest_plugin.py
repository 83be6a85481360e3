"""The pytest fixtures `kafka_broker` and `logs`. pytest loads this module in each run: it imports little."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lastword.api.logs import LogDir
    from lastword.testing.broker import Broker


@pytest.fixture
def kafka_broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Run a `lastword.testing.Broker` for one test, with a log, a port and a cluster id of its own.

    A parameter of the fixture is a dict of the broker's options.
    """
    from lastword.testing.broker import Broker

    with Broker(tmp_path / "kafka", **getattr(request, "param", {})) as broker:
        yield broker


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[LogDir]:
    """Open an empty `LogDir` in mode "a"."""
    import lastword

    with lastword.open(tmp_path / "logs", "a") as opened:
        yield opened
