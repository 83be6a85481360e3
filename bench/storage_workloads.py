"""Measure the storage engine: ready batches, pairs and objects, lookups, opening and recovery.

The rivals are Kafka's own classes in one process on the same bytes where Kafka has a counterpart. For
operations of Python programs alone the rival is SQLite, which every Python has; for ready batches, the drive
itself.
"""

from __future__ import annotations

import datetime
import multiprocessing
import os
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import lastword
from bench import kafka
from bench.registry import (
    CPU_TICK_SECONDS,
    FULL_RECORDS,
    Measured,
    Run,
    Times,
    compared,
    rate,
    timed,
    workload,
)
from bench.workloads import CODECS, CONFIG, link_partition, view_of
from lastword.api.reader import SHORTEST_PAUSE_SECONDS
from lastword.clock import SystemClock
from lastword.files import DEFAULT
from lastword.ingest.apply import commit
from lastword.ingest.staging import OWN_FILE_BYTES, CommitManifest, SharedWriter, StagedWriter
from lastword.logdir.log_dir import LogDirectory
from lastword.partition.lookups import positions_of, record_at
from lastword.partition.open import open_log
from lastword.partition.reads import read_batches
from lastword.records.pack import pack_arrow

SEGMENTS = 2000
RECORD_BYTES = 134  # of data set a, on disk


def _pairs(records: int) -> list[tuple[bytes, bytes]]:
    return [(f"key-{i * 7919 % 1_000_003:020d}".encode(), b"v" * 100) for i in range(records)]


@workload("batches")
def batches(run: Run) -> Iterator[Measured]:
    """Append ready batches of 16 KiB, a hundred per call, with one sync at the end, as the wire and Spark do.

    Rival: the same bytes written to a plain file in the same directory and synced: the limit of the drive.
    """
    pairs = _pairs(min(run.records, 2_000_000))
    keys, values = (pa.array(column, pa.binary()) for column in zip(*pairs, strict=True))
    ready = pack_arrow(keys, values, np.full(len(pairs), 1_750_000_000_000, np.int64))
    calls = [ready[start : start + 100] for start in range(0, len(ready), 100)]
    size = sum(len(batch) for batch in ready)
    directory = run.scratch / "batches"

    def append() -> Times:
        (directory / "a-0").mkdir(parents=True)
        log, _ = open_log(DEFAULT, str(directory / "a-0"), CONFIG, SystemClock(), clean=True)

        def work() -> None:
            for call in calls:
                log.append_batches(call, sync_follows=True)
            log.sync()

        took = timed(work)
        log.close()
        return took

    def write() -> Times:
        directory.mkdir()
        blocks = [b"".join(call) for call in calls]
        with (directory / "plain").open("wb", buffering=0) as file:

            def work() -> None:
                for block in blocks:
                    file.write(block)
                os.fsync(file.fileno())

            return timed(work)

    # Alternating, because the speed of a drive varies over time.
    ours: list[Times] = []
    theirs: list[Times] = []
    for _ in range(run.repetitions + 1):
        for how, times in ((append, ours), (write, theirs)):
            shutil.rmtree(directory, ignore_errors=True)
            times.append(how())
    shutil.rmtree(directory)
    yield compared(
        "batches",
        "ready batches, one sync",
        size / statistics.median(t.wall for t in ours[1:]) / 1e6,
        size / statistics.median(t.wall for t in theirs[1:]) / 1e6,
        "a plain file, synced",
        unit="MB/s",
        cpu_seconds=statistics.median(t.cpu for t in ours[1:]),
        rival_cpu_seconds=statistics.median(t.cpu for t in theirs[1:]),
        best_seconds=min(t.wall for t in ours[1:]),
        rival_best_seconds=min(t.wall for t in theirs[1:]),
    )


