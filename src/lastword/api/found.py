"""`Found`: the open directories of a `LogDir`, and where each partition lies in them.

What every verb asks before it works: is it open, may it change things, which partitions were named, where
is each, and which settings hold for it.
"""

from __future__ import annotations

import atexit
import os
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from lastword.clock import Clock
from lastword.config import Settings, TopicConfig
from lastword.errors import (
    DataError,
    LastwordError,
    ReadOnlyError,
    StorageError,
    UnknownTopicError,
    UsageError,
)
from lastword.files import Files
from lastword.logdir import DirRecovery, LogDirectory, LogDirSet
from lastword.partition import leases
from lastword.segment import names
from lastword.values import Handle

if TYPE_CHECKING:
    from lastword.cleaner.budget import Drives
    from lastword.partition.log import PartitionLog
    from lastword.partition.view import PartitionView

PathLike = str | os.PathLike[str]
Mode = Literal["r", "a"]
By = Literal["topic", "partition", "segment"]


class Found(Handle):
    """Directories, open in one mode, with their settings, files and clock."""

    def __init__(
        self,
        spread: LogDirSet,
        mode: Mode,
        files: Files,
        clock: Clock,
        config: PathLike | None = None,
    ) -> None:
        self._spread = spread
        self._directories = spread.directories
        self.paths = [directory.path for directory in self._directories] + list(spread.offline)
        self.mode = mode
        self._files = files
        self._clock = clock
        self._config_file = config
        self._closed = False
        self._forked = False
        self._opened_at = "an unknown place"
        self._warned = False
        if mode == "a":
            _writers.add(self)

    def _warn_unclosed(self) -> None:
        if not self._warned and not self._closed:
            self._warned = True
            text = f"{self!r}, opened at {self._opened_at}, was not closed"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    def __del__(self) -> None:
        if getattr(self, "mode", "r") == "a" and hasattr(self, "_warned"):
            self._warn_unclosed()

    @property
    def recovery(self) -> tuple[DirRecovery, ...]:
        """What opening repaired, a `DirRecovery` for each directory. Partitions are recovered when they are
        first used. In mode "r" nothing is repaired, and `clean` is None."""
        return tuple(directory.recovery for directory in self._directories)

    @property
    def offline(self) -> dict[str, LastwordError]:
        """Directories that failed, with the reason. What they hold raises OfflineError; the others serve."""
        return self._spread.offline

    @property
    def settings(self) -> Settings:
        """Every setting with its source."""
        return self._directories[0].settings

    # -------------------------------------------------------------- partitions

    def _homes(self) -> dict[str, dict[int, LogDirectory]]:
        """Topic names, sorted, with their partitions and where each lies."""
        self._check_open()
        return self._spread.homes()

    def _partitions(self, topic: str) -> dict[int, LogDirectory]:
        names.check_topic(topic)
        homes = self._homes()
        if topic not in homes:
            raise UnknownTopicError.named(topic, ", ".join(self.paths), homes)
        return homes[topic]

    def _one_topic(self, topic: str | None) -> str:
        """The topic that was named, or the only one; UsageError names those there are to choose from."""
        if topic is not None:
            return topic
        there = list(self._homes())
        if len(there) == 1:
            return there[0]
        where = ", ".join(self.paths)
        if not there:
            raise UsageError(f"{where} has no topics", remedy="create_topic makes one")
        named = ", ".join(there[:10]) + (", ..." if len(there) > 10 else "")
        raise UsageError(f"{where} has {len(there)} topics", remedy=f"name one of them: {named}")

    def _gone_below(self, topic: str, partition: int) -> int:
        """A key whose newest record lay below this offset may have left the log with its tombstone."""
        view = self._view(topic, partition)
        cleaned = max(
            self._first_dirty(topic, partition) or 0, leases.dropped_up_to(self._files, view.directory)
        )
        return max(view.log_start, min(cleaned, view.log_end))

    def _home(self, topic: str, partition: int) -> LogDirectory:
        found = self._spread.home(topic, partition)
        if found is None:
            raise UsageError(f"{topic} has no partition {partition}", remedy="see lastword ls")
        return found

    def _chosen(self, topic: str | None, partition: int | None) -> list[tuple[str, int]]:
        if topic is None:
            if partition is not None:
                raise UsageError("partition= needs a topic", remedy="give both")
            return [(name, number) for name, numbers in self._homes().items() for number in numbers]
        numbers = self._partitions(topic)
        if partition is not None and partition not in numbers:
            raise UsageError(
                f"{topic} has no partition {partition!r}",
                remedy=f"it has {', '.join(str(number) for number in numbers)}",
            )
        return [(topic, number) for number in numbers if partition is None or number == partition]

    def _config(self, topic: str) -> TopicConfig:
        return self._directories[0].topic_config(topic)

    def _view(self, topic: str, partition: int) -> PartitionView:
        self._check_open()
        return self._home(topic, partition).view(topic, partition)

    def _whole_view(self, topic: str, partition: int) -> PartitionView:
        """Return the view for a figure over the whole log. CorruptBatchError if its end is missing."""
        view = self._view(topic, partition)
        view.check_end()
        return view

    def _viewed(
        self, chosen: Iterable[tuple[str, int]]
    ) -> tuple[dict[tuple[str, int], PartitionView], dict[tuple[str, int], LastwordError]]:
        """Return the views of partitions, and the errors of those that cannot be viewed: a verb works on the
        first, and raises the second at its end."""
        views: dict[tuple[str, int], PartitionView] = {}
        failed: dict[tuple[str, int], LastwordError] = {}
        for tp in chosen:
            try:
                views[tp] = self._whole_view(*tp)
            except (DataError, StorageError) as error:
                failed[tp] = error
        return views, failed

    def _views(self, topic: str) -> Mapping[int, PartitionView]:
        return _Views(topic, self._partitions(topic))

    def _log(self, topic: str, partition: int) -> PartitionLog:
        self._check_open()
        return self._home(topic, partition).log(topic, partition)

    def _first_dirty(self, topic: str, partition: int) -> int | None:
        return self._home(topic, partition).first_dirty(topic, partition)

    @cached_property
    def _drives(self) -> Drives:
        """Which directory lies on which drive, and what cleanings may use of each."""
        from lastword.cleaner.budget import Drives

        settings = self.settings.instance
        return Drives(
            [directory.path for directory in self._directories],
            self._files,
            self._clock,
            limit=settings.log_cleaner_io_max_bytes_per_second,
            own=settings.drives,
        )

    def _check_open(self) -> None:
        if self._closed:
            why = "was opened by the process that this one was forked from" if self._forked else "is closed"
            raise UsageError(f"{self.paths[0]} {why}", remedy="open it again: lastword.open(...)")

    def _check_writable(self) -> None:
        self._check_open()
        if self.mode == "r":
            raise ReadOnlyError.opened(self.paths[0])

    # -------------------------------------------------------------- settings

    @property
    def _settings_file(self) -> str:
        """The one lastword.toml of all directories: where it is, or in the first."""
        candidates = [os.path.join(one.path, names.SETTINGS) for one in self._directories]
        return next((path for path in candidates if self._files.exists(path)), candidates[0])

    def _reload(self) -> None:
        for directory in self._directories:
            directory.reload_settings()


