"""The steps of `make sail`, in one process with a server of Sail: python -m tests.spark.sail_all HOME

The format is not registered: Sail finds it by the package's entry point.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import lastword
import lastword.spark
from lastword.errors import UnknownTopicError
from tests.spark.conftest import create

STATE: dict[str, str] = {}
"""The newest values of topic `t`."""


def plain(frame: Any) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in frame.collect()]


def pairs(frame: Any) -> dict[str, str]:
    rows = frame.selectExpr("CAST(key AS STRING) key", "CAST(value AS STRING) value").collect()
    assert len({row.key for row in rows}) == len(rows)
    return {row.key: row.value for row in rows}


def refused(call: Any, text: str) -> None:
    try:
        call()
    except Exception as error:
        assert text in str(error), str(error)
    else:
        raise AssertionError(f"not refused: {text}")


def sink(spark: Any, root: Path) -> None:
    create(root, "t", 3, segment_bytes="4KiB")
    for batch in range(4):  # 8 tasks each
        rows = spark.range(0, 400, 1, 8).selectExpr(
            "concat('key-', id % 50) AS key", f"if(id % 7 = 3, null, concat('value-{batch}-', id)) AS value"
        )
        writer = rows.write.format("lastword").mode("append").option("topic", "t")
        for _ in range(2):  # the second write has the same name and adds nothing
            writer.options(producer="p", sequence=str(batch)).save(str(root))
    for number in range(400):
        STATE[f"key-{number % 50}"] = "" if number % 7 == 3 else f"value-3-{number}"
    for key in [key for key, value in STATE.items() if not value]:
        del STATE[key]
    with lastword.open(root) as logs:
        assert sum(part.log_end for part in logs.topic("t").describe()) == 1600
        assert {r.key.decode(): r.value.decode() for r in logs.topic("t").read(view="newest")} == STATE


def views(spark: Any, root: Path) -> None:
    reader = spark.read.format("lastword").option("subscribe", "t")
    log = reader.load(str(root))
    with lastword.open(root) as logs:
        records = list(logs.topic("t").read())
    given = {(r.partition, r.offset, bytes(r.key), r.timestamp.timestamp()) for r in log.collect()}
    assert given == {(r.partition, r.offset, r.key, r.timestamp / 1000) for r in records}
    assert log.where("value IS NULL AND offset >= 100").count() == sum(
        r.value is None and r.offset >= 100 for r in records
    )
    assert reader.schema("offset long").option("keys", '["key-3"]').load(str(root)).count() == 32
    assert pairs(spark.read.format("lastword").options(subscribe="t", view="newest").load(str(root))) == STATE
    changes = spark.read.format("lastword").options(subscribe="t", view="changes").load(str(root))
    assert pairs(changes.where("change = 'upsert'")) == STATE and changes.count() == 50
    newest = spark.read.format("lastword").options(subscribe="t", view="newest").load(str(root))
    assert log.join(newest, ["partition", "offset"]).count() == newest.count() == len(STATE)
    assert len(newest.where("offset >= 0").limit(7).collect()) == 7
    per_key = {row.key: row["count"] for row in log.groupBy("key").count().collect()}
    assert set(per_key.values()) == {32} and len(per_key) == 50
    ends = {"startingOffsets": '{"t":{"0":1,"1":2,"2":3}}', "endingOffsets": '{"t":{"0":2,"1":4,"2":6}}'}
    assert spark.read.format("lastword").options(subscribe="t", **ends).load(str(root)).count() == 6


def tables(spark: Any, root: Path) -> None:
    place = f"path '{root}', subscribe 't', view 'newest'"
    spark.sql(f"CREATE TEMPORARY VIEW newest USING lastword OPTIONS ({place})")
    assert pairs(spark.table("newest")) == STATE
    spark.sql(f"CREATE TABLE listed USING lastword OPTIONS (subscribe 't', view 'newest') LOCATION '{root}'")
    assert pairs(spark.table("listed")) == STATE
    spark.sql(f"CREATE TEMPORARY VIEW inserted USING lastword OPTIONS (path '{root}', topic 'inserted')")
    spark.sql("INSERT INTO inserted SELECT key, value FROM newest")
    with lastword.open(root) as logs:
        assert {r.key.decode(): r.value.decode() for r in logs.topic("inserted").read()} == STATE
    spark.sql(f"CREATE TABLE target (k string, v string) USING delta LOCATION '{root.parent}/target'")
    spark.sql("INSERT INTO target VALUES ('key-0', 'old'), ('other', 'kept')")
    spark.read.format("lastword").options(subscribe="t", view="changes").load(str(root)).selectExpr(
        "CAST(key AS STRING) k", "CAST(value AS STRING) v", "change"
    ).createOrReplaceTempView("changes")
    spark.sql(
        "MERGE INTO target t USING changes s ON t.k = s.k WHEN MATCHED AND s.change = 'delete' THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET v = s.v "
        "WHEN NOT MATCHED AND s.change = 'upsert' THEN INSERT (k, v) VALUES (s.k, s.v)"
    )
    assert {row.k: row.v for row in spark.table("target").collect()} == {**STATE, "other": "kept"}
    written = f"{root.parent}/written"
    for mode in ("append", "overwrite"):
        spark.table("newest").select("key", "value").write.format("delta").mode(mode).save(written)
        assert pairs(spark.read.format("delta").load(written)) == STATE


def exported(spark: Any, root: Path) -> None:
    """The tables of `export` are read, and its tasks run."""
    for layout in ("vectors", "merge"):
        table = f"{root.parent}/{layout}"
        planned = lastword.spark.export(spark, root, "t", f"delta:{table}", layout=layout, dry_run=True)
        done = lastword.spark.export(spark, root, "t", f"delta:{table}", layout=layout)
        assert (planned.added_rows, planned.written_bytes) == (len(STATE), done.written_bytes)
        assert pairs(spark.read.format("delta").load(table)) == STATE
        key = min(STATE)
        with lastword.open(root, "a") as logs:
            logs.topic("t").append(key.encode(), b"another")
        assert lastword.spark.export(spark, root, "t", f"delta:{table}", layout=layout).removed_rows == 1
        STATE[key] = "another"
        assert pairs(spark.read.format("delta").load(table)) == STATE


def typed(spark: Any, root: Path) -> None:
    from pyspark.sql.types import StructType

    rows = spark.sql(
        "SELECT 'a' key, named_struct('city', 'Rome', 'at', timestamp'2026-01-02 03:04:05.678', 'tags', "
        "array('x', null), 'counts', map('n', 1)) value"
    )
    given = rows.collect()[0].value
    schema = StructType().add("value", rows.schema["value"].dataType)
    for name in ("json", "avro"):
        options = {"value_format": name}
        rows.write.format("lastword").mode("append").options(topic=name, **options).save(str(root))
        reader = spark.read.format("lastword").options(subscribe=name, **options)
        read = reader.schema(schema).load(str(root)).collect()[0].value
        assert read == given, (name, read, given)


def looks(spark: Any, root: Path) -> None:
    with lastword.open(root) as logs:
        here = [duplication.to_dict() for duplication in logs.duplication("t")]
        assert plain(lastword.spark.duplication(spark, root, "t")) == here
        newest = [(r.partition, r.key, r.offset) for r in logs.topic("t").read(view="newest")]
    assert plain(lastword.spark.verify(spark, root)) == []
    delivered = spark.createDataFrame(newest[1:], "partition int, key binary, offset long")
    (row,) = plain(lastword.spark.audit(spark, root, "t", delivered=delivered))
    assert (row["kind"], bytes(row["key"])) == ("missing", newest[0][1])


def cleaned(spark: Any, root: Path) -> None:
    planned = plain(lastword.spark.plan(spark, root, "t", 0))
    planned += plain(lastword.spark.plan(spark, root, "t", 1, task_bytes=1))
    assert [row["action"] for row in planned] == ["clean", "clean"]
    rounds = plain(lastword.spark.clean(spark, root, "t", 0))
    rounds += plain(lastword.spark.clean(spark, root, "t", 1, task_bytes=1))  # by several tasks
    assert [row["written_bytes"] for row in rounds] == [row["write_bytes"] for row in planned]
    assert pairs(lastword.spark.restore(spark, root, "t")) == STATE
    with lastword.open(root) as logs:
        assert logs.verify().ok


def restored(spark: Any, root: Path) -> None:
    out = root.parent / "snapshot"
    assert sum(row["keys"] for row in plain(lastword.spark.restore(spark, root, "t", to=out))) == len(STATE)
    with lastword.open(root) as logs:
        state = dict(logs.state("t", snapshot=out, key_serializer="bytes", value_serializer="bytes"))
        assert {key.decode(): value.decode() for key, value in state.items()} == STATE
    lastword.spark.copy(spark, root, root.parent / "copy", "t")
    with lastword.open(root.parent / "copy") as logs:
        assert {r.key.decode(): r.value.decode() for r in logs.topic("t").read(view="newest")} == STATE


def expired(spark: Any, root: Path) -> None:
    assert plain(lastword.spark.expire(spark, root)) == []  # no topic has a retention
    erased = lastword.spark.erase(
        spark, root, "t", spark.createDataFrame([(b"key-1",)], "key binary"), now=True
    )
    assert erased is not None
    STATE.pop("key-1", None)
    assert pairs(lastword.spark.restore(spark, root, "t")) == STATE


def errors(spark: Any, root: Path) -> None:
    frame = spark.read.format("lastword")
    refused(lambda: frame.option("subscribe", "nobody").load(str(root)).count(), "no topic 'nobody'")
    refused(
        lambda: (
            frame.options(subscribe="json", value_format="json", value_schema="a int").load(str(root)).schema
        ),
        "Sail takes no type of a column from an option",
    )
    stream = spark.readStream.format("lastword").options(subscribe="t").load(str(root)).select("key", "value")
    writer = stream.writeStream.format("lastword").options(topic="s", checkpointLocation=f"{root.parent}/c")
    refused(lambda: writer.start(str(root)).awaitTermination(20), "Sail runs a stream of this format as one")
    try:
        lastword.spark.clean(spark, root, "nobody")
    except UnknownTopicError:
        return
    raise AssertionError("a topic that is not there was cleaned")


def main(home: Path) -> None:
    from pysail.spark import SparkConnectServer
    from pyspark.sql import SparkSession

    server = SparkConnectServer("127.0.0.1", 0)
    server.start(background=True)
    assert server.listening_address is not None
    spark = SparkSession.builder.remote(f"sc://127.0.0.1:{server.listening_address[1]}").getOrCreate()
    for step in (sink, views, tables, typed, looks, cleaned, restored, exported, expired, errors):
        step(spark, home / "data")
        print(step.__name__, flush=True)
    spark.stop()
    server.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    print("everything")
