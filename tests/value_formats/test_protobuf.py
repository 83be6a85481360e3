"""Protobuf values: an exact round trip of every type; a value that does not fit is named with its place."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("google.protobuf")

from google.protobuf import descriptor_pb2, duration_pb2, timestamp_pb2

from lastword.errors import SerializerError
from lastword.value_formats import format_of
from lastword.value_formats.protobuf import ProtobufFormat, message_of
from tests.support.exhaustive import few
from tests.value_formats.columns import TIMESTAMP, same, values

FIELD = descriptor_pb2.FieldDescriptorProto
SCALARS = [
    name[5:].lower()
    for name in list(FIELD.Type.keys())
    if name not in ("TYPE_GROUP", "TYPE_MESSAGE", "TYPE_ENUM")
]
KEYS = [name for name in SCALARS if name not in ("double", "float", "bytes")]
DURATION = pa.duration("us")


def member(message: Any, name: str, kind: str, *, label: str = "OPTIONAL", **more: Any) -> Any:
    """Add a field; `kind` is a scalar, or the full name of a message or, with a leading colon, an enum."""
    field = message.field.add(
        name=name, number=len(message.field) + 1, label=getattr(FIELD, f"LABEL_{label}"), **more
    )
    if kind in SCALARS:
        field.type = getattr(FIELD, f"TYPE_{kind.upper()}")
    else:
        field.type = FIELD.TYPE_ENUM if kind.startswith(":") else FIELD.TYPE_MESSAGE
        field.type_name = "." + kind.lstrip(":")
    return field


def optional(message: Any, name: str, kind: str) -> None:
    message.oneof_decl.add(name=f"_{name}")
    member(message, name, kind, proto3_optional=True, oneof_index=len(message.oneof_decl) - 1)


def map_of(message: Any, name: str, key: str, value: str) -> None:
    entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
    entry.options.map_entry = True
    member(entry, "key", key)
    member(entry, "value", value)
    member(message, name, f"p.{message.name}.{entry.name}", label="REPEATED")


def build() -> bytes:
    """Return a descriptor file with p.Full, p.Place, p.Node (of itself), p.Empty and q.Old (proto2)."""
    files = descriptor_pb2.FileDescriptorSet()
    for module in (timestamp_pb2, duration_pb2):
        module.DESCRIPTOR.CopyToProto(files.file.add())
    imports = [file.name for file in files.file]
    file = files.file.add(name="p.proto", package="p", syntax="proto3", dependency=imports)
    color = file.enum_type.add(name="Color")
    for number, name in enumerate(("NONE", "RED", "BLUE")):
        color.value.add(name=name, number=number)
    place = file.message_type.add(name="Place")
    member(place, "city", "string")
    optional(place, "population", "int64")
    full = file.message_type.add(name="Full")
    for name in SCALARS:
        member(full, f"s_{name}", name)
        optional(full, f"o_{name}", name)
        member(full, f"r_{name}", name, label="REPEATED")
    for name in KEYS:
        map_of(full, f"m{name}", name, "double")
    for name, kind in (
        ("place", "p.Place"),
        ("at", "google.protobuf.Timestamp"),
        ("took", "google.protobuf.Duration"),
    ):
        member(full, name, kind)
        member(full, f"all_{name}", kind, label="REPEATED")
        map_of(full, f"map{name}", "string", kind)
    member(full, "color", ":p.Color")
    member(full, "colors", ":p.Color", label="REPEATED")
    full.oneof_decl.add(name="choice")
    member(full, "left", "int32", oneof_index=len(full.oneof_decl) - 1)
    member(full, "right", "p.Place", oneof_index=len(full.oneof_decl) - 1)
    member(file.message_type.add(name="Node"), "next", "p.Node")
    file.message_type.add(name="Empty")
    old_file = files.file.add(name="q.proto", package="q", syntax="proto2")
    old = old_file.message_type.add(name="Old")
    member(old, "id", "int64", label="REQUIRED")
    member(old, "size", "int32", default_value="7")
    member(old, "note", "string")
    return files.SerializeToString()


def ordered(data: bytes) -> bytes:
    """Return the file with the synthetic oneofs of p.Full behind the others, as protoc writes them."""
    files = descriptor_pb2.FileDescriptorSet.FromString(data)
    full = next(message for message in files.file[2].message_type if message.name == "Full")
    names = [part.name for part in full.oneof_decl]
    order = sorted(range(len(names)), key=lambda number: names[number] != "choice")
    parts = [full.oneof_decl[number] for number in order]
    copies = [descriptor_pb2.OneofDescriptorProto.FromString(part.SerializeToString()) for part in parts]
    del full.oneof_decl[:]
    full.oneof_decl.extend(copies)
    for item in full.field:
        if item.HasField("oneof_index"):
            item.oneof_index = order.index(item.oneof_index)
    return files.SerializeToString()


DATA = ordered(build())
FULL, PLACE, OLD = (ProtobufFormat(DATA, name) for name in ("p.Full", "p.Place", "q.Old"))
KIND, CITY = FULL.own_type(), PLACE.own_type()


def scalars(item: Any) -> st.SearchStrategy[Any]:
    if item.enum_type is not None:
        return st.sampled_from([value.name for value in item.enum_type.values])
    if item.type in (item.TYPE_UINT32, item.TYPE_FIXED32):
        return st.integers(0, (1 << 32) - 1)
    if item.type in (item.TYPE_UINT64, item.TYPE_FIXED64):
        return st.integers(0, (1 << 64) - 1).map(Decimal)
    kinds = {item.TYPE_BOOL: pa.bool_(), item.TYPE_STRING: pa.string(), item.TYPE_BYTES: pa.binary()}
    kinds |= {item.TYPE_FLOAT: pa.float32(), item.TYPE_DOUBLE: pa.float64()}
    thirty_two = item.type in (item.TYPE_INT32, item.TYPE_SINT32, item.TYPE_SFIXED32)
    return values(kinds.get(item.type, pa.int32() if thirty_two else pa.int64()))


def single(item: Any) -> st.SearchStrategy[Any]:
    if item.message_type is None:
        return scalars(item)
    if item.message_type.full_name == "google.protobuf.Timestamp":
        return values(TIMESTAMP)
    if item.message_type.full_name == "google.protobuf.Duration":
        return st.integers(-(10**17), 10**17).map(lambda micros: timedelta(microseconds=micros))
    return rows(item.message_type)


def rows(descriptor: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Return values of a message as `to_pylist` shows them; of a oneof at most one member is there."""
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for item in descriptor.fields:
        if item.is_repeated and item.message_type and item.message_type.GetOptions().map_entry:
            key, value = (item.message_type.fields_by_name[name] for name in ("key", "value"))
            pairs = st.tuples(scalars(key), single(value))
            fields[item.name] = st.lists(pairs, max_size=2, unique_by=lambda pair: pair[0])
        elif item.is_repeated:
            fields[item.name] = st.lists(single(item), max_size=2)
        else:
            fields[item.name] = st.none() | single(item) if item.has_presence else single(item)

    def choose(row: dict[str, Any]) -> dict[str, Any]:
        both = row.get("left") is not None and row.get("right") is not None
        return row | {"left": None} if both else row

    return st.fixed_dictionaries(fields).map(choose)


