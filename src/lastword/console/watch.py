"""Poll log directories for all viewers: the newest rows of each partition, and samples of each topic.

A poll of an unchanged partition costs a few `stat`. A changed partition is listed again; its garbage comes
from the garbage index, which is read again only if it changed. No record is read. `count` counts exactly, by
a scan, when a viewer requests it.
"""

from __future__ import annotations

import os
import threading
from array import array
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

from lastword.api.inspections import (
    PartitionInfo,
    SegmentInfo,
    TopicRow,
    Uncounted,
    by_index,
    count_exactly,
    index_statement,
    partition_info,
    segment_infos,
)
from lastword.cleaner.policy import quarantine
from lastword.cleaner.policy.choose import choose_for
from lastword.cleaner.policy.plan import CleanRequest, Plan
from lastword.errors import LastwordError
from lastword.logdir.checkpoints import TopicPartition
from lastword.segment import names
from lastword.values import Meter, ProgressLike

if TYPE_CHECKING:
    from lastword.api.logs import LogDir
    from lastword.config import TopicConfig
    from lastword.partition.view import PartitionView

Row = TypeVar("Row")

PLAN_MS = 60_000
"""A plan is made again after this time: lags and retention pass without a change of the log."""
MOST_SAMPLES = 240
"""Samples of a topic. When there are more, every second one is removed."""


class Samples:
    """Bytes of a topic over time since the page began: (time in ms, bytes, bytes of garbage or -1)."""

    def __init__(self) -> None:
        self._numbers = array("q")

    def add(self, at_ms: int, size_bytes: int, garbage_bytes: int) -> None:
        """Add a sample, if it differs from the last one."""
        numbers = self._numbers
        if numbers[-2:].tolist() == [size_bytes, garbage_bytes]:
            return
        numbers.extend((at_ms, size_bytes, garbage_bytes))
        if len(numbers) > 3 * MOST_SAMPLES:
            kept = [sample for number, sample in enumerate(self) if number % 2 or number == 0]
            self._numbers = array("q", [number for sample in kept for number in sample])

    def __iter__(self) -> Iterator[list[int]]:
        numbers = self._numbers
        return (numbers[at : at + 3].tolist() for at in range(0, len(numbers), 3))


@dataclass(slots=True)
class Part:
    """The newest facts of one partition.

    Attributes:
        mark: Differs after each change of the partition.
        view: The view from which the rows were made; None: it cannot be read.
        row: The row of `lastword ls --json`.
        segments: The rows of `lastword ls --segments --json`; None: not counted, or not shown yet.
        counted_ms: When the counts were those of the log; None: not counted.
        plan: The due plan as far as sizes and times decide it.
        statement: The account of the garbage index, and whether it is exact.
        statement_key: Differs after each change of the garbage index.
        counted: The rows of the last exact count, and the `shape` of the log then.
    """

    mark: object = None
    view: PartitionView | None = None
    row: PartitionInfo | Uncounted | None = None
    segments: list[SegmentInfo] | None = None
    counted_ms: int | None = None
    plan: Plan | None = None
    statement: Any = None
    statement_key: object = None
    counted: tuple[int, object, PartitionInfo, list[SegmentInfo]] | None = None


@dataclass(slots=True)
class TopicState:
    """A topic: its row, the version of the page at which it changed last, and its samples."""

    row: dict[str, Any] = field(default_factory=dict)
    version: int = 0
    samples: Samples = field(default_factory=Samples)


def shape(view: PartitionView) -> tuple[object, ...]:
    """Return a value that differs after each change of records."""
    return view.log_start, view.log_end, tuple((s.base_offset, s.id.number, s.size) for s in view.segments)


