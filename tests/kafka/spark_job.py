"""Reads topics with Spark, by Kafka's source or lastword's, and prints the rows; runs in its own Python.

spark_job.py kafka BOOTSTRAP JARS_DIRECTORY   or   spark_job.py lastword DIRECTORY -; cases as a JSON list on
stdin, each {"name", "stream", "options"}; one JSON line for each case on stdout. "address" in a case replaces
that of the command; "to" writes the rows to another cluster with Kafka's sink.
"""

from __future__ import annotations

import base64
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any


def session(source: str, jars: str) -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]")
    for name, value in {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }.items():
        builder = builder.config(name, value)
    if source == "kafka":
        builder = builder.config("spark.jars", ",".join(map(str, sorted(Path(jars).glob("*.jar")))))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def text(data: Any) -> str | None:
    return None if data is None else base64.b64encode(bytes(data)).decode()


def row(record: Any) -> list[Any]:
    headers = None
    if "headers" in record.__fields__ and record.headers is not None:
        headers = [[header.key, text(header.value)] for header in record.headers]
    return [
        record.topic,
        record.partition,
        record.offset,
        round(record.timestamp.timestamp() * 1000),
        record.timestampType,
        text(record.key),
        text(record.value),
        headers,
    ]


def read(spark: Any, source: str, address: str, case: dict[str, Any]) -> dict[str, Any]:
    """Return {"schema", "batches": sorted rows of each micro-batch}; a batch read has one batch."""
    reader = (spark.readStream if case["stream"] else spark.read).format(source).options(**case["options"])
    if source == "kafka":
        frame = reader.option("kafka.bootstrap.servers", address).load()
    else:
        frame = reader.load(address)
    batches: list[list[Any]] = []
    if not case["stream"]:
        batches.append(sorted(row(record) for record in frame.collect()))
    else:
        checkpoint = tempfile.mkdtemp()
        query = (
            frame.writeStream.foreachBatch(lambda part, _: batches.append(sorted(map(row, part.collect()))))
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination(120)
            if query.isActive:
                raise RuntimeError("the stream does not end")
        finally:
            query.stop()
            shutil.rmtree(checkpoint, ignore_errors=True)
    return {"schema": frame.schema.simpleString(), "batches": [rows for rows in batches if rows]}


def write(spark: Any, source: str, address: str, case: dict[str, Any]) -> dict[str, Any]:
    """Write the rows of a batch read to the cluster `to`: same topics, partitions, keys, values, headers.

    `topic` replaces the topic, `codec` is the producer's.
    """
    from pyspark.sql import functions

    reader = spark.read.format(source).options(**case["options"])
    frame = reader.option("kafka.bootstrap.servers", address).load()
    rows = frame.select("topic", "partition", "key", "value", "headers")
    if "topic" in case:
        rows = rows.drop("topic").withColumn("topic", functions.lit(case["topic"]))
    producer = rows.write.format("kafka").option("kafka.bootstrap.servers", case["to"])
    producer.option("kafka.compression.type", case.get("codec", "none")).save()
    return {}


def main() -> None:
    source, address, jars = sys.argv[1:]
    spark = session(source, jars)
    for case in json.load(sys.stdin):
        try:
            work = write if "to" in case else read
            result = work(spark, source, case.get("address", address), case)
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {error}"[:2000]}
        print(json.dumps({"name": case["name"], **result}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
