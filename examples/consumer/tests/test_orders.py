"""Tests of the service with a broker in the process of the test: the fixture `kafka_broker` of lastword."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import confluent_kafka
import pytest
from orders import Orders

from lastword.testing import Broker


@pytest.fixture
def start(kafka_broker: Broker, tmp_path) -> Iterator[Callable[[], Orders]]:
    started: list[Orders] = []

    def start() -> Orders:
        service = Orders(kafka_broker.bootstrap_servers, str(tmp_path / "orders.db"))
        started.append(service)
        return service

    yield start
    for service in started:
        service.close()


def send(broker: Broker, *values: object) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})
    for value in values:
        producer.produce("orders", value if isinstance(value, bytes) else json.dumps(value))
    assert producer.flush(10) == 0


def order(number: int) -> dict[str, object]:
    return {"number": number, "customer": "ada", "cents": 100 * number}


def run(service: Orders, count: int) -> None:
    """Let the service take this many messages."""
    end = time.monotonic() + 10
    while count > 0 and time.monotonic() < end:
        count -= service.run_once(0.2)
    assert count == 0


def stored(service: Orders) -> list[int]:
    return [number for (number,) in service.database.execute("SELECT number FROM orders ORDER BY number")]


def test_orders_are_stored(kafka_broker, start):
    send(kafka_broker, order(1), order(2))
    service = start()
    run(service, 2)
    assert stored(service) == [1, 2]


def test_a_message_that_is_no_order_is_kept_with_the_reason(kafka_broker, start):
    send(kafka_broker, order(1), b"{", {"number": 2})
    service = start()
    run(service, 3)
    assert stored(service) == [1]
    refused = list(kafka_broker.topic("orders.refused").read())
    assert [record.value for record in refused] == [b"{", b'{"number": 2}']
    assert refused[1].headers == (("reason", b"KeyError('customer')"),)


def test_an_order_that_comes_twice_is_stored_once(kafka_broker, start):
    send(kafka_broker, order(1))
    kafka_broker.fail("OffsetCommit", "UNKNOWN_MEMBER_ID")  # the group went on without this member
    with pytest.raises(confluent_kafka.KafkaException):
        run(start(), 1)
    kafka_broker.clock.advance("1m", heartbeats=False)  # its session is over
    send(kafka_broker, order(2))
    service = start()
    run(service, 2)
    assert stored(service) == [1, 2]


def test_a_lost_connection_loses_no_order(kafka_broker, start):
    send(kafka_broker, order(1))
    service = start()
    run(service, 1)
    kafka_broker.drop_connections()
    send(kafka_broker, order(2))
    run(service, 1)
    assert stored(service) == [1, 2]


def test_a_service_that_was_away_for_longer_than_the_retention_goes_on(kafka_broker, start):
    kafka_broker.create_topic("orders", retention_ms="7d")
    send(kafka_broker, order(1))
    first = start()
    run(first, 1)
    first.close()
    send(kafka_broker, order(2))
    kafka_broker.clock.advance("8d")
    kafka_broker.clean("orders")
    service = start()
    send(kafka_broker, order(3))
    run(service, 1)
    assert stored(service) == [1, 3]  # the second order expired unread
