"""What a rewrite hands on, as plain facts: no handles, no arrays, so it crosses processes.

A `Collector` makes them where the files are, a `Publisher` uses them where the log is open. A source is named
with its inode and size: a swap that finds anything else there refuses.
"""

from __future__ import annotations

from dataclasses import dataclass

from lastword.cleaner.plan import Plan
from lastword.cleaner.report import Removed, TombstonesWaiting


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """One segment as it was read: its .log file."""

    path: str
    base_offset: int
    size_bytes: int
    inode: int


@dataclass(frozen=True, slots=True)
class OutputFacts:
    """A complete, synced segment in a private directory. `next_offset` is that of the last source, or below
    it where nothing is left of what ends there (messages of old formats)."""

    directory: str
    base_offset: int
    next_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class BuiltGroup:
    """One certified output and what it stands for.

    key_offset_digest, content_digest   unsigned 64-bit sums that sources and output agreed on
    read_bytes                          of the sources, once; seconds: rewrite and certificate
    dropped_tombstone                   highest offset of a tombstone that goes for its age, -1 without
    """

    sources: tuple[SourceFacts, ...]
    output: OutputFacts
    records_read: int
    records_kept: int
    removed: Removed
    key_offset_digest: int
    content_digest: int
    tombstones: TombstonesWaiting
    read_bytes: int
    seconds: float
    dropped_tombstone: int = -1


@dataclass(frozen=True, slots=True)
class ScanStats:
    """What the scan of a cleaning met below the limit: sums.

    bytes, records      of the segments there
    dirty_bytes         of segments with an offset at or above the first dirty one; dirty_live_bytes: what
                        survives there
    tombstones          live ones: they wait for their horizon
    passes, used_ratio  of the key map
    read_bytes          of the log, by all passes
    waiting             the tombstone that is due first, where accounts know it
    """

    segments: int
    bytes: int
    records: int
    dirty_bytes: int
    dirty_live_bytes: int
    tombstones: int
    passes: int
    used_ratio: float
    seconds: float
    read_bytes: int = 0
    waiting: TombstonesWaiting | None = None


@dataclass(frozen=True, slots=True)
class PreparedCleaning:
    """A cleaning before its swaps. `groups` ascend; each was certified when it was built.

    first_dirty   the checkpoint to record when all are published
    """

    plan: Plan
    stats: ScanStats
    groups: tuple[BuiltGroup, ...]
    first_dirty: int
