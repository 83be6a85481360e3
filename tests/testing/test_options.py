"""Options of the test broker: users, TLS, late topics and transactions; and its readers."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from lastword.errors import UsageError
from lastword.protocol import codes
from lastword.testing import Broker
from tests.server.client import Client, metadata
from tests.server.writer import Writer


def test_a_client_with_a_password_and_tls() -> None:
    with Broker(users={"ada": "secret"}, tls=True) as broker:
        settings = {
            "bootstrap.servers": broker.bootstrap_servers,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "ada",
            "sasl.password": "secret",
            "ssl.ca.location": broker.ca,
        }
        producer = confluent_kafka.Producer(settings)
        producer.produce("users", b"1")
        assert producer.flush(10) == 0
        assert [record.value for record in broker.wait_for("users", 1)] == [b"1"]
        wrong = confluent_kafka.Producer(settings | {"sasl.password": "other"})
        wrong.produce("users", b"2")
        assert wrong.flush(0.5) == 1


def test_a_broker_that_is_refused_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No directory of a certificate stays behind, and no temporary log."""
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "used"))
    with pytest.raises(UsageError, match="is not empty"):
        Broker(tmp_path / "used", tls=True)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="openssl made no certificate"):
        Broker(tls=True)
    assert [path.name for path in (tmp_path / "used").iterdir()] == ["file"]


def test_records_are_waited_for(kafka_broker: Broker) -> None:
    with pytest.raises(TimeoutError, match="users has 0 of 1 records after"):
        kafka_broker.wait_for("users", 1, timeout=0.05)
    kafka_broker.create_topic("users").append(b"a", b"1")
    assert [record.value for record in kafka_broker.wait_for("users", 1)] == [b"1"]


def test_groups_and_their_lag(kafka_broker: Broker) -> None:
    users = kafka_broker.create_topic("users", 2)
    users.extend([(b"a", b"1")] * 3, partition=1)
    with Client(kafka_broker.server) as client:
        client.commit(1, partition=1)
    assert kafka_broker.groups() == {"g": "Empty"}
    assert kafka_broker.lag("g") == {("users", 1): 2} and kafka_broker.lag("other") == {}


@pytest.mark.parametrize("kafka_broker", [{"eventual": True}], indirect=True)
def test_topics_and_transactions_are_late(kafka_broker: Broker) -> None:
    with Client(kafka_broker.server) as client:
        answers: list[Any] = [client.ask(metadata("users"), 12).topics[0] for _ in range(2)]
        assert [answer.error_code for answer in answers] == [codes.UNKNOWN_TOPIC_OR_PARTITION, 0]
        writer = Writer(client, kafka_broker.clock, version=1)
        writer.init()
        assert [writer.send(b"1"), writer.end()] == [0, 0]
        assert [writer.add("users"), writer.add("users")] == [codes.CONCURRENT_TRANSACTIONS, 0]


@pytest.mark.slow
@pytest.mark.parametrize("kafka_broker", [{"eventual": True}], indirect=True)
def test_a_producer_of_confluent_goes_on(kafka_broker: Broker) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": kafka_broker.bootstrap_servers, "transactional.id": "t"}
    )
    producer.init_transactions(10)
    began = time.monotonic()
    for number in range(3):
        producer.begin_transaction()
        producer.produce("users", b"%d" % number)
        producer.commit_transaction(10)
    assert time.monotonic() - began < 10
    assert [record.value for record in kafka_broker.wait_for("users", 3)] == [b"0", b"1", b"2"]
