"""End processes over one log in a bucket by SIGKILL: nothing acknowledged is lost, nothing is there twice.

    make bucket-processes N=150

Four writers, two cleaners, a collector and two readers, each a process of its own, share a log on moto's S3
server, which runs in this process and survives. A process that is killed starts again under its name. Each
writes what it does to a file, so that a kill loses no line.

The content of a batch is a function of its writer and its sequence. A writer repeats a batch until it is
acknowledged, after every error and after every kill. So in the end the log has each batch exactly once, minus
the superseded records that a cleaning removed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import obstore  # noqa: F401 -- loaded before processes are forked

import lastword
from lastword.errors import BusyError, FileVanishedError, StorageError
from lastword.kernels.warming import warm

warm()  # in the server of forks, so that a process starts in some milliseconds

WRITERS = 4
CLEANERS = 2
READERS = 2
PARTITIONS = 2
RETENTION_MS = 1500
TOPIC = "users"
KEYS = 12  # of each writer; as many are shared by all


class Row(NamedTuple):
    """One record: its key, and its identity. `sequence` 0: a tombstone, which has no identity."""

    key: str
    writer: str
    sequence: int
    index: int


@dataclass(frozen=True)
class Place:
    """The log, the folder with the files of the processes, and how many of them write."""

    url: str
    options: dict[str, str]
    folder: str
    writers: int = WRITERS

    def open(self, mode: str) -> lastword.LogDir:
        return lastword.open(
            self.url,
            mode,  # type: ignore[arg-type]
            storage_options=self.options,
            lastword_commit_linger_ms=0,
            log_cleaner_enable=False,
        )

    @property
    def stopping(self) -> bool:
        return Path(self.folder, "stop").exists()

    def lines(self, name: str) -> list[list[str]]:
        """Return the whole lines that a process has written, as words."""
        file = Path(self.folder, name)
        text = file.read_text() if file.exists() else ""
        return [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]

    def last(self, name: str, word: str) -> int:
        """Return the last sequence of which a writer has noted this word; 0: none."""
        return max((int(words[1]) for words in self.lines(name) if words[0] == word), default=0)

    @property
    def writer_names(self) -> list[str]:
        return [f"w{number}" for number in range(self.writers)]

    def has_worked(self, name: str) -> bool:
        """Return whether a process has finished an append, a cleaning, a collection or a read."""
        return any(words[0] in ("ack", "cleaned", "collected", "read") for words in self.lines(name))


class Notes:
    """The file of a process: a line is in it when `add` returns, whatever happens to the process."""

    def __init__(self, place: Place, name: str) -> None:
        self._file = os.open(Path(place.folder, name), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def add(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Note an error of the store or of a commit that others overtook, and go on."""
        try:
            yield
        except (BusyError, StorageError) as error:
            self.add("error", type(error).__name__, str(error).replace("\n", " "))


def batch(writer: str, sequence: int) -> list[tuple[str, dict[str, Any] | None]]:
    """Return the records of a batch. One of five has one record, and one of ten is a tombstone."""
    rng = random.Random(f"{writer} {sequence}")
    draw = rng.random()
    if draw < 0.1:
        return [(f"{writer}-{rng.randrange(KEYS)}", None)]
    rows: list[tuple[str, dict[str, Any] | None]] = []
    for index in range(1 if draw < 0.2 else rng.randrange(2, 30)):
        owner = writer if rng.random() < 0.7 else "all"
        key = f"{owner}-{rng.randrange(KEYS)}"
        rows.append((key, {"w": writer, "s": sequence, "i": index, "pad": "x" * rng.randrange(200)}))
    return rows


# ---------------------------------------------------------------- the processes


def write(place: Place, name: str, notes: Notes) -> None:
    """Append batch after batch; note `try sequence` and `ack sequence [partition offset]`."""
    sequence = acknowledged(place)[name] + 1
    with place.open("a") as logs:
        topic = logs[TOPIC]
        while not place.stopping:
            rows = batch(name, sequence)
            notes.add("try", sequence)
            with notes.errors():
                if len(rows) == 1:
                    appended = topic.append(*rows[0], producer=name, sequence=sequence)
                    notes.add("ack", sequence, appended.partition, appended.offset)
                else:
                    topic.extend(rows, producer=name, sequence=sequence)
                    notes.add("ack", sequence)
                sequence += 1


def finish(place: Place, name: str) -> None:
    """Append the batch that a killed writer began, so that every batch is acknowledged."""
    tried = place.last(name, "try")
    if tried > place.last(name, "ack"):
        with place.open("a") as logs:
            logs[TOPIC].extend(batch(name, tried), producer=name, sequence=tried)
        Notes(place, name).add("ack", tried)


