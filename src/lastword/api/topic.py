"""`Topic`: append to a topic, read it, describe it, lease and trim it.

A change runs where `OpenDirs` runs it: in the directories, or in a transaction on a private copy of them.
`Topic._on` returns the topic to change there.

The verbs that also work on all topics, such as `clean` and `verify`, are those of `LogDir`.

Every change is acknowledged when the call returns: at "os" the records survive a killed process, at "disk" a
power cut. There is no buffer, and nothing to flush.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from lastword.api.lookups import KeyLookups
from lastword.api.open_dirs import Ack, OpenDirs, PathLike
from lastword.api.record import (
    Absent,
    Appended,
    HeadersLike,
    K,
    Record,
    V,
    appended_at,
    header_pairs,
    size_of,
)
from lastword.api.schema import TopicSchema
from lastword.config import TopicConfig
from lastword.errors import BusyError, InvalidSettingError, LastwordError, PartialFailure, UsageError
from lastword.metrics import count_append
from lastword.parse import Duration
from lastword.values import ProcessBound, ProgressLike, Results, table_html

if TYPE_CHECKING:
    from concurrent.futures import Future

    from lastword.api.export import FormatLike
    from lastword.api.inspections import PartitionInfo, SegmentInfo
    from lastword.api.lease import Lease, LeaseInfo, Position
    from lastword.api.producers import ProducerCall, Producers
    from lastword.api.reader import Bounds, Isolation, Reader, View
    from lastword.api.watch import Watch
    from lastword.config.keywords import TopicKeywords
    from lastword.lake.export import Exported
    from lastword.partition import PartitionLog
    from lastword.partition.appending import AppendedBatch, Batch
    from lastword.records.record import Header
    from lastword.tools.erasure import CertificateCheck, Erasure

    class AppendOptions(TypedDict, total=False):
        """The options of `Topic.append`."""

        headers: HeadersLike
        timestamp: int | datetime | None
        partition: int | None
        ack: Ack | None
        producer: str | None
        sequence: int | None
        expect: int | Absent | None


_FREE: AbstractContextManager[None] = nullcontext()


class Topic(ProcessBound, KeyLookups[K, V]):
    """One topic of an open log directory. Get it from `LogDir.topic` or `create_topic`. Safe from any thread.

    Attributes:
        name: The topic's name.
        dirs: The open directories. For tools; it may change.
    """

    def __init__(self, dirs: OpenDirs, schema: TopicSchema, config: TopicConfig) -> None:
        super().__init__(dirs, schema, config)
        self._logs: dict[int, PartitionLog] = {}
        """Logs of earlier appends. One that was closed or moved since refuses `append_single`."""
        self._in_one_directory = len(dirs.directories) == 1

    @property
    def partitions(self) -> int:
        """Number of partitions; they are numbered 0 to partitions - 1."""
        return self.schema.partitions

    def __repr__(self) -> str:
        return f"Topic({self.name!r}, partitions={self.partitions})"

    def _repr_html_(self) -> str | None:
        try:
            rows = [
                (str(number), str(view.log_start), str(view.log_end), str(len(view.segments)))
                for number, view in sorted(self.dirs.views(self.name).items())
            ]
        except LastwordError:  # closed, or damaged: a notebook shows the text
            return None
        return table_html(self.name, ("partition", "log_start", "log_end", "segments"), rows)

    # -------------------------------------------------------------- append

    def append(
        self,
        key: K | None,
        value: V | None,
        *,
        headers: HeadersLike = (),
        timestamp: int | datetime | None = None,
        partition: int | None = None,
        ack: Ack | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        expect: int | Absent | None = None,
    ) -> Appended:
        """Append one record. Return when it is acknowledged.

        Args:
            key: Encoded by the topic's serializer; None: no key.
            value: Encoded by the topic's serializer; None: a tombstone.
            headers: A mapping or pairs of str and bytes or None.
            timestamp: Milliseconds since 1970 or an aware datetime; None: now.
            partition: None: by the key; without a key, the partitions take turns.
            ack: "os" or "disk"; None: the setting lastword.ack. In a bucket there is one level, "store".
            producer: A name. A call whose sequence is not above that of the producer's last call appends
                nothing; it returns the offset of the record if it repeats the last call, otherwise -1.
            sequence: Must increase with each call of a producer.
            expect: Append only if the newest record of the key, in the partition of the record, is the one
                at this offset (`get_record(key).offset`), or if the key has none (`lastword.ABSENT`), also
                after a deletion. The check and the append are one step. Each call is a lookup, as `get`.

        Raises:
            ConflictError: The newest record is not the one that `expect` names. Nothing was written.
            KeyRequiredError: A compacted topic needs a key.
            RecordTooLargeError: The record exceeds max.message.bytes.
            SerializerError: A serializer refuses the key or value.
            ReadOnlyError: The directory was opened with mode "r".
            DiskFullError: There is no room; the log is unchanged.
            SyncFailedError: The record may not be durable.
        """
        if ack is not None:
            ack = self.dirs.checked_ack(ack)
        pairs = header_pairs(headers) if headers else ()  # now: `_append` may run again
        return self.dirs.append(
            self.name,
            lambda dirs: self._on(dirs)._append(
                key, value, pairs, timestamp, partition, ack, producer, sequence, expect
            ),
            (key, value),
        )

    def begin_append(
        self, key: K | None, value: V | None, **options: Unpack[AppendOptions]
    ) -> Future[Appended] | None:
        """As `append`, but do not wait: see `OpenDirs.begin_append`."""
        ack = options.pop("ack", None)
        if ack is not None:
            self.dirs.checked_ack(ack)

        def work(dirs: OpenDirs) -> Appended:
            if "headers" in options:  # an iterator is read once, and this may run again
                options["headers"] = header_pairs(options["headers"])
            return self._on(dirs).append(key, value, **options)

        return self.dirs.begin_append((self.name,), work, size_of((key, value)))

    def _on(self, dirs: OpenDirs) -> Topic[K, V]:
        """Return the topic to change in these directories: itself, or a copy for a private copy of them."""
        if dirs is self.dirs:
            return self
        self._take_settings()
        schema, numbers, config = self._schema, tuple(dirs.partitions(self.name)), dirs.config(self.name)
        is_changed = config != self._config or numbers != schema.numbers  # by a commit that came first
        if is_changed:
            schema = schema.with_settings(numbers, config)
        topic: Topic[K, V] = Topic(dirs, schema, config)
        if not is_changed:  # records without a key take turns over all transactions
            topic.__dict__["_packer"] = self._packer
        return topic

    def _append(
        self,
        key: K | None,
        value: V | None,
        headers: tuple[Header, ...],
        timestamp: int | datetime | None,
        partition: int | None,
        ack: Ack | None,
        producer: str | None = None,
        sequence: int | None = None,
        expect: int | Absent | None = None,
        *,
        hides_expired: bool = False,
    ) -> Appended:
        """Append one record to these directories. `hides_expired`: see `keys.expecting`."""
        dirs = self.dirs
        if dirs.directories[0].settings is not self._settings:  # `dirs.settings`, without a call
            self._take_settings()
        level = self._config.lastword_ack if ack is None else ack
        packer = self._packer
        if dirs.closed or dirs.mode == "r":
            dirs.require_writable()
        raw_key: Any = key
        raw_value: Any = value
        if type(key) is not packer.raw_key or type(value) is not packer.raw_value:
            raw_key, raw_value = packer.encode(key, value)
        turn = None
        if producer is not None or sequence is not None:
            from lastword.api import producers

            _, sequence = producers.check(producer, sequence)
            turn = sequence % producers.TURNS
        if partition is None and packer.has_one_partition and raw_key is not None:
            chosen = 0
        else:
            chosen = packer.assigner.of(raw_key, partition, turn)
        now_ms = dirs.clock.now_ms()
        when = now_ms if timestamp is None else packer.timestamp_of(timestamp, now_ms)
        began = perf_counter()
        held: AbstractContextManager[None] = _FREE
        if expect is not None:
            from lastword.api.keys import expecting

            if turn is not None:
                raise UsageError(
                    "expect= and producer= exclude each other: a repeated call would meet its own record",
                    remedy="leave one of them out",
                )
            held = expecting(self, chosen, raw_key, expect, hides_expired=hides_expired)
        elif (
            packer.is_plain and turn is None and not headers and (raw_key is not None or not packer.compacts)
        ):
            log = self._logs.get(chosen)
            if log is not None and not self._in_one_directory:
                log = dirs.log(self.name, chosen)  # another one, if the partition was moved
            single = None if log is None else log.append_single(raw_key, raw_value, when, packer.limit)
            if log is not None and single is not None:
                if level == "disk":
                    log.sync()
                offset, size = single
                count_append(self.name, 1, size, level, perf_counter() - began)
                return appended_at(chosen, offset, when)
        batch = packer.one(raw_key, raw_value, when, headers, chosen)
        if turn is not None:
            return self._append_once((raw_key, raw_value), batch, chosen, (producer, sequence), level, began)
        with held:
            log, (done,) = self._append_batches(chosen, (batch,))
            self._logs[chosen] = log
        if level == "disk":
            log.sync()
        count_append(self.name, 1, len(batch), level, perf_counter() - began)
        return Appended(chosen, done.base_offset, done.timestamp)

    def _append_batches(
        self, partition: int, batches: Sequence[Batch], *, sync_follows: bool = False
    ) -> tuple[PartitionLog, list[AppendedBatch]]:
        """Append batches to a partition, also if it is moved meanwhile; return its log, too."""
        log = self.dirs.log(self.name, partition)
        try:
            return log, log.append_batches(batches, sync_follows=sync_follows)
        except BusyError:  # nothing was appended; a move holds the log until the log is open in its new place
            now = self.dirs.log(self.name, partition)
            if now is log:
                raise
            return now, now.append_batches(batches, sync_follows=sync_follows)

    def _append_once(
        self,
        data: tuple[bytes | None, bytes | None],
        batch: bytes,
        partition: int,
        named: tuple[str | None, int | None],
        level: str,
        began: float,
    ) -> Appended:
        """Append one record of a named producer."""
        from lastword.api import producers

        with self._call(*named) as call:
            if call is None or call.skips(partition, *data):
                done = None
            else:
                (done,) = call.share(partition).append([batch], [data[0]], [data[1]])
            if call is not None:
                self._finish(call, level)
        size = 0 if done is None else len(batch)
        count_append(self.name, int(done is not None), size, level, perf_counter() - began)
        if done is None:
            return producers.find_appended(self._producers(), self._log_of, *named, partition)
        return Appended(partition, done.base_offset, done.timestamp)

    def delete(self, key: K, **options: Unpack[AppendOptions]) -> Appended:
        """Append a tombstone, the record that deletes `key`, with the options of `append`."""
        return self.append(key, None, **options)

    def extend(
        self,
        records: Iterable[tuple[K | None, V | None] | Record[K, V]] | Mapping[K, V | None] | Any,
        *,
        partition: int | None = None,
        ack: Ack | None = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> int:
        """Append many records with one sync at the end. Return how many were acknowledged.

        Records are checked and written in groups of at most 16 MiB. A refused record stops its group before
        anything of the group is written.

        Args:
            records: Pairs, `Record`s (their timestamps and headers are kept, partition and offset are new), a
                mapping, or anything with `__arrow_c_stream__`: columns key and value, optionally headers
                (lists of structs with fields key and value, or maps), timestamp, partition.
            partition: As for `append`.
            ack: As for `append`.
            producer: As for `append`: a call not above the last call returns 0. Repeat a failed call with
                the same records: only the missing records are appended.
            sequence: As for `append`.

        Raises:
            LastwordError: As for `append`. Nothing of the group was written.
            PartialFailure: The same, after other groups were written; `results` is the number of records
                before the group, which are in the log.
        """
        if ack is not None:
            ack = self.dirs.checked_ack(ack)
        return self.dirs.extend(
            self.name,
            lambda group, dirs: self._on(dirs)._extend(group, partition, ack, producer, sequence),
            records,
            is_one=producer is not None or sequence is not None,
        )

    def _extend(
        self, records: Any, partition: int | None, ack: Ack | None, producer: str | None, sequence: int | None
    ) -> int:
        """Append many records to these directories."""
        self.dirs.require_writable()
        if producer is None and sequence is None:
            return self._append_groups(records, partition, ack, None)
        with self._call(producer, sequence) as call:
            return 0 if call is None else self._append_groups(records, partition, ack, call)

    def _append_groups(
        self, records: Any, partition: int | None, ack: Ack | None, call: ProducerCall | None
    ) -> int:
        self._take_settings()
        level = self._config.lastword_ack if ack is None else ack
        now_ms = self.dirs.clock.now_ms()
        if hasattr(records, "__arrow_c_stream__"):
            from lastword.api.reader import Reader

            if isinstance(records, Reader):
                records = records.arrow()  # moves its position, for a caller who is interrupted
            groups = self._packer.arrow_groups(records, now_ms, partition, call)
        else:
            groups = self._packer.groups(records, now_ms, partition, call)
        appended = size = 0
        began = perf_counter()
        touched: set[int] = set()
        try:
            for group in groups:
                for number, batches in sorted(group.batches.items()):
                    if call is None:
                        self._append_batches(number, batches, sync_follows=level == "disk")
                    else:
                        call.share(number).append(batches, *group.columns[number])
                    touched.add(number)
                    size += sum(len(batch) for batch in batches)
                appended += group.records
        except LastwordError as error:
            if not appended:
                raise
            note = f"the {appended} records before are in the log"
            raise PartialFailure.of(appended, [error], note) from error
        if call is not None:
            self._finish(call, level)
        elif level == "disk":
            for number in sorted(touched):
                self.dirs.log(self.name, number).sync()
        count_append(self.name, appended, size, level, perf_counter() - began)
        return appended

    def last_sequence(self, producer: str) -> int | None:
        """Return the sequence of the last call of the producer that is completely in the log, or None.

        After a crash, continue with the call after it.
        """
        from lastword.api import producers

        producers.check(producer, 0)
        if self.dirs.mode == "r":
            return producers.last_sequence_seen(dict(self.dirs.views(self.name)), producer)
        return self.dirs.transaction(lambda dirs: self._on(dirs)._last_sequence(producer))

    def _last_sequence(self, producer: str) -> int | None:
        return self._producers().last_sequence(self._log_of, producer)

    def _call(
        self, producer: str | None, sequence: int | None
    ) -> AbstractContextManager[ProducerCall | None]:
        return self._producers().call(self._log_of, producer, sequence)

    def _producers(self) -> Producers:
        from lastword.api import producers

        return producers.producers_of(self._log_of(min(self.schema.numbers)))

    def _log_of(self, partition: int) -> PartitionLog:
        return self.dirs.log(self.name, partition)

    def _finish(self, call: ProducerCall, level: str) -> None:
        """Make the records of a call durable if required, then record that the call is complete."""
        if level == "disk":
            for number in call.partitions:
                self._log_of(number).sync()
        self._producers().finish(call, self._log_of, sync=level == "disk")

    def _check_fit(
        self, records: Iterable[tuple[bytes, bytes | None]], headers: tuple[Header, ...] = ()
    ) -> None:
        """Raise RecordTooLargeError if a record cannot be appended."""
        self._take_settings()
        for key, value in records:
            self._packer.check_fits(key, value, headers)

    # -------------------------------------------------------------- read

    def read(
        self,
        start: Bounds = "earliest",
        end: Bounds = "latest",
        *,
        partition: int | None = None,
        keys: Iterable[K] | None = None,
        view: View = "log",
        follow: bool = False,
        timeout: Duration | None = None,
        isolation: Isolation = "read_committed",
    ) -> Reader[K, V]:
        """Read records up to the current log end. With `follow`, continue with new records.

        Args:
            start: "earliest", "latest", an offset, an aware datetime or a text of one with a zone (the first
                record that is not older), or a dict of these by partition.
            end: As `start`; exclusive.
            partition: None: every partition.
            keys: Only records with one of these keys.
            view: "log": every record; "newest": the newest value of each key, no tombstones; "changes": the
                newest record of each key in the range, tombstones included.
            follow: After the existing records, yield new records of any partition, also of partitions that
                are added later. Works beside a writer in another process.
            timeout: With `follow`: end after this long without a record: seconds, "1m" or a timedelta; None:
                never.
            isolation: "read_committed": end at the start of the oldest open transaction, and skip aborted
                transactions; "read_uncommitted": all records. Transaction markers are never shown.

        Raises:
            OffsetOutOfRangeError: An offset is below the log start or above the log end. With `follow`, also
                while reading: records were removed before they were read, or the topic was deleted and
                created again.
        """
        from lastword.api import reader

        reader.check_view(view)
        timeout_seconds = reader.check_follow(follow, timeout, start, end, view)
        committed = reader.check_isolation(isolation) == reader.READ_COMMITTED
        views = self.dirs.views(self.name) if partition is None else {partition: self._view(partition)}
        schema = self.schema  # of the settings that `views` has read
        return reader.Reader(
            self.name,
            reader.ranges(views, start, end, committed=committed),
            (schema.key, schema.value),
            view=view,
            keys=reader.encoded_keys(keys, schema.key),
            map_bytes=self.dirs.settings.instance.map_bytes,
            committed=committed,
            follow=reader.following(
                self.dirs,
                self.name,
                views,
                timeout=timeout_seconds,
                committed=committed,
                grows=partition is None,
                check=lambda: self.check_serializers(schema.saved),
            )
            if follow
            else None,
        )

    def newest(
        self,
        keys: Iterable[K] | None = None,
        *,
        end: Bounds = "latest",
        partition: int | None = None,
        isolation: Isolation = "read_committed",
    ) -> Reader[K, V]:
        """Read the newest record of each key, without tombstones: `read` with `view="newest"`.

        Args:
            keys: Only these keys; None: every key.
            end: The newest records below this end; exclusive.
            partition: None: every partition.
            isolation: As for `read`.
        """
        return self.read(end=end, partition=partition, keys=keys, view="newest", isolation=isolation)

    def watch(
        self,
        keys: Iterable[K] | None = None,
        *,
        start: str | Position = "latest",
        lease: str | None = None,
        max_age: Duration = "1d",
        timeout: Duration | None = None,
    ) -> Watch[K, V]:
        """Read every committed change as it comes, deletions included: a read that follows, with a lease.

        No deletion is missed: tombstones stay until the watch has read them. An older change of a key may be
        cleaned away before it is read, the newest never.

        Args:
            keys: Only changes of these keys; None: of every key.
            start: "latest": changes from now on; "newest": the present value of each key first; "earliest":
                every record in the log first. Or a position, as of `Watch.position`: continue there.
            lease: The name of a lease that stays when the watch ends. If there is one, the watch continues at
                its position, unless `start` is a position. Move it with `Watch.lease.advance`. None: the
                watch takes a lease, moves it, and releases it at its end.
            max_age: The lease lapses if the watch is not read for this long.
            timeout: End after this long without a change: seconds, "1m" or a timedelta; None: never.

        Raises:
            LeaseRefusedError: Tombstones from the position on may be gone. While reading: the watch was not
                read for `max_age`, and tombstones were removed since; or the log was cut.
            OffsetOutOfRangeError: As for `read` with `follow`.
        """
        from lastword.api.watch import Watch

        schema = self.schema
        return Watch(
            self.dirs,
            self.name,
            (schema.key, schema.value),
            keys=keys,
            start=start,
            lease=lease,
            max_age=max_age,
            timeout=timeout,
            check=lambda: self.check_serializers(schema.saved),
        )

    def export(
        self,
        to: PathLike,
        *,
        layout: str = "vectors",
        value_format: FormatLike | None = None,
        value_schema: Any = None,
        dry_run: bool = False,
        storage_options: Mapping[str, str] | None = None,
        progress: ProgressLike | bool | None = None,
    ) -> Exported:
        """Bring a Delta table to the newest values of this topic. The first call makes the table.

        A later call writes what has changed since, in one commit with the position; repeated, it adds
        nothing.
        Columns: key, value, partition, offset, timestamp.

        Args:
            to: "delta:PATH" or "delta:URL".
            layout: "vectors": rows that died get a deletion vector, which readers must support. "merge":
                their files are written again without them, for every reader of Delta. A table keeps its own.
            value_format: "json", "avro", "confluent" or "protobuf"; with options of the format a pair:
                ("avro", {"avroSchema": "user.avsc"}). None: as the topic's serializer says.
            value_schema: The type of the column `value`: text ("city STRING, population BIGINT"), or a type
                or schema of Arrow. None: that of the format's own schema.
            dry_run: Measure what would be written; write nothing.
            storage_options: Of the table's store, as for `lastword.open`.
            progress: True, or a function of `Progress`.

        Raises:
            TableRefusedError: Another program made the table or changed its rows, or its columns differ.
            ValueFormatError: A value is not of the format.
            UnconditionalStoreError: The table's store does not enforce conditions.
            BusyError: Other commits to the table came first 16 times.
        """
        from lastword.api.export import Columns, export_topic

        names = self.schema.key.name, self.schema.value.name
        return export_topic(
            self.dirs,
            Columns(self.name, names, value_format, value_schema),
            to,
            layout=layout,
            dry_run=dry_run,
            storage_options=storage_options,
            progress=progress,
        )

    def check_serializers(self, saved: tuple[str | None, str | None]) -> None:
        """Raise InvalidSettingError if the saved serializers are other ones than a reader or a state has."""
        if self.schema.saved != saved:
            before, now = (
                f"{key or 'bytes'} and {value or 'bytes'}" for key, value in (saved, self.schema.saved)
            )
            raise InvalidSettingError(
                f"topic {self.name!r}: the serializers of keys and values were changed: {before} to {now}",
                remedy="open the state again, or read again from the reader's position",
            )

    def record_at(
        self, offset: int, *, partition: int | None = None, isolation: Isolation = "read_committed"
    ) -> Record[K, V] | None:
        """Return the record at an offset. It is faster than a read of one offset.

        `records_at` takes many offsets. The first call of a process loads the kernels, which takes about
        0.4 s.

        Args:
            offset: The offset.
            partition: May be omitted if the topic has one partition.
            isolation: As for `read`.

        Returns:
            None if no record has the offset: a cleaning removed it, its transaction is open or was aborted,
            it is a transaction marker, or it is the log end.

        Raises:
            OffsetOutOfRangeError: The offset is below the log start or above the log end.
        """
        from lastword.api.reader import READ_COMMITTED, check_isolation, record_at

        committed = check_isolation(isolation) == READ_COMMITTED
        log = self._readable(self._only(partition))
        schema = self.schema
        return record_at(log, offset, (schema.key, schema.value), committed=committed)

    def records_at(
        self, offsets: Iterable[int], *, partition: int | None = None, isolation: Isolation = "read_committed"
    ) -> list[Record[K, V] | None]:
        """Return the records at many offsets. Each batch is read, verified and unpacked once.

        The closer the offsets are to each other, the more is saved: a batch is unpacked whole.

        Args:
            offsets: The offsets, in any order, also repeated; an array of NumPy, too.
            partition: May be omitted if the topic has one partition.
            isolation: As for `read`.

        Returns:
            The record at each offset, in the given order, or None as from `record_at`.

        Raises:
            OffsetOutOfRangeError: An offset is below the log start or above the log end.
        """
        from lastword.api.reader import READ_COMMITTED, check_isolation, records_at

        committed = check_isolation(isolation) == READ_COMMITTED
        log = self._readable(self._only(partition))
        schema = self.schema
        return records_at(log, offsets, (schema.key, schema.value), committed=committed)

    def _only(self, partition: int | None) -> int:
        """Return the partition, or that of a topic with one."""
        if partition is None and self.partitions > 1:
            raise UsageError(f"{self.name} has {self.partitions} partitions", remedy="give partition=")
        return 0 if partition is None else partition

    def bounds(self) -> dict[int, tuple[int, int]]:
        """Return the log start and log end of every partition, as of now."""
        return {n: (view.log_start, view.log_end) for n, view in sorted(self.dirs.views(self.name).items())}

    # -------------------------------------------------------------- facts and settings

    def describe(
        self, *, quick: bool = False, progress: ProgressLike | bool | None = None
    ) -> list[PartitionInfo]:
        """Count records and garbage of each partition.

        Counts are exact: every record is scanned, unless the garbage index covers them all.

        Args:
            quick: Use the garbage index without a scan, if there is an index; `exact` is False if records
                were appended since.
            progress: True, or a function of `Progress`.
        """
        from lastword.api.inspections import describe

        return Results(describe(self.dirs, self.name, progress, quick=quick))

    def segments(
        self,
        partition: int | None = None,
        *,
        quick: bool = False,
        progress: ProgressLike | bool | None = None,
    ) -> list[SegmentInfo]:
        """Count records and garbage of each segment; `quick` as for `describe`."""
        from lastword.api.inspections import segments

        return Results(segments(self.dirs, self.name, partition, progress, quick=quick))

    def lease(self, name: str, *, position: Position | None = None, max_age: Duration = "7d") -> Lease:
        """Take a lease: no tombstone is removed before the reader with that name has passed it.

        Needs no lock.

        Args:
            name: Letters, digits and . _ - ; the same name resumes the lease.
            position: The next offset that the reader will read: of every partition, or a dict. None: the
                position of the lease; for a new lease the log start.
            max_age: "7d", seconds or a timedelta. A lease that is not advanced for this long lapses.

        Raises:
            LeaseRefusedError: Tombstones from the position on may be gone: restore, or start from "earliest".
            OffsetOutOfRangeError: The position is below the log start or above the log end.
        """
        from lastword.api.lease import take

        lease = self.dirs.transaction(
            lambda dirs: take(dirs, self.name, name, position, max_age), any_mode=True
        )
        return lease.on(self.dirs)

    def leases(self, partition: int | None = None) -> list[LeaseInfo]:
        """Return every lease on this topic, live and lapsed."""
        from lastword.api.lease import listed

        return Results(listed(self.dirs, self.name, partition))

    def set_config(self, **config: Unpack[TopicKeywords]) -> None:
        """Change settings of this topic in its settings file; None resets a setting to its default.

        The change applies immediately.
        """
        self.dirs.set_config(self.name, config)

    def erase(
        self,
        keys: Iterable[K] = (),
        *,
        prefix: bytes | None = None,
        partition: int | None = None,
        now: bool = False,
        dry_run: bool = False,
        progress: ProgressLike | bool | None = None,
    ) -> Erasure:
        """Remove keys and all their values from every file of the topic, and search the files for them.

        A tombstone is appended for each key, every segment with an older record of it is rewritten, derived
        files are removed. The result is the certificate: `save` writes it. Repeat a call that failed: it does
        what is left.

        Args:
            keys: Encoded by the topic's serializer.
            prefix: Also every key whose bytes begin with it.
            partition: None: every partition.
            now: Remove the tombstones, too, although readers may not have seen them: a reader with a lease
                below is refused when it advances. False: a tombstone holds its key until a cleaning after
                `delete.retention.ms`.
            dry_run: Change nothing, and count what would be removed.
            progress: True, or a function of `Progress`.

        Raises:
            UsageError: `keys` is text or a mapping, `prefix` is no bytes, or a key has no bytes.
            NoPolicyError: The topic is not compacted.
            PartialFailure: Partitions failed: they are damaged, or a transaction is open there. It is raised
                at the end, with the certificate of the others.
        """
        from lastword.api.erasing import erase
        from lastword.api.keys import key_bytes
        from lastword.api.reader import check_keys

        check_keys(keys)  # the characters of a text would be erased as keys
        if prefix is not None and not isinstance(prefix, bytes):
            raise UsageError(f"prefix= is a {type(prefix).__name__}", remedy="give bytes")
        wanted = {key_bytes(self, key) for key in keys}
        return erase(
            self.dirs,
            self.name,
            wanted,
            prefix=prefix,
            partition=partition,
            now=now,
            dry_run=dry_run,
            progress=progress,
        )

    def check_erasure(self, certificate: str | os.PathLike[str]) -> CertificateCheck:
        """Check that a certificate is unchanged, and look for its keys in the topic as it is now.

        Args:
            certificate: A file that `Erasure.save` wrote.

        Raises:
            CorruptFileError: A byte of it has changed.
        """
        from lastword.api.erasing import check

        return check(self.dirs, os.fspath(certificate))

    def trim(self, before: int | datetime, *, partition: int | None = None) -> dict[int, int]:
        """Raise the log start, under any cleanup.policy. Return the log start of each partition.

        Whole segments below it are removed immediately, their files after `file.delete.delay.ms`.

        Args:
            before: An offset, or an aware datetime: older records are removed.
            partition: None: every partition.

        Raises:
            OffsetOutOfRangeError: The offset is above a log end. Nothing was changed.
            PartialFailure: The files of partitions cannot be changed. It is raised at the end, with the log
                starts of the others.
        """
        from lastword.api.cleaning import trim

        return self.dirs.transaction(lambda dirs: trim(dirs, self.name, partition, before))
