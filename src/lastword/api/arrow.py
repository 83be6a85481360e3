"""The Arrow form of records: one schema for reading, and columns for appending.

Reading returns topic, partition, offset, timestamp, timestamp_type, key, value and headers. Appending takes
key and value, and if present headers, timestamp and partition; so `Topic.extend` takes the result of
`Reader.arrow`. A binary column holds the bytes of the record; text and numbers are converted by the topic's
serializer, a whole column in one step if the serializer's encoding equals Arrow's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from lastword.api.record import TIMESTAMP_TYPES
from lastword.arrow import pa, pc
from lastword.errors import SerializerError, UsageError
from lastword.records.record import RawRecord
from lastword.units import NO_TIMESTAMP

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lastword.api.serializers import Serializer
    from lastword.records.chunk import Chunk
    from lastword.records.columns import RecordColumns

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
_TYPES = {
    "str": pa.string(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float64": pa.float64(),
}
_WIRE = {"int32": ">i4", "int64": ">i8", "float64": ">f8"}


class ArrowForm:
    """Converts the records of one topic to Arrow. `key` and `value` name serializers; None for callables.

    `columns`: only these are made; None: all.
    """

    def __init__(
        self, topic: str, key: str | None, value: str | None, columns: Collection[str] | None = None
    ) -> None:
        self._topic = topic
        self._names = {"key": key, "value": value}
        whole = pa.schema(
            [
                pa.field("topic", pa.string(), nullable=False),
                pa.field("partition", pa.int32(), nullable=False),
                pa.field("offset", pa.int64(), nullable=False),
                pa.field("timestamp", pa.timestamp("ms", tz="UTC")),
                pa.field("timestamp_type", pa.string(), nullable=False),
                pa.field("key", _TYPES.get(key or "", pa.binary())),
                pa.field("value", _TYPES.get(value or "", pa.binary())),
                pa.field("headers", HEADERS),
            ]
        )
        self.schema = pa.schema([field for field in whole if columns is None or field.name in columns])
        self._stored = tuple(name for name in ("key", "value", "headers") if name in self.schema.names)

    def of_columns(
        self, columns: RecordColumns, chunk: Chunk, partition: int, batch_bytes: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of about `batch_bytes`, without a Python object for each record."""
        from lastword.records.columns import to_arrow

        size = int(np.maximum(columns.key_length, 0).sum() + np.maximum(columns.value_length, 0).sum())
        pieces = max(1, -(-(size + 64 * len(columns)) // batch_bytes))
        step = -(-len(columns) // pieces)
        for start in range(0, len(columns), step):
            part = columns.select(slice(start, start + step))
            stored = to_arrow(part, chunk, self._stored)
            arrays = {name: partial(stored.column, name) for name in self._stored}
            yield self._batch(
                partition,
                part.offset.copy(),
                {
                    "timestamp": partial(_times, part.timestamp.copy()),
                    "timestamp_type": partial(_kinds_of, part, chunk),
                    **arrays,
                },
            )

    def of_records(self, records: Sequence[RawRecord], partition: int) -> pa.RecordBatch:
        """Return one batch of records."""
        return self._batch(
            partition,
            np.array([record.offset for record in records], np.int64),
            {
                "timestamp": lambda: _times(np.array([record.timestamp for record in records], np.int64)),
                "timestamp_type": lambda: _kinds(
                    np.array([record.timestamp_type for record in records], np.int32)
                ),
                "key": lambda: pa.array([record.key for record in records], pa.binary()),
                "value": lambda: pa.array([record.value for record in records], pa.binary()),
                "headers": lambda: headers_of(records),
            },
        )

    def _batch(
        self, partition: int, offset: NDArray[np.int64], make: dict[str, Callable[[], pa.Array]]
    ) -> pa.RecordBatch:
        """Return a batch. `make` has a function for each other column; the wanted ones are called."""
        make |= {
            "topic": lambda: pa.repeat(pa.scalar(self._topic, pa.string()), len(offset)),
            "partition": lambda: pa.repeat(pa.scalar(partition, pa.int32()), len(offset)),
            "offset": lambda: pa.array(offset),
        }
        arrays = [self._typed(name, make[name]()) for name in self.schema.names]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _typed(self, column: str, data: pa.Array) -> pa.Array:
        name = self._names.get(column)
        if name == "str":
            try:
                return data.cast(pa.string())
            except pa.ArrowInvalid:
                raise SerializerError(
                    f"a {column} is not str: not UTF-8",
                    remedy=f'read it as it is: {column}_serializer="bytes"',
                ) from None
        if name in _WIRE:
            return _numbers(data, name, column)
        return data


def _times(milliseconds: NDArray[np.int64]) -> pa.Array:
    no_time = milliseconds == NO_TIMESTAMP
    array = pa.array(milliseconds, pa.int64(), mask=no_time if no_time.any() else None)
    return array.view(pa.timestamp("ms", tz="UTC"))


def _kinds_of(columns: RecordColumns, chunk: Chunk) -> pa.Array:
    from lastword.records.columns import timestamp_types

    return _kinds(timestamp_types(columns, chunk))


def _kinds(types: NDArray[np.int32]) -> pa.Array:
    """Return the names of timestamp types."""
    if len(types) and (types == types[0]).all():
        return pa.repeat(pa.scalar(TIMESTAMP_TYPES[int(types[0])], pa.string()), len(types))
    names = pa.array([TIMESTAMP_TYPES[kind] for kind in (-1, 0, 1)])
    return pa.DictionaryArray.from_arrays(pa.array(types + 1), names).cast(pa.string())


def _numbers(data: pa.Array, name: str, column: str) -> pa.Array:
    """Decode the big-endian numbers of a binary array."""
    wire = np.dtype(_WIRE[name])
    lengths = pc.binary_length(data).drop_null()
    if len(lengths) and pc.any(pc.not_equal(lengths, wire.itemsize)).as_py():
        raise SerializerError(
            f"a {column} is not {name}: not {wire.itemsize} bytes long",
            remedy=f'read it as it is: {column}_serializer="bytes"',
        )
    nulls = np.asarray(data.is_null())
    numbers = np.zeros(len(data), wire.newbyteorder("="))
    numbers[~nulls] = np.frombuffer(b"".join(data.drop_null().to_pylist()), wire)
    return pa.array(numbers, _TYPES[name], mask=nulls)


def headers_of(records: Sequence[RawRecord]) -> pa.Array:
    """Return the headers of records, null for a record without headers."""
    headers = [
        [{"key": _text(name), "value": value} for name, value in record.headers] if record.headers else None
        for record in records
    ]
    return pa.array(headers, HEADERS)


def _text(name: str) -> str:
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def joined(batches: Iterable[pa.RecordBatch], most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of batches of one schema; neighbours are joined up to `most_bytes`.

    A chunk may have few newest records, and to transfer a batch to the JVM costs as much as some hundreds of
    rows.
    """
    small: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        if small and size_bytes + batch.nbytes > most_bytes:
            yield from _join(small)
            small, size_bytes = [], 0
        if batch.num_rows:
            small.append(batch)
            size_bytes += batch.nbytes
    if small:
        yield from _join(small)


def _join(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return batches if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()


# ---------------------------------------------------------------- in


def read_stream(source: Any) -> Iterator[pa.RecordBatch]:
    """Return the batches of an object with `__arrow_c_stream__`; UsageError without key and value columns."""
    try:
        reader = pa.RecordBatchReader.from_stream(source)
    except pa.ArrowInvalid as error:
        raise UsageError(
            f"the Arrow data has no columns: {error}", remedy="give a table with columns key and value"
        ) from None
    names = reader.schema.names
    for name in ("key", "value", "headers", "timestamp", "partition"):
        if names.count(name) > 1:
            raise UsageError(
                f"the Arrow data has a column {name!r} {names.count(name)} times", remedy="rename the others"
            )
    missing = [name for name in ("key", "value") if name not in names]
    if missing:
        raise UsageError(
            f"the Arrow data has no column {missing[0]!r}; it has {', '.join(names) or 'none'}",
            remedy="columns key and value; headers, timestamp and partition if you like",
        )
    return iter(reader)


def binary_column(column: pa.Array, serializer: Serializer, column_name: str) -> pa.Array:
    """Return a key or value column as the bytes of the records, a `pa.binary()` array."""
    kind = column.type
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.binary())
    if pa.types.is_dictionary(kind):
        return binary_column(column.dictionary_decode(), serializer, column_name)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return column.cast(pa.binary())
    is_text = (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or kind == getattr(pa, "string_view", str)()
    )
    if is_text and serializer.name in ("str", "bytes"):
        return column.cast(pa.string()).cast(pa.binary())
    encode = serializer.encode
    return pa.array(
        [None if value is None else encode(value, column_name) for value in column.to_pylist()], pa.binary()
    )


def header_column(column: pa.Array) -> pa.Array | None:
    """Return headers as lists of structs with fields `key` and `value`; None if there are none."""
    if column.null_count == len(column):
        return None
    if pa.types.is_map(column.type):
        pair = pa.struct([("key", column.type.key_type), ("value", column.type.item_type)])
        column = column.cast(pa.list_(pair))
    kind = getattr(column.type, "value_type", None)
    if kind is not None and pa.types.is_null(kind) and not len(column.flatten()):
        return None
    if (
        kind is None
        or not pa.types.is_struct(kind)
        or not all(_is_binary(kind, name) for name in ("key", "value"))
    ):
        raise UsageError(
            f"the column headers is {column.type}",
            remedy="lists of structs with fields key (string) and value (binary), or a map of these",
        )
    names = column.flatten().flatten()[kind.get_field_index("key")]
    if names.null_count:
        raise UsageError("the column headers has a header without a key", remedy="leave that header out")
    return column


def _is_binary(kind: Any, name: str) -> bool:
    """Return whether a struct has one field of the name, of bytes or text."""
    if kind.get_field_index(name) < 0:
        return False
    try:
        pa.array([], kind.field(name).type).cast(pa.binary())
    except pa.ArrowNotImplementedError:  # a type that has no bytes, such as a number
        return False
    return True


def timestamp_column(column: pa.Array, now_ms: int) -> Any:
    """Return timestamps in milliseconds, an int64 array; a null becomes `now_ms`."""
    if pa.types.is_timestamp(column.type):
        if column.type.tz is None:
            raise UsageError(
                "the column timestamp has no time zone", remedy="give it one, or milliseconds as int64"
            )
        milliseconds = pa.timestamp("ms", tz=column.type.tz)
        # Seconds may overflow; smaller units lose only digits below the millisecond.
        column = _in_range(column, milliseconds, safe=column.type.unit == "s").cast(pa.int64())
    elif not pa.types.is_integer(column.type):
        raise UsageError(
            f"the column timestamp is {column.type}",
            remedy="milliseconds as int64, or timestamps with a zone",
        )
    return np.asarray(pc.fill_null(_in_range(column, pa.int64()), now_ms), np.int64)


def _in_range(column: pa.Array, kind: Any, *, safe: bool = True) -> Any:
    try:
        return column.cast(kind, safe=safe)
    except pa.ArrowInvalid as error:
        raise UsageError(
            f"the column timestamp has a time that is not a 64-bit number of milliseconds: {error}",
            remedy="milliseconds since 1970 as int64, or timestamps with a zone",
        ) from None
