"""Opening a partition to write: what a crash left is put right first, in Kafka's order, with the damage told.

1. An interrupted swap is finished or undone (`swap.recover`); unpublished rewrites are removed. A segment
   that is too wide for its indexes is split (`split`).
2. Index files without a log go. A log without an index gets one, also after a clean stop.
3. After a stop that was not clean, every segment from the recovery point on is walked with its checksums and
   its indexes are built again. After a clean one only the end of the active segment is looked at.
4. Damage. A tail that makes no sense is cut, if nothing sound follows it, or if it lies above everything that
   was ever synced: then a power cut explains it, and nothing that was acknowledged at `disk` is behind it.
   Otherwise it is the drive's or somebody's damage: CorruptBatchError, nothing is changed, this partition
   stays closed. A segment is never emptied as a whole, and messages of magic 0 or 1 are never cut.
5. The log end and the leader epochs are made to agree with what is left.
6. The producer state is that of the newest sound snapshot, and of the batches behind it. After a stop that
   was not clean, replay begins below the first segment that was walked, and the transaction indexes of these
   are built again. Snapshots that tell of more than the log has go, durably, before the log may grow there.
   No missing snapshot is taken for an empty one.

Opening again after a crash in here finds the same and does the same: what is cut was not sound before, and
nothing later is removed before the cut is made.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from itertools import pairwise

from lastword.clock import Clock
from lastword.config import TopicConfig
from lastword.errors import CorruptBatchError, DataError
from lastword.files import Files
from lastword.partition import leases, swap
from lastword.partition.epochs import LeaderEpochs
from lastword.partition.log import OpenState, PartitionLog
from lastword.partition.producer_state import PRODUCER_EXPIRATION_MS, ProducerState
from lastword.partition.replay import replay
from lastword.partition.segment_set import SegmentSet
from lastword.partition.snapshots import Snapshots
from lastword.partition.split import overflows, split
from lastword.partition.staged import begun_at
from lastword.partition.synced import SyncedMark, read_synced
from lastword.partition.truncate import forget_accounts
from lastword.segment import names, txn_index
from lastword.segment.append import SegmentAppender
from lastword.segment.names import MAX_RELATIVE_OFFSET
from lastword.segment.recover import Inspection, inspect, is_bulk, repair, replace_index
from lastword.segment.segment import Segment

BUILD_PREFIX = "rewrite-"
"""Private directories of a rewrite under `<partition>/lastword/`; nobody else's are touched."""
SIDE_BY_SIDE_BYTES = 16 << 20
"""Segments that are as large as this on average are walked by several threads."""


@dataclass(frozen=True, slots=True)
class Repaired:
    """One thing that opening put right. `code`: torn-tail, lost-segment, swap-finished, swap-undone, split,
    index, snapshot, leftover, checkpoint. `offset`: where a cut log ends now.
    """

    topic: str
    partition: int
    code: str
    file: str
    text: str
    cut_bytes: int = 0
    offset: int | None = None

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}: {self.text} ({self.file})"


@dataclass(frozen=True, slots=True)
class Recovery:
    """What opening one partition found and did. `walked`: segments whose every checksum was verified."""

    topic: str
    partition: int
    clean: bool
    log_start: int
    log_end: int
    walked: int
    repaired: tuple[Repaired, ...]

    @property
    def cut_bytes(self) -> int:
        return sum(r.cut_bytes for r in self.repaired)


def open_log(
    files: Files,
    directory: str,
    topic: str,
    partition: int,
    config: TopicConfig,
    clock: Clock,
    *,
    recovery_point: int = 0,
    log_start: int = 0,
    first_dirty: int = 0,
    clean: bool = False,
    rng: random.Random | None = None,
    producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
) -> tuple[PartitionLog, Recovery]:
    """Recover a partition directory and open it to write; an empty one becomes a log at `log_start`.

    `clean`: the directory's clean-shutdown marker was there. `recovery_point`, `log_start`, `first_dirty`: as
    the checkpoints say; a log start that the log cannot have is ignored. CorruptBatchError or
    UnknownMagicError leave everything as it was, but for an interrupted swap. `producer_expiration_ms`:
    producers without an open transaction that were silent for so long are forgotten.
    """
    checkpointed = recovery_point, log_start, first_dirty
    opening = _Opening(files, directory, topic, partition, config, checkpointed, clean)
    return opening.run(clock, rng, producer_expiration_ms)


