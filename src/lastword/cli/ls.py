"""`lastword ls`: topics, partitions and segments, with true counts of what is live and what is garbage."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword.cli.options import Directory, MoreDirs, Partition, Session, Target, TopicName, command
from lastword.errors import DataError, LastwordError, StorageError
from lastword.units import format_bytes, format_time

if TYPE_CHECKING:
    from lastword.api.values import PartitionInfo, SegmentInfo

EXAMPLES = """
lastword ls data
lastword ls data users --segments
lastword ls data/users-0 --segments --json
lastword ls data --quick
"""


def register(app: typer.Typer) -> None:
    command(app, "ls", examples=EXAMPLES)(ls)


def ls(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    partition: Partition = None,
    segments: Annotated[bool, typer.Option("--segments", help="one line a segment")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="by the garbage accounts, where there are any; ~ marks estimates")
    ] = False,
    more: MoreDirs = None,
) -> None:
    """List topics and partitions, or segments.

    NEWEST counts the records that are the newest of their key, the rest is garbage. Every record is looked
    at, unless garbage accounts know them all.
    """
    target = Target.of(directory, topic, partition, more)
    failed: LastwordError | None = None
    rows: list[Any] = []
    with out.open(target) as logs, out.progress("count") as progress:
        chosen = [logs.topic(target.topic)] if target.topic is not None else logs.topics()
        for one in chosen:
            try:
                if segments:
                    rows += one.segments(target.partition, quick=quick, progress=progress)
                else:
                    rows += [
                        info
                        for info in one.describe(quick=quick, progress=progress)
                        if target.partition is None or info.partition == target.partition
                    ]
            except (DataError, StorageError) as error:
                # The others are listed before what cannot be counted is told.
                failed = failed or error
        for path, why in logs.offline.items():
            out.warning(f"{path} is offline: {why.message}")
        set_aside = [] if target.topic is not None else logs.set_aside
    if segments:
        _segments(out, rows)
    else:
        _partitions(out, rows)
    for path, aside in set_aside:
        out.row("set-aside", {"dir": path, **asdict(aside)})
        out.say(f"not served: {os.path.join(path, aside.name)}")
    out.summary(
        None if rows or failed else "no topics",
        ok=failed is None,
        topics=len(chosen),
        **{"segments" if segments else "partitions": len(rows)},
        size_bytes=sum(row.size_bytes for row in rows),
        live_bytes=sum(row.live_bytes for row in rows),
        garbage_bytes=sum(row.garbage_bytes for row in rows),
    )
    if failed is not None:
        raise failed


def _segments(out: Session, rows: list[SegmentInfo]) -> None:
    for row in rows:
        out.row("segment", row.to_dict())
    out.table(
        ("SEGMENT", "OFFSETS", "SIZE", "LIVE", "GARBAGE", "RECORDS", "NEWEST", ""),
        [
            (
                f"{row.topic}-{row.partition}/{row.base_offset}",
                f"{row.base_offset}-{row.next_offset - 1}" if row.next_offset > row.base_offset else "-",
                format_bytes(row.size_bytes),
                _about(format_bytes(row.live_bytes), row.exact),
                _about(format_bytes(row.garbage_bytes), row.exact),
                _about(str(row.records), row.exact),
                format_time(row.largest_timestamp),
                "active" if row.active else "",
            )
            for row in rows
        ],
        "lrrrrrll",
    )


def _about(figure: str, exact: bool) -> str:
    return figure if exact else f"~ {figure}"


def _partitions(out: Session, rows: list[PartitionInfo]) -> None:
    for row in rows:
        out.row("partition", row.to_dict())
    out.table(
        ("PARTITION", "SIZE", "LIVE", "GARBAGE", "RECORDS", "NEWEST", "START", "END", "SEGMENTS", "POLICY"),
        [
            (
                f"{row.topic}-{row.partition}",
                format_bytes(row.size_bytes),
                _about(format_bytes(row.live_bytes), row.exact),
                _about(format_bytes(row.garbage_bytes), row.exact),
                _about(str(row.records), row.exact),
                _about(str(row.live_records), row.exact),
                str(row.log_start),
                str(row.log_end),
                str(row.segments),
                (row.policy or "none") + (" (quarantined)" if row.quarantine else ""),
            )
            for row in rows
        ],
        "lrrrrrrrrl",
    )
