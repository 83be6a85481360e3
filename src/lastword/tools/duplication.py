"""Count superseded records, their bytes, distinct keys, and keys in several partitions.

`counted` is exact, in the memory of a key map: it resolves each partition, and for a topic with several
partitions also all partitions concatenated. If the keys do not fit the map, each of these scans reads the log
once, with a scratch file. Takes no lock and changes nothing. Start reading at `Duplication`.

Concatenated partitions are one log, so that one key map finds the keys that are in several partitions:

                         P0         P1         P2
    forwards    a key's newest record in P0 is dead there if P1 or P2 has the key, in P1 if P2 has it
    backwards   (P2, P1, P0)        in P2 if P1 or P0 has it, in P1 if P0 has it

A record that is the newest of its key in its partition, alive forwards and dead backwards, is the last
record of a key in several partitions; each such key has exactly one such record. Dead in either direction
means that another partition has the key, too. Both are counts of bits; only the map holds keys.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lastword.kernels import table as fields
from lastword.kernels.pages import PAGE_BITS
from lastword.partition.reads import read_again
from lastword.partition.transactions import BatchColumns, Outcomes
from lastword.partition.view import PartitionView
from lastword.records.chunk import Chunk
from lastword.records.columns import decode_columns
from lastword.resolve import DeadBitmaps, Resolution, ScratchPlace, SegmentFacts, SegmentSource, resolve
from lastword.resolve.facts import TransactionOutcomes
from lastword.segment.segment import Segment
from lastword.units import format_bytes
from lastword.values import Value, plural

# ---------------------------------------------------------------- several partitions as one log


_BLOCK_PAGES = 1024


class ConcatenatedLog:
    """Partitions as one log.

    The offsets of a partition are shifted above the offsets of the previous one, by whole pages of bits.
    """

    def __init__(self, views: Sequence[PartitionView]) -> None:
        self._views = views
        self._shifts: list[int] = []
        self._starts: list[int] = []
        self._outcomes = [Outcomes(view, view.log_end) for view in views]
        self.sources: list[_ShiftedSegment] = []
        page = 1 << PAGE_BITS
        cursor = 0
        for view in views:
            first = view.segments[0].base_offset // page * page if view.segments else 0
            end = max((segment.next_offset for segment in view.segments), default=0)
            self._starts.append(cursor)
            self._shifts.append(cursor - first)
            self.sources += [_ShiftedSegment(segment, cursor - first) for segment in view.segments]
            cursor += -(-(end - first) // page) * page + page

    def of_batches(self, batches: BatchColumns) -> NDArray[np.uint8]:
        """Return the outcomes of the batches of one chunk, which belong to one partition."""
        i = int(np.searchsorted(self._starts, batches.base_offsets[0], side="right")) - 1
        shift = self._shifts[i]
        first, last = batches.base_offsets - shift, batches.last_offsets - shift
        return self._outcomes[i].of_batches(batches._replace(base_offsets=first, last_offsets=last))

    def bits(self, i: int, resolution: Resolution) -> DeadBitmaps:
        """Return the dead bitmaps of partition `i`."""
        segments = self._views[i].segments
        if not segments:
            return resolution.dead.window(0, 0)
        first, end = segments[0].base_offset, max(segment.next_offset for segment in segments)
        return resolution.dead.window(first + self._shifts[i], max(end, first + 1) + self._shifts[i])


class _ShiftedSegment:
    """A segment whose offsets are `shift` higher."""

    def __init__(self, segment: Segment, shift: int) -> None:
        self._segment = segment
        self._shift = shift
        self.base_offset, self.next_offset = segment.base_offset + shift, segment.next_offset + shift
        self.size, self.file = segment.size, segment.file

    def chunk_reader(self, **options: object) -> Iterator[Chunk]:
        for chunk in self._segment.chunk_reader(**options):  # type: ignore[arg-type]  # passed on as they came
            table = chunk.table.copy()
            table[:, fields.BASE_OFFSET] += self._shift
            table[:, fields.LAST_OFFSET] += self._shift
            yield Chunk(chunk.raw, chunk.uncompressed, table, chunk.file, chunk.scratch)


def shared_keys(own: DeadBitmaps, forward: DeadBitmaps, backward: DeadBitmaps) -> tuple[int, int]:
    """Count the keys of a partition that another partition has too, and those that no later one has."""
    if not (own.page_ids.size == forward.page_ids.size == backward.page_ids.size):
        raise AssertionError("other pages than before")
    shared = last = 0
    for first in range(0, own.page_ids.size, _BLOCK_PAGES):
        block = slice(first, first + _BLOCK_PAGES)
        dead, after, before = (_words(bitmaps, block) for bitmaps in (own, forward, backward))
        shared += _ones((after | before) & ~dead)
        last += _ones(before & ~after)
    return shared, last


def _words(bits: DeadBitmaps, block: slice) -> NDArray[np.uint64]:
    slots = bits.page_slots[block]
    return np.where((slots >= 0)[:, None], bits.page_bits[np.maximum(slots, 0)], np.uint64(0))


def _ones(words: NDArray[np.uint64]) -> int:
    return int(np.unpackbits(words.view(np.uint8)).sum(dtype=np.int64))


BY = ("topic", "partition", "segment")
"""The levels of a row."""

Stage = Callable[[int], AbstractContextManager[Callable[[int, int], None] | None]]
"""Starts a stage of a number of bytes; returns a function of (bytes done, total bytes), or None."""


@dataclass(frozen=True, slots=True)
class Duplication(Value):
    """The counts of one topic, partition or segment.

    Attributes:
        topic: The topic.
        partition: None: the whole topic.
        records: All records on disk.
        keyless: Records without a key.
        distinct_keys: Keys with a committed record here.
        superseded_records: Records that a newer record of their key, in the same partition, superseded.
        superseded_bytes: Their share of the bytes on disk: a record counts with its part of its batch.
        tombstones: Records with a key and without a value.
        split_keys: Keys that are also in another partition; for a topic: keys in several partitions. None:
            not counted.
        size_bytes: Bytes on disk.
        segment: Base offset; None: the whole partition.
    """

    topic: str
    partition: int | None
    records: int
    keyless: int
    distinct_keys: int
    superseded_records: int
    superseded_bytes: int
    tombstones: int
    split_keys: int | None
    size_bytes: int
    segment: int | None = None

    @property
    def name(self) -> str:
        """The name of the row: `users`, `users-0`, or with its segment `users-0/4000`."""
        partition = "" if self.partition is None else f"-{self.partition}"
        return f"{self.topic}{partition}" + ("" if self.segment is None else f"/{self.segment}")

    text_columns = ("TOPIC", "PARTITION", "SEGMENT")

    def cells(self) -> dict[str, str]:
        """Return a row of the table; the first column is the unit that was counted."""
        unit = "SEGMENT" if self.segment is not None else "TOPIC" if self.partition is None else "PARTITION"
        return {
            unit: self.name,
            "RECORDS": str(self.records),
            "KEYS": str(self.distinct_keys),
            "SUPERSEDED": str(self.superseded_records),
            "BYTES": format_bytes(self.superseded_bytes),
            "TOMBSTONES": str(self.tombstones),
            "KEYLESS": str(self.keyless),
            "SPLIT": "-" if self.split_keys is None else str(self.split_keys),
        }

    @classmethod
    def totals(cls, values: Sequence[Duplication]) -> str:
        """Return the number of records, and how many of them are superseded."""
        records = sum(row.records for row in values)
        share = 100 * sum(row.superseded_records for row in values) / max(1, records)
        size = format_bytes(sum(row.superseded_bytes for row in values))
        return f"{plural(records, 'record')}, {share:.0f} % of them superseded: {size}"

    def __str__(self) -> str:
        size = format_bytes(self.superseded_bytes)
        return (
            f"{self.name}: {plural(self.records, 'record')}, {plural(self.distinct_keys, 'key')}, "
            f"{self.superseded_records} superseded ({self.superseded_ratio:.0%}, {size})"
        )

    @property
    def superseded_ratio(self) -> float:
        """Share of the superseded records."""
        return self.superseded_records / self.records if self.records else 0.0


# ---------------------------------------------------------------- the counts


def counted(
    topic: str, views: Mapping[int, PartitionView], by: str, stage: Stage, *, whole: bool, map_bytes: int
) -> list[Duplication]:
    """Return the rows of these partitions, in the memory of one key map.

    `whole`: these are all partitions of the topic.
    """
    chosen = [view for _, view in sorted(views.items())]

    def renew() -> None:  # a file was rewritten meanwhile
        for view in chosen:
            view.refresh()

    return read_again(lambda: _counted(topic, chosen, by, stage, whole, map_bytes), renew)


def _counted(
    topic: str, views: Sequence[PartitionView], by: str, stage: Stage, whole: bool, map_bytes: int
) -> list[Duplication]:
    resolutions: list[Resolution] = []
    rows: list[Duplication] = []
    tombstones: list[list[int]] = []
    for view in views:
        sources = [_CountingSegment(segment) for segment in view.segments]
        resolutions.append(_resolved(view.directory, sources, Outcomes(view, view.log_end), stage, map_bytes))
        tombstones.append([source.tombstones for source in sources])
        if by == "segment":
            for segment, facts, dead in zip(
                view.segments, resolutions[-1].segments, tombstones[-1], strict=True
            ):
                alone = _resolved(view.directory, [segment], Outcomes(view, view.log_end), stage, map_bytes)
                rows.append(
                    _row(topic, view.partition, [facts], alone.distinct_keys, dead, None, segment.base_offset)
                )
    if by == "segment":
        return rows
    splits: list[int | None] = [0 if whole else None for _ in views]
    split: int | None = 0 if whole else None
    distinct = resolutions[0].distinct_keys if resolutions else 0
    if len(views) > 1:
        forward, directory = ConcatenatedLog(views), views[0].directory
        forward_scan = _resolved(directory, forward.sources, forward, stage, map_bytes)
        distinct = forward_scan.distinct_keys
        if whole:
            backward = ConcatenatedLog(views[::-1])
            backward_scan = _resolved(directory, backward.sources, backward, stage, map_bytes)
            shared_counts = [
                shared_keys(
                    resolution.dead,
                    forward.bits(i, forward_scan),
                    backward.bits(len(views) - 1 - i, backward_scan),
                )
                for i, resolution in enumerate(resolutions)
            ]
            splits = [own_split for own_split, _ in shared_counts]
            split = sum(last for _, last in shared_counts)
    if by == "partition":
        return [
            _row(topic, view.partition, resolution.segments, resolution.distinct_keys, sum(dead), own_split)
            for view, resolution, dead, own_split in zip(views, resolutions, tombstones, splits, strict=True)
        ]
    every = [facts for resolution in resolutions for facts in resolution.segments]
    return [_row(topic, None, every, distinct, sum(map(sum, tombstones)), split)]


def _row(
    topic: str,
    partition: int | None,
    facts: Sequence[SegmentFacts],
    distinct_keys: int,
    tombstones: int,
    split: int | None,
    segment: int | None = None,
) -> Duplication:
    superseded = [segment_facts.dead_records - segment_facts.aborted_records for segment_facts in facts]
    # Records of aborted transactions are dead too; if there are any, bytes are divided by count.
    size_bytes = [
        segment_facts.dead_bytes * count // segment_facts.dead_records if segment_facts.dead_records else 0
        for segment_facts, count in zip(facts, superseded, strict=True)
    ]
    return Duplication(
        topic=topic,
        partition=partition,
        records=sum(segment_facts.records for segment_facts in facts),
        keyless=sum(segment_facts.keyless for segment_facts in facts),
        distinct_keys=distinct_keys,
        superseded_records=sum(superseded),
        superseded_bytes=sum(size_bytes),
        tombstones=tombstones,
        split_keys=split,
        size_bytes=sum(segment_facts.size_bytes for segment_facts in facts),
        segment=segment,
    )


def _resolved(
    directory: str,
    sources: Sequence[SegmentSource],
    outcomes: TransactionOutcomes,
    stage: Stage,
    map_bytes: int,
) -> Resolution:
    """Resolve a log. Keys that do not fit the map take a scratch file in `directory`."""
    with stage(sum(source.size for source in sources)) as progress:
        return resolve(
            sources,
            map_bytes=map_bytes,
            salt=os.urandom(16),
            now_ms=None,
            outcomes=outcomes,
            progress=progress,
            place=ScratchPlace.for_read(directory),
        )


class _CountingSegment:
    """A segment that counts each of its tombstones once, also if a reading is stopped and starts again."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._counted_to = -1  # all records below this offset were counted
        self.tombstones = 0
        self.base_offset, self.next_offset = segment.base_offset, segment.next_offset
        self.size, self.file = segment.size, segment.file

    def chunk_reader(self, **options: object) -> Iterator[Chunk]:
        for chunk in self._segment.chunk_reader(**options):  # type: ignore[arg-type]  # passed on as they came
            if chunk.next_offset > self._counted_to:
                columns = decode_columns(chunk)
                tombstones = (columns.key_length >= 0) & (columns.value_length < 0)
                self.tombstones += int((tombstones & (columns.offset >= self._counted_to)).sum())
                self._counted_to = chunk.next_offset
            yield chunk
