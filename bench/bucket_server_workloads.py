"""Measure `lastword serve` over a log in a bucket: CPU time, requests, price, latency, bytes of a commit.

CPU seconds are those of the server's process, whose store is in memory: its copies count. Requests and bytes
are counted as S3 counts them, below a server of this process (`MeteredStore`), which may delay each request.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tests.server.client import Client, batch, produce_request
from tests.support.jars import KafkaJars
from tests.support.kafka import Tools

import lastword
from bench.bucket_workloads import dirs_of, metered
from bench.metered_store import MeteredStore
from bench.registry import Measured, Run, workload
from bench.server_workloads import KAFKA, Peer, broker, fetch_all, ours, records
from lastword.api.bucket_dirs import BucketDirs, merged_settings
from lastword.api.logs import LogDir
from lastword.api.open_dirs import OpenDirs
from lastword.bucket.commit import Bucket
from lastword.clock import SystemClock
from lastword.server import Server

BATCH_BYTES = 64 << 10
IN_FLIGHT = 50
CLIENTS = 100
CLIENT_BATCH_BYTES = 1000
SECONDS = 5.0
"""How long the clients produce, and how long an idle server is observed."""
REQUEST_SECONDS = (0.0, 0.01, 0.03)
PRODUCERS, PARTITIONS, COMMITS = 200, 100, 40
WRITING = (10, 1)
"""How many of the producers write to a partition in one commit: each of them to some partition, and few."""
NAME = "bucket-server"
RIVALS = {"lastword serve DIR": "directory", KAFKA: "kafka"}


@workload(NAME)
def bucket_server(run: Run) -> Iterator[Measured]:
    """Serve a log in a bucket: CPU time beside `serve DIR` and a broker, requests, latency, bytes.

    Rivals: the server of a directory and a Kafka broker (CPU seconds for a million records of 124 bytes, 50
    requests of 64 KiB in flight); for requests and bytes the bounds that are named.
    """
    bucket = _cpu(run, "bucket")
    for rival, kind in RIVALS.items():
        amounts = _cpu(run, kind)
        for what, spent in bucket.items():
            yield _measured(what, "CPU s/M records", spent, amounts[what], rival)
    for seconds in REQUEST_SECONDS:
        yield from _latency(seconds)
    yield from _idle()
    yield from _producers()


def _measured(what: str, unit: str, mine: float, rival: float, name: str, **facts: Any) -> Measured:
    return Measured(NAME, what, unit, mine, rival, name, rival / (mine or 1e-9), facts)


# ---------------------------------------------------------------- CPU time


@contextmanager
def _started(run: Run, kind: str) -> Iterator[Peer]:
    place = run.scratch / f"bucket-server-{kind}"
    with ExitStack() as stack:
        if kind == "kafka":
            tools = stack.enter_context(Tools(KafkaJars.find_or_fetch()))
            yield stack.enter_context(broker(tools, place))
        else:
            url = f"memory://{place.name}/log" if kind == "bucket" else None
            yield stack.enter_context(ours(place, url=url))


def _cpu(run: Run, kind: str) -> dict[str, float]:
    """Return the CPU seconds of a server for a million records that are produced and fetched."""
    spent: dict[str, float] = {}
    with _started(run, kind) as peer:
        peer.create(warm={}, measured={})
        for topic in ("warm", "measured"):
            cpu = peer.cpu()
            count = _pipelined(peer, topic, run.records)
            spent["produce"] = peer.spent_since(cpu) / count * 1e6
            cpu = peer.cpu()
            fetch_all(peer, topic, count)
            spent["fetch"] = peer.spent_since(cpu) / count * 1e6
    return spent


def _pipelined(peer: Peer, topic: str, total: int) -> int:
    """Produce about `total` records with requests that wait together; return how many."""
    data, count = records(BATCH_BYTES)
    body, requests = produce_request(topic, data, acks=1), max(1, total // count)
    with peer.client() as client:
        sent = received = 0
        while received < requests:
            if sent < requests and sent - received < IN_FLIGHT:
                client.send(body, 9)
                sent += 1
            else:
                answer = client.receive().responses[0].partition_responses[0]
                assert answer.error_code == 0, answer
                received += 1
    return requests * count


# ---------------------------------------------------------------- requests


@contextmanager
def _serving(partitions: int, **network: float) -> Iterator[tuple[MeteredStore, LogDir, Server]]:
    """Serve a log whose requests are counted, with the default linger and no work in the background."""
    with metered(**network) as store:
        load = merged_settings(store.url, None, {"log_cleaner_enable": False})
        logs = LogDir(BucketDirs(Bucket(store), "a", load, SystemClock()))
        with logs, lastword.serve(logs, "127.0.0.1:0") as server:
            logs.create_topic("t", partitions, cleanup_policy="delete")
            yield store, logs, server


def _latency(request_seconds: float) -> Iterator[Measured]:
    """Measure 100 producers that each send a small batch when the one before is acknowledged."""
    data = batch((b"k", bytes(CLIENT_BATCH_BYTES)))
    with _serving(1, request_seconds=request_seconds) as (store, logs, server), ExitStack() as stack:
        body = produce_request("t", data)
        clients = deque(stack.enter_context(Client(server, timeout=60)) for _ in range(CLIENTS))
        times: list[float] = []
        store.reset()
        began = time.monotonic()
        waiting = deque[tuple[Client, float]]()
        while clients or waiting:
            if clients and time.monotonic() < began + SECONDS:
                client = clients.popleft()
                client.send(body, 9)
                waiting.append((client, time.monotonic()))
            elif waiting:  # a commit answers all of them, in the order in which they came
                client, sent = waiting.popleft()
                assert client.receive().responses[0].partition_responses[0].error_code == 0
                times.append(time.monotonic() - sent)
                clients.append(client)
            else:
                break
        seconds, usage = time.monotonic() - began, store.usage()
        linger = dirs_of(logs).settings.instance.lastword_commit_linger_ms / 1000
    sent_bytes = len(times) * len(data)
    what = f"{CLIENTS} producers, {1000 * request_seconds:.0f} ms a request"
    bound = linger + 2 * request_seconds
    centiles = statistics.quantiles(times, n=100)
    yield _measured(f"{what}, p50", "s", centiles[49], bound, "the linger and two requests")
    yield _measured(f"{what}, p99", "s", centiles[98], bound, "the linger and two requests")
    requests = (usage.writes + usage.reads) / seconds
    bound_requests = 2 / linger
    yield _measured(what, "requests/s", requests, bound_requests, "two requests each linger")
    yield _measured(
        what,
        "USD/GB",
        usage.dollars / sent_bytes * 1e9,
        len(times) * 5e-6 / sent_bytes * 1e9,
        "an object for each batch",
        writes=usage.writes,
        reads=usage.reads,
        produced=sent_bytes,
        sent=usage.sent,
    )


def _idle() -> Iterator[Measured]:
    """Count the requests of a server without clients."""
    with _serving(1) as (store, logs, _):
        heartbeat = dirs_of(logs).settings.instance.broker_heartbeat_interval_ms / 1000
        store.reset()
        time.sleep(2 * SECONDS)
        usage = store.usage()
    requests = (usage.writes + usage.reads) / (2 * SECONDS)
    bound = 2 / heartbeat
    yield _measured("idle", "requests/s", requests, bound, "a write and a read each heartbeat")


def _producers() -> Iterator[Measured]:
    """Measure the bytes of a commit to 100 partitions, each of which 200 producers have written to."""
    with _serving(PARTITIONS) as (store, logs, _):
        dirs = dirs_of(logs)

        sequences: Counter[int] = Counter()
        rng = random.Random(NAME)

        def commit(producers: Iterable[int]) -> int:
            """Commit a batch of each producer to each partition; return the bytes of the batches."""
            batches = [  # of each partition its own: equal ones would be compressed away
                [
                    batch((b"k", rng.randbytes(100)), producer=(1000 + number, 0, sequences[number]))
                    for number in producers
                ]
                for _ in range(PARTITIONS)
            ]
            sequences.update(producers)

            def work(private: OpenDirs) -> None:
                for partition in range(PARTITIONS):
                    private.log("t", partition).append_batches(batches[partition])

            dirs.begin_append(("t",), work, 1).result()
            return sum(len(each) for partition in batches for each in partition)

        commit(range(PRODUCERS))
        for writing in WRITING:
            store.reset()
            batches = 0
            for number in range(COMMITS):
                batches += commit([(number * writing + n) % PRODUCERS for n in range(writing)])
            usage, count = store.usage(), COMMITS
            what = f"{writing} of {PRODUCERS:,} producers write to each of {PARTITIONS} partitions"
            sent = usage.sent / count / 1e3
            yield _measured(what, "KB sent", sent, batches / count / 1e3, "the batches alone")
            requests = (usage.writes + usage.reads) / count
            yield _measured(what, "requests", requests, 2, "an object and the manifest")
