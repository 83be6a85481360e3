"""Define readers of every kind; each function reads on one journey and checks the result."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import lastword
from lastword.api.logs import LogDir
from lastword.api.record import Record
from lastword.config import Settings
from lastword.errors import LastwordError, LeaseRefusedError, OffsetOutOfRangeError, PartialFailure
from lastword.partition import scan
from tests.crash.memory import ROOT
from tests.readers.history import TOPIC, History, small_indexes
from tests.readers.judge import Lifetimes, Row, Violation, Window
from tests.readers.travel import TravellingClock, TravellingFiles, pace_of, still

SNAPSHOT = "restored.jsonl"
BULK, PLAIN = 0, 1 << 30  # kernels read from this number of bytes on: always, never


@dataclass
class Journey:
    """One interleaving: a reader, the version at which it begins, and the pace of the writer."""

    history: History
    files: TravellingFiles
    rng: random.Random
    first: int
    story: str
    notes: list[str] = field(default_factory=list)

    def open(self) -> LogDir:
        clock = TravellingClock(self.files)
        return lastword.open(ROOT, files=self.files, clock=clock, **self.history.settings)

    @property
    def now(self) -> int:
        """The version that the reader has reached."""
        return self.files.now

    def now_ms(self) -> int:
        """Return the time of now."""
        return self.history.files.clock_ms[self.now]

    def pause(self) -> None:
        """Let the writer do something."""
        self.files.pause()

    def windows(self, first: int | None = None, *, committed: bool = True) -> dict[int, Window]:
        begin = self.first if first is None else first
        return {
            number: Window(partition, begin, self.files.now, committed)
            for number, partition in self.history.partitions.items()
        }

    def check_error(self, error: BaseException, *, first: int | None = None, **given: Any) -> None:
        """Check that the error is allowed in at least one partition."""
        wrong: Violation | None = None
        for window in self.windows(first).values():
            try:
                window.check_error(error, **given)
                self.notes.append(type(error).__name__)
                return
            except Violation as violation:
                wrong = wrong or violation
        assert wrong is not None
        raise wrong


def row(record: Any) -> Row:
    return Row(record.offset, record.key, record.value, record.timestamp, tuple(record.headers))


def rows_of(records: Any) -> dict[int, list[Row]]:
    rows: dict[int, list[Row]] = {}
    for record in records:
        rows.setdefault(record.partition, []).append(row(record))
    return rows


def arrow_rows(batches: Any) -> dict[int, list[Row]]:
    rows: dict[int, list[Row]] = {}
    for batch in batches:
        names = ("partition", "offset", "key", "value")
        for partition, offset, key, value in zip(*(batch.column(n).to_pylist() for n in names), strict=True):
            rows.setdefault(partition, []).append(Row(offset, key, value))
    return rows


def check_rows(journey: Journey, rows: dict[int, list[Row]], *, view: str = "log", **given: Any) -> None:
    """Check the rows of all partitions against the versions that the journey passed.

    `reads`: of two reads, the second may be of the next topic of this name.
    """
    committed, reads = given.pop("committed", True), given.pop("reads", 1)
    for number, window in journey.windows(given.pop("first", None), committed=committed).items():
        shown = rows.get(number, [])
        if reads == 1:
            window.check_one_topic(shown)
        if view == "log":
            window.check_log(shown, **given)
            continue
        for row in shown:
            window.check_row(row)
        offsets = [row.offset for row in shown]
        if window.is_one_line and len({row.key for row in shown}) != len(shown):
            raise Violation("twice", f"a key is shown twice: {offsets}")
        if offsets != sorted(offsets):
            raise Violation("goes back", f"{offsets}")
        newest = {row.key: row.offset for row in shown if row.key is not None}
        window.check_moment(newest, tombstones=view == "changes", **given)


# ---------------------------------------------------------------- the kinds


def read_log(journey: Journey) -> None:
    with journey.open() as logs:
        rows = rows_of(logs.topic(TOPIC).read())
    check_rows(journey, rows)


def read_uncommitted(journey: Journey) -> None:
    with journey.open() as logs:
        rows = rows_of(logs.topic(TOPIC).read(isolation="read_uncommitted"))
    check_rows(journey, rows, committed=False)


def read_newest(journey: Journey) -> None:
    view = journey.rng.choice(("newest", "changes"))
    with journey.open() as logs:
        rows = rows_of(logs.topic(TOPIC).read(view=view))
    check_rows(journey, rows, view=view)


def read_keys(journey: Journey) -> None:
    keys = [b"k%d" % n for n in journey.rng.sample(range(9), 3)]
    view = journey.rng.choice(("log", "newest", "changes"))
    with journey.open() as logs:
        rows = rows_of(logs.topic(TOPIC).read(view=view, keys=keys))
    if view != "log":
        check_rows(journey, rows, view=view, keys=keys)
        return
    for number, window in journey.windows().items():
        shown = rows.get(number, [])
        if any(row.key not in keys for row in shown):
            raise Violation("another key", "a record has none of the keys that were asked for")
        window.partition  # noqa: B018
        offsets = [row.offset for row in shown]
        if offsets != sorted(set(offsets)):
            raise Violation("goes back", f"{offsets}")
        for row in shown:
            window.check_row(row)
        wanted = [offset for offset, record in window.survivors().items() if record.key in keys]
        window.check_complete(set(offsets), -1, wanted=wanted)


ABSENT_KEY = b"k1000"
"""A key that no writer writes."""


def get(journey: Journey) -> None:
    """Look up keys, and again with the index and the view that are kept since then."""
    with journey.open() as logs:
        topic = logs.topic(TOPIC)
        for _ in range(journey.rng.choice((1, 2, 4))):
            for number in journey.history.partitions:
                _look_up(journey, topic, number)
            if journey.rng.random() < 0.6:  # else the view is kept, unless the pace changes the directory
                journey.pause()


LOOKUPS = ("get", "get_many", "get_record", "get_records", "in")


def _look_up(journey: Journey, topic: Any, number: int) -> None:
    """Look up keys of one partition by one of the calls; some are absent, or deleted."""
    rng, first, count = journey.rng, journey.now, len(journey.history.partitions)
    call = rng.choices(LOOKUPS, (1, 2, 1, 3, 1))[0]
    keys = [ABSENT_KEY, *(b"k%d" % n for n in rng.sample(range(9), 3))]
    named: dict[str, int] = {"partition": number}
    if call == "in" or rng.random() < 0.3:  # in all partitions, so that a key of another one would be found
        named = {}
        keys = [key for key in keys if int(key[1:]) % count == number] or [b"k%d" % number]
    if call in ("get", "get_record", "in"):
        keys = [rng.choice(keys)]
    shown: dict[bytes, Any] = {}
    records: dict[bytes, Any] = {}
    if call == "get":
        value = topic.get(keys[0], ABSENT_KEY, **named)
        shown = {} if value == ABSENT_KEY else {keys[0]: value}
    elif call == "get_many":
        shown = topic.get_many(keys, **named)
    elif call == "get_records":
        records = topic.get_records(keys, **named)
    elif call == "get_record":
        record = topic.get_record(keys[0], **named)
        records = {} if record is None else {keys[0]: record}
    else:
        is_present = keys[0] in topic
        journey.windows(first)[number].check_presence(keys[0], is_present)
        journey.notes.append(call)
        return
    window = journey.windows(first)[number]
    for record in records.values():
        window.check_row(row(record))
    shown |= {key: record.offset for key, record in records.items()}
    has_values = call in ("get", "get_many")
    window.check_moment(shown, tombstones=False, keys=keys, values=has_values)
    journey.notes.append(call if shown else f"{call}: none")


def read_range(journey: Journey) -> None:
    """Read a range of explicit offsets."""
    rng = journey.rng
    ends = journey.windows()[0].calls[0]
    start = rng.randrange(ends.log_start, ends.stable + 1)
    end = rng.randrange(start, ends.stable + 1)
    try:
        with journey.open() as logs:
            rows = rows_of(logs.topic(TOPIC).read(start, end, partition=0))
    except LastwordError as error:
        journey.check_error(error, start=start, end=end)
        return
    journey.windows()[0].check_log(rows.get(0, []), start=start, end=end)


def read_as_of(journey: Journey) -> None:
    """Read the newest values as of an earlier offset; an OffsetOutOfRangeError is allowed."""
    rng = journey.rng
    ends = journey.windows()[0].calls[0]
    end = rng.randrange(ends.log_start, ends.stable + 1)
    kind = rng.choice(("newest", "changes", "state"))
    try:
        with journey.open() as logs:
            if kind == "state":
                with_values = True
                state = logs.state(TOPIC, end={0: end}, key_serializer="bytes", value_serializer="bytes")
                shown: dict[Any, Any] = dict(state)
            else:
                with_values = False
                rows = rows_of(logs.topic(TOPIC).read(end=end, view=kind, partition=0))
                shown = {row.key: row.offset for row in rows.get(0, [])}
    except LastwordError as error:
        journey.check_error(error, end=end, as_of=True)
        return
    if len(journey.history.partitions) == 1 or kind != "state":
        journey.windows()[0].check_moment(shown, tombstones=kind == "changes", values=with_values, end=end)


def read_arrow(journey: Journey) -> None:
    view = journey.rng.choice(("log", "log", "newest", "changes"))
    with journey.open() as logs:
        rows = arrow_rows(logs.topic(TOPIC).read(view=view).arrow(journey.rng.choice((300, 2 << 20))))
    check_rows(journey, rows, view=view)


def follow(journey: Journey) -> None:
    rows: dict[int, list[Row]] = {}
    with journey.open() as logs:
        reader = logs.topic(TOPIC).read(follow=True, timeout=journey.rng.choice((0.0, 0.02, 0.3)))
        try:
            for record in reader:
                rows.setdefault(record.partition, []).append(row(record))
        except LastwordError as error:
            journey.check_error(error)
            for number, window in journey.windows().items():
                window.check_one_topic(rows.get(number, []))
            return
    check_rows(journey, rows)


_SLOW = (*[0] * 60, 15)
"""How often a watch lets the writer go on at a record: seldom, and then for longer than a cleaning."""


def watch(journey: Journey) -> None:
    """Watch changes after the present values: no gap, no repeat, the newest of each key, deletions too."""
    rng = journey.rng
    keys = [b"k%d" % n for n in rng.sample(range(9), 5)] if rng.random() < 0.5 else None
    rows: dict[int, list[Row]] = {}
    begins: dict[int, int] = {}
    with journey.open() as logs:
        try:
            with logs.topic(TOPIC).watch(keys, start="newest", timeout=rng.choice((0.02, 0.3))) as changes:
                for record in changes:
                    for _ in range(rng.choice(_SLOW)):
                        journey.pause()
                    present = {range_.partition for range_ in changes._ranges}
                    for number, position in changes.position.items():
                        if number not in present:  # from here on it has given changes
                            begins.setdefault(number, min(position, _offset_in(record, number, position)))
                    rows.setdefault(record.partition, []).append(row(record))
                ends = changes.position
        except LeaseRefusedError:
            journey.notes.append("lapsed")
            return
    journey.notes.append("watched")
    for number, window in journey.windows().items():
        shown, end = rows.get(number, []), ends[number]
        window.check_one_topic(shown)
        offsets = [row.offset for row in shown]
        if offsets != sorted(set(offsets)):
            raise Violation("goes back", f"{offsets}")
        for each in shown:
            window.check_row(each)
        if not window.is_one_line:
            continue
        newest = {each.key: each for each in shown if each.key is not None}
        values = {key: each.offset for key, each in newest.items() if each.value is not None}
        window.check_moment(values, tombstones=False, keys=keys, end=end)
        begin = begins.get(number, end)
        own = [o for o, r in window.survivors().items() if keys is None or r.key in keys]
        window.check_complete(set(offsets), end - 1, start=begin, end=end, wanted=own)


def _offset_in(record: Any, number: int, position: int) -> int:
    """Return the offset of a record of this partition, else the position there."""
    return record.offset if record.partition == number else position


def follow_from(journey: Journey) -> None:
    """Read a part, save the position, and continue from it later."""
    with journey.open() as logs:
        topic = logs.topic(TOPIC)
        reader = topic.read()
        rows: dict[int, list[Row]] = {}
        for count, record in enumerate(reader):
            rows.setdefault(record.partition, []).append(row(record))
            if count == 20:
                break
        journey.files.pause()
        for record in topic.read(reader.position):
            rows.setdefault(record.partition, []).append(row(record))
    check_rows(journey, rows, reads=2)


def _values(journey: Journey, state: Any, first: int | None = None, *, forgotten: bool = False) -> None:
    """Check a mapping of all partitions. The writer puts each key into one of them."""
    shown = state.copy()  # of one moment, where `dict(state)` shows what other threads append meanwhile
    begin_ms = journey.history.files.clock_ms[journey.first if first is None else first]
    ttl_ms = journey.history.settings.get("lastword_ttl_ms", -1)
    lifetimes = Lifetimes(ttl_ms, begin_ms, journey.now_ms())
    windows = journey.windows(first)
    for number, window in windows.items():
        own = {key: value for key, value in shown.items() if int(key[1:]) % len(windows) == number}
        window.check_moment(
            own, tombstones=False, values=True, forgotten=forgotten, is_state=True, lifetimes=lifetimes
        )


def state(journey: Journey) -> None:
    with journey.open() as logs:
        state = logs.state(TOPIC, key_serializer="bytes", value_serializer="bytes")
        _values(journey, state)


def state_refreshed(journey: Journey) -> None:
    with journey.open() as logs:
        state = logs.state(TOPIC, key_serializer="bytes", value_serializer="bytes")
        _values(journey, state)
        for _ in range(2):
            journey.files.pause()
            first = journey.files.now
            state.refresh()
            _values(journey, state, first, forgotten=True)


def _restored(journey: Journey) -> dict[int, list[Row]]:
    rows: dict[int, list[Row]] = {}
    for line in journey.files.read_bytes(SNAPSHOT).splitlines():
        fields = json.loads(line)
        if fields["type"] == "record":
            row = Row(fields["offset"], _bytes(fields["key"]), _bytes(fields["value"]), fields["timestamp"])
            rows.setdefault(fields["partition"], []).append(row)
    return rows


def _bytes(value: Any) -> bytes | None:
    from lastword.api.serializers import field_bytes

    return field_bytes(value, "bytes", "value")


def restore(journey: Journey) -> None:
    with journey.open() as logs:
        logs.restore(TOPIC, to=SNAPSHOT)
    check_rows(journey, _restored(journey), view="newest")


def restore_as_of(journey: Journey) -> None:
    ends = journey.windows()[0].calls[0]
    end = journey.rng.randrange(ends.log_start, ends.stable + 1)
    try:
        with journey.open() as logs:
            logs.restore(TOPIC, 0, to=SNAPSHOT, end=end)
    except LastwordError as error:
        journey.check_error(error, end=end, as_of=True)
        return
    shown = {row.key: row.offset for row in _restored(journey).get(0, []) if row.key is not None}
    journey.windows()[0].check_moment(shown, tombstones=False, end=end)


def snapshot_and_tail(journey: Journey) -> None:
    """Load a state from an older restored file and the log: it must equal a full restore, or be refused."""
    files, rng = journey.files, journey.rng
    files.now = max(0, journey.first - rng.choice((rng.randrange(40), rng.randrange(400))))
    restored = files.now
    pace, files._pace = files._pace, still
    try:
        with journey.open() as logs:
            logs.restore(TOPIC, to=SNAPSHOT)
    except LastwordError:
        return  # the topic did not exist yet
    files.now, files._pace = journey.first, pace
    with journey.open() as logs:
        state = logs.state(TOPIC, snapshot=SNAPSHOT, key_serializer="bytes", value_serializer="bytes")
        # A truncation in between may have removed records that superseded some of the file's.
        cut = any(not window.is_one_line for window in journey.windows(restored).values())
        _values(journey, state, restored if cut else None)


def at_time(journey: Journey) -> None:
    """Read from a time on: every surviving record that is not older must be returned."""
    window = journey.windows()[0]
    records = window.partition.lineages[window.calls[0].lineage].records
    if not records:
        return
    wanted = records[journey.rng.choice(sorted(records))].timestamp
    with journey.open() as logs:
        reader = logs.topic(TOPIC).read(start=datetime.fromtimestamp(wanted / 1000, UTC), partition=0)
        shown = rows_of(reader).get(0, [])
    window = journey.windows()[0]
    offsets = [row.offset for row in shown]
    if offsets != sorted(set(offsets)):
        raise Violation("goes back", f"{offsets}")
    for row in shown:
        window.check_row(row)
    survivors = window.survivors()
    young = [offset for offset, record in survivors.items() if record.timestamp >= wanted]
    if window.is_one_line:
        window.check_complete(set(offsets), -1, wanted=young)


def at_offsets(journey: Journey) -> None:
    """Read single records by offset."""
    window = journey.windows()[0]
    ends = window.calls[0]
    wanted = sorted(journey.rng.sample(range(ends.log_end + 1), min(6, ends.log_end + 1)))
    with journey.open() as logs:
        topic = logs.topic(TOPIC)
        records: list[Record[bytes, bytes] | None] = []
        if journey.rng.random() < 0.5:
            log_start, _ = topic.bounds()[0]
            wanted = [offset for offset in wanted if offset >= log_start]
            try:
                records += topic.records_at(wanted, partition=0, isolation="read_uncommitted")
            except OffsetOutOfRangeError:  # the log was trimmed meanwhile
                wanted = []
        else:
            for offset in wanted:
                try:
                    records.append(topic.record_at(offset, partition=0, isolation="read_uncommitted"))
                except OffsetOutOfRangeError:
                    records.append(None)
    window = journey.windows(committed=False)[0]
    shown = {}
    for offset, record in zip(wanted, records, strict=True):
        if record is not None:
            row = Row(record.offset, record.key, record.value, record.timestamp, tuple(record.headers))
            if row.offset != offset:
                raise Violation("another offset", f"{row.offset} for {offset}")
            window.check_row(row)
            shown[offset] = row
    survivors = [offset for offset in window.survivors() if offset in wanted]
    window.check_complete(shown, -1, wanted=survivors)


def verify(journey: Journey) -> None:
    with journey.open() as logs:
        verification = logs.verify(TOPIC, quick=journey.rng.random() < 0.3)
    if verification.problems:
        raise Violation("false alarm", "; ".join(str(problem) for problem in verification.problems[:3]))


def figures(journey: Journey) -> None:
    """Compute a plan, an explanation or a count over the whole log: of some moment, and never an error."""
    verb = journey.rng.choice(
        ("plan", "due", "explain", "key", "describe", "quick", "segments", "simulate", "duplication")
    )
    partition = journey.rng.choice(sorted(journey.history.partitions))
    with journey.open() as logs:
        topic = logs.topic(TOPIC)
        try:
            if verb in ("plan", "due"):
                logs.plan(topic.name, due=verb == "due")
            elif verb in ("explain", "key"):
                logs.explain(topic.name, partition, key=b"k1" if verb == "key" else None)
            elif verb in ("describe", "quick"):
                for info in topic.describe(quick=verb == "quick"):
                    if not info.log_start <= info.first_dirty <= info.stable <= info.log_end:
                        raise Violation("no moment", f"{info}: offsets of two moments")
                    if info.exact and not 0 <= info.garbage_bytes <= info.size_bytes:
                        raise Violation("no moment", f"{info}")
            elif verb == "segments":
                topic.segments(partition)
            elif verb == "simulate":
                logs.simulate(topic.name, partition)
            else:
                logs.duplication(topic.name, partition)
        except PartialFailure as error:
            for each in error.errors:
                journey.check_error(each)


# ---------------------------------------------------------------- Spark's Python side


@contextmanager
def _in_place_of_default(files: TravellingFiles) -> Iterator[None]:
    """Replace the files of the process, because Spark's functions use those."""
    from lastword import files as storage
    from lastword.spark import bootstrap, bucket

    modules: list[Any] = [storage, bootstrap, bucket]
    before = [module.DEFAULT for module in modules]
    try:
        for module in modules:
            module.DEFAULT = files
        yield
    finally:
        for module, real in zip(modules, before, strict=True):
            module.DEFAULT = real


