"""Measure source and sink on Spark, beside Spark's own Kafka source and sink.

Both sides read the same bytes: segments written by Kafka's code, which a real broker has opened for the
rival. They run one after the other on one machine, with `local[2]` and the same settings. The broker uses the
same cores, because there is no Kafka without a broker. Figures are wall seconds of warm runs, because the
work is spread over processes.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyspark
from tests.support.jars import KafkaJars
from tests.support.kafka import Broker, Tools, adopt

import lastword
from bench import confluent_rival, kafka
from bench.kafka import BROKER_FLAGS
from bench.registry import Measured, Run, compared, workload
from bench.spark_floor import ThrowAway
from bench.spark_rival import CONF, Rival, made_rows, timed_runs
from bench.workloads import link_partition
from lastword.parse import parse_bytes

PARTITIONS = 4


@contextmanager
def session(cores: int = 2) -> Iterator[Any]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    import lastword.spark

    spark = lastword.spark.session(f"local[{cores}]", **CONF)
    try:
        yield spark
    finally:
        spark.stop()


def adopted(data: kafka.Generated, root: Path) -> tuple[str, str]:
    """Return the path and topic of a log directory with these segments, as a broker leaves it.

    The topic was opened and closed, so producer snapshots and a clean-shutdown marker exist.
    """
    topic = data.partitions[0].name.rpartition("-")[0]
    shutil.rmtree(root, ignore_errors=True)
    with lastword.open(root, "a", log_cleaner_enable=False) as logs:
        logs.create_topic(topic, len(data.partitions), cleanup_policy="compact", segment_bytes=128 << 20)
    for partition in data.partitions:
        shutil.rmtree(root / partition.name)
        link_partition(partition, root / partition.name)
    for marker in (*root.glob(".kafka_cleanshutdown"), *root.glob("recovery-point-offset-checkpoint")):
        marker.unlink()
    with lastword.open(root, "a", log_cleaner_enable=False) as logs:
        assert logs.topic(topic).bounds()
    return str(root), topic


@contextmanager
def broker(directory: Path) -> Iterator[Broker]:
    """Start a broker with the flags of Kafka's own start script."""
    shutil.rmtree(directory, ignore_errors=True)
    with Tools(KafkaJars.find_or_fetch()) as tools:
        yield Broker(tools, directory, java_flags=["-Xms1g", "-Xmx1g", *BROKER_FLAGS])
    shutil.rmtree(directory, ignore_errors=True)
    shutil.rmtree(directory.with_name(directory.name + ".kafka"), ignore_errors=True)


@workload("spark-read")
def spark_read(run: Run) -> list[Measured]:
    """Read key and value of every record of a topic of 4 partitions into Spark's `noop`.

    Rival: Spark's Kafka source from a broker on this machine. For the newest value of every key, groupBy and
    max_by on it: Kafka's source leaves that to the user.
    """
    rival = Rival.find_or_install()
    data = run.data("p4-none")
    root, topic = adopted(data, run.scratch / "log")
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

        def newest() -> None:
            reader = spark.read.format("lastword").options(subscribe=topic, view="newest")
            noop(reader.schema(schema).load(root))

        newest_view = timed_runs(newest, run.repetitions)[1:]
    with broker(run.scratch / "broker") as kafka:
        with kafka:
            kafka.create_topic(topic, PARTITIONS, retention_ms="-1")
        for partition in data.partitions:
            adopt(kafka.directory, partition.name, partition)
        with kafka:
            theirs = rival.run(kafka.bootstrap, "read", topic, data.records, run.repetitions)
            by_group = rival.run(kafka.bootstrap, "newest", topic, data.records, 1)
    shutil.rmtree(root)
    name = f"Spark's Kafka source, PySpark {pyspark.__version__} / 4.2.0"
    return [
        rows("spark-read", "key and value to noop", data.records, pruned, theirs, name),
        rows("spark-read", "the same, without a schema", data.records, full, theirs, name),
        rows(
            "spark-read",
            "newest value of each key",
            data.records,
            newest_view,
            by_group,
            "its groupBy and max_by",
        ),
    ]


