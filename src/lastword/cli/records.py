"""`lastword append`, `read`, `get`, `restore` and `dump`: write records, and show records and files.

`append` takes records from the command line, or from stdin the JSON lines that `read` prints. `restore`
writes the newest value of every key to a file. `dump` decodes any file of a log directory.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from lastword.api.serializers import bytes_json, field_bytes, name_json
from lastword.api.text import (
    argument_bytes,
    decoded_record,
    escape,
    field_text,
    internal_text,
    key_candidates,
    key_text,
    record_json,
    unescape,
    value_text,
)
from lastword.cli import signals
from lastword.cli.command import Session, argument, command, now_ms, option
from lastword.cli.remedies import PLACE
from lastword.cli.target import Directory, Keys, MoreDirs, OneTopic, Partition, Target, TopicName
from lastword.errors import LastwordError, NotALogDirError, UsageError, hint
from lastword.objects import is_url
from lastword.parse import one_of, parse_seconds, parse_when
from lastword.units import format_bytes, format_time
from lastword.values import plural

if TYPE_CHECKING:
    from lastword.api.logs import LogDir
    from lastword.api.open_dirs import Ack
    from lastword.api.reader import View
    from lastword.api.record import Record
    from lastword.api.restore import Restored
    from lastword.files import Files


# Fields of a JSON line. `append` ignores some fields that `read --json` prints, such as the offset.
FIELDS = ("key", "value", "headers", "timestamp", "type", "topic", "partition", "offset", "timestamp_type")


@command("append", usage="DIR TOPIC [KEY VALUE]", changes=True)
def append(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    key: Annotated[str | None, argument("KEY", "the key of the record")] = None,
    value: Annotated[str | None, argument("VALUE", "the value of the record")] = None,
    partition: Partition = None,
    delete: Annotated[
        str | None, option("KEY", "append a tombstone for this key, typed as `read` shows it")
    ] = None,
    delimiter: Annotated[
        str | None, option("D", r"stdin has lines KEY D VALUE instead of JSON; '\t' is a tab")
    ] = None,
    ack: Annotated[
        str | None, option("os|disk", "survive a killed process (os) or a power cut (disk)")
    ] = None,
    more: MoreDirs = None,
) -> None:
    r"""Append one record, a tombstone, or the records on stdin.

    Without KEY, stdin has one record per line, as `lastword read --json` prints them.

    Examples:
        lastword append data users ada '{"city": "London"}'
        lastword append data users --delete bob
        lastword read data users --json | lastword append copy users
        printf 'ada=London\nbob=Oslo\n' | lastword append data cities --delimiter =
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
            if delete is not None:
                key_data = key_candidates(delete, names[0])[0]
            else:
                key_data = argument_bytes(key or "", names[0], "key")
            data = None if value is None else argument_bytes(value, names[1], "value")
            one = into.append(key_data, data, partition=target.partition, ack=cast("Ack | None", ack))
            text = f"{known}-{one.partition} offset {one.offset}"
            out.summary(text, topic=known, records=1, **one.to_dict())
            return
        if sys.stdin.isatty():
            shape = '{"key": ..., "value": ...}' if delimiter is None else f"KEY{delimiter}VALUE"
            out.say(f"reading records from the terminal, one per line: {shape}; Ctrl-D ends the input")
        records = _delimited_records(names, delimiter) if delimiter is not None else _json_records(names)
        appended = into.extend(records, partition=target.partition, ack=cast("Ack | None", ack))
    out.summary(f"appended {plural(appended, 'record')}", topic=known, records=appended)


def _input() -> Iterator[bytes]:
    """Yield the lines of stdin. A signal may interrupt the command while it waits for a line."""
    while line := signals.interruptible(sys.stdin.buffer.readline):
        yield line


def _delimited_records(names: tuple[str | None, str | None], delimiter: str) -> Iterator[Any]:
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


def _header_name(name: Any) -> str:
    if isinstance(name, str):
        return name
    return (field_bytes(name, "bytes", "header name") or b"").decode("utf-8", "surrogateescape")


