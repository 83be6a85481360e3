"""A log resolved in shards: the same result as with one map of the whole log, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lastword import kernels
from lastword.errors import CorruptBatchError, CorruptFileError
from lastword.files import DEFAULT, Handle
from lastword.kernels import SLACK, key_batch
from lastword.partition.transactions import Decisions
from lastword.resolve import Resolution, resolve
from lastword.resolve.bitmaps import DeadBitmaps, union
from lastword.resolve.facts import LAST_HASH, Rules
from lastword.resolve.hash_map import HashesUnsure
from lastword.resolve.resolver import KeyBatchFiller
from lastword.resolve.shards import (
    ROWS,
    Extent,
    ShardResult,
    dead_offsets,
    extract,
    hash_range,
    merge_counts,
    merge_resolutions,
    read_index,
    resolve_divided,
    resolve_shard,
)
from lastword.segment.indexes import AbortedTransaction
from lastword.units import NEVER
from tests.naive.hashing import key_hash
from tests.naive.pack import Record, encode_batch
from tests.naive.rows import HashRow, divided, hash_row, joined
from tests.naive.rows import row as naive_row
from tests.naive.strategies import T, batches
from tests.resolve.support import MemorySegment, colliding_key, segments
from tests.resolve.test_outcomes import data, marker
from tests.resolve.test_resolver import same_as_a_dict, synthetic
from tests.support.exhaustive import few

SALT = b"salt"
NO_TRANSACTIONS = Decisions()


@contextmanager
def extracted(
    root: Path, sources: Sequence[MemorySegment], units: Sequence[int], shards: int, block_bytes: int = 4000,
    now_ms: int = T, outcomes: Decisions = NO_TRANSACTIONS, due_below: int = NEVER,
) -> Iterator[tuple[list[dict[str, object]], list[Handle], Rules]]:  # fmt: skip
    rules = Rules(decided=True, drop_keyless=True, now_ms=now_ms, due_below=due_below)
    edges = [0, *sorted({u for u in units if 0 < u < len(sources)}), len(sources)]
    parts, handles = [], []
    for number, (first, end) in enumerate(pairwise(edges)):
        path = root / f"unit-{number}"
        path.unlink(missing_ok=True)
        handle = DEFAULT.open_append(str(path), create=True, exclusive=True)
        following = sources[end].base_offset if end < len(sources) else None
        parts.append(
            extract(
                sources[first:end],
                following,
                handle,
                shards=shards,
                salt=SALT,
                rules=rules,
                outcomes=outcomes,
                block_bytes=block_bytes,
            )
        )
        handles.append(handle)
    try:
        yield parts, handles, rules
    finally:
        for handle in handles:
            handle.close()


@contextmanager
def scratch(root: Path) -> Iterator[Handle]:
    path = root / "scratch"
    path.unlink(missing_ok=True)
    with DEFAULT.open_append(str(path), create=True, exclusive=True) as out:
        yield out


def compare(
    root: Path, sources: list[MemorySegment], units: Sequence[int], shards: int,
    map_bytes: int = 1 << 20, **how: object,
) -> list[int]:  # fmt: skip
    """Compare the shards with one map of the log; return the passes of each shard."""
    with extracted(root, sources, units, shards, **how) as (parts, handles, rules):  # type: ignore[arg-type]
        extents = [Extent(s.base_offset, s.next_offset, s.size, s.file) for s in sources]
        resolutions = [
            resolve_shard(extents, handles, shard, shards, map_bytes=map_bytes, salt=SALT, rules=rules)
            for shard in range(shards)
        ]
        filled = [
            any(read_index(handle, shard, shards)[:, ROWS].any() for handle in handles)
            for shard in range(shards)
        ]
        marked = [
            DeadBitmaps.of(np.concatenate([np.empty(0, np.int64), *marked_by(handle, number, resolutions)]))
            for number, handle in enumerate(handles)
        ]
    whole = resolve(
        sources,
        map_bytes=1 << 20,
        salt=SALT,
        now_ms=rules.now_ms,
        outcomes=how.get("outcomes", NO_TRANSACTIONS),  # type: ignore[arg-type]
        due_below=rules.due_below,
    )
    bits = union(marked)
    assert sum(b.size for r in resolutions for b in r.dead_rows) <= (
        sum(segment.records for segment in whole.segments) / 8 + shards * len(handles)
    )
    counts = merge_counts(parts, resolutions)
    merged = merge_resolutions(counts.facts(), bits, resolutions, map_bytes=map_bytes, salt=SALT, seconds=0.0)
    assert result_of(merged) == result_of(whole)
    for by_hash in (False, True):
        with scratch(root) as out:
            alone = resolve_divided(
                sources,
                out,
                shards,
                map_bytes=1 << 20 if by_hash else map_bytes,
                salt=SALT,
                rules=rules,
                outcomes=how.get("outcomes", NO_TRANSACTIONS),  # type: ignore[arg-type]
                by_hash=by_hash,
            )
        assert result_of(alone) == result_of(whole)
        assert alone.passes >= sum(filled)
    for source in sources:
        window = union(part.window(source.base_offset, source.next_offset) for part in marked)
        inside = range(source.base_offset, source.next_offset)
        got, wanted = (
            [o for o in bitmaps.offsets().tolist() if o in inside] for bitmaps in (window, whole.dead)
        )
        assert got == wanted
    return [resolution.passes for resolution in resolutions]


def result_of(resolution: Resolution) -> tuple[Any, ...]:
    counts = (resolution.distinct_keys, resolution.records, resolution.keyless, resolution.digest_seed)
    return resolution.segments, resolution.dead.offsets().tolist(), counts


def marked_by(unit: Handle, number: int, shards: Sequence[ShardResult]) -> Iterator[np.ndarray]:
    """Yield the offsets that the shards mark as dead in a unit."""
    for shard, result in enumerate(shards):
        yield from dead_offsets(unit, shard, len(shards), result.dead_rows[number])


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    log=batches(most=10),
    cuts=st.lists(st.integers(1, 10), max_size=4),
    units=st.lists(st.integers(1, 4), max_size=2),
    shards=st.integers(1, 5),
    block_bytes=st.sampled_from([100, 1 << 20]),
)
def test_any_log(
    tmp_path: Path, log: list[bytes], cuts: list[int], units: list[int], shards: int, block_bytes: int
) -> None:
    compare(tmp_path, segments(log, cuts, chunk_bytes=200), units, shards, block_bytes=block_bytes)


def test_many_records_and_maps_that_are_too_small(tmp_path: Path) -> None:
    sources = synthetic(3, 6000, 900, 400)
    passes = compare(tmp_path, sources, [3, 4, 9], 7, map_bytes=1500)
    assert max(passes) > 2
    assert compare(tmp_path, sources, [], 1) == [1]


def test_transactions_and_leases(tmp_path: Path) -> None:
    log = [
        encode_batch([Record(0, T, b"a", b"1"), Record(1, T, b"b", b"1"), Record(2, T, b"d", None)],
                     attributes=0x40, base_timestamp=T - 5),
        data(3, (b"a", b"2"), (b"b", None), (None, b"x"), (b"new", b"1")),
        marker(7, commit=False),
        data(8, (b"b", b"2")),
        marker(9, commit=True),
        encode_batch([Record(10, T, b"e", None)], attributes=0x40, base_timestamp=T - 5),
    ]  # fmt: skip
    outcomes = Decisions([AbortedTransaction(5, 3, 7, 8)])
    for due_below in (0, 5, NEVER):
        compare(tmp_path, segments(log, [1, 3, 5]), [2], 3, outcomes=outcomes, due_below=due_below)


def test_offsets_with_holes(tmp_path: Path) -> None:
    rng = random.Random(5)
    offset, log = 1 << 40, []
    for _ in range(40):
        records = [Record(offset + n, T, b"k%d" % rng.randrange(9), b"v") for n in range(3)]
        log.append(encode_batch(records))
        offset += rng.choice([3, 1 << 13, 1 << 26])
    compare(tmp_path, segments(log, [7, 20]), [1], 4)


def test_shards_cover_every_hash_once() -> None:
    for shards in (1, 2, 3, 7, 4096):
        ranges = [hash_range(i, shards) for i in range(shards)]
        assert ranges[0][0] == 0 and ranges[-1][1] == LAST_HASH
        assert all(a[1] + 1 == b[0] for a, b in pairwise(ranges))
        for first, last in ranges:
            for hashed in (first, last):
                assert ranges[((hashed >> 32) * shards) >> 32] == (first, last)


def test_a_damaged_scratch_file_is_told(tmp_path: Path) -> None:
    sources = synthetic(4, 500, 50, 400)
    extents = [Extent(s.base_offset, s.next_offset, s.size, s.file) for s in sources]
    with extracted(tmp_path, sources, [], 1) as (_, handles, rules):
        path = tmp_path / "unit-0"
        whole = path.read_bytes()
        for position in (40, len(whole) // 2, len(whole) - 8):
            damaged = bytearray(whole)
            damaged[position] ^= 4
            path.write_bytes(damaged)
            with pytest.raises(CorruptFileError, match="not as it was written"):
                resolve_shard(extents, handles, 0, 1, map_bytes=1 << 20, salt=SALT, rules=rules)


def test_offsets_of_a_neighbour_are_told(tmp_path: Path) -> None:
    log = [encode_batch([Record(n, T, b"k", b"v") for n in range(base, base + 5)]) for base in (0, 5, 10)]
    sources = segments(log, [1, 2])
    sources[2].base_offset = 8  # the segment before it ends above it
    with pytest.raises(CorruptBatchError, match="do not increase"), extracted(tmp_path, sources, [1, 2], 2):
        pass


def test_ranges_that_share_a_page_are_joined() -> None:
    """A page has 4096 offsets: ranges end inside a page, at its end, or are empty."""
    offsets = np.array([3, 4000, 4095, 4096, 5000, 8191, 8192, 20_000, 40_000], np.int64)
    ranges = [(0, 4000), (4000, 4050), (4050, 8192), (8192, 30_000), (30_000, 31_000), (31_000, 50_000)]
    parts = [DeadBitmaps.of(offsets[(offsets >= a) & (offsets < b)]) for a, b in ranges]
    assert union(parts).offsets().tolist() == offsets.tolist()
    assert (
        union([DeadBitmaps.of(offsets[::2]), DeadBitmaps.of(offsets)]).offsets().tolist() == offsets.tolist()
    )
    assert union([]).offsets().size == 0


@pytest.mark.parametrize(
    "offsets", [[], [0], [1 << 61], [63, 64, 4095, 4096], [5, 5, 3, 1 << 40, 3], list(range(100, 9000))]
)
def test_bitmaps_of_offsets(offsets: list[int]) -> None:
    bitmaps = DeadBitmaps.of(offsets)
    assert bitmaps.offsets().tolist() == sorted(set(offsets))
    assert bitmaps.page_ids.tolist() == sorted({offset >> 12 for offset in offsets})


def test_bits_for_another_number_of_rows_are_refused(tmp_path: Path) -> None:
    sources = synthetic(4, 500, 50, 400)
    with extracted(tmp_path, sources, [], 1) as (_, handles, _rules):
        for size in (0, 249, 251):
            with pytest.raises(CorruptFileError, match="not as it was written"):
                next(dead_offsets(handles[0], 0, 1, np.zeros(size, np.uint8)))


# ---------------------------------------------------------------- in one process


def check_divided(
    root: Path,
    sources: list[MemorySegment],
    shards: int,
    map_bytes: int,
    now_ms: int | None,
    threads: int = 1,
    *,
    by_hash: bool = False,
) -> Resolution:
    """Resolve the log in divided shards and compare the result with a dict."""
    with scratch(root) as out:
        resolution = resolve_divided(
            sources,
            out,
            shards,
            map_bytes=map_bytes,
            salt=SALT,
            rules=Rules.of(now_ms, NEVER),
            threads=threads,
            by_hash=by_hash,
        )
        assert resolution.scratch_bytes == out.size()
    same_as_a_dict(resolution, sources, now_ms)
    return resolution


@settings(max_examples=few(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    log=batches(most=12),
    cuts=st.lists(st.integers(1, 12), max_size=4),
    now_ms=st.sampled_from([None, T]),
    shards=st.integers(1, 9),
    map_bytes=st.sampled_from([1024, 1600, 1 << 20]),
)
def test_divided_like_a_dict(
    tmp_path: Path, log: list[bytes], cuts: list[int], now_ms: int | None, shards: int, map_bytes: int
) -> None:
    sources = segments(log, cuts, chunk_bytes=200)
    check_divided(tmp_path, sources, shards, map_bytes, now_ms)
    check_divided(tmp_path, sources, shards, 1 << 20, now_ms, by_hash=True)


@pytest.mark.parametrize("threads", [1, 2])
def test_divided_over_maps_that_fit_and_that_do_not(tmp_path: Path, threads: int) -> None:
    sources = synthetic(3, 6000, 900, 400)
    fitting = check_divided(tmp_path, sources, 40, 4096, T, threads)
    assert fitting.passes == 40
    crowded = check_divided(tmp_path, sources, 3, 1500, T, threads)
    assert crowded.passes > 6 and crowded.segments == fitting.segments
    assert crowded.map_bytes_used <= 1500


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_of_hashes(tmp_path: Path, threads: int) -> None:
    sources = synthetic(3, 6000, 900, 400)
    done = check_divided(tmp_path, sources, 8, 4096, T, threads, by_hash=True)
    assert done.passes == 8 and done.map_bytes_used <= 4096
    assert 14 * done.records < done.scratch_bytes < 16 * done.records
    for map_bytes in (4096, 16, 15, 0):
        with pytest.raises(HashesUnsure, match=f"a map of {map_bytes} bytes is full with"):
            check_divided(tmp_path, sources, 3, map_bytes, T, threads, by_hash=True)


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_keys_that_share_the_hash_of_the_map_stay_two(tmp_path: Path, order: tuple[int, int]) -> None:
    log = [encode_batch([Record(n, T, colliding_key(SALT, key), b"v")]) for n, key in enumerate(order)]
    assert not check_divided(tmp_path, segments(log, [1]), 2, 4096, None, by_hash=True).dead.offsets().size


def one_hash(*given: Any) -> int:
    """Fill in a section whose keys share the first hash, and differ in the digest hash."""
    status = int(FILL_FROM_HASHES(*given))
    given[-1].hashes[0] = 7
    return status


FILL_FROM_HASHES = key_batch.fill_from_hashes


def test_rows_of_two_keys_with_one_hash_change_a_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the certificate refuses the segment of the older record."""
    monkeypatch.setattr(key_batch, "fill_from_hashes", one_hash)
    log = [encode_batch([Record(n, T, key, b"v")]) for n, key in enumerate((b"a", b"b", b"b"))]
    sources = segments(log, [1])
    with scratch(tmp_path) as out:
        rules = Rules.of(None, NEVER)
        found = resolve_divided(sources, out, 1, map_bytes=4096, salt=SALT, rules=rules, by_hash=True)
    exact = resolve(sources, map_bytes=4096, salt=SALT, now_ms=None)
    assert found.dead.offsets().tolist() == [0, 1] and exact.dead.offsets().tolist() == [1]
    same = [a.live_digest == b.live_digest for a, b in zip(found.segments, exact.segments, strict=True)]
    assert same == [False, True]


