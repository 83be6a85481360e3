"""Producer snapshots, `<offset>.snapshot`, and the replay of a log from the newest usable snapshot.

A snapshot is the producer state of all batches below its offset:

```
position  bytes  field
       0      2  version, 1
       2      4  CRC-32C of bytes 6 to the end
       6      4  number of entries
      10   46*n  entries:
                 8 producer id · 2 epoch · 4 last sequence · 8 last data offset · 4 its batch's offset delta ·
                 8 timestamp, ms · 4 coordinator epoch · 8 first offset of the open transaction, -1 none
```

Big endian. An entry holds only the newest batch of its producer; last data offset -1: none. A snapshot is
valid as a whole or not at all. It is derived data: a damaged one is removed, and the batches behind an older
one are replayed. So losing a snapshot costs only time, since the cleaner keeps the last batch of each
producer, or its last marker, and a transaction without a batch was decided (`with_starts_left`).

A snapshot is written to a temporary file, synced and renamed, and the directory is synced: a reader never
reads half of one. Kafka writes in place. The content does not hold the offset. So if the state has not
changed since the snapshot of the last clean close, as in every log without producers, that file is renamed to
the new offset: its bytes are durable already, and it would be removed at the next opening.

Snapshots are taken at each roll (offset = base of the new segment), at a clean close (log end), and after a
segment was recovered. Snapshots at segment bases are kept, and the largest one if it is above them.

In a bucket each commit ends with a roll and a clean close. There a snapshot is taken only if the log has
grown enough since the newest one (`is_due`), and before segments above the newest one are rewritten or
removed. So the batches above the newest snapshot are always as they were appended, and a replay of them gives
the state. When leading segments are removed, the first that is left gets a snapshot at its base: it replaces
the removed batches if a newer snapshot is damaged, or cut off.

`replay` computes, for opening, the state at the log end, the aborted transactions of segments whose
transaction index must be built again, and the state at segment bases that lack a snapshot. `Stability`
computes, for a reader without a lock, the last stable offset. Replay begins at the newest valid snapshot at
or below `limit` (without one, at the first segment) and reads headers and markers only. A newer snapshot on
the way overrides the replayed state, because it includes batches that cleaning has removed since
(`ProducerState.learn`).
"""

from __future__ import annotations

import os
import struct
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import google_crc32c

from lastword.errors import CorruptFileError, FileVanishedError, StorageError
from lastword.files import Files, Steps
from lastword.partition.producer_state import KEPT_BATCHES, Producer, ProducerState, SequencedBatch
from lastword.partition.segment_store import SegmentSet
from lastword.partition.transactions import producer_batches
from lastword.records.batch import BatchHeader
from lastword.records.record import ControlRecord
from lastword.segment import names
from lastword.segment.indexes import AbortedTransaction
from lastword.segment.segment import Segment

HEADER = struct.Struct(">hIi")
ENTRY = struct.Struct(">qhiqiqiq")
VERSION = 1
CRC_START = 6
LOOK_BACK_BYTES = 4 << 20
"""An earlier batch of a producer is looked for in this many bytes of a segment."""
MOST_REPLAYED = 256
"""A reader replays at most about this many segments: each may take a request."""
MANY_REPLAYED = 16
"""A process whose opening replayed this many writes a snapshot with its first commit."""


def is_due(producers: int, added_bytes: int, added_segments: int, replayed_bytes: int) -> bool:
    """Return whether to write a snapshot of this many producers at the log end.

    Args:
        producers: Their number. A snapshot of none is always due.
        added_bytes: Bytes of the log above the newest snapshot.
        added_segments: Segments above it.
        replayed_bytes: As `Files.replayed_bytes`.
    """
    return added_bytes >= replayed_bytes * ENTRY.size * producers or added_segments >= MOST_REPLAYED


def encode(producers: Iterable[Producer]) -> bytes:
    """Return the bytes of a snapshot file, with the entries ordered by producer id."""
    body = bytearray()
    ordered = sorted(producers, key=lambda producer: producer.producer_id)
    for producer in ordered:
        newest = producer.batches[-1] if producer.batches else SequencedBatch(-1, -1, 0, -1)
        start = producer.transaction_start
        body += ENTRY.pack(
            producer.producer_id,
            producer.epoch,
            newest.last_sequence,
            newest.last_offset,
            newest.offset_delta,
            producer.last_timestamp,
            producer.coordinator_epoch,
            -1 if start is None else start,
        )
    covered = struct.pack(">i", len(ordered)) + body
    return struct.pack(">hI", VERSION, google_crc32c.value(covered)) + covered


