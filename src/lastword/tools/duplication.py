"""Count superseded records, their bytes, distinct keys, and keys in several partitions.

There are two methods. `estimated` reads the log once and keeps a `Sketch` for each partition, in a fixed
amount of memory; each row has its error. `counted` is exact, in the memory of a key map: it resolves each
partition, and for a topic with several partitions also all partitions concatenated. If the keys do not fit
the map, each of these scans reads the log once, with a scratch file. Takes no lock and changes nothing. Start
reading at `Duplication`.

Concatenated partitions are one log, so that one key map finds the keys that are in several partitions:

                         P0         P1         P2
    forwards    a key's newest record in P0 is dead there if P1 or P2 has the key, in P1 if P2 has it
    backwards   (P2, P1, P0)        in P2 if P1 or P0 has it, in P1 if P0 has it

A record that is the newest of its key in its partition, alive forwards and dead backwards, is the last
record of a key in several partitions; each such key has exactly one such record. Dead in either direction
means that another partition has the key, too. Both are counts of bits; only the map holds keys.

A `Sketch` has the number of records and of distinct keys in a part of a log. Record counts are exact; keys
are a theta sketch (of the `datasketches` package): the smallest `2**LG_K` hash values of all keys. Two
sketches merge into the sketch of both parts, for any parts and in any order, and yield how many keys two
parts have in common. So each task can sketch its share and send the bytes, and the driver merges them. The
format of `to_bytes` is ours; the keys in it are in Apache's compact format. A key is added as a 64-bit hash
with a fixed seed, so that sketches of different processes can be merged. Once a sketch is full, most hash
values are above its threshold; they are removed in arrays, and only the others are passed to the package.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from lastword import kernels
from lastword.errors import CorruptFileError
from lastword.kernels import table as fields
from lastword.kernels.hashing import hash_spans, seeds
from lastword.kernels.pages import PAGE_BITS
from lastword.partition.reads import read_again
from lastword.partition.transactions import BatchOutcome, Outcomes
from lastword.partition.view import PartitionView
from lastword.records.chunk import Chunk
from lastword.records.columns import decode_columns
from lastword.resolve import DeadBitmaps, Resolution, ScratchPlace, outcomes_of, resolve
from lastword.segment.segment import Segment
from lastword.units import format_bytes
from lastword.values import Value, plural

if TYPE_CHECKING:
    from lastword.resolve import SegmentFacts, SegmentSource
    from lastword.resolve.facts import TransactionOutcomes

LG_K = 14
"""16 384 values: 0.8 % standard error, 128 KiB a sketch."""

_SALT = b"lastword sketch"  # fixed: sketches of all processes must have equal hashes of a key
_THETA_SEED = 9001  # the package's default, which other readers of these bytes expect
_HEADER = struct.Struct("<4sB3x6qI")
_MAGIC, _VERSION = b"LWSK", 1


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimated number of keys, with its standard deviation."""

    keys: float
    deviation: float

    @property
    def rounded(self) -> int:
        """Return the estimate as a whole number."""
        return max(0, round(self.keys))


class KeySet:
    """The keys of one part: a theta sketch. Immutable: its methods return new sets."""

    __slots__ = ("_sketch",)

    def __init__(self, sketch: Any = None) -> None:
        self._sketch = _theta().update_theta_sketch(LG_K).compact() if sketch is None else sketch

    @property
    def estimate(self) -> Estimate:
        """Return the estimated number of keys."""
        keys = self._sketch.get_estimate()
        if not self._sketch.is_estimation_mode():
            return Estimate(keys, 0.0)
        low, high = self._sketch.get_lower_bound(1), self._sketch.get_upper_bound(1)
        return Estimate(keys, (high - low) / 2)

    @staticmethod
    def union(parts: Iterable[KeySet]) -> KeySet:
        """Return the keys of all parts."""
        union = _theta().theta_union(LG_K)
        for part in parts:
            union.update(part._sketch)
        return KeySet(union.get_result())

    def common(self, other: KeySet) -> KeySet:
        """Return the keys that are in both sets."""
        common = _theta().theta_intersection()
        common.update(self._sketch)
        common.update(other._sketch)
        return KeySet(common.get_result())

    def without(self, other: KeySet) -> KeySet:
        """Return the keys that are not in `other`."""
        return KeySet(_theta().theta_a_not_b().compute(self._sketch, other._sketch))

    def to_bytes(self) -> bytes:
        """Return the serialized sketch."""
        return bytes(self._sketch.serialize())

    @classmethod
    def from_bytes(cls, data: bytes) -> KeySet:
        """Return the set of a serialized sketch."""
        return cls(_theta().compact_theta_sketch.deserialize(data))


