"""A log without tombstones is rewritten without a count of copies; the first tombstone costs one scan."""

import pytest

from tests.accounts.test_stale import look, read_dead_records, resolve_dead_records
from tests.cleaner.test_accounted import HOUR, Log


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
    assert not log.ledger.counts_copies and log.ledger.tracking.uncounted
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
        and ledger.counts_copies
        and not ledger.tracking.uncounted
    )
    on_disk = [(offset, key) for offset, key, _ in log.records()]
    tombstones = ledger.deletes.live()
    copies = dict(zip(tombstones.offset.tolist(), tombstones.copies.tolist(), strict=True))
    by_key = {key: sum(stored_key == key for _, stored_key in on_disk) for key in (b"k1", b"k8")}
    deleted = {offset: key for offset, key in on_disk if offset in copies}
    assert {deleted[offset]: count for offset, count in copies.items()} == by_key
    assert {entry.base_offset: entry.generation for entry in ledger.entries}.items() >= generations.items()


def test_a_tombstone_after_uncounted_rewrites_goes_in_its_time_and_not_before(log):
    log.put((b"k1", None))
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
    assert log.ledger.counts_copies and not log.ledger.tracking.uncounted
