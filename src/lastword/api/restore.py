"""`restore`: write the newest value of every key to a file, and start a state from such a file.

The file holds the result of a read with `view="newest"`, and its end offsets (`state.snapshot_file`). A
state that starts from the file reads only newer records. This is correct while the log continues the file:

- No tombstone above its end was removed from the log, or a deleted key would stay forever.
- The log was not cut below its end, by a truncation or a power cut: other records could have these offsets.
- Records below the log start are removed, so rows of the file below the log start are omitted.

If the first two conditions are not certain, `check` refuses the file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lastword.api.reader import Bounds, ranges
from lastword.api.record import TIMESTAMP_TYPES
from lastword.api.serializers import Serializer, bytes_json, field_bytes, field_writer, json_text, name_json
from lastword.arrow import pa
from lastword.errors import CorruptFileError, ReadOvertakenError, SnapshotRefusedError
from lastword.partition import removal_log
from lastword.partition.moment import Range
from lastword.state.newest import Pairs, newest, newest_parts
from lastword.state.snapshot_file import (
    Reach,
    SnapshotWriter,
    format_of,
    read_batches,
    read_lines,
    read_reach,
)
from lastword.units import format_bytes, format_duration
from lastword.values import Meter, ProgressLike, Value, plural

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lastword.api.arrow import ArrowForm
    from lastword.api.open_dirs import OpenDirs
    from lastword.api.schema import TopicSchema
    from lastword.records.record import RawRecord

BATCH_BYTES = 2 << 20
_LINES_BYTES = 256 << 10
_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class Restored(Value):
    """The restore of one partition: keys and bytes (of keys and values) in memory, and its duration.

    `held_back` names the open transactions above `end_offset`, whose records and later ones are not in a
    file of `LogDir.restore`; None if there are none.
    """

    topic: str
    partition: int
    end_offset: int
    keys: int
    bytes: int
    seconds: float
    held_back: str | None = None

    def __str__(self) -> str:
        return (
            f"{self.topic}-{self.partition}: {plural(self.keys, 'key')}, {format_bytes(self.bytes)}, "
            f"up to offset {self.end_offset} in {self.seconds:.2f} s"
        )


def restore(
    dirs: OpenDirs,
    topic: str,
    partition: int | None,
    to: str,
    end: Bounds,
    progress: ProgressLike | bool | None,
) -> list[Restored]:
    """Write the newest values below `end` to the file `to`; see `LogDir.restore`."""
    selected = [number for _, number in dirs.select(topic, partition)]
    is_table = format_of(to) != ".jsonl"
    own = dirs.views(topic)
    views = {number: own[number] for number in selected}
    config = dirs.config(topic)
    names = config.lastword_key_serializer, config.lastword_value_serializer
    form = None
    if is_table:
        from lastword.api.arrow import ArrowForm

        form = ArrowForm(topic, *names)
    for attempt in range(1, _ATTEMPTS + 1):
        # The number of cuts is read before the files are listed: a later cut then refuses the file.
        cuts = {n: removal_log.load(dirs.files, view.directory).cut_count for n, view in views.items()}
        for view in views.values():
            view.refresh()
        try:
            return _write(
                dirs, topic, ranges(views, "earliest", end), cuts, to, form, names, end == "latest", progress
            )
        except ReadOvertakenError:
            if attempt == _ATTEMPTS:
                raise
    raise AssertionError


def _write(
    dirs: OpenDirs,
    topic: str,
    chosen: list[Range],
    cuts: Mapping[int, int],
    to: str,
    form: ArrowForm | None,
    names: tuple[str | None, str | None],
    complete: bool,
    progress: ProgressLike | bool | None,
) -> list[Restored]:
    """Write the file from open ranges, so that rows and end offsets are of one moment."""
    complete_ms = dirs.clock.now_ms() if complete else -1
    chosen = [range_.settled() for range_ in chosen]
    reach = Reach(
        topic,
        dirs.partitions(topic)[chosen[0].partition].topic_id(topic) if chosen else None,
        {range_.partition: range_.end for range_ in chosen},
        complete_ms,
        {range_.partition: cuts[range_.partition] for range_ in chosen},
    )
    meter = Meter(
        "restore", progress, sum(segment.size for range_ in chosen for segment in range_.view.segments)
    )
    map_bytes = dirs.settings.instance.map_bytes
    restored = []
    with SnapshotWriter(dirs.local_files, to, None if form is None else form.schema, reach) as out:
        for range_ in chosen:
            started = time.monotonic()
            keys = size = 0
            with meter.part(range_.view.segment_set.size) as update:
                if form is None:
                    records = newest(range_, tombstones=False, map_bytes=map_bytes, progress=update)
                    for lines, count, held in _lines(records, topic, range_.partition, names):
                        out.write_lines(lines)
                        keys += count
                        size += held
                else:
                    for batch, held in _batches(range_, form, map_bytes, update):
                        out.write(batch)
                        keys += batch.num_rows
                        size += held
            restored.append(
                Restored(
                    topic,
                    range_.partition,
                    range_.end,
                    keys,
                    size,
                    time.monotonic() - started,
                    range_.view.held_back(range_.end),
                )
            )
    return restored


def _batches(range_: Range, form: Any, map_bytes: int, update: Any) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield batches of the newest values, each with the bytes of its keys and values."""
    import numpy as np

    parts = newest_parts(range_, tombstones=False, map_bytes=map_bytes, progress=update)
    for part in parts:
        if part.columns is not None and len(part.columns):
            for batch in form.of_columns(part.columns, part.chunk, range_.partition, BATCH_BYTES):
                yield batch, 0
            yield (
                batch.slice(0, 0),
                int(
                    np.maximum(part.columns.key_length, 0).sum()
                    + np.maximum(part.columns.value_length, 0).sum()
                ),
            )
        elif part.records:
            size = sum(len(r.key or b"") + len(r.value or b"") for r in part.records)
            yield form.of_records(part.records, range_.partition), size


