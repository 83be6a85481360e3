"""The verbs that count and predict: `describe`, `segments`, `duplication` and `simulate`.

They change nothing. `describe` and `segments` count live bytes and garbage. An exact count scans every record
of a log once; the bits of the dead bitmaps are the garbage. If the garbage index covers the whole log
exactly, it gives the same counts without a scan. Only the bytes of compressed records in rewritten segments
are then distributed in proportion to their sizes before the rewrite. A quick count takes the index as it is:
records that are not indexed yet count as live, and a sample is an estimate.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from lastword.accounts import PartitionAccount, has_accounts
from lastword.cleaner.policy import quarantine
from lastword.cleaner.policy.choose import corrected_first_dirty
from lastword.errors import (
    DataError,
    FileVanishedError,
    LastwordError,
    NotAPartitionError,
    PartialFailure,
    StorageError,
    UsageError,
)
from lastword.files import normal_path
from lastword.keys.manifest import indexed_to
from lastword.logdir.checkpoints import TopicPartition
from lastword.parse import one_of
from lastword.partition import scan
from lastword.partition.counts import SegmentCount, count_plain
from lastword.partition.reads import read_again
from lastword.partition.transactions import Outcomes
from lastword.partition.view import PartitionView
from lastword.units import format_bytes, format_time
from lastword.values import Meter, ProgressLike, Value, plural, sums

if TYPE_CHECKING:
    from lastword.accounts.ledger import Ledger
    from lastword.api.open_dirs import By, OpenDirs, Topics
    from lastword.config import Settings
    from lastword.resolve import Resolution
    from lastword.tools.duplication import Duplication
    from lastword.tools.explain import Counted
    from lastword.tools.overwrites import OverwriteTrace
    from lastword.tools.simulate import Simulated, Simulation


@dataclass(frozen=True, slots=True)
class PartitionInfo(Value):
    """One partition, as `lastword ls DIR TOPIC` shows it.

    Attributes:
        topic: The topic.
        partition: Its number.
        dir: Its log directory.
        policy: "compact", "delete", "compact,delete" or "none", or None if it is not set or not known. With
            "none" and None nothing is ever removed.
        log_start: First offset that can be read.
        first_dirty: The log is clean below this offset.
        stable: Last stable offset; transactions from here on are not decided.
        log_end: Offset of the next record.
        segments: Number of segments.
        size_bytes: Size of the .log files: live_bytes + garbage_bytes.
        live_bytes: Bytes that are not garbage, transaction markers included.
        garbage_bytes: Bytes of superseded and of aborted records, and of the headers of emptied batches.
        records: Records on disk, also below log_start while their file exists.
        live_records: Records that are the newest of their key, tombstones included.
        tombstones: Live records that are tombstones.
        exact: True: counted; False: an estimate.
        quarantine: Reason of the quarantine, or None.
        indexed_to: The key index that `Topic.get` has saved covers the records below this offset; None: there
            is none that fits the log.
    """

    topic: str
    partition: int
    dir: str
    policy: str | None
    log_start: int
    first_dirty: int
    stable: int
    log_end: int
    segments: int
    size_bytes: int
    live_bytes: int
    garbage_bytes: int
    records: int
    live_records: int
    tombstones: int
    exact: bool
    quarantine: str | None
    indexed_to: int | None

    text_columns = ("PARTITION", "POLICY", "DIR")

    def cells(self) -> dict[str, str]:
        """Return a row of the table of partitions."""
        return {
            "PARTITION": f"{self.topic}-{self.partition}",
            "SIZE": format_bytes(self.size_bytes),
            **count_cells(self, compacts="compact" in (self.policy or "")),
            "START": str(self.log_start),
            "END": str(self.log_end),
            "INDEXED": "-" if self.indexed_to is None else str(self.indexed_to),
            "SEGMENTS": str(self.segments),
            "POLICY": (self.policy or "not set") + (" (quarantined)" if self.quarantine is not None else ""),
        }

    @classmethod
    def totals(cls, values: Sequence[PartitionInfo]) -> str:
        """Return the number of partitions, their size and the garbage in it."""
        return f"{plural(len(values), 'partition')}, {_sizes_text(values)}"

    def __str__(self) -> str:
        return (
            f"{self.topic}-{self.partition}: {plural(self.records, 'record')} in "
            f"{plural(self.segments, 'segment')}, "
            f"{format_bytes(self.size_bytes)}, {format_bytes(self.garbage_bytes)} garbage"
        )


@dataclass(frozen=True, slots=True)
class SegmentInfo(Value):
    """One segment; fields as in `PartitionInfo`.

    Attributes:
        base_offset: Its first offset.
        next_offset: The offset after its last offset.
        generation: Number of its rewrites; None without a garbage index.
        survivorship: Share of the bytes that its last rewrite kept; None if unknown.
        largest_timestamp: Milliseconds since 1970.
        active: Whether records are appended to it.
    """

    topic: str
    partition: int
    base_offset: int
    next_offset: int
    size_bytes: int
    live_bytes: int
    garbage_bytes: int
    records: int
    exact: bool
    generation: int | None
    survivorship: float | None
    largest_timestamp: int
    active: bool

    text_columns = ("SEGMENT", "LARGEST TIMESTAMP", "DIR", "")

    def cells(self) -> dict[str, str]:
        """Return a row of the table of segments."""
        figures = count_cells(self)
        return {
            "SEGMENT": f"{self.topic}-{self.partition}/{self.base_offset}",
            "OFFSETS": f"{self.base_offset}-{self.next_offset - 1}"
            if self.next_offset > self.base_offset
            else "-",
            "SIZE": format_bytes(self.size_bytes),
            **{title: figures[title] for title in ("LIVE", "GARBAGE", "RECORDS")},
            "LARGEST TIMESTAMP": format_time(self.largest_timestamp),
            "": "active" if self.active else "",
        }

    @classmethod
    def totals(cls, values: Sequence[SegmentInfo]) -> str:
        """Return the number of segments, their size and the garbage in it."""
        return f"{plural(len(values), 'segment')}, {_sizes_text(values)}"

    def __str__(self) -> str:
        return (
            f"{self.topic}-{self.partition}/{self.base_offset:020d}: {plural(self.records, 'record')}, "
            f"{format_bytes(self.size_bytes)}, {format_bytes(self.garbage_bytes)} garbage"
        )


UNKNOWN_COUNTS = dict.fromkeys(("LIVE", "GARBAGE", "RECORDS", "NEWEST"), "?")


@dataclass(frozen=True, slots=True)
class Uncounted:
    """The known facts of a partition whose records could not be counted.

    `problem`: quarantined, damaged, or unreadable (no permission, a link, a failing drive).
    """

    topic: str
    partition: int
    dir: str
    policy: str | None
    log_start: int | None = None
    log_end: int | None = None
    segments: int | None = None
    size_bytes: int = 0
    quarantine: str | None = None
    problem: str = "damaged"

    @classmethod
    def of(cls, dirs: OpenDirs, topic: str, partition: int, error: LastwordError) -> Uncounted:
        """Return the facts that can be read; if listing fails too, only directory and policy."""
        row = cls(topic, partition, dirs.log_dir(topic, partition).path, dirs.config(topic).policy_text)
        if isinstance(error, (NotAPartitionError, StorageError)):
            row = replace(row, problem="unreadable")
        try:
            view = dirs.view(topic, partition)
            reason = quarantine.reason_of(view.files, view.directory)
        except (DataError, StorageError, UsageError):
            return row
        return replace(
            row,
            log_start=view.log_start,
            log_end=view.log_end,
            segments=len(view.segments),
            size_bytes=view.segment_set.size,
            quarantine=reason,
            problem=row.problem if reason is None else "quarantined",
        )

    def cells(self) -> dict[str, str]:
        """Return the cells of a `PartitionInfo`, with `?` where a fact is not known."""
        start, end = ("?" if fact is None else str(fact) for fact in (self.log_start, self.log_end))
        return {
            "PARTITION": f"{self.topic}-{self.partition}",
            "SIZE": "?" if self.segments is None else format_bytes(self.size_bytes),
            **UNKNOWN_COUNTS,
            "START": start,
            "END": end,
            "INDEXED": "-",
            "SEGMENTS": "?" if self.segments is None else str(self.segments),
            "POLICY": f"{self.policy or 'not set'} ({self.problem})",
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of a `PartitionInfo`; unknown fields are null."""
        unknown = dict.fromkeys(
            ("live_bytes", "garbage_bytes", "records", "live_records", "tombstones", "indexed_to")
        )
        size = {} if self.segments is not None else {"size_bytes": None}
        return {**asdict(self), **unknown, **size, "exact": False}


