"""Offsets of a stream: their form in Spark's checkpoint, and how much of a backlog one micro-batch takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lastword.errors import LastwordError
from lastword.partition.view import PartitionView
from lastword.spark import snapshot
from lastword.spark.cuts import cut_points

TOPIC_IDS = "#topic_ids"
"""Beside the topics in the checkpoint; no topic can have this name."""

Place = tuple[str, int]
Offsets = dict[Place, int]


def to_json(offsets: Offsets, topic_ids: Mapping[str, str]) -> dict[str, Any]:
    """Offsets by partition in the shape of Kafka's source, with the ids of those topics that have one."""
    found: dict[str, Any] = {}
    for (topic, number), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(number)] = offset
    ids = {topic: one for topic, one in topic_ids.items() if topic in found}
    if ids:
        found[TOPIC_IDS] = ids
    return found


def of_json(value: Mapping[str, Any]) -> tuple[Offsets, dict[str, str]]:
    """Offsets by partition, and the ids of their topics."""
    ids = dict(value.get(TOPIC_IDS, {}))
    try:
        offsets = {
            (topic, int(number)): int(offset)
            for topic, numbers in value.items()
            if topic != TOPIC_IDS
            for number, offset in numbers.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise LastwordError(
            f"the checkpoint's offsets are not ours: {value!r}", remedy="start with a new checkpoint"
        ) from None
    return offsets, ids


def named(place: Place) -> str:
    return f"{place[0]}-{place[1]}"


def share_offsets(begin: Offsets, ends: Offsets, limit: int) -> Offsets:
    """At most about `limit` offsets in all, each partition's share as its part of the backlog, and at least
    one where there is any: as Spark's Kafka source has it."""
    backlog = {place: ends[place] - begin[place] for place in ends}
    total = sum(backlog.values())
    if total <= limit:
        return ends
    return {
        place: begin[place] + (min(size, max(1, limit * size // total)) if size else 0)
        for place, size in backlog.items()
    }


def share_bytes(begin: Offsets, ends: Offsets, views: Mapping[Place, PartitionView], limit: int) -> Offsets:
    """At most about `limit` bytes of the log in all, shared likewise, cut at index entries; at least up to
    the first of these in each partition that has more."""
    points = {
        place: cut_points(snapshot.Chosen(*place, views[place].directory, views[place], begin[place], end))
        for place, end in ends.items()
        if end > begin[place]
    }
    total = sum(found[-1][1] for found in points.values())
    if total <= limit:
        return ends
    shared = dict(ends)
    for place, found in points.items():
        share = limit * found[-1][1] // total
        fitting = [offset for offset, before in found[1:] if before <= share]
        shared[place] = fitting[-1] if fitting else found[1][0]
    return shared