def _lines(
    records: Iterable[RawRecord], topic: str, partition: int, names: tuple[str | None, str | None]
) -> Iterator[tuple[str, int, int]]:
    """Yield lines as `lastword read --json` prints them, their number, and the bytes of keys and values."""
    key_text, value_text = (field_writer(name) for name in names)
    lines: list[str] = []
    size = 0
    begin = f'{{"type":"record","topic":{json_text(topic)},"partition":{partition},"offset":'
    for record in records:
        key, value, headers = record.key, record.value, "[]"
        if record.headers:
            headers = json_text([[name_json(name), bytes_json(data)] for name, data in record.headers])
        lines.append(
            f'{begin}{record.offset},"timestamp":{record.timestamp},'
            f'"timestamp_type":"{TIMESTAMP_TYPES[record.timestamp_type]}",'
            f'"key":{key_text(key)},"value":{value_text(value)},"headers":{headers}}}\n'
        )
        size += len(key or b"") + len(value or b"")
        if size >= _LINES_BYTES:
            yield "".join(lines), len(lines), size
            lines, size = [], 0
    yield "".join(lines), len(lines), size


# ---------------------------------------------------------------- a state that starts from the file


class SnapshotFile:
    """A restored file that a `State` loads: keys and values as the bytes of their records."""

    def __init__(self, dirs: OpenDirs, path: str, schema: TopicSchema) -> None:
        self._files = dirs.local_files
        self._path = path
        self._dirs = dirs
        self._topic = schema.topic
        self._names = schema.saved
        self._serializers: tuple[Serializer, Serializer] = schema.key, schema.value
        self._reach = read_reach(self._files, path)
        self.ends: Mapping[int, int] = self._reach.end_offsets

    def check(self, ranges: Mapping[int, Range]) -> None:
        """Raise SnapshotRefusedError if the state would differ from a full restore of these ranges."""
        reach, dirs, topic = self._reach, self._dirs, self._topic
        if reach.topic != topic:
            self._refuse(f"it holds {reach.topic}, not {topic}")
        log_dirs = dirs.partitions(topic)
        now_ms = dirs.clock.now_ms()
        for number, offset in reach.end_offsets.items():
            if number not in ranges:
                self._refuse(f"{topic} has no partition {number}")
            range_ = ranges[number]
            view = range_.view
            topic_id = log_dirs[number].topic_id(topic)
            if reach.topic_id != topic_id:
                self._refuse(f"{topic} was deleted and created again since")
            if offset > view.log_end:
                self._refuse(f"it ends at offset {offset} of {topic}-{number}, above log end {view.log_end}")
            if offset < view.log_start:
                self._refuse(f"{topic}-{number} now starts at {view.log_start}, and it ends at {offset}")
            if offset > range_.end:
                self._refuse(
                    f"it ends at offset {offset} of {topic}-{number}, and the state ends at {range_.end}"
                )
            known = removal_log.load(dirs.files, view.directory)
            cut = known.cut_since(reach.cuts[number])
            if offset > cut:
                self._refuse(
                    f"it ends at offset {offset}, and {topic}-{number} was cut at {cut} since, perhaps by a "
                    "power cut: the offsets from there on may have other records"
                )
            if known.up_to > offset:
                gone = "" if known.unknown else f" between {offset} and {known.up_to}"
                self._refuse(f"a tombstone of {topic}-{number}{gone} may be gone")
            self._check_age(view.directory, number, offset, now_ms)

    def _check_age(self, directory: str, number: int, offset: int, now_ms: int) -> None:
        """Refuse an old file if a broker has cleaned the log above its end.

        A broker's cleaner does not record the tombstones that it removes. But a tombstone that was appended
        after the file was made stays for at least `delete.retention.ms`.
        """
        dirs, topic = self._dirs, self._topic
        cleaned = removal_log.first_dirty(dirs.files, directory)
        if cleaned <= offset:
            return
        keeps_ms = dirs.config(topic).delete_retention_ms
        age_ms = now_ms - self._reach.complete_ms
        if self._reach.complete_ms < 0 or age_ms >= keeps_ms:
            age = "of unknown age" if self._reach.complete_ms < 0 else f"{format_duration(age_ms)} old"
            self._refuse(
                f"it is {age}, {topic}-{number} was cleaned up to {cleaned} since, and tombstones are kept "
                f"for {format_duration(keeps_ms)} only (delete.retention.ms)"
            )

    def _refuse(self, why: str) -> None:
        raise SnapshotRefusedError(
            f"{self._path} cannot start a state: {why}",
            remedy="open the state without snapshot=, and restore a new file",
            file=self._path,
        )

    def pairs(self, starts: Mapping[int, int]) -> Iterator[tuple[int, Pairs]]:
        """Yield (partition, keys and values) of the rows from `starts` on.

        Raises:
            CorruptFileError: A row is invalid.
        """
        if not self._files.is_dir(self._path) and format_of(self._path) == ".jsonl":
            for fields in read_lines(self._files, self._path):
                number = self._partition(fields.get("partition"))
                key = field_bytes(fields.get("key"), self._names[0], "key")
                value = field_bytes(fields.get("value"), self._names[1], "value")
                if self._offset(fields.get("offset")) >= starts[number]:
                    yield number, Pairs.of([self._key(key)], [value])
            return
        import numpy as np

        from lastword.api.arrow import binary_column

        for batch in read_batches(self._files, self._path):
            offsets = self._integers(batch, "offset")
            numbers = self._integers(batch, "partition")
            for number in np.unique(numbers).tolist():
                rows = (numbers == number) & (offsets >= starts[self._partition(number)])
                part = batch if rows.all() else batch.filter(pa.array(rows))
                keys = binary_column(self._column(part, "key"), self._serializers[0], "key").to_pylist()
                values = binary_column(self._column(part, "value"), self._serializers[1], "value").to_pylist()
                if None in keys:
                    self._key(None)
                if keys:
                    yield number, Pairs.of(keys, values)

    def _integers(self, batch: pa.RecordBatch, name: str) -> NDArray[np.int64]:
        """Return a column of integers without nulls."""
        column = self._column(batch, name)
        if not pa.types.is_integer(column.type) or column.null_count:
            raise self._damaged(f"has a row whose {name} is not a number")
        numbers: NDArray[np.int64] = column.to_numpy(zero_copy_only=False)
        return numbers

    def _column(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        index = batch.schema.get_field_index(name)  # reads no names: they may be invalid text
        if index < 0:
            raise self._damaged(f"has no column {name}")
        return batch.column(index)

    def _offset(self, offset: Any) -> int:
        if isinstance(offset, bool) or not isinstance(offset, int):
            raise self._damaged("has a row without an offset")
        return offset

    def _damaged(self, why: str) -> CorruptFileError:
        name = os.path.basename(self._path)
        return CorruptFileError(f"{name} {why}", remedy="restore to a new file", file=self._path)

    def _partition(self, number: Any) -> int:
        if number not in self.ends:
            raise self._damaged(f"has a row of partition {number}, and no end offset for it")
        return int(number)

    def _key(self, key: bytes | None) -> bytes:
        if key is None:
            raise self._damaged("has a row without a key")
        return key
