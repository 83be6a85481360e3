"""Keys and values in JSON: what `--json` prints, `append` takes, and a `.jsonl` file holds.

Text is a string, other bytes are `{"base64": "..."}`, and of a topic that stores JSON or numbers a field is
itself, where its bytes say exactly that; so bytes survive the way there and back.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from lastword.api.serializers import SERIALIZERS
from lastword.errors import SerializerError, UsageError


def bytes_json(data: bytes | None) -> Any:
    """A string if it is UTF-8, else the base64 form; None stays null."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def field_json(data: bytes | None, serializer: str | None) -> Any:
    """A key or value as JSON: of a `json`, `msgpack`, `int32`, `int64` or `float64` topic as itself, if its
    bytes say exactly that."""
    if data is None or serializer in (None, "bytes", "str"):
        return bytes_json(data)
    chosen = SERIALIZERS[serializer]
    try:
        value = chosen.decode(data, "field")
        exact = value is not None and not is_base64_form(value) and chosen.encode(value, "field") == data
        if exact and serializer == "msgpack":  # it also has what JSON has not
            exact = chosen.encode(json.loads(json.dumps(value, allow_nan=False)), "field") == data
    except (SerializerError, TypeError, ValueError):
        exact = False
    return value if exact else {"base64": base64.b64encode(data).decode()}


def field_bytes(value: Any, serializer: str | None, what: str) -> bytes | None:
    """The inverse of `field_json`. UsageError or SerializerError for what the topic cannot take."""
    if value is None:
        return None
    if is_base64_form(value):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except ValueError:
            raise UsageError(
                f"the {what} is not base64", remedy='give {"base64": "..."} of the bytes'
            ) from None
    if serializer in (None, "bytes", "str"):
        if not isinstance(value, str):
            raise UsageError(
                f"the {what} is a JSON {type(value).__name__}, and the topic stores {serializer or 'bytes'}",
                remedy=f"give a string; `lastword create DIR TOPIC --{what}-serializer json` stores JSON",
            )
        return value.encode("utf-8", "surrogatepass")
    return SERIALIZERS[serializer].encode(value, what)


def is_base64_form(value: Any) -> bool:
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get("base64"), str)
