"""The plain form of the empty batch that a rewrite leaves if all records went, from its header alone."""

from __future__ import annotations

from lastword.records.batch import BatchHeader, write_batch
from lastword.wire import CONTROL_BIT, LOG_APPEND_BIT, TRANSACTIONAL_BIT


def empty_batch(header: BatchHeader) -> bytes:
    """Return the empty batch of a header.

    Kept: offsets, leader epoch, max timestamp, producer fields, the bits for timestamp type, transaction and
    control. Cleared: codec, delete horizon, base timestamp (-1), count.
    """
    return write_batch(
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        attributes=header.attributes & (LOG_APPEND_BIT | TRANSACTIONAL_BIT | CONTROL_BIT),
        last_offset_delta=header.last_offset - header.base_offset,
        base_timestamp=-1,
        max_timestamp=header.max_timestamp,
        producer=(header.producer_id, header.producer_epoch, header.base_sequence),
        count=0,
        payload=b"",
    )
