"""`LocalLog`: the segments of one partition, and every operation that changes them.

It appends batches whose offsets are assigned, closes the active segment and begins the next, syncs, publishes
rewritten segments, and cuts the log at either end. It does not interpret records: producers, transactions,
leader epochs and the log start belong to `PartitionLog`, which holds its lock around every change.

`segment_set` may be taken without a lock. It is immutable: its active segment ends where the log ended when
the set was taken.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from lastword.clock import Clock
from lastword.config import TopicConfig
from lastword.errors import LastwordError, UnknownTopicError
from lastword.files import Steps
from lastword.partition import cut, swap
from lastword.partition.appending import Pending, largest_batch
from lastword.partition.checkpoint_file import LeaderEpochs
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.durability import Durability, FailureLatch
from lastword.partition.segment_store import SegmentSet
from lastword.segment.append import AssignedBatch, SegmentAppender
from lastword.segment.indexes import TIME_ENTRY_BYTES, AbortedTransaction
from lastword.segment.names import MAX_FILE_BYTES, MAX_RELATIVE_OFFSET
from lastword.segment.segment import Segment
from lastword.wire import INT64_MAX

if TYPE_CHECKING:
    import numpy as np

    from lastword.records.batch import BatchHeader


class RollLimits(NamedTuple):
    """The limits of a segment: a batch that exceeds one of them begins the next segment.

    The first batch of a segment may exceed all of them but the offset.

    Attributes:
        bytes: Largest size of the segment.
        offset: Largest offset.
        timestamp: Largest timestamp. If the first batch has none, the clock decides: INT64_MAX, or the
            smallest number if the segment is too old.
        index_bytes: Largest size of an index.
    """

    bytes: int
    offset: int
    timestamp: int
    index_bytes: int

    def exceeded_by(self, header: BatchHeader, before: int) -> bool:
        """Return whether a batch exceeds bytes, offset or timestamp behind `before` bytes of the segment."""
        if header.last_offset > self.offset:
            return True
        return before > 0 and (before + header.size > self.bytes or header.max_timestamp > self.timestamp)


@dataclass(slots=True)
class Lane:
    """The limits within which single records are appended to the active segment without a roll.

    Valid until the log is changed in another way than by `PartitionLog.append_single`.

    Attributes:
        appender: Appender of the active segment.
        leader_epoch: Leader epoch of the batches.
        batch_bytes: Largest size of a batch.
        limits: Limits of the active segment.
        position: Last position at which a batch gets no index entry.
    """

    appender: SegmentAppender
    leader_epoch: int
    batch_bytes: int
    limits: RollLimits
    position: int


class RollRule:
    """Decide when the active segment is closed. `begin_segment` draws its jitter and starts its clock.

    A batch begins a new segment if it would make the active one larger than `segment.bytes`, its offsets do
    not fit into four bytes from the base, the segment is older than `segment.ms` (by the first batch's
    timestamp; without one by the clock), or an index is full. A changed setting also applies to the active
    segment; only the jitter stays.
    """

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self._clock = clock
        self._rng = rng
        self._created_ms = 0
        self._jitter_ms = 0

    def begin_segment(self, config: TopicConfig) -> None:
        """Draw the jitter of a segment that begins now."""
        self._created_ms = self._clock.now_ms()
        jitter_ms = min(config.segment_jitter_ms, config.segment_ms)
        self._jitter_ms = self._rng.randrange(jitter_ms) if jitter_ms else 0

    def _age_ms(self, config: TopicConfig) -> int:
        """Return the age above which the active segment is closed."""
        limit = min(config.segment_ms, config.max_compaction_lag_ms) if config.compacts else config.segment_ms
        return limit - self._jitter_ms

    def limits(self, config: TopicConfig, base_offset: int, first_timestamp: int) -> RollLimits:
        """Return the limits of a segment.

        Args:
            config: Settings of the topic.
            base_offset: Base offset of the segment.
            first_timestamp: Largest timestamp of its first batch; -1: none, so the clock decides.
        """
        age_ms = self._age_ms(config)
        if first_timestamp >= 0:
            timestamp = min(first_timestamp + age_ms, INT64_MAX)
        else:
            timestamp = -INT64_MAX - 1 if self._clock.now_ms() - self._created_ms > age_ms else INT64_MAX
        size, offset = min(config.segment_bytes, MAX_FILE_BYTES), base_offset + MAX_RELATIVE_OFFSET
        return RollLimits(size, min(offset, INT64_MAX - 1), timestamp, config.segment_index_bytes)

    def due_ms(self, config: TopicConfig, appender: SegmentAppender) -> int:
        """Return the time after which the active segment is older than `segment.ms`."""
        if not appender.end.size:
            return INT64_MAX
        began = appender.rolling_timestamp
        return (began if began >= 0 else self._created_ms) + self._age_ms(config)


class LocalLog:
    """The segments of one open partition. The caller holds the partition's lock, except for `sync`.

    Attributes:
        is_closed: The files are closed.
        changes: How often the set of segments has changed.
    """

    def __init__(
        self,
        store: DirectorySegments,
        config: TopicConfig,
        clock: Clock,
        segments: SegmentSet,
        *,
        epochs: LeaderEpochs,
        synced_to: int,
        recovery_point: int,
        rng: random.Random | None = None,
        has_transaction_index: bool = True,
    ) -> None:
        self.store = store
        self.config = config
        self.clock = clock
        self.failure = FailureLatch(store.files, store.directory)
        self.roll_rule = RollRule(clock, rng or random.Random())
        self.durability = Durability(
            store.files,
            store.directory,
            clock,
            self.failure,
            epochs,
            unsynced=segments.starting_at(synced_to),
            synced_to=synced_to,
            recovery_point=recovery_point,
        )
        self._deferred = cut.DeferredDeletes(store.files, clock)
        self.is_closed = False
        self.changes = 0
        self._begin(
            segments,
            SegmentAppender.resume(
                segments.active,
                index_interval_bytes=config.index_interval_bytes,
                has_transaction_index=has_transaction_index,
            ),
        )

    def _begin(self, segments: SegmentSet, appender: SegmentAppender) -> None:
        self._set(segments, appender)
        self.appender = appender
        self.roll_rule.begin_segment(self.config)
        self._kept_limits: RollLimits | None = None
        """The limits of the active segment, once it has a batch with a timestamp."""

    def _set(self, segments: SegmentSet, appender: SegmentAppender) -> None:
        self._live = segments, appender
        """One value: readers in other threads find the segments with the appender of the last of them."""
        self.changes += 1

    # -------------------------------------------------------------- facts

    @property
    def segment_set(self) -> SegmentSet:
        """The segments of now."""
        segments, appender = self._live
        return segments.with_last(appender.segment)

    @property
    def log_end(self) -> int:
        """The offset that the next record gets."""
        return self.appender.end.next_offset

    def set_config(self, config: TopicConfig) -> None:
        """Use other settings of the topic from now on."""
        self.config = config
        self._kept_limits = None

    def check_open(self) -> None:
        """Raise the failure that stopped the log, or UnknownTopicError if it is closed, as one deleted."""
        if self.failure.error is not None:
            raise self.failure.error
        if self.is_closed:
            raise UnknownTopicError(
                f"{os.path.basename(os.path.normpath(self.store.directory))} is closed",
                remedy="open its topic again, if it was not deleted",
            )

    # -------------------------------------------------------------- append

    def append(self, pending: Pending) -> None:
        """Append batches with one write, and index them."""
        try:
            self.appender.append(pending.data, pending.headers)
        except LastwordError as error:
            self.failure.latch_if_offline(error)
            raise

    def lane(self, leader_epoch: int) -> Lane | None:
        """Return the lane for single records; None if they need the general way.

        With `LogAppendTime` a batch is stamped, and `flush.messages` and `flush.ms` are checked after each
        append; their defaults never require a sync.
        """
        config, appender, position = self.config, self.appender, self.appender.last_unindexed_position
        if (
            self.failure.error is not None
            or self.is_closed
            or config.message_timestamp_type == "LogAppendTime"
            or config.flush_messages < INT64_MAX
            or config.flush_ms < INT64_MAX
            or appender.rolling_timestamp < 0  # the clock decides
            or position < 0
            or self.is_full()
        ):
            return None
        return Lane(appender, leader_epoch, largest_batch(config), self._limits(), position)

    def append_table(self, data: memoryview, rows: np.ndarray) -> None:
        """Append the batches of a table's rows with one write.

        Their file positions count from the first row, and become those in the segment.
        """
        with self.failure.latching_if_offline():
            self.appender.append_table(data, rows)

    def append_aborted(self, entry: AbortedTransaction) -> None:
        """Add an aborted transaction, whose marker was just appended, to the transaction index.

        If that fails, the log takes no more batches: opening it again repairs the index.
        """
        with self.failure.latching():
            if not self.appender.aborted.entries:
                self.durability.directory_unsynced = True  # the first entry makes the file
            self.appender.aborted.append(entry)

    @property
    def active_bytes(self) -> int:
        """Size of the active segment."""
        return self.appender.end.size

    def is_full(self, more: int = 0) -> bool:
        """Return whether the active segment's indexes are full after `more` entries."""
        return self.appender.is_full(self.config.segment_index_bytes, more)

    # -------------------------------------------------------------- roll

    def _limits(self, first_timestamp: int = -1) -> RollLimits:
        """Return the limits of the active segment. `first_timestamp`: of its first batch, if it is empty."""
        if self._kept_limits is not None:
            return self._kept_limits
        appender = self.appender
        began = appender.rolling_timestamp if appender.end.size else first_timestamp
        limits = self.roll_rule.limits(self.config, appender.base_offset, began)
        if appender.end.size and began >= 0:
            self._kept_limits = limits
        return limits

    def must_roll(self, pending: Pending) -> bool:
        """Return whether the last pending batch begins a new segment, if the others are in the active one."""
        header, limits, appender = pending.headers[-1], self._kept_limits, self.appender
        if limits is None:
            limits = self._limits(pending.headers[0].max_timestamp)
        before = appender.end.size + header.position
        return limits.exceeded_by(header, before) or (before > 0 and appender.is_full(limits.index_bytes))

    def rows_before_roll(self, table: np.ndarray, first: int, unasked: int) -> int:
        """Return the row (exclusive) up to which a batch table's rows from `first` on fit the active segment.

        The first `unasked` of them do in any case. The indexes have room for all of them.
        """
        from lastword.kernels import table as fields

        size, limits = self.active_bytes, self._limits(int(table[first, fields.MAX_TIMESTAMP]))
        return int(fields.rows_before_roll(table, first, unasked, table.shape[0], size, *limits[:3]))

    def makes_one_segment(self, batches: Sequence[AssignedBatch]) -> bool:
        """Return whether appending the batches behind a roll would make exactly one new segment.

        Their positions count from its beginning; each of them alone may be appended.
        """
        first, last = batches[0], batches[-1]
        limits = self.roll_rule.limits(self.config, first.base_offset, first.max_timestamp)
        return (
            last.position + last.size <= limits.bytes
            and last.last_offset <= limits.offset
            and (first.max_timestamp < 0 or max(b.max_timestamp for b in batches) <= limits.timestamp)
            and TIME_ENTRY_BYTES * (len(batches) + 1) < limits.index_bytes
            and max(batch.size for batch in batches) <= largest_batch(self.config)
        )

    @property
    def roll_due_ms(self) -> int:
        """The time after which the active segment is older than `segment.ms`."""
        return self.roll_rule.due_ms(self.config, self.appender)

    def roll(self, offset: int) -> None:
        """Close the active segment and begin an empty one at `offset`: the log end, or above it.

        The closed segment and its indexes are synced before the new one exists, so what a power cut leaves of
        the log is a beginning of it, never a log with a hole.
        """
        interval = self.config.index_interval_bytes
        self._roll(lambda: self.store.create(offset, index_interval_bytes=interval))

    def ingest_file(self, file: str, batches: Sequence[AssignedBatch]) -> None:
        """Close the active segment and make a file of batches, which begin at the log end, the active one."""
        interval = self.config.index_interval_bytes
        try:
            self._roll(lambda: self.store.ingest(file, batches, index_interval_bytes=interval))
        except LastwordError as error:
            # Another segment would begin beside it.
            if self.store.stored(batches[0].base_offset).facts() is not None:
                self.failure.latch(error)
            raise

    def _roll(self, begin: Callable[[], SegmentAppender]) -> None:
        durability = self.durability
        with self.failure.latching_if_offline():
            old, base = self.appender, self.log_end
            old.finish()
            with durability.group_commit.turn():
                durability.sync_files(old, base, indexes=True)
            with self.failure.latching_if_interrupted():
                new = begin()
                with durability.group_commit.turn():  # no sync while the files change
                    durability.directory_unsynced = True
                    durability.begin_segment(new.segment)
                    self._begin(self.segment_set.with_last(old.close()).with_added(new.segment), new)

    # -------------------------------------------------------------- sync

    def sync(self) -> None:
        """Return when everything appended before the call survives a power cut.

        Takes no lock; callers at the same time share one sync.
        """
        target, durability = self.log_end, self.durability

        def done() -> bool:
            return durability.synced_to >= target and not durability.directory_unsynced

        if durability.group_commit.begin(done):  # without a block, which takes as long as the rest of this
            try:
                self.check_open()
                durability.sync_files(self.appender, self.log_end, indexes=False)
            finally:
                durability.group_commit.end()

    def sync_if_due(self) -> None:
        """Sync if `flush.messages` or `flush.ms` requires it."""
        config = self.config
        if self.durability.is_due(self.log_end, config.flush_messages, config.flush_ms):
            self.sync()

    def flush(self) -> None:
        """Sync with the indexes, which moves the recovery point to the log end."""
        durability = self.durability
        if durability.recovery_point < self.log_end or durability.directory_unsynced:
            with durability.group_commit.turn():
                durability.sync_files(self.appender, self.log_end, indexes=True)

    # -------------------------------------------------------------- replace

    def replace(self, old: Sequence[Segment], output: Segment) -> Segment:
        """Publish a rewritten segment in place of its sources; all of them, or none.

        Args:
            old: Neighbours among the closed segments, named by any Segment of the same id.
            output: Complete, synced, in a private directory; it has the base offset of the first source.
        """
        segments = self.segment_set
        sources = _own_segments(segments, old)
        try:
            published = swap.publish(self.store.files, self.store.directory, sources, output)
            self._set(segments.with_replaced(sources, [published]), self.appender)
        except BaseException:  # an interrupt, too
            with contextlib.suppress(LastwordError), self.failure.latching():
                self._set(self.store.after_failed_replace(segments), self.appender)
            raise
        return published

    # -------------------------------------------------------------- cut

    def remove_prefix(self, log_start: int) -> list[Segment]:
        """Remove the segments that are wholly below the log start.

        In a directory their files are renamed when it returns, and unlinked after `file.delete.delay.ms`
        (`remove_deferred`).
        """
        segments = self.segment_set
        gone = cut.below_start(segments, log_start)
        if not gone:
            return []
        with self.durability.group_commit.turn():  # no sync of a file that loses its name
            left = gone
            kept: list[str] = []
            try:
                with self.failure.latching_if_offline():
                    listing = self.store.files.listdir(self.store.directory)
                    cut.set_aside(self.store.files, self.store.directory, gone, listing, kept)
                left = ()
            except BaseException:  # an interrupt, too
                self.durability.directory_unsynced = True  # makes durable what was renamed
                with contextlib.suppress(LastwordError):
                    left = tuple(s for s in gone if s.stored.facts() is not None)
                raise
            finally:
                self._set(SegmentSet([*left, *segments[len(gone) :]]), self.appender)
                self.durability.forget(gone, left)
                self._deferred.add(kept, self.config.file_delete_delay_ms)
        return list(gone)

    def remove_deferred(self, *, all: bool = False) -> int:
        """Unlink the files of removed segments whose delay has passed, or all; return how many."""
        return self._deferred.remove(all=all)

    @contextlib.contextmanager
    def cutting(self) -> Iterator[None]:
        """Prevent syncs while the end of the log is cut.

        A failure inside stops the log: half of the change may be stored.
        """
        with self.durability.group_commit.turn(), self.failure.latching():
            yield

    def truncate_to(self, offset: int, epoch: int) -> None:
        """Remove the batches that reach `offset`, which the log holds; see `partition.cut`, steps 1 to 4."""
        segments = self.segment_set
        self.durability.mark.lower(segments[segments.floor(offset)].end_before(offset))
        self.appender.remove_zeros()
        self.appender.close()
        interval, files, directory = self.config.index_interval_bytes, self.store.files, self.store.directory
        segments = cut.cut_segments(files, directory, segments, offset, epoch, index_interval_bytes=interval)
        self._continue_at(
            offset, segments, SegmentAppender.resume(segments.active, index_interval_bytes=interval)
        )

    def remove_all(self) -> None:
        """Remove every segment, the newest first; `start_at` follows."""
        segments = self.segment_set
        self.durability.mark.lower(0)
        self.appender.close()
        cut.remove_segments(self.store.files, self.store.directory, segments)

    def start_at(self, offset: int) -> None:
        """Begin an empty segment; there is no other."""
        interval = self.config.index_interval_bytes
        appender = self.store.create(offset, index_interval_bytes=interval)
        self.store.files.fsync_dir(self.store.directory)
        self._continue_at(offset, SegmentSet([appender.segment]), appender)

    def _continue_at(self, offset: int, segments: SegmentSet, appender: SegmentAppender) -> None:
        self._begin(segments, appender)
        self.durability.begin_segment(appender.segment)
        self.durability.lower(offset)

    # -------------------------------------------------------------- close

    def finishing(self, snapshot: Steps[None]) -> Steps[None]:
        """Write the last entry of the time index, and sync everything with the indexes.

        `snapshot`: the steps that write the producer snapshot. Its content is synced with the segment.
        """
        self.appender.finish()
        with self.durability.group_commit.turn():
            yield from self.durability.syncing(self.appender, self.log_end, indexes=True, snapshot=snapshot)

    def abandon(self) -> None:
        """Close the files and nothing else, as a killed process would."""
        self.is_closed = True
        self.appender.close()
        self.durability.mark.close()


def _own_segments(segments: SegmentSet, wanted: Sequence[Segment]) -> list[Segment]:
    """Return the log's segments for the given ones, which must be the same and neighbours."""
    first = segments.index_of(wanted[0].base_offset) if wanted else -1
    if first < 0:
        raise ValueError("these segments are not in the log any more")
    own = list(segments[first : first + len(wanted)])
    if [(s.base_offset, s.id.number) for s in own] != [(s.base_offset, s.id.number) for s in wanted]:
        raise ValueError("these segments are not neighbours in the log any more")
    return own
