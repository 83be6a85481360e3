"""Strategy `generational`: which run of segments of a drive is rewritten next, and why: a `Choice`.

A drive within its space target is not cleaned. Above it, the run of neighbouring segments with the highest
score is rewritten, and the drive is inspected again, until the target holds. Generations have no configured
size: a run is a generation, and it ends where the score falls.

A drive must be cleaned for one of these reasons (obligations). The first that holds, and for which a run
exists, decides:

    overdue   garbage of a partition is older than its max.compaction.lag.ms: the runs that hold it
    ceiling   a partition larger than 4 times `segment.bytes` is above 1 / (1 - min.cleanable.dirty.ratio)
              times its live bytes: its runs. This bounds the bytes that one reader has to restore
    target    the drive is above its space target: the runs of all its partitions. A partition without garbage
              leaves its share of the space to the others
    files     a partition has more than 3 files for each full one, and 64: neighbours that fit one file merge

Garbage that may not be removed yet (of the active segment, under a lag, in quarantine, or of a partition with
another strategy) does not count: otherwise the obligation would never end. Live tombstones with an older
record of their key in a closed segment do count, although they are not garbage yet: they go soon after that
record, and a log of short-lived keys would otherwise look small.

Score of a run
--------------

A byte of garbage ages by one unit for each byte that is appended to the drive (the write clock). The score is
the garbage age that a rewrite settles for each byte that it moves:

    score = ( sum of garbage age * cooling  +  h * max(0, files_in - max(1, files_out)) * mean age )
            / ( sum of live bytes  +  F * max(1, files_out) )

cooling  average death rate of a segment over its recent one, 1 to 4: a segment whose records still die
         waits, a segment that has cooled goes first
h, F     the worth of one file less and the cost of one file more, in bytes moved: the drive's
         `file_cost_bytes`, bounded to 0.01..0.2 of `segment.bytes`

For garbage that grows steadily this is the rule of log-structured file systems (garbage times age by bytes
moved), with the segment's own history in place of age. A segment that exceeds the bound on the bytes of one
rewrite (its settings changed since) is a run by itself, so all garbage can be removed at some time.

All functions here are pure, over arrays of one partition's segments: the scheduler, a dry run and the
simulator call the same ones. The order of the partitions does not matter. For many choices on one drive,
`DriveChooser` keeps what has not changed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from itertools import islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lastword.accounts import DriveAccount, PartitionAccount
from lastword.cleaner.policy.groups import is_crowded
from lastword.cleaner.policy.plan import Reason
from lastword.segment.names import MAX_RELATIVE_OFFSET
from lastword.units import format_bytes, format_duration
from lastword.values import Value

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LONGEST_RUN = 8
LONGEST_MERGE = 64
MOST_LIVE_SEGMENTS = 2  # the most that one rewrite moves, in segments of segment.bytes
FILE_COST_RATIO = 0.05  # of segment.bytes, while nothing was measured
FILE_COST_BOUNDS = (0.01, 0.2)
MOST_COOLING = 4.0
LOWEST_DEATH_RATE = 0.02  # of the live bytes, over the segment's age
BEST = 10


@dataclass(frozen=True, slots=True)
class SegmentRun(Value):
    """Neighbouring segments that are rewritten together.

    Attributes:
        first: Index of the first among the account's segments.
        last: Index of the last one.
        read_bytes: Bytes of the sources.
        write_bytes: Bytes that survive.
        free_bytes: The difference.
        files_out: Files that the survivors fill, of about equal size.
        score: Garbage age settled for each byte moved; 0 for a merge.
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
        """Return the sort key: best first, independent of the order in which runs are found."""
        return (-self.score, -self.free_bytes, self.topic, self.partition, self.first, self.last)


