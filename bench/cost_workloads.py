"""Measure the cost of cleaning in bytes: written and read per byte appended, and the space used.

Three ways: real logs, appended to through the library and cleaned when due, by strategy `generational` and by
strategy `kafka`; the same batches through Kafka's own log and cleaner classes; and the simulator behind
`lastword simulate`. The clock is simulated. Bytes before all keys are loaded do not count.
"""

from __future__ import annotations

import heapq
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import lastword
from bench import kafka
from bench.registry import Measured, Run, workload
from bench.traffic import Traffic, traffic
from lastword.clock import ManualClock
from lastword.config import TopicConfig
from lastword.tools.overwrites import OverwriteTrace, trace_of_keys
from lastword.tools.simulate import Simulation, TracedPartition, simulate

BEGIN_MS = 1_750_000_000_000
KEY_BYTES, VALUE_BYTES = 24, 100
BATCH_RECORDS = 100
RECORD_BYTES = (
    KEY_BYTES + VALUE_BYTES + 8 + 61 / BATCH_RECORDS
)  # with its own fields and its share of the batch header
TOMBSTONE_BYTES = KEY_BYTES + 7 + 61 / BATCH_RECORDS


@dataclass(frozen=True)
class Scenario:
    """Traffic over one partition: all `keys` are loaded, then `updates` records follow per key.

    `rate` records arrive per millisecond. A segment holds 1 / `live_segments` of the live bytes.
    """

    kind: str
    keys: int
    updates: float = 15
    skew: float = 0.99
    live_segments: float = 50
    rate: float = 1.0
    seed: int = 1
    load_ms: int = 0

    @property
    def name(self) -> str:
        return f"{self.kind} {self.skew:g}" if self.kind == "zipf" else self.kind

    @cached_property
    def traffic(self) -> Traffic:
        return traffic(self.kind, self.keys, int(self.keys * self.updates), seed=self.seed, skew=self.skew)

    @cached_property
    def times_ms(self) -> np.ndarray:
        """Return the arrival time of each record."""
        traffic, load_ms = self.traffic, self.load_ms or self.keys
        number = np.arange(traffic.keys.size, dtype=np.float64)
        times = np.where(
            number < traffic.loaded,
            number * (load_ms / max(traffic.loaded, 1)),
            load_ms + (number - traffic.loaded) / self.rate,
        )
        return times.astype(np.int64)

    @cached_property
    def trace(self) -> OverwriteTrace:
        sizes = np.where(self.traffic.tombstone, TOMBSTONE_BYTES, RECORD_BYTES)
        upto = np.rint(np.cumsum(sizes)).astype(np.int64)
        return trace_of_keys(
            self.traffic.keys,
            size_bytes=np.diff(upto, prepend=0),
            time_ms=self.times_ms,
            tombstone=self.traffic.tombstone,
            loaded=self.traffic.loaded,
        )

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "segment_bytes": int(self.keys * RECORD_BYTES / self.live_segments),
            "delete_retention_ms": int(self.keys / 2 / self.rate),
        }


@dataclass(frozen=True)
class Cost:
    """Bytes per byte appended; space over live bytes: mean, peak, and of the worst partition at the end.

    `read` of real logs is everything that the process reads while it cleans, including checkpoints and saved
    accounts. For the other two ways it is the bytes read by maps and rewrites.
    """

    written: float
    read: float
    mean: float
    peak: float
    rounds: int
    appended_bytes: int
    worst_end: float = 0.0

    def __str__(self) -> str:
        space = f"space {self.mean:.2f}, at most {self.peak:.2f}"
        return f"written {self.written:.3f}, read {self.read:.2f}, {space}"


class Meter:
    """The space before and after cleanings; between two samples it is taken to grow linearly."""

    def __init__(self) -> None:
        self.area = self.width = self.peak = 0.0
        self._last: tuple[int, float] | None = None

    def look(self, appended: int, size: int, live: float) -> None:
        share = size / max(live, 1)
        if self._last is not None and appended > self._last[0]:
            step = appended - self._last[0]
            self.area += step * (share + self._last[1]) / 2
            self.width += step
        self._last = (appended, share)
        self.peak = max(self.peak, share)

    @property
    def mean(self) -> float:
        return self.area / max(self.width, 1)


