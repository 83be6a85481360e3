"""`lastword ls`: list topics, partitions and segments with their live bytes and garbage."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Annotated, Any

import typer

from lastword.api import inspections
from lastword.api.inspections import UNKNOWN_COUNTS, TopicRow, Uncounted, count_cells
from lastword.cli import signals
from lastword.cli.command import CONTEXT, Session, command, metrics_option, option
from lastword.cli.target import AnyTopics, Target
from lastword.cli.transactions import held_texts
from lastword.clock import SystemClock
from lastword.errors import LastwordError, UsageError
from lastword.objects import is_url
from lastword.parse import one_of
from lastword.units import format_bytes, format_duration, format_time
from lastword.values import plural, sums

COLUMNS = {
    "topic": (("TOPIC", "POLICY"), ("SEGMENTS", "LIVE", "NEWEST")),
    "partition": (
        ("PARTITION", "POLICY", "DIR"),
        ("START", "SEGMENTS", "INDEXED", "LIVE", "NEWEST", "END"),
    ),
    "segment": (("SEGMENT", "LARGEST TIMESTAMP", "DIR", ""), ("LARGEST TIMESTAMP", "LIVE")),
}
"""For each unit of a row, the columns of text, and those left out first if a terminal is narrow."""
SORTS = ("name", "size", "garbage")
HANGS_MS = 900_000
"""A coordinator ends a transaction after this time: the default of `transaction.max.timeout.ms`."""


@command("ls", usage="DIR [TOPIC...]")
def ls(
    out: Session,
    target: AnyTopics,
    by: Annotated[str | None, option("topic|partition|segment", "the unit of a row")] = None,
    segments: Annotated[bool, typer.Option("--segments", help="the same as --by segment")] = False,
    sort: Annotated[str, option("name|size|garbage", "sort by name, or the largest first")] = "name",
    quick: Annotated[
        bool, typer.Option("--quick", help="use the garbage index where there is one; ~ marks estimates")
    ] = False,
    metrics: Annotated[
        str | None, metrics_option("keep running, and serve the figures to Prometheus")
    ] = None,
    every: Annotated[str | None, option("TIME", "with --metrics: measure so often; 5m")] = None,
) -> None:
    """List topics, partitions or segments: live bytes and garbage.

    RECORDS counts the records on disk, NEWEST the newest records of their keys. In a compacted topic the rest
    is garbage. Both include records below START until their file is removed. ls reads every record, unless
    the garbage index covers all of them.

    Without --by: topics if the directory has several, else partitions; with --json always partitions. A
    narrow terminal omits columns; pipes and files get all columns.

    With --metrics it keeps running, and reads each closed segment once.

    Examples:
        lastword ls data
        lastword ls data users --segments
        lastword ls data users events
        lastword ls data --by partition --sort garbage
        lastword ls data/users-0 --segments --json
        lastword ls data --quick
        lastword ls data --metrics 9464 --every 5m
    """
    if by is not None and segments and by != "segment":
        raise UsageError("--segments means --by segment", remedy="give one of them")
    for name, value, known in (("--by", by, COLUMNS), ("--sort", sort, SORTS)):
        if value is not None:
            one_of(value, tuple(known), name)
    if metrics is not None:
        if by is not None or segments or quick or sort != "name":
            raise UsageError(
                "--metrics shows no table: --by, --segments, --sort and --quick have no effect",
                remedy=target.command("ls", *target.words, "--metrics", metrics, "--every", every or "5m"),
            )
        serve_metrics(out, target, metrics, "5m" if every is None else every)
        return
    if every is not None:
        raise UsageError(
            "--every needs --metrics",
            remedy=target.command("ls", *target.words, "--metrics", "9464", "--every", every),
        )
    from lastword.api.cleaning import unread_topics

    failed: list[LastwordError] = []
    rows: list[Any] = []
    with out.open(target) as logs, out.progress("count") as progress:
        dirs = logs.dirs
        chosen = dirs.select_by_topic(target.chosen, target.partition)
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
        set_aside = [] if target.topics else logs.set_aside
        compacted = {name for name in chosen if dirs.config(name).compacts}
        unknown = {name for name in chosen if dirs.config(name).unread is not None}
        unread = unread_topics(dirs, chosen)
        log_dirs = {tp: dirs.log_dir(*tp).path for tp in pairs} if len(logs.paths) > 1 else {}
        counted = [row for row in rows if not isinstance(row, Uncounted)]
        open_ones = [row for row in counted if getattr(row, "stable", -1) < getattr(row, "log_end", -1)]
        server = dirs.active_server()
        held = held_texts(logs, target, {row.topic for row in open_ones}, HANGS_MS)
    totals = sums(rows, "size_bytes") | sums(counted, "live_bytes", "garbage_bytes")
    shown: list[Any] = (
        [TopicRow.of(list(group)) for _, group in groupby(rows, attrgetter("topic"))]
        if by == "topic"
        else rows
    )
    if sort != "name":
        shown = sorted(shown, key=lambda row: -_figure(row, sort, compacted))
    cells = []
    for row in shown:
        out.row(by, asdict(row) if by == "topic" else row.to_dict())
        place = {"DIR": log_dirs[row.topic, row.partition]} if log_dirs and by != "topic" else {}
        cells.append(_cells(row, row.topic in compacted, row.topic in unknown, place))
    if all(row.get("INDEXED", "-") == "-" for row in cells):
        for row in cells:
            row.pop("INDEXED", None)
    text_columns, spare = COLUMNS[by]
    out.rows(cells, text_columns, spare)
    for sentence in unread:
        out.say(sentence)
    for path, entry in set_aside:
        out.row("set-aside", {"dir": path, **entry._asdict()})
        out.say(f"not served: {os.path.join(path, entry.name)}")
    numbers = {"segments" if by == "segment" else "partitions": len(rows)}
    for text in held:
        out.say(text)
    if server is not None and not target.topics:
        out.row("server", server._asdict())
        out.say(f"active server: {server.address} (node {server.id}, {server.name})")
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


def serve_metrics(out: Session, target: Target, address: str, every: str) -> None:
    """Measure all partitions at an interval, and serve the figures, until a signal ends the command.

    SIGTERM ends it with exit code 0, SIGINT and SIGHUP with 130 and 129. A partition or a directory that
    cannot be measured is a warning, once, and counted in the metrics.
    """
    from lastword.api.monitoring import Monitor
    from lastword.cli.clean import exporter, interval_ms, parse_address

    place, every_ms = parse_address(address), interval_ms(every)
    if is_url(target.paths[0]):
        raise UsageError(
            "--metrics is for directories: a log in a bucket has the metrics of the processes that write it",
            remedy=target.command("ls", *target.words, "--quick", "--json"),
        )
    clock = CONTEXT.clock or SystemClock()
    passes, known = 0, dict[str, str]()
    with signals.held(), out.open(target) as logs, exporter(*place) as url:
        for name in target.topics:
            logs.topic(name)
        out.notice(
            "metrics", {"address": url}, f"metrics on {url}; measured every {format_duration(every_ms)}"
        )
        monitor = Monitor(logs.dirs, target.chosen, target.partition)
        while not signals.noted():
            due = clock.monotonic() + every_ms / 1000
            done = monitor.measure(signals.noted)
            passes += 1
            out.row("pass", {"timestamp": clock.now_ms(), **done.to_dict()})
            out.line(
                f"{format_time(clock.now_ms())}  {plural(done.partitions, 'partition')} in "
                f"{format_duration(done.seconds * 1000)}, {format_bytes(done.read_bytes)} read"
            )
            for name, error in done.errors.items():
                if known.get(name) != error:
                    out.warning(error if name in error else f"{name}: {error}")
            is_whole = not signals.noted()
            known = done.errors if is_whole else known | done.errors
            out.stdout.flush()
            with suppress(signals.Ended):
                signals.interruptible(partial(clock.sleep, max(0.0, due - clock.monotonic())))
    out.summary(plural(passes, "pass"), passes=passes, ok=not known)
    signals.settle(signal.SIGTERM)


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
        about = "" if all(row.exact for row in known) else "~ "
        parts.append(
            f"{about}{format_bytes(garbage)} of it garbage"
            + ("" if len(counted) == len(rows) else ", as far as counted")
        )
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


def _cells(row: Any, compacts: bool, is_unknown: bool, directory: dict[str, str]) -> dict[str, str]:
    """Return the cells of a row, by column.

    Args:
        row: TopicRow, PartitionInfo, Uncounted or SegmentInfo.
        compacts: The topic is compacted.
        is_unknown: A setting of the topic that decides what is removed cannot be read.
        directory: The cell of the directory, if there are several.
    """
    if isinstance(row, TopicRow):
        counts = count_cells(row, compacts=compacts) if row.uncounted < row.partitions else UNKNOWN_COUNTS
        return {
            "TOPIC": row.topic,
            "PARTITIONS": str(row.partitions),
            "SIZE": format_bytes(row.size_bytes),
            **counts,
            "SEGMENTS": str(row.segments),
            "POLICY": (row.policy or ("unknown" if is_unknown else "not set")) + row.health,
        }
    cells: dict[str, str] = row.cells()
    if isinstance(row, inspections.SegmentInfo):
        active = {"": cells.pop("")}  # the last column
        return cells | ({} if compacts else {"LIVE": "-", "GARBAGE": "-"}) | directory | active
    if is_unknown:
        cells["POLICY"] = cells["POLICY"].replace("not set", "unknown", 1)
    return cells | directory
