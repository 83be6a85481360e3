"""Run histories of a server over a bucket whose requests fail, and which is killed, by seed.

    python -m tests.server.bucket.histories --histories 100000 --jobs 2

A history is determined by its seed. The handlers of the server run in one thread: the pools, the commits and
the event loop are driven by hand, so that several requests share a commit, and a fault comes at any request
to the store, before or after its effect, or with an effect that is late. Answers to clients are lost, too.
Beside the server other processes append to the same partitions, and join their segments.

The clients are idempotent producers, transactional producers of two partitions and a group, groups that
commit offsets, and readers. Producers have up to five requests in flight. They repeat a request until it is
answered. At the end:

* each batch that was acknowledged, and is not of an aborted transaction, is there once, at the offset of its
  answer, and the batches of a producer are in their order;
* a transaction is there as a whole or not at all, and as its end was answered;
* at no version it has a marker in one partition and none in the other;
* the high watermark never went back, and what was read stays;
* a committed offset never went back.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest import mock

from lastword.api.bucket_dirs import BucketDirs, merged_settings
from lastword.api.logs import LogDir
from lastword.api.topics import create_topics
from lastword.bucket.commit import Bucket
from lastword.clock import ManualClock
from lastword.errors import LastwordError
from lastword.partition import PartitionView, joining
from lastword.protocol import Request, codes, decode_stored
from lastword.protocol.messages import (
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from lastword.protocol.schemas import APIS, Message
from lastword.records.batch import BatchBuilder
from lastword.records.formats import read_records
from lastword.segment import names
from lastword.server.context import Options, ServerContext
from lastword.server.node import ClusterNode
from lastword.server.topics import Refused
from tests.bucket.turns import patched
from tests.fakes import objects
from tests.fakes.manifests import in_memory
from tests.fakes.objects import FakeStore, Fault, Seeded
from tests.server.client import (
    NEWEST,
    batch,
    fetch_request,
    headers,
    offset_commit,
    offset_fetch,
    produce_request,
)
from tests.support.cpu import seldom_collected

T = TypeVar("T")
API = {api.name: api for api in APIS.values()}
TOPIC, PARTITIONS = "t", 2
STATES = "__transaction_state"
CODEC_EVERY = 16
"""One history of this number encodes and decodes each manifest."""


class Peer(SimpleNamespace):
    """The connection of a client: notes whether its last request has its place in a commit."""

    address = "127.0.0.1:1"
    is_begun = has_failed = False

    def __init__(self) -> None:
        self.awaited: dict[tuple[Any, ...], int] = {}

    def has_gone(self) -> bool:
        return False

    def log(self, *given: Any, **named: Any) -> None:
        pass

    def begun(self, request: Any) -> None:
        self.is_begun = True


RETRIED = {
    codes.NOT_COORDINATOR,
    codes.COORDINATOR_LOAD_IN_PROGRESS,
    codes.COORDINATOR_NOT_AVAILABLE,
    codes.CONCURRENT_TRANSACTIONS,
    codes.KAFKA_STORAGE_ERROR,
    codes.REQUEST_TIMED_OUT,
    codes.NOT_ENOUGH_REPLICAS,
    codes.UNSTABLE_OFFSET_COMMIT,
}
PREPARED = (2, 3)
"""The states PrepareCommit and PrepareAbort as numbers."""
OUTAGE = (Fault.REFUSED, Fault.THROTTLED, Fault.LOST, Fault.LATE)
"""Faults of a store that does not work for some time: commits fail, and may take effect nevertheless."""
COMMITTED, ABORTED, EITHER = "committed", "aborted", "either"


class Violation(AssertionError):
    """A rule does not hold. `rule` is its short name."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule


