"""`Broker`: Kafka's protocol over a log in this process, for the tests of a program with a Kafka client."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lastword.api.logs import LogDir
from lastword.api.opening import open
from lastword.api.topic import Topic
from lastword.clock import SystemClock
from lastword.errors import UsageError
from lastword.parse import Duration, check_count, check_path, parse_duration_ms, parse_seconds
from lastword.protocol import Request
from lastword.server import serve
from lastword.testing.interceptor import Interceptor
from lastword.testing.unsynced import UNSYNCED

if TYPE_CHECKING:
    from lastword.api.record import Record
    from lastword.cleaner.engine.report import CleanRound

T = TypeVar("T")
WAIT_SECONDS = 30.0
WAIT_STEP_SECONDS = 0.01
MEMORY = "memory://"
_buckets = itertools.count()
MOST_RESERVED = 100
"""How many ports of brokers that were stopped stay bound."""
RESERVED: deque[int] = deque()
"""Sockets at these ports, which the system therefore gives to no other broker."""


class BrokerClock(SystemClock):
    """The clock of the operating system, which `advance` moves ahead."""

    def __init__(self, advance: Callable[[int, bool], None]) -> None:
        self._ahead_ms = 0
        self._advance = advance

    def now_ms(self) -> int:
        """Return milliseconds since 1970, UTC, with the time that was added."""
        return super().now_ms() + self._ahead_ms

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start, with the time that was added."""
        return super().monotonic() + self._ahead_ms / 1000

    def move(self, ms: int) -> None:
        """Add time. Calls that are due by it are not made."""
        self._ahead_ms += ms

    def advance(self, time: Duration, *, heartbeats: bool = True) -> None:
        """Let time pass for the broker, and return when all that is due has happened.

        Sessions of group members, transactions and committed offsets expire in this call; `Broker.clean`
        then removes tombstones and expired segments.

        Args:
            time: "2d", "90 s", "250ms", a `timedelta`, or a number of seconds.
            heartbeats: A member of a group whose client is connected stays, as if the client had sent its
                heartbeats during this time. False: the sessions of all members pass.

        Raises:
            UsageError: The time is not a duration, or is negative.
        """
        ms = parse_duration_ms(time)
        if ms < 0:
            raise UsageError(f"{time!r} is in the past", remedy="time passes forward")
        self._advance(ms, heartbeats)