def test_a_due_tombstone_with_the_hash_of_another_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No sum has a due tombstone: the map compares the digest hashes."""
    monkeypatch.setattr(key_batch, "fill_from_hashes", one_hash)
    due = encode_batch([Record(0, T, b"a", None)], attributes=0x40, base_timestamp=T - 5)
    sources = segments([due, encode_batch([Record(1, T, b"b", b"v")])], [1])
    with pytest.raises(HashesUnsure, match="two keys"):
        check_divided(tmp_path, sources, 1, 4096, T, by_hash=True)


def test_divided_nothing(tmp_path: Path) -> None:
    with scratch(tmp_path) as out:
        resolution = resolve_divided([], out, 3, map_bytes=1 << 20, salt=SALT, rules=Rules())
        assert resolution.segments == () and resolution.passes == 0
    empty = MemorySegment(b"", 0, 0)
    assert check_divided(tmp_path, [empty], 3, 1 << 20, None).records == 0


def test_two_keys_with_one_hash_stay_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows get the same hash: the bytes of the keys decide."""
    sources = synthetic(6, 800, 60, 200)
    real = key_batch.fill_from_rows

    def one_hash(*given: Any) -> int:
        status = int(real(*given))
        given[-1].hashes[0] = 7
        return status

    monkeypatch.setattr(key_batch, "fill_from_rows", one_hash)
    check_divided(tmp_path, sources, 1, 1 << 20, None)


