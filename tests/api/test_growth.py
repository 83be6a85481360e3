"""Memory that grows with the log: a process gets keys, reads, follows, appends, for ever.

A task is done for one segment of a log after another. When it has met HALF segments, each further one may
take SEGMENT_BYTES: its names, its facts, an open file. What has an entry for each batch is larger here. The
limit of loaded indexes is so small that it is reached in the first half.
"""

from __future__ import annotations

import gc
import shutil
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

import lastword
from lastword.clock import ManualClock
from lastword.segment import segment as segment_module
from lastword.segment.indexes import IndexBuilder, LoadedIndexes
from lastword.testing.unsynced import UNSYNCED
from tests.support.exhaustive import stride

HALF = 8 // stride(2)
BATCHES = 300
"""Batches of a segment, each with one record and an entry of both indexes: 20 bytes, and 8 for its end."""
SEGMENT_BYTES = 2400
LIMIT_BYTES = 2 * 28 * BATCHES
SERIALIZERS = lastword.serializers("str", "json")
NOW = 1_700_000_000_000


class Task:
    """An open log."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock(NOW)
        self.logs = lastword.open(path, "a", files=UNSYNCED, clock=self.clock, log_cleaner_enable=False)
        settings = {"cleanup_policy": "compact", "index_interval_bytes": 0, "serializers": SERIALIZERS}
        self.topic = self.logs.topic("t") if "t" in self.logs else self.logs.create_topic("t", **settings)
        self.log = self.logs.dirs.log("t", 0)
        self.clock.advance(self.log.log_end)

    def append_segment(self) -> None:
        segment = self.log.log_end // BATCHES
        for batch in range(BATCHES):
            self.clock.advance(1)
            self.topic.append(key(segment, batch), segment)
        self.log.roll()


def key(segment: int, batch: int) -> str:
    return f"k{segment % (2 * HALF)}-{batch % 10}"


def appends(task: Task) -> Iterator[None]:
    while True:
        task.append_segment()
        assert task.topic.record_at(task.log.log_end - 7) is not None
        yield


def gets(task: Task) -> Iterator[None]:
    for segment in range(2 * HALF):
        for batch in range(10):
            assert task.topic.get(key(segment, batch)) == segment
        yield


def gets_many(task: Task) -> Iterator[None]:
    for segment in range(2 * HALF):
        keys = [key(segment, batch) for batch in range(10)]
        assert task.topic.get_many(keys) == dict.fromkeys(keys, segment)
        yield


def finds_times(task: Task) -> Iterator[None]:
    for segment in range(2 * HALF):
        for offset in range(segment * BATCHES, (segment + 1) * BATCHES, 50):
            assert task.log.offset_at(NOW + 1 + offset) == offset
        yield


def reads_batches(task: Task) -> Iterator[None]:
    for segment in range(2 * HALF):
        for offset in range(segment * BATCHES, (segment + 1) * BATCHES, 50):
            _, header, _ = next(iter(task.log.batches(offset)))
            assert header.base_offset == offset
        yield


def follows(task: Task) -> Iterator[None]:
    with lastword.open(task.path, "r", files=UNSYNCED, clock=task.clock) as reading:
        for record in reading.topic("t").read("earliest", follow=True):
            if record.offset % BATCHES == BATCHES - 1:
                task.append_segment()
                yield


TASKS = [
    pytest.param(appends, marks=pytest.mark.slow),
    gets,
    gets_many,
    finds_times,
    reads_batches,
    pytest.param(follows, marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a log of 2 * HALF closed segments, with its key index."""
    path = tmp_path_factory.mktemp("written") / "d"
    task = Task(path)
    for _ in range(2 * HALF):
        task.append_segment()
    task.topic.get("")
    task.logs.close()
    return path


@pytest.fixture
def opened(tmp_path: Path, written: Path) -> Iterator[Task]:
    task = Task(Path(shutil.copytree(written, tmp_path / "d")))
    yield task
    task.logs.close()


def growth(steps: Iterator[None]) -> int:
    """Return the bytes of memory that each step takes, after HALF of them."""
    tracemalloc.start()
    try:
        for _ in range(HALF):
            next(steps)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(HALF):
            next(steps)
        gc.collect()
        return (tracemalloc.get_traced_memory()[0] - before) // HALF
    finally:
        tracemalloc.stop()


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> LoadedIndexes:
    few = LoadedIndexes(LIMIT_BYTES)
    monkeypatch.setattr(segment_module, "LOADED", few)
    return few


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.__name__)
def test_a_further_segment_takes_little_memory(opened: Task, task, loaded: LoadedIndexes) -> None:
    assert growth(task(opened)) < SEGMENT_BYTES
    assert loaded.bytes <= LIMIT_BYTES


@pytest.mark.parametrize("task", [gets, finds_times, reads_batches], ids=lambda task: task.__name__)
def test_the_same_if_files_are_searched(
    opened: Task, task, loaded: LoadedIndexes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_module, "SEARCHED_BYTES", 0)
    monkeypatch.setattr(segment_module, "SEARCHES_OF_LOAD", 200)  # bytes, so 12 searches come first
    assert growth(task(opened)) < SEGMENT_BYTES
    assert loaded.bytes <= LIMIT_BYTES


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.__name__)
def test_indexes_that_are_kept_are_found(
    opened: Task, task, loaded: LoadedIndexes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded, "keep", lambda index: lambda: index)
    assert growth(task(opened)) > SEGMENT_BYTES


def entry_bytes(task: Task) -> float:
    """Return the bytes of memory that each further batch of the active segment takes."""
    tracemalloc.start()
    try:
        for _ in range(2):
            before = tracemalloc.get_traced_memory()[0]
            for batch in range(8 * BATCHES):
                task.clock.advance(1)
                task.topic.append(key(0, batch), 0)
        return (tracemalloc.get_traced_memory()[0] - before) / (8 * BATCHES)
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_a_further_batch_takes_its_two_entries(opened: Task) -> None:
    assert 15 < entry_bytes(opened) < 30


@pytest.mark.slow
def test_entries_that_are_kept_twice_are_found(opened: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IndexBuilder, "drop_entries", lambda self: None)
    assert entry_bytes(opened) > 30
