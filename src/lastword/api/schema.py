"""`TopicSchema`: how the keys and values of a topic become bytes, and to which partition a key belongs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from lastword.api import partitioners
from lastword.api.serializers import Serializer, SerializerLike, contradicts, saved_serializer, serializer_of
from lastword.config import TopicConfig
from lastword.errors import InvalidSettingError


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """The serializers and the partitioner of one topic.

    Attributes:
        topic: The topic's name.
        numbers: The partitions that are in the open directories.
        partitions: How many partitions the topic has: 0 to partitions - 1.
        key: The serializer of keys.
        value: The serializer of values.
        saved: The names of the serializers that are saved with the topic; None where none is.
    """

    topic: str
    numbers: tuple[int, ...]
    partitions: int
    key: Serializer
    value: Serializer
    saved: tuple[str | None, str | None]
    partitioner: partitioners.Partitioner

    @classmethod
    def of(
        cls,
        topic: str,
        numbers: Collection[int],
        config: TopicConfig,
        *,
        key_serializer: SerializerLike | None = None,
        value_serializer: SerializerLike | None = None,
        partitioner: partitioners.PartitionerLike | None = None,
    ) -> TopicSchema:
        """Return the schema of a topic. What is not given is as saved with the topic.

        Raises:
            InvalidSettingError: A serializer's name contradicts the saved one.
        """
        saved = config.lastword_key_serializer, config.lastword_value_serializer
        _, chosen = partitioners.partitioner_of(partitioner or config.lastword_partitioner or "murmur2")
        return cls(
            topic,
            tuple(numbers),
            max(numbers, default=-1) + 1,
            _serializer("key", key_serializer, saved[0], topic),
            _serializer("value", value_serializer, saved[1], topic),
            saved,
            chosen,
        )

    def partition_of(self, key: bytes) -> int:
        """Return the partition that the partitioner gives a key."""
        return partitioners.choose(self.partitioner, key, self.partitions)


def _serializer(part: str, given: SerializerLike | None, saved: str | None, topic: str) -> Serializer:
    """Return the serializer to use. InvalidSettingError for a name that contradicts the saved one, because
    no other reader could read what it writes."""
    if given is None:
        return saved_serializer(saved)
    serializer = serializer_of(given)
    if contradicts(saved, given) and given != "bytes":
        raise InvalidSettingError(
            f"topic {topic!r}: its {part}s are {saved}, as saved with the topic, not {given}",
            remedy=f'leave {part}_serializer out, or take the bytes as they are: {part}_serializer="bytes"',
        )
    return serializer
