"""Runs: what is written is found, merges keep the newest, damage is refused."""

import random
import struct
import tracemalloc
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

from lastword.errors import CorruptFileError
from lastword.keys import bulk, run
from lastword.keys.run import BLOCK_BYTES, BLOCK_ENTRIES, Memory, Run, RunWriter, entry_of
from lastword.segment.indexes import OffsetIndex
from lastword.segment.stored import SegmentId

SALT = b"0123456789abcdef"


def made(entries, home=None, start=0, end=100):
    memory = Memory()
    writer = RunWriter(memory, home or run.home_blocks(len(entries)), SALT, 7)
    writer.put_sorted(sorted(entry_of(digest, word) for digest, word in entries.items()))
    assert writer.finish(start, end) == len(memory.data)
    return Run(memory, len(memory.data), SALT)


def rows(entries):
    data = b"".join(entry_of(digest, word) for digest, word in entries)
    return np.frombuffer(data, np.uint8).reshape(-1, 24)


@pytest.mark.parametrize("count", [0, 1, 149, 170, 171, 5000])
def test_every_entry_is_found(count):
    chosen = random.Random(count)
    entries = {chosen.randbytes(16): chosen.randrange(1 << 40) for _ in range(count)}
    made_run = made(entries)
    made_run.check()
    assert made_run.entries == count
    assert all(made_run.find(digest) == word for digest, word in entries.items())
    assert all(made_run.find(chosen.randbytes(16)) is None for _ in range(100))
    assert len(made_run._source.data) <= count * 29 + 2 * BLOCK_BYTES


def test_entries_that_do_not_fit_their_block_continue():
    chosen = random.Random(1)
    entries = {bytes(4) + chosen.randbytes(12): n for n in range(3 * BLOCK_ENTRIES + 1)}
    entries |= {chosen.randbytes(16): n for n in range(100)}
    entries |= {b"\xff" * 4 + chosen.randbytes(12): n for n in range(2 * BLOCK_ENTRIES)}
    made_run = made(entries, home=4)
    assert made_run.blocks > 4
    made_run.check()
    assert all(made_run.find(digest) == word for digest, word in entries.items())
    assert made_run.find(bytes(16)) is None
    assert made_run.find(b"\xff" * 16) is None


@pytest.mark.parametrize("searched", [100, 1 << 16])
def test_many_are_found_as_each_is(monkeypatch, searched):
    """In slices of a run, and digests that differ in their second half alone."""
    monkeypatch.setattr(bulk, "SEARCHED", searched)
    chosen = random.Random(searched)
    digests = [chosen.randbytes(16) for _ in range(2000)]
    digests += [digest[:8] + chosen.randbytes(8) for digest in digests[:50] for _ in range(2)]
    made_run = made({digest: n for n, digest in enumerate(chosen.sample(digests, 1500))})
    chosen.shuffle(digests)
    words = bulk.find(made_run, np.frombuffer(b"".join(digests), np.uint64).reshape(-1, 2))
    assert [None if word < 0 else word for word in words.tolist()] == [made_run.find(d) for d in digests]


def test_digests_of_many_keys_are_those_of_each():
    keys = [b"", b"a", b"key" * 100]
    each = run.digest_function(SALT)
    assert bulk.digests_of(keys, SALT).tobytes() == b"".join(map(each, keys))


def test_a_deleted_key_with_the_same_first_half_hides_no_other(monkeypatch):
    deleted, present = b"half" * 2 + bytes(8), b"half" * 2 + b"\x01" * 8
    made_run = made({deleted: 9 << 1 | 1, present: 5 << 1})
    assert made_run.find(present) == 5 << 1 and made_run.find(deleted) == 9 << 1 | 1
    word = run._word
    monkeypatch.setattr(run, "_word", lambda data, digest, end: word(data, digest[:8], end))
    assert made_run.find(present) == 9 << 1 | 1, "by one hash of 64 bits it would be deleted"


def test_bytes_across_entries_are_no_entry():
    first, second = b"\x00" * 16, b"\x00" * 7 + b"\x01" + bytes(8)
    made_run = made({first: 5, second: 6})
    assert made_run.find(b"\x00" * 15 + b"\x05") is None