def _spark(journey: Journey, view: str, **more: str) -> tuple[Any, Any, tuple[str, ...]]:
    from lastword.spark.options import parse_read
    from lastword.spark.schema import check_projection, full_schema

    options = parse_read({"path": ROOT, "subscribe": TOPIC, "view": view, **more})
    schema = full_schema(False, view)
    return options, schema, check_projection(schema, options.view)


def _tasks(
    journey: Journey, tasks: list[Any], options: Any, schema: Any, columns: Any
) -> dict[int, list[Row]]:
    """Run tasks one after another; the log may change between the plan and each task."""
    from lastword.spark.read import read_task
    from lastword.spark.splits import SharedTask

    rows: dict[int, list[Row]] = {}
    if tasks and journey.rng.random() < 0.5:
        tasks = [SharedTask(tuple(tasks))]
    for task in tasks:
        if journey.rng.random() < 0.3:
            journey.files.pause()
        batches = read_task(task, options, schema, columns, journey.files)
        for number, part_rows in arrow_rows(batches).items():
            rows.setdefault(number, []).extend(part_rows)
    return rows


def spark_batch(journey: Journey) -> None:
    """Read a batch; view newest also of some keys, with a saved key index if there is one."""
    from lastword.spark import splits

    view = journey.rng.choice(("log", "newest", "changes"))
    more = {"maxbytesperpartition": "600"} if view == "log" else {}
    given: dict[str, Any] = {}
    if view == "newest" and journey.rng.random() < 0.7:
        given["keys"] = [b"k%d" % n for n in journey.rng.sample(range(9), 3)]
        more["keys"] = json.dumps([key.decode() for key in given["keys"]])
    options, schema, columns = _spark(journey, view, **more)
    with _in_place_of_default(journey.files):
        before, splits.KEY_BYTES = splits.KEY_BYTES, 0
        try:
            tasks = splits.plan(splits.choose(options), options)
        finally:
            splits.KEY_BYTES = before
        journey.notes += ["indexed"] * any(
            part.found is not None for task in tasks for part in splits.parts_of(task)
        )
        try:
            for _ in range(2):  # a DataFrame that is collected twice
                rows = _tasks(journey, tasks, options, schema, columns)
                check_rows(journey, rows, view=view, **given)
        except LastwordError as error:
            # The end was fixed by the plan: a later cleaning may have removed the newest record below it.
            end = min((task.end for task in tasks), default=0)
            journey.check_error(error, end=end, as_of=view != "log")


