"""The topic that holds the state of a coordinator.

A coordinator's state is a compacted topic in Kafka's own record formats. Every change is appended before the
client gets its answer, and the topic is read when the server starts. So a broker that takes
over the directory has the groups, and gives them back.

In a bucket the change in memory comes first: its records join a commit. Answers wait for the commits before
them (`answered`). If a commit fails, it may still take effect, and later changes rely on it. So later ones
are not stored, and the topic is read again when none can take effect any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from lastword.arrow import pa, pc
from lastword.errors import (
    BusyError,
    DataError,
    LastwordError,
    MalformedMessageError,
    MissingError,
    StorageError,
    UnsupportedVersionError,
)
from lastword.partition.log import PartitionLog
from lastword.partition.producer_state import NO_PRODUCER, add_sequence
from lastword.partition.reads import read_batches
from lastword.partition.transactions import control_of
from lastword.protocol import codes, decode_stored, java_hash
from lastword.records.batch import BatchBuilder
from lastword.records.formats import read_records
from lastword.server.context import ServerContext, failure
from lastword.server.timers import MOST_RETRY_MS
from lastword.server.topics import Refused

if TYPE_CHECKING:
    from lastword.api.open_dirs import OpenDirs

_log = logging.getLogger("lastword.server")
TRANSACTION_VERSION = 2
"""The version of transactions: the feature `transaction.version`."""
MOST_TIMEOUT_MS = 900_000
"""Kafka's default of `transaction.max.timeout.ms`."""
EXPIRATION_MS = 604_800_000
"""A transactional id without a transaction is forgotten after this time: `transactional.id.expiration.ms`."""


class StoredRecord(NamedTuple):
    """The newest record of a key, as bytes or decoded.

    Attributes:
        offset: Its offset.
        key: The key.
        value: The value; None for a tombstone, or if a later record supersedes the record of an open
            transaction.
        producer_id: Its producer if its transaction is open, else -1.
    """

    offset: int
    key: Any
    value: Any
    producer_id: int


class StateLostError(BusyError):
    """A change of a coordinator is not stored, because an earlier one was not."""


class UndecodableRecordError(DataError):
    """A record of a coordinator's topic has no form that is known."""


