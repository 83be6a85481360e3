"""`lastword read`: print records as text, or as JSON that `lastword append` reads."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from lastword.api.serializers import bytes_json, field_json
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
    """Add the command `read`."""
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
    end: Annotated[
        str, typer.Option(metavar="E", help="end, exclusive: latest, or any value of --start")
    ] = "latest",
    last: Annotated[
        int | None, typer.Option(metavar="N", help="the last N records of each partition", min=0)
    ] = None,
    limit: Annotated[
        int | None, typer.Option("-n", "--limit", metavar="N", help="stop after N records", min=0)
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(metavar="K", help="only this key, typed as `read` shows it; may be repeated"),
    ] = None,
    view: Annotated[
        str, typer.Option(metavar="log|latest|changes", help="all records, or the newest per key")
    ] = "log",
    follow: Annotated[
        bool,
        typer.Option("-f", "--follow", help="continue with new records as they are appended, until Ctrl-C"),
    ] = False,
    timeout: Annotated[
        float | None, typer.Option(metavar="S", help="with --follow: end after S seconds without a record")
    ] = None,
    more: MoreDirs = None,
) -> None:
    """Read all records, or the newest record of every key."""
    target = Target.of(directory, topic, partition, more)
    known_as = target.topic_for("read")
    if last is not None and start is not None:
        raise UsageError("--last cannot be combined with --start", remedy="give one of them")
    if timeout is not None and (not follow or timeout < 0):
        reason = "is not a time" if follow else "needs --follow: a bounded read ends by itself"
        raise UsageError(f"--timeout {timeout:g} {reason}", remedy="--follow --timeout SECONDS")
    if view not in VIEWS:
        near = nearest(view, VIEWS)
        raise UsageError(
            f"unknown --view {view!r}" + (f"; nearest: {near}" if near else ""),
            remedy=f"one of {', '.join(VIEWS)}",
        )
    if follow and view != "log":
        raise UsageError(
            f"--view {view} needs an end, and --follow has none",
            remedy=target.command("read", known_as, "--view", view),
        )
    if follow and end != "latest":
        raise UsageError("--follow cannot be combined with --end", remedy="omit one of them")
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
            view=cast("View", view),  # checked above
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
                if follow:  # after counting: a user who sees the record may press Ctrl-C immediately
                    out.stdout.flush()
                if shown == limit:
                    break
        except KeyboardInterrupt:  # the summary has the position to continue from
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
    """Return the offset at which the last `count` records of each partition begin.

    A cleaned log has gaps, and markers are not records: a growing part of the end of the log is read until
    it has `count` records.
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
    """Decode a record of Kafka's own topics; None in other topics and for unknown bytes."""
    if not record.topic.startswith("__"):
        return None
    from lastword.records.internal import UndecodableError, decode, is_internal

    try:
        return decode(record.topic, record.key, record.value) if is_internal(record.topic) else None
    except UndecodableError:
        return None
