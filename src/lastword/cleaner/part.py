"""Which part of a log a round by garbage accounts rewrites, and by which facts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lastword.accounts.ledger import Ledger
from lastword.cleaner.groups import Group, Limits, cut, group, needs_rewrite
from lastword.cleaner.plan import Plan
from lastword.cleaner.runs import Run
from lastword.cleaner.transactions import NOTHING, Found, Transactions
from lastword.partition.log import PartitionLog
from lastword.partition.view import PartitionView

if TYPE_CHECKING:
    from lastword.resolve import Resolution


def groups_of(
    resolution: Resolution, transactions: Found, limits: Limits, run: Run | None
) -> tuple[Group, ...]:
    """What is rewritten together: the run, or all garbage. A run that is not there any more gives nothing."""
    facts = resolution.segments
    if run is None:
        return group(
            [replace(one, tombstones_without_horizon=0) for one in facts], limits, transactions.segments
        )
    within = [
        number
        for number, one in enumerate(facts)
        if run.base_offset <= one.base_offset and one.next_offset <= run.next_offset
    ]
    if not within or facts[within[0]].base_offset != run.base_offset:
        return ()
    return tuple(
        one
        for one in cut(facts, within[0], within[-1], limits)
        if one.count > 1 or one.first in transactions.segments or needs_rewrite(facts[one.first])
    )


def part_of(
    resolution: Resolution, transactions: Found, limits: Limits, run: Run
) -> tuple[tuple[Group, ...], Resolution, Found]:
    """The same of a log that was resolved as a whole, where nobody counted copies, and the facts to rewrite
    by. While garbage lies below the run, an older copy of a key deleted there may be among it: then no
    tombstone's clock starts, and if one goes, all garbage below goes first.
    """
    found, facts = groups_of(resolution, transactions, limits, run), resolution.segments
    first = found[0].first if found else 0
    if not any(one.dead_records for one in facts[:first]):
        return found, resolution, transactions
    if any(one.due_tombstones for each in found for one in facts[each.first : each.last + 1]):
        return (*group(facts[:first], limits, transactions.segments), *found), resolution, transactions
    unclocked = tuple(replace(one, tombstones_without_horizon=0) for one in facts)
    without = replace(transactions, unclocked=frozenset(), segments=frozenset())
    return found, replace(resolution, segments=unclocked), without


def transactions_of(ledger: Ledger, log: PartitionLog | PartitionView, plan: Plan) -> Found:
    """What a rewrite has to know of transactions: a walk over headers, if the log has any."""
    if ledger.transactions_from < 0:
        return NOTHING
    walk = Transactions(log.segments, plan.limit, plan.now_ms, plan.producer_expiration_ms)
    walk.look(ledger.transactions_from)
    return walk.found


def without_blocked(ledger: Ledger, resolution: Resolution, transactions: Found) -> tuple[Resolution, Found]:
    """Facts by which a rewrite writes no delete horizon into a segment where an older copy of some deleted
    key holds a tombstone back; a marker there waits with it."""
    blocked = ledger.blocked_segments()
    if not blocked:
        return resolution, transactions
    facts = resolution.segments
    held = {number for number, one in enumerate(facts) if one.base_offset in blocked}
    ranges = [(facts[number].base_offset, facts[number].next_offset) for number in held]
    unclocked = frozenset(
        offset for offset in transactions.unclocked if not any(first <= offset < end for first, end in ranges)
    )
    segments = tuple(
        replace(one, tombstones_without_horizon=0) if number in held else one
        for number, one in enumerate(facts)
    )
    found = replace(transactions, unclocked=unclocked, segments=transactions.segments - held)
    return replace(resolution, segments=segments), found
