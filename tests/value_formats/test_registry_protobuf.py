"""Protobuf of a schema registry: messages by id and index, files that import others, a folder."""

from __future__ import annotations

import base64
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("google.protobuf")

from google.protobuf import descriptor_pb2

from lastword.clock import ManualClock
from lastword.errors import RegistryError, SerializerError
from lastword.value_formats import format_of
from lastword.value_formats.debezium import DebeziumFormat
from lastword.value_formats.interface import ValueFormat, ValueRefused
from lastword.value_formats.protobuf import message_of
from lastword.value_formats.registry import bytes_of, format_by_id, indexes_of
from tests.value_formats.registries import FakeRegistry
from tests.value_formats.test_protobuf import map_of, member, optional

CITY = pa.struct([pa.field("city", pa.string(), False), ("population", pa.int64())])
HEAD = b"\0\0\0\0"
ROME = b"\x0a\x04Rome\x10\x07"


def place_file(name: str = "place.proto", *, fields: int = 2) -> Any:
    """Return a file with p.Place of `fields` fields, p.Place.Inner behind a map, and p.Other."""
    file = descriptor_pb2.FileDescriptorProto(name=name, package="p", syntax="proto3")
    place = file.message_type.add(name="Place")
    member(place, "city", "string")
    if fields > 1:
        optional(place, "population", "int64")
    if fields > 2:
        map_of(place, "tags", "string", "int32")
    member(place.nested_type.add(name="Inner"), "x", "int32")
    member(file.message_type.add(name="Other"), "city", "string")
    return file


def user_file() -> Any:
    """Return a file that imports place.proto, a time, and a file with options only."""
    file = descriptor_pb2.FileDescriptorProto(name="user.proto", package="u", syntax="proto3")
    file.dependency.extend(["place.proto", "google/protobuf/timestamp.proto", "confluent/meta.proto"])
    user = file.message_type.add(name="User")
    member(user, "home", "p.Place")
    member(user, "at", "google.protobuf.Timestamp")
    return file


def as_server(file: Any) -> str:
    """Return the descriptor of a file as a server makes it of a text: relative names without their kind."""
    copy = descriptor_pb2.FileDescriptorProto.FromString(file.SerializeToString())
    copy.name = "default"
    for message in copy.message_type:
        for field in message.field:
            if field.type_name:
                field.ClearField("type")
                field.type_name = field.type_name.removeprefix(".")
    return base64.b64encode(copy.SerializeToString()).decode()


def add(registry: FakeRegistry, subject: str, file: Any, **more: Any) -> int:
    text = f"the text of {len(registry.schemas)}"
    return registry.add(subject, text, schemaType="PROTOBUF", serialized=as_server(file), **more)


def write_set(path: Path, *files: Any) -> str:
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=files).SerializeToString())
    return str(path)


def confluent(place: str, **settings: str) -> ValueFormat:
    given = {"schema.registry.url": place, **settings}
    return pickle.loads(pickle.dumps(format_of("confluent", given, "t-value")))


def write(value_format: ValueFormat, column: pa.Array) -> list[bytes | None]:
    assert value_format.problem(column.type, writing=True) is None
    return pickle.loads(pickle.dumps(value_format.for_writing(column.type))).encode(column).to_pylist()


def test_the_latest_message_is_read_and_written(registry: FakeRegistry) -> None:
    old = add(registry, "t-value", place_file(fields=1))
    latest = add(registry, "t-value", place_file())
    value_format = confluent(registry.url)
    assert value_format.own_type() == CITY
    column = pa.array([{"city": "Rome", "population": 7}, None, {"city": "", "population": None}], CITY)
    registry.requests.clear()
    written = write(value_format, column)
    assert written == [HEAD + bytes([latest, 0]) + ROME, None, HEAD + bytes([latest, 0])]
    assert registry.requests == [f"GET /schemas/ids/{latest}", f"GET /schemas/ids/{latest}?format=serialized"]
    data = [*written, HEAD + bytes([old, 0]) + b"\x0a\x04Bern", HEAD + bytes([old, 2, 0]) + b"\x0a\x04Oslo"]
    registry.requests.clear()
    result = value_format.decode(pa.array(data), CITY)
    assert result.problems == {}
    assert [row and row["city"] for row in result.column.to_pylist()] == ["Rome", None, "", "Bern", "Oslo"]
    assert len(registry.requests) == 2, "once for each id"


