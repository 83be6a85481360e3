"""librdkafka's producer, consumer and admin client against the server; transactions of other clients, too."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.errors import UsageError
from lastword.server import Server
from tests.server.client import Client

confluent_kafka = pytest.importorskip("confluent_kafka")
admin = pytest.importorskip("confluent_kafka.admin")


def producer(server: Server, **config: Any) -> Any:
    return confluent_kafka.Producer(
        {"bootstrap.servers": server.bootstrap_servers, "linger.ms": 1}
        | {key.replace("_", "."): value for key, value in config.items()}
    )


def read(
    server: Server, topic: str, offset: int = 0, *, count: int, partition: int = 0, **config: Any
) -> list[Any]:
    """Read `count` messages of a partition from an offset on."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": server.bootstrap_servers, "group.id": "tests", "enable.auto.commit": False}
        | {key.replace("_", "."): value for key, value in config.items()}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, offset)])
    messages: list[Any] = []
    end = time.monotonic() + 10
    while len(messages) < count and time.monotonic() < end:
        for message in consumer.consume(count - len(messages), 0.2):
            assert message.error() is None, message.error()
            messages.append(message)
    consumer.close()
    assert len(messages) == count
    return messages


@pytest.fixture
def admin_client(server: Server) -> Iterator[Any]:
    yield admin.AdminClient({"bootstrap.servers": server.bootstrap_servers})


def test_topics_are_managed(server: Server, admin_client: Any, logs: lastword.LogDir) -> None:
    new = admin.NewTopic(
        "users", num_partitions=3, config={"cleanup.policy": "compact", "segment.bytes": "65536"}
    )
    admin_client.create_topics([new])["users"].result(10)
    assert logs["users"].partitions == 3
    assert logs["users"].config.segment_bytes == 65536
    assert len(admin_client.list_topics(timeout=5).topics["users"].partitions) == 3
    admin_client.create_partitions([admin.NewPartitions("users", 5)])["users"].result(10)
    assert logs["users"].partitions == 5
    resource = admin.ConfigResource("topic", "users")
    described = admin_client.describe_configs([resource])[resource].result(10)
    assert described["cleanup.policy"].value == "compact"
    assert described["cleanup.policy"].source == 1
    assert described["max.message.bytes"].is_default
    entry = admin.ConfigEntry("retention.ms", "1000", incremental_operation=admin.AlterConfigOpType.SET)
    change = admin.ConfigResource("topic", "users", incremental_configs=[entry])
    admin_client.incremental_alter_configs([change])[change].result(10)
    assert logs["users"].config.retention_ms == 1000
    admin_client.delete_topics(["users"])["users"].result(10)
    assert "users" not in logs


def test_an_open_topic_and_state_use_partitions_that_a_client_adds(
    server: Server, admin_client: Any, logs: lastword.LogDir
) -> None:
    state = logs.state("users")
    topic = logs["users"]
    packed = logs.topic("users", key_serializer="bytes", value_serializer="bytes")
    for written in (topic, packed):
        written.append(b"k" if written is packed else "k", b"1" if written is packed else 1)
    with pytest.raises(UsageError, match="no partition 2"):
        packed.append(b"k", b"1", partition=2)
    with pytest.raises(UsageError, match="no partition 2"):
        topic.segments(2)
    admin_client.create_partitions([admin.NewPartitions("users", 3)])["users"].result(10)
    assert (topic.partitions, topic.schema.numbers) == (3, (0, 1, 2))
    keys = [f"k{n}" for n in range(30)]
    used = {packed.append(key.encode(), b"1").partition for key in keys}
    assert used == {topic.append(key, 1).partition for key in keys} == {0, 1, 2}
    assert packed.append(b"k", b"1", partition=2).partition == 2
    assert topic.segments(2)[0].partition == 2
    topic.extend((key, 2) for key in keys)
    state.update(dict.fromkeys(keys, 3))
    assert {r.partition for r in topic.read("earliest") if r.value == 3} == {0, 1, 2}
    assert dict(logs.state("users")) == {**dict.fromkeys(keys, 3), "k": 1}


def test_records_are_deleted(server: Server, admin_client: Any, logs: lastword.LogDir) -> None:
    topic = logs.create_topic("users", cleanup_policy="delete")
    for number in range(10):
        topic.append(None, b"%d" % number)
    partition = confluent_kafka.TopicPartition("users", 0, 6)
    deleted = admin_client.delete_records([partition])[partition].result(10)
    assert deleted.low_watermark == 6
    assert [message.offset() for message in read(server, "users", 6, count=4)] == [6, 7, 8, 9]


# ------------------------------------------------------------------ transactions


def transactional(server: Server, name: str = "t", **config: Any) -> Any:
    sender = producer(server, transactional_id=name, **config)
    sender.init_transactions(10)
    return sender


