"""`lastword duplication`: count the superseded records of a log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, cast

import typer

from lastword.cli.command import Session, command
from lastword.cli.output import split_failure
from lastword.cli.target import Directory, MoreDirs, Partition, Target, TopicName
from lastword.errors import DataError, LastwordError, StorageError, UsageError
from lastword.units import format_bytes
from lastword.values import plural

if TYPE_CHECKING:
    from lastword.api.open_dirs import By
    from lastword.tools.duplication import Duplication

BY = ("topic", "partition", "segment")
EXAMPLES = """
lastword duplication data
lastword duplication data users --by segment
lastword duplication data users --exact --by topic
"""


def register(app: typer.Typer) -> None:
    """Add the command `duplication`."""
    command(app, "duplication", usage="DIR [TOPIC]", examples=EXAMPLES)(duplication)


def duplication(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    partition: Partition = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="count exactly; without it, estimate in fixed memory")
    ] = False,
    by: Annotated[
        str, typer.Option(metavar="topic|partition|segment", help="one row for each")
    ] = "partition",
    more: MoreDirs = None,
) -> None:
    """Count records that a newer record of their key superseded.

    BYTES is the size of superseded records; garbage in `lastword ls` also includes aborted records and
    transaction markers. SPLIT counts keys that are in several partitions. Estimates are marked with ~; ERROR
    is their standard deviation as a share of the keys.
    """
    if by not in BY:
        raise UsageError(f"unknown --by {by!r}", remedy=f"one of {', '.join(BY)}")
    target = Target.of(directory, topic, partition, more)
    failed: LastwordError | None = None
    with out.open(target) as logs, out.progress("duplication") as progress:
        try:
            rows = logs.duplication(
                target.topic, target.partition, exact=exact, by=cast("By", by), progress=progress
            )
        except (DataError, StorageError) as error:
            rows, (failed, *_) = split_failure(error)  # results are shown before errors
    for row in rows:
        out.row("duplication", row.to_dict())
    out.table(
        (by.upper(), "RECORDS", "KEYS", "SUPERSEDED", "BYTES", "TOMBSTONES", "KEYLESS", "SPLIT", "ERROR"),
        [_cells(row) for row in rows],
        "lrrrrrrrr",
        spare=("KEYLESS", "TOMBSTONES", "SPLIT"),
    )
    records = sum(row.records for row in rows)
    superseded = sum(row.superseded_records for row in rows)
    superseded_bytes = sum(row.superseded_bytes for row in rows)
    about = "" if exact else "about "
    share = f"{100 * superseded / records:.0f} %" if records else "0 %"
    text = f"{plural(records, 'record')}, {about}{share} of them superseded: {format_bytes(superseded_bytes)}"
    out.summary(
        text if rows else None if failed else "no topics",
        ok=failed is None,
        rows=len(rows),
        records=records,
        superseded_records=superseded,
        superseded_bytes=superseded_bytes,
        exact=exact,
    )
    if failed is not None:
        raise failed


def _cells(row: Duplication) -> tuple[str, ...]:
    about = "" if row.exact or row.error_ratio == 0 else "~"
    split = "-" if row.split_keys is None else f"{about}{row.split_keys}"
    return (
        row.name,
        str(row.records),
        f"{about}{row.distinct_keys}",
        f"{about}{row.superseded_records}",
        format_bytes(row.superseded_bytes) if row.exact else f"~ {format_bytes(row.superseded_bytes)}",
        str(row.tombstones),
        str(row.keyless),
        split,
        "exact" if row.exact else f"{100 * row.error_ratio:.1f} %",
    )
