"""Keep the garbage accounts of all partitions of one log directory, and the clock of its drive.

Ledgers stay in memory between cleanings as long as together they fit `log.cleaner.dedupe.buffer.size`. The
least recently used one is saved and dropped first. The time `write_clock` of a drive is the number of bytes
appended to its partitions. It is computed from the growth of each log since the last call, is saved with each
ledger, and never decreases.

All of this is derived from the logs. A ledger that cannot be saved is omitted: that costs a scan, no record.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from lastword.clock import Clock, SystemClock
from lastword.errors import LastwordError
from lastword.files import Files
from lastword.logdir.checkpoints import TopicPartition

if TYPE_CHECKING:
    from lastword.accounts.ledger import Ledger
    from lastword.accounts.snapshot import SavedTime
    from lastword.partition.log import PartitionLog
    from lastword.partition.view import PartitionView
    from lastword.segment.segment import Segment

_WEIGHT = 0.3  # weight of the newest measurement in the mean
KEEP_SECONDS = 5.0
"""A stopped scan loses at most this much work plus the current portion. It loses more only if saving is slow:
at most a twentieth of the time is spent on saving.
"""


class KeptLedgers(Protocol):
    """Keeps ledgers in memory from one private copy of a log in a bucket to the next."""

    def take(self, tp: TopicPartition) -> Ledger | None:
        """Return the kept ledger of a partition, which is then the caller's; None: there is none.

        A ledger of other objects than those of this copy is dropped.
        """

    def keep(self, tp: TopicPartition, ledger: Ledger) -> None:
        """Keep a ledger when this copy is committed."""

    def make_room(self, room_bytes: int) -> None:
        """Drop the least recently used ledgers until the rest fits."""

    def measured(self, topic: str, ledger: Ledger) -> None:
        """Note the memory that a ledger of a topic takes."""

    def expected_bytes(self, topic: str, log_bytes: int) -> int:
        """Return about the memory of a new ledger of a log with this many bytes."""


@dataclass(slots=True)
class _Slot:
    """The ledger of one partition.

    `lock`: of the ledger's user. `saving`: held during a save, and to set `forgotten`, after which the ledger
    is outdated and must not be saved.
    """

    lock: threading.RLock = field(default_factory=threading.RLock)
    ledger: Ledger | None = None
    saving: threading.Lock = field(default_factory=threading.Lock)
    forgotten: bool = False


class Ledgers:
    """The ledgers of one directory. Safe from any thread.

    A ledger belongs to the thread that holds it (`of`).

    Args:
        saves: False for a dry run, which reads saved ledgers and writes nothing.
        scratch: The directory of the ledgers' keys; None: in memory.
        clock: Decides when the accounts of a long scan are saved.
    """

    def __init__(
        self,
        files: Files,
        budget_bytes: Callable[[], int],
        directories: Callable[[], Iterable[str]],
        *,
        saves: bool = True,
        scratch: Callable[[], str | None] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        self._files = files
        self._budget_bytes = budget_bytes
        self._directories = directories
        self.saves = saves
        self.kept: KeptLedgers | None = None
        """Where ledgers come from and go to when this is closed; None: they are saved, or made again."""
        self._scratch = scratch
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._slots: OrderedDict[TopicPartition, _Slot] = OrderedDict()
        self._used: dict[int, tuple[_Slot, int]] = {}  # by id: slots whose lock is held, and how often
        self._idle: dict[TopicPartition, int] = {}  # bytes of the ledgers that no thread uses
        self._idle_bytes = 0  # their sum
        self._reached: dict[TopicPartition, tuple[int, int]] = {}
        self.cached_stats: dict[TopicPartition, object] = {}
        """The result of the last scan of each partition, kept for its reader and dropped with the ledger."""
        self._write_clock: int | None = None
        self._bytes_per_second = 0.0
        self._swap_seconds = 0.0

    # ---------------------------------------------------------------- the drive

    @property
    def write_clock(self) -> int:
        """The drive's time: bytes appended to its partitions."""
        with self._lock:
            if self._write_clock is None:
                from lastword.accounts.snapshot import saved_clock

                self._write_clock = max(
                    (saved_clock(self._files, path) for path in self._directories()), default=0
                )
            return self._write_clock

    @property
    def file_cost_bytes(self) -> float:
        """The cost of one more file, in bytes moved.

        The mean seconds of a swap times the speed of past rewrites, 0 before the first measurement; in a
        bucket also the requests of every later reader.
        """
        return self._swap_seconds * self._bytes_per_second + self._files.file_cost_bytes

    def measured(self, moved_bytes: int, seconds: float, swaps: int, swap_seconds: float) -> None:
        """Record what a cleaning took: its rewrite, and its swaps."""
        if moved_bytes > 0 and seconds > 0 and swaps > 0:
            with self._lock:
                self._bytes_per_second = _weighed(self._bytes_per_second, moved_bytes / seconds)
                self._swap_seconds = _weighed(self._swap_seconds, swap_seconds / swaps)

    def advance(
        self, tp: TopicPartition, segments: Sequence[Segment], ledger: Ledger | SavedTime | None = None
    ) -> None:
        """Advance the drive's time by the bytes appended to this log since the last call."""
        if not segments:
            return
        active = segments[-1]
        with self._lock:
            base, size = self._reached.get(tp) or (ledger.reached if ledger is not None else (-1, 0))
            grown = sum(segment.size for segment in segments if segment.base_offset > base)
            grown += sum(max(segment.size - size, 0) for segment in segments if segment.base_offset == base)
            self._write_clock = self.write_clock + grown
            self._reached[tp] = (active.base_offset, active.size)
            if ledger is not None:
                ledger.reached = self._reached[tp]
                ledger.write_clock = max(ledger.write_clock, self._write_clock)

    # ---------------------------------------------------------------- ledgers

    @contextmanager
    def of(self, tp: TopicPartition, log: PartitionLog | PartitionView) -> Iterator[Ledger]:
        """Hold the ledger of a partition exclusively, after waiting for it.

        The ledger fits the log as it is now, or is empty.
        """
        with self._lock:
            slot = self._slots.setdefault(tp, _Slot())
            self._slots.move_to_end(tp)
        with slot.lock, self._using(tp, slot):
            segments = log.segments
            ledger = slot.ledger
            if ledger is None and self.kept is not None and (ledger := self.kept.take(tp)) is not None:
                ledger.move(self._files)
                slot.ledger = ledger
                ledger.fit(segments)
            elif ledger is None:
                from lastword.accounts.ledger import Ledger

                budget = self._budget_bytes()
                needed = sum(segment.size for segment in segments)
                if self.kept is not None:  # what is dropped may not be saved: it costs a scan
                    needed = self.kept.expected_bytes(tp.topic, needed)
                self._make_room(min(budget, needed), slot)
                ledger = Ledger.open(
                    self._files, log.directory, segments, map_bytes=budget, scratch=self._scratch()
                )
                slot.ledger = ledger
            else:
                ledger.fit(segments)
            self.advance(tp, segments, ledger)
            if not self._files.derived_cost:  # else nothing is saved before the commit
                ledger.keep = self._keeper(slot, ledger)
            try:
                yield ledger
            finally:
                ledger.keep = None
                if ledger.invalid:
                    slot.ledger = None
                elif ledger.worth_saving and not self._files.derived_cost:
                    self._save(slot, ledger)
        if self.kept is not None:
            self.kept.measured(tp.topic, ledger)
        self._make_room(0, slot)

    @contextmanager
    def _using(self, tp: TopicPartition, slot: _Slot) -> Iterator[None]:
        """Count the memory of a slot's ledger as it is now inside the block, and as it was left after it."""
        with self._lock:
            self._used[id(slot)] = slot, self._used.get(id(slot), (slot, 0))[1] + 1
            self._set_idle(tp, None)
        try:
            yield
        finally:
            with self._lock:
                _, times = self._used.pop(id(slot))
                if times > 1:
                    self._used[id(slot)] = slot, times - 1
                elif self._slots.get(tp) is slot:
                    self._set_idle(tp, slot.ledger)

    def _set_idle(self, tp: TopicPartition, ledger: Ledger | None) -> None:
        self._idle_bytes -= self._idle.pop(tp, 0)
        if ledger is not None:
            ledger.shrink()
            self._idle[tp] = ledger.memory_bytes
            self._idle_bytes += self._idle[tp]

    def held(self, tp: TopicPartition) -> Ledger | None:
        """Return the ledger if it is in memory, without waiting; otherwise None."""
        slot = self._slots.get(tp)
        return None if slot is None else slot.ledger

    def forget(self, tp: TopicPartition, *, cut: bool = False) -> None:
        """Drop a partition's ledger, which is outdated. It is not saved after this returns.

        Args:
            tp: The partition.
            cut: Only the log's end was removed, so bytes appended before do not count again.
        """
        if self.kept is not None:
            self.kept.take(tp)
        with self._lock:
            slot = self._slots.pop(tp, None)
            self._set_idle(tp, None)
            if not cut:
                self._reached.pop(tp, None)
            self.cached_stats.pop(tp, None)
        if slot is not None:
            with slot.saving:  # a running save ends first: the caller removes its file
                slot.forgotten = True
                slot.ledger = None

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory of all ledgers."""
        with self._lock:  # a copy: other threads drop theirs meanwhile
            held = [slot.ledger for slot in self._slots.values()]
        return sum(ledger.memory_bytes for ledger in held if ledger is not None)

    def _known_bytes(self) -> int:
        """Return `memory_bytes` without a look at each ledger: only those in use change."""
        with self._lock:
            ledgers = [slot.ledger for slot, _ in self._used.values()]
            return self._idle_bytes + sum(ledger.memory_bytes for ledger in ledgers if ledger is not None)

    def _make_room(self, needed_bytes: int, mine: _Slot) -> None:
        """Save and drop unused ledgers, the least recently used first, until the rest fits.

        A slot that was tried becomes the last one, so that the next call begins with a ledger.
        """
        budget = self._budget_bytes()
        if self.kept is not None:
            self.kept.make_room(budget - needed_bytes - self._known_bytes())
        left = len(self._slots)
        while left > 0 and self._known_bytes() + needed_bytes > budget:
            left -= 1
            with self._lock:
                tp, slot = next(iter(self._slots.items()), (None, mine))
                if tp is not None:
                    self._slots.move_to_end(tp)
            if tp is None or slot is mine or slot.ledger is None:
                continue
            if slot.lock.acquire(blocking=False):
                try:
                    ledger = slot.ledger
                    if ledger is not None and id(slot) not in self._used:
                        self._save(slot, ledger)
                        slot.ledger = None
                        with self._lock:
                            self._set_idle(tp, None)
                finally:
                    slot.lock.release()

    def _keeper(self, slot: _Slot, ledger: Ledger) -> Callable[[], None]:
        """Return a function that saves the ledger if the last save is long ago.

        Long is measured in the time that a save takes.
        """
        kept, took = self._clock.monotonic(), 0.0

        def keep() -> None:
            nonlocal kept, took
            began = self._clock.monotonic()
            if began - kept >= max(KEEP_SECONDS, 20 * took):
                self._save(slot, ledger)
                kept = self._clock.monotonic()
                took = kept - began

        return keep

    def _save(self, slot: _Slot, ledger: Ledger) -> None:
        with slot.saving:
            if self.saves and not slot.forgotten:
                with contextlib.suppress(LastwordError):
                    ledger.save()

    def close(self) -> None:
        """Save changed ledgers. No ledger may be in use."""
        with self._lock:
            slots, self._slots = self._slots, OrderedDict()
            self._idle, self._idle_bytes = {}, 0
        for tp, slot in slots.items():
            if slot.ledger is not None:
                self._save(slot, slot.ledger)
                if self.kept is not None and not slot.ledger.invalid:
                    self.kept.keep(tp, slot.ledger)
                slot.ledger = None


def _weighed(old: float, new: float) -> float:
    return new if old == 0 else old + _WEIGHT * (new - old)