class _Opening:
    def __init__(
        self,
        files: Files,
        directory: str,
        topic: str,
        partition: int,
        config: TopicConfig,
        checkpointed: tuple[int, int, int],
        clean: bool,
    ) -> None:
        self.files = files
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.config = config
        self.recovery_point, self.log_start, self.first_dirty = checkpointed
        self.clean = clean
        self.repaired: list[Repaired] = []
        self.walked = 0
        self._parts: set[int] = set()

    def run(
        self, clock: Clock, rng: random.Random | None, producer_expiration_ms: int
    ) -> tuple[PartitionLog, Recovery]:
        self._finish_swaps()
        self._remove_leftovers()
        self._split_overflowed()
        found = self._inspect()
        created = not self._bases()
        self._cut_and_rebuild(found)
        segments = self._segments(found)
        log_end = segments.active.next_offset
        if self.log_start > log_end:
            segments, log_end = self._beyond_log_end(segments, log_end)
        log_start = max(self.log_start, segments[0].base_offset)
        leases.log_found(self.files, self.directory, log_end, self.first_dirty)
        self._mend_synced(log_end)
        epochs = self._epochs(found, log_start, log_end)
        snapshots = Snapshots(self.files, self.directory)
        producers = self._producers(
            snapshots, found, segments, log_end, created, (clock.now_ms(), producer_expiration_ms)
        )
        appender = SegmentAppender.resume(
            segments.active, index_interval_bytes=self.config.index_interval_bytes
        )
        recovery_point = log_end if self.clean else min(self.recovery_point, log_end)
        state = OpenState(
            segments=segments,
            appender=appender,
            log_start=log_start,
            recovery_point=recovery_point,
            synced_to=recovery_point,
            epochs=epochs,
            producers=producers,
            snapshots=snapshots,
            producer_expiration_ms=producer_expiration_ms,
            taking_in_from=begun_at(self.files, self.directory),
        )
        log = PartitionLog(
            self.files, self.directory, self.topic, self.partition, self.config, clock, state, rng
        )
        report = Recovery(
            self.topic, self.partition, self.clean, log_start, log_end, self.walked, tuple(self.repaired)
        )
        return log, report

    # ---------------------------------------------------------- leftovers

    def _finish_swaps(self) -> None:
        done = swap.recover(self.files, self.directory)
        for base in done.finished:
            self._tell(
                "swap-finished", names.segment_file(base, names.LOG), "an interrupted swap was finished"
            )
        for base in done.undone:
            self._tell("swap-undone", names.segment_file(base, names.LOG), "an interrupted swap was undone")
        if done.removed:
            self._tell(
                "leftover", self.directory, f"{len(done.removed)} leftover files of rewrites were removed"
            )

    def _remove_leftovers(self) -> None:
        private = os.path.join(self.directory, names.PRIVATE)
        if self.files.exists(private):
            for name in self.files.listdir(private):
                if name.startswith(BUILD_PREFIX):
                    self.files.remove_tree(os.path.join(private, name))
                    self._tell("leftover", os.path.join(private, name), "an unpublished rewrite was removed")
                elif name.endswith(".tmp"):  # replaced as a whole, or not at all
                    self.files.unlink(os.path.join(private, name), missing_ok=True)
        for name in (names.LEADER_EPOCHS, names.PARTITION_METADATA):  # replaced as a whole, or not at all
            self.files.unlink(os.path.join(self.directory, name + ".tmp"), missing_ok=True)
        for name in self.files.listdir(self.directory):
            if name.endswith(names.SNAPSHOT + ".tmp"):
                self.files.unlink(os.path.join(self.directory, name), missing_ok=True)
        parsed = [names.parse_segment_file(name) for name in self.files.listdir(self.directory)]
        logs = {p.base_offset for p in parsed if p is not None and p.extension == names.LOG}
        for p in parsed:
            if p is None or p.base_offset in logs or p.extension not in names.SEGMENT_EXTENSIONS:
                continue
            self.files.unlink(os.path.join(self.directory, p.name), missing_ok=True)
            self._tell("leftover", p.name, "an index without its log was removed")

    # ---------------------------------------------------------- segments

    def _split_overflowed(self) -> None:
        """Segments that a cleaner of old made too wide for their indexes (`partition.split`)."""
        for base, following in pairwise(self._bases()):
            if following - base <= MAX_RELATIVE_OFFSET + 1:
                continue
            segment = Segment.load(self.files, self.directory, base)
            if not overflows(segment, following):
                continue
            private = os.path.join(self.directory, names.PRIVATE, f"{BUILD_PREFIX}split-{base}")
            interval = self.config.index_interval_bytes
            parts = split(self.files, segment, private, index_interval_bytes=interval)
            self._parts.update(parts)
            self._tell(
                "split", os.path.basename(segment.file), f"was split at {', '.join(map(str, parts[1:]))}"
            )

    def _bases(self) -> list[int]:
        parsed = (names.parse_segment_file(name) for name in self.files.listdir(self.directory))
        return sorted(
            p.base_offset for p in parsed if p is not None and p.extension == names.LOG and not p.suffix
        )

    def _inspect(self) -> dict[int, Inspection]:
        """Walk what must be walked, by base offset. Raises if there is damage that must not be cut."""
        bases = self._bases()
        listing = set(self.files.listdir(self.directory))
        due: list[tuple[int, bool]] = []
        for at, base in enumerate(bases):
            last = at == len(bases) - 1
            above = last or bases[at + 1] > self.recovery_point
            no_index = any(
                names.segment_file(base, extension) not in listing
                for extension in (names.INDEX, names.TIME_INDEX)
            )
            if (
                no_index
                or base in self._parts
                or (above and not self.clean)
                or (last and not self._ends_soundly(base))
            ):
                due.append((base, last))
        self.walked += len(due)
        size = sum(self._log_bytes(base) for base, _ in due) if len(due) > 1 else 0
        found = self._walk_all(due, size)
        self._judge(found, bases)
        return found

    def _walk_all(self, due: list[tuple[int, bool]], size: int) -> dict[int, Inspection]:
        """Large files side by side: the kernels and the reads hold no lock of the interpreter. With small
        ones threads would only wait for each other.
        """
        threads = min(len(due), os.cpu_count() or 1)
        if threads < 2 or size < len(due) * SIDE_BY_SIDE_BYTES or not is_bulk(size):
            return {base: self._walk(base, last, size) for base, last in due}
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(threads) as pool:
            each = list(pool.map(lambda one: self._walk(one[0], one[1], size), due))
        return {base: found for (base, _), found in zip(due, each, strict=True)}

    def _walk(self, base: int, active: bool, of_bytes: int = 0) -> Inspection:
        interval = self.config.index_interval_bytes
        return inspect(
            self.files,
            self.directory,
            base,
            index_interval_bytes=interval,
            active=active,
            of_bytes=of_bytes,
        )

    def _ends_soundly(self, base: int) -> bool:
        """After a clean stop: does the active segment end with a whole sound batch that its indexes agree
        with?
        """
        from lastword.partition.view import end_of_sound_part

        segment = Segment.load(self.files, self.directory, base)
        indexes = segment.offset_index, segment.time_index
        if any(index.damaged or index.zero_tail_bytes for index in indexes):  # zeros: a stop cuts them
            return False
        last = segment.offset_index.last
        if last.position and segment.trusted_end() != last.position:
            return False
        return end_of_sound_part(segment)[0] == segment.size

    def _judge(self, found: dict[int, Inspection], bases: list[int]) -> None:
        """The first damage ends the log, or the opening. It must not end the log below what was synced while
        sound batches follow.
        """
        synced = max(self.recovery_point, read_synced(self.files, self.directory))
        for base in bases:
            one = found.get(base)
            if one is None or one.damage is None:
                continue
            later = [b for b in bases if b > base and self._has_batches(b)]
            followed = one.followed is not None or bool(later)
            if followed and (self.clean or one.damage.offset < synced):
                where = one.followed if one.followed is not None else f"segment {later[0]}"
                raise CorruptBatchError(
                    f"{one.damage.text}; offset {one.damage.offset} is missing, "
                    f"and sound batches follow at {where}",
                    code=one.damage.code,
                    remedy="restore the file from a copy; `lastword verify` lists all damage",
                    file=one.file,
                    position=one.damage.position,
                    offset=one.damage.offset,
                )
            return

    def _has_batches(self, base: int) -> bool:
        return self._log_bytes(base) > 0

    def _log_bytes(self, base: int) -> int:
        facts = self.files.stat(os.path.join(self.directory, names.segment_file(base, names.LOG)))
        return 0 if facts is None else facts.size

    def _cut_and_rebuild(self, found: dict[int, Inspection]) -> None:
        """Make the files what the walk found. Segments behind a cut go first, from the end: the log stays
        whole.
        """
        damaged = min((base for base, one in found.items() if one.damage is not None), default=None)
        if damaged is not None:
            behind = [b for b in self._bases() if b > damaged]
            if behind:  # closed segments are cut: what grows there may look like them
                forget_accounts(self.files, self.directory)
            for base in reversed(behind):
                self._remove_segment(base)
                self.files.fsync_dir(self.directory)  # or a power cut could keep a segment behind a hole
                found.pop(base, None)
            if behind:  # it is the active one now, whose time index goes on
                found[damaged] = self._walk(damaged, active=True)
        for base, one in found.items():
            done = repair(self.files, one)
            if done.cut_bytes:
                assert one.damage is not None
                self._tell(
                    "torn-tail",
                    names.segment_file(base, names.LOG),
                    f"{done.cut_bytes} bytes cut: {one.damage.text}",
                    cut_bytes=done.cut_bytes,
                    offset=one.next_offset,
                )
            for path in done.rebuilt:
                self._tell("index", os.path.basename(path), "built again")

    def _remove_segment(self, base: int) -> None:
        path = os.path.join(self.directory, names.segment_file(base, names.LOG))
        facts = self.files.stat(path)
        for extension in names.SEGMENT_EXTENSIONS:
            self.files.unlink(
                os.path.join(self.directory, names.segment_file(base, extension)), missing_ok=True
            )
        size = facts.size if facts is not None else 0
        self._tell(
            "lost-segment", os.path.basename(path), "lay behind a torn tail", cut_bytes=size, offset=base
        )

    def _segments(self, found: dict[int, Inspection]) -> SegmentSet:
        bases = self._bases()
        if not bases:
            base = self.log_start
            self._create(base)
            bases = [base]
        segments = []
        for base in bases:
            segment = Segment.load(self.files, self.directory, base)
            one = found.get(base)
            if one is not None:
                segment.next_offset, segment.largest_timestamp = one.next_offset, one.largest_timestamp
            segments.append(segment)
        segments[-1].active = True
        return SegmentSet(segments)

    def _create(self, base: int) -> None:
        interval = self.config.index_interval_bytes
        SegmentAppender.create(self.files, self.directory, base, index_interval_bytes=interval).close()

    def _beyond_log_end(self, segments: SegmentSet, log_end: int) -> tuple[SegmentSet, int]:
        """The checkpoint says that everything below an offset was deleted which the log does not reach. If
        that can be, the log goes on there, so that no offset is given twice; the segments stay. If not, the
        checkpoint is damaged.
        """
        if self.log_start - log_end > MAX_RELATIVE_OFFSET:
            self._tell(
                "checkpoint",
                names.LOG_STARTS,
                f"log start {self.log_start} is ignored, the log ends at {log_end}",
            )
            self.log_start = 0
            return segments, log_end
        self._tell(
            "checkpoint",
            names.LOG_STARTS,
            f"the log ended at {log_end}, it goes on at its log start {self.log_start}",
        )
        segments.active.active = False
        self._create(self.log_start)
        new = Segment.load(self.files, self.directory, self.log_start, active=True)
        return segments.with_added(new), self.log_start

    # ---------------------------------------------------------- what goes with it

    def _mend_synced(self, log_end: int) -> None:
        """Offsets above a cut are given again: they are not synced yet."""
        mark = SyncedMark(self.files, self.directory)
        mark.lower(log_end)
        mark.close()

    def _epochs(self, found: dict[int, Inspection], log_start: int, log_end: int) -> LeaderEpochs:
        epochs = LeaderEpochs.load(self.files, self.directory)
        epochs.truncate_from_end(log_end + 1)
        epochs.truncate_from_start(log_start)
        for base in sorted(found):
            for epoch, start in found[base].epochs:
                if epochs.latest is None or epoch > epochs.latest:
                    epochs.assign(epoch, start)
        return epochs

    def _producers(
        self,
        store: Snapshots,
        found: dict[int, Inspection],
        segments: SegmentSet,
        log_end: int,
        created: bool,
        age: tuple[int, int],
    ) -> ProducerState:
        """The producer state at the log end; puts snapshots and transaction indexes right."""
        if created:
            store.write(log_end, ())
            return ProducerState(log_end)
        bases = [segment.base_offset for segment in segments]
        listing = set(self.files.listdir(self.directory))
        indexed = {base for base in bases if names.segment_file(base, names.TXN_INDEX) in listing}
        rebuild = set(found) | {base for base in indexed if not self._is_sane(base)}
        barren = {base for base in found if not found[base].producers}
        last = set(bases[-2:]) - set(store.offsets()) - {bases[0]}
        result = replay(
            store,
            segments,
            log_end,
            limit=min(rebuild - barren, default=log_end),
            barren=barren,
            bases=last,
            is_expired=lambda producer: producer.is_expired(*age),
        )
        for base in sorted(rebuild & (indexed | set(result.aborted))):
            self._build_txn_index(base, txn_index.encode_entries(result.aborted.get(base, ())))
        for offset in result.damaged:
            self.files.unlink(store.path(offset), missing_ok=True)
            self._tell("snapshot", os.path.basename(store.path(offset)), "a damaged snapshot was removed")
        for base, producers in result.at_bases.items():
            store.write(base, producers)
        if not self.clean and any(bases[-1] < offset < log_end for offset in store.offsets()):
            # A clean stop's before the one that was not clean: one at the log end takes its place.
            store.write(log_end, result.state.producers)
        gone = [*store.remove_outside(bases[0] - 1, log_end), *store.remove_stray(bases), *result.damaged]
        if gone:  # one from above a cut must not come back when the log has grown there again
            self.files.fsync_dir(self.directory)
        if result.exact:
            store.is_current(log_end)
        return result.state

    def _is_sane(self, base: int) -> bool:
        """Can these be the transaction index entries of this segment?"""
        path = os.path.join(self.directory, names.segment_file(base, names.TXN_INDEX))
        try:
            txn_index.TransactionIndex(self.files, path, base).check()
        except DataError:
            return False
        return True

    def _build_txn_index(self, base: int, data: bytes) -> None:
        path = os.path.join(self.directory, names.segment_file(base, names.TXN_INDEX))
        if replace_index(self.files, path, data, may_be_absent=not data):
            self._tell("index", os.path.basename(path), "built again")

    def _tell(
        self, code: str, file: str, text: str, *, cut_bytes: int = 0, offset: int | None = None
    ) -> None:
        self.repaired.append(Repaired(self.topic, self.partition, code, file, text, cut_bytes, offset))
