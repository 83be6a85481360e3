"""Values of a schema registry: each record by the schema of its id, each write under a registered id."""

from __future__ import annotations

import base64
import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("fastavro")

from lastword.clock import ManualClock
from lastword.errors import RegistryError
from lastword.value_formats import format_of
from lastword.value_formats.debezium import DebeziumFormat
from lastword.value_formats.interface import ValueFormat
from lastword.value_formats.registry import format_by_id
from tests.value_formats.registries import FakeRegistry
from tests.value_formats.test_avro import USER, field, record

FIRST = record(field("id", "long"))
SECOND = record(field("id", "long"), field("name", ["null", "string"], default=None))
THIRD = record(field("id", "long"), field("city", "string", default="Rome"))


def confluent(registry: FakeRegistry, **settings: Any) -> ValueFormat:
    given = {"schema.registry.url": registry.url, **settings}
    return pickle.loads(pickle.dumps(format_of("confluent", given, "users-value")))


def write(registry: FakeRegistry, column: pa.Array, **settings: Any) -> list[bytes | None]:
    value_format = confluent(registry, **settings)
    assert value_format.problem(column.type, writing=True) is None
    return pickle.loads(pickle.dumps(value_format.for_writing(column.type))).encode(column).to_pylist()


def test_each_record_is_read_by_its_own_schema(registry: FakeRegistry) -> None:
    column = pa.array([{"id": 1}, None], pa.struct([("id", pa.int64())]))
    old = write(registry, column, avroSchema=json.dumps(FIRST))
    assert old == [b"\0\0\0\0\x01\x02", None]
    new = write(registry, pa.array([{"id": 2, "name": "ada"}], USER), avroSchema=json.dumps(SECOND))
    third = registry.add("users-value", THIRD)
    reader = confluent(registry)
    kind = reader.own_type()
    assert str(kind) == "struct<id: int64 not null, city: string not null>"
    data = pa.array([*old, *new, b"\0\0\0\0" + bytes([third]) + b"\x06\x08Bern"], pa.binary())
    registry.requests.clear()
    result = reader.decode(data, kind)
    assert result.problems == {}
    assert [row and row["city"] for row in result.column.to_pylist()] == ["Rome", None, "Rome", "Bern"]
    assert sorted(registry.requests) == [f"GET /schemas/ids/{n}" for n in (1, 2, 3)], "once for each id"
    reader.decode(data, kind)
    assert len(registry.requests) == 3


def test_without_a_subject_fields_are_matched_by_name(registry: FakeRegistry) -> None:
    first, third = registry.add("other", FIRST), registry.add("other", THIRD)
    reader = confluent(registry)
    assert reader.own_type() is None
    kind = pa.struct([("id", pa.int64()), ("city", pa.string())])
    data = [b"\0\0\0\0" + bytes([first]) + b"\x02", b"\0\0\0\0" + bytes([third]) + b"\x02\x08Bern"]
    assert reader.decode(pa.array(data), kind).column.to_pylist() == [
        {"id": 1, "city": None}, {"id": 1, "city": "Bern"},
    ]  # fmt: skip


def test_the_schema_to_write(registry: FakeRegistry) -> None:
    """The latest of the subject is used if the column fits; without one, that of the type is registered."""
    column = pa.array([{"id": 1, "name": None}], USER)
    assert write(registry, column) == [b"\0\0\0\0\x01\x00\x02\x02"]
    assert json.loads(registry.schemas[0]["schema"])["name"] == "topLevelRecord"
    second = registry.add("users-value", SECOND)
    assert write(registry, column) == [b"\0\0\0\0" + bytes([second]) + b"\x02\x00"]
    registry.add("users-value", FIRST)
    problem = str(confluent(registry).problem(USER, writing=True))
    assert "field name: the schema has the fields id" in problem and "avroSchema registers another" in problem


def test_a_record_that_cannot_be_read_has_a_reason(registry: FakeRegistry) -> None:
    registry.add("users-value", FIRST)
    registry.add("other", "syntax", schemaType="XML")
    data = [b"\x01", b"", b"\0\0\0\0\x09x", b"\0\0\0\0\x09y", b"\0\0\0\0\x02x", b"\0\0\0\0\x01", b'{"id": 1}']
    reader = confluent(registry)
    kind = reader.own_type()
    assert kind is not None
    problems = reader.decode(pa.array(data), kind).problems
    assert list(problems) == list(range(7))
    assert "begins with 01" in problems[0] and "__value_schema_id" in problems[0]
    assert "begins with nothing" in problems[1]
    assert "schema id 9 is not in the registry" in problems[2] and problems[3] == problems[2]
    assert (
        "of type XML; AVRO, JSON and PROTOBUF are read" in problems[4]
        and "not of the schema" in problems[5]
        and "7b" in problems[6]
    )
    assert registry.requests.count("GET /schemas/ids/9") == 1


