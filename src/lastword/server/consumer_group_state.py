"""The state of a group of KIP-848, its records, and the change that a heartbeat makes.

Records of `__consumer_offsets`, in Kafka's formats: the epoch of the group, its members, the target of each
member, what each member has now, and the topics of each regular expression. A heartbeat that changes
nothing writes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lastword.protocol import encode_stored, messages
from lastword.server.assignors import ASSIGNORS, Partition, Partitions
from lastword.server.group_store import Committed, Group
from lastword.server.timers import NO_TIMER, Timer

EMPTY, ASSIGNING, RECONCILING, STABLE = "Empty", "Assigning", "Reconciling", "Stable"
IS_STABLE, UNREVOKED, UNRELEASED = range(3)
"""States of a member, as they are stored."""

Records = list[tuple[bytes, bytes | None]]
Matches = dict[str, tuple[frozenset[str], int]]
"""The topics of regular expressions, each with the version of the list of topics that it was matched with."""
Read = dict[str, tuple[bytes, tuple[int, ...]]]
"""Topics that are read, by name: id and partitions."""


@dataclass(frozen=True)
class ConsumerMember:
    """A member. A heartbeat replaces it as a whole.

    Attributes:
        id: Its id.
        epoch: The epoch of the target that it is at, or moves to.
        previous_epoch: The epoch before.
        state: Whether it has to give up partitions, or waits for some.
        assigned: The partitions that it owns, with the epoch in which it got each.
        revoking: The partitions that it has to give up.
    """

    id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    regex: str = ""
    rebalance_ms: int = -1
    assignor: str | None = None
    epoch: int = 0
    previous_epoch: int = -1
    state: int = IS_STABLE
    assigned: Mapping[Partition, int] = field(default_factory=dict)
    revoking: Partitions = frozenset()

    def metadata(self) -> bytes:
        """Return the record of what the member subscribes to."""
        return encode_stored(
            messages.ConsumerGroupMemberMetadataValue(
                instance_id=self.instance_id,
                rack_id=self.rack_id,
                client_id=self.client_id,
                client_host=self.client_host,
                subscribed_topic_names=sorted(self.topics),
                subscribed_topic_regex=self.regex,
                rebalance_timeout_ms=self.rebalance_ms,
                server_assignor=self.assignor,
                classic_member_metadata=None,
            )
        )

    def current(self) -> bytes:
        """Return the record of what the member has."""
        value_class = messages.ConsumerGroupCurrentMemberAssignmentValue
        return encode_stored(
            value_class(
                member_epoch=self.epoch,
                previous_member_epoch=self.previous_epoch,
                state=self.state,
                assigned_partitions=[
                    value_class.TopicPartitions(
                        topic_id=topic_id,
                        partitions=numbers,
                        assignment_epochs=[self.assigned[topic_id, number] for number in numbers],
                    )
                    for topic_id, numbers in by_topic(self.assigned).items()
                ],
                partitions_pending_revocation=rows_of(value_class.TopicPartitions, self.revoking),
            )
        )


@dataclass(eq=False)
class ConsumerGroup(Group):
    """A group of this protocol.

    Attributes:
        epoch: Raised when a subscription or a topic changes.
        target_epoch: The epoch of the group for which `targets` was computed.
        targets: Target assignment of each member.
        owners: The member that has each partition, also one that has still to give it up.
        regexes: The topics of each regular expression.
        read: The topics that the group reads.
        missing: The topics that the group subscribes to, and that do not exist.
        digest: A hash of `read`, which is stored.
        seen: The version of the list of topics that `read` was taken from.
    """

    group_type = "consumer"
    protocol_type: str | None = "consumer"
    epoch: int = 1
    target_epoch: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)
    targets: dict[str, Partitions] = field(default_factory=dict)
    owners: dict[Partition, str] = field(default_factory=dict)
    regexes: Matches = field(default_factory=dict)
    read: Read = field(default_factory=dict)
    missing: frozenset[str] = frozenset()
    digest: int = 0
    seen: int = -1
    sessions: dict[str, Timer] = field(default_factory=dict)
    revocations: dict[str, Timer] = field(default_factory=dict)

    @property
    def state(self) -> str:  # type: ignore[override]
        """Return the state of the group, as it is described."""
        if not self.members:
            return EMPTY
        if self.epoch > self.target_epoch:
            return ASSIGNING
        for member in self.members.values():
            if member.state != IS_STABLE or member.epoch != self.target_epoch:
                return RECONCILING
        return STABLE

    @property
    def is_empty(self) -> bool:
        """Return whether the group has no member."""
        return not self.members

    def subscribed(self) -> set[str]:
        """Return the topics that the members subscribe to."""
        return {topic for member in self.members.values() for topic in topics_of(member, self.regexes)}

    def is_settled(self, member: ConsumerMember) -> bool:
        """Return whether the member has its target, and no newer one is to be computed."""
        return member.state == IS_STABLE and member.epoch == self.target_epoch == self.epoch

    def retained_from(self, committed: Committed, subscribed: set[str] | None) -> int | None:
        """Return the time from which the retention of an offset counts: the commit, as in Kafka."""
        return committed.committed_ms

    def tombstones(self) -> Records:
        """Return the records that delete the group without its offsets."""
        return [
            (encode_stored(key(group_id=self.id)), None)
            for key in (
                messages.ConsumerGroupTargetAssignmentMetadataKey,
                messages.ConsumerGroupPartitionMetadataKey,
                messages.ConsumerGroupMetadataKey,
            )
        ]

    def put(self, member: ConsumerMember) -> None:
        """Take a member in place of the one with its id."""
        self._release(member.id)
        self.members[member.id] = member
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.id
        for partition in (*member.assigned, *member.revoking):
            self.owners[partition] = member.id

    def drop(self, member_id: str) -> None:
        """Remove a member, its target and its timers."""
        self._release(member_id)
        del self.members[member_id]
        self.targets.pop(member_id, None)
        for timers in (self.sessions, self.revocations):
            timers.pop(member_id, NO_TIMER).cancel()

    def _release(self, member_id: str) -> None:
        """Free the partitions and the instance id of a member, if there is one."""
        member = self.members.get(member_id)
        if member is None:
            return
        if member.instance_id is not None and self.instances.get(member.instance_id) == member_id:
            del self.instances[member.instance_id]
        for partition in (*member.assigned, *member.revoking):
            if self.owners.get(partition) == member_id:
                del self.owners[partition]


def preferred(members: Iterable[ConsumerMember]) -> str:
    """Return the assignor that most members prefer."""
    votes: dict[str, int] = {}
    for member in members:
        if member.assignor is not None:
            votes[member.assignor] = votes.get(member.assignor, 0) + 1
    return max(votes, key=lambda name: votes[name], default=next(iter(ASSIGNORS)))


def topics_of(member: ConsumerMember, regexes: Matches) -> frozenset[str]:
    """Return the topics that a member subscribes to, by name or by its regular expression."""
    matched = regexes.get(member.regex)
    return member.topics if matched is None else member.topics | matched[0]


def reconciled(
    member: ConsumerMember,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    is_free: Callable[[Partition], bool],
) -> ConsumerMember:
    """Return a member that was moved towards its target as far as it can be now.

    Args:
        member: The member.
        target: The partitions that were assigned to it.
        target_epoch: The epoch of the target.
        owned: The partitions in its heartbeat; None: the heartbeat has no list.
        is_free: Returns whether a partition has no owner.
    """
    epoch = member.epoch
    if member.state == IS_STABLE and epoch == target_epoch:
        return member
    if member.state == UNREVOKED:
        if owned is None or owned & member.revoking:
            return member
        epoch += 1  # it has given up the partitions that the epoch revoked
    kept = {partition: since for partition, since in member.assigned.items() if partition in target}
    revoking = frozenset(member.assigned) - target
    if revoking and (owned is None or owned & revoking):
        return replace(
            member,
            epoch=epoch,
            previous_epoch=member.epoch,
            state=UNREVOKED,
            assigned=kept,
            revoking=revoking,
        )
    missing = target - kept.keys()
    free = {partition for partition in missing if is_free(partition) or partition in member.revoking}
    return replace(
        member,
        epoch=target_epoch,
        previous_epoch=member.epoch,
        state=IS_STABLE if free == missing else UNRELEASED,
        assigned=kept | dict.fromkeys(sorted(free), target_epoch),
        revoking=frozenset(),
    )


class GroupChange:
    """The state of a group after a heartbeat, and the records of what changes. `apply` gives it to the group.

    Attributes:
        member: The member that sent the heartbeat.
        records: Records to store.
        is_subscription_changed: Whether a member is new, or a subscription has changed.
    """

    def __init__(
        self,
        group: ConsumerGroup,
        before: ConsumerMember,
        replaced: ConsumerMember | None,
        member: ConsumerMember,
        matches: Matches,
    ) -> None:
        self._group, self._before, self._replaced = group, before, replaced
        self.member = member
        self.records: Records = []
        self._members = {key: other for key, other in group.members.items() if other is not replaced}
        is_new = member.id not in self._members
        self._members[member.id] = member
        self._targets = dict(group.targets)
        self._epoch, self._target_epoch = group.epoch, group.target_epoch
        self._read, self._digest, self._seen = group.read, group.digest, group.seen
        if replaced is not None:
            self.records += member_tombstones(group.id, replaced.id)
        key = messages.ConsumerGroupMemberMetadataKey(group_id=group.id, member_id=member.id)
        if is_new or replaced is not None or member.metadata() != before.metadata():
            self.records.append((encode_stored(key), member.metadata()))
        if replaced is not None:
            self._targets[member.id] = self._targets.pop(replaced.id, frozenset())
            self.records.append(_target_record(group.id, member.id, self._targets[member.id]))
        self._is_new = is_new
        # A member that takes another's instance id has the targets of both no more.
        self.is_subscription_changed = is_new == (replaced is None)
        self.is_subscription_changed |= (member.topics, member.regex) != (before.topics, before.regex)
        self._match(matches)

    def _match(self, matches: Matches) -> None:
        group = self._group
        used = {other.regex for other in self._members.values()}
        known = group.regexes | matches
        self._regexes = {regex: known[regex] for regex in sorted(used) if regex in known}
        for regex, (topics, version) in self._regexes.items():
            if regex not in group.regexes or group.regexes[regex][0] != topics:
                self.is_subscription_changed = True
                value = messages.ConsumerGroupRegularExpressionValue(topics=sorted(topics), version=version)
                self.records.append((regex_key(group.id, regex), encode_stored(value)))
        gone = [regex for regex in group.regexes if regex not in self._regexes]
        self.records += [(regex_key(group.id, regex), None) for regex in gone]

    def subscribed(self) -> set[str]:
        """Return the topics that the members subscribe to."""
        return {topic for member in self._members.values() for topic in topics_of(member, self._regexes)}

    def read_topics(self, read: Read, seen: int) -> None:
        """Take the topics that the group reads; raise the epoch if they or the subscriptions have changed."""
        self._read, self._digest, self._seen = read, digest_of(read), seen
        if self.is_subscription_changed or self._digest != self._group.digest:
            self._epoch += 1
            self.records.append(epoch_record(self._group.id, self._epoch, self._digest))

    def assign(self, now_ms: int) -> None:
        """Compute the target if the epoch was raised."""
        if self._epoch <= self._target_epoch:
            return
        group_id = self._group.id
        members = sorted(self._members.values(), key=lambda member: member.instance_id or member.id)
        subscribed = {
            member.id: frozenset(
                self._read[topic][0] for topic in topics_of(member, self._regexes) if topic in self._read
            )
            for member in members
        }
        assignor = ASSIGNORS[preferred(members)]
        before, self._target_epoch = self._targets, self._epoch
        self._targets = assignor(subscribed, dict(self._read.values()), before)
        for member_id, target in self._targets.items():
            if before.get(member_id) != target:
                self.records.append(_target_record(group_id, member_id, target))
        key = messages.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id)
        value = messages.ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=self._target_epoch, assignment_timestamp=now_ms
        )
        self.records.append((encode_stored(key), encode_stored(value)))

    def reconcile(self, owned: Partitions | None) -> ConsumerMember:
        """Move the member towards its target; return it."""
        group, replaced = self._group, self._replaced
        mine = {self.member.id, None} if replaced is None else {self.member.id, replaced.id, None}
        member = self.member = reconciled(
            self.member,
            self._targets.get(self.member.id, frozenset()),
            self._target_epoch,
            owned,
            lambda partition: group.owners.get(partition) in mine,
        )
        if self._is_new or member.current() != self._before.current():
            key = messages.ConsumerGroupCurrentMemberAssignmentKey(group_id=group.id, member_id=member.id)
            self.records.append((encode_stored(key), member.current()))
        return member

    def apply(self) -> None:
        """Give the group this state."""
        group = self._group
        if self._replaced is not None:
            group.drop(self._replaced.id)
        group.put(self.member)
        group.epoch, group.target_epoch, group.targets = self._epoch, self._target_epoch, self._targets
        group.read, group.digest, group.seen = self._read, self._digest, self._seen
        group.regexes = self._regexes
        group.missing = frozenset(self.subscribed() - self._read.keys())


EPOCH, MEMBER, TARGET_EPOCH, TARGET, CURRENT, REGEX = KEYS = (
    "ConsumerGroupMetadataKey",
    "ConsumerGroupMemberMetadataKey",
    "ConsumerGroupTargetAssignmentMetadataKey",
    "ConsumerGroupTargetAssignmentMemberKey",
    "ConsumerGroupCurrentMemberAssignmentKey",
    "ConsumerGroupRegularExpressionKey",
)
"""The names of the keys of the records of these groups."""


def by_topic(partitions: Iterable[Partition]) -> dict[bytes, list[int]]:
    """Return the sorted partitions of each topic."""
    topics: dict[bytes, list[int]] = {}
    for topic_id, number in sorted(partitions):
        topics.setdefault(topic_id, []).append(number)
    return topics


def rows_of(row: Callable[..., Any], partitions: Iterable[Partition]) -> list[Any]:
    """Return partitions as rows of a message, one for each topic. `row` makes a row."""
    return [row(topic_id=topic_id, partitions=numbers) for topic_id, numbers in by_topic(partitions).items()]


def partitions_of(topics: Iterable[Any]) -> Partitions:
    """Return the partitions in a list of topics of a message."""
    return frozenset((topic.topic_id, number) for topic in topics for number in topic.partitions)


def with_current(member: ConsumerMember, stored: Any) -> ConsumerMember:
    """Return the member with what a stored record says that it has."""
    assigned = {}
    for topic in stored.assigned_partitions:
        epochs = topic.assignment_epochs or [stored.member_epoch] * len(topic.partitions)
        assigned.update(
            {(topic.topic_id, n): epoch for n, epoch in zip(topic.partitions, epochs, strict=False)}
        )
    return replace(
        member,
        epoch=stored.member_epoch,
        previous_epoch=stored.previous_member_epoch,
        state=stored.state if stored.state in (IS_STABLE, UNREVOKED, UNRELEASED) else UNRELEASED,
        assigned=assigned,
        revoking=partitions_of(stored.partitions_pending_revocation),
    )


def digest_of(read: Read) -> int:
    """Return a number that changes when a topic of the group does; 0: none of them exists."""
    if not read:
        return 0
    text = repr(sorted(read.items())).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big", signed=True)


def epoch_record(group_id: str, epoch: int, digest: int) -> tuple[bytes, bytes | None]:
    """Return the record of the epoch of a group."""
    value = messages.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=digest)
    return encode_stored(messages.ConsumerGroupMetadataKey(group_id=group_id)), encode_stored(value)


def _target_record(group_id: str, member_id: str, target: Partitions) -> tuple[bytes, bytes | None]:
    value_class = messages.ConsumerGroupTargetAssignmentMemberValue
    value = value_class(topic_partitions=rows_of(value_class.TopicPartition, target))
    key = messages.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    return encode_stored(key), encode_stored(value)


def regex_key(group_id: str, regex: str) -> bytes:
    """Return the key of the record of a regular expression."""
    return encode_stored(
        messages.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex)
    )


def member_tombstones(group_id: str, member_id: str) -> Records:
    """Return the records that delete a member: newest state first, as Kafka writes them."""
    return [
        (encode_stored(key(group_id=group_id, member_id=member_id)), None)
        for key in (
            messages.ConsumerGroupCurrentMemberAssignmentKey,
            messages.ConsumerGroupTargetAssignmentMemberKey,
            messages.ConsumerGroupMemberMetadataKey,
        )
    ]