@pytest.mark.parametrize("slice_entries", [1, 10, 1000, 1 << 19])
@pytest.mark.parametrize("is_whole", [False, True])
def test_a_merge_keeps_the_newest_of_each_key(slice_entries, is_whole):
    chosen = random.Random(slice_entries)
    keys = [chosen.randbytes(16) for _ in range(300)]
    keys += [keys[0][:8] + chosen.randbytes(8) for _ in range(3)]  # digests that differ in their second half
    runs, newest = [], {}
    for age in range(4):
        entries = {key: chosen.randrange(1 << 20) for key in chosen.sample(keys, 150)}
        newest |= entries
        runs.insert(0, made(entries, start=age * 100, end=(age + 1) * 100))
    memory = Memory()
    bulk.merge(memory, runs, SALT, is_whole=is_whole, slice_entries=slice_entries)
    merged = Run(memory, len(memory.data), SALT)
    merged.check()
    assert (merged.start, merged.end) == (0, 400)
    for key in keys:
        word = newest.get(key)
        assert merged.find(key) == (None if is_whole and word is not None and word & 1 else word)


@pytest.mark.parametrize("collides", [False, True])
def test_a_window_keeps_the_newest_of_each_key(collides):
    chosen = random.Random(2)
    half = chosen.randbytes(8)
    keys = [(half if collides else chosen.randbytes(8)) + chosen.randbytes(8) for _ in range(20)]
    log = [(chosen.choice(keys), n << 1) for n in range(100)]
    entries = bulk.newest_first([rows(log[:40]), rows(log[40:])])
    found = {bytes(row[:16]): int.from_bytes(bytes(row[16:]), "little") for row in entries}
    assert found == dict(log)
    assert len(entries) == len(found)
    assert sorted(entries[:, :8].tobytes()[n : n + 8] for n in range(0, 8 * len(entries), 8)) == [
        entries[n, :8].tobytes() for n in range(len(entries))
    ]


def test_a_run_of_bulk_is_one_of_plain_python():
    chosen = random.Random(3)
    entries = {chosen.randbytes(16): n for n in range(2000)}
    memory = Memory()
    bulk.write_run(memory, bulk.distinct([rows(entries.items())]), SALT, 0, 100)
    made_run = Run(memory, len(memory.data), SALT)
    made_run.check()
    plain = made(entries)
    assert made_run.blocks == plain.blocks
    for number in range(plain.blocks):
        assert made_run._block(number)[0][:4080] == plain._block(number)[0][:4080]


def test_each_flipped_bit_is_damage():
    entries = {random.Random(n).randbytes(16): n for n in range(300)}
    memory = made(entries)._source
    for at in range(0, len(memory.data), 97):
        memory.data[at] ^= 1 << at % 8
        with pytest.raises(CorruptFileError):
            Run(memory, len(memory.data), SALT).check()
        memory.data[at] ^= 1 << at % 8
    Run(memory, len(memory.data), SALT).check()


def test_blocks_that_were_exchanged_are_damage():
    entries = {random.Random(n).randbytes(16): n for n in range(300)}
    memory = made(entries)._source
    first, second = bytes(memory.data[:BLOCK_BYTES]), bytes(memory.data[BLOCK_BYTES : 2 * BLOCK_BYTES])
    memory.data[: 2 * BLOCK_BYTES] = second + first
    made_run = Run(memory, len(memory.data), SALT)
    with pytest.raises(CorruptFileError, match="not the block of this place"):
        made_run.find(bytes(16))
    with pytest.raises(CorruptFileError, match="another index"):
        Run(memory, len(memory.data), bytes(16))


class FakeSegment(NamedTuple):
    base_offset: int
    offset_index: OffsetIndex
    id: SegmentId
    size: int = 50_000