def begin(sender: Any, topic: str, *values: bytes) -> None:
    sender.begin_transaction()
    for value in values:
        sender.produce(topic, value, b"k", partition=0)
    assert sender.flush(10) == 0


def test_offsets_in_a_transaction(server: Server) -> None:
    """Read, transform, write: the position of the group moves with the records."""
    sender = transactional(server)
    begin(sender, "in", *(b"%d" % n for n in range(10)))
    sender.commit_transaction(10)
    config = {"bootstrap.servers": server.bootstrap_servers, "group.id": "copy", "enable.auto.commit": False}
    config |= {"auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    for commit in (False, True):
        consumer = confluent_kafka.Consumer(config)
        consumer.subscribe(["in"])
        messages: list[Any] = []
        end = time.monotonic() + 10
        while len(messages) < 10 and time.monotonic() < end:
            messages += consumer.consume(10 - len(messages), 0.2)
        begin(sender, "out", *(b"copy of " + message.value() for message in messages))
        sender.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 10
        )
        (sender.commit_transaction if commit else sender.abort_transaction)(10)
        (offset,) = consumer.committed([confluent_kafka.TopicPartition("in", 0)], 10)
        assert offset.offset == (10 if commit else confluent_kafka.OFFSET_INVALID)
        consumer.close()
    copies = read(server, "out", count=10, isolation_level="read_committed")
    assert [message.value() for message in copies] == [b"copy of %d" % n for n in range(10)]


def test_transactions_of_aiokafka(server: Server) -> None:
    aiokafka = pytest.importorskip("aiokafka")
    at = aiokafka.TopicPartition("users", 0)

    async def write() -> None:
        sender = aiokafka.AIOKafkaProducer(
            bootstrap_servers=server.bootstrap_servers, transactional_id="aiokafka"
        )
        async with sender:
            for number in range(4):
                await sender.begin_transaction()
                await sender.send_and_wait("users", b"%d" % number, key=b"k")
                await sender.send_offsets_to_transaction({at: number}, "readers")
                await (sender.abort_transaction() if number % 2 else sender.commit_transaction())

    asyncio.run(write())
    found = read(server, "users", count=2, isolation_level="read_committed", group_id="readers")
    assert [message.value() for message in found] == [b"0", b"2"]
    with Client(server) as client:
        assert client.committed("readers").committed_offset == 2


class _Proxy:
    """A port that forwards to a server. After `loses` is set, the answer to a Produce request is lost."""

    def __init__(self, target: int) -> None:
        self.target, self.loses, self.lost = target, False, threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", self.target))
                is_lost = threading.Event()
                for work in (self._requests, self._answers):
                    threading.Thread(target=work, args=(client, server, is_lost), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket, is_lost: threading.Event) -> None:
        with contextlib.suppress(OSError, struct.error), client.makefile("rb") as stream:
            while True:
                head = stream.read(4)
                data = stream.read(*struct.unpack(">i", head))
                if self.loses and data[:2] == b"\0\0":
                    self.loses = False
                    is_lost.set()
                server.sendall(head + data)

    def _answers(self, client: socket.socket, server: socket.socket, is_lost: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while (data := server.recv(1 << 16)) and not is_lost.is_set():
                client.sendall(data)
        for each in (client, server):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        if is_lost.is_set():
            self.lost.set()

    def close(self) -> None:
        self._listener.close()


def test_a_record_behind_an_aborted_batch_whose_answer_was_lost(tmp_path: Path) -> None:
    """librdkafka gives it the sequence of the lost one. A broker takes it for a repeat."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    proxy = _Proxy(port)
    with (
        lastword.open(tmp_path, "a") as logs,
        contextlib.closing(proxy),
        lastword.serve(logs, listen=f"127.0.0.1:{port}", advertise=proxy.address),
    ):
        logs.create_topic("users")
        config = {"bootstrap.servers": proxy.address, "transactional.id": "t", "retry.backoff.ms": 2000}
        sender = confluent_kafka.Producer(config | {"linger.ms": 0, "retry.backoff.max.ms": 2000})
        sender.init_transactions(10)
        sender.begin_transaction()
        proxy.loses = True
        sender.produce("users", b"aborted")
        assert proxy.lost.wait(10)
        sender.abort_transaction(10)
        done = []
        for _ in range(2):
            sender.begin_transaction()
            sender.produce("users", b"%d" % len(done))
            try:
                sender.commit_transaction(10)
            except confluent_kafka.KafkaException as error:
                assert error.args[0].code() == confluent_kafka.KafkaError.INVALID_TXN_STATE
                sender.abort_transaction(10)
            else:
                done.append(b"%d" % len(done))
        assert done and [record.value for record in logs.topic("users").read()] == done
