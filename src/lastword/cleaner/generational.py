"""Strategy `generational`: which run of segments of a drive is rewritten next, and why. A `Choice`.

While a drive is within its space target nothing is cleaned. Above it, the run of neighbouring segments that
settles the most rent for each byte moved is rewritten, and one looks again, until the target holds. No
generation has a configured size: a run is a generation, and it ends where the rent falls.

What obliges a drive, the first that holds and that something can be done about:

    overdue   garbage of a partition is older than its max.compaction.lag.ms: the runs that hold it
    ceiling   a partition of more than 4 segments is above 1 / (1 - min.cleanable.dirty.ratio) times its live
              bytes: its runs. It bounds what one reader has to restore
    target    the drive is above its space target: the runs of all its partitions. Partitions without garbage
              lend their room to the others
    files     a partition has more than 3 files for each full one, and 64: neighbours that fit one file merge

Garbage that nobody may touch yet (of the active segment, under a lag, in quarantine, or of a partition that
another strategy cleans) does not count, or the drive would be obliged for ever. Live tombstones that still
have an older copy of their key below them do count, though they are not garbage yet: they go soon after it,
and if they counted as live, a log of short-lived keys would be thought small.

Pure functions of accounts: the scheduler, a dry run and the simulator call the same ones. The order of the
partitions given does not matter, and the same accounts give the same choice. `runs.py` has the score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from lastword.accounts import DriveAccount, PartitionAccount
from lastword.cleaner.groups import is_crowded
from lastword.cleaner.plan import Reason
from lastword.cleaner.runs import BEST, Columns, Run, all_garbage, best_runs, merge
from lastword.units import format_bytes, format_duration
from lastword.values import Value

__all__ = ["Choice", "Obligation", "Run", "all_garbage", "choose_drive", "crowded"]

Obligation = Literal["overdue", "ceiling", "target", "files", "none"]

SMALLEST_CEILING_SEGMENTS = 4


@dataclass(frozen=True, slots=True)
class Choice(Value):
    """What to rewrite next on one drive.

    run    None: nothing, and `text` says why
    best   up to ten runs that were weighed, the chosen one first
    text   the reason, in one sentence
    """

    drive: str
    obligation: Obligation
    run: Run | None
    best: tuple[Run, ...]
    text: str

    def __str__(self) -> str:
        return self.text if self.run is None else f"{self.run}: {self.text}"


def choose_drive(drive: DriveAccount, now_ms: int) -> Choice:
    """The next rewrite on a drive: its best run under the first obligation that holds."""
    wanted = sorted(
        (_Part(one, drive) for one in drive.partitions if _ours(one)),
        key=lambda part: (part.account.topic, part.account.partition),
    )
    reasons: list[str] = []
    return (
        _overdue(drive, wanted, now_ms)
        or _ceiling(drive, wanted, reasons)
        or _target(drive, wanted, reasons)
        or _files(drive, wanted)
        or Choice(drive.drive, "none", None, (), "; ".join(reasons))
    )


def crowded(partition: PartitionAccount) -> bool:
    """Has it so many files that neighbours should merge, although nothing in them is dead?"""
    return is_crowded(len(partition.segments), partition.total_bytes, partition.segment_bytes)


def _ours(partition: PartitionAccount) -> bool:
    return not partition.quarantined and partition.strategy == "generational"


class _Part:
    """One partition that may be chosen. Most looks end with a sum of its garbage; columns are made when runs
    are weighed."""

    def __init__(self, account: PartitionAccount, drive: DriveAccount) -> None:
        self.account = account
        self._drive = drive
        self.blocked_bytes = sum([one.blocked_tombstone_bytes for one in account.segments])
        self.garbage_bytes = sum([one.dead_bytes for one in account.segments]) + self.blocked_bytes

    @cached_property
    def columns(self) -> Columns:
        return Columns.of(self.account, self._drive.t, self._drive.file_cost_bytes)

    @property
    def name(self) -> str:
        return f"{self.account.topic}-{self.account.partition}"

    @property
    def largest(self) -> float:
        """How many times its live bytes it may hold: Kafka's ratio of 0.5 gives 2."""
        return 1 / max(1 - self.account.min_cleanable_dirty_ratio, 1e-9)

    @property
    def excess(self) -> float:
        """Garbage over what the ceiling allows; above 1 it is broken. 0 for a small partition."""
        account = self.account
        if account.total_bytes <= SMALLEST_CEILING_SEGMENTS * account.segment_bytes:
            return 0.0
        allowed = account.min_cleanable_dirty_ratio * account.total_bytes
        if allowed <= 0:
            return float("inf") if self.garbage_bytes else 0.0
        return self.garbage_bytes / allowed


