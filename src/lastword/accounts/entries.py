"""One segment in the accounts: which file it is, how old, and what its garbage has cost so far.

Ages and rent are in units of the drive's time `t`: bytes appended to it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import google_crc32c

from lastword.errors import FileVanishedError
from lastword.segment import names
from lastword.segment.segment import Segment

_MAGIC_POSITION = 16  # of a batch's format, the same in all of them
_TAIL_BYTES = 512


@dataclass(slots=True)
class Entry:
    """One segment below the limit: which file it is, and its account.

    rate_at, rate_dead   when `rate` was taken last, and the garbage then
    rate                 below 0: not taken yet
    own_*                of a sample: garbage within the segment itself when it was scanned, and the part of
                         it that the sample saw (bytes, records)
    generation           how often it was rewritten
    survived_ratio       share of its sources' bytes that the last rewrite kept; below 0: there was none
    clear_to             of each key whose newest record lies below this offset no older one is left here
    """

    base_offset: int
    inode: int
    size_bytes: int
    mtime_ms: int
    tail_crc: int
    written_at: int
    dead_bytes: float = 0.0
    rent: float = 0.0
    rent_at: int = 0
    rate: float = -1.0
    rate_at: int = 0
    rate_dead: float = 0.0
    oldest_dead_ms: int = -1
    own_dead_bytes: int = 0
    own_seen_bytes: int = 0
    own_seen_records: int = 0
    generation: int = 0
    survived_ratio: float = -1.0
    clear_to: int = -1

    @classmethod
    def of(cls, segment: Segment, t: int) -> Entry:
        """Of a file that was read just now."""
        facts = segment.files.stat(segment.file)
        if facts is None:
            raise FileVanishedError(f"{segment.file} is gone", file=segment.file)
        return cls(
            base_offset=segment.base_offset,
            inode=facts.inode,
            size_bytes=segment.size,
            mtime_ms=facts.mtime_ms,
            tail_crc=tail_crc(segment),
            written_at=t,
        )

    def is_of(self, segment: Segment) -> bool:
        """Is it this very file, as it was left? Asks the file, for a segment that was appended to is younger
        than when it was opened; and one of a view may have been replaced by another of its name since."""
        facts = segment.files.stat(segment.file)
        return (
            self.base_offset == segment.base_offset
            and self.inode == segment.inode
            and facts is not None
            and (self.inode, self.size_bytes, self.mtime_ms) == (facts.inode, facts.size, facts.mtime_ms)
        )

    def accrue(self, dead: float, t: int, now_ms: int, *, closed: bool) -> None:
        """Charge the rent since the last look, and take the garbage as it is now. `closed`: something was
        absorbed, so the rate at which it grows can be told."""
        self.rent += self.dead_bytes * (t - self.rent_at)
        self.rent_at = t
        self.dead_bytes = dead
        if dead <= 0:
            self.oldest_dead_ms = -1
        elif self.oldest_dead_ms < 0:
            self.oldest_dead_ms = now_ms
        passed = t - self.rate_at
        if closed and passed > 0:
            recent = (dead - self.rate_dead) / passed
            age = max(t - self.written_at, 1)
            if self.rate < 0:
                self.rate = recent
            else:
                self.rate += (1 - math.exp(-4 * passed / age)) * (recent - self.rate)
            self.rate = max(self.rate, 0.0)
            self.rate_at, self.rate_dead = t, dead


def begin_ages(entries: Sequence[Entry], dead: Sequence[float], t: int, bytes_above: int) -> None:
    """Ages of segments that were scanned just now: what lies above each was appended after it. Their garbage
    is taken to have grown steadily since.

    bytes_above  of the log above the last of them
    """
    above = bytes_above
    for entry, garbage in zip(reversed(entries), reversed(dead), strict=True):
        entry.written_at = t - above
        entry.rent_at = entry.rate_at = t
        entry.rent = garbage * above / 2
        entry.rate = garbage / above if above else -1.0
        entry.rate_dead = garbage
        above += entry.size_bytes


def keep_ages(entries: Sequence[Entry], old: Sequence[Entry]) -> None:
    """Of a ledger that began anew: how old a segment is, keys do not say."""
    known = {one.base_offset: one for one in old}
    for entry in entries:
        before = known.get(entry.base_offset)
        if before is not None and before.inode == entry.inode:
            entry.written_at, entry.generation = before.written_at, before.generation


def tail_crc(segment: Segment) -> int:
    """Checksum of a segment's last bytes, the end of its last batch."""
    if segment.size == 0:
        return 0
    length = min(segment.size, _TAIL_BYTES)
    return int(google_crc32c.value(segment.handle.pread(length, segment.size - length)))


def has_old(segment: Segment) -> bool:
    """Are there messages of magic 0 or 1? Looks at the first batch and at the last one of the index."""
    places = (0, segment.offset_index.last.position)
    found = [segment.handle.pread(1, position + _MAGIC_POSITION) for position in places]
    return any(magic in (b"\0", b"\1") for magic in found)


def private_path(directory: str, name: str) -> str:
    return os.path.join(directory, names.PRIVATE, name)
