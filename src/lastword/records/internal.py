"""Decode the records of Kafka's own topics: groups, transactions, share groups, the cluster's metadata.

`decode(topic, key, value)` returns the fields of one record by name, as Kafka's schemas name them. It reads
them by the codec of Kafka's protocol, whose schemas have these records, too (`protocol.schemas`).

```
__consumer_offsets, __transaction_state, __share_group_state
    key      i16 record type · fields (version 0 of the type's key schema)
    value    i16 version · fields of the type's value schema
__cluster_metadata
    value    uvarint frame version (1) · uvarint record type · uvarint version · fields
```

A field that a version does not have is absent from the result, and so is a tagged field at its default, which
Kafka does not write.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from lastword.errors import MalformedMessageError, UnsupportedVersionError
from lastword.protocol.codecs import READ_FAULTS, codec, decode_stored, read_uvarint
from lastword.protocol.schemas import Field, Message, schema_of, stored_types, within
from lastword.values import Value

METADATA = "__cluster_metadata"
FRAME_VERSION = 1

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
    try:
        return _decode_metadata(value) if topic == METADATA else _decode(topic, key, value)
    except (MalformedMessageError, UnsupportedVersionError) as error:
        raise UndecodableError(error.message) from None


def _decode(topic: str, key: bytes | None, value: bytes | None) -> InternalRecord:
    if key is None or len(key) < 2:
        raise UndecodableError("no key" if key is None else "a key without a type")
    kind = int.from_bytes(key[:2], "big", signed=True)
    key_name = stored_types(topic).get(kind)
    if key_name is None:
        raise UnknownTypeError(f"a key of unknown type {kind}")
    name = key_name.removesuffix("Key")
    fields = _fields(decode_stored(key_name, key), schema_of(key_name).fields, 0)
    if value is None:
        return InternalRecord(name, fields, None)
    # Keys of the oldest type came with every version of the value.
    value_name = f"{name.removeprefix('Legacy')}Value"
    version = int.from_bytes(value[:2], "big", signed=True)
    values = _fields(decode_stored(value_name, value), schema_of(value_name).fields, version)
    state = values.get("transactionStatus")
    if state is not None and 0 <= state < len(TRANSACTION_STATES):
        values["transactionStatus"] = TRANSACTION_STATES[state]
    return InternalRecord(name, fields, values)


def _decode_metadata(value: bytes | None) -> InternalRecord:
    if value is None:
        raise UndecodableError("no value")
    numbers, position = [], 0
    try:
        for _ in range(3):
            number, position = read_uvarint(value, position)
            numbers.append(number)
    except READ_FAULTS:
        raise UndecodableError("the frame has no version, type and version of the type") from None
    frame, kind, version = numbers
    if frame != FRAME_VERSION:
        raise UndecodableError(f"frame version {frame}")
    name = stored_types(METADATA).get(kind)
    if name is None:
        raise UnknownTypeError(f"a record of unknown type {kind}")
    message = codec(name, version).decode(value, position)
    return InternalRecord(name, {}, _fields(message, schema_of(name).fields, version))


_TOPICS = frozenset({METADATA, "__consumer_offsets", "__transaction_state", "__share_group_state"})


def _fields(message: Message, fields: Sequence[Field], version: int) -> dict[str, Any]:
    """Return the fields of a message or struct that its version has, by Kafka's names."""
    defaults, result = type(message)(), {}
    for field in fields:
        value = getattr(message, field.name)
        is_unset = within(field.tagged, version) and value == getattr(defaults, field.name)
        if within(field.versions, version) and not is_unset:
            name = field.kafka_name[0].lower() + field.kafka_name[1:]
            several = field.is_array and value is not None
            plain = [_plain(item, field, version) for item in (value if several else [value])]
            result[name] = plain if several else plain[0]
    return result


def _plain(value: Any, field: Field, version: int) -> Any:
    if isinstance(value, Message):
        return _fields(value, field.fields, version)
    if field.kind == "uuid" and value is not None:
        return base64.urlsafe_b64encode(value).decode().rstrip("=")
    return value
