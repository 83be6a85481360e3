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

import base64
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from lastword.value_formats.interface import ValueFormat, ValueRefused, first_problem, is_list

if TYPE_CHECKING:
    import pyarrow as pa

Write = Callable[[Any], str]
Read = Callable[[Any], Any]


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
        import pyarrow as pa

        if pa.types.is_string(kind) or pa.types.is_large_string(kind) or is_binary(kind):
            return "text and bytes are written and read as they are, without a format"
        return problem_of(kind)

    def encoder(self, kind: pa.DataType) -> Callable[[Any], bytes]:
        """Return a function from a value of Arrow's `to_pylist` to bytes. It raises ValueRefused."""
        write = writer_of(kind)
        return lambda value: write(value).encode()

    def decoder(self, kind: pa.DataType) -> Callable[[bytes], Any]:
        """Return a function from bytes to a value that `pyarrow.array` accepts. It raises ValueRefused."""
        read = reader_of(kind)
        reads_null = _reads_null(read)

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


class Digits(str):
    """The text of a JSON number that is no integer, so that no digit is lost before its type is known."""

    __slots__ = ()


def parse(data: bytes) -> Any:
    """Parse JSON text; a number with a fraction or an exponent becomes `Digits`.

    Raises ValueRefused, or RecursionError for a deep text.
    """
    try:
        return json.loads(data.decode(), parse_float=Digits, parse_constant=Digits)
    except UnicodeDecodeError:
        raise ValueRefused(f"it is not JSON: it is not UTF-8, and begins with {data[:12]!r}") from None
    except ValueError as error:
        raise ValueRefused(f"it is not JSON: {error}") from None