class _Inline(Executor):
    """Runs each task in the calling thread."""

    def submit(self, task: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(task(*arguments, **options))
        except BaseException as error:
            done.set_exception(error)
        return done


# ---------------------------------------------------------------- the server


def opened(store: FakeStore, clock: ManualClock, seed: int, mode: Any = "a") -> BucketDirs:
    """Open the log as a process does, without a thread for its commits."""
    bucket = Bucket(store, clock=clock, rng=random.Random(seed))
    load = merged_settings(bucket.url, None, {"log_cleaner_enable": False})
    dirs = BucketDirs(bucket, mode, load, clock)
    queue = dirs._queue
    queue._thread = threading.current_thread()
    queue.wait = lambda: queue.commit_waiting() if queue._waiting else None  # type: ignore[method-assign]
    return dirs


class Node:
    """The handlers of one server, until it is killed."""

    def __init__(self, store: FakeStore, clock: ManualClock, seed: int) -> None:
        self.store = store
        self.dirs = opened(store, clock, seed)
        self.loop = asyncio.new_event_loop()
        self.loop.time = clock.monotonic  # type: ignore[method-assign]  # a busy machine changes no history
        self.loop.set_exception_handler(lambda loop, context: None)
        pools: Any = (_Inline(), _Inline())
        context = ServerContext(LogDir(self.dirs), self.loop, pools, ("127.0.0.1", 1), Options())
        self.node = ClusterNode(context)
        # Leases are written by a timer, and the topic has none.
        self.node.groups.leases._schedule = lambda: None  # type: ignore[method-assign]

    def begin(self, body: Message, version: int | None = None, peer: Peer | None = None) -> Any:
        """Send a request; return its answer or a future of it."""
        name = type(body).__name__.removesuffix("Request")
        request: Any = Request(API[name], NEWEST[name] if version is None else version, 1, "c", body, 500)
        try:
            return self.node.handle(request, peer or Peer())  # type: ignore[arg-type]
        except (Refused, LastwordError) as error:
            return error

    def send(self, requests: list[tuple[Message, int]], rng: random.Random) -> list[Any]:
        """Send requests on one connection, each as soon as the one before allows it; return their answers.

        Some commits come between them. An answer of None: the request was not read.
        """
        connection, answers = Peer(), list[Any]()
        for body, version in requests:
            connection.is_begun = False
            answers.append(answer := self.begin(body, version, connection))
            if len(answers) == len(requests):
                break
            for _ in range(3):
                self.turn()
                if self.store.stopped or connection.is_begun or not isinstance(answer, asyncio.Future):
                    break
                if self.dirs._queue._waiting:
                    self.dirs._queue.commit_waiting()
            if self.dirs._queue._waiting and not self.store.stopped and rng.random() < 0.3:
                self.dirs._queue.commit_waiting()
            is_done = not isinstance(answer, asyncio.Future) or answer.done()
            if self.store.stopped or connection.has_failed or not (connection.is_begun or is_done):
                break
        return answers + [None] * (len(requests) - len(answers))

    def turn(self) -> None:
        """Let everything happen that needs no commit, in six iterations of the loop."""
        more = iter(range(5))

        def end() -> None:
            if next(more, None) is None:
                self.loop.stop()
            else:
                self.loop.call_soon(end)

        self.loop.call_soon(end)
        self.loop.run_forever()

    def drive(self, answers: list[Any], committed: Callable[[], None] = lambda: None) -> None:
        """Commit until all answers are there, or the server stops; call `committed` after each commit."""
        for _ in range(200):
            self.turn()
            waits = any(isinstance(answer, asyncio.Future) and not answer.done() for answer in answers)
            if self.store.stopped or not (waits or self.dirs._queue._waiting):
                return
            if self.dirs._queue._waiting:
                self.dirs._queue.commit_waiting()
                committed()

    def close(self) -> None:
        self.dirs.closed = True
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.turn()
        self.loop.close()


def answer_of(answer: Any) -> Any:
    """Return the message of an answer; None if it has none, or is an error that closes the connection."""
    if isinstance(answer, asyncio.Future):
        if not answer.done() or answer.cancelled() or answer.exception() is not None:
            return None
        answer = answer.result()
    return None if isinstance(answer, BaseException) else answer


# ---------------------------------------------------------------- clients


@dataclass
class Client:
    """A client that has requests in work on one connection, usually one.

    `take` gets the answer of the oldest one, None: there is none; it returns whether it was done.
    """

    history: History
    name: str

    def body(self) -> tuple[Message, int]:
        raise NotImplementedError

    def bodies(self) -> list[tuple[Message, int]]:
        return [self.body()]

    def produced(
        self, partition: int, producer: tuple[int, int, int], *values: bytes, name: str | None = None
    ) -> tuple[Message, int]:
        """Return a Produce of one batch, in the transaction of a transactional id."""
        data = batch(
            *((b"k", value) for value in values),
            producer=producer,
            attributes=0 if name is None else 0x10,
            timestamp=self.history.clock.now_ms(),
        )
        return produce_request(TOPIC, data, partition=partition, transactional_id=name), 12

    def take(self, answer: Any) -> object:
        raise NotImplementedError

    def take_all(self, answers: list[Any]) -> None:
        """Take answers up to the first that is not there, or for a request that is to be repeated."""
        for answer in answers:
            if not self.take(answer):
                break


IN_FLIGHT = 5
"""Most requests of a producer in work."""


@dataclass
class Producer(Client):
    """An idempotent producer to one partition. It sends again all that is not answered, in its order."""

    partition: int = 0
    producer: tuple[int, int] | None = None
    number: int = 0  # of the next record: its sequence
    batches: list[tuple[int, list[bytes]]] = field(default_factory=list)
    acknowledged: list[tuple[bytes, int]] = field(default_factory=list)

    def bodies(self) -> list[tuple[Message, int]]:
        if self.producer is None:
            return [(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), 5)]
        rng = self.history.rng
        for _ in range(rng.randint(not self.batches, IN_FLIGHT - len(self.batches))):
            count = rng.randint(1, 3)
            values = [b"%s-%d" % (self.name.encode(), self.number + i) for i in range(count)]
            self.batches.append((self.number, values))
            self.number += count
        return [
            self.produced(self.partition, (*self.producer, sequence), *values)
            for sequence, values in self.batches
        ]

    def take(self, answer: Any) -> object:
        if answer is None:
            return False
        if self.producer is None:
            if not answer.error_code:
                self.producer = answer.producer_id, answer.producer_epoch
            return True
        part = answer.responses[0].partition_responses[0]
        if part.error_code in RETRIED:
            return False
        if part.error_code:
            raise Violation("code", f"{self.name}: {part.error_code} {part.error_message}")
        _, values = self.batches.pop(0)
        self.acknowledged += [(value, part.base_offset + i) for i, value in enumerate(values)]
        return True


