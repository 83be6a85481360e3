"""A server over a bucket: what its commits share, and the requests that it sends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from itertools import count
from random import Random
from typing import Any

import confluent_kafka
import pytest

import lastword
from lastword.api.logs import LogDir
from lastword.api.short_commits import ShortCommits
from lastword.api.topics import create_topics
from lastword.clock import ManualClock
from lastword.errors import StorageError
from lastword.protocol import codes
from lastword.protocol.messages import (
    DescribeLogDirsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)
from lastword.server import group_leases
from lastword.server.group_leases import GroupLeases
from lastword.server.produce import LARGE_BYTES, Producing
from lastword.testing import Broker
from tests.fakes import objects
from tests.server.bucket.histories import Node, answer_of, opened
from tests.server.client import (
    Client,
    batch,
    fetch_request,
    offset_commit,
    offset_fetch,
    produce_request,
    served,
)
from tests.support.waiting import until

OWN = True
LARGE = b"v" * 100_000
_numbers = count()


class Double:
    """A store that counts its requests, and servers over it."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_700_000_000_000)
        self.bucket = objects.Bucket(clock=self.clock)
        dirs = opened(self.bucket.process("first"), self.clock, 1)
        create_topics(dirs, {"t": (2, {"cleanup.policy": "delete"})})
        self.node = self.started()

    def started(self) -> Node:
        return Node(self.bucket.process(f"p{next(_numbers)}"), self.clock, 2)

    def restart(self) -> None:
        self.node.close()
        self.node = self.started()

    def ask(self, *asked: tuple[Any, int]) -> list[Any]:
        answers = [self.node.begin(*each) for each in asked]
        self.node.drive(answers)
        return [answer_of(answer) for answer in answers]

    def produce(self, value: bytes, partition: int = 0, **fields: Any) -> Any:
        data = batch((b"k", value), timestamp=self.clock.now_ms(), **fields)
        return produce_request("t", data, partition=partition), 12


@pytest.fixture
def double() -> Iterator[Double]:
    double = Double()
    yield double
    double.node.close()


def of(answer: Any) -> Any:
    """Return the only partition of an answer to Produce or Fetch."""
    response = answer.responses[0]
    return getattr(response, "partition_responses", getattr(response, "partitions", None))[0]


@pytest.mark.parametrize("tail_bytes", [None, 0])
def test_what_was_just_committed_is_read_without_a_request(double: Double, tail_bytes: int | None) -> None:
    if tail_bytes is not None:
        double.node.dirs._bucket.reads.tail_bytes = tail_bytes
    double.ask(double.produce(LARGE))
    sent = len(double.bucket.log)
    answer = double.node.begin(fetch_request([("t", 0, 0)]), 12)
    assert isinstance(answer, asyncio.Future) == (tail_bytes == 0)
    double.node.drive([answer])
    assert LARGE in b"".join(map(bytes, of(answer_of(answer)).records))
    assert (len(double.bucket.log) > sent) == (tail_bytes == 0)


def test_uploads_that_fail_leave_what_was_committed_in_memory(double: Double) -> None:
    """While the store is down, clients repeat their requests: each try has an object of its own."""
    double.node.dirs._bucket.reads.tail_bytes = 3 * len(LARGE)
    double.ask(double.produce(LARGE))
    store = double.node.store
    store.faults = lambda request: objects.Fault.REFUSED if request.kind == "put" else None
    for _ in range(5):
        assert double.ask(double.produce(LARGE)) == [None]  # the connection is closed
    store.faults = None
    sent = len(double.bucket.log)
    answer = double.node.begin(fetch_request([("t", 0, 0)]), 12)
    assert not isinstance(answer, asyncio.Future)
    assert LARGE in b"".join(map(bytes, of(answer_of(answer)).records)) and len(double.bucket.log) == sent


def test_older_records_are_read_by_requests(double: Double) -> None:
    double.ask(double.produce(LARGE), double.produce(b"small", partition=1))
    double.restart()
    [large] = double.ask((fetch_request([("t", 0, 0)]), 12))
    [small] = double.ask((fetch_request([("t", 1, 0)]), 12))
    assert LARGE in b"".join(map(bytes, of(large).records))
    assert b"small" in b"".join(map(bytes, of(small).records))


