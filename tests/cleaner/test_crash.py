"""A round stopped before each of its changes, and power cuts after each: the newest values stay."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lastword.clock import ManualClock
from lastword.files import OsFiles
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.view import PartitionView
from tests.build import LogBuilder, records_of, state_of
from tests.fakes.forgetful import ForgetfulFiles
from tests.fakes.hasty import HastyFiles
from tests.fakes.recording import RecordingFiles, Stopped
from tests.support.exhaustive import stride

NEWEST = {b"a": b"3", b"b": b"2", b"c": b"only", b"d": b"only"}


def written(log: LogBuilder) -> LogBuilder:
    """Write three small segments: garbage in two, a tombstone, and a key that only the first segment has."""
    log.topic("users", segment_bytes=400)
    log.batch([("a", 1), ("c", "only"), ("b", 1)]).put("a", 2).roll()
    log.put("gone", 1).put("a", 3).delete("gone").roll()
    log.put("b", 2).put("d", "only")
    return log


def copied(source: LogBuilder, target: Path, files: RecordingFiles) -> LogBuilder:
    shutil.copytree(source.root, target)
    return LogBuilder(target, files=files, clock=source.clock).topic("users", segment_bytes=400)


def stops(tmp_path: Path, torn: bool) -> int:
    original = written(LogBuilder(tmp_path / "original")).close()
    offsets = original.offsets()
    whole = copied(original, tmp_path / "whole", RecordingFiles(HastyFiles()))
    assert whole.clean().complete
    final = {name: data for name, data in whole.tree().items() if name.endswith(".log")}
    survivors = whole.offsets()
    number = 0
    while True:
        target = tmp_path / f"stop{number}"
        files = RecordingFiles(HastyFiles())
        log = copied(original, target, files)
        assert log.log
        files.stop_at, files.torn = len(files.changes) + number, torn
        try:
            log.clean()
            return number
        except Stopped:
            pass
        log.abandon()
        # A process without a lock reads, before any repair:
        seen = records_of(PartitionView.load(DirectorySegments(OsFiles(), log.directory)))
        assert state_of(seen) == NEWEST
        assert set(survivors) <= {r.offset for r in seen} <= set(offsets)
        # The next start:
        again = LogBuilder(target, clock=original.clock, files=HastyFiles()).topic("users", segment_bytes=400)
        assert again.log.log_end == 9
        assert again.state() == NEWEST
        assert set(survivors) <= set(again.offsets()) <= set(offsets)
        assert not [
            n for n in again.tree() if "rewrite-" in n or n.endswith((".cleaned", ".swap", ".deleted"))
        ]
        again.clean()
        logs = {name: data for name, data in again.tree().items() if name.endswith(".log")}
        assert logs == final, "the next round ends where the stopped one would have"
        again.abandon()
        shutil.rmtree(target)
        number += stride(4)


@pytest.mark.slow
@pytest.mark.parametrize("torn", [False, True])
def test_a_stop_at_every_change_of_a_round(tmp_path: Path, torn: bool) -> None:
    assert stops(tmp_path, torn) > 40


@pytest.mark.slow
def test_a_power_cut_at_every_moment_of_a_round(tmp_path: Path) -> None:
    files = ForgetfulFiles(tmp_path / "live", HastyFiles())
    log = written(LogBuilder(tmp_path / "live", files=files))
    log.sync()
    survivors = {1, 5, 6, 7, 8}
    start = len(files.journal)
    log.clean()
    assert set(log.offsets()) == survivors
    images = 0
    for number, image in enumerate(files.images(seeds=range(2), start=start)):
        images += 1
        if number % stride(5):
            continue
        target = tmp_path / f"image{number}"
        image.write(target)
        seen = LogBuilder(target, clock=log.clock, files=HastyFiles()).topic("users", segment_bytes=400)
        assert seen.log.log_end == 9, image.label
        assert seen.state() == NEWEST, image.label
        assert survivors <= set(seen.offsets()), image.label
        seen.abandon()
        shutil.rmtree(target)
    assert images > 100


@pytest.mark.slow
def test_a_record_acknowledged_at_disk_is_not_lost_to_a_newer_one_that_never_was(tmp_path: Path) -> None:
    """`a` is acknowledged at `disk`, its newer record only at `os`; a cleaning runs; then the power fails.
    Either the newer record exists, or the old record of `a` still does. A cleaner that does not sync the
    newer record first loses both.
    """
    files = ForgetfulFiles(tmp_path / "live", HastyFiles())
    log = LogBuilder(tmp_path / "live", files=files)
    log.put("a", "acknowledged at disk").put("b", 1).sync()
    files.mark("disk")
    log.put("a", "acknowledged at os")
    log.clean()
    assert log.offsets() == [1, 2], "the cleaning did remove the older one"
    checked = kept_old = 0
    for number, image in enumerate(files.images()):
        if "disk" not in image.marks:
            continue
        target = tmp_path / f"image{number}"
        image.write(target)
        seen = LogBuilder(target, clock=log.clock, files=HastyFiles())
        value = seen.state().get(b"a")
        assert value in (b"acknowledged at disk", b"acknowledged at os"), image.label
        kept_old += value == b"acknowledged at disk"
        assert seen.log and seen.state().get(b"a") == value, image.label
        seen.abandon()
        shutil.rmtree(target)
        checked += 1
    assert checked > kept_old > 0, "images of both kinds were seen"


def test_the_checkpoint_moves_only_after_the_last_swap_is_durable(tmp_path: Path) -> None:
    files = RecordingFiles(HastyFiles())
    log = written(LogBuilder(tmp_path / "data", files=files, clock=ManualClock()))
    seen: list[int] = []

    def record(offset: int) -> None:
        seen.append(offset)
        last_rename = max(i for i, call in enumerate(files.calls) if call.name == "rename")
        last_sync = max(i for i, call in enumerate(files.calls) if call.name == "fsync_dir")
        assert last_sync > last_rename

    log.clean(record_first_dirty=record)
    assert seen == [9]


def test_nothing_of_the_old_log_goes_before_what_replaces_it_is_synced(tmp_path: Path) -> None:
    files = RecordingFiles(HastyFiles())
    log = written(LogBuilder(tmp_path / "data", files=files))
    assert log.log
    start = len(files.calls)
    log.clean()
    calls = files.calls[start:]
    first_gone = next(
        i for i, c in enumerate(calls) if c.name == "rename" and str(c.detail).endswith(".deleted")
    )
    appended = {c.path for c in calls[:first_gone] if c.name == "append" and "rewrite-" in c.path}
    synced = {c.path for c in calls[:first_gone] if c.name == "fsync"}
    assert appended and appended <= synced
