"""Appending, rolling, syncing and reading in one process."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lastword.clock import ManualClock
from lastword.config import TopicConfig
from lastword.errors import CorruptBatchError, DiskFullError, StorageError, SyncFailedError, UnknownTopicError
from lastword.files import Handle
from lastword.partition import PartitionView
from lastword.partition.directory_segments import DirectorySegments
from lastword.records.batch import read_header
from lastword.records.formats import crc_ok
from lastword.segment import names
from lastword.segment.recover import inspect
from lastword.testing.unsynced import UNSYNCED, UnsyncedFiles
from tests.fakes import RecordingFiles
from tests.partition.logs import (
    NOW,
    SMALL,
    batch,
    build_batch,
    fill,
    indexes_fit,
    make,
    opened,
    pair,
    records,
)
from tests.support.damage import flip
from tests.support.threads import together


class SlowFiles(UnsyncedFiles):
    """A drive whose sync takes time."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0

    def open_append(self, path: Any, *, create: bool = False, exclusive: bool = False) -> Handle:
        handle = super().open_append(path, create=create, exclusive=exclusive)

        def fsync() -> None:
            self.syncs += 1
            time.sleep(0.002)

        handle.fsync = fsync  # type: ignore[method-assign]
        return handle


def test_a_batch_of_several_records(tmp_path: Path) -> None:
    log, _ = opened(make(tmp_path), files=UNSYNCED)
    assert log.append_batch(batch((b"a", b"1"), (b"b", None), (None, b""))) == (0, 2, NOW)
    assert log.append_batch(batch((b"c", b"1"))) == (3, 3, NOW)
    assert records(log) == [(0, b"a", b"1"), (1, b"b", None), (2, None, b""), (3, b"c", b"1")]


def test_reading_from_any_offset(tmp_path: Path) -> None:
    """6U.269: Reads by offset return each record; a read at the log end is empty."""
    log, _ = opened(make(tmp_path), files=UNSYNCED)
    fill(log, 40)
    for reader in (log, log.view(), PartitionView.load(DirectorySegments(UNSYNCED, log.directory))):
        for start in range(41):
            for end in (start, start + 1, start + 9, 40):
                offsets = [h.base_offset for _, h, _ in reader.batches(start, end)]
                assert offsets == list(range(start, min(end, 40)))


def test_chunks_of_any_range(tmp_path: Path) -> None:
    log, _ = opened(make(tmp_path), files=UNSYNCED)
    fill(log, 40)
    from lastword.kernels.table import BASE_OFFSET

    for start, end in ((0, 40), (3, 4), (6, 8), (13, 29), (39, 40), (40, 40), (5, 5)):
        offsets = [
            int(o) for chunk in log.chunks(start, end, chunk_bytes=250) for o in chunk.table[:, BASE_OFFSET]
        ]
        assert offsets == list(range(start, end))