@dataclass
class Transaction:
    """What a transaction sent, and its outcome."""

    values: list[tuple[int, bytes]] = field(default_factory=list)
    offset: int = -1
    outcome: str = EITHER


@dataclass
class Writer(Client):
    """A transactional producer of both partitions, with the offset of a group."""

    producer: tuple[int, int] | None = None
    sequences: dict[int, int] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)
    current: Transaction = field(default_factory=Transaction)
    sent: list[Transaction] = field(default_factory=list)
    batches: list[tuple[int, int, bytes]] = field(default_factory=list)  # partition, sequence, value

    def begin(self) -> None:
        rng = self.history.rng
        self.current = Transaction(offset=len(self.sent) + 1)
        self.sent.append(self.current)
        self.steps = [f"{rng.randrange(PARTITIONS)}" for _ in range(rng.randint(1, 3))]
        self.steps += ["offset"] * (rng.random() < 0.6) + ["commit" if rng.random() < 0.7 else "abort"]

    def bodies(self) -> list[tuple[Message, int]]:
        if self.producer is None:
            self.steps = []
            return [(InitProducerIdRequest(transactional_id=self.name, transaction_timeout_ms=600_000), 5)]
        if not self.steps:
            self.begin()
        batches = 0
        while self.steps[batches].isdigit():
            batches += 1
        if not batches:
            return [self.body()]
        for step in self.steps[len(self.batches) : self.history.rng.randint(1, batches)]:
            partition = int(step)
            sequence = self.sequences.get(partition, 0)
            self.sequences[partition] = sequence + 1
            value = b"%s-%d-%d-%d" % (self.name.encode(), len(self.sent), partition, sequence)
            self.current.values.append((partition, value))
            self.batches.append((partition, sequence, value))
        return [
            self.produced(partition, (*self.producer, sequence), value, name=self.name)
            for partition, sequence, value in self.batches
        ]

    def body(self) -> tuple[Message, int]:
        assert self.producer is not None
        step = self.steps[0]
        if step in ("commit", "abort"):
            self.current.outcome = EITHER if step == "commit" else ABORTED
            producer_id, epoch = self.producer
            body = EndTxnRequest(
                transactional_id=self.name,
                producer_id=producer_id,
                producer_epoch=epoch,
                committed=step == "commit",
            )
            return body, 5
        kind = TxnOffsetCommitRequest
        part = kind.TxnOffsetCommitRequestPartition(
            committed_offset=self.current.offset, committed_metadata=None
        )
        return kind(
            transactional_id=self.name,
            group_id=self.name,
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            topics=[kind.TxnOffsetCommitRequestTopic(name=TOPIC, partitions=[part])],
        ), 5

    def again(self) -> None:
        """Begin with a new epoch, which ends what is open."""
        self.producer, self.sequences, self.batches = None, {}, []

    def take(self, answer: Any) -> object:
        if answer is None:
            if self.producer is not None and self.history.rng.random() < 0.1:
                if self.steps[0] not in ("commit", "abort"):
                    self.current.outcome = ABORTED
                self.again()
            return False
        if self.producer is None:
            if not answer.error_code:
                self.producer = answer.producer_id, answer.producer_epoch
            return True
        step = self.steps[0]
        if step in ("commit", "abort"):
            code = answer.error_code
            if code in RETRIED:
                return False
            if code:
                raise Violation("code", f"{self.name}: EndTxn {code}")
            self.current.outcome = COMMITTED if step == "commit" else ABORTED
            if (answer.producer_id, answer.producer_epoch) != self.producer:
                self.producer, self.sequences = (answer.producer_id, answer.producer_epoch), {}
            self.steps = []
            return True
        if step == "offset":
            code = answer.topics[0].partitions[0].error_code
        else:
            code = answer.responses[0].partition_responses[0].error_code
        if code in RETRIED:
            return False
        if code:
            raise Violation("code", f"{self.name}: {step} {code}")
        if step != "offset":
            self.batches.pop(0)
        self.steps.pop(0)
        return True


