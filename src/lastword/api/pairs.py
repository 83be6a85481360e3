"""Pairs on their way into columns: keys and values that are bytes or text already need no object of ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

Kind = type[bytes] | type[str]
KINDS: dict[str | None, Kind] = {"bytes": bytes, "str": str}
"""Serializers whose values Arrow encodes the same way."""
WEIGHT_BYTES = 32
"""What a record takes beside its key and value, at most."""


class Taken(NamedTuple):
    """Keys and values in order. `odd`: the one that came after them and is no such pair, or nothing."""

    keys: list[Any]
    values: list[Any]
    odd: tuple[Any, ...]


def take(records: Iterator[Any], key_kind: Kind, value_kind: Kind, most_bytes: int, most: int) -> Taken:
    """The next pairs whose key and value are None or exactly of these types, until they are `most` or weigh
    `most_bytes`.
    """
    keys: list[Any] = []
    values: list[Any] = []
    add_key, add_value = keys.append, values.append
    # A character of text takes up to 4 bytes.
    left = most_bytes if key_kind is value_kind is bytes else most_bytes // 4
    for given in records:
        if type(given) is not tuple or len(given) != 2:
            return Taken(keys, values, (given,))
        key, value = given
        if type(key) is key_kind:
            left -= len(key)
        elif key is not None:
            return Taken(keys, values, (given,))
        if type(value) is value_kind:
            left -= len(value)
        elif value is not None:
            return Taken(keys, values, (given,))
        add_key(key)
        add_value(value)
        left -= WEIGHT_BYTES
        if left <= 0 or len(keys) >= most:
            break
    return Taken(keys, values, ())


def binary(rows: list[Any], kind: Kind) -> pa.Array:
    """The rows as one binary column. UnicodeError for text that UTF-8 has no bytes for."""
    import pyarrow as pa

    if kind is bytes:
        return pa.array(rows, pa.binary())
    return pa.array(rows, pa.string()).cast(pa.binary())
