"""`serve`: sockets and the event loop. Bytes in, requests to the node, parts of answers out.

The sockets are non-blocking and used without a transport. So the batches of a fetch go from a file to the
socket (`Handle.send_to`) as far as the client takes them, with nothing copied. No descriptor is held while
the client takes nothing.

Bounds. A connection is not read while a request of it is in work or an answer waits for the client. So a
connection holds at most one frame that is incomplete, one that is in work, and one answer. `Memory` bounds
the sum over all connections. A range of a file takes memory only while it is sent.

The number of connections is bounded, and a connection that is idle is closed. If no descriptor is left, the
server accepts no connection for a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import resource
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from lastword import metrics
from lastword.errors import (
    LastwordError,
    MalformedMessageError,
    ServerFencedError,
    UnsupportedVersionError,
    UsageError,
)
from lastword.parse import check_path
from lastword.protocol import FileRange, Request, ServerConnection, codes
from lastword.protocol.codecs import Part
from lastword.protocol.schemas import APIS, Message
from lastword.server.context import Options, ServerContext
from lastword.server.memory import Memory
from lastword.server.node import ClusterNode
from lastword.server.terms import Terms
from lastword.server.topics import Refused
from lastword.values import Closing

if TYPE_CHECKING:
    from lastword.api.logs import LogDir
    from lastword.server.context import Answer
    from lastword.server.security import Authentication, Peer, TlsSocket

RECEIVE_BYTES = 128 << 10
"""Most bytes of one receive."""
COPIED_BYTES = 16 << 10
"""A range of a file up to this size is read and sent with the bytes before it, in one call."""
MOST_BUFFERS = 64
SENT_BYTES = 256 << 10
"""Ranges of files that are read for one send have about this many bytes, at most."""
TURN_SECONDS = 0.01
"""Requests of one connection are handled for this time before other connections have their turn."""
MOST_IN_WORK = 100
"""Most requests of a connection in work. An idempotent producer has 5 in flight."""
IN_WORK_BYTES = 8 << 20
"""No request is added to those that wait for commits and have this many bytes."""
ACCEPT_PAUSE_SECONDS = 1.0
READY_SECONDS = 30.0
"""A connection has to be authenticated after this time."""
LOGGED_CHARACTERS = 100
"""Characters of a client id that a line of the log shows."""
REPEATED_SECONDS = 60.0
"""A warning that clients can cause is logged once in this time."""
DRAIN_SECONDS = 5.0
THREADS = 4

GONE = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""Errors of a connection that the client has closed."""

_log = logging.getLogger("lastword.server")


class _Work(NamedTuple):
    """A request in work, its answer, and the time of the loop when it began."""

    request: Request[Any]
    answer: asyncio.Future[Any]
    began: float


