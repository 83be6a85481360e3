from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Container, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword.errors import CapacityError, CorruptBatchError, UnsupportedBatchError
from lastword.kernels.hashing import digest_seeds
from lastword.partition.transactions import Decisions
from lastword.resolve import OffsetMap, Resolution, resolve
from tests.naive import offset_map as naive
from tests.naive.pack import Record, encode_batch, rebase
from tests.naive.strategies import T, batches
from tests.resolve.support import MemorySegment, segments

BIG = 1 << 20


def check(
    sources: Sequence[MemorySegment],
    map_bytes: int,
    now_ms: int | None,
    salt: bytes = b"salt",
    outcomes: Decisions | None = None,
    **batches: Container[int],
) -> Resolution:
    resolution = resolve(sources, map_bytes=map_bytes, salt=salt, now_ms=now_ms, outcomes=outcomes)
    same_as_a_dict(resolution, sources, now_ms, **batches)
    return resolution


def same_as_a_dict(
    resolution: Resolution, sources: Sequence[MemorySegment], now_ms: int | None, **batches: Container[int]
) -> None:
    seeds = [int(seed) for seed in digest_seeds(resolution.digest_seed)]
    expected, newest = naive.resolve([source.data for source in sources], now_ms, *seeds, **batches)
    assert resolution.dead.offsets().tolist() == sorted(set().union(*(facts.dead for facts in expected)))
    assert resolution.distinct_keys == len(newest)
    for facts, wanted, source in zip(resolution.segments, expected, sources, strict=True):
        assert facts.records == wanted.records
        assert facts.dead_records == len(wanted.dead)
        assert facts.live_digest == wanted.digest
        assert facts.tombstones == wanted.tombstones
        assert facts.tombstones_without_horizon == wanted.tombstones_without_horizon
        assert facts.due_tombstones == wanted.due_tombstones
        assert facts.keyless == wanted.keyless
        assert facts.aborted_records == wanted.aborted
        assert resolution.dead.count(source.base_offset, source.next_offset) == facts.dead_records
        assert facts.live_bytes + facts.dead_bytes == facts.size_bytes == source.size
        assert 0 <= facts.dead_bytes <= source.size


cuts = st.lists(st.integers(1, 12), max_size=4)


@given(batches(most=12), cuts, st.sampled_from([None, T]), st.sampled_from([1024, 1600, BIG]))
def test_like_a_dict(log: list[bytes], at: list[int], now_ms: int | None, map_bytes: int) -> None:
    check(segments(log, at, chunk_bytes=200), map_bytes, now_ms)


@given(batches(most=6, gap=st.sampled_from([0, 1, 1 << 20, 1 << 28]), first_offset=1 << 62), cuts)
def test_sparse_offsets(log: list[bytes], at: list[int]) -> None:
    check(segments(log, at), BIG, None)


