"""`LogDir.transaction`: changes of any keys, topics and positions that are all in the log, or none of them.

A `Transaction` collects changes in memory. Nothing is written before its block ends. Then, in a directory:

    one partition, one batch   the batch, and one sync
    otherwise                  transactional batches, synced; the decision, synced; the markers

The producer of the batches has the id of this process and an epoch of its own for each transaction. The
decision is a record of `__transaction_state`, as the server writes it: PrepareCommit with the partitions,
under the transactional id `lastword.transaction`. From then on the transaction is committed: an opening to
write that finds the file `lastword.transaction` in the root, which names the producer, appends the markers
that are missing. What this producer left open without a decision is aborted. Transactions of other producers
stay as they are.

A decision replaces the one before, so the markers of earlier transactions are durable before it is written:
they are synced together with the batches. The epoch tells which of the two an open transaction belongs to.

Locks, in this order: those of the states that the block has read, until the batches are appended;
`OpenDirs.commits` keeps out other transactions and calls that compare and set, from
the comparison to the last marker; `OpenDirs.moment` those that read several partitions; and the locks of
all logs, while batches or markers are appended. The logs with values that the block has read are held
together with the logs that get batches. A log is not held while the drive works. An append that does
not compare gets an offset behind those of the transaction, and so comes after it.

In a bucket the transaction is one commit, whose manifest is swapped in as a whole.
"""

from __future__ import annotations

import logging
import os
from collections.abc import (
    Callable,
    Collection,
    ItemsView,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    ValuesView,
)
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from functools import partial
from itertools import chain
from operator import methodcaller
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self, cast

from lastword.api.batches import Packer, Rows
from lastword.api.keys import LogMark, has_values
from lastword.api.open_transactions import marker, newest_states, store_state
from lastword.api.record import HeadersLike, header_pairs
from lastword.api.state import Items, State, Values
from lastword.api.topics import create_topics, open_topic
from lastword.errors import (
    BusyError,
    ConflictError,
    DiskFullError,
    LastwordError,
    SerializerError,
    TopicExistsError,
    TransactionTooLargeError,
    UsageError,
)
from lastword.files import OVERLAP_THREADS, overlapped
from lastword.logdir.identity import TRANSACTION, read_directory_id
from lastword.logdir.transaction_state import (
    COMPLETE_COMMIT,
    LAST_EPOCH,
    OWN_ID,
    PREPARE_COMMIT,
    TRANSACTIONS_TOPIC,
    Partition,
    ProducerIds,
    TransactionState,
    key_of,
    reserve_producer_ids,
)
from lastword.metrics import count_append
from lastword.parse import as_int, check_count, parse_bytes
from lastword.protocol import java_hash
from lastword.segment import names

if TYPE_CHECKING:
    from lastword.api.contents import Contents
    from lastword.api.indexed_contents import IndexedContents
    from lastword.api.open_dirs import OpenDirs
    from lastword.api.topic import Topic
    from lastword.partition.log import PartitionLog
    from lastword.partition.producer_state import Producer
    from lastword.records.record import Header

POSITIONS_TOPIC = "__lastword_positions"
"""The topic of `Transaction.position`: name to position, as JSON."""
RECORD_BYTES = 200
"""Memory of a record in a transaction besides its key, value and headers, about."""
_MISSING: Any = object()
ATTEMPTS = 100
"""To hold logs to which the keys that a block has read were not appended in between."""
FEW = 10_000
"""At most this number of records is read while logs are held by the first attempt, which takes 0.1 s."""
TIMEOUT_MS = 60_000
"""The timeout of the transactional id, which only a broker reads that gets the directory."""
_COMMITTED_LATER = "the transaction is committed; an opening to write will show all of it"
_DECIDED_LATER = "an opening to write will show whether the transaction is committed"

_log = logging.getLogger(__name__)


