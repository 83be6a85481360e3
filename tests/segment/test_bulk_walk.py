"""Recovery's walk by kernels finds the same batches as the plain walk, in sound and damaged files."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from lastword.errors import CorruptBatchError
from lastword.files import DEFAULT
from lastword.records.batch import BatchBuilder
from lastword.records.formats import build_message
from lastword.segment import names, recover
from lastword.segment.recover import Inspection, inspect
from lastword.wire import HEADER_BYTES

BASE = 1000
T = 1_750_000_000_000


def batch(chance: random.Random, offset: int, size: int = 200) -> bytes:
    producer = chance.choice([{}, {"producer_id": 7, "producer_epoch": 0, "base_sequence": 3}])
    builder = BatchBuilder(chance.choice([0, 0, 4]), **producer)
    for _ in range(chance.randrange(1, 5)):
        builder.append(T + chance.randrange(1000), b"k", bytes(chance.randrange(size)))
    return builder.build(offset, chance.choice([0, 0, 0, 1, 3]))


def log_of(seed: int, count: int = 300) -> tuple[bytearray, list[int]]:
    """Return a log and the positions of its batches."""
    chance = random.Random(seed)
    data, positions, offset = bytearray(), [], BASE
    for _ in range(count):
        positions.append(len(data))
        data += batch(chance, offset)
        offset += (
            int.from_bytes(data[positions[-1] + 23 : positions[-1] + 27], "big") + 1 + chance.randrange(3)
        )
    return data, positions


def inspected(directory: Path, data: bytes, monkeypatch: pytest.MonkeyPatch) -> Inspection:
    """Inspect a log by kernels; check that the plain walk gives the same result."""
    (directory / names.segment_file(BASE, names.LOG)).write_bytes(data)
    inspections = []
    for least in (1, 1 << 40):
        monkeypatch.setattr(recover, "BULK_BYTES", least)
        monkeypatch.setattr(recover, "LOADING_BYTES", least)
        inspections.append(inspect(DEFAULT, str(directory), BASE, index_interval_bytes=900))
    assert inspections[0] == inspections[1]
    return inspections[0]


@pytest.mark.parametrize("seed", range(5))
def test_a_sound_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    data, positions = log_of(seed)
    inspection = inspected(tmp_path, data, monkeypatch)
    assert (inspection.size, inspection.batches, inspection.damage) == (len(data), len(positions), None)
    assert inspection.offset_entries and inspection.producers and inspection.epochs


@pytest.mark.parametrize(
    "sizes", [(), (3 << 20, 10), (10, 3 << 20, 10), ((1 << 20) - 70, 1 << 20, 5), (3 << 20,)]
)
def test_batches_larger_than_what_is_read_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...]
) -> None:
    """Recovery treated such a batch as a torn tail, and would have cut it off."""
    data = b""
    for number, size in enumerate(sizes):
        builder = BatchBuilder()
        builder.append(T, b"k", bytes(size))
        data += builder.build(BASE + number)
    whole = inspected(tmp_path, data, monkeypatch)
    assert (whole.batches, whole.damage) == (len(sizes), None)
    cut = inspected(tmp_path, data[:-1], monkeypatch)
    assert (cut.batches, cut.damage is None) == (max(len(sizes) - 1, 0), not sizes)


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance = random.Random(seed)
    data, positions = log_of(seed)
    at = chance.choice(positions)
    match seed % 5:
        case 0:
            data[at + chance.randrange(6, HEADER_BYTES)] ^= 1 << chance.randrange(8)
        case 1:
            data[chance.randrange(len(data))] ^= 0xFF
        case 2:
            del data[at + chance.randrange(100) :]
        case 3:
            data[at:] = bytes(len(data) - at)
        case 4:
            data[at : at + 8] = (BASE - 1 + chance.randrange(2)).to_bytes(8, "big")
    inspection = inspected(tmp_path, data, monkeypatch)
    assert inspection.size <= len(data)


def test_old_messages_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = b"".join(build_message(1, BASE + n, b"k", b"v", T + n) for n in range(50))
    data = batch(random.Random(1), BASE + 60)
    inspection = inspected(tmp_path, old + data, monkeypatch)
    assert (inspection.batches, inspection.damage, inspection.size) == (51, None, len(old + data))


def test_an_offset_that_the_segment_cannot_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, _ = log_of(2)
    (tmp_path / names.segment_file(BASE, names.LOG)).write_bytes(
        bytes(data) + batch(random.Random(1), BASE + (1 << 31))
    )
    monkeypatch.setattr(recover, "BULK_BYTES", 1)
    with pytest.raises(CorruptBatchError, match="more than 2\\^31 above"):
        inspect(DEFAULT, str(tmp_path), BASE, index_interval_bytes=900)
