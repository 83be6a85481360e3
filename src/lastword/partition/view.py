"""A partition seen without a lock: in a running broker's directory, beside a writer, in the middle of a swap.

The view is the log as recovery would find it (`swap.decide`), listed until two listings agree. It changes
nothing. Its end is that of the last sound batch: what a writer is just appending, or what a kill left
half-written, is not there yet. But damage with sound batches behind it is no torn tail: it stays in the
range, and reading it is a CorruptBatchError.

A view is a snapshot. Segments that are rewritten later vanish from under it; `refresh` lists again, and reads
made with `chunks` do that by themselves. A view that is `held` has its files open and is never refreshed: it
shows one moment (`moment`).
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from lastword.errors import BusyError, CorruptFileError, DataError, FileVanishedError, NotAPartitionError
from lastword.files import FileFacts, Files
from lastword.partition import incomplete_commit, swap
from lastword.partition.checkpoint_file import number, read_lines
from lastword.partition.producer_state import PRODUCER_EXPIRATION_MS
from lastword.partition.reads import Reads
from lastword.partition.replay import Stability
from lastword.partition.segment_set import SegmentSet
from lastword.partition.synced import read_log_end, wrong_end
from lastword.records.batch import BatchHeader
from lastword.records.formats import crc_ok
from lastword.segment import names
from lastword.segment.scan import Damage, headers, sound_batch_after
from lastword.segment.segment import Segment

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lastword.records.record import RawRecord

_TRIES = 1000


class PartitionView(Reads):
    """Segments, log start and log end of one partition at one moment. Build it with `load`."""

    def __init__(
        self,
        files: Files,
        directory: str,
        segments: SegmentSet,
        log_start: int,
        log_end: int,
        *,
        stable_offset: int | None = None,
        incomplete_commit_offset: int | None = None,
        trusted: bool = False,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
        load_again: Callable[[], PartitionView] | None = None,
    ) -> None:
        self.files = files
        self.directory = directory
        parsed = names.parse_partition_dir(os.path.basename(os.path.normpath(directory)))
        self.topic = parsed.topic if parsed else ""
        self.partition = parsed.partition if parsed else 0
        self.segment_set = segments
        self.log_start = log_start
        self.log_end = log_end
        self._stable_offset = stable_offset
        self._incomplete_commit_offset = incomplete_commit_offset
        self._stability = Stability()
        self._listed_bytes = segments.active.size if len(segments) else 0
        self.producer_expiration_ms = producer_expiration_ms
        self._load_again = load_again
        """The view of now, from the open log; None: the directory is listed."""
        self.trusted = trusted
        """Did this process recover the log, and does it hold its lock?"""
        self.is_held = False
        """It shows one moment: see `held`."""
        self.grows = False
        """What was seen ends where it ended then."""

    @property
    def stable_offset(self) -> int:
        """Last stable offset: every transaction that begins below it is decided.

        Of a directory that somebody else may be writing it is found when first asked for: from the newest
        producer snapshot, which is not older than the active segment, and the batches behind it.
        """
        if self._stable_offset is None:
            self._stable_offset = self._stability.offset(self)
        return self._stable_offset

    @property
    def incomplete_commit_offset(self) -> int | None:
        """As in `PartitionLog`. Reads the directory each time if another process may be writing it."""
        if self.trusted:
            return self._incomplete_commit_offset
        return incomplete_commit.incomplete_commit_offset(self.files, self.directory)

    @property
    def cleanable_offset(self) -> int:
        """As in `PartitionLog`."""
        return incomplete_commit.below(self.stable_offset, self.incomplete_commit_offset)

    @property
    def removable_offset(self) -> int:
        """As in `PartitionLog`."""
        return incomplete_commit.below(self.log_end, self.incomplete_commit_offset)

    @classmethod
    def load(cls, files: Files, directory: str) -> PartitionView:
        """List the directory as it is now.

        Two listings, and the log start checkpoint before and after, must agree: then no segment was added or
        removed in between, nothing was trimmed, and the active segment, which bounds what a cleaner may use,
        is the listed one. A file that was replaced under its own name meanwhile is found when it is opened.

        FileVanishedError: no such directory.
        """
        check_directory(files, directory)
        for _ in range(_TRIES):
            checkpoint = _log_start_file(files, directory)
            log_start = read_log_start(files, directory)
            every_name = files.listdir(directory)
            listing = _log_files(every_name)
            try:
                decision = swap.decide(files, directory, listing)
                segments = [
                    Segment.load(files, directory, base, suffix=suffix) for base, suffix in decision.logs
                ]
                listed_bytes = segments[-1].size if segments else 0
                if segments:
                    segments[-1] = segments[-1].ending_at(*end_of_sound_part(segments[-1]), active=True)
            except FileVanishedError:
                continue
            if (
                _log_files(files.listdir(directory)) == listing
                and _log_start_file(files, directory) == checkpoint
            ):
                view = cls(files, directory, SegmentSet(segments), *_range(log_start, segments))
                view._listed_bytes = listed_bytes
                with suppress(FileVanishedError):
                    if view._check_end(every_name):
                        return view
        raise BusyError(f"{directory} kept changing while it was listed", remedy="try again", file=directory)

    def _check_end(self, listing: list[str]) -> bool:
        """Does the log end where it must (`synced.LogEnd`)? If not, the view ends there, and a read that
        reaches the end raises `damage`. False: somebody is writing it, so it must be listed again.
        """
        last = self.active
        known = read_log_end(self.files, self.directory, self.log_end, listing)
        if last is None or known is None:
            return True
        expected = known.contradicts(self.log_end)
        if expected is None:
            expected = _missed(last, known.contiguous_from)
        if expected is None:
            return True
        facts = self.files.stat(last.file)
        if facts is None or (facts.inode, facts.size) != (last.inode, self._listed_bytes):
            return False
        if _log_files(self.files.listdir(self.directory)) != _log_files(listing):
            return False
        position = last.size if self.log_end < expected else last.position_of(expected)
        self.damage = wrong_end(last.file, position, self.log_end, expected, clean=known.clean)
        self.log_end = expected
        return True

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self.segment_set.segments

    @property
    def active(self) -> Segment | None:
        """The last segment: the one that a writer appends to."""
        return self.segments[-1] if self.segments else None

    def refresh(self) -> None:
        """List again: segments, start and end become those of now. FileVanishedError for a view that is held:
        its files cannot be exchanged for newer ones.
        """
        if self.is_held:
            raise FileVanishedError(f"a file of {self.directory} was replaced", file=self.directory)
        load_again = self._load_again
        new = PartitionView.load(self.files, self.directory) if load_again is None else load_again()
        self.segment_set, self.log_start, self.log_end = new.segment_set, new.log_start, new.log_end
        self._stable_offset, self._listed_bytes = new._stable_offset, new._listed_bytes
        self.damage = new.damage
        self._incomplete_commit_offset, self.trusted = new._incomplete_commit_offset, new.trusted

    def held(self, start: int) -> PartitionView:
        """The same view for one read from `start` on, with its files open. They stay readable when a cleaning
        replaces them, unless there are more of them than descriptors: then reading raises FileVanishedError.

        FileVanishedError: one was replaced since the view was made.
        """
        for segment in self.segment_set.starting_at(start):
            segment.handle  # noqa: B018  opens it
        view = copy.copy(self)
        view.is_held = True
        return view

    open_again = refresh

    def is_current(self) -> bool:
        """Does the newest segment look as it did when it was listed, with none behind it? What lies before it
        may have been cleaned meanwhile, which changes no log end.
        """
        active = self.active
        facts = None if active is None else self.files.stat(active.file)
        if active is None or facts is None:
            return False
        if (facts.inode, facts.size) != (active.inode, self._listed_bytes):
            return False
        follows = os.path.join(self.directory, names.segment_file(self.log_end, names.LOG))
        return active.base_offset == self.log_end or not self.files.exists(follows)

    def go_on_from(self, older: PartitionView) -> None:
        """This view is of the same partition at a later time: what the older one knows of open transactions
        need not be found again."""
        self._stability = older._stability

    def positions_of(self, offsets: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of each offset the number of its segment and where reading for it begins; see `lookups`."""
        from lastword.partition.lookups import positions_of

        return positions_of(self, offsets)

    def records_at(self, offsets: Sequence[int]) -> list[RawRecord | None]:
        """The record at each offset, or None; each batch is read once. See `lookups`."""
        from lastword.partition.lookups import records_at

        return records_at(self, offsets)


