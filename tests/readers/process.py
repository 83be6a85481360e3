"""Run readers in their own process, beside a writer on a real directory.

Both processes record the system's monotonic clock, which is the same for all processes. These times replace
the versions; the judge is that of `judge.py`.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lastword.files import OsFiles
from tests.readers.history import TOPIC, Writer, steps_of, writer_of
from tests.readers.judge import Row, Violation, Window

PAUSE_SECONDS = 0.01  # between two calls of the writer, so that the log stays small
READER = """
import itertools, json, random, sys, time
import lastword
directory, topic, seed, settings = sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
rng = random.Random(seed)
raw = dict(key_serializer="bytes", value_serializer="bytes")
text = lambda data: None if data is None else data.decode("latin-1")
out = open(sys.argv[5], "w")
kinds = ("log", "newest", "changes", "get", "state", "arrow", "follow", "verify")
keys = [b"k%d" % n for n in range(20)]
kept = lastword.open(directory, **settings).topic(topic, **raw)
for number in itertools.count():
    if number == len(kinds):  # warm
        print("ready", flush=True)
    kind = kinds[number] if number < len(kinds) else rng.choice(kinds)
    begin, rows, error = time.monotonic_ns(), [], None
    try:
        with lastword.open(directory, **settings) as logs:
            if kind == "verify":
                rows = [[0, 0, str(problem), None] for problem in logs.verify(topic).problems]
            elif kind == "get":
                found = kept.get_records(keys).values()
                rows = [[0, r.offset, text(r.key), text(r.value)] for r in found]
            elif kind == "state":
                rows = [[0, 0, text(key), text(value)] for key, value in logs.state(topic, **raw).items()]
            elif kind == "arrow":
                names = ("partition", "offset", "key", "value")
                for batch in logs.topic(topic, **raw).read().arrow():
                    columns = (batch.column(name).to_pylist() for name in names)
                    rows += [[p, o, text(k), text(v)] for p, o, k, v in zip(*columns)]
            else:
                more = dict(follow=True, timeout=0) if kind == "follow" else {}
                view = "log" if kind == "follow" else kind
                for record in logs.topic(topic, **raw).read(view=view, **more):
                    rows.append([record.partition, record.offset, text(record.key), text(record.value)])
    except Exception as raised:
        error = [type(raised).__name__, str(raised)]
    print(json.dumps([kind, begin, time.monotonic_ns(), rows, error]), flush=True, file=out)
"""


class TimedFiles(OsFiles):
    """The system's files, with the time as version."""

    def __init__(self, clock: object, *, reuse: bool = False) -> None:
        super().__init__()

    @property
    def version(self) -> int:
        return time.monotonic_ns()

    def between_calls(self) -> None:
        pass


def _data(text: str | None) -> bytes | None:
    return None if text is None else text.encode("latin-1")


class Process:
    """A process with one reader; `reads` has the reads that it reported."""

    def __init__(self, directory: Path, seed: int, settings: dict[str, Any]) -> None:
        self._told = directory.parent / f"reads-{seed}"
        given = [str(directory), TOPIC, str(seed), json.dumps(settings), str(self._told)]
        command = [sys.executable, "-c", READER, *given]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None and self._process.stdout.readline() == "ready\n"
        self.reads: list[list[Any]] = []

    def stop(self) -> None:
        self._process.terminate()
        self._process.communicate(timeout=30)
        lines = self._told.read_text().splitlines()
        self.reads = [json.loads(line) for line in lines if line.endswith("]")]


def judge(writer: Writer, reads: list[list[Any]]) -> list[str]:
    """Return a text for each read that is not allowed at any moment."""
    wrong = []
    partition = writer.history.partitions[0]
    for kind, begin, end, rows, error in reads:
        window = Window(partition, begin, end)
        try:
            if error is not None:
                if error[0] != "OffsetOutOfRangeError" or len(window.log_starts) == 1:
                    raise Violation(*error)
            elif kind == "verify":
                if rows:
                    raise Violation("false alarm", rows[0][2])
            elif kind == "state":
                shown = {_data(key): _data(value) for _, _, key, value in rows}
                window.check_moment(shown, tombstones=False, values=True, is_state=True)  # type: ignore[arg-type]
            elif kind in ("newest", "changes", "get"):
                newest = {_data(key): offset for _, offset, key, _ in rows}
                window.check_moment(newest, tombstones=kind == "changes")  # type: ignore[arg-type]
            else:
                window.check_log([Row(offset, _data(key), _data(value)) for _, offset, key, value in rows])
        except Violation as violation:
            wrong.append(f"{kind}: {violation}")
    return wrong


@contextmanager
def writing(directory: Path, seed: int) -> Iterator[tuple[Writer, Callable[[int], None]]]:
    """Yield a writer on a real directory, and a function that makes a number of random calls."""
    rng = random.Random(seed)
    writer = writer_of(rng, seed, TimedFiles, str(directory), may_expire=False)  # readers have another time
    with writer.watched():
        writer.begin(rng)
        try:
            yield (
                writer,
                lambda steps: steps_of(writer, rng, steps, without=("reopen", "recreate", "truncate")),
            )
        finally:
            assert writer.logs is not None
            writer.logs.close()


def run(directory: Path, seed: int, seconds: float, readers: int = 1) -> tuple[int, list[str]]:
    """Run a writer for `seconds` beside readers; return the number of reads and the violations."""
    with writing(directory, seed) as (writer, work):
        processes = [Process(directory, seed + n, writer.settings) for n in range(readers)]
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            work(1)
            time.sleep(PAUSE_SECONDS)
        for process in processes:
            process.stop()
    reads = [read for process in processes for read in process.reads]
    return len(reads), judge(writer, reads)
