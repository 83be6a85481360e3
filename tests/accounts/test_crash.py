"""A life with accounts, stopped before each of its changes, and with a power cut after each: accepted
accounts are true of the log, and the newest values stay.
"""

import shutil

import pytest

from lastword.accounts import tracking
from lastword.accounts.ledger import Ledger
from lastword.clock import ManualClock
from lastword.config import TopicConfig
from lastword.files import DEFAULT
from lastword.resolve import resolve
from tests.cleaner.test_accounted import HOUR, NOW, Log
from tests.fakes.forgetful import ForgetfulFiles
from tests.fakes.hasty import HastyFiles
from tests.fakes.recording import RecordingFiles, Stopped
from tests.support.exhaustive import stride
from tests.support.partitions import records_of

CONFIG = TopicConfig(
    cleanup_policy=frozenset({"compact"}),
    segment_bytes=600,
    index_interval_bytes=200,
    delete_retention_ms=HOUR,
)


def begun(log):
    """Write three closed segments, and save their accounts."""
    for number in range(20):
        log.put((b"k%d" % (number % 6), b"v%d" % number))
    log.put((b"gone", b"1"), (b"gone2", b"1"), roll=True)
    log.put((b"gone", None), roll=True)
    log.clean()
    log.ledger.save()
    log.log.sync()
    return log


def lived(log):
    """Run the steps that are stopped: a scan, a partial round, a tombstone past its horizon, saves."""
    for number in range(8):
        log.put((b"k%d" % (number % 3), b"w%d" % number))
    log.log.roll()
    log.clean(due=True)
    log.ledger.save()
    log.clock.advance(2 * HOUR)
    log.put((b"gone2", None), roll=True)
    log.clean()
    log.ledger.save()


def check(path, label, *, used=None):
    """Check that the newest values exist and that accepted accounts are true."""
    log = Log.__new__(Log)
    log.path, log.config, log.files, log.map_bytes = path / "t-0", CONFIG, HastyFiles(), 1 << 20
    log.clock, log.first_dirty, log.newest = ManualClock(NOW + 9 * HOUR), None, {}
    log.open()
    try:
        newest = {}
        for record in records_of(log.path, log.files):
            newest[record.key] = record.value
        live = {key: value for key, value in newest.items() if value is not None}
        assert {key[:1] for key in live} <= {b"k", b"g"}, label
        assert b"gone" not in live, label
        assert all(b"k%d" % n in live for n in range(6)), label
        if used is not None:
            used.append(log.ledger.limit > 0)
        below = [segment for segment in log.log.segments if segment.base_offset < log.ledger.limit]
        resolved = resolve(below, map_bytes=1 << 20, salt=b"s" * 16, now_ms=-1).segments if below else ()
        due = {segment.base_offset: 0 for segment in resolved}
        for offset in log.ledger.deletes.due.tolist():
            due[max(base for base in due if base <= offset)] += 1
        counts = [(segment.base_offset, segment.dead_records) for segment in log.ledger.facts()]
        assert counts == [
            (segment.base_offset, segment.dead_records + due[segment.base_offset]) for segment in resolved
        ], label
        log.clean()
        assert log.live() == live, label
    finally:
        log.log.abandon()


@pytest.mark.slow
def test_a_stop_at_every_change(tmp_path):
    number, used = 0, []
    while True:
        target = tmp_path / f"stop{number}"
        target.mkdir()
        files = RecordingFiles(HastyFiles())
        log = begun(Log(target, CONFIG, files))
        files.stop_at = len(files.changes) + number
        try:
            lived(log)
            break
        except Stopped:
            log.log.abandon()
        check(target, number, used=used)
        shutil.rmtree(target)
        number += stride(16)
    files.stop_at = None
    log.close()
    assert number > 100
    assert any(used) and not all(used)


@pytest.mark.slow
def test_a_power_cut_at_every_ninth_moment_even_if_inodes_could_not_tell(tmp_path, monkeypatch):
    """An image has other inodes and times than its log, so these are not compared here: sizes and the last
    bytes must be enough.
    """

    def is_of(entry, segment):
        facts = segment.stored.facts()
        identity = facts is not None and (segment.base_offset, facts.id.size)
        return identity == (entry.base_offset, entry.size_bytes)

    monkeypatch.setattr(tracking.SegmentEntry, "is_of", is_of)
    files = ForgetfulFiles(tmp_path / "live", HastyFiles())
    (tmp_path / "live").mkdir(exist_ok=True)
    files.mkdir(str(tmp_path / "live" / "t-0"))
    files.fsync_dir(str(tmp_path / "live"))
    log = begun(Log(tmp_path / "live", CONFIG, files))
    start = len(files.journal)
    lived(log)
    log.log.abandon()
    used = []
    for image in files.images(range(start, len(files.journal) + 1, 9 * stride(8)), seeds=range(1)):
        image.write(tmp_path / "image")
        check(tmp_path / "image", image.label, used=used)
    assert len(used) > 25
    assert any(used) and not all(used)


def test_the_snapshot_is_whole_or_not_there(tmp_path):
    """The snapshot is written to a second file, synced, renamed, and the directory is synced."""
    files = RecordingFiles(DEFAULT)
    log = begun(Log(tmp_path, CONFIG, files))
    log.put((b"k0", b"x"), roll=True)
    log.ledger.fit(log.log.segments)
    log.ledger.add_segments(log.log.segments[:-1], log.log.active.base_offset, write_clock=0, now_ms=0)
    files.calls.clear()
    assert log.ledger.save()
    steps = [
        (change.name, change.path.rpartition("/")[2]) for change in files.changes if change.name != "append"
    ]
    assert steps[-3:] == [("fsync", "accounts.tmp"), ("rename", "accounts.tmp"), ("fsync_dir", "lastword")]
    assert isinstance(Ledger.open(files, str(log.path), log.log.segments, map_bytes=1 << 20), Ledger)
    log.close()