def test_a_message_is_chosen_by_its_name(registry: FakeRegistry) -> None:
    number = add(registry, "t-value", place_file(fields=3))
    other = confluent(registry.url, messageName="p.Other")
    kind = pa.struct([pa.field("city", pa.string(), False)])
    assert write(other, pa.array([{"city": "a"}], kind)) == [HEAD + bytes([number]) + b"\x02\x02\x0a\x01a"]
    inner = confluent(registry.url, messageName="p.Place.Inner")
    column = pa.array([{"x": 1}], inner.own_type())
    data = write(inner, column)
    assert data == [HEAD + bytes([number]) + b"\x04\x00\x02\x08\x01"], "the entry of a map has an index"
    assert inner.decode(pa.array(data), column.type).column == column
    result = confluent(registry.url).decode(pa.array(data), CITY)
    assert result.problems == {
        0: "it is a p.Place.Inner, and the column a p.Place: option messageName gives the message of the "
        "column"
    }
    with pytest.raises(
        ValueError, match=r"^messageName Place .*, which has p\.Place, p\.Place\.Inner, p\.Other"
    ):
        confluent(registry.url, messageName="Place")
    registry.add("a-value", "string")
    for subject in ("a-value", "none"):
        with pytest.raises(ValueError, match=r"^messageName needs descFilePath, or a subject"):
            confluent(registry.url, messageName="p.Place", subject=subject)


def test_without_a_subject_fields_are_matched_by_name(registry: FakeRegistry) -> None:
    first, second = (add(registry, "x", place_file(fields=number)) for number in (1, 2))
    wide = pa.struct([("population", pa.decimal128(20, 0)), ("city", pa.string())])
    kind = pa.struct([("city", pa.string()), ("population", pa.int64()), ("x", pa.int64())])
    reader = confluent(registry.url)
    assert reader.own_type() is None
    data = [
        HEAD + bytes([first, 0]) + ROME,
        HEAD + bytes([second, 0]) + ROME,
        HEAD + bytes([first]) + b"\x04\0\0\x08\x05",
    ]
    rows = [
        {"city": "Rome", "population": None},
        {"city": "Rome", "population": 7},
        {"city": None, "population": None},
    ]
    result = reader.decode(pa.array(data), kind)
    assert result.problems == {}
    assert result.column.to_pylist() == [row | {"x": 5 if row["city"] is None else None} for row in rows]
    assert "field population: the message has int64" in reader.decode(pa.array(data), wide).problems[1]
    required = pa.struct([pa.field("population", pa.int64(), False)])
    problems = reader.decode(pa.array(data), required).problems
    assert "field population: message p.Place has the fields city" in problems[0]
    assert "field population: it is NOT NULL, and the field may be absent" in problems[1]


def test_files_that_import_others(registry: FakeRegistry, tmp_path: Path) -> None:
    add(registry, "places", place_file())
    reference = {"name": "place.proto", "subject": "places", "version": 1}
    served = add(registry, "t-value", user_file(), references=[reference])
    reader = confluent(registry.url)
    kind = reader.own_type()
    assert kind is not None and kind.field("home").type == CITY
    assert kind.field("at").type == pa.timestamp("us", tz="UTC")
    data = pa.array([HEAD + bytes([served, 0]) + b"\x0a\x08" + ROME + b"\x12\x02\x08\x01"])
    result = reader.decode(data, kind)
    assert result.problems == {} and result.column.to_pylist()[0]["home"]["city"] == "Rome"
    imports = [file_named(name) for name in ("google/protobuf/timestamp.proto", "confluent/meta.proto")]
    given = {
        "descFilePath": write_set(
            tmp_path / "u.desc", *imports, place_file(), user_file(), descriptor_of("z.proto")
        )
    }
    writer = confluent(registry.url, messageName="u.User", subject="new-value", **given)
    assert writer.own_type() == kind
    assert write(writer, result.column) == [HEAD + b"\x04" + data[0].as_py()[5:]]
    assert [list(registry.subjects), registry.subjects["place.proto"]] == [
        ["places", "t-value", "place.proto", "new-value"],
        [3],
    ]
    assert registry.schemas[3]["references"] == [
        {"name": "place.proto", "subject": "place.proto", "version": 1}
    ]
    assert (
        write(writer, result.column)[0] == HEAD + b"\x04" + data[0].as_py()[5:] and len(registry.schemas) == 4
    )
    assert writer.decode(data, kind).column == result.column


