"""`lastword restore`: the newest value of every key as a file."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lastword.cli.options import Directory, MoreDirs, Partition, Session, Target, TopicName, command, now_ms
from lastword.errors import UsageError
from lastword.units import format_bytes, parse_when
from lastword.values import plural

EXAMPLES = """
lastword restore data users users.parquet
lastword restore data users users.jsonl --end 2026-11-20T10:00Z
lastword restore data users users.arrow -p 0
lastword restore data/users-0 users.arrow
"""


def register(app: typer.Typer) -> None:
    command(app, "restore", usage="DIR [TOPIC] OUT", examples=EXAMPLES)(restore)


def restore(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    to: Annotated[str | None, typer.Argument(metavar="OUT", help=".parquet, .arrow or .jsonl")] = None,
    end: Annotated[
        str,
        typer.Option(metavar="E", help="as of then: latest, an offset, a time with zone, or an age (90m)"),
    ] = "latest",
    partition: Partition = None,
    more: MoreDirs = None,
) -> None:
    """Write the newest value of every key to a file.

    The file is a table, and what a state can start from: logs.state(TOPIC, snapshot=OUT).
    """
    target, (path,) = Target.with_words("restore", directory, [topic, to], ["OUT"], partition, more)
    known = target.topic_for("restore", "OUT")
    if path is None:
        raise UsageError("restore to which file?", remedy=f"OUT: a name such as {known}.parquet")
    with out.open(target) as logs, out.progress("restore") as progress:
        restored = logs.restore(known, target.partition, to=path, end=_when(end), progress=progress)
    for one in restored:
        out.row("restored", one.to_dict())
        out.line(
            f"{one.topic}-{one.partition}: {plural(one.keys, 'key')}, {format_bytes(one.bytes)}, "
            f"up to offset {one.end_offset}"
        )
    out.summary(f"wrote {path}", ok=True, file=path, keys=sum(one.keys for one in restored))


def _when(text: str) -> Any:
    return parse_when(text, now_ms=now_ms())
