"""`lastword verify`: check every checksum, index, checkpoint and invariant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from lastword.cli.command import Session, command
from lastword.cli.target import Directory, MoreDirs, Partition, Target, TopicName
from lastword.units import format_bytes
from lastword.values import plural

if TYPE_CHECKING:
    from lastword.tools.findings import Problem

EXAMPLES = """
lastword verify data
lastword verify data users --quick
lastword verify data users --md5
lastword verify data/users-0 --json
"""


def register(app: typer.Typer) -> None:
    """Add the command `verify`."""
    command(app, "verify", usage="DIR [TOPIC]", examples=EXAMPLES)(verify)


def verify(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    partition: Partition = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="check headers, indexes and checkpoints, not records")
    ] = False,
    md5: Annotated[
        bool,
        typer.Option(
            "--md5", help="also find different keys with the same MD5, which Kafka's cleaner confuses"
        ),
    ] = False,
    more: MoreDirs = None,
) -> int:
    """Check every checksum, index, checkpoint and invariant.

    Changes nothing. Exit code 1 if there are problems.
    """
    from lastword.tools.findings import OPEN, RESTORE

    target = Target.of(directory, topic, partition, more)
    with out.open(target) as logs, out.progress("verify") as progress:
        verification = logs.verify(target.topic, target.partition, quick=quick, md5=md5, progress=progress)
    for problem in verification.problems:
        out.row("problem", {**problem.to_dict(), "remove": problem.remove})
        out.line(out.paint(str(problem), "yellow" if problem.repairable else "red"))
        if problem.remedy not in (OPEN, RESTORE):
            out.line(f"  fix: {problem.remedy}")
    for collision in verification.collisions:
        out.row("md5-collision", collision.to_dict())
        out.line(
            out.paint(f"{collision}: Kafka's cleaner would remove records of one key for the other", "red")
        )
    counts = f"{plural(verification.batches, 'batch')}, {plural(verification.records, 'record')}"
    if quick:
        counts += ", from headers only: checksums and records were not checked"
    else:
        counts += f", {format_bytes(verification.read_bytes)} read"
    if not verification.problems:
        text = f"all sound: {counts}" if verification.ok else counts
    else:
        wrong = plural(len(verification.problems), "problem")
        cuts = any(
            problem.code == "incomplete-batch" and problem.repairable for problem in verification.problems
        )
        how = ", which cuts off everything after the last sound batch" if cuts else ""
        text = f"{wrong}, {_repairs(verification.problems)}{how}: {counts}"
    if md5:
        pairs = plural(len(verification.collisions), "MD5") if verification.collisions else "no MD5"
        text += f"; {plural(verification.keys, 'key')} compared, {pairs} shared"
    more_totals = {"keys": verification.keys, "md5_collisions": len(verification.collisions)} if md5 else {}
    out.summary(
        text,
        ok=verification.ok,
        batches=verification.batches,
        records=verification.records,
        read_bytes=verification.read_bytes,
        problems=len(verification.problems),
        **more_totals,
    )
    return 0 if verification.ok else 1


def _repairs(problems: Sequence[Problem]) -> str:
    """Count the problems by remedy: opening to write, or the `rm` of the problem and then opening."""
    opened = sum(problem.repairable and problem.remove is None for problem in problems)
    removed = sum(problem.repairable and problem.remove is not None for problem in problems)
    by_opening = f"{opened} repaired by opening the log to write"
    if not removed:
        return by_opening
    by_removing = f"{removed} repaired by the rm shown and then opening the log to write"
    return f"{by_opening}, {by_removing}" if opened else by_removing
