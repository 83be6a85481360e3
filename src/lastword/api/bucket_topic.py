"""`BucketTopic`: a topic of a log in a bucket, and `BufferedTopic`, the log of a state there.

An append runs in a transaction, which may run again. So its records are held in a form that can be read
again, and an iterator is committed in groups of bounded size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from lastword.api.bucket_dirs import BucketDirs
from lastword.api.open_dirs import OpenDirs
from lastword.api.record import Appended, Record, check_records, header_pairs
from lastword.api.topic import Topic
from lastword.config import TopicConfig
from lastword.errors import LastwordError, PartialFailure, UsageError

if TYPE_CHECKING:
    from lastword.api.schema import TopicSchema
    from lastword.partition.log import Changed, PartitionLog


class BucketTopic(Topic[Any, Any]):
    """A topic of a log in a bucket."""

    dirs: BucketDirs

    def _on(self, dirs: OpenDirs) -> Topic[Any, Any]:
        self._take_settings()
        schema, numbers, config = self._schema, tuple(dirs.partitions(self.name)), dirs.config(self.name)
        is_changed = config != self._config or numbers != schema.numbers  # by a commit that came first
        if is_changed:
            schema = schema.with_settings(numbers, config)
        topic: Topic[Any, Any] = Topic(dirs, schema, config)
        if not is_changed:  # records without a key take turns over all transactions
            topic.__dict__["_packer"] = self._packer
        return topic

    def append(self, key: Any, value: Any, **options: Any) -> Appended:
        """As `Topic.append`. Returns when the record is in the store."""
        return self.begin_append(key, value, **options).result()

    def begin_append(self, key: Any, value: Any, **options: Any) -> Future[Appended]:
        """As `append`, but return now; the result is there when the record is in the store."""
        self._check_ack(options)
        if "headers" in options:  # a transaction may run again, and an iterator is read once
            options["headers"] = header_pairs(options["headers"])
        return self.dirs.begin_append(
            self.name, lambda dirs: self._on(dirs).append(key, value, **options), _size(key) + _size(value)
        )

    def extend(self, records: Any, **options: Any) -> int:
        """As `Topic.extend`. Returns when the records are in the store.

        A list, a mapping, a table and every call of a named producer is one commit. An iterator, and a reader
        of Arrow batches, is committed in groups of `GROUP_BYTES`, which bounds the memory.
        """
        self._check_ack(options)
        is_one = options.get("producer") is not None or options.get("sequence") is not None
        appended = 0
        for group, size_bytes in [_whole(records)] if is_one else _groups(records):
            extend = partial(self._extended, group, options)
            try:
                appended += self.dirs.append(self.name, extend, size_bytes)
            except LastwordError as error:
                if not appended:
                    raise
                note = f"the {appended} records before are in the log"
                raise PartialFailure.of(appended, [error], note) from error
        return appended

    def _extended(self, group: Any, options: dict[str, Any], dirs: OpenDirs) -> int:
        return self._on(dirs).extend(group, **options)

    def _check_ack(self, options: dict[str, Any]) -> None:
        ack = options.pop("ack", None)
        if ack not in (None, "disk", "store"):
            raise UsageError(
                f'ack="{ack}" does not exist in a bucket: a record is acknowledged when it is in the store',
                remedy="leave ack out",
            )

    def buffered(self) -> BufferedTopic:
        """Return the topic, with appends that do not wait for the store."""
        return BufferedTopic(self.dirs, self.schema, self.config)

    def last_sequence(self, producer: str) -> int | None:
        """As `Topic.last_sequence`."""
        if self.dirs.mode == "r":
            return super().last_sequence(producer)
        return self.dirs.transaction(lambda dirs: self._on(dirs).last_sequence(producer))


class BufferedTopic(BucketTopic):
    """A topic of bytes whose appends do not wait for the store: the log of a state.

    A record that is too large is refused by the call, and not by the commit, because the state shows the
    record when the call returns.
    """

    _refused: Callable[[BaseException], object] = staticmethod(lambda error: None)
    _changed: Changed | None = None

    def __init__(self, dirs: OpenDirs, schema: TopicSchema, config: TopicConfig) -> None:
        super().__init__(dirs, schema, config)
        self._saved = schema.saved

    def _on(self, dirs: OpenDirs) -> Topic[Any, Any]:
        topic = super()._on(dirs)
        topic.check_serializers(self._saved)  # the state has encoded the values for these
        return topic

    def on_refused(self, call: Callable[[BaseException], object]) -> None:
        """Call `call` with the error of each append that its commit refuses, in another thread."""
        self._refused = call

    def watch(self, changed: Changed) -> None:
        """As `BucketDirs.watch`; the appends of this object do not count."""
        self._changed = changed
        self.dirs.watch(self.name, changed)

    def append_if(
        self,
        key: bytes,
        value: bytes | None,
        headers: Any,
        check: Callable[[PartitionLog], bool],
    ) -> Appended | None:
        """Append one record if `check` of its log in the newest version is true. Return when it is stored.

        Raises:
            RecordTooLargeError: As `append`.
        """
        self._check_fits([(key, value)], headers)

        def work(dirs: OpenDirs) -> Appended | None:
            if not check(dirs.log(self.name, self._partition_of(key))):
                return None
            return self._on(dirs).append(key, value, headers=headers)

        return self.dirs.append(self.name, work, _size(key) + _size(value), own=self._changed)

    def append(self, key: Any, value: Any, **options: Any) -> Appended:
        """Append one record in a later commit. Its offset is not known yet: it is -1."""
        self._check_fits([(key, value)], options.get("headers", ()))
        self.dirs.append_later(
            self.name,
            lambda dirs: self._on(dirs).append(key, value, **options),
            _size(key) + _size(value),
            self._refused,
            own=self._changed,
        )
        return Appended(-1, -1, -1)

    def extend(self, records: Any, **options: Any) -> int:
        """Append many records in a later commit."""
        group, size_bytes = _whole(records)
        pairs: list[Any] = [(r.key, r.value) if isinstance(r, Record) else r for r in group]
        self._check_fits(pairs)
        extend = partial(self._extended, group, options)
        self.dirs.append_later(self.name, extend, size_bytes, self._refused, own=self._changed)
        return len(group)

    def _check_fits(self, records: Iterable[tuple[bytes, bytes | None]], headers: Any = ()) -> None:
        self._take_settings()
        for key, value in records:
            self._packer.check_fits(key, value, headers)


GROUP_BYTES = 16 << 20
"""Records of an iterator that are one commit."""
RECORD_BYTES = 64
"""Assumed size of a value whose size is known only when it is encoded."""


def _size(value: Any) -> int:
    return len(value) if isinstance(value, bytes | str) else RECORD_BYTES


def _sizes(record: Any) -> int:
    return sum(map(_size, record)) if isinstance(record, tuple) else 2 * RECORD_BYTES


def _whole(records: Any) -> tuple[Any, int]:
    """Return all records in a form that can be read again, and their size: a transaction may run again."""
    if hasattr(records, "__arrow_c_stream__"):
        from lastword.arrow import pa

        table = pa.table(records)
        return table, table.nbytes
    check_records(records)
    held = records if isinstance(records, Mapping | list | tuple) else list(records)
    return held, len(held) * 2 * RECORD_BYTES


def _tables(reader: Any) -> Iterator[tuple[Any, int]]:
    from lastword.arrow import pa

    batches: list[Any] = []
    size_bytes = 0
    for batch in reader:
        batches.append(batch)
        size_bytes += batch.nbytes
        if size_bytes >= GROUP_BYTES:
            yield pa.Table.from_batches(batches), size_bytes
            batches, size_bytes = [], 0
    if batches:
        yield pa.Table.from_batches(batches), size_bytes


def _groups(records: Any) -> Iterator[tuple[Any, int]]:
    """Return the records in groups that are one commit each, with their sizes."""
    if hasattr(records, "read_next_batch"):  # a reader of Arrow batches
        yield from _tables(records)
        return
    if not isinstance(records, Iterator):
        yield _whole(records)
        return
    group: list[Any] = []
    size_bytes = 0
    for record in records:
        group.append(record)
        size_bytes += _sizes(record)
        if size_bytes >= GROUP_BYTES:
            yield group, size_bytes
            group, size_bytes = [], 0
    if group:
        yield group, size_bytes