class _Changes:
    """The changes of one topic.

    Attributes:
        topic: The topic.
        rows: Partition (None: that of the key), key, value, headers and timestamp of each record.
        newest: The newest value of each key in `rows`; None: it is deleted.
        read: The value of each key of the state that the block has read, before its own changes.
        contents: The values of the state that the block has read.
    """

    def __init__(self, topic: Topic[Any, Any]) -> None:
        self.topic = topic
        self.rows: list[
            tuple[int | None, bytes | None, bytes | None, tuple[Header, ...], int | datetime | None]
        ] = []
        self.newest: dict[bytes, bytes | None] = {}
        self.read: dict[bytes, bytes | None] = {}
        self.contents: Contents | IndexedContents | None = None
        self._row_of: dict[bytes, int] = {}

    def add(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[Header, ...] = (),
        timestamp: int | datetime | None = None,
        partition: int | None = None,
        *,
        replaces: bool = False,
    ) -> int:
        """Add a record. `replaces`: instead of an earlier one of the key; return the memory of that one."""
        at = self._row_of.pop(key, None) if key is not None else None
        row, freed = (partition, key, value, headers, timestamp), 0
        if replaces and at is not None:
            freed = _size_of(*self.rows[at][1:4])
            self.rows[at] = row
        else:
            at = len(self.rows)
            self.rows.append(row)
        if key is not None:
            self.newest[key] = value
            if replaces:
                self._row_of[key] = at
        return freed

    def parts(self, dirs: OpenDirs) -> Iterator[tuple[Partition, Packer, Rows]]:
        """Yield the records of each partition, with the settings of now."""
        topic = self.topic._on(dirs)
        packer, now_ms = topic.packer, dirs.clock.now_ms()
        parts: dict[int, Rows] = {}
        for partition, key, value, headers, timestamp in self.rows:
            number, when = packer.assigner.of(key, partition), now_ms
            if timestamp is not None:
                when = packer.timestamp_of(timestamp, now_ms)
            if number not in parts:
                parts[number] = Rows()
            parts[number].add(key, value, when, headers)
        for number, rows in parts.items():
            yield (topic.name, number), packer, rows

    def read_parts(self) -> Iterator[tuple[Partition, bytes]]:
        """Yield each key that the block has read, with its partition."""
        for key in self.read:
            yield (self.topic.name, self.topic._partition_of(key)), key

    def check(self) -> None:
        """Raise ConflictError if another writer has changed a value that the block has read.

        The caller holds no log: this takes in what was appended.
        """
        if self.contents is None:
            return
        self.contents.check()
        for key, value in self.read.items():
            if self.contents.get(key) != value:
                raise _conflict(self.topic.name)


def _size_of(key: bytes | None, value: bytes | None, headers: Iterable[Header]) -> int:
    """Return the memory that a record takes, about."""
    in_headers = sum([len(name.encode()) + len(data or b"") for name, data in headers]) if headers else 0
    return RECORD_BYTES + len(key or b"") + len(value or b"") + in_headers


def _conflict(topic: str) -> ConflictError:
    return ConflictError(
        f"{topic}: another writer has changed a value that the transaction has read; nothing was written",
        remedy="run the block again",
    )


