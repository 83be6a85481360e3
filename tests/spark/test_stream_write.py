"""The streaming sink on Spark: each micro-batch is written once, whichever process holds the lock."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import lastword
import lastword.spark
from lastword.errors import KeyRequiredError, SparkOptionError, UnknownTopicError, UsageError
from lastword.spark.source import LastwordDataSource
from tests.spark.conftest import append, create, numbered

pytestmark = pytest.mark.spark

NOW = 1_700_000_000_000


def copy(spark: Any, root: Path, checkpoint: Path, batches: int = 60, **options: str) -> None:
    """Stream topic t into topic copy."""
    stream = (
        spark.readStream.format("lastword")
        .schema("key binary, value binary, partition int")
        .option("subscribe", "t")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(batches))
        .load(str(root))
    )
    query = (
        stream.writeStream.format("lastword")
        .queryName("copy")
        .option("topic", "copy")
        .option("checkpointLocation", str(checkpoint))
        .options(**options)
        .trigger(availableNow=True)
        .start(str(root))
    )
    query.awaitTermination(180)
    assert query.exception() is None


def rows(root: Path, topic: str) -> list[tuple[int, bytes, Any]]:
    with lastword.open(root) as logs:
        return [(r.partition, r.key, r.value) for r in logs.topic(topic).read()]


def test_a_batch_that_is_run_again_comes_in_once(spark: Any, tmp_path: Path) -> None:
    root, checkpoint = tmp_path / "data", tmp_path / "checkpoint"
    root.mkdir()
    create(root, "t", 2)
    append(root, "t", 0, [numbered(0, 90, 7)])
    append(root, "t", 1, [numbered(90, 60, 7)])
    copy(spark, root, checkpoint, partitions="2")
    first = rows(root, "copy")
    assert sorted(first) == sorted(rows(root, "t")) and len(first) == 150
    undone(checkpoint)
    append(root, "t", 0, [numbered(200, 10, 7)])
    copy(spark, root, checkpoint)
    again = rows(root, "copy")
    assert len(again) == 160 and sorted(again) == sorted(rows(root, "t"))
    assert not list(root.rglob("*stag*-*")) and not list(root.glob("lastword.inbox-*"))


def test_it_writes_while_another_process_appends_and_cleans(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    create(root, "t", 2)
    create(root, "copy", 2)
    append(root, "t", 0, [numbered(0, 90, 7)])
    append(root, "t", 1, [numbered(90, 60, 7)])
    with lastword.open(root, "a", log_cleaner_backoff_ms=50) as logs:
        copy(spark, root, tmp_path / "checkpoint", batches=40)
        logs.topic("copy").append(b"mine", b"mine", partition=0)
        assert {(r.partition, r.key) for r in logs.topic("copy").read()} >= {(0, b"mine")}
        frame = spark.createDataFrame([(b"batch", b"1")], "key binary, value binary")
        frame.write.format("lastword").mode("append").option("topic", "copy").save(str(root))
        logs.clean("copy")
        newest = {r.key: r.value for r in logs.topic("copy").read(view="newest")}
    expected = {key: value for _, key, value in rows(root, "t")}
    alive = {key: value for key, value in expected.items() if value is not None}
    assert newest == {**alive, b"mine": b"mine", b"batch": b"1"}


def undone(checkpoint: Path) -> None:
    """Remove the newest note of a commit, as if the driver had died before it: Spark repeats the batch."""
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    (checkpoint / "commits" / f".{newest.name}.crc").unlink(missing_ok=True)


def counted(spark: Any, root: Path, where: str = "true") -> Any:
    """Return a streaming count of the records of each key of topic t."""
    stream = spark.readStream.format("lastword").schema("key binary").option("subscribe", "t")
    stream = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "60").load(str(root))
    return stream.groupBy("key").count().where(where).selectExpr("key", "CAST(count AS STRING) AS value")


def update(frame: Any, root: Path, topic: str, checkpoint: Path, **given: Any) -> Any:
    query = lastword.spark.update_stream(
        frame, root, topic, checkpoint=checkpoint, trigger={"availableNow": True}, **given
    )
    query.awaitTermination(180)
    assert query.exception() is None
    return query


def test_update_mode_keeps_the_newest_row_of_each_key(spark: Any, tmp_path: Path) -> None:
    """The name of the checkpoint would be a pattern that does not match itself."""
    root, checkpoint = tmp_path / "data", tmp_path / "check[1]{a,b} *?"
    root.mkdir()
    create(root, "t", 2)
    append(root, "t", 0, [numbered(0, 90, 7)])
    append(root, "t", 1, [numbered(90, 60, 7)])
    expected = Counter(key for _, key, _ in rows(root, "t"))
    given = {"options": {"partitions": 2, "ack": "os"}}
    query = update(counted(spark, root), root, "counts", checkpoint, name="counts", **given)
    assert query.name == "counts"
    first = rows(root, "counts")
    assert {partition for partition, _, _ in first} == {0, 1}
    assert len(first) > len(expected) == 7, "several batches, and each wrote its keys"
    assert {key: int(value or -1) for _, key, value in first} == expected
    undone(checkpoint)
    update(counted(spark, root), root, "counts", checkpoint)
    assert rows(root, "counts") == first
    append(root, "t", 0, [numbered(0, 1, 7)])
    update(counted(spark, root), root, "counts", checkpoint)
    again = rows(root, "counts")
    assert len(again) == len(first) + 1
    assert (b"key-0", str(expected[b"key-0"] + 1)) in [row[1:] for row in again]
    assert not list(root.rglob("*stag*-*")) and not list(root.glob("lastword.inbox-*"))


def test_complete_mode_writes_differences(spark: Any, tmp_path: Path) -> None:
    root, checkpoint = tmp_path / "data", tmp_path / "checkpoint"
    root.mkdir()
    create(root, "t")
    append(root, "t", 0, [[(NOW, b"ada", b"", ()), (NOW, b"bob", b"", ())]])

    def run() -> None:
        update(counted(spark, root, "count < 3"), root, "rare", checkpoint, mode="complete")

    run()
    first = rows(root, "rare")
    assert sorted(first, key=str) == [(0, b"ada", "1"), (0, b"bob", "1")]
    append(root, "t", 0, [[(NOW, key, b"", ()) for key in (b"ada", b"ada", b"eve")]])
    run()
    second = rows(root, "rare")
    assert sorted(second[2:], key=str) == [(0, b"ada", None), (0, b"eve", "1")], "bob is as it was"
    undone(checkpoint)
    run()
    assert rows(root, "rare") == second


def test_what_an_update_refuses_at_the_call(spark: Any, tmp_path: Path) -> None:
    create(tmp_path, "t")
    stream = spark.readStream.format("lastword").option("subscribe", "t").load(str(tmp_path))

    def refused(frame: Any, error: type[Exception], words: str, topic: str = "new", **given: Any) -> None:
        with pytest.raises(error, match=words):
            lastword.spark.update_stream(frame, tmp_path, topic, checkpoint=tmp_path / "checkpoint", **given)

    refused(stream, UsageError, "is not update or complete", mode="append")
    refused(spark.createDataFrame([("a", "b")], "key string, value string"), UsageError, "no stream")
    refused(
        stream.selectExpr("struct(key) AS value", "key"), SparkOptionError, r"to_json\(`value`\) AS value"
    )
    refused(stream.select("value"), KeyRequiredError, "new")
    refused(stream, UsageError, "chooses the partition", mode="complete")
    refused(stream, SparkOptionError, "its query and batch", options={"producer": "p", "sequence": 1})
    refused(stream, SparkOptionError, "a topic of brokers", topic="__consumer_offsets")
    refused(stream, UsageError, "trigger continuous is not", trigger={"continuous": "1 second"})
    refused(stream, TypeError, "often", trigger={"often": "1 second"})
    assert not (tmp_path / "new-0").exists() and not (tmp_path / "checkpoint").exists()


def test_a_deleted_topic_of_a_query_is_not_made_again(spark: Any, tmp_path: Path) -> None:
    """The new topic lacked the rows of all earlier batches, without a word."""
    root, checkpoint = tmp_path / "data", tmp_path / "checkpoint"
    root.mkdir()
    create(root, "t", 1)
    append(root, "t", 0, [numbered(0, 40, 7)])
    copy(spark, root, checkpoint)
    append(root, "t", 0, [numbered(40, 5, 7)])
    with lastword.open(root, "a") as logs:
        logs.delete_topic("copy")
    with pytest.raises(Exception, match=r"topic copy is gone from .*(.|\n)*fix: take a new checkpoint"):
        copy(spark, root, checkpoint)
    with pytest.raises(UnknownTopicError, match="topic copy is gone"):
        update(counted(spark, root), root, "copy", checkpoint)
    assert not (root / "copy-0").exists()
    copy(spark, root, tmp_path / "other")
    assert len(rows(root, "copy")) == 45


def test_what_a_stream_may_not_say(tmp_path: Path) -> None:
    from lastword.spark.schema import SINK_SCHEMA

    def sink(**options: str) -> LastwordDataSource:
        return LastwordDataSource({"path": str(tmp_path), "topic": "t", **options})

    with pytest.raises(SparkOptionError, match=r"output mode complete is refused(.|\n)*update_stream"):
        sink().streamWriter(SINK_SCHEMA, True)
    with pytest.raises(SparkOptionError, match="its query and batch take its place"):
        sink(producer="p", sequence="1").streamWriter(SINK_SCHEMA, False)


def test_the_name_of_a_query_is_not_an_option_of_its_sink(tmp_path: Path) -> None:
    """Spark passes it to the sink, which refused it as unknown, so that no named query could write."""
    from lastword.spark.schema import SINK_SCHEMA

    options = {"path": str(tmp_path), "topic": "t", "queryName": "mine", "checkpointLocation": "/checkpoint"}
    assert LastwordDataSource(options).streamWriter(SINK_SCHEMA, False) is not None
    with pytest.raises(SparkOptionError, match="unknown option 'queryName'"):
        LastwordDataSource(options).writer(SINK_SCHEMA, False)
