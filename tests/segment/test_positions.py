"""Lookup of one position at a time, warm and cold, with sound indexes and with damaged ones."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lastword.files import DEFAULT
from lastword.segment import Segment, build_indexes, indexes, names
from lastword.segment import segment as segment_module
from lastword.segment.stored import SegmentFiles
from tests.fakes.recording import RecordingFiles
from tests.naive.pack import Record, encode_batch
from tests.support.exhaustive import few
from tests.support.threads import together


def written(
    directory: str, steps: list[tuple[int, int, int]], interval: int, times: Sequence[int] = ()
) -> list[tuple[int, int]]:
    """Write batches of (gap before, records, value bytes); return (last offset, position) of each.

    `times`: the timestamp of each batch; else 5.
    """
    data, offset, positions = b"", 10, []
    for (gap, count, size), time in zip(steps, times or [5] * len(steps), strict=True):
        offset += gap
        records = [Record(offset + n, time, b"k", b"v" * size, ()) for n in range(count)]
        positions.append((offset + count - 1, len(data)))
        data += encode_batch(records, base_offset=offset, last_offset=offset + count - 1)
        offset += count
    path = Path(directory) / names.segment_file(10, names.LOG)
    path.write_bytes(data)
    build_indexes(DEFAULT, str(path), 10, index_interval_bytes=interval)
    return positions


def search_files(patch: pytest.MonkeyPatch) -> None:
    """Let every index be searched in its file, and none be loaded."""
    patch.setattr(segment_module, "SEARCHED_BYTES", 0)
    patch.setattr(segment_module, "SEARCHES_OF_LOAD", 0.001)


STEPS = st.lists(
    st.tuples(st.sampled_from([0, 0, 1, 9]), st.integers(1, 4), st.integers(0, 200)), max_size=12
)


@settings(deadline=None, max_examples=few(20))
@given(
    STEPS,
    st.sampled_from([0, 0, 150, 500]),
    st.lists(st.tuples(st.integers(0, 95), st.integers(1, 255))),
    st.booleans(),
)
@example([(0, 1, 9)] * 6, 0, [(1 * 8 + 7, 4)], False)
@example([(0, 1, 9)] * 6, 0, [(2 * 8 + 3, 4)], True)
@example([(0, 4, 9)] * 3, 0, [(1 * 8 + 3, 11 ^ 9)], False)  # within its batch, [8, 12)
def test_like_a_walk_from_the_first_byte(
    steps: list[tuple[int, int, int]], interval: int, flips: list[tuple[int, int]], in_file: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as directory:
        if in_file:
            search_files(patch)
        batches = written(directory, steps, interval)
        path = Path(directory) / names.segment_file(10, names.INDEX)
        damaged = bytearray(path.read_bytes())
        for at, mask in flips[:2]:
            if at < len(damaged):
                damaged[at] ^= mask
        path.write_bytes(damaged)
        segment = Segment.load(SegmentFiles(DEFAULT, directory, 10))
        offsets = range(8, (batches[-1][0] if batches else 10) + 3)
        for _ in range(2):
            for offset in offsets:
                walked = next((at for last, at in batches if last >= offset), segment.size)
                assert segment.position_of(offset) == walked
                below = [last + 1 for last, _ in batches if last < offset]
                assert segment.end_before(offset) == (below or [10])[-1]
                assert segment.indexed_position(walked) in (0, *(at for _, at in batches))
        assert (segment._offset_index() is None) == (in_file and segment._offset_search is not None)


@settings(deadline=None, max_examples=few(20))
@given(
    st.lists(st.integers(0, 60), unique=True, max_size=12),
    st.lists(st.tuples(st.integers(0, 143), st.integers(1, 255)), max_size=2),
    st.booleans(),
)
@example([3, 9, 4, 12, 20, 21], [], True)
@example([3, 9, 4, 12, 20, 21], [(1 * 12 + 11, 8)], True)
def test_a_time_is_found_as_by_a_walk(times: list[int], flips: list[tuple[int, int]], in_file: bool) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as directory:
        if in_file:
            search_files(patch)
        batches = written(directory, [(0, 2, 50)] * len(times), 0, times)
        path = Path(directory) / names.segment_file(10, names.TIME_INDEX)
        damaged = bytearray(path.read_bytes())
        for at, mask in flips:
            if at < len(damaged):
                damaged[at] ^= mask
        path.write_bytes(damaged)
        segment = Segment.load(SegmentFiles(DEFAULT, directory, 10))
        for time in range(63):
            walked = [at for (_, at), of_batch in zip(batches, times, strict=True) if of_batch >= time]
            assert segment.position_of_timestamp(time) == next(iter(walked), None)
        assert segment.largest_timestamp == max(times, default=-1)
        assert (segment._time_index() is None) == in_file


def test_a_warm_lookup_reads_nothing(tmp_path: Path) -> None:
    batches = written(str(tmp_path), [(0, 2, 50)] * 20, 0)
    files = RecordingFiles(DEFAULT)
    segment = Segment.load(SegmentFiles(files, str(tmp_path), 10))
    for _, position in batches:
        segment.position_of(10 + position // 200)
    positions = [segment.position_of(last) for last, _ in batches]
    before = len(files.calls)
    assert [segment.position_of(last) for last, _ in batches[2:]] == positions[2:]
    assert [segment.position_of(last - 1) for last, _ in batches[2:]] == positions[2:]
    assert len(files.calls) == before
    assert positions == [position for _, position in batches]


def test_an_index_is_loaded_after_as_many_searches_as_that_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_module, "SEARCHED_BYTES", 0)
    monkeypatch.setattr(segment_module, "SEARCHES_OF_LOAD", 30)
    batches = written(str(tmp_path), [(0, 1, 50)] * 20, 0)  # 19 entries of 8 bytes: 5 searches
    files = RecordingFiles(DEFAULT)
    segment = Segment.load(SegmentFiles(files, str(tmp_path), 10))
    for number, (last, position) in enumerate(batches[1:]):
        assert segment.offset_search.lookup(last).position == position
        assert (segment._offset_index() is None) == (number < 5)
    before = len(files.calls)
    assert [segment.offset_search.lookup(last).position for last, _ in batches[1:]]
    assert len(files.calls) == before


def test_threads_beside_dropped_indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each lookup beside others that load another index and drop this one."""
    monkeypatch.setattr(segment_module, "SEARCHED_BYTES", 0)
    monkeypatch.setattr(segment_module, "SEARCHES_OF_LOAD", 30)
    monkeypatch.setattr(indexes.LOADED, "limit_bytes", 1000)
    batches, segments = [], []
    for number in range(3):
        directory = tmp_path / str(number)
        directory.mkdir()
        batches = written(str(directory), [(0, 2, 50)] * 20, 0)
        segments.append(Segment.load(SegmentFiles(DEFAULT, str(directory), 10)))

    def look_up(first: int) -> None:
        for turn in range(20):
            for last, position in batches:
                segment = segments[(first + turn) % 3]
                assert segment.position_of(last) == position
                assert segment.position_of(last - 1) == position

    together(*[lambda first=first: look_up(first) for first in range(4)])
    assert indexes.LOADED.bytes <= 1000