def test_requests_share_a_commit(double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit wakes the loop once for all of them."""
    swaps, loop, woken = double.bucket.requests["swap"], double.node.loop, list[Any]()

    def wake(call: Callable[..., object], *arguments: Any) -> None:
        woken.append(call)
        loop.call_soon(call, *arguments)

    monkeypatch.setattr(loop, "call_soon_threadsafe", wake)
    answers = double.ask(*(double.produce(b"%d" % number) for number in range(10)))
    assert [of(answer).base_offset for answer in answers] == list(range(10))
    assert double.bucket.requests["swap"] == swaps + 1
    assert woken.count(double.node.node._context._make_calls) == 1
    [answer] = double.ask(double.produce(b"later"))
    assert of(answer).base_offset == 10


def produced(value: bytes, sequence: int | None = None) -> tuple[Any, int]:
    producer = (-1, -1, -1) if sequence is None else (7, 0, sequence)
    return produce_request("t", batch((b"k", value), producer=producer)), 12


@pytest.mark.parametrize("sequences", [[None] * 5, range(5)], ids=["any", "idempotent"])
def test_requests_of_one_connection_share_a_commit_and_are_answered_in_their_order(
    sequences: Sequence[int | None],
) -> None:
    url = f"memory://ordered-{next(_numbers)}/log"
    with served(url, lastword_commit_linger_ms=300) as (logs, _, client):
        logs.create_topic("t", cleanup_policy="delete")
        before = logs.dirs._bucket.load().manifest.history
        client.hold(*produced(b"first", sequences[0]))
        client.hold(*produced(Random(1).randbytes(LARGE_BYTES), sequences[1]))  # a thread checks it
        client.hold(*produced(b"third", sequences[2]))
        client.hold(fetch_request([("t", 0, 2)]), 12)  # waits for those before it
        client.hold(*produced(b"fifth", sequences[3]))
        client.send(*produced(b"last", sequences[4]))
        first, second, third, read, fifth, last = [of(client.receive()) for _ in range(6)]
        assert [each.base_offset for each in (first, second, third, fifth, last)] == list(range(5))
        assert b"third" in bytes(read.records)
        commits = len(logs.dirs._bucket.load().manifest.history) - len(before)
        assert 2 <= commits < 5


def test_no_batch_is_appended_behind_one_of_its_connection_that_was_not_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    append, began, may_go_on = Producing._append, threading.Event(), threading.Event()

    def fails(producing: Producing, *given: Any) -> None:
        monkeypatch.setattr(Producing, "_append", append)
        began.set()
        assert may_go_on.wait(20)
        raise StorageError("no answer within the timeout", remedy="try again later")

    url = f"memory://failed-{next(_numbers)}/log"
    with served(url, lastword_commit_linger_ms=0) as (logs, server, first):
        logs.create_topic("t", cleanup_policy="delete")
        monkeypatch.setattr(Producing, "_append", fails)
        first.send(*produced(b"first"))
        assert began.wait(20)
        first.send(*produced(b"second"))
        may_go_on.set()
        with pytest.raises(OSError):  # the second may have no answer, and none is a success
            while True:
                assert of(first.receive()).error_code
        with Client(server, timeout=30) as client:
            assert [of(client.ask(*produced(b"again"))).base_offset for n in range(2)] == [0, 1]


def test_a_refused_batch_fails_no_other(double: Double) -> None:
    good, bad = double.produce(b"good"), double.produce(b"bad", producer=(5, 0, 7))
    double.ask(double.produce(b"first", producer=(5, 0, 0)))
    answers = double.ask(good, bad, double.produce(b"next"))
    errors = [of(answer).error_code for answer in answers]
    assert errors == [0, codes.OUT_OF_ORDER_SEQUENCE_NUMBER, 0]
    assert [of(answer).base_offset for answer in answers] == [1, -1, 2]


def test_a_record_without_a_key_is_refused_after_another_process_made_the_topic_compacted(
    double: Double,
) -> None:
    def asked() -> tuple[Any, int]:
        return produce_request("t", batch((None, b"v"), timestamp=double.clock.now_ms())), 12

    [answer] = double.ask(asked())
    assert of(answer).error_code == 0
    other = LogDir(opened(double.bucket.process("other"), double.clock, 3))
    other.set_config("t", cleanup_policy="compact")
    [first], [second] = double.ask(asked()), double.ask(asked())
    assert of(first).error_code == codes.NOT_LEADER_OR_FOLLOWER
    assert of(second).error_code == codes.INVALID_RECORD
    assert of(double.ask(double.produce(b"v"))[0]).base_offset == 1


@pytest.mark.parametrize("is_kept_open", [False, True])
def test_a_batch_for_a_topic_that_another_process_made_again_is_refused(
    double: Double, is_kept_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has not yet seen the new topic of that name."""
    if is_kept_open:
        monkeypatch.setattr(ShortCommits, "commit", lambda *arguments: False)
    topic = double.node.node._context.topics.get("t")

    def by_id() -> int:
        body, _ = double.produce(b"v")
        body.topic_data[0].name, body.topic_data[0].topic_id = "", topic.id
        return int(of(double.ask((body, 13))[0]).error_code)

    assert [by_id(), by_id()] == [0, 0]
    other = LogDir(opened(double.bucket.process("other"), double.clock, 3))
    other.delete_topic("t")
    other.create_topic("t", 2, cleanup_policy="delete")
    assert by_id() == codes.UNKNOWN_TOPIC_ID
    assert of(double.ask(double.produce(b"by name"))[0]).base_offset == 0
    other.delete_topic("t")
    assert by_id() == codes.UNKNOWN_TOPIC_ID


def test_a_repeated_batch_has_its_first_offset(double: Double) -> None:
    request = double.produce(b"v", producer=(5, 0, 0))
    assert [of(answer).base_offset for answer in double.ask(request, request)] == [0, 0]
    assert [of(answer).base_offset for answer in double.ask(request)] == [0]


@pytest.mark.parametrize("together", [5, 2, 1])
def test_the_last_five_batches_are_recognized_after_a_takeover(double: Double, together: int) -> None:
    sent = [double.produce(b"%d" % number, producer=(5, 0, number)) for number in range(8)]
    for first in range(0, len(sent), together):
        double.ask(*sent[first : first + together], double.produce(b"other", producer=(6, 0, first)))
    places = [of(answer).base_offset for answer in double.ask(*sent[3:])]
    for number in range(3, 8):
        double.restart()
        [answer] = double.ask(sent[number])
        assert (of(answer).error_code, of(answer).base_offset) == (0, places[number - 3])
    double.restart()
    [older] = double.ask(sent[2])
    assert of(older).error_code == codes.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert [of(answer).base_offset for answer in double.ask(*sent[3:])] == places
    [following] = double.ask(double.produce(b"8", producer=(5, 0, 8)))
    assert of(following).error_code == 0


def test_nothing_is_sent_for_acks_0_before_the_commit(double: Double) -> None:
    body, version = double.produce(b"v")
    body.acks = 0
    answer = double.node.begin(body, version)
    assert isinstance(answer, asyncio.Future)
    assert not answer.done()  # the connection sends no other request meanwhile
    double.node.drive([answer])
    assert answer.result() is None


@pytest.mark.parametrize("committed", [True, False])
def test_the_end_of_a_transaction_is_one_swap(double: Double, committed: bool) -> None:
    [begun] = double.ask((InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000), 5))
    producer = begun.producer_id, begun.producer_epoch
    for partition in (0, 1):
        data = batch((b"k", b"v"), producer=(*producer, 0), attributes=0x10, timestamp=double.clock.now_ms())
        [answer] = double.ask((produce_request("t", data, partition=partition, transactional_id="x"), 12))
        assert of(answer).error_code == 0
    swaps = double.bucket.requests["swap"]
    end = EndTxnRequest(
        transactional_id="x", producer_id=producer[0], producer_epoch=producer[1], committed=committed
    )
    [ended] = double.ask((end, 5))
    assert ended.error_code == 0
    assert double.bucket.requests["swap"] == swaps + 1
    for partition in (0, 1):
        [answer] = double.ask((fetch_request([("t", partition, 0)], isolation_level=1), 12))
        assert of(answer).last_stable_offset == 2


