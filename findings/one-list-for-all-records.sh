#!/usr/bin/env bash
# fastavro gives all records the same list for a field with a default, and other defaults in place of their values.
#
# Guess: a field that the reader's schema has and the writer's lacks gets its default in each record: a list of its own, a
#   datetime for a timestamp, bytes for bytes. Records that were read are independent of each other.
# Versions: fastavro 1.13.1, avro 1.12.2 (beside it), Python 3.11. Records of {"a": int} are read by a schema with one field more.
# Behaviour: the value is the object in the parsed schema. A program that appends to the list of one record changes the list
#   of all others, also of those that are read later, and of records that are written without the field, as long as it uses that
#   schema. A default is JSON: of a timestamp it is a number, of bytes and a decimal it is text, and {} of a record lacks
#   the defaults of the record's fields. avro gives a list of its own, but other bytes: a default "\u00ff" is the byte
#   FF by the specification, and two bytes of UTF-8 with avro.
# Output seen (2026-12-01):
#   a list: fastavro [], after an append to the first record: [9], read later: [9], written without it: [9]
#   a list: avro [], after an append to the first record: []
#   a timestamp of 0: fastavro 0, if it was written: 1970-01-01 00:00:00+00:00
#   bytes \u00ff: fastavro 'ÿ', if it was written: b'\xff', avro b'\xc3\xbf'
#   a decimal of scale 2: fastavro '\x01', if it was written: 0.01
#   a record {}: fastavro {}, if it was written: {'c': 3}
# Exit code: 0 if it is so; 1 if the behaviour has changed; 2 if the packages cannot be installed.
set -u
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv" || exit 2
"$work/venv/bin/pip" install --quiet --disable-pip-version-check fastavro==1.13.1 avro==1.12.2 || exit 2
said=$(PYTHONUTF8=1 "$work/venv/bin/python" -W ignore - <<'PY'
import datetime
import io
import json
from decimal import Decimal

import avro.schema
import fastavro
from avro.io import BinaryDecoder, DatumReader

OLD = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}


def with_field(kind, **default):
    return {"type": "record", "name": "R", "fields": [*OLD["fields"], {"name": "b", "type": kind, **default}]}


def written(schema, record):
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, record)
    return stream.getvalue()


def by_fastavro(schema):
    return fastavro.schemaless_reader(io.BytesIO(DATA), PARSED, schema)["b"]


def by_avro(schema):
    reader = DatumReader(avro.schema.parse(json.dumps(OLD)), avro.schema.parse(json.dumps(schema)))
    return lambda: reader.read(BinaryDecoder(io.BytesIO(DATA)))["b"]


PARSED = fastavro.parse_schema(OLD)
DATA = written(PARSED, {"a": 1})
many, stream = with_field({"type": "array", "items": "int"}, default=[]), io.BytesIO()
read = by_avro(many)
first, second = read(), read()
seen = f"a list: avro {first}, "
first.append(9)
seen += f"after an append to the first record: {second}"
parsed = fastavro.parse_schema(many)
fastavro.writer(stream, PARSED, [{"a": 1}, {"a": 2}])
stream.seek(0)
first, second = (record["b"] for record in fastavro.reader(stream, parsed))
print(f"a list: fastavro {first}, ", end="")
first.append(9)
stored = fastavro.schemaless_reader(io.BytesIO(written(parsed, {"a": 1})), parsed)["b"]
print(f"after an append to the first record: {second}, read later: {by_fastavro(parsed)}, written without it: {stored}")
print(seen)
inner = {"type": "record", "name": "S", "fields": [{"name": "c", "type": "int", "default": 3}]}
decimal = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
for name, kind, default, value in (
    ("a timestamp of 0", {"type": "long", "logicalType": "timestamp-millis"}, 0, datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)),
    (r"bytes \u00ff", "bytes", "\u00ff", b"\xff"),
    ("a decimal of scale 2", decimal, "\u0001", Decimal("0.01")),
    ("a record {}", inner, {}, {"c": 3}),
):
    schema = fastavro.parse_schema(with_field(kind, default=default))
    there = fastavro.schemaless_reader(io.BytesIO(written(schema, {"a": 1, "b": value})), schema)["b"]
    told = there if isinstance(there, datetime.datetime | Decimal) else repr(there)
    beside = f", avro {by_avro(with_field(kind, default=default))()}" if kind == "bytes" else ""
    print(f"{name}: fastavro {by_fastavro(schema)!r}, if it was written: {told}{beside}")
PY
)
echo "$said"
[ "$said" = "a list: fastavro [], after an append to the first record: [9], read later: [9], written without it: [9]
a list: avro [], after an append to the first record: []
a timestamp of 0: fastavro 0, if it was written: 1970-01-01 00:00:00+00:00
bytes \\u00ff: fastavro 'ÿ', if it was written: b'\\xff', avro b'\\xc3\\xbf'
a decimal of scale 2: fastavro '\\x01', if it was written: 0.01
a record {}: fastavro {}, if it was written: {'c': 3}" ] || { echo "the behaviour has changed"; exit 1; }
