"""Survivors that were copied are rewritten and summed like their whole chunk."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword import kernels
from lastword.kernels import key_batch
from lastword.kernels import table as fields
from lastword.kernels.digest import sum_contents
from lastword.kernels.repack import BEFORE_FIELDS, RepackSource
from lastword.kernels.survivors import copy_survivors
from lastword.records.chunk import Chunk, chunk_of
from lastword.records.compression import compress
from lastword.resolve.facts import Rules
from lastword.resolve.resolver import KeyBatchFiller
from lastword.resolve.survivors import NO_BEFORE
from lastword.wire import HEADER_BYTES, LENGTH_AT, LZ4, ZSTD
from tests.kernels.support import NO_BITS, bits
from tests.kernels.test_repack import repacked
from tests.naive.pack import Record, encode_batch, seal
from tests.naive.strategies import T, batches


def compressed(batch: bytes, codec: int) -> bytes:
    if not codec or len(batch) == HEADER_BYTES:
        return batch
    packed = bytearray(batch[:HEADER_BYTES] + compress(codec, batch[HEADER_BYTES:]))
    packed[LENGTH_AT : LENGTH_AT + 4] = (len(packed) - 12).to_bytes(4, "big")
    packed[22] |= codec
    return seal(bytes(packed))


def settled(chunk: Chunk, dead: set[int]) -> tuple[key_batch.KeyBatch, int]:
    """Return the key batch of a chunk, with the flag of dead records."""
    filler = KeyBatchFiller(1000)
    filler.start(Rules(), first_pass=True, old_due=False)
    outcomes = np.zeros(chunk.rows, np.uint8)
    words = np.zeros(key_batch.WORD_FIELDS, np.uint64)
    words[key_batch.RANGE_LAST] = 0xFFFFFFFFFFFFFFFF
    filler.fill(chunk, outcomes, words)
    spans, filled = filler.arrays.spans, int(filler.cursor[key_batch.FILLED])
    gone = np.isin(spans[key_batch.OFFSET, :filled], sorted(dead))
    spans[key_batch.SIZE, :filled][gone] |= key_batch.DEAD
    return filler.arrays, filled


def copied(
    chunk: Chunk, dead: set[int], start: int = 0, room: int = 1 << 20
) -> tuple[RepackSource, int, int]:
    """Return (the survivors, sum of their contents, status)."""
    out = np.full(room, 0xEE, np.uint8)
    table, before = np.empty_like(chunk.table), np.empty((chunk.rows, BEFORE_FIELDS), np.int64)
    source = RepackSource(chunk.raw, chunk.uncompressed, chunk.table, NO_BEFORE)
    batch, filled = settled(chunk, dead)
    end, contents, _row, status = copy_survivors(source, chunk.rows, batch, filled, out, start, table, before)
    assert end <= room - kernels.SLACK
    return RepackSource(out, out, table, before), int(contents), status


def summed(source: RepackSource, dead: Any, retain: list[int], horizon_ms: int) -> tuple[Any, ...]:
    rows = len(source.table)
    ends, largest = np.empty(rows, np.uint8), np.empty(rows, np.int64)
    kept = np.array(retain, np.uint8)
    *sums, _row, status = sum_contents(
        source.uncompressed, source.table, source.before, rows, dead, kept, horizon_ms, ends, largest
    )
    assert status == kernels.OK
    return (*map(int, sums), ends.tolist())


@pytest.mark.slow
@given(
    batches(
        time=st.integers(T - 100, T + 100),
        most=7,
        attribute_choices=(0, 0, 0, 0x08, 0x10, 0x40),
        leader_epochs=(0, 0, 1),
        producers=((-1, -1, -1), (-1, -1, -1), (-1, -1, -1), (5, 2, 9)),
    ).filter(bool),
    st.data(),
)
def test_like_the_whole_chunk(log: list[bytes], data: st.DataObject) -> None:
    codec = st.sampled_from([0, 0, LZ4, ZSTD])
    chunk = chunk_of(b"".join(compressed(batch, data.draw(codec)) for batch in log))
    whole = RepackSource(chunk.raw, chunk.uncompressed, chunk.table, NO_BEFORE)
    offsets = settled(chunk, set())[0].spans[key_batch.OFFSET, : int(chunk.table[:, fields.COUNT].sum())]
    dead = data.draw(st.sets(st.sampled_from(offsets.tolist()))) if offsets.size else set()
    retain = [data.draw(st.sampled_from([0, 0, 1])) for _ in range(chunk.rows)]
    horizon_ms = data.draw(st.sampled_from([-1, T, T + 1500]))
    target = data.draw(st.sampled_from([0, 100, 300, 4000]))
    most = data.draw(st.sampled_from([250, 700, 1 << 20]))
    source, contents, status = copied(chunk, dead, start=data.draw(st.integers(0, 9)))
    assert status == kernels.OK
    wanted = summed(whole, bits(dead), retain, horizon_ms)
    assert summed(source, NO_BITS, retain, horizon_ms) == wanted
    assert contents == wanted[0]
    assert repacked(source, NO_BITS, retain, horizon_ms, target, most) == repacked(
        whole, bits(dead), retain, horizon_ms, target, most
    )


def test_without_room() -> None:
    chunk = chunk_of(encode_batch([Record(0, T, b"a", b"v" * 300), Record(1, T, b"b", b"1")]))
    size = int(chunk.table[0, fields.SIZE])
    needed = size + int(chunk.table[0, fields.RECORDS_END] - chunk.table[0, fields.RECORDS_POSITION])
    assert copied(chunk, {0}, room=needed + kernels.SLACK)[2] == kernels.OK
    assert copied(chunk, {0}, room=needed + kernels.SLACK - 1)[2] == kernels.FULL