def spark_stream(journey: Journey) -> None:
    """Read micro-batches from the log start to the last log end; each is planned, then read."""
    from lastword.spark.options import parse_read
    from lastword.spark.schema import full_schema
    from lastword.spark.stream import LogStreamReader

    options = parse_read(
        {"path": ROOT, "subscribe": TOPIC, "startingoffsets": "earliest", "maxoffsetspertrigger": "40"},
        stream=True,
    )
    schema = full_schema(False, "log")
    rows: dict[int, list[Row]] = {}
    with _in_place_of_default(journey.files):
        reader = LogStreamReader(options, schema, clock=lambda: 0.0)
        at = reader.initialOffset()
        for _ in range(12):
            if journey.rng.random() < 0.3:
                journey.files.pause()
            until = reader.latestOffset(at, reader.getDefaultReadLimit())
            if until == at:
                break
            tasks = reader.partitions(at, until)
            for number, part_rows in _tasks(journey, tasks, options, schema, reader.columns).items():
                rows.setdefault(number, []).extend(part_rows)
            reader.commit(until)
            at = until
    for number, window in journey.windows().items():
        shown = rows.get(number, [])
        offsets = [row.offset for row in shown]
        if offsets != sorted(set(offsets)):
            raise Violation("goes back", f"{offsets}")
        for row in shown:
            window.check_row(row)
        reached = at.get(TOPIC, {}).get(str(number), 0)
        if window.is_one_line:
            window.check_complete(set(offsets), -1, end=reached)


