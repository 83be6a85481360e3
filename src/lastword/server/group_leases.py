"""Leases of groups: no tombstone is removed before the groups that read its topic have read it.

Each committed offset in a compacted topic is a lease (`partition.leases`) named after its group, so that the
cleaner keeps tombstones from the offset on, as long as the offset is retained. `lastword.group.leases`
switches this off.

A commit costs an entry in a dict. Files are written in a thread of the pool: every `PAUSE_SECONDS` at most
`MOST_LATE` of them, the last position of each. A lease that is late keeps more than it must. So leases that
keep too little, because they are new or because the group went back, are written first, after `SOON_SECONDS`,
`MOST` at a time. A lease that cannot be written is due again: its partition
moves, or the drive is full.

A group cannot be refused, as another reader is: tombstones that were removed before its first commit, or
above an offset to which it goes back, are gone. What a group commits for `<topic>@newest` is a lease of its
own on the topic, `newest.group.<id>`.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import re
from functools import partial
from typing import TYPE_CHECKING, Any

from lastword.api.lease import release
from lastword.errors import BusyError, CapacityError, LastwordError, OfflineError, StorageError
from lastword.partition import leases
from lastword.segment import names
from lastword.server.context import ServerContext, failure
from lastword.server.topics import NEWEST, Refused

if TYPE_CHECKING:
    from lastword.api.open_dirs import OpenDirs
    from lastword.logdir import LogDirectory

PAUSE_SECONDS, SOON_SECONDS = 5.0, 0.1
MOST, MOST_LATE = 500, 100
"""Most leases of a batch, and most of those that only keep too much: each costs two syncs of the drive."""
LEASE_BYTES = 200
"""About the bytes of a lease in a commit."""
RENEWED_PARTS = 4
"""A lease is written again when this part of the time after which it lapses has passed."""
LATER = (BusyError, CapacityError, StorageError)
"""Errors of leases that are written later: the partition moves, the drive is full."""
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]")
_log = logging.getLogger("lastword.server")

Key = tuple[str, str, int]
"""Group, topic, partition."""
Positions = dict[Key, int | None]
"""The positions of leases; None: the lease is released."""


def lease_name(group: str) -> str:
    """Return the name of a group's leases: `group.` and the id, or a hash of an id that is no file name."""
    name = f"group.{group}"
    if names.is_lease(f"newest.{name}") and not name.endswith(".tmp"):
        return name
    digest = hashlib.sha256(group.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"group-{_NO_NAME.sub('_', group)[:100]}-{digest}"


class GroupLeases:
    """The leases of all groups. Methods run in the thread of the event loop."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._due: Positions = {}
        self._urgent: dict[Key, None] = {}
        self._positions: dict[Key, int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Future[Positions] | None = None
        self._is_late = False  # leases of the last batch have to be written later

    def moved(self, group: str, at: tuple[str, int], offset: int) -> None:
        """Move the lease of a group, or renew it."""
        key = (group, *at)
        placed = self._positions.get(key)
        if placed is None or offset < placed:
            self._urgent[key] = None
        self._due[key] = offset
        self._positions[key] = offset
        self._schedule()

    def ended(self, group: str, at: tuple[str, int]) -> None:
        """Release the lease of an offset that is deleted."""
        key = (group, *at)
        self._positions.pop(key, None)
        self._urgent.pop(key, None)
        self._due[key] = None
        self._schedule()

    async def write_all(self) -> None:
        """Write all leases that are due; return when that is done, or when some have to be written later."""
        self._is_late = False
        while self._writing is not None or (self._due and not self._is_late):
            if self._writing is None:
                self._flush()
            elif not self._writing.done():
                await asyncio.wait([self._writing])
            else:
                await asyncio.sleep(0)

    def close(self) -> None:
        """Write the leases that are due; the pool finishes before the server is closed."""
        if self._timer is not None:
            self._timer.cancel()
        if self._due:
            batch, self._due = self._due, {}
            self._context.in_pool(self._write, batch)

    def _schedule(self) -> None:
        if self._writing is None and self._due and not self._context.is_fenced:
            seconds = SOON_SECONDS if self._urgent else PAUSE_SECONDS
            when = self._context.loop.time() + seconds
            if self._timer is not None:
                if self._timer.when() <= when:
                    return
                self._timer.cancel()
            self._timer = self._context.loop.call_at(when, self._flush)

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        keys = list(self._urgent)[:MOST]
        others = (key for key in self._due if key not in self._urgent)
        keys += itertools.islice(others, max(0, MOST_LATE - len(keys)))
        batch = {key: self._due.pop(key) for key in keys}
        for key in keys:
            self._urgent.pop(key, None)
        self._writing = self._context.in_pool(self._write, batch)
        self._writing.add_done_callback(partial(self._written, batch))

    def _written(self, batch: Positions, done: asyncio.Future[Positions]) -> None:
        self._writing, late, error = None, batch, failure(done)
        if error is None:
            late = done.result()
        elif isinstance(error, LastwordError):  # the commit failed
            _log.warning("leases of groups are written later: %s", error)
        else:
            _log.error("leases of groups were not written", exc_info=error)
            late = {}
        # Behind the others, which may succeed; a position that came meanwhile counts.
        self._due, self._is_late = self._due | late | self._due, bool(late)
        self._schedule()

    # -------------------------------------------------------------- in a thread

    def _write(self, batch: Positions) -> Positions:
        """Write leases; return those that have to be written later."""
        topics = {topic.removesuffix(NEWEST) for _, topic, _ in batch}
        dirs, in_commit = self._context.dirs, partial(self._write_in, batch, fails=StorageError)
        done = dirs.begin_append(topics, in_commit, LEASE_BYTES * len(batch))
        return self._write_in(batch, dirs, fails=()) if done is None else done.result()

    def _write_in(self, batch: Positions, dirs: OpenDirs, fails: Any) -> Positions:
        """Write leases in these directories; return those that have to be written later.

        `fails`: the class of the errors that are raised.
        """
        late: Positions = {}
        for (group, topic, partition), offset in batch.items():
            try:
                self._write_one(dirs, group, topic, partition, offset)
            except fails:
                raise
            except (LastwordError, Refused, OSError) as error:
                _log.info("%s-%s: the lease of group %s was not written: %s", topic, partition, group, error)
                if isinstance(error, LATER) and not isinstance(error, OfflineError):
                    late[group, topic, partition] = offset
        return late

    def _write_one(self, dirs: OpenDirs, group: str, topic: str, partition: int, offset: int | None) -> None:
        served = self._context.topics.find(topic)
        if served is None or partition not in served.directories:
            return
        config = dirs.config(served.stored)
        if not config.compacts:
            return
        name = lease_name(group) if served.stored == topic else f"newest.{lease_name(group)}"

        if offset is None or not config.lastword_group_leases:
            release(dirs, served.stored, partition, name)
            return

        def write(log_dir: LogDirectory) -> None:
            files, directory = log_dir.files, log_dir.directory(served.stored, partition)
            known = leases.read(files, directory, name)
            now_ms = self._context.clock.now_ms()
            max_age_ms = dirs.settings.instance.offsets_retention_minutes * 60_000
            if (
                known is not None
                and not known.damaged
                and (known.position, known.max_age_ms) == (offset, max_age_ms)
                and now_ms - known.advanced_ms < max_age_ms // RENEWED_PARTS
            ):
                return
            log = dirs.log(served.stored, partition)
            position = max(log.log_start, min(offset, log.log_end))
            leases.place(files, directory, name, position, max_age_ms=max_age_ms, now_ms=now_ms)

        dirs.write_lease(served.stored, partition, write)
