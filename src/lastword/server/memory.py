"""`Memory`: the bytes that all connections of a server hold, and whose turn it is to send more."""

from __future__ import annotations

import asyncio
from typing import Protocol

SMALL_BYTES = 256 << 10
"""A connection that holds no more is always read, however much memory the others hold."""
SLOW_BYTES, SLOW_SECONDS = 64 << 10, 10.0
"""While others wait for memory, a client has to send or take this much per second, over this time."""


class Connection(Protocol):
    """A connection of a server. `held`: bytes in memory. `moved`: bytes received and sent."""

    held: int
    moved: int

    def pause(self) -> None:
        """Read nothing until `resume`."""

    def resume(self) -> None:
        """Read on."""

    def is_idle(self, since: float) -> bool:
        """Return whether nothing was received or sent since a time of the loop."""

    def refuse(self, why: str, reason: str) -> None:
        """Close the connection."""


class Memory:
    """The bytes that all connections hold, and the order of large requests while they are too many.

    Above the limit, one connection that holds more than SMALL_BYTES is read, and the others of that size wait
    for their turn. So at most the limit and one request are held, and SMALL_BYTES for each connection. The
    turn of a client that sends too slowly ends: its connection is closed.

    Attributes:
        limit: Bytes that may be held.
        used: Bytes that are held.
    """

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        self.limit = limit
        self.used = 0
        self._loop = loop
        self._waiting: dict[Connection, None] = {}
        self._turn: Connection | None = None
        self._turn_since, self._turn_moved = 0.0, 0
        self._timer: asyncio.TimerHandle | None = None

    def changed(self, connection: Connection, before: int) -> None:
        """Count a connection that held `before` bytes."""
        self.used += connection.held - before
        if self.used <= self.limit:
            if self._turn is not None:
                self._end()
        elif connection.held > SMALL_BYTES:
            if self._turn is None:
                self._begin(connection)
            elif connection is not self._turn and connection not in self._waiting:
                self._waiting[connection] = None
                connection.pause()
        elif connection is self._turn:
            self._next()
        else:
            self._waiting.pop(connection, None)  # closed

    def _begin(self, connection: Connection) -> None:
        self._turn, self._turn_since, self._turn_moved = connection, self._loop.time(), connection.moved
        if self._timer is None:
            self._timer = self._loop.call_later(SLOW_SECONDS / 10, self._check)

    def _next(self) -> None:
        """Give the turn to the connection that waits longest."""
        self._turn = next(iter(self._waiting), None)
        if self._turn is not None:
            del self._waiting[self._turn]
            self._begin(self._turn)
            self._turn.resume()

    def _end(self) -> None:
        """Let all connections be read."""
        self._turn = None
        waiting, self._waiting = self._waiting, {}
        for connection in waiting:
            connection.resume()

    def _check(self) -> None:
        """Close the connection that has the turn if its client is too slow; repeat while there are turns."""
        connection, self._timer = self._turn, None
        if connection is None:
            return
        self._timer = self._loop.call_later(SLOW_SECONDS / 10, self._check)
        now = self._loop.time()
        seconds, moved = now - self._turn_since, connection.moved - self._turn_moved
        if seconds > SLOW_SECONDS:
            if moved < seconds * SLOW_BYTES and connection.is_idle(now):
                connection.refuse("too slow, while others wait for memory (queued.max.request.bytes)", "slow")
            else:
                self._begin(connection)
