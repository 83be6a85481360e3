"""`Record`: a record with its decoded key and value; and the records of a chunk's columns.

A frozen dataclass sets every field by a call (1.6 us for the ten fields of `Record`). `records_of` fills a
mutable class with the same slots and then changes the object's class to `Record`: a quarter of that time.
`appended_at` makes an `Appended` the same way.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from lastword.errors import SerializerError, UsageError
from lastword.records.record import Header
from lastword.values import draft_of

if TYPE_CHECKING:
    from lastword.api.serializers import Serializer
    from lastword.records.chunk import Chunk
    from lastword.records.columns import RecordColumns


K = TypeVar("K")
V = TypeVar("V")


class Absent(enum.Enum):
    """The type of `lastword.ABSENT`: a key has no record, or its newest one is a tombstone."""

    ABSENT = "ABSENT"


ABSENT: Final = Absent.ABSENT
"""For `expect=`: the key has no value."""


TIMESTAMP_TYPES = {0: "create", 1: "append", -1: "none"}


@dataclass(frozen=True, slots=True)
class Record(Generic[K, V]):
    """One record.

    Attributes:
        topic: The topic.
        partition: The partition.
        offset: The offset, which is permanent.
        timestamp: Milliseconds since 1970; -1: none.
        timestamp_type: "create" (set by the producer), "append" (set by the log), or "none" (magic 0).
        key: The decoded key; None for null.
        value: The decoded value; None for null.
        headers: Pairs of str and bytes or None, in order.
        has_key: False only for a null key (a JSON `null` is a key).
        is_tombstone: True only for a null value (a JSON `null` is a value).
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
        """The timestamp as an aware datetime in UTC; None if there is none.

        Raises:
            SerializerError: The timestamp is after the year 9999.
        """
        try:
            return None if self.timestamp < 0 else datetime.fromtimestamp(self.timestamp / 1000, UTC)
        except (ValueError, OverflowError, OSError):
            raise SerializerError(
                f"{self.timestamp} ms is after the year 9999: no datetime holds it",
                remedy="`timestamp` is the number of milliseconds",
                offset=self.offset,
            ) from None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of `lastword read --json`, with key and value as Python objects."""
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
    """Partition, offset and timestamp (milliseconds since 1970) of an acknowledged record."""

    partition: int
    offset: int
    timestamp: int

    def __str__(self) -> str:
        return f"partition {self.partition}, offset {self.offset}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict."""
        return {"partition": self.partition, "offset": self.offset, "timestamp": self.timestamp}


_new = object.__new__
_AppendedDraft = draft_of(Appended)
_RecordDraft: Any = draft_of(Record)


def appended_at(partition: int, offset: int, timestamp: int) -> Appended:
    """Return `Appended(partition, offset, timestamp)`, in half the time."""
    appended = _new(_AppendedDraft)
    draft: Any = appended
    draft.partition = partition
    draft.offset = offset
    draft.timestamp = timestamp
    draft.__class__ = Appended
    return appended


HeadersLike = Mapping[str, bytes | None] | Iterable[Header]
"""Headers as an argument."""


def header_pairs(headers: HeadersLike) -> tuple[Header, ...]:
    """Return headers as pairs; UsageError unless each is a str with bytes or None."""
    try:
        given = headers.items() if isinstance(headers, Mapping) else headers
        pairs = tuple(tuple(pair) for pair in given)
    except TypeError:
        pairs = ((),)  # not pairs: refused below
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


def check_records(records: object) -> None:
    """Raise UsageError for an object that has no records."""
    if isinstance(records, (str, bytes)) or not isinstance(records, Iterable):
        raise UsageError(
            f"extend takes records, not {type(records).__name__}",
            remedy="pairs, Records, a mapping, or Arrow",
        )


def records_of(
    columns: RecordColumns,
    chunk: Chunk,
    topic: str,
    partition: int,
    serializers: tuple[Serializer, Serializer],
    position: dict[int, int],
) -> Iterator[Record[Any, Any]]:
    """Yield the records of a chunk in order.

    `position[partition]` is moved past each record before the record is yielded.

    Raises:
        SerializerError: A key or value cannot be decoded.
    """
    from lastword.records.columns import header_tuples, timestamp_types

    first, last = _used(columns)
    data = chunk.uncompressed[first:last].tobytes()
    types = timestamp_types(columns, chunk)
    kinds = [TIMESTAMP_TYPES[kind] for kind in (0, 1, -1)]  # index -1 is the last item
    headers = header_tuples(columns, chunk) if columns.header_count.any() else None
    decode_key, decode_value = map(_decoder, serializers)
    new, draft_class, none = _new, _RecordDraft, ()
    for index, (offset, timestamp, kind, key_at, key_end, value_at, value_end) in enumerate(
        zip(
            columns.offset.tolist(),
            columns.timestamp.tolist(),
            types.tolist(),
            *_edges(columns.key_position, columns.key_length, first),
            *_edges(columns.value_position, columns.value_length, first),
            strict=True,
        )
    ):
        draft: Any = new(draft_class)
        draft.topic = topic
        draft.partition = partition
        draft.offset = offset
        draft.timestamp = timestamp
        draft.timestamp_type = kinds[kind]
        if key_end < key_at:
            draft.key = None
            draft.has_key = False
        else:
            key = data[key_at:key_end]
            draft.key = key if decode_key is None else decode_key(key, "key")
            draft.has_key = True
        if value_end < value_at:
            draft.value = None
            draft.is_tombstone = True
        else:
            value = data[value_at:value_end]
            draft.value = value if decode_value is None else decode_value(value, "value")
            draft.is_tombstone = False
        draft.headers = none if headers is None else headers[index]
        draft.__class__ = Record
        position[partition] = offset + 1
        yield draft


def _used(columns: RecordColumns) -> tuple[int, int]:
    """Return begin and end of the keys and values in the chunk's uncompressed bytes."""
    if not len(columns):
        return 0, 0
    last = int(columns.value_position[-1]) + max(int(columns.value_length[-1]), 0)
    return int(columns.key_position[0]), last


def _edges(position: Any, length: Any, first: int) -> tuple[list[int], list[int]]:
    """Return begin and end of each span, counted from `first`; a null ends before it begins."""
    begin = position - first
    return begin.tolist(), (begin + length).tolist()


def _decoder(serializer: Serializer) -> Callable[[bytes, str], Any] | None:
    """Return the decoder; None for bytes, which need none."""
    return None if serializer.name == "bytes" else serializer.decode


RECORD_BYTES = 64
"""Assumed size of a value whose size is known only when it is encoded."""


def size_of(record: Any) -> int:
    """Return the approximate size of a record: of a pair of key and value, or of a `Record`."""
    return sum(map(_field_size, record)) if isinstance(record, tuple) else 2 * RECORD_BYTES


def _field_size(field: Any) -> int:
    return len(field) if isinstance(field, bytes | str) else RECORD_BYTES
