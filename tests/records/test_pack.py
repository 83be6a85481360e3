"""The output of the pack kernel, read back through every codec. Its bytes: tests/kernels/test_pack.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastword.records.chunk import chunk_of
from lastword.records.columns import decode_columns, raw_records
from lastword.records.pack import AppendColumns, Workspace, pack, pack_arrow
from tests.naive.pack import rebase
from tests.support.exhaustive import few


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_round_trip(codec: int) -> None:
    count = 500
    keys = pa.array([b"key-%d" % (i % 50) if i % 7 else None for i in range(count)], pa.binary())
    values = pa.array([b"v" * i if i % 5 else None for i in range(count)], pa.binary())
    times = np.arange(count) * 10
    times.flags.writeable = False  # as an array over a buffer of Arrow
    joined = bytearray().join(pack_arrow(keys, values, times, codec=codec, batch_bytes=4096))
    assert rebase(joined, 90, 2) == 90 + count
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


NOTES = st.none() | st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=3)
ROWS = st.tuples(st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=90), NOTES)


@settings(max_examples=few(60), deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=30), st.data(), st.booleans(), st.sampled_from([0, 4]))
def test_chosen_rows_are_packed_as_arrow_would_take_them(
    rows: list[Any], data: st.DataObject, noted: bool, codec: int
) -> None:
    """Records in any order, from a slice, into memory that was used before."""
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    notes = [None if row[2] is None else [{"key": k, "value": v} for k, v in row[2]] for row in rows]
    columns = [pa.array([row[i] for row in rows], pa.binary()) for i in range(2)] + [pa.array(notes, kind)]
    first = data.draw(st.integers(0, len(rows) - 1))
    key, value, headers = (column.slice(first) for column in columns)
    times = np.arange(len(key)) * 7
    chosen = np.array(data.draw(st.lists(st.integers(0, len(key) - 1), max_size=20)), np.int64)
    taken = AppendColumns.of(key, value, times, headers if noted else None).take(chosen)
    workspace = Workspace()
    for _ in range(2):
        runs = pack(taken, codec=codec, batch_bytes=120, workspace=workspace)
        batches = [bytes(batch) for run in runs for batch in run.batches()]
        indices = pa.array(chosen)
        given = headers.take(indices) if noted else None
        whole = pack_arrow(
            key.take(indices), value.take(indices), times[chosen], given, codec=codec, batch_bytes=120
        )
        assert batches == whole
