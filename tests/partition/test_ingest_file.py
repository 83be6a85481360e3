"""A file of ready batches that becomes a segment: the result, the files that are refused, and failures."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from lastword.config import TopicConfig
from lastword.errors import CorruptBatchError, CorruptFileError, LastwordError
from lastword.files import DEFAULT, Files
from lastword.ingest import apply, staging
from lastword.partition import staged_batches
from lastword.partition.log import PartitionLog
from lastword.testing.unsynced import UNSYNCED
from tests.fakes.failing import KINDS, FailingFiles
from tests.fakes.recording import RecordingFiles
from tests.partition.logs import (
    SMALL,
    Pair,
    batch,
    build_batch,
    fill,
    indexes_fit,
    make,
    opened,
    pair,
    records,
)
from tests.support.exhaustive import stride

LARGE = replace(SMALL, segment_bytes=4000)


def staged(directory: str, *batches: bytes, name: str = "00000-0.batches") -> str:
    folder = Path(directory) / "lastword" / "staging-j"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"".join(batches))
    return str(folder / name)


def begun(tmp_path: Path, config: TopicConfig = LARGE, files: Files = UNSYNCED) -> PartitionLog:
    """Open a log with three records."""
    log, _ = opened(make(tmp_path), config=config, files=files)
    fill(log, 3)
    return log


def test_it_is_the_log_that_appending_makes(tmp_path: Path) -> None:
    """The log equals one to which the batches were appended, before and after it is opened again.

    Offsets are equal, and indexes follow the same rule.
    """
    log = begun(tmp_path)
    file = staged(log.directory, *map(build_batch, range(3, 20)))
    assert log.ingest_file(file) and not Path(file).exists()
    fill(log, 5)
    assert records(log) == pairs_of(25) and indexes_fit(log)
    assert [segment.base_offset for segment in log.segments] == [
        0,
        3,
    ] and log.stable_offset == log.log_end == 25
    log.close()
    again, _ = opened(log.directory, config=LARGE)
    assert records(again) == pairs_of(25)
    fill(again, 1)
    assert again.log_end == 26 and indexes_fit(again)
    again.close()


def pairs_of(count: int) -> list[Pair]:
    return [pair(number) for number in range(count)]


def test_its_bytes_are_not_written_again(tmp_path: Path) -> None:
    files = RecordingFiles(UNSYNCED)
    log = begun(tmp_path, files=files)
    file = staged(log.directory, *map(build_batch, range(3, 40)))
    before = len(files.calls)
    assert log.ingest_file(file)
    calls = files.calls[before:]
    assert (
        sum(len(call.detail[0]) for call in calls if call.path == file and call.name == "pwrite") == 16 * 37
    )
    assert sum(len(call.detail) for call in calls if call.name == "append") < 400 < log.active.size
    log.abandon()


@pytest.mark.parametrize(
    ("config", "batches"),
    [
        (replace(LARGE, segment_ms=5000), list(map(build_batch, range(3, 20)))),
        (replace(LARGE, segment_bytes=1200), list(map(build_batch, range(3, 20)))),
        (LARGE, [build_batch(3), batch((b"k", b"v"), producer_id=7)]),
        (replace(LARGE, segment_index_bytes=60), list(map(build_batch, range(3, 20)))),
        (replace(LARGE, max_message_bytes=150), [build_batch(3), batch((b"k", b"v" * 200))]),
    ],
    ids=["segment.ms", "segment.bytes", "a producer", "segment.index.bytes", "max.message.bytes"],
)
def test_what_appending_would_not_make_is_left_alone(
    tmp_path: Path, config: TopicConfig, batches: list[bytes]
) -> None:
    log = begun(tmp_path, config)
    file = staged(log.directory, *batches)
    before = Path(file).read_bytes()
    assert not log.ingest_file(file)
    assert Path(file).read_bytes() == before and len(log.segments) == 1 and log.log_end == 3
    log.abandon()


def test_an_empty_segment_takes_the_batches_instead(tmp_path: Path) -> None:
    log, _ = opened(make(tmp_path), config=LARGE)
    assert not log.ingest_file(staged(log.directory, build_batch(0)))
    log.abandon()


def test_a_damaged_file_is_told_and_not_touched(tmp_path: Path) -> None:
    log = begun(tmp_path)
    file = staged(log.directory, build_batch(3), build_batch(4)[:-1])
    before = Path(file).read_bytes()
    with pytest.raises(CorruptBatchError):
        log.ingest_file(file)
    assert Path(file).read_bytes() == before and log.log_end == 3
    log.abandon()


@pytest.mark.parametrize(
    ("settings", "size_bytes", "expected"),
    [
        ({"cleanup_policy": frozenset({"compact"})}, 1 << 25, True),
        ({"cleanup_policy": frozenset({"compact"})}, (1 << 25) - 1, False),
        ({"cleanup_policy": frozenset({"compact"})}, 1 << 30, True),
        ({"cleanup_policy": frozenset({"compact"})}, (1 << 30) + 1, False),
        ({"cleanup_policy": frozenset({"delete"})}, (1 << 27) - 1, False),
        ({"cleanup_policy": frozenset({"delete"})}, 1 << 27, True),
        ({"message_timestamp_type": "LogAppendTime"}, 1 << 29, False),
    ],
)
def test_which_files_are_worth_it(settings: dict, size_bytes: int, expected: bool) -> None:
    config = TopicConfig(segment_bytes=1 << 30, **settings)
    assert staged_batches.is_worth_a_segment(config, size_bytes) is expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_fails(tmp_path: Path, kind: str) -> None:
    """After any failure the log keeps its content, or is offline until it is opened again.

    Then the whole file is in the log, or the whole file is in its old place.
    """
    hits = 0
    for number in range(0, 200, stride(3)):
        directory = make(tmp_path / str(number))
        files = FailingFiles(DEFAULT, kind, number)
        log, _ = opened(directory, config=LARGE, files=files)
        fill(log, 3)
        file = staged(directory, *map(build_batch, range(3, 20)))
        files.arm()
        try:
            log.ingest_file(file)
        except LastwordError:
            hits += 1
        finished = not files.hit
        files.disarm()
        with contextlib.suppress(LastwordError):
            log.append_batch(build_batch(log.log_end))
        log.abandon()
        again, _ = opened(directory, config=LARGE)
        end = again.log_end
        assert end in (3, 4, 20, 21) and (end >= 20) is (not Path(file).exists()), (kind, number)
        assert records(again) == pairs_of(end)
        fill(again, 2)
        assert records(again) == pairs_of(end + 2) and indexes_fit(again)
        again.abandon()
        if finished:
            break
    else:
        pytest.fail("there are more calls than the test makes fail")
    assert hits


def test_a_file_that_is_gone_and_not_in_the_log_is_missed(tmp_path: Path) -> None:
    log = begun(tmp_path)
    file = staged(log.directory, build_batch(3))
    known = staging.StagedRun("users", 0, 0, os.path.basename(file), len(build_batch(3)), 1)
    Path(file).unlink()
    with pytest.raises(CorruptFileError, match="not in the log"):
        apply.ingest(log, "j", [known], 3, finish=None)
    log.abandon()
