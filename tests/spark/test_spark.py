"""Source, sink and cleaner in one Spark session that all tests share: what only Spark can show."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import lastword.spark
from lastword.errors import DataError, NoPolicyError, PartialFailure
from tests.spark.conftest import append, create, numbered
from tests.support.damage import flip

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")


def load(spark: SparkSession, root: Path, **options: Any) -> DataFrame:
    chosen = {name: value for name, value in {"subscribe": "t", **options}.items() if value != ""}
    return spark.read.format("lastword").options(**chosen).load(str(root))


def save(frame: DataFrame, root: Path, **options: Any) -> None:
    named = {name.replace("_", "."): value for name, value in {"topic": "t", **options}.items() if value}
    frame.write.format("lastword").mode("append").options(**named).save(str(root))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Make topic t: 2 partitions of 400 and 100 records, in many segments."""
    root = tmp_path / "log"
    create(root, "t", 2, segment_bytes="4KiB", index_interval_bytes=200)
    append(root, "t", 0, [numbered(n, 20, 30) for n in range(0, 400, 20)])
    append(root, "t", 1, [numbered(n, 20, 9) for n in range(1000, 1100, 20)], codec=4)
    return root


def test_the_format_is_known_by_itself(spark: SparkSession, root: Path) -> None:
    frame = load(spark, root)
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    assert frame.count() == 500


def test_several_threads_write(spark: SparkSession, tmp_path: Path) -> None:
    """The topic does not exist, so the threads also create it."""
    frame = spark.createDataFrame([("a", "b")], "key string, value string").coalesce(1)

    def write(number: int) -> None:
        lastword.spark.register(spark)
        save(frame, tmp_path / "log", producer=f"thread-{number}", sequence=1)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, (1, 2)))
    assert load(spark, tmp_path / "log").count() == 2


def test_a_round_trip_keeps_every_value(spark: SparkSession, tmp_path: Path) -> None:
    headers = [[("h", b"1"), ("h", None), ("", b"")], None]
    given = [
        (key, value, 1_700_000_000_000 + n, headers[n % 2])
        for n, (key, value) in enumerate((k, v) for k in (b"a", b"", b"\xff\x00") for v in (b"1", b"", None))
    ]
    frame = spark.createDataFrame(
        given, "key binary, value binary, ms long, headers array<struct<key:string,value:binary>>"
    ).select("key", "value", F.timestamp_millis("ms").alias("timestamp"), "headers")
    for codec in CODECS:
        create(tmp_path, codec, compression_type=codec)
    topics = F.array(*map(F.lit, CODECS))
    save(frame.coalesce(1).withColumn("topic", F.explode(topics)), tmp_path, topic="")
    back = load(spark, tmp_path, subscribe=",".join(CODECS), includeHeaders=True)
    rows = back.select("*", F.unix_millis("timestamp").alias("ms")).collect()
    for codec in CODECS:
        own = [row for row in rows if row.topic == codec]
        plain = [(row.key, row.value, row.ms, row.headers and [tuple(h) for h in row.headers]) for row in own]
        assert plain == given, codec
        assert [row.offset for row in own] == list(range(9))


def test_options_select_in_sql_too(spark: SparkSession, root: Path) -> None:
    spark.sql(
        f"""create or replace temporary view log using lastword
        options (path '{root}', assign '{{"t":[0]}}', startingTimestamp '1700000000100', endingOffsets
        '{{"t":{{"0":150}}}}')"""
    )
    row = spark.sql("select min(offset), max(offset), count(*) from log").first()
    assert tuple(row) == (100, 149, 50)
    spark.sql(f"create or replace temporary view sink using lastword options (path '{root}', topic 't')")
    spark.sql("insert into sink select binary('new'), binary('row')")
    assert load(spark, root, keys='["new"]').count() == 1


