"""What is known of the garbage of a drive, as plain values: what is chosen by, shown and simulated.

The clock `write_clock` is bytes appended to the drive: it stands still while nothing is written. Garbage pays
rent: one byte of it owes one unit for each unit of `write_clock` that it lies there.

How they are used, from the ledger up:

    accounts.ledger                      Ledger.account(...)            -> PartitionAccount
    cleaner.drive, of all partitions     inspect(partitions, ...)       -> DriveAccount
    cleaner.policy.generational          choose_drive(account, now_ms)  -> Choice
    cleaner.drive, with an executor      DriveCleaner.clean()           -> CleanRound ...
"""

from __future__ import annotations

from dataclasses import dataclass

from lastword.values import Value
from lastword.wire import INT64_MAX


@dataclass(frozen=True, slots=True)
class SegmentAccount(Value):
    """One closed segment below the limit.

    base_offset, next_offset  its range of offsets
    size_bytes                of its .log file
    records, dead_records     control records left out
    dead_bytes                what a rewrite could drop now, as its share of the file: superseded, aborted and
                              keyless records, and tombstones that are due
    tombstones                live ones
    blocked_tombstone_bytes   of live tombstones that have an older copy of their key in a closed segment
    rent, rent_at             integral of dead_bytes over `write_clock` up to the time `garbage_age_at`
    written_at                `write_clock` when the segment was closed or last rewritten
    rate                      recent growth of dead_bytes per unit of `write_clock`
    oldest_dead_ms            when the garbage here that is oldest became garbage, in milliseconds since 1970;
                              -1: there is none
    exact                     False: dead_bytes is an estimate, and error_ratio the standard deviation of its
                              share of the file
    """

    base_offset: int
    next_offset: int
    size_bytes: int
    records: int
    dead_records: int
    dead_bytes: int
    tombstones: int = 0
    blocked_tombstone_bytes: int = 0
    garbage_age: float = 0.0
    garbage_age_at: int = 0
    written_at: int = 0
    death_rate: float = 0.0
    oldest_dead_ms: int = -1
    exact: bool = True
    error_ratio: float = 0.0

    @property
    def live_bytes(self) -> int:
        return self.size_bytes - self.dead_bytes


@dataclass(frozen=True, slots=True)
class PartitionAccount(Value):
    """One partition. `segments` ascend; they are closed and lie below `limit`, up to which keys were looked
    at. `total_bytes` counts the active segment and all that lies above the limit too.

    quarantined: the partition counts towards the space of its drive, but no run of it may be chosen.
    strategy: `generational`, or `kafka` where runs are not chosen by accounts.
    file_bytes: what one file may hold where its indexes fill up before `segment_bytes`; 0: as much as that.
    """

    topic: str
    partition: int
    drive: str
    segments: tuple[SegmentAccount, ...]
    total_bytes: int
    limit: int
    log_start: int = 0
    segment_bytes: int = 1 << 30
    min_cleanable_dirty_ratio: float = 0.5
    max_compaction_lag_ms: int = INT64_MAX
    quarantined: bool = False
    strategy: str = "generational"
    file_bytes: int = 0

    @property
    def most_bytes(self) -> int:
        """What one file may hold."""
        return min(self.file_bytes or self.segment_bytes, self.segment_bytes)

    @property
    def dead_bytes(self) -> int:
        return sum(segment.dead_bytes for segment in self.segments)

    @property
    def exact(self) -> bool:
        return all(segment.exact for segment in self.segments)


@dataclass(frozen=True, slots=True)
class DriveAccount(Value):
    """All partitions of one drive, at its time `write_clock`.

    space_target     what the drive may hold, as a multiple of its live bytes
    file_cost_bytes  what one file more costs, in bytes moved: seconds of a swap times bytes a second
    """

    drive: str
    write_clock: int
    space_target: float
    file_cost_bytes: float
    partitions: tuple[PartitionAccount, ...]
