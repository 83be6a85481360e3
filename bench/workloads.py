"""Measure append, scan, map, rewrite, clean and restore without Spark; each workload names its rival.

The rivals are Kafka's own classes in one process with the data, on the same bytes. There is no broker, no
network and no copy in between, so Kafka is shown at its best. For Kafka's two cleaning phases only the CPU of
their thread counts, without its garbage collector: again in Kafka's favour.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import statistics
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import lastword
from bench import kafka
from bench.registry import FULL_RECORDS, Measured, Run, Times, compared, rate, timed, workload
from lastword.accounts.ledger import Ledger
from lastword.cleaner.engine.cleaning import CleanContext
from lastword.cleaner.engine.liveness import refresh
from lastword.cleaner.engine.partition import clean_partition, opened, prepare
from lastword.cleaner.engine.report import CleanRound, Phases
from lastword.cleaner.policy.plan import CleanRequest
from lastword.clock import SystemClock
from lastword.config import TopicConfig
from lastword.files import DEFAULT
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.log import PartitionLog
from lastword.partition.open import open_log
from lastword.partition.view import PartitionView
from lastword.records.columns import decode_columns
from lastword.resolve import resolve
from lastword.resolve.facts import Rules
from lastword.resolve.hash_map import HashResolver

MIB = 1 << 20
MAP_BYTES = 128 * MIB
RECORDS_PER_BATCH = 118  # of data set a in 16 KiB
CODECS = ("none", "lz4", "zstd")
CONFIG = TopicConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=128 * MIB, file_delete_delay_ms=0)


def link_partition(source: Path, target: Path) -> Path:
    """Link the segments into another directory. Hard links are safe: closed segments are never written to."""
    target.mkdir(parents=True)
    for file in source.iterdir():
        if file.suffix == ".log":
            os.link(file, target / file.name)
        else:
            shutil.copy2(file, target / file.name)
    return target


def view_of(partition: Path) -> PartitionView:
    return PartitionView.load(DirectorySegments(DEFAULT, str(partition)))


@workload("append")
def append(run: Run) -> Iterator[Measured]:
    """Append records of 124 bytes: a whole table, one call per record, and one assignment per key of a state.

    Rivals: for the table, Kafka's batch builder and log layer in one process (the work of producer and broker
    without the network). For single calls, SQLite, the log that every Python program has, with one commit per
    row: without sync beside "os", `synchronous = full` beside "disk", which is measured in elapsed time.
    """
    table = pa.table(
        {
            "key": pa.array(
                [f"key-{i * 7919 % 1_000_003:020d}".encode() for i in range(run.records)], pa.binary()
            ),
            "value": pa.array(
                [f'{{"n":{i:010d},"note":"'.encode() + b"x" * 78 + b'"}' for i in range(run.records)]
            ),
        }
    )
    for codec in ("none", "lz4"):
        directory = run.scratch / "append"
        shutil.rmtree(directory, ignore_errors=True)
        with lastword.open(directory, "a", log_cleaner_enable=False) as logs:
            topic = logs.create_topic("a", compression_type="uncompressed" if codec == "none" else codec)
            ours = run.times(partial(topic.extend, table))
        shutil.rmtree(directory)
        theirs = kafka.append(
            run.scratch / "work", run.records, RECORDS_PER_BATCH, codec, run.repetitions + 1
        )[1:]
        yield compared(
            "append",
            f"extend with an Arrow table, {codec}",
            rate(run.records, [t.cpu for t in ours]),
            rate(run.records, [t["cpu_seconds"] for t in theirs]),
            "Kafka's batch builder and log",
            ours_wall=rate(run.records, [t.wall for t in ours]),
            rival_wall=rate(run.records, [t["wall_seconds"] for t in theirs]),
        )
    yield from _append_singly(run, min(run.records, 20_000))


def _append_singly(run: Run, records: int) -> Iterator[Measured]:
    pairs = [(f"key-{i * 7919 % 1_000_003:020d}".encode(), b"v" * 100) for i in range(records)]
    few = pairs[: max(1, records // 20)]
    directory = run.scratch / "singly"
    directory.mkdir()
    with lastword.open(directory / "logs", "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic("a")
        logs.create_topic("state", cleanup_policy="compact")
        state = logs.state("state", key_serializer="bytes", value_serializer="bytes")

        def append_each() -> None:
            for key, value in pairs:
                topic.append(key, value)

        def append_to_disk() -> None:
            for key, value in few:
                topic.append(key, value, ack="disk")

        def set_each() -> None:
            for key, value in pairs:
                state[key] = value

        def set_and_sync() -> None:
            for key, value in few:
                state[key] = value
                state.sync()

        ours = [run.times(work) for work in (append_each, set_each, append_to_disk, set_and_sync)]
    theirs = [
        _sqlite_times(run, directory, pairs, "off", "insert into log (key, value) values (?, ?)"),
        _sqlite_times(run, directory, pairs, "off", "insert or replace into newest values (?, ?)"),
        _sqlite_times(run, directory, few, "full", "insert into log (key, value) values (?, ?)"),
        _sqlite_times(run, directory, few, "full", "insert or replace into newest values (?, ?)"),
    ]
    shutil.rmtree(directory)
    for number, case in enumerate(("append, one call a record", "state[key] = value")):
        yield compared(
            "append",
            case,
            rate(records, [t.cpu for t in ours[number]]),
            rate(records, [t.cpu for t in theirs[number]]),
            "SQLite, a commit a row",
        )
    for number, case in enumerate(
        ("append, one call a record, on disk", "state[key] = value; state.sync()"), 2
    ):
        yield compared(
            "append",
            case,
            rate(len(few), [t.wall for t in ours[number]]) * 1000,
            rate(len(few), [t.wall for t in theirs[number]]) * 1000,
            "SQLite, a synced commit a row",
            unit="k records/s by the clock",
        )
        yield compared(
            "append",
            f"{case}: CPU",
            rate(len(few), [t.cpu for t in ours[number]]),
            rate(len(few), [t.cpu for t in theirs[number]]),
            "SQLite, a synced commit a row",
        )


def _sqlite_times(
    run: Run, directory: Path, pairs: list[tuple[bytes, bytes]], synchronous: str, statement: str
) -> list[Times]:
    path = directory / "rows.db"
    rows = sqlite3.connect(path, isolation_level=None)
    rows.execute("pragma journal_mode = wal")
    rows.execute(f"pragma synchronous = {synchronous}")
    rows.execute("create table log (number integer primary key, key blob, value blob)")
    rows.execute("create table newest (key blob primary key, value blob) without rowid")

    def insert_each() -> None:
        for pair in pairs:
            rows.execute(statement, pair)

    times = run.times(insert_each)
    rows.close()
    path.unlink()
    return times


@workload("scan")
def scan(run: Run) -> Iterator[Measured]:
    """Verify every checksum and decode every record into columns, on one core.

    Rival: Kafka's record classes over the same files, reading every field of each record.
    """
    for name in run.chosen(*(f"a-{codec}" for codec in CODECS)):
        data = run.data(name)
        partition = data.partitions[0]

        def read(partition: Path = partition) -> int:
            segments = view_of(partition).segments
            return sum(len(decode_columns(chunk)) for segment in segments for chunk in segment.chunk_reader())

        assert read() == data.records
        ours = run.times(read)
        theirs = kafka.read(partition, "scan", run.repetitions + 1)[1:]
        yield compared(
            "scan",
            f"data set {name}",
            rate(data.records, [t.cpu for t in ours]),
            rate(data.records, [t["cpu_seconds"] for t in theirs]),
            "Kafka's record classes",
            mb_per_cpu_second=data.bytes / statistics.median(t.cpu for t in ours) / 1e6,
        )


@workload("map")
def map_(run: Run) -> Iterator[Measured]:
    """Run the first pass of the cleaner: find the newest record of each key.

    Our map is exact; Kafka's compares MD5 digests. Rival: the same pass of Kafka's cleaner on the same bytes,
    with a buffer of the same size.
    """
    for name in run.chosen("a-none", "b-none", "u-none"):
        data = run.data(name)
        segments = view_of(data.partitions[0]).segments
        resolution: Any = None

        def read(segments: Any = segments) -> None:
            nonlocal resolution
            resolution = resolve(segments, map_bytes=MAP_BYTES, salt=b"bench" * 4, now_ms=None)

        ours = run.times(read)
        by_hash = HashResolver(segments, MAP_BYTES, b"bench" * 4, Rules()).run()
        theirs = _kafka_cleanings(run, data)
        yield compared(
            "map",
            f"data set {name}",
            rate(data.records, [t.cpu for t in ours]),
            rate(data.records, [t.map_cpu_seconds for t in theirs]),
            "Kafka's map phase",
            distinct_keys=data.distinct,
            map_passes=resolution.passes,
            map_used_ratio=resolution.map_used_ratio,
            rival_passes=theirs[-1].passes,
            hash_bytes_per_key=by_hash.map_bytes_used / by_hash.distinct_keys,
            **_bytes_per_key(resolution),
        )


def _bytes_per_key(resolution: Any) -> dict[str, Any]:
    """Return bytes per key: in use, slots and arena; and the share of a full map's budget."""
    if resolution.passes > 1:
        return {}
    return {
        "map_bytes_used_per_key": resolution.map_bytes_used / resolution.distinct_keys,
        "map_budget_per_key": resolution.map_used_ratio * resolution.map_bytes / resolution.distinct_keys,
    }


