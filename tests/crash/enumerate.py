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
from tests.crash.invariants import Subject, Violated, Violation, check
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
            label, found = self.violations[0]
            raise Violated(found, f"{len(self.violations)} images violate invariants; the first: {label}")


def judge_run(
    made: Run,
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
    known: dict[str, Partition] = {}
    known_at = -1
    for image in PowerCuts(made.files, doomed).images(moments, seeds):
        promised = _promised(made.history, image)
        if judged.get(image.identity, -1) >= promised:
            continue
        judged[image.identity] = promised
        tally.images += 1
        tally.states.add(image.identity)
        # A call in flight had not returned.
        told = image.upto - (image.policy == "torn in flight")
        if known_at != told:
            known, known_at = made.history.at(told), told
        thorough = len(judged) % THOROUGH_EVERY == 0
        subject = Subject(made.settings, made.clock, image.killed, thorough)
        found = check(image.tree, image.mtimes, known, subject)
        if found:
            label = f"{made.scenario.name}, after {image.upto} of {len(made.files.journal)}, {image.policy}"
            tally.violations.append((label, found))
            enough = len(tally.violations) >= stop_at if looking_for is None else False
            if enough or looking_for in {one.invariant for one in found}:
                break
    return tally


def _promised(history: History, image: PowerCut) -> int:
    """Return a number that grows with each event that counts for an image.

    More events count for a kill than for a power cut.
    """
    count = sum(1 for event in history.events if event.at <= image.upto and event.kind != "attempt")
    return 2 * count + image.killed


def recoveries(made: Run, seeds: Iterable[int], work: Scenario | None = None) -> Iterator[Run]:
    """Yield runs that recover some images of this run, each on a journal."""
    for seed in seeds:
        rng = random.Random(seed)
        upto = rng.randrange(1, len(made.files.journal) + 1)
        images = list(PowerCuts(made.files).images([upto], seeds=range(4)))
        image = rng.choice(images)
        chosen = second_life_cleaning if seed % 3 == 0 else second_life
        scenario = Scenario(
            f"recovery of ({made.scenario.name}, after {upto}, {image.policy})",
            chosen,
            made.scenario.settings,
            made.scenario.retention_ms,
        )
        yield run(
            scenario,
            image,
            made.history.until(upto - (image.policy == "torn in flight"), killed=image.killed),
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
        made = run(from_seed(number))
        judge_run(made, seeds=range(4), tally=tally)
        for again in recoveries(made, range(number, number + count)):
            judge_run(again, tally=tally)
    else:
        scenario = list(SCENARIOS.values())[number]
        made = run(scenario)
        if kind == "fixed":
            judge_run(made, seeds=range(8), tally=tally)
        else:
            for again in recoveries(made, range(count)):
                judge_run(again, seeds=range(1), tally=tally)
    failed = [f"{label}\n  " + "\n  ".join(map(str, found)) for label, found in tally.violations]
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
        f"{states} different states of {count} runs recovered and judged by I1-I12 "
        f"({images} judgements), {len(failed)} violations, {seconds:.0f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