@dataclass(frozen=True, slots=True)
class TopicRow:
    """Sums over the partitions of a topic.

    `uncounted` is the number of partitions whose records could not be counted; only `size_bytes` and
    `segments` include them.
    """

    topic: str
    partitions: int
    policy: str | None
    segments: int
    size_bytes: int
    live_bytes: int
    garbage_bytes: int
    records: int
    live_records: int
    tombstones: int
    exact: bool
    uncounted: int
    quarantined: int
    unreadable: int

    @classmethod
    def of(cls, rows: list[PartitionInfo | Uncounted]) -> TopicRow:
        """Return the sums over the rows of a topic."""
        counted = [row for row in rows if not isinstance(row, Uncounted)]
        return cls(
            topic=rows[0].topic,
            partitions=len(rows),
            policy=rows[0].policy,
            segments=sum(row.segments or 0 for row in rows),
            size_bytes=sum(row.size_bytes for row in rows),
            **sums(counted, "live_bytes", "garbage_bytes", "records", "live_records", "tombstones"),
            exact=all(row.exact for row in counted),
            uncounted=len(rows) - len(counted),
            quarantined=sum(row.quarantine is not None for row in rows),
            unreadable=sum(isinstance(row, Uncounted) and row.problem == "unreadable" for row in rows),
        )

    @property
    def health(self) -> str:
        """Number of quarantined, unreadable and damaged partitions, as text; empty if there are none."""
        damaged = self.uncounted - self.quarantined - self.unreadable
        marks = [(self.quarantined, "quarantined"), (self.unreadable, "unreadable"), (damaged, "damaged")]
        named = [f"{number} {mark}" for number, mark in marks if number > 0]
        return f" ({', '.join(named)})" if named else ""


