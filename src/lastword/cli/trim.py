"""`lastword trim`: raise the log start and remove the records before it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from lastword.cli.command import Session, Yes, command, confirm, now_ms
from lastword.cli.target import Directory, MoreDirs, Partition, Target, TopicName
from lastword.errors import UsageError
from lastword.parse import parse_when
from lastword.values import plural

EXAMPLES = """
lastword trim data events --before 90d --dry-run
lastword trim data events --before 2026-11-01T00:00Z --yes
lastword trim data events -p 0 --before 4000 --yes
"""


def register(app: typer.Typer) -> None:
    """Add the command `trim`."""
    command(app, "trim", usage="DIR TOPIC --before OFFSET|TIME", examples=EXAMPLES, changes=True)(trim)


def trim(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    partition: Partition = None,
    before: Annotated[
        str | None,
        typer.Option(
            metavar="OFFSET|TIME", help="the first record to keep: an offset, a time or an age (90d)"
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="show the new log start; change nothing")
    ] = False,
    yes: Yes = False,
    more: MoreDirs = None,
) -> None:
    """Raise the log start and remove the records before it.

    In all partitions of the topic, or in one; under any cleanup.policy.
    """
    from lastword.api import cleaning

    target = Target.of(directory, topic, partition, more)
    known_as = target.topic_for("trim", "--before", "OFFSET")
    if before is None:
        raise UsageError("trim needs --before", remedy="--before OFFSET, a time or an age (90d)")
    when = _when(before)
    with out.open(target) as logs:
        known = logs.topic(known_as)
        starts = {number: start for number, (start, _) in known.bounds().items()}
        wanted = cleaning.trim(logs.dirs, known_as, target.partition, when, dry_run=True)
    moves = {number: offset for number, offset in wanted.items() if offset > starts[number]}
    if dry_run:
        _show(out, known_as, starts, wanted, "would start")
        out.summary(
            "nothing was changed", topic=known_as, offsets=_gone(starts, moves), log_start=_text(wanted)
        )
        return
    if moves:
        confirm(f"remove {plural(_gone(starts, moves), 'offset')} of {known_as} for good", yes)
    with out.change(target) as logs:
        done = cleaning.trim(logs.dirs, known_as, target.partition, when)
    _show(out, known_as, starts, done, "starts")
    out.summary(
        None if moves else "no records before it",
        topic=known_as,
        offsets=_gone(starts, done),
        log_start=_text(done),
    )


def _when(text: str) -> int | datetime:
    when = parse_when(text, now_ms=now_ms())
    if isinstance(when, str):
        raise UsageError(
            f"--before {text} is neither an offset nor a time", remedy="an offset, a time or an age (90d)"
        )
    return when


def _gone(starts: dict[int, int], after: dict[int, int]) -> int:
    return sum(max(0, offset - starts[number]) for number, offset in after.items())


def _text(offsets: dict[int, int]) -> dict[str, int]:
    return {str(number): offset for number, offset in offsets.items()}


def _show(out: Session, topic: str, before: dict[int, int], after: dict[int, int], verb: str) -> None:
    for number, offset in sorted(after.items()):
        out.row(
            "trim",
            {"topic": topic, "partition": number, "log_start_before": before[number], "log_start": offset},
        )
        if offset > before[number]:
            first, last = before[number], offset - 1
            gone = f"offset {first}" if first == last else f"offsets {first}-{last}"
            are = "would be" if verb != "starts" else "is" if first == last else "are"
            out.line(f"{topic}-{number}: {verb} at {offset}; {gone} {are} gone")
        else:
            out.line(f"{topic}-{number}: already starts at {offset}")
