"""The sink without Spark: attempts, commits and aborts in every order in which Spark may call them."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructField, StructType

import lastword
from lastword.api.schema import PARTITIONERS
from lastword.errors import (
    BusyError,
    DataError,
    KeyRequiredError,
    LogDirLockedError,
    RecordTooLargeError,
    SparkOptionError,
    UnknownTopicError,
)
from lastword.ingest import staging
from lastword.logdir.log_dir import LogDirectory
from lastword.partition import staged_batches
from lastword.partition.log import PartitionLog
from lastword.spark import targets, write
from lastword.spark.options import parse_write
from lastword.spark.schema import sink_columns
from lastword.spark.source import LastwordDataSource
from lastword.spark.write import LogWriter, StagedMessage, TaskRows, prepare
from tests.spark.conftest import changed, create, read_directly
from tests.support.waiting import until


class Halfway(Exception):
    pass


def columns(**types: Any) -> StructType:
    """Make a schema; `add` changes its own schema, so each test makes a new one."""
    schema = StructType()
    for name, kind in types.items():
        schema = schema.add(name, kind)
    return schema


KEY_VALUE = columns(key="binary", value="binary")


def batch(*rows: tuple[bytes | None, bytes | None]) -> pa.RecordBatch:
    keys, values = [row[0] for row in rows], [row[1] for row in rows]
    return pa.RecordBatch.from_arrays(
        [pa.array(keys, pa.binary()), pa.array(values, pa.binary())], names=["key", "value"]
    )


def make_writer(root: Path, schema: StructType = KEY_VALUE, **options: str) -> LogWriter:
    given = {"path": str(root), "topic": "t", **{k.replace("_", "."): v for k, v in options.items()}}
    given = {name: value for name, value in given.items() if value}
    writer = LogWriter(prepare(parse_write(given), sink_columns(schema)))
    return pickle.loads(pickle.dumps(writer))


def attempt(writer: LogWriter, task: tuple[int, int], *batches: pa.RecordBatch) -> StagedMessage:
    """Run one attempt (Spark partition, attempt number) of a task to its end."""
    job = writer.job
    rows = TaskRows(job.options, job.columns, job.target, job.name, task)
    for record_batch in batches:
        rows.add(record_batch)
    return StagedMessage(rows.finish(), job.name, topic_ids=rows.topic_ids)


def keys_of(root: Path, partition: int | None = None) -> list[bytes]:
    return [row["key"] for row in read_directly(root) if partition in (None, row["partition"])]


def private_files(root: Path) -> list[str]:
    return sorted(
        str(path.relative_to(root))
        for path in (*root.rglob("lastword/**/*"), *root.glob("lastword.staged-*"))
        if "stag" in path.name or "staging" in str(path)
    )


def test_a_new_topic_is_made_with_its_settings(tmp_path: Path) -> None:
    writer = make_writer(tmp_path / "log", partitions="3", segment_bytes="1MiB")
    writer.commit([attempt(writer, (0, 0), batch((b"a", b"1"), (b"b", None), (b"", b"")))])
    with LogDirectory.open(str(tmp_path / "log"), "r") as directory:
        config = directory.topic_config("t")
        assert directory.partitions("t") == [0, 1, 2]
        assert config.compacts and config.segment_bytes == 1 << 20
        assert (config.lastword_key_serializer, config.lastword_value_serializer) == ("bytes", "bytes")
    rows = read_directly(tmp_path / "log")
    assert {row["key"]: row["value"] for row in rows} == {b"a": b"1", b"b": None, b"": b""}


def test_keys_go_where_kafka_puts_them(tmp_path: Path) -> None:
    keys = [b"key-%d" % n for n in range(200)] + [b"", b"x" * 1000]
    for name, partitioner in PARTITIONERS.items():
        root = tmp_path / name
        writer = make_writer(root, partitions="5", lastword_partitioner=name)
        writer.commit([attempt(writer, (0, 0), batch(*((key, b"v") for key in keys)))])
        assert {row["key"]: row["partition"] for row in read_directly(root)} == {
            key: partitioner(key, 5) for key in keys
        }


def test_tasks_are_appended_in_the_order_of_sparks_partitions(tmp_path: Path) -> None:
    writer = make_writer(tmp_path)
    late = attempt(writer, (2, 7), batch((b"2", b"")))
    early = attempt(writer, (0, 9), batch((b"0", b"")), batch((b"0b", b"")))
    middle = attempt(writer, (1, 8), batch((b"1", b"")))
    writer.commit([late, None, early, middle])
    assert keys_of(tmp_path) == [b"0", b"0b", b"1", b"2"]


@pytest.mark.parametrize("was_enabled", [True, False])
@pytest.mark.parametrize("fails", [False, True])
def test_the_garbage_collector_pauses_during_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_enabled: bool, fails: bool
) -> None:
    writer = make_writer(tmp_path, partitions="2")
    message = attempt(writer, (0, 0), batch((b"k", b"v")))
    states: list[bool] = []

    def commit(*given: Any, **named: Any) -> None:
        states.append(gc.isenabled())
        if fails:
            raise BusyError("no")

    monkeypatch.setattr(write, "commit", commit)
    if not was_enabled:
        gc.disable()
    try:
        with pytest.raises(BusyError) if fails else nullcontext():
            writer.commit([message])
        assert (states, gc.isenabled()) == ([False], was_enabled)
    finally:
        gc.enable()


def test_order_within_a_task_holds_in_every_partition(tmp_path: Path) -> None:
    writer = make_writer(tmp_path, partitions="4")
    rows = [(b"key-%d" % (n % 50), b"%d" % n) for n in range(2000)]
    writer.commit([attempt(writer, (0, 0), batch(*rows[:700]), batch(*rows[700:]))])
    last: dict[bytes, bytes] = {}
    for row in read_directly(tmp_path):
        assert int(last.get(row["key"], b"-1")) < int(row["value"])
        last[row["key"]] = row["value"]
    assert last == dict(rows)


def test_only_the_attempts_that_messages_name_are_appended(tmp_path: Path) -> None:
    writer = make_writer(tmp_path)
    attempt(writer, (0, 0), batch((b"lost attempt", b"")))
    speculative = attempt(writer, (0, 1), batch((b"won", b"")))
    attempt(writer, (0, 2), batch((b"lost too", b"")))
    writer.commit([speculative])
    assert keys_of(tmp_path) == [b"won"]
    assert private_files(tmp_path) == []


def test_abort_removes_what_no_message_names_and_leaves_the_log(tmp_path: Path) -> None:
    writer = make_writer(tmp_path)
    attempt(writer, (0, 0), batch((b"a", b"")))
    other = make_writer(tmp_path)
    kept = attempt(other, (0, 0), batch((b"other job", b"")))
    writer.abort([None])
    assert keys_of(tmp_path) == []
    other.commit([kept])
    assert keys_of(tmp_path) == [b"other job"]


def test_an_attempt_that_ends_after_the_job_leaves_nothing(tmp_path: Path) -> None:
    writer, done = make_writer(tmp_path), make_writer(tmp_path)
    writer.abort([])
    writer.write(iter([batch((b"late", b""))]))
    done.commit([done.write(iter([batch((b"a", b""))]))])
    done.write(iter([batch((b"speculative copy", b""))]))
    assert private_files(tmp_path) == []
    assert keys_of(tmp_path) == [b"a"]


def test_an_attempt_that_fails_takes_back_what_it_staged(tmp_path: Path) -> None:
    writer = make_writer(tmp_path)

    def dies() -> Any:
        yield batch(*((b"%d" % n, b"v" * 1000) for n in range(6000)))
        raise Halfway

    with pytest.raises(Halfway):
        writer.write(dies())
    assert private_files(tmp_path) == []


def test_small_partitions_share_the_staged_file_of_a_task(tmp_path: Path) -> None:
    writer = make_writer(tmp_path, partitions="50")
    rows = [(b"%d" % number, b"v" * 100) for number in range(500)]
    messages = [attempt(writer, (task, 0), batch(*rows[task::2])) for task in range(2)]
    for message in messages:
        assert len({run.partition for run in message.runs}) == 50
        assert len({run.name for run in message.runs}) == 1
    assert len(private_files(tmp_path)) == 2
    writer.commit(list(messages))
    assert sorted(keys_of(tmp_path)) == sorted(key for key, _ in rows)
    assert private_files(tmp_path) == []


def test_many_rows_of_a_partition_get_a_file_of_their_own_behind_the_shared_one(tmp_path: Path) -> None:
    """The first rows of a partition are few, the next are many, the last are few again."""
    writer = make_writer(tmp_path, partitions="2", lastword_partitioner="crc32")
    job = writer.job
    task = TaskRows(job.options, job.columns, job.target, job.name, (0, 0))
    values = [b"first", *(b"%06d" % number + b"v" * 1000 for number in range(3000)), b"last"]
    for part in (values[:1], values[1:-1], values[-1:]):
        task.add(batch(*((b"key", value) for value in part)))
        for pending in task._pending.values():
            task._pack(pending)
    runs = task.finish()
    assert [run.position is None for run in runs] == [False, True]
    writer.commit([StagedMessage(runs, job.name)])
    assert [row["value"] for row in read_directly(tmp_path)] == values
    assert private_files(tmp_path) == []


def test_a_commit_made_twice_appends_once_and_an_abort_takes_nothing_back(tmp_path: Path) -> None:
    writer = make_writer(tmp_path)
    message = attempt(writer, (0, 0), batch((b"a", b"")))
    writer.commit([message])
    writer.commit([message])
    writer.abort([message])
    assert keys_of(tmp_path) == [b"a"]


@pytest.mark.parametrize("time_type", ["CreateTime", "LogAppendTime"])
@pytest.mark.parametrize("stop_after", range(4))
def test_a_commit_that_stopped_goes_on_where_it_was(
    tmp_path: Path, stop_after: int, time_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = make_writer(tmp_path, message_timestamp_type=time_type)
    messages = [attempt(writer, (n, 0), batch((b"%d" % n, b"same"), (b"x", b"same"))) for n in range(4)]
    real = PartitionLog.append_batches
    calls = 0

    def stopping(self: PartitionLog, batches: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > stop_after:
            raise Halfway
        return real(self, batches, **more)

    monkeypatch.setattr(PartitionLog, "append_batches", stopping)
    monkeypatch.setattr(staged_batches, "JOINED_BYTES", 0)  # one write for each attempt
    with pytest.raises(Halfway):
        writer.commit(list(messages))
    monkeypatch.setattr(PartitionLog, "append_batches", real)
    between = make_writer(tmp_path)  # another writer commits between the two attempts
    between.commit([attempt(between, (0, 0), batch((b"between", b"")))])
    writer.commit(list(messages))
    keys = [key for key in keys_of(tmp_path) if key != b"between"]
    assert keys == [b"0", b"x", b"1", b"x", b"2", b"x", b"3", b"x"]


def test_staged_files_that_vanished_are_an_error_and_not_nothing(tmp_path: Path) -> None:
    writer = make_writer(tmp_path)
    message = attempt(writer, (0, 0), batch((b"a", b"")))
    writer.abort([])
    with pytest.raises(DataError, match="nothing was appended"):
        writer.commit([message])


def test_headers_timestamps_and_text(tmp_path: Path) -> None:
    schema = (
        StructType()
        .add("KEY", "string")
        .add("value", "string")
        .add("timestamp", "timestamp")
        .add(
            "headers",
            ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
        )
    )
    when = datetime(2026, 1, 2, 3, 4, 5, 678_999, tzinfo=UTC)
    kind = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array(["ä", "b"]),
            pa.array(["ö", None]),
            pa.array([when, None], pa.timestamp("us", tz="Europe/Rome")),
            pa.array([[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None], kind),
        ],
        names=["KEY", "value", "timestamp", "headers"],
    )
    writer = make_writer(tmp_path, schema)
    writer.commit([attempt(writer, (0, 0), rows)])
    first, second = read_directly(tmp_path, includeHeaders="true")
    assert (first["key"], first["value"]) == ("ä".encode(), "ö".encode())
    assert first["timestamp"] == when.replace(microsecond=678_000)
    assert first["headers"] == [{"key": "h", "value": b"1"}, {"key": "h", "value": None}]
    assert (second["value"], second["headers"]) == (None, None)
    assert second["timestamp"].year >= 2024
    with LogDirectory.open(str(tmp_path), "r") as directory:
        assert directory.topic_config("t").lastword_key_serializer == "str"
    for nameless in ({"key": None, "value": b"1"}, None):
        bad = rows.set_column(3, "headers", pa.array([[nameless], None], kind))
        with pytest.raises(SparkOptionError, match="a header without a key"):
            attempt(writer, (0, 0), bad)


def test_a_time_far_ahead_beside_one_that_is_not_given(tmp_path: Path) -> None:
    """The microseconds exceed the precision of a float."""
    ms = [253_402_300_799_999 - 7 * n for n in range(100)]
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array([b"k"] * 101, pa.binary()),
            pa.array([b"v"] * 101, pa.binary()),
            pa.array([*(time_ms * 1000 + 999 for time_ms in ms), None], pa.timestamp("us", tz="UTC")),
        ],
        names=["key", "value", "timestamp"],
    )
    writer = make_writer(tmp_path, columns(key="binary", value="binary", timestamp="timestamp"))
    writer.commit([attempt(writer, (0, 0), rows)])
    with lastword.open(tmp_path) as logs:
        assert [record.timestamp for record in logs.topic("t").read()][:100] == ms


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec(tmp_path: Path, codec: str) -> None:
    writer = make_writer(tmp_path, compression_type=codec)
    rows = [(b"key-%d" % n, b"value" * 50) for n in range(500)]
    writer.commit([attempt(writer, (0, 0), batch(*rows))])
    assert [(row["key"], row["value"]) for row in read_directly(tmp_path)] == rows
    log_bytes = sum(path.stat().st_size for path in tmp_path.glob("t-0/*.log"))
    assert (log_bytes > 500 * 250) == (codec == "uncompressed")


def test_topic_and_partition_columns(tmp_path: Path) -> None:
    create(tmp_path, "t", 3)
    create(tmp_path, "u")
    schema = (
        StructType()
        .add("topic", "string")
        .add("key", "binary")
        .add("value", "binary")
        .add("partition", "integer")
    )
    writer = make_writer(tmp_path, schema, topic="")

    def rows(*given: tuple[str | None, bytes, int | None]) -> pa.RecordBatch:
        topics, keys, numbers = zip(*given, strict=True)
        values = pa.array([b"v"] * len(given), pa.binary())
        return pa.RecordBatch.from_arrays(
            [
                pa.array(topics, pa.string()),
                pa.array(keys, pa.binary()),
                values,
                pa.array(numbers, pa.int32()),
            ],
            names=schema.fieldNames(),
        )

    writer.commit(
        [attempt(writer, (0, 0), rows(("t", b"a", 2), ("u", b"b", 0), ("t", b"c", None), ("t", b"d", 2)))]
    )
    records = [(r["topic"], r["partition"], r["key"]) for r in read_directly(tmp_path, subscribe="t,u")]
    assert sorted(records) == sorted(
        [("t", 2, b"a"), ("t", 2, b"d"), ("u", 0, b"b"), ("t", PARTITIONERS["murmur2"](b"c", 3), b"c")]
    )
    with pytest.raises(SparkOptionError, match="has no partition 3"):
        attempt(writer, (0, 1), rows(("t", b"a", 3)))
    with pytest.raises(UnknownTopicError, match="no topic 'v'"):
        attempt(writer, (0, 2), rows(("v", b"a", 0)))
    with pytest.raises(SparkOptionError, match="a row has no topic"):
        attempt(writer, (0, 3), rows((None, b"a", 0)))


def test_records_without_a_key(tmp_path: Path) -> None:
    writer = make_writer(tmp_path / "compacted")
    with pytest.raises(KeyRequiredError, match="t-0"):
        attempt(writer, (0, 0), batch((b"a", b""), (None, b"")))
    value_only = StructType().add("value", "binary")
    with pytest.raises(KeyRequiredError):
        make_writer(tmp_path / "never made", value_only)
    assert not (tmp_path / "never made").exists()
    writer = make_writer(tmp_path / "deleted", value_only, cleanup_policy="delete", partitions="2")
    rows = pa.RecordBatch.from_arrays([pa.array([b"1", b"2"], pa.binary())], names=["value"])
    writer.commit([attempt(writer, (0, 0), rows, rows)])
    assert [row["partition"] for row in read_directly(tmp_path / "deleted")] == [0, 0, 1, 1]


@pytest.mark.parametrize("records", [1, 2000])
def test_batches_fit_a_small_segment(tmp_path: Path, records: int) -> None:
    """Batches of 64 KiB were staged for any topic, and a commit into smaller segments was refused."""
    writer = make_writer(tmp_path, segment_bytes="16KiB")
    rows = batch(*((b"k%d" % number, b"v" * 100) for number in range(records)))
    writer.commit([attempt(writer, (0, 0), rows)])
    assert len(read_directly(tmp_path)) == records
    with pytest.raises(RecordTooLargeError, match=r"above segment\.bytes 16384"):
        attempt(writer, (0, 1), batch((b"a", b"x" * 20_000)))


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_timestamps_are_within_the_bounds_of_the_topic(tmp_path: Path, kind: str) -> None:
    """Python and the server refused such records, and the sink appended them."""
    create(
        tmp_path,
        "t",
        message_timestamp_before_max_ms=0,
        message_timestamp_after_max_ms="1h",
        message_timestamp_type=kind,
    )
    writer = make_writer(tmp_path, columns(key="binary", value="binary", timestamp="timestamp"))
    now_us = time.time_ns() // 1000

    def at(*times: int | None) -> pa.RecordBatch:
        column = pa.array(times, pa.timestamp("us", tz="UTC"))
        return batch(*((b"k", b"v") for _ in times)).append_column("timestamp", column)

    attempt(writer, (0, 0), at(None, now_us + 1_800_000_000))
    for number, wrong in enumerate((now_us - 3_600_000_000, now_us + 7_200_000_000), 1):
        refused = pytest.raises(SparkOptionError, match=r"t: a row's timestamp of .* is too far from now")
        with refused if kind == "CreateTime" else nullcontext():
            attempt(writer, (number, 0), at(None, wrong))


@pytest.mark.parametrize(
    ("options", "value", "error", "said"),
    [
        ({"nullValue": "error"}, None, SparkOptionError, "no value, which would delete its key"),
        ({"max_message_bytes": "2KiB"}, b"v" * 3000, RecordTooLargeError, r"above max\.message\.bytes 2048"),
    ],
)
def test_a_row_that_options_refuse(
    tmp_path: Path, options: dict[str, str], value: bytes | None, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        attempt(make_writer(tmp_path, **options), (0, 0), batch((b"a", value)))


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (StructType().add("key", "binary"), "no column 'value'"),
        (StructType().add("key", "binary").add("vale", "binary"), "no column 'value'; nearest: vale"),
        (
            StructType().add("key", "integer").add("value", "string"),
            r"'key' must be binary or string, not int: CAST\(`key` AS STRING\) AS key",
        ),
        (
            columns(key="binary", value=columns(a="integer")),
            r"not struct<a:int>: to_json\(`value`\) AS value",
        ),
        (columns(key="binary", Value=MapType(StringType(), StringType())), r"to_json\(`Value`\) AS value"),
        (
            columns(key="binary", value="binary", timestamp="timestamp_ntz"),
            r"not timestamp_ntz: CAST\(`timestamp` AS TIMESTAMP\)",
        ),
        (columns(key="binary", value="binary", partition="string"), r"must be integer, not string\n"),
        (columns(key="binary", value="binary", headers="string"), "'headers' must be array"),
        (columns(key="binary", value="binary", Value="string"), "'value' is there twice"),
        (columns(key="binary", value="binary", partition="long"), r"not bigint: CAST\(`partition` AS INT\)"),
    ],
)
def test_a_frame_that_is_no_records_is_refused_before_anything_is_made(
    tmp_path: Path, schema: StructType, said: str
) -> None:
    with pytest.raises(SparkOptionError, match=said):
        make_writer(tmp_path / "log", schema)
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("column", [False, True])
def test_rows_for_a_topic_that_was_recreated_are_not_appended(tmp_path: Path, column: bool) -> None:
    """The rows of a partition with few rows are not in its directory, so they outlive the topic."""
    create(tmp_path, "t")
    rows = batch((b"a", b"1"))
    schema = KEY_VALUE
    if column:
        schema = columns(key="binary", value="binary", topic="string")
        rows = rows.append_column("topic", pa.array(["t"]))
    writer = make_writer(tmp_path, schema, topic="" if column else "t", producer="p", sequence="1")
    message = attempt(writer, (0, 0), rows)
    with LogDirectory.open(str(tmp_path), "a") as directory:
        directory.delete_topic("t")
        directory.create_topic("t", 4, {"cleanup.policy": "compact"})
    with pytest.raises(DataError, match="topic t was deleted and recreated since rows were staged for it"):
        writer.commit([message])
    writer.abort([message])
    assert read_directly(tmp_path) == [] and private_files(tmp_path) == []
    again = make_writer(tmp_path, schema, topic="" if column else "t", producer="p", sequence="1")
    again.commit([attempt(again, (0, 0), rows)])
    assert len(read_directly(tmp_path)) == 1


@pytest.mark.parametrize("when", ["before a task", "during a task"])
def test_a_job_without_a_topic_survives_the_deletion_of_another_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The job has its mark in the first partition of all, of a topic that may have no row."""
    create(tmp_path, "a")
    create(tmp_path, "t")
    writer = make_writer(tmp_path, columns(key="binary", value="binary", topic="string"), topic="")
    monkeypatch.setattr(write.WriteJob, "_in_task", lambda self: (self.name, (0, 0), None, -1))
    rows = batch((b"k", b"v")).append_column("topic", pa.array(["t"]))

    def delete() -> None:
        changed(tmp_path, lambda logs: logs.delete_topic("a"))

    def given() -> Iterator[pa.RecordBatch]:
        yield rows
        if when == "during a task":
            delete()

    if when == "before a task":
        delete()
    writer.commit([writer.write(given())])
    assert keys_of(tmp_path) == [b"k"] and private_files(tmp_path) == []


