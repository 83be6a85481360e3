from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lastword.kernels.hashing import digest_seeds
from lastword.partition.transactions import BatchColumns, BatchOutcome
from lastword.resolve import DeadBitmaps, MapFull, RunningResolution, resolve
from lastword.resolve.facts import SegmentCounts, digest_seed_of
from tests.naive import running as naive
from tests.naive.batches import walk
from tests.naive.pack import Record, encode_batch, rebase
from tests.naive.strategies import T, keys
from tests.resolve.support import MemorySegment, segments
from tests.resolve.test_resolver import dense, synthetic
from tests.support.exhaustive import few

BIG = 1 << 16
SALT = b"salt"
SEEDS = tuple(int(seed) for seed in digest_seeds(digest_seed_of(SALT)))
TRANSACTIONAL, CONTROL, HORIZON = 0x10, 0x20, 0x40


class Outcomes:
    """Outcomes: transactional batches with a base offset in `aborted` are aborted, all others committed."""

    def __init__(self, aborted: set[int]) -> None:
        self.aborted = aborted

    def of_batches(self, batches: BatchColumns) -> NDArray[np.uint8]:
        aborted = np.isin(batches.base_offsets, list(self.aborted))
        control = (batches.attributes & CONTROL) != 0
        return np.where(control, BatchOutcome.CONTROL, np.where(aborted, BatchOutcome.ABORTED, 0)).astype(
            np.uint8
        )


class Pair:
    """A running resolution and the log that it describes."""

    def __init__(self, map_bytes: int = BIG) -> None:
        self.map_bytes = map_bytes
        self.log = naive.Log()
        self.running = RunningResolution(map_bytes=map_bytes, salt=SALT)
        self.next_offset = 0
        self.bases: list[int] = []
        self.ends: list[int] = []

    def absorb(self, parts: list[list[bytes]]) -> None:
        sources = []
        for part in parts:
            data = b"".join(part)
            headers = walk(data)[0]
            base = headers[0].base_offset if headers else self.next_offset
            self.next_offset = max(headers[-1].last_offset if headers else 0, base) + 1
            self.log.segments.append(data)
            self.bases.append(base)
            self.ends.append(self.next_offset)
            sources.append(MemorySegment(data, base, self.next_offset, chunk_bytes=300))
        self.running.add_segments(sources, outcomes=Outcomes(self.log.aborted))
        self.running.shrink()  # as between two uses; what is added next needs the room again

    def mark_due(self, wanted: int) -> None:
        tombstones = self.running.tombstones()
        due = tombstones.offset[tombstones.copies == 1][:wanted].tolist()
        self.running.mark_due(due)
        self.log.due.update(due)

    def revive(self, floor: int) -> None:
        """Revive tombstones from `floor` on; those that a newer record supersedes stay dead."""
        self.running.revive(np.array([offset for offset in self.log.due if offset >= floor], np.int64))
        again = {int(offset) for offset in self.running.tombstones().offset} & self.log.due
        assert all(offset >= floor for offset in again)
        self.log.due -= again
        self.log.revived |= again

    def rewrite(self, first: int, last: int, *, swap: bool = True) -> None:
        bits = self.running.resolution().dead
        dead = set().union(*(facts.dead for facts in self.log.truth(*SEEDS).facts[first : last + 1]))
        for data in self.log.segments[first : last + 1]:
            if data:
                for chunk in MemorySegment(data, 0, 0, chunk_bytes=300).chunk_reader():
                    self.running.count_removals(chunk, bits)
        if not swap:
            self.running.discard_removals()
            return
        data = self.log.rewrite(first, last, dead)
        self.running.replace_segments(first, last, len(data), self.ends[last])
        del self.bases[first + 1 : last + 1], self.ends[first:last]

    def check(self) -> None:
        truth = self.log.truth(*SEEDS)
        resolution = self.running.resolution()
        assert resolution.segments == self.running.facts()
        assert resolution.distinct_keys == self.running.distinct_keys == len(truth.newest)
        assert resolution.dead.offsets().tolist() == sorted(
            set().union(*(facts.dead for facts in truth.facts))
        )
        for index, (facts, wanted) in enumerate(zip(resolution.segments, truth.facts, strict=True)):
            assert facts.base_offset == self.bases[index]
            assert facts.next_offset == self.ends[index]
            assert facts.size_bytes == len(self.log.segments[index])
            assert facts.records == wanted.records
            assert facts.dead_records == len(wanted.dead)
            assert facts.live_digest == wanted.digest
            assert facts.tombstones == wanted.tombstones
            assert facts.tombstones_without_horizon == wanted.tombstones_without_horizon
            assert facts.due_tombstones == wanted.due_tombstones
            assert facts.keyless == wanted.keyless
            assert facts.aborted_records == wanted.aborted
            assert facts.live_bytes + facts.dead_bytes == facts.size_bytes
            assert facts.live_bytes >= 0 <= facts.dead_bytes
            assert (facts.dead_bytes > 0) <= (facts.dead_records > 0)
            assert self.running.lowest_superseding(index) == wanted.lowest_superseding
        tombstones = self.running.tombstones()
        shown = zip(tombstones.offset, tombstones.copies, tombstones.horizon_ms, strict=True)
        assert [(int(a), int(b), int(c)) for a, b, c in shown] == truth.tombstones
        offset_map = self.running._scan.map
        for key, copies in truth.copies.items():
            assert offset_map is not None
            assert offset_map.copies(key) == copies
            assert offset_map.newest(key) == truth.newest.get(key, -1)

    def reload(self) -> None:
        """Save the running resolution as parts and load it; check that every answer is equal."""
        parts = self.running.to_parts()
        again = RunningResolution.from_parts(parts, map_bytes=self.map_bytes)
        assert again.resolution().segments == self.running.resolution().segments
        assert (again.limit, again.exact) == (self.running.limit, self.running.exact)
        for name, part in again.to_parts().items():
            assert np.array_equal(part, parts[name]), name
        self.running = again


