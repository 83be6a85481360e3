"""Tombstones whose older copies are only in the map's count, not in the log."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lastword.accounts import tombstones as deletes_module
from lastword.cleaner.engine.liveness import account_of
from lastword.cleaner.policy.generational import Columns, best_runs
from tests.accounts.test_stale import look
from tests.cleaner.test_accounted import HOUR, Log

MOST = 255  # copies above this number are not counted


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Any]:
    builder = Log(tmp_path)
    yield builder
    builder.close()


def keys(log: Any) -> list[bytes]:
    return [key for _, key, _ in log.records()]


def later(log: Any) -> None:
    """Clean, pass the horizon, and clean again."""
    log.clean()
    log.clock.advance(2 * HOUR)
    log.put((b"more at %d" % log.clock.now_ms(), b"v"))
    log.clean()


@pytest.mark.parametrize("restarted", [False, True])
def test_the_tombstone_of_a_hot_key_goes_when_all_older_copies_have_gone(log: Any, restarted: bool) -> None:
    for number in range(MOST + 40):
        log.put((b"hot", b"%d" % number), (b"k%d" % number, b"v"))
    log.put((b"hot", None))
    log.clean()
    assert keys(log).count(b"hot") == 1
    if restarted:
        log.restart()
    later(log)
    assert b"hot" not in keys(log)


def test_and_not_while_one_is_left(log: Any) -> None:
    for number in range(MOST + 40):
        log.put((b"hot", b"%d" % number), (b"k%d" % number, b"v"))
    log.log.roll()
    log.put((b"hot", None))
    log.log.roll()
    look(log)
    for _ in range(3):
        own = account_of(log.log, log.config, log.ledger, drive="d")
        runs = best_runs(own, Columns.of(own, log.ledger.write_clock, 0.0))
        run = next(candidate for candidate in runs if candidate.base_offset > 0)  # not the run at the front
        assert log.clean(due=True, runs=[run]).freed_bytes > 0
        log.clock.advance(2 * HOUR)
        log.ledger.mark_due(log.clock.now_ms(), HOUR)
    assert keys(log).count(b"hot") > 1
    assert log.records()[-1][1:] == (b"hot", None) and not log.ledger.deletes.due.size


def test_copies_that_left_the_log_at_its_front_hold_nothing_back(log: Any) -> None:
    log.put((b"gone", b"1"), (b"x", b"v"), roll=True)
    for number in range(100):
        log.put((b"k%d" % number, b"v"))
    log.put((b"gone", None))
    for number in range(100):
        log.put((b"m%d" % number, b"v"))
    log.log.roll()
    look(log)
    log.log.raise_log_start(2)
    log.log.remove_prefix()
    log.clean()
    assert log.ledger.tracking.gone and not log.ledger.rebuilt_because
    later(log)
    assert b"gone" not in keys(log)


def test_clocks_are_told_whole_while_a_round_goes_on(log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`plan` reads the ledger in memory without waiting for the round that uses it."""
    for key in (b"a", b"b", b"c"):
        log.put((key, b"1"), (key, None))
    log.clean()
    deletes = log.ledger.deletes
    inner = deletes_module.np.union1d

    def meanwhile(*given: Any) -> Any:
        monkeypatch.undo()
        log.clock.advance(2 * HOUR)
        assert log.ledger.mark_due(log.clock.now_ms(), HOUR) == 3
        return inner(*given)

    monkeypatch.setattr(deletes_module.np, "union1d", meanwhile)
    offsets, since_ms = deletes.running()
    assert offsets.tolist() == [1, 3, 5] and (since_ms > 0).all()
