"""A plain cleaner on lists: it computes the records that a round must keep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from lastword.records.record import RawRecord


@dataclass(frozen=True)
class NaiveBatch:
    """Records of a batch and its delete horizon (ms), if any. `aborted`: its transaction was aborted."""

    records: tuple[RawRecord, ...]
    horizon_ms: int | None = None
    aborted: bool = False
    magic: int = 2


@dataclass(frozen=True)
class NaiveSegment:
    """A segment. `next_offset`: base of the segment after it; `written_ms`: time of its last append."""

    base_offset: int
    next_offset: int
    batches: tuple[NaiveBatch, ...]
    written_ms: int
    size_bytes: int


def newest(batches: Iterable[NaiveBatch]) -> dict[bytes, int]:
    """Return the offset of the newest record of each key."""
    return {
        r.key: r.offset for batch in batches if not batch.aborted for r in batch.records if r.key is not None
    }


def clean(
    batches: Sequence[NaiveBatch],
    now_ms: int,
    delete_retention_ms: int,
    *,
    last: dict[bytes, int] | None = None,
    old_due: bool = False,
    stays: int = -1,
) -> list[NaiveBatch]:
    """Return every batch with its remaining records and its horizon; an emptied batch stays, without any.

    `last`: key to the newest offset, if `batches` are not all; `old_due`: tombstones of magic 0 and 1 go;
    `stays`: the offset of the newest record of the log.
    """
    if last is None:
        last = newest(batches)
    out = []
    for batch in batches:
        due = old_due if batch.magic < 2 else batch.horizon_ms is not None and batch.horizon_ms <= now_ms
        kept = tuple(
            r
            for r in batch.records
            if not batch.aborted
            and r.key is not None
            and last[r.key] == r.offset
            and not (r.value is None and due and r.offset != stays)
        )
        horizon_ms = batch.horizon_ms
        if batch.magic == 2 and horizon_ms is None and any(r.value is None for r in kept):
            horizon_ms = now_ms + delete_retention_ms
        out.append(replace(batch, records=kept, horizon_ms=horizon_ms if kept else None))
    return out


def clean_log(
    segments: Sequence[NaiveSegment], *, start: int, limit: int, now_ms: int, delete_retention_ms: int
) -> list[NaiveSegment]:
    """Clean the segments below `limit`; the others stay. `start`: the first dirty offset."""
    below = [segment for segment in segments if segment.base_offset < limit]
    last = newest(batch for segment in below for batch in segment.batches)
    due = old_due(below, start, delete_retention_ms)
    stays = segments[-1].next_offset - 1
    cleaned = [
        replace(
            segment,
            batches=tuple(
                clean(segment.batches, now_ms, delete_retention_ms, last=last, old_due=old, stays=stays)
            ),
        )
        for segment, old in zip(below, due, strict=True)
    ]
    return cleaned + [segment for segment in segments if segment.base_offset >= limit]


def old_due(below: Sequence[NaiveSegment], start: int, delete_retention_ms: int) -> list[bool]:
    """Return for each segment whether tombstones of magic 0 and 1 go.

    They go if a round has processed them, and the retention is shorter than the time between the segment's
    last append and that of the newest segment that was cleaned. The log's last records stay.
    """
    clean_times = [segment.written_ms for segment in below if segment.base_offset < start]
    with_data = [segment.base_offset for segment in below if segment.size_bytes]
    return [
        bool(clean_times)
        and segment.next_offset <= start
        and segment.written_ms <= clean_times[-1] - delete_retention_ms
        and segment.base_offset != with_data[-1]
        for segment in below
    ]


def survivors(batches: Iterable[NaiveBatch]) -> list[RawRecord]:
    return [record for batch in batches for record in batch.records]
