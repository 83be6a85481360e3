"""What executors do for `clean` and `plan`: one partition each, on a view and without a lock.

A fault of the data is an answer, and other partitions go on; anything else fails the task, so that Spark
tries it again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from lastword.errors import LastwordError, StorageError
from lastword.files import DEFAULT

if TYPE_CHECKING:
    from lastword.cleaner.apart import Apart, Looked, Opening
    from lastword.cleaner.built import BuiltRound
    from lastword.cleaner.generational import Choice
    from lastword.cleaner.plan import Plan
    from lastword.cleaner.runs import Run
    from lastword.config import TopicConfig
    from lastword.partition.view import PartitionView

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RoundTask:
    """One partition's round, or by accounts one for each of `runs` (None: one over all garbage)."""

    directory: str
    plan: Plan
    config: TopicConfig
    opening: Opening | None = None
    runs: tuple[Run, ...] | None = None


@dataclass(frozen=True, slots=True)
class LookTask:
    """A scan of what is new in one partition. `dry`: nothing of it is saved."""

    directory: str
    plan: Plan
    config: TopicConfig
    opening: Opening
    dry: bool


@dataclass(frozen=True, slots=True)
class PlanTask:
    """One partition's plan. `arguments` of `cleaner.plan`."""

    directory: str
    config: TopicConfig
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChosenTask:
    """What the choices for a drive mean for one of its partitions."""

    directory: str
    plan: Plan
    config: TopicConfig
    opening: Opening
    choices: tuple[Choice, ...]


def build(task: RoundTask) -> BuiltRound | Apart | LastwordError:
    from lastword.cleaner import apart, phases
    from lastword.clock import SystemClock

    def built() -> BuiltRound | Apart:
        view, clock = _view(task.directory), SystemClock()
        if task.opening is None:
            return phases.build(view, task.plan, files=DEFAULT, clock=clock)
        return apart.build(view, task.config, task.plan, task.opening, task.runs, files=DEFAULT, clock=clock)

    return _faults_kept(built)


def look(task: LookTask) -> Looked | LastwordError:
    from lastword.cleaner import apart

    def looked() -> Looked:
        view = _view(task.directory)
        return apart.look(view, task.config, task.plan, task.opening, files=DEFAULT, dry=task.dry)

    return _faults_kept(looked)


def plan(task: PlanTask) -> Plan:
    from lastword.cleaner import cleaner
    from lastword.clock import SystemClock

    view = _view(task.directory)
    return cleaner.plan(view, task.config, files=DEFAULT, clock=SystemClock(), **task.arguments)


def plan_chosen(task: ChosenTask) -> Plan:
    from lastword.cleaner import apart, drive_plan
    from lastword.clock import SystemClock

    view = _view(task.directory)
    ledger, _ = apart.up_to_date(view, task.plan, task.opening, DEFAULT, dry=True)
    return drive_plan.planned(
        view, task.config, task.plan, ledger, task.choices, files=DEFAULT, clock=SystemClock()
    )


def _view(directory: str) -> PartitionView:
    from lastword.partition.view import PartitionView

    return PartitionView.load(DEFAULT, directory)


def _faults_kept(work: Callable[[], _T]) -> _T | LastwordError:
    try:
        return work()
    except StorageError:
        raise
    except LastwordError as error:
        return error