# ---------------------------------------------------------------- real logs


class Growing:
    """The real log of one scenario, and its live bytes."""

    def __init__(self, logs: Any, number: int, scenario: Scenario, **settings: Any) -> None:
        self.scenario, self.name, self.rows = scenario, f"t{number}", 0
        self.topic = logs.create_topic(
            self.name, cleanup_policy="compact", file_delete_delay_ms=0, **(scenario.settings | settings)
        )
        self.log = logs.dirs.log(self.name, 0)
        self.freed = 0
        trace = scenario.trace
        self._live = trace.live_bytes(scenario.settings["delete_retention_ms"])
        self._upto = np.concatenate(([0], np.cumsum(trace.size_bytes)))

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.log.segments)

    @property
    def appended(self) -> int:
        return self.size + self.freed

    @property
    def live(self) -> float:
        """Return the live bytes, at the average record size so far."""
        return float(self._live[self.rows]) * self.appended / max(float(self._upto[self.rows]), 1.0)

    @property
    def next_ms(self) -> int:
        """Return the time at which the next batch of this log is full."""
        end = min(self.rows + BATCH_RECORDS, self.scenario.times_ms.size)
        return int(self.scenario.times_ms[end - 1])

    def append(self) -> bool:
        """Append the next batch; return whether it closed a segment."""
        traffic, first = self.scenario.traffic, self.rows
        self.rows = min(first + BATCH_RECORDS, traffic.keys.size)
        active = self.log.active.base_offset
        self.topic.extend(pa.Table.from_batches([batch_of(traffic, first, self.rows)]))
        return bool(self.log.active.base_offset != active)

    @property
    def done(self) -> bool:
        return self.rows >= self.scenario.traffic.keys.size


def batch_of(traffic: Traffic, first: int, end: int) -> pa.RecordBatch:
    """Return records `first` to `end`; a value is the record's number, padded."""
    keys = [b"key-%020d" % key for key in traffic.keys[first:end].tolist()]
    values = [
        None if deleted else b"%0*d" % (VALUE_BYTES, number)
        for number, deleted in enumerate(traffic.tombstone[first:end].tolist(), first)
    ]
    return pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


def on_real_logs(
    directory: Path,
    scenarios: Sequence[Scenario],
    strategy: str,
    *,
    space_target: float = 1.5,
    **settings: Any,
) -> Cost:
    """Run all scenarios in one log directory.

    Append in the order of their times; whenever a segment closes, clean everything that is due.
    """
    shutil.rmtree(directory, ignore_errors=True)
    clock = ManualClock(BEGIN_MS)
    with lastword.open(
        directory, "a", clock=clock, log_cleaner_enable=False, lastword_space_target=space_target
    ) as logs:
        growing = [
            Growing(logs, number, scenario, lastword_strategy=strategy, **settings)
            for number, scenario in enumerate(scenarios)
        ]
        meter, written, read, rounds, loaded_bytes = Meter(), 0, 0, 0, 0
        by_name = {partition.name: partition for partition in growing}
        queue = [(partition.next_ms, number) for number, partition in enumerate(growing)]
        heapq.heapify(queue)
        while queue:
            at_ms, number = heapq.heappop(queue)
            clock.advance(max(BEGIN_MS + at_ms - clock.now_ms(), 0))
            partition = growing[number]
            closed = partition.append()
            if not partition.done:
                heapq.heappush(queue, (partition.next_ms, number))
            if not closed and queue:
                continue
            loading = any(other.rows < other.scenario.traffic.loaded for other in growing)
            appended = sum(other.appended for other in growing)
            if loading:
                loaded_bytes = appended
            else:
                meter.look(appended, sum(other.size for other in growing), sum(o.live for o in growing))
            before = bytes_read()
            for done in due_rounds(logs):
                by_name[done.topic].freed += done.freed_bytes
                if not loading:
                    written, rounds = written + done.written_bytes, rounds + 1
            if not loading:
                read += bytes_read() - before
                meter.look(appended, sum(other.size for other in growing), sum(o.live for o in growing))
        worst = max(partition.size / partition.live for partition in growing)
    shutil.rmtree(directory)
    new = appended - loaded_bytes
    return Cost(written / new, read / new, meter.mean, meter.peak, rounds, new, worst)