class ClientConnection:
    """One client: reads requests, hands them to the node one at a time, sends the answers in order.

    In a bucket a Produce may follow others that wait only for their commit (`begun`): so the requests of one
    client share commits.

    Attributes:
        address: Address and port of the client.
        held: Bytes in memory: of a request that is incomplete, of one that is in work, and of its answer.
        moved: Bytes received and sent.
        active: Time of the loop when bytes were received or sent last.
        has_failed: As for `Peer`. The connection is closed when its requests in work are answered: its client
            sends all again, in their order.
        awaited: As for `Peer`.
    """

    def __init__(self, server: Server, sock: socket.socket | TlsSocket, address: str) -> None:
        self.address = address
        self._server = server
        self._loop = server.loop
        self._socket = sock
        self._fd = sock.fileno()  # a socket in an error of the selector is formatted, which costs 30 us
        self._tls = None if isinstance(sock, socket.socket) else sock
        self._is_shaking = self._tls is not None
        self._protocol = ServerConnection(max_frame=server.limits.socket_request_max_bytes)
        self._authentication: Authentication | None = None
        self._until_ready: asyncio.TimerHandle | None = None
        if server.users is not None:
            from lastword.server import security

            self._authentication = security.Authentication(
                self, server.users, server.mechanisms, server.context.in_pool, server.handle
            )
            apis = {key: APIS[key] for key in security.BEFORE}
            self._protocol.allow(apis, security.UNAUTHENTICATED_BYTES)
        if self._is_shaking or self._authentication is not None:
            self._until_ready = self._loop.call_later(READY_SECONDS, self._check_ready)
        self._client_id: str | None = None
        self._requests: Iterator[Request[Any]] = iter(())
        self._in_work: deque[_Work] = deque()
        self._next: Request[Any] | None = None  # received; waits until no other one is in work
        self._begun: Request[Any] | None = None
        self._parts: deque[Part] = deque()
        self._answer_bytes = 0  # of the answer in `_parts`, in memory
        self._is_reading = self._is_writing = self._is_closed = False
        self._is_draining = self._is_paused = self._is_resting = False
        self.has_failed = False
        self.awaited: dict[tuple[Any, ...], int] = {}
        self.held = self.moved = 0
        self._began = 0.0  # of the request that is handled or answered now
        self.active = self._loop.time()
        self.log(logging.DEBUG, "connected")
        self._read(True)

    def __repr__(self) -> str:
        return f"Connection({self.address})"

    def log(
        self,
        level: int,
        text: str,
        *arguments: Any,
        request: Request[Any] | None = None,
        exc_info: bool = False,
    ) -> None:
        """Log a line about this connection; its address, client and request are also fields of the record."""
        fields: dict[str, Any] = {"peer": self.address}
        if self._client_id is not None:
            fields["client_id"] = self._client_id[:LOGGED_CHARACTERS]
        if request is not None:
            fields |= {"api": request.api.name, "api_key": request.api.key}
        _log.log(level, f"%s: {text}", self.address, *arguments, exc_info=exc_info, extra={"fields": fields})

    def has_gone(self) -> bool:
        """Return whether the client has closed the connection. Any thread may call it."""
        if self._is_closed:
            return True
        try:
            sock = self._socket
            return not (sock.recv(1, socket.MSG_PEEK) if isinstance(sock, socket.socket) else sock.peek())
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            return True

    # -------------------------------------------------------------- in

    def _receive(self) -> None:
        if self._is_shaking:
            self._shake()
            return
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        self.active = self._loop.time()
        self.moved += len(data)
        try:
            self._requests = self._protocol.receive_data(data)
        except (MalformedMessageError, UnsupportedVersionError):
            self.close()
            return
        self._handle_requests()
        self._account()

    def _handle_requests(self) -> None:
        """Handle the requests that were received, until one of them or a slow client has to be waited for.

        A client may send thousands of requests together: the others have their turn after TURN_SECONDS.
        """
        end = self._loop.time() + TURN_SECONDS
        self._is_resting = False
        request = None
        try:
            while not self._parts and not self._is_closed and self._has_room():
                request, self._next = self._next or next(self._requests, None), None
                if request is None:
                    self._read(not self._is_draining)
                    if self._is_draining and not self._in_work:
                        self.close()
                    return
                if self._in_work and request.api.name != "Produce":
                    self._next = request
                    break
                self._handle(request)
                if self._loop.time() > end:
                    self._is_resting = True
                    self._loop.call_soon(self._resume)
                    break
        except (MalformedMessageError, UnsupportedVersionError) as error:
            self.refuse(error.message, "malformed")
        except (Refused, ServerFencedError) as refused:  # a Produce without acknowledgement, a standby
            self.log(logging.INFO, "closed: %s", refused.message, request=request)
            self.close()
        except Exception:
            self.log(logging.ERROR, "closed", request=request, exc_info=True)
            self.close()
        self._read(False)

    def _has_room(self) -> bool:
        """Return whether another request may be handled."""
        if not self._in_work:
            return True
        if self._in_work[-1].request is not self._begun or len(self._in_work) == MOST_IN_WORK:
            return False
        return sum(work.request.size for work in self._in_work) < IN_WORK_BYTES

    def begun(self, request: Request[Any]) -> None:
        """Take note that a Produce has its place in a commit. Those behind it may follow."""
        self._begun = request
        if self._in_work and self._in_work[-1].request is request:
            self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        """Send the answers that are there, and handle the requests that were received."""
        self._send_answers()
        if not self._is_closed:
            self._handle_requests()
        self._account()

    def _handle(self, request: Request[Any]) -> None:
        self._client_id = request.client_id
        if metrics.is_exported:
            self._began = self._loop.time()
        if self._authentication is not None:
            answer = self._authentication.handle(request)
        else:
            try:
                answer = self._server.handle(request, self)
            except (Refused, LastwordError) as error:
                answer = self._refusal(request, error)
        if not isinstance(answer, asyncio.Future):
            if not self._in_work:
                self._send(request, answer)
                return
            answered: asyncio.Future[Any] = self._loop.create_future()
            answered.set_result(answer)
            answer = answered
        self._in_work.append(_Work(request, answer, self._began))
        answer.add_done_callback(self._answered)

    def _answered(self, answer: asyncio.Future[Any]) -> None:
        if self._is_closed:
            if not answer.cancelled():
                answer.exception()
            return
        self._resume()

    def _send_answers(self) -> None:
        """Send the answers that are there, in the order of the requests, as far as the client takes them."""
        request = None
        try:
            while (
                self._in_work and self._in_work[0].answer.done() and not self._parts and not self._is_closed
            ):
                request, answer, self._began = self._in_work.popleft()
                try:
                    body = answer.result()
                except (Refused, LastwordError) as error:
                    body = self._refusal(request, error)
                    if self.has_failed:
                        self._requests, self._next, self._is_draining = iter(()), None, True
                self._send(request, body)
        except (Refused, ServerFencedError) as refused:
            self.log(logging.INFO, "closed: %s", refused.message, request=request)
            self.close()
        except Exception:
            self.log(logging.ERROR, "closed", request=request, exc_info=True)
            self.close()

    def _refusal(self, request: Request[Any], error: Refused | LastwordError) -> Message:
        """Return the answer to a request that failed. Raises the error again if no answer may have it."""
        from lastword.protocol.refusals import refusal_answer

        if isinstance(error, ServerFencedError) or self._server.context.is_standby:
            raise error  # another server answers
        is_awaited = request.api.name != "Produce" or request.body.acks != 0
        if self._authentication is None and is_awaited:
            code = error.code if isinstance(error, Refused) else error.kafka_code
            answer = refusal_answer(request, code, error.message)
            if first_error(answer):
                level = logging.INFO if isinstance(error, Refused) else logging.ERROR
                is_unexpected = code == codes.UNKNOWN_SERVER_ERROR
                self.log(level, "refused: %s", error.message, request=request, exc_info=is_unexpected)
                return answer
        raise error

    # -------------------------------------------------------------- handshake, authentication

    def _shake(self) -> None:
        """Go on with the handshake of TLS."""
        assert self._tls is not None
        self.active = self._loop.time()
        try:
            awaited = self._tls.handshake()
        except GONE as error:
            self.log(logging.DEBUG, "closed in the handshake of TLS: %s", error)
            self.close()
            return
        except OSError as error:
            self.refuse(f"no handshake of TLS: {getattr(error, 'reason', None) or error}", "authentication")
            return
        self._write(awaited == "write")
        self._is_shaking = awaited is not None

    def _check_ready(self) -> None:
        if not self._is_closed and (self._is_shaking or self._authentication is not None):
            self.refuse(f"not authenticated in {READY_SECONDS:.0f} s", "authentication")

    def expect_tokens(self, has_tokens: bool) -> None:
        """Take the next frames for tokens of SASL, or for requests."""
        self._protocol.has_tokens = has_tokens

    def authenticated(self, user: str) -> None:
        """Serve all requests from now on."""
        self.log(logging.DEBUG, "authenticated as %.100r", user)
        self._authentication = None
        self._protocol.has_tokens = False
        self._protocol.allow(APIS, self._server.limits.socket_request_max_bytes)

    # -------------------------------------------------------------- out

    def _send(self, request: Request[Any], body: Any) -> None:
        if not self._server.terms.may_answer():
            renewed = self._server.terms.renewed(body)
            self._in_work.appendleft(_Work(request, renewed, self._began))
            renewed.add_done_callback(self._answered)
            return
        if body is None:  # a Produce without acknowledgement
            if metrics.is_exported:
                self._count(request, None)
            return
        self._parts.extend(self._protocol.response(request, body))
        self._answer_bytes = sum(len(part) for part in self._parts if not isinstance(part, FileRange))
        if metrics.is_exported:
            self._count(request, body)
        self._flush()

    def _count(self, request: Request[Any], body: Any) -> None:
        """Count a request and its answer, of which nothing is sent yet."""
        name, error = request.api.name, 0 if body is None else first_error(body)
        metrics.SERVER_REQUESTS.add(1, name, codes.ERROR_NAMES.get(error, str(error)))
        metrics.SERVER_REQUEST_SECONDS.observe(self._loop.time() - self._began, name)
        metrics.SERVER_RECEIVED_BYTES.add(request.size + 4, name)
        metrics.SERVER_SENT_BYTES.add(sum(map(len, self._parts)), name)

    def _flush(self) -> None:
        """Send as much as the client takes."""
        parts = self._parts
        try:
            while parts:
                first = parts[0]
                if self._tls is not None and isinstance(first, FileRange):
                    self._split()
                    first = parts[0]
                if isinstance(first, FileRange) and first.length > COPIED_BYTES:
                    sent = first.file.send_to(self._socket, first.length, first.position)
                    if sent == first.length:
                        parts.popleft()
                    elif sent == 0:
                        raise OSError("the file is shorter than it was")
                    else:
                        parts[0] = FileRange(first.file, first.position + sent, first.length - sent)
                else:
                    sent = self._socket.sendmsg(self._buffers())
                    self._drop(sent)
                self.moved += sent
                self.active = self._loop.time()
        except (BlockingIOError, InterruptedError):
            self._write(True)
            return
        except (OSError, LastwordError) as error:
            # Clients end without waiting for the answer to a long poll.
            self.log(logging.DEBUG if isinstance(error, GONE) else logging.INFO, "closed: %s", error)
            self.close()
            return
        self._write(False)

    def _split(self) -> None:
        """Read the first block of the range that is sent next: TLS encrypts it."""
        first: Any = self._parts.popleft()
        if first.length > SENT_BYTES:
            left = first.length - SENT_BYTES
            self._parts.appendleft(FileRange(first.file, first.position + SENT_BYTES, left))
        size = min(first.length, SENT_BYTES)
        self._parts.appendleft(_read_range(FileRange(first.file, first.position, size)))

    def _buffers(self) -> list[Any]:
        """Return the next parts to send as buffers. Small ranges of files are read."""
        buffers: list[Any] = []
        size = 0
        for at, part in enumerate(self._parts):
            if isinstance(part, FileRange):
                if part.length > COPIED_BYTES or size > SENT_BYTES:
                    break
                part = self._parts[at] = _read_range(part)
            buffers.append(part)
            size += len(part)
            if len(buffers) == MOST_BUFFERS:
                break
        return buffers

    def _drop(self, sent: int) -> None:
        parts = self._parts
        while parts:
            part: Any = parts[0]
            if sent < len(part):
                if sent:
                    parts[0] = memoryview(part)[sent:]
                return
            sent -= len(part)
            parts.popleft()
            if not sent:
                return

    def _writable(self) -> None:
        if self._is_shaking:
            self._shake()
            return
        self._flush()
        self._resume()

    # -------------------------------------------------------------- limits

    def _account(self) -> None:
        """Report the memory that this connection holds."""
        if self._is_closed:
            return
        held = self._protocol.waiting
        held += sum(work.request.size for work in self._in_work)
        if self._next is not None:
            held += self._next.size
        if self._parts:
            held += self._answer_bytes
        if held != self.held:
            before, self.held = self.held, held
            self._server.memory.changed(self, before)

    def pause(self) -> None:
        """Read nothing until `resume`."""
        self._is_paused = True
        self._read(False)

    def resume(self) -> None:
        """Read on, unless a request is in work or an answer waits."""
        self._is_paused = False
        if self._has_room() and self._next is None and not self._parts and not self._is_resting:
            self._read(True)

    def is_idle(self, since: float) -> bool:
        """Return whether nothing was received or sent since a time of the loop, and no request is in work."""
        return self.active < since and not self._in_work

    def refuse(self, why: str, reason: str) -> None:
        """Close the connection, with a line in the log; `reason` is a label of the metric."""
        self.log(logging.INFO, "closed: %s", why)
        metrics.SERVER_REFUSED_CONNECTIONS.add(1, reason)
        self.close()

    # -------------------------------------------------------------- readiness, end

    def _read(self, wanted: bool) -> None:
        wanted = wanted and not self._is_paused
        if wanted != self._is_reading and not self._is_closed:
            self._is_reading = wanted
            if wanted:
                self._loop.add_reader(self._fd, self._receive)
            else:
                self._loop.remove_reader(self._fd)

    def _write(self, wanted: bool) -> None:
        if wanted != self._is_writing and not self._is_closed:
            self._is_writing = wanted
            if wanted:
                self._loop.add_writer(self._fd, self._writable)
            else:
                self._loop.remove_writer(self._fd)

    def drain(self) -> None:
        """Finish the requests that were received, then close."""
        self._is_draining = True
        if not self._in_work and not self._parts and not self._is_resting:
            self.close()

    def close(self) -> None:
        """Close the socket; a request in work goes on without its answer."""
        if not self._is_closed:
            self._read(False)
            self._write(False)
            self._is_closed = True
            if self._until_ready is not None:
                self._until_ready.cancel()
            self._parts.clear()
            self._socket.close()
            before, self.held = self.held, 0
            self._server.memory.changed(self, before)
            self.log(logging.DEBUG, "disconnected")
            self._server.closed(self)


