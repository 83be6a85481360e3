"""`Reader`: the records of a topic, one by one or as Arrow batches, bounded or following the log.

A bounded read ends at the log end at its start; a read of newest values (`view="newest"`, `"changes"`) may
end later, if a cleaning replaced files. Offsets may have gaps, which compaction leaves. A start below the
log start is an error, because records are missing.

A read with `follow` polls, because the writer is another process without a list of its readers. A poll of an
unchanged partition stats two files. A pause takes 3 ms, so a record is read within 5 ms; or longer, up to 100
ms, if the polls of many partitions would take more than 2 % of a core. Notifications of the kernel (inotify)
would need no polls, but Python's standard library has none, their number is limited for each user, and they
do not report what another host writes on a network drive. Partitions that are added to the topic are read
from their start.
"""

from __future__ import annotations

import atexit
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Generic, Literal, cast
from weakref import WeakSet

from lastword.api.record import TIMESTAMP_TYPES, K, Record, V, records_of
from lastword.arrow import pa
from lastword.clock import Clock
from lastword.config.tables import DEFAULT_MAP_BYTES
from lastword.errors import OffsetOutOfRangeError, UsageError
from lastword.parse import Duration, as_int, check_count, one_of, parse_bytes, parse_seconds, to_ms
from lastword.partition import scan
from lastword.partition.cut import read_note
from lastword.partition.moment import Range
from lastword.partition.view import CurrentView, PartitionView
from lastword.records.record import RawRecord
from lastword.values import Closing, ProcessBound, in_groups

if TYPE_CHECKING:
    from lastword.api.arrow import ArrowForm
    from lastword.api.open_dirs import OpenDirs
    from lastword.api.serializers import Serializer
    from lastword.partition.log import PartitionLog


Bound = str | int | datetime
Bounds = Bound | Mapping[int, Bound]


def last_starts(
    source: Any,
    partition: int | None,
    count: int,
    end: Any = "latest",
    *,
    keys: Iterable[bytes] | None = None,
    view: View = "log",
) -> dict[int, int]:
    """Return the offset at which the last `count` records of each partition begin.

    A cleaned log has gaps, and markers are not records: a growing part of the end of the log is read until
    it has `count` records.

    Args:
        source: The topic, a `Topic`.
        partition: None: every partition.
        count: The number of records.
        end: As for `Topic.read`; an offset is the end of the part.
        keys: As for `Topic.read`.
        view: As for `Topic.read`.
    """
    begin = {}
    views = source.dirs.views(source.name)
    for _, number in source.dirs.select(source.name, partition):
        log_start, top = views[number].log_start, views[number].log_end
        if isinstance(end, int):
            top = max(log_start, min(top, end))
        wanted = min(count, top - log_start)
        start, window = top, wanted
        offsets: deque[int] = deque(maxlen=wanted)
        while len(offsets) < wanted and start > log_start:
            start, window = max(log_start, top - window), 4 * window
            records = source.read(start, end, partition=number, keys=keys, view=view)
            offsets = deque((record.offset for record in records), maxlen=wanted)
        begin[number] = offsets[0] if len(offsets) == wanted > 0 else start
    return begin


def ranges(
    views: Mapping[int, PartitionView], start: Bounds, end: Bounds, *, committed: bool = True
) -> list[Range]:
    """Return one Range for each partition, which computes its offsets again when it is renewed.

    A partition that a mapping does not name starts at "earliest" and ends at "latest". A committed read ends
    at the last stable offset, which is also its "latest".

    Raises:
        OffsetOutOfRangeError: An offset is outside the log.
        UsageError: A bound is not a position in a log.
    """
    for bound_name, given in (("start", start), ("end", end)):
        if isinstance(given, Mapping):
            unknown = sorted((number for number in given if as_int(number) not in views), key=str)
            if unknown:
                remedy = "leave it out, or read another topic"
                if isinstance(unknown[0], str):  # a position that was saved as JSON
                    remedy = "partitions are ints: {int(number): offset for number, offset in saved.items()}"
                raise UsageError(
                    f"{bound_name} names partition {unknown[0]!r}, "
                    f"but the partitions are {', '.join(map(str, sorted(views)))}",
                    remedy=remedy,
                )
    result = []
    for partition, view in sorted(views.items()):
        first = _of(start, partition, "earliest")
        last = _of(end, partition, "latest")
        result.append(Range.of(view, partial(_offsets, start=first, end=last, committed=committed)))
    return result


