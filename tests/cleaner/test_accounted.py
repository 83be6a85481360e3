"""Rounds by garbage accounts, over one partition."""

import contextlib
import dataclasses
import random

import pytest

from lastword.accounts.ledger import Ledger
from lastword.cleaner.engine.cleaning import CleanContext
from lastword.cleaner.engine.liveness import refresh
from lastword.cleaner.engine.partition import prepare
from lastword.cleaner.policy.plan import CleanRequest
from lastword.clock import ManualClock
from lastword.config import TopicConfig
from lastword.files import DEFAULT
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.open import open_log
from lastword.records.batch import BatchBuilder
from lastword.segment.recover import inspect
from tests.support.cleaning import clean
from tests.support.partitions import records_of
from tests.transactions import end_transaction

NOW = 1_700_000_000_000
HOUR = 3_600_000
CONFIG = TopicConfig(
    cleanup_policy=frozenset({"compact"}),
    segment_bytes=2000,
    index_interval_bytes=200,
    delete_retention_ms=HOUR,
)


class Log:
    """A partition, its ledger, and a dict of its newest values."""

    def __init__(self, path, config=CONFIG, files=DEFAULT, map_bytes=1 << 20):
        self.path = path / "t-0"
        self.path.mkdir(exist_ok=True)
        self.config = config
        self.files = files
        self.clock = ManualClock(NOW)
        self.map_bytes = map_bytes
        self.first_dirty = None
        self.newest = {}
        self.open()

    def open(self):
        self.log, _ = open_log(self.files, str(self.path), self.config, self.clock, clean=False)
        self.ledger = Ledger.open(self.files, self.log.directory, self.log.segments, map_bytes=self.map_bytes)
        return self.ledger

    def restart(self, *, save=True):
        if save:
            self.ledger.save()
        self.log.close()
        return self.open()

    def put(self, *pairs, roll=False):
        builder = BatchBuilder()
        for key, value in pairs:
            builder.append(self.clock.now_ms(), key, value)
            self.newest[key] = value
        self.log.append_batch(builder.build(0))
        if roll:
            self.log.roll()

    def clean(self, **options):
        self.ledger.fit(self.log.segments)
        self.ledger.write_clock = max(self.ledger.write_clock, self.log.log_end)
        options = {"strategy": "generational", "ledger": self.ledger, "map_bytes": self.map_bytes} | options
        return clean(
            self.log, self.config, first_dirty=self.first_dirty, record_first_dirty=self.record, **options
        )

    def garbage_bytes(self):
        """Return the dead bytes of the partition by its accounts."""
        self.ledger.fit(self.log.segments)
        plan = prepare(
            self.log,
            self.config,
            CleanRequest(strategy="generational", map_bytes=self.map_bytes),
        )
        refresh(self.log, self.log.segments, self.ledger, plan, CleanContext(self.files, self.clock))
        return sum(segment.dead_bytes for segment in self.ledger.facts())

    def record(self, offset):
        self.first_dirty = offset

    def records(self):
        return [(r.offset, r.key, r.value) for r in records_of(self.path, self.files)]

    def live(self):
        newest = {}
        for _, key, value in self.records():
            newest[key] = value
        return {key: value for key, value in newest.items() if value is not None}

    def close(self):
        with contextlib.suppress(Exception):
            self.log.close()


@pytest.fixture
def log(tmp_path):
    log = Log(tmp_path)
    yield log
    log.close()


def test_leaves_the_newest_of_every_key_and_nothing_else(log):
    for number in range(200):
        log.put((b"k%d" % (number % 7), b"v%d" % number))
    done = log.clean()
    assert done.strategy == "generational"
    assert done.records_read == 200
    assert done.records_kept == 7
    assert log.live() == log.newest
    assert len(log.records()) == 7
    assert log.first_dirty == log.ledger.limit
    assert log.ledger.exact
    assert sum(segment.dead_records for segment in log.ledger.facts()) == 0


def test_an_insert_only_log_is_read_once_and_never_written(log):
    for number in range(100):
        log.put((b"k%d" % number, b"v"))
    first = log.clean()
    assert first.read_bytes > 0
    assert first.written_bytes == 0
    second = log.clean()
    assert (second.read_bytes, second.written_bytes) == (0, 0)
    log.put((b"another", b"v"))
    third = log.clean()
    assert third.written_bytes == 0
    assert third.read_bytes == log.log.segments[-2].size


def test_survivors_that_compress_worse_than_the_dead_leave_room_in_the_index(tmp_path):
    """Estimated by their share of the uncompressed bytes, survivors take a fortieth of their real size."""
    config = dataclasses.replace(
        CONFIG, segment_bytes=10_000, segment_index_bytes=600, index_interval_bytes=100
    )
    log = Log(tmp_path, config)
    rng = random.Random(1)
    for number in range(100):
        builder = BatchBuilder(4, producer_id=number, producer_epoch=0, base_sequence=0)
        for n in range(20):
            builder.append(log.clock.now_ms(), b"hot %d" % n, b"x" * 200)
        builder.append(log.clock.now_ms(), b"cold %d" % number, rng.randbytes(200))
        log.log.append_batch(builder.build(0))
    log.clean()
    for segment in log.log.segments:
        inspection = inspect(DEFAULT, log.log.directory, segment.base_offset, index_interval_bytes=100)
        assert len(inspection.offset_entries) <= 600 and len(inspection.time_entries) <= 600
    log.close()


