"""The batches that replace batches with dead records, and the joining of small batches."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from tests.naive.batches import Header, walk
from tests.naive.columns import decode
from tests.naive.pack import Record, encode_batch, encode_record


def repack(data: bytes, header: Header, dead: Set[int], *, retain: int, horizon_ms: int) -> bytes | None:
    """Return the batch's replacement, or None if nothing stays.

    `retain`: 1 keeps at least a header; for a control batch, 2 removes it and 3 sets the horizon.
    """
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
    if log_append and base == header.base_timestamp:  # deltas stay unchanged
        plain = replace(header, attributes=header.attributes & ~8)
        kept = [record for record in decode(data, plain) if record.offset not in dead]
    return encode_batch(
        kept,
        attributes=header.attributes | (0x40 if clock else 0),
        base_timestamp=base,
        max_timestamp=header.max_timestamp if log_append else max(record.timestamp for record in kept),
        **facts,
    )


def repack_all(
    data: bytes,
    headers: Sequence[Header],
    dead: Set[int],
    *,
    retain: Sequence[int],
    horizon_ms: int,
    target: int,
    most: int,
) -> list[bytes]:
    """Return the replacements of all batches.

    Small neighbours are joined up to about `target` bytes, never above `most`.
    """
    out: list[bytes] = []
    grows = False  # whether the last batch may take more records
    for header, keep in zip(headers, retain, strict=True):
        batch = repack(data, header, dead, retain=keep, horizon_ms=horizon_ms)
        if batch is None:
            continue
        (new,) = walk(batch)[0]
        plain = header.size - 61
        whole = batch == data[header.position : header.position + header.size]
        joins = target > 0 and new.count > 0 and joinable(header) and not (whole and 2 * plain >= target)
        if joins and grows and alike(walk(out[-1])[0][0], new):
            kept = [record for record in stored(data, header) if record.offset not in dead]
            exact = sum(len(encode_record(r, header.base_offset, header.base_timestamp)) for r in kept)
            about = exact if plain > target else plain * len(kept) // header.count
            bound = exact if plain > target else plain
            size = len(out[-1])
            if size + about <= target and size + bound + 16 * header.count <= most:
                out[-1] = joined(out[-1], data, header, dead, new)
                continue
        out.append(batch)
        grows = joins
    return out


def stored(data: bytes, header: Header) -> list[Record]:
    """Return records with their own timestamps, also if the batch has one timestamp for all of them."""
    return decode(data, replace(header, attributes=header.attributes & ~8))


def joinable(header: Header) -> bool:
    producer = (header.producer_id, header.producer_epoch, header.base_sequence)
    return not header.attributes & 0x30 and producer == (-1, -1, -1)


def alike(first: Header, second: Header) -> bool:
    """Check that two rewritten batches are equal in all fields that a batch stores once for its records."""
    return (
        (first.attributes, first.leader_epoch) == (second.attributes, second.leader_epoch)
        and (not first.attributes & 0x40 or first.base_timestamp == second.base_timestamp)
        and (not first.attributes & 8 or first.max_timestamp == second.max_timestamp)
        and second.last_offset - first.base_offset < 1 << 31
    )


def joined(first: bytes, data: bytes, header: Header, dead: Set[int], new: Header) -> bytes:
    """Return the batch `first` with the kept records of another appended.

    The other batch is `header` in `data`; `new` is the header that it would have alone.
    """
    (into,) = walk(first)[0]
    same_base = into.base_timestamp == header.base_timestamp
    added = stored(data, header) if same_base else decode(data, header)
    added = [record for record in added if record.offset not in dead]
    largest = max(into.max_timestamp, *(record.timestamp for record in added))
    return encode_batch(
        stored(first, into) + added,
        base_offset=into.base_offset,
        last_offset=new.last_offset,
        attributes=into.attributes,
        base_timestamp=into.base_timestamp,
        max_timestamp=into.max_timestamp if into.attributes & 8 else largest,
        leader_epoch=into.leader_epoch,
    )