KINDS: dict[str, tuple[Callable[[Journey], None], int]] = {
    "log": (read_log, 4),
    "uncommitted": (read_uncommitted, 2),
    "newest": (read_newest, 5),
    "keys": (read_keys, 3),
    "get": (get, 4),
    "range": (read_range, 2),
    "as of": (read_as_of, 3),
    "arrow": (read_arrow, 3),
    "follow": (follow, 3),
    "position": (follow_from, 2),
    "state": (state, 4),
    "refresh": (state_refreshed, 2),
    "restore": (restore, 2),
    "restore as of": (restore_as_of, 1),
    "snapshot": (snapshot_and_tail, 2),
    "time": (at_time, 2),
    "offsets": (at_offsets, 2),
    "verify": (verify, 2),
    "figures": (figures, 4),
    "spark": (spark_batch, 3),
    "stream": (spark_stream, 2),
}
"""By name: the reader, and its weight in the random choice."""

HOLDING = {"watch": watch}
"""Readers that hold a lease, which a writer must see: only in its process."""

_NAMES, _WEIGHTS = list(KINDS), [weight for _, weight in KINDS.values()]


@dataclass
class Outcome:
    """The result of an interleaving that was checked."""

    label: str
    kind: str
    identity: int
    violation: Violation | None
    notes: list[str]


