"""Avro values: an exact round trip of every type, given and derived schemas, other schemas refused."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("fastavro")

from lastword.errors import SerializerError
from lastword.value_formats import format_of
from lastword.value_formats.avro import AvroFormat, Types, decoder_of, parse_schema, schema_of
from lastword.value_formats.interface import ValueFormat, ValueRefused
from tests.support.exhaustive import few
from tests.value_formats.columns import TIMESTAMP, columns, same, types

DERIVED = AvroFormat()
KINDS = types([pa.string()])
USER = pa.struct([("id", pa.int64()), ("name", pa.string())])


def avro(schema: Any) -> ValueFormat:
    return format_of("avro", {"avroSchema": json.dumps(schema)})


def record(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "User", "namespace": "n", "fields": list(fields)}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


@settings(max_examples=few(60), deadline=None)
@given(columns(KINDS))
def test_a_round_trip_is_exact(column: pa.Array) -> None:
    assert DERIVED.problem(column.type, writing=True) is None
    result = DERIVED.decode(DERIVED.encode(column), column.type)
    assert result.problems == {} and same(result.column, column)
    named = avro(schema_of(column.type))
    again = named.decode(DERIVED.encode(column), column.type)
    assert again.problems == {} and same(again.column, column)


@settings(max_examples=few(40), deadline=None)
@given(KINDS, st.lists(st.binary(max_size=12), max_size=5))
def test_any_bytes_decode_or_have_a_reason(kind: pa.DataType, rows: list[bytes]) -> None:
    result = DERIVED.decode(pa.array(rows, pa.binary()), kind)
    assert len(result.column) == len(rows) and result.column.type == kind
    for row, value in enumerate(result.column):
        assert (row in result.problems) == (not value.is_valid)


def test_the_bytes_are_those_of_to_avro() -> None:
    """The derived schema of a struct is Spark's: record topLevelRecord, unions with null second."""
    assert schema_of(pa.struct([("a", pa.int32()), pa.field("b", pa.decimal128(5, 2), False)])) == {
        "type": "record",
        "name": "topLevelRecord",
        "fields": [
            {"name": "a", "type": ["int", "null"]},
            {
                "name": "b",
                "type": {
                    "type": "fixed", "name": "topLevelRecord.b.fixed", "size": 3,
                    "logicalType": "decimal", "precision": 5, "scale": 2,
                },
            },
        ],
    }  # fmt: skip
    column = pa.array([{"id": 1, "name": None}, None], USER)
    assert DERIVED.encode(column).to_pylist() == [b"\x00\x02\x02", None]


def test_the_type_of_a_schema() -> None:
    schema = record(
        field("u", {"type": "string", "logicalType": "uuid"}),
        field("e", {"type": "enum", "name": "E", "symbols": ["X", "Y"]}),
        field("again", ["null", "n.E"]),
        field("t", {"type": "long", "logicalType": "timestamp-millis"}),
        field("d", {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}),
        field("f", {"type": "fixed", "name": "F", "size": 2}),
        field("l", ["int", "null", "long"]),
        field("m", {"type": "map", "values": ["null", {"type": "array", "items": "float"}]}),
        field("ms", {"type": "int", "logicalType": "time-millis"}),
        field("day", {"type": "int", "logicalType": "date"}, default=0),
    )
    kind = avro(schema).own_type()
    assert kind is not None and [str(kind.field(n).type) for n in range(kind.num_fields)] == [
        "string", "string", "string", "timestamp[us, tz=UTC]", "decimal128(5, 2)", "binary", "int64",
        "map<string, list<element: float not null>>", "int32", "date32[day]",
    ]  # fmt: skip
    assert [kind.field(n).nullable for n in range(4)] == [False, False, True, False]
    row = {
        "u": "7f3c", "e": "Y", "again": None, "t": datetime(2026, 1, 1, 0, 0, 0, 5000, UTC),
        "d": Decimal("1.50"), "f": b"ab", "l": 1 << 40, "m": [("a", [0.5]), ("b", None)], "ms": 7,
        "day": date(2026, 1, 1),
    }  # fmt: skip
    value_format: ValueFormat = pickle.loads(pickle.dumps(avro(schema)))
    result = value_format.decode(value_format.encode(pa.array([row], kind)), kind)
    assert result.problems == {} and result.column.to_pylist() == [row]
    late = pa.array([row | {"t": datetime(2026, 1, 1, 0, 0, 0, 5001, UTC)}], kind)
    with pytest.raises(SerializerError, match=r"field t: .* has microseconds"):
        value_format.encode(late)
    with pytest.raises(SerializerError, match=r"written as avro: field e: 'Z' is no symbol of n\.E: X, Y"):
        value_format.encode(pa.array([row | {"e": "Z"}], kind))
    with pytest.raises(SerializerError, match=r"field f: 3 bytes: n\.F has 2"):
        value_format.encode(pa.array([row | {"f": b"abc"}], kind))