def test_progress_counts_the_log_and_then_the_scratch_file(tmp_path: Path) -> None:
    sources, calls = synthetic(4, 900, 50, 300), []
    with scratch(tmp_path) as out:
        resolve_divided(
            sources,
            out,
            3,
            map_bytes=1 << 20,
            salt=SALT,
            rules=Rules(),
            progress=lambda *now: calls.append(now),
        )
        total = sum(source.size for source in sources)
        assert calls[-1] == (total + out.size(), total + out.size())
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert (total, total) in calls


# ---------------------------------------------------------------- kernels


row = st.tuples(
    st.integers(0, (1 << 64) - 1),
    st.one_of(st.none(), st.binary(max_size=80), st.sampled_from([bytes(254), bytes(255), bytes(300)])),
    st.one_of(st.integers(0, 1 << 17), st.integers(0, (1 << 32) - 1)),
    st.sampled_from([0, 0, 0, key_batch.ABORTED, key_batch.DEAD_KEYLESS]),
    st.sampled_from([1, 2, 300, 65_535, 65_536, 1 << 40]),
)
WORDS = np.array([3, 5, 7, 9, 0, LAST_HASH], np.uint64)


@settings(max_examples=few(60))
@given(rows=st.lists(row, max_size=30), shards=st.integers(1, 6))
def test_rows_like_their_twin(rows: list[tuple[int, bytes | None, int, int, int]], shards: int) -> None:
    """The kernel divides rows as the naive twin does; joined again, a part has the records of its shard."""
    count = len(rows)
    filler = KeyBatchFiller(max(count, 1))
    data = np.frombuffer(b"".join(key or b"" for _, key, _, _, _ in rows) + bytes(SLACK), np.uint8).copy()
    position, records, offset = 0, [], 0
    for number, (hashed, key, size, flag, delta) in enumerate(rows):
        offset += delta
        records.append((hashed, (offset, size | flag, key)))
        filler.arrays.hashes[:, number] = hashed
        length = -1 if key is None else len(key)
        filler.arrays.spans[: key_batch.RECORD_END, number] = (position, length, offset, size | flag)
        position += max(length, 0)
    wanted = divided(records, shards)
    bins, sections = empty_bins([sum(map(len, part)) for part in wanted])
    arguments = (data, filler.arrays, 0, count, bins, sections, False)
    assert key_batch.divide_key_batch(*arguments) == (count, 0, kernels.OK)
    for shard in range(shards):
        start, _, end, number, _ = bins[shard].tolist()
        section = sections[start:end].tobytes()
        assert section == b"".join(wanted[shard]) and number == len(wanted[shard])
        for with_keyless in (True, False):
            assert read_back(section, number, with_keyless) == joined(section, with_keyless)
    if count:
        filler.arrays.spans[key_batch.KEY_LENGTH, 0] = position + 1
        _, _, status = key_batch.divide_key_batch(*arguments)
        assert status == kernels.NO_SLACK