class TestRolling:
    def test_by_message_time_goes_on_after_reopening(self, tmp_path: Path) -> None:
        config = TopicConfig(segment_ms=1000)
        directory = make(tmp_path)
        log, _ = opened(directory, files=UNSYNCED, config=config)
        log.append_batch(batch((b"k", b"v"), timestamp=5000))
        log.close()
        log, _ = opened(directory, files=UNSYNCED, config=config, clean=True)
        log.append_batch(batch((b"k", b"v"), timestamp=6000))
        log.append_batch(batch((b"k", b"v"), timestamp=6001))
        assert [s.base_offset for s in log.segments] == [0, 2]

    def test_compacted_topics_roll_by_their_lag_too(self, tmp_path: Path) -> None:
        config = TopicConfig(cleanup_policy=frozenset({"compact"}), max_compaction_lag_ms=1000)
        log, _ = opened(make(tmp_path), files=UNSYNCED, config=config)
        for timestamp in (5000, 6001):
            log.append_batch(batch((b"k", b"v"), timestamp=timestamp))
        assert len(log.segments) == 2

    def test_by_the_clock_without_appends(self, tmp_path: Path) -> None:
        clock = ManualClock(5000)
        log, _ = opened(make(tmp_path), files=UNSYNCED, config=TopicConfig(segment_ms=1000), clock=clock)
        assert not log.roll_if_due()
        log.append_batch(batch((b"k", b"v"), timestamp=5000))
        clock.advance(1000)
        assert not log.roll_if_due()
        clock.advance(1)
        assert log.roll_if_due()
        assert log.active.base_offset == 1

    @pytest.mark.parametrize("setting", ["segment_ms", "max_compaction_lag_ms"])
    def test_a_shorter_limit_holds_for_the_active_segment(self, setting: str, tmp_path: Path) -> None:
        clock, config = ManualClock(5000), TopicConfig(cleanup_policy=frozenset({"compact"}))
        log, _ = opened(make(tmp_path), files=UNSYNCED, config=config, clock=clock)
        log.append_batch(batch((b"k", b"v"), timestamp=5000))
        clock.advance(1001)
        assert not log.roll_if_due()
        log.config = replace(config, **{setting: 1000})
        assert log.roll_due_ms == 6000 and log.roll_if_due()
        for timestamp in (6001, 7002):
            log.append_batch(batch((b"k", b"v"), timestamp=timestamp))
        assert [segment.base_offset for segment in log.segments] == [0, 1, 2]

    def test_another_size_holds_for_the_active_segment(self, tmp_path: Path) -> None:
        log, _ = opened(make(tmp_path), files=UNSYNCED)
        data = batch((b"k", b"v"), timestamp=5000)
        for _ in range(2):
            log.append_batch(data)
        log.config = TopicConfig(segment_bytes=log.active.size)
        log.append_batch(data)
        log.config = TopicConfig()
        for _ in range(2):
            log.append_batch(data)
        assert [segment.base_offset for segment in log.segments] == [0, 2]

    def test_by_a_full_index(self, tmp_path: Path) -> None:
        """6P.195: An append to a full index is refused.

        Here: The log rolls instead: no index of a log is larger than `segment.index.bytes`.
        """
        config = TopicConfig(segment_index_bytes=48, index_interval_bytes=0)
        for call in ("single", "many"):
            log, _ = opened(make(tmp_path / call), files=UNSYNCED, config=config)
            if call == "single":
                fill(log, 12)
            else:
                log.append_batches([build_batch(n) for n in range(12)])
            assert [s.base_offset for s in log.segments] == [0, 4, 8]
            for extension in (names.INDEX, names.TIME_INDEX):
                assert all(Path(s.stored.path(extension)).stat().st_size <= 48 for s in log.segments)

    def test_a_segment_of_many_lives_has_room_for_its_rebuilt_index(self, tmp_path: Path) -> None:
        """Opening continues from the last index entry, so a rebuild finds no more entries than were made.

        A broker restarts the index interval at each stop. Its segment may then be too full to rebuild, and
        the broker refuses to start ("append to a full index").
        """
        config = TopicConfig(segment_index_bytes=64, index_interval_bytes=100)
        directory = make(tmp_path)
        for _ in range(20):
            log, _ = opened(directory, files=UNSYNCED, config=config, clean=True)
            for n in range(3):
                log.append_batch(batch((b"%d" % n, b"")))
            log.close()
        rolled = [inspect(UNSYNCED, directory, s.base_offset, index_interval_bytes=100) for s in log.segments]
        assert [len(inspection.offset_entries) for inspection in rolled[:-1]] == [64, 64, 64]

    def test_a_roll_that_fails_takes_the_last_time_entry_back(self, tmp_path: Path) -> None:
        """The log continues in the segment that was finished."""
        files = RecordingFiles(UNSYNCED)
        log, _ = opened(make(tmp_path), files=files)
        fill(log, 3)
        files.fail = lambda call: StorageError("planted", errno=13) if call.name == "create" else None
        with pytest.raises(StorageError):
            log.roll()
        files.fail = None
        assert len(log.segments) == 1
        fill(log, 2)
        assert indexes_fit(log)
        log.roll()
        fill(log, 1)
        assert len(log.segments) == 2 and indexes_fit(log)

    def test_a_stray_file_of_the_new_name_is_no_obstacle(self, tmp_path: Path) -> None:
        log, _ = opened(make(tmp_path), files=UNSYNCED)
        fill(log, 1)
        Path(log.directory, names.segment_file(1, names.INDEX)).write_bytes(b"stray")
        log.roll()
        fill(log, 1)
        assert records(log) == [pair(0), pair(1)]


