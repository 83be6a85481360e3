"""Every directory that Kafka wrote, of all magics, read as users read it, under both isolation levels.

The lists of a case were read with Kafka's own classes. The aborted transactions are taken from the listed
entries of its transaction indexes; if none is open, from the places of the markers.
"""

from __future__ import annotations

import random
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.clock import ManualClock
from lastword.errors import DataError
from lastword.files import DEFAULT
from lastword.partition import scan
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.moment import Range
from lastword.partition.transactions import Decisions
from lastword.partition.view import PartitionView
from lastword.resolve import resolve
from lastword.state.newest import _newest as newest_of_a_view
from lastword.state.newest import newest
from lastword.tools.dump import Batch, dump
from lastword.tools.findings import Problem
from tests.formats.logs import headers
from tests.golden import loader
from tests.support.exhaustive import few, stride

pytestmark = pytest.mark.slow  # every case that Kafka wrote; `make check` has a minute

CASES = [pytest.param(n, marks=pytest.mark.slow) if n == "v2-big" else n for n in loader.names()]
TRANSACTIONAL = loader.names("tx-*")
LEGACY = ["v0-none", "v0-gzip", "v0-lz4", "v1-snappy", "v1-logappend", "upgrade-none", "upgrade-one-segment"]
MAP_BYTES = 1 << 16
TYPES = {"CreateTime": "create", "LogAppendTime": "append", "NoTimestampType": "none"}
ISOLATIONS = ("read_committed", "read_uncommitted")
MAGIC_2 = {
    "producerId": "producer_id",
    "producerEpoch": "producer_epoch",
    "baseSequence": "base_sequence",
    "partitionLeaderEpoch": "leader_epoch",
}
"""Fields that only batches of magic 2 have: Kafka's names and those of `dump`."""

Line = dict[str, Any]


class Partition:
    """The records that one partition of a stage must show."""

    def __init__(self, lines: list[Line], indexes: list[Line]) -> None:
        self.lines = lines
        aborted = [line for line in indexes if line["file"].endswith(".txnindex") and "producerId" in line]
        self.aborted = [(a["producerId"], a["firstOffset"], a["lastOffset"]) for a in aborted]
        open_since: dict[int, int] = {}
        for line in lines:
            if line.get("controlType") in ("ABORT", "COMMIT"):
                open_since.pop(line["producerId"], None)
            elif line["isTransactional"] and not line["isControl"]:
                open_since.setdefault(line["producerId"], line["offset"])
        self.open_since = open_since
        self.stable = min(open_since.values(), default=1 << 62)

    def shown(self, isolation: str) -> list[Line]:
        data = [line for line in self.lines if not line["isControl"]]
        if isolation == "read_uncommitted":
            return data
        return [line for line in data if line["offset"] < self.stable and not self._is_aborted(line)]

    def committed(self) -> list[Line]:
        """Return the committed records up to the log end, also those above the last stable offset."""
        data = [line for line in self.lines if not line["isControl"] and not self._is_aborted(line)]
        return [
            line
            for line in data
            if not line["isTransactional"]
            or line["offset"] < self.open_since.get(line["producerId"], 1 << 62)
        ]

    def _is_aborted(self, line: Line) -> bool:
        return line["isTransactional"] and any(
            line["producerId"] == producer and first <= line["offset"] <= last
            for producer, first, last in self.aborted
        )


@cache
def partitions(name: str, stage: str) -> dict[tuple[str, int], Partition]:
    lines, indexes = defaultdict(list), defaultdict(list)
    for line in loader.case(name).expected(stage):
        lines[line["partition"]].append(line)
    for line in loader.case(name).indexes(stage):
        indexes[line["partition"]].append(line)
    partitions = {}
    for directory in sorted(set(lines) | set(indexes)):
        topic, _, number = directory.rpartition("-")
        partitions[topic, int(number)] = Partition(lines[directory], indexes[directory])
    return partitions


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    roots: dict[str, Path] = {}

    def root(name: str, stage: str) -> Path:
        if name not in roots:
            roots[name] = loader.case(name).unpack(tmp_path_factory.mktemp(name))
        return roots[name] / stage

    return root


