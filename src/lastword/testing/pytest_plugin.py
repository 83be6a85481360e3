"""The pytest fixture `logs`: an empty log directory, open to append, closed after the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lastword.api.logs import LogDir


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[LogDir]:
    """Open an empty `LogDir` in mode "a"."""
    import lastword

    with lastword.open(tmp_path / "logs", "a") as opened:
        yield opened
