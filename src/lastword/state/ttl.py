"""Values with a time to live: their expiry, and the tombstones for expired values.

A value expires `lastword.ttl.ms` of its topic after its timestamp, or after the number of ms in its header of
that name. If the setting is -1 (the default), nothing expires and headers are ignored; if it is 0, only
values with a header expire. A header below 0 keeps its value forever.

A process that has the log open to append appends a tombstone for each expired value: in the background with
the other retention work, and before `clean`. It does so under the lock of appends, and only if the value is
still the newest record of its key. A second tombstone after a crash does no harm. Readers of the log see the
value until its tombstone is appended; `State` hides it immediately.

Cost: `ExpiryWatch` stores the earliest expiry of the live values. Before that time, only new records are
read, each once. When a value is due, the newest values of the partition are read, as for a restore. This is
done at most once per twentieth of the topic's time to live (at least a minute), so a tombstone is late by
that time at most, plus the interval of the retention work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lastword.config import TopicConfig
from lastword.partition import scan
from lastword.partition.log import PartitionLog
from lastword.partition.moment import Range
from lastword.records.batch import BatchBuilder
from lastword.records.record import Header
from lastword.state.newest import newest
from lastword.units import NEVER

HEADER = "lastword.ttl.ms"
MAX_MS = 10**18
"""A header with as many milliseconds, or more, is ignored."""
MAX_KEYS_PER_PASS = 100_000  # keys of one pass
BATCH_KEYS = 500
MIN_PAUSE_MS = 60_000
PAUSE_RATIO = 20


def header_of(ttl_ms: int) -> Header:
    """Return the header that sets the time to live of a value."""
    return HEADER, str(ttl_ms).encode()


def expires_at(timestamp: int, headers: Sequence[Header], topic_ttl_ms: int) -> int:
    """Return the expiry of a value in ms since 1970, or NEVER. A header that is not a number is ignored."""
    if topic_ttl_ms < 0 or timestamp < 0:
        return NEVER
    own_ms = own_ttl(headers)
    ttl_ms = (topic_ttl_ms or -1) if own_ms is None else own_ms
    return timestamp + ttl_ms if ttl_ms >= 0 else NEVER


def own_ttl(headers: Sequence[Header]) -> int | None:
    """Return the time to live in the headers of a value; None if there is none."""
    own_ms = None
    for name, value in headers:
        if name == HEADER and value is not None and value.removeprefix(b"-").isdigit() and len(value) < 19:
            own_ms = int(value)
    return own_ms


@dataclass(slots=True)
class ExpiryWatch:
    """Scan position and next expiry of a partition, kept by one process.

    Attributes:
        scanned_to: Records below this offset were read.
        next_due_ms: A lower bound of the earliest expiry among their live values.
        read_at: Time of the last read of the newest values, by the steady clock; None: there was none.
        basis: The time to live, and the facts of the topic, for which the position and the expiry hold.
    """

    scanned_to: int = -1
    next_due_ms: int = 0
    read_at: float | None = None
    basis: tuple[object, ...] = ()


def expire_values(
    log: PartitionLog, config: TopicConfig, watch: ExpiryWatch, *, map_bytes: int, at_once: bool = False
) -> int:
    """Append tombstones for the expired values of a partition, and return their number.

    The caller holds the partition's claim, so that no cleaning removes files meanwhile.

    Args:
        log: The partition.
        config: Settings of its topic.
        watch: State between calls; the call updates it.
        map_bytes: Memory of the key map.
        at_once: If a value may be due, read the newest values even if they were read recently.
    """
    ttl_ms, now_ms, now = config.lastword_ttl_ms, log.clock.now_ms(), log.clock.monotonic()
    if ttl_ms < 0 or not config.compacts or config.lastword_pulled_from is not None:
        return 0  # a copy gets its tombstones from the log that it follows
    view = log.view()
    end = view.stable_offset
    basis = ttl_ms, view.topic_facts
    if watch.basis != basis or watch.scanned_to < view.log_start or watch.scanned_to > end:
        # The first call, another setting, or the log was truncated, or deleted and created again.
        watch.basis, watch.scanned_to, watch.next_due_ms, watch.read_at = basis, end, now_ms, None
    elif watch.scanned_to < end:
        for record in scan.records(view, watch.scanned_to, end):
            if record.key is not None and record.value is not None:
                expiry_ms = expires_at(record.timestamp, record.headers, ttl_ms)
                watch.next_due_ms = min(watch.next_due_ms, expiry_ms)
        watch.scanned_to = end
    pause_ms = 0 if at_once else max(MIN_PAUSE_MS, ttl_ms // PAUSE_RATIO)
    pauses = watch.read_at is not None and (now - watch.read_at) * 1000 < pause_ms
    if now_ms < watch.next_due_ms or pauses:
        return 0
    watch.read_at, next_due_ms = now, NEVER
    expired: dict[bytes, int] = {}
    for record in newest(Range(view, view.log_start, end), tombstones=False, map_bytes=map_bytes):
        expiry_ms = expires_at(record.timestamp, record.headers, ttl_ms)
        if expiry_ms <= now_ms and len(expired) < MAX_KEYS_PER_PASS:
            expired[record.key or b""] = record.offset
        else:
            next_due_ms = min(next_due_ms, expiry_ms)
    appended = _append_tombstones(log, expired, end, now_ms)
    # If keys were left out, their newer records may still be aborted, so these keys are checked again.
    watch.next_due_ms = next_due_ms if appended == len(expired) else now_ms
    return appended


def _append_tombstones(log: PartitionLog, expired: dict[bytes, int], scanned_to: int, now_ms: int) -> int:
    """Append a tombstone for each key that has no record from `scanned_to` on, committed or not."""
    if not expired:
        return 0
    keys = set(expired)
    view = log.view()
    keys.difference_update(_keys(log, scanned_to, view.log_end))
    with log.lock:  # no append between the comparison and the tombstones
        keys.difference_update(_keys(log, view.log_end, log.log_end))
        batches = []
        builder = BatchBuilder()
        limit = min(log.config.max_message_bytes, log.config.segment_bytes)
        for key in sorted(keys, key=expired.__getitem__):
            if len(builder) and (len(builder) >= BATCH_KEYS or builder.size_estimate + len(key) + 64 > limit):
                batches.append(builder.build())
                builder.clear()
            builder.append(now_ms, key, None)
        if len(builder):
            batches.append(builder.build())
        if batches:
            log.append_batches(batches)
    return len(keys)


def _keys(log: PartitionLog, start: int, end: int) -> Iterable[bytes]:
    records = scan.records(log.view(), start, end, committed=False) if start < end else ()
    return [record.key for record in records if record.key is not None]
