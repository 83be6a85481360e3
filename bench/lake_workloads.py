"""Measure exports of a topic to a Delta table beside deltalake's merge of the same changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

import lastword
from bench.merge_workloads import ROUNDS, value_rows
from bench.registry import Measured, Run, timed, workload

DELETED = 20
"""One of this many changes is a deletion."""
SEEN = ["key", "value", "partition", "offset", "timestamp"]


@workload("lake")
def lake(run: Run) -> Iterator[Measured]:
    """Bring a table to the newest values, six times, after a tenth of the keys was changed or deleted.

    Rival: deltalake's merge of the changes, read from the same log. Both tables are in a directory, and have
    the same rows after each round. The log is cleaned after each round when it is due.
    """
    keys, rng = run.records, np.random.default_rng(1)
    ours, theirs = run.scratch / "ours", run.scratch / "theirs"
    costs: dict[str, list[tuple[float, float, int]]] = {"export": [], "merge": []}
    with lastword.open(run.scratch / "log", "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic(
            "t",
            cleanup_policy="compact",
            compression_type="lz4",
            key_serializer="str",
            value_serializer="str",
        )
        topic.extend(value_rows(np.arange(keys), rng))
        position = topic.read().position
        for number in range(ROUNDS + 1):
            steps: list[tuple[str, Path, Callable[[], Any]]] = [
                ("export", ours, partial(topic.export, f"delta:{ours}")),
                ("merge", theirs, partial(_merge, topic, position, theirs)),
            ]
            for name, place, work in steps if number % 2 else reversed(steps):
                before = _written(place)
                times = timed(work)
                written = sum(size for file, size in _written(place).items() if file not in before)
                costs[name].append((times.cpu, times.wall, written))
                print(
                    f"round {number} {name:<7} {times.cpu:>8.2f} CPU s {times.wall:>8.2f} s "
                    f"{written / 1e6:>8.1f} MB written",
                    flush=True,
                )
            if number == 0:
                costs = {"export": [], "merge": []}  # the first load is not a round
            position = {partition: end for partition, (_, end) in topic.bounds().items()}
            rows = value_rows(rng.choice(keys, keys // 10, replace=False), rng)
            topic.extend(_with_deletions(rows, rng))
            logs.clean(due=True)
        topic.export(f"delta:{ours}")
        _merge(topic, position, theirs)
    assert _content(ours).equals(_content(theirs))
    yield from _lines(costs)
    reads = {place: timed(partial(_read, place)) for place in (ours, theirs)}
    mine, rival = reads[ours], reads[theirs]
    yield Measured(
        "lake",
        "read with polars",
        "CPU s",
        mine.cpu,
        rival.cpu,
        "merged table",
        rival.cpu / max(mine.cpu, 1e-6),
    )


def _lines(costs: dict[str, list[tuple[float, float, int]]]) -> Iterator[Measured]:
    for place, unit, divisor in ((0, "CPU s", 1.0), (2, "MB written", 1e6)):
        mine, rival = (sum(cost[place] for cost in costs[name]) / divisor for name in ("export", "merge"))
        wall = {f"{name}_wall_seconds": sum(cost[1] for cost in costs[name]) for name in costs}
        yield Measured(
            "lake", f"{ROUNDS} exports", unit, mine, rival, "deltalake's merge", rival / max(mine, 1e-6), wall
        )


def _with_deletions(rows: pa.Table, rng: np.random.Generator) -> pa.Table:
    deleted = pa.array(rng.integers(0, DELETED, rows.num_rows) == 0)
    values = pa.compute.if_else(deleted, pa.scalar(None, pa.string()), rows.column("value"))
    return rows.set_column(1, "value", values)


def _merge(topic: Any, start: dict[int, int], place: Path) -> None:
    """Merge the changes from an offset on; the first call writes the table."""
    if not place.exists():
        rows = topic.read(view="newest").arrow().read_all().select(SEEN)
        write_deltalake(str(place), rows)
        return
    changes = topic.read(start, view="changes").arrow().read_all().select(SEEN)
    on = "t.key = s.key AND t.partition = s.partition"
    merger = DeltaTable(str(place)).merge(changes, on, source_alias="s", target_alias="t")
    merger = merger.when_matched_delete("s.value IS NULL").when_matched_update_all()
    merger.when_not_matched_insert_all("s.value IS NOT NULL").execute()


def _written(place: Path) -> dict[str, int]:
    return {str(file): file.stat().st_size for file in place.rglob("*") if file.is_file()}


def _read(place: Path) -> int:
    return polars.scan_delta(str(place)).collect().height


def _content(place: Path) -> polars.DataFrame:
    return polars.scan_delta(str(place)).select("key", "value", "offset").sort("key").collect()
