"""`lastword ls`: list topics, partitions and segments with their live bytes and garbage."""

from __future__ import annotations

import os
from dataclasses import asdict
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword.api import inspections
from lastword.api.inspections import TopicRow, Uncounted
from lastword.cli.command import Session, command
from lastword.cli.target import Directory, MoreDirs, Partition, Target, TopicName
from lastword.cli.transactions import held_texts
from lastword.errors import LastwordError, UsageError
from lastword.units import format_bytes, format_time
from lastword.values import plural

if TYPE_CHECKING:
    from lastword.api.inspections import PartitionInfo, SegmentInfo

EXAMPLES = """
lastword ls data
lastword ls data users --segments
lastword ls data --by partition --sort garbage
lastword ls data/users-0 --segments --json
lastword ls data --quick
"""

BY = ("topic", "partition", "segment")
SORTS = ("name", "size", "garbage")
HANGS_MS = 900_000
"""A coordinator ends a transaction after this time: the default of `transaction.max.timeout.ms`."""


def register(app: typer.Typer) -> None:
    """Add the command `ls`."""
    command(app, "ls", usage="DIR [TOPIC]", examples=EXAMPLES)(ls)


def ls(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    partition: Partition = None,
    by: Annotated[
        str | None, typer.Option(metavar="topic|partition|segment", help="the unit of a row")
    ] = None,
    segments: Annotated[bool, typer.Option("--segments", help="the same as --by segment")] = False,
    sort: Annotated[
        str, typer.Option(metavar="name|size|garbage", help="sort by name, or the largest first")
    ] = "name",
    quick: Annotated[
        bool, typer.Option("--quick", help="use the garbage index where there is one; ~ marks estimates")
    ] = False,
    more: MoreDirs = None,
) -> None:
    """List topics, partitions or segments: live bytes and garbage.

    RECORDS counts the records on disk, NEWEST the newest records of their keys. In a compacted topic the rest
    is garbage. Both include records below START until their file is removed. ls reads every record, unless
    the garbage index covers all of them.

    Without --by: topics if the directory has several, else partitions; with --json always partitions. A
    narrow terminal omits columns; pipes and files get all columns.
    """
    if by is not None and segments and by != "segment":
        raise UsageError("--segments means --by segment", remedy="give one of them")
    for option, value, known in (("--by", by, BY), ("--sort", sort, SORTS)):
        if value is not None and value not in known:
            raise UsageError(f"unknown {option} {value!r}", remedy=f"one of {', '.join(known)}")
    target = Target.of(directory, topic, partition, more)
    from lastword.api.cleaning import unread_topics

    failed: list[LastwordError] = []
    rows: list[Any] = []
    with out.open(target) as logs, out.progress("count") as progress:
        dirs = logs.dirs
        chosen = dirs.select_by_topic(target.topic, target.partition)
        by = (
            "segment" if segments else by or ("topic" if len(chosen) > 1 and not out.as_json else "partition")
        )
        pairs = [(name, number) for name, numbers in chosen.items() for number in numbers]
        row_of: Any = inspections.segment_infos if by == "segment" else inspections.partition_info
        for tp, result in inspections.count_each(dirs, pairs, row_of, progress, quick=quick):
            if isinstance(result, LastwordError):
                failed.append(result)  # raised at the end, after the other rows are shown
                if by != "segment":
                    rows.append(Uncounted.of(dirs, *tp, result))
            else:
                rows += result if by == "segment" else [result]
        for path, why in logs.offline.items():
            out.warning(f"{path} is offline: {why.message}")
        set_aside = [] if target.topic is not None else logs.set_aside
        compacted = {name for name in chosen if dirs.config(name).compacts}
        unknown = {name for name in chosen if dirs.config(name).unread is not None}
        unread = unread_topics(dirs, chosen)
        log_dirs = {tp: dirs.log_dir(*tp).path for tp in pairs} if len(logs.paths) > 1 else {}
        counted = [row for row in rows if not isinstance(row, Uncounted)]
        open_ones = [row for row in counted if getattr(row, "stable", -1) < getattr(row, "log_end", -1)]
        held = held_texts(logs, target, {row.topic for row in open_ones}, HANGS_MS)
    totals = {
        "size_bytes": sum(row.size_bytes for row in rows),
        "live_bytes": sum(row.live_bytes for row in counted),
        "garbage_bytes": sum(row.garbage_bytes for row in counted),
    }
    shown = (
        [TopicRow.of(list(group)) for _, group in groupby(rows, attrgetter("topic"))]
        if by == "topic"
        else rows
    )
    if sort != "name":
        shown = sorted(shown, key=lambda row: -_figure(row, sort, compacted))
    show: Any = {"topic": _topics, "partition": _partitions, "segment": _segments}[by]
    show(out, shown, compacted, log_dirs, unknown)
    for sentence in unread:
        out.say(sentence)
    for path, entry in set_aside:
        out.row("set-aside", {"dir": path, **entry._asdict()})
        out.say(f"not served: {os.path.join(path, entry.name)}")
    numbers = {"segments" if by == "segment" else "partitions": len(rows)}
    for text in held:
        out.say(text)
    out.summary(
        _totals(rows, counted, compacted, log_dirs)
        if len(rows) > 1
        else None
        if rows or failed
        else "no topics",
        ok=not failed,
        topics=len(chosen),
        **numbers,
        **totals,
    )
    out.raise_all(failed)


