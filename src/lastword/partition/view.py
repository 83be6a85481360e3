"""`PartitionView`: the log of a partition at one moment, read without a lock, beside a writer and a cleaner.

The segments come from `DirectorySegments`, which returns one version of them. Segments that are rewritten
later vanish from the view; `refresh` takes the version of now, and reads made with `chunks` do that by
themselves. A view that is `held` has its segments pinned and is never refreshed: it shows one moment
(`moment`).
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from lastword.errors import BusyError, FileVanishedError, OffsetOutOfRangeError
from lastword.files import FileFacts
from lastword.partition import staged_batches
from lastword.partition.directory_segments import DirectorySegments, PortableVersion
from lastword.partition.producer_state import PRODUCER_EXPIRATION_MS, Producer, ProducerState
from lastword.partition.reads import ATTEMPTS, Reads
from lastword.partition.segment_store import LogVersion, SegmentSet
from lastword.partition.snapshots import Snapshots, producer_batches_between, replay
from lastword.segment import names
from lastword.segment.segment import Segment

T = TypeVar("T")


class Stability:
    """The last stable offset of a log that others may be changing.

    When the log has grown, only the added part is read: from the newest snapshot on, if there is one in it.
    Only what is below that may have been rewritten, and lack markers. After a cut the state may be that of
    batches which are gone, and is computed again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # views of one log, each in a thread of its own, share the state
        self._known: tuple[ProducerState, int | None] | None = None  # and the log's cuts when it was computed

    def offset(self, log: PartitionView) -> int:
        """Return the last stable offset of the log as listed. Refreshes the log if its files vanish."""
        first = self._read(log, ProducerState.open_since)
        return log.log_end if first is None else max(first, log.log_start)

    def open(self, log: PartitionView) -> list[Producer]:
        """Return the producers with an open transaction, the oldest transaction first."""

        def producers(state: ProducerState) -> list[Producer]:
            found = (state.get(producer_id) for producer_id in state.open_transactions())
            return [producer for producer in found if producer is not None]

        found = self._read(log, producers)
        return [] if found is None or log.log_start >= log.log_end else found

    def undecided(self, log: PartitionView) -> dict[int, int]:
        """Return producer id -> first offset of its undecided transaction; refreshes as `offset`."""
        return self._read(log, ProducerState.open_transactions) or {}

    def _read(self, log: PartitionView, read: Callable[[ProducerState], T]) -> T | None:
        """Return what `read` returns of the state at the end of the log as listed; None: the log is empty."""
        if not self._lock.acquire(blocking=False):
            log.files.check_may_wait()
            self._lock.acquire()
        try:
            for _ in range(ATTEMPTS):
                try:
                    if not len(log.segment_set):
                        return None
                    state = self._at_end(log)
                    self._known = state, log.cuts
                    return read(state)
                except FileVanishedError:
                    self._known = None  # it may include a part of the change
                    log.refresh()
        finally:
            self._lock.release()
        raise BusyError(f"{log.directory} kept changing while it was read", remedy="try again")

    def _at_end(self, log: PartitionView) -> ProducerState:
        state, cuts = self._known or (None, None)
        newest = max(log.snapshot_offsets or (), default=-1)
        is_cut = cuts is None or cuts != log.cuts
        if state is None or is_cut or not newest <= state.end_offset <= log.log_end:
            store = Snapshots(log.files, log.directory)
            return replay(store, log.segment_set, log.log_end, snapshot_offsets=log.snapshot_offsets).state
        if state.end_offset < log.log_end:
            for segment in log.segment_set.starting_at(state.end_offset):
                for header, marker in producer_batches_between(segment, state.end_offset, log.log_end):
                    state.update(header, marker)
            state.end_offset = log.log_end
        return state


