"""6T: loading and recovering a log. Other numbers are in `tests/partition/test_producers.py`,
`test_epochs.py` and `test_truncate.py`."""

from __future__ import annotations

import json
import os
import random
import shutil
from itertools import islice
from pathlib import Path

import pytest

from lastword.clock import ManualClock
from lastword.errors import CorruptBatchError, LastwordError, StorageError
from lastword.files import Files
from lastword.logdir import LogDirectory
from lastword.partition import PartitionView
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.open import open_log
from lastword.records.batch import BatchBuilder
from lastword.segment import names
from lastword.segment.indexes import AbortedTransaction, encode_aborted
from lastword.segment.recover import inspect
from lastword.testing.unsynced import UNSYNCED
from tests.fakes import ForgetfulFiles
from tests.fakes.recording import Call, RecordingFiles
from tests.partition.logs import fill, indexes_fit, pair, records
from tests.properties.support import (
    CONFIG,
    T,
    batch,
    listing,
    offsets,
    opened,
    partition,
    placed,
    write_segment,
)
from tests.transactions import marker_batch

SMALL = CONFIG.replace(segment_bytes=700)
MAX_INT = 2**31 - 1


def home(root: Path, files: Files = UNSYNCED) -> LogDirectory:
    return LogDirectory.open(root, "a", files, ManualClock(T))


def stopped(root: Path, count: int = 20, *, clean: bool = True) -> str:
    """Write a log of `count` records in small segments, stop it and return its directory."""
    log, _ = opened(partition(root), SMALL)
    fill(log, count)
    if clean:
        assert log.close()
    else:
        log.abandon()
    return log.directory


def indexes(directory: str) -> dict[str, bytes]:
    return {
        name: Path(directory, name).read_bytes()
        for name in listing(directory)
        if name.endswith((names.INDEX, names.TIME_INDEX))
    }


def test_6T_238_the_marker_is_gone_after_loading(tmp_path: Path) -> None:
    """6T.238: The clean-shutdown marker is gone after loading, even if loading fails; the next load is
    unclean.
    """
    with home(tmp_path) as logs:
        logs.create_topic("users")
        logs.log("users", 0).append_batch(batch(0, b"a"))
    marker = tmp_path / names.CLEAN_SHUTDOWN
    assert marker.exists()
    logs = home(tmp_path)
    assert logs.recovery.clean and not marker.exists()
    assert logs.log("users", 0).log_end == 1 and logs.recovery.partitions[0].clean
    logs.abandon()
    logs = home(tmp_path)
    assert not logs.recovery.clean
    logs.abandon()


def test_also_when_loading_fails(tmp_path: Path) -> None:
    with home(tmp_path) as logs:
        logs.create_topic("users")

    def fail(call: Call) -> LastwordError | None:
        if call.name == "listdir" and not (tmp_path / names.CLEAN_SHUTDOWN).exists():
            return StorageError("no luck", errno=5)
        return None

    with pytest.raises(StorageError):
        home(tmp_path, RecordingFiles(UNSYNCED, fail=fail))
    assert not (tmp_path / names.CLEAN_SHUTDOWN).exists()
    logs = home(tmp_path)  # the lock is free, and the failed load counts as a crash
    assert not logs.recovery.clean
    logs.abandon()


def test_6T_241_after_a_crash_all_is_as_it_was(tmp_path: Path) -> None:
    """6T.241: A reload after a crash has the same log end and index entries; the recovery point is
    unchanged until a sync.
    """
    log, _ = opened(partition(tmp_path), SMALL)
    fill(log, 20)
    before = indexes(log.directory)
    last = log.active.time_index.last
    log.abandon()
    log, recovery = opened(log.directory, SMALL, recovery_point=7)
    assert log.log_end == 20 and indexes(log.directory) == before and log.active.time_index.last == last
    assert (log.recovery_point, recovery.walked) == (7, 2)
    log.append_batch(batch(0, b"a"))
    assert log.recovery_point == 7
    log.flush()
    assert log.recovery_point == 21
    log.abandon()


@pytest.mark.parametrize("clean", [False, True])
def test_6T_242_missing_indexes_are_built_again(tmp_path: Path, clean: bool) -> None:
    """6T.242: Missing index files are rebuilt; all offsets and timestamps are found."""
    directory = stopped(tmp_path)
    before = indexes(directory)
    for name in before:
        Path(directory, name).unlink()
    log, _ = opened(directory, SMALL, clean=clean)
    assert indexes_fit(log)
    for number in range(20):
        assert offsets(log, number)[0] == number and log.offset_at(T + 1000 * number) == number
    log.abandon()


