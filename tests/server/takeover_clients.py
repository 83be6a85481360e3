"""The clients of `takeovers.py`: a producer, a member of a group and a copier of each of three makers.

The producers are idempotent, and number their records. The readers are members of a group of their own, and
commit what they have read. The copiers write each record again, in transactions that also have the offsets of
their group; some of the transactions are aborted. Each client notes what it does, and what was acknowledged,
in a `Journal`. After an error that its program cannot repair, a client begins again: its next life.
"""

from __future__ import annotations

import asyncio
import bisect
import json
import random
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tests.support.jars import HERE, KafkaJars

TOPIC, PARTITIONS = "events", 2
KINDS, ROLES = ("librdkafka", "aiokafka", "java"), ("producer", "reader", "copier")
SECONDS_BETWEEN = 0.1
LAST_SECONDS = 120.0  # a machine with other work is slow
CALL_SECONDS = 15.0  # the most for a call of a transaction of librdkafka
REQUEST_MS = 1500  # a server that is stopped keeps its connections


def copies(kind: str) -> str:
    """Return the topic of a copier. Its last partition has a record for each transaction."""
    return f"copies-{kind}"


class Journal:
    """The notes of the clients. A note has the kind, the role, a word and numbers."""

    def __init__(self, kept: Path | None = None) -> None:
        self.file = (kept / "journal.jsonl").open("w") if kept else None
        self.lines: dict[tuple[str, str], list[list[Any]]] = defaultdict(list)
        self.counts: Counter[tuple[str, str, str]] = Counter()
        self.times: dict[tuple[str, str], list[float]] = defaultdict(
            list
        )  # when it was acknowledged or copied
        self.committed: dict[tuple[str, int], int] = {}  # group and partition: the offset acknowledged last
        self.writing = threading.Event()
        self.running = threading.Event()
        self.writing.set()
        self.running.set()
        self._lock = threading.Lock()

    def note(self, kind: str, role: str, *words: Any) -> None:
        with self._lock:
            self.lines[kind, role].append(list(words))
            self.counts[kind, role, words[0]] += 1
            if self.file:
                self.file.write(json.dumps([time.time(), kind, role, *words]) + "\n")
                self.file.flush()
            if words[0] in ("acked", "copied"):
                self.times[kind, role].append(time.monotonic())
            elif words[0] == "committed":
                self.committed[f"{kind}-{role}", words[1]] = words[2]

    def first_after(self, client: tuple[str, str], moment: float) -> float | None:
        """Return when the client's first record or transaction after a moment was acknowledged."""
        times = self.times[client]
        place = bisect.bisect_right(times, moment)
        return times[place] if place < len(times) else None

    def of(self, kind: str, role: str, word: str) -> list[list[Any]]:
        return [line[1:] for line in list(self.lines[kind, role]) if line[0] == word]


class PythonClient(threading.Thread):
    """One client: `lived` runs it once."""

    def __init__(self, kind: str, role: str, servers: list[str], seed: int, journal: Journal) -> None:
        super().__init__(daemon=True)
        self.kind, self.role, self.servers, self.journal = kind, role, servers, journal
        self.rng = random.Random(f"{kind} {role} {seed}")
        self.life = self.number = 0

    def note(self, *words: Any) -> None:
        self.journal.note(self.kind, self.role, *words)

    def run(self) -> None:
        lived: Callable[[], None] = getattr(self, self.role)
        while self.journal.running.is_set():
            try:
                lived()
                self.note("ended")
                return
            except (Exception, asyncio.CancelledError) as error:  # the second by aiokafka's `stop`, too
                self.note("failed", repr(error))
                self.life += 1
                time.sleep(0.02)

    def next_value(self) -> tuple[int, bytes]:
        """Return the next number of a producer, and the value of its record."""
        number, self.number = self.number, self.number + 1
        return number, f"{self.kind}:{self.life}:{number}".encode()

    def copies_of(self, number: int, records: list[tuple[int, int]]) -> Iterable[tuple[int, bytes]]:
        """Yield partition and value of each record of a transaction that copies records."""
        for partition, offset in records:
            yield partition, f"{number}:{len(records)}:{partition}:{offset}".encode()
        yield PARTITIONS, f"{number}:{len(records)}".encode()

    def note_end(self, number: int, records: list[tuple[int, int]], *, committed: bool) -> None:
        if not committed:
            self.note("aborted", number)
            return
        self.note("copied", number, len(records))
        for partition, offset in ends(records).items():
            self.note("committed", partition, offset)


