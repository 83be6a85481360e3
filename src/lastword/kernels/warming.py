"""Compile every kernel: call each once on a tiny batch, with the array types that the callers use."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lastword.kernels import (
    SLACK,
    batches,
    cache_folder,
    columns,
    digest,
    hashing,
    key_batch,
    legacy,
    lz4,
    offset_map,
    pack,
    pages,
    repack,
)
from lastword.kernels import table as fields
from lastword.kernels.hashing import digest_seeds

_READY = "ready"


def warm(progress: Callable[[str], None] | None = None) -> None:
    """Compile every kernel, or load it from the cache folder (about 0.3 s).

    Call it on a Spark driver before tasks start. The folder is marked when all kernels are in it.

    Args:
        progress: Gets one line if kernels have to be compiled.
    """
    ready = cache_folder() / _READY
    if progress is not None and not ready.exists():
        progress("compiling kernels (once)")
    _run_all()
    if not ready.exists():
        ready.touch(mode=0o600)


def _run_all() -> None:
    out, end = _pack()
    table = np.empty((4, fields.FIELDS), np.int64)
    batches.walk_batches(out, 0, end, 0, 0, True, table, 0)
    batches.valid_rows(out, table, 1)
    hashing.crc32c(out, 0, end)
    batches.assign_offsets(out, np.full(1, end, np.int64), 0, 0, table)
    fields.rows_before_roll(table, 0, 0, 1, 0, 1, 1, 0)
    entries = np.empty((1, 2), np.int64), np.empty((1, 2), np.int64)
    fields.index_rows(table, 1, 4096, np.zeros(fields.INDEX_STATE_FIELDS, np.int64), *entries)
    _columns(out, table)
    bits = np.zeros((1, pages.PAGE_WORDS), np.uint64)
    dead = pages.DeadBits(np.zeros(1, np.int64), np.zeros(1, np.int32), bits)
    pages.test_bits(dead, np.zeros(1, np.int64), np.zeros(1, np.bool_))
    pages.count_between(dead, 0, 0)
    seed0, seed1 = digest_seeds(0)
    digest.sum_pairs(out, table, 1, seed0, seed1)
    target = np.empty(4096, np.uint8)
    retain = np.zeros(1, np.uint8)
    joining, side = np.full(repack.JOINING_FIELDS, -1, np.int64), np.empty(SLACK, np.uint8)
    output = repack.RepackOutput(target, np.empty_like(table), np.empty(4, np.int64), joining, side)
    batches.rows_that_fit(out, table, 1, retain, 1)
    ends = np.zeros(1, np.int64)
    batches.find_plain_zstd(out, ends, ends, np.empty(1, np.bool_))
    digest.sum_contents(out, table, 1, dead, retain, -1, np.empty(1, np.uint8), np.empty(1, np.int64))
    repack.repack_rows(repack.RepackSource(out, out, table), 1, 0, retain, dead, -1, output, 0, 0)
    repack.bytes_needed(table, 0, side)
    repack.seal_joined(target, table, output.classes, 0)
    lz4.decompress_lz4_rows(out, table, 0, 1, retain, target, 0)
    repack.mark_dead_rows(table, 1, dead, retain)
    _resolve(out, table)
    _legacy()


def _legacy() -> None:
    """Call the kernels on a message of magic 0, alone and inside a wrapper; its checksum is not verified."""
    entry = np.zeros(26 + SLACK, np.uint8)
    entry[11], entry[18:26] = 14, 0xFF  # size; no key, no value
    table, uncompressed = np.empty((1, fields.FIELDS), np.int64), np.empty(1024, np.uint8)
    batches.walk_batches(entry, 0, 26, 0, 0, False, table, 0)
    legacy.translate_messages(entry, table, 0, 1, uncompressed, 0)
    legacy.scan_inner(entry, 26)
    legacy.translate_wrapper(entry, 1, 0, 0, table, 0, uncompressed, 0)


def _pack() -> tuple[np.ndarray, int]:
    data = np.zeros(8, np.uint8)
    data.flags.writeable = False
    length = np.ones(1, np.int64)
    zero = np.zeros(1, np.int64)
    none = np.empty(0, np.int64)
    out = np.zeros(1024 + SLACK, np.uint8)
    packed = np.empty((1, pack.PACKED_FIELDS), np.int64)
    filled, empty = pack.Spans(data, zero, length), pack.Spans(data, none, none)
    records = pack.RecordSpans(filled, filled, zero, none, empty, empty)
    pack.pack_records(records, 0, -1, 16384, 0, out, packed)
    end = int(packed[0, pack.PACKED_SIZE])
    pack.seal_batch(out, 0, end)
    return out, end


def _columns(uncompressed: np.ndarray, table: np.ndarray) -> None:
    arrays = columns.ColumnArrays.empty(1)
    columns.decode_rows(uncompressed, table, 1, False, arrays)
    columns.check_records(uncompressed, table, 0, 0, 0, True, 0, np.empty((1, 2), np.int64))
    columns.find_record(uncompressed, table, 0, 0, np.empty(columns.RECORD_FIELDS, np.int64))
    key_position, key_length = arrays.key_position, arrays.key_length
    spans = (np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.int32))
    columns.decode_headers(uncompressed, arrays.header_position, arrays.header_count, *spans)
    columns.span_bytes(key_length)
    edges = np.zeros(2, np.int32)
    edges.flags.writeable = False
    hashing.murmur2_partitions(np.frombuffer(b"key", np.uint8), edges, 1, np.zeros(1, np.int64))
    hashing.hash_spans(uncompressed, key_position, key_length, *digest_seeds(0), np.zeros(1, np.uint64))
    target = np.empty(1024, np.uint8)
    columns.gather_spans(
        uncompressed, key_position, key_length, np.empty(2, np.int32), target, np.zeros(1, np.uint8)
    )


def _resolve(uncompressed: np.ndarray, table: np.ndarray) -> None:
    state = np.zeros(offset_map.STATE_FIELDS, np.int64)
    state[offset_map.ARENA_END] = offset_map.ARENA_START
    state[offset_map.ARENA_LIMIT] = 512
    state[offset_map.MAX_ENTRIES] = 6
    words = np.zeros(key_batch.WORD_FIELDS, np.uint64)
    words[key_batch.RANGE_LAST] = np.uint64((1 << 64) - 1)
    key_map = offset_map.KeyMap(np.zeros(1024, np.uint8), np.zeros(8, np.uint64), state, words)
    ids, rows, segments = np.zeros(4, np.int64), np.full(4, -1, np.int32), np.zeros(4, np.int32)
    bits = np.zeros((4, pages.PAGE_WORDS), np.uint64)
    store = pages.Pages(ids, rows, segments, bits)
    stats = np.zeros((1, offset_map.STAT_FIELDS), np.int64)
    counts = offset_map.CountArrays(np.zeros(1, np.int64), stats, np.zeros(1, np.uint64))
    cursor = np.zeros(key_batch.CURSOR_FIELDS, np.int64)
    cursor[key_batch.FIRST_PASS] = 1
    spans = np.empty((key_batch.SPAN_FIELDS, 8), np.int64)
    homes = np.empty((2, 8), np.int64)
    batch = key_batch.KeyBatch(np.empty((2, 8), np.uint64), spans, np.empty(8, np.int64), homes)
    key_batch.fill_key_batch(uncompressed, table, np.zeros(4, np.uint8), 1, cursor, words, batch)
    state[offset_map.PAGES] = cursor[key_batch.PAGES_MET]
    offset_map.insert_keys(uncompressed, batch, int(cursor[key_batch.FILLED]), 0, key_map, store, counts)
    section = np.zeros(256 + SLACK, np.uint8)
    bins = np.array([[0, 256, 0, 0, 0]], np.int64)
    key_batch.divide_key_batch(uncompressed, batch, 0, 1, bins, section)
    key_batch.fill_from_rows(section, int(bins[0, key_batch.BIN_END]), 1, True, words, cursor, batch)
    offset_map.find_key(key_map, uncompressed, 1)
    lists = np.empty(1, np.int64), np.empty(1, np.int64), np.empty(1, np.uint8), np.empty(1, np.int64)
    offset_map.list_tombstones(key_map.arena, state, *lists)
    offset_map.mark_due(key_map, np.empty(0, np.int64), store, counts)
    offset_map.count_removals(uncompressed, table, 1, key_map, pages.DeadBits(ids, rows, bits))
    offset_map.apply_removals(key_map.arena, state, True)
    offset_map.drop_entries(key_map, store, counts)
    key_map.slots[:] = 0
    offset_map.rebuild_slots(key_map, homes)
