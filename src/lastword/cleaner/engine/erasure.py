"""Erase keys from one partition: find their records, and rewrite the segments that have any.

`SpanSet` looks keys up in chunks of records. `find_records` lists what a partition has of them. `KeyErasure`
is a `Liveness` of the cleaner: dead are the records of the keys up to the tombstone of each, and no others.
So the rewrite, its certificate, and the crash-safe swap are those of every cleaning. Records of other keys
stay, also garbage; `min.compaction.lag.ms` does not apply. Records of aborted transactions are removed like
others.

The tombstone goes only with `drops_tombstones`. If it is the last record of its segment, an empty batch keeps
its offset, as in every rewrite. Readers below that have a lease are refused at their next advance
(`removal_log.note_erased`).
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lastword import kernels
from lastword.cleaner.engine import report
from lastword.cleaner.engine.build import threads_for
from lastword.cleaner.engine.cleaning import (
    CleanableLog,
    CleanContext,
    Liveness,
    ScanResult,
    Steps,
    below,
    clean,
    limits_of,
)
from lastword.cleaner.engine.partition import alone, prepare
from lastword.cleaner.engine.report import CleanRound
from lastword.cleaner.engine.sinks import Publisher
from lastword.cleaner.engine.transactions import TransactionFacts, walked
from lastword.cleaner.policy import quarantine
from lastword.cleaner.policy.groups import SegmentGroup, group
from lastword.cleaner.policy.plan import CleanRequest, Plan
from lastword.errors import BusyError
from lastword.kernels import offset_map as loops
from lastword.kernels import table as fields
from lastword.kernels.digest import sum_pairs
from lastword.kernels.hashing import digest_seeds, hash_spans, seeds
from lastword.partition.leases import Leases
from lastword.records.chunk import SCAN_BYTES, Chunk
from lastword.records.columns import RecordColumns, decode_columns
from lastword.resolve import DeadBitmaps, Resolution
from lastword.resolve.facts import SegmentCounts, digest_seed_of
from lastword.segment.segment import Segment
from lastword.wire import CONTROL_BIT, TRANSACTIONAL_BIT

if TYPE_CHECKING:
    from lastword.config import TopicConfig
    from lastword.partition.log import PartitionLog

_MASK = (1 << 64) - 1

Int64s = NDArray[np.int64]
OnValue = Callable[[bytes], None]


class ByteStrings:
    """Byte strings in one buffer, with 8 bytes for each beside its own."""

    def __init__(self, strings: Iterable[bytes]) -> None:
        data, ends = bytearray(), array("q", [0])
        for string in strings:
            data += string
            ends.append(len(data))
        self.size_bytes = len(data)
        data += bytes(kernels.SLACK)
        self.data, self.ends = np.frombuffer(data, np.uint8), np.frombuffer(ends, np.int64)

    def __len__(self) -> int:
        return self.ends.size - 1

    def __getitem__(self, number: int) -> bytes:
        return self.data[self.ends[number] : self.ends[number + 1]].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        return map(self.__getitem__, range(len(self)))


class SpanSet:
    """A set of byte strings that is looked up in spans of a buffer, by hash and then by bytes.

    Args:
        members: The byte strings.
        is_sorted: They are ascending, without an equal one, and are not held beside the set.
    """

    def __init__(self, members: Iterable[bytes], *, is_sorted: bool = False) -> None:
        self.members = ByteStrings(members if is_sorted else sorted(set(members)))
        self._seeds = seeds(os.urandom(16), b"lastword erase")
        ends = self.members.ends
        hashes = self._hashes_of(self.members.data, ends[:-1], np.diff(ends).astype(np.int32))
        self._order = np.argsort(hashes)
        self._sorted = hashes[self._order]

    def number(self, member: bytes) -> int:
        """Return the number of a member; -1: it is none."""
        at = bisect_left(self.members, member)
        return at if at < len(self.members) and self.members[at] == member else -1

    def find(
        self, data: NDArray[np.uint8], position: Int64s, length: NDArray[np.int32]
    ) -> tuple[Int64s, Int64s]:
        """Return the indexes of the spans that are members, and for each the number of the member."""
        none = np.empty(0, np.int64)
        if not self.members or not position.size:
            return none, none
        hashes = self._hashes_of(data, np.ascontiguousarray(position), np.ascontiguousarray(length))
        at = np.searchsorted(self._sorted, hashes)
        at[at == self._sorted.size] = 0
        rows = np.flatnonzero((self._sorted[at] == hashes) & (length >= 0))
        numbers = self._order[at[rows]]
        equal = np.array(
            [
                data[position[row] : position[row] + length[row]].tobytes() == self.members[number]
                for row, number in zip(rows.tolist(), numbers.tolist(), strict=True)
            ],
            np.bool_,
        )
        return (rows[equal], numbers[equal]) if rows.size else (none, none)

    def _hashes_of(
        self, data: NDArray[np.uint8], position: Int64s, length: NDArray[np.int32]
    ) -> NDArray[np.uint64]:
        hashes = np.empty(position.size, np.uint64)
        if hash_spans(data, position, length, *self._seeds, hashes) != kernels.OK:
            raise AssertionError("a span outside its buffer")
        return hashes


@dataclass(frozen=True, slots=True)
class Hits:
    """The records of the keys in one chunk. `rows` are indexes into `columns`, `numbers` the keys."""

    segment: int
    chunk: Chunk
    columns: RecordColumns
    rows: Int64s
    numbers: Int64s


def hits_of(number: int, source: Segment, keys: SpanSet) -> Iterator[Hits]:
    """Yield every chunk of a segment, with the records of the keys. Raises CorruptBatchError."""
    for chunk in source.chunk_reader(chunk_bytes=SCAN_BYTES, verify=True):
        chunk.decompress()
        columns = decode_columns(chunk)
        rows, numbers = keys.find(chunk.uncompressed, columns.key_position, columns.key_length)
        yield Hits(number, chunk, columns, rows, numbers)


def keys_with_prefix(segments: Sequence[Segment], prefix: bytes) -> set[bytes]:
    """Return the keys in these segments that begin with `prefix`."""
    found: set[bytes] = set()
    wanted = np.frombuffer(prefix, np.uint8)
    for segment in segments:
        for chunk in segment.chunk_reader(chunk_bytes=SCAN_BYTES, verify=True):
            chunk.decompress()
            columns = decode_columns(chunk)
            rows = np.flatnonzero(columns.key_length >= len(prefix))
            for i, byte in enumerate(wanted.tolist()):
                rows = rows[chunk.uncompressed[columns.key_position[rows] + i] == byte]
            for row in rows.tolist():
                start = int(columns.key_position[row])
                found.add(chunk.uncompressed[start : start + int(columns.key_length[row])].tobytes())
    return found


@dataclass(frozen=True, slots=True)
class FoundRecords:
    """The records of the keys in a partition.

    Attributes:
        records: Records with a value.
        tombstones: Records without one.
        keys: The numbers of the keys that have a record, ascending.
        newest: The highest offset of a record of each.
        is_deleted: Whether that record is a tombstone outside of transactions.
        offsets: All offsets, ascending.
    """

    records: int
    tombstones: int
    keys: Int64s
    newest: Int64s
    is_deleted: NDArray[np.bool_]
    offsets: Int64s

    @classmethod
    def undeleted(cls, keys: Int64s) -> FoundRecords:
        """Return keys that are to get a tombstone, without their records."""
        return cls(0, 0, np.sort(keys), np.zeros_like(keys), np.zeros(keys.size, np.bool_), keys[:0])


def find_records(segments: Sequence[Segment], keys: SpanSet, on_value: OnValue | None = None) -> FoundRecords:
    """Find the records of the keys, of any transaction outcome. `on_value` is called with each value."""
    newest = np.full(len(keys.members), -1, np.int64)
    is_deleted, records, offsets = newest >= 0, 0, [newest[:0]]
    for number, segment in enumerate(segments):
        for hits in hits_of(number, segment, keys):
            found = hits.columns.select(hits.rows)
            has_value = found.value_length >= 0
            in_transaction = (hits.chunk.table[found.row, fields.ATTRIBUTES] & TRANSACTIONAL_BIT) != 0
            newest[hits.numbers] = found.offset  # of equal numbers the last one counts
            is_deleted[hits.numbers] = ~(has_value | in_transaction)
            if on_value is not None:
                _call_with_values(found, hits.chunk, on_value)
            records += int(has_value.sum())
            offsets.append(found.offset)
    every, there = np.concatenate(offsets), np.flatnonzero(newest >= 0)
    return FoundRecords(records, every.size - records, there, newest[there], is_deleted[there], every)


def _call_with_values(columns: RecordColumns, chunk: Chunk, on_value: OnValue) -> None:
    for start, size in zip(columns.value_position.tolist(), columns.value_length.tolist(), strict=True):
        if size >= 0:
            on_value(chunk.uncompressed[start : start + size].tobytes())


class KeyErasure(Liveness):
    """The records of keys up to the tombstone of each are dead, and no others.

    Attributes:
        removed: Offsets of the records that were found dead, ascending.
    """

    def __init__(
        self, keys: SpanSet, tombstones: Int64s, on_value: OnValue, *, drops_tombstones: bool
    ) -> None:
        """Make the erasure; for the parameters see `erase_records`."""
        self.removed = np.empty(0, np.int64)
        self._keys, self._on_value = keys, on_value
        self._end = np.where(tombstones < 0, -1, tombstones + drops_tombstones)
        self._dropped = np.empty(0, np.int64)

    def scan(
        self, log: CleanableLog, segments: Sequence[Segment], plan: Plan, context: CleanContext, steps: Steps
    ) -> ScanResult | Plan:
        """Scan the log, and group the segments with records of the keys."""
        started = context.clock.monotonic()
        sources = below(segments, plan.limit)
        seed = digest_seed_of(os.urandom(16) if context.salt is None else context.salt)
        counts, removed, dropped = SegmentCounts(), [self.removed], [self._dropped]
        counts.add(sources)
        total_bytes = sum(source.size for source in sources)
        done_bytes, first_transaction = 0, -1
        with quarantine.on_damage(context.files, log.directory, plan, dry=context.dry):
            for number, source in enumerate(sources):
                for hits in hits_of(number, source, self._keys):
                    counts.count(hits.chunk, number)
                    offsets, tombstones = self._count(hits, counts, digest_seeds(seed))
                    removed.append(offsets)
                    dropped.append(offsets[tombstones])
                    special = hits.chunk.table[:, fields.ATTRIBUTES] & (TRANSACTIONAL_BIT | CONTROL_BIT)
                    if first_transaction < 0 and special.any():
                        first_transaction = int(hits.chunk.table[special != 0, fields.BASE_OFFSET][0])
                    done_bytes += hits.chunk.size_bytes
                    steps.mapped(done_bytes, total_bytes)
        self.removed, self._dropped = np.concatenate(removed), np.concatenate(dropped)
        facts = counts.facts()
        seconds = context.clock.monotonic() - started
        records, dead = int(counts.records.sum()), DeadBitmaps.of(self.removed)
        resolution = Resolution(facts, dead, records=records, digest_seed=seed, seconds=seconds)
        groups = group(facts, limits_of(plan)) if self.removed.size else ()
        if not groups:
            return replace(plan, action="keep")
        stats = report.scan_stats(plan, resolution)
        threads = threads_for(sum(group.size_bytes for group in groups), context.threads)
        met = walked(segments, plan.limit, plan.now_ms, plan.producer_expiration_ms, first_transaction)
        # Every control batch and every aborted transaction stays as it is.
        transactions = TransactionFacts(aborted=met.aborted, spoke_ms=met.spoke_ms)
        return ScanResult(sources, resolution, groups, transactions, stats, Leases(), threads)

    def _count(
        self, hits: Hits, counts: SegmentCounts, seed_pair: tuple[np.uint64, np.uint64]
    ) -> tuple[Int64s, NDArray[np.bool_]]:
        """Count the records of a chunk; return the offsets of dead ones, and which are tombstones.

        The digest of live records is that of all records less that of the dead ones.
        """
        chunk, columns, number = hits.chunk, hits.columns, hits.segment
        pairs, _, row, status = sum_pairs(chunk.uncompressed, chunk.table, chunk.rows, *seed_pair)
        if status != kernels.OK:
            chunk.raise_status(row, status)
        dead = hits.rows[columns.offset[hits.rows] < self._end[hits.numbers]]
        gone = columns.select(dead)
        hashes = np.empty(dead.size, np.uint64)
        hash_spans(chunk.uncompressed, gone.key_position, gone.key_length, *seed_pair, hashes)
        digest0, digest1 = map(int, seed_pair)
        lost = 0
        for hashed, offset in zip(hashes.tolist(), gone.offset.tolist(), strict=True):
            product = (hashed ^ digest0) * (offset ^ digest1)  # `kernels.hashing.pair_digest`
            lost += (product ^ product >> 64) & _MASK
        counts.digests[number] = (int(counts.digests[number]) + int(pairs) - lost) & _MASK
        _call_with_values(gone, chunk, self._on_value)
        tombstones = gone.value_length < 0
        stats = counts.stats[number]
        stats[loops.DEAD_RECORDS] += dead.size
        stats[loops.DUE_TOMBSTONES] += int(tombstones.sum())
        stats[loops.TOMBSTONES] += int((columns.value_length < 0).sum() - tombstones.sum())
        stats[loops.DEAD_BYTES] += chunk.size_bytes * dead.size // max(len(columns), 1)
        return gone.offset, tombstones

    def highest_due(self, group: SegmentGroup) -> int:
        """Return the highest offset of a tombstone that this group drops; -1: none."""
        at = int(np.searchsorted(self._dropped, group.next_offset)) - 1
        return int(self._dropped[at]) if at >= 0 and self._dropped[at] >= group.base_offset else -1

    def first_dirty(self) -> int:
        """Return 0, which is not recorded: garbage of other keys may be left anywhere."""
        return 0

    def held_back(self, scan: ScanResult) -> Int64s:
        """Return no offsets: leases keep nothing from an erasure."""
        return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class ErasedRecords:
    """The result of `erase_records`: the report of the rewrite (None: nothing was there), and all offsets."""

    round: CleanRound | None
    offsets: Int64s


def erase_records(
    log: PartitionLog,
    config: TopicConfig,
    keys: SpanSet,
    tombstones: Int64s,
    context: CleanContext,
    on_value: OnValue,
    *,
    drops_tombstones: bool,
) -> ErasedRecords:
    """Remove the records of keys below the tombstone of each, from every segment.

    The active segment is closed first. If the call is repeated after a crash, it removes what is left.

    Args:
        log: The open log.
        config: Settings of the topic.
        keys: The keys.
        tombstones: The offset of the tombstone of each key; -1: it has none, and nothing of it is removed.
        context: Storage, memory, budget and progress of the cleaning.
        on_value: Called with the value of each record that is removed.
        drops_tombstones: Remove the tombstones, too.

    Raises:
        BusyError: An open transaction or an incomplete commit, or another cleaning, is in the way.
    """
    with alone(log.files, log.directory):
        plan = prepare(log, replace(config, min_compaction_lag_ms=0), CleanRequest())
        if plan.action != "clean" or plan.limit <= tombstones.max():
            why = "; ".join(map(str, plan.reasons)) or "its segments cannot be closed"
            raise BusyError(
                f"{log.topic}-{log.partition}: the older records of the keys are still there: {why}",
                remedy="end what holds them, then erase again",
                file=log.directory,
            )
        erasure = KeyErasure(keys, tombstones, on_value, drops_tombstones=drops_tombstones)
        sink = Publisher(log, plan, lambda _: None, holds_leases=not drops_tombstones)
        return ErasedRecords(clean(log, plan, erasure, sink, context), erasure.removed)
