"""A life with a key index, stopped before each of its changes, and with a power cut after some: what a new
reader and a new writer look up is what a scan finds, whether the saved index is used or not.
"""

import random
import shutil

import pytest

from lastword.clock import ManualClock
from lastword.config import Settings
from lastword.files import DEFAULT
from lastword.keys import bulk, index, manifest
from lastword.keys.index import KeyIndex
from lastword.logdir import LogDirectory
from lastword.partition import PartitionView, scan
from lastword.partition.directory_segments import DirectorySegments
from lastword.records.batch import BatchBuilder
from lastword.segment import names
from lastword.testing.unsynced import UNSYNCED
from tests.fakes.forgetful import ForgetfulFiles
from tests.fakes.hasty import HastyFiles
from tests.fakes.recording import RecordingFiles, Stopped
from tests.support.exhaustive import stride

SETTINGS = '[defaults]\n"cleanup.policy" = "compact"\n"segment.bytes" = 600\n"index.interval.bytes" = 200\n'
KEYS = [b"k%d" % number for number in range(6)]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(index, "OVERLAY_ENTRIES", 4)


def opened(path, files):
    settings = Settings.from_text(SETTINGS)
    return LogDirectory.open(str(path), "a", files, ManualClock(), settings, rng=random.Random(5))


def index_of(logs_files, directory, *, writes):
    return KeyIndex(logs_files, directory, "t", writes=writes, most_bytes=lambda: 1 << 20)


def put(log, *numbers, value=b"v"):
    for number in numbers:
        builder = BatchBuilder()
        builder.append(log.clock.now_ms(), b"k%d" % (number % 6), None if number % 5 == 4 else value)
        log.append_batch(builder.build())


def lived(path, files):
    """Look up between appends, so that runs are written and merged; cut the log, and go on."""
    logs = opened(path, files)
    try:
        _live(logs, files)
    except BaseException:
        logs.abandon()
        raise


def _live(logs, files):
    logs.create_topic("t", 1, {})
    log = logs.log("t", 0)
    keys = index_of(files, log.directory, writes=True)
    for start in (0, 7, 14):
        put(log, *range(start, start + 7))
        assert keys.follow(log)
        keys.find(log, KEYS)
    log.sync()
    log.roll()
    logs.truncate("t", 0, 17)
    put(log, *range(30, 38), value=b"after the cut")
    assert keys.follow(log)
    keys.find(log, KEYS)
    put(log, *range(40, 45))
    keys.follow(log)
    keys.close()
    logs.close()


def newest(view):
    records = {r.key: r for r in scan.records(view, view.log_start, min(view.stable_offset, view.log_end))}
    return {key: record for key, record in records.items() if record.value is not None}


def check(path, label, used):
    """Compare the lookups of a reader and then of a writer with a scan."""
    files = HastyFiles()
    directory = f"{path}/t-0"
    if files.is_dir(directory) and files.listdir(directory):
        view = PartitionView.load(DirectorySegments(files, directory))
        reader = index_of(files, directory, writes=False)
        assert reader.follow(view), label
        assert reader.find(view, KEYS) == newest(view), label
        used.append(reader._saved_end > 0)
    logs = opened(path, files)
    try:
        if "t" in logs.topics():
            log = logs.log("t", 0)
            for _ in range(2):
                writer = index_of(files, log.directory, writes=True)
                assert writer.follow(log), label
                assert writer.find(log, KEYS) == newest(log.view()), label
                put(log, 3, 8, 9, 11, value=b"later")
    finally:
        logs.abandon()


@pytest.mark.slow
def test_a_stop_at_every_change(tmp_path):
    number, used = 0, []
    while True:
        target = tmp_path / f"stop{number}"
        target.mkdir()
        files = RecordingFiles(HastyFiles())
        files.stop_at = number
        try:
            lived(target, files)
            break
        except Stopped:
            pass
        check(target, number, used)
        shutil.rmtree(target)
        number += stride(7)
    assert number > 100
    assert any(used) and not all(used)