@pytest.mark.parametrize("same", [True, False])
def test_what_is_said_of_garbage_gets_no_worse_from_round_to_round(tmp_path, same):
    """The garbage of compressed records is estimated from each record's share of its batch before the
    rewrite. Each rewrite corrects the total of a segment. So the error does not grow in fifty rounds over
    the same records, whether all records compress alike or some do not compress.
    """
    log = Log(tmp_path, dataclasses.replace(CONFIG, segment_bytes=1 << 20))
    rng = random.Random(1)

    def put(keys):
        builder = BatchBuilder(4)
        for key in keys:
            value = b"%d" % rng.randrange(1000)
            value = value if same or key % 2 else rng.randbytes(20)
            builder.append(log.clock.now_ms(), b"key %d" % key, value)
        log.log.append_batch(builder.build(0))

    for first in range(0, 1000, 100):
        put(range(first, first + 100))
    garbage = freed = 0
    right = []
    for number in range(50):
        log.log.roll()
        garbage += log.garbage_bytes()
        freed += log.clean().freed_bytes
        if number % 10 == 9:
            right.append(garbage / freed)
            garbage = freed = 0
        put(rng.sample(range(1000), 200))
    assert all(0.95 < ratio < 1.05 for ratio in right), right
    log.close()


@pytest.mark.parametrize("every", [1, 30])
def test_keys_that_only_aborted_transactions_wrote_do_not_crowd_the_map(tmp_path, every):
    """New keys of aborted transactions arrive without end: ten live keys stay exact, and so does a tombstone.
    The transactions are read between rounds, or all in one scan.
    """
    log = Log(tmp_path, map_bytes=16384)
    sequence = 0

    def transaction(pairs, commit):
        nonlocal sequence
        builder = BatchBuilder(producer_id=7, producer_epoch=0, base_sequence=sequence, transactional=True)
        for key, value in pairs:
            builder.append(log.clock.now_ms(), key, value)
        log.log.append_batch(builder.build(0))
        end_transaction(log.log, 7, 0, commit=commit)
        sequence += len(pairs)

    for number in range(30):
        for part in range(5):
            transaction([(b"never-%d-%d-%d" % (number, part, n), b"x") for n in range(20)], commit=False)
        transaction([(b"k%d" % n, b"%d" % number) for n in range(10)], commit=True)
        if number % every == every - 1:
            log.clean()
            assert log.ledger.exact and log.ledger.memory_bytes < 3 * 16384
    assert log.ledger.tracking.running.distinct_keys == 10
    transaction([(b"k3", None), (b"k4", b"new")], commit=True)
    log.clean()
    log.clock.advance(2 * HOUR)
    for _ in range(2):
        transaction([(b"k5", b"last")], commit=True)
        log.clean()
    assert {key for key, _ in log.live().items()} == {b"k%d" % n for n in range(10)} - {b"k3"}
    assert (b"k3", None) not in [(key, value) for _, key, value in log.records()]
    log.close()


def test_a_tombstone_goes_when_its_time_has_come_and_not_before(log):
    log.put((b"a", b"1"), (b"b", b"1"))
    log.put((b"a", None))
    done = log.clean()
    assert log.records() == [(1, b"b", b"1"), (2, b"a", None)]
    assert (done.tombstones.count, done.tombstones.first_offset) == (1, 2)
    assert done.tombstones.first_due_ms == NOW + HOUR
    log.put((b"c", b"1"))
    log.clock.advance(HOUR - 1)
    log.clean()
    assert (2, b"a", None) in log.records()
    log.clock.advance(1)
    done = log.clean()
    assert done.removed.tombstone == 1
    assert [key for _, key, _ in log.records()] == [b"b", b"c"]


@pytest.mark.parametrize("plain", [True, False])
def test_a_reader_inside_gets_no_record_twice_though_batches_were_joined_behind_it(log, plain):
    """Records that the reader has read and records that it has not read may now be in one batch."""
    from lastword.partition import PartitionView
    from lastword.partition.scan import records

    for number in range(60):
        log.put((b"k%d" % number, b"v" * 40))
    view = PartitionView.load(DirectorySegments(DEFAULT, str(log.path)))
    reader = records(view, 0, 60, plain=plain)
    seen = [next(reader).offset for _ in range(23 if plain else 1)]
    for number in range(0, 60, 2):
        log.put((b"k%d" % number, b"w"))
    done = log.clean()
    assert done.segments_after < done.segments_before
    seen += [record.offset for record in reader]
    assert seen == sorted(set(seen))
    assert set(range(1, 60, 2)) <= set(seen)
