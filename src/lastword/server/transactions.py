"""The transaction coordinator: InitProducerId, the state of each transactional id, and the markers.

```
Empty ──a partition is added──> Ongoing ──EndTxn, time is up, or fenced──> PrepareCommit, PrepareAbort
  ^                                ^                                          │ markers in all partitions
  │ InitProducerId                 │ a partition is added                     v
  └────────────────────────────────┴──────────────────────────── CompleteCommit, CompleteAbort
```

All state is in memory, and each change is a record of `__transaction_state`, which is read when the server
starts. The state that decides a transaction (PrepareCommit, PrepareAbort) is in the log before the first
marker, and the state that ends it (CompleteCommit, CompleteAbort) after the last one. So a server that takes
over in between appends the markers again. A second marker of a transaction decides nothing.

A change is synced before its effect if `__transaction_state` or a partition of the transaction acknowledges
with `disk`. Only then do transactions survive a power cut.

In a bucket the end of a transaction is one commit: the state that ends it, all markers, and the offsets. No
version has a part of it.

A transaction of version 2 (KIP-890: EndTxn from version 5 on) ends with the next epoch, so a batch that was
late is fenced, and partitions are added by Produce and TxnOffsetCommit themselves. A transaction that is
aborted because its time is up, or because InitProducerId came for its transactional id, ends like that too.
In version 1, markers wait for the appends of the transaction that are in work.

Handlers run in the thread of the event loop only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lastword.errors import LastwordError, ProducerFencedError, StorageError
from lastword.logdir.transaction_state import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    LAST_EPOCH,
    ONGOING,
    OWN_ID,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    Partition,
    ProducerIds,
    TransactionState,
    key_of,
    reserve_producer_ids,
)
from lastword.protocol import Request, codes, messages
from lastword.protocol.refusals import error_answer
from lastword.protocol.schemas import Message
from lastword.records.internal import TRANSACTION_STATES
from lastword.server.coordinator import (
    EXPIRATION_MS,
    MOST_TIMEOUT_MS,
    TRANSACTION_VERSION,
    CoordinatorTopic,
    StoredRecord,
    matching,
    not_stored,
)
from lastword.server.markers import Markers, append_in
from lastword.server.timers import MOST_RETRY_MS, RETRY_MS
from lastword.server.topics import TRANSACTIONS_TOPIC, Refused, Refusing
from lastword.server.transaction_state import (
    DECIDED,
    MOST_AWAITED,
    Marker,
    TransactionalId,
    transactional_producer,
)

if TYPE_CHECKING:
    from lastword.api.open_dirs import OpenDirs
    from lastword.server.context import Handler, Handlers, ServerContext
    from lastword.server.groups import Groups
    from lastword.server.security import Peer


TRIED_AGAIN = (codes.CONCURRENT_TRANSACTIONS, codes.COORDINATOR_NOT_AVAILABLE, codes.NOT_COORDINATOR)
"""Errors of the coordinator after which a producer has to send its batch again."""
FENCED_SINCE = {"InitProducerId": 4, "AddOffsetsToTxn": 2, "EndTxn": 2}
"""Versions of the APIs from which on an answer may have PRODUCER_FENCED."""
EXPIRATION_CHECK_MS = 3_600_000

_log = logging.getLogger("lastword.server")


class TransactionCoordinator:
    """The handlers of the APIs for transactions, and the check of transactional batches."""

    def __init__(self, context: ServerContext, topic: CoordinatorTopic, groups: Groups) -> None:
        self._context = context
        self.topic = topic
        self._groups = groups
        self._markers = Markers(context, groups)
        self._ids = ProducerIds(self._reserve_ids)
        self._transactional_ids: dict[str, TransactionalId] = {}
        self._loading: asyncio.Future[Any] | None = None
        self._expires = False
        self._tasks: set[asyncio.Task[Any]] = set()

    def handlers(self) -> Handlers:
        """Return the handlers by the name of the API."""
        handlers: dict[str, Callable[[Request[Any]], Awaitable[Message]]] = {
            "InitProducerId": self._init_producer_id,
            "AddPartitionsToTxn": self._add_partitions,
            "AddOffsetsToTxn": self._add_offsets,
            "EndTxn": self._end,
            "TxnOffsetCommit": self._commit_offsets,
            "DescribeTransactions": self._describe,
            "ListTransactions": self._list,
            "WriteTxnMarkers": self._markers.write,
        }
        return {name: self._as_task(handler) for name, handler in handlers.items()}

    def _as_task(self, handler: Callable[[Request[Any]], Awaitable[Message]]) -> Handler:
        async def answer(request: Request[Any]) -> Message:
            try:
                return await handler(request)
            except Refused as refused:
                is_older = request.version < FENCED_SINCE.get(request.api.name, 0)
                return error_answer(request, _older_code(refused.code, is_older), refused.message or None)

        def handle(request: Request[Any], connection: Peer) -> asyncio.Task[Any]:
            return self._spawn(answer(request))

        return handle

    def _spawn(self, work: Any) -> asyncio.Task[Any]:
        task = self._context.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -------------------------------------------------------------- load and store

    def load_early(self, retry_ms: int = RETRY_MS) -> None:
        """Load the transactions when the server starts: some may have to be ended without a request.

        Args:
            retry_ms: A load that fails is tried again after this time.
        """
        self.topic.try_again(self._load(), retry_ms, self.load_early)

    def _load(self) -> asyncio.Future[Any]:
        """Return a future that is done when the state is loaded; again, if its topic was deleted."""
        loading = self._loading
        is_gone = loading is not None and loading.done()
        is_gone = is_gone and (self.topic.is_lost or self._context.topics.get(TRANSACTIONS_TOPIC) is None)
        if is_gone:
            self._transactional_ids.clear()
        if loading is None or is_gone or (loading.done() and loading.exception() is not None):
            loading = self._loading = self._spawn(self._read())
        return loading

    async def _loaded(self) -> None:
        try:
            await self._load()
        except LastwordError as error:
            raise Refused(codes.COORDINATOR_NOT_AVAILABLE, error.message) from error

    async def _read(self) -> None:
        for record in await self._context.in_turn(self._read_topic):
            transactional_id = record.key.transactional_id
            if transactional_id == OWN_ID:  # `LogDir.transaction` completes its own
                continue
            self._transactional_ids[transactional_id] = TransactionalId(transactional_id, record.value)
        for transaction in self._transactional_ids.values():
            if transaction.stored.state in DECIDED:
                self._spawn(self._complete(transaction)).add_done_callback(_log_failure)
            self._watch(transaction)
        if not self._expires:
            self._expires = True
            self._context.timers.after(EXPIRATION_CHECK_MS, self._expire)

    def _read_topic(self) -> list[StoredRecord]:
        return self.topic.load({0: "TransactionLogKey"}, TransactionState.of_value)

    async def _change(self, transaction: TransactionalId, *, has_effect: bool = True, **fields: Any) -> None:
        """Store another state. Other changes are refused until it is durable.

        Args:
            transaction: The transactional id.
            has_effect: Something follows that must not survive a power cut without this state.
            fields: The fields that change.

        Raises:
            Refused: The state could not be stored.
        """
        before = transaction.stored
        stored = replace(
            before, previous_producer_id=before.producer_id, changed_ms=self._context.clock.now_ms(), **fields
        )
        number = self.topic.partition_of(transaction.id)
        syncs: bool | None = False
        if has_effect:
            syncs = self._is_durable(before.partitions | stored.partitions) or None
        done = self.topic.append(number, [(key_of(transaction.id), stored.value())], syncs=syncs)
        transaction.stored = stored
        if done is not None:
            try:
                with transaction.changing():
                    await done
            except Refused:
                transaction.is_synced = False
                raise
        transaction.is_synced = transaction.is_synced or has_effect

    def _check_synced(self, transaction: TransactionalId) -> None:
        """Sync a state whose sync has failed, and raise Refused if that fails again.

        The state may be on the drive or not, so no answer may rely on it, and no other state may replace it.
        After a failure of the drive the log refuses every sync immediately, until a restart. Else this waits
        for the drive, once, in the thread of the event loop.
        """
        if transaction.is_synced:
            return
        try:
            self.topic.log(self.topic.partition_of(transaction.id)).sync()
        except LastwordError as error:
            raise not_stored(error) from error
        transaction.is_synced = True
        self._complete_later(transaction)

    def _is_durable(self, partitions: frozenset[Partition]) -> bool:
        """Return whether a topic of these partitions acknowledges with `disk`."""
        topics = {name for name, _ in partitions}
        return any(
            self._context.dirs.config(name).lastword_ack == "disk"
            for name in topics
            if self._context.topics.get(name) is not None
        )

    # -------------------------------------------------------------- InitProducerId

    def _reserve_ids(self) -> int:
        return self._context.dirs.transaction(lambda dirs: reserve_producer_ids(dirs.directories[0]))

    async def _new_id(self) -> int:
        producer_id = self._ids.next_reserved()
        if producer_id is not None:
            return producer_id
        try:
            return int(await self._context.in_pool(self._ids.next))
        except LastwordError as error:
            raise not_stored(error) from error

    async def _init_producer_id(self, request: Request[messages.InitProducerIdRequest]) -> Message:
        body = request.body
        if (body.producer_id == -1) != (body.producer_epoch == -1):
            raise Refused(codes.INVALID_REQUEST, "")
        if body.transactional_id is None:
            return messages.InitProducerIdResponse(producer_id=await self._new_id(), producer_epoch=0)
        stored = await self._initialized(request)
        return messages.InitProducerIdResponse(producer_id=stored.producer_id, producer_epoch=stored.epoch)

    async def _initialized(self, request: Request[messages.InitProducerIdRequest]) -> TransactionState:
        """Return the state of a transactional id with the epoch for a new instance of its producer."""
        body = request.body
        if not body.transactional_id:
            raise Refused(codes.INVALID_REQUEST, "")
        if body.enable2_pc or body.transactional_id == OWN_ID:
            raise Refused(codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "two-phase commit is not served")
        if body.keep_prepared_txn:
            raise Refused(codes.UNSUPPORTED_VERSION, "two-phase commit is not served")
        if not 0 < body.transaction_timeout_ms <= MOST_TIMEOUT_MS:
            raise Refused(codes.INVALID_TRANSACTION_TIMEOUT, "")
        expected = None if body.producer_id == -1 else (body.producer_id, body.producer_epoch)
        await self._loaded()
        if self._get(body.transactional_id) is None:
            stored = TransactionState(await self._new_id(), -1, body.transaction_timeout_ms)
            transaction = TransactionalId(body.transactional_id, stored)
            self._transactional_ids.setdefault(body.transactional_id, transaction)
        transaction = self._transactional_ids[body.transactional_id]
        self._check_synced(transaction)
        stored = transaction.stored
        if transaction.is_busy:
            raise Refused(codes.CONCURRENT_TRANSACTIONS, "")
        if expected is not None and not stored.may_be_renewed_by(*expected):
            raise Refused(codes.PRODUCER_FENCED, "")
        if stored.state == ONGOING:
            await self._finish(transaction, commit=False, version=TRANSACTION_VERSION, is_fenced=True)
        if stored.state in (ONGOING, *DECIDED):
            raise Refused(codes.CONCURRENT_TRANSACTIONS, "")
        expected_epoch = None if expected is None else expected[1]
        producer_id, epoch, last_epoch = stored.producer_id, stored.epoch + 1, -1
        if stored.is_exhausted and expected_epoch in (None, stored.epoch):
            with transaction.changing():
                producer_id, epoch = await self._new_id(), 0
            last_epoch = -1 if expected_epoch is None else stored.epoch
        elif stored.epoch == -1 or expected_epoch == stored.epoch:
            last_epoch = -1 if expected_epoch is None else stored.epoch
        elif expected_epoch is not None:
            if expected_epoch != stored.last_epoch:
                raise Refused(codes.PRODUCER_FENCED, "")
            epoch, last_epoch = stored.epoch, stored.last_epoch  # a repeated request
        await self._change(
            transaction,
            state=EMPTY,
            producer_id=producer_id,
            epoch=epoch,
            last_epoch=last_epoch,
            timeout_ms=body.transaction_timeout_ms,
            partitions=frozenset(),
            start_ms=-1,
        )
        return transaction.stored

    # -------------------------------------------------------------- partitions

    def _get(self, transactional_id: str) -> TransactionalId | None:
        """Return a transactional id; raise Refused if its partition has a record that cannot be decoded."""
        self.topic.check(transactional_id)
        return self._transactional_ids.get(transactional_id)

    def _is_known(self, transaction: TransactionalId) -> bool:
        """Return whether the transactional id was not loaded again since it was made."""
        return self._transactional_ids.get(transaction.id) is transaction

    def _known(self, transactional_id: str) -> TransactionalId:
        if not transactional_id:
            raise Refused(codes.INVALID_REQUEST, "")
        transaction = self._get(transactional_id)
        if transaction is None:
            raise Refused(codes.INVALID_PRODUCER_ID_MAPPING, "The transactional id has no producer id.")
        self._check_synced(transaction)
        return transaction

    def _checked(self, transactional_id: str, producer_id: int, epoch: int) -> TransactionalId:
        """Return a transactional id if the producer is its newest one."""
        transaction = self._known(transactional_id)
        if transaction.stored.producer_id != producer_id:
            raise Refused(codes.INVALID_PRODUCER_ID_MAPPING, "The transactional id has another producer id.")
        if transaction.stored.epoch != epoch:
            raise Refused(codes.PRODUCER_FENCED, "The producer was fenced by a newer one.")
        return transaction

    async def _admit(
        self, transactional_id: str, producer: tuple[int, int], partitions: set[Partition], *, adds: bool
    ) -> TransactionalId:
        """Return the transactional id of a producer that writes to partitions of its transaction.

        Args:
            transactional_id: The transactional id.
            producer: Producer id and epoch.
            partitions: The partitions.
            adds: Add the partitions that the transaction does not have.

        Raises:
            Refused: The producer is not the newest one, or the transaction does not have the partitions.
        """
        transaction = self._checked(transactional_id, *producer)
        if adds:
            await self._add(transaction, partitions, TRANSACTION_VERSION)
        for partition in partitions:
            code = transaction.error_of_write(partition)
            if code:
                raise Refused(code, "The partition is not in the transaction.")
        return transaction

    async def _add(self, transaction: TransactionalId, partitions: set[Partition], version: int) -> None:
        """Add partitions to the transaction, which begins if there is none."""
        stored = transaction.stored
        if transaction.is_busy or stored.state in DECIDED:
            raise Refused(codes.CONCURRENT_TRANSACTIONS, "The transaction before is not at its end.")
        is_ongoing = stored.state == ONGOING
        if is_ongoing and partitions <= stored.partitions:
            return
        await self._change(
            transaction,
            state=ONGOING,
            partitions=stored.partitions | partitions,
            start_ms=stored.start_ms if is_ongoing else self._context.clock.now_ms(),
            client_version=version,
        )
        if not is_ongoing:
            self._watch(transaction)

    async def _add_partitions(self, request: Request[messages.AddPartitionsToTxnRequest]) -> Message:
        body = request.body
        if request.version < 4:
            results = await self._added(
                request,
                body.v3_and_below_transactional_id,
                (body.v3_and_below_producer_id, body.v3_and_below_producer_epoch),
                body.v3_and_below_topics,
            )
            return messages.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)
        return messages.AddPartitionsToTxnResponse(
            results_by_transaction=[
                messages.AddPartitionsToTxnResponse.AddPartitionsToTxnResult(
                    transactional_id=transaction.transactional_id,
                    topic_results=await self._added(
                        request,
                        transaction.transactional_id,
                        (transaction.producer_id, transaction.producer_epoch),
                        transaction.topics,
                        only_verifies=transaction.verify_only,
                    ),
                )
                for transaction in body.transactions
            ]
        )

    async def _added(
        self,
        request: Request[messages.AddPartitionsToTxnRequest],
        transactional_id: str,
        producer: tuple[int, int],
        topics: list[Any],
        *,
        only_verifies: bool = False,
    ) -> list[Any]:
        """Return the results by topic of adding partitions, or of the check whether they were added."""
        partitions = {(topic.name, number) for topic in topics for number in topic.partitions}
        results = dict.fromkeys(partitions, 0)
        missing = {at for at in partitions if not self._is_served(*at)}
        if missing:
            results = dict.fromkeys(partitions, codes.OPERATION_NOT_ATTEMPTED)
            results |= dict.fromkeys(missing, codes.UNKNOWN_TOPIC_OR_PARTITION)
        else:
            try:
                await self._loaded()
                transaction = self._checked(transactional_id, *producer)
                if only_verifies:
                    results = {at: transaction.error_of_write(at) for at in partitions}
                else:
                    await self._add(
                        transaction, partitions, TRANSACTION_VERSION if request.version >= 4 else 0
                    )
            except Refused as refused:
                results = dict.fromkeys(partitions, _older_code(refused.code, request.version < 2))
        return [
            messages.AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    messages.AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
                        partition_index=number, partition_error_code=results[topic.name, number]
                    )
                    for number in topic.partitions
                ],
            )
            for topic in topics
        ]

    def _is_served(self, name: str, partition: int) -> bool:
        served = self._context.topics.get(name)
        return served is not None and partition in served.directories

    async def _add_offsets(self, request: Request[messages.AddOffsetsToTxnRequest]) -> Message:
        body = request.body
        partition = await self._offsets_partition(body.group_id)
        transaction = self._checked(body.transactional_id, body.producer_id, body.producer_epoch)
        await self._add(transaction, {partition}, 0)
        return messages.AddOffsetsToTxnResponse()

    async def _offsets_partition(self, group_id: str) -> Partition:
        """Return the partition that has the offsets of a group, when groups and transactions are loaded."""
        await self._loaded()
        await self._groups.loaded()
        return self._groups.topic.name, self._groups.topic.partition_of(group_id)

    async def _commit_offsets(self, request: Request[messages.TxnOffsetCommitRequest]) -> Message:
        body = request.body
        try:
            if not body.group_id:
                raise Refused(codes.INVALID_GROUP_ID, "")
            partition = await self._offsets_partition(body.group_id)
            producer = body.producer_id, body.producer_epoch
            await self._admit(body.transactional_id, producer, {partition}, adds=request.version >= 5)
            answer = self._groups.offsets.commit_in_transaction(request, producer)
            message: Message = await answer if isinstance(answer, asyncio.Future) else answer
            return message
        except Refused as refused:
            code = _older_code(refused.code, True)
            if code == codes.CONCURRENT_TRANSACTIONS:
                code = codes.COORDINATOR_LOAD_IN_PROGRESS
            elif code == codes.TRANSACTION_ABORTABLE and request.version < 4:
                code = codes.INVALID_TXN_STATE
        return error_answer(request, code, "")

    async def check_batches(
        self, request: Request[messages.ProduceRequest], awaited: dict[tuple[Any, ...], int]
    ) -> tuple[TransactionalId | None, dict[Partition, Refused]]:
        """Check the transactional batches of a Produce request, which has a transactional id.

        From version 12 on, their partitions are added to the transaction. No batch is admitted behind one of
        its producer that is to be sent again: its partition would take it for the first of the producer.

        Args:
            request: The request.
            awaited: As for `Peer`, whose batches these are.

        Returns:
            The transactional id, if batches of its transaction may be appended, and the refused partitions.
        """
        body = request.body
        assert body.transactional_id is not None
        adds = request.version >= 12
        by_producer: list[tuple[tuple[int, int], set[Partition]]] = []
        sequences: dict[Partition, int] = {}
        refusals: dict[Partition, Refused] = {}
        for topic in body.topic_data:
            served = self._context.topics.find(topic.name, topic.topic_id)
            for data in topic.partition_data:
                found = transactional_producer(data.records)
                if found is None or served is None or served.is_newest:
                    continue
                if data.index not in served.directories:
                    continue
                (producer, sequence), partition = found, (served.name, data.index)
                if sequence > awaited.get((*partition, *producer), sequence):
                    refusals[partition] = Refused(codes.NOT_ENOUGH_REPLICAS, "A batch before it is missing.")
                    continue
                sequences[partition] = sequence
                same = next(
                    (partitions for other, partitions in by_producer if other == producer and adds), None
                )
                if same is not None:
                    same.add(partition)
                else:
                    by_producer.append((producer, {partition}))
        admitted = None
        for producer, partitions in by_producer:
            try:
                await self._loaded()
                admitted = await self._admit(body.transactional_id, producer, partitions, adds=adds)
                for partition in partitions:
                    awaited.pop((*partition, *producer), None)
            except Refused as refused:
                code = _older_code(refused.code, True)
                if code in TRIED_AGAIN:
                    code = codes.NOT_ENOUGH_REPLICAS  # every client sends the batch again
                    awaited.update({(*each, *producer): sequences[each] for each in partitions})
                    while len(awaited) > MOST_AWAITED:
                        awaited.pop(next(iter(awaited)))
                elif code == codes.TRANSACTION_ABORTABLE and request.version < 11:
                    code = codes.INVALID_TXN_STATE
                refusals.update(dict.fromkeys(partitions, Refused(code, refused.message)))
        return admitted, refusals

    # -------------------------------------------------------------- end

    async def _end(self, request: Request[messages.EndTxnRequest]) -> Message:
        body = request.body
        await self._loaded()
        transaction = self._known(body.transactional_id)
        producer = body.producer_id, body.producer_epoch
        if request.version < 5:
            await self._end_first(transaction, producer, body.committed)
        else:
            await self._end_second(transaction, producer, body.committed)
        stored = transaction.stored
        producer = stored.producer_id, stored.epoch
        if stored.next_producer_id >= 0:
            producer = stored.next_producer_id, 0
        return messages.EndTxnResponse(producer_id=producer[0], producer_epoch=producer[1])

    async def _end_first(
        self, transaction: TransactionalId, producer: tuple[int, int], is_commit: bool
    ) -> None:
        """End a transaction of version 1: the epoch stays."""
        self._checked(transaction.id, *producer)
        state = transaction.stored.state
        if transaction.is_busy:
            raise Refused(codes.CONCURRENT_TRANSACTIONS, "")
        if state == ONGOING:
            await self._finish(transaction, commit=is_commit, version=0)
        elif state == (PREPARE_COMMIT if is_commit else PREPARE_ABORT):
            raise Refused(codes.CONCURRENT_TRANSACTIONS, "")
        elif state != (COMPLETE_COMMIT if is_commit else COMPLETE_ABORT):  # else a repeated request
            raise Refused(codes.INVALID_TXN_STATE, "")

    async def _end_second(
        self, transaction: TransactionalId, producer: tuple[int, int], is_commit: bool
    ) -> None:
        """End a transaction of version 2. A repeated request has the epoch before that of the end."""
        stored = transaction.stored
        producer_id, epoch = producer
        has_new_id = stored.previous_producer_id == producer_id and epoch == LAST_EPOCH and stored.epoch == 0
        is_repeated = has_new_id or stored.epoch == epoch + 1
        is_complete = stored.state in (COMPLETE_COMMIT, COMPLETE_ABORT)
        if stored.producer_id != producer_id and not has_new_id:
            raise Refused(codes.INVALID_PRODUCER_ID_MAPPING, "")
        if not (
            (is_repeated and (is_complete or stored.state in DECIDED))
            or (stored.epoch == epoch and stored.state not in DECIDED)
        ):
            raise Refused(codes.PRODUCER_FENCED, "")
        if transaction.is_busy or stored.state in DECIDED:
            raise Refused(codes.CONCURRENT_TRANSACTIONS, "")
        if stored.state == ONGOING:
            await self._finish(transaction, commit=is_commit, version=TRANSACTION_VERSION)
        elif is_repeated:
            if stored.state != (COMPLETE_COMMIT if is_commit else COMPLETE_ABORT):
                raise Refused(codes.INVALID_TXN_STATE, "")
        elif is_commit:
            raise Refused(codes.INVALID_TXN_STATE, "")
        else:  # nothing was added: the new epoch fences what may still come
            await self._finish(transaction, commit=False, version=TRANSACTION_VERSION)

    async def _finish(
        self, transaction: TransactionalId, *, commit: bool, version: int, is_fenced: bool = False
    ) -> None:
        """Decide a transaction and append its markers.

        Args:
            transaction: The transactional id.
            commit: Commit the transaction; else it is aborted.
            version: In version 2 the markers have the next epoch.
            is_fenced: The producer does not get the next epoch.
        """
        stored = transaction.stored
        epoch, last_epoch, next_id = stored.epoch, stored.last_epoch, -1
        if version == TRANSACTION_VERSION:
            epoch, last_epoch = stored.epoch + 1, stored.epoch
            if stored.is_exhausted and not is_fenced:
                with transaction.changing():
                    next_id = await self._new_id()
        now_ms = self._context.clock.now_ms()
        decided: dict[str, Any] = {
            "state": PREPARE_COMMIT if commit else PREPARE_ABORT,
            "epoch": epoch,
            "last_epoch": last_epoch,
            "next_producer_id": next_id,
            "client_version": version,
            "start_ms": stored.start_ms if stored.state == ONGOING else now_ms,
        }
        if self._context.dirs.holds_logs:
            await self._change(transaction, **decided)
            await self._complete(transaction)
        else:
            previous_id = stored.producer_id
            decision = replace(stored, previous_producer_id=previous_id, changed_ms=now_ms, **decided)
            await self._end_together(transaction, decision)

    async def _end_together(self, transaction: TransactionalId, decision: TransactionState) -> None:
        """End a transaction in one commit, with its markers. Refused: nothing of it is stored."""
        with transaction.changing():
            await transaction.quiet()
            number = self.topic.partition_of(transaction.id)
            epoch = self.topic.log(number).epochs.latest or 0
            marker = Marker(decision.producer_id, decision.epoch, decision.state == PREPARE_COMMIT, epoch)
            batch = marker.batch(self._context.clock.now_ms())
            ended = replace(decision, previous_producer_id=decision.producer_id, **_ended(decision))
            record = key_of(transaction.id), ended.value()

            def work(dirs: OpenDirs) -> None:
                failures = append_in(dirs, batch, decision.partitions, fails=StorageError)
                for failure in failures.values():
                    if failure is not None and not isinstance(failure, ProducerFencedError):
                        raise failure
                self.topic.append_in(dirs, number, [record])

            topics = {self.topic.name, *(name for name, _ in decision.partitions)}
            size_bytes = len(batch) * (len(decision.partitions) + 1)
            committed = self.topic.commit(topics, work, size_bytes, is_ahead=False)
            assert committed is not None
            await committed
        transaction.stored = ended
        self._markers.decide(marker, decision.partitions)

    async def _complete(self, transaction: TransactionalId) -> None:
        """Append the markers of a decided transaction, then store that it ended.

        A marker that cannot be appended is tried again later: the decision stands.
        """
        await transaction.quiet()
        stored = transaction.stored
        try:
            if not self._context.dirs.holds_logs:
                await self._end_together(transaction, stored)
            else:
                await self._append_markers(transaction)
                # Without an effect: the markers can be appended again.
                await self._change(transaction, has_effect=False, **_ended(stored))
        except (LastwordError, Refused) as error:
            delay_ms = transaction.retry_ms
            transaction.retry_ms = min(2 * delay_ms, MOST_RETRY_MS)
            text = "transaction %r: %s; tried again in %.1f s"
            _log.warning(text, transaction.id, error, delay_ms / 1000)
            self._context.timers.after(delay_ms, lambda: self._complete_later(transaction))
        else:
            transaction.marked.clear()
            transaction.retry_ms = RETRY_MS

    def _complete_later(self, transaction: TransactionalId) -> None:
        if transaction.stored.state in DECIDED and self._is_known(transaction):
            self._spawn(self._complete(transaction)).add_done_callback(_log_failure)

    async def _append_markers(self, transaction: TransactionalId) -> None:
        """Append a marker to each partition of a transaction, and sync those that acknowledge with `disk`.

        Raises:
            LastwordError: A marker could not be appended. The partitions in `marked` have theirs.
        """
        stored = transaction.stored
        epoch = self.topic.log(self.topic.partition_of(transaction.id)).epochs.latest or 0
        marker = Marker(stored.producer_id, stored.epoch, stored.state == PREPARE_COMMIT, epoch)
        failures = await self._markers.append(marker, stored.partitions - transaction.marked)
        for partition, failure in failures.items():
            # A newer epoch has ended the transaction in a partition that is fenced.
            if failure is None or isinstance(failure, ProducerFencedError):
                transaction.marked.add(partition)
        failed = [failures[partition] for partition in failures if partition not in transaction.marked]
        if failed and failed[0] is not None:
            raise failed[0]

    # -------------------------------------------------------------- time

    def _watch(self, transaction: TransactionalId, least_ms: int = 0) -> None:
        """Wait for the end of a transaction's time, if the transaction is open."""
        stored = transaction.stored
        if stored.state == ONGOING:
            left_ms = stored.start_ms + stored.timeout_ms - self._context.clock.now_ms()
            transaction.timer = self._context.timers.again(
                transaction.timer, max(left_ms, least_ms), lambda: self._check_time(transaction)
            )

    def _check_time(self, transaction: TransactionalId) -> None:
        """Abort a transaction whose time is up. The timer may be that of an earlier transaction."""
        stored = transaction.stored
        if not self._is_known(transaction):
            return
        if stored.start_ms + stored.timeout_ms > self._context.clock.now_ms():
            self._watch(transaction)
        elif transaction.is_busy:
            self._watch(transaction, RETRY_MS)
        elif stored.state == ONGOING:
            self._spawn(self._time_out(transaction)).add_done_callback(_log_failure)

    async def _time_out(self, transaction: TransactionalId) -> None:
        _log.info("transaction %r: aborted, its time is up", transaction.id)
        try:
            await self._finish(transaction, commit=False, version=TRANSACTION_VERSION, is_fenced=True)
        except Refused as refused:
            _log.warning("transaction %r: %s", transaction.id, refused.message)
            self._watch(transaction, RETRY_MS)

    def _expire(self) -> None:
        """Forget the transactional ids that had no transaction for a long time."""
        least_ms = self._context.clock.now_ms() - EXPIRATION_MS
        expired: dict[int, list[str]] = {}
        is_there = self._context.topics.get(TRANSACTIONS_TOPIC) is not None
        for transaction in self._transactional_ids.values() if is_there else ():
            stored = transaction.stored
            is_open = transaction.is_busy or stored.state in (ONGOING, *DECIDED)
            if not is_open and stored.changed_ms <= least_ms:
                expired.setdefault(self.topic.partition_of(transaction.id), []).append(transaction.id)
        for partition, ids in expired.items():
            try:
                self.topic.append(partition, [(key_of(transactional_id), None) for transactional_id in ids])
            except Refused as refused:
                _log.warning("expired transactional ids: %s", refused.message)
                continue
            for transactional_id in ids:
                del self._transactional_ids[transactional_id]
        self._context.timers.after(EXPIRATION_CHECK_MS, self._expire)

    # -------------------------------------------------------------- describe, list

    async def _describe(self, request: Request[messages.DescribeTransactionsRequest]) -> Message:
        kind = messages.DescribeTransactionsResponse
        states = []
        for transactional_id in request.body.transactional_ids:
            described = kind.TransactionState(transactional_id=transactional_id)
            states.append(described)
            with Refusing(described, text=False, only=Refused):
                stored = (await self._found(transactional_id)).stored
                described.transaction_state = stored.state
                described.transaction_timeout_ms = stored.timeout_ms
                described.transaction_start_time_ms = stored.start_ms
                described.producer_id, described.producer_epoch = stored.producer_id, stored.epoch
                described.topics = [
                    kind.TopicData(topic=name, partitions=numbers)
                    for name, numbers in stored.by_topic().items()
                ]
        return kind(transaction_states=states)

    async def _found(self, transactional_id: str) -> TransactionalId:
        if not transactional_id:
            raise Refused(codes.INVALID_REQUEST, "")
        await self._loaded_if_any()
        transaction = self._get(transactional_id)
        if transaction is None:
            raise Refused(codes.TRANSACTIONAL_ID_NOT_FOUND, "")
        return transaction

    async def _loaded_if_any(self) -> None:
        """Wait until the state is loaded. A request that only reads does not create the topic."""
        if self._context.topics.get(TRANSACTIONS_TOPIC) is not None:
            await self._loaded()
        else:
            self._transactional_ids.clear()

    async def _list(self, request: Request[messages.ListTransactionsRequest]) -> Message:
        body = request.body
        kind = messages.ListTransactionsResponse
        unknown = [state for state in body.state_filters if state not in TRANSACTION_STATES]
        wanted = set(body.state_filters)
        now_ms = self._context.clock.now_ms()
        await self._loaded_if_any()
        listed = [
            transaction
            for transaction in self._transactional_ids.values()
            if (not wanted or transaction.stored.state in wanted)
            and (not body.producer_id_filters or transaction.stored.producer_id in body.producer_id_filters)
            and (body.duration_filter < 0 or now_ms - transaction.stored.start_ms > body.duration_filter)
        ]
        if body.transactional_id_pattern:
            ids = [transaction.id for transaction in listed]
            pattern = body.transactional_id_pattern
            found = await self._context.in_pool(matching, "TransactionalIdPattern", pattern, ids)
            listed = [transaction for transaction in listed if transaction.id in found]
        return kind(
            unknown_state_filters=unknown,
            transaction_states=[
                kind.TransactionState(
                    transactional_id=transaction.id,
                    producer_id=transaction.stored.producer_id,
                    transaction_state=transaction.stored.state,
                )
                for transaction in listed
            ],
        )


def _ended(decision: TransactionState) -> dict[str, Any]:
    """Return the fields of a transaction that has ended as it was decided."""
    has_next = decision.next_producer_id >= 0
    return {
        "state": COMPLETE_COMMIT if decision.state == PREPARE_COMMIT else COMPLETE_ABORT,
        "producer_id": decision.next_producer_id if has_next else decision.producer_id,
        "epoch": 0 if has_next else decision.epoch,
        "next_producer_id": -1,
        "partitions": frozenset(),
    }


def _older_code(code: int, is_older: bool) -> int:
    """Return the code for a request of a version that does not have PRODUCER_FENCED."""
    return codes.INVALID_PRODUCER_EPOCH if is_older and code == codes.PRODUCER_FENCED else code


def _log_failure(task: asyncio.Future[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("a step of a transaction failed", exc_info=task.exception())