def empty_bins(sizes: Sequence[int]) -> tuple[Any, Any]:
    """Return bins of these sizes, and their data."""
    starts = np.concatenate([[0], np.cumsum(np.array(sizes) + key_batch.BIN_SLACK)])
    bins = np.zeros((len(sizes), key_batch.BIN_FIELDS), np.int64)
    bins[:, key_batch.BIN_START] = bins[:, key_batch.BIN_END] = starts[:-1]
    bins[:, key_batch.BIN_LIMIT] = starts[:-1] + sizes
    return bins, np.zeros(starts[-1] + SLACK, np.uint8)


def test_a_full_bin_stops_before_its_record() -> None:
    filler = KeyBatchFiller(4)
    filler.arrays.spans[: key_batch.RECORD_END, :3] = np.array([(0, 5, n, 20) for n in range(3)]).T
    filler.arrays.hashes[:] = 0
    data = np.zeros(5 + SLACK, np.uint8)
    bins, sections = empty_bins([26 + 10 + 9])
    arguments = (3, bins, sections, False)
    assert key_batch.divide_key_batch(data, filler.arrays, 0, *arguments) == (2, 0, kernels.FULL)
    assert bins[0].tolist() == [0, 45, 36, 2, 1]
    bins[0, key_batch.BIN_LIMIT] = sections.size
    assert key_batch.divide_key_batch(data, filler.arrays, 2, *arguments) == (2, 0, kernels.NO_SLACK)


