"""VARIANT: any JSON is kept exactly, and the encoding is the one that PySpark reads."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastword.errors import SerializerError
from lastword.value_formats import format_of
from lastword.value_formats.debezium import DebeziumFormat
from lastword.value_formats.json_text import JsonFormat
from tests.support.exhaustive import few

JSON = JsonFormat()
MARKED = pa.field("metadata", pa.binary(), False, {b"variant": b"true"})
VARIANT = pa.struct([pa.field("value", pa.binary(), False), MARKED])
NUMBERS = st.integers(-(10**37), 10**37) | st.decimals(-(10**20), 10**20, allow_nan=False, places=9)
ANY = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=70),
    lambda x: st.lists(x, max_size=4) | st.dictionaries(st.text(max_size=3), x, max_size=4),
    max_leaves=12,
)


def text_of(value: Any) -> str:
    """Return JSON text with the digits of decimals."""
    digits = {}

    def named(number: Decimal) -> str:
        digits[f'"\x7f{len(digits)}\x7f"'] = format(number, "f")
        return f"\x7f{len(digits) - 1}\x7f"

    text = json.dumps(value, default=named)
    for name, number in digits.items():
        text = text.replace(json.dumps(json.loads(name)), number)
    return text


def parsed(text: str | bytes) -> Any:
    return json.loads(text, parse_float=Decimal, parse_int=Decimal)


@settings(max_examples=few(50), deadline=None)
@given(st.lists(ANY, min_size=1, max_size=3))
def test_any_json_is_kept(values: list[Any]) -> None:
    texts = [text_of(value).encode() for value in values]
    result = JSON.decode(pa.array(texts, pa.binary()), VARIANT)
    assert result.problems == {} and result.column.null_count == 0
    again = JSON.encode(result.column)
    assert [parsed(data) for data in again.to_pylist()] == [parsed(text) for text in texts]
    assert JSON.encode(JSON.decode(again, VARIANT).column) == again


@settings(max_examples=few(40), deadline=None)
@given(ANY)
def test_pyspark_reads_the_encoding(value: Any) -> None:
    types = pytest.importorskip("pyspark.sql.types")
    text = text_of(value)
    (ours,) = JSON.decode(pa.array([text.encode()], pa.binary()), VARIANT).column.to_pylist()
    theirs = types.VariantVal.parseJson(text)
    assert types.VariantVal(**ours).toPython() == theirs.toPython()
    written = JSON.encode(pa.array([{"value": theirs.value, "metadata": theirs.metadata}], VARIANT))
    assert parsed(written[0].as_py()) == parsed(text)


def test_a_null_is_a_value_within_a_type_and_a_missing_field_is_none() -> None:
    kind = pa.struct([("x", VARIANT), ("y", pa.list_(VARIANT)), ("z", pa.map_(pa.string(), VARIANT))])
    texts = [b'{"x":null,"y":[null,1],"z":{"a":null}}', b"{}", None]
    column = JSON.decode(pa.array(texts, pa.binary()), kind).column
    assert column[0].as_py()["x"] == column[0].as_py()["y"][0] == {"value": b"\0", "metadata": b"\1\0\0"}
    assert column[1].as_py()["x"] is None
    assert JSON.encode(column).to_pylist() == texts


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"NaN", "NaN is no number"),
        (b'{"a":-Infinity}', "-Infinity is no number"),
        (rb'"\ud83d"', "lone surrogate"),
        (rb'{"\ud83d":1}', "lone surrogate"),
        (b"[" * 2000 + b"]" * 2000, "usual depth"),  # 600 levels fit on Python 3.14
        (b'"' + b"x" * (16 << 20) + b'"', "above 16 MiB"),
        (b"", "it is not JSON"),
    ],
)
def test_text_that_is_no_variant_has_a_reason(data: bytes, said: str) -> None:
    result = JSON.decode(pa.array([data], pa.binary()), VARIANT)
    assert result.column.null_count == 1 and said in result.problems[0]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (bytes([11 << 2]) + (3_000_000).to_bytes(4, "little"), "not of the years 1 to 9999"),
        (bytes([12 << 2]) + (1 << 60).to_bytes(8, "little"), "not of the years 1 to 9999"),
        (bytes([20 << 2]) + bytes(16), "type number 20"),
        (b"\x03\x01\x00\x04" * 2000 + b"\0", "usual depth"),
    ],
)
def test_a_variant_without_json_is_an_error(value: bytes, said: str) -> None:
    with pytest.raises(SerializerError, match=said):
        JSON.encode(pa.array([{"value": value, "metadata": b"\1\0\0"}], VARIANT))


def test_a_change_event_may_have_any_row() -> None:
    events = format_of("json", {}, envelope="debezium")
    assert isinstance(events, JsonFormat)
    debezium = DebeziumFormat(events)
    assert debezium.has_variant and debezium.problem(VARIANT, writing=False) is None
    assert debezium.problem(VARIANT, writing=True) == "the row of a change event is a struct"
    texts = [b'{"op":"c","after":{"a":1.50}}', b'{"op":"d","after":null}', b'{"op":"u","after":null}']
    result = debezium.decode(pa.array(texts, pa.binary()), VARIANT)
    assert result.problems == {} and result.column.is_valid().to_pylist() == [True, False, False]
    assert JSON.encode(result.column).to_pylist() == [b'{"a":1.5}', None, None]
