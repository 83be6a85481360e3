"""One cleaning in many steps, for a partition that is too large for one task.

Each step may run anywhere that sees the files, twice, or again after a kill.

    start      a plan's segments in units, a number of shards       where the log is open
    extract    a unit   ->  unit-<n>.data, .npz    keys and offsets by shard         a task each
    resolve    a shard  ->  shard-<n>.dead, .npz   dead rows, sums per segment       a task each
    mark       a unit   ->  dead-<n>.npz           dead bitmaps                      a task each
    merge               ->  facts.npz, groups.json                  where the log is open
    rewrite    a group  ->  built-<n>.json         a certified output                a task each
    prepared            ->  `PreparedCleaning`, to publish          where the log is open

A step writes its result under a random name and renames it: a file with its final name is whole, and two
attempts write the same bytes. A process that resumes a job lists the files and does the rest. Outputs are
published by the usual swap, if the certificate agrees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import accumulate
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from google_crc32c import value as crc32c

from lastword.cleaner.engine import lease_guard, report
from lastword.cleaner.engine.cleaning import (
    CleanableLog,
    CleanContext,
    Liveness,
    ScanResult,
    Steps,
    clean,
    limits_of,
)
from lastword.cleaner.engine.report import PreparedCleaning
from lastword.cleaner.engine.sinks import Collector, CountingSink, exact_plan
from lastword.cleaner.engine.transactions import NOTHING, TransactionFacts, Transactions
from lastword.cleaner.job_files import (
    name_aside,
    read_arrays,
    read_json,
    unreadable,
    write_arrays,
    write_json,
    write_whole,
)
from lastword.cleaner.policy import quarantine
from lastword.cleaner.policy.groups import SegmentGroup, group
from lastword.cleaner.policy.plan import Plan
from lastword.clock import Clock
from lastword.errors import BusyError, LastwordError
from lastword.files import Files
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.leases import Leases
from lastword.partition.transactions import BatchColumns, Decisions
from lastword.partition.view import PartitionView
from lastword.resolve import DeadBitmaps, Resolution, shards
from lastword.resolve.bitmaps import union
from lastword.resolve.facts import Rules, SegmentCounts
from lastword.resolve.shards import ShardResult, dead_offsets, merge_resolutions
from lastword.segment.indexes import AbortedTransaction
from lastword.segment.segment import Segment
from lastword.spark.job import GROUPS, ShardedJob, built_of, groups_of, load, load_note, log_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TRANSACTIONS = "transactions.json"
_FACTS = "facts.npz"
_OFFSETS_AT_A_TIME = 1 << 17
"""Dead offsets of a unit that are collected before their bits are set: 1 MiB, which stays in the cache."""
_BITMAPS_AT_A_TIME = 8
_PLACE = Struct("<3q")
"""Position, size and checksum of a shard's bits for a unit."""


@dataclass(frozen=True, slots=True)
class TransactionMet:
    """A unit holds a transaction, whose outcome is not known yet."""

    offset: int


def extract(files: Files, directory: str, number: int) -> TransactionMet | None:
    """Extract the keys and offsets of unit `number`.

    Raises the errors of `resolve`; damage quarantines the partition.
    """
    job = _loaded(files, directory)
    first, end = job.units[number]
    sources = Sources(files, job)[first:end]
    following = job.sources[end].base_offset if end < len(job.sources) else None
    decided = _transactions(files, job)
    path = f"{job.scratch}/unit-{number:05d}"
    aside = name_aside(f"{path}.data")
    try:
        with _on_damage(files, job), files.open_append(aside, create=True, exclusive=True) as out:
            parts = shards.extract(
                sources,
                following,
                out,
                shards=job.shards,
                salt=bytes.fromhex(job.salt),
                rules=_rules(job),
                outcomes=_Unknown() if decided is None else decided[0],
                old_due=[segment.old_due for segment in job.sources[first:end]],
            )
        if files.file_cost_bytes:
            divided, aside = aside, name_aside(f"{path}.data")
            with (
                files.open_read(divided) as unit,
                files.open_append(aside, create=True, exclusive=True) as out,
            ):
                shards.gather(unit, out, job.shards)
            files.unlink(divided)
        files.rename(aside, f"{path}.data")
    except _Met as met:
        files.unlink(aside, missing_ok=True)
        return TransactionMet(met.offset)
    except BaseException:
        with suppress(LastwordError):
            files.unlink(aside, missing_ok=True)
        raise
    write_arrays(files, f"{path}.npz", parts)
    return None