class CoordinatorTopic:
    """A compacted topic of records that the server makes.

    Args:
        context: The context of the handlers.
        name: The topic.
        partitions: The number of its partitions, if it has to be created.
    """

    def __init__(self, context: ServerContext, name: str, partitions: int) -> None:
        self._context = context
        self.name = name
        self._partitions = partitions
        self._damaged: set[int] = set()
        self._pending: asyncio.Future[Any] | None = None
        """The commit of the newest records, which may be under way."""
        self._life = self._lost_life = 0
        """The number of the state in memory, and that of the newest one with a change that was not stored."""

    @property
    def is_lost(self) -> bool:
        """Return whether the state in memory has a change that was not stored: it must be loaded again."""
        return self._lost_life == self._life

    def open(self) -> int:
        """Create the topic if there is none, recover its logs, and return the number of partitions."""
        topic = self._context.topics.get(self.name)
        if topic is None:
            settings = {"cleanup.policy": "compact", "segment.bytes": "104857600"}
            topic = self._context.topics.create(self.name, self._partitions, settings)
        for number in topic.directories:
            topic.log(number)
        return len(topic.directories)

    def partition_of(self, key: str) -> int:
        """Return the partition of a group or of a transactional id, as Kafka does."""
        topic = self._context.topics.get(self.name)
        count = self._partitions if topic is None else len(topic.directories)
        return java_hash(key) % count

    def log(self, partition: int) -> Any:
        """Return the log of a partition."""
        topic = self._context.topics.get(self.name)
        assert topic is not None
        return topic.log(partition)

    def load(
        self, keys: Mapping[int, str], convert: Callable[[Any], Any] = lambda value: value
    ) -> list[StoredRecord]:
        """Return the decoded records of the topic, but for tombstones; see `_newest`.

        If the topic has had fewer partitions, a key may have records in two of them: those in the partition
        that it belongs to now are the last.

        Records of a type that is not in `keys` are passed over, as by Kafka: a newer version wrote them. Any
        other record that cannot be decoded makes its partition unavailable: an answer without it would be
        "there is none" for what is there. `check` refuses the requests for such a partition.

        Args:
            keys: The name of the key of each type, as in Kafka's schemas.
            convert: Returns what is kept of a value. It may raise MalformedMessageError, too.
        """
        self.open()
        self._damaged.clear()
        if self.is_lost:
            self._context.dirs.settle()
        self._life += 1
        self._pending = None
        topic = self._context.topics.get(self.name)
        former: list[StoredRecord] = []
        loaded: list[StoredRecord] = []
        for number in () if topic is None else topic.directories:
            try:
                for record in list(self._decoded(number, keys, convert)):
                    belongs = self.partition_of(_owner_of(record.key)) == number
                    (loaded if belongs else former).append(record)
            except UndecodableRecordError as error:
                self._damaged.add(number)
                _log.error("%s; its partition is not served. Remedy: %s", error.message, error.remedy)
        return former + loaded

    def try_again(
        self, loading: asyncio.Future[Any], retry_ms: int | None, load: Callable[[int], None]
    ) -> None:
        """Call `load` again if the state could not be loaded, unless the topic is deleted meanwhile.

        Args:
            loading: The load under way, or what follows it.
            retry_ms: `load` is called after this time; None: not at all.
            load: Loads the state. It gets the time of the next try.
        """

        def ended(done: asyncio.Future[Any]) -> None:
            error = None if done.cancelled() else done.exception()
            if not isinstance(error, (LastwordError, Refused)):
                if error is not None:
                    _log.error("%s was not loaded", self.name, exc_info=error)
                return
            later_ms = None if self._context.is_closing else retry_ms
            later = "" if later_ms is None else f"; tried again in {later_ms / 1000:.1f} s"
            _log.warning("%s was not loaded: %s%s", self.name, error.message, later)
            if later_ms is not None:
                following_ms = min(2 * later_ms, MOST_RETRY_MS)
                self._context.timers.after(later_ms, partial(again, following_ms))

        def again(following_ms: int) -> None:
            if self._context.topics.get(self.name) is not None:  # a load would create it
                load(following_ms)

        loading.add_done_callback(ended)

    def check(self, key: str) -> None:
        """Raise Refused if the partition of a group or a transactional id has an undecodable record."""
        if self._damaged:
            self._check_partition(self.partition_of(key))

    def _check_partition(self, partition: int) -> None:
        if partition in self._damaged:
            raise Refused(codes.NOT_COORDINATOR, "")

    def _decoded(
        self, number: int, keys: Mapping[int, str], convert: Callable[[Any], Any]
    ) -> Iterator[StoredRecord]:
        unknown: Counter[int] = Counter()
        for record in self._newest(number):
            record_type = int.from_bytes(record.key[:2], "big", signed=True)
            if len(record.key) > 1 and record_type not in keys:
                unknown[record_type] += 1
                continue
            try:
                name = keys.get(record_type, "a key")
                key, value = decode_stored(name, record.key), record.value
                if value is not None:
                    name = name.removeprefix("Legacy").removesuffix("Key") + "Value"
                    value = convert(decode_stored(name, value))
            except (MalformedMessageError, UnsupportedVersionError) as error:
                raise UndecodableRecordError(
                    f"{self.name}-{number} offset {record.offset}: {error.message}",
                    remedy="serve the directory with the Kafka that wrote the record",
                ) from error
            if value is not None or record.producer_id >= 0:
                yield record._replace(key=key, value=value)
        for record_type, count in unknown.items():
            text = "%s-%d: %d records of unknown type %d are passed over: a newer Kafka wrote them"
            _log.warning(text, self.name, number, count, record_type)

    def _newest(self, number: int) -> Iterator[StoredRecord]:
        """Yield the newest committed record of each key of a partition, then those of open transactions.

        The newest record is the one with the largest offset, as for the cleaner: a transaction that commits
        later does not supersede the records behind its own. Records of open transactions are in the order of
        their offsets. A tombstone also deletes those that are before it.
        """
        newest: dict[bytes, tuple[int, bytes | None]] = {}
        undecided: dict[int, dict[bytes, tuple[int, bytes | None]]] = {}
        log = self.log(number)
        for segment, header, data in read_batches(log, log.log_start):
            if header.control:
                marker = control_of(data, header, segment.file, position=0)
                ended = undecided.pop(header.producer_id, {}) if marker is not None else {}
                if marker is not None and marker.type == "commit":
                    for key, stored in ended.items():
                        if stored[0] > newest.get(key, (-1, None))[0]:
                            newest[key] = stored
                continue
            records = undecided.setdefault(header.producer_id, {}) if header.transactional else newest
            for record in read_records(data, header, segment.file, position=0):
                key = record.key or b""
                records[key] = record.offset, record.value
                if record.value is None:
                    for others in undecided.values():
                        others.pop(key, None)
        for key, (offset, value) in newest.items():
            yield StoredRecord(offset, key, value, NO_PRODUCER)
        behind = [
            (offset, producer_id, key, value)
            for producer_id, records in undecided.items()
            for key, (offset, value) in records.items()
        ]
        for offset, producer_id, key, value in sorted(behind):
            is_newest = offset > newest.get(key, (-1, None))[0]
            yield StoredRecord(offset, key, value if is_newest else None, producer_id)

    def append(
        self,
        partition: int,
        records: Iterable[tuple[bytes, bytes | None]],
        producer: tuple[int, int] | None = None,
        *,
        syncs: bool | None = None,
    ) -> asyncio.Future[Any] | None:
        """Append records as one batch.

        Args:
            partition: The partition.
            records: Keys and values.
            producer: Producer id and epoch of the transaction that the records belong to.
            syncs: Sync the log. None: if its topic acknowledges with `disk`.

        Returns:
            A future to wait for before the change is acknowledged; None: it is stored. It may raise Refused.

        Raises:
            Refused: The records cannot be stored.
        """
        self._check_partition(partition)
        records = list(records)
        if not records:
            return None
        append = partial(self.append_in, partition=partition, records=records, producer=producer)
        try:
            size_bytes = sum(len(key) + len(value or b"") for key, value in records)
            committed = self.commit((self.name,), append, size_bytes)
            if committed is not None:
                return committed
            log = append(self._context.dirs)
        except LastwordError as error:
            raise not_stored(error) from error
        if log.config.lastword_ack == "disk" if syncs is None else syncs:
            return self._context.in_pool(sync_stored, log)
        return None

    def commit(
        self,
        topics: Container[str],
        work: Callable[[OpenDirs], object],
        size_bytes: int,
        *,
        is_ahead: bool = True,
    ) -> asyncio.Future[Any] | None:
        """Append in a commit; return a future of the result of `work`, which may raise Refused.

        None, and nothing was done: an append does not wait here.

        Args:
            topics: The topics to which `work` appends.
            work: Appends to this topic, and perhaps to others.
            size_bytes: The approximate size.
            is_ahead: The state in memory has the change already, and is lost if the records are refused.
        """
        context, life = self._context, self._life
        stored: asyncio.Future[Any] = context.loop.create_future()

        def run(dirs: OpenDirs) -> object:
            if self._lost_life == life:
                raise StateLostError("a change before this one was not stored", remedy="send it again")
            try:
                return work(dirs)
            except StorageError:  # the commit fails, or runs again
                raise
            except LastwordError:
                if is_ahead:  # before the works behind this one in the same commit
                    self._lost_life = life
                raise

        def finish(error: BaseException | None, result: object) -> None:
            if stored.cancelled():
                return
            if error is None:
                stored.set_result(result)
            elif isinstance(error, LastwordError):
                stored.set_exception(not_stored(error))
            else:
                stored.set_exception(error)
            if error is not None:
                stored.exception()  # most changes have no one who waits

        def done(committed: Future[Any]) -> None:  # before the next commit, in its thread
            error = failure(committed)
            if isinstance(error, BusyError | StorageError):  # the commit may take effect yet
                self._lost_life = max(self._lost_life, life)
            result = None if error is not None else committed.result()
            context.in_loop(finish, error, result)

        begun = context.begin_append(topics, run, size_bytes)
        if begun is None:
            return None
        self._pending = stored
        begun.add_done_callback(done)
        return stored

    def answered(self, answer: Any) -> Any:
        """Return an answer that relies on the state in memory: a future of it, when that state is stored."""
        pending = self._pending
        if isinstance(answer, asyncio.Future):
            return self._context.then(answer, lambda: self.answered(answer.result()))
        if pending is None or (pending.done() and pending.exception() is None):
            return answer
        return self._context.then(pending, lambda: answer)

    def append_in(
        self,
        dirs: OpenDirs,
        partition: int,
        records: list[tuple[bytes, bytes | None]],
        producer: tuple[int, int] | None = None,
    ) -> PartitionLog:
        """Append records as one batch in these directories; return the log."""
        now_ms = self._context.clock.now_ms()
        log = dirs.log(self.name, partition)
        builder = BatchBuilder()
        if producer is not None:
            sequence = _next_sequence(log, *producer)
            builder = BatchBuilder(
                producer_id=producer[0],
                producer_epoch=producer[1],
                base_sequence=sequence,
                transactional=True,
            )
        for key, value in records:
            builder.append(now_ms, key, value)
        log.append_batch(builder.build())
        return log


