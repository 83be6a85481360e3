"""Model Kafka's cleaner over plain records: the records that it keeps, and the values that it loses.

The model serves comparisons; it never decides about a record of a user's log. The rule of Apache Kafka 4:

    map     A fixed table of 24-byte slots: MD5 of the key (16 bytes) and offset (8 bytes), nothing else. Two
            keys with one MD5 are one key: the newer record of either removes all older records of both.
    fill    The table is filled from the first dirty offset until it is full to its load factor. It counts as
            full before the key is looked up in it. Records above that offset wait for another cleaning.
    copy    Every segment from the start of the log to the end of the mapped range is copied. A record stays
            if the map has no newer offset for its digest and, for a tombstone, if its time has not passed.

A log with more keys than the table holds takes several cleanings, each from the start of the log. A cleaning
that keeps a tombstone sets the delete horizon of its batch, also for a batch above the mapped range whose key
still has older records.

Not modelled, because no data record depends on it: empty batches, the removal of markers, the merging of
segments. One fault is not modelled either: if mapping starts after a marker inside its segment, Kafka treats
the producer's later committed batches as aborted and leaves some garbage.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lastword.config.tables import DEFAULT_MAP_BYTES
from lastword.records.record import RawRecord, encode_varint
from lastword.values import Value
from lastword.wire import HEADER_BYTES

if TYPE_CHECKING:
    from lastword.partition.view import PartitionView

LOAD_FACTOR = 0.9
SLOT_BYTES = 24
_WINDOWS = 12  # a digest of 16 bytes has windows of 4 bytes at 0 to 12; after these probing is linear


class DigestMap:
    """Kafka's map: MD5 digest of a key to an offset, in `memory_bytes` of 24-byte slots.

    Probing, the test for a full table and overwriting are as in Kafka, so that the model stops at the same
    record and confuses the same keys. The map that keeps whole keys is `resolve.offset_map`.
    """

    def __init__(self, memory_bytes: int) -> None:
        self.slots = memory_bytes // SLOT_BYTES
        if self.slots < 1:
            raise ValueError(f"a map of {memory_bytes} bytes has no slot of {SLOT_BYTES} bytes")
        self.clear()

    def clear(self) -> None:
        """Empty the map."""
        self._entries: dict[int, tuple[bytes, int]] = {}  # by slot; a missing slot is empty
        self.latest_offset = -1

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def used_ratio(self) -> float:
        """Return the share of slots in use."""
        return len(self._entries) / self.slots

    def put(self, key: bytes, offset: int) -> None:
        """Insert a key or overwrite its offset.

        Raises:
            ValueError: The map is full, even if it has the key.
        """
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
        """Return the offset of the key's digest, or -1."""
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
    """Return the digest by which Kafka's cleaner identifies a key."""
    return hashlib.md5(key, usedforsecurity=False).digest()


