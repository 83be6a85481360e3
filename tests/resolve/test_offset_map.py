from __future__ import annotations

import pytest

from lastword.kernels import offset_map as loops
from lastword.kernels import table as fields
from lastword.resolve.facts import Rules
from lastword.resolve.offset_map import OffsetMap
from lastword.resolve.resolver import Resolver
from tests.naive.pack import Record, encode_batch
from tests.resolve.support import segments


def filled(records: list[Record], map_bytes: int = 1 << 16) -> OffsetMap:
    resolver = Resolver(segments([encode_batch(records)], []), map_bytes, b"s", Rules())
    resolver.run()
    assert resolver.scan.map is not None
    return resolver.scan.map


def test_the_budget_bounds_arena_and_slots() -> None:
    offset_map = filled([Record(0, 0, b"k", b"")], 5003)
    assert offset_map.map_bytes == 5000
    assert offset_map.bytes_used <= offset_map.peak_bytes <= 5000
    assert offset_map.state[loops.ARENA_LIMIT] + offset_map.slots.nbytes <= 5000


def test_a_small_log_touches_little_of_a_large_budget() -> None:
    offset_map = filled([Record(i, 0, b"%d" % i, b"") for i in range(100)], 1 << 26)
    assert offset_map.bytes_used < 10_000


def test_no_map_without_bytes() -> None:
    """6A.7: A cleaner whose map has no room for a key cannot be constructed."""
    with pytest.raises(ValueError, match="at least"):
        OffsetMap(100, b"", 0, max_records=1, key_bytes=8)


def test_constants_that_two_modules_share() -> None:
    from lastword.kernels import pages

    assert pages._PAGES_STORED == loops.PAGES_STORED
    assert fields.FIELDS == fields.RECORDS_END + 1


def test_keys_with_one_tag_and_one_slot_stay_two() -> None:
    """Equal tags only make a candidate. The test searches for two such keys under the salt of the map."""
    from lastword.kernels.hashing import seeds
    from tests.naive.hashing import MASK, key_hash

    seed0, seed1 = (int(seed) for seed in seeds(b"s", b"lastword map"))
    seen: dict[tuple[int, int], bytes] = {}
    pair = None
    for i in range(60_000):
        key = b"%06d" % i
        hashed = key_hash(key, seed0, seed1)
        slot = (hashed * int(loops._SPREAD) & MASK) * 8 >> 64
        other = seen.setdefault((hashed & 0xFFFFFF, slot), key)
        if other != key:
            pair = other, key
            break
    assert pair is not None
    first, second = pair
    offset_map = filled([Record(0, 0, first, b""), Record(1, 0, second, b""), Record(2, 0, first, b"")])
    assert offset_map.slots.size == 8  # the number of slots used in the search
    assert offset_map.distinct_keys == 2
    assert (offset_map.newest(first), offset_map.newest(second)) == (2, 1)
