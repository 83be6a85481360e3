"""`IndexedContents`: the values of a topic for states that keep none in memory; the twin of `Contents`.

Each read is a lookup by the key index (`api/keys.py`), or a pass over the newest values. It shows what a
`Contents` would: all committed records up to the log end, without the values that have expired. Each call is
as of a moment during it, also in mode "r", so there is nothing to refresh. A key that was written to several
partitions counts in that of the partitioner, as for `Topic.get`.

A change is appended. `replace` reads the value, notes the log end, and then appends only if no record from
there on is one of the key, and if no transaction was decided meanwhile: else the caller tries again.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Any

from lastword.api.keys import LogMark, committed_end, find_one, index_of
from lastword.api.open_dirs import OpenDirs
from lastword.api.record import Absent, Appended
from lastword.api.restore import Restored
from lastword.api.state_log import StateLog
from lastword.api.topic import Topic
from lastword.api.topics import open_topic
from lastword.errors import ReadOnlyError
from lastword.partition import scan
from lastword.partition.moment import Range
from lastword.records.record import Header, RawRecord
from lastword.state.newest import newest
from lastword.state.ttl import expires_at, own_ttl
from lastword.units import NEVER

if TYPE_CHECKING:
    from lastword.keys.index import KeyIndex
    from lastword.partition.log import PartitionLog

PART = 10_000
"""Records of one `extend`: a change of many keys is appended in parts."""
Pair = tuple[bytes, bytes]


class IndexedContents:
    """The newest value of every key of a topic, as bytes, read when it is asked for.

    Attributes:
        topic: The name of the topic.
        in_memory: False: no value is.
        restored: Empty: nothing is read at opening.
        turn: Held by a caller that must not be interrupted by another one.
        reading: Held while records are appended.
        users: The ids of the open states that show these values.
        given: The arguments of the state that was opened first, and where: `opened_at` (`states`).
    """

    given: Mapping[str, Any]
    opened_at: str
    in_memory = False
    restored: tuple[Restored, ...] = ()

    def __init__(self, dirs: OpenDirs, topic: Topic[Any, Any]) -> None:
        self._dirs, self._topic = dirs, topic
        self._saved = topic.schema.saved
        self._bytes = open_topic(dirs, topic.name, key_serializer="bytes", value_serializer="bytes")
        self._log = StateLog(dirs, self._bytes)
        self._log_dir = dirs.directories[0]  # its `settings` are another object after a change of settings
        self.topic = topic.name
        self.users: set[int] = set()
        self.turn = self.reading = threading.RLock()
        self._settings: object = None
        self._indexed: dict[int, tuple[PartitionLog, KeyIndex | None]] = {}
        """The log of each partition that got a change, and its index, with the settings of now."""
        self.ttl_ms = -1
        """The topic's `lastword.ttl.ms`; -1: nothing expires."""
        self.check()

    def check(self) -> None:
        """Take the settings of now; UsageError if the log is closed."""
        if self._dirs.closed:
            self._dirs.require_open()
        if self._log_dir.settings is not self._settings:
            settings = self._log_dir.settings
            self._topic.check_serializers(self._saved)
            self.ttl_ms = self._dirs.config(self.topic).lastword_ttl_ms
            self._settings = settings
            self._indexed.clear()

    def check_writable(self) -> None:
        """Raise ReadOnlyError in mode "r"; else as `check`."""
        self.check()
        if self._dirs.mode == "r":
            raise ReadOnlyError.opened(self._dirs.paths[0])

    @property
    def position(self) -> dict[int, int]:
        """The offset of each partition up to which its records are decided, as of now."""
        return {number: committed_end(view) for number, view in sorted(self._dirs.views(self.topic).items())}

    def refresh(self) -> int:
        """Return 0: each read is of now."""
        self.check()
        return 0

    # -------------------------------------------------------------- read

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if it is absent."""
        record = self._live(key)
        return None if record is None else record.value

    def own_ttl_ms(self, key: bytes) -> int | None:
        """Return the time to live that a value has of its own; None: that of the topic."""
        record = self._live(key) if self.ttl_ms >= 0 else None
        return None if record is None else own_ttl(record.headers)

    def remaining_ms(self, key: bytes) -> int | None:
        """Return the time until a value expires; None: never, or the key is absent."""
        record = self._live(key)
        at = NEVER if record is None else expires_at(record.timestamp, record.headers, self.ttl_ms)
        return None if at == NEVER else max(0, at - self._dirs.clock.now_ms())

    def _live(self, key: bytes) -> RawRecord | None:
        found = self._find(key)
        self.check()  # the lookup may have met other settings
        return found[1] if found is not None and not self._is_expired(found[1]) else None

    def _find(self, key: bytes) -> tuple[int, RawRecord] | None:
        return find_one(self._bytes, key, None, to_end=True)

    def _is_expired(self, record: RawRecord) -> bool:
        if self.ttl_ms < 0:
            return False
        return expires_at(record.timestamp, record.headers, self.ttl_ms) <= self._dirs.clock.now_ms()

    def all_keys(self) -> Iterator[bytes]:
        """Yield every key, as `pairs`."""
        return (key for key, _ in self.pairs())

    def pairs(self) -> Iterator[Pair]:
        """Yield keys and values as of one moment, one partition after the other."""
        numbers = sorted(self._dirs.partitions(self.topic))
        self.check()
        with self._dirs.moment:  # not while a transaction of this process appends its markers
            ranges = [
                Range.of(
                    self._dirs.view(self.topic, number), lambda now: (now.log_start, committed_end(now))
                ).settled()
                for number in numbers
            ]
        for number, range_ in zip(numbers, ranges, strict=True):
            with closing(self._newest(range_)) as records:
                for record in records:
                    key, value = record.key, record.value
                    if key is None or value is None or self._is_expired(record):
                        continue
                    if (
                        len(numbers) == 1
                        or self._bytes._partition_of(key) == number
                        or self._is_at(key, number)
                    ):
                        yield key, value

    def _newest(self, range_: Range) -> Generator[RawRecord]:
        """Yield the newest records of a partition: those behind open transactions supersede older ones."""
        map_bytes = self._dirs.settings.instance.map_bytes
        view = range_.view
        above = {
            record.key: record
            for record in scan.records(view, range_.end, view.log_end)
            if record.key is not None
        }
        with closing(newest(range_, tombstones=False, map_bytes=map_bytes)) as records:
            for record in records:
                if record.key not in above:
                    yield record
        yield from above.values()

    def _is_at(self, key: bytes, number: int) -> bool:
        """Return whether a lookup finds a key in a partition that is not the partitioner's."""
        found = self._find(key)
        return found is not None and found[0] == number

    def __len__(self) -> int:
        return sum(1 for _ in self.pairs())

    def __bool__(self) -> bool:
        return next(self.pairs(), None) is not None

    # -------------------------------------------------------------- write

    def write(
        self,
        key: bytes,
        value: bytes | None,
        headers: tuple[Header, ...] = (),
        expect: int | Absent | None = None,
    ) -> None:
        """Set a value, or delete a key (None), if its newest record is the expected one. After `check`."""
        if self._dirs.mode == "r":
            self.check_writable()
        with self.turn:
            if expect is None:
                appended = self._log.append(key, value, headers)
            else:
                appended = self._log.append_expecting(key, value, headers, expect)
            self._note(appended, key, value)
        self._log.acknowledge(key)

    def _note(self, appended: Appended, key: bytes, value: bytes | None) -> None:
        """Put an own record into the index, if it has been read up to there."""
        number = appended.partition
        log, index = self._indexed.get(number, (None, None))
        if log is None or log.is_closed:  # it was moved
            log = self._dirs.log(self.topic, number)
            index = index_of(self._bytes, number, log)
            self._indexed[number] = log, index
        if index is not None:
            index.note(log, appended.offset, key, is_tombstone=value is None)

    def write_all(
        self, written: Iterable[tuple[bytes, bytes | None]], headers: tuple[Header, ...] = ()
    ) -> None:
        """Set many values and delete many keys, in parts."""
        self.check_writable()
        pairs = iter(written)
        with self.turn:
            while part := dict(islice(pairs, PART)):
                self._log.extend(list(part.items()), headers)
        self._log.acknowledge(None)

    def replace(
        self, key: bytes, old: bytes | None, new: bytes | None, headers: tuple[Header, ...] = ()
    ) -> bool:
        """Replace a value if the log still has `old`, and return whether it had.

        The caller holds `turn`, and calls `acknowledge` later.
        """
        self.check_writable()
        log = self._dirs.log(self.topic, self._bytes._partition_of(key))
        mark = LogMark.of(log)
        if self.get(key) != old:
            return False
        appended = self._log.append_if(key, new, headers, lambda log: mark.keeps(log, (key,)))
        if appended is not None:
            self._note(appended, key, new)
        return appended is not None

    def acknowledge(self, key: bytes) -> None:
        """Sync the partition of a key, if the topic's `lastword.ack` is "disk"."""
        self._log.acknowledge(key)

    def sync(self) -> None:
        """As `Contents.sync`."""
        self._log.sync()