def placed_view(log_start):
    """Return a log of two segments, whose offset indexes have a batch of 10 records every 5,000 bytes."""
    data = b"".join(struct.pack(">ii", 10 * n + 9, 5000 * n) for n in range(1, 10))
    segments = [
        FakeSegment(base, OffsetIndex(data, base, 50_000), SegmentId(base + 1, 9)) for base in (0, 100)
    ]
    return SimpleNamespace(segments=segments, log_start=log_start, log_end=200)


@pytest.mark.parametrize("log_start, most", [(0, 9), (37, 9), (150, 9), (0, 1)])
def test_a_run_with_places_has_the_same_entries_and_their_positions(log_start, most):
    chosen = random.Random(log_start)
    entries = {chosen.randbytes(16): n << 1 | (n % 7 == 0) for n in range(200)}
    memory, places = Memory(), bulk.Places(placed_view(log_start), most)
    bulk.merge(memory, [made(entries, end=200)], SALT, is_whole=False, places=places)
    placed = Run(memory, len(memory.data), SALT)
    placed.check()
    assert places.numbers == (1, 101)[:most] and placed.base == log_start
    for digest, word in entries.items():
        offset = word >> 1
        assert placed.find(digest) == (word if offset >= log_start else None)
        if offset >= log_start:
            batch = offset % 100 // 10  # the one before has an entry, but the first batch of a segment
            assert placed.position == (5000 * max(batch - 1, 0) if offset < 100 * most else -1)
    again = Memory()
    bulk.merge(again, [placed], SALT, is_whole=True)
    plain = Run(again, len(again.data), SALT)
    live = {digest for digest, word in entries.items() if word >> 1 >= log_start and not word & 1}
    assert plain.base == run.PLAIN and plain.entries == len(live)
    assert all(plain.find(digest) == entries[digest] for digest in live)


def test_offsets_that_span_too_much_have_no_places():
    entries = {bytes(15) + b"\x01": 5 << 1}
    memory, far = Memory(), made(entries, end=run.PLACED_OFFSETS)
    bulk.merge(memory, [far], SALT, is_whole=True, places=bulk.Places(placed_view(0), 9))
    assert Run(memory, len(memory.data), SALT).base == run.PLAIN


class LargeSegment:
    """A segment whose index is loaded by each use: `batches` of 10 records, one every 5,000 bytes."""

    batches = 10_000

    def __init__(self, number):
        self.base_offset = 10 * self.batches * number
        self.id = SegmentId(number, 0)
        self.size = 5000 * self.batches

    @property
    def offset_index(self):
        numbers = np.arange(1, self.batches)
        data = np.stack((10 * numbers + 9, 5000 * numbers), 1).astype(">i4").tobytes()
        return OffsetIndex(data, self.base_offset, self.size)


def large_log(count):
    segments = [LargeSegment(number) for number in range(count)]
    end = segments[-1].base_offset + 10 * LargeSegment.batches
    return SimpleNamespace(segments=segments, log_start=7, log_end=end)


def test_the_memory_of_places_is_that_of_their_limit(monkeypatch):
    """With any number of segments; each place is a cell before its batch at most."""
    limit_bytes = 1 << 16
    monkeypatch.setattr(bulk, "PLACES_BYTES", limit_bytes)
    for count in (2, 8, 40):
        tracemalloc.start()
        try:
            places = bulk.Places(large_log(count), count)
            held, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert held < limit_bytes + 300 * count + 20_000
        assert peak - held < 100 * LargeSegment.batches  # one index at a time
        cell_bytes = count * 5000 * LargeSegment.batches * 8 // limit_bytes + 1
        offsets = np.random.default_rng(count).integers(7, 10 * LargeSegment.batches * count, 5000)
        entries = np.zeros((len(offsets), 24), np.uint8)
        entries[:, 16:] = (offsets << 1).view(np.uint8).reshape(-1, 8)
        words = places.pack(entries)[:, 16:].copy().view(np.int64).reshape(-1)
        positions = (words >> 1 & (1 << 31) - 1) - 1
        batches = 5000 * (offsets % (10 * LargeSegment.batches) // 10)
        assert (positions >= 0).all() and (positions <= batches).all()
        assert (batches - positions < cell_bytes + 2 * 5000).all()
