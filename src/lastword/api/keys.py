"""Look up the newest record of keys: `Topic.get` and its kin.

The answer is that of `read(view="newest", keys=...)`, from the key index if the topic has one, otherwise by
that very read. Each partition has one end, taken before the first lookup.

A key belongs to the partition that the partitioner assigns. If that has no value of the key, the others are
looked at, from the highest number down: a producer may have named another partition, or has used another
partitioner. So a key is found exactly if `newest(keys=[key])` yields a record of it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from lastword.api.reader import check_keys
from lastword.api.record import ABSENT, Absent
from lastword.errors import ConflictError, KeyRequiredError, UsageError
from lastword.keys.index import KeyIndex, Mismatch
from lastword.parse import as_int
from lastword.partition import scan
from lastword.partition.moment import Range
from lastword.state.newest import newest
from lastword.state.ttl import expires_at

if TYPE_CHECKING:
    from lastword.api.topic_views import TopicViews
    from lastword.partition.log import PartitionLog
    from lastword.partition.view import PartitionView
    from lastword.records.record import RawRecord

logger = logging.getLogger("lastword.keys")
"""Gets a warning if the keys of a partition do not fit the memory, so that each lookup reads the log."""
Found = list[tuple[int, Mapping[bytes, "RawRecord"]]]
"""Partitions, each with the newest records of the keys that were found in it: a key is in one of them."""
_TRIES = 3
_SAVED_BY = '. A process that opens the directory with mode "a" and calls `get` saves an index for all'


def key_bytes(topic: TopicViews, key: Any) -> bytes:
    """Return the bytes of a key. SerializerError as from `append`; KeyRequiredError for None."""
    if key is None:
        raise KeyRequiredError(
            f"{topic.name}: None is no key", remedy="give a key: a record without one has no newer one"
        )
    data: bytes = topic.schema.key.encode(key, "key")
    return data


def keys_by_bytes(topic: TopicViews, keys: Iterable[Any]) -> dict[bytes, Any]:
    """Return each key by its bytes.

    Raises:
        UsageError: `keys` is a text or a mapping, or the keys cannot be those of a dict.
    """
    check_keys(keys)
    encode, named = topic.schema.key.encode, {}
    for key in keys:
        named[key_bytes(topic, key) if key is None else encode(key, "key")] = key
    try:
        distinct = len(set(named.values()))
    except TypeError:
        key = next(key for key in named.values() if not _is_hashable(key))
        raise UsageError(
            f"{key!r} cannot be a key of the dict that is returned", remedy="get(key) takes such a key"
        ) from None
    if distinct < len(named):
        raise UsageError(
            "two of the keys are equal in Python, as 1 and True are, and differ in the topic",
            remedy="look them up in two calls",
        )
    return named


def _is_hashable(key: Any) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True


def find_one(
    topic: TopicViews, key: bytes, partition: int | None, *, to_end: bool = False
) -> tuple[int, RawRecord] | None:
    """Return partition and newest record of a key, as `find` does; a short way for the usual case."""
    number = topic._partition_of(key) if partition is None else partition
    log = topic._readable(number)
    index = index_of(topic, number, log)
    if index is not None:
        try:
            with index.lock:
                if index.follow(log, to_end=to_end):
                    record = index.find_one(log, key, to_end=to_end)
                    if record is not None:
                        return number, record
                    if partition is not None or topic.schema.partitions == 1:
                        return None
        except Mismatch:  # `suppress` takes a microsecond
            pass
    for number, records in find(topic, (key,), partition, to_end=to_end):
        for record in records.values():
            return number, record
    return None


def index_of(topic: TopicViews, number: int, log: PartitionLog | PartitionView) -> KeyIndex | None:
    """Return the index of a partition; None: its topic has none."""
    config = topic.config
    if config.compacts and config.lastword_key_index:
        return topic.dirs.key_index(topic.name, number, log.directory)
    return None


@contextmanager
def expecting(
    topic: TopicViews, number: int, key: bytes | None, expect: int | Absent, *, hides_expired: bool = False
) -> Iterator[None]:
    """Hold a partition against appends, if the newest record of a key in it is the expected one.

    `hides_expired`: an expired value is none, as in a state.

    Raises:
        ConflictError: It is another one.
        KeyRequiredError: There is no key.
        UsageError: `expect` is no offset.
    """
    if key is None:
        raise KeyRequiredError(f"{topic.name}: expect= needs a key", remedy="give a key, or no expect=")
    expected = None if expect is ABSENT else as_int(expect)
    if expect is not ABSENT and expected is None:
        raise UsageError(
            f"expect={expect!r} is no offset", remedy="topic.get_record(key).offset, or lastword.ABSENT"
        )
    _follow(topic, number)  # what takes long comes before the locks
    with ExitStack() as stack:
        stack.enter_context(topic.dirs.commits)  # under which no partition is moved
        log = topic.dirs.log(topic.name, number)
        index = index_of(topic, number, log)
        if index is not None:  # in the order of a lookup
            stack.enter_context(index.lock)
            index.follow(log, to_end=True)
        stack.enter_context(log.lock)
        found = find_one(topic, key, number, to_end=True)
        record = None if found is None else found[1]
        if hides_expired and record is not None and _is_expired(topic, record):
            record = None
        newest_offset = None if record is None else record.offset
        if newest_offset != expected:
            wanted = "that it has none" if expected is None else f"that of offset {expected}"
            now = f"the newest value of the key is at offset {newest_offset}"
            raise ConflictError(
                f"{log.name}: {'the key has no value' if record is None else now}, and the call expects "
                f"{wanted}; nothing was written",
                remedy="read the key again, and decide again: topic.get_record(key) has value and offset",
                file=log.directory,
                offset=newest_offset,
            )
        yield


def _follow(topic: TopicViews, number: int) -> None:
    """Let the index of a partition take in what was appended."""
    log = topic.dirs.owned_log(topic.name, number)
    index = None if log is None else index_of(topic, number, log)
    if index is not None and log is not None:
        with suppress(Mismatch), index.lock:
            index.follow(log)


def _is_expired(topic: TopicViews, record: RawRecord) -> bool:
    expiry_ms = expires_at(record.timestamp, record.headers, topic.config.lastword_ttl_ms)
    return expiry_ms <= topic.dirs.clock.now_ms()


def has_values(topic: TopicViews, values: Mapping[bytes, bytes | None]) -> bool:
    """Return whether keys have these values, as in a state; None: they are absent."""
    found = find(topic, values.keys(), None, to_end=True) if values else []
    records = chain.from_iterable(part.items() for _, part in found)
    now = {key: record.value for key, record in records if not _is_expired(topic, record)}
    return all(now.get(key) == value for key, value in values.items())


def find(topic: TopicViews, keys: Collection[bytes], partition: int | None, *, to_end: bool = False) -> Found:
    """Return partition and newest record of each key that has a value, in this partition or in any.

    `to_end`: also the committed records from the last stable offset on, behind undecided ones.
    """
    for left in range(_TRIES, 0, -1):
        with ExitStack() as stack:
            lookup = _Lookup(topic, keys, stack, may_index=left > 1, to_end=to_end)
            try:
                return lookup.find(partition)
            except Mismatch:
                lookup.renew(drops=left == 2)
    raise AssertionError("a read without an index has no mismatch")


class _Lookup:
    """One call: all partitions that it may need are begun before the first key."""

    def __init__(
        self, topic: TopicViews, keys: Collection[bytes], stack: ExitStack, *, may_index: bool, to_end: bool
    ) -> None:
        self._topic, self._keys, self._to_end = topic, keys, to_end
        self._stack, self._may_index = stack, may_index
        self._parts: dict[int, _Part] = {}

    def find(self, partition: int | None) -> Found:
        """Return the newest records."""
        keys = self._keys
        if partition is not None:
            return [(partition, self._part(partition).find(keys))]
        home: dict[int, list[bytes]] = {}
        numbers = sorted(self._topic.schema.numbers)
        if len(numbers) == 1:
            return [(numbers[0], self._part(numbers[0]).find(keys))]
        for key in keys:
            home.setdefault(self._topic._partition_of(key), []).append(key)
        if self._may_index:
            for number in numbers:  # what takes long comes before the moment
                _follow(self._topic, number)
        with self._topic.dirs.moment:
            for number in numbers:  # in this order, so that two lookups do not wait for each other
                self._part(number)
        found: Found = [(number, self._part(number).find(own)) for number, own in sorted(home.items())]
        missing = set(keys).difference(*(records for _, records in found))
        for number in reversed(numbers):
            if missing:
                found.append((number, self._part(number).find(missing)))
                missing.difference_update(found[-1][1])
        return found

    def renew(self, *, drops: bool) -> None:
        """Let the views catch up. `drops`: the indexes that were used are wrong."""
        for part in self._parts.values():
            part.renew(drops=drops)

    def _part(self, number: int) -> _Part:
        part = self._parts.get(number)
        if part is None:
            log = self._topic._readable(number, refreshes=not self._parts)
            index = self._index(number, log) if self._may_index else None
            part = self._parts[number] = _Part(log, index, self._keys, self._to_end)
        return part

    def _index(self, number: int, log: PartitionLog | PartitionView) -> KeyIndex | None:
        """Return the index of a partition, which has followed the log and is held; None: it has none."""
        topic = self._topic
        index = index_of(topic, number, log)
        if index is None or self._are_many(log):
            return None
        self._stack.enter_context(index.lock)
        if index.follow(log, to_end=self._to_end):
            return index
        indexes = topic.dirs.key_indexes
        if (topic.name, number) not in indexes.warned:
            indexes.warned.add((topic.name, number))
            in_bucket = log.files.file_cost_bytes > 0
            logger.warning(
                "%s-%d: the keys do not fit log.cleaner.dedupe.buffer.size, so each lookup reads the log%s",
                topic.name,
                number,
                "" if in_bucket else _SAVED_BY,
            )
        return None

    def _are_many(self, log: PartitionLog | PartitionView) -> bool:
        """Return whether a scan is cheaper, because files are in a bucket and a lookup takes two requests."""
        cost_bytes = log.files.file_cost_bytes
        if not cost_bytes or len(self._keys) == 1:
            return False
        segments = log.segments
        scan_bytes = sum(segment.size for segment in segments) + len(segments) * cost_bytes
        return len(self._keys) * cost_bytes > scan_bytes


class _Part:
    """One partition in a lookup."""

    def __init__(
        self, log: PartitionLog | PartitionView, index: KeyIndex | None, keys: Collection[bytes], to_end: bool
    ) -> None:
        owned: Any = log
        self._log = owned.view() if index is None and log.grows else log
        self._index, self._keys, self._to_end = index, keys, to_end
        self._read: Mapping[bytes, RawRecord] | None = None

    def find(self, keys: Iterable[bytes]) -> Mapping[bytes, RawRecord]:
        """Return the newest records of the keys that have a value. Raises Mismatch."""
        if self._index is not None:
            if not self._to_end:
                return self._index.find(self._log, keys)
            each = {key: self._index.find_one(self._log, key, to_end=True) for key in keys}
            return {key: record for key, record in each.items() if record is not None}
        if self._read is None:
            view: Any = self._log
            to_end = self._to_end
            range_ = Range.of(
                view, lambda now: (now.log_start, now.log_end if to_end else committed_end(now))
            )
            records = newest(range_, tombstones=False, map_bytes=0, keys=frozenset(self._keys))
            self._read = {record.key or b"": record for record in records}
        read = self._read
        return {key: read[key] for key in keys if key in read}

    def renew(self, *, drops: bool) -> None:
        """Let the view catch up; drop the index if it is wrong."""
        self._log.refresh()
        if drops and self._index is not None:
            self._index.drop()


class LogMark(NamedTuple):
    """The end of a log as of a moment, to see later whether keys were appended since.

    Attributes:
        end: The log end.
        undecided: Producer id -> first offset of a transaction that was undecided then.
    """

    end: int
    undecided: Mapping[int, int]

    @classmethod
    def of(cls, log: PartitionLog) -> LogMark:
        """Return the mark of now."""
        with log.lock:
            return cls(log.log_end, log.undecided)

    def keeps(self, log: PartitionLog, keys: Collection[bytes]) -> bool:
        """Return whether the keys have the same records as then: none was appended, or decided, since.

        The caller holds the log.
        """
        if log.log_end == self.end:
            return True
        undecided = log.undecided
        if any(undecided.get(producer) != first for producer, first in self.undecided.items()):
            return False
        added = scan.records(log.view(), self.end, log.log_end, committed=False)
        return all(record.key not in keys for record in added)


def committed_end(view: PartitionView) -> int:
    """Return the offset below which every record is decided."""
    return min(view.stable_offset, view.log_end)
