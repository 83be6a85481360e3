"""Measure lookups of single keys, `Topic.get` and `get_many`, and changes that are committed as one."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import lastword
from bench.merge_workloads import RemoteUsage, s3_server
from bench.registry import Measured, Run, compared, timed, workload

UPDATES = 5
"""Records of each key."""
VALUE_BYTES = 100
SINGLE = 20_000
TOGETHER = 100_000
FROM_BUCKET = 1000
CHANGES = 10
"""Changes of a transaction."""


def _key(number: int) -> bytes:
    return b"key-%020d" % number


def _rows(keys: int) -> Iterator[tuple[bytes, bytes]]:
    chosen = random.Random(1)
    for update in range(UPDATES):
        for number in chosen.sample(range(keys), keys):
            yield _key(number), b"%d-%d-" % (update, number) + chosen.randbytes(VALUE_BYTES - 20)


@workload("get")
def get(run: Run) -> Iterator[Measured]:
    """Look up keys in a cleaned log: one by one, many in a call, and the first one of a new process.

    Rivals: SQLite (a table without row ids, WAL), and LMDB and RocksDB (rocksdict) where they are installed.
    They hold the newest values alone, and no history.
    """
    keys = max(1000, run.records // UPDATES)
    path = run.scratch / "get"
    shutil.rmtree(path, ignore_errors=True)
    with lastword.open(path, "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact", segment_bytes="64MiB")
        topic.extend(_rows(keys))
        logs.dirs.log("t", 0).roll()
        logs.clean("t")
        built = timed(lambda: topic.get(b""))
        size = sum(file.stat().st_size for file in (path / "t-0" / "lastword").glob("keys*"))
    newest = dict(_rows(keys))
    chosen = random.Random(2)
    single = chosen.choices(range(keys), k=min(SINGLE, 5 * keys))
    together = list({_key(number) for number in chosen.choices(range(keys), k=TOGETHER)})
    rivals = {"SQLite": _sqlite(run.scratch / "get.db", newest)}
    with suppress(ImportError):
        rivals["LMDB"] = _lmdb(run.scratch / "get.lmdb", newest)
    with suppress(ImportError):
        rivals["RocksDB"] = _rocksdb(run.scratch / "get.rocks", newest)
    with lastword.open(path) as logs:
        topic = logs.topic("t")
        assert topic.get(_key(1)) == newest[_key(1)]
        assert topic.get_many(together) == {key: newest[key] for key in together}
        for name, (find, find_many, _) in rivals.items():
            for what, ours, theirs, count in (
                ("one by one", _each(topic.get, single), _each(find, single), len(single)),
                ("absent keys", _each(topic.get, single, keys), _each(find, single, keys), len(single)),
                (
                    f"{len(together)} in one call",
                    lambda: topic.get_many(together),
                    lambda find_many=find_many: find_many(together),
                    len(together),
                ),
            ):
                mine, other = _alternately(run, ours, theirs)
                yield compared(
                    "get",
                    f"{keys} keys, {what}",
                    count / mine / 1e6,
                    count / other / 1e6,
                    name,
                    "M keys/CPU s",
                    ours_us=mine / count * 1e6,
                    rival_us=other / count * 1e6,
                )
    for name, (_, _, code) in rivals.items():
        mine = statistics.median(_process(_FIRST.format(path=str(path))) for _ in range(run.repetitions))
        other = statistics.median(_process(code) for _ in range(run.repetitions))
        yield compared(
            "get",
            f"{keys} keys, a process that opens and gets one",
            1 / mine,
            1 / other,
            name,
            "processes/CPU s",
            build_cpu_seconds=built.cpu,
            bytes_per_key=size / keys,
        )


@workload("transaction")
def transaction(run: Run) -> Iterator[Measured]:
    """Commit ten changes as one, to ten partitions or to one, beside one synced append, in elapsed time."""
    count = min(200, max(20, run.records // 100))
    path = run.scratch / "transaction"
    with lastword.open(path, "a", log_cleaner_enable=False) as logs:
        topics = {number: logs.create_topic(f"t{number}", number) for number in (1, CHANGES)}

        def append() -> None:
            for number in range(count):
                topics[1].append(_key(number), bytes(VALUE_BYTES), ack="disk")

        def commit(partitions: int) -> None:
            for _ in range(count):
                with logs.transaction() as changes:
                    for number in range(CHANGES):
                        changes.append(
                            f"t{partitions}", _key(number), bytes(VALUE_BYTES), partition=number % partitions
                        )

        rounds = [
            (timed(append), timed(lambda: commit(1)), timed(lambda: commit(CHANGES)))
            for _ in range(run.repetitions + 1)
        ][1:]
    shutil.rmtree(path)
    for number, partitions in ((1, 1), (2, CHANGES)):
        yield Measured(
            "transaction",
            f"{CHANGES} changes in {partitions} partitions",
            "us, elapsed",
            statistics.median(each[number].wall for each in rounds) / count * 1e6,
            statistics.median(each[0].wall for each in rounds) / count * 1e6,
            "one synced append",
            statistics.median(each[0].wall / each[number].wall for each in rounds),
            {"cpu_us": statistics.median(each[number].cpu for each in rounds) / count * 1e6},
        )


@workload("get-bucket")
def get_bucket(run: Run) -> Iterator[Measured]:
    """Count the requests of lookups in a bucket: the first one of a reader, and then random ones.

    Rival: SlateDB's reader, where it is installed. Both have empty caches, and one S3 server (moto, in a
    process of its own). Each lookup waits for its requests, so requests count, not the time of this server.
    """
    keys = max(1000, run.records // UPDATES)
    chosen = [_key(number) for number in random.Random(3).choices(range(keys), k=FROM_BUCKET)]
    with s3_server() as usage:
        mine = _lookups_in_a_log(usage, keys, chosen)
        with suppress(ImportError):
            other = asyncio.run(_lookups_in_slatedb(usage, dict(_rows(keys)), chosen))
            for what, ours, theirs in zip(("open and first", "others"), mine, other, strict=True):
                count = 1 if what == "open and first" else FROM_BUCKET
                for unit, amount in (("requests/get", 1.0), ("KB received/get", 1e3)):
                    at = 0 if amount == 1.0 else 1
                    a, b = (side[at] / count / amount for side in (ours, theirs))
                    yield Measured("get-bucket", f"{keys} keys, {what}", unit, a, b, "SlateDB", b / a)


Lookups = tuple[tuple[int, int], tuple[int, int]]
"""Requests and bytes received: of the opening with the first lookup, and of all others."""


def _lookups_in_a_log(usage: RemoteUsage, keys: int, chosen: list[bytes]) -> Lookups:
    place, options = f"{usage.server.root}/log", usage.server.options
    with lastword.open(place, "a", storage_options=options, log_cleaner_enable=False) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact")
        topic.extend(_rows(keys))
        logs.clean("t")
    usage.take()
    with lastword.open(place, storage_options=options) as logs:
        topic = logs.topic("t")
        assert topic.get(_key(7))
        first = _taken(usage)
        for key in chosen:
            assert topic.get(key)
        return first, _taken(usage)


async def _lookups_in_slatedb(usage: RemoteUsage, newest: dict[bytes, bytes], chosen: list[bytes]) -> Lookups:
    from slatedb import uniffi  # a rival that need not be installed

    options = usage.server.options
    os.environ |= {
        "CLOUD_PROVIDER": "aws",
        "AWS_ACCESS_KEY_ID": options["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": options["secret_access_key"],
        "AWS_ENDPOINT": options["endpoint"],
        "AWS_REGION": options["region"],
        "AWS_BUCKET": usage.server.root.removeprefix("s3://"),
        "AWS_ALLOW_HTTP": "true",
    }
    store = uniffi.ObjectStore.from_env(None)
    database = await uniffi.DbBuilder("slatedb", store).build()
    rows = list(newest.items())
    for start in range(0, len(rows), 10_000):
        batch = uniffi.WriteBatch()
        for key, value in rows[start : start + 10_000]:
            batch.put(key, value)
        await database.write(batch)
    await database.flush()
    await database.shutdown()
    usage.take()
    reader = await uniffi.DbReaderBuilder("slatedb", store).build()
    assert await reader.get(_key(7))
    first = _taken(usage)
    for key in chosen:
        assert await reader.get(key)
    others = _taken(usage)
    await reader.shutdown()
    return first, others


def _taken(usage: RemoteUsage) -> tuple[int, int]:
    spent = usage.take()
    return spent.writes + spent.reads, spent.received


def _each(find: Callable[[bytes], Any], numbers: list[int], add: int = 0) -> Callable[[], None]:
    names = [_key(number + add) for number in numbers]

    def work() -> None:
        for name in names:
            find(name)

    return work


def _alternately(run: Run, ours: Callable[[], Any], theirs: Callable[[], Any]) -> tuple[float, float]:
    """Return the median CPU seconds of both, measured in turn."""
    pairs = [(timed(ours).cpu, timed(theirs).cpu) for _ in range(run.repetitions + 1)][1:]
    mine, other = zip(*pairs, strict=True)
    return statistics.median(mine), statistics.median(other)


_FIRST = (
    "import lastword\n"
    "with lastword.open({path!r}) as logs:\n"
    "    assert logs.topic('t').get(b'key-%020d' % 7)\n"
)


def _process(code: str) -> float:
    """Return the CPU seconds of a process that runs this code."""
    import resource

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


Rival = tuple[Callable[[bytes], Any], Callable[[list[bytes]], Any], str]


def _sqlite(path: Path, newest: dict[bytes, bytes]) -> Rival:
    path.unlink(missing_ok=True)
    rows = sqlite3.connect(path, isolation_level=None)
    rows.execute("pragma journal_mode = wal")
    rows.execute("create table newest (key blob primary key, value blob) without rowid")
    rows.execute("begin")
    rows.executemany("insert into newest values (?, ?)", newest.items())
    rows.execute("commit")

    def find(key: bytes) -> Any:
        return rows.execute("select value from newest where key = ?", (key,)).fetchone()

    def find_many(keys: list[bytes]) -> Any:
        found: dict[bytes, bytes] = {}
        for start in range(0, len(keys), 500):
            part = keys[start : start + 500]
            marks = ",".join("?" * len(part))
            found.update(rows.execute(f"select key, value from newest where key in ({marks})", part))
        return found

    code = (
        "import sqlite3\n"
        f"rows = sqlite3.connect({str(path)!r})\n"
        "assert rows.execute('select value from newest where key = ?', (b'key-%020d' % 7,)).fetchone()\n"
    )
    return find, find_many, code


def _rocksdb(path: Path, newest: dict[bytes, bytes]) -> Rival:
    import rocksdict  # a rival that need not be installed

    shutil.rmtree(path, ignore_errors=True)
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    store = rocksdict.Rdict(str(path), options)
    for start in range(0, len(rows := sorted(newest.items())), 10_000):
        batch = rocksdict.WriteBatch(raw_mode=True)
        for key, value in rows[start : start + 10_000]:
            batch.put(key, value)
        store.write(batch)
    store.flush()
    store.compact_range(None, None)

    def find_many(keys: list[bytes]) -> Any:
        return dict(zip(keys, store.get(keys), strict=True))

    code = (
        "import rocksdict\n"
        f"store = rocksdict.Rdict({str(path)!r}, rocksdict.Options(raw_mode=True),\n"
        "    access_type=rocksdict.AccessType.read_only())\n"
        "assert store.get(b'key-%020d' % 7)\n"
    )
    return store.get, find_many, code


def _lmdb(path: Path, newest: dict[bytes, bytes]) -> Rival:
    import lmdb  # a rival that need not be installed

    shutil.rmtree(path, ignore_errors=True)
    store = lmdb.open(str(path), map_size=8 << 30)
    with store.begin(write=True) as change:
        change.cursor().putmulti(sorted(newest.items()))

    def find(key: bytes) -> Any:
        with store.begin() as reading:
            return reading.get(key)

    def find_many(keys: list[bytes]) -> Any:
        with store.begin() as reading:
            return dict(reading.cursor().getmulti(keys))

    code = (
        f"import lmdb\nstore = lmdb.open({str(path)!r}, readonly=True)\n"
        "with store.begin() as reading:\n    assert reading.get(b'key-%020d' % 7)\n"
    )
    return find, find_many, code
