"""Committed offsets of groups: read from a cluster, saved as records of `__consumer_offsets`.

The records have Kafka's format, so that `lastword serve` and a broker continue the groups. A position is
saved when the copy has the records below it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from lastword.api.copying import make_topic
from lastword.api.open_dirs import OpenDirs
from lastword.api.topics import open_topic
from lastword.errors import LastwordError
from lastword.logdir.checkpoints import TopicPartition
from lastword.protocol import codes, decode_stored, encode_stored, java_hash
from lastword.protocol.messages import (
    ListGroupsRequest,
    OffsetCommitKey,
    OffsetCommitValue,
    OffsetFetchRequest,
)
from lastword.pulling.cluster import BrokerConnection, Cluster, refused
from lastword.records.batch import BatchBuilder

TOPIC = "__consumer_offsets"
SETTINGS = {"cleanup.policy": "compact", "segment.bytes": "100MiB"}
PARTITIONS = 50
"""Kafka's default, for a cluster that does not show the topic."""
GROUPS_AT_ONCE = 100
BATCH_BYTES = 500_000
KEY_NAMES = {b"\x00\x00": "LegacyOffsetCommitKey", b"\x00\x01": "OffsetCommitKey"}
VALUE_VERSION = 3
NEWEST_WITH_NAMES = 9
"""The newest version of OffsetFetch that has names of topics."""

_log = logging.getLogger("lastword.pull")


class Key(NamedTuple):
    """A group and a partition."""

    group: str
    topic: str
    partition: int


class Position(NamedTuple):
    """A committed offset, the leader epoch of the record before it, and the text of the committer."""

    offset: int
    leader_epoch: int
    metadata: str


class ClusterPositions(NamedTuple):
    """The positions of a cluster. `whole`: of all its groups, so that other positions were deleted."""

    positions: dict[Key, Position]
    whole: bool


def ask_positions(cluster: Cluster, topics: Collection[str]) -> ClusterPositions:
    """Ask each broker for the positions of its groups in these topics.

    A group that this user may not describe is left out.
    """
    positions: dict[Key, Position] = {}
    whole = True
    for node in cluster.metadata([]).nodes:
        connection = cluster.connect(node)
        try:
            answer = connection.ask(ListGroupsRequest())
            if answer.error_code:
                raise refused(connection.name, answer.error_code, "list its groups")
            groups = [group.group_id for group in answer.groups if group.group_type != "share"]
            for first in range(0, len(groups), GROUPS_AT_ONCE):
                some = groups[first : first + GROUPS_AT_ONCE]
                whole = _ask(connection, some, topics, positions) and whole
        finally:
            connection.close()
    return ClusterPositions(positions, whole)


def _ask(
    connection: BrokerConnection, groups: list[str], topics: Collection[str], positions: dict[Key, Position]
) -> bool:
    """Add the positions of groups; return False if a group was left out."""
    if connection.version("OffsetFetch", NEWEST_WITH_NAMES) >= 8:
        groups_wanted = [
            OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None) for group in groups
        ]
        answers = connection.ask(OffsetFetchRequest(groups=groups_wanted), most=NEWEST_WITH_NAMES).groups
    else:
        answers = []
        for group in groups:
            answer = connection.ask(OffsetFetchRequest(group_id=group, topics=None), most=7)
            answer.group_id = group
            answers.append(answer)
    whole = True
    for answer in answers:
        if answer.error_code in (codes.GROUP_AUTHORIZATION_FAILED, codes.GROUP_ID_NOT_FOUND):
            _log.warning("the positions of group %s are left out: not allowed", answer.group_id)
            whole = False
            continue
        if answer.error_code:
            raise refused(connection.name, answer.error_code, f"read the positions of {answer.group_id}")
        for topic in answer.topics:
            for partition in topic.partitions if topic.name in topics else ():
                if partition.error_code:
                    whole = False
                elif partition.committed_offset >= 0:
                    key = Key(answer.group_id, topic.name, partition.partition_index)
                    positions[key] = Position(
                        partition.committed_offset, partition.committed_leader_epoch, partition.metadata or ""
                    )
    return whole