def decode(data: bytes, file: str) -> list[Producer]:
    """Return the producers of a snapshot file's bytes. CorruptFileError unless it is whole and valid."""

    def bad(text: str, position: int) -> CorruptFileError:
        return CorruptFileError(
            text, remedy="remove the file: opening the log rebuilds the state", file=file, position=position
        )

    if data == EMPTY_SNAPSHOT:
        return []
    if len(data) < HEADER.size:
        raise bad(f"a snapshot of {len(data)} bytes is shorter than its header", len(data))
    version, crc, count = HEADER.unpack_from(data)
    if version != VERSION:
        raise bad(f"snapshot version {version}, known is {VERSION}", 0)
    if count < 0 or count * ENTRY.size != len(data) - HEADER.size:
        raise bad(f"{count} entries in a snapshot of {len(data)} bytes", CRC_START)
    computed = google_crc32c.value(bytes(data[CRC_START:]))
    if computed != crc:
        raise bad(f"snapshot has CRC {crc:08x}, computed {computed:08x}", 2)
    producers = []
    for fields in ENTRY.iter_unpack(data[HEADER.size :]):
        producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, start = fields
        batches = (SequencedBatch(last_sequence, last_offset, delta, timestamp),) if last_offset >= 0 else ()
        producers.append(
            Producer(producer_id, epoch, coordinator_epoch, timestamp, batches, None if start < 0 else start)
        )
    return producers


EMPTY_SNAPSHOT = encode(())


def write_empty_snapshot(files: Files, directory: str, offset: int) -> None:
    """Write an empty snapshot at `offset`, for a new partition. Its name is not durable yet."""
    path = os.path.join(directory, names.segment_file(offset, names.SNAPSHOT))
    files.unlink(path, missing_ok=True)
    files.write_new(path, EMPTY_SNAPSHOT)


class Snapshots:
    """The snapshot files of one partition directory."""

    def __init__(self, files: Files, directory: str) -> None:
        self.files = files
        self.directory = directory
        self.newest = -1
        """Offset of the newest snapshot of the open log; -1: there is none."""
        self._current = -1  # offset of the snapshot that equals the state of the open log
        self._durable: bytes | None = None  # its content, if that survives a power cut
        self._last_read: tuple[int, bytes] = (-1, b"")  # offset and content

    def path(self, offset: int) -> str:
        """Return the path of the snapshot at `offset`."""
        return f"{self.directory}/{names.segment_file(offset, names.SNAPSHOT)}"

    def exists(self, offset: int) -> bool:
        """Return whether there is a snapshot at `offset`."""
        return self.files.exists(self.path(offset))

    def offsets(self) -> list[int]:
        """Return the offsets of all snapshot files, ascending."""
        return names.snapshot_offsets(self.files.listdir(self.directory))

    def taking(self, state: ProducerState, *, active_base: int | None = None) -> Steps[bool]:
        """Write the state at its end offset, durably.

        Args:
            state: The state of the open log.
            active_base: Base offset of the active segment. A snapshot above it is at no segment's base, so it
                is renamed if it has the same content. None: no snapshot is renamed.

        Returns:
            False, and nothing written, if the snapshot there is current.
        """
        path, data = self.path(state.end_offset), encode(state.producers) if state else EMPTY_SNAPSHOT
        if state.end_offset == self._current and self.files.exists(path):
            return False
        is_renamed = False
        if active_base is not None and self._current > active_base and data == self._durable:
            yield ()  # at a close, the batches below the new offset are durable when this returns
            try:
                self.files.rename(self.path(self._current), path)
                is_renamed = True
            except FileVanishedError:
                pass
        if is_renamed:
            yield (partial(self.files.fsync_dir, self.directory),)
        else:
            yield from self.files.writing_atomic(path, data)
        self._current, self._durable = state.end_offset, data
        self.newest = state.end_offset
        return True

    def write(self, offset: int, producers: Iterable[Producer]) -> None:
        """Replace the snapshot at `offset` by one with `producers`, durably."""
        data = encode(producers)
        self.files.write_atomic(self.path(offset), data)
        self._current, self._durable = offset, data
        self.newest = max(self.newest, offset)

    def mark_current(self, offset: int, *, is_durable: bool = False) -> None:
        """Note that the snapshot at `offset` is valid and equals the caller's state.

        `is_durable`: the writer has synced the file, as at a clean stop. Without a clean stop the bytes that
        were read may be in memory only.
        """
        self._current, self._durable = offset, None
        if is_durable and self._last_read[0] == offset:
            self._durable = self._last_read[1]

    def read(self, offset: int) -> list[Producer]:
        """Return the producers at `offset`. CorruptFileError if damaged; StorageError if there is none."""
        path = self.path(offset)
        data = self.files.read_bytes(path)
        self._last_read = offset, data
        return decode(data, path)

    def remove_outside(self, offsets: Collection[int], log_start: int, log_end: int) -> list[int]:
        """Remove those of all snapshots, at `offsets`, that are outside (log_start, log_end]. Return them."""
        gone = [offset for offset in offsets if not log_start < offset <= log_end]
        for offset in gone:
            self.files.unlink(self.path(offset), missing_ok=True)
        if self._current in gone:
            self._current, self._durable = -1, None
        self.newest = max(set(offsets).difference(gone), default=-1)
        return gone

    def stray(self, offsets: Sequence[int], segment_bases: Iterable[int]) -> list[int]:
        """Return those of the snapshots at `offsets`, ascending, that are at no segment's base.

        The largest snapshot stays if it is above all bases: a clean close wrote it. It always stays if not
        each segment has a snapshot.
        """
        bases = set(segment_bases)
        stray = [offset for offset in offsets if offset not in bases]
        stays = self.files.replayed_bytes or max(offsets, default=-1) > max(bases, default=-1)
        if stray and stays and stray[-1] == offsets[-1]:
            stray.pop()
        return stray

    def remove(self, offsets: Iterable[int]) -> None:
        """Remove the snapshots at `offsets`. It is durable when the directory is synced."""
        for offset in offsets:
            self.files.unlink(self.path(offset), missing_ok=True)


