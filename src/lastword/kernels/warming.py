"""Every kernel once, on one tiny batch, with the array types that the callers use."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lastword.kernels import (
    SLACK,
    arena,
    batches,
    cache,
    columns,
    copies,
    crc32c,
    digest,
    gather,
    indexes,
    join,
    legacy,
    lz4,
    murmur2,
    offset_map,
    pack,
    pages,
    piece,
    ready,
    repack,
    span_hashes,
)
from lastword.kernels.keyhash import digest_seeds
from lastword.kernels.table import FIELDS

_READY = "ready"


def warm_all(progress: Callable[[str], None] | None = None) -> None:
    """Compile or load all kernels; the folder is marked once everything in it is complete."""
    ready = cache.cache_folder() / _READY
    if progress is not None and not ready.exists():
        progress("compiling kernels (once)")
    _run_all()
    if not ready.exists():
        ready.touch(mode=0o600)


def _run_all() -> None:
    out, end = _pack()
    table = np.empty((4, FIELDS), np.int64)
    batches.walk_batches(out, 0, end, 0, 0, True, table, 0)
    batches.sound_rows(out, table, 1)
    crc32c.crc32c(out, 0, end)
    ready.place_ready(out, np.full(1, end, np.int64), 0, 0, table)
    ready.rows_before_roll(table, 0, 0, 1, 0, 1, 1, 0, False, False)
    entries = np.empty((1, 2), np.int64), np.empty((1, 2), np.int64)
    indexes.index_rows(table, 1, 4096, np.zeros(indexes.STATE_FIELDS, np.int64), *entries)
    _columns(out, table)
    bits = (np.zeros(1, np.int64), np.zeros(1, np.int32), np.zeros((1, pages.PAGE_WORDS), np.uint64))
    pages.test_bits(*bits, np.zeros(1, np.int64), np.zeros(1, np.bool_))
    pages.count_between(*bits, 0, 0)
    seed0, seed1 = digest_seeds(0)
    digest.sum_pairs(out, table, 1, seed0, seed1)
    target = np.empty(4096, np.uint8)
    classes = np.empty(4, np.int64)
    retain = np.zeros(1, np.uint8)
    joining, side = np.full(join.JOINING_FIELDS, -1, np.int64), np.empty(SLACK, np.uint8)
    rest = (target, 0, np.empty_like(table), 0, classes, joining, side)
    batches.rows_within(out, table, 1, retain, 1)
    digest.sum_contents(out, table, 1, *bits, retain, -1, np.empty(1, np.uint8), np.empty(1, np.int64))
    repack.repack_rows(out, out, table, 1, 0, retain, *bits, -1, 0, *rest)
    repack.room_needed(table, 0, side)
    lz4.inflate_lz4_rows(out, table, 0, 1, retain, target, 0)
    repack.mark_dead_rows(table, 1, *bits, retain)
    _resolve(out, table)
    _legacy()


def _legacy() -> None:
    """One message of magic 0, alone and as the inner entry of a wrapper; its checksum is not asked for."""
    entry = np.zeros(26 + SLACK, np.uint8)
    entry[11], entry[18:26] = 14, 0xFF  # size; no key, no value
    table, plain = np.empty((1, FIELDS), np.int64), np.empty(1024, np.uint8)
    batches.walk_batches(entry, 0, 26, 0, 0, False, table, 0)
    legacy.translate_messages(entry, table, 0, 1, plain, 0)
    legacy.survey_inner(entry, 26)
    legacy.translate_wrapper(entry, 1, 0, 0, table, 0, plain, 0)


def _pack() -> tuple[np.ndarray, int]:
    data = np.zeros(8, np.uint8)
    data.flags.writeable = False
    one = np.ones(1, np.int64)
    zero = np.zeros(1, np.int64)
    none = np.empty(0, np.int64)
    out = np.zeros(1024 + SLACK, np.uint8)
    packed = np.empty((1, pack.PACKED_FIELDS), np.int64)
    spans = (data, zero, one, data, zero, one)
    pack.pack_records(*spans, zero, none, data, none, none, data, none, none, 0, -1, 16384, 0, out, packed)
    end = int(packed[0, pack.PACKED_SIZE])
    pack.seal_batch(out, 0, end)
    pack.rebase_batches(out, end, 0, 0)
    return out, end


def _columns(plain: np.ndarray, table: np.ndarray) -> None:
    kinds = (np.int64, np.int64, np.int64, np.int32, np.int64, np.int32, np.int64, np.int32, np.int32)
    found = [np.zeros(1, kind) for kind in kinds]
    columns.decode_rows(plain, table, 1, False, *found)
    key_position, key_length, header_position, header_count = found[2], found[3], found[6], found[7]
    spans = (np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int32))
    columns.decode_headers(plain, header_position, header_count, *spans)
    gather.span_bytes(key_length)
    edges = np.zeros(2, np.int32)
    edges.flags.writeable = False
    murmur2.murmur2_partitions(np.frombuffer(b"key", np.uint8), edges, 1, np.zeros(1, np.int64))
    span_hashes.hash_spans(plain, key_position, key_length, *digest_seeds(0), np.zeros(1, np.uint64))
    target = np.empty(1024, np.uint8)
    gather.gather_spans(plain, key_position, key_length, np.empty(2, np.int32), target, np.zeros(1, np.uint8))


def _resolve(plain: np.ndarray, table: np.ndarray) -> None:
    arena_block = np.zeros(1024, np.uint8)
    slots = np.zeros(8, np.uint64)
    state = np.zeros(offset_map.STATE_FIELDS, np.int64)
    state[offset_map.ARENA_END] = arena.ARENA_START
    state[offset_map.ARENA_LIMIT] = 512
    state[offset_map.MOST_USED] = 6
    words = np.zeros(piece.WORD_FIELDS, np.uint64)
    words[piece.RANGE_LAST] = np.uint64((1 << 64) - 1)
    cursor = np.zeros(piece.CURSOR_FIELDS, np.int64)
    cursor[piece.FIRST_PASS] = 1
    hashes = np.empty((2, 8), np.uint64)
    spans = np.empty((piece.SPAN_FIELDS, 8), np.int64)
    met = np.empty(8, np.int64)
    ids, rows, segments = np.zeros(4, np.int64), np.full(4, -1, np.int32), np.zeros(4, np.int32)
    bits = np.zeros((4, pages.PAGE_WORDS), np.uint64)
    store = ids, rows, segments, bits
    bases = np.zeros(1, np.int64)
    stats = np.zeros((1, offset_map.STAT_FIELDS), np.int64)
    sums = np.zeros(1, np.uint64)
    tally = bases, stats, sums
    piece.fill_piece(plain, table, np.zeros(4, np.uint8), 1, cursor, words, hashes, spans, met)
    state[offset_map.PAGES] = cursor[piece.PAGES_MET]
    homes = np.empty((2, 8), np.int64)
    filled = int(cursor[piece.FILLED])
    offset_map.settle_piece(
        plain, hashes, spans, filled, homes, 0, arena_block, slots, state, words, *store, *tally
    )
    offset_map.find_key(arena_block, slots, words, plain, 1)
    lists = np.empty(1, np.int64), np.empty(1, np.int64), np.empty(1, np.uint8), np.empty(1, np.int64)
    copies.list_tombstones(arena_block, state, *lists)
    copies.mark_due(arena_block, state, words, np.empty(0, np.int64), *store, *tally)
    copies.note_going(plain, table, 1, arena_block, slots, words, ids, rows, bits)
    copies.settle_going(arena_block, state, True)
    offset_map.drop_entries(arena_block, state, words, ids, segments, *tally)
    slots[:] = 0
    offset_map.rebuild(arena_block, slots, state, words, homes)
