"""A cleaning by a map of hashes: pairs of keys with one hash are refused, and the exact map decides."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from lastword.accounts.ledger import Ledger
from lastword.cleaner.engine import certificate
from lastword.cleaner.policy import quarantine
from lastword.errors import CertificateError
from lastword.partition.log import PartitionLog
from lastword.resolve import whole
from tests.build import SALT, LogBuilder
from tests.cleaner.transactional import Producer
from tests.resolve.support import colliding_key

ONE, OTHER = (colliding_key(SALT, number) for number in (1, 2))
DAY = 24 * 3_600_000


@pytest.fixture(params=["kafka", "generational"])
def log(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LogBuilder:
    """A log whose whole cleanings take a map of hashes, by either strategy."""
    monkeypatch.setattr(whole, "HASHES_FROM_BYTES", 0)
    built = LogBuilder(tmp_path / "data").topic("users")
    built.strategy = request.param
    return built


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, "lastword.resolve")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "lastword.resolve"]


def values(log: LogBuilder) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in log.records()}


@pytest.mark.parametrize("order", [(ONE, OTHER), (OTHER, ONE)])
@pytest.mark.parametrize("where", ["in one segment", "in two segments", "after another group"])
def test_a_pair_of_one_hash(
    log: LogBuilder, order: tuple[bytes, bytes], where: str, warnings: Callable[[], list[str]]
) -> None:
    """The older record of the pair is refused by its segment's certificate, and kept."""
    if where == "after another group":
        log.put("a", "x" * 200).put("b", "1").roll().put("a", "2").put("fill", "x" * 2000).roll()
        log.config = log.config.replace(segment_bytes=2200)
    log.put(order[0], "older")
    if where == "in two segments":
        log.roll()
    log.put(order[1], "newer").put("c", "1").put("c", "2").roll()
    before = values(log)
    done = log.clean()
    assert values(log) == before, "no value is lost"
    assert [record.value for record in log.records() if record.key in order] == [b"older", b"newer"]
    assert done.complete and log.first_dirty is not None
    assert len(warnings()) == 1 and "other keys or offsets" in warnings()[0], "one line is logged"
    assert quarantine.load(log.files, log.directory) is None
    assert not [name for name in log.tree() if "rewrite-" in name]


def test_a_tombstone_of_another_key(log: LogBuilder, warnings: Callable[[], list[str]]) -> None:
    log.put(ONE, "kept").roll().delete(OTHER).put("c", "1").roll()
    log.clean()
    assert values(log)[ONE] == b"kept" and len(warnings()) == 1


def test_a_due_tombstone_and_a_newer_key(log: LogBuilder, warnings: Callable[[], list[str]]) -> None:
    """No sum has a due tombstone, and a lease depends on its count: the scan itself finds the pair."""
    log.strategy = "kafka"  # kept accounts would decide the second cleaning, with the keys
    log.put(ONE, "old").roll().delete(ONE).put("c", "1").roll()
    log.clean()
    log.wait(2 * DAY)
    log.put(OTHER, "kept").roll().put("d", "1").roll()
    done = log.clean()
    assert ONE not in values(log) and values(log)[OTHER] == b"kept"
    assert done.removed.tombstone == 1
    assert "two keys have one hash" in warnings()[-1]


@pytest.mark.parametrize(("wrong", "cleanings"), [("contents", 1), ("pairs", 2)])
def test_a_fault_of_the_rewrite_is_none_of_hashes(
    log: LogBuilder,
    monkeypatch: pytest.MonkeyPatch,
    warnings: Callable[[], list[str]],
    wrong: str,
    cleanings: int,
) -> None:
    """Other differences than keys are damage, and so are keys that the exact map refuses, too."""
    log.put("a", "1").put("b", "1").roll().put("a", "2").roll()
    real_sums, real_pairs = certificate.sums_of, certificate.sum_pairs

    def sum_pairs(*args: Any) -> Any:
        pairs, *rest = real_pairs(*args)
        return (int(pairs) + 1, *rest)

    if wrong == "pairs":
        monkeypatch.setattr(certificate, "sum_pairs", sum_pairs)
    else:
        monkeypatch.setattr(certificate, "sums_of", lambda *args: real_sums(*args)._replace(contents=1))
    with pytest.raises(CertificateError):
        log.clean()
    assert len(warnings()) == cleanings - 1
    assert quarantine.load(log.files, log.directory) is not None


def test_a_dry_run_has_no_certificate(log: LogBuilder, warnings: Callable[[], list[str]]) -> None:
    """So it takes the exact map, and its figures are right although two keys have one hash."""
    log.put(ONE, "1").roll().put(OTHER, "2").put("c", "1").put("c", "2").roll()
    plan = log.plan(strategy="kafka")
    done = log.clean()
    assert plan.exact and plan.write_bytes == done.written_bytes and len(warnings()) == 1


by_accounts = pytest.mark.parametrize("log", ["generational"], indirect=True)


