"""Read, clean and restore a log larger than the memory of its tasks, with executors of 1 GiB.

    python -m bench.spark_memory [--size 4GiB]

4 GiB are 32 million records, five of each key. There are two separate executors (`local-cluster[2,1,1024]`),
each with a heap of 1 GiB and one Python worker at a time. Every step is checked: each record was read, and
the newest value of each key, which contains its number, was returned. The program prints for each step its
time and the peak memory of any executor and any worker: all resident memory, and the worker's own part
without pages of files, which the system may reclaim.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lastword.parse import parse_bytes

ROWS = 100_000
VERSIONS = 5
SCATTER = 7919
"""Coprime to the number K of keys, so any K consecutive records have each key once."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="spark_memory", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--size", default="4GiB", help="of the log")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.inside:
        measure(chosen.inside)
        return
    from tests.spark.clusters import environment, farm

    with tempfile.TemporaryDirectory(prefix="lastword-memory-") as directory:
        home = Path(directory)
        print(
            f"a log of {fill(home / 'data', parse_bytes(chosen.size)):,} records, {chosen.size}", flush=True
        )
        env = environment(home, SPARK_HOME=str(farm(home)))
        command = [sys.executable, "-m", "bench.spark_memory", "--inside", str(home / "data")]
        sys.exit(subprocess.run(command, env=env, stderr=subprocess.DEVNULL).returncode)


def fill(root: Path, size_bytes: int) -> int:
    """Write one partition of about this many bytes, with each key `VERSIONS` times."""
    import pyarrow as pa
    import pyarrow.compute as pc

    import lastword

    records = max(size_bytes // 134 // ROWS, 1) * ROWS
    keys = records // VERSIONS
    assert math.gcd(SCATTER, keys) == 1
    with lastword.open(root, "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact", segment_bytes="128MiB")
        for first in range(0, records, ROWS):
            numbers = pa.array(range(first, first + ROWS))
            of_key = pa.array([n * SCATTER % keys for n in range(first, first + ROWS)])
            keyed = pc.binary_join_element_wise("key-", digits(of_key), "").cast(pa.binary())
            noted = pc.binary_join_element_wise('{"number":"', digits(numbers), "x" * 66 + '"}', "")
            topic.extend(pa.table({"key": keyed, "value": noted.cast(pa.binary())}))
    return records


def digits(numbers: Any) -> Any:
    """Return texts of 20 digits each."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.utf8_lpad(numbers.cast(pa.string()), 20, "0")


def measure(root: Path) -> None:
    import lastword.spark

    conf = {"spark.executor.memory": "1g", "spark.driver.memory": "1g", "spark.ui.enabled": "false"}
    spark = lastword.spark.session("local-cluster[2,1,1024]", **conf)
    spark.sparkContext.setLogLevel("OFF")

    def load(**options: str) -> Any:
        return spark.read.format("lastword").options(subscribe="t", **options).load(str(root))

    def noop(frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    records = load().count()
    print(f"{'step':<34} {'seconds':>8} {'executor MiB':>13} {'worker MiB':>11} {'its own':>8}", flush=True)
    step("read, every column", lambda: noop(load()))
    step("read, each record checked", lambda: read_whole(load(), records))
    step("restore from it as written", lambda: newest(load(view="newest"), records))
    step("clean, divided", lambda: cleaned(spark, root))
    step("restore from it cleaned", lambda: newest(load(view="newest"), records))
    step("restore into Parquet", lambda: restored(spark, root, records))
    spark.stop()


def read_whole(frame: Any, records: int) -> None:
    """Check that every offset was read once, with its own value."""
    from pyspark.sql import functions as F

    (row,) = frame.agg(F.count("*"), F.sum("offset"), F.min("offset"), F.max("offset"), wrong()).collect()
    assert tuple(row) == (records, records * (records - 1) // 2, 0, records - 1, 0), row


def newest(frame: Any, records: int) -> None:
    """Check that every key was read once: the newest records are the last ones."""
    from pyspark.sql import functions as F

    keys = records // VERSIONS
    (row,) = frame.agg(F.count("*"), F.sum("offset"), F.min("offset"), F.max("offset"), wrong()).collect()
    first = records - keys
    assert tuple(row) == (keys, (first + records - 1) * keys // 2, first, records - 1, 0), row


def wrong() -> Any:
    """Count the rows whose key or value differs from the record at their offset."""
    from pyspark.sql import functions as F

    number = F.lpad(F.col("offset").cast("string"), 20, "0")
    return F.sum(F.when(F.substring(F.col("value").cast("string"), 12, 20) == number, 0).otherwise(1))


def cleaned(spark: Any, root: Path) -> None:
    import lastword.spark
    from lastword.spark.options import CLEAN_TASK_BYTES

    size = sum(path.stat().st_size for path in (root / "t-0").glob("*.log"))
    task_bytes = min(CLEAN_TASK_BYTES, size // 2)  # a small log, as in a trial run, is split too
    (row,) = lastword.spark.clean(spark, str(root), "t", task_bytes=task_bytes).collect()
    assert row.complete and row.certificate and row.records_kept * VERSIONS == row.records_read, row


def restored(spark: Any, root: Path, records: int) -> None:
    import lastword.spark

    to = root.parent / "snapshot"
    (row,) = lastword.spark.restore(spark, str(root), "t", to=str(to)).collect()
    assert row.keys == records // VERSIONS, row
    newest(spark.read.parquet(str(to)), records)


def step(name: str, work: Callable[[], None]) -> None:
    started = time.perf_counter()
    with peaks() as peak_bytes:
        work()
    seconds = time.perf_counter() - started
    java, python, own = (peak_bytes[kind] >> 20 for kind in ("java", "python", "own"))
    print(f"{name:<34} {seconds:>8.1f} {java:>13} {python:>11} {own:>8}", flush=True)


@contextmanager
def peaks() -> Iterator[dict[str, int]]:
    """Sample the peak memory in bytes of an executor (`java`) and of a worker below this process.

    `python` is all resident memory of a worker, `own` the part that no file backs.
    """
    peak_bytes = {"java": 0, "python": 0, "own": 0}
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.25):
            for kind, size in resident():
                peak_bytes[kind] = max(peak_bytes[kind], size)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak_bytes
    finally:
        ended.set()
        thread.join()


def resident() -> Iterator[tuple[str, int]]:
    """Return (kind, bytes) of the executors and of the Python workers below them."""
    parents: dict[int, int] = {}
    words: dict[int, bytes] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            facts = (path / "stat").read_text()
            parents[int(path.name)] = int(facts[facts.rindex(")") + 2 :].split()[1])
            words[int(path.name)] = (path / "cmdline").read_bytes()
        except OSError:
            continue
    ours = {os.getpid()}
    for _ in range(8):
        ours |= {pid for pid, parent in parents.items() if parent in ours}
    for pid in ours - {os.getpid()}:
        said = words.get(pid, b"")
        executor = b"CoarseGrainedExecutorBackend" in said
        worker = b"pyspark" in said and b"java" not in said.split(b"\0")[0]
        if not executor and not worker:
            continue
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue
        sizes = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines if line.endswith(" kB")}
        yield "java" if executor else "python", sizes.get("VmRSS", 0)
        if worker:
            yield "own", sizes.get("RssAnon", 0)


if __name__ == "__main__":
    main()
