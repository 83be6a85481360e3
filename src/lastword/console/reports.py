"""The answers of the page: the rows of `--json`, by the functions that the commands call.

A report takes a `Watch` and returns what JSON can express. Bytes are text as `lastword read` shows them. A
long key or value is cut here, so no answer grows with a record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from lastword.api.explaining import explained
from lastword.api.groups import GROUPS_TOPIC, group_positions
from lastword.api.inspections import SegmentInfo, Uncounted, first_dirty_of
from lastword.api.lease import listed
from lastword.api.reader import last_starts
from lastword.api.record import Record
from lastword.api.text import (
    decoded_record,
    escape,
    field_text,
    internal_text,
    key_candidates,
    key_text,
    record_json,
    value_text,
)
from lastword.console.watch import Part, Watch, is_held
from lastword.errors import LastwordError
from lastword.logdir.transaction_state import TRANSACTIONS_TOPIC
from lastword.parse import parse_when
from lastword.values import ProgressLike

KEY_BYTES = 1 << 10
VALUE_BYTES = 4 << 10
"""Most bytes of a key, and of a value or the headers of a record, in an answer."""
PAGE_BYTES = 32 << 20
"""A page of records ends behind this many bytes of keys and values, which were read to show it."""
MOST_RECORDS = 200
MOST_BOXES = 400
"""Segments of a partition that are shown one by one; neighbours are added up if there are more."""
MOST_PARTITIONS = 64
"""Partitions of a topic in one answer."""
MOST_CLEANINGS = 50

Command = Callable[..., str]
"""Returns a command over the directories that can be pasted: `command("clean", "users")`."""


def overview(watch: Watch, since: int) -> dict[str, Any]:
    """Return the sums of all topics, and the rows of the topics that changed after version `since`."""
    logs = watch.logs
    drives = watch.by_drive()
    offline = {path: error.message for path, error in logs.offline.items()}
    set_aside = [{"dir": path, **entry._asdict()} for path, entry in logs.set_aside]
    with watch.lock:
        rows = [state.row for state in watch.topics.values()]
        changed = [
            {**state.row, "version": state.version}
            for state in watch.topics.values()
            if state.version > since
        ]
        answer = {
            "version": watch.version,
            "at_ms": watch.at_ms,
            "began_ms": watch.began_ms,
            "mode": logs.mode,
            "dirs": logs.paths,
            "names": list(watch.topics) if watch.names_version > since else None,
            "topics": changed,
        }
    return answer | {
        "totals": {
            **{
                name: sum(row[name] for row in rows)
                for name in ("partitions", "size_bytes", "live_bytes", "garbage_bytes", "uncounted")
            },
            "topics": len(rows),
            "exact": all(row["exact"] for row in rows),
            "quarantined": sum(row["quarantined"] for row in rows),
            "open_transactions": sum(row["open_transactions"] for row in rows),
        },
        "drives": [{**drive, "running": running(watch, drive["drive"])} for drive in drives],
        "offline": offline,
        "set_aside": set_aside,
    }


def running(watch: Watch, drive: str | None = None) -> list[dict[str, Any]]:
    """Return the partitions that the background cleaner of this process cleans, on one drive or all.

    The bytes are those of a cleaning that reads and rewrites; both are 0 while it begins or only scans.
    """
    if watch.logs.mode != "a":
        return []
    tasks = watch.logs.cleaner.background.scheduler.running()
    rows = []
    for tp, task in sorted(tasks.items()):
        if drive in (None, task.drive):
            step = task.steps[0] if task.steps else None  # an iterator fails if the task adds one meanwhile
            done, total = (step.done_bytes, step.total_bytes) if step else (0, 0)
            rows.append(
                {"topic": tp.topic, "partition": tp.partition, "done_bytes": done, "total_bytes": total}
            )
    return rows


def topic(watch: Watch, name: str, first: int, command: Command) -> dict[str, Any]:
    """Return a topic: its partitions from number `first` on, their strata, its samples and its cleanings.

    Raises:
        UnknownTopicError: There is no such topic.
    """
    watch.dirs.partitions(name)
    with watch.lock:
        state = watch.topics.get(name)
        row, samples = ({}, []) if state is None else (state.row, list(state.samples))
        parts = sorted((number, part) for (of, number), part in watch.parts.items() if of == name)
    leases: dict[int, list[Any]] = {}
    with suppress(LastwordError):
        for lease in listed(watch.dirs, name):
            leases.setdefault(lease.partition, []).append(lease.to_dict())
    shown = [(number, part) for number, part in parts if number >= first][:MOST_PARTITIONS]
    return {
        "version": watch.version,
        "at_ms": watch.at_ms,
        "row": row,
        "partitions": [_partition(watch, part, leases.get(number, [])) for number, part in shown],
        "numbers": [number for number, _ in parts],
        "samples": samples,
        "cleanings": cleanings(watch, name),
        "running": [row for row in running(watch) if row["topic"] == name],
        "commands": {
            "count": command("ls", name),
            "plan": command("clean", name, "--dry-run", "--due"),
            "clean": command("clean", name),
            "explain": command("explain", name),
            "read": command("read", name),
            "retry": command("clean", name, "--retry"),
            "policy": command("config", name, "--set", "cleanup.policy=compact"),
            "transactions": command("transactions", name),
        },
    }


def _partition(watch: Watch, part: Part, leases: list[Any]) -> dict[str, Any]:
    view, plan = part.view, part.plan
    row = {} if part.row is None else part.row.to_dict()
    if view is not None:
        ends = {"stable": view.stable_offset, "first_dirty": first_dirty_of(watch.dirs, view)}
        row |= {**ends, "segment_rows": _boxes(watch, part)}
    return row | {
        "problem": part.row.problem if isinstance(part.row, Uncounted) else None,
        "counted_ms": part.counted_ms,
        "due": None if plan is None else {"action": plan.action, "reasons": [str(r) for r in plan.reasons]},
        "dirty_bytes": 0 if plan is None else plan.dirty_bytes,
        "leases": leases,
    }


def _boxes(watch: Watch, part: Part) -> list[dict[str, Any]]:
    """Return the rows of `lastword ls --segments --json`; of many segments, sums of neighbours.

    The range of a segment that is not counted ends where the next one begins: its end is not read.
    """
    assert part.view is not None
    view, counted = part.view, watch.segments(part)
    rows: list[dict[str, Any]] = []
    if counted is not None:
        rows = [segment.to_dict() for segment in counted]
    else:
        unknown = dict.fromkeys(SegmentInfo.__dataclass_fields__)
        ends = [segment.base_offset for segment in view.segments[1:]] + [view.log_end]
        for segment, end in zip(view.segments, ends, strict=True):
            facts = {"base_offset": segment.base_offset, "next_offset": end, "size_bytes": segment.size}
            rows.append({**unknown, **facts, "exact": False, "active": segment is view.active})
    if len(rows) <= MOST_BOXES:
        return rows
    step = -(-len(rows) // MOST_BOXES)
    return [_sum(rows[at : at + step]) for at in range(0, len(rows), step)]


def _sum(rows: list[dict[str, Any]]) -> dict[str, Any]:
    names = ("size_bytes", "live_bytes", "garbage_bytes", "records")
    sums = {name: None if rows[0][name] is None else sum(row[name] for row in rows) for name in names}
    last = {name: rows[-1][name] for name in ("next_offset", "active", "largest_timestamp")}
    return {**rows[0], **sums, **last, "exact": all(row["exact"] for row in rows), "segments": len(rows)}


def cleanings(watch: Watch, name: str) -> list[dict[str, Any]] | None:
    """Return the newest cleanings and expiries of a topic in this process; None: it does not clean."""
    if watch.logs.mode != "a":
        return None
    found = [done.to_dict() for done in watch.logs.cleaner.history() if done.topic == name]
    return found[-MOST_CLEANINGS:]


def plans(watch: Watch, name: str, progress: ProgressLike | None) -> list[dict[str, Any]]:
    """Return the rows of `lastword clean DIR TOPIC --dry-run --due --json`."""
    found = watch.logs.plan(name, due=True, progress=progress)
    return [{**plan.to_dict(), "text": str(plan)} for plan in found if plan.action != "delete"]


def quarantined(watch: Watch, command: Command) -> list[dict[str, Any]]:
    """Return the partitions that cannot be read or are not cleaned, with the reason and the commands."""
    rows = []
    for (name, number), part in watch.each(lambda part: part.row is not None):
        row = part.row
        problem = row.problem if isinstance(row, Uncounted) and row.problem != "not counted" else None
        if row is None or (row.quarantine is None and problem is None):
            continue
        rows.append(
            {
                "topic": name,
                "partition": number,
                "problem": problem or "quarantined",
                "reason": row.quarantine,
                "check": command("verify", name, "-p", str(number)),
                "retry": command("clean", name, "-p", str(number), "--retry"),
            }
        )
    return rows


def held(watch: Watch) -> list[dict[str, Any]]:
    """Return the partitions with an open transaction: their last stable offset and log end."""
    return [
        {"topic": name, "partition": number, "stable": part.view.stable_offset, "log_end": part.view.log_end}
        for (name, number), part in watch.each(is_held)
        if part.view is not None
    ]


def transactions(watch: Watch, command: Command) -> dict[str, Any]:
    """Return the rows of `lastword transactions DIR --json`; reads the state of the coordinators if any."""
    rows, errors = [], []
    for (name, number), _ in watch.each(is_held):
        try:
            found = watch.logs.transactions(name, number)
        except LastwordError as error:
            errors.append(error.message)
            continue
        now_ms = watch.dirs.clock.now_ms()
        for transaction in found:
            abort = command("transactions", name, "--abort", str(transaction.producer_id), "--dry-run")
            age_ms = now_ms - transaction.timestamp
            rows.append({**transaction.to_dict(), "age_ms": age_ms, "abort": abort})
    return {"transactions": rows, "errors": errors}


def groups(watch: Watch, name: str | None) -> list[dict[str, Any]]:
    """Return the rows of `lastword groups DIR [TOPIC] --json`; reads `__consumer_offsets`."""
    return [position.to_dict() for position in group_positions(watch.dirs, name, None)]


def costs(watch: Watch) -> dict[str, int]:
    """Return the bytes that `groups` and `transactions` read."""
    with watch.lock:
        sizes = {name: watch.topics[name].row["size_bytes"] for name in watch.topics}
    return {"groups": sizes.get(GROUPS_TOPIC, 0), "transactions": sizes.get(TRANSACTIONS_TOPIC, 0)}


def explain(watch: Watch, name: str, partition: int | None, key: str) -> dict[str, Any]:
    """Return the rows of `lastword explain DIR TOPIC --key K --json`. Reads the partition once."""
    names = watch.logs.topic(name, key_serializer="bytes", value_serializer="bytes").schema.saved
    explanation = None
    for data in key_candidates(key, names[0]):
        explanation = explained(watch.dirs, name, partition, data)
        if explanation.versions:
            break
    assert explanation is not None
    return {
        "topic": name,
        "partition": explanation.partition,
        "key": field_text(explanation.key, names[0], key_text),
        "verdict": explanation.verdict,
        "plan": explanation.plan.to_dict(),
        "versions": [version.to_dict() for version in explanation.versions],
    }


def records(
    watch: Watch,
    name: str,
    partition: int,
    *,
    start: str = "",
    before: int | None = None,
    view: str = "log",
    limit: int = 50,
    stopped: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Return records of a partition, with the fields of `lastword read --json`.

    Args:
        watch: The directories.
        name: The topic.
        partition: The partition.
        start: As `read --start` takes it; empty: the last `limit` records.
        before: Return the last records below this offset, instead.
        view: "log", "newest" or "changes". The last two read the whole partition.
        limit: The most records.
        stopped: Returns whether the viewer has gone.
    """
    source = watch.logs.topic(name, key_serializer="bytes", value_serializer="bytes")
    limit = max(1, min(limit, MOST_RECORDS))
    begin: Any = parse_when(start, now_ms=watch.dirs.clock.now_ms()) if start else "earliest"
    end: Any = "latest"
    watch.dirs.select(name, partition)
    log_start, log_end = source.bounds()[partition]
    if before is not None:
        end = min(max(before, log_start), log_end)
    if view == "log" and (before is not None or not start):
        begin = last_starts(source, partition, limit, end)
    if isinstance(begin, int) and not log_start <= begin <= log_end:
        begin = min(max(begin, log_start), log_end)  # a link to records that were removed shows what follows
    reader = source.read(begin, end, partition=partition, view=view)  # type: ignore[arg-type]  # read checks
    rows, read_bytes = [], 0
    for record in reader:
        rows.append(_record(record, source.schema.saved))
        read_bytes += len(record.key or b"") + len(record.value or b"")
        if len(rows) == limit or read_bytes > PAGE_BYTES or stopped():
            break
    return {
        "records": rows,
        "log_start": log_start,
        "log_end": log_end,
        "stable": watch.dirs.view(name, partition).stable_offset,
        "next": rows[-1]["offset"] + 1 if rows else None,
    }


