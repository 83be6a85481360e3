"""`lastword dump`: decode any file of a log directory."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from lastword.api.serializers import bytes_json
from lastword.cli.command import Session, command
from lastword.cli.text import escape, internal_text, key_text, value_text
from lastword.errors import LastwordError, UsageError
from lastword.units import format_time
from lastword.values import plural

EXAMPLES = """
lastword dump data/users-0/00000000000000000000.log
lastword dump data/users-0 --no-records
lastword dump data/users-0/*.index data/users-0/*.timeindex
lastword dump data/recovery-point-offset-checkpoint --json
"""


def register(app: typer.Typer) -> None:
    """Add the command `dump`."""
    command(app, "dump", usage="FILE...", examples=EXAMPLES)(dump)


def dump(
    out: Session,
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="files of a log directory, or a directory of them")
    ],
    records: Annotated[
        bool, typer.Option("--records/--no-records", help="show the records of each batch too")
    ] = True,
) -> int:
    """Decode any file of a log directory.

    Decodes segments, indexes, producer snapshots, checkpoints and properties, and the fields of records in
    Kafka's own topics (__consumer_offsets, __transaction_state, __share_group_state, __cluster_metadata).
    Shows damage too (exit code 3).
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
    files = _expanded(files)
    for file in files:
        try:
            entries = entries_of(file, records=records)
        except UsageError as error:  # the other files are shown first
            failed.append(error)
            continue
        if len(files) > 1:
            out.line(f"{file}:")
        for entry in entries:
            rows += 1
            kind = kinds.get(type(entry), "problem")
            problems += kind == "problem"
            if out.as_json:
                out.row(kind, _json(entry))
            else:
                for line in _lines(kind, entry):
                    if kind == "problem":
                        out.line(out.paint(line, "red"))
                    else:
                        out.data_line(line)
    out.summary(ok=problems == 0 and not failed, entries=rows, problems=problems)
    out.raise_all(failed)
    return 3 if problems else 0


def _expanded(paths: list[str]) -> list[str]:
    """Replace each directory by the files directly in it that can be decoded."""
    from lastword.files import DEFAULT
    from lastword.tools.dump import dumper_of

    files: list[str] = []
    for path in paths:
        if not DEFAULT.is_dir(path):
            files.append(path)
            continue
        inside = [os.path.join(path, name) for name in sorted(DEFAULT.listdir(path))]
        known = [file for file in inside if dumper_of(file) is not None and not DEFAULT.is_dir(file)]
        files += known or [path]
    return files


def _json(entry: Any) -> dict[str, Any]:
    fields: dict[str, Any] = entry.to_dict()
    if "records" in fields:
        fields["records"] = [
            {
                **record,
                "key": bytes_json(record["key"]),
                "value": "****" if shown.decoded and shown.decoded.is_secret else bytes_json(record["value"]),
                "decoded": None if shown.decoded is None else shown.decoded.masked().to_dict(),
                "headers": [[name, bytes_json(value)] for name, value in record["headers"]],
            }
            for record, shown in zip(fields["records"], entry.records, strict=True)
        ]
    return fields


def _lines(kind: str, entry: Any) -> list[str]:
    if kind == "problem":
        return [f"damaged: {entry}"]
    if kind == "batch":
        return _batch(entry)
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


def _batch(batch: Any) -> list[str]:
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
            f"  offset {record.offset}  {format_time(record.timestamp)}  {_content(record)}{headers}"
        )
    return lines


def _content(record: Any) -> str:
    if record.decoded is not None:
        return internal_text(record.decoded)
    if record.control is None:
        return f"{key_text(record.key)}  {value_text(record.value)}"
    epoch = "" if record.coordinator_epoch is None else f"  coordinator epoch {record.coordinator_epoch}"
    return f"{record.control}{epoch}"
