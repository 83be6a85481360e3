"""Positions of consumer groups: the offsets that groups committed, and how far each is behind.

They are records of `__consumer_offsets`, which a broker or `lastword serve` writes. The newest record of each
key counts; that topic is read once for each call.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lastword.api.open_transactions import first_batch
from lastword.api.topics import open_topic
from lastword.errors import DataError, StorageError, UsageError
from lastword.values import Value

if TYPE_CHECKING:
    from lastword.api.open_dirs import OpenDirs
    from lastword.records.internal import InternalRecord

GROUPS_TOPIC = "__consumer_offsets"


@dataclass(frozen=True, slots=True)
class GroupPosition(Value):
    """The position of a group in one partition, as `lastword groups` shows it.

    Attributes:
        group: The group.
        topic: The topic.
        partition: The partition.
        members: Number of members by the newest record of the group; None: the group only commits.
        offset: Next offset that the group will read.
        log_end: Offset of the next record of the partition; None: the partition is not here.
        lag_offsets: Offsets from the position to the log end.
        lag_ms: Age of the batch with the first record that the group has not read; None: it has read all, or
            the batch has no time.
        committed_ms: When the position was committed, in milliseconds since 1970; -1: unknown.
    """

    group: str
    topic: str
    partition: int
    members: int | None
    offset: int
    log_end: int | None
    lag_offsets: int | None
    lag_ms: int | None
    committed_ms: int

    def __str__(self) -> str:
        behind = "" if self.lag_offsets is None else f", {self.lag_offsets} behind"
        return f"{self.group}: {self.topic}-{self.partition} at {self.offset}{behind}"


def group_positions(dirs: OpenDirs, topic: str | None, partition: int | None) -> list[GroupPosition]:
    """Return the positions of all groups, sorted by group and partition.

    Args:
        dirs: The open directories.
        topic: Only positions in this topic; None: in every topic.
        partition: Only positions in this partition; None: in every partition.
    """
    if topic is not None:
        dirs.select(topic, partition)
    if GROUPS_TOPIC not in dirs.topics():
        return []
    offsets, members = _newest(dirs)
    wanted = {
        key: fields
        for key, fields in offsets.items()
        if topic in (None, key[1]) and partition in (None, key[2])
    }
    return [_position(dirs, key, wanted[key], members.get(key[0])) for key in sorted(wanted)]


def _newest(dirs: OpenDirs) -> tuple[dict[tuple[str, str, int], dict[str, Any]], dict[str, int]]:
    """Return the newest committed offset of each group and partition, and the members of each group."""
    from lastword.api.text import decoded_record

    newest: dict[bytes, InternalRecord | None] = {}
    source = open_topic(dirs, GROUPS_TOPIC, key_serializer="bytes", value_serializer="bytes")
    for record in source.read():
        newest[record.key or b""] = decoded_record(record)
    offsets: dict[tuple[str, str, int], dict[str, Any]] = {}
    members: Counter[str] = Counter()
    for known in newest.values():
        if known is None or known.value is None:
            continue
        if known.type in ("OffsetCommit", "LegacyOffsetCommit"):
            offsets[known.key["group"], known.key["topic"], known.key["partition"]] = known.value
        elif known.type == "GroupMetadata":
            members[known.key["group"]] += len(known.value.get("members") or ())
        elif known.type == "ConsumerGroupMemberMetadata":
            members[known.key["groupId"]] += 1
    return offsets, dict(members)


def _position(
    dirs: OpenDirs, key: tuple[str, str, int], committed: dict[str, Any], members: int | None
) -> GroupPosition:
    group, topic, partition = key
    offset, log_end, lag, lag_ms = int(committed["offset"]), None, None, None
    try:
        view = dirs.view(topic, partition)
        log_end = view.log_end
        lag = max(0, log_end - offset)
        header = first_batch(view, max(offset, view.log_start)) if lag else None
        if header is not None and header.base_timestamp >= 0:
            lag_ms = max(0, dirs.clock.now_ms() - header.base_timestamp)
    except (DataError, StorageError, UsageError):  # deleted, or unreadable: `ls` and `verify` name the error
        pass
    committed_ms = int(committed.get("commitTimestamp", -1))
    return GroupPosition(group, topic, partition, members, offset, log_end, lag, lag_ms, committed_ms)
