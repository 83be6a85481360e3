"""End processes that commit transactions by SIGKILL at random moments: each one is whole or not there.

    python -m tests.crash.transaction_kills --kills 500

The writer is a fork of this process. It counts: each transaction sets all keys of two topics, in five
partitions, a state and a position to the next number, so that all of them are always equal. Some transactions
have one partition only, some raise. The writer reports each end through a pipe. The parent kills it after a
random time, reads the directory as it is, opens it to write, and compares.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import lastword
from tests.support.child import Child, Tell

KEYS = [f"k{number}" for number in range(12)]
SETTINGS = {"log_cleaner_enable": False}
JSON = {"key_serializer": "str", "value_serializer": "json"}


@dataclass
class Total:
    """What the kills have met."""

    kills: int = 0
    transactions: int = 0
    completed: int = 0
    """Openings that ended a transaction which was decided, or showed one whose end was not reported."""
    recovered: int = 0
    """Openings that had a note of open transactions."""


def write_on(root: str, seed: int, tell: Tell) -> None:
    """Commit transactions until killed."""
    rng = random.Random(seed)
    with lastword.open(root, "a", **SETTINGS) as logs:  # type: ignore[arg-type]
        for name, partitions in (("a", 2), ("b", 3)):
            logs.create_topic(name, partitions, exist_ok=True, cleanup_policy="compact", **JSON)
        state = logs.state("state", default=int)
        tell("open")
        while True:
            number = state["n"] + 1
            if rng.random() < 0.1:
                try:
                    with logs.transaction() as tx:
                        tx.append("a", "k1", "never")
                        tx.append("b", "k1", "never")
                        raise KeyError
                except KeyError:
                    pass
            if rng.random() < 0.2:
                with logs.transaction() as tx:
                    tx.append("a", "alone", [number, rng.random()])
            size = rng.choice((10, 10, 10, 4000))
            with logs.transaction() as tx:
                for key in KEYS:
                    tx.append("a", key, [number, "x" * size])
                    tx.append("b", key, [number, ""])
                tx.state("state")["n"] += 1
                tx.position("p", number)
            tell(str(number))
            if rng.random() < 0.02:
                logs.clean()


def shown(logs: lastword.LogDir) -> dict[str, set[int]]:
    """Return the numbers that each partition shows. An empty topic has the number 0."""
    found = {}
    for name in ("a", "b"):
        for partition in range(logs[name].partitions):
            values = {r.value[0] for r in logs[name].newest(KEYS, partition=partition)}
            found[f"{name}-{partition}"] = values or {0}
    found["state"] = {logs["state"].get("n", 0)}
    found["position"] = {logs.position("p") or 0}  # type: ignore[arg-type]
    return found


def run_kills(root: str, kills: int, *, seed: int, seconds: float = 0.25) -> Total:
    """Kill writers; AssertionError if a transaction is lost or half there."""
    rng, total, done = random.Random(seed), Total(), 0
    while total.kills < kills:
        seed = rng.getrandbits(32) + total.kills
        _, *lines = Child.fork(write_on, root, seed).kill_after(rng.random() * seconds)
        numbers = [int(line) for line in lines]
        assert numbers == list(range(done + 1, done + 1 + len(numbers))), f"after {done}: {numbers[:5]}"
        done += len(numbers)
        total.kills += 1
        total.transactions += len(numbers)
        with lastword.open(root) as logs:
            for name, values in shown(logs).items():
                assert len(values) == 1 and values <= {done, done + 1}, f"{name} has {values} after {done}"
        total.recovered += Path(root, "lastword.transaction").exists()
        with lastword.open(root, "a", **SETTINGS) as logs:  # type: ignore[arg-type]
            found = shown(logs)
            assert len(set.union(*found.values())) == 1, f"half of a transaction: {found} after {done}"
            assert found["state"] in ({done}, {done + 1}), f"lost: {found} after {done}"
            total.completed += found["state"] == {done + 1}
            (done,) = found["state"]
            assert not logs.transactions()
            if total.kills % 20 == 0:
                assert not logs.verify().problems
                logs.clean()  # else each look reads a longer log
                print(f"{total.kills} of {kills} kills, {total.transactions} transactions", file=sys.stderr)
    return total


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        print(run_kills(f"{root}/data", arguments.kills, seed=arguments.seed), "seed", arguments.seed)


if __name__ == "__main__":
    main()