@dataclass(slots=True)
class Sketch:
    """Counts and keys of a part of a log.

    Attributes:
        records: All records except control records.
        keyless: Records without a key.
        tombstones: Records with a key and a null value.
        keyed: Records with a key, without those of aborted and ongoing transactions.
        keyed_bytes: Their share of the bytes on disk.
        size_bytes: All bytes.
        keys: The distinct keys of `keyed`.
    """

    records: int = 0
    keyless: int = 0
    tombstones: int = 0
    keyed: int = 0
    keyed_bytes: int = 0
    size_bytes: int = 0
    keys: KeySet = field(default_factory=KeySet)

    @staticmethod
    def merged(parts: Iterable[Sketch]) -> Sketch:
        """Merge the sketches of several parts. The parts must not overlap: records are added up."""
        chosen = list(parts)
        return Sketch(
            records=sum(part.records for part in chosen),
            keyless=sum(part.keyless for part in chosen),
            tombstones=sum(part.tombstones for part in chosen),
            keyed=sum(part.keyed for part in chosen),
            keyed_bytes=sum(part.keyed_bytes for part in chosen),
            size_bytes=sum(part.size_bytes for part in chosen),
            keys=KeySet.union(part.keys for part in chosen),
        )

    def to_bytes(self) -> bytes:
        """Encode for another process; `from_bytes` decodes it."""
        keys = self.keys.to_bytes()
        counts = (
            self.records,
            self.keyless,
            self.tombstones,
            self.keyed,
            self.keyed_bytes,
            self.size_bytes,
        )
        checked = _HEADER.pack(_MAGIC, _VERSION, *counts, 0) + keys
        return _HEADER.pack(_MAGIC, _VERSION, *counts, google_crc32c.value(checked)) + keys

    @classmethod
    def from_bytes(cls, data: bytes) -> Sketch:
        """Decode the result of `to_bytes`; CorruptFileError for other bytes."""
        try:
            magic, version, *numbers, crc = _HEADER.unpack_from(data)
        except struct.error:
            raise _corrupt(f"{len(data)} bytes are too few") from None
        if magic != _MAGIC or version != _VERSION:
            raise _corrupt(f"begins with {data[:5]!r}")
        keys = data[_HEADER.size :]
        checked = _HEADER.pack(magic, version, *numbers, 0) + keys
        if google_crc32c.value(checked) != crc:
            raise _corrupt("its checksum is wrong")
        records, keyless, tombstones, keyed, keyed_bytes, size_bytes = numbers
        return cls(records, keyless, tombstones, keyed, keyed_bytes, size_bytes, KeySet.from_bytes(keys))


class Sketcher:
    """Makes a `Sketch` from chunks."""

    def __init__(self) -> None:
        self._theta = _theta().update_theta_sketch(LG_K)
        self._counts = Sketch()
        self._keyed_bytes = 0.0

    def add(self, chunk: Chunk, committed: NDArray[np.bool_] | None = None) -> None:
        """Add a chunk; CorruptBatchError if it is damaged.

        Args:
            chunk: The chunk.
            committed: A bool for each batch: its records are committed. None: all are.
        """
        columns = decode_columns(chunk)
        keyed = columns.key_length >= 0
        counts = self._counts
        counts.records += len(columns)
        counts.keyless += len(columns) - int(keyed.sum())
        counts.tombstones += int((keyed & (columns.value_length < 0)).sum())
        counts.size_bytes += chunk.size_bytes
        if committed is not None:
            keyed &= committed[columns.row]
        keyed_count = int(keyed.sum())
        if not keyed_count:
            return
        counts.keyed += keyed_count
        self._keyed_bytes += chunk.size_bytes * keyed_count / len(columns)
        hashes = np.empty(keyed_count, np.uint64)
        status = hash_spans(
            chunk.uncompressed, columns.key_position[keyed], columns.key_length[keyed], *_seeds(), hashes
        )
        if status != kernels.OK:
            chunk.raise_status(0, status)
        self._take(hashes)

    def _take(self, hashes: NDArray[np.uint64]) -> None:
        values = hashes.view(np.int64)
        update = self._theta.update
        low = theta_hashes(values) < np.uint64(self._theta.theta64)
        for value in np.unique(values[low]).tolist():
            update(value)

    def sketch(self) -> Sketch:
        """Return the sketch of all added chunks."""
        counts = self._counts
        return Sketch(
            counts.records,
            counts.keyless,
            counts.tombstones,
            counts.keyed,
            round(self._keyed_bytes),
            counts.size_bytes,
            KeySet(self._theta.compact()),
        )


