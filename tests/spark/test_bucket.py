"""Spark over a log in a bucket: reads, writes and cleanings, without a directory that processes share."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("obstore")

import pyarrow as pa

import lastword
import lastword.spark
from lastword.bucket.files import BucketFiles
from lastword.errors import (
    LastwordError,
    NotPermittedError,
    PartialFailure,
    SparkOptionError,
    UnknownSettingError,
    UnknownTopicError,
    UploadsGoneError,
    UsageError,
)
from lastword.spark import bucket as in_bucket
from lastword.spark import clean_tasks, cleaning, sharded, splits, tasks
from lastword.spark import job as jobs
from lastword.spark.clean_tasks import BucketClean
from lastword.spark.options import NO_STORAGE, StorageOptions, parse_read, parse_write
from lastword.spark.schema import full_schema, sink_columns
from lastword.spark.source import LogReader
from lastword.spark.splits import choose, plan
from lastword.spark.stream import LogStreamReader
from lastword.spark.write import BucketJob, LogWriter, StagedMessage, WriteJob, prepare
from tests.spark.conftest import append, changed, create, descriptions, numbered, rows_of
from tests.spark.test_stream_write import undone
from tests.support.stores import Server

_numbers = count()
SECRETS = {
    "access_key_id": "aKeY-of-the-test",
    "secret_access_key": "sEcReT-of-the-test",
    "session_token": "tOkEn-of-the-test",
}


@pytest.fixture
def url() -> str:
    return f"memory://spark-{next(_numbers)}/log"


def made(url: str, partitions: int = 1, records: int = 0, **storage: str) -> None:
    """Make topic `t`, with one record of each number in turn of 10 keys."""
    with lastword.open(url, "a", storage_options=storage or None, log_cleaner_enable=False) as logs:
        topic = logs.create_topic("t", partitions=partitions, cleanup_policy="compact")
        if records:
            topic.extend((b"k%d" % (n % 10), b"v%d" % n) for n in range(records))


def rows(url: str, **options: str) -> list[dict[str, Any]]:
    """Return the rows of the source, task after task, without Spark."""
    options = {"path": url, "subscribe": "t", **options}
    chosen = parse_read({name.lower(): value for name, value in options.items()})
    return rows_of(LogReader(chosen, full_schema(chosen.include_headers)))


def job(url: str, **options: str) -> BucketJob:
    parsed = parse_write({"path": url, "topic": "t", **options})
    from pyspark.sql.types import BinaryType, StructType

    schema = StructType().add("key", BinaryType()).add("value", BinaryType())
    made_job = prepare(parsed, sink_columns(schema, parsed.formats))
    assert isinstance(made_job, BucketJob)
    return made_job


def staged(write: BucketJob, rows: pa.RecordBatch, task: int = 0) -> StagedMessage:
    """Stage and upload rows as a task with this number."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WriteJob, "_in_task", lambda self: (self.name, (task, 0), None, -1))
        return write.stage(iter([rows]))


def frame(first: int, count: int) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return pa.RecordBatch.from_pydict(
        {"key": [b"k%d" % (n % 10) for n in numbers], "value": [b"v%d" % n for n in numbers]}
    )


# ---------------------------------------------------------------- in one process


@pytest.mark.parametrize("view", ["log", "newest"])
@pytest.mark.parametrize("partitions", [1, 40])
def test_planning_costs_the_same_requests_for_any_number_of_partitions(
    url: str, requests: Counter[str], partitions: int, view: str
) -> None:
    made(url, partitions, 400)
    requests.clear()
    options = parse_read({"path": url, "subscribe": "t", "view": view})
    assert plan(choose(options), options)
    assert sum(requests.values()) <= 4, requests
    requests.clear()
    assert plan(choose(options), options)
    assert requests == {"get": 1}


