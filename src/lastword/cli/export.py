"""`lastword export`: bring a Delta table to the newest values of a topic, once or at an interval."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword.cli import signals
from lastword.cli.clean import POLL_SECONDS, exporter, interval_ms, parse_address
from lastword.cli.command import CONTEXT, Session, command, metrics_option, option
from lastword.cli.target import WholeTopic, storage_of
from lastword.clock import SystemClock
from lastword.errors import LastwordError, UsageError
from lastword.units import format_bytes, format_duration, format_time

if TYPE_CHECKING:
    from lastword.api.logs import LogDir
    from lastword.lake.export import Exported


@command("export", usage="DIR TOPIC --to delta:PATH")
def export(
    out: Session,
    target: WholeTopic,
    to: Annotated[str | None, option("TARGET", "the table: delta:PATH or delta:URL")] = None,
    layout: Annotated[str, option("NAME", "vectors, or merge for readers without vectors")] = "vectors",
    value_format: Annotated[str | None, option("NAME", "json, avro, confluent or protobuf")] = None,
    value_schema: Annotated[
        str | None, option("DDL", "the type of column value: 'city STRING, population BIGINT'")
    ] = None,
    format_option: Annotated[
        list[str] | None, option("key=value", "such as avroSchema=user.avsc; may be repeated")
    ] = None,
    table_storage: Annotated[
        list[str] | None, option("key=value", "of a table in a bucket: an option of its store")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="show the rows and bytes to write; write nothing")
    ] = False,
    every: Annotated[str | None, option("TIME", "keep running; export at this interval")] = None,
    metrics: Annotated[str | None, metrics_option("with --every: serve Prometheus metrics")] = None,
) -> None:
    """Bring a Delta table to the newest values of a topic.

    The first export makes the table. A later one writes what has changed since, and marks the rows of
    replaced and deleted keys; an export without changes writes nothing.

    Examples:
        lastword export data users --to delta:lake/users --dry-run
        lastword export data users --to delta:lake/users
        lastword export data users --to delta:s3://bucket/lake
        lastword export data users --to delta:lake/typed --value-format json --value-schema 'n BIGINT'
        lastword export data users --to delta:lake/copy --layout merge
        lastword export data users --to delta:lake/users --every 1m
    """
    known = target.topic_for("export", "--to", to or "delta:PATH")
    target.refuse_partition("export", known, "--to", to or "delta:PATH")
    if to is None:
        raise UsageError(
            "export needs --to", remedy=target.command("export", *target.words, "--to", "delta:PATH")
        )
    if every is not None and dry_run:
        raise UsageError("--dry-run cannot be combined with --every", remedy="give one of them")
    if metrics is not None and every is None:
        raise UsageError(
            "--metrics needs --every",
            remedy=target.command("export", *target.words, "--to", to, "--every", "1m", "--metrics", "9464"),
        )
    format_options = storage_of(format_option, "--format-option avroSchema=user.avsc")
    if format_options and value_format is None:
        raise UsageError("--format-option needs --value-format", remedy="give both")
    options: dict[str, Any] = {
        "layout": layout,
        "value_format": (value_format, format_options) if format_options else value_format,
        "value_schema": value_schema,
        "storage_options": storage_of(table_storage, "--table-storage region=eu-central-1") or None,
    }
    if every is None:
        with out.open(target) as logs, out.progress("export") as progress:
            result = logs.topic(known).export(to, dry_run=dry_run, progress=progress, **options)
        _show(out, result, dry_run=dry_run)
        return
    address = None if metrics is None else parse_address(metrics)
    with ExitStack() as stack:
        stack.enter_context(signals.held())
        logs = stack.enter_context(out.open(target))
        if address is not None:
            url = stack.enter_context(exporter(*address))
            out.notice("metrics", {"address": url}, f"metrics on {url}")
        _keep_exporting(out, logs, known, to, interval_ms(every), options)


def _show(out: Session, result: Exported, *, dry_run: bool) -> None:
    if not dry_run:
        out.row("exported", result.to_dict())
        out.summary(str(result), table=result.table, version=result.version)
        return
    rows = result.added_rows + result.rewritten_rows
    out.row("would_export", result.to_dict())
    out.summary(
        f"{result.topic}: would write {rows} rows in {format_bytes(result.written_bytes)} "
        f"({result.added_rows} added, {result.rewritten_rows} rewritten), and remove {result.removed_rows}; "
        "nothing was written",
        table=result.table,
        written_bytes=result.written_bytes,
    )


def _keep_exporting(
    out: Session, logs: LogDir, topic: str, to: str, every_ms: int, options: dict[str, Any]
) -> None:
    """Export at an interval and show each export that wrote something, until a signal.

    SIGTERM ends the command with exit code 0. An error after which the same call may succeed is a warning.
    """
    clock = CONTEXT.clock or SystemClock()
    totals = {"exports": 0, "failed": 0, "written_bytes": 0}
    out.say(f"exporting every {format_duration(every_ms)}; Ctrl-C ends it")
    while not signals.noted():
        due = clock.monotonic() + every_ms / 1000
        try:
            result = logs.topic(topic).export(to, **options)
        except LastwordError as error:
            if not error.retriable:
                raise
            totals["failed"] += 1
            out.warning(f"{format_time(clock.now_ms())}  {topic}: {error}")
        else:
            if result.version is not None:
                totals["exports"] += 1
                totals["written_bytes"] += result.written_bytes
                out.row("exported", result.to_dict())
                out.line(f"{format_time(clock.now_ms())}  {result}")
                out.stdout.flush()
        while not signals.noted() and (left := due - clock.monotonic()) > 0:
            clock.sleep(min(left, POLL_SECONDS))
    out.summary(f"wrote {format_bytes(totals['written_bytes'])}", ok=not totals["failed"], **totals)
    signals.settle(signal.SIGTERM)
