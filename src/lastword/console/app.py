"""Serve the page: routes, the guard before them, events, and the server in a thread.

Every request passes the guard: GET or HEAD, one `Host` that names this server (a page of another site that
resolves to this address has another one; with TLS the certificate decides), no foreign `Origin`, and the
token or a user's password. Reads that cost more than a poll run one at a time, and end when their viewer
goes away.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import ipaddress
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from lastword.console import reports
from lastword.console.watch import Watch
from lastword.errors import LastwordError, NotALogDirError, UnknownTopicError, UsageError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from lastword.api.logs import LogDir
    from lastword.values import Progress

POLL_SECONDS = 2.0
BUCKET_POLL_SECONDS = 15.0
"""Least time between two polls of a directory, and of a bucket, where a poll is a request."""
POLL_SHARE = 0.0125
"""Most of a core that polls may take: the time between them grows with their cost. Events take the rest."""
WAKE_SECONDS = 2.0
"""An event stream looks for its viewer, and for the progress of a cleaning, after this time."""
WAKES_PER_SECOND = 10
"""The most such looks in a second, of all event streams together."""
ALIVE_SECONDS = 15.0
"""An event stream sends a comment after this time, so that a lost connection is found."""
MOST_VIEWERS = 100
MOST_CONNECTIONS = 256
REQUEST_SECONDS = 10.0
"""A connection without a complete request for this time is closed: it counts as one of the most."""
DENIED_SECONDS = 0.2
"""Pause before a wrong password or token is answered."""
LOGIN_SECONDS = 60.0
"""A password that was right is not checked again for this long: a check takes milliseconds."""
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
SAFE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}

STATUSES = ((UnknownTopicError, 404), (NotALogDirError, 503), (UsageError, 400), (LastwordError, 503))
"""The status of an answer for each class of errors; the first that fits counts."""

_log = logging.getLogger("lastword.console")


class Gone(Exception):
    """Raised in a read whose viewer has gone."""


@dataclass(frozen=True)
class Access:
    """Who may read the page.

    Attributes:
        host: The host that it listens on, as it was given.
        token: The secret of the printed address.
        login: Returns whether a user has a password; then the token is not used. None: there are no users.
        tls: Arguments of uvicorn for TLS: `ssl_certfile`, `ssl_keyfile`, `ssl_ca_certs`, `ssl_cert_reqs`.
    """

    host: str = "127.0.0.1"
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    login: Callable[[str, str], bool] | None = None
    tls: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Shell:
    """Commands as text: `command("clean", "users")`, and the remedy of an error as a command."""

    command: reports.Command
    remedy: Callable[[LastwordError], str | None] = lambda error: error.remedy


class Guard:
    """Refuse requests that may not read the page, and add the headers that protect it."""

    def __init__(self, app: ASGIApp, access: Access, port: int) -> None:
        self._app = app
        self._access = access
        self._cookie = f"lastword-{port}"
        self._scheme = "https" if access.tls else "http"
        own = (socket.gethostname().lower(), access.host.lower())
        self._hosts = {f"{name}:{port}" for name in (*LOOPBACK, *own)}
        self._port = port
        self._is_default_port = port == 80  # a browser leaves it out
        self._key = secrets.token_bytes(32)
        self._logins: dict[bytes, float] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        answer = self._refusal(scope, headers) or await self._unknown(scope, headers)

        async def send_safe(message: Any) -> None:
            if message["type"] == "http.response.start":
                safe = [(name.encode(), value.encode()) for name, value in SAFE_HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *safe]}
            await send(message)

        await (answer or self._app)(scope, receive, send_safe)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("this page changes nothing", 405, {"allow": "GET, HEAD"})
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_own(hosts[0].lower()):
            return PlainTextResponse(
                f"unknown host: open the printed address, which has port {self._port}; a tunnel needs "
                f"that port on both sides: ssh -L {self._port}:127.0.0.1:{self._port} HOST",
                421,
            )
        origins = set(headers.getlist("origin")) - {f"{self._scheme}://{hosts[0]}"}
        if origins or headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            is_visit = headers.get("sec-fetch-mode") == "navigate" and not origins
            if not is_visit:  # a link from another page may be followed, and shows that page nothing
                return PlainTextResponse("not from this page", 403)
        return None

    def _is_own(self, host: str) -> bool:
        """Return whether a host is this server; an address cannot be rebound by another site's DNS.

        With TLS the certificate names the server, which may have more names than this machine has.
        """
        if self._access.tls:
            return True
        if self._is_default_port and not host.endswith(f":{self._port}"):
            host += f":{self._port}"
        if host in self._hosts:
            return True
        name, _, port = host.rpartition(":")
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return port == str(self._port)

    async def _unknown(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the answer for a request without token or password; None if it has one."""
        if self._access.login is not None:
            if await self._is_user(headers.get("authorization", "")):
                return None
            return PlainTextResponse("log in", 401, {"www-authenticate": 'Basic realm="lastword"'})
        cookie = Request(scope).cookies.get(self._cookie, "")
        if self._is_token(cookie) or self._is_token(headers.get("authorization", "").removeprefix("Bearer ")):
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if any(name == "token" and self._is_token(value) for name, value in query):
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            answer = RedirectResponse("/" + scope["path"].lstrip("/") + (f"?{rest}" if rest else ""), 303)
            secure = bool(self._access.tls)
            answer.set_cookie(
                self._cookie, self._access.token, httponly=True, samesite="strict", secure=secure
            )
            return answer
        await asyncio.sleep(DENIED_SECONDS)
        return PlainTextResponse("open the address that the command printed: it has the token", 401)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._access.token.encode())

    async def _is_user(self, given: str) -> bool:
        digest, now = (
            hmac.digest(self._key, given.encode(), hashlib.sha256),
            asyncio.get_running_loop().time(),
        )
        self._logins = {known: until for known, until in self._logins.items() if until > now}
        if digest in self._logins:
            return True
        try:
            name, _, password = (
                base64.b64decode(given.removeprefix("Basic "), validate=True).decode().partition(":")
            )
        except (binascii.Error, ValueError):
            return False
        assert self._access.login is not None
        if given.startswith("Basic ") and await asyncio.to_thread(self._access.login, name, password):
            self._logins[digest] = now + LOGIN_SECONDS
            return True
        await asyncio.sleep(DENIED_SECONDS)
        return False


