"""Kill drivers by SIGKILL at every step, and check that each record is there once: `make kills-spark N=50`.

A driver's part of the work is Python and needs no JVM. In the sink, the process beside Spark's driver
stages and commits a micro-batch. In the distributed clean, the driver chooses, shares out and swaps.
Here this part runs in a fork whose storage sends SIGKILL to its own process before the n-th change, or in
the middle of that change. Then the fork is started again, as Spark or its user would do, and the result
must equal that of an undisturbed run. `--whole` kills whole Spark drivers with their JVMs at random moments.

With a log in a bucket SIGKILL comes before the n-th request, or after its effect. This process sends no
request itself, because a fork of a process that has sent requests cannot send any.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

import lastword
from lastword.config import topic_file
from lastword.files import OsFiles
from lastword.files.real import OsHandle
from lastword.ingest.apply import Watch, open_to_append
from lastword.objects.remote import RemoteStore
from lastword.segment.names import JOB_PREFIX, PRIVATE
from lastword.spark.options import StorageOptions
from tests.spark.conftest import append, create, numbered
from tests.support import stores
from tests.support.stores import Server

HERE = Path(__file__).parent
BATCHES = 3
ROWS = 20
WEEKS_MS = 40 * 24 * 3600 * 1000

REQUESTS = ("get", "get_range", "put", "put_file", "create", "swap", "facts", "delete")
FILE_CHANGES = ("open_append", "mkdir", "rmdir", "rename", "unlink", "truncate", "fsync_dir")
HANDLE_CHANGES = ("append", "pwrite", "truncate", "fsync")


Guard = Callable[[str, Callable[[], Any]], None]
"""Called before each change or request, with its name and a function that begins it."""


def guard_files(guard: Guard) -> None:
    """Call `guard` before each change of the storage by this process. An append is begun by half of it."""
    for kind, names in ((OsFiles, FILE_CHANGES), (OsHandle, HANDLE_CHANGES)):
        for name in names:
            _guard(kind, name, guard, lambda given: (bytes(given[0])[: len(given[0]) // 2],))


def guard_requests(guard: Guard) -> None:
    """Call `guard` before each request of this process to a store. A request is begun by all of it."""
    for name in REQUESTS:
        _guard(RemoteStore, name, guard, lambda given: given)


def _guard(kind: type, name: str, guard: Guard, begun: Callable[[Any], Any]) -> None:
    real = getattr(kind, name)

    def call(self: Any, *given: Any, **named: Any) -> Any:
        guard(name, lambda: real(self, *begun(given), **named))
        return real(self, *given, **named)

    setattr(kind, name, call)


def die_at(number: int, torn: bool) -> Guard:
    """Return a guard that kills this process before its change or request of this number, counted from 1.

    `torn`: if that is an append or a request, begin it first.
    """
    numbers = itertools.count(1)

    def guard(name: str, begin: Callable[[], Any]) -> None:
        if next(numbers) == number:
            try:
                if torn and name in ("append", *REQUESTS):
                    begin()
            finally:  # also if the store refuses the request
                os.kill(os.getpid(), signal.SIGKILL)

    return guard


def forked(
    work: Callable[[], None],
    kill_at: int | None = None,
    torn: bool = False,
    guarded: Callable[[Guard], None] = guard_files,
) -> int:
    """Fork; return the process id of the child, which runs `work` or dies at change `kill_at`."""
    child = os.fork()
    if child:
        return child
    try:
        if kill_at is not None:
            guarded(die_at(kill_at, torn))
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


def drive(log: Path | str, notes: Path, **store: str) -> None:
    """Run a streaming query's driver: commit the batches that its notes lack.

    Two tasks stage each batch, one of them with two attempts. As in Spark the commit has another writer.
    """
    from pyspark import TaskContext

    from lastword.spark.options import parse_write
    from lastword.spark.schema import SINK_SCHEMA, sink_columns
    from lastword.spark.write import LogStreamWriter, prepare

    for batch in range(int(notes.read_text()) if notes.exists() else 0, BATCHES):
        given = {"path": str(log), "topic": "t", "committimeout": "60s", **store}
        writer, committer = (
            LogStreamWriter(
                prepare(
                    parse_write(given, stream=True), sink_columns(SINK_SCHEMA), stream=True, query=str(notes)
                )
            )
            for _ in range(2)
        )
        messages = []
        for task, attempt in ((0, 0), (1, 1), (1, 2)):
            TaskContext._taskContext = Context(batch, task, attempt)  # type: ignore[assignment]
            keys, values = zip(*rows_of(batch, task), strict=True)
            frame = pa.record_batch(
                [pa.array(keys, pa.binary()), pa.array(values, pa.binary())], ["key", "value"]
            )
            messages.append(writer.write(iter([frame])))
        committer.commit(
            messages[::2], batch
        )  # the attempt in the middle was not the one that Spark accepted
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
    with lastword.open(root) as logs:
        check_once(logs)
    left = nothing_is_left(root)
    assert not left, f"left behind for ever: {left}"
    return died


def check_once(logs: Any) -> None:
    expected = [row for batch in range(BATCHES) for task in (0, 1) for row in rows_of(batch, task)]
    records = [(r.key, r.value) for r in logs.topic("t").read()]
    assert logs.verify().ok
    assert sorted(records) == sorted(expected), "not once"
    for key in {key for key, _ in expected}:
        assert [v for k, v in records if k == key] == [v for k, v in expected if k == key], "not in order"


def one_sink_kill_in_bucket(home: Path, server: Server, kill_at: int, after: bool) -> bool:
    """As `one_sink_kill`, over a log in a bucket. `after`: the request of the kill takes effect."""
    url, notes = f"{server.root}/{home.name}", home / "notes"
    store = StorageOptions(tuple(server.options.items())).named()

    def check() -> None:
        with open_bucket(url, server, "a") as logs:
            check_once(logs)
            version = logs.dirs.newest
            root = set(version.children("")) - {topic_file("", "t")}
            left = [name for name in root if not name.startswith("t-") and "." in name[9:]]
            assert not version.manifest.uploads and not left, left
            for _ in range(4):  # the list of one collection waits in the next
                collection = logs.collect(retention=0)
                if not collection.waiting_objects:
                    break
            assert collection.named_objects and not collection.waiting_objects, collection

    assert not killed(forked(lambda: make_in_bucket(url, server)))
    work = partial(drive, url, notes, **store)
    died = killed(forked(work, kill_at, after, guard_requests))
    assert not killed(forked(work))  # Spark starts the query again
    assert not killed(forked(check))
    return died


def make_in_bucket(url: str, server: Server) -> None:
    with open_bucket(url, server, "a") as logs:
        logs.create_topic("t", partitions=2, cleanup_policy="compact", segment_bytes="4KiB")


def open_bucket(url: str, server: Server, mode: Any = "r") -> Any:
    return lastword.open(url, mode, storage_options=server.options, log_cleaner_enable=False)


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


def clean_here(log: Path | str, task_bytes: int, storage_options: Mapping[str, str] | None = None) -> None:
    """Run `lastword.spark.clean` with its tasks one after the other in this process."""
    import pickle

    from lastword.spark import clean_tasks, cleaning, tasks

    def here(spark: Any, function: Any, values: Any) -> Iterator[tuple[int, Any]]:
        for number, given in enumerate(values):
            step, value = pickle.loads(pickle.dumps((function, given)))
            yield number, pickle.loads(pickle.dumps(step(value)))

    modules: tuple[Any, ...] = (cleaning, clean_tasks, tasks)
    for module in modules:
        module.results_as_completed = here
        module.described = lambda spark, text: contextlib.nullcontext()
    modules[0].frame_of = lambda spark, kind, values: values
    lastword.spark.clean(None, str(log), "t", task_bytes=task_bytes, storage_options=storage_options)


def make_log(home: Path) -> Path:
    root = home / "data"
    create(root, "t", 2, segment_bytes="4KiB", index_interval_bytes=200)
    for partition in range(2):
        append(root, "t", partition, [numbered(n, 20, 30) for n in range(0, 300, 20)])
    return root


def records(log: Path | str, storage_options: Mapping[str, str] | None = None) -> list[tuple[Any, ...]]:
    with lastword.open(log, storage_options=storage_options) as logs:
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
    assert newest_values(records(root)) == newest_values(records(expected)), "read after a kill"
    assert not killed(forked(lambda: clean_here(root, task_bytes)))
    assert records(root) == records(expected), "not what an undisturbed cleaning leaves"
    with lastword.open(root) as logs:
        problems = logs.verify().problems
        assert not problems, problems
    assert not (extra := files_of(root) - files_of(expected)), extra
    return died


def newest_values(records: list[tuple[Any, ...]]) -> dict[Any, Any]:
    newest = {(partition, key): value for partition, _, key, value, _ in records}
    return {place: value for place, value in newest.items() if value is not None}


def one_clean_kill_in_bucket(
    home: Path, server: Server, template: Path, expected: Path, kill_at: int, after: bool, task_bytes: int
) -> bool:
    """As `one_clean_kill`, over a log in a bucket. `after`: the request of the kill takes effect."""
    url, options = f"{server.root}/{home.name}", server.options

    def check_newest() -> None:
        assert newest_values(records(url, options)) == newest_values(records(expected)), "read after a kill"

    def check() -> None:
        assert records(url, options) == records(expected), "not what an undisturbed cleaning leaves"
        with open_bucket(url, server) as logs:
            assert logs.verify().ok
            version = logs.dirs.newest
            jobs = [path for path, _ in version.files() if f"/{PRIVATE}/{JOB_PREFIX}" in path]
            assert not version.manifest.uploads and not jobs, jobs

    assert not killed(forked(lambda: lastword.copy(template, url, storage_options=options)))
    work = partial(clean_here, url, task_bytes, options)
    died = killed(forked(work, kill_at, after, guard_requests))
    for step in (check_newest, work, check):
        assert not killed(forked(step))
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

    def sink(who: str) -> Kind:
        def undisturbed(place: Path) -> Callable[[], None]:
            create(place / "data", "t", 2)
            return lambda: drive(place / "data", place / "notes")

        return Kind(undisturbed, lambda place, at, torn: one_sink_kill(place, at, who, torn))

    def clean(task_bytes: int) -> Kind:
        def undisturbed(place: Path) -> Callable[[], None]:
            root = Path(shutil.copytree(template, place / "data"))
            return lambda: clean_here(root, task_bytes)

        return Kind(
            undisturbed,
            lambda place, at, torn: one_clean_kill(
                place, template, expected[task_bytes], at, task_bytes, torn
            ),
        )

    kinds = {f"sink, {who}": sink(who) for who in ("driver", "driver beside", "holder")}
    kinds |= {"clean, a task a partition": clean(1 << 30), "clean, shared out": clean(1)}
    counts = kill_everywhere(home, kinds, kills, rng, say)
    if whole:
        (home / "whole").mkdir()
        counts["whole drivers"] = one_whole_run(home / "whole", whole, rng)
        say(f"whole drivers: {counts['whole drivers']} kills, at random moments")
    return counts


def run_in_bucket(
    home: Path, server: Server, kills: int, seed: int, say: Callable[[str], None] = print
) -> dict[str, int]:
    """Kill at `kills` requests, spread over all; return the count by kind. This process sends none itself."""
    from lastword.kernels.warming import warm

    warm()
    global ROWS
    ROWS = 200  # files of more than 1 KiB: a smaller one is in the manifest
    template = make_log(home / "template")
    expected = Path(shutil.copytree(template, home / "expected"))
    assert not killed(forked(lambda: clean_here(expected, 1 << 30)))

    def undisturbed_sink(place: Path) -> Callable[[], None]:
        store = StorageOptions(tuple(server.options.items())).named()
        make = lambda: make_in_bucket(f"{server.root}/{place.name}", server)  # noqa: E731
        assert not killed(forked(make))
        return lambda: drive(f"{server.root}/{place.name}", place / "notes", **store)

    def clean(task_bytes: int) -> Kind:
        def undisturbed(place: Path) -> Callable[[], None]:
            url, options = f"{server.root}/{place.name}", server.options
            assert not killed(forked(lambda: lastword.copy(template, url, storage_options=options)))
            return lambda: clean_here(url, task_bytes, options)

        return Kind(
            undisturbed,
            lambda place, at, after: one_clean_kill_in_bucket(
                place, server, template, expected, at, after, task_bytes
            ),
            guard_requests,
        )

    kinds = {
        "sink in a bucket": Kind(
            undisturbed_sink,
            lambda place, at, after: one_sink_kill_in_bucket(place, server, at, after),
            guard_requests,
        ),
        "clean in a bucket": clean(1 << 30),
        "clean in a bucket, shared out": clean(1),
    }
    return kill_everywhere(home, kinds, kills, random.Random(seed), say)


class Kind(NamedTuple):
    """A part of a driver's work.

    Attributes:
        undisturbed: Prepares a directory and returns the work.
        kill_once: Runs the work in a directory with a kill at a change, which is begun first if wanted.
        guarded: Guards the changes.
    """

    undisturbed: Callable[[Path], Callable[[], None]]
    kill_once: Callable[[Path, int, bool], bool]
    guarded: Callable[[Guard], None] = guard_files


def kill_everywhere(
    home: Path, kinds: Mapping[str, Kind], kills: int, rng: random.Random, say: Callable[[str], None]
) -> dict[str, int]:
    """Kill at `kills` changes, spread over all of each kind; return the count by kind."""
    steps: dict[str, int] = {}
    counts = dict.fromkeys(kinds, 0)
    rng_start = rng.random()
    tries = 0
    while sum(counts.values()) < kills:
        name = list(kinds)[tries % len(kinds)]
        if name not in steps:
            steps[name] = steps_of(home, kinds[name])
        place = Path(tempfile.mkdtemp(dir=home))
        spread = (rng_start + tries // len(kinds) * 0.618034) % 1  # spread evenly, for any number of kills
        kill_at = 1 + int(spread * steps[name])
        tries += 1
        try:
            if kinds[name].kill_once(place, kill_at, rng.random() < 0.5):
                counts[name] += 1
            else:
                steps[name] = min(steps[name], kill_at - 1)  # fewer changes than undisturbed
        except BaseException:
            say(f"{name}: killed at change {kill_at} of {steps[name]}; its directory is {place}")
            raise
        shutil.rmtree(place)
    for name, count in counts.items():
        say(f"{name}: {count} kills, over {steps.get(name, 0)} changes of the storage")
    return counts


def steps_of(home: Path, kind: Kind) -> int:
    """Return how many changes the storage makes in an undisturbed run."""
    place = Path(tempfile.mkdtemp(dir=home))
    work = kind.undisturbed(place)

    def counted() -> None:
        names: list[str] = []
        kind.guarded(lambda name, begin: names.append(name))
        work()
        (place / "steps").write_text(str(len(names)))

    assert not killed(forked(counted))
    steps = int((place / "steps").read_text())
    shutil.rmtree(place)
    return steps


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument(
        "--bucket", type=int, help="over a log in a bucket; as many as the others if not given"
    )
    parser.add_argument("--whole", type=int, help="of whole drivers; a tenth of the others if not given")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--server", help="the address of an S3 server with the bucket of the tests")
    given = parser.parse_args(arguments)
    print(f"seed {given.seed}", flush=True)
    started = time.monotonic()
    home = Path(tempfile.mkdtemp(prefix="lastword-kills-spark-"))
    whole = given.kills // 10 if given.whole is None else given.whole
    counts: dict[str, int] = {}
    if in_bucket := given.kills if given.bucket is None else given.bucket:
        (home / "bucket").mkdir()
        with contextlib.nullcontext(stores.s3_at(given.server)) if given.server else stores.moto() as server:
            counts |= run_in_bucket(home / "bucket", server, in_bucket, given.seed)
    if given.kills:
        (home / "directory").mkdir()
        counts |= run(home / "directory", given.kills, whole, given.seed)
    shutil.rmtree(home)
    print(f"{sum(counts.values())} kills, each time every record once; {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
