"""`State`: a mapping whose every change is a record of a compacted topic.

Memory holds the bytes of the newest value of each key. Every get decodes them, so changing a returned object
does not change the state. The log is the source of truth: a change is acknowledged there before the mapping
shows it, and opening the state restores the mapping from it.
"""

from __future__ import annotations

import datetime
import enum
import heapq
import numbers
import threading
import time
from collections.abc import (
    Callable,
    ItemsView,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    ValuesView,
)
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from lastword.errors import (
    FileVanishedError,
    ReadOnlyError,
    ReadOvertakenError,
    SerializerError,
    StateTooLargeError,
    UsageError,
)
from lastword.metrics import STATE_RESTORE_SECONDS
from lastword.parse import Duration, parse_duration_ms
from lastword.partition import removal_log
from lastword.partition.moment import Range
from lastword.partition.removal_log import RemovalLog
from lastword.partition.view import PartitionView
from lastword.records.record import Header
from lastword.state.newest import Pairs, ValueBuffer, newest, newest_pairs
from lastword.state.ttl import expires_at, header_of
from lastword.units import NEVER, format_bytes
from lastword.values import ProcessBound, Progress, ProgressLike, Value, plural, table_html

if TYPE_CHECKING:
    from lastword.logdir import LogDirectory

K = TypeVar("K")
V = TypeVar("V")
_MISSING: Any = object()
FOREVER = (-1, "-1")
"""Times to live of a value that does not expire."""
_ATTEMPTS = 10  # an attempt fails only if a cleaning runs and there are more segments than descriptors
_IMMUTABLE = (
    numbers.Number,  # bool, int, float, complex, Decimal, Fraction, NumPy's scalars
    str,
    bytes,
    tuple,
    frozenset,
    range,
    type(None),
    enum.Enum,
    datetime.date,
    datetime.time,
    datetime.timedelta,
)
"""Immutable types: a block of `edit` cannot change their values in place."""


class _Delete(enum.Enum):
    DELETE = "DELETE"


class Coder(Protocol):
    """A serializer, as `api.serializers.Serializer`."""

    def encode(self, value: Any, column: str) -> bytes:
        """Encode a value."""
        ...

    def decode(self, data: bytes, column: str) -> Any:
        """Decode a value."""
        ...


class AppendResult(Protocol):
    """Partition and offset of an appended record."""

    @property
    def partition(self) -> int:
        """The partition."""
        ...

    @property
    def offset(self) -> int:
        """The offset."""
        ...


class ByteTopic(Protocol):
    """The topic below a state, with keys and values as bytes."""

    @property
    def name(self) -> str:
        """The name of the topic."""
        ...

    def append(self, key: bytes, value: bytes | None, /, *, headers: tuple[Header, ...] = ()) -> AppendResult:
        """Append one record."""
        ...

    def extend(self, records: Iterable[tuple[bytes, bytes | None]], /) -> int:
        """Append many records; return their number."""
        ...


@dataclass(slots=True)
class _LoadStats:
    """Keys, bytes and seconds of one partition's part of a snapshot."""

    keys: int = 0
    bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Restored(Value):
    """The restore of one partition: keys and bytes (of keys and values) in memory, and its duration."""

    topic: str
    partition: int
    end_offset: int
    keys: int
    bytes: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.topic}-{self.partition}: {plural(self.keys, 'key')}, {format_bytes(self.bytes)}, "
            f"up to offset {self.end_offset} in {self.seconds:.2f} s"
        )


class Snapshot(Protocol):
    """Newest values from an earlier restore.

    `ends` are the end offsets of each partition. `check` raises if a range does not continue the snapshot;
    the files of the ranges are open by then. `pairs` yields (partition, keys and values) of the records from
    the given offset of each partition.
    """

    @property
    def ends(self) -> Mapping[int, int]:
        """The end offset of each partition."""
        ...

    def check(self, ranges: Mapping[int, Range]) -> None:
        """Raise an error if a range does not continue the snapshot."""
        ...

    def pairs(self, starts: Mapping[int, int]) -> Iterator[tuple[int, Pairs]]:
        """Yield (partition, keys and values) of the records from `starts` on."""
        ...


