"""The garbage index: the accounts of each closed segment, kept between cleanings.

Uses `resolve`, whose running map and bitmaps it keeps, saves and discards. It reads the files of one
partition and has no policy: `cleaner.policy.generational` decides from the accounts what is worth cleaning.
All of it is derived from the log, and is made again if it does not fit.

An account is the garbage of a segment, a partition or a drive as a plain value, to choose by, to show and to
simulate. The accounts are here, without NumPy; start reading with them, then `ledger.py`.

The write clock is the number of bytes appended to the drive: it stands still while nothing is written.
Garbage ages by it: `garbage_age` grows by one for each byte of garbage and each byte appended.

How accounts are used, from the ledger up:

    accounts.ledger                      Ledger.account(...)            -> PartitionAccount
    cleaner.drive, of all partitions     inspect(partitions, ...)       -> DriveAccount
    cleaner.policy.generational          choose_drive(account, now_ms)  -> Choice
    cleaner.drive, with an executor      DriveCleaner.clean()           -> CleanRound ...
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from lastword.files import Files
from lastword.segment import names
from lastword.values import Value
from lastword.wire import INT64_MAX


@dataclass(frozen=True, slots=True)
class SegmentAccount(Value):
    """One closed segment below the limit.

    Attributes:
        base_offset: The first offset of its range.
        next_offset: The offset after the range.
        size_bytes: Size of its .log file.
        records: Number of records, without control records.
        dead_records: Number of dead records, without control records.
        dead_bytes: What a rewrite could drop now, as a share of the file: superseded, aborted and keyless
            records, and due tombstones.
        tombstones: Number of live tombstones.
        blocked_tombstone_bytes: Bytes of live tombstones whose key has an older copy in a closed segment.
        garbage_age: Integral of dead_bytes over `write_clock`, up to the time `garbage_age_at`.
        garbage_age_at: See `garbage_age`.
        written_at: `write_clock` when the segment was closed or last rewritten.
        death_rate: Recent growth of dead_bytes per unit of `write_clock`.
        oldest_dead_ms: When the oldest garbage here became garbage, in milliseconds since 1970; -1: there is
            none.
        exact: False: dead_bytes is an estimate.
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

    @property
    def live_bytes(self) -> int:
        """Return the bytes that a rewrite keeps."""
        return self.size_bytes - self.dead_bytes


@dataclass(frozen=True, slots=True)
class PartitionAccount(Value):
    """One partition.

    Attributes:
        segments: The closed segments below `limit`, ascending.
        total_bytes: Bytes of the whole log, including the part above the limit.
        limit: The offset up to which keys were scanned.
        quarantined: The partition counts towards the space of its drive, but no run of it may be chosen.
        strategy: `generational`, or `kafka`: no runs are chosen by accounts.
        file_bytes: Bytes after which the indexes of a file are full; 0: `segment_bytes` is reached first.
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
        """Return the bytes that one file may hold."""
        return min(self.file_bytes or self.segment_bytes, self.segment_bytes)

    @property
    def dead_bytes(self) -> int:
        """Return the garbage of all segments."""
        return sum(segment.dead_bytes for segment in self.segments)

    def late_ms(self, now_ms: int) -> int:
        """Return by how long the oldest garbage has passed `max.compaction.lag.ms`; 0: it has not."""
        due_ms = now_ms - self.max_compaction_lag_ms
        if due_ms <= 0:
            return 0  # no garbage is that old
        died_ms = [segment.oldest_dead_ms for segment in self.segments if segment.dead_bytes]
        return max(due_ms - min((ms for ms in died_ms if ms >= 0), default=due_ms), 0)

    @property
    def exact(self) -> bool:
        """Return whether no segment is estimated."""
        return all(segment.exact for segment in self.segments)


@dataclass(frozen=True, slots=True)
class DriveAccount(Value):
    """All partitions of one drive.

    Attributes:
        write_clock: The drive's time.
        space_target: Bytes that the drive may hold, as a multiple of its live bytes.
        file_cost_bytes: The cost of one more file, in bytes moved: seconds of a swap times bytes per second.
    """

    drive: str
    write_clock: int
    space_target: float
    file_cost_bytes: float
    partitions: tuple[PartitionAccount, ...]


def has_accounts(files: Files, directory: str) -> bool:
    """Return whether accounts of a partition are saved; does not check them."""
    return files.exists(os.path.join(directory, names.PRIVATE, names.ACCOUNTS))
