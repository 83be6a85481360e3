"""Groups of the protocol of KIP-848: the coordinator assigns, and members reconcile by heartbeats.

```
subscriptions, topics ──changed──> group epoch + 1 ──> target assignment (of an assignor), the same epoch
each heartbeat moves its member towards the target:

  STABLE ──target is newer──> has to give up partitions? ──yes──> UNREVOKED ──its heartbeat lacks them──┐
     ^                                  │ no                                                            │
     │                                  v <─────────────────────────────────────────────────────────────┘
     └──all are free──────── the member's epoch is the target's <──an owner gave one up── UNRELEASED
```

A partition is assigned when its former owner has given it up, so it has one owner at most. A member that
does not give up its partitions within its rebalance timeout, or is silent for the session timeout, is
removed. A static member that leaves for a while has epoch -2 and keeps its partitions for its session.

Not served: groups in which members of both protocols are alive. A classic group becomes a group of this
protocol, and back, when it is empty.
"""

from __future__ import annotations

import base64
import logging
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from lastword.protocol import Request, codes, encode_stored, messages
from lastword.protocol.refusals import answer_with_rows
from lastword.server import consumer_group_state as state
from lastword.server.assignors import ASSIGNORS, Partition, Partitions
from lastword.server.consumer_group_state import (
    IS_STABLE,
    UNREVOKED,
    ConsumerGroup,
    ConsumerMember,
    GroupChange,
    Matches,
    Read,
    Records,
    by_topic,
    digest_of,
    epoch_record,
    member_tombstones,
    partitions_of,
    preferred,
    regex_key,
    rows_of,
    topics_of,
    with_current,
)
from lastword.server.coordinator import matching
from lastword.server.group_store import GROUP_OPERATIONS, Group, GroupStore, answer_of
from lastword.server.timers import NO_TIMER
from lastword.server.topics import Refused, Refusing

if TYPE_CHECKING:
    from lastword.server.context import Handlers, ServerContext
    from lastword.server.security import Peer

LEAVES, LEAVES_FOR_A_WHILE = -1, -2
"""Epochs of the heartbeat of a member that leaves, and of a static member that will be back."""
MOST_MEMBERS = 10_000
IsStale = Callable[[bytes, int], bool]
"""Says whether the epoch of a member is too old for a partition, by topic id and number."""
_log = logging.getLogger("lastword.server")
DYNAMIC = 1
"""Type of a member of this protocol in ConsumerGroupDescribe."""


