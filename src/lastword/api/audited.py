"""What `audit` takes as delivered: a mapping, a table, a file, or another log."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lastword.api.json_form import field_bytes
from lastword.api.ranges import ranges
from lastword.errors import UsageError
from lastword.state.newest import newest
from lastword.state.snapshot_file import format_of, read_batches, read_lines
from lastword.tools.audit import Delivered, DeliveredKey

if TYPE_CHECKING:
    import pyarrow as pa

    from lastword.api.logs import LogDir
    from lastword.api.serializers import Serializer
    from lastword.api.topic import Topic
    from lastword.files import Files


def delivered_of(given: Any, topic: Topic[Any, Any], files: Files, map_bytes: int) -> Delivered:
    """`given` as the other side of an audit of `topic`.

    A mapping of keys to offsets; an open `LogDir` that has a topic of the same name, or a `Topic`; anything
    with `__arrow_c_stream__` and columns `key` and `offset` (and `partition`, if it knows); the path of a
    `.parquet`, `.arrow` or `.jsonl` file with these columns.
    """
    from lastword.api.logs import LogDir
    from lastword.api.topic import Topic as TopicClass

    if isinstance(given, LogDir):
        given = given.topic(topic.name)
    if isinstance(given, TopicClass):
        return _Log(given._logs, given.name, map_bytes)
    if isinstance(given, Mapping):
        return _Mapping(given, topic.key_serializer)
    if isinstance(given, (str, os.PathLike)):
        path = os.fspath(given)
        if format_of(path) == ".jsonl":
            return _Lines(files, path, topic.serializer_names[0])
        return _Batches(lambda: read_batches(files, path), topic.key_serializer, path)
    if hasattr(given, "__arrow_c_stream__"):
        import pyarrow as pa

        table = pa.table(given)  # kept, for every share of the keys asks for it again
        return _Batches(lambda: iter(table.to_batches(16_384)), topic.key_serializer, "the Arrow data")
    raise UsageError(
        f"delivered is a {type(given).__name__}",
        remedy="a mapping of keys to offsets, a table with columns key and offset, a file, or another log",
    )


class _Mapping:
    def __init__(self, given: Mapping[Any, int], serializer: Serializer) -> None:
        self._given = given
        self._encode = serializer.encode

    @property
    def count(self) -> int:
        return len(self._given)

    def rows(self) -> Iterator[DeliveredKey]:
        for key, offset in self._given.items():
            yield DeliveredKey(self._encode(key, "key"), _offset(offset, "the mapping"))


class _Log:
    """The newest records of another log, deletions included."""

    def __init__(self, logs: LogDir, topic: str, map_bytes: int) -> None:
        self._ranges = ranges(logs._views(topic), "earliest", "latest")
        self._map_bytes = map_bytes

    @property
    def count(self) -> int:
        return sum(one.end - one.start for one in self._ranges)

    def rows(self) -> Iterator[DeliveredKey]:
        for one in self._ranges:
            for record in newest(one, tombstones=True, map_bytes=self._map_bytes):
                if record.key is not None:
                    yield DeliveredKey(record.key, record.offset, one.partition, record.value is None)


class _Batches:
    def __init__(self, batches: Any, serializer: Serializer, what: str) -> None:
        self._batches = batches
        self._serializer = serializer
        self._what = what
        self.count = sum(batch.num_rows for batch in batches())

    def rows(self) -> Iterator[DeliveredKey]:
        from lastword.api.arrow import binary_column

        for batch in self._batches():
            keys = binary_column(self._column(batch, "key"), self._serializer, "key").to_pylist()
            offsets = self._column(batch, "offset").to_pylist()
            known = "partition" in batch.schema.names
            numbers = batch.column("partition").to_pylist() if known else [None] * len(keys)
            for key, offset, number in zip(keys, offsets, numbers, strict=True):
                if key is None:
                    raise UsageError(f"{self._what} has a row without a key", remedy="leave such rows out")
                yield DeliveredKey(key, _offset(offset, self._what), number)

    def _column(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        if name not in batch.schema.names:
            raise UsageError(
                f"{self._what} has no column {name!r}; it has {', '.join(batch.schema.names) or 'none'}",
                remedy="columns key and offset; partition if you know it",
            )
        return batch.column(name)


class _Lines:
    def __init__(self, files: Files, path: str, serializer: str | None) -> None:
        self._files = files
        self._path = path
        self._serializer = serializer
        self.count = sum(1 for _ in read_lines(files, path))

    def rows(self) -> Iterator[DeliveredKey]:
        for fields in read_lines(self._files, self._path):
            for name in ("key", "offset"):
                if fields.get(name) is None:
                    raise UsageError(
                        f"{self._path} has a line without {name!r}", remedy='{"key": ..., "offset": 17}'
                    )
            key = field_bytes(fields["key"], self._serializer, "key")
            assert key is not None  # null was refused above
            yield DeliveredKey(key, _offset(fields["offset"], self._path), fields.get("partition"))


def _offset(given: Any, what: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int):
        raise UsageError(f"{what} gives {given!r} for an offset", remedy="offsets are whole numbers")
    return given
