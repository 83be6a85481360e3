"""`ServerSession`: keeps the session of a server of a log in a bucket (`lastword.bucket.tenure`)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from lastword.bucket.tenure import Role, Tenure
from lastword.errors import ServerFencedError

if TYPE_CHECKING:
    from lastword.bucket.commit import Bucket, Loaded
    from lastword.bucket.manifest import Manifest, ServerNode, Servers

POLLS = 18
"""Reads of the manifest by a standby in one session timeout."""


class ServerSession:
    """The session of one server: joins the log, takes over, renews and ends. Safe from any thread.

    Args:
        bucket: The log.
        address: Host and port that clients connect to.
        name: The name of the machine.
        timeout_ms: `broker.session.timeout.ms`.
        heartbeat_ms: `broker.heartbeat.interval.ms`.
    """

    def __init__(
        self, bucket: Bucket, address: str, name: str, *, timeout_ms: int, heartbeat_ms: int
    ) -> None:
        self._bucket = bucket
        self._address = address
        self._name = name
        self._heartbeat_seconds = min(heartbeat_ms, timeout_ms / 3) / 1000
        self._lock = threading.Lock()
        self.tenure = Tenure(f"{bucket.rng.getrandbits(64):016x}", timeout_ms)
        bucket.tenure = self.tenure

    @property
    def role(self) -> Role:
        """The role at this time."""
        return self.tenure.role(self._bucket.clock.boottime())

    @property
    def is_active(self) -> bool:
        """Whether no other server can have taken over."""
        return self.role is Role.ACTIVE

    @property
    def is_fenced(self) -> bool:
        """Whether this process was the active server, and is it no more."""
        return self.role is Role.FENCED

    @property
    def active(self) -> ServerNode | None:
        """The active server, as this process has seen it last."""
        return self.tenure.servers.node

    @property
    def nodes(self) -> tuple[ServerNode, ...]:
        """All servers, as this process has seen them last."""
        return self.tenure.servers.nodes

    @property
    def pause_seconds(self) -> float:
        """Seconds until the next call of `step`."""
        if self.tenure.epoch:
            due = self.tenure.renewed_at + self._heartbeat_seconds
            return max(0.0, due - self._bucket.clock.boottime())
        return (self.tenure.servers.timeout_ms or self.tenure.timeout_ms) / 1000 / POLLS

    def step(self) -> Role:
        """Read the newest version, or commit what is due; return the role.

        Raises:
            LastwordError: The store does not answer. The next call tries again.
        """
        with self._lock:
            self._step()
        return self.role

    def _step(self) -> None:
        if self.role is Role.FENCED:
            return
        if self.tenure.epoch:
            if self.pause_seconds == 0:
                self._commit(lambda servers: servers)
            return
        servers = self._bucket.load().manifest.servers
        if all(node.address != self._address for node in servers.nodes):
            self._commit(lambda servers: servers.joined(self._address, self._name))
        if self.role is Role.DUE:
            self._commit(self._taken_over)

    def fenced(self) -> ServerFencedError:
        """Return the error for an answer that only the active server may give."""
        return ServerFencedError.of(self._bucket.url, self.tenure.epoch, self.tenure.servers.epoch)

    def end(self) -> None:
        """Leave the log, so that a standby takes over immediately.

        No work of the server may be under way: later commits of this process are not fenced.
        """
        is_fenced, self.tenure.is_ending = self.role is Role.FENCED, True
        try:
            if not is_fenced:
                self._commit(lambda servers: servers.without(self._address, self.tenure.session))
        finally:  # a session that is still in the log gets no renewal
            self._bucket.tenure = None

    def _taken_over(self, servers: Servers) -> Servers | None:
        """Return the servers after a takeover; None: it is not due any more."""
        if self.role is not Role.DUE:
            return None
        joined = servers.joined(self._address, self._name)
        return joined.taken_over(self._address, self.tenure.session, self.tenure.timeout_ms)

    def _commit(self, change: Callable[[Servers], Servers | None]) -> None:
        def changed(loaded: Loaded) -> Manifest | None:
            servers = change(loaded.manifest.servers)
            return None if servers is None else replace(loaded.manifest, servers=servers)

        self._bucket.edit(changed)