def find(watch: Watch, name: str, key: str) -> dict[str, Any]:
    """Return the newest record of a key, as `lastword get --json` does: by the key index if there is one."""
    source = watch.logs.topic(name, key_serializer="bytes", value_serializer="bytes")
    names = source.schema.saved
    candidates = key_candidates(key, names[0])
    found = source.get_records(candidates)
    record = next((found[data] for data in candidates if data in found), None)
    return {"records": [] if record is None else [_record(record, names)], "next": None}


def _record(record: Record[bytes, bytes], names: tuple[str | None, str | None]) -> dict[str, Any]:
    """Return the fields of a record, with the text of key and value, cut if they are long."""
    key, value = record.key or b"", record.value or b""
    decoded = decoded_record(record) if len(value) <= VALUE_BYTES else None
    headers = list(_cut_headers(record.headers))
    whole = replace(
        record,
        key=record.key if len(key) <= KEY_BYTES else None,
        value=record.value if len(value) <= VALUE_BYTES else None,
        headers=(),
    )
    text = internal_text(decoded) if decoded else _text(record.value, VALUE_BYTES, names[1], value_text)
    return {
        **record_json(whole, names, decoded and decoded.masked()),
        "headers": headers,
        "key_text": _text(record.key, KEY_BYTES, names[0], key_text),
        "value_text": text,
        "key_bytes": len(key),
        "value_bytes": len(value),
        "tombstone": record.value is None,
    }


def _text(data: bytes | None, most: int, serializer: str | None, null: Callable[[bytes | None], str]) -> str:
    if data is None or len(data) <= most:
        return field_text(data, serializer, null)
    return escape(bytes(data[:most])) + "…"


def _cut_headers(headers: tuple[tuple[str, bytes | None], ...]) -> Iterator[list[str]]:
    left = VALUE_BYTES
    for name, data in headers:
        if left <= 0:
            yield ["…", f"{len(headers)} headers"]
            return
        text = "<null>" if data is None else escape(bytes(data[:left]))
        shown = escape(name[:left])
        left -= len(name) + len(data or b"") + 1
        yield [shown, text + ("…" if left < 0 else "")]
