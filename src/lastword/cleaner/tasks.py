"""What the scheduler and its work say to each other: tasks, how urgent they are, and what became of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from lastword.cleaner.report import CleanRound
from lastword.logdir.checkpoints import TopicPartition
from lastword.values import Value

Result = Literal["ok", "partial", "aborted", "failed", "expired", "looked"]
Stop = Callable[[], bool]


@dataclass(frozen=True, order=True, slots=True)
class Urgency:
    """First by the rank of the obligation (0: max.compaction.lag.ms has passed), then by how much: the most
    urgent is the least."""

    rank: int
    less: float = 0.0


@dataclass(frozen=True, slots=True)
class Done(Value):
    """What became of one task, or of one partition's retention: an entry of the history.

    result    `ok`; `partial`: stopped between two swaps, what was swapped stays; `aborted`: stopped before
              the first; `failed`, with `error`; `expired`: retention removed segments; `looked`: what was
              new there is known now (that is not in the history)
    round     what the round did: a `CleanRound`; None if it did not come so far
    deletion  what retention removed
    damaged   the partition is in quarantine now
    """

    topic: str
    partition: int
    drive: str
    result: Result
    time_ms: int = 0
    round: CleanRound | None = None
    deletion: Any = None
    error: str | None = None
    damaged: bool = False

    def __str__(self) -> str:
        what = self.round or self.deletion
        told = str(what) if what is not None else f"{self.topic}-{self.partition}: {self.result}"
        return f"{told}: {self.error}" if self.error else told


class Task(Protocol):
    """One round that could be done now."""

    @property
    def partition(self) -> TopicPartition: ...
    @property
    def drive(self) -> str: ...
    @property
    def urgency(self) -> Urgency: ...
    def run(self, stop: Stop) -> Done | None:
        """Do it. `stop` is asked at every safe point; once true the round ends there. None: there was nothing
        to do any more. Errors of the data or the storage are in the answer, others are raised."""
        ...


class Work(Protocol):
    """What there is to clean."""

    def drives(self) -> Sequence[str]: ...
    def next(self, drive: str, held: Collection[TopicPartition]) -> Task | None:
        """The most urgent task on a drive that is of none of these partitions."""
        ...

    def overtakes(self, task: Task, held: Collection[TopicPartition]) -> bool:
        """Is there something on the drive of a task under way, of none of these partitions, that must not
        wait for the end of it?"""
        ...

    def chores(self, held: Collection[TopicPartition]) -> Iterable[Done]:
        """Retention, of all partitions but these; what it did."""
        ...
