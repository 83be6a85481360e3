"""The accounts of a log directory: how they are kept, share the memory, and are shown."""

import dataclasses
import json
import logging
import os
import random
import threading

import pytest

from lastword import metrics
from lastword.accounts import ledger, tracking
from lastword.accounts.tracking import Tracking
from lastword.cleaner import inspection
from lastword.cleaner.drive import DriveCleaner, InlineExecutor
from lastword.cleaner.engine.liveness import refresh
from lastword.cleaner.engine.throttle import Stopped
from lastword.cleaner.inspection import DrivePartition
from lastword.clock import ManualClock
from lastword.files import DEFAULT
from lastword.logdir import TopicPartition, ledgers
from lastword.resolve import RunningResolution, resolve
from lastword.segment.segment import Segment
from tests.cleaner.test_due import fill, newest, opened
from tests.fakes.recording import RecordingFiles

NOW = 1_700_000_000_000
HOUR = 3_600_000
T = TopicPartition("t", 0)


@pytest.fixture
def clock():
    return ManualClock(NOW)


def test_the_drives_time_is_what_was_appended_also_over_a_restart(tmp_path, clock):
    rng = random.Random(2)
    with opened(tmp_path, clock) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        fill(topic, 400, 40, rng)
        appended = sum(segment.size for segment in logs.dirs.log("t", 0).segments)
        logs.clean(due=True)
        assert logs.dirs.log_dir("t", 0).ledgers.write_clock == appended
        before = logs.dirs.log_dir("t", 0).ledgers.write_clock
    with opened(tmp_path, clock) as logs:
        assert logs.dirs.log_dir("t", 0).ledgers.write_clock == before
        logs.clean(due=True)
        assert logs.dirs.log_dir("t", 0).ledgers.write_clock == before
        topic = logs.topic("t")
        size = logs.dirs.log("t", 0).active.size
        topic.extend([(b"k", b"v")], partition=0)
        grown = logs.dirs.log("t", 0).active.size - size
        logs.clean(due=True)
        assert logs.dirs.log_dir("t", 0).ledgers.write_clock == before + grown


@pytest.mark.slow
def test_all_ledgers_together_stay_within_the_memory_and_those_let_go_come_back(tmp_path, clock):
    rng = random.Random(3)
    budget = 200_000
    with opened(tmp_path, clock, log_cleaner_dedupe_buffer_size=budget, segment_bytes=30_000) as logs:
        for name in "abcdef":
            fill(logs.create_topic(name, cleanup_policy="compact"), 3000, 2500, rng)
        logs.clean(due=True)
        ledgers = logs.dirs.log_dir("a", 0).ledgers
        assert 0 < ledgers.memory_bytes <= budget
        held = [name for name in "abcdef" if ledgers.held(TopicPartition(name, 0)) is not None]
        assert 0 < len(held) < 6
        before = {name: newest(logs.topic(name)) for name in "abcdef"}
        for done in logs.clean():
            assert (
                done.read_bytes
                < 2 * 30_000
                + sum(segment.size for segment in logs.dirs.log(done.topic, 0).segments)
                + done.written_bytes
                + done.freed_bytes
            )
        assert {name: newest(logs.topic(name)) for name in "abcdef"} == before


def test_segments_show_how_often_they_were_rewritten_and_what_survived(tmp_path, clock):
    rng = random.Random(4)
    with opened(tmp_path, clock) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        fill(topic, 800, 100, rng)
        assert {segment.generation for segment in topic.segments()} == {None}
        logs.clean()
        first = topic.segments()[0]
        assert first.generation == 1
        assert 0 < first.survivorship < 1
        assert topic.segments()[-1].survivorship is None
        histories = [(segment.generation, segment.survivorship) for segment in topic.segments()]
    with opened(tmp_path, clock) as logs:
        assert [(segment.generation, segment.survivorship) for segment in logs.topic("t").segments()][
            :-1
        ] == histories[:-1]


