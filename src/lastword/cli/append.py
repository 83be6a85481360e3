"""`lastword append`: append records from the command line, or JSON lines of `lastword read` from stdin."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from lastword.api.serializers import field_bytes
from lastword.cli import signals
from lastword.cli.command import Session, command
from lastword.cli.target import Directory, MoreDirs, Partition, Target, TopicName
from lastword.cli.text import argument_bytes, key_candidates, unescape
from lastword.errors import UsageError, nearest
from lastword.values import plural

if TYPE_CHECKING:
    from lastword.api.topic import Ack, Topic

EXAMPLES = """
lastword append data users ada '{"city": "London"}'
lastword append data users --delete bob
lastword read data users --json | lastword append copy users
printf 'ada=London\\nbob=Oslo\\n' | lastword append data cities --delimiter =
"""


# Fields of a JSON line. `append` ignores some of those that `read --json` prints, such as the offset.
FIELDS = ("key", "value", "headers", "timestamp", "type", "topic", "partition", "offset", "timestamp_type")


def register(app: typer.Typer) -> None:
    """Add the command `append`."""
    command(app, "append", usage="DIR TOPIC [KEY VALUE]", examples=EXAMPLES, changes=True)(append)


def append(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    key: Annotated[str | None, typer.Argument(metavar="KEY", help="the key of the record")] = None,
    value: Annotated[str | None, typer.Argument(metavar="VALUE", help="the value of the record")] = None,
    partition: Partition = None,
    delete: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="append a tombstone for this key, typed as `read` shows it"),
    ] = None,
    delimiter: Annotated[
        str | None,
        typer.Option(metavar="D", help=r"stdin has lines KEY D VALUE instead of JSON; '\t' is a tab"),
    ] = None,
    ack: Annotated[
        str | None,
        typer.Option(metavar="os|disk", help="survive a killed process (os) or a power cut (disk)"),
    ] = None,
    more: MoreDirs = None,
) -> None:
    """Append one record, a tombstone, or the records on stdin.

    Without KEY, stdin has one record per line, as `lastword read --json` prints them.
    """
    target, (key, value) = Target.with_words(
        "append", directory, [topic, key, value], ["KEY", "VALUE"], partition, more
    )
    known = target.topic_for("append")
    if delete is not None and (key is not None or value is not None):
        raise UsageError("--delete cannot be combined with KEY VALUE", remedy="give one of them")
    if key is not None and value is None:
        raise UsageError("KEY without VALUE", remedy=f"give a value, or delete the key: --delete {key}")
    with out.change(target) as logs:
        into = logs.topic(known, key_serializer="bytes", value_serializer="bytes")
        names = into.schema.saved
        if delete is not None or key is not None:
            _append_one(out, into, names, key, value, delete, target.partition, ack)
            return
        if sys.stdin.isatty():
            shape = '{"key": ..., "value": ...}' if delimiter is None else f"KEY{delimiter}VALUE"
            out.say(f"reading records from the terminal, one per line: {shape}; Ctrl-D ends the input")
        records = _lines(names, delimiter) if delimiter is not None else _objects(names)
        appended = into.extend(records, partition=target.partition, ack=cast("Ack | None", ack))
    out.summary(f"appended {plural(appended, 'record')}", topic=known, records=appended)


def _append_one(
    out: Session,
    into: Topic[Any, Any],
    names: tuple[str | None, str | None],
    key: str | None,
    value: str | None,
    delete: str | None,
    partition: int | None,
    ack: str | None,
) -> None:
    if delete is not None:
        key_data = key_candidates(delete, names[0])[0]
    else:
        key_data = argument_bytes(key or "", names[0], "key")
    data = None if value is None else argument_bytes(value, names[1], "value")
    appended = into.append(key_data, data, partition=partition, ack=cast("Ack | None", ack))
    if out.as_json:
        out.summary(topic=into.name, records=1, **appended.to_dict())
    elif not out.quiet:
        out.line(f"{into.name}-{appended.partition} offset {appended.offset}")


def _input() -> Iterator[bytes]:
    """Yield the lines of stdin. A signal may interrupt the command while it waits for a line."""
    while line := signals.interruptible(sys.stdin.buffer.readline):
        yield line


def _lines(names: tuple[str | None, str | None], delimiter: str) -> Iterator[Any]:
    """Yield records from lines KEY D VALUE. Empty lines are skipped; a line without D is an error."""
    if not delimiter:
        raise UsageError("the delimiter is empty", remedy="--delimiter =")
    delimiter = delimiter.replace("\\t", "\t")
    delimiter = unescape(delimiter).decode("utf-8", "surrogateescape")
    for number, line in enumerate(_input(), 1):
        text = line.removesuffix(b"\n").decode("utf-8", "surrogateescape")
        if not text.strip("\r"):
            continue
        key, separator, value = text.partition(delimiter)
        if not separator:
            raise UsageError(
                f"stdin line {number} has no {delimiter!r}", remedy="one record per line: KEY D VALUE"
            )
        try:
            yield argument_bytes(key, names[0], "key"), argument_bytes(value, names[1], "value")
        except UsageError as error:
            raise UsageError(f"stdin line {number}: {error.message}", remedy=error.remedy) from None


def _objects(names: tuple[str | None, str | None]) -> Iterator[Any]:
    """Yield the objects of type `record`, one per line; other types, such as `summary`, are skipped."""
    from lastword.api.record import Record

    for number, line in enumerate(_input(), 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            if not isinstance(fields, dict):
                raise ValueError("not an object")
        except ValueError:
            raise UsageError(
                f"stdin line {number} is not a JSON object",
                remedy="lines as `lastword read DIR TOPIC --json` prints them, or --delimiter",
            ) from None
        if fields.get("type", "record") != "record":
            continue
        unknown = next((name for name in fields if name not in (*FIELDS, "decoded")), None)
        if unknown is not None:
            near = nearest(unknown, FIELDS)
            raise UsageError(
                f"stdin line {number} has the unknown field {unknown!r}"
                + (f"; nearest: {near}" if near else ""),
                remedy=f"fields are {', '.join(FIELDS)}",
            )
        if "key" not in fields or "value" not in fields:
            raise UsageError(
                f"stdin line {number} has no key or no value", remedy='{"key": ..., "value": ...}'
            )
        try:
            yield Record(
                "",
                -1,
                -1,
                int(fields.get("timestamp", -1)),
                "create",
                field_bytes(fields["key"], names[0], "key"),
                field_bytes(fields["value"], names[1], "value"),
                tuple(
                    (str(name), field_bytes(value, "bytes", "header"))
                    for name, value in fields.get("headers", ())
                ),
                fields["key"] is not None,
                fields["value"] is None,
            )
        except (TypeError, ValueError) as error:
            message = getattr(error, "message", None) or "its fields are not the fields of a record"
            remedy = getattr(error, "remedy", None) or "lines as `lastword read DIR TOPIC --json` prints them"
            raise UsageError(f"stdin line {number}: {message}", remedy=remedy) from None
