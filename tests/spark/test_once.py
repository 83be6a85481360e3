"""How a batch is written once: by a name that no other batch has. Without a JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

import lastword
from lastword.spark.options import parse_write
from lastword.spark.schema import sink_columns
from lastword.spark.write import LogStreamWriter, LogWriter, prepare
from tests.spark.kills import Context

COLUMNS = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])


def frame(*keys: str) -> Any:
    names = [key.encode() for key in keys]
    return iter(
        [pa.record_batch({"key": pa.array(names, pa.binary()), "value": pa.array(names, pa.binary())})]
    )


def write(root: Path, topic: str, key: str, *, batch: int | None = None, **options: str) -> None:
    """Write one batch as Spark does; with `batch`, as a batch of a stream."""
    stream = batch is not None
    job = prepare(
        parse_write({"path": str(root), "topic": topic, **options}, stream=stream),
        sink_columns(COLUMNS),
        stream=stream,
    )
    if batch is not None:
        stream_writer = LogStreamWriter(job)
        stream_writer.commit([stream_writer.write(frame(key))], batch)
    else:
        other = LogWriter(job)
        other.commit([other.write(frame(key))])


def keys(root: Path, topic: str) -> list[bytes]:
    with lastword.open(root) as logs:
        return [record.key for record in logs.topic(topic, key_serializer="bytes").read()]


def test_a_name_and_a_number_hold_for_one_topic(tmp_path: Path) -> None:
    """A `foreachBatch` that writes two topics has one batch number for both."""
    for _ in range(2):
        for topic in ("a", "b"):
            write(tmp_path, topic, topic, producer="job", sequence="7")
    assert keys(tmp_path, "a") == [b"a"] and keys(tmp_path, "b") == [b"b"]


def test_a_topic_that_is_recreated_has_no_batch_yet(tmp_path: Path) -> None:
    """Otherwise a job that fills the topic again would silently write nothing."""
    write(tmp_path, "a", "first", producer="job", sequence="7")
    with lastword.open(tmp_path, "a", log_cleaner_enable=False) as logs:
        logs.delete_topic("a")
    write(tmp_path, "a", "again", producer="job", sequence="7")
    assert keys(tmp_path, "a") == [b"again"]


def test_a_batch_that_adds_nothing_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for sequence in ("7", "8"):
        write(tmp_path, "a", "first", producer="job", sequence=sequence)
    assert not caplog.records
    write(tmp_path, "a", "second", producer="job", sequence="3")  # as after a lost checkpoint
    assert keys(tmp_path, "a") == [b"first"] * 2
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "batch 3 of a/" in caplog.text and "adds nothing" in caplog.text


def test_a_copied_checkpoint_is_the_same_query_in_another_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pyspark.TaskContext, "get", classmethod(lambda cls: Context(3, 0, 0)))
    for _ in range(2):
        for topic in ("a", "b"):
            write(tmp_path, topic, topic, batch=3)
    assert keys(tmp_path, "a") == [b"a"] and keys(tmp_path, "b") == [b"b"]


def test_a_batch_write_within_a_stream_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In `foreachBatch` a task has the stream's properties, but its write is a batch write."""
    monkeypatch.setattr(pyspark.TaskContext, "get", classmethod(lambda cls: Context(3, 0, 0)))
    write(tmp_path, "a", "a")
    assert keys(tmp_path, "a") == [b"a"]
    assert not [
        path for path in tmp_path.rglob("*") if path.name.startswith(("open-", "staging-", "lastword.staged"))
    ]
