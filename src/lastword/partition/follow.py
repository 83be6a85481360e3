"""A partition that is looked at again and again while somebody else appends to it, rolls and cleans it."""

from __future__ import annotations

from collections.abc import Callable

from lastword.partition.view import PartitionView


class Watch:
    """The newest view of one partition.

    `again` makes a view of now. It is asked only when the old one is not current any more. Beside another
    writer two looks at names tell that; `ends`, for a log that this process writes itself, gives its (log
    start, last stable offset, log end) of now. What the old view knew of open transactions is carried on, so
    that only what was added is walked for it.
    """

    def __init__(
        self,
        view: PartitionView,
        again: Callable[[], PartitionView],
        ends: Callable[[], tuple[int, int, int]] | None = None,
    ) -> None:
        self._view = view
        self._again = again
        self._ends = ends

    def look(self) -> PartitionView:
        if not self._is_current():
            before, self._view = self._view, self._again()
            self._view.go_on_from(before)
        return self._view

    def _is_current(self) -> bool:
        view = self._view
        if self._ends is None:
            return view.is_current()
        return self._ends() == (view.log_start, view.stable_offset, view.log_end)