def test_json_of_a_registry(registry: FakeRegistry, tmp_path: Path) -> None:
    number = registry.add("users-value", {"type": "object"}, schemaType="JSON")
    reader = confluent(registry)
    kind = pa.struct([("id", pa.int64())])
    data = pa.array([b"\0\0\0\0" + bytes([number]) + b'{"id": 7}'])
    assert reader.own_type() is None and reader.decode(data, kind).column.to_pylist() == [{"id": 7}]
    assert write(registry, pa.array([{"id": 7}, None], kind)) == [b'\0\0\0\0\x01{"id":7}', None]
    assert write(registry, pa.array(["a"])) == [b'\0\0\0\0\x01"a"'], "text is JSON too"
    assert "no JSON" in str(reader.problem(pa.struct([("d", pa.duration("us"))]), writing=True))
    assert len(registry.schemas) == 1
    (tmp_path / "1.json").write_text("{}")
    folder = format_of("confluent", {"schema.registry.url": str(tmp_path)})
    assert folder.decode(data, kind).column.to_pylist() == [{"id": 7}]


def test_change_events_in_json_of_a_registry(registry: FakeRegistry) -> None:
    registry.add("users-value", {}, schemaType="JSON")
    events = DebeziumFormat(confluent(registry), ManualClock(0))
    kind = pa.struct([("id", pa.int64())])
    assert events.own_type() is None is events.problem(kind, writing=True)
    writer, column = events.for_writing(kind), pa.array([{"id": 7}, None], kind)
    rest = b'"source":{"connector":"lastword"},"op":"c","ts_ms":0}'
    data = [writer.encode(column).to_pylist()[0], writer.deletion(kind)]
    assert data[0] == b'\0\0\0\0\x01{"after":{"id":7},' + rest
    result = events.decode(pa.array(data), kind)
    assert result.problems == {} and result.column == column


@pytest.mark.parametrize(
    ("name", "user", "is_inside"),
    [
        ("n.Place", {}, False),
        ("n.Place", {"namespace": "other"}, False),
        ("Place", {"namespace": "n"}, False),
        ("Place", {"name": "n.User", "namespace": "other"}, False),
        ("Place", {"namespace": "n"}, True),
    ],
)
def test_schemas_that_refer_to_others(
    registry: FakeRegistry, name: str, user: dict[str, str], is_inside: bool
) -> None:
    """A name in the namespace around it may be short: Java writes it so."""
    place = {"type": "record", "name": "Place", "namespace": "n", "fields": [field("city", "string")]}
    registry.add("place", place)
    reference = {"name": "n.Place", "subject": "place", "version": 1}
    members = record(field("home", name), field("work", ["null", name]))
    if is_inside:
        members = record(field("user", {**members, "name": "Inner"}))
    registry.add("users-value", members | user, references=[reference])
    reader = confluent(registry)
    kind = reader.own_type()
    assert kind is not None
    result = reader.decode(pa.array([b"\0\0\0\0\x02\x08Rome\x02\x08Bern"]), kind)
    (row,) = result.column.to_pylist()
    assert row.get("user", row) == {"home": {"city": "Rome"}, "work": {"city": "Bern"}}


def test_a_schema_that_does_not_fit_has_a_reason(registry: FakeRegistry) -> None:
    """The reason names the id of the record's schema, and the field."""
    for schema in (record(field("id", ["int", "string"])), record(field("id", "string")), "long", "{"):
        registry.add("other", schema)
    heads = [b"\0\0\0\0" + bytes([number]) for number in (1, 2, 3, 4)]
    data = pa.array([heads[0] + b"\x02\x02a", heads[1] + b"\x02a", heads[2] + b"\x02", heads[3]])
    kind = pa.struct([("id", pa.int64())])
    problems = confluent(registry).decode(data, kind).problems
    assert problems[0].startswith(
        "its schema id 1 does not fit the column: field id: a union of several types"
    )
    assert (
        problems[1] == "its schema id 2 does not fit the column: field id: the schema has string, not int64"
    )
    assert problems[2] == "its schema id 3 does not fit the column: the schema has int64, not " + str(kind)
    assert problems[3].startswith("its schema id 4 is no Avro schema: ")
    resolved = confluent(registry, avroSchema=json.dumps(FIRST)).decode(data.slice(1, 1), kind).problems
    assert resolved[0].startswith("its schema does not resolve to the schema of the column: Schema mismatch")