class Page:
    """The page of a log directory as an ASGI application, without the guard.

    Args:
        logs: The open directories. They stay open.
        shell: The commands that the page shows.

    Attributes:
        watch: The rows of the page.
        viewers: Number of open event streams.
    """

    def __init__(self, logs: LogDir, shell: Shell) -> None:
        self.watch = Watch(logs)
        self.viewers = 0
        self._shell = shell
        self._least_seconds = BUCKET_POLL_SECONDS if logs.dirs.files.file_cost_bytes else POLL_SECONDS
        self._seconds = self._least_seconds
        self._now = logs.dirs.clock.monotonic
        self._polled = -float("inf")
        self._failed = ""
        self._polling, self._reading = asyncio.Lock(), asyncio.Lock()
        self._changed = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None
        self._read: dict[str, Any] | None = None
        self._is_closed = False
        static = files("lastword.console") / "static"
        self._static = {
            name: (static / name).read_bytes() for name in ("console.html", "console.css", "console.js")
        }
        routes = {
            **dict.fromkeys(("/", "/t/{topic}", "/t/{topic}/{partition}/records"), self._html),
            **dict.fromkeys(("/groups", "/transactions", "/quarantine"), self._html),
            "/static/{name}": self._file,
            "/api/events": self._events,
            "/api/overview": self._overview,
            "/api/groups": self._groups,
            "/api/transactions": self._transactions,
            "/api/quarantine": self._quarantine,
            "/api/t/{topic}": self._topic,
            "/api/t/{topic}/count": self._count,
            "/api/t/{topic}/plan": self._plan,
            "/api/t/{topic}/explain": self._explain,
            "/api/t/{topic}/get": self._get,
            "/api/t/{topic}/{partition}/records": self._records,
        }
        self.app = Starlette(routes=[Route(path, _answered(shell, call)) for path, call in routes.items()])

    def close(self) -> None:
        """End the event streams."""
        self._is_closed = True
        self._ring()

    def _ring(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # -------------------------------------------------------------- polls and events

    async def fresh(self) -> None:
        """Poll, unless the last poll is not older than the time between polls."""
        async with self._polling:
            if self._now() - self._polled < self._seconds:
                return
            before = self.watch.version

            def poll() -> float:
                begun = time.thread_time()
                self.watch.poll()
                return time.thread_time() - begun

            try:
                cost = await asyncio.to_thread(poll)
                is_first = self.watch.polls == 1  # it lists everything, and imports modules
                self._seconds = (
                    self._least_seconds if is_first else max(self._least_seconds, cost / POLL_SHARE)
                )
            finally:
                self._polled = self._now()
            if self.watch.version != before:
                self._ring()

    async def _poll_for_viewers(self) -> None:
        while self.viewers and not self._is_closed:
            try:
                await self.fresh()
                failed = ""
            except Exception as error:  # the next poll may succeed; without this one viewers see nothing
                failed = getattr(error, "message", None) or f"{type(error).__name__}: {error}"
            if failed != self._failed:
                self._failed = failed
                self._ring()
                if failed:
                    _log.warning("not polled: %s", failed)
            left = self._polled + self._seconds - self._now()
            await asyncio.sleep(max(left, 0.05))

    async def _events(self, request: Request) -> Response:
        if self.viewers >= MOST_VIEWERS:
            return PlainTextResponse(f"{MOST_VIEWERS} viewers at most", 503)
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        return StreamingResponse(self._stream(request), media_type="text/event-stream")

    async def _stream(self, request: Request) -> AsyncIterator[str]:
        self.viewers += 1
        if self._loop is None or self._loop.done():
            self._loop = asyncio.create_task(self._poll_for_viewers())
        try:
            sent, at, now = "", 0.0, asyncio.get_running_loop().time
            while not (self._is_closed or await request.is_disconnected()):
                changed = self._changed
                state = {"version": self.watch.version, "failed": self._failed}
                state |= {"running": reports.running(self.watch), "read": self._read}
                text = json.dumps(state | {"poll_seconds": round(self._seconds, 1)})
                if text != sent:
                    sent, at = text, now()
                    yield f"data: {text}\n\n"
                elif now() - at >= ALIVE_SECONDS:
                    at = now()
                    yield ": alive\n\n"
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), max(WAKE_SECONDS, self.viewers / WAKES_PER_SECOND))
        finally:
            self.viewers -= 1

    async def _costly(self, request: Request, read: Callable[[Any, Callable[[], bool]], Any]) -> Any:
        """Return the result of a read that may take long: one at a time, until its viewer goes away."""
        gone = threading.Event()

        def progress(done: Progress) -> None:
            self._read = {"path": request.url.path, **done.to_dict()}
            if gone.is_set():
                raise Gone

        async with self._reading:
            if await request.is_disconnected():
                raise Gone
            task = asyncio.create_task(asyncio.to_thread(read, progress, gone.is_set))
            try:
                while not (await asyncio.wait({task}, timeout=0.25))[0]:
                    if self._read is None:  # it takes long: viewers see its progress
                        self._read = {"path": request.url.path, "done_bytes": 0, "total_bytes": 0}
                    self._ring()
                    if self._is_closed or await request.is_disconnected():
                        gone.set()
                return task.result()
            finally:
                gone.set()
                self._read = None
                self._ring()

    # -------------------------------------------------------------- routes

    async def _html(self, request: Request) -> Response:
        return Response(self._static["console.html"], media_type="text/html")

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in ("console.css", "console.js"):
            return PlainTextResponse("not found", 404)
        return Response(
            self._static[name], media_type="text/css" if name.endswith("css") else "text/javascript"
        )

    async def _overview(self, request: Request) -> Any:
        await self.fresh()
        since = _number(request.query_params.get("since", "0"), "since")
        return await asyncio.to_thread(reports.overview, self.watch, since)

    async def _topic(self, request: Request) -> Any:
        await self.fresh()
        first = _number(request.query_params.get("first", "0"), "first")
        name = request.path_params["topic"]
        return await asyncio.to_thread(reports.topic, self.watch, name, first, self._shell.command)

    async def _count(self, request: Request) -> Any:
        name, partition = request.path_params["topic"], _partition(request)
        await self.fresh()
        await self._costly(request, lambda progress, _: self.watch.count(name, partition, progress))
        return {"version": self.watch.version}

    async def _plan(self, request: Request) -> Any:
        name = request.path_params["topic"]
        return {
            "plans": await self._costly(
                request, lambda progress, _: reports.plans(self.watch, name, progress)
            )
        }

    async def _explain(self, request: Request) -> Any:
        name, partition, key = (
            request.path_params["topic"],
            _partition(request),
            request.query_params.get("key", ""),
        )
        return await self._costly(request, lambda *_: reports.explain(self.watch, name, partition, key))

    async def _get(self, request: Request) -> Any:
        name, key = request.path_params["topic"], request.query_params.get("key", "")
        return await self._costly(request, lambda *_: reports.find(self.watch, name, key))

    async def _records(self, request: Request) -> Any:
        query, name = request.query_params, request.path_params["topic"]
        partition = _number(request.path_params["partition"], "partition")
        before = query.get("before")
        options: dict[str, Any] = {
            "start": query.get("offset", query.get("start", "")),
            "before": None if before is None else _number(before, "before"),
            "view": query.get("view", "log"),
            "limit": _number(query.get("limit", "50"), "limit"),
        }
        return await self._costly(
            request,
            lambda _, stopped: reports.records(self.watch, name, partition, stopped=stopped, **options),
        )

    async def _groups(self, request: Request) -> Any:
        await self.fresh()
        name = request.query_params.get("topic")
        costs = reports.costs(self.watch)
        if not costs["groups"]:
            return {"groups": [], "read_bytes": 0}
        if request.query_params.get("read") != "1":
            return {"groups": None, "read_bytes": costs["groups"]}
        rows = await self._costly(request, lambda *_: reports.groups(self.watch, name))
        return {"groups": rows, "read_bytes": costs["groups"]}

    async def _transactions(self, request: Request) -> Any:
        await self.fresh()
        costs = reports.costs(self.watch)
        held = await asyncio.to_thread(reports.held, self.watch)
        if held and request.query_params.get("read") != "1":
            return {"transactions": None, "held": held, "errors": [], "read_bytes": costs["transactions"]}
        found = await self._costly(request, lambda *_: reports.transactions(self.watch, self._shell.command))
        return {**found, "held": held, "read_bytes": costs["transactions"]}

    async def _quarantine(self, request: Request) -> Any:
        await self.fresh()
        return {"partitions": await asyncio.to_thread(reports.quarantined, self.watch, self._shell.command)}