def bytes_read() -> int:
    """Return the bytes that this process has read so far, from files and page cache."""
    line = Path("/proc/self/io").read_text().split("\n", 1)[0]
    return int(line.removeprefix("rchar: "))


def due_rounds(logs: Any) -> Iterator[Any]:
    """Run and yield every due cleaning, until none is due."""
    while True:
        rounds = logs.clean(due=True)
        yield from rounds
        if not rounds:
            return


def in_kafka(directory: Path, scenario: Scenario, ratio: float = 0.5) -> Cost:
    """Run the same batches through Kafka's log and cleaner classes, without a broker.

    There are no tombstones, because the clock of these classes cannot be set.
    """
    shutil.rmtree(directory, ignore_errors=True)
    with lastword.open(directory / "source", "a", log_cleaner_enable=False) as logs:
        source = Growing(logs, 0, replace(scenario, live_segments=0.01))
        while not source.done:
            source.append()
        settings = scenario.settings
    arguments = [
        directory / "source" / "t0-0",
        directory / "work",
        settings["segment_bytes"],
        ratio,
        128 << 20,
    ]
    lines = [json.loads(line) for line in kafka.run_java("CostRun", arguments)]
    shutil.rmtree(directory)
    live = scenario.trace.live_bytes(0)
    upto = np.concatenate(([0], np.cumsum(scenario.trace.size_bytes)))
    meter = Meter()
    start = dict.fromkeys(lines[0], 0)
    for line in lines:
        if line["records"] <= scenario.traffic.loaded:
            start = line
            continue
        newest = float(live[line["records"]]) * line["appended"] / float(upto[line["records"]])
        meter.look(line["appended"], line["before"], newest)
        meter.look(line["appended"], line["after"], newest)
    counted = {name: lines[-1][name] - start[name] for name in start}
    new = counted["appended"]
    read = (counted["read"] + counted["map_read"]) / new
    return Cost(counted["written"] / new, read, meter.mean, meter.peak, counted["rounds"], new)


# ---------------------------------------------------------------- simulated


def on_paper(
    scenarios: Sequence[Scenario], strategy: str, *, space_target: float = 1.5, **settings: Any
) -> Cost:
    parts = [
        TracedPartition(f"t{number}", 0, scenario.trace, TopicConfig(**(scenario.settings | settings)))
        for number, scenario in enumerate(scenarios)
    ]
    simulation = simulate(parts, strategy=strategy, space_target=space_target)
    worst = max(partition.space_amplification_end for partition in simulation.partitions)
    return _cost(simulation.drive, worst)


def _cost(simulation: Simulation, worst: float) -> Cost:
    return Cost(
        simulation.write_amplification,
        simulation.read_amplification,
        simulation.space_amplification,
        simulation.space_amplification_peak,
        simulation.rounds,
        simulation.appended_bytes,
        worst,
    )


def mixed(keys: int, duration: float) -> list[Scenario]:
    """Return sixteen partitions of one drive, large and small, fast and slow.

    `keys` is the number of keys of the average partition. While all of them run, `duration` records arrive
    per key.
    """
    kinds = ("zipf", "uniform", "hot-cold", "insert-only", "zipf", "ttl", "drift", "uniform")
    skews = (0.99, 0.0, 0.0, 0.0, 0.8, 0.0, 0.0, 0.0)
    scenarios = []
    for number in range(16):
        size = int(keys * (0.5, 1.0, 2.0, 0.5)[number % 4])
        rate = (4.0, 1.0, 0.25, 0.5, 0.05)[number % 5]
        updates = max(duration * keys * rate / size, 0.02)
        scenarios.append(
            Scenario(
                kinds[number % 8],
                size,
                updates,
                skews[number % 8],
                live_segments=25 * size / keys,
                rate=rate,
                seed=number,
                load_ms=keys,
            )
        )
    return scenarios


# ---------------------------------------------------------------- workloads


