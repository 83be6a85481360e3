"""Recover after every power cut, and check I1 to I13."""

from __future__ import annotations

import pytest

from tests.crash.enumerate import judge_run, recoveries
from tests.crash.power import PowerCuts
from tests.crash.scenarios import SCENARIOS, from_seed, run
from tests.fakes.forgetful import forget_all, keep_all, leave_out, names_only, seeded, torn
from tests.support.exhaustive import stride

STRIDES = {
    "indexes_grow": 2,
    "closes": 2,
    "trims": 4,
    "expires": 4,
    "truncates": 2,
    "transacts": 2,
    "cleans_transactions": 5,
    "cleans": 2,
    "cleans_small": 2,
    "cleans_twice": 5,
    "cleans_by_accounts": 7,
    "cleans_divided": 12,
    "cleans_compressed": 3,
    "cleans_and_closes": 3,
}
"""The step between two moments of a long scenario. `make crash` visits each moment."""

LEAST = {
    "append": 260,
    "many_at_once": 380,
    "large": 90,
    "rolls": 210,
    "indexes_grow": 340,
    "checkpoints": 350,
    "closes": 430,
    "killed_between": 360,
    "topics": 130,
    "settings": 140,
    "trims": 280,
    "expires": 360,
    "truncates": 320,
    "transacts": 240,
    "cleans_transactions": 650,
    "cleans": 450,
    "cleans_small": 440,
    "cleans_acked_before_unacked": 340,
    "cleans_twice": 630,
    "cleans_by_accounts": 320,
    "cleans_compressed": 420,
    "cleans_and_closes": 480,
    "append_singly": 430,
    "cleans_divided": 490,
}
"""The least number of different states of each scenario: the test opens all of them."""


def test_eight_thousand_and_more() -> None:
    """`make crash` opens a hundred thousand, and a million at night."""
    assert sum(LEAST.values()) >= 8000 and set(LEAST) == set(SCENARIOS)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_power_cut(name: str) -> None:
    scenario_run = run(SCENARIOS[name])
    journal, step = scenario_run.files.journal, STRIDES.get(name, 1)
    # Most is lost before a directory is synced.
    syncs = [moment for moment, op in enumerate(journal) if op.kind == "fsync_dir"][:: 1 + step // 3]
    moments = sorted({*range(0, len(journal) + 1, step * stride(9)), *syncs})
    tally = judge_run(scenario_run, moments=moments, seeds=range(2))
    tally.raise_any()
    assert len(tally.states) >= LEAST[name]


@pytest.mark.quick
@pytest.mark.parametrize("name", SCENARIOS)
def test_some_power_cuts(name: str) -> None:
    scenario_run = run(SCENARIOS[name])
    moments = range(0, len(scenario_run.files.journal) + 1, 17 * STRIDES.get(name, 1))
    judge_run(scenario_run, moments=moments, seeds=range(1)).raise_any()


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_power_cuts_during_recovery(name: str) -> None:
    for again in recoveries(run(SCENARIOS[name]), range(2)):
        judge_run(again, moments=range(0, len(again.files.journal) + 1, stride(72))).raise_any()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_power_cuts_of_random_lives(seed: int) -> None:
    scenario_run = run(from_seed(seed))
    judge_run(
        scenario_run, moments=range(0, len(scenario_run.files.journal) + 1, 3 * stride(12)), seeds=range(1)
    ).raise_any()


@pytest.mark.parametrize("name", ["append", "cleans", "closes"])
def test_the_images_are_those_of_the_forgetful_files(name: str) -> None:
    """The same trees in two ways: from the start of the journal for each image, and in one walk."""
    files = run(SCENARIOS[name]).files
    for upto in range(3, len(files.journal), 11):
        number = max(files.pending(upto).all, default=0)
        for policy in (keep_all, forget_all, names_only, leave_out(number), torn(number, 5), seeded(upto)):
            cuts = PowerCuts(files)
            list(cuts.images([upto]))
            image = cuts._image(upto, "", policy, files.pending(upto))
            other = files.crash(upto, policy)
            assert image.tree == other.tree and image.mtimes == other.mtimes
