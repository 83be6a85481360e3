"""The file that `restore` writes: the newest values of a topic as a table, and their end offsets.

`.parquet`, `.arrow` (the IPC file format) or `.jsonl`; or a directory of Parquet files that Spark wrote.
Columns: topic, partition, offset, timestamp (ms, UTC), timestamp_type, key, value, headers (a directory has
no timestamp_type and headers). A state can start from the table because of one JSON object beside the rows, a
`Reach`: in the schema's metadata under `lastword.snapshot`, or as the last line of a `.jsonl` file. A
`.jsonl` file without it was not finished.

Written atomically: a file gets its name when it is complete and durable.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from lastword.arrow import bounded_columns, pa, pq
from lastword.errors import CorruptFileError, FileVanishedError, LastwordError, UsageError
from lastword.files import Files, Handle
from lastword.files.interface import PositionedFile
from lastword.values import Value

FORMATS = (".parquet", ".arrow", ".jsonl")
_METADATA = b"lastword.snapshot"
_MARK = "_lastword_snapshot"  # other readers of the directory skip names that begin with an underscore
_FORMAT = 2


@dataclass(frozen=True, slots=True)
class Reach(Value):
    """The topic and the end offsets of a snapshot.

    Format 1 has no `cuts`, so it cannot be decided whether the log continues such a file; it is refused.

    Attributes:
        topic: The topic.
        topic_id: Its id; None if it has none.
        end_offsets: For each partition, the offset below which its newest values are in the file.
        complete_ms: Time when these offsets were the log ends; -1: they were not, so tombstones above them
            may be older than the file.
        cuts: For each partition, how often the log had been truncated before the read
            (`partition.removal_log`).
    """

    topic: str
    topic_id: str | None
    end_offsets: Mapping[int, int]
    complete_ms: int
    cuts: Mapping[int, int]

    def to_json(self) -> str:
        """Encode as JSON."""
        fields = self.to_dict() | {"format": _FORMAT, "type": "snapshot"}
        return json.dumps(fields, separators=(",", ":"), sort_keys=True)

    @classmethod
    def of_json(cls, text: str | bytes, file: str) -> Reach:
        """Decode; `file` names the file in errors.

        Raises:
            CorruptFileError: the JSON object is damaged.
        """
        try:
            fields = json.loads(text)
            if fields["format"] != _FORMAT:
                raise ValueError(f"format {fields['format']}")
            ends, cuts = (
                {int(number): int(count) for number, count in fields[name].items()}
                for name in ("end_offsets", "cuts")
            )
            if ends.keys() != cuts.keys():
                raise ValueError("end_offsets and cuts of different partitions")
            return cls(fields["topic"], fields["topic_id"], ends, int(fields["complete_ms"]), cuts)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise CorruptFileError(
                f"{file}: its end offsets are not valid ({error})", remedy="restore to a new file", file=file
            ) from None


def mark_directory(files: Files, path: str, reach: Reach) -> None:
    """Make a complete directory of Parquet files a snapshot. Its writer is responsible for durability."""
    files.write_atomic(f"{path}/{_MARK}", reach.to_json().encode())


def format_of(path: str) -> str:
    """Return the extension of a path; UsageError if it is not one of `FORMATS`."""
    extension = os.path.splitext(path.rstrip("/"))[1].lower()  # noqa: PTH122  pathlib takes 14 ms to load
    if extension not in FORMATS:
        raise UsageError(
            f"{path} ends with {extension or 'no extension'}", remedy=f"one of {', '.join(FORMATS)}"
        )
    return extension


def check_place(files: Files, path: str) -> None:
    """Check that a file can be written: make its temporary file and remove it.

    Raises:
        UsageError: There is no such directory, or the path is a directory.
        StorageError: The directory cannot be written.
    """
    parent, temporary = os.path.dirname(path) or ".", f"{path}.part-{os.getpid()}"
    if not files.is_dir(parent):
        raise UsageError(f"there is no directory {parent}", remedy="make it, or name another file")
    if files.is_dir(path):
        raise UsageError(f"{path} is a directory", remedy="name another file")
    files.unlink(temporary, missing_ok=True)
    files.open_append(temporary, create=True, exclusive=True).close()
    files.unlink(temporary)


GROUP_BYTES = 2 << 20
GROUP_BATCHES = 256  # each takes several KiB, also with a few rows
"""Rows of a snapshot are written together up to one of these limits."""


class SnapshotWriter:
    """Writes a snapshot to a file beside `path` and renames it.

    A context manager: a block that raises leaves no file.

    Args:
        files: The storage.
        path: The target.
        schema: Schema of the rows; None for `.jsonl`.
        reach: Topic and end offsets.
    """

    def __init__(self, files: Files, path: str, schema: pa.Schema | None, reach: Reach) -> None:
        self._files = files
        self._path = path
        self._temporary = f"{path}.part-{os.getpid()}"
        self._format = format_of(path)
        self._schema = schema
        self._reach = reach
        self._writer: Any = None
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0

    def __enter__(self) -> SnapshotWriter:
        check_place(self._files, self._path)
        self._handle = self._files.open_append(self._temporary, create=True, exclusive=True)
        self._sink = _ArrowSink(self._handle.append)
        if self._schema is not None:
            self._schema = self._schema.with_metadata({_METADATA: self._reach.to_json().encode()})
            if self._format == ".parquet":
                self._writer = pq.ParquetWriter(
                    self._sink,
                    self._schema,
                    compression="zstd",
                    write_page_checksum=True,
                    write_statistics=bounded_columns(self._schema),
                )
            else:
                self._writer = pa.ipc.new_file(self._sink, self._schema)
        return self

    def write_lines(self, lines: str) -> None:
        """Write rows of a `.jsonl` file, each with a newline at its end."""
        self._sink.write(lines.encode())

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows. Small batches are written together: Parquet keeps several KiB in memory for each."""
        assert self._schema is not None
        if batch.num_rows:
            self._waiting.append(batch.replace_schema_metadata(self._schema.metadata))
            self._waiting_bytes += batch.nbytes
            if self._waiting_bytes >= GROUP_BYTES or len(self._waiting) >= GROUP_BATCHES:
                self._write_waiting()

    def _write_waiting(self) -> None:
        if self._waiting:
            for batch in pa.Table.from_batches(self._waiting).combine_chunks().to_batches():
                self._writer.write_batch(batch)
        self._waiting, self._waiting_bytes = [], 0

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._handle.close()
            with suppress(LastwordError):
                self._files.unlink(self._temporary, missing_ok=True)

    def _finish(self) -> None:
        if self._writer is None:
            self._sink.write(self._reach.to_json().encode() + b"\n")
        else:
            self._write_waiting()
            self._writer.close()
        self._sink.drain()
        self._handle.fsync()
        self._files.rename(self._temporary, self._path)
        self._files.fsync_dir(os.path.dirname(self._path) or ".")