# ---------------------------------------------------------------- replay


@dataclass(slots=True)
class Replayed:
    """The result of `replay`.

    Attributes:
        state: The producer state at the log end.
        aborted: Aborted transactions, by base offset of the segment that holds the marker.
        at_bases: The producers as of a segment's base.
        damaged: Offsets of damaged snapshots.
        exact: The snapshot at the log end equals the state.
    """

    state: ProducerState
    aborted: dict[int, list[AbortedTransaction]] = field(default_factory=dict)
    at_bases: dict[int, list[Producer]] = field(default_factory=dict)
    damaged: list[int] = field(default_factory=list)
    exact: bool = False


def replay(
    store: Snapshots,
    segments: SegmentSet,
    log_end: int,
    *,
    snapshot_offsets: Iterable[int] | None = None,
    limit: int | None = None,
    barren: Collection[int] = (),
    bases: Collection[int] = (),
) -> Replayed:
    """Compute the producer state at `log_end`. Changes nothing on disk.

    Args:
        store: The snapshots.
        segments: The segments of the log.
        log_end: Next offset of the log.
        snapshot_offsets: The offsets of all snapshots, ascending; one that is gone is left out. None: the
            directory is listed.
        limit: Replay begins at or below it, for a complete `aborted`; None: as late as possible.
        barren: Base offsets of segments without a batch of a producer. They are not read.
        bases: Base offsets of segments whose producers are returned.
    """
    first = segments[0].base_offset if len(segments) else log_end
    listed = store.offsets() if snapshot_offsets is None else snapshot_offsets
    offsets = [offset for offset in listed if first <= offset <= log_end]
    replayed = Replayed(ProducerState(first))

    def producers_at(offset: int) -> list[Producer] | None:
        if offset in replayed.damaged:
            return None
        try:
            producers = store.read(offset)
        except CorruptFileError:
            replayed.damaged.append(offset)
            return None
        except StorageError:  # removed since the listing
            return None
        return producers if offset == log_end else with_starts_left(producers, segments, offset)

    start = log_end if limit is None else limit
    for offset in reversed([offset for offset in offsets if offset <= start]):
        producers = producers_at(offset)
        if producers is not None:
            replayed.state = ProducerState(offset, producers)
            replayed.exact = offset == log_end
            break
    state = replayed.state
    later = deque(offset for offset in offsets if offset > state.end_offset)

    def pass_snapshots(offset: int) -> None:
        while later and later[0] <= offset:
            producers = producers_at(later.popleft())
            if producers is not None:
                state.learn(producers)

    for segment in segments.starting_at(state.end_offset) if state.end_offset < log_end else ():
        pass_snapshots(segment.base_offset)
        if segment.base_offset in bases and segment.base_offset >= state.end_offset:
            replayed.at_bases[segment.base_offset] = state.producers
        if segment.base_offset in barren:
            continue
        aborted = replayed.aborted.setdefault(segment.base_offset, [])
        for header, marker in producer_batches_between(segment, state.end_offset, log_end):
            pass_snapshots(header.base_offset)
            entry = state.update(header, marker)
            if entry is not None:
                aborted.append(entry)
    pass_snapshots(log_end)
    state.end_offset = log_end
    return replayed


