r"""Convert keys and values to text on one line, and typed text to keys and values.

UTF-8 is shown unchanged. Bytes that are not UTF-8, and control characters, are shown as `\xNN`; other
invisible characters as `\uNNNN`; a backslash as `\\`. A null value is shown as `<tombstone>`, a null key
as `<no key>`; real data with this spelling gets a leading backslash. `unescape` reverses `escape`, so a key
can be typed as it is shown. JSON is shown as JSON, with JSON's escapes.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lastword.api.serializers import (
    SERIALIZERS,
    bytes_json,
    field_bytes,
    field_json,
    is_base64_form,
    name_json,
)
from lastword.errors import UsageError

if TYPE_CHECKING:
    from lastword.api.record import Record
    from lastword.records.internal import InternalRecord

NO_KEY = "<no key>"
TOMBSTONE = "<tombstone>"
_NULLS = (NO_KEY, TOMBSTONE)
_ESCAPED = re.compile(
    rb"\\(?:([\\<])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U(000[0-9a-fA-F]{5}|0010[0-9a-fA-F]{4}))"
)


def escape(data: bytes | str) -> str:
    """Return one line of text that `unescape` converts back to the same bytes."""
    if isinstance(data, bytes):
        # "surrogateescape" turns the byte NN into U+DCNN, which no valid UTF-8 can produce.
        data = data.decode("utf-8", "surrogateescape")
    if data.isprintable() and "\\" not in data:
        return data
    return "".join(_escaped(character) for character in data)


def _escaped(character: str) -> str:
    code = ord(character)
    if character == "\\":
        return "\\\\"
    if character.isprintable():
        return character
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x80:  # one byte in UTF-8, too; from 0x80 on, \x means a byte and \u a character
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def unescape(text: str) -> bytes:
    """Return the bytes that `escape`, `key_text` or `value_text` shows as `text`.

    A backslash that begins no escape stands for itself.
    """
    return _ESCAPED.sub(_unescaped, os.fsencode(text))


def _unescaped(match: re.Match[bytes]) -> bytes:
    plain, byte, *characters = match.groups()
    if plain is not None:
        return plain
    if byte is not None:
        return bytes([int(byte, 16)])
    code = int(next(digits for digits in characters if digits is not None), 16)
    return chr(code).encode("utf-8", "surrogatepass")


def json_text(data: bytes) -> str:
    """Return JSON on one line; invisible characters get JSON's escapes."""
    return json_escaped(data.decode())


def json_escaped(text: str) -> str:
    """Return an equal line of JSON in which every character is printable."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else json.dumps(character)[1:-1] for character in text
    )


def key_text(key: bytes | str | None) -> str:
    """Return a key on one line."""
    return _or_null(key, NO_KEY)


def value_text(value: bytes | str | None) -> str:
    """Return a value on one line."""
    return _or_null(value, TOMBSTONE)


def internal_text(record: InternalRecord) -> str:
    """Return one line for a record of an internal topic: type, fields of the key, fields of the value."""
    shown = record.masked()
    parts = [shown.type]
    if shown.key:
        parts.append(_fields(shown.key))
    parts.append(TOMBSTONE if shown.value is None else _fields(shown.value))
    return "  ".join(part for part in parts if part)


def _fields(fields: dict[str, Any]) -> str:
    return " ".join(f"{name}={_field(value)}" for name, value in fields.items())


def _field(value: Any) -> str:
    return escape(value) if isinstance(value, str) and value else json.dumps(value, default=_bytes_text)


def _bytes_text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _or_null(data: bytes | str | None, null: str) -> str:
    if data is None:
        return null
    text = escape(data)
    return "\\" + text if text in _NULLS else text


def argument_bytes(text: str, serializer: str | None, column: str) -> bytes:
    """Return the bytes of a typed key or value: text as typed, numbers and JSON parsed."""
    if serializer is None or serializer in ("bytes", "str"):
        return os.fsencode(text)
    parse: Callable[[str], Any] = json.loads
    if serializer in ("int32", "int64"):
        parse = int
    elif serializer == "float64":
        parse = float
    try:
        parsed = parse(text)
    except (ValueError, RecursionError):
        example = "text is JSON in double quotes, as in '\"ada\"'"
        raise UsageError(
            f"the {column} is not of type {serializer}, which this topic stores",
            remedy=example if serializer == "json" else f"give {serializer}",
        ) from None
    return SERIALIZERS[serializer].encode(parsed, column)


def key_candidates(text: str, serializer: str | None) -> list[bytes]:
    """Return the keys that `text` may mean: the key shown as `text`, and the key with this JSON form.

    The likelier key comes first.
    """
    candidates: list[bytes] = []
    if text.lstrip().startswith("{"):
        with suppress(ValueError, RecursionError, UsageError):
            form = json.loads(text)
            if is_base64_form(form):
                candidates.append(field_bytes(form, "bytes", "key") or b"")
    if serializer in (None, "bytes", "str"):
        candidates.append(unescape(text))
    else:
        try:
            candidates.append(argument_bytes(text, serializer, "key"))
        except UsageError:
            if not candidates and unescape(text) == os.fsencode(text):
                raise
        if serializer == "json":  # another spelling than that of this package's serializer
            candidates.append(os.fsencode(text))
        if unescape(text) != os.fsencode(text):  # bytes of another type than the topic stores
            candidates.append(unescape(text))
    return list(dict.fromkeys(candidates))


def field_text(data: bytes | None, serializer: str | None, null: Callable[[bytes | None], str]) -> str:
    """Return a key or value as text: a number or JSON if the topic stores that type, else its escaped bytes.

    Args:
        data: The stored bytes.
        serializer: Name of the serializer; None if unknown.
        null: `key_text` or `value_text`.
    """
    if data is not None and serializer == "json":
        with suppress(ValueError, RecursionError):
            json.loads(data)
            return json_text(data)
    elif data is not None and serializer in ("int32", "int64", "float64"):
        value = field_json(data, serializer)
        if not isinstance(value, dict):
            return str(value)
    return null(data)


def decoded_record(record: Record[bytes, bytes]) -> InternalRecord | None:
    """Decode a record of Kafka's own topics; None in other topics and for unknown bytes."""
    if not record.topic.startswith("__"):
        return None
    from lastword.records.internal import UndecodableError, decode, is_internal

    try:
        return decode(record.topic, record.key, record.value) if is_internal(record.topic) else None
    except UndecodableError:
        return None


def record_json(
    record: Record[bytes, bytes], serializers: tuple[str | None, str | None], decoded: InternalRecord | None
) -> dict[str, Any]:
    """Return the fields of a record in `lastword read --json`.

    Args:
        record: The record as stored.
        serializers: The names of the topic's serializers of keys and of values; None if unknown.
        decoded: The result of `decoded_record`.
    """
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": record.timestamp_type,
        "key": field_json(record.key, serializers[0]),
        "value": field_json(record.value, serializers[1]),
        "headers": [[name_json(name), bytes_json(value)] for name, value in record.headers],
        **({} if decoded is None else {"decoded": decoded.to_dict()}),
    }
