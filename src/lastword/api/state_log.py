"""`StateLog`: the topic below a state, with keys and values as bytes, in a directory or in a bucket."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from lastword.api.bucket_records import whole
from lastword.api.open_dirs import OpenDirs
from lastword.api.record import Absent, Appended, Record, size_of
from lastword.api.topics import open_topic
from lastword.partition.log import PartitionLog
from lastword.partition.tail import Changed

if TYPE_CHECKING:
    from lastword.api.bucket_dirs import BucketDirs
    from lastword.api.topic import Topic
    from lastword.records.record import Header

_is_closed = attrgetter("is_closed")


def log_below(dirs: OpenDirs, name: str) -> StateLog:
    """Return the log of a state of a topic."""
    topic = open_topic(dirs, name, key_serializer="bytes", value_serializer="bytes")
    return StateLog(dirs, topic) if dirs.holds_logs else _BucketLog(dirs, topic)


class StateLog:
    """The topic below a state, in a directory. Its appends are acknowledged at "os".

    Attributes:
        name: The topic's name.
        is_deferred: An append returns before the record is in the log.
    """

    is_deferred = False

    def __init__(self, dirs: OpenDirs, topic: Topic[bytes, bytes]) -> None:
        self._dirs = dirs
        self._topic = topic
        self.name = topic.name
        self._watched: dict[int, PartitionLog] = {}

    def append(self, key: bytes, value: bytes | None, headers: tuple[Header, ...]) -> Appended:
        """Append one record."""
        return self._topic._append(key, value, headers, None, None, "os")

    def append_expecting(
        self, key: bytes, value: bytes | None, headers: tuple[Header, ...], expect: int | Absent
    ) -> Appended:
        """Append one record if the newest one of its key is the expected one; else raise ConflictError."""

        def work(dirs: OpenDirs) -> Appended:
            topic = self._on(dirs)
            return topic._append(key, value, headers, None, None, "os", expect=expect, hides_expired=True)

        return self._append_now(work, (key, value))

    def _append_now(self, work: Callable[[OpenDirs], Appended], pair: tuple[bytes, bytes | None]) -> Appended:
        return work(self._dirs)

    def _on(self, dirs: OpenDirs) -> Topic[bytes, bytes]:
        return self._topic._on(dirs)

    def append_if(
        self,
        key: bytes,
        value: bytes | None,
        headers: tuple[Header, ...],
        check: Callable[[PartitionLog], bool],
    ) -> Appended | None:
        """Append one record if `check` of its log is true, with nothing appended in between.

        In a bucket `check` may be called several times; the last call counts.
        """
        self._dirs.require_writable()
        with self._dirs.commits:  # under which no partition is moved
            log = self._log_of(key)
            with log.lock:
                return self.append(key, value, headers) if check(log) else None

    def extend(self, records: list[tuple[bytes, bytes | None]], headers: tuple[Header, ...]) -> None:
        """Append many records."""
        written: list[Any] = list(records)
        if headers:
            now_ms = self._dirs.clock.now_ms()
            written = [
                Record(self.name, 0, 0, now_ms, "create", key, value, headers, is_tombstone=value is None)
                for key, value in records
            ]
        self._extend(written)

    def _extend(self, records: list[Any]) -> None:
        self._topic.extend(records, ack="os")

    def acknowledge(self, key: bytes | None) -> None:
        """Sync the partition of a key (None: all), if the topic's `lastword.ack` is "disk"."""
        if self._topic.config.lastword_ack == "disk":
            for log in self._logs().values() if key is None else (self._log_of(key),):
                log.sync()

    def sync(self) -> None:
        """Sync the partitions of this topic that have changed, also if one of them fails."""
        if self._dirs.closed or self._dirs.mode == "r":
            self._dirs.require_writable()
        logs: Collection[PartitionLog] = self._watched.values()
        if not logs or any(map(_is_closed, logs)):
            logs = self._logs().values()
        if len(logs) == 1:
            (log,) = logs
            log.sync()  # does nothing if records and names are durable
            return
        with ExitStack() as stack:
            for log in logs:
                stack.callback(log.sync)

    def watched(self, changed: Changed) -> Mapping[int, PartitionLog] | None:
        """Return the logs, which note their changes in `changed` from now on.

        None: in a bucket `changed` gets a number when this process has committed appends of others. In mode
        "r" nothing is noted.
        """
        if self._dirs.mode == "r":
            return None
        logs = self._logs()
        for log in logs.values():
            log.watch(changed)
        self._watched = logs
        return logs

    def on_refused(self, call: Callable[[BaseException], object]) -> None:
        """Call `call` with the error of a change that is refused after its call has returned: in a bucket."""

    def _log_of(self, key: bytes) -> PartitionLog:
        return self._dirs.log(self.name, self._topic._partition_of(key))

    def _logs(self) -> dict[int, PartitionLog]:
        return {n: self._dirs.log(self.name, n) for n in self._dirs.dir_set.log_dirs(self.name)}


