"""Accounts that do not fit the log any more are discarded with the reason, and built again."""

import contextlib
import os
import shutil

import pytest

from lastword.accounts import snapshot
from lastword.accounts.ledger import Ledger
from lastword.clock import ManualClock
from lastword.files import DEFAULT
from lastword.logdir import LogDirectory
from lastword.resolve import resolve
from tests.cleaner.test_accounted import CONFIG, HOUR, Log
from tests.support.cleaning import clean


@pytest.fixture
def log(tmp_path):
    builder = Log(tmp_path)
    for number in range(100):
        builder.put((b"k%d" % (number % 9), b"v%d" % number))
    builder.put((b"k1", None))
    builder.clean()
    for number in range(60):
        builder.put((b"k%d" % (number % 5), b"w%d" % number))
    builder.log.roll()
    look(builder)
    yield builder
    builder.close()


def look(log):
    log.ledger.fit(log.log.segments)
    log.ledger.add_segments(
        log.log.segments[:-1], log.log.active.base_offset, write_clock=log.log.log_end, now_ms=0
    )


def resolve_dead_records(log):
    """Return the dead records of each segment by a resolve of the whole log."""
    below = log.log.segments[:-1]
    resolution = resolve(below, map_bytes=1 << 20, salt=b"s" * 16, now_ms=-1)
    return [(segment.base_offset, segment.dead_records) for segment in resolution.segments]


def read_dead_records(log):
    return [(segment.base_offset, segment.dead_records) for segment in log.ledger.facts()]


def check_rebuilt(log, why):
    """Check that the restarted ledger is empty, has the reason, and is right after a scan."""
    assert log.ledger.limit == 0
    assert why in log.ledger.rebuilt_because
    log.log.roll()
    look(log)
    assert read_dead_records(log) == resolve_dead_records(log)
    log.clean()
    assert log.live() == {key: value for key, value in log.newest.items() if value is not None}


def test_saved_and_found_again_nothing_is_scanned(log):
    before = read_dead_records(log)
    entries = [(e.base_offset, e.garbage_age, e.written_at, e.generation) for e in log.ledger.entries]
    clocks = log.ledger.deletes.clocks.offset.tolist()
    log.restart()
    assert log.ledger.rebuilt_because == ""
    assert read_dead_records(log) == before == resolve_dead_records(log)
    assert [(e.base_offset, e.garbage_age, e.written_at, e.generation) for e in log.ledger.entries] == entries
    assert log.ledger.deletes.clocks.offset.tolist() == clocks
    assert log.ledger.add_segments(log.log.segments, log.ledger.limit, write_clock=0, now_ms=0) == 0


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ("missing", ""),
        ("flipped", "damaged"),
        ("cut", "damaged"),
        ("empty", "damaged"),
        ("nonsense", "damaged"),
        ("parts that do not belong together", "damaged"),
        ("another version", "another version"),
    ],
)
def test_a_file_that_cannot_be_used(log, damage, why):
    log.ledger.save()
    path = log.path / "lastword" / "accounts"
    data = bytearray(path.read_bytes())
    saved = snapshot.load(DEFAULT, str(path))
    if damage == "missing":
        path.unlink()
    elif damage == "another version":
        snapshot.save(DEFAULT, str(path), {**saved.header, "version": 99}, saved.arrays)
    elif damage == "parts that do not belong together":
        saved.arrays["map_arena"] = saved.arrays["map_arena"][:-40]
        snapshot.save(DEFAULT, str(path), saved.header, saved.arrays)
    else:
        half = len(data) // 2
        flipped = data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :]
        path.write_bytes(
            {"flipped": flipped, "cut": data[:-9], "empty": b"", "nonsense": b"hello" * 100}[damage]
        )
    log.restart(save=False)
    assert bool(log.ledger.rebuilt_because) == bool(why)
    check_rebuilt(log, why)


def test_restored_from_a_backup(log, tmp_path):
    log.ledger.save()
    log.log.close()
    shutil.copytree(log.path, tmp_path / "copy")
    shutil.rmtree(log.path)
    shutil.copytree(tmp_path / "copy", log.path, copy_function=shutil.copy2)
    log.open()
    check_rebuilt(log, "not the file")


def test_a_segment_with_other_bytes_of_the_same_size_and_time(log):
    log.ledger.save()
    log.log.close()
    file = log.ledger.entries[1]
    path = log.path / f"{file.base_offset:020d}.log"
    times = path.stat()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    ledger = Ledger.open(DEFAULT, str(log.path), log.log.segments, map_bytes=1 << 20)
    assert ledger.limit == 0
    assert "ends otherwise" in ledger.rebuilt_because
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    log.open()
    assert log.ledger.limit > 0


def test_kafka_cleaned_beneath_it(log):
    """Kafka's cleaner gives a segment a new file, and does not change our accounts."""
    log.ledger.save()
    clean(log.log, CONFIG, first_dirty=None, record_first_dirty=lambda _: None)
    log.restart(save=False)
    check_rebuilt(log, "not the file")


def test_kafka_cleaned_beneath_a_ledger_in_memory(log):
    clean(log.log, CONFIG, first_dirty=None, record_first_dirty=lambda _: None)
    log.ledger.fit(log.log.segments)
    check_rebuilt(log, "not the file")


