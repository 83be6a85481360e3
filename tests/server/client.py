"""A client that sends one request at a time, in any version, also wrong ones; and batches for it."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import lastword
from lastword.protocol import ClientConnection
from lastword.protocol.messages import (
    CreateTopicsRequest,
    FetchRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    ProduceRequest,
)
from lastword.protocol.schemas import APIS, Message
from lastword.records.batch import BatchHeader, read_header, write_batch
from lastword.records.compression import compress
from lastword.records.record import encode_varint
from lastword.server import Server
from lastword.testing.unsynced import UNSYNCED

NEWEST = {api.name: api.stable for api in APIS.values()}


class Address(NamedTuple):
    """The address of a server in another process."""

    host: str
    port: int


@contextmanager
def served(directory: Any, **options: Any) -> Iterator[tuple[lastword.LogDir, Server, Client]]:
    """Serve a log to a client. It has no cleaner and waits for no drive, unless options say otherwise."""
    given = {"log_cleaner_enable": False} | ({} if "://" in str(directory) else {"files": UNSYNCED}) | options
    with (
        lastword.open(directory, "a", **given) as logs,
        lastword.serve(logs, "127.0.0.1:0") as server,
        Client(server, timeout=30) as client,
    ):
        yield logs, server, client


class Client:
    """One connection to a server or an address. `with Client(server) as client: client.ask(body)`."""

    def __init__(self, server: Any, *, timeout: float = 10, client_id: str = "tests") -> None:
        self.socket = socket.create_connection((server.host, server.port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._protocol = ClientConnection(client_id)
        self._answers: list[Any] = []
        self._held = b""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.socket.close()

    def hold(self, body: Message, version: int) -> None:
        """Send a request together with the next one."""
        self._held += b"".join(self._protocol.request(body, version))  # type: ignore[arg-type]

    def send(self, body: Message, version: int | None = None) -> None:
        if version is None:
            version = NEWEST[type(body).__name__.removesuffix("Request")]
        held, self._held = self._held, b""
        parts = self._protocol.request(body, version)
        if held:
            parts = [held + b"".join(parts)]  # type: ignore[arg-type]
        for part in parts:
            assert isinstance(part, bytes | bytearray | memoryview)
            self.socket.sendall(part)

    def receive(self) -> Any:
        while not self._answers:
            data = self.socket.recv(1 << 20)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._answers += self._protocol.receive_data(data)
        return self._answers.pop(0).body

    def ask(self, body: Message, version: int | None = None) -> Any:
        self.send(body, version)
        return self.receive()

    # -------------------------------------------------------------- shortcuts

    def produce(self, topic: str, records: Any, *, version: int = 12, **fields: Any) -> Any:
        """Return the answer for the partition."""
        body = produce_request(topic, records, **fields)
        if not fields.get("acks", -1):
            self.send(body, version)
            return None
        return self.ask(body, version).responses[0].partition_responses[0]

    def fetch(self, topic: str, offset: int, *, partition: int = 0, version: int = 12, **fields: Any) -> Any:
        """Return the answer for the partition."""
        response = self.ask(fetch_request([(topic, partition, offset)], **fields), version)
        return response.responses[0].partitions[0]

    def offset(self, topic: str, timestamp: int, *, isolation_level: int = 0, version: int = 9) -> Any:
        """Return the answer of ListOffsets for partition 0."""
        asked = ListOffsetsRequest.ListOffsetsPartition(timestamp=timestamp)
        body = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation_level,
            topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[asked])],
        )
        return self.ask(body, version).topics[0].partitions[0]

    def topic_id(self, topic: str = "users") -> bytes:
        return bytes(self.ask(metadata(topic)).topics[0].topic_id)

    def commit(self, offset: int, group: str = "g", *, version: int = 9, **fields: Any) -> int:
        """Commit an offset; return the error code."""
        body = offset_commit(offset, group, **fields)
        return int(self.ask(body, version).topics[0].partitions[0].error_code)

    def committed(self, group: str = "g", *, version: int = 9, **fields: Any) -> Any:
        """Return the answer of OffsetFetch for the partition."""
        return self.ask(offset_fetch(group, **fields), version).groups[0].topics[0].partitions[0]


def metadata(*topics: str, **fields: Any) -> Message:
    asked = [MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics]
    return MetadataRequest(topics=asked, **fields)


def new_topic(name: str, partitions: int = 1, settings: Mapping[str, str] | None = None) -> Any:
    """Return a topic for CreateTopics."""
    configs = [
        CreateTopicsRequest.CreatableTopicConfig(name=key, value=value)
        for key, value in (settings or {}).items()
    ]
    return CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1, configs=configs
    )


def offset_commit(
    offset: int, group: str = "g", *, topic: str = "users", partition: int = 0, text: str = "", **fields: Any
) -> Message:
    kind = OffsetCommitRequest
    given = kind.OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_metadata=text
    )
    named: dict[str, Any] = {"topic_id": fields.pop("topic_id")} if "topic_id" in fields else {"name": topic}
    topics = [kind.OffsetCommitRequestTopic(partitions=[given], **named)]
    return kind(group_id=group, topics=topics, **fields)


def offset_fetch(
    group: str = "g", *, topic: str = "users", partition: int = 0, stable: bool = False, **fields: Any
) -> Message:
    """Return an OffsetFetch of a group, of version 8 or newer; `fields` are those of the group."""
    kind = OffsetFetchRequest
    topics = [kind.OffsetFetchRequestTopics(name=topic, partition_indexes=[partition])]
    asked = kind.OffsetFetchRequestGroup(group_id=group, topics=topics, **fields)
    return kind(groups=[asked], require_stable=stable)


def offset_delete(group: str, *, topic: str = "users", partitions: Iterable[int] = (0,)) -> Message:
    kind = OffsetDeleteRequest
    deleted = [kind.OffsetDeleteRequestPartition(partition_index=number) for number in partitions]
    return kind(group_id=group, topics=[kind.OffsetDeleteRequestTopic(name=topic, partitions=deleted)])


def produce_request(
    topic: str, records: Any, *, acks: int = -1, partition: int = 0, transactional_id: str | None = None
) -> Message:
    data = ProduceRequest.PartitionProduceData(index=partition, records=records)
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=1000,
        topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
    )


def fetch_request(asked: list[tuple[str, int, int]], **fields: Any) -> Message:
    """`asked`: topic, partition, offset."""
    kind, names = FetchRequest, ("partition_max_bytes", "current_leader_epoch")
    given = {"partition_max_bytes": 1 << 20} | {name: fields.pop(name) for name in names if name in fields}
    parts = [(topic, kind.FetchPartition(partition=n, fetch_offset=at, **given)) for topic, n, at in asked]
    topics = [kind.FetchTopic(topic=topic, partitions=[part]) for topic, part in parts]
    chosen: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 50 << 20, "topics": topics}
    return FetchRequest(**chosen | fields)


def headers(data: bytes) -> Iterator[BatchHeader]:
    """Yield the header of each batch of an answer to Fetch."""
    position = 0
    while position < len(data):
        header = read_header(data, position, len(data), "<answer>")
        yield header
        position = header.end


def batch(
    *records: tuple[bytes | None, bytes | None],
    codec: int = 0,
    timestamp: int | None = None,
    producer: tuple[int, int, int] = (-1, -1, -1),
    **fields: Any,
) -> bytes:
    """Return a batch as a producer makes it; `fields` replace those of `write_batch`."""
    at = int(time.time() * 1000) if timestamp is None else timestamp
    payload = b"".join(raw_record(number, *record) for number, record in enumerate(records))
    given = {
        "base_offset": 0,
        "leader_epoch": -1,
        "attributes": codec,
        "last_offset_delta": len(records) - 1,
        "base_timestamp": at,
        "max_timestamp": at,
        "producer": producer,
        "count": len(records),
        "payload": compress(codec, payload) if codec else payload,
    }
    return write_batch(**(given | fields))  # type: ignore[arg-type]


def raw_record(delta: int, key: bytes | None, value: bytes | None) -> bytes:
    """Return the bytes of a record without headers."""
    body = b"\0\0" + encode_varint(delta)
    for data in (key, value):
        body += encode_varint(-1) if data is None else encode_varint(len(data)) + data
    body += b"\0"
    return encode_varint(len(body)) + body
