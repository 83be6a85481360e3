"""Groups: the coordinator of consumer groups and of their committed offsets.

```
groups.py           the groups: loaded, listed, deleted
group_store.py      the groups by id; what changes is stored
offsets.py          their committed offsets
group_leases.py     leases at these offsets, which keep tombstones
classic_groups.py   members by JoinGroup and SyncGroup
consumer_groups.py  members by ConsumerGroupHeartbeat
```

All state is in memory, and every part that must survive is a record of `__consumer_offsets`, which is read
when the server starts; requests wait for that. Handlers run in the thread of the event loop only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from lastword.errors import LastwordError
from lastword.protocol import Request, codes, messages
from lastword.protocol.refusals import answer_with_rows, error_answer
from lastword.protocol.schemas import Message, stored_types
from lastword.server.classic_groups import ClassicGroup, ClassicGroups
from lastword.server.consumer_group_state import KEYS as CONSUMER_KEYS
from lastword.server.consumer_group_state import ConsumerGroup
from lastword.server.consumer_groups import ConsumerGroups
from lastword.server.coordinator import CoordinatorTopic, StoredRecord
from lastword.server.group_leases import GroupLeases
from lastword.server.group_store import Group, GroupStore, OtherGroup, answer_of
from lastword.server.offsets import Offsets, offset_key
from lastword.server.timers import RETRY_MS
from lastword.server.topics import GROUPS_TOPIC, Refused, Refusing

if TYPE_CHECKING:
    from lastword.server.context import Handler, Handlers, ServerContext
    from lastword.server.security import Peer

RENEWALS = 8
"""How often the leases of offsets are renewed within the retention of the offsets."""
OF_GROUPS, OF_TRANSACTIONS = COORDINATED = (0, 1)
"""Types of keys that have a coordinator."""
_log = logging.getLogger("lastword.server")


class Groups:
    """The groups, and the handlers of the APIs that serve every kind of group."""

    def __init__(self, context: ServerContext, topic: CoordinatorTopic) -> None:
        self._context = context
        self.topic = topic
        self.store = GroupStore(context, topic)
        self.leases = GroupLeases(context)
        self._consumers = ConsumerGroups(context, self.store)
        self._classic = ClassicGroups(context, self.store, self._consumers)
        self.offsets = Offsets(context, self.store, self._classic, self.leases)
        self._decided: list[tuple[int, int, bool]] = []
        """The transactions that ended while the groups were loaded."""
        self._loading: asyncio.Future[Any] | None = None
        self._is_loaded = False
        self._topic_id: bytes | None = None
        self._renewed_ms = 0
        self._check_later()

    def handlers(self) -> Handlers:
        """Return the handlers by the name of the API."""
        handlers: Handlers = {
            "ListGroups": self._list,
            "DeleteGroups": self._delete,
            **self._classic.handlers(),
            **self._consumers.handlers(),
            **self.offsets.handlers(),
        }
        waiting = {name: self._when_loaded(handler) for name, handler in handlers.items()}
        return {"FindCoordinator": self._find, **waiting}

    def answer_all(self) -> None:
        """Answer every request that waits: the server closes."""
        self._classic.answer_all()
        self.leases.close()

    # -------------------------------------------------------------- load and store

    def _when_loaded(self, handler: Handler) -> Handler:
        """Return the handler, which waits until the groups are loaded, and then until they are stored."""

        def handle(request: Request[Any], connection: Peer) -> Any:
            loading = self._load()
            call = partial(answer_of, request, partial(handler, request, connection))
            return self.topic.answered(call() if loading is None else self._context.then(loading, call))

        return handle

    def loaded(self) -> asyncio.Future[Any]:
        """Return a future that is done when the groups are loaded."""
        loading = self._load()
        if loading is None:
            loading = self._context.loop.create_future()
            loading.set_result(None)
        return loading

    def _load(self) -> asyncio.Future[Any] | None:
        """Return a future to wait for until the groups are loaded; None if they are."""
        if self._is_loaded and not self._forget_if_lost():
            return None
        if self._loading is None or (self._loading.done() and self._loading.exception() is not None):
            reading = self._context.in_turn(self._read_topic)
            self._loading = self._context.then(reading, lambda: self._take_records(reading.result()))
        return self._loading

    def _read_topic(self) -> list[StoredRecord]:
        try:
            return self.topic.load(stored_types(GROUPS_TOPIC))
        except LastwordError as error:  # a partition is offline or damaged
            raise Refused(codes.COORDINATOR_NOT_AVAILABLE, error.message) from error

    def _forget_if_lost(self) -> bool:
        """Forget all groups if their topic was deleted, or if a change was not stored; they are read again.

        The next request creates the topic again.
        """
        topic = self._context.topics.get(GROUPS_TOPIC)
        is_gone = topic is None or topic.id != self._topic_id
        if not is_gone and not self.topic.is_lost:
            return False
        self._classic.answer_all()
        for group in self.store.all():
            if isinstance(group, ClassicGroup):
                group.end()
            elif isinstance(group, ConsumerGroup):
                self._consumers.forget(group)
            for at in group.offsets if is_gone else ():
                self.leases.ended(group.id, at)
        self.store.clear()
        self.offsets.clear()
        self._decided.clear()
        self._is_loaded, self._loading = False, None
        return True

    def _take_records(self, records: list[StoredRecord]) -> None:
        for record in records:
            name = type(record.key).__name__
            if name in ("OffsetCommitKey", "LegacyOffsetCommitKey"):
                self.offsets.load(record)
            elif record.value is None:
                continue
            elif name == "GroupMetadataKey":
                self._classic.load(record.key.group, record.value)
            elif name in CONSUMER_KEYS:
                self._consumers.load(record.key, record.value)
            else:
                self._load_other(record.key)
        for decided in self._decided:
            self.offsets.decide(*decided)
        self._consumers.loaded()
        topic = self._context.topics.get(GROUPS_TOPIC)
        self._is_loaded, self._topic_id = True, None if topic is None else topic.id
        for group in self.store.all():
            self._forget(group, self.offsets.of_former_topics(group), deletes=False)
        self._renew_leases()

    def _load_other(self, key: Any) -> None:
        """Take a record of a group of another protocol, by the name of its key."""
        name = type(key).__name__.lower()
        group_type = next((known for known in ("share", "streams") if known in name), None)
        if group_type is None:
            return
        group = self.store.find(key.group_id)
        if not isinstance(group, OtherGroup):
            group = self.store.add(OtherGroup(key.group_id, group_type=group_type))
        group.load(key)

    def decide(self, partition: int, producer_id: int, is_commit: bool) -> None:
        """End a transaction whose marker was appended to a partition of the topic."""
        if self._is_loaded:
            self.offsets.decide(partition, producer_id, is_commit)
        elif self._loading is not None:
            self._decided.append((partition, producer_id, is_commit))

    # -------------------------------------------------------------- what ends

    def _check_later(self) -> None:
        interval_ms = self._context.dirs.settings.instance.offsets_retention_check_interval_ms
        self._context.timers.after(interval_ms, self._check)

    def _check(self) -> None:
        """Delete the offsets that have expired, and the groups that have neither members nor offsets."""
        self._check_later()
        if self._context.topics.get(GROUPS_TOPIC) is not None:
            self._after_load(self._expire, None)

    def load_early(self) -> None:
        """Load the groups when the server starts: a kill may have come before leases were written."""
        self._after_load(lambda: None)

    def _after_load(self, call: Callable[[], None], retry_ms: int | None = RETRY_MS) -> None:
        loading = self._load()
        if loading is None:
            call()
        else:
            done = self._context.then(loading, call)
            self.topic.try_again(done, retry_ms, partial(self._after_load, call))

    def _expire(self) -> None:
        retention_ms = self._context.dirs.settings.instance.offsets_retention_minutes * 60_000
        now_ms = self._context.clock.now_ms()
        for group in self.store.all():
            unstable = self.offsets.unstable(group.id)
            gone = [at for at in group.expired(now_ms, retention_ms) if at not in unstable]
            is_over = group.is_over and not unstable and len(gone) == len(group.offsets)
            self._forget(group, gone, deletes=is_over)
        if now_ms - self._renewed_ms >= retention_ms // RENEWALS:
            self._renew_leases()

    def topics_deleted(self, topics: set[str]) -> None:
        """Delete the offsets of topics that were deleted."""
        if self._is_loaded and self._forget_if_lost():
            return
        if self._loading is not None or self._context.topics.get(GROUPS_TOPIC) is not None:
            self._after_load(lambda: self._forget_topics(topics))

    def _forget_topics(self, topics: set[str]) -> None:
        for group in self.store.all():
            gone = [at for at in self.offsets.partitions_of(group) if at[0] in topics]
            self._forget(group, gone, deletes=False)

    def _forget(self, group: Group, gone: list[tuple[str, int]], *, deletes: bool) -> None:
        """Delete offsets of a group, or the group. If that fails, the next check tries again."""
        try:
            self._removed(group, gone, deletes=deletes)
        except Refused as refused:
            _log.error("group %s: %s", group.id, refused.message)

    def _removed(
        self, group: Group, gone: list[tuple[str, int]], *, deletes: bool
    ) -> asyncio.Future[Any] | None:
        """Delete offsets of a group, or the group; return a future to wait for as `GroupStore.append`."""
        records = [(offset_key(group.id, *at), None) for at in gone]
        stored = self.store.append(group.id, [*records, *(group.tombstones() if deletes else ())])
        self.offsets.deleted(group, gone)
        if deletes:
            self.store.remove(group.id)
        return stored

    def _renew_leases(self) -> None:
        self._renewed_ms = self._context.clock.now_ms()
        for group in self.store.all():
            for at, committed in group.offsets.items():
                self.leases.moved(group.id, at, committed.offset)

    # -------------------------------------------------------------- coordinator

    def _find(self, request: Request[messages.FindCoordinatorRequest], connection: Peer) -> Any:
        """Answer FindCoordinator, for groups when they are loaded. Clients repeat it if that fails."""
        key_type = request.body.key_type
        if key_type not in COORDINATED:
            return error_answer(request, codes.INVALID_REQUEST, "not served")
        loading = self._load() if key_type == OF_GROUPS else None
        if loading is None:
            return self.found(request)
        return self._context.then(loading, lambda: self.found(request))

    def found(self, request: Request[messages.FindCoordinatorRequest]) -> Message:
        """Return the answer that names the coordinator of a group or a transactional id."""
        body, leader = request.body, self._context.leader
        if request.version < 4:
            return messages.FindCoordinatorResponse(
                error_message="NONE", node_id=leader.id, host=leader.host, port=leader.port
            )
        return messages.FindCoordinatorResponse(
            coordinators=[
                messages.FindCoordinatorResponse.Coordinator(
                    key=key, node_id=leader.id, host=leader.host, port=leader.port
                )
                for key in body.coordinator_keys
            ]
        )

    # -------------------------------------------------------------- list, delete

    def _list(self, request: Request[messages.ListGroupsRequest], connection: Peer) -> Message:
        body = request.body
        states = {state.lower() for state in body.states_filter}
        types = {group_type.lower() for group_type in body.types_filter}
        return messages.ListGroupsResponse(
            groups=[
                messages.ListGroupsResponse.ListedGroup(
                    group_id=group.id,
                    protocol_type=group.protocol_type or "",
                    group_state=group.state,
                    group_type=group.group_type,
                )
                for group in self.store.all()
                if (not states or group.state.lower() in states) and (not types or group.group_type in types)
            ]
        )

    def _delete(self, request: Request[messages.DeleteGroupsRequest], connection: Peer) -> Any:
        answer, syncs = answer_with_rows(request), []
        for result in answer.results:
            group_id = result.group_id
            with Refusing(result, text=False, only=Refused):
                group = self.store.get(group_id)
                if group is None:
                    raise Refused(codes.GROUP_ID_NOT_FOUND, "")
                if not group.is_empty:
                    raise Refused(codes.NON_EMPTY_GROUP, "")
                sync = self._removed(group, self.offsets.partitions_of(group), deletes=True)
                syncs += [] if sync is None else [sync]
        durable = asyncio.gather(*syncs) if syncs else None
        return self.store.answer_after(durable, answer)