def test_one_json_line_for_each_round(tmp_path, clock, caplog):
    rng = random.Random(5)
    with opened(tmp_path, clock) as logs, caplog.at_level(logging.INFO, "lastword.cleaner"):
        fill(logs.create_topic("t", cleanup_policy="compact"), 400, 20, rng)
        (done,) = logs.clean()
    (line,) = [record.getMessage() for record in caplog.records if record.name == "lastword.cleaner"]
    event = json.loads(line)
    assert event["event"] == "round"
    assert event["dir"] == str(tmp_path.resolve())
    assert {name: event[name] for name in done.to_dict()} == json.loads(json.dumps(done.to_dict()))


@pytest.mark.parametrize("map_bytes", [1 << 20, 65536])
def test_a_long_scan_that_is_stopped_goes_on_where_it_was_kept(tmp_path, clock, monkeypatch, map_bytes):
    """A scan that is stopped again and again ends, with the result of one scan. The smaller map holds only a
    sample of the keys: the part scanned before the map was full is scanned again.
    """
    monkeypatch.setattr(ledgers, "KEEP_SECONDS", 0.0)
    monkeypatch.setattr(ledger, "PORTION_BYTES", 10_000)
    settings = {"log_cleaner_dedupe_buffer_size": map_bytes, "log_cleaner_enable": False}

    def scanned(portions):
        """Scan and stop after `portions` portions; return the bytes read."""
        with opened(tmp_path, clock, **settings) as logs:
            home, read = logs.dirs.log_dir("t", 0), [0]

            def stop():
                return read[0] >= 10_000 * portions

            def counted(*arguments):
                *others, check = arguments

                def progress(done, total):
                    check(done, total)
                    read[0] = done

                return refresh(*others, progress)

            try:
                with monkeypatch.context() as patch:
                    patch.setattr(inspection.liveness, "refresh", counted)
                    inspect(home, clock, stop)
            except Stopped:
                return read[0], None, None
            held = home.ledgers.held(T)
            return read[0], held.facts(), held.exact

    with opened(tmp_path, clock, **settings) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        for first in range(0, 4000, 50):
            topic.extend(
                [(b"k%d" % (n * 7 % 3000), b"v" * 50) for n in range(first, first + 50)], partition=0
            )
        size = sum(segment.size for segment in logs.dirs.log("t", 0).segments)
    reads = []
    for _ in range(40):
        done, facts, exact = scanned(5)
        reads.append(done)
        if facts is not None:
            break
    assert 3 < len(reads) < 40 and exact == (map_bytes > 65536)
    if exact:
        assert sum(reads) < 2 * size
        (tmp_path / "t-0" / "lastword" / "accounts").unlink()
        _, at_once, _ = scanned(1 << 20)
        assert [without_seed(segment) for segment in facts] == [without_seed(segment) for segment in at_once]


def inspect(home, clock, stop=None):
    """Return the accounts of a drive with this one partition, after a scan of its new segments."""
    executor = InlineExecutor(stop=stop)
    cleaner = DriveCleaner("drive", [DrivePartition.of(T, home)], executor, space_target=1.5, clock=clock)
    account = cleaner.inspect(clock.now_ms())
    assert not cleaner.errors
    return account


def without_seed(facts):
    return dataclasses.replace(facts, live_digest=0)


def test_a_round_that_a_lease_holds_back_reads_nothing(tmp_path, clock):
    """Nor does the lease cause reads, if tombstones above it counted as garbage: they are live again, and are
    removed once the lease is released. This also holds over restarts.
    """
    files = RecordingFiles(DEFAULT)

    def read_bytes(logs, **options):
        files.calls.clear()
        assert all(done.removed.total == 0 for done in logs.clean(**options))
        reads = [call for call in files.calls if call.name in ("pread", "pread_into")]
        return sum(call.detail[0] for call in reads if call.path.endswith(".log"))

    settings = {"delete_retention_ms": HOUR, "segment_bytes": 100_000}
    with opened(tmp_path, clock, files, **settings) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        topic.extend([(b"k%d" % n, b"v" * 500) for n in range(1000)], partition=0)
        for n in range(0, 1000, 100):
            topic.append(b"k%d" % n, None, partition=0)
        topic.append(b"k1", b"the newest record of a partition stays", partition=0)
        logs.clean()

        def facts():
            segments = logs.dirs.log_dir("t", 0).ledgers.held(T).facts()
            return [dataclasses.replace(segment, tombstones_without_horizon=0) for segment in segments]

        before = facts()
        clock.advance(2 * HOUR)
        assert logs.clean(due=True) == []  # due, but not worth a round
        assert sum(segment.due_tombstones for segment in facts()) == 10
        size = sum(segment.size for segment in logs.dirs.log("t", 0).segments)
        topic.lease("replica", position=5)
        assert read_bytes(logs, due=True) == 0
        assert facts() == before
        assert read_bytes(logs) == 0
    name = os.path.realpath(tmp_path)
    before = metrics.CLEANER_READ_BYTES.value(name)
    for options in ({"due": True}, {}):
        with opened(tmp_path, clock, files, **settings) as logs:
            assert read_bytes(logs, **options) < size  # only the ends of the files
            assert logs.dirs.log_dir("t", 0).ledgers.held(T).rebuilt_because == ""
    assert metrics.CLEANER_READ_BYTES.value(name) == before
    with opened(tmp_path, clock, files, **settings) as logs:
        logs.topic("t").lease("replica").release()
        (done,) = logs.clean()
        assert done.complete and done.removed.tombstone == 10


