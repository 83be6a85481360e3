"""A cleaner on lists: what a round must keep, in the plainest words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lastword.records.record import RawRecord


@dataclass(frozen=True)
class NaiveBatch:
    """Records of one batch and its delete horizon (ms), if it has one."""

    records: tuple[RawRecord, ...]
    horizon_ms: int | None = None


def newest(batches: Iterable[NaiveBatch]) -> dict[bytes, int]:
    """Key to the offset of its newest record."""
    return {r.key: r.offset for batch in batches for r in batch.records if r.key is not None}


def clean(batches: Sequence[NaiveBatch], now_ms: int, delete_retention_ms: int) -> list[NaiveBatch]:
    """Every batch with what is left of it: records and horizon. An emptied one stays, without any."""
    last = newest(batches)
    out = []
    for batch in batches:
        due = batch.horizon_ms is not None and batch.horizon_ms <= now_ms
        kept = tuple(
            r
            for r in batch.records
            if r.key is not None and last[r.key] == r.offset and not (r.value is None and due)
        )
        horizon_ms = batch.horizon_ms
        if horizon_ms is None and any(r.value is None for r in kept):
            horizon_ms = now_ms + delete_retention_ms
        out.append(NaiveBatch(kept, horizon_ms if kept else None))
    return out


def survivors(batches: Iterable[NaiveBatch]) -> list[RawRecord]:
    return [record for batch in batches for record in batch.records]