class PartitionView(Reads):
    """Segments, log start and log end of one partition at one moment. Build it with `load`."""

    def __init__(
        self,
        store: DirectorySegments,
        version: LogVersion,
        *,
        stable_offset: int | None = None,
        undecided: dict[int, int] | None = None,
        incomplete_commit_offset: int | None = None,
        trusted: bool = False,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
        load_again: Callable[[], PartitionView] | None = None,
        first_topic: FileFacts | None = None,
    ) -> None:
        self.store = store
        self.files = store.files
        self.directory = store.directory
        self.topic, self.partition = names.topic_partition(store.directory)
        self._take(version)
        self._stable_offset = stable_offset
        self._undecided = undecided
        self._incomplete_commit_offset = incomplete_commit_offset
        self._stability = Stability()
        self.producer_expiration_ms = producer_expiration_ms
        self._load_again = load_again
        """The view of now, from the open log; None: the store is read."""
        self._first_topic = first_topic
        """The facts of the topic in the place from which this process moved it first; None: it did not."""
        self.trusted = trusted
        """This process has recovered the log, and holds its lock."""
        self.is_held = False
        """The view shows one moment: see `held`."""
        self.grows = False
        """Its end does not change."""

    def _take(self, version: LogVersion) -> None:
        self._version = version
        self.segment_set = version.segments
        self.log_start = version.log_start
        self.log_end = version.log_end
        self.damage = version.damage
        self.snapshot_offsets = version.snapshots
        self.topic_facts = version.topic
        self.cuts = version.cuts

    @property
    def stable_offset(self) -> int:
        """Last stable offset: every transaction that begins below it is decided.

        If another process may be writing the log, it is computed at first use: from the newest producer
        snapshot, which is not older than the active segment, and the batches behind it.
        """
        if self._stable_offset is None:
            self._stable_offset = self._stability.offset(self)
        return self._stable_offset

    @property
    def open_transactions(self) -> list[Producer]:
        """The producers with an open transaction, the oldest transaction first."""
        return self._stability.open(self)

    @property
    def undecided(self) -> dict[int, int]:
        """Producer id -> first offset of its undecided transaction, oldest first."""
        if self._undecided is None:
            self._undecided = self._stability.undecided(self)
        return self._undecided

    def held_back(self, end: int) -> str | None:
        """Return a text on the transactions that hold a committed read back at `end`; None: none does."""
        if not end == self.stable_offset < self.log_end:
            return None
        held = ", ".join(f"producer id {number} from offset {at} on" for number, at in self.undecided.items())
        return (
            f"{self.topic}-{self.partition}: offsets {end} to {self.log_end - 1} are held back until their "
            f"transactions end: {held}"
        )

    @property
    def incomplete_commit_offset(self) -> int | None:
        """As in `PartitionLog`. Reads the directory each time if another process may be writing it."""
        if self.trusted:
            return self._incomplete_commit_offset
        return staged_batches.incomplete_commit_offset(self.files, self.directory)

    @property
    def cleanable_offset(self) -> int:
        """As in `PartitionLog`."""
        return staged_batches.below(self.stable_offset, self.incomplete_commit_offset)

    @property
    def removable_offset(self) -> int:
        """As in `PartitionLog`."""
        return staged_batches.below(self.log_end, self.incomplete_commit_offset)

    @classmethod
    def load(cls, store: DirectorySegments) -> PartitionView:
        """Return a view of the log as it is now.

        Raises:
            FileVanishedError: There is no such log.
        """
        return cls(store, store.load())

    @property
    def active(self) -> Segment | None:
        """The last segment, to which a writer appends; None: there is none."""
        return self.segments[-1] if self.segments else None

    def refresh(self) -> None:
        """Take the version of now: its segments, log start and log end.

        Raises:
            FileVanishedError: The view is held: its segments cannot be exchanged for newer ones.
            OffsetOutOfRangeError: The topic was deleted and created again.
        """
        if self.is_held:
            raise FileVanishedError(f"a file of {self.directory} was replaced", file=self.directory)
        load_again = self._load_again
        new = PartitionView.load(self.store) if load_again is None else load_again()
        self.check_same_topic(new)
        if new.directory != self.directory:  # it was moved
            self.store, self.files, self.directory = new.store, new.files, new.directory
            self._load_again = new._load_again
        self._first_topic = new._first_topic
        self._take(new._version)
        self._stable_offset, self._undecided = new._stable_offset, new._undecided
        self._incomplete_commit_offset, self.trusted = new._incomplete_commit_offset, new.trusted

    def check_same_topic(self, newer: PartitionView) -> None:
        """Raise OffsetOutOfRangeError if the topic was deleted and created again before the newer view.

        A partition that was moved to another directory has other files there, so it is not compared.
        """
        known, now = self._first_topic or self.topic_facts, newer._first_topic or newer.topic_facts
        if self.directory == newer.directory and None not in (known, now) and known != now:
            raise OffsetOutOfRangeError(
                f"{self.topic}-{self.partition}: the topic was deleted and created again: the offsets are "
                "those of another log",
                remedy='read the new topic from "earliest"',
            )

    def held(self, start: int) -> PartitionView:
        """Return the view for one read from `start` on, with its segments pinned.

        They stay readable when a cleaning replaces them. In a directory that holds unless there are more of
        them than descriptors: then reading raises FileVanishedError.

        Raises:
            FileVanishedError: A segment was replaced since the view was made.
        """
        self.store.pin(self.segment_set.starting_at(start))
        view = copy.copy(self)
        view.is_held = True
        return view

    def to_portable(self) -> PortableVersion | None:
        """Return the version as plain values for another process; None if its end is damaged."""
        return self.store.to_portable(self._version)

    def is_current(self) -> bool:
        """Return whether the log ends as when the view was loaded.

        Segments before the last may have been cleaned meanwhile, which changes no log end.
        """
        return self.store.is_current(self._version)

    def continue_from(self, older: PartitionView) -> None:
        """Reuse the open transactions that an older view of the partition has computed.

        In storage in which a number names one file for ever, the view also takes the segments of the older
        one that are still there, with their open files.
        """
        self._stability = older._stability
        if not self.files.reuses_numbers:
            known = {segment.id: segment for segment in older.segments if not segment.active}
            segments = [
                segment if segment.active else known.get(segment.id, segment) for segment in self.segments
            ]
            self._take(replace(self._version, segments=SegmentSet(segments)))


class CurrentView:
    """The newest view of one partition to which others append, and which they roll and clean.

    The open transactions of the old view are reused, so that only added batches are read.

    Args:
        view: The first view.
        load: Makes a view of now. Called only when the last view is not current any more.
        ends: Returns (log start, last stable offset, log end) of now, for a log that this process writes
            itself. If it returns None, file names and sizes decide whether a view is current.
    """

    def __init__(
        self,
        view: PartitionView,
        load: Callable[[], PartitionView],
        ends: Callable[[], tuple[int, int, int] | None] = lambda: None,
    ) -> None:
        self._view = view
        self._load = load
        self._ends = ends

    def get(self) -> PartitionView:
        """Return the view of now."""
        if not self._is_current():
            before, self._view = self._view, self._load()
            self._view.continue_from(before)
        return self._view

    def _is_current(self) -> bool:
        view = self._view
        ends = self._ends()
        if ends is None:
            return view.is_current()
        return ends == (view.log_start, view.stable_offset, view.log_end)
