"""Serializers: convert Python keys and values to the bytes of a record, and to JSON.

A serializer converts in both directions. It is given as a name from the table below, as a pair `(dumps,
loads)`, or as an object with the methods `dumps` and `loads` (such as the module `orjson`). Names are saved
with the topic; callables are passed at every open.

    name      Python           bytes                          Kafka's class
    bytes     bytes            unchanged                      ByteArraySerializer
    str       str              UTF-8                          StringSerializer
    json      JSON values      UTF-8, keys sorted, no blanks  none
    int32     int              4 bytes, big endian            IntegerSerializer
    int64     int              8 bytes, big endian            LongSerializer
    float64   float            8 bytes, big endian, IEEE 754  DoubleSerializer
    msgpack   JSON and bytes   MessagePack, keys sorted       none

Keys of objects are sorted because a key is its bytes: two encodings of one object would be two keys.
`pickle` is not in the table: reading a log must never run code from it.

In a topic, `None` is a null and is not passed to a serializer. In a `State`, `None` is passed to the
serializer, so JSON can store `null`.

MessagePack (https://msgpack.org, format version 5) is written and read by the package `msgpack`, an extra.
Each value has one encoding: the shortest form of each number and length, floats in 8 bytes, the entries of a
map in the order of the bytes of their keys. A tuple is written as an array. Arrays and maps may nest 100
levels; the keys of a map are plain values. Extensions are refused, timestamps too.

In JSON (`--json`, `append`, `.jsonl` files) text is a string and other bytes are `{"base64": "..."}`. A
field of a topic that stores JSON or numbers is written as itself if JSON has it (NaN it has not) and encoding
it gives the same bytes, so bytes survive both conversions.
"""

from __future__ import annotations

import base64
import json
import numbers
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from json.encoder import encode_basestring
from typing import Any, Generic, Literal, Protocol, TypeVar, overload, runtime_checkable

from lastword.errors import MissingError, SerializerError, UsageError, hint

MAX_LEVELS = 100


def msgpack_dumps(value: Any) -> bytes:
    """Encode a value. TypeError for a type that MessagePack lacks, ValueError for an int outside 64 bits."""
    return _packed(_plain(value, MAX_LEVELS))


def msgpack_loads(data: bytes) -> Any:
    """Decode a value; ValueError unless `data` is exactly one value."""
    try:
        value = _msgpack().unpackb(data, strict_map_key=False, ext_hook=_no_extension)
        _plain(value, MAX_LEVELS)  # its timestamps take no hook
    except TypeError as error:  # a list as the key of a map
        raise ValueError(f"expected plain values: {error}") from None
    return value


def _plain(value: Any, levels: int) -> Any:
    """Return the value with sorted maps, and without the types of the package: it has extensions."""
    if levels < 0:
        raise ValueError(f"expected at most {MAX_LEVELS} levels")
    if isinstance(value, (list, tuple)):
        return [_plain(item, levels - 1) for item in value]
    if isinstance(value, dict):
        if any(isinstance(key, tuple) for key in value):
            raise TypeError("expected a map's keys to be plain values, got tuple")
        return {key: _plain(value[key], levels - 1) for key in sorted(value, key=_packed)}
    return _refused(value) if type(value).__module__.startswith("msgpack") else value


def _packed(value: Any) -> bytes:
    packed: bytes = _msgpack().packb(value, default=_refused)
    return packed


def _no_extension(code: int, data: bytes) -> Any:
    raise ValueError("expected no extension type")


def _refused(value: Any) -> Any:
    if isinstance(value, int):
        raise ValueError("expected an int of 64 bits")
    raise TypeError(f"expected a value that MessagePack has, got {type(value).__name__}")


def _msgpack() -> Any:
    try:
        import msgpack
    except ImportError:
        raise MissingError.package("the serializer msgpack", "msgpack", "msgpack>=1.0.5") from None
    return msgpack


T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


@runtime_checkable
class SerializerObject(Protocol[T]):
    """An object with both directions, for example the module `orjson`."""

    def dumps(self, value: T, /) -> bytes:
        """Encode a value."""

    def loads(self, data: bytes, /) -> T:
        """Decode a value."""


# For type checkers: the Python type that each named serializer reads and writes.
Text = Literal["str"]
Raw = Literal["bytes"]
Whole = Literal["int32", "int64"]
Real = Literal["float64"]
Tree = Literal["json", "msgpack"]
Code = tuple[Callable[[T], bytes], Callable[[bytes], T]] | SerializerObject[T]

SerializerLike = str | Code[Any]


