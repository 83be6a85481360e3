"""Change events of Debezium: an exact round trip in every format, and every event without a row refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings

pytest.importorskip("fastavro")

from fastavro import parse_schema, schemaless_writer

from lastword.clock import ManualClock
from lastword.value_formats import format_of
from lastword.value_formats.debezium import DebeziumFormat, event_schema
from lastword.value_formats.interface import ValueFormat
from tests.support.exhaustive import few
from tests.value_formats.columns import columns, same, types
from tests.value_formats.registries import FakeRegistry, serving

NOW_MS = 1_767_225_600_000
ROW = pa.struct([("id", pa.int64()), ("city", pa.string())])
ROWS = types([pa.string()]).filter(pa.types.is_struct)


def wrapped(value_format: ValueFormat) -> DebeziumFormat:
    return DebeziumFormat(value_format, ManualClock(NOW_MS))


def events(name: str, **options: str) -> DebeziumFormat:
    return wrapped(format_of(name, options, "t-value", envelope="debezium"))


JSON, AVRO = events("json"), events("avro")


@pytest.fixture(scope="module")
def registry() -> Iterator[FakeRegistry]:
    with serving() as server:
        yield server


def with_deletions(value_format: DebeziumFormat, column: pa.Array) -> pa.Array:
    """Return the encoded column with op d instead of each null."""
    deletion = value_format.deletion(column.type)
    return pa.array([data or deletion for data in value_format.encode(column).to_pylist()], pa.binary())


@settings(max_examples=few(40), deadline=None)
@given(columns(ROWS.filter(lambda kind: JSON.problem(kind, writing=True) is None)))
def test_a_round_trip_in_json_is_exact(column: pa.Array) -> None:
    tombstones = JSON.encode(column)
    for encoded in (tombstones, with_deletions(JSON, column)):
        result = JSON.decode(encoded, column.type)
        assert result.problems == {} and same(result.column, column)
    with_schema = [
        None if data is None else b'{"schema":{"type":"struct","fields":[]},"payload":' + data + b"}"
        for data in tombstones.to_pylist()
    ]
    result = JSON.decode(pa.array(with_schema, pa.binary()), column.type)
    assert result.problems == {} and same(result.column, column)
    unselected = JSON.decode(with_deletions(JSON, column), JSON.unselected_type())
    assert unselected.problems == {} and unselected.column.is_null().equals(column.is_null())


@settings(max_examples=few(40), deadline=None)
@given(columns(ROWS))
def test_a_round_trip_in_avro_is_exact(column: pa.Array) -> None:
    given_schema = events("avro", avroSchema=json.dumps(event_schema(column.type)))
    assert AVRO.problem(column.type, writing=True) is None is AVRO.problem(column.type, writing=False)
    encoded = with_deletions(AVRO.for_writing(column.type), column)
    for value_format in (AVRO, given_schema):
        result = value_format.decode(encoded, column.type)
        assert result.problems == {} and same(result.column, column)
    own = given_schema.own_type()
    unselected = given_schema.decode(encoded, given_schema.unselected_type())
    assert own == unselected.column.type and unselected.column.is_null().equals(column.is_null())


@settings(max_examples=few(20), deadline=None)
@given(column=columns(ROWS))
def test_a_round_trip_in_a_registry_is_exact(registry: FakeRegistry, column: pa.Array) -> None:
    registry.subjects.clear()
    given_options = {"schema.registry.url": registry.url}
    value_format = events("confluent", **given_options)
    encoded = with_deletions(value_format.for_writing(column.type), column)
    latest = events("confluent", **given_options)
    assert value_format.own_type() is None is value_format.unselected_type() and latest.own_type() is not None
    assert json.loads(registry.schemas[registry.subjects["t-value"][-1] - 1]["schema"])["name"] == "Envelope"
    for reader in (value_format, latest):
        result = reader.decode(encoded, column.type)
        assert result.problems == {} and same(result.column, column)


def decoded(*values: Any, kind: pa.DataType = ROW) -> tuple[list[Any], dict[int, str]]:
    encoded = [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]
    result = JSON.decode(pa.array(encoded, pa.binary()), kind)
    return result.column.to_pylist(), result.problems


def test_the_text_of_an_event() -> None:
    column = pa.array([{"id": 1, "city": None}, None], ROW)
    rest = b'"source":{"connector":"lastword"},"op":"%s","ts_ms":1767225600000}'
    assert JSON.encode(column).to_pylist() == [b'{"before":null,"after":{"id":1},' + rest % b"c", None]
    assert JSON.deletion(ROW) == b'{"before":null,"after":null,' + rest % b"d"


@pytest.mark.parametrize("op", ["c", "u", "r"])
def test_only_the_row_after_counts(op: str) -> None:
    event = {
        "before": {"id": "x"},
        "after": {"id": 2},
        "source": {"lsn": 5},
        "op": op,
        "ts_ms": 1,
        "more": [],
    }
    schema = {"type": "struct", "name": "db.users.Envelope"}
    assert decoded(event, {"schema": schema, "payload": event}) == ([{"id": 2, "city": None}] * 2, {})
    deletions = [{"op": op, "after": None}, {"op": "d", "before": {"id": 2}, "after": None}]
    assert decoded(*deletions, {"schema": schema, "payload": deletions[1]}) == ([None] * 3, {})


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"op": "t"}, "it is not the change of a row: op 't' is not one of c u r d"),
        ({"op": "m", "message": {}}, "op 'm' is not one of"),
        ({"id": 1, "city": "Rome"}, "it has no field op"),
        ({"schema": None, "payload": {"op": "c"}}, "it has no field op"),
        ({"schema": {"type": "struct"}, "payload": None}, "it has no field op"),
        ([], "[] is no object"),
        (b"null", "it has no field op"),
        (b"{", "it is not JSON"),
        ({"op": "u", "after": {"id": "x"}}, 'field after.id: "x" is no integer'),
        ({"op": "u", "updateDescription": {"updatedFields": "{}"}}, "only the changed fields of a document"),
    ],
)
def test_an_event_without_a_row_has_a_reason(value: Any, reason: str) -> None:
    rows, problems = decoded(value)
    assert rows == [None] and reason in problems[0]


def test_a_document_of_mongodb_is_text() -> None:
    event = {"op": "u", "after": '{"_id": 1}', "updateDescription": {"updatedFields": "{}"}}
    assert decoded(event, {"op": "d"}, kind=pa.string()) == (['{"_id": 1}', None], {})


DEBEZIUM = {
    "type": "record", "name": "Envelope", "namespace": "db.users",
    "fields": [
        {"name": "before", "default": None, "type": ["null", {
            "type": "record", "name": "Value",
            "fields": [{"name": "id", "type": "long"}, {"name": "city", "type": ["null", "string"]}],
        }]},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "source", "type": {"type": "record", "name": "Source", "namespace": "io", "fields": [
            {"name": "version", "type": "string"}, {"name": "connector", "type": "string"},
            {"name": "snapshot", "default": "false", "type": [
                {"type": "string", "connect.version": 1, "connect.name": "io.debezium.data.Enum"}, "null",
            ]},
        ]}},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ],
}  # fmt: skip


def datum(schema: Any, value: Any) -> bytes:
    stream = BytesIO()
    schemaless_writer(stream, parse_schema(schema), value)
    return stream.getvalue()


UNION = {"name": "v", "type": ["int", "string"]}


def test_a_schema_of_debezium(registry: FakeRegistry) -> None:
    number = registry.add("other-value", DEBEZIUM)
    event = {
        "after": {"id": 1, "city": "Rome"},
        "source": {"version": "3", "connector": "mysql"},
        "op": "r",
        "ts_ms": 1,
    }
    deletion = {**event, "before": event["after"], "after": None, "op": "d"}
    encoded = [datum(DEBEZIUM, row) for row in (event, deletion)]
    head = b"\0" + number.to_bytes(4, "big")
    avro = events("avro", avroSchema=json.dumps(DEBEZIUM))
    confluent = events("confluent", **{"schema.registry.url": registry.url, "subject": "other-value"})
    assert (
        avro.own_type()
        == confluent.own_type()
        == pa.struct([pa.field("id", pa.int64(), False), ("city", pa.string())])
    )
    for value_format, data in ((avro, encoded), (confluent, [head + data for data in encoded])):
        result = value_format.decode(pa.array(data, pa.binary()), ROW)
        assert (result.column.to_pylist(), result.problems) == ([event["after"], None], {})
        assert "source.version" in str(value_format.problem(ROW, writing=True))


def test_a_type_of_the_caller_may_leave_out_fields_without_a_type() -> None:
    """The schema of the events was refused as a whole, with the advice to leave the field out."""
    row = {"type": "record", "name": "Value", "fields": [{"name": "id", "type": "long"}, UNION]}
    schema = {
        **DEBEZIUM,
        "fields": [{"name": "after", "type": ["null", row]}, *DEBEZIUM["fields"][2:], UNION],
    }
    value_format = events("avro", avroSchema=json.dumps(schema))
    value_format.check_events()
    assert value_format.unselected_type() is None
    kind = pa.struct([("id", pa.int64())])
    assert value_format.problem(kind, writing=False) is None
    event = {"after": {"id": 7, "v": "a"}, "v": 1, "op": "c", "source": {"version": "3", "connector": "x"}}
    result = value_format.decode(pa.array([datum(schema, event)], pa.binary()), kind)
    assert (result.column.to_pylist(), result.problems) == ([{"id": 7}], {})


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="no fields op and after"):
        events("avro", avroSchema='{"type":"record","name":"R","fields":[]}').own_type()
    for value_format in (JSON, AVRO):
        assert value_format.problem(pa.string(), writing=True) == "the row of a change event is a struct"
    assert "struct" in str(AVRO.problem(pa.string(), writing=False))
    assert "no JSON" in str(JSON.problem(pa.struct([("a", pa.duration("us"))]), writing=False))


def test_a_key_may_have_a_schema_around_it() -> None:
    key = format_of("json", {}, envelope="debezium")
    data = [b'{"schema":{"type":"struct"},"payload":{"id":7}}', b'{"id":7}', b'{"schema":1,"payload":2}']
    kind = pa.struct([("id", pa.int64())])
    assert key.decode(pa.array(data), kind).column.to_pylist() == [{"id": 7}, {"id": 7}, {"id": None}]
    bare = format_of("json", {}).decode(pa.array(data[:1]), kind)
    assert bare.column.to_pylist() == [{"id": None}]


def test_formats_travel() -> None:
    copied: Any = pickle.loads(pickle.dumps(DebeziumFormat(JSON.events)))
    assert copied.events == JSON.events and copied.serializer == "json" and AVRO.serializer == "bytes"
    assert copied.deletion(ROW) != JSON.deletion(ROW)
