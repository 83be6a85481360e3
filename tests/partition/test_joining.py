"""Small segments of a log that is not compacted are joined: the same batches, in bounded numbers of files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from lastword.config import TopicConfig
from lastword.errors import CorruptBatchError
from lastword.partition import PartitionLog, PartitionView, joining
from lastword.partition.joining import FILES_FREE, RETAINED_SHARE, choose, join, most_bytes
from lastword.segment.indexes import decode_aborted
from lastword.testing.unsynced import UNSYNCED
from tests.partition.logs import NOW, make, opened
from tests.partition.test_producers import of, open_again
from tests.support.damage import flip
from tests.support.exhaustive import EXHAUSTIVE
from tests.transactions import end_transaction

DELETE = TopicConfig(cleanup_policy="delete", index_interval_bytes=300)
HOUR_MS, DAY_MS = 3_600_000, 86_400_000


def stored(log: PartitionLog) -> list[bytes]:
    return [bytes(data) for _, _, data in log.batches(log.log_start)]


def aborted(log: PartitionLog) -> list[tuple[int, ...]]:
    paths = sorted(Path(log.directory).glob("*.txnindex"))
    return [tuple(entry) for path in paths for entry in decode_aborted(path.read_bytes(), path.name)]


def filled(path: Path, segments: int = 70) -> PartitionLog:
    """Return a log of segments with plain batches, and committed and aborted transactions."""
    log, _ = opened(make(path), config=DELETE, files=UNSYNCED)
    sequences = [0, 0]
    for number in range(segments):
        kind = number % 3
        if kind < 2:
            log.append_batch(of(7 + kind, sequences[kind], 2, transactional=True, timestamp=NOW + number))
            sequences[kind] += 2
        log.append_batch(of(-1, -1, 3, timestamp=NOW + number))
        if number % 9 == 7:
            end_transaction(log, 7, 0, commit=True)
        if number % 9 == 8:
            end_transaction(log, 8, 0, commit=False)
        log.roll()
    return log


@pytest.mark.parametrize("copy_bytes", [1, 400, 1 << 20])
def test_a_joined_segment_has_the_batches_and_indexes_of_its_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copy_bytes: int
) -> None:
    monkeypatch.setattr(joining, "COPY_BYTES", copy_bytes)
    log = filled(tmp_path)
    before, entries, producers = stored(log), aborted(log), log.producers
    stable, times = log.stable_offset, [log.offset_at(NOW + number) for number in range(0, 75, 7)]
    assert len(log.segments) == 71 and len(entries) == 7
    assert (join(log), len(log.segments), join(log)) == (64, 8, 0)
    for again in (log, open_again(log, clean=True), open_again(log)):
        log = again
        assert (stored(log), aborted(log), log.stable_offset) == (before, entries, stable)
        assert [log.offset_at(NOW + number) for number in range(0, 75, 7)] == times
        assert [producer.producer_id for producer in log.producers] == [p.producer_id for p in producers]
    view = PartitionView.load(log.store)
    for offset in range(0, log.log_end, 11):
        header = next(iter(view.batches(offset)))[1]
        assert header.base_offset <= offset <= header.last_offset
    assert not list(Path(log.directory, "lastword").glob("rewrite*"))


def test_a_damaged_batch_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    log = filled(tmp_path)
    path = Path(log.segments[5].file)
    flip(path, -1)
    bases = [segment.base_offset for segment in log.segments]
    with pytest.raises(CorruptBatchError, match=path.name):
        join(log)
    assert [segment.base_offset for segment in log.segments] == bases
    assert not list(Path(log.directory, "lastword").glob("rewrite*"))


# ---------------------------------------------------------------- the choice


@dataclass(slots=True)
class Facts:
    base_offset: int
    size: int
    known_timestamp: int
    mtime_ms: int = 0
    largest_timestamp: int = -1


def run(
    config: TopicConfig, sizes: int, every_ms: int, days: float, check_ms: int = 15_000
) -> tuple[int, float, float]:
    """Append a segment every `every_ms`, join, and remove what retention removes.

    Returns:
        The most segments after a check, the written bytes for each appended one, and the largest share of
        `retention.ms` by which a record stayed longer.
    """
    segments: list[Facts] = [Facts(0, 0, 0)]
    firsts = {0: 0}
    most, written, late, at, due, appended = 0, 0, 0.0, 0, check_ms, 0
    while at < days * DAY_MS:
        last = segments[-1]
        last.size, last.known_timestamp = sizes, at
        firsts[last.base_offset] = at
        segments.append(Facts(last.base_offset + 1, 0, at))
        appended += sizes
        at += every_ms
        if at >= due:
            due += check_ms
            while (chosen := choose(segments, config, 6e6)) is not None:
                first, end = chosen
                size = sum(segment.size for segment in segments[first:end])
                newest = segments[end - 1].known_timestamp
                segments[first:end] = [Facts(segments[first].base_offset, size, newest)]
                written += size
            most = max(most, len(segments))
            while len(segments) > 1 and segments[0].known_timestamp < at - config.retention_ms:
                age = at - firsts[segments.pop(0).base_offset]
                late = max(late, age / config.retention_ms - 1)
    return most, written / appended, late


@pytest.mark.slow
@pytest.mark.parametrize(
    ("days", "retention_ms", "sizes"),
    [(7.0 if EXHAUSTIVE else 0.3, 7 * DAY_MS, 2000), (0.2, HOUR_MS, 200_000)],
)
def test_four_commits_a_second_leave_few_segments(days: float, retention_ms: int, sizes: int) -> None:
    config = TopicConfig(cleanup_policy="delete", retention_ms=retention_ms)
    most, amplification, late = run(config, sizes, 250, days)
    kept_ms = min(days * DAY_MS, retention_ms)
    full = kept_ms / 250 * sizes / most_bytes(config)
    assert most <= FILES_FREE + 3 * full + 2 * RETAINED_SHARE
    assert amplification < 6
    assert late <= 1 / RETAINED_SHARE + 0.01


@pytest.mark.parametrize(
    ("setting", "first", "end"),
    [
        ({}, 1, 65),
        ({"segment_bytes": 3200}, 1, 33),
        ({"retention_bytes": 8 * 1600}, 1, 17),
        ({"segment_ms": 4000}, 1, 5),
        ({"retention_ms": 8 * 2000}, 1, 3),
        ({"retention_ms": 8 * 1500}, None, None),
        ({"retention_bytes": 8 * 150}, None, None),
        ({"cleanup_policy": "compact", "retention_ms": 8}, 1, 65),
    ],
)
def test_a_run_has_the_limits_of_rolling_and_of_retention(
    setting: dict[str, object], first: int | None, end: int | None
) -> None:
    config = TopicConfig(**({"cleanup_policy": "delete", "retention_ms": -1} | setting))  # type: ignore[arg-type]
    segments = [Facts(number, 100, 1000 * number) for number in range(200)]
    assert choose(segments, config, 6e6) == (None if first is None else (first, end))
    assert choose(segments[:65][:64], config, 6e6) is None
