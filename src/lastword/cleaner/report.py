"""What one round did, as a value: printed, logged, sent as JSON, shown in a notebook.

`CleanRound` counts what happened to the records below the round's end, and what it cost. Every unit is in a
name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lastword.units import format_duration
from lastword.values import Value


@dataclass(frozen=True, slots=True)
class Removed(Value):
    """Records that left the log, by the rule that let them go. Of control records, which nobody reads, only
    `marker` tells: `records_read` and `records_kept` of a round leave them out.
    """

    superseded: int = 0  # a newer record of the same key lies below the round's end
    tombstone: int = 0  # its delete horizon had passed
    marker: int = 0  # control records of transactions without data
    aborted: int = 0  # data of aborted transactions
    keyless: int = 0  # a compacted log cannot keep them apart

    @property
    def total(self) -> int:
        return self.superseded + self.tombstone + self.marker + self.aborted + self.keyless


@dataclass(frozen=True, slots=True)
class Phases(Value):
    """Seconds of a round: reading keys, writing survivors (with their certificate), publishing."""

    map: float = 0.0
    rewrite: float = 0.0
    swap: float = 0.0


@dataclass(frozen=True, slots=True)
class Certificate(Value):
    """What was compared, by a path that the dead bitmaps take no part in, before anything was published.

    key_offset_digest  sum over the rewritten segments' live records of H(key, offset), as kept by the map
                       pass and as found in the new files read back; 16 hex digits
    content_digest     sum over the survivors of mix(CRC of the record's bytes, offset, timestamp), from the
                       sources and from the new files read back; 16 hex digits
    """

    records: int
    key_offset_digest: str
    content_digest: str

    def __str__(self) -> str:
        return f"{self.records} records, keys {self.key_offset_digest}, contents {self.content_digest}"


@dataclass(frozen=True, slots=True)
class TombstonesWaiting(Value):
    """Tombstones below the round's end that stay until their horizon.

    first_offset, first_due_ms   the one due first, and its horizon in milliseconds since 1970; -1 if it
                                 lies in a segment that was not rewritten
    """

    count: int = 0
    first_offset: int = -1
    first_due_ms: int = -1


@dataclass(frozen=True, slots=True)
class CleanRound(Value):
    """One cleaning of one partition.

    start, end       first dirty offset before, and the offset up to which the log is clean now
    complete         False when it was stopped between two swaps; what was swapped stays, `end` is not
                     recorded
    stopped_by       of such a round: "lease", a reader took one below a tombstone that was about to go; or
                     "request"
    records_read     records that the map pass met below `end`, control records left out; records_kept: how
                     many of them are left
    read_bytes       bytes read from the log: by every map pass, and by the rewrite
    written_bytes    bytes of the new segments; freed_bytes: bytes of the old ones less these
    map_used_ratio   distinct keys over what the key map could hold (of the fullest pass)
    survivorship     share of the dirty bytes that survived (1.0 when nothing was dirty)
    certificate      None when no segment needed a rewrite
    """

    topic: str
    partition: int
    strategy: str
    start: int
    end: int
    complete: bool
    records_read: int
    records_kept: int
    removed: Removed
    read_bytes: int
    written_bytes: int
    freed_bytes: int
    seconds: float
    phases: Phases
    map_used_ratio: float
    survivorship: float
    certificate: Certificate | None
    tombstones: TombstonesWaiting = field(default_factory=TombstonesWaiting)
    segments_before: int = 0
    segments_after: int = 0
    map_passes: int = 1
    now_ms: int = 0
    stopped_by: Literal["", "lease", "request"] = ""

    def __str__(self) -> str:
        if not self.complete and not self.records_read:
            by = " by a lease that came below a due tombstone" if self.stopped_by == "lease" else ""
            return f"{self.topic}-{self.partition}: stopped{by} before anything was changed"
        records = "1 record" if self.records_read == 1 else f"{self.records_read} records"
        text = f"{self.topic}-{self.partition}: {records} -> {self.records_kept}"
        if self.stopped_by == "lease":
            text += ", stopped before its end by a lease that came below a due tombstone"
        elif not self.complete:
            text += ", stopped before its end"
        return text + self._waiting()

    def _waiting(self) -> str:
        waiting = self.tombstones
        if not waiting.count:
            return ""
        what = "1 tombstone waits" if waiting.count == 1 else f"{waiting.count} tombstones wait"
        if waiting.first_offset < 0:
            return f"; {what}"
        wait = format_duration(max(0, waiting.first_due_ms - self.now_ms))
        if waiting.count == 1:
            return f"; the tombstone at {waiting.first_offset} may go in {wait}"
        return f"; {what}, the one at {waiting.first_offset} may go in {wait}"