@workload("spark-write")
def spark_write(run: Run) -> list[Measured]:
    """Write rows of 124 bytes, generated in the JVM, into a topic of 4 partitions.

    Rival: Spark's Kafka sink into a broker on this machine, which acknowledges without a sync. Our sink with
    ack=os may do the same, but at full size the staged data of tasks is large enough to become segments, and
    those are synced. Two more lines show our sink with ack=disk, and a Python writer that drops the rows, the
    lower limit of any such sink.
    """
    rival = Rival.find_or_install()
    count = max(run.records // 2, 1000)
    times: dict[str, list[float]] = {}
    with session() as spark:
        for ack in ("os", "disk"):
            root = run.scratch / f"sink-{ack}"

            def write(root: Path = root, ack: str = ack) -> None:
                sink = made_rows(spark, count).write.format("lastword").mode("append")
                sink.options(topic="out", partitions=PARTITIONS, ack=ack).save(str(root))

            times[f"rows to a topic, ack={ack}"] = timed_runs(write, run.repetitions)[1:]
            shutil.rmtree(root)
        spark.dataSource.register(ThrowAway)

        def throw_away() -> None:
            made_rows(spark, count).write.format("throw-away").mode("append").save()

        times["rows thrown away"] = timed_runs(throw_away, run.repetitions)[1:]
    with broker(run.scratch / "broker") as kafka, kafka:
        kafka.create_topic("out", PARTITIONS)
        theirs = rival.run(kafka.bootstrap, "write", "out", count, run.repetitions)
    return [
        rows("spark-write", case, count, ours, theirs, "Spark's Kafka sink") for case, ours in times.items()
    ]


@workload("spark-clean")
def spark_clean(run: Run) -> list[Measured]:
    """Clean one giant partition (20 M records at full size) with many tasks: map in shards, rewrite, swap.

    Rival: the same survivors computed by Spark itself from the same files, through our source: groupBy(key)
    for the newest offset, a left-semi join on it, and Parquet, which is neither sorted nor a log.
    """
    name = "a-none"
    data = kafka.generate(name, run.data_directory, 2 * run.records)
    scratch = run.scratch / "giant"
    ours, theirs = [], []
    with session() as spark:
        for _ in range(min(run.repetitions, 2) + 1):
            root, topic = adopted(data, scratch)

            def clean(root: str = root, topic: str = topic) -> None:
                import lastword.spark

                (row,) = lastword.spark.clean(spark, root, topic, task_bytes=1 << 20).collect()
                assert row.complete and row.records_kept == data.distinct and row.certificate

            ours += timed_runs(clean, 0)
        root, topic = adopted(data, scratch)

        def by_spark() -> None:
            given = {"subscribe": topic}
            every = spark.read.format("lastword").options(**given).load(root)
            newest = every.groupBy("key").agg({"offset": "max"}).withColumnRenamed("max(offset)", "offset")
            kept = every.select("key", "value", "timestamp", "offset").join(newest, "offset", "left_semi")
            kept.write.mode("overwrite").option("compression", "none").parquet(str(run.scratch / "parquet"))

        theirs = timed_runs(by_spark, 1)
        assert spark.read.parquet(str(run.scratch / "parquet")).count() == data.distinct
    shutil.rmtree(scratch)
    shutil.rmtree(run.scratch / "parquet")
    case = f"one partition, {data.records / 1e6:g} M records"
    return [
        rows("spark-clean", case, data.records, ours[1:], theirs[1:], "Spark's groupBy, join and Parquet")
    ]


def warmed(spark: Any) -> None:
    """Run tasks before the measurement: a JVM compiles in its first seconds, on the cores of the tasks."""
    from lastword.spark.tasks import run_tasks

    for _ in range(40):
        run_tasks(spark, parse_bytes, ["1KiB"] * PARTITIONS)


@workload("spark-partitions")
def spark_partitions(run: Run) -> list[Measured]:
    """Clean a topic of 4 partitions on two cores.

    Rival: the same on one core.
    """
    data = run.data("p4-none")
    times: dict[int, list[float]] = {}
    for cores in (1, 2):
        times[cores] = []
        with session(cores) as spark:
            warmed(spark)
            for _ in range(run.repetitions + 1):
                root, topic = adopted(data, run.scratch / "many")

                def clean(root: str = root, topic: str = topic, spark: Any = spark) -> None:
                    import lastword.spark

                    got = lastword.spark.clean(spark, root, topic).collect()
                    assert sum(row.records_kept for row in got) == data.distinct

                times[cores] += timed_runs(clean, 0)
    shutil.rmtree(run.scratch / "many")
    return [rows("spark-partitions", "4 partitions", data.records, times[2][1:], times[1][1:], "one core")]


MANY_PARTITIONS, FEW_PARTITIONS = 2000, 20
ROWS_SHARE = 1 / 25  # of the records of a run: 400,000 rows at full size


@workload("spark-many")
def spark_many(run: Run) -> list[Measured]:
    """Write rows into a topic of 2,000 partitions that has rows, synced, and count all of them.

    Rival: the same in a topic of 20 partitions, in turn.
    """
    count = max(int(run.records * ROWS_SHARE), 10 * FEW_PARTITIONS)
    partitions = {"many": min(MANY_PARTITIONS, count // 10), "few": FEW_PARTITIONS}
    roots = {name: run.scratch / f"topic-{name}" for name in partitions}
    for name, root in roots.items():
        with lastword.open(root, "a", log_cleaner_enable=False) as logs:
            logs.create_topic("t", partitions[name], cleanup_policy="compact")
    sinks: dict[str, list[float]] = {name: [] for name in partitions}
    counts: dict[str, list[float]] = {name: [] for name in partitions}
    with session() as spark:
        for written in range(1, run.repetitions + 2):
            for name, root in roots.items():
                sink = made_rows(spark, count).write.format("lastword").mode("append").option("topic", "t")
                sinks[name] += timed_runs(partial(sink.save, str(root)), 0)

                def read(root: Path = root, rows: int = written * count) -> None:
                    frame = spark.read.format("lastword").option("subscribe", "t").load(str(root))
                    assert frame.count() == rows

                counts[name] += timed_runs(read, 0)
    for root in roots.values():
        shutil.rmtree(root)
    rival = f"{FEW_PARTITIONS} partitions"
    return [
        rows(
            "spark-many",
            f"{verb}, {partitions['many']} partitions",
            count,
            times["many"][1:],
            times["few"][1:],
            rival,
        )
        for verb, times in (("sink", sinks), ("count", counts))
    ]


@workload("restore-client")
def restore_client(run: Run) -> Iterator[Measured]:
    """Restore a log into a Python dict: data set a, as written and cleaned.

    Rival: confluent-kafka with tuned queues, from a broker on this machine, into a dict. Rates count the
    records in the log; seconds are wall seconds, because the rival's work is spread over threads and the
    broker.
    """
    python = confluent_rival.find_or_install()
    data = run.data("a-none")
    for cleaning in ("as written", "cleaned"):
        root, topic = adopted(data, run.scratch / "log")
        if cleaning == "cleaned":
            with lastword.open(root, "a", log_cleaner_enable=False) as logs:
                logs.clean(topic, strategy="kafka")
        ours: list[float] = []
        sizes: set[int] = set()
        for _ in range(run.repetitions + 1):
            started = time.perf_counter()
            with lastword.open(root) as logs:
                state = logs.state(topic, key_serializer="bytes", value_serializer="bytes")
                ours.append(time.perf_counter() - started)  # until the dict is complete, as for the rival
                sizes.add(len(state))
            del state
        with broker(run.scratch / "broker") as server:
            with server:
                server.create_topic(topic, 1, retention_ms="-1")
            partition = data.partitions[0].name
            adopt(server.directory, partition, Path(root) / partition)
            with server:
                runs = confluent_rival.restore(python, server.bootstrap, topic, data.records, run.repetitions)
        shutil.rmtree(root)
        assert {rival_run["keys"] for rival_run in runs} == {data.distinct} == sizes
        theirs = [rival_run["seconds"] for rival_run in runs]
        count = int(runs[0]["records"])
        yield rows(
            "restore-client", f"dict from the log {cleaning}", count, ours[1:], theirs, "confluent-kafka"
        )


def rows(name: str, case: str, count: int, ours: list[float], theirs: list[float], rival: str) -> Measured:
    def rate(seconds: list[float]) -> float:
        return count / statistics.median(seconds) / 1e6

    return compared(
        name, case, rate(ours), rate(theirs), rival, unit="M rows/s", seconds=ours, rival_seconds=theirs
    )
