"""Write, look up and iterate a state of many keys without values in memory; print the most memory it took.

    python -m tests.state.memory KEYS     # make memory-state N=100000000

Each step is a process of its own. A thread of it reads its private memory (`RssAnon`: without the pages of
files and libraries) again and again. The program fails if the peak of a step is above LIMIT_MB, whatever the
number of keys.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lastword

LIMIT_MB = 200
LOOKUPS = 2000
STEPS = ("write", "look up", "iterate")


def key(number: int) -> bytes:
    return b"key-%020d" % number


def pairs(keys: int) -> Iterator[tuple[bytes, bytes]]:
    filler = b"v" * 80
    for number in range(keys):
        yield key(number), b"%d" % number + filler


def write(state: Any, keys: int) -> None:
    """Write all keys, then each hundredth one by one, with a lookup between two."""
    state.update(pairs(keys))
    for number in range(0, keys, 100):
        state[key(number)] = b"again"
        assert state[key(number)] == b"again"


def look_up(state: Any, keys: int) -> None:
    for number in random.Random(1).choices(range(keys), k=LOOKUPS):
        expected = b"again" if number % 100 == 0 else b"%d" % number
        assert state[key(number)].rstrip(b"v") == expected.rstrip(b"v"), number
        assert key(keys + number) not in state


def iterate(state: Any, keys: int) -> None:
    count = changed = 0
    for _, value in state.items():
        count += 1
        changed += value == b"again"
    assert (count, changed) == (keys, -(-keys // 100))


def private_mb() -> int:
    """Return the private memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) >> 10


def run(step: str, directory: str, keys: int) -> int:
    """Run a step in this process; return its peak in MB."""
    peak = private_mb()

    def watch() -> None:
        nonlocal peak
        while True:
            peak = max(peak, private_mb())
            time.sleep(0.02)

    threading.Thread(target=watch, daemon=True).start()
    with lastword.open(directory, "a", log_cleaner_dedupe_buffer_size="32MiB") as logs:
        state = logs.state("t", key_serializer="bytes", value_serializer="bytes", memory="none")
        {"write": write, "look up": look_up, "iterate": iterate}[step](state, keys)
    return peak


def measure(directory: str, keys: int) -> dict[str, int]:
    """Run each step in a process of its own; return the peaks in MB."""
    peaks = {}
    for step in STEPS:
        command = [sys.executable, "-m", "tests.state.memory", str(keys), directory, step]
        peaks[step] = int(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return peaks


if __name__ == "__main__":
    if len(sys.argv) == 4:
        print(run(sys.argv[3], sys.argv[2], int(sys.argv[1])))
    else:
        with tempfile.TemporaryDirectory() as place:
            found = measure(place, int(sys.argv[1]))
        print(", ".join(f"{step} {peak} MB" for step, peak in found.items()))
        sys.exit(max(found.values()) > LIMIT_MB)
