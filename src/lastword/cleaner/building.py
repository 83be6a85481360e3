"""One group into one certified output, in a private directory: written, read back, made durable."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace

from lastword.cleaner import account, leased, quarantine, staging
from lastword.cleaner.ahead import built_in_order
from lastword.cleaner.built import BuiltGroup
from lastword.cleaner.certificate import certify
from lastword.cleaner.groups import Group
from lastword.cleaner.output import Output
from lastword.cleaner.plan import Plan
from lastword.cleaner.rewrite import Rewritten, rewrite
from lastword.cleaner.steps import Steps
from lastword.cleaner.transactions import Found, index_entries
from lastword.errors import DiskFullError, LastwordError
from lastword.files import Files
from lastword.records.lanes import second_thread
from lastword.resolve import Resolution
from lastword.segment.segment import Segment


def rewrite_each(
    files: Files,
    directory: str,
    sources: Sequence[Segment],
    plan: Plan,
    resolution: Resolution,
    transactions: Found,
    groups: Sequence[Group],
    steps: Steps,
    due_below: int,
    *,
    staged_in: str | None = None,
    threads: int = 1,
    overlap: bool = True,
) -> Generator[BuiltGroup]:
    """Rewrite and certify one group after another; one that fails leaves nothing behind. To be closed.

    staged_in  where outputs are made, if not in the partition's own place for them
    threads    2: another one helps; `overlap`: and a group may be begun before the one before it is published
    """
    building = _Building(
        files, directory, sources, plan, resolution, transactions, steps, due_below, staged_in or directory
    )
    with second_thread("lastword-rewrite", threads) as second:
        yield from built_in_order(building, groups, second, overlap=overlap)


@contextmanager
def beside(second: Executor | None, work: Callable[[], None]) -> Iterator[None]:
    """`work` is done by the second thread, if there is one, while the caller does what is in the context."""
    done = second.submit(work) if second is not None else None
    try:
        yield
    finally:
        if done is not None:
            wait([done])
    if done is not None:
        done.result()


@dataclass(frozen=True, slots=True)
class _Written:
    """An output that is not certified yet. `seconds`: that it took."""

    group: Group
    output: Output
    rewritten: Rewritten
    seconds: float


@dataclass(frozen=True, slots=True)
class _Building:
    """What the groups of a round have in common, and the two steps of building one."""

    files: Files
    directory: str
    sources: Sequence[Segment]
    plan: Plan
    resolution: Resolution
    transactions: Found
    steps: Steps
    due_below: int
    staged_in: str

    def write(self, group: Group, second: Executor | None) -> _Written:
        started = self.steps.clock.monotonic()
        self._check_room(group)
        staged = staging.make(self.files, self.staged_in, group.base_offset)
        try:
            with self._on_damage():
                output = Output(self.files, staged, group.base_offset, self.plan)
                rewritten = rewrite(
                    group,
                    self.sources,
                    self.resolution,
                    self.plan,
                    output,
                    self.steps.rewritten,
                    self.transactions,
                    second,
                )
        except BaseException:
            self._throw_away(staged)
            raise
        return _Written(group, output, rewritten, self.steps.clock.monotonic() - started)

    def complete(self, written: _Written, second: Executor | None) -> BuiltGroup:
        started = self.steps.clock.monotonic()
        group, output, rewritten = written.group, written.output, written.rewritten
        taken = self.sources[group.first : group.last + 1]
        try:
            with self._on_damage(), beside(second, output.sync):
                certified = certify(
                    output, rewritten, group, self.sources, self.resolution, self.steps.check, second
                )
            entries = index_entries(self.transactions, taken, group.base_offset, group.next_offset)
            output.finish(taken[-1].mtime_now_ms(), entries)
            facts = self.resolution.segments[group.first : group.last + 1]
            dropped = leased.highest_due(
                taken, facts, self.resolution.dead, now_ms=self.plan.now_ms, due_below=self.due_below
            )
        except BaseException:
            self._throw_away(output.directory)
            raise
        seconds = written.seconds + self.steps.clock.monotonic() - started
        built = account.built(
            self.sources, group, output.directory, rewritten, certified, self.resolution, seconds
        )
        return replace(built, dropped_tombstone=dropped)

    def discard(self, unwanted: _Written) -> None:
        staging.discard(self.files, unwanted.output.directory)

    def give_up(self) -> None:
        self.steps.give_up()

    def _throw_away(self, staged: str) -> None:
        with suppress(LastwordError):  # the first error is the one to tell
            staging.discard(self.files, staged)

    def _on_damage(self) -> AbstractContextManager[None]:
        name = f"{self.plan.topic}-{self.plan.partition}"
        return quarantine.on_damage(self.files, self.directory, name, self.plan.now_ms)

    def _check_room(self, group: Group) -> None:
        """Refuse before writing what will not fit. A guess that is too low still ends well: appends are whole
        or nothing.
        """
        needed, free = group.live_bytes, self.files.free_bytes(self.directory)
        if needed > free:
            name = f"{self.plan.topic}-{self.plan.partition}"
            raise DiskFullError.of(name, os.path.dirname(self.directory), needed, free, self.directory)
