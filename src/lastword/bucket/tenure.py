"""`Tenure`: whether this process is the active server of a log in a bucket.

One server at a time answers Kafka's clients; others stand by. The manifest has its epoch (`Servers`), and
each commit of it is conditional on the epoch, by the swap itself. So a server that slept while another one
took over commits nothing. Four rules hold for what it answers:

1. A commit of the active server renews it: its number of renewals grows. An idle server commits the renewal
   alone, every `broker.heartbeat.interval.ms`.
2. A standby takes over when it has seen the same number of renewals for `broker.session.timeout.ms`, by its
   own clock. The takeover is a swap of a version with that number, and raises the epoch.
3. The active server answers until `ANSWERING` of this time after it *began* the last swap that it won. The
   standby began to count when that swap had its effect, or later. So the server stops before a takeover can
   be.
4. A server that has stopped to answer goes on when it has won another swap.

No two clocks are compared, and none tells the date. Both count while the machine is suspended. They must run
equally fast to a tenth.
"""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from enum import Enum

from lastword.bucket.manifest import Servers
from lastword.errors import ServerFencedError

ANSWERING = 0.9
"""The share of the session timeout in which the active server answers without another swap."""


class Role(Enum):
    """The role of a server, and what the role allows."""

    ACTIVE = "answer"
    LAPSED = "answer after another commit"
    STANDBY = "name the active server"
    DUE = "take over"
    FENCED = "close its connections; it is active no more"


class Tenure:
    """The decision of one process, from what it has seen of the log. Safe from any thread.

    Times are seconds of one clock.

    Args:
        session: Random name. A process that was fenced takes another one.
        timeout_ms: `broker.session.timeout.ms` of this process.
    """

    def __init__(self, session: str, timeout_ms: int) -> None:
        self.session = session
        self.timeout_ms = timeout_ms
        self.servers = Servers()
        self.epoch = 0  # in which this process is the active server; 0: it has not been it
        self.renewed_at = -math.inf  # when the last swap that was won began
        self.is_ending = False  # the end of the session may be in the log at any time
        self._since: float | None = None  # when the renewals of `servers` were seen first
        self._lock = threading.Lock()

    def seen(self, servers: Servers, now: float) -> None:
        """Take servers of a version that was read. `now`: a time after the read."""
        with self._lock:
            before, after = _position(self.servers), _position(servers)
            if after < before and self._since is not None:
                return  # a version that another thread read earlier
            if after != before or self._since is None:
                self._since = now
            self.servers = servers
            if servers.session == self.session:
                self.epoch = servers.epoch

    def won(self, servers: Servers, began: float) -> None:
        """Take servers of a version that this process has swapped in. `began`: a time before the swap."""
        self.seen(servers, began)
        with self._lock:
            if servers.session == self.session:
                self.renewed_at = max(self.renewed_at, began)

    def renewed(self, servers: Servers, url: str) -> Servers:
        """Return the servers of the next version, made from a version with `servers`.

        Raises:
            ServerFencedError: This process was the active server, and is it no more.
        """
        if not self.epoch:
            return servers
        if servers.epoch != self.epoch or not (self.is_ending or servers.session == self.session):
            raise ServerFencedError.of(url, self.epoch, servers.epoch)
        return replace(servers, renewals=servers.renewals + 1)

    def role(self, now: float) -> Role:
        """Return the role at a time."""
        with self._lock:
            if self.epoch:
                if self.is_ending or self.servers.session != self.session:
                    return Role.FENCED
                is_held = now < self.renewed_at + ANSWERING * self.timeout_ms / 1000
                return Role.ACTIVE if is_held else Role.LAPSED
            if self._since is None:
                return Role.STANDBY
            is_silent = now - self._since >= self.servers.timeout_ms / 1000
            return Role.DUE if not self.servers.session or is_silent else Role.STANDBY


def _position(servers: Servers) -> tuple[int, bool, int]:
    """Return what grows with each commit of an active server: its last one ends the session."""
    return servers.epoch, not servers.session, servers.renewals
