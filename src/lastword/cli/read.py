"""`lastword read`: records, as text or as JSON that `lastword append` takes."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from lastword.api.json_form import bytes_json, field_json
from lastword.cli.command import Session, command, now_ms
from lastword.cli.target import Directory, MoreDirs, Partition, Target, TopicName
from lastword.cli.text import escape, field_text, internal_text, key_candidates, key_text, value_text
from lastword.errors import UsageError, nearest
from lastword.parse import parse_when
from lastword.units import format_time

if TYPE_CHECKING:
    from lastword.api.reader import View
    from lastword.api.record import Record
    from lastword.api.topic import Topic
    from lastword.records.internal import InternalRecord

EXAMPLES = """
lastword read data users
lastword read data users --last 10
lastword read data users --start 2026-11-20T10:00Z --end latest --json
lastword read data users --view latest --key bob
lastword read data users --key '\\xff\\x00' --key '{"base64":"/wA="}'
lastword read data/users-0 --start 90m
lastword read data users --last 5 --follow
"""


VIEWS = ("log", "latest", "changes")


def register(app: typer.Typer) -> None:
    command(app, "read", usage="DIR TOPIC", examples=EXAMPLES)(read)


def read(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    partition: Partition = None,
    start: Annotated[
        str | None,
        typer.Option(
            metavar="S", help="earliest, an offset, a time with zone, @milliseconds, or an age (90m)"
        ),
    ] = None,
    end: Annotated[str, typer.Option(metavar="E", help="exclusive: latest, or as --start")] = "latest",
    last: Annotated[
        int | None, typer.Option(metavar="N", help="the last N records of each partition", min=0)
    ] = None,
    limit: Annotated[
        int | None, typer.Option("-n", "--limit", metavar="N", help="stop after N records", min=0)
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(metavar="K", help="only this key, typed as it is shown; may be repeated"),
    ] = None,
    view: Annotated[
        str, typer.Option(metavar="log|latest|changes", help="all, or the newest per key")
    ] = "log",
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="go on with records as they come, until Ctrl-C")
    ] = False,
    timeout: Annotated[
        float | None, typer.Option(metavar="S", help="with --follow: end after S seconds of silence")
    ] = None,
    more: MoreDirs = None,
) -> None:
    """Read records: all of them, or the newest of every key."""
    target = Target.of(directory, topic, partition, more)
    known_as = target.topic_for("read")
    if last is not None and start is not None:
        raise UsageError("--last takes the place of --start", remedy="give one of them")
    if timeout is not None and (not follow or timeout < 0):
        what = "is no time" if follow else "is for --follow: a bounded read ends by itself"
        raise UsageError(f"--timeout {timeout:g} {what}", remedy="--follow --timeout SECONDS")
    if view not in VIEWS:
        near = nearest(view, VIEWS)
        raise UsageError(
            f"unknown --view {view!r}" + (f"; nearest: {near}" if near else ""),
            remedy=f"one of {', '.join(VIEWS)}",
        )
    if follow and view != "log":
        raise UsageError(
            f"--view {view} needs all of a range, and --follow has no end",
            remedy=target.command("read", known_as, "--view", view),
        )
    if follow and end != "latest":
        raise UsageError("--follow goes on past every end", remedy="leave out --follow or --end")
    with out.open(target) as logs:
        source = logs.topic(known_as, key_serializer="bytes", value_serializer="bytes")
        names = source.schema.saved
        keys = None if key is None else [data for text in key for data in key_candidates(text, names[0])]
        until = _when(end)
        begin: Any = _when(start or "earliest")
        if last is not None:
            begin = _last(source, target.partition, last, until, keys, view)
        records = source.read(
            begin,
            until,
            partition=target.partition,
            keys=keys,
            view=cast("View", view),  # checked there
            follow=follow,
            timeout=timeout,
        )
        shown = 0

        def end_with_summary() -> None:
            position = {str(number): offset for number, offset in records.position.items()}
            out.summary(topic=known_as, records=shown, position=position)

        try:
            for record in records if limit != 0 else ():
                _show(out, record, names)
                shown += 1
                if follow:  # once it is counted: who has seen it may press Ctrl-C at once
                    out.stdout.flush()
                if shown == limit:
                    break
        except KeyboardInterrupt:  # whoever follows goes on from there
            end_with_summary()
            raise
        end_with_summary()


def _when(text: str) -> Any:
    return parse_when(text, now_ms=now_ms())


def _last(
    source: Topic[Any, Any],
    partition: int | None,
    count: int,
    end: Any,
    keys: list[bytes] | None,
    view: str,
) -> dict[int, int]:
    """Where the last `count` records of each partition begin.

    A cleaned log has gaps, and markers are no records: larger and larger ends of the log are read until
    there are as many.
    """
    begin = {}
    for number, (log_start, log_end) in source.bounds().items():
        if partition is not None and number != partition:
            continue
        start, window = log_end, count
        offsets: deque[int] = deque(maxlen=count)
        while len(offsets) < count and start > log_start:
            start, window = max(log_start, log_end - window), 4 * window
            records = source.read(start, end, partition=number, keys=keys, view=cast("View", view))
            offsets = deque((record.offset for record in records), maxlen=count)
        begin[number] = offsets[0] if len(offsets) == count > 0 else start
    return begin


def _show(out: Session, record: Record[bytes, bytes], names: tuple[str | None, str | None]) -> None:
    decoded = _decoded(record)
    if out.as_json:
        fields = {} if decoded is None else {"decoded": decoded.to_dict()}
        out.row(
            "record",
            {
                "topic": record.topic,
                "partition": record.partition,
                "offset": record.offset,
                "timestamp": record.timestamp,
                "timestamp_type": record.timestamp_type,
                "key": field_json(record.key, names[0]),
                "value": field_json(record.value, names[1]),
                "headers": [[name, bytes_json(value)] for name, value in record.headers],
                **fields,
            },
        )
        return
    place = f"{record.partition}:{record.offset}  {format_time(record.timestamp)}"
    if decoded is not None:
        out.data_line(f"{place}  {internal_text(decoded)}")
        return
    key, value = field_text(record.key, names[0], key_text), field_text(record.value, names[1], value_text)
    if out.colored:
        key = out.paint(key, "dim") if record.key is None else key
        value = out.paint(value, "dim") if record.value is None else value
    headers = "".join(
        f"  {escape(name)}={'<null>' if data is None else escape(data)}" for name, data in record.headers
    )
    out.data_line(f"{place}  {key}  {value}{headers}")


def _decoded(record: Record[bytes, bytes]) -> InternalRecord | None:
    """Return the fields of a record of one of Kafka's own topics; None for others, and for unknown bytes."""
    if not record.topic.startswith("__"):
        return None
    from lastword.records.internal import UndecodableError, decode, is_internal

    try:
        return decode(record.topic, record.key, record.value) if is_internal(record.topic) else None
    except UndecodableError:
        return None