hash_rows = st.tuples(
    st.integers(0, (1 << 64) - 1),
    st.integers(0, (1 << 64) - 1),
    st.booleans(),
    st.one_of(st.integers(0, 1 << 13), st.integers(0, (1 << 32) - 1)),
    st.sampled_from([0, 0, 0, key_batch.ABORTED, key_batch.DEAD_KEYLESS]),
    st.sampled_from([1, 2, 300, 4095, 4096, 1 << 40]),
)


@settings(max_examples=few(60))
@given(rows=st.lists(hash_rows, max_size=30), room=st.integers(26, 200))
def test_rows_of_hashes_like_their_twin(rows: list[tuple[int, int, bool, int, int, int]], room: int) -> None:
    """The kernel fills sections as the naive twin does, and reads the same records from them."""
    count, offset = len(rows), 0
    filler = KeyBatchFiller(max(count, 1))
    records: list[HashRow] = []
    for number, (hashed, digest, keyed, size, flag, delta) in enumerate(rows):
        offset += delta
        records.append((offset, size | flag, keyed, hashed & 0xFFFFFF, digest))
        filler.arrays.hashes[:, number] = hashed, digest
        filler.arrays.spans[: key_batch.RECORD_END, number] = (0, keyed - 1, offset, size | flag)
    first = 0
    while first < count:
        bins, sections = empty_bins([room])
        end, _, status = key_batch.divide_key_batch(
            np.zeros(SLACK, np.uint8), filler.arrays, first, count, bins, sections, True
        )
        assert end > first and (status == kernels.OK) == (end == count)
        taken = records[first:end]
        before = [None, *(record[0] for record in taken[:-1])]
        section = b"".join(hash_row(record, *last) for record, *last in zip(taken, before, strict=True))
        assert sections[: bins[0, key_batch.BIN_END]].tobytes() == section
        assert read_hashes(section, len(taken)) == taken
        for size, number in ((len(section) - 1, len(taken)), (len(section), len(taken) + 1)):
            assert not read_hashes(section[:size], number)
        first = end


