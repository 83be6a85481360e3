"""Count interleavings of readers with a writer and its cleaners.

    python -m tests.readers.run --interleavings 1000000 --jobs 2

The command makes a history for each seed and runs readers of every kind on it, until this many interleavings
were checked. An interleaving is a history, a kind of reader, and the version at each of its file operations;
equal interleavings count once. The command exits with 1 if a result is not allowed at any moment, and prints
each such result with the command that repeats it:

    python -m tests.readers.run --seed 7 --number 130
"""

from __future__ import annotations

import argparse
import collections
import gc
import logging
import multiprocessing
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.readers.history import make
from tests.readers.readers import KINDS, Outcome, interleavings
from tests.readers.travel import TravellingFiles

PER_HISTORY = 1000
SHOWN = 3  # violations of one kind and rule that are printed in full


@dataclass
class Tally:
    """Counts of one or more histories. `violations` has kind of reader, rule, and the printed text."""

    judged: int = 0
    different: int = 0
    histories: int = 0
    cpu_seconds: float = 0.0
    kinds: collections.Counter[str] = field(default_factory=collections.Counter)
    notes: collections.Counter[tuple[str, str]] = field(default_factory=collections.Counter)
    violations: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.judged += other.judged
        self.different += other.different
        self.histories += other.histories
        self.cpu_seconds += other.cpu_seconds
        self.kinds += other.kinds
        self.notes += other.notes
        self.violations += other.violations


def violation_text(seed: int, number: int, outcome: Outcome) -> str:
    """Return the text of a violation, with the command that repeats it."""
    assert outcome.violation is not None
    lines = [
        f"{outcome.violation}",
        f"  {outcome.label}",
        f"  again: python -m tests.readers.run --seed {seed} --number {number}",
    ]
    return "\n".join(lines)


def judge_history(seed: int, count: int, kinds: list[str] | None = None) -> Tally:
    """Judge the first `count` interleavings of one history."""
    started = time.process_time()
    history = make(seed)
    tally = Tally(histories=1)
    seen: set[int] = set()
    for number, outcome in enumerate(interleavings(history, count, kinds)):
        tally.judged += 1
        seen.add(outcome.identity)
        tally.kinds[outcome.kind] += 1
        for note in outcome.notes:
            tally.notes[outcome.kind, note] += 1
        if outcome.violation is not None:
            text = violation_text(seed, number, outcome)
            tally.violations.append((outcome.kind, outcome.violation.rule, text))
    tally.different = len(seen)
    tally.cpu_seconds = time.process_time() - started
    return tally


def _begin() -> None:
    """Exclude the libraries from garbage collections, and make those fewer; print no warning of a read."""
    logging.getLogger("lastword").setLevel(logging.ERROR)
    gc.freeze()
    gc.set_threshold(100_000)


def _judge(task: tuple[int, int, list[str] | None]) -> Tally:
    return judge_history(*task)


def tasks(
    interleavings: int, first_seed: int, kinds: list[str] | None
) -> Iterator[tuple[int, int, list[str] | None]]:
    seed = first_seed
    while interleavings > 0:
        yield seed, min(PER_HISTORY, interleavings), kinds
        interleavings -= PER_HISTORY
        seed += 1


def repeat(seed: int, number: int, kinds: list[str] | None) -> int:
    """Repeat one interleaving; print the versions that it passed and the whole error.

    The interleavings before it run first, as in the first run, because the state of the process (open
    handles, loaded kernels) determines the file operations.
    """
    history = make(seed)
    files = TravellingFiles(history)
    *_, outcome = interleavings(history, number + 1, kinds, files, lines_from=number)
    for line in files.operation_lines or ():
        print(line)
    print(outcome.label)
    print(f"settings: {history.settings}")
    if outcome.violation is None:
        print(f"allowed {outcome.notes or ''}")
        return 0
    traceback.print_exception(outcome.violation)
    return 1


def summary(total: Tally, started: float) -> str:
    """Return a line with the counts, the time since `started`, and the CPU time of all processes."""
    return (
        f"{total.judged} interleavings of {total.histories} histories judged, {total.different} different, "
        f"{len(total.violations)} violations, {time.monotonic() - started:.0f} s, "
        f"{1000 * total.cpu_seconds / max(1, total.judged):.1f} ms of CPU each"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--interleavings", type=int, default=100_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--seed", type=int, help="of the first history, or of the one to repeat")
    parser.add_argument("--number", type=int, help="repeat this interleaving of the history")
    given = parser.parse_args()
    if given.number is not None:
        return repeat(given.seed or 0, given.number, given.kinds)
    started = time.monotonic()
    total = Tally()
    shown: collections.Counter[tuple[str, str]] = collections.Counter()
    first = given.seed or 0
    work = tasks(given.interleavings, first, given.kinds)
    context = multiprocessing.get_context("spawn")
    with context.Pool(given.jobs, _begin, maxtasksperchild=50) as pool:
        for tally in pool.imap(_judge, work):  # in the order of seeds, so that a run that is ended counts
            total.add(tally)
            for kind, rule, text in tally.violations:
                shown[kind, rule] += 1
                if shown[kind, rule] <= SHOWN:
                    print(f"{kind}: {text}", flush=True)
            if total.histories % 20 == 0:
                print(
                    f"seeds {first} to {first + total.histories - 1}: {summary(total, started)}", flush=True
                )
    for (kind, rule), count in shown.most_common():
        print(f"{count:6} x {kind}: {rule}")
    print("by kind: " + ", ".join(f"{kind} {count}" for kind, count in sorted(total.kinds.items())))
    noted: collections.Counter[str] = collections.Counter()
    for (_, note), count in total.notes.items():
        noted[note] += count
    print("noted: " + ", ".join(f"{note} {count}" for note, count in sorted(noted.items())))
    print(summary(total, started))
    return 1 if total.violations else 0


if __name__ == "__main__":
    sys.exit(main())
