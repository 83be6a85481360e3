"""What is there: facts of a partition and of a segment, as values."""

from __future__ import annotations

from dataclasses import dataclass

from lastword.units import format_bytes
from lastword.values import Value, plural


@dataclass(frozen=True, slots=True)
class PartitionInfo(Value):
    """One partition, as `lastword ls DIR TOPIC` shows it.

    policy          "compact", "delete", "compact,delete", or None when unknown: then nothing is ever removed
    log_start       first offset that may be read
    first_dirty     up to here the log was cleaned (exclusive)
    stable          last stable offset: nothing at or above it is decided
    log_end         offset of the next record
    size_bytes      of the .log files: live_bytes + garbage_bytes
    garbage_bytes   bytes of superseded records, and of what is left of batches whose records all went
    records         that are on disk, also below log_start while their file is there; live_records of them are
                    the newest of their key, tombstones included
    exact           True: counted; False: an estimate
    quarantine      why the cleaner leaves this partition alone, or None
    """

    topic: str
    partition: int
    dir: str
    policy: str | None
    log_start: int
    first_dirty: int
    stable: int
    log_end: int
    segments: int
    size_bytes: int
    live_bytes: int
    garbage_bytes: int
    records: int
    live_records: int
    tombstones: int
    exact: bool
    quarantine: str | None

    def __str__(self) -> str:
        return (
            f"{self.topic}-{self.partition}: {plural(self.records, 'record')} in "
            f"{plural(self.segments, 'segment')}, "
            f"{format_bytes(self.size_bytes)}, {format_bytes(self.garbage_bytes)} garbage"
        )


@dataclass(frozen=True, slots=True)
class SegmentInfo(Value):
    """One segment.

    generation    how often it was rewritten; None while no garbage account knows it
    survivorship  share of the bytes that its last rewrite kept; None if there was none that is known
    """

    topic: str
    partition: int
    base_offset: int
    next_offset: int
    size_bytes: int
    live_bytes: int
    garbage_bytes: int
    records: int
    exact: bool
    generation: int | None
    survivorship: float | None
    largest_timestamp: int
    active: bool

    def __str__(self) -> str:
        return (
            f"{self.topic}-{self.partition}/{self.base_offset:020d}: {plural(self.records, 'record')}, "
            f"{format_bytes(self.size_bytes)}, {format_bytes(self.garbage_bytes)} garbage"
        )
