"""A record as users hold it: key and value decoded by the topic's serializers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from lastword.errors import SerializerError, UsageError
from lastword.records.record import Header

K = TypeVar("K")
V = TypeVar("V")


TIMESTAMP_TYPES = {0: "create", 1: "append", -1: "none"}


@dataclass(frozen=True, slots=True)
class Record(Generic[K, V]):
    """One record.

    topic, partition, offset   where it lies; the offset is permanent
    timestamp                  milliseconds since 1970, -1 for none
    timestamp_type             "create" (the writer's), "append" (the log's), or "none" (magic 0 has none)
    key, value                 decoded; None for null
    headers                    pairs of str and bytes or None, in order
    has_key                    False only for a null key (a JSON `null` is a key)
    is_tombstone               True only for a null value (a JSON `null` is a value)
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: str
    key: K | None
    value: V | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    has_key: bool = field(default=True, repr=False)
    is_tombstone: bool = field(default=False, repr=False)

    @property
    def time(self) -> datetime | None:
        """The timestamp as an aware datetime in UTC; None if there is none. SerializerError after the year
        9999, which no datetime holds."""
        try:
            return None if self.timestamp < 0 else datetime.fromtimestamp(self.timestamp / 1000, UTC)
        except (ValueError, OverflowError, OSError):
            raise SerializerError(
                f"{self.timestamp} ms is after the year 9999: no datetime holds it",
                remedy="`timestamp` is the number of milliseconds",
                offset=self.offset,
            ) from None

    def to_dict(self) -> dict[str, Any]:
        """The fields of `lastword read --json`, keys and values as Python objects."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "timestamp": self.timestamp,
            "timestamp_type": self.timestamp_type,
            "key": self.key,
            "value": self.value,
            "headers": [[name, value] for name, value in self.headers],
        }


@dataclass(frozen=True, slots=True)
class Appended:
    """Where an acknowledged record lies: partition, offset, and the timestamp it got (milliseconds since
    1970)."""

    partition: int
    offset: int
    timestamp: int

    def __str__(self) -> str:
        return f"partition {self.partition}, offset {self.offset}"

    def to_dict(self) -> dict[str, Any]:
        return {"partition": self.partition, "offset": self.offset, "timestamp": self.timestamp}


HeadersLike = Mapping[str, bytes | None] | Iterable[Header]
"""Headers as users give them."""


def header_pairs(headers: HeadersLike) -> tuple[Header, ...]:
    """Headers as given, as pairs; UsageError unless they are str and bytes or None."""
    try:
        given = headers.items() if isinstance(headers, Mapping) else headers
        pairs = tuple(tuple(pair) for pair in given)
    except TypeError:
        pairs = ((),)  # no pairs at all: refused like those that are not right
    for pair in pairs:
        if (
            len(pair) != 2
            or not isinstance(pair[0], str)
            or not (pair[1] is None or isinstance(pair[1], bytes))
        ):
            raise UsageError(
                "headers are pairs of str and bytes or None", remedy='headers={"source": b"loader"}'
            )
        try:
            pair[0].encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise SerializerError(
                f"the header name {pair[0]!r} cannot be written as UTF-8",
                remedy="a header name without surrogates (U+D800 to U+DFFF)",
            ) from None
    return pairs
