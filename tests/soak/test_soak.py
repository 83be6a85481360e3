"""Run a small soak of each strategy; `make soak N=10000000` runs a long one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.properties.strategies import by_strategy
from tests.soak.processes import digest
from tests.soak.soak import Oracle, plan_of, soak
from tests.soak.workload import Workload
from tests.support.exhaustive import stride

RECORDS = 20_000 // stride(5)


@pytest.mark.slow
@by_strategy
def test_6C_29_a_small_soak(tmp_path: Path, strategy: str) -> None:
    """6C.29: Under a long random workload of puts and deletes, the newest values that a consumer reads
    after cleaning are those that the producer wrote.
    """
    total = soak(str(tmp_path / "logs"), plan_of(RECORDS, strategy, 1), 1)
    assert total.acked == RECORDS and total.kills + total.stops > 1 and total.rounds > 3


def test_one_record_and_many_are_the_same_workload() -> None:
    workload = Workload(3000, 150, 7)
    pairs = workload.pairs(0, 3000)
    keys, values = [key for key, _ in pairs], [value for _, value in pairs]
    assert workload.wrong(range(3000), keys, values) is None
    assert workload.wrong([5], [keys[6]], [values[6]]) is not None
    assert pairs[1000:1010] == workload.pairs(1000, 1010)
    deletes = sum(value is None for value in values)
    assert 200 < deletes < 400 and 100 < len(set(keys)) <= 150


def test_the_oracle_knows_the_newest_of_each_key() -> None:
    oracle = Oracle(plan_of(2000, "kafka", 3))
    for end in (3, 700, 700, 2000):
        oracle.take(end)
    held: dict[bytes, int] = {}
    for offset, (key, value) in enumerate(oracle.plan.workload.pairs(0, 2000)):
        held[key] = offset
        if value is None:
            del held[key]
    assert oracle.live() == held and digest(oracle.live()) == digest(held)
    assert np.count_nonzero(oracle.deleted) > 0
