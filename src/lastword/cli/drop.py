"""`lastword drop`: delete a topic with all its records and settings."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lastword.cli.command import Session, Yes, command, confirm
from lastword.cli.target import Directory, MoreDirs, Target, TopicName
from lastword.errors import UsageError
from lastword.units import format_bytes
from lastword.values import plural

EXAMPLES = """
lastword drop data events --dry-run
lastword drop data events --yes
"""


def register(app: typer.Typer) -> None:
    """Add the command `drop`."""
    command(app, "drop", usage="DIR TOPIC", examples=EXAMPLES, changes=True)(drop)


def drop(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="show what would be deleted; change nothing")
    ] = False,
    yes: Yes = False,
    more: MoreDirs = None,
) -> None:
    """Delete a topic, with its records and settings."""
    target = Target.of(directory, topic, None, more)
    topic = target.topic_for("drop")
    if target.partition is not None:
        raise UsageError(
            f"{directory} is one partition, but drop deletes all partitions of the topic",
            remedy=target.command("drop", topic),
        )
    with out.open(target) as logs:
        logs.topic(topic)
        views = logs.dirs.views(topic)
        size = sum(segment.size for view in views.values() for segment in view.segments)
    what = f"{topic}: {plural(len(views), 'partition')}, {format_bytes(size)}"
    totals: dict[str, Any] = {"topic": topic, "partitions": len(views), "size_bytes": size}
    if dry_run:
        out.summary(f"would delete {what}; nothing was changed", **totals)
        return
    confirm(f"delete {what} for good", yes)
    with out.change(target) as logs:
        logs.delete_topic(topic)
    out.summary(f"deleted {what}", **totals)