def test_6T_244_time_indexes_below_the_recovery_point_are_built_too(tmp_path: Path) -> None:
    """6T.244: Time indexes that are missing below the recovery point are created empty.

    Here: They are rebuilt.

    With Kafka's empty indexes, `retention.ms` and lookups read the whole segment.
    """
    directory = stopped(tmp_path, clean=False)
    before = indexes(directory)
    for name in before:
        if name.endswith(names.TIME_INDEX):
            Path(directory, name).unlink()
    log, recovery = opened(directory, SMALL, recovery_point=20)
    assert indexes(directory) == before and any(before.values())
    assert recovery.walked == len(log.segments)
    log.abandon()


@pytest.mark.parametrize("extension", [names.INDEX, names.TIME_INDEX, names.TXN_INDEX])
@pytest.mark.parametrize("clean", [False, True])
def test_6T_245_indexes_without_a_log_go(tmp_path: Path, extension: str, clean: bool) -> None:
    """6T.245: Index files without a log file are deleted."""
    directory = stopped(tmp_path)
    for base in (5, 99):
        Path(directory, names.segment_file(base, extension)).write_bytes(bytes(24))
    log, _ = opened(directory, SMALL, clean=clean)
    assert not {names.segment_file(base, extension) for base in (5, 99)} & set(listing(directory))
    assert records(log) == [pair(n) for n in range(20)]
    log.abandon()


@pytest.mark.parametrize("seed", range(10))
def test_6T_247_random_bytes_behind_log_and_index(tmp_path: Path, seed: int) -> None:
    """6T.247: Random bytes after the end of a log and its index are cut; records and log end are the same."""
    directory = stopped(tmp_path, clean=False)
    before = indexes(directory)
    rng = random.Random(seed)
    for extension in (names.LOG, names.INDEX):
        with Path(directory, names.segment_file(14, extension)).open("ab") as file:
            file.write(rng.randbytes(rng.randrange(1, 500)))
    log, _ = opened(directory, SMALL)
    assert records(log) == [pair(n) for n in range(20)] and log.log_end == 20
    assert indexes(directory) == before
    log.abandon()


@pytest.mark.parametrize("point", [0, 6, 7, 13, 14, 19, 20, 99])
def test_6T_248_recovery_begins_at_the_recovery_point(tmp_path: Path, point: int) -> None:
    """6T.248: Only the segment that contains the recovery point and later segments are recovered."""
    directory = stopped(tmp_path, clean=False)
    log, recovery = opened(directory, SMALL, recovery_point=point)
    assert [s.base_offset for s in log.segments] == [0, 7, 14]
    assert recovery.walked == {0: 3, 6: 3, 7: 2, 13: 2}.get(point, 1)
    assert log.recovery_point == min(point, 20)
    log.abandon()


def test_6T_249_offsets_too_far_apart_begin_a_segment(tmp_path: Path) -> None:
    """6T.249: Offsets more than 2^31 apart start a new segment with the right base, a snapshot and valid
    indexes.

    Here: This holds for appends of magic 2; entries of magic 0 and 1 are not appended.
    """
    log, _ = opened(partition(tmp_path))
    log.append_batch(batch(0, b"a"))
    for _ in range(3):
        builder = BatchBuilder()
        builder.append(T, b"k", b"1")
        builder.append(T, b"k", b"2", offset_delta=MAX_INT)
        log.append_batch(builder.build())
    bases = [s.base_offset for s in log.segments]
    assert bases == [0] + [1 + n * (MAX_INT + 1) for n in range(3)]
    before = offsets(log, 0)
    log.abandon()
    log, _ = opened(log.directory)
    assert offsets(log, 0) == before and [s.base_offset for s in log.segments] == bases
    assert indexes_fit(log)
    snapshots = {name for name in listing(log.directory) if name.endswith(names.SNAPSHOT)}
    assert snapshots >= {names.segment_file(base, names.SNAPSHOT) for base in bases[1:]}
    log.abandon()


FAR = MAX_INT + 10
OVERFLOWING = [batch(0, b"a"), batch(5, b"b"), batch(FAR, b"c"), batch(FAR + 3, b"d")]
NEXT = FAR + 9
WHOLE = [0, 5, FAR, FAR + 3, NEXT]


def overflowed(root: Path, *batches: bytes) -> Path:
    """Write a closed segment whose offsets do not fit its indexes, as cleaners before 2.0 could leave it."""
    write_segment(root, 0, b"".join(batches or OVERFLOWING), indexes=False)
    return Path(os.path.dirname(write_segment(root, NEXT, batch(NEXT, b"e")).file))


