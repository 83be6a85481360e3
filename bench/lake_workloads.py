"""Measure exports of a topic to a Delta table beside deltalake's merge of the same changes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from tests.support.delta import DELTA, SPARK, connect, delta_server

import lastword
from bench.merge_workloads import ROUNDS, Cost, RemoteUsage, s3_server, value_rows
from bench.metered_store import Usage
from bench.registry import Measured, Run, timed, workload

DELETED = 20
"""One of this many changes is a deletion."""
SEEN = ["key", "value", "partition", "offset", "timestamp"]


@dataclass(frozen=True)
class Places:
    """The log, and two tables: paths or URLs, with the options of both libraries and their server's usage."""

    log: Path
    ours: str
    theirs: str
    options: dict[str, str] | None = None
    delta_options: dict[str, str] | None = None
    usage: RemoteUsage | None = None


@workload("lake")
def lake(run: Run) -> Iterator[Measured]:
    """Bring a table to the newest values, six times, after a tenth of the keys was changed or deleted.

    Rival: deltalake's merge of the changes, read from the same log. Both tables are in a directory, and have
    the same rows after each round. The log is cleaned after each round when it is due.
    """
    places = Places(run.scratch / "lake", str(run.scratch / "ours"), str(run.scratch / "theirs"))
    yield from _lines("lake", _compared(run, places))
    _read(places.theirs)  # the first read starts the threads of polars
    reads = {place: timed(partial(_read, place)) for place in (places.ours, places.theirs)}
    mine, rival = reads[places.ours], reads[places.theirs]
    yield Measured(
        "lake",
        "read with polars",
        "CPU s",
        mine.cpu,
        rival.cpu,
        "merged table",
        rival.cpu / max(mine.cpu, 1e-6),
    )


@workload("lake-bucket")
def lake_bucket(run: Run) -> Iterator[Measured]:
    """As `lake`, with both tables on one S3 server (moto, in a process of its own)."""
    with s3_server() as usage:
        root, options = usage.server.root, usage.server.options
        delta_options = {f"aws_{name}": value for name, value in options.items()}
        delta_options |= {"aws_allow_http": "true", "aws_conditional_put": "etag"}
        log = run.scratch / "lake-bucket"
        places = Places(log, f"{root}/ours", f"{root}/theirs", options, delta_options, usage)
        yield from _lines("lake-bucket", _compared(run, places))


@workload("lake-spark")
def lake_spark(run: Run) -> Iterator[Measured]:
    """As `lake`. Rival: MERGE by Spark with Delta on two cores, of the changes in a Parquet file.

    CPU seconds of Java's process and of this one; the file is written before the clock starts.
    """
    places = Places(run.scratch / "lake-spark", str(run.scratch / "ours"), str(run.scratch / "theirs"))
    with delta_server(run.scratch / "spark", for_tests=False) as address, connect(address) as session:

        def merge(changes: str, first: bool) -> None:
            rows = f"parquet.`{changes}`"
            if first:
                session.sql(f"SELECT * FROM {rows}").write.format("delta").save(places.theirs)
                return
            session.sql(
                f"MERGE INTO delta.`{places.theirs}` t USING (SELECT * FROM {rows}) s "
                "ON t.key = s.key AND t.partition = s.partition "
                "WHEN MATCHED AND s.value IS NULL THEN DELETE WHEN MATCHED THEN UPDATE SET * "
                "WHEN NOT MATCHED AND s.value IS NOT NULL THEN INSERT *"
            ).collect()

        def prepare(topic: Any, start: dict[int, int]) -> Callable[[], None]:
            path = Path(places.theirs + ".parquet")
            pq.write_table(_changes(topic, start), path)
            return partial(merge, str(path), not Path(places.theirs).exists())

        yield from _lines("lake-spark", _compared(run, places, prepare), f"Spark {SPARK}, Delta {DELTA}")


def _java_cpu() -> float:
    """Return the CPU seconds of Java's processes that this one has started."""
    spent = 0.0
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, _, rest = file.read_text().rpartition(")")
            fields = rest.split()
            if name.endswith("(java") and int(fields[1]) == os.getpid():
                spent += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return spent


