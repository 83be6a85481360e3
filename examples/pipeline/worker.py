"""Read a stream, keep a table on the local disk, and log every change: the process of the pipeline.

python examples/pipeline/worker.py DATA KEPT DISK RECORDS_PER_BATCH [CLEAN_EVERY]

DATA is the log: a directory, or the URL of a log in a bucket. KEPT is a directory with Spark's checkpoint and
the snapshots. Both survive. DISK is the local disk of this machine, which does not. Stop the process in any
way, at any moment, and start it again with its disk or with an empty one: it continues where it stopped, and
its table will be the same as without the stop.

Three rules ensure this:

  - The changes of a batch and its number are logged in one transaction, before they are put into the table. A
    batch whose number is logged is not logged again.
  - The table has the number of its last batch, in one transaction of SQLite with the changes. A batch that is
    in the table, because it was restored from the log, is not counted again.
  - The topic is compacted: the newest record of each key is the table, however long the process has run.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import lastword
import lastword.spark
from lastword.errors import SnapshotRefusedError

FLIGHTS, STREAKS = "flights", "streaks"
CLEAN_EVERY = 5
"""Number of batches between two cleanings; each cleaning is followed by a snapshot."""


class Table:
    """The local state: the streak of each aircraft, which is its flights since its last cancellation."""

    def __init__(self, disk: Path) -> None:
        disk.mkdir(parents=True, exist_ok=True)
        # Spark calls from its own thread, one batch at a time.
        self.rows = sqlite3.connect(disk / "streaks.db", check_same_thread=False)
        self.rows.execute("create table if not exists streaks (aircraft text primary key, streak text)")
        self.rows.execute("create table if not exists batches (number int)")

    @property
    def batch(self) -> int:
        """The number of the last batch in the table; -1 before the first."""
        return int(self.rows.execute("select coalesce(max(number), -1) from batches").fetchone()[0])

    def get(self, aircraft: str) -> dict[str, Any] | None:
        row = self.rows.execute("select streak from streaks where aircraft = ?", [aircraft]).fetchone()
        return row and json.loads(row[0])

    def put(self, changes: Iterable[tuple[str, dict[str, Any] | None]], number: int) -> None:
        with self.rows:  # one transaction
            self.rows.execute("insert into batches values (?)", [number])
            for aircraft, streak in changes:
                if streak is None:
                    self.rows.execute("delete from streaks where aircraft = ?", [aircraft])
                else:
                    self.rows.execute("replace into streaks values (?, ?)", [aircraft, json.dumps(streak)])

    def __len__(self) -> int:
        return int(self.rows.execute("select count(*) from streaks").fetchone()[0])


def restore(data: str, kept: Path, disk: Path) -> Table:
    """Return the table; on an empty disk, restore it from the newest snapshot and the log after it."""
    if (disk / "streaks.db").exists():
        return Table(disk)  # at most one batch behind the log; Spark repeats that batch
    table = Table(disk)
    snapshot = max(kept.glob("snapshot-*.parquet"), default=None)
    with lastword.open(data) as logs:
        number = logs.position(STREAKS)
        if isinstance(number, int):
            try:
                state = logs.state(STREAKS, snapshot=snapshot)
            except SnapshotRefusedError:  # too old to be safe; the log is complete
                state = logs.state(STREAKS)
            table.put(state.items(), number)
            print(
                f"restored {len(table)} streaks from {snapshot.name if snapshot else 'the log'}", flush=True
            )
    return table


def changes_of(table: Table, records: Iterable[tuple[str, str]]) -> dict[str, dict[str, Any] | None]:
    """Return the changes that a batch makes: the new streak of each aircraft in it; None for an ended streak.

    Args:
        table: The local state before the batch.
        records: (aircraft, flight as JSON); the records of one aircraft are in order.
    """
    changes: dict[str, dict[str, Any] | None] = {}
    for aircraft, text in records:
        streak = changes[aircraft] if aircraft in changes else table.get(aircraft)
        flight = json.loads(text)
        if flight["cancelled"]:
            changes[aircraft] = None
        else:
            before = streak or {"flights": 0, "miles": 0}
            changes[aircraft] = {
                "flights": before["flights"] + 1,
                "miles": before["miles"] + flight["distance"],
                "at": flight["dest"],
            }
    return changes


def run(
    spark: Any, data: str, kept: Path, disk: Path, records_per_batch: int, clean_every: int = CLEAN_EVERY
) -> None:
    """Process the input that exists now, then return."""
    table = restore(data, kept, disk)

    def step(batch: Any, number: int) -> None:
        if number > table.batch:
            changes = changes_of(table, records_of(batch))
            log_changes(data, changes, number)
            print(f"batch {number} logged", flush=True)  # Spark has not committed the batch yet
            table.put(changes.items(), number)
        if number % clean_every == clean_every - 1:
            lastword.spark.clean(spark, data, STREAKS)
            with lastword.open(data) as logs:
                logs.restore(STREAKS, to=kept / f"snapshot-{number:06d}.parquet")

    stream = (
        spark.readStream.format("lastword")
        .option("subscribe", FLIGHTS)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", records_per_batch)
        .load(data)
    )
    query = (
        stream.where("key is not null")
        .selectExpr("string(key) aircraft", "offset", "string(value) flight")
        .writeStream.foreachBatch(step)
        .option("checkpointLocation", str(kept / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def records_of(batch: Any) -> Iterator[tuple[str, str]]:
    """Yield the flights of a batch by offset: all flights of an aircraft are in one partition."""
    rows = batch.orderBy("offset").select("aircraft", "flight").toArrow()
    return zip(*(column.to_pylist() for column in rows.columns), strict=True)


def log_changes(data: str, changes: dict[str, dict[str, Any] | None], number: int) -> None:
    with lastword.open(data, "a", timeout="1m", log_cleaner_enable=False) as logs:
        logs.create_topic(
            STREAKS, 2, exist_ok=True, key_serializer="str", value_serializer="json", cleanup_policy="compact"
        )
        if logs.position(STREAKS) != number:  # else Spark repeats a batch that is logged
            with logs.transaction() as tx:
                for aircraft, streak in changes.items():
                    tx.append(STREAKS, aircraft, streak)
                tx.position(STREAKS, number)


def session() -> Any:
    """Return a session of two tasks, whose log has errors only."""
    quiet = f"-Dlog4j2.configurationFile={Path(__file__).parents[1] / 'log4j2.properties'}"
    return lastword.spark.session("local[2]", sql_shuffle_partitions=2, driver_extraJavaOptions=quiet)


if __name__ == "__main__":
    run(
        session(),
        sys.argv[1],
        Path(sys.argv[2]),
        Path(sys.argv[3]),
        *map(int, sys.argv[4:]),
    )
