"""`State`: a mapping whose every change is a record of a compacted topic.

Memory holds the bytes of the newest value of each key (`contents`), or nothing (`indexed_contents`). Every
get decodes the bytes, so changing a returned object does not change the state. The log is the source of
truth: a change is acknowledged there before the mapping shows it, and opening the state restores the mapping
from it.
"""

from __future__ import annotations

import datetime
import enum
import numbers
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, MutableMapping, ValuesView
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from weakref import finalize

from lastword.api.contents import Contents
from lastword.api.record import Absent
from lastword.api.restore import Restored
from lastword.api.serializers import Serializer
from lastword.errors import BusyError, SerializerError, UsageError
from lastword.parse import Duration, parse_duration_ms
from lastword.records.record import Header
from lastword.state.ttl import MAX_MS, header_of
from lastword.values import Closing, ProcessBound, plural, table_html

if TYPE_CHECKING:
    from lastword.api.indexed_contents import IndexedContents
    from lastword.api.watch import Watch

K = TypeVar("K")
V = TypeVar("V")
_MISSING: Any = object()
ATTEMPTS = 1000
"""To replace a value before another writer does: processes of a bucket compete for it."""
FOREVER = (-1, "-1")
"""Times to live of a value that does not expire."""
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


class Items(ItemsView[K, V]):
    """The items of a mapping by its `_pairs`."""

    _mapping: Any

    def __contains__(self, item: Any) -> bool:
        key, _ = item  # an absent key has no item, also if the state has a default
        return key in self._mapping and super().__contains__(item)

    def __iter__(self) -> Iterator[tuple[K, V]]:
        pairs: Iterator[tuple[K, V]] = self._mapping._pairs()
        return pairs


class Values(ValuesView[V]):
    """The values of a mapping by its `_pairs`."""

    _mapping: Any

    def __contains__(self, value: object) -> bool:
        return any(each is value or each == value for each in self)

    def __iter__(self) -> Iterator[V]:
        return (value for _, value in self._mapping._pairs())


