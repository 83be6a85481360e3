"""`lastword.spark.copy`: tasks copy the files, the driver publishes them."""

from __future__ import annotations

import importlib
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("obstore")

import lastword
import lastword.spark
from lastword.errors import LastwordError, PartialFailure, StorageError, UnknownTopicError, UsageError
from tests.support.stores import Server

copying = importlib.import_module("lastword.spark.copy")  # the name in the package is the function
_numbers = count()


@pytest.fixture
def url() -> str:
    return f"memory://copy-{next(_numbers)}/log"


def fill(root: Path, partitions: int = 2, records: int = 60) -> None:
    with lastword.open(root, "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic("t", partitions=partitions, cleanup_policy="compact", segment_bytes=1000)
        for number in range(records):
            topic.append(b"k%d" % (number % 10), b"v%d" % number * 9)
        topic.lease("reader", position=3)


def content(log: Path | str, **options: Any) -> list[Any]:
    with lastword.open(log, **options) as logs:
        assert logs.verify().ok
        return [(r.partition, r.offset, r.key, r.value, r.timestamp) for r in logs["t"].read()]


def test_it_does_what_the_librarys_copy_does(tmp_path: Path, url: str, here: list[Any]) -> None:
    fill(tmp_path / "a")
    rows = lastword.spark.copy(None, tmp_path / "a", tmp_path / "b", verify=True)
    assert rows == lastword.copy(tmp_path / "a", tmp_path / "c", verify=True)
    assert sum(isinstance(task, copying._Send) for task in here) == 2
    rows = lastword.spark.copy(None, tmp_path / "b", url, "t", verify=True)
    assert [row.verified for row in rows] == [True, True]
    assert content(url) == content(tmp_path / "b") == content(tmp_path / "a")
    with lastword.open(url) as logs:
        assert [lease.name for lease in logs["t"].leases()] == ["reader", "reader"]
        assert not logs.dirs.newest.manifest.uploads
    here.clear()
    rows = lastword.spark.copy(None, tmp_path / "b", url)
    assert {(row.copied_bytes, row.copied_segments) for row in rows} == {(0, 0)} and not here
    with lastword.open(tmp_path / "b", "a", log_cleaner_enable=False) as logs:
        logs["t"].append(b"new", b"1")
        logs.clean("t")
    lastword.spark.copy(None, tmp_path / "b", url)
    lastword.spark.copy(None, url, tmp_path / "d", verify=True)
    assert content(tmp_path / "d") == content(url) == content(tmp_path / "b")


def test_a_bucket_gets_one_commit(
    tmp_path: Path,
    url: str,
    here: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    requests: Counter[str],
) -> None:
    fill(tmp_path / "a", 5)
    monkeypatch.setattr(copying, "TASK_BYTES", 1500)
    begin = copying.begin_uploads

    def begun(*given: Any) -> str:
        name: str = begin(*given)
        requests.clear()
        return name

    monkeypatch.setattr(copying, "begin_uploads", begun)
    lastword.spark.copy(None, tmp_path / "a", url)
    assert len(here) > 5 and requests["swap"] == 1
    assert content(url) == content(tmp_path / "a")


@pytest.mark.parametrize("to_url", [False, True])
def test_a_cleaning_of_the_source_meanwhile(
    tmp_path: Path, url: str, here: list[Any], monkeypatch: pytest.MonkeyPatch, to_url: bool
) -> None:
    fill(tmp_path / "a")
    real = copying._send

    def cleaned(task: Any) -> Any:
        if len(here) == 1:
            with lastword.open(tmp_path / "a", "a", log_cleaner_enable=False) as logs:
                logs.clean("t")
        return real(task)

    monkeypatch.setattr(copying, "_send", cleaned)
    target = url if to_url else tmp_path / "b"
    lastword.spark.copy(None, tmp_path / "a", target, verify=True)
    assert len(here) > 4
    assert content(target) == content(tmp_path / "a")


@pytest.mark.parametrize("to_url", [False, True])
def test_what_dead_tasks_leave(
    tmp_path: Path, url: str, here: list[Any], monkeypatch: pytest.MonkeyPatch, to_url: bool
) -> None:
    fill(tmp_path / "a")
    target = url if to_url else tmp_path / "b"
    real = copying._send

    def failing(task: Any) -> Any:
        if task.tp.partition == 1:
            raise StorageError("on purpose", remedy="none")
        return real(task)

    with monkeypatch.context() as patch:
        patch.setattr(copying, "_send", failing)
        with pytest.raises(StorageError, match="on purpose"):
            lastword.spark.copy(None, tmp_path / "a", target)
    assert not content(target)
    rows = lastword.spark.copy(None, tmp_path / "a", target)
    assert [row.copied_bytes > 0 for row in rows] == [to_url, True]  # a directory has the files already
    assert content(target) == content(tmp_path / "a")
    if to_url:
        with lastword.open(target) as logs:
            assert not logs.dirs.newest.manifest.uploads
    else:
        assert not list((tmp_path / "b").rglob("copy"))


@pytest.mark.parametrize("to_url", [False, True])
def test_a_partition_with_records_of_its_own(tmp_path: Path, url: str, here: list[Any], to_url: bool) -> None:
    fill(tmp_path / "a")
    target = url if to_url else tmp_path / "b"
    lastword.spark.copy(None, tmp_path / "a", target)
    with lastword.open(target, "a", log_cleaner_enable=False) as logs:
        logs["t"].append(b"own", b"1", partition=1)
    with lastword.open(tmp_path / "a", "a", log_cleaner_enable=False) as logs:
        logs["t"].append(b"new", b"1", partition=0)
    with pytest.raises(PartialFailure, match="records of its own") as raised:
        lastword.spark.copy(None, tmp_path / "a", target)
    assert isinstance(raised.value, UsageError)
    assert [row.partition for row in raised.value.results] == [0]
    assert (0, b"new") in [(row[0], row[2]) for row in content(target)]


def test_a_wrong_call_makes_nothing(tmp_path: Path, here: list[Any]) -> None:
    fill(tmp_path / "a")
    with pytest.raises(UnknownTopicError):
        lastword.spark.copy(None, tmp_path / "a", tmp_path / "b", "missing")
    with pytest.raises(UsageError, match="the same log"):
        lastword.spark.copy(None, tmp_path / "a", tmp_path / "a")
    with pytest.raises(UsageError, match="storage_options are for a log in a bucket"):
        lastword.spark.copy(None, tmp_path / "a", tmp_path / "b", storage_options={"region": "x"})
    with pytest.raises(LastwordError, match="does not exist"):
        lastword.spark.copy(None, tmp_path / "nowhere", tmp_path / "b")
    assert not (tmp_path / "b").exists()


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_on_spark_to_a_bucket_and_back(spark: Any, tmp_path: Path, moto: Server) -> None:
    fill(tmp_path / "a")
    url = f"{moto.root}/spark-copy"
    given = {"storage_options": moto.options}
    rows = lastword.spark.copy(spark, tmp_path / "a", url, verify=True, **given).collect()
    assert [(row.topic, row.partition, row.verified) for row in rows] == [("t", 0, True), ("t", 1, True)]
    lastword.spark.copy(spark, url, tmp_path / "b", "t", verify=True, source_storage_options=moto.options)
    assert content(tmp_path / "b") == content(tmp_path / "a") == content(url, **given)
