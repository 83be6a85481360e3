"""The streaming sink on Spark: once for each micro-batch, whoever holds the lock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.errors import SparkOptionError
from lastword.spark.source import LastwordDataSource
from tests.spark.conftest import append, create, numbered

pytestmark = pytest.mark.spark


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
        .option("topic", "copy")
        .option("checkpointLocation", str(checkpoint))
        .options(**options)
        .trigger(availableNow=True)
        .start(str(root))
    )
    query.awaitTermination(180)
    assert query.exception() is None


def rows(root: Path, topic: str) -> list[tuple[int, bytes, bytes | None]]:
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
    # A driver that died between its commit and Spark's note of it: the same batch comes again.
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    (checkpoint / "commits" / f".{newest.name}.crc").unlink(missing_ok=True)
    append(root, "t", 0, [numbered(200, 10, 7)])
    copy(spark, root, checkpoint)
    again = rows(root, "copy")
    assert len(again) == 160 and sorted(again) == sorted(rows(root, "t"))
    assert not list(root.rglob("staging-*")) and not list(root.glob("lastword.inbox-*"))


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
        newest = {r.key: r.value for r in logs.topic("copy").read(view="latest")}
    expected = {key: value for _, key, value in rows(root, "t")}
    alive = {key: value for key, value in expected.items() if value is not None}
    assert newest == {**alive, b"mine": b"mine", b"batch": b"1"}


def test_what_a_stream_may_not_say(tmp_path: Path) -> None:
    from lastword.spark.schema import SINK_SCHEMA

    def sink(**options: str) -> LastwordDataSource:
        return LastwordDataSource({"path": str(tmp_path), "topic": "t", **options})

    with pytest.raises(SparkOptionError, match="output mode complete is refused"):
        sink().streamWriter(SINK_SCHEMA, True)
    with pytest.raises(SparkOptionError, match="its query and batch take its place"):
        sink(producer="p", sequence="1").streamWriter(SINK_SCHEMA, False)
