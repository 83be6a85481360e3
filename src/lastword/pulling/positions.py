"""Committed offsets of groups: read from a cluster, saved as records of `__consumer_offsets`.

The records have Kafka's format, so that `lastword serve` and a broker continue the groups. A position is
saved when the copy has the records below it, and deleted when the group's coordinator shows that it is gone.
A group that no broker lists is not proof of that: its coordinator may be down, moving, or not shown.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
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
    """The positions of a cluster. `whole`: the groups of which all are here, so that others were deleted."""

    positions: dict[Key, Position]
    whole: set[str]


def ask_positions(cluster: Cluster, topics: Collection[str], known: Collection[str]) -> ClusterPositions:
    """Ask each broker for the positions of its groups in these topics.

    A group that this user may not describe is left out.

    Args:
        cluster: The cluster.
        topics: The topics.
        known: Groups that have positions in the copy. One that no broker lists is looked up at its
            coordinator.
    """
    found = ClusterPositions({}, set())
    unlisted = set(known)
    for node in cluster.metadata([]).nodes:
        with closing(cluster.connect(node)) as connection:
            answer = connection.ask(ListGroupsRequest())
            if answer.error_code:
                raise refused(connection.name, answer.error_code, "list its groups")
            groups = [group.group_id for group in answer.groups if group.group_type != "share"]
            unlisted.difference_update(groups)
            _ask(connection, groups, topics, found)
    if unlisted:
        _ask_coordinators(cluster, unlisted, topics, found)
    return found


def _ask_coordinators(
    cluster: Cluster, groups: Collection[str], topics: Collection[str], found: ClusterPositions
) -> None:
    """Add the positions of groups, each by its coordinator: the leader of its partition of TOPIC."""
    metadata = cluster.metadata([TOPIC])
    partitions = metadata.topics[TOPIC].partitions if TOPIC in metadata.topics else {}
    by_node: dict[int, list[str]] = {}
    for group in groups if partitions else ():
        number = java_hash(group) % len(partitions)
        by_node.setdefault(partitions[number].leader if number in partitions else -1, []).append(group)
    for node, some in by_node.items():
        try:
            with closing(cluster.connect(node)) as connection:
                _ask(connection, some, topics, found)
        except LastwordError as error:
            _log.warning("the positions of %s groups stay as they are: %s", len(some), error.message)


def _ask(
    connection: BrokerConnection, groups: list[str], topics: Collection[str], found: ClusterPositions
) -> None:
    """Add the positions of groups, some groups with each request."""
    for first in range(0, len(groups), GROUPS_AT_ONCE):
        _ask_some(connection, groups[first : first + GROUPS_AT_ONCE], topics, found)


def _ask_some(
    connection: BrokerConnection, groups: list[str], topics: Collection[str], found: ClusterPositions
) -> None:
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
    for answer in answers:
        if answer.error_code == codes.GROUP_AUTHORIZATION_FAILED:
            _log.warning("the positions of group %s are left out: not allowed", answer.group_id)
            continue
        if answer.error_code not in (codes.NONE, codes.GROUP_ID_NOT_FOUND):
            raise refused(connection.name, answer.error_code, f"read the positions of {answer.group_id}")
        is_whole = True
        for topic in answer.topics:
            for partition in topic.partitions if topic.name in topics else ():
                if partition.error_code:
                    is_whole = False
                elif partition.committed_offset >= 0:
                    key = Key(answer.group_id, topic.name, partition.partition_index)
                    found.positions[key] = Position(
                        partition.committed_offset, partition.committed_leader_epoch, partition.metadata or ""
                    )
        if is_whole:
            found.whole.add(answer.group_id)


class SavedPositions:
    """The positions in `__consumer_offsets` of a directory."""

    def __init__(self, dirs: OpenDirs) -> None:
        self._dirs = dirs
        self._saved: dict[bytes, bytes | None] | None = None

    def groups(self, topics: Collection[str]) -> set[str]:
        """Return the groups that have positions in these topics."""
        keys = [_key(stored) for stored, value in self._known().items() if value is not None]
        return {key.group for key in keys if key is not None and key.topic in topics}

    def _known(self) -> dict[bytes, bytes | None]:
        """Return the newest record of each key. It is read once, and changed with each append."""
        if self._saved is None and TOPIC in self._dirs.topics():
            records_there = open_topic(self._dirs, TOPIC).read()
            self._saved = {r.key: r.value for r in records_there if r.key is not None}
        return {} if self._saved is None else self._saved

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
        saved = self._known()
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
            if key_of is None or key_of.topic not in topics or key_of.group not in cluster.whole:
                continue
            if key_of not in cluster.positions:
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