@dataclass(frozen=True, slots=True)
class Serializer:
    """A pair of functions with a name; `name` is None for callables, which cannot be saved.

    `saved`: the serializer was saved with the topic, not given by the caller; for messages.
    """

    name: str | None
    dumps: Callable[[Any], bytes]
    loads: Callable[[bytes], Any]
    saved: bool = False

    def encode(self, value: Any, column: str) -> bytes:
        """Encode a value. SerializerError names `column` ("key", "value"), but not the value itself."""
        if type(value) is bytes and self.dumps is _bytes_dumps:
            return value
        try:
            data = self.dumps(value)
        except (SerializerError, MissingError):
            raise
        except Exception as error:
            saved, remedy = "", f"give what {self} takes, or another {column}_serializer="
            if self.saved:
                saved = f", saved with the topic as {self}"
                remedy = f"give {TAKES.get(self.name or '', 'what it takes')}"
                if " date" in _reason(error):  # the value, or a value in it
                    remedy += "; a time as text: value.isoformat()"
                if self.name == "bytes":  # any serializer may be used with a topic that stores bytes
                    remedy = f'give bytes, or name a serializer: {column}_serializer="{_fitting(value)}"'
            raise SerializerError(
                f"the {column} (a {type(value).__name__}) cannot be written as {self}{saved}: "
                f"{_reason(error)}",
                remedy=remedy,
            ) from error
        if not isinstance(data, bytes):
            if isinstance(data, (bytearray, memoryview)):
                return bytes(data)
            raise SerializerError(
                f"the {column} serializer returned {type(data).__name__}, not bytes",
                remedy="let dumps return bytes",
            )
        return data

    def decode(self, data: bytes, column: str) -> Any:
        """Decode a value; SerializerError names `column` and the serializer."""
        try:
            return self.loads(data)
        except MissingError:
            raise
        except Exception as error:
            raise SerializerError(
                f"a {column} of {len(data)} bytes is not {self}: {_reason(error)}",
                remedy=f'read it as it is: {column}_serializer="bytes"',
            ) from error

    def __str__(self) -> str:
        return self.name or "the given callables' form"


def _fitting(value: Any) -> str:
    """Return the name of a serializer that accepts values of this type."""
    kinds = {str: "str", bytes: "bytes", int: "int64", float: "float64"}
    return kinds.get(type(value), "json")


def _reason(error: Exception) -> str:
    """Return the kind of failure without its text.

    Messages of codecs quote the data, and errors must not contain keys or values.
    """
    if isinstance(error, UnicodeError):
        return "not UTF-8"
    if isinstance(error, (struct.error, OverflowError)):
        return "out of range, or not of its length"
    if isinstance(error, (TypeError, ValueError)) and isinstance(error.__cause__, type(None)):
        text = str(error)
        if "not JSON compliant" in text:
            return "JSON has finite numbers only"
        known = text.startswith(("expected ", "keys must be ", "Circular reference"))
        return text if known or "not JSON serializable" in text else type(error).__name__
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


_encode_json = json.JSONEncoder(
    sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False
).encode  # `json.dumps` would make the encoder for each value


_decode_json = json.JSONDecoder().decode


def _json_dumps(value: Any) -> bytes:
    return _encode_json(value).encode()


def _integer(form: str) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    packer = struct.Struct(form)

    def dumps(value: Any) -> bytes:
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise TypeError(f"expected int, got {type(value).__name__}")
        return packer.pack(value)

    return dumps, lambda data: packer.unpack(data)[0]


_FLOAT64 = struct.Struct(">d")


def _float64_dumps(value: Any) -> bytes:
    if isinstance(value, bool) or not isinstance(value, numbers.Number):  # `float` also takes text
        raise TypeError(f"expected float, got {type(value).__name__}")
    return _FLOAT64.pack(value)


SERIALIZERS: dict[str, Serializer] = {
    "bytes": Serializer("bytes", _bytes_dumps, bytes),
    "str": Serializer("str", lambda value: _exactly(str, value).encode(), lambda data: data.decode()),
    "json": Serializer("json", _json_dumps, lambda data: json.loads(data.decode())),
    "int32": Serializer("int32", *_integer(">i")),
    "int64": Serializer("int64", *_integer(">q")),
    "float64": Serializer("float64", _float64_dumps, lambda data: _FLOAT64.unpack(data)[0]),
    "msgpack": Serializer("msgpack", msgpack_dumps, msgpack_loads),
}


TAKES = {
    "str": "text",
    "json": "text, a number, True, False, None, or lists and dicts of these",
    "msgpack": "text, bytes, a number, True, False, None, or lists and dicts of these",
    **dict.fromkeys(("int32", "int64"), "a whole number in its range"),
    "float64": "a number",
}
"""What each serializer writes, for remedies."""


