"""`<topic>@newest`: the newest record of each key, while the log changes."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.protocol import codes
from lastword.protocol.messages import DeleteTopicsRequest, MetadataRequest
from lastword.records.formats import read_records
from lastword.server import Server
from tests.server.client import Client, batch, fetch_request, headers, metadata, served
from tests.transactions import end_transaction

NAME = "users@newest"
KEYS = [b"key-%d" % number for number in range(12)]


@pytest.fixture
def users(logs: lastword.LogDir) -> lastword.Topic:
    return logs.create_topic("users", cleanup_policy="compact", segment_bytes=4096)


def records_of(data: bytes) -> Iterator[Any]:
    """Yield the records of whole batches, and check that the batches ascend."""
    above = -1
    for header in headers(data):
        assert header.base_offset > above or header.last_offset > above
        above = header.last_offset
        if header.count:
            yield from read_records(data, header, "answer", position=header.position)


class Follower:
    """A client that reads the view from an offset on, and keeps a dict."""

    def __init__(self, client: Client, offset: int = 0) -> None:
        self.client, self.offset = client, offset
        self.values: dict[bytes, bytes] = {}
        self.records: list[Any] = []

    def poll(self, most_bytes: int) -> bool:
        """Fetch once; return whether the view has ended."""
        answer = self.client.fetch(NAME, self.offset, partition_max_bytes=most_bytes)
        assert answer.error_code == 0
        assert answer.high_watermark == answer.last_stable_offset
        data = bytes(answer.records)
        for record in records_of(data):
            if record.offset >= self.offset:
                self.records.append(record)
                if record.value is None:
                    self.values.pop(record.key, None)
                else:
                    self.values[record.key] = record.value
        self.offset = max([self.offset, *(header.next_offset for header in headers(data))])
        assert data or self.offset == answer.high_watermark, "a reader waits in a gap"
        return bool(self.offset == answer.high_watermark)

    def catch_up(self, most_bytes: int = 1 << 20) -> Follower:
        while not self.poll(most_bytes):
            pass
        return self


class Model:
    """The log, changed at random beside its newest records."""

    def __init__(self, logs: lastword.LogDir, rng: random.Random) -> None:
        self.logs, self.rng = logs, rng
        self.log = logs.dirs.log("users", 0)
        self.newest: dict[bytes, tuple[int, bytes | None]] = {}
        self.sequence = 0

    def step(self) -> None:
        kind = self.rng.choice(["append"] * 8 + ["transaction"] * 3 + ["roll", "clean"])
        if kind == "append":
            self._append(self._rows(), {"codec": self.rng.choice([0, 0, 4])})
        elif kind == "transaction":
            commit = self.rng.random() < 0.6
            rows = self._rows()
            fields = {"producer": (7, 0, self.sequence), "attributes": 0x10}
            self.sequence += len(rows)
            self._append(rows, fields, counts=commit)
            end_transaction(self.log, 7, 0, commit=commit)
        elif kind == "roll":
            self.log.roll()
        else:
            self.logs.clean("users")

    def _rows(self) -> list[tuple[bytes, bytes | None]]:
        return [
            (self.rng.choice(KEYS), None if self.rng.random() < 0.15 else self.rng.randbytes(40))
            for _ in range(self.rng.randint(1, 5))
        ]

    def _append(
        self, rows: list[tuple[bytes, bytes | None]], fields: dict[str, Any], *, counts: bool = True
    ) -> None:
        appended = self.log.append_batch(batch(*rows, **fields))
        for number, (key, value) in enumerate(rows if counts else ()):
            self.newest[key] = appended.base_offset + number, value


@pytest.mark.parametrize("seed", range(12))
def test_the_view_has_the_newest_record_of_each_key(
    seed: int, client: Client, logs: lastword.LogDir, users: lastword.Topic
) -> None:
    rng = random.Random(seed)
    model = Model(logs, rng)
    follower = Follower(client)
    for _ in range(120):
        model.step()
        if rng.random() < 0.4:
            follower.poll(rng.choice([1, 300, 1 << 20]))
    follower.catch_up()
    values = {key: value for key, (_, value) in model.newest.items() if value is not None}
    assert follower.values == values
    offsets = [record.offset for record in follower.records]
    assert offsets == sorted(set(offsets))
    reader = Follower(client).catch_up(rng.choice([1, 1 << 20]))
    stored = _offsets(model)  # a cleaning may have removed a tombstone
    assert [(record.offset, record.key, record.value) for record in reader.records] == sorted(
        (offset, key, value) for key, (offset, value) in model.newest.items() if offset in stored
    )


def _offsets(model: Model) -> set[int]:
    return {
        record.offset
        for segment in model.log.segments
        for header in segment.headers(0, segment.size)
        for record in read_records(
            segment.handle.pread(header.size, header.position), header, "log", position=0
        )
    }


def test_an_open_transaction_ends_the_view(
    client: Client, logs: lastword.LogDir, users: lastword.Topic
) -> None:
    log = logs.dirs.log("users", 0)
    client.produce("users", batch((b"a", b"1")))
    log.append_batch(batch((b"a", b"2"), producer=(5, 0, 0), attributes=0x10))
    reader = Follower(client).catch_up()
    assert (reader.values, reader.offset) == ({b"a": b"1"}, 1)
    assert client.offset(NAME, -1).offset == 1
    end_transaction(log, 5, 0, commit=False)
    assert (reader.catch_up().values, reader.offset) == ({b"a": b"1"}, 3)


def test_a_fetch_waits_for_an_append(client: Client, server: Server, users: lastword.Topic) -> None:
    client.produce("users", batch((b"a", b"1")))
    assert Follower(client).catch_up().offset == 1
    client.send(fetch_request([(NAME, 0, 1)], max_wait_ms=5000), 12)
    with Client(server) as other:
        started = time.monotonic()
        other.produce("users", batch((b"a", b"2")))
        client.receive()
        assert time.monotonic() - started < 4
    assert [record.offset for record in Follower(client).catch_up().records] == [1]


def test_it_is_a_topic_for_readers_only(client: Client, logs: lastword.LogDir, users: lastword.Topic) -> None:
    newest_view, stored, other = client.ask(metadata(NAME, "users", "other@newest"), 12).topics
    assert (newest_view.error_code, newest_view.name, len(newest_view.partitions)) == (0, NAME, 1)
    assert newest_view.topic_id != stored.topic_id
    assert other.error_code == codes.INVALID_TOPIC_EXCEPTION
    every = client.ask(MetadataRequest(topics=None, allow_auto_topic_creation=False), 12)
    assert [topic.name for topic in every.topics] == ["users"]
    assert client.produce(NAME, batch((b"a", b"1"))).error_code == codes.INVALID_TOPIC_EXCEPTION
    deleted = client.ask(DeleteTopicsRequest(topic_names=[NAME], timeout_ms=1000), 5)
    assert deleted.responses[0].error_code == codes.UNKNOWN_TOPIC_OR_PARTITION
    assert [topic.name for topic in logs.topics()] == ["users"]


def test_it_is_read_by_its_id(client: Client, users: lastword.Topic) -> None:
    client.produce("users", batch((b"a", b"1"), (b"a", b"2")))
    body: Any = fetch_request([("", 0, 0)])
    body.topics[0].topic_id = client.topic_id(NAME)
    answer = client.ask(body, 13).responses[0].partitions[0]
    assert [record.value for record in records_of(bytes(answer.records))] == [b"2"]


def test_keys_that_do_not_fit_the_memory_are_an_error(tmp_path: Path) -> None:
    with served(tmp_path, lastword_newest_bytes="1KiB") as (logs, _, client):
        users = logs.create_topic("users", cleanup_policy="compact")
        users.extend((b"key-%d" % number, b"") for number in range(5000))
        for _ in range(2):
            assert client.fetch(NAME, 0).error_code == codes.KAFKA_STORAGE_ERROR
        assert client.fetch("users", 0).error_code == 0


@pytest.fixture
def window(tmp_path: Path) -> Iterator[tuple[lastword.Topic, Client]]:
    """A topic from which old records are removed, and memory for some hundreds of keys."""
    with served(tmp_path, lastword_newest_bytes="64KiB") as (logs, _, client):
        yield logs.create_topic("users", cleanup_policy="delete"), client


def test_keys_fit_again_when_records_were_removed(window: tuple[lastword.Topic, Client]) -> None:
    users, client = window
    users.extend((b"key-%d" % number, b"") for number in range(5000))
    assert client.fetch(NAME, 0).error_code == codes.KAFKA_STORAGE_ERROR
    users.extend((b"key-%d" % number, b"") for number in range(5000, 5100))
    assert client.fetch(NAME, 0).error_code == codes.KAFKA_STORAGE_ERROR
    users.trim(before=5000)
    reader = Follower(client, 5000).catch_up()
    assert sorted(reader.values) == sorted(b"key-%d" % number for number in range(5000, 5100))


def test_a_reader_of_a_log_whose_old_records_are_removed_keeps_up(
    window: tuple[lastword.Topic, Client],
) -> None:
    """The map of its keys grows by new keys only: it is made again when it is full."""
    users, client = window
    reader = Follower(client)
    for first in range(0, 5000, 100):
        users.trim(before=first)
        users.extend((b"key-%d" % number, b"") for number in range(first, first + 100))
        reader.catch_up()
    assert len(reader.values) == 5000


def test_the_least_recently_read_partition_is_dropped(
    client: Client, server: Server, logs: lastword.LogDir, users: lastword.Topic
) -> None:
    reads = server.node._fetches._newest
    for name in ("users", "others"):
        if name != "users":
            logs.create_topic(name, cleanup_policy="compact")
        client.produce(name, batch(*[(b"%d" % number, b"v") for number in range(200)]))
        assert client.fetch(f"{name}@newest", 0).error_code == 0
    assert len(reads._resolved) == 2
    reads._memory_bytes = max(each.memory_bytes for each in reads._resolved.values())
    client.produce("others", batch((b"1", b"w")))
    assert client.fetch("others@newest", 0).error_code == 0
    assert [log.name for log in reads._resolved] == ["others-0"]
    assert len(Follower(client).catch_up().records) == 200


def test_librdkafka_reads_it(server: Server, logs: lastword.LogDir, users: lastword.Topic) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    for number in range(300):
        users.append(KEYS[number % 10], b"%d" % number)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": server.bootstrap_servers,
            "group.id": "tests",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([NAME])
    values: list[tuple[int, bytes]] = []
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is None:
            continue
        if message.error() is not None:
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
            break
        values.append((message.offset(), message.value()))
    assert values == [(number, b"%d" % number) for number in range(290, 300)]
    consumer.commit(asynchronous=False)
    assert consumer.committed([confluent_kafka.TopicPartition(NAME, 0)])[0].offset == 300
    consumer.close()
