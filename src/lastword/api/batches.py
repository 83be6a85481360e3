"""Pack records into batches: check them, assign a partition, encode them.

A few records are packed in plain Python, many by the kernels. A call is processed in groups of at most 16
MiB. A group is checked completely, sizes included, before its first byte is written.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain, count
from typing import TYPE_CHECKING, Any, NamedTuple

from lastword.api.record import Record, check_records, header_pairs
from lastword.api.schema import Partitioner, TopicSchema, by_murmur2, choose, murmur2_partitions
from lastword.arrow import has_arrow, pa
from lastword.config import TopicConfig
from lastword.errors import KeyRequiredError, RecordTooLargeError, UsageError
from lastword.parse import as_int, to_ms
from lastword.records.batch import BatchBuilder
from lastword.records.record import Header
from lastword.units import exact_bytes, format_bytes
from lastword.values import partitions_text
from lastword.wire import INT32_MAX

if TYPE_CHECKING:
    from lastword.api.producers import ProducerCall
    from lastword.api.serializers import Serializer


class PartitionAssigner:
    """Assigns records of one topic to partitions: as given, by the key, or in turn.

    Attributes:
        turns: Counter for records without a key.
    """

    def __init__(self, topic: str, partitions: int, partitioner: Partitioner) -> None:
        self.topic = topic
        self.partitions = partitions
        self.turns = count()
        self._partitioner = partitioner

    def of(self, key: bytes | None, given: int | None, turn: int | None = None) -> int:
        """Return the partition of a record. `turn` replaces the counter for a record without a key."""
        if given is not None:
            return self.checked(given)
        if key is None:
            return (next(self.turns) if turn is None else turn) % self.partitions
        return choose(self._partitioner, key, self.partitions)

    def checked(self, given: int) -> int:
        """Return the number; UsageError if the topic has no such partition."""
        number = given if type(given) is int else as_int(given)
        if number is None or not 0 <= number < self.partitions:
            raise UsageError(
                f"{self.topic} has no partition {given!r}", remedy=partitions_text(range(self.partitions))
            )
        return number

    def of_columns(self, keys: Any, given: Any, partition: int | None, call: ProducerCall | None) -> Any:
        """Return the int64 partition of each record.

        Args:
            keys: The keys, a binary column.
            given: A column of partitions, or None. A record without a number is assigned as if there were
                no column.
            partition: One partition for all records, or None.
            call: The call of a named producer, or None.
        """
        import numpy as np

        size = len(keys)
        if partition is not None:
            return np.full(size, self.checked(partition), np.int64)
        if given is not None and given.null_count < size:
            has_number = np.asarray(given.is_valid())
            numbers = self._checked_column(given.drop_null())
            if len(numbers) == size:
                return numbers
            chosen = self.of_columns(keys, None, None, call)
            chosen[has_number] = numbers
            return chosen
        if self.partitions == 1:
            return np.zeros(size, np.int64)
        if self._partitioner is by_murmur2:
            chosen = murmur2_partitions(keys, self.partitions)
        else:
            by_key = (
                -1 if key is None else choose(self._partitioner, key, self.partitions)
                for key in keys.to_pylist()
            )
            chosen = np.fromiter(by_key, np.int64, size)
        keyless = np.flatnonzero(chosen < 0)
        if keyless.size:
            # The partitions take turns by blocks of about one batch.
            blocks = next(self.turns) + np.arange(keyless.size) // 512
            if call is not None:
                blocks = call.turn_at(call.seen + keyless)
            chosen[keyless] = blocks % self.partitions
        return chosen

    def _checked_column(self, given: Any) -> Any:
        """Return a column of partitions as int64; UsageError if the topic has not all of them."""
        import numpy as np

        try:
            numbers = np.asarray(given.cast(pa.int64()), np.int64)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # a value, or a type, that is no number
            raise UsageError(
                f"the column partition is {given.type}", remedy="whole numbers, or null: by the key"
            ) from None
        for number in np.unique(numbers).tolist():
            self.checked(number)
        return numbers


PairType = type[bytes] | type[str]
PAIR_TYPES: dict[str | None, PairType] = {"bytes": bytes, "str": str}
"""Serializers whose encoding equals Arrow's."""
WEIGHT_BYTES = 32
"""Largest size of a record without its key and value, in bytes."""


