"""`lastword.spark.export`: tasks write the files of a table; it is the table that `Topic.export` makes.

The tests without a session call the tasks here, with values that were pickled as for a task.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

from deltalake import DeltaTable

import lastword
import lastword.spark.tasks
from lastword.errors import NotSharedError, StorageError, UnknownTopicError, UsageError, ValueFormatError
from lastword.lake import data
from lastword.lake import export as steps
from lastword.lake.directory import DirectoryStore
from lastword.lake.table import Table
from tests.lake.histories import rows_of

exporting: Any = sys.modules["lastword.spark.export"]
HONEST = exporting._change


@pytest.fixture
def log(tmp_path: Path) -> Path:
    with opened(tmp_path / "log") as logs:
        topic = logs.create_topic(
            "t",
            partitions=3,
            cleanup_policy="compact",
            segment_bytes=1000,
            key_serializer="str",
            value_serializer="str",
        )
        fill(topic, 0, 90)
    return tmp_path / "log"


def opened(log: Path) -> Any:
    return lastword.open(log, "a", log_cleaner_enable=False)


def fill(topic: Any, first: int, last: int, value: str = "v") -> None:
    topic.extend([(f"k{number}", f"{value}{number}") for number in range(first, last)])


def newest(log: Path) -> dict[Any, Any]:
    with lastword.open(log) as logs:
        return {(r.partition, r.offset): (r.key, r.value) for r in logs["t"].newest()}


def export(log: Path, table: Path, spark: Any = None, **options: Any) -> Any:
    return lastword.spark.export(spark, log, "t", f"delta:{table}", **options)


def check_exports(log: Path, table: Path, spark: Any = None) -> None:
    """Export with tasks and without, in turn, while the log changes."""
    planned = export(log, table, spark, dry_run=True)
    assert not table.exists()
    first = export(log, table, spark)
    assert (first.version, first.added_rows, first.files) == (0, 90, 3)
    assert dataclasses.replace(planned, version=0) == first
    assert rows_of(str(table)) == newest(log)
    assert export(log, table, spark).version is None
    with opened(log) as logs:
        fill(logs["t"], 0, 20, "new")
        logs["t"].delete("k50")
        logs.clean("t")
    second = export(log, table, spark)
    assert (second.version, second.added_rows, second.removed_rows) == (1, 20, 21)
    assert rows_of(str(table)) == newest(log)
    with opened(log) as logs:
        fill(logs["t"], 30, 80, "newer")
        assert logs["t"].export(f"delta:{table}", dry_run=True).added_rows == 50
    files = sorted(table.rglob("*"))
    planned = export(log, table, spark, dry_run=True)
    assert sorted(table.rglob("*")) == files
    third = export(log, table, spark)
    assert third.rewritten_rows > 0
    assert dataclasses.replace(planned, version=2) == third
    assert rows_of(str(table)) == newest(log)
    with opened(log) as logs:
        assert logs["t"].export(f"delta:{table}").version is None
        assert third.end_offsets == {number: end for number, (_, end) in logs["t"].bounds().items()}


def test_it_makes_the_table_of_the_librarys_export(tmp_path: Path, log: Path, here: list[Any]) -> None:
    check_exports(log, tmp_path / "table")
    kinds = [type(task).__name__ for task in here]
    assert kinds.count("_ChangeTask") == 15 and kinds.count("_RewriteTask") >= 1


def test_progress_counts_the_partitions_whose_tasks_ended(tmp_path: Path, log: Path, here: list[Any]) -> None:
    for dry_run in (True, False, False):  # the last one finds everything in the table
        seen: list[Any] = []
        export(log, tmp_path / "table", progress=seen.append, dry_run=dry_run)
        done = [progress.done_bytes for progress in seen]
        assert len(set(done)) == len(done) == 3
        assert done == sorted(done) and done[-1] == seen[-1].total_bytes > 0


def test_a_dry_run_that_fails_deletes_nothing(
    tmp_path: Path, log: Path, here: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DirectoryStore, "delete", None)
    monkeypatch.setattr(exporting, "change_of", _fails)
    with pytest.raises(StorageError, match="on purpose"):
        export(log, tmp_path / "table", dry_run=True)


def _fails(*given: Any) -> Any:
    raise StorageError("on purpose", remedy="none")


def test_a_task_gets_the_files_of_its_partition(tmp_path: Path, log: Path, here: list[Any]) -> None:
    export(log, tmp_path / "table")
    with opened(log) as logs:
        fill(logs["t"], 0, 20, "new")
    here.clear()
    export(log, tmp_path / "table")
    assert [len(task.files) for task in here] == [1, 1, 1]


def test_a_topic_in_a_bucket(tmp_path: Path, log: Path, here: list[Any]) -> None:
    url = f"memory://{tmp_path.name}/log"
    lastword.copy(log, url)
    lastword.spark.export(None, url, "t", f"delta:{tmp_path / 'table'}")
    assert rows_of(str(tmp_path / "table")) == newest(log)


def test_tasks_that_fail_leave_no_files(
    tmp_path: Path, log: Path, here: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table"
    monkeypatch.setattr(data, "FILE_BYTES", 1)
    monkeypatch.setattr(data, "BUFFERED_BYTES", 1)
    with opened(log) as logs:
        topic = logs.create_topic("j", partitions=2, cleanup_policy="compact", key_serializer="str")
        topic.append("good", b'{"n": 1}', partition=0)
        topic.append("bad", b"no json", partition=1)
    with pytest.raises(ValueFormatError, match="j-1"):
        lastword.spark.export(None, log, "j", f"delta:{table}", value_format="json", value_schema="n INT")
    assert not list(table.rglob("*.parquet"))
    monkeypatch.setattr(exporting, "_change", _full)
    with pytest.raises(StorageError, match="on purpose"):
        export(log, table)
    assert not list(table.rglob("*.parquet"))


def _full(task: Any) -> Any:
    if task.number == 2:
        raise StorageError("on purpose", remedy="none")
    return HONEST(task)


def test_a_killed_driver_leaves_files_that_a_later_export_removes(
    tmp_path: Path, log: Path, here: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "table"
    export(log, table)
    with opened(log) as logs:
        fill(logs["t"], 0, 20, "new")
    before = rows_of(str(table))

    def killed(*given: Any) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Table, "commit", killed)
        patch.setattr(steps._Attempt, "undo", lambda self: None)
        with pytest.raises(KeyboardInterrupt):
            export(log, table)
    assert rows_of(str(table)) == before
    left = {path.name for path in table.glob("lastword-*1-*.parquet")}
    assert len(left) == 3
    for path in table.rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    monkeypatch.setattr(steps, "CHECKPOINT_COMMITS", 1)
    assert export(log, table).version == 1
    assert not left & {path.name for path in table.iterdir()}
    assert rows_of(str(table)) == newest(log)


def test_a_topic_that_is_made_again_meanwhile(
    tmp_path: Path, log: Path, here: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def remade(task: Any) -> Any:
        if len(here) == 1:
            with opened(log) as logs:
                logs.delete_topic("t")
                logs.create_topic("t", partitions=3, key_serializer="str", value_serializer="str")
        return HONEST(task)

    monkeypatch.setattr(exporting, "_change", remade)
    with pytest.raises(lastword.errors.BusyError, match="made again"):
        export(log, tmp_path / "table")
    monkeypatch.undo()
    assert not list((tmp_path / "table").rglob("*.parquet"))


def test_a_directory_that_the_driver_does_not_see(
    tmp_path: Path, log: Path, here: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere(task: Any) -> Any:
        change, written = HONEST(task)
        for name in written.names:
            (tmp_path / "table" / name).unlink()
        return change, written

    monkeypatch.setattr(exporting, "_change", elsewhere)
    with pytest.raises(NotSharedError, match="a task wrote"):
        export(log, tmp_path / "table")
    assert not DeltaTable.is_deltatable(str(tmp_path / "table"))


def test_a_wrong_call_writes_nothing(tmp_path: Path, log: Path, here: list[Any]) -> None:
    with pytest.raises(UnknownTopicError):
        lastword.spark.export(None, log, "missing", f"delta:{tmp_path / 'table'}")
    with pytest.raises(UsageError, match="names no table"):
        lastword.spark.export(None, log, "t", str(tmp_path / "table"))
    with pytest.raises(UsageError, match="is in the log directory"):
        lastword.spark.export(None, log, "t", f"delta:{log}/table")
    assert not here and not (tmp_path / "table").exists()


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_on_spark(spark: Any, tmp_path: Path, log: Path) -> None:
    check_exports(log, tmp_path / "table", spark)
