"""`lastword audit`: per key, what was delivered against what is logged."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated, Any

import typer

from lastword.api.json_form import bytes_json
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
        int, typer.Option("--rows", metavar="N", help="name at most N keys; all are counted", min=0)
    ] = 1000,
    partition: Partition = None,
    more: MoreDirs = None,
) -> int:
    """Compare, key by key, what was delivered with what is logged.

    The newest offset delivered against the newest logged; exit code 1 if keys are missing, stale or phantom.
    Without TOPIC: all topics against another directory, or the only one.
    """
    from lastword.files import DEFAULT

    target, (delivered_by,) = Target.with_words(
        "audit", directory, [topic, other], ["OTHER"], partition, more
    )
    alone = target.topic if target.partition is None else None
    if delivered_by is None and alone is not None and DEFAULT.exists(alone):
        target, delivered_by = Target(target.paths, None, None), alone
    if delivered_by is None:
        raise UsageError(
            "what was delivered?", remedy="OTHER: a file with columns key and offset, or a log directory"
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
        out.say(f"{plural(found.left_off, 'more key')} not named; --rows N names more")
    out.summary(str(found), ok=found.ok, counts=dict(found.counts), left_off=found.left_off)
    if failed is not None:
        raise failed
    return 0 if found.ok else 1


def _replica(path: str, target: Target) -> Target:
    """The other log directory; a partition's own may stand for it, if it is the one that is asked for."""
    other = Target.of(path, None, None)
    if other.topic is not None and (other.topic, other.partition) != (target.topic, target.partition):
        raise UsageError(
            f"{path} is {other.topic}-{other.partition}, and that is not what is compared with it",
            remedy=target.command("audit", other.topic, "-p", str(other.partition), path),
        )
    return other
