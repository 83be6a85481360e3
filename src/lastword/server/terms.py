"""`Terms`: whether a server of a log in a bucket is the active one, or a standby; each change begins a term.

Nothing goes on from a term to the next one but the standby's connections: a server that is fenced closes its
connections, ends its work, and begins as a standby.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from lastword import metrics
from lastword.errors import LastwordError, ServerFencedError

if TYPE_CHECKING:
    from lastword.api.logs import LogDir
    from lastword.bucket.servers import ServerSession
    from lastword.server.context import ServerContext

STORE_PAUSE_SECONDS = 0.1
"""Pause after a failed renewal."""
_log = logging.getLogger("lastword.server")


class Served(Protocol):
    """A server, as its terms use it."""

    @property
    def context(self) -> ServerContext:
        """The context of the handlers."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop."""

    @property
    def role(self) -> str:
        """Return "active" or "standby"."""

    @property
    def bootstrap_servers(self) -> str:
        """Return host and port for clients."""

    def warn(self, message: str, *arguments: Any) -> None:
        """Log a warning, unless it was logged a short time ago."""

    def begin_term(self) -> None:
        """Make the handlers."""

    async def end_term(self) -> None:
        """Close all connections, and end the work of the handlers."""


class Terms:
    """The terms of a server. Over a directory there is one: its lock keeps other servers away.

    Attributes:
        session: The session among the servers of a log in a bucket; None: of a directory.
    """

    def __init__(self, server: Served, logs: LogDir) -> None:
        self._server = server
        self._logs = logs
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lastword-serve-session", daemon=True)
        self.session = self._new_session()
        if self.session is not None:
            try:
                self.session.step()
            except LastwordError:
                self.end()
                raise

    def _new_session(self) -> ServerSession | None:
        return self._logs.dirs.server_session(self._server.bootstrap_servers, socket.gethostname())

    def start(self) -> None:
        """Renew the session, or take over when it is due, in a thread."""
        if self.session is not None:
            self._show()
            self._thread.start()

    def stop(self) -> None:
        """Renew the session no more."""
        self._ending.set()
        if self.session is not None:
            self._thread.join()

    def end(self) -> None:
        """End the session, so that a standby takes over immediately."""
        if self.session is not None:
            metrics.SERVER_ACTIVE.remove(self._server.bootstrap_servers)
            with contextlib.suppress(LastwordError):  # a standby waits for the session's timeout, then
                self.session.end()

    def may_answer(self) -> bool:
        """Return whether no other server can have taken over, or this one is a standby."""
        context = self._server.context
        return context.session is None or context.is_standby or context.session.is_active

    def renewed(self, answer: Any) -> asyncio.Future[Any]:
        """Return a future of an answer, which is given when the session is renewed.

        Its error is ServerFencedError if it cannot be renewed.
        """
        session = self._server.context.session
        assert session is not None

        def renew() -> Any:
            with contextlib.suppress(LastwordError):
                session.step()
            if not session.is_active:
                raise session.fenced()
            return answer

        return self._server.context.in_pool(renew)

    def _show(self) -> None:
        """Log who is active."""
        assert self.session is not None
        server, active = self._server, self.session.active
        shown = "no server is active" if active is None else f"{active.address} ({active.name}) is active"
        text, epoch = "%s of %s in server epoch %d; %s", self.session.tenure.servers.epoch
        _log.info(text, server.role, self._logs.paths[0], epoch, shown)
        metrics.SERVER_ACTIVE.set(float(not server.context.is_standby), server.bootstrap_servers)

    def _run(self) -> None:
        session = self.session
        while session is not None and not self._logs.dirs.clock.wait(self._ending, session.pause_seconds):
            try:
                with contextlib.suppress(ServerFencedError):
                    session.step()
                if session.is_fenced or self._server.context.is_standby == bool(session.tenure.epoch):
                    session = self._changed(session)
            except LastwordError as error:
                text = "the session is not renewed: %s"
                self._server.loop.call_soon_threadsafe(self._server.warn, text, error.message)
                self._ending.wait(STORE_PAUSE_SECONDS)

    def _changed(self, session: ServerSession) -> ServerSession | None:
        """Begin another term; return its session."""
        self._logs.dirs.confirm()  # what the active server before has committed
        if session.is_active:
            self._logs.dirs.read_ahead_of_commits()
        if session.is_fenced:
            _log.warning("%s", session.fenced().message)
            self._in_loop(self._server.end_term)
            with contextlib.suppress(LastwordError):  # of commits that are fenced
                self._logs.sync()
            self.session = self._new_session()
            assert self.session is not None
            with contextlib.suppress(LastwordError):
                self.session.step()

        async def begin() -> None:
            self._server.begin_term()

        self._in_loop(begin)
        self._show()
        return self.session

    def _in_loop(self, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        asyncio.run_coroutine_threadsafe(call(), self._server.loop).result()
