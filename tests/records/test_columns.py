from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from lastword.errors import CorruptBatchError
from lastword.records.chunk import chunk_of
from lastword.records.columns import ARROW_COLUMNS, decode_columns, raw_records, to_arrow
from lastword.records.record import RawRecord
from tests.naive.batches import walk
from tests.naive.columns import decode
from tests.naive.pack import Record, encode_batch, seal
from tests.naive.strategies import T, batches


def naive_records(data: bytes) -> list[RawRecord]:
    return [
        RawRecord(
            record.offset,
            record.timestamp,
            header.attributes >> 3 & 1,
            record.key,
            record.value,
            tuple((name.decode("utf-8", "surrogateescape"), note) for name, note in record.headers),
        )
        for header in walk(data)[0]
        if not header.attributes & 0x20
        for record in decode(data, header)
    ]


@settings(deadline=None)
@given(batches().filter(bool))
def test_values_and_arrow_like_the_twin(log: list[bytes]) -> None:
    data = b"".join(log)
    expected = naive_records(data)
    chunk = chunk_of(data)
    columns = decode_columns(chunk)
    assert raw_records(columns, chunk) == expected
    table = to_arrow(columns, chunk, topic="users", partition=3)
    table.validate(full=True)
    assert table.schema.names == list(ARROW_COLUMNS)
    assert table["key"].to_pylist() == [record.key for record in expected]
    assert table["value"].to_pylist() == [record.value for record in expected]
    assert table["offset"].to_pylist() == [record.offset for record in expected]
    assert table["timestampType"].to_pylist() == [record.timestamp_type for record in expected]
    assert set(table["topic"].to_pylist()) <= {"users"}
    assert set(table["partition"].to_pylist()) <= {3}
    most = ((1 << 63) - 1) // 1000
    micros = table["timestamp"].cast(pa.int64()).to_pylist()
    assert micros == [max(min(record.timestamp, most), -most) * 1000 for record in expected]
    assert table["headers"].to_pylist() == [
        [
            {"key": name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), "value": note}
            for name, note in record.headers
        ]
        or None
        for record in expected
    ]


def test_the_shape_of_sparks_kafka_source() -> None:
    chunk = chunk_of(encode_batch([Record(7, T + 9, b"k", None, ((b"h", b"x"),))]))
    table = to_arrow(decode_columns(chunk), chunk, topic="t")
    assert str(table.schema.field("timestamp").type) == "timestamp[us, tz=UTC]"
    assert table.schema.field("headers").type == pa.list_(
        pa.struct([("key", pa.string()), ("value", pa.binary())])
    )
    assert table.to_pylist() == [
        {
            "key": b"k",
            "value": None,
            "topic": "t",
            "partition": 0,
            "offset": 7,
            "timestamp": datetime.datetime(2023, 11, 14, 22, 13, 20, 9000, tzinfo=datetime.UTC),
            "timestampType": 0,
            "headers": [{"key": "h", "value": b"x"}],
        }
    ]


def test_columns_on_request_and_none_that_do_not_exist() -> None:
    chunk = chunk_of(encode_batch([Record(0, T, b"k", b"v")]))
    columns = decode_columns(chunk)
    assert to_arrow(columns, chunk, ("offset", "key")).to_pylist() == [{"offset": 0, "key": b"k"}]
    with pytest.raises(ValueError, match="no column 'keys'"):
        to_arrow(columns, chunk, ("keys",))


def test_select_by_mask_indices_and_slice() -> None:
    chunk = chunk_of(encode_batch([Record(i, T, b"%d" % i, b"v") for i in range(10)]))
    columns = decode_columns(chunk)
    picks = (columns.offset % 3 == 0, np.array([0, 3, 6, 9]), slice(0, None, 3))
    for pick in picks:
        part = columns.select(pick)
        assert [record.key for record in raw_records(part, chunk)] == [b"0", b"3", b"6", b"9"]
        assert to_arrow(part, chunk, ("key",))["key"].to_pylist() == [b"0", b"3", b"6", b"9"]


def test_an_arrow_batch_outlives_its_chunk() -> None:
    chunk = chunk_of(encode_batch([Record(0, T, b"k", b"v")]))
    table = to_arrow(decode_columns(chunk), chunk)
    before = table.to_pylist()
    chunk.raw[:] = 0xEE
    decode_columns.__globals__["np"].asarray(chunk.scratch["columns"][0])[:] = -1
    assert table.to_pylist() == before


def test_control_records_only_on_request() -> None:
    marker = encode_batch([Record(0, T, b"\0\0\0\1", b"\0\0\0\0\0\0")], attributes=0x30, producer=(5, 0, -1))
    chunk = chunk_of(marker + encode_batch([Record(1, T, b"k", b"v")]))
    assert decode_columns(chunk).offset.tolist() == [1]
    assert decode_columns(chunk, include_control=True).offset.tolist() == [0, 1]


def test_a_malformed_record_names_its_place() -> None:
    good = encode_batch([Record(4, T, b"k", b"v")])
    bad = seal(good[:-1] + b"\x02")  # one header, but no bytes for it
    with pytest.raises(CorruptBatchError, match="malformed record") as caught:
        decode_columns(chunk_of(bad, "users-0/4.log"))
    assert (caught.value.file, caught.value.position, caught.value.offset) == ("users-0/4.log", 0, 4)