class TestSync:
    def test_the_old_segment_is_synced_before_the_new_one_exists(self, tmp_path: Path) -> None:
        """6U.275: Closed segments are synced in the background.

        Here: The roll syncs the segment that it closes.
        """
        files = RecordingFiles(UNSYNCED)
        log, _ = opened(make(tmp_path), files=files)
        fill(log, 7)
        before = len(files.calls)
        fill(log, 1)
        calls = [(c.name, os.path.basename(c.path)) for c in files.calls[before:] if c.changes]
        first, new = names.segment_file(0, names.LOG), names.segment_file(7, names.LOG)
        assert calls.index(("fsync", first)) < next(i for i, c in enumerate(calls) if c[1] == new)
        assert log.synced_to == log.recovery_point == 7

    def test_recovery_point_waits_for_the_indexes(self, tmp_path: Path) -> None:
        log, _ = opened(make(tmp_path), files=UNSYNCED)
        fill(log, 3)
        assert (log.synced_to, log.recovery_point) == (0, 0)
        log.sync()
        assert (log.synced_to, log.recovery_point) == (3, 0)
        log.flush()
        assert (log.synced_to, log.recovery_point) == (3, 3)

    def test_callers_share_a_sync(self, tmp_path: Path) -> None:
        slow = SlowFiles()
        log, _ = opened(make(tmp_path), files=slow, config=TopicConfig())
        log.sync()
        before = slow.syncs
        synced = []

        def writer() -> None:
            for _ in range(20):
                last = log.append_batch(build_batch(0)).last_offset
                log.sync()
                synced.append(log.synced_to > last)

        together(*[writer] * 6)
        assert all(synced) and len(synced) == 120
        assert slow.syncs - before < 60

    def test_a_failed_sync_is_final(self, tmp_path: Path) -> None:
        broken = []

        def fail(call):  # type: ignore[no-untyped-def]
            return SyncFailedError("planted") if broken and call.name == "fsync" else None

        log, _ = opened(make(tmp_path), files=RecordingFiles(UNSYNCED, fail=fail))
        fill(log, 2)
        broken.append(1)
        with pytest.raises(SyncFailedError):
            log.sync()
        broken.clear()
        for again in (log.sync, log.flush, lambda: fill(log, 1), log.roll):
            with pytest.raises(SyncFailedError):
                again()
        assert log.synced_to == 0
        assert not log.close()

    def test_what_a_kill_left_is_synced_with_the_first_sync(self, tmp_path: Path) -> None:
        directory = make(tmp_path)
        log, _ = opened(directory, files=UNSYNCED)
        fill(log, 20)
        log.abandon()
        files = RecordingFiles(UNSYNCED)
        log, _ = opened(directory, files=files)
        before = len(files.calls)
        log.sync()
        synced = {os.path.basename(c.path) for c in files.calls[before:] if c.name == "fsync"}
        assert {names.segment_file(base, names.LOG) for base in (0, 7, 14)} <= synced
        assert log.synced_to == 20


class TestRefusals:
    def test_a_full_drive_leaves_the_log_as_it_was(self, tmp_path: Path) -> None:
        """The drive is full at each write in turn, including writes of the indexes."""
        for number in range(1, 40):
            seen = []

            def fail(call, seen=seen, number=number):  # type: ignore[no-untyped-def]
                if call.name in ("append", "open_append") and call.changes:
                    seen.append(call)
                    if len(seen) == number:
                        return DiskFullError("planted")
                return None

            directory = make(tmp_path / str(number))
            try:
                log, _ = opened(directory, files=RecordingFiles(UNSYNCED, fail=fail))
            except DiskFullError:
                continue
            failures = 0
            for _ in range(20):
                end = log.log_end
                try:
                    fill(log, 1)
                except DiskFullError:
                    failures += 1
                    assert log.log_end == end
                    fill(log, 1)
            assert failures == (len(seen) >= number), number
            assert records(log) == [pair(n) for n in range(20)]
            assert indexes_fit(log)
            log.close()

    def test_closed_is_closed(self, tmp_path: Path) -> None:
        log, _ = opened(make(tmp_path), files=UNSYNCED)
        assert log.close()
        assert not log.close()
        with pytest.raises(UnknownTopicError, match="is closed"):
            fill(log, 1)