def _offsets(view: PartitionView, *, start: Any, end: Any, committed: bool) -> tuple[int, int]:
    """Return start and end as offsets of a view."""
    log_end = view.log_end
    stable = min(view.stable_offset, log_end) if committed else log_end
    first = _offset(view, log_end, stable, start, "start")
    last = _offset(view, log_end, stable, end, "end")
    return first, min(last, stable)


def _of(given: Bounds, partition: int, default: str) -> Any:
    return given.get(partition, default) if isinstance(given, Mapping) else given


def _offset(
    view: PartitionLog | PartitionView, log_end: int, stable: int, bound: Any, bound_name: str
) -> int:
    if bound == "earliest":
        return view.log_start
    if bound == "latest":
        return stable
    if isinstance(bound, str):
        with suppress(ValueError):
            when = datetime.fromisoformat(bound)
            bound = when if when.tzinfo is not None else bound
    if isinstance(bound, datetime):
        offset = view.offset_at(to_ms(bound))
        return stable if offset is None else min(offset, stable)
    offset = as_int(bound)
    if offset is None:
        remedy = (
            '"earliest", "latest", an offset, an aware datetime, a text of one with a zone '
            "(2026-11-20T10:02:11Z), or a dict of these per partition"
        )
        raise UsageError(f"{bound_name}={bound!r} is not a position in a log", remedy=remedy)
    if offset < view.log_start:
        raise _below(view, offset)
    if offset > log_end:
        raise OffsetOutOfRangeError.above(f"{view.topic}-{view.partition}", offset, log_end)
    return offset


def _below(view: PartitionLog | PartitionView, offset: int) -> OffsetOutOfRangeError:
    why = read_note(view.files, view.directory, view.log_start)
    return OffsetOutOfRangeError.below(f"{view.topic}-{view.partition}", offset, view.log_start, why)


FOLLOW_REFRESH_MS = 250
"""In a bucket, a new version is looked for at most this often."""
SHORTEST_PAUSE_SECONDS = 0.003  # and 0.1 ms until the system wakes the thread, 0.5 to read a new record
LONGEST_PAUSE_SECONDS = 0.1
POLLS_PER_PAUSE = 50
"""A pause takes at least this many times as long as a poll of all partitions."""
COMPARED_POLLS = 8
"""The shortest of the last polls counts, because a busy machine interrupts some of them."""
NEW_PARTITIONS_SECONDS = 1.0  # lists the whole directory, so it is not done with every poll


