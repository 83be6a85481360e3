"""Groups of the classic protocol: members share a topic by the plan of the member that leads.

```
Empty ──join──> PreparingRebalance ──all joined, or time is up──> CompletingRebalance ──leader syncs──> Stable
  ^                  ^  │ the last member leaves                        │ join, leave, expiry            │
  └──────────────────┼──┘                                               │                                │
                     └──────────────────────────────────────────────────┴────────────────────────────────┘
```

A member that is silent for its session timeout leaves the group. A dynamic member gets its id in a first
answer and joins with it, so that a client that gives up leaves nothing behind. A static member (with an
instance id) takes the place of the member that had its instance id. The members of a stable group are one
record of `__consumer_offsets`.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lastword.errors import MalformedMessageError, UnsupportedVersionError
from lastword.protocol import Request, codes, decode_stored, encode_stored, messages
from lastword.protocol.refusals import answer_with_rows
from lastword.protocol.schemas import Message
from lastword.server.context import failure
from lastword.server.group_store import GROUP_OPERATIONS, Committed, Group, GroupStore
from lastword.server.timers import NO_TIMER, Timer
from lastword.server.topics import Refused, Refusing

if TYPE_CHECKING:
    from lastword.server.consumer_groups import ConsumerGroups
    from lastword.server.context import Handlers, ServerContext
    from lastword.server.security import Peer

EMPTY, PREPARING, COMPLETING, STABLE, DEAD = (
    "Empty",
    "PreparingRebalance",
    "CompletingRebalance",
    "Stable",
    "Dead",
)
SESSION_MS = (6_000, 1_800_000)
"""Least and largest session timeout, Kafka's defaults."""
GROUP_VERSION = 3
"""Version of the value that is written, which every Kafka since 2.3 reads."""
MOST_MEMBERS = 10_000
NAME_CHARACTERS = 1000
"""Most characters of a client id or an instance id in the id of a member."""
_log = logging.getLogger("lastword.server")


@dataclass(eq=False)
class ClassicMember:
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
    session: Timer = NO_TIMER

    def refuse_waiting(self, code: int) -> None:
        """Answer the requests of the member that wait for the others."""
        _answer(self.joining, _join_error(code, self.id, self.join_version))
        _answer(self.syncing, messages.SyncGroupResponse(error_code=code))

    def metadata(self, protocol: str | None) -> bytes:
        """Return the member's metadata for a protocol."""
        return next((data for name, data in self.protocols if name == protocol), b"")


@dataclass(eq=False)
class ClassicGroup(Group):
    """A group of the classic protocol. `pending` has the ids that were given and have not joined yet."""

    state: str = EMPTY
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    generation: int = 0
    changed_ms: int = -1
    members: dict[str, ClassicMember] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)
    pending: dict[str, Timer] = field(default_factory=dict)
    timer: Timer = NO_TIMER

    group_type = "classic"

    @property
    def is_empty(self) -> bool:
        """Return whether the group has no member."""
        return self.state == EMPTY

    @property
    def is_over(self) -> bool:
        """Return whether the group can be deleted when it has no offsets."""
        return self.state == EMPTY and not self.pending

    def subscribed(self) -> set[str] | None:
        """Return the topics that the members subscribe to; None if they are not known."""
        if self.protocol_type != "consumer":
            return None
        topics: set[str] = set()
        for member in self.members.values():
            try:
                topics.update(
                    decode_stored("ConsumerProtocolSubscription", member.metadata(self.protocol)).topics
                )
            except (MalformedMessageError, UnsupportedVersionError):
                return None
        return topics

    def retained_from(self, committed: Committed, subscribed: set[str] | None) -> int | None:
        """Return the time from which the retention of an offset counts; None: it does not expire now."""
        if self.protocol_type is None:  # offsets without members
            return committed.committed_ms
        if self.state == EMPTY:
            return committed.committed_ms if self.changed_ms < 0 else self.changed_ms
        if self.state == STABLE and subscribed is not None:
            return committed.committed_ms
        return None

    def tombstones(self) -> list[tuple[bytes, bytes | None]]:
        """Return the records that delete the group without its offsets."""
        return [(encode_stored(messages.GroupMetadataKey(group=self.id)), None)]

    def supports(self, protocol_type: str, protocols: list[tuple[str, bytes]]) -> bool:
        """Return whether a member with these protocols can be in the group."""
        if not self.members:
            return bool(protocol_type and protocols)
        common = set(self.common())
        return protocol_type == self.protocol_type and any(name in common for name, _ in protocols)

    def common(self) -> list[str]:
        """Return the protocols that all members have."""
        first, *others = [dict(member.protocols) for member in self.members.values()]
        return [name for name in first if all(name in other for other in others)]

    def chosen_protocol(self) -> str:
        """Return the protocol that all members have and most of them prefer."""
        votes = dict.fromkeys(self.common(), 0)
        for member in self.members.values():
            first = next(name for name, _ in member.protocols if name in votes)
            votes[first] += 1
        return max(votes, key=lambda name: votes[name])

    def end(self) -> None:
        """Drop all members and timers."""
        sessions = (member.session for member in self.members.values())
        for timer in (self.timer, *sessions, *self.pending.values()):
            timer.cancel()
        self.members.clear()
        self.instances.clear()
        self.pending.clear()


