"""JSON values: an exact round trip of every type, and every malformed value named with its place."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastword.errors import SerializerError
from lastword.value_formats.json_text import JsonFormat
from tests.support.exhaustive import few
from tests.value_formats.columns import LOCAL, TIMESTAMP, columns, same, types

JSON = JsonFormat()
KEYS = [pa.string(), pa.int32(), pa.int64(), pa.bool_(), pa.date32(), pa.decimal128(9, 2), TIMESTAMP]
KINDS = types(KEYS).filter(lambda kind: JSON.problem(kind, writing=True) is None)
CITY = pa.struct([("city", pa.string()), ("population", pa.int64())])


@settings(max_examples=few(80), deadline=None)
@given(columns(KINDS))
def test_a_round_trip_is_exact(column: pa.Array) -> None:
    encoded = JSON.encode(column)
    result = JSON.decode(encoded, column.type)
    assert result.problems == {} and same(result.column, column)
    for data in encoded.to_pylist():
        assert data is None or json.loads(data) is not None


@settings(max_examples=few(40), deadline=None)
@given(
    KINDS,
    st.lists(
        st.binary(max_size=12)
        | st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
            lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text("abc", max_size=2), x, max_size=3),
            max_leaves=5,
        ).map(lambda value: json.dumps(value).encode()),
        max_size=5,
    ),
)
def test_any_bytes_decode_or_have_a_reason(kind: pa.DataType, rows: list[bytes]) -> None:
    result = JSON.decode(pa.array(rows, pa.binary()), kind)
    assert len(result.column) == len(rows) and result.column.type == kind
    for row, value in enumerate(result.column):
        assert (row in result.problems) == (not value.is_valid)


def test_a_null_is_a_deletion_in_both_directions() -> None:
    column = pa.array([{"city": "Rome", "population": None}, None, {"city": None, "population": None}], CITY)
    assert JSON.encode(column).to_pylist() == [b'{"city":"Rome"}', None, b"{}"]
    assert same(JSON.decode(JSON.encode(column), CITY).column, column)


def test_unknown_fields_are_ignored_and_absent_fields_are_null() -> None:
    result = JSON.decode(pa.array([b' {"x": [1, {"y": 2}], "population": 7} '], pa.binary()), CITY)
    assert result.column.to_pylist() == [{"city": None, "population": 7}]


def test_the_text_of_each_type() -> None:
    kind = pa.struct(
        [
            ("d", pa.decimal128(10, 2)),
            ("t", TIMESTAMP),
            ("l", LOCAL),
            ("f", pa.float32()),
            ("b", pa.binary()),
            ("m", pa.map_(pa.int32(), pa.int32())),
        ]
    )
    time = datetime(2026, 1, 31, 12, 0, 0, 500)
    row = {
        "d": Decimal("1.50"),
        "t": time.replace(tzinfo=UTC),
        "l": time.replace(microsecond=0),
        "f": 0.1,
        "b": b"\xff\x00",
        "m": [(1, None)],
    }
    text = (
        b'{"d":1.50,"t":"2026-01-31T12:00:00.000500Z","l":"2026-01-31T12:00:00.000","f":0.1,'
        b'"b":"/wA=","m":{"1":null}}'
    )
    assert JSON.encode(pa.array([row], kind)).to_pylist() == [text]


def test_a_string_field_takes_the_text_of_any_value() -> None:
    kind = pa.struct([("city", pa.string())])
    data = [b'{"city": {"a": [1.10, true, null, "x"]}}', b'{"city": 1.10}', b'{"city": 7}']
    assert JSON.decode(pa.array(data), kind).column.to_pylist() == [
        {"city": '{"a":[1.10,true,null,"x"]}'},
        {"city": "1.10"},
        {"city": "7"},
    ]


@pytest.mark.parametrize(
    ("kind", "data", "reason"),
    [
        (CITY, b"", "not JSON"),
        (CITY, b"\xff", "not UTF-8"),
        (CITY, b"[" * 100_000, "not JSON"),
        (CITY, b"[1]", "[1] is no object"),
        (CITY, b"null", "a deletion is a record without a value"),
        (CITY, b'{"population":1.0}', "field population: 1.0 is no integer of 64 bits"),
        (CITY, b'{"population":9223372036854775808}', "integer of 64 bits"),
        (CITY, b'{"population":true}', "true is no integer"),
        (CITY, b'{"population":' + b"1" * 5000 + b"}", "not JSON"),
        (CITY, b'{"city":"\\ud800"}', "lone surrogate '\\ud800'"),
        (pa.struct([("a", pa.list_(CITY))]), b'{"a":[{},{"population":"x"}]}', 'a[1].population: "x" is no'),
        (pa.struct([pa.field("a", pa.int32(), False)]), b"{}", "field a: it is null or absent"),
        (pa.list_(pa.field("element", pa.int32(), False)), b"[1,null]", "[1]: it is null"),
        (pa.decimal128(4, 2), b"1.005", "1.005 is no decimal(4,2)"),
        (pa.decimal128(4, 2), b"100", "100 is no decimal(4,2)"),
        (pa.decimal128(38, 0), b"1e999999999999", "is no decimal"),
        (pa.decimal128(4, 2), b"NaN", "is no decimal"),
        (pa.decimal128(9, 2), b'"1_000"', '"1_000" is no decimal'),
        (pa.decimal128(9, 2), b'" 12"', '" 12" is no decimal'),
        (pa.float32(), b"1e39", "32 bits"),
        (pa.float64(), b"1e999", "64 bits"),
        (TIMESTAMP, b"1767225600000", "its unit is not known"),
        (LOCAL, b'"2026-01-01T00:00:00Z"', "without an offset"),
        (pa.date32(), b'"31.1.2026"', "date such as"),
        (pa.struct([("b", pa.binary())]), b'{"b":"*"}', "base64"),
        (pa.map_(pa.int32(), pa.int32()), b'{"x":1}', '["x"]'),
    ],
)
def test_a_malformed_value_has_a_reason_and_a_place(kind: pa.DataType, data: bytes, reason: str) -> None:
    result = JSON.decode(pa.array([None, data], pa.binary()), kind)
    assert list(result.problems) == [1] and reason in result.problems[1]
    assert result.column.null_count == 2


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (pa.string(), "without a format"),
        (pa.binary(), "without a format"),
        (pa.struct([("a", pa.duration("us"))]), "a: type duration"),
        (pa.map_(pa.binary(), pa.int32()), "a map with keys of type binary"),
        (pa.struct([("a", pa.int32()), ("a", pa.int32())]), "one name"),
    ],
)
def test_a_type_without_json_is_refused(kind: pa.DataType, reason: str) -> None:
    assert reason in str(JSON.problem(kind, writing=False))


@pytest.mark.parametrize("level", [b"[]", b'{"x":}'])
def test_a_deep_value_has_a_reason(level: bytes) -> None:
    """The parser takes a deeper text than a string field: such a value ended a query in mode permissive."""
    kind = pa.struct([("city", pa.string())])
    deep = [
        b'{"city":' + level[:-1] * depth + b"1" + level[-1:] * depth + b"}" for depth in range(50, 1500, 50)
    ]
    result = JSON.decode(pa.array([*deep, b'{"city":"Rome"}']), kind)
    assert set(result.problems.values()) == {"it is not JSON of a usual depth"}
    assert 0 not in result.problems and result.column[len(deep)].as_py() == {"city": "Rome"}


def test_a_date_that_python_lacks_is_refused() -> None:
    column = pa.array([3_000_000], pa.date32())
    with pytest.raises(SerializerError, match="cannot be written as json"):
        JSON.encode(column)


def test_other_time_zones_are_the_same_instant() -> None:
    berlin = pa.array([datetime(2026, 7, 1, tzinfo=UTC)], pa.timestamp("us", tz="Europe/Berlin"))
    assert JSON.encode(berlin).to_pylist() == [b'"2026-07-01T00:00:00.000Z"']
    read = JSON.decode(pa.array([b'"2026-07-01T02:00:00+02:00"', b'"2026-07-01"']), TIMESTAMP).column
    assert read.to_pylist() == [datetime(2026, 7, 1, tzinfo=UTC)] * 2