@pytest.mark.slow
def test_a_power_cut_even_if_inodes_could_not_tell(tmp_path, monkeypatch):
    """An image has other inodes than its log, so these are not compared here: the header must be enough."""

    def testifies(witness, view):
        at = view.segment_set.index_of(witness.base_offset)
        data = view.segments[at].handle.pread(61, witness.position) if at >= 0 else b""
        return data.hex() == witness.header

    monkeypatch.setattr(manifest, "incarnation", lambda view: (0, None))
    monkeypatch.setattr(manifest.Witness, "testifies", testifies)
    (tmp_path / "live").mkdir()
    files = ForgetfulFiles(tmp_path / "live", HastyFiles())
    lived(tmp_path / "live", files)
    used = []
    for number, image in enumerate(
        files.images(range(0, len(files.journal) + 1, 7 * stride(11)), seeds=range(1))
    ):
        target = tmp_path / f"image{number}"
        image.write(target)
        check(target, image.label, used)
        shutil.rmtree(target)
    assert len(used) > 25
    assert any(used) and not all(used)


def test_the_order_of_a_save(tmp_path):
    """The run, its name, the manifest; then the older run is removed. The run between has no manifest."""
    files = RecordingFiles(DEFAULT)
    logs = opened(tmp_path, files)
    logs.create_topic("t", 1, {})
    log = logs.log("t", 0)
    keys = index_of(files, log.directory, writes=True)
    for start in (0, 7):
        put(log, *range(start, start + 7))
        begun = len(files.changes)
        assert keys.follow(log)
    steps = [
        (change.name, change.path.rpartition("/")[2].partition("-")[0])
        for change in files.changes[begun:]
        if change.name not in ("append", "create") and (change.name, change.path[-4:]) != ("unlink", ".tmp")
    ]
    assert steps == [
        ("fsync", "keys"),  # the new run
        ("fsync", "keys"),  # the two merged
        ("unlink", "keys"),
        ("fsync_dir", "lastword"),
        ("fsync", "keys.tmp"),
        ("rename", "keys.tmp"),
        ("fsync_dir", "lastword"),
        ("unlink", "keys"),
    ]
    logs.close()


def test_a_long_log_is_merged_in_levels(tmp_path, monkeypatch):
    """A merge has few runs whatever the length of the log, and a merged run leaves no file."""
    monkeypatch.setattr(index, "MOST_MERGED", 3)
    monkeypatch.setattr(bulk, "WINDOW", 1024)
    merged, merge = [], bulk.merge

    def counted(sink, runs, *given, **more):
        merged.append(len(runs))
        return merge(sink, runs, *given, **more)

    monkeypatch.setattr(bulk, "merge", counted)
    logs = opened(tmp_path, UNSYNCED)
    logs.create_topic("t", 1, {"segment.bytes": "1000000"})
    log = logs.log("t", 0)
    for start in range(0, 30_000, 10):
        builder = BatchBuilder()
        for number in range(start, start + 10):
            builder.append(0, b"%d" % (number % 20_000), b"%d" % number if number % 7 else None)
        log.append_batch(builder.build())
    keys = index_of(UNSYNCED, log.directory, writes=True)
    assert keys.follow(log)
    assert len(merged) > 3 and max(merged[:-1]) == 3 and merged[-1] <= 2 * 3
    newest = {number % 20_000: number for number in range(30_000)}
    wanted = {b"%d" % key: b"%d" % number for key, number in newest.items() if number % 7}
    assert {key: record.value for key, record in keys.find(log, map(b"%d".__mod__, newest)).items()} == wanted
    private = tmp_path / "t-0" / names.PRIVATE
    assert len([path for path in private.iterdir() if path.name.startswith(names.KEY_RUN)]) == 1
    logs.close()
