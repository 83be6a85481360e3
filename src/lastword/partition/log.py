"""`PartitionLog`: the writing side of one partition, one object per open partition.

Who holds what. `lock` (reentrant) guards everything that changes: appends, rolls, replacing segments. Syncs
run outside of it, under a mutex of their own, so that appends go on while the drive works; whoever waits for
that mutex usually finds that the sync before covered it (one fsync for a whole group of callers). Readers
take no lock: the set of segments is replaced as a whole, and the active segment's size grows only after its
bytes are there.

What is promised when. An append that returned survives a killed process (`os`). After `sync`, everything
below `synced_to` survives a power cut (`disk`). Two rules make that a prefix of the log and never a log with
a hole: a segment is synced before its successor is created, and the directory is synced with the first sync
that relies on a new name. The recovery point moves only after the indexes are synced too, for what lies below
it is not looked at again.

Producers. The log is the leader of its partition: a batch with a producer id is checked against what the
partition remembers of that producer before the first byte of the call is written; one of its last five that
comes again is answered with its first offsets and not appended. The state follows the bytes: batches, then
the log end, then the transaction index, then the last stable offset. With a single node the high watermark
is the log end. A snapshot of the state is durable before the recovery point passes it.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from lastword.clock import Clock
from lastword.config import TopicConfig
from lastword.errors import FileTakenError, LastwordError, OffsetOutOfRangeError
from lastword.files import Files
from lastword.partition import front, incomplete_commit, ingest_file, losses, swap, truncate
from lastword.partition.appending import AppendedBatch, Appending
from lastword.partition.durability import Durability
from lastword.partition.epochs import LeaderEpochs
from lastword.partition.health import Health
from lastword.partition.ingest_file import AssignedBatch
from lastword.partition.pending import Batch, marker_batch
from lastword.partition.producer_state import PRODUCER_EXPIRATION_MS, Producer, ProducerState
from lastword.partition.reads import Reads
from lastword.partition.replacing import after_failed_swap, own_segments
from lastword.partition.rolling import RollRule
from lastword.partition.segment_set import SegmentSet
from lastword.partition.snapshots import Snapshots
from lastword.partition.tail import Tail
from lastword.segment import names
from lastword.segment.append import SegmentAppender
from lastword.segment.segment import Segment

if TYPE_CHECKING:
    from lastword.partition.view import PartitionView

PRODUCER_EXPIRATION_CHECK_MS = 600_000
"""How often silent producers are looked for, as Kafka does."""


class OpenState(NamedTuple):
    """What opening found out (`partition.open`)."""

    segments: SegmentSet
    appender: SegmentAppender
    log_start: int
    recovery_point: int
    synced_to: int
    epochs: LeaderEpochs
    producers: ProducerState
    snapshots: Snapshots
    producer_expiration_ms: int = PRODUCER_EXPIRATION_MS
    incomplete_commit_offset: int | None = None
    recovered_to: int | None = None


class PartitionLog(Reads):
    """Append, roll, sync, replace, read. Made by `partition.open.open_log`."""

    def __init__(
        self,
        files: Files,
        directory: str,
        topic: str,
        partition: int,
        config: TopicConfig,
        clock: Clock,
        state: OpenState,
        rng: random.Random | None = None,
    ) -> None:
        self.files = files
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self._config = config
        self.clock = clock
        self.lock = threading.RLock()
        self._live = state.segments, state.appender
        """One value: readers in other threads find the segments with the appender of their last one."""
        self._log_start = state.log_start
        self._epochs = state.epochs
        self._epoch = 0  # of a log that has none
        self._snapshots = state.snapshots
        self.producer_expiration_ms = state.producer_expiration_ms
        self._expired_ms = clock.now_ms()  # opening left out those that were silent for too long
        self._health = Health(files, directory)
        self._durability = Durability(
            files,
            directory,
            clock,
            self._health,
            unsynced=state.segments.starting_at(state.synced_to),
            synced_to=state.synced_to,
            recovery_point=state.recovery_point,
            epoch=lambda: self._epochs.latest,
        )
        self._tail = Tail(files, state.appender, state.producers, self._health, self._durability)
        self._tail.find_stable_offset(self._log_start)
        self._roll_rule = RollRule(config, clock, rng or random.Random())
        self._appending = Appending(
            self.name,
            self._tail,
            self._roll_rule,
            config,
            clock,
            roll=self.roll,
            epoch=lambda: (self._epoch if self._epochs.latest is None else self._epochs.latest) or 0,
            assign_epoch=self._assign_epoch,
        )
        self._incomplete_commit_offset = state.incomplete_commit_offset
        self.on_roll: Callable[[], None] | None = None
        """Called after each roll, with the lock held."""
        self._waste = front.Waste(files, clock)
        self.grows = True
        self._recovered_to = state.recovered_to
        """The log end after a stop that was not clean, until it is noted (`losses`); None: no note is due."""
        self._closed = False

    def __repr__(self) -> str:
        return f"PartitionLog({self.name}, {self.log_start}..{self.log_end})"

    # -------------------------------------------------------------- facts

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def config(self) -> TopicConfig:
        return self._config

    @config.setter
    def config(self, config: TopicConfig) -> None:
        """Other settings, from the next append on."""
        with self.lock:
            self._config = self._appending.config = self._roll_rule.config = config

    @property
    def segment_set(self) -> SegmentSet:
        segments, appender = self._live
        return segments.with_last(appender.segment)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """A snapshot: what is replaced later stays readable as long as its file is open, then `refresh`."""
        return self.segment_set.segments

    @property
    def active(self) -> Segment:
        """The segment that appends go to."""
        return self._tail.segment

    @property
    def log_start(self) -> int:
        return self._log_start

    @property
    def log_end(self) -> int:
        """The offset that the next record gets."""
        return self._tail.log_end

    @property
    def synced_to(self) -> int:
        """Everything below this offset survives a power cut."""
        return self._durability.synced_to

    @property
    def recovery_point(self) -> int:
        """Everything below this offset is on the drive with its indexes; recovery begins here."""
        return self._durability.recovery_point

    @property
    def epochs(self) -> LeaderEpochs:
        return self._epochs

    @property
    def high_watermark(self) -> int:
        """Up to here records may be read (exclusive): the log end, for there is no other replica."""
        return self.log_end

    @property
    def stable_offset(self) -> int:
        """Last stable offset: every transaction that begins below it is decided. `read_committed` ends here,
        and nothing at or above it may be cleaned."""
        return self._tail.stable_offset

    @property
    def incomplete_commit_offset(self) -> int | None:
        """The lowest offset at which an incomplete commit begins; None if all commits are complete."""
        return self._incomplete_commit_offset

    @property
    def cleanable_offset(self) -> int:
        """Nothing at or above may be cleaned: the last stable offset, or where an incomplete commit begins,
        if that is lower."""
        return incomplete_commit.below(self.stable_offset, self._incomplete_commit_offset)

    @property
    def removable_offset(self) -> int:
        """No segment that ends above may be removed: the high watermark, or the beginning of an incomplete
        commit."""
        return incomplete_commit.below(self.high_watermark, self._incomplete_commit_offset)

    def producer(self, producer_id: int) -> Producer | None:
        """What is remembered of a producer id: its epoch, its last sequence, its open transaction."""
        with self.lock:
            return self._tail.producers.get(producer_id)

    @property
    def producers(self) -> list[Producer]:
        """All producers that are remembered, by producer id."""
        with self.lock:
            return self._tail.producers.producers

    # -------------------------------------------------------------- append

    def append_batch(self, data: Batch) -> AppendedBatch:
        """Append one ready batch, whose offsets count from 0; the log assigns the real ones.

        RecordTooLargeError above `max.message.bytes`. Survives a killed process when it returns.
        """
        return self.append_batches((data,))[0]

    def append_batches(self, batches: Sequence[Batch], *, sync_follows: bool = False) -> list[AppendedBatch]:
        """Append ready batches in order, with one write for each segment they go to.

        Sizes, checksums and producers are checked before the first byte is written: RecordTooLargeError,
        CorruptBatchError, SequenceGapError, ProducerFencedError, TransactionStateError leave the log as it
        was. A duplicate is answered, not appended. A drive that fills up leaves whole batches only: those of
        the segments that were filled before.

        `sync_follows`: the caller will `sync` soon, so the drive may begin while more comes.
        """
        with self.lock:
            self._check_open()
            if self._recovered_to is not None:
                self._note_recovery(self._recovered_to)
            appended = self._appending.append(batches, sync_follows=sync_follows)
            if self._durability.is_due(self.log_end, self.config.flush_messages, self.config.flush_ms):
                self.sync()
            return appended

    def ingest_file(self, file: str) -> bool:
        """Make a file of encoded batches the newest segment of the log, by renaming it on the same drive.

        The caller has verified the file's checksums, and that none of its batches is in the log already.

        Returns:
            True: The file is a segment, and its batches are durable. False: The file is unchanged, because
            appending its batches would give another result (`ingest_file`), or the active segment is empty.

        Raises:
            CorruptBatchError: The file holds bytes that do not begin a whole batch.
        """
        with self.lock:
            self._check_open()
            if not self.active.size:
                return False
            if self._recovered_to is not None:
                self._note_recovery(self._recovered_to)
            batches = ingest_file.assign_offsets(self.files, file, self.log_end)
            if batches is None or not ingest_file.fits_one_segment(self._roll_rule, self.config, batches):
                return False
            epoch = self._appending.epoch()
            self._health.guarded(lambda: ingest_file.write_offsets(self.files, file, batches, epoch))
            self._assign_epoch()
            try:
                self._health.guarded(lambda: self._roll(lambda base: self._appender_from(file, batches)))
            except LastwordError as error:
                base = names.segment_file(batches[0].base_offset, names.LOG)
                if self.files.exists(f"{self.directory}/{base}"):  # what comes next would lie beside it
                    self._health.failed(error)
                raise
            self._tail.moved_on()
            self._rolled()
            return True

    def _note_recovery(self, log_end: int) -> None:
        """A power cut may have taken records above: note that before others take their offsets."""
        losses.note_cut(self.files, self.directory, log_end)
        self._recovered_to = None

    def _appender_from(self, file: str, batches: Sequence[AssignedBatch]) -> SegmentAppender:
        interval = self.config.index_interval_bytes
        return SegmentAppender.from_file(
            self.files, file, self.directory, batches, index_interval_bytes=interval
        )

    def _set_segments(self, segments: SegmentSet) -> None:
        self._live = segments, self._tail.appender

    def _assign_epoch(self) -> None:
        if self._epochs.latest is None:
            self._epochs.assign(self._epoch, self.log_end)

    def begin_commit(self, commit_id: str) -> int:
        """Return the log end at which a commit began. The first call notes it durably.

        Until `end_commit`, nothing above that offset is cleaned, trimmed or moved.
        """
        with self.lock:
            began = incomplete_commit.begin(self.files, self.directory, commit_id, self.log_end)
            self._find_incomplete_commit()
            return began

    def end_commit(self, commit_id: str) -> None:
        """Remove what was staged for a commit, which is complete or refused, and release the log above it."""
        incomplete_commit.discard(self.files, self.directory, commit_id)
        with self.lock:
            self._find_incomplete_commit()

    def _find_incomplete_commit(self) -> None:
        found = incomplete_commit.incomplete_commit_offset(self.files, self.directory)
        self._incomplete_commit_offset = found

    def end_transaction(
        self, producer_id: int, epoch: int, commit: bool, coordinator_epoch: int = 0
    ) -> AppendedBatch:
        """Append the marker that decides a producer's open transaction: from here on its records are
        committed, or aborted.

        ProducerFencedError for an epoch older than the producer's, CoordinatorFencedError for an older
        coordinator. Without an open transaction the marker decides nothing, but its epoch counts.
        """
        with self.lock:
            now_ms = self.clock.now_ms()
            return self.append_batch(marker_batch(producer_id, epoch, commit, coordinator_epoch, now_ms))

    # -------------------------------------------------------------- roll

    def roll(self) -> None:
        """Close the active segment and begin the next at the log end. Does nothing if it is empty.

        The order: the closed segment and its indexes are synced before the new one exists, so what a power
        cut leaves of the log is a beginning of it, never a log with a hole.
        """
        with self.lock:
            self._check_open()
            if self.active.size:
                self._health.guarded(lambda: self._roll(self._new_segment))
                self._rolled()

    def _rolled(self) -> None:
        self._waste.remove()
        if self.on_roll is not None:
            self.on_roll()

    def _roll(self, begin: Callable[[int], SegmentAppender]) -> None:
        old, base = self._tail.appender, self.log_end
        old.finish()
        self._forget_idle_producers()
        self._take_snapshot()  # before the recovery point moves: replay after a crash begins with it
        with self._durability.turns.turn():
            self._tail.sync(base, indexes=True)
        try:
            new = begin(base)
        except FileTakenError:
            # Left by a roll that did not come to its end: no segment of the log has this base.
            for extension in names.SEGMENT_EXTENSIONS:
                self.files.unlink(f"{self.directory}/{names.segment_file(base, extension)}", missing_ok=True)
            new = begin(base)
        with self._durability.turns.turn():  # nobody syncs while the files change hands
            self._durability.directory_unsynced = True
            self._live = self.segment_set.with_last(self._tail.close()).with_added(new.segment), new
            self._durability.begun(new.segment)
            self._tail.begin(new, self._tail.producers)
        self._roll_rule.begun()

    def _new_segment(self, base_offset: int) -> SegmentAppender:
        interval = self.config.index_interval_bytes
        return SegmentAppender.create(self.files, self.directory, base_offset, index_interval_bytes=interval)

    def _take_snapshot(self) -> None:
        """The producer state at the log end, durably. Below offset 0 there is nothing to remember."""
        if self.log_end > 0:
            self._snapshots.take(self._tail.producers)

    def _forget_idle_producers(self) -> None:
        now_ms = self.clock.now_ms()
        if now_ms - self._expired_ms >= PRODUCER_EXPIRATION_CHECK_MS:
            self._expired_ms = now_ms
            self._tail.producers.expire(now_ms, self.producer_expiration_ms)

    def roll_if_due(self) -> bool:
        """Roll if the first record of the active segment is older than `segment.ms`, by the clock: the
        setting then holds without new appends.
        """
        with self.lock:
            if not self._roll_rule.is_due(self._tail.appender):
                return False
            self.roll()
            return True

    # -------------------------------------------------------------- sync

    def sync(self) -> None:
        """Returns when everything appended before the call survives a power cut.

        Callers at the same time share one fsync. SyncFailedError is final: the directory is offline until it
        is opened again.
        """
        target, durability = self.log_end, self._durability

        def done() -> bool:
            return durability.synced_to >= target and not durability.directory_unsynced

        with durability.turns.turn(done) as mine:
            if mine:
                self._check_open()
                self._tail.sync(self.log_end, indexes=False)

    def flush(self) -> None:
        """`sync`, with the indexes too: moves the recovery point to the log end."""
        with self.lock:
            self._check_open()
            if self.recovery_point < self.log_end or self._durability.directory_unsynced:
                with self._durability.turns.turn():
                    self._tail.sync(self.log_end, indexes=True)

    # -------------------------------------------------------------- the front

    def raise_log_start(self, offset: int) -> bool:
        """Nothing below `offset` is there any more; False if the log starts there or above already. The
        caller has made it durable in the log-start checkpoint before: see `partition.front`.

        OffsetOutOfRangeError above the log end.
        """
        with self.lock:
            self._check_open()
            if offset > self.log_end:
                raise OffsetOutOfRangeError.above(self.name, offset, self.log_end)
            if offset <= self._log_start:
                return False
            self._log_start = offset
            self._tail.log_start = offset
            self._tail.stable_offset = max(self._tail.stable_offset, offset)
            self._epochs.truncate_from_start(offset)
            return True

    def remove_front(self) -> list[Segment]:
        """Take the segments below the log start out of the log. Their files are renamed when it returns, and
        unlinked after `file.delete.delay.ms` (`remove_waste`); readers that are inside finish.
        """
        with self.lock:
            self._check_open()
            gone = front.below_start(self.segment_set, self._log_start)
            if not gone:
                return []
            listing = self.files.listdir(self.directory)
            with self._durability.turns.turn():  # nobody syncs a file that loses its name
                left = gone
                try:
                    self._health.guarded(lambda: self._set_aside(gone, listing))
                    left = ()
                except LastwordError:
                    # What was renamed is made durable by the next sync.
                    self._durability.directory_unsynced = True
                    with contextlib.suppress(LastwordError):
                        left = tuple(s for s in gone if self.files.exists(s.file))
                    raise
                finally:
                    self._set_segments(SegmentSet([*left, *self.segment_set.segments[len(gone) :]]))
                    self._durability.forget(gone, left)
            return list(gone)

    def _set_aside(self, gone: Sequence[Segment], listing: list[str]) -> None:
        paths = front.set_aside(self.files, self.directory, gone, listing)
        self._waste.add(paths, self.config.file_delete_delay_ms)

    def remove_waste(self) -> int:
        """Unlink the files of removed segments whose delay has passed; returns how many."""
        with self.lock:
            return self._waste.remove()

    # -------------------------------------------------------------- the end

    def truncate_to(self, offset: int) -> None:
        """Take back everything from `offset` on; the next record gets exactly this offset. See
        `partition.truncate` for every crash of it. The caller lowers the checkpoints of the directory.

        Below the first segment: `truncate_fully_and_start_at`. At the log end or above only leader epochs
        that begin there go. After a failure the log takes no more until it is opened again.
        """
        with self.lock:
            self._check_open()
            if offset < 0:
                raise ValueError(f"a log cannot end at {offset}")
            if offset >= self.log_end:
                self._epochs.truncate_from_end(self.log_end)
            elif offset < self.segment_set[0].base_offset:
                self.truncate_fully_and_start_at(offset)
            else:
                self._cut(lambda: self._truncate_to(offset))

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Forget all there is: an empty log that starts at `offset`. The caller has put a log start above the
        log end into the checkpoint before, so that a crash in here leads to this offset, too.
        """
        with self.lock:
            self._check_open()
            if offset < 0:
                raise ValueError(f"a log cannot start at {offset}")
            self._cut(lambda: self._start_at(offset))

    def _cut(self, change: Callable[[], None]) -> None:
        with self._durability.turns.turn():  # nobody syncs while files go
            self._health.fatal(change)

    def _truncate_to(self, offset: int) -> None:
        losses.note_cut(self.files, self.directory, offset)
        truncate.forget_accounts(self.files, self.directory)
        self._durability.mark.lower(self.segment_set[self.segment_set.floor(offset)].end_before(offset))
        self._tail.close()
        self._begin(truncate.to_offset(self._parts(), offset), offset)

    def _start_at(self, offset: int) -> None:
        losses.note_cut(self.files, self.directory, self._log_start)
        truncate.forget_accounts(self.files, self.directory)
        self._durability.mark.lower(0)
        self._tail.close()
        self._epoch = self._epochs.latest or self._epoch
        left = truncate.everything(self._parts(), offset)
        self._log_start = offset
        self._begin(left, offset)

    def _parts(self) -> truncate.Parts:
        interval = self.config.index_interval_bytes
        return truncate.Parts(
            self.files, self.directory, self.segment_set, self._snapshots, self._epochs, interval
        )

    def _begin(self, left: truncate.Left, offset: int) -> None:
        """Go on with other files, all synced, at `offset`."""
        self._live = left.segments, left.appender
        self._durability.begun(left.appender.segment)
        self._durability.lower(offset)
        self._log_start = min(self._log_start, offset)
        self._tail.begin(left.appender, left.producers)
        self._tail.find_stable_offset(self._log_start)
        self._roll_rule.begun()

    # -------------------------------------------------------------- replace

    def replace(self, old: Sequence[Segment], new: Sequence[Segment]) -> Segment:
        """Publish one rewritten segment in place of its sources; see `partition.swap` for every crash of it.

        `old`: neighbours among this log's closed segments, named by any Segment of the same file. `new`: one
        complete, synced segment in a private directory, with the base offset of the first and the next offset
        of the last. Readers that are inside an old segment finish it; others find the new one.
        """
        if len(new) != 1:
            raise ValueError("a group is replaced by one segment")
        with self.lock:
            self._check_open()
            sources = own_segments(self.segment_set, old)
            try:
                published = swap.publish(self.files, self.directory, sources, new[0])
            except LastwordError:
                self._after_failed_swap()
                raise
            self._set_segments(self.segment_set.with_replaced(sources, [published]))
            return published

    def _after_failed_swap(self) -> None:
        """Bring directory and memory to one of the two states that a swap has; if that fails, this log is
        done for.
        """
        try:
            segments = self.segment_set
            self._set_segments(after_failed_swap(self.files, self.directory, segments, segments.active))
        except LastwordError as error:
            self._health.failed(error)

    # -------------------------------------------------------------- read

    def view(self) -> PartitionView:
        """The log of now as a snapshot that other code, or a file list for other processes, can work on."""
        from lastword.partition.view import PartitionView

        with self.lock:
            segments = self.segment_set
            return PartitionView(
                self.files,
                self.directory,
                segments.with_last(segments.active.with_mtime_now()),
                self.log_start,
                self.log_end,
                stable_offset=self._tail.stable_offset,
                incomplete_commit_offset=self._incomplete_commit_offset,
                trusted=True,
                producer_expiration_ms=self.producer_expiration_ms,
                load_again=self._view_again,
            )

    def _view_again(self) -> PartitionView:
        """What a view of this log becomes when it is refreshed."""
        from lastword.partition.view import PartitionView

        return PartitionView.load(self.files, self.directory) if self._closed else self.view()

    def refresh(self) -> None:
        """For readers whose file vanished: waits until the swap that is under way is done."""
        with self.lock:
            return

    # -------------------------------------------------------------- close

    def close(self) -> bool:
        """Sync everything, give the broker what a clean stop promises, close all files.

        True if the promises hold: no torn tail, right indexes, a producer snapshot at the log end. Only then
        may the directory's clean-shutdown marker be written. False after a failure. A second close does
        nothing.
        """
        with self.lock:
            if self._closed:
                return False
            self._closed = True
            try:
                return self._close_cleanly()
            finally:
                self._waste.remove(all=True)
                self._close_files()

    def _close_files(self) -> None:
        self._tail.close()
        self._durability.mark.close()

    def _close_cleanly(self) -> bool:
        if self._health.failure is not None:
            return False
        self._tail.appender.finish()
        self._take_snapshot()
        with self._durability.turns.turn():
            self._tail.sync(self.log_end, indexes=True)
        return True

    def abandon(self) -> None:
        """Close the files and nothing else, as a killed process would."""
        with self.lock:
            self._closed = True
            self._close_files()

    def retire(self, why: LastwordError) -> None:
        """From now on whoever asks this object gets `why`: the partition is somewhere else."""
        with self.lock:
            self._health.failure = why

    def _check_open(self) -> None:
        if self._health.failure is not None:
            raise self._health.failure
        if self._closed:
            raise ValueError(f"{self.name} is closed")
