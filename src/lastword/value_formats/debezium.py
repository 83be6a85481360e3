"""Change events of Debezium: the column is the row after the change, and a deletion is null.

    {"before": null, "after": {"id": 1, "city": "Rome"}, "source": {...}, "op": "c", "ts_ms": 1767225600000}

The events are in one of the other formats; JSON may have its schema around it.

Reading. Only the fields `op` and `after` of an event are decoded. Op `d` is a deletion, and so is an event
without a row after the change. Events that have no whole row are refused: ops other than c, u, r and d
(truncate, message), and updates of MongoDB that have only the changed fields.

Writing. A row is an event with op `c`. The row before is not known and is null. Flink refuses op `u` without
a row before; connectors that upsert accept `c` for a key that exists. A deletion is two records, as from
Debezium: an event with op `d`, and a record without a value, by which a compacted log forgets the key.
If the user gives no schema, an Avro event is a record `lastword.Envelope`: the transforms of Kafka Connect
recognize an event by the ending `.Envelope` of its schema's name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from lastword.arrow import pa
from lastword.clock import Clock, SystemClock
from lastword.value_formats.avro import AvroFormat, schema_of
from lastword.value_formats.interface import ValueFormat, ValueRefused
from lastword.value_formats.json_text import JsonFormat
from lastword.value_formats.registry import ConfluentFormat
from lastword.value_formats.variant import JSON_NULL, is_variant

OPS = ("c", "u", "r", "d")
"""Create, update, read (a snapshot), delete: the events of one row."""

PARTS = "updateDescription"
"""The field with the changed fields of a document, if an event of MongoDB lacks the document."""

SOURCE = {"connector": "lastword"}


@dataclass(frozen=True, slots=True)
class DebeziumFormat(ValueFormat):
    """Change events in the format `events`."""

    events: ValueFormat
    clock: Clock = field(default_factory=SystemClock)
    name: ClassVar[str] = "debezium"
    has_deletions: ClassVar[bool] = True

    @property
    def serializer(self) -> str:
        """Return that of the events."""
        return self.events.serializer

    @property
    def has_variant(self) -> bool:
        """Return that of the events."""
        return self.events.has_variant

    def own_type(self) -> pa.DataType | None:
        """Return the type of a row in the schema of the events. Raises ValueRefused for another schema."""
        self.check_events()
        event = self.events.own_type()
        return None if event is None else event.field("after").type

    def check_events(self) -> None:
        """Raise ValueRefused if the events have a schema, and it is not of change events.

        Other fields may have no type in Spark: the caller's type may leave them out.
        """
        if not (self._has("op") and self._has("after")):
            raise ValueRefused("the schema is not of change events: it has no fields op and after")

    def _has(self, name: str) -> bool:
        """Return whether events may have a field: always, if they have no schema."""
        kind = pa.string() if name == "op" else pa.struct([])
        return self.events.problem(pa.struct([pa.field(name, kind)]), writing=False) is None

    def unselected_type(self) -> pa.DataType | None:
        """Return the type of the schema; for JSON string, which takes any row."""
        return pa.string() if isinstance(self.events, JsonFormat) else ValueFormat.unselected_type(self)

    def problem(self, kind: pa.DataType, *, writing: bool) -> str | None:
        """Return the reason why rows of this type cannot be written or read, or None."""
        if writing and (not pa.types.is_struct(kind) or is_variant(kind)):
            return "the row of a change event is a struct"
        try:
            if writing:
                return self._events_to_write(kind).problem(event_type(kind), writing=True)
            return self._events_to_read(kind).problem(self._read_type(kind), writing=False)
        except ValueRefused as refused:
            return str(refused)

    def for_writing(self, kind: pa.DataType) -> DebeziumFormat:
        """Return the format with what a task needs to write rows of a type."""
        return replace(self, events=self._events_to_write(kind).for_writing(event_type(kind)))

    def encoder(self, kind: pa.DataType) -> Callable[[Any], bytes]:
        """Return a function from a row to an event with op c. It raises ValueRefused."""
        return self._event_encoder(kind, "c")

    def deletion(self, kind: pa.DataType) -> bytes:
        """Return an event with op d."""
        return self._event_encoder(kind, "d")(None)

    def decoder(self, kind: pa.DataType) -> Callable[[bytes], Any]:
        """Return a function from an event to its row after; None: a deletion. It raises ValueRefused."""
        read = self._events_to_read(kind).decoder(self._read_type(kind))

        def decode(data: bytes) -> Any:
            event = read(data)
            op = None if event is None else event.get("op")
            if op not in OPS:
                reason = "it has no field op" if op is None else f"op {op!r} is not one of {' '.join(OPS)}"
                raise ValueRefused(f"it is not the change of a row: {reason}")
            after = None if op == "d" else event.get("after")
            after = None if after == JSON_NULL else after
            if after is None and op != "d" and event.get(PARTS) is not None:
                raise ValueRefused(
                    "it has only the changed fields of a document: capture.mode=change_streams_update_full "
                    "writes whole documents",
                    "after",
                )
            return after

        return decode

    def _events_to_write(self, kind: pa.DataType) -> ValueFormat:
        """Return the format of the events, with their schema if it has none."""
        events = self.events
        if isinstance(events, AvroFormat) and events.schema is None:
            return AvroFormat(json.dumps(event_schema(kind)))
        if isinstance(events, ConfluentFormat) and events.datum is None:
            return replace(events, datum=AvroFormat(json.dumps(event_schema(kind))))
        return events

    def _events_to_read(self, kind: pa.DataType) -> ValueFormat:
        """Return the format of the events. Only records of a registry have a schema of their own."""
        return self._events_to_write(kind) if isinstance(self.events, AvroFormat) else self.events

    def _read_type(self, kind: pa.DataType) -> pa.DataType:
        """Return the part of an event that is decoded, with rows of this type."""
        fields = [pa.field("after", kind), pa.field("op", pa.string())]
        is_ours = isinstance(self.events, AvroFormat) and self.events.schema is None
        if not is_ours and self._has(PARTS):
            fields.append(pa.field(PARTS, pa.struct([])))
        return pa.struct(fields)

    def _event_encoder(self, kind: pa.DataType, op: str) -> Callable[[Any], bytes]:
        now_ms = self.clock.now_ms()
        if isinstance(self.events, JsonFormat):  # as Debezium writes it: nulls are there
            write_row = self.events.encoder(kind)
            rest = json.dumps({"source": SOURCE, "op": op, "ts_ms": now_ms}, separators=(",", ":"))
            tail = b"," + rest[1:].encode()
            return lambda row: (
                b'{"before":null,"after":' + (b"null" if row is None else write_row(row)) + tail
            )
        write = self._events_to_write(kind).encoder(event_type(kind))
        return lambda row: write({"before": None, "after": row, "source": SOURCE, "op": op, "ts_ms": now_ms})


def event_type(row: pa.DataType) -> pa.DataType:
    """Return the type of the events that are written for rows of a type."""
    source = pa.struct([pa.field(name, pa.string(), False) for name in SOURCE])
    return pa.struct(
        [
            pa.field("before", row),
            pa.field("after", row),
            pa.field("source", source, False),
            pa.field("op", pa.string(), False),
            pa.field("ts_ms", pa.int64(), False),
        ]
    )


def event_schema(row: pa.DataType) -> dict[str, Any]:
    """Return the Avro schema of `event_type`, in which both rows are one record. Raises ValueRefused."""
    if not pa.types.is_struct(row):
        raise ValueRefused("the row of a change event is a struct")
    value = schema_of(row, "Value")
    source = [{"name": name, "type": "string"} for name in SOURCE]
    fields = [
        {"name": "before", "type": ["null", value], "default": None},
        {"name": "after", "type": ["null", value["name"]], "default": None},
        {"name": "source", "type": {"type": "record", "name": "Source", "fields": source}},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": "long"},
    ]
    return {"type": "record", "name": "Envelope", "namespace": "lastword", "fields": fields}
