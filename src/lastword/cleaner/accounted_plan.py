"""What a round by garbage accounts would do: its plan, to the byte; or about, where only a sample of the keys
is tracked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lastword.accounts.deletes import Clocks
from lastword.accounts.ledger import Ledger
from lastword.cleaner import leased, phases
from lastword.cleaner.accounted import account_of, choose_alone, look, opened
from lastword.cleaner.generational import Choice
from lastword.cleaner.groups import Group
from lastword.cleaner.part import groups_of, transactions_of, without_blocked
from lastword.cleaner.plan import NOT_WORTH_IT, Plan, Reason
from lastword.cleaner.runs import Run, all_garbage
from lastword.cleaner.steps import Steps
from lastword.clock import Clock
from lastword.config import TopicConfig
from lastword.config.instance import DEFAULT_SPACE_TARGET
from lastword.files import Files
from lastword.partition import leases
from lastword.partition.leases import Leases
from lastword.partition.view import PartitionView
from lastword.values import ProgressLike

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def plan(
    view: PartitionView,
    config: TopicConfig,
    chosen: Plan,
    *,
    files: Files,
    clock: Clock,
    ledger: Ledger | None = None,
    runs: Sequence[Run] | None = None,
    space_target: float = DEFAULT_SPACE_TARGET,
    clocks: Clocks | None = None,
    salt: bytes | None = None,
    progress: ProgressLike | None = None,
) -> Plan:
    """What a round would do now, to the byte: what is new is scanned, and the rest rewritten into nothing.

    chosen  up to where the round may reach (`choose`)
    ledger  of the caller, up to date; None: the one that was saved, brought up to date for this call
    clocks  of tombstones, where a ledger in memory knows more than the one that was saved
    runs    what would be rewritten; None: all garbage, or what is due as if alone on a drive
    """
    from lastword.cleaner.rewrite import rewrite

    scanned = 0
    if ledger is None:
        ledger = opened(view, files, chosen.map_bytes, salt)
        if clocks is not None:
            ledger.deletes.clocks.offset, ledger.deletes.clocks.since_ms = clocks
        to_scan = sum(one.size for one in view.segments if ledger.limit <= one.base_offset < chosen.limit)
        steps = Steps("plan", to_scan, clock, progress, None)
        scanned = look(view, files, ledger, chosen, view.segments, steps.mapped, dry=True)
    else:
        steps = Steps("plan", 0, clock, progress, None)
    held = leases.load(files, view.directory, chosen.now_ms)
    if chosen.due and runs is None:
        choice = choose_alone(view, config, ledger, space_target=space_target, now_ms=chosen.now_ms)
        if choice.run is None:
            return kept(chosen, ledger, choice, held)
        runs = [choice.run]
        chosen = replace(chosen, reasons=(*because(choice), *chosen.reasons))
    if not ledger.exact:
        return estimated(view, config, chosen, ledger, runs)
    waiting = leased.reason(held, held_back(ledger, chosen, held))
    resolution = ledger.resolution()
    transactions = transactions_of(ledger, view, chosen)
    limits = phases.limits_of(chosen)
    found: list[Group] = []
    for run in runs if runs is not None else [None]:
        found += groups_of(resolution, transactions, limits, run)
    if not found:
        return kept(chosen, ledger, None, held)
    sources = phases.below(view.segments, chosen.limit)
    steps.expect(sum(one.size_bytes for one in found))
    clocked, transactions = without_blocked(ledger, resolution, transactions)
    written_bytes = sum(
        rewrite(one, sources, clocked, chosen, None, steps.rewritten, transactions).size_bytes
        for one in found
    )
    source_bytes = sum(one.size_bytes for one in found)
    return replace(
        chosen,
        reasons=chosen.reasons if waiting is None else (*chosen.reasons, waiting),
        segments=sum(one.count for one in found),
        read_bytes=scanned + source_bytes,
        write_bytes=written_bytes,
        free_bytes=source_bytes - written_bytes,
        exact=True,
    )


def estimated(
    view: PartitionView, config: TopicConfig, chosen: Plan, ledger: Ledger, runs: Sequence[Run] | None
) -> Plan:
    """The same from a sample of the keys: about. Such a round resolves the log as a whole."""
    own = account_of(view, config, ledger, drive=view.directory, quarantined=False)
    dead = own.dead_bytes
    if runs is None and dead == 0:
        return kept(chosen, ledger, None, Leases())
    total = sum(one.size_bytes for one in own.segments)
    taken = all_garbage(own) if runs is None else runs
    return replace(
        chosen,
        segments=sum(one.files_in for one in taken),
        read_bytes=total + sum(one.read_bytes for one in taken),
        write_bytes=sum(one.write_bytes for one in taken),
        free_bytes=sum(one.free_bytes for one in taken),
        exact=False,
    )


def held_back(ledger: Ledger, plan: Plan, held: Leases) -> NDArray[np.int64]:
    """Offsets of tombstones that nothing but a lease keeps."""
    return ledger.deletes.held_back(plan.now_ms, plan.delete_retention_ms, held.floor)


def kept(plan: Plan, ledger: Ledger, choice: Choice | None, held: Leases) -> Plan:
    """The plan of a partition that is left alone, with the reason."""
    plan = replace(plan, exact=ledger.exact)
    waiting = held_back(ledger, plan, held)
    reason = leased.reason(held, waiting)
    if choice is None:
        tombstones = sum(one.tombstones for one in ledger.facts())
        return plan.only_newest(tombstones, reason, len(waiting))
    if reason is not None:
        plan = replace(plan, reasons=(reason, *plan.reasons))
    return plan.kept(NOT_WORTH_IT, choice.text)


def disjoint(runs: Sequence[Run]) -> list[Run]:
    """The runs by offset; one that takes in what an earlier one made covers it."""
    found: list[Run] = []
    for run in sorted(runs, key=lambda one: (one.base_offset, -one.next_offset)):
        if found and run.base_offset < found[-1].next_offset:
            continue
        found.append(run)
    return found


def because(choice: Choice) -> tuple[Reason, ...]:
    """Return why a run was chosen, and the others that were weighed with their scores."""
    others = []
    for run in choice.best:
        score = f"{run.score:,.0f}" if run.score >= 10 else f"{run.score:.2g}"
        others.append(Reason("weighed", f"{run}, score {score} (garbage x its age, for each byte moved)"))
    return (Reason(choice.obligation, choice.text), *others)
