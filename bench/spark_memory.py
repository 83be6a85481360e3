"""A log larger than all memory that its tasks may take: read, cleaned and restored by executors of 1 GiB.

    python -m bench.spark_memory [--size 4GiB]

Two executors of their own (`local-cluster[2,1,1024]`), each with a heap of 1 GiB and one Python worker at a
time. Says for each step what it took, and the largest memory of any executor and of any worker meanwhile.
"""

from __future__ import annotations

import argparse
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

from lastword.units import parse_bytes

ROWS = 500_000
VALUE = b'{"note":"' + b"x" * 89 + b'"}'
VERSIONS = 5


def main() -> None:
    parser = argparse.ArgumentParser(prog="spark_memory", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--size", default="4GiB", help="of the log")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.inside:
        measure(chosen.inside)
        return
    from tests.spark.clusters import environment, farm

    with tempfile.TemporaryDirectory(prefix="lastword-memory-") as made:
        home = Path(made)
        print(
            f"a log of {fill(home / 'data', parse_bytes(chosen.size)):,} records, {chosen.size}", flush=True
        )
        env = environment(home, SPARK_HOME=str(farm(home)))
        command = [sys.executable, "-m", "bench.spark_memory", "--inside", str(home / "data")]
        sys.exit(subprocess.run(command, env=env, stderr=subprocess.DEVNULL).returncode)


def fill(root: Path, size_bytes: int) -> int:
    """One partition of about so many bytes; each key is written `VERSIONS` times."""
    import pyarrow as pa
    import pyarrow.compute as pc

    import lastword

    records = max(size_bytes // 134 // ROWS, 1) * ROWS
    keys = max(records // VERSIONS, 1)
    values = pa.array([VALUE] * ROWS, pa.binary())
    with lastword.open(root, "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact", segment_bytes="128MiB")
        for first in range(0, records, ROWS):
            numbers = pa.array([n * 7919 % keys for n in range(first, first + ROWS)])
            digits = pc.utf8_lpad(numbers.cast(pa.string()), 20, "0")
            keyed = pc.binary_join_element_wise("key-", digits, "").cast(pa.binary())
            topic.extend(pa.table({"key": keyed, "value": values}))
    return records


def measure(root: Path) -> None:
    import lastword.spark

    conf = {"spark.executor.memory": "1g", "spark.driver.memory": "1g", "spark.ui.enabled": "false"}
    spark = lastword.spark.session("local-cluster[2,1,1024]", **conf)
    spark.sparkContext.setLogLevel("OFF")

    def load(**options: str) -> Any:
        return spark.read.format("lastword").options(subscribe="t", **options).load(str(root))

    def noop(frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    print(f"{'step':<28} {'seconds':>8} {'executor MiB':>13} {'worker MiB':>11}", flush=True)
    step("read, every column", lambda: noop(load()))
    step("clean, shared out", lambda: cleaned(spark, root))
    step("restore: newest of each key", lambda: noop(load(view="latest")))
    spark.stop()


def cleaned(spark: Any, root: Path) -> None:
    import lastword.spark

    (row,) = lastword.spark.clean(spark, str(root), "t").collect()
    assert row.complete and row.certificate and row.records_kept * VERSIONS == row.records_read, row


def step(name: str, work: Callable[[], None]) -> None:
    started = time.perf_counter()
    with peaks() as found:
        work()
    seconds = time.perf_counter() - started
    print(f"{name:<28} {seconds:>8.1f} {found['java'] >> 20:>13} {found['python'] >> 20:>11}", flush=True)


@contextmanager
def peaks() -> Iterator[dict[str, int]]:
    """The largest resident memory of an executor and of a worker below this process, in bytes, sampled."""
    found = {"java": 0, "python": 0}
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.1):
            for kind, size in resident():
                found[kind] = max(found[kind], size)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def resident() -> Iterator[tuple[str, int]]:
    """(kind, bytes) of executors and of the Python workers below them."""
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
        kind = "java" if b"CoarseGrainedExecutorBackend" in said else "python" if b"pyspark" in said else ""
        if kind == "python" and b"java" in said.split(b"\0")[0]:
            continue
        if kind:
            try:
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            except OSError:
                continue
            yield kind, pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