def _json_records(names: tuple[str | None, str | None]) -> Iterator[Any]:
    """Yield the objects of type `record`, one per line; other types, such as `summary`, are skipped."""
    from lastword.api.record import Record

    for number, line in enumerate(_input(), 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            if not isinstance(fields, dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError):
            raise UsageError(
                f"stdin line {number} is not a JSON object",
                remedy="lines as `lastword read DIR TOPIC --json` prints them, or --delimiter",
            ) from None
        if fields.get("type", "record") != "record":
            continue
        unknown = next((name for name in fields if name not in (*FIELDS, "decoded")), None)
        if unknown is not None:
            raise UsageError(
                f"stdin line {number} has the unknown field {unknown!r}{hint(unknown, FIELDS)}",
                remedy=f"fields are {', '.join(FIELDS)}",
            )
        if "key" not in fields or "value" not in fields:
            raise UsageError(
                f"stdin line {number} has no key or no value", remedy='{"key": ..., "value": ...}'
            )
        try:
            timestamp, headers = fields.get("timestamp", -1), fields.get("headers", [])
            if type(timestamp) is not int or any(type(part) is not list for part in (headers, *headers)):
                raise TypeError
            yield Record(
                "",
                -1,
                -1,
                timestamp,
                "create",
                field_bytes(fields["key"], names[0], "key"),
                field_bytes(fields["value"], names[1], "value"),
                tuple((_header_name(name), field_bytes(value, "bytes", "header")) for name, value in headers),
                fields["key"] is not None,
                fields["value"] is None,
            )
        except (TypeError, ValueError, OverflowError) as error:
            message = getattr(error, "message", None) or "its fields are not the fields of a record"
            remedy = getattr(error, "remedy", None) or "lines as `lastword read DIR TOPIC --json` prints them"
            raise UsageError(f"stdin line {number}: {message}", remedy=remedy) from None


VIEWS = ("log", "newest", "changes")


@command("read", usage="DIR TOPIC")
def read(
    out: Session,
    target: OneTopic,
    start: Annotated[
        str | None, option("S", "earliest, an offset, a time with zone, @milliseconds, or an age (90m)")
    ] = None,
    end: Annotated[str, option("E", "end, exclusive: latest, or any value of --start")] = "latest",
    last: Annotated[int | None, option("N", "the last N records of each partition", min=0)] = None,
    limit: Annotated[int | None, option("N", "stop after N records", "-n", "--limit", min=0)] = None,
    key: Annotated[
        list[str] | None, option("K", "only this key, typed as `read` shows it; may be repeated")
    ] = None,
    view: Annotated[str, option("log|newest|changes", "all records, or the newest per key")] = "log",
    follow: Annotated[
        bool,
        typer.Option("-f", "--follow", help="continue with new records as they are appended, until Ctrl-C"),
    ] = False,
    timeout: Annotated[
        str | None, option("TIME", "with --follow: end after this long without a record (90, 5m)")
    ] = None,
) -> None:
    r"""Read all records, or the newest record of every key.

    Examples:
        lastword read data users
        lastword read data users --last 10
        lastword read data users --start 2026-11-20T10:00Z --end latest --json
        lastword read data users --view newest --key bob
        lastword read data users --key '\xff\x00' --key '{"base64":"/wA="}'
        lastword read data/users-0 --start 90m
        lastword read data users --last 5 --follow
    """
    topic_name = target.topic_for("read")
    if last is not None and start is not None:
        raise UsageError("--last cannot be combined with --start", remedy="give one of them")
    if timeout is not None and not follow:
        raise UsageError(
            "--timeout needs --follow: a bounded read ends by itself", remedy="--follow --timeout TIME"
        )
    one_of(view, VIEWS, "--view")
    if start == "latest" and not follow:
        raise UsageError(
            "--start latest is the log end: there is nothing to read",
            remedy=f"--view newest shows the newest value of each key: "
            f"{target.command('read', topic_name, '--view', 'newest')}; --follow waits for new records",
        )
    if follow and view != "log":
        raise UsageError(
            f"--view {view} needs an end, and --follow has none",
            remedy=target.command("read", topic_name, "--view", view),
        )
    if follow and end != "latest":
        raise UsageError("--follow cannot be combined with --end", remedy="omit one of them")
    from lastword.api.reader import last_starts

    with out.open(target) as logs:
        source = logs.topic(topic_name, key_serializer="bytes", value_serializer="bytes")
        names = source.schema.saved
        keys = None if key is None else [data for text in key for data in key_candidates(text, names[0])]
        until = _when(end)
        begin: Any = _when(start or "earliest")
        if last is not None:
            begin = last_starts(source, target.partition, last, until, keys=keys, view=cast("View", view))
        records = source.read(
            begin,
            until,
            partition=target.partition,
            keys=keys,
            view=cast("View", view),  # checked above
            follow=follow,
            timeout=None if timeout is None else parse_seconds("--timeout", timeout),
        )
        shown = 0

        def end_with_summary() -> None:
            position = {str(number): offset for number, offset in records.position.items()}
            out.summary(topic=topic_name, records=shown, position=position)
            if view != "log" and limit is None:
                _warn_of_transactions(out, logs, topic_name, records.position)

        try:
            for record in records if limit != 0 else ():
                _show_record(out, record, names)
                shown += 1
                if follow:  # after counting: a user who sees the record may press Ctrl-C immediately
                    out.stdout.flush()
                if shown == limit:
                    break
        except KeyboardInterrupt:  # the summary has the position to continue from
            end_with_summary()
            raise
        end_with_summary()


def _warn_of_transactions(out: Session, logs: LogDir, topic: str, ends: Mapping[int, int]) -> None:
    """Warn if open transactions hold committed records back, above the `ends` of a read."""
    for number, end in sorted(ends.items()):
        held_back = logs.dirs.view(topic, number).held_back(end)
        if held_back is not None:
            out.warning(held_back)


def _when(text: str) -> Any:
    return parse_when(text, now_ms=now_ms())


def _show_record(out: Session, record: Record[bytes, bytes], names: tuple[str | None, str | None]) -> None:
    """Show a record, as text or as a row of JSON. `names`: those of the topic's serializers."""
    decoded = decoded_record(record)
    if out.as_json:
        out.row("record", record_json(record, names, decoded))
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


NO_VALUE = 8  # exit code if a key has no value


@command("get", usage="DIR TOPIC KEY...")
def get(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    keys: Keys = None,
    partition: Partition = None,
    more: MoreDirs = None,
) -> int:
    """Show the newest record of each of some keys.

    Exit code 8 if a key has no value: it was never written, or was deleted.

    Examples:
        lastword get data users ada
        lastword get data users ada bob --json
        lastword get data/users-0 ada
    """
    target, texts = Target.with_keys("get", directory, [topic, *(keys or ())], partition, more)
    known = target.topic_for("get", "KEY")
    if not texts:
        raise UsageError("get needs a KEY", remedy=target.command("get", *target.words, "KEY"))
    with out.open(target) as logs:
        source = logs.topic(known, key_serializer="bytes", value_serializer="bytes")
        names = source.schema.saved
        meanings = {text: key_candidates(text, names[0]) for text in texts}
        every = {data for candidates in meanings.values() for data in candidates}
        records = source.get_records(every, partition=target.partition)
    missing = 0
    for text, candidates in meanings.items():
        record = next((records[data] for data in candidates if data in records), None)
        if record is not None:
            _show_record(out, record, names)
        else:
            missing += 1
            out.row("missing", {"topic": known, "key": bytes_json(candidates[0])})
            out.say(f"{text}: no value")
    out.summary(topic=known, records=len(meanings) - missing, missing=missing)
    return NO_VALUE if missing else 0


@command("restore", usage="DIR [TOPIC] OUT")
def restore(
    out: Session,
    directory: Directory,
    topic: TopicName = None,
    to: Annotated[str | None, argument("OUT", ".parquet, .arrow or .jsonl; - is stdout, as .jsonl")] = None,
    end: Annotated[
        str, option("E", "restore as of: latest, an offset, a time with zone, or an age (90m)")
    ] = "latest",
    partition: Partition = None,
    more: MoreDirs = None,
) -> None:
    """Write the newest value of every key to a file.

    Without TOPIC: of the only topic. The file is a table, and a state can start from it:
    logs.state(TOPIC, snapshot=OUT). A .jsonl file ends with a line of type `snapshot`, which names its log
    and offsets; stdout gets only the rows.

    Examples:
        lastword restore data users users.parquet
        lastword restore data users users.jsonl --end 2026-11-20T10:00Z
        lastword restore data users users.arrow -p 0
        lastword restore data/users-0 users.arrow
        lastword restore data users -
    """
    target, (path,) = Target.with_words("restore", directory, [topic, to], ["OUT"], partition, more)
    known = target.topic
    if path is None and known is not None and known == topic:
        with out.open(Target(target.paths, [], None)) as logs:
            if known == "-" or ("." in known and known not in logs):  # DIR OUT
                known, path = None, known
                PLACE.topic = None
    if path is None:
        raise UsageError("restore needs OUT", remedy=f"OUT: a file name such as {known}.parquet")
    if path == "-":
        _to_stdout(out, target, known, end)
        return
    restored = _restored(out, target, known, path, end)
    for file in restored:
        out.row("restored", file.to_dict())
        out.line(
            f"{file.topic}-{file.partition}: {plural(file.keys, 'key')}, {format_bytes(file.bytes)}, "
            f"up to offset {file.end_offset}"
        )
    out.summary(f"wrote {path}", ok=True, file=path, keys=sum(file.keys for file in restored))


def _restored(out: Session, target: Target, topic: str | None, path: str, end: str) -> list[Restored]:
    with out.open(target) as logs, out.progress("restore") as progress:
        topic = logs.dirs.only_topic(topic)
        restored = logs.restore(topic, target.partition, to=path, end=_when(end), progress=progress)
        _warn_of_transactions(out, logs, topic, {file.partition: file.end_offset for file in restored})
    return restored


def _to_stdout(out: Session, target: Target, topic: str | None, end: str) -> None:
    """Print rows as JSON lines, after all of them were read: a temporary file holds them until then."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="lastword-restore-") as scratch:
        path = os.path.join(scratch, "rows.jsonl")
        _restored(out, target, topic, path, end)
        with open(path, encoding="utf-8", newline="\n") as lines:  # noqa: PTH123  # a temporary file
            row = ""
            for line in lines:  # the last line is the snapshot line, not a row
                out.stdout.write(row)
                row = line


@command("dump", usage="FILE...")
def dump(
    out: Session,
    files: Annotated[
        list[str],
        argument("FILE...", "files of a log directory or of a log in a bucket, or a directory of them"),
    ],
    records: Annotated[
        bool, typer.Option("--records/--no-records", help="show the records of each batch too")
    ] = True,
) -> int:
    """Decode any file of a log directory.

    Decodes segments, indexes, producer snapshots, checkpoints and properties, and the fields of records in
    Kafka's own topics (__consumer_offsets, __transaction_state, __share_group_state, __cluster_metadata).
    Shows damage too (exit code 3).

    Examples:
        lastword dump data/users-0/00000000000000000000.log
        lastword dump data/users-0 --no-records
        lastword dump data/users-0/*.index data/users-0/*.timeindex
        lastword dump data/recovery-point-offset-checkpoint --json
    """
    from lastword.tools.dump import Batch, CheckpointEntry, IndexEntry, ProducerEntry, Property
    from lastword.tools.dump import dump as entries_of

    kinds: dict[type, str] = {
        Batch: "batch",
        IndexEntry: "index",
        CheckpointEntry: "checkpoint",
        ProducerEntry: "producer",
        Property: "property",
    }
    problems = rows = 0
    failed: list[LastwordError] = []
    with ExitStack() as stack:
        decodable = [(file, storage) for path in files for file, storage in _decodable(path, out, stack)]
        for file, storage in decodable:
            try:
                entries = entries_of(file, records=records, files=storage)
            except UsageError as error:  # the other files are shown first
                failed.append(error)
                continue
            if len(decodable) > 1:
                out.line(f"{file}:")
            for entry in entries:
                rows += 1
                kind = kinds.get(type(entry), "problem")
                problems += kind == "problem"
                if out.as_json:
                    out.row(kind, _entry_json(entry))
                else:
                    for line in _entry_lines(kind, entry):
                        if kind == "problem":
                            out.line(out.paint(line, "red"))
                        else:
                            out.data_line(line)
    out.summary(ok=problems == 0 and not failed, entries=rows, problems=problems)
    out.raise_all(failed)
    return 3 if problems else 0


def _decodable(path: str, out: Session, stack: ExitStack) -> list[tuple[str, Files]]:
    """Return a file with its storage; for a directory, the files directly in it that can be decoded.

    The log of a URL stays open in `stack`.
    """
    from lastword.files import DEFAULT
    from lastword.tools.dump import dumper_of

    files: Files = DEFAULT
    if is_url(path):
        path = path.rstrip("/")
        files = stack.enter_context(_log_above(path, out)).dirs.files
    if not files.is_dir(path):
        return [(path, files)]
    inside = [os.path.join(path, name) for name in sorted(files.listdir(path))]
    known = [(file, files) for file in inside if dumper_of(file) is not None and not files.is_dir(file)]
    return known or [(path, files)]


def _log_above(url: str, out: Session) -> LogDir:
    """Open the log in a bucket that has a file or directory. NotALogDirError: there is no such log."""
    above = url
    while is_url(above) and not above.endswith("/"):
        try:
            return out.open(Target([above], [], None))
        except NotALogDirError:
            above = above.rpartition("/")[0]
    raise NotALogDirError(f"{url} is not in a log", remedy="check the URL", file=url)


def _entry_json(entry: Any) -> dict[str, Any]:
    fields: dict[str, Any] = entry.to_dict()
    if "records" in fields:
        fields["records"] = [
            {
                **record,
                "key": bytes_json(record["key"]),
                "value": "****" if shown.decoded and shown.decoded.is_secret else bytes_json(record["value"]),
                "decoded": None if shown.decoded is None else shown.decoded.masked().to_dict(),
                "headers": [[name_json(name), bytes_json(value)] for name, value in record["headers"]],
            }
            for record, shown in zip(fields["records"], entry.records, strict=True)
        ]
    return fields


def _entry_lines(kind: str, entry: Any) -> list[str]:
    if kind == "problem":
        return [f"damaged: {entry}"]
    if kind == "batch":
        return _batch_lines(entry)
    if kind == "index":
        if entry.kind == "offset":
            return [f"offset {entry.offset}  position {entry.position}"]
        if entry.kind == "time":
            return [f"timestamp {entry.timestamp} ({format_time(entry.timestamp)})  offset {entry.offset}"]
        more = "  ".join(f"{name} {value}" for name, value in (entry.fields or {}).items())
        return [f"aborted, marker at offset {entry.offset}  {more}"]
    if kind == "checkpoint":
        if entry.topic is None:
            return [f"epoch {entry.epoch}  from offset {entry.offset}"]
        return [f"{entry.topic}-{entry.partition}  offset {entry.offset}"]
    if kind == "producer":
        return [
            f"producer {entry.producer_id}  epoch {entry.producer_epoch}  "
            f"last sequence {entry.last_sequence}  last offset {entry.last_offset}  "
            f"{format_time(entry.timestamp)}"
        ]
    return [f"{escape(entry.name)} = {escape(entry.value)}"]


def _batch_lines(batch: Any) -> list[str]:
    time = "no" if batch.timestamp_type == "none" else batch.timestamp_type
    marks = [batch.codec, f"{time} time"]
    marks.append(f"epoch {batch.leader_epoch}" if batch.magic == 2 else f"magic {batch.magic}")
    if batch.producer_id >= 0:
        marks.append(
            f"producer {batch.producer_id}/{batch.producer_epoch} from sequence {batch.base_sequence}"
        )
    if batch.delete_horizon_ms is not None:
        marks.append(f"delete horizon {format_time(batch.delete_horizon_ms)}")
    marks += [name for name in ("transactional", "control") if getattr(batch, name)]
    crc = f"CRC {batch.crc:08x}" + ("" if batch.crc_ok else " is WRONG")
    count, first = "", "up to "  # a compressed entry of magic 0 or 1 that was not decompressed
    if batch.count is not None:
        count, first = f"{plural(batch.count, 'record')}  ", f"{batch.base_offset}-"
    lines = [
        f"position {batch.position}  {batch.size_bytes} bytes  "
        f"offsets {first}{batch.last_offset}  {count}"
        f"{', '.join(marks)}  {crc}"
    ]
    for record in batch.records:
        headers = "".join(
            f"  {escape(name)}={'<null>' if value is None else escape(value)}"
            for name, value in record.headers
        )
        lines.append(
            f"  offset {record.offset}  {format_time(record.timestamp)}  {_content_text(record)}{headers}"
        )
    return lines


def _content_text(record: Any) -> str:
    if record.decoded is not None:
        return internal_text(record.decoded)
    if record.control is None:
        return f"{key_text(record.key)}  {value_text(record.value)}"
    epoch = "" if record.coordinator_epoch is None else f"  coordinator epoch {record.coordinator_epoch}"
    return f"{record.control}{epoch}"