def theta_hashes(values: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Hash 64-bit integers as a theta sketch does.

    The hash is the upper 63 bits of the first half of their 128-bit Murmur3 hash. A sketch keeps the hashes
    below its threshold.
    """
    with np.errstate(over="ignore"):
        word = values.view(np.uint64) * np.uint64(0x87C37B91114253D5)
        word = (word << np.uint64(31) | word >> np.uint64(33)) * np.uint64(0x4CF5AD432745937F)
        second = np.uint64(_THETA_SEED) ^ np.uint64(8)
        first = (word ^ np.uint64(_THETA_SEED) ^ np.uint64(8)) + second
        return (_mixed(first) + _mixed(first + second)) >> np.uint64(1)


def _mixed(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    word = (word ^ (word >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    word = (word ^ (word >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return word ^ (word >> np.uint64(33))


def _seeds() -> tuple[np.uint64, np.uint64]:
    return seeds(_SALT, b"lastword keys")


def _theta() -> Any:
    import datasketches

    return datasketches


def _corrupt(text: str) -> CorruptFileError:
    return CorruptFileError(f"not a sketch: {text}", remedy="make it again from the log")


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

    def of_batches(
        self,
        attributes: NDArray[np.int64],
        producer_ids: NDArray[np.int64],
        base_offsets: NDArray[np.int64],
        last_offsets: NDArray[np.int64],
    ) -> NDArray[np.uint8]:
        """Return the outcomes of the batches of one chunk, which belong to one partition."""
        i = int(np.searchsorted(self._starts, base_offsets[0], side="right")) - 1
        shift = self._shifts[i]
        return self._outcomes[i].of_batches(
            attributes, producer_ids, base_offsets - shift, last_offsets - shift
        )

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

T = TypeVar("T")


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
        error_ratio: One standard deviation of the estimates, as a share of distinct_keys; 0 if the keys are
            few enough to count them all. It does not cover superseded_bytes.
        exact: Whether all counts are exact. If not, superseded_bytes is an average size times
            superseded_records, also where error_ratio is 0.
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
    error_ratio: float
    exact: bool
    size_bytes: int
    segment: int | None = None

    @property
    def name(self) -> str:
        """The name of the row: `users`, `users-0`, or with its segment `users-0/4000`."""
        partition = "" if self.partition is None else f"-{self.partition}"
        return f"{self.topic}{partition}" + ("" if self.segment is None else f"/{self.segment}")

    def __str__(self) -> str:
        about = "" if self.exact else "~ "
        size = format_bytes(self.superseded_bytes)
        return (
            f"{self.name}: {plural(self.records, 'record')}, {about}{plural(self.distinct_keys, 'key')}, "
            f"{about}{self.superseded_records} superseded ({self.superseded_ratio:.0%}, {size})"
        )

    @property
    def superseded_ratio(self) -> float:
        """Share of the superseded records."""
        return self.superseded_records / self.records if self.records else 0.0


# ---------------------------------------------------------------- with sketches


def estimated(
    topic: str, views: Mapping[int, PartitionView], by: str, stage: Stage, *, whole: bool
) -> list[Duplication]:
    """Return rows for these partitions from one scan. `whole`: these are all partitions of the topic."""
    sketches, rows = {}, []
    for number, view in sorted(views.items()):
        sketches[number], segment_rows = _repeated(
            [view], partial(_sketched, topic, view, by == "segment", stage)
        )
        rows += segment_rows
    return rows if by == "segment" else of_sketches(topic, sketches, by, whole=whole)


def of_sketches(topic: str, sketches: Mapping[int, Sketch], by: str, *, whole: bool) -> list[Duplication]:
    """Return rows by topic or partition from one sketch per partition; sketches may be merged ones.

    Args:
        topic: The topic.
        sketches: A sketch per partition.
        by: "topic" or "partition".
        whole: These are all partitions of the topic.
    """
    numbers = sorted(sketches)
    keys = [sketches[number].keys for number in numbers]
    if by == "partition":
        others = _union_of_others(keys)
        return [
            _row(
                topic,
                number,
                sketches[number],
                split=own_keys.common(other).estimate.rounded if whole else None,
            )
            for number, own_keys, other in zip(numbers, keys, others, strict=True)
        ]
    merged = Sketch.merged(sketches.values())
    before, shared_counts = KeySet(), []
    for part in keys:
        shared_counts.append(part.common(before))
        before = KeySet.union([before, part])
    split = KeySet.union(shared_counts).estimate.rounded if whole else None
    # A key in several partitions has a newest record in each of them.
    live = [sketch.keys.estimate for sketch in sketches.values()]
    return [_row(topic, None, merged, split=split, live=_sum(live))]


def sketch_of(view: PartitionView, selects: Callable[[int], bool]) -> Sketch:
    """Return a sketch of the segments whose base offset `selects` accepts: a task's share of a log."""

    def scan() -> Sketch:
        sketcher = Sketcher()
        outcomes = Outcomes(view, view.log_end)
        for segment in view.segments:
            if selects(segment.base_offset):
                for chunk in segment.chunk_reader(verify=True):
                    sketcher.add(chunk, outcomes_of(chunk, outcomes) == BatchOutcome.COMMITTED)
        return sketcher.sketch()

    return _repeated([view], scan)


def _sketched(
    topic: str, view: PartitionView, by_segment: bool, stage: Stage
) -> tuple[Sketch, list[Duplication]]:
    """Return the partition's sketch, and the rows of its segments if `by_segment`.

    Segments are read newest first: a key of a segment is superseded if a later segment has it.
    """
    total = sum(segment.size for segment in view.segments)
    done_bytes = 0
    rows: list[Duplication] = []
    later = Sketch()
    with stage(total) as progress:
        sketcher = Sketcher()
        for segment in reversed(view.segments) if by_segment else view.segments:
            outcomes = Outcomes(view, view.log_end)
            for chunk in segment.chunk_reader(verify=True):
                sketcher.add(chunk, outcomes_of(chunk, outcomes) == BatchOutcome.COMMITTED)
                done_bytes += chunk.size_bytes
                if progress is not None:
                    progress(done_bytes, total)
            if by_segment:
                sketch = sketcher.sketch()
                live = sketch.keys.without(later.keys).estimate
                rows.insert(
                    0, _row(topic, view.partition, sketch, live=live, split=None, segment=segment.base_offset)
                )
                later, sketcher = Sketch.merged([later, sketch]), Sketcher()
        return later if by_segment else sketcher.sketch(), rows


def _row(
    topic: str,
    partition: int | None,
    sketch: Sketch,
    *,
    split: int | None,
    live: Estimate | None = None,
    segment: int | None = None,
) -> Duplication:
    """Make a row. `live`: keys whose newest record is in this part; None: all keys of the sketch."""
    distinct = sketch.keys.estimate
    newest = distinct if live is None else live
    superseded = max(0, sketch.keyed - newest.rounded)
    deviation = max(distinct.deviation, newest.deviation)
    return Duplication(
        topic=topic,
        partition=partition,
        records=sketch.records,
        keyless=sketch.keyless,
        distinct_keys=distinct.rounded,
        superseded_records=superseded,
        superseded_bytes=round(sketch.keyed_bytes * superseded / sketch.keyed) if sketch.keyed else 0,
        tombstones=sketch.tombstones,
        split_keys=split,
        error_ratio=deviation / distinct.keys if distinct.keys else 0.0,
        exact=False,
        size_bytes=sketch.size_bytes,
        segment=segment,
    )


def _sum(parts: Sequence[Estimate]) -> Estimate:
    """Add independent estimates."""
    return Estimate(sum(part.keys for part in parts), sum(part.deviation**2 for part in parts) ** 0.5)


def _union_of_others(keys: Sequence[KeySet]) -> list[KeySet]:
    """Return for each key set the union of all others."""
    after = [KeySet()]
    for key_set in reversed(keys[1:]):
        after.append(KeySet.union([after[-1], key_set]))
    before, unions = KeySet(), []
    for key_set, rest in zip(keys, reversed(after), strict=True):
        unions.append(KeySet.union([before, rest]))
        before = KeySet.union([before, key_set])
    return unions


# ---------------------------------------------------------------- exactly


def counted(
    topic: str, views: Mapping[int, PartitionView], by: str, stage: Stage, *, whole: bool, map_bytes: int
) -> list[Duplication]:
    """Return exact rows for these partitions, in the memory of one key map.

    `whole`: these are all partitions of the topic.
    """
    chosen = [view for _, view in sorted(views.items())]
    return _repeated(chosen, lambda: _counted(topic, chosen, by, stage, whole, map_bytes))


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
                    _exact_row(
                        topic, view.partition, [facts], alone.distinct_keys, dead, None, segment.base_offset
                    )
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
            _exact_row(
                topic, view.partition, resolution.segments, resolution.distinct_keys, sum(dead), own_split
            )
            for view, resolution, dead, own_split in zip(views, resolutions, tombstones, splits, strict=True)
        ]
    every = [facts for resolution in resolutions for facts in resolution.segments]
    return [_exact_row(topic, None, every, distinct, sum(map(sum, tombstones)), split)]


def _exact_row(
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
        error_ratio=0.0,
        exact=True,
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


def _repeated(views: Sequence[PartitionView], work: Callable[[], T]) -> T:
    """Run `work`, and run it again with a new listing if a file was rewritten meanwhile."""

    def renew() -> None:
        for view in views:
            view.refresh()

    return read_again(work, renew)