class ConsumerGroups:
    """The handlers of the APIs of these groups."""

    def __init__(self, context: ServerContext, store: GroupStore) -> None:
        self._context = context
        self._store = store
        self._forgotten: set[str] = set()
        """Groups whose topic was deleted while they had members."""

    def handlers(self) -> Handlers:
        """Return the handlers by the name of the API."""
        return {"ConsumerGroupHeartbeat": self._heartbeat, "ConsumerGroupDescribe": self._describe}

    # -------------------------------------------------------------- heartbeat

    def _heartbeat(self, request: Request[messages.ConsumerGroupHeartbeatRequest], connection: Peer) -> Any:
        body = request.body
        _check(body, request.version)
        if body.member_epoch < 0:
            return self._leave(body)
        stale = self._stale_regexes(body)
        if not stale:
            return self._alive(request, connection, {})
        version, names = self._context.topics.version, [topic.name for topic in self._context.topics.all()]
        matches = self._context.in_pool(_matches, stale, names, version)

        def matched() -> Any:
            return self._alive(request, connection, matches.result())

        return self._context.then(matches, partial(answer_of, request, matched))

    def _stale_regexes(self, body: messages.ConsumerGroupHeartbeatRequest) -> list[str]:
        """Return the regular expressions whose topics have to be found before the heartbeat is handled."""
        group = self._store.get(body.group_id)
        known: Matches = {}
        used = {body.subscribed_topic_regex or ""}
        if isinstance(group, ConsumerGroup):
            known = group.regexes
            used |= {member.regex for member in group.members.values()}
        if used == {""}:
            return []
        self._context.topics.all()  # lists them again: a topic that Python created may match
        version = self._context.topics.version
        return [regex for regex in used if regex and (regex not in known or known[regex][1] != version)]

    def _alive(
        self, request: Request[messages.ConsumerGroupHeartbeatRequest], connection: Peer, matches: Matches
    ) -> Any:
        """Return the answer to the heartbeat of a member that joins or stays."""
        body = request.body
        joins = body.member_epoch == 0
        member_id = body.member_id or _new_id()
        owned = None if body.topic_partitions is None else partitions_of(body.topic_partitions)
        group, records = self._group_of(body.group_id, joins)
        if len(group.members) >= MOST_MEMBERS and member_id not in group.members:
            raise Refused(
                codes.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {MOST_MEMBERS} members.",
            )
        before, replaced = self._member_of(group, member_id, body, owned)
        member = _updated(before, request, connection)
        stored = None
        is_topic_changed = self._is_topic_changed(group)
        if joins or matches or is_topic_changed or member != before or not group.is_settled(before):
            change = GroupChange(group, before, replaced, member, matches)
            change.records[:0] = records
            if is_topic_changed or change.is_subscription_changed:
                version = self._context.topics.version
                change.read_topics(self._read(change.subscribed()), version)
            change.assign(self._context.clock.now_ms())
            member = change.reconcile(owned)
            stored = self._store.append(group.id, change.records)
            if self._store.get(group.id) is not group:
                self._store.add(group)
            change.apply()
            self._await_revocation(group, member)
        self._await_session(group, member)
        answer = messages.ConsumerGroupHeartbeatResponse(
            member_id=member.id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=self._settings.group_consumer_heartbeat_interval_ms,
        )
        is_full = (
            body.rebalance_timeout_ms != -1
            and (body.subscribed_topic_names is not None or body.subscribed_topic_regex is not None)
            and body.topic_partitions is not None
        )
        if joins or is_full or member.assigned.keys() != before.assigned.keys():
            response = messages.ConsumerGroupHeartbeatResponse
            answer.assignment = response.Assignment(
                topic_partitions=rows_of(response.TopicPartitions, member.assigned)
            )
        return self._store.answer_after(stored, answer)

    def _is_topic_changed(self, group: ConsumerGroup) -> bool:
        """Return whether topics that the group reads may have changed, or have been created."""
        topics = self._context.topics
        return any(topics.find(name) is not None for name in group.missing) or group.seen != topics.version

    @property
    def _settings(self) -> Any:
        return self._context.dirs.settings.instance

    def _group_of(self, group_id: str, joins: bool) -> tuple[ConsumerGroup, Records]:
        """Return the group of a heartbeat, and the records that delete the classic group in its place."""
        group = self._store.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group, []
        if group is None:
            if not joins and group_id in self._forgotten:
                text = f"Consumer group {group_id} was deleted with its topic. The member must rejoin."
                raise Refused(codes.UNKNOWN_MEMBER_ID, text)
            if not joins:
                raise Refused(codes.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
            return ConsumerGroup(group_id), []
        if not joins or group.group_type == "share" or (group.group_type == "streams" and not group.is_empty):
            raise Refused(codes.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        if not group.is_over and group.group_type != "streams":
            raise Refused(
                codes.GROUP_ID_NOT_FOUND,
                f"Cannot upgrade classic group {group_id} to consumer group because the online upgrade is "
                "disabled.",
            )
        return ConsumerGroup(group_id), group.tombstones()

    def _member_of(
        self,
        group: ConsumerGroup,
        member_id: str,
        body: messages.ConsumerGroupHeartbeatRequest,
        owned: Partitions | None,
    ) -> tuple[ConsumerMember, ConsumerMember | None]:
        """Return the member before the heartbeat, and the static member that it replaces."""
        if body.member_epoch:
            member = _member(group, member_id, body.instance_id)
            _check_epoch(member, body.member_epoch, owned)
            return member, None
        known = None if body.instance_id is None else group.instances.get(body.instance_id)
        if known is None:
            return group.members.get(member_id, ConsumerMember(member_id)), None
        old = group.members[known]
        if old.epoch != LEAVES_FOR_A_WHILE:
            raise Refused(
                codes.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {body.instance_id} cannot join the group "
                f"because the instance id is owned by {known} member.",
            )
        back = replace(old, id=member_id, epoch=0, previous_epoch=0, state=IS_STABLE, revoking=frozenset())
        return back, old

    def _read(self, subscribed: Iterable[str]) -> Read:
        """Return id and partitions of the topics that exist."""
        topics = {name: self._context.topics.find(name) for name in sorted(subscribed)}
        return {
            name: (topic.id, tuple(sorted(topic.directories)))
            for name, topic in topics.items()
            if topic is not None
        }

    # -------------------------------------------------------------- members that go

    def _leave(self, body: messages.ConsumerGroupHeartbeatRequest) -> Any:
        group = _consumer_group(self._store.get(body.group_id), body.group_id)
        answer = messages.ConsumerGroupHeartbeatResponse(
            member_id=body.member_id, member_epoch=body.member_epoch
        )
        member = _member(group, body.member_id, body.instance_id)
        if body.member_epoch == LEAVES:
            return self._store.answer_after(self._remove(group, member), answer)
        away = replace(
            member,
            epoch=LEAVES_FOR_A_WHILE,
            state=IS_STABLE,
            assigned=dict.fromkeys(member.assigned, 0),
            revoking=frozenset(),
        )
        key = messages.ConsumerGroupCurrentMemberAssignmentKey(group_id=group.id, member_id=member.id)
        stored = self._store.append(group.id, [(encode_stored(key), away.current())])
        group.put(away)
        self._await_revocation(group, away)
        return self._store.answer_after(stored, answer)

    def remove(self, group_id: str, member_id: str, instance_id: str | None) -> bool:
        """Remove a member that LeaveGroup names. Return whether the group is of this protocol.

        Raises:
            Refused: The group has no such member.
        """
        group = self._store.get(group_id)
        if not isinstance(group, ConsumerGroup):
            return False
        if instance_id is not None:
            member_id = member_id or group.instances.get(instance_id, "")
        self._remove(group, _member(group, member_id, instance_id))
        return True

    def _remove(self, group: ConsumerGroup, member: ConsumerMember) -> Any:
        """Remove a member, and raise the epoch of the group."""
        records = member_tombstones(group.id, member.id)
        others = [other for other in group.members.values() if other.id != member.id]
        regexes = {other.regex for other in others}
        gone = [regex for regex in group.regexes if regex not in regexes]
        records += [(regex_key(group.id, regex), None) for regex in gone]
        subscribed = {topic for other in others for topic in topics_of(other, group.regexes)}
        read = self._read(subscribed)
        digest = digest_of(read)
        records.append(epoch_record(group.id, group.epoch + 1, digest))
        stored = self._store.append(group.id, records)
        group.drop(member.id)
        for regex in gone:
            del group.regexes[regex]
        group.epoch += 1
        group.read, group.digest, group.seen = read, digest, self._context.topics.version
        group.missing = frozenset(subscribed - read.keys())
        return stored

    def _await_session(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        group.sessions[member.id] = self._context.timers.again(
            group.sessions.get(member.id, NO_TIMER),
            self._settings.group_consumer_session_timeout_ms,
            lambda: self._expired(group, member.id, None),
        )

    def _await_revocation(self, group: ConsumerGroup, member: ConsumerMember) -> None:
        if member.state != UNREVOKED:
            group.revocations.pop(member.id, NO_TIMER).cancel()
        elif member.id not in group.revocations:
            group.revocations[member.id] = self._context.timers.after(
                member.rebalance_ms, lambda: self._expired(group, member.id, member.epoch)
            )

    def _expired(self, group: ConsumerGroup, member_id: str, epoch: int | None) -> None:
        """Remove a member that was silent, or that has not given up the partitions of an epoch."""
        member = group.members.get(member_id)
        if epoch is not None:
            group.revocations.pop(member_id, None)
        if self._store.get(group.id) is group and member is not None and epoch in (None, member.epoch):
            try:
                self._remove(group, member)
            except Refused as refused:
                _log.error("group %s: %s was not removed: %s", group.id, member_id, refused.message)
                self._await_session(group, member)

    def forget(self, group: ConsumerGroup) -> None:
        """Have the members of a group join again: its topic was deleted.

        A heartbeat to a group that does not exist is answered with GROUP_ID_NOT_FOUND, after which a client
        gives up.
        """
        if group.members:
            self._forgotten.add(group.id)

    # -------------------------------------------------------------- load

    def load(self, of: Any, stored: Any) -> None:
        """Load a record of a group that was read from the topic."""
        name = type(of).__name__
        group = self._store.get(of.group_id)
        if not isinstance(group, ConsumerGroup):
            group = self._store.add(ConsumerGroup(of.group_id))
        if name == state.EPOCH:
            group.epoch, group.digest = stored.epoch, stored.metadata_hash
        elif name == state.MEMBER:
            self._load_member(group, of.member_id, stored)
        elif name == state.TARGET_EPOCH:
            group.target_epoch = stored.assignment_epoch
        elif name == state.TARGET:
            group.targets[of.member_id] = partitions_of(stored.topic_partitions)
        elif name == state.CURRENT:
            group.put(with_current(group.members.get(of.member_id, ConsumerMember(of.member_id)), stored))
        elif name == state.REGEX:
            group.regexes[of.regular_expression] = frozenset(stored.topics), -1

    def _load_member(self, group: ConsumerGroup, member_id: str, stored: Any) -> None:
        before = group.members.get(member_id, ConsumerMember(member_id))
        group.put(
            replace(
                before,
                instance_id=stored.instance_id,
                rack_id=stored.rack_id,
                client_id=stored.client_id,
                client_host=stored.client_host,
                topics=frozenset(stored.subscribed_topic_names),
                regex=stored.subscribed_topic_regex or "",
                rebalance_ms=stored.rebalance_timeout_ms,
                assignor=stored.server_assignor,
            )
        )

    def loaded(self) -> None:
        """Start the sessions of all members that were read."""
        for group in self._store.all():
            if isinstance(group, ConsumerGroup):
                for member in list(group.members.values()):
                    self._await_session(group, member)
                    self._await_revocation(group, member)

    # -------------------------------------------------------------- describe

    def _describe(self, request: Request[messages.ConsumerGroupDescribeRequest], connection: Peer) -> Any:
        answer = answer_with_rows(request)
        for result in answer.groups:
            group_id = result.group_id
            with Refusing(result, only=Refused):
                group = self._store.get(group_id)
                if not group_id:
                    raise Refused(codes.INVALID_GROUP_ID, "")
                self._describe_group(_consumer_group(group, group_id), result)
                if request.body.include_authorized_operations:
                    result.authorized_operations = GROUP_OPERATIONS
        return answer

    def _describe_group(self, group: ConsumerGroup, result: Any) -> None:
        response = messages.ConsumerGroupDescribeResponse
        topic_names = {topic.id: topic.name for topic in self._context.topics.all()}
        topic_names |= {topic_id: name for name, (topic_id, _) in group.read.items()}  # also `<topic>@newest`

        def assignment(partitions: Iterable[Partition]) -> Any:
            return response.Assignment(
                topic_partitions=[
                    response.TopicPartitions(
                        topic_id=topic_id, topic_name=topic_names[topic_id], partitions=numbers
                    )
                    for topic_id, numbers in by_topic(partitions).items()
                    if topic_id in topic_names
                ]
            )

        result.group_state, result.group_epoch = group.state, group.epoch
        result.assignment_epoch, result.assignor_name = group.target_epoch, preferred(group.members.values())
        result.members = [
            response.Member(
                member_id=member.id,
                instance_id=member.instance_id,
                rack_id=member.rack_id,
                member_epoch=member.epoch,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=sorted(member.topics),
                subscribed_topic_regex=member.regex,
                assignment=assignment((*member.assigned, *member.revoking)),
                target_assignment=assignment(group.targets.get(member.id, ())),
                member_type=DYNAMIC,
            )
            for member in group.members.values()
        ]


def _updated(
    member: ConsumerMember, request: Request[messages.ConsumerGroupHeartbeatRequest], connection: Peer
) -> ConsumerMember:
    """Return the member with what the heartbeat states; what is null has not changed."""
    body, regex = request.body, request.body.subscribed_topic_regex
    return replace(
        member,
        instance_id=member.instance_id if body.instance_id is None else body.instance_id,
        rack_id=member.rack_id if body.rack_id is None else body.rack_id,
        client_id=request.client_id or "",
        client_host="/" + connection.address.rpartition(":")[0],
        topics=member.topics
        if body.subscribed_topic_names is None
        else frozenset(body.subscribed_topic_names),
        regex=member.regex if regex is None else regex,
        rebalance_ms=member.rebalance_ms if body.rebalance_timeout_ms == -1 else body.rebalance_timeout_ms,
        assignor=member.assignor if body.server_assignor is None else body.server_assignor,
    )


def _matches(regexes: list[str], topics: list[str], version: int) -> Matches:
    """Return the topics that match each regular expression."""
    return {regex: (matching("SubscribedTopicRegex", regex, topics), version) for regex in regexes}


def _consumer_group(group: Group | None, group_id: str) -> ConsumerGroup:
    """Return a group of this protocol, or raise Refused."""
    if not isinstance(group, ConsumerGroup):
        text = "not found" if group is None else "is not a consumer group"
        raise Refused(codes.GROUP_ID_NOT_FOUND, f"Group {group_id} {text}.")
    return group


def check_commit(group: ConsumerGroup, request: Request[Any], stale: int) -> IsStale | None:
    """Refuse the commit of another than a member.

    Args:
        group: The group.
        request: OffsetCommit or TxnOffsetCommit.
        stale: The error if the member's epoch is too high.

    Returns:
        A function that says whether the member's epoch is too old for a partition; None: for none.
    """
    body, epoch = request.body, request.body.generation_id_or_member_epoch
    is_transactional = request.api.name == "TxnOffsetCommit"
    is_anonymous = not body.member_id and body.group_instance_id is None
    if epoch < 0 and (is_anonymous if is_transactional else group.is_empty):
        return None
    member = _member(group, body.member_id or "", None)
    if not is_transactional and request.version < 9:
        raise Refused(codes.UNSUPPORTED_VERSION, "")
    if epoch == member.epoch:
        return None
    if epoch > member.epoch:
        raise Refused(stale, "")
    # The member has not heard of its new epoch yet. It has had these partitions since before its old one.
    assigned = member.assigned
    return lambda topic_id, number: not 0 <= assigned.get((topic_id, number), epoch + 1) <= epoch


def check_fetch(group: ConsumerGroup, body: messages.OffsetFetchRequest.OffsetFetchRequestGroup) -> None:
    """Refuse the fetch of offsets by a member of another epoch."""
    if body.member_id or body.member_epoch >= 0:
        member = _member(group, body.member_id or "", None)
        if body.member_epoch != member.epoch:
            raise Refused(codes.STALE_MEMBER_EPOCH, "")


def _new_id() -> str:
    """Return an id for a member, as Kafka writes a UUID."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


# ---------------------------------------------------------------- refusals


def _invalid(text: str) -> Refused:
    return Refused(codes.INVALID_REQUEST, text)


def _check(body: messages.ConsumerGroupHeartbeatRequest, version: int) -> None:
    """Refuse a heartbeat that no member sends."""
    epoch = body.member_epoch
    if not body.member_id.strip() and (version >= 1 or epoch > 0):
        raise _invalid("MemberId can't be empty.")
    for value, name in (
        (body.group_id, "GroupId"),
        (body.instance_id, "InstanceId"),
        (body.rack_id, "RackId"),
    ):
        if value is not None and not value.strip():
            raise _invalid(f"{name} can't be empty.")
    if epoch == 0:
        if body.rebalance_timeout_ms == -1:
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        if body.topic_partitions is None or body.topic_partitions:
            raise _invalid("TopicPartitions must be empty when (re-)joining.")
        if body.subscribed_topic_names is None and body.subscribed_topic_regex is None:
            raise _invalid(
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
            )
    elif epoch == LEAVES_FOR_A_WHILE:
        if body.instance_id is None:
            raise _invalid("InstanceId can't be null.")
    elif epoch < LEAVES_FOR_A_WHILE:
        raise _invalid("MemberEpoch is invalid.")
    if body.server_assignor is not None and body.server_assignor not in ASSIGNORS:
        raise Refused(
            codes.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {body.server_assignor} is not supported. Supported assignors: "
            f"{', '.join(ASSIGNORS)}.",
        )


def _check_epoch(member: ConsumerMember, epoch: int, owned: Partitions | None) -> None:
    """Refuse another epoch than the member's.

    The epoch before is accepted if the member has nothing that it may not have: then the answer with the new
    epoch was lost.
    """
    if epoch == member.epoch:
        return
    is_previous = epoch < member.epoch and epoch == member.previous_epoch
    if is_previous and owned is not None and owned <= member.assigned.keys():
        return
    word = "greater" if epoch > member.epoch else "smaller"
    raise Refused(
        codes.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {word} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({member.epoch}). The member must abandon all its partitions and rejoin.",
    )


def _member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember:
    """Return the member that a request names, or raise Refused."""
    if instance_id is not None:
        known = group.instances.get(instance_id)
        if known is None:
            raise Refused(codes.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
        if known != member_id:
            raise Refused(
                codes.FENCED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} was fenced by member {known}.",
            )
    elif member_id not in group.members:
        text = f"Member {member_id} is not a member of group {group.id}."
        raise Refused(codes.UNKNOWN_MEMBER_ID, text)
    return group.members[member_id]