def read_transactions(files: Files, directory: str, first_offset: int) -> None:
    """Write the outcomes of all transactions, from the first transactional batch on."""
    job = _loaded(files, directory)
    view = PartitionView.load(DirectorySegments(files, job.partition))
    plan = job.plan
    transactions = Transactions(view.segments, plan.limit, plan.now_ms, plan.producer_expiration_ms)
    with _on_damage(files, job):
        decisions, facts = transactions.walk(first_offset), transactions.facts
    fields = {
        "aborted": [tuple(entry) for entry in decisions.aborted],
        "undecided": list(decisions.undecided.items()),
        "due": sorted(facts.due),
        "unclocked": sorted(facts.without_horizon),
        "below": [tuple(entry) for entry in facts.aborted],
        "segments": sorted(facts.segments),
        "spoke_ms": list(facts.spoke_ms.items()),
    }
    write_json(files, f"{job.scratch}/{_TRANSACTIONS}", fields)


def resolve_shard(files: Files, directory: str, number: int) -> None:
    """Resolve shard `number` of all units."""
    job = _loaded(files, directory)
    extents = [
        shards.Extent(
            segment.base_offset, segment.next_offset, segment.size_bytes, log_file("", segment.base_offset)
        )
        for segment in job.sources
    ]
    units = [files.open_read(f"{job.scratch}/unit-{i:05d}.data") for i in range(len(job.units))]
    try:
        shard = shards.resolve_shard(
            extents,
            units,
            number,
            job.shards,
            map_bytes=job.plan.map_bytes,
            salt=bytes.fromhex(job.salt),
            rules=_rules(job),
        )
    finally:
        for unit in units:
            unit.close()
    path = f"{job.scratch}/shard-{number:05d}"
    parts = [rows.tobytes() for rows in shard.dead_rows]
    ends = accumulate((len(part) for part in parts), initial=_PLACE.size * len(parts))
    places = [_PLACE.pack(end, len(part), crc32c(part)) for end, part in zip(ends, parts, strict=False)]
    write_whole(files, f"{path}.dead", b"".join(places + parts))
    numbers = (shard.distinct_keys, shard.passes, shard.probes, shard.map_bytes_used)
    write_arrays(
        files,
        f"{path}.npz",
        {
            "stats": shard.stats,
            "digests": shard.digests,
            "numbers": np.array(numbers, np.int64),
            "ratios": np.array([shard.map_used_ratio, shard.seconds]),
        },
    )


def mark_unit(files: Files, directory: str, number: int) -> None:
    """Write the dead bitmaps of unit `number`, when all shards are resolved."""
    job = _loaded(files, directory)
    bitmaps: list[DeadBitmaps] = []
    waiting: list[NDArray[np.int64]] = []
    waiting_offsets = 0
    with files.open_read(f"{job.scratch}/unit-{number:05d}.data") as unit:
        for shard in range(job.shards):
            for offsets in dead_offsets(unit, shard, job.shards, _dead_rows(files, job, shard, number)):
                waiting.append(offsets)
                waiting_offsets += offsets.size
                if waiting_offsets < _OFFSETS_AT_A_TIME:
                    continue
                bitmaps.append(DeadBitmaps.of(np.concatenate(waiting)))
                waiting, waiting_offsets = [], 0
                if len(bitmaps) == _BITMAPS_AT_A_TIME:
                    bitmaps = [union(bitmaps)]
    marked = union([*bitmaps, DeadBitmaps.of(np.concatenate([np.empty(0, np.int64), *waiting]))])
    write_arrays(
        files, f"{job.scratch}/dead-{number:05d}.npz", {"pages": marked.page_ids, "bits": marked.page_bits}
    )


def merge(files: Files, job: ShardedJob) -> None:
    """Write the facts of all segments, and the groups to rewrite. A repeated call writes the same."""
    units = [read_arrays(files, f"{job.scratch}/unit-{i:05d}.npz") for i in range(len(job.units))]
    tally = shards.merge_counts(units, [_shard(files, job, i) for i in range(job.shards)])
    write_arrays(files, f"{job.scratch}/{_FACTS}", tally.to_parts())
    groups = group(tally.facts(), limits_of(job.plan), _transaction_facts(files, job).segments)
    write_json(files, f"{job.scratch}/{GROUPS}", [asdict(group) for group in groups])