@dataclass(frozen=True, slots=True)
class StateSource:
    """Access of a state to the topic below it.

    Attributes:
        log: The topic with keys and values as bytes.
        views: Lists the partitions.
        topic_id: Returns the id of the topic, or None; it lists nothing again.
        ranges: Computes the ranges to read for a state as of an earlier end; None: up to the log end.
        sync: Syncs the log.
        first_dirty: Returns the first offset of a partition that is not clean, or None.
        map_bytes: Memory of the key map of a restore.
        log_dir: A log directory; its `settings` are another object after a change of settings.
        ttl_ms: Returns the topic's `lastword.ttl.ms`.
        now_ms: Returns the current time.
        on_refused: Registers a function that takes the error of a change which the log refuses after the call
            that made it has returned: in a bucket.
    """

    log: ByteTopic
    views: Callable[[], Mapping[int, PartitionView]]
    topic_id: Callable[[], str | None]
    ranges: Callable[[Mapping[int, PartitionView]], list[Range]] | None
    sync: Callable[[], None]
    first_dirty: Callable[[int], int | None]
    map_bytes: int
    log_dir: LogDirectory
    ttl_ms: Callable[[], int]
    now_ms: Callable[[], int]
    on_refused: Callable[[Callable[[BaseException], None]], None]


class _Items(ItemsView[K, V]):
    _mapping: State[K, V]

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return self._mapping._pairs()


class _Values(ValuesView[V]):
    _mapping: State[Any, V]

    def __iter__(self) -> Iterator[V]:
        return (value for _, value in self._mapping._pairs())


