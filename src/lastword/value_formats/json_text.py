"""JSON values: compact UTF-8 text, as Spark's `to_json` writes and `from_json` reads.

    struct        object in the order of the fields; null fields are left out, unknown fields are ignored
    map           object; a key that is no string is the text of its JSON value
    array         array
    timestamp     "2026-01-01T00:00:00.000Z" in UTC, six digits if three are not enough;
                  read with any offset, without an offset as UTC; digits after the sixth are dropped
    timestamp_ntz, date    the same without an offset; "2026-01-01"
    decimal       number with the digits of its scale
    float, double number; "NaN", "Infinity", "-Infinity"
    binary        base64
    VARIANT       any JSON, in a struct also null (`variant`)

Reading. A string field takes any JSON value: of another value than a string, it is the JSON text. A number
for a date or a timestamp is refused, because programs write seconds, milliseconds and microseconds. A decimal
with more digits than its type is refused, never rounded. With `with_schema` a value may be
{"schema": {"type": "struct", ...}, "payload": {...}}, as JsonConverter of Kafka Connect writes it.

The functions for a type are built once, as closures over its fields.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from lastword.arrow import pa
from lastword.value_formats.interface import (
    ValueFormat,
    ValueRefused,
    first_problem,
    is_binary,
    is_list,
    is_text,
)
from lastword.value_formats.json_scalars import (
    NOT_FINITE,
    Read,
    Scalar,
    Write,
    parse,
    quoted,
    refuse,
    scalar_of,
)
from lastword.value_formats.variant import is_variant, read_variant, write_variant


@dataclass(frozen=True, slots=True)
class JsonFormat(ValueFormat):
    """JSON. It has no schema: the type of the column decides.

    With `with_schema` a value may have a schema around it, which is ignored.
    """

    with_schema: bool = False
    name: ClassVar[str] = "json"

    @property
    def serializer(self) -> str:
        """Return `json`."""
        return "json"

    @property
    def has_variant(self) -> bool:
        """Return True."""
        return True

    def problem(self, kind: pa.DataType, *, writing: bool) -> str | None:
        """Return the reason why a column of this type cannot be written or read, or None."""
        if is_text(kind) or is_binary(kind):
            return "text and bytes are written and read as they are, without a format"
        return problem_of(kind)

    def encoder(self, kind: pa.DataType) -> Callable[[Any], bytes]:
        """Return a function from a value of Arrow's `to_pylist` to bytes. It raises ValueRefused."""
        write = writer_of(kind)
        return lambda value: write(value).encode()

    def decoder(self, kind: pa.DataType) -> Callable[[bytes], Any]:
        """Return a function from bytes to a value that `pyarrow.array` accepts. It raises ValueRefused."""
        read = reader_of(kind)
        reads_null = read is read_variant  # in a VARIANT null is a value

        def decode(data: bytes) -> Any:
            try:
                value = parse(data)
                if self.with_schema:
                    value = payload_of(value)
                return read(value) if value is not None or reads_null else None
            except RecursionError:  # of the parser, or of `text_of`, which takes more frames for a level
                raise ValueRefused("it is not JSON of a usual depth") from None

        return decode


def payload_of(value: Any) -> Any:
    """Return the payload of a parsed value with a schema around it, and another value as it is."""
    if type(value) is dict and value.keys() == {"schema", "payload"}:
        schema = value["schema"]
        if type(schema) is dict and "type" in schema:
            return value["payload"]
    return value


def problem_of(kind: pa.DataType) -> str | None:
    """Return the reason why values of a type have no JSON text, or None."""
    return first_problem(kind, _unsupported)


def _unsupported(kind: pa.DataType) -> str | None:
    types = pa.types
    if types.is_map(kind) and (types.is_nested(kind.key_type) or is_binary(kind.key_type)):
        return f"a map with keys of type {kind.key_type} has no JSON"
    if types.is_struct(kind) or types.is_map(kind) or is_list(kind) or scalar_of(kind) is not None:
        return None
    return f"type {kind} has no JSON"


# ---------------------------------------------------------------- values with parts


