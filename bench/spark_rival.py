"""Run Spark's own Kafka source and sink as a rival, in a Python environment of its own.

PySpark 4.2.0 is the newest version for which Maven Central has the Kafka connector. It would replace the
PySpark of lastword, so it gets its own virtual environment. Environment and jars are in the user's cache and
are created once.

The command `spark_rival.py BOOTSTRAP JARS JOB TOPIC ROWS REPETITIONS` in that environment prints one JSON
line per run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PYSPARK = "4.2.0"
CONF = {
    "spark.driver.memory": "4g",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""The settings of Spark, which are the same for both sides."""


@dataclass(frozen=True)
class Rival:
    """The installed environment and jars of the rival."""

    python: Path
    jars: Path

    @staticmethod
    def find_or_install() -> Rival:
        """Find the rival, or install it.

        Raises:
            KafkaMissing: Maven or a network is missing.
        """
        from tests.support.jars import KafkaMissing, cache_directory

        home = cache_directory() / f"spark-kafka-{PYSPARK}"
        rival = Rival(home / "venv" / "bin" / "python", home / "jars")
        if (home / "complete").exists():
            return rival
        maven = shutil.which("mvn")
        if not maven:
            raise KafkaMissing("no Maven to fetch Spark's Kafka connector with: apt-get install maven")
        print(f"installing PySpark {PYSPARK} and its Kafka connector into {home} (once)", file=sys.stderr)
        shutil.rmtree(home, ignore_errors=True)
        venv.create(home / "venv", with_pip=True)
        pom = Path(__file__).with_name("spark_kafka_pom.xml")
        copy = [maven, "--batch-mode", "--quiet", "--file", str(pom), "dependency:copy-dependencies"]
        for command in (
            [str(rival.python), "-m", "pip", "install", "--quiet", f"pyspark=={PYSPARK}"],
            [*copy, f"-DoutputDirectory={rival.jars}"],
        ):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                said = (done.stdout + done.stderr).strip()[-400:]
                raise KafkaMissing(f"the rival can't be installed: {said}", setup_fault=False)
        (home / "complete").touch()
        return rival

    def run(self, bootstrap: str, job: str, topic: str, rows: int, repetitions: int) -> list[float]:
        """Return the wall seconds of each run, without the first one, which warms up."""
        command = [
            str(self.python),
            __file__,
            bootstrap,
            str(self.jars),
            job,
            topic,
            str(rows),
            str(repetitions),
        ]
        env = {**os.environ, "PYSPARK_PYTHON": str(self.python), "PYSPARK_DRIVER_PYTHON": str(self.python)}
        env.pop("SPARK_HOME", None)
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not lines:
            raise RuntimeError(f"the rival ended with {done.returncode}: {done.stderr[-2000:]}")
        return [line["seconds"] for line in lines[1:]]


def made_rows(spark: Any, rows: int) -> Any:
    """Return rows for a sink, generated in the JVM: 24 bytes of key and 100 of value."""
    from pyspark.sql import functions as F

    key = F.format_string("key-%020d", "id").cast("binary")
    value = F.rpad(F.concat(F.lit("v"), F.col("id").cast("string")), 100, "abcdefghij").cast("binary")
    return spark.range(0, rows, 1, 4).select(key.alias("key"), value.alias("value"))


def timed_runs(work: Callable[[], None], repetitions: int) -> list[float]:
    """Return the wall seconds of `repetitions` + 1 runs."""
    seconds = []
    for _ in range(repetitions + 1):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return seconds


def main() -> None:
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F

    bootstrap, jars, job, topic, rows, repetitions = sys.argv[1:]
    builder = SparkSession.builder.master("local[2]")
    for name, value in CONF.items():
        builder = builder.config(name, value)
    spark = builder.config("spark.jars", ",".join(map(str, sorted(Path(jars).glob("*.jar"))))).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    def read() -> None:
        source = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
        frame = source.option("subscribe", topic).load().select("key", "value")
        frame.write.format("noop").mode("overwrite").save()

    def write() -> None:
        sink = made_rows(spark, int(rows)).write.format("kafka")
        sink.option("kafka.bootstrap.servers", bootstrap).option("topic", topic).save()

    def newest() -> None:
        source = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
        rows = source.option("subscribe", topic).load()
        rows.groupBy("key").agg(F.max_by("value", "offset")).write.format("noop").mode("overwrite").save()

    def count() -> None:
        source = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
        assert source.option("subscribe", topic).load().count() == int(rows)

    if job == "read":
        count()
    for seconds in timed_runs({"read": read, "write": write, "newest": newest}[job], int(repetitions)):
        print(json.dumps({"seconds": seconds}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