def test_a_type_with_fewer_fields_is_a_projection() -> None:
    schema = record(field("id", "long"), field("name", ["null", "string"], default=None))
    data = avro(schema).encode(pa.array([{"id": 1, "name": "ada"}], USER))
    fewer = pa.struct([("name", pa.string())])
    assert avro(schema).decode(data, fewer).column.to_pylist() == [{"name": "ada"}]
    data = avro(schema).encode(pa.array([{"id": 1}], pa.struct([("id", pa.int8())])))
    assert avro(schema).decode(data, USER).column.to_pylist() == [{"id": 1, "name": None}]


@pytest.mark.parametrize(
    ("schema", "kind", "writing", "reason"),
    [
        (record(field("id", "int")), pa.struct([("id", pa.int64())]), True, "field id: the schema has int32"),
        (
            record(field("id", "long")),
            pa.struct([("id", pa.int32())]),
            False,
            "field id: the schema has int64",
        ),
        (record(field("id", "long")), USER, True, "field name: the schema has the fields id"),
        (record(field("id", "long")), USER, False, "field name: the schema has the fields id"),
        (record(field("id", "long"), field("x", "int")), pa.struct([("id", pa.int64())]), True, "requires"),
        (
            record(field("id", ["null", "long"])),
            pa.struct([pa.field("id", pa.int64(), False)]),
            False,
            "NOT NULL",
        ),
        ("string", USER, False, "the schema has string"),
    ],
)
def test_a_type_that_the_schema_lacks_is_refused(
    schema: Any, kind: pa.DataType, writing: bool, reason: str
) -> None:
    assert reason in str(avro(schema).problem(kind, writing=writing))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("{", "is no Avro schema"),
        ('{"type": "record"}', "is no Avro schema"),
        ("/nowhere/user.avsc", "names a file that cannot be read"),
    ],
)
def test_a_wrong_schema_is_refused_with_its_option(given: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"^avroSchema ") as caught:
        format_of("avro", {"avroSchema": given})
    assert reason in str(caught.value)


def test_a_field_without_a_type_is_left_out() -> None:
    node = record(field("id", "long"), field("next", ["null", "User"], default=None))
    union = record(field("id", "long"), field("v", ["null", "int", "string"], default=None))
    for schema, reason in (
        (union, "field v: a union of several types has no type in Spark: leave the field out"),
        (node, "field next: record n.User contains itself"),
        ("null", "Avro type null"),
    ):
        with pytest.raises(ValueError, match=reason):
            avro(schema).own_type()
        assert avro(schema).unselected_type() is None
    kind = pa.struct([("id", pa.int64())])
    column = pa.array([{"id": 1}], kind)
    assert avro(union).decode(pa.array([b"\x02\x04\x02x"]), kind).column == column
    assert avro(union).decode(avro(union).encode(column), kind).column == column
    within = pa.struct([("id", pa.int64()), ("next", kind)])
    rows = pa.array([{"id": 1, "next": {"id": 2}}, {"id": 3, "next": None}], within)
    data = avro(node).encode(rows)
    assert data.to_pylist() == [b"\x02\x02\x04\x00", b"\x06\x00"]
    assert avro(node).decode(data, within).column == rows
    text = pa.struct([("id", pa.int64()), ("v", pa.string())])
    for writing in (True, False):
        assert "field v: a union of several types" in str(avro(union).problem(text, writing=writing))


