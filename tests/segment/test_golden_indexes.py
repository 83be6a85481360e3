"""Kafka's own segments: the entries that are read, and the indexes that are built."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from lastword.files import DEFAULT
from lastword.segment import Segment, names
from lastword.segment.indexes import OffsetIndex, TimeIndex
from lastword.segment.recover import inspect
from lastword.segment.stored import SegmentFiles
from tests.golden.loader import case
from tests.golden.loader import names as case_names

KINDS = (names.INDEX, names.TIME_INDEX)
CASES = case_names()


@pytest.fixture(scope="module", params=CASES)
def stages(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[str, str, Path]]:
    """The stages of a case, which the tests only read."""
    golden = case(request.param)
    root = golden.unpack(tmp_path_factory.mktemp("case"))
    return [(request.param, stage, root / stage) for stage in golden.stages]


def logs(root: Path) -> list[Path]:
    return [p for p in sorted(root.rglob("*.log")) if not p.parent.name.startswith("__")]


def test_headers_positions_and_timestamps(stages: list[tuple[str, str, Path]]) -> None:
    for name, stage, root in stages:
        listed: dict[str, list[dict]] = {}
        for line in case(name).batches(stage):
            if "tail" not in line:
                listed.setdefault(_file(line), []).append(line)
        for path in logs(root):
            inspection = inspect(DEFAULT, str(path.parent), int(path.stem), index_interval_bytes=4096)
            segment = Segment.load(SegmentFiles(DEFAULT, str(path.parent), int(path.stem)))
            segment = segment.ending_at(inspection.size, active=False)
            headers = list(segment.headers())
            expected = listed.get(f"{path.parent.name}/{path.name}", [])
            assert [h.position for h in headers] == [b["position"] for b in expected]
            assert [h.last_offset for h in headers] == [b["lastOffset"] for b in expected]
            if headers:
                assert segment.next_offset == headers[-1].next_offset == inspection.next_offset
                assert (
                    segment.largest_timestamp
                    == max(h.max_timestamp for h in headers)
                    == inspection.largest_timestamp
                )
            for header in headers:
                assert segment.position_of(header.last_offset) == header.position
                assert segment.end_position_of(header.next_offset) == header.end
                first = next(h.position for h in headers if h.max_timestamp >= header.max_timestamp)
                assert segment.position_of_timestamp(header.max_timestamp) == first


def _file(line: dict) -> str:
    return line["file"] if "/" in line["file"] else f"{line['partition']}/{line['file']}"


def test_index_entries(stages: list[tuple[str, str, Path]]) -> None:
    """The entries are those that Kafka's own classes read from its indexes."""
    compared = 0
    for name, stage, root in stages:
        listed: dict[str, list[dict]] = {}
        for line in case(name).indexes(stage):
            if "zeroTail" not in line:
                listed.setdefault(_file(line), []).append(line)
        for path in logs(root):
            base, size = int(path.stem), path.stat().st_size
            data = {e: path.with_suffix(e).read_bytes() for e in KINDS if path.with_suffix(e).exists()}
            for extension in data:
                lines = listed.get(f"{path.parent.name}/{path.stem}{extension}", [])
                if extension == names.INDEX:
                    offsets = OffsetIndex(data[extension], base, size)
                    assert not offsets.damaged
                    assert [(e.offset, e.position) for e in offsets.entries()] == [
                        (line["offset"], line["position"]) for line in lines
                    ]
                else:
                    times = TimeIndex(data[extension], base)
                    assert not times.damaged
                    assert [(e.timestamp, e.offset) for e in times.entries()] == [
                        (line["timestamp"], line["offset"]) for line in lines
                    ]
                compared += len(lines)
            if name.startswith("v2-"):  # built again, the indexes are the bytes that Kafka wrote
                interval = int(case(name).config.get("index.interval.bytes", 4096))
                built = inspect(DEFAULT, str(path.parent), base, index_interval_bytes=interval)
                assert built.damage is None
                assert (built.offset_entries, built.time_entries) == (
                    data[names.INDEX],
                    data[names.TIME_INDEX],
                )
    assert compared


@pytest.mark.parametrize("kind", ["index", "timeindex"])
@pytest.mark.parametrize("name", case_names("v2-*"))
def test_a_damaged_index_never_leads_to_a_wrong_place(kind: str, name: str, tmp_path: Path) -> None:
    """In indexes that are cut, emptied, lost or have a flipped bit, lookups still find the right results."""
    directory = case(name).unpack(tmp_path) / "data" / f"{name}-0"
    index = max(directory.glob(f"*.{kind}"), key=lambda path: path.stat().st_size)
    files = SegmentFiles(DEFAULT, str(directory), int(index.stem))
    data = index.read_bytes()
    batches = list(Segment.load(files).headers())
    offsets = range(batches[0].base_offset, batches[-1].last_offset + 1)
    times = sorted({h.max_timestamp + delta for h in batches for delta in (-1, 0, 1)})

    def found() -> tuple[list[int], list[int | None]]:
        segment = Segment.load(files)
        return (
            [segment.position_of(offset) for offset in offsets],
            [segment.position_of_timestamp(time) for time in times],
        )

    right = (
        [next(h.position for h in batches if h.last_offset >= offset) for offset in offsets],
        [next((h.position for h in batches if h.max_timestamp >= time), None) for time in times],
    )
    assert found() == right
    copies = [data[:cut] for cut in range(len(data))]
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        copies.append(bytes(flipped))
    for copy in random.Random(name).sample(copies, min(len(copies), 40)):
        index.write_bytes(copy)
        assert found() == right, copy.hex()
    index.unlink()
    assert found() == right
