"""Decode the records of Kafka's own topics: groups, transactions, share groups, the cluster's metadata.

`decode(topic, key, value)` returns the fields of one record by name, as Kafka's schemas name them. The
schemas are data: `internal_schemas.json`, generated from Kafka's jars by `scripts/make_internal_schemas.py`.

```
__consumer_offsets, __transaction_state, __share_group_state
    key      i16 record type · fields (version 0 of the type's key schema)
    value    i16 version · fields of the type's value schema
__cluster_metadata
    value    uvarint frame version (1) · uvarint record type · uvarint version · fields
```

From its first flexible version on, a message has compact lengths (uvarint of length + 1, 0 is null) and ends
each struct with tagged fields. A field that a version does not have is absent from the result.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from lastword.values import Value

METADATA = "__cluster_metadata"
FRAME_VERSION = 1
MOST_ELEMENTS = 1 << 20
"""Upper bound for the elements of an array, beside its bytes: each element takes at least one."""

TRANSACTION_STATES = (
    *("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead"),
    "PrepareEpochFence",
)
"""Kafka's names of the states of a transaction, by the number that a record has."""

_SECRET_TYPES = frozenset({"UserScramCredentialRecord", "DelegationTokenRecord"})
_SECRET_FIELDS = frozenset({"salt", "storedKey", "serverKey", "tokenId", "value"})
_SECRET_SETTING = re.compile(
    r"password|secret|jaas|keystore\.key|keystore\.certificate|private", re.IGNORECASE
)

_NUMBERS = {
    "bool": struct.Struct(">?"),
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "uint16": struct.Struct(">H"),
    "int32": struct.Struct(">i"),
    "uint32": struct.Struct(">I"),
    "int64": struct.Struct(">q"),
    "float64": struct.Struct(">d"),
}


class UndecodableError(ValueError):
    """The bytes are not a record of the topic, or have a version that these schemas do not have."""


class UnknownTypeError(UndecodableError):
    """The record is of a type that these schemas do not have: a newer Kafka wrote it."""


@dataclass(frozen=True, slots=True)
class InternalRecord(Value):
    """One record of an internal topic.

    Attributes:
        type: Kafka's name without its ending, e.g. "OffsetCommit", "TransactionLog", "ConfigRecord".
        key: Fields of the key; empty in `__cluster_metadata`, whose records have no key.
        value: Fields of the value; None for a tombstone.
    """

    type: str
    key: dict[str, Any]
    value: dict[str, Any] | None

    @property
    def is_secret(self) -> bool:
        """Return whether the value holds a credential, or a setting that may hold one."""
        if self.type == "ConfigRecord":
            return _SECRET_SETTING.search((self.value or {}).get("name", "")) is not None
        return self.type in _SECRET_TYPES

    def masked(self) -> InternalRecord:
        """Return the record with `****` in place of credentials."""
        if not self.is_secret or self.value is None:
            return self
        shown = {
            name: "****" if value is not None and name in _SECRET_FIELDS else value
            for name, value in self.value.items()
        }
        return replace(self, value=shown)


def is_internal(topic: str) -> bool:
    """Return whether `decode` has schemas for a topic."""
    return topic in _TOPICS


def decode(topic: str, key: bytes | None, value: bytes | None) -> InternalRecord:
    """Return the fields of one record of an internal topic; the state of a transaction by its name.

    Args:
        topic: A name for which `is_internal` is true.
        key: The record's key, or None.
        value: The record's value, or None.

    Raises:
        UnknownTypeError: The record is of a type that these schemas do not have.
        UndecodableError: The bytes fit no schema.
    """
    if topic == METADATA:
        return _decode_metadata(value)
    kinds = _schemas()[topic]
    if key is None:
        raise UndecodableError("no key")
    reader = _FieldReader(key)
    kind = str(reader.number("int16"))
    schema = kinds["key"].get(kind)
    if schema is None:
        raise UnknownTypeError(f"a key of unknown type {kind}")
    fields = reader.struct(schema["fields"], 0, flexible=False)  # Kafka ignores bytes behind it
    name = schema["name"].removesuffix("Key")
    if value is None:
        return InternalRecord(name, fields, None)
    reader = _FieldReader(value)
    version = reader.number("int16")
    candidates = [kinds["value"][kind]]
    if name == "LegacyOffsetCommit":  # keys of type 0 came with every version of the value
        candidates.append(kinds["value"]["1"])
    values = _message(reader, candidates, version)
    state = values.get("transactionStatus")
    if state is not None and 0 <= state < len(TRANSACTION_STATES):
        values["transactionStatus"] = TRANSACTION_STATES[state]
    return InternalRecord(name, fields, values)


