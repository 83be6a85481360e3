"""Following a topic: what is there from the start on, and then what comes, over all partitions.

A poll, not a notification, for the writer is another process that knows nothing of its readers. The pauses
grow from 5 to 100 ms while nothing comes. A look at an unchanged partition costs two looks at file names.
A topic can get more partitions, and each of them is read from its beginning: nothing of it was there before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from typing import TYPE_CHECKING

from lastword.clock import Clock
from lastword.errors import OffsetOutOfRangeError, UsageError
from lastword.partition.cut import read_note
from lastword.partition.moment import Range
from lastword.partition.view import LatestView

if TYPE_CHECKING:
    from lastword.api.open_dirs import OpenDirs
    from lastword.partition.view import PartitionView

SHORTEST_PAUSE_SECONDS = 0.005
LONGEST_PAUSE_SECONDS = 0.1
NEW_PARTITIONS_SECONDS = 1.0  # a look at the whole directory, so not with every poll


class Follow:
    """Ranges to read, one after another, without an end or until `timeout` seconds of silence.

    position   per partition the next offset: moved on by the reader, who is also to call `heard` when a range
               had a record for it
    added      gives the partitions that have come meanwhile, of those it is told; they are followed too, and
               `position` gets them. None: only `latest_views`
    """

    def __init__(
        self,
        latest_views: Mapping[int, LatestView],
        position: MutableMapping[int, int],
        clock: Clock,
        *,
        timeout: float | None = None,
        committed: bool = True,
        added: Callable[[Collection[int]], Mapping[int, LatestView]] | None = None,
    ) -> None:
        self._latest_views = dict(latest_views)
        self._added = added
        self._looked_for_more = clock.monotonic()
        self._position = position
        self._clock = clock
        self._timeout = timeout
        self._committed = committed
        self._heard = False
        self._stopped = False

    def heard(self) -> None:
        self._heard = True

    def stop(self) -> None:
        """End the iteration at its next step, from any thread."""
        self._stopped = True

    def __iter__(self) -> Iterator[Range]:
        quiet_since, pause = self._clock.monotonic(), SHORTEST_PAUSE_SECONDS
        while not self._stopped:
            found = False
            for partition, latest in self._latest_views.items():
                if self._stopped:
                    return
                due = self._due(partition, latest)
                if due is not None:
                    found = True
                    yield due
            now = self._clock.monotonic()
            if self._added is not None and now - self._looked_for_more >= NEW_PARTITIONS_SECONDS:
                self._looked_for_more = now
                found = self._take_in(self._added(self._latest_views)) or found
            if self._heard:
                quiet_since, self._heard = now, False
            left = LONGEST_PAUSE_SECONDS if self._timeout is None else quiet_since + self._timeout - now
            if found:
                pause = SHORTEST_PAUSE_SECONDS
                if left > 0:
                    continue  # at once: more may have come while this was read
            if left <= 0:
                return
            self._clock.sleep(min(pause, left))
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _take_in(self, added: Mapping[int, LatestView]) -> bool:
        for partition, latest in sorted(added.items()):
            self._latest_views[partition] = latest
            self._position[partition] = latest.get().log_start
        return bool(added)

    def _due(self, partition: int, latest: LatestView) -> Range | None:
        view = latest.get()
        start = self._position[partition]
        if view.log_start > start:
            why = read_note(view.files, view.directory, view.log_start)
            name = f"{view.topic}-{view.partition}"
            raise OffsetOutOfRangeError.below(name, start, view.log_start, why)
        end = min(view.stable_offset, view.log_end) if self._committed else view.log_end
        return Range(view, start, end) if start < end else None


def following(
    dirs: OpenDirs,
    topic: str,
    views: Mapping[int, PartitionView],
    *,
    timeout: float | None,
    committed: bool,
    grows: bool,
) -> Callable[[dict[int, int]], Follow]:
    """Makes the `Follow` of a reader from its position. `grows`: partitions that come later are read too."""

    def ends(number: int) -> tuple[int, int, int]:
        log = dirs.log(topic, number)
        return log.log_start, log.stable_offset, log.log_end

    def latest_view(number: int, view: PartitionView) -> LatestView:
        return LatestView(
            view,
            lambda: dirs.view(topic, number),
            (lambda: ends(number)) if dirs.mode == "a" else None,
        )

    def added(known: Collection[int]) -> dict[int, LatestView]:
        now = dirs.views(topic)
        return {number: latest_view(number, now[number]) for number in now if number not in known}

    def follow(position: dict[int, int]) -> Follow:
        return Follow(
            {number: latest_view(number, view) for number, view in sorted(views.items())},
            position,
            dirs.clock,
            timeout=timeout,
            committed=committed,
            added=added if grows else None,
        )

    return follow


def check_follow(follow: bool, timeout: float | None, end: object, view: str) -> None:
    """UsageError for what does not go together."""
    if not follow:
        if timeout is not None:
            raise UsageError("timeout= is for follow=True", remedy="a bounded read ends by itself")
        return
    if end != "latest":
        raise UsageError("a read that follows has no end=", remedy="leave one of the two out")
    if view != "log":
        raise UsageError(
            f'view="{view}" needs all of a range, and a read that follows has no end',
            remedy="read without follow=True, or keep the newest values with dirs.state(...)",
        )
    if timeout is not None and not timeout >= 0:
        raise UsageError(f"timeout={timeout!r} is no time", remedy="seconds, or None to follow for ever")
