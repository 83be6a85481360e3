"""A cleaning in many steps as files: a description of the work, and the results of the steps.

A job is `<partition>/lastword/sharded-<token>/`. The files of its steps are there too, or in a directory of
that name in another place that all tasks see; outputs are always on the log's own drive. In a bucket each
task uploads its files, and they are committed to the log. `job.json` describes
the work and never changes; each finished step has left a file with its number (`sharded.py`). A process that
resumes a job lists the files. Nothing in a job is part of the log.

`cleaner.job_files` has the formats of the files. The next cleaning discards a job with a damaged file, and
starts a new one.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from lastword.cleaner.engine.cleaning import below
from lastword.cleaner.engine.report import BuiltGroup, OutputFacts, Removed, SourceFacts, TombstonesWaiting
from lastword.cleaner.job_files import read_json, unreadable, write_json
from lastword.cleaner.policy.groups import SegmentGroup
from lastword.cleaner.policy.plan import Plan, Reason
from lastword.clock import Clock
from lastword.errors import LastwordError
from lastword.files import Files
from lastword.partition import leases
from lastword.partition.directory_segments import DirectorySegments
from lastword.segment import names
from lastword.segment.segment import Segment
from lastword.segment.stored import SegmentId
from lastword.values import Value

MAX_AGE_MS = 24 * 3_600_000
"""Older jobs are not resumed; their files are removed."""
UNIT_BYTES = 1 << 30
SMALLEST_UNIT_BYTES = 32 << 20
SHARD_BYTES = 512 << 20  # of the log, for one shard at most
FEWEST_SHARDS = 8
_UNITS = 64
JOB = "job.json"
GROUPS = "groups.json"


@dataclass(frozen=True, slots=True)
class JobSource(Value):
    """A segment as it was when the job began."""

    base_offset: int
    next_offset: int
    size_bytes: int
    inode: int
    old_due: bool

    @property
    def id(self) -> SegmentId:
        """Return the identity of the file."""
        return SegmentId(self.inode, self.size_bytes)


@dataclass(frozen=True, slots=True)
class ShardedJob(Value):
    """The input of every step.

    Attributes:
        directory: Directory of the job.
        scratch: Directory of the files of its steps.
        partition: Directory of the log.
        salt: Salt of the maps, hexadecimal.
        due_below: Tombstones from there on stay (`leases.due_below`).
        units: (first, end) as indexes of `sources`.
        shards: Number of parts of the key map.
        rewrites: False: outputs are only counted, for a plan.
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
        """Return the bytes of all sources."""
        return sum(segment.size_bytes for segment in self.sources)


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
) -> ShardedJob:
    """Create a job for `plan`, from `prepare`; without `rewrites`, from `choose`.

    `scratch`: directory for the files of the steps; None: the partition's own. `salt`, `shards` and
    `unit_bytes` are for tests.
    """
    from lastword.cleaner.engine.liveness import old_due  # loads the kernels

    token = os.urandom(8).hex()
    sources = below(segments, plan.limit)
    total_bytes = sum(segment.size for segment in sources)
    if unit_bytes is None:
        unit_bytes = min(max(total_bytes // _UNITS, SMALLEST_UNIT_BYTES), UNIT_BYTES)
    private = f"{partition}/{names.PRIVATE}"
    if not files.exists(private):
        files.mkdir(private)
    directory = f"{private}/{names.JOB_PREFIX if rewrites else names.PLAN_PREFIX}{token}"
    files.mkdir(directory)
    job = ShardedJob(
        directory=directory,
        scratch=directory,
        partition=partition,
        plan=plan,
        salt=(os.urandom(16) if salt is None else salt).hex(),
        due_below=leases.due_below(files, partition, segments[-1].next_offset, plan.now_ms),
        sources=tuple(
            JobSource(segment.base_offset, segment.next_offset, segment.size, segment.id.number, due)
            for segment, due in zip(sources, old_due(sources, plan), strict=True)
        ),
        units=_units([segment.size for segment in sources], unit_bytes),
        shards=shards or _shards(sources, total_bytes, plan.map_bytes),
        rewrites=rewrites,
    )
    if scratch is not None:
        job = replace(job, scratch=f"{scratch.rstrip('/')}/lastword-{names.JOB_PREFIX}{token}")
        files.mkdir(job.scratch)
    write_json(files, f"{directory}/{JOB}", job.to_dict())
    return job


def unfinished(files: Files, partition: str, clock: Clock) -> ShardedJob | None:
    """Return the job that a killed process left behind, if it can be resumed; remove the others.

    To be called by the only cleaning of a partition. A job can be resumed while it is young, its segments are
    unchanged (or replaced by its own outputs), and no lease has come below the tombstones that it drops.
    """
    private = f"{partition}/{names.PRIVATE}"
    if not files.exists(private):
        return None
    kept = None
    for name in files.listdir(private):
        path = f"{private}/{name}"
        if name.startswith((names.JOB_PREFIX, names.PLAN_PREFIX)):
            facts = files.stat(f"{path}/{JOB}")
            old = facts is not None and clock.now_ms() - facts.mtime_ms > MAX_AGE_MS
            if name.startswith(names.PLAN_PREFIX) and not old:
                continue  # another process may be planning, without a lock
            job = None if facts is None or old else _sound(files, path, partition, clock)
            if job is None or kept is not None:
                remove(files, path)
            else:
                kept = job
    return kept


def _sound(files: Files, path: str, partition: str, clock: Clock) -> ShardedJob | None:
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
    try:
        groups = groups_of(files, job) or ()
        gone = {i for n in published(files, job) for i in range(groups[n].first, groups[n].last + 1)}
    except LastwordError:  # a damaged file of a step: the job starts again
        return None
    for number, source in enumerate(job.sources):
        facts = DirectorySegments(files, partition).stored(source.base_offset).facts()
        same = facts is not None and facts.id == source.id
        if not same and number not in gone:
            return None
    return job


def go_on(files: Files, job: ShardedJob) -> None:
    """Prepare to resume a job.

    Outputs that are gone, or have a delete horizon that counts from the time before the kill, are made again.
    """
    done = published(files, job)
    for number, _ in enumerate(groups_of(files, job) or ()):
        note = load_note(files, job, number)
        if note is not None and number not in done:
            there = files.exists(note["group"]["output"]["directory"])
            if note["starts_clocks"] or not there:
                files.unlink(f"{job.scratch}/built-{number:05d}.json", missing_ok=True)


def remove(files: Files, directory: str) -> None:
    """End a job: remove its files, in both places.

    A second attempt of a task that is about to be killed may still write there; its files are removed the
    next time.
    """
    with suppress(LastwordError):
        scratch = load(files, directory).scratch
        if scratch != directory and files.exists(scratch):
            files.remove_tree(scratch)
    with suppress(LastwordError):
        if files.exists(directory):
            files.remove_tree(directory)


def load(files: Files, directory: str) -> ShardedJob:
    """Return the description of a job.

    Raises:
        CorruptFileError: It cannot be read.
    """
    path = f"{directory}/{JOB}"
    try:
        fields = read_json(files, path)
        plan = fields["plan"]
        plan["reasons"] = tuple(Reason(**reason) for reason in plan["reasons"])
        fields["plan"] = Plan(**plan)
        fields["sources"] = tuple(JobSource(**segment) for segment in fields["sources"])
        fields["units"] = tuple((first, end) for first, end in fields["units"])
        return ShardedJob(**fields)
    except (ValueError, KeyError, TypeError) as error:
        raise unreadable(path) from error


def _units(sizes: Sequence[int], unit_bytes: int) -> tuple[tuple[int, int], ...]:
    """Return neighbouring sources as units of about this size."""
    units, first, held = [], 0, 0
    for number, size in enumerate(sizes):
        held += size
        if held >= unit_bytes or number + 1 == len(sizes):
            units.append((first, number + 1))
            first, held = number + 1, 0
    return tuple(units)


def _shards(sources: Sequence[Segment], total_bytes: int, map_bytes: int) -> int:
    """Return a number of shards for which the map holds one shard's keys even if all keys are distinct.

    Estimated from a few chunks. With too few shards, a shard takes more than one pass.
    """
    from lastword.resolve import MapLoad
    from lastword.resolve.shards import MAX_SHARDS

    load = MapLoad.sampled(sources, map_bytes)
    by_memory = load.keys / (0.8 * load.fitting)
    wanted = max(by_memory, total_bytes / SHARD_BYTES, FEWEST_SHARDS)
    return min(math.ceil(wanted), MAX_SHARDS)


# ---------------------------------------------------------------- results


def units_left(files: Files, job: ShardedJob) -> list[int]:
    """Return the units without a result."""
    return _left(files, job, "unit", len(job.units))


def shards_left(files: Files, job: ShardedJob) -> list[int]:
    """Return the shards without a result."""
    return _left(files, job, "shard", job.shards)


def marks_left(files: Files, job: ShardedJob) -> list[int]:
    """Return the units without dead bitmaps."""
    return _left(files, job, "dead", len(job.units))


def groups_left(files: Files, job: ShardedJob) -> list[int]:
    """Return the groups without an output, the largest first."""
    groups = groups_of(files, job) or ()
    left = [i for i in range(len(groups)) if load_note(files, job, i) is None]
    return sorted(left, key=lambda i: -groups[i].size_bytes)


def done_bytes(files: Files, job: ShardedJob) -> tuple[int, int]:
    """Return (done, total) bytes.

    Every byte of the log counts once to extract, once to resolve, and once more if it is rewritten.
    """
    there = set(files.listdir(job.scratch))
    done = sum(
        sum(segment.size_bytes for segment in job.sources[first:end])
        for number, (first, end) in enumerate(job.units)
        if f"unit-{number:05d}.npz" in there
    )
    resolved = sum(f"shard-{number:05d}.npz" in there for number in range(job.shards))
    done += job.source_bytes * resolved // job.shards
    groups = groups_of(files, job)
    total = 3 * job.source_bytes
    if groups is not None:
        total = 2 * job.source_bytes + sum(group.size_bytes for group in groups)
        done += sum(group.size_bytes for i, group in enumerate(groups) if f"built-{i:05d}.json" in there)
    return min(done, total), total


def _left(files: Files, job: ShardedJob, step: str, count: int) -> list[int]:
    there = set(files.listdir(job.scratch))
    return [number for number in range(count) if f"{step}-{number:05d}.npz" not in there]


def groups_of(files: Files, job: ShardedJob) -> tuple[SegmentGroup, ...] | None:
    """Return the groups to rewrite; None before the merge."""
    path = f"{job.scratch}/{GROUPS}"
    if not files.exists(path):
        return None
    return tuple(SegmentGroup(**group) for group in read_json(files, path))


def load_note(files: Files, job: ShardedJob, number: int) -> dict[str, Any] | None:
    """Return the note of a built group; None if it is not built."""
    path = f"{job.scratch}/built-{number:05d}.json"
    return read_json(files, path) if files.exists(path) else None


def built_of(note: dict[str, Any]) -> BuiltGroup:
    """Return the built group of a note."""
    fields = dict(note["group"])
    fields["sources"] = tuple(SourceFacts(**segment) for segment in fields["sources"])
    fields["output"] = OutputFacts(**fields["output"])
    fields["removed"] = Removed(**fields["removed"])
    fields["tombstones"] = TombstonesWaiting(**fields["tombstones"])
    return BuiltGroup(**fields)


def published(files: Files, job: ShardedJob) -> dict[int, int]:
    """Return the groups whose outputs are swapped in already: number to base offset."""
    published_bases = {}
    for number, _ in enumerate(groups_of(files, job) or ()):
        note = load_note(files, job, number)
        if note is not None:
            output = note["group"]["output"]
            facts = DirectorySegments(files, job.partition).stored(output["base_offset"]).facts()
            if facts is not None and facts.id == (note["inode"], output["size_bytes"]):
                published_bases[number] = output["base_offset"]
    return published_bases


def log_file(partition: str, base_offset: int) -> str:
    """Return the path of a segment's .log file."""
    return os.path.join(partition, names.segment_file(base_offset, names.LOG))