def read_hashes(section: bytes, count: int) -> list[HashRow]:
    data = np.frombuffer(section + bytes(SLACK), np.uint8).copy()
    filler = KeyBatchFiller(max(count, 1))
    status = key_batch.fill_from_hashes(data, len(section), count, filler.cursor, filler.arrays)
    if status != kernels.OK:
        return []
    found = []
    for i in range(int(filler.cursor[key_batch.FILLED])):
        _, length, offset, size = filler.arrays.spans[: key_batch.RECORD_END, i].tolist()
        hashed, digest = filler.arrays.hashes[:, i].tolist()
        assert hashed & 0xFF_FFFF_FFFF == digest & 0xFF_FFFF_FFFF
        found.append((offset, size, length == 0, hashed >> 40, digest))
    return found


def read_back(section: bytes, count: int, with_keyless: bool) -> list[tuple[int, int, bytes | None]]:
    data = np.frombuffer(section + bytes(SLACK), np.uint8).copy()
    filler = KeyBatchFiller(max(count, 1))
    status = key_batch.fill_from_rows(
        data, len(section), count, with_keyless, WORDS, filler.cursor, filler.arrays
    )
    assert status == kernels.OK
    entries: list[tuple[int, int, bytes | None]] = []
    for i in range(int(filler.cursor[key_batch.FILLED])):
        position, length, offset, size = filler.arrays.spans[: key_batch.RECORD_END, i].tolist()
        key = None if length < 0 else section[position : position + length]
        entries.append((offset, size, key))
        if key is not None:
            seeds = WORDS.tolist()
            assert filler.arrays.hashes[:, i].tolist() == [
                key_hash(key, *seeds[:2]),
                key_hash(key, *seeds[2:4]),
            ]
    return entries


def test_a_section_that_does_not_end_with_a_row() -> None:
    filler = KeyBatchFiller(4)
    arguments = (True, WORDS, filler.cursor, filler.arrays)
    long, short = naive_row(1, 3, b"12345", None), naive_row(2, 3, b"12345", 1)
    for section, count in (
        (long[:-1], 1),
        (long, 2),
        (long[:20], 1),
        (long + short[:-1], 2),
        (long + short[:4], 2),
        (long + short, 1),
    ):
        data = np.frombuffer(section + bytes(SLACK), np.uint8).copy()
        assert key_batch.fill_from_rows(data, len(section), count, *arguments) == kernels.BAD_RECORD
        assert key_batch.fill_from_rows(data, data.size, count, *arguments) == kernels.BAD_RECORD
    data = np.frombuffer(long + 4 * short + bytes(SLACK), np.uint8).copy()
    assert key_batch.fill_from_rows(data, data.size - SLACK, 5, *arguments) == kernels.FULL
