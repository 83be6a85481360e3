"""Measure a log in a bucket: requests, bytes, their list price, CPU time, bandwidth, and many segments.

The store is obstore's in memory. A `MeteredStore` around it counts the requests as S3 counts them, and
simulates a network for the scan.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import lastword
from bench.metered_store import MeteredStore, Usage
from bench.registry import Measured, Run, Times, compared, rate, timed, workload
from lastword.api.bucket_dirs import BucketDirs, merged_settings
from lastword.api.logs import LogDir
from lastword.bucket.commit import Bucket
from lastword.bucket.files import BucketFiles
from lastword.bucket.manifest import MAX_PAGES
from lastword.clock import SystemClock
from lastword.logdir.checkpoints import OffsetCheckpoint, TopicPartition
from lastword.objects import open_store
from lastword.segment import names

OBJECT_BYTES = 8 << 20
MOST_RECORDS = 1_000_000
COMMIT_RECORDS = 100_000
SMALL_COMMIT_RECORDS = 1000
REQUEST_SECONDS = 0.03
CONNECTION_BYTES_PER_SECOND = 100e6
CONNECTIONS = 8
SCAN_FILE_BYTES = 16_000_000
MANY_SEGMENTS = 100_000
SEGMENTS_PER_PARTITION = 100
EMPTY_PARTITIONS = 300
SINGLE_COMMITS = 200

MEMORY = Path("/dev/shm")
"""Place of the directory that a store in memory is compared with: the writes to a drive would count."""

_stores = count()


@contextmanager
def metered(**network: float) -> Iterator[MeteredStore]:
    """Make an empty store in memory, and free its objects at the end."""
    url = f"memory://bench-{next(_stores)}/log"
    try:
        yield MeteredStore(open_store(url), **network)
    finally:
        with open_store(url) as store:  # the log has closed the other one
            store.delete([facts.key for facts in store.list()])


def opened(store: MeteredStore, mode: Any = "a") -> LogDir:
    """Open the log in a store. Each append is a commit; nothing runs in the background."""
    settings = {"log_cleaner_enable": False, "lastword_commit_linger_ms": 0}
    load = merged_settings(store.url, None, settings if mode == "a" else {})
    return LogDir(BucketDirs(Bucket(store), mode, load, SystemClock()))


def dirs_of(logs: LogDir) -> BucketDirs:
    """Return the log below the interface."""
    assert isinstance(logs.dirs, BucketDirs)
    return logs.dirs


def records_of(number: int) -> pa.Table:
    """Return records of 124 bytes, five for each key."""
    keys = max(1, number // 5)
    return pa.table(
        {
            "key": pa.array([f"key-{i * 7919 % keys:020d}".encode() for i in range(number)], pa.binary()),
            "value": pa.array(
                [f'{{"n":{i:010d},"note":"'.encode() + b"x" * 78 + b'"}' for i in range(number)], pa.binary()
            ),
        }
    )


@workload("bucket")
def bucket(run: Run) -> Iterator[Measured]:
    """Append, read, clean and plan a log in a bucket: price of the requests, CPU time, bandwidth, segments.

    Rivals: for the price, the same bytes as objects of 8 MiB, without a log; for CPU time, a log in a
    directory; for bandwidth, eight connections.
    """
    yield from _prices(run)
    yield from _cpu(run)
    yield _single_commits(run)
    yield from (_scan(run, slower) for slower in (1, 4))
    yield from _many_segments(run)


# ---------------------------------------------------------------- requests and their price


def _prices(run: Run) -> Iterator[Measured]:
    table = records_of(min(run.records, MOST_RECORDS))
    print(f"\n{'a million records':<38} {'writes':>8} {'reads':>8} {'MB sent':>8} {'received':>8} {'USD':>8}")
    lines = list(_verbs(table))
    print()
    yield from lines


def _verbs(table: pa.Table) -> Iterator[Measured]:
    few = table.slice(0, max(SMALL_COMMIT_RECORDS, table.num_rows // 10))
    with metered() as store, opened(store) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        yield _priced(store, "append, 1,000 records a commit", few, lambda: _extend(topic, few, 1000))
    with metered() as store, opened(store) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        append = f"append, {COMMIT_RECORDS:,} records a commit"
        yield _priced(store, append, table, lambda: _extend(topic, table, COMMIT_RECORDS))
        yield _priced(store, "read", table, lambda: _drain(topic))
        yield _priced(store, "open, plan a cleaning", table, lambda: _plan(store))
        yield _priced(store, "clean", table, lambda: logs.clean())
        yield _priced(store, "read newest values", table, lambda: _drain(topic, view="newest"))


def _extend(topic: Any, table: pa.Table, records: int) -> None:
    for start in range(0, table.num_rows, records):
        topic.extend(table.slice(start, records))


def _drain(topic: Any, **options: Any) -> int:
    return sum(batch.num_rows for batch in topic.read(**options).arrow())


def _plan(store: MeteredStore) -> None:
    reader = opened(store, "r")  # not closed: it would close the store
    assert len(reader.plan()) == 1


def _priced(store: MeteredStore, verb: str, table: pa.Table, work: Callable[[], Any]) -> Measured:
    store.reset()
    work()
    usage = store.usage()
    scale = 1e6 / table.num_rows
    writes, reads = (-(-size // OBJECT_BYTES) for size in (usage.sent, usage.received))
    plain = Usage(writes, reads, usage.sent, usage.received)
    print(
        f"{verb:<38} {usage.writes * scale:>8.0f} {usage.reads * scale:>8.0f} "
        f"{usage.sent * scale / 1e6:>8.1f} {usage.received * scale / 1e6:>8.1f} {usage.dollars * scale:>8.5f}"
    )
    return Measured(
        "bucket",
        verb,
        "USD for a billion records",
        usage.dollars * scale * 1e3,
        plain.dollars * scale * 1e3,
        "the same bytes in objects of 8 MiB",
        plain.dollars / usage.dollars,
        {"requests": dict(store.requests), "sent": usage.sent, "received": usage.received},
    )


# ---------------------------------------------------------------- CPU time


def _cpu(run: Run) -> Iterator[Measured]:
    table = records_of(min(run.records, MOST_RECORDS))
    ours: dict[str, list[Times]] = {}
    theirs: dict[str, list[Times]] = {}
    for _ in range(run.repetitions + 1):  # alternating, because the machine has other work
        with metered() as store, opened(store) as logs:
            _timed_verbs(logs, table, ours)
        with (
            tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else run.scratch) as directory,
            lastword.open(directory, "a", log_cleaner_enable=False) as logs,
        ):
            _timed_verbs(logs, table, theirs)
        with metered() as store, opened(store) as logs:
            _timed_appends(logs, table, ours, lambda: _stored_again(store))
        with (
            tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else run.scratch) as directory,
            lastword.open(directory, "a", log_cleaner_enable=False) as logs,
        ):
            _timed_appends(logs, table, theirs, lambda: _written_again(Path(directory)))
    for verb in ours:
        mine, rival = ([times.cpu for times in runs[verb][1:]] for runs in (ours, theirs))
        yield compared(
            "bucket",
            f"{verb}: CPU without latency",
            rate(table.num_rows, mine),
            rate(table.num_rows, rival),
            "a log in a directory",
            cpu_ratio=statistics.median(mine) / statistics.median(rival),
        )


WITHOUT_STORING = "append of new logs, without storing the bytes"


def _timed_appends(
    logs: LogDir, table: pa.Table, times: dict[str, list[Times]], store_again: Callable[[], Times]
) -> None:
    """Time appends to a new log, and subtract the time of storing the same bytes again, and nothing else.

    Both sides store in new memory: that of a store in memory is our own, that of a directory in memory is the
    kernel's. A store at a distance has its own, and the process that appends to it keeps its memory.
    """
    topic = logs.create_topic("t", cleanup_policy="compact")
    whole = timed(lambda: _extend(topic, table, COMMIT_RECORDS))
    logs.sync()
    stored = store_again()
    times.setdefault("append of new logs", []).append(whole)
    times.setdefault(WITHOUT_STORING, []).append(Times(whole.cpu - stored.cpu, whole.wall - stored.wall))


def _stored_again(store: MeteredStore) -> Times:
    """Copy the bytes of each object into new memory, which is kept until all are copied."""
    sizes = [facts.size for facts in store.list()]
    source = memoryview(bytearray(b"x") * max(sizes))
    kept: list[bytearray] = []
    return timed(lambda: kept.extend(bytearray(source[:size]) for size in sizes))


def _written_again(directory: Path) -> Times:
    """Write the bytes of each file into a new one, with a call for each 16 MiB."""
    sizes = [path.stat().st_size for path in directory.rglob("*") if path.is_file()]
    source = memoryview(bytearray(b"x") * min(max(sizes), 16 << 20))

    def write() -> None:
        for number, size in enumerate(sizes):
            with (directory / f"again-{number}").open("wb", buffering=0) as file:
                for start in range(0, size, len(source)):
                    file.write(source[: size - start])

    times = timed(write)
    for path in directory.glob("again-*"):
        path.unlink()
    return times


def _timed_verbs(logs: LogDir, table: pa.Table, times: dict[str, list[Times]]) -> None:
    topic = logs.create_topic("t", cleanup_policy="compact")
    verbs: dict[str, Callable[[], Any]] = {
        "append": lambda: _extend(topic, table, COMMIT_RECORDS),
        "read": lambda: _drain(topic),
        "clean": lambda: logs.clean(),
    }
    for verb, work in verbs.items():
        times.setdefault(verb, []).append(timed(work))


def _single_commits(run: Run) -> Measured:
    """Commit each record alone, in one process, beside appends to a directory that are synced one by one."""
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(run.repetitions + 1):
        with metered() as store, opened(store) as logs:
            topic = logs.create_topic("t", cleanup_policy="compact")
            for _ in range(2):  # the first commit of a process opens the log
                topic.append(b"k", b"first")
            store.reset()
            ours.append(_append_each(topic))
            usage = store.usage()
        with (
            tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else run.scratch) as directory,
            lastword.open(directory, "a", log_cleaner_enable=False) as logs,
        ):
            theirs.append(_append_each(logs.create_topic("t", cleanup_policy="compact", lastword_ack="disk")))
    return compared(
        "bucket",
        "a commit for each record: CPU without latency",
        rate(SINGLE_COMMITS, ours[1:]),
        rate(SINGLE_COMMITS, theirs[1:]),
        "a synced append to a directory",
        writes=usage.writes / SINGLE_COMMITS,
        sent=usage.sent / SINGLE_COMMITS,
        ms=1000 * statistics.median(ours[1:]) / SINGLE_COMMITS,
    )


def _append_each(topic: Any) -> float:
    def append() -> None:
        for number in range(SINGLE_COMMITS):
            topic.append(b"k%d" % (number % 50), b"value %d" % number)

    return timed(append).cpu


# ---------------------------------------------------------------- bandwidth


def _scan(run: Run, slower: int = 1) -> Measured:
    """Scan with 30 ms for each request and 100 MB/s for each connection, or `slower` times slower.

    The other load of the machine counts less in a slow network, in which requests and bytes cost the same.
    """
    files = max(2, min(run.records, MOST_RECORDS) * 1000 // SCAN_FILE_BYTES)
    rows = SCAN_FILE_BYTES // 1_000_000
    values = pa.array([np.random.default_rng(1).bytes(1_000_000 - 200) for _ in range(rows)], pa.binary())
    table = pa.table({"key": pa.array([f"{i}".encode() for i in range(rows)], pa.binary()), "value": values})
    with metered() as store, opened(store) as logs:
        topic = logs.create_topic("t", max_message_bytes="2MiB")
        for _ in range(files):
            topic.extend(table)
        store.request_seconds = REQUEST_SECONDS * slower
        store.bytes_per_second = CONNECTION_BYTES_PER_SECOND / slower
        dirs_of(logs).refresh()
        size = sum(entry.size for _, entry in dirs_of(logs).newest.files() if entry.object)
        seconds = []
        for _ in range(run.repetitions + 1):
            began = time.perf_counter()
            assert _drain(topic) == files * rows
            seconds.append(time.perf_counter() - began)
        store.request_seconds = store.bytes_per_second = 0.0
    most = CONNECTIONS * CONNECTION_BYTES_PER_SECOND / slower / 1e6
    ours = [size / 1e6 / took for took in seconds[1:]]
    return compared(
        "bucket",
        f"scan of {size / 1e6:,.0f} MB, {REQUEST_SECONDS * slower * 1000:.0f} ms a request",
        statistics.median(ours),
        most,
        f"8 connections of {100 // slower} MB/s",
        "MB/s",
        lowest=min(ours),
        highest=max(ours),
        most_under_way=store.most_under_way,
    )


# ---------------------------------------------------------------- many segments


def _many_segments(run: Run) -> Iterator[Measured]:
    """Open a log of 100,000 segments, plan its retention, and append to it; at smaller sizes, of fewer."""
    segments = max(1000, min(run.records, MOST_RECORDS) * MANY_SEGMENTS // MOST_RECORDS)
    (many, few) = (segment_verbs(number) for number in (segments, segments // 4))
    for verb, (times, usage) in many.items():
        rival, _ = few[verb]
        yield compared(
            "bucket",
            f"{verb}: {segments:,} segments",
            segments / max(times.cpu, 1e-3) / 1e3,
            segments // 4 / max(rival.cpu, 1e-3) / 1e3,
            "a quarter of the segments",
            "k segments/CPU s",
            cpu_seconds=times.cpu,
            requests=usage.reads + usage.writes,
            sent=usage.sent,
            received=usage.received,
        )
    _, opening = many["open and plan"]
    _, append = many["append"]
    requests, limit = opening.reads + opening.writes, 2 + MAX_PAGES
    yield Measured(
        "bucket", "open and plan", "requests", requests, limit, "manifest twice, and pages", limit / requests
    )
    yield Measured(
        "bucket",
        "an append, manifest and all",
        "KB sent",
        append.sent / 1e3,
        opening.received / 1e3,
        "the manifest with its pages",
        opening.received / append.sent,
    )


def segment_verbs(
    segments: int, policy: str = "delete", more: Mapping[str, Callable[[MeteredStore], Any]] | None = None
) -> dict[str, tuple[Times, Usage]]:
    """Return what each verb costs on a log of this number of segments.

    A log that is compacted was cleaned, and nothing is due. Each log that is opened loads all it needs.

    Args:
        segments: The number.
        policy: The log's cleanup.policy.
        more: Further verbs over its store.
    """
    costs: dict[str, tuple[Times, Usage]] = {}
    with metered() as store, opened(store) as logs:
        add_segments(logs, segments // SEGMENTS_PER_PARTITION, policy)
        verbs: dict[str, Callable[[], Any]] = {
            "open": lambda: opened(store, "r"),
            "open and plan": lambda: opened(store, "r").plan(due=True),
            "plan": lambda: logs.plan(due=True),
            "expire": logs.expire,
            "append": lambda: logs["t"].append(b"key", b"value", partition=0),
            "open and plan after an append": lambda: opened(store, "r").plan(due=True),
        }
        verbs |= {name: partial(verb, store) for name, verb in (more or {}).items()}
        for verb, work in verbs.items():
            store.reset()
            times = timed(work)
            costs[verb] = times, store.usage()
    return costs


def add_segments(logs: LogDir, partitions: int, policy: str = "delete") -> None:
    """Make a topic with partitions of 100 segments. Only the objects of partition 0 exist.

    The manifest then has as many pages as it may have.
    """
    topic = logs.create_topic("t", partitions, cleanup_policy=policy, segment_bytes=12_000)
    pairs = [(f"key-{i:020d}".encode(), b"v" * 100) for i in range(80 * SEGMENTS_PER_PARTITION)]
    for start in range(0, len(pairs), 80):
        topic.extend(pairs[start : start + 80], partition=0)
    if policy == "compact":
        logs.clean(due=True)
    dirs = dirs_of(logs)
    dirs.refresh()
    rng = random.Random(1)
    source = {name: entry for name, entry in dirs.newest.files() if name.startswith("t-0/")}

    def adopt(files: BucketFiles) -> None:
        for number in range(1, partitions):
            adopted = {}
            for path, entry in source.items():
                name = path.removeprefix("t-0/")
                if name[0].isdigit() or name.startswith(f"{names.PRIVATE}/"):
                    key = None if entry.object is None else f"objects/{rng.getrandbits(128):032x}"
                    adopted[f"t-{number}/{name}"] = entry._replace(object=key)
            files.adopt(adopted)
        offsets = {TopicPartition("t", number): len(pairs) for number in range(partitions)}
        OffsetCheckpoint(files, files.root, names.RECOVERY_POINTS).update(offsets)
        if policy == "compact":
            OffsetCheckpoint(files, files.root, names.FIRST_DIRTY).update(offsets)

    dirs._bucket.transaction(adopt)
    logs.create_topic("u", EMPTY_PARTITIONS)  # its files are a second page
