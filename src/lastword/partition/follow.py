"""A partition that is looked at again and again while somebody else appends to it, rolls and cleans it."""

from __future__ import annotations

from collections.abc import Callable

from lastword.partition.view import PartitionView


class Watch:
    """The newest view of one partition.

    `again` makes a view of now. It is asked only when the old one is not current any more, which costs two
    looks at names; and what the old view knew of open transactions is carried on, so that only what was
    added is walked for it.
    """

    def __init__(self, view: PartitionView, again: Callable[[], PartitionView]) -> None:
        self._view = view
        self._again = again

    def look(self) -> PartitionView:
        if self._view.trusted or not self._view.is_current():
            before, self._view = self._view, self._again()
            self._view.go_on_from(before)
        return self._view
