"""`lastword ls`: topics, partitions and segments, with true counts of what is live and what is garbage."""

from __future__ import annotations

from typing import Annotated

import typer

from lastword.cli.options import Directory, MoreDirs, Partition, Session, Target, TopicName, command
from lastword.units import format_bytes, format_time

EXAMPLES = """
lastword ls data
lastword ls data users --segments
lastword ls data/users-0 --segments --json
"""


def register(app: typer.Typer) -> None:
    command(app, "ls", examples=EXAMPLES)(ls)


def ls(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    partition: Partition = None,
    segments: Annotated[bool, typer.Option("--segments", help="one line a segment")] = False,
    more: MoreDirs = None,
) -> None:
    """List topics and partitions, or segments. Counts are exact: every record below the log end is looked
    at."""
    target = Target.of(directory, topic, partition, more)
    with out.open(target) as logs:
        chosen = [logs.topic(target.topic)] if target.topic is not None else logs.topics()
        with out.progress("count") as progress:
            if segments:
                rows = [row for one in chosen for row in one.segments(target.partition, progress=progress)]
                for row in rows:
                    out.row("segment", row.to_dict())
                out.table(
                    ("SEGMENT", "OFFSETS", "SIZE", "LIVE", "GARBAGE", "RECORDS", "NEWEST", ""),
                    [
                        (
                            f"{row.topic}-{row.partition}/{row.base_offset}",
                            f"{row.base_offset}-{row.next_offset - 1}"
                            if row.next_offset > row.base_offset
                            else "-",
                            format_bytes(row.size_bytes),
                            format_bytes(row.live_bytes),
                            format_bytes(row.garbage_bytes),
                            str(row.records),
                            format_time(row.largest_timestamp),
                            "active" if row.active else "",
                        )
                        for row in rows
                    ],
                    "lrrrrrll",
                )
                out.summary(
                    None if rows else "no segments",
                    segments=len(rows),
                    size_bytes=sum(row.size_bytes for row in rows),
                    garbage_bytes=sum(row.garbage_bytes for row in rows),
                )
                return
            infos = [
                info
                for one in chosen
                for info in one.describe(progress=progress)
                if target.partition is None or info.partition == target.partition
            ]
    for info in infos:
        out.row("partition", info.to_dict())
    out.table(
        (
            "PARTITION",
            "SIZE",
            "LIVE",
            "GARBAGE",
            "RECORDS",
            "LIVE RECORDS",
            "START",
            "END",
            "SEGMENTS",
            "POLICY",
        ),
        [
            (
                f"{info.topic}-{info.partition}",
                format_bytes(info.size_bytes),
                format_bytes(info.live_bytes),
                format_bytes(info.garbage_bytes),
                str(info.records),
                str(info.live_records),
                str(info.log_start),
                str(info.log_end),
                str(info.segments),
                (info.policy or "none") + (" (quarantined)" if info.quarantine else ""),
            )
            for info in infos
        ],
        "lrrrrrrrrl",
    )
    out.summary(
        None if infos else "no topics",
        topics=len(chosen),
        partitions=len(infos),
        size_bytes=sum(info.size_bytes for info in infos),
        live_bytes=sum(info.live_bytes for info in infos),
        garbage_bytes=sum(info.garbage_bytes for info in infos),
    )