def test_a_partition_that_moves_or_is_recreated_takes_no_accounts_along(tmp_path, clock):
    rng = random.Random(7)
    with opened(tmp_path, clock) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        fill(topic, 300, 20, rng)
        logs.clean()
        logs.delete_topic("t")
        topic = logs.create_topic("t", cleanup_policy="compact")
        fill(topic, 300, 20, rng)
        before = newest(topic)
        logs.clean()
        assert newest(topic) == before


def test_memory_is_told_while_another_thread_lets_a_ledger_go(tmp_path, clock):
    """The count of memory reads each slot once: a ledger may be removed between two reads."""

    class Leaving:
        """A slot that has its ledger only at the first read."""

        lock = threading.RLock()
        looks = 0

        def __init__(self, ledger):
            self._ledger = ledger

        @property
        def ledger(self):
            self.looks += 1
            return self._ledger if self.looks == 1 else None

        @ledger.setter
        def ledger(self, ledger):
            pass

    with opened(tmp_path, clock) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        fill(topic, 100, 10, random.Random(3))
        logs.clean()
        ledgers = logs.dirs.log_dir("t", 0).ledgers
        ledger = ledgers.held(T)
        ledgers._slots[T] = Leaving(ledger)
        assert ledgers.memory_bytes == ledger.memory_bytes
        ledgers._slots[T] = Leaving(ledger)
        ledgers._make_room(1 << 60, None)
        ledgers._slots.clear()


def test_a_partition_is_not_forgotten_in_the_middle_of_a_save(tmp_path, clock):
    """The caller of `forget` removes the file next: a save after that would describe a log that was cut."""
    with opened(tmp_path, clock) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        fill(topic, 100, 10, random.Random(3))
        logs.clean()
        ledgers = logs.dirs.log_dir("t", 0).ledgers
        held, slot = ledgers.held(T), ledgers._slots[T]
        saving, order = threading.Event(), []

        def save():
            saving.set()
            forgets.join(0.2)
            order.append("saved")

        held.save = save
        forgets = threading.Thread(
            target=lambda: (saving.wait(), ledgers.forget(T), order.append("forgotten"))
        )
        forgets.start()
        ledgers._make_room(1 << 60, None)  # another partition needs the memory
        forgets.join()
        assert order == ["saved", "forgotten"]
        ledgers._save(slot, held)  # by a thread that still holds the ledger
        assert order == ["saved", "forgotten"]


