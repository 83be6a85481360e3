"""Several log directories that are seen as one, as a broker's log.dirs are.

A topic's partitions are spread over them, each new one to the directory with the fewest. A directory that
fails goes offline alone: what it holds raises `OfflineError`, the rest serves. To know what it holds, and so
how many partitions a topic has (keys find their partition by that number), every root keeps the list of all
partitions in `lastword.partitions`, framed JSON; brokers ignore it. A single directory has no such file. A
damaged list is ignored, and written again when all directories are open to append.

One partition in two directories is refused, with one exception: a move that a crash interrupted between its
two renames, which is finished here (`move.settle`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lastword import metrics
from lastword.errors import (
    CorruptFileError,
    LastwordError,
    OfflineError,
    StorageError,
)
from lastword.files import Files
from lastword.files.framed import Framed
from lastword.logdir.checkpoints import TopicPartition
from lastword.logdir.log_dir import LogDirectory
from lastword.logdir.move import chosen, settle
from lastword.partition.checkpoint_file import number, parse_lines
from lastword.segment import names

LIST = Framed(
    "partitions", 1, "bad-partition-list", "open all directories to write: the list is written again"
)


class OfflineDirectory:
    """Stands for a directory that could not be opened. Whatever is asked of it raises OfflineError."""

    def __init__(self, path: str, error: LastwordError) -> None:
        self.path = path
        self.error = error

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise OfflineError.of("a partition", self.path, self.error)

    def __repr__(self) -> str:
        return f"OfflineDirectory({self.path!r})"


class LogDirSet:
    """The directories that serve, those that do not, and where each partition lies."""

    def __init__(self, directories: Sequence[LogDirectory], offline: Mapping[str, LastwordError]) -> None:
        self.directories = list(directories)
        self._failed: dict[str, LastwordError] = dict(offline)
        self._listed: dict[str, tuple[TopicPartition, ...]] = {}
        self._homes: dict[TopicPartition, LogDirectory] = {}
        for path in offline:
            metrics.DIR_OFFLINE.set(1, os.path.realpath(path))
        for directory in self.directories:
            directory.shared_topic_id = self.topic_id
            directory.directories = len(self.directories)
        if len(self.directories) > 1:
            self._settle()
            if not offline and self.directories[0].mode == "a":
                self.write_list()

    @property
    def offline(self) -> dict[str, LastwordError]:
        """Directories that failed, by path, with the reason."""
        found = dict(self._failed)
        for directory in self.directories:
            error = directory.files.offline(directory.path)
            if error is not None:
                found.setdefault(directory.path, error)
        return found

    def _settle(self) -> None:
        """Finish moves that were interrupted; refuse partitions that lie in two places."""
        seen: dict[TopicPartition, LogDirectory] = {}
        for directory in self.directories:
            for tp in self._partitions_of(directory):
                first = seen.setdefault(tp, directory)
                if first is not directory:
                    seen[tp] = settle(tp, first, directory)

    def _partitions_of(self, directory: LogDirectory) -> tuple[TopicPartition, ...]:
        """What a directory holds; what it held when it was last seen, once it has failed."""
        try:
            found = tuple(directory.topic_partitions())
        except StorageError as error:
            self._failed.setdefault(directory.path, error)
            metrics.DIR_OFFLINE.set(1, os.path.realpath(directory.path))
            return self._listed.get(directory.path, ())
        self._listed[directory.path] = found
        return found

    # -------------------------------------------------------------- where things are

    def homes(self) -> dict[str, dict[int, LogDirectory]]:
        """Topic names, sorted, with their partitions, ascending, and where each lies. Of a directory that is
        offline it is an object that raises OfflineError.
        """
        found: dict[TopicPartition, Any] = {}
        for directory in self.directories:
            for tp in self._partitions_of(directory):
                first = found.setdefault(tp, directory)
                if first is not directory:
                    found[tp] = chosen(tp, first, directory)
        for path, error in self._failed.items():
            if path in self._listed:  # it was open: its partitions are known
                continue
            stand_in = OfflineDirectory(path, error)
            for tp in self.read_list():
                found.setdefault(tp, stand_in)
        self._homes = found
        topics: dict[str, dict[int, LogDirectory]] = {}
        for tp in sorted(found):
            topics.setdefault(tp.topic, {})[tp.partition] = found[tp]
        return topics

    def home(self, topic: str, partition: int) -> LogDirectory | None:
        """Where a partition lies; None if there is none. Fast for one that was found before."""
        if len(self.directories) == 1 and not self._failed:
            return self.directories[0]
        tp = TopicPartition(topic, partition)
        known = self._homes.get(tp)
        if known is not None and (isinstance(known, OfflineDirectory) or known.holds(*tp)):
            return known
        self.homes()
        return self._homes.get(tp)

    def serves(self, home: LogDirectory) -> bool:
        """Can something be asked of it now? (`homes` has stand-ins for directories that are offline.)"""
        return not isinstance(home, OfflineDirectory) and home.files.offline(home.path) is None

    def topic_id(self, topic: str) -> str | None:
        """The topic's id as the first directory that knows one says."""
        for directory in self.directories:
            with contextlib.suppress(LastwordError):
                found = directory.topic_id(topic)
                if found is not None:
                    return found
        return None

    # -------------------------------------------------------------- placing

    def place(self, count: int) -> dict[LogDirectory, list[int]]:
        """Partition numbers of a new topic for each directory: the fewest partitions first, as a broker does.

        OfflineError while a directory is offline: it may hold a topic of that name.
        """
        for path, error in self.offline.items():
            raise OfflineError.of("what may be a topic of that name", path, error)
        load = [(len(self._partitions_of(one)), at) for at, one in enumerate(self.directories)]
        placed: dict[LogDirectory, list[int]] = {}
        for partition in range(count):
            fewest = min(load)
            load[load.index(fewest)] = (fewest[0] + 1, fewest[1])
            placed.setdefault(self.directories[fewest[1]], []).append(partition)
        return placed

    # -------------------------------------------------------------- the list of all

    def write_list(self) -> None:
        """Bring `lastword.partitions` up to date in every root; only with several directories."""
        if len(self.directories) < 2 or self._failed:
            return
        every = sorted({tp for one in self.directories for tp in self._partitions_of(one)})
        data = LIST.encode({"partitions": [[tp.topic, tp.partition] for tp in every]})
        for directory in self.directories:
            path = os.path.join(directory.path, names.PARTITION_LIST)
            with contextlib.suppress(StorageError):  # only helps while another is offline
                if not directory.files.exists(path) or directory.files.read_bytes(path) != data:
                    directory.files.write_atomic(path, data)

    def read_list(self) -> list[TopicPartition]:
        """What the roots that serve say of all partitions."""
        found: set[TopicPartition] = set()
        for directory in self.directories:
            found.update(_listed(directory.files, os.path.join(directory.path, names.PARTITION_LIST)))
        return sorted(found)


def _listed(files: Files, path: str) -> Iterator[TopicPartition]:
    with contextlib.suppress(CorruptFileError, StorageError):
        yield from read_partition_list(files, path)


def read_partition_list(files: Files, path: str) -> list[TopicPartition]:
    """Return the partitions that a list names; none if there is no list. CorruptFileError if it is damaged.

    Lists of version 0 are text checkpoints of `topic partition` lines."""
    if not files.exists(path):
        return []
    data = files.read_bytes(path)
    if data[:2] == b"0\n":
        with LIST.reading(path):
            lines = parse_lines(data.decode(), path, 2)
            return [TopicPartition(topic, number(partition, path)) for topic, partition in lines]
    fields = LIST.decode(data, path)
    with LIST.reading(path):
        return [
            TopicPartition(str(topic), names.check_partition(number))
            for topic, number in fields["partitions"]
        ]
