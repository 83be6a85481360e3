"""The private copy of a process that appends stays open from one commit to the next."""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType

import pytest

import lastword
from lastword.api.bucket_dirs import _Append
from lastword.api.logs import LogDir
from lastword.api.topic import Topic
from lastword.bucket import commit
from lastword.bucket.manifest import MAX_PAGES, PageRef
from lastword.logdir import LogDirectory
from lastword.logdir.checkpoints import TopicPartition
from lastword.segment import names
from tests.bucket.conftest import on_double
from tests.fakes.objects import Bucket as Objects

COMMITS = 150


@pytest.fixture
def logs(objects: Objects) -> Iterator[LogDir]:
    with on_double(objects) as logs:
        yield logs


def values_of(logs: LogDir) -> list[bytes | None]:
    return [record.value for record in logs["users"].read()]


@pytest.mark.parametrize("partitions", [1, 30])
def test_a_commit_of_one_small_record_is_one_request_of_two_kilobytes(
    objects: Objects, logs: LogDir, partitions: int
) -> None:
    """So says docs/bucket.md; and a new process reads what was committed."""
    topic = logs.create_topic("users", partitions, cleanup_policy="compact")
    for _ in range(2):
        topic.append(b"k", b"first")
    sent, requests = [], Counter[tuple[str, ...]]()
    for number in range(COMMITS):
        before, first = sum(objects.sent.values()), len(objects.log)
        topic.append(b"k%d" % (number % 50), b"value %d" % number)
        sent.append(sum(objects.sent.values()) - before)
        requests[tuple(request.kind for request in objects.log[first:])] += 1
    assert requests.keys() <= {("swap",), ("put", "swap")}
    assert requests["put", "swap"] <= COMMITS / 6  # with a page
    assert statistics.median(sent) <= 2048 and statistics.mean(sent) <= 4096
    with on_double(objects, "r") as reader:
        assert sorted(map(str, values_of(reader))) == sorted(map(str, values_of(logs)))
        assert len(values_of(reader)) == COMMITS + 2 and reader.verify().ok


def calls_of(logs: LogDir, work: Callable[[Topic[bytes, bytes]], object]) -> Counter[CodeType]:
    """Run a commit in this thread, and count the calls of each function of lastword."""
    calls = Counter[CodeType]()
    topic = logs["users"]

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_globals.get("__name__", "").split(".")[0] == "lastword":
            calls[frame.f_code] += 1

    queue = logs.dirs._queue  # type: ignore[attr-defined]
    call = _Append(("users",), lambda dirs: work(topic._on(dirs)), 2, None)
    sys.setprofile(note)
    try:
        assert not queue._commit([call])
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("partitions", [1, 30])
def test_a_commit_of_one_record_runs_few_functions(logs: LogDir, partitions: int) -> None:
    """It opens no log directory, which runs 540 functions, and keeps none open, which runs 306.

    The number of partitions has no effect.
    """
    topic = logs.create_topic("users", partitions, cleanup_policy="compact")
    for number in range(partitions):
        topic.append(b"k", b"first", partition=number)
    logs.dirs._queue._short._pause = 0  # type: ignore[attr-defined]
    for number in range(2 * partitions):  # the first commit to a partition reads its state
        topic.append(b"k", b"second", partition=number % partitions)
    calls = calls_of(logs, lambda topic: topic.append(b"k", b"v"))
    assert len(calls) <= 130 and calls.total() <= 250
    assert values_of(logs).count(b"v") == 1


def test_a_commit_on_the_kept_copy_runs_few_functions(logs: LogDir) -> None:
    """Without the kept copy each commit opens a log directory: 533 functions."""
    logs.create_topic("users", cleanup_policy="compact").append(b"k", b"first")
    logs.dirs._queue._short._pause = 1  # type: ignore[attr-defined]
    calls = calls_of(logs, lambda topic: topic.append(b"k", b"v"))
    assert values_of(logs) == [b"first", b"v"]
    assert 250 < len(calls) <= 340