def _compared(
    run: Run, places: Places, prepare: Callable[[Any, dict[int, int]], Callable[[], Any]] | None = None
) -> dict[str, list[Cost]]:
    """Run the rounds; return the costs of each side.

    Args:
        run: The run.
        places: The log and both tables.
        prepare: Returns the rival's call, of the changes from an offset on. None: deltalake's merge.
    """
    keys, rng = run.records, np.random.default_rng(1)
    costs: dict[str, list[Cost]] = {"export": [], "merge": []}
    with lastword.open(places.log, "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic(
            "t",
            cleanup_policy="compact",
            compression_type="lz4",
            key_serializer="str",
            value_serializer="str",
        )
        topic.extend(value_rows(np.arange(keys), rng))
        position = topic.read().position
        export = partial(topic.export, f"delta:{places.ours}", storage_options=places.options)
        for number in range(ROUNDS + 1):
            steps: list[tuple[str, str, Callable[[], Any]]] = [
                ("export", places.ours, export),
                (
                    "merge",
                    places.theirs,
                    prepare(topic, position) if prepare else partial(_merge, topic, position, places),
                ),
            ]
            for name, place, work in steps if number % 2 else reversed(steps):
                costs[name].append(_cost(work, place, places.usage))
                spent = costs[name][-1]
                print(
                    f"round {number} {name:<7} {spent.cpu:>8.2f} CPU s {spent.wall:>8.2f} s "
                    f"{spent.usage.sent / 1e6:>8.1f} MB written {spent.requests:>6} requests",
                    flush=True,
                )
            if number == 0:
                costs = {"export": [], "merge": []}  # the first load is not a round
            position = {partition: end for partition, (_, end) in topic.bounds().items()}
            rows = value_rows(rng.choice(keys, keys // 10, replace=False), rng)
            topic.extend(_with_deletions(rows, rng))
            logs.clean(due=True)
        export()
        prepare(topic, position)() if prepare else _merge(topic, position, places)
    assert _content(places.ours, places).equals(_content(places.theirs, places))
    return costs


def _cost(work: Callable[[], Any], place: str, server: RemoteUsage | None) -> Cost:
    """Measure a step. In a directory, what was written are the new files."""
    before = _sizes(place)
    if server is not None:
        server.take()
    java = _java_cpu()
    times = timed(work)
    times = replace(times, cpu=times.cpu + _java_cpu() - java)
    written = sum(size for file, size in _sizes(place).items() if file not in before)
    return Cost(times.cpu, times.wall, Usage(0, 0, written, 0) if server is None else server.take())


def _lines(
    name: str, costs: dict[str, list[Cost]], rival_name: str = "deltalake's merge"
) -> Iterator[Measured]:
    amounts: dict[str, Callable[[Cost], float]] = {
        "CPU s": lambda cost: cost.cpu,
        "MB written": lambda cost: cost.usage.sent / 1e6,
        "requests": lambda cost: cost.requests,
    }
    wall = {f"{side}_wall_seconds": sum(cost.wall for cost in costs[side]) for side in costs}
    for unit, amount in amounts.items():
        mine, rival = (sum(map(amount, costs[side])) for side in ("export", "merge"))
        if rival:
            yield Measured(
                name,
                f"{ROUNDS} exports",
                unit,
                mine,
                rival,
                rival_name,
                rival / max(mine, 1e-6),
                wall,
            )


def _with_deletions(rows: pa.Table, rng: np.random.Generator) -> pa.Table:
    deleted = pa.array(rng.integers(0, DELETED, rows.num_rows) == 0)
    values = pa.compute.if_else(deleted, pa.scalar(None, pa.string()), rows.column("value"))
    return rows.set_column(1, "value", values)


def _merge(topic: Any, start: dict[int, int], places: Places) -> None:
    """Merge the changes from an offset on; the first call writes the table."""
    place, options = places.theirs, places.delta_options
    changes = _changes(topic, start)
    if not DeltaTable.is_deltatable(place, storage_options=options):
        write_deltalake(place, changes, storage_options=options)
        return
    on = "t.key = s.key AND t.partition = s.partition"
    table = DeltaTable(place, storage_options=options)
    merger = table.merge(changes, on, source_alias="s", target_alias="t")
    merger = merger.when_matched_delete("s.value IS NULL").when_matched_update_all()
    merger.when_not_matched_insert_all("s.value IS NOT NULL").execute()


def _changes(topic: Any, start: dict[int, int]) -> pa.Table:
    return topic.read(start, view="changes").arrow().read_all().select(SEEN)


def _sizes(place: str) -> dict[str, int]:
    return {str(file): file.stat().st_size for file in Path(place).rglob("*") if file.is_file()}


def _read(place: str) -> int:
    return int(polars.scan_delta(place).collect().height)


def _content(place: str, places: Places) -> polars.DataFrame:
    table = DeltaTable(place, storage_options=places.delta_options)
    query = QueryBuilder().register("t", table).execute('select key, value, "offset" from t order by key')
    return polars.DataFrame(pa.table(query))