@st.composite
def columns(draw: Any) -> pa.Array:
    """Return a column with a few fields of p.Full, chosen by chance, and nulls at the top."""
    descriptor = message_of(DATA, "p.Full").DESCRIPTOR
    names = draw(
        st.lists(
            st.sampled_from([item.name for item in descriptor.fields]), min_size=1, max_size=6, unique=True
        )
    )

    class Part:
        fields = tuple(item for item in descriptor.fields if item.name in names)

    kind = pa.struct([KIND.field(item.name) for item in Part.fields])
    return pa.array(draw(st.lists(st.none() | rows(Part), max_size=3)), kind)


def in_order(value: Any) -> Any:
    """Return a value with the entries of its maps in order: Protobuf keeps none."""
    if isinstance(value, dict):
        return {name: in_order(item) for name, item in value.items()}
    if isinstance(value, list) and value and all(type(item) is tuple for item in value):
        return sorted(((key, in_order(item)) for key, item in value), key=lambda entry: repr(entry[0]))
    return [in_order(item) for item in value] if isinstance(value, list) else value


@settings(max_examples=few(150), deadline=None)
@given(columns())
def test_a_round_trip_is_exact(column: pa.Array) -> None:
    assert FULL.problem(column.type, writing=True) is None is FULL.problem(column.type, writing=False)
    encoded = FULL.encode(column)
    result = FULL.decode(encoded, column.type)
    assert result.problems == {}
    assert repr(in_order(result.column.to_pylist())) == repr(in_order(column.to_pylist()))
    whole = FULL.decode(encoded, KIND)
    assert whole.problems == {} and whole.column.is_null().equals(column.is_null())


