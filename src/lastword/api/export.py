"""`Topic.export`: bring a table of a lake to the newest values of a topic; `lastword.lake` has the work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

import numpy as np

from lastword import metrics
from lastword.api.arrow import ArrowForm
from lastword.api.reader import ranges
from lastword.arrow import pa
from lastword.errors import (
    InvalidSettingError,
    LastwordError,
    TableRefusedError,
    UsageError,
    ValueFormatError,
)
from lastword.files import DEFAULT, Files
from lastword.lake.directory import DirectoryStore
from lastword.lake.export import (
    LAYOUTS,
    Exported,
    LivePartition,
    Moment,
    TableForm,
    Work,
    Writing,
    delta_schema,
    export,
)
from lastword.lake.table import Table
from lastword.logdir.topics import check_outside
from lastword.objects import ObjectStore, is_url, open_store, probe
from lastword.parse import check_path, one_of
from lastword.partition import removal_log
from lastword.records.columns import microseconds
from lastword.state.changes import KeptScan, newer_parts
from lastword.value_formats import FORMATS, OPTIONS, format_of
from lastword.value_formats.ddl import parse_ddl
from lastword.values import Meter, ProgressLike
from lastword.wire import INT64_MAX

if TYPE_CHECKING:
    from lastword.api.open_dirs import OpenDirs
    from lastword.lake.vectors import Offsets
    from lastword.partition.moment import Range
    from lastword.partition.removal_log import RemovalLog
    from lastword.value_formats.interface import ValueFormat

KIND = "delta:"
_EXAMPLE = "give a type in DDL, such as: city STRING, population BIGINT"
_OWN_OPTIONS = ("cache", "cache_bytes", "max_retries", "retry_timeout", "commit_attempts")
"""Options of a store that deltalake does not have."""
_probed: set[str] = set()
"""URLs whose stores enforce conditions, as this process has seen."""


FormatLike = str | tuple[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Columns:
    """The formats of keys and values, and the columns that follow from them. It can be sent to a task.

    Attributes:
        topic: The topic.
        names: The serializers of keys and values.
        value_format: The name of a format, or a pair of its name and its options; None: as the serializer
            says.
        value_schema: The type of the column `value`, as text or in Arrow; None: as the format says.
    """

    topic: str
    names: tuple[str | None, str | None]
    value_format: FormatLike | None = None
    value_schema: Any = None


def export_topic(
    dirs: OpenDirs,
    columns: Columns,
    to: Any,
    *,
    layout: str,
    dry_run: bool,
    storage_options: Mapping[str, str] | None,
    progress: ProgressLike | bool | None,
    work: Callable[[Writing, Callable[[int], None]], Work] | None = None,
) -> Exported:
    """Export a topic; see `Topic.export`.

    `work`: as in `lake.export.export`. Its second argument is a function to call with each partition that is
    done, for the progress.
    """
    place = _place(to, storage_options, dirs)
    one_of(layout, LAYOUTS, "layout")
    form = RowForm(columns)
    delta_schema(form.schema)  # a package that is missing is named before the log is read
    source = Source(dirs, form, progress)
    began = dirs.clock.monotonic()
    space_target = dirs.settings.instance.lastword_space_target
    with store_at(place, storage_options, dirs.local_files) as store:
        try:
            result = export(
                Table(store),
                source.moment,
                TableForm(columns.topic, form.schema, layout, space_target, form.format_name),
                clock=dirs.clock,
                dry_run=dry_run,
                before_write=partial(_check_store, store, dirs),
                checkpoint=partial(_checkpoint, store.url, storage_options or {}),
                work=None if work is None else (lambda writing: work(writing, source.passed)),
            )
        except LastwordError:
            metrics.EXPORTS.add(1, columns.topic, "failed")
            raise
    source.finish()
    if not dry_run:
        _count(result, dirs.clock.now_ms(), dirs.clock.monotonic() - began)
    return result


def _count(result: Exported, now_ms: int, seconds: float) -> None:
    topic = result.topic
    metrics.EXPORTS.add(1, topic, "unchanged" if result.version is None else "committed")
    rows = {"added": result.added_rows, "removed": result.removed_rows, "rewritten": result.rewritten_rows}
    for change, count in rows.items():
        metrics.EXPORT_ROWS.add(count, topic, change)
    metrics.EXPORT_WRITTEN_BYTES.add(result.written_bytes, topic)
    metrics.EXPORT_SECONDS.observe(seconds, topic)
    metrics.EXPORT_LAST_SUCCESS.set(now_ms / 1000, topic)


def _place(to: Any, options: Mapping[str, str] | None, dirs: OpenDirs) -> str:
    """Return the path or URL of a table, checked."""
    text = check_path("to", to)
    if not text.startswith(KIND) or text == KIND:
        raise UsageError(f"to={text!r} names no table", remedy="give delta:PATH or delta:URL")
    place = text.removeprefix(KIND)
    if is_url(place):
        _check_escapes(place)
        return place
    if options:
        raise UsageError("storage options are for a table in a bucket", remedy="omit them for a directory")
    path = check_path("to", place)
    _check_directory(path, dirs)
    return path


def store_at(place: str, options: Mapping[str, str] | None, files: Files = DEFAULT) -> ObjectStore:
    """Open the store of a table at a path or URL."""
    return open_store(place, options) if is_url(place) else DirectoryStore(files, place)


def _check_directory(path: str, dirs: OpenDirs) -> None:
    """Raise UsageError for a directory in a log directory or around the log, or whose path readers decode."""
    real = Path(path).resolve()
    _check_escapes(str(real))
    check_outside(dirs.local_files, path)
    for log_dir in (Path(each).resolve() for each in dirs.paths if not is_url(each)):
        if real.is_relative_to(log_dir):  # it may have no `meta.properties`
            raise UsageError(
                f"{path} is in the log directory {log_dir}", remedy="choose a path outside of it"
            )
        if log_dir.is_relative_to(real):
            raise UsageError(
                f"the log directory {log_dir} is in {path}, and a VACUUM of the table would remove the log",
                remedy="choose a directory of the table's own",
            )


def _check_escapes(place: str) -> None:
    """Raise UsageError for a path that deltalake takes for another one: `a%20b` for `a b`."""
    if unquote(place) != place or "\\" in place:
        raise UsageError(
            f"{place} has a percent sign with two digits, or a backslash: readers of Delta decode it",
            remedy="choose another path",
        )


def _checkpoint(place: str, options: Mapping[str, str]) -> None:
    if place.startswith("memory:"):  # another library does not see the memory of this one
        return
    from deltalake import DeltaTable

    given = {name: value for name, value in options.items() if name.lower() not in _OWN_OPTIONS}
    if any(value.startswith("http://") for value in given.values()):
        given.setdefault("allow_http", "true")
    DeltaTable(place, storage_options=given).create_checkpoint()


def _check_store(store: ObjectStore, dirs: OpenDirs) -> None:
    """Raise UnconditionalStoreError before the first write to a store that does not enforce conditions."""
    if is_url(store.url) and store.url not in _probed:
        probe(store, dirs.clock)
        _probed.add(store.url)


# ---------------------------------------------------------------- one moment of the log


class Source:
    """The log of a topic, from which each attempt of an export reads one moment."""

    def __init__(self, dirs: OpenDirs, form: RowForm, progress: ProgressLike | bool | None = None) -> None:
        self._dirs = dirs
        self._topic = form.topic
        self._form = form
        dirs.refresh()
        sizes = {number: view.segment_set.size for number, view in dirs.views(form.topic).items()}
        self._meter = Meter("export", progress, sum(sizes.values()))
        self._unread = sizes

    def finish(self) -> None:
        """Report the partitions of which the table had everything as done."""
        for number in [*self._unread]:
            self.passed(number)

    def passed(self, number: int) -> None:
        """Report a partition as done, if its records were not read here."""
        with self._meter.part(self._unread.pop(number, 0)):
            pass

    def moment(self, partition: int | None = None) -> Moment:
        """Return the topic, or a partition of it, as it is now, with its files held open."""
        dirs, topic = self._dirs, self._topic
        dirs.refresh()
        topic_id = dirs.topic_id(topic)
        views = dict(dirs.views(topic))
        if partition is not None:
            views = {partition: views[partition]}
        if topic_id is None:
            raise TableRefusedError(
                f"{topic} has no topic id, by which an export would notice that it was made again",
                remedy="open the directory with a broker of Kafka 2.8 or newer, or copy the topic",
            )
        # The number of cuts is read before the files are listed: a later cut then counts at the next export.
        removals = {n: removal_log.load(dirs.files, view.directory) for n, view in views.items()}
        for view in views.values():
            view.refresh()
        settled = [range_.settled() for range_ in ranges(views, "earliest", "latest")]
        return Moment(
            topic_id, [self._partition(each, topic_id, removals[each.partition]) for each in settled]
        )

    def _partition(self, range_: Range, topic_id: str, removed: RemovalLog) -> LivePartition:
        return LivePartition(
            range_.partition,
            range_.start,
            range_.end,
            removed.cut_count,
            (lambda seen: 0) if removed.unknown else removed.cut_since,
            partial(self._newest, range_, (topic_id, removed.cut_count)),
        )

    def _newest(
        self, range_: Range, log: tuple[str, int], since: int, known: Offsets
    ) -> Iterator[pa.RecordBatch]:
        """Yield new rows. The scan is kept for the next export, if those kept do not fill a key map."""
        scans, map_bytes = self._dirs.scans, self._dirs.settings.instance.map_bytes
        name = self._topic, range_.partition
        kept = scans.pop(name, None)
        if kept is None or kept.log != log or not since:
            kept = KeptScan(log)
        with self._meter.part(self._unread.pop(range_.partition, 0)) as update:
            yield from self._form.newer_rows(range_, since, known, map_bytes, kept, update)
        if kept.memory_bytes + sum(scan.memory_bytes for scan in [*scans.values()]) <= map_bytes:
            scans[name] = kept


class RowForm:
    """The columns of a table and the rows of records: key, value, partition, offset, timestamp."""

    def __init__(self, columns: Columns) -> None:
        self.topic = topic = columns.topic
        self._format, kind = _format(topic, columns.value_format, columns.value_schema)
        self.format_name = None if self._format is None else self._format.name
        key, value = columns.names[0], columns.names[1] if self._format is None else "bytes"
        self._json = {column for column, name in (("key", key), ("value", value)) if name == "json"}
        self._form = ArrowForm(topic, key, value)
        types = {column: self._form.schema.field(column).type for column in ("key", "value")}
        types |= dict.fromkeys(self._json, pa.string())
        if kind is not None:
            types["value"] = kind
        self.schema = pa.schema(
            [
                *types.items(),
                ("partition", pa.int32()),
                ("offset", pa.int64()),
                ("timestamp", pa.timestamp("us", tz="UTC")),
            ]
        )

    def newer_rows(
        self,
        range_: Range,
        since: int,
        known: Offsets,
        map_bytes: int,
        kept: KeptScan,
        progress: Callable[[int, int], None] | None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of live records from `since` on; see `LivePartition.newest`."""
        for records in newer_parts(range_, since, known, map_bytes=map_bytes, kept=kept, progress=progress):
            if not len(records):
                continue
            if records.columns is None or records.chunk is None:
                yield self._rows(self._form.of_records(records.records, range_.partition))
            else:
                for batch in self._form.of_columns(
                    records.columns, records.chunk, range_.partition, INT64_MAX
                ):
                    yield self._rows(batch)

    def _rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return records as rows of the table."""
        values = {name: batch.column(name) for name in self.schema.names}
        for name in self._json:
            values[name] = values[name].cast(pa.string())
        times = values["timestamp"]
        micros = microseconds(np.asarray(times.cast(pa.int64()).fill_null(0)))
        values["timestamp"] = pa.array(micros, mask=np.asarray(times.is_null())).cast(
            self.schema.field("timestamp").type
        )
        if self._format is not None:
            values["value"] = self._decoded(batch, values["value"])
        return pa.RecordBatch.from_arrays([values[name] for name in self.schema.names], schema=self.schema)

    def _decoded(self, batch: pa.RecordBatch, raw: pa.Array) -> pa.Array:
        assert self._format is not None
        result = self._format.decode(raw, self.schema.field("value").type)
        if result.problems:
            row, reason = min(result.problems.items())
            name = f"{self.topic}-{batch.column('partition')[row].as_py()}"
            offset = batch.column("offset")[row].as_py()
            error = ValueFormatError.at(name, offset, "value", self._format.name, reason)
            error.remedy = "correct value_format or value_schema, or write the key again"
            raise error
        return result.column


def _format(
    topic: str, given: FormatLike | None, schema: Any
) -> tuple[ValueFormat | None, pa.DataType | None]:
    """Return the format of values and the type of the column; (None, None) without a format."""
    if given is None:
        if schema is not None:
            raise UsageError("value_schema needs value_format", remedy=f"name one of {', '.join(FORMATS)}")
        return None, None
    is_pair = isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], Mapping)
    if not is_pair and not isinstance(given, str):
        raise UsageError(
            f"value_format={given!r} is not a name, and not a pair of a name and its options",
            remedy='give value_format="json", or value_format=("avro", {"avroSchema": "user.avsc"})',
        )
    name, options = cast(tuple[str, Mapping[str, str]], given if is_pair else (given, {}))
    one_of(name, FORMATS, "value_format")
    known = tuple(option for option, formats in OPTIONS.items() if name in formats)
    for option in options:
        if not known:
            raise UsageError(f"value_format {name} has no option {option!r}", remedy="leave it out")
        one_of(option, known, f"option of value_format {name}")
    try:
        value_format = format_of(name, options, f"{topic}-value")
    except ValueError as error:
        raise InvalidSettingError(f"value_format {name}: {error}", remedy="correct its options") from None
    try:
        kind = value_format.own_type() if schema is None else _type_of(schema)
    except ValueError as error:
        raise InvalidSettingError(f"value_schema: {error}", remedy=_EXAMPLE) from None
    if kind is None:
        raise UsageError(f"value_format {name} gives no type", remedy=_EXAMPLE)
    problem = value_format.problem(kind, writing=False) or _not_in_delta(kind)
    if problem is not None:
        raise InvalidSettingError(f"value_schema {kind} in {name}: {problem}", remedy="give another type")
    return value_format, kind


def _type_of(schema: Any) -> pa.DataType:
    """Return the type that a caller gives: a type or schema of Arrow, or DDL."""
    if isinstance(schema, str):
        return parse_ddl(schema)
    if not isinstance(schema, pa.Schema | pa.DataType):
        raise ValueError(f"{schema!r} is no type")
    return pa.struct(list(schema)) if isinstance(schema, pa.Schema) else schema


def _not_in_delta(kind: pa.DataType) -> str | None:
    """Return the reason why a type needs a feature of the table that exports do not add, or None."""
    from lastword.value_formats.interface import first_problem
    from lastword.value_formats.variant import is_variant

    def refuse(part: pa.DataType) -> str | None:
        if pa.types.is_timestamp(part) and part.tz is None:
            return "a timestamp without a time zone needs a feature (timestampNtz) that few readers have"
        if pa.types.is_struct(part) and not part.num_fields:
            return "a struct without fields cannot be written"
        return "VARIANT needs a feature that few readers have" if is_variant(part) else None

    return first_problem(kind, refuse)