@dataclass(frozen=True, slots=True)
class Columns:
    """One partition's segments as arrays of equal length."""

    size: Ints
    dead: Ints
    garbage_age: Floats
    age: Floats
    oldest_dead_ms: Ints
    base: Ints
    end: Ints
    file_cost_bytes: float

    @property
    def live(self) -> Ints:
        """Return the live bytes of each segment."""
        return self.size - self.dead

    @classmethod
    def of(cls, partition: PartitionAccount, write_clock: int, file_cost_bytes: float) -> Columns:
        """Return the columns of a partition at this time of its drive."""
        segments = partition.segments
        columns = np.array(
            [
                (
                    segment.size_bytes,
                    segment.dead_bytes,
                    segment.garbage_age_at,
                    segment.written_at,
                    segment.oldest_dead_ms,
                    segment.base_offset,
                    segment.next_offset,
                )
                for segment in segments
            ],
            np.int64,
        ).reshape(-1, 7)
        size, dead, garbage_age_at, written_at, oldest, base, end = columns.T
        paid = np.array(
            [(segment.garbage_age, segment.death_rate) for segment in segments], np.float64
        ).reshape(-1, 2)
        garbage_age = paid[:, 0] + dead * np.maximum(write_clock - garbage_age_at, 0).astype(np.float64)
        age = np.maximum(write_clock - written_at, 1).astype(np.float64)
        death_rate = np.maximum(paid[:, 1], LOWEST_DEATH_RATE * (size - dead) / age)
        recent = death_rate * age
        cooling = np.where(dead > 0, MOST_COOLING, 1.0)  # the bound, where the quotient is past it
        np.divide(dead, recent, out=cooling, where=recent > dead / MOST_COOLING)
        cooling = np.clip(cooling, 1.0, MOST_COOLING)
        low, high = (ratio * partition.segment_bytes for ratio in FILE_COST_BOUNDS)
        cost = file_cost_bytes if file_cost_bytes > 0 else FILE_COST_RATIO * partition.segment_bytes
        return cls(size, dead, garbage_age * cooling, age, oldest, base, end, min(max(cost, low), high))

    def run(self, partition: PartitionAccount, first: int, last: int, score: float) -> SegmentRun:
        """Return the run of the segments `first` to `last`."""
        taken = slice(first, last + 1)
        read, dead = int(self.size[taken].sum()), int(self.dead[taken].sum())
        return SegmentRun(
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


def best_runs(
    partition: PartitionAccount, columns: Columns, *, overdue_ms: int | None = None
) -> list[SegmentRun]:
    """Return the ten runs with the highest scores, of all that hold garbage, by their `order`.

    Args:
        partition: The partition.
        columns: Its columns.
        overdue_ms: Only runs with garbage that died at or before this time.
    """
    scored: list[tuple[float, int, int, int]] = []
    wanted = columns.dead > 0
    if overdue_ms is not None:
        wanted &= (columns.oldest_dead_ms >= 0) & (columns.oldest_dead_ms <= overdue_ms)
    if not wanted.any():
        return []
    segment_bytes = partition.segment_bytes
    cost = columns.file_cost_bytes
    for length, window in _windows(columns, wanted.astype(np.int64), LONGEST_RUN):
        dead, live, garbage_age, age, chosen = window
        starts = np.flatnonzero((chosen > 0) & ((live <= MOST_LIVE_SEGMENTS * segment_bytes) | (length == 1)))
        if not starts.size:
            continue
        files_out = np.maximum(-(-live[starts] // partition.most_bytes), 1)
        gain = garbage_age[starts] + cost * np.maximum(length - files_out, 0) * (age[starts] / length)
        score = gain / (live[starts] + cost * files_out)
        if starts.size > BEST:
            top = np.lexsort((starts, -dead[starts], -score))[:BEST]
            starts, score = starts[top], score[top]
        scored += [
            (-negative, -int(dead[start]), int(start), int(start) + length - 1)
            for negative, start in zip(score.tolist(), starts, strict=True)
        ]
    return [columns.run(partition, first, last, -score) for score, _, first, last in sorted(scored)[:BEST]]


def merge(partition: PartitionAccount, columns: Columns) -> SegmentRun | None:
    """Return the run of at most 64 neighbours that fit one file, and cost the least per file saved."""
    best: tuple[float, int, int] | None = None
    bases, ends = columns.base, columns.end
    for length, window in _windows(columns, np.zeros(columns.size.size, np.int64), LONGEST_MERGE):
        live = window[1]
        if length == 1:
            continue
        fits = live <= partition.most_bytes
        fits &= ends[length - 1 :] - 1 - bases[: live.size] <= MAX_RELATIVE_OFFSET
        if not fits.any():
            break  # a longer run only holds more
        price = np.where(fits, (live + columns.file_cost_bytes) / (length - 1), np.inf)
        start = int(price.argmin())
        if best is None or price[start] < best[0]:
            best = (float(price[start]), start, start + length - 1)
    return None if best is None else columns.run(partition, best[1], best[2], 0.0)


def all_garbage(partition: PartitionAccount) -> tuple[SegmentRun, ...]:
    """Return every run of neighbours that hold garbage, whatever its score: for a requested cleaning."""
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
    """Yield for each length the sums over all runs of it, by first segment.

    The sums are garbage, live bytes, garbage age, age and `wanted`. Each is the one before plus a segment, so
    no digits are lost to the rest of the log.
    """
    whole = (columns.dead, columns.live, columns.garbage_age, columns.age, wanted)
    window = whole
    for length in range(1, min(longest, columns.size.size) + 1):
        if length > 1:
            # As many columns as before: mypy does not count the elements of a generator.
            window = tuple(a[:-1] + b[length - 1 :] for a, b in zip(window, whole, strict=True))  # type: ignore[assignment]
        yield length, window


def disjoint(runs: Sequence[SegmentRun]) -> list[SegmentRun]:
    """Return the runs by offset, without those that another run covers."""
    kept: list[SegmentRun] = []
    for run in sorted(runs, key=lambda run: (run.base_offset, -run.next_offset)):
        if kept and run.base_offset < kept[-1].next_offset:
            continue
        kept.append(run)
    return kept


Obligation = Literal["overdue", "ceiling", "target", "files", "none"]

SPACE_LIMIT_SEGMENTS = 4


@dataclass(frozen=True, slots=True)
class Choice(Value):
    """What to rewrite next on one drive.

    Attributes:
        run: None: nothing, and `text` says why.
        best: Up to ten runs that were compared, the chosen one first.
        text: The reason, in one sentence.
    """

    drive: str
    obligation: Obligation
    run: SegmentRun | None
    best: tuple[SegmentRun, ...]
    text: str

    def __str__(self) -> str:
        return self.text if self.run is None else f"{self.run}: {self.text}"


def choose_drive(drive: DriveAccount, now_ms: int) -> Choice:
    """Return the next rewrite on a drive: its best run under the first obligation that holds."""
    return DriveChooser(drive, now_ms).choose()


def crowded(partition: PartitionAccount) -> bool:
    """Return whether a partition has enough files that neighbours merge without garbage."""
    return is_crowded(len(partition.segments), partition.total_bytes, partition.segment_bytes)


def _ours(partition: PartitionAccount) -> bool:
    return not partition.quarantined and partition.strategy == "generational"


class _Part:
    """One partition that may be chosen.

    Most calls end with a sum of its garbage; columns are made when runs are compared.
    """

    def __init__(self, account: PartitionAccount, drive: DriveAccount) -> None:
        self.account = account
        self._drive = drive
        self.blocked_bytes = sum([segment.blocked_tombstone_bytes for segment in account.segments])
        self.garbage_bytes = sum([segment.dead_bytes for segment in account.segments]) + self.blocked_bytes

    @cached_property
    def columns(self) -> Columns:
        return Columns.of(self.account, self._drive.write_clock, self._drive.file_cost_bytes)

    @cached_property
    def best(self) -> tuple[SegmentRun, ...]:
        """Return the best runs of all garbage."""
        return tuple(best_runs(self.account, self.columns))

    @cached_property
    def merge(self) -> SegmentRun | None:
        """Return the run that merges neighbours without garbage."""
        return merge(self.account, self.columns)

    @property
    def tp(self) -> tuple[str, int]:
        return self.account.topic, self.account.partition

    @property
    def name(self) -> str:
        return f"{self.account.topic}-{self.account.partition}"

    @property
    def largest(self) -> float:
        """Return how many times its live bytes it may hold: Kafka's ratio of 0.5 gives 2."""
        return 1 / max(1 - self.account.min_cleanable_dirty_ratio, 1e-9)

    @property
    def excess(self) -> float:
        """Return garbage over what the space limit allows; above 1 it is broken. 0 for a small partition."""
        account = self.account
        if account.total_bytes <= SPACE_LIMIT_SEGMENTS * account.segment_bytes:
            return 0.0
        allowed = account.min_cleanable_dirty_ratio * account.total_bytes
        if allowed <= 0:
            return float("inf") if self.garbage_bytes else 0.0
        return self.garbage_bytes / allowed


class _Ranking:
    """Items of a drive's partitions, the lowest key first; those of a partition are replaced together."""

    def __init__(self) -> None:
        self._heap: list[tuple[Any, int, int, int, Any]] = []
        self._versions: dict[int, int] = {}

    def put(self, number: int, items: Iterable[tuple[Any, Any]]) -> None:
        """Replace the items of one partition. Each is a key and a value."""
        version = self._versions[number] = self._versions.get(number, 0) + 1
        for count, (key, value) in enumerate(items):
            heappush(self._heap, (key, number, version, count, value))

    def values(self) -> Generator[Any, None, None]:
        """Yield the values in order; close the iterator before the next `put`."""
        taken = []
        try:
            while self._heap:
                entry = heappop(self._heap)
                if entry[2] == self._versions[entry[1]]:
                    taken.append(entry)
                    yield entry[4]
        finally:
            for entry in taken:
                heappush(self._heap, entry)

    def first(self, count: int) -> list[Any]:
        """Return the first values."""
        with closing(self.values()) as values:
            return list(islice(values, count))


class DriveChooser:
    """Chooses rewrites on one drive, one after another, while its partitions change one by one.

    A choice, and an update of one partition, cost the same for a drive of 20 and of 20,000 partitions.
    """

    def __init__(self, drive: DriveAccount, now_ms: int) -> None:
        self._drive = drive
        self._now_ms = now_ms
        self._accounts: list[PartitionAccount | None] = []
        self._parts: list[_Part | None] = []  # those that may be chosen
        self._numbers: dict[tuple[str, int], int] = {}
        self._late, self._over, self._crowded = _Ranking(), _Ranking(), _Ranking()
        self._runs: _Ranking | None = None  # best runs of all parts, made when runs are first compared
        self._held_bytes = self._closed_bytes = self._garbage_bytes = self._blocked_bytes = 0
        for account in drive.partitions:
            self._numbers[account.topic, account.partition] = len(self._parts)
            self._accounts.append(None)
            self._parts.append(None)
            self._set(len(self._parts) - 1, account)

    @property
    def write_clock(self) -> int:
        """The time of the drive by which garbage is aged."""
        return self._drive.write_clock

    def update(self, tp: tuple[str, int], account: PartitionAccount | None) -> None:
        """Replace the account of one partition. None: the partition is left out."""
        self._set(self._numbers[tp], account)

    def choose(self) -> Choice:
        """Return the next rewrite: the best run under the first obligation that holds."""
        reasons: list[str] = []
        return (
            self._overdue()
            or self._space_limit(reasons)
            or self._target(reasons)
            or self._files()
            or Choice(self._drive.drive, "none", None, (), "; ".join(reasons))
        )

    @property
    def is_obliged(self) -> bool:
        """Whether one of the reasons to clean holds; there may be no run for it."""
        rankings = (self._late, self._over, self._crowded)
        return self._is_above_target or any(ranking.first(1) for ranking in rankings)

    @property
    def _is_above_target(self) -> bool:
        return self._garbage_bytes > (1 - 1 / self._drive.space_target) * self._held_bytes

    def _set(self, number: int, account: PartitionAccount | None) -> None:
        self._add(number, -1)
        self._accounts[number] = account
        part = _Part(account, self._drive) if account is not None and _ours(account) else None
        self._parts[number] = part
        self._add(number, 1)
        late_ms = 0 if part is None else part.account.late_ms(self._now_ms)
        self._late.put(number, [((-late_ms, *part.tp), (late_ms, part))] if part and late_ms > 0 else ())
        self._over.put(number, [((-part.excess, *part.tp), part)] if part and part.excess > 1 else ())
        many = part is not None and crowded(part.account)
        self._crowded.put(number, [((-len(part.account.segments), *part.tp), part)] if part and many else ())
        if self._runs is not None:
            self._runs.put(number, [(run.order, run) for run in part.best] if part else ())

    def _add(self, number: int, sign: int) -> None:
        account, part = self._accounts[number], self._parts[number]
        if account is not None:
            self._held_bytes += sign * account.total_bytes
            self._closed_bytes += sign * sum([segment.size_bytes for segment in account.segments])
        if part is not None:
            self._garbage_bytes += sign * part.garbage_bytes
            self._blocked_bytes += sign * part.blocked_bytes

    def _overdue(self) -> Choice | None:
        for late_ms, part in self._late.first(1):
            overdue_ms = self._now_ms - part.account.max_compaction_lag_ms - 1
            best = tuple(best_runs(part.account, part.columns, overdue_ms=overdue_ms))
            text = f"{part.name} holds garbage {format_duration(late_ms)} past its max.compaction.lag.ms"
            if best:
                return Choice(self._drive.drive, "overdue", best[0], best, text)
        return None

    def _space_limit(self, reasons: list[str]) -> Choice | None:
        with closing(self._over.values()) as parts:
            for part in parts:
                live = max(part.account.total_bytes - part.garbage_bytes, 1)
                times = (
                    f"{part.account.total_bytes / live:.2f} times its live bytes, {part.largest:.2f} at most"
                )
                if part.best:
                    text = f"{part.name} holds {times} (min.cleanable.dirty.ratio)"
                    return Choice(self._drive.drive, "ceiling", part.best[0], part.best, text)
                reasons.append(f"{part.name} holds {times}, but none of it may go yet")
        return None

    def _target(self, reasons: list[str]) -> Choice | None:
        drive, held, garbage = self._drive, self._held_bytes, self._garbage_bytes
        holds = f"the drive holds {held / max(held - garbage, 1):.2f} times its live bytes"
        if not self._is_above_target:
            open_bytes = held - self._closed_bytes
            rest = f" ({format_bytes(open_bytes)} not closed yet count as live)" if open_bytes else ""
            reasons.append(f"{holds}{rest}, within its target of {drive.space_target:g}")
            return None
        if self._runs is None:
            self._runs = _Ranking()
            for number, part in enumerate(self._parts):
                self._runs.put(number, [(run.order, run) for run in part.best] if part else ())
        best = tuple(self._runs.first(BEST))
        if not best:
            blocked = f"{format_bytes(self._blocked_bytes)} of tombstones wait for older copies of their keys"
            reasons.append(f"{holds}, above its target of {drive.space_target:g}, but {blocked}")
            return None
        text = f"{holds}, above its target of {drive.space_target:g}"
        return Choice(drive.drive, "target", best[0], best, text)

    def _files(self) -> Choice | None:
        with closing(self._crowded.values()) as parts:
            for part in parts:
                run = part.merge
                if run is not None:
                    count = len(part.account.segments)
                    text = f"{part.name} has {count} segments, {run.files_in} of them fit in one"
                    return Choice(self._drive.drive, "files", run, (run,), text)
        return None


def because(choice: Choice) -> tuple[Reason, ...]:
    """Return why a run was chosen, and the runs that it was compared with, with their scores."""
    others = []
    for run in choice.best:
        score = f"{run.score:,.0f}" if run.score >= 10 else f"{run.score:.2g}"
        others.append(Reason("weighed", f"{run}, score {score} (garbage x its age, for each byte moved)"))
    return (Reason(choice.obligation, choice.text), *others)
