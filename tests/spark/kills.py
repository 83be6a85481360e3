"""Kill drivers by SIGKILL at every step, and check that each record is there once: `make kills-spark N=50`.

A driver's part of the work is Python and needs no JVM. In the sink, the process beside Spark's driver
stages and commits a micro-batch. In the distributed clean, the driver chooses, shares out and swaps.
Here this part runs in a fork whose storage sends SIGKILL to its own process before the n-th change, or in
the middle of that change. Then the fork is started again, as Spark or its user would do, and the result
must equal that of an undisturbed run. `--whole` kills whole Spark drivers with their JVMs at random moments.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import lastword
from lastword.files import OsFiles
from lastword.files.real import OsHandle
from lastword.ingest.apply import Watch, open_to_append
from tests.spark.conftest import append, create, numbered

HERE = Path(__file__).parent
BATCHES = 3
ROWS = 20
WEEKS_MS = 40 * 24 * 3600 * 1000

FILE_CHANGES = ("open_append", "mkdir", "rmdir", "rename", "unlink", "truncate", "fsync_dir")
HANDLE_CHANGES = ("append", "pwrite", "truncate", "fsync")


def die_at(number: int, torn: bool) -> None:
    """Let the storage kill this process before its change of this number, counted from 1.

    `torn`: if the change is an append, write half of its bytes first.
    """
    done = 0

    def guarded(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *given: Any, **named: Any) -> Any:
            nonlocal done
            done += 1
            if done == number:
                if torn and name == "append":
                    real(self, bytes(given[0])[: len(given[0]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(self, *given, **named)

        return call

    for kind, names in ((OsFiles, FILE_CHANGES), (OsHandle, HANDLE_CHANGES)):
        for name in names:
            setattr(kind, name, guarded(name, getattr(kind, name)))


def forked(work: Callable[[], None], kill_at: int | None = None, torn: bool = False) -> int:
    """Fork; return the process id of the child, which runs `work` or dies at change `kill_at`."""
    child = os.fork()
    if child:
        return child
    try:
        if kill_at is not None:
            die_at(kill_at, torn)
        work()
        os._exit(0)
    except BaseException:
        import traceback

        traceback.print_exc()
    os._exit(1)


def killed(child: int) -> bool:
    """Wait for the child's end; return whether SIGKILL ended it. Any other failure fails the test."""
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the driver failed"
    return False


# ---------------------------------------------------------------- the sink's driver


class Context:
    """The properties that Spark gives a task of a streaming query."""

    def __init__(self, batch: int, task: int, attempt: int) -> None:
        self.said = {"sql.streaming.queryId": "q", "streaming.sql.batchId": str(batch)}
        self.task, self.attempt = task, attempt

    def partitionId(self) -> int:
        return self.task

    def taskAttemptId(self) -> int:
        return self.attempt

    def getLocalProperty(self, name: str) -> str:
        return self.said[name]


def rows_of(batch: int, task: int) -> list[tuple[bytes, bytes]]:
    return [(b"key-%d" % (n % 7), b"%d/%d/%d" % (batch, task, n)) for n in range(ROWS)]


def drive(root: Path, notes: Path) -> None:
    """Run a streaming query's driver: commit the batches that its notes lack.

    Two tasks stage each batch, one of them with two attempts.
    """
    from pyspark import TaskContext

    from lastword.spark.options import parse_write
    from lastword.spark.schema import SINK_SCHEMA, sink_columns
    from lastword.spark.write import LogStreamWriter, prepare

    for batch in range(int(notes.read_text()) if notes.exists() else 0, BATCHES):
        options = parse_write({"path": str(root), "topic": "t", "committimeout": "60s"}, stream=True)
        writer = LogStreamWriter(prepare(options, sink_columns(SINK_SCHEMA), stream=True))
        messages = []
        for task, attempt in ((0, 0), (1, 1), (1, 2)):
            TaskContext._taskContext = Context(batch, task, attempt)  # type: ignore[assignment]
            keys, values = zip(*rows_of(batch, task), strict=True)
            frame = pa.record_batch(
                [pa.array(keys, pa.binary()), pa.array(values, pa.binary())], ["key", "value"]
            )
            messages.append(writer.write(iter([frame])))
        writer.commit(messages[::2], batch)  # the attempt in the middle was not the one that Spark accepted
        notes.with_suffix(".new").write_text(str(batch + 1))
        notes.with_suffix(".new").replace(notes)


def hold(root: Path, ready: int) -> None:
    """Open the directory to append in another process, which takes commits in."""
    with open_to_append(str(root)) as directory:
        watch = Watch(directory, every_seconds=0.005)
        os.write(ready, b"1")
        time.sleep(60)
        watch.close()