@cache  # a topic that is opened again gets the same one
def saved_serializer(name: str | None) -> Serializer:
    """Return the serializer that was saved with a topic; "bytes" if there is no name."""
    serializer = serializer_of(name or "bytes")
    return serializer if name is None else replace(serializer, saved=True)


def contradicts(saved: str | None, given: object) -> bool:
    """Return whether `given` names another serializer than `saved`; a saved "bytes" allows all names."""
    return isinstance(given, str) and saved not in (None, "bytes", given)


def serializer_of(given: SerializerLike | Serializer) -> Serializer:
    """Return the Serializer for a name, a pair, or an object with dumps and loads; else UsageError."""
    if isinstance(given, Serializer):
        return given
    if isinstance(given, str):
        serializer = SERIALIZERS.get(given)
        if serializer is None:
            raise UsageError(
                f"unknown serializer {given!r}{hint(given, SERIALIZERS)}",
                remedy=f"one of {', '.join(SERIALIZERS)}, a pair (dumps, loads), or an object with both",
            )
        return serializer
    if isinstance(given, tuple) and len(given) == 2 and callable(given[0]) and callable(given[1]):
        return Serializer(None, given[0], given[1])
    if isinstance(given, SerializerObject):
        return Serializer(None, given.dumps, given.loads)
    raise UsageError(
        f"a serializer is a name, a pair (dumps, loads) or an object with both, not {type(given).__name__}",
        remedy=f"one of {', '.join(SERIALIZERS)}",
    )


@dataclass(frozen=True, slots=True)
class Serializers(Generic[K, V]):
    """The serializers of a topic, with the Python types of its keys and values for a type checker.

    Made by `lastword.serializers`, for the argument `serializers=` of `topic`, `create_topic` and `state`.

    Attributes:
        key: The serializer of keys: a name, a pair or an object.
        value: The serializer of values.
    """

    key: SerializerLike
    value: SerializerLike


# Python has no map from a literal to a type, so each pair of types is one overload.
@overload
def serializers(key_serializer: Text, value_serializer: Text) -> Serializers[str, str]: ...
@overload
def serializers(key_serializer: Text, value_serializer: Raw) -> Serializers[str, bytes]: ...
@overload
def serializers(key_serializer: Text, value_serializer: Whole) -> Serializers[str, int]: ...
@overload
def serializers(key_serializer: Text, value_serializer: Real) -> Serializers[str, float]: ...
@overload
def serializers(key_serializer: Text, value_serializer: Tree) -> Serializers[str, Any]: ...
@overload
def serializers(key_serializer: Text, value_serializer: Code[V]) -> Serializers[str, V]: ...
@overload
def serializers(key_serializer: Raw, value_serializer: Text) -> Serializers[bytes, str]: ...
@overload
def serializers(key_serializer: Raw, value_serializer: Raw) -> Serializers[bytes, bytes]: ...
@overload
def serializers(key_serializer: Raw, value_serializer: Whole) -> Serializers[bytes, int]: ...
@overload
def serializers(key_serializer: Raw, value_serializer: Real) -> Serializers[bytes, float]: ...
@overload
def serializers(key_serializer: Raw, value_serializer: Tree) -> Serializers[bytes, Any]: ...
@overload
def serializers(key_serializer: Raw, value_serializer: Code[V]) -> Serializers[bytes, V]: ...
@overload
def serializers(key_serializer: Whole, value_serializer: Text) -> Serializers[int, str]: ...
@overload
def serializers(key_serializer: Whole, value_serializer: Raw) -> Serializers[int, bytes]: ...
@overload
def serializers(key_serializer: Whole, value_serializer: Whole) -> Serializers[int, int]: ...
@overload
def serializers(key_serializer: Whole, value_serializer: Real) -> Serializers[int, float]: ...
@overload
def serializers(key_serializer: Whole, value_serializer: Tree) -> Serializers[int, Any]: ...
@overload
def serializers(key_serializer: Whole, value_serializer: Code[V]) -> Serializers[int, V]: ...
@overload
def serializers(key_serializer: Code[K], value_serializer: Text) -> Serializers[K, str]: ...
@overload
def serializers(key_serializer: Code[K], value_serializer: Raw) -> Serializers[K, bytes]: ...
@overload
def serializers(key_serializer: Code[K], value_serializer: Whole) -> Serializers[K, int]: ...
@overload
def serializers(key_serializer: Code[K], value_serializer: Real) -> Serializers[K, float]: ...
@overload
def serializers(key_serializer: Code[K], value_serializer: Tree) -> Serializers[K, Any]: ...
@overload
def serializers(key_serializer: Code[K], value_serializer: Code[V]) -> Serializers[K, V]: ...
@overload
def serializers(
    key_serializer: SerializerLike, value_serializer: SerializerLike
) -> Serializers[Any, Any]: ...
def serializers(key_serializer: SerializerLike, value_serializer: SerializerLike) -> Serializers[Any, Any]:
    """Return a pair of serializers, from which a type checker infers the types of a topic or a state.

    `logs.state("totals", serializers=lastword.serializers("str", "int64"))` is a `State[str, int]`.

    Args:
        key_serializer: A name, a pair `(dumps, loads)`, or an object with both methods.
        value_serializer: As `key_serializer`.

    Raises:
        UsageError: A serializer is none of these.
    """
    serializer_of(key_serializer)
    serializer_of(value_serializer)
    return Serializers(key_serializer, value_serializer)


