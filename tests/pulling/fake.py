"""Brokers of a cluster that exists in the test only. Each answer may be replaced, also by wrong bytes."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from lastword.errors import LastwordError
from lastword.protocol import Request, ServerConnection, codes
from lastword.protocol.messages import (
    ApiVersionsResponse,
    DescribeConfigsResponse,
    FetchResponse,
    ListGroupsResponse,
    ListOffsetsResponse,
    MetadataResponse,
    OffsetForLeaderEpochResponse,
)
from lastword.protocol.schemas import APIS

TOPIC_ID = bytes(range(16))
KEYS = {api.name: key for key, api in APIS.items()}


class Closed(Exception):
    """Raised by an answer: the broker closes the connection."""


@dataclass
class FakeCluster:
    """A cluster with one topic, `users`, of one partition, or of several that have the same log.

    Attributes:
        batches: The log: (base offset, last offset, bytes).
        others: The leaders of further partitions.
        brokers: Its brokers; the leader is the one with the number `leader`.
        answers: By API: called with the request and the usual answer; returns the answer, or bytes.
        most: The newest version of an API, if it is older than ours.
        asked: The requests, in order: the broker's number and the request.
    """

    batches: list[tuple[int, int, bytes]] = field(default_factory=list)
    start: int = 0
    leader: int = 0
    others: list[int] = field(default_factory=list)
    leader_epoch: int = 0
    topic_id: bytes = TOPIC_ID
    cluster_id: str = "fake"
    brokers: list[FakeBroker] = field(default_factory=list)
    answers: dict[str, Callable[[Request, Any], Any]] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)
    asked: list[tuple[int, Request]] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.batches[-1][1] + 1 if self.batches else self.start

    @property
    def at(self) -> str:
        return self.brokers[0].at

    def requests(self, api: str) -> list[Any]:
        return [request.body for _, request in self.asked if request.api.name == api]

    # -------------------------------------------------------------- usual answers

    def answer(self, broker: FakeBroker, request: Request) -> Any:
        self.asked.append((broker.number, request))
        usual = getattr(self, f"on_{request.api.name}", None)
        body = None if usual is None else usual(broker, request)
        replace = self.answers.get(request.api.name)
        return body if replace is None else replace(request, body)

    def on_ApiVersions(self, broker: FakeBroker, request: Request) -> Any:
        keys = [
            ApiVersionsResponse.ApiVersion(
                api_key=api.key, min_version=api.first, max_version=self.most.get(api.name, api.stable)
            )
            for api in APIS.values()
            if self.most.get(api.name, 0) >= 0
        ]
        return ApiVersionsResponse(error_code=request.error, api_keys=keys)

    def on_Metadata(self, broker: FakeBroker, request: Request) -> Any:
        partitions = [
            MetadataResponse.MetadataResponsePartition(
                partition_index=number,
                leader_id=leader,
                leader_epoch=self.leader_epoch,
                replica_nodes=[leader],
                isr_nodes=[leader],
            )
            for number, leader in enumerate([self.leader, *self.others])
        ]
        names = ["users"] if request.body.topics is None else [topic.name for topic in request.body.topics]
        topics = [
            MetadataResponse.MetadataResponseTopic(
                name=name,
                topic_id=self.topic_id if name == "users" and request.version >= 10 else bytes(16),
                error_code=0 if name == "users" else codes.UNKNOWN_TOPIC_OR_PARTITION,
                partitions=partitions if name == "users" else [],
            )
            for name in names
        ]
        brokers = [
            MetadataResponse.MetadataResponseBroker(node_id=b.number, host="127.0.0.1", port=b.port)
            for b in self.brokers
        ]
        return MetadataResponse(brokers=brokers, cluster_id=self.cluster_id, controller_id=0, topics=topics)

    def on_DescribeConfigs(self, broker: FakeBroker, request: Request) -> Any:
        result = DescribeConfigsResponse.DescribeConfigsResult(resource_type=2, resource_name="users")
        return DescribeConfigsResponse(results=[result])

    def on_ListOffsets(self, broker: FakeBroker, request: Request) -> Any:
        (topic,) = request.body.topics
        partitions = [
            ListOffsetsResponse.ListOffsetsPartitionResponse(
                partition_index=asked.partition_index,
                offset=self.start if asked.timestamp == -2 else self.end,
                leader_epoch=-1 if request.version < 4 else 0,
            )
            for asked in topic.partitions
        ]
        return ListOffsetsResponse(
            topics=[ListOffsetsResponse.ListOffsetsTopicResponse(name="users", partitions=partitions)]
        )

    def on_OffsetForLeaderEpoch(self, broker: FakeBroker, request: Request) -> Any:
        partition = OffsetForLeaderEpochResponse.EpochEndOffset(partition=0, leader_epoch=-1, end_offset=-1)
        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic="users", partitions=[partition])
            ]
        )

    def on_ListGroups(self, broker: FakeBroker, request: Request) -> Any:
        return ListGroupsResponse(groups=[])

    def on_Fetch(self, broker: FakeBroker, request: Request) -> Any:
        (asked,) = request.body.topics
        offset = asked.partitions[0].fetch_offset
        records = b"".join(data for _, last, data in self.batches if last >= offset)
        return self.fetched(request, records[: asked.partitions[0].partition_max_bytes])

    def fetched(self, request: Request, records: bytes, *, error: int = 0, **fields: Any) -> Any:
        """Return an answer to a fetch, cut where a caller has cut `records`."""
        (asked,) = request.body.topics
        data = FetchResponse.PartitionData(
            partition_index=asked.partitions[0].partition,
            error_code=error,
            high_watermark=-1 if error else self.end,
            last_stable_offset=-1 if error else self.end,
            log_start_offset=-1 if error else self.start,
            aborted_transactions=None,
            records=records,
        )
        topic = FetchResponse.FetchableTopicResponse(
            topic=asked.topic, topic_id=asked.topic_id, partitions=[data]
        )
        return FetchResponse(responses=[topic], **fields)


class FakeBroker:
    """One broker of a `FakeCluster`, with a thread for each connection."""

    def __init__(self, cluster: FakeCluster, tls: ssl.SSLContext | None = None) -> None:
        self.cluster = cluster
        self.number = len(cluster.brokers)
        self._tls = tls
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.at = f"127.0.0.1:{self.port}"
        self.connections: list[socket.socket] = []
        cluster.brokers.append(self)
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError, Closed, LastwordError):
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            self.connections.append(connection)
            protocol = ServerConnection()
            while data := connection.recv(1 << 16):
                for request in protocol.receive_data(data):
                    body = self.cluster.answer(self, request)
                    parts = [body] if isinstance(body, bytes) else protocol.response(request, body)
                    connection.sendall(b"".join(parts))  # type: ignore[arg-type]
        connection.close()