class State(ProcessBound, Closing, MutableMapping[K, V], Generic[K, V]):
    """The newest value of every key of a topic, as a dict whose changes are a log.

    `LogDir.state` opens it. `del` writes a tombstone; None is a value if the value serializer can encode it
    (json can). Every get decodes the value again, so a change in place is lost: use `edit`.

    Every call is thread-safe. `totals["a"] += 1` is two calls, and another thread may change the value
    between them. `change`, `incr`, `edit`, `pop`, `popitem` and `setdefault` are atomic: they append only if
    the log still has the value that they read, else they read again. Any thread may iterate; `copy` returns
    all values as of one moment.

    The states of one topic of a `LogDir` in mode "a" share their values, and show what this process appends
    to the topic otherwise. `refresh` takes in what other processes append: in mode "r", and in a bucket.

    Also a context manager: leaving the block closes this `State`. The last one that is closed frees the
    memory; the log stays open.

    Attributes:
        topic: The topic, for reading its records.
    """

    DELETE: Final = _Delete.DELETE
    """The function of `change` returns this to delete the key."""

    def __init__(
        self,
        topic: Any,
        contents: Contents | IndexedContents,
        coders: tuple[Serializer, Serializer],
        *,
        default: Callable[[], V] | None = None,
        ttl: Duration | None = None,
    ) -> None:
        self.topic = topic
        self._contents: Contents | IndexedContents | None = contents
        contents.users.add(id(self))
        self._release = finalize(self, contents.users.discard, id(self))
        self._release.atexit = False
        self._key, self._value = coders
        self._default = default
        self._headers: tuple[Header, ...] = () if ttl is None else self._ttl_header(ttl)

    @property
    def position(self) -> dict[int, int]:
        """The offset of each partition up to which its records are decided, and in the mapping.

        Above it are records of open transactions. The mapping also has the committed records above it. To
        read the later records, take the position before a copy of the mapping.
        """
        return self._checked().position

    @property
    def restored(self) -> tuple[Restored, ...]:
        """A `Restored` for each partition."""
        return self._checked().restored

    def refresh(self) -> int:
        """Apply records that other processes have appended; return the number of keys that they changed.

        Everything is read again if a deletion may have been missed: the log start was raised, the log was
        truncated, tombstones above `position` were removed, or the topic was created again. Kafka's cleaner
        does not record which tombstones it removes: beside it, refresh more often than the topic's
        `delete.retention.ms`.

        In a bucket the offsets of changes that were not awaited are not known: `position` stays below them,
        and the result counts them.
        """
        return self._checked().refresh()

    # -------------------------------------------------------------- the mapping

    def __getitem__(self, key: K) -> V:
        return self._decoded(key, self._checked().get(self._key.encode(key, "key")))

    def _decoded(self, key: K, data: bytes | None) -> V:
        """Return the value with these bytes, or the state's default."""
        if data is not None:
            value: V = self._value.decode(data, "value")
            return value
        if self._default is not None:
            return self._default()
        raise KeyError(key)

    def __setitem__(self, key: K, value: V) -> None:
        data, encoded = self._key.encode(key, "key"), self._value.encode(value, "value")
        self._checked().write(data, encoded, self._headers)

    def __delitem__(self, key: K) -> None:
        contents = self._checked()
        data = self._key.encode(key, "key")
        with contents.turn:
            if contents.get(data) is None:
                raise KeyError(key)
            contents.write(data, None)

    def __iter__(self) -> Iterator[K]:
        for data in self._checked().all_keys():
            yield self._key.decode(data, "key")

    def items(self) -> ItemsView[K, V]:
        """Return the keys with their values. An iteration leaves out what is deleted before it is reached.

        With memory="none" it reads the log, each partition as of the moment at which it begins.
        """
        return Items(self)

    def values(self) -> ValuesView[V]:
        """Return the values. An iteration leaves out what is deleted before it is reached."""
        return Values(self)

    def _pairs(self) -> Iterator[tuple[K, V]]:
        for key, value in self._checked().pairs():
            yield self._key.decode(key, "key"), self._value.decode(value, "value")

    def __len__(self) -> int:
        return len(self._checked())

    def __bool__(self) -> bool:
        return bool(self._checked())

    def __contains__(self, key: object) -> bool:
        return self._found(key) is not None

    def _found(self, key: object) -> bytes | None:
        """Return the bytes of a value; None also for a key that cannot be in the state, as in a dict."""
        contents = self._checked()
        try:
            data = self._key.encode(key, "key")
        except SerializerError:
            return None
        return contents.get(data)

    def set(
        self, key: K, value: V, *, ttl: Duration | None = None, expect: int | Absent | None = None
    ) -> None:
        """Set a value that expires, `state.set("session", token, ttl="30m")`, or one that is known.

        The state hides an expired value immediately. The background cleaner, or `clean`, appends its
        tombstone, which deletes it for every reader of the log.

        Args:
            key: The key to set.
            value: Its value.
            ttl: Time to live: seconds, a text such as "30m" or a timedelta; -1: forever. None: the
                topic's `lastword.ttl.ms`.
            expect: Set the value only if the newest record of the key is the one at this offset (`offset`),
                or if the key is absent (`lastword.ABSENT`). The check and the change are one step.

        Raises:
            ConflictError: The key has another value than the expected one. Nothing was changed.
            UsageError: Values of this topic do not expire (`lastword.ttl.ms` is -1), or `ttl` is not a
                duration.
        """
        headers = self._headers if ttl is None else self._ttl_header(ttl)
        data, encoded = self._key.encode(key, "key"), self._value.encode(value, "value")
        self._checked().write(data, encoded, headers, expect)

    def delete(self, key: K, *, expect: int | Absent | None = None) -> None:
        """Delete a key; KeyError if it is absent. `expect`: as for `set`."""
        if expect is None:
            del self[key]
        else:
            self._checked().write(self._key.encode(key, "key"), None, (), expect)

    def offset(self, key: K) -> int | None:
        """Return the offset of the value of a key, for `expect=`; None if the key is absent.

        A lookup in the log, as `Topic.get`. Read the offset first and then the value: if the value is newer,
        `expect=` refuses.
        """
        from lastword.api.keys import find_one

        data = self._key.encode(key, "key")
        found = None if key not in self else find_one(self.topic, data, None, to_end=True)
        return None if found is None else found[1].offset

    def touch(self, key: K, *, ttl: Duration | None = None) -> None:
        """Write a value again, so that its time to live begins again. Atomic, one record.

        Args:
            key: The key.
            ttl: As for `set`; None: the time to live that the value has.

        Raises:
            KeyError: The key is absent.
            UsageError: As for `set`.
        """
        headers = None if ttl is None else self._ttl_header(ttl)
        if self._replace(key, lambda old: old, headers=headers, rewrites=True) is None:
            raise KeyError(key)

    def remaining(self, key: K) -> float | None:
        """Return the seconds until a value expires; None: never. KeyError: the key is absent."""
        contents, data = self._checked(), self._key.encode(key, "key")
        if contents.get(data) is None:
            raise KeyError(key)
        left_ms = contents.remaining_ms(data)
        return None if left_ms is None else left_ms / 1000

    def _ttl_header(self, ttl: Duration) -> tuple[Header, ...]:
        contents = self._checked()
        contents.check_writable()
        if contents.ttl_ms < 0:
            raise UsageError(
                f"values of {contents.topic} do not expire: lastword.ttl.ms is -1",
                remedy=f"logs.set_config({contents.topic!r}, lastword_ttl_ms=0)",
            )
        ttl_ms = -1 if ttl in FOREVER else parse_duration_ms(ttl)
        if (ttl_ms < 0 and ttl not in FOREVER) or ttl_ms >= MAX_MS:
            raise UsageError(f"{ttl!r} is no time to live", remedy='ttl="30m", or seconds; -1: forever')
        return (header_of(ttl_ms),)

    # MutableMapping's methods use __getitem__, which returns the state's default for an absent key.

    def get(self, key: K, default: Any = None) -> Any:
        """Return the value of a key, or `default`; the state's own default is not used."""
        data = self._found(key)
        return default if data is None else self._value.decode(data, "value")

    def pop(self, key: K, default: Any = _MISSING) -> Any:
        """Delete a key and return its value, or `default` if it is absent. Atomic."""
        if key in self:
            old = self._replace(key, lambda old: None)
            if old is not None:
                return self._value.decode(old, "value")
        if default is _MISSING:
            raise KeyError(key)
        return default

    def popitem(self) -> tuple[K, V]:
        """Delete one key and return it with its value; KeyError if there is none. Atomic.

        Raises:
            UsageError: The state keeps no values in memory: each call would read the log from its start.
        """
        contents = self._checked()
        if not isinstance(contents, Contents):
            raise UsageError(
                f'popitem: the state of {contents.topic} was opened with memory="none", and each call would '
                "read the log from its start",
                remedy="for key in state: state.pop(key, None)",
            )
        with contents.turn:
            while found := contents.some_pair():
                if contents.replace(*found, None):
                    break
                self._checked()
        if found is None:
            raise KeyError("the state is empty")
        contents.acknowledge(found[0])
        return self._key.decode(found[0], "key"), self._value.decode(found[1], "value")

    def setdefault(self, key: K, default: Any = None) -> Any:
        """Return the value of a key; an absent one gets `default` first. Atomic."""
        old = self._replace(key, lambda old: self._value.encode(default, "value") if old is None else old)
        return self._value.decode(self._value.encode(default, "value") if old is None else old, "value")

    def update(self, other: Any = (), /, **more: Any) -> None:
        """Set many values with one `extend`: one sync for all of them.

        With memory="none" in parts of 10,000, so that an iterator may be longer than the memory.
        """
        pairs = other.items() if isinstance(other, Mapping) else other
        encoded = (
            (self._key.encode(key, "key"), self._value.encode(value, "value"))
            for key, value in chain(pairs, more.items())
        )
        self._checked().write_all(encoded, self._headers)

    def clear(self) -> None:
        """Delete every key, with one `extend`; with memory="none" in parts of 10,000."""
        contents = self._checked()
        with contents.turn:
            contents.write_all((key, None) for key in contents.all_keys())

    @contextmanager
    def edit(self, key: K) -> Iterator[V]:
        """Change a value in place: `with state.edit("ada") as ada: ada["city"] = "Oslo"`.

        Writes one record when the block ends; nothing if the block raises or leaves the value as it was.
        Other threads wait until it ends. For a list, a dict or another mutable object: a number, a text or a
        tuple cannot be changed in place, use `change`.

        Raises:
            KeyError: The key is absent, and the state has no default.
            UsageError: The value is immutable. Nothing was changed.
            BusyError: A writer that is no `State` of this process changed the value meanwhile. Nothing was
                changed; `change` runs its function again instead.
        """
        contents = self._checked()
        data = self._key.encode(key, "key")
        with contents.turn:
            before = contents.get(data)
            value = self._decoded(key, before)
            if isinstance(value, _IMMUTABLE):
                raise UsageError(
                    f"edit: a value of type {type(value).__name__} cannot be changed in place",
                    remedy="state.change(key, lambda value: ...), or state.incr(key) for a number",
                )
            yield value

            def changed(old: bytes | None) -> bytes:
                if old != before:
                    raise BusyError(
                        f"edit: another writer changed the value in {contents.topic} meanwhile",
                        remedy="run the block again, or use state.change(key, function)",
                    )
                return self._value.encode(value, "value")

            self._replace(key, changed)

    def change(self, key: K, function: Callable[[V], Any], *, default: Any = _MISSING) -> V:
        """Replace a value by the result of a function: `state.change("ada", str.upper)`. Atomic.

        Writes one record; nothing if the function raises or the value stays as it was. Other threads wait
        until it ends. The function runs again if the log got another value meanwhile: from a producer, from
        `topic.append`, in a bucket from another process. In a bucket the call returns when the record is in
        the store. A value keeps its own time to live, which begins again.

        Args:
            key: The key to change.
            function: Takes the value and returns the new one, or `State.DELETE` to delete the key.
            default: The argument of the function if the key is absent; without it the state's own default is
                used.

        Returns:
            The result of the function.

        Raises:
            KeyError: The key is absent, and there is no default.
            BusyError: The log got another value 1000 times meanwhile: the function writes the key itself.
        """
        new: Any = None

        def step(old: bytes | None) -> bytes | None:
            nonlocal new
            new = function(default if default is not _MISSING and old is None else self._decoded(key, old))
            return None if new is State.DELETE else self._value.encode(new, "value")

        self._replace(key, step)
        changed: V = new
        return changed

    def _replace(
        self,
        key: K,
        step: Callable[[bytes | None], bytes | None],
        *,
        headers: tuple[Header, ...] | None = None,
        rewrites: bool = False,
    ) -> bytes | None:
        """Replace a value by the result of `step`, which may run several times; return the value before.

        Args:
            key: The key.
            step: Takes the value as bytes, and returns the new one. None: there is none.
            headers: The headers of the record; None: with the time to live that the value has.
            rewrites: Write the record also if the value stays as it was.
        """
        contents = self._checked()
        data = self._key.encode(key, "key")
        with contents.turn:
            for _ in range(ATTEMPTS):
                old = contents.get(data)
                new = step(old)
                if new == old and (old is None or not rewrites):
                    return old
                of_value = headers
                if of_value is None:
                    own_ms = contents.own_ttl_ms(data)
                    of_value = self._headers if own_ms is None else (header_of(own_ms),)
                if contents.replace(data, old, new, () if new is None else of_value):
                    break
                self._checked()
            else:
                raise BusyError(
                    f"a value of {contents.topic} was another one {ATTEMPTS} times when it was replaced",
                    remedy="a function of change must not write the key itself; else try again",
                )
        contents.acknowledge(data)
        return old

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
        contents = self._checked()
        if not isinstance(contents, Contents):
            return dict(self._pairs())
        with contents.turn:
            values = contents.snapshot()
        return {self._key.decode(k, "key"): self._value.decode(v, "value") for k, v in values.items()}

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

    def watch(self, keys: Iterable[K] | None = None, **options: Any) -> Watch[K, V]:
        """Read the changes of the state's topic as they come, as `Topic.watch`.

        It shows the log: its own changes, too, and a value that expired until its tombstone is appended.

        Args:
            keys: Only changes of these keys; None: of every key.
            **options: start, lease, max_age and timeout.
        """
        self._checked()
        watch: Watch[K, V] = self.topic.watch(keys, **options)
        return watch

    def __repr__(self) -> str:
        contents = self._contents
        if contents is None:
            content = "closed"
        else:
            content = plural(len(contents), "key") if contents.in_memory else "memory='none'"
        return f"State({self.topic.name!r}, {content})"

    def _repr_html_(self) -> str | None:
        contents = self._contents
        if contents is None:
            return None  # a notebook shows the text
        rows = [
            (str(n), str(offset), str(sum(r.keys for r in contents.restored if r.partition == n)))
            for n, offset in contents.position.items()
        ]
        return table_html(repr(self), ("partition", "position", "keys restored"), rows)

    # -------------------------------------------------------------- the end

    def sync(self) -> None:
        """Sync: changes acknowledged with "os" survive a power cut when the call returns.

        In a bucket, a commit may refuse a change that the mapping shows already: another process has lowered
        `max.message.bytes`, for example. Then this, or the next change, restores the mapping from the log and
        raises the error.
        """
        self._checked().sync()

    def close(self) -> None:
        """Close this state; the last state of the topic frees the memory. The log stays open."""
        self._contents = None
        self._release()

    def _checked(self) -> Contents | IndexedContents:
        """Return the values, with all that this process has appended; UsageError if this is closed."""
        contents = self._contents
        if contents is None:
            raise UsageError(
                f"the state of {self.topic.name} is closed", remedy="open it again: logs.state(...)"
            )
        contents.check()
        return contents
