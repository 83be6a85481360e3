"""lastword on executors in their own processes: python cluster_all.py MASTER HOME [STEP ...]

Write and clean while SIGKILL ends executors, with retries and speculative copies, and check the result.
`sped_up` needs two hosts: Spark starts no copy on the host of the first attempt, and none on `local[*]`.
In `absent` the executors lack the package; in `unshared` they lack the directory. `in_bucket` needs the
environment of `clusters.apart`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lastword
import lastword.spark
from lastword.spark.options import StorageOptions
from tests.spark.conftest import append, create, numbered

FAST_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": os.environ.get("DRIVER_JVM", FAST_JVM),
    "spark.executor.extraJavaOptions": FAST_JVM,
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.cores.max": "2",
}
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "2s",
    "spark.speculation.efficiency.enabled": "false",
}
STEPS = ("wrote", "killed_in_write", "streamed", "looked", "killed_in_rewrite")


def main(master: str, home: Path, steps: list[str]) -> None:
    conf = dict(CONF)
    if "in_bucket" in steps:
        conf["spark.executorEnv.LASTWORD_APART"] = os.environ["APART"]
        conf["spark.executorEnv.TMPDIR"] = os.environ["TMPDIR"]
    if "sped_up" in steps:
        conf |= SPECULATION
    spark = lastword.spark.session(master, **conf)
    spark.sparkContext.setLogLevel("OFF")
    root = home / "data"
    root.mkdir(exist_ok=True)
    for name in steps:
        globals()[name](spark, root)
        print(name, flush=True)
    spark.stop()


def executors(spark: Any) -> list[int]:
    """Return the process ids of this application's executors."""
    wanted = spark.sparkContext.applicationId
    process_ids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if wanted.encode() in words and any(b"CoarseGrainedExecutorBackend" in word for word in words):
            process_ids.append(int(path.parent.name))
    return process_ids


def save(frame: Any, root: Path, topic: str) -> None:
    frame.write.format("lastword").mode("append").options(topic=topic, partitions="2").save(str(root))


def values(root: Path, topic: str) -> list[str]:
    with lastword.open(root) as logs:
        return sorted(r.value for r in logs.topic(topic).read())


def nothing_staged(root: Path) -> None:
    """Check that no staged file is left; a speculative copy that lost may still be ending."""
    deadline = time.monotonic() + 30
    while left := [
        str(path)
        for path in root.rglob("*")
        if path.name.startswith(("staging-", "open-", "lastword.staged"))
    ]:
        assert time.monotonic() < deadline, left
        time.sleep(0.2)
    assert not list(root.glob("lastword.inbox-*"))


def odd(name: str, function: Any) -> Any:
    """Return a column of strings that `function` computes; it kills or delays an executor."""
    from pyspark.sql import functions as F

    return F.udf(function, "string")("id").alias(name)


def wrote(spark: Any, root: Path) -> None:
    """Write and read on executors: they find the package."""
    save(spark.range(0, 1000, 1, 4).selectExpr("string(id) key", "string(id) value"), root, "plain")
    frame = spark.read.format("lastword").options(subscribe="plain", view="newest").load(str(root))
    assert frame.count() == 1000


def killed_in_write(spark: Any, root: Path) -> None:
    with one_killed(spark, str(root.parent / "killed-in-write")) as rows:
        save(rows, root, "w")
    assert values(root, "w") == sorted(f"value-{n}" for n in range(60_000))
    nothing_left_after_weeks(root, "w")


@contextmanager
def one_killed(spark: Any, mark: str) -> Iterator[Any]:
    """Yield a frame of 60,000 rows; an executor dies once while it computes them. `mark`: a new file."""

    def deadly(number):  # the last row of a task: its other rows are being written by the sink
        import os
        import signal
        from pathlib import Path

        if number == 29_999:
            try:
                noted = os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                return f"value-{number}"
            daemon = Path(f"/proc/{os.getppid()}/stat").read_text()  # the worker's parent, a child of the JVM
            executor = int(daemon.rpartition(")")[2].split()[1])
            assert b"CoarseGrainedExecutorBackend" in Path(f"/proc/{executor}/cmdline").read_bytes()
            os.write(noted, str(executor).encode())
            os.kill(executor, signal.SIGKILL)
        return f"value-{number}"

    yield (
        spark.range(0, 60_000, 1, 4).select("id", odd("value", deadly)).selectExpr("string(id) key", "value")
    )
    # An executor that an earlier step has killed may have been replaced while the frame was computed.
    assert Path(mark).exists() and int(Path(mark).read_text()) not in executors(spark), "no executor died"


