"""Lookup of one position at a time, warm and cold, with sound indexes and with damaged ones."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from lastword.files import DEFAULT
from lastword.segment import Segment, build_indexes, names
from lastword.segment.stored import SegmentFiles
from tests.fakes.recording import RecordingFiles
from tests.naive.pack import Record, encode_batch
from tests.support.exhaustive import few


def written(directory: str, steps: list[tuple[int, int, int]], interval: int) -> list[tuple[int, int]]:
    """Write batches of (gap before, records, value bytes); return (last offset, position) of each."""
    data, offset, positions = b"", 10, []
    for gap, count, size in steps:
        offset += gap
        records = [Record(offset + n, 5, b"k", b"v" * size, ()) for n in range(count)]
        positions.append((offset + count - 1, len(data)))
        data += encode_batch(records, base_offset=offset, last_offset=offset + count - 1)
        offset += count
    path = Path(directory) / names.segment_file(10, names.LOG)
    path.write_bytes(data)
    build_indexes(DEFAULT, str(path), 10, index_interval_bytes=interval)
    return positions


STEPS = st.lists(
    st.tuples(st.sampled_from([0, 0, 1, 9]), st.integers(1, 4), st.integers(0, 200)), max_size=12
)


@settings(deadline=None, max_examples=few(20))
@given(STEPS, st.sampled_from([0, 0, 150, 500]), st.lists(st.tuples(st.integers(0, 95), st.integers(1, 255))))
@example([(0, 1, 9)] * 6, 0, [(1 * 8 + 7, 4)])
def test_like_a_walk_from_the_first_byte(
    steps: list[tuple[int, int, int]], interval: int, flips: list[tuple[int, int]]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
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
