"""A roll that fails after the old segment was finished: the log continues in that segment."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastword.errors import StorageError
from lastword.files import DEFAULT
from tests.fakes import RecordingFiles
from tests.partition.logs import fill, indexes_fit, make, opened


def test_the_last_time_entry_is_taken_back(tmp_path: Path) -> None:
    files = RecordingFiles(DEFAULT)
    log, _ = opened(make(tmp_path), files=files)
    fill(log, 3)
    files.fail = lambda call: StorageError("planted", errno=13) if call.name == "create" else None
    with pytest.raises(StorageError):
        log.roll()
    files.fail = None
    assert len(log.segments) == 1
    fill(log, 2)
    assert indexes_fit(log)
    log.roll()
    fill(log, 1)
    assert len(log.segments) == 2 and indexes_fit(log)
    log.abandon()
