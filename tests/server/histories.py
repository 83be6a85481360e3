"""Transactions by requests, of both versions, while the server is ended by SIGKILL at random, by seed.

    python -m tests.server.histories --kills 500

This adds to `kills`, whose producers are librdkafka's: transactions of version 2, offsets in transactions,
answers to EndTxn that are lost, topics that acknowledge with `disk`, and readers beside the producers.

Each producer runs transactions: records to several partitions, and an offset of its group. It sends a
request again until the server answers, as clients do, and gets the outcome of each transaction. Sometimes a
producer gives up in the middle, with or without having sent EndTxn, and its next instance goes on. Such a
transaction may have either outcome, but only one. Meanwhile a reader follows each partition with isolation
level `read_committed`, and the cleaner runs.

At the end: each record of a committed transaction is there once, in order; no record of an aborted one is
there, and none that was never sent; a transaction is there as a whole or not at all; the readers got exactly
these records; the committed offsets are those of the last committed transactions; no transaction is open;
`verify` finds nothing.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import lastword
from lastword.clock import SystemClock
from lastword.protocol import codes
from tests.server.client import Address, Client, headers
from tests.server.writer import Writer, committed_records, offset_of

PARTITIONS = [("users", 0), ("users", 1), ("users", 2), ("events", 0)]
RETRIED = {
    codes.CONCURRENT_TRANSACTIONS,
    codes.NOT_ENOUGH_REPLICAS,
    codes.COORDINATOR_LOAD_IN_PROGRESS,
    codes.COORDINATOR_NOT_AVAILABLE,
}
LEAST_SENT = 8
"""Transactions of each producer, at least."""
COMMITTED, ABORTED, EITHER = "committed", "aborted", "either"
Partition = tuple[str, int]


@dataclass
class Sent:
    """A transaction of a producer: its records by partition, and its outcome."""

    number: int
    records: dict[Partition, list[bytes]] = field(default_factory=dict)
    outcome: str = EITHER


@dataclass
class Total:
    """What happened in a run."""

    kills: int = 0
    transactions: Counter[str] = field(default_factory=Counter)
    records: int = 0


# ------------------------------------------------------------------ the server


def _serve(directory: str, port: int, plant: Callable[[], None] | None) -> None:
    if plant is not None:
        plant()
    with (
        lastword.open(directory, "a", log_cleaner_backoff_ms=100) as logs,
        lastword.serve(logs, f"127.0.0.1:{port}"),
    ):
        threading.Event().wait()


class ServerProcess:
    """The server in a process of its own, on one port. `plant` puts a fault into it."""

    def __init__(self, directory: str, plant: Callable[[], None] | None) -> None:
        self.directory = directory
        self.plant = plant
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = Address("127.0.0.1", free.getsockname()[1])
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["lastword", "lastword.server", "lastword.api.logs"])
        self._process: Any = None

    def start(self) -> None:
        arguments = self.directory, self.address.port, self.plant
        self._process = self._context.Process(target=_serve, args=arguments)
        self._process.start()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


class Patient(Client):
    """A client that connects again and sends a request again until it is answered."""

    def __init__(self, address: Any) -> None:
        self._address = address
        self.connect()

    def connect(self) -> None:
        end = time.monotonic() + 60
        while True:
            try:
                super().__init__(self._address)
                return
            except OSError:
                assert time.monotonic() < end, "the server does not start"
                time.sleep(0.01)

    def ask(self, body: Any, version: int | None = None) -> Any:
        while True:
            try:
                return super().ask(body, version)
            except OSError:
                self.socket.close()
                self.connect()


# ------------------------------------------------------------------ producers


class Producing(threading.Thread):
    """A producer with its transactional id and its group."""

    def __init__(self, address: Any, number: int, seed: int, stop: threading.Event) -> None:
        super().__init__(name=f"producer-{number}")
        self.sent: list[Sent] = []
        self.error: BaseException | None = None
        self.group = f"group-{number}"
        self._number = number
        self._rng = random.Random(seed * 1000 + number)
        self._stop_event = stop
        self._client = Patient(address)
        self._writer = Writer(
            self._client, SystemClock(), f"producer-{number}", version=self._rng.choice([1, 2])
        )

    def run(self) -> None:
        try:
            self._until_done(lambda: self._writer.init().error_code)
            while not self._stop_event.is_set():
                self._transaction()
        except BaseException as error:
            self.error = error

    def _transaction(self) -> None:
        rng, writer = self._rng, self._writer
        sent = Sent(len(self.sent))
        self.sent.append(sent)
        for number in range(rng.randint(1, 5)):
            at = rng.choice(PARTITIONS)
            key = b"%d-%d-%d" % (self._number, sent.number, number)
            sent.records.setdefault(at, []).append(key)
            self._until_done(lambda at=at, key=key: writer.send(b"v" * 50, *at, key=key))
        self._until_done(lambda: writer.commit_offset(sent.number, self.group))
        commit, fate = rng.random() < 0.7, rng.random()
        if fate < 0.05:  # gives up before the end
            sent.outcome = ABORTED
        elif fate < 0.15:  # gives up after the request, without its answer
            self._send_end(commit)
            sent.outcome = EITHER if commit else ABORTED
        else:
            self._until_done(lambda: writer.end(commit=commit))
            sent.outcome = COMMITTED if commit else ABORTED
            return
        self._client.socket.close()
        self._client.connect()
        self._until_done(lambda: writer.init().error_code)
        writer.sequences.clear()

    def _send_end(self, commit: bool) -> None:
        with suppress(OSError):
            version = 5 if self._writer.version == 2 else 4
            self._client.send(self._writer.end_request(commit=commit), version)

    def _until_done(self, call: Callable[[], int]) -> None:
        end = time.monotonic() + 60
        while code := call():
            assert code in RETRIED, codes.ERROR_NAMES[code]
            assert time.monotonic() < end, codes.ERROR_NAMES[code]
            time.sleep(0.005)


# ------------------------------------------------------------------ readers


class Reading(threading.Thread):
    """A committed reader of one partition, which follows its end."""

    def __init__(self, address: Any, at: Partition, stop: threading.Event) -> None:
        super().__init__(name=f"reader-{at[0]}-{at[1]}")
        self.at = at
        self.keys: list[bytes] = []
        self.error: BaseException | None = None
        self._position = 0
        self._client = Patient(address)
        self._stop_event = stop

    def run(self) -> None:
        try:
            while not self._stop_event.is_set():
                self.read()
                time.sleep(0.005)
        except BaseException as error:
            self.error = error

    def read(self) -> bool:
        """Read once; return whether there was something."""
        topic, partition = self.at
        answer = self._client.fetch(topic, self._position, partition=partition, isolation_level=1)
        assert answer.error_code == 0, codes.ERROR_NAMES[answer.error_code]
        data = bytes(answer.records)
        aborted = sorted((entry.first_offset, entry.producer_id) for entry in answer.aborted_transactions)
        for record in committed_records(data, aborted):
            if record.offset >= self._position:
                self.keys.append(record.key or b"")
        before = self._position
        for header in headers(data):
            self._position = header.next_offset
        return self._position > before


# ------------------------------------------------------------------ the judge


def problems(sent: list[list[Sent]], read: dict[Partition, list[bytes]]) -> list[str]:
    """Return what is wrong with the records of each partition, which a committed reader got."""
    found: list[str] = []
    known: dict[bytes, Sent] = {}
    for transactions in sent:
        for transaction in transactions:
            keys = {key: at for at, keys in transaction.records.items() for key in keys}
            known |= dict.fromkeys(keys, transaction)
            there = [key for key, at in keys.items() if key in read[at]]
            if transaction.outcome == COMMITTED and len(there) < len(keys):
                found += [f"lost: {key!r}" for key in sorted(keys.keys() - set(there))]
            elif transaction.outcome == ABORTED and there:
                found += [f"aborted, but read: {key!r}" for key in there]
            elif transaction.outcome == EITHER and 0 < len(there) < len(keys):
                found.append(f"a part of a transaction: {sorted(there)} of {sorted(keys)}")
    for at, keys_read in read.items():
        counts = Counter(keys_read)
        found += [f"twice: {key!r}" for key, count in counts.items() if count > 1]
        for key in counts:
            if key not in known or key not in known[key].records.get(at, ()):
                found.append(f"never sent to {at}: {key!r}")
        by_producer: dict[bytes, list[tuple[int, ...]]] = {}
        for key in keys_read:
            numbers = tuple(int(number) for number in key.split(b"-")) if key in known else ()
            by_producer.setdefault(key.split(b"-")[0], []).append(numbers)
        found += [f"out of order in {at}" for order in by_producer.values() if order != sorted(order)]
    return found


def expected_offsets(transactions: list[Sent]) -> set[int]:
    """Return the offsets that the group of a producer may have at the end."""
    allowed: set[int] = set()
    for transaction in reversed(transactions):
        if transaction.outcome != ABORTED:
            allowed.add(transaction.number)
        if transaction.outcome == COMMITTED:
            return allowed
    return allowed | {-1}


# ------------------------------------------------------------------ a run


def run(
    directory: str,
    kills: int,
    *,
    seed: int,
    producers: int = 3,
    plant: Callable[[], None] | None = None,
) -> Total:
    """End the server `kills` times; raise AssertionError with what is wrong at the end."""
    rng = random.Random(seed)
    with lastword.open(directory, "a") as logs:
        for topic in dict.fromkeys(topic for topic, _ in PARTITIONS):
            count = sum(at[0] == topic for at in PARTITIONS)
            logs.create_topic(topic, count, cleanup_policy="compact", **_busy(rng))
        for topic in ("__consumer_offsets", "__transaction_state"):
            logs.create_topic(topic, rng.choice([1, 3]), cleanup_policy="compact", **_busy(rng))
    server = ServerProcess(directory, plant)
    server.start()
    writing, reading = threading.Event(), threading.Event()
    writers = [Producing(server.address, number, seed, writing) for number in range(producers)]
    readers = [Reading(server.address, at, reading) for at in PARTITIONS]
    threads = [*writers, *readers]
    for thread in threads:
        thread.start()
    total = Total()
    try:
        for _ in range(kills):
            if rng.random() < 0.8:  # else the kill may meet the start
                Patient(server.address).socket.close()
            time.sleep(rng.uniform(0.0, 0.9))
            server.kill()
            total.kills += 1
            server.start()
        last = time.monotonic() + 60  # a machine with other work is slow
        while any(len(writer.sent) < LEAST_SENT for writer in writers) and time.monotonic() < last:
            time.sleep(0.05)
        time.sleep(0.2)
        writing.set()
        for writer in writers:
            writer.join(120)
        reading.set()
        for reader in readers:
            reader.join(60)
        errors = [f"{thread.name}: {thread.error!r}" for thread in threads if thread.error is not None]
        assert not errors, errors
        for reader in readers:
            while reader.read():
                pass
        read = {reader.at: reader.keys for reader in readers}
        found = problems([writer.sent for writer in writers], read)
        with Patient(server.address) as client:
            for topic, partition in PARTITIONS:
                answer = client.fetch(topic, 0, partition=partition, isolation_level=1)
                if answer.last_stable_offset != answer.high_watermark:
                    found.append(f"a transaction is open in {topic}-{partition}")
            for writer in writers:
                offset, code = offset_of(client, stable=True, group=writer.group)
                if code or offset not in expected_offsets(writer.sent):
                    found.append(f"{writer.group}: offset {offset}, error {code}")
    finally:
        writing.set()
        reading.set()
        server.kill()
    with lastword.open(directory, "a", log_cleaner_enable=False) as logs:
        found += [str(problem) for problem in logs.verify().problems]
        for at, keys in read.items():
            live = [record.key for record in logs[at[0]].read(partition=at[1], isolation="read_committed")]
            if live != keys:
                found.append(f"{at}: a new reader gets {len(live)} records, the first one had {len(keys)}")
    assert not found, (seed, found)
    for writer in writers:
        total.transactions.update(transaction.outcome for transaction in writer.sent)
        total.records += sum(len(keys) for sent in writer.sent for keys in sent.records.values())
    return total


def _busy(rng: random.Random) -> dict[str, Any]:
    """Return settings of a topic that is cleaned all the while."""
    return {
        "segment_bytes": rng.choice([4096, 20_000]),
        "min_cleanable_dirty_ratio": 0.01,
        "lastword_ack": rng.choice(["os", "os", "disk"]),
    }


def main() -> None:
    """Run the kills in parts, each in a directory of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    began, total, seed = time.monotonic(), Total(), options.seed
    while total.kills < options.kills:
        with tempfile.TemporaryDirectory() as directory:
            part = run(os.path.join(directory, "data"), min(20, options.kills - total.kills), seed=seed)
        seed += 1
        total.kills += part.kills
        total.transactions += part.transactions
        total.records += part.records
        seconds = time.monotonic() - began
        print(f"{total.kills} kills, {dict(total.transactions)}, {total.records} records, {seconds:.0f} s")
    print(f"nothing lost, twice, out of order, half or read too early; seed {options.seed}")


if __name__ == "__main__":
    main()
