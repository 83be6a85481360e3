"""Segments built from batches and read back, to test the rewrite without a log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lastword.cleaner.engine.build import built_group
from lastword.cleaner.engine.certificate import certify
from lastword.cleaner.engine.output import OutputSegment
from lastword.cleaner.engine.report import BuiltGroup
from lastword.cleaner.engine.rewrite import rewrite
from lastword.cleaner.policy import groups
from lastword.cleaner.policy.groups import OutputLimits
from lastword.cleaner.policy.plan import Plan
from lastword.errors import DiskFullError, LastwordError, StorageError
from lastword.files import DEFAULT, Files, OsFiles
from lastword.records.batch import BatchBuilder, BatchHeader, read_records
from lastword.records.record import RawRecord
from lastword.resolve import Resolution, resolve
from lastword.segment import names
from lastword.segment.segment import Segment
from lastword.segment.stored import SegmentFiles
from tests.fakes.recording import Call

NOW = 1_700_000_000_000
HOUR = 3_600_000
SALT = b"0123456789abcdef"


def plan(**changes: object) -> Plan:
    fields: dict[str, object] = {
        "topic": "t",
        "partition": 0,
        "action": "clean",
        "due": False,
        "strategy": "kafka",
        "now_ms": NOW,
        "map_bytes": 1 << 20,
        "delete_retention_ms": HOUR,
        "limit": 1 << 60,
    }
    return Plan(**(fields | changes))  # type: ignore[arg-type]


def batch(
    base_offset: int,
    records: Iterable[tuple[int, bytes | None, bytes | None]],
    *,
    codec: int = 0,
    producer_id: int = -1,
    sequence: int = 0,
    timestamp: int = NOW - HOUR,
    leader_epoch: int = 0,
) -> bytes:
    """Return a batch of records (offset, key, value); timestamps rise by one with the offset."""
    epoch = 0 if producer_id >= 0 else -1
    sequence = sequence if producer_id >= 0 else -1
    builder = BatchBuilder(codec, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    for offset, key, value in records:
        builder.append(timestamp + offset, key, value, offset_delta=offset - base_offset)
    return builder.build(base_offset, leader_epoch)


def write_segment(directory: Path, base_offset: int, batches: Sequence[bytes]) -> Segment:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / names.segment_file(base_offset, names.LOG)).write_bytes(b"".join(batches))
    return Segment.load(SegmentFiles(DEFAULT, str(directory), base_offset))


def contents(segment: Segment) -> list[tuple[BatchHeader, list[RawRecord]]]:
    batches = []
    for header in segment.headers():
        data = segment.read_batch(header)
        batches.append((header, list(read_records(data, header_at_zero(header)))))
    return batches


def header_at_zero(header: BatchHeader) -> BatchHeader:
    return replace(header, position=0)


def records_of(segment: Segment) -> list[RawRecord]:
    return [record for _, records in contents(segment) for record in records]


def resolved(segments: Sequence[Segment], *, now_ms: int = NOW, map_bytes: int = 1 << 20) -> Resolution:
    return resolve(segments, map_bytes=map_bytes, salt=SALT, now_ms=now_ms)


def rewrite_all(
    segments: Sequence[Segment], target: Path, the_plan: Plan | None = None, *, files: Files = DEFAULT
) -> list[tuple[BuiltGroup, Segment]]:
    """Resolve, group, rewrite and certify; return the facts and the new segment of each group.

    The new segments are written below `target`.
    """
    the_plan = the_plan or plan()
    resolution = resolved(segments, now_ms=the_plan.now_ms)
    limits = OutputLimits(the_plan.segment_bytes, the_plan.segment_index_bytes, the_plan.index_interval_bytes)
    outputs = []
    for number, group in enumerate(groups.group(resolution.segments, limits)):
        directory = target / str(number)
        directory.mkdir(parents=True)
        stored = SegmentFiles(files, str(directory), group.base_offset)
        output = OutputSegment(str(directory), stored, the_plan)
        rewritten = rewrite(group, segments, resolution, the_plan, output, lambda _: None)
        certified = certify(output, rewritten, group, segments, resolution)
        output.finish(segments[group.last].mtime_ms)
        facts = built_group(segments, group, str(directory), rewritten, certified, resolution, 0.0)
        outputs.append((facts, Segment.load(stored)))
    return outputs


def is_scratch(call: Call) -> bool:
    """Return whether a call appends to a scratch file."""
    return call.name == "append" and call.path.endswith(".data")


def failing_scratch(
    error: Callable[[str], LastwordError], after: int = 0
) -> Callable[[Call], LastwordError | None]:
    """Return a `fail` for `RecordingFiles`: appends to a scratch file fail with the error of its path.

    `after`: the number of appends that do not fail.
    """
    appends = 0

    def fail(call: Call) -> LastwordError | None:
        nonlocal appends
        appends += is_scratch(call)
        return error(call.path) if is_scratch(call) and appends > after else None

    return fail


def full_drive(path: str) -> DiskFullError:
    return DiskFullError.of("users-0", "/drive", 100, 1, path)


def broken_drive(path: str) -> StorageError:
    return StorageError("cannot write", file=path)


def change_scratch(patch: pytest.MonkeyPatch, change: Callable[[int, Any, int], int]) -> None:
    """Let `change` (bytes read, buffer, position) change what is read from scratch files, and its size."""
    real = OsFiles.open_append

    def open_append(self: OsFiles, path: Any, **how: Any) -> Any:
        handle = real(self, path, **how)
        if str(path).endswith(".data"):
            read = handle.pread_into
            patch.setattr(
                handle,
                "pread_into",
                lambda buffer, at: change(int(read(buffer, at)), buffer, at),
                raising=False,
            )
        return handle

    patch.setattr(OsFiles, "open_append", open_append)