def interleave(
    history: History, files: TravellingFiles, number: int, kinds: list[str] | None = None
) -> Outcome:
    """Run the interleaving of a history with this number; the same number gives the same interleaving."""
    rng = random.Random(history.seed * 1_000_003 + number)
    kind = rng.choice(kinds) if kinds else rng.choices(_NAMES, _WEIGHTS)[0]
    first = rng.randrange(history.last + 1)
    while any(begin <= first <= end for p in history.partitions.values() for begin, end in p.gone[:1]):
        first = rng.randrange(history.last + 1)
    story, pace = pace_of(rng, history.last)
    evicts = rng.random() < 0.25
    scan.PLAIN_BYTES_LOADED = rng.choice((BULK, BULK, PLAIN))
    files.start(first, pace, rng, evicts=evicts, has_stamps=number % 4 != 3)
    journey = Journey(history, files, rng, first, story)
    violation = None
    try:
        KINDS[kind][0](journey)
    except Violation as wrong:
        violation = wrong
    except LastwordError as error:
        try:
            journey.check_error(error)
        except Violation as wrong:
            violation = wrong
    except Exception as error:
        violation = Violation("raw error", f"{type(error).__name__}: {error}")
        violation.__cause__ = error
    label = (
        f"{kind}, from version {first} to {files.now} of {history.last}, {files.operations} operations, "
        f"{story}{', handles evicted' if evicts else ''}, "
        f"{'kernels' if scan.PLAIN_BYTES_LOADED == BULK else 'plain'}; "
        f"writer: {history.doing(first)} ... {history.doing(files.now)}"
    )
    return Outcome(
        label,
        kind,
        hash((history.seed, kind, scan.PLAIN_BYTES_LOADED, *files.trace)),
        violation,
        journey.notes,
    )