def test_a_topic_that_another_job_makes_meanwhile_is_compared_with_the_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job whose options differ wrote to the topic of the other job without an error."""
    create(tmp_path, "other")
    really = targets.exists

    def exists(*given: Any) -> bool:
        result = really(*given)
        if not result:
            create(tmp_path, "t", 4, cleanup_policy="delete")
        return result

    monkeypatch.setattr(targets, "exists", exists)
    with pytest.raises(SparkOptionError, match=r"has 4 partitions, not 8; has cleanup.policy = delete, not"):
        make_writer(tmp_path, partitions="8", cleanup_policy="compact")
    assert make_writer(tmp_path, partitions="4").job.target == targets.existing_target(str(tmp_path), "t")


def test_a_topic_of_brokers_is_not_written(tmp_path: Path) -> None:
    """Neither by option `topic` nor by column `topic`, which was not checked."""
    with pytest.raises(SparkOptionError, match="__consumer_offsets is a topic of brokers"):
        make_writer(tmp_path, KEY_VALUE, topic="__consumer_offsets")
    assert not [*tmp_path.iterdir()]
    create(tmp_path, "__consumer_offsets")
    writer = make_writer(tmp_path, columns(key="binary", value="binary", topic="string"), topic="")
    names = pa.array(["__consumer_offsets"], pa.string())
    rows = pa.RecordBatch.from_arrays([*batch((b"k", b"v")).columns, names], names=["key", "value", "topic"])
    with pytest.raises(SparkOptionError, match="__consumer_offsets is a topic of brokers"):
        attempt(writer, (0, 0), rows)


def test_a_task_that_waits_gives_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The staged files are older than an hour while the task waits for its next rows."""
    monkeypatch.setattr(staging, "ALIVE_EVERY_SECONDS", 0.02)
    monkeypatch.setattr(
        "lastword.spark.write.PACK_BYTES", 1
    )  # the first rows are staged before the second ones exist
    writer = make_writer(tmp_path, KEY_VALUE)

    def waits() -> Iterator[pa.RecordBatch]:
        yield batch((b"a", b"1"))
        (staged,) = tmp_path.glob("lastword.staged-*")
        os.utime(staged, (0, 0))
        until(lambda: staged.stat().st_mtime, 60)
        yield batch((b"b", b"2"))

    writer.commit([writer.write(waits())])
    assert len(read_directly(tmp_path)) == 2
    assert "lastword-alive" not in {thread.name for thread in threading.enumerate()}


