"""Produce: the batch of each partition is checked (`server.batches`) and appended.

A request runs in the thread of the event loop if it is small and its logs are free. It runs in the pool if a
sync follows, if a batch is large, also decompressed, if the kernels are loaded for it, or if another thread
holds a log.

In a bucket the batches join a commit, and the answer follows it: until then nothing has an offset.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from lastword import metrics
from lastword.errors import BusyError, LastwordError, StorageError
from lastword.files import WouldWait
from lastword.protocol import Request, codes, messages
from lastword.protocol.schemas import Message
from lastword.server.batches import NeedsThread, Prepared, RefusedRecords, prepared
from lastword.server.context import failure
from lastword.server.topics import INTERNAL, NOT_HOSTED, Refused, ServedTopic, id_of

if TYPE_CHECKING:
    from concurrent.futures import Future

    from lastword.api.open_dirs import OpenDirs
    from lastword.partition.appending import AppendedBatch
    from lastword.partition.log import PartitionLog
    from lastword.server.context import Handlers, ServerContext
    from lastword.server.security import Peer
    from lastword.server.topics import ServedLog
    from lastword.server.transactions import TransactionCoordinator

LARGE_BYTES = 256 << 10
"""A request of more bytes runs in the pool."""
ADMIN_CLIENT = "__admin_client"
"""The only client id that may produce to an internal topic, as in Kafka."""


class CheckedBatch(NamedTuple):
    """A batch that may be appended.

    Attributes:
        partition: Its partition of the answer.
        topic: The topic.
        topic_id: The id that the request has; None: it has the name.
        log: The log of the partition.
        compacts: Whether the topic is compacted in the version that the batch was checked with.
        prepared: The batch.
    """

    partition: Any
    topic: str
    topic_id: bytes | None
    log: ServedLog
    compacts: bool
    prepared: Prepared


class Checked(NamedTuple):
    """A request whose batches are checked.

    Attributes:
        answer: Its answer, with the partitions that are refused.
        batches: The batches of the others.
    """

    answer: messages.ProduceResponse
    batches: list[CheckedBatch]


class Producing:
    """The handler of Produce.

    Args:
        context: The context of the handlers.
        transactions: Returns the coordinator of transactions.
    """

    def __init__(self, context: ServerContext, transactions: Callable[[], TransactionCoordinator]) -> None:
        self._context = context
        self._transactions = transactions

    def handlers(self) -> Handlers:
        """Return the handlers by the name of the API."""
        return {"Produce": self._produce}

    def _produce(self, request: Request[messages.ProduceRequest], connection: Peer) -> Any:
        body = request.body
        if body.acks not in (0, 1, -1):
            from lastword.protocol.refusals import error_answer

            return error_answer(request, codes.INVALID_REQUIRED_ACKS, None)
        if body.transactional_id is not None:
            return self._context.loop.create_task(self._produce_in_transaction(request, connection))
        return self._append_request(request, {}, connection)

    async def _produce_in_transaction(
        self, request: Request[messages.ProduceRequest], connection: Peer
    ) -> Message | None:
        transaction, refused = await self._transactions().check_batches(request, connection.awaited)
        with contextlib.nullcontext() if transaction is None else transaction.appending():
            answer = self._append_request(request, refused, connection)
            message: Message | None = await answer if isinstance(answer, asyncio.Future) else answer
            return message

    def _append_request(
        self,
        request: Request[messages.ProduceRequest],
        refused: dict[tuple[str, int], Refused],
        connection: Peer,
    ) -> Any:
        """Append the batches of a request, without those of the refused partitions; return its answer.

        `connection`: it learns when the batches have their place in a commit.
        """
        context, checked = self._context, None
        if request.size <= LARGE_BYTES:
            checked = self._check_all(request, refused, waits=False)
        if checked is None:
            checking = context.in_pool(self._check_all, request, refused)
            return context.then(
                checking, lambda: self._append_checked(request, checking.result(), connection, waits=True)
            )
        return self._append_checked(request, checked, connection, waits=False)

    def _append_checked(
        self, request: Request[messages.ProduceRequest], checked: Checked, connection: Peer, *, waits: bool
    ) -> Any:
        """Append batches; return the answer, or a future. `waits`: a log is not free, or they are large."""
        committed = self._commit(request, checked, connection) if checked.batches else None
        if committed is not None:
            connection.begun(request)
            return committed
        if waits:
            return self._context.in_pool(self._append_and_sync, request, checked)
        syncs = self._append_all(request, checked.batches)
        if syncs:
            return self._context.in_pool(self._synced, request, checked.answer, syncs)
        return self._acknowledged(request, checked.answer)

    def _append_and_sync(self, request: Request[messages.ProduceRequest], checked: Checked) -> Message | None:
        return self._synced(request, checked.answer, self._append_all(request, checked.batches))

    def _commit(
        self, request: Request[messages.ProduceRequest], checked: Checked, connection: Peer
    ) -> asyncio.Future[Any] | None:
        """Append batches in a commit; return a future of the answer. None: they are appended in place."""

        def work(dirs: OpenDirs) -> None:  # may run again
            if connection.has_failed:
                raise BusyError("a batch before this one was not stored", remedy="send both again")
            for batch in checked.batches:
                batch.partition.error_code, batch.partition.error_message = 0, None
                with _refusing(batch.partition, fails=(StorageError,)):
                    if batch.topic_id is not None and batch.topic_id != id_of(dirs, batch.topic):
                        raise Refused(codes.UNKNOWN_TOPIC_ID, NOT_HOSTED)
                    log = dirs.log(batch.topic, batch.partition.index)
                    if log.config.compacts and not batch.compacts:  # it may have a record without a key
                        message = f"{batch.topic} is compacted since the batch was checked: send it again"
                        raise Refused(codes.NOT_LEADER_OR_FOLLOWER, message)
                    self._append(log, batch)

        def note(stored: Future[Any]) -> None:  # before the next commit, in its thread
            if failure(stored) is not None:
                connection.has_failed = True

        topics = {batch.topic for batch in checked.batches}
        begun = self._context.begin_append(topics, work, request.size)
        if begun is None:
            return None
        begun.add_done_callback(note)
        return self._context.then(
            self._context.awaiting(begun), lambda: self._acknowledged(request, checked.answer)
        )

    def _synced(
        self, request: Request[messages.ProduceRequest], answer: Any, syncs: list[tuple[PartitionLog, Any]]
    ) -> Message | None:
        for log, partition in syncs:
            try:
                log.sync()
            except LastwordError as error:
                _refuse(partition, error.kafka_code, error.message)
        return self._acknowledged(request, answer)

    def _acknowledged(
        self, request: Request[messages.ProduceRequest], answer: messages.ProduceResponse
    ) -> Message | None:
        """Return the answer; None for acks 0, whose connection is closed if a batch was refused."""
        if request.body.acks != 0:
            return answer
        for topic in answer.responses:
            for partition in topic.partition_responses:
                if partition.error_code:
                    raise Refused(partition.error_code, partition.error_message or "refused")
        return None

    def _append_all(
        self, request: Request[messages.ProduceRequest], batches: list[CheckedBatch]
    ) -> list[tuple[PartitionLog, Any]]:
        """Append batches in a directory.

        Returns:
            The logs to sync before the answer is sent, each with its partition of the answer.
        """
        syncs = []
        for batch in batches:
            with _refusing(batch.partition):
                log: Any = batch.log
                self._append(log, batch)
                if request.body.acks == -1 and log.config.lastword_ack == "disk":
                    syncs.append((log, batch.partition))
        return syncs

    def _check_all(
        self,
        request: Request[messages.ProduceRequest],
        refused_partitions: dict[tuple[str, int], Refused],
        *,
        waits: bool = True,
    ) -> Checked | None:
        """Check the batches of a request. None: a log is not free, and `waits` is false."""
        body = request.body
        logs: list[tuple[Any, Any, ServedTopic | None]] = []
        responses = []
        for topic in body.topic_data:
            served = self._context.topics.find(topic.name, topic.topic_id)
            partitions: list[Any] = []
            responses.append(
                messages.ProduceResponse.TopicProduceResponse(
                    name=topic.name, topic_id=topic.topic_id, partition_responses=partitions
                )
            )
            for data in topic.partition_data:
                partition = messages.ProduceResponse.PartitionProduceResponse(
                    index=data.index, base_offset=-1
                )
                partitions.append(partition)
                logs.append((data, partition, served))
        missing = codes.UNKNOWN_TOPIC_OR_PARTITION if request.version < 13 else codes.UNKNOWN_TOPIC_ID
        if not waits and not all(served is None or _is_free(served, data.index) for data, _, served in logs):
            return None
        batches: list[CheckedBatch] = []
        for data, partition, served in logs:
            if served is None:
                _refuse(partition, missing, NOT_HOSTED)
                continue
            with _refusing(partition):
                log = self._writable(request, served, data.index, refused_partitions)
                compacts = log.config.compacts
                try:
                    to_append = prepared(
                        log,
                        data.records,
                        request.version,
                        self._context.clock.now_ms(),
                        self._context.budget,
                        waits=waits,
                        is_transactional=body.transactional_id is not None,
                    )
                except (NeedsThread, WouldWait):
                    return None
                own_id = None if request.version < 13 else served.id
                batches.append(CheckedBatch(partition, served.stored, own_id, log, compacts, to_append))
        return Checked(messages.ProduceResponse(responses=responses), batches)

    def _writable(
        self,
        request: Request[messages.ProduceRequest],
        served: ServedTopic,
        number: int,
        refused_partitions: dict[tuple[str, int], Refused],
    ) -> ServedLog:
        """Return the log of a partition, if the request may append to it."""
        if served.is_newest:
            raise Refused(codes.INVALID_TOPIC_EXCEPTION, f"{served.name} is a view of {served.stored}")
        if served.name in INTERNAL and request.client_id != ADMIN_CLIENT:
            raise Refused(
                codes.INVALID_TOPIC_EXCEPTION, "The request attempted to produce to an internal topic."
            )
        if (served.name, number) in refused_partitions:
            raise refused_partitions[served.name, number]
        log = served.log(number)
        if self._context.refuse is not None:
            self._context.refuse(request, served)
        return log

    def _append(self, log: PartitionLog, batch: CheckedBatch) -> None:
        partition, (data, records) = batch.partition, batch.prepared
        appended: AppendedBatch = log.append_batch(data, is_checked=True)
        if metrics.is_exported:
            metrics.APPEND_RECORDS.add(records, batch.topic)
            metrics.APPEND_BYTES.add(len(data), batch.topic)
        partition.base_offset = appended.base_offset
        partition.log_start_offset = log.log_start
        if log.config.message_timestamp_type == "LogAppendTime":
            partition.log_append_time_ms = appended.timestamp


def _is_free(topic: ServedTopic, partition: int) -> bool:
    """Return whether the log is open, and no other thread holds it."""
    if partition not in topic.directories:
        return True
    if not topic.is_open(partition):
        return False
    lock = getattr(topic.log(partition), "lock", None)
    if lock is None:  # in a bucket
        return True
    if not lock.acquire(blocking=False):
        return False
    lock.release()
    return True


@contextlib.contextmanager
def _refusing(partition: Any, *, fails: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Answer the partition with the code of an error. `fails`: the errors that the caller gets."""
    try:
        yield
    except fails:
        raise
    except Refused as refused:
        _refuse(partition, refused.code, refused.message)
        if isinstance(refused, RefusedRecords):
            partition.record_errors = refused.errors()
    except LastwordError as error:
        _refuse(partition, error.kafka_code, error.message)


def _refuse(partition: Any, code: int, message: str) -> None:
    partition.error_code, partition.error_message = code, message
    partition.base_offset = partition.log_append_time_ms = partition.log_start_offset = -1
