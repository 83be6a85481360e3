"""Decode any file of a log directory: segments, indexes, snapshots, checkpoints, properties, private files.

`dump(file)` is lazy and takes no lock. Damage is an entry, too (`Problem`); the valid entries after it
follow.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lastword.errors import CorruptFileError, DataError, UsageError
from lastword.files import DEFAULT, Files, real_path
from lastword.ingest.staging import BATCHES
from lastword.logdir.identity import read_meta_properties, read_topic_id
from lastword.logdir.topics import register_limits
from lastword.parse import check_path
from lastword.partition.checkpoint_file import number, read_lines
from lastword.partition.snapshots import ENTRY as SNAPSHOT_ENTRY
from lastword.partition.snapshots import HEADER as SNAPSHOT_HEADER
from lastword.partition.snapshots import decode as decode_snapshot
from lastword.records.batch import BatchHeader
from lastword.records.compression import CODEC_NAMES
from lastword.records.formats import UNKNOWN_COUNT, read_records
from lastword.records.internal import METADATA, InternalRecord, UndecodableError, decode, is_internal
from lastword.records.record import parse_control
from lastword.segment import names
from lastword.segment.indexes import OffsetIndex, TimeIndex, decode_aborted
from lastword.tools.findings import INDEX_CODES, LenientWalk, Problem, bad_records
from lastword.values import Value


@dataclass(frozen=True, slots=True)
class DumpedRecord(Value):
    """One record of a batch, as bytes.

    Attributes:
        control: The type of a control record (`commit`, `abort`, `leader-change`, ...), else None.
        decoded: The fields of a record of one of Kafka's own topics (`__consumer_offsets`,
            `__transaction_state`, `__share_group_state`, `__cluster_metadata`), by Kafka's schemas. None for
            other topics, and for bytes that fit no schema.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    control: str | None = None
    coordinator_epoch: int | None = None
    decoded: InternalRecord | None = None


@dataclass(frozen=True, slots=True)
class Batch(Value):
    """One batch of a segment file: its header's fields, and its records if they were read.

    The number of records in a compressed entry of magic 0 or 1, and its first offset, are inside: without
    its records `count` is None and `base_offset` is the last offset.
    """

    file: str
    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    count: int | None
    magic: int
    codec: str
    crc: int
    crc_ok: bool
    leader_epoch: int
    timestamp_type: str
    base_timestamp: int | None
    delete_horizon_ms: int | None
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool
    control: bool
    records: tuple[DumpedRecord, ...]


@dataclass(frozen=True, slots=True)
class IndexEntry(Value):
    """One entry of an .index (position), .timeindex (timestamp) or .txnindex (fields).

    Fields that a kind does not have are None.
    """

    file: str
    kind: str
    offset: int
    position: int | None = None
    timestamp: int | None = None
    fields: dict[str, int] | None = None


@dataclass(frozen=True, slots=True)
class CheckpointEntry(Value):
    """One line of a checkpoint.

    Topic and partition with an offset, or a leader epoch with its start offset.
    """

    file: str
    topic: str | None
    partition: int | None
    epoch: int | None
    offset: int


@dataclass(frozen=True, slots=True)
class ProducerEntry(Value):
    """One producer of a snapshot."""

    file: str
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    first_open_offset: int


@dataclass(frozen=True, slots=True)
class Property(Value):
    """One name and value of a file of properties, the clean-shutdown file or a private file."""

    file: str
    name: str
    value: str


Entry = Batch | IndexEntry | CheckpointEntry | ProducerEntry | Property | Problem
Dumper = Callable[[Files, str, bool], Iterator[Entry]]


def dump(file: str | os.PathLike[str], *, records: bool = True, files: Files = DEFAULT) -> Iterator[Entry]:
    """Return the entries of one file, in file order; for a private directory, the entries of all its files.

    Damage is an entry, too: a `Problem`.

    Args:
        file: A file of a log directory.
        records: False: batches without their records.
        files: The storage that has the file; the system's unless given.

    Raises:
        UsageError: The path is not a file of a log directory.
    """
    path = check_path("file", file)
    register_limits(os.path.dirname(os.path.dirname(real_path(path))))
    return entries_of(files, path, records=records)


def entries_of(files: Files, path: str, *, records: bool = True) -> Iterator[Entry]:
    """As `dump`, in a log directory whose settings were read already."""
    if files.is_dir(path) and _is_private(path):
        return _directory(files, path, records)
    if files.is_dir(path):
        raise UsageError(
            f"{path} is a directory", remedy=f"give its files: lastword dump {path}/*", file=path
        )
    if not files.exists(path):
        raise UsageError(f"there is no {path}", remedy="check the path", file=path)
    dumper = dumper_of(path)
    if dumper is None:
        raise UsageError(
            f"{path} is not a file of a log directory",
            remedy="segments, indexes, snapshots, checkpoints, properties and private files can be dumped",
            file=path,
        )
    return dumper(files, path, records)


