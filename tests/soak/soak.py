"""Run a stricter version of Kafka's compaction test: N records, duplicates, deletes, and cleanings.

    python -m tests.soak.soak --records 10000000

A writer appends and cleans, with small key maps, by call or in the background. It is killed at random
moments, many of them inside a cleaning, or stops; then the next writer continues. A slow sink reads all the
time, under a lease. The test compares

    newest values   of the log, after each stop, and of the sink at the end, with the written values
    offsets         every acknowledged record is below the log end, and the log end was attempted
    order           offsets rise, for every reader
    phantoms        key and value of each record are those written at its offset
    tombstone age   no tombstone is removed early, no deleted key returns, at the end no tombstone is left
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lastword.config.tables import STRATEGIES
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.view import PartitionView
from tests.fakes.hasty import HastyFiles
from tests.soak.processes import TOPIC, Plan, digest, follow, opened, write_on
from tests.soak.workload import Workload, key_of
from tests.support.child import Child

FULL_CHECKS = 25  # in one soak, spread over the stops of writers


@dataclass
class Oracle:
    """The ends of the attempted and of the acknowledged appends, and the newest offset of each key number."""

    plan: Plan
    newest: NDArray[np.int64] = field(init=False)
    deleted: NDArray[np.bool_] = field(init=False)
    known: int = 0  # end of the offsets in `newest`
    acked: int = 0
    begun: int = 0
    began_ms: list[tuple[int, int]] = field(default_factory=list)  # (first offset, time before its append)
    kills: int = 0
    in_rounds: int = 0
    rounds: int = 0
    stops: int = 0

    def __post_init__(self) -> None:
        keys = self.plan.workload.keys
        self.newest, self.deleted = np.full(keys, -1, np.int64), np.zeros(keys, np.bool_)

    def hear(self, line: str) -> None:
        event, *numbers = line.split()
        if event == "open":
            end = int(numbers[0])
            assert self.acked <= end <= self.begun, f"{end} is not in {self.acked}..{self.begun}"
            self.acked = self.begun = end
        elif event == "try":
            first, self.begun = map(int, numbers)
            assert first == self.acked, f"an append at {first}, acknowledged was {self.acked}"
            self.began_ms.append((first, now_ms()))
        elif event == "ack":
            self.acked = int(numbers[0])
        elif event == "round":
            self.rounds += 1

    def take(self, end: int) -> None:
        """Update the newest offset of each key with the records up to `end`, which are in the log."""
        for first in range(self.known, end, 1 << 20):
            last = min(first + (1 << 20), end)
            numbers, deletes = self.plan.workload.numbers(first, last)
            self.newest[numbers] = np.arange(first, last)
            self.deleted[numbers] = deletes
        self.known = max(self.known, end)

    def age_ms(self, offset: int, at_ms: int) -> int:
        """Return an upper bound of the age of a record."""
        place = bisect_right(self.began_ms, (offset, 1 << 62)) - 1
        return at_ms - self.began_ms[max(place, 0)][1]

    def live(self) -> dict[bytes, int]:
        alive = np.flatnonzero((self.newest >= 0) & ~self.deleted)
        return {key_of(n): o for n, o in zip(alive.tolist(), self.newest[alive].tolist(), strict=True)}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def log_end(root: str) -> int:
    return PartitionView.load(DirectorySegments(HastyFiles(), f"{root}/{TOPIC}-0")).log_end


def check(root: str, oracle: Oracle) -> NDArray[np.int64]:
    """Read the whole log and compare it with the oracle; return its offsets."""
    end = log_end(root)
    assert oracle.acked <= end <= oracle.begun, f"the log ends at {end}: {oracle.acked}..{oracle.begun}"
    oracle.take(end)
    read_offsets: list[int] = []
    last = -1
    with opened(root, oracle.plan, "r") as logs:
        for record in logs.topic(TOPIC).read():
            assert record.offset > last, f"offset {record.offset} follows {last}"
            last = record.offset
            read_offsets.append(last)
            problem = oracle.plan.workload.wrong([last], [record.key], [record.value])
            assert problem is None, problem
    at_ms = now_ms()
    offsets = np.array(read_offsets, np.int64)
    there = np.isin(oracle.newest, offsets)
    lost = np.flatnonzero((oracle.newest >= 0) & ~oracle.deleted & ~there)
    assert not lost.size, f"lost: the newest of {key_of(int(lost[0]))!r} at {oracle.newest[lost[0]]}"
    gone = np.flatnonzero(oracle.deleted & (oracle.newest >= 0) & ~there)
    if gone.size:
        least = int(oracle.newest[gone].max())
        age_ms, retention_ms = oracle.age_ms(least, at_ms), oracle.plan.delete_retention_ms
        assert age_ms >= retention_ms, f"the tombstone at {least} went after {age_ms} of {retention_ms} ms"
        numbers = key_numbers(oracle.plan.workload, offsets)
        back = np.isin(numbers, gone)
        assert not back.any(), f"offset {offsets[back][0]} is back, its key was deleted"
    return offsets


def key_numbers(workload: Workload, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    parts: list[NDArray[np.int64]] = []
    for first in range(0, workload.records, 1 << 20):
        chosen = offsets[(offsets >= first) & (offsets < first + (1 << 20))] - first
        if chosen.size:
            numbers, _ = workload.numbers(first, min(first + (1 << 20), workload.records))
            parts.append(numbers[chosen])
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def run_writer(root: str, oracle: Oracle, seed: int, rng: random.Random) -> bool:
    """Run one writer until it ends or is killed; return whether it wrote the last record."""
    child = Child.fork(write_on, root, oracle.plan, seed)
    mercy = rng.random() < 0.3
    in_round = rng.random() < 0.6
    patience = rng.expovariate(1 / oracle.plan.patience_seconds)
    deadline = time.monotonic() + (3600 if mercy else 30 if in_round else patience)
    cleaning = False
    said: Iterable[str] = child.lines(max(deadline - time.monotonic(), 0))
    for line in said:
        oracle.hear(line)
        cleaning = line == "round"
        if cleaning and in_round and not mercy and rng.random() < 0.5:
            for more in child.lines(rng.expovariate(1 / 0.05)):
                oracle.hear(more)
                cleaning = more == "round"
            break
    if child.ended:
        child.rest()
        oracle.stops += 1
    else:
        for line in child.kill():
            oracle.hear(line)
            cleaning = line == "round"
        oracle.kills += 1
        oracle.in_rounds += cleaning
    return oracle.acked >= oracle.plan.workload.records


def soak(root: str, plan: Plan, seed: int, say: bool = False) -> Oracle:
    """Run a soak below `root`, with all comparisons; return the oracle."""
    from lastword.kernels.warming import warm

    warm()
    rng = random.Random(seed)
    oracle = Oracle(plan)
    started = checked = time.monotonic()
    sink: Child | None = None
    number = 0
    done = False
    try:
        while not done:
            number += 1
            done = run_writer(root, oracle, seed * 100_000 + number, rng)
            if sink is None and Path(root, f"{TOPIC}-0").exists() and oracle.acked:
                sink = Child.fork(follow, root, plan, seed)
            if done or oracle.acked - oracle.known >= plan.workload.records // FULL_CHECKS:
                check(root, oracle)
            if say and time.monotonic() - checked > 10:
                checked = time.monotonic()
                print(f"{oracle.acked} records, {summarize(oracle)}; {checked - started:.0f} s", flush=True)
        assert sink is not None
        heard = sink.rest()
        sink = None
    finally:
        if sink is not None:
            sink.kill()
    expected = f"state {digest(oracle.live())}"
    assert heard[-1] == expected, f"the sink ended with {heard[-1]!r}, written was {expected!r}"
    finish(root, oracle)
    return oracle


def finish(root: str, oracle: Oracle) -> None:
    """Clean after the last writer, until all superseded records and all expired tombstones are removed."""
    plan = oracle.plan
    for _ in range(5):
        with opened(root, plan, "a", log_cleaner_enable=False) as logs:
            logs.clean(TOPIC)
        offsets = check(root, oracle)
        numbers = key_numbers(plan.workload, offsets)
        assert np.unique(numbers).size == numbers.size, "superseded records are left"
        if offsets.size == np.count_nonzero((oracle.newest >= 0) & ~oracle.deleted):
            return
        time.sleep(plan.delete_retention_ms / 1000 + 0.01)
    left = np.flatnonzero(np.isin(offsets, oracle.newest[oracle.deleted]))
    raise AssertionError(f"tombstones at {offsets[left][:5]} are left after five rounds, each in its time")


def summarize(oracle: Oracle) -> str:
    return (
        f"{oracle.kills} kills, {oracle.in_rounds} of them inside one of {oracle.rounds} rounds by hand, "
        f"{oracle.stops} stops"
    )


def plan_of(records: int, strategy: str, seed: int) -> Plan:
    keys = max(records // 20, 10)
    large = keys >= 100_000
    return Plan(
        Workload(records, keys, seed),
        strategy,
        chunk=max(records // 400, 100),
        segment_bytes=(4 << 20) if large else 40_000,
        delete_retention_ms=3000 if large else 300,
        map_bytes=(4 << 20, 16 << 20, 128 << 20) if large else (64 << 10, 1 << 20),
        patience_seconds=1.5 if large else 0.1,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--strategy", choices=STRATEGIES, action="append")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--dir", help="where the logs lie meanwhile; by default in memory, if there is room")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    for strategy in given.strategy or STRATEGIES:
        started = time.monotonic()
        place = given.dir or ("/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
        root = tempfile.mkdtemp(prefix="lastword-soak-", dir=place)
        try:
            total = soak(root, plan_of(given.records, strategy, given.seed), given.seed, say=True)
        finally:
            shutil.rmtree(root, ignore_errors=True)
        seconds = time.monotonic() - started
        print(
            f"{strategy}: {total.acked} records over {total.plan.workload.keys} keys, {summarize(total)}: "
            f"newest values, offsets, order, contents and tombstones of log and sink are right; "
            f"{seconds:.0f} s",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
