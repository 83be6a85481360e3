"""Clients of four makers: each reads every codec, isolation level and gap, and the records of the others.

One server for all tests. A consumer reads every topic together, so that there is one for each client and
isolation level. kcat reads one topic, so that there is one process for each topic.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Iterator
from typing import Any, Protocol

import pytest

import lastword
from lastword.server import Server
from tests.server.client import Client as Connection
from tests.server.client import headers
from tests.server.gaps import CODECS, FAR, LEVELS, PLACES, Row, topic_with_gap, write_topics
from tests.support.kcat import Kcat, KcatMissing
from tests.support.stores import log_for_clients

confluent_kafka = pytest.importorskip("confluent_kafka")
aiokafka = pytest.importorskip("aiokafka")
kafka = pytest.importorskip("kafka")
kafka_codec = pytest.importorskip("kafka.codec")

SECONDS = 20.0
RECORDS = [(b"key-%d" % n, None if n == 7 else b"value-%d " % n * 20) for n in range(12)]

Rows = dict[str, list[Row]]


class Client(Protocol):
    """A client library. `groups` of `read` is a group that reads from its committed offsets, and commits."""

    def produce(self, server: str, topic: str, codec: str, records: list[Any]) -> None: ...

    def transact(self, server: str, topic: str) -> None: ...

    def read(
        self, server: str, wanted: dict[str, int], level: str, start: int = 0, group: str | None = None
    ) -> Rows: ...


TRANSACTIONS = (([b"1", b"2"], True), ([b"3", b"4"], False), ([b"5"], True))
"""Values of three transactions, and whether each is committed."""


def enough(rows: Rows, wanted: dict[str, int]) -> bool:
    return all(len(rows[topic]) >= count for topic, count in wanted.items())


def settings(server: str, level: str, group: str | None) -> dict[str, Any]:
    """Return the settings of a consumer, by the names that the clients in Python share."""
    return {
        "bootstrap_servers": server,
        "group_id": group,
        "isolation_level": level,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
    }


class Confluent:
    def produce(self, server: str, topic: str, codec: str, records: list[Any]) -> None:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": server, "compression.type": codec, "linger.ms": 20}
        )
        for key, value in records:
            producer.produce(topic, key=key, value=value)
        assert producer.flush(SECONDS) == 0

    def transact(self, server: str, topic: str) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": server, "transactional.id": topic})
        producer.init_transactions(SECONDS)
        for values, is_committed in TRANSACTIONS:
            producer.begin_transaction()
            for value in values:
                producer.produce(topic, value=value)
            producer.flush(SECONDS)
            (producer.commit_transaction if is_committed else producer.abort_transaction)(SECONDS)

    def read(
        self, server: str, wanted: dict[str, int], level: str, start: int = 0, group: str | None = None
    ) -> Rows:
        named = settings(server, level, group or "matrix") | {"fetch_wait_max_ms": 100}
        consumer = confluent_kafka.Consumer({key.replace("_", "."): value for key, value in named.items()})
        if group:
            consumer.subscribe(list(wanted))
        else:
            consumer.assign([confluent_kafka.TopicPartition(topic, 0, start) for topic in wanted])
        rows: Rows = {topic: [] for topic in wanted}
        end = time.monotonic() + SECONDS
        while not enough(rows, wanted) and time.monotonic() < end:
            for message in consumer.consume(500, 0.1):
                assert message.error() is None, message.error()
                rows[message.topic()].append((message.offset(), message.key(), message.value()))
        if group:
            consumer.commit(asynchronous=False)
        consumer.close()
        return rows


class Aiokafka:
    def produce(self, server: str, topic: str, codec: str, records: list[Any]) -> None:
        async def run() -> None:
            kind = None if codec == "none" else codec
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=server, compression_type=kind, linger_ms=20
            )
            async with producer:
                await asyncio.gather(*[await producer.send(topic, value, key) for key, value in records])

        asyncio.run(run())

    def transact(self, server: str, topic: str) -> None:
        async def run() -> None:
            producer = aiokafka.AIOKafkaProducer(bootstrap_servers=server, transactional_id=topic)
            async with producer:
                for values, is_committed in TRANSACTIONS:
                    await producer.begin_transaction()
                    for value in values:
                        await producer.send_and_wait(topic, value)
                    await (producer.commit_transaction() if is_committed else producer.abort_transaction())

        asyncio.run(run())

    def read(
        self, server: str, wanted: dict[str, int], level: str, start: int = 0, group: str | None = None
    ) -> Rows:
        async def run() -> Rows:
            consumer = aiokafka.AIOKafkaConsumer(
                *(wanted if group else ()), **settings(server, level, group), fetch_max_wait_ms=100
            )
            rows: Rows = {topic: [] for topic in wanted}
            async with consumer:
                if not group:
                    partitions = [aiokafka.TopicPartition(topic, 0) for topic in wanted]
                    consumer.assign(partitions)
                    for partition in partitions:
                        consumer.seek(partition, start)
                end = time.monotonic() + SECONDS
                while not enough(rows, wanted) and time.monotonic() < end:
                    for partition, records in (await consumer.getmany(timeout_ms=100)).items():
                        rows[partition.topic] += [(r.offset, r.key, r.value) for r in records]
                if group:
                    await consumer.commit()
            return rows

        return asyncio.run(run())


class KafkaPython:
    def produce(self, server: str, topic: str, codec: str, records: list[Any]) -> None:
        kind = None if codec == "none" else codec
        producer = kafka.KafkaProducer(bootstrap_servers=server, compression_type=kind, linger_ms=20)
        sent = [producer.send(topic, value, key) for key, value in records]
        for future in sent:
            future.get(SECONDS)
        producer.close()

    def transact(self, server: str, topic: str) -> None:
        producer = kafka.KafkaProducer(bootstrap_servers=server, transactional_id=topic)
        producer.init_transactions()
        for values, is_committed in TRANSACTIONS:
            producer.begin_transaction()
            for value in values:
                producer.send(topic, value)
            producer.flush()
            (producer.commit_transaction if is_committed else producer.abort_transaction)()
        producer.close()

    def read(
        self, server: str, wanted: dict[str, int], level: str, start: int = 0, group: str | None = None
    ) -> Rows:
        consumer = kafka.KafkaConsumer(
            *(wanted if group else ()), **settings(server, level, group), fetch_max_wait_ms=100
        )
        if not group:
            partitions = [kafka.TopicPartition(topic, 0) for topic in wanted]
            consumer.assign(partitions)
            for partition in partitions:
                consumer.seek(partition, start)
        rows: Rows = {topic: [] for topic in wanted}
        end = time.monotonic() + SECONDS
        while not enough(rows, wanted) and time.monotonic() < end:
            # kafka-python 3.0.12 drops an assignment that arrives after the time of its poll.
            for partition, records in consumer.poll(timeout_ms=5000).items():
                rows[partition.topic] += [(r.offset, r.key, r.value) for r in records]
        if group:
            consumer.commit()
        consumer.close()
        return rows


CLIENTS: dict[str, Client] = {
    "confluent": Confluent(),
    "aiokafka": Aiokafka(),
    "kafka-python": KafkaPython(),
}


def has(client: str, codec: str) -> bool:
    """Return whether the client's codec is installed: kafka-python takes snappy from another package."""
    return client != "kafka-python" or codec == "none" or getattr(kafka_codec, f"has_{codec}")()


