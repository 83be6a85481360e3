"""Kafka's own rule of compaction, as a model over plain records: what its cleaner keeps, and what it loses.

It stands beside `resolver.py` to be compared with, and never decides about a record of a user's log. The
rule, of Apache Kafka 4:

    map     a fixed table of 24-byte slots: MD5 of the key (16), offset (8), and nothing else. Two keys of one
            MD5 are one key to it: the newer record of either removes all older ones of both.
    fill    from the first dirty offset on, until the table is full to its load factor. It counts as full
            before anybody asks whether the key is in it already. What lies behind is left for another round.
    copy    every segment from the log's start up to the end of the mapped range. A record stays if the map
            has no newer offset for its digest, and, if it is a tombstone, if its time has not passed.

Several rounds, each from offset 0 of the log, go over a log with more keys than the table takes. A tombstone
that a round keeps starts the clock of its batch (`horizon_ms`), also one behind the mapped range, of which
older records are still there.

Left out, since no data record depends on it: empty batches, when markers go, how segments are merged. So is
one fault: mapping that starts behind a marker, inside its segment, takes the producer's later committed
batches for aborted ones, and leaves some garbage.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lastword.config.instance import DEFAULT_MAP_BYTES
from lastword.records.record import RawRecord
from lastword.records.varint import encode
from lastword.values import Value
from lastword.wire import HEADER_BYTES

if TYPE_CHECKING:
    from lastword.partition.view import PartitionView

LOAD_FACTOR = 0.9
SLOT_BYTES = 24
_WINDOWS = 12  # a digest of 16 bytes has windows of 4 bytes at 0 to 12; after these probing is linear


class DigestMap:
    """Digest of a key to an offset, in `memory_bytes` of 24-byte slots."""

    def __init__(self, memory_bytes: int) -> None:
        self.slots = memory_bytes // SLOT_BYTES
        if self.slots < 1:
            raise ValueError(f"a map of {memory_bytes} bytes has no slot of {SLOT_BYTES} bytes")
        self.clear()

    def clear(self) -> None:
        self._entries: dict[int, tuple[bytes, int]] = {}  # by slot; what is not there is an empty slot
        self.latest_offset = -1

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def used_ratio(self) -> float:
        return len(self._entries) / self.slots

    def put(self, key: bytes, offset: int) -> None:
        """Insert or overwrite: the last put wins. ValueError on a full map, also for a key it has."""
        if len(self._entries) >= self.slots:
            raise ValueError(f"all {self.slots} slots are taken")
        digest = md5(key)
        for slot in self._probes(digest):
            entry = self._entries.get(slot)
            if entry is None or entry[0] == digest:
                self._entries[slot] = (digest, offset)
                break
        self.latest_offset = offset

    def get(self, key: bytes) -> int:
        """The offset of the key's digest; -1 if it is not there."""
        digest = md5(key)
        for slot in self._probes(digest):
            entry = self._entries.get(slot)
            if entry is None:
                return -1
            if entry[0] == digest:
                return entry[1]
        return -1

    def _probes(self, digest: bytes) -> Iterator[int]:
        for attempt in range(self.slots + _WINDOWS):
            at = min(attempt, _WINDOWS)
            number = int.from_bytes(digest[at : at + 4], "big") + attempt - at
            number = (number + (1 << 31)) % (1 << 32) - (1 << 31)  # Java's int
            yield (0 if number == -(1 << 31) else abs(number)) % self.slots


def md5(key: bytes) -> bytes:
    """What Kafka's cleaner knows a key by."""
    return hashlib.md5(key, usedforsecurity=False).digest()


@dataclass(frozen=True, slots=True)
class ModelBatch:
    """A batch's records and what the rule asks of it.

    last_offset   as its header says; records of its end may be gone
    horizon_ms    its delete horizon, if it has one
    aborted       its transaction was aborted; control: it holds a marker, `records` is empty
    size_bytes    in the file; of one that a round cut, without compression
    """

    records: tuple[RawRecord, ...]
    last_offset: int
    magic: int = 2
    horizon_ms: int | None = None
    aborted: bool = False
    control: bool = False
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ModelSegment:
    """A segment; `mtime_ms` is the clock of tombstones of magic 0 and 1."""

    base_offset: int
    batches: tuple[ModelBatch, ...]
    mtime_ms: int = 0

    @property
    def size_bytes(self) -> int:
        return sum(batch.size_bytes for batch in self.batches)

    @property
    def records(self) -> Iterator[RawRecord]:
        return (record for batch in self.batches for record in batch.records)