class PairRun(NamedTuple):
    """Keys and values in order. `odd` holds the item that ended the run: it is not such a pair."""

    keys: list[Any]
    values: list[Any]
    odd: tuple[Any, ...]


def take_pairs(
    records: Iterator[Any], key_kind: PairType, value_kind: PairType, most_bytes: int, most: int
) -> PairRun:
    """Take pairs whose key and value are None or exactly of these types.

    Stops after `most` pairs, or when they weigh `most_bytes`.
    """
    keys: list[Any] = []
    values: list[Any] = []
    add_key, add_value = keys.append, values.append
    # A character of text takes up to 4 bytes.
    left = most_bytes if key_kind is value_kind is bytes else most_bytes // 4
    for given in records:
        if type(given) is not tuple or len(given) != 2:
            return PairRun(keys, values, (given,))
        key, value = given
        if type(key) is key_kind:
            left -= len(key)
        elif key is not None:
            return PairRun(keys, values, (given,))
        if type(value) is value_kind:
            left -= len(value)
        elif value is not None:
            return PairRun(keys, values, (given,))
        add_key(key)
        add_value(value)
        left -= WEIGHT_BYTES
        if left <= 0 or len(keys) >= most:
            break
    return PairRun(keys, values, ())


def pair_column(rows: list[Any], kind: PairType) -> pa.Array:
    """Return keys or values as one binary column. UnicodeError for text that UTF-8 cannot encode."""
    if kind is bytes:
        return pa.array(rows, pa.binary())
    return pa.array(rows, pa.string()).cast(pa.binary())


BATCH_BYTES = 16 << 10  # as Kafka's producers: the size of a full batch; a larger record gets its own batch
GROUP_BYTES = 16 << 20
GROUP_RECORDS = 100_000
KERNEL_RECORDS = 20_000  # from here on loading the kernels costs less than packing in Python
KERNEL_RECORDS_LOADED = 500


@dataclass(slots=True)
class Rows:
    """Records of one partition, before they are packed."""

    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)
    headers: list[tuple[Header, ...]] = field(default_factory=list)
    has_headers: bool = False

    def add(
        self, key: bytes | None, value: bytes | None, timestamp: int, headers: tuple[Header, ...]
    ) -> None:
        """Add one record."""
        self.keys.append(key)
        self.values.append(value)
        self.timestamps.append(timestamp)
        self.headers.append(headers)
        self.has_headers |= bool(headers)


@dataclass(slots=True)
class PackedGroup:
    """Encoded batches by partition, the keys and values of their records, and the number of all records.

    Records that were left out count.
    """

    batches: dict[int, list[Any]]
    columns: dict[int, tuple[Any, Any]]
    records: int