def clean(place: Place, name: str, notes: Notes) -> None:
    """Clean again and again, by both strategies."""
    rng = random.Random(f"{name} {time.time_ns()}")
    with place.open("a") as logs:
        while not place.stopping:
            with notes.errors():
                rounds = logs.clean(TOPIC, strategy=rng.choice(("kafka", "generational")))
                notes.add("cleaned", sum(part.records_read - part.records_kept for part in rounds))
            time.sleep(rng.uniform(0, 0.2))


def collect(place: Place, name: str, notes: Notes) -> None:
    """Remove objects without a name, soon after they lost it."""
    with place.open("a") as logs:
        while not place.stopping:
            with notes.errors():
                notes.add("collected", logs.collect(retention=RETENTION_MS).removed_objects)
            time.sleep(0.2)


def read(place: Place, name: str, notes: Notes) -> None:
    """Read the whole log again and again, and judge it."""
    seen: dict[tuple[int, int], Row] = {}
    with place.open("r") as logs:
        while not place.stopping:
            acked = acknowledged(place)
            with notes.errors():
                try:
                    found = records(logs)
                except FileVanishedError:  # the machine paused for longer than objects are kept
                    notes.add("too old")
                    continue
                judge(place, found, acked)
                for at, row in found.items():
                    assert seen.setdefault(at, row) == row, f"offset {at} had {seen[at]}, it has {row}"
                notes.add("read", len(found))


ROLES: dict[str, Callable[[Place, str, Notes], None]] = {"w": write, "c": clean, "g": collect, "r": read}


def run(place: Place, name: str) -> None:
    """Run a process until it is killed or the log is to be closed. An error ends the whole run."""
    notes = Notes(place, name)
    try:
        ROLES[name[0]](place, name, notes)
    except BaseException:
        notes.add("failed", traceback.format_exc().replace("\n", " | "))
        raise
    notes.add("stopped")


# ---------------------------------------------------------------- the judge


def acknowledged(place: Place) -> dict[str, int]:
    """Return the last acknowledged sequence of each writer."""
    return {name: place.last(name, "ack") for name in place.writer_names}


def records(logs: lastword.LogDir) -> dict[tuple[int, int], Row]:
    """Return the records of the log by partition and offset; offsets are unique and ascend."""
    found: dict[tuple[int, int], Row] = {}
    for partition in range(PARTITIONS):
        last = -1
        for record in logs[TOPIC].read(partition=partition):
            assert record.offset > last, f"{record.offset} follows {last} in partition {partition}"
            last = record.offset
            value = record.value
            row = Row(record.key, "", 0, 0)
            if value is not None:
                row = Row(record.key, value["w"], value["s"], value["i"])
            found[partition, last] = row
    return found


def judge(place: Place, found: dict[tuple[int, int], Row], acked: dict[str, int]) -> None:
    """Check that each record was sent, is there once, and that the newest of each key are there.

    A record of an acknowledged batch may be missing only if a later one of its key was sent.
    """
    identities = [row for row in found.values() if row.sequence]
    assert len(set(identities)) == len(identities), f"twice: {_repeated(identities)}"
    tried = {name: place.last(name, "try") for name in place.writer_names}
    for row in identities:
        sent = batch(row.writer, row.sequence)
        assert row.sequence <= tried[row.writer] and sent[row.index][0] == row.key, f"{row} was not sent"
    there = set(found.values())
    for name in place.writer_names:
        newest: dict[str, Row] = {}  # of each key that only this writer has
        for sequence in range(1, acked[name] + 1):
            for index, (key, value) in enumerate(batch(name, sequence)):
                newest[key] = Row(key, name, sequence, index) if value is not None else Row(key, "", 0, 0)
        later = {key for s in range(acked[name] + 1, tried[name] + 1) for key, _ in batch(name, s)}
        for key, row in newest.items():
            if not key.startswith(f"{name}-") or key in later:
                continue
            if row.sequence:
                assert row in there, f"{row} is lost"
            last = max((at for at, other in found.items() if other.key == key), default=None)
            if last is not None:
                assert found[last] == row, f"{found[last]} at {last} is newer than {row}"


def _repeated(rows: Iterable[Row]) -> list[Row]:
    visited: set[Row] = set()
    return [row for row in rows if row in visited or visited.add(row)]  # type: ignore[func-returns-value]