@contextmanager
def _paths_joined_once() -> Iterator[None]:
    """Keep the results of functions of paths: a history has few paths, and no links."""
    real = {name: getattr(os.path, name) for name in ("join", "dirname", "realpath")}
    for name, function in real.items():
        setattr(os.path, name, lru_cache(1 << 14)(function))
    try:
        yield
    finally:
        for name, function in real.items():
            setattr(os.path, name, function)


@contextmanager
def _settings_read_once() -> Iterator[None]:
    """Read the settings once: they do not change here, and reading them takes a tenth of the time."""
    real, known = Settings.load, {}

    def load(
        paths: Any = (), config: Any = None, env: Any = None, arguments: Any = None, *, files: Any = None
    ) -> Settings:
        if config is not None or env is not None:
            return real(paths, config, env, arguments, files=files)
        key = str(paths), str(arguments)
        if key not in known:
            known[key] = real(paths, arguments=arguments, files=files)
        return known[key]

    Settings.load = load  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Settings.load = real  # type: ignore[method-assign]


def interleavings(
    history: History,
    count: int,
    kinds: list[str] | None = None,
    files: TravellingFiles | None = None,
    *,
    lines_from: int | None = None,
) -> Iterator[Outcome]:
    """Yield the first `count` interleavings of a history; `files` lists operations from `lines_from` on."""
    files = files or TravellingFiles(history)
    with _settings_read_once(), _paths_joined_once(), small_indexes():
        for number in range(count):
            if number == lines_from:
                files.operation_lines = []
            yield interleave(history, files, number, kinds)