class Follow:
    """Yields ranges to read, without an end, or until `timeout` seconds pass without a record.

    The reader advances `position`, the next offset of each partition, and calls `restart_timeout` after a
    range with records. With `waits` set to False, an iteration ends when nothing is due. `added` returns
    views of partitions that are not in its argument; None: the topic's partitions are fixed. `refresh` is
    called before each round.
    """

    def __init__(
        self,
        current_views: Mapping[int, CurrentView],
        position: MutableMapping[int, int],
        clock: Clock,
        *,
        timeout: float | None = None,
        committed: bool = True,
        added: Callable[[Collection[int]], Mapping[int, CurrentView]] | None = None,
        refresh: Callable[[], None] = lambda: None,
    ) -> None:
        self._current_views = dict(current_views)
        self._added = added
        self._refresh = refresh
        self._listed_at = clock.monotonic()
        self._position = position
        self._clock = clock
        self._timeout = timeout
        self._committed = committed
        self.waits = True
        self.is_stopped = False
        self._restarts = False

    @property
    def is_due(self) -> bool:
        """Return whether a partition has records to read. Costs two stats for each partition."""
        self._refresh()
        return any(self._due(partition, current) for partition, current in self._current_views.items())

    @property
    def lists_partitions(self) -> bool:
        """Return whether it is time to look for partitions that were added to the topic."""
        return self._added is not None and (
            self._clock.monotonic() - self._listed_at >= NEW_PARTITIONS_SECONDS
        )

    def restart_timeout(self) -> None:
        """Start the timeout again, because a range had records."""
        self._restarts = True

    def stop(self) -> None:
        """End the iteration at its next step. May be called from any thread."""
        self.is_stopped = True

    def __iter__(self) -> Iterator[Range]:
        quiet_since, polls_seconds = self._clock.monotonic(), deque[float](maxlen=COMPARED_POLLS)
        while not self.is_stopped:
            any_due, began = False, self._clock.monotonic()
            self._refresh()
            for partition, current in self._current_views.items():
                if self.is_stopped:
                    return
                due = self._due(partition, current)
                if due is not None:
                    any_due = True
                    yield due
            now = self._clock.monotonic()
            if self._added is not None and now - self._listed_at >= NEW_PARTITIONS_SECONDS:
                self._listed_at = now
                any_due = self._add(self._added(self._current_views)) or any_due
            if self._restarts:
                quiet_since, self._restarts = now, False
            left = LONGEST_PAUSE_SECONDS if self._timeout is None else quiet_since + self._timeout - now
            if any_due and left > 0:
                continue  # without a pause: more may have been appended meanwhile
            if left <= 0 or not self.waits:
                return
            polls_seconds.append(now - began)
            pause = max(SHORTEST_PAUSE_SECONDS, POLLS_PER_PAUSE * min(polls_seconds))
            self._clock.sleep(min(pause, LONGEST_PAUSE_SECONDS, left))

    def _add(self, added: Mapping[int, CurrentView]) -> bool:
        for partition, current in sorted(added.items()):
            self._current_views[partition] = current
            self._position[partition] = current.get().log_start
        return bool(added)

    def _due(self, partition: int, current: CurrentView) -> Range | None:
        view = current.get()
        start = self._position[partition]
        if view.log_start > start:
            raise _below(view, start)
        end = min(view.stable_offset, view.log_end) if self._committed else view.log_end
        return Range(view, start, end) if start < end else None


def following(
    dirs: OpenDirs,
    topic: str,
    views: Mapping[int, PartitionView],
    *,
    timeout: float | None,
    committed: bool,
    grows: bool,
    check: Callable[[], None] = lambda: None,
) -> Callable[[dict[int, int]], Follow]:
    """Return a function that makes the `Follow` of a reader.

    `grows`: also read partitions that are added. `check` is called before each round.
    """

    def refresh() -> None:
        dirs.refresh(at_most_every_ms=FOLLOW_REFRESH_MS)
        check()

    def ends(number: int) -> tuple[int, int, int] | None:
        log = dirs.owned_log(topic, number)
        return None if log is None else (log.log_start, log.stable_offset, log.log_end)

    def current_view(number: int, view: PartitionView) -> CurrentView:
        def load() -> PartitionView:
            newest = dirs.view(topic, number)
            view.check_same_topic(newest)
            return newest

        return CurrentView(view, load, lambda: ends(number))

    def added(known: Collection[int]) -> dict[int, CurrentView]:
        new = [number for number in dirs.partitions(topic) if number not in known]
        return {number: current_view(number, dirs.view(topic, number)) for number in new}

    def follow(position: dict[int, int]) -> Follow:
        return Follow(
            {number: current_view(number, view) for number, view in sorted(views.items())},
            position,
            dirs.clock,
            timeout=timeout,
            committed=committed,
            added=added if grows else None,
            refresh=refresh,
        )

    return follow


def check_follow(
    follow: bool, timeout: Duration | None, start: object, end: object, view: str
) -> float | None:
    """Return the timeout in seconds; UsageError for arguments that cannot be combined."""
    if not follow:
        if isinstance(start, str) and start == "latest":  # once the name of a view
            raise UsageError(
                'start="latest" is the log end: a read from there has no records',
                remedy="newest() reads the newest value of each key; follow=True waits for new records",
            )
        if timeout is not None:
            raise UsageError("timeout= is for follow=True", remedy="a bounded read ends by itself")
        return None
    if end != "latest":
        raise UsageError("follow=True cannot be combined with end=", remedy="omit one of them")
    if view != "log":
        raise UsageError(
            f'view="{view}" needs an end, and a read with follow=True has none',
            remedy="read without follow=True, or keep the newest values with logs.state(...)",
        )
    return None if timeout is None else parse_seconds("timeout", timeout)


