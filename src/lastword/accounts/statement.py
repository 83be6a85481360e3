"""The accounts of a partition as a value: all that choosing asks for.

Of a sample, the dead divided by the share of the keys are the dead. With too few sampled keys for a segment
the estimate of the whole log is spread over the segments by `survivorship`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lastword.accounts.survivorship import Survivorship
from lastword.accounts.tracking import Tracking
from lastword.accounts.values import SegmentAccount

if TYPE_CHECKING:
    from lastword.config import TopicConfig

TIME_INDEX_ENTRY_BYTES = 12
FEWEST_SAMPLED_KEYS = 250
"""Below this a segment thought clean may stay so for long: then the estimate of the whole is spread."""


def dead_bytes(tracking: Tracking, t: int, survivorship: Survivorship) -> list[float]:
    """Garbage of each segment; of a sample as estimated."""
    facts = tracking.facts()
    if tracking.exact:
        return [float(one.dead_bytes) for one in facts]
    found = [
        min(
            entry.own_dead_bytes + max(one.dead_bytes - entry.own_seen_bytes, 0) / tracking.share,
            float(entry.size_bytes),
        )
        for entry, one in zip(tracking.entries, facts, strict=True)
    ]
    records = sum(one.records for one in facts)
    if records and tracking.share * records / len(facts) < FEWEST_SAMPLED_KEYS:
        sizes = [entry.size_bytes for entry in tracking.entries]
        ages = [t - entry.written_at for entry in tracking.entries]
        live = survivorship.spread(sizes, ages, sum(sizes) - sum(found))
        return [max(size - one, 0.0) for size, one in zip(sizes, live, strict=True)]
    return found


def indexed_bytes(config: TopicConfig) -> int:
    """What a segment may hold for its time index to fit: an entry for each interval, and one more."""
    entries = config.segment_index_bytes // TIME_INDEX_ENTRY_BYTES
    return max(entries * max(config.index_interval_bytes, 1) - 1, 1)


def segment_accounts(
    tracking: Tracking, dead: Sequence[float], blocked_bytes: Sequence[int]
) -> tuple[SegmentAccount, ...]:
    """Return the account of each segment.

    Of a sample all figures are estimates; the standard deviation of `error_ratio` is that of a sum over a
    share of the keys.

    Args:
        dead, blocked_bytes: bytes of each segment.
    """
    share, segments = tracking.share, []
    for entry, one, garbage, held in zip(
        tracking.entries, tracking.facts(), dead, blocked_bytes, strict=True
    ):
        died = max(one.dead_records - entry.own_seen_records, 0) / share
        noise = math.sqrt((1 / share - 1) * died) / one.records if one.records else 0.0
        segments.append(
            SegmentAccount(
                base_offset=one.base_offset,
                next_offset=one.next_offset,
                size_bytes=entry.size_bytes,
                records=one.records,
                dead_records=one.dead_records if tracking.exact else min(round(died), one.records),
                dead_bytes=round(garbage),
                tombstones=round(one.tombstones / share),
                blocked_tombstone_bytes=held,
                rent=entry.rent,
                rent_at=entry.rent_at,
                written_at=entry.written_at,
                rate=max(entry.rate, 0.0),
                oldest_dead_ms=entry.oldest_dead_ms,
                exact=tracking.exact,
                error_ratio=min(noise, 1.0),
            )
        )
    return tuple(segments)
