"""`lastword append`: records from the command line, or from stdin as `lastword read --json` prints them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from lastword.api.json_form import field_bytes
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


# Of a line of JSON; of those that `read --json` prints, offset and the like are not taken over.
FIELDS = ("key", "value", "headers", "timestamp", "type", "topic", "partition", "offset", "timestamp_type")


def register(app: typer.Typer) -> None:
    command(app, "append", usage="DIR TOPIC [KEY VALUE]", examples=EXAMPLES, changes=True)(append)


def append(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    key: Annotated[str | None, typer.Argument(metavar="KEY", help="the record's key")] = None,
    value: Annotated[str | None, typer.Argument(metavar="VALUE", help="the record's value")] = None,
    partition: Partition = None,
    delete: Annotated[
        str | None, typer.Option(metavar="KEY", help="append a tombstone for this key, typed as it is shown")
    ] = None,
    delimiter: Annotated[
        str | None,
        typer.Option(metavar="D", help=r"stdin has lines of KEY D VALUE instead of JSON; a tab is '\t'"),
    ] = None,
    ack: Annotated[
        str | None, typer.Option(metavar="os|disk", help="what it must survive: a kill, or a power cut")
    ] = None,
    more: MoreDirs = None,
) -> None:
    """Append one record, a tombstone, or what stdin holds.

    Without KEY: records from stdin, one a line, as `lastword read --json` prints them.
    """
    target, (key, value) = Target.with_words(
        "append", directory, [topic, key, value], ["KEY", "VALUE"], partition, more
    )
    known = target.topic_for("append")
    if delete is not None and (key is not None or value is not None):
        raise UsageError("--delete takes the place of KEY VALUE", remedy="give one of them")
    if key is not None and value is None:
        raise UsageError("a key without a value", remedy=f"give a value, or remove the key: --delete {key}")
    with out.change(target) as logs:
        into = logs.topic(known, key_serializer="bytes", value_serializer="bytes")
        names = into.schema.saved
        if delete is not None or key is not None:
            _one(out, into, names, key, value, delete, target.partition, ack)
            return
        if sys.stdin.isatty():
            shape = '{"key": ..., "value": ...}' if delimiter is None else f"KEY{delimiter}VALUE"
            out.say(f"reading records from the terminal, one a line: {shape}; Ctrl-D ends them")
        records = _lines(names, delimiter) if delimiter is not None else _objects(names)
        appended = into.extend(records, partition=target.partition, ack=cast("Ack | None", ack))
    out.summary(f"appended {plural(appended, 'record')}", topic=known, records=appended)


def _one(
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
        chosen = key_candidates(delete, names[0])[0]
    else:
        chosen = argument_bytes(key or "", names[0], "key")
    data = None if value is None else argument_bytes(value, names[1], "value")
    appended = into.append(chosen, data, partition=partition, ack=cast("Ack | None", ack))
    if out.as_json:
        out.summary(topic=into.name, records=1, **appended.to_dict())
    elif not out.quiet:
        out.line(f"{into.name}-{appended.partition} offset {appended.offset}")


def _input() -> Iterator[bytes]:
    """Lines of stdin. The command may be interrupted while it waits for one."""
    while line := signals.interruptible(sys.stdin.buffer.readline):
        yield line


def _lines(names: tuple[str | None, str | None], delimiter: str) -> Iterator[Any]:
    """Lines of KEY D VALUE; empty ones are passed over, one without D is an error."""
    if not delimiter:
        raise UsageError("the delimiter is empty", remedy="--delimiter =")
    delimiter = delimiter.replace("\\t", "\t")
    delimiter = unescape(delimiter).decode("utf-8", "surrogateescape")
    for number, line in enumerate(_input(), 1):
        text = line.removesuffix(b"\n").decode("utf-8", "surrogateescape")
        if not text.strip("\r"):
            continue
        key, found, value = text.partition(delimiter)
        if not found:
            raise UsageError(
                f"stdin line {number} has no {delimiter!r}", remedy="one record a line: KEY D VALUE"
            )
        try:
            yield argument_bytes(key, names[0], "key"), argument_bytes(value, names[1], "value")
        except UsageError as error:
            raise UsageError(f"stdin line {number}: {error.message}", remedy=error.remedy) from None


def _objects(names: tuple[str | None, str | None]) -> Iterator[Any]:
    """Objects of type `record`, one a line; other types, such as `summary`, are passed over."""
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
            message = getattr(error, "message", None) or "its fields are not those of a record"
            remedy = getattr(error, "remedy", None) or "lines as `lastword read DIR TOPIC --json` prints them"
            raise UsageError(f"stdin line {number}: {message}", remedy=remedy) from None