@dataclass(frozen=True, slots=True)
class KafkaRound(Value):
    """What one round did.

    first_dirty, next_dirty   where its map began, and where the next one begins
    mapped                    digests in the map
    map_messages              that the map pass read: it counts a marker as one, those of aborted batches too
    keyless                   records without a key that were dropped
    read_bytes, written_bytes of map pass and copy
    """

    first_dirty: int
    next_dirty: int
    mapped: int
    used_ratio: float
    map_messages: int
    kept: int
    keyless: int
    read_bytes: int
    written_bytes: int


class KafkaCleaner:
    """Cleans logs by the rule, with a map of `map_bytes`, full at `load_factor` of its slots."""

    def __init__(self, map_bytes: int = DEFAULT_MAP_BYTES, load_factor: float = LOAD_FACTOR) -> None:
        self.map = DigestMap(map_bytes)
        if self.map.slots * load_factor <= 1:
            raise ValueError(f"{self.map.slots} slots at {load_factor} take no key: give the map more bytes")
        self.most_keys = int(self.map.slots * load_factor)

    def clean(
        self,
        segments: Sequence[ModelSegment],
        limit: int,
        *,
        first_dirty: int = 0,
        now_ms: int,
        delete_retention_ms: int,
    ) -> tuple[tuple[ModelSegment, ...], list[KafkaRound]]:
        """Rounds until all below `limit` (a segment's base, or the log end) has been mapped."""
        rounds = []
        done = tuple(segments)
        while first_dirty < limit:
            done, one = self.round(
                done, limit, first_dirty=first_dirty, now_ms=now_ms, delete_retention_ms=delete_retention_ms
            )
            rounds.append(one)
            if one.next_dirty <= first_dirty:
                break  # nothing lies between: Kafka would not have picked the log
            first_dirty = one.next_dirty
        return done, rounds

    def round(
        self,
        segments: Sequence[ModelSegment],
        limit: int,
        *,
        first_dirty: int,
        now_ms: int,
        delete_retention_ms: int,
    ) -> tuple[tuple[ModelSegment, ...], KafkaRound]:
        """One round: map from `first_dirty` on, copy from the start."""
        below = [one for one in segments if one.base_offset < limit]
        old_horizon_ms = max(
            ((one.base_offset, one.mtime_ms) for one in below if one.base_offset < first_dirty),
            default=(0, delete_retention_ms),
        )[1]
        old_horizon_ms -= delete_retention_ms
        messages, map_bytes = self._fill(below, first_dirty, limit)
        end = self.map.latest_offset + 1
        cleaned: list[ModelSegment] = []
        kept = keyless = read_bytes = written_bytes = 0
        for segment in segments:
            if segment.base_offset >= min(end, limit):
                cleaned.append(segment)
                continue
            spared = segment.mtime_ms > old_horizon_ms
            batches = []
            for batch in segment.batches:
                read_bytes += batch.size_bytes
                left = self._survivors(batch, now_ms, spared)
                keyless += 0 if batch.aborted else sum(r.key is None for r in batch.records)
                if left or batch.control:
                    batches.append(_cut(batch, left, now_ms + delete_retention_ms))
                    kept += len(left)
            cleaned.append(replace(segment, batches=tuple(batches)))
            written_bytes += cleaned[-1].size_bytes
        return tuple(cleaned), KafkaRound(
            first_dirty,
            end,
            len(self.map),
            self.map.used_ratio,
            messages,
            kept,
            keyless,
            map_bytes + read_bytes,
            written_bytes,
        )

    def _fill(self, below: Sequence[ModelSegment], start: int, limit: int) -> tuple[int, int]:
        """Messages and bytes read."""
        self.map.clear()
        messages = size = 0
        for number, segment in enumerate(below):
            following = below[number + 1].base_offset if number + 1 < len(below) else limit
            if following <= start:
                continue
            for batch in segment.batches:
                if batch.last_offset < start:
                    continue
                size += batch.size_bytes
                messages += 1 if batch.control else len(batch.records)
                for record in () if batch.aborted else batch.records:
                    if record.key is None or record.offset < start:
                        continue
                    if len(self.map) >= self.most_keys:
                        return messages, size
                    self.map.put(record.key, record.offset)
                self.map.latest_offset = batch.last_offset
            self.map.latest_offset = following - 1
        return messages, size

    def _survivors(self, batch: ModelBatch, now_ms: int, old_spared: bool) -> tuple[RawRecord, ...]:
        if batch.aborted:
            return ()
        if batch.magic < 2:
            spared = old_spared
        else:
            spared = batch.horizon_ms is None or now_ms < batch.horizon_ms
        return tuple(record for record in batch.records if self._stays(record, spared))

    def _stays(self, record: RawRecord, spared: bool) -> bool:
        if record.offset > self.map.latest_offset:
            return True
        if record.key is None:
            return False
        return record.offset >= self.map.get(record.key) and (record.value is not None or spared)