GAPS = {f"{place}-{codec}": topic_with_gap(codec, place) for codec in CODECS for place in PLACES}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("matrix")
    write_topics(directory, GAPS)
    with (
        log_for_clients(directory, log_cleaner_enable=False) as logs,
        lastword.serve(logs, "127.0.0.1:0") as server,
    ):
        yield server


@pytest.fixture(scope="module")
def produced(server: Server) -> Rows:
    """Return the rows of a topic for each client that produced and each codec."""
    rows: Rows = {}
    for name, client in CLIENTS.items():
        for codec in CODECS:
            if has(name, codec):
                topic = f"{name}-{codec}"
                client.produce(server.bootstrap_servers, topic, codec, RECORDS)
                rows[topic] = [(n, key, value) for n, (key, value) in enumerate(RECORDS)]
    return rows


def readable(reader: str, topics: Rows) -> Rows:
    return {topic: rows for topic, rows in topics.items() if has(reader, topic.rpartition("-")[2])}


def stored_codecs(server: Server, topic: str) -> set[str]:
    """Return the codecs of the batches of a topic."""
    found, offset = set(), 0
    with Connection(server) as connection:
        while data := bytes(connection.fetch(topic, offset).records):
            for header in headers(data):
                found.add(CODECS[header.codec])
                offset = header.next_offset
    return found


def counts(rows: Rows) -> dict[str, int]:
    return {topic: len(of) for topic, of in rows.items()}


# -------------------------------------------------------------- tests


def test_the_codec_of_a_batch_is_the_producers(server: Server, produced: Rows) -> None:
    for topic in produced:
        assert stored_codecs(server, topic) == {topic.rpartition("-")[2]}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("reader", CLIENTS)
def test_each_reads_what_all_produce_and_passes_gaps(
    server: Server, produced: Rows, reader: str, level: str
) -> None:
    expected = readable(reader, produced | {topic: made.rows[level] for topic, made in GAPS.items()})
    assert CLIENTS[reader].read(server.bootstrap_servers, counts(expected), level) == expected


@pytest.mark.slow
def test_each_reads_the_transactions_of_all(server: Server) -> None:
    for name, client in CLIENTS.items():
        client.transact(server.bootstrap_servers, f"transactions-{name}")
    committed: list[Row] = [(0, None, b"1"), (1, None, b"2"), (6, None, b"5")]
    everything = sorted([*committed, (3, None, b"3"), (4, None, b"4")])
    for reader in CLIENTS.values():
        for level, rows in zip(LEVELS, (everything, committed), strict=True):
            expected = {f"transactions-{name}": rows for name in CLIENTS}
            assert reader.read(server.bootstrap_servers, counts(expected), level) == expected


