"""`Interceptor`: stands in front of a server's handlers: faults, delays, the requests that came in."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from lastword.errors import UsageError, nearest
from lastword.parse import Duration, parse_seconds
from lastword.protocol import Request, codes, messages
from lastword.protocol.refusals import OF_PARTS, error_answer
from lastword.protocol.schemas import BY_NAME
from lastword.server import Server
from lastword.server.topics import Refused, ServedTopic

MOST_REQUESTS = 100_000
MOST_BYTES = 64 << 20
"""Bounds of the requests that are kept; the oldest are dropped first."""
BY_TOPIC = ("Produce", "Fetch")
"""APIs that refuse each partition by itself."""
OF_TRANSACTIONS = ("EndTxn", "AddPartitionsToTxn", "AddOffsetsToTxn", "InitProducerId")
"""APIs that a producer calls again while its last transaction is completed."""
OF_SESSIONS = (
    codes.FETCH_SESSION_ID_NOT_FOUND,
    codes.INVALID_FETCH_SESSION_EPOCH,
    codes.FETCH_SESSION_TOPIC_ID_ERROR,
)
"""Errors of a whole Fetch."""
FIRST_WITHOUT_CREATION = 4
"""The first version of Metadata whose requests may forbid the creation of topics."""
CODES = {name: code for code, name in codes.ERROR_NAMES.items() if code != codes.NONE}


@dataclasses.dataclass(eq=False)
class Fault:
    """An error code that answers the next requests of an API.

    Attributes:
        topic: The only topic that is refused, or None.
        left: How many requests are still refused; None: all.
        by_topic: Each partition of a request has the error, not the request as a whole.
        refused: The last requests that were refused: each partition of a request has the same answer.
    """

    api: str
    error: str
    code: int
    topic: str | None
    left: int | None
    by_topic: bool
    refused: deque[Request[Any]] = dataclasses.field(default_factory=lambda: deque(maxlen=64))

    def applies(self, request: Request[Any], topic: str | None) -> bool:
        """Return whether a request, or its partitions of a topic, are refused; count each request once."""
        if self.api != request.api.name or self.by_topic != (topic is not None):
            return False
        if self.topic is not None and topic != self.topic:
            return False
        if any(request is refused for refused in self.refused):
            return True
        if self.left == 0:
            return False
        if self.left is not None:
            self.left -= 1
        self.refused.append(request)
        return True


class Interceptor:
    """Records the requests of a server's clients, and delays or refuses some of them."""

    _server: Server

    def __init__(self, eventual: bool = False) -> None:
        self._eventual = eventual
        self._ended: set[str] = set()
        """The transactional ids whose next transaction is refused once, if the broker is eventual."""
        self._requests: deque[Request[Any]] = deque()
        self._bytes = 0
        self._faults: list[Fault] = []
        self._delays: dict[str, float] = {}
        self._delayed: dict[asyncio.Future[None], str] = {}
        """For each request that waits: the future for which it waits, and its API. In the event loop only."""
        self._lock = threading.Lock()
        self._members: WeakKeyDictionary[Any, dict[tuple[str, str], Request[Any]]] = WeakKeyDictionary()
        """For each connection, the heartbeat of each member of a group that used the connection."""

    def attach(self, server: Server) -> None:
        """Stand in front of the handlers of a server, which has no client yet."""
        self._server = server
        server.handle = self.handle
        server.context.refuse = self.refuse

    # -------------------------------------------------------------- for the test

    def fail(self, api: str, error: str, times: int | None, topic: str | None) -> None:
        """Refuse the next requests of an API; see `Broker.fail`."""
        check_api(api)
        if error not in CODES:
            raise UsageError(
                f"{error!r} is not an error of Kafka", remedy=_nearest(error, CODES, "NOT_LEADER_OR_FOLLOWER")
            )
        if times is not None and (isinstance(times, bool) or not isinstance(times, int) or times < 1):
            raise UsageError(
                f"times={times!r} is not a number of requests", remedy="give 1 or more; None: until heal()"
            )
        by_topic = api in BY_TOPIC and CODES[error] not in OF_SESSIONS
        if topic is not None and not by_topic:
            raise UsageError(
                f"{api} has no {error} of one topic",
                remedy=f"leave topic= out; it is for errors of partitions in {' and '.join(BY_TOPIC)}",
            )
        with self._lock:
            self._faults.append(Fault(api, error, CODES[error], topic, times, by_topic))

    def delay(self, api: str, time: Duration) -> None:
        """Answer an API later; see `Broker.delay`."""
        check_api(api)
        self._delays[api] = parse_seconds("time", time)

    def heal(self, api: str | None) -> None:
        """End the faults and delays of an API; None: of all."""
        if api is not None:
            check_api(api)
        with self._lock:
            self._faults = [fault for fault in self._faults if api not in (None, fault.api)]
            self._delays = {
                name: seconds for name, seconds in self._delays.items() if api not in (None, name)
            }
        with suppress(RuntimeError):  # the broker is stopped, and no request waits
            self._server.loop.call_soon_threadsafe(self._end_delays, api)

    def _end_delays(self, api: str | None) -> None:
        for passed, name in list(self._delayed.items()):
            if api in (None, name):
                _end_delay(passed)

    def requests(self, api: str | None) -> list[Request[Any]]:
        """Return the requests of an API, or all of them, the oldest first."""
        if api is not None:
            check_api(api)
        with self._lock:
            requests = list(self._requests)
        return requests if api is None else [request for request in requests if request.api.name == api]

    # -------------------------------------------------------------- for the server

    def handle(self, request: Request[Any], connection: Any) -> Any:
        """Return the answer to a request, a future of it, or None if it has none."""
        api = request.api.name
        with self._lock:
            self._requests.append(request)
            self._bytes += request.size
            while self._bytes > MOST_BYTES or len(self._requests) > MOST_REQUESTS:
                self._bytes -= self._requests.popleft().size
        seconds = self._delays.get(api, 0)
        if seconds > 0:
            loop = self._server.loop
            passed = loop.create_future()
            self._delayed[passed] = api
            passed.add_done_callback(self._delayed.pop)
            loop.call_later(seconds, _end_delay, passed)
            return self._server.context.then(passed, lambda: self._answer(request, connection))
        return self._answer(request, connection)

    def refuse(self, request: Request[Any], topic: ServedTopic) -> None:
        """Refuse one partition of a Produce or Fetch, if a fault applies."""
        fault = self._fault(request, topic.name)
        if fault is not None:
            raise Refused(fault.code, f"{fault.error}, by the test")

    def _fault(self, request: Request[Any], topic: str | None) -> Fault | None:
        if not self._faults:
            return None
        with self._lock:
            return next((fault for fault in self._faults if fault.applies(request, topic)), None)

    def _answer(self, request: Request[Any], connection: Any) -> Any:
        api, node = request.api.name, self._server.node
        fault = self._fault(request, None)
        if fault is not None and fault.code == codes.UNKNOWN_MEMBER_ID:
            self._forget_member(request, connection)
        if fault is not None and api == "Metadata":
            answer = node.handle(_without_creation(request), connection)
            return self._changed(answer, lambda metadata: _refuse_topics(metadata, None, fault.code))
        if fault is not None and api == "OffsetFetch" and fault.code in OF_PARTS[api]:
            answer = node.handle(request, connection)  # a request may be for all partitions
            return self._changed(answer, lambda offsets: _refuse_offsets(offsets, fault.code))
        if fault is not None:
            return error_answer(request, fault.code, f"{fault.error}, by the test")
        if self._eventual and api in ("Metadata", *OF_TRANSACTIONS):
            return self._late(request, connection)
        answer = node.handle(request, connection)
        if api in ("JoinGroup", "SyncGroup", "Heartbeat", "ConsumerGroupHeartbeat"):
            return self._changed(answer, lambda done: self._keep_heartbeat(request, connection, done))
        return answer

    def _late(self, request: Request[Any], connection: Any) -> Any:
        """Answer as a cluster does whose nodes do not know the newest change yet."""
        node, body = self._server.node, request.body
        if request.api.name == "Metadata":
            named = [topic.name for topic in body.topics or () if topic.name]
            new = [name for name in named if self._server.context.topics.get(name) is None]
            answer = node.handle(request, connection)
            unknown = codes.UNKNOWN_TOPIC_OR_PARTITION
            return self._changed(answer, lambda metadata: _refuse_topics(metadata, new, unknown))
        transactional_id = getattr(body, "v3_and_below_transactional_id", "") or getattr(
            body, "transactional_id", None
        )
        if request.api.name == "EndTxn":
            return self._changed(node.handle(request, connection), lambda done: self._end(body, done))
        if transactional_id in self._ended:
            self._ended.discard(transactional_id)
            return error_answer(request, codes.CONCURRENT_TRANSACTIONS, "")
        return node.handle(request, connection)

    def _end(self, body: Any, answer: Any) -> Any:
        if not answer.error_code:
            self._ended.add(body.transactional_id)
        return answer

    def _changed(self, answer: Any, change: Any) -> Any:
        """Return the answer after `change` was called with it."""
        if isinstance(answer, asyncio.Future):
            return self._server.context.then(answer, lambda: change(answer.result()))
        return change(answer)

    # -------------------------------------------------------------- members that are alive

    def _keep_heartbeat(self, request: Request[Any], connection: Any, answer: Any) -> Any:
        """Keep the heartbeat of the member that sent a request."""
        body = request.body
        members = self._members.setdefault(connection, {})
        if answer.error_code in (codes.NONE, codes.REBALANCE_IN_PROGRESS):
            if request.api.name == "ConsumerGroupHeartbeat":
                if body.member_epoch < 0:  # the member leaves
                    members.pop((body.group_id, body.member_id), None)
                    return answer
                api = BY_NAME["ConsumerGroupHeartbeat"]
                heartbeat: Any = messages.ConsumerGroupHeartbeatRequest(
                    group_id=body.group_id, member_id=answer.member_id, member_epoch=answer.member_epoch
                )
                member_id = answer.member_id
            else:
                api = BY_NAME["Heartbeat"]
                joined = request.api.name == "JoinGroup"
                member_id = answer.member_id if joined else body.member_id
                heartbeat = messages.HeartbeatRequest(
                    group_id=body.group_id,
                    generation_id=answer.generation_id if joined else body.generation_id,
                    member_id=member_id,
                    group_instance_id=body.group_instance_id,
                )
            members[body.group_id, member_id] = Request(api, api.stable, 0, request.client_id, heartbeat, 0)
        return answer

    def _forget_member(self, request: Request[Any], connection: Any) -> None:
        """Remove the member that is told that it is unknown, so that its group goes on without it."""
        body = request.body
        member_id, group_id = getattr(body, "member_id", ""), getattr(body, "group_id", "")
        if not member_id or request.api.name == "LeaveGroup":
            return
        self._members.get(connection, {}).pop((group_id, member_id), None)
        api, kind = BY_NAME["LeaveGroup"], messages.LeaveGroupRequest
        member = kind.MemberIdentity(member_id=member_id, group_instance_id=None)
        leave = kind(group_id=group_id, members=[member])
        self._server.node.handle(Request(api, api.stable, 0, request.client_id, leave, 0), connection)

    def send_heartbeats(self) -> None:
        """Handle a heartbeat of each member whose connection is open. In the thread of the event loop."""
        for connection, members in list(self._members.items()):
            if connection in self._server.connections:
                for heartbeat in members.values():
                    self._server.node.handle(heartbeat, connection)


