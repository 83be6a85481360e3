"""Define and register workloads: each gives our figure and a rival's, measured alternately in one run.

A workload is a function of a `Run` (sizes, scratch space, data sets) that yields `Measured` values;
`@workload` registers it under its name. `run.py` imports the modules with workloads. The figure is the median
of several runs. CPU seconds are preferred to wall seconds, because a rate per CPU second does not depend on
the other load of the machine.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench import kafka

FULL_RECORDS = 10_000_000
SIZES = {"tiny": 20_000, "small": 1_000_000, "full": FULL_RECORDS}


@dataclass(frozen=True)
class Times:
    """CPU seconds of this process (all threads) and wall seconds of one run."""

    cpu: float
    wall: float


def timed(work: Callable[[], Any]) -> Times:
    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return Times(time.process_time() - cpu, time.perf_counter() - wall)


@dataclass(frozen=True)
class Measured:
    """One line of the table: two rates or amounts in `unit`; a `ratio` above 1 means that we are better."""

    workload: str
    what: str
    unit: str
    ours: float
    rival: float
    rival_name: str
    ratio: float
    facts: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Run:
    """Sizes, scratch space and data sets of a workload.

    `records` is the size of data set a; the other sets scale with it.
    """

    records: int
    repetitions: int
    scratch: Path
    data_directory: Path
    sets: tuple[str, ...] = ()

    def chosen(self, *names: str) -> list[str]:
        """Return the data sets that the user chose; all of them by default."""
        return [name for name in names if not self.sets or name in self.sets]

    def data(self, name: str) -> kafka.Generated:
        """Return a data set at the size of this run. Kafka writes it once; later runs reuse it."""
        full = kafka.DATA_SETS[name].records
        return kafka.generate(name, self.data_directory, max(1000, self.records * full // FULL_RECORDS))

    def times(self, work: Callable[[], Any], *, before: Callable[[], Any] | None = None) -> list[Times]:
        """Run `work` once to warm up, then `repetitions` times; the time of `before` does not count."""
        times = []
        for _ in range(self.repetitions + 1):
            if before is not None:
                before()
            times.append(timed(work))
        return times[1:]


CPU_TICK_SECONDS = 0.01
"""A JVM reports its CPU time in steps of this size; a run with a time of 0 took less than one step."""


def rate(records: int, seconds: Iterable[float]) -> float:
    """Return millions of records per second, from the median of several runs."""
    return records / (statistics.median(seconds) or CPU_TICK_SECONDS) / 1e6


Workload = Callable[[Run], Iterable[Measured]]
WORKLOADS: dict[str, Workload] = {}


def workload(name: str) -> Callable[[Workload], Workload]:
    """Register a workload under its name; the first line of its docstring describes it."""

    def enter(function: Workload) -> Workload:
        assert name not in WORKLOADS, name
        WORKLOADS[name] = function
        return function

    return enter


def compared(
    name: str,
    case: str,
    ours: float,
    rival: float,
    rival_name: str,
    unit: str = "M records/CPU s",
    **facts: Any,
) -> Measured:
    """Return two rates, of which the higher is better."""
    return Measured(name, case, unit, ours, rival, rival_name, ours / rival, facts)