class ClassicGroups:
    """The handlers of the APIs of classic groups."""

    def __init__(self, context: ServerContext, store: GroupStore, consumers: ConsumerGroups) -> None:
        self._context = context
        self._store = store
        self._consumers = consumers

    def handlers(self) -> Handlers:
        """Return the handlers by the name of the API."""
        return {
            "JoinGroup": self._join,
            "SyncGroup": self._sync,
            "Heartbeat": self._heartbeat,
            "LeaveGroup": self._leave,
            "DescribeGroups": self._describe,
        }

    # -------------------------------------------------------------- load and store

    def load(self, group_id: str, stored: Any) -> None:
        """Take a group that was read from the topic."""
        group = self._group(group_id)
        group.protocol_type, group.generation = stored.protocol_type, stored.generation
        group.protocol, group.leader = stored.protocol, stored.leader
        group.changed_ms = stored.current_state_timestamp
        for saved in stored.members:
            member = ClassicMember(
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

    def _group(self, group_id: str) -> ClassicGroup:
        """Return a classic group, which is new if there is none.

        Raises:
            Refused: The group is of another protocol.
        """
        group = self._store.get(group_id)
        if group is None:
            group = self._store.add(ClassicGroup(group_id))
        if not isinstance(group, ClassicGroup):
            if not group.is_empty:
                raise Refused(codes.INCONSISTENT_GROUP_PROTOCOL, "")
            self._store.append(group_id, group.tombstones())
            group = self._store.add(ClassicGroup(group_id))
        return group

    def _known(self, group_id: str) -> ClassicGroup | None:
        group = self._store.get(group_id)
        return group if isinstance(group, ClassicGroup) else None

    def _store_group(self, group: ClassicGroup) -> asyncio.Future[Any] | None:
        value = messages.GroupMetadataValue(
            protocol_type=group.protocol_type or "",
            generation=group.generation,
            protocol=group.protocol,
            leader=group.leader,
            current_state_timestamp=group.changed_ms,
            members=[
                messages.GroupMetadataValue.MemberMetadata(
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
        key = encode_stored(messages.GroupMetadataKey(group=group.id))
        return self._store.append(group.id, [(key, encode_stored(value, GROUP_VERSION))])

    # -------------------------------------------------------------- join

    def _join(self, request: Request[messages.JoinGroupRequest], connection: Peer) -> Any:
        body = request.body
        answer: asyncio.Future[Any] = self._context.loop.create_future()
        try:
            if self._context.is_closing:
                raise Refused(codes.NOT_COORDINATOR, "")
            self._join_group(request, connection, answer)
        except Refused as refused:
            return _join_error(refused.code, refused.message or body.member_id, request.version)
        return answer.result() if answer.done() else answer

    def _join_group(
        self, request: Request[messages.JoinGroupRequest], connection: Peer, answer: asyncio.Future[Any]
    ) -> None:
        body = request.body
        if not body.group_id:
            raise Refused(codes.INVALID_GROUP_ID, "")
        if not SESSION_MS[0] <= body.session_timeout_ms <= SESSION_MS[1]:
            raise Refused(codes.INVALID_SESSION_TIMEOUT, "")
        known = self._known(body.group_id)
        if known is None and body.member_id:
            raise Refused(codes.UNKNOWN_MEMBER_ID, "")
        protocols = [(protocol.name, bytes(protocol.metadata)) for protocol in body.protocols]
        group = self._group(body.group_id)
        if not group.supports(body.protocol_type, protocols):
            raise Refused(codes.INCONSISTENT_GROUP_PROTOCOL, "")
        is_known = body.member_id in group.members or body.member_id in group.pending
        if len(group.members) + len(group.pending) >= MOST_MEMBERS and not is_known:
            raise Refused(codes.GROUP_MAX_SIZE_REACHED, "")
        rebalance_ms = body.rebalance_timeout_ms if request.version >= 1 else body.session_timeout_ms
        member = ClassicMember(
            body.member_id,
            body.group_instance_id,
            request.client_id or "",
            "/" + connection.address.rpartition(":")[0],
            body.session_timeout_ms,
            rebalance_ms,
            body.protocol_type,
            protocols,
            request.version,
        )
        if not body.member_id:
            self._join_new(group, member, answer)
        else:
            self._join_known(group, member, answer)

    def _join_new(self, group: ClassicGroup, member: ClassicMember, answer: asyncio.Future[Any]) -> None:
        name = (member.instance_id or member.client_id)[:NAME_CHARACTERS]
        member.id = f"{name}-{uuid.uuid4()}"
        if member.instance_id is not None:
            replaced = group.instances.get(member.instance_id)
            if replaced is not None:
                self._replace_static(group, group.members[replaced], member, answer)
            else:
                self._add(group, member, answer)
        elif member.join_version >= 4:  # the member joins with the id that it gets here
            group.pending[member.id] = self._context.timers.after(
                member.session_ms, lambda: self._pending_expired(group, member.id)
            )
            raise Refused(codes.MEMBER_ID_REQUIRED, member.id)
        else:
            self._add(group, member, answer)

    def _join_known(self, group: ClassicGroup, member: ClassicMember, answer: asyncio.Future[Any]) -> None:
        pending = group.pending.pop(member.id, None)
        if pending is not None:
            pending.cancel()
            self._add(group, member, answer)
            return
        known = self._member(group, member.id, member.instance_id)
        changed = known.protocols != member.protocols
        follows = group.state == STABLE and known.id != group.leader
        if not changed and (follows or group.state == COMPLETING):
            self._keep_alive(group, known)
            answer.set_result(self._joined(group, known))
            return
        known.protocols, known.session_ms = member.protocols, member.session_ms
        known.rebalance_ms, known.join_version = member.rebalance_ms, member.join_version
        self._await_join(known, answer)
        self._rebalance(group)

    def _replace_static(
        self, group: ClassicGroup, old: ClassicMember, member: ClassicMember, answer: asyncio.Future[Any]
    ) -> None:
        """Let a static member that was started again take the place of its former self."""
        old.refuse_waiting(codes.FENCED_INSTANCE_ID)
        old.session.cancel()
        group.members = {
            (member.id if key == old.id else key): (member if key == old.id else value)
            for key, value in group.members.items()
        }
        group.instances[member.instance_id or ""] = member.id
        leads = group.leader == old.id
        if leads:
            group.leader = member.id
        member.assignment = old.assignment
        # Its metadata may differ: a consumer puts the generation and the partitions that it had in it.
        if group.state == STABLE and group.chosen_protocol() == group.protocol:
            self._keep_alive(group, member)
            self._store_group(group)
            response = self._joined(group, member)
            response.skip_assignment = leads and member.join_version >= 9
            if leads and not response.skip_assignment:  # the answer must not name it as leader
                response.leader, response.members = old.id, []
            answer.set_result(response)
            return
        self._await_join(member, answer)
        self._rebalance(group)

    def _add(self, group: ClassicGroup, member: ClassicMember, answer: asyncio.Future[Any]) -> None:
        if not group.members:
            group.protocol_type = member.protocol_type
        group.members[member.id] = member
        if member.instance_id is not None:
            group.instances[member.instance_id] = member.id
        if group.leader is None:
            group.leader = member.id
        self._await_join(member, answer)
        self._rebalance(group)

    def _await_join(self, member: ClassicMember, answer: asyncio.Future[Any]) -> None:
        _answer(member.joining, _join_error(codes.UNKNOWN_MEMBER_ID, member.id, member.join_version))
        member.joining = answer
        member.session.cancel()

    def _rebalance(self, group: ClassicGroup) -> None:
        """Begin a rebalance, or see whether the one that is under way is complete."""
        if group.state != PREPARING:
            if group.state == COMPLETING:
                self._fail_syncs(group, codes.REBALANCE_IN_PROGRESS)
            group.state = PREPARING
            group.timer.cancel()
            self._start_rebalance_timer(group)
        self._complete_if_joined(group)

    def _start_rebalance_timer(self, group: ClassicGroup) -> None:
        most = max((member.rebalance_ms for member in group.members.values()), default=0)
        group.timer = self._context.timers.after(most, lambda: self._complete_join(group))

    def _complete_if_joined(self, group: ClassicGroup) -> None:
        if not group.pending and all(member.joining is not None for member in group.members.values()):
            self._complete_join(group)

    def _complete_join(self, group: ClassicGroup) -> None:
        """End the first half of a rebalance: answer the joins of those who came, remove the others."""
        if group.state != PREPARING:
            return
        group.timer.cancel()
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
        group.changed_ms = self._context.clock.now_ms()
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
            _answer(answer, self._joined(group, member))
        most = max(member.rebalance_ms for member in group.members.values())
        group.timer = self._context.timers.after(most, lambda: self._sync_expired(group))

    def _emptied(self, group: ClassicGroup) -> None:
        group.state, group.protocol, group.leader = EMPTY, None, None
        try:
            self._store_group(group)
        except Refused as refused:  # after a restart the sessions of the members end again
            _log.error("group %s: %s", group.id, refused.message)

    def _sync_expired(self, group: ClassicGroup) -> None:
        """Remove the members that did not sync in time."""
        if group.state == COMPLETING:
            for member in list(group.members.values()):
                if member.syncing is None:
                    self._drop(group, member)
            self._rebalance(group)

    def _joined(self, group: ClassicGroup, member: ClassicMember) -> Any:
        leads = member.id == group.leader
        return messages.JoinGroupResponse(
            generation_id=group.generation,
            protocol_type=group.protocol_type,
            protocol_name=group.protocol,
            leader=group.leader or "",
            member_id=member.id,
            members=[
                messages.JoinGroupResponse.JoinGroupResponseMember(
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

    def _sync(self, request: Request[messages.SyncGroupRequest], connection: Peer) -> Any:
        body = request.body
        if self._context.is_closing:
            raise Refused(codes.NOT_COORDINATOR, "")
        if request.version >= 5 and (body.protocol_type is None or body.protocol_name is None):
            raise Refused(codes.INCONSISTENT_GROUP_PROTOCOL, "")
        group, member = self._current(body)
        if request.version >= 5 and (
            body.protocol_type != group.protocol_type or body.protocol_name != group.protocol
        ):
            raise Refused(codes.INCONSISTENT_GROUP_PROTOCOL, "")
        if group.state == PREPARING:
            raise Refused(codes.REBALANCE_IN_PROGRESS, "")
        if group.state == STABLE:
            self._keep_alive(group, member)
            return self._synced(group, member)
        _answer(member.syncing, messages.SyncGroupResponse(error_code=codes.UNKNOWN_MEMBER_ID))
        member.syncing = answer = self._context.loop.create_future()
        self._keep_alive(group, member)
        if member.id == group.leader:
            assigned = {given.member_id: bytes(given.assignment) for given in body.assignments}
            for other in group.members.values():
                other.assignment = assigned.get(other.id, b"")
            group.state = STABLE
            group.changed_ms = self._context.clock.now_ms()
            group.timer.cancel()
            generation = group.generation

            def stable(done: asyncio.Future[Any] | None = None) -> None:
                if done is not None and failure(done) is not None:
                    self._fail_syncs(group, codes.NOT_COORDINATOR)
                elif group.generation == generation:
                    for other in group.members.values():
                        waiting, other.syncing = other.syncing, None
                        self._keep_alive(group, other)
                        _answer(waiting, self._synced(group, other))

            try:
                stored = self._store_group(group)
            except Refused as refused:
                self._fail_syncs(group, refused.code)
                self._rebalance(group)
            else:
                if stored is None:
                    stable()
                else:
                    stored.add_done_callback(stable)
        return answer.result() if answer.done() else answer

    def _synced(self, group: ClassicGroup, member: ClassicMember) -> Message:
        return messages.SyncGroupResponse(
            protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=member.assignment
        )

    def _fail_syncs(self, group: ClassicGroup, code: int) -> None:
        for member in group.members.values():
            answer, member.syncing = member.syncing, None
            if answer is not None and not answer.done():
                answer.set_result(messages.SyncGroupResponse(error_code=code))
                self._keep_alive(group, member)

    def _heartbeat(self, request: Request[messages.HeartbeatRequest], connection: Peer) -> Message:
        group, member = self._current(request.body)
        self._keep_alive(group, member)
        if group.state == PREPARING:
            raise Refused(codes.REBALANCE_IN_PROGRESS, "")
        return messages.HeartbeatResponse()

    def _leave(self, request: Request[messages.LeaveGroupRequest], connection: Peer) -> Message:
        body = request.body
        if not body.group_id:
            raise Refused(codes.INVALID_GROUP_ID, "")
        leaving = (
            [(member.member_id, member.group_instance_id) for member in body.members]
            if request.version >= 3
            else [(body.member_id, None)]
        )
        results = []
        group = self._known(body.group_id)
        changed = False
        for member_id, instance_id in leaving:
            result = messages.LeaveGroupResponse.MemberResponse(
                member_id=member_id, group_instance_id=instance_id
            )
            results.append(result)
            with Refusing(result, text=False, only=Refused):
                if self._consumers.remove(body.group_id, member_id, instance_id):
                    continue
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
        if changed and group is not None:
            self._after_loss(group)
        if request.version < 3:
            return messages.LeaveGroupResponse(error_code=results[0].error_code if results else 0)
        return messages.LeaveGroupResponse(members=results)

    def _current(
        self, body: messages.SyncGroupRequest | messages.HeartbeatRequest
    ) -> tuple[ClassicGroup, ClassicMember]:
        """Return the group and the member of a request of a generation."""
        if not body.group_id:
            raise Refused(codes.INVALID_GROUP_ID, "")
        group = self._known(body.group_id)
        if group is None:
            raise Refused(codes.UNKNOWN_MEMBER_ID, "")
        member = self._member(group, body.member_id, body.group_instance_id)
        if body.generation_id != group.generation:
            raise Refused(codes.ILLEGAL_GENERATION, "")
        return group, member

    def _member(self, group: ClassicGroup, member_id: str, instance_id: str | None) -> ClassicMember:
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

    def _keep_alive(self, group: ClassicGroup, member: ClassicMember) -> None:
        """Begin the session of a member again. A member that waits for an answer sends no heartbeats."""
        waits = member.joining is not None or member.syncing is not None
        if not waits and member.id in group.members:
            member.session = self._context.timers.again(
                member.session, member.session_ms, lambda: self._session_expired(group, member)
            )
        else:
            member.session.cancel()

    def _session_expired(self, group: ClassicGroup, member: ClassicMember) -> None:
        if group.members.get(member.id) is member:
            self._drop(group, member)
            self._after_loss(group)

    def _pending_expired(self, group: ClassicGroup, member_id: str) -> None:
        if group.pending.pop(member_id, None) is not None:
            self._after_loss(group)

    def _after_loss(self, group: ClassicGroup) -> None:
        if group.state in (STABLE, COMPLETING):
            self._rebalance(group)
        elif group.state == PREPARING:
            self._complete_if_joined(group)

    def _drop(self, group: ClassicGroup, member: ClassicMember) -> None:
        """Remove a member; its unanswered requests are answered."""
        del group.members[member.id]
        if member.instance_id is not None and group.instances.get(member.instance_id) == member.id:
            del group.instances[member.instance_id]
        if group.leader == member.id:
            group.leader = next(iter(group.members), None)
        member.session.cancel()
        member.refuse_waiting(codes.UNKNOWN_MEMBER_ID)

    def answer_all(self) -> None:
        """Answer every request that waits: the server closes."""
        for group in self._store.all():
            for member in group.members.values() if isinstance(group, ClassicGroup) else ():
                member.refuse_waiting(codes.NOT_COORDINATOR)

    # -------------------------------------------------------------- describe

    def _describe(self, request: Request[messages.DescribeGroupsRequest], connection: Peer) -> Any:
        answer = answer_with_rows(request)
        for described in answer.groups:
            group_id = described.group_id
            with Refusing(described, only=Refused):
                group = self._known(group_id)
                if request.body.include_authorized_operations:
                    described.authorized_operations = GROUP_OPERATIONS
                if group is not None:
                    self._describe_group(group, described)
                    continue
                described.group_state = DEAD
                if request.version >= 6:
                    text = "not found" if self._store.get(group_id) is None else "is not a classic group"
                    raise Refused(codes.GROUP_ID_NOT_FOUND, f"Group {group_id} {text}.")
        return answer

    def _describe_group(self, group: ClassicGroup, described: Any) -> None:
        is_stable = group.state == STABLE
        described.group_state, described.protocol_type = group.state, group.protocol_type or ""
        described.protocol_data = (group.protocol or "") if is_stable else ""
        described.members = [
            messages.DescribeGroupsResponse.DescribedGroupMember(
                member_id=member.id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(group.protocol) if is_stable else b"",
                member_assignment=member.assignment if is_stable else b"",
            )
            for member in group.members.values()
        ]

    # -------------------------------------------------------------- offsets

    def check_commit(self, group: ClassicGroup, body: Any, *, is_transactional: bool) -> None:
        """Refuse the commit of a member of another generation; count one without a transaction as alive.

        `body`: an OffsetCommitRequest, or a TxnOffsetCommitRequest.
        """
        generation = body.generation_id_or_member_epoch
        is_anonymous = generation < 0 and not body.member_id and body.group_instance_id is None
        if (generation < 0 and group.state == EMPTY) or (is_anonymous and is_transactional):
            return
        if is_anonymous:
            raise Refused(codes.UNKNOWN_MEMBER_ID, "")
        member = self._member(group, body.member_id, body.group_instance_id)
        if generation != group.generation:
            raise Refused(codes.ILLEGAL_GENERATION, "")
        if is_transactional:
            return
        if group.state == COMPLETING:
            raise Refused(codes.REBALANCE_IN_PROGRESS, "")
        self._keep_alive(group, member)


def _answer(waiting: asyncio.Future[Any] | None, answer: Any) -> None:
    """Answer a request that waits, if there is one."""
    if waiting is not None and not waiting.done():
        waiting.set_result(answer)


def _join_error(code: int, member_id: str, version: int) -> Any:
    return messages.JoinGroupResponse(
        error_code=code, protocol_name=None if version >= 7 else "", member_id=member_id
    )
