"""Build a group into one certified output, in a private directory: write, certify, make durable.

A second thread helps from `LARGE_BYTES` on. The caller's thread repacks survivors, group by group, and swaps
the outputs in. Reading, verifying and decompressing the sources, and compressing, appending and summing up
the output, are done by whichever thread is free (`records.pipeline`). A written output is synced by the
second thread while the caller writes the next.

    caller   write a                         write b                    swap a   sync b   swap b
    second   read, append and sum up for a   sync a, then the same for b
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Executor, Future, wait
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lastword.cleaner.engine import report
from lastword.cleaner.engine.certificate import Certified, Rewritten, certify
from lastword.cleaner.engine.output import OutputSegment
from lastword.cleaner.engine.report import BuiltGroup, OutputFacts, SourceFacts
from lastword.cleaner.engine.rewrite import last_of_producers, rewrite
from lastword.cleaner.engine.transactions import index_entries
from lastword.cleaner.policy import quarantine
from lastword.cleaner.policy.groups import SegmentGroup
from lastword.errors import DiskFullError, LastwordError
from lastword.records.pipeline import second_thread

if TYPE_CHECKING:
    from lastword.cleaner.engine.cleaning import RewriteInput
    from lastword.resolve import Resolution
    from lastword.segment.segment import Segment


def rewrite_each(rewrite: RewriteInput, staged_in: str | None = None) -> Generator[BuiltGroup]:
    """Rewrite and certify one group after another; to be closed. A group that fails leaves nothing behind.

    Args:
        rewrite: The scan and its groups.
        staged_in: Where outputs are made, if not in the partition's private directory.
    """
    building = _Building(rewrite, staged_in)
    scan = rewrite.scan
    with second_thread("lastword-rewrite", scan.threads) as second:
        yield from built_in_order(building, scan.groups, second, overlap=scan.overlap)


@dataclass(frozen=True, slots=True)
class _Written:
    """An output that is not certified yet, and the seconds that it took."""

    group: SegmentGroup
    output: OutputSegment
    rewritten: Rewritten
    seconds: float


def built_group(
    sources: Sequence[Segment],
    group: SegmentGroup,
    directory: str,
    rewritten: Rewritten,
    certified: Certified,
    resolution: Resolution,
    seconds: float,
) -> BuiltGroup:
    """Return the facts of one certified output, complete in `directory`."""
    facts = resolution.segments[group.first : group.last + 1]
    chosen = sources[group.first : group.last + 1]
    return BuiltGroup(
        sources=tuple(
            SourceFacts(choice.file, choice.base_offset, choice.size, choice.id.number) for choice in chosen
        ),
        output=OutputFacts(directory, group.base_offset, certified.next_offset, rewritten.size_bytes),
        records_read=sum(segment.records for segment in facts),
        records_kept=certified.records,
        removed=report.removable(facts, rewritten.markers),
        key_offset_digest=certified.key_offset_digest,
        content_digest=certified.content_digest,
        tombstones=rewritten.tombstones,
        read_bytes=group.size_bytes,
        kept_bytes=rewritten.kept_bytes,
        seconds=seconds,
    )


class _Building:
    """The state that all groups of a cleaning share, and the two steps of building one.

    A step that fails leaves nothing behind. `second`: a thread that helps.
    """

    def __init__(self, rewrite: RewriteInput, staged_in: str | None) -> None:
        self._rewrite = rewrite
        self._plan = rewrite.plan
        self._scan = rewrite.scan
        self._store = rewrite.store
        self._steps = rewrite.steps
        self._staged_in = staged_in
        self._producers = last_of_producers(rewrite.scan.resolution.segments)

    def write(self, group: SegmentGroup, second: Executor | None) -> _Written:
        """Write the output of a group."""
        started = self._steps.clock.monotonic()
        self._check_room(group)
        location, stored = self._store.create_output(group.base_offset, self._staged_in)
        scan = self._scan
        try:
            with self._on_damage():
                output = OutputSegment(location, self._rewrite.context.paced(stored), self._plan)
                rewritten = rewrite(
                    group,
                    scan.sources,
                    scan.resolution,
                    self._plan,
                    output,
                    self._steps.rewritten,
                    scan.transactions,
                    second,
                    self._producers,
                    scan.survivors,
                )
        except BaseException:
            self._throw_away(location)
            raise
        return _Written(group, output, rewritten, self._steps.clock.monotonic() - started)

    def complete(self, written: _Written) -> BuiltGroup:
        """Certify an output, write its indexes and make it durable."""
        started = self._steps.clock.monotonic()
        group, output, rewritten = written.group, written.output, written.rewritten
        sources, resolution = self._scan.sources, self._scan.resolution
        taken = sources[group.first : group.last + 1]
        try:
            self._steps.check()
            with self._on_damage():
                certified = certify(output, rewritten, group, sources, resolution, by_hash=self._scan.by_hash)
            entries = index_entries(self._scan.transactions, taken, group.base_offset, group.next_offset)
            output.finish(taken[-1].mtime_now_ms(), entries)
            dropped = self._rewrite.highest_due(group)
        except BaseException:
            self._throw_away(output.location)
            raise
        seconds = written.seconds + self._steps.clock.monotonic() - started
        built = built_group(sources, group, output.location, rewritten, certified, resolution, seconds)
        return replace(built, dropped_tombstone=dropped)

    def discard(self, unwanted: _Written) -> None:
        """Remove an output."""
        self._store.discard(unwanted.output.location)

    def give_up(self) -> None:
        """End running steps soon."""
        self._steps.give_up()

    def _throw_away(self, location: str) -> None:
        with suppress(LastwordError):  # the first error is the one to report
            self._store.discard(location)

    def _on_damage(self) -> AbstractContextManager[None]:
        return quarantine.on_damage(self._rewrite.context.files, self._store.directory, self._plan)

    def _check_room(self, group: SegmentGroup) -> None:
        """Refuse to write an output that does not fit the drive.

        The size is an estimate. If it is too low, the write fails without damage: appends are whole or
        nothing.
        """
        directory = self._store.directory
        needed, free = group.live_bytes, self._store.files.free_bytes(directory)
        if needed > free:
            name = f"{self._plan.topic}-{self._plan.partition}"
            raise DiskFullError.of(name, os.path.dirname(directory), needed, free, directory)


LARGE_BYTES = 32 << 20
"""A second thread is started from here on: a smaller cleaning takes a fraction of a second. Compressed bytes
take several times as long as uncompressed ones."""


def threads_for(source_bytes: int, threads: int) -> int:
    """Return how many of `threads` a cleaning uses that reads this many bytes.

    A third thread would be idle while the map takes its chunks one after another.
    """
    return min(threads, 2) if source_bytes >= LARGE_BYTES else 1


def built_in_order(
    building: _Building, groups: Sequence[SegmentGroup], second: Executor | None, *, overlap: bool = True
) -> Generator[BuiltGroup]:
    """Yield each group, built on demand; to be closed. Outputs that were not taken are removed.

    With a second thread and `overlap` the next output is written before a group is yielded, so the drive
    holds one more.
    """
    waiting: deque[tuple[_Written, Future[BuiltGroup] | None]] = deque()

    def oldest() -> BuiltGroup:
        written, completed = waiting.popleft()
        return building.complete(written) if completed is None else completed.result()

    try:
        for number, group in enumerate(groups, 1):
            try:
                written = building.write(group, second)
            except BaseException:
                if waiting:  # the previous group is valid
                    yield oldest()
                raise
            if second is None or not overlap or number == len(groups):
                waiting.append((written, None))
            else:
                waiting.append((written, second.submit(building.complete, written)))
            if len(waiting) > 1:
                yield oldest()
            if waiting[0][1] is None:
                yield oldest()
    finally:
        if waiting:
            building.give_up()
        for written, completed in waiting:
            if completed is not None and not completed.cancel():
                wait([completed])
            with suppress(LastwordError):  # the first error is the one to report
                building.discard(written)
