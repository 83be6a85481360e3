"""Batch headers for the tests of the state trackers, without bytes."""

from __future__ import annotations

from lastword.records.batch import BatchHeader
from lastword.records.record import ControlRecord

T = 1_700_000_000_000


def data(
    producer_id: int,
    base_offset: int,
    sequence: int = -1,
    *,
    count: int = 1,
    epoch: int = 0,
    transactional: bool = False,
    timestamp: int = T,
    kept: int | None = None,
) -> BatchHeader:
    """Return the header of a data batch of `count` offsets; the cleaner kept `kept` (default: all)."""
    return BatchHeader(
        position=0,
        size=100,
        base_offset=base_offset,
        last_offset=base_offset + count - 1,
        leader_epoch=0,
        magic=2,
        crc=0,
        attributes=0x10 if transactional else 0,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        count=count if kept is None else kept,
    )


def control(
    producer_id: int, offset: int, *, epoch: int = 0, timestamp: int = T, kept: int = 1
) -> BatchHeader:
    """Return the header of a marker's batch; with `kept` 0, of an emptied batch."""
    return BatchHeader(
        position=0,
        size=78 if kept else 61,
        base_offset=offset,
        last_offset=offset,
        leader_epoch=0,
        magic=2,
        crc=0,
        attributes=0x30,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=-1,
        count=kept,
    )


def commit(coordinator_epoch: int = 0) -> ControlRecord:
    return ControlRecord("commit", 0, coordinator_epoch)


def abort(coordinator_epoch: int = 0) -> ControlRecord:
    return ControlRecord("abort", 0, coordinator_epoch)
