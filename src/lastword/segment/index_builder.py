"""Which batches get an index entry: one rule for appending, rebuilding and cleaning, so their files are the
same bytes.

A batch is indexed when it starts more than `index.interval.bytes` after the batch indexed before it (the
first comparison is against position 0, so the first batch never is). With an offset entry goes a time entry,
if the largest timestamp so far rose since the last one. `finish` adds the last time entry of a segment that
takes no more batches.
"""

from __future__ import annotations

from collections.abc import Sequence

from lastword.segment import offset_index, time_index
from lastword.segment.time_index import NO_TIMESTAMP


class IndexBuilder:
    """Feeds on batches in file order; `offset_entries` and `time_entries` grow by whole entries.

    A builder that goes on with an existing segment is given the state after its last entry and told of the
    batches from that entry's position on by `seen`.
    """

    __slots__ = (
        "_entry_position",
        "_time_entry",
        "base_offset",
        "interval_bytes",
        "largest_timestamp",
        "largest_timestamp_offset",
        "offset_entries",
        "time_entries",
    )

    def __init__(
        self,
        base_offset: int,
        interval_bytes: int,
        *,
        entry_position: int = 0,
        time_entry: int = NO_TIMESTAMP,
    ) -> None:
        self.base_offset = base_offset
        self.interval_bytes = interval_bytes
        self._entry_position = entry_position
        self._time_entry = time_entry
        self.largest_timestamp = NO_TIMESTAMP
        self.largest_timestamp_offset = base_offset
        self.offset_entries = bytearray()
        self.time_entries = bytearray()

    def seen(self, last_offset: int, max_timestamp: int) -> None:
        """A batch that is in the file already and has had its entry, if it was to have one."""
        if max_timestamp > self.largest_timestamp:
            self.largest_timestamp = max_timestamp
            self.largest_timestamp_offset = last_offset

    def batch(self, position: int, last_offset: int, max_timestamp: int) -> bool:
        """A batch at `position` of the file; True if it got an entry."""
        if max_timestamp > self.largest_timestamp:
            self.largest_timestamp = max_timestamp
            self.largest_timestamp_offset = last_offset
        if position - self._entry_position <= self.interval_bytes:
            return False
        self.offset_entries += offset_index.pack_entry(last_offset - self.base_offset, position)
        self._entry_position = position
        self._time()
        return True

    @property
    def state(self) -> tuple[int, int, int, int]:
        """What the rule remembers: position of the last entry, timestamp of the last time entry, the largest
        timestamp, the last offset of its batch.
        """
        return self._entry_position, self._time_entry, self.largest_timestamp, self.largest_timestamp_offset

    def go_on(self, state: Sequence[int]) -> None:
        """Go on behind batches that were indexed elsewhere, from the state that they left."""
        self._entry_position, self._time_entry, self.largest_timestamp, self.largest_timestamp_offset = state

    def finish(self) -> None:
        """No more batches: the time index ends with the segment's largest timestamp."""
        self._time()

    def _time(self) -> None:
        if self.largest_timestamp > self._time_entry:
            relative = self.largest_timestamp_offset - self.base_offset
            self.time_entries += time_index.pack_entry(self.largest_timestamp, relative)
            self._time_entry = self.largest_timestamp