def _decode_metadata(value: bytes | None) -> InternalRecord:
    if value is None:
        raise UndecodableError("no value")
    reader = _FieldReader(value)
    frame, kind, version = (reader.uvarint() for _ in range(3))
    if frame != FRAME_VERSION:
        raise UndecodableError(f"frame version {frame}")
    schema = _schemas()[METADATA]["record"].get(str(kind))
    if schema is None:
        raise UnknownTypeError(f"a record of unknown type {kind}")
    decoded = InternalRecord(schema["name"], {}, _message(reader, [schema], version))
    reader.finish()
    return decoded


def _message(reader: _FieldReader, candidates: list[dict[str, Any]], version: int) -> dict[str, Any]:
    for schema in candidates:
        if _covers(schema["versions"], version):
            return reader.struct(schema["fields"], version, flexible=_covers(schema["flexible"], version))
    raise UndecodableError(f"{candidates[-1]['name']} of unknown version {version}")


_TOPICS = frozenset({METADATA, "__consumer_offsets", "__transaction_state", "__share_group_state"})


@cache
def _schemas() -> Mapping[str, Any]:
    schemas: dict[str, Any] = json.loads((files(__package__) / "internal_schemas.json").read_bytes())
    return schemas


def _covers(versions: list[int], version: int) -> bool:
    return versions[0] <= version <= versions[1]


class _FieldReader:
    """Reads fields from the bytes of one message; every length is checked before it is used."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def finish(self) -> None:
        """Raise UndecodableError unless all bytes were read."""
        left = len(self._data) - self._position
        if left:
            raise UndecodableError(f"{left} bytes too many")

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        if count < 0 or count > len(self._data) - self._position:
            raise UndecodableError(f"{count} bytes wanted at {self._position} of {len(self._data)}")
        start = self._position
        self._position += count
        return self._data[start : self._position]

    def number(self, kind: str) -> Any:
        """Return the next number of this type."""
        form = _NUMBERS[kind]
        return form.unpack(self.take(form.size))[0]

    def uvarint(self) -> int:
        """Return the next unsigned varint."""
        result = shift = 0
        while True:
            (byte,) = self.take(1)
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 28:
                raise UndecodableError("a varint of more than 5 bytes")
        if result > 0xFFFFFFFF:
            raise UndecodableError("a varint above 32 bits")
        return result

    def struct(self, fields: list[dict[str, Any]], version: int, *, flexible: bool) -> dict[str, Any]:
        """Return the fields of a struct by name."""
        result = {
            field["name"]: self.field(field, version, flexible)
            for field in fields
            if _covers(field["versions"], version) and not _is_tagged(field, version)
        }
        if flexible:
            tagged = {field["tag"]: field for field in fields if _is_tagged(field, version)}
            for _ in range(self.uvarint()):
                tag = self.uvarint()
                inner = _FieldReader(self.take(self.uvarint()))
                if tag in tagged:  # others are of a newer Kafka, which may add them without a new version
                    result[tagged[tag]["name"]] = inner.field(tagged[tag], version, flexible)
                    inner.finish()
        return result

    def field(self, field: dict[str, Any], version: int, flexible: bool) -> Any:
        """Return the value of one field."""
        kind: str = field["type"]
        if kind.startswith("[]"):
            return self._array(field, kind[2:], version, flexible)
        if kind in _NUMBERS:
            return self.number(kind)
        if kind == "uuid":
            return base64.urlsafe_b64encode(self.take(16)).decode().rstrip("=")
        if kind in ("string", "bytes"):
            length = self._length("int16" if kind == "string" else "int32", flexible)
            if length is None:
                return None
            data = self.take(length)
            return data.decode("utf-8", "replace") if kind == "string" else data
        if "nullable" in field and _covers(field["nullable"], version):
            null = 0 if _is_tagged(field, version) else -1
            if self.number("int8") == null:
                return None
        return self.struct(field["fields"], version, flexible=flexible)

    def _array(self, field: dict[str, Any], kind: str, version: int, flexible: bool) -> list[Any] | None:
        count = self._length("int32", flexible)
        if count is None:
            return None
        if count > min(MOST_ELEMENTS, len(self._data) - self._position):
            raise UndecodableError(f"an array of {count} elements at {self._position}")
        element = {**field, "type": kind}
        element.pop("nullable", None)
        return [self.field(element, version, flexible) for _ in range(count)]

    def _length(self, kind: str, flexible: bool) -> int | None:
        length = self.uvarint() - 1 if flexible else self.number(kind)
        return None if length < 0 else int(length)


def _is_tagged(field: dict[str, Any], version: int) -> bool:
    return "tagged" in field and _covers(field["tagged"], version)
