"""`make bench`: run named workloads and print the ratio of each to its rival.

    python -m bench.run [--size tiny|small|full|N] [--only clean,scan] [--sets a-none] [--repetitions 3]
                        [--json FILE] [--list]

Data sets are written by Kafka's own code and kept in the user's cache; `--data` names another place. At full
size each set takes up to 1.4 GB. Scratch files are in the same place and are removed at the end.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path

from tests.support.jars import KafkaMissing, cache_directory

from bench.registry import SIZES, WORKLOADS, Measured, Run

#: Modules that hold workloads, in the order in which they are listed and run.
MODULES = (
    "bench.workloads",
    "bench.storage_workloads",
    "bench.key_workloads",
    "bench.cost_workloads",
    "bench.drive_workloads",
    "bench.bucket_workloads",
    "bench.lake_workloads",
    "bench.merge_workloads",
    "bench.server_workloads",
    "bench.bucket_server_workloads",
    "bench.spark_workloads",
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--size", default="small", help="tiny, small, full, or the records of data set a")
    parser.add_argument("--only", default="", help="names of workloads, with commas")
    parser.add_argument("--repetitions", type=int, default=3, help="warm runs of which the median counts")
    parser.add_argument("--sets", default="", help="only these data sets, as a-none,b-lz4")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--data", type=Path, default=cache_directory() / "bench")
    parser.add_argument("--list", action="store_true", help="names of the workloads, and what they measure")
    chosen = parser.parse_args(arguments)
    load()
    names = _words(chosen.only) or list(WORKLOADS)
    unknown = [name for name in names if name not in WORKLOADS]
    if unknown:
        print(f"unknown workload {unknown[0]!r}; known: {', '.join(WORKLOADS)}", file=sys.stderr)
        return 2
    if chosen.list:
        for name in names:
            print(f"{name:<12} {(WORKLOADS[name].__doc__ or '').splitlines()[0]}")
        return 0
    records = SIZES.get(chosen.size) or int(chosen.size)
    try:
        lines = measure(names, records, chosen.repetitions, chosen.data, _words(chosen.sets))
    except KafkaMissing as missing:
        print(f"the rival can't be run: {missing}", file=sys.stderr)
        return 7
    if chosen.json:
        chosen.json.write_text(json.dumps(report(lines, records, chosen.repetitions), indent=1) + "\n")
    return 0


def load() -> None:
    """Import the modules with workloads; skip, with a message, a module whose engine is not installed."""
    for module in MODULES:
        if importlib.util.find_spec(module) is None:
            continue
        try:
            importlib.import_module(module)
        except ImportError as error:
            print(f"{module} is left out: {error}", file=sys.stderr)


def measure(names: list[str], records: int, repetitions: int, data: Path, sets: list[str]) -> list[Measured]:
    """Run the workloads and print each line of the table when it is measured."""
    data.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="scratch-", dir=data))
    print(f"{records:,} records, median of {repetitions}, {platform.processor() or platform.machine()}")
    print(f"{'workload':<9} {'what':<38} {'ours':>8} {'rival':>8}  {'ratio':>6}  unit; rival")
    measurements: list[Measured] = []
    try:
        for name in names:
            for line in WORKLOADS[name](Run(records, repetitions, scratch, data, tuple(sets))):
                measurements.append(line)
                print(
                    f"{line.workload:<9} {line.what:<38} {line.ours:>8.3f} {line.rival:>8.3f}  "
                    f"{line.ratio:>5.2f}x  {line.unit}; {line.rival_name}",
                    flush=True,
                )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return measurements


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def report(lines: list[Measured], records: int, repetitions: int) -> dict[str, object]:
    return {
        "records": records,
        "repetitions": repetitions,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "results": [line.to_dict() for line in lines],
    }


if __name__ == "__main__":
    sys.exit(main())
