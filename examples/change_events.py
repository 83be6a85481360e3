"""Change events of a database in Kafka, in Debezium's form, and the table that they restore.

python examples/change_events.py [DIR]

Each change of the table `customers` becomes a record: the primary key as its key, and as its value the row
before and after, the operation, and the time. A delete is followed by a tombstone, so that cleaning removes
the key. The topic is compacted: after a cleaning it has the newest event of each row, from which anybody
restores the table.

The log is served to Kafka's clients by this process: confluent-kafka produces and consumes.
"""

from __future__ import annotations

import json
import random
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

import lastword

TOPIC = "shop.public.customers"
CITIES = ("Turin", "Oslo", "Rome", "Lima")
SCHEMA = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, city TEXT);
CREATE TABLE changes (number INTEGER PRIMARY KEY, id INTEGER, op TEXT, before TEXT, after TEXT);
CREATE TRIGGER created AFTER INSERT ON customers BEGIN
  INSERT INTO changes VALUES (NULL, new.id, 'c', NULL, {new});
END;
CREATE TRIGGER updated AFTER UPDATE ON customers BEGIN
  INSERT INTO changes VALUES (NULL, new.id, 'u', {old}, {new});
END;
CREATE TRIGGER deleted AFTER DELETE ON customers BEGIN
  INSERT INTO changes VALUES (NULL, old.id, 'd', {old}, NULL);
END;
""".format(
    **{row: f"json_object('id', {row}.id, 'name', {row}.name, 'city', {row}.city)" for row in ("old", "new")}
)


def work(database: sqlite3.Connection, rng: random.Random, changes: int) -> None:
    """Insert, update and delete customers."""
    for _ in range(changes):
        ids = [number for (number,) in database.execute("SELECT id FROM customers")]
        if len(ids) < 20:
            database.execute("INSERT INTO customers VALUES (NULL, ?, ?)", ("ada", rng.choice(CITIES)))
        elif rng.random() < 0.9:
            database.execute(
                "UPDATE customers SET city = ? WHERE id = ?", (rng.choice(CITIES), rng.choice(ids))
            )
        else:
            database.execute("DELETE FROM customers WHERE id = ?", (rng.choice(ids),))


def events(database: sqlite3.Connection) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield key and value of a record for each change since the last call."""
    rows = database.execute("SELECT number, id, op, before, after FROM changes ORDER BY number").fetchall()
    for number, row_id, op, before, after in rows:
        key = json.dumps({"id": row_id}).encode()
        source = {
            "connector": "sqlite",
            "db": "shop",
            "schema": "public",
            "table": "customers",
            "lsn": number,
        }
        event = {
            "before": before and json.loads(before),
            "after": after and json.loads(after),
            "source": source,
            "op": op,
            "ts_ms": time.time_ns() // 1_000_000,
        }
        yield key, json.dumps(event).encode()
        if op == "d":
            yield key, None
    database.execute("DELETE FROM changes")


def publish(bootstrap_servers: str, database: sqlite3.Connection) -> None:
    """Produce the events in the order of the changes."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "enable.idempotence": True, "linger.ms": 5})
    for key, value in events(database):
        producer.produce(TOPIC, value, key)
    producer.flush()


def restored(bootstrap_servers: str) -> dict[int, dict[str, Any]]:
    """Return the rows that the topic has, by primary key. Read to the end that the topic has now."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "replica"})
    partition = TopicPartition(TOPIC, 0, 0)
    _, end = consumer.get_watermark_offsets(partition)
    consumer.assign([partition])
    table: dict[int, dict[str, Any]] = {}
    position = 0
    while position < end:
        for message in consumer.consume(1000, 1):
            position = message.offset() + 1
            number = json.loads(message.key())["id"]
            after = message.value() and json.loads(message.value())["after"]
            if after:
                table[number] = after
            else:
                table.pop(number, None)
    consumer.close()
    return table


def main(directory: str) -> None:
    """Change the table, publish, clean, restore, compare."""
    database = sqlite3.connect(":memory:", isolation_level=None)
    database.executescript(SCHEMA)
    rng = random.Random(16)
    with lastword.open(directory, "a") as logs, lastword.serve(logs, "127.0.0.1:0") as server:
        topic = logs.create_topic(TOPIC, cleanup_policy="compact")
        for _ in range(3):
            work(database, rng, 1000)
            publish(server.bootstrap_servers, database)
            before = sum(1 for _ in topic.read())
            logs.clean(TOPIC)
            after = sum(1 for _ in topic.read())
            rows = database.execute("SELECT id, name, city FROM customers")
            table = {row[0]: dict(zip(("id", "name", "city"), row, strict=True)) for row in rows}
            answer = "the same" if restored(server.bootstrap_servers) == table else "ANOTHER"
            print(f"{before} events, {after} after a cleaning; the table from them is {answer}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(scratch)
