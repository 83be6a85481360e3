"""The map of hashes: it finds what a dict of hashes finds, and gives up where hashes cannot decide."""

from __future__ import annotations

import logging
import random
import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword.errors import CorruptBatchError
from lastword.kernels.hashing import digest_seeds, seeds
from lastword.partition.transactions import Decisions
from lastword.records.formats import build_message
from lastword.resolve import Resolution, hash_map, whole
from lastword.resolve.facts import Rules
from lastword.resolve.hash_map import HashesUnsure, HashResolver
from lastword.resolve.whole import LogResolver
from tests.naive import hashing
from tests.naive import offset_map as naive
from tests.naive.pack import Record, encode_batch
from tests.naive.strategies import T, batches
from tests.resolve.support import MemorySegment, colliding_key, segments
from tests.resolve.test_outcomes import data, marker
from tests.resolve.test_resolver import same_as_a_dict

SALT = b"salt"
BIG = 1 << 20


def by_hash(
    sources: Sequence[MemorySegment],
    now_ms: int | None = None,
    map_bytes: int = BIG,
    outcomes: Decisions | None = None,
) -> Resolution:
    return HashResolver(sources, map_bytes, SALT, Rules.of(now_ms, 1 << 62), outcomes).run()


cuts = st.lists(st.integers(1, 12), max_size=4)


@given(batches(most=12), cuts, st.sampled_from([None, T]))
def test_like_a_dict(log: list[bytes], at: list[int], now_ms: int | None) -> None:
    sources = segments(log, at, chunk_bytes=200)
    same_as_a_dict(by_hash(sources, now_ms), sources, now_ms)


def colliding(number: int) -> bytes:
    """Return one of many keys with one salted hash: the first step multiplies by zero."""
    return colliding_key(SALT, number)


def hash_of(key: bytes) -> int:
    return hashing.key_hash(key, *(int(seed) for seed in seeds(SALT, b"lastword map")))


def test_the_planted_keys_have_one_hash_and_several_digests() -> None:
    keys = [colliding(number) for number in range(5)]
    assert len({hash_of(key) for key in keys}) == 1
    digest = [int(seed) for seed in digest_seeds(1)]
    assert len({hashing.key_hash(key, *digest) for key in keys}) == 5


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=30), cuts)
def test_two_keys_of_one_hash(records: list[tuple[int, bool]], at: list[int]) -> None:
    """Bits and counts are those of one key; a sum is wrong where a subtraction has another, newer key."""
    keys = [b"a", b"b", b"", *(colliding(number) for number in range(3))]
    log = [
        encode_batch([Record(offset, T, keys[number], None if dead else b"v")])
        for offset, (number, dead) in enumerate(records)
    ]
    sources = segments(log, at)
    resolution = by_hash(sources)
    seed = [int(part) for part in digest_seeds(resolution.digest_seed)]
    twin, newest = naive.resolve([source.data for source in sources], None, *seed, name=hash_of)
    exact, _ = naive.resolve([source.data for source in sources], None, *seed)
    assert resolution.dead.offsets().tolist() == sorted(set().union(*(facts.dead for facts in twin)))
    assert resolution.distinct_keys == len(newest)
    for facts, found, wanted in zip(twin, resolution.segments, exact, strict=True):
        assert (found.live_digest == wanted.digest) == (facts.digest == wanted.digest)
        assert facts.dead == wanted.dead or facts.digest != wanted.digest, "no mistake without a sum"


@pytest.mark.parametrize("superseded_by", [0, 1])
def test_a_due_tombstone_of_the_same_hash(superseded_by: int) -> None:
    """No sum has due tombstones: the kernel compares the digests."""
    log = [
        encode_batch([Record(0, T, colliding(0), None)], attributes=0x40, base_timestamp=T),
        encode_batch([Record(1, T, colliding(superseded_by), b"v")]),
    ]
    sources = segments(log, [1])
    if superseded_by == 0:
        same_as_a_dict(by_hash(sources, T), sources, T)
    else:
        with pytest.raises(HashesUnsure, match="two keys"):
            by_hash(sources, T)


def test_where_no_certificate_follows() -> None:
    """The map compares the digest hashes itself; transactions are left to the exact map."""

    def read(log: list[bytes]) -> Resolution:
        return HashResolver(segments(log, [1]), BIG, SALT, Rules(), Decisions(), certified=False).run()

    keys = [b"a", b"a", colliding(0), colliding(0), colliding(1)]
    log = [encode_batch([Record(n, T, key, b"v")]) for n, key in enumerate(keys)]
    assert read(log[:4]).dead.offsets().tolist() == [0, 2]
    with pytest.raises(HashesUnsure, match="two keys"):
        read(log)
    with pytest.raises(HashesUnsure, match="transactions"):
        read([data(0, (b"a", b"1")), marker(1, commit=True)])


def many(keys: int, records: int) -> list[MemorySegment]:
    rng = random.Random(keys)
    numbers = [*range(keys), *(rng.randrange(keys) for _ in range(records - keys))]
    log = [
        encode_batch(
            [Record(first + i, T, b"key-%d" % n, b"v") for i, n in enumerate(numbers[first : first + 50])]
        )
        for first in range(0, records, 50)
    ]
    return segments(log, list(range(0, len(log), 20)), chunk_bytes=3000)