def count_cells(row: Any, *, compacts: bool = True) -> dict[str, str]:
    """Return the cells of a row with counts; live bytes and garbage are defined for compacted topics only."""
    about = "" if row.exact else "~ "
    live = about + format_bytes(row.live_bytes) if compacts else "-"
    garbage = about + format_bytes(row.garbage_bytes) if compacts else "-"
    newest = getattr(row, "live_records", 0)
    return {
        "LIVE": live,
        "GARBAGE": garbage,
        "RECORDS": f"{about}{row.records}",
        "NEWEST": f"{about}{newest}",
    }


def _sizes_text(rows: Sequence[PartitionInfo] | Sequence[SegmentInfo]) -> str:
    about = "" if all(row.exact for row in rows) else "~ "
    garbage = format_bytes(sum(row.garbage_bytes for row in rows))
    return f"{format_bytes(sum(row.size_bytes for row in rows))}, {about}{garbage} of it garbage"


Row = TypeVar("Row")


# ---------------------------------------------------------------- live bytes and garbage


def describe(
    dirs: OpenDirs, topic: str, progress: ProgressLike | bool | None, *, quick: bool = False
) -> list[PartitionInfo]:
    """Count the partitions of a topic. The first error is raised."""
    rows = count_each(dirs, dirs.select(topic, None), partition_info, progress, quick=quick)
    return [_raised(row) for _, row in rows]


