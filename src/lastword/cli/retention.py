"""`lastword expire` and `lastword trim`: remove old segments, or raise the log start."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from lastword.cli import signals
from lastword.cli.command import Session, Yes, command, confirm, now_ms
from lastword.cli.output import split_failure
from lastword.cli.remedies import policy_remedy
from lastword.cli.target import Directory, MoreDirs, Partition, Target, TopicName, WhatIf, what_if
from lastword.errors import DataError, LastwordError, StorageError, UsageError
from lastword.parse import parse_when
from lastword.units import format_bytes
from lastword.values import plural

if TYPE_CHECKING:
    from lastword.retention import Deletion


EXPIRE_EXAMPLES = """
lastword expire data --dry-run
lastword expire data events
"""


def register(app: typer.Typer) -> None:
    """Add the commands `expire` and `trim`."""
    command(app, "expire", usage="DIR [TOPIC]", examples=EXPIRE_EXAMPLES, changes=True)(expire)
    command(app, "trim", usage="DIR TOPIC --before OFFSET|TIME", examples=TRIM_EXAMPLES, changes=True)(trim)


def expire(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    partition: Partition = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="show what would be removed; change nothing")
    ] = False,
    sets: WhatIf = None,
    more: MoreDirs = None,
) -> None:
    """Remove old segments by size and age.

    Needs `delete` in cleanup.policy. Segments below the log start are removed under any known policy.
    """
    from lastword.api.cleaning import expire_outlook

    target = Target.of(directory, topic, partition, more)
    assumed = what_if(sets)
    if not dry_run:
        target.refuse_set("expire", sets)
    if dry_run:
        wrong: LastwordError | None = None
        with out.open(target, **assumed) as logs:
            try:
                outlook = expire_outlook(logs.dirs, target.topic, target.partition)
            except (DataError, StorageError) as error:
                outlook, (wrong, *_) = split_failure(error)
        _show(out, outlook, target, ok=wrong is None)
        if wrong is not None:
            raise wrong
        return
    failed: LastwordError | None = None
    with out.change(target) as logs:
        try:
            done = logs.expire(target.topic, target.partition, stop=signals.noted)
        except LastwordError as error:
            done, (failed, *_) = split_failure(error)  # results are shown before errors
    for deletion in done:
        out.row("deletion", deletion.to_dict())
        out.line(str(deletion))
    freed = sum(deletion.freed_bytes for deletion in done)
    text: str | None = f"freed {format_bytes(freed)}"
    if not done:
        dry_run_command = target.command("expire", *target.words, "--dry-run")
        text = None if failed else f"nothing to remove; `{dry_run_command}` shows why"
    out.summary(
        text,
        ok=failed is None and not signals.noted(),
        deletions=len(done),
        segments=sum(deletion.segments for deletion in done),
        freed_bytes=freed,
    )
    if failed is not None:
        raise failed


def _show(out: Session, deletions: list[Deletion], target: Target, *, ok: bool) -> None:
    for deletion in deletions:
        out.row("deletion", deletion.to_dict())
    out.table(
        ("PARTITION", "SEGMENTS", "FREES", "START", "WHY"),
        [
            (
                f"{deletion.topic}-{deletion.partition}",
                str(deletion.segments) if deletion.removes else "-",
                format_bytes(deletion.freed_bytes) if deletion.removes else "-",
                str(deletion.log_start),
                _why(deletion),
            )
            for deletion in deletions
        ],
        "lrrrl",
        spare=("START", "SEGMENTS"),
    )
    unknown = dict.fromkeys(deletion.topic for deletion in deletions if "no-policy" in deletion.codes)
    if unknown:
        topic = next(iter(unknown)) if len(unknown) == 1 else "TOPIC"
        out.say(f"no-policy: {policy_remedy(target.paths, topic)}")
    removing = [deletion for deletion in deletions if deletion.removes]
    freed = sum(deletion.freed_bytes for deletion in removing)
    segments = sum(deletion.segments for deletion in removing)
    out.summary(
        f"would remove {plural(segments, 'segment')}, {format_bytes(freed)}; nothing was changed",
        ok=ok,
        deletions=len(removing),
        segments=segments,
        freed_bytes=freed,
    )


def _why(deletion: Deletion) -> str:
    if deletion.removes:
        return f"delete: {deletion.reason}"
    if "no-policy" in deletion.codes:
        return "keep: no-policy, cleanup.policy is unknown"
    return f"keep: {deletion.reason}"


TRIM_EXAMPLES = """
lastword trim data events --before 90d --dry-run
lastword trim data events --before 2026-11-01T00:00Z --yes
lastword trim data events -p 0 --before 4000 --yes
"""


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
        _show_trim(out, known_as, starts, wanted, "would start")
        out.summary(
            "nothing was changed", topic=known_as, offsets=_gone(starts, moves), log_start=_text(wanted)
        )
        return
    if moves:
        confirm(f"remove {plural(_gone(starts, moves), 'offset')} of {known_as} for good", yes)
    with out.change(target) as logs:
        done = cleaning.trim(logs.dirs, known_as, target.partition, when)
    _show_trim(out, known_as, starts, done, "starts")
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


def _show_trim(out: Session, topic: str, before: dict[int, int], after: dict[int, int], verb: str) -> None:
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
