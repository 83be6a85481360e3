"""The memory of a task does not grow with the log: one process reads a log many times its bounds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import lastword
from tests.support.exhaustive import stride

pytestmark = pytest.mark.slow

MIB = 1 << 20

PROGRAM = """
import json, sys
from lastword.kernels.warming import warm
warm()
import pyarrow
from pathlib import Path
from lastword.spark import job as jobs
from lastword.spark import sharded
from lastword.cleaner.engine import partition, sinks
from lastword.cleaner.engine.partition import prepare
from lastword.cleaner.engine.sinks import Publisher
from lastword.cleaner.policy.plan import CleanRequest
from lastword.clock import SystemClock
from lastword.files import DEFAULT
from lastword.logdir.log_dir import LogDirectory
from lastword.spark.options import parse_read
from lastword.spark.source import LogReader
from lastword.spark.schema import full_schema

root = sys.argv[1]

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) >> 10 for line in lines if line.startswith("VmHWM"))

Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here

def read(**options):
    reader = LogReader(parse_read({"path": root, "subscribe": "t", **options}), full_schema(False))
    return sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task))

report = {"start": peak()}
report["rows"] = read()
report["read"] = peak()
with LogDirectory.open(root, "a") as directory:
    log, config = directory.log("t", 0), directory.topic_config("t")
    plan = prepare(log, config, CleanRequest(0, map_bytes=8 << 20))
    job = jobs.start(DEFAULT, log.directory, log.segments, plan)
    report["shards"] = job.shards
    for n in jobs.units_left(DEFAULT, job):
        sharded.extract(DEFAULT, job.directory, n)
    report["extract"] = peak()
    for n in jobs.shards_left(DEFAULT, job):
        sharded.resolve_shard(DEFAULT, job.directory, n)
    report["resolve"] = peak()
    for n in jobs.marks_left(DEFAULT, job):
        sharded.mark_unit(DEFAULT, job.directory, n)
    report["mark"] = peak()
    sharded.merge(DEFAULT, job)
    for n in jobs.groups_left(DEFAULT, job):
        sharded.rewrite_group(DEFAULT, job.directory, n, plan.now_ms, SystemClock())
    report["rewrite"] = peak()
    built = sharded.prepared(DEFAULT, job, 0.0)
    round_ = Publisher(log, built.plan, lambda offset: None).publish(built)
    jobs.remove(DEFAULT, job.directory)
    report["kept"] = round_.records_kept
report["latest_rows"] = read(view="newest")
report["newest"] = peak()
print(json.dumps(report))
"""


def test_a_large_log_in_little_memory(tmp_path: Path) -> None:
    import pyarrow as pa

    each, rounds, keys = 200_000, 10 // stride(2), 300_000 // stride(2)
    with lastword.open(tmp_path, "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact", segment_bytes="32MiB")
        for first in range(0, each * rounds, each):
            numbers = range(first, first + each)
            topic.extend(
                pa.table(
                    {
                        "key": pa.array([b"key-%020d" % (n * 7919 % keys) for n in numbers], pa.binary()),
                        "value": pa.array([b"v" * 100] * each, pa.binary()),
                    }
                )
            )
    size = sum(path.stat().st_size for path in (tmp_path / "t-0").glob("*.log"))
    assert size > 25 * MIB * rounds
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["rows"], report["kept"], report["latest_rows"]) == (each * rounds, keys, keys)
    grown = {
        step: report[step] - report["start"]
        for step in ("read", "extract", "resolve", "mark", "rewrite", "newest")
    }
    print(grown)
    assert grown["read"] < 64, grown
    assert max(grown.values()) < 128, grown


@pytest.mark.spark
@pytest.mark.beside
@pytest.mark.usefixtures("short_lived_jvms")
def test_executors_of_a_gibibyte_each_step_checked() -> None:
    """`make memory-spark` at its smallest size: 100,000 records, each read, cleaned and restored."""
    command = [sys.executable, "-m", "bench.spark_memory", "--size", "16MiB"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    steps = [line.rsplit(maxsplit=4) for line in done.stdout.splitlines()[2:]]
    assert [name for name, *_ in steps][-1] == "restore into Parquet" and len(steps) == 6
    assert max(int(own) for *_, own in steps) < 512, done.stdout