def first_error(message: Any) -> int:
    """Return the first error code of a message, or of a struct in it, that is not 0."""
    code: int = getattr(message, "error_code", 0)
    if code:
        return code
    for name in message.__slots__:
        value = getattr(message, name)
        for part in value if isinstance(value, list) else (value,):
            if not isinstance(part, Message):
                break
            code = first_error(part)
            if code:
                return code
    return 0


def _read_range(part: FileRange) -> bytes:
    data: bytes = part.file.pread(part.length, part.position)
    if len(data) < part.length:
        raise OSError("the file is shorter than it was")
    return data


class Server(Closing):
    """A running server: a context manager. Get it from `lastword.serve`.

    Attributes:
        host: The host that clients connect to.
        port: The port.
        context: What the handlers share. For tools, as all below; it may change.
        node: The handlers of requests.
        handle: Answers a request of a connection: `ClusterNode.handle`, or the function of a test before it.
        connections: The open connections. Used in the thread of the event loop.
        loop: The event loop.
    """

    def __init__(self, logs: LogDir, listener: socket.socket, options: Options, *, owns_logs: bool) -> None:
        self._logs = logs
        self._owns_logs = owns_logs
        self._listener = listener
        self.host, self.port = _address(options.advertise or options.listen)
        if options.advertise is None:
            self.port = listener.getsockname()[1]
        self.loop = asyncio.SelectorEventLoop()
        self.loop.set_exception_handler(_log_exception)
        self.users, self._tls_context = options.users, options.tls
        self.mechanisms = options.mechanisms
        self.limits = logs.dirs.settings.instance
        self.memory = Memory(self.limits.queued_max_request_bytes, self.loop)
        self._most_connections = self.limits.max_connections
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if descriptors != resource.RLIM_INFINITY:
            self._most_connections = min(self._most_connections, descriptors // 2)
        self._warned: dict[str, float] = {}
        self.connections: set[ClientConnection] = set()
        self._is_closed = False
        self._drained = asyncio.Event()
        self._options, self._pools = options, _pools()
        self.context: ServerContext
        self.terms = Terms(self, logs)
        self.handle: Callable[[Request[Any], Peer], Answer]
        self.begin_term()
        # Connections inherit the option. Closed ones without it keep the next server from the address.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.listen(1024)
        self._thread = threading.Thread(target=self._run, name="lastword-serve", daemon=True)
        self._thread.start()
        self.terms.start()
        metrics.watch(self)

    def begin_term(self) -> None:
        """Make the handlers: those of the active server, or of a standby."""
        address, session = (self.host, self.port), self.terms.session
        self.context = ServerContext(self._logs, self.loop, self._pools, address, self._options, session)
        self.node = ClusterNode(self.context)
        self.handle = self.node.handle

    async def end_term(self) -> None:
        """Close all connections, and end the work of the handlers."""
        for connection in list(self.connections):
            connection.close()
        self.node.drain()
        self.context.timers.cancel()
        await self._end_tasks()
        pools, self._pools = self._pools, _pools()
        for pool in pools:
            await self.loop.run_in_executor(None, pool.shutdown)

    async def _end_tasks(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:  # work that no connection waits for, such as the end of a transaction
            _, late = await asyncio.wait(others, timeout=DRAIN_SECONDS)
            for task in late:
                task.cancel()

    @property
    def role(self) -> str:
        """Return "active", or "standby" while another server of a log in a bucket is active."""
        return "standby" if self.context.is_standby else "active"

    @property
    def bootstrap_servers(self) -> str:
        """Return host and port for clients."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"Server({self.bootstrap_servers!r}{', closed' if self._is_closed else ''})"

    def measure(self) -> None:
        """Set the gauges of this server."""
        metrics.SERVER_CONNECTIONS.set(len(self.connections), self.bootstrap_servers)
        metrics.SERVER_HELD_BYTES.set(self.memory.used, self.bootstrap_servers)

    def close(self) -> None:
        """Finish the requests that were received, refuse others, sync, and end.

        A request that takes longer than DRAIN_SECONDS has no answer, but its work is finished. A second close
        does nothing.
        """
        if self._is_closed:
            return
        self._is_closed = True
        metrics.unwatch(self)
        for gauge in (metrics.SERVER_CONNECTIONS, metrics.SERVER_HELD_BYTES):
            gauge.remove(self.bootstrap_servers)
        self.terms.stop()
        asyncio.run_coroutine_threadsafe(self._drain(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        for pool in self._pools:
            pool.shutdown()
        try:
            try:
                self._logs.sync()
            finally:
                self.terms.end()
        finally:
            if self._owns_logs:
                self._logs.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.add_reader(self._listener, self._accept)
        self.loop.call_soon(self._close_idle)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    def _accept(self) -> None:
        for _ in range(100):
            try:
                sock, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor or no memory is left; the socket stays readable
                self.warn("no connection is accepted for a second: %s", error.strerror)
                self.loop.remove_reader(self._listener)
                self.loop.call_later(ACCEPT_PAUSE_SECONDS, self._accept_again)
                return
            if self.context.is_closing:  # between two terms: no handler may commit
                sock.close()
                continue
            peer = f"{address[0]}:{address[1]}"
            if len(self.connections) >= self._most_connections:
                sock.close()
                metrics.SERVER_REFUSED_CONNECTIONS.add(1, "limit")
                text = "%s: refused: %d connections are open (max.connections)"
                self.warn(text, peer, len(self.connections), peer=peer)
                continue
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream: socket.socket | TlsSocket = sock
            if self._tls_context is not None:
                from lastword.server.security import TlsSocket

                try:
                    stream = TlsSocket(self._tls_context, sock)
                except OSError:  # the client has gone
                    sock.close()
                    continue
            self.connections.add(ClientConnection(self, stream, peer))

    def _accept_again(self) -> None:
        if self._listener.fileno() != -1:
            self.loop.add_reader(self._listener, self._accept)

    def warn(self, message: str, *arguments: Any, **fields: Any) -> None:
        """Log a warning with fields, unless it was logged a short time ago."""
        now = self.loop.time()
        if now - self._warned.get(message, -REPEATED_SECONDS) >= REPEATED_SECONDS:
            self._warned[message] = now
            _log.warning(message, *arguments, extra={"fields": fields})

    def _close_idle(self) -> None:
        """Close connections that are idle; repeat."""
        seconds = self.limits.connections_max_idle_ms / 1000
        since = self.loop.time() - seconds
        for connection in list(self.connections):
            if connection.is_idle(since):
                connection.log(logging.DEBUG, "idle for %.0f s", seconds)
                connection.close()
        self.loop.call_later(min(30.0, seconds / 4), self._close_idle)

    def closed(self, connection: ClientConnection) -> None:
        """Drop a connection that was closed."""
        self.connections.discard(connection)
        if not self.connections:
            self._drained.set()

    async def _drain(self) -> None:
        self.loop.remove_reader(self._listener)
        self._listener.close()
        self.node.drain()
        self._drained.clear()
        for connection in list(self.connections):
            connection.drain()
        if self.connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._drained.wait(), DRAIN_SECONDS)
        for connection in list(self.connections):
            connection.close()
        await self._end_tasks()


def serve(
    directory: str | os.PathLike[str] | LogDir,
    listen: str = "127.0.0.1:9092",
    *,
    advertise: str | None = None,
    insecure: bool = False,
    users: str | os.PathLike[str] | Mapping[str, str] | None = None,
    tls: ssl.SSLContext | str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    auto_create_topics: bool = True,
    partitions: int = 1,
) -> Server:
    """Serve a log directory to Kafka's clients. Return when the server accepts connections.

    Args:
        directory: A path, which is opened to append and closed with the server; or a `LogDir` of mode "a",
            which stays open, so that Python and clients work on one log.
        listen: Host and port. Port 0: the system chooses one.
        advertise: Host and port in the answers, to which clients connect; None: those of `listen`.
        insecure: Serve another interface than loopback, without authentication.
        users: A file of users, as `lastword users` writes it: clients have to log in. Or passwords by name,
            for tests.
        tls: The path of a file with a certificate and its key; or a list or tuple: the certificate, its key
            and, if clients have to show a certificate, the authorities for theirs; or a context.
        auto_create_topics: Create a topic when a client that allows it requests the topic's metadata.
        partitions: Number of partitions of a topic whose creator gives none.

    Raises:
        UsageError: The address is not a loopback address and clients need not log in, the users or the
            certificate cannot be read, or the `LogDir` cannot be changed.
    """
    from lastword.api.logs import LogDir

    if users is not None:
        from lastword.server import security
    options = Options(
        listen=listen,
        advertise=advertise,
        insecure=insecure,
        users=None if users is None else security.Users(users),
        tls=_tls_context(tls),
        auto_create_topics=auto_create_topics,
        partitions=partitions,
    )
    if isinstance(directory, LogDir):
        directory.dirs.require_writable()
    with contextlib.ExitStack() as until_it_runs:
        listener = until_it_runs.enter_context(bound(options))
        if isinstance(directory, LogDir):
            server = Server(directory, listener, options, owns_logs=False)
        else:
            from lastword.api.opening import open

            logs = until_it_runs.enter_context(open(check_path("directory", directory), "a"))
            server = Server(logs, listener, options, owns_logs=True)
        until_it_runs.pop_all()
        return server


def _tls_context(
    given: ssl.SSLContext | str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
) -> ssl.SSLContext | None:
    """Return the context of TLS that an argument of `serve` gives, or names by files."""
    if given is None or isinstance(given, ssl.SSLContext):
        return given
    from lastword.server import security

    paths = given if isinstance(given, list | tuple) else [given]
    if not 1 <= len(paths) <= 3:
        raise UsageError(f"tls={given!r} are no files", remedy="the certificate, its key, and authorities")
    return security.tls_context(*[check_path("tls", path) for path in paths])


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"{text!r} is not an address", remedy='give host and port, as "127.0.0.1:9092"')
    return host.strip("[]") or "127.0.0.1", int(port)


def bound(options: Options) -> socket.socket:
    """Return a socket that is bound to the address of the options, and does not listen yet.

    Raises:
        UsageError: The process cannot listen on the address, the server would be open to everyone, or no
            client could connect to the address that is advertised.
    """
    host, port = _address(options.listen)
    # Python encodes a host that is text by IDNA, whose tables take 1 ms to load.
    encoded = host.encode() if host.isascii() else host
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            encoded, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise UsageError(f"{host}: {error.strerror}", remedy="give an address of this machine") from error
    interface = ipaddress.ip_address(address[0])
    is_open = options.users is None and (options.tls is None or options.tls.verify_mode != ssl.CERT_REQUIRED)
    if is_open and not options.insecure and not interface.is_loopback:
        raise UsageError(
            f"{host} is not a loopback address: everyone who reaches it could read and change the log",
            remedy='users="users.toml" has clients log in; insecure=True serves it without authentication',
        )
    if options.advertise is not None:
        _address(options.advertise)
    elif interface.is_unspecified:
        raise UsageError(
            f"{host} means every interface, and no client can connect to such an address",
            remedy='advertise="log.example:9092", the address that clients connect to',
        )
    listener = socket.socket(family, kind, number)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Else Linux lets another socket bind to the address, and listen, until this one listens.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise UsageError(
            f"cannot listen on {host}:{port}: {error.strerror}", remedy="choose another port; 0: any"
        ) from error
    return listener


def _pools() -> tuple[ThreadPoolExecutor, ThreadPoolExecutor]:
    """Return the threads that wait for the log, and the thread of changes of topics and settings."""
    changes = ThreadPoolExecutor(1, "lastword-serve-changes")
    return ThreadPoolExecutor(THREADS, "lastword-serve"), changes


def _log_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not isinstance(context.get("exception"), ServerFencedError):  # no client is there for its answer
        _log.error("%s", context.get("message"), exc_info=context.get("exception"))