def _owner_of(key: Any) -> str:
    """Return the group or the transactional id whose state a record is."""
    names = ("group", "group_id", "transactional_id")
    return str(next(getattr(key, name) for name in names if hasattr(key, name)))


def matching(field: str, regex: str, names: list[str]) -> frozenset[str]:
    """Return the names that a regular expression matches as a whole, by RE2: in linear time.

    Args:
        field: The field of the request that has the expression.
        regex: The expression.
        names: The names.

    Raises:
        Refused: It is no expression of RE2, or pyarrow is not installed.
    """
    try:
        pc.match_substring_regex(pa.array([""]), regex)  # alone: `a)|(b` is refused
        mask = pc.match_substring_regex(pa.array(names, pa.string()), rf"\A(?:{regex})\z").to_pylist()
    except MissingError as missing:
        raise Refused(codes.INVALID_REGULAR_EXPRESSION, str(missing)) from None
    except pa.ArrowInvalid as error:
        reason = str(error).removeprefix("Invalid regular expression: ")
        text = f"{field} `{regex}` is not a valid regular expression: {reason}."
        raise Refused(codes.INVALID_REGULAR_EXPRESSION, text) from None
    return frozenset(name for name, hit in zip(names, mask, strict=True) if hit)


def sync_stored(log: PartitionLog) -> None:
    """Sync the log that `append` returned. Waits for the drive: for a thread of the pool.

    Raises:
        Refused: The records may not survive a power cut.
    """
    try:
        log.sync()
    except LastwordError as error:
        raise not_stored(error) from error


def not_stored(error: LastwordError) -> Refused:
    """Return the refusal of a request whose change could not be stored, so that clients repeat it.

    They repeat no request after KAFKA_STORAGE_ERROR of a coordinator, which a broker does not send either.
    """
    is_storage = error.kafka_code == codes.KAFKA_STORAGE_ERROR or isinstance(error, BusyError)
    return Refused(codes.NOT_COORDINATOR if is_storage else error.kafka_code, error.message)


def _next_sequence(log: PartitionLog, producer_id: int, epoch: int) -> int:
    """Return the sequence of the next record that the server appends for a producer."""
    producer = log.producer(producer_id)
    if producer is None or producer.epoch != epoch or not producer.batches:
        return 0
    return add_sequence(producer.last_sequence, 1)
