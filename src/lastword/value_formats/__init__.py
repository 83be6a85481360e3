"""Formats of keys and values: a column of any type as bytes, and back.

    json       an object for a struct; what Spark's `to_json` writes and `from_json` reads
    avro       one datum without a header; what Spark's `to_avro` writes and `from_avro` reads
    confluent  the id of a schema in a registry, and a value of it; what Confluent's serializers write
    protobuf   one message; what Spark's `to_protobuf` writes and `from_protobuf` reads

A format converts whole Arrow arrays: `encode` to binary, `decode` from binary to the type of a column. The
type comes from the caller or, if a format has a schema, from `own_type`. A null is a record without a value
(a deletion) in both directions and never reaches a format. A field that is null, or not there, is null.

A round trip is exact: every bit of a number, every digit of a decimal, microseconds, empty arrays and maps,
nulls in them. A value that cannot be kept exactly is refused.

In the values of any format a row may be wrapped in a change event (`debezium`).

The package uses Arrow, loaded with the first value, and no PySpark.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lastword.value_formats.interface import ValueFormat

if TYPE_CHECKING:
    from lastword.value_formats.avro import AvroFormat
    from lastword.value_formats.protobuf import ProtobufFormat

FORMATS = ("json", "avro", "confluent", "protobuf")

OPTIONS = {
    "avroSchema": ("avro", "confluent"),
    "descFilePath": ("protobuf", "confluent"),
    "messageName": ("protobuf", "confluent"),
    "subject": ("confluent",),
    "schema.registry.url": ("confluent",),
    "basic.auth.user.info": ("confluent",),
}
"""Options of formats, and the formats that have them."""

SHARED = ("schema.registry.url", "basic.auth.user.info")
"""Options that hold for keys and values together."""


ENVELOPES = ("debezium",)
"""Kinds of events in which the rows of a column may be wrapped."""


def format_of(
    name: str, settings: Mapping[str, str], subject: str | None = None, *, envelope: str | None = None
) -> ValueFormat:
    """Return the format of this name with its options.

    Args:
        name: One of FORMATS.
        settings: The options of the format.
        subject: The subject of the topic in a registry, if there is one topic.
        envelope: One of ENVELOPES: keys and values are as its writers write them.

    Raises:
        ValueError: An option is wrong; the text begins with the name of the option.
        MissingError: A package is missing.
        RegistryError: The schema registry does not answer.
    """
    for option, value in settings.items():
        if not isinstance(value, str):
            raise ValueError(f"{option} must be a text, and it is {value!r}")
    if name == "json":
        from lastword.value_formats.json_text import JsonFormat

        return JsonFormat(with_schema=envelope is not None)
    if name == "protobuf":
        return _protobuf(settings)
    if name == "avro":
        return _avro(settings)
    from lastword.value_formats.registry import ConfluentFormat, Datum, Registry

    place = settings.get("schema.registry.url")
    if place is None:
        raise ValueError("schema.registry.url is not given: a server, such as http://host:8081, or a folder")
    registry = Registry.of(place, settings.get("basic.auth.user.info"))
    if not registry.is_server and not Path(registry.place).is_dir():
        raise ValueError(f"schema.registry.url is neither http, https nor a folder: {registry.place}")
    datum: Datum | None = None
    if "descFilePath" in settings and "avroSchema" in settings:
        raise ValueError("descFilePath is given with avroSchema: a schema of a registry is of one kind")
    if "descFilePath" in settings:
        datum = _protobuf(settings)
    elif "avroSchema" in settings:
        datum = _avro(settings)
    return ConfluentFormat.of(registry, settings.get("subject", subject), datum, settings.get("messageName"))


def _avro(settings: Mapping[str, str]) -> AvroFormat:
    from lastword.value_formats.avro import AvroFormat, need_fastavro, parse_schema

    need_fastavro()
    schema = settings.get("avroSchema")
    if schema is not None:
        schema = text_or_file(schema)
        try:
            parse_schema(schema)
        except ValueError as error:
            raise ValueError(f"avroSchema {error}") from None
    return AvroFormat(schema)


def _protobuf(settings: Mapping[str, str]) -> ProtobufFormat:
    from lastword.value_formats.protobuf import ProtobufFormat, message_of, need_protobuf, pool_of

    need_protobuf()
    for option, example in (("descFilePath", "user.desc"), ("messageName", "package.User")):
        if option not in settings:
            raise ValueError(f"{option} is not given, such as {example}")
    try:
        descriptors = Path(settings["descFilePath"]).read_bytes()
    except OSError as error:
        raise ValueError(f"descFilePath names a file that cannot be read: {error}") from None
    try:
        pool_of(descriptors)
    except ValueError as error:
        raise ValueError(f"descFilePath {error}") from None
    try:
        message_of(descriptors, settings["messageName"])
    except ValueError as error:
        raise ValueError(f"messageName {error}") from None
    return ProtobufFormat(descriptors, settings["messageName"])


def text_or_file(given: str) -> str:
    """Return a text, or the content of the file with this name. ValueError if the file cannot be read."""
    if not given.lstrip().startswith(("{", "[", '"')) and given.endswith((".avsc", ".json")):
        try:
            return Path(given).read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(f"avroSchema names a file that cannot be read: {error}") from None
    return given
