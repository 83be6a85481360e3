"""End processes by SIGKILL at random moments: nothing acknowledged is lost, no deleted key returns.

    python -m tests.crash.kills --kills 2000 --fresh-every 40

The writer is a fork of this process (or sometimes a fresh interpreter). It recovers the directory, appends at
both levels, rolls, checkpoints and cleans, and reports each attempt and acknowledgement through a pipe. The
parent kills it after a random time, reads the pipe to its end, opens the directory and compares. Then the
next writer continues in the same directory.

A killed process loses only what it had not passed to the system. So `os` and `disk` are the same promise
here, and the log must be exactly what was acknowledged, plus at most the call in progress.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lastword.clock import ManualClock
from lastword.logdir import LogDirectory
from lastword.partition import PartitionView
from lastword.partition.directory_segments import DirectorySegments
from lastword.records.batch import read_records
from tests.crash.invariants import MAP_BYTES, NOW
from tests.crash.scenarios import one_batch, settings_of
from tests.fakes.hasty import HastyFiles
from tests.support.child import Child, Tell

SETTINGS = settings_of(segment_bytes=4000, index_interval_bytes=500, delete_retention_ms=0)
KEYS = 40
SALT = b"0123456789abcdef"


def write_on(root: str, seed: int, tell: Tell) -> None:
    """Write until killed; tell the lines `open end`, `try first count`, `ack end`, `round`, `cleaned`.

    The value of a record has its offset and its writer; every eleventh record of a writer is a tombstone.
    """
    from tests.support.cleaning import clean

    rng = random.Random(seed)
    clock = ManualClock(NOW + seed)
    logs = LogDirectory.open(root, "a", HastyFiles(), clock, SETTINGS, rng=rng)
    if "users" not in logs.topics():
        logs.create_topic("users")
    log = logs.log("users", 0)
    tell(f"open {log.log_end}")
    while True:
        clock.advance(1)
        draw = rng.random()
        if draw < 0.06:
            tell("round")
            clean(
                log,
                log.config,
                first_dirty=logs.first_dirty("users", 0),
                record_first_dirty=lambda offset: logs.set_first_dirty("users", 0, offset),
                salt=SALT,
                map_bytes=MAP_BYTES,
                strategy=rng.choice(("kafka", "generational")),
            )
            tell("cleaned")
        elif draw < 0.08:
            logs.sync()
        elif draw < 0.1:
            log.roll()
        else:
            batches, first = [], log.log_end
            offset = first
            for _ in range(rng.choice((1, 1, 2, 5))):
                pairs = [(_key(offset + n), _value(offset + n, seed)) for n in range(rng.randrange(1, 20))]
                batches.append(
                    one_batch(offset, pairs, timestamp=clock.now_ms(), codec=rng.choice((0, 0, 3)))
                )
                offset += len(pairs)
            tell(f"try {first} {offset - first}")
            log.append_batches(batches)
            if rng.random() < 0.3:
                log.sync()
            tell(f"ack {offset}")


def _key(offset: int) -> bytes:
    return b"k%d" % (offset * 7919 % KEYS)


def _value(offset: int, seed: int) -> bytes | None:
    return None if offset % 11 == 0 else b"%d by %d" % (offset, seed)


@dataclass
class Oracle:
    """Attempts and acknowledgements. `by` maps an offset to the seed of the writer of its record."""

    by: dict[int, int] = field(default_factory=dict)
    acked: int = 0
    begun: int = 0
    rounds: int = 0
    kills: int = 0
    in_rounds: int = 0
    records: int = 0

    def heard(self, lines: list[str], seed: int) -> None:
        cleaning = False
        for line in lines:
            event, *numbers = line.split()
            if event == "open":
                end = int(numbers[0])
                assert self.acked <= end <= self.begun, f"{end} is not in {self.acked}..{self.begun}"
                self.acked = self.begun = end
            elif event == "try":
                first, count = map(int, numbers)
                assert first == self.acked, f"an append at {first}, acknowledged was {self.acked}"
                for offset in range(first, first + count):
                    self.by[offset] = seed
                self.begun = first + count
            elif event == "ack":
                self.records += int(numbers[0]) - self.acked
                self.acked = int(numbers[0])
            else:
                cleaning = event == "round"
                self.rounds += cleaning
        self.kills += 1
        self.in_rounds += cleaning

    def check(self, root: str) -> None:
        """Open the directory as a reader and compare.

        Offsets rise, contents are those attempted, and the newest record of each key exists; only a cleaning
        may have removed older ones.
        """
        view = PartitionView.load(DirectorySegments(HastyFiles(), f"{root}/users-0"))
        end = view.log_end
        assert self.acked <= end <= self.begun, f"I1: the log ends at {end}: {self.acked}..{self.begun}"
        seen: dict[int, bytes | None] = {}
        last = -1
        for segment, header, data in view.batches(view.log_start):
            for record in read_records(data, header, segment.file, position=0):
                assert record.offset > last, f"I3: offset {record.offset} follows {last}"
                last = record.offset
                assert record.key == _key(last), f"I3: offset {last} has the key {record.key!r}"
                assert record.value == _value(last, self.by[last]), f"I5: offset {last} has {record.value!r}"
                seen[last] = record.value
        newest: dict[bytes, int] = {}
        for offset in range(end):
            newest[_key(offset)] = offset
        for key, offset in newest.items():
            if _value(offset, 0) is not None:
                assert offset in seen, f"I4: {key!r} at {offset} is lost"
            elif offset not in seen:
                back = [o for o in seen if _key(o) == key]
                assert not back, f"I6: {key!r} was deleted at {offset}, {back} are back"
        if not self.rounds:
            assert len(seen) == end, "I2: records are missing, and nothing was cleaned"


def forked(root: str, seed: int, after: float) -> list[str]:
    """Run a writer in a fork, kill it, and return its lines; the time starts at its first line."""
    return Child.fork(write_on, root, seed).kill_after(after)


def fresh(root: str, seed: int, after: float) -> list[str]:
    """Do the same in a new interpreter."""
    reading, writing = os.pipe()
    code = (
        "from tests.crash.kills import write_on; from tests.support.child import teller; "
        f"write_on({root!r}, {seed}, teller({writing}))"
    )
    path = os.pathsep.join([p for p in sys.path if p])
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        pass_fds=[writing],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": path},
    )
    os.close(writing)
    lines = Child(process.pid, reading).kill_after(after)
    process.returncode = -signal.SIGKILL  # the process has already been waited for
    return lines


def moments(rng: random.Random) -> Iterator[float]:
    """Yield some times during the first calls; most are a few hundredths of a second."""
    while True:
        yield rng.choice((rng.expovariate(1 / 0.003), rng.expovariate(1 / 0.03), rng.expovariate(1 / 0.03)))


def run_kills(root: str, kills: int, *, seed: int, fresh_every: int = 0, renew: int = 60) -> Oracle:
    """Kill writers one after the other, compare after each, and return the totals.

    `renew`: start with an empty directory after this many kills, because the log grows.
    """
    from lastword.kernels.warming import warm

    warm()
    total, oracle = Oracle(), Oracle()
    for number, after in zip(range(kills), moments(random.Random(seed)), strict=False):
        directory = f"{root}/{seed}-{number // renew}"
        if number % renew == 0:
            _add(total, oracle)
            shutil.rmtree(f"{root}/{seed}-{number // renew - 1}", ignore_errors=True)
            oracle = Oracle()
        start = fresh if fresh_every and number % fresh_every == fresh_every - 1 else forked
        oracle.heard(start(directory, seed * 1_000_000 + number, after), seed * 1_000_000 + number)
        oracle.check(directory)
    _add(total, oracle)
    return total


def _add(total: Oracle, oracle: Oracle) -> None:
    total.kills += oracle.kills
    total.in_rounds += oracle.in_rounds
    total.rounds += oracle.rounds
    total.records += oracle.records


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=2000)
    parser.add_argument("--fresh-every", type=int, default=40)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    started = time.monotonic()
    root = tempfile.mkdtemp(
        prefix="lastword-kills-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    )
    try:
        total = run_kills(root, given.kills, seed=given.seed, fresh_every=given.fresh_every)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(
        f"{total.kills} kills, {total.in_rounds} of them inside one of {total.rounds} rounds of cleaning, "
        f"{total.records} acknowledged records, none lost, moved or back; {time.monotonic() - started:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