@workload("pairs")
def pairs(run: Run) -> Iterator[Measured]:
    """Call extend with pairs of bytes, 124 bytes each, acknowledged at "os".

    Rival: SQLite's executemany in one transaction, without sync.
    """
    rows = _pairs(min(run.records, 1_000_000))
    directory = run.scratch / "pairs"
    with lastword.open(directory / "logs", "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic("a")
        ours = run.times(lambda: topic.extend(rows))
    table, insert = _sqlite(directory / "rows.db", rows)
    theirs = run.times(insert, before=lambda: table.execute("delete from log"))
    table.close()
    shutil.rmtree(directory)
    yield compared(
        "pairs",
        "extend with pairs of bytes",
        rate(len(rows), [t.cpu for t in ours]),
        rate(len(rows), [t.cpu for t in theirs]),
        "SQLite, executemany",
    )


@workload("objects")
def objects(run: Run) -> Iterator[Measured]:
    """Read a topic as `Record` objects, one by one.

    Rival: rows of a SQLite table in the order of their number, as tuples.
    """
    rows = _pairs(min(run.records, 1_000_000))
    directory = run.scratch / "objects"
    with lastword.open(directory / "logs", "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic("a")
        topic.extend(rows)

        def read() -> None:
            assert sum(1 for _ in topic.read()) == len(rows)

        ours = run.times(read)
    table, insert = _sqlite(directory / "rows.db", rows)
    insert()

    def select() -> None:
        selected = table.execute("select number, key, value from log order by number")
        assert sum(1 for _ in selected) == len(rows)

    theirs = run.times(select)
    table.close()
    shutil.rmtree(directory)
    yield compared(
        "objects",
        "read, one Record after another",
        rate(len(rows), [t.cpu for t in ours]),
        rate(len(rows), [t.cpu for t in theirs]),
        "SQLite, tuples of three",
    )


def _sqlite(path: Path, rows: list[tuple[bytes, bytes]]) -> tuple[sqlite3.Connection, Callable[[], Any]]:
    table = sqlite3.connect(path, isolation_level=None)
    table.execute("pragma journal_mode = wal")
    table.execute("pragma synchronous = off")
    table.execute("create table log (number integer primary key, key blob, value blob)")

    def insert() -> None:
        table.execute("begin")
        table.executemany("insert into log (key, value) values (?, ?)", rows)
        table.execute("commit")

    return table, insert


@workload("lookup")
def lookup(run: Run) -> Iterator[Measured]:
    """Look up random offsets on warm indexes, in one call and one by one; and follow another process.

    Rival: Kafka's OffsetIndex.lookup, and LogSegment.read with the batch verified and decoded up to the
    record. One position at a time has two rivals: Kafka's is compiled, so the other is the least that a
    Python program does, one `bisect` in a list. For `follow` the rival is SQLite, polled with the same pause.
    """
    count = min(run.records, 1_000_000)
    for name in run.chosen(*(f"a-{codec}" for codec in CODECS)):
        data = run.data(name)
        view = view_of(data.partitions[0])
        offsets = np.random.default_rng(1).integers(0, view.log_end, count)
        if name == "a-none":
            yield from _index_lookups(run, data, view, offsets)
        some = offsets[: max(1, count // 10)]

        each = some[:20_000].tolist()

        def read_singly(each: list[int] = each, view: Any = view) -> None:
            for offset in each:
                found = record_at(view, offset)
                assert found is not None and found[0].offset == offset

        singly = run.times(read_singly)
        root = data.partitions[0].parent
        with lastword.open(root) as logs:
            topic = logs.topic(data.partitions[0].name.rpartition("-")[0])

            def read(some: Any = some, topic: Any = topic) -> None:
                records = topic.records_at(some, partition=0)
                assert all(
                    record is not None and record.offset == offset
                    for record, offset in zip(records, some.tolist(), strict=True)
                )

            def read_by_topic(each: list[int] = each, topic: Any = topic) -> None:
                for offset in each:
                    record = topic.record_at(offset, partition=0)
                    assert record is not None and record.offset == offset

            ours = run.times(read)
            by_topic = run.times(read_by_topic)
        theirs = kafka.lookups(
            data.partitions[0], run.scratch / "work", "record", some.size, run.repetitions + 1
        )[1:]
        assert {rival_run["found"] for rival_run in theirs} == {some.size}
        for case, size, times in (
            ("in batch by Topic.records_at", some.size, ours),
            ("one at a time", len(each), singly),
            ("one at a time by Topic.record_at", len(each), by_topic),
        ):
            yield compared(
                "lookup",
                f"one record at an offset, {case}, {name}",
                rate(size, [t.cpu for t in times]) * 1000,
                rate(some.size, [t["cpu_seconds"] for t in theirs]) * 1000,
                "Kafka's LogSegment.read, decoded",
                unit="k records/CPU s",
            )

    yield from _followed(run)


FOLLOWED = 400
PATIENCE_SECONDS = 120
"""For the start of a process on a loaded machine."""
LONGEST_STEP_SECONDS = 0.015


def _followed(run: Run) -> Iterator[Measured]:
    """Measure the time from an append's return in one process to the record's arrival in another.

    The appends are 3 to 15 ms apart. Afterwards the share of a core is measured that a quiet follower takes.
    """
    count, directory, rows = (
        min(FOLLOWED, run.records // 1000),
        run.scratch / "follow",
        run.scratch / "rows.db",
    )
    quiet_seconds = count / 200
    with lastword.open(directory, "a") as logs:
        logs.create_topic("events")
    with lastword.open(directory) as logs:
        topic = logs.topic("events")
        ours = _delays_ms(_append_slowly, directory, count, topic.read(follow=True, timeout=PATIENCE_SECONDS))
        idle = timed(lambda: list(topic.read("latest", follow=True, timeout=quiet_seconds)))
    table, _ = _sqlite(rows, [])
    theirs = _delays_ms(_insert_slowly, rows, count, _polled(table, PATIENCE_SECONDS))
    rival_idle = timed(lambda: list(_polled(table, quiet_seconds)))
    table.close()
    cases: list[tuple[str, str, float, float]] = [
        (f"{share:.0%} of appends reach a follower within", "ms", _share(ours, share), _share(theirs, share))
        for share in (0.5, 0.99)
    ]
    mine, rival = (100 * max(each.cpu, 1e-6) / each.wall for each in (idle, rival_idle))
    cases.append(("a follower without new records takes", "% of a core", mine, rival))
    for case, unit, mine, rival in cases:
        yield Measured("lookup", case, unit, mine, rival, "SQLite, polled every 3 ms", rival / mine)
    shutil.rmtree(directory)


def _share(delays_ms: list[float], share: float) -> float:
    """Return the delay that a share of all delays does not exceed. A record may arrive before the return."""
    return max(sorted(delays_ms)[int(share * (len(delays_ms) - 1))], 0.001)


def _delays_ms(
    append: Callable[[Path, int, Connection], None], path: Path, count: int, arrivals: Iterable[Any]
) -> list[float]:
    """Return the delay of each arrival. A new process runs `append`, which sends the times of its returns."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=append, args=(path, count, sender))
    process.start()
    sender.close()
    arrived = [time.monotonic() for _ in islice(arrivals, count)]
    returned = receiver.recv()
    process.join()
    assert len(arrived) == count
    return [1000 * (arrival - end) for arrival, end in zip(arrived, returned, strict=True)]


def _returns(append: Callable[[], Any], count: int) -> list[float]:
    """Call `append`, each time after a pause of random length; return the times of the returns."""
    chance, times = random.Random(1), []
    for _ in range(count):
        time.sleep(chance.uniform(SHORTEST_PAUSE_SECONDS, LONGEST_STEP_SECONDS))
        append()
        times.append(time.monotonic())
    return times


def _append_slowly(directory: Path, count: int, sender: Connection) -> None:
    with lastword.open(directory, "a") as logs:
        topic = logs.topic("events")
        sender.send(_returns(lambda: topic.append(b"key", b"v" * 100), count))


def _insert_slowly(path: Path, count: int, sender: Connection) -> None:
    table = sqlite3.connect(path, isolation_level=None)
    insert = "insert into log (key, value) values (?, ?)"
    sender.send(_returns(lambda: table.execute(insert, (b"key", b"v" * 100)), count))
    table.close()


def _polled(table: sqlite3.Connection, timeout: float) -> Iterator[int]:
    """Yield the numbers of new rows, until there is none for `timeout` seconds."""
    (number,) = table.execute("select coalesce(max(number), 0) from log").fetchone()
    last = time.monotonic()
    while time.monotonic() - last < timeout:
        for (row,) in table.execute("select number from log where number > ?", (number,)):
            number = row
            yield row
            last = time.monotonic()
        time.sleep(SHORTEST_PAUSE_SECONDS)


def _index_lookups(run: Run, data: kafka.Generated, view: Any, offsets: Any) -> Iterator[Measured]:
    theirs = kafka.lookups(
        data.partitions[0], run.scratch / "work", "index", offsets.size, run.repetitions + 1
    )[1:]
    rival = rate(offsets.size, [t["cpu_seconds"] for t in theirs])
    each = offsets[:100_000].tolist()
    floor, segments = view.segment_set.floor, view.segments

    def one_by_one() -> None:
        for offset in each:
            segments[floor(offset)].offset_index.lookup(offset)

    def through_segments() -> None:
        for offset in each:
            segments[floor(offset)].position_of(offset)

    entries = list(segments[0].offset_index.entries())
    bounds, positions = [entry.offset for entry in entries], [0, *(entry.position for entry in entries)]

    def least_python() -> None:
        for offset in each:
            positions[bisect_right(bounds, offset)]

    for case, size, work in (
        ("in batch", offsets.size, lambda: positions_of(view, offsets)),
        ("one at a time", len(each), one_by_one),
        ("one at a time, checked", len(each), through_segments),
    ):
        ours = run.times(work)
        yield compared(
            "lookup",
            f"positions of offsets, {case}",
            rate(size, [t.cpu for t in ours]),
            rival,
            "Kafka's OffsetIndex.lookup",
            unit="M lookups/CPU s",
        )
        if work is one_by_one:
            least = run.times(least_python)
            yield compared(
                "lookup",
                f"positions of offsets, {case}",
                rate(size, [t.cpu for t in ours]),
                rate(size, [t.cpu for t in least]),
                "bisect in a list of Python, and an item",
                unit="M lookups/CPU s",
            )


@workload("open")
def open_(run: Run) -> Iterator[Measured]:
    """Open a partition of 2,000 segments to write, after a clean stop and after a kill with nothing flushed.

    Rival: Kafka's log class on the same files, in the same state.
    """
    if not run.chosen("a-none"):
        return
    segment_bytes = max(32 << 10, run.records * RECORD_BYTES // SEGMENTS)
    data = kafka.generate("a-none", run.data_directory, run.records, segment_bytes=segment_bytes)
    for how in ("clean", "killed"):
        yield _opened(run, data, how, f"{data.facts['segments']} segments, {how}", "open", segment_bytes)


@workload("recover")
def recover(run: Run) -> Iterator[Measured]:
    """Open large segments after a kill with nothing flushed, up to the first record read.

    Rival: Kafka's log class on the same files, which must be open before a read.
    """
    for name in run.chosen(*(f"a-{codec}" for codec in CODECS)):
        data = run.data(name)
        yield _opened(run, data, "killed", f"data set {name}", "recover", 128 << 20)


FIRST_READ = """
import sys, time
began = time.perf_counter()
import lastword
with lastword.open(sys.argv[1], sys.argv[2], log_cleaner_enable=False) as logs:
    record = next(logs.topic(sys.argv[3]).read())
    print("first", record.offset, time.perf_counter() - began, time.process_time(), flush=True)
"""


@workload("first-read")
def first_read(run: Run) -> Iterator[Measured]:
    """Start a process that opens a killed log, nothing flushed, and reads its first record, in wall seconds.

    Rival: a new Java process until Kafka's log class has opened the same files; a broker needs longer. Both
    in gigabytes of log per second from the start of the process, so the figure holds for this size only: most
    of our time is the loading of the interpreter and the kernels.
    """
    for name in run.chosen("a-none"):
        data = run.data(name)
        theirs = [kafka.first_open(data.partitions[0], run.scratch / "work") for _ in range(run.repetitions)]
        for mode, case in (("a", "recovered, to write"), ("r", "not recovered, to read")):
            ours, facts = [], []
            for _ in range(run.repetitions + 1):
                root = run.scratch / "killed"
                link_partition(data.partitions[0], root / data.partitions[0].name)
                seconds, line = _first_line([sys.executable, "-c", FIRST_READ, str(root), mode, name])
                ours.append(seconds)
                facts.append(line.split())
                shutil.rmtree(root)
            assert {fact[1] for fact in facts} == {"0"}
            yield compared(
                "first-read",
                f"{data.bytes / 1e9:.2f} GB, {case}",
                data.bytes / 1e9 / statistics.median(ours[1:]),
                data.bytes / 1e9 / statistics.median(theirs),
                "a JVM with Kafka's log, after a kill",
                unit="GB/s by the clock",
                wall_seconds=statistics.median(ours[1:]),
                rival_wall_seconds=statistics.median(theirs),
                from_open_seconds=statistics.median(float(fact[2]) for fact in facts[1:]),
                cpu_seconds=statistics.median(float(fact[3]) for fact in facts[1:]),
            )


def _first_line(command: list[str]) -> tuple[float, str]:
    """Return the seconds from the start of a process to its first line, and that line."""
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        took = time.perf_counter() - began
    assert process.returncode == 0, line
    return took, line


def _opened(run: Run, data: kafka.Generated, how: str, case: str, name: str, segment_bytes: int) -> Measured:
    partition = link_partition(data.partitions[0], run.scratch / "opened" / data.partitions[0].name)
    config = CONFIG.replace(segment_bytes=max(segment_bytes, 1 << 20))
    ends: set[int] = set()

    def open_and_read() -> None:
        log, _ = open_log(DEFAULT, str(partition), config, SystemClock(), clean=how == "clean")
        next(read_batches(log, log.log_start, log.log_start + 1))
        ends.add(log.log_end)
        log.close()

    ours = run.times(open_and_read)
    shutil.rmtree(partition.parent)
    slow = name == "open" and how == "killed"  # half a minute, so a cold JVM makes no difference
    theirs = kafka.open_log(
        data.partitions[0],
        run.scratch / "work",
        how,
        1 if slow else run.repetitions + 1,
        segment_bytes=segment_bytes,
    )
    theirs = theirs if slow else theirs[1:]
    assert ends == {rival_run["log_end"] for rival_run in theirs} == {data.records}
    facts: dict[str, Any] = {
        "wall_seconds": statistics.median(t.wall for t in ours),
        "rival_wall_seconds": statistics.median(t["wall_seconds"] for t in theirs),
        "segments": data.facts["segments"],
    }
    mine = statistics.median(t.cpu for t in ours)
    rival = statistics.median(t["cpu_seconds"] for t in theirs)
    if how == "killed":
        megabytes = data.bytes / 1e6
        after = "Kafka's log, after a kill"
        return compared(name, case, megabytes / mine, megabytes / rival, after, unit="MB/CPU s", **facts)
    rates = 1 / max(mine, 1e-3), 1 / max(rival, 1e-3)
    after = "Kafka's log, after a clean stop"
    return compared(name, case, rates[0], rates[1], after, unit="opened/CPU s", **facts)


MANY_PARTITIONS, FEW_PARTITIONS = 2000, 20
MANY_SEGMENTS, MANY_TOPICS = 10_000, 1000
LONG_AGO = datetime.datetime.fromtimestamp(0, datetime.UTC)


@workload("partitions")
def partitions(run: Run) -> Iterator[Measured]:
    """Create a topic, commit staged rows, list, plan and clean: 200 rows in each of 2,000 partitions.

    Rival: the same rows in 20 partitions. CPU seconds; each verb costs something for each partition, so the
    ratio is below 1. At smaller sizes there are fewer partitions of 200 rows, at least 40. Then the verbs on
    10,000 segments of one partition and on 1,000 topics, each compared with a quarter of them.
    """
    many = max(2 * FEW_PARTITIONS, MANY_PARTITIONS * run.records // FULL_RECORDS)
    rows = 200 * many
    ours, theirs = (
        [_verbs(run.scratch, count, rows) for _ in range(run.repetitions)] for count in (many, FEW_PARTITIONS)
    )
    for verb in ours[0]:
        mine, rival = (statistics.median(times[verb].cpu for times in runs) for runs in (ours, theirs))
        yield compared(
            "partitions",
            f"{verb}: {rows:,} rows in {many:,} partitions",
            rows / max(mine, CPU_TICK_SECONDS) / 1e3,
            rows / max(rival, CPU_TICK_SECONDS) / 1e3,
            f"in {FEW_PARTITIONS} partitions",
            "k rows/CPU s",
            cpu_seconds=mine,
            rival_cpu_seconds=rival,
            wall_seconds=statistics.median(times[verb].wall for times in ours),
        )
    yield from _growth(run, "segments", max(80, MANY_SEGMENTS * run.records // FULL_RECORDS), _segment_verbs)
    yield from _growth(run, "topics", max(40, MANY_TOPICS * run.records // FULL_RECORDS), _topic_verbs)


def _growth(
    run: Run, units: str, many: int, verbs_of: Callable[[Path, int], dict[str, Callable[[], Any]]]
) -> Iterator[Measured]:
    """Run verbs on many units and on a quarter of them: the ratio is 1.0 if the cost is linear.

    Opening and loading cost the same for few units, so the ratio is above 1 for small numbers.
    """
    many_times, few_times = (
        [_timed_verbs(run.scratch / f"{units}-{count}", count, verbs_of) for _ in range(run.repetitions)]
        for count in (many, many // 4)
    )
    for verb in many_times[0]:
        many_cpu, few_cpu = (
            statistics.median(times[verb].cpu for times in runs) for runs in (many_times, few_times)
        )
        yield compared(
            "partitions",
            f"{verb}: {many:,} {units}",
            many / many_cpu,
            many // 4 / few_cpu,
            f"a quarter of the {units}",
            f"{units}/CPU s",
            cpu_seconds=many_cpu,
            rival_cpu_seconds=few_cpu,
            wall_seconds=statistics.median(times[verb].wall for times in many_times),
        )


def _timed_verbs(
    root: Path, count: int, verbs_of: Callable[[Path, int], dict[str, Callable[[], Any]]]
) -> dict[str, Times]:
    times = {verb: timed(work) for verb, work in verbs_of(root, count).items()}
    shutil.rmtree(root)
    return times


def _segment_verbs(root: Path, segments: int) -> dict[str, Callable[[], Any]]:
    """Return the verbs in order: one partition of segments of eight records, of which one is garbage."""
    pairs = _pairs(7 * segments)

    def append() -> None:
        with lastword.open(root, "a", log_cleaner_enable=False) as logs:
            topic = logs.create_topic("t", 1, cleanup_policy="compact,delete", segment_bytes=1100)
            for number in range(segments):
                topic.extend(
                    [*pairs[7 * number : 7 * number + 7], (b"the same key of all segments", b"v" * 100)]
                )

    def read(work: Callable[[lastword.LogDir, lastword.Topic[Any, Any]], Any]) -> Callable[[], Any]:
        def run() -> Any:
            with lastword.open(root) as logs:
                return work(logs, logs.topic("t"))

        return run

    def change(work: Callable[[lastword.LogDir], Any]) -> Callable[[], Any]:
        def run() -> Any:
            with lastword.open(root, "a", log_cleaner_enable=False) as logs:
                return work(logs)

        return run

    return {
        "append and roll": append,
        "open": change(lambda logs: logs.topic("t").append(b"key", b"value")),
        "bounds": read(lambda _, topic: topic.bounds()),
        "ls": read(lambda _, topic: topic.segments()),
        "dry run": read(lambda logs, _: logs.plan()),
        "newest values": read(lambda _, topic: topic.read(view="newest").arrow().read_all()),
        "from a time": read(lambda _, topic: next(iter(topic.read(LONG_AGO)))),
        "clean": change(lambda logs: logs.clean()),
        "trim": change(lambda logs: logs.topic("t").trim(4 * segments)),
    }


def _topic_verbs(root: Path, topics: int) -> dict[str, Callable[[], Any]]:
    """Return the verbs in order: topics of one partition with four records of a key."""

    def create() -> None:
        with lastword.open(root, "a", log_cleaner_enable=False) as logs:
            for number in range(topics):
                logs.create_topic(f"t{number}", 1)

    def append() -> None:
        with lastword.open(root, "a", log_cleaner_enable=False) as logs:
            for topic in logs.topics():
                topic.extend([(b"key", b"value")] * 4)

    def read(work: Callable[[lastword.LogDir], Any]) -> Callable[[], Any]:
        def run() -> Any:
            with lastword.open(root) as logs:
                return work(logs)

        return run

    def clean() -> None:
        with lastword.open(root, "a", log_cleaner_enable=False) as logs:
            logs.set_config(cleanup_policy="compact")
            assert len(logs.clean()) == topics

    return {
        "create": create,
        "append": append,
        "bounds": read(lambda logs: [topic.bounds() for topic in logs.topics()]),
        "ls": read(lambda logs: [topic.describe() for topic in logs.topics()]),
        "dry run": read(lambda logs: logs.plan()),
        "duplication": read(lambda logs: logs.duplication()),
        "clean": clean,
    }


def _verbs(scratch: Path, partitions: int, rows: int) -> dict[str, Times]:
    """Run each verb on a new directory, in which each key has four records."""
    root = scratch / f"partitions-{partitions}"
    keys, values = (
        pa.array(column, pa.binary()) for column in zip(*_pairs(rows // partitions // 4), strict=True)
    )
    ready = pack_arrow(keys, values, np.full(len(keys), 1_750_000_000_000, np.int64))

    def opened(mode: Any = "r") -> lastword.LogDir:
        options: Any = {"log_cleaner_enable": False} if mode == "a" else {}
        return lastword.open(root, mode, **options)

    def create() -> None:
        with opened("a") as logs:
            logs.create_topic("t", partitions, cleanup_policy="compact")

    def write() -> None:
        shared = SharedWriter(DEFAULT, str(root), "job", 0, 0)
        staged = []
        for number in range(partitions):  # as a task of the sink stages them
            if 4 * sum(map(len, ready)) < OWN_FILE_BYTES:
                for batch in 4 * ready:
                    shared.write("t", number, memoryview(batch), len(keys) // len(ready))
                continue
            writer = StagedWriter(DEFAULT, str(root), "t", number, "job", 0, 0)
            for batch in 4 * ready:
                writer.write(memoryview(batch), len(keys) // len(ready))
            staged.append(writer.close(sync=False))
        runs = (*shared.close(sync=False), *(run for run in staged if run is not None))
        manifest = CommitManifest("job", runs, sync=False)
        commit(str(root), manifest, DEFAULT, lambda: LogDirectory.open(root, "a"), patience_seconds=60)

    def ls() -> None:
        with opened() as logs:
            assert len(logs.topic("t").describe()) == partitions

    def plan() -> None:
        with opened() as logs:
            assert len(logs.plan()) == partitions

    def clean() -> None:
        with opened("a") as logs:
            assert len(logs.clean()) == partitions

    verbs = {"create": create, "write": write, "ls": ls, "dry run": plan, "clean": clean}
    times = {verb: timed(work) for verb, work in verbs.items()}
    shutil.rmtree(root)
    return times
