"""Small logs for the tests of partition and logdir: one record in each batch unless stated otherwise."""

from __future__ import annotations

import os
from pathlib import Path

from lastword.clock import ManualClock
from lastword.config import TopicConfig
from lastword.files import DEFAULT, Files
from lastword.logdir import LogDirectory
from lastword.partition import PartitionLog, PartitionView, Recovery, open_log
from lastword.records.batch import BatchBuilder, read_records, set_base_offset
from lastword.segment import Segment, build_indexes, names
from lastword.segment.recover import inspect
from lastword.segment.stored import SegmentFiles
from lastword.testing.unsynced import UNSYNCED
from tests.naive.empty_batch import empty_batch

NOW = 1_700_000_000_000
SMALL = TopicConfig(segment_bytes=700, index_interval_bytes=150)
Pair = tuple[int, bytes | None, bytes | None]


def batch(*pairs: tuple[bytes | None, bytes | None], timestamp: int = NOW, producer_id: int = -1) -> bytes:
    """Return a ready batch with offsets from 0."""
    if producer_id >= 0:
        builder = BatchBuilder(producer_id=producer_id, producer_epoch=0, base_sequence=0)
    else:
        builder = BatchBuilder()
    for key, value in pairs:
        builder.append(timestamp, key, value)
    return builder.build(0)


def build_batch(number: int) -> bytes:
    """Return the batch that `fill` appends as number `number`."""
    return batch((b"k%d" % (number % 5), b"value-%04d" % number + b"." * 20), timestamp=NOW + 1000 * number)


def pair(number: int) -> Pair:
    """Return the record of batch `number`."""
    return number, b"k%d" % (number % 5), b"value-%04d" % number + b"." * 20


def fill(log: PartitionLog, count: int) -> None:
    for _ in range(count):
        log.append_batch(build_batch(log.log_end))


def make(path: Path | str) -> str:
    directory = os.path.join(path, "users-0")
    Path(directory).mkdir(parents=True, exist_ok=True)
    return directory


def opened(
    directory: str,
    *,
    files: Files = DEFAULT,
    config: TopicConfig = SMALL,
    clean: bool = False,
    recovery_point: int = 0,
    log_start: int = 0,
    clock: ManualClock | None = None,
) -> tuple[PartitionLog, Recovery]:
    return open_log(
        files,
        directory,
        config,
        clock or ManualClock(NOW),
        recovery_point=recovery_point,
        log_start=log_start,
        clean=clean,
    )


def opened_directory(path: Path, mode: str = "a", files: Files = UNSYNCED) -> LogDirectory:
    return LogDirectory.open(path, mode, files, ManualClock(NOW))


def append(home: LogDirectory, topic: str, partition: int, count: int) -> None:
    fill(home.log(topic, partition), count)


def records(log: PartitionLog | PartitionView) -> list[Pair]:
    """Return all records of the log in reading order."""
    pairs = []
    for segment, header, data in log.batches(log.log_start):
        pairs += [(r.offset, r.key, r.value) for r in read_records(data, header, segment.file, position=0)]
    return pairs


def newest(pairs: list[Pair]) -> dict[bytes | None, Pair]:
    return {key: (offset, key, value) for offset, key, value in pairs}


def compacted(log: PartitionLog, sources: list[Segment], token: str = "x") -> Segment:
    """Write a finished output for `sources` with the newest records of the whole log.

    The last batch stays, empty if necessary.
    """
    kept = {offset for offset, _, _ in newest(records(log)).values()}
    directory = os.path.join(log.directory, names.PRIVATE, f"rewrite-{token}")
    for folder in (os.path.dirname(directory), directory):
        if not log.files.exists(folder):
            log.files.mkdir(folder)
    path = os.path.join(directory, names.segment_file(sources[0].base_offset, names.LOG))
    out = bytearray()
    for source in sources:
        for header in source.headers():
            last = source is sources[-1] and header.end == source.size
            if header.base_offset in kept:
                out += source.read_batch(header)
            elif last:
                out += empty_batch(header)
    with log.files.open_append(path, create=True) as handle:
        handle.append(bytes(out))
        handle.fsync()
    build_indexes(
        log.files, path, sources[0].base_offset, index_interval_bytes=log.config.index_interval_bytes
    )
    return Segment.load(SegmentFiles(log.files, directory, sources[0].base_offset))


def leftovers(directory: str) -> list[str]:
    """Return the file names that must not exist after recovery."""
    return [
        name
        for name in DEFAULT.listdir(directory)
        if name.endswith((".cleaned", ".swap", ".deleted", ".tmp"))
    ]


def indexes_fit(log: PartitionLog) -> bool:
    """Return whether all index files equal what a rebuild would make of the logs."""
    files, interval = log.files, log.config.index_interval_bytes
    for segment in log.segments:
        built = inspect(
            files, log.directory, segment.base_offset, index_interval_bytes=interval, active=segment.active
        )
        if files.read_bytes(segment.stored.path(names.INDEX)) != built.offset_entries:
            return False
        if files.read_bytes(segment.stored.path(names.TIME_INDEX)) != built.time_entries:
            return False
    return True


def at_offset(data: bytes, offset: int, epoch: int = 0) -> bytes:
    moved = bytearray(data)
    set_base_offset(moved, 0, offset, epoch)
    return bytes(moved)