def test_defaults_are_values_of_their_types() -> None:
    """A default is JSON in the schema: bytes are text there, and times and decimals numbers."""
    inner = {
        "type": "record",
        "name": "I",
        "fields": [field("y", "bytes", default="\u00fe"), field("z", "int")],
    }
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    times = {
        name: {"type": "long", "logicalType": name} for name in ("timestamp-millis", "local-timestamp-micros")
    }
    fields = {
        "b": ("bytes", "\u00ff"), "d": (decimal, "\u00ff"), "m": (times["timestamp-millis"], 1000),
        "l": (times["local-timestamp-micros"], 1), "day": ({"type": "int", "logicalType": "date"}, 1),
        "i": (inner, {"z": 7}), "a": ({"type": "array", "items": ["bytes", "null"]}, ["\u0080"]),
        "p": ({"type": "map", "values": "double"}, {"x": 1}), "n": (["null", "n.I"], None), "f": ("float", 1),
    }  # fmt: skip
    new = record(
        field("id", "long"), *(field(name, kind, default=value) for name, (kind, value) in fields.items())
    )
    wanted = {
        "id": 1, "b": b"\xff", "d": Decimal("-0.01"), "m": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        "l": datetime(1970, 1, 1, 0, 0, 0, 1), "day": date(1970, 1, 2), "i": {"y": b"\xfe", "z": 7},
        "a": [b"\x80"], "p": [("x", 1.0)], "n": None, "f": 1.0,
    }  # fmt: skip
    kind = avro(new).own_type()
    assert kind is not None
    data = avro(new).encode(pa.array([{"id": 1}], pa.struct([("id", pa.int64())])))
    result = avro(new).decode(data, kind)
    assert result.problems == {} and result.column.to_pylist() == [wanted]
    resolved = decoder_of(
        parse_schema(json.dumps(record(field("id", "long")))),
        parse_schema(json.dumps(new)),
        Types(parse_schema(json.dumps(new))).reader(kind),
    )
    assert pa.array([resolved(b"\x02")], kind).to_pylist() == [wanted]
    partly = record(field("id", "long"), field("x", inner, default={}))
    kind = pa.struct([("x", pa.struct([("y", pa.binary()), ("z", pa.int32())]))])
    assert avro(partly).decode(pa.array([b"\x02\x02a\x04"]), kind).column.to_pylist() == [
        {"x": {"y": b"a", "z": 2}}
    ]
    writer, reader = (parse_schema(json.dumps(schema)) for schema in (record(field("id", "long")), partly))
    with pytest.raises(ValueRefused, match="it is not of the schema"):
        decoder_of(writer, reader, Types(reader).reader(kind))(b"\x02")


def test_a_value_that_only_the_type_of_the_column_refuses_has_its_place() -> None:
    inner = {"type": "record", "name": "I", "fields": [field("n", "int")]}
    schema = record(
        field("items", {"type": "array", "items": inner}), field("by", {"type": "map", "values": "int"})
    )
    number = pa.struct([("n", pa.int8())])
    kind = pa.struct([("items", pa.list_(number)), ("by", pa.map_(pa.string(), pa.int8()))])
    own = avro(schema).own_type()
    rows = [{"items": [{"n": 1}, {"n": n}], "by": [("a", by)]} for n, by in ((2, 3), (128, 3), (2, 300))]
    result = avro(schema).decode(avro(schema).encode(pa.array(rows, own)), kind)
    assert [row is None for row in result.column.to_pylist()] == [False, True, True]
    assert result.problems[1].startswith("field items[1].n: ") and result.problems[2].startswith(
        "field by['a']: "
    )