def check_split(directory: Path, bases: list[int], whole: list[int], **more: object) -> None:
    log, _ = opened(str(directory), **more)  # type: ignore[arg-type]
    assert [s.base_offset for s in log.segments] == bases
    assert offsets(log, 0) == whole and indexes_fit(log)
    assert all(s.next_offset - 1 - s.base_offset <= MAX_INT for s in log.segments)
    assert not [name for name in listing(log.directory) if name.endswith(names.SUFFIXES)]
    assert not list((directory / names.PRIVATE).glob("rewrite-*"))
    log.abandon()


@pytest.mark.parametrize("clean", [False, True])
def test_6T_250_an_overflowed_segment_is_split(tmp_path: Path, clean: bool) -> None:
    """6T.250: An overflowed segment is split at load without loss; splitting a healthy segment is refused.

    Here: Only closed segments are split; in the active segment an overflowing offset is damage.
    """
    directory = overflowed(tmp_path)
    assert (
        offsets(PartitionView.load(DirectorySegments(UNSYNCED, str(directory))), 0) == WHOLE
    )  # readers can read it before the split
    log, recovery = opened(str(directory), clean=clean, recovery_point=NEXT + 1)
    assert "split" in {repair.code for repair in recovery.repaired}
    log.abandon()
    check_split(directory, [0, FAR, NEXT], WHOLE, clean=True, recovery_point=NEXT + 1)


def test_a_sound_segment_is_not_split(tmp_path: Path) -> None:
    write_segment(tmp_path, 0, batch(0, b"a") + batch(MAX_INT, b"b"))
    segment = write_segment(tmp_path, FAR, batch(FAR, b"c"))
    log, recovery = opened(os.path.dirname(segment.file))
    assert [s.base_offset for s in log.segments] == [0, FAR]
    assert "split" not in {repair.code for repair in recovery.repaired}
    log.abandon()


def test_the_last_segment_is_refused(tmp_path: Path) -> None:
    """No cleaner rewrites the active segment, so the offset is damage: no checksum covers it. The file does
    not change.
    """
    segment = write_segment(tmp_path, 0, b"".join(OVERFLOWING), indexes=False)
    with pytest.raises(CorruptBatchError) as caught:
        opened(os.path.dirname(segment.file))
    assert caught.value.code == "offset-overflow"
    assert Path(segment.file).read_bytes() == b"".join(OVERFLOWING)
    with pytest.raises(CorruptBatchError):
        inspect(UNSYNCED, os.path.dirname(segment.file), 0, index_interval_bytes=0)


def test_aborted_transactions_stay_with_their_markers(tmp_path: Path) -> None:
    producer = {"producer_epoch": 0, "base_sequence": 0, "transactional": True}
    first, second = batch(1, b"x", producer_id=5, **producer), batch(FAR, b"y", producer_id=6, **producer)
    aborts = [placed(marker_batch(n, 0, False, 0, T), at) for n, at in ((5, 2), (6, FAR + 1))]
    directory = overflowed(tmp_path, OVERFLOWING[0], first, aborts[0], second, aborts[1])
    entries = [AbortedTransaction(5, 1, 2, 3), AbortedTransaction(6, FAR, FAR + 1, FAR + 2)]
    (directory / names.segment_file(0, names.TXN_INDEX)).write_bytes(encode_aborted(entries))
    log, _ = opened(str(directory), clean=True)
    for base, entry in ((0, entries[0]), (FAR, entries[1])):
        index = (directory / names.segment_file(base, names.TXN_INDEX)).read_bytes()
        assert index == encode_aborted([entry])
    log.abandon()


