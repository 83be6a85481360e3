"""librdkafka's consumers in groups of both protocols: several groups at a time, static members, patterns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import lastword
from lastword.errors import StorageError
from lastword.protocol import codes
from lastword.server import Server
from lastword.server.topics import Refused
from tests.server.client import Client, batch
from tests.server.test_consumer_groups import described
from tests.support.threads import together

confluent_kafka = pytest.importorskip("confluent_kafka")

PARTITIONS = 4
PROTOCOLS: dict[str, dict[str, Any]] = {
    "classic": {
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 100,
    },
    "consumer": {"group.protocol": "consumer"},
}


@pytest.fixture
def server(logs: lastword.LogDir) -> Iterator[Server]:
    logs.set_config(group_consumer_heartbeat_interval_ms=100)
    logs.create_topic("users", PARTITIONS)
    with lastword.serve(logs, "127.0.0.1:0") as server:
        yield server


class Reader:
    """A consumer that keeps what it read."""

    def __init__(self, server: Server, group: str, protocol: str, **config: Any) -> None:
        self.group = group
        self.values: list[bytes] = []
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": server.bootstrap_servers,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 50,
            }
            | PROTOCOLS[protocol]
            | config
        )
        self.consumer.subscribe(["users"])

    @property
    def partitions(self) -> list[int]:
        return sorted(partition.partition for partition in self.consumer.assignment())

    def poll(self) -> None:
        for message in self.consumer.consume(100, 0.01):
            assert message.error() is None, message.error()
            self.values.append(message.value())


def poll_until(readers: list[Reader], condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, [(reader.group, reader.partitions) for reader in readers]
        for reader in readers:
            reader.poll()


def shared(readers: list[Reader], each: int) -> bool:
    """Return whether each group has every partition, divided evenly."""
    groups: dict[str, list[list[int]]] = {}
    for reader in readers:
        groups.setdefault(reader.group, []).append(reader.partitions)
    return all(
        sorted(n for part in lists for n in part) == list(range(PARTITIONS))
        and {len(part) for part in lists} == {each}
        for lists in groups.values()
    )


def append(logs: lastword.LogDir, first: int, count: int) -> set[bytes]:
    values = [b"%d" % number for number in range(first, first + count)]
    for number in range(PARTITIONS):
        records = [(b"k", value) for value in values[number::PARTITIONS]]
        logs.dirs.log("users", number).append_batch(batch(*records))
    return set(values)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_three_groups_rebalance_together(server: Server, logs: lastword.LogDir, protocol: str) -> None:
    readers = [Reader(server, f"g{number % 3}", protocol) for number in range(6)]
    poll_until(readers, lambda: shared(readers, 2))
    sent = append(logs, 0, 40)
    poll_until(readers, lambda: all(_values(readers, f"g{n}") == sent for n in range(3)))
    stay, leave = readers[:3], readers[3:]
    for reader in leave:
        reader.consumer.close()
    poll_until(stay, lambda: shared(stay, 4))
    sent |= append(logs, 40, 40)
    poll_until(stay, lambda: all(_values(readers, f"g{n}") == sent for n in range(3)))
    assert all(len(reader.values) == len(set(reader.values)) for reader in readers)
    for reader in stay:
        reader.consumer.close()


def _values(readers: list[Reader], group: str) -> set[bytes]:
    return {value for reader in readers if reader.group == group for value in reader.values}


def test_a_static_member_comes_back_without_a_rebalance(server: Server, logs: lastword.LogDir) -> None:
    static = Reader(server, "g", "consumer", **{"group.instance.id": "one"})
    other = Reader(server, "g", "consumer")
    poll_until([static, other], lambda: shared([static, other], 2))
    partitions = static.partitions
    with Client(server) as client:
        epoch = described(client).group_epoch
        static.consumer.close()
        assert {member.member_epoch for member in described(client).members} == {-2, epoch}
        again = Reader(server, "g", "consumer", **{"group.instance.id": "one"})
        poll_until([again, other], lambda: shared([again, other], 2))
        assert again.partitions == partitions
        assert described(client).group_epoch == epoch
    again.consumer.close()
    other.consumer.close()


def test_a_pattern_subscribes_to_topics(server: Server, logs: lastword.LogDir) -> None:
    reader = Reader(server, "g", "consumer")
    reader.consumer.subscribe(["^us.*"])
    poll_until([reader], lambda: shared([reader], 4))
    reader.consumer.close()


# ---------------------------------------------------------------- a coordinator that has to wait


def by_librdkafka(address: str, topic: str, count: int) -> list[int]:
    given = {"bootstrap.servers": address, "group.id": topic, "auto.offset.reset": "latest"}
    consumer = confluent_kafka.Consumer(given)
    consumer.subscribe([topic])
    offsets: list[int] = []
    end = time.monotonic() + 20
    while len(offsets) < count and time.monotonic() < end:
        offsets += [message.offset() for message in consumer.consume(count, 0.1) if message.error() is None]
    consumer.close()
    return offsets


def by_aiokafka(address: str, topic: str, count: int) -> list[int]:
    aiokafka = pytest.importorskip("aiokafka")

    async def read() -> list[int]:
        given = {"bootstrap_servers": address, "group_id": topic, "auto_offset_reset": "latest"}
        consumer = aiokafka.AIOKafkaConsumer(topic, **given)
        offsets: list[int] = []
        await consumer.start()
        end = time.monotonic() + 20
        while len(offsets) < count and time.monotonic() < end:
            messages = await consumer.getmany(timeout_ms=100)
            offsets += [message.offset for batch in messages.values() for message in batch]
        await consumer.stop()
        return offsets

    return asyncio.run(read())


def by_kafka_python(address: str, topic: str, count: int) -> list[int]:
    kafka = pytest.importorskip("kafka")
    given = {"bootstrap_servers": address, "group_id": topic, "auto_offset_reset": "latest"}
    consumer = kafka.KafkaConsumer(topic, **given)
    offsets: list[int] = []
    end = time.monotonic() + 20
    while len(offsets) < count and time.monotonic() < end:
        offsets += [message.offset for batch in consumer.poll(100).values() for message in batch]
    consumer.close()
    return offsets


@pytest.mark.slow
@pytest.mark.parametrize(
    ("api", "error"),
    [
        ("OffsetFetch", StorageError("no answer within the timeout")),  # of a store
        ("OffsetFetch", Refused(codes.COORDINATOR_NOT_AVAILABLE, "")),
        ("FindCoordinator", StorageError("no answer within the timeout")),
        ("JoinGroup", Refused(codes.COORDINATOR_NOT_AVAILABLE, "")),
        ("SyncGroup", Refused(codes.NOT_COORDINATOR, "")),
    ],
)
def test_a_consumer_waits_for_its_committed_offset(
    server: Server, logs: lastword.LogDir, api: str, error: Exception
) -> None:
    """Some clients went on at the end of the log, past ten records, or read no more."""
    readers = (by_librdkafka, by_aiokafka, by_kafka_python)
    with Client(server) as client:
        for read in readers:
            logs.create_topic(read.__name__)
            logs[read.__name__].extend([(b"k", b"v")] * 20)
            assert client.commit(10, read.__name__, topic=read.__name__) == 0
    handle, refused, end = server.handle, [], time.monotonic() + 2

    def refusing(request: Any, connection: Any) -> Any:
        if request.api.name == api and time.monotonic() < end:
            refused.append(request)
            raise error
        return handle(request, connection)

    server.handle = refusing
    calls = [lambda read=read: read(server.bootstrap_servers, read.__name__, 10) for read in readers]
    assert together(*calls) == [list(range(10, 20))] * 3
    assert len(refused) >= 3