def _number(text: str, name: str) -> int:
    """Return a number of a request. UsageError: it is not one."""
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise UsageError(f"{name} {text[:40]!r} is not a number", remedy=f"give {name} as digits")
    return int(text)


def _partition(request: Request) -> int | None:
    text = request.query_params.get("partition")
    return None if text is None else _number(text, "partition")


def _answered(
    shell: Shell, call: Callable[[Request], Awaitable[Any]]
) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint of a route: values become JSON, and errors an object with message and remedy."""

    async def endpoint(request: Request) -> Response:
        try:
            answer = await call(request)
        except LastwordError as error:
            status = next(status for kind, status in STATUSES if isinstance(error, kind))
            return JSONResponse({"error": error.message, "remedy": shell.remedy(error)}, status)
        except Gone:
            return PlainTextResponse("", 499)
        except Exception as error:
            _log.error("%s: %s: %s", request.url.path, type(error).__name__, error)
            return JSONResponse({"error": "a bug in lastword: the log of the command has it"}, 500)
        return answer if isinstance(answer, Response) else JSONResponse(answer)

    return endpoint


class Prompt(H11Protocol):
    """A connection that is closed if its next request takes too long to come. uvicorn has no such limit."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self.loop.call_later(REQUEST_SECONDS, self._close_if_idle, self.cycle)

    def _close_if_idle(self, before: object) -> None:
        """Close the connection if it has received no request since `before`, and answers none."""
        if self.transport.is_closing():
            return
        if self.cycle is before and (before is None or self.cycle.response_complete):
            self.transport.close()
        else:
            self.loop.call_later(REQUEST_SECONDS, self._close_if_idle, self.cycle)


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address. Port 0 takes a free port.

    Raises:
        UsageError: The process cannot listen on the address.
    """
    name = host.strip("[]")
    try:
        family = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((name, port), family=family)
    except OSError as error:
        # A failed look-up has a code of its own; else `strerror` would repeat the address.
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise UsageError(
            f"cannot listen on {host}:{port}: {reason}", remedy="choose another port; 0: any"
        ) from error


class Console:
    """A running page: a context manager. Its server is a thread with an event loop of its own.

    Args:
        logs: The open directories. They stay open.
        listener: A socket that listens on the host of `access`. It is closed at the end.
        access: Who may read the page.
        shell: The commands that the page shows.
    """

    def __init__(self, logs: LogDir, listener: socket.socket, access: Access, shell: Shell) -> None:
        self._listener = listener
        self._port = listener.getsockname()[1]
        self._access = access
        self._page: Page | None = None
        self._build: Callable[[], Page] = partial(Page, logs, shell)
        self._server: uvicorn.Server | None = None
        self._is_built = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lastword-console", daemon=True)

    @property
    def url(self) -> str:
        """Return the address of the page, with the token if there are no users."""
        scheme = "https" if self._access.tls else "http"
        host = (
            self._access.host if self._access.host not in ("0.0.0.0", "::", "[::]") else socket.gethostname()
        )
        host = f"[{host}]" if ":" in host and not host.startswith("[") else host
        token = "" if self._access.login else f"?token={self._access.token}"
        return f"{scheme}://{host}:{self._port}/{token}"

    def __enter__(self) -> Console:
        self._thread.start()
        self._is_built.wait()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._server is not None:
            self._server.should_exit = True
        self._thread.join(10)
        self._listener.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        finally:
            self._is_built.set()

    async def _serve(self) -> None:
        page = self._page = self._build()
        config = uvicorn.Config(
            Guard(page.app, self._access, self._port),
            lifespan="off",
            http=Prompt,
            ws="none",
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_graceful_shutdown=2,
            h11_max_incomplete_event_size=16 << 10,
            **self._access.tls,
        )
        server = self._server = uvicorn.Server(config)
        self._is_built.set()
        serving = asyncio.create_task(server.serve(sockets=[self._listener]))
        while not server.should_exit and not serving.done():
            await asyncio.sleep(0.1)
        page.close()
        await serving