class Watch:
    """The newest state of the directories of a `LogDir`. Safe from any thread.

    Args:
        logs: The open directories.

    Attributes:
        version: Rises with each poll that found a change.
        names_version: The version at which a topic was added or removed.
        at_ms: Time of the last poll.
        polls: Number of polls.
    """

    def __init__(self, logs: LogDir) -> None:
        self.logs = logs
        self.dirs = logs.dirs
        self.lock = threading.Lock()
        self.parts: dict[tuple[str, int], Part] = {}
        self.topics: dict[str, TopicState] = {}
        self.version = self.names_version = self.polls = 0
        self.at_ms = 0
        self.began_ms = self.dirs.clock.now_ms()
        self._configs: dict[str, TopicConfig] = {}

    def poll(self) -> None:
        """Take up what changed in the directories since the last poll."""
        with self.lock:
            self.polls += 1
            by_topic = self.dirs.select_by_topic(None, None)
            self.at_ms = self.dirs.clock.now_ms()
            version = self.version + 1
            gone = self.topics.keys() - by_topic.keys()
            for topic in gone:
                del self.topics[topic], self._configs[topic]
            lost = [tp for tp in self.parts if tp[1] not in by_topic.get(tp[0], ())]
            for tp in lost:
                del self.parts[tp]
            smaller = {name for name, _ in lost}
            if gone or by_topic.keys() - self.topics.keys():
                self.version = self.names_version = version
            for topic, numbers in by_topic.items():
                config = self.dirs.config(topic)
                is_edited, self._configs[topic] = self._configs.get(topic) != config, config
                changed = [self._renew(topic, number, is_edited) for number in numbers]
                if any(changed) or topic in smaller or topic not in self.topics:
                    self._sum_up(topic, numbers, version)

    def _renew(self, topic: str, number: int, is_edited: bool) -> bool:
        """Renew a partition if it changed; return whether its row, its segments or its plan did."""
        part = self.parts.setdefault((topic, number), Part())
        mark = self._mark(topic, number, part)
        if mark != part.mark or is_edited:
            self._load(topic, number, part)
            # The mark of the new view: of the old one it would compare the files of another moment.
            part.mark = self._mark(topic, number, part)
            self._decide(part)
            return True
        if part.plan is None or self.at_ms - part.plan.now_ms < PLAN_MS:
            return False
        return self._decide(part)

    def _mark(self, topic: str, number: int, part: Part) -> object:
        tp, dirs, view = TopicPartition(topic, number), self.dirs, part.view
        try:
            log_dir = dirs.log_dir(topic, number)
            if dirs.owned_log(topic, number) is not None:
                noted = dirs.files.exists(_private(log_dir.directory(topic, number), names.QUARANTINE))
                return dirs.log(topic, number).change_mark, id(log_dir.ledgers.cached_stats.get(tp)), noted
            directory = log_dir.directory(topic, number)
            stats = tuple(dirs.files.stat(path) for path in (directory, _private(directory)))
            return stats, log_dir.first_dirty(topic, number), view is None or view.is_current()
        except LastwordError as error:
            return error.message

    def _load(self, topic: str, number: int, part: Part) -> None:
        dirs, before = self.dirs, part.view
        try:
            view = dirs.checked_view(topic, number)
            if before is not None:
                view.continue_from(before)
            part.view = view
            info = partition_info(dirs, view, [])
            self._count(view, info, part)
        except LastwordError as error:
            part.view, part.segments, part.counted_ms = None, None, None
            part.row = Uncounted.of(dirs, topic, number, error)

    def _count(self, view: PartitionView, info: PartitionInfo, part: Part) -> None:
        """Set the rows of a partition: by an exact count of this log, its index, or an older count."""
        if not info.size_bytes:
            part.row, part.segments, part.counted_ms = info, None, self.at_ms
            return
        if part.counted is not None and part.counted[1] == shape(view):
            _, _, known, part.segments = part.counted
            part.row, part.counted_ms = _with_counts(info, known, exact=True), self.at_ms
            return
        part.segments = None
        self._renew_statement(view, part)
        indexed = self._by_index(part, view, partition_info)
        if indexed is not None:
            part.row, part.counted_ms = indexed, self.at_ms if indexed.exact else self._index_ms(view)
        elif part.counted is not None:
            part.counted_ms, _, known, _ = part.counted
            part.row = _with_counts(info, known, exact=False)
        else:
            facts = {
                name: getattr(info, name) for name in Uncounted.__dataclass_fields__ if name != "problem"
            }
            part.row, part.counted_ms = Uncounted(**facts, problem="not counted"), None

    def segments(self, part: Part) -> list[SegmentInfo] | None:
        """Return the rows of a partition's segments; None: they are not counted.

        The rows by the index are made when they are shown: the end of each segment is read for them.
        """
        with self.lock:
            if part.segments is None and part.view is not None and isinstance(part.row, PartitionInfo):
                with suppress(LastwordError):  # a cleaning replaced a file: the next poll shows it
                    part.segments = self._by_index(part, part.view, segment_infos)
            return part.segments

    def _by_index(self, part: Part, view: PartitionView, row_of: Callable[..., Row]) -> Row | None:
        return None if part.statement is None else by_index(self.dirs, view, part.statement, row_of)

    def _renew_statement(self, view: PartitionView, part: Part) -> None:
        """Read the account of the garbage index again if it changed."""
        closed = tuple((s.base_offset, s.id.number) for s in view.segments if s is not view.active)
        tp = TopicPartition(view.topic, view.partition)
        stats = self.dirs.log_dir(*tp).ledgers.cached_stats.get(tp)
        key = (closed, self.dirs.files.stat(_private(view.directory, names.ACCOUNTS)), id(stats))
        if key != part.statement_key or view.files.file_cost_bytes:
            with suppress(LastwordError):
                # None while a cleaning uses the index: the account of before may still fit.
                part.statement = index_statement(self.dirs, view) or part.statement
                part.statement_key = key

    def _index_ms(self, view: PartitionView) -> int:
        saved = self.dirs.files.stat(_private(view.directory, names.ACCOUNTS))
        return self.at_ms if saved is None else saved.mtime_ms

    def _decide(self, part: Part) -> bool:
        """Make the plan of a partition again; return whether its action or its reasons changed."""
        before, view = part.plan, part.view
        part.plan = None
        if view is not None:
            with suppress(LastwordError):
                part.plan = self._plan(view)
        said = [None if plan is None else (plan.action, plan.reasons) for plan in (before, part.plan)]
        return said[0] != said[1]

    def _plan(self, view: PartitionView) -> Plan:
        config, reason = self.dirs.config(view.topic), quarantine.reason_of(view.files, view.directory)
        first_dirty = self.dirs.first_dirty(view.topic, view.partition)
        request = CleanRequest(first_dirty, True, config.lastword_strategy)
        return choose_for(view, config, request, self.at_ms, quarantine=reason)

    def _sum_up(self, topic: str, numbers: Collection[int], version: int) -> None:
        state = self.topics.setdefault(topic, TopicState())
        parts = [self.parts[topic, number] for number in numbers]
        sums = TopicRow.of([part.row for part in parts if part.row is not None])
        plans = [part.plan for part in parts if part.plan is not None]
        times = [part.counted_ms for part in parts if part.counted_ms is not None]
        due = [part.row for part in parts if part.row is not None and is_due(part.plan)]
        first = next((plan.reasons[0] for plan in plans if plan.action == "keep" and plan.reasons), None)
        row = {
            **{name: getattr(sums, name) for name in TopicRow.__dataclass_fields__},
            "exact": sums.exact and not sums.uncounted,
            "compacts": self.dirs.config(topic).compacts,
            "counted_ms": min(times, default=None),
            "cleanable": sum(map(is_due, plans)),
            "drives": self._drives_of(due),
            "dirty_bytes": sum(plan.dirty_bytes for plan in plans if plan.action == "clean"),
            "strategy": self.dirs.config(topic).lastword_strategy,
            "why": None if first is None else str(first),
            "open_transactions": sum(is_held(part) for part in parts),
        }
        garbage = -1 if sums.uncounted == sums.partitions else sums.garbage_bytes
        state.samples.add(self.at_ms, sums.size_bytes, garbage)
        if row != state.row:
            state.row, state.version, self.version = row, version, version
        else:  # its segments have changed
            state.version = self.version = version

    def _drives_of(self, rows: Collection[PartitionInfo | Uncounted]) -> list[str]:
        """Return the drives of partitions, by name. One that failed is left out."""
        drives = set()
        for path in {row.dir for row in rows}:
            with suppress(KeyError):
                drives.add(self.dirs.drives.drive_of(path))
        return sorted(drives)

    def count(self, topic: str, partition: int | None, progress: ProgressLike | None) -> None:
        """Count partitions exactly, with one scan of each; the rows keep the result.

        Raises:
            LastwordError: A partition cannot be read.
        """
        chosen = self.dirs.select(topic, partition)
        sizes = [part.row.size_bytes for tp in chosen if (part := self.parts.get(tp)) and part.row]
        meter = Meter("count", progress, sum(sizes))
        for tp in chosen:
            info, segments = count_exactly(self.dirs, *tp, meter)
            with self.lock:
                part = self.parts.setdefault(tp, Part())
                # The log as it is listed now: if it has grown since, the count is of before.
                view = self.dirs.checked_view(*tp)
                same = info.log_end == view.log_end and info.size_bytes == sum(s.size for s in view.segments)
                at_ms = self.dirs.clock.now_ms()
                part.counted = at_ms, shape(view) if same else None, info, segments
                part.mark = None
        self.poll()

    def each(self, is_wanted: Callable[[Part], bool]) -> list[tuple[tuple[str, int], Part]]:
        """Return the partitions for which a function is true."""
        with self.lock:
            return [(tp, part) for tp, part in self.parts.items() if is_wanted(part)]

    def by_drive(self) -> list[dict[str, Any]]:
        """Return the sums of each drive, with its budget and its space target."""
        drives, settings = self.dirs.drives, self.dirs.settings.instance
        with self.lock:
            rows = [part.row for part in self.parts.values() if part.row is not None]
        sums: dict[str, list[PartitionInfo | Uncounted]] = {name: [] for name in drives.names}
        for path, group in groupby(sorted(rows, key=lambda row: row.dir), key=lambda row: row.dir):
            with suppress(KeyError):  # a drive that failed
                sums[drives.drive_of(path)] += group
        return [
            {
                "drive": name,
                "dirs": drives.directories(name),
                "partitions": len(here),
                **_sums(here, settings.lastword_space_target),
                "bytes_per_second": drives.budget(name).bytes_per_second,
            }
            for name, here in sums.items()
        ]