@dataclass
class Group:
    """The offsets of a group: the largest one that was acknowledged or fetched, and that was sent."""

    floor: int = -1
    largest: int = -1


@dataclass
class Fetcher(Client):
    """A member of a group that fetches its offset."""

    group: Group = field(default_factory=Group)
    floor: int = -1

    def body(self) -> tuple[Message, int]:
        self.floor = self.group.floor
        return offset_fetch(self.name, topic=TOPIC), 8

    def take(self, answer: Any) -> None:
        if answer is None:
            return
        group = answer.groups[0]
        if not group.error_code and not group.topics[0].partitions[0].error_code:
            offset = group.topics[0].partitions[0].committed_offset
            if not self.floor <= offset <= self.group.largest:
                raise Violation("offset-back", f"{self.name}: {offset}, was {self.floor}")
            self.group.floor = max(self.group.floor, offset)


@dataclass
class Committer(Client):
    """A member of a group that commits rising offsets."""

    group: Group = field(default_factory=Group)

    def body(self) -> tuple[Message, int]:
        self.group.largest += 1
        return offset_commit(self.group.largest, self.name, topic=TOPIC), 8

    def take(self, answer: Any) -> None:
        if answer is not None and not answer.topics[0].partitions[0].error_code:
            self.group.floor = self.group.largest