View = Literal["log", "newest", "changes"]
Isolation = Literal["read_committed", "read_uncommitted"]
VIEWS = ("log", "newest", "changes")
COLUMNS = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")
"""The columns of `Reader.arrow`."""
READ_COMMITTED: Isolation = "read_committed"
ISOLATIONS = (READ_COMMITTED, "read_uncommitted")


def check_view(view: str) -> View:
    """Return the view; UsageError if it is unknown."""
    return cast("View", one_of(view, VIEWS, "view"))


def check_isolation(isolation: str) -> Isolation:
    """Return the isolation level; UsageError if it is unknown."""
    return cast("Isolation", one_of(isolation, ISOLATIONS, "isolation"))


class Reader(ProcessBound, Closing, Iterator[Record[K, V]], Generic[K, V]):
    """The records of one `Topic.read`, partition by partition, in the order of offsets.

    Use it from one thread; `close` may be called from another. Nothing is read before the first record is
    requested. A bounded reader ends at the log end of its start; with `view="newest"` or `"changes"` it ends
    later, if a cleaning replaced files. A reader that follows continues, also after its timeout has ended a
    loop. After any interruption, also Ctrl-C, `position` is the offset after the last record that was
    returned. After an error, the next step reads from there again: it raises the same error, unless its cause
    is gone.
    """

    def __init__(
        self,
        topic: str,
        ranges: list[Range],
        serializers: tuple[Serializer, Serializer],
        *,
        view: str = "log",
        keys: frozenset[bytes] | None = None,
        map_bytes: int = DEFAULT_MAP_BYTES,
        committed: bool = True,
        follow: Callable[[dict[int, int]], Follow] | None = None,
    ) -> None:
        self._position: dict[int, int] = {range_.partition: range_.start for range_ in ranges}
        self._topic = topic
        self._ranges = ranges
        self._key, self._value = serializers
        self._view = check_view(view)
        self._keys = keys
        self._map_bytes = map_bytes
        self._committed = committed
        self._follow = None if follow is None else follow(self._position)
        self._records = self._each()

    def __iter__(self) -> Reader[K, V]:
        return self

    def __next__(self) -> Record[K, V]:
        try:
            return next(self._records)
        except StopIteration:
            self._go_on()
            raise
        except BaseException:  # ends a generator: another step of it would look like the end of the log
            self._records = self._each()
            raise

    def take(self, most: int) -> list[Record[K, V]]:
        """Return the next records, at most `most`, without waiting for an append.

        An empty list is the end of a bounded read. With `follow=True` it means that there are no more now. An
        error behind a record is raised by the next call, so that no record is lost.
        """
        if self._follow is not None:
            self._follow.waits = False
        number = min(check_count("most", most, "records"), sys.maxsize)
        records: list[Record[K, V]] = []
        try:
            records.extend(islice(self._records, number))
        except Exception as error:
            self._records = self._each()
            if not records:
                raise
            self._records = chain(_raising(error), self._records)
        except BaseException:  # Ctrl-C: the caller does not get the records
            self._records = self._each()
            for record in reversed(records):
                self._position[record.partition] = record.offset
            raise
        else:
            if len(records) < number:
                self._go_on()
        finally:
            if self._follow is not None:
                self._follow.waits = True
        return records

    def _go_on(self) -> None:
        """Let the next step of a reader that follows continue, after its generator has ended."""
        if self._follow is not None and not self._follow.is_stopped:
            self._records = self._each()

    @property
    def is_due(self) -> bool:
        """Return whether `take` may return records. It reads no record to compute this."""
        return self._follow is None or self._follow.is_due or self._follow.lists_partitions

    def close(self) -> None:
        """End the read: a loop over the reader ends as if there were no more records.

        May be called from any thread. A loop that waits with `follow=True` ends within 0.1 s. Closing is
        optional: a reader holds no resources.
        """
        self._ranges = []
        self._records = iter(())
        if self._follow is not None:
            self._follow.stop()

    @property
    def position(self) -> dict[int, int]:
        """The next offset of each partition, as of now; it also passes gaps and a cleaned end of the log.

        Save it, and pass it as `start=` to continue. It does not name the topic: after the topic was deleted
        and created again, start from "earliest". The position of a lease is deleted with its topic.
        """
        return dict(self._position)

    def __repr__(self) -> str:
        return f"Reader({self._topic!r}, view={self._view!r}, position={self._position})"

    def _each(self) -> Iterator[Record[K, V]]:
        for range_ in self._turns():
            unread = self._unread(range_)
            if self._is_bulk(unread):
                head, rest = self._split(unread)
                yield from self._few(head)
                if rest.start < rest.end:
                    yield from self._many(rest)
            else:
                yield from self._few(unread)
            self._done(range_)

    def _turns(self) -> Iterable[Range]:
        """Return the ranges to read, in order; each ends with `_done`."""
        return self._ranges if self._follow is None else self._follow

    def _unread(self, range_: Range) -> Range:
        """Return the range from the position on."""
        position = self._position[range_.partition]
        return range_ if position <= range_.start else Range(range_.view, position, range_.end)

    def _done(self, range_: Range) -> None:
        if self._follow is not None and self._position[range_.partition] != range_.start:
            self._follow.restart_timeout()
        self._position[range_.partition] = max(range_.start, range_.end)

    def _few(self, range_: Range) -> Iterator[Record[K, V]]:
        for raw in self._raw(range_):
            record = decoded(raw, self._topic, range_.partition, self._key, self._value)
            self._position[range_.partition] = raw.offset + 1
            yield record

    def _split(self, range_: Range) -> tuple[Range, Range]:
        """Split off the first batch, so that the first records are returned before the kernels are loaded."""
        middle = (
            range_.start if scan.kernels_loaded() else scan.first_end(range_.view, range_.start, range_.end)
        )
        return Range(range_.view, range_.start, middle), Range(range_.view, middle, range_.end)

    def _is_bulk(self, range_: Range) -> bool:
        """Return whether a range is long enough for the kernels, and all of it is wanted."""
        return (
            range_.end - range_.start > 1
            and self._view == "log"
            and self._keys is None
            and not scan.is_short(range_.view, range_.start, range_.end)
        )

    def _many(self, range_: Range) -> Iterator[Record[K, V]]:
        serializers = self._key, self._value
        for chunk, columns in scan.columns(range_.view, range_.start, range_.end, committed=self._committed):
            yield from records_of(columns, chunk, self._topic, range_.partition, serializers, self._position)

    def _raw(self, range_: Range) -> Iterator[RawRecord]:
        if range_.start >= range_.end:
            return iter(())
        if self._view == "log":
            return scan.records(
                range_.view,
                range_.start,
                range_.end,
                keys=self._keys,
                committed=self._committed,
                follows=self._follow is not None,
            )
        from lastword.state.newest import newest

        return newest(
            range_,
            tombstones=self._view == "changes",
            map_bytes=self._map_bytes,
            keys=self._keys,
            committed=self._committed,
        )

    # -------------------------------------------------------------- Arrow

    def arrow(
        self, batch_bytes: int | str = 2 << 20, *, columns: Sequence[str] | None = None
    ) -> pa.RecordBatchReader:
        """Return the remaining records as Arrow batches of about `batch_bytes`: a number, or "2MiB".

        Columns: topic, partition, offset, timestamp (ms, UTC), timestamp_type, key, value, headers; `columns`
        names the ones to make, in their order. Key and value are text if the topic stores `str`, numbers if
        it stores `int32`, `int64` or `float64`, else the stored bytes. After an error, each further step
        raises it; another call of `arrow` continues from `position`.
        """
        from lastword.api.arrow import ArrowForm

        names = self._key.name, self._value.name
        form = ArrowForm(self._topic, *names, None if columns is None else {*columns, "offset"})
        batches = self._batches(form, max(1, parse_bytes(batch_bytes)))
        if columns is None:
            return pa.RecordBatchReader.from_batches(form.schema, _RaisingAgain(batches))
        for column in columns:
            one_of(column, COLUMNS, "column")
        schema = pa.schema([form.schema.field(column) for column in columns])
        chosen = (batch.select(columns) for batch in batches)
        return pa.RecordBatchReader.from_batches(schema, _RaisingAgain(chosen))

    def dataset(self) -> pa.dataset.Dataset:
        """Return the remaining records as a dataset that DuckDB, Polars and DataFusion scan, without a copy.

        A scan reads from `position` on and does not move it. Only the columns that a scan names are made.
        Iterating over the batches of a scan reads the log step by step, so a limit ends the read. Arrow reads
        ahead meanwhile: if the engine is slow, up to 2 GiB (pyarrow 26).

        Raises:
            UsageError: The reader follows the log.
        """
        from lastword.api.dataset import ReaderDataset

        if self._follow is not None:
            raise UsageError(
                "a dataset has an end, and a read with follow=True has none", remedy="omit follow"
            )
        return ReaderDataset(self.arrow().schema, lambda columns: self._again().arrow(columns=columns))

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return a stream of the Arrow PyCapsule protocol: `pl.from_arrow(reader)`, `pa.table(reader)`.

        A query engine asks for several streams in one query, and ends each where it likes. So each stream of
        a bounded read begins at `position`, and none moves it; `arrow` and steps of the reader do. With
        `follow=True` a stream moves it.
        """
        reader = self if self._follow is not None else self._again()
        return reader.arrow().__arrow_c_stream__(requested_schema)

    def _again(self) -> Reader[K, V]:
        """Return a bounded reader of the same records from `position` on."""
        return Reader(
            self._topic,
            [self._unread(range_) for range_ in self._ranges],
            (self._key, self._value),
            view=self._view,
            keys=self._keys,
            map_bytes=self._map_bytes,
            committed=self._committed,
        )

    def _batches(self, form: Any, batch_bytes: int) -> Iterator[pa.RecordBatch]:
        from lastword.api.arrow import joined

        for range_ in self._turns():
            rest = self._unread(range_)
            if self._is_bulk(rest):
                for chunk, columns in scan.columns(
                    rest.view, rest.start, rest.end, committed=self._committed
                ):
                    last = int(columns.offset[-1]) + 1
                    yield from form.of_columns(columns, chunk, rest.partition, batch_bytes)
                    self._position[rest.partition] = last
            elif rest.start < rest.end:
                if self._view == "log" or self._keys is not None:
                    batches = _of_records(form, self._raw(rest), rest.partition, batch_bytes)
                else:
                    batches = self._newest_batches(form, rest, batch_bytes)
                for batch in joined(batches, batch_bytes):
                    yield batch
                    self._position[range_.partition] = batch.column("offset")[-1].as_py() + 1
            self._done(range_)

    def _newest_batches(self, form: ArrowForm, range_: Range, batch_bytes: int) -> Iterator[pa.RecordBatch]:
        """Yield the newest records of a range, of a long one without a Python object for each record."""
        from lastword.state.newest import newest_parts

        for part in newest_parts(
            range_, tombstones=self._view == "changes", map_bytes=self._map_bytes, committed=self._committed
        ):
            if part.columns is not None and part.chunk is not None and len(part.columns):
                yield from form.of_columns(part.columns, part.chunk, range_.partition, batch_bytes)
            yield from _of_records(form, iter(part.records), range_.partition, batch_bytes)


class _RaisingAgain(Iterator["pa.RecordBatch"]):
    """The batches of a generator. After an error each further step raises it, and never seems the end.

    Arrow takes steps ahead in threads of its own, also after a query has ended at a limit. A step that is
    taken while Python ends would block or abort the process. So an exit ends the streams of such threads.
    """

    def __init__(self, items: Iterator[pa.RecordBatch]) -> None:
        self._items = items
        self._error: BaseException | None = None
        self._step = threading.Lock()
        self._ends = False
        self.thread = 0  # that took the last step
        _streams.add(self)

    def __next__(self) -> pa.RecordBatch:
        with self._step:
            self.thread = threading.get_ident()
            if self._error is not None:
                raise self._error
            if self._ends:
                raise StopIteration
            try:
                return next(self._items)
            except StopIteration:
                raise
            except BaseException as error:
                self._error = error
                raise

    def end(self) -> None:
        """Make the next step the last one, and wait for the step that a thread has begun."""
        self._ends = True
        if self._step.acquire(timeout=EXIT_SECONDS):
            self._step.release()


EXIT_SECONDS = 5.0
"""An exit of the process waits this long for a step of a stream."""
LEAVE_SECONDS = 0.2
"""Then it waits this long, so that the thread that has dropped the last stream leaves Python."""
_streams: WeakSet[_RaisingAgain] = WeakSet()


@atexit.register
def _end_streams() -> None:
    """End all streams, and wait for Arrow's threads. It drops a stream that has ended, but not a full one."""
    streams = list(_streams)
    if not streams:
        return
    for each in streams:
        each.end()  # also if the last step was Python's: Arrow may begin to read ahead
    known = {0, *(thread.ident for thread in threading.enumerate())}
    left = WeakSet(each for each in streams if each.thread not in known)
    del streams, each
    for _ in range(100):
        threading.Event().wait(0.005)
        if not len(left):
            break
    threading.Event().wait(LEAVE_SECONDS)


