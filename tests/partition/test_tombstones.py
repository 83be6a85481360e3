"""The reasons to keep a tombstone or a marker: equal for one record and for arrays of records."""

from itertools import product

import numpy as np
import pytest

from lastword.partition.leases import (
    HORIZON,
    LEASE,
    MAY_GO,
    NO_HORIZON,
    OLDER_RECORD,
    PLACE,
    PRODUCER,
    TombstoneFacts,
    held_by,
)

NOW = 1000


def expected(offset, horizon_ms, has_horizon, has_older, last_of_producer, ends_file, floor):
    """Return the first reason, from rules in plain Python."""
    if has_older:
        return OLDER_RECORD
    if last_of_producer:
        return PRODUCER
    if not has_horizon:
        return NO_HORIZON
    if horizon_ms > NOW:
        return HORIZON
    if offset >= floor:
        return LEASE
    return PLACE if ends_file else MAY_GO


CASES = list(product((4, 5, 6), (NOW - 1, NOW, NOW + 1), *[(False, True)] * 4))


@pytest.mark.parametrize("floor", [5, 1 << 60])
def test_the_first_reason_that_holds_keeps_it(floor):
    wanted = [expected(*case, floor) for case in CASES]
    assert set(wanted) >= {MAY_GO, OLDER_RECORD, PRODUCER, NO_HORIZON, HORIZON, PLACE}
    assert (LEASE in wanted) == (floor == 5)
    assert [held_by(TombstoneFacts(*case), NOW, floor) for case in CASES] == wanted
    columns = [np.array(column) for column in zip(*CASES, strict=True)]
    assert held_by(TombstoneFacts(*columns), NOW, floor).tolist() == wanted


def test_a_marker_waits_for_no_lease():
    assert held_by(TombstoneFacts(7, NOW), NOW) == MAY_GO