@workload("cost")
def cost(run: Run) -> Iterator[Measured]:
    """Measure bytes written by cleaning per byte appended, on real logs.

    Rivals: Kafka's cleaner class on the same batches, at its default ratio; strategy kafka; the simulator.
    """
    keys = max(run.records // 100, 2000)
    live_segments = min(50, keys // 200)  # at least two batches per segment
    for kind in ("uniform", "zipf", "hot-cold", "insert-only"):
        scenario = Scenario(kind, keys, live_segments=live_segments)
        theirs = in_kafka(run.scratch / "kafka", scenario)
        ours = _at(run, scenario, 1.5)
        yield _measured(f"{scenario.name}, target 1.5", ours, theirs, "Kafka's cleaner class")
        if kind != "insert-only":  # at the target with the same space as Kafka
            for measure, target in (
                ("mean", 1.5 * theirs.mean / ours.mean),
                ("peak", 1.5 * theirs.peak / ours.peak),
            ):
                same = _at(run, scenario, target)
                yield _measured(f"{scenario.name}, Kafka's {measure}", same, theirs, "Kafka's cleaner class")
        kafka_rule = on_real_logs(run.scratch / "logs", [scenario], "kafka")
        yield _measured(f"{scenario.name}, strategy kafka", kafka_rule, theirs, "Kafka's cleaner class")
    for kind in ("ttl", "deletes", "drift"):
        scenario = Scenario(kind, keys, live_segments=live_segments)
        ours = on_real_logs(run.scratch / "logs", [scenario], "generational")
        theirs = on_real_logs(run.scratch / "logs", [scenario], "kafka")
        yield _measured(f"{scenario.name}, target 1.5", ours, theirs, "strategy kafka")


@workload("cost-drive")
def cost_drive(run: Run) -> Iterator[Measured]:
    """Clean sixteen mixed partitions of one drive, with one target for all of them.

    Rival: strategy kafka.
    """
    scenarios = mixed(max(run.records // 250, 4000), 12)
    theirs = on_real_logs(run.scratch / "logs", scenarios, "kafka")
    for target in (1.25, 1.5):
        ours = on_real_logs(run.scratch / "logs", scenarios, "generational", space_target=target)
        yield _measured(f"16 partitions, target {target}", ours, theirs, "strategy kafka")


@workload("simulate")
def simulated(run: Run) -> Iterator[Measured]:
    """Simulate every kind of traffic at targets of 1.25 to 3, against a simulation of Kafka's own cleaner."""
    keys = max(run.records // 10, 1000)
    kinds = [Scenario(kind, keys) for kind in ("uniform", "zipf", "hot-cold", "drift", "insert-only")]
    kinds += [Scenario("zipf", keys, skew=0.8), Scenario("zipf", keys, skew=1.2)]
    kinds += [Scenario(kind, keys) for kind in ("ttl", "deletes")]
    for scenario in kinds:
        theirs = on_paper([scenario], "broker")
        for target in (1.25, 1.5, 2.0, 3.0):
            ours = on_paper(
                [scenario],
                "generational",
                space_target=target,
                min_cleanable_dirty_ratio=max(0.5, 1 - 0.9 / target),
            )
            yield _measured(f"{scenario.name}, target {target:g}", ours, theirs, "Kafka's rule", "simulate")


def _at(run: Run, scenario: Scenario, target: float) -> Cost:
    """Measure a real log, with a space limit above the target."""
    ceiling = max(0.5, 1 - 0.9 / target)
    return on_real_logs(
        run.scratch / "logs",
        [scenario],
        "generational",
        space_target=target,
        min_cleanable_dirty_ratio=ceiling,
    )


def _measured(case: str, ours: Cost, theirs: Cost, rival: str, name: str = "cost") -> Measured:
    """Return bytes written, of which fewer are better. All other figures are facts."""
    ratio = theirs.written / ours.written if ours.written else float("inf") if theirs.written else 1.0
    facts = {"ours": asdict(ours), "rival": asdict(theirs)}
    unit = f"bytes written per byte; {ours}"
    return Measured(name, case, unit, ours.written, theirs.written, f"{rival}: {theirs}", ratio, facts)