few_keys = st.one_of(st.none(), st.sampled_from([b"a", b"bb", b"c" * 24, b"d" * 260]), keys(3))


@st.composite
def some_batches(draw: st.DrawFn, first_offset: int, aborted: set[int]) -> list[bytes]:
    """Return batches as `strategies.batches` does: few keys, many tombstones, aborted transactions."""
    offset, batches = first_offset, []
    for _ in range(draw(st.integers(0, 4))):
        base = offset + draw(st.sampled_from([0, 0, 0, 2, 5000]))
        attributes = draw(st.sampled_from([0, 0, 0, HORIZON, TRANSACTIONAL, CONTROL]))
        pairs = draw(
            st.lists(st.tuples(few_keys, st.sampled_from([None, b"v", b"w" * 40])), min_size=1, max_size=6)
        )
        records = [Record(base + n, T, key, value) for n, (key, value) in enumerate(pairs)]
        if attributes == TRANSACTIONAL:
            aborted.add(base)
        horizon = draw(st.sampled_from([T, T + 9])) if attributes == HORIZON else None
        batches.append(encode_batch(records, attributes=attributes, base_timestamp=horizon))
        offset = records[-1].offset + 1
    return batches


def live_through(data: st.DataObject, most: int) -> None:
    pair = Pair(data.draw(st.sampled_from([1600, BIG])))
    try:
        for _ in range(data.draw(st.integers(1, most))):
            operation = data.draw(
                st.sampled_from(
                    ["absorb", "absorb", "due", "due", "revive", "rewrite", "rewrite", "abandon", "parts"]
                )
            )
            if operation == "absorb":
                parts, after = [], pair.next_offset
                for _ in range(data.draw(st.integers(1, 3))):
                    parts.append(data.draw(some_batches(after, pair.log.aborted)))
                    headers = walk(b"".join(parts[-1]))[0]
                    after = headers[-1].last_offset + 1 if headers else after + 1
                pair.absorb(parts)
            elif operation == "due":
                pair.mark_due(data.draw(st.integers(0, 5)))
            elif operation == "revive":
                pair.revive(data.draw(st.integers(0, max(pair.next_offset, 1))))
            elif operation == "parts":
                pair.reload()
            elif pair.log.segments:
                first = data.draw(st.integers(0, len(pair.log.segments) - 1))
                last = data.draw(st.integers(first, len(pair.log.segments) - 1))
                pair.rewrite(first, last, swap=operation == "rewrite")
            pair.check()
    except MapFull:
        assert pair.map_bytes < BIG


@settings(max_examples=few(25))
@given(st.data())
def test_always_as_one_full_resolution(data: st.DataObject) -> None:
    live_through(data, 5)


@pytest.mark.slow
@settings(max_examples=few(150))
@given(st.data())
def test_always_as_one_full_resolution_long(data: st.DataObject) -> None:
    live_through(data, 12)


def test_few_keys_need_little_memory_between_two_uses() -> None:
    """Each partition of a directory has a map: the room that a map begins with was kept for all of them."""
    pair = Pair(map_bytes=64 << 20)
    for first in range(0, 300, 100):
        pair.absorb([[encode_batch([Record(first + i, T, b"key %d" % (i % 40), b"") for i in range(100)])]])
        scan = pair.running._scan
        assert scan.map is not None
        arrays = (*scan.store.arrays, scan.map.arena, scan.map.slots)
        assert sum(array.nbytes for array in arrays) < 8 << 10
        pair.check()