def judge_whole(place: Place) -> int:
    """Judge the log after every batch was acknowledged; return the number of appended records."""
    acked = acknowledged(place)
    with place.open("a") as logs:
        topic = logs[TOPIC]
        found = records(logs)
        judge(place, found, acked)
        appended = sum(len(batch(name, s)) for name, last in acked.items() for s in range(1, last + 1))
        ends = sum(end for _, end in topic.bounds().values())
        assert ends == appended, f"{appended} records were appended, the log has given {ends} offsets"
        for name in place.writer_names:
            for words in place.lines(name):
                if words[0] == "ack" and len(words) == 4:  # of a single record, with its offset
                    [(key, value)] = batch(name, int(words[1]))
                    row = found.get((int(words[2]), int(words[3])))
                    wanted = Row(key, name, int(words[1]), 0) if value is not None else Row(key, "", 0, 0)
                    assert row in (None, wanted), f"{words} has become {row}"
            assert topic.last_sequence(name) == acked[name]
        newest: dict[str, tuple[tuple[int, int], Row]] = {}
        for at, row in sorted(found.items()):
            newest[row.key] = at, row
        wanted = {key: row for key, (_, row) in newest.items() if row.sequence}
        newest_view = {
            r.key: Row(r.key, r.value["w"], r.value["s"], r.value["i"]) for r in topic.read(view="newest")
        }
        assert newest_view == wanted
        assert not logs.verify().problems, logs.verify().problems
        for _ in range(3):
            logs.collect(retention=0)
        logs.dirs.refresh()
        store = logs.dirs._bucket.store
        orphans = {facts.key for facts in store.list("objects/")} - logs.dirs.newest.objects()
        assert len(orphans) <= 2, f"{len(orphans)} objects without a name"  # condemned lists
        assert records(logs) == found
        assert not logs.verify().problems
    return appended


# ---------------------------------------------------------------- the run


@dataclass
class Totals:
    """What a run has done."""

    kills: int = 0
    records: int = 0
    batches: int = 0
    cleanings: int = 0
    removed: int = 0
    collected: int = 0
    reads: int = 0
    errors: list[str] = field(default_factory=list)


def run_kills(
    kills: int,
    seconds: float,
    seed: int,
    *,
    writers: int = WRITERS,
    cleaners: int = CLEANERS,
    readers: int = READERS,
) -> Totals:
    """Run all processes, kill one after the other, and judge the log in the end."""
    from tests.support.stores import moto

    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tests.bucket.processes"])
    rng = random.Random(seed)
    with moto() as server, tempfile.TemporaryDirectory(prefix="lastword-processes-") as folder:
        place = Place(f"{server.root}/processes-{seed}", server.options, folder, writers)
        names = [
            *place.writer_names,
            *(f"c{n}" for n in range(cleaners)),
            "g",
            *(f"r{n}" for n in range(readers)),
        ]

        def start(target: Callable[..., None], *given: str) -> multiprocessing.process.BaseProcess:
            process = processes.Process(target=target, args=(place, *given), daemon=True)
            process.start()
            return process

        def finished(process: multiprocessing.process.BaseProcess, what: str) -> None:
            process.join(120)
            assert process.exitcode == 0, f"{what} ended with {process.exitcode}"

        finished(start(create), "the creation")
        running = {name: start(run, name) for name in names}
        pause = seconds / kills
        for _ in range(kills):
            time.sleep(min(rng.expovariate(1 / pause), 3 * pause))
            name = rng.choice(names)
            for other, process in running.items():
                if process.exitcode is not None:
                    raise AssertionError(f"{other} ended: {place.lines(other)[-1:]}")
            pid = running[name].pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            running[name].join()
            running[name] = start(run, name)
        end = time.monotonic() + 60
        while not all(map(place.has_worked, names)) and time.monotonic() < end:
            time.sleep(0.1)
        Path(folder, "stop").touch()
        for name, process in running.items():
            finished(process, f"{name}, {place.lines(name)[-1:]}")
        for name in place.writer_names:
            finished(start(finish, name), f"the end of {name}")
        finished(start(judge_whole), "the judge")
        return totals(place, names, kills)


def create(place: Place) -> None:
    with place.open("a") as logs:
        logs.create_topic(
            TOPIC,
            partitions=PARTITIONS,
            key_serializer="str",
            value_serializer="json",
            cleanup_policy="compact",
            delete_retention_ms=0,
        )


def totals(place: Place, names: list[str], kills: int) -> Totals:
    result = Totals(kills)
    acked = acknowledged(place)
    result.batches = sum(acked.values())
    result.records = sum(len(batch(n, s)) for n, last in acked.items() for s in range(1, last + 1))
    for name in names:
        for words in place.lines(name):
            if words[0] == "error":
                result.errors.append(f"{name}: {' '.join(words[1:])}")
            result.reads += words[0] == "read"
            if words[0] == "cleaned":
                result.cleanings += 1
                result.removed += int(words[1])
            if words[0] == "collected":
                result.collected += int(words[1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=150)
    parser.add_argument("--seconds", type=float, default=0, help="0: 0.4 for each kill, but at least 60")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    started = time.monotonic()
    total = run_kills(given.kills, given.seconds or max(60, 0.4 * given.kills), given.seed)
    print(
        f"{total.kills} kills, {total.batches} batches with {total.records} records, none lost, none twice; "
        f"{total.cleanings} cleanings removed {total.removed}, {total.collected} objects were collected, "
        f"{total.reads} reads, {len(total.errors)} errors; {time.monotonic() - started:.0f} s"
    )