def stages(name: str) -> list[str]:
    return loader.case(name).stages


def view_of(root: Path, topic: str, number: int) -> PartitionView:
    return PartitionView.load(DirectorySegments(DEFAULT, str(root / f"{topic}-{number}")))


def check(record: Any, line: Line) -> None:
    assert record.offset == line["offset"]
    assert (record.timestamp, record.timestamp_type) == (line["timestamp"], TYPES[line["timestampType"]]), (
        line
    )
    assert (record.key, record.headers) == (line["key"], line["headers"]), line
    assert loader.value_matches(line, record.value), line


@pytest.mark.parametrize(
    ("name", "isolation"),
    [
        *((name, "read_committed") for name in loader.names()),
        *((name, "read_uncommitted") for name in (*TRANSACTIONAL, *loader.names("dir-*"))),
    ],
)
def test_every_record(name: str, isolation: str, unpacked: Callable[[str, str], Path]) -> None:
    for stage in stages(name):
        with lastword.open(unpacked(name, stage)) as logs:
            for (topic, number), expected in partitions(name, stage).items():
                bounds = logs.topic(topic).bounds()[number]
                lines = [line for line in expected.shown(isolation) if line["offset"] >= bounds[0]]
                reader = logs.topic(topic).read(partition=number, isolation=isolation)
                records = list(reader)
                assert [record.offset for record in records] == [line["offset"] for line in lines], (
                    stage,
                    topic,
                )
                for record, line in zip(records, lines, strict=True):
                    check(record, line)
                end = bounds[1] if isolation == "read_uncommitted" else min(bounds[1], expected.stable)
                assert reader.position == {number: end}


@pytest.mark.parametrize("name", CASES[:: stride(2)])
def test_kernels_and_plain_python_read_the_same(name: str, unpacked: Callable[[str, str], Path]) -> None:
    for stage in stages(name):
        for (topic, number), expected in partitions(name, stage).items():
            for committed in (True, False):
                view = view_of(unpacked(name, stage), topic, number)
                start, end = view.log_start, view.stable_offset if committed else view.log_end
                ways = [
                    list(scan.records(view, start, end, plain=plain, committed=committed))
                    for plain in (True, False)
                ]
                assert ways[0] == ways[1]
                shown = expected.shown(ISOLATIONS[not committed])
                assert [r.offset for r in ways[0]] == [x["offset"] for x in shown if x["offset"] >= start]
                by_key = {record.key: record for record in ways[0] if record.key is not None}
                wanted = sorted(by_key.values(), key=lambda record: record.offset)
                for plain in (True, False):
                    newest_view = newest(
                        Range(view, start, end),
                        tombstones=True,
                        map_bytes=MAP_BYTES,
                        plain=plain,
                        committed=committed,
                    )
                    assert list(newest_view) == wanted


@pytest.mark.parametrize("name", [*LEGACY, *TRANSACTIONAL])
def test_any_range_is_a_slice_of_all(name: str, unpacked: Callable[[str, str], Path]) -> None:
    """Ranges begin and end inside wrappers, transactions and gaps; some are short, some read as views."""
    stage = stages(name)[-1]
    ((topic, number),) = partitions(name, stage)
    view = view_of(unpacked(name, stage), topic, number)
    end = view.stable_offset
    whole = list(scan.records(view, view.log_start, end, plain=True))
    places = random.Random(name)
    for _ in range(few(60)):
        first = places.randrange(view.log_start, end)
        last = min(end, first + places.choice([1, 2, 7, 40, 1000]))
        wanted = [record for record in whole if first <= record.offset < last]
        newest_wanted = {record.key: record for record in wanted if record.key is not None}
        for plain in (True, False):
            assert list(scan.records(view, first, last, plain=plain)) == wanted
            # Without the check of the end: records that a cleaner removed are not expected here either.
            newest = newest_of_a_view(view.held(first), first, last, True, MAP_BYTES, None, plain, None, True)
            assert {record.key: record for record in newest} == newest_wanted