def _end_delay(passed: asyncio.Future[None]) -> None:
    if not passed.done():
        passed.set_result(None)


def check_api(name: str) -> None:
    """Check the name of an API."""
    if name not in BY_NAME:
        raise UsageError(
            f"{name!r} is not an API of Kafka that is served", remedy=_nearest(name, BY_NAME, "Produce")
        )


def _nearest(name: object, names: Iterable[str], example: str) -> str:
    by_lower = {known.lower(): known for known in names}
    near = nearest(str(name).lower(), by_lower, 0.4)
    return f"did you mean {by_lower[near]!r}?" if near else f"give Kafka's name, as {example!r}"


def _without_creation(request: Request[Any]) -> Request[Any]:
    """Return a request for metadata that creates no topic: a request that is refused changes nothing."""
    body = copy.copy(request.body)
    body.allow_auto_topic_creation = False
    version = max(request.version, FIRST_WITHOUT_CREATION) if body.topics else request.version
    return request._replace(body=body, version=version)


def _refuse_offsets(answer: Any, code: int) -> Any:
    """Give each partition of an OffsetFetch the error."""
    for topic in [*answer.topics, *(topic for group in answer.groups for topic in group.topics)]:
        for partition in topic.partitions:
            partition.error_code, partition.committed_offset, partition.metadata = code, -1, ""
            partition.committed_leader_epoch = -1
    return answer


def _refuse_topics(metadata: Any, names: list[str] | None, code: int) -> Any:
    """Give topics of an answer the error; None: all of them."""
    for topic in metadata.topics:
        if names is None or topic.name in names:
            topic.error_code, topic.partitions = code, []
    return metadata