@dataclass(frozen=True, slots=True)
class ModelBatch:
    """A batch's records, and the facts of the batch that the rule uses.

    Attributes:
        records: Empty for a control batch.
        last_offset: From the header; the record with this offset may be removed.
        magic: Format version.
        horizon_ms: Delete horizon, if the batch has one.
        aborted: Whether its transaction was aborted.
        control: Whether the batch holds a marker.
        size_bytes: Bytes in the file; uncompressed for a batch that a cleaning cut.
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
        """Bytes of all batches."""
        return sum(batch.size_bytes for batch in self.batches)

    @property
    def records(self) -> Iterator[RawRecord]:
        """Records of all batches, in order."""
        return (record for batch in self.batches for record in batch.records)


@dataclass(frozen=True, slots=True)
class KafkaCleaning(Value):
    """Result of one cleaning.

    Attributes:
        next_dirty: First offset of the next cleaning's map.
        map_messages: Records that the map pass read; a marker counts as one, aborted records count too.
        kept: Records in the copy.
        read_bytes: Bytes read by map pass and copy.
        written_bytes: Bytes of the copy.
    """

    next_dirty: int
    map_messages: int
    kept: int
    read_bytes: int
    written_bytes: int


class KafkaCleaner:
    """Kafka's cleaner with a map of `map_bytes` that is full at `load_factor` of its slots."""

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
    ) -> tuple[tuple[ModelSegment, ...], list[KafkaCleaning]]:
        """Clean until every offset below `limit` (a segment's base, or the log end) is mapped."""
        cleanings = []
        done = tuple(segments)
        while first_dirty < limit:
            done, cleaning = self.clean_once(
                done, limit, first_dirty=first_dirty, now_ms=now_ms, delete_retention_ms=delete_retention_ms
            )
            cleanings.append(cleaning)
            if cleaning.next_dirty <= first_dirty:
                break  # no records in between: Kafka would not have chosen the log
            first_dirty = cleaning.next_dirty
        return done, cleanings

    def clean_once(
        self,
        segments: Sequence[ModelSegment],
        limit: int,
        *,
        first_dirty: int,
        now_ms: int,
        delete_retention_ms: int,
    ) -> tuple[tuple[ModelSegment, ...], KafkaCleaning]:
        """Map from `first_dirty` on, then copy from the start of the log."""
        below = [segment for segment in segments if segment.base_offset < limit]
        clean = [segment for segment in below if segment.base_offset < first_dirty]
        old_horizon_ms = clean[-1].mtime_ms - delete_retention_ms if clean else 0
        messages, map_bytes = self._fill(below, first_dirty, limit)
        end = self.map.latest_offset + 1
        cleaned: list[ModelSegment] = []
        kept = read_bytes = written_bytes = 0
        for segment in segments:
            if segment.base_offset >= min(end, limit):
                cleaned.append(segment)
                continue
            spared = segment.mtime_ms > old_horizon_ms
            batches = []
            for batch in segment.batches:
                read_bytes += batch.size_bytes
                left = self._survivors(batch, now_ms, spared)
                if left or batch.control:
                    batches.append(_cut(batch, left, now_ms + delete_retention_ms))
                    kept += len(left)
            cleaned.append(replace(segment, batches=tuple(batches)))
            written_bytes += cleaned[-1].size_bytes
        return tuple(cleaned), KafkaCleaning(end, messages, kept, map_bytes + read_bytes, written_bytes)

    def _fill(self, below: Sequence[ModelSegment], start: int, limit: int) -> tuple[int, int]:
        """Fill the map; return (messages, bytes) read."""
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
    """Return the batch with the remaining records; the same object if nothing changes."""
    starts = batch.magic == 2 and batch.horizon_ms is None and any(record.value is None for record in left)
    if len(left) == len(batch.records) and not starts:
        return batch
    horizon = horizon_ms if starts else batch.horizon_ms
    return replace(batch, records=left, horizon_ms=horizon, size_bytes=plain_bytes(left, horizon))


def plain_bytes(records: Sequence[RawRecord], horizon_ms: int | None = None) -> int:
    """Return the size of an uncompressed batch of magic 2 that begins with the first of `records`."""
    base_ms = records[0].timestamp if horizon_ms is None else horizon_ms
    total = HEADER_BYTES
    for record in records:
        body = (
            1
            + len(encode_varint(record.timestamp - base_ms))
            + len(encode_varint(record.offset - records[0].offset))
        )
        body += _field(record.key) + _field(record.value) + len(encode_varint(len(record.headers)))
        for name, value in record.headers:
            body += _field(name.encode("utf-8", "surrogateescape")) + _field(value)
        total += len(encode_varint(body)) + body
    return total


def _field(data: bytes | None) -> int:
    return 1 if data is None else len(encode_varint(len(data))) + len(data)


def read_model(view: PartitionView) -> tuple[ModelSegment, ...]:
    """Read a whole log into memory for the model."""
    from lastword.partition.transactions import BatchOutcome, control_of, scan
    from lastword.records.formats import read_records

    headers = []
    for segment in view.segments:
        for header in segment.headers():
            data = segment.read_batch(header) if header.control else b""
            headers.append((header, control_of(data, header, segment.file, position=0)))
    decisions = scan(headers)
    model = []
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
                    decisions.of_header(header) == BatchOutcome.ABORTED,
                    header.control,
                    header.size,
                )
            )
        model.append(ModelSegment(segment.base_offset, tuple(batches), segment.mtime_ms))
    return tuple(model)


def newest_values(segments: Sequence[ModelSegment]) -> dict[bytes, RawRecord]:
    """Map each key to its newest record, without aborted records and without keys that end in a tombstone."""
    newest: dict[bytes, RawRecord] = {}
    for segment in segments:
        for batch in segment.batches:
            for record in () if batch.aborted else batch.records:
                if record.key is not None:
                    newest[record.key] = record
    return {key: record for key, record in newest.items() if record.value is not None}


def lost(before: Sequence[ModelSegment], after: Sequence[ModelSegment]) -> tuple[RawRecord, ...]:
    """Return the newest values of `before` that `after` does not have, by offset: the cost of the rule."""
    left = newest_values(after)
    gone = [record for key, record in newest_values(before).items() if left.get(key) != record]
    return tuple(sorted(gone, key=lambda record: record.offset))
