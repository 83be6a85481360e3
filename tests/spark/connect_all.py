"""All of lastword on Spark Connect in one process: python connect_all.py HOME

A client without a SparkContext, and a server that the client starts. Each result equals the library's.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

import lastword
import lastword.spark
from tests.spark.conftest import append, create, numbered


def plain(frame: Any) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in frame.collect()]


def main(home: Path) -> None:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote("local[2]")
    for name, value in {
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    assert "connect" in type(spark).__module__
    root = home / "data"
    create(root, "t", 2, segment_bytes="4KiB")
    for partition in range(2):
        append(root, "t", partition, [numbered(100 * n, 100, 40) for n in range(4)])
    for step in (batch, stream, updated, looks, restored, cleaned, expired, refused):
        step(spark, root)
        print(step.__name__, flush=True)
    spark.stop()


def batch(spark: Any, root: Path) -> None:
    lastword.spark.register(spark)  # not required: `stream` loads the source by its name only
    reader = spark.read.format("lastword").option("subscribe", "t")
    assert reader.load(str(root)).count() == 800
    assert reader.schema("offset long").option("keys", '["key-3"]').load(str(root)).columns == ["offset"]
    with lastword.open(root) as logs:
        newest = {(r.partition, r.key): r.value for r in logs.topic("t").read(view="newest")}
    newest_view = spark.read.format("lastword").options(subscribe="t", view="newest").load(str(root))
    assert {(r.partition, bytes(r.key)): bytes(r.value) for r in newest_view.collect()} == newest
    rows = [(f"key-{n}", f"value-{n}") for n in range(50)]
    for _ in range(2):  # the second write has the same name and adds nothing
        frame = spark.createDataFrame(rows, "key string, value string")
        sink = frame.write.format("lastword").mode("append").options(topic="w", producer="p", sequence="1")
        sink.save(str(root))
    with lastword.open(root) as logs:
        assert {(r.key, r.value) for r in logs.topic("w").read()} == set(rows)
        assert logs.topic("w").describe()[0].log_end == 50


def stream(spark: Any, root: Path) -> None:
    for more in (0, 30):  # the second query restarts from the checkpoint
        if more:
            append(root, "t", 0, [numbered(1000, more, 40)])
        source = spark.readStream.format("lastword").options(subscribe="t", startingOffsets="earliest")
        query = (
            source.option("maxOffsetsPerTrigger", "500")
            .load(str(root))
            .select("key", "value", "partition")
            .writeStream.format("lastword")
            .options(topic="copy", partitions="2", checkpointLocation=str(root.parent / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(root))
        )
        query.awaitTermination(120)
        assert query.exception() is None
    with lastword.open(root) as logs:
        given, copied = ([(r.key, r.value) for r in logs.topic(name).read()] for name in ("t", "copy"))
        assert len(copied) == 830 and sorted(map(str, given)) == sorted(map(str, copied))


def updated(spark: Any, root: Path) -> None:
    source = spark.readStream.format("lastword").options(subscribe="t", startingOffsets="earliest")
    counts = source.load(str(root)).groupBy("key").count().selectExpr("key", "CAST(count AS STRING) AS value")
    for mode, queries in (("update", 2), ("complete", 1)):
        checkpoint = root.parent / mode
        for _ in range(queries):  # the second query repeats the same batch, as after a crash
            query = lastword.spark.update_stream(
                counts, root, mode, checkpoint=checkpoint, mode=mode, trigger={"availableNow": True}
            )
            query.awaitTermination(120)
            assert query.exception() is None
            shutil.rmtree(checkpoint / "commits")
        with lastword.open(root) as logs:
            records = [(r.key, int(r.value)) for r in logs.topic(mode).read()]
            assert len(records) == 40 and dict(records) == Counter(r.key for r in logs.topic("t").read())
    lagging = plain(lastword.spark.lag(spark, root, "t", query=query))
    assert [row["lag_offsets"] for row in lagging] == [0, 0]


def looks(spark: Any, root: Path) -> None:
    with lastword.open(root) as logs:
        here = [duplication.to_dict() for duplication in logs.duplication("t")]
        assert plain(lastword.spark.duplication(spark, str(root), "t")) == here
        newest = [(r.partition, r.key, r.offset) for r in logs.topic("t").read(view="changes")]
    assert plain(lastword.spark.verify(spark, str(root))) == []
    delivered = spark.createDataFrame(newest[1:], "partition int, key binary, offset long")
    with lastword.open(root) as logs:
        here = [(row.kind, row.key) for row in logs.audit("t", delivered=delivered.toArrow()).rows]
    rows = plain(lastword.spark.audit(spark, str(root), "t", delivered=delivered))
    assert [(row["kind"], bytes(row["key"])) for row in rows] == here


def restored(spark: Any, root: Path) -> None:
    with lastword.open(root) as logs:
        state = dict(logs.state("w"))
    frame = lastword.spark.restore(spark, str(root), "w")
    assert {bytes(r.key).decode(): bytes(r.value).decode() for r in frame.collect()} == state
    out = str(root.parent / "snapshot")
    reports: list[Any] = []
    restored = lastword.spark.restore(spark, str(root), "w", to=out, progress=reports.append)
    assert plain(restored)[0]["keys"] == 50 and reports[-1].done_bytes == reports[-1].total_bytes
    with lastword.open(root) as logs:
        assert dict(logs.state("w", snapshot=out)) == state


def cleaned(spark: Any, root: Path) -> None:
    with lastword.open(root) as logs:
        newest = {(r.partition, r.key): r.value for r in logs.topic("t").read(view="newest")}
    planned = plain(lastword.spark.plan(spark, str(root), "t", 0))
    planned += plain(lastword.spark.plan(spark, str(root), "t", 1, task_bytes=1))
    assert [row["action"] for row in planned] == ["clean", "clean"]
    rounds = plain(lastword.spark.clean(spark, str(root), "t", 0))
    rounds += plain(lastword.spark.clean(spark, str(root), "t", 1, task_bytes=1))  # by several tasks
    assert [row["written_bytes"] for row in rounds] == [row["write_bytes"] for row in planned]
    with lastword.open(root) as logs:
        assert {(r.partition, r.key): r.value for r in logs.topic("t").read(view="newest")} == newest
        assert logs.verify().ok


def expired(spark: Any, root: Path) -> None:
    create(root, "old", 1, cleanup_policy="delete", retention_ms="1000", segment_bytes="300")
    append(root, "old", 0, [numbered(n * 10, 10, 3) for n in range(4)])
    assert [row["topic"] for row in plain(lastword.spark.expire(spark, str(root)))] == ["old"]


def refused(spark: Any, root: Path) -> None:
    try:
        spark.read.format("lastword").option("subscribe", "nobody").load(str(root)).count()
    except Exception as error:
        assert "no topic 'nobody'" in str(error)
    else:
        raise AssertionError("a topic that is not there was read")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    print("everything")