def test_a_record_that_was_renamed_is_read(registry: FakeRegistry) -> None:
    registry.add("users-value", {**FIRST, "name": "Old", "namespace": "m"})
    registry.add("users-value", SECOND)
    reader = confluent(registry)
    assert reader.decode(pa.array([b"\0\0\0\0\x01\x02"]), USER).column.to_pylist() == [
        {"id": 1, "name": None}
    ]


def test_what_a_server_refuses(registry: FakeRegistry) -> None:
    registry.authorization = "Basic " + base64.b64encode(b"ada:secret").decode()
    with pytest.raises(RegistryError, match="answers 401") as caught:
        confluent(registry)
    assert "secret.basic.auth.user.info" in str(caught.value)
    given = {"basic.auth.user.info": "ada:secret"}
    value_format = confluent(registry, avroSchema=json.dumps(record(field("incompatible", "long"))), **given)
    with pytest.raises(RegistryError, match=r"409.*incompatible(.|\n)*another subject"):
        value_format.for_writing(pa.struct([("incompatible", pa.int64())]))
    with pytest.raises(RegistryError, match="does not answer"):
        format_of("confluent", {"schema.registry.url": "http://127.0.0.1:1"}, "users-value")


@pytest.mark.parametrize(
    "answer",
    [
        [], {}, "x", None, {"id": 1, "schema": 5}, {"id": 1, "schemaType": "PROTOBUF"},
        {"id": 1, "schema": '"string"', "references": [{"name": "a"}]},
    ],
)  # fmt: skip
def test_a_server_of_another_kind_is_named(
    registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    """As if schema.registry.url were the URL of another service: the error was a KeyError or a TypeError."""
    monkeypatch.setattr(registry, "answer", lambda *given: (200, answer))
    url = {"schema.registry.url": registry.url}
    with pytest.raises(RegistryError, match=r"not of a schema registry(.|\n)*correct schema.registry.url"):
        format_of("confluent", url, "users-value")
    with pytest.raises(RegistryError, match="not of a schema registry"):
        format_of("confluent", url).decode(pa.array([b"\0\0\0\0\x01\x02"]), USER)


def test_credentials_in_the_url_are_sent_and_not_shown(registry: FakeRegistry) -> None:
    """The name of the host was taken with them, and each error showed them."""
    registry.authorization = "Basic " + base64.b64encode(b"ada:se/c@ret").decode()
    registry.add("users-value", FIRST)
    url = registry.url.replace("http://", "HTTP://ada:se%2Fc%40ret@")
    value_format = format_of("confluent", {"schema.registry.url": url}, "users-value")
    assert value_format.own_type() is not None
    assert "ret@" not in repr(value_format)
    for wrong in (url.replace("ada", "bob"), "http://ada:s3cret@127.0.0.1:1", "ftp://ada:s3cret@host"):
        with pytest.raises((RegistryError, ValueError)) as caught:
            format_of("confluent", {"schema.registry.url": wrong}, "users-value")
        assert "ret@" not in str(caught.value)
    shown = repr(
        format_of("confluent", {"schema.registry.url": registry.url, "basic.auth.user.info": "a:s3cret"})
    )
    assert "s3cret" not in shown


def test_a_folder_of_schemas(tmp_path: Path) -> None:
    format_by_id.cache_clear()
    (tmp_path / "7.avsc").write_text(json.dumps(FIRST))
    given = {"schema.registry.url": str(tmp_path), "avroSchema": json.dumps(FIRST)}
    kind = pa.struct([("id", pa.int64())])
    value_format = format_of("confluent", given, "users-value")
    data = value_format.for_writing(kind).encode(pa.array([{"id": 1}], kind))
    assert data.to_pylist() == [b"\0\0\0\0\x07\x02"]
    del given["avroSchema"]
    reader = format_of("confluent", given, "users-value")
    assert reader.own_type() is None and reader.decode(data, kind).column.to_pylist() == [{"id": 1}]
    with pytest.raises(RegistryError, match=r"no file of .* has the schema of users-value(.|\n)*/8.avsc"):
        reader.for_writing(USER)
    assert "id 9 is not in" in reader.decode(pa.array([b"\0\0\0\0\x09"]), kind).problems[0]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "schema.registry.url is not given"),
        ({"schema.registry.url": "/nowhere"}, "neither http, https nor"),
    ],
)
def test_a_registry_is_a_server_or_a_folder(settings: dict[str, str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        format_of("confluent", settings)