def nothing_left_after_weeks(root: Path, topic: str) -> None:
    """Check that the end of the job removed what a killed attempt staged; no file had to reach an age."""
    nothing_staged(root)
    with lastword.open(root) as logs:
        assert logs.verify(topic).ok


def sped_up(spark: Any, root: Path) -> None:
    home = str(root.parent)

    def slow_once(number):
        import os
        import time

        from pyspark import TaskContext

        if number == 399:
            context = TaskContext.get()
            os.close(os.open(f"{home}/copy-{context.attemptNumber()}", os.O_CREAT))
            if context.attemptNumber() == 0:
                time.sleep(60)
        return f"value-{number}"

    frame = spark.range(0, 400, 1, 4).select("id", odd("value", slow_once))
    save(frame.selectExpr("string(id) key", "value"), root, "s")
    assert Path(home, "copy-1").exists(), "no speculative copy was started"
    assert values(root, "s") == sorted(f"value-{n}" for n in range(400))
    nothing_staged(root)


def streamed(spark: Any, root: Path) -> None:
    source = spark.readStream.format("lastword").options(subscribe="plain", startingOffsets="earliest")
    query = (
        source.load(str(root))
        .select("key", "value")
        .writeStream.format("lastword")
        .options(topic="copy", checkpointLocation=str(root.parent / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(root))
    )
    query.awaitTermination(120)
    assert len(values(root, "copy")) == 1000
    nothing_staged(root)


def looked(spark: Any, root: Path) -> None:
    with lastword.open(root) as logs:
        here = [duplication.to_dict() for duplication in logs.duplication("w")]
    there = lastword.spark.duplication(spark, str(root), "w").collect()
    assert [row.asDict(recursive=True) for row in there] == here
    assert lastword.spark.verify(spark, str(root), "w").count() == 0


def killed_in_rewrite(spark: Any, root: Path) -> None:
    """Kill every executor when the first rewritten file appears, and compare the log with a local cleaning.

    One partition is cleaned by one task, the other by several tasks. Spark starts other executors.
    """
    import shutil

    create(root, "c", 2, segment_bytes="1MiB")
    for number in range(2):
        batches = [numbered(n, 1000, 5000) for n in range(0, 60_000, 1000)]
        append(root, "c", number, batches)
    copy = Path(shutil.copytree(root, root.parent / "cleaned-here"))
    with lastword.open(copy, "a", log_cleaner_enable=False) as logs:
        logs.clean("c", strategy="kafka")
    died = []
    for number, task_bytes in ((0, 1 << 30), (1, 1 << 20)):
        watch = threading.Thread(target=kill_when_rewriting, args=(spark, root / f"c-{number}", died))
        watch.start()
        rounds = lastword.spark.clean(spark, str(root), "c", number, task_bytes=task_bytes).collect()
        watch.join()
        assert len(rounds) == 1 and rounds[0].complete
    assert len(died) >= 2, died
    with lastword.open(root) as logs, lastword.open(copy) as other:
        records, expected = ([(r.partition, r.offset, r.key, r.value) for r in directory.topic("c").read()]
                           for directory in (logs, other))  # fmt: skip
        assert records == expected
        assert logs.verify("c").ok
    # The next cleaning of the partition removes what a killed attempt built.
    append(root, "c", 0, [numbered(60_000, 100, 5000)])
    append(root, "c", 1, [numbered(60_000, 100, 5000)])
    lastword.spark.clean(spark, str(root), "c")
    left = [path.name for path in root.glob("c-*/lastword/*") if path.is_dir()]
    assert not left, left


def kill_when_rewriting(spark: Any, partition: Path, died: list[int]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if any(partition.glob("lastword/rewrite-*")) or any(partition.glob("lastword/sharded-*/group-*")):
            for pid in executors(spark):
                os.kill(pid, signal.SIGKILL)
                died.append(pid)
            return
        time.sleep(0.002)


def absent(spark: Any, root: Path) -> None:
    """Check that each operation raises an error with its remedy if the executors' Python lacks lastword."""
    from lastword.errors import MissingError

    create(root, "t")
    append(root, "t", 0, [numbered(0, 10, 5)])
    ways = {
        "read": lambda: spark.read.format("lastword").options(subscribe="t").load(str(root)).count(),
        "write": lambda: save(spark.range(3).selectExpr("string(id) key", "string(id) value"), root, "t2"),
        "clean": lambda: lastword.spark.clean(spark, str(root), "t"),
    }
    for name, way in ways.items():
        try:
            way()
        except Exception as error:
            assert f"fix: install lastword {lastword.__version__} for that Python" in str(error)
            assert isinstance(error, MissingError) == (name == "clean"), type(error)
        else:
            raise AssertionError(f"{name} went well without lastword")


def unshared(spark: Any, root: Path) -> None:
    """Use a directory that only the driver sees: /proc/self/cwd is a different one in each process."""
    from lastword.errors import NotSharedError

    create(root, "only", 1)
    append(root, "only", 0, [numbered(0, 10, 5)])
    seen = "/proc/self/cwd/data"  # the driver and its processes were started in the parent of this directory
    ways = {
        "read": lambda: spark.read.format("lastword").options(subscribe="only").load(seen).count(),
        "write": lambda: save(
            spark.range(3).selectExpr("string(id) key", "string(id) value"), Path(seen), "only2"
        ),
        "clean": lambda: lastword.spark.clean(spark, seen, "only"),
        "verify": lambda: lastword.spark.verify(spark, seen).collect(),
    }
    for name, way in ways.items():
        try:
            way()
        except Exception as error:
            said = str(error)
            assert "/proc/self/cwd/data" in said and "this executor does not" in said, said[:2000]
            assert "mount the log directory under this name" in said
            assert isinstance(error, NotSharedError) == (name in ("clean", "verify")), type(error)
        else:
            raise AssertionError(f"{name} went well on a directory that no executor sees")
    with lastword.open(root) as logs:
        assert len(list(logs.topic("only").read())) == 10 and not list(logs.topic("only2").read())
    assert not list(root.rglob("*stag*-*"))


def in_bucket(spark: Any, root: Path) -> None:
    """Use a log in a bucket; executors have an empty directory in place of the driver's.

    An executor dies in the middle of a write. The credentials are in the environment only.
    """
    url, options, home = (
        os.environ["LOG_URL"],
        json.loads(os.environ["LOG_OPTIONS"]),
        Path(os.environ["APART"]),
    )
    check_apart(spark, home)
    before = sorted(root.rglob("*"))
    store, given = StorageOptions(tuple(options.items())).named(), {"storage_options": options}

    def load(topic: str, **more: str) -> Any:
        return spark.read.format("lastword").options(subscribe=topic, **more, **store).load(url)

    with one_killed(spark, str(root.parent / "killed-in-bucket")) as rows:
        rows = rows.selectExpr("concat('k', key % 100) AS key", "value")
        rows.write.format("lastword").mode("append").options(topic="w", partitions=2, **store).save(url)
    written = load("w")
    assert sorted(bytes(row.value).decode() for row in written.collect()) == sorted(
        f"value-{n}" for n in range(60_000)
    )
    copied = spark.readStream.format("lastword").options(subscribe="w", startingOffsets="earliest", **store)
    query = copied.load(url).select("partition", "key", "value").writeStream.format("lastword")
    query = query.options(topic="copy", partitions=2, checkpointLocation=str(home / "checkpoint"), **store)
    query = query.trigger(availableNow=True).start(url)
    assert query.awaitTermination(120) and query.exception() is None
    newest = {bytes(row.key): bytes(row.value) for row in load("w", view="newest").collect()}
    assert len(newest) == 100
    rounds = lastword.spark.clean(spark, url, "copy", **given).collect()
    assert [row.partition for row in rounds] == [0, 1]
    restored = lastword.spark.restore(spark, url, "copy", **given).collect()
    assert {bytes(row.key): bytes(row.value) for row in restored} == newest
    assert load("copy").count() == 100 and written.count() == 60_000
    assert not lastword.spark.verify(spark, url, **given).collect()
    sent = lastword.spark.copy(spark, url, f"{url}-copy", "copy", verify=True, **given).collect()
    assert [row.verified for row in sent] == [True, True]
    assert sorted(root.rglob("*")) == before
    assert not list((home / "tmp").glob("lastword-*")), "left in the driver's directory"
    with lastword.open(url, storage_options=options) as logs:
        assert not logs.dirs.newest.manifest.uploads


def check_apart(spark: Any, home: Path) -> None:
    """Check that neither the driver nor an executor has a file of another one in the directory."""
    (home / "of-driver").touch()

    def look(number: int) -> list[str]:
        import os

        names = [path.name for path in home.iterdir()]
        (home / f"of-executor-{os.getppid()}").touch()
        return names

    for names in spark.sparkContext.parallelize(range(4), 4).map(look).collect():
        assert "tmp" in names and "of-driver" not in names, names
        assert len(names) <= 2, names
    assert not list(home.glob("of-executor-*"))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:] or list(STEPS))
    print("everything")