def one_sink_kill(home: Path, kill_at: int, who: str, torn: bool) -> bool:
    """Run one query of BATCHES batches with a kill at change `kill_at`; return whether a process died.

    `who` names the process that is killed. `driver beside` is a driver while another process holds the
    lock; `holder` is that other process.
    """
    root, notes = home / "data", home / "notes"
    # In every second run, a task stages more than a segment's size, which becomes a segment.
    create(root, "t", 2, segment_bytes="4KiB" if kill_at % 2 else "1GiB")
    holder = None
    if who != "driver":
        reading, writing = os.pipe()
        holder = forked(lambda: hold(root, writing), kill_at + 12 if who == "holder" else None, torn)
        os.close(writing)
        os.read(reading, 1)
        os.close(reading)
    died = killed(forked(lambda: drive(root, notes), None if who == "holder" else kill_at, torn))
    if who != "holder":
        assert not killed(forked(lambda: drive(root, notes)))  # Spark starts the query again
    if holder is not None:
        if not os.waitpid(holder, os.WNOHANG)[0]:
            os.kill(holder, signal.SIGKILL)
            os.waitpid(holder, 0)
        elif who == "holder":
            died = True
    open_to_append(str(root)).close()  # finishes a commit that had begun
    expected = [row for batch in range(BATCHES) for task in (0, 1) for row in rows_of(batch, task)]
    with lastword.open(root) as logs:
        records = [(r.key, r.value) for r in logs.topic("t").read()]
        assert logs.verify().ok
    assert sorted(records) == sorted(expected), "not once"
    for key in {key for key, _ in expected}:
        assert [v for k, v in records if k == key] == [v for k, v in expected if k == key], "not in order"
    left = nothing_is_left(root)
    assert not left, f"left behind for ever: {left}"
    return died


def nothing_is_left(root: Path) -> list[str]:
    """Return what dead drivers left, after all files got weeks old and one more commit was taken in."""
    then = time.time() - WEEKS_MS / 1000
    for path in [*root.glob("lastword.*"), *root.glob("t-*/lastword/**/*")]:
        os.utime(path, (then, then))
    notes = root.parent / "more"
    global BATCHES
    usual, BATCHES = BATCHES, BATCHES + 1
    try:
        notes.write_text(str(usual))
        assert not killed(forked(lambda: drive(root, notes)))
    finally:
        BATCHES = usual
    return [
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.name.startswith(
            (
                "staging-",
                "open-",
                "lastword.staged",
                "lastword.begun",
                "lastword.committed",
                "lastword.inbox",
                "lastword.applying",
                "lastword.refused",
            )
        )
        or path.name.endswith(".tmp")
    ]


# ---------------------------------------------------------------- the clean's driver


def clean_here(root: Path, task_bytes: int) -> None:
    """Run `lastword.spark.clean` with its tasks one after the other in this process."""
    import pickle

    import lastword.spark.schema
    import lastword.spark.tasks

    def here(spark: Any, function: Any, values: Any) -> Iterator[tuple[int, Any]]:
        for number, given in enumerate(values):
            step, value = pickle.loads(pickle.dumps((function, given)))
            yield number, pickle.loads(pickle.dumps(step(value)))

    lastword.spark.tasks.results_as_completed = here
    lastword.spark.tasks.described = lambda spark, text: contextlib.nullcontext()
    lastword.spark.schema.frame_of = lambda spark, kind, values: values
    lastword.spark.clean(None, str(root), "t", task_bytes=task_bytes)


def make_log(home: Path) -> Path:
    root = home / "data"
    create(root, "t", 2, segment_bytes="4KiB", index_interval_bytes=200)
    for partition in range(2):
        append(root, "t", partition, [numbered(n, 20, 30) for n in range(0, 300, 20)])
    return root


def records(root: Path) -> list[tuple[Any, ...]]:
    with lastword.open(root) as logs:
        topic_records = logs.topic("t").read()
        return [(r.partition, r.offset, r.key, r.value, r.timestamp) for r in topic_records]


def files_of(root: Path) -> set[str]:
    """Return the file names without the parts that differ from run to run."""
    return {
        str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and ".log" not in path.name
    }


def one_clean_kill(
    home: Path, template: Path, expected: Path, kill_at: int, task_bytes: int, torn: bool
) -> bool:
    root = Path(shutil.copytree(template, home / "data"))
    died = killed(forked(lambda: clean_here(root, task_bytes), kill_at, torn))
    newest = {(p, k): v for p, _, k, v, _ in records(expected) if v is not None}
    now = {(p, k): v for p, _, k, v, _ in records(root)}
    assert {place: value for place, value in now.items() if value is not None} == newest, "read after a kill"
    assert not killed(forked(lambda: clean_here(root, task_bytes)))
    assert records(root) == records(expected), "not what an undisturbed cleaning leaves"
    with lastword.open(root) as logs:
        problems = logs.verify().problems
        assert not problems, problems
    assert not (extra := files_of(root) - files_of(expected)), extra
    return died


# ---------------------------------------------------------------- whole drivers