def test_a_version_that_was_not_read_for_long_is_read_before_the_swap(objects: Objects, logs: LogDir) -> None:
    """Otherwise more commits may follow it than the history of the newest version shows."""
    topic = logs.create_topic("users", cleanup_policy="compact")
    for _ in range(3):
        topic.append(b"k", b"v")
    for seconds, expected in ((0, ["swap"]), (2, ["get", "swap"])):
        logs.dirs.clock.advance(seconds * 1000)  # type: ignore[attr-defined]
        first = len(objects.log)
        topic.append(b"k", b"v")
        assert [request.kind for request in objects.log[first:]] == expected


def test_a_directory_with_a_partition_that_is_offline_is_not_left_clean(tmp_path: Path) -> None:
    directory = LogDirectory.open(tmp_path / "d", "a")
    directory.create_topic("users", 2)
    directory.close()
    directory = LogDirectory.open(tmp_path / "d", "a")
    marker = tmp_path / "d" / names.CLEAN_SHUTDOWN
    assert directory.leave_clean() and marker.exists()
    assert directory.leave_clean() and marker.exists()
    directory._opened.offline[TopicPartition("users", 1)] = lastword.errors.BusyError("x", remedy="y")
    assert not directory.leave_clean() and not marker.exists()
    directory.close()
    assert not marker.exists()


def test_a_copy_that_became_large_is_dropped(logs: LogDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of its active segments take memory, so a process that appends to many partitions has many."""
    topic = logs.create_topic("users", 30, cleanup_policy="compact")
    monkeypatch.setattr(commit, "KEPT_BYTES", 20_000)
    kept = logs.dirs._queue._kept  # type: ignore[attr-defined]
    was_kept = set()
    for number in range(30):
        topic.append(b"k%d" % number, b"%d" % number)
        was_kept.add(kept.copy._copy is not None)
    assert was_kept == {True, False}
    assert sorted(values_of(logs)) == sorted(b"%d" % number for number in range(30))  # type: ignore[type-var]
    assert logs.verify().ok


def test_the_pages_in_memory_are_those_of_the_newest_version(logs: LogDir) -> None:
    topic = logs.create_topic("users", cleanup_policy="compact")
    bucket = logs.dirs._bucket  # type: ignore[attr-defined]
    for number in range(120):
        topic.append(b"k", b"%d" % number)
        assert len(bucket._pages) <= MAX_PAGES + 1
    assert bucket.committed().manifest.pages


def test_a_commit_to_many_partitions_writes_few_older_entries(
    logs: LogDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its entries are a page, which takes in older pages."""
    topic = logs.create_topic("users", 20, cleanup_policy="delete")
    bucket, entries, put_page = logs.dirs._bucket, list[int](), commit.Bucket.put_page  # type: ignore[attr-defined]

    def put(self: commit.Bucket, page: PageRef, data: bytes) -> None:
        entries.append(page.entries)
        put_page(self, page, data)

    monkeypatch.setattr(commit.Bucket, "put_page", put)
    for number in range(40):
        topic.extend([(b"k%d" % key, b"%d" % number) for key in range(200)])
        assert len(bucket.committed().manifest.pages) <= MAX_PAGES
    assert len(entries) == 40
    assert sum(entries) < 3 * 40 * min(entries)


def test_a_refused_record_leaves_nothing_in_the_copy(logs: LogDir) -> None:
    topic = logs.create_topic("users", cleanup_policy="compact", max_message_bytes="1KiB")
    topic.append(b"k", b"first")
    for number in range(3):
        with pytest.raises(lastword.errors.RecordTooLargeError):
            topic.extend([(b"k", b"small"), (b"k", b"v" * 5000)])
        topic.append(b"k", b"%d" % number)
    assert values_of(logs) == [b"first", b"0", b"1", b"2"]
    assert logs.verify().ok
