"""Every kernel once, on one tiny batch, with the array types that the callers use."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lastword.kernels import (
    SLACK,
    batches,
    cache,
    columns,
    crc32c,
    digest,
    gather,
    indexes,
    legacy,
    offset_map,
    pack,
    pages,
    repack,
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
    crc32c.crc32c(out, 0, end)
    entries = np.empty((1, 2), np.int64), np.empty((1, 2), np.int64)
    indexes.index_rows(table, 1, 4096, np.zeros(indexes.STATE_FIELDS, np.int64), *entries)
    _columns(out, table)
    bits = (np.zeros(1, np.int64), np.zeros(1, np.int32), np.zeros((1, pages.PAGE_WORDS), np.uint64))
    pages.test_bits(*bits, np.zeros(1, np.int64), np.zeros(1, np.bool_))
    pages.count_between(*bits, 0, 0)
    seed0, seed1 = digest_seeds(0)
    digest.sum_pairs(out, table, 1, seed0, seed1)
    digest.sum_contents(out, table, 1, *bits)
    target = np.empty(4096, np.uint8)
    classes = np.empty(4, np.int64)
    retain = np.zeros(1, np.uint8)
    repack.repack_rows(
        out, out, table, 1, 0, retain, *bits, -1, 0, target, 0, np.empty_like(table), 0, classes
    )
    repack.room_needed(table, 0)
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
    target = np.empty(1024, np.uint8)
    gather.gather_spans(plain, key_position, key_length, np.empty(2, np.int32), target, np.zeros(1, np.uint8))


def _resolve(plain: np.ndarray, table: np.ndarray) -> None:
    block = np.zeros(1024, np.uint8)
    state = np.zeros(offset_map.STATE_FIELDS, np.int64)
    state[offset_map.ARENA_END] = offset_map.ARENA_START
    state[offset_map.SLOTS] = 8
    state[offset_map.SLOTS_START] = 1024 - 64
    state[offset_map.MOST_USED] = 6
    words = np.zeros(offset_map.WORD_FIELDS, np.uint64)
    words[offset_map.RANGE_LAST] = np.uint64((1 << 64) - 1)
    ids, slots, segments = np.empty(4, np.int64), np.empty(4, np.int32), np.empty(4, np.int32)
    bits = np.zeros((4, pages.PAGE_WORDS), np.uint64)
    bases = np.zeros(1, np.int64)
    stats = np.zeros((1, offset_map.STAT_FIELDS), np.int64)
    sums = np.zeros(1, np.uint64)
    hashes = np.empty((3, 8), np.uint64)
    spans = np.empty((6, 8), np.int64)
    offset_map.resolve_rows(
        plain,
        table,
        np.zeros(4, np.uint8),
        1,
        block,
        state,
        words,
        ids,
        slots,
        segments,
        bits,
        bases,
        stats,
        sums,
        hashes,
        spans,
    )
    offset_map.find_key(block, state, words, plain, 1)
    offset_map.drop_outside(block, state, words, ids, segments, bases, stats, sums)
    block[1024 - 64 :] = 0
    offset_map.rebuild(block, state, words)
