"""Changes of a database go through Kafka's protocol into a log in a bucket, and from there into a table.

python examples/changes_pipeline.py [DIR]

    database -> a Kafka producer -> `lastword serve s3://bucket/shop`, twice -> the log in the bucket
             -> Spark reads its view `changes` from the bucket -> a table

The log needs no disk: DIR has Spark's checkpoint and the table. The source is that of change_events.py, in
Debezium's form. One server is active, the other stands by. The active one is killed twice while changes are
produced; the other takes over, and a new process stands by. After each round the table that Spark keeps must
equal the table of the database.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

import lastword
import lastword.spark
from change_events import SCHEMA, TOPIC, events, work
from local_s3 import environment_of, serve

URL = "s3://bucket/shop"
ROUNDS, KILLED_IN = 3, (1, 2)


class Servers:
    """Two processes that serve the log, one of them active."""

    def __init__(self) -> None:
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        self.processes = [self._started(address) for address in self.addresses]

    def _started(self, address: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "lastword", "serve", URL, "--listen", address, "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout is not None and process.stdout.readline(), "the server does not start"
        return process

    def kill_active(self) -> float:
        """Kill the active server, and start it again as a standby; return the seconds of the takeover."""
        with lastword.open(URL) as logs:
            node = logs.dirs.active_server()
            assert node is not None
            index = self.addresses.index(node.address)
            began = time.monotonic()
            self.processes[index].send_signal(signal.SIGKILL)
            self.processes[index].wait()
            while node is None or node.address == self.addresses[index]:
                time.sleep(0.05)
                logs.dirs.confirm()
                node = logs.dirs.active_server()
            seconds = time.monotonic() - began
        self.processes[index] = self._started(self.addresses[index])
        return seconds

    def close(self) -> None:
        """End both servers."""
        for process in self.processes:
            process.terminate()
            process.wait()


def free_port() -> int:
    """Return a port that no program uses."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def publish(servers: Servers, database: sqlite3.Connection, some_are_stored: threading.Event) -> None:
    """Produce the events in the order of the changes. The event is set when the first is acknowledged."""
    refused: list[Any] = []

    def delivered(error: Any, message: Any) -> None:
        some_are_stored.set()
        if error is not None:
            refused.append(error)

    producer = Producer(
        {
            "bootstrap.servers": ",".join(servers.addresses),
            "enable.idempotence": True,
            "linger.ms": 1,
            "batch.num.messages": 10,
            "request.timeout.ms": 3000,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )
    for key, value in events(database):
        producer.produce(TOPIC, value, key, on_delivery=delivered)
        producer.poll(0)
    producer.flush()
    if refused:
        raise RuntimeError(f"{len(refused)} events were not stored: {refused[0]}")


class Replica:
    """The table that follows the changes. A batch that Spark repeats is not applied again."""

    def __init__(self, path: Path) -> None:
        self.rows = sqlite3.connect(path, check_same_thread=False)
        self.rows.execute("create table if not exists customers (id integer primary key, row text)")
        self.rows.execute("create table if not exists batches (number integer primary key)")

    def apply(self, batch: Any, number: int) -> None:
        """Apply a micro-batch: the newest change of each key."""
        changes = [(json.loads(row.key)["id"], row.change, row.row) for row in batch.collect()]
        with self.rows:
            if not self.rows.execute("insert or ignore into batches values (?)", [number]).rowcount:
                return
            for customer, change, row in changes:
                self.rows.execute("delete from customers where id = ?", [customer])
                if change == "upsert":
                    self.rows.execute("insert into customers values (?, ?)", [customer, row])

    def table(self) -> dict[int, Any]:
        """Return the rows by primary key."""
        return {key: json.loads(row) for key, row in self.rows.execute("select id, row from customers")}


def follow(spark: Any, replica: Replica, checkpoint: Path) -> None:
    """Bring the table to the end that the log has now."""
    options = {
        "subscribe": TOPIC,
        "view": "changes",
        "startingOffsets": "earliest",
        "envelope": "debezium",
        "value_format": "json",
        "value_schema": "id INT, name STRING, city STRING",
    }
    changes = spark.readStream.format("lastword").options(**options).load(URL)
    rows = changes.selectExpr("CAST(key AS STRING) AS key", "change", "to_json(value) AS row")
    query = (
        rows.writeStream.foreachBatch(replica.apply)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main(directory: Path, changes: int = 400) -> bool:
    """Change the database, publish, kill, follow, compare."""
    database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    database.executescript(SCHEMA)
    rng = random.Random(16)
    with lastword.open(URL, "a") as logs:
        logs.set_config(broker_session_timeout_ms=2000, broker_heartbeat_interval_ms=500)
        logs.create_topic(TOPIC, cleanup_policy="compact")
    servers, replica = Servers(), Replica(directory / "replica.db")
    quiet = f"-Dlog4j2.configurationFile={Path(__file__).parent / 'log4j2.properties'}"
    spark = lastword.spark.session("local[1]", driver_extraJavaOptions=quiet)
    same = True
    try:
        for number in range(ROUNDS):
            work(database, rng, changes)
            some_are_stored, text = threading.Event(), "both servers run"
            publishing = threading.Thread(target=publish, args=(servers, database, some_are_stored))
            publishing.start()
            if number in KILLED_IN:
                some_are_stored.wait(60)
                text = (
                    f"the active server was killed, the other one took over in {servers.kill_active():.1f} s"
                )
            publishing.join()
            follow(spark, replica, directory / "checkpoint")
            rows = database.execute("SELECT id, name, city FROM customers")
            table = {row[0]: dict(zip(("id", "name", "city"), row, strict=True)) for row in rows}
            is_same = replica.table() == table
            same &= is_same
            print(f"{text}; the table is {'the same' if is_same else 'ANOTHER'}", flush=True)
    finally:
        spark.stop()
        servers.close()
    return same


def run(directory: Path) -> bool:
    """Run `main` beside a local server of S3."""
    with serve() as address:
        os.environ.update(environment_of(address))  # Spark's Python processes inherit it
        return main(directory)


if __name__ == "__main__":
    given = sys.argv[1:]
    scratch = Path(given[0] if given else tempfile.mkdtemp())
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        sys.exit(not run(scratch))
    finally:
        if not given:
            shutil.rmtree(scratch, ignore_errors=True)
