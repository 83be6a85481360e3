"""Measure keyed upserts into a log in a bucket beside Delta Lake's MERGE, on one S3 server."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from tests.support.stores import Server, moto

import lastword
from bench.metered_store import Usage
from bench.registry import Measured, Run, timed, workload

ROUNDS = 6
"""A round upserts a tenth of the keys, so a cleaning is due once within six: the space target is 1.5."""
VALUE_BYTES = 100
LOAD_ROWS = 1_000_000


@dataclass(frozen=True)
class Cost:
    """What a step cost the client."""

    cpu: float
    wall: float
    usage: Usage

    @property
    def requests(self) -> int:
        return self.usage.writes + self.usage.reads


@workload("merge")
def merge(run: Run) -> Iterator[Measured]:
    """Upsert a tenth of the keys of a table, six times, and then read the newest values.

    Rival: Delta Lake's MERGE (deltalake) into a table of the same rows, on the same S3 server (moto, in a
    process of its own). We append, and clean what is due. The keys of a round are uniform, or a range of the
    keys in the order of the table, so that MERGE rewrites few files. The server is slower than both, so CPU
    time of the client counts.
    """
    print(f"\n{'':<38} {'CPU s':>8} {'elapsed':>8} {'MB sent':>8} {'received':>8} {'writes':>7} {'reads':>7}")
    lines = [line for keys in ("uniform", "range") for line in _compared(run.records, keys)]
    print()
    yield from lines


def _compared(records: int, keys: str) -> Iterator[Measured]:
    with s3_server() as usage:
        ours = _costs(_Log(usage.server), usage, records, keys, f"log, {keys} keys")
    with s3_server() as usage:
        theirs = _costs(_Delta(usage.server), usage, records, keys, f"MERGE, {keys} keys")
    for step in ("upserts", "read"):
        mine, rival = ours[step], theirs[step]
        amounts: dict[str, Callable[[Cost], float]] = {
            "CPU s": lambda cost: cost.cpu,
            "MB sent": lambda cost: cost.usage.sent / 1e6,
            "MB received": lambda cost: cost.usage.received / 1e6,
            "requests": lambda cost: cost.requests,
            "micro-USD for requests": lambda cost: cost.usage.dollars * 1e6,
        }
        for unit, amount in amounts.items():
            if step == "upserts" or unit != "MB sent":
                facts = {"wall_seconds": mine.wall, "rival_wall_seconds": rival.wall}
                a, b = amount(mine), amount(rival)
                name = "Delta Lake's MERGE" if step == "upserts" else "Delta Lake"
                yield Measured("merge", f"{step}, {keys} keys", unit, a, b, name, b / max(a, 1e-6), facts)


def _costs(table: _Log | _Delta, usage: RemoteUsage, records: int, keys: str, name: str) -> dict[str, Cost]:
    """Load the table, upsert in rounds and read; return the cost of each."""
    rng = np.random.default_rng(1)
    costs: dict[str, Cost] = {}

    def measure(step: str, work: Callable[[], Any]) -> None:
        usage.take()
        times = timed(work)
        costs[step] = Cost(times.cpu, times.wall, usage.take())
        spent = costs[step].usage
        print(
            f"{name + ': ' + step:<38} {times.cpu:>8.2f} {times.wall:>8.2f} {spent.sent / 1e6:>8.1f} "
            f"{spent.received / 1e6:>8.1f} {spent.writes:>7} {spent.reads:>7}",
            flush=True,
        )

    table.create(
        [
            value_rows(np.arange(first, min(first + LOAD_ROWS, records)), rng)
            for first in range(0, records, LOAD_ROWS)
        ]
    )
    rows = records // 10
    for number in range(ROUNDS):
        if keys == "uniform":
            chosen = rng.choice(records, rows, replace=False)
        else:
            chosen = rng.permutation(np.arange(number * rows, (number + 1) * rows))
        measure(f"round {number + 1}", partial(table.upsert, value_rows(chosen, rng)))
    measure("read", lambda: table.read(records))
    rounds = [costs[f"round {number + 1}"] for number in range(ROUNDS)]
    usages = [cost.usage for cost in rounds]
    total = Usage(
        *(sum(getattr(spent, field) for spent in usages) for field in ("writes", "reads", "sent", "received"))
    )
    costs["upserts"] = Cost(sum(cost.cpu for cost in rounds), sum(cost.wall for cost in rounds), total)
    return costs


def value_rows(numbers: np.ndarray, rng: np.random.Generator) -> pa.Table:
    """Return rows with keys of 20 characters and values of 100, of which half is compressible."""
    digits = rng.integers(0, 16, (numbers.size, VALUE_BYTES), dtype=np.uint8)
    text = np.frombuffer(b"0123456789abcdef", np.uint8)[digits].tobytes()
    offsets = pa.py_buffer(np.arange(0, len(text) + 1, VALUE_BYTES, dtype=np.int32))
    values = pa.StringArray.from_buffers(numbers.size, offsets, pa.py_buffer(text))
    return pa.table({"key": pa.array([f"key-{number:016d}" for number in numbers.tolist()]), "value": values})


# ---------------------------------------------------------------- the two sides


class _Log:
    """A log in a bucket with the library's defaults, compressed with lz4, beside Delta's snappy."""

    def __init__(self, server: Server) -> None:
        self._logs = lastword.open(
            f"{server.root}/log",
            "a",
            storage_options=server.options,
            log_cleaner_enable=False,
            lastword_commit_linger_ms=0,
        )

    def create(self, tables: list[pa.Table]) -> None:
        topic = self._logs.create_topic(
            "t",
            cleanup_policy="compact",
            compression_type="lz4",
            key_serializer="str",
            value_serializer="str",
        )
        for table in tables:
            topic.extend(table)
        self._logs.clean(due=True)

    def upsert(self, rows: pa.Table) -> None:
        self._logs["t"].extend(rows)
        self._logs.clean(due=True)

    def read(self, records: int) -> None:
        batches = self._logs["t"].read(view="newest").arrow()
        assert sum(batch.num_rows for batch in batches) == records


class _Delta:
    """A table of Delta Lake with its defaults."""

    def __init__(self, server: Server) -> None:
        self._uri = f"{server.root}/table"
        self._options = {f"aws_{name}": value for name, value in server.options.items()}
        self._options |= {"aws_allow_http": "true", "aws_conditional_put": "etag"}

    def create(self, tables: list[pa.Table]) -> None:
        write_deltalake(self._uri, pa.concat_tables(tables), storage_options=self._options)

    def upsert(self, rows: pa.Table) -> None:
        table = DeltaTable(self._uri, storage_options=self._options)
        merger = table.merge(rows, "t.key = s.key", source_alias="s", target_alias="t")
        merger.when_matched_update_all().when_not_matched_insert_all().execute()

    def read(self, records: int) -> None:
        table = DeltaTable(self._uri, storage_options=self._options)
        batches = pa.RecordBatchReader.from_stream(table.scan())
        assert sum(batch.num_rows for batch in batches) == records


# ---------------------------------------------------------------- the server


class RemoteUsage:
    """The requests of a server in another process."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.server: Server = connection.recv()

    def take(self) -> Usage:
        """Return the requests since the last call."""
        self._connection.send(True)
        usage: Usage = self._connection.recv()
        return usage


@contextmanager
def s3_server() -> Iterator[RemoteUsage]:
    context = multiprocessing.get_context("spawn")
    connection, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,))
    process.start()
    try:
        yield RemoteUsage(connection)
    finally:
        connection.send(False)
        process.join()


def _serve(connection: Connection) -> None:
    """Run moto until the other end sends False; send the requests whenever it sends True."""
    lock, counted = Lock(), Usage(0, 0, 0, 0)

    def count(method: str, sent: int, received: int) -> None:
        nonlocal counted
        reads, writes = method in ("GET", "HEAD"), method in ("PUT", "LIST", "POST")
        with lock:
            counted = Usage(
                counted.writes + writes,
                counted.reads + reads,
                counted.sent + sent,
                counted.received + received,
            )

    with moto(count) as server:
        connection.send(server)
        while connection.recv():
            with lock:
                connection.send(counted)
                counted = Usage(0, 0, 0, 0)
