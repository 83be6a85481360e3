"""Parse and write messages with kio, a second implementation of Kafka's protocol, for another process.

This file runs in a virtual environment of its own, which has kio and nothing of lastword: kio needs a package
under the LGPL. A line of JSON comes in and one goes out:

```
{"name": "MetadataRequest", "version": 12, "data": "01…", "fields": […]}
    -> {"parsed": […], "left": 0, "written": "01…"}     fields of `data`, unread bytes, bytes for `fields`
    -> {"parse_error": "…", "write_error": "…"}         what kio raised
```

The first line that goes out has all messages of kio by name and version, each with its fields: name, type,
tag, whether it is an array, and the fields of a struct. Values are in the order of the fields: integers,
texts, booleans, hexadecimal bytes, lists, None. Times are milliseconds, error codes are numbers.
"""

import dataclasses
import datetime
import io
import json
import sys
import uuid
from pkgutil import resolve_name

from kio.schema.errors import ErrorCode
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.serial._introspect import EntityField, EntityTupleField, classify_field, get_field_tag

MILLISECOND = datetime.timedelta(milliseconds=1)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def entities():
    """Return the class of each message, by name and version."""
    classes = {}
    for by_version in schema_name_map.values():
        for version, by_type in by_version.items():
            for path in by_type.values():
                entity = resolve_name(path)
                classes[entity.__name__, version] = entity
    return classes


def described(entity):
    """Return the fields of an entity's class as lists."""
    return [
        [field.name, field.metadata.get("kafka_type"), get_field_tag(field), kind.is_array, nested(kind)]
        for field in dataclasses.fields(entity)
        for kind in (classify_field(field),)
    ]


def nested(kind):
    """Return the described fields of a field that is a struct, else None."""
    return described(kind.type_) if isinstance(kind, EntityField | EntityTupleField) else None


def shown(value, kafka_type):
    """Return a parsed value as JSON has it."""
    if isinstance(value, tuple):
        return [shown(element, kafka_type) for element in value]
    if dataclasses.is_dataclass(value):
        return [
            shown(getattr(value, field.name), field.metadata.get("kafka_type"))
            for field in dataclasses.fields(value)
        ]
    if kafka_type == "uuid":
        return uuid.UUID(int=0).hex if value is None else value.hex
    if kafka_type == "datetime_i64":
        return -1 if value is None else (value - EPOCH) // MILLISECOND
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, datetime.timedelta):
        return value // MILLISECOND
    if isinstance(value, ErrorCode):
        return value.value
    return bytes(value).hex() if kafka_type in ("bytes", "records") else value


def made(values, entity):
    """Return an entity with values in the order of its fields."""
    given = {}
    for field, value in zip(dataclasses.fields(entity), values, strict=True):
        kind = classify_field(field)
        make = made if nested(kind) is not None else scalar
        detail = kind.type_ if make is made else field.metadata["kafka_type"]
        if value is None and not (make is scalar and detail in ("uuid", "datetime_i64")):
            given[field.name] = None
        elif kind.is_array:
            given[field.name] = tuple(make(element, detail) for element in value)
        else:
            given[field.name] = make(value, detail)
    return entity(**given)


def scalar(value, kafka_type):
    """Return a value of a field that is not a struct."""
    if kafka_type == "uuid":
        return None if int(value, 16) == 0 else uuid.UUID(hex=value)
    if kafka_type == "datetime_i64":
        return None if value == -1 else EPOCH + value * MILLISECOND
    if kafka_type in ("timedelta_i32", "timedelta_i64"):
        return value * MILLISECOND
    if kafka_type == "error_code":
        return ErrorCode(value)
    return bytes.fromhex(value) if kafka_type in ("bytes", "records") else value


def answer(request, classes):
    """Return what kio makes of a message: its values from our bytes, its bytes from our values."""
    entity = classes[request["name"], request["version"]]
    answered = {}
    try:
        data = bytes.fromhex(request["data"])
        parsed, size = entity_reader(entity)(data, 0)
        answered["parsed"] = shown(parsed, None)
        answered["left"] = len(data) - size
    except Exception as error:
        answered["parse_error"] = f"{type(error).__name__}: {error}"
    try:
        buffer = io.BytesIO()
        entity_writer(entity)(buffer, made(request["fields"], entity))
        answered["written"] = buffer.getvalue().hex()
    except Exception as error:
        answered["write_error"] = f"{type(error).__name__}: {error}"
    return answered


def main():
    """Answer lines until the end of the input."""
    classes = entities()
    listed = [
        [name, version, described(entity)]
        for (name, version), entity in sorted(classes.items(), key=lambda e: e[0])
    ]
    codes = [code.value for code in ErrorCode]
    print(json.dumps({"messages": listed, "error_codes": codes}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line), classes)), flush=True)


if __name__ == "__main__":
    main()
