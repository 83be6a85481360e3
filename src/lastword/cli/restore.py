"""`lastword restore`: the newest value of every key as a file."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lastword.cli.options import CONTEXT, Directory, MoreDirs, Partition, Session, Target, command
from lastword.cli.text import plural
from lastword.units import format_bytes

EXAMPLES = """
lastword restore data users users.parquet
lastword restore data users users.jsonl --end 2026-11-20T10:00Z
lastword restore data users users.arrow -p 0
"""


def register(app: typer.Typer) -> None:
    command(app, "restore", examples=EXAMPLES)(restore)


def restore(
    out: Session,
    directory: Directory,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)],
    to: Annotated[str, typer.Argument(metavar="OUT", help=".parquet, .arrow or .jsonl", show_default=False)],
    end: Annotated[
        str,
        typer.Option(metavar="E", help="as of then: latest, an offset, a time with zone, or an age (90m)"),
    ] = "latest",
    partition: Partition = None,
    more: MoreDirs = None,
) -> None:
    """Write the newest value of every key to a file: a table, and what a state can start from."""
    target = Target.of(directory, topic, partition, more)
    with out.open(target) as logs, out.progress("restore") as progress:
        restored = logs.restore(topic, partition, to=to, end=_when(end), progress=progress)
    for one in restored:
        out.row("restored", one.to_dict())
        out.line(
            f"{one.topic}-{one.partition}: {plural(one.keys, 'key')}, {format_bytes(one.bytes)}, "
            f"up to offset {one.end_offset}"
        )
    out.summary(f"wrote {to}", ok=True, file=to, keys=sum(one.keys for one in restored))


def _when(text: str) -> Any:
    from lastword.clock import SystemClock
    from lastword.units import parse_when

    return parse_when(text, now_ms=(CONTEXT.clock or SystemClock()).now_ms())