class SavedPositions:
    """The positions in `__consumer_offsets` of a directory."""

    def __init__(self, dirs: OpenDirs) -> None:
        self._dirs = dirs
        self._saved: dict[bytes, bytes | None] | None = None

    def save(
        self,
        cluster: ClusterPositions,
        topics: Collection[str],
        log_ends: Mapping[TopicPartition, int],
        shape: Callable[[], tuple[int, str | None]],
    ) -> dict[TopicPartition, int]:
        """Append what has changed.

        Args:
            cluster: The positions in the cluster.
            topics: The topics that are pulled; positions in others stay as they are.
            log_ends: The log end of each copy. A position above it is saved later.
            shape: Returns the number of partitions and the id of the cluster's `__consumer_offsets`.

        Returns:
            The number of positions that are saved now, by partition.
        """
        if not cluster.positions and TOPIC not in self._dirs.topics():
            return {}
        if TOPIC not in self._dirs.topics():
            count, topic_id = shape()
            make_topic(self._dirs, TOPIC, list(range(count)), topic_id, SETTINGS)
        numbers = sorted(self._dirs.partitions(TOPIC))
        saved = self._saved
        if saved is None:
            records_there = open_topic(self._dirs, TOPIC).read()
            saved = self._saved = {r.key: r.value for r in records_there if r.key is not None}
        now_ms = self._dirs.clock.now_ms()
        records: dict[int, list[tuple[bytes, bytes | None]]] = {}
        counts: dict[TopicPartition, int] = {}
        for key, position in cluster.positions.items():
            tp = TopicPartition(key.topic, key.partition)
            stored = encode_stored(OffsetCommitKey(group=key.group, topic=key.topic, partition=key.partition))
            before = _decoded(saved.get(stored))
            if position.offset <= log_ends.get(tp, -1) and before != position:
                value = encode_stored(
                    OffsetCommitValue(
                        offset=position.offset,
                        leader_epoch=position.leader_epoch,
                        metadata=position.metadata,
                        commit_timestamp=now_ms,
                    ),
                    VALUE_VERSION,
                )
                records.setdefault(java_hash(key.group) % len(numbers), []).append((stored, value))
                before = position
            if before is not None:
                counts[tp] = counts.get(tp, 0) + 1
        for stored in [s for s, value in saved.items() if value is not None] if cluster.whole else ():
            key_of = _key(stored)
            if key_of is not None and key_of.topic in topics and key_of not in cluster.positions:
                records.setdefault(java_hash(key_of.group) % len(numbers), []).append((stored, None))
        for number, changes in records.items():
            self._append(number, changes, now_ms)
            saved.update(changes)
        return counts

    def _append(self, partition: int, records: list[tuple[bytes, bytes | None]], now_ms: int) -> None:
        log, builder = self._dirs.log(TOPIC, partition), BatchBuilder()
        for key, value in records:
            builder.append(now_ms, key, value)
            if builder.size_estimate > BATCH_BYTES:
                log.append_batch(builder.build())
                builder.clear()
        if len(builder):
            log.append_batch(builder.build())


def _key(stored: bytes) -> Key | None:
    """Return the group and partition of a key; None for a key of another kind."""
    name = KEY_NAMES.get(stored[:2])
    key = None if name is None else _read(name, stored)
    return None if key is None else Key(key.group, key.topic, key.partition)


def _decoded(value: bytes | None) -> Position | None:
    stored = None if value is None else _read("OffsetCommitValue", value)
    return None if stored is None else Position(stored.offset, stored.leader_epoch, stored.metadata)


def _read(name: str, data: bytes) -> Any:
    """Return a key or a value; None if it has no form that is known."""
    try:
        return decode_stored(name, data)
    except LastwordError:
        return None
