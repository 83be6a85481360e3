"""`PartitionLog`: the writing side of one partition, one object per open partition.

It adds to `LocalLog`, which has the files, what a broker adds as the leader of a partition. `Tail` assigns
offsets and leader epochs, checks producers, decides transactions, and keeps the last stable offset. This
module has the lock around every change, and the log start.

Locks. `lock` (reentrant) guards every change: appends, rolls, replacing segments. Syncs run outside of it,
under a mutex of their own (`durability.GroupCommit`), so that appends go on while the drive works. Readers
take no lock: the set of segments is replaced as a whole, and its active segment ends where the log ended when
the set was taken.

Promises. An append that returned survives a killed process (`os`). After `sync`, everything below `synced_to`
survives a power cut (`disk`). Two rules make that a prefix of the log and never a log with a hole: a segment
is synced before its successor is created, and the directory is synced with the first sync that relies on a
new name. The recovery point moves only after the indexes are synced too, for recovery does not read below it.

Producers. A batch with a producer id is checked against the producer's state before the first byte of the
call is written. A repeat of one of its last five batches is answered with the offsets of the first, and not
appended. With a single node the high watermark is the log end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from weakref import ref

from google_crc32c import value as crc32c

from lastword.config import TopicConfig
from lastword.errors import DiskFullError, LastwordError, OffsetOutOfRangeError
from lastword.files import FileFacts, Steps, run_steps
from lastword.partition import staged_batches
from lastword.partition.appending import AppendedBatch, Batch, check_sizes, copied_headers
from lastword.partition.checkpoint_file import LeaderEpochs
from lastword.partition.directory_segments import topic_facts
from lastword.partition.local_log import Lane, LocalLog
from lastword.partition.producer_state import PRODUCER_EXPIRATION_MS, Producer, ProducerState
from lastword.partition.reads import Reads
from lastword.partition.segment_store import LogVersion, SegmentSet
from lastword.partition.snapshots import Snapshots
from lastword.partition.tail import Changed, Tail
from lastword.partition.view import PartitionView
from lastword.records.batch import HEAD, BatchHeader, checked_part
from lastword.segment.indexes import AbortedTransaction, TransactionIndex
from lastword.segment.segment import Segment
from lastword.wire import ATTRIBUTES_AT, OVERHEAD_BYTES


class PartitionLog(Reads):
    """Append, roll, sync, replace, read. Made by `partition.open.open_log`."""

    def __init__(
        self,
        topic: str,
        partition: int,
        local: LocalLog,
        *,
        log_start: int,
        epochs: LeaderEpochs,
        producers: ProducerState,
        snapshots: Snapshots,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
        incomplete_commit_offset: int | None = None,
        recovered_to: int | None = None,
        private_names: Sequence[str] = (),
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.name = f"{topic}-{partition}"
        self.store = local.store
        self.files = local.store.files
        self.directory = local.store.directory
        self.clock = local.clock
        self.epochs = epochs
        self.lock = threading.RLock()
        self.log_start = log_start
        """First offset that may be read."""
        self.incomplete_commit_offset = incomplete_commit_offset
        """The lowest offset at which an incomplete commit begins; None if all commits are complete."""
        self.grows = True
        self.private_names = private_names
        """The names that the private directory had when the log was opened."""
        self.tail = Tail(
            partition,
            local,
            epochs,
            producers,
            snapshots,
            producer_expiration_ms=producer_expiration_ms,
            recovered_to=recovered_to,
        )
        """The end of the log, where `lock` is held. Others may read its attributes, and set `on_roll`."""
        self._local = local
        self._on_append: Callable[[], None] | None = None
        self._topic: FileFacts | None = None
        self._first_topic: FileFacts | None = None
        """The facts of the topic in the place from which the log was moved first."""
        self._moved_to: PartitionLog | None = None
        self._lane: Lane | None = None
        """The lane of `append_single`. Each other change of the log drops the lane (`_changed_log`)."""

    def __repr__(self) -> str:
        return f"PartitionLog({self.name}, {self.log_start}..{self.log_end})"

    # -------------------------------------------------------------- facts

    @property
    def config(self) -> TopicConfig:
        """Settings of the topic."""
        return self._local.config

    @config.setter
    def config(self, config: TopicConfig) -> None:
        """Other settings, from the next append on."""
        with self.lock:
            self._lane = None
            self._local.set_config(config)

    def on_append(self, call: Callable[[], None] | None) -> None:
        """Call `call` after each append, with the lock held; None: no longer.

        Meanwhile `append_single` does nothing.
        """
        with self.lock:
            self._lane = None
            self._on_append = call

    def watch(self, changed: Changed) -> None:
        """Add the partition to `changed` after each change of the log start or log end.

        A log that was cut or moved adds `~partition`. A reference to `changed` is not kept.
        """
        with self.lock:
            known = (watcher for watcher in self.tail.watchers if watcher() is not None)
            self.tail.watchers = (*known, ref(changed))

    @property
    def segment_set(self) -> SegmentSet:
        """The segments of now."""
        return self._local.segment_set

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments of now.

        A segment that is replaced later stays readable while it is open; then `refresh`.
        """
        return self._local.segment_set.segments

    @property
    def active(self) -> Segment:
        """The segment that appends go to, as it is now."""
        return self._local.appender.segment

    @property
    def log_end(self) -> int:
        """The offset that the next record gets."""
        return self._local.log_end

    @property
    def synced_to(self) -> int:
        """Everything below this offset survives a power cut."""
        return self._local.durability.synced_to

    @property
    def recovery_point(self) -> int:
        """Everything below this offset is on the drive with its indexes; recovery begins here."""
        return self._local.durability.recovery_point

    @property
    def producer_expiration_ms(self) -> int:
        """Producers that were idle for as long are dropped."""
        return self.tail.producer_expiration_ms

    @property
    def stable_offset(self) -> int:
        """Last stable offset: every transaction that begins below it is decided.

        `read_committed` ends here, and nothing at or above it may be cleaned. It is taken under the lock: a
        transaction that holds several logs moves those of all of them before one is seen.
        """
        with self.lock:
            return max(self.tail.stable_offset, self.log_start)

    @property
    def undecided(self) -> dict[int, int]:
        """Producer id -> first offset of its undecided transaction, oldest first."""
        with self.lock:
            return self.tail.producers.open_transactions()

    @property
    def cleanable_offset(self) -> int:
        """Nothing at or above may be cleaned.

        The last stable offset, or the beginning of an incomplete commit, if that is lower.
        """
        return staged_batches.below(self.stable_offset, self.incomplete_commit_offset)

    @property
    def removable_offset(self) -> int:
        """No segment that ends above may be removed.

        The log end, or the beginning of an incomplete commit, if that is lower.
        """
        return staged_batches.below(self.log_end, self.incomplete_commit_offset)

    def aborted_of(self, segment: Segment) -> list[AbortedTransaction]:
        """Return the aborted transactions whose markers are in a segment of this log."""
        appender = self._local.appender
        if appender.segment.base_offset == segment.base_offset:
            return list(appender.aborted.entries)
        return TransactionIndex(segment.stored).entries

    def producer(self, producer_id: int) -> Producer | None:
        """Return the state of a producer id: its epoch, its last sequence, its open transaction."""
        with self.lock:
            return self.tail.producers.get(producer_id)

    @property
    def producers(self) -> list[Producer]:
        """The state of every known producer, by producer id."""
        with self.lock:
            return self.tail.producers.producers

    # -------------------------------------------------------------- append

    def append_batch(self, data: Batch, *, is_checked: bool = False) -> AppendedBatch:
        """Append one encoded batch, whose offsets count from 0; the log assigns the real ones.

        RecordTooLargeError above `max.message.bytes`. Survives a killed process when it returns.
        `is_checked`: the caller has verified or computed the checksum.
        """
        return self.append_batches((data,), is_checked=is_checked)[0]

    def append_batches(
        self,
        batches: Sequence[Batch],
        *,
        sync_follows: bool = False,
        is_begun: bool = False,
        is_checked: bool = False,
    ) -> list[AppendedBatch]:
        """Append encoded batches in order, with one write for each segment they go to.

        Sizes, checksums and producers are checked before the first byte is written: RecordTooLargeError,
        CorruptBatchError, SequenceGapError, ProducerFencedError, TransactionStateError leave the log as it
        was. A duplicate is answered, not appended. A drive that fills up leaves whole batches only: those of
        the segments that were filled before.

        Many valid batches without a producer are appended as one table, by kernels; others one by one, in
        plain Python. Bytes, indexes and errors are the same.

        Args:
            batches: Their offsets count from 0.
            sync_follows: The caller will `sync` soon, so the drive may begin while more is appended.
            is_begun: The batches are of a commit that has begun. Settings that were changed since then do not
                refuse them: other logs may have their part already.
            is_checked: The caller has verified or computed the checksums.
        """
        with self.lock:
            local = self._changed_log()
            if not is_begun:
                local.config.check_takes_records(self.name)
                check_sizes(batches, local.config, self.name)
            appended = self.tail.append(batches, sync_follows=sync_follows, is_checked=is_checked)
            local.sync_if_due()
            if self._on_append is not None:
                self._on_append()
            return appended

    def append_copies(self, data: Batch) -> list[BatchHeader]:
        """Append whole batches of another replica as they are, with their offsets and leader epochs.

        Gaps between offsets are normal: the other log may have been cleaned. Keys, sizes, timestamps and
        sequences were checked by the leader that appended the batches first. Survives a killed process when
        it returns.

        The caller has noted in the directory that this log follows another one (`LogDirectory.note_copies`),
        or recovery would take a gap for damage.

        Args:
            data: The batches, one behind the other.

        Returns:
            Their headers.

        Raises:
            CorruptBatchError: A length or checksum is wrong, or offsets or leader epochs fall. Nothing was
                appended.
            UnknownMagicError: As above, for a format that is not supported.
        """
        with self.lock:
            local = self._changed_log()
            headers = copied_headers(data, self.name, local.log_end, self.epochs.latest)
            self.tail.append_copies(data, headers)
            local.sync_if_due()
            if self._on_append is not None:
                self._on_append()
            return headers

    def skip_to(self, offset: int) -> None:
        """Raise the log end of a copied log to `offset`: the other replica has no batch in between.

        The log gets an empty segment that begins there, as the other replica has one. Does nothing if the log
        ends there or above.
        """
        with self.lock:
            self._changed_log()
            if offset > self.log_end:
                self.tail.skip_to(offset)

    def append_single(
        self, key: bytes | None, value: bytes | None, timestamp: int, most_bytes: int
    ) -> tuple[int, int] | None:
        """Append one record the short way, as an uncompressed batch without headers and producer.

        Bytes, indexes and promises are those of `append_batch`, which does everything that is rare: the first
        append, a roll, a batch above a limit, an open transaction, a log that has failed, settings that stamp
        or sync each batch. It also computes the checksum of a batch again and reads its header back, because
        its batches come from callers. Here the batch has no other origin than the line that packs it, so
        both would compare a value with itself.

        Args:
            key: The key.
            value: The value.
            timestamp: Milliseconds since 1970.
            most_bytes: Largest size of the batch, if the settings of the log allow more.

        Returns:
            Offset and size of the batch. None, and nothing was done: use `append_batch`.
        """
        with self.lock:  # not `acquire` and `try`: an interrupt (Ctrl-C) between both would leave it held
            lane = self._lane
            if lane is None:
                lane = self._lane = self._new_lane()
                if lane is None:
                    return None
            local, tail, appender = self._local, self.tail, lane.appender
            start, offset, _ = appender.end
            segment_bytes, last_offset, last_timestamp, index_bytes = lane.limits
            if (
                local.failure.error is not None
                or local.is_closed
                or appender is not local.appender
                or offset > last_offset
                or not 0 <= timestamp <= last_timestamp
            ):
                return None
            checked = checked_part(timestamp, key, value)
            size = len(checked) + ATTRIBUTES_AT
            if size > lane.batch_bytes or size > most_bytes or start + size > segment_bytes:
                return None
            batch = HEAD.pack(offset, size - OVERHEAD_BYTES, lane.leader_epoch, 2, crc32c(checked)) + checked
            try:
                if start <= lane.position:
                    appender.append_unindexed(batch, timestamp)
                else:
                    self._lane = None
                    appender.append_indexed(batch, timestamp)
                    if not appender.is_full(index_bytes):  # else the next batch begins a segment
                        lane.position = appender.last_unindexed_position
                        self._lane = lane
            except LastwordError as error:
                self._lane = None
                local.failure.latch_if_offline(error)
                raise
            tail.stable_offset = tail.producers.end_offset = offset + 1
            if tail.watchers:
                tail.notify(self.partition)
            return offset, size

    def _new_lane(self) -> Lane | None:
        """Return the lane for `append_single`; None if the next record needs the general way."""
        if self._on_append is not None:
            return None
        if self.config.lastword_pulled_from is not None or self.config.damaged is not None:
            return None  # refused
        return self.tail.lane()

    def _changed_log(self) -> LocalLog:
        """Return the open log, for a change other than `append_single`: the lane's limits may not hold."""
        self._lane = None
        self._local.check_open()
        return self._local

    def ingest_file(self, file: str) -> bool:
        """Make a file of encoded batches the newest segment of the log, by renaming it on the same drive.

        The caller has verified the file's checksums, and that none of its batches is in the log already.

        Returns:
            True: The file is a segment, and its batches are durable. False: The file is unchanged, because
            appending its batches would give another result (`staged_batches`), or the active segment is
            empty.

        Raises:
            CorruptBatchError: The file holds bytes that do not begin a whole batch.
        """
        with self.lock:
            self._changed_log()
            is_ingested = self.tail.ingest_file(file)
            if is_ingested and self._on_append is not None:
                self._on_append()
            return is_ingested

    # -------------------------------------------------------------- commits of staged batches

    def begin_commit(self, offset: int | None) -> int:
        """Hold the log back from `offset` on: until `end_commit`, nothing there is cleaned, trimmed or moved.

        Args:
            offset: The log end at which an earlier try of the commit began; None: this is the first try.

        Returns:
            The log end at which the commit began.

        Raises:
            LastwordError: The log takes no batch: it has failed, or was moved.
        """
        with self.lock:
            self._local.check_open()
            self.incomplete_commit_offset = self.log_end if offset is None else offset
            return self.incomplete_commit_offset

    def end_commit(self) -> None:
        """Release the log: the commit is complete or refused."""
        with self.lock:
            self.incomplete_commit_offset = None

    # -------------------------------------------------------------- roll

    def roll(self) -> None:
        """Close the active segment and begin the next at the log end. Does nothing if it is empty."""
        with self.lock:
            local = self._changed_log()
            if local.active_bytes:
                self.tail.roll(local.log_end)

    @property
    def roll_due_ms(self) -> int:
        """The time after which `roll_if_due` rolls, if nothing is appended."""
        return self._local.roll_due_ms

    @property
    def change_mark(self) -> tuple[int, ...]:
        """Numbers of which at least one differs after each change of the log. Reads no file."""
        local = self._local
        return (
            local.changes,
            local.active_bytes,
            self.log_start,
            self.log_end,
            self.stable_offset,
            self.cleanable_offset,
        )

    def roll_if_due(self) -> bool:
        """Roll if the first record of the active segment is older than `segment.ms`, by the clock.

        So the setting holds without new appends.
        """
        with self.lock:
            if self.clock.now_ms() <= self.roll_due_ms:
                return False
            self.roll()
            return True

    def expire_producers(self) -> None:
        """Drop the state of producers that were idle for `producer.id.expiration.ms`.

        As in Kafka, they are looked for at most every `tail.PRODUCER_EXPIRATION_CHECK_MS`.
        """
        with self.lock:
            self.tail.expire_producers()

    # -------------------------------------------------------------- sync

    def sync(self) -> None:
        """Return when everything appended before the call survives a power cut.

        Callers at the same time share one fsync. SyncFailedError is final: the directory is offline until it
        is opened again.
        """
        self._local.sync()

    def flush(self) -> None:
        """Sync with the indexes, which moves the recovery point to the log end."""
        with self.lock:
            self._changed_log().flush()

    # -------------------------------------------------------------- cut the front

    def raise_log_start(self, offset: int) -> bool:
        """Make the log start at `offset`; return False if it starts there or above already.

        The caller has made it durable in the log-start checkpoint before: see `partition.cut`.

        Raises:
            OffsetOutOfRangeError: The offset is above the log end.
        """
        with self.lock:
            self._changed_log()
            if offset > self.log_end:
                raise OffsetOutOfRangeError.above(self.name, offset, self.log_end)
            if offset <= self.log_start:
                return False
            self.log_start = offset
            self.tail.notify(self.partition)
            with suppress(DiskFullError):  # done at the next opening: a prefix is removed to make room
                self.epochs.truncate_from_start(offset)
            return True

    def remove_prefix(self) -> list[Segment]:
        """Remove the segments below the log start.

        Their files are renamed when it returns, and unlinked after `file.delete.delay.ms`
        (`remove_deferred`); reads that have begun are not disturbed.
        """
        with self.lock:
            local = self._changed_log()
            first = local.segment_set.starting_at(self.log_start)[0].base_offset
            if first > local.segment_set[0].base_offset:
                self.tail.secure_snapshot(first, is_first=True)
            return local.remove_prefix(self.log_start)

    def remove_deferred(self, *, all: bool = False) -> int:
        """Unlink the files of removed segments whose delay has passed, or all; return how many."""
        with self.lock:
            return self._local.remove_deferred(all=all)

    # -------------------------------------------------------------- cut the end

    def truncate_to(self, offset: int) -> None:
        """Remove everything from `offset` on; the next record gets exactly this offset.

        See `partition.cut` for every crash of it. The caller lowers the checkpoints of the directory.

        Below the first segment: `truncate_fully_and_start_at`. At the log end or above, only leader epochs
        that begin there are removed. After a failure the log takes no more batches until it is opened again.
        """
        with self.lock:
            self._changed_log()
            if offset < 0:
                raise ValueError(f"a log cannot end at {offset}")
            if offset >= self.log_end:
                self.epochs.truncate_from_end(self.log_end)
            elif offset < self.segments[0].base_offset:
                self.truncate_fully_and_start_at(offset)
            else:
                self.tail.cut_to(offset)
                self.log_start = min(self.log_start, offset)
                self.tail.notify(~self.partition)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove everything; leave an empty log that starts at `offset`.

        The caller has put a log start above the log end into the checkpoint before, so that a crash in here
        leads to this offset, too.
        """
        with self.lock:
            self._changed_log()
            if offset < 0:
                raise ValueError(f"a log cannot start at {offset}")
            self.tail.start_at(offset, self.log_start)
            self.log_start = offset
            self.tail.notify(~self.partition)

    # -------------------------------------------------------------- replace

    def replace(self, old: Sequence[Segment], output: Segment) -> Segment:
        """Publish one rewritten segment in place of its sources; see `partition.swap` for every crash of it.

        Reads that have begun in an old segment end there; others find the new one.

        Args:
            old: Neighbours among the log's closed segments, named by any Segment of the same id.
            output: A complete, synced segment in a private directory, with the base offset of the first and
                the next offset of the last.
        """
        with self.lock:
            local = self._changed_log()
            segments = local.segment_set
            for segment in segments.segments[segments.index_of(old[-1].base_offset) + 1 :][:1]:
                self.tail.secure_snapshot(segment.base_offset)
            return local.replace(old, output)

    # -------------------------------------------------------------- read

    def view(self) -> PartitionView:
        """Return the log of now as a snapshot."""
        with self.lock:
            segments = self.segment_set
            segments = segments.with_last(segments.active.with_mtime_now())
            if self._topic is None:
                self._topic = topic_facts(self.files, self.directory)
            return PartitionView(
                self.store,
                LogVersion(segments, self.log_start, self.log_end, topic=self._topic),
                stable_offset=self.stable_offset,
                undecided=self.undecided,
                incomplete_commit_offset=self.incomplete_commit_offset,
                trusted=True,
                producer_expiration_ms=self.producer_expiration_ms,
                load_again=self._view_again,
                first_topic=self._first_topic,
            )

    def _view_again(self) -> PartitionView:
        """Return the view that a view of this log becomes when it is refreshed."""
        with self.lock:  # not while it is moved
            moved_to = self._moved_to
            if moved_to is None:
                return PartitionView.load(self.store) if self._local.is_closed else self.view()
        return moved_to._view_again()

    def refresh(self) -> None:
        """Wait until a swap that has begun is complete; for readers whose file vanished."""
        with self.lock:
            return

    # -------------------------------------------------------------- close

    def close(self) -> bool:
        """Sync everything, make what a clean stop promises a broker, and close all files.

        Returns:
            True: The log has no torn tail, right indexes, and a producer snapshot at the log end. Only then
            may the directory's clean-shutdown marker be written. False after a failure. A second close does
            nothing.
        """
        return run_steps(self.closing())

    def closing(self) -> Steps[bool]:
        """As `close`, in steps."""
        with self.lock:
            local = self._local
            if local.is_closed:
                return False
            try:
                if local.failure.error is not None:
                    return False
                yield from local.finishing(self.tail.taking_snapshot())
                return True
            finally:
                local.remove_deferred(all=True)
                local.abandon()

    @property
    def is_closed(self) -> bool:
        """Whether the log was closed or abandoned. It may be open again in another object."""
        return self._local.is_closed

    def abandon(self) -> None:
        """Close the files and do nothing else, as if the process were killed."""
        with self.lock:
            self._local.abandon()

    def goes_on_in(self, log: PartitionLog) -> None:
        """Let views of this log, which has moved, show the log in its new place."""
        with self.lock:
            self._moved_to = log
            log._first_topic = self._first_topic or self._topic

    def retire(self, why: LastwordError) -> None:
        """Raise `why` in every further call: the partition has moved."""
        with self.lock:
            self._local.failure.error = why
            self.tail.notify(~self.partition)