def rewrite_group(files: Files, directory: str, number: int, now_ms: int, clock: Clock) -> None:
    """Rewrite and certify group `number`, or only count its bytes.

    Tombstones that are cleaned for the first time may go `delete.retention.ms` after `now_ms`.
    """
    job = _loaded(files, directory)
    plan = replace(job.plan, now_ms=now_ms)
    log = JobLog(
        plan.topic,
        plan.partition,
        DirectorySegments(files, job.partition),
        plan.log_start,
        Sources(files, job),
    )
    liveness = ShardedScan(files, job, number)
    path = f"{job.scratch}/built-{number:05d}.json"
    if not job.rewrites:
        counted = clean(log, plan, liveness, CountingSink(plan), CleanContext(files, clock, dry=True))
        write_json(files, path, {"size_bytes": counted.write_bytes})
        return
    outputs = name_aside(f"{job.directory}/group-{number:05d}")
    files.mkdir(outputs)
    prepared = clean(log, plan, liveness, Collector(plan, staged_in=outputs), CleanContext(files, clock))
    for built in prepared.groups:
        output = built.output
        facts = log.store.output(output.directory, output.base_offset).facts()
        note = {
            "group": asdict(built),
            "inode": -1 if facts is None else facts.id.number,
            "starts_clocks": liveness.sets_horizons(),
        }
        write_json(files, path, note)


class JobLog(NamedTuple):
    """The log of a job, without the segments above its limit."""

    topic: str
    partition: int
    store: DirectorySegments
    log_start: int
    segments: Sequence[Segment]

    @property
    def directory(self) -> str:
        """The partition's directory."""
        return self.store.directory


class ShardedScan(Liveness):
    """Liveness of one group, from the files of the job's shards."""

    def __init__(self, files: Files, job: ShardedJob, number: int) -> None:
        self._job = job
        self._group = (groups_of(files, job) or ())[number]
        self._resolution = _resolution(files, job, self._group)
        self._transactions = _transaction_facts(files, job)

    def unread_bytes(self, segments: Sequence[Segment], plan: Plan) -> int:
        """Return 0: the scan is done."""
        return 0

    def scan(
        self, log: CleanableLog, segments: Sequence[Segment], plan: Plan, context: CleanContext, steps: Steps
    ) -> ScanResult:
        """Return the group as the result of the scan."""
        groups, stats = (self._group,), report.NOTHING_SCANNED
        self._plan = plan
        self._scan = ScanResult(segments, self._resolution, groups, self._transactions, stats, Leases())
        return self._scan

    def sets_horizons(self) -> bool:
        """Return whether the group gives tombstones or markers a delete horizon that counts from now."""
        facts = self._resolution.segments
        return any(
            facts[number].tombstones_without_horizon or number in self._transactions.segments
            for number in range(self._group.first, self._group.last + 1)
        )

    def highest_due(self, group: SegmentGroup) -> int:
        """Return the highest offset of a tombstone that this group drops for its age; -1: none."""
        return lease_guard.highest_due(self._scan, group, self._plan.now_ms, self._job.due_below)

    def first_dirty(self) -> int:
        """Return the checkpoint to record when every group is published."""
        return self._plan.limit

    def held_back(self, scan: ScanResult) -> NDArray[np.int64]:
        """Return no offsets: leases were applied when the job began."""
        return np.empty(0, np.int64)


def prepared(files: Files, job: ShardedJob, seconds: float) -> PreparedCleaning:
    """Return all built groups, for a `Publisher`. `seconds`: duration of the scan."""
    groups = groups_of(files, job) or ()
    stats = report.scan_stats(job.plan, _resolution(files, job, None, seconds))
    notes = [load_note(files, job, number) for number in range(len(groups))]
    built = tuple(built_of(note) for note in notes if note is not None)
    return PreparedCleaning(job.plan, stats, built, job.plan.limit)


def planned(files: Files, job: ShardedJob) -> Plan:
    """Return the exact plan, of a job that only counts."""
    groups = groups_of(files, job) or ()
    notes = [load_note(files, job, number) for number in range(len(groups))]
    write_bytes = sum(note["size_bytes"] for note in notes if note is not None)
    source_bytes = sum(group.size_bytes for group in groups)
    resolution = _resolution(files, job, None)
    counted = replace(
        job.plan,
        segments=sum(group.count for group in groups),
        read_bytes=report.scan_stats(job.plan, resolution).read_bytes + source_bytes,
        write_bytes=write_bytes,
        free_bytes=source_bytes - write_bytes,
    )
    return exact_plan(counted, resolution.segments)