def test_a_type_in_a_type_is_that_type() -> None:
    schema = record(field("id", ["null", {"type": {"type": "long"}}]), field("x", {"type": ["null", "int"]}))
    kind = avro(schema).own_type()
    assert kind is not None and [item.nullable for item in kind] == [True, True]
    column = pa.array([{"id": None, "x": 1}, {"id": 2, "x": None}], kind)
    assert avro(schema).decode(avro(schema).encode(column), kind).column == column
    with pytest.raises(ValueRefused, match="field id: Avro type null has no type"):
        avro(record(field("id", ["null"]))).own_type()


def test_a_logical_type_of_another_type_is_ignored() -> None:
    schema = record(
        field("a", {"type": "long", "logicalType": "date"}),
        field("b", {"type": "string", "logicalType": "decimal", "precision": 4}),
        field("c", {"type": "bytes", "logicalType": "decimal"}),
        field("d", {"type": "int", "logicalType": "timestamp-millis"}),
    )
    kind = avro(schema).own_type()
    assert kind is not None and [item.type for item in kind] == [
        pa.int64(),
        pa.string(),
        pa.binary(),
        pa.int32(),
    ]
    row = {"a": 1 << 40, "b": "x", "c": b"\0", "d": 7}
    assert avro(schema).decode(avro(schema).encode(pa.array([row], kind)), kind).column.to_pylist() == [row]


def test_other_types_have_no_avro() -> None:
    assert "string keys only" in str(DERIVED.problem(pa.map_(pa.int32(), pa.int32()), writing=True))
    assert "a: type duration" in str(DERIVED.problem(pa.struct([("a", pa.duration("us"))]), writing=True))
    assert "'a b' is no name in Avro" in str(DERIVED.problem(pa.struct([("a b", pa.int32())]), writing=True))


def test_bytes_of_another_schema_are_refused() -> None:
    kind = pa.struct([("id", pa.int64())])
    rows = [b"\x00", b"\x00\x02\x02", b"\x00\x00\x00\x00\x07\x00\x02", b""]
    problems = DERIVED.decode(pa.array(rows), kind).problems
    assert len(problems) == 4 and "1 bytes are left" in problems[1]
    assert "format confluent" in problems[2] and "format confluent" not in problems[1]
    with pytest.raises(SerializerError, match="field id: it is null, and the schema has no null"):
        avro(record(field("id", "long"))).encode(pa.array([{"id": None}], kind))


def test_the_schema_of_a_file_and_of_one_value(tmp_path: Path) -> None:
    (tmp_path / "user.avsc").write_text(json.dumps(record(field("id", "long"))))
    value_format = format_of("avro", {"avroSchema": str(tmp_path / "user.avsc")})
    assert str(value_format.own_type()) == "struct<id: int64 not null>"
    text = format_of("avro", {"avroSchema": "string"})
    assert text.encode(pa.array(["ada"])).to_pylist() == [b"\x06ada"]
    time = pa.array([datetime(2026, 1, 1, tzinfo=UTC)], pa.timestamp("us", tz="Europe/Berlin"))
    assert DERIVED.decode(DERIVED.encode(time), TIMESTAMP).column.to_pylist() == time.to_pylist()


def test_the_last_value_of_a_key_that_is_twice_in_a_map_counts() -> None:
    """As with Java's reader, and so with Spark's `from_avro`. No writer of Spark makes such a map."""
    kind = pa.map_(pa.string(), pa.int64())
    one_block = b"\x04" + b"\x02a\x02" + b"\x02a\x04" + b"\x00"
    two_blocks = b"\x02\x02a\x02" + b"\x02\x02a\x04" + b"\x00"
    result = avro({"type": "map", "values": "long"}).decode(pa.array([one_block, two_blocks]), kind)
    assert (result.problems, result.column.to_pylist()) == ({}, [[("a", 2)], [("a", 2)]])