def one_whole_run(home: Path, kills: int, rng: random.Random) -> int:
    """Run a Spark driver that writes and cleans in turn; kill it and its JVM `kills` times; let it finish."""
    root, notes = home / "data", home / "notes"
    create(root, "t", 2, segment_bytes="8KiB")
    command = [sys.executable, str(HERE / "kills_driver.py"), str(root), str(notes)]
    died = 0
    for number in range(kills + 1):
        with (home / "errors").open("w") as errors:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
            )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", (home / "errors").read_text()[-3000:]
        if number < kills:
            time.sleep(rng.uniform(0.0, 6.0))
            os.killpg(process.pid, signal.SIGKILL)
            died += process.wait() == -signal.SIGKILL
        else:
            assert process.wait() == 0, (home / "errors").read_text()[-3000:]
    from tests.spark.kills_driver import BATCHES as WHOLE
    from tests.spark.kills_driver import pairs

    newest = {key: value for batch in range(WHOLE) for key, value in pairs(batch)}
    with lastword.open(root) as logs:
        records = list(logs.topic("t").read())
        assert {r.key.decode(): r.value.decode() for r in records} == newest
        assert len(records) == len({r.key for r in records}), "cleaned to one record a key"
        ends = sum(info.log_end for info in logs.topic("t").describe())
        assert ends == sum(len(pairs(batch)) for batch in range(WHOLE)), "each record took one offset"
        assert logs.verify().ok
    return died


def run(home: Path, kills: int, whole: int, seed: int, say: Callable[[str], None] = print) -> dict[str, int]:
    """Kill at `kills` steps, spread over all, and kill `whole` whole drivers; return the count by kind."""
    from lastword.kernels.warming import warm

    warm()
    rng = random.Random(seed)
    template = make_log(home / "template")
    expected = {}
    for task_bytes in (1 << 30, 1):
        expected[task_bytes] = Path(shutil.copytree(template, home / f"expected-{task_bytes}"))
        assert not killed(forked(lambda at=task_bytes: clean_here(expected[at], at)))
    assert records(expected[1]) == records(expected[1 << 30])
    kinds: list[tuple[str, Callable[[Path, int, bool], bool]]] = [
        (f"sink, {who}", lambda at, n, torn, who=who: one_sink_kill(at, n, who, torn))
        for who in ("driver", "driver beside", "holder")
    ]
    kinds += [
        (name, lambda at, n, torn, size=size: one_clean_kill(at, template, expected[size], n, size, torn))
        for name, size in (("clean, a task a partition", 1 << 30), ("clean, shared out", 1))
    ]
    steps = {name: steps_of(home, name, template) for name, _ in kinds}
    counts = dict.fromkeys(steps, 0)
    rng_start = rng.random()
    tries = 0
    while sum(counts.values()) < kills:
        name, kill_once = kinds[tries % len(kinds)]
        place = Path(tempfile.mkdtemp(dir=home))
        spread = (rng_start + tries // len(kinds) * 0.618034) % 1  # spread evenly, for any number of kills
        kill_at = 1 + int(spread * steps[name])
        tries += 1
        try:
            if kill_once(place, kill_at, rng.random() < 0.5):
                counts[name] += 1
            else:
                steps[name] = min(steps[name], kill_at - 1)  # fewer changes than undisturbed
        except BaseException:
            say(f"{name}: killed at change {kill_at} of {steps[name]}; its directory is {place}")
            raise
        shutil.rmtree(place)
    if whole:
        (home / "whole").mkdir()
        counts["whole drivers"] = one_whole_run(home / "whole", whole, rng)
    for name, count in counts.items():
        say(f"{name}: {count} kills, over {steps.get(name, 0) or 'random moments of'} changes of the storage")
    return counts


def steps_of(home: Path, name: str, template: Path) -> int:
    """Return how many changes the storage makes in an undisturbed run."""
    place = Path(tempfile.mkdtemp(dir=home))
    if name.startswith("clean"):
        root = Path(shutil.copytree(template, place / "data"))
        work = lambda: clean_here(root, 1 if name.endswith("out") else 1 << 30)  # noqa: E731
    else:
        create(place / "data", "t", 2)
        work = lambda: drive(place / "data", place / "notes")  # noqa: E731

    def counted() -> None:
        seen = 0
        for kind, names in ((OsFiles, FILE_CHANGES), (OsHandle, HANDLE_CHANGES)):
            for method in names:
                real = getattr(kind, method)

                def call(*given: Any, _real: Any = real, **named: Any) -> Any:
                    nonlocal seen
                    seen += 1
                    return _real(*given, **named)

                setattr(kind, method, call)
        work()
        (place / "steps").write_text(str(seen))

    assert not killed(forked(counted))
    steps = int((place / "steps").read_text())
    shutil.rmtree(place)
    return steps


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--whole", type=int, help="of whole drivers; a tenth of the others if not given")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    started = time.monotonic()
    home = Path(tempfile.mkdtemp(prefix="lastword-kills-spark-"))
    whole = given.kills // 10 if given.whole is None else given.whole
    counts = run(home, given.kills, whole, given.seed)
    shutil.rmtree(home)
    print(f"{sum(counts.values())} kills, each time every record once; {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