def ends(records: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Return the offset behind the records of each partition."""
    return {partition: offset + 1 for partition, offset in sorted(records)}


class Librdkafka(PythonClient):
    """confluent-kafka."""

    def settings(self, **more: Any) -> dict[str, Any]:
        names = {name.replace("_", "."): value for name, value in more.items()}
        return {
            "bootstrap.servers": ",".join(self.servers),
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 100,
            "socket.timeout.ms": 2000,
            "log_level": 0,
        } | names

    def producer(self) -> None:
        from confluent_kafka import Producer

        settings = self.settings(enable_idempotence=True, linger_ms=5, message_timeout_ms=120_000)
        producer = Producer(settings | {"request.timeout.ms": REQUEST_MS})

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                self.note("failed", str(error))
                return
            self.note(
                "acked", int(message.value().rpartition(b":")[2]), message.partition(), message.offset()
            )

        while self.journal.writing.is_set():
            number, value = self.next_value()
            producer.produce(TOPIC, value, value, partition=number % PARTITIONS, on_delivery=delivered)
            producer.poll(SECONDS_BETWEEN)
        producer.flush(LAST_SECONDS)

    def consumer(self) -> Any:
        from confluent_kafka import Consumer

        return Consumer(
            self.settings(
                group_id=f"{self.kind}-{self.role}",
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                session_timeout_ms=10_000,
                heartbeat_interval_ms=500,
                fetch_wait_max_ms=500,
            )
        )

    def reader(self) -> None:
        from confluent_kafka import TopicPartition

        consumer = self.consumer()
        consumer.subscribe(
            [TOPIC], on_assign=lambda _, given: [self.note("assigned", one.partition) for one in given]
        )
        try:
            while self.journal.running.is_set():
                read = _read(consumer)
                for message in read:
                    self.note("read", message.partition(), message.offset(), message.value().decode())
                if read:
                    offsets = ends((message.partition(), message.offset()) for message in read)
                    consumer.commit(
                        offsets=[TopicPartition(TOPIC, at, offset) for at, offset in offsets.items()],
                        asynchronous=False,
                    )
                    for at, offset in offsets.items():
                        self.note("committed", at, offset)
        finally:
            consumer.close()

    def copier(self) -> None:
        from confluent_kafka import KafkaException, Producer, TopicPartition

        producer = Producer(
            self.settings(
                transactional_id=self.kind,
                transaction_timeout_ms=60_000,
                linger_ms=5,
                # After "rebootstrap" 2.16.1 waits for the coordinator's handle that it has dropped.
                metadata_recovery_strategy="none",
            )
            | {"request.timeout.ms": REQUEST_MS}
        )
        _repeated(lambda: producer.init_transactions(CALL_SECONDS))
        consumer = self.consumer()
        try:
            asked = [TopicPartition(TOPIC, at) for at in range(PARTITIONS)]
            positions = {at.partition: max(at.offset, 0) for at in consumer.committed(asked, CALL_SECONDS)}
            while self.journal.running.is_set():
                consumer.assign([TopicPartition(TOPIC, at, offset) for at, offset in positions.items()])
                while self.journal.running.is_set():
                    read = _read(consumer)
                    records = [(message.partition(), message.offset()) for message in read]
                    if not records:
                        continue
                    number, committed = self.number, self.rng.random() >= 0.1
                    self.number += 1
                    try:
                        producer.begin_transaction()
                        for at, value in self.copies_of(number, records):
                            producer.produce(copies(self.kind), value, partition=at)
                        offsets = [TopicPartition(TOPIC, at, offset) for at, offset in ends(records).items()]
                        _repeated(
                            lambda offsets=offsets: producer.send_offsets_to_transaction(  # type: ignore[misc]
                                offsets, consumer.consumer_group_metadata(), CALL_SECONDS
                            )
                        )
                        if committed:
                            _repeated(lambda: producer.commit_transaction(CALL_SECONDS))
                    except KafkaException as error:
                        if not error.args[0].txn_requires_abort():
                            raise
                        committed = False
                    if not committed:
                        _repeated(lambda: producer.abort_transaction(CALL_SECONDS))
                    self.note_end(number, records, committed=committed)
                    if not committed:
                        break
                    positions |= ends(records)
        finally:
            consumer.close()


def _read(consumer: Any) -> list[Any]:
    return [message for message in consumer.consume(500, 0.5) if message.error() is None]


def _repeated(call: Callable[[], Any]) -> None:
    """Call again while the error says that this is allowed."""
    from confluent_kafka import KafkaException

    end = time.monotonic() + CALL_SECONDS
    while True:
        try:
            call()
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > end:
                raise


class Aiokafka(PythonClient):
    """aiokafka. Each client has an event loop of its own."""

    def producer(self) -> None:
        asyncio.run(self._produce())

    def reader(self) -> None:
        asyncio.run(self._read())

    def copier(self) -> None:
        asyncio.run(self._copy())

    def settings(self, **more: Any) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.servers,
            "retry_backoff_ms": 50,
            "request_timeout_ms": REQUEST_MS,
            "metadata_max_age_ms": 1000,
        } | more

    async def _produce(self) -> None:
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(**self.settings(enable_idempotence=True, linger_ms=5))
        waiting: set[asyncio.Future[Any]] = set()
        await producer.start()
        try:
            while self.journal.writing.is_set():
                number, value = self.next_value()
                future = await producer.send(TOPIC, value, value, partition=number % PARTITIONS)
                waiting.add(future)
                future.add_done_callback(lambda done, number=number: self._delivered(number, done))
                future.add_done_callback(waiting.discard)
                await asyncio.sleep(SECONDS_BETWEEN)
            await asyncio.wait_for(producer.flush(), LAST_SECONDS)
        finally:
            await producer.stop()

    def _delivered(self, number: int, done: asyncio.Future[Any]) -> None:
        if done.cancelled() or (error := done.exception()):
            self.note("failed", repr(None if done.cancelled() else error))
        else:
            self.note("acked", number, done.result().partition, done.result().offset)

    def consumer(self, *topics: str) -> Any:
        from aiokafka import AIOKafkaConsumer

        return AIOKafkaConsumer(
            *topics,
            **self.settings(request_timeout_ms=5000, connections_max_idle_ms=5000),
            group_id=f"{self.kind}-{self.role}",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=10_000,
            heartbeat_interval_ms=500,
            fetch_max_wait_ms=500,
        )

    async def _read(self) -> None:
        from aiokafka import TopicPartition
        from aiokafka.abc import ConsumerRebalanceListener

        note = self.note

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_assigned(self, assigned: Any) -> None:
                for one in assigned:
                    note("assigned", one.partition)

            def on_partitions_revoked(self, revoked: Any) -> None:
                """Nothing: what was read is committed."""

        consumer = self.consumer()
        consumer.subscribe([TOPIC], listener=Listener())
        await consumer.start()
        try:
            while self.journal.running.is_set():
                read = _flat(await consumer.getmany(timeout_ms=500))
                for record in read:
                    self.note("read", record.partition, record.offset, record.value.decode())
                if read:
                    offsets = ends((record.partition, record.offset) for record in read)
                    await consumer.commit({TopicPartition(TOPIC, at): end for at, end in offsets.items()})
                    for at, end in offsets.items():
                        self.note("committed", at, end)
        finally:
            await consumer.stop()

    async def _copy(self) -> None:
        from aiokafka import AIOKafkaProducer, TopicPartition

        producer = AIOKafkaProducer(
            **self.settings(transactional_id=self.kind, transaction_timeout_ms=60_000, linger_ms=5)
        )
        consumer = self.consumer()
        await producer.start()
        await consumer.start()
        try:
            all_of = [TopicPartition(TOPIC, at) for at in range(PARTITIONS)]
            consumer.assign(all_of)
            positions = {at.partition: await consumer.committed(at) or 0 for at in all_of}
            for at in all_of:
                consumer.seek(at, positions[at.partition])
            while self.journal.running.is_set():
                records = [(r.partition, r.offset) for r in _flat(await consumer.getmany(timeout_ms=500))]
                if not records:
                    continue
                number, committed = self.number, self.rng.random() >= 0.1
                self.number += 1
                async with asyncio.timeout(LAST_SECONDS):
                    await self._transaction(producer, number, records, committed=committed)
                self.note_end(number, records, committed=committed)
                if committed:
                    positions |= ends(records)
                else:
                    for at in all_of:
                        consumer.seek(at, positions[at.partition])
        finally:
            await consumer.stop()
            await producer.stop()

    async def _transaction(
        self, producer: Any, number: int, records: list[tuple[int, int]], *, committed: bool
    ) -> None:
        from aiokafka import TopicPartition

        await producer.begin_transaction()
        sent = [
            await producer.send(copies(self.kind), value, partition=at)
            for at, value in self.copies_of(number, records)
        ]
        for future in sent:
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
        offsets = {TopicPartition(TOPIC, at): end for at, end in ends(records).items()}
        await producer.send_offsets_to_transaction(offsets, f"{self.kind}-{self.role}")
        if committed:
            await asyncio.gather(*sent)
            await producer.commit_transaction()
        else:
            await producer.abort_transaction()
            await asyncio.gather(*sent, return_exceptions=True)


def _flat(batches: dict[Any, list[Any]]) -> list[Any]:
    return [record for batch in batches.values() for record in batch]


class Java(threading.Thread):
    """Kafka's own clients, in one JVM, whose lines go to the journal."""

    def __init__(self, roles: list[str], servers: list[str], seed: int, journal: Journal) -> None:
        super().__init__(daemon=True)
        jars = KafkaJars.find_or_fetch()
        self.journal = journal
        flags = ("-Xmx256m", f"-Dlog4j2.configurationFile={HERE / 'log4j2.xml'}", "-Dlastword.log=/dev/null")
        command = jars.command("TakeoverClients", *flags, sources=HERE, more=f"{jars.apps}/*")
        command += [",".join(servers), str(PARTITIONS), str(seed), ",".join(roles)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)

    def run(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        ending = threading.Thread(target=self._end, daemon=True)
        ending.start()
        for line in self.process.stdout:
            self.journal.note("java", *json.loads(line))
        self.process.wait()

    def _end(self) -> None:
        assert self.process.stdin is not None
        while self.journal.writing.is_set():
            time.sleep(0.05)
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        while self.journal.running.is_set():
            time.sleep(0.05)
        self.process.stdin.close()


def started(
    chosen: Iterable[tuple[str, str]], servers: list[str], seed: int, journal: Journal
) -> list[threading.Thread]:
    """Start clients, each a kind and a role."""
    chosen = list(chosen)
    classes = {"librdkafka": Librdkafka, "aiokafka": Aiokafka}
    threads: list[threading.Thread] = [
        classes[kind](kind, role, servers, seed, journal) for kind, role in chosen if kind in classes
    ]
    if of_java := [role for kind, role in chosen if kind == "java"]:
        threads.append(Java(of_java, servers, seed, journal))
    for thread in threads:
        thread.start()
    return threads
