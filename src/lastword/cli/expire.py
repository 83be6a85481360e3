"""`lastword expire`: remove old segments, or show which segments would be removed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lastword.cli import signals
from lastword.cli.command import Session, command
from lastword.cli.output import split_failure
from lastword.cli.remedies import policy_remedy
from lastword.cli.target import Directory, MoreDirs, Partition, Target, TopicName, WhatIf, what_if
from lastword.errors import DataError, LastwordError, StorageError
from lastword.units import format_bytes
from lastword.values import plural

if TYPE_CHECKING:
    from lastword.retention import Deletion

EXAMPLES = """
lastword expire data --dry-run
lastword expire data events
"""


def register(app: typer.Typer) -> None:
    """Add the command `expire`."""
    command(app, "expire", usage="DIR [TOPIC]", examples=EXAMPLES, changes=True)(expire)


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
                found = expire_outlook(logs.dirs, target.topic, target.partition)
            except (DataError, StorageError) as error:
                found, (wrong, *_) = split_failure(error)
        _show(out, found, target, ok=wrong is None)
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
