"""A service that stores orders from Kafka in a database, each of them once.

An order is stored before its offset is committed. After a crash between the two, Kafka delivers the order
again; its number is the primary key, so the second insert changes nothing. A message that is no order goes to
a topic of its own, with the reason.
"""

from __future__ import annotations

import json
import sqlite3

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

TABLE = """
CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, customer TEXT NOT NULL, cents INTEGER NOT NULL)
"""


class Orders:
    """Stores the orders of a topic. `run_once` in a loop is the service."""

    def __init__(self, bootstrap_servers: str, database: str) -> None:
        self.database = sqlite3.connect(database)
        self.database.execute(TABLE)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "orders",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._consumer.subscribe(["orders"])
        self._refused = Producer({"bootstrap.servers": bootstrap_servers})

    def run_once(self, timeout: float = 1.0) -> int:
        """Store the next orders, and return how many messages there were."""
        messages = [message for message in self._consumer.consume(500, timeout) if _has_data(message)]
        if not messages:
            return 0
        with self.database:
            for message in messages:
                self._store(message)
        self._refused.flush()
        self._consumer.commit(asynchronous=False)
        return len(messages)

    def _store(self, message: Message) -> None:
        try:
            order = json.loads(message.value())
            row = (int(order["number"]), str(order["customer"]), int(order["cents"]))
        except (ValueError, TypeError, KeyError) as error:
            reason = [("reason", repr(error).encode())]
            self._refused.produce("orders.refused", message.value(), message.key(), headers=reason)
        else:
            self.database.execute("INSERT OR IGNORE INTO orders VALUES (?, ?, ?)", row)

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()
        self.database.close()


def _has_data(message: Message) -> bool:
    error = message.error()
    if error is None:
        return True
    if error.fatal() or error.code() not in (KafkaError._PARTITION_EOF, KafkaError.UNKNOWN_TOPIC_OR_PART):
        raise KafkaException(error)
    return False
