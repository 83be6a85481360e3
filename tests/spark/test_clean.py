"""The cleaner on Spark beside the library's on a copy of the log: plans, rounds, records, accounts."""

from __future__ import annotations

import dataclasses
import importlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

import lastword
import lastword.spark
from lastword.accounts.snapshot import saved_entries
from lastword.files import DEFAULT, OVERLAP_FROM, OVERLAP_THREADS
from lastword.logdir.ledgers import Ledgers
from lastword.spark.tasks import results_as_completed
from tests.spark.conftest import append, create, descriptions, numbered
from tests.support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

OF_THE_MOMENT = {"now_ms", "seconds", "phases", "tombstones"}
OF_THE_FILE = {"inode", "mtime_ms", "tail_crc", "oldest_dead_ms"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Make topic t: 2 partitions of 1200 and 300 records in many segments, every seventh a tombstone."""
    root = tmp_path / "log"
    create(root, "t", 2, segment_bytes="4KiB", index_interval_bytes=200)
    append(root, "t", 0, [numbered(n, 20, 130) for n in range(0, 1200, 20)])
    append(root, "t", 1, [numbered(n, 20, 40) for n in range(1000, 1300, 20)])
    return root


def copied(root: Path, to: Path) -> Path:
    return Path(shutil.copytree(root, to))


def values(items: Any) -> list[dict[str, Any]]:
    """Return Spark's rows or the library's values as dicts, without the fields that depend on the time."""
    rows = [
        row.asDict(recursive=True) if hasattr(row, "asDict") else dataclasses.asdict(row) for row in items
    ]
    for row in rows:
        for name in OF_THE_MOMENT:
            row.pop(name, None)
        if row.get("certificate"):
            del row["certificate"]["key_offset_digest"]  # each round hashes keys with another salt
        if "reasons" in row:
            row["reasons"] = [tuple(reason.values()) for reason in row["reasons"]]
    return sorted(rows, key=lambda row: (row["topic"], row["partition"]))


def here(root: Path, work: Callable[[Any], Any], mode: str = "a") -> Any:
    given = {"log_cleaner_enable": False} if mode == "a" else {}
    with lastword.open(root, mode, **given) as logs:
        return work(logs)


def records(root: Path, **options: Any) -> list[tuple[Any, ...]]:
    topic_records = here(root, lambda logs: list(logs.topic("t").read(**options)), "r")
    return [(r.partition, r.offset, r.key, r.value, r.timestamp) for r in topic_records]


def log_sizes(root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): path.stat().st_size for path in sorted(root.glob("t-*/*.log"))}


def accounts(root: Path, partition: int) -> list[dict[str, Any]]:
    entries = [dataclasses.asdict(entry) for entry in saved_entries(DEFAULT, str(root / f"t-{partition}"))]
    assert entries, "accounts were saved"
    return [{name: value for name, value in entry.items() if name not in OF_THE_FILE} for entry in entries]


def same_log(root: Path, other: Path) -> None:
    assert records(root) == records(other)
    assert log_sizes(root) == log_sizes(other)
    assert not [path for path in root.glob("t-*/lastword/*") if path.is_dir()], "nothing is left over"


@pytest.mark.parametrize("strategy", [None, "kafka"])
def test_the_same_plans_rounds_and_files(
    spark: SparkSession, root: Path, tmp_path: Path, strategy: str | None
) -> None:
    create(root, "kept", 1, cleanup_policy="delete")
    other = copied(root, tmp_path / "other")
    planned = values(here(other, lambda logs: logs.plan("t", strategy=strategy), "r"))
    assert values(lastword.spark.plan(spark, str(root), "t", strategy=strategy).collect()) == planned
    assert [row["strategy"] for row in planned] == [strategy or "generational"] * 2
    done = values(here(other, lambda logs: logs.clean("t", strategy=strategy)))
    rows = values(lastword.spark.clean(spark, str(root), strategy=strategy).collect())
    assert rows == done
    assert [row["written_bytes"] for row in rows] == [row["write_bytes"] for row in planned]
    same_log(root, other)
    if strategy is None:
        for partition in range(2):
            assert accounts(root, partition) == accounts(other, partition)
    newest = {(r[0], r[2]): r[3] for r in records(other) if r[3] is not None}
    newest_view = (
        spark.read.format("lastword").options(subscribe="t", view="newest").load(str(root)).collect()
    )
    assert {(row.partition, bytes(row.key)): bytes(row.value) for row in newest_view} == newest
    again = lastword.spark.plan(spark, str(root), "t", strategy=strategy)
    assert again.where("action = 'clean'").count() == 0


def test_each_engine_goes_on_from_the_accounts_of_the_other(
    spark: SparkSession, root: Path, tmp_path: Path
) -> None:
    """Spark cleans, then the library, then Spark; the library alone cleans a copy.

    A round that reads only the new bytes and what it rewrites has used the accounts.
    """
    other = copied(root, tmp_path / "other")

    def by_spark(root: Path) -> list[dict[str, Any]]:
        return values(lastword.spark.clean(spark, str(root), "t").collect())

    def by_library(root: Path) -> list[dict[str, Any]]:
        return values(here(root, lambda logs: logs.clean("t")))

    for turn, clean in enumerate((by_spark, by_library, by_spark)):
        rows, expected = clean(root), by_library(other)
        assert rows == expected
        same_log(root, other)
        for partition in range(2):
            assert accounts(root, partition) == accounts(other, partition)
        for place in (root, other):
            append(place, "t", 0, [numbered(2000 + turn * 100 + n, 20, 300) for n in range(0, 100, 20)])
    total = sum(log_sizes(root).values())
    assert sum(row["read_bytes"] for row in rows) < total, "the whole was not read again"


@pytest.mark.parametrize("partition", [None, 1])
def test_what_is_due_is_the_same(
    spark: SparkSession,
    root: Path,
    tmp_path: Path,
    partition: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The choice includes the cost of one more file, measured by the wall clock: both get its upper bound.
    monkeypatch.setattr(Ledgers, "file_cost_bytes", float(1 << 30))
    other = copied(root, tmp_path / "other")
    append(root, "t", 1, [numbered(5000, 20, 40)])
    append(other, "t", 1, [numbered(5000, 20, 40)])
    for _ in range(2):  # in the second pass nothing is due
        planned = values(here(other, lambda logs: logs.plan("t", partition, due=True), "r"))
        assert values(lastword.spark.plan(spark, str(root), "t", partition, due=True).collect()) == planned
        done = values(here(other, lambda logs: logs.clean("t", partition, due=True)))
        rows = values(lastword.spark.clean(spark, str(root), "t", partition, due=True).collect())
        assert removed(rows) == removed(done)
        written = sum(row["written_bytes"] for row in rows)
        assert written <= sum(row["written_bytes"] for row in done), "a run that takes in another goes once"
        same_log(root, other)
    assert {row["action"] for row in planned} == {"keep"} and not done


def removed(rounds: list[dict[str, Any]]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for row in rounds:
        counts[row["partition"]] = counts.get(row["partition"], 0) + row["removed"]["superseded"]
    return counts


def test_a_map_too_small_for_the_keys(spark: SparkSession, root: Path, tmp_path: Path) -> None:
    """The cleaner chooses by a sample of the keys, and resolves the whole log in passes."""
    settings = (root / "lastword.toml").read_text()
    (root / "lastword.toml").write_text(f'"log.cleaner.dedupe.buffer.size" = "64KiB"\n{settings}')
    append(root, "t", 0, [numbered(n, 100, 9000) for n in range(2000, 12000, 100)])
    other = copied(root, tmp_path / "other")
    done = values(here(other, lambda logs: logs.clean("t")))
    rows = values(lastword.spark.clean(spark, str(root), "t").collect())
    assert [row["records_kept"] for row in rows] == [row["records_kept"] for row in done]
    assert max(row["map_passes"] for row in rows) > 1
    assert records(root) == records(other)


def test_a_cleaning_says_what_runs_and_how_far_it_is(spark: SparkSession, root: Path) -> None:
    reports: list[Any] = []
    spark.sparkContext.setJobDescription("nightly")
    try:
        lastword.spark.plan(spark, root, progress=reports.append)
        assert reports[-1].verb == "plan" and reports[-1].done_bytes == reports[-1].total_bytes > 0
        reports.clear()
        lastword.spark.clean(spark, root, "t", progress=reports.append)
    finally:
        assert spark.sparkContext.getLocalProperty("spark.job.description") == "nightly"
        spark.sparkContext.setJobDescription(None)
    assert [progress.verb for progress in reports] == ["clean"] * 3
    assert reports[-1].done_bytes == reports[-1].total_bytes > reports[0].done_bytes > 0
    expected = {f"nightly: lastword {verb}: t-{number}" for verb in ("plan", "clean") for number in range(2)}
    assert expected <= descriptions(spark)


def test_a_cleaning_that_is_interrupted_leaves_nothing(
    spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C when the outputs of both tasks exist and none is published."""
    before, tracker = records(root), spark.sparkContext.statusTracker()

    def written() -> set[str]:
        return {path.parts[-3] for path in root.glob("t-*/lastword/rewrite-*")}

    def interrupted(*_: Any) -> Any:
        until(lambda: not tracker.getActiveJobsIds() and written() == {"t-0", "t-1"}, 120)
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib.import_module("lastword.spark.cleaning"), "_publish", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lastword.spark.clean(spark, root, "t")
    assert not written()
    monkeypatch.undo()
    assert records(root) == before
    assert len(lastword.spark.clean(spark, root, "t").collect()) == 2


# ---------------------------------------------------------------- tasks


def test_answers_come_while_others_run(spark: SparkSession, tmp_path: Path) -> None:
    """The first task ends only after the second result arrived; the third value is made while both run."""
    numbers: list[int] = []

    def values() -> Iterator[tuple[str, str]]:
        for number, name in enumerate(("waits", "", "")):
            numbers.append(number)
            yield str(tmp_path / "go"), name

    order = []
    for number, _ in results_as_completed(spark, waits, values()):
        order.append(number)
        if number == 1:
            (tmp_path / "go").touch()
    assert sorted(order) == [0, 1, 2] and order.index(1) < order.index(0)
    assert numbers == [0, 1, 2]


def waits(task: tuple[str, str]) -> None:
    go, name = task
    deadline = time.monotonic() + 60
    while name and not Path(go).exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_many_results_are_published_on_threads_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller has few results at a time, and no thread runs when it stops in between."""
    drawn, published, names = [], [], set()

    def results() -> Iterator[tuple[int, Any]]:
        for number in range(400):
            drawn.append(number)
            yield number, None

    def publish(directory: Any, plan: int, built: Any) -> int:
        names.add(threading.current_thread().name.rpartition("_")[0])
        time.sleep(0.001)
        published.append(plan)
        return plan

    module = importlib.import_module("lastword.spark.cleaning")
    monkeypatch.setattr(module, "_publish", publish)
    tasks: Any = [SimpleNamespace(plan=number) for number in range(400)]
    directory: Any = None
    outcomes: list[Any] = []
    for outcome in module._publish_each(directory, tasks, results(), 400):
        outcomes.append(outcome)
        assert len(drawn) - len(outcomes) <= 4 * OVERLAP_THREADS + 1
    assert outcomes == list(range(400)) and names == {"lastword-publish"}
    published.clear()
    generator = module._publish_each(directory, tasks, results(), 400)
    next(generator)
    generator.close()
    ended = len(published)
    time.sleep(0.01)
    assert len(published) == ended < 400
    assert list(module._publish_each(directory, tasks[:3], [(1, None), (0, None)], 2)) == [1, 0]


def test_many_small_partitions_are_cleaned_as_by_the_library(spark: SparkSession, tmp_path: Path) -> None:
    partitions = OVERLAP_FROM + 6
    root = tmp_path / "log"
    create(root, "t", partitions)
    for partition in range(partitions):
        append(root, "t", partition, [numbered(partition, 30, 7)])
    beside = copied(root, tmp_path / "beside")
    rows = lastword.spark.clean(spark, root, "t").collect()
    with lastword.open(beside, "a", log_cleaner_enable=False) as logs:
        results = logs.clean("t")
    assert values(rows) == values(results)
    for path in (root, beside):
        with lastword.open(path) as logs:
            assert logs.verify().ok and len(logs.topic("t").describe()) == partitions
            assert all(row.first_dirty == 30 for row in logs.topic("t").describe())
