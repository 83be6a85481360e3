"""One round in many steps, for a partition that is too large for one task: any of them may run anywhere that
sees the files, twice, or again after a kill.

    start      a plan's segments in units, a number of shards       where the log is open
    extract    a unit   ->  unit-<n>.data, .npz    keys and offsets by shard         a task each
    resolve    a shard  ->  shard-<n>.dead, .npz   dead offsets, sums a segment      a task each
    merge               ->  facts.npz, groups.json                  where the log is open
    rewrite    a group  ->  built-<n>.json         a certified output                a task each
    built               ->  `BuiltRound`, for `cleaner.publish`     where the log is open

A step's result is written aside, under a name of the attempt's own, and renamed: what has its name is whole,
and two attempts write the same bytes. So who goes on with a job lists what is there and does the rest.
Nothing in a job's directory is part of the log; outputs are published by the same swap as always, if the
certificate agrees.

A job is `<partition>/lastword/sharded-<token>/`. Its steps' files lie there too, or in a directory of that
name in another place that all tasks see; outputs always lie on the log's own drive.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from io import BytesIO
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from google_crc32c import value as crc32c

from lastword.cleaner import account, quarantine
from lastword.cleaner.built import BuiltGroup, BuiltRound, OutputFacts, SourceFacts
from lastword.cleaner.choose import Plan, Reason
from lastword.cleaner.cleaner import below, limits_of, old_due, rewrite_each
from lastword.cleaner.groups import Group, group
from lastword.cleaner.report import Removed, TombstonesWaiting
from lastword.cleaner.steps import Steps
from lastword.cleaner.transactions import NOTHING, Found, Transactions
from lastword.clock import Clock
from lastword.errors import BusyError, CorruptFileError, LastwordError
from lastword.files import Files
from lastword.partition import leases
from lastword.partition.transactions import Decisions
from lastword.partition.view import PartitionView
from lastword.segment import names
from lastword.segment.segment import Segment
from lastword.segment.txn_index import AbortedTransaction
from lastword.values import Value

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lastword.resolve import Resolution, SegmentFacts

PREFIX = "sharded-"
PLANNED = "planned-"
MAX_AGE_MS = 24 * 3_600_000
"""A job that was begun so long ago is not gone on with, and its files go."""
UNIT_BYTES = 1 << 30
SMALLEST_UNIT_BYTES = 32 << 20
SHARD_BYTES = 512 << 20  # of the log: so many go into one shard at most
FEWEST_SHARDS = 8
_UNITS = 64
_JOB = "job.json"
_TRANSACTIONS = "transactions.json"
_FACTS = "facts.npz"
_GROUPS = "groups.json"


@dataclass(frozen=True, slots=True)
class JobSource(Value):
    """A segment as the job found it."""

    base_offset: int
    next_offset: int
    size_bytes: int
    inode: int
    old_due: bool


@dataclass(frozen=True, slots=True)
class Job(Value):
    """All that a step has to know.

    directory   of the job; scratch: of its steps' files; partition: of the log
    salt        of the maps, hexadecimal
    due_below   tombstones from there on wait for a lease
    units       (first, end) as indexes of `sources`
    rewrites    False: outputs are only counted, for a plan
    """

    directory: str
    scratch: str
    partition: str
    plan: Plan
    salt: str
    due_below: int
    sources: tuple[JobSource, ...]
    units: tuple[tuple[int, int], ...]
    shards: int
    rewrites: bool

    @property
    def source_bytes(self) -> int:
        return sum(one.size_bytes for one in self.sources)


@dataclass(frozen=True, slots=True)
class TransactionMet:
    """A unit holds a transaction, and nobody has looked yet what became of it."""

    offset: int


# ---------------------------------------------------------------- a job's beginning and end


def start(
    files: Files,
    partition: str,
    segments: Sequence[Segment],
    plan: Plan,
    *,
    scratch: str | None = None,
    salt: bytes | None = None,
    shards: int | None = None,
    unit_bytes: int | None = None,
    rewrites: bool = True,
) -> Job:
    """A new job for `plan`, from `cleaner.prepare`; without `rewrites`, from `choose`."""
    token = os.urandom(8).hex()
    sources = below(segments, plan.limit)
    total_bytes = sum(one.size for one in sources)
    if unit_bytes is None:
        unit_bytes = min(max(total_bytes // _UNITS, SMALLEST_UNIT_BYTES), UNIT_BYTES)
    private = f"{partition}/{names.PRIVATE}"
    if not files.exists(private):
        files.mkdir(private)
    directory = f"{private}/{PREFIX if rewrites else PLANNED}{token}"
    files.mkdir(directory)
    job = Job(
        directory=directory,
        scratch=directory,
        partition=partition,
        plan=plan,
        salt=(os.urandom(16) if salt is None else salt).hex(),
        due_below=leases.load(files, partition, plan.now_ms).floor,
        sources=tuple(
            JobSource(one.base_offset, one.next_offset, one.size, one.inode, due)
            for one, due in zip(sources, old_due(sources, plan), strict=True)
        ),
        units=_units([one.size for one in sources], unit_bytes),
        shards=shards or _shards(sources, total_bytes, plan.map_bytes),
        rewrites=rewrites,
    )
    if scratch is not None:
        job = replace(job, scratch=f"{scratch.rstrip('/')}/lastword-{PREFIX}{token}")
        files.mkdir(job.scratch)
    _write_whole(files, f"{directory}/{_JOB}", json.dumps(job.to_dict()).encode())
    return job


def unfinished(files: Files, partition: str, clock: Clock) -> Job | None:
    """The job that a killed process left behind, if it can be gone on with; others are removed. For the only
    round of a partition.

    It can while it is young, its segments are the ones that lie there (or its own outputs in their place),
    and no lease has come below the tombstones that it lets go.
    """
    private = f"{partition}/{names.PRIVATE}"
    if not files.exists(private):
        return None
    kept = None
    for name in files.listdir(private):
        path = f"{private}/{name}"
        if name.startswith((PREFIX, PLANNED)):
            facts = files.stat(f"{path}/{_JOB}")
            old = facts is not None and clock.now_ms() - facts.mtime_ms > MAX_AGE_MS
            if name.startswith(PLANNED) and not old:
                continue  # somebody may be planning, without a lock
            job = None if facts is None or old else _sound(files, path, partition, clock)
            if job is None or kept is not None:
                remove(files, path)
            else:
                kept = job
    return kept


def _sound(files: Files, path: str, partition: str, clock: Clock) -> Job | None:
    try:
        job = load(files, path)
        floor = leases.load(files, partition, clock.now_ms()).floor
    except LastwordError:
        return None
    if not job.rewrites:
        return None
    moved = job.partition != partition or job.directory != path or not files.exists(job.scratch)
    if moved or floor < job.due_below:
        return None
    groups = _groups(files, job) or ()
    gone = {i for n in published(files, job) for i in range(groups[n].first, groups[n].last + 1)}
    for number, source in enumerate(job.sources):
        facts = files.stat(_log_file(partition, source.base_offset))
        same = facts is not None and (facts.size, facts.inode) == (source.size_bytes, source.inode)
        if not same and number not in gone:
            return None
    return job


def remove(files: Files, directory: str) -> None:
    """End a job: its files go, wherever they lie. A copy of a task that is about to be ended may still write
    there; what it leaves goes the next time.
    """
    with suppress(LastwordError):
        scratch = load(files, directory).scratch
        if scratch != directory and files.exists(scratch):
            files.remove_tree(scratch)
    with suppress(LastwordError):
        if files.exists(directory):
            files.remove_tree(directory)


def load(files: Files, directory: str) -> Job:
    """CorruptFileError if its description cannot be read."""
    path = f"{directory}/{_JOB}"
    try:
        found = json.loads(files.read_bytes(path))
        plan = found["plan"]
        plan["reasons"] = tuple(Reason(**one) for one in plan["reasons"])
        found["plan"] = Plan(**plan)
        found["sources"] = tuple(JobSource(**one) for one in found["sources"])
        found["units"] = tuple((first, end) for first, end in found["units"])
        return Job(**found)
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(path) from error


def _units(sizes: Sequence[int], unit_bytes: int) -> tuple[tuple[int, int], ...]:
    """Neighbours together until they are as large as that."""
    units, first, held = [], 0, 0
    for number, size in enumerate(sizes):
        held += size
        if held >= unit_bytes or number + 1 == len(sizes):
            units.append((first, number + 1))
            first, held = number + 1, 0
    return tuple(units)


def _shards(sources: Sequence[Segment], total_bytes: int, map_bytes: int) -> int:
    """So many that a shard's map holds its keys, were all of them different; told from a few chunks. Too few
    only mean that a shard is passed over more than once.
    """
    from lastword.kernels import table as fields
    from lastword.kernels.arena import FIXED_BYTES
    from lastword.records.columns import decode_columns
    from lastword.resolve.offset_map import MOST_LOAD, SLOT_BYTES
    from lastword.resolve.shards import MOST_SHARDS

    taken = records = key_bytes = 0
    for source in {0: sources[0], 1: sources[len(sources) // 2], 2: sources[-1]}.values():
        with suppress(LastwordError):  # damage is for the steps to tell
            chunk = next(iter(source.chunk_reader(chunk_bytes=1 << 18)), None)
            if chunk is not None:
                lengths = decode_columns(chunk).key_length
                taken += int(chunk.table[:, fields.SIZE].sum())
                records += lengths.size
                key_bytes += int(lengths.clip(0).sum())
    entry = key_bytes / max(records, 1) + FIXED_BYTES + SLOT_BYTES / MOST_LOAD
    by_memory = total_bytes * records / max(taken, 1) * entry / (0.8 * map_bytes)
    wanted = max(by_memory, total_bytes / SHARD_BYTES, FEWEST_SHARDS)
    return min(math.ceil(wanted), MOST_SHARDS)


# ---------------------------------------------------------------- what is there


def units_left(files: Files, job: Job) -> list[int]:
    return _left(files, job, "unit", len(job.units))


def shards_left(files: Files, job: Job) -> list[int]:
    return _left(files, job, "shard", job.shards)


def groups_left(files: Files, job: Job) -> list[int]:
    """Largest first."""
    groups = _groups(files, job) or ()
    left = [i for i in range(len(groups)) if _built(files, job, i) is None]
    return sorted(left, key=lambda i: -groups[i].size_bytes)


def done_bytes(files: Files, job: Job) -> tuple[int, int]:
    """(done, in all): every byte of the log counts once to extract, once to resolve, and once more where it
    is rewritten.
    """
    there = set(files.listdir(job.scratch))
    done = sum(
        sum(one.size_bytes for one in job.sources[first:end])
        for number, (first, end) in enumerate(job.units)
        if f"unit-{number:05d}.npz" in there
    )
    resolved = sum(f"shard-{number:05d}.npz" in there for number in range(job.shards))
    done += job.source_bytes * resolved // job.shards
    groups = _groups(files, job)
    total = 3 * job.source_bytes
    if groups is not None:
        total = 2 * job.source_bytes + sum(one.size_bytes for one in groups)
        done += sum(one.size_bytes for i, one in enumerate(groups) if f"built-{i:05d}.json" in there)
    return min(done, total), total


def _left(files: Files, job: Job, step: str, count: int) -> list[int]:
    there = set(files.listdir(job.scratch))
    return [number for number in range(count) if f"{step}-{number:05d}.npz" not in there]


# ---------------------------------------------------------------- steps


def extract(files: Files, directory: str, number: int) -> TransactionMet | None:
    """Unit `number`. Raises what `resolve` raises; damage sets the partition aside."""
    from lastword.resolve import shards

    job = _loaded(files, directory)
    first, end = job.units[number]
    sources = Sources(files, job)[first:end]
    following = job.sources[end].base_offset if end < len(job.sources) else None
    decided = _transactions(files, job)
    path = f"{job.scratch}/unit-{number:05d}"
    aside = _aside(f"{path}.data")
    try:
        with (
            _on_damage(files, job),
            files.open_append(aside, create=True, exclusive=True) as out,
        ):
            parts = shards.extract(
                sources,
                following,
                out,
                shards=job.shards,
                salt=bytes.fromhex(job.salt),
                rules=_rules(job),
                fates=_Unknown() if decided is None else decided[0],
                old_due=[one.old_due for one in job.sources[first:end]],
            )
        files.rename(aside, f"{path}.data")
    except _Met as met:
        files.unlink(aside, missing_ok=True)
        return TransactionMet(met.offset)
    except BaseException:
        with suppress(LastwordError):
            files.unlink(aside, missing_ok=True)
        raise
    _write_arrays(files, f"{path}.npz", parts)
    return None


def look(files: Files, directory: str, first_offset: int) -> None:
    """What became of every transaction, from the first batch of any on."""
    job = _loaded(files, directory)
    view = PartitionView.load(files, job.partition)
    walk = Transactions(view.segments, job.plan.limit, job.plan.now_ms)
    with _on_damage(files, job):
        decisions, found = walk.look(first_offset), walk.found
    known = {
        "aborted": [tuple(one) for one in decisions.aborted],
        "undecided": list(decisions.undecided.items()),
        "due": sorted(found.due),
        "unclocked": sorted(found.unclocked),
        "below": [tuple(one) for one in found.aborted],
        "segments": sorted(found.segments),
    }
    _write_whole(files, f"{job.scratch}/{_TRANSACTIONS}", json.dumps(known).encode())


def resolve_shard(files: Files, directory: str, number: int) -> None:
    """Shard `number` of all units."""
    from lastword.resolve import shards

    job = _loaded(files, directory)
    extents = [
        shards.Extent(one.base_offset, one.next_offset, one.size_bytes, _log_file("", one.base_offset))
        for one in job.sources
    ]
    units = [files.open_read(f"{job.scratch}/unit-{i:05d}.data") for i in range(len(job.units))]
    try:
        found = shards.resolve_shard(
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
    edges = _edges(found.dead, job)
    checks = [crc32c(found.dead[a:b].tobytes()) for a, b in pairwise(edges)]
    _write_whole(files, f"{path}.dead", found.dead.tobytes())
    numbers = (found.distinct_keys, found.passes, found.probes, found.map_bytes_used)
    _write_arrays(
        files,
        f"{path}.npz",
        {
            "stats": found.stats,
            "digests": found.digests,
            "edges": np.array(edges, np.int64),
            "checks": np.array(checks, np.int64),
            "numbers": np.array(numbers, np.int64),
            "ratios": np.array([found.map_used_ratio, found.seconds]),
        },
    )


def merge(files: Files, job: Job) -> None:
    """Facts of all segments, and the groups to rewrite. Done before: done again, to the same end."""
    from lastword.resolve import shards

    units = [_read_arrays(files, f"{job.scratch}/unit-{i:05d}.npz") for i in range(len(job.units))]
    tally = shards.merged_tally(units, [_shard(files, job, i) for i in range(job.shards)])
    _write_arrays(files, f"{job.scratch}/{_FACTS}", tally.to_parts())
    groups = group(tally.facts(), limits_of(job.plan), _found(files, job).segments)
    _write_whole(files, f"{job.scratch}/{_GROUPS}", json.dumps([asdict(one) for one in groups]).encode())


def rewrite_group(files: Files, directory: str, number: int, now_ms: int, clock: Clock) -> None:
    """Group `number`: rewritten and certified, or only counted. Tombstones that are met for the first time
    may go `delete.retention.ms` after `now_ms`.
    """
    job = _loaded(files, directory)
    one = (_groups(files, job) or ())[number]
    plan = replace(job.plan, now_ms=now_ms)
    resolution = _resolution(files, job, one)
    found = _found(files, job)
    sources = Sources(files, job)
    path = f"{job.scratch}/built-{number:05d}.json"
    if not job.rewrites:
        from lastword.cleaner.rewrite import rewrite

        counted = rewrite(one, sources, resolution, plan, None, lambda _: None, found)
        _write_whole(files, path, json.dumps({"size_bytes": counted.size_bytes}).encode())
        return
    steps = Steps("clean", one.size_bytes, clock, None, None)
    outputs = _aside(f"{job.directory}/group-{number:05d}")
    files.mkdir(outputs)
    rewritten = rewrite_each(
        files,
        job.partition,
        sources,
        plan,
        resolution,
        found,
        [one],
        steps,
        job.due_below,
        staged_in=outputs,
    )
    for built in rewritten:
        output = built.output
        facts = files.stat(_log_file(output.directory, output.base_offset))
        known = {
            "group": asdict(built),
            "inode": -1 if facts is None else facts.inode,
            "starts_clocks": _starts_clocks(resolution.segments, one, found),
        }
        _write_whole(files, path, json.dumps(known).encode())


def _starts_clocks(facts: Sequence[SegmentFacts], one: Group, found: Found) -> bool:
    inside = range(one.first, one.last + 1)
    return any(facts[i].tombstones_without_horizon or i in found.segments for i in inside)


def go_on(files: Files, job: Job) -> None:
    """Before the steps of a job that was left behind: outputs that are gone, or gave tombstones a time to
    live that counts from back then, are made again.
    """
    done = published(files, job)
    for number, _ in enumerate(_groups(files, job) or ()):
        known = _known(files, job, number)
        if known is not None and number not in done:
            there = files.exists(known["group"]["output"]["directory"])
            if known["starts_clocks"] or not there:
                files.unlink(f"{job.scratch}/built-{number:05d}.json", missing_ok=True)


def published(files: Files, job: Job) -> dict[int, int]:
    """Groups whose outputs have been swapped in already: number to base offset."""
    found = {}
    for number, _ in enumerate(_groups(files, job) or ()):
        known = _known(files, job, number)
        if known is not None:
            output = known["group"]["output"]
            facts = files.stat(_log_file(job.partition, output["base_offset"]))
            if facts is not None and (facts.size, facts.inode) == (output["size_bytes"], known["inode"]):
                found[number] = output["base_offset"]
    return found


def built_round(files: Files, job: Job, seconds: float) -> BuiltRound:
    """All that was built, for `cleaner.publish`. `seconds`: what mapping took."""
    groups = _groups(files, job) or ()
    mapped = account.mapped(job.plan, _resolution(files, job, None, seconds), _found(files, job))
    found = [_built(files, job, number) for number in range(len(groups))]
    return BuiltRound(job.plan, mapped, tuple(one for one in found if one is not None))


def planned(files: Files, job: Job) -> tuple[Resolution, int, int, int]:
    """Of a job that only counts: (resolution, segments, source bytes, written bytes)."""
    groups = _groups(files, job) or ()
    sizes = [_known(files, job, number) for number in range(len(groups))]
    written = sum(one["size_bytes"] for one in sizes if one is not None)
    return (
        _resolution(files, job, None),
        sum(one.count for one in groups),
        sum(one.size_bytes for one in groups),
        written,
    )


class Sources(Sequence[Segment]):
    """The segments of a job, loaded when they are asked for. BusyError: it is another file now."""

    def __init__(self, files: Files, job: Job) -> None:
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
            found = Segment.load(self._files, self._job.partition, wanted.base_offset)
            if (found.inode, found.size) != (wanted.inode, wanted.size_bytes):
                raise BusyError(f"{found.file} changed while it was cleaned", remedy="clean again")
            found.next_offset = wanted.next_offset
            self._loaded[number] = found
        return self._loaded[number]


# ---------------------------------------------------------------- transactions


class _Met(Exception):
    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


class _Unknown:
    """Fates while nobody has looked: the first question ends the step."""

    def fates(
        self,
        attributes: NDArray[np.int64],
        producer_ids: NDArray[np.int64],
        base_offsets: NDArray[np.int64],
        last_offsets: NDArray[np.int64],
    ) -> NDArray[np.uint8]:
        raise _Met(int(base_offsets[0]))


def _transactions(files: Files, job: Job) -> tuple[Decisions, Found] | None:
    path = f"{job.scratch}/{_TRANSACTIONS}"
    if not files.exists(path):
        return None
    known = _read_json(files, path)
    aborted, below_limit = (
        tuple(AbortedTransaction(*one) for one in known[name]) for name in ("aborted", "below")
    )
    sets = (frozenset(known["due"]), frozenset(known["unclocked"]))
    found = Found(*sets, below_limit, frozenset(known["segments"]))
    return Decisions(aborted, undecided=dict(known["undecided"])), found


def _found(files: Files, job: Job) -> Found:
    known = _transactions(files, job)
    return NOTHING if known is None else known[1]


# ---------------------------------------------------------------- files of a job


@lru_cache(maxsize=4)
def _loaded(files: Files, directory: str) -> Job:
    """A job never changes once it has its name."""
    return load(files, directory)


def _rules(job: Job) -> Any:
    from lastword.resolve.rules import Rules

    return Rules(decided=True, keyless_go=True, now_ms=job.plan.now_ms, due_below=job.due_below)


def _on_damage(files: Files, job: Job) -> Any:
    plan = job.plan
    if not job.rewrites:
        return nullcontext()
    return quarantine.on_damage(files, job.partition, f"{plan.topic}-{plan.partition}", plan.now_ms)


def _edges(dead: NDArray[np.int64], job: Job) -> list[int]:
    """Where each segment's dead offsets begin, and where the last one's end."""
    bases = np.array([one.base_offset for one in job.sources], np.int64)
    return [*np.searchsorted(dead, bases).tolist(), dead.size]


def _shard(files: Files, job: Job, number: int) -> Any:
    from lastword.resolve.shards import ShardFound

    parts = _read_arrays(files, f"{job.scratch}/shard-{number:05d}.npz")
    keys, passes, probes, used = parts["numbers"].tolist()
    ratio, seconds = parts["ratios"].tolist()
    nothing = np.empty(0, np.int64)
    return ShardFound(nothing, parts["stats"], parts["digests"], keys, passes, probes, used, ratio, seconds)


def _resolution(files: Files, job: Job, one: Group | None, seconds: float = 0.0) -> Resolution:
    """With the bits of a group's segments, or with none."""
    from lastword.resolve.shards import bits_of, merged_resolution
    from lastword.resolve.tally import Tally

    facts = Tally.from_parts(_read_arrays(files, f"{job.scratch}/{_FACTS}")).facts()
    shards = []
    dead = []
    for number in range(job.shards):
        if one is None:
            shards.append(_shard(files, job, number))
        else:
            dead.append(_dead(files, job, number, one.first, one.last + 1))
    first, end = (0, 0) if one is None else (facts[one.first].base_offset, _end(facts, one))
    return merged_resolution(
        facts,
        bits_of(dead, first, end),
        shards,
        map_bytes=job.plan.map_bytes,
        salt=bytes.fromhex(job.salt),
        seconds=seconds,
    )


