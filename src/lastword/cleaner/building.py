"""One group into one certified output, in a private directory: written, read back, made durable."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Executor, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lastword.cleaner import account, quarantine, staging
from lastword.cleaner.ahead import built_in_order
from lastword.cleaner.built import BuiltGroup
from lastword.cleaner.certificate import certify
from lastword.cleaner.groups import Group
from lastword.cleaner.output import Output
from lastword.cleaner.rewrite import Rewritten, rewrite
from lastword.cleaner.transactions import index_entries
from lastword.errors import DiskFullError, LastwordError
from lastword.records.lanes import second_thread

if TYPE_CHECKING:
    from lastword.cleaner.cleaning import Rewrite


def rewrite_each(rewrite: Rewrite, staged_in: str | None = None) -> Generator[BuiltGroup]:
    """Rewrite and certify one group after another; one that fails leaves nothing behind. To be closed.

    Args:
        staged_in: where outputs are made, if not in the partition's private directory.
    """
    building = _Building(rewrite, staged_in or rewrite.directory)
    scan = rewrite.scan
    with second_thread("lastword-rewrite", scan.threads) as second:
        yield from built_in_order(building, scan.groups, second, overlap=scan.overlap)


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


class _Building:
    """What the groups of a cleaning have in common, and the two steps of building one."""

    def __init__(self, rewrite: Rewrite, staged_in: str) -> None:
        self._rewrite = rewrite
        self._plan = rewrite.plan
        self._scan = rewrite.scan
        self._files = rewrite.context.files
        self._steps = rewrite.steps
        self._staged_in = staged_in

    def write(self, group: Group, second: Executor | None) -> _Written:
        started = self._steps.clock.monotonic()
        self._check_room(group)
        staged = staging.make(self._files, self._staged_in, group.base_offset)
        scan = self._scan
        try:
            with self._on_damage():
                output = Output(self._files, staged, group.base_offset, self._plan)
                rewritten = rewrite(
                    group,
                    scan.sources,
                    scan.resolution,
                    self._plan,
                    output,
                    self._steps.rewritten,
                    scan.transactions,
                    second,
                )
        except BaseException:
            self._throw_away(staged)
            raise
        return _Written(group, output, rewritten, self._steps.clock.monotonic() - started)

    def complete(self, written: _Written, second: Executor | None) -> BuiltGroup:
        started = self._steps.clock.monotonic()
        group, output, rewritten = written.group, written.output, written.rewritten
        sources, resolution = self._scan.sources, self._scan.resolution
        taken = sources[group.first : group.last + 1]
        try:
            with self._on_damage(), beside(second, output.sync):
                certified = certify(output, rewritten, group, sources, resolution, self._steps.check, second)
            entries = index_entries(self._scan.transactions, taken, group.base_offset, group.next_offset)
            output.finish(taken[-1].mtime_now_ms(), entries)
            dropped = self._rewrite.highest_due(group)
        except BaseException:
            self._throw_away(output.directory)
            raise
        seconds = written.seconds + self._steps.clock.monotonic() - started
        built = account.built(sources, group, output.directory, rewritten, certified, resolution, seconds)
        return replace(built, dropped_tombstone=dropped)

    def discard(self, unwanted: _Written) -> None:
        staging.discard(self._files, unwanted.output.directory)

    def give_up(self) -> None:
        self._steps.give_up()

    def _throw_away(self, staged: str) -> None:
        with suppress(LastwordError):  # the first error is the one to report
            staging.discard(self._files, staged)

    def _on_damage(self) -> AbstractContextManager[None]:
        return quarantine.on_damage(self._files, self._rewrite.directory, self._plan)

    def _check_room(self, group: Group) -> None:
        """Refuse before writing what will not fit. A guess that is too low still ends well: appends are whole
        or nothing.
        """
        directory = self._rewrite.directory
        needed, free = group.live_bytes, self._files.free_bytes(directory)
        if needed > free:
            name = f"{self._plan.topic}-{self._plan.partition}"
            raise DiskFullError.of(name, os.path.dirname(directory), needed, free, directory)