def text_of(value: Any) -> str:
    """Return the JSON text of a parsed value."""
    if isinstance(value, Digits):
        return str(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{quoted(name)}:{text_of(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(text_of, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


quoted: Callable[[str], str] = json.encoder.encode_basestring
"""Return a string in quotes, with only those characters escaped that JSON requires."""


def is_binary(kind: pa.DataType) -> bool:
    """Return whether the type is binary of either offset width."""
    import pyarrow as pa

    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def problem_of(kind: pa.DataType) -> str | None:
    """Return the reason why values of a type have no JSON text, or None."""
    return first_problem(kind, _unsupported)


def _unsupported(kind: pa.DataType) -> str | None:
    import pyarrow as pa

    types = pa.types
    if types.is_map(kind) and (types.is_nested(kind.key_type) or is_binary(kind.key_type)):
        return f"a map with keys of type {kind.key_type} has no JSON"
    if types.is_struct(kind) or types.is_map(kind) or is_list(kind) or _scalar(kind) is not None:
        return None
    return f"type {kind} has no JSON"


# ---------------------------------------------------------------- values without parts


@dataclass(frozen=True, slots=True)
class Scalar:
    """How values of a type without parts are written and read. `quotes`: the text is a JSON string."""

    write: Write
    read: Read
    quotes: bool = False


def _scalar(kind: pa.DataType) -> Scalar | None:
    """Return the functions of a type without parts; None if the type has no JSON."""
    import pyarrow as pa

    types = pa.types
    if types.is_string(kind) or types.is_large_string(kind):
        return Scalar(quoted, _read_text)
    if types.is_boolean(kind):
        return Scalar(lambda value: "true" if value else "false", _read_flag)
    if types.is_signed_integer(kind):
        return Scalar(str, _integer_reader(kind))
    if types.is_float32(kind):
        return Scalar(float32_text, _read_float32)
    if types.is_float64(kind):
        return Scalar(float_text, _read_float)
    if types.is_decimal(kind):
        return Scalar(lambda value: format(value, "f"), _decimal_reader(kind))
    if is_binary(kind):
        return Scalar(lambda value: base64.b64encode(value).decode(), _read_bytes, quotes=True)
    if types.is_date32(kind):
        return Scalar(date.isoformat, _read_date, quotes=True)
    if types.is_timestamp(kind) and kind.unit == "us":
        if kind.tz is None:
            return Scalar(_time_text, _read_local_time, quotes=True)
        return Scalar(lambda value: _time_text(value.astimezone(UTC)) + "Z", _read_time, quotes=True)
    return None


def _refuse(value: Any, wanted: str) -> ValueRefused:
    text = text_of(value)
    return ValueRefused(f"{text if len(text) <= 60 else text[:57] + '...'} is no {wanted}")


def _read_text(value: Any) -> str:
    return value if type(value) is str else text_of(value)


def _read_flag(value: Any) -> bool:
    if type(value) is not bool:
        raise _refuse(value, "boolean")
    return value


def _integer_reader(kind: pa.DataType) -> Read:
    bits = kind.bit_width
    most = 1 << (bits - 1)

    def read(value: Any) -> int:
        if type(value) is not int or not -most <= value < most:
            raise _refuse(value, f"integer of {bits} bits")
        return value

    return read


def float_text(value: float) -> str:
    """Return the shortest text from which the same float of 64 bits is read; a string if it is not finite."""
    if math.isfinite(value):
        return repr(value)
    return '"NaN"' if value != value else '"Infinity"' if value > 0 else '"-Infinity"'


def float32_text(value: float) -> str:
    """Return the shortest text from which the same float of 32 bits is read."""
    import numpy as np

    short = str(np.float32(value))
    return short if math.isfinite(value) and _read_float32(Digits(short)) == value else float_text(value)


NOT_FINITE = ("NaN", "Infinity", "-Infinity", "+Infinity", "INF", "-INF", "+INF")
"""The texts that Spark reads as numbers that are not finite."""


def _read_float(value: Any) -> float:
    if value in NOT_FINITE and isinstance(value, str):
        return float(value)
    if type(value) is int or type(value) is Digits:
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
        raise _refuse(value, "number that 64 bits can hold")
    raise _refuse(value, "number")


def _read_float32(value: Any) -> float:
    import numpy as np

    number = _read_float(value)
    with np.errstate(over="ignore"):
        narrow = float(np.float32(number))
    if math.isinf(narrow) and not math.isinf(number):
        raise _refuse(value, "number that 32 bits can hold")
    return narrow


def _decimal_reader(kind: pa.DataType) -> Read:
    precision, scale = kind.precision, kind.scale

    def read(value: Any) -> Decimal:
        if type(value) is int or (isinstance(value, str) and value not in NOT_FINITE):
            try:
                number = Decimal(value)
            except ArithmeticError:
                raise _refuse(value, "decimal") from None
            if number.is_finite() and fits(number, precision, scale):
                return number
        raise _refuse(value, f"decimal({precision},{scale})")

    return read


def fits(number: Decimal, precision: int, scale: int) -> bool:
    """Return whether a decimal has no more digits than a type, before the point and after."""
    if not number:
        return True
    if number.adjusted() >= precision - scale:
        return False
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    ending = len(digits) - len("".join(map(str, digits)).rstrip("0"))
    return exponent + ending >= -scale


def _text_reader(convert: Callable[[str], Any], wanted: str) -> Read:
    """Return a function from a JSON string to the value that `convert` makes of it."""

    def read(value: Any) -> Any:
        if type(value) is str:
            try:
                return convert(value)
            except ValueError:
                pass
        raise _refuse(value, wanted)

    return read


_read_bytes = _text_reader(partial(base64.b64decode, validate=True), "base64")
_read_date = _text_reader(date.fromisoformat, "date such as 2026-01-31")
_read_datetime = _text_reader(datetime.fromisoformat, "timestamp such as 2026-01-31T12:00:00Z")


def _time_text(value: datetime) -> str:
    digits = "microseconds" if value.microsecond % 1000 else "milliseconds"
    return value.replace(tzinfo=None).isoformat(timespec=digits)


def _read_time(value: Any) -> datetime:
    time = _datetime(value)
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time


def _read_local_time(value: Any) -> datetime:
    time = _datetime(value)
    if time.tzinfo is not None:
        raise _refuse(value, "timestamp without an offset")
    return time


def _datetime(value: Any) -> Any:
    if type(value) is int or type(value) is Digits:
        raise ValueRefused(
            f"{value} is a number, and its unit is not known: read a bigint and convert it (timestamp_millis)"
        )
    return _read_datetime(value)


# ---------------------------------------------------------------- values with parts


def writer_of(kind: pa.DataType) -> Write:
    """Return a function from a value of a type to its JSON text."""
    import pyarrow as pa

    from lastword.value_formats.variant import is_variant, write_variant

    if is_variant(kind):
        return write_variant
    if pa.types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return _struct_writer([(field.name, writer_of(field.type)) for field in fields])
    if pa.types.is_map(kind):
        return _map_writer(_scalar(kind.key_type), kind.key_type, writer_of(kind.item_type))
    if is_list(kind):
        element = writer_of(kind.value_type)
        return lambda items: "[" + ",".join("null" if item is None else element(item) for item in items) + "]"
    scalar = _scalar(kind)
    assert scalar is not None, kind
    write = scalar.write
    return (lambda value: f'"{write(value)}"') if scalar.quotes else write


def _struct_writer(fields: list[tuple[str, Write]]) -> Write:
    named = [(name, f"{quoted(name)}:", write) for name, write in fields]

    def write_struct(value: dict[str, Any]) -> str:
        return (
            "{"
            + ",".join(
                [head + write(item) for name, head, write in named if (item := value[name]) is not None]
            )
            + "}"
        )

    return write_struct


def _map_writer(key: Scalar | None, key_type: pa.DataType, write: Write) -> Write:
    import pyarrow as pa

    assert key is not None, key_type
    is_text = pa.types.is_string(key_type) or pa.types.is_large_string(key_type)

    def write_key(value: Any) -> str:
        text = key.write(value)
        return text if is_text or text.startswith('"') else f'"{text}"'

    def write_map(entries: list[tuple[Any, Any]]) -> str:
        parts = [f"{write_key(name)}:{'null' if item is None else write(item)}" for name, item in entries]
        return "{" + ",".join(parts) + "}"

    return write_map


def reader_of(kind: pa.DataType) -> Read:
    """Return a function from a parsed JSON value to a value of a type. Only that of a VARIANT takes null."""
    import pyarrow as pa

    from lastword.value_formats.variant import is_variant, read_variant

    if is_variant(kind):
        return read_variant
    if pa.types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        return _struct_reader([(field.name, reader_of(field.type), field.nullable) for field in fields])
    if pa.types.is_map(kind):
        key = _scalar(kind.key_type)
        assert key is not None, kind
        return _map_reader(
            _key_reader(kind.key_type, key), reader_of(kind.item_type), kind.item_field.nullable
        )
    if is_list(kind):
        return _list_reader(reader_of(kind.value_type), kind.value_field.nullable)
    scalar = _scalar(kind)
    assert scalar is not None, kind
    return scalar.read


NULL = "it is null or absent, and its type is NOT NULL"


def _reads_null(read: Read) -> bool:
    """Return whether a function is that of a VARIANT, in which null is a value."""
    from lastword.value_formats.variant import read_variant

    return read is read_variant


def _struct_reader(fields: list[tuple[str, Read, bool]]) -> Read:
    variants = {name for name, read, _ in fields if _reads_null(read)}

    def read_struct(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _refuse(value, "object")
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
    reads_null = _reads_null(read)

    def read_list(value: Any) -> list[Any]:
        if type(value) is not list:
            raise _refuse(value, "array")
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
    reads_null = _reads_null(read)

    def read_map(value: Any) -> list[tuple[Any, Any]]:
        if type(value) is not dict:
            raise _refuse(value, "object")
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
    import pyarrow as pa

    types = pa.types
    if types.is_boolean(kind) or types.is_signed_integer(kind) or types.is_floating(kind):
        return lambda name: key.read(name if name in NOT_FINITE else parse(name.encode()))
    return key.read