@settings(max_examples=few(60), deadline=None)
@given(st.lists(st.binary(max_size=12), max_size=5))
def test_any_bytes_decode_or_have_a_reason(data: list[bytes]) -> None:
    for value_format in (FULL, OLD):
        result = value_format.decode(pa.array(data, pa.binary()), value_format.own_type())
        assert len(result.column) == len(data)
        for row, value in enumerate(result.column):
            assert (row in result.problems) == (not value.is_valid)


def test_the_bytes_are_those_of_protobuf() -> None:
    message = message_of(DATA, "p.Full")(s_int32=-1, o_string="", left=0, color=2, r_uint64=[1 << 63])
    message.at.FromDatetime(datetime(1969, 12, 31, 23, 59, 59, 999999))
    message.took.FromTimedelta(timedelta(microseconds=-1_500_000))
    message.mapplace["Rome"].population = 0
    data = message.SerializeToString(deterministic=True)
    column = FULL.decode(pa.array([data]), KIND).column
    row = column.to_pylist()[0]
    assert (row["s_int32"], row["o_string"], row["left"], row["color"]) == (-1, "", 0, "BLUE")
    assert (row["r_uint64"], row["at"], row["took"], row["o_int64"], row["s_string"]) == (
        [Decimal(1 << 63)],
        datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
        timedelta(seconds=-1.5),
        None,
        "",
    )
    assert row["mapplace"] == [("Rome", {"city": "", "population": 0})] and row["place"] is None
    assert FULL.encode(column).to_pylist() == [data]


def test_the_type_of_a_message() -> None:
    assert pa.struct([pa.field("city", pa.string(), False), ("population", pa.int64())]) == CITY
    fields = {name: KIND.field(name) for name in ("s_uint32", "o_uint64", "r_bytes", "color", "left", "took")}
    kinds = [pa.int64(), pa.decimal128(20, 0), pa.list_(pa.field("element", pa.binary(), False)), pa.string()]
    assert [item.type for item in fields.values()] == [*kinds, pa.int32(), DURATION]
    assert [item.nullable for item in fields.values()] == [False, True, False, False, True, True]
    assert [OLD.own_type().field(name).nullable for name in ("id", "size", "note")] == [False, False, True]
    assert same(
        OLD.decode(pa.array([b"\x08\x01"]), OLD.own_type()).column,
        pa.array([{"id": 1, "size": 7, "note": None}], OLD.own_type()),
    )


