"""Runs of neighbouring closed segments: what rewriting each would move, free and settle.

Garbage pays rent: a byte of it owes one unit for each unit of the drive's time `t` (bytes appended) that it
lies there. A run is scored by the rent that its rewrite settles for each byte moved:

    score = ( sum of rent * quiet  +  h * max(0, files_in - max(1, files_out)) * mean age )
            / ( sum of live bytes  +  F * max(1, files_out) )

quiet   average death rate of a segment over its recent one, 1 to 4: one that is dying still is left to ripen,
        one that has gone quiet goes first
h, F    the worth of one file less and the cost of one file more, in bytes moved: the drive's
        `file_cost_bytes`, bounded to 0.01..0.2 of `segment.bytes`

For steadily growing garbage that is the rule of log-structured file systems (garbage times age by bytes
moved), with the segment's own history in place of age. A segment that is too large for the bound on what is
moved at once (its settings changed since) is a run by itself, so no garbage is out of reach for ever.

Everything here is arrays over one partition's segments: a window of length L is the one of L-1 and one
segment more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lastword.accounts import PartitionAccount
from lastword.segment.names import MAX_RELATIVE_OFFSET
from lastword.units import format_bytes
from lastword.values import Value

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LONGEST_RUN = 8
LONGEST_MERGE = 64
MOST_LIVE_SEGMENTS = 2  # what one rewrite moves at most, in segments of segment.bytes
FILE_COST_RATIO = 0.05  # of segment.bytes, while nothing was measured
FILE_COST_BOUNDS = (0.01, 0.2)
MOST_QUIET = 4.0
SLOWEST_RATE = 0.02  # of the live bytes, over the segment's age
BEST = 10


@dataclass(frozen=True, slots=True)
class Run(Value):
    """Segments `first` to `last` (indexes into the account's segments, both included), rewritten together.

    read_bytes   of the sources; write_bytes: what survives; free_bytes: the difference
    files_out    files that the survivors fill, as large as they may be; they are to be of equal size
    score        rent settled for each byte moved; of a merge: 0
    """

    topic: str
    partition: int
    first: int
    last: int
    base_offset: int
    next_offset: int
    read_bytes: int
    write_bytes: int
    free_bytes: int
    files_in: int
    files_out: int
    score: float = 0.0

    def __str__(self) -> str:
        files = "1 segment" if self.files_in == 1 else f"{self.files_in} segments"
        return (
            f"{self.topic}-{self.partition}: {files} from {self.base_offset} on, "
            f"move {format_bytes(self.write_bytes)}, free {format_bytes(self.free_bytes)}"
        )

    @property
    def order(self) -> tuple[float, int, str, int, int, int]:
        """Best first, the same in whatever order the runs came."""
        return (-self.score, -self.free_bytes, self.topic, self.partition, self.first, self.last)


@dataclass(frozen=True, slots=True)
class Columns:
    """One partition's segments as arrays, all of their length: bytes, garbage, rent due now with its `quiet`
    factor, age in units of `t`, when the oldest garbage died, and the bounds."""

    size: Ints
    dead: Ints
    rent: Floats
    age: Floats
    oldest_dead_ms: Ints
    base: Ints
    end: Ints
    file_cost_bytes: float

    @property
    def live(self) -> Ints:
        return self.size - self.dead

    @classmethod
    def of(cls, partition: PartitionAccount, t: int, file_cost_bytes: float) -> Columns:
        segments = partition.segments
        columns = np.array(
            [
                (
                    one.size_bytes,
                    one.dead_bytes,
                    one.rent_at,
                    one.written_at,
                    one.oldest_dead_ms,
                    one.base_offset,
                    one.next_offset,
                )
                for one in segments
            ],
            np.int64,
        ).reshape(-1, 7)
        size, dead, rent_at, written_at, oldest, base, end = columns.T
        paid = np.array([(one.rent, one.rate) for one in segments], np.float64).reshape(-1, 2)
        rent = paid[:, 0] + dead * np.maximum(t - rent_at, 0).astype(np.float64)
        age = np.maximum(t - written_at, 1).astype(np.float64)
        rate = np.maximum(paid[:, 1], SLOWEST_RATE * (size - dead) / age)
        recent = rate * age
        quiet = np.where(dead > 0, MOST_QUIET, 1.0)
        np.divide(dead, recent, out=quiet, where=recent > dead / MOST_QUIET)  # elsewhere it is past the bound
        quiet = np.clip(quiet, 1.0, MOST_QUIET)
        low, high = (ratio * partition.segment_bytes for ratio in FILE_COST_BOUNDS)
        cost = file_cost_bytes if file_cost_bytes > 0 else FILE_COST_RATIO * partition.segment_bytes
        return cls(size, dead, rent * quiet, age, oldest, base, end, min(max(cost, low), high))

    def run(self, partition: PartitionAccount, first: int, last: int, score: float) -> Run:
        taken = slice(first, last + 1)
        read, dead = int(self.size[taken].sum()), int(self.dead[taken].sum())
        return Run(
            topic=partition.topic,
            partition=partition.partition,
            first=first,
            last=last,
            base_offset=int(self.base[first]),
            next_offset=int(self.end[last]),
            read_bytes=read,
            write_bytes=read - dead,
            free_bytes=dead,
            files_in=last - first + 1,
            files_out=-(-(read - dead) // partition.most_bytes),
            score=score,
        )


def best_runs(partition: PartitionAccount, columns: Columns, *, overdue_ms: int | None = None) -> list[Run]:
    """The ten runs with the highest scores, of all that hold garbage.

    overdue_ms: only runs that hold garbage which died at or before this time
    """
    found: list[tuple[float, int, int, int]] = []
    wanted = columns.dead > 0
    if overdue_ms is not None:
        wanted &= (columns.oldest_dead_ms >= 0) & (columns.oldest_dead_ms <= overdue_ms)
    if not wanted.any():
        return []
    segment_bytes = partition.segment_bytes
    cost = columns.file_cost_bytes
    for length, window in _windows(columns, wanted.astype(np.int64), LONGEST_RUN):
        dead, live, rent, age, chosen = window
        starts = np.flatnonzero((chosen > 0) & ((live <= MOST_LIVE_SEGMENTS * segment_bytes) | (length == 1)))
        if not starts.size:
            continue
        files_out = np.maximum(-(-live[starts] // partition.most_bytes), 1)
        gain = rent[starts] + cost * np.maximum(length - files_out, 0) * (age[starts] / length)
        score = gain / (live[starts] + cost * files_out)
        if starts.size > BEST:
            top = np.lexsort((starts, -dead[starts], -score))[:BEST]
            starts, score = starts[top], score[top]
        found += [
            (-one, -int(dead[start]), int(start), int(start) + length - 1)
            for one, start in zip(score.tolist(), starts, strict=True)
        ]
    return [columns.run(partition, first, last, -score) for score, _, first, last in sorted(found)[:BEST]]


def merge(partition: PartitionAccount, columns: Columns) -> Run | None:
    """The run of at most 64 neighbours that fit one file, and cost the least for each file that goes."""
    best: tuple[float, int, int] | None = None
    bases, ends = columns.base, columns.end
    for length, window in _windows(columns, np.zeros(columns.size.size, np.int64), LONGEST_MERGE):
        live = window[1]
        if length == 1:
            continue
        fits = live <= partition.most_bytes
        fits &= ends[length - 1 :] - 1 - bases[: live.size] <= MAX_RELATIVE_OFFSET
        if not fits.any():
            break  # a longer one only holds more
        price = np.where(fits, (live + columns.file_cost_bytes) / (length - 1), np.inf)
        start = int(price.argmin())
        if best is None or price[start] < best[0]:
            best = (float(price[start]), start, start + length - 1)
    return None if best is None else columns.run(partition, best[1], best[2], 0.0)


def all_garbage(partition: PartitionAccount) -> tuple[Run, ...]:
    """Every run of neighbours that hold garbage, whatever it is worth: for a cleaning that was asked for."""
    if partition.quarantined:
        return ()
    columns = Columns.of(partition, 0, 0.0)
    edges = np.diff(np.concatenate(([0], (columns.dead > 0).astype(np.int8), [0])))
    firsts, lasts = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1) - 1
    return tuple(
        columns.run(partition, first, last, 0.0)
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)
    )


def _windows(
    columns: Columns, wanted: Ints, longest: int
) -> Iterator[tuple[int, tuple[Ints, Ints, Floats, Floats, Ints]]]:
    """For each length: sums of garbage, live bytes, rent, age and `wanted` over all runs of it, by first
    segment. Each is the one before plus a segment, so no digits are lost to the rest of the log."""
    whole = (columns.dead, columns.live, columns.rent, columns.age, wanted)
    window = whole
    for length in range(1, min(longest, columns.size.size) + 1):
        if length > 1:
            # As many columns as before: mypy does not count what a generator gives.
            window = tuple(a[:-1] + b[length - 1 :] for a, b in zip(window, whole, strict=True))  # type: ignore[assignment]
        yield length, window


def disjoint(runs: Sequence[Run]) -> list[Run]:
    """The runs by offset; one that takes in what an earlier one made covers it."""
    found: list[Run] = []
    for run in sorted(runs, key=lambda one: (one.base_offset, -one.next_offset)):
        if found and run.base_offset < found[-1].next_offset:
            continue
        found.append(run)
    return found
