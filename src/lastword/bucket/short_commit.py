"""`PartitionEnd`: append small batches to a partition of a version without opening its log.

An open log makes eight files of one record: it appends to the active segment, closes it with its indexes,
writes a producer snapshot and the synced mark, and begins an empty segment. The bytes of these files follow
from the batches and a few facts, if the partition is as a clean stop leaves it, and the batches are of no
producer. A `PartitionEnd` has these facts, and `ShortAppend` returns the files as entries of the manifest.

The open log does what is rare, and refuses what is wrong: `OpenLogNeeded` is raised where it is needed, for a
partition or for batches. Both make the same files (tests/bucket/test_short_commit.py compares them).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import NamedTuple

from lastword.bucket.files import REPLAYED_BYTES
from lastword.bucket.manifest import Entry, ManifestVersion
from lastword.clock import Clock
from lastword.config import TopicConfig
from lastword.partition.appending import AppendedBatch, Batch, Pending, check_checksums, check_sizes
from lastword.partition.checkpoint_file import sound_epochs
from lastword.partition.durability import encode_mark
from lastword.partition.local_log import RollLimits, RollRule
from lastword.partition.snapshots import ENTRY, HEADER, decode, is_due
from lastword.segment import names
from lastword.segment.indexes import TIME_ENTRY_BYTES, IndexBuilder

SHORT_BYTES = 64 << 10
"""More bytes for one partition go to the open log, which appends many batches with kernels."""
_NO_JITTER = Random(0)  # nothing is drawn
_SEGMENT = (names.LOG, names.INDEX, names.TIME_INDEX)
_FILES = (names.LEADER_EPOCHS, names.PARTITION_METADATA, names.PRIVATE)
_EXTENSIONS = (*names.SEGMENT_EXTENSIONS, names.SNAPSHOT)
_PREFIXES = (names.KEY_RUN, names.LEASE)
_PRIVATE = (
    *(names.ACCOUNTS, names.DROPPED_TOMBSTONES, names.KEYS, names.LOG_START_NOTE, names.PRODUCERS),
    *(names.QUARANTINE, names.SUMMARY, names.SURVIVORSHIP, names.SYNCED),
)


class OpenLogNeeded(Exception):
    """The open log is needed."""


class SnapshotDue(OpenLogNeeded):
    """The open log is needed to write a producer snapshot. The commit after it does not need it."""


class PartitionEnd(NamedTuple):
    """The log end of a partition.

    Attributes:
        directory: The name of its directory.
        log_end: The offset that the next record gets.
        epoch: The leader epoch.
        segment: The active segment, which is empty: log, index, time index.
        snapshot: The producer snapshot of the log end. Batches without a producer do not change its bytes.
            Opening the log leaves out producers that were idle for too long. None: the newest snapshot is
            below the log end, or not in the manifest. Then the open log writes the next one.
        producers: The number of producers in the newest snapshot.
        mark: The synced mark.
        added_bytes: Bytes of the log above the snapshot.
        added_segments: Segments above it, besides the active one.
    """

    directory: str
    log_end: int
    epoch: int
    segment: tuple[Entry, ...]
    snapshot: Entry | None
    producers: int
    mark: Entry
    added_bytes: int = 0
    added_segments: int = 0

    @classmethod
    def of(cls, version: ManifestVersion, directory: str, recovery_point: int) -> PartitionEnd:
        """Return that of a partition in a version. OpenLogNeeded: opening may change or refuse it."""
        children = version.children(directory)
        private = version.children(f"{directory}/{names.PRIVATE}")
        segment = tuple(
            _inline(children, names.segment_file(recovery_point, extension), b"") for extension in _SEGMENT
        )
        newest = max(names.snapshot_offsets(children), default=-1)
        stored = children.get(names.segment_file(newest, names.SNAPSHOT)) if newest >= 0 else None
        if stored is None or newest > recovery_point:
            raise OpenLogNeeded
        snapshot = stored if newest == recovery_point and stored.object is None else None
        epochs = sound_epochs(_inline(children, names.LEADER_EPOCHS).data)
        if not epochs or epochs[-1].start_offset > recovery_point:
            raise OpenLogNeeded
        epoch = epochs[-1].epoch
        mark = _inline(private, names.SYNCED, encode_mark(recovery_point, epoch))
        known = [] if snapshot is None else decode(snapshot.data, directory)
        bases = names.log_bases(children)
        if (
            bases[-1] != recovery_point
            or any(producer.transaction_start is not None for producer in known)
            or any(name[20:] not in _EXTENSIONS and name not in _FILES for name in children)
            or any(name not in _PRIVATE and not name.startswith(_PREFIXES) for name in private)
        ):
            raise OpenLogNeeded
        producers = (stored.size - HEADER.size) // ENTRY.size
        added = bases[max(bisect_right(bases, newest) - 1, 0) : -1]
        logs = [children.get(names.segment_file(base, names.LOG)) for base in added]
        size = sum(log.size for log in logs if log is not None)
        ends = directory, recovery_point, epoch, segment, snapshot
        return cls(*ends, producers, mark, size, len(added))


class ShortAppend:
    """The batches of one commit that are appended to a partition."""

    def __init__(self, before: PartitionEnd, config: TopicConfig, clock: Clock) -> None:
        self._before = before
        self.config = config
        self._clock = clock
        self._pending = Pending(before.log_end)
        self._indexes = IndexBuilder(before.log_end, config.index_interval_bytes)
        self._limits: RollLimits | None = None  # of the segment, once its first batch is known

    def append(self, batches: Sequence[Batch], *, is_checked: bool = False) -> list[AppendedBatch]:
        """Append batches, as `PartitionLog.append_batches` does.

        Raises:
            OpenLogNeeded: The open log is needed.
            LastwordError: The batches are refused.
        """
        config, pending, indexes = self.config, self._pending, self._indexes
        config.check_takes_records(self._before.directory)
        check_sizes(batches, config, self._before.directory)
        if not is_checked:
            check_checksums(batches)
        if len(pending.data) + sum(map(len, batches)) > SHORT_BYTES:
            raise OpenLogNeeded
        stamps, first = config.message_timestamp_type == "LogAppendTime", len(pending.headers)
        for batch in batches:
            header = pending.add(batch, self._before.epoch, self._clock.now_ms() if stamps else None)
            limits = self._limits
            if limits is None:
                # The least that the jitter of the log may leave.
                began = header.max_timestamp - min(config.segment_jitter_ms, config.segment_ms)
                rule = RollRule(self._clock, _NO_JITTER)
                limits = self._limits = rule.limits(config, header.base_offset, max(began, 0))
            if (
                header.producer_id >= 0
                or header.max_timestamp < 0
                or limits.exceeded_by(header, header.position)
                or len(indexes.time_entries) + 2 * TIME_ENTRY_BYTES > limits.index_bytes
            ):
                raise OpenLogNeeded
            indexes.batch(header.position, header.last_offset, header.max_timestamp)
        return [AppendedBatch(h.base_offset, h.last_offset, h.max_timestamp) for h in pending.headers[first:]]

    def entries(self, new_number: Callable[[], int]) -> tuple[dict[str, Entry], PartitionEnd]:
        """Return the files that the commit changes, and the end after it; no batch follows.

        `new_number` returns the number of a new file.
        """
        before, indexes, now_ms = self._before, self._indexes, self._clock.now_ms()
        indexes.finish()
        end = self._pending.headers[-1].next_offset
        closed = dict(zip(_SEGMENT, before.segment, strict=True))
        content = {
            names.LOG: self._pending.data,
            names.INDEX: indexes.offset_entries,
            names.TIME_INDEX: indexes.time_entries,
        }
        active = {extension: Entry(new_number(), 0, now_ms) for extension in _SEGMENT}
        added = before.added_bytes + len(self._pending.data), before.added_segments + 1
        snapshots, snapshot = {}, before.snapshot
        if is_due(before.producers, *added, REPLAYED_BYTES):
            if snapshot is None:
                raise SnapshotDue
            snapshot, added = snapshot._replace(number=new_number(), mtime_ms=now_ms), (0, 0)
            snapshots[names.SNAPSHOT] = snapshot
        data = encode_mark(end, before.epoch)
        mark = before.mark._replace(size=len(data), mtime_ms=now_ms, data=data)
        files = {f"{names.PRIVATE}/{names.SYNCED}": mark}
        for extension, part in content.items():
            if part:
                files[names.segment_file(before.log_end, extension)] = closed[extension]._replace(
                    size=len(part), mtime_ms=now_ms, data=bytes(part)
                )
        for extension, entry in {**active, **snapshots}.items():
            files[names.segment_file(end, extension)] = entry
        after = before._replace(
            log_end=end,
            segment=tuple(active.values()),
            snapshot=snapshot,
            mark=mark,
            added_bytes=added[0],
            added_segments=added[1],
        )
        return {f"{before.directory}/{name}": entry for name, entry in files.items()}, after


def _inline(files: Mapping[str, Entry | None], name: str, data: bytes | None = None) -> Entry:
    """Return a file that the manifest holds, with these bytes."""
    entry = files.get(name)
    if entry is None or entry.object is not None or (data is not None and entry.data != data):
        raise OpenLogNeeded
    return entry