def _sums(rows: Collection[PartitionInfo | Uncounted], space_target: float) -> dict[str, Any]:
    counted = [row for row in rows if isinstance(row, PartitionInfo)]
    size_bytes, live_bytes = sum(row.size_bytes for row in rows), sum(row.live_bytes for row in counted)
    return {
        "size_bytes": size_bytes,
        "space_target": space_target,
        "is_above": len(counted) == len(rows) and size_bytes > space_target * live_bytes > 0,
        "live_bytes": live_bytes,
        "garbage_bytes": sum(row.garbage_bytes for row in counted),
        "exact": len(counted) == len(rows) and all(row.exact for row in counted),
        "uncounted": len(rows) - len(counted),
    }


def _with_counts(info: PartitionInfo, known: PartitionInfo, *, exact: bool) -> PartitionInfo:
    """Return a row with the counts of another one, which are at most the bytes of the log."""
    garbage = min(known.garbage_bytes, info.size_bytes)
    return replace(
        info,
        live_bytes=info.size_bytes - garbage,
        garbage_bytes=garbage,
        records=known.records,
        live_records=known.live_records,
        tombstones=known.tombstones,
        exact=exact,
    )


def is_due(plan: Plan | None) -> bool:
    """Return whether a cleaning that is due would read records that are not clean."""
    return plan is not None and plan.action == "clean" and plan.dirty_bytes > 0


def is_held(part: Part) -> bool:
    """Return whether a partition has an open transaction."""
    return part.view is not None and part.view.stable_offset < part.view.log_end


def _private(directory: str, *rest: str) -> str:
    return os.path.join(directory, names.PRIVATE, *rest)