def test_an_offset_that_was_not_stored_is_forgotten(double: Double) -> None:
    def committed(offset: int) -> int:
        answer = double.node.begin(offset_commit(offset, topic="t"), 8)
        double.node.drive([answer])
        if answer.exception() is not None:
            return int(answer.exception().code)
        return int(answer.result().topics[0].partitions[0].error_code)

    def fetched() -> int:
        [answer] = double.ask((offset_fetch(topic="t"), 8))
        return int(answer.groups[0].topics[0].partitions[0].committed_offset)

    assert committed(1) == 0
    store = double.node.store
    store.faults = objects.Seeded(Random(1), 1.0, [objects.Fault.REFUSED])
    assert committed(5) == codes.NOT_COORDINATOR
    store.faults = None
    assert fetched() == 1
    store.faults = lambda request: objects.Fault.LOST if request.kind == "swap" else None
    assert committed(7) == 0  # the manifest has the name of the commit
    store.faults = None
    assert fetched() == 7


def test_a_commit_of_another_process_answers_a_fetch_that_waits() -> None:
    url = f"memory://others-{next(_numbers)}/log"
    with served(url, lastword_commit_linger_ms=0) as (logs, _, client), lastword.open(url, "a") as others:
        logs.create_topic("t", cleanup_policy="delete")
        client.send(fetch_request([("t", 0, 0)], max_wait_ms=20_000), 12)
        others["t"].append(b"k", b"from another process")
        answer = client.receive().responses[0].partitions[0]
        assert b"from another process" in bytes(answer.records)
        described = client.ask(DescribeLogDirsRequest(topics=None)).results
        assert [result.log_dir for result in described] == [url]
        assert described[0].topics[0].partitions[0].partition_size > 0