def segments(
    dirs: OpenDirs,
    topic: str,
    partition: int | None,
    progress: ProgressLike | bool | None,
    *,
    quick: bool = False,
) -> list[SegmentInfo]:
    """Count the segments of a topic, or of one of its partitions."""
    rows = count_each(dirs, dirs.select(topic, partition), segment_infos, progress, quick=quick)
    return [segment for _, row in rows for segment in _raised(row)]


def count_each(
    dirs: OpenDirs,
    chosen: Sequence[tuple[str, int]],
    row_of: Callable[[OpenDirs, PartitionView, list[SegmentCount]], Row],
    progress: ProgressLike | bool | None,
    *,
    quick: bool = False,
) -> Iterator[tuple[tuple[str, int], Row | LastwordError]]:
    """Count partitions one after another; yield each with its row or its error.

    The directory was listed for `chosen` and is not listed again, so the work is linear in the partitions.
    `row_of` is `partition_info` or `segment_infos`.
    """
    views: dict[tuple[str, int], PartitionView | LastwordError] = {}
    for name, number in chosen:
        try:
            views[name, number] = dirs.checked_view(name, number)
        except (DataError, StorageError, UsageError) as error:
            views[name, number] = error
    sound = [view for view in views.values() if not isinstance(view, LastwordError)]
    meter = Meter("count", progress, sum(segment.size for view in sound for segment in view.segments))

    def row(view: PartitionView) -> Row:
        return row_of(dirs, view, _count_segments(dirs, view, meter, quick))

    for tp, view in views.items():
        if isinstance(view, LastwordError):
            yield tp, view
            continue
        try:
            yield tp, dirs.on_view(view, row)
        except (DataError, StorageError) as error:
            yield tp, error


def _raised(row: Row | LastwordError) -> Row:
    if isinstance(row, LastwordError):
        raise row
    return row


def partition_info(dirs: OpenDirs, view: PartitionView, counted: list[SegmentCount]) -> PartitionInfo:
    """Return the row of a partition in `describe`."""
    size = view.segment_set.size
    dead_bytes = sum(count.dead_bytes for count in counted)
    return PartitionInfo(
        topic=view.topic,
        partition=view.partition,
        dir=os.path.dirname(normal_path(view.directory)),
        policy=dirs.config(view.topic).policy_text,
        log_start=view.log_start,
        first_dirty=first_dirty_of(dirs, view),
        stable=view.stable_offset,
        log_end=view.log_end,
        segments=len(view.segments),
        size_bytes=size,
        live_bytes=size - dead_bytes,
        garbage_bytes=dead_bytes,
        records=sum(count.records for count in counted),
        live_records=sum(count.records - count.dead_records for count in counted),
        tombstones=sum(count.tombstones for count in counted),
        exact=all(count.exact for count in counted),
        quarantine=quarantine.reason_of(view.files, view.directory),
        indexed_to=indexed_to(view),
    )


def first_dirty_of(dirs: OpenDirs, view: PartitionView) -> int:
    """Return the first dirty offset of a view. A later cleaning may have passed its stable offset."""
    first_dirty = dirs.first_dirty(view.topic, view.partition)
    return min(corrected_first_dirty(first_dirty, view.log_start, view.log_end), view.stable_offset)


def segment_infos(dirs: OpenDirs, view: PartitionView, counted: list[SegmentCount]) -> list[SegmentInfo]:
    """Return the rows of a partition in `segments`."""
    rewritten = _rewritten(dirs, view)
    rows = []
    for segment, count in zip(view.segments, counted, strict=True):
        generation, survived = rewritten.get((segment.base_offset, segment.id.number), (None, None))
        rows.append(
            SegmentInfo(
                topic=view.topic,
                partition=view.partition,
                base_offset=segment.base_offset,
                next_offset=segment.next_offset,
                size_bytes=segment.size,
                live_bytes=segment.size - count.dead_bytes,
                garbage_bytes=count.dead_bytes,
                records=count.records,
                exact=count.exact,
                generation=generation,
                survivorship=survived,
                largest_timestamp=segment.largest_timestamp,
                active=segment is view.active,
            )
        )
    return rows


