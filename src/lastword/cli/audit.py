"""`lastword audit`: compare, per key, the delivered offset with the logged offset."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated, Any

import typer

from lastword.api.serializers import bytes_json
from lastword.cli.command import Session, command
from lastword.cli.target import Directory, MoreDirs, Partition, Target, TopicName
from lastword.cli.text import key_text
from lastword.errors import LastwordError, PartialFailure, UsageError
from lastword.values import plural

EXAMPLES = """
lastword audit data users consumer.parquet
lastword audit data users delivered.jsonl --json
lastword audit data users /backup/data
lastword audit data/users-0 consumer.parquet
lastword audit data /backup/data
"""


def register(app: typer.Typer) -> None:
    """Add the command `audit`."""
    command(app, "audit", usage="DIR [TOPIC] OTHER", examples=EXAMPLES)(audit)


def audit(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    other: Annotated[
        str | None,
        typer.Argument(
            metavar="OTHER",
            help="another log directory, or a .parquet, .arrow or .jsonl file with columns key and offset",
        ),
    ] = None,
    most_rows: Annotated[
        int, typer.Option("--rows", metavar="N", help="list at most N keys; all are counted", min=0)
    ] = 1000,
    partition: Partition = None,
    more: MoreDirs = None,
) -> int:
    """Compare the offset delivered for each key with the log.

    The newest delivered offset is compared with the newest logged offset. Exit code 1 if keys are missing,
    stale or phantom. Without TOPIC: all topics if OTHER is a directory, else the only topic.
    """
    from lastword.files import DEFAULT

    target, (delivered_by,) = Target.with_words(
        "audit", directory, [topic, other], ["OTHER"], partition, more
    )
    only_word = target.topic if target.partition is None else None
    if delivered_by is None and only_word is not None and DEFAULT.exists(only_word):
        target, delivered_by = Target(target.paths, None, None), only_word
    if delivered_by is None:
        raise UsageError(
            "audit needs OTHER", remedy="OTHER: a file with columns key and offset, or a log directory"
        )
    failed: LastwordError | None = None
    with ExitStack() as stack:
        logs = stack.enter_context(out.open(target))
        delivered: Any = delivered_by
        if DEFAULT.is_dir(delivered_by):
            delivered = stack.enter_context(out.open(_replica(delivered_by, target)))
        progress = stack.enter_context(out.progress("audit"))
        try:
            found = logs.audit(
                target.topic, target.partition, delivered=delivered, most_rows=most_rows, progress=progress
            )
        except PartialFailure as error:
            found, failed = error.results, error  # results are shown before errors
    for row in found.rows:
        out.row("audit", row.to_dict() | {"key": bytes_json(row.key)})
        where = row.topic if row.partition is None else f"{row.topic}-{row.partition}"
        logged, given = (
            "nothing" if offset is None else str(offset)
            for offset in (row.logged_offset, row.delivered_offset)
        )
        line = f"{row.kind:<8} {where}  {key_text(row.key)}  logged {logged}, delivered {given}"
        out.line(out.paint(line, "dim" if row.kind == "gone" else "red"))
    if found.left_off:
        out.say(f"{plural(found.left_off, 'more key')} not listed; --rows N lists more")
    out.summary(str(found), ok=found.ok, counts=dict(found.counts), left_off=found.left_off)
    if failed is not None:
        raise failed
    return 0 if found.ok else 1


def _replica(path: str, target: Target) -> Target:
    """Return the target of the other log directory; a partition's directory must be of the same partition."""
    other = Target.of(path, None, None)
    if other.topic is not None and (other.topic, other.partition) != (target.topic, target.partition):
        raise UsageError(
            f"{path} is partition {other.topic}-{other.partition}, not the partition to compare",
            remedy=target.command("audit", other.topic, "-p", str(other.partition), path),
        )
    return other
