"""The groups by id, with their committed offsets, and the topic that holds their state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from lastword.protocol import Request, codes, encode_stored
from lastword.protocol.refusals import refusal_answer
from lastword.protocol.schemas import ZERO_UUID, Message
from lastword.server.context import ServerContext
from lastword.server.coordinator import CoordinatorTopic
from lastword.server.topics import Refused

GROUP_OPERATIONS = 3400
"""Bits of all operations on a group."""
AnyGroup = TypeVar("AnyGroup", bound="Group")


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed offset. `expires_ms`: the time that an old client gave; -1: the retention decides."""

    offset: int
    leader_epoch: int
    metadata: str
    topic_id: bytes = ZERO_UUID
    committed_ms: int = -1
    expires_ms: int = -1


NOT_COMMITTED = Committed(-1, -1, "")


@dataclass(eq=False)
class Group:
    """A group with its committed offsets. Each protocol has a class of its own."""

    id: str
    offsets: dict[tuple[str, int], Committed] = field(default_factory=dict)

    group_type = ""
    """The protocol of the group, as ListGroups names it."""
    state = ""
    protocol_type: str | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether the group has no member."""
        raise NotImplementedError

    def subscribed(self) -> set[str] | None:
        """Return the topics that the members subscribe to; None if they are not known."""
        raise NotImplementedError

    @property
    def is_over(self) -> bool:
        """Return whether the group can be deleted when it has no offsets."""
        return self.is_empty

    def expired(self, now_ms: int, retention_ms: int) -> list[tuple[str, int]]:
        """Return where committed offsets have expired: the topic is not read, and the time is over."""
        subscribed = self.subscribed()
        gone = []
        for at, committed in self.offsets.items():
            since = self.retained_from(committed, subscribed)
            if since is None or (subscribed is not None and at[0] in subscribed):
                continue
            if committed.expires_ms >= 0:
                is_over = now_ms >= committed.expires_ms
            else:
                is_over = now_ms - since >= retention_ms
            if is_over:
                gone.append(at)
        return gone

    def retained_from(self, committed: Committed, subscribed: set[str] | None) -> int | None:
        """Return the time from which the retention of an offset counts; None: it does not expire now.

        Args:
            committed: The offset.
            subscribed: Result of `subscribed`.
        """
        raise NotImplementedError

    def tombstones(self) -> list[tuple[bytes, bytes | None]]:
        """Return the records that delete the group without its offsets."""
        raise NotImplementedError


@dataclass(eq=False)
class OtherGroup(Group):
    """A share group or a streams group. Only its id and its records are known: no other kind may replace it.

    Clients of the other protocols get Kafka's answers. A streams group without members gives its id away.
    """

    group_type: str = ""
    keys: set[bytes] = field(default_factory=set)
    members: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.protocol_type = self.group_type

    @property
    def state(self) -> str:  # type: ignore[override]
        """Return the state as ListGroups has it."""
        return ("NotReady" if self.group_type == "streams" else "Stable") if self.members else "Empty"

    @property
    def is_empty(self) -> bool:
        """Return whether another group may have the id."""
        return self.group_type == "streams" and not self.members

    @property
    def is_over(self) -> bool:
        """Return that the group is deleted by a Kafka that has its protocol."""
        return False

    def subscribed(self) -> set[str] | None:
        """Return None: the topics are not known, so no offset of the group expires."""
        return None

    def retained_from(self, committed: Committed, subscribed: set[str] | None) -> int | None:
        """Return None: no offset of the group expires."""
        return None

    def load(self, key: Message) -> None:
        """Load the key of a record of the group."""
        self.keys.add(encode_stored(key))
        self.members |= {getattr(key, "member_id", "")} - {""}

    def tombstones(self) -> list[tuple[bytes, bytes | None]]:
        """Return the records that delete the group without its offsets."""
        return [(key, None) for key in sorted(self.keys)]

    def check_commit(self, generation: int) -> None:
        """Refuse offsets of a share group, which has none, and those of a member, which is not known here."""
        if self.group_type == "share":
            raise Refused(codes.GROUP_ID_NOT_FOUND, "")
        if generation >= 0 or self.members:
            raise Refused(codes.UNKNOWN_MEMBER_ID, "")


def answer_of(request: Request[Any], call: Callable[[], Any]) -> Any:
    """Return the answer of `call`; if it raises Refused, the answer with that error, which is not logged."""
    try:
        return call()
    except Refused as refused:
        return refusal_answer(request, refused.code, refused.message or None)


class GroupStore:
    """The groups by id. Each change of a group is a record of the topic.

    Attributes:
        topic: The topic.
    """

    def __init__(self, context: ServerContext, topic: CoordinatorTopic) -> None:
        self.topic = topic
        self._context = context
        self._groups: dict[str, Group] = {}

    def get(self, group_id: str) -> Group | None:
        """Return a group.

        Raises:
            Refused: Its partition of the topic has a record that cannot be decoded.
        """
        self.topic.check(group_id)
        return self._groups.get(group_id)

    def find(self, group_id: str) -> Group | None:
        """Return a group, also of a partition that has a record that cannot be decoded."""
        return self._groups.get(group_id)

    def all(self) -> list[Group]:
        """Return all groups."""
        return list(self._groups.values())

    def add(self, group: AnyGroup) -> AnyGroup:
        """Add a group, which takes the offsets of the group that had its id."""
        before = self._groups.get(group.id)
        if before is not None:
            group.offsets = before.offsets
        self._groups[group.id] = group
        return group

    def remove(self, group_id: str) -> None:
        """Remove a group whose tombstones are appended."""
        del self._groups[group_id]

    def clear(self) -> None:
        """Remove all groups: the topic was deleted."""
        self._groups.clear()

    def append(
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
        return self.topic.append(self.topic.partition_of(group_id), records, producer)

    def answer_after(self, stored: asyncio.Future[Any] | None, answer: Message) -> Any:
        """Return the answer, or a future of it when the change is durable. The future may raise Refused."""
        if stored is None:
            return answer
        return self._context.then(stored, lambda: answer)