@pytest.mark.parametrize("name", CASES)
def test_lookups_by_time(name: str, unpacked: Callable[[str, str], Path]) -> None:
    for stage in stages(name):
        for (topic, number), expected in partitions(name, stage).items():
            view = view_of(unpacked(name, stage), topic, number)
            lines = [line for line in expected.lines if line["offset"] >= view.log_start]
            times = sorted({line["timestamp"] + delta for line in lines for delta in (0, 1)})
            for time in random.Random(name).sample(times, min(len(times), 12)):
                offset = next((line["offset"] for line in lines if line["timestamp"] >= time), None)
                assert view.offset_at(time) == offset or time < 0


@pytest.mark.parametrize("name", CASES)
def test_every_batch_and_control_record(name: str, unpacked: Callable[[str, str], Path]) -> None:
    for stage in stages(name):
        listed = defaultdict(list)
        for line in loader.case(name).batches(stage):
            listed[line["partition"], line["file"]].append(line)
        control = {
            (line["partition"], line["offset"]): (line["controlType"], line.get("coordinatorEpoch"))
            for line in loader.case(name).expected(stage)
            if line["isControl"]
        }
        seen = {}
        for (directory, file), lines in listed.items():
            path = unpacked(name, stage) / directory / file
            entries = list(dump(path))
            batches = [entry for entry in entries if isinstance(entry, Batch)]
            tails = [line["validBytes"] for line in lines if "tail" in line]
            assert [entry.position for entry in entries if isinstance(entry, Problem)] == tails
            for entry, line in zip(batches, (line for line in lines if "tail" not in line), strict=True):
                assert entry.crc_ok
                assert (entry.position, entry.size_bytes, entry.magic, entry.codec, entry.crc) == tuple(
                    line[key] for key in ("position", "size", "magic", "codec", "crc")
                )
                assert (entry.base_offset, entry.last_offset) == (line["baseOffset"], line["lastOffset"])
                assert (entry.timestamp_type, entry.max_timestamp) == (
                    TYPES[line["timestampType"]],
                    line["maxTimestamp"],
                )
                if "count" in line:
                    assert (entry.count, entry.transactional, entry.control) == tuple(
                        line[key] for key in ("count", "isTransactional", "isControl")
                    )
                if entry.magic == 2:
                    assert {name: getattr(entry, field) for name, field in MAGIC_2.items()} == {
                        name: line[name] for name in MAGIC_2
                    }
                    assert line["baseTimestampField"] in (entry.base_timestamp, entry.delete_horizon_ms)
                assert entry.count == len(entry.records)
                for record in entry.records:
                    if record.control is not None:
                        seen[directory, record.offset] = (
                            record.control.upper().replace("-", "_"),
                            record.coordinator_epoch,
                        )
        assert {key: value for key, value in seen.items() if value[0] in ("ABORT", "COMMIT")} == {
            key: value for key, value in control.items() if value[0] in ("ABORT", "COMMIT")
        }
        assert seen.keys() == control.keys()


@pytest.mark.parametrize("name", CASES[:: stride(2)])
def test_all_of_it_is_sound(name: str, unpacked: Callable[[str, str], Path]) -> None:
    for stage in stages(name):
        with lastword.open(unpacked(name, stage)) as logs:
            verification = logs.verify()
        assert verification.ok or (
            stage == "died" and [p.code for p in verification.problems] == ["incomplete-batch"]
        ), (
            stage,
            verification.problems,
        )
        assert verification.records == sum(
            len(partition.lines) for partition in partitions(name, stage).values()
        )


