"""The topics that are served, by name and by id, and `Refused`, the error of one part of a request."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

from lastword.partition.checkpoint_file import LeaderEpochs
from lastword.protocol import codes

if TYPE_CHECKING:
    from lastword.api.logs import LogDir
    from lastword.logdir import LogDirectory
    from lastword.partition.log import PartitionLog


INTERNAL = ("__consumer_offsets", "__transaction_state")
"""Topics of coordinators."""


class Refused(Exception):
    """A request, or a part of it, that is answered with an error code and Kafka's sentence for it."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class ServedTopic:
    """A topic with its id and the directory of each partition."""

    __slots__ = ("directories", "epochs", "id", "name")

    def __init__(self, name: str, topic_id: bytes, directories: dict[int, LogDirectory]) -> None:
        self.name = name
        self.id = topic_id
        self.directories = directories
        self.epochs: dict[int, int] = {}

    def log(self, partition: int) -> PartitionLog:
        """Return the open log of a partition, which is recovered at its first use.

        Raises:
            Refused: The topic has no such partition.
        """
        directory = self.directories.get(partition)
        if directory is None:
            raise Refused(codes.UNKNOWN_TOPIC_OR_PARTITION, f"{self.name} has no partition {partition}")
        return directory.log(self.name, partition)

    def is_open(self, partition: int) -> bool:
        """Return whether `log` returns immediately: the log was used before, or there is none."""
        directory = self.directories.get(partition)
        return directory is None or directory.is_log_open(self.name, partition)

    def leader_epoch(self, partition: int) -> int:
        """Return the newest leader epoch of a partition. Does not open its log."""
        epoch = self.epochs.get(partition)
        if epoch is None:
            directory = self.directories[partition]
            path = directory.directory(self.name, partition)
            epoch = self.epochs[partition] = LeaderEpochs.load(directory.files, path).latest or 0
        return epoch


class Topics:
    """The topics of a `LogDir`, by name and by id. Listed again when one is missing or was changed."""

    def __init__(self, logs: LogDir) -> None:
        self._dirs = logs.dirs
        self._by_name: dict[str, ServedTopic] = {}
        self._by_id: dict[bytes, ServedTopic] = {}
        self._is_stale = True
        self._dirs.on_settings_changed(self.changed)

    def changed(self) -> None:
        """List the topics before the next use."""
        self._is_stale = True

    def get(self, name: str) -> ServedTopic | None:
        """Return a topic by name."""
        if self._is_stale or name not in self._by_name:
            self._list()
        return self._by_name.get(name)

    def with_id(self, topic_id: bytes) -> ServedTopic | None:
        """Return a topic by id."""
        if self._is_stale or topic_id not in self._by_id:
            self._list()
        return self._by_id.get(topic_id)

    def find(self, name: str | None, topic_id: bytes) -> ServedTopic | None:
        """Return a topic by the name or, without one, by the id that a request has."""
        return self.get(name) if name else self.with_id(topic_id)

    def all(self) -> list[ServedTopic]:
        """Return all topics, by name."""
        self._list()
        return list(self._by_name.values())

    def _list(self) -> None:
        before = {} if self._is_stale else self._by_name  # a topic of the same name may have another id
        self._is_stale = False
        topics: dict[str, ServedTopic] = {}
        for name, directories in self._dirs.topics().items():
            known = before.get(name)
            topics[name] = (
                known
                if known is not None and known.directories == directories
                else ServedTopic(name, self._id(name), directories)
            )
        self._by_name = topics
        self._by_id = {topic.id: topic for topic in topics.values()}

    def _id(self, name: str) -> bytes:
        """Return the id of a topic; in a directory without ids, one that is derived from the name."""
        topic_id = self._dirs.dir_set.topic_id(name)
        if topic_id is None:
            return hashlib.sha256(b"lastword topic " + name.encode()).digest()[:16]
        return base64.urlsafe_b64decode(topic_id + "==")
