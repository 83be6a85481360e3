"""What a batch becomes when some of its records are dead."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from tests.naive.batches import Header
from tests.naive.columns import decode
from tests.naive.pack import encode_batch


def repack(
    data: bytes, header: Header, dead: Set[int], *, retain: int, horizon_ms: int, first_kept: bool
) -> bytes | None:
    """The batch's replacement, or None when nothing stays. `retain`: 1 leaves a header at least; of a control
    batch 2 means that it goes, 3 that it gets the horizon."""
    batch = data[header.position : header.position + header.size]
    records = decode(data, header)
    control = header.attributes & 0x20 != 0
    if control:
        if retain == 2:
            return None
        if retain != 3 or horizon_ms < 0 or header.attributes & 0x40 or not records:
            return batch
        dead = set()
    kept = [record for record in records if record.offset not in dead]
    facts = {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "leader_epoch": header.leader_epoch,
        "producer": (header.producer_id, header.producer_epoch, header.base_sequence),
    }
    if not records:
        return batch if retain else None
    if not kept:
        attributes = header.attributes & ~0x47
        empty = encode_batch([], attributes=attributes, max_timestamp=header.max_timestamp, **facts)
        return empty if retain else None
    clock = (
        horizon_ms >= 0
        and not header.attributes & 0x40
        and (control or any(record.value is None for record in kept))
    )
    if len(kept) == len(records) and not clock:
        return batch
    log_append = header.attributes & 8
    base = header.base_timestamp
    if clock:
        base = horizon_ms
    elif first_kept and not header.attributes & 0x40:
        base = kept[0].timestamp
    if log_append and base == header.base_timestamp:  # deltas stay what they were
        plain = replace(header, attributes=header.attributes & ~8)
        kept = [record for record in decode(data, plain) if record.offset not in dead]
    return encode_batch(
        kept,
        attributes=header.attributes | (0x40 if clock else 0),
        base_timestamp=base,
        max_timestamp=header.max_timestamp if log_append else max(record.timestamp for record in kept),
        **facts,
    )