def synthetic(seed: int, records: int, keys: int, segment_records: int) -> list[MemorySegment]:
    rng = random.Random(seed)
    log = []
    offset = 0
    while offset < records:
        count = min(rng.randint(1, 40), records - offset)
        batch_records = []
        for _ in range(count):
            key = b"key-%d" % rng.randrange(keys)
            value = None if rng.random() < 0.1 else bytes(rng.randrange(30))
            batch_records.append(Record(offset, T, key, value))
            offset += 1
        horizon = rng.choice([None, T - 5, T + 5])
        log.append(encode_batch(batch_records, attributes=0x40 if horizon else 0, base_timestamp=horizon))
    starts = range(0, len(log), max(1, segment_records // 20))
    return segments(log, list(starts), chunk_bytes=3000)


@pytest.mark.parametrize("now_ms", [None, T])
def test_a_tiny_map_finds_what_a_big_one_finds(now_ms: int | None) -> None:
    sources = synthetic(1, 3000, 700, 500)
    big = check(sources, BIG, now_ms)
    assert big.passes == 1
    for map_bytes in (1024, 2000, 4096, 12_345):
        tiny = check(sources, map_bytes, now_ms)
        assert tiny.passes > 1
        assert tiny.segments == big.segments
        assert tiny.map_bytes_used <= map_bytes


def test_passes_stay_near_what_the_keys_need() -> None:
    sources = synthetic(2, 6000, 2000, 1000)
    needed = 2000 * (15 + 8 + 10)
    resolution = check(sources, needed // 3, None)
    assert resolution.passes <= 7


def test_no_records_at_all() -> None:
    assert resolve([], map_bytes=BIG, salt=b"", now_ms=None).segments == ()
    resolution = resolve([MemorySegment(b"", 0, 0)], map_bytes=BIG, salt=b"", now_ms=None)
    assert (resolution.records, resolution.distinct_keys, resolution.segments[0].records) == (0, 0, 0)


def test_a_cleaning_takes_due_tombstones_and_records_without_key() -> None:
    log = [
        encode_batch([Record(0, T, b"a", b"1"), Record(1, T, None, b"x"), Record(2, T, b"b", b"1")]),
        encode_batch([Record(3, T, b"a", None)], attributes=0x40, base_timestamp=T),
        encode_batch([Record(4, T, b"b", None)], attributes=0x40, base_timestamp=T + 1),
        encode_batch([Record(5, T, b"c", None)]),
    ]
    cleaning = check(segments(log, [1, 2, 3]), BIG, T)
    assert cleaning.dead.offsets().tolist() == [0, 1, 2, 3]
    assert [facts.due_tombstones for facts in cleaning.segments] == [0, 1, 0, 0]
    assert [facts.tombstones for facts in cleaning.segments] == [0, 0, 1, 1]
    assert [facts.tombstones_without_horizon for facts in cleaning.segments] == [0, 0, 0, 1]
    view = check(segments(log, [1, 2, 3]), BIG, None)
    assert view.dead.offsets().tolist() == [0, 2]


def test_tombstones_that_a_reader_has_not_passed_are_not_due() -> None:
    log = [encode_batch([Record(n, T, b"%d" % n, None)], attributes=0x40, base_timestamp=T) for n in range(3)]
    for below, dead in ((0, []), (1, [0]), (3, [0, 1, 2])):
        resolution = resolve(segments(log, [1]), map_bytes=BIG, salt=b"", now_ms=T, due_below=below)
        assert resolution.dead.offsets().tolist() == dead
        assert sum(facts.due_tombstones for facts in resolution.segments) == len(dead)
        assert sum(facts.tombstones for facts in resolution.segments) == 3 - len(dead)
        assert sum(facts.tombstones_without_horizon for facts in resolution.segments) == 0


@pytest.mark.parametrize("below", [0, 500, 1 << 62])
def test_a_tiny_map_knows_the_same_leases(below: int) -> None:
    sources = synthetic(1, 1500, 400, 500)
    resolutions = [
        resolve(sources, map_bytes=size, salt=b"s", now_ms=T, due_below=below) for size in (BIG, 2000)
    ]
    assert resolutions[1].passes > 1
    assert resolutions[0].segments == resolutions[1].segments


def test_a_key_written_again_after_its_due_tombstone_lives() -> None:
    log = [
        encode_batch([Record(0, T, b"a", b"1")]),
        encode_batch([Record(1, T, b"a", None)], attributes=0x40, base_timestamp=T),
        encode_batch([Record(2, T, b"a", b"2")]),
    ]
    resolution = check(segments(log, [1, 2]), BIG, T)
    assert resolution.dead.offsets().tolist() == [0, 1]
    assert sum(facts.due_tombstones for facts in resolution.segments) == 0


def test_transactions_are_refused_by_name() -> None:
    log = [encode_batch([Record(7, T, b"a", b"1")], attributes=0x10, producer=(5, 0, 0))]
    with pytest.raises(UnsupportedBatchError, match=r"00000000000000000007.log position 0.*transactional"):
        resolve(segments(log, []), map_bytes=BIG, salt=b"", now_ms=None)


def test_control_batches_leave_no_trace() -> None:
    marker = encode_batch([Record(1, T, b"\0\0\0\1", b"\0\0\0\0\0\0")], attributes=0x30, producer=(5, 0, -1))
    log = [
        encode_batch([Record(0, T, b"\0\0\0\1", b"user")]),
        marker,
        encode_batch([Record(2, T, b"x", b"1")]),
    ]
    resolution = check(segments(log, []), BIG, T)
    assert resolution.dead.offsets().tolist() == []
    assert (resolution.records, resolution.segments[0].control_batches) == (2, 1)


def test_segments_that_overlap_are_refused() -> None:
    first = encode_batch([Record(0, T, b"a", b"1"), Record(9, T, b"b", b"1")])
    second = encode_batch([Record(5, T, b"a", b"2")])
    with pytest.raises(CorruptBatchError, match="offsets do not increase"):
        resolve(
            [MemorySegment(first, 0, 10), MemorySegment(second, 5, 6)],
            map_bytes=BIG,
            salt=b"",
            now_ms=None,
        )
    with pytest.raises(ValueError, match="ascending"):
        resolve(
            [MemorySegment(second, 5, 6), MemorySegment(first, 0, 10)], map_bytes=BIG, salt=b"", now_ms=None
        )


def test_a_key_larger_than_the_map() -> None:
    log = [encode_batch([Record(i, T, b"%04d" % i * size, b"")]) for i, size in enumerate((1, 1000, 1))]
    with pytest.raises(CapacityError, match="does not fit the map"):
        resolve(segments(log, []), map_bytes=2048, salt=b"", now_ms=None)
    check(segments(log, []), 5000, None)


def test_keys_longer_and_shorter_than_the_first_ones() -> None:
    """The number of slots is chosen for the first keys, and again when keys of another length arrive."""
    for sizes in ((200, 4), (4, 200)):
        log = []
        for i in range(400):
            key = b"%04d" % i * (sizes[i // 200] // 4)
            log.append(encode_batch([Record(i, T, key, b"")]))
        room = 200 * (sum(sizes) + 2 * (15 + 10))
        resolution = check(segments(log, [200], chunk_bytes=1000), int(room * 1.15), None)
        assert resolution.passes == 1


def dense(keys: np.ndarray) -> list[MemorySegment]:
    """Return a segment with a record for each row of `keys` (uint8[n, size]), built by the pack kernel."""
    import pyarrow as pa

    from lastword.records.pack import pack_arrow

    count, size = keys.shape
    offsets = (np.arange(count + 1) * size).astype(np.int32)
    array = pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(keys))]
    )
    data = bytearray().join(pack_arrow(array, pa.array([b""] * count), np.full(count, T)))
    rebase(data, 0, 0)
    return [MemorySegment(bytes(data), 0, count)]


def test_a_key_of_24_bytes_costs_at_most_52() -> None:
    count = 20_000
    keys = np.random.default_rng(0).integers(0, 256, (count, 24), np.uint8)
    resolution = resolve(dense(keys), map_bytes=52 * count, salt=b"s", now_ms=None)
    assert (resolution.passes, resolution.distinct_keys) == (1, count)


def test_keys_chosen_without_the_salt_cost_no_more_probes() -> None:
    """Counters, keys one bit apart, equal low or high bytes: a weaker hash puts such keys into one slot."""
    count = 20_000
    numbers = np.arange(count, dtype=np.uint64)
    random_keys = np.random.default_rng(1).integers(0, 256, (count, 16), np.uint8)
    hostile = {
        "counter": np.stack([numbers, numbers * 0], axis=1),
        "high": np.stack([numbers << np.uint64(40), numbers * 0], axis=1),
        "second word": np.stack([numbers * 0, numbers << np.uint64(48)], axis=1),
        "both": np.stack([numbers, ~numbers], axis=1),
    }
    map_bytes = 47 * count

    def probes(keys: np.ndarray) -> float:
        resolution = resolve(dense(keys), map_bytes=map_bytes, salt=b"secret", now_ms=None)
        assert resolution.distinct_keys == count
        return resolution.probes / resolution.records

    usual = probes(random_keys)
    for name, words in hostile.items():
        assert probes(words.view(np.uint8)) <= 2 * usual, name


def test_many_pages() -> None:
    """More pages than the first capacity of the store; pages and chunks end at different records."""
    log = [
        encode_batch([Record(i * 4096, T, b"k%d" % (i % 7), b"")], base_offset=i * 4096) for i in range(3000)
    ]
    resolution = check(segments(log, [1000, 2000]), BIG, None)
    assert resolution.dead.page_ids.size == 3000


def test_a_full_arena_stops_at_the_slots() -> None:
    """Keys grow, so the arena is full before the slots are. Every size in turn: the last entry would end at,
    just before and just past the first slot.
    """
    rng = random.Random(5)
    log = []
    for i in range(0, 600, 6):
        numbers = [rng.randrange(i // 4, i // 4 + 40) for _ in range(6)]
        records = [Record(i + j, T, b"%03d" % n + b"." * (n // 3), b"") for j, n in enumerate(numbers)]
        log.append(encode_batch(records))
    sources = segments(log, [30, 60])
    expected = resolve(sources, map_bytes=BIG, salt=b"s", now_ms=None)
    for map_bytes in range(1024, 1024 + 8 * 40, 8):
        resolution = resolve(sources, map_bytes=map_bytes, salt=b"s", now_ms=None)
        assert resolution.distinct_keys == expected.distinct_keys
        assert resolution.segments == expected.segments


def test_the_map_is_free_when_resolve_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The map is freed at the return, not at the next garbage collection: it may take all the memory."""
    made = []
    real = OffsetMap.__init__

    def init(self: OffsetMap, *given: Any, **more: Any) -> None:
        made.append(weakref.ref(self))
        real(self, *given, **more)

    monkeypatch.setattr(OffsetMap, "__init__", init)
    gc.disable()
    try:
        resolve(synthetic(1, 500, 100, 100), map_bytes=BIG, salt=b"", now_ms=None)
        assert [each() for each in made] == [None]
    finally:
        gc.enable()