def test_partitions_of_a_waiting_fetch_that_grow_while_others_are_read(double: Double) -> None:
    """Two reads in the pool at one moment would each lose the answers of the other."""
    double.node.dirs._bucket.reads.tail_bytes = 0  # a read needs a request
    pool = _Held()
    body = fetch_request([("t", 0, 0), ("t", 1, 0)], max_wait_ms=60_000, min_bytes=2 * len(LARGE))
    waiting = double.node.begin(body, 12)
    double.node.turn()
    double.node.node._context._pool = pool
    for partition in (0, 1):
        double.ask(double.produce(LARGE, partition=partition))
    while pool.tasks:
        pool.run(double.node.store)
        double.node.turn()
    assert waiting.done()
    parts = waiting.result().responses[0].partitions
    assert all(LARGE in b"".join(map(bytes, part.records)) for part in parts)


class _Held(Executor):
    """Runs its tasks together: each begins before one of them gets the answer to a request."""

    def __init__(self) -> None:
        self.tasks: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, task: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        self.tasks.append((Future(), partial(task, *arguments, **options)))
        return self.tasks[-1][0]

    def run(self, store: objects.FakeStore) -> None:
        tasks, self.tasks = self.tasks, []
        begun, barrier = set[int](), threading.Barrier(len(tasks))

        def together(request: objects.Request) -> None:
            if threading.get_ident() not in begun:
                begun.add(threading.get_ident())
                barrier.wait(20)

        store.before = together
        with ThreadPoolExecutor(len(tasks)) as threads:
            for (future, _), result in zip(tasks, threads.map(lambda each: each[1](), tasks), strict=True):
                future.set_result(result)
        store.before = None


def test_the_leases_of_a_failed_commit_are_written_by_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    write, fails = GroupLeases._write_in, [True]

    def refused(leases: GroupLeases, *arguments: Any, **options: Any) -> None:
        if fails:
            raise StorageError("no answer within the timeout", remedy="try again later")
        write(leases, *arguments, **options)

    monkeypatch.setattr(group_leases, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(GroupLeases, "_write_in", refused)
    url = f"memory://leases-{next(_numbers)}/log"
    with served(url, lastword_commit_linger_ms=0) as (logs, server, client):
        logs.create_topic("t", cleanup_policy="compact")
        logs["t"].append(b"k", b"v")
        leases = server.node.groups.leases
        assert client.commit(1, version=8, topic="t") == 0
        until(lambda: leases._writing is None and not leases._urgent)
        fails.clear()
        until(lambda: [lease.name for lease in logs["t"].leases()] == ["group.g"])


@pytest.mark.slow
def test_a_client_with_groups_and_transactions() -> None:
    with Broker("memory://") as broker:
        address = {"bootstrap.servers": broker.bootstrap_servers}
        producer = confluent_kafka.Producer({**address, "enable.idempotence": True})
        for number in range(500):
            producer.produce("t", key=str(number % 10), value=str(number))
        assert producer.flush(20) == 0
        given = {**address, "group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = confluent_kafka.Consumer(given)
        consumer.subscribe(["t"])
        values: list[Any] = []
        while len(values) < 500:
            values += [message.value() for message in consumer.consume(500, 1) if not message.error()]
        assert values == [str(number).encode() for number in range(500)]
        writer = confluent_kafka.Producer({**address, "transactional.id": "x"})
        writer.init_transactions(20)
        for commits in (True, False):
            writer.begin_transaction()
            writer.produce("u", key="k", value=str(commits))
            offsets = consumer.position(consumer.assignment())
            writer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata())
            writer.commit_transaction(20) if commits else writer.abort_transaction(20)
        consumer.close()
        assert [record.value for record in broker.wait_for("u", 1)] == [b"True"]
        assert broker.lag("g") == {("t", 0): 0}
        broker.stop()
        broker.start()
        assert broker.lag("g") == {("t", 0): 0}