@pytest.mark.parametrize(
    ("kind", "row", "reason"),
    [
        (CITY, {"city": None, "population": 1}, "field city: it is null, and the field cannot be absent"),
        (KIND, {"left": 1, "right": {"city": ""}}, "field right: it and left are members of one oneof"),
        (KIND, {"color": "PINK"}, "field color: 'PINK' is no value of p.Color: NONE, RED, BLUE"),
        (KIND, {"s_uint32": -1}, "field s_uint32: Value out of range"),
        (KIND, {"r_uint64": [Decimal(1), Decimal(1 << 64)]}, "field r_uint64[1]: Value out of range"),
        (KIND, {"mapplace": [("x", {"city": None})]}, "field mapplace[x].city: it is null"),
        (KIND, {"r_int32": [None]}, "field r_int32[0]: it is null, and Protobuf has no null there"),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_refused(kind: pa.DataType, row: dict[str, Any], reason: str) -> None:
    part = pa.struct([kind.field(name).with_nullable(True) for name in row])
    if "r_int32" in row:
        part = pa.struct([("r_int32", pa.list_(pa.int32()))])
    value_format = PLACE if kind is CITY else FULL
    with pytest.raises(SerializerError) as caught:
        value_format.encode(pa.array([row], part))
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("value_format", "data", "reason"),
    [
        (PLACE, b"\x0a\x05a", "it is no p.Place: "),
        (PLACE, b"\x0a\x01\xff", "it is no p.Place: "),
        (OLD, b"\x10\x01", "it is no q.Old: the required fields id are missing"),
    ],
)
def test_bytes_of_another_message_have_a_reason(
    value_format: ProtobufFormat, data: bytes, reason: str
) -> None:
    result = value_format.decode(pa.array([None, data]), value_format.own_type())
    assert list(result.problems) == [1] and reason in result.problems[1]


def test_a_number_that_is_no_value_of_an_enum() -> None:
    data = message_of(DATA, "p.Full")(colors=[1, 9]).SerializeToString()
    result = FULL.decode(pa.array([data]), pa.struct([KIND.field("colors")]))
    assert result.problems == {0: "field colors: 9 is no value of p.Color"}


def test_text_of_proto2_that_is_not_utf8() -> None:
    result = OLD.decode(pa.array([b"\x08\x01\x1a\x02a\xff"]), OLD.own_type())
    assert result.problems == {0: "field note: it is not UTF-8, and begins with b'a\\xff'"}


@pytest.mark.parametrize(
    ("value_format", "kind", "writing", "reason"),
    [
        (PLACE, pa.string(), False, "message p.Place is a struct, not string"),
        (
            PLACE,
            pa.struct([("town", pa.string())]),
            True,
            "field town: message p.Place has the fields city, population",
        ),
        (PLACE, pa.struct([("city", pa.int32())]), True, "field city: the message has string, not int32"),
        (PLACE, pa.struct([pa.field("population", pa.int64(), False)]), False, "population: it is NOT NULL"),
        (FULL, pa.struct([("colors", pa.string())]), False, "field colors: the message has an array"),
        (
            FULL,
            pa.struct([("at", pa.timestamp("us"))]),
            True,
            "field at: the message has timestamp[us, tz=UTC]",
        ),
        (OLD, pa.struct([("note", pa.string())]), True, "field id: the message requires the field"),
    ],
)
def test_a_type_that_the_message_lacks_is_refused(
    value_format: ProtobufFormat, kind: pa.DataType, writing: bool, reason: str
) -> None:
    assert reason in str(value_format.problem(kind, writing=writing))


def test_what_options_must_say(tmp_path: Path) -> None:
    file = tmp_path / "user.desc"
    file.write_bytes(DATA)
    for message, reason in (
        ("p.Node", "field next: message p.Node contains itself"),
        ("p.Empty", "message p.Empty has no field"),
    ):
        value_format = format_of("protobuf", {"descFilePath": str(file), "messageName": message})
        with pytest.raises(ValueError, match=reason):
            value_format.own_type()
    with pytest.raises(ValueError, match=r"^messageName Full is not in the file, which has .*p\.Full"):
        format_of("protobuf", {"descFilePath": str(file), "messageName": "Full"})
    for settings_, reason in (
        ({}, "descFilePath is not given"),
        ({"descFilePath": str(file)}, "messageName is not given"),
        ({"descFilePath": str(tmp_path / "no"), "messageName": "p.Full"}, "descFilePath names a file"),
    ):
        with pytest.raises(ValueError, match=reason):
            format_of("protobuf", settings_)
    files = descriptor_pb2.FileDescriptorSet.FromString(DATA)
    del files.file[0]
    for data, reason in (
        (b"\xff", "is no descriptor file"),
        (files.SerializeToString(), "include_imports|no descriptor file"),
    ):
        file.write_bytes(data)
        with pytest.raises(ValueError, match=reason):
            format_of("protobuf", {"descFilePath": str(file), "messageName": "p.Full"})
    copied: Any = pickle.loads(pickle.dumps(PLACE))
    assert copied == PLACE and "descriptors" not in repr(copied)
