"""`Reader`: records out of a topic, one after another or as Arrow batches.

A read is bounded: it ends by itself, at the log end that it saw first; one of newest values (`view="latest"`,
`"changes"`) at that end or, where a cleaning was faster, at a later one. Gaps in offsets are normal, for
compaction leaves them; a start below the log start is not, for then records are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, cast

from lastword.api.record import TIMESTAMP_TYPES, K, Record, V
from lastword.config.instance import DEFAULT_MAP_BYTES
from lastword.errors import UsageError, nearest
from lastword.partition import scan
from lastword.partition.moment import Range
from lastword.records.record import RawRecord
from lastword.values import Handle

if TYPE_CHECKING:
    import pyarrow as pa

    from lastword.api.follow import Follow
    from lastword.api.serializers import Serializer

View = Literal["log", "latest", "changes"]
Isolation = Literal["read_committed", "read_uncommitted"]
VIEWS = ("log", "latest", "changes")
READ_COMMITTED: Isolation = "read_committed"
ISOLATIONS = (READ_COMMITTED, "read_uncommitted")


def check_view(view: str) -> View:
    return cast("View", _one_of(view, VIEWS, "view"))


def check_isolation(isolation: str) -> Isolation:
    return cast("Isolation", _one_of(isolation, ISOLATIONS, "isolation"))


def _one_of(given: str, known: tuple[str, ...], what: str) -> str:
    if given not in known:
        near = nearest(given, known) if isinstance(given, str) else None
        raise UsageError(
            f"unknown {what} {given!r}" + (f"; nearest: {near}" if near else ""),
            remedy=f"one of {', '.join(known)}",
        )
    return given


class Reader(Handle, Iterator[Record[K, V]], Generic[K, V]):
    """The records of one `Topic.read`, partition after partition, in the order of offsets.

    position    per partition the next offset to read; it moves over gaps and past a cleaned tail. Save it,
                and pass it back as `start=` to go on.

    For use from one thread; `close` may come from another. Reads nothing before it is asked, and ends at the
    log end that `read` saw; with `view="latest"` or `"changes"` at a later one where a cleaning has been
    faster. One that follows goes on from there. Whatever stops it, a Ctrl-C too, `position` is behind the
    last record that it gave out.
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
        self.position: dict[int, int] = {one.partition: one.start for one in ranges}
        self._topic = topic
        self._ranges = ranges
        self._key, self._value = serializers
        self._view = check_view(view)
        self._keys = keys
        self._map_bytes = map_bytes
        self._committed = committed
        self._follow = None if follow is None else follow(self.position)
        self._records = self._each()

    def __iter__(self) -> Reader[K, V]:
        return self

    def __next__(self) -> Record[K, V]:
        return next(self._records)

    def close(self) -> None:
        """End the read, from any thread: a loop over it ends as if there were no more records.

        A loop that waits for records with `follow=True` ends within 0.1 s. `position` stays behind the last
        record that was given out. Nothing needs this: a reader holds nothing that must be given back.
        """
        self._records = iter(())
        if self._follow is not None:
            self._follow.stop()

    def __enter__(self) -> Reader[K, V]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Reader({self._topic!r}, view={self._view!r}, position={self.position})"

    def _each(self) -> Iterator[Record[K, V]]:
        for one in self._turns():
            if self._is_bulk(one, one.start):
                head, rest = self._split(one)
                yield from self._few(head)
                if rest.start < rest.end:
                    yield from self._many(rest)
            else:
                yield from self._few(one)
            self._done(one)

    def _turns(self) -> Iterable[Range]:
        """What is to be read, in order; a range ends with `_done`."""
        return self._ranges if self._follow is None else self._follow

    def _done(self, one: Range) -> None:
        if self._follow is not None and self.position[one.partition] != one.start:
            self._follow.heard()
        self.position[one.partition] = max(one.start, one.end)

    def _few(self, one: Range) -> Iterator[Record[K, V]]:
        for raw in self._raw(one):
            record = self._record(one.partition, raw)
            self.position[one.partition] = raw.offset + 1
            yield record

    def _split(self, one: Range) -> tuple[Range, Range]:
        """The first batch of much, and the rest: the first records are there before the kernels are loaded,
        and who wants no more never loads them.
        """
        middle = one.start if scan.kernels_loaded() else scan.first_end(one.view, one.start, one.end)
        return Range(one.view, one.start, middle), Range(one.view, middle, one.end)

    def _is_bulk(self, one: Range, start: int) -> bool:
        """Is what is left so much that kernels decode it, and is all of it wanted?"""
        return (
            start < one.end
            and self._view == "log"
            and self._keys is None
            and not scan.is_short(one.view, start, one.end)
        )

    def _many(self, one: Range) -> Iterator[Record[K, V]]:
        from lastword.api.rows import records_of

        serializers = self._key, self._value
        for chunk, columns in scan.columns(one.view, one.start, one.end, committed=self._committed):
            yield from records_of(columns, chunk, self._topic, one.partition, serializers, self.position)

    def _raw(self, one: Range) -> Iterator[RawRecord]:
        if one.start >= one.end:
            return iter(())
        if self._view == "log":
            return scan.records(one.view, one.start, one.end, keys=self._keys, committed=self._committed)
        from lastword.state.newest import newest

        return newest(
            one,
            tombstones=self._view == "changes",
            map_bytes=self._map_bytes,
            keys=self._keys,
            committed=self._committed,
        )

    def _record(self, partition: int, raw: RawRecord) -> Record[K, V]:
        key, value = raw.key, raw.value
        return Record(
            self._topic,
            partition,
            raw.offset,
            raw.timestamp,
            TIMESTAMP_TYPES[raw.timestamp_type],
            None if key is None else self._key.decode(key, "key"),
            None if value is None else self._value.decode(value, "value"),
            raw.headers,
            key is not None,
            value is None,
        )

    # -------------------------------------------------------------- Arrow

    def arrow(self, batch_bytes: int = 2 << 20) -> pa.RecordBatchReader:
        """The records that are left, as Arrow batches of about `batch_bytes`.

        Columns: topic, partition, offset, timestamp (ms, UTC), timestamp_type, key, value, headers. Key
        and value are text if the topic stores `str`, numbers if it stores `int32`, `int64` or `float64`,
        else binary as they lie there.
        """
        import pyarrow as pa

        from lastword.api.arrow import ArrowForm

        form = ArrowForm(self._topic, self._key.name, self._value.name)
        return pa.RecordBatchReader.from_batches(form.schema, self._batches(form, max(1, batch_bytes)))

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The Arrow PyCapsule protocol: `pl.from_arrow(reader)`, `pa.table(reader)`."""
        return self.arrow().__arrow_c_stream__(requested_schema)

    def _batches(self, form: Any, batch_bytes: int) -> Iterator[pa.RecordBatch]:
        for one in self._turns():
            start = self.position[one.partition]
            if self._is_bulk(one, start):
                for chunk, columns in scan.columns(one.view, start, one.end, committed=self._committed):
                    last = int(columns.offset[-1]) + 1
                    yield from form.of_columns(columns, chunk, one.partition, batch_bytes)
                    self.position[one.partition] = last
            elif start < one.end:
                rest = one if start == one.start else Range(one.view, start, one.end)
                for rows in _pieces(self._raw(rest), batch_bytes):
                    yield form.of_records(rows, one.partition)
                    self.position[one.partition] = rows[-1].offset + 1
            self._done(one)


def _pieces(records: Iterator[RawRecord], batch_bytes: int) -> Iterator[list[RawRecord]]:
    rows: list[RawRecord] = []
    size = 0
    for raw in records:
        rows.append(raw)
        size += 64 + len(raw.key or b"") + len(raw.value or b"")
        if size >= batch_bytes:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


def encoded_keys(keys: Any, serializer: Serializer) -> frozenset[bytes] | None:
    """`keys=` as bytes. A mapping or text is refused: both iterate, and neither is meant."""
    if keys is None:
        return None
    if isinstance(keys, (str, bytes, Mapping)):
        raise UsageError(f"keys= is a {type(keys).__name__}", remedy="give a list of keys: keys=[key]")
    return frozenset(serializer.encode(key, "key") for key in keys)