class StateChanges(MutableMapping[Any, Any]):
    """A state as a transaction sees it, with the changes of the block. `Transaction.state` makes it.

    Values that are read by their key must still be there when the block ends: else nothing is written.
    """

    def __init__(self, transaction: Transaction, state: State[Any, Any], changes: _Changes) -> None:
        self._transaction, self._state, self._changes = transaction, state, changes
        changes.contents = state._checked()
        self._key, self._value = state._key, state._value

    def _find(self, key: Any) -> bytes | None:
        self._transaction._require_open()
        data = self._key.encode(key, "key")
        if data in self._changes.newest:
            return self._changes.newest[data]
        return self._changes.read.setdefault(data, self._state._checked().get(data))

    def __getitem__(self, key: Any) -> Any:
        value = self._find(key)
        if value is not None:
            return self._value.decode(value, "value")
        if self._state._default is not None:
            return self._state._default()
        raise KeyError(key)

    def get(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key, or `default`."""
        value = self._found(key)
        return default if value is None else self._value.decode(value, "value")

    def __contains__(self, key: object) -> bool:
        return self._found(key) is not None

    def _found(self, key: object) -> bytes | None:
        """Return the bytes of a value; None also for a key that cannot be in the state, as in a dict."""
        with suppress(SerializerError):
            return self._find(key)
        return None

    def pop(self, key: Any, default: Any = _MISSING) -> Any:
        """Delete a key and return its value, or `default` if it is absent."""
        value = self._found(key)
        if value is None:
            if default is _MISSING:
                raise KeyError(key)
            return default
        del self[key]
        return self._value.decode(value, "value")

    def popitem(self) -> tuple[Any, Any]:
        """Delete one key and return it with its value; KeyError if there is none."""
        for key in self:
            return key, self.pop(key)
        raise KeyError("the state is empty")

    def clear(self) -> None:
        """Delete every key. The keys are not compared when the block ends, as those of an iteration."""
        for data in list(self._keys()):
            self._transaction._add(self._changes, data, None, replaces=True)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key; set it to `default` first if it is absent."""
        if self._find(key) is None:
            self[key] = default
        return self[key]

    def items(self) -> ItemsView[Any, Any]:
        """Return the keys with their values. They are not compared when the block ends."""
        return Items(self)

    def values(self) -> ValuesView[Any]:
        """Return the values, as `items`."""
        return Values(self)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._transaction._require_open()
        data = self._key.encode(key, "key"), self._value.encode(value, "value")
        self._transaction._add(self._changes, *data, self._state._headers, replaces=True)

    def __delitem__(self, key: Any) -> None:
        if self._find(key) is None:
            raise KeyError(key)
        self._transaction._add(self._changes, self._key.encode(key, "key"), None, replaces=True)

    def __iter__(self) -> Iterator[Any]:
        return (self._key.decode(data, "key") for data in self._keys())

    def _keys(self) -> Iterator[bytes]:
        self._transaction._require_open()
        newest = self._changes.newest
        own = dict(newest)
        for data in chain((key for key in self._state._checked().all_keys() if key not in own), own):
            if newest.get(data, b"") is not None:
                yield data

    def _pairs(self) -> Iterator[tuple[Any, Any]]:
        self._transaction._require_open()
        newest = self._changes.newest
        own = dict(newest)
        stored = self._state._checked().pairs()
        for data, old in chain((pair for pair in stored if pair[0] not in own), own.items()):
            value = newest.get(data, old)
            if value is not None:
                yield self._key.decode(data, "key"), self._value.decode(value, "value")

    def __len__(self) -> int:
        return sum(1 for _ in self._keys())

    def __repr__(self) -> str:
        return f"StateChanges({self._changes.topic.name!r})"


class Transaction:
    """Changes that are all in the log when the block ends, or none of them: `with logs.transaction() as tx:`.

    Nothing is written before the block ends, and nothing at all if it raises. Only reads inside the block see
    its changes before. One thread may use it.
    """

    def __init__(
        self,
        dirs: OpenDirs,
        open_state: Callable[..., State[Any, Any]],
        kept_states: dict[str, State[Any, Any]],
        most_bytes: int | str,
    ) -> None:
        self._dirs = dirs
        self._open_state = open_state  # `LogDir.state`
        self._kept_states = kept_states  # else each transaction would restore them
        self._most_bytes = parse_bytes(most_bytes)
        if self._most_bytes <= 0:
            raise UsageError(f"max_bytes={most_bytes!r} leaves no room for a change", remedy='"64MiB"')
        self._changes: dict[str, _Changes] = {}
        self._size_bytes = 0
        self._is_open = False

    def __enter__(self) -> Self:
        self._dirs.require_writable()
        if self._is_open or self._changes:
            raise UsageError("a transaction is one block", remedy="begin another one: logs.transaction()")
        self._is_open = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        self._is_open = False
        changes = list(self._changes.values())
        if kind is None and any(each.rows for each in changes):
            _committer(self._dirs).commit(changes)

    def _require_open(self) -> None:
        """Raise UsageError outside of the block."""
        if not self._is_open:
            raise UsageError("the transaction is not open", remedy="with logs.transaction() as tx: ...")

    def _add(self, changes: _Changes, *record: Any, replaces: bool = False) -> None:
        """Add an encoded record, in the block."""
        key, value = record[:2]
        headers = record[2] if len(record) > 2 else ()
        changes.topic.packer.check_new(key, value, headers)
        size = _size_of(key, value, headers)
        if self._size_bytes + size > self._most_bytes:
            raise TransactionTooLargeError(
                f"the changes of a transaction take more than {self._most_bytes} bytes; nothing was written",
                remedy='fewer changes at a time, or logs.transaction(max_bytes="256MiB")',
            )
        self._size_bytes += size - changes.add(*record, replaces=replaces)

    def _of(self, topic: str) -> _Changes:
        self._require_open()
        if topic not in self._changes:
            self._changes[topic] = _Changes(open_topic(self._dirs, topic))
        return self._changes[topic]

    def append(
        self,
        topic: str,
        key: Any,
        value: Any,
        *,
        headers: HeadersLike = (),
        timestamp: int | datetime | None = None,
        partition: int | None = None,
    ) -> None:
        """Append a record when the block ends. The arguments are those of `Topic.append`.

        Raises:
            LastwordError: As from `Topic.append`, for a record that cannot be appended.
            TransactionTooLargeError: The changes take more than `max_bytes`. Nothing is written.
        """
        changes = self._of(topic)
        packer = changes.topic.packer
        if partition is not None:
            packer.assigner.checked(partition)
        if timestamp is not None:
            packer.timestamp_of(timestamp, self._dirs.clock.now_ms())
        pairs = header_pairs(headers) if headers else ()
        self._add(changes, *packer.encode(key, value), pairs, timestamp, partition)

    def delete(self, topic: str, key: Any) -> None:
        """Append a tombstone when the block ends."""
        self.append(topic, key, None)

    def get(self, topic: str, key: Any, default: Any = None) -> Any:
        """Return the newest value of a key, as `Topic.get`, with the changes of the block."""
        changes = self._of(topic)
        serializers = changes.topic.schema
        data = serializers.key.encode(key, "key")
        if data not in changes.newest:
            return changes.topic.get(key, default)
        value = changes.newest[data]
        return default if value is None else serializers.value.decode(value, "value")

    def state(self, name: str, **options: Any) -> StateChanges:
        """Return a state, to read and to change in this block. The arguments are those of `LogDir.state`."""
        self._require_open()
        for argument in ("end", "snapshot"):
            if options.get(argument) not in (None, "latest"):
                raise UsageError(
                    f"{argument}= in a transaction: older values cannot be compared with those of now",
                    remedy="read them from logs.state(...) outside of the transaction",
                )
        state = self._kept_states.get(name)
        if state is None or state._contents is None or options:
            state = self._kept_states[name] = self._open_state(name, **options)
        return StateChanges(self, state, self._of(name))

    def position(self, name: str, reached: Mapping[int, int] | int) -> None:
        """Save how far an input is processed, together with what came of it; `LogDir.position` returns it.

        Args:
            name: The name of the program, or of its input.
            reached: The next offset of each partition (`Reader.position`), or the number of a batch.
        """
        saved = _checked_position(reached)
        if not self._dirs.has_topic(POSITIONS_TOPIC):
            formats = {"lastword.key.serializer": "str", "lastword.value.serializer": "json"}
            with suppress(TopicExistsError):  # another thread or process created it
                create_topics(self._dirs, {POSITIONS_TOPIC: (1, {"cleanup.policy": "compact", **formats})})
        self.append(POSITIONS_TOPIC, name, saved)


def _checked_position(reached: Mapping[int, int] | int) -> dict[int, int] | int:
    if not isinstance(reached, Mapping):
        return check_count("reached", reached, "records")
    position = {as_int(number): as_int(offset) for number, offset in reached.items()}
    if any(
        number is None or number < 0 or offset is None or offset < 0 for number, offset in position.items()
    ):
        raise UsageError(
            f"reached={dict(reached)!r} is not a position",
            remedy="a dict of partitions and their next offsets, such as reader.position, or a number",
        )
    return cast("dict[int, int]", position)


def position_of(dirs: OpenDirs, name: str) -> dict[int, int] | int | None:
    """See `LogDir.position`."""
    if not dirs.has_topic(POSITIONS_TOPIC):
        return None
    found: Any = open_topic(dirs, POSITIONS_TOPIC).get(name)
    return {int(number): offset for number, offset in found.items()} if isinstance(found, dict) else found


class Committer:
    """Commits the transactions of open directories, one after the other."""

    def __init__(self, dirs: OpenDirs) -> None:
        self._dirs = dirs
        self._ids = ProducerIds(partial(reserve_producer_ids, dirs.directories[0]))
        self._producer_id = -1
        self._epoch = LAST_EPOCH
        self._decisions: PartitionLog | None = None
        self._unsynced: dict[PartitionLog, int] = {}
        """The logs with a marker that is not durable yet, and their ends with it."""
        self._failure: LastwordError | None = None  # after it, another opening decides what is open
        self._pool = ThreadPoolExecutor(OVERLAP_THREADS, "lastword-sync")
        """Starts its threads once: to start one takes longer than a sync."""

    def commit(self, changes: list[_Changes]) -> None:
        """Append all changes, or none of them."""
        dirs, began = self._dirs, perf_counter()
        if not dirs.holds_logs:
            dirs.has_transactions = True
            dirs.sync()  # changes of states that were made before
            dirs.transaction(lambda private: _append_all(private, changes))
            return
        parts = {tp: (packer, rows) for each in changes for tp, packer, rows in each.parts(dirs)}
        plain = None
        if len(parts) == 1:
            ((packer, rows),) = parts.values()
            batches = packer.built(rows, packer.limit)
            plain = batches[0] if len(batches) == 1 else None
        with ExitStack() as reading:  # until the batches are appended, so that states do not wait for a drive
            in_order = sorted(changes, key=lambda each: each.topic.name)
            contents = [each.contents for each in in_order if each.contents is not None]
            for each in contents:
                reading.enter_context(each.reading)
            with dirs.commits:
                if self._failure is not None:
                    raise self._failure
                logs = {tp: dirs.log(*tp) for tp in sorted(parts)}  # no partition is moved or deleted now
                if plain is None:
                    sizes = self._commit(logs, parts, changes, reading)
                else:
                    sizes = dict.fromkeys(logs, len(plain))
                    with self._held(logs.values(), changes):
                        for log in logs.values():
                            log.append_batch(plain, is_checked=True)
        if plain is not None:
            for log in logs.values():
                log.sync()
        for (topic, number), (_, rows) in parts.items():
            count_append(topic, len(rows.keys), sizes[topic, number], "disk", perf_counter() - began)

    @contextmanager
    def _held(self, logs: Iterable[PartitionLog], changes: Collection[_Changes]) -> Iterator[None]:
        """Hold logs, and those with the values that the block has read, if the values are still there.

        The values are compared before the logs are held. After that, only records that were appended
        meanwhile are read: a writer of other keys does not keep a transaction waiting.
        """
        keys: dict[PartitionLog, set[bytes]] = {log: set() for log in logs}
        for tp, key in chain.from_iterable(each.read_parts() for each in changes):
            keys.setdefault(self._dirs.log(*tp), set()).add(key)
        for attempt in range(ATTEMPTS):
            marks = {log: LogMark.of(log) for log, read in keys.items() if read}
            for each in changes:
                each.check()
            with ExitStack() as stack:
                for log in sorted(keys, key=lambda log: (log.topic, log.partition)):
                    stack.enter_context(log.lock)
                # The first comparison may have taken long: what was appended meanwhile is not read here.
                if all(
                    (attempt > 0 or log.log_end - mark.end <= FEW) and mark.keeps(log, keys[log])
                    for log, mark in marks.items()
                ):
                    yield
                    return
        raise BusyError(
            f"{self._dirs.paths[0]}: other writers append what the transaction has read, again and again; "
            "nothing was written",
            remedy="run the block again",
        )

    def _commit(
        self,
        logs: Mapping[Partition, PartitionLog],
        parts: Mapping[Partition, tuple[Packer, Rows]],
        changes: list[_Changes],
        reading: ExitStack,
    ) -> dict[Partition, int]:
        """Append to several partitions, or several batches. Return the bytes of each partition."""
        decisions = self._begin()
        producer = self._producer_id, self._epoch
        batches = {tp: packer.built(rows, producer=producer) for tp, (packer, rows) in parts.items()}
        for tp, log in logs.items():
            log.config.check_takes_records(f"{tp[0]}-{tp[1]}")
        is_deciding, before = False, decisions.log_end
        self._failure = BusyError(  # until the last marker is there: what is open is left to the next opening
            f"{self._dirs.paths[0]}: an earlier transaction of this process was interrupted",
            remedy="close the directory and open it to write again: that ends the transaction",
        )
        try:
            with self._held(logs.values(), changes):
                for tp, log in logs.items():
                    log.append_batches(batches[tp], sync_follows=True, is_checked=True)
            reading.close()
            self._sync(logs.values())
            is_deciding = True
            _store(self._dirs, decisions, *producer, PREPARE_COMMIT, frozenset(logs))
        except BaseException as error:
            is_left_out = isinstance(error, DiskFullError) and decisions.log_end == before
            if is_deciding and not is_left_out:
                _add_note(error, _DECIDED_LATER)
            elif self._abort(logs.values()):
                self._failure = None
            raise
        try:
            decisions.sync()
        except BaseException as error:
            _add_note(error, _DECIDED_LATER)
            raise
        try:
            marker = self._marker(producer, commit=True)
            with self._dirs.moment, ExitStack() as stack:
                for log in logs.values():
                    stack.enter_context(log.lock)
                for log in logs.values():
                    self._end(log, marker)
        except BaseException as error:
            _add_note(error, _COMMITTED_LATER)
            raise
        self._failure = None
        return {tp: sum(map(len, each)) for tp, each in batches.items()}

    def _begin(self) -> PartitionLog:
        """Give the next transaction its epoch, and return the log of the decisions."""
        dirs = self._dirs
        if self._decisions is None or self._decisions.is_closed:
            if not dirs.has_topic(TRANSACTIONS_TOPIC):
                settings = {"cleanup.policy": "compact", "segment.bytes": "104857600"}  # as the server does
                create_topics(dirs, {TRANSACTIONS_TOPIC: (1, settings)})
                dirs.partitions_added()
            self._decisions = _decisions(dirs)
        if self._epoch >= LAST_EPOCH:
            self._sync(())
            producer_id = self._ids.next()
            fields = {"producer_id": producer_id, "directories": sorted(_directories(dirs))}
            TRANSACTION.save(dirs.files, _note_of(dirs.paths[0]), fields)
            self._producer_id, self._epoch = producer_id, -1  # an opening ends those that a note names
            if not dirs.has_transactions:
                dirs.has_transactions = True
                dirs.on_close(self._pool.shutdown)
                dirs.on_close(self._close)
        self._epoch += 1
        return self._decisions

    def _sync(self, logs: Iterable[PartitionLog]) -> None:
        """Sync logs, and those with markers of earlier transactions."""
        # A log that is closed was deleted, or synced when it was closed or moved.
        marked = (log for log, end in self._unsynced.items() if not log.is_closed and log.synced_to < end)
        syncs = [self._pool.submit(log.sync) for log in dict.fromkeys(chain(logs, marked))]
        try:
            for sync in syncs:
                sync.result()
        finally:
            wait(syncs)  # also after an error, which another change of the logs may follow
        self._unsynced.clear()

    def _marker(self, producer: tuple[int, int], *, commit: bool) -> bytes:
        """Return the batch that ends a transaction. `producer`: its id and epoch."""
        coordinator_epoch = 0 if self._decisions is None else self._decisions.epochs.latest or 0
        return marker(self._dirs.clock.now_ms(), producer, commit=commit, coordinator_epoch=coordinator_epoch)

    def _end(self, log: PartitionLog, marker: bytes) -> None:
        """Append a marker, which the next transaction syncs."""
        log.append_batch(marker, is_checked=True)
        self._unsynced[log] = log.log_end

    def _abort(self, logs: Iterable[PartitionLog]) -> bool:
        """End a transaction that was not decided. Return whether it is ended in all logs."""
        is_ended = True
        for log in logs:
            try:
                producer = log.producer(self._producer_id)
                if producer is not None and producer.transaction_start is not None:
                    self._end(log, self._marker((self._producer_id, self._epoch), commit=False))
            except BaseException:  # the caller raises the error that came first
                is_ended = False
        return is_ended

    def _close(self) -> None:
        """Leave nothing for the next opening to do, if nothing is open."""
        with self._dirs.commits, suppress(LastwordError):
            if self._failure is None and self._decisions is not None:
                self._sync(())
                _store(self._dirs, self._decisions, self._producer_id, self._epoch, COMPLETE_COMMIT)
                self._dirs.files.unlink(_note_of(self._dirs.paths[0]), missing_ok=True)

    def recover(self, notes: Iterable[str]) -> None:
        """End the transactions that earlier processes left open: those that these notes name."""
        try:
            for note in notes:
                self._end_open(note)
        except LastwordError as error:
            self._failure = error
            _log.warning("%s: open transactions: %s", self._dirs.paths[0], error)

    def _end_open(self, note: str) -> None:
        dirs = self._dirs
        fields = TRANSACTION.load(dirs.files, note)
        if fields is None:
            return
        with TRANSACTION.reading(note):
            producer_id, needed = int(fields["producer_id"]), set(fields["directories"])
        if needed - _directories(dirs):  # the decision, or a part of the transaction, may be there
            raise BusyError(
                f"{note}: an earlier process has left transactions open in {len(needed)} directories, and "
                "not all of them are open here",
                remedy="open all directories together to write: that ends the transactions",
                file=note,
            )
        decisions = self._decisions = _decisions(dirs) if dirs.has_topic(TRANSACTIONS_TOPIC) else None
        stored = newest_states(dirs).get(producer_id)
        epoch, partitions = -1, frozenset[Partition]()
        if stored is not None and stored.state.state == PREPARE_COMMIT:
            epoch, partitions = stored.state.epoch, stored.state.partitions
        ended: list[PartitionLog] = []
        for name, numbers in dirs.topics().items():
            for number in numbers:
                log = dirs.log(name, number)
                producer = log.producer(producer_id)
                if producer is not None and producer.transaction_start is not None:
                    is_committed = _is_of(producer, epoch) and (name, number) in partitions
                    log.append_batch(self._marker((producer_id, producer.epoch), commit=is_committed))
                if producer is not None:
                    ended.append(log)
        overlapped(methodcaller("sync"), ended)
        if stored is not None and decisions is not None:
            _store(dirs, decisions, producer_id, stored.state.epoch, COMPLETE_COMMIT)
        dirs.files.unlink(note, missing_ok=True)


def recover(dirs: OpenDirs, notes: Iterable[str]) -> None:
    """End the transactions that earlier processes left open: those that these notes name."""
    _committer(dirs).recover(notes)


def _committer(dirs: OpenDirs) -> Committer:
    """Return what commits the transactions of these directories."""
    with dirs.commits:
        if dirs.committer is None:
            dirs.committer = Committer(dirs)
        committer: Committer = dirs.committer
        return committer


def _add_note(error: BaseException, note: str) -> None:
    if isinstance(error, LastwordError):
        error.message += f"; {note}"
        error.args = (error.message,)


def _is_of(producer: Producer, epoch: int) -> bool:
    """Return whether the open transaction of a producer is the one that was decided last."""
    return producer.epoch == epoch


def _note_of(path: str) -> str:
    return os.path.join(path, names.TRANSACTION)


def _directories(dirs: OpenDirs) -> set[str]:
    """Return the ids of the directories that are open, or the paths of those without one."""
    served = (each.path for each in dirs.directories if each.path not in dirs.offline)
    return {read_directory_id(dirs.files, path) or os.path.realpath(path) for path in served}


def _decisions(dirs: OpenDirs) -> PartitionLog:
    """Return the log of the decisions, as Kafka chooses it."""
    return dirs.log(TRANSACTIONS_TOPIC, java_hash(OWN_ID) % len(dirs.partitions(TRANSACTIONS_TOPIC)))


def _store(
    dirs: OpenDirs,
    decisions: PartitionLog,
    producer_id: int,
    epoch: int,
    state: str,
    partitions: frozenset[Partition] = frozenset(),
) -> None:
    now_ms = dirs.clock.now_ms()
    stored = TransactionState(
        producer_id,
        epoch,
        TIMEOUT_MS,
        state,
        partitions,
        start_ms=now_ms,
        changed_ms=now_ms,
        previous_producer_id=producer_id,
    )
    store_state(decisions, key_of(OWN_ID), stored)


def _append_all(dirs: OpenDirs, changes: Iterable[_Changes]) -> None:
    """Append all changes to a private copy of a log in a bucket."""
    for each in changes:
        topic = each.topic._on(dirs)
        if each.contents is not None and not has_values(topic, each.read):
            raise _conflict(topic.name)
        for (name, number), packer, rows in each.parts(dirs):
            dirs.log(name, number).append_batches(packer.built(rows))
