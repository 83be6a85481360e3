"""Committed offsets: OffsetCommit, OffsetFetch and OffsetDelete, for groups of either protocol.

A committed offset is one record of `__consumer_offsets`. It is deleted with its topic, or when it expires: no
member reads its topic, and `offsets.retention.minutes` have passed since a classic group became empty, else
since the commit.

An offset that is committed in a transaction (TxnOffsetCommit) is unstable until the marker of the transaction
follows: then it is taken or dropped.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from lastword.protocol import Request, codes, encode_stored, messages
from lastword.protocol.refusals import answer_with_rows
from lastword.protocol.schemas import ZERO_UUID, Message
from lastword.server.classic_groups import ClassicGroup, ClassicGroups
from lastword.server.consumer_group_state import ConsumerGroup
from lastword.server.consumer_groups import IsStale, check_commit, check_fetch
from lastword.server.coordinator import StoredRecord
from lastword.server.group_store import NOT_COMMITTED, Committed, Group, GroupStore, OtherGroup
from lastword.server.topics import Refused, Refusing, ServedTopic
from lastword.wire import INT64_MAX

if TYPE_CHECKING:
    from lastword.server.context import Handlers, ServerContext
    from lastword.server.group_leases import GroupLeases
    from lastword.server.security import Peer

MOST_METADATA = 4096
"""Most characters of a note, as Java counts them."""
OFFSET_VERSION, EXPIRING_VERSION = 4, 1
"""Versions of the values that are written, as by Kafka 4. Only version 1 has an expiry."""

FIRST_VERSIONS = {"OffsetCommit": (10, 9), "TxnOffsetCommit": (6, 6)}
"""The first versions that name topics by their ids, and that have epochs of members."""

Position = tuple[str, str, int]
"""Group, topic, partition."""
Changes = dict[tuple[str, int], Committed]
"""Committed offsets by topic and partition."""


class Offsets:
    """The handlers of the APIs for committed offsets."""

    def __init__(
        self, context: ServerContext, store: GroupStore, classic: ClassicGroups, leases: GroupLeases
    ) -> None:
        self._context = context
        self._store = store
        self._classic = classic
        self._leases = leases
        self._undecided: dict[Position, dict[int, Committed | None]] = {}
        """Offsets of open transactions: the offset of each producer id, in the order of their records.

        None: a later record supersedes the offset. It stays unstable until its transaction ends."""
        self._changed: dict[int, set[Position]] = {}
        """The keys that each open transaction has in `_undecided`, by producer id."""

    def handlers(self) -> Handlers:
        """Return the handlers by the name of the API."""
        return {
            "OffsetCommit": self._commit,
            "OffsetFetch": self._fetch,
            "OffsetDelete": self._delete,
        }

    def clear(self) -> None:
        """Drop the offsets of open transactions."""
        self._undecided.clear()
        self._changed.clear()

    def load(self, record: StoredRecord) -> None:
        """Load a committed offset that was read from the topic."""
        of, stored, committed = record.key, record.value, None
        if stored is not None:
            committed = Committed(
                stored.offset,
                stored.leader_epoch,
                stored.metadata,
                stored.topic_id,
                stored.commit_timestamp,
                stored.expire_timestamp,
            )
        if record.producer_id >= 0:
            self._group(of.group)
            self._add_undecided(record.producer_id, (of.group, of.topic, of.partition), committed)
        elif committed is not None:
            self._group(of.group).offsets[of.topic, of.partition] = committed

    def _group(self, group_id: str) -> Group:
        """Return a group; a new one is classic and has no members."""
        return self._store.find(group_id) or self._store.add(ClassicGroup(group_id))

    # -------------------------------------------------------------- commit

    def _commit(self, request: Request[messages.OffsetCommitRequest], connection: Peer) -> Any:
        group_id = request.body.group_id

        def take(changes: Changes) -> None:
            self.committed(self._group(group_id), changes)
            self._supersede(group_id, changes)

        return self._store_offsets(request, take)

    def _store_offsets(
        self, request: Request[Any], take: Callable[[Changes], None], producer: tuple[int, int] | None = None
    ) -> Any:
        """Return the answer to OffsetCommit or TxnOffsetCommit; `take` gets the offsets that are stored."""
        body, name, code = request.body, request.api.name, 0
        first_by_id, first_with_epochs = FIRST_VERSIONS[name]
        has_epochs = request.version >= first_with_epochs
        is_stale: IsStale | None = None
        stale = codes.STALE_MEMBER_EPOCH if has_epochs else codes.ILLEGAL_GENERATION
        try:
            group = self._store.get(body.group_id)
            if group is None and body.generation_id_or_member_epoch >= 0:
                raise Refused(codes.GROUP_ID_NOT_FOUND if has_epochs else codes.ILLEGAL_GENERATION, "")
            if isinstance(group, ConsumerGroup):
                is_stale = check_commit(group, request, stale)
            elif isinstance(group, ClassicGroup):
                self._classic.check_commit(group, body, is_transactional=producer is not None)
            elif isinstance(group, OtherGroup):
                group.check_commit(body.generation_id_or_member_epoch)
        except Refused as refused:
            code = refused.code
        now_ms = self._context.clock.now_ms()
        retention_ms = getattr(body, "retention_time_ms", -1)
        expires_ms = min(now_ms + retention_ms, INT64_MAX) if retention_ms >= 0 else -1
        kind = getattr(messages, f"{name}Response")
        topic_class = getattr(kind, f"{name}ResponseTopic")
        partition_class = getattr(kind, f"{name}ResponsePartition")
        changes: Changes = {}
        answer = kind(topics=[])
        for topic in body.topics:
            served = self._context.topics.find(topic.name, topic.topic_id)
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
                by_id = request.version >= first_by_id
                error = _unknown(served, given.partition_index, by_id=by_id) or code
                if not error and len(committed.metadata.encode("utf-16-le")) > 2 * MOST_METADATA:
                    error = codes.OFFSET_METADATA_TOO_LARGE
                if not error and is_stale is not None and is_stale(committed.topic_id, given.partition_index):
                    error = stale
                if not error and served is not None:
                    changes[served.name, given.partition_index] = committed
                partitions.append(partition_class(partition_index=given.partition_index, error_code=error))
            answer.topics.append(topic_class(name=topic.name, topic_id=topic.topic_id, partitions=partitions))
        if not changes:
            return answer
        try:
            records = [(offset_key(body.group_id, *at), offset_value(new)) for at, new in changes.items()]
            stored = self._store.append(body.group_id, records, producer)
        except Refused as refused:
            for described in answer.topics:
                for result in described.partitions:
                    result.error_code = result.error_code or refused.code
            return answer
        take(changes)
        return self._store.answer_after(stored, answer)

    # -------------------------------------------------------------- transactions

    def commit_in_transaction(
        self, request: Request[messages.TxnOffsetCommitRequest], producer: tuple[int, int]
    ) -> Any:
        """Return the answer to TxnOffsetCommit. The offsets are unstable until `decide`.

        Args:
            request: The request. The groups are loaded, and the transaction has the partition of the group.
            producer: Producer id and epoch.
        """
        group_id = request.body.group_id

        def take(changes: Changes) -> None:
            self._group(group_id)
            for at, committed in changes.items():
                self._add_undecided(producer[0], (group_id, *at), committed)

        return self._store_offsets(request, take, producer)

    def _add_undecided(self, producer_id: int, position: Position, committed: Committed | None) -> None:
        """Take an offset of an open transaction. Its record is behind those of the others."""
        offsets = self._undecided.setdefault(position, {})
        offsets.pop(producer_id, None)
        offsets[producer_id] = committed
        self._changed.setdefault(producer_id, set()).add(position)

    def decide(self, partition: int, producer_id: int, is_commit: bool) -> None:
        """Take or drop the offsets of a transaction whose marker was appended to a partition of the topic.

        The record with the larger offset wins between two transactions, as for the cleaner.
        """
        others = set()
        for position in self._changed.pop(producer_id, ()):
            group_id, topic, number = position
            if self._store.topic.partition_of(group_id) != partition:
                others.add(position)
                continue
            offsets = self._undecided[position]
            committed = offsets[producer_id]
            if is_commit and committed is not None:
                for earlier in itertools.takewhile(lambda other: other != producer_id, offsets):
                    offsets[earlier] = None
                self.committed(self._group(group_id), {(topic, number): committed})
            del offsets[producer_id]
            if not offsets:
                del self._undecided[position]
        if others:
            self._changed[producer_id] = others

    def _supersede(self, group_id: str, changed: Iterable[tuple[str, int]]) -> None:
        """Drop the offsets of open transactions for partitions whose offset was just changed."""
        for at in changed:
            offsets = self._undecided.get((group_id, *at), {})
            offsets.update(dict.fromkeys(offsets))

    def unstable(self, group_id: str) -> set[tuple[str, int]]:
        """Return the partitions for which an open transaction has committed an offset."""
        return {(topic, number) for group, topic, number in self._undecided if group == group_id}

    def partitions_of(self, group: Group) -> list[tuple[str, int]]:
        """Return the partitions that have an offset of the group, also one of an open transaction."""
        return list(dict.fromkeys([*group.offsets, *sorted(self.unstable(group.id))]))

    def of_former_topics(self, group: Group) -> list[tuple[str, int]]:
        """Return the partitions whose offset is of a topic that was made again while no server ran."""
        former = []
        for (name, number), committed in group.offsets.items():
            served = self._context.topics.find(name)
            if served is not None and committed.topic_id not in (ZERO_UUID, *served.ids):
                former.append((name, number))
        return former

    def committed(self, group: Group, changes: Changes) -> None:
        """Take committed offsets that are stored."""
        group.offsets |= changes
        for at, new in changes.items():
            self._leases.moved(group.id, at, new.offset)

    def deleted(self, group: Group, gone: list[tuple[str, int]]) -> None:
        """Drop offsets whose tombstones are stored, also those of open transactions."""
        for at in gone:
            if group.offsets.pop(at, None) is not None:
                self._leases.ended(group.id, at)
            for producer_id in self._undecided.pop((group.id, *at), ()):
                self._changed[producer_id].discard((group.id, *at))

    # -------------------------------------------------------------- fetch

    def _fetch(self, request: Request[messages.OffsetFetchRequest], connection: Peer) -> Message:
        body = request.body
        if request.version < 8:
            return messages.OffsetFetchResponse(
                topics=self._fetched(
                    body.group_id,
                    body.topics,
                    body.require_stable,
                    messages.OffsetFetchResponse.OffsetFetchResponseTopic,
                    messages.OffsetFetchResponse.OffsetFetchResponsePartition,
                )
            )
        groups = []
        for group in body.groups:
            described = messages.OffsetFetchResponse.OffsetFetchResponseGroup(group_id=group.group_id)
            groups.append(described)
            with Refusing(described, text=False, only=Refused):
                known = self._store.find(group.group_id)
                if request.version >= 9 and isinstance(known, ConsumerGroup):
                    check_fetch(known, group)
                described.topics = self._fetched(
                    group.group_id,
                    group.topics,
                    body.require_stable,
                    messages.OffsetFetchResponse.OffsetFetchResponseTopics,
                    messages.OffsetFetchResponse.OffsetFetchResponsePartitions,
                )
        return messages.OffsetFetchResponse(groups=groups)

    def _fetched(
        self, group_id: str, wanted_topics: Any, is_stable: bool, topic_class: Any, partition_class: Any
    ) -> list[Any]:
        group = self._store.get(group_id)
        offsets = {} if group is None else group.offsets
        wanted: list[tuple[str, bytes, list[int], int]] = []
        if wanted_topics is None:
            by_topic: dict[str, list[int]] = {}
            for name, number in offsets:
                by_topic.setdefault(name, []).append(number)
            for name, numbers in by_topic.items():
                served = self._context.topics.get(name)
                wanted.append((name, ZERO_UUID if served is None else served.id, numbers, 0))
        else:
            for topic in wanted_topics:
                topic_id = getattr(topic, "topic_id", ZERO_UUID)
                served = self._context.topics.find(topic.name, topic_id)
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
                error = code
                if is_stable and not code and (group_id, name, number) in self._undecided:
                    committed, error = NOT_COMMITTED, codes.UNSTABLE_OFFSET_COMMIT
                partitions.append(
                    partition_class(
                        partition_index=number,
                        committed_offset=committed.offset,
                        committed_leader_epoch=committed.leader_epoch,
                        metadata=committed.metadata,
                        error_code=error,
                    )
                )
            described = topic_class(name=name, partitions=partitions)
            if hasattr(described, "topic_id"):
                described.topic_id = topic_id
            topics.append(described)
        return topics

    # -------------------------------------------------------------- delete

    def _delete(self, request: Request[messages.OffsetDeleteRequest], connection: Peer) -> Any:
        body = request.body
        group = self._store.get(body.group_id)
        if group is None or group.group_type == "share":
            raise Refused(codes.GROUP_ID_NOT_FOUND if body.group_id else codes.INVALID_GROUP_ID, "")
        subscribed, are_consumers = group.subscribed(), group.protocol_type == "consumer"
        if not group.is_empty and not are_consumers:
            raise Refused(codes.NON_EMPTY_GROUP, "")
        answer, known = answer_with_rows(request), set(self.partitions_of(group))
        named: dict[tuple[str, int], None] = {}  # a request may name a partition twice
        for topic in answer.topics:
            served = self._context.topics.find(topic.name)
            for result in topic.partitions:
                if _unknown(served, result.partition_index, by_id=False):
                    result.error_code = codes.UNKNOWN_TOPIC_OR_PARTITION
                elif are_consumers and (subscribed is None or topic.name in subscribed):
                    result.error_code = codes.GROUP_SUBSCRIBED_TO_TOPIC
                elif (topic.name, result.partition_index) in known:
                    named[topic.name, result.partition_index] = None
        gone = list(named)
        stored = self._store.append(group.id, [(offset_key(group.id, *at), None) for at in gone])
        self.deleted(group, gone)
        return self._store.answer_after(stored, answer)


def _unknown(served: ServedTopic | None, partition: int, *, by_id: bool) -> int:
    """Return the error code for a partition that does not exist, else 0."""
    if served is None:
        return codes.UNKNOWN_TOPIC_ID if by_id else codes.UNKNOWN_TOPIC_OR_PARTITION
    return 0 if partition in served.directories else codes.UNKNOWN_TOPIC_OR_PARTITION


def offset_key(group: str, topic: str, partition: int) -> bytes:
    """Return the key of the record of a committed offset."""
    return encode_stored(messages.OffsetCommitKey(group=group, topic=topic, partition=partition))


def offset_value(committed: Committed) -> bytes:
    """Return the value of the record of a committed offset."""
    value = messages.OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.committed_ms,
        expire_timestamp=committed.expires_ms,
        topic_id=committed.topic_id,
    )
    return encode_stored(value, OFFSET_VERSION if committed.expires_ms < 0 else EXPIRING_VERSION)
