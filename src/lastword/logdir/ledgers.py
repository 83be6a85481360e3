"""The garbage accounts of all partitions of one log directory, and the time of its drive.

Ledgers stay in memory between rounds as long as they fit `log.cleaner.dedupe.buffer.size` together; the one
that was not used for longest is saved and let go first. The time `t` of a drive is bytes appended to its
partitions: it is told from how far each log went since it was looked at last, saved with each ledger, and
never runs back.

All of it is derived from the logs. What cannot be saved is left out: it costs a scan, no record.
"""

from __future__ import annotations

import contextlib
import os
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
    from lastword.segment.segment import Segment

_WEIGHT = 0.3  # of the newest measurement
KEEP_SECONDS = 5.0
"""Of a long scan no more is lost when it is stopped, and the portion under way; more only where saving takes
long: at most a twentieth of the time goes into it."""


class Accounted(Protocol):
    """A partition as it is now: `PartitionLog` or `PartitionView`."""

    @property
    def directory(self) -> str: ...
    @property
    def segments(self) -> Sequence[Segment]: ...


class Timed(Protocol):
    """A ledger, or what was saved of one (`SavedTime`)."""

    t: int
    seen: tuple[int, int]


@dataclass(slots=True)
class _Slot:
    """`lock`: of the ledger's user. `saving`: held for a save, and to say that the slot is `forgotten`: what
    is in it is not true any more, and must not be written."""

    lock: threading.RLock = field(default_factory=threading.RLock)
    ledger: Ledger | None = None
    saving: threading.Lock = field(default_factory=threading.Lock)
    forgotten: bool = False