def test_a_truncation_removes_it_before_anything_else(log):
    from tests.fakes.recording import RecordingFiles

    log.ledger.save()
    log.log.close()
    log.files = RecordingFiles(DEFAULT)
    log.open()
    log.files.calls.clear()
    log.log.truncate_to(log.log.log_end - 30)
    changes = [(call.name, os.path.basename(call.path)) for call in log.files.changes]
    removed = changes.index(("unlink", "accounts"))
    assert changes[removed + 1] == ("fsync_dir", "lastword")
    # Before that only the removal log is written, which no reader of the accounts needs.
    assert {name.removesuffix(".tmp") for _, name in changes[:removed]} <= {"dropped-tombstones", "lastword"}
    log.newest.clear()
    log.newest.update({key: value for _, key, value in log.records()})
    log.ledger = Ledger.open(log.files, str(log.path), log.log.segments, map_bytes=1 << 20)
    check_rebuilt(log, "")


def test_truncated_fully(log):
    log.ledger.save()
    log.log.truncate_fully_and_start_at(1000)
    assert not (log.path / "lastword" / "accounts").exists()
    log.newest.clear()
    log.put((b"a", b"1"))
    log.ledger.fit(log.log.segments)
    check_rebuilt(log, "have left the log")


def test_truncated_and_grown_again_to_the_same_size(tmp_path):
    """In one process: the directory drops the accounts in memory before the truncation."""
    clock = ManualClock(1_700_000_000_000)
    with LogDirectory.open(str(tmp_path), "a", clock=clock) as home:
        home.create_topic("t", 1, {"segment_bytes": "300", "cleanup_policy": "compact"})
        log = home.log("t", 0)
        from lastword.logdir import TopicPartition
        from tests.partition.logs import batch

        tp = TopicPartition("t", 0)
        for number in range(9):
            log.append_batch(batch((b"k%d" % number, b"same-length-value")))
        with home.ledgers.of(tp, log) as ledger:
            ledger.add_segments(log.segments, log.active.base_offset, write_clock=0, now_ms=0)
            assert ledger.limit > 3
        home.truncate("t", 0, 3)
        for _ in range(6):
            log.append_batch(batch((b"k0", b"same-length-value")))
        with home.ledgers.of(tp, log) as ledger:
            assert ledger.limit == 0
            ledger.add_segments(log.segments, log.active.base_offset, write_clock=0, now_ms=0)
            assert sum(segment.dead_records for segment in ledger.facts()) > 0


def test_segments_that_expired_or_were_trimmed_at_the_front_leave_the_rest_true(log):
    cut = log.log.segments[2].base_offset
    log.log.raise_log_start(cut)
    log.log.remove_prefix()
    assert log.ledger.fit(log.log.segments)
    assert log.ledger.rebuilt_because == ""
    assert [segment.base_offset for segment in log.ledger.facts()] == [
        s.base_offset for s in log.log.segments[:-1]
    ]
    log.newest.clear()
    log.newest.update({key: value for _, key, value in log.records()})
    log.clean()
    assert log.live() == {key: value for key, value in log.newest.items() if value is not None}


def test_it_is_reset_when_most_of_it_was_removed(log):
    log.log.raise_log_start(log.log.active.base_offset - 1)
    log.log.remove_prefix()
    assert not log.ledger.fit(log.log.segments)
    assert "left the log" in log.ledger.rebuilt_because


def test_a_round_that_was_stopped_leaves_the_accounts_as_they_were(log):
    log.put(*[(b"k%d" % n, b"x") for n in range(9)], roll=True)
    look(log)
    before, calls = read_dead_records(log), []

    def stop():
        calls.append(1)
        return len(calls) > 2

    done = log.clean(stop=stop)
    assert not done.complete
    assert read_dead_records(log) == before == resolve_dead_records(log)
    log.clean()
    assert log.live() == {key: value for key, value in log.newest.items() if value is not None}


def test_a_round_that_fails_in_its_swap_spoils_them(log):
    from lastword.errors import StorageError
    from tests.fakes.recording import RecordingFiles

    def fail(call):
        return StorageError("broken", file=call.path) if ".swap" in str(call.detail) else None

    log.ledger.save()
    log.log.close()
    log.files = RecordingFiles(DEFAULT, fail=fail)
    log.open()
    with pytest.raises(StorageError):
        log.clean()
    assert log.ledger.invalid
    assert not log.ledger.save()
    log.files.fail = None
    with contextlib.suppress(Exception):
        log.log.close()
    log.files = DEFAULT
    log.open()
    log.clock.advance(HOUR)
    log.clean()
    assert log.live() == {key: value for key, value in log.newest.items() if value is not None}


def test_a_map_that_may_take_less_memory_now(log):
    for number in range(400):
        log.put((b"key-%050d" % number, b"v"))
    log.log.roll()
    look(log)
    log.ledger.save()
    log.map_bytes = 2048
    log.restart(save=False)
    assert log.ledger.limit == 0
    assert "memory" in log.ledger.rebuilt_because
    look(log)
    assert not log.ledger.exact
    log.clean()
    assert log.live() == {key: value for key, value in log.newest.items() if value is not None}
