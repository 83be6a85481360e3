"""JSON values without parts: how values of a type are written and read, and the parsing of JSON text.

`json_text` has the rules. A number with a fraction stays text (`Digits`) until its type is known.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import Any

from lastword.arrow import pa
from lastword.value_formats.interface import ValueRefused, is_binary, is_text

Write = Callable[[Any], str]
Read = Callable[[Any], Any]


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


# ---------------------------------------------------------------- values without parts


@dataclass(frozen=True, slots=True)
class Scalar:
    """How values of a type without parts are written and read. `quotes`: the text is a JSON string."""

    write: Write
    read: Read
    quotes: bool = False


def scalar_of(kind: pa.DataType) -> Scalar | None:
    """Return the functions of a type without parts; None if the type has no JSON."""
    types = pa.types
    if is_text(kind):
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


def refuse(value: Any, wanted: str) -> ValueRefused:
    """Return the error of a value that is not of its type."""
    text = text_of(value)
    return ValueRefused(f"{text if len(text) <= 60 else text[:57] + '...'} is no {wanted}")


def _read_text(value: Any) -> str:
    return value if type(value) is str else text_of(value)


def _read_flag(value: Any) -> bool:
    if type(value) is not bool:
        raise refuse(value, "boolean")
    return value


def _integer_reader(kind: pa.DataType) -> Read:
    bits = kind.bit_width
    most = 1 << (bits - 1)

    def read(value: Any) -> int:
        if type(value) is not int or not -most <= value < most:
            raise refuse(value, f"integer of {bits} bits")
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
        raise refuse(value, "number that 64 bits can hold")
    raise refuse(value, "number")


def _read_float32(value: Any) -> float:
    import numpy as np

    number = _read_float(value)
    with np.errstate(over="ignore"):
        narrow = float(np.float32(number))
    if math.isinf(narrow) and not math.isinf(number):
        raise refuse(value, "number that 32 bits can hold")
    return narrow


def _decimal_reader(kind: pa.DataType) -> Read:
    precision, scale = kind.precision, kind.scale

    def read(value: Any) -> Decimal:
        if type(value) is int or (isinstance(value, str) and re.fullmatch(r"[^\s_]+", value)):
            try:
                number = Decimal(value)
            except ArithmeticError:
                raise refuse(value, "decimal") from None
            if number.is_finite() and fits(number, precision, scale):
                return number
        raise refuse(value, f"decimal({precision},{scale})")

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
        raise refuse(value, wanted)

    return read


_read_bytes = _text_reader(partial(base64.b64decode, validate=True), "base64")
_read_date = _text_reader(date.fromisoformat, "date such as 2026-01-31")
_read_datetime = _text_reader(datetime.fromisoformat, "timestamp such as 2026-01-31T12:00:00Z")


def _time_text(value: datetime) -> str:
    digits = "microseconds" if value.microsecond % 1000 else "milliseconds"
    return value.replace(tzinfo=None).isoformat(timespec=digits)


def _read_time(value: Any) -> datetime:
    time: datetime = _datetime(value)
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time


def _read_local_time(value: Any) -> datetime:
    time: datetime = _datetime(value)
    if time.tzinfo is not None:
        raise refuse(value, "timestamp without an offset")
    return time


def _datetime(value: Any) -> Any:
    if type(value) is int or type(value) is Digits:
        raise ValueRefused(
            f"{value} is a number, and its unit is not known: read a bigint and convert it (timestamp_millis)"
        )
    return _read_datetime(value)
