"""Two threads for one round: where they are worth it, and which of them does what.

The caller's thread repacks what survives, group by group, and swaps the outputs in; reading, verifying and
inflating the sources, compressing and appending to the output are done by whoever is free (`records.lanes`).
An output that is written is read back and synced by the second thread while the caller writes the next one;
the last one is synced while it is read back.

    caller   write a                write b                 swap a   read back b   swap b
    second   read and append for a  read back a   sync a    read b   sync b
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Executor, Future, wait
from contextlib import suppress
from typing import Protocol, TypeVar

from lastword.cleaner.built import BuiltGroup
from lastword.cleaner.groups import Group
from lastword.errors import LastwordError

Written = TypeVar("Written")

LARGE_BYTES = 32 << 20
"""From here on a second thread is started: below, a round takes a fraction of a second as it is. Compressed
bytes take several times as long as plain ones."""


def threads_for(source_bytes: int, threads: int) -> int:
    """How many a round uses that may use `threads` and reads so many bytes: a third would find nothing to do
    while the map takes its chunks one after another."""
    return min(threads, 2) if source_bytes >= LARGE_BYTES else 1


class Building(Protocol[Written]):
    """How a group is built, in two steps; a step that fails leaves nothing behind. `second`: a thread that
    helps."""

    def write(self, group: Group, second: Executor | None) -> Written: ...
    def complete(self, written: Written, second: Executor | None) -> BuiltGroup: ...
    def discard(self, unwanted: Written) -> None:
        """Throw away what was written, complete or not."""

    def give_up(self) -> None:
        """Steps under way are to end soon."""


def built_in_order(
    building: Building[Written], groups: Sequence[Group], second: Executor | None, *, overlap: bool = True
) -> Generator[BuiltGroup]:
    """Each group, built when it is asked for. To be closed: what was written and not taken is thrown away.

    With a second thread and `overlap` the next one is written before a group is given out, so the drive holds
    one more output.
    """
    waiting: deque[tuple[Written, Future[BuiltGroup] | None]] = deque()

    def oldest() -> BuiltGroup:
        written, completed = waiting.popleft()
        return building.complete(written, second) if completed is None else completed.result()

    try:
        for number, group in enumerate(groups, 1):
            try:
                written = building.write(group, second)
            except BaseException:
                if waiting:  # is not concerned
                    yield oldest()
                raise
            if second is None or not overlap or number == len(groups):
                waiting.append((written, None))
            else:
                waiting.append((written, second.submit(building.complete, written, None)))
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
            with suppress(LastwordError):  # the first error is the one to tell
                building.discard(written)