class Broker:
    """A broker for tests: Kafka's protocol over a log directory, in threads of this process.

        with Broker() as broker:
            producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})

    The log is empty at the start, waits for no drive, and is removed at the end. A client creates a topic
    when it uses the topic, as with a broker that has Kafka's defaults. A group does not wait for more members
    before it assigns partitions. Nothing cleans in the background: `clean` does it.

    Args:
        directory: An empty or new directory, which stays; None: a temporary one. "memory://": a log in a
            bucket in memory, as `lastword.serve` has one in object storage.
        port: 0: the system chooses the port.
        partitions: Number of partitions of a topic whose creator gives none.
        auto_create_topics: Create a topic when a client that allows it requests the topic's metadata.
        users: Passwords by name: clients have to log in with SASL (PLAIN or SCRAM).
        tls: Clients connect with TLS. True: with a certificate for 127.0.0.1 and localhost that the command
            `openssl` makes, in the file `ca`; or what `lastword.serve` takes.
        eventual: Be late as a cluster is: the request that creates a topic does not find it yet, and a
            producer that has ended a transaction gets CONCURRENT_TRANSACTIONS once.

    Raises:
        UsageError: The directory is not empty, or the port cannot be used.

    Attributes:
        directory: The log directory.
        ca: The file of the certificate that clients trust; None without `tls=True`.
        clock: The broker's time: the real time plus what `clock.advance` added.
        logs: The log, as `lastword.open` returns it.
        server: The server, as `lastword.serve` returns it.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        port: int = 0,
        partitions: int = 1,
        auto_create_topics: bool = True,
        users: Mapping[str, str] | None = None,
        tls: Any = False,
        eventual: bool = False,
    ) -> None:
        partitions = check_count("partitions", partitions, "partitions", least=1)
        self._is_temporary = directory is None
        self._partitions, self._auto_create = partitions, auto_create_topics
        self._users, self._tls, self._eventual = users, tls, eventual
        self.ca: str | None = None
        self._is_stopped = self._is_closed = False
        self._is_bucket = directory == MEMORY
        if directory is not None and not self._is_bucket:
            path = Path(check_path("directory", directory))
            self.directory = str(path)
            if path.is_dir() and any(path.iterdir()):
                raise UsageError(f"{self.directory} is not empty", remedy="give an empty or a new directory")
        if tls is True:
            self._tls, self.ca, self._certificates = _certificate()
        if self._is_bucket:
            self.directory = _new_bucket()
        elif directory is None:
            self.directory = tempfile.mkdtemp(prefix="lastword-")
        self.clock = BrokerClock(self._advance)
        self._interceptor = Interceptor(eventual)
        try:
            self._serve(port)
        except BaseException:
            self._remove()
            raise

    def __enter__(self) -> Broker:
        self._check_not_closed()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = ", closed" if self._is_closed else ", stopped" if self._is_stopped else ""
        return f"Broker({self.bootstrap_servers!r}{state})"

    @property
    def bootstrap_servers(self) -> str:
        """Host and port for clients."""
        return self.server.bootstrap_servers

    # -------------------------------------------------------------- the log

    def topic(self, name: str, **options: Any) -> Topic[Any, Any]:
        """Return a topic of the log that clients work on; the options are those of `LogDir.topic`.

        Raises:
            UnknownTopicError: There is no such topic.
        """
        return self.logs.topic(name, **options)

    def create_topic(self, name: str, partitions: int | None = None, **options: Any) -> Topic[Any, Any]:
        """Create a topic; the options are those of `LogDir.create_topic`, as `cleanup_policy="compact"`.

        Without a policy, it is "delete", as for a topic that a client creates.
        """

        def create() -> Topic[Any, Any]:
            given, count = options, partitions
            if name not in self.logs:
                given = {"cleanup_policy": "delete", **options}
                count = self._partitions if partitions is None else partitions
            return self.logs.create_topic(name, count, **given)

        topic: Topic[Any, Any] = self._in_loop(lambda: self.server.context.in_turn(create))
        self.server.context.topics.changed(name)
        return topic

    def clean(self, topic: str | None = None) -> list[CleanRound]:
        """Do now what a broker does in the background: remove expired segments, then superseded records.

        Args:
            topic: None: every topic.

        Returns:
            One report for each partition that is compacted.
        """
        self._in_loop(self.server.node.write_leases)
        self.logs.expire(topic)
        if topic is not None and not self.logs.dirs.config(topic).compacts:
            return []
        return self.logs.clean(topic)

    # -------------------------------------------------------------- groups and records

    def wait_for(self, topic: str, count: int, timeout: Duration = 10) -> list[Record[Any, Any]]:
        """Return the committed records of a topic when there are `count` of them.

        Raises:
            TimeoutError: There are fewer after `timeout`.
        """
        end = time.monotonic() + parse_seconds("timeout", timeout)
        while True:
            records = list(self.logs[topic].read()) if topic in self.logs else []
            if len(records) >= count:
                return records
            if time.monotonic() > end:
                raise TimeoutError(f"{topic} has {len(records)} of {count} records after {timeout}")
            time.sleep(WAIT_STEP_SECONDS)

    def groups(self) -> dict[str, str]:
        """Return the state of each group, as Kafka names it: "Stable", "Empty", "PreparingRebalance"."""

        async def states() -> dict[str, str]:
            await self.server.node.groups.loaded()
            return {group.id: group.state for group in self.server.node.groups.store.all()}

        return self._in_loop(states)

    def lag(self, group: str) -> dict[tuple[str, int], int]:
        """Return how many offsets each partition has behind the committed offset of a group.

        Partitions without a committed offset are not in the result.
        """

        async def committed() -> dict[tuple[str, int], int]:
            await self.server.node.groups.loaded()
            known = self.server.node.groups.store.get(group)
            return {} if known is None else {at: new.offset for at, new in known.offsets.items()}

        offsets = self._in_loop(committed)
        return {
            (name, number): max(0, self.logs.dirs.view(name, number).stable_offset - offset)
            for (name, number), offset in offsets.items()
            if name in self.logs
        }

    # -------------------------------------------------------------- clients

    def fail(self, api: str, error: str, *, times: int | None = 1, topic: str | None = None) -> None:
        """Answer the next requests of an API with an error. They change nothing.

        The error stands where a broker gives it: of Produce and Fetch in each partition, of Metadata in each
        topic, of OffsetFetch UNSTABLE_OFFSET_COMMIT in each partition and NOT_COORDINATOR in each group. A
        member that gets UNKNOWN_MEMBER_ID has left its group.

        Args:
            api: Kafka's name: "Produce", "Fetch", "OffsetCommit", "JoinGroup".
            error: Kafka's name: "NOT_LEADER_OR_FOLLOWER", "UNKNOWN_MEMBER_ID".
            times: How many requests; None: all until `heal`.
            topic: Of Produce and Fetch: only the partitions of this topic have the error.

        Raises:
            UsageError: There is no such API or error, or `times` is below 1.
        """
        self._interceptor.fail(api, error, times, topic)

    def delay(self, api: str, time: Duration) -> None:
        """Handle each request of an API this much later, in real time; 0: no delay any more.

        `time`: seconds, "250ms" or a `timedelta`.
        """
        self._interceptor.delay(api, time)

    def heal(self, api: str | None = None) -> None:
        """End the faults and delays of an API; None: of all. Requests that wait are handled now."""
        self._interceptor.heal(api)

    def drop_connections(self) -> int:
        """Close the connections of all clients, without the answers that are due. Return their number."""

        async def drop() -> int:
            connections = list(self.server.connections)
            for connection in connections:
                connection.close()
            return len(connections)

        return self._in_loop(drop)

    def requests(self, api: str | None = None) -> list[Request[Any]]:
        """Return the requests that clients sent since the start, decoded: `requests("Fetch")[0].body.topics`.

        The last 100,000 requests, or 64 MiB of them, are kept.
        """
        return self._interceptor.requests(api)

    # -------------------------------------------------------------- begin and end

    def stop(self) -> None:
        """Drop the connections and end the server: clients find no broker until `start`.

        The log is closed, too. A second stop does nothing.
        """
        if self._is_stopped:
            return
        self.drop_connections()
        self._is_stopped = True
        self.server.close()
        self.logs.close()
        self._reserve()

    def start(self) -> None:
        """Start again at the same port, with the log, the groups and the transactions of before.

        `logs` and the topics that it gave are closed; get them again. Faults, delays, requests and the added
        time stay.
        """
        self._check_not_closed()
        if not self._is_stopped:
            raise UsageError(f"{self!r} is running", remedy="stop() ends it")
        self._serve(self.server.port)
        self._is_stopped = False

    def reset(self) -> None:
        """Begin again at the same port: no topics, groups, faults, delays, requests or added time.

        Connections are dropped. Clients that connect again find a new, empty cluster.
        """
        self._check_not_closed()
        self.stop()
        if self._is_bucket:
            self.directory = _new_bucket()
        for path in () if self._is_bucket else Path(self.directory).iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        self.clock = BrokerClock(self._advance)
        self._interceptor = Interceptor(self._eventual)
        self.start()

    def close(self) -> None:
        """Stop, and remove a temporary directory. A second close does nothing."""
        if not self._is_closed:
            self.stop()
            self._is_closed = True
            self._remove()

    # -------------------------------------------------------------- parts

    def _check_not_closed(self) -> None:
        if self._is_closed:
            raise UsageError(f"{self!r} does not run any more", remedy="make another Broker")

    def _serve(self, port: int) -> None:
        given: dict[str, Any] = {"lastword_commit_linger_ms": 0} if self._is_bucket else {"files": UNSYNCED}
        self.logs: LogDir = open(self.directory, "a", clock=self.clock, log_cleaner_enable=False, **given)
        try:
            self.server = serve(
                self.logs,
                f"127.0.0.1:{port}",
                partitions=self._partitions,
                auto_create_topics=self._auto_create,
                users=self._users,
                tls=self._tls or None,
            )
        except BaseException:
            self.logs.close()
            raise
        self._interceptor.attach(self.server)

    def _advance(self, ms: int, heartbeats: bool) -> None:
        if self._is_stopped:
            self.clock.move(ms)
            return

        async def advance() -> None:
            self.clock.move(ms)
            if heartbeats:
                self._interceptor.send_heartbeats()
            before = asyncio.all_tasks()
            self.server.context.timers.run()
            while due := asyncio.all_tasks() - before:  # the markers of transactions whose time is up
                await asyncio.wait(due)

        self._in_loop(advance)

    def _in_loop(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a call in the thread of the server, which runs."""
        self._check_not_closed()
        if self._is_stopped:
            raise UsageError(f"{self!r} does not run", remedy="start() starts it")

        async def run() -> T:
            return await call()

        return asyncio.run_coroutine_threadsafe(run(), self.server.loop).result(WAIT_SECONDS)

    def _reserve(self) -> None:
        """Bind the port, so that a client that is left over finds no broker of another test there.

        Two sockets may be bound to a port if one of them listens at most: the broker itself can start again.
        """
        reserved = socket.socket()
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            reserved.bind((self.server.host, self.server.port))
        RESERVED.append(reserved.detach())
        if len(RESERVED) > MOST_RESERVED:
            os.close(RESERVED.popleft())

    def _remove(self) -> None:
        if self.ca is not None:
            shutil.rmtree(self._certificates, ignore_errors=True)
        if self._is_temporary:
            shutil.rmtree(self.directory, ignore_errors=True)


def _new_bucket() -> str:
    return f"{MEMORY}broker-{next(_buckets)}/log"


def _certificate() -> tuple[tuple[str, str], str, str]:
    """Return a new certificate with its key, the file that clients trust, and their directory."""
    directory = tempfile.mkdtemp(prefix="lastword-tls-")
    certificate, key = os.path.join(directory, "cert.pem"), os.path.join(directory, "key.pem")
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-days", "2", "-keyout", key, "-out", certificate, *names]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        shutil.rmtree(directory, ignore_errors=True)
        raise UsageError(
            f"tls=True: openssl made no certificate: {error}",
            remedy="install openssl, or give the files of a certificate: tls=(certificate, key)",
        ) from error
    return (certificate, key), certificate, directory
