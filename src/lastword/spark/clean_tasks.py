"""The tasks of `clean` and `plan`: each works on one partition, on a view and without a lock.

A fault of the data is returned as a result, and other partitions are cleaned. Any other error fails the task,
so that Spark starts it again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from lastword.errors import LastwordError, StorageError
from lastword.files import DEFAULT
from lastword.partition.directory_segments import DirectorySegments

if TYPE_CHECKING:
    from lastword.cleaner.distributed.remote import LedgerParams, RemoteBuild, RemoteScan
    from lastword.cleaner.engine.cleaning import CleanContext
    from lastword.cleaner.engine.report import PreparedCleaning
    from lastword.cleaner.policy.generational import Choice, SegmentRun
    from lastword.cleaner.policy.plan import Plan, Request
    from lastword.config import TopicConfig
    from lastword.partition.view import PartitionView

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class CleanTask:
    """The input of `build`: one cleaning of a partition, or with `params` one for each of `runs`.

    `runs` None: one cleaning of all garbage.
    """

    directory: str
    plan: Plan
    config: TopicConfig
    params: LedgerParams | None = None
    runs: tuple[SegmentRun, ...] | None = None


@dataclass(frozen=True, slots=True)
class RemoteScanTask:
    """The input of `scan`: a partition with new records. `dry`: nothing is saved."""

    directory: str
    plan: Plan
    config: TopicConfig
    params: LedgerParams
    dry: bool


@dataclass(frozen=True, slots=True)
class PlanTask:
    """The input of `plan`: one partition."""

    directory: str
    config: TopicConfig
    request: Request


@dataclass(frozen=True, slots=True)
class ChosenTask:
    """The input of `plan_chosen`: the choices for a drive that concern one of its partitions."""

    directory: str
    plan: Plan
    config: TopicConfig
    params: LedgerParams
    choices: tuple[Choice, ...]


def build(task: CleanTask) -> PreparedCleaning | RemoteBuild | LastwordError:
    """Rewrite the segments of a partition; publish nothing."""
    from lastword.cleaner.distributed import remote
    from lastword.cleaner.engine.cleaning import clean
    from lastword.cleaner.engine.liveness import FullScan
    from lastword.cleaner.engine.sinks import Collector

    def built() -> PreparedCleaning | RemoteBuild:
        view, context = _view(task.directory), _context(dry=False)
        if task.params is None:
            return clean(view, task.plan, FullScan(), Collector(task.plan), context)
        return remote.build(view, task.config, task.plan, task.params, task.runs, context)

    return return_faults(built)


def scan(task: RemoteScanTask) -> RemoteScan | LastwordError:
    """Scan the new records of a partition."""
    from lastword.cleaner.distributed import remote

    def scanned() -> RemoteScan:
        view = _view(task.directory)
        return remote.scan(view, task.config, task.plan, task.params, _context(dry=task.dry))

    return return_faults(scanned)


def plan(task: PlanTask) -> Plan:
    """Plan the cleaning of a partition and count its bytes."""
    from lastword.cleaner.engine.partition import plan_partition

    return plan_partition(_view(task.directory), task.config, task.request, _context(dry=True))


def plan_chosen(task: ChosenTask) -> Plan:
    """Plan the chosen runs of a partition and count their bytes."""
    from lastword.cleaner.distributed import remote
    from lastword.cleaner.drive import planned

    view, context = _view(task.directory), _context(dry=True)
    ledger, _ = remote.up_to_date(view, task.plan, task.params, context)
    return planned(view, task.config, task.plan, ledger, task.choices, context)


def _view(directory: str) -> PartitionView:
    from lastword.partition.view import PartitionView

    return PartitionView.load(DirectorySegments(DEFAULT, directory))


def _context(*, dry: bool) -> CleanContext:
    from lastword.cleaner.engine.cleaning import CleanContext
    from lastword.clock import SystemClock

    return CleanContext(DEFAULT, SystemClock(), dry=dry)


def return_faults(work: Callable[[], _T]) -> _T | LastwordError:
    """Return a fault of the data as the result. Any other error fails the task, which Spark repeats."""
    try:
        return work()
    except StorageError:
        raise
    except LastwordError as error:
        return error
