"""Spark's VARIANT as JSON: its binary encoding to text, as `to_json` does, and back, as `parse_json` does.

A value is a struct of two binary fields. `metadata` has the names of all fields; `value` has the value, with
the numbers of the names and the positions of its parts:

    metadata      header (version 1, width of offsets), count, offsets, names
    primitive     header (type), bytes of a width that the type decides
    short string  header (length), UTF-8
    object        header (widths), count, numbers of the names in the order of the names, offsets, parts
    array         header (widths), count, offsets, parts

All numbers are little-endian. PySpark has a decoder in Python, which is not used: it rounds decimals to 28
digits, and writes numbers that are not finite in a form that no JSON parser reads.
"""

from __future__ import annotations

import base64
import struct
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import accumulate, pairwise
from typing import Any

from lastword.arrow import pa
from lastword.value_formats.interface import ValueRefused
from lastword.value_formats.json_scalars import NOT_FINITE, Digits, float32_text, float_text, quoted

PRIMITIVE, SHORT_STRING, OBJECT, ARRAY = range(4)
NULL, TRUE, FALSE, INT1, INT2, INT4, INT8, DOUBLE, DECIMAL4, DECIMAL8, DECIMAL16, DATE = range(12)
TIMESTAMP, TIMESTAMP_NTZ, FLOAT, BINARY, STRING = range(12, 17)

JSON_NULL = {"value": b"\x00", "metadata": b"\x01\x00\x00"}
"""The value null, which is not the null of a column."""

MAX_DIGITS = 38
MAX_BYTES = 16 << 20
"""The limits of Spark: digits of a decimal, and bytes of a value or of its metadata."""

EPOCH = datetime(1970, 1, 1)


