"""Clients of three makers: what one of them produces, with every codec, all of them read, through every gap.

One server for all tests. A consumer reads every topic in one go, so that there are six of them, one for each
client and isolation level. `kcat` reads, too, if it is installed.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import pytest

import lastword
from lastword.records.batch import write_batch
from lastword.records.compression import compress
from lastword.records.record import encode_varint
from lastword.segment import names
from lastword.server import Server
from lastword.testing.unsynced import UNSYNCED
from tests.transactions import marker_batch

confluent_kafka = pytest.importorskip("confluent_kafka")
aiokafka = pytest.importorskip("aiokafka")
kafka = pytest.importorskip("kafka")
kafka_codec = pytest.importorskip("kafka.codec")

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LEVELS = ("read_uncommitted", "read_committed")
SECONDS = 20.0
FAR = (1 << 31) + 10
"""The first offset behind a gap of more than 2^31."""
RECORDS = [(b"key-%d" % n, None if n == 7 else b"value-%d " % n * 20) for n in range(12)]

Row = tuple[int, bytes | None, bytes | None]
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
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": server,
                "group.id": group or "matrix",
                "isolation.level": level,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 100,
            }
        )
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
                *(wanted if group else ()),
                bootstrap_servers=server,
                group_id=group,
                isolation_level=level,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                fetch_max_wait_ms=100,
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
            *(wanted if group else ()),
            bootstrap_servers=server,
            group_id=group,
            isolation_level=level,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=100,
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


# -------------------------------------------------------------- topics with gaps


def record(delta: int, key: bytes, value: bytes | None) -> bytes:
    body = b"\0\0" + encode_varint(delta)
    for data in (key, value):
        body += encode_varint(-1) if data is None else encode_varint(len(data)) + data
    body += b"\0"
    return encode_varint(len(body)) + body


def batch(
    codec: int, base: int, last: int, rows: list[Row], *, producer: tuple[int, int, int] = (-1, -1, -1)
) -> bytes:
    """Return a batch as a cleaning leaves it: rows at some of its offsets; none: only its header."""
    payload = b"".join(record(offset - base, key, value) for offset, key, value in rows)
    now_ms = int(time.time() * 1000)
    return write_batch(
        base_offset=base,
        leader_epoch=0,
        attributes=(codec if rows else 0) | (0x10 if producer[0] >= 0 else 0),
        last_offset_delta=last - base,
        base_timestamp=now_ms,
        max_timestamp=now_ms,
        producer=producer,
        count=len(rows),
        payload=compress(codec, payload) if codec and rows else payload,
    )


class Gaps(NamedTuple):
    """The segments of a topic by base offset, and its rows by isolation level."""

    segments: dict[int, bytes]
    rows: dict[str, list[Row]]


def gaps(codec: int) -> Gaps:
    """Return a topic with gaps at the start, in and between batches, of more than 2^31, and at the end."""
    early: list[Row] = [(7, b"a", b"1"), (8, b"b", None), (40, b"c", b"3"), (42, b"d", b"4" * 500)]
    kept: list[Row] = [(FAR, b"e", b"5"), (FAR + 2, b"f", b"6")]
    aborted: list[Row] = [(FAR + 4, b"g", b"7"), (FAR + 5, b"h", b"8")]
    late: list[Row] = [(FAR + 9, b"i", b"9")]
    now_ms = int(time.time() * 1000)

    def marker(offset: int, commit: bool) -> bytes:
        return offset.to_bytes(8, "big") + marker_batch(7, 0, commit, 0, now_ms)[8:]

    first = (
        batch(codec, 0, 9, early[:2])
        + batch(codec, 40, 49, early[2:])
        + batch(codec, 60, 64, [])  # kept for its producer's sequence
    )
    second = (
        batch(codec, FAR, FAR + 2, kept, producer=(7, 0, 0))
        + marker(FAR + 3, True)
        + batch(codec, FAR + 4, FAR + 5, aborted, producer=(7, 0, 2))
        + marker(FAR + 6, False)
        + batch(codec, FAR + 8, FAR + 12, late)
        + batch(codec, FAR + 20, FAR + 29, [])
    )
    committed = early + kept + late
    return Gaps(
        {0: first, FAR: second},
        {"read_committed": committed, "read_uncommitted": sorted(committed + aborted)},
    )


GAPS = {f"gaps-{codec}": gaps(number) for number, codec in enumerate(CODECS)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("matrix")
    with lastword.open(directory, "a", files=UNSYNCED, log_cleaner_enable=False) as logs:
        for topic in GAPS:
            logs.create_topic(topic, cleanup_policy="compact")
    (directory / names.CLEAN_SHUTDOWN).unlink()  # the segments below are recovered
    for topic, (segments, _) in GAPS.items():
        for path in (directory / f"{topic}-0").iterdir():
            path.unlink()
        for base, data in segments.items():
            (directory / f"{topic}-0" / f"{base:020d}.log").write_bytes(data)
    with (
        lastword.open(directory, "a", files=UNSYNCED, log_cleaner_enable=False) as logs,
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


def counts(rows: Rows) -> dict[str, int]:
    return {topic: len(of) for topic, of in rows.items()}


# -------------------------------------------------------------- tests


def test_the_codec_of_a_batch_is_the_producers(server: Server, produced: Rows) -> None:
    logs = server.broker.logs
    for topic in produced:
        (segment,) = logs.dirs.log(topic, 0).segment_set
        assert {header.codec for header in segment.headers()} == {CODECS.index(topic.rpartition("-")[2])}


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


STARTS = (9, 43, 62, 65, 1 << 31, FAR + 1, FAR + 10)


@pytest.mark.parametrize(
    ("reader", "start"),
    [("confluent", start) for start in STARTS] + [(name, 1 << 31) for name in ("aiokafka", "kafka-python")],
)
def test_a_read_that_starts_in_a_gap_goes_on_behind_it(server: Server, reader: str, start: int) -> None:
    rows = {topic: made.rows["read_uncommitted"] for topic, made in GAPS.items()}
    expected = {topic: [row for row in of if row[0] >= start] for topic, of in readable(reader, rows).items()}
    read = CLIENTS[reader].read(server.bootstrap_servers, counts(expected), LEVELS[0], start)
    assert read == expected


def test_the_gap_at_the_end_stalls_nobody(server: Server) -> None:
    for topic in GAPS:
        CLIENTS["confluent"].produce(server.bootstrap_servers, topic, "none", [(b"new", b"record")])
    for reader, client in CLIENTS.items():
        expected = {
            topic: [(FAR + 30, b"new", b"record")] for topic in GAPS if has(reader, topic.rpartition("-")[2])
        }
        for level in LEVELS:
            assert client.read(server.bootstrap_servers, counts(expected), level, FAR + 13) == expected


@pytest.mark.parametrize("reader", CLIENTS)
def test_a_group_goes_on_where_it_committed(server: Server, produced: Rows, reader: str) -> None:
    topics = {topic: rows for topic, rows in produced.items() if topic.endswith(("-none", "-gzip"))}
    first = CLIENTS[reader].read(server.bootstrap_servers, counts(topics), LEVELS[1], group=f"group-{reader}")
    assert first == topics
    more: Rows = {}
    for topic in topics:
        more[topic] = [(server.broker.logs.dirs.log(topic, 0).log_end, b"more", reader.encode())]
        CLIENTS["confluent"].produce(server.bootstrap_servers, topic, "none", [(b"more", reader.encode())])
    other = next(name for name in CLIENTS if name != reader)
    second = CLIENTS[other].read(server.bootstrap_servers, counts(more), LEVELS[1], group=f"group-{reader}")
    assert second == more
    for topic in topics:
        produced[topic] += more[topic]


@pytest.mark.parametrize("level", LEVELS)
def test_kcat_reads_and_produces(server: Server, produced: Rows, level: str) -> None:
    program = shutil.which("kcat") or shutil.which("kafkacat")
    if program is None:
        pytest.skip("kcat is not installed (apt-get install kcat)")
    expected = produced | {topic: made.rows[level] for topic, made in GAPS.items()}
    command = [program, "-b", server.bootstrap_servers, "-X", f"isolation.level={level}"]
    for topic in ("confluent-zstd", "aiokafka-lz4", *GAPS):
        if level == "read_committed":
            subprocess.run(
                [*command, "-P", "-t", topic, "-K", ":"], input=b"kcat:value\n", check=True, timeout=SECONDS
            )
        reading = [*command, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-J"]
        lines = subprocess.run(reading, capture_output=True, check=True, timeout=SECONDS).stdout.splitlines()
        rows = [json.loads(line) for line in lines]
        read = [(row["offset"], row["key"], row["payload"]) for row in rows]
        written = [
            (offset, key and key.decode(), value and value.decode()) for offset, key, value in expected[topic]
        ]
        assert read[: len(written)] == written
        assert level == "read_uncommitted" or ("kcat", "value") in [row[1:] for row in read]
