"""Serializers: a Python key or value, and the bytes that stand for it in a record.

A serializer works both ways. It is given as a *name* from the table below, as a pair `(dumps, loads)`, or
as an object with the methods `dumps` and `loads` (such as the module `orjson`). Names are saved with the
topic; callables are code and are passed again at every open.

    name      Python           bytes                          Kafka's class
    bytes     bytes            as they are                    ByteArraySerializer
    str       str              UTF-8                          StringSerializer
    json      JSON values      UTF-8, keys sorted, no blanks  none
    int32     int              4 bytes, big endian            IntegerSerializer
    int64     int              8 bytes, big endian            LongSerializer
    float64   float            8 bytes, big endian, IEEE 754  DoubleSerializer
    msgpack   JSON and bytes   MessagePack, keys sorted       none

Keys of objects are sorted because a key *is* its bytes: two spellings of one object would be two keys.
`pickle` is not in the table: reading a log must never run code from it.

In a topic `None` is a null and never reaches a serializer. In a `State` it does, so there JSON can store
`null`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from lastword.api import messagepack
from lastword.errors import SerializerError, UsageError, nearest

T = TypeVar("T")


@runtime_checkable
class SerializerObject(Protocol):
    """Anything with both directions, for example the module `orjson`."""

    def dumps(self, value: Any, /) -> bytes: ...

    def loads(self, data: bytes, /) -> Any: ...


# What a type checker knows of a name: the Python type of what it reads and writes.
Text = Literal["str"]
Raw = Literal["bytes"]
Whole = Literal["int32", "int64"]
Real = Literal["float64"]
Tree = Literal["json", "msgpack"]
Pair = tuple[Callable[[T], bytes], Callable[[bytes], T]]

SerializerLike = str | tuple[Callable[[Any], bytes], Callable[[bytes], Any]] | SerializerObject


@dataclass(frozen=True, slots=True)
class Serializer:
    """Both directions under one name; `name` is None for callables, which cannot be saved.

    `saved`: it was saved with the topic, not given by the caller; for messages.
    """

    name: str | None
    dumps: Callable[[Any], bytes]
    loads: Callable[[bytes], Any]
    saved: bool = False

    def encode(self, value: Any, what: str) -> bytes:
        """Bytes of `value`; `what` ("key", "value") goes into the SerializerError, the value itself does
        not."""
        try:
            data = self.dumps(value)
        except SerializerError:
            raise
        except Exception as error:
            saved, remedy = "", f"give what {self} takes, or another {what}_serializer="
            if self.saved:
                saved = f", saved with the topic as {self}"
                remedy = f"give what {self} takes"
                if self.name == "bytes":  # every other form is bytes, too
                    remedy = f'give bytes, or name their form: {what}_serializer="{_fitting(value)}"'
            raise SerializerError(
                f"the {what} (a {type(value).__name__}) cannot be written as {self}{saved}: {_reason(error)}",
                remedy=remedy,
            ) from error
        if not isinstance(data, bytes):
            if isinstance(data, (bytearray, memoryview)):
                return bytes(data)
            raise SerializerError(
                f"the {what} serializer returned {type(data).__name__}, not bytes",
                remedy="let dumps return bytes",
            )
        return data

    def decode(self, data: bytes, what: str) -> Any:
        """The value that `data` stands for; SerializerError names `what` and the serializer."""
        try:
            return self.loads(data)
        except Exception as error:
            raise SerializerError(
                f"a {what} of {len(data)} bytes is not {self}: {_reason(error)}",
                remedy=f'read it as it is: {what}_serializer="bytes"',
            ) from error

    def __str__(self) -> str:
        return self.name or "the given callables' form"


def _fitting(value: Any) -> str:
    """The name of a serializer that takes values like this one."""
    kinds = {str: "str", bytes: "bytes", int: "int64", float: "float64"}
    return kinds.get(type(value), "json")


def _reason(error: Exception) -> str:
    """The kind of failure without its text: messages of codecs quote the data, and logs hold no keys or
    values."""
    if isinstance(error, UnicodeError):
        return "not UTF-8"
    if isinstance(error, struct.error):
        return "out of range, or not of its length"
    if isinstance(error, (TypeError, ValueError)) and isinstance(error.__cause__, type(None)):
        text = str(error)
        if "not JSON compliant" in text:
            return "JSON has finite numbers only"
        known = "not JSON serializable" in text or text.startswith("expected ")
        return text if known else type(error).__name__
    return type(error).__name__


def _exactly(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")
    return value


def _bytes_dumps(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"expected bytes, got {type(value).__name__}")


def _json_dumps(value: Any) -> bytes:
    return json.dumps(
        value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False
    ).encode()


def _integer(form: str) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    packer = struct.Struct(form)

    def dumps(value: Any) -> bytes:
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise TypeError(f"expected int, got {type(value).__name__}")
        return packer.pack(value)

    return dumps, lambda data: packer.unpack(data)[0]


_FLOAT64 = struct.Struct(">d")

SERIALIZERS: dict[str, Serializer] = {
    "bytes": Serializer("bytes", _bytes_dumps, bytes),
    "str": Serializer("str", lambda value: _exactly(str, value).encode(), lambda data: data.decode()),
    "json": Serializer("json", _json_dumps, lambda data: json.loads(data.decode())),
    "int32": Serializer("int32", *_integer(">i")),
    "int64": Serializer("int64", *_integer(">q")),
    "float64": Serializer(
        "float64", lambda value: _FLOAT64.pack(float(value)), lambda data: _FLOAT64.unpack(data)[0]
    ),
    "msgpack": Serializer("msgpack", messagepack.dumps, messagepack.loads),
}


def saved_serializer(name: str | None) -> Serializer:
    """The serializer that was saved with a topic; "bytes" if none was."""
    serializer = serializer_of(name or "bytes")
    return serializer if name is None else replace(serializer, saved=True)


def contradicts(saved: str | None, given: object) -> bool:
    """Is `given` the name of another form than the one saved with the topic? Every form is bytes."""
    return isinstance(given, str) and saved not in (None, "bytes", given)


def serializer_of(given: SerializerLike | Serializer) -> Serializer:
    """The Serializer for a name, a pair or an object with dumps and loads. UsageError for anything else."""
    if isinstance(given, Serializer):
        return given
    if isinstance(given, str):
        found = SERIALIZERS.get(given)
        if found is None:
            near = nearest(given, SERIALIZERS)
            raise UsageError(
                f"unknown serializer {given!r}" + (f"; nearest: {near}" if near else ""),
                remedy=f"one of {', '.join(SERIALIZERS)}, a pair (dumps, loads), or an object with both",
            )
        return found
    if isinstance(given, tuple) and len(given) == 2 and callable(given[0]) and callable(given[1]):
        return Serializer(None, given[0], given[1])
    if isinstance(given, SerializerObject):
        return Serializer(None, given.dumps, given.loads)
    raise UsageError(
        f"a serializer is a name, a pair (dumps, loads) or an object with both, not {type(given).__name__}",
        remedy=f"one of {', '.join(SERIALIZERS)}",
    )