@dataclass
class Reader(Client):
    """Reads a partition from its beginning, again and again."""

    partition: int = 0
    high_watermark: int = 0
    at: int = 0

    def body(self) -> tuple[Message, int]:
        return fetch_request([(TOPIC, self.partition, self.at)]), 12

    def take(self, answer: Any) -> None:
        if answer is None or not answer.responses:
            return
        part = answer.responses[0].partitions[0]
        if part.error_code in RETRIED:
            return
        if part.error_code:
            raise Violation("code", f"{self.name}: Fetch {part.error_code} at {self.at}")
        if part.high_watermark < self.high_watermark:
            raise Violation("watermark-back", f"{part.high_watermark}, was {self.high_watermark}")
        self.high_watermark = part.high_watermark
        known = self.history.read[self.partition]
        data = b"".join(map(bytes, part.records))
        for header in headers(data):
            read = data[header.position : header.end]
            if known.setdefault(header.base_offset, read) != read:
                raise Violation("changed", f"{TOPIC}-{self.partition} offset {header.base_offset}")
            self.at = header.next_offset
        if self.history.rng.random() < 0.2:
            self.at = 0


# ---------------------------------------------------------------- a history


class History:
    """One history, by its seed."""

    def __init__(self, seed: int, rounds: int = 14) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.rounds = rounds
        self.clock = ManualClock(1_700_000_000_000)
        self.bucket = objects.Bucket(clock=self.clock)
        self.bucket.delay_ms = lambda request: self.rng.randrange(3000)
        self.read: list[dict[int, bytes]] = [{} for _ in range(PARTITIONS)]
        self.numbers = 0
        self.kills = 0
        self.checked = ""
        self.derived: dict[str, tuple[Any, Any]] = {}
        """Files of a partition, and what was derived from them (`derive`)."""
        self.observer: BucketDirs | None = None

    def process(self, rate: float = 0) -> tuple[FakeStore, ManualClock, int]:
        """Return the arguments of another process: its store, the clock and a seed."""
        self.numbers += 1
        faults = Seeded(self.rng, rate) if rate else None
        store = self.bucket.process(f"p{self.numbers}", faults=faults)
        return store, self.clock, self.seed * 1000 + self.numbers

    def run(self) -> None:
        """Run the history. Raises Violation."""
        with patched(*(in_memory() if self.seed % CODEC_EVERY else ())), seldom_collected():
            self._run()

    def _run(self) -> None:
        rng = self.rng
        dirs = opened(*self.process())
        create_topics(dirs, {TOPIC: (PARTITIONS, {"cleanup.policy": "delete"})})
        self.observer = opened(*self.process(), "r")
        clients: list[Client] = [Producer(self, f"i{n}", partition=n % PARTITIONS) for n in range(2)]
        clients += [Writer(self, f"w{n}") for n in range(2)]
        for name in ("g0", "g1"):
            group = Group()
            clients += [Committer(self, name, group), Fetcher(self, name, group)]
        clients += [Reader(self, f"r{n}", partition=n) for n in range(PARTITIONS)]
        rate = rng.choice([0, 0.03, 0.15])
        node: Node | None = None
        joins, other = random.Random(f"joins of {self.seed}"), 0
        for _ in range(self.rounds):
            self.clock.advance(rng.choice([0, 10, 700, 2500]))
            if node is None:
                node = self.started(rate)
            if node is None:
                continue
            if rng.random() < 0.2:
                other += self.append_elsewhere(other)
            if joins.random() < 0.2:
                self.join_elsewhere(joins.randrange(PARTITIONS))
            usual, is_out = node.store.faults, rate and rng.random() < 0.15
            if is_out:
                node.store.faults = Seeded(rng, 0.95, OUTAGE)
            active = [client for client in clients if rng.random() < 0.6]
            answers = [node.send(client.bodies(), rng) for client in active]
            node.drive([answer for each in answers for answer in each], self.check_version)
            node.store.faults = usual
            for client, each in zip(active, answers, strict=True):
                lost_from = rng.randrange(len(each)) if rng.random() < 0.1 else len(each)
                client.take_all([*map(answer_of, each[:lost_from]), *[None] * (len(each) - lost_from)])
            if node.store.stopped or rng.random() < 0.08:
                node.store.stopped = True
                node.close()
                self.kills += 1
                node = None
        if node is not None:
            node.store.stopped = True
            node.close()
        self.clock.advance(10_000)
        self.judge(clients, other)

    def started(self, rate: float) -> Node | None:
        """Start a server; None: it was stopped meanwhile."""
        process = self.process(rate)
        with suppress(objects.Stopped, LastwordError):
            return Node(*process)
        return None

    def append_elsewhere(self, number: int) -> int:
        """Append a record in another process."""
        dirs = opened(*self.process())
        builder = BatchBuilder()
        builder.append(self.clock.now_ms(), b"k", b"other-%d" % number)
        batch = builder.build()
        partition = self.rng.randrange(PARTITIONS)
        dirs.transaction(lambda private: private.log(TOPIC, partition).append_batch(batch))
        return 1

    def join_elsewhere(self, partition: int) -> None:
        """Join the segments of a partition in another process."""
        dirs = opened(*self.process())
        with mock.patch.object(joining, "FILES_FREE", 2):
            dirs.transaction(lambda private: joining.join(private.log(TOPIC, partition)))

    # -------------------------------------------------------------- judge

    def records(self, *, committed: bool) -> list[list[tuple[int, bytes]]]:
        """Return the records of each partition in the newest version."""
        assert self.observer is not None
        topic = LogDir(self.observer).topic(TOPIC)
        level: Any = "read_committed" if committed else "read_uncommitted"
        found: list[list[tuple[int, bytes]]] = [[] for _ in range(PARTITIONS)]
        for record in topic.read(isolation=level):
            found[record.partition].append((record.offset, bytes(record.value)))
        return found

    def check_version(self) -> None:
        """Check that no transaction is there in part."""
        assert self.observer is not None
        self.observer.refresh()
        nonce = self.observer.newest.manifest.nonce
        if nonce == self.checked:
            return
        self.checked = nonce
        open_at = [
            self.derive(TOPIC, number, lambda view: set(view.undecided)) for number in range(PARTITIONS)
        ]
        transactions: dict[int, set[int]] = {}
        for number in self.observer.partitions(STATES) if STATES in self.observer.topics() else ():
            transactions |= self.derive(STATES, number, _ongoing)
        for number, producers in enumerate(open_at):
            for producer_id in producers:
                if number not in transactions.get(producer_id, set()):
                    raise Violation("half", f"producer {producer_id} is open in {number} only")

    def derive(self, topic: str, number: int, function: Callable[[PartitionView], T]) -> T:
        """Return what a function derives from a partition: as before if no file of the partition changed."""
        assert self.observer is not None
        newest, directory = self.observer.newest, f"{topic}-{number}"
        files = [newest.children(path) for path in (directory, f"{directory}/{names.PRIVATE}")]
        if directory not in self.derived or self.derived[directory][0] != files:
            self.derived[directory] = files, function(self.observer.view(topic, number))
        derived: T = self.derived[directory][1]
        return derived

    def judge(self, clients: list[Client], other: int) -> None:
        assert self.observer is not None
        self.clock.advance(10_000)
        node = Node(*self.process())
        for client in clients:
            if isinstance(client, Writer):  # ends what is open
                for _ in range(3):
                    client.again()
                    node.drive(node.send(client.bodies(), self.rng))
        node.close()
        self.observer.refresh()
        found = self.records(committed=False)
        visible = self.records(committed=True)
        for number, partition in enumerate(found):
            values = [value for _, value in partition]
            if len(set(values)) != len(values):
                raise Violation("twice", f"{TOPIC}-{number}: {[v for v in values if values.count(v) > 1]}")
        at = {value: offset for partition in found for offset, value in partition}
        if sum(value.startswith(b"other") for value in at) != other:
            raise Violation("lost", "a record of the other process")
        for client in clients:
            if isinstance(client, Producer):
                for value, offset in client.acknowledged:
                    if at.get(value) != offset:
                        raise Violation("lost", f"{value!r} acknowledged at {offset}, is at {at.get(value)}")
                mine = [
                    value
                    for _, value in found[client.partition]
                    if value.split(b"-")[0] == client.name.encode()
                ]
                if mine != sorted(mine, key=lambda value: int(value.split(b"-")[1])):
                    raise Violation("order", f"{client.name}: {mine}")
            elif isinstance(client, Writer):
                self.judge_transactions(client, visible)
        for number, batches in enumerate(self.read):
            self.judge_read(number, batches)

    def judge_read(self, number: int, batches: dict[int, bytes]) -> None:
        assert self.observer is not None
        view = self.observer.view(TOPIC, number)
        stored = {header.base_offset: bytes(data) for _, header, data in view.batches(view.log_start)}
        for base, data in batches.items():
            if stored.get(base) != data:
                raise Violation("read", f"{TOPIC}-{number} offset {base} was read, and is not there")

    def judge_transactions(self, writer: Writer, visible: list[list[tuple[int, bytes]]]) -> None:
        there = {(number, value) for number, part in enumerate(visible) for _, value in part}
        for transaction in writer.sent:
            is_there = [value in there for value in transaction.values]
            if any(is_there) != all(is_there):
                raise Violation("half", f"{writer.name}: {transaction}")
            if transaction.outcome == COMMITTED and not all(is_there):
                raise Violation("lost", f"{writer.name}: {transaction}")
            if transaction.outcome == ABORTED and any(is_there):
                raise Violation("aborted", f"{writer.name}: {transaction}")


