"""Formats of keys and values: a column of any type as bytes, and back.

    json       an object for a struct; what Spark's `to_json` writes and `from_json` reads
    avro       one datum without a header; what Spark's `to_avro` writes and `from_avro` reads
    confluent  the id of a schema in a registry, and a datum of it; what Confluent's serializers write
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

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from lastword.errors import SerializerError

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("json", "avro", "confluent", "protobuf")


class Refused(ValueError):
    """A value that does not fit its format or type; `path` is the place within the value."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason, path)
        self.reason = reason
        self.path = path

    def inside(self, name: str) -> Refused:
        """Return the error with the name of the enclosing field in front of its path."""
        joint = "." if self.path and not self.path.startswith("[") else ""
        return Refused(self.reason, f"{name}{joint}{self.path}")

    def __str__(self) -> str:
        return f"field {self.path}: {self.reason}" if self.path else self.reason


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded column. `problems` has a reason for each row that could not be decoded; it is null."""

    column: pa.Array
    problems: dict[int, str]


class ValueFormat(ABC):
    """One format with its options. Instances travel to Spark's tasks by pickle."""

    name: ClassVar[str]
    has_deletions: ClassVar[bool] = False
    """Whether bytes may decode to null, which is a deletion; in other formats they are malformed."""

    @property
    def serializer(self) -> str:
        """The serializer with which Python reads such values; a new topic stores it."""
        return "bytes"

    def own_type(self) -> pa.DataType | None:
        """Return the type of a decoded column, or None if the caller must give it."""
        return None

    def unselected_type(self) -> pa.DataType | None:
        """Return a type in which a column is decoded that the caller does not select, or None."""
        return self.own_type()

    @abstractmethod
    def problem(self, kind: pa.DataType, *, writing: bool) -> str | None:
        """Return the reason why a column of this type cannot be written or read, or None."""

    def for_writing(self, kind: pa.DataType) -> ValueFormat:
        """Return the format with what a task needs to write a type. The driver calls it once for a write."""
        return self

    @abstractmethod
    def encoder(self, kind: pa.DataType) -> Callable[[Any], bytes]:
        """Return a function from a value of Arrow's `to_pylist` to bytes. It raises Refused."""

    @abstractmethod
    def decoder(self, kind: pa.DataType) -> Callable[[bytes], Any]:
        """Return a function from bytes to a value that `pyarrow.array` accepts. It raises Refused."""

    def deletion(self, kind: pa.DataType) -> bytes | None:
        """Return the value to write in front of each record without a value, or None."""
        return None

    def encode(self, column: pa.Array) -> pa.Array:
        """Return the bytes of each value as a binary array; a null stays null.

        Raises:
            SerializerError: A value has no form in this format.
        """
        import pyarrow as pa

        write = self.encoder(column.type)
        try:
            values = column.to_pylist()
        except (OverflowError, ValueError) as error:
            raise SerializerError(
                f"a value cannot be written as {self.name}: {error}",
                remedy="dates and timestamps are of the years 1 to 9999",
            ) from None
        try:
            encoded = [None if value is None else write(value) for value in values]
        except Refused as refused:
            raise SerializerError(
                f"a value cannot be written as {self.name}: {refused}", remedy="change or filter the row"
            ) from None
        return pa.array(encoded, pa.binary())

    def decode(self, column: pa.Array, kind: pa.DataType) -> Decoded:
        """Return the values of a binary array as a column of the type; a null stays null."""
        import pyarrow as pa

        read = self.decoder(kind)
        values: list[Any] = []
        problems: dict[int, str] = {}
        for row, data in enumerate(column.to_pylist()):
            value = None
            if data is not None:
                try:
                    value = read(data)
                    if value is None and not self.has_deletions:
                        raise Refused("it is null; a deletion is a record without a value")
                except Refused as refused:
                    problems[row] = str(refused)
                    value = None
            values.append(value)
        try:
            return Decoded(pa.array(values, kind), problems)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            pass
        for row, value in enumerate(values):  # a value that only Arrow refuses, such as a lone surrogate
            try:
                pa.array([value], kind)
            except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
                problems[row] = str(error)
                values[row] = None
        return Decoded(pa.array(values, kind), problems)


OPTIONS = {
    "avroSchema": ("avro", "confluent"),
    "descFilePath": ("protobuf",),
    "messageName": ("protobuf",),
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
    if name == "json":
        from lastword.value_formats.json_text import JsonFormat

        return JsonFormat(with_schema=envelope is not None)
    if name == "protobuf":
        return _protobuf(settings)
    from lastword.value_formats.avro import AvroFormat, need_fastavro

    need_fastavro()
    schema = settings.get("avroSchema")
    if schema is not None:
        schema = text_or_file(schema)
        try:
            AvroFormat(schema).own_type()
        except ValueError as error:
            raise ValueError(f"avroSchema {error}") from None
    if name == "avro":
        return AvroFormat(schema)
    from lastword.value_formats.registry import ConfluentFormat, Registry

    place = settings.get("schema.registry.url")
    if place is None:
        raise ValueError("schema.registry.url is not given: a server, such as http://host:8081, or a folder")
    registry = Registry(place, settings.get("basic.auth.user.info"))
    if not registry.is_server and not Path(place).is_dir():
        raise ValueError(f"schema.registry.url is neither http, https nor a folder: {place}")
    return ConfluentFormat.of(registry, settings.get("subject", subject), schema)


def _protobuf(settings: Mapping[str, str]) -> ValueFormat:
    from lastword.value_formats.protobuf import ProtobufFormat, need_protobuf

    need_protobuf()
    for option, example in (("descFilePath", "user.desc"), ("messageName", "package.User")):
        if option not in settings:
            raise ValueError(f"{option} is not given, such as {example}")
    try:
        descriptors = Path(settings["descFilePath"]).read_bytes()
    except OSError as error:
        raise ValueError(f"descFilePath names a file that cannot be read: {error}") from None
    value_format = ProtobufFormat(descriptors, settings["messageName"])
    try:
        value_format.own_type()
    except Refused as refused:
        raise ValueError(f"messageName has no type: {refused}") from None
    return value_format


def text_or_file(given: str) -> str:
    """Return a text, or the content of the file with this name. ValueError if the file cannot be read."""
    if not given.lstrip().startswith(("{", "[", '"')) and given.endswith((".avsc", ".json")):
        try:
            return Path(given).read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(f"avroSchema names a file that cannot be read: {error}") from None
    return given


def first_problem(kind: pa.DataType, refuse: Callable[[pa.DataType], str | None]) -> str | None:
    """Return the first problem of a type or of a type within it, with the path of its field."""
    import pyarrow as pa

    children: list[tuple[str, pa.DataType]] = []
    if pa.types.is_struct(kind):
        children = [(kind.field(number).name, kind.field(number).type) for number in range(kind.num_fields)]
        names = [name for name, _ in children]
        if len(set(names)) < len(names):
            return "two fields of a struct have one name"
    elif pa.types.is_map(kind):
        children = [("key", kind.key_type), ("value", kind.item_type)]
    elif is_list(kind):
        children = [("element", kind.value_type)]
    problem = refuse(kind)
    for name, child in children:
        if problem is None and (inner := first_problem(child, refuse)) is not None:
            problem = f"{name}: {inner}"
    return problem


def is_list(kind: pa.DataType) -> bool:
    """Return whether the type is a list of either offset width."""
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
