"""Clean two drives with budgets of 20 and 60 MB/s in the background.

One measurement is in simulated time; its rival has one throttle for both drives and Kafka's order of choice.
The other one is real, on two directories of this machine that stand for two drives.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fakes.drives import MB, WAYS, WINDOW_SECONDS, Outcome, Usage, simulate

import lastword
from bench.registry import Measured, Run, workload
from lastword.files import OsFiles

SHARE_BYTES_PER_SECOND = {"slow": 20 * MB, "fast": 60 * MB}
SAMPLE_SECONDS = 0.005


@workload("drives")
def drives(run: Run) -> Iterator[Measured]:
    """Report the shares of budgets of 20 and 60 MB/s in the two seconds of least and of most use.

    Rivals, in simulated time: one throttle of 80 MB/s, under which the dirtiest partition is next, as in
    Kafka. The last lines are measured: real cleanings of two directories.
    """
    outcomes_by_way = {way: simulate(way) for way in WAYS}
    print(f"\n{'':<16} {'drive':<6} {'used':>6} {'least 2 s':>10} {'most 2 s':>10}  {'clean after':>11}")
    for way, outcomes in outcomes_by_way.items():
        for outcome in outcomes:
            print(_row(way, outcome))
    real = list(_measured(run.scratch / "drives"))
    for outcome in real:
        print(_row("measured", outcome))
    print()
    for way in WAYS[1:]:
        for ours, rival in zip(outcomes_by_way[WAYS[0]], outcomes_by_way[way], strict=True):
            yield _line(f"{ours.drive}: least used, of its budget", ours.least_ratio, rival.least_ratio, way)
            yield _line(f"{ours.drive}: most used, of its budget", ours.peak_ratio, rival.peak_ratio, way)
    for outcome in real:
        rate = SHARE_BYTES_PER_SECOND[outcome.drive]
        facts = {
            "least_ratio": outcome.least_ratio,
            "peak_ratio": outcome.peak_ratio,
            "seconds": outcome.seconds,
        }
        used = outcome.used_ratio
        yield Measured(
            "drives", f"{outcome.drive}: measured", "of its budget", used, 1.0, f"{rate} B/s", used, facts
        )


def _row(way: str, outcome: Outcome) -> str:
    least, peak = f"{outcome.least_ratio:.1%}", f"{outcome.peak_ratio:.1%}"
    used, seconds = f"{outcome.used_ratio:.1%}", f"{outcome.seconds:.1f}"
    return f"{way:<16} {outcome.drive:<6} {used:>6} {least:>10} {peak:>10}  {seconds:>9} s"


def _line(case: str, ours: float, rival: float, way: str) -> Measured:
    """Return a line whose best figure is 1."""
    ratio = abs(1 - rival) / max(abs(1 - ours), 0.001)
    return Measured("drives", case, "share; distance from 1", ours, rival, way, ratio)


class _TwoDevices(OsFiles):
    def device(self, path: Any) -> int:
        return 1 if "slow" in Path(path).parts else 2


def _measured(directory: Path) -> Iterator[Outcome]:
    paths = {name: directory / name for name in SHARE_BYTES_PER_SECOND}
    budgets = {str(paths[name]): rate for name, rate in SHARE_BYTES_PER_SECOND.items()}
    settings: dict[str, Any] = {"log_cleaner_threads": 2, "drives": budgets, "lastword_strategy": "kafka"}
    usage = {name: Usage() for name in paths}
    _warm(directory / "warm")
    with lastword.open(
        [str(path) for path in paths.values()], "a", files=_TwoDevices(), log_cleaner_enable=False, **settings
    ) as logs:
        topic = logs.create_topic("data", 6, cleanup_policy="compact", segment_bytes="4MiB")
        for number in range(topic.partitions):
            count = SHARE_BYTES_PER_SECOND[Path(logs.dirs.log_dir("data", number).path).name] // 200
            pairs = [(b"%d" % (i % (count // 5)), b"." * 200) for i in range(count)]
            topic.extend(pairs, partition=number)
        before = dict.fromkeys(paths, 0)
        logs.cleaner.background.run_for(None, 60_000, lambda done: None)
        began = time.monotonic()
        while len(logs.cleaner.history()) < 6:
            time.sleep(SAMPLE_SECONDS)
            for name, path in paths.items():
                used = logs.dirs.drives.budget(str(path)).used_bytes
                if used > before[name]:
                    usage[name].events.append((time.monotonic() - began, used - before[name]))
                    before[name] = used
    for name, drive_usage in usage.items():
        begin, end = drive_usage.events[0][0], drive_usage.events[-1][0]
        window = SHARE_BYTES_PER_SECOND[name] * WINDOW_SECONDS
        shifted = Usage([(at - begin, size) for at, size in drive_usage.events])
        used_ratio = (
            sum(size for _, size in drive_usage.events) / (end - begin) / SHARE_BYTES_PER_SECOND[name]
        )
        least = shifted.least_in_a_window(end - begin) / window
        yield Outcome(name, used_ratio, least, shifted.most_in_a_window() / window, end)


def _warm(directory: Path) -> None:
    """Compile and load everything that is needed once."""
    with lastword.open(directory, "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic("warm", cleanup_policy="compact", lastword_strategy="kafka")
        topic.extend([(b"k%d" % (i % 10), b"." * 100) for i in range(1000)])
        logs.clean("warm")
