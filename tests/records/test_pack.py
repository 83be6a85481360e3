"""What the pack kernel makes, read back through every codec. Its bytes: tests/kernels/test_pack.py."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from lastword.records.chunk import chunk_of
from lastword.records.columns import decode_columns, raw_records
from lastword.records.pack import pack_arrow, rebase


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_round_trip(codec: int) -> None:
    count = 500
    keys = pa.array([b"key-%d" % (i % 50) if i % 7 else None for i in range(count)], pa.binary())
    values = pa.array([b"v" * i if i % 5 else None for i in range(count)], pa.binary())
    times = np.arange(count) * 10
    joined = bytearray().join(pack_arrow(keys, values, times, codec=codec, batch_bytes=4096))
    assert rebase(joined, 90, 2)[0] == 90 + count
    chunk = chunk_of(joined)
    records = raw_records(decode_columns(chunk), chunk)
    assert [record.offset for record in records] == list(range(90, 90 + count))
    assert [record.timestamp for record in records] == times.tolist()
    assert [record.key for record in records] == keys.to_pylist()
    assert [record.value for record in records] == values.to_pylist()


def test_columns_of_different_lengths() -> None:
    with pytest.raises(ValueError, match="same length"):
        pack_arrow(pa.array([b"k"]), pa.array([], pa.binary()), np.zeros(1, np.int64))


def test_a_header_without_a_name() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([[{"key": None, "value": b"x"}]], kind)
    with pytest.raises(ValueError, match="header without a name"):
        pack_arrow(pa.array([b"k"]), pa.array([b"v"]), np.zeros(1, np.int64), headers)


def test_arrays_of_nulls_and_of_chunks() -> None:
    keys = pa.chunked_array([[b"a"], [b"b", b"c"]])
    (batch,) = pack_arrow(keys, pa.nulls(3), np.zeros(3, np.int64))
    chunk = chunk_of(batch)
    assert [(r.key, r.value) for r in raw_records(decode_columns(chunk), chunk)] == [
        (b"a", None),
        (b"b", None),
        (b"c", None),
    ]


def test_nothing_makes_no_batch() -> None:
    assert pack_arrow(pa.array([], pa.binary()), pa.array([], pa.binary()), np.empty(0, np.int64)) == []


def test_values_larger_than_the_first_output() -> None:
    values = pa.array([bytes(6 << 20), b"", bytes(1 << 20)], pa.binary())
    batches = pack_arrow(pa.array([b"a", b"b", b"c"]), values, np.zeros(3, np.int64))
    assert [len(batch) > 1 << 20 for batch in batches] == [True, False, True]