def _cut(batch: ModelBatch, left: tuple[RawRecord, ...], horizon_ms: int) -> ModelBatch:
    """The batch with what is left of it; byte for byte what it was if nothing has to change."""
    starts = batch.magic == 2 and batch.horizon_ms is None and any(record.value is None for record in left)
    if len(left) == len(batch.records) and not starts:
        return batch
    horizon = horizon_ms if starts else batch.horizon_ms
    return replace(batch, records=left, horizon_ms=horizon, size_bytes=plain_bytes(left, horizon))


def plain_bytes(records: Sequence[RawRecord], horizon_ms: int | None = None) -> int:
    """Bytes of an uncompressed batch of magic 2 that begins with the first of `records`."""
    base_ms = records[0].timestamp if horizon_ms is None else horizon_ms
    total = HEADER_BYTES
    for record in records:
        body = 1 + len(encode(record.timestamp - base_ms)) + len(encode(record.offset - records[0].offset))
        body += _field(record.key) + _field(record.value) + len(encode(len(record.headers)))
        for name, value in record.headers:
            body += _field(name.encode("utf-8", "surrogateescape")) + _field(value)
        total += len(encode(body)) + body
    return total


def _field(data: bytes | None) -> int:
    return 1 if data is None else len(encode(len(data))) + len(data)


def read_model(view: PartitionView) -> tuple[ModelSegment, ...]:
    """The whole of a log for the model; every record is held in memory."""
    from lastword.partition.transactions import Fate, control_of, scan
    from lastword.records.formats import read_records

    headers = []
    for segment in view.segments:
        for header in segment.headers():
            data = segment.read_batch(header) if header.control else b""
            headers.append((header, control_of(data, header, segment.file, position=0)))
    decisions = scan(headers)
    found = []
    for segment in view.segments:
        batches = []
        for header in segment.headers():
            data = b"" if header.control else segment.read_batch(header)
            records: tuple[RawRecord, ...] = ()
            if data:
                records = tuple(read_records(data, header, segment.file, position=0))
            batches.append(
                ModelBatch(
                    records,
                    header.last_offset,
                    header.magic,
                    header.delete_horizon_ms,
                    decisions.fate(header) == Fate.ABORTED,
                    header.control,
                    header.size,
                )
            )
        found.append(ModelSegment(segment.base_offset, tuple(batches), segment.mtime_ms))
    return tuple(found)


def newest_values(segments: Sequence[ModelSegment]) -> dict[bytes, RawRecord]:
    """Key to the newest record that is not of an aborted transaction, if that is no tombstone."""
    found: dict[bytes, RawRecord] = {}
    for segment in segments:
        for batch in segment.batches:
            for record in () if batch.aborted else batch.records:
                if record.key is not None:
                    found[record.key] = record
    return {key: record for key, record in found.items() if record.value is not None}


def lost(before: Sequence[ModelSegment], after: Sequence[ModelSegment]) -> tuple[RawRecord, ...]:
    """Newest values of `before` whose key reads otherwise in `after`: what the rule cost, by offset."""
    left = newest_values(after)
    gone = [record for key, record in newest_values(before).items() if left.get(key) != record]
    return tuple(sorted(gone, key=lambda record: record.offset))