def _totals(
    rows: list[Any], counted: list[Any], compacted: set[str], log_dirs: dict[tuple[str, int], str]
) -> str:
    """Return the line of totals, such as `2 topics, 9 partitions, 1.9 GiB, 214 MiB of it garbage`.

    With several directories, one more line for each.
    """
    partitions = {(row.topic, row.partition) for row in rows}
    parts = [
        plural(len({row.topic for row in rows}), "topic"),
        plural(len(partitions), "partition"),
        format_bytes(sum(row.size_bytes for row in rows)),
    ]
    known = [row for row in counted if row.topic in compacted]
    if known:
        garbage = sum(row.garbage_bytes for row in known)
        about = _about(format_bytes(garbage), all(row.exact for row in known))
        parts.append(f"{about} of it garbage" + ("" if len(counted) == len(rows) else ", as far as counted"))
    text = ", ".join(parts)
    for path in dict.fromkeys(log_dirs.values()):
        inside = [row for row in rows if log_dirs[row.topic, row.partition] == path]
        number = len({(row.topic, row.partition) for row in inside})
        text += (
            f"\n{path}: {plural(number, 'partition')}, {format_bytes(sum(row.size_bytes for row in inside))}"
        )
    return text


def _figure(row: Any, sort: str, compacted: set[str]) -> int:
    if sort == "size":
        return int(row.size_bytes)
    return int(row.garbage_bytes or 0) if row.topic in compacted and not isinstance(row, Uncounted) else 0


def _topics(
    out: Session,
    rows: list[TopicRow],
    compacted: set[str],
    log_dirs: dict[tuple[str, int], str],
    unknown: set[str],
) -> None:
    for row in rows:
        out.row("topic", asdict(row))
    out.table(
        ("TOPIC", "PARTITIONS", "SIZE", "LIVE", "GARBAGE", "RECORDS", "NEWEST", "SEGMENTS", "POLICY"),
        [
            (
                row.topic,
                str(row.partitions),
                format_bytes(row.size_bytes),
                *(_counts(row, compacted) if row.uncounted < row.partitions else ("?",) * 4),
                str(row.segments),
                _policy(row, unknown) + row.health,
            )
            for row in rows
        ],
        "lrrrrrrrl",
        spare=("SEGMENTS", "LIVE", "NEWEST"),
    )


def _segments(
    out: Session,
    rows: list[SegmentInfo],
    compacted: set[str],
    log_dirs: dict[tuple[str, int], str],
    unknown: set[str],
) -> None:
    for row in rows:
        out.row("segment", row.to_dict())
    out.table(
        (
            "SEGMENT",
            "OFFSETS",
            "SIZE",
            "LIVE",
            "GARBAGE",
            "RECORDS",
            "LARGEST TIMESTAMP",
            *_dir(log_dirs),
            "",
        ),
        [
            (
                f"{row.topic}-{row.partition}/{row.base_offset}",
                f"{row.base_offset}-{row.next_offset - 1}" if row.next_offset > row.base_offset else "-",
                format_bytes(row.size_bytes),
                *_bytes(row, compacted),
                _about(str(row.records), row.exact),
                format_time(row.largest_timestamp),
                *_dir(log_dirs, row),
                "active" if row.active else "",
            )
            for row in rows
        ],
        "lrrrrrlll",
        spare=("LARGEST TIMESTAMP", "LIVE"),
    )


def _dir(log_dirs: dict[tuple[str, int], str], row: Any = None) -> tuple[str, ...]:
    """Return the cell with the directory of a row, or its title; nothing if there is one directory."""
    if not log_dirs:
        return ()
    return ("DIR",) if row is None else (log_dirs[row.topic, row.partition],)


def _about(figure: str, exact: bool) -> str:
    return figure if exact else f"~ {figure}"


def _partitions(
    out: Session,
    rows: list[PartitionInfo | Uncounted],
    compacted: set[str],
    log_dirs: dict[tuple[str, int], str],
    unknown: set[str],
) -> None:
    for row in rows:
        out.row("partition", row.to_dict())
    indexed = [None if isinstance(row, Uncounted) else row.indexed_to for row in rows]
    has_index = any(end is not None for end in indexed)
    out.table(
        (
            *("PARTITION", "SIZE", "LIVE", "GARBAGE", "RECORDS", "NEWEST", "START", "END"),
            *(("INDEXED",) if has_index else ()),
            *("SEGMENTS", "POLICY"),
            *_dir(log_dirs),
        ),
        [
            (
                f"{row.topic}-{row.partition}",
                "?" if row.segments is None else format_bytes(row.size_bytes),
                *_counts(row, compacted),
                *("?" if fact is None else str(fact) for fact in (row.log_start, row.log_end)),
                *(("-" if end is None else str(end),) if has_index else ()),
                "?" if row.segments is None else str(row.segments),
                _policy(row, unknown) + _health(row),
                *_dir(log_dirs, row),
            )
            for row, end in zip(rows, indexed, strict=True)
        ],
        "lrrrrrrr" + "r" * has_index + "rll",
        spare=("START", "SEGMENTS", *(("INDEXED",) if has_index else ()), "LIVE", "NEWEST", "END"),
    )


def _bytes(row: Any, compacted: set[str]) -> tuple[str, str]:
    """Return the cells LIVE and GARBAGE, which are defined for compacted topics only."""
    if row.topic not in compacted:
        return "-", "-"
    return _about(format_bytes(row.live_bytes), row.exact), _about(format_bytes(row.garbage_bytes), row.exact)


def _counts(row: Any, compacted: set[str]) -> tuple[str, ...]:
    if isinstance(row, Uncounted):
        return ("?",) * 4
    records = _about(str(row.records), row.exact), _about(str(row.live_records), row.exact)
    return (*_bytes(row, compacted), *records)


def _policy(row: Any, unknown: set[str]) -> str:
    return row.policy or ("unknown" if row.topic in unknown else "not set")


def _health(row: PartitionInfo | Uncounted) -> str:
    if row.quarantine is not None:
        return " (quarantined)"
    return f" ({row.problem})" if isinstance(row, Uncounted) else ""
