"""Combine several log directories into one, as a broker's log.dirs are.

A topic's partitions are spread over the directories; each new partition is made in the directory with the
fewest. A directory that fails goes offline alone: its partitions raise `OfflineError`, and the rest is
served. To know its partitions all the same, and so how many partitions a topic has (the partition of a key
depends on that number), every root keeps the list of all partitions in `lastword.partitions`, framed JSON;
brokers ignore it. A single directory has no such file. A damaged list is ignored, and written again when all
directories are open to append.

A partition in two directories is refused, with one exception: a move that a crash interrupted between its two
renames is finished here (`move.settle`).
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
    """Stand-in for a directory that could not be opened. Every use raises OfflineError."""

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
    """The directories that are served, those that are offline, and the directory of each partition."""

    def __init__(self, directories: Sequence[LogDirectory], offline: Mapping[str, LastwordError]) -> None:
        self.directories = list(directories)
        self._failed: dict[str, LastwordError] = dict(offline)
        self._listed: dict[str, tuple[TopicPartition, ...]] = {}
        self._log_dirs: dict[TopicPartition, LogDirectory] = {}
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
        errors = dict(self._failed)
        for directory in self.directories:
            error = directory.files.offline(directory.path)
            if error is not None:
                errors.setdefault(directory.path, error)
        return errors

    def _settle(self) -> None:
        """Finish interrupted moves, and refuse partitions that are in two directories."""
        seen: dict[TopicPartition, LogDirectory] = {}
        for directory in self.directories:
            for tp in self._partitions_of(directory):
                first = seen.setdefault(tp, directory)
                if first is not directory:
                    seen[tp] = settle(tp, first, directory)

    def _partitions_of(self, directory: LogDirectory) -> tuple[TopicPartition, ...]:
        """Return the partitions of a directory; of a failed one, those that were last listed."""
        try:
            partitions = tuple(directory.topic_partitions())
        except StorageError as error:
            self._failed.setdefault(directory.path, error)
            metrics.DIR_OFFLINE.set(1, os.path.realpath(directory.path))
            return self._listed.get(directory.path, ())
        self._listed[directory.path] = partitions
        return partitions

    # -------------------------------------------------------------- where things are

    def log_dirs_by_topic(self) -> dict[str, dict[int, LogDirectory]]:
        """Return topic names, sorted, with their partitions, ascending, and the directory of each.

        An offline directory is represented by an object that raises OfflineError.
        """
        directories: dict[TopicPartition, Any] = {}
        for directory in self.directories:
            for tp in self._partitions_of(directory):
                first = directories.setdefault(tp, directory)
                if first is not directory:
                    directories[tp] = chosen(tp, first, directory)
        for path, error in self._failed.items():
            if path in self._listed:  # it was open: its partitions are known
                continue
            stand_in = OfflineDirectory(path, error)
            for tp in self.read_list():
                directories.setdefault(tp, stand_in)
        self._log_dirs = directories
        topics: dict[str, dict[int, LogDirectory]] = {}
        for tp in sorted(directories):
            topics.setdefault(tp.topic, {})[tp.partition] = directories[tp]
        return topics

    def log_dir(self, topic: str, partition: int) -> LogDirectory | None:
        """Return the directory of a partition; None if there is none. Fast for one that was found before."""
        if len(self.directories) == 1 and not self._failed:
            return self.directories[0]
        tp = TopicPartition(topic, partition)
        known = self._log_dirs.get(tp)
        if known is not None and (isinstance(known, OfflineDirectory) or known.holds(*tp)):
            return known
        self.log_dirs_by_topic()
        return self._log_dirs.get(tp)

    def serves(self, log_dir: LogDirectory) -> bool:
        """Return whether a directory can be used now.

        `log_dirs_by_topic` has stand-ins for directories that are offline.
        """
        return not isinstance(log_dir, OfflineDirectory) and log_dir.files.offline(log_dir.path) is None

    def topic_id(self, topic: str) -> str | None:
        """Return the topic's id, from the first directory that has one."""
        for directory in self.directories:
            with contextlib.suppress(LastwordError):
                topic_id = directory.topic_id(topic)
                if topic_id is not None:
                    return topic_id
        return None

    # -------------------------------------------------------------- placing

    def assign(self, count: int) -> dict[LogDirectory, list[int]]:
        """Assign partition numbers of a new topic: the directory with the fewest partitions first.

        OfflineError while a directory is offline, because it may hold a topic of that name.
        """
        for path, error in self.offline.items():
            raise OfflineError.of("what may be a topic of that name", path, error)
        load = [(len(self._partitions_of(directory)), at) for at, directory in enumerate(self.directories)]
        placed: dict[LogDirectory, list[int]] = {}
        for partition in range(count):
            fewest = min(load)
            load[load.index(fewest)] = (fewest[0] + 1, fewest[1])
            placed.setdefault(self.directories[fewest[1]], []).append(partition)
        return placed

    # -------------------------------------------------------------- the list of all

    def write_list(self) -> None:
        """Update `lastword.partitions` in every root; only with several directories."""
        if len(self.directories) < 2 or self._failed:
            return
        every = sorted({tp for directory in self.directories for tp in self._partitions_of(directory)})
        data = LIST.encode({"partitions": [[tp.topic, tp.partition] for tp in every]})
        for directory in self.directories:
            path = os.path.join(directory.path, names.PARTITION_LIST)
            with contextlib.suppress(StorageError):  # the list is needed only while a directory is offline
                if not directory.files.exists(path) or directory.files.read_bytes(path) != data:
                    directory.files.write_atomic(path, data)

    def read_list(self) -> list[TopicPartition]:
        """Return all partitions that the lists of the available roots name."""
        partitions: set[TopicPartition] = set()
        for directory in self.directories:
            partitions.update(_listed(directory.files, os.path.join(directory.path, names.PARTITION_LIST)))
        return sorted(partitions)


def _listed(files: Files, path: str) -> Iterator[TopicPartition]:
    with contextlib.suppress(CorruptFileError, StorageError):
        yield from read_partition_list(files, path)


def read_partition_list(files: Files, path: str) -> list[TopicPartition]:
    """Return the partitions that a list names; none if there is no list. CorruptFileError if it is damaged.

    Lists of version 0 are text checkpoints of `topic partition` lines.
    """
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
