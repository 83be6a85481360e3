"""Readers while the front of a log is removed: every record, or an error; a hole never looks like a gap."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lastword.errors import OffsetOutOfRangeError
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.view import PartitionView
from lastword.testing.unsynced import UNSYNCED
from tests.retention.support import Log

SETTINGS = {"cleanup.policy": "delete", "retention.ms": "-1", "file.delete.delay.ms": "1m"}


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = Log(tmp_path, **SETTINGS).fill(20)
    yield log
    log.close()


@pytest.fixture
def view(log: Log) -> PartitionView:
    return PartitionView.load(DirectorySegments(UNSYNCED, str(log.path)))


def test_who_was_not_there_yet_is_told(log: Log, view: PartitionView) -> None:
    reading = view.batches(0)
    seen = [next(reading)[1].base_offset for _ in range(3)]
    log.trim(12)
    with pytest.raises(OffsetOutOfRangeError, match=r"offset 5 is below log start 12 \(trim, ") as caught:
        for _, header, _ in reading:
            seen.append(header.base_offset)
    assert seen == [0, 1, 2, 3, 4]  # the rest of the segment that it was reading
    assert caught.value.offset == 5


def test_who_is_past_it_goes_on(log: Log, view: PartitionView) -> None:
    reading = view.batches(8)
    seen = [next(reading)[1].base_offset for _ in range(4)]
    log.trim(10)
    seen += [header.base_offset for _, header, _ in reading]
    assert seen == list(range(8, 20))


def test_chunks_too(log: Log, view: PartitionView) -> None:
    reading = view.chunks(0, chunk_bytes=200)
    next(reading)
    log.trim(15)
    with pytest.raises(OffsetOutOfRangeError):
        list(reading)
