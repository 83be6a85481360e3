"""What `logs.cleaner` speaks to: the scheduler of an open log directory, and what the rest of the package may
tell it.

One for each `LogDir`, made when it is first needed. Users hold a `Cleaner` (`cleaner.py`), which shows what
is theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from lastword.api.work import DirectoryWork
from lastword.cleaner.scheduler import Scheduler
from lastword.cleaner.states import States
from lastword.cleaner.tasks import Done
from lastword.errors import NoPolicyError
from lastword.logdir.checkpoints import TopicPartition

if TYPE_CHECKING:
    from lastword.api.open_dirs import OpenDirs
    from lastword.config.instance import LogConfig


class Background:
    """The scheduler of the partitions of `dirs`, with the states and drives that it goes by."""

    def __init__(self, dirs: OpenDirs) -> None:
        self.dirs = dirs
        self.states = States(dirs.clock)
        self.drives = dirs.drives
        self._work = DirectoryWork(dirs.dir_set, self.drives, self.states, dirs.clock)
        self._applied: LogConfig = dirs.settings.instance
        self.scheduler = Scheduler(
            self._work,
            clock=dirs.clock,
            states=self.states,
            threads=self._applied.log_cleaner_threads,
            backoff_ms=self._applied.log_cleaner_backoff_ms,
            chores_ms=self._applied.log_retention_check_interval_ms,
        )

    def run_for(
        self, only: tuple[str, int | None] | None, backoff_ms: int, on_done: Callable[[Done], None]
    ) -> None:
        """Start at once, look so often, at one topic only if it is named, and tell of every round."""
        self.dirs.require_writable()
        if only is not None and self.dirs.config(only[0]).cleanup_policy is None:
            raise NoPolicyError.of(only[0], self.dirs.paths[0])
        self._work.only = only
        self._work.forget()
        self.scheduler.backoff_ms = backoff_ms
        self.scheduler.on_done = on_done
        self.scheduler.start(at_once=True)

    def forget(self, topic: str, partitions: Iterable[int]) -> None:
        """A topic is gone: another one of its name begins without its pauses."""
        for number in partitions:
            self.states.forget(TopicPartition(topic, number))
            self.scheduler.forgive(TopicPartition(topic, number))

    def settings_changed(self) -> None:
        """Take over what the settings say now, where they say something else than before, and look."""
        now: LogConfig = self.dirs.settings.instance
        before, self._applied = self._applied, now
        if now.log_cleaner_backoff_ms != before.log_cleaner_backoff_ms:
            self.scheduler.backoff_ms = now.log_cleaner_backoff_ms
        self.scheduler.chores_ms = now.log_retention_check_interval_ms
        limits = now.log_cleaner_io_max_bytes_per_second, now.drives
        if limits != (before.log_cleaner_io_max_bytes_per_second, before.drives):
            self.drives.set_all(*limits)
        self._work.forget()
        self.scheduler.wake()
