"""Duplication, audit, verify, restore, erase and expire on Spark: the results equal the library's."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

import lastword
import lastword.spark
from lastword import errors
from lastword.api import erasing
from lastword.errors import NotALogDirError, PartialFailure, UsageError
from tests.spark.conftest import append, changed, create, descriptions, numbered
from tests.support.damage import flip

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("looks") / "data"
    path.mkdir()
    create(path, "t", 3, segment_bytes="4KiB")
    for partition in range(3):
        own = b"%d-" % partition  # each key is in one partition, as a partitioner would place it
        batches = [numbered(100 * n + partition, 100, 40) for n in range(4)]
        append(
            path, "t", partition, [[(at, own + key, *rest) for at, key, *rest in rows] for rows in batches]
        )
    create(path, "u", 1)
    append(path, "u", 0, [numbered(0, 20, 5)])
    return path


def plain(frame: Any) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in frame.collect()]


def test_duplication(spark: Any, root: Path) -> None:
    with lastword.open(root) as logs:
        for by in ("topic", "partition"):
            here = [duplication.to_dict() for duplication in logs.duplication(by=by)]
            there = plain(lastword.spark.duplication(spark, str(root), by=by))
            key = lambda row: (row["topic"], row["partition"] or 0)  # noqa: E731
            assert sorted(there, key=key) == sorted(here, key=key)
        segments = plain(lastword.spark.duplication(spark, str(root), "u", by="segment"))
        assert segments == [duplication.to_dict() for duplication in logs.duplication("u", by="segment")]


def test_verify(spark: Any, root: Path, tmp_path: Path) -> None:
    assert plain(lastword.spark.verify(spark, str(root))) == []
    broken = Path(shutil.copytree(root, tmp_path / "broken"))
    file = sorted((broken / "t-1").glob("*.log"))[0]
    flip(file, 200, 0xFF)
    with lastword.open(broken) as logs:
        here = [problem.to_dict() for problem in logs.verify().problems]
    problem_rows = plain(lastword.spark.verify(spark, str(broken)))
    assert problem_rows == here and {row["code"] for row in problem_rows} == {"bad-crc"}
    with lastword.open(broken) as logs, pytest.raises(errors.DataError) as here:
        logs.duplication("t")
    assert isinstance(here.value, errors.PartialFailure)
    with pytest.raises(type(here.value.errors[0])) as there:
        lastword.spark.duplication(spark, str(broken), "t")
    assert str(there.value) == str(here.value)


@pytest.mark.parametrize("partitions", [200, 2_000, 20_000])
def test_small_partitions_share_verification_tasks(partitions: int) -> None:
    from lastword.spark.inspect import MOST_VERIFY_TASKS, VERIFY_TASKS, share_verify

    assert len(list(share_verify([20_000] * partitions))) <= 1.1 * VERIFY_TASKS
    assert list(share_verify([1 << 30] * 40)) == [[number] for number in range(40)]
    assert list(share_verify([20_000] * 10)) == [[number] for number in range(10)]
    for sizes in ([1 << 25] * partitions, [1 << 30, *[1] * partitions]):
        groups = list(share_verify(sizes))
        assert [number for group in groups for number in group] == list(range(len(sizes)))
        assert len(groups) <= 2 * MOST_VERIFY_TASKS


def test_many_partitions_are_verified_in_few_tasks(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "log"
    create(root, "many", 40)
    append(root, "many", 39, [numbered(0, 20, 5)])
    file = next((root / "many-39").glob("*.log"))
    flip(file, 100, 0xFF)
    (problem,) = lastword.spark.verify(spark, str(root)).collect()
    assert "many-39" in problem["file"]
    assert "lastword verify: many-38 and 1 more" in descriptions(spark)


def test_audit(spark: Any, root: Path) -> None:
    with lastword.open(root) as logs:
        topic = logs.topic("t")
        newest = {(r.partition, r.key): r.offset for r in topic.read(view="changes")}
        table: dict[tuple[int, bytes], int] = {}
        for number, (place, offset) in enumerate(sorted(newest.items())):
            if number % 5 != 0:  # every fifth key is missing
                table[place] = offset - (number % 7 == 0) + (number % 11 == 0)
        table[1, b"nobody"] = 3
        rows = [(partition, bytearray(key), offset) for (partition, key), offset in table.items()]
        frame = spark.createDataFrame(rows, "partition int, key binary, offset long")
        audit_rows = plain(lastword.spark.audit(spark, str(root), "t", delivered=frame))
        here = logs.audit("t", delivered=frame.toArrow())
    key = lambda row: (row["partition"], row["key"])  # noqa: E731
    expected = [{**row.to_dict(), "key": row.key} for row in here.rows]
    assert sorted(({**row, "key": bytes(row["key"])} for row in audit_rows), key=key) == sorted(
        expected, key=key
    )
    assert {row["kind"] for row in audit_rows} == {"missing", "stale", "phantom"}
    with pytest.raises(errors.UsageError, match="no column 'offset'"):
        lastword.spark.audit(spark, str(root), "t", delivered=frame.drop("offset"))
    with pytest.raises(errors.UsageError, match="column key of delivered is int"):
        lastword.spark.audit(spark, str(root), "t", delivered=frame.withColumn("key", frame["partition"]))


def test_audit_by_a_frame_with_gaps(spark: Any, root: Path, tmp_path: Path) -> None:
    """The partition may be null in some rows, or not exist in the topic; the key may not be null."""
    copy = Path(shutil.copytree(root, tmp_path / "copy"))
    changed(copy, lambda logs: logs.clean("t"))
    rows = [(None, b"0-key-0", 5), (None, b"nobody", 3), (0, b"nobody", 3), (9, b"0-key-1", 3)]
    frame = spark.createDataFrame(rows, "Partition int, KEY binary, offset int")
    with lastword.open(copy) as logs:
        for partition in (None, 0):
            table = frame.toDF("partition", "key", "offset").toArrow()
            here = logs.audit("t", partition, delivered=table).rows
            there = plain(lastword.spark.audit(spark, str(copy), "t", partition, delivered=frame))
            order = lambda row: (row["partition"] is None, row["partition"], row["key"])  # noqa: E731
            assert sorted(there, key=order) == sorted((row.to_dict() for row in here), key=order)
            assert {row["kind"] for row in there} >= {"missing", "stale", "gone"}
    nulls = (
        ("key string, offset long, partition int", (None, 3, None), "column key, offset 3, partition null"),
        ("key binary, offset long", (b"ab", None), "column offset, key 6162"),
    )
    for columns, row, words in nulls:
        frame = spark.createDataFrame([row], columns)
        column = words.split(",")[0].removeprefix("column ")
        text = f"UsageError: delivered has a row with a null in {words}\n  fix: leave such rows out: "
        with pytest.raises(Exception, match=re.escape(f'{text}delivered.where("{column} IS NOT NULL")')):
            lastword.spark.audit(spark, str(root), "t", delivered=frame).collect()


def test_audit_of_keys_delivered_with_and_without_a_partition(spark: Any, tmp_path: Path) -> None:
    """Every combination of a key logged twice and delivered twice: one logic, two engines.

    A key of another partition is no phantom; a key that was never logged is one in its own partition.
    """
    import itertools

    import pyarrow as pa

    names = (b"k-%d" % n for n in itertools.count())
    rows: list[tuple[bytes, int | None, int]] = []
    logged = {b"in 0": (0,), b"in 1": (1,), b"in both": (0, 1), b"deleted": (0,), b"nowhere": ()}
    with lastword.open(tmp_path / "data", "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic("t", 2, cleanup_policy="compact")
        for where, partitions in logged.items():
            for said, unsaid in itertools.product((None, -1, 0, 1), repeat=2):
                key = next(names)
                value = None if where == b"deleted" else where
                offsets = [topic.append(key, value, partition=number).offset for number in partitions]
                newest = offsets[0] if offsets else 500
                rows += [(key, 0, newest + said)] if said is not None else []
                rows += [(key, None, newest + unsaid)] if unsaid is not None else []
        columns = dict(zip(("key", "partition", "offset"), map(list, zip(*rows, strict=True)), strict=True))
        table = pa.table(
            columns, pa.schema({"key": pa.binary(), "partition": pa.int32(), "offset": pa.int64()})
        )
        frame = spark.createDataFrame(rows, "key binary, partition int, offset long")
        for partition in (None, 0):
            here = [row.to_dict() for row in logs.audit("t", partition, delivered=table).rows]
            there = plain(
                lastword.spark.audit(spark, str(tmp_path / "data"), None, partition, delivered=frame)
            )
            order = lambda row: (row["key"], row["partition"] is None, row["partition"])  # noqa: E731
            assert sorted(there, key=order) == sorted(here, key=order)
            assert {row["kind"] for row in here} == {"missing", "stale", "phantom"}


def test_restore_is_the_state_and_starts_one(spark: Any, root: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(root, tmp_path / "copy"))
    with lastword.open(copy) as logs:
        state = dict(logs.state("t", key_serializer="bytes", value_serializer="bytes"))
    frame = lastword.spark.restore(spark, str(copy), "t")
    assert {bytes(row.key): bytes(row.value) for row in frame.collect()} == state
    out = str(tmp_path / "snap[1]{a,b} *?")  # as a pattern it does not match itself
    reports: list[Any] = []
    restored = plain(lastword.spark.restore(spark, str(copy), "t", to=out, progress=reports.append))
    assert reports[-1].verb == "restore" and reports[-1].done_bytes == reports[-1].total_bytes > 0
    assert "lastword restore: t" in descriptions(spark)
    with pytest.raises(UsageError, match="exists, and a restore writes a new directory"):
        lastword.spark.restore(spark, str(copy), "t", to=out)
    assert sum(row["keys"] for row in restored) == len(state)
    assert {row["partition"]: row["end_offset"] for row in restored} == {0: 400, 1: 400, 2: 400}
    with lastword.open(copy, "a", log_cleaner_enable=False) as logs:
        logs.topic("t").append(b"after", b"1")
        started = logs.state("t", key_serializer="bytes", value_serializer="bytes", snapshot=out)
        assert dict(started) == {**state, b"after": b"1"}
    with lastword.open(copy) as logs, pytest.raises(errors.UsageError, match="is no snapshot"):
        logs.state("t", snapshot=tmp_path)


def test_restore_as_of_an_earlier_end(spark: Any, root: Path) -> None:
    with lastword.open(root) as logs:
        then = {r.key: r.value for r in logs.topic("u").read(end=7, view="newest")}
    frame = lastword.spark.restore(spark, str(root), "u", end=7)
    assert {bytes(row.key): bytes(row.value) for row in frame.collect()} == then


def test_how_far_a_query_is_behind(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "data"
    create(root, "t", 2)
    append(root, "t", 0, [numbered(0, 30, 7)])
    stream = spark.readStream.format("lastword").option("subscribe", "t")
    stream = stream.option("startingOffsets", "earliest").load(str(root))
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = query.trigger(availableNow=True).start()
    query.awaitTermination(120)
    assert query.exception() is None

    def lag(*chosen: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in lastword.spark.lag(spark, root, *chosen, query=query).collect()]

    assert lag() == [("t", 0, 30, 30, 0, 0.0), ("t", 1, 0, 0, 0, 0.0)]
    append(root, "t", 1, [[(1000, b"a", b"1", ())], [(2000, b"a", b"2", ())]])
    before_ms = time.time_ns() // 1_000_000  # the lag is computed in whole milliseconds, as timestamps are
    (behind,) = lag("t", 1)
    assert behind[:5] == ("t", 1, 0, 2, 2)
    assert 0 <= round(1000 * behind[5]) - (before_ms - 1000) < 60_000
    changed(root, lambda logs: logs.topic("t").trim(1, partition=1))
    (trimmed,) = lag("t", 1)
    assert trimmed[:5] == ("t", 1, 0, 2, 1)
    assert abs(behind[5] - trimmed[5] - 1) < 60, "the next record is a second younger"


@pytest.mark.parametrize(
    "verb", ["plan", "clean", "duplication", "audit", "verify", "restore", "expire", "lag"]
)
def test_a_directory_that_holds_no_log(verb: str, tmp_path: Path) -> None:
    """A call with a wrong path makes no directory and does not call Spark."""
    given = {"audit": {"delivered": None}, "lag": {"query": None}}.get(verb, {})
    ask = getattr(lastword.spark, verb)
    with pytest.raises(NotALogDirError, match="does not exist"):
        ask(None, tmp_path / "nowhere", **given)
    assert list(tmp_path.iterdir()) == []
    for path, words in (("hdfs://host/log", "not a URL"), (["a", "b"], "is no path"), ("", "is empty")):
        with pytest.raises(UsageError, match=words):
            ask(None, path, **given)


def test_what_can_be_told_of_a_call_before_spark_is_asked(root: Path) -> None:
    words = r"the directory of a restore 's3://bucket/x' .* not a URL\n.*write\.parquet\(URL\)"
    with pytest.raises(UsageError, match=words):
        lastword.spark.restore(None, root, "t", to="s3://bucket/x")
    with pytest.raises(UsageError, match="delivered is None, no DataFrame"):
        lastword.spark.audit(None, root, "t", delivered=None)


def test_erase(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []
    in_driver = erasing._Erasing._found
    monkeypatch.setattr(
        erasing._Erasing,
        "_found",
        lambda one, number, *on: searched.append(number) or in_driver(one, number, *on),
    )
    create(tmp_path, "u", 2)
    for partition in range(2):
        append(tmp_path, "u", partition, [numbered(100 * partition, 20, 5)])
    with lastword.open(tmp_path) as logs:
        every = {record.key for record in logs["u"].newest()}
    gone = sorted(every)[:2]
    keys = spark.createDataFrame([(key.decode(),) for key in [*gone, *gone]], "key string")
    planned = lastword.spark.erase(spark, str(tmp_path), "u", keys, dry_run=True)
    assert searched == [0, 1]
    done = lastword.spark.erase(spark, str(tmp_path), "u", keys, now=True)
    assert searched == [0, 1]  # tasks have found the keys
    assert (len(done.keys), done.complete) == (2, True)
    assert [part.records for part in done.partitions] == [part.records for part in planned.partitions]
    with lastword.open(tmp_path) as logs:
        assert {record.key for record in logs["u"].newest()} == every - set(gone)
    with lastword.open(tmp_path, "a") as logs:
        logs.dirs.log("u", 1).roll()
    damaged = max((tmp_path / "u-1").glob("*.log"), key=lambda path: path.stat().st_size)
    flip(damaged, 18)  # its checksum
    with pytest.raises(PartialFailure) as raised:  # the other partition is erased
        lastword.spark.erase(spark, str(tmp_path), "u", spark.createDataFrame([("user-5",)], "key string"))
    assert [part.partition for part in raised.value.results[0].partitions] == [0]
    with pytest.raises(UsageError, match="a key is null"):
        lastword.spark.erase(spark, str(tmp_path), "u", spark.sql("select cast(null as binary) as key"))
    with pytest.raises(UsageError, match="column `key` of binary or string"):
        lastword.spark.erase(spark, str(tmp_path), "u", spark.sql("select 1 as key"))


@pytest.mark.parametrize("as_bytes", ["true", "false"])
def test_keys_of_an_erasure_are_computed_once(spark: Any, tmp_path: Path, as_bytes: str) -> None:
    """Each computation of the frame gives another key. Python gets it as bytes, or as a bytearray."""
    from pyspark.sql import functions as F

    create(tmp_path, "u", 1)
    append(tmp_path, "u", 0, [numbered(0, 20, 20)])
    calls = tmp_path / "calls"

    def next_key() -> str:
        with calls.open("a") as file:
            file.write(".")
            return f"key-{file.tell()}"

    keys = spark.range(1).select(F.udf(next_key, useArrow=False)().alias("key"))
    spark.conf.set("spark.sql.execution.pyspark.binaryAsBytes", as_bytes)
    try:
        done = lastword.spark.erase(spark, str(tmp_path), "u", keys)
    finally:
        spark.conf.unset("spark.sql.execution.pyspark.binaryAsBytes")
    assert (len(done.keys), done.complete) == (1, True)
    assert [(part.records, len(part.kept)) for part in done.partitions] == [(1, 1)]