def test_tombstones_that_were_trimmed_are_not_waited_for(tmp_path, clock):
    with opened(tmp_path, clock, segment_bytes=400) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        for number in range(12):
            topic.append(b"gone%d" % number, None)
        topic.append(b"k", b"v" * 50)
        topic.append(b"k", b"w" * 50)
        home, log = logs.dirs.log_dir("t", 0), logs.dirs.log("t", 0)
        inspect(home, clock)
        with home.ledgers.of(T, log) as ledger:
            assert ledger.deletes.next_due(HOUR) == (0, NOW + HOUR)
        topic.trim(before=6)
        start = log.segments[0].base_offset
        with home.ledgers.of(T, log) as ledger:
            offset, due_ms = ledger.deletes.next_due(HOUR)
        assert 0 < start <= offset and due_ms == NOW + HOUR


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("fits", [True, False])
def test_a_sample_and_the_exact_count_of_a_segment_share_one_reading(
    tmp_path, clock, monkeypatch, fits, threads
):
    """A new segment of a log whose keys do not fit the map was read twice: for the sample, and for its own
    duplicates. It is read again only if the segment's own keys do not fit a map.
    """
    with opened(tmp_path, clock, log_cleaner_enable=False, segment_bytes=400_000) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        rng = random.Random(3)
        for _ in range(60):
            topic.extend([(b"k%d" % rng.randrange(2500), b"v" * 80) for _ in range(100)], partition=0)
        logs.dirs.log("t", 0).roll()
        closed = [segment for segment in logs.dirs.log("t", 0).segments if segment.size]
    exact = [
        resolve([segment], map_bytes=1 << 22, salt=bytes(16), now_ms=-1).segments[0].dead_bytes
        for segment in closed
    ]
    assert len(closed) == 2 and min(exact) > 10_000, "a map of 60,000 bytes has the keys of the second only"
    sample = Tracking(1 << 20 if fits else 60_000, lambda: bytes(16))
    sample.reset(0.25)
    readings, real = [], Segment.chunk_reader

    def counted(self, *arguments, **options):
        readings.append(self.base_offset)
        return real(self, *arguments, **options)

    monkeypatch.setattr(Segment, "chunk_reader", counted)
    read_bytes, why = sample.take(closed, 0, None, None, threads, more=())
    assert why == "" and [entry.own_dead_bytes for entry in sample.entries] == exact
    larger, smaller = closed
    assert read_bytes == larger.size * (1 if fits else 2) + smaller.size
    assert readings == [segment.base_offset for segment in closed] if fits else len(readings) > 2
    whole = RunningResolution(map_bytes=1 << 20, salt=bytes(16), share=0.25)
    whole.add_segments(closed)
    assert sample.running.facts() == whole.facts(), "the sample has all chunks"


def test_a_sample_takes_a_part_of_the_memory_and_estimates_the_garbage(tmp_path, clock, monkeypatch):
    """A sample took all the memory that exact accounts may take, and was as large in each save."""
    assert [Tracking(size << 20, lambda: bytes(16)).budget_bytes(0.5) >> 20 for size in (4, 8, 40, 128)] == [
        4,
        8,
        8,
        16,
    ]
    assert Tracking(1 << 20, lambda: bytes(16)).budget_bytes(1.0) == 1 << 20
    monkeypatch.setattr(tracking, "_SAMPLE_BYTES", 1 << 16)
    settings = {"log_cleaner_dedupe_buffer_size": 1 << 18, "log_cleaner_enable": False}
    rng = random.Random(4)
    monkeypatch.setattr(os, "urandom", rng.randbytes)  # the salt chooses the sample: its error varies by 4 %
    with opened(tmp_path, clock, segment_bytes=100_000, **settings) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        for _ in range(300):
            topic.extend([(b"k%d" % rng.randrange(15_000), b"v" * 80) for _ in range(100)], partition=0)
        logs.dirs.log("t", 0).roll()
        home = logs.dirs.log_dir("t", 0)
        (account,) = inspect(home, clock).partitions
        closed = [segment for segment in logs.dirs.log("t", 0).segments if segment.size]
        exact = resolve(closed, map_bytes=1 << 23, salt=bytes(16), now_ms=-1)
        held = home.ledgers.held(T)
        assert not held.exact and held.tracking.running.distinct_keys < 2000
        assert held.memory_bytes < 1 << 17
    truth = sum(facts.dead_bytes for facts in exact.segments)
    assert abs(account.dead_bytes - truth) < truth / 10
    assert (tmp_path / "t-0" / "lastword" / "accounts").stat().st_size < 1 << 17
    with opened(tmp_path, clock, segment_bytes=100_000, **settings) as logs:
        home = logs.dirs.log_dir("t", 0)
        (again,) = inspect(home, clock).partitions
        assert home.ledgers.held(T).rebuilt_because == "" and again.dead_bytes == account.dead_bytes