def test_other_columns_give_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        make_writer(tmp_path, columns(key="binary", value="binary", offset="long", note="string"))
    assert [record.getMessage() for record in caplog.records] == [
        "lastword: columns that no record has are left out: note"
    ]


def test_a_topic_is_made_when_the_commit_of_another_query_has_ended(tmp_path: Path) -> None:
    create(tmp_path, "other")
    held = LogDirectory.open(str(tmp_path), "a")
    threading.Timer(0.2, held.close).start()
    assert make_writer(tmp_path).job.target.topic == "t"
    with LogDirectory.open(str(tmp_path), "a"), pytest.raises(LogDirLockedError) as caught:
        make_writer(tmp_path, topic="new", commitTimeout="50ms")
    assert caught.value.remedy == "make topic new in that process: create_topic; or stop it"


def test_overwrite_is_refused() -> None:
    source = LastwordDataSource({"path": "/x", "topic": "t"})
    with pytest.raises(SparkOptionError, match="only ever appended to"):
        source.writer(KEY_VALUE, overwrite=True)


def test_a_topic_that_is_there_must_be_as_the_options_say(tmp_path: Path) -> None:
    create(tmp_path, "t", 2, segment_bytes="1MiB")
    make_writer(tmp_path, partitions="2", segment_bytes="1MiB", cleanup_policy="compact")
    with pytest.raises(
        SparkOptionError, match=r"has 2 partitions, not 3; has segment\.bytes = 1MiB, not 2MiB"
    ) as caught:
        make_writer(tmp_path, partitions="3", segment_bytes="2MiB")
    command = f"lastword config {tmp_path} t --set segment.bytes=2MiB"
    assert caught.value.remedy == f"leave the option out, or: {command}"
    with pytest.raises(SparkOptionError) as caught:
        make_writer(tmp_path, partitions="3")
    assert caught.value.remedy == "leave the option out"