@pytest.mark.parametrize("phase", [1, 2, 3, 4, 5])
def test_6T_251_a_split_that_a_broker_did_not_finish(tmp_path: Path, phase: int) -> None:
    """6T.251: A crash in any phase of a split recovers the same records and the same number of segments.

    Phases: 1, all new segments are `.cleaned`; 2, some are `.swap`; 3, all are `.swap` and the old segment is
    in place; 4, the old segment is `.deleted`; 5, the first new segment has its final name.
    """
    directory = overflowed(tmp_path)
    suffixes = {
        1: (names.CLEANED, names.CLEANED),
        2: (names.CLEANED, names.SWAP),
        5: ("", names.SWAP),
    }.get(phase, (names.SWAP, names.SWAP))
    old = directory / names.segment_file(0, names.LOG)
    if phase == 4:
        old.rename(f"{old}.deleted")
    if phase == 5:
        old.unlink()
    for (base, batches), suffix in zip(
        {0: OVERFLOWING[:2], FAR: OVERFLOWING[2:]}.items(), suffixes, strict=True
    ):
        built = write_segment(tmp_path / "parts", base, b"".join(batches))
        for extension in (names.LOG, names.INDEX, names.TIME_INDEX):
            shutil.copy(built.stored.path(extension), directory / names.segment_file(base, extension, suffix))
    assert offsets(PartitionView.load(DirectorySegments(UNSYNCED, str(directory))), 0) == WHOLE
    check_split(directory, [0, FAR, NEXT], WHOLE)


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 23])
def test_every_kill_and_power_cut_of_our_split(tmp_path: Path, every: int) -> None:
    directory = overflowed(tmp_path / "live")
    files = ForgetfulFiles(tmp_path / "live")
    log, _ = opened(str(directory), files=files, clean=True, recovery_point=NEXT + 1)
    log.abandon()
    states = set()
    kills = files.kills(range(len(files.journal) + 1))
    target = tmp_path / "image"
    for image in [*islice(files.images(seeds=range(2)), 0, None, every), *kills]:
        image.write(target)
        view = PartitionView.load(DirectorySegments(UNSYNCED, str(target / "users-0")))
        states.add(tuple(s.base_offset for s in view.segments))
        assert offsets(view, 0) == WHOLE, image.label
        check_split(target / "users-0", [0, FAR, NEXT], WHOLE, recovery_point=NEXT + 1)
    assert states == {(0, NEXT), (0, FAR, NEXT)}


def test_6T_255_a_log_that_ends_below_its_log_start(tmp_path: Path) -> None:
    """6T.255: A log that ends below its log start becomes one empty segment at its log start.

    Here: The old segments are not read. They stay until segments below the log start are removed.
    """
    directory = stopped(tmp_path, 5)
    log, _ = opened(directory, log_start=9)
    assert (log.log_start, log.log_end, offsets(log, 9)) == (9, 9, [])
    assert log.append_batch(batch(0, b"a")).base_offset == 9
    assert [s.base_offset for s in log.remove_prefix()] == [0]
    assert [s.base_offset for s in log.segments] == [9]
    log.abandon()


@pytest.mark.parametrize("clean", [False, True])
def test_6T_257_an_empty_active_segment_gets_its_indexes(tmp_path: Path, clean: bool) -> None:
    """6T.257: An empty active segment gets its index files when it is loaded after a crash."""
    log, _ = opened(partition(tmp_path))
    fill(log, 3)
    log.roll()
    for extension in (names.INDEX, names.TIME_INDEX):
        Path(log.active.stored.path(extension)).unlink()
    log.abandon()
    log, _ = opened(log.directory, clean=clean)
    assert (log.active.base_offset, log.active.size, log.log_end) == (3, 0, 3)
    for extension in (names.INDEX, names.TIME_INDEX):
        assert Path(log.active.stored.path(extension)).read_bytes() == b""
    assert len(log.segments) == 2
    log.abandon()


@pytest.mark.parametrize("log_start", [0, 7])
def test_6T_262_an_empty_directory_begins_at_the_given_log_start(tmp_path: Path, log_start: int) -> None:
    """6T.262: An empty directory is loaded with the given log start as its log end."""
    log, _ = opened(partition(tmp_path), log_start=log_start)
    assert log.log_start == log.log_end == log_start == log.active.base_offset
    log.abandon()


def test_6T_263_a_deleted_directory_without_segments(tmp_path: Path) -> None:
    """6T.263: A `-delete` directory without segments is loaded.

    Here: Opening finishes its deletion.
    """
    with home(tmp_path) as logs:
        logs.create_topic("users")
    gone = tmp_path / f"orders-0.{'a' * 32}-delete"
    gone.mkdir()
    with home(tmp_path) as logs:
        assert logs.topics() == ["users"]
    assert not gone.exists()


def test_6T_264_the_topic_id_is_read_back(tmp_path: Path) -> None:
    """6T.264: The topic id is read back from `partition.metadata`."""
    with home(tmp_path) as logs:
        logs.create_topic("users")
        given = logs.topic_id("users")
    assert given is not None and given in (tmp_path / "users-0" / names.PARTITION_METADATA).read_text()
    with home(tmp_path) as logs:
        assert logs.topic_id("users") == given
    assert json.loads((tmp_path / names.CLEAN_SHUTDOWN).read_text())["version"] == 0
    log, _ = open_log(UNSYNCED, str(tmp_path / "users-0"), CONFIG, ManualClock(T))
    log.abandon()