class _BucketLog(StateLog):
    """The topic below a state, in a bucket. Its appends are stored by a later commit.

    A record that is too large is refused by the call, and not by the commit, because the state shows the
    record when the call returns.
    """

    is_deferred = True
    _dirs: BucketDirs
    _refused: Callable[[BaseException], object] = staticmethod(lambda error: None)
    _changed: Changed | None = None

    def __init__(self, dirs: OpenDirs, topic: Topic[bytes, bytes]) -> None:
        super().__init__(dirs, topic)
        self._saved = topic.schema.saved

    def append(self, key: bytes, value: bytes | None, headers: tuple[Header, ...]) -> Appended:
        """Append one record. Its offset is not known yet: it is -1."""
        self._topic._check_fit([(key, value)], headers)
        self._later(lambda dirs: self._on(dirs).append(key, value, headers=headers), size_of((key, value)))
        return Appended(-1, -1, -1)

    def append_if(
        self,
        key: bytes,
        value: bytes | None,
        headers: tuple[Header, ...],
        check: Callable[[PartitionLog], bool],
    ) -> Appended | None:
        self._topic._check_fit([(key, value)], headers)

        def work(dirs: OpenDirs) -> Appended | None:
            if not check(dirs.log(self.name, self._topic._partition_of(key))):
                return None
            return self._on(dirs).append(key, value, headers=headers)

        return self._dirs.append(self.name, work, (key, value), own=self._changed)

    def _append_now(self, work: Callable[[OpenDirs], Appended], pair: tuple[bytes, bytes | None]) -> Appended:
        return self._dirs.append(self.name, work, pair, own=self._changed)

    def _extend(self, records: list[Any]) -> None:
        group, size_bytes = whole(records)
        pairs: list[Any] = [(r.key, r.value) if isinstance(r, Record) else r for r in records]
        self._topic._check_fit(pairs)
        self._later(lambda dirs: self._on(dirs).extend(group), size_bytes)

    def _later(self, work: Callable[[OpenDirs], object], size_bytes: int) -> None:
        self._dirs.append_later(self.name, work, size_bytes, self._refused, own=self._changed)

    def _on(self, dirs: OpenDirs) -> Topic[bytes, bytes]:
        topic = self._topic._on(dirs)
        topic.check_serializers(self._saved)  # the state has encoded the values for these
        return topic

    def acknowledge(self, key: bytes | None) -> None:
        """Do nothing: a change is acknowledged by its commit."""

    def sync(self) -> None:
        """Wait until the changes are committed."""
        self._dirs.sync()

    def watched(self, changed: Changed) -> None:
        if self._dirs.mode == "a":
            self._changed = changed
            self._dirs.watch(self.name, changed)

    def on_refused(self, call: Callable[[BaseException], object]) -> None:
        self._refused = call
