"""One Spark session for the whole run, made when the first test needs it, and logs to read without a JVM."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import lastword
from lastword.logdir.log_dir import LogDirectory
from lastword.records.batch import BatchBuilder
from lastword.spark.options import parse_read
from lastword.spark.schema import full_schema
from lastword.spark.source import LogReader

FOR_TESTS = {
    "spark.master": "local[2,2]",  # two cores; a failed task is tried once more, so that retries are tested
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",  # starts a third faster
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",  # these tests need no more partitions, and each costs a task
    "spark.sql.adaptive.enabled": "false",  # plans stay as they are written
    "spark.sql.catalogImplementation": "in-memory",
}

Row = tuple[Any, ...]  # timestamp, key, value, headers


@pytest.fixture(scope="session")
def spark(spark_home: None) -> Iterator[Any]:
    """Yield the session; its Python finds `pyspark_lastword`, so the format needs no registration."""
    from lastword.spark import session

    conf = dict(FOR_TESTS)
    spark_session = session(conf.pop("spark.master"), **conf)
    # Tests in which tasks fail on purpose would fill the screen.
    spark_session.sparkContext.setLogLevel("OFF")
    yield spark_session
    spark_session.stop()


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Run tasks in this process, one after the other; return their values, to which they are added."""
    import lastword.spark.schema
    import lastword.spark.tasks

    tasks: list[Any] = []

    def completed(spark: Any, function: Any, values: Any) -> Iterator[tuple[int, Any]]:
        for number, value in enumerate(values):
            tasks.append(value)
            yield number, pickle.loads(pickle.dumps(function(pickle.loads(pickle.dumps(value)))))

    monkeypatch.setattr(lastword.spark.tasks, "results_as_completed", completed)
    monkeypatch.setattr(lastword.spark.schema, "frame_of", lambda spark, kind, values: values)
    monkeypatch.setattr(lastword.spark.tasks, "described", lambda spark, text: nullcontext())
    return tasks


def descriptions(spark: Any) -> set[str]:
    """Return the descriptions of all jobs of the session, as Spark's UI lists them."""
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    given = [jobs.apply(number).description() for number in range(jobs.size())]
    return {text.get() for text in given if text.isDefined()}


def append(
    root: Path, topic: str, partition: int, batches: Sequence[Sequence[Row]], *, codec: int = 0
) -> None:
    """Append each inner list as one batch; the topic must exist."""
    with LogDirectory.open(str(root), "a") as directory:
        log = directory.log(topic, partition)
        for rows in batches:
            builder = BatchBuilder(codec)
            for timestamp, key, value, headers in rows:
                builder.append(timestamp, key, value, headers)
            log.append_batch(builder.build(0))


def create(root: Path, topic: str, partitions: int = 1, **settings: Any) -> None:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    with LogDirectory.open(str(root), "a") as directory:
        directory.create_topic(topic, partitions, {"cleanup.policy": "compact", **named})


def changed(log: Path | str, work: Callable[[lastword.LogDir], Any]) -> Any:
    """Return the result of work on a log that is open to append, without a background cleaner."""
    with lastword.open(log, "a", log_cleaner_enable=False) as logs:
        return work(logs)


def numbered(first: int, count: int, keys: int) -> list[Row]:
    """Return `count` records of `keys` keys in turn; each value has the number of its record.

    One record in seven is a tombstone.
    """
    rows: list[Row] = []
    for number in range(first, first + count):
        value = None if number % 7 == 3 else b"value-%d" % number
        rows.append((1_700_000_000_000 + number, b"key-%d" % (number % keys), value, ()))
    return rows


def read_directly(root: Path | str, **options: str) -> list[dict[str, Any]]:
    """Return the rows of the source, task after task, without Spark."""
    given = {"path": str(root), "subscribe": "t"}
    if "assign" in options:
        del given["subscribe"]
    chosen = parse_read({**given, **{name.lower(): value for name, value in options.items()}})
    return rows_of(LogReader(chosen, full_schema(chosen.include_headers)))


def rows_of(reader: LogReader) -> list[dict[str, Any]]:
    """Return the rows of a reader, task after task."""
    return [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
