"""Topics with gaps between their offsets, as cleanings leave them: one for each codec and place of the gap.

Each has a committed transaction, an aborted one, and records without a transaction, so that the rows that a
client must read differ by its isolation level.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import lastword
from lastword.records.batch import write_batch
from lastword.records.compression import compress
from lastword.segment import names
from lastword.testing.unsynced import UNSYNCED
from tests.server.client import raw_record
from tests.transactions import marker_batch

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""Kafka's codecs; the place of each is its number in a batch."""
LEVELS = ("read_uncommitted", "read_committed")
PLACES = ("start", "middle", "end", "far")
"""The places of a gap; `far` is a gap of more than 2^31 offsets."""
FAR = (1 << 31) + 10
"""The first offset behind the gap of place `far`."""

Row = tuple[int, bytes | None, bytes | None]


class Gaps(NamedTuple):
    """The segments of a topic by base offset, its rows by isolation level, and its log end."""

    segments: dict[int, bytes]
    rows: dict[str, list[Row]]
    end: int


def cleaned_batch(
    codec: int, base: int, last: int, rows: list[Row], now_ms: int, *, sequence: int = -1
) -> bytes:
    """Return a batch as a cleaning leaves it: rows at some of its offsets; none: only its header.

    With a `sequence` the batch belongs to a transaction of producer 7.
    """
    payload = b"".join(raw_record(offset - base, key, value) for offset, key, value in rows)
    return write_batch(
        base_offset=base,
        leader_epoch=0,
        attributes=(codec if rows else 0) | (0x10 if sequence >= 0 else 0),
        last_offset_delta=last - base,
        base_timestamp=now_ms,
        max_timestamp=now_ms,
        producer=(7, 0, sequence) if sequence >= 0 else (-1, -1, -1),
        count=len(rows),
        payload=compress(codec, payload) if codec and rows else payload,
    )


def topic_with_gap(
    codec: str, place: str, value: Callable[[int], bytes] = lambda number: b"%d" % number * 99
) -> Gaps:
    """Return a topic with a gap at the place; `value` makes the value of a record from its number.

    All batches have one timestamp. For a topic whose newest batch has no record, Kafka gives no offset of
    the largest timestamp, so a later timestamp there would change what an admin client reads.
    """
    number = CODECS.index(codec)
    now_ms = int(time.time() * 1000)
    before: list[Row] = []
    behind: list[Row] = []
    segments: dict[int, bytes] = {}
    data, start = b"", 0
    if place == "start":
        before = [(7, b"a", value(1)), (8, b"b", value(2))]
        data, start = (
            cleaned_batch(number, 0, 4, [], now_ms) + cleaned_batch(number, 5, 9, before, now_ms),
            10,
        )
    elif place == "middle":
        before = [(0, b"a", value(1)), (40, b"b", value(2)), (42, b"c", value(3))]
        data = cleaned_batch(number, 0, 9, before[:1], now_ms) + cleaned_batch(
            number, 40, 49, before[1:], now_ms
        )
        data, start = data + cleaned_batch(number, 60, 64, [], now_ms), 70
    elif place == "far":
        before = [(0, b"a", value(1)), (2, b"b", value(2))]
        segments[0], start = cleaned_batch(number, 0, 2, before, now_ms), FAR
    kept: list[Row] = [(start, b"d", value(4)), (start + 1, b"e", None)]
    aborted: list[Row] = [(start + 3, b"d", value(5)), (start + 4, b"f", value(6))]
    late: list[Row] = [(start + 6, b"a", value(7)), (start + 7, b"g", value(8))]
    end = start + 8
    data += cleaned_batch(number, start, start + 1, kept, now_ms, sequence=0) + _marker(
        start + 2, True, now_ms
    )
    data += cleaned_batch(number, start + 3, start + 4, aborted, now_ms, sequence=2) + _marker(
        start + 5, False, now_ms
    )
    data += cleaned_batch(number, start + 6, start + 7, late, now_ms)
    if place == "end":
        behind = [(end + 1, b"h", value(9))]
        data += cleaned_batch(number, end, end + 4, behind, now_ms) + cleaned_batch(
            number, end + 12, end + 21, [], now_ms
        )
        end += 22
    segments[start if place == "far" else 0] = data
    committed = before + kept + late + behind
    rows = {"read_committed": committed, "read_uncommitted": sorted(committed + aborted)}
    return Gaps(segments, rows, end)


def _marker(offset: int, commit: bool, now_ms: int) -> bytes:
    return offset.to_bytes(8, "big") + marker_batch(7, 0, commit, 0, now_ms)[8:]


def write_topics(directory: Path, topics: Mapping[str, Gaps], *, cleanup_policy: str = "compact") -> None:
    """Create topics of one partition in a log directory that is not open, and write their segments."""
    with lastword.open(directory, "a", files=UNSYNCED, log_cleaner_enable=False) as logs:
        for topic in topics:
            logs.create_topic(topic, cleanup_policy=cleanup_policy)
    (directory / names.CLEAN_SHUTDOWN).unlink(missing_ok=True)  # the segments below are recovered
    for topic, (segments, _, _) in topics.items():
        for path in (directory / f"{topic}-0").iterdir():
            path.unlink()
        for base, data in segments.items():
            (directory / f"{topic}-0" / f"{base:020d}.log").write_bytes(data)
