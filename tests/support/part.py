"""Run a part of the test command, and print the CPU seconds of its processes by kind.

    python -m tests.support.part NAME python -m pytest ...

pytest counts a process in the test that waits for its end. Spark's JVM ends after the process that started
it, and a JVM that serves many tests counts for the last one. This process adopts every process whose parent
has ended, so that the processor time of its children is that of all. Samples of /proc divide it into kinds;
the last line counts what began and ended between two samples.

`[tool.lastword.cpu]` in pyproject.toml has a budget for each part. Nothing fails, because machines differ.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.support.cpu import budgets

ROOT = Path(__file__).parents[2]
PROC = Path("/proc")
SAMPLE_SECONDS = 0.5
ORPHAN_SECONDS = 30
"""How long processes may outlive pytest. Those that do are not waited for."""
ADOPT = 36
"""PR_SET_CHILD_SUBREAPER of prctl: orphans among the descendants become children of this process."""
KINDS = {
    "brokers of Kafka": r"\b(kafka\.Kafka|Brokers)\b",
    "other JVMs of Kafka": r"java .*/kafka-\d",
    "JVMs of Spark": r"\borg\.apache\.spark\.",
    "other JVMs": r"java ",
    "Python of Spark": r" -m pyspark\.",
    "pytest": r" -m pytest ",
    "other programs": r"",
}
"""A pattern for each kind, in its command line; the first that is found counts."""


class Process(NamedTuple):
    """A process in a sample."""

    number: int
    parent: int
    began: int
    """Ticks since the machine started: with the number, the identity of the process."""
    ticks: int
    """Its own processor time."""


def processes() -> Iterator[Process]:
    """Yield all processes of the machine."""
    for path in PROC.iterdir():
        if path.name.isdecimal():
            with suppress(OSError):  # it has ended
                words = (path / "stat").read_text().rpartition(")")[2].split()
                yield Process(int(path.name), int(words[1]), int(words[19]), int(words[11]) + int(words[12]))


def descendants(of: int, found: list[Process]) -> list[Process]:
    """Return the processes that `of` has started, directly or not."""
    family, chosen = {of}, []
    for process in sorted(found, key=lambda process: (process.began, process.number)):
        if process.parent in family:
            family.add(process.number)
            chosen.append(process)
    return chosen


def kind_of(command: str) -> str:
    """Return the kind of a process from its command line, with spaces between the words."""
    return next(kind for kind, pattern in KINDS.items() if re.search(pattern, command))


class Samples:
    """The processor time of the descendants of this process, by process."""

    def __init__(self) -> None:
        self._ticks: dict[tuple[int, int], tuple[str, int]] = {}

    def take(self) -> None:
        for process in descendants(os.getpid(), list(processes())):
            with suppress(OSError):
                command = (PROC / str(process.number) / "cmdline").read_bytes().replace(b"\0", b" ")
                if command:  # empty for a process that has ended
                    key = process.number, process.began
                    self._ticks[key] = kind_of(command.decode(errors="replace")), process.ticks

    def seconds(self) -> tuple[Counter[str], Counter[str]]:
        """Return CPU seconds and the number of processes of each kind."""
        seconds, counts = Counter[str](), Counter[str]()
        for kind, ticks in self._ticks.values():
            seconds[kind] += ticks / os.sysconf("SC_CLK_TCK")
            counts[kind] += 1
        return seconds, counts


def run(command: list[str]) -> tuple[int, Samples]:
    """Run a command; return its exit code when its descendants have ended, and the samples."""
    if ctypes.CDLL(None, use_errno=True).prctl(ADOPT, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    samples, code, end = Samples(), 1, float("inf")
    child = os.posix_spawnp(command[0], command, os.environ)
    signal.signal(signal.SIGINT, lambda number, frame: None)  # the terminal sends it to the child, too
    signal.signal(signal.SIGTERM, lambda number, frame: os.kill(child, number))
    while time.monotonic() < end:
        samples.take()
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == child:
                    code, end = os.waitstatus_to_exitcode(ended[1]), time.monotonic() + ORPHAN_SECONDS
        except ChildProcessError:
            break
        time.sleep(SAMPLE_SECONDS)
    return code, samples


def lines(part: str, total: float, samples: Samples, budget: float | None) -> list[str]:
    """Return the table of a part; `total` is the processor time of all its processes."""
    seconds, counts = samples.seconds()
    row = f"CPU seconds of {part}: {total:.0f}"
    if budget is not None:
        row += f"  budget {budget:.0f}{'  ABOVE' if total > budget else ''}"
    table = [row]
    for kind, amount in seconds.most_common():
        table.append(f"  {kind:<24} {amount:8.1f}  {counts[kind]:6,} processes")
    table.append(f"  {'between two samples':<24} {max(0.0, total - sum(seconds.values())):8.1f}")
    return table


def main(part: str, *command: str) -> int:
    if sys.platform != "linux":
        return subprocess.run(command).returncode
    code, samples = run(list(command))
    # A process that ignores the end of its children loses their time, as Spark's Python daemon does.
    total = max(sum(os.times()[2:4]), sum(samples.seconds()[0].values()))
    print("\n".join(lines(part, total, samples, budgets(ROOT / "pyproject.toml").get(part))), flush=True)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