def _rewritten(dirs: OpenDirs, view: PartitionView) -> dict[tuple[int, int], tuple[int, float | None]]:
    """Return (number of rewrites, share that the last rewrite kept) of each indexed segment.

    The key is (base offset, inode).
    """
    held = dirs.log_dir(view.topic, view.partition).ledgers.held(TopicPartition(view.topic, view.partition))
    if held is not None:
        entries = held.entries
    elif has_accounts(view.files, view.directory):
        from lastword.accounts.snapshot import saved_entries

        entries = saved_entries(view.files, view.directory)
    else:
        return {}
    return {
        (entry.base_offset, entry.inode): (
            entry.generation,
            None if entry.survived_ratio < 0 else round(entry.survived_ratio, 4),
        )
        for entry in list(entries)
    }


def _count_segments(dirs: OpenDirs, view: PartitionView, meter: Meter, quick: bool) -> list[SegmentCount]:
    """Count each segment of a view."""
    short = scan.is_short(view, view.segments[0].base_offset if view.segments else 0, view.log_end)
    statement = index_statement(dirs, view) if quick or not short else None
    known = None if statement is None else _counts(view, *statement)
    if known is not None and (quick or all(count.exact for count in known)):
        with meter.part(view.segment_set.size):
            return known
    counted: list[SegmentCount] | None = None
    if short:
        with meter.part(view.segment_set.size):
            counted = count_plain(view)
    if counted is None:
        facts = _resolved(dirs, view, meter).segments
        counted = [SegmentCount(f.records, f.dead_records, f.dead_bytes, f.tombstones) for f in facts]
    return counted


def index_statement(dirs: OpenDirs, view: PartitionView) -> tuple[PartitionAccount, bool] | None:
    """Return the account of the garbage index or its summary, and whether it is exact; reads no record.

    None: there is none, or a cleaning uses it.
    """
    tp = TopicPartition(view.topic, view.partition)
    log_dir = dirs.log_dir(*tp)
    if log_dir.ledgers.held(tp) is not None and dirs.mode == "a":
        with log_dir.try_claim(*tp) as mine:
            if not mine:  # a cleaning uses the ledger
                return None
            with log_dir.ledgers.of(tp, log_dir.log(*tp)) as ledger:
                return _statement(dirs, view, ledger)
    if view.files.file_cost_bytes:  # only then a summary is saved
        from lastword.cleaner.inspection import saved_statement

        saved = saved_statement(view, dirs.config(view.topic))
        if saved is not None:
            return saved
    if not has_accounts(view.files, view.directory):
        return None
    from lastword.accounts.ledger import Ledger

    map_bytes = dirs.settings.instance.map_bytes
    return _statement(dirs, view, Ledger.open(view.files, view.directory, view.segments, map_bytes=map_bytes))


def by_index(
    dirs: OpenDirs,
    view: PartitionView,
    statement: tuple[PartitionAccount, bool],
    row_of: Callable[[OpenDirs, PartitionView, list[SegmentCount]], Row],
) -> Row | None:
    """Return the row of a partition by a garbage index, as a quick count has it; see `count_each`.

    None: the index does not fit the log.
    """
    counts = _counts(view, *statement)
    return None if counts is None else row_of(dirs, view, counts)


def count_exactly(
    dirs: OpenDirs, topic: str, partition: int, meter: Meter
) -> tuple[PartitionInfo, list[SegmentInfo]]:
    """Count a partition and its segments with one scan."""

    def rows(view: PartitionView) -> tuple[PartitionInfo, list[SegmentInfo]]:
        counts = _count_segments(dirs, view, meter, False)
        return partition_info(dirs, view, counts), segment_infos(dirs, view, counts)

    return dirs.on_view(dirs.checked_view(topic, partition), rows)