STARTS = [("start", 0), ("start", 6), ("middle", 43), ("middle", 62), ("middle", 65), ("end", 10), ("far", 3)]
STARTS += [("far", 1 << 31), ("far", FAR + 4)]


@pytest.mark.parametrize(
    ("reader", "place", "start"),
    [("confluent", *start) for start in STARTS]
    + [(name, "far", 1 << 31) for name in ("aiokafka", "kafka-python")],
)
def test_a_read_that_starts_in_a_gap_goes_on_behind_it(
    server: Server, reader: str, place: str, start: int
) -> None:
    rows = {topic: made.rows[LEVELS[0]] for topic, made in GAPS.items() if topic.startswith(place)}
    expected = {topic: [row for row in of if row[0] >= start] for topic, of in readable(reader, rows).items()}
    read = CLIENTS[reader].read(server.bootstrap_servers, counts(expected), LEVELS[0], start)
    assert read == expected


def test_a_record_behind_the_gap_at_the_end_is_read(server: Server) -> None:
    topics = {topic: made.end for topic, made in GAPS.items() if topic.startswith("end")}
    for number, (topic, codec) in enumerate(zip(topics, CODECS, strict=True)):
        name = list(CLIENTS)[number % len(CLIENTS)]
        producer = CLIENTS[name if has(name, codec) else "confluent"]
        producer.produce(server.bootstrap_servers, topic, codec, [(b"new", b"record")])
    for reader, client in CLIENTS.items():
        expected = readable(reader, {topic: [(end, b"new", b"record")] for topic, end in topics.items()})
        for level in LEVELS:
            assert client.read(server.bootstrap_servers, counts(expected), level, 13) == expected


@pytest.mark.parametrize("reader", CLIENTS)
def test_a_group_goes_on_where_it_committed(server: Server, produced: Rows, reader: str) -> None:
    topics = {topic: rows for topic, rows in produced.items() if topic.endswith(("-none", "-gzip"))}
    first = CLIENTS[reader].read(server.bootstrap_servers, counts(topics), LEVELS[1], group=f"group-{reader}")
    assert first == topics
    more: Rows = {}
    for topic in topics:
        with Connection(server) as connection:
            end = connection.offset(topic, -1).offset
        more[topic] = [(end, b"more", reader.encode())]
        CLIENTS["confluent"].produce(server.bootstrap_servers, topic, "none", [(b"more", reader.encode())])
    other = next(name for name in CLIENTS if name != reader)
    second = CLIENTS[other].read(server.bootstrap_servers, counts(more), LEVELS[1], group=f"group-{reader}")
    assert second == more
    for topic in topics:
        produced[topic] += more[topic]


@pytest.fixture(scope="module")
def kcat() -> Kcat:
    try:
        return Kcat.find_or_fetch()
    except KcatMissing as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("level", LEVELS)
def test_kcat_reads_all_and_passes_gaps(server: Server, produced: Rows, kcat: Kcat, level: str) -> None:
    expected = produced | {topic: made.rows[level] for topic, made in GAPS.items()}
    command = [kcat.program, "-b", server.bootstrap_servers, "-C", "-o", "beginning", "-e", "-q", "-J"]
    command += ["-X", f"isolation.level={level}", "-X", "fetch.wait.max.ms=50", "-t"]
    readers = {
        topic: subprocess.Popen([*command, topic], stdout=subprocess.PIPE, env=kcat.env) for topic in expected
    }
    for topic, process in readers.items():
        lines, _ = process.communicate(timeout=SECONDS)
        rows = [json.loads(line) for line in lines.splitlines()]
        read = [(row["offset"], row["key"], row["payload"]) for row in rows]
        written = [(n, key and key.decode(), value and value.decode()) for n, key, value in expected[topic]]
        assert process.returncode == 0
        assert read[: len(written)] == written
        assert all(offset >= GAPS[topic].end for offset, _, _ in read[len(written) :])  # of other tests


@pytest.mark.parametrize("codec", CODECS)
def test_the_others_read_what_kcat_produces(server: Server, kcat: Kcat, codec: str) -> None:
    topic = f"kcat-{codec}"
    command = [kcat.program, "-b", server.bootstrap_servers, "-P", "-t", topic, "-z", codec, "-K", ":"]
    lines = b"".join(b"key:%s%d\n" % (b"value" * 50, number) for number in range(20))
    subprocess.run([*command, "-X", "linger.ms=50"], input=lines, env=kcat.env, check=True, timeout=SECONDS)
    rows: list[Row] = [(number, b"key", b"value" * 50 + b"%d" % number) for number in range(20)]
    for reader, client in CLIENTS.items():
        if has(reader, codec):
            assert client.read(server.bootstrap_servers, {topic: 20}, LEVELS[1]) == {topic: rows}
    assert stored_codecs(server, topic) == {codec}