def _best(parts: Sequence[tuple[_Part, int | None]]) -> tuple[Run, ...]:
    """`overdue_ms` of each part, or None: all of its garbage."""
    found = [run for part, ms in parts for run in best_runs(part.account, part.columns, overdue_ms=ms)]
    return tuple(sorted(found, key=lambda run: run.order)[:BEST])


def _overdue(drive: DriveAccount, parts: Sequence[_Part], now_ms: int) -> Choice | None:
    late = []
    for part in parts:
        due_ms = now_ms - part.account.max_compaction_lag_ms
        if due_ms <= 0:
            continue
        died_ms = [one.oldest_dead_ms for one in part.account.segments if one.dead_bytes]
        late_ms = due_ms - min((ms for ms in died_ms if ms >= 0), default=due_ms)
        if late_ms > 0:
            late.append((late_ms, part))
    if not late:
        return None
    late_ms, part = max(late, key=lambda one: one[0])
    best = _best([(part, now_ms - part.account.max_compaction_lag_ms - 1)])
    text = f"{part.name} holds garbage {format_duration(late_ms)} past its max.compaction.lag.ms"
    return Choice(drive.drive, "overdue", best[0], best, text) if best else None


def _ceiling(drive: DriveAccount, parts: Sequence[_Part], reasons: list[str]) -> Choice | None:
    over = sorted((part for part in parts if part.excess > 1), key=lambda part: -part.excess)
    for part in over:
        live = max(part.account.total_bytes - part.garbage_bytes, 1)
        times = f"{part.account.total_bytes / live:.2f} times its live bytes, {part.largest:.2f} at most"
        best = _best([(part, None)])
        if best:
            text = f"{part.name} holds {times} (min.cleanable.dirty.ratio)"
            return Choice(drive.drive, "ceiling", best[0], best, text)
        reasons.append(f"{part.name} holds {times}, but none of it may go yet")
    return None


def _target(drive: DriveAccount, parts: Sequence[_Part], reasons: list[str]) -> Choice | None:
    held = sum(one.total_bytes for one in drive.partitions)
    garbage = sum(part.garbage_bytes for part in parts)
    share = held / max(held - garbage, 1)
    holds = f"the drive holds {share:.2f} times its live bytes"
    if garbage <= (1 - 1 / drive.space_target) * held:
        closed = sum(segment.size_bytes for one in drive.partitions for segment in one.segments)
        rest = "" if held == closed else f" ({format_bytes(held - closed)} not closed yet count as live)"
        reasons.append(f"{holds}{rest}, within its target of {drive.space_target:g}")
        return None
    best = _best([(part, None) for part in parts])
    if not best:
        blocked = sum(part.blocked_bytes for part in parts)
        what = f"{format_bytes(blocked)} of tombstones wait for older copies of their keys"
        reasons.append(f"{holds}, above its target of {drive.space_target:g}, but {what}")
        return None
    text = f"{holds}, above its target of {drive.space_target:g}"
    return Choice(drive.drive, "target", best[0], best, text)


def _files(drive: DriveAccount, parts: Sequence[_Part]) -> Choice | None:
    many = sorted((part for part in parts if crowded(part.account)), key=lambda p: -len(p.account.segments))
    for part in many:
        run = merge(part.account, part.columns)
        if run is not None:
            text = f"{part.name} has {len(part.account.segments)} segments, {run.files_in} of them fit in one"
            return Choice(drive.drive, "files", run, (run,), text)
    return None


def because(choice: Choice) -> tuple[Reason, ...]:
    """Return why a run was chosen, and the others that were weighed with their scores."""
    others = []
    for run in choice.best:
        score = f"{run.score:,.0f}" if run.score >= 10 else f"{run.score:.2g}"
        others.append(Reason("weighed", f"{run}, score {score} (garbage x its age, for each byte moved)"))
    return (Reason(choice.obligation, choice.text), *others)