class Ledgers:
    """Safe from any thread; a ledger belongs to whoever holds it (`of`).

    saves    False: for a dry run, which reads what was saved and leaves no trace
    scratch  the directory where their keys lie now; None: in memory
    clock    tells when the accounts of a long scan are due to be kept
    """

    def __init__(
        self,
        files: Files,
        budget_bytes: Callable[[], int],
        directories: Callable[[], Iterable[str]],
        *,
        saves: bool = True,
        scratch: Callable[[], str | None] = lambda: None,
        salt: Callable[[], bytes] = lambda: os.urandom(16),
        clock: Clock | None = None,
    ) -> None:
        self._files = files
        self._budget_bytes = budget_bytes
        self._directories = directories
        self.saves = saves
        self._scratch = scratch
        self._salt = salt
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._slots: OrderedDict[TopicPartition, _Slot] = OrderedDict()
        self._reached: dict[TopicPartition, tuple[int, int]] = {}
        self.seen: dict[TopicPartition, object] = {}
        """What the last look at each partition found: kept for whoever looks, forgotten with the rest."""
        self._t: int | None = None
        self._bytes_per_second = 0.0
        self._swap_seconds = 0.0

    # ---------------------------------------------------------------- the drive

    @property
    def t(self) -> int:
        """The drive's time: bytes appended to its partitions."""
        with self._lock:
            if self._t is None:
                from lastword.accounts.saved import saved_clock

                self._t = max((saved_clock(self._files, one) for one in self._directories()), default=0)
            return self._t

    @property
    def file_cost_bytes(self) -> float:
        """What one file more costs, in bytes moved: the fixed seconds of a swap, as past ones took, times the
        speed of past rewrites. 0 while nothing was measured."""
        return self._swap_seconds * self._bytes_per_second

    def measured(self, moved_bytes: int, seconds: float, swaps: int, swap_seconds: float) -> None:
        """What a round took: its rewrite, and its swaps."""
        if moved_bytes > 0 and seconds > 0 and swaps > 0:
            with self._lock:
                self._bytes_per_second = _weighed(self._bytes_per_second, moved_bytes / seconds)
                self._swap_seconds = _weighed(self._swap_seconds, swap_seconds / swaps)

    def advance(self, tp: TopicPartition, segments: Sequence[Segment], ledger: Timed | None = None) -> None:
        """The drive's time runs on by what was appended to this log since it was looked at last."""
        if not segments:
            return
        active = segments[-1]
        with self._lock:
            base, size = self._reached.get(tp) or (ledger.seen if ledger is not None else (-1, 0))
            grown = sum(one.size for one in segments if one.base_offset > base)
            grown += sum(max(one.size - size, 0) for one in segments if one.base_offset == base)
            self._t = self.t + grown
            self._reached[tp] = (active.base_offset, active.size)
            if ledger is not None:
                ledger.seen = self._reached[tp]
                ledger.t = max(ledger.t, self._t)

    # ---------------------------------------------------------------- ledgers

    @contextmanager
    def of(self, tp: TopicPartition, log: Accounted) -> Iterator[Ledger]:
        """The ledger of a partition, for its only user at the time; waits. It fits the log as it lies there
        now, or is empty."""
        with self._lock:
            slot = self._slots.setdefault(tp, _Slot())
            self._slots.move_to_end(tp)
        with slot.lock:
            segments = log.segments
            ledger = slot.ledger
            if ledger is None:
                from lastword.accounts.ledger import Ledger

                budget = self._budget_bytes()
                self._make_room(min(budget, sum(one.size for one in segments)), slot)
                ledger = Ledger.open(
                    self._files,
                    log.directory,
                    segments,
                    map_bytes=budget,
                    salt=self._salt,
                    scratch=self._scratch(),
                )
                slot.ledger = ledger
            else:
                ledger.fit(segments)
            self.advance(tp, segments, ledger)
            ledger.keep = self._keeper(slot, ledger)
            try:
                yield ledger
            finally:
                ledger.keep = None
                if ledger.spoiled:
                    slot.ledger = None
                elif ledger.worth_saving:
                    self._save(slot, ledger)
        self._make_room(0, slot)

    def held(self, tp: TopicPartition) -> Ledger | None:
        """The ledger that is in memory, for a look without waiting; None if there is none."""
        slot = self._slots.get(tp)
        return None if slot is None else slot.ledger

    def forget(self, tp: TopicPartition, *, cut: bool = False) -> None:
        """What is in memory of a partition is not true any more, and is not saved after this returned. `cut`:
        only its end goes, so what was appended so far does not count once more."""
        with self._lock:
            slot = self._slots.pop(tp, None)
            if not cut:
                self._reached.pop(tp, None)
            self.seen.pop(tp, None)
        if slot is not None:
            with slot.saving:  # one that is under way ends first: its file is removed by who forgets
                slot.forgotten = True
                slot.ledger = None

    @property
    def memory_bytes(self) -> int:
        with self._lock:
            held = [slot.ledger for slot in self._slots.values()]  # once: others let theirs go meanwhile
        return sum(one.memory_bytes for one in held if one is not None)

    def _make_room(self, needed_bytes: int, mine: _Slot) -> None:
        """Save and let go ledgers that nobody uses, the oldest first, until the rest fits."""
        budget = self._budget_bytes()
        with self._lock:
            others = [slot for slot in self._slots.values() if slot is not mine and slot.ledger is not None]
        for slot in others:
            if self.memory_bytes + needed_bytes <= budget:
                return
            if slot.lock.acquire(blocking=False):
                try:
                    ledger = slot.ledger
                    if ledger is not None:
                        self._save(slot, ledger)
                        slot.ledger = None
                finally:
                    slot.lock.release()

    def _keeper(self, slot: _Slot, ledger: Ledger) -> Callable[[], None]:
        """Saves it when it was not saved for long, measured by what that takes."""
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
        """Save what changed. Nobody uses a ledger any more."""
        with self._lock:
            slots, self._slots = list(self._slots.values()), OrderedDict()
        for slot in slots:
            if slot.ledger is not None:
                self._save(slot, slot.ledger)
                slot.ledger = None


def _weighed(old: float, new: float) -> float:
    return new if old == 0 else old + _WEIGHT * (new - old)
