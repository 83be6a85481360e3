"""Avro values: the binary encoding of one datum, without a header, as Spark's `to_avro` writes it.

The schema is given (`avroSchema`), or derived from the type of the column as Spark derives it: the record
`topLevelRecord`, a union with null for each nullable field, decimals as fixed, times in microseconds. A null
at the top is a deletion and no datum, so the derived schema has no union there.

    record  struct           enum, string, uuid   string      int, long             int, bigint
    array   array            bytes, fixed         binary      date                  date
    map     map of strings   decimal              decimal     timestamp-*           timestamp
    boolean boolean          float, double        the same    local-timestamp-*     timestamp_ntz
    union   of null and one type: a nullable field; of int and long, or of float and double: the wider type

Reading. The type of a column may have fewer fields than the schema: it leaves out a field that has no type,
of another union or of a record within itself. Bytes that are left after the datum are
an error, because they mean another schema. If a key is twice in a map, its last value counts. Writing. A
field that the schema lacks is refused, and a null in a field without null. Times in milliseconds have no
microseconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from io import BytesIO
from typing import Any, ClassVar

from lastword.arrow import pa
from lastword.errors import MissingError
from lastword.value_formats.interface import (
    ValueFormat,
    ValueRefused,
    first_problem,
    is_list,
    is_same,
    is_text,
    widens,
)

Schema = Any
"""A schema as `fastavro.parse_schema` returns it: a name, a list (union) or a dict."""

Convert = Callable[[Any], Any]

LOGICAL = {
    "date": ("int",),
    "decimal": ("bytes", "fixed"),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
}
"""Logical types with a type of Spark's, and the types that they may be of.

Others are read as the type below them, as in Spark; so is a logical type of another type, as Avro requires.
"""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors for a value that is not of its type."""

JSON_TYPES = {
    "null": (type(None),), "boolean": (bool,), "int": (int,), "long": (int,), "float": (int, float),
    "double": (int, float), "string": (str,), "enum": (str,), "bytes": (str,), "fixed": (str,),
    "record": (dict,), "map": (dict,), "array": (list,),
}  # fmt: skip
"""Types of parsed JSON that defaults have."""

REGISTRY_HINT = "; its first byte is 0, as if from a schema registry: format confluent reads those"


def need_fastavro() -> None:
    """Raise MissingError unless fastavro is installed."""
    try:
        import fastavro  # noqa: F401
    except ImportError:
        raise MissingError.package("the format avro", "fastavro, on every machine", "fastavro>=1.9") from None


def parse_schema(text: str) -> Schema:
    """Parse the JSON of a schema; its defaults become values. ValueError for a text that is no schema."""
    need_fastavro()
    from fastavro import parse_schema as parse
    from fastavro.schema import SchemaParseException

    try:
        schema = parse(plain(json_of(text)))
        Types(schema).set_defaults()
    except (SchemaParseException, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"is no Avro schema: {error}") from None
    return schema


def json_of(text: str) -> Any:
    """Return the parsed JSON of a schema, or the text: a primitive type may have no quotes."""
    try:
        return json.loads(text)
    except ValueError:
        return text.strip()


def plain(schema: Any) -> Any:
    """Return a schema without types around a type, and without logical types that are not LOGICAL."""
    if isinstance(schema, dict):
        if "name" not in schema and isinstance(schema.get("type"), dict | list):
            return plain(schema["type"])  # fastavro parses no type in a type
        kept = {name: plain(value) for name, value in schema.items() if name != "default"}
        if "default" in schema:
            kept["default"] = schema["default"]
        logical = schema.get("logicalType")
        is_whole = logical != "decimal" or type(schema.get("precision")) is int
        if logical is not None and not (is_whole and schema.get("type") in LOGICAL.get(logical, ())):
            del kept["logicalType"]
        return kept
    if isinstance(schema, list):
        return [plain(value) for value in schema]
    return schema


