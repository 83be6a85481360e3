"""The workloads on Spark: its source and its sink, beside Spark's own Kafka source and sink.

Both sides read the same bytes: segments written by Kafka's code, which a real broker has adopted for the
rival. One machine, `local[2]`, the same settings, one after the other; the broker's own work is on the same
cores, as there is no Kafka without one. Wall seconds of warm runs, for the work is spread over processes.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from tests.support.jars import KafkaJars
from tests.support.kafka import Broker, Tools, adopt

from bench.kafka import BROKER_FLAGS
from bench.registry import Measured, Run, compared, workload
from bench.spark_rival import CONF, Rival, made_rows, timed_runs

PARTITIONS = 4


@contextmanager
def session() -> Iterator[Any]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    import lastword.spark

    spark = lastword.spark.session("local[2]", **CONF)
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def broker(directory: Path) -> Iterator[Broker]:
    """A broker with the flags of Kafka's own start script."""
    shutil.rmtree(directory, ignore_errors=True)
    with Tools(KafkaJars.find_or_fetch()) as tools:
        yield Broker(tools, directory, java_flags=["-Xms1g", "-Xmx1g", *BROKER_FLAGS])
    shutil.rmtree(directory, ignore_errors=True)
    shutil.rmtree(directory.with_name(directory.name + ".kafka"), ignore_errors=True)


@workload("spark-read")
def spark_read(run: Run) -> list[Measured]:
    """Key and value of every record of a topic of 4 partitions to Spark's `noop`.

    Rival: Spark's Kafka source from a broker on this machine. Beside it, the newest value of every key:
    ours with view=latest against groupBy and max_by on the same source of ours, which is what Kafka's
    source leaves to the user.
    """
    rival = Rival.find_or_install()
    data = run.data("p4-none")
    root, topic = str(data.partitions[0].parent), data.partitions[0].name.rpartition("-")[0]
    with session() as spark:

        def source(**options: str) -> Any:
            return spark.read.format("lastword").options(**{"subscribe": topic, **options}).load(root)

        def noop(frame: Any) -> None:
            frame.write.format("noop").mode("overwrite").save()

        assert source().count() == data.records
        full = timed_runs(lambda: noop(source().select("key", "value")), run.repetitions)[1:]
        schema = "key binary, value binary"
        pruned = timed_runs(
            lambda: noop(spark.read.format("lastword").option("subscribe", topic).schema(schema).load(root)),
            run.repetitions,
        )[1:]
        latest = timed_runs(lambda: noop(source(view="latest").select("key", "value")), run.repetitions)[1:]
        newest = source().selectExpr("key", "struct(offset, value) newest").groupBy("key")
        by_group = timed_runs(lambda: noop(newest.agg({"newest": "max"})), 1)[1:]
    with broker(run.scratch / "broker") as kafka:
        with kafka:
            kafka.create_topic(topic, PARTITIONS, retention_ms="-1")
        for partition in data.partitions:
            adopt(kafka.directory, partition.name, partition)
        with kafka:
            theirs = rival.run(kafka.bootstrap, "read", topic, data.records, run.repetitions)
    name = f"Spark's Kafka source, PySpark {pyspark.__version__} / 4.2.0"
    return [
        rows("spark-read", "key and value to noop", data.records, pruned, theirs, name),
        rows("spark-read", "the same, without a schema", data.records, full, theirs, name),
        rows("spark-read", "newest value of each key", data.records, latest, by_group, "groupBy and max"),
    ]


@workload("spark-write")
def spark_write(run: Run) -> list[Measured]:
    """Rows of 124 bytes, made in the JVM, into a topic of 4 partitions, kept by the system's page cache.

    Rival: Spark's Kafka sink into a broker on this machine. Both acknowledge without a sync, as Kafka does;
    a line more is ours with ack=disk.
    """
    rival = Rival.find_or_install()
    count = max(run.records // 2, 1000)
    found: dict[str, list[float]] = {}
    with session() as spark:
        for ack in ("os", "disk"):
            root = run.scratch / f"sink-{ack}"

            def write(root: Path = root, ack: str = ack) -> None:
                sink = made_rows(spark, count).write.format("lastword").mode("append")
                sink.options(topic="out", partitions=PARTITIONS, ack=ack).save(str(root))

            found[ack] = timed_runs(write, run.repetitions)[1:]
            shutil.rmtree(root)
    with broker(run.scratch / "broker") as kafka, kafka:
        kafka.create_topic("out", PARTITIONS)
        theirs = rival.run(kafka.bootstrap, "write", "out", count, run.repetitions)
    return [
        rows("spark-write", f"rows to a topic, ack={ack}", count, ours, theirs, "Spark's Kafka sink")
        for ack, ours in found.items()
    ]


def rows(name: str, what: str, count: int, ours: list[float], theirs: list[float], rival: str) -> Measured:
    def rate(seconds: list[float]) -> float:
        return count / statistics.median(seconds) / 1e6

    return compared(
        name, what, rate(ours), rate(theirs), rival, unit="M rows/s", seconds=ours, rival_seconds=theirs
    )
