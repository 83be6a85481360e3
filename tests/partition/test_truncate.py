"""Truncation of a log from its end."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastword.errors import StorageError
from lastword.partition import PartitionLog, PartitionView
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.durability import read_synced
from lastword.partition.snapshots import Snapshots
from lastword.segment import names
from lastword.testing.unsynced import UNSYNCED, UnsyncedFiles
from tests.crash.memory import ROOT, MemoryFiles
from tests.fakes import ForgetfulFiles
from tests.partition.logs import batch, build_batch, fill, indexes_fit, make, opened, pair, records
from tests.partition.test_producers import aborted, encode_producers, of, open_again
from tests.support.exhaustive import few, stride
from tests.transactions import end_transaction


def filled(tmp_path: Path, count: int = 20, **kwargs: Any) -> PartitionLog:
    log, _ = opened(make(tmp_path), files=UNSYNCED, **kwargs)
    fill(log, count)
    return log


@pytest.mark.parametrize("offset", range(20))
def test_6U_283_289_truncation_and_what_is_appended_then(tmp_path: Path, offset: int) -> None:
    """6U.283: Truncation to the log end or beyond does nothing; to the middle and to 0 it works, and
    appending again gives the same size.
    6U.289: A truncation drops the segments above its offset; reading continues, and appending at the offset
    works.
    """
    log = filled(tmp_path)
    sizes = [s.size for s in log.segments]
    log.truncate_to(offset)
    assert (log.log_end, log.stable_offset) == (offset, offset)
    assert records(log) == [pair(n) for n in range(offset)]
    assert indexes_fit(log)
    assert all(s.base_offset <= offset for s in log.segments)
    assert (log.synced_to, log.recovery_point) <= (offset, offset)
    fill(log, 20 - offset)
    assert records(log) == [pair(n) for n in range(20)]
    assert [s.size for s in log.segments] == sizes
    log = open_again(log)
    assert records(log) == [pair(n) for n in range(20)] and indexes_fit(log)


def test_at_the_log_end_and_beyond_nothing_happens(tmp_path: Path) -> None:
    log = filled(tmp_path, 5)
    inode = Path(log.active.file).stat().st_mtime_ns
    for offset in (5, 6, 1000):
        log.truncate_to(offset)
    assert log.log_end == 5 and Path(log.active.file).stat().st_mtime_ns == inode
    with pytest.raises(ValueError, match="-1"):
        log.truncate_to(-1)


def test_6T_246_reopened_and_truncated(tmp_path: Path) -> None:
    """6T.246: A log that is opened again can be truncated to offset 3, its new end."""
    log = open_again(filled(tmp_path, 20), clean=True)
    log.truncate_to(3)
    assert (len(log.segments), log.log_end) == (1, 3)
    assert records(open_again(log, clean=True)) == [pair(n) for n in range(3)]


def test_a_batch_with_the_offset_inside_goes_and_the_log_goes_on_at_the_offset(tmp_path: Path) -> None:
    log = filled(tmp_path, 2)
    log.append_batch(batch((b"a", b"1"), (b"b", b"2"), (b"c", b"3")))
    log.truncate_to(4)
    assert records(log) == [pair(0), pair(1)]
    assert log.log_end == 4
    assert log.append_batch(build_batch(4)).base_offset == 4
    assert [r[0] for r in records(log)] == [0, 1, 4]
    assert [r[0] for r in records(open_again(log))] == [0, 1, 4]


def test_into_a_gap(tmp_path: Path) -> None:
    log = filled(tmp_path, 2)
    log.append_batch(batch((b"a", b"1"), (b"b", b"2"), (b"c", b"3")))
    log.truncate_to(4)
    fill(log, 3)
    log.truncate_to(3)
    assert (log.log_end, records(log)) == (3, [pair(0), pair(1)])


def test_6U_288_full_truncation(tmp_path: Path) -> None:
    """6U.288: A full truncation to an offset leaves one empty segment there."""
    for start in (0, 7, 100):
        log = filled(tmp_path / str(start))
        log.append_batch(of(5, 0, transactional=True))
        log.truncate_fully_and_start_at(start)
        assert (len(log.segments), log.log_start, log.log_end, log.stable_offset) == (1, start, start, start)
        assert (log.producers, log.epochs.entries, records(log)) == ([], (), [])
        fill(log, 9)
        log = open_again(log, log_start=start)
        assert records(log) == [pair(n) for n in range(start, start + 9)]


def test_below_the_first_segment_it_is_a_full_one(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.raise_log_start(12)
    log.remove_prefix()
    first = log.segments[0].base_offset
    assert first > 0
    log.truncate_to(first - 1)
    assert (log.log_start, log.log_end, records(log)) == (first - 1, first - 1, [])


def test_producers_transactions_and_epochs_go_back_too(tmp_path: Path) -> None:
    log, _ = opened(make(tmp_path), files=UNSYNCED)
    seen = []
    for number in range(12):
        for producer_id in (1, 2):
            log.append_batch(of(producer_id, number, transactional=True))
        if number % 3 == 1:
            end_transaction(log, 1, 0, commit=False)
        if number % 4 == 2:
            log.epochs.assign(number, log.log_end)
        transactions = [entry for entries in aborted(log).values() for entry in entries]
        seen.append(
            (
                log.log_end,
                log.stable_offset,
                encode_producers(log.producers),
                transactions,
                log.epochs.entries,
            )
        )
    for end, stable, producers, entries, epochs in reversed(seen):
        log.truncate_to(end)
        assert (log.log_end, log.stable_offset, encode_producers(log.producers)) == (end, stable, producers)
        assert [entry for segment_entries in aborted(log).values() for entry in segment_entries] == entries
        assert log.epochs.entries == tuple(e for e in epochs if e.start_offset < end)
        assert max(Snapshots(UNSYNCED, log.directory).offsets(), default=0) <= end
        assert PartitionView.load(DirectorySegments(UNSYNCED, log.directory)).stable_offset == stable


def test_what_was_known_to_be_durable_is_lowered(tmp_path: Path) -> None:
    log = filled(tmp_path)
    log.sync()
    assert read_synced(UNSYNCED, log.directory) == 20
    log.truncate_to(4)
    assert read_synced(UNSYNCED, log.directory) == 4


def test_after_a_failure_nothing_is_taken_until_the_log_is_opened_again(tmp_path: Path) -> None:
    class Failing(UnsyncedFiles):
        def unlink(self, path: Any, missing_ok: bool = False) -> None:
            if str(path).endswith(names.segment_file(7, names.LOG)):
                raise StorageError("gone mad", file=str(path))
            super().unlink(path, missing_ok)

    log, _ = opened(make(tmp_path), files=Failing())
    fill(log, 20)
    assert 7 in [s.base_offset for s in log.segments]
    with pytest.raises(StorageError):
        log.truncate_to(3)
    with pytest.raises(StorageError):
        fill(log, 1)
    assert not log.close()
    log, _ = opened(log.directory, files=UNSYNCED)
    assert records(log) == [pair(n) for n in range(log.log_end)]


@pytest.mark.slow
@pytest.mark.parametrize("offset", [3, 8, 14, 18][:: stride(2)])
def test_a_power_cut_leaves_a_beginning(tmp_path: Path, offset: int) -> None:
    """At any moment of a truncation and of the appends after it: never a hole, never a mix of old and new."""
    directory = make(tmp_path / "work")
    files = ForgetfulFiles(tmp_path / "work")
    log, _ = opened(directory, files=files)
    fill(log, 20)
    log.sync()
    files.mark("begun")
    log.truncate_to(offset)
    files.mark("cut")
    for _ in range(4):
        log.append_batch(batch((b"new", b"%d" % log.log_end)))
    log.sync()
    files.mark("synced")
    log.abandon()
    new = [(offset + n, b"new", b"%d" % (offset + n)) for n in range(4)]
    checked = 0
    for image in files.images(seeds=range(3)):
        marks = image.marks
        if "begun" not in marks:
            continue
        log, _ = opened(f"{ROOT}/users-0", files=MemoryFiles(image.tree, image.mtimes))
        pairs = records(log)
        old = [pair(n) for n in range(20)]
        kept = [r for r in pairs if r[1] != b"new"]
        assert kept == old[: len(kept)] and len(kept) >= offset, image
        assert pairs[len(kept) :] == new[: len(pairs) - len(kept)], image
        if "cut" in marks:
            assert len(kept) == offset, image
        if "synced" in marks:
            assert pairs == old[:offset] + new, image
        fill(log, 1)
        assert indexes_fit(log)
        log.close()
        checked += 1
    assert checked > 40


@settings(max_examples=few(60), deadline=None)
@given(
    st.lists(st.one_of(st.integers(1, 9), st.integers(-40, -1), st.sampled_from(["kill", "stop", "roll"])))
)
def test_any_sequence_of_appends_and_truncations(
    tmp_path_factory: pytest.TempPathFactory, moves: list[int | str]
) -> None:
    root = tmp_path_factory.mktemp("truncate")
    log, _ = opened(make(root), files=UNSYNCED)
    try:
        for move in moves:
            end = log.log_end
            if move == "roll":
                log.roll()
            elif isinstance(move, str):
                log = open_again(log, clean=move == "stop")
                assert log.log_end == end
            elif move > 0:
                fill(log, move)
            else:
                log.truncate_to(max(0, end + move))
            assert records(log) == [pair(n) for n in range(log.log_end)]
        assert indexes_fit(log)
    finally:
        log.abandon()
        shutil.rmtree(root)