def writer_of(kind: pa.DataType) -> Write:
    """Return a function from a value of a type to its JSON text."""
    if is_variant(kind):
        return write_variant
    if pa.types.is_struct(kind):
        return _struct_writer([(field.name, writer_of(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return _map_writer(scalar_of(kind.key_type), kind.key_type, writer_of(kind.item_type))
    if is_list(kind):
        element = writer_of(kind.value_type)
        return lambda items: "[" + ",".join("null" if item is None else element(item) for item in items) + "]"
    scalar = scalar_of(kind)
    assert scalar is not None, kind
    write = scalar.write
    return (lambda value: f'"{write(value)}"') if scalar.quotes else write


def _struct_writer(fields: list[tuple[str, Write]]) -> Write:
    named = [(name, f"{quoted(name)}:", write) for name, write in fields]

    def write_struct(value: dict[str, Any]) -> str:
        parts = [head + write(item) for name, head, write in named if (item := value[name]) is not None]
        return "{" + ",".join(parts) + "}"

    return write_struct


def _map_writer(key: Scalar | None, key_type: pa.DataType, write: Write) -> Write:
    assert key is not None, key_type
    is_key_text = is_text(key_type)

    def write_key(value: Any) -> str:
        text = key.write(value)
        return text if is_key_text or text.startswith('"') else f'"{text}"'

    def write_map(entries: list[tuple[Any, Any]]) -> str:
        parts = [f"{write_key(name)}:{'null' if item is None else write(item)}" for name, item in entries]
        return "{" + ",".join(parts) + "}"

    return write_map


def reader_of(kind: pa.DataType) -> Read:
    """Return a function from a parsed JSON value to a value of a type. Only that of a VARIANT takes null."""
    if is_variant(kind):
        return read_variant
    if pa.types.is_struct(kind):
        return _struct_reader([(field.name, reader_of(field.type), field.nullable) for field in kind])
    if pa.types.is_map(kind):
        key = scalar_of(kind.key_type)
        assert key is not None, kind
        return _map_reader(
            _key_reader(kind.key_type, key), reader_of(kind.item_type), kind.item_field.nullable
        )
    if is_list(kind):
        return _list_reader(reader_of(kind.value_type), kind.value_field.nullable)
    scalar = scalar_of(kind)
    assert scalar is not None, kind
    return scalar.read


NULL = "it is null or absent, and its type is NOT NULL"


def _struct_reader(fields: list[tuple[str, Read, bool]]) -> Read:
    variants = {name for name, read, _ in fields if read is read_variant}

    def read_struct(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise refuse(value, "object")
        result = {}
        for name, read, nullable in fields:
            item = value.get(name)
            if item is not None or (name in variants and name in value):
                try:
                    item = read(item)
                except ValueRefused as refused:
                    raise refused.inside(name) from None
            elif not nullable:
                raise ValueRefused(NULL, name)
            result[name] = item
        return result

    return read_struct


def _list_reader(read: Read, nullable: bool) -> Read:
    reads_null = read is read_variant  # in a VARIANT null is a value

    def read_list(value: Any) -> list[Any]:
        if type(value) is not list:
            raise refuse(value, "array")
        result = []
        for number, item in enumerate(value):
            try:
                if item is not None or reads_null:
                    item = read(item)
                elif not nullable:
                    raise ValueRefused(NULL)
            except ValueRefused as refused:
                raise refused.inside(f"[{number}]") from None
            result.append(item)
        return result

    return read_list


def _map_reader(read_key: Read, read: Read, nullable: bool) -> Read:
    reads_null = read is read_variant  # in a VARIANT null is a value

    def read_map(value: Any) -> list[tuple[Any, Any]]:
        if type(value) is not dict:
            raise refuse(value, "object")
        result = []
        for name, item in value.items():
            try:
                key = read_key(name)
                if item is not None or reads_null:
                    item = read(item)
                elif not nullable:
                    raise ValueRefused(NULL)
            except ValueRefused as refused:
                raise refused.inside(f"[{quoted(name)}]") from None
            result.append((key, item))
        return result

    return read_map


def _key_reader(kind: pa.DataType, key: Scalar) -> Read:
    """Return a function from the name of an object's member to a key of a map."""
    types = pa.types
    if types.is_boolean(kind) or types.is_signed_integer(kind) or types.is_floating(kind):
        return lambda name: key.read(name if name in NOT_FINITE else parse(name.encode()))
    return key.read
