"""Groups: the coordinator of consumer groups and of their committed offsets.

```
groups.py           the groups by id; loaded, stored, listed, deleted
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
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from lastword.errors import LastwordError
from lastword.protocol import Request, codes, messages
from lastword.protocol.schemas import Message, stored_keys
from lastword.server.classic_groups import ClassicGroup, ClassicGroups
from lastword.server.consumer_groups import KEYS as CONSUMER_KEYS
from lastword.server.consumer_groups import ConsumerGroup, ConsumerGroups
from lastword.server.coordinator import StoredRecord, sync_stored
from lastword.server.group_leases import GroupLeases
from lastword.server.offsets import Group, Offsets, OtherGroup, offset_key
from lastword.server.topics import GROUPS_TOPIC, Refused

if TYPE_CHECKING:
    from lastword.server.context import ServerContext
    from lastword.server.coordinator import CoordinatorTopic

RENEWALS = 8
"""How often the leases of offsets are renewed within the retention of the offsets."""
OF_GROUPS, OF_TRANSACTIONS = COORDINATED = (0, 1)
"""Types of keys that have a coordinator."""
_log = logging.getLogger("lastword.server")
Kind = TypeVar("Kind", bound=Group)


class Groups:
    """The groups, and the handlers of the APIs that serve every kind of group."""

    def __init__(self, context: ServerContext, topic: CoordinatorTopic) -> None:
        self.context = context
        self.topic = topic
        self.classic = ClassicGroups(self)
        self.consumers = ConsumerGroups(self)
        self.offsets = Offsets(self)
        self.leases = GroupLeases(context)
        self._groups: dict[str, Group] = {}
        self._decided: list[tuple[int, int, bool]] = []
        """The transactions that ended while the groups were loaded."""
        self._loading: asyncio.Future[Any] | None = None
        self._is_loaded = False
        self._topic_id: bytes | None = None
        self._renewed_ms = 0
        self._check_later()

    def handlers(self) -> dict[str, Callable[[Request, Any], Any]]:
        """Return the handlers by the name of the API."""
        handlers: dict[str, Callable[[Request, Any], Any]] = {
            "ListGroups": self._list,
            "DeleteGroups": self._delete,
            **self.classic.handlers(),
            **self.consumers.handlers(),
            **self.offsets.handlers(),
        }
        waiting = {name: self._when_loaded(handler) for name, handler in handlers.items()}
        return {"FindCoordinator": self._find, **waiting}

    def get(self, group_id: str) -> Group | None:
        """Return a group.

        Raises:
            Refused: Its partition of the topic has a record that cannot be decoded.
        """
        self.topic.check(group_id)
        return self._groups.get(group_id)

    def all(self) -> Iterable[Group]:
        """Return all groups."""
        return self._groups.values()

    def add(self, group: Kind) -> Kind:
        """Add a group, which takes the offsets of the group that had its id."""
        before = self._groups.get(group.id)
        if before is not None:
            group.offsets = before.offsets
        self._groups[group.id] = group
        return group

    def get_or_simple(self, group_id: str) -> Group:
        """Return a group; a new one is classic and has no members."""
        return self._groups.get(group_id) or self.add(ClassicGroup(group_id))

    def check_commit(self, group: Group, body: Any, version: int) -> Callable[[bytes, int], bool] | None:
        """Refuse the commit of a member that may not commit now.

        Returns:
            A function that says whether the member's epoch is too old for a partition; None: for none.
        """
        if isinstance(group, ConsumerGroup):
            return self.consumers.check_commit(group, body, version)
        if isinstance(group, ClassicGroup):
            self.classic.check_commit(group, body)
        if isinstance(group, OtherGroup):
            group.check_commit(body.generation_id_or_member_epoch)
        return None

    def check_transactional_commit(
        self, group: Group, body: Any, stale: int
    ) -> Callable[[bytes, int], bool] | None:
        """Refuse the commit, in a transaction, of a member that is not of the group or its generation.

        Args:
            group: The group.
            body: The request.
            stale: The error of an epoch that is not the member's.

        Returns:
            As `check_commit`.
        """
        if isinstance(group, ConsumerGroup):
            return self.consumers.check_transactional_commit(group, body, stale)
        if isinstance(group, ClassicGroup):
            self.classic.check_transactional_commit(group, body)
        if isinstance(group, OtherGroup):
            group.check_commit(body.generation_id)
        return None

    def check_fetch(self, body: Any) -> None:
        """Refuse the fetch of offsets by a member that is not of the group."""
        group = self._groups.get(body.group_id)
        if isinstance(group, ConsumerGroup):
            self.consumers.check_fetch(group, body)

    def answer_all(self) -> None:
        """Answer every request that waits: the server closes."""
        self.classic.answer_all()
        self.leases.close()

    # -------------------------------------------------------------- load and store

    def _when_loaded(self, handler: Callable[[Request, Any], Any]) -> Callable[[Request, Any], Any]:
        """Return the handler, which waits until the groups are loaded."""

        def handle(request: Request, connection: Any) -> Any:
            loading = self._load()
            if loading is None:
                return handler(request, connection)
            return self.context.then(loading, lambda: handler(request, connection))

        return handle

    def loaded(self) -> asyncio.Future[Any]:
        """Return a future that is done when the groups are loaded."""
        loading = self._load()
        if loading is None:
            loading = self.context.loop.create_future()
            loading.set_result(None)
        return loading

    def _load(self) -> asyncio.Future[Any] | None:
        """Return a future to wait for until the groups are loaded; None if they are."""
        if self._is_loaded and not self._forget_if_topic_is_gone():
            return None
        if self._loading is None or (self._loading.done() and self._loading.exception() is not None):
            reading = self.context.in_turn(self._read_topic)
            self._loading = self.context.then(reading, lambda: self._take(reading.result()))
        return self._loading

    def _read_topic(self) -> list[StoredRecord]:
        try:
            return self.topic.load(
                {kind: name for name, kind in stored_keys().items() if name != "TransactionLogKey"}
            )
        except LastwordError as error:  # a partition is offline or damaged
            raise Refused(codes.COORDINATOR_NOT_AVAILABLE, error.message) from error

    def _forget_if_topic_is_gone(self) -> bool:
        """Forget all groups if their topic was deleted; the next request creates the topic again."""
        topic = self.context.topics.get(GROUPS_TOPIC)
        if topic is not None and topic.id == self._topic_id:
            return False
        self.classic.answer_all()
        for group in self._groups.values():
            if isinstance(group, ClassicGroup):
                group.end()
            elif isinstance(group, ConsumerGroup):
                self.consumers.forget(group)
            for at in group.offsets:
                self.leases.ended(group.id, at)
        self._groups.clear()
        self.offsets.clear()
        self._decided.clear()
        self._is_loaded, self._loading = False, None
        return True

    def _take(self, records: list[StoredRecord]) -> None:
        for record in records:
            if record.kind in (0, 1):
                self.offsets.take(record)
            elif record.value is None:
                continue
            elif record.kind == 2:
                self.classic.take(record.key.group, record.value)
            elif record.kind in CONSUMER_KEYS:
                self.consumers.take(record.kind, record.key, record.value)
            else:
                self._take_other(record.key)
        for decided in self._decided:
            self.offsets.decide(*decided)
        self.consumers.loaded()
        topic = self.context.topics.get(GROUPS_TOPIC)
        self._is_loaded, self._topic_id = True, None if topic is None else topic.id
        self._renew_leases()

    def _take_other(self, key: Any) -> None:
        """Take a record of a group of another protocol, by the name of its key."""
        kind = next((kind for kind in ("share", "streams") if kind in type(key).__name__.lower()), None)
        if kind is None:
            return
        group = self._groups.get(key.group_id)
        if not isinstance(group, OtherGroup):
            group = self.add(OtherGroup(key.group_id, kind=kind))
        group.take(key)

    def decide(self, partition: int, producer_id: int, is_commit: bool) -> None:
        """End a transaction whose marker was appended to a partition of the topic."""
        if self._is_loaded:
            self.offsets.decide(partition, producer_id, is_commit)
        elif self._loading is not None:
            self._decided.append((partition, producer_id, is_commit))

    def store(
        self,
        group_id: str,
        records: Iterable[tuple[bytes, bytes | None]],
        producer: tuple[int, int] | None = None,
    ) -> asyncio.Future[Any] | None:
        """Append records; return a future to wait for before the answer, or None.

        Args:
            group_id: The group.
            records: Keys and values.
            producer: Producer id and epoch of the transaction that the records belong to.

        Raises:
            Refused: The records cannot be stored.
        """
        log = self.topic.append(self.topic.partition_of(group_id), records, producer)
        return None if log is None else self.context.in_pool(sync_stored, log)

    def answer_after(self, stored: asyncio.Future[Any] | None, answer: Message) -> Any:
        """Return the answer, or a future of it when the change is durable. The future may raise Refused."""
        if stored is None:
            return answer
        return self.context.then(stored, lambda: answer)

    # -------------------------------------------------------------- what ends

    def _check_later(self) -> None:
        interval_ms = self.context.dirs.settings.instance.offsets_retention_check_interval_ms
        self.context.timers.after(interval_ms, self._check)

    def _check(self) -> None:
        """Delete the offsets that have expired, and the groups that have neither members nor offsets."""
        self._check_later()
        if self.context.topics.get(GROUPS_TOPIC) is not None:
            self._after_load(self._expire)

    def load_early(self) -> None:
        """Load the groups when the server starts: a kill may have come before leases were written."""
        self._after_load(lambda: None)

    def _after_load(self, call: Callable[[], None]) -> None:
        loading = self._load()
        if loading is None:
            call()
        else:
            self.context.then(loading, call).add_done_callback(_log_failure)

    def _expire(self) -> None:
        retention_ms = self.context.dirs.settings.instance.offsets_retention_minutes * 60_000
        now_ms = self.context.clock.now_ms()
        for group in list(self._groups.values()):
            unstable = self.offsets.unstable(group.id)
            gone = [at for at in group.expired(now_ms, retention_ms) if at not in unstable]
            is_over = group.is_over and not unstable and len(gone) == len(group.offsets)
            self._forget(group, gone, deletes=is_over)
        if now_ms - self._renewed_ms >= retention_ms // RENEWALS:
            self._renew_leases()

    def topics_deleted(self, topics: set[str]) -> None:
        """Delete the offsets of topics that were deleted."""
        if self._is_loaded and self._forget_if_topic_is_gone():
            return
        if self._loading is not None or self.context.topics.get(GROUPS_TOPIC) is not None:
            self._after_load(lambda: self._forget_topics(topics))

    def _forget_topics(self, topics: set[str]) -> None:
        for group in list(self._groups.values()):
            gone = [at for at in self.offsets.partitions_of(group) if at[0] in topics]
            self._forget(group, gone, deletes=False)

    def _forget(self, group: Group, gone: list[tuple[str, int]], *, deletes: bool) -> None:
        """Delete offsets of a group, or the group."""
        records = [(offset_key(group.id, *at), None) for at in gone]
        try:
            self.store(group.id, [*records, *(group.tombstones() if deletes else ())])
        except Refused as refused:  # the next check tries again
            _log.error("group %s: %s", group.id, refused.message)
            return
        self.offsets.deleted(group, gone)
        if deletes:
            del self._groups[group.id]

    def _renew_leases(self) -> None:
        self._renewed_ms = self.context.clock.now_ms()
        for group in self._groups.values():
            for at, committed in group.offsets.items():
                self.leases.moved(group.id, at, committed.offset)

    # -------------------------------------------------------------- coordinator

    def _find(self, request: Request, connection: Any) -> Any:
        """Answer FindCoordinator, for groups when they are loaded. Clients repeat it if that fails."""
        key_type = request.body.key_type
        refused = None if key_type in COORDINATED else Refused(codes.INVALID_REQUEST, "not served")
        loading = self._load() if key_type == OF_GROUPS else None
        if loading is None:
            return self._found(request, refused)
        answer: asyncio.Future[Any] = self.context.loop.create_future()

        def go_on(done: asyncio.Future[Any]) -> None:
            error = done.exception()
            if error is None or isinstance(error, Refused):
                answer.set_result(self._found(request, error))
            else:
                answer.set_exception(error)

        loading.add_done_callback(go_on)
        return answer

    def _found(self, request: Request, refused: Refused | None) -> Message:
        body, context = request.body, self.context
        if request.version < 4:
            if refused is not None:
                return messages.FindCoordinatorResponse(
                    error_code=refused.code, error_message=refused.message, node_id=-1, host="", port=-1
                )
            return messages.FindCoordinatorResponse(
                error_message="NONE", node_id=context.node_id, host=context.host, port=context.port
            )
        coordinators = []
        for key in body.coordinator_keys:
            coordinator = messages.FindCoordinatorResponse.Coordinator(
                key=key, node_id=context.node_id, host=context.host, port=context.port, error_message=""
            )
            if refused is not None:
                coordinator.error_code, coordinator.error_message = refused.code, refused.message
                coordinator.node_id, coordinator.host, coordinator.port = -1, "", -1
            coordinators.append(coordinator)
        return messages.FindCoordinatorResponse(coordinators=coordinators)

    # -------------------------------------------------------------- list, delete

    def _list(self, request: Request, connection: Any) -> Message:
        body = request.body
        states = {state.lower() for state in body.states_filter}
        types = {kind.lower() for kind in body.types_filter}
        return messages.ListGroupsResponse(
            groups=[
                messages.ListGroupsResponse.ListedGroup(
                    group_id=group.id,
                    protocol_type=group.protocol_type or "",
                    group_state=group.state,
                    group_type=group.kind,
                )
                for group in self._groups.values()
                if (not states or group.state.lower() in states) and (not types or group.kind in types)
            ]
        )

    def _delete(self, request: Request, connection: Any) -> Any:
        results = []
        stored = []
        for group_id in request.body.groups_names:
            result = messages.DeleteGroupsResponse.DeletableGroupResult(group_id=group_id)
            results.append(result)
            try:
                group = self.get(group_id)
                if group is None:
                    raise Refused(codes.GROUP_ID_NOT_FOUND, "")
                if not group.is_empty:
                    raise Refused(codes.NON_EMPTY_GROUP, "")
                gone = self.offsets.partitions_of(group)
                records = [(offset_key(group_id, *at), None) for at in gone]
                stored.append(self.store(group_id, [*records, *group.tombstones()]))
                self.offsets.deleted(group, gone)
                del self._groups[group_id]
            except Refused as refused:
                result.error_code = refused.code
        syncs = [sync for sync in stored if sync is not None]
        durable = asyncio.gather(*syncs) if syncs else None
        return self.answer_after(durable, messages.DeleteGroupsResponse(results=results))


def _log_failure(done: asyncio.Future[Any]) -> None:
    error = done.exception()
    if isinstance(error, Refused):
        _log.error("the groups were not loaded: %s", error.message)
    elif error is not None:
        _log.error("the groups were not loaded", exc_info=error)
