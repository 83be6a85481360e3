"""A transactional producer by requests, and what a committed reader gets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lastword.clock import Clock
from lastword.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from lastword.records.batch import read_records
from lastword.records.record import RawRecord
from tests.server.client import Client, batch, headers

TIMEOUT_MS = 60_000


class Writer:
    """A transactional producer by requests. Version 1: partitions are added first; 2: as in Kafka 4."""

    def __init__(self, client: Client, clock: Clock, name: str = "t", *, version: int = 2) -> None:
        self.client = client
        self.clock = clock
        self.name = name
        self.version = version
        self.producer_id = self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}

    def init(self, **fields: Any) -> Any:
        """Send InitProducerId; take the producer id and the epoch if there is no error."""
        given = {"transactional_id": self.name, "transaction_timeout_ms": TIMEOUT_MS} | fields
        answer = self.client.ask(InitProducerIdRequest(**given))
        if not answer.error_code:
            self.took(answer)
        return answer

    def took(self, answer: Any) -> None:
        if (answer.producer_id, answer.producer_epoch) != (self.producer_id, self.epoch):
            self.sequences.clear()
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch

    def add(self, topic: str, partition: int = 0, *, version: int = 3) -> int:
        """Return the error of AddPartitionsToTxn."""
        kind = AddPartitionsToTxnRequest
        body = kind(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[kind.AddPartitionsToTxnTopic(name=topic, partitions=[partition])],
        )
        answer = self.client.ask(body, version).results_by_topic_v3_and_below
        return int(answer[0].results_by_partition[0].partition_error_code)

    def send(self, value: bytes, topic: str = "users", partition: int = 0, **fields: Any) -> int:
        """Return the error of Produce; without an error the next sequence follows."""
        version = fields.pop("version", 12 if self.version == 2 else 11)
        adds = fields.pop("adds", self.version == 1)
        if adds and (code := self.add(topic, partition)):
            return code
        at = topic, partition
        key = fields.pop("key", b"k")
        sequence = self.sequences.get(at, 0)
        producer = self.producer_id, self.epoch, sequence
        data = batch(
            (key, value), producer=producer, attributes=0x10, timestamp=self.clock.now_ms(), **fields
        )
        answer = self.client.produce(
            topic, data, partition=partition, version=version, transactional_id=self.name
        )
        if not answer.error_code:
            self.sequences[at] = sequence + 1
        return int(answer.error_code)

    def end_request(self, *, commit: bool) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )

    def end(self, *, commit: bool = True, version: int | None = None) -> int:
        """Return the error of EndTxn; take the next epoch, which version 2 has."""
        version = (5 if self.version == 2 else 4) if version is None else version
        answer = self.client.ask(self.end_request(commit=commit), version)
        if not answer.error_code and version >= 5:
            self.took(answer)
        return int(answer.error_code)

    def commit_offset(self, offset: int, group: str = "g", **fields: Any) -> int:
        """Return the error of TxnOffsetCommit for users-0, from version 6 on by the id of the topic."""
        version = fields.pop("version", 5 if self.version == 2 else 4)
        if fields.pop("adds", version < 5):
            body = AddOffsetsToTxnRequest(
                transactional_id=self.name,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                group_id=group,
            )
            if code := self.client.ask(body).error_code:
                return int(code)
        kind = TxnOffsetCommitRequest
        topic_id = fields.pop("topic_id", None) or self.client.topic_id()
        partition = kind.TxnOffsetCommitRequestPartition(
            partition_index=fields.pop("partition", 0), committed_offset=offset, committed_metadata="m"
        )
        body = kind(
            transactional_id=self.name,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[
                kind.TxnOffsetCommitRequestTopic(name="users", topic_id=topic_id, partitions=[partition])
            ],
            **fields,
        )
        return int(self.client.ask(body, version).topics[0].partitions[0].error_code)


def started(client: Client, clock: Clock, name: str = "t", *, version: int = 2) -> Writer:
    """Return a producer that has its producer id."""
    writer = Writer(client, clock, name, version=version)
    assert not writer.init().error_code
    return writer


def committed(client: Client, topic: str = "users", partition: int = 0) -> list[bytes]:
    """Return the values that a committed read has, by the records' bytes and the list of aborted ones."""
    answer = client.fetch(topic, 0, partition=partition, isolation_level=1)
    assert answer.error_code == 0
    aborted = sorted((entry.first_offset, entry.producer_id) for entry in answer.aborted_transactions)
    return [record.value or b"" for record in committed_records(bytes(answer.records), aborted)]


def committed_records(data: bytes, aborted: list[tuple[int, int]]) -> Iterator[RawRecord]:
    """Yield the records that a committed reader takes from the batches of an answer to Fetch.

    Args:
        data: The batches.
        aborted: First offset and producer id of each aborted transaction, in order.
    """
    open_ids: set[int] = set()
    for header in headers(data):
        while aborted and aborted[0][0] <= header.base_offset:
            open_ids.add(aborted.pop(0)[1])
        if header.control:
            open_ids.discard(header.producer_id)
        elif header.producer_id not in open_ids:
            yield from read_records(data, header, "<fetch>")


def offset_of(client: Client, *, stable: bool = False, group: str = "g") -> tuple[int, int]:
    """Return committed offset and error of users-0."""
    partition = client.committed(group, stable=stable)
    return partition.committed_offset, partition.error_code


def described(client: Client, name: str = "t") -> Any:
    return client.ask(DescribeTransactionsRequest(transactional_ids=[name])).transaction_states[0]
