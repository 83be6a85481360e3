"""`lastword verify`: every checksum, index, checkpoint and invariant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from lastword.cli.command import Session, command
from lastword.cli.target import Directory, MoreDirs, Partition, Target, TopicName
from lastword.units import format_bytes
from lastword.values import plural

if TYPE_CHECKING:
    from lastword.tools.problem import Problem

EXAMPLES = """
lastword verify data
lastword verify data users --quick
lastword verify data users --md5
lastword verify data/users-0 --json
"""


def register(app: typer.Typer) -> None:
    command(app, "verify", usage="DIR [TOPIC]", examples=EXAMPLES)(verify)


def verify(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    partition: Partition = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="headers, indexes and checkpoints; not the records")
    ] = False,
    md5: Annotated[
        bool, typer.Option("--md5", help="also find keys that Kafka's cleaner would take for one")
    ] = False,
    more: MoreDirs = None,
) -> int:
    """Check every checksum, index, checkpoint and invariant.

    Changes nothing. Exit code 1 if something is wrong.
    """
    from lastword.tools.problem import OPEN, RESTORE

    target = Target.of(directory, topic, partition, more)
    with out.open(target) as logs, out.progress("verify") as progress:
        found = logs.verify(target.topic, target.partition, quick=quick, md5=md5, progress=progress)
    for problem in found.problems:
        out.row("problem", {**problem.to_dict(), "remove": problem.remove})
        out.line(out.paint(str(problem), "yellow" if problem.repairable else "red"))
        if problem.remedy not in (OPEN, RESTORE):
            out.line(f"  fix: {problem.remedy}")
    for collision in found.collisions:
        out.row("md5-collision", collision.to_dict())
        out.line(
            out.paint(f"{collision}: Kafka's cleaner would remove records of the one for the other", "red")
        )
    counts = f"{plural(found.batches, 'batch')}, {plural(found.records, 'record')}"
    if quick:
        counts += ", by their headers: checksums and records were not looked at"
    else:
        counts += f", {format_bytes(found.read_bytes)} read"
    if not found.problems:
        text = f"all sound: {counts}" if found.ok else counts
    else:
        wrong = plural(len(found.problems), "problem")
        cuts = any(one.code == "incomplete-batch" and one.repairable for one in found.problems)
        how = ", which cuts what is behind the last sound batch" if cuts else ""
        text = f"{wrong}, {_repairs(found.problems)}{how}: {counts}"
    if md5:
        pairs = plural(len(found.collisions), "MD5") if found.collisions else "no MD5"
        text += f"; {plural(found.keys, 'key')} compared, {pairs} shared"
    more_totals = {"keys": found.keys, "md5_collisions": len(found.collisions)} if md5 else {}
    out.summary(
        text,
        ok=found.ok,
        batches=found.batches,
        records=found.records,
        read_bytes=found.read_bytes,
        problems=len(found.problems),
        **more_totals,
    )
    return 0 if found.ok else 1


def _repairs(problems: Sequence[Problem]) -> str:
    """How many problems go away by what: opening, or removing what the problem names and then opening."""
    opened = sum(problem.repairable and problem.remove is None for problem in problems)
    removed = sum(problem.repairable and problem.remove is not None for problem in problems)
    by_opening = f"{opened} repaired by opening it to write"
    if not removed:
        return by_opening
    by_removing = f"{removed} repaired by the rm shown and then opening it to write"
    return f"{by_opening}, {by_removing}" if opened else by_removing
