"""What the rounds of a drive would do, one after another, on paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lastword.accounts.values import DriveAccount, PartitionAccount, SegmentAccount
from lastword.cleaner.cleaner import dry_run
from lastword.cleaner.cleaning import Context
from lastword.cleaner.generational import Choice, because, choose_drive
from lastword.cleaner.liveness import KeptAccounts, not_worth_it
from lastword.cleaner.plan import Plan
from lastword.cleaner.runs import disjoint
from lastword.partition import leases
from lastword.partition.view import PartitionView

if TYPE_CHECKING:
    from lastword.accounts.ledger import Ledger
    from lastword.cleaner.runs import Run
    from lastword.config import TopicConfig


def outlook(drive: DriveAccount, now_ms: int, most_runs: int = 10_000) -> tuple[list[Choice], DriveAccount]:
    """All that would be rewritten now, one choice after another, and the drive as it would be then."""
    choices: list[Choice] = []
    while len(choices) < most_runs:
        choice = choose_drive(drive, now_ms)
        choices.append(choice)
        if choice.run is None:
            break
        drive = replace(
            drive, partitions=tuple(_rewritten(one, choice.run, drive.t) for one in drive.partitions)
        )
    return choices, drive


def planned(
    view: PartitionView,
    config: TopicConfig,
    plan: Plan,
    ledger: Ledger,
    choices: Sequence[Choice],
    context: Context,
) -> Plan:
    """Return what these choices (of `outlook`) mean for one of the drive's partitions, to the byte.

    Args:
        plan: up to where a cleaning may reach (`plan_of`).
        ledger: up to date.
        context: a dry one.
    """
    place = (plan.topic, plan.partition)
    mine = [one for one in choices if one.run is not None and (one.run.topic, one.run.partition) == place]
    if not mine:
        held = leases.load(context.files, view.directory, plan.now_ms)
        return not_worth_it(plan, ledger, choices[-1], held)
    plan = replace(plan, reasons=(*because(mine[0]), *plan.reasons))
    runs = disjoint([one.run for one in mine if one.run is not None])
    return dry_run(view, plan, KeptAccounts(ledger, config, runs=runs, refresh=False), context)


def _rewritten(account: PartitionAccount, run: Run, t: int) -> PartitionAccount:
    if (account.topic, account.partition) != (run.topic, run.partition):
        return account
    old = account.segments[run.first : run.last + 1]
    new = SegmentAccount(
        base_offset=run.base_offset,
        next_offset=run.next_offset,
        size_bytes=run.write_bytes,
        records=sum(one.records - one.dead_records for one in old),
        dead_records=0,
        dead_bytes=0,
        tombstones=sum(one.tombstones for one in old),
        blocked_tombstone_bytes=sum(one.blocked_tombstone_bytes for one in old),
        rent_at=t,
        written_at=t,
    )
    return replace(
        account,
        segments=(*account.segments[: run.first], new, *account.segments[run.last + 1 :]),
        total_bytes=account.total_bytes - run.free_bytes,
    )
