"""Two threads for one round: where they are worth it, and groups that are rewritten while others are."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import islice

from lastword.cleaner.built import BuiltGroup
from lastword.cleaner.groups import Group
from lastword.cleaner.steps import Stopped
from lastword.errors import LastwordError

LARGE_BYTES = 64 << 20
"""From here on a second thread is started: below, a round takes a fraction of a second as it is."""


def threads_for(source_bytes: int, threads: int) -> int:
    """How many a round uses that may use `threads` and reads so many bytes: a third would find nothing to do
    while the map takes its chunks one after another."""
    return min(threads, 2) if source_bytes >= LARGE_BYTES else 1


def built_in_order(
    build: Callable[[Group], BuiltGroup],
    discard: Callable[[BuiltGroup], None],
    groups: Sequence[Group],
    threads: int,
    give_up: Callable[[], None],
) -> Generator[BuiltGroup]:
    """`build` of each group, in their order. With one thread a group is built when it is asked for. With
    more, as many are under way at once, and the drive holds their outputs beside the one that is being
    swapped in.

    To be closed. What was built and not taken is thrown away, by `discard`; `give_up` lets those that are
    under way end soon.
    """
    if threads < 2 or len(groups) < 2:
        yield from map(build, groups)
        return
    ahead: deque[Future[BuiltGroup]] = deque()
    rest = iter(groups)
    with ThreadPoolExecutor(threads, thread_name_prefix="lastword-rewrite") as pool:
        ahead.extend(pool.submit(build, one) for one in islice(rest, threads))
        try:
            while ahead:
                done = ahead.popleft().result()
                ahead.extend(pool.submit(build, one) for one in islice(rest, 1))
                yield done
        finally:
            if ahead:
                give_up()
            for one in ahead:
                if not one.cancel():
                    with suppress(LastwordError, Stopped):
                        discard(one.result())