def dumper_of(path: str) -> Dumper | None:
    """Return the function that decodes the file at `path`; None if it is not a file of a log directory.

    A file of an unfinished swap is decoded by its name without the swap's suffix.
    """
    name = os.path.basename(path)
    parsed = names.parse_segment_file(name)
    if parsed is not None:
        return _BY_EXTENSION[parsed.extension]
    if names.is_metadata_snapshot(name) or name.endswith(BATCHES):
        return _segment
    if name in _BY_NAME:
        return _BY_NAME[name]
    from lastword.tools.private_files import reader_of

    return _private if reader_of(path) is not None else None


def _is_private(path: str) -> bool:
    return names.PRIVATE in Path(real_path(path)).parts[-2:]


def _directory(files: Files, path: str, records: bool) -> Iterator[Entry]:
    for name in files.listdir(path):
        yield from entries_of(files, os.path.join(path, name), records=records)


# ---------------------------------------------------------------- segments


def _segment(files: Files, path: str, records: bool) -> Iterator[Entry]:
    problems: list[Problem] = []
    topic = _internal_topic(path)
    with files.open_read(path) as handle:
        walk = LenientWalk(handle, path, handle.size(), _base(path), problems.append)
        for step in walk:
            yield from problems
            problems.clear()
            rows: tuple[DumpedRecord, ...] = ()
            header = step.header
            base_offset, count = header.base_offset, header.count
            if records and step.valid:
                try:
                    rows = tuple(_records(step.data, header, path, topic))
                    if count == UNKNOWN_COUNT:
                        base_offset, count = rows[0].offset, len(rows)
                except DataError as error:
                    problems.append(bad_records(path, header, error))
            yield Batch(
                file=path,
                position=header.position,
                size_bytes=header.size,
                base_offset=base_offset,
                last_offset=header.last_offset,
                count=None if count == UNKNOWN_COUNT else count,
                magic=header.magic,
                codec=codec_name(header.codec),
                crc=header.crc,
                crc_ok=step.valid,
                leader_epoch=header.leader_epoch,
                timestamp_type=_timestamp_type(header),
                base_timestamp=None if header.delete_horizon_ms is not None else header.base_timestamp,
                delete_horizon_ms=header.delete_horizon_ms,
                max_timestamp=header.max_timestamp,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=header.base_sequence,
                transactional=header.transactional,
                control=header.control,
                records=rows,
            )
    yield from problems


def _records(data: bytes, header: BatchHeader, path: str, topic: str | None) -> Iterator[DumpedRecord]:
    for r in read_records(data, header, path, position=0):
        control = epoch = decoded = None
        if header.control:
            parsed = parse_control(r.key, r.value, path, header.position, r.offset)
            control, epoch = parsed.type, parsed.coordinator_epoch
        elif topic is not None:
            with suppress(UndecodableError):  # a newer Kafka or another program wrote it: shown as bytes
                decoded = decode(topic, r.key, r.value)
        yield DumpedRecord(r.offset, r.timestamp, r.key, r.value, r.headers, control, epoch, decoded)


def _internal_topic(path: str) -> str | None:
    """Return the internal topic that a file belongs to, by the name of its directory, or None."""
    if names.is_metadata_snapshot(os.path.basename(path)):
        return METADATA
    parsed = names.parse_partition_dir(Path(path).absolute().parent.name)
    return parsed.topic if parsed is not None and is_internal(parsed.topic) else None


def _timestamp_type(header: BatchHeader) -> str:
    if header.magic == 0:
        return "none"
    return "append" if header.log_append else "create"


def codec_name(codec: int) -> str:
    """Return the name of a codec, or its number."""
    return CODEC_NAMES[codec] if codec < len(CODEC_NAMES) else str(codec)


# ---------------------------------------------------------------- indexes


def _base(path: str) -> int:
    """Return the base offset in a file's name; 0 for a snapshot of the metadata and staged batches."""
    parsed = names.parse_segment_file(os.path.basename(path))
    return 0 if parsed is None else parsed.base_offset


def _offset_index(files: Files, path: str, records: bool) -> Iterator[Entry]:
    index = OffsetIndex(files.read_bytes(path), _base(path), 1 << 62)
    for entry in index.entries():
        yield IndexEntry(path, "offset", entry.offset, position=entry.position)
    if index.damaged:
        yield _bad_index(path, names.INDEX, index.size_bytes)


