"""`lastword ls`: topics, partitions and segments, with true counts of what is live and what is garbage."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword.cli.options import Directory, MoreDirs, Partition, Session, Target, TopicName, command
from lastword.errors import LastwordError
from lastword.units import format_bytes, format_time

if TYPE_CHECKING:
    from lastword.api.places import Places
    from lastword.api.values import PartitionInfo, SegmentInfo

EXAMPLES = """
lastword ls data
lastword ls data users --segments
lastword ls data/users-0 --segments --json
lastword ls data --quick
"""


def register(app: typer.Typer) -> None:
    command(app, "ls", usage="DIR [TOPIC]", examples=EXAMPLES)(ls)


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
    """List topics, partitions or segments: live bytes and garbage.

    RECORDS are on disk, NEWEST of them the newest of their key; the rest is garbage. Both count what lies
    below START, until its file goes. Every record is looked at, unless garbage accounts know them all.
    """
    target = Target.of(directory, topic, partition, more)
    from lastword.api import counts
    from lastword.api.places import Places

    failed: list[LastwordError] = []
    rows: list[Any] = []
    with out.open(target) as logs, out.progress("count") as progress:
        places = Places(logs)
        chosen = places.chosen(target.topic, target.partition)
        pairs = [(name, number) for name, numbers in chosen.items() for number in numbers]
        row_of: Any = counts.segment_infos if segments else counts.partition_info
        for tp, found in counts.count_each(logs, pairs, row_of, progress, quick=quick):
            if isinstance(found, LastwordError):
                # The others are listed before what cannot be counted is told.
                failed.append(found)
                if not segments:
                    rows.append(Uncounted.of(places, *tp))
            else:
                rows += found if segments else [found]
        for path, why in logs.offline.items():
            out.warning(f"{path} is offline: {why.message}")
        set_aside = [] if target.topic is not None else logs.set_aside
    if segments:
        _segments(out, rows)
    else:
        _partitions(out, rows)
    counted = [row for row in rows if not isinstance(row, Uncounted)]
    for path, aside in set_aside:
        out.row("set-aside", {"dir": path, **asdict(aside)})
        out.say(f"not served: {os.path.join(path, aside.name)}")
    out.summary(
        None if rows or failed else "no topics",
        ok=not failed,
        topics=len(chosen),
        **{"segments" if segments else "partitions": len(rows)},
        size_bytes=sum(row.size_bytes for row in rows),
        live_bytes=sum(row.live_bytes for row in counted),
        garbage_bytes=sum(row.garbage_bytes for row in counted),
    )
    out.raise_all(failed)


def _segments(out: Session, rows: list[SegmentInfo]) -> None:
    for row in rows:
        out.row("segment", row.to_dict())
    out.table(
        ("SEGMENT", "OFFSETS", "SIZE", "LIVE", "GARBAGE", "RECORDS", "LARGEST TIMESTAMP", ""),
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


@dataclass(frozen=True, slots=True)
class Uncounted:
    """A partition whose records could not be counted: what is known of it all the same."""

    topic: str
    partition: int
    dir: str
    policy: str | None
    log_start: int
    log_end: int
    segments: int
    size_bytes: int
    quarantine: str | None

    @classmethod
    def of(cls, places: Places, topic: str, partition: int) -> Uncounted:
        view = places.view(topic, partition)
        policy = places.config(topic).cleanup_policy
        from lastword.cleaner import quarantine

        noted = quarantine.load(view.files, view.directory)
        return cls(
            topic,
            partition,
            os.path.dirname(os.path.normpath(view.directory)),
            ",".join(sorted(policy)) if policy else None,
            view.log_start,
            view.log_end,
            len(view.segments),
            sum(segment.size for segment in view.segments),
            None if noted is None else noted.reason,
        )

    def to_dict(self) -> dict[str, Any]:
        """The fields of a `PartitionInfo`; null is what is not known."""
        unknown = dict.fromkeys(("live_bytes", "garbage_bytes", "records", "live_records", "tombstones"))
        return {**asdict(self), **unknown, "exact": False}


def _partitions(out: Session, rows: list[PartitionInfo | Uncounted]) -> None:
    for row in rows:
        out.row("partition", row.to_dict())
    out.table(
        ("PARTITION", "SIZE", "LIVE", "GARBAGE", "RECORDS", "NEWEST", "START", "END", "SEGMENTS", "POLICY"),
        [
            (
                f"{row.topic}-{row.partition}",
                format_bytes(row.size_bytes),
                *_counts(row),
                str(row.log_start),
                str(row.log_end),
                str(row.segments),
                (row.policy or "none") + _health(row),
            )
            for row in rows
        ],
        "lrrrrrrrrl",
    )


def _counts(row: PartitionInfo | Uncounted) -> tuple[str, ...]:
    if isinstance(row, Uncounted):
        return ("?",) * 4
    return (
        _about(format_bytes(row.live_bytes), row.exact),
        _about(format_bytes(row.garbage_bytes), row.exact),
        _about(str(row.records), row.exact),
        _about(str(row.live_records), row.exact),
    )


def _health(row: PartitionInfo | Uncounted) -> str:
    if row.quarantine is not None:
        return " (quarantined)"
    return " (damaged)" if isinstance(row, Uncounted) else ""
