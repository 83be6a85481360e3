"""SIGKILL before each change of a round, and readers beside each change, for both strategies."""

from __future__ import annotations

import os
import shutil
import signal
from itertools import pairwise
from pathlib import Path

import pytest

from lastword.clock import ManualClock
from lastword.config import TopicConfig
from lastword.errors import LastwordError
from lastword.files import Files
from lastword.kernels.warming import warm
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.view import PartitionView
from lastword.records.batch import read_records
from tests.build import records_of
from tests.cleaner.test_accounted import HOUR, NOW, Log
from tests.fakes.hasty import HastyFiles
from tests.fakes.recording import Call, RecordingFiles
from tests.support.exhaustive import stride

STRATEGIES = ["kafka", "generational"]
CONFIG = TopicConfig(
    cleanup_policy=frozenset({"compact"}),
    segment_bytes=160,
    index_interval_bytes=80,
    delete_retention_ms=HOUR,
    file_delete_delay_ms=0,
)
NEWEST = {b"k%d" % n: b"w%d" % (24 + n) for n in range(6)} | {b"only%d" % n: b"1" for n in range(6)}
Seen = tuple[tuple[int, bytes | None, bytes | None], ...]


def begun(path: Path, files: Files) -> Log:
    """Write a log, save its accounts, then add garbage and a tombstone whose horizon has passed."""
    log = Log(path, CONFIG, files)
    for number in range(6):
        log.put((b"only%d" % number, b"1"), (b"k%d" % number, b"v"), (b"gone", b"%d" % number), roll=True)
    log.put((b"gone", None), roll=True)
    log.clean()
    log.ledger.save()
    log.clock.advance(2 * HOUR)
    for number in range(30):
        log.put((b"k%d" % (number % 6), b"w%d" % number), (b"gone2", b"x"), roll=number % 4 == 3)
    log.put((b"gone2", None), roll=True)
    log.log.sync()
    return log


def seen(path: Path) -> Seen:
    """Return the records that a reader in another process sees now, without a lock."""
    view = PartitionView.load(DirectorySegments(HastyFiles(), str(path / "t-0")))
    return tuple((record.offset, record.key, record.value) for record in records_of(view))


def newest(records: Seen) -> dict[bytes, bytes]:
    values = {key: value for _, key, value in records}
    return {key: value for key, value in values.items() if key is not None and value is not None}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_reader_sees_the_old_or_the_new_of_each_swap_and_never_a_mix(strategy: str, tmp_path: Path) -> None:
    """Read before each change of a round. Each output replaces its sources at one moment, and stays."""
    states: list[Seen] = []

    def look(call: Call) -> LastwordError | None:
        if call.changes and watching:
            states.append(seen(tmp_path))
        return None

    watching = False
    log = begun(tmp_path, RecordingFiles(HastyFiles(), fail=look))
    held = PartitionView.load(
        DirectorySegments(HastyFiles(), str(tmp_path / "t-0"))
    )  # loaded before the round; continues to read
    old = seen(tmp_path)
    watching = True
    assert log.clean(strategy=strategy).complete
    watching = False
    new = seen(tmp_path)
    assert newest(old) == newest(new) == NEWEST and len(new) < len(old)
    bases = [segment.base_offset for segment in log.log.segments] + [log.log.log_end]
    turns = 0
    for first, end in pairwise(bases):
        before, after = (tuple(r for r in records if first <= r[0] < end) for records in (old, new))
        course = [tuple(r for r in records if first <= r[0] < end) for records in (old, *states, new)]
        assert set(course) <= {before, after}
        changes = [earlier != later for earlier, later in pairwise(course)]
        assert sum(changes) == (before != after), "it turns once"
        turns += sum(changes)
    assert turns >= 2 and len(states) > 40
    batches = held.batches(held.log_start)
    read = [
        r for segment, header, data in batches for r in read_records(data, header, segment.file, position=0)
    ]
    assert newest(tuple((r.offset, r.key, r.value) for r in read)) == NEWEST
    log.close()


def killed_before(path: Path, strategy: str, number: int) -> bool:
    """Clean in a forked process, killed before change `number`; return False if the round ended earlier."""
    child = os.fork()
    if child == 0:  # the child may end only by os._exit or the signal
        status, count, armed = 1, 0, False
        try:

            def kill(call: Call) -> LastwordError | None:
                nonlocal count
                if call.changes and armed:
                    count += 1
                    if count > number:
                        os.kill(os.getpid(), signal.SIGKILL)
                return None

            log = opened(path, RecordingFiles(HastyFiles(), fail=kill))
            armed = True
            if log.clean(strategy=strategy).complete:
                status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def opened(path: Path, files: Files) -> Log:
    log = Log.__new__(Log)
    log.path, log.config, log.files, log.map_bytes = path / "t-0", CONFIG, files, 1 << 20
    log.clock, log.first_dirty, log.newest = ManualClock(NOW + 2 * HOUR), None, {}
    log.open()
    return log


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_sigkill_in_the_middle_of_a_round(strategy: str, tmp_path: Path) -> None:
    """A kill while mapping, rewriting, swapping or saving accounts: a reader and the next start return the
    newest values, accepted accounts are true, and the next round ends the work.
    """
    warm()
    files = RecordingFiles(HastyFiles())
    (tmp_path / "begun").mkdir()
    begun(tmp_path / "begun", HastyFiles()).close()
    log = opened(shutil.copytree(tmp_path / "begun", tmp_path / "counted"), files)
    before = len(files.changes)
    log.clean(strategy=strategy)
    changes = len(files.changes) - before
    log.close()
    ended = 0
    for number in [*range(0, changes, changes * stride(2) // 24), changes + 1]:
        path = tmp_path / f"kill{number}"
        shutil.copytree(tmp_path / "begun", path)
        was_killed = killed_before(path, strategy, number)
        assert newest(seen(path)) == NEWEST, number
        again = opened(path, HastyFiles())
        assert newest(seen(path)) == NEWEST, number
        assert not [entry for entry in (path / "t-0").iterdir() if entry.suffix in (".cleaned", ".swap")]
        assert again.clean().complete, number
        left = seen(path)
        assert newest(left) == NEWEST, number
        assert len([key for _, key, _ in left if key is not None and key.startswith(b"k")]) == 6, number
        assert all(value is None for _, key, value in left if key in (b"gone", b"gone2")), number
        again.log.abandon()
        shutil.rmtree(path)
        ended += not was_killed
    assert changes > 60 and ended == 1