def descriptor_of(name: str) -> Any:
    return descriptor_pb2.FileDescriptorProto(name=name)


def file_named(name: str) -> Any:
    from lastword.value_formats.protobuf import descriptors_of, files_of

    return files_of(descriptors_of(name, {}))[-1]


def test_a_schema_that_cannot_be_read_has_a_reason(registry: FakeRegistry) -> None:
    missing = {"name": "place.proto", "subject": "gone", "version": 1}
    add(registry, "a", user_file(), references=[missing])
    add(registry, "b", user_file())
    add(registry, "c", descriptor_pb2.FileDescriptorProto())
    registry.add("d", "syntax", schemaType="PROTOBUF")
    good = add(registry, "e", place_file())
    frames = [
        b"\x01\0",
        b"\x02\0",
        b"\x03\0",
        b"\x04\0",
        *(bytes([good]) + rest for rest in (b"", b"\x02", b"\x02\x06", b"\x01\x00", b"\xff" * 9, b"\0\x0a")),
    ]
    problems = confluent(registry.url).decode(pa.array([HEAD + frame for frame in frames]), CITY).problems
    reasons = [
        "its schema refers to gone, which is not in the registry",
        "its schema id 2 cannot be used: ",
        "its schema id 3 has no message",
        "gives no descriptor of its schema id 4 (format=serialized): write the schemas to a folder",
        "it has no indexes of a message",
        "it has no indexes of a message",
        "its schema id 5 has no message with the indexes [3]",
        "its writer wrote no indexes in front of the message, or wrote them with use.deprecated.format=true",
        "it has no indexes of a message",
        "it is no p.Place: ",
    ]
    assert list(problems) == list(range(len(reasons)))
    for reason, problem in zip(reasons, problems.values(), strict=True):
        assert reason in problem
    assert "'p.Place'" in problems[1] or "p.Place" in problems[1]
    with pytest.raises(RegistryError, match=r"latest schema of d cannot be read(.|\n)*descFilePath"):
        confluent(registry.url, subject="d")


def test_a_value_that_does_not_fit_is_refused(registry: FakeRegistry) -> None:
    add(registry, "t-value", place_file())
    value_format = confluent(registry.url)
    problem = str(value_format.problem(pa.struct([("town", pa.string())]), writing=True))
    assert "field town: message p.Place has the fields city, population" in problem
    assert problem.endswith("; descFilePath registers another schema of t-value")
    kind = pa.struct([("city", pa.string())])
    with pytest.raises(SerializerError, match="field city: it is null, and the field cannot be absent"):
        value_format.for_writing(kind).encode(pa.array([{"city": None}], kind))


def test_records_of_another_kind_are_matched_by_name(registry: FakeRegistry) -> None:
    pytest.importorskip("fastavro")
    old = registry.add(
        "t-value", {"type": "record", "name": "P", "fields": [{"name": "city", "type": "string"}]}
    )
    text = registry.add("t-value", {}, schemaType="JSON")
    new = add(registry, "t-value", place_file())
    data = [bytes([old]) + b"\x08Rome", bytes([text]) + b'{"city":"Rome"}', bytes([new, 0]) + b"\x0a\x04Rome"]
    for settings in (
        {},
        {"avroSchema": '{"type":"record","name":"P","fields":[{"name":"city","type":"string"}]}'},
    ):
        reader = confluent(registry.url, **settings)
        kind = CITY if not settings else reader.own_type()
        assert kind is not None
        result = reader.decode(pa.array([HEAD + frame for frame in data]), kind)
        assert result.problems == {} and [row["city"] for row in result.column.to_pylist()] == ["Rome"] * 3