def ledger_of(log: LogBuilder, map_bytes: int = 1 << 20) -> Ledger:
    segments = log.log.segments
    return Ledger.open(log.files, log.directory, segments, map_bytes=map_bytes, salt=lambda: SALT)


@by_accounts
@pytest.mark.parametrize("why", ["stopped", "a pair", "failed"])
def test_accounts_of_a_cleaning_that_did_not_end_stay_empty(
    log: LogBuilder, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Their bits may be wrong where no certificate was: the next cleaning scans the log."""
    log.config = log.config.replace(segment_bytes=2200)
    for number in range(3):
        log.put("a", number).put("b", "x" * 500 * number).roll()
    log.put(ONE, "older").put(OTHER if why == "a pair" else ONE, "newer").put("c", "1").roll()
    ledger = ledger_of(log)
    how: dict[str, Any] = {"ledger": ledger, "map_bytes": 1 << 20}
    if why == "failed":
        monkeypatch.setattr(PartitionLog, "replace", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            log.clean(**how)
        monkeypatch.undo()
    else:
        polls = count()
        stop = (lambda: ledger.by_hash and next(polls) > 3) if why == "stopped" else None
        assert log.clean(stop=stop, **how).complete == (why == "a pair")
    assert not ledger.by_hash
    if why != "a pair":
        assert not ledger.entries
    assert log.clean(**how).complete or why == "a pair"
    wanted = {b"older", b"newer"} if why == "a pair" else {b"newer"}
    assert {record.value for record in log.records() if record.key in (ONE, OTHER)} == wanted
    assert not ledger.resolution().dead.offsets().size and len(ledger.entries) == len(log.log.segments) - 1


@by_accounts
def test_keys_without_room_leave_no_accounts(log: LogBuilder, warnings: Callable[[], list[str]]) -> None:
    """A map of hashes may hold keys that the accounts cannot: the cleaning needs no accounts."""
    keys = [b"%d" % number + b"k" * 400 for number in range(3000)]
    for _ in range(2):
        for first in range(0, 3000, 1000):
            log.batch([(key, "v") for key in keys[first : first + 1000]])
        log.roll()
    ledger = ledger_of(log)
    done = log.clean(ledger=ledger, map_bytes=1 << 20)
    assert done.complete and done.records_kept == len(keys) and not warnings()
    assert not ledger.entries and not ledger.save()
    assert log.first_dirty == log.log.active.base_offset
    log.delete(keys[0]).roll()
    assert log.clean(map_bytes=8 << 20).complete
    log.wait(2 * DAY)
    log.put("last", "1").roll()
    assert log.clean(map_bytes=8 << 20).removed.tombstone == 1


@by_accounts
@pytest.mark.parametrize("aborted", [False, True])
def test_aborted_records_and_tombstones(
    log: LogBuilder, aborted: bool, warnings: Callable[[], list[str]]
) -> None:
    """An aborted record is a copy of its key, but of no key that the scan has: the exact map counts it."""
    log.put("a", "1").delete("b").roll()
    producer = Producer(log).put(("b", "2"))
    producer.abort() if aborted else producer.commit()
    log.roll().put("c", "1").put("a", "2").roll()
    log.clean()
    assert bool(warnings()) == aborted and log.state()[b"a"] == b"2"


@by_accounts
def test_a_tombstone_after_the_first_cleaning_costs_no_scan(log: LogBuilder) -> None:
    """Each key has one copy then, so copies are counted although no rewrite has reported them."""
    log.put("a", "1").put("b", "1").roll().put("a", "2").put("c", "1").roll()
    ledger = ledger_of(log)
    how: dict[str, Any] = {"ledger": ledger, "map_bytes": 1 << 20}
    log.clean(**how)
    assert not ledger.tracking.uncounted
    log.delete("a").put("d", "1").roll()
    new_bytes = log.log.segments[-2].size
    ledger.scanned_bytes = 0
    log.clean(**how)
    assert ledger.scanned_bytes == new_bytes and ledger.tracking.counts_copies
    log.wait(2 * DAY)
    assert log.clean(**how).removed.tombstone == 1 and log.state() == {b"b": b"1", b"c": b"1", b"d": b"1"}


@by_accounts
def test_a_key_is_written_again_after_its_due_tombstone_went(log: LogBuilder) -> None:
    """No rewrite reported the tombstone: the accounts must not count it as garbage of its segment."""
    log.config = log.config.replace(delete_retention_ms=0)
    log.put("a", "1").delete("b").put("c", "1").roll().put("a", "2").roll()
    how: dict[str, Any] = {"ledger": ledger_of(log), "map_bytes": 1 << 20}
    assert log.clean(**how).removed.tombstone == 1
    log.put("b", "1").put("c", "2").roll()
    assert log.clean(**how).removed.superseded == 1
    assert log.state() == {b"a": b"2", b"b": b"1", b"c": b"2"}
