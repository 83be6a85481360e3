"""Joining of small batches of survivors: which may be joined, which never, and that nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lastword.cleaner.engine import output as module
from lastword.cleaner.engine.rewrite import rewrite
from lastword.cleaner.policy.groups import OutputLimits, group
from lastword.files import DEFAULT
from lastword.records.batch import BatchHeader, read_header
from lastword.records.compression import compress
from lastword.records.record import RawRecord
from lastword.segment.stored import SegmentFiles
from tests.build import LogBuilder
from tests.cleaner.support import HOUR, NOW, batch, contents, plan, resolved, rewrite_all
from tests.cleaner.support import write_segment as written
from tests.naive.pack import Record, encode_batch, seal

HORIZON = NOW + HOUR


def raw_batch(
    offset: int,
    *keys: bytes,
    codec: int = 0,
    attributes: int = 0,
    horizon_ms: int = HORIZON,
    max_timestamp: int | None = None,
    leader_epoch: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
    value: bytes | None = b"value",
) -> bytes:
    """Return a batch with one record for each key, from `offset` on, under the given header fields."""
    plain = encode_batch(
        [Record(offset + i, NOW - HOUR + offset + i, key, value) for i, key in enumerate(keys)],
        attributes=attributes | codec,
        base_timestamp=horizon_ms if attributes & 0x40 else None,
        max_timestamp=max_timestamp,
        leader_epoch=leader_epoch,
        producer=producer,
    )
    return seal(plain[:61] + compress(codec, plain[61:])) if codec else plain


def cleaned(tmp_path: Path, *batches: bytes) -> list[tuple[BatchHeader, list[RawRecord]]]:
    """Clean these batches and one more, which ends the group; return the batches left, without the last."""
    next_offset = read_header(batches[-1], 0, len(batches[-1]), "memory").last_offset + 1
    end = batch(next_offset, [(next_offset, b"end", b"")], producer_id=99)
    segment = written(tmp_path / "s", 0, [*batches, end])
    ((_, new),) = rewrite_all([segment], tmp_path / "o")
    *survivors, last = contents(new)
    assert last[0].producer_id == 99
    return survivors


def keys_by_batch(batches: list[tuple[BatchHeader, list[RawRecord]]]) -> list[list[bytes | None]]:
    return [[record.key for record in records] for _, records in batches]


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_neighbours_become_one(tmp_path: Path, codec: int) -> None:
    batches = [
        raw_batch(5 * i, b"hot", b"a%d" % i, b"hot", b"b%d" % i, b"hot", codec=codec) for i in range(4)
    ]
    ((header, records),) = cleaned(tmp_path, *batches)
    assert (header.base_offset, header.last_offset, header.count, header.codec) == (0, 19, 9, codec)
    assert [r.offset for r in records] == [1, 3, 6, 8, 11, 13, 16, 18, 19]
    assert [r.timestamp for r in records] == [NOW - HOUR + r.offset for r in records]
    assert header.max_timestamp == NOW - HOUR + 19
    assert header.leader_epoch == 0


FIRST = {"codec": 4, "attributes": 0}
DIFFERENT = {
    "a producer id": {"producer": (7, 0, 0)},
    "a producer's epoch": {"producer": (-1, 0, -1)},
    "a sequence": {"producer": (-1, -1, 3)},
    "the codec": {"codec": 3},
    "no codec": {"codec": 0},
    "the leader epoch": {"leader_epoch": 1},
    "an unknown leader epoch": {"leader_epoch": -1},
    "the kind of timestamp": {"attributes": 0x08},
    "a delete horizon": {"attributes": 0x40},
}


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("difference", DIFFERENT)
def test_what_differs_in_one_thing_stays_apart(
    tmp_path: Path, difference: str, whole: bool, first: bool
) -> None:
    other = DIFFERENT[difference]
    pair = [FIRST | other, FIRST] if first else [FIRST, FIRST | other]
    hot = () if whole else (b"hot",)
    batches = [raw_batch(4 * i, *hot, b"a%d" % i, b"b%d" % i, **facts) for i, facts in enumerate(pair)]
    dead = raw_batch(8, b"hot", b"gone"), raw_batch(10, b"hot", b"gone", leader_epoch=5)
    survivors = cleaned(tmp_path, *batches, *dead)
    assert keys_by_batch(survivors)[:2] == [[b"a0", b"b0"], [b"a1", b"b1"]], difference


def test_two_horizons_and_two_append_times_stay_apart(tmp_path: Path) -> None:
    timed = [raw_batch(3 * i, b"hot", b"k%d" % i, attributes=8, max_timestamp=NOW + i // 2) for i in range(4)]
    survivors = cleaned(tmp_path / "timed", *timed)
    assert keys_by_batch(survivors) == [[b"k0", b"k1"], [b"k2", b"hot", b"k3"]]
    assert [(r.timestamp) for _, records in survivors for r in records] == [
        NOW,
        NOW,
        NOW + 1,
        NOW + 1,
        NOW + 1,
    ]
    clocked = [
        raw_batch(3 * i, b"hot", b"k%d" % i, attributes=0x40, horizon_ms=HORIZON + i // 2, value=None)
        for i in range(4)
    ]
    survivors = cleaned(tmp_path / "clocked", *clocked)
    assert keys_by_batch(survivors) == [[b"k0", b"k1"], [b"k2", b"hot", b"k3"]]
    assert [h.delete_horizon_ms for h, _ in survivors] == [HORIZON, HORIZON + 1]
    assert [r.timestamp for _, records in survivors for r in records] == [
        NOW - HOUR + n for n in (1, 4, 7, 9, 10)
    ]


def test_a_tombstone_that_gets_its_clock_joins_its_like(tmp_path: Path) -> None:
    """All delete horizons set in a round are equal, so batches that get one may be joined."""
    batches = [raw_batch(2 * i, b"hot", b"k%d" % i, value=None if i in (1, 2) else b"v") for i in range(4)]
    survivors = cleaned(tmp_path, *batches)
    assert keys_by_batch(survivors) == [[b"k0"], [b"k1", b"k2"], [b"hot", b"k3"]]
    assert [h.delete_horizon_ms for h, _ in survivors] == [None, HORIZON, None]


def test_a_large_batch_that_lost_nothing_is_copied(tmp_path: Path) -> None:
    """Batches of half of the target or more are copied: joining would decompress and compress them again."""
    large = raw_batch(
        4, *(b"large-%d" % i for i in range(5)), codec=4, value=b"x" * (module.BATCH_BYTES // 10)
    )
    small = [raw_batch(o, b"hot", b"s%d" % o, codec=4) for o in (0, 2, 9, 11)]
    survivors = cleaned(tmp_path, *small[:2], large, *small[2:])
    assert [len(keys) for keys in keys_by_batch(survivors)] == [2, 5, 3]
    (file,) = (tmp_path / "o").glob("*/*.log")
    assert large in file.read_bytes()


def test_a_small_batch_with_strange_neighbours_is_copied(tmp_path: Path) -> None:
    small = raw_batch(2, b"s", codec=3, leader_epoch=4)
    survivors = cleaned(tmp_path, raw_batch(0, b"hot", b"a"), small, raw_batch(3, b"hot", b"b"))
    assert keys_by_batch(survivors) == [[b"a"], [b"s"], [b"hot", b"b"]]
    (file,) = (tmp_path / "o").glob("*/*.log")
    assert small in file.read_bytes()


@pytest.mark.parametrize("codec", [0, 2, 4])
def test_no_joined_batch_is_above_max_message_bytes(tmp_path: Path, codec: int) -> None:
    import random

    rng = random.Random(5)
    batches = [
        raw_batch(2 * i, b"hot", b"k%d" % i, value=rng.randbytes(rng.choice([10, 150])), codec=codec)
        for i in range(60)
    ]
    segment = written(tmp_path / "s", 0, batches)
    ((_, new),) = rewrite_all([segment], tmp_path / "o", plan(max_message_bytes=700))
    headers = [header for header, _ in contents(new)]
    assert max(h.size for h in headers) <= 700
    assert 6 < len(headers) < 40


def test_sparse_offsets_end_a_batch(tmp_path: Path) -> None:
    """An offset delta has 31 bits, whatever the offsets in a file."""
    far = (1 << 31) - 2
    batches = [raw_batch(0, b"hot", b"a"), raw_batch(far - 1, b"hot", b"b"), raw_batch(far + 1, b"hot", b"c")]
    segment = written(tmp_path / "s", 0, batches)
    resolution = resolved([segment])
    groups = group(resolution.segments, OutputLimits(1 << 30, 10 << 20, 4096))
    whole = replace(groups[0], last=0, next_offset=far + 3)
    output = module.OutputSegment(str(tmp_path), SegmentFiles(DEFAULT, str(tmp_path), 0), plan())
    rewrite(whole, [segment], resolution, plan(), output, lambda _: None)
    output.handle.close()
    survivors = contents(type(segment).load(SegmentFiles(DEFAULT, str(tmp_path), 0)))
    assert [(h.base_offset, h.last_offset) for h, _ in survivors] == [(0, far), (far + 1, far + 2)]
    assert keys_by_batch(survivors) == [[b"a", b"b"], [b"hot", b"c"]]


def test_rounds_reach_a_fixed_point(tmp_path: Path) -> None:
    """A joined batch is no longer small, so a later round that removes other records copies it."""
    log = LogBuilder(tmp_path)
    for i in range(400):
        log.batch([("hot", "x"), (f"k{i}", "v" * 500)])
    log.clean()
    sizes = [h.size for s in log.log.segments for h in s.headers()]
    assert len(sizes) < 16 and sum(size > module.BATCH_BYTES // 2 for size in sizes) >= len(sizes) - 2
    first = log.tree()[f"{0:020d}.log"]
    log.put("hot", "y").clean()
    second = log.tree()[f"{0:020d}.log"]
    assert second[: sum(sizes[:-2])] == first[: sum(sizes[:-2])]


@pytest.mark.parametrize("wins", ["fast", "default"])
def test_the_fast_level_of_zstd_is_taken_where_it_costs_no_bytes(
    wins: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int | None] = []

    def sized(codec: int, data: bytes, level: int | None = None) -> bytes:
        taken.append(level)
        return bytes(100 + (wins == "default" and level == 1))

    monkeypatch.setattr(module, "compress", sized)
    pack = module._Compressor()
    plain = np.frombuffer(batch(0, [(0, b"key", b"value")]), np.uint8)
    for _ in range(200):
        assert len(pack(4, plain)) == 161, "the sample is written at the default level"
    levels = taken[64:]  # of the first 32 both
    assert levels.count(1) == (168 if wins == "fast" else 6)
    assert levels.count(None) == (6 if wins == "fast" else 168), "of every 32nd both"
    assert len(pack(3, plain)) == 161 and taken[-1] is None, "lz4 has one level"
