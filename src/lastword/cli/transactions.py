"""`lastword transactions` and `groups`: what holds readers and the cleaning back, and where readers are."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

from lastword.cli.command import Session, Yes, command, confirm, dry_run_option, now_ms, option
from lastword.cli.target import AnyTopics, OneTopic, Target
from lastword.errors import LastwordError, UsageError
from lastword.units import format_bytes, format_duration
from lastword.values import plural

if TYPE_CHECKING:
    from lastword.api.logs import LogDir
    from lastword.api.open_transactions import OpenTransaction

SHOWN = 3
"""Most open transactions that another command names."""


@command("transactions", usage="DIR [TOPIC...]", changes=True)
def transactions(
    out: Session,
    target: AnyTopics,
    abort: Annotated[
        str | None, option("ID", "abort the transaction of this producer id or transactional id")
    ] = None,
    dry_run: Annotated[bool, dry_run_option("show what would be aborted")] = False,
    yes: Yes = False,
) -> None:
    """List open transactions, or abort one.

    Committed readers stay at the first offset of an open transaction, and nothing behind it is cleaned. A
    broker or `lastword serve` ends a transaction whose coordinator has it when its time is up; --abort ends
    one that hangs, with a marker in each partition. Its records are then never read.

    Examples:
        lastword transactions data
        lastword transactions data orders --abort 4100 --dry-run
        lastword transactions data orders --abort 4100 --yes
    """
    if abort is None:
        if dry_run or yes:
            raise UsageError("--dry-run and --yes are for --abort", remedy="--abort ID names the transaction")
        with out.open(target) as logs:
            found = logs.transactions(target.chosen, target.partition)
            at_ms = now_ms()
        _show(out, found, at_ms)
        out.summary(None if found else "no open transactions", transactions=len(found))
        return
    producer = int(abort) if abort.isdecimal() else abort
    with out.open(target) as logs:
        chosen = logs.abort(producer, target.chosen, target.partition, dry_run=True)
        at_ms = now_ms()
    _show(out, chosen, at_ms)
    extent = f"the transaction of {abort} in {plural(len(chosen), 'partition')}"
    if dry_run:
        out.summary(f"would abort {extent}; nothing was changed", transactions=len(chosen))
        return
    confirm(f"abort {extent}", yes)
    with out.change(target) as logs:
        done = logs.abort(producer, target.chosen, target.partition)
    out.summary(f"aborted {extent}", transactions=len(done))


def _show(out: Session, found: list[OpenTransaction], at_ms: int) -> None:
    for transaction in found:
        out.row("transaction", {**transaction.to_dict(), "age_ms": at_ms - transaction.timestamp})
    out.rows(
        [
            transaction.cells() | {"AGE": format_duration(max(0, at_ms - transaction.timestamp))}
            for transaction in found
        ],
        ("PARTITION", "TRANSACTIONAL ID", "STATE", "AGE"),
        spare=("EPOCH", "STATE"),
    )


@command("groups", usage="DIR [TOPIC]")
def groups(out: Session, target: OneTopic) -> None:
    """List the positions of consumer groups, and their lag.

    The positions are records of __consumer_offsets, which this command reads. BEHIND counts offsets to the
    log end, LAG is the age of the first batch that the group has not read.

    Examples:
        lastword groups data
        lastword groups data users --json
    """
    from lastword.api.groups import group_positions

    with out.open(target) as logs:
        positions = group_positions(logs.dirs, target.topic, target.partition)
    for position in positions:
        out.row("group", position.to_dict())
    out.rows(
        [
            {
                "GROUP": position.group,
                "PARTITION": f"{position.topic}-{position.partition}",
                "MEMBERS": _count(position.members, "-"),
                "POSITION": _count(position.offset, "-"),
                "END": _count(position.log_end, "?"),
                "BEHIND": _count(position.lag_offsets, "?"),
                "LAG": "-" if position.lag_ms is None else format_duration(position.lag_ms),
            }
            for position in positions
        ],
        ("GROUP", "PARTITION"),
        spare=("MEMBERS", "END"),
    )
    names = len({position.group for position in positions})
    out.summary(None if positions else "no positions of groups", groups=names, positions=len(positions))


def _count(count: int | None, unknown: str) -> str:
    return unknown if count is None else str(count)


def held_texts(logs: LogDir, target: Target, topics: Iterable[str], least_ms: int = 0) -> list[str]:
    """Return a sentence for each open transaction of topics, with the command that ends it.

    Args:
        logs: The open directory.
        target: The directories and the partition of the command.
        topics: The topics.
        least_ms: Leave out younger transactions.
    """
    texts, at_ms = [], now_ms()
    for topic in sorted(topics):
        found: list[OpenTransaction] = []
        with suppress(LastwordError):  # a partition that cannot be read is the command's own error
            found = logs.transactions(topic, target.partition)
        found = [transaction for transaction in found if at_ms - transaction.timestamp >= least_ms]
        for transaction in found[:SHOWN]:
            age = format_duration(max(0, at_ms - transaction.timestamp))
            fix = target.command("transactions", topic, "--abort", str(transaction.producer_id))
            held = f"{format_bytes(transaction.held_bytes)} in the segments from there on are not cleaned"
            texts.append(f"{transaction}, for {age}: {held}; if it hangs: {fix}")
        if len(found) > SHOWN:
            all_of_them = target.command("transactions", topic)
            texts.append(f"{topic}: {len(found) - SHOWN} more open transactions: {all_of_them}")
    return texts