def test_a_topic_of_which_some_partitions_lie_elsewhere(tmp_path: Path) -> None:
    """As in one of the directories of a broker."""
    create(tmp_path, "t", 3)
    shutil.rmtree(tmp_path / "t-1")
    with pytest.raises(SparkOptionError, match="partitions 1 of topic t, which has 3, are not in"):
        make_writer(tmp_path)


def test_beside_a_broker_a_commit_is_taken_back(tmp_path: Path) -> None:
    """The process that holds the lock does not read the inbox: nothing is written, and the job fails."""
    writer = make_writer(tmp_path, commitTimeout="200ms")
    message = attempt(writer, (0, 0), batch((b"a", b"")))
    with LogDirectory.open(str(tmp_path), "a"), pytest.raises(BusyError, match="nothing was written"):
        writer.commit([message])
    writer.abort([message])
    assert keys_of(tmp_path) == [] and private_files(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir() if "inbox" in path.name] == []


def test_a_log_that_is_open_to_append_takes_commits_in(tmp_path: Path) -> None:
    writer = make_writer(tmp_path)
    message = attempt(writer, (0, 0), batch((b"a", b"1"), (b"b", b"2")))
    with lastword.open(tmp_path, "a") as logs:
        logs.topic("t").append(b"before", b"0")
        writer.commit([message])
        logs.topic("t").append(b"after", b"3")
        assert [r.key for r in logs.topic("t").read()] == [b"before", b"a", b"b", b"after"]


def test_a_batch_with_a_name_comes_in_once(tmp_path: Path) -> None:
    for sequence in ("0", "1", "1", "0"):
        writer = make_writer(tmp_path, producer="loader", sequence=sequence)
        writer.commit([attempt(writer, (0, 0), batch((b"batch", sequence.encode())))])
    again = make_writer(tmp_path, producer="another", sequence="0")
    again.commit([attempt(again, (0, 0), batch((b"batch", b"of another")))])
    assert [row["value"] for row in read_directly(tmp_path)] == [b"0", b"1", b"of another"]
    assert private_files(tmp_path) == []
    with pytest.raises(SparkOptionError, match="come together"):
        make_writer(tmp_path, producer="loader")