class _ArrowSink(io.RawIOBase):
    """An append-only file for Arrow's writers. Buffers small writes."""

    _GATHERED = 1 << 20

    def __init__(self, append: Callable[[bytes], int]) -> None:
        super().__init__()
        self._append = append
        self._pieces: list[bytes] = []
        self._held = 0
        self._size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._pieces.append(piece)
        self._held += len(piece)
        self._size += len(piece)
        if self._held >= self._GATHERED:
            self.drain()
        return len(piece)

    def tell(self) -> int:
        return self._size

    def drain(self) -> None:
        if self._pieces:
            self._append(b"".join(self._pieces))
            self._pieces, self._held = [], 0


# ---------------------------------------------------------------- reading


def read_reach(files: Files, path: str) -> Reach:
    """Read topic and end offsets of a snapshot.

    Raises:
        UsageError: the table is not a snapshot.
        CorruptFileError: the snapshot is damaged.
    """
    if files.is_dir(path):
        mark = f"{path}/{_MARK}"
        if not files.exists(mark):
            raise UsageError(
                f"{path} is no snapshot: it has no {_MARK}", remedy="lastword.spark.restore(..., to=)"
            )
        return Reach.of_json(files.read_bytes(mark), path)
    if format_of(path) == ".jsonl":
        return Reach.of_json(_last_line(files, path), path)
    metadata = _opened(files, path)[0].metadata or {}
    if _METADATA not in metadata:
        raise UsageError(
            f"{path} was not written by `restore`: it has no end offsets",
            remedy="`lastword restore DIR TOPIC OUT` writes such files",
        )
    return Reach.of_json(metadata[_METADATA], path)


def read_batches(files: Files, path: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a `.parquet` or `.arrow` file, or of a directory of Parquet files, in batches."""
    if not files.is_dir(path):
        yield from _opened(files, path)[1]
        return
    for name in sorted(files.listdir(path)):
        if name.endswith(".parquet") and not name.startswith(("_", ".")):
            yield from _opened(files, f"{path}/{name}")[1]


def read_lines(files: Files, path: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a `.jsonl` file: its objects of type `record`."""
    for number, line in enumerate(_lines(files, path), 1):
        try:
            fields = json.loads(line)
            if not isinstance(fields, dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError) as error:
            raise CorruptFileError(
                f"{path} line {number} is not a JSON object: {error}",
                remedy="restore to a new file",
                file=path,
            ) from None
        if fields.get("type", "record") == "record":
            yield fields


def _opened(files: Files, path: str) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    with _damage(path):
        handle = _open(files, path)
        source = pa.PythonFile(PositionedFile(handle.size(), handle.pread, handle.close), mode="r")
        if format_of(path) == ".parquet":
            table = pq.ParquetFile(source, page_checksum_verification=True)
            return table.schema_arrow, _checked(path, table.iter_batches(batch_size=16_384))
        stream = pa.ipc.open_file(source)
        return stream.schema, _checked(path, (stream.get_batch(i) for i in range(stream.num_record_batches)))


def _checked(path: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with _damage(path):
        for batch in batches:
            batch.validate(full=True)
            yield batch


@contextmanager
def _damage(path: str) -> Iterator[None]:
    """Turn Arrow's errors about invalid bytes, most of which are an OSError, into CorruptFileError."""
    try:
        yield
    except LastwordError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CorruptFileError(
            f"{path} is no {format_of(path)[1:]} file: {str(error).partition(chr(10))[0]}",
            remedy="restore to a new file",
            file=path,
        ) from None


def _open(files: Files, path: str) -> Handle:
    try:
        return files.open_read(path)
    except FileVanishedError:
        raise UsageError(
            f"there is no file {path}",
            remedy="check the path; `lastword restore DIR TOPIC OUT` writes such files",
        ) from None


_PIECE = 1 << 20


def _lines(files: Files, path: str) -> Iterator[bytes]:
    with _open(files, path) as handle:
        rest = b""
        position = 0
        while piece := handle.pread(_PIECE, position):
            position += len(piece)
            *whole, rest = (rest + piece).split(b"\n")
            yield from (line for line in whole if line.strip())
        if rest.strip():
            yield rest


def _last_line(files: Files, path: str) -> bytes:
    with _open(files, path) as handle:
        size, taken = handle.size(), _PIECE
        while True:  # the line names every partition
            tail = handle.pread(min(size, taken), max(0, size - taken)).rstrip(b"\n")
            if taken >= size or b"\n" in tail:
                return tail.rpartition(b"\n")[2]
            taken *= 2
