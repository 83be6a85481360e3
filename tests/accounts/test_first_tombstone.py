"""A log without tombstones is rewritten without a count of copies; the first tombstone costs one scan."""

import pytest

from lastword.cleaner.engine.liveness import account_of
from lastword.cleaner.policy.generational import all_garbage
from lastword.records.batch import BatchBuilder
from tests.accounts.test_stale import look, read_dead_records, resolve_dead_records
from tests.cleaner.test_accounted import HOUR, Log
from tests.transactions import end_transaction


@pytest.fixture
def log(tmp_path):
    """Return a log of which only the front was rewritten: later segments still have older copies of k8."""
    builder = Log(tmp_path)
    for number in range(100):
        builder.put((b"k%d" % (number % 9), b"v%d" % number))
    builder.clean()
    for number in range(60):
        builder.put((b"k%d" % (number % 5), b"w%d" % number))
    yield builder
    builder.close()


def test_nothing_was_counted_and_nothing_needed_it(log):
    log.log.roll()
    look(log)
    assert not log.ledger.tracking.counts_copies and log.ledger.tracking.uncounted
    assert read_dead_records(log) == resolve_dead_records(log)


@pytest.mark.parametrize("restarted", [False, True])
def test_the_first_tombstone_scans_once_and_then_copies_are_true(log, restarted):
    if restarted:
        log.restart()
    log.put((b"k1", None), (b"k8", None))
    log.log.roll()
    ledger = log.ledger
    generations = {entry.base_offset: entry.generation for entry in ledger.entries}
    below = sum(segment.size for segment in log.log.segments[:-1])
    limit = log.log.active.base_offset
    assert ledger.fit(log.log.segments)
    read = ledger.add_segments(log.log.segments[:-1], limit, write_clock=log.log.log_end, now_ms=0)
    assert read > below  # the new segments, and then the whole log
    assert "first tombstone" in ledger.rebuilt_because
    assert (
        read_dead_records(log) == resolve_dead_records(log)
        and ledger.tracking.counts_copies
        and not ledger.tracking.uncounted
    )
    on_disk = [(offset, key) for offset, key, _ in log.records()]
    tombstones = ledger.deletes.live()
    copies = dict(zip(tombstones.offset.tolist(), tombstones.copies.tolist(), strict=True))
    by_key = {key: sum(stored_key == key for _, stored_key in on_disk) for key in (b"k1", b"k8")}
    deleted = {offset: key for offset, key in on_disk if offset in copies}
    assert {deleted[offset]: count for offset, count in copies.items()} == by_key
    assert {entry.base_offset: entry.generation for entry in ledger.entries}.items() >= generations.items()


def test_garbage_keeps_its_age_over_the_second_scan(log):
    """Otherwise max.compaction.lag.ms would begin again."""
    log.garbage_bytes()
    since_ms = {entry.base_offset: entry.oldest_dead_ms for entry in log.ledger.entries}
    assert max(since_ms.values()) == log.clock.now_ms()
    log.clock.advance(HOUR)
    log.put((b"new", None))
    log.garbage_bytes()
    assert "first tombstone" in log.ledger.rebuilt_because
    now_ms = {entry.base_offset: entry.oldest_dead_ms for entry in log.ledger.entries}
    assert now_ms.items() >= since_ms.items()


def test_a_tombstone_after_uncounted_rewrites_goes_in_its_time_and_not_before(log):
    log.put((b"k1", None), (b"k9", b"the newest record of a partition stays"))
    log.clean()
    assert b"k1" in {key for _, key, _ in log.records()}  # its clock has only started
    log.clock.advance(25 * HOUR)
    log.clean()
    log.clean()
    assert b"k1" not in {key for _, key, _ in log.records()}
    assert log.live() == {key: value for key, value in log.newest.items() if value is not None}


def test_counting_goes_on_when_the_tombstones_are_gone(log):
    log.put((b"k1", None))
    log.clean()
    log.clock.advance(25 * HOUR)
    log.clean()
    log.clean()
    log.put((b"k2", b"more"))
    log.log.roll()
    look(log)
    assert log.ledger.tracking.counts_copies and not log.ledger.tracking.uncounted


def test_the_second_scan_has_the_aborted_transactions_below_the_new_segments(tmp_path):
    """The first scan reads transactions of the new segments only; then the whole log is scanned."""
    log = Log(tmp_path)
    sequence = 0

    def transaction(key, value, commit):
        nonlocal sequence
        builder = BatchBuilder(producer_id=7, producer_epoch=0, base_sequence=sequence, transactional=True)
        builder.append(log.clock.now_ms(), key, value)
        log.log.append_batch(builder.build(0))
        end_transaction(log.log, 7, 0, commit=commit)
        sequence += 1

    log.put((b"b", b"1"), (b"b", b"2"), roll=True)
    log.put((b"a", b"1"), roll=True)
    transaction(b"a", b"aborted", commit=False)
    assert log.garbage_bytes() > 0
    account = account_of(log.log, log.config, log.ledger, drive="d")
    log.clean(runs=all_garbage(account)[:1])
    assert log.ledger.tracking.uncounted
    transaction(b"c", b"1", commit=True)
    log.put((b"d", None), roll=True)
    log.clean()
    assert "first tombstone" in log.ledger.rebuilt_because
    assert log.live() == {b"a": b"1", b"b": b"2", b"c": b"1"}
    log.close()