@pytest.mark.parametrize("name", TRANSACTIONAL)
def test_counts_tell_aborted_records_from_live_ones(name: str, unpacked: Callable[[str, str], Path]) -> None:
    for stage in stages(name):
        with lastword.open(unpacked(name, stage)) as logs:
            (info,) = logs.topic(name).describe()
        ((_, expected),) = partitions(name, stage).items()
        data = expected.shown("read_uncommitted")
        keys = {line["key"] for line in expected.shown("read_committed") if line["key"] is not None}
        undecided = [line for line in data if line["offset"] >= expected.stable]
        assert (info.records, info.exact) == (len(data), True)
        assert info.stable == min(expected.stable, info.log_end)
        if not undecided:
            keyless = [line for line in expected.shown("read_committed") if line["key"] is None]
            assert info.live_records == len(keys) + len(keyless)


# ---------------------------------------------------------------- sources of outcomes


@pytest.mark.parametrize("name", TRANSACTIONAL)
def test_indexes_and_batches_tell_the_same(name: str, tmp_path: Path) -> None:
    """If opened to write, outcomes are read from the indexes; without lock or indexes, from the batches."""
    root = loader.case(name).unpack(tmp_path)
    for stage in stages(name):
        directory = root / stage
        expected = [line["offset"] for line in partitions(name, stage)[name, 0].shown("read_committed")]

        def offsets(mode: str, directory: Path = directory, **options: Any) -> list[int]:
            with lastword.open(directory, mode, **options) as logs:
                return [record.offset for record in logs.topic(name).read()]

        clock = ManualClock(1_795_000_000_000)
        assert offsets("a", clock=clock) == offsets("r") == expected
        view = view_of(directory, name, 0)
        for path in directory.glob("*/*.txnindex"):
            path.unlink()
        assert offsets("r") == expected
        resolution = resolve(
            view.segments,
            map_bytes=MAP_BYTES,
            salt=b"",
            now_ms=None,
            outcomes=Decisions(),
        )
        assert resolution.records == len(partitions(name, stage)[name, 0].shown("read_uncommitted"))


@pytest.mark.parametrize("harm", ["gone", "short", "wrong"])
def test_verify_finds_a_wrong_transaction_index(
    harm: str, unpacked: Callable[[str, str], Path], tmp_path: Path
) -> None:
    root = tmp_path / "copy"
    shutil.copytree(unpacked("tx-delete", "data"), root)
    indexes = [path for path in root.glob("*/*.txnindex") if path.stat().st_size]
    for path in indexes:
        good = path.read_bytes()
        bad = {"gone": b"", "short": good[:-34], "wrong": good[:17] + bytes([good[17] + 3]) + good[18:]}[harm]
        path.write_bytes(bad)
        if harm == "gone":
            path.unlink()
        with lastword.open(root) as logs:
            problems = logs.verify().problems
            assert logs.verify(quick=True).ok or harm == "wrong"
        assert [(p.file, p.code, p.repairable) for p in problems] == [(str(path), "bad-txn-index", True)]
        path.write_bytes(good)
    assert indexes


def test_an_open_transaction_holds_committed_readers_back(unpacked: Callable[[str, str], Path]) -> None:
    root = unpacked("tx-delete", "data")
    expected = partitions("tx-delete", "data")["tx-delete", 0]
    with lastword.open(root) as logs:
        topic = logs.topic("tx-delete")
        log_end = topic.bounds()[0][1]
        assert expected.stable < log_end
        reader = topic.read(start=expected.stable)
        assert list(reader) == [] and reader.position == {0: expected.stable}
        reader = topic.read(start=log_end)
        assert list(reader) == [] and reader.position == {0: log_end}
        assert list(topic.read(start={0: "latest"})) == []
        all_of_them = list(topic.read(start=expected.stable, isolation="read_uncommitted"))
        assert [r.offset for r in all_of_them] == [
            line["offset"] for line in expected.shown("read_uncommitted") if line["offset"] >= expected.stable
        ]
        with pytest.raises(lastword.errors.UsageError, match="nearest: read_committed"):
            topic.read(isolation="read_comitted")