def _end(facts: Sequence[SegmentFacts], one: Group) -> int:
    return max(facts[i].next_offset for i in range(one.first, one.last + 1))


def _dead(files: Files, job: Job, number: int, first: int, end: int) -> NDArray[np.int64]:
    """A shard's dead offsets in segments [first, end)."""
    path = f"{job.scratch}/shard-{number:05d}"
    parts = _read_arrays(files, f"{path}.npz")
    edges, checks = parts["edges"].tolist(), parts["checks"].tolist()
    start = edges[first]
    with files.open_read(f"{path}.dead") as handle:
        data = handle.pread(8 * (edges[end] - start), 8 * start)
    for i in range(first, end):
        if crc32c(data[8 * (edges[i] - start) : 8 * (edges[i + 1] - start)]) != checks[i]:
            raise _unreadable(f"{path}.dead")
    return np.frombuffer(data, np.int64)


def _groups(files: Files, job: Job) -> tuple[Group, ...] | None:
    path = f"{job.scratch}/{_GROUPS}"
    if not files.exists(path):
        return None
    return tuple(Group(**one) for one in _read_json(files, path))


def _known(files: Files, job: Job, number: int) -> dict[str, Any] | None:
    path = f"{job.scratch}/built-{number:05d}.json"
    return _read_json(files, path) if files.exists(path) else None


