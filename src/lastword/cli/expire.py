"""`lastword expire`: apply retention, or show what that would remove."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lastword.cli import signals
from lastword.cli.command import Session, command
from lastword.cli.output import split_failure
from lastword.cli.remedies import policy_remedy
from lastword.cli.target import Directory, MoreDirs, Partition, Target, TopicName, WhatIf, what_if
from lastword.errors import DataError, LastwordError, StorageError, UsageError
from lastword.units import format_bytes
from lastword.values import plural

if TYPE_CHECKING:
    from lastword.retention import Deletion

EXAMPLES = """
lastword expire data --dry-run
lastword expire data events
"""


def register(app: typer.Typer) -> None:
    command(app, "expire", usage="DIR [TOPIC]", examples=EXAMPLES, changes=True)(expire)


def expire(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    partition: Partition = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show what would go; change nothing")] = False,
    sets: WhatIf = None,
    more: MoreDirs = None,
) -> None:
    """Remove old segments, by size and age.

    Where cleanup.policy has delete; what lies below the log start goes under every known policy.
    """
    from lastword.api.retaining import expire_outlook

    target = Target.of(directory, topic, partition, more)
    assumed = what_if(sets)
    if assumed and not dry_run:
        settings = [part for name in sets or () for part in ("--set", name)]
        words = [word for word in (target.topic,) if word is not None]
        raise UsageError(
            "--set is for --dry-run",
            remedy=f"`{target.command('expire', *words, '--dry-run', *settings)}` to look, "
            f"`{target.command('config', target.topic or 'TOPIC', *settings)}` to change it",
        )
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
        words = [word for word in (target.topic,) if word is not None]
        dry_run_command = target.command("expire", *words, "--dry-run")
        text = None if failed else f"nothing to remove; `{dry_run_command}` tells why"
    out.summary(
        text,
        ok=failed is None and not signals.noted(),
        deletions=len(done),
        segments=sum(deletion.segments for deletion in done),
        freed_bytes=freed,
    )
    if failed is not None:
        raise failed


def _show(out: Session, found: list[Deletion], target: Target, *, ok: bool) -> None:
    for deletion in found:
        out.row("deletion", deletion.to_dict())
    out.table(
        ("PARTITION", "SEGMENTS", "FREES", "START", "WHY"),
        [
            (
                f"{one.topic}-{one.partition}",
                str(one.segments) if one.removes else "-",
                format_bytes(one.freed_bytes) if one.removes else "-",
                str(one.log_start),
                _why(one),
            )
            for one in found
        ],
        "lrrrl",
        spare=("START", "SEGMENTS"),
    )
    unknown = dict.fromkeys(one.topic for one in found if "no-policy" in one.codes)
    if unknown:
        topic = next(iter(unknown)) if len(unknown) == 1 else "TOPIC"
        out.say(f"no-policy: {policy_remedy(target.paths, topic)}")
    goes = [one for one in found if one.removes]
    freed, segments = sum(one.freed_bytes for one in goes), sum(one.segments for one in goes)
    out.summary(
        f"would remove {plural(segments, 'segment')}, {format_bytes(freed)}; nothing was changed",
        ok=ok,
        deletions=len(goes),
        segments=segments,
        freed_bytes=freed,
    )


def _why(one: Deletion) -> str:
    if one.removes:
        return f"delete: {one.reason}"
    if "no-policy" in one.codes:
        return "keep: no-policy, its cleanup.policy is not known"
    return f"keep: {one.reason}"