class LatestView:
    """The newest view of one partition to which others append, and which they roll and clean.

    What an old view found out about open transactions is kept, so that only added batches are read for it.

    Args:
        view: The first view.
        load: Makes a view of now. Called only when the last view is not current any more.
        ends: Returns (log start, last stable offset, log end) of now, for a log that this process writes
            itself. None: two looks at file names decide whether a view is current.
    """

    def __init__(
        self,
        view: PartitionView,
        load: Callable[[], PartitionView],
        ends: Callable[[], tuple[int, int, int]] | None = None,
    ) -> None:
        self._view = view
        self._load = load
        self._ends = ends

    def get(self) -> PartitionView:
        """Return the view of now."""
        if not self._is_current():
            before, self._view = self._view, self._load()
            self._view.go_on_from(before)
        return self._view

    def _is_current(self) -> bool:
        view = self._view
        if self._ends is None:
            return view.is_current()
        return self._ends() == (view.log_start, view.stable_offset, view.log_end)


def check_directory(files: Files, directory: str) -> None:
    """Raise NotAPartitionError if something is there, and no directory: it may be a link, or a file."""
    path = os.path.normpath(directory)
    if files.is_link(path):
        raise NotAPartitionError.link(path)
    if not files.is_dir(path) and files.exists(path):
        raise NotAPartitionError.of(path, "directory")