def test_a_dropped_tombstone_makes_room_for_another_key() -> None:
    """Keys are written and deleted without end, in a map that has room for few of them."""
    pair = Pair(map_bytes=2048)
    for wave in range(12):
        base = pair.next_offset
        gone = [Record(base + i, T, b"w%02d%03d" % (wave, i), None) for i in range(30)]
        pair.absorb([[encode_batch(gone)]])
        pair.mark_due(30)
        pair.rewrite(len(pair.bases) - 1, len(pair.bases) - 1)
        assert pair.running.distinct_keys == 0
        pair.check()
    assert pair.running.memory_bytes < 4096


def test_copies_stick_at_255() -> None:
    pair = Pair()
    for count in (254, 255, 300):
        base = pair.next_offset
        records = [Record(base + i, T, b"%03d" % count, b"" if i < count - 1 else None) for i in range(count)]
        pair.absorb([[encode_batch(records)]])
    assert pair.running.tombstones().copies.tolist() == [254, 255, 255]
    for index in range(3):
        pair.rewrite(index, index)
    assert pair.running.tombstones().copies.tolist() == [1, 255, 255]


def test_only_a_live_tombstone_without_other_copies_can_be_due() -> None:
    pair = Pair()
    pair.absorb(
        [[encode_batch([Record(0, T, b"a", b"1"), Record(1, T, b"b", None), Record(2, T, b"a", None)])]]
    )
    before = pair.running.facts()
    for wrong in ([1, 2], [0], [7]):
        with pytest.raises(ValueError, match="is not a live tombstone"):
            pair.running.mark_due(wrong)
    assert pair.running.facts() == before
    pair.running.mark_due([1])
    assert pair.running.resolution().dead.offsets().tolist() == [0, 1]
    with pytest.raises(ValueError, match="offset 1 is not"):
        pair.running.mark_due([1])


def test_an_aborted_copy_blocks_a_tombstone() -> None:
    """Without the tombstone, a reader of uncommitted records would return the aborted value as the newest."""
    pair = Pair()
    pair.log.aborted = {0}
    aborted = encode_batch([Record(0, T, b"a", b"1")], attributes=TRANSACTIONAL)
    pair.absorb([[aborted], [encode_batch([Record(1, T, b"a", None)])]])
    pair.check()
    assert pair.running.tombstones().copies.tolist() == [2]
    pair.rewrite(0, 0)
    assert pair.running.tombstones().copies.tolist() == [1]
    pair.check()


def test_a_due_tombstone_leaves_the_map_though_an_aborted_copy_stays() -> None:
    pair = Pair()
    pair.absorb([[encode_batch([Record(0, T, b"a", None)])]])
    pair.mark_due(1)
    pair.log.aborted = {1}
    pair.absorb([[encode_batch([Record(1, T, b"a", b"1")], attributes=TRANSACTIONAL)]])
    pair.rewrite(0, 0)
    pair.check()
    pair.absorb([[encode_batch([Record(2, T, b"a", b"2")])]])
    pair.check()


def test_nothing_comes_between_a_rewrite_and_its_swap() -> None:
    pair = Pair()
    pair.absorb([[encode_batch([Record(0, T, b"a", b"1")])], [encode_batch([Record(1, T, b"a", None)])]])
    (chunk,) = MemorySegment(pair.log.segments[0], 0, 1).chunk_reader()
    pair.running.count_removals(chunk, pair.running.resolution().dead)
    for forbidden in (
        lambda: pair.running.add_segments([]),
        lambda: pair.running.mark_due([1]),
        pair.running.to_parts,
    ):
        with pytest.raises(ValueError, match="rewrite is under way"):
            forbidden()
    with pytest.raises(ValueError, match="one rewrite at a time"):
        pair.running.replace_segments(1, 1, 10, 2)
    pair.running.discard_removals()
    pair.check()


def test_segments_below_the_limit_are_refused() -> None:
    pair = Pair()
    pair.absorb([[encode_batch([Record(0, T, b"a", b"1"), Record(1, T, b"b", b"1")])]])
    assert pair.running.limit == 2
    with pytest.raises(ValueError, match="ascending"):
        pair.running.add_segments([MemorySegment(b"", 1, 2)])


