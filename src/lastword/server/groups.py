"""Consumer groups of the classic protocol, and committed offsets.

```
Empty ──join──> PreparingRebalance ──all joined, or time is up──> CompletingRebalance ──leader syncs──> Stable
  ^                  ^  │ the last member leaves                        │ join, leave, expiry            │
  └──────────────────┼──┘                                               │                                │
                     └──────────────────────────────────────────────────┴────────────────────────────────┘
```

All state is in memory, and every part that must survive is a record of `__consumer_offsets`: the members of a
stable group, and each committed offset. Handlers run in the thread of the event loop only.

A member that is silent for its session timeout leaves the group. A dynamic member gets its id in a first
answer and joins with it, so that a client that gives up leaves nothing behind. A static member (with an
instance id) takes the place of the member that had its instance id.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lastword.errors import LastwordError, MalformedMessageError, UnsupportedVersionError
from lastword.protocol import Request, codes, decode_stored, encode_stored
from lastword.protocol.messages import (
    DeleteGroupsResponse,
    DescribeGroupsResponse,
    FindCoordinatorResponse,
    GroupMetadataKey,
    GroupMetadataValue,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    ListGroupsResponse,
    OffsetCommitKey,
    OffsetCommitResponse,
    OffsetCommitValue,
    OffsetDeleteResponse,
    OffsetFetchResponse,
    SyncGroupResponse,
)
from lastword.protocol.schemas import ZERO_UUID, Message
from lastword.server.coordinator import CoordinatorTopic, Timer
from lastword.server.topics import Refused

if TYPE_CHECKING:
    from lastword.server.broker import Broker

TOPIC = "__consumer_offsets"
EMPTY, PREPARING, COMPLETING, STABLE, DEAD = (
    "Empty",
    "PreparingRebalance",
    "CompletingRebalance",
    "Stable",
    "Dead",
)
SESSION_MS = (6_000, 1_800_000)
"""Least and largest session timeout, Kafka's defaults."""
MOST_METADATA = 4096
GROUP_OPERATIONS = 3400
"""Bits of all operations on a group."""
OFFSET_VERSION, GROUP_VERSION = 3, 3
"""Versions of the values that are written, which every Kafka since 2.3 reads."""
MOST_MEMBERS = 10_000


@dataclass(eq=False)
class Member:
    """A member of a group; `joining` and `syncing` are the futures of its unanswered requests."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocol_type: str
    protocols: list[tuple[str, bytes]]
    join_version: int = 0
    assignment: bytes = b""
    joining: asyncio.Future[Any] | None = None
    syncing: asyncio.Future[Any] | None = None
    session: Timer | None = None

    def metadata(self, protocol: str | None) -> bytes:
        """Return the member's metadata for a protocol."""
        return next((data for name, data in self.protocols if name == protocol), b"")


@dataclass(frozen=True)
class Committed:
    """A committed offset."""

    offset: int
    leader_epoch: int
    metadata: str
    topic_id: bytes = ZERO_UUID