def with_starts_left(producers: Iterable[Producer], segments: SegmentSet, offset: int) -> list[Producer]:
    """Return the producers of a snapshot at `offset` with transactions that start with a batch of the log.

    A cleaning that has removed each batch of a decided transaction removes its marker, too. If the snapshot
    that notes the end is damaged, or cut off, a replay from an older one would leave the transaction open. A
    first batch that is gone shows it: cleaning does not change undecided transactions.
    """

    def with_start_left(producer: Producer) -> Producer:
        first = producer.transaction_start
        if first is None or not len(segments) or first < segments[0].base_offset:
            return producer
        starts = (
            header.base_offset
            for segment in segments.starting_at(first)
            for header, _ in producer_batches_between(segment, first, offset)
            if header.producer_id == producer.producer_id and header.transactional and not header.control
        )
        return replace(producer, transaction_start=next(starts, None))

    return [with_start_left(producer) for producer in producers]


def producer_batches_between(
    segment: Segment, start: int, end: int
) -> Iterator[tuple[BatchHeader, ControlRecord | None]]:
    """Yield the headers in [start, end) offsets that have a producer id, markers with their content."""
    position = segment.position_of(start)
    for header, marker in producer_batches(segment, position, verify=False):
        if header.last_offset >= end:
            return
        if header.producer_id >= 0 and header.base_offset >= start:
            yield header, marker


def last_batches(store: Snapshots, segments: SegmentSet, producer: Producer) -> tuple[SequencedBatch, ...]:
    """Return the last batches of a producer's epoch, up to KEPT_BATCHES, of which `producer` has the newest.

    The others are in the segment of the newest, and in those to which the snapshots at the segments' bases
    lead. Without a snapshot at its base, the segment before is read. So at most KEPT_BATCHES times
    MOST_REPLAYED segments are read, and of a segment LOOK_BACK_BYTES before a batch.
    """
    kept = list(producer.batches)
    end, read = kept[0].first_offset if kept else 0, 0
    number = segments.floor(end)
    while 0 < len(kept) < KEPT_BATCHES and number >= 0 and read < MOST_REPLAYED:
        segment = segments[number]
        start = segment.indexed_position(max(0, segment.position_of(end) - LOOK_BACK_BYTES))
        found = []
        for header, _ in producer_batches(segment, start, verify=False):
            if header.last_offset >= end:
                break
            if (header.producer_id, header.producer_epoch, header.control) == (
                producer.producer_id,
                producer.epoch,
                False,
            ):
                found.append(SequencedBatch.of(header))
        kept[:0] = found[len(kept) - KEPT_BATCHES :]
        if start or len(kept) == KEPT_BATCHES:
            break
        try:
            known = store.read(segment.base_offset)
        except (CorruptFileError, FileVanishedError):
            end, number, read = segment.base_offset, number - 1, read + 1
            continue
        before = _newest(known, producer)
        if before is None:
            break
        kept.insert(0, before)
        end, read = before.first_offset, 0
        number = segments.floor(end)
    return tuple(kept)


def _newest(known: Iterable[Producer], producer: Producer) -> SequencedBatch | None:
    """Return the newest batch of a producer's epoch in a snapshot; None: it has none."""
    for other in known:
        if (other.producer_id, other.epoch) == (producer.producer_id, producer.epoch):
            return other.batches[-1] if other.batches else None
    return None