def _ongoing(view: PartitionView) -> dict[int, set[int]]:
    """Return the partitions of each transaction that is not at its end, by producer id."""
    newest: dict[bytes, Any] = {}
    for segment, header, data in view.batches(view.log_start):
        for record in read_records(data, header, segment.file, position=0):
            newest[record.key or b""] = record.value
    ongoing = {}
    for value in newest.values():
        state = decode_stored("TransactionLogValue", value)
        if state.transaction_status in PREPARED:
            raise Violation("decided", "a transaction is decided, and has no markers")
        partitions = {
            number
            for topic in state.transaction_partitions or []
            if topic.topic == TOPIC
            for number in topic.partition_ids
        }
        if partitions:
            ongoing[state.producer_id] = partitions
    return ongoing


def run(seed: int) -> str | None:
    """Run a history; return what it violates."""
    try:
        History(seed).run()
    except Violation as violation:
        return f"seed {seed}: {violation}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--jobs", type=int, default=1)
    given = parser.parse_args()
    if given.seed is not None:
        History(given.seed).run()
        return 0
    failed = 0
    with multiprocessing.Pool(given.jobs) as pool:
        for done, found in enumerate(pool.imap_unordered(run, range(given.histories)), 1):
            if found is not None:
                failed += 1
                print(found, flush=True)
            if done % 500 == 0:
                print(f"{done} histories, {failed} violations", flush=True)
    print(f"{given.histories} histories, {failed} violations")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