def _time_index(files: Files, path: str, records: bool) -> Iterator[Entry]:
    index = TimeIndex(files.read_bytes(path), _base(path))
    for entry in index.entries():
        yield IndexEntry(path, "time", entry.offset, timestamp=entry.timestamp)
    if index.damaged:
        yield _bad_index(path, names.TIME_INDEX, index.size_bytes)


def _bad_index(path: str, extension: str, position: int) -> Problem:
    return Problem(path, position, None, INDEX_CODES[extension], "the entries from here on are invalid", True)


def _txn_index(files: Files, path: str) -> Iterator[Entry]:
    for entry in decode_aborted(files.read_bytes(path), path):
        fields = entry._asdict()
        yield IndexEntry(path, "transaction", fields.pop("last_offset"), fields=fields)


# ---------------------------------------------------------------- producer snapshots


def _snapshot(files: Files, path: str) -> Iterator[Entry]:
    data = files.read_bytes(path)
    decode_snapshot(data, path)  # checks the whole file
    for fields in SNAPSHOT_ENTRY.iter_unpack(data[SNAPSHOT_HEADER.size :]):
        yield ProducerEntry(path, *fields)


# ---------------------------------------------------------------- text files


def _checkpoint(files: Files, path: str) -> Iterator[Entry]:
    for topic, partition, offset in read_lines(files, path, 3):
        yield CheckpointEntry(path, topic, number(partition, path), None, number(offset, path))


def _epochs(files: Files, path: str) -> Iterator[Entry]:
    for epoch, offset in read_lines(files, path, 2):
        yield CheckpointEntry(path, None, None, number(epoch, path), number(offset, path))


def _properties(files: Files, path: str, records: bool) -> Iterator[Entry]:
    """Decode lines `name=value` or `name: value`; comments are skipped."""
    for line in files.read_bytes(path).decode("latin-1").splitlines():
        text = line.strip()
        if text and text[0] not in "#!":
            cut = min((text.find(sign) for sign in "=:" if sign in text), default=len(text))
            yield Property(path, text[:cut].strip(), text[cut + 1 :].strip())


def _checked_properties(files: Files, path: str, records: bool) -> Iterator[Entry]:
    """Decode as `_properties`, and report values that a broker would refuse."""
    yield from _properties(files, path, records)
    try:
        if os.path.basename(path) == names.META_PROPERTIES:
            read_meta_properties(files, path)
        else:
            read_topic_id(files, os.path.dirname(path))
    except CorruptFileError as error:
        yield Problem(path, error.position, None, error.code, error.message, False)


def _json(files: Files, path: str, records: bool) -> Iterator[Entry]:
    data = files.read_bytes(path)
    if not data:  # old brokers write an empty file: only its existence counts
        return
    try:
        fields: dict[str, Any] = json.loads(data)
        for name, value in fields.items():
            yield Property(path, name, str(value))
    except (ValueError, AttributeError, RecursionError):
        yield Problem(path, 0, None, "bad-checkpoint", "this is not a JSON object", True)


# ---------------------------------------------------------------- private files


def _private(files: Files, path: str, records: bool) -> Iterator[Entry]:
    from lastword.tools.private_files import problem_of, reader_of

    reader = reader_of(path)
    assert reader is not None
    try:
        for name, value in reader(files, path):
            yield Property(path, name, value)
    except (CorruptFileError, UsageError) as error:
        yield problem_of(path, error)


def _until_damage(code: str, decode: Callable[[Files, str], Iterator[Entry]]) -> Dumper:
    """Return a function that decodes derived data, and ends with a problem at the damage."""

    def dumper(files: Files, path: str, records: bool) -> Iterator[Entry]:
        try:
            yield from decode(files, path)
        except CorruptFileError as error:
            yield Problem(path, error.position, None, code, error.message, True)

    return dumper


_offsets = _until_damage("bad-checkpoint", _checkpoint)
_BY_EXTENSION: dict[str, Dumper] = {
    names.LOG: _segment,
    names.INDEX: _offset_index,
    names.TIME_INDEX: _time_index,
    names.TXN_INDEX: _until_damage(INDEX_CODES[names.TXN_INDEX], _txn_index),
    names.SNAPSHOT: _until_damage("bad-snapshot", _snapshot),
}
_BY_NAME: dict[str, Dumper] = {
    names.RECOVERY_POINTS: _offsets,
    names.LOG_STARTS: _offsets,
    names.HIGH_WATERMARKS: _offsets,
    names.FIRST_DIRTY: _offsets,
    names.LEADER_EPOCHS: _until_damage("bad-checkpoint", _epochs),
    names.PARTITION_METADATA: _checked_properties,
    names.META_PROPERTIES: _checked_properties,
    names.CLEAN_SHUTDOWN: _json,
    names.QUORUM_STATE: _json,
}
