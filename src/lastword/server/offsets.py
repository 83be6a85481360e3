"""Committed offsets: OffsetCommit, OffsetFetch and OffsetDelete, for groups of either protocol.

A committed offset is one record of `__consumer_offsets`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lastword.errors import LastwordError
from lastword.protocol import Request, codes, decode_stored, encode_stored
from lastword.protocol.messages import (
    OffsetCommitKey,
    OffsetCommitResponse,
    OffsetCommitValue,
    OffsetDeleteResponse,
    OffsetFetchResponse,
)
from lastword.protocol.schemas import ZERO_UUID, Message
from lastword.server.topics import Refused, ServedTopic

if TYPE_CHECKING:
    from lastword.server.groups import Groups

MOST_METADATA = 4096
OFFSET_VERSION, EXPIRING_VERSION = 3, 1
"""Versions of the values that are written; every Kafka since 2.3 reads both. Only version 1 has an expiry."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed offset. `expires_ms`: the time that an old client gave; -1: the retention decides."""

    offset: int
    leader_epoch: int
    metadata: str
    topic_id: bytes = ZERO_UUID
    committed_ms: int = -1
    expires_ms: int = -1


NOT_COMMITTED = Committed(-1, -1, "")


@dataclass(eq=False)
class Group:
    """A group with its committed offsets. Each protocol has a class of its own."""

    id: str
    offsets: dict[tuple[str, int], Committed] = field(default_factory=dict)

    kind = ""
    """The protocol of the group, as ListGroups names it."""
    state = ""
    protocol_type: str | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether the group has no member."""
        raise NotImplementedError

    def subscribed(self) -> set[str] | None:
        """Return the topics that the members subscribe to; None if they are not known."""
        raise NotImplementedError

    def retained_from(self, committed: Committed) -> int | None:
        """Return the time from which the retention of an offset counts; None: it does not expire now."""
        raise NotImplementedError

    def tombstones(self) -> list[tuple[bytes, bytes | None]]:
        """Return the records that delete the group without its offsets."""
        raise NotImplementedError


class Offsets:
    """The handlers of the APIs for committed offsets."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._broker = groups.broker

    def handlers(self) -> dict[str, Callable[[Request, Any], Any]]:
        """Return the handlers by the name of the API."""
        return {
            "OffsetCommit": self._commit,
            "OffsetFetch": self._fetch,
            "OffsetDelete": self._delete,
        }

    def take(self, key: bytes, value: bytes) -> None:
        """Take a committed offset that was read from the topic."""
        name = "OffsetCommitKey" if key[1] else "LegacyOffsetCommitKey"
        of, stored = decode_stored(name, key), decode_stored("OffsetCommitValue", value)
        self._groups.get_or_simple(of.group).offsets[of.topic, of.partition] = Committed(
            stored.offset,
            stored.leader_epoch,
            stored.metadata,
            stored.topic_id,
            stored.commit_timestamp,
            stored.expire_timestamp,
        )

    # -------------------------------------------------------------- commit

    def _commit(self, request: Request, connection: Any) -> Any:
        body, version = request.body, request.version
        group: Group | None = None
        code = 0
        is_stale: Callable[[bytes, int], bool] | None = None
        try:
            group = self._groups.get(body.group_id)
            if group is None and body.generation_id_or_member_epoch >= 0:
                raise Refused(codes.GROUP_ID_NOT_FOUND if version >= 9 else codes.ILLEGAL_GENERATION, "")
            if group is not None:
                is_stale = self._groups.check_commit(group, body, version)
        except Refused as refused:
            code = refused.code
        now_ms = self._broker.clock.now_ms()
        expires_ms = now_ms + body.retention_time_ms if body.retention_time_ms >= 0 else -1
        changes: dict[tuple[str, int], Committed] = {}
        topics = []
        for topic in body.topics:
            served = self._broker.topics.find(topic.name, topic.topic_id)
            partitions = []
            for given in topic.partitions:
                committed = Committed(
                    given.committed_offset,
                    given.committed_leader_epoch,
                    given.committed_metadata or "",
                    ZERO_UUID if served is None else served.id,
                    now_ms,
                    expires_ms,
                )
                error = _unknown(served, given.partition_index, by_id=version >= 10) or code
                if not error and len(committed.metadata) > MOST_METADATA:
                    error = codes.OFFSET_METADATA_TOO_LARGE
                if not error and is_stale is not None and is_stale(committed.topic_id, given.partition_index):
                    error = codes.STALE_MEMBER_EPOCH
                if not error and served is not None:
                    changes[served.name, given.partition_index] = committed
                partitions.append(
                    OffsetCommitResponse.OffsetCommitResponsePartition(
                        partition_index=given.partition_index, error_code=error
                    )
                )
            topics.append(
                OffsetCommitResponse.OffsetCommitResponseTopic(
                    name=topic.name, topic_id=topic.topic_id, partitions=partitions
                )
            )
        answer = OffsetCommitResponse(topics=topics)
        if not changes:
            return answer
        try:
            records = [(offset_key(body.group_id, *at), offset_value(new)) for at, new in changes.items()]
            stored = self._groups.store(body.group_id, records)
        except LastwordError as error:
            for described in topics:
                for result in described.partitions:
                    result.error_code = result.error_code or error.kafka_code
            return answer
        if group is None:
            group = self._groups.get_or_simple(body.group_id)
        group.offsets |= changes
        return self._groups.answer_after(stored, answer)

    # -------------------------------------------------------------- fetch

    def _fetch(self, request: Request, connection: Any) -> Message:
        body = request.body
        if request.version < 8:
            return OffsetFetchResponse(
                topics=self._fetched(
                    body.group_id,
                    body.topics,
                    OffsetFetchResponse.OffsetFetchResponseTopic,
                    OffsetFetchResponse.OffsetFetchResponsePartition,
                )
            )
        groups = []
        for asked in body.groups:
            described = OffsetFetchResponse.OffsetFetchResponseGroup(group_id=asked.group_id)
            groups.append(described)
            try:
                if request.version >= 9:
                    self._groups.check_fetch(asked)
                described.topics = self._fetched(
                    asked.group_id,
                    asked.topics,
                    OffsetFetchResponse.OffsetFetchResponseTopics,
                    OffsetFetchResponse.OffsetFetchResponsePartitions,
                )
            except Refused as refused:
                described.error_code = refused.code
        return OffsetFetchResponse(groups=groups)

    def _fetched(self, group_id: str, asked: Any, topic_kind: Any, partition_kind: Any) -> list[Any]:
        group = self._groups.get(group_id)
        offsets = {} if group is None else group.offsets
        wanted: list[tuple[str, bytes, list[int], int]] = []
        if asked is None:
            by_topic: dict[str, list[int]] = {}
            for name, number in offsets:
                by_topic.setdefault(name, []).append(number)
            for name, numbers in by_topic.items():
                served = self._broker.topics.get(name)
                wanted.append((name, ZERO_UUID if served is None else served.id, numbers, 0))
        else:
            for topic in asked:
                topic_id = getattr(topic, "topic_id", ZERO_UUID)
                served = self._broker.topics.find(topic.name, topic_id)
                name = topic.name or ("" if served is None else served.name)
                code = codes.UNKNOWN_TOPIC_ID if not name else 0
                wanted.append((name, topic_id, topic.partition_indexes, code))
        topics = []
        for name, topic_id, numbers, code in wanted:
            partitions = []
            for number in numbers:
                committed = offsets.get((name, number), NOT_COMMITTED)
                if ZERO_UUID not in (topic_id, committed.topic_id) and topic_id != committed.topic_id:
                    committed = NOT_COMMITTED  # of a topic of this name that was deleted
                partitions.append(
                    partition_kind(
                        partition_index=number,
                        committed_offset=committed.offset,
                        committed_leader_epoch=committed.leader_epoch,
                        metadata=committed.metadata,
                        error_code=code,
                    )
                )
            described = topic_kind(name=name, partitions=partitions)
            if hasattr(described, "topic_id"):
                described.topic_id = topic_id
            topics.append(described)
        return topics

    # -------------------------------------------------------------- delete

    def _delete(self, request: Request, connection: Any) -> Any:
        body = request.body
        group = self._groups.get(body.group_id)
        if group is None:
            return OffsetDeleteResponse(
                error_code=codes.GROUP_ID_NOT_FOUND if body.group_id else codes.INVALID_GROUP_ID
            )
        subscribed, are_consumers = group.subscribed(), group.protocol_type == "consumer"
        if not group.is_empty and not are_consumers:
            return OffsetDeleteResponse(error_code=codes.NON_EMPTY_GROUP)
        topics, gone = [], []
        for topic in body.topics:
            partitions: list[Any] = []
            topics.append(
                OffsetDeleteResponse.OffsetDeleteResponseTopic(name=topic.name, partitions=partitions)
            )
            for asked in topic.partitions:
                result = OffsetDeleteResponse.OffsetDeleteResponsePartition(
                    partition_index=asked.partition_index
                )
                partitions.append(result)
                if are_consumers and (subscribed is None or topic.name in subscribed):
                    result.error_code = codes.GROUP_SUBSCRIBED_TO_TOPIC
                elif (topic.name, asked.partition_index) in group.offsets:
                    gone.append((topic.name, asked.partition_index))
        stored = self._groups.store(group.id, [(offset_key(group.id, *at), None) for at in gone])
        for at in gone:
            del group.offsets[at]
        return self._groups.answer_after(stored, OffsetDeleteResponse(topics=topics))


def _unknown(served: ServedTopic | None, partition: int, *, by_id: bool) -> int:
    """Return the error code for a partition that does not exist, else 0."""
    if served is None:
        return codes.UNKNOWN_TOPIC_ID if by_id else codes.UNKNOWN_TOPIC_OR_PARTITION
    return 0 if partition in served.directories else codes.UNKNOWN_TOPIC_OR_PARTITION


def offset_key(group: str, topic: str, partition: int) -> bytes:
    """Return the key of the record of a committed offset."""
    return encode_stored(OffsetCommitKey(group=group, topic=topic, partition=partition))


def offset_value(committed: Committed) -> bytes:
    """Return the value of the record of a committed offset."""
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.committed_ms,
        expire_timestamp=committed.expires_ms,
    )
    return encode_stored(value, OFFSET_VERSION if committed.expires_ms < 0 else EXPIRING_VERSION)
