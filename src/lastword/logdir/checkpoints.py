"""Kafka's checkpoints of a whole log directory: one offset for each partition, in text files in the root.

recovery-point    everything below is on the drive with its indexes; recovery begins there
log-start         only for logs that begin above their first segment's base
cleaner           first dirty offset: everything below was cleaned
replication       high watermark: written by brokers, and for copied logs; only its existence is used here

Each file is replaced atomically and durable when `update` returns. Losing them costs a longer recovery or
another cleaning, never a record, so a damaged file counts as empty. Lines of unknown partitions are kept.

`PartitionCheckpoints` changes log start, log end and first dirty offset, in the log and in these files. No
checkpoint may exceed its log, whatever a crash leaves. So an offset that falls is lowered in the checkpoint
before the log. A log start is raised in the checkpoint first, because the records below it must not return.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from lastword.clock import Clock
from lastword.errors import BusyError, CorruptFileError, LastwordError, OffsetOutOfRangeError
from lastword.files import FileFacts, Files
from lastword.partition import cut, removal_log
from lastword.partition.checkpoint_file import format_lines, number, read_lines
from lastword.partition.log import PartitionLog
from lastword.segment import names


class TopicPartition(NamedTuple):
    """A topic and a partition number."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class LogStart(NamedTuple):
    """A new log start of a partition.

    Attributes:
        offset: The first offset that may be read.
        reason: Shown in the error of a read below.
    """

    offset: int
    reason: str


class OffsetCheckpoint:
    """One checkpoint file. Reading needs no lock; `update` is for the holder of the directory's lock."""

    def __init__(self, files: Files, root: str, name: str) -> None:
        self._files = files
        self.path = os.path.join(root, name)
        self._known: tuple[FileFacts, dict[TopicPartition, int]] | None = None

    def read(self) -> dict[TopicPartition, int]:
        """Return all lines. CorruptFileError if the file is damaged."""
        return read_offsets(self._files, self.path)

    def read_valid(self) -> dict[TopicPartition, int]:
        """Return all lines, or nothing if the file is damaged."""
        try:
            return self.read()
        except CorruptFileError:
            return {}

    def get(self, tp: TopicPartition) -> int | None:
        """Return one offset, as `read_valid` does. The file is read again only if it was replaced."""
        facts = self._files.stat(self.path)
        if facts is None:
            return None
        known = self._known
        if known is None or known[0] != facts:
            known = self._known = (facts, self.read_valid())
        return known[1].get(tp)

    def update(self, offsets: Mapping[TopicPartition, int], *, drop: Iterable[TopicPartition] = ()) -> None:
        """Set some lines and drop others; the rest stays. An unchanged, undamaged file is not written."""
        self._known = None
        before: dict[TopicPartition, int] | None
        try:
            before = self.read()
        except CorruptFileError:
            before = None
        gone = set(drop)
        after = {tp: offset for tp, offset in {**(before or {}), **offsets}.items() if tp not in gone}
        if after != before or not self._files.exists(self.path):
            self._files.write_atomic(self.path, format_offsets(after))


def format_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Return the bytes of an offset checkpoint with these lines."""
    return format_lines([f"{tp.topic} {tp.partition} {offset}" for tp, offset in sorted(offsets.items())])


def read_offsets(files: Files, path: str) -> dict[TopicPartition, int]:
    """Return the lines of an offset checkpoint (`topic partition offset`).

    CorruptFileError says what is wrong.
    """
    offsets: dict[TopicPartition, int] = {}
    for topic, partition, offset in read_lines(files, path, 3):
        tp = TopicPartition(topic, number(partition, path))
        if tp in offsets:
            raise CorruptFileError(f"{tp} is there twice", file=path)
        offsets[tp] = number(offset, path)
    return offsets


class Checkpoints:
    """The checkpoint files of one root."""

    def __init__(self, files: Files, root: str) -> None:
        self.recovery_points = OffsetCheckpoint(files, root, names.RECOVERY_POINTS)
        self.log_starts = OffsetCheckpoint(files, root, names.LOG_STARTS)
        self.first_dirty = OffsetCheckpoint(files, root, names.FIRST_DIRTY)
        self.high_watermarks = OffsetCheckpoint(files, root, names.HIGH_WATERMARKS)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove deleted partitions from all files."""
        gone = list(partitions)
        for checkpoint in (self.recovery_points, self.log_starts, self.first_dirty, self.high_watermarks):
            if any(checkpoint.get(tp) is not None for tp in gone):
                checkpoint.update({}, drop=gone)