@dataclass(frozen=True, slots=True)
class AvroFormat(ValueFormat):
    """Avro with the JSON of a schema, or None for the schema that the type of the column has."""

    schema: str | None = None
    name: ClassVar[str] = "avro"

    def own_type(self) -> pa.DataType | None:
        """Return the type of the schema. Raises ValueRefused for a schema without a type in Spark."""
        return None if self.schema is None else Types(parse_schema(self.schema)).arrow()

    def problem(self, kind: pa.DataType, *, writing: bool) -> str | None:
        """Return the reason why a column of this type cannot be written or read, or None."""
        try:
            types = self._types(kind)
            if writing:
                types.writer(kind)
            else:
                types.reader(kind)
        except (ValueRefused, ValueError) as error:
            return str(error)
        return None

    def encoder(self, kind: pa.DataType) -> Callable[[Any], bytes]:
        """Return a function from a value of Arrow's `to_pylist` to bytes. It raises ValueRefused."""
        return encoder_of(self._types(kind), kind)

    def decoder(self, kind: pa.DataType) -> Callable[[bytes], Any]:
        """Return a function from bytes to a value that `pyarrow.array` accepts. It raises ValueRefused."""
        types = self._types(kind)
        decode = decoder_of(types.schema, None, types.reader(kind))

        def decode_whole(data: bytes) -> Any:
            try:
                return decode(data)
            except ValueRefused as refused:
                if data[:1] == b"\0" and len(data) > 5:
                    raise ValueRefused(refused.reason + REGISTRY_HINT, refused.path) from None
                raise

        return decode_whole

    def _types(self, kind: pa.DataType) -> Types:
        return Types(parse_schema(self.schema if self.schema is not None else json.dumps(schema_of(kind))))


def encoder_of(types: Types, kind: pa.DataType) -> Callable[[Any], bytes]:
    """Return a function that writes a value of a type as one datum."""
    from fastavro import schemaless_writer

    convert, schema = types.writer(kind), types.schema

    def encode(value: Any) -> bytes:
        stream = BytesIO()
        try:
            schemaless_writer(stream, schema, convert(value))
        except ValueRefused:
            raise
        except MALFORMED as error:
            raise ValueRefused(str(error)) from None
        return stream.getvalue()

    return encode


def decoder_of(writer: Schema, reader: Schema | None, convert: Convert) -> Callable[[bytes], Any]:
    """Return a function that reads one datum of schema `writer`, resolved to schema `reader` if given."""
    from fastavro import schemaless_reader
    from fastavro.read import SchemaResolutionError

    def decode(data: bytes) -> Any:
        stream = BytesIO(data)
        try:
            value = schemaless_reader(stream, writer, reader)
            if left := len(data) - stream.tell():
                raise ValueRefused(f"it is not of the schema: {left} bytes are left after the datum")
            return None if value is None else convert(value)
        except ValueRefused:
            raise
        except SchemaResolutionError as error:
            raise ValueRefused(f"its schema does not resolve to the schema of the column: {error}") from None
        except Exception as error:  # bytes of another schema raise any error
            raise ValueRefused(f"it is not of the schema: {str(error) or type(error).__name__}") from None

    return decode


# ---------------------------------------------------------------- the schema of a type


def schema_of(kind: pa.DataType, name: str = "topLevelRecord") -> Any:
    """Return the schema that Spark derives from a type. Raises ValueRefused."""
    problem = first_problem(kind, _unsupported)
    if problem is not None:
        raise ValueRefused(problem)
    return _derived(kind, name, "", set())


def _unsupported(kind: pa.DataType) -> str | None:
    if pa.types.is_map(kind) and not is_text(kind.key_type):
        return "Avro has maps with string keys only"
    if pa.types.is_struct(kind):
        for field in kind:
            if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", field.name):
                return f"{field.name!r} is no name in Avro"
    is_time = pa.types.is_timestamp(kind) and kind.unit == "us"
    if pa.types.is_nested(kind) or kind in primitives() or pa.types.is_decimal(kind) or is_time:
        return None
    return f"type {kind} has no Avro"