def test_a_key_index_leads_past_batches_without_the_keys(spark: SparkSession, tmp_path: Path) -> None:
    """One of those is damaged: a scan meets it."""
    with lastword.open(tmp_path, "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        for number in range(1200):  # fewer are not worth a saved index
            topic.append(b"key-%d" % number, b"%d" % number * 50)
        topic.get(b"key-7")
    path = tmp_path / "t-0" / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    data[data.index(b"key-100") + 20] ^= 1
    path.write_bytes(data)
    frame = load(spark, tmp_path, view="newest", keys='["key-7", "key-150", "absent"]')
    rows = frame.select(F.col("key").cast("string"), "offset").collect()
    assert sorted(map(tuple, rows)) == [("key-150", 150), ("key-7", 7)]
    with pytest.raises(Exception, match="CRC"):
        load(spark, tmp_path, view="changes", keys='["key-7"]').collect()


def test_a_task_that_fails_once_is_tried_again_and_counts_once(spark: SparkSession, tmp_path: Path) -> None:
    def fails_first(number):  # with type hints PySpark infers another kind of function, and warns
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0 and number == 149:
            raise RuntimeError("the first attempt of this task dies late")
        return f"value-{number}"

    frame = spark.range(0, 200, 1, 4).select(
        F.concat(F.lit("key-"), F.col("id")).alias("key"), F.udf(fails_first, "string")("id").alias("value")
    )
    save(frame, tmp_path / "log", partitions=2)
    rows = load(spark, tmp_path / "log").selectExpr("string(value) value").collect()
    assert sorted(row.value for row in rows) == sorted(f"value-{n}" for n in range(200))
    assert not list((tmp_path / "log").rglob("*stag*-*"))


def test_a_failed_job_leaves_the_log_as_it_was(spark: SparkSession, root: Path) -> None:
    broken = F.when(F.col("id") == 150, F.raise_error(F.lit("bad row"))).otherwise(F.lit("v"))
    frame = spark.range(0, 200, 1, 4).select(F.col("id").cast("string").alias("key"), broken.alias("value"))
    with pytest.raises(Exception, match="bad row"):
        save(frame, root)
    assert load(spark, root).count() == 500
    assert not list(root.rglob("*stag*-*"))


def test_refusals_reach_the_user(spark: SparkSession, root: Path) -> None:
    with pytest.raises(AnalysisException, match="nearest: endingOffsets"):
        load(spark, root, endingOffset="latest")
    with pytest.raises(AnalysisException, match="give the log directory as 'path'"):
        load(spark, root, **{"kafka.bootstrap.servers": "localhost:9092"})
    with pytest.raises(AnalysisException, match="no topic 'tt'"):
        load(spark, root, subscribe="tt").count()
    with pytest.raises(AnalysisException, match="no column 'value'"):
        save(spark.range(3).toDF("id"), root)
    with pytest.raises(AnalysisException, match="mode overwrite is refused"):
        load(spark, root).write.format("lastword").mode("overwrite").option("topic", "t").save(str(root))


def test_cleaning_needs_a_policy(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "log"
    create(root, "t")
    append(root, "t", 0, [numbered(0, 10, 2)])
    (root / "lastword.topic-t.toml").unlink()
    with pytest.raises(NoPolicyError):
        lastword.spark.clean(spark, str(root), "t")
    assert lastword.spark.clean(spark, str(root)).count() == 0


def test_damage_in_one_partition_leaves_the_others_cleaned(spark: SparkSession, root: Path) -> None:
    segment = sorted((root / "t-0").glob("*.log"))[1]
    flip(segment, segment.stat().st_size // 2)
    with pytest.raises(PartialFailure, match="CRC") as caught:
        lastword.spark.clean(spark, str(root))
    assert caught.value.note == "1 other partitions were cleaned, 1 were not"
    assert isinstance(caught.value, DataError)
    assert [result.partition for result in caught.value.results] == [1]
    rows = lastword.spark.plan(spark, str(root)).collect()
    assert [(row.partition, row.action, row.reasons[0].code) for row in rows if row.partition == 0] == [
        (0, "keep", "quarantined")
    ]
