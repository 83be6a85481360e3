"""Run histories of a topic that is exported to a Delta table, judged after every commit.

    python -m tests.lake.histories --histories 5000 --jobs 2

A history is determined by its seed: upserts, deletions, transactions, cleanings of both strategies, trims,
retention, values that expire, cuts of the log, a topic that is made again; and exports, of which some are
killed at a file operation, and some meet the commit of another exporter. After every commit the rows are
those of a plain replay of the log, in delta-rs and in polars; at the end each older version has the rows that
it had. `--spark 100` reads all versions of every hundredth table with Spark and Delta, too. The command exits
with 1 if a rule is violated, and prints the command that repeats the history:

    python -m tests.lake.histories --seed 4711
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import polars
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

import lastword
from lastword.clock import ManualClock
from lastword.errors import LastwordError
from lastword.files import DEFAULT
from lastword.partition import scan
from lastword.records.batch import BatchBuilder
from lastword.state import changes
from tests.fakes.recording import Call, RecordingFiles, Stopped
from tests.support.delta import connect, delta_server, rows_at
from tests.transactions import end_transaction

TOPIC = "t"
KEYS = 40
STEPS = 14
MOST_CHANGES = 15
"""File operations of an export, about; a kill comes before one of them."""
NOW_MS = 1_790_000_000_000
SAVED_LEDGER = changes.saved_ledger
CONTINUES = changes.KeptScan.continues

Rows = dict[tuple[int, int], tuple[str, str]]


class Violation(AssertionError):
    """The table has other rows than the log."""


@dataclass
class History:
    """One history in a directory."""

    seed: int
    place: Path
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.clock = ManualClock(NOW_MS)
        self.table = str(self.place / "table")
        self.to = f"delta:{self.table}"
        self.layout = "merge" if self.seed % 5 == 4 else "vectors"
        self.value = 0
        self.producer = 0
        self.open: list[tuple[int, int]] = []
        self.versions: dict[int, Rows] = {}

    def run(self) -> None:
        """Run all steps, with an export at the end. Odd seeds read short logs with the kernels, too."""
        with ExitStack() as stack:
            stack.enter_context(patch.object(changes, "saved_ledger", self.saved_ledger))
            kept = patch.object(changes.KeptScan, "continues", lambda *given: self.continues(*given))
            stack.enter_context(kept)
            if self.seed % 2:
                stack.enter_context(patch.object(scan, "is_short", lambda *given: False))
            self._run()

    def saved_ledger(self, *given: Any, **how: Any) -> Any:
        """Count the exports that use a saved garbage index, or begin a scan that is kept."""
        found = SAVED_LEDGER(*given, **how)
        self.counts["indexes"] += found is not None and found.limit > 0
        return found

    def continues(self, *given: Any) -> bool:
        """Count the exports that continue the scan of the one before."""
        found = CONTINUES(*given)
        self.counts["continued"] += found
        return found

    def _run(self) -> None:
        target = self.random.choice([1.5, 4, 10])
        with (
            lastword.open(
                self.place / "log",
                "a",
                clock=self.clock,
                log_cleaner_enable=False,
                lastword_space_target=target,
            ) as self.logs,
            lastword.open(self.place / "log", "r", clock=self.clock) as self.reader,
        ):
            self.create()
            for _ in range(STEPS):
                step = self.random.choice(STEPS_OF_A_HISTORY)
                self.counts[step.__name__] += 1
                step(self)
                if self.seed % 4 == 1:
                    self.export()
                self.clock.advance(self.random.choice([0, 1000, 90_000]))
            self.export()
            self.check_versions()

    # -------------------------------------------------------------- the log

    def create(self) -> None:
        self.logs.create_topic(
            TOPIC,
            self.random.choice([1, 2]),
            cleanup_policy=self.random.choice(["compact", "compact,delete"]),
            segment_bytes=self.random.choice([1 << 11, 1 << 14]),
            retention_ms="10m",
            delete_retention_ms=self.random.choice([0, 60_000]),
            min_cleanable_dirty_ratio=0,
            lastword_strategy=self.random.choice(["kafka", "generational"]),
            lastword_ttl_ms=self.random.choice([-1, 200_000]),
            key_serializer="str",
            value_serializer="str",
        )
        self.open = []

    def append(self) -> None:
        topic = self.logs.topic(TOPIC)
        for _ in range(self.random.randrange(1, 25)):
            self.value += 1
            key = f"k{self.random.randrange(KEYS)}"
            topic.append(key, None if self.random.random() < 0.2 else f"v{self.value}-" + "x" * 20)

    def commit(self) -> None:
        with self.logs.transaction() as transaction:
            for number in range(4):
                self.value += 1
                transaction.append(TOPIC, f"k{number}", f"v{self.value}")

    def undecided(self) -> None:
        """Begin a transaction, or end the oldest one."""
        if self.open:
            self.end(0, commit=self.random.random() < 0.5)
        else:
            self.begin()

    def aborted(self) -> None:
        """Begin a transaction and abort it: its records are the newest of their keys, and no rows."""
        self.begin()
        self.end(-1, commit=False)

    def end(self, number: int, *, commit: bool) -> None:
        partition, producer = self.open.pop(number)
        end_transaction(self.logs.dirs.log(TOPIC, partition), producer, 0, commit)

    def begin(self) -> None:
        self.producer += 1
        partition = self.random.randrange(self.logs.topic(TOPIC).partitions)
        builder = BatchBuilder(
            producer_id=self.producer, producer_epoch=0, base_sequence=0, transactional=True
        )
        for number in range(3):
            self.value += 1
            builder.append(self.clock.now_ms(), f"k{number}".encode(), f"v{self.value}".encode())
        self.logs.dirs.log(TOPIC, partition).append_batch(builder.build())
        self.open.append((partition, self.producer))

    def clean(self) -> None:
        for number in self.logs.topic(TOPIC).bounds():
            self.logs.dirs.log(TOPIC, number).roll()
        self.logs.clean(TOPIC)
        if self.random.random() < 0.5:
            self.clock.advance(120_000)
            self.logs.clean(TOPIC)

    def trim(self) -> None:
        topic = self.logs.topic(TOPIC)
        for number, (start, end) in topic.bounds().items():
            topic.trim(self.random.randint(start, (start + end) // 2), partition=number)

    def expire(self) -> None:
        self.clock.advance(500_000)
        self.logs.expire(TOPIC)

    def cut(self) -> None:
        if self.open:
            return
        number = self.random.randrange(self.logs.topic(TOPIC).partitions)
        log = self.logs.dirs.log(TOPIC, number)
        log.truncate_to(self.random.randint((log.log_start + log.log_end) // 2, log.log_end))

    def remake(self) -> None:
        self.logs.delete_topic(TOPIC)
        self.create()

    # -------------------------------------------------------------- the table

    def export(self, files: Any = DEFAULT) -> Any:
        """Export as another process does, which has the log open to read; check the table.

        Most exports are of one process, which keeps its scans. Every fourth history has one after each step.
        """
        with ExitStack() as stack:
            logs = self.reader
            if files is not DEFAULT or self.random.randrange(4) == 0:
                logs = lastword.open(self.place / "log", "r", files=files, clock=self.clock)
                stack.enter_context(logs)
            result = logs.topic(TOPIC).export(self.to, layout=self.layout)
        self.check(result.version)
        return result

    def killed(self) -> None:
        """Export, and be killed before a change of a file: the table is as before, or has the export."""
        self.append()
        files = RecordingFiles(
            DEFAULT, stop_at=self.random.randrange(MOST_CHANGES), torn=self.random.random() < 0.5
        )
        try:
            self.export(files)
        except Stopped:
            self.counts["kills"] += 1
            self.check(None)

    def overtaken(self) -> None:
        """Export, and let another exporter commit before the own commit."""
        state = {"met": False}

        def other(call: Call) -> LastwordError | None:
            if call.name == "link" and not state["met"]:
                state["met"] = True
                self.append()
                self.export()
            return None

        self.export(RecordingFiles(DEFAULT, fail=other))
        self.counts["conflicts"] += state["met"]

    def expected(self) -> Rows:
        """Replay the committed records of the log."""
        known: dict[tuple[int, str], tuple[int, str | None]] = {}
        for record in self.logs.topic(TOPIC).read():
            known[record.partition, record.key] = record.offset, record.value
        return {
            (partition, offset): (key, value)
            for (partition, key), (offset, value) in known.items()
            if value is not None
        }

    def check(self, version: int | None) -> None:
        """Compare the newest version. `version`: that of an export, or None."""
        if not (Path(self.table) / "_delta_log").is_dir() or not DeltaTable.is_deltatable(self.table):
            return
        last = DeltaTable(self.table).version()
        rows = rows_of(self.table)
        if last in self.versions:
            expected = self.versions[last]
        else:
            expected = self.versions[last] = self.expected()
        self.counts["checks"] += 1
        self.counts["vectors"] += bool(list(Path(self.table).glob("deletion_vector_*.bin")))
        if version is not None and version != last:
            raise Violation(f"the export says version {version}, and the table has {last}")
        if rows != expected:
            raise Violation(difference(f"version {last}", rows, expected))

    def check_versions(self) -> None:
        for version, expected in self.versions.items():
            rows = rows_of(self.table, version)
            if rows != expected:
                raise Violation(difference(f"older version {version}", rows, expected))
        if rows_of(self.table) != self.expected():
            raise Violation(difference("the end", rows_of(self.table), self.expected()))

    def check_in_spark(self, session: Any) -> None:
        """Compare every version in a session of `tests.support.delta`."""
        for version, read in rows_at(session, self.table, [*self.versions]).items():
            rows = keyed(read)
            if rows != self.versions[version]:
                raise Violation(difference(f"version {version} in Spark", rows, self.versions[version]))
        self.counts["tables in spark"] += 1


STEPS_OF_A_HISTORY = [
    *[History.append] * 5,
    *[History.export] * 3,
    *[History.killed] * 3,
    *[History.overtaken] * 2,
    *[History.clean] * 3,
    History.commit,
    *[History.undecided] * 2,
    History.aborted,
    History.trim,
    History.expire,
    History.cut,
    History.remake,
]


def rows_of(table: str, version: int | None = None) -> Rows:
    """Read a version of a table with polars and with delta-rs, which must agree."""
    columns = ["partition", "offset", "key", "value"]
    seen = [tuple(row) for row in polars.scan_delta(table, version=version).select(columns).collect().rows()]
    delta = DeltaTable(table, version=version)
    query = QueryBuilder().register("t", delta).execute(f"select {', '.join(map(quoted, columns))} from t")
    other = [tuple(row.values()) for row in pa.table(query).to_pylist()]
    if sorted(seen) != sorted(other):
        raise Violation(f"polars and delta-rs read other rows: {sorted(seen)} and {sorted(other)}")
    return keyed(seen)


def keyed(seen: Sequence[tuple[Any, ...]]) -> Rows:
    """Return rows by their position; each is partition, offset, key and value."""
    rows = {(partition, offset): (key, value) for partition, offset, key, value in seen}
    if len(rows) < len(seen):
        raise Violation(f"a record has two rows: {sorted(seen)}")
    return rows


def quoted(column: str) -> str:
    return f'"{column}"'


def difference(where: str, rows: Rows, expected: Rows) -> str:
    """Return what differs as text."""
    more = {position: row for position, row in rows.items() if expected.get(position) != row}
    less = {position: row for position, row in expected.items() if rows.get(position) != row}
    return f"{where} has {more}, which it should not have, and lacks {less}"


def run(seed: int, spark: str | None = None) -> Counter[str]:
    """Run a history in a new directory; return what it met. `spark`: the address of a server with Delta."""
    memory = Path("/dev/shm")
    place = Path(tempfile.mkdtemp(prefix="lake-", dir=memory if memory.is_dir() else None))
    try:
        history = History(seed, place)
        history.run()
        if spark is not None:
            with connect(spark) as session:
                history.check_in_spark(session)
        return history.counts
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _judged(given: tuple[int, str | None]) -> tuple[int, Counter[str], str | None]:
    seed, spark = given
    try:
        return seed, run(seed, spark), None
    except Exception as error:
        return seed, Counter(), f"{type(error).__name__}: {error}"


def main() -> int:
    """Run the histories of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--spark", type=int, metavar="N", help="read every N-th table with Spark and Delta, too"
    )
    options = parser.parse_args()
    with ExitStack() as stack:
        spark = None
        if options.spark:
            spark = stack.enter_context(delta_server(Path(stack.enter_context(TemporaryDirectory()))))
        return _run_all(options, spark)


def _run_all(options: argparse.Namespace, spark: str | None) -> int:
    if options.seed is not None:
        print(run(options.seed, spark))
        return 0
    began, counts, failed = time.monotonic(), Counter[str](), 0
    seeds = range(options.first, options.first + options.histories)
    given = [(seed, spark if spark and seed % options.spark == 0 else None) for seed in seeds]
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for seed, met, problem in pool.imap_unordered(_judged, given, chunksize=8):
            counts += met
            if problem is not None:
                failed += 1
                print(f"{problem}\n  again: python -m tests.lake.histories --seed {seed}", flush=True)
    facts = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    print(f"{options.histories} histories, {failed} violated, {time.monotonic() - began:.0f} s: {facts}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