def _built(files: Files, job: Job, number: int) -> Any:
    """The `BuiltGroup`; of a job that only counts, whatever is known of it."""
    known = _known(files, job, number)
    return known if known is None or not job.rewrites else _built_of(known)


def _built_of(known: dict[str, Any]) -> BuiltGroup:
    fields = dict(known["group"])
    fields["sources"] = tuple(SourceFacts(**one) for one in fields["sources"])
    fields["output"] = OutputFacts(**fields["output"])
    fields["removed"] = Removed(**fields["removed"])
    fields["tombstones"] = TombstonesWaiting(**fields["tombstones"])
    return BuiltGroup(**fields)


def _log_file(partition: str, base_offset: int) -> str:
    return os.path.join(partition, names.segment_file(base_offset, names.LOG))


def _aside(path: str) -> str:
    return f"{path}.{os.urandom(6).hex()}"


def _write_whole(files: Files, path: str, data: bytes) -> None:
    """Not synced: after a power cut a job may have to begin again, and its checksums tell."""
    aside = _aside(path)
    with files.open_append(aside, create=True, exclusive=True) as out:
        out.append(data)
    files.rename(aside, path)


def _write_arrays(files: Files, path: str, parts: dict[str, Any]) -> None:
    buffer = BytesIO()
    np.savez(buffer, **parts)
    _write_whole(files, path, buffer.getvalue())


def _read_arrays(files: Files, path: str) -> dict[str, Any]:
    """Its own checksums are looked at."""
    import zipfile

    try:
        with np.load(BytesIO(files.read_bytes(path)), allow_pickle=False) as found:
            return dict(found)
    except (ValueError, zipfile.BadZipFile, EOFError, KeyError) as error:
        raise _unreadable(path) from error


def _read_json(files: Files, path: str) -> Any:
    try:
        return json.loads(files.read_bytes(path))
    except ValueError as error:
        raise _unreadable(path) from error


def _unreadable(path: str) -> CorruptFileError:
    return CorruptFileError(
        "a scratch file of a cleaning is not as it was written",
        remedy="clean again: it starts anew",
        file=path,
    )