class State(ProcessBound, MutableMapping[K, V], Generic[K, V]):
    """The newest value of every key of a topic, as a dict whose changes are a log.

    `LogDir.state` opens it. `del` writes a tombstone; None is a value if the value serializer can encode it
    (json can). Every get decodes the value again, so a change in place is lost: use `edit`.

    Every call is thread-safe. `totals["a"] += 1` is two calls, and another thread may change the value
    between them. `change`, `incr`, `edit`, `pop`, `popitem` and `setdefault` are atomic: they hold the
    state's lock while they read and write. Any thread may iterate; `copy` returns all values as of one
    moment. Two states of one topic do not share a lock, and do not see each other's
    changes before `refresh`: share one `State` between threads.

    Also a context manager: leaving the block closes the state; the log stays open.

    Attributes:
        topic: The topic, for reading its records.
        position: The offset of each partition up to which its records are in the mapping.
        restored: A `Restored` for each partition.
    """

    DELETE: Final = _Delete.DELETE
    """The function of `change` returns this to delete the key."""

    def __init__(
        self,
        topic: Any,
        source: StateSource,
        coders: tuple[Coder, Coder],
        *,
        default: Callable[[], V] | None = None,
        max_bytes: int | None = None,
        snapshot: Snapshot | None = None,
        progress: ProgressLike | None = None,
    ) -> None:
        self.topic = topic
        self.position: dict[int, int] = {}
        self.restored: tuple[Restored, ...] = ()
        self._log = source.log
        self._views = source.views
        self._id_of_topic = source.topic_id
        self._topic_id: str | None = None  # as of the restore
        self._ranges = source.ranges
        self._key, self._value = coders
        self._sync = source.sync
        self._first_dirty = source.first_dirty
        self._default = default
        self._max_bytes = max_bytes
        self._map_bytes = source.map_bytes
        self._data: dict[bytes, bytes] = {}
        self._bytes = 0
        self._removals: dict[int, RemovalLog] = {}  # as of the last read of each partition
        self._lock = threading.RLock()
        self._closed = False
        self._refused: BaseException | None = None  # the error of a change that is in the mapping only
        source.on_refused(self._note_refused)
        self._log_dir, self._ttl_of = source.log_dir, source.ttl_ms
        self._settings = self._log_dir.settings  # before the time to live: older ones only compare again
        self._ttl_ms = -1 if self._ranges is not None else self._ttl_of()
        self._now_ms = source.now_ms
        self._expiry: dict[bytes, int] = {}  # for keys whose value expires
        self._expiring: list[
            tuple[int, bytes]
        ] = []  # a heap; an entry is valid if `_expiry` has the same time
        self._restore(progress, snapshot)

    # -------------------------------------------------------------- restoring

    def _restore(self, progress: ProgressLike | None, snapshot: Snapshot | None = None) -> None:
        """Read all partitions; start again if a cleaning replaced files that could not be held open."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._restore_once(progress, snapshot)
                return
            except (FileVanishedError, ReadOvertakenError):
                if attempt == _ATTEMPTS:
                    raise
                self._data, self._bytes = {}, 0
                self._expiry, self._expiring = {}, []

    def _restore_once(self, progress: ProgressLike | None, snapshot: Snapshot | None) -> None:
        self._topic_id = self._id_of_topic()  # before the views: an older id only restores once more
        ranges = {range_.partition: range_ for range_ in self._ranges_of(self._views())}
        removals = {number: self._removals_of(range_.view) for number, range_ in ranges.items()}
        for number, range_ in ranges.items():
            if removals[number].cut_count:  # list the files after the note was read: a cut may be in between
                range_.renew()
        total = sum(segment.size for range_ in ranges.values() for segment in range_.view.segments)
        began = time.monotonic()
        done = 0
        restored = []
        loaded = {} if snapshot is None else self._load(snapshot, ranges)
        for number, range_ in sorted(ranges.items()):
            size = sum(segment.size for segment in range_.view.segments)

            def report(part: int, parts: int, before: int = done, size: int = size) -> None:
                if progress is not None:
                    at = before + (size * part // parts if parts else size)
                    progress(Progress.at("restore", at, total, time.monotonic() - began))

            started = time.monotonic()
            keys, held = len(self._data), self._bytes
            if number in loaded:
                self._apply_newer(range_, progress=report)
                keys, held = keys - loaded[number].keys, held - loaded[number].bytes
            else:
                self._fill(range_, report)
            report(1, 1)
            done += size
            restored.append(
                Restored(
                    self._log.name,
                    number,
                    range_.end,
                    len(self._data) - keys,
                    self._bytes - held,
                    time.monotonic() - started + (loaded[number].seconds if number in loaded else 0.0),
                )
            )
            self.position[number], self._removals[number] = range_.end, removals[number]
            self._note_expiry(range_.view, range_.view.log_start, range_.end)
        self.restored = tuple(restored)
        STATE_RESTORE_SECONDS.set(time.monotonic() - began, self._log.name)

    def _ranges_of(self, views: Mapping[int, PartitionView]) -> list[Range]:
        if self._ranges is not None:
            return self._ranges(views)
        return [Range.of(view, lambda view: (view.log_start, view.stable_offset)) for view in views.values()]

    def _removals_of(self, view: PartitionView) -> RemovalLog:
        return removal_log.load(view.files, view.directory)

    def _load(self, snapshot: Snapshot, ranges: dict[int, Range]) -> dict[int, _LoadStats]:
        """Put the values of a snapshot into the mapping, and return the statistics of each partition.

        Changes the ranges of its partitions to the records that are not in the snapshot, as of the moment for
        which the snapshot was checked.
        """
        for number in snapshot.ends.keys() & ranges.keys():
            ranges[number] = ranges[number].settled()
        snapshot.check(ranges)
        starts = {number: ranges[number].start for number in snapshot.ends}
        for number, end in snapshot.ends.items():
            ranges[number].start = max(end, starts[number])
        loaded = {number: _LoadStats() for number in snapshot.ends}
        buffers = {number: ValueBuffer() for number in snapshot.ends}
        began = time.monotonic()
        for number, pairs in snapshot.pairs(starts):
            buffers[number].put(pairs)
            self._check_buffers(*buffers.values())
            now = time.monotonic()
            loaded[number].seconds += now - began
            began = now
        for number, buffer in buffers.items():
            keys, held = len(self._data), self._bytes
            self._merge(buffer)
            loaded[number].keys, loaded[number].bytes = len(self._data) - keys, self._bytes - held
        return loaded

    def _check_buffers(self, *buffers: ValueBuffer) -> None:
        """Check the size limit, buffers included. They are counted exactly only near the limit."""
        limit = self._max_bytes
        if limit is not None and self._bytes + sum(buffer.size_bytes for buffer in buffers) > limit:
            self._check_size(self._bytes + sum(buffer.recount() for buffer in buffers))

    def _check_size(self, size_bytes: int) -> None:
        limit = self._max_bytes
        if limit is not None and size_bytes > limit:
            raise StateTooLargeError(
                f"{self._log.name}: the live data is larger than max_bytes = {limit}",
                remedy="more max_bytes, or read what you need: topic.read(view='newest', keys=[...])",
            )

    def _fill(self, range_: Range, progress: Callable[[int, int], None] | None) -> None:
        """Put the newest values of a whole partition into the mapping, which has no value of it yet."""
        buffer = ValueBuffer()
        newest_values = newest_pairs(
            range_,
            tombstones=False,
            map_bytes=self._map_bytes,
            first_dirty=self._first_dirty(range_.partition),
            progress=progress,
        )
        with closing(newest_values) as parts:
            for pairs in parts:
                buffer.put(pairs)
                self._check_buffers(buffer)
        self._merge(buffer)

    def _merge(self, buffer: ValueBuffer) -> None:
        self._bytes += buffer.recount()
        if not self._data:
            self._data = buffer.data
            return
        known = len(self._data)
        self._data.update(buffer.data)
        if len(self._data) - known < len(buffer.data):  # a key that was written to two partitions
            self._bytes = sum(map(len, self._data)) + sum(map(len, self._data.values()))

    def _apply_newer(self, range_: Range, *, progress: Callable[[int, int], None] | None = None) -> int:
        """Apply the newest records of a range that follows the mapping; return the number of records."""
        taken = 0
        newest_values = newest_pairs(range_, tombstones=True, map_bytes=self._map_bytes, progress=progress)
        with closing(newest_values) as parts:
            for pairs in parts:
                taken += len(pairs.keys)
                self._put_all(pairs)
                self._check_size(self._bytes)
        return taken

    def _put_all(self, pairs: Pairs) -> None:
        for key, value in zip(pairs.keys, pairs.values, strict=True):
            self._put(self._data, key, value)

    def _put(self, data: dict[bytes, bytes], key: bytes, value: bytes | None) -> None:
        old = data.get(key)
        if old is not None:
            self._bytes -= len(key) + len(old)
        if value is None:
            data.pop(key, None)
        else:
            data[key] = value
            self._bytes += len(key) + len(value)

    def refresh(self) -> int:
        """Apply records that other writers have appended; return the number of keys that they changed.

        Everything is read again if a deletion may have been missed: the log start was raised, the log was
        truncated, tombstones above `position` were removed, or the topic was created again. Kafka's cleaner
        does not record which tombstones it removes: beside it, refresh more often than the topic's
        `delete.retention.ms`.

        In a bucket the offsets of this state's own changes are not known: `position` stays below them, and
        the result counts them.
        """
        self._check_open()
        if self._ranges is not None:
            raise UsageError("this state was opened as of an earlier end", remedy='open it with end="latest"')
        with self._lock:
            self._take_back_refused()
            try:
                changed = self._refresh_once()
            except (FileVanishedError, ReadOvertakenError):
                changed = None  # a part of the new records may be in the mapping
            if changed is None:
                self._restore_again(self._ttl_ms)
                return len(self._data)
            return changed

    def _restore_again(self, ttl_ms: int) -> None:
        new: State[K, V] = object.__new__(type(self))  # `self` shows the old values meanwhile
        new.__dict__.update(self.__dict__, _data={}, _bytes=0, position={}, _removals={})
        new._expiry, new._expiring, new._ttl_ms = {}, [], ttl_ms
        new._restore(None)
        self._data, self._bytes, self.restored = new._data, new._bytes, new.restored
        self.position, self._removals = new.position, new._removals
        self._expiry, self._expiring, self._ttl_ms = new._expiry, new._expiring, ttl_ms
        self._topic_id = new._topic_id

    def _refresh_once(self) -> int | None:
        """Apply new records; None if the log no longer continues the mapping."""
        changed = 0
        for number, view in sorted(self._views().items()):
            first = self.position.get(number)

            def bounds(view: PartitionView, first: int | None = first) -> tuple[int, int]:
                start = view.log_start if first is None else first
                return start, max(start, view.stable_offset)

            range_ = Range.of(view, bounds).settled()
            known = self._removals_of(view)
            if first is not None:
                seen = self._removals.get(number, known).cut_count
                lowest, highest = range_.view.log_start, min(range_.view.log_end, known.cut_since(seen))
                if not max(lowest, known.up_to) <= first <= range_.end <= highest:
                    return None
            changed += self._apply_newer(range_)
            self._note_expiry(range_.view, range_.start, range_.end)
            self.position[number], self._removals[number] = range_.end, known
        # After the last view was made: all of them are of the topic that was restored.
        return changed if self._id_of_topic() in (None, self._topic_id) else None

    # -------------------------------------------------------------- the mapping

    def __getitem__(self, key: K) -> V:
        self._check_open()
        data = self._data.get(self._key.encode(key, "key"))
        if data is not None:
            return self._value.decode(data, "value")
        if self._default is not None:
            return self._default()
        raise KeyError(key)

    def __setitem__(self, key: K, value: V) -> None:
        self._write(self._key.encode(key, "key"), self._value.encode(value, "value"))

    def __delitem__(self, key: K) -> None:
        self._check_open()
        data = self._key.encode(key, "key")
        with self._lock:
            if data not in self._data:
                raise KeyError(key)
            self._write(data, None)

    def __iter__(self) -> Iterator[K]:
        self._check_open()
        for data in list(self._data):  # a copy: threads change the dict, and values expire
            yield self._key.decode(data, "key")

    def items(self) -> ItemsView[K, V]:
        """Return the keys with their values. An iteration leaves out what is deleted before it is reached."""
        return _Items(self)

    def values(self) -> ValuesView[V]:
        """Return the values. An iteration leaves out what is deleted before it is reached."""
        return _Values(self)

    def _pairs(self) -> Iterator[tuple[K, V]]:
        self._check_open()
        for key in list(self._data):
            value = self._data.get(key)
            if value is not None:
                yield self._key.decode(key, "key"), self._value.decode(value, "value")

    def __len__(self) -> int:
        self._check_open()
        return len(self._data)

    def __contains__(self, key: object) -> bool:
        self._check_open()
        try:
            data = self._key.encode(key, "key")
        except SerializerError:
            return False  # as in a dict: such a key cannot be in it
        return data in self._data

    def set(self, key: K, value: V, *, ttl: Duration | None = None) -> None:
        """Set a value that expires: `state.set("session", token, ttl="30m")`.

        The state hides an expired value immediately. The background cleaner, or `clean`, appends its
        tombstone, which deletes it for every reader of the log.

        Args:
            key: The key to set.
            value: Its value.
            ttl: Time to live: seconds, a text such as "30m" or a timedelta; -1: forever. None: the
                topic's `lastword.ttl.ms`.

        Raises:
            UsageError: Values of this topic do not expire (`lastword.ttl.ms` is -1), or `ttl` is not a
                duration.
        """
        if ttl is None:
            self[key] = value
            return
        name = self._log.name
        self._check_writable()
        if self._ttl_ms < 0:
            raise UsageError(
                f"values of {name} do not expire: lastword.ttl.ms is -1",
                remedy=f"logs.set_config({name!r}, lastword_ttl_ms=0)",
            )
        ttl_ms = -1 if ttl in FOREVER else parse_duration_ms(ttl)
        if ttl_ms < 0 and ttl not in FOREVER:
            raise UsageError(f"{ttl!r} is no time to live", remedy='ttl="30m", or seconds')
        data, encoded = self._key.encode(key, "key"), self._value.encode(value, "value")
        self._write(data, encoded, (header_of(ttl_ms),))

    # MutableMapping's methods use __getitem__, which returns the state's default for an absent key.

    def get(self, key: K, default: Any = None) -> Any:
        """Return the value of a key, or `default`; the state's own default is not used."""
        if key in self:
            return self[key]
        return default

    def pop(self, key: K, default: Any = _MISSING) -> Any:
        """Delete a key and return its value, or `default` if it is absent. Atomic."""
        with self._lock:
            if key in self:
                value = self[key]
                del self[key]
                return value
        if default is _MISSING:
            raise KeyError(key)
        return default

    def popitem(self) -> tuple[K, V]:
        """Delete one key and return it with its value; KeyError if there is none. Atomic."""
        with self._lock:
            self._check_open()
            for data in self._data:
                pair = self._key.decode(data, "key"), self._value.decode(self._data[data], "value")
                self._write(data, None)
                return pair
        raise KeyError("the state is empty")

    def setdefault(self, key: K, default: Any = None) -> Any:
        """Return the value of a key; an absent one gets `default` first. Atomic."""
        with self._lock:
            if key not in self:
                self[key] = default
            return self[key]

    def update(self, other: Any = (), /, **more: Any) -> None:
        """Set many values with one `extend`: one sync for all of them."""
        pairs = other.items() if isinstance(other, Mapping) else other
        encoded = {
            self._key.encode(key, "key"): self._value.encode(value, "value")
            for key, value in (*pairs, *more.items())
        }
        self._write_all(encoded.items())

    def clear(self) -> None:
        """Delete every key, with one `extend`."""
        with self._lock:
            self._write_all([(key, None) for key in list(self._data)])

    @contextmanager
    def edit(self, key: K) -> Iterator[V]:
        """Change a value in place: `with state.edit("ada") as ada: ada["city"] = "Oslo"`.

        Writes one record when the block ends; nothing if the block raises or leaves the value as it was.
        Other threads wait until it ends. For a list, a dict or another mutable object: a number, a text or a
        tuple cannot be changed in place, use `change`.

        Raises:
            KeyError: The key is absent, and the state has no default.
            UsageError: The value is immutable. Nothing was changed.
        """
        with self._lock:
            value = self[key]
            if isinstance(value, _IMMUTABLE):
                raise UsageError(
                    f"edit: a value of type {type(value).__name__} cannot be changed in place",
                    remedy="state.change(key, lambda value: ...), or state.incr(key) for a number",
                )
            yield value
            self._write_if_new(key, value)

    def change(self, key: K, function: Callable[[V], Any], *, default: Any = _MISSING) -> V:
        """Replace a value by the result of a function: `state.change("ada", str.upper)`. Atomic.

        Writes one record; nothing if the function raises or the value stays as it was. Other threads wait
        until it ends.

        Args:
            key: The key to change.
            function: Takes the value and returns the new one, or `State.DELETE` to delete the key.
            default: The argument of the function if the key is absent; without it the state's own default is
                used.

        Returns:
            The result of the function.

        Raises:
            KeyError: The key is absent, and there is no default.
        """
        with self._lock:
            new: Any = function(default if default is not _MISSING and key not in self else self[key])
            if new is not State.DELETE:
                self._write_if_new(key, new)
            elif key in self:
                del self[key]
            return new

    def incr(self, key: K, by: Any = 1) -> V:
        """Add to a number and return the sum: `state.incr("visits")`. Atomic, one record.

        Args:
            key: The key to change. An absent one counts from 0, or from the state's default.
            by: A number to add; a negative one subtracts.

        Raises:
            UsageError: The value, or `by`, is not a number. Nothing was changed.
        """

        def add(value: Any) -> Any:
            for number in (value, by):
                if isinstance(number, bool) or not isinstance(number, numbers.Number):
                    raise UsageError(
                        f"incr: a {type(number).__name__} is no number",
                        remedy="state.change(key, lambda value: ...) takes any function",
                    )
            return value + by

        return self.change(key, add, default=0 if self._default is None else _MISSING)

    def copy(self) -> dict[K, V]:
        """Return a dict of all keys and values. Later changes do not affect it."""
        with self._lock:
            return dict(self.items())

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[K, V]:
        return self.copy()  # every value is decoded again

    def __or__(self, other: Mapping[K, V]) -> dict[K, V]:
        if not isinstance(other, Mapping):
            return NotImplemented
        return {**self.copy(), **other}

    def __ror__(self, other: Mapping[K, V]) -> dict[K, V]:
        if not isinstance(other, Mapping):
            return NotImplemented
        return {**other, **self.copy()}

    def __ior__(self, other: Any) -> State[K, V]:  # type: ignore[misc]  # `|` gives a dict, `|=` the state
        self.update(other)
        return self

    def __enter__(self) -> State[K, V]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        content = "closed" if self._closed else plural(len(self._data), "key")
        return f"State({self._log.name!r}, {content})"

    def _repr_html_(self) -> str:
        rows = [
            (str(n), str(offset), str(sum(r.keys for r in self.restored if r.partition == n)))
            for n, offset in sorted(self.position.items())
        ]
        return table_html(repr(self), ("partition", "position", "keys restored"), rows)

    # -------------------------------------------------------------- writing

    def _write(self, key: bytes, value: bytes | None, headers: tuple[Header, ...] = ()) -> None:
        self._check_writable()
        with self._lock:
            if self._refused is not None:
                self._take_back_refused()
            appended = self._log.append(key, value, headers=headers)
            self._put(self._data, key, value)
            if self._ttl_ms >= 0:
                self._expires(key, NEVER if value is None else self._expires_at(headers))
            # Only if the record follows directly: records that others appended in between are not applied
            # yet.
            if self.position.get(appended.partition) == appended.offset:
                self.position[appended.partition] = appended.offset + 1

    def _write_if_new(self, key: K, value: V) -> None:
        data, new = self._key.encode(key, "key"), self._value.encode(value, "value")
        if self._data.get(data) != new:
            self._write(data, new)

    def _write_all(self, pairs: Iterable[tuple[bytes, bytes | None]]) -> None:
        self._check_writable()
        written = list(pairs)
        if not written:
            return
        with self._lock:
            self._take_back_refused()
            before = {n: view.log_end for n, view in self._views().items()}
            self._log.extend(written)
            after = {n: view.log_end for n, view in self._views().items()}
            for key, value in written:
                self._put(self._data, key, value)
                if self._ttl_ms >= 0:
                    self._expires(key, NEVER if value is None else self._expires_at(()))
            alone = sum(after.values()) - sum(before.values()) == len(written)
            if alone and all(self.position.get(n) == offset for n, offset in before.items()):
                self.position.update(after)

    def sync(self) -> None:
        """Sync: changes acknowledged with "os" survive a power cut when the call returns.

        In a bucket, a commit may refuse a change that the mapping shows already: another process has lowered
        `max.message.bytes`, for example. Then this, or the next change, restores the mapping from the log and
        raises the error.
        """
        self._check_open()
        try:
            self._sync()
        finally:
            self._take_back_refused()

    def _note_refused(self, error: BaseException) -> None:
        """Note that the log will never have a change that the mapping shows. For another thread."""
        self._refused = self._refused or error

    def _take_back_refused(self) -> None:
        """Restore the mapping from the log if a change was refused, and raise the error of the change."""
        if self._refused is None:
            return
        with self._lock:
            with suppress(Exception):
                self._sync()  # raises errors of refused changes once
            self._sync()  # all other changes are in the log now
            refused = self._refused
            if refused is not None:
                self._restore_again(self._ttl_ms)
                self._refused = None
                raise refused

    def close(self) -> None:
        """Free the memory. The log stays open: it belongs to its `LogDir`."""
        self._closed = True
        self._data, self._expiry, self._expiring = {}, {}, []

    def _check_writable(self) -> None:
        self._check_open()
        if self._ranges is not None:
            raise ReadOnlyError(
                f"the state of {self._log.name} was opened as of an earlier end",
                remedy='open it with end="latest" to change it',
            )

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(
                f"the state of {self._log.name} is closed", remedy="open it again: logs.state(...)"
            )
        if self._log_dir.settings is not self._settings:
            self._take_settings()
        if self._expiring and self._expiring[0][0] <= self._now_ms():
            self._drop_expired()

    # -------------------------------------------------------------- time to live

    def _take_settings(self) -> None:
        """Take the time to live of now. If it has changed, restore again: hidden values may be back."""
        with self._lock:
            settings, ttl_ms = self._log_dir.settings, self._ttl_of()
            if self._ranges is None and ttl_ms != self._ttl_ms:
                self._restore_again(ttl_ms)
            self._settings = settings

    def _note_expiry(self, view: PartitionView, start: int, end: int) -> None:
        """Read the expiry of the newest values of a range. Costs one more read, if values may expire."""
        if self._ttl_ms < 0 or start >= end:
            return
        for record in newest(Range(view, start, end), tombstones=True, map_bytes=self._map_bytes):
            assert record.key is not None
            at = expires_at(record.timestamp, record.headers, self._ttl_ms)
            self._expires(record.key, NEVER if record.value is None else at)

    def _expires_at(self, headers: tuple[Header, ...]) -> int:
        return expires_at(self._now_ms(), headers, self._ttl_ms)

    def _expires(self, key: bytes, at: int) -> None:
        if at == NEVER:
            self._expiry.pop(key, None)
        else:
            self._expiry[key] = at
            heapq.heappush(self._expiring, (at, key))

    def _drop_expired(self) -> None:
        with self._lock:
            now_ms = self._now_ms()
            while self._expiring and self._expiring[0][0] <= now_ms:
                at, key = heapq.heappop(self._expiring)
                if self._expiry.get(key) == at:
                    del self._expiry[key]
                    self._put(self._data, key, None)
