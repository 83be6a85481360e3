from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lastword.records.pack import pack_arrow
from tests.naive.pack import Record, pack, rebase
from tests.naive.strategies import T, keys, payloads

names = st.text(max_size=5)
pairs = st.lists(st.tuples(names, st.one_of(st.none(), st.binary(max_size=8))), max_size=3)
rows = st.lists(
    st.tuples(keys(), payloads, st.integers(T - 5, T + 100), st.one_of(st.none(), pairs)), max_size=30
)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@given(rows, st.sampled_from([80, 300, 16384]))
def test_like_the_twin(drawn_rows: list, batch_bytes: int) -> None:
    records = [
        Record(i, time, key, value, tuple((name.encode(), note) for name, note in notes or ()))
        for i, (key, value, time, notes) in enumerate(drawn_rows)
    ]
    headers = pa.array(
        [None if row[3] is None else [{"key": k, "value": v} for k, v in row[3]] for row in drawn_rows],
        HEADERS,
    )
    arrays = [
        pa.array([row[0] for row in drawn_rows], pa.binary()),
        pa.array([row[1] for row in drawn_rows], pa.large_binary()),
        np.array([row[2] for row in drawn_rows], np.int64),
    ]
    expected = pack(records, batch_bytes)
    assert pack_arrow(*arrays, headers, batch_bytes=batch_bytes) == expected
    # The same through a slice that does not start at 0.
    padding = (pa.array([b"x"], pa.binary()), pa.array([None], pa.large_binary()))
    shifted = [pa.concat_arrays([pad, array])[1:] for pad, array in zip(padding, arrays[:2], strict=True)]
    note = pa.concat_arrays([pa.array([[{"key": "no", "value": b""}]], HEADERS), headers])[1:]
    assert pack_arrow(*shifted, arrays[2], note, batch_bytes=batch_bytes) == expected


def test_as_kafka_writes() -> None:
    times = np.array([T, T + 1])
    (batch,) = pack_arrow(pa.array(["a", "b"]), pa.array(["1", "2"]), times)
    assert rebase(batch, 10, 3) == 12
    assert batch.hex() == (
        "000000000000000a000000430000000302fe033bcd0000000000010000018bcfe568000000018bcfe56801"
        "ffffffffffffffffffffffffffff00000002100000000261023100100002020262023200"
    )
    (batch,) = pack_arrow(
        pa.array([b"k", None], pa.binary()),
        pa.array([b"v", None], pa.binary()),
        np.array([T, T - 3]),
        pa.array([[{"key": "h1", "value": b"x"}, {"key": "h2", "value": None}], None], HEADERS),
    )
    assert batch.hex()[34:] == (
        "6d0dc9050000000000010000018bcfe568000000018bcfe56800ffffffffffffffffffffffffffff00000002"
        "22000000026b0276040468310278046832010c000502010100"
    )


def test_log_append_time_is_every_batchs_maximum() -> None:
    (batch,) = pack_arrow(pa.array([b"k"]), pa.array([b"v"]), np.array([T]), log_append_ms=T + 9)
    assert batch[22] == 8
    assert int.from_bytes(batch[35:43], "big") == T + 9


def test_many_batches_more_than_one_table_holds() -> None:
    count = 10_000
    keys = pa.array([b"%05d" % i for i in range(count)])
    batches = pack_arrow(keys, pa.nulls(count), np.zeros(count, np.int64), batch_bytes=1)
    assert len(batches) == count
    assert all(batches[i].count(b"%05d" % i) == 1 for i in range(0, count, 997))