def record_at(
    log: PartitionLog | PartitionView,
    offset: int,
    serializers: tuple[Serializer, Serializer],
    *,
    committed: bool,
) -> Record[Any, Any] | None:
    """Return the record at an offset of a partition; see `Topic.record_at`."""
    log_end = log.log_end
    end = min(log.stable_offset, log_end) if committed else log_end
    wanted = _offset(log, log_end, end, _whole(offset), "offset")
    if wanted >= end:
        return None
    raw = scan.single(log, wanted, committed=committed)
    if raw is None:
        view = log if isinstance(log, PartitionView) else log.view()
        raw = next(scan.records(view, wanted, wanted + 1, committed=committed), None)
    return None if raw is None else decoded(raw, log.topic, log.partition, *serializers)


def records_at(
    log: PartitionLog | PartitionView,
    offsets: Iterable[int],
    serializers: tuple[Serializer, Serializer],
    *,
    committed: bool,
) -> list[Record[Any, Any] | None]:
    """Return the records at many offsets of a partition; see `Topic.records_at`."""
    from lastword.partition.lookups import records_at

    if not isinstance(offsets, Iterable):
        raise UsageError(
            f"offsets={offsets!r} are no offsets", remedy="give a list of ints, or use record_at"
        )
    view = log if isinstance(log, PartitionView) else log.view()
    wanted = [_whole(offset) for offset in offsets]
    for extreme in {min(wanted), max(wanted)} if wanted else ():
        _offset(view, view.log_end, view.log_end, extreme, "offset")
    return [
        None if raw is None else decoded(raw, view.topic, view.partition, *serializers)
        for raw in records_at(view, wanted, committed=committed)
    ]