def test_a_sample_tells_the_share_of_garbage() -> None:
    """Within four standard deviations, because keys are sampled by their hash."""
    sources = synthetic(7, 20_000, 4000, 1000)
    wanted = resolve(sources, map_bytes=1 << 20, salt=SALT, now_ms=T, due_below=0)
    sample = RunningResolution(map_bytes=1 << 18, salt=SALT, share=1 / 8)
    assert not sample.exact
    sample.add_segments(sources)
    assert sample.resolution().records == wanted.records
    truth = sum(facts.dead_records for facts in wanted.segments)
    assert abs(sum(facts.dead_records for facts in sample.facts()) * 8 - truth) < 4 * np.sqrt(7 * truth * 5)
    assert abs(sample.distinct_keys * 8 - wanted.distinct_keys) < 4 * np.sqrt(7 * wanted.distinct_keys)


def test_a_sample_takes_its_share_of_records_without_a_key() -> None:
    log = [encode_batch([Record(i, T, None, b"v") for i in range(n, n + 100)]) for n in range(0, 8000, 100)]
    sample = RunningResolution(map_bytes=1 << 16, salt=SALT, share=1 / 4)
    sample.add_segments(segments(log, []))
    assert 1700 < sum(facts.dead_records for facts in sample.facts()) < 2300


def test_a_key_of_24_bytes_costs_at_most_52_however_it_came() -> None:
    """The budget and the memory in use, while the map grows and once it is full."""
    count = 30_000
    rows = np.random.default_rng(0).integers(0, 256, (count, 24), np.uint8)
    running = RunningResolution(map_bytes=52 * count, salt=b"s")
    done = 0
    for size in (1000, 1500, 4000, 9500, 14_000):
        (source,) = dense(rows[done : done + size])
        shifted = bytearray(source.data)
        rebase(shifted, done, 0)
        running.add_segments([MemorySegment(bytes(shifted), done, done + size)])
        done += size
        assert running.distinct_keys == done
        assert running._scan.map is not None
        assert running._scan.map.bytes_used <= 52 * done + 64
        assert running.memory_bytes <= 52 * done + 2000


def test_parts_that_do_not_fit_are_refused() -> None:
    pair = Pair()
    pair.absorb([[encode_batch([Record(i, T, b"k%d" % i, b"") for i in range(20)])] for _ in range(1)])
    parts = pair.running.to_parts()
    cut = parts["arena"][:-1]
    wrong: list[dict[str, Any]] = [
        parts | {"arena": cut},
        parts | {"keys": 21},
        parts | {"page_segments": parts["page_segments"] + 1},
        parts | {"page_slots": parts["page_slots"] + 9},
        parts | {"tally_sizes": parts["tally_sizes"][:0]},
    ]
    for changed in wrong:
        with pytest.raises(ValueError, match=r"."):
            RunningResolution.from_parts(changed, map_bytes=BIG)
    with pytest.raises(MapFull):
        RunningResolution.from_parts(running_of(3000).to_parts(), map_bytes=1024)


def running_of(count: int) -> RunningResolution:
    running = RunningResolution(map_bytes=1 << 20, salt=SALT)
    running.add_segments(dense(np.arange(count, dtype=np.uint64).reshape(-1, 1).view(np.uint8)))
    return running


def test_bits_of_a_rewritten_range_give_their_memory_back() -> None:
    running = RunningResolution(map_bytes=1 << 22, salt=SALT)
    rows = np.zeros((40_000, 8), np.uint8)
    running.add_segments(dense(rows))
    before = running.memory_bytes
    assert running.resolution().dead.count(0, 40_000) == 39_999
    running.replace_segments(0, 0, 500, 40_000)
    assert running.memory_bytes <= before - 9 * 512
    assert running.resolution().dead.offsets().tolist() == []


def test_bitmaps_of_the_rewrite_may_be_windows() -> None:
    pair = Pair()
    pair.absorb([[encode_batch([Record(0, T, b"a", b"1")])], [encode_batch([Record(1, T, b"a", None)])]])
    (chunk,) = MemorySegment(pair.log.segments[0], 0, 1).chunk_reader()
    pair.running.count_removals(chunk, DeadBitmaps.of([0]).window(0, 1))
    pair.running.replace_segments(0, 0, 0, 1)
    assert pair.running.tombstones().copies.tolist() == [1]


def test_a_segment_without_live_records_has_no_live_byte() -> None:
    """A quotient of floating point numbers was rounded down: 49 bytes of 49 were 48."""
    counts = SegmentCounts()
    counts.weights = np.arange(1, 2000)
    counts.worths = counts.weights[::-1].copy()
    segments = np.arange(counts.weights.size)
    assert (counts.scaled(segments, counts.weights) == counts.worths).all()