class Packer:
    """Packs the records of one topic into batches.

    Attributes:
        raw_key, raw_value: The type whose objects are stored as they are: `bytes`, or a type without objects.
        is_plain: Batches are not compressed.
        has_one_partition: Every record with a key belongs to partition 0.
        limit: Largest size of a batch.
        compacts: A record needs a key.
    """

    def __init__(self, schema: TopicSchema, config: TopicConfig) -> None:
        self.topic = schema.topic
        self.config = config
        self.assigner = PartitionAssigner(schema.topic, max(1, schema.partitions), schema.partitioner)
        self._key, self._value = schema.key, schema.value
        self.raw_key, self.raw_value = _raw(schema.key), _raw(schema.value)
        self._codec = config.codec
        self.is_plain = self._codec == 0
        self.has_one_partition = self.assigner.partitions == 1
        self.limit = min(config.max_message_bytes, config.segment_bytes)
        self.compacts = config.compacts

    # -------------------------------------------------------------- one record

    def encode(self, key: Any, value: Any) -> tuple[bytes | None, bytes | None]:
        """Encode a key and a value; None stays None."""
        return (
            None if key is None else self._key.encode(key, "key"),
            None if value is None else self._value.encode(value, "value"),
        )

    def one(
        self,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: tuple[Header, ...],
        partition: int,
    ) -> bytes:
        """Return the encoded batch of a single record."""
        self._check(key, partition)
        builder = BatchBuilder(self._codec, level=self.config.compression_level)
        builder.append(timestamp, key, value, headers)
        data = builder.build()
        self._check_size(data)
        return data

    def check_fits(self, key: bytes, value: bytes | None, headers: tuple[Header, ...] = ()) -> None:
        """Raise RecordTooLargeError if the batch of a single record would be too large."""
        # A batch adds less than 512 bytes, and compression not as much again: most records are not built.
        size_bytes = len(key) + len(value or b"")
        if headers:
            size_bytes += sum(len(n) * 4 + len(v or b"") for n, v in headers)
        if 2 * size_bytes + 512 > self.limit:
            self.one(key, value, 0, headers, 0)

    def timestamp_of(self, given: int | datetime | None, now_ms: int) -> int:
        """Return a timestamp in milliseconds; `now_ms` if none was given.

        Raises:
            UsageError: A naive datetime, or a timestamp outside the bounds of the topic.
        """
        if given is None:
            return now_ms
        timestamp = to_ms(given)
        if timestamp < 0:
            raise UsageError(f"{given!r} is before 1970", remedy="milliseconds since 1970, or None for now")
        config = self.config
        if config.message_timestamp_type == "CreateTime" and not (
            -config.message_timestamp_before_max_ms
            <= timestamp - now_ms
            <= config.message_timestamp_after_max_ms
        ):
            raise UsageError(
                f"{self.topic}: a timestamp of {timestamp} is too far from now",
                remedy="see message.timestamp.before.max.ms and message.timestamp.after.max.ms",
            )
        return timestamp

    def _check(self, key: bytes | None, partition: int) -> None:
        if key is None and self.compacts:
            raise KeyRequiredError.of(f"{self.topic}-{partition}")

    def _check_size(self, batch: Any) -> None:
        if len(batch) > self.limit:
            setting = "max.message.bytes" if self.limit == self.config.max_message_bytes else "segment.bytes"
            raise RecordTooLargeError(
                f"{self.topic}: a record takes {_both(len(batch))}, {setting} is {_both(self.limit)}",
                remedy=f"`lastword config DIR {self.topic} --set {setting}={_enough(len(batch))}`, "
                f"in Python logs.set_config({self.topic!r}, "
                f"{setting.replace('.', '_')}={_enough(len(batch))!r})",
            )

    # -------------------------------------------------------------- many records

    def groups(
        self, records: Iterable[Any], now_ms: int, partition: int | None, call: ProducerCall | None = None
    ) -> Iterator[PackedGroup]:
        """Yield groups of pairs, `Record`s, or the items of a mapping.

        Args:
            records: The records.
            now_ms: Timestamp of records without one.
            partition: One partition for all records, or None.
            call: The call of a named producer. Its records that are in the log already are left out, but
                counted.
        """
        if isinstance(records, Mapping):
            records = records.items()
        check_records(records)
        kinds = PAIR_TYPES.get(self._key.name), PAIR_TYPES.get(self._value.name)
        if kinds[0] is None or kinds[1] is None:
            return self._groups(iter(records), now_ms, partition, call)
        return self._pair_groups(iter(records), now_ms, partition, kinds[0], kinds[1], call)

    def _pair_groups(
        self,
        records: Iterator[Any],
        now_ms: int,
        partition: int | None,
        key_kind: PairType,
        value_kind: PairType,
        call: ProducerCall | None,
    ) -> Iterator[PackedGroup]:
        """Yield groups of pairs of bytes or text, as columns.

        A small group, or a group with another kind of item, is processed record by record.
        """
        while True:
            taken = take_pairs(records, key_kind, value_kind, GROUP_BYTES, GROUP_RECORDS)
            number = len(taken.keys)
            if not number and not taken.odd:
                return
            if not taken.odd and number >= _few():
                try:
                    columns = pair_column(taken.keys, key_kind), pair_column(taken.values, value_kind)
                except UnicodeError:
                    pass  # encoding record by record raises the error of the serializer
                else:
                    yield self._of_columns(*columns, _repeated(now_ms, number), None, None, partition, call)
                    continue
            each = zip(taken.keys, taken.values, strict=True)
            if taken.odd:
                yield from self._groups(chain(each, taken.odd, records), now_ms, partition, call)
                return
            yield from self._groups(each, now_ms, partition, call)

    def _groups(
        self, records: Iterator[Any], now_ms: int, partition: int | None, call: ProducerCall | None
    ) -> Iterator[PackedGroup]:
        rows: dict[int, Rows] = {}
        size = number = 0
        sticky, sticky_left = 0, 0
        for given in records:
            key, value, timestamp, headers = self._parts(given, now_ms)
            weight = len(key or b"") + len(value or b"") + WEIGHT_BYTES
            if call is not None:
                turn = call.turn(1)
                chosen = self.assigner.of(key, partition, turn)
            elif key is None and partition is None:
                # Fill a batch of one partition, then continue with the next partition.
                if sticky_left <= 0:
                    sticky, sticky_left = next(self.assigner.turns) % self.assigner.partitions, BATCH_BYTES
                chosen = sticky
                sticky_left -= weight
            else:
                chosen = self.assigner.of(key, partition)
            self._check(key, chosen)
            number += 1
            if call is None or not call.skips(chosen, key, value):
                rows.setdefault(chosen, Rows()).add(key, value, timestamp, headers)
                size += weight
            if size >= GROUP_BYTES or number >= GROUP_RECORDS:
                yield self._group(rows, number)
                rows, size, number = {}, 0, 0
        if number:
            yield self._group(rows, number)

    def _parts(self, given: Any, now_ms: int) -> tuple[bytes | None, bytes | None, int, tuple[Header, ...]]:
        if isinstance(given, Record):
            key = self._key.encode(given.key, "key") if given.has_key else None
            value = None if given.is_tombstone else self._value.encode(given.value, "value")
            timestamp = now_ms if given.timestamp < 0 else self.timestamp_of(given.timestamp, now_ms)
            return key, value, timestamp, header_pairs(given.headers) if given.headers else ()
        if not isinstance(given, (tuple, list)) or len(given) != 2:
            raise UsageError(
                f"a record is a pair (key, value) or a Record, not {type(given).__name__}",
                remedy="extend([(key, value), ...])",
            )
        key, value = self.encode(given[0], given[1])
        return key, value, now_ms, ()

    def _group(self, rows: dict[int, Rows], number: int) -> PackedGroup:
        pack: Callable[[Rows], list[Any]] = self.built if number < _few() else self._packed
        batches = {partition: pack(part) for partition, part in rows.items()}
        columns = {partition: (part.keys, part.values) for partition, part in rows.items()}
        return self._checked(PackedGroup(batches, columns, number))

    def _checked(self, group: PackedGroup) -> PackedGroup:
        for batches in group.batches.values():
            for batch in batches:
                self._check_size(batch)
        return group

    def check_new(self, key: bytes | None, value: bytes | None, headers: tuple[Header, ...]) -> None:
        """Raise KeyRequiredError or RecordTooLargeError for a record that cannot be appended."""
        if key is None:
            self._check(key, 0)
        self.check_fits(key or b"", value, headers)

    def built(
        self, rows: Rows, most_bytes: int = BATCH_BYTES, producer: tuple[int, int] | None = None
    ) -> list[bytes]:
        """Return batches of at most `most_bytes`, built in plain Python.

        `producer`: the id and the epoch of the producer of a transaction, whose first batches these are.
        """

        def builder_at(sequence: int) -> BatchBuilder:
            level = self.config.compression_level
            if producer is None:
                return BatchBuilder(self._codec, level=level)
            return BatchBuilder(
                self._codec,
                level=level,
                producer_id=producer[0],
                producer_epoch=producer[1],
                base_sequence=sequence,
                transactional=True,
            )

        batches, sequence = [], 0
        builder = builder_at(0)
        limit = min(most_bytes, self.limit)
        for key, value, timestamp, headers in zip(
            rows.keys, rows.values, rows.timestamps, rows.headers, strict=True
        ):
            # Varints and attributes of a record take at most 32 bytes.
            weight = len(key or b"") + len(value or b"") + 32
            if headers:
                weight += sum(len(n) * 4 + len(v or b"") + 10 for n, v in headers)
            if len(builder) and builder.size_estimate + weight > limit:
                batches.append(builder.build())
                sequence += len(builder)
                builder = builder_at(sequence)
            builder.append(timestamp, key, value, headers)
        batches.append(builder.build())
        return batches

    def _packed(self, rows: Rows) -> list[Any]:
        import numpy as np

        headers = None
        if rows.has_headers:
            from lastword.api.arrow import HEADERS

            headers = pa.array(
                [[{"key": name, "value": value} for name, value in pairs] for pairs in rows.headers], HEADERS
            )
        return self._pack(
            pa.array(rows.keys, pa.binary()),
            pa.array(rows.values, pa.binary()),
            np.array(rows.timestamps, np.int64),
            headers,
        )

    def _pack(self, keys: Any, values: Any, timestamps: Any, headers: Any) -> list[Any]:
        from lastword.records.pack import pack_arrow

        return list(
            pack_arrow(
                keys,
                values,
                timestamps,
                headers,
                codec=self._codec,
                level=self.config.compression_level,
                batch_bytes=min(BATCH_BYTES, self.limit),
            )
        )

    # -------------------------------------------------------------- Arrow

    def arrow_groups(
        self, source: Any, now_ms: int, partition: int | None, call: ProducerCall | None = None
    ) -> Iterator[PackedGroup]:
        """Yield groups of an Arrow stream. The arguments are those of `groups`."""
        from lastword.api import arrow

        for batch in arrow.read_stream(source):
            for start in range(0, batch.num_rows, GROUP_RECORDS):
                part = batch.slice(start, GROUP_RECORDS)
                yield self._arrow_group(part, now_ms, partition, call)

    def _arrow_group(
        self, batch: Any, now_ms: int, partition: int | None, call: ProducerCall | None
    ) -> PackedGroup:
        from lastword.api import arrow

        keys = arrow.binary_column(batch.column("key"), self._key, "key")
        values = arrow.binary_column(batch.column("value"), self._value, "value")
        names = batch.schema.names
        if "timestamp" in names:
            timestamps = arrow.timestamp_column(batch.column("timestamp"), now_ms)
            for bound in (int(timestamps.min()), int(timestamps.max())):
                self.timestamp_of(bound, now_ms)
        else:
            timestamps = _repeated(now_ms, batch.num_rows)
        headers = arrow.header_column(batch.column("headers")) if "headers" in names else None
        given = batch.column("partition") if "partition" in names and partition is None else None
        return self._of_columns(keys, values, timestamps, headers, given, partition, call)

    def _of_columns(
        self,
        keys: Any,
        values: Any,
        timestamps: Any,
        headers: Any,
        given: Any,
        partition: int | None,
        call: ProducerCall | None,
    ) -> PackedGroup:
        """Pack Arrow columns. `given`: a column of partitions, or None."""
        import numpy as np

        chosen = self.assigner.of_columns(keys, given, partition, call)
        if call is not None:
            call.turn(len(keys))
        if keys.null_count and self.compacts:
            raise KeyRequiredError.of(f"{self.topic}-{int(chosen[np.asarray(keys.is_null())][0])}")
        batches, columns = {}, {}
        for number in np.unique(chosen).tolist():
            rows = np.flatnonzero(chosen == number)
            if call is not None:
                rows = rows[_skipped(call, number, keys, values, rows) :]
                if not rows.size:
                    continue
            whole = rows.size == len(keys)
            columns[number] = (keys, values) if whole else (keys.take(rows), values.take(rows))
            batches[number] = self._pack(
                *columns[number],
                timestamps[rows],
                None if headers is None else headers if whole else headers.take(rows),
            )
        return self._checked(PackedGroup(batches, columns, len(keys)))