def _statement(dirs: OpenDirs, view: PartitionView, ledger: Ledger) -> tuple[PartitionAccount, bool]:
    config = dirs.config(view.topic)
    account = ledger.account(
        config, topic=view.topic, partition=view.partition, drive="", total_bytes=0, log_start=view.log_start
    )
    # The index counts due tombstones as garbage, although they are the newest records of their keys.
    return account, ledger.exact and not ledger.deletes.due.size


def _counts(view: PartitionView, account: PartitionAccount, exact: bool) -> list[SegmentCount] | None:
    """Return the counts of an account; None if it does not fit the log.

    A segment that is not indexed counts as live, its records as if no offset were missing.
    """
    known = {counts.base_offset: counts for counts in account.segments}
    if not known or not known.keys() <= {segment.base_offset for segment in view.segments}:
        return None
    result = []
    for segment in view.segments:
        counts = known.get(segment.base_offset)
        if counts is not None and counts.size_bytes == segment.size:
            count = SegmentCount(
                counts.records, counts.dead_records, counts.dead_bytes, counts.tombstones, exact
            )
        else:
            count = SegmentCount(segment.next_offset - segment.base_offset, 0, 0, 0, segment.size == 0)
        result.append(count)
    if any(segment.size and segment.base_offset not in known for segment in view.segments):
        # New records may have superseded any counted record.
        result = [replace(count, exact=False) for count in result]
    return result


def _resolved(dirs: OpenDirs, view: PartitionView, meter: Meter) -> Resolution:
    """Scan a whole log. Records of an undecided transaction count as live and supersede nothing."""
    from lastword.resolve import ScratchPlace, resolve

    with meter.part(view.segment_set.size) as done:
        return resolve(
            view.segments,
            map_bytes=dirs.settings.instance.map_bytes,
            salt=os.urandom(16),
            now_ms=None,
            outcomes=Outcomes(view, view.log_end),
            progress=done,
            place=ScratchPlace.for_read(view.directory),
        )


def counted_bytes(dirs: OpenDirs, view: PartitionView) -> Counted | None:
    """Return the bytes of a partition as `describe` counts them; None if they cannot all be read."""
    from lastword.tools.explain import Counted

    meter = Meter("count", None, view.segment_set.size)
    try:
        rows = segment_infos(dirs, view, _count_segments(dirs, view, meter, False))
    except FileVanishedError:
        raise
    except (DataError, StorageError):
        return None
    return Counted(
        sum(segment.size_bytes for segment in rows),
        sum(segment.garbage_bytes for segment in rows),
        sum(segment.garbage_bytes for segment in rows if segment.active),
    )


# ---------------------------------------------------------------- duplication


def duplication(
    dirs: OpenDirs, topic: Topics, partition: int | None, *, by: str, progress: ProgressLike | bool | None
) -> list[Duplication]:
    """See `LogDir.duplication`."""
    from lastword.tools.duplication import counted

    check_by(by)
    chosen = dirs.select_by_topic(topic, partition)
    every = dirs.topics()
    views, errors = _views(dirs, chosen, by)
    size = sum(
        segment.size for topics in views.values() for view in topics.values() for segment in view.segments
    )
    meter = Meter("duplication", progress, size * (2 if by == "segment" else 3))  # passes at most
    rows: list[Duplication] = []
    failed = list(errors)
    for name, of_topic in views.items():
        whole = len(of_topic) == len(every.get(name, ()))
        with PartialFailure.collecting(failed):
            map_bytes = dirs.settings.instance.map_bytes
            rows += counted(name, of_topic, by, meter.part, whole=whole, map_bytes=map_bytes)
    return PartialFailure.check(rows, failed)