def test_arrow_hides_the_same(unpacked: Callable[[str, str], Path]) -> None:
    for name, stage in (("tx-compact-dr0", "round1-before"), ("tx-delete", "data"), ("v0-gzip", "data")):
        with lastword.open(unpacked(name, stage)) as logs:
            for isolation in ISOLATIONS:
                read = logs.topic(name).read
                table = read(isolation=isolation).arrow().read_all()
                records = list(read(isolation=isolation))
                assert table["offset"].to_pylist() == [record.offset for record in records]
                assert table["timestamp_type"].to_pylist() == [record.timestamp_type for record in records]
                assert table["timestamp"].null_count == sum(record.timestamp < 0 for record in records)


def test_a_state_takes_committed_values(unpacked: Callable[[str, str], Path]) -> None:
    name, stage = "tx-compact-retain", "round1-before"
    with lastword.open(unpacked(name, stage)) as logs:
        state = logs.state(name, key_serializer="bytes", value_serializer="bytes")
        newest_lines = {line["key"]: line for line in partitions(name, stage)[name, 0].committed()}
        live = {key: line for key, line in newest_lines.items() if line["value"] is not None}
        assert dict(state) == {key: line["value"] for key, line in live.items()}


# ---------------------------------------------------------------- damage


def read_all(root: Path, name: str, plain: bool) -> Iterator[Any]:
    view = view_of(root, name, 0)
    yield from scan.records(view, view.log_start, view.stable_offset, plain=plain)


@pytest.mark.parametrize("name", [*LEGACY, "tx-delete", "tx-compact-dr0"])
def test_a_flipped_bit_never_shows_a_wrong_record(
    name: str, unpacked: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """No checksum covers the offset (in old formats nor the size): only the offset can be wrong."""
    stage = stages(name)[0]
    root = tmp_path / "copy"
    shutil.copytree(unpacked(name, stage), root)
    right = [(r.timestamp, r.key, r.value, r.headers) for r in read_all(root, name, True)]
    places = random.Random(name)
    logs = loader.partition_files(root)
    refused, flips = 0, few(60)
    for _ in range(flips):
        log = places.choice([path for path in logs if path.stat().st_size])
        data = log.read_bytes()
        damaged = bytearray(data)
        damaged[places.randrange(len(data))] ^= 1 << places.randrange(8)
        log.write_bytes(damaged)
        for plain in (True, False):
            records = []
            try:
                for record in read_all(root, name, plain):
                    records.append((record.timestamp, record.key, record.value, record.headers))
            except DataError as error:
                refused += 1
                assert error.file is not None and error.position is not None
            assert records == right[: len(records)]
        log.write_bytes(data)
    assert refused > flips


@pytest.mark.parametrize("name", [*LEGACY, "tx-delete", "tx-compact-dr0"])
def test_a_segment_cut_anywhere(name: str, unpacked: Callable[[str, str], Path], tmp_path: Path) -> None:
    """A cut ends the last segment, and is an error in another one; records before the cut are right."""
    stage = stages(name)[0]
    root = tmp_path / "copy"
    shutil.copytree(unpacked(name, stage), root)
    right = list(read_all(root, name, True))
    places = random.Random(name)
    logs = loader.partition_files(root)
    for _ in range(few(30)):
        log = places.choice([path for path in logs if path.stat().st_size])
        data = log.read_bytes()
        starts = {header.position for header in headers(data, log.name)}
        cut = places.randrange(len(data))  # between two batches, it would look like a gap of a cleaning
        log.write_bytes(data[: cut + (cut in starts)])
        for plain in (True, False):
            records = []
            try:
                for record in read_all(root, name, plain):
                    records.append(record)
            except DataError as error:
                assert error.file == str(log) or log == logs[-1]
            assert records == right[: len(records)]
        log.write_bytes(data)