def test_a_folder_of_descriptors(tmp_path: Path) -> None:
    format_by_id.cache_clear()
    folder = tmp_path / "schemas"
    folder.mkdir()
    given = {
        "descFilePath": write_set(tmp_path / "p.desc", place_file(), descriptor_of("z.proto")),
        "messageName": "p.Other",
    }
    value_format = confluent(str(folder), **given)
    kind = value_format.own_type()
    assert kind is not None
    with pytest.raises(RegistryError, match=r"no file of (.|\n)*descriptor_set_out=.*/1.desc place.proto"):
        value_format.for_writing(kind)
    write_set(folder / "7.desc", descriptor_of("a.proto"), place_file())
    write_set(folder / "8.desc", place_file(fields=1))
    write_set(folder / "9.desc")
    (folder / "10.desc").write_bytes(b"\xff")
    column = pa.array([{"city": "Rome"}], kind)
    data = write(value_format, column)
    assert data == [HEAD + b"\x07\x02\x02\x0a\x04Rome"]
    data.append(HEAD + b"\x08\x02\x02\x0a\x04Bern")
    for reader in (value_format, confluent(str(folder))):
        result = reader.decode(pa.array([*data, HEAD + b"\x09\0", HEAD + b"\x0a\0"]), kind)
        assert [row and row["city"] for row in result.column.to_pylist()] == ["Rome", "Bern", None, None]
        assert result.problems[2] == "its schema id 9 has no message"
        assert "schemas/10.desc is no descriptor file" in result.problems[3]
    with pytest.raises(ValueError, match=r"^descFilePath is given with avroSchema"):
        confluent(str(folder), avroSchema="string", **given)
    with pytest.raises(ValueError, match=r"^messageName is not given"):
        confluent(str(folder), descFilePath=given["descFilePath"])


def test_change_events(registry: FakeRegistry) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="e.proto", package="e", syntax="proto3")
    event = file.message_type.add(name="Envelope")
    row, source = (event.nested_type.add(name=name) for name in ("Value", "Source"))
    member(row, "city", "string")
    member(source, "connector", "string")
    for name, kind in (
        ("before", "e.Envelope.Value"),
        ("after", "e.Envelope.Value"),
        ("source", "e.Envelope.Source"),
    ):
        member(event, name, kind)
    member(event, "op", "string")
    member(event, "ts_ms", "int64")
    add(registry, "t-value", file)
    events = DebeziumFormat(confluent(registry.url), ManualClock(0))
    kind = events.own_type()
    assert kind == pa.struct([pa.field("city", pa.string(), False)])
    assert events.problem(kind, writing=True) is None is events.problem(kind, writing=False)
    column = pa.array([{"city": "Rome"}, None], kind)
    writer = events.for_writing(kind)
    data = pa.array([writer.encode(column).to_pylist()[0], writer.deletion(kind), b"\0\0\0\0\x01\0"])
    assert data[0].as_py() == HEAD + b"\x01\0\x12\x06\x0a\x04Rome\x1a\x0a\x0a\x08lastword\x22\x01c"
    result = events.decode(data, kind)
    assert result.column.to_pylist() == [{"city": "Rome"}, None, None]
    assert result.problems == {2: "it is not the change of a row: op '' is not one of c u r d"}


def test_decimals_of_connect(registry: FakeRegistry) -> None:
    file = place_file()
    file.dependency.append("confluent/type/decimal.proto")
    member(file.message_type[0], "price", "confluent.type.Decimal")
    add(registry, "t-value", file)
    kind = confluent(registry.url).own_type()
    assert kind is not None and [item.name for item in kind.field("price").type] == [
        "value",
        "precision",
        "scale",
    ]


@given(st.lists(st.integers(0, 1 << 20), min_size=1, max_size=5).map(tuple), st.binary(max_size=3))
def test_indexes_round_trip(indexes: tuple[int, ...], rest: bytes) -> None:
    data = bytes_of(indexes)
    assert indexes_of(data + rest) == (indexes, len(data))
    for end in range(len(data)):
        with pytest.raises(ValueRefused):
            indexes_of(data[:end])


@given(st.binary(max_size=12))
def test_any_bytes_have_indexes_or_a_reason(data: bytes) -> None:
    try:
        indexes, position = indexes_of(data)
    except ValueRefused:
        return
    assert 0 < position <= len(data) and all(number >= 0 for number in indexes)


def test_the_frame_is_confluents() -> None:
    """The bytes of Confluent's documentation: message 1 of the file, and message 3 in message 0."""
    assert (bytes_of((0,)), bytes_of((1,)), bytes_of((0, 3)), bytes_of((100,))) == (
        b"\0", b"\x02\x02", b"\x04\0\x06", b"\x02\xc8\x01",
    )  # fmt: skip
    assert indexes_of(b"\x02\0\x0a") == ((0,), 2), "the first message without the short form"
    assert message_of(descriptor_pb2.FileDescriptorSet(file=[place_file()]).SerializeToString(), "p.Place")