# ---------------------------------------------------------------- checkpoints and logs


CHECKPOINT_INTERVAL_SECONDS = 60.0  # as Kafka's log.flush.offset.checkpoint.interval.ms
CLEANED_INTERVAL_SECONDS = 1.0
"""How often the cleaner's checkpoint is written while many partitions are cleaned."""


class PartitionCheckpoints:
    """Update logs and checkpoints of one root together. Its lock is the last that is taken."""

    def __init__(self, files: Files, clock: Clock, checkpoints: Checkpoints) -> None:
        self._files = files
        self._clock = clock
        self._checkpoints = checkpoints
        self._lock = threading.RLock()
        self._written_at = clock.monotonic()
        self._first_dirty: dict[TopicPartition, int] = {}  # not written yet
        self._first_dirty_at = clock.monotonic()
        self._together = 0
        self._raised: dict[TopicPartition, int] = {}  # log starts in the checkpoint, not yet in their logs

    # -------------------------------------------------------------- all of them

    @property
    def due(self) -> bool:
        """Whether recovery after a kill would take long, because the checkpoints are old."""
        return self._clock.monotonic() - self._written_at >= CHECKPOINT_INTERVAL_SECONDS

    def write(self, logs: Mapping[TopicPartition, PartitionLog]) -> None:
        """Write recovery points and log starts of the open logs."""
        with self._lock:
            self._write_first_dirty()
            now = list(logs.items())
            self._checkpoints.recovery_points.update({tp: log.recovery_point for tp, log in now})
            starts = {tp: max(log.log_start, self._raised.get(tp, 0)) for tp, log in now}
            bases = {tp: log.segments[0].base_offset for tp, log in now}
            raised = {tp: start for tp, start in starts.items() if start > bases[tp]}
            # Below the first segment: of a broker's log whose older segments are in remote storage.
            known = self._checkpoints.log_starts.read_valid()
            below = {tp for tp, base in bases.items() if known.get(tp, base) < base}
            self._checkpoints.log_starts.update(raised, drop=bases.keys() - raised.keys() - below)
            self._written_at = self._clock.monotonic()

    def came(self, tp: TopicPartition, recovery_point: int, log_start: int, first_dirty: int | None) -> None:
        """Write the checkpoints of a partition that is moved here."""
        with self._lock:
            self._write_first_dirty()
            self._checkpoints.recovery_points.update({tp: recovery_point})
            self._checkpoints.log_starts.update({tp: log_start}, drop=() if log_start else (tp,))
            self._checkpoints.first_dirty.update({} if first_dirty is None else {tp: first_dirty})

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove partitions that are deleted or moved away."""
        with self._lock:
            self._write_first_dirty()
            self._checkpoints.forget(partitions)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Write the cleaner's checkpoint for all partitions that are cleaned in the block together.

        It has a line for each partition, so writing it after each cleaning would be quadratic. It is written
        every CLEANED_INTERVAL_SECONDS, and at the end of the block. A crash before costs another cleaning.
        """
        with self._lock:
            self._together += 1
        try:
            yield
        finally:
            with self._lock:
                self._together -= 1
                self._write_first_dirty()

    def _write_first_dirty(self) -> None:
        cleaned, self._first_dirty = self._first_dirty, {}
        self._first_dirty_at = self._clock.monotonic()
        if cleaned:
            self._checkpoints.first_dirty.update(cleaned)

    # -------------------------------------------------------------- one of them

    def first_dirty(self, tp: TopicPartition) -> int | None:
        """Return the cleaner's checkpoint of a partition; None if there is none."""
        with self._lock:
            offset = self._first_dirty.get(tp)
            return self._checkpoints.first_dirty.get(tp) if offset is None else offset

    def set_first_dirty(self, log: PartitionLog, offset: int) -> None:
        """Move the cleaner's checkpoint. It stays between log start and log end."""
        tp, bounded = _name(log), min(max(offset, log.log_start), log.log_end)
        with self._lock:
            if tp in self._first_dirty:  # the notes of two cleanings are kept
                self._write_first_dirty()
        self._note_cleaned(log, bounded)  # without the lock: notes of many partitions are synced together
        with self._lock:
            self._first_dirty[tp] = bounded
            waited = self._clock.monotonic() - self._first_dirty_at
            if not self._together or waited >= CLEANED_INTERVAL_SECONDS:
                self._write_first_dirty()

    def _note_cleaned(self, log: PartitionLog, offset: int) -> None:
        """Note how far this cleaner has cleaned.

        The note lets readers detect that another cleaner has moved the checkpoint (`removal_log`).
        """
        before = self._checkpoints.first_dirty.get(_name(log)) or 0
        removal_log.note_cleaned(self._files, log.directory, before, offset)

    def raise_log_starts(
        self, starts: Sequence[tuple[PartitionLog, LogStart]]
    ) -> dict[TopicPartition, LastwordError]:
        """Raise log starts durably; see `LogDirectory.raise_log_starts`.

        No log is locked while the checkpoint is written, so appends go on. The checks before still hold then:
        a log end falls only under the partition's claim, and a commit begins at the log end.
        """
        errors: dict[TopicPartition, LastwordError] = {}
        raised: dict[TopicPartition, int] = {}
        for log, start in starts:
            try:
                if _rises(log, start.offset):
                    raised[_name(log)] = start.offset
            except LastwordError as error:
                errors[_name(log)] = error
        if not raised:
            return errors
        try:
            with self._lock:
                self._raised |= raised
                self._checkpoints.log_starts.update(raised)
            for log, start in starts:
                if _name(log) in raised:
                    try:
                        self._raise_log_start(log, start)
                    except LastwordError as error:
                        errors[_name(log)] = error
        except LastwordError as error:  # of the checkpoint: no log has changed
            errors |= dict.fromkeys(raised, error)
        finally:
            with self._lock:
                for tp in raised:
                    self._raised.pop(tp, None)
        return errors

    def _raise_log_start(self, log: PartitionLog, start: LogStart) -> None:
        with log.lock:
            cut.write_note(self._files, log.directory, start.offset, start.reason, self._clock.now_ms())
            log.raise_log_start(start.offset)

    def note_copies(self, log: PartitionLog) -> None:
        """Note durably that the log takes batches of another replica, with the gaps of a cleaned log.

        The note is the partition's line of the replication checkpoint, as a broker that follows a leader
        writes it. Its high watermark is the log end at the first note: true, and raised by a broker.
        """
        with log.lock, self._lock:
            if _name(log) not in self._checkpoints.high_watermarks.read_valid():
                self._checkpoints.high_watermarks.update({_name(log): log.log_end})

    def truncate(self, log: PartitionLog, offset: int, *, fully: bool) -> None:
        """Remove the records from `offset` on, or all of them (`fully`), and continue at `offset`.

        Checkpoints are lowered before the log is cut, and a start above the log is written before the log is
        emptied. So a crash leaves either log, with valid checkpoints.
        """
        tp = _name(log)
        with log.lock, self._lock:
            self._write_first_dirty()
            segments = log.segment_set
            base = segments[max(0, segments.floor(offset))].base_offset
            lowered = {
                self._checkpoints.recovery_points: offset,
                self._checkpoints.high_watermarks: offset,
                self._checkpoints.first_dirty: min(offset, base),
                self._checkpoints.log_starts: offset,
            }
            for checkpoint, most in lowered.items():
                if checkpoint.read_valid().get(tp, -1) > most:
                    if checkpoint is self._checkpoints.first_dirty:
                        self._note_cleaned(log, most)
                    checkpoint.update({tp: most})
            if fully or log.log_start > offset:
                self._checkpoints.log_starts.update({tp: offset})
            if fully:
                log.truncate_fully_and_start_at(offset)
            else:
                log.truncate_to(offset)


def _rises(log: PartitionLog, offset: int) -> bool:
    """Return whether `offset` is above the log start. Raises if the log cannot begin there."""
    with log.lock:
        if offset > log.log_end:
            raise OffsetOutOfRangeError.above(log.name, offset, log.log_end)
        if offset <= log.log_start:
            return False
        if offset > log.removable_offset:
            raise part_of_a_commit(log, f"cannot begin at {offset}")
        return True


def part_of_a_commit(log: PartitionLog, refusal: str) -> BusyError:
    """Return the error of a change that must wait until the log's incomplete commit is complete."""
    return BusyError(
        f"{log.name} {refusal}: the commit that begins at {log.incomplete_commit_offset} is incomplete",
        remedy="make room on its drive: it is taken in as soon as that is possible",
        file=log.directory,
    )


def _name(log: PartitionLog) -> TopicPartition:
    return TopicPartition(log.topic, log.partition)