class _Nothing:
    """The type of no object."""


def _raw(serializer: Serializer) -> type:
    return bytes if serializer.name == "bytes" else _Nothing


def _few() -> int:
    """Return the number of records from which the kernels pack faster than Python, from columns of Arrow."""
    if not has_arrow():
        return sys.maxsize
    return KERNEL_RECORDS_LOADED if "lastword.kernels" in sys.modules else KERNEL_RECORDS


def _repeated(now_ms: int, size: int) -> Any:
    import numpy as np

    return np.full(size, now_ms, np.int64)


def _skipped(call: ProducerCall, partition: int, keys: Any, values: Any, rows: Any) -> int:
    """Return how many of these rows, from the first on, are in the log already."""
    first = rows[: call.left_over(partition)]
    for done, (key, value) in enumerate(
        zip(keys.take(first).to_pylist(), values.take(first).to_pylist(), strict=True)
    ):
        if not call.skips(partition, key, value):
            return done
    return len(first)


def _both(size_bytes: int) -> str:
    """Format a size exactly and for reading."""
    return f"{size_bytes} bytes" + (f" ({format_bytes(size_bytes)})" if size_bytes >= 1024 else "")


def _enough(size_bytes: int) -> str:
    """Return the next power of two, as a setting is written."""
    return exact_bytes(min(1 << (size_bytes - 1).bit_length(), INT32_MAX))