@pytest.mark.parametrize("partitions", [1, 40])
def test_limits_in_bytes_cost_no_requests(url: str, requests: Counter[str], partitions: int) -> None:
    made(url, partitions, 400)
    given = {"path": url, "subscribe": "t", "minpartitions": "80", "startingoffsets": "earliest"}
    batch = parse_read({name: text for name, text in given.items() if name != "startingoffsets"})
    stream = parse_read({**given, "maxbytespertrigger": "1KiB"}, stream=True)
    reader = LogStreamReader(stream, full_schema(False))
    start, limit = reader.initialOffset(), reader.getDefaultReadLimit()
    plan(choose(batch), batch)
    requests.clear()
    assert plan(choose(batch), batch)
    end = reader.latestOffset(start, limit)
    assert end != start and reader.partitions(start, end)
    assert requests == {"get": 3}  # one for each call


@pytest.mark.parametrize("limit", ["minPartitions", "maxBytesPerPartition"])
def test_a_divided_range_has_each_record_once(url: str, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(splits, "CUT_BYTES", 100)
    made(url, 2, 100)
    with lastword.open(url, "a", log_cleaner_enable=False) as logs:
        logs.clean("t", partition=0)
        logs["t"].extend((b"k%d" % n, b"more") for n in range(300))
    options = {"minPartitions": "20"} if limit == "minPartitions" else {"maxBytesPerPartition": "500"}
    read = parse_read({"path": url, "subscribe": "t", **options})
    tasks = [part for task in plan(choose(read), read) for part in splits.parts_of(task)]
    assert len(tasks) >= 10
    with lastword.open(url) as logs:
        expected = [(record.partition, record.offset) for record in logs["t"].read()]
    assert sorted((row["partition"], row["offset"]) for row in rows(url, **options)) == sorted(expected)


def test_a_write_uploads_in_tasks_and_swaps_once(url: str, requests: Counter[str]) -> None:
    made(url, 3)
    write = job(url)
    requests.clear()
    messages = [staged(write, frame(first, 100), task) for task, first in enumerate((0, 100))]
    assert not requests["swap"]
    assert not rows(url)
    requests.clear()
    LogWriter(write).commit(messages)
    assert requests["swap"] == 1, requests
    assert sorted(row["value"] for row in rows(url)) == sorted(b"v%d" % n for n in range(200))
    with lastword.open(url) as logs:
        assert not logs.verify().problems
    assert not in_bucket.bucket_at(url, NO_STORAGE).load().manifest.uploads


def test_a_batch_of_a_producer_comes_in_once(url: str) -> None:
    made(url)
    for _ in range(2):
        write = job(url, producer="me", sequence="7")
        LogWriter(write).commit([staged(write, frame(0, 10))])
    assert len(rows(url)) == 10
    assert not in_bucket.bucket_at(url, NO_STORAGE).load().manifest.uploads


def test_an_aborted_write_leaves_nothing_named(url: str) -> None:
    made(url, 1, 5)
    write = job(url)
    message = staged(write, frame(0, 100))
    LogWriter(write).abort([message, None])
    loaded = in_bucket.bucket_at(url, NO_STORAGE).load()
    assert not loaded.manifest.uploads
    assert not {entry.object for entry in message.entries.values()} & loaded.snapshot.objects()
    with pytest.raises(UploadsGoneError):
        LogWriter(write).commit([message])
    assert len(rows(url)) == 5


def test_a_commit_to_a_deleted_topic_changes_nothing(url: str) -> None:
    made(url)
    write = job(url)
    message = staged(write, frame(0, 100))
    changed(url, lambda logs: logs.delete_topic("t"))
    with pytest.raises(LastwordError, match="does not exist any more"):
        LogWriter(write).commit([message])
    with pytest.raises(UnknownTopicError):
        rows(url)


def test_a_commit_to_a_recreated_topic_changes_nothing(url: str) -> None:
    made(url)
    write = job(url)
    message = staged(write, frame(0, 5))
    changed(url, lambda logs: logs.delete_topic("t"))
    made(url, 4)
    with pytest.raises(LastwordError, match="topic t was deleted and recreated since rows were staged"):
        LogWriter(write).commit([message])
    LogWriter(write).abort([message])
    assert rows(url) == []


def test_the_writer_of_a_commit_finds_the_uploads_of_the_tasks(url: str) -> None:
    made(url)
    names = [in_bucket.begin_uploads(url, NO_STORAGE, "file:/checkpoint") for _ in range(2)]
    assert names[0] == names[1] != in_bucket.begin_uploads(url, NO_STORAGE, "file:/another")


# ---------------------------------------------------------------- a giant partition


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run tasks one after the other in this process, and divide a cleaning into several units."""

    def results(spark: Any, function: Any, values: Any) -> Iterator[tuple[int, Any]]:
        for number, given in enumerate(values):
            step, value = pickle.loads(pickle.dumps((function, given)))
            yield number, pickle.loads(pickle.dumps(step(value)))

    for module in (tasks, cleaning, clean_tasks):
        monkeypatch.setattr(module, "results_as_completed", results)
        monkeypatch.setattr(module, "described", lambda spark, text: nullcontext())
    monkeypatch.setattr(cleaning, "frame_of", lambda spark, kind, values: values)
    monkeypatch.setattr(jobs, "SMALLEST_UNIT_BYTES", 20_000)


def giant(url: str, home: Path) -> Path:
    """Make topic `t` with a partition of 2400 records in 60 segments, in a bucket; return a copy on disk."""
    root = home / "log"
    create(root, "t", 1, segment_bytes="8KiB", index_interval_bytes=200)
    append(root, "t", 0, [numbered(n, 40, 130) for n in range(0, 2400, 40)])
    lastword.copy(root, url)
    return root


def records_at(log: Any) -> list[tuple[Any, ...]]:
    with lastword.open(log) as logs:
        assert logs.verify().ok
        return [(r.partition, r.offset, r.key, r.value) for r in logs["t"].read()]


def left_over(url: str) -> list[str]:
    """Return the names in the newest version that a divided cleaning must not leave there."""
    loaded = in_bucket.bucket_at(url, NO_STORAGE).load()
    paths = [path for path, _ in loaded.snapshot.files()]
    kinds = ("sharded-", "planned-", "rewrite-")
    return [*loaded.manifest.uploads, *(path for path in paths if any(kind in path for kind in kinds))]


def test_a_giant_partition_is_cleaned_in_steps_as_by_the_library(
    here: None, url: str, tmp_path: Path
) -> None:
    other = f"{url}-by-the-library"
    lastword.copy(giant(url, tmp_path), other)
    with lastword.open(other, "a", log_cleaner_enable=False) as logs:
        (expected,) = logs.clean("t", strategy="kafka")
    given = {"strategy": "kafka", "task_bytes": 20_000}
    (planned,) = lastword.spark.plan(None, url, "t", **given)
    assert not left_over(url)
    reports: list[Any] = []
    (cleaned,) = lastword.spark.clean(None, url, "t", progress=reports.append, **given)
    for name in ("records_read", "records_kept", "removed", "written_bytes", "segments_after", "end"):
        assert getattr(cleaned, name) == getattr(expected, name), name
    assert cleaned.certificate.content_digest == expected.certificate.content_digest
    assert planned.exact and planned.write_bytes == cleaned.written_bytes
    assert records_at(url) == records_at(other)
    assert reports[-1].done_bytes == reports[-1].total_bytes
    assert not left_over(url)


STEPS = {name: getattr(sharded, name) for name in ("extract", "resolve_shard", "mark_unit", "rewrite_group")}


@dataclass(frozen=True)
class Counted:
    """A step of a divided cleaning that can be sent to a task, as the step can. The call `dies_at` fails."""

    name: str
    dies_at: int
    calls: ClassVar[Counter[str]] = Counter()

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.calls[self.name] += 1
        if self.calls[self.name] == self.dies_at:
            raise KeyboardInterrupt
        return STEPS[self.name](*arguments, **options)


@dataclass(frozen=True)
class Removing:
    """The step `extract`, after which another process deletes the topic."""

    url: str

    def __call__(self, *arguments: Any) -> Any:
        result = STEPS["extract"](*arguments)
        with lastword.open(self.url, "a", log_cleaner_enable=False) as logs:
            if "t" in logs.dirs.topics():
                logs.delete_topic("t")
        return result


def test_a_driver_that_dies_is_gone_on_with(
    here: None, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = giant(url, tmp_path)
    monkeypatch.setattr(clean_tasks, "COMMIT_EVERY_S", -1.0)
    for dies, calls in {"extract": 2, "resolve_shard": 2, "mark_unit": 1, "rewrite_group": 1}.items():
        Counted.calls.clear()
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(sharded, dies, Counted(dies, calls))
            lastword.spark.clean(None, url, "t", task_bytes=20_000)
        assert any("sharded-" in name for name in left_over(url))
    Counted.calls.clear()
    for name in STEPS:
        monkeypatch.setattr(sharded, name, Counted(name, 0))
    lastword.spark.clean(None, url, "t", task_bytes=20_000)
    assert Counted.calls == {"rewrite_group": 1}
    with lastword.open(root, "a") as logs:
        logs.clean("t")
    assert records_at(url) == records_at(root)
    assert not left_over(url)


def test_others_change_a_giant_partition_meanwhile(
    here: None, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append is kept. After a cleaning by another process nothing is published, and nothing is lost."""
    root = giant(url, tmp_path)
    merge, others = (
        sharded.merge,
        [lambda logs: logs["t"].append(b"other", b"1"), lambda logs: logs.clean("t")],
    )

    def meanwhile(files: Any, job: Any) -> None:
        merge(files, job)
        if others:
            changed(url, lambda logs: others.pop(0)(logs))

    monkeypatch.setattr(sharded, "merge", meanwhile)
    (cleaned,) = lastword.spark.clean(None, url, "t", task_bytes=20_000)
    assert cleaned.complete and cleaned.removed.total
    with lastword.open(root, "a") as logs:
        logs.clean("t")
        logs["t"].append(b"other", b"1")
    assert records_at(url) == records_at(root)
    changed(url, lambda logs: logs["t"].extend((b"key-%d" % (n % 7), b"more") for n in range(700)))
    with pytest.raises(PartialFailure, match="changed while it was cleaned"):
        lastword.spark.clean(None, url, "t", task_bytes=1)
    newest = {key: value for _, _, key, value in records_at(root)} | {
        b"key-%d" % n: b"more" for n in range(7)
    }
    assert {key: value for _, _, key, value in records_at(url)} == newest
    assert not left_over(url)


def test_a_topic_that_is_removed_while_its_giant_partition_is_cleaned(
    here: None, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    giant(url, tmp_path)
    monkeypatch.setattr(sharded, "extract", Removing(url))
    with pytest.raises(LastwordError):
        lastword.spark.clean(None, url, "t", task_bytes=20_000)
    assert not left_over(url)
    with lastword.open(url) as logs:
        assert not logs.dirs.topics()


def test_values_expire_before_a_giant_partition_is_divided(here: None, url: str, tmp_path: Path) -> None:
    root = giant(url, tmp_path)  # its records are years old
    for log in (root, url):
        with lastword.open(log, "a", log_cleaner_enable=False) as logs:
            logs["t"].append(b"new", b"1")
            logs.set_config("t", lastword_ttl_ms="1d")
    lastword.spark.clean(None, url, "t", task_bytes=20_000)
    with lastword.open(root, "a") as logs:
        logs.clean("t")
    newest = [(key, value) for _, _, key, value in records_at(url)]
    assert newest == [(key, value) for _, _, key, value in records_at(root)]
    assert (b"new", b"1") in newest and all(value is None for key, value in newest if key != b"new")


def test_a_plan_without_the_permission_to_write_is_one_task(
    here: None, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    giant(url, tmp_path)
    divided = lastword.spark.plan(None, url, "t", task_bytes=20_000, strategy="kafka")

    def refused(*given: Any) -> None:
        raise NotPermittedError(f"{url}: the credentials do not allow to write", file=url)

    monkeypatch.setattr(in_bucket, "change", refused)
    whole = lastword.spark.plan(None, url, "t", task_bytes=20_000, strategy="kafka")
    assert [(plan.action, plan.write_bytes) for plan in whole] == [
        (plan.action, plan.write_bytes) for plan in divided
    ]


def test_damage_in_a_giant_partition_sets_it_aside(here: None, url: str, tmp_path: Path) -> None:
    giant(url, tmp_path)
    bucket = in_bucket.bucket_at(url, NO_STORAGE)

    def damage(files: BucketFiles) -> None:
        with files.open_append(f"{url}/t-0/{0:020d}.log") as handle:
            handle.pwrite(b"\xff", 200)

    bucket.transaction(damage)
    with pytest.raises(PartialFailure):
        lastword.spark.clean(None, url, "t", task_bytes=20_000)
    assert not left_over(url)
    with pytest.raises(PartialFailure, match="quarantined"):
        lastword.spark.clean(None, url, "t", task_bytes=20_000)


# ---------------------------------------------------------------- options


def test_options_of_a_store_are_checked_and_never_shown() -> None:
    given = {f"storage.{name}": value for name, value in SECRETS.items()}
    read = parse_read({"path": "S3://bucket/log/", "subscribe": "t", **given})
    write = parse_write({"path": "s3://bucket/log", "topic": "t", **given})
    assert read.path == write.path == "s3://bucket/log"
    assert dict(read.storage.items) == SECRETS
    for text in (repr(read), repr(write), str(read.storage)):
        assert "of-the-test" not in text
        assert "session_token" in text
    with pytest.raises(UnknownSettingError, match="session_token") as raised:
        parse_read(
            {"path": "s3://bucket/log", "subscribe": "t", "storage.session_tokn": "sEcReT-of-the-test"}
        )
    assert "of-the-test" not in str(raised.value)
    shown = {"path": "az://container/log", "subscribe": "t", "storage.account_key": "sEcReT-of-the-test"}
    with pytest.raises(SparkOptionError, match=r"storage\.secret\.account_key") as refused:
        parse_read(shown)
    assert "of-the-test" not in str(refused.value)
    hidden = parse_read(
        {"path": "s3://bucket/log", "subscribe": "t", **StorageOptions(read.storage.items).named()}
    )
    assert hidden.storage == read.storage
    with pytest.raises(UsageError, match="in a bucket"):
        parse_read({"path": "/data", "subscribe": "t", **given})
    with pytest.raises(SparkOptionError, match="not a URL") as refused:
        parse_read({"path": "hdfs://host/log", "subscribe": "t", **given})
    assert "of-the-test" not in str(refused.value)
    assert StorageOptions.of("/data", None) == NO_STORAGE


# ---------------------------------------------------------------- with Spark


spark_test = pytest.mark.spark


@pytest.fixture
def s3(moto: Server) -> tuple[str, dict[str, str]]:
    """Return the URL of a new log on a server that all processes reach, and the options of its store."""
    return f"{moto.root}/spark-{next(_numbers)}", dict(moto.options)


def named(options: dict[str, str]) -> dict[str, str]:
    return StorageOptions(tuple(options.items())).named()


def load(spark: Any, s3: tuple[str, dict[str, str]], **options: str) -> Any:
    reader = spark.read.format("lastword").options(subscribe="t", **named(s3[1]))
    return reader.options(**options).load(s3[0])


@spark_test
@pytest.mark.xdist_group("spark")
def test_the_verbs_take_a_url(spark: Any, s3: tuple[str, dict[str, str]]) -> None:
    url, options = s3
    made(url, 2, 500, **options)
    given = {"storage_options": options}
    assert {row["action"] for row in lastword.spark.plan(spark, url, "t", **given).collect()} == {"clean"}
    rounds = lastword.spark.clean(spark, url, "t", task_bytes=3000, **given).collect()
    assert sorted(row["partition"] for row in rounds) == [0, 1]
    assert load(spark, s3).count() == 10
    assert not lastword.spark.verify(spark, url, **given).collect()
    assert lastword.spark.restore(spark, url, "t", **given).count() == 10
    assert lastword.spark.duplication(spark, url, "t", **given).collect()
    assert not lastword.spark.expire(spark, url, "t", **given).collect()
    delivered = load(spark, s3).select("key", "offset")
    assert not lastword.spark.audit(spark, url, "t", delivered=delivered, **given).collect()


@spark_test
@pytest.mark.xdist_group("spark")
def test_a_stream_reads_and_writes_each_batch_once(
    spark: Any, s3: tuple[str, dict[str, str]], tmp_path: Path
) -> None:
    """Also a batch that Spark runs again, because the note of its commit is missing."""
    url, options = s3
    made(url, 2, 50, **options)
    rows = spark.readStream.format("lastword").options(
        subscribe="t", startingOffsets="earliest", maxOffsetsPerTrigger=40, lease="copier", **named(options)
    )
    copied = rows.load(url).selectExpr("'u' AS topic", "key", "value").writeStream.format("lastword")
    copied = copied.options(topic="u", checkpointLocation=str(tmp_path / "checkpoint"), **named(options))
    for _ in range(2):
        query = copied.trigger(availableNow=True).start(url)
        query.awaitTermination()
        assert query.exception() is None
        assert query.lastProgress["batchId"] == 1
        undone(tmp_path / "checkpoint")
    given = {"storage_options": options}
    assert [row.lag_offsets for row in lastword.spark.lag(spark, url, query=query, **given).collect()] == [
        0,
        0,
    ]
    with lastword.open(url, **given) as logs:
        assert len(list(logs["u"].read())) == 50
        assert [lease.name for lease in logs["t"].leases()] == ["copier", "copier"]
        assert not logs.dirs.newest.manifest.uploads


@spark_test
@pytest.mark.xdist_group("spark")
def test_complete_mode_writes_differences(spark: Any, s3: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    url, options = s3
    given = {"storage_options": options}
    made(url, 1, 25, **options)
    counted = spark.readStream.format("lastword").options(subscribe="t", startingOffsets="earliest")
    counted = counted.options(**named(options)).load(url).groupBy("key").count()
    counted = counted.where("count < 3").selectExpr("key", "CAST(count AS STRING) AS value")
    for _ in range(2):
        query = lastword.spark.update_stream(
            counted, url, "rare", checkpoint=tmp_path / "checkpoint", mode="complete",
            trigger={"availableNow": True}, **given,
        )  # fmt: skip
        query.awaitTermination()
        with lastword.open(url, "a", log_cleaner_enable=False, **given) as logs:
            assert sorted((r.key, r.value) for r in logs["rare"].read()) == [
                (b"k%d" % number, "2") for number in range(5, 10)
            ]
        undone(tmp_path / "checkpoint")


@spark_test
@pytest.mark.xdist_group("spark")
def test_a_failing_task_leaves_nothing_named(spark: Any, s3: tuple[str, dict[str, str]]) -> None:
    url, options = s3
    made(url, 1, 5, **options)
    value = "IF(id = 150, raise_error('on purpose'), concat('v', id))"
    frame = spark.range(0, 200, 1, 2).selectExpr("concat('k', id) AS key", f"{value} AS value")
    writer = frame.write.format("lastword").mode("append").options(topic="t", **named(options))
    with pytest.raises(Exception, match="on purpose"):
        writer.save(url)
    assert load(spark, s3).count() == 5
    with lastword.open(url, storage_options=options) as logs:
        assert not logs.dirs.newest.manifest.uploads
        assert not [name for name in logs.dirs.newest.children("") if "staged" in name or "inbox" in name]


@contextmanager
def log_of_the_jvm(spark: Any) -> Iterator[Callable[[], str]]:
    """Yield a function that returns what Spark's JVM has logged in the block, at the level DEBUG."""
    core, writer = spark._jvm.org.apache.logging.log4j.core, spark._jvm.java.io.StringWriter()
    layout = core.layout.PatternLayout.createDefaultLayout()
    appender = core.appender.WriterAppender.createAppender(layout, None, writer, "test", False, True)
    appender.start()
    logger = (
        spark._jvm.org.apache.logging.log4j.LogManager.getContext(False).getConfiguration().getRootLogger()
    )
    logger.addAppender(appender, None, None)
    spark.sparkContext.setLogLevel("DEBUG")
    try:
        yield writer.toString
    finally:
        spark.sparkContext.setLogLevel("OFF")
        logger.removeAppender("test")


def pages(spark: Any) -> Iterator[str]:
    """Yield what Spark's UI shows of each query."""
    queries = spark._jsparkSession.sharedState().statusStore().executionsList()
    for number in range(queries.size()):
        query = queries.apply(number)
        yield from (query.description(), query.details(), query.physicalPlanDescription())


@spark_test
@pytest.mark.xdist_group("spark")
def test_credentials_are_nowhere(
    spark: Any,
    s3: tuple[str, dict[str, str]],
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Not in plans, the UI, logs, errors, `explain()`, reprs, or a checkpoint."""
    url, options = s3
    secrets = options | SECRETS
    public = {"access_key_id": options["access_key_id"]}  # Spark shows it; it is in each signed request
    made(url, 1, 5, **options)
    given, caplog_level = {"storage_options": secrets}, caplog.at_level("DEBUG", "lastword")
    shown: dict[str, str] = {}
    with log_of_the_jvm(spark) as logged, caplog_level:
        for way, names in {"hidden": named(secrets), "plain": plain(secrets | public)}.items():
            frame = spark.read.format("lastword").options(subscribe="t", **names).load(url)
            for mode in ("simple", "extended", "cost", "formatted"):
                frame.explain(mode)
            shown[f"{way} plan"] = frame._jdf.queryExecution().toString() + repr(frame)
            frame.createOrReplaceTempView("of_bucket")
            assert spark.sql("SELECT count(*) FROM of_bucket").collect()[0][0] == 5
        rows = frame.select("key", "value").write.format("lastword").mode("append")
        rows.options(topic="u", **names).save(url)
        stream = spark.readStream.format("lastword").options(subscribe="t", **names).load(url)
        shown["plan of a stream"] = stream._jdf.queryExecution().toString()
        checkpoint = tmp_path / "checkpoint"
        query = stream.select("key", "value").writeStream.format("lastword").trigger(availableNow=True)
        query = query.options(topic="s", checkpointLocation=str(checkpoint), **names).start(url)
        assert query.awaitTermination(60)
        query.explain(extended=True)
        shown["progress"] = f"{query.status} {query.recentProgress}"
        for path in checkpoint.rglob("*"):
            if path.is_file():
                shown[str(path)] = path.read_bytes().decode(errors="replace")
        lastword.spark.clean(spark, url, "t", **given)
        lastword.spark.restore(spark, url, "t", **given).explain(True)
        for name, wrong in {
            "clean": lambda: lastword.spark.clean(spark, url, "missing", **given),
            "read": lambda: load(spark, (url, secrets), subscribe="missing").count(),
            "write": lambda: frame.write.format("lastword").mode("append").options(topik="t").save(url),
            "no log": lambda: load(spark, (url + "/no-log", secrets)).count(),
        }.items():
            with pytest.raises(Exception, match=r"missing|topik|no-log") as raised:
                wrong()
            shown[f"error of {name}"] = f"{raised.value} {raised.value!r} {raised.getrepr()}"
        shown["log of the JVM"] = logged()
    read = parse_read({"path": url, "subscribe": "t", **named(secrets)})
    task = plan(choose(read), read)[0]
    cleaning = BucketClean(url, read.storage, due=False, strategy=None)
    shown["reprs"] = repr(
        [read, task, LogReader(read, full_schema(False)), cleaning, job(url, **named(secrets))]
    )
    shown["descriptions"] = repr(descriptions(spark))
    shown["pages"] = "\n".join(pages(spark))
    shown["printed"] = repr(capsys.readouterr())
    shown["logged"] = caplog.text
    assert len(shown["log of the JVM"]) > 100_000 and len(shown["printed"]) > 1000
    assert "s3://" in shown["pages"] or "lastword" in shown["pages"]
    for name, text in shown.items():
        assert "of-the-test" not in text, name


def plain(options: dict[str, str]) -> dict[str, str]:
    return {f"storage.{name}": value for name, value in options.items()}