@workload("rewrite")
def rewrite(run: Run) -> Iterator[Measured]:
    """Run the second pass with its certificate: write new segments from the old ones and read them back.

    Rival: the same pass of Kafka's cleaner, which verifies neither its input nor its output.
    """
    for name in run.chosen(*(f"a-{codec}" for codec in CODECS)):
        yield from (line for line in _cleanings(run, name) if line.workload == "rewrite")


@workload("clean")
def clean(run: Run) -> Iterator[Measured]:
    """Clean one partition: every checksum, the exact map, the rewrite, the certificate, the swap, the syncs.

    By strategy `kafka`, then by the default strategy, which writes the garbage index, too. Rival: Kafka's own
    cleaner class on the same bytes, without throttle; its map pass neither verifies checksums nor syncs.
    """
    names = [f"{name}-{codec}" for name in "abc" for codec in CODECS] + ["u-none"]
    for name in run.chosen(*names):
        yield from (line for line in _cleanings(run, name) if line.workload == "clean")
        data = run.data(name)
        request = CleanRequest(0, strategy="generational", map_bytes=MAP_BYTES)
        times, rounds = _our_cleanings(run, data, request)
        assert {done.records_kept for done in rounds if done} <= {data.distinct}
        yield compared(
            "clean",
            f"data set {name}, default strategy",
            rate(data.records, [t.cpu for t in times]),
            rate(data.records, [t.cpu_seconds for t in _kafka_cleanings(run, data)]),
            "Kafka's Cleaner",
        )