def given_serializers(
    serializers: Serializers[Any, Any] | None, key: SerializerLike | None, value: SerializerLike | None
) -> tuple[SerializerLike | None, SerializerLike | None]:
    """Return the serializers of keys and of values of a call that accepts them in both forms."""
    if serializers is None:
        return key, value
    if not isinstance(serializers, Serializers):
        raise UsageError(
            f"serializers is a {type(serializers).__name__}",
            remedy='give both: serializers=lastword.serializers("str", "json")',
        )
    if key is not None or value is not None:
        raise UsageError(
            "serializers= and key_serializer= or value_serializer= are given", remedy="give serializers= only"
        )
    return serializers.key, serializers.value


def bytes_json(data: bytes | None) -> Any:
    """Return a string if the data is UTF-8, else the base64 form; None stays null."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def name_json(name: str) -> Any:
    """Return the name of a header as JSON: as `bytes_json` its bytes, which surrogate escapes stand for."""
    return bytes_json(name.encode("utf-8", "surrogateescape"))


def field_json(data: bytes | None, serializer: str | None) -> Any:
    """Return a key or value as JSON.

    A `json`, `msgpack`, `int32`, `int64` or `float64` value is returned as itself, if JSON has it and
    encoding it gives the same bytes.
    """
    if data is None or serializer in (None, "bytes", "str"):
        return bytes_json(data)
    chosen = SERIALIZERS[serializer]
    try:
        value = chosen.decode(data, "field")
        exact = value is not None and not is_base64_form(value) and chosen.encode(value, "field") == data
        if exact and serializer in ("msgpack", "float64"):  # which have values that JSON lacks
            exact = chosen.encode(json.loads(json.dumps(value, allow_nan=False)), "field") == data
    except (SerializerError, TypeError, ValueError):
        exact = False
    return value if exact else {"base64": base64.b64encode(data).decode()}


def field_writer(serializer: str | None) -> Callable[[bytes | None], str]:
    """Return a function from a field to the JSON text of `field_json`, without blanks."""

    def of_text(data: bytes | None) -> str:
        try:
            return "null" if data is None else encode_basestring(data.decode())
        except UnicodeDecodeError:
            return json_text(bytes_json(data))

    def of_json(data: bytes | None) -> str:
        try:  # as `of_value`, with fewer calls
            text = "" if data is None else data.decode()
            value = _decode_json(text)
            if value is not None and not is_base64_form(value) and _encode_json(value) == text:
                return text
        except (ValueError, TypeError, RecursionError):
            pass
        return of_value(data)

    def of_value(data: bytes | None) -> str:
        return json_text(field_json(data, serializer))

    if serializer in (None, "bytes", "str"):
        return of_text
    return of_json if serializer == "json" else of_value


json_text = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""Returns a value as JSON text, without blanks."""


def field_bytes(value: Any, serializer: str | None, column: str) -> bytes | None:
    """Return the bytes of a field; the inverse of `field_json`.

    Raises:
        UsageError: The field is not valid for the topic.
        SerializerError: The serializer refuses the value.
    """
    if value is None:
        return None
    if is_base64_form(value):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except ValueError:
            raise UsageError(
                f"the {column} is not base64", remedy='give {"base64": "..."} of the bytes'
            ) from None
    if serializer in (None, "bytes", "str"):
        if not isinstance(value, str):
            raise UsageError(
                f"the {column} is a JSON {type(value).__name__}, "
                f"and the topic stores {serializer or 'bytes'}",
                remedy=f"give a string; `lastword create DIR TOPIC --{column}-serializer json` stores JSON",
            )
        return value.encode("utf-8", "surrogatepass")
    return SERIALIZERS[serializer].encode(value, column)


def is_base64_form(value: Any) -> bool:
    """Return whether a value is `{"base64": "..."}`."""
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get("base64"), str)
