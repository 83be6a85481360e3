"""The schema of a topic: serializers of keys and values, and the partitioner.

`murmur2` is the partitioner of Kafka's Java client (its DefaultPartitioner for records with a key), `crc32`
that of librdkafka (`consistent`). With the same partitioner, Kafka producers and lastword write a key to the
same partition. A callable `fn(key: bytes, partitions: int) -> int` can replace both. Partitioners receive
only records with a key.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lastword.api.serializers import Serializer, SerializerLike, contradicts, saved_serializer, serializer_of
from lastword.arrow import pa
from lastword.config import TopicConfig
from lastword.errors import InvalidSettingError, UsageError, hint

if TYPE_CHECKING:
    import numpy as np


Partitioner = Callable[[bytes, int], int]
PartitionerLike = str | Partitioner

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the 32-bit hash of Kafka's Java client, as an unsigned number."""
    length = len(data)
    h = _SEED ^ length
    whole = length & ~3
    for position in range(0, whole, 4):
        k = int.from_bytes(data[position : position + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if length & 3:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def by_murmur2(key: bytes, partitions: int) -> int:
    """Return Java's `toPositive(murmur2(key)) % partitions`: the sign bit is cleared, not negated."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def by_crc32(key: bytes, partitions: int) -> int:
    """Return the partition of librdkafka's `consistent`: unsigned CRC-32 (zlib) modulo the partitions."""
    return zlib.crc32(key) % partitions


PARTITIONERS: dict[str, Partitioner] = {"murmur2": by_murmur2, "crc32": by_crc32}


def partitioner_of(given: PartitionerLike) -> tuple[str | None, Partitioner]:
    """Return (name, function); the name of a callable is None. UsageError for an unknown name."""
    if isinstance(given, str):
        partitioner = PARTITIONERS.get(given)
        if partitioner is None:
            raise UsageError(
                f"unknown partitioner {given!r}{hint(given, PARTITIONERS)}",
                remedy=f"one of {', '.join(PARTITIONERS)}, or a function of (key, partitions)",
            )
        return given, partitioner
    if callable(given):
        return None, given
    raise UsageError(
        f"a partitioner is a name or a function, not {type(given).__name__}",
        remedy=f"one of {', '.join(PARTITIONERS)}, or a function of (key, partitions)",
    )


def choose(partitioner: Partitioner, key: bytes, partitions: int) -> int:
    """Return the partition of `key`; UsageError if a callable returns a number outside 0..partitions-1."""
    if partitions == 1:
        return 0
    chosen = partitioner(key, partitions)
    if not isinstance(chosen, int) or not 0 <= chosen < partitions:
        raise UsageError(
            f"the partitioner returned {chosen!r} for {partitions} partitions",
            remedy=f"return an int from 0 to {partitions - 1}",
        )
    return chosen


def murmur2_partitions(keys: pa.Array, partitions: int) -> np.ndarray:
    """Return `by_murmur2` of each key of an Arrow binary or string array, as int64; -1 for a null."""
    import numpy as np

    from lastword import kernels
    from lastword.kernels.hashing import murmur2_partitions as loop

    chosen = np.empty(len(keys), np.int64)
    _, edges, data = keys.buffers()
    if len(keys) == 0 or edges is None:
        return chosen
    content = np.frombuffer(data if data is not None and data.size else b"\0", np.uint8)
    ends = np.frombuffer(edges, np.int32)[keys.offset : keys.offset + len(keys) + 1]
    content.flags.writeable = ends.flags.writeable = False  # one kind of array: one compiled kernel
    if loop(content, ends, partitions, chosen) != kernels.OK:
        raise ValueError("the array's offsets are outside its data")
    if keys.null_count:
        chosen[np.asarray(keys.is_null())] = -1
    return chosen


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """The serializers and the partitioner of one topic.

    Attributes:
        topic: The topic's name.
        numbers: The partitions that are in the open directories.
        partitions: Number of partitions; they are numbered 0 to partitions - 1.
        key: The serializer of keys.
        value: The serializer of values.
        saved: The saved names of the serializers of keys and values; None if there is no name.
        given: What the caller named instead of the saved serializers and partitioner.
    """

    topic: str
    numbers: tuple[int, ...]
    partitions: int
    key: Serializer
    value: Serializer
    saved: tuple[str | None, str | None]
    partitioner: Partitioner
    given: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        topic: str,
        numbers: Collection[int],
        config: TopicConfig,
        *,
        key_serializer: SerializerLike | None = None,
        value_serializer: SerializerLike | None = None,
        partitioner: PartitionerLike | None = None,
    ) -> TopicSchema:
        """Return the schema of a topic. For arguments of None, the saved serializer or partitioner is used.

        Raises:
            InvalidSettingError: A serializer's name contradicts the saved name.
        """
        saved = config.lastword_key_serializer, config.lastword_value_serializer
        _, chosen = partitioner_of(partitioner or config.lastword_partitioner or "murmur2")
        return cls(
            topic,
            tuple(numbers),
            max(numbers, default=-1) + 1,
            _serializer("key", key_serializer, saved[0], topic),
            _serializer("value", value_serializer, saved[1], topic),
            saved,
            chosen,
            {
                "key_serializer": key_serializer,
                "value_serializer": value_serializer,
                "partitioner": partitioner,
            },
        )

    def with_settings(self, numbers: Collection[int], config: TopicConfig) -> TopicSchema:
        """Return the schema with other partitions and settings.

        A topic of lastword has saved serializers until it is deleted: without them the schema keeps its own.

        Raises:
            InvalidSettingError: A serializer that the caller named contradicts the saved name.
        """
        if self.saved != (None, None) and config.lastword_key_serializer is None:
            return replace(self, numbers=tuple(numbers), partitions=max(numbers, default=-1) + 1)
        return TopicSchema.of(self.topic, numbers, config, **self.given)

    def partition_of(self, key: bytes) -> int:
        """Return the partition of a key."""
        return choose(self.partitioner, key, self.partitions)


def _serializer(part: str, given: SerializerLike | None, saved: str | None, topic: str) -> Serializer:
    """Return the serializer to use.

    Raises:
        InvalidSettingError: The name contradicts the saved name; no other reader could decode the records.
    """
    if given is None or given == saved:
        return saved_serializer(saved)
    serializer = serializer_of(given)
    if contradicts(saved, given) and given != "bytes":
        raise InvalidSettingError(
            f"topic {topic!r}: its {part}s are {saved}, as saved with the topic, not {given}",
            remedy=f'leave {part}_serializer out, or take the bytes as they are: {part}_serializer="bytes"',
        )
    return serializer