class _Views(Mapping[int, "PartitionView"]):
    """Views of a topic's partitions, each made when it is asked for: one that lies in a directory that is
    offline does not stop who reads another."""

    def __init__(self, topic: str, homes: Mapping[int, LogDirectory]) -> None:
        self._topic = topic
        self._homes = homes
        self._made: dict[int, PartitionView] = {}

    def __getitem__(self, partition: int) -> PartitionView:
        if partition not in self._made:
            self._made[partition] = self._homes[partition].view(self._topic, partition)
        return self._made[partition]

    def __contains__(self, partition: object) -> bool:
        return partition in self._homes

    def __iter__(self) -> Iterator[int]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)


_writers: weakref.WeakSet[Found] = weakref.WeakSet()


def writers() -> list[Found]:
    """What this process has open to append."""
    return [one for one in _writers if not one._closed]


def _warn_of_open() -> None:
    """Name what was left open when the process ends: the next opening has to recover it."""
    for one in writers():
        one._warn_unclosed()


atexit.register(_warn_of_open)


def _leave_to_the_parent() -> None:
    """A forked child holds no lock. What it appended would be written over by its parent, and closing would
    write checkpoints of a log that its parent still changes."""
    for one in list(_writers):
        if not one._closed:
            one._closed = one._forked = True
    _writers.clear()


os.register_at_fork(after_in_child=_leave_to_the_parent)