def primitives() -> dict[pa.DataType, Any]:
    """Return the schema of each type that needs no name."""
    return {
        pa.bool_(): "boolean",
        pa.int8(): "int",
        pa.int16(): "int",
        pa.int32(): "int",
        pa.int64(): "long",
        pa.float32(): "float",
        pa.float64(): "double",
        pa.string(): "string",
        pa.large_string(): "string",
        pa.binary(): "bytes",
        pa.large_binary(): "bytes",
        pa.date32(): {"type": "int", "logicalType": "date"},
        pa.timestamp("us", tz="UTC"): {"type": "long", "logicalType": "timestamp-micros"},
        pa.timestamp("us"): {"type": "long", "logicalType": "local-timestamp-micros"},
    }


def _derived(kind: pa.DataType, name: str, space: str, names: set[str]) -> Any:
    types = pa.types
    inner = f"{space}.{name}" if space else name
    if types.is_struct(kind):
        full = _new_name(inner, names)
        members = [
            {"name": field.name, "type": _nullable(field, _derived(field.type, field.name, full, names))}
            for field in kind
        ]
        return {"type": "record", "name": full, "fields": members}
    if types.is_map(kind):
        return {
            "type": "map",
            "values": _nullable(kind.item_field, _derived(kind.item_type, name, space, names)),
        }
    if is_list(kind):
        return {
            "type": "array",
            "items": _nullable(kind.value_field, _derived(kind.value_type, name, space, names)),
        }
    if types.is_decimal(kind):
        size = ((10**kind.precision - 1).bit_length() + 8) // 8
        full = _new_name(f"{inner}.fixed", names)
        logical = {"logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
        return {"type": "fixed", "name": full, "size": size, **logical}
    if types.is_timestamp(kind) and kind.tz is not None:
        kind = pa.timestamp("us", tz="UTC")
    return primitives()[kind]


def _new_name(name: str, names: set[str]) -> str:
    while name in names:
        name += "_"
    names.add(name)
    return name


def _nullable(field: pa.Field, schema: Any) -> Any:
    return [schema, "null"] if field.nullable else schema


# ---------------------------------------------------------------- the type of a schema


class Types:
    """A parsed schema, its type, and the conversions between its values and those of a type.

    With `lenient` a field of the type that the schema lacks is read as null, and a number may be of a wider
    type.
    """

    def __init__(self, schema: Schema, *, lenient: bool = False) -> None:
        self.schema = schema
        self.lenient = lenient
        self.named: dict[str, Schema] = {}
        self._collect(schema)

    def _collect(self, schema: Schema) -> None:
        if isinstance(schema, list):
            for branch in schema:
                self._collect(branch)
        elif isinstance(schema, dict):
            if "name" in schema:
                self.named[schema["name"]] = schema
            for field in schema.get("fields", ()):
                self._collect(field["type"])
            for part in ("items", "values"):
                if part in schema:
                    self._collect(schema[part])

    def set_defaults(self) -> None:
        """Replace the JSON of each default by the datum that a reader returns.

        A default that is not of its type stays as it is: an error if it is needed.
        """
        defaults = []
        for record in self.named.values():
            for field in record.get("fields", ()):
                if "default" in field:
                    with suppress(*MALFORMED):
                        defaults.append((field, self.default(field["type"], field["default"])))
        for field, datum in defaults:
            field["default"] = datum

    def default(self, schema: Schema, value: Any) -> Any:
        """Return the datum of a default. Raises one of MALFORMED for JSON of another type."""
        if isinstance(schema, list):
            for branch in schema:
                with suppress(*MALFORMED):
                    return self.default(branch, value)
            raise ValueError(value)
        schema, _ = self.resolve(schema)
        name = schema if isinstance(schema, str) else schema["type"]
        if type(value) not in JSON_TYPES[name]:
            raise ValueError(value)
        if name == "record":
            fields = {
                f["name"]: (f["type"], value.get(f["name"], f.get("default"))) for f in schema["fields"]
            }
            return {name: self.default(kind, item) for name, (kind, item) in fields.items()}
        if name == "array":
            return [self.default(schema["items"], item) for item in value]
        if name == "map":
            return {key: self.default(schema["values"], item) for key, item in value.items()}
        if name in ("bytes", "fixed"):
            value = value.encode("latin-1")
        elif name in ("float", "double"):
            value = float(value)
        logical = schema.get("logicalType") if isinstance(schema, dict) else None
        if logical == "decimal":
            number = int.from_bytes(value, "big", signed=True)
            return Decimal(f"{number}e-{schema.get('scale', 0)}")
        if logical == "date":
            return EPOCH.date() + timedelta(days=value)
        if logical is None:
            return value
        unit = timedelta(milliseconds=1) if logical.endswith("millis") else timedelta(microseconds=1)
        return (EPOCH.replace(tzinfo=None) if logical.startswith("local") else EPOCH) + value * unit

    def resolve(self, schema: Schema) -> tuple[Any, bool]:
        """Return a schema that is neither a union nor the name of another, and whether it may be null."""
        nullable = False
        if isinstance(schema, list):
            branches = [branch for branch in schema if branch != "null"]
            nullable = len(branches) < len(schema)
            if len(branches) < 2:
                schema = branches[0] if branches else "null"
            elif set(map(str, branches)) == {"int", "long"}:
                schema = "long"
            elif set(map(str, branches)) == {"float", "double"}:
                schema = "double"
            else:
                raise ValueRefused(
                    "a union of several types has no type in Spark: leave the field out of the type of the "
                    "column, or read the bytes with from_avro"
                )
        if isinstance(schema, str) and schema in self.named:
            schema = self.named[schema]
        return schema, nullable

    def arrow(self, schema: Schema = None, within: tuple[str, ...] = ()) -> pa.DataType:
        """Return the type of a schema. Raises ValueRefused."""
        schema, _ = self.resolve(self.schema if schema is None else schema)
        name = schema if isinstance(schema, str) else schema["type"]
        if name == "record":
            if schema["name"] in within:
                raise ValueRefused(f"record {schema['name']} contains itself, which no type of Spark's can")
            inside = (*within, schema["name"])
            return pa.struct([self._field(f["name"], f["type"], inside) for f in schema["fields"]])
        if name == "array":
            return pa.list_(self._field("element", schema["items"], within))
        if name == "map":
            return pa.map_(pa.string(), self._field("value", schema["values"], within))
        logical = schema.get("logicalType") if isinstance(schema, dict) else None
        if logical == "decimal":
            if schema["precision"] > 38:
                raise ValueRefused(f"a decimal of {schema['precision']} digits: Spark has 38")
            return pa.decimal128(schema["precision"], schema.get("scale", 0))
        if logical in ("timestamp-millis", "timestamp-micros"):
            return pa.timestamp("us", tz="UTC")
        if logical in ("local-timestamp-millis", "local-timestamp-micros"):
            return pa.timestamp("us")
        if logical == "date":
            return pa.date32()
        plain_types = {
            "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
            "double": pa.float64(), "string": pa.string(), "enum": pa.string(), "bytes": pa.binary(),
            "fixed": pa.binary(),
        }  # fmt: skip
        if name not in plain_types:
            raise ValueRefused(f"Avro type {name} has no type in Spark")
        return plain_types[name]

    def _field(self, name: str, schema: Schema, within: tuple[str, ...]) -> pa.Field:
        try:
            kind = self.arrow(schema, within)
        except ValueRefused as refused:
            raise refused.inside(name) from None
        return pa.field(name, kind, self.resolve(schema)[1])

    # ------------------------------------------------------------ reading

    def reader(self, kind: pa.DataType, schema: Schema = None) -> Convert:
        """Return a function from a datum of a schema to a value of a type with the same or fewer fields."""
        schema, _ = self.resolve(self.schema if schema is None else schema)
        name = schema if isinstance(schema, str) else schema["type"]
        if name == "record" and pa.types.is_struct(kind):
            members = {f["name"]: f["type"] for f in schema["fields"]}
            parts: list[tuple[str, Convert]] = []
            for field in kind:
                if field.name not in members and self.lenient and field.nullable:
                    continue
                if field.name not in members:
                    raise ValueRefused(f"the schema has the fields {', '.join(members)}", field.name)
                parts.append((field.name, self._item_reader(field, members[field.name])))
            return lambda value: {name: read(value[name]) for name, read in parts}
        if name == "array" and is_list(kind):
            read_item = self._item_reader(kind.value_field, schema["items"])
            return lambda items: [read_item(item) for item in items]
        if name == "map" and pa.types.is_map(kind) and is_text(kind.key_type):
            read_entry = self._item_reader(kind.item_field, schema["values"])
            return lambda entries: [(key, read_entry(item)) for key, item in entries.items()]
        own = self.arrow(schema)
        small = own == pa.int32() and kind in (pa.int8(), pa.int16())  # Avro has no smaller integer
        if not is_same(own, kind) and not small and not (self.lenient and widens(own, kind)):
            raise ValueRefused(f"the schema has {own}, not {kind}")
        return _itself

    def _item_reader(self, field: pa.Field, schema: Schema) -> Convert:
        try:
            read = self.reader(field.type, schema)
        except ValueRefused as refused:
            raise refused.inside(field.name) from None
        if not self.resolve(schema)[1]:
            return read
        if not field.nullable:
            raise ValueRefused("it is NOT NULL, and the schema allows null", field.name)
        return read if read is _itself else lambda item: None if item is None else read(item)

    # ------------------------------------------------------------ writing

    def writer(self, kind: pa.DataType, schema: Schema = None) -> Convert:
        """Return a function from a value of a type to a datum of a schema."""
        schema, _ = self.resolve(self.schema if schema is None else schema)
        name = schema if isinstance(schema, str) else schema["type"]
        if name == "record" and pa.types.is_struct(kind):
            return self._record_writer(kind, schema)
        if name == "array" and is_list(kind):
            write_item = self._item_writer(kind.value_field, schema["items"])
            return lambda items: [write_item(item) for item in items]
        if name == "map" and pa.types.is_map(kind) and is_text(kind.key_type):
            write_entry = self._item_writer(kind.item_field, schema["values"])
            return lambda entries: {key: write_entry(item) for key, item in entries}
        own = self.arrow(schema)
        if not is_same(own, kind) and not widens(kind, own):
            raise ValueRefused(f"the schema has {own}, not {kind}")
        if name == "enum":
            return partial(_symbol, schema)
        if name == "fixed" and "logicalType" not in schema:
            return partial(_bytes_of_size, schema)
        if isinstance(schema, dict) and str(schema.get("logicalType")).endswith("timestamp-millis"):
            return _whole_millis
        return _itself

    def _record_writer(self, kind: pa.DataType, schema: Schema) -> Convert:
        fields = {field.name: field for field in kind}
        if len(fields) < kind.num_fields:
            raise ValueRefused("two fields of a struct have one name")
        members = {f["name"]: f for f in schema["fields"]}
        for name in fields:
            if name not in members:
                raise ValueRefused(f"the schema has the fields {', '.join(members)}", name)
        parts = []
        for name, member in members.items():
            if name in fields:
                parts.append((name, self._item_writer(fields[name], member["type"])))
            elif "default" not in member:
                raise ValueRefused("the schema requires the field, and the column lacks it", name)

        def write_record(value: dict[str, Any]) -> dict[str, Any]:
            return {name: write(value[name]) for name, write in parts}

        return write_record

    def _item_writer(self, field: pa.Field, schema: Schema) -> Convert:
        name = field.name
        try:
            write = self.writer(field.type, schema)
        except ValueRefused as refused:
            raise refused.inside(name) from None
        nullable = self.resolve(schema)[1]

        def write_item(item: Any) -> Any:
            if item is None:
                if not nullable:
                    raise ValueRefused("it is null, and the schema has no null there", name)
                return None
            try:
                return write(item)
            except ValueRefused as refused:
                raise refused.inside(name) from None

        return write_item


def _itself(value: Any) -> Any:
    return value


def _symbol(schema: Schema, value: str) -> str:
    if value not in schema["symbols"]:
        raise ValueRefused(f"{value!r} is no symbol of {schema['name']}: {', '.join(schema['symbols'])}")
    return value


def _bytes_of_size(schema: Schema, value: bytes) -> bytes:
    if len(value) != schema["size"]:
        raise ValueRefused(f"{len(value)} bytes: {schema['name']} has {schema['size']}")
    return value


def _whole_millis(value: Any) -> Any:
    if value.microsecond % 1000:
        raise ValueRefused(f"{value} has microseconds, and the schema milliseconds")
    return value
