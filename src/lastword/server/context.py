"""`ServerContext`: what the handlers share. The event loop, threads, clock, topics, options, and memory.

The server is a cluster of one node. Over a log in a bucket it may be one of several servers, of which one is
active (`lastword.bucket.tenure`). The context has their ids and addresses.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from lastword.errors import BusyError, LastwordError
from lastword.files import WouldWait
from lastword.logdir.identity import read_meta_properties
from lastword.parse import check_count
from lastword.protocol import Message, Request, codes
from lastword.segment import names
from lastword.server.timers import Timers
from lastword.server.topics import Refused, ServedTopic, Topics

if TYPE_CHECKING:
    from ssl import SSLContext

    from lastword.api.logs import LogDir
    from lastword.api.open_dirs import OpenDirs
    from lastword.bucket.manifest import ServerNode
    from lastword.bucket.servers import ServerSession
    from lastword.server.security import Peer, Users

    Answer = Message | None | asyncio.Future[Any]
    """An answer, a future of it, or None: the request has none."""
    Handler = Callable[[Request[Any], Peer], Answer]
    Handlers = Mapping[str, Handler]
    """Handlers by the name of the API."""

MOST_PARTITIONS = 10_000
"""Most partitions that one request may create, as in Kafka."""
RECENT_MS = 1000
NO_OPERATIONS = -(1 << 31)
WAIT_SECONDS = 30.0
"""A thread waits for memory for decompression for this time."""


@dataclass(frozen=True)
class Options:
    """Options of `serve`."""

    listen: str = "127.0.0.1:9092"
    advertise: str | None = None
    insecure: bool = False
    users: Users | None = None
    tls: SSLContext | None = None
    auto_create_topics: bool = True
    partitions: int = 1
    offsets_partitions: int = 1
    transactions_partitions: int = 1

    def __post_init__(self) -> None:
        count = check_count("partitions", self.partitions, "partitions", least=1, most=MOST_PARTITIONS)
        object.__setattr__(self, "partitions", count)

    @property
    def mechanisms(self) -> list[str]:
        """Return the mechanisms of SASL. PLAIN sends the password: it needs TLS or the loopback interface."""
        if self.users is None:
            return []
        host = self.listen.rpartition(":")[0].strip("[]")
        is_private = self.tls is not None or self.insecure or host in ("", "localhost", "127.0.0.1", "::1")
        return [*(["PLAIN"] if is_private else []), "SCRAM-SHA-256", "SCRAM-SHA-512"]

    @property
    def security_protocol(self) -> str:
        """Return the protocol as clients name it."""
        return ("SASL_" if self.users else "") + ("SSL" if self.tls else "PLAINTEXT")


class Broker(NamedTuple):
    """A server as clients see it."""

    id: int
    host: str
    port: int


class ServerContext:
    """What the handlers share.

    Attributes:
        logs: The log directory.
        dirs: Its open directories.
        clock: Its clock.
        loop: The event loop.
        options: The options of `serve`.
        topics: The topics.
        session: The session of this server among those of a log in a bucket; None: it is the only one.
        cluster_id: The id of the cluster.
        timers: Timers by the clock.
        budget: The memory for records that requests decompress.
        is_standby: Another server is active, for as long as this context is used.
        is_closing: No request waits any more: the server closes.
        refuse: None, or the function of a test. It is called for each topic and partition of a Produce or
            Fetch with the request and the topic, and raises Refused.
    """

    def __init__(
        self,
        logs: LogDir,
        loop: asyncio.AbstractEventLoop,
        pools: tuple[ThreadPoolExecutor, ThreadPoolExecutor],
        address: tuple[str, int],
        options: Options,
        session: ServerSession | None = None,
    ) -> None:
        self.logs = logs
        self.dirs = logs.dirs
        self.clock = logs.dirs.clock
        self.loop = loop
        self.options = options
        self.topics = Topics(logs)
        self._pool, self._changes = pools
        self.session = session
        first = self.dirs.directories[0]
        path = os.path.join(first.path, names.META_PROPERTIES)
        properties = read_meta_properties(first.files, path) if first.files.exists(path) else {}
        self.cluster_id = properties.get("cluster.id", "lastword")
        self._own = Broker(int(properties.get("node.id", properties.get("broker.id", "1"))), *address)
        self.timers = Timers(loop, self.clock)
        self.budget = DecompressionBudget(self.dirs.settings.instance.lastword_decompression_bytes)
        self.is_standby = session is not None and not session.tenure.epoch
        self.is_closing = False
        self.refuse: Callable[[Request[Any], ServedTopic], None] | None = None
        self._calls = deque[Callable[[], object]]()
        self._is_woken = False

    @property
    def leader(self) -> Broker:
        """The server that clients use."""
        if self.session is None:
            return self._own
        active = self.session.active
        return Broker(-1, "", -1) if active is None else _broker(active)

    @property
    def brokers(self) -> list[Broker]:
        """All servers."""
        return [self._own] if self.session is None else [_broker(node) for node in self.session.nodes]

    @property
    def node_id(self) -> int:
        """The id of the server that clients use."""
        return self.leader.id

    @property
    def is_fenced(self) -> bool:
        """Whether another server is active since this context was made. It stays so."""
        return self.session is not None and self.session.is_fenced

    def in_pool(self, work: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        """Run work that waits in a thread of the pool; return a future of its result."""
        return self.loop.run_in_executor(self._pool, work, *arguments)

    def without_requests(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of work that reads, or a future of it: in the pool, if it needs requests."""
        try:
            with self.dirs.files.without_requests():
                return work(*arguments)
        except WouldWait:
            return self.in_pool(work, *arguments)

    def begin_append(
        self, topics: Container[str], work: Callable[[OpenDirs], Any], size_bytes: int
    ) -> Future[Any] | None:
        """As `OpenDirs.begin_append`.

        Raises:
            ServerFencedError: The server is fenced. In the next term a commit of this one would be let in.
        """
        if self.is_fenced:
            assert self.session is not None
            raise self.session.fenced()
        return self.dirs.begin_append(topics, work, size_bytes)

    def appended(
        self, topics: Container[str], work: Callable[[OpenDirs], Any], size_bytes: int
    ) -> asyncio.Future[Any] | None:
        """Append by `begin_append`; return a future of the result of `work`, or None as it does."""
        done = self.begin_append(topics, work, size_bytes)
        return None if done is None else self.awaiting(done)

    def awaiting(self, stored: Future[Any]) -> asyncio.Future[Any]:
        """Return a future of the loop for one of a commit."""
        result: asyncio.Future[Any] = self.loop.create_future()

        stored.add_done_callback(partial(self.in_loop, _settle, result))
        return result

    def in_loop(self, call: Callable[..., object], *arguments: Any) -> None:
        """Make a call in the loop, from any thread: calls for all appends of a commit wake the loop once."""
        self._calls.append(partial(call, *arguments))
        if not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self.loop.call_soon_threadsafe(self._make_calls)

    def _make_calls(self) -> None:
        self._is_woken = False  # first: a call that comes from now on wakes the loop again
        while self._calls:
            self.loop.call_soon(self._calls.popleft())

    def refreshed(self) -> asyncio.Future[Any]:
        """Load the newest version of a log in a bucket, unless it was loaded a short time ago."""
        return self.in_pool(partial(self.dirs.refresh, at_most_every_ms=RECENT_MS))

    def in_turn(self, work: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        """Run a change of topics or settings in a thread, one after the other."""
        return self.loop.run_in_executor(self._changes, work, *arguments)

    def then(self, before: asyncio.Future[Any], call: Callable[[], Any]) -> asyncio.Future[Any]:
        """Return a future of the answer of `call`, which is called when `before` is done."""
        answer: asyncio.Future[Any] = self.loop.create_future()

        def continued(done: asyncio.Future[Any]) -> None:
            if answer.cancelled() or failure(done) is not None:
                _settle(answer, done)
                return
            try:
                result = call()
            except Exception as error:
                answer.set_exception(error)
                return
            if isinstance(result, asyncio.Future):
                result.add_done_callback(partial(_settle, answer))
            else:
                answer.set_result(result)

        before.add_done_callback(continued)
        return answer

    def open_logs(self, partitions: Iterable[tuple[ServedTopic | None, int]]) -> asyncio.Future[Any] | None:
        """Recover the logs that are not open, in the pool; return a future to wait for, None without one."""
        closed = [(topic, number) for topic, number in partitions if topic and not topic.is_open(number)]
        return self.in_pool(_open_logs, closed) if closed else None

    def with_logs(
        self,
        partitions: Iterable[tuple[ServedTopic | None, int]],
        call: Callable[[], Any],
        *,
        waits: bool = True,
    ) -> Any:
        """Return the answer of `call`, which needs these logs open.

        `waits`: the call only reads, so it runs in the pool if it needs a request.
        """
        opening = self.open_logs(partitions)
        if opening is not None:
            return self.then(opening, call)
        return self.without_requests(call) if waits else call()


def failure(done: Future[Any] | asyncio.Future[Any]) -> BaseException | None:
    """Return the error of a future that is done; None without one. If it was cancelled, a BusyError."""
    if done.cancelled():
        return BusyError("the change was cancelled before it was made", remedy="send the request again")
    return done.exception()


def _settle(answer: asyncio.Future[Any], done: Future[Any] | asyncio.Future[Any]) -> None:
    """Give a future the result or the error of another one, unless the first was cancelled."""
    error = failure(done)
    if answer.cancelled():
        return
    if error is None:
        answer.set_result(done.result())
    else:
        answer.set_exception(error)


def _open_logs(closed: list[tuple[ServedTopic, int]]) -> None:
    for topic, number in closed:
        with contextlib.suppress(LastwordError):  # raised again when the log is used
            topic.log(number)


def _broker(node: ServerNode) -> Broker:
    host, _, port = node.address.rpartition(":")
    return Broker(node.id, host.strip("[]"), int(port))


class DecompressionBudget:
    """Bytes that threads take before they decompress (`lastword.decompression.bytes`).

    A thread takes all that it may need at once, and so holds nothing while it waits.

    Attributes:
        most: The bytes of the budget.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._used = 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def reserved(self, size: int) -> Iterator[None]:
        """Hold `size` bytes, at most the whole budget.

        Raises:
            Refused: The bytes were in use for WAIT_SECONDS. Clients send the request again.
        """
        size = min(size, self.most)
        with self._changed:
            if not self._changed.wait_for(lambda: self._used + size <= self.most, WAIT_SECONDS):
                text = "other requests use the memory for decompression (lastword.decompression.bytes)"
                raise Refused(codes.REQUEST_TIMED_OUT, text)
            self._used += size
        try:
            yield
        finally:
            with self._changed:
                self._used -= size
                self._changed.notify_all()
