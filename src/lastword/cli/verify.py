"""`lastword verify`: every checksum, index, checkpoint and invariant."""

from __future__ import annotations

from typing import Annotated

import typer

from lastword.cli.options import Directory, MoreDirs, Partition, Session, Target, TopicName, command
from lastword.cli.text import plural
from lastword.units import format_bytes

EXAMPLES = """
lastword verify data
lastword verify data users --quick
lastword verify data/users-0 --json
"""


def register(app: typer.Typer) -> None:
    command(app, "verify", examples=EXAMPLES)(verify)


def verify(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    partition: Partition = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="headers, indexes and checkpoints; not the records")
    ] = False,
    more: MoreDirs = None,
) -> int:
    """Check everything that can be checked; changes nothing. Exit code 1 if something is wrong."""
    target = Target.of(directory, topic, partition, more)
    with out.open(target) as logs, out.progress("verify") as progress:
        found = logs.verify(target.topic, target.partition, quick=quick, progress=progress)
    for problem in found.problems:
        out.row("problem", problem.to_dict())
        out.line(out.paint(str(problem), "yellow" if problem.repairable else "red"))
    repairable = sum(problem.repairable for problem in found.problems)
    counts = f"{plural(found.batches, 'batch')}, {plural(found.records, 'record')}"
    counts += f", {format_bytes(found.read_bytes)} read"
    if found.ok:
        text = f"all sound: {counts}"
    else:
        wrong = plural(len(found.problems), "problem")
        text = f"{wrong}, {repairable} repaired by opening it to write: {counts}"
    out.summary(
        text,
        ok=found.ok,
        batches=found.batches,
        records=found.records,
        read_bytes=found.read_bytes,
        problems=len(found.problems),
    )
    return 0 if found.ok else 1