@workload("clean-map")
def clean_map(run: Run) -> Iterator[Measured]:
    """Clean with a map too small for all keys: 32 MiB for the 2 M keys of data set a, less for fewer keys.

    Rival: Kafka's own cleaner with a buffer of the same size, which rewrites the log once per filled buffer.
    Measured in CPU seconds and in bytes written.
    """
    for name in run.chosen("a-none"):
        yield from _measure_cleaning(run, name, max(32 * MIB * run.records // FULL_RECORDS, 64 << 10))


@workload("clean-accounts")
def clean_accounts(run: Run) -> Iterator[Measured]:
    """Clean with current garbage accounts: read only the segments that are rewritten.

    Rival: Kafka's own cleaner, which has no accounts and reads the whole log twice.
    """
    for name in run.chosen("a-none", "b-none"):
        data = run.data(name)
        partition = run.scratch / "ours" / data.partitions[0].name
        times: list[Times] = []
        for _ in range(run.repetitions + 1):
            shutil.rmtree(partition.parent, ignore_errors=True)
            link_partition(data.partitions[0], partition)
            log, _ = open_log(DEFAULT, str(partition), CONFIG, SystemClock(), clean=True)
            plan = prepare(log, CONFIG, CleanRequest(0, strategy="generational", map_bytes=MAP_BYTES))
            context = CleanContext(DEFAULT, log.clock)
            ledger = opened(log, context, MAP_BYTES)
            refresh(log, log.segments, ledger, plan, context)
            done: list[CleanRound | None] = []
            times.append(timed(partial(_round, log, ledger, done)))
            log.close()
            assert done[0] is not None
            assert done[0].records_kept == data.distinct
            assert done[0].read_bytes <= data.bytes
        shutil.rmtree(partition.parent)
        theirs = _kafka_cleanings(run, data)
        yield compared(
            "clean-accounts",
            f"data set {name}",
            rate(data.records, [t.cpu for t in times[1:]]),
            rate(data.records, [t.cpu_seconds for t in theirs]),
            "Kafka's Cleaner",
        )


@workload("two-threads")
def two_threads(run: Run) -> Iterator[Measured]:
    """Clean one partition with two threads, in wall seconds.

    Rival: the same with one thread, alternating in the same run. Meaningful only on an idle machine, so the
    load of the last minute is printed too.
    """
    for name in run.chosen("a-none", "a-lz4", "a-zstd", "b-none"):
        data = run.data(name)
        partition = run.scratch / "ours" / data.partitions[0].name
        for strategy in ("kafka", "generational"):
            walls: dict[int, list[float]] = {1: [], 2: []}
            for threads in (1, 2) * (run.repetitions + 1):
                shutil.rmtree(partition.parent, ignore_errors=True)
                link_partition(data.partitions[0], partition)
                log, _ = open_log(DEFAULT, str(partition), CONFIG, SystemClock(), clean=True)
                log.sync()
                done: list[Any] = []

                def work(
                    log: Any = log, done: list[Any] = done, threads: int = threads, by: str = strategy
                ) -> None:
                    done.append(
                        clean_partition(
                            log,
                            CONFIG,
                            CleanRequest(0, strategy=by, map_bytes=MAP_BYTES),
                            CleanContext(DEFAULT, log.clock, threads=threads),
                            record_first_dirty=lambda offset: None,
                        )
                    )

                walls[threads].append(timed(work).wall)
                log.close()
                assert done[0].records_kept == data.distinct
            yield compared(
                "two-threads",
                f"data set {name}, {strategy}",
                rate(data.records, walls[2][1:]),
                rate(data.records, walls[1][1:]),
                "one thread",
                unit="M records/s",
                best_ratio=min(walls[1][1:]) / min(walls[2][1:]),
                load=os.getloadavg()[0],
                processors=len(os.sched_getaffinity(0)),
            )
    shutil.rmtree(run.scratch / "ours", ignore_errors=True)


@workload("growth")
def growth(run: Run) -> Iterator[Measured]:
    """Clean logs of growing size with one buffer, which holds the keys of the first: CPU time per record.

    Rivals: the same cleaning at the size of data set a, whose keys fit the buffer; and a cleaning in passes
    over the log. Keys of 24 bytes, five records per key, uniform; the buffer scales with the size of the run.
    """
    map_bytes = max(MAP_BYTES * run.records // FULL_RECORDS, 64 << 10)
    fitting = 0.0
    for times in (1, 6, 10):
        records = times * run.records
        source = _uniform(run.scratch / "uniform", records, records // 5)
        divided, scratch_bytes = _growth_of(run, source, map_bytes, 0)
        facts = {"records": records, "map_bytes": map_bytes, "scratch_bytes": scratch_bytes}
        case, unit = f"{records / 1e6:g} M records", "us of CPU/record"
        if times == 1:
            fitting = divided / records
            assert not scratch_bytes
        else:
            passes = _growth_of(run, source, map_bytes, 1 << 62)[0]
            assert scratch_bytes
            yield _cost_of(case, divided / records, fitting, "keys that fit", unit, facts)
            yield _cost_of(case, divided / records, passes / records, "in passes", unit, facts)
    shutil.rmtree(run.scratch / "uniform")


def _cost_of(case: str, ours: float, rival: float, name: str, unit: str, facts: dict[str, Any]) -> Measured:
    return Measured("growth", case, unit, 1e6 * ours, 1e6 * rival, name, rival / ours, facts)


def _uniform(directory: Path, records: int, keys: int) -> Path:
    """Write a log of uniform keys; return the partition."""
    shutil.rmtree(directory, ignore_errors=True)
    rng = np.random.default_rng(1)
    with lastword.open(directory, "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact", segment_bytes=128 * MIB)
        for first in range(0, records, 1 << 20):
            count = min(1 << 20, records - first)
            key = pa.array(rng.integers(keys, size=count))
            text = pc.utf8_lpad(key.cast(pa.string()), 24, "k").cast(pa.binary())
            topic.extend(pa.table({"key": text, "value": pa.repeat(pa.scalar(b"0123456789"), count)}))
        logs.dirs.log("t", 0).roll()
    shutil.rmtree(directory / "t-0" / "lastword", ignore_errors=True)
    return directory / "t-0"


def _growth_of(run: Run, source: Path, map_bytes: int, divide_from: int) -> tuple[float, int]:
    """Return the CPU seconds of a cleaning, and the bytes of its scratch file."""
    partition = run.scratch / "ours" / source.name
    times, scratch_bytes = [], 0
    for _ in range(run.repetitions + 1):
        shutil.rmtree(partition.parent, ignore_errors=True)
        link_partition(source, partition)
        log, _ = open_log(DEFAULT, str(partition), CONFIG, SystemClock(), clean=True)
        done: list[CleanRound | None] = []
        request = CleanRequest(0, strategy="generational", map_bytes=map_bytes)
        context = CleanContext(DEFAULT, log.clock, divide_from=divide_from)
        times.append(timed(partial(_cleaned, log, request, context, done)))
        log.close()
        assert done[0] is not None
        scratch_bytes = done[0].scratch_bytes
    shutil.rmtree(partition.parent)
    return statistics.median(run_times.cpu for run_times in times[1:]), scratch_bytes


def _cleaned(
    log: PartitionLog, request: CleanRequest, context: CleanContext, done: list[CleanRound | None]
) -> None:
    """Run a cleaning; append its result to `done`."""
    done.append(clean_partition(log, CONFIG, request, context, record_first_dirty=lambda offset: None))


def _round(log: PartitionLog, ledger: Ledger, done: list[CleanRound | None]) -> None:
    """Run a cleaning with these accounts; append its result to `done`."""
    done.append(
        clean_partition(
            log,
            CONFIG,
            CleanRequest(0, strategy="generational", map_bytes=MAP_BYTES),
            CleanContext(DEFAULT, log.clock),
            record_first_dirty=lambda offset: None,
            ledger=ledger,
        )
    )


@workload("clean-size")
def clean_size(run: Run) -> Iterator[Measured]:
    """Compare bytes on disk per record after a cleaning with bytes per record before it.

    Rival: Kafka's own cleaner, which never joins batches.
    """
    for name in run.chosen(*(f"{name}-{codec}" for name in "ab" for codec in CODECS)):
        for line in _cleanings(run, name):
            if line.workload == "clean":
                facts = line.facts
                before = facts["source_bytes"] / facts["records"]
                ours, theirs = (
                    facts[field] / facts["kept"] / before
                    for field in ("written_bytes", "rival_written_bytes")
                )
                case, rival = f"data set {name}", "Kafka's Cleaner"
                yield Measured(
                    "clean-size", case, "x", ours, theirs, rival, theirs / ours, {"before": before}
                )


_DONE: dict[tuple[str, int], list[Measured]] = {}


def _cleanings(run: Run, name: str) -> list[Measured]:
    """Measure once for both lines: the whole cleaning and the rewrite."""
    if (name, run.records) not in _DONE:
        _DONE[name, run.records] = _measure_cleaning(run, name)
    return _DONE[name, run.records]


def _measure_cleaning(run: Run, name: str, map_bytes: int = MAP_BYTES) -> list[Measured]:
    data = run.data(name)
    times, rounds = _our_cleanings(run, data, CleanRequest(0, map_bytes=map_bytes))
    theirs = _kafka_cleanings(run, data, map_bytes)
    kept = {done.records_kept for done in rounds if done} or {data.distinct}
    assert kept == {data.distinct} == {t.kept for t in theirs}, (name, kept, data.distinct, theirs)
    last = rounds[-1]
    facts: dict[str, Any] = {
        "records": data.records,
        "kept": data.distinct,
        "written_bytes": 0,
        "source_bytes": data.bytes,
        "wall_seconds": statistics.median(t.wall for t in times),
        "rival_wall_seconds": statistics.median(t.wall_seconds for t in theirs),
        "rival_written_bytes": theirs[-1].written_bytes,
        "rival_passes": theirs[-1].passes,
    }
    if last is not None:
        facts |= {
            "written_bytes": last.written_bytes,
            "read_bytes": last.read_bytes,
            "map_passes": last.map_passes,
            "phases": last.phases.to_dict(),
        }
    if map_bytes != MAP_BYTES:
        case = f"data set {name}, {map_bytes / MIB:.1f} MiB"
        ours, rival = (
            facts[field] / facts["source_bytes"] for field in ("written_bytes", "rival_written_bytes")
        )
        cpu = compared(
            "clean-map",
            case,
            rate(data.records, [t.cpu for t in times]),
            rate(data.records, [t.cpu_seconds for t in theirs]),
            "Kafka's Cleaner",
            **facts,
        )
        written = f"{case}: written"
        return [
            cpu,
            Measured(
                "clean-map", written, "x", ours, rival, "Kafka's Cleaner", rival / ours if ours else 0.0
            ),
        ]
    lines = [
        compared(
            "clean",
            f"data set {name}",
            rate(data.records, [t.cpu for t in times]),
            rate(data.records, [t.cpu_seconds for t in theirs]),
            "Kafka's Cleaner",
            **facts,
        )
    ]
    if last is not None and last.phases.rewrite:
        shares = [_share(done.phases) for done in rounds if done is not None]
        lines.append(
            compared(
                "rewrite",
                f"data set {name}",
                rate(data.records, [t.cpu * share for t, share in zip(times, shares, strict=True)]),
                rate(data.records, [t.rewrite_cpu_seconds for t in theirs]),
                "Kafka's rewrite phase",
            )
        )
    return lines


def _our_cleanings(
    run: Run, data: kafka.Generated, request: CleanRequest
) -> tuple[list[Times], list[CleanRound | None]]:
    """Return the times and reports of warm repetitions of our cleaner; each begins without accounts."""
    partition = run.scratch / "ours" / data.partitions[0].name
    times: list[Times] = []
    rounds: list[CleanRound | None] = []
    for _ in range(run.repetitions + 1):
        shutil.rmtree(partition.parent, ignore_errors=True)
        link_partition(data.partitions[0], partition)
        log, _ = open_log(DEFAULT, str(partition), CONFIG, SystemClock(), clean=True)
        log.sync()  # earlier writes do not count as the cleaner's syncs
        times.append(timed(partial(_cleaned, log, request, CleanContext(DEFAULT, log.clock), rounds)))
        log.close()
    shutil.rmtree(partition.parent)
    return times[1:], rounds[1:]  # the first is cold, like Kafka's first


def _share(phases: Phases) -> float:
    """Return the share of the rewrite in a cleaning, in wall seconds: one thread does all of it."""
    return phases.rewrite / (phases.map + phases.rewrite + phases.swap)


def _kafka_cleanings(
    run: Run, data: kafka.Generated, buffer_bytes: int = MAP_BYTES
) -> list[kafka.KafkaCleaning]:
    """Return warm repetitions of Kafka's cleaner; measured once per data set and buffer."""
    key = (data.name, data.records, buffer_bytes)
    if key not in _KAFKA:
        done = kafka.clean(
            data.partitions[0],
            run.scratch / "work",
            repetitions=run.repetitions + 1,
            buffer_bytes=buffer_bytes,
        )
        _KAFKA[key] = done[1:]
    return _KAFKA[key]


_KAFKA: dict[tuple[str, int, int], list[kafka.KafkaCleaning]] = {}


@workload("restore")
def restore(run: Run) -> Iterator[Measured]:
    """Read a log into a mapping in memory: data set a, before and after a cleaning.

    Rival: Kafka's record classes over the same files into a Java HashMap. It needs no broker and no consumer,
    so it is faster than any Kafka client that restores a table.
    """
    data = run.data("a-none")
    for state in ("as written", "cleaned"):
        directory = run.scratch / "logs"
        partition = link_partition(data.partitions[0], directory / data.partitions[0].name)
        if state == "cleaned":
            log, _ = open_log(DEFAULT, str(partition), CONFIG, SystemClock(), clean=True)
            context = CleanContext(DEFAULT, log.clock)
            clean_partition(log, CONFIG, CleanRequest(0), context, record_first_dirty=lambda offset: None)
            log.close()
        sizes: list[int] = []

        def load(directory: Path = directory, sizes: list[int] = sizes) -> None:
            with lastword.open(directory) as logs:
                sizes.append(len(logs.state(data.name, key_serializer="bytes", value_serializer="bytes")))

        ours = run.times(load)
        theirs = kafka.read(partition, "restore", run.repetitions + 1)[1:]
        shutil.rmtree(directory)
        assert set(sizes) == {data.distinct} == {t["keys"] for t in theirs}
        records = theirs[0]["records"]
        yield compared(
            "restore",
            f"data set a, {state}",
            rate(records, [t.cpu for t in ours]),
            rate(records, [t["cpu_seconds"] for t in theirs]),
            "Kafka's record classes into a HashMap",
            records=records,
            keys=data.distinct,
            ours_wall=rate(records, [t.wall for t in ours]),
            rival_wall=rate(records, [t["wall_seconds"] for t in theirs]),
        )