def _whole(offset: Any) -> int:
    """Return an offset as an int. Names and times, which are bounds of a read, are refused."""
    whole = as_int(offset)
    if whole is None:
        raise UsageError(f"offset={offset!r} is not an offset", remedy="an int; `read` also takes times")
    return whole


def decoded(
    raw: RawRecord, topic: str, partition: int, key_serializer: Serializer, value_serializer: Serializer
) -> Record[Any, Any]:
    """Return a record with its key and value decoded."""
    key, value = raw.key, raw.value
    return Record(
        topic,
        partition,
        raw.offset,
        raw.timestamp,
        TIMESTAMP_TYPES[raw.timestamp_type],
        None if key is None else key_serializer.decode(key, "key"),
        None if value is None else value_serializer.decode(value, "value"),
        raw.headers,
        key is not None,
        value is None,
    )


def _raising(error: Exception) -> Iterator[Record[Any, Any]]:
    """Raise an error at the first step."""
    raise error
    yield  # a generator


def _of_records(
    form: ArrowForm, records: Iterator[RawRecord], partition: int, batch_bytes: int
) -> Iterator[pa.RecordBatch]:
    for rows, _ in in_groups(records, _size_of, batch_bytes):
        yield form.of_records(rows, partition)


def _size_of(record: RawRecord) -> int:
    return 64 + len(record.key or b"") + len(record.value or b"")


def encoded_keys(keys: Any, serializer: Serializer) -> frozenset[bytes] | None:
    """Return `keys=` as bytes. A mapping or text is refused: iterating it is rarely intended."""
    if keys is None:
        return None
    check_keys(keys)
    return frozenset(serializer.encode(key, "key") for key in keys)


def check_keys(keys: Any) -> None:
    """Raise UsageError if `keys` is no collection of keys."""
    if isinstance(keys, (str, bytes, Mapping)) or not isinstance(keys, Iterable):
        raise UsageError(f"keys= is a {type(keys).__name__}", remedy="give a list of keys: keys=[key]")
