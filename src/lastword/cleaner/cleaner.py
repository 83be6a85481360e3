"""One round over one partition, in this process: choose, map, rewrite, swap, account.

`clean` does it, `plan` says what it would do. By which accounts or none is the strategy's affair
(`accounted`); the phases by themselves are in `phases`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lastword.cleaner import account, leased
from lastword.cleaner.groups import group
from lastword.cleaner.phases import (
    alone,
    below,
    build_whole,
    chosen_plan,
    exactly,
    limits_of,
    map_of,
    paced,
    prepare,
    publish,
    stopped,
)
from lastword.cleaner.plan import Plan
from lastword.cleaner.report import CleanRound
from lastword.cleaner.steps import Steps, Stopped
from lastword.cleaner.transactions import Transactions
from lastword.clock import Clock
from lastword.config import TopicConfig
from lastword.config.instance import DEFAULT_MAP_BYTES, DEFAULT_SPACE_TARGET, DEFAULT_SURVIVORSHIP_ALPHA
from lastword.errors import LastwordError
from lastword.files import Files
from lastword.partition import leases
from lastword.partition.log import PartitionLog
from lastword.partition.view import PartitionView
from lastword.values import ProgressLike

if TYPE_CHECKING:
    from lastword.accounts.deletes import Clocks
    from lastword.accounts.ledger import Ledger
    from lastword.cleaner.budget import DriveBudget
    from lastword.cleaner.runs import Run


def clean(
    log: PartitionLog,
    config: TopicConfig,
    *,
    first_dirty: int | None,
    record_first_dirty: Callable[[int], None],
    due: bool = False,
    strategy: str = "kafka",
    map_bytes: int = DEFAULT_MAP_BYTES,
    map_scratch: str | None = None,
    salt: bytes | None = None,
    progress: ProgressLike | None = None,
    stop: Callable[[], bool] | None = None,
    budget: DriveBudget | None = None,
    ledger: Ledger | None = None,
    run: Run | None = None,
    space_target: float = DEFAULT_SPACE_TARGET,
    alpha: float = DEFAULT_SURVIVORSHIP_ALPHA,
    threads: int = 1,
) -> CleanRound | None:
    """One round over `log`; None when the plan is to keep it (`plan` tells why).

    first_dirty         the cleaner's checkpoint for this partition, None if there is none
    record_first_dirty  called with the new one, after the last swap is durable
    map_scratch         directory where the map's keys lie; None: in memory
    salt                of the key map, secret; None: a fresh one
    stop                asked after each chunk; once true, the round ends early and its unpublished files go
    budget              of the drive: everything that the round reads and writes comes out of it
    threads             that it may use: two are worth it from 32 MiB on

    Of strategy `generational`:

    ledger        the partition's garbage accounts, held by the caller; None: those that were saved
    run           what to rewrite; None: all garbage, or with `due` what is due as if alone on a drive
    space_target  of that drive
    alpha         weight of the survivorship that this round meets
    """
    if strategy == "generational":
        from lastword.cleaner import accounted  # loads the kernels

        return accounted.clean(
            log,
            config,
            ledger=ledger,
            run=run,
            first_dirty=first_dirty,
            record_first_dirty=record_first_dirty,
            due=due,
            map_bytes=map_bytes,
            map_scratch=map_scratch,
            space_target=space_target,
            alpha=alpha,
            salt=salt,
            progress=progress,
            stop=stop,
            budget=budget,
            threads=threads,
        )
    with alone(log.directory):
        plan = prepare(log, config, first_dirty=first_dirty, due=due, strategy=strategy, map_bytes=map_bytes)
        if plan.action != "clean":
            return None
        try:
            files, segments = paced(log, budget, stop)
            built = build_whole(
                files,
                log.directory,
                segments,
                plan,
                log.clock,
                salt=salt,
                progress=progress,
                stop=stop,
                threads=threads,
                scratch=map_scratch,
            )
        except Stopped:
            return stopped(log, plan)
        except LastwordError:
            account.count_failure(log.directory)
            raise
        return publish(log, built, record_first_dirty=record_first_dirty)


def plan(
    view: PartitionView,
    config: TopicConfig,
    *,
    files: Files,
    clock: Clock,
    first_dirty: int | None,
    due: bool = False,
    strategy: str = "kafka",
    map_bytes: int = DEFAULT_MAP_BYTES,
    space_target: float = DEFAULT_SPACE_TARGET,
    clocks: Clocks | None = None,
    salt: bytes | None = None,
    progress: ProgressLike | None = None,
) -> Plan:
    """What `clean` would do now, to the byte: the log is resolved, and rewritten into nothing.

    Takes no lock and changes nothing. `clocks`: of tombstones, by the accounts that are in memory.
    """
    from lastword.cleaner.rewrite import rewrite

    chosen = chosen_plan(view, config, files, clock, first_dirty, due, strategy, map_bytes)
    if chosen.action != "clean":
        return chosen
    if strategy == "generational":
        from lastword.cleaner import accounted_plan  # loads the kernels

        return accounted_plan.plan(
            view,
            config,
            chosen,
            files=files,
            clock=clock,
            space_target=space_target,
            clocks=clocks,
            salt=salt,
            progress=progress,
        )
    sources = below(view.segments, chosen.limit)
    steps = Steps("plan", sum(one.size for one in sources), clock, progress, None)
    transactions = Transactions(view.segments, chosen.limit, chosen.now_ms, chosen.producer_expiration_ms)
    held = leases.load(files, view.directory, chosen.now_ms)
    resolution = map_of(sources, chosen, salt, steps, transactions, held.floor)
    facts, dead = resolution.segments, resolution.dead
    waiting = leased.held_back(sources, facts, dead, now_ms=chosen.now_ms, floor=held.floor)
    found = group(resolution.segments, limits_of(chosen), transactions.found.segments)
    written_bytes = 0
    for one in found:
        written_bytes += rewrite(
            one, sources, resolution, chosen, None, steps.rewritten, transactions.found
        ).size_bytes
    source_bytes = sum(one.size_bytes for one in found)
    segments = sum(one.count for one in found)
    reason = leased.reason(held, waiting)
    return exactly(chosen, resolution, segments, source_bytes, written_bytes, reason, len(waiting))


# ---------------------------------------------------------------- steps of a round