@dataclass(eq=False)
class Group:
    """A group. `pending` has the ids that were given and have not joined yet."""

    id: str
    state: str = EMPTY
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    generation: int = 0
    changed_ms: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)
    pending: dict[str, Timer] = field(default_factory=dict)
    offsets: dict[tuple[str, int], Committed] = field(default_factory=dict)
    timer: Timer | None = None

    def supports(self, protocol_type: str, protocols: list[tuple[str, bytes]]) -> bool:
        """Return whether a member with these protocols can be in the group."""
        if not self.members:
            return bool(protocol_type and protocols)
        names = {name for name, _ in protocols}
        return protocol_type == self.protocol_type and any(
            all(name in {known for known, _ in member.protocols} for member in self.members.values())
            for name in names
        )

    def chosen_protocol(self) -> str:
        """Return the protocol that all members have and most of them prefer."""
        members = list(self.members.values())
        common = [
            name
            for name, _ in members[0].protocols
            if all(name in {known for known, _ in member.protocols} for member in members)
        ]
        votes = dict.fromkeys(common, 0)
        for member in members:
            first = next(name for name, _ in member.protocols if name in votes)
            votes[first] += 1
        return max(votes, key=lambda name: votes[name])

    def cancel_timer(self) -> None:
        """Stop the timer of the rebalance."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Groups:
    """The handlers of the APIs for groups."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.topic = CoordinatorTopic(broker, TOPIC, broker.options.offsets_partitions)
        self._groups: dict[str, Group] = {}
        self._loading: asyncio.Future[Any] | None = None
        self._is_loaded = False

    def handlers(self) -> dict[str, Callable[[Request, Any], Any]]:
        """Return the handlers by the name of the API."""
        handlers = {
            "FindCoordinator": self._find_coordinator,
            "JoinGroup": self._join,
            "SyncGroup": self._sync,
            "Heartbeat": self._heartbeat,
            "LeaveGroup": self._leave,
            "OffsetCommit": self._commit,
            "OffsetFetch": self._fetch,
            "ListGroups": self._list,
            "DescribeGroups": self._describe,
            "DeleteGroups": self._delete,
            "OffsetDelete": self._delete_offsets,
        }
        return {name: self._when_loaded(handler) for name, handler in handlers.items()}

    # -------------------------------------------------------------- load and store

    def _when_loaded(self, handler: Callable[[Request, Any], Any]) -> Callable[[Request, Any], Any]:
        """Return the handler, which waits until the groups are loaded."""

        def handle(request: Request, connection: Any) -> Any:
            if self._is_loaded:
                return handler(request, connection)
            if self._loading is None or (self._loading.done() and self._loading.exception() is not None):
                self._loading = self._broker.in_turn(self._read_topic)
            return self._broker.then(self._loading, lambda: loaded(request, connection))

        def loaded(request: Request, connection: Any) -> Any:
            loading = self._loading
            if not self._is_loaded and loading is not None:
                self._take(loading.result())
            return handler(request, connection)

        return handle

    def _read_topic(self) -> list[tuple[bytes, bytes]]:
        self.topic.open()
        return [(key, value) for _, key, value in self.topic.newest()]

    def _take(self, records: list[tuple[bytes, bytes]]) -> None:
        self._is_loaded = True
        for key, value in records:
            kind = int.from_bytes(key[:2], "big")
            try:
                if kind in (0, 1):
                    name = "OffsetCommitKey" if kind else "LegacyOffsetCommitKey"
                    of = decode_stored(name, key)
                    stored = decode_stored("OffsetCommitValue", value)
                    self._group(of.group).offsets[of.topic, of.partition] = Committed(
                        stored.offset, stored.leader_epoch, stored.metadata, stored.topic_id
                    )
                elif kind == 2:
                    of = decode_stored("GroupMetadataKey", key)
                    self._take_group(self._group(of.group), decode_stored("GroupMetadataValue", value))
            except (MalformedMessageError, UnsupportedVersionError):
                continue  # of another program, or of a kind of group that is not served

    def _take_group(self, group: Group, stored: Any) -> None:
        group.protocol_type, group.generation = stored.protocol_type, stored.generation
        group.protocol, group.leader = stored.protocol, stored.leader
        group.changed_ms = stored.current_state_timestamp
        for saved in stored.members:
            member = Member(
                saved.member_id,
                saved.group_instance_id,
                saved.client_id,
                saved.client_host,
                saved.session_timeout,
                saved.rebalance_timeout if saved.rebalance_timeout >= 0 else saved.session_timeout,
                stored.protocol_type,
                [(stored.protocol or "", bytes(saved.subscription))],
                assignment=bytes(saved.assignment),
            )
            group.members[member.id] = member
            if member.instance_id is not None:
                group.instances[member.instance_id] = member.id
            self._keep_alive(group, member)
        group.state = STABLE if group.members else EMPTY

    def _group(self, group_id: str) -> Group:
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = Group(group_id, changed_ms=self._broker.clock.now_ms())
        return group

    def _store(self, group_id: str, records: list[tuple[bytes, bytes | None]]) -> asyncio.Future[Any] | None:
        """Append records; return a future to wait for before the answer, or None."""
        log = self.topic.append(self.topic.partition_of(group_id), records)
        return None if log is None else self._broker.in_pool(log.sync)

    def _store_group(self, group: Group) -> asyncio.Future[Any] | None:
        value = GroupMetadataValue(
            protocol_type=group.protocol_type or "",
            generation=group.generation,
            protocol=group.protocol,
            leader=group.leader,
            current_state_timestamp=group.changed_ms,
            members=[
                GroupMetadataValue.MemberMetadata(
                    member_id=member.id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout=member.rebalance_ms,
                    session_timeout=member.session_ms,
                    subscription=member.metadata(group.protocol),
                    assignment=member.assignment,
                )
                for member in group.members.values()
            ],
        )
        key = encode_stored(GroupMetadataKey(group=group.id))
        return self._store(group.id, [(key, encode_stored(value, GROUP_VERSION))])

    def _answer_after(self, stored: asyncio.Future[Any] | None, answer: Message) -> Any:
        """Return the answer, or a future of it when the change is durable."""
        if stored is None:
            return answer
        return self._broker.then(stored, lambda: answer)

    # -------------------------------------------------------------- coordinator

    def _find_coordinator(self, request: Request, connection: Any) -> Message:
        body, broker = request.body, self._broker
        if request.version < 4:
            if body.key_type != 0:
                return FindCoordinatorResponse(
                    error_code=codes.INVALID_REQUEST, error_message="not served", node_id=-1, host="", port=-1
                )
            return FindCoordinatorResponse(
                error_message="NONE", node_id=broker.node_id, host=broker.host, port=broker.port
            )
        coordinators = []
        for key in body.coordinator_keys:
            found = FindCoordinatorResponse.Coordinator(
                key=key, node_id=broker.node_id, host=broker.host, port=broker.port, error_message=""
            )
            if body.key_type != 0:
                found.error_code, found.error_message = codes.INVALID_REQUEST, "not served"
                found.node_id, found.host, found.port = -1, "", -1
            coordinators.append(found)
        return FindCoordinatorResponse(coordinators=coordinators)

    # -------------------------------------------------------------- join

    def _join(self, request: Request, connection: Any) -> Any:
        body = request.body
        answer: asyncio.Future[Any] = self._broker.loop.create_future()
        try:
            self._join_group(request, connection, answer)
        except Refused as refused:
            return _join_error(refused.code, refused.message or body.member_id, request.version)
        return answer.result() if answer.done() else answer

    def _join_group(self, request: Request, connection: Any, answer: asyncio.Future[Any]) -> None:
        body = request.body
        if not body.group_id:
            raise Refused(codes.INVALID_GROUP_ID, "")
        if not SESSION_MS[0] <= body.session_timeout_ms <= SESSION_MS[1]:
            raise Refused(codes.INVALID_SESSION_TIMEOUT, "")
        known = self._groups.get(body.group_id)
        if known is None and body.member_id:
            raise Refused(codes.UNKNOWN_MEMBER_ID, "")
        protocols = [(protocol.name, bytes(protocol.metadata)) for protocol in body.protocols]
        group = self._group(body.group_id)
        others = known is not None and any(m.id != body.member_id for m in group.members.values())
        if (not known or others or not group.members) and not group.supports(body.protocol_type, protocols):
            raise Refused(codes.INCONSISTENT_GROUP_PROTOCOL, "")
        if len(group.members) >= MOST_MEMBERS and body.member_id not in group.members:
            raise Refused(codes.GROUP_MAX_SIZE_REACHED, "")
        rebalance_ms = body.rebalance_timeout_ms if request.version >= 1 else body.session_timeout_ms
        member = Member(
            body.member_id,
            body.group_instance_id,
            request.client_id or "",
            "/" + connection.peer.rpartition(":")[0],
            body.session_timeout_ms,
            rebalance_ms,
            body.protocol_type,
            protocols,
            request.version,
        )
        if not body.member_id:
            self._join_new(group, member, request, answer)
        else:
            self._join_known(group, member, answer)

    def _join_new(self, group: Group, member: Member, request: Request, answer: asyncio.Future[Any]) -> None:
        member.id = f"{member.instance_id or member.client_id}-{uuid.uuid4()}"
        if member.instance_id is not None:
            replaced = group.instances.get(member.instance_id)
            if replaced is not None:
                self._replace_static(group, group.members[replaced], member, request, answer)
            else:
                self._add(group, member, answer)
        elif request.version >= 4:  # the member joins with the id that it gets here
            group.pending[member.id] = self._broker.timers.after(
                member.session_ms, lambda: self._pending_expired(group, member.id)
            )
            raise Refused(codes.MEMBER_ID_REQUIRED, member.id)
        else:
            self._add(group, member, answer)

    def _join_known(self, group: Group, member: Member, answer: asyncio.Future[Any]) -> None:
        pending = group.pending.pop(member.id, None)
        if pending is not None:
            pending.cancel()
            self._add(group, member, answer)
            return
        known = self._member(group, member.id, member.instance_id)
        changed = known.protocols != member.protocols
        if group.state == STABLE and not changed and known.id != group.leader:
            self._keep_alive(group, known)
            answer.set_result(self._joined(group, known))
            return
        if group.state == COMPLETING and not changed:
            self._keep_alive(group, known)
            answer.set_result(self._joined(group, known))
            return
        known.protocols, known.session_ms = member.protocols, member.session_ms
        known.rebalance_ms, known.join_version = member.rebalance_ms, member.join_version
        self._await_join(group, known, answer)
        self._rebalance(group)

    def _replace_static(
        self, group: Group, old: Member, member: Member, request: Request, answer: asyncio.Future[Any]
    ) -> None:
        """Let a static member that was started again take the place of its former self."""
        self._fence(old)
        if old.session is not None:
            old.session.cancel()
        same = old.metadata(group.protocol) == member.metadata(group.protocol)
        group.members = {
            (member.id if key == old.id else key): (member if key == old.id else value)
            for key, value in group.members.items()
        }
        group.instances[member.instance_id or ""] = member.id
        leads = group.leader == old.id
        if leads:
            group.leader = member.id
        member.assignment = old.assignment
        if group.state == STABLE and same:
            self._keep_alive(group, member)
            self._store_group(group)
            response = self._joined(group, member)
            if (
                leads and request.version < 9
            ):  # it must not compute an assignment: it is not told that it leads
                response.leader, response.members = old.id, []
            response.skip_assignment = leads and request.version >= 9
            answer.set_result(response)
            return
        self._await_join(group, member, answer)
        self._rebalance(group)

    def _add(self, group: Group, member: Member, answer: asyncio.Future[Any]) -> None:
        if not group.members:
            group.protocol_type = member.protocol_type
        group.members[member.id] = member
        if member.instance_id is not None:
            group.instances[member.instance_id] = member.id
        if group.leader is None:
            group.leader = member.id
        self._await_join(group, member, answer)
        self._rebalance(group)

    def _await_join(self, group: Group, member: Member, answer: asyncio.Future[Any]) -> None:
        if member.joining is not None and not member.joining.done():
            member.joining.set_result(_join_error(codes.UNKNOWN_MEMBER_ID, member.id, member.join_version))
        member.joining = answer
        if member.session is not None:
            member.session.cancel()
            member.session = None

    def _rebalance(self, group: Group) -> None:
        """Begin a rebalance, or see whether the one that is under way is complete."""
        if group.state != PREPARING:
            if group.state == COMPLETING:
                self._fail_syncs(group, codes.REBALANCE_IN_PROGRESS)
            was_empty = group.state == EMPTY
            group.state = PREPARING
            group.cancel_timer()
            delay = self._broker.options.rebalance_delay_ms
            if was_empty and delay:
                group.timer = self._broker.timers.after(delay, lambda: self._delay_over(group))
                return
            self._start_rebalance_timer(group)
        elif self._broker.options.rebalance_delay_ms and group.generation == 0:
            return
        self._complete_if_joined(group)

    def _delay_over(self, group: Group) -> None:
        self._start_rebalance_timer(group)
        self._complete_if_joined(group)

    def _start_rebalance_timer(self, group: Group) -> None:
        most = max((member.rebalance_ms for member in group.members.values()), default=0)
        group.timer = self._broker.timers.after(most, lambda: self._complete_join(group))

    def _complete_if_joined(self, group: Group) -> None:
        if not group.pending and all(member.joining is not None for member in group.members.values()):
            self._complete_join(group)

    def _complete_join(self, group: Group) -> None:
        """End the first half of a rebalance: answer the joins of those who came, remove the others."""
        if group.state != PREPARING:
            return
        group.cancel_timer()
        for member in list(group.members.values()):
            if member.joining is None and member.instance_id is None:
                self._drop(group, member)
        for member_id, timer in list(group.pending.items()):
            timer.cancel()
            del group.pending[member_id]
        joined = [member for member in group.members.values() if member.joining is not None]
        if group.members and not joined:  # static members only, all of them away
            self._start_rebalance_timer(group)
            return
        group.generation += 1
        group.changed_ms = self._broker.clock.now_ms()
        if not group.members:
            self._emptied(group)
            return
        if group.leader not in group.members or group.members[group.leader].joining is None:
            group.leader = joined[0].id
        group.protocol = group.chosen_protocol()
        group.state = COMPLETING
        for member in group.members.values():
            member.assignment = b""
            answer, member.joining = member.joining, None
            self._keep_alive(group, member)
            if answer is not None and not answer.done():
                answer.set_result(self._joined(group, member))
        most = max(member.rebalance_ms for member in group.members.values())
        group.timer = self._broker.timers.after(most, lambda: self._sync_expired(group))

    def _emptied(self, group: Group) -> None:
        group.state, group.protocol, group.leader = EMPTY, None, None
        self._store_group(group)

    def _sync_expired(self, group: Group) -> None:
        """Remove the members that did not sync in time."""
        if group.state == COMPLETING:
            for member in list(group.members.values()):
                if member.syncing is None:
                    self._drop(group, member)
            self._rebalance(group)

    def _joined(self, group: Group, member: Member) -> Any:
        leads = member.id == group.leader
        return JoinGroupResponse(
            generation_id=group.generation,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol,
            leader=group.leader or "",
            member_id=member.id,
            members=[
                JoinGroupResponse.JoinGroupResponseMember(
                    member_id=other.id,
                    group_instance_id=other.instance_id,
                    metadata=other.metadata(group.protocol),
                )
                for other in group.members.values()
            ]
            if leads
            else [],
        )

    # -------------------------------------------------------------- sync, heartbeat, leave

    def _sync(self, request: Request, connection: Any) -> Any:
        body = request.body
        try:
            group, member = self._current(body)
            if request.version >= 5 and (
                body.protocol_type not in (None, group.protocol_type)
                or body.protocol_name not in (None, group.protocol)
            ):
                raise Refused(codes.INCONSISTENT_GROUP_PROTOCOL, "")
            if group.state == PREPARING:
                raise Refused(codes.REBALANCE_IN_PROGRESS, "")
        except Refused as refused:
            return SyncGroupResponse(error_code=refused.code)
        if group.state == STABLE:
            self._keep_alive(group, member)
            return self._synced(group, member)
        if member.syncing is not None and not member.syncing.done():
            member.syncing.set_result(SyncGroupResponse(error_code=codes.UNKNOWN_MEMBER_ID))
        member.syncing = self._broker.loop.create_future()
        answer = member.syncing
        if member.id == group.leader:
            assigned = {given.member_id: bytes(given.assignment) for given in body.assignments}
            for other in group.members.values():
                other.assignment = assigned.get(other.id, b"")
            group.state = STABLE
            group.changed_ms = self._broker.clock.now_ms()
            group.cancel_timer()
            stored = self._store_group(group)
            generation = group.generation

            def stable(done: asyncio.Future[Any] | None = None) -> None:
                if done is not None and done.exception() is not None:
                    self._fail_syncs(group, codes.UNKNOWN_SERVER_ERROR)
                elif group.generation == generation:
                    for other in group.members.values():
                        waiting, other.syncing = other.syncing, None
                        self._keep_alive(group, other)
                        if waiting is not None and not waiting.done():
                            waiting.set_result(self._synced(group, other))

            if stored is None:
                stable()
            else:
                stored.add_done_callback(stable)
        return answer.result() if answer.done() else answer

    def _synced(self, group: Group, member: Member) -> Message:
        return SyncGroupResponse(
            protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=member.assignment
        )

    def _fail_syncs(self, group: Group, code: int) -> None:
        for member in group.members.values():
            answer, member.syncing = member.syncing, None
            if answer is not None and not answer.done():
                answer.set_result(SyncGroupResponse(error_code=code))
                self._keep_alive(group, member)

    def _heartbeat(self, request: Request, connection: Any) -> Message:
        try:
            group, member = self._current(request.body)
            self._keep_alive(group, member)
            if group.state == PREPARING:
                raise Refused(codes.REBALANCE_IN_PROGRESS, "")
        except Refused as refused:
            return HeartbeatResponse(error_code=refused.code)
        return HeartbeatResponse()

    def _leave(self, request: Request, connection: Any) -> Message:
        body = request.body
        leaving = (
            [(member.member_id, member.group_instance_id) for member in body.members]
            if request.version >= 3
            else [(body.member_id, None)]
        )
        results = []
        group = self._groups.get(body.group_id)
        changed = False
        for member_id, instance_id in leaving:
            result = LeaveGroupResponse.MemberResponse(member_id=member_id, group_instance_id=instance_id)
            results.append(result)
            try:
                if group is None:
                    raise Refused(codes.UNKNOWN_MEMBER_ID, "")
                pending = group.pending.pop(member_id, None)
                if pending is not None:
                    pending.cancel()
                else:
                    if instance_id is not None and not member_id:
                        member_id = group.instances.get(instance_id, "")
                    self._drop(group, self._member(group, member_id, instance_id))
                changed = True
            except Refused as refused:
                result.error_code = refused.code
        if changed and group is not None:
            self._after_loss(group)
        if request.version < 3:
            return LeaveGroupResponse(error_code=results[0].error_code if results else 0)
        return LeaveGroupResponse(members=results)

    def _current(self, body: Any) -> tuple[Group, Member]:
        """Return the group and the member of a request of a generation."""
        if not body.group_id:
            raise Refused(codes.INVALID_GROUP_ID, "")
        group = self._groups.get(body.group_id)
        if group is None:
            raise Refused(codes.UNKNOWN_MEMBER_ID, "")
        member = self._member(group, body.member_id, body.group_instance_id)
        if body.generation_id != group.generation:
            raise Refused(codes.ILLEGAL_GENERATION, "")
        return group, member

    def _member(self, group: Group, member_id: str, instance_id: str | None) -> Member:
        if instance_id is not None:
            known = group.instances.get(instance_id)
            if known is None:
                raise Refused(codes.UNKNOWN_MEMBER_ID, "")
            if known != member_id:
                raise Refused(codes.FENCED_INSTANCE_ID, "")
        member = group.members.get(member_id)
        if member is None:
            raise Refused(codes.UNKNOWN_MEMBER_ID, "")
        return member

    # -------------------------------------------------------------- members that go

    def _keep_alive(self, group: Group, member: Member) -> None:
        if member.session is not None:
            member.session.cancel()
            member.session = None
        if member.joining is None and member.id in group.members:
            member.session = self._broker.timers.after(
                member.session_ms, lambda: self._session_expired(group, member)
            )

    def _session_expired(self, group: Group, member: Member) -> None:
        if group.members.get(member.id) is member:
            self._drop(group, member)
            self._after_loss(group)

    def _pending_expired(self, group: Group, member_id: str) -> None:
        if group.pending.pop(member_id, None) is not None:
            self._after_loss(group)

    def _after_loss(self, group: Group) -> None:
        if group.state in (STABLE, COMPLETING):
            self._rebalance(group)
        elif group.state == PREPARING:
            self._complete_if_joined(group)

    def _drop(self, group: Group, member: Member) -> None:
        """Remove a member; its unanswered requests are answered."""
        del group.members[member.id]
        if member.instance_id is not None and group.instances.get(member.instance_id) == member.id:
            del group.instances[member.instance_id]
        if group.leader == member.id:
            group.leader = next(iter(group.members), None)
        if member.session is not None:
            member.session.cancel()
        if member.joining is not None and not member.joining.done():
            member.joining.set_result(_join_error(codes.UNKNOWN_MEMBER_ID, member.id, member.join_version))
        if member.syncing is not None and not member.syncing.done():
            member.syncing.set_result(SyncGroupResponse(error_code=codes.UNKNOWN_MEMBER_ID))

    def _fence(self, member: Member) -> None:
        if member.joining is not None and not member.joining.done():
            member.joining.set_result(_join_error(codes.FENCED_INSTANCE_ID, member.id, member.join_version))
        if member.syncing is not None and not member.syncing.done():
            member.syncing.set_result(SyncGroupResponse(error_code=codes.FENCED_INSTANCE_ID))

    def answer_all(self) -> None:
        """Answer every request that waits: the server closes."""
        for group in self._groups.values():
            for member in group.members.values():
                if member.joining is not None and not member.joining.done():
                    member.joining.set_result(
                        _join_error(codes.NOT_COORDINATOR, member.id, member.join_version)
                    )
                if member.syncing is not None and not member.syncing.done():
                    member.syncing.set_result(SyncGroupResponse(error_code=codes.NOT_COORDINATOR))

    # -------------------------------------------------------------- offsets

    def _commit(self, request: Request, connection: Any) -> Any:
        body = request.body
        code = 0
        group = None
        try:
            group = self._committing(body)
        except Refused as refused:
            code = refused.code
        records: list[tuple[bytes, bytes | None]] = []
        changes: dict[tuple[str, int], Committed] = {}
        now_ms = self._broker.clock.now_ms()
        topics = []
        for topic in body.topics:
            served = self._broker.topics.find(topic.name, topic.topic_id)
            partitions: list[Any] = []
            topics.append(
                OffsetCommitResponse.OffsetCommitResponseTopic(
                    name=topic.name, topic_id=topic.topic_id, partitions=partitions
                )
            )
            for given in topic.partitions:
                result = OffsetCommitResponse.OffsetCommitResponsePartition(
                    partition_index=given.partition_index, error_code=code
                )
                partitions.append(result)
                if code:
                    continue
                if served is None or given.partition_index not in served.directories:
                    by_id = request.version >= 10
                    result.error_code = (
                        codes.UNKNOWN_TOPIC_ID
                        if by_id and served is None
                        else codes.UNKNOWN_TOPIC_OR_PARTITION
                    )
                    continue
                metadata = given.committed_metadata or ""
                if len(metadata) > MOST_METADATA:
                    result.error_code = codes.OFFSET_METADATA_TOO_LARGE
                    continue
                committed = Committed(
                    given.committed_offset, given.committed_leader_epoch, metadata, topic.topic_id
                )
                changes[served.name, given.partition_index] = committed
                records.append(
                    _offset_record(body.group_id, served.name, given.partition_index, committed, now_ms)
                )
        answer = OffsetCommitResponse(topics=topics)
        if not records or group is None:
            return answer
        try:
            stored = self._store(group.id, records)
        except LastwordError as error:
            for described in topics:
                for result in described.partitions:
                    result.error_code = result.error_code or error.kafka_code
            return answer
        group.offsets |= changes
        return self._answer_after(stored, answer)

    def _committing(self, body: Any) -> Group:
        generation = body.generation_id_or_member_epoch
        group = self._groups.get(body.group_id)
        if group is None:
            if generation >= 0:
                raise Refused(codes.ILLEGAL_GENERATION, "")
            return self._group(body.group_id)
        if generation < 0 and group.state == EMPTY:
            return group
        if generation < 0 and not body.member_id and not body.group_instance_id:
            raise Refused(codes.UNKNOWN_MEMBER_ID, "")
        member = self._member(group, body.member_id, body.group_instance_id)
        if generation != group.generation:
            raise Refused(codes.ILLEGAL_GENERATION, "")
        if group.state == COMPLETING:
            raise Refused(codes.REBALANCE_IN_PROGRESS, "")
        self._keep_alive(group, member)
        return group

    def _fetch(self, request: Request, connection: Any) -> Message:
        body = request.body
        if request.version < 8:
            return OffsetFetchResponse(
                topics=self._fetched(
                    body.group_id,
                    body.topics,
                    OffsetFetchResponse.OffsetFetchResponseTopic,
                    OffsetFetchResponse.OffsetFetchResponsePartition,
                )
            )
        return OffsetFetchResponse(
            groups=[
                OffsetFetchResponse.OffsetFetchResponseGroup(
                    group_id=asked.group_id,
                    topics=self._fetched(
                        asked.group_id,
                        asked.topics,
                        OffsetFetchResponse.OffsetFetchResponseTopics,
                        OffsetFetchResponse.OffsetFetchResponsePartitions,
                    ),
                )
                for asked in body.groups
            ]
        )

    def _fetched(self, group_id: str, asked: Any, topic_kind: Any, partition_kind: Any) -> list[Any]:
        group = self._groups.get(group_id)
        offsets = {} if group is None else group.offsets
        wanted: list[tuple[str, bytes, list[int], int]] = []
        if asked is None:
            by_topic: dict[str, list[int]] = {}
            for name, number in offsets:
                by_topic.setdefault(name, []).append(number)
            for name, numbers in by_topic.items():
                served = self._broker.topics.get(name)
                wanted.append((name, ZERO_UUID if served is None else served.id, numbers, 0))
        else:
            for topic in asked:
                topic_id = getattr(topic, "topic_id", ZERO_UUID)
                served = self._broker.topics.find(topic.name, topic_id)
                name = topic.name or ("" if served is None else served.name)
                code = codes.UNKNOWN_TOPIC_ID if not name else 0
                wanted.append((name, topic_id, topic.partition_indexes, code))
        topics = []
        for name, topic_id, numbers, code in wanted:
            partitions = []
            for number in numbers:
                committed = offsets.get((name, number), Committed(-1, -1, ""))
                partitions.append(
                    partition_kind(
                        partition_index=number,
                        committed_offset=committed.offset,
                        committed_leader_epoch=committed.leader_epoch,
                        metadata=committed.metadata,
                        error_code=code,
                    )
                )
            described = topic_kind(name=name, partitions=partitions)
            if hasattr(described, "topic_id"):
                described.topic_id = topic_id
            topics.append(described)
        return topics

    # -------------------------------------------------------------- list, describe, delete

    def _list(self, request: Request, connection: Any) -> Message:
        body = request.body
        states = {state.lower() for state in body.states_filter}
        types = {kind.lower() for kind in body.types_filter}
        return ListGroupsResponse(
            groups=[
                ListGroupsResponse.ListedGroup(
                    group_id=group.id,
                    protocol_type=group.protocol_type or "",
                    group_state=group.state,
                    group_type="classic",
                )
                for group in self._groups.values()
                if (not states or group.state.lower() in states) and (not types or "classic" in types)
            ]
        )

    def _describe(self, request: Request, connection: Any) -> Message:
        body = request.body
        groups = []
        for group_id in body.groups:
            group = self._groups.get(group_id)
            described = DescribeGroupsResponse.DescribedGroup(
                group_id=group_id, error_message=None, members=[]
            )
            groups.append(described)
            if body.include_authorized_operations:
                described.authorized_operations = GROUP_OPERATIONS
            if group is None:
                described.group_state = DEAD
                if request.version >= 6:
                    described.error_code = codes.GROUP_ID_NOT_FOUND
                    described.error_message = f"Group {group_id} not found."
                continue
            is_stable = group.state == STABLE
            described.group_state, described.protocol_type = group.state, group.protocol_type or ""
            described.protocol_data = (group.protocol or "") if is_stable else ""
            described.members = [
                DescribeGroupsResponse.DescribedGroupMember(
                    member_id=member.id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    member_metadata=member.metadata(group.protocol) if is_stable else b"",
                    member_assignment=member.assignment if is_stable else b"",
                )
                for member in group.members.values()
            ]
        return DescribeGroupsResponse(groups=groups)

    def _delete(self, request: Request, connection: Any) -> Any:
        results = []
        for group_id in request.body.groups_names:
            result = DeleteGroupsResponse.DeletableGroupResult(group_id=group_id)
            results.append(result)
            group = self._groups.get(group_id)
            if group is None:
                result.error_code = codes.GROUP_ID_NOT_FOUND if group_id else codes.INVALID_GROUP_ID
            elif group.state != EMPTY:
                result.error_code = codes.NON_EMPTY_GROUP
            else:
                keys = [_offset_key(group_id, *at) for at in group.offsets]
                keys.append(encode_stored(GroupMetadataKey(group=group_id)))
                try:
                    self._store(group_id, [(key, None) for key in keys])
                    del self._groups[group_id]
                except LastwordError as error:
                    result.error_code = error.kafka_code
        return DeleteGroupsResponse(results=results)

    def _delete_offsets(self, request: Request, connection: Any) -> Any:
        body = request.body
        group = self._groups.get(body.group_id)
        if group is None:
            return OffsetDeleteResponse(
                error_code=codes.GROUP_ID_NOT_FOUND if body.group_id else codes.INVALID_GROUP_ID
            )
        if group.state != EMPTY and group.protocol_type != "consumer":
            return OffsetDeleteResponse(error_code=codes.NON_EMPTY_GROUP)
        subscribed = _subscribed(group)
        topics, gone = [], []
        for topic in body.topics:
            partitions: list[Any] = []
            topics.append(
                OffsetDeleteResponse.OffsetDeleteResponseTopic(name=topic.name, partitions=partitions)
            )
            for asked in topic.partitions:
                result = OffsetDeleteResponse.OffsetDeleteResponsePartition(
                    partition_index=asked.partition_index
                )
                partitions.append(result)
                if topic.name in subscribed:
                    result.error_code = codes.GROUP_SUBSCRIBED_TO_TOPIC
                elif (topic.name, asked.partition_index) in group.offsets:
                    gone.append((topic.name, asked.partition_index))
        stored = self._store(group.id, [(_offset_key(group.id, *at), None) for at in gone])
        for at in gone:
            del group.offsets[at]
        return self._answer_after(stored, OffsetDeleteResponse(topics=topics))


def _subscribed(group: Group) -> set[str]:
    """Return the topics that members of a group of consumers subscribe to."""
    topics: set[str] = set()
    for member in group.members.values():
        for _, metadata in member.protocols:
            try:
                topics.update(decode_stored("ConsumerProtocolSubscription", metadata).topics)
            except (MalformedMessageError, UnsupportedVersionError):
                continue
    return topics


def _offset_key(group: str, topic: str, partition: int) -> bytes:
    return encode_stored(OffsetCommitKey(group=group, topic=topic, partition=partition))


def _offset_record(
    group: str, topic: str, partition: int, committed: Committed, now_ms: int
) -> tuple[bytes, bytes | None]:
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=now_ms,
    )
    return _offset_key(group, topic, partition), encode_stored(value, OFFSET_VERSION)


def _join_error(code: int, member_id: str, version: int) -> Any:
    return JoinGroupResponse(
        error_code=code,
        generation_id=-1,
        protocol_type=None,
        protocol_name=None if version >= 7 else "",
        leader="",
        member_id=member_id,
        members=[],
    )