def test_batches_are_verified(tmp_path: Path) -> None:
    log, _ = opened(make(tmp_path), files=UNSYNCED)
    fill(log, 2)
    flip(log.segments[0].file, -2)
    batches = log.batches(0)
    assert next(batches)[1].base_offset == 0
    with pytest.raises(CorruptBatchError) as error:
        next(batches)
    assert (error.value.code, error.value.offset) == ("bad-crc", 1)
    log.close()


def test_log_append_time(tmp_path: Path) -> None:
    config = TopicConfig(message_timestamp_type="LogAppendTime")
    clock = ManualClock(99_000)
    log, _ = opened(make(tmp_path), files=UNSYNCED, config=config, clock=clock)
    assert log.append_batch(build_batch(5)).timestamp == 99_000
    _, header, data = next(log.batches(0))
    assert header.log_append and header.max_timestamp == 99_000
    assert crc_ok(data, read_header(data, 0, len(data), "x"))


def test_leader_epochs(tmp_path: Path) -> None:
    directory = make(tmp_path)
    (Path(directory) / names.LEADER_EPOCHS).write_text("0\n2\n0 0\n4 0\n")
    log, _ = opened(directory, files=UNSYNCED)  # epochs whose offsets do not rise are ignored
    fill(log, 1)
    assert (Path(directory) / names.LEADER_EPOCHS).read_text() == "0\n1\n0 0\n"
    log.close()
    (Path(directory) / names.LEADER_EPOCHS).write_text("0\n2\n0 0\n4 1\n")
    log, _ = opened(directory, files=UNSYNCED, clean=True)
    fill(log, 1)
    assert [h.leader_epoch for _, h, _ in log.batches(0)] == [0, 4]
    log.close()
    (Path(directory) / names.LEADER_EPOCHS).write_text("0\n2\n0 0\n9 50\n")
    log, _ = opened(directory, files=UNSYNCED)
    assert [(e.epoch, e.start_offset) for e in log.epochs.entries] == [(0, 0), (4, 1)]


def test_appending_and_reading_threads(tmp_path: Path) -> None:
    """Readers beside a writer, in this process and as in another: always a prefix, never a shorter one."""
    log, _ = opened(make(tmp_path), files=UNSYNCED)
    done = threading.Event()

    def read(load) -> None:  # type: ignore[no-untyped-def]
        least = 0
        while not done.is_set():
            source = load()
            offsets = [h.base_offset for _, h, _ in source.batches(max(0, least - 20))]
            assert offsets == list(range(max(0, least - 20), max(0, least - 20) + len(offsets)))
            assert source.log_end >= least
            least = source.log_end

    def write() -> None:
        while log.append_batch(build_batch(0)).last_offset < 299:
            pass
        done.set()

    loads = (
        lambda: log,
        log.view,
        lambda: PartitionView.load(DirectorySegments(UNSYNCED, log.directory)),
    )
    together(*(partial(read, load) for load in loads), *[write] * 3)
    assert log.log_end >= 300


def test_flush_ms_and_flush_messages_sync_at_an_append(tmp_path: Path) -> None:
    """Also after the date was set back."""
    clock = ManualClock(NOW)
    log, _ = opened(make(tmp_path), config=SMALL.replace(flush_ms=1000), clock=clock)
    clock.set_date(NOW - 86_400_000)
    fill(log, 2)
    assert log.synced_to == 0
    clock.advance(1000)
    fill(log, 1)
    assert log.synced_to == 3
    fill(log, 1)
    assert log.synced_to == 3
    log.close()
    log, _ = opened(make(tmp_path / "other"), config=SMALL.replace(flush_messages=3), clock=clock)
    fill(log, 2)
    assert log.synced_to == 0
    fill(log, 1)
    assert log.synced_to == 3
    log.close()
