"""Accounts that are larger than their log are not saved, but the clocks of its tombstones are: if a log is
opened for one round at a time, for example by a timer, the clocks must not start again each time.
"""

from pathlib import Path

import pytest

import lastword
from lastword.accounts.ledger import Ledger
from lastword.clock import ManualClock
from lastword.files import DEFAULT

NOW = 1_700_000_000_000
HOUR = 3_600_000
KEYS = 2500  # their map takes 30 times the bytes of the log


@pytest.fixture
def clock(tmp_path: Path) -> ManualClock:
    clock = ManualClock(NOW)
    with lastword.open(tmp_path, "a", clock=clock) as logs:
        topic = logs.create_topic(
            "t", cleanup_policy="compact", compression_type="zstd", delete_retention_ms=HOUR
        )
        topic.extend(
            [(b"k%012d" % n, None if n % 10 == 0 else b"v") for n in range(KEYS)],
            partition=0,
        )
    return clock


def tombstones_after_a_round(root: Path, clock: ManualClock) -> int:
    """Open the log, clean it and close it; return the number of tombstones."""
    with lastword.open(root, "a", clock=clock) as logs:
        logs.clean()
        return logs.topic("t").describe()[0].tombstones


def saved(root: Path) -> Ledger:
    with lastword.open(root) as logs:
        view = logs.dirs.view("t", 0)
        return Ledger.open(DEFAULT, view.directory, view.segments, map_bytes=1 << 20)


def test_tombstones_go_when_their_time_has_come_though_each_round_is_a_process(
    tmp_path: Path, clock: ManualClock
) -> None:
    left = []
    for wait_ms in (0, HOUR - 1, 1):
        clock.advance(wait_ms)
        left.append(tombstones_after_a_round(tmp_path, clock))
    assert left == [KEYS // 10, KEYS // 10, 0]


def test_only_the_clocks_are_written(tmp_path: Path, clock: ManualClock) -> None:
    tombstones_after_a_round(tmp_path, clock)
    assert (tmp_path / "t-0" / "lastword" / "accounts").stat().st_size < 100 * KEYS // 10
    ledger = saved(tmp_path)
    assert (ledger.limit, ledger.rebuilt_because) == (0, "")
    assert ledger.deletes.due_ms(10, HOUR) == NOW + HOUR
    assert ledger.deletes.due_ms(11, HOUR) is None
    with lastword.open(tmp_path, clock=clock) as logs:
        assert logs.explain("t", key=b"k%012d" % 10).versions[0].until == NOW + HOUR


def test_they_are_not_used_for_another_log(tmp_path: Path, clock: ManualClock) -> None:
    """A log that replaced the original may have older copies again."""
    tombstones_after_a_round(tmp_path, clock)
    (log,) = (path for path in (tmp_path / "t-0").glob("*.log") if path.stat().st_size)
    copy = log.with_suffix(".copy")
    copy.write_bytes(log.read_bytes())
    copy.rename(log)
    assert "is not the file that was accounted" in saved(tmp_path).rebuilt_because
    clock.advance(2 * HOUR)
    assert tombstones_after_a_round(tmp_path, clock) == KEYS // 10
    clock.advance(HOUR)
    assert tombstones_after_a_round(tmp_path, clock) == 0


def test_a_lease_holds_them_all_the_same(tmp_path: Path, clock: ManualClock) -> None:
    tombstones_after_a_round(tmp_path, clock)
    with lastword.open(tmp_path, "a", clock=clock) as logs:
        logs.topic("t").lease("replica", max_age="1d")
    clock.advance(2 * HOUR)
    assert tombstones_after_a_round(tmp_path, clock) == KEYS // 10
    clock.advance(24 * HOUR)
    assert tombstones_after_a_round(tmp_path, clock) == 0
