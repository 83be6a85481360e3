"""`Tail`: the end of one partition's log, where batches are written, segments are rolled and the log is cut.

There is one way to write batch by batch (`Tail._write_each`). A batch is placed behind those that wait for
one write: under the next offsets, or, as the copy of another replica's batch, under its own. If it exceeds a
limit of the active segment (`RollLimits`), the batches before it are written, the segment is rolled, and the
batch is placed again. Many valid batches without a producer are written as a table, by kernels, up to the
same limits. Bytes and indexes are the same.

The state follows the bytes: batches, then the log end, the state of the producers, the transaction index, and
then the last stable offset. A snapshot of the producers is durable before the recovery point passes it, so
each roll begins with a snapshot, if one is due (`snapshots.is_due`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from weakref import ref

from lastword.errors import SequenceGapError
from lastword.files import Steps, run_steps
from lastword.partition import cut, removal_log, staged_batches
from lastword.partition.appending import (
    AppendedBatch,
    Batch,
    Pending,
    check_checksums,
    epoch_runs,
    gathered,
    producer_ids,
    repeated,
)
from lastword.partition.checkpoint_file import LeaderEpochs
from lastword.partition.local_log import Lane, LocalLog
from lastword.partition.producer_state import ProducerState, SequencedBatch
from lastword.partition.snapshots import (
    MANY_REPLAYED,
    Snapshots,
    is_due,
    last_batches,
    replay,
    with_starts_left,
)
from lastword.partition.staged_batches import Block
from lastword.partition.transactions import control_of
from lastword.records.batch import BatchHeader
from lastword.segment.names import MAX_RELATIVE_OFFSET

if TYPE_CHECKING:
    import numpy as np

B = TypeVar("B")

PRODUCER_EXPIRATION_CHECK_MS = 600_000
"""How often idle producers are looked for, as in Kafka."""

FEW = 4
"""Calls of at most this many batches are as fast in plain Python."""
LOADING_BYTES = 64 << 20
"""The kernels are loaded (about 0.4 s) after this many bytes in calls of more batches."""
SYNC_AHEAD_BYTES = 2 << 20
"""If a sync follows, the drive begins with each part of this size while more is appended."""


class Changed(set[int]):
    """The partitions that have changed since the owner of the set looked; see `PartitionLog.watch`."""


class Tail:
    """Write, roll and cut at the end of a log. The caller holds the lock of the partition.

    Attributes:
        epochs: The leader epochs.
        producers: The state of the producers at the log end.
        producer_expiration_ms: Producers that were idle for as long are dropped.
        stable_offset: The last stable offset; it may be below the log start.
        on_roll: Called after each roll.
        recovered_to: The log end after an unclean stop, until it is noted (`removal_log`); None: no note is
            due.
        watchers: The sets of `PartitionLog.watch`.
        cuts: How often the end of the log was cut, or was about to be, since it was opened.
    """

    def __init__(
        self,
        partition: int,
        local: LocalLog,
        epochs: LeaderEpochs,
        producers: ProducerState,
        snapshots: Snapshots,
        *,
        producer_expiration_ms: int,
        recovered_to: int | None,
    ) -> None:
        self.epochs = epochs
        self.producers = producers
        self.producer_expiration_ms = producer_expiration_ms
        self.stable_offset = 0
        self.on_roll: Callable[[], None] | None = None
        self.recovered_to = recovered_to
        self.watchers: tuple[ref[Changed], ...] = ()
        self.cuts = 0
        self._partition = partition
        self._local = local
        self._snapshots = snapshots
        self._first_epoch = 0  # of a log that has none
        self._expired_ms = local.clock.now_ms()  # opening left out the producers that were idle for too long
        self._plain_bytes = 0  # appended one by one because the kernels are not loaded
        self._replayed = len(local.segment_set.starting_at(snapshots.newest))  # segments, by opening
        self._follow()

    # -------------------------------------------------------------- what follows the bytes

    def _follow(self) -> None:
        """Let the last stable offset follow the log end, and notify the watchers."""
        self.producers.end_offset = self._local.log_end
        self.stable_offset = self.producers.stable_offset
        if self.watchers:
            self.notify(self._partition)

    def notify(self, number: int) -> None:
        """Add a number to the sets of the watchers: the partition, or its complement after a cut."""
        for watcher in self.watchers:
            changed = watcher()
            if changed is not None:
                changed.add(number)

    def _leader_epoch(self, *, begins: bool = True) -> int:
        """Return the epoch of the batches that are appended.

        `begins`: it is certain that a batch is appended, so note where the first epoch begins.
        """
        latest = self.epochs.latest
        if latest is not None:
            return latest
        if begins:
            self._begin_epoch(self._first_epoch, self._local.log_end)
        return self._first_epoch

    def _begin_epoch(self, epoch: int, offset: int) -> None:
        try:
            self.epochs.assign(epoch, offset, sync_name=False)
        finally:
            # After the rename: a sync of the log that runs meanwhile may have synced the old name.
            self._local.durability.directory_unsynced = True

    def _note_recovery(self) -> None:
        """Note, before other records take their offsets, that a power cut may have taken those above."""
        if self.recovered_to is not None:
            removal_log.note_cut(self._local.store.files, self._local.store.directory, self.recovered_to)
            self.recovered_to = None

    def expire_producers(self) -> None:
        """Drop the state of idle producers, at most every PRODUCER_EXPIRATION_CHECK_MS."""
        now_ms = self._local.clock.now_ms()
        if now_ms - self._expired_ms >= PRODUCER_EXPIRATION_CHECK_MS:
            self._expired_ms = now_ms
            self.producers.expire(now_ms, self.producer_expiration_ms)

    def taking_snapshot(self, *, is_due: bool | None = None) -> Steps[None]:
        """Write the producer state at the log end, durably, without idle producers.

        `is_due`: whether a snapshot is due; None: `snapshots.is_due` decides.
        """
        self.expire_producers()
        local = self._local
        if local.log_end > 0 and (self._is_snapshot_due() if is_due is None else is_due):
            with local.failure.latching_if_offline():
                is_taken = yield from self._snapshots.taking(
                    self.producers, active_base=local.appender.base_offset
                )
            if is_taken:  # it has synced all names of the directory
                local.durability.directory_unsynced = False

    def _is_snapshot_due(self) -> bool:
        replayed_bytes = self._local.store.files.replayed_bytes
        if not replayed_bytes or not self.producers:
            return True
        if self._replayed >= MANY_REPLAYED:  # each process that opens the log, and each reader, does it again
            self._replayed = 0
            return True
        added = self._local.segment_set.starting_at(self._snapshots.newest)
        size = sum(segment.size for segment in added if not segment.active) + self._local.active_bytes
        return is_due(len(self.producers), size, len(added), replayed_bytes)

    def secure_snapshot(self, base_offset: int, *, is_first: bool = False) -> None:
        """Write a snapshot at a segment's base if the newest one is below it.

        The segments before are to be rewritten or removed, and then a replay of them does not give the state.

        `is_first`: all of them are to be removed. Then there must be a snapshot at the base, too: newer ones
        may be damaged, or cut off.
        """
        if not self._local.store.files.replayed_bytes:
            return
        if self._snapshots.exists(base_offset) if is_first else self._snapshots.newest >= base_offset:
            return
        if base_offset == self._local.log_end:
            run_steps(self.taking_snapshot(is_due=True))
        else:
            state = replay(self._snapshots, self._local.segment_set, base_offset).state
            self._snapshots.write(base_offset, state.producers)

    # -------------------------------------------------------------- append

    def append(
        self, batches: Sequence[Batch], *, sync_follows: bool, is_checked: bool
    ) -> list[AppendedBatch]:
        """Append batches of valid sizes under the next offsets; see `PartitionLog.append_batches`."""
        if self.recovered_to is not None:
            self._note_recovery()
        if len(batches) > FEW and self._suits_table(batches):
            appended = self._append_table(batches, sync_follows)
            if appended is not None:
                return appended
        if not is_checked:
            check_checksums(batches)
        repeats = self._repeated(batches)
        if repeats is None:
            return self._append_each(batches)
        pairs = zip(batches, repeats, strict=True)
        others = iter(self._append_each([batch for batch, earlier in pairs if earlier is None]))
        return [
            next(others)
            if earlier is None
            else AppendedBatch(earlier.first_offset, earlier.last_offset, earlier.timestamp)
            for earlier in repeats
        ]

    def _repeated(self, batches: Sequence[Batch]) -> list[SequencedBatch | None] | None:
        """As `repeated`. The batches of producers are read from the log if one is refused without them."""
        try:
            return repeated(self.producers, batches, self._local.log_end)
        except SequenceGapError:
            read = partial(last_batches, self._snapshots, self._local.segment_set)
            if not sum(self.producers.complete(number, read) for number in producer_ids(batches)):
                raise
        return repeated(self.producers, batches, self._local.log_end)

    def append_copies(self, data: Batch, headers: Sequence[BatchHeader]) -> None:
        """Append batches of another replica, which `copied_headers` has checked."""
        if headers:
            self._note_recovery()
        view = memoryview(data)

        def place(pending: Pending, header: BatchHeader) -> BatchHeader:
            return pending.add_copy(view[header.position : header.end], header)

        latest = -1 if self.epochs.latest is None else self.epochs.latest
        for epoch, run in epoch_runs(headers, latest):
            if epoch > latest:
                self._begin_epoch(epoch, run[0].base_offset)
            self._write_each(run, place)

    def skip_to(self, offset: int) -> None:
        """Begin an empty segment at an offset above the log end."""
        self._note_recovery()
        self.roll(offset)

    def lane(self) -> Lane | None:
        """Return the lane for single records; None if the next record needs the general way."""
        latest = self.epochs.latest
        if latest is None or self.recovered_to is not None:
            return None  # the first append notes the epoch and the recovery
        if self.producers.open_since() is not None:
            return None  # the last stable offset is not the log end
        return self._local.lane(latest)

    def _append_each(self, batches: Sequence[Batch]) -> list[AppendedBatch]:
        if not batches:
            return []
        epoch = self._leader_epoch()

        def place(pending: Pending, batch: Batch) -> BatchHeader:
            return pending.add(batch, epoch, self._append_time())

        headers = self._write_each(batches, place)
        return [AppendedBatch(h.base_offset, h.last_offset, h.max_timestamp) for h in headers]

    def _write_each(
        self, batches: Iterable[B], place: Callable[[Pending, B], BatchHeader]
    ) -> list[BatchHeader]:
        """Write batches with one write for each part between two rolls; return their headers.

        `place` adds a batch to the pending ones, with its offsets, and returns its header.
        """
        local = self._local
        pending, headers = Pending(local.log_end), []
        for batch in batches:
            if pending.headers and local.is_full(len(pending.headers)):
                self._write(pending)  # only then are the sizes of the indexes exact
                pending = Pending(local.log_end)
            header = place(pending, batch)
            if local.must_roll(pending):
                pending.remove_last()
                self._write(pending)
                is_far = header.last_offset - local.log_end > MAX_RELATIVE_OFFSET
                self.roll(header.base_offset if is_far else local.log_end)
                pending = Pending(local.log_end)
                header = place(pending, batch)
            headers.append(header)
        self._write(pending)
        return headers

    def _write(self, pending: Pending) -> None:
        if not pending.headers:
            return
        local = self._local
        if max([header.producer_id for header in pending.headers]) < 0:
            local.append(pending)
        else:
            with local.failure.latching_if_interrupted():  # the state of the producers follows the bytes
                local.append(pending)
                for header in pending.headers:
                    if header.producer_id >= 0:
                        marker = control_of(pending.data, header, local.appender.file)
                        entry = self.producers.update(header, marker)
                        if entry is not None:
                            local.append_aborted(entry)
        self._follow()

    def _append_time(self) -> int | None:
        """Return the timestamp of batches in a topic with `LogAppendTime`; None: they keep their own."""
        if self._local.config.message_timestamp_type == "LogAppendTime":
            return self._local.clock.now_ms()
        return None

    def _suits_table(self, batches: Sequence[Batch]) -> bool:
        if self._append_time() is not None:
            return False
        if "lastword.kernels" in sys.modules:
            return True
        if isinstance(batches, Block):  # large batches: plain Python is nearly as fast
            return False
        self._plain_bytes += sum(map(len, batches))
        return self._plain_bytes > LOADING_BYTES

    def _append_table(self, batches: Sequence[Batch], sync_follows: bool) -> list[AppendedBatch] | None:
        """Append the batches as one table; None, and nothing done, if one of them needs the plain way."""
        import numpy as np

        from lastword.kernels import table as fields
        from lastword.kernels.batches import assign_offsets

        local = self._local
        sizes = np.fromiter(map(len, batches), np.int64, len(batches))
        buffer, data = gathered(batches, int(sizes.sum()), give=local.store.files.takes_buffers)
        table = np.empty((sizes.size, fields.FIELDS), np.int64)
        if assign_offsets(buffer, sizes, local.log_end, self._leader_epoch(begins=False), table) < sizes.size:
            return None
        self._leader_epoch()
        first, unasked = 0, 0
        while first < sizes.size:
            if local.is_full(sizes.size - first):
                break
            end = local.rows_before_roll(table, first, unasked)
            if end > first:
                self._write_rows(data, table[first:end], sync_follows)
            if end < sizes.size and local.active_bytes:
                self.roll(local.log_end)
            first, unasked = end, 1
        placed = table[:first, (fields.BASE_OFFSET, fields.LAST_OFFSET, fields.MAX_TIMESTAMP)]
        appended = list(map(AppendedBatch._make, placed.tolist()))
        if first < sizes.size:  # an index is nearly full: batch by batch it is known exactly when
            appended += self._append_each(batches[first:])
        return appended

    def _write_rows(self, data: memoryview, rows: np.ndarray, sync_follows: bool) -> None:
        from lastword.kernels import table as fields

        start = int(rows[0, fields.POSITION])
        end = int(rows[-1, fields.POSITION] + rows[-1, fields.SIZE])
        self._local.append_table(data[start:end], rows)
        self._follow()
        if sync_follows:
            self._local.appender.sync_ahead(SYNC_AHEAD_BYTES)

    # -------------------------------------------------------------- roll

    def roll(self, offset: int) -> None:
        """Close the active segment and begin the next at `offset`, which is not below the log end."""
        # Before the recovery point moves: replay after a crash begins with the snapshot.
        run_steps(self.taking_snapshot())
        self._local.roll(offset)
        self._rolled()

    def _rolled(self) -> None:
        self._follow()
        self._local.remove_deferred()
        if self.on_roll is not None:
            self.on_roll()

    def ingest_file(self, file: str) -> bool:
        """Make a file of batches the newest segment; see `PartitionLog.ingest_file`."""
        local, files = self._local, self._local.store.files
        if not local.active_bytes:
            return False
        self._note_recovery()
        batches = staged_batches.assign_offsets(files, file, local.log_end)
        if batches is None or not local.makes_one_segment(batches):
            return False
        with local.failure.latching_if_offline():
            staged_batches.write_offsets(files, file, batches, self._leader_epoch(begins=False))
        self._leader_epoch()
        run_steps(self.taking_snapshot())
        local.ingest_file(file, batches)
        self._rolled()
        return True

    # -------------------------------------------------------------- cut

    def cut_to(self, offset: int) -> None:
        """Remove everything from `offset` on; see `PartitionLog.truncate_to`."""
        with self._cutting(offset) as local:
            local.truncate_to(offset, self.epochs.at(offset))
            segments = local.segment_set
            if self._snapshots.remove_outside(self._snapshots.offsets(), segments[0].base_offset - 1, offset):
                local.store.files.fsync_dir(local.store.directory)
            self.epochs.truncate_from_end(offset)
            producers = replay(self._snapshots, segments, offset).state.producers
            left = with_starts_left(producers, segments, offset)
            self.producers = ProducerState(offset, left)
            if left != producers:
                self._snapshots.write(offset, left)

    def start_at(self, offset: int, log_start: int) -> None:
        """Remove everything, and begin an empty segment at `offset`. `log_start`: that of the log before."""
        with self._cutting(log_start) as local:
            local.remove_all()
            self._first_epoch = self._leader_epoch(begins=False)
            self._snapshots.remove_outside(self._snapshots.offsets(), -1, -1)
            self.epochs.truncate_from_end(0)
            local.start_at(offset)
            self.producers = ProducerState(offset)

    @contextmanager
    def _cutting(self, offset: int) -> Iterator[LocalLog]:
        """Note around a change that offsets from `offset` on were removed; then follow the new end."""
        local = self._local
        files, directory = local.store.files, local.store.directory
        with local.cutting():
            self.cuts += 1
            removal_log.note_cut(files, directory, offset)
            cut.forget_accounts(files, directory)
            yield local
            removal_log.note_cut(files, directory, offset)
            self._follow()