def is_variant(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is that of a VARIANT: Spark marks its field `metadata`."""
    number = kind.get_field_index("metadata") if pa.types.is_struct(kind) else -1
    return number >= 0 and (kind.field(number).metadata or {}).get(b"variant") == b"true"


# ---------------------------------------------------------------- to text


def write_variant(variant: dict[str, bytes]) -> str:
    """Return the JSON text of a value: decimals without zeros at their end, timestamps in UTC."""
    try:
        return _text(variant["value"], 0, _names(variant["metadata"]))
    except RecursionError:
        raise ValueRefused("it is not JSON of a usual depth") from None


def _names(metadata: bytes) -> list[str]:
    width = (metadata[0] >> 6) + 1
    count = _number(metadata, 1, width)
    offsets = [_number(metadata, at, width) for at in range(1 + width, 1 + (count + 2) * width, width)]
    names = metadata[1 + (count + 2) * width :]
    return [names[first:last].decode() for first, last in pairwise(offsets)]


def _number(data: bytes, at: int, width: int, *, signed: bool = False) -> int:
    return int.from_bytes(data[at : at + width], "little", signed=signed)


def _text(data: bytes, at: int, names: list[str]) -> str:
    """Return the text of the value at a position."""
    basic, info = data[at] & 3, data[at] >> 2
    if basic == PRIMITIVE:
        return _primitive(data, at + 1, info)
    if basic == SHORT_STRING:
        return quoted(data[at + 1 : at + 1 + info].decode())
    flags = info >> 2 if basic == OBJECT else info
    size = 4 if flags & 4 else 1
    count, at = _number(data, at + 1, size), at + 1 + size
    keys: list[str] = []
    if basic == OBJECT:
        flags, width = info, (info >> 2 & 3) + 1
        keys = [quoted(names[_number(data, at + n * width, width)]) + ":" for n in range(count)]
        at += count * width
    width = (flags & 3) + 1
    first = at + (count + 1) * width
    parts = [_text(data, first + _number(data, at + n * width, width), names) for n in range(count)]
    if basic == ARRAY:
        return "[" + ",".join(parts) + "]"
    return "{" + ",".join(key + part for key, part in zip(keys, parts, strict=True)) + "}"


def _primitive(data: bytes, at: int, kind: int) -> str:
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if INT1 <= kind <= INT8:
        return str(_number(data, at, 1 << kind - INT1, signed=True))
    if kind == DOUBLE:
        return float_text(struct.unpack_from("<d", data, at)[0])
    if kind == FLOAT:
        return float32_text(struct.unpack_from("<f", data, at)[0])
    if DECIMAL4 <= kind <= DECIMAL16:
        return _decimal_text(_number(data, at + 1, 4 << kind - DECIMAL4, signed=True), data[at])
    if kind in (DATE, TIMESTAMP, TIMESTAMP_NTZ):
        return _time_text(_number(data, at, 4 if kind == DATE else 8, signed=True), kind)
    if kind in (BINARY, STRING):
        content = data[at + 4 : at + 4 + _number(data, at, 4)]
        return quoted(content.decode()) if kind == STRING else f'"{base64.b64encode(content).decode()}"'
    raise ValueRefused(f"a VARIANT has a value of the type number {kind}, which has no JSON")


_SIMPLE = {NULL: "null", TRUE: "true", FALSE: "false"}


def _decimal_text(unscaled: int, scale: int) -> str:
    text = f"{abs(unscaled):0{scale + 1}d}"
    if scale:
        text = f"{text[:-scale]}.{text[-scale:]}".rstrip("0").rstrip(".")
    return f"-{text}" if unscaled < 0 else text


def _time_text(number: int, kind: int) -> str:
    try:
        time = EPOCH + (timedelta(number) if kind == DATE else timedelta(microseconds=number))
    except OverflowError:
        raise ValueRefused("a date or timestamp in a VARIANT is not of the years 1 to 9999") from None
    if kind == DATE:
        return f'"{time.date()}"'
    text = str(time).rstrip("0") if time.microsecond else str(time)
    return f'"{text}{"+00:00" if kind == TIMESTAMP else ""}"'


# ---------------------------------------------------------------- from parsed JSON


def read_variant(value: Any) -> dict[str, bytes]:
    """Return the encoding of a parsed JSON value, which may be null."""
    names: dict[str, int] = {}
    try:
        data = _encoded(value, names)
        metadata = _metadata([name.encode() for name in names])
    except UnicodeEncodeError as error:
        surrogate = error.object[error.start]
        raise ValueRefused(
            f"its text has the lone surrogate {surrogate!r}, which UTF-8 cannot hold"
        ) from None
    if max(len(data), len(metadata)) > MAX_BYTES:
        raise ValueRefused("it is above 16 MiB, the limit of a VARIANT")
    return {"value": data, "metadata": metadata}


def _metadata(names: list[bytes]) -> bytes:
    ends = list(accumulate(map(len, names), initial=0))
    width = _width(max(ends[-1], len(names)))
    numbers = b"".join(number.to_bytes(width, "little") for number in (len(names), *ends))
    return bytes([width - 1 << 6 | 1]) + numbers + b"".join(names)


def _width(number: int) -> int:
    return max(1, (number.bit_length() + 7) // 8)


def _encoded(value: Any, names: dict[str, int]) -> bytes:
    """Return the encoding of a value; `names` gets the names of new fields."""
    if isinstance(value, dict):
        ids = [names.setdefault(name, len(names)) for name in value]
        fields = [(name.encode("utf-16-be"), number) for name, number in zip(value, ids, strict=True)]
        parts = [_encoded(item, names) for item in value.values()]
        # Spark searches a field by the order of Java's strings.
        order = sorted(range(len(parts)), key=lambda n: fields[n][0])
        return _container(OBJECT, [parts[n] for n in order], [ids[n] for n in order])
    if isinstance(value, list):
        return _container(ARRAY, [_encoded(item, names) for item in value])
    if isinstance(value, Digits):
        return _real(value)
    if isinstance(value, str):
        data = value.encode()
        if len(data) < 64:
            return bytes([len(data) << 2 | SHORT_STRING]) + data
        return _header(STRING) + len(data).to_bytes(4, "little") + data
    if value is None or isinstance(value, bool):
        return _header(NULL if value is None else TRUE if value else FALSE)
    for kind in range(INT1, INT8 + 1):
        width = 1 << kind - INT1
        if -(1 << 8 * width - 1) <= value < 1 << 8 * width - 1:
            number: bytes = value.to_bytes(width, "little", signed=True)
            return _header(kind) + number
    return _real(Digits(value))


def _container(basic: int, parts: list[bytes], ids: list[int] | None = None) -> bytes:
    ends = list(accumulate(map(len, parts), initial=0))
    width, size = _width(ends[-1]), 4 if len(parts) > 255 else 1
    info, numbers = width - 1, len(parts).to_bytes(size, "little")
    large = 4 if size == 4 else 0
    if ids is None:
        info |= large
    else:
        id_width = _width(max(ids, default=0))
        info |= (id_width - 1 | large) << 2
        numbers += b"".join(number.to_bytes(id_width, "little") for number in ids)
    numbers += b"".join(end.to_bytes(width, "little") for end in ends)
    return bytes([info << 2 | basic]) + numbers + b"".join(parts)


def _header(kind: int) -> bytes:
    return bytes([kind << 2 | PRIMITIVE])


def _real(text: str) -> bytes:
    """Return a decimal, if the text has no exponent and a decimal can hold it, else a double."""
    if text in NOT_FINITE:
        raise ValueRefused(f"it is not JSON: {text} is no number")
    if not set(text) & set("eE"):
        _, digits, exponent = Decimal(text).as_tuple()
        assert isinstance(exponent, int)
        if len(digits) <= MAX_DIGITS and -exponent <= MAX_DIGITS:
            places = max(len(digits), -exponent)
            kind = DECIMAL4 if places <= 9 else DECIMAL8 if places <= 18 else DECIMAL16
            unscaled = int(text.replace(".", ""))
            number = unscaled.to_bytes(4 << kind - DECIMAL4, "little", signed=True)
            return _header(kind) + bytes([-exponent]) + number
    return _header(DOUBLE) + struct.pack("<d", float(text))
