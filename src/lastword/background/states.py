"""The legal states of a partition that may be cleaned, and the only transitions between them.

    state         meaning
    idle          may be cleaned
    cleaning      a background cleaning runs
    aborted       a cleaning runs, and has to end at its next safe point
    paused        not cleaned; counted: it is idle again after as many resumes as pauses
    quarantined   damage was found: not cleaned before a user has checked it (`retry`)

    event         from                        to
    begin         idle                        cleaning
    end           cleaning, aborted           paused if there are pauses, else idle
    damage        cleaning, aborted           quarantined
    find          idle, paused                quarantined        (a note of an earlier process)
    pause         each                        itself, one pause more; idle: paused
    abort         cleaning, aborted           aborted
    resume        each with a pause           itself, one pause less; paused without one: idle
    retry         quarantined                 paused if there are pauses, else idle

Any other event raises UsageError, which names the state and the event: a caller that lost count is a bug,
and a bug here is a partition that two threads rewrite, or that is never cleaned again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from lastword.clock import Clock
from lastword.errors import BusyError, UsageError
from lastword.logdir.checkpoints import TopicPartition
from lastword.values import Value

Kind = Literal["idle", "cleaning", "aborted", "paused", "quarantined"]
Event = Literal["begin", "end", "damage", "find", "pause", "abort", "resume", "retry"]


@dataclass(frozen=True, slots=True)
class PartitionState(Value):
    """The state of a partition, and the number of pauses."""

    kind: Kind = "idle"
    pauses: int = 0

    def after(self, event: Event) -> PartitionState:
        """Return the state after an event; UsageError if there is none."""
        kinds, transition = _TABLE[event]
        if self.kind not in kinds or (event == "resume" and self.pauses == 0):
            held = f" with {self.pauses} pauses" if self.pauses else ""
            remedy = "logs.cleaner.status() lists the pauses" if event == "resume" else None
            raise UsageError(f"a partition that is {self.kind}{held} cannot {event}", remedy=remedy)
        return transition(self)


IDLE = PartitionState()


def _settled(state: PartitionState) -> PartitionState:
    return PartitionState("paused", state.pauses) if state.pauses else IDLE


def _paused(state: PartitionState) -> PartitionState:
    return PartitionState("paused" if state.kind == "idle" else state.kind, state.pauses + 1)


def _resumed(state: PartitionState) -> PartitionState:
    fewer = PartitionState(state.kind, state.pauses - 1)
    return _settled(fewer) if state.kind == "paused" else fewer


def _to(kind: Kind) -> Callable[[PartitionState], PartitionState]:
    return lambda state: PartitionState(kind, state.pauses)


RUNNING: frozenset[Kind] = frozenset({"cleaning", "aborted"})
_EACH: frozenset[Kind] = frozenset(get_args(Kind))
_TABLE: dict[Event, tuple[frozenset[Kind], Callable[[PartitionState], PartitionState]]] = {
    "begin": (frozenset({"idle"}), _to("cleaning")),
    "end": (RUNNING, _settled),
    "damage": (RUNNING, _to("quarantined")),
    "find": (frozenset({"idle", "paused"}), _to("quarantined")),
    "pause": (_EACH, _paused),
    "abort": (RUNNING, _to("aborted")),
    "resume": (_EACH, _resumed),  # if there is a pause
    "retry": (frozenset({"quarantined"}), _settled),
}
"""From which states each event is legal, and the state after it."""


class States:
    """The states of all partitions; idle ones are not stored. Safe from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._states: dict[TopicPartition, PartitionState] = {}
        self._ended: dict[TopicPartition, threading.Event] = {}  # of running cleanings

    def __getitem__(self, tp: TopicPartition) -> PartitionState:
        return self._states.get(tp, IDLE)

    def all(self) -> dict[TopicPartition, PartitionState]:
        """Return every partition that is not idle."""
        with self._lock:
            return dict(self._states)

    def apply(self, tp: TopicPartition, event: Event) -> PartitionState:
        """Apply an event; UsageError changes nothing."""
        with self._lock:
            after = self[tp].after(event)
            if after == IDLE:
                self._states.pop(tp, None)
            else:
                self._states[tp] = after
            if event == "begin":
                self._ended[tp] = threading.Event()
            elif event in ("end", "damage"):
                self._ended.pop(tp).set()
            return after

    def begin(self, tp: TopicPartition) -> bool:
        """Begin a cleaning, if that is legal now."""
        with self._lock:
            if self[tp] != IDLE:
                return False
            self.apply(tp, "begin")
            return True

    def abort(self, tp: TopicPartition) -> bool:
        """Ask the running cleaning to end; False if there is none."""
        with self._lock:
            if self[tp].kind not in RUNNING:
                return False
            self.apply(tp, "abort")
            return True

    def pause(self, tp: TopicPartition, *, abort: bool = True, seconds: float = 60.0) -> PartitionState:
        """Add a pause; returns when no background cleaning runs.

        Args:
            tp: The partition.
            abort: The running cleaning ends at its next safe point; otherwise its end is waited for.
            seconds: How long to wait.

        Raises:
            BusyError: The cleaning still runs after `seconds`; the pause is removed again.
        """
        with self._lock:
            self.apply(tp, "pause")
            if abort:
                self.abort(tp)
            ended = self._ended.get(tp)
        if ended is not None and not self._clock.wait(ended, seconds):
            self.apply(tp, "resume")
            raise BusyError(f"{tp} is still being cleaned after {seconds:.0f} s", remedy="try again later")
        return self[tp]

    def forget(self, tp: TopicPartition) -> None:
        """Remove a deleted partition: a new partition of that name begins without its pauses."""
        with self._lock:
            if self[tp].kind not in RUNNING:
                self._states.pop(tp, None)
