"""Decide transactions as a coordinator does: append a marker to a partition's log."""

from __future__ import annotations

import struct

from lastword.partition import AppendedBatch, PartitionLog
from lastword.records.batch import BatchBuilder
from lastword.records.record import ABORT, COMMIT


def control_key(number: int) -> bytes:
    """Return the key of a control record of this type."""
    return struct.pack(">hh", 0, number)


def marker_value(coordinator_epoch: int) -> bytes:
    """Return the value of a transaction marker."""
    return struct.pack(">hi", 0, coordinator_epoch)


def marker_batch(producer_id: int, epoch: int, commit: bool, coordinator_epoch: int, now_ms: int) -> bytes:
    """Build the batch of 78 bytes that decides a transaction."""
    builder = BatchBuilder(producer_id=producer_id, producer_epoch=epoch, transactional=True, control=True)
    builder.append(now_ms, control_key(COMMIT if commit else ABORT), marker_value(coordinator_epoch))
    return builder.build()


def begin_transaction(
    log: PartitionLog, producer_id: int, *pairs: tuple[bytes, bytes | None], sequence: int = 0
) -> AppendedBatch:
    """Append a batch of a producer's open transaction: a record for each pair of key and value."""
    builder = BatchBuilder(
        producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=True
    )
    for key, value in pairs:
        builder.append(log.clock.now_ms(), key, value)
    return log.append_batch(builder.build())


def end_transaction(
    log: PartitionLog, producer_id: int, epoch: int, commit: bool, coordinator_epoch: int = 0
) -> AppendedBatch:
    """Append the marker that decides a producer's open transaction."""
    now_ms = log.clock.now_ms()
    return log.append_batch(marker_batch(producer_id, epoch, commit, coordinator_epoch, now_ms))
