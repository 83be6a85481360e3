"""Count the records of a short log in plain Python: a listing of it loads no kernel.

The counts are those of `resolve`, with the rules of a read.
"""

from __future__ import annotations

from dataclasses import dataclass

from lastword.errors import DataError
from lastword.partition.transactions import BatchOutcome, Outcomes
from lastword.partition.view import PartitionView
from lastword.records.batch import BatchHeader, fields_of, payload_of
from lastword.wire import INT64_MAX


@dataclass(slots=True)
class SegmentCount:
    """The counts of one segment, as `resolve.SegmentFacts` has them; `exact`: they are no estimate."""

    records: int = 0
    dead_records: int = 0
    dead_bytes: int = 0
    tombstones: int = 0
    exact: bool = True


Newest = dict[bytes, tuple[SegmentCount, int, bool]]
"""The newest record of each key: the count of its segment, its bytes, whether it is a tombstone."""


def count_plain(view: PartitionView) -> list[SegmentCount] | None:
    """Count each segment of a view.

    None: the kernels must count. They have the error for damage, and sizes of entries of magic 0 and 1.
    """
    outcomes = Outcomes(view, view.log_end)
    newest: Newest = {}
    counts = []
    offset = 0
    try:
        for at, segment in enumerate(view.segments):
            count = SegmentCount()
            counts.append(count)
            limit = view.segments[at + 1].base_offset if at + 1 < len(view.segments) else INT64_MAX
            offset = max(offset, segment.base_offset)
            for header in segment.headers():
                if header.magic < 2 or not offset <= header.base_offset <= header.last_offset < limit:
                    return None
                offset = header.next_offset
                data = segment.verified_batch(header)
                _count_batch(data, header, segment.file, count, outcomes.of_header(header), newest)
    except DataError:
        return None
    return counts


def _count_batch(
    data: bytes, header: BatchHeader, file: str, count: SegmentCount, outcome: BatchOutcome, newest: Newest
) -> None:
    """Count a batch. One of an undecided transaction supersedes nothing, and none of its records is dead."""
    if outcome is BatchOutcome.CONTROL:
        return
    count.records += header.count
    if outcome is BatchOutcome.UNDECIDED:
        return
    payload = payload_of(data, header, file, 0)
    share = header.size / max(len(payload), 1)  # a record counts with a part of its batch's header
    position = 0
    for end, _, _, key, value, _ in fields_of(payload, header, file):
        size = int((end - position) * share)
        position = end
        if outcome is BatchOutcome.ABORTED:
            count.dead_records += 1
            count.dead_bytes += size
            continue
        count.tombstones += value is None
        if key is None:
            continue
        before = newest.get(key)
        if before is not None:
            owner, dead_bytes, was_tombstone = before
            owner.dead_records += 1
            owner.dead_bytes += dead_bytes
            owner.tombstones -= was_tombstone
        newest[key] = count, size, value is None
