"""Many offsets in one call, compared with a walk over the files: gaps, codecs, damage in index and log."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lastword.errors import CorruptBatchError
from lastword.files import DEFAULT
from lastword.partition import lookups, scan
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.lookups import positions_of, records_at
from lastword.partition.view import PartitionView
from lastword.records.batch import BatchBuilder
from lastword.records.formats import build_message
from lastword.records.record import RawRecord
from lastword.segment import names
from lastword.segment.recover import build_indexes
from tests.build import LogBuilder
from tests.cleaner.transactional import Producer
from tests.fakes import RecordingFiles
from tests.support.exhaustive import stride
from tests.support.legacy import build_wrapper

T = 1_750_000_000_000


def write_log(
    directory: Path, chance: random.Random, *, segments: int = 3, value: int = 60, interval: int = 4096
) -> dict[int, RawRecord]:
    """Write segments with gaps in and between batches, compressed and control batches; return the records."""
    directory.mkdir(parents=True)
    offset, all_records = chance.randrange(50), {}
    for number in range(segments):
        base, data = offset, b""
        offset += chance.choice([0, 0, 30])
        for _ in range(chance.randrange(0 if number else 1, 120)):
            control = chance.random() < 0.05
            fields = {"producer_id": 1, "producer_epoch": 0, "transactional": True} if control else {}
            builder = BatchBuilder(0 if control else chance.choice([0, 0, 3]), control=control, **fields)
            delta = -1
            for _ in range(1 if control else chance.randrange(1, 12)):
                delta += chance.choice([1, 1, 3])
                content = b"\0\0\0\0\0\0" if control else bytes(chance.randrange(value))
                builder.append(
                    T + delta, b"\0\0\0\1" if control else b"k%d" % delta, content, offset_delta=delta
                )
                if not control:
                    record = RawRecord(offset + delta, T + delta, 0, b"k%d" % delta, content)
                    all_records[record.offset] = record
            span = delta + chance.choice([0, 0, 5])
            data += builder.build(offset, last_offset_delta=span)
            offset += span + 1 + chance.choice([0, 0, 4])
        path = directory / names.segment_file(base, names.LOG)
        path.write_bytes(data)
        build_indexes(DEFAULT, str(path), base, index_interval_bytes=interval)
        offset += 1
    return all_records


def record_at(view: PartitionView, offset: int) -> RawRecord | None:
    record = scan.single(view, offset, committed=False)
    return record or next(scan.records(view, offset, offset + 1, committed=False), None)


def asked(view: PartitionView, chance: random.Random, count: int) -> list[int]:
    return [chance.randrange(-5, view.log_end + 20) for _ in range(count)]


@pytest.mark.parametrize("seed", range(25))
def test_the_records_of_a_plain_walk(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    there = write_log(
        tmp_path / "a-0",
        chance,
        segments=chance.randrange(1, 5),
        value=chance.choice([20, 200, 5000]),
        interval=chance.choice([0, 500, 4096]),
    )
    view = PartitionView.load(DirectorySegments(DEFAULT, str(tmp_path / "a-0")))
    for count in (0, 1, 7, 3000):
        offsets = asked(view, chance, count)
        assert records_at(view, offsets) == [there.get(offset) for offset in offsets]
    assert [record_at(view, offset) for offset in offsets[:300]] == [
        there.get(offset) for offset in offsets[:300]
    ]
    numbers, positions = positions_of(view, offsets)
    for offset, number, position in zip(offsets, numbers.tolist(), positions.tolist(), strict=True):
        assert number == view.segment_set.floor(offset)
        if number >= 0:
            assert position == view.segments[number].offset_index.lookup(offset).position


def test_what_is_left_out_is_not_looked_for_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = write_log(tmp_path / "a-0", random.Random(4))
    view = PartitionView.load(DirectorySegments(DEFAULT, str(tmp_path / "a-0")))
    monkeypatch.setattr(lookups._Search, "_find_single", lambda *_: pytest.fail("looked for one by one"))
    every = list(range(view.log_end))
    assert records_at(view, every) == [there.get(offset) for offset in every]


@pytest.mark.parametrize("seed", range(20))
def test_a_wrong_index_costs_time_only(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    there = write_log(tmp_path / "a-0", chance, segments=1, value=3000)
    (path,) = (tmp_path / "a-0").glob("*.index")
    data = bytearray(path.read_bytes())
    for _ in range(seed % 4 + 1):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    view = PartitionView.load(DirectorySegments(DEFAULT, str(tmp_path / "a-0")))
    for count in (5, 200):
        offsets = asked(view, chance, count)
        assert records_at(view, offsets) == [there.get(offset) for offset in offsets]
    assert [record_at(view, offset) for offset in offsets] == [there.get(offset) for offset in offsets]


@pytest.mark.parametrize("value", [60, 1500])
def test_a_single_offset_needs_one_read_or_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: int
) -> None:
    """Several small batches share an index entry; most large batches have their own."""
    there = write_log(tmp_path / "a-0", random.Random(4), value=value)
    files = RecordingFiles(DEFAULT)
    view = PartitionView.load(DirectorySegments(files, str(tmp_path / "a-0")))
    offsets = list(there)
    for offset in offsets:
        record_at(view, offset)
    monkeypatch.setattr(lookups, "read_batches", lambda *_: pytest.fail("searched the long way"))
    before = len(files.calls)
    assert [scan.single(view, offset, committed=False) for offset in offsets] == [
        there[offset] for offset in offsets
    ]
    assert len(files.calls) - before <= len(offsets) * (1 if value == 60 else 1.5)


def test_a_range_of_one_offset_is_one_lookup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = write_log(tmp_path / "a-0", random.Random(4))
    view = PartitionView.load(DirectorySegments(DEFAULT, str(tmp_path / "a-0")))
    for offset in range(view.log_start, view.log_end):
        expected = [there[offset]] if offset in there else []
        assert list(scan.records(view, offset, offset + 1)) == expected
    monkeypatch.setattr(scan, "_plain", lambda *_: pytest.fail("read as a range"))
    monkeypatch.setattr(scan, "_bulk", lambda *_: pytest.fail("read as a range"))
    assert [list(scan.records(view, offset, offset + 1)) for offset in there] == [[r] for r in there.values()]


def test_a_range_of_one_offset_hides_an_aborted_record(tmp_path: Path) -> None:
    """Producer 1 aborts its transaction, producer 2 commits."""
    data = b""
    for offset, (producer, control) in enumerate([(1, None), (2, None), (1, 0), (2, 1)]):
        fields = {"producer_id": producer, "producer_epoch": 0, "transactional": True}
        builder = BatchBuilder(control=control is not None, base_sequence=-1 if control else 0, **fields)
        if control is None:
            builder.append(T, b"k", b"%d" % producer)
        else:
            builder.append(T, b"\0\0\0%c" % control, b"\0\0\0\0\0\0")
        data += builder.build(offset)
    path = tmp_path / "a-0" / names.segment_file(0, names.LOG)
    path.parent.mkdir()
    path.write_bytes(data)
    build_indexes(DEFAULT, str(path), 0, index_interval_bytes=4096)
    view = PartitionView.load(DirectorySegments(DEFAULT, str(path.parent)))
    for committed, expected in ((True, [b"2"]), (False, [b"1", b"2"])):
        ranges = (scan.records(view, offset, offset + 1, committed=committed) for offset in range(4))
        assert [record.value for records in ranges for record in records] == expected


def test_a_damaged_batch_is_named_when_a_record_of_it_is_asked_for(tmp_path: Path) -> None:
    log = LogBuilder(tmp_path).topic("users")
    for number in range(200):
        log.put(number, "v" * 200)
    log.close()
    (path,) = Path(log.directory).glob("*.log")
    data = bytearray(path.read_bytes())
    size = len(data) // 200
    data[100 * size + 150] ^= 1
    path.write_bytes(data)
    view = PartitionView.load(DirectorySegments(DEFAULT, log.directory))
    with pytest.raises(CorruptBatchError) as caught:
        records_at(view, [3, 100, 190])
    assert caught.value.offset == 100
    assert caught.value.position and data[caught.value.position : caught.value.position + 8] == (
        100
    ).to_bytes(8, "big")
    assert [record.offset for record in records_at(view, [3, 99, 101, 190]) if record] == [3, 99, 101, 190]


def test_old_messages(tmp_path: Path) -> None:
    there = [RawRecord(offset, T + offset, 0, b"k", b"v" * offset) for offset in range(300)]
    data = b"".join(build_message(1, r.offset, r.key, r.value, r.timestamp) for r in there[:150])
    for start in range(150, 300, 10):
        data += build_wrapper(1, 1, there[start : start + 10])
    (tmp_path / "a-0").mkdir()
    path = tmp_path / "a-0" / names.segment_file(0, names.LOG)
    path.write_bytes(data)
    build_indexes(DEFAULT, str(path), 0, index_interval_bytes=1000)
    view = PartitionView.load(DirectorySegments(DEFAULT, str(path.parent)))
    assert records_at(view, range(300)) == there
    assert records_at(view, [222, 7, 222]) == [there[222], there[7], there[222]]


@pytest.mark.parametrize(
    "seed", [*range(0, 20, stride(4)), 30, 34, 68]
)  # the last three look below an offset in a gap
def test_some_offsets_of_a_log_with_transactions(tmp_path: Path, seed: int) -> None:
    """Three producers over several segments, some aborted, one open: as a committed read, cleaned or not.

    Some logs have large batches, and bits of some indexes are flipped.
    """
    chance = random.Random(seed)
    size = chance.choice([1, 1, 400])
    log = LogBuilder(tmp_path, segment_bytes=3000 * size, index_interval_bytes=chance.choice([0, 300, 4096]))
    log.topic("users").codec_of(0 if size > 1 else chance.choice([0, 3]))
    producers = [Producer(log, 10 + number) for number in range(3)]
    for _ in range(150):
        keys = [f"key {chance.randrange(60)}" for _ in range(chance.randint(1, 6))]
        pairs = [(key, f"{chance.random()}" * size) for key in keys]
        producer = chance.choice(producers)
        step = chance.choice([producer.put, producer.put, log.batch, producer.commit, producer.abort])
        if step in (producer.commit, producer.abort):
            step()
        elif step == log.batch:
            log.batch(pairs)
        else:
            producer.put(*pairs)
    producers[0].put(("key 1", "open"))
    for cleaned in (False, True):
        if cleaned:
            log.roll().clean()
        for path in Path(log.directory).glob("*.index"):
            data = bytearray(path.read_bytes())
            if data and chance.random() < 0.5:
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
                path.write_bytes(data)
        view = PartitionView.load(DirectorySegments(DEFAULT, log.directory))
        assert view.stable_offset < view.log_end
        for committed in (True, False):
            end = view.stable_offset if committed else view.log_end
            there = {record.offset: record for record in scan.records(view, 0, end, committed=committed)}
            for count in (1, 1, 1, 3, 30, 3000):
                offsets = asked(view, chance, count)
                expected = [there.get(offset) for offset in offsets]
                assert records_at(view, offsets, committed=committed) == expected


def test_on_the_writers_side_and_after_a_rewrite(tmp_path: Path) -> None:
    log = LogBuilder(tmp_path).topic("users")
    for number in range(100):
        log.put(number % 10, number)
    log.roll()
    writer: Any = log.log
    before = [record and record.value for record in records_at(writer.view(), [0, 55, 99])]
    assert before == [b"0", b"55", b"99"]
    old = PartitionView.load(DirectorySegments(DEFAULT, log.directory))
    log.clean()
    assert [record and record.value for record in records_at(old, [0, 55, 99])] == [None, None, b"99"]
    assert isinstance(positions_of(writer, np.array([5]))[0], np.ndarray)
