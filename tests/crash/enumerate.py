"""Check images x invariants, and count them.

    python -m tests.crash.enumerate --states 100000 --jobs 2

runs every scenario, then the recovery of seeded images of each, then random scenarios from seeds, until
this many different states (by content, per scenario) were opened and checked. The program exits with 1 at
the first violations; each violation names the scenario, the moment and the policy that reproduce it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import multiprocessing.pool
import random
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.crash.history import History, Partition
from tests.crash.invariants import Subject, Violation, check
from tests.crash.power import PowerCut, PowerCuts
from tests.crash.scenarios import (
    SCENARIOS,
    Run,
    Scenario,
    from_seed,
    run,
    second_life,
    second_life_cleaning,
)

THOROUGH_EVERY = 8
"""The interval, in states, at which a recovered log is also appended to and cleaned."""


@dataclass
class Tally:
    images: int = 0
    states: set[int] = field(default_factory=set)
    violations: list[tuple[str, list[Violation]]] = field(default_factory=list)

    def raise_any(self) -> None:
        if self.violations:
            label, violations = self.violations[0]
            text = "\n".join(map(str, violations))
            raise AssertionError(
                f"{len(self.violations)} images violate invariants; the first: {label}\n{text}"
            )


def judge_run(
    scenario_run: Run,
    *,
    moments: Iterable[int] | None = None,
    seeds: Iterable[int] = (),
    doomed: Iterable[int] = (),
    tally: Tally | None = None,
    stop_at: int = 10,
    looking_for: str | None = None,
) -> Tally:
    """Check every image of a run, and each tree again only if more was acknowledged since.

    Ends after `stop_at` images with violations, or with the first image that violates `looking_for`.
    """
    tally = tally or Tally()
    judged: dict[int, int] = {}
    again: set[int] = set()
    known: dict[str, Partition] = {}
    known_at = -1
    for image in PowerCuts(scenario_run.files, doomed).images(moments, seeds):
        promised = _promised(scenario_run.history, image)
        if judged.get(image.identity, -1) >= promised:
            continue
        judged[image.identity] = promised
        tally.images += 1
        tally.states.add(image.identity)
        # A call in flight had not returned.
        returned_at = image.upto - (image.policy == "torn in flight")
        if known_at != returned_at:
            known, known_at = scenario_run.history.at(returned_at), returned_at
        thorough = len(judged) % THOROUGH_EVERY == 0
        saved = scenario_run.history.settings_at(returned_at)
        subject = Subject(scenario_run.settings, scenario_run.clock, image.killed, thorough, saved, again)
        violations = check(image.tree, image.mtimes, known, subject)
        if violations:
            name, count = scenario_run.scenario.name, len(scenario_run.files.journal)
            label = f"{name}, after {image.upto} of {count}, {image.policy}"
            tally.violations.append((label, violations))
            enough = len(tally.violations) >= stop_at if looking_for is None else False
            if enough or looking_for in {violation.invariant for violation in violations}:
                break
    return tally


def _promised(history: History, image: PowerCut) -> int:
    """Return a number that grows with each event that counts for an image.

    More events count for a kill than for a power cut.
    """
    count = sum(1 for event in history.events if event.at <= image.upto and event.kind != "attempt")
    return 2 * count + image.killed


def recoveries(scenario_run: Run, seeds: Iterable[int], work: Scenario | None = None) -> Iterator[Run]:
    """Yield runs that recover some images of this run, each on a journal."""
    for seed in seeds:
        rng = random.Random(seed)
        upto = rng.randrange(1, len(scenario_run.files.journal) + 1)
        images = list(PowerCuts(scenario_run.files).images([upto], seeds=range(4)))
        image = rng.choice(images)
        chosen = second_life_cleaning if seed % 3 == 0 else second_life
        scenario = Scenario(
            f"recovery of ({scenario_run.scenario.name}, after {upto}, {image.policy})",
            chosen,
            scenario_run.scenario.settings,
            scenario_run.scenario.retention_ms,
        )
        yield run(
            scenario,
            image,
            scenario_run.history.until(upto - (image.policy == "torn in flight"), killed=image.killed),
        )


# ---------------------------------------------------------------- many


def tasks() -> Iterator[tuple[str, int, int]]:
    """Yield (kind, scenario or seed, number) without end, the fixed scenarios first."""
    for number in range(len(SCENARIOS)):
        yield "fixed", number, 0
    for number in range(len(SCENARIOS)):
        yield "recovery", number, 6
    seed = 0
    while True:
        yield "random", seed, 2
        seed += 1


Done = tuple[str, int, int, list[str]]


def do(task: tuple[str, int, int]) -> Done:
    kind, number, count = task
    tally = Tally()
    if kind == "random":
        scenario_run = run(from_seed(number))
        judge_run(scenario_run, seeds=range(4), tally=tally)
        for again in recoveries(scenario_run, range(number, number + count)):
            judge_run(again, tally=tally)
    else:
        scenario = list(SCENARIOS.values())[number]
        scenario_run = run(scenario)
        if kind == "fixed":
            judge_run(scenario_run, seeds=range(8), tally=tally)
        else:
            for again in recoveries(scenario_run, range(count)):
                judge_run(again, seeds=range(1), tally=tally)
    failed = [f"{label}\n  " + "\n  ".join(map(str, violations)) for label, violations in tally.violations]
    return f"{kind} {number}", tally.images, len(tally.states), failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--states", type=int, default=100_000)
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    started = time.monotonic()
    states = images = count = 0
    failed: list[str] = []
    waiting: list[multiprocessing.pool.AsyncResult[Done]] = []
    with multiprocessing.get_context("spawn").Pool(given.jobs, maxtasksperchild=40) as pool:
        for task in tasks():
            if states >= given.states:
                break
            waiting.append(pool.apply_async(do, (task,)))
            if len(waiting) < 2 * given.jobs:
                continue
            _, opened, different, wrong = waiting.pop(0).get()
            states, images, count = states + different, images + opened, count + 1
            failed += wrong
            if wrong:
                print("\n".join(wrong), flush=True)
            if count % 20 == 0:
                print(f"{states} states, {time.monotonic() - started:.0f} s", flush=True)
    seconds = time.monotonic() - started
    print(
        f"{states} different states of {count} runs recovered and judged by I1-I13 "
        f"({images} judgements), {len(failed)} violations, {seconds:.0f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
