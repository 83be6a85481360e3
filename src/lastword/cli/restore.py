"""`lastword restore`: write the newest value of every key to a file."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from lastword.cli.command import Session, command, now_ms
from lastword.cli.target import Directory, MoreDirs, Partition, Target, TopicName
from lastword.errors import UsageError
from lastword.parse import parse_when
from lastword.units import format_bytes
from lastword.values import plural

EXAMPLES = """
lastword restore data users users.parquet
lastword restore data users users.jsonl --end 2026-11-20T10:00Z
lastword restore data users users.arrow -p 0
lastword restore data/users-0 users.arrow
lastword restore data users -
"""


def register(app: typer.Typer) -> None:
    """Add the command `restore`."""
    command(app, "restore", usage="DIR [TOPIC] OUT", examples=EXAMPLES)(restore)


def restore(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    to: Annotated[
        str | None, typer.Argument(metavar="OUT", help=".parquet, .arrow or .jsonl; - is stdout, as .jsonl")
    ] = None,
    end: Annotated[
        str,
        typer.Option(metavar="E", help="restore as of: latest, an offset, a time with zone, or an age (90m)"),
    ] = "latest",
    partition: Partition = None,
    more: MoreDirs = None,
) -> None:
    """Write the newest value of every key to a file.

    The file is a table, and a state can start from it: logs.state(TOPIC, snapshot=OUT). A .jsonl file ends
    with a line of type `snapshot`, which names its log and offsets; stdout gets only the rows.
    """
    target, (path,) = Target.with_words("restore", directory, [topic, to], ["OUT"], partition, more)
    known = target.topic_for("restore", "OUT")
    if path is None:
        raise UsageError("restore needs OUT", remedy=f"OUT: a file name such as {known}.parquet")
    if path == "-":
        _to_stdout(out, target, known, end)
        return
    with out.open(target) as logs, out.progress("restore") as progress:
        restored = logs.restore(known, target.partition, to=path, end=_when(end), progress=progress)
    for file in restored:
        out.row("restored", file.to_dict())
        out.line(
            f"{file.topic}-{file.partition}: {plural(file.keys, 'key')}, {format_bytes(file.bytes)}, "
            f"up to offset {file.end_offset}"
        )
    out.summary(f"wrote {path}", ok=True, file=path, keys=sum(file.keys for file in restored))


def _to_stdout(out: Session, target: Target, topic: str, end: str) -> None:
    """Print rows as JSON lines, after all of them were read: a temporary file holds them until then."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="lastword-restore-") as scratch:
        path = os.path.join(scratch, "rows.jsonl")
        with out.open(target) as logs, out.progress("restore") as progress:
            logs.restore(topic, target.partition, to=path, end=_when(end), progress=progress)
        with open(path, encoding="utf-8", newline="\n") as lines:  # noqa: PTH123  # a temporary file
            row = ""
            for line in lines:  # the last line is the snapshot line, not a row
                out.stdout.write(row)
                row = line


def _when(text: str) -> Any:
    return parse_when(text, now_ms=now_ms())