def _views(
    dirs: OpenDirs, chosen: dict[str, list[int]], by: str
) -> tuple[dict[str, dict[int, PartitionView]], list[LastwordError]]:
    """Return the views of each topic's partitions, and the errors of partitions without a view.

    The other partitions of a topic with an error are counted, but there is no row for the whole topic.
    """
    views: dict[str, dict[int, PartitionView]] = {}
    errors: list[LastwordError] = []
    for name, numbers in chosen.items():
        readable, failed = dirs.checked_views((name, number) for number in numbers)
        errors += failed.values()
        if readable and not (failed and by == "topic"):
            views[name] = {number: view for (_, number), view in readable.items()}
    return views, errors


def check_by(by: str) -> By:
    """Return the unit of a row; UsageError if it is unknown."""
    from lastword.tools.duplication import BY

    return cast("By", one_of(by, BY, "by"))


# ---------------------------------------------------------------- simulate


def simulations(
    dirs: OpenDirs,
    topic: Topics,
    partition: int | None,
    strategy: str | None,
    progress: ProgressLike | bool | None,
    config: Mapping[str, Any],
) -> list[Simulation]:
    """See `LogDir.simulate`."""
    from lastword.tools.simulate import STRATEGIES

    if strategy is not None:
        one_of(strategy, STRATEGIES, "strategy")
    today = dirs.settings
    tries: list[tuple[dict[str, Any], Settings, str | None]] = [({}, today, None)]
    if config or strategy is not None:
        shown = dict(config) | ({} if strategy is None else {"lastword.strategy": strategy})
        tries.append((shown, today.changed(config), strategy))
    views, errors = dirs.checked_views(dirs.select(topic, partition))
    failed = list(errors.values())
    of_view = {tp: view.segment_set.size for tp, view in views.items()}
    meter = Meter("simulate", progress, 2 * sum(of_view.values()))
    chosen, sizes, trace = [], [], []
    for tp, size in of_view.items():
        with PartialFailure.collecting(failed):
            trace.append(read_again(partial(_trace, dirs, *tp, meter, size)))
            chosen.append(tp)
            sizes.append(size)
    by_log_dir: dict[str, list[int]] = {}
    for index, tp in enumerate(chosen):
        by_log_dir.setdefault(dirs.log_dir(*tp).path, []).append(index)
    answers: list[list[Simulation]] = [[] for _ in chosen]
    drives: list[Simulation] = []
    for members in by_log_dir.values():
        for shown, settings, wanted in tries:
            share = sum(sizes[index] for index in members) // len(tries)
            with meter.part(share) as update:
                drive = _one_drive(
                    [(*chosen[index], trace[index]) for index in members], settings, wanted, shown, update
                )
            for index, simulation in zip(members, drive.partitions, strict=True):
                answers[index].append(simulation)
            if len(members) > 1:
                drives.append(drive.drive)
    simulations = [simulation for answer in answers for simulation in answer] + drives
    return PartialFailure.check(simulations, failed)


def _one_drive(
    members: Sequence[tuple[str, int, OverwriteTrace]],
    settings: Settings,
    strategy: str | None,
    shown: dict[str, Any],
    update: Callable[[int, int], None] | None,
) -> Simulated:
    from lastword.tools.simulate import TracedPartition, simulate

    parts = [TracedPartition(name, number, trace, settings.topic(name)) for name, number, trace in members]
    return simulate(
        parts,
        strategy=strategy,
        space_target=settings.instance.lastword_space_target,
        settings=shown,
        progress=update,
    )


def _trace(dirs: OpenDirs, topic: str, partition: int, meter: Meter, size_bytes: int) -> OverwriteTrace:
    """Trace the overwrites of a partition."""
    from lastword.tools.overwrites import trace_log

    view = dirs.checked_view(topic, partition)
    first_dirty = dirs.first_dirty(topic, partition)
    with meter.part(size_bytes) as update:
        return trace_log(
            view.segments,
            salt=os.urandom(16),
            loaded_below=corrected_first_dirty(first_dirty, view.log_start, view.log_end),
            outcomes=Outcomes(view, view.log_end),
            progress=update,
        )
