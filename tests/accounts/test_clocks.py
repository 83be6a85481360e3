"""Clocks of tombstones: a clock starts when no older copy is left, and never too early."""

from dataclasses import dataclass

import numpy as np

from lastword.accounts.tombstones import TombstoneClocks
from lastword.partition.leases import MAY_GO


@dataclass
class Live:
    offset: np.ndarray
    copies: np.ndarray
    horizon_ms: np.ndarray
    size_bytes: np.ndarray


def live(*rows):
    """Return the live tombstones of rows (offset, copies, horizon)."""
    table = np.array(rows, np.int64).reshape(-1, 3)
    return Live(table[:, 0], table[:, 1].astype(np.uint8), table[:, 2], np.full(len(rows), 40, np.int64))


def due(clocks, tombstones, now_ms, delete_retention_ms, **more):
    """Return the offsets of the tombstones that may go."""
    return clocks.offset[clocks.held_by(tombstones, now_ms, delete_retention_ms, **more) == MAY_GO]


def test_a_blocked_one_has_no_clock():
    clocks = TombstoneClocks()
    tombstones = live((5, 2, -1), (9, 255, -1))
    clocks.update(tombstones, 1000)
    assert len(clocks) == 0
    assert due(clocks, tombstones, 10**12, 0).size == 0
    assert clocks.due_ms(tombstones, 10).size == 0


def test_it_starts_when_the_last_older_copy_went_and_then_runs_on():
    clocks = TombstoneClocks()
    clocks.update(live((5, 2, -1)), 1000)
    clocks.update(live((5, 1, -1)), 2000)
    tombstones = live((5, 1, -1), (9, 1, -1))
    clocks.update(tombstones, 3000)
    assert clocks.due_ms(tombstones, 100).tolist() == [2100, 3100]
    assert due(clocks, tombstones, 2099, 100).tolist() == []
    assert due(clocks, tombstones, 2100, 100).tolist() == [5]
    assert due(clocks, tombstones, 3100, 100).tolist() == [5, 9]


def test_a_horizon_in_the_batch_is_a_lower_bound_only():
    clocks = TombstoneClocks()
    tombstones = live((5, 1, 5000), (6, 1, 1))
    clocks.update(tombstones, 1000)
    assert due(clocks, tombstones, 1100, 100).tolist() == [6]
    assert due(clocks, tombstones, 1099, 100).tolist() == []
    assert due(clocks, tombstones, 4999, 100).tolist() == [6]
    assert due(clocks, tombstones, 5000, 100).tolist() == [5, 6]


def test_one_that_was_superseded_is_forgotten():
    clocks = TombstoneClocks()
    clocks.update(live((5, 1, -1), (7, 1, -1)), 1000)
    clocks.update(live((7, 1, -1)), 2000)
    assert clocks.offset.tolist() == [7]
    assert clocks.since_ms.tolist() == [1000]


def test_not_while_a_reader_has_to_pass_it():
    clocks = TombstoneClocks()
    tombstones = live((5, 1, -1), (7, 1, -1))
    clocks.update(tombstones, 0)
    assert due(clocks, tombstones, 10, 0, floor=7).tolist() == [5]
    assert due(clocks, tombstones, 10, 0, floor=5).tolist() == []
    assert due(clocks, tombstones, 10, 0, keep=7).tolist() == [5]


def test_without_room_a_clock_starts_later_never_earlier():
    clocks = TombstoneClocks(most=1)
    tombstones = live((5, 1, -1), (7, 1, -1))
    clocks.update(tombstones, 1000)
    assert due(clocks, tombstones, 10**9, 100).tolist() == [5]
    clocks.update(live((7, 1, -1)), 2000)
    assert due(clocks, live((7, 1, -1)), 2099, 100).tolist() == []


def test_a_retention_without_end_is_never_due():
    clocks = TombstoneClocks()
    tombstones = live((5, 1, -1))
    clocks.update(tombstones, 1_700_000_000_000)
    assert due(clocks, tombstones, 1 << 62, (1 << 63) - 1).size == 0