def test_the_map_grows_within_its_budget() -> None:
    sources = many(4000, 6000)
    map_bytes = 160_000
    resolution = by_hash(sources, map_bytes=map_bytes)
    same_as_a_dict(resolution, sources, None)
    assert 4000 * hash_map.ENTRY_BYTES < resolution.map_bytes_used <= map_bytes
    assert 0.4 < resolution.map_used_ratio < 1
    with pytest.raises(HashesUnsure, match="full"):
        by_hash(sources, map_bytes=80_000)


def test_a_restart_keeps_within_the_budget() -> None:
    """The map of a shard is freed before a larger one is made: both together may be more than the budget."""
    tracemalloc.start()
    try:
        resolver = HashResolver([], 4 * BIG, SALT, Rules.of(None, 1 << 62))
        resolver.restart(120_000)
        assert BIG < resolver.entries.nbytes < 4 * BIG
        resolver.restart(10_000_000)
        assert tracemalloc.get_traced_memory()[1] < 4.1 * BIG
    finally:
        tracemalloc.stop()
    assert resolver.entries.nbytes == 4 * BIG and not resolver.entries.any()


@pytest.mark.parametrize("odd", ["large part", "shorter file", "wrong cut", "records", "magic 1", "order"])
def test_what_is_left_to_the_exact_map(odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = many(300, 3000)
    same_as_a_dict(by_hash(sources), sources, None)
    middle = sources[len(sources) // 2]
    error: type[Exception] = HashesUnsure
    if odd == "large part":
        monkeypatch.setattr(hash_map, "MOST_PART_BYTES", 500)
    elif odd == "shorter file":
        middle.data = middle.data[:-10]
    elif odd == "wrong cut":
        monkeypatch.setattr(hash_map, "PLAIN_PARTS", 1)
        cuts = middle.cuts(1)
        monkeypatch.setattr(middle, "cuts", lambda part_bytes: [0, cuts[1] + 1, cuts[-1]])
    elif odd == "records":
        monkeypatch.setattr(hash_map, "_MOST_RECORDS", 20)
        monkeypatch.setattr(hash_map, "_FIRST_RECORDS", 20)
    elif odd == "magic 1":
        middle.data = build_message(1, middle.base_offset, b"key", b"value", T)
        middle.size = len(middle.data)
    else:
        middle.data, middle.size, error = sources[-1].data, sources[-1].size, CorruptBatchError
    with pytest.raises(error):
        by_hash(sources)


def resolver(sources: Sequence[MemorySegment], **arguments: object) -> LogResolver:
    rules = Rules.of(None, 0)
    given_ = {"map_bytes": BIG, "salt": SALT, "rules": rules, "by_hash": True} | arguments
    scratch = given_.pop("scratch", None)
    return LogResolver(sources, None, None, scratch, **given_)  # type: ignore[arg-type]


def test_the_exact_map_decides_where_hashes_cannot(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(whole, "HASHES_FROM_BYTES", 0)
    sources = many(300, 900)
    good = resolver(sources)
    same_as_a_dict(good.run(), sources, None)
    assert (good.used_hashes, good.given_up_bytes) == (True, 0)
    monkeypatch.setattr(hash_map, "_LEAST_GROWTH", 1e9)
    with caplog.at_level(logging.INFO, "lastword.resolve"):
        full = resolver(sources)
        same_as_a_dict(full.run(), sources, None)
    assert not full.used_hashes and 0 < full.given_up_bytes <= full.source_bytes
    assert len(caplog.records) == 1 and "no map of hashes" in caplog.text


@pytest.mark.parametrize("why", ["small log", "small map", "scratch", "not certified"])
def test_without_a_map_of_hashes(why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    sources = many(100, 200)
    monkeypatch.setattr(whole, "HASHES_FROM_BYTES", 1 << 30 if why == "small log" else 0)
    chosen = resolver(
        sources,
        map_bytes=BIG - 1 if why == "small map" else BIG,
        scratch=str(tmp_path) if why == "scratch" else None,
        by_hash=why != "not certified",
    )
    same_as_a_dict(chosen.run(), sources, None)
    assert not chosen.used_hashes


def test_a_hash_of_zero_is_not_an_empty_slot() -> None:
    """A key of 16 bytes that begins with the second seed has the hash 0."""
    key = colliding(0)[:16]
    assert hash_of(key) == 0
    sources = segments([encode_batch([Record(n, T, key, b"v")]) for n in range(3)], [1])
    same_as_a_dict(by_hash(sources), sources, None)


def test_two_threads_find_the_same() -> None:
    sources = many(500, 1500)
    rules = Rules.of(T, 1 << 62)
    one, two = (HashResolver(sources, BIG, SALT, rules, threads=threads).run() for threads in (1, 2))
    assert one.segments == two.segments
    assert np.array_equal(one.dead.offsets(), two.dead.offsets())