class Sources(Sequence[Segment]):
    """The segments of a job, loaded on demand.

    Raises:
        BusyError: A file is another one now.
    """

    def __init__(self, files: Files, job: ShardedJob) -> None:
        self._files = files
        self._job = job
        self._loaded: dict[int, Segment] = {}

    def __len__(self) -> int:
        return len(self._job.sources)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        if number not in self._loaded:
            wanted = self._job.sources[number]
            segment = Segment.load(
                DirectorySegments(self._files, self._job.partition).stored(wanted.base_offset),
                next_offset=wanted.next_offset,
            )
            if segment.id != wanted.id:
                raise BusyError(f"{segment.file} changed while it was cleaned", remedy="clean again")
            self._loaded[number] = segment
        return self._loaded[number]


# ---------------------------------------------------------------- transactions


class _Met(Exception):
    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


class _Unknown:
    """Outcomes that are not known yet: the first request ends the step."""

    def of_batches(self, batches: BatchColumns) -> NDArray[np.uint8]:
        raise _Met(int(batches.base_offsets[0]))


def _transactions(files: Files, job: ShardedJob) -> tuple[Decisions, TransactionFacts] | None:
    path = f"{job.scratch}/{_TRANSACTIONS}"
    if not files.exists(path):
        return None
    saved = read_json(files, path)
    aborted, below_limit = (
        tuple(AbortedTransaction(*fields) for fields in saved[name]) for name in ("aborted", "below")
    )
    sets = (frozenset(saved["due"]), frozenset(saved["unclocked"]))
    facts = TransactionFacts(*sets, below_limit, frozenset(saved["segments"]), dict(saved["spoke_ms"]))
    return Decisions(aborted, undecided=dict(saved["undecided"])), facts


def _transaction_facts(files: Files, job: ShardedJob) -> TransactionFacts:
    transactions = _transactions(files, job)
    return NOTHING if transactions is None else transactions[1]


# ---------------------------------------------------------------- files of a job


@lru_cache(maxsize=4)
def _loaded(files: Files, directory: str) -> ShardedJob:
    """Return a job, cached: it never changes once it has its name."""
    return load(files, directory)


def _rules(job: ShardedJob) -> Any:
    return Rules(decided=True, drop_keyless=True, now_ms=job.plan.now_ms, due_below=job.due_below)


def _on_damage(files: Files, job: ShardedJob) -> AbstractContextManager[None]:
    return quarantine.on_damage(files, job.partition, job.plan, dry=not job.rewrites)


def _shard(files: Files, job: ShardedJob, number: int) -> Any:
    parts = read_arrays(files, f"{job.scratch}/shard-{number:05d}.npz")
    keys, passes, probes, used = parts["numbers"].tolist()
    ratio, seconds = parts["ratios"].tolist()
    return ShardResult([], parts["stats"], parts["digests"], keys, passes, probes, used, ratio, seconds)


def _resolution(
    files: Files, job: ShardedJob, group: SegmentGroup | None, seconds: float = 0.0
) -> Resolution:
    """Return the result of the scan with the bits of a group's segments, or with none."""
    facts = SegmentCounts.from_parts(read_arrays(files, f"{job.scratch}/{_FACTS}")).facts()
    if group is None:
        results, dead = [_shard(files, job, number) for number in range(job.shards)], DeadBitmaps.of([])
    else:
        results, dead = [], union(_bits(files, job, group))
    return merge_resolutions(
        facts, dead, results, map_bytes=job.plan.map_bytes, salt=bytes.fromhex(job.salt), seconds=seconds
    )


def _bits(files: Files, job: ShardedJob, group: SegmentGroup) -> Iterator[DeadBitmaps]:
    """Yield the bits of a group, from the units with its segments."""
    first_offset = job.sources[group.first].base_offset
    next_offset = job.sources[group.last].next_offset
    for number, (first, end) in enumerate(job.units):
        if first <= group.last and group.first < end:
            parts = read_arrays(files, f"{job.scratch}/dead-{number:05d}.npz")
            pages = np.arange(parts["pages"].size, dtype=np.int32)
            yield DeadBitmaps(parts["pages"], pages, parts["bits"]).window(first_offset, next_offset)


def _dead_rows(files: Files, job: ShardedJob, shard: int, unit: int) -> NDArray[np.uint8]:
    """Return the bits of a shard's rows in a unit."""
    path = f"{job.scratch}/shard-{shard:05d}.dead"
    with files.open_read(path) as handle:
        place = handle.pread(_PLACE.size, unit * _PLACE.size)
        if len(place) == _PLACE.size:
            position, size, check = _PLACE.unpack(place)
            if _PLACE.size <= position <= position + size <= handle.size():
                data = handle.pread(size, position)
                if crc32c(data) == check:
                    return np.frombuffer(data, np.uint8)
    raise unreadable(path)