def _log_files(listing: list[str]) -> list[str]:
    """The names that decide what the log is; indexes come and go beside a writer and do not matter."""
    return [n for n in listing if names.LOG in n or n.endswith(names.SUFFIXES)]


def _range(checkpointed: int, segments: list[Segment]) -> tuple[int, int]:
    """Log start and log end."""
    if not segments:
        return checkpointed, checkpointed
    log_end = segments[-1].next_offset
    first = segments[0].base_offset
    return (checkpointed if first < checkpointed <= log_end else first), log_end


def _log_start_file(files: Files, directory: str) -> FileFacts | None:
    """The identity of the root's log start checkpoint, which is replaced as a whole."""
    return files.stat(os.path.join(os.path.dirname(os.path.normpath(directory)), names.LOG_STARTS))


def read_log_start(files: Files, directory: str) -> int:
    """What the root's log-start checkpoint says of this partition; 0 if nothing that can be read."""
    directory = os.path.normpath(directory)
    path = os.path.join(os.path.dirname(directory), names.LOG_STARTS)
    name = os.path.basename(directory)
    found: dict[tuple[str, int], int] = {}
    try:
        lines = read_lines(files, path, 3)
        for topic, partition, offset in lines:
            found[topic, number(partition, path)] = number(offset, path)
    except CorruptFileError:
        return 0
    if len(found) < len(lines):
        return 0  # one partition twice: damaged, and not believed, as by the writer
    return next((offset for tp, offset in found.items() if f"{tp[0]}-{tp[1]}" == name), 0)


def _missed(segment: Segment, end: int | None) -> int | None:
    """`end` if the last segment holds offsets above it and no batch ends there: one of them has a wrong base
    offset, which no checksum covers."""
    if end is None or not segment.base_offset < end < segment.next_offset:
        return None
    try:
        return end if segment.end_before(end) != end else None
    except DataError:
        return None  # a read names it


def end_of_sound_part(segment: Segment) -> tuple[int, int]:
    """Position and next offset behind the last sound batch of a file; looks from where the index ends."""
    file_size = segment.size
    start, next_offset = segment.trusted_end(), segment.base_offset
    while True:
        end, next_offset = _sound_end(segment, start, next_offset, file_size)
        if end == file_size:
            return end, next_offset
        damage = Damage(end, next_offset, "tail", "")
        following = sound_batch_after(segment.handle, segment.file, damage, file_size, segment.base_offset)
        if following is None:
            return end, next_offset
        start = following


def _sound_end(segment: Segment, start: int, next_offset: int, file_size: int) -> tuple[int, int]:
    """Walk from `start`; position and next offset behind the last batch whose checksum is right."""
    walked: list[BatchHeader] = []
    try:
        for header in headers(segment.handle, segment.file, start, file_size, stop_at_partial_tail=True):
            walked.append(header)
    except DataError:
        pass
    while walked:
        last = walked.pop()
        data = segment.read_batch(last)
        if len(data) == last.size and crc_ok(data, last, 0):
            return last.end, last.next_offset
    return start, next_offset
