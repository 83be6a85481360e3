"""Open a partition to write: first repair what a crash left, in Kafka's order, and report damage.

1. An interrupted swap is finished or undone (`swap.recover`); unpublished rewrites are removed. A segment
   that is too wide for its indexes is split (`recovery.split`).
2. Index files without a log are removed. A log without an index gets one, also after a clean stop.
3. After a stop that was not clean, every segment from the recovery point on is walked with its checksums and
   its indexes are rebuilt. After a clean stop only the end of the active segment is read.
4. Damage. A batch with a right checksum is never cut, however its fields contradict each other or the log
   (CorruptBatchError). A tail that is no such batch is cut if it is above everything that is known to be
   synced (recovery point and synced mark): then a crash explains it, and nothing that was acknowledged at
   `disk` is in it or behind it. After a clean stop it is cut only at the log end of that stop, with no valid
   batch behind it. Otherwise the drive or another program has damaged the log: CorruptBatchError, no log is
   changed, this partition stays closed. The same holds for a log that does not end where the clean stop left
   it, or ends below a current synced mark, or has a gap above that mark: no checksum covers base offsets.
   `durability.LogEnd` has the rules.
5. The log end and the leader epochs are made to agree with the rest.
6. The producer state is computed from the newest valid snapshot and the batches behind it. After a stop that
   was not clean, replay begins below the first segment that was walked, and the transaction indexes of these
   segments are rebuilt. Snapshots above the log end are removed, durably, before the log may grow there. A
   missing snapshot never counts as an empty one.

Opening again after a crash in here does the same: the bytes that are cut were not valid before, and nothing
later is removed before the cut is made.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from lastword.clock import Clock
from lastword.config import TopicConfig
from lastword.errors import CorruptBatchError, DataError, LastwordError, NotAPartitionError
from lastword.files import Files, Steps, run_steps
from lastword.partition import leases
from lastword.partition.checkpoint_file import LeaderEpochs
from lastword.partition.cut import forget_keys_above
from lastword.partition.directory_segments import DirectorySegments, check_directory
from lastword.partition.durability import LogEnd, SyncedMark, read_mark
from lastword.partition.local_log import LocalLog
from lastword.partition.log import PartitionLog
from lastword.partition.producer_state import PRODUCER_EXPIRATION_MS, ProducerState
from lastword.partition.recovery import (
    Cut,
    DamageRepair,
    Recovery,
    Repairs,
    finish_swaps,
    private_listing,
    remove_leftovers,
    split_overflowed,
)
from lastword.partition.segment_store import SegmentSet
from lastword.partition.snapshots import Snapshots, replay
from lastword.partition.staged_batches import incomplete_commit_offset
from lastword.segment import indexes, names
from lastword.segment.append import SegmentAppender
from lastword.segment.names import MAX_RELATIVE_OFFSET
from lastword.segment.recover import Inspection, replace_index
from lastword.segment.segment import Segment
from lastword.segment.stored import SegmentFiles


def opening(
    files: Files,
    directory: str,
    config: TopicConfig,
    clock: Clock,
    *,
    recovery_point: int = 0,
    log_start: int = 0,
    first_dirty: Callable[[], int] = int,
    clean: bool = False,
    rng: random.Random | None = None,
    producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
) -> Steps[tuple[PartitionLog, Recovery]]:
    """Recover a partition directory and open it to write; an empty one becomes a log at `log_start`.

    Args:
        files: The storage.
        directory: Path of the partition; its name holds topic and partition. See `check_directory`.
        config: Settings of the topic.
        clock: The time.
        recovery_point: By the checkpoint.
        log_start: By the checkpoint; a log start that the log cannot have is ignored.
        first_dirty: Returns it by the checkpoint; called if the partition has leases.
        clean: The directory's clean-shutdown marker was there.
        rng: Jitter of rolling.
        producer_expiration_ms: Producers that were silent for so long, without a transaction, are dropped.

    Raises:
        CorruptBatchError: Damage that no crash explains. Everything is as it was, except an interrupted swap.
        UnknownMagicError: Likewise.
    """
    checkpointed = recovery_point, log_start, first_dirty
    return _Opening(files, directory, config, checkpointed, clean).run(clock, rng, producer_expiration_ms)


def open_log(
    files: Files, directory: str, config: TopicConfig, clock: Clock, **given: Any
) -> tuple[PartitionLog, Recovery]:
    """As `opening`, with each sync in its place."""
    check_directory(files, directory)
    return run_steps(opening(files, directory, config, clock, **given))


def expected_cuts(files: Files, directory: str, *, recovery_point: int, clean: bool) -> list[Cut]:
    """Return the log files that `opening` would cut or remove. Change nothing.

    Files of an interrupted swap are not finished or undone for it: with them the result is empty.

    Raises:
        DataError: As `opening`, which then changes no log.
    """
    listing = files.listdir(directory)
    parsed = map(names.parse_segment_file, listing)
    if any(file is not None and file.suffix for file in parsed):
        return []
    damage = DamageRepair(
        files,
        directory,
        listing,
        Repairs(*names.topic_partition(directory)),
        segments={
            base: Segment.load(SegmentFiles(files, directory, base)) for base in names.log_bases(listing)
        },
        known=LogEnd(clean, recovery_point, read_mark(files, directory), names.snapshot_offsets(listing)),
        parts=set(),
        index_interval_bytes=TopicConfig().index_interval_bytes,
    )
    return damage.cuts(damage.find())


class _Opening:
    def __init__(
        self,
        files: Files,
        directory: str,
        config: TopicConfig,
        checkpointed: tuple[int, int, Callable[[], int]],
        clean: bool,
    ) -> None:
        self.files = files
        self.directory = directory
        self.topic, self.partition = names.topic_partition(directory)
        self.config = config
        self.recovery_point, self.log_start, self.first_dirty = checkpointed
        self.clean = clean
        self.repairs = Repairs(self.topic, self.partition)

    def run(
        self, clock: Clock, rng: random.Random | None, producer_expiration_ms: int
    ) -> Steps[tuple[PartitionLog, Recovery]]:
        files, directory, interval = self.files, self.directory, self.config.index_interval_bytes
        found = files.listdir(directory)  # this process has the lock: only the steps below change it
        listing = found
        loaded = self._load(listing)  # NotAPartitionError before anything is changed
        folder = os.path.join(directory, names.PRIVATE)
        if names.PRIVATE in found and files.is_link(folder):
            raise NotAPartitionError.link(folder)  # what is written below would be elsewhere
        listing = finish_swaps(files, directory, listing, self.repairs)
        private = private_listing(files, directory)
        listing = remove_leftovers(files, directory, listing, private, self.repairs)
        if listing != found:
            loaded = self._load(listing)
        parts = split_overflowed(files, directory, loaded, interval, self.repairs)
        if parts:
            listing = files.listdir(directory)
            loaded = self._load(listing)
        epochs = LeaderEpochs.load(files, directory)
        known = LogEnd(
            self.clean,
            self.recovery_point,
            read_mark(files, directory, epochs),
            names.snapshot_offsets(listing),
        )
        damage = DamageRepair(
            files,
            directory,
            listing,
            self.repairs,
            segments=loaded,
            known=known,
            parts=parts,
            index_interval_bytes=interval,
        )
        inspections = self._find(damage, known, epochs)
        created = not loaded
        if inspections:
            damage.mend(inspections)
            listing = files.listdir(directory)
            private = private_listing(files, directory)  # a reader may have made a lease during the walk
            loaded = {}
        bases = list(loaded) or names.log_bases(listing)
        segments = self._segments(inspections, loaded, bases, damage.sound_end)
        log_end = segments.active.next_offset
        if self.log_start > log_end:
            segments, log_end = self._beyond_log_end(segments, log_end)
        log_start = max(self.log_start, segments[0].base_offset)
        if names.KEYS in private:
            forget_keys_above(files, directory, log_end)
        leases.log_found(files, directory, log_end, self.first_dirty, private)
        self._check_recovery_point(log_end)
        self._mend_epochs(epochs, inspections, log_start, log_end)
        if known.mark.offset > log_end:
            self._lower_mark(log_end, epochs)
        snapshots = Snapshots(files, directory)
        age = clock.now_ms(), producer_expiration_ms
        producers = yield from self._producers(
            snapshots, inspections, segments, log_end, None if created else listing, age
        )
        recovery_point = log_end if self.clean else min(self.recovery_point, log_end)
        local = LocalLog(
            DirectorySegments(files, directory),
            self.config,
            clock,
            segments,
            epochs=epochs,
            synced_to=recovery_point,
            recovery_point=recovery_point,
            rng=rng,
            # That of a segment that was walked may have been made.
            has_transaction_index=bool(inspections)
            or names.segment_file(segments.active.base_offset, names.TXN_INDEX) in listing,
        )
        log = PartitionLog(
            self.topic,
            self.partition,
            local,
            log_start=log_start,
            epochs=epochs,
            producers=producers,
            snapshots=snapshots,
            producer_expiration_ms=producer_expiration_ms,
            incomplete_commit_offset=incomplete_commit_offset(files, directory),
            recovered_to=None if self.clean or created else log_end,
            private_names=private,
        )
        repaired = tuple(self.repairs.done)
        report = Recovery(self.topic, self.partition, self.clean, log_start, log_end, damage.walked, repaired)
        return log, report

    # ---------------------------------------------------------- segments

    def _load(self, listing: list[str]) -> dict[int, Segment]:
        return {
            base: Segment.load(SegmentFiles(self.files, self.directory, base))
            for base in names.log_bases(listing)
        }

    def _segments(
        self,
        inspections: dict[int, Inspection],
        loaded: dict[int, Segment],
        bases: list[int],
        sound_end: int | None,
    ) -> SegmentSet:
        """Return the segments of the repaired log.

        Args:
            inspections: The segments that were walked.
            loaded: The segments as they are; none if files were repaired.
            bases: The base offsets of all segments; none: the log is created.
            sound_end: The next offset of the active segment, if its end is valid and it was not walked.
        """
        if not bases:
            base = self.log_start
            self._create(base)
            bases = [base]
        segments = []
        for base in bases:
            active = base == bases[-1]
            segment, inspected = loaded.get(base), inspections.get(base)
            if segment is None:
                segment = Segment.load(
                    SegmentFiles(self.files, self.directory, base),
                    next_offset=None if inspected is None else inspected.next_offset,
                    largest_timestamp=None if inspected is None else inspected.largest_timestamp,
                    active=active,
                )
            elif active:
                segment = segment.ending_at(segment.size, sound_end, active=True)
            segments.append(segment)
        return SegmentSet(segments)

    def _create(self, base: int) -> None:
        interval = self.config.index_interval_bytes
        SegmentAppender.create(
            SegmentFiles(self.files, self.directory, base), index_interval_bytes=interval
        ).close()

    def _beyond_log_end(self, segments: SegmentSet, log_end: int) -> tuple[SegmentSet, int]:
        """Continue the log at a log start above its end, so that no offset is assigned twice.

        The checkpoint says that everything below the log start was deleted, but the log ends before it. The
        segments stay. If the log start is too far above the log end, the checkpoint is damaged, and ignored.
        """
        if self.log_start - log_end > MAX_RELATIVE_OFFSET:
            self.repairs.add(
                "checkpoint",
                names.LOG_STARTS,
                f"log start {self.log_start} is ignored, the log ends at {log_end}",
            )
            self.log_start = 0
            return segments, log_end
        self.repairs.add(
            "checkpoint",
            names.LOG_STARTS,
            f"the log ended at {log_end}, it goes on at its log start {self.log_start}",
        )
        self._create(self.log_start)
        closed = segments.active.ending_at(segments.active.size, log_end, active=False)
        new = Segment.load(SegmentFiles(self.files, self.directory, self.log_start), active=True)
        return segments.with_last(closed).with_added(new), self.log_start

    # ---------------------------------------------------------- damage, and the files beside the segments

    def _find(self, damage: DamageRepair, known: LogEnd, epochs: LeaderEpochs) -> dict[int, Inspection]:
        """Return the result of `DamageRepair.find`.

        If it refuses the log after a clean stop, the synced mark keeps the log end of that stop: the next
        opening does not find the clean-shutdown marker any more.
        """
        try:
            return damage.find()
        except CorruptBatchError:
            if self.clean and self.recovery_point > known.mark.offset:
                mark = SyncedMark(self.files, self.directory, epochs)
                with contextlib.suppress(LastwordError):
                    mark.write(self.recovery_point)
                mark.close()
            raise

    def _check_recovery_point(self, log_end: int) -> None:
        """Report a recovery point that the log disproves."""
        if self.recovery_point > log_end or (self.clean and 0 < self.recovery_point < log_end):
            self.repairs.add(
                "checkpoint",
                names.RECOVERY_POINTS,
                f"recovery point {self.recovery_point} is ignored, the log ends at {log_end}",
            )

    def _lower_mark(self, log_end: int, epochs: LeaderEpochs) -> None:
        """Lower the synced mark to the log end: offsets above a cut are assigned again."""
        mark = SyncedMark(self.files, self.directory, epochs)
        mark.lower(log_end)
        mark.close()

    @staticmethod
    def _mend_epochs(
        epochs: LeaderEpochs, inspections: dict[int, Inspection], log_start: int, log_end: int
    ) -> None:
        epochs.truncate_from_end(log_end + 1)
        epochs.truncate_from_start(log_start)
        for base in sorted(inspections):
            for epoch, start in inspections[base].epochs:
                if epochs.latest is None or epoch > epochs.latest:
                    epochs.assign(epoch, start)

    def _producers(
        self,
        store: Snapshots,
        inspections: dict[int, Inspection],
        segments: SegmentSet,
        log_end: int,
        listing: list[str] | None,
        age: tuple[int, int],
    ) -> Steps[ProducerState]:
        """Return the producer state at the log end; repair snapshots and transaction indexes.

        `listing` is that of the directory; None: the log was created.
        """
        if listing is None:
            store.write(log_end, ())
            return ProducerState(log_end)
        bases = [segment.base_offset for segment in segments]
        offsets = names.snapshot_offsets(listing)
        parsed = map(names.parse_segment_file, listing)
        indexed = {
            file.base_offset for file in parsed if file is not None and file.extension == names.TXN_INDEX
        }.intersection(bases)
        rebuild = set(inspections) | {base for base in indexed if not self._is_sane(base)}
        barren = {base for base in inspections if not inspections[base].producers}
        last = set() if self.files.replayed_bytes else set(bases[-2:]) - set(offsets) - {bases[0]}
        result = replay(
            store,
            segments,
            log_end,
            snapshot_offsets=offsets,
            limit=min(rebuild - barren, default=log_end),
            barren=barren,
            bases=last,
        )
        for base in sorted(rebuild & (indexed | set(result.aborted))) if rebuild else ():
            self._build_txn_index(base, indexes.encode_aborted(result.aborted.get(base, ())))
        for offset in result.damaged:
            self.files.unlink(store.path(offset), missing_ok=True)
            self.repairs.add(
                "snapshot", os.path.basename(store.path(offset)), "a damaged snapshot was removed"
            )
        for base, producers in result.at_bases.items():
            store.write(base, producers)
        left = offsets
        if result.damaged or result.at_bases:
            left = sorted(set(offsets).difference(result.damaged).union(result.at_bases))
        if not self.clean and any(bases[-1] < offset < log_end for offset in left):
            # A snapshot of an earlier clean stop: a snapshot at the log end replaces it.
            store.write(log_end, result.state.producers)
            left = sorted({*left, log_end})
        outside = store.remove_outside(left, bases[0] - 1, log_end)
        store.remove(store.stray([offset for offset in left if offset not in outside], bases))
        if outside or result.damaged:
            # A snapshot above a cut must not return when the log has grown there again. The removal of the
            # others is durable with the first sync of the log, or of a cut.
            yield (partial(self.files.fsync_dir, self.directory),)
        if result.exact:
            store.mark_current(log_end, is_durable=self.clean)
        result.state.expire(*age)
        return result.state

    def _is_sane(self, base: int) -> bool:
        """Return whether these can be the transaction index entries of this segment."""
        try:
            indexes.TransactionIndex(SegmentFiles(self.files, self.directory, base)).check()
        except DataError:
            return False
        return True

    def _build_txn_index(self, base: int, data: bytes) -> None:
        path = os.path.join(self.directory, names.segment_file(base, names.TXN_INDEX))
        if replace_index(self.files, path, data, may_be_absent=not data):
            self.repairs.add("index", os.path.basename(path), "built again")
