"""The topics that are served, by name and by id, and `Refused`, the error of one part of a request."""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lastword.api.topics import create_topics
from lastword.errors import LastwordError
from lastword.partition.checkpoint_file import LeaderEpochs
from lastword.protocol import codes
from lastword.protocol.schemas import ZERO_UUID
from lastword.segment import names

if TYPE_CHECKING:
    from lastword.api.logs import LogDir
    from lastword.api.open_dirs import OpenDirs
    from lastword.logdir import LogDirectory, LogDirSet
    from lastword.partition.committed_log import CommittedLog
    from lastword.partition.log import PartitionLog

    ServedLog = PartitionLog | CommittedLog
    """The log of a partition, to read: open in a directory, and in a bucket that of the newest version."""

GROUPS_TOPIC, TRANSACTIONS_TOPIC = INTERNAL = ("__consumer_offsets", "__transaction_state")
"""Topics of coordinators."""
NEWEST = "@newest"
"""The end of the name of a read-only topic with the newest record of each key of another topic."""

_log = logging.getLogger("lastword.server")

NOT_HOSTED = "This server does not host this topic-partition."
CREATED = {"cleanup.policy": "delete"}
"""Settings of a topic whose creator gives none: without a policy, the log would keep everything."""


class Refused(Exception):
    """A request, or a part of it, that is answered with an error code and Kafka's sentence for it."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class Refusing:
    """Give a part of an answer the error for which it is refused, so that the other parts are answered.

    Attributes:
        part: The part, with `error_code`.
        text: It also has `error_message`.
        only: The errors that are the part's own.
    """

    part: Any
    text: bool = True
    only: type[Exception] | tuple[type[Exception], ...] = (Refused, LastwordError)

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, self.only):
            return False
        assert isinstance(error, Refused | LastwordError)
        self.part.error_code = error.code if isinstance(error, Refused) else error.kafka_code
        if self.text and error.message:
            self.part.error_message = error.message
        return True


def check_topic_name(name: str) -> None:
    """Raise Refused with Kafka's sentence if a name is no name of a topic."""
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif len(name) > names.MOST_TOPIC_CHARACTERS:
        reason = f"the length of '{name}' is longer than the max allowed length {names.MOST_TOPIC_CHARACTERS}"
    elif not names.is_topic(name):
        reason = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    else:
        return
    raise Refused(codes.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def check_replicas(ids: list[int], node_id: int) -> None:
    """Raise Refused unless the replicas of a partition are the only broker, once."""
    if not ids:
        text = "includes an empty replica list."
    elif len(set(ids)) < len(ids):
        text = f"includes the broker {next(id for id in ids if ids.count(id) > 1)} more than once."
    elif ids != [node_id]:
        other = next(id for id in ids if id != node_id)
        text = f"includes broker {other}, but no such broker is registered."
    else:
        return
    raise Refused(codes.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment {text}")


class ServedTopic:
    """A topic with its id and the directory of each partition.

    Attributes:
        name: The name for clients.
        stored: The name of the topic in the log directory.
        id: The id.
        directories: The directory of each partition.
    """

    __slots__ = ("_dirs", "directories", "epochs", "id", "name", "stored")

    def __init__(
        self, dirs: OpenDirs, name: str, topic_id: bytes, directories: dict[int, LogDirectory]
    ) -> None:
        self._dirs = dirs
        self.name = name
        self.stored = name.removesuffix(NEWEST)
        self.id = topic_id
        self.directories = directories
        self.epochs: dict[int, int] = {}

    @property
    def ids(self) -> tuple[bytes, bytes]:
        """Return the id, and the one that the topic has in a directory without ids."""
        derived = _derived_id(self.stored.encode())
        return self.id, _derived_id(derived) if self.is_newest else derived

    @property
    def is_newest(self) -> bool:
        """Return whether the topic has the newest record of each key of another topic."""
        return self.stored != self.name

    def log(self, partition: int) -> ServedLog:
        """Return the log of a partition, which is recovered at its first use.

        Raises:
            Refused: The topic has no such partition.
        """
        directory = self.directories.get(partition)
        if directory is None:
            raise Refused(codes.UNKNOWN_TOPIC_OR_PARTITION, f"{self.name} has no partition {partition}")
        return self._dirs.served_log(directory, self.stored, partition)

    def is_open(self, partition: int) -> bool:
        """Return whether `log` returns immediately: the log was used before, or there is none."""
        directory = self.directories.get(partition)
        return directory is None or self._dirs.is_served_log_open(directory, self.stored, partition)

    def leader_epoch(self, partition: int) -> int:
        """Return the newest leader epoch of a partition. Does not open its log."""
        directory = self.directories[partition]
        if self.is_open(partition):  # a copy of a topic appends newer ones
            return self.log(partition).epochs.latest or 0
        epoch = self.epochs.get(partition)
        if epoch is None:
            path = directory.directory(self.stored, partition)
            epoch = self.epochs[partition] = LeaderEpochs.load(directory.files, path).latest or 0
        return epoch


class Topics:
    """The topics of a `LogDir`, by name and by id. Listed again when one is missing or was changed."""

    def __init__(self, logs: LogDir) -> None:
        self._dirs = logs.dirs
        self._by_name: dict[str, ServedTopic] = {}
        self._by_id: dict[bytes, ServedTopic] = {}
        self._newest: dict[str | bytes, ServedTopic] = {}
        self._is_stale = True
        self._changed: set[str] = set()
        """Topics that may have been created again since the listing."""
        self._version = 0
        self._deleted: Callable[[set[str]], object] = lambda topics: None
        self._dirs.on_topic_deleted(lambda name, partitions: self.changed(name))
        self._dirs.serve(lambda names: self.changed(*names))

    def on_deleted(self, call: Callable[[set[str]], object]) -> None:
        """Call `call` with the names of topics that a listing finds deleted. One call is kept."""
        self._deleted = call

    def changed(self, *names: str) -> None:
        """List the topics before the next use, and read the ids of these again."""
        self._changed.update(names)  # first: another thread may list the topics at any moment
        self._is_stale = True

    @property
    def version(self) -> int:
        """Return a number that grows when a topic is created, deleted or gets partitions."""
        if self._is_stale:
            self._list()
        return self._version

    def get(self, name: str) -> ServedTopic | None:
        """Return a topic by name."""
        stored = name.removesuffix(NEWEST)
        if self._is_stale or (stored not in self._by_name and self._dirs.dir_set.log_dirs(stored)):
            self._list()
        return self._by_name.get(name)

    def create(self, name: str, partitions: int, settings: dict[str, Any]) -> ServedTopic:
        """Create a topic as `create_all` does."""
        created = self.create_all({name: (partitions, settings)})[name]
        if isinstance(created, LastwordError):
            raise created
        return created

    def create_all(
        self, topics: Mapping[str, tuple[int, dict[str, Any]]]
    ) -> dict[str, ServedTopic | LastwordError]:
        """Create topics as a broker with Kafka's defaults does: without a policy, old segments expire.

        Args:
            topics: Number of partitions and settings of each topic.

        Returns:
            Each topic, or the error that refused it.
        """
        settings = self._dirs.settings
        has_policy = settings.is_set("cleanup.policy", None, own=True)
        given = {
            name: (
                count,
                each if has_policy or settings.is_set("cleanup.policy", name) else CREATED | each,
            )
            for name, (count, each) in topics.items()
        }
        created: dict[str, ServedTopic | LastwordError] = {}
        try:
            create_topics(self._dirs, given)
        except LastwordError as error:
            if len(topics) == 1:
                return dict.fromkeys(topics, error)
            for name, topic in topics.items():  # each alone, because none was created
                created |= self.create_all({name: topic})
            return created
        for name in topics:
            try:
                created[name] = self.update(name)
            except LastwordError as error:  # another thread has deleted it
                created[name] = error
        return created

    def update(self, name: str) -> ServedTopic:
        """Return a topic that was just created, or given partitions. The others are not listed again."""
        if self._is_stale:
            self._list()
        else:
            topic = ServedTopic(
                self._dirs, name, id_of(self._dirs.dir_set, name), self._dirs.partitions(name)
            )
            self._by_name[name] = self._by_id[topic.id] = topic
            self._newest = {}
            self._version += 1
        return self._by_name[name]

    def with_id(self, topic_id: bytes) -> ServedTopic | None:
        """Return a topic by id."""
        if self._is_stale or topic_id not in self._by_id:
            self._list()
        return self._by_id.get(topic_id)

    def find(self, name: str | None, topic_id: bytes = ZERO_UUID) -> ServedTopic | None:
        """Return a topic, also a read-only one, by the name or, without one, by the id that a request has."""
        topic = self.get(name) if name else self.with_id(topic_id)
        if topic is None and (not name or name.endswith(NEWEST)):
            return self._find_newest(name or topic_id)
        return topic

    def _find_newest(self, key: str | bytes) -> ServedTopic | None:
        if not self._newest:
            for topic in self._by_name.values():
                if topic.name not in INTERNAL:
                    newest = ServedTopic(
                        self._dirs, topic.name + NEWEST, _derived_id(topic.id), topic.directories
                    )
                    self._newest[newest.name] = self._newest[newest.id] = newest
        return self._newest.get(key)

    def all(self) -> list[ServedTopic]:
        """Return all topics, by name."""
        self._list()
        return list(self._by_name.values())

    def _list(self) -> None:
        listed, changed = self._by_name, self._changed
        self._is_stale, self._changed = False, set()
        topics: dict[str, ServedTopic] = {}
        try:
            for name, directories in self._dirs.dir_set.log_dirs_by_topic().items():
                topic = listed.get(name)
                if topic is None or name in changed or topic.directories != directories:
                    topic = ServedTopic(self._dirs, name, id_of(self._dirs.dir_set, name), directories)
                topics[name] = topic
        except BaseException:
            self._is_stale = True
            self._changed |= changed
            raise
        self._by_name = topics
        self._by_id = {topic.id: topic for topic in topics.values()}
        self._newest = {}
        if _ids(topics) != _ids(listed):
            self._version += 1
        gone = {old.name for old in listed.values() if old.id not in self._by_id}
        if gone and not self._dirs.offline:  # else they may be in a directory that is offline
            self._deleted(gone | {name + NEWEST for name in gone})


def id_of(directories: OpenDirs | LogDirSet, name: str) -> bytes:
    """Return the id of a topic; in a directory without ids, one that is derived from the name."""
    stored = directories.topic_id(name)
    return _derived_id(name.encode()) if stored is None else base64.urlsafe_b64decode(stored + "==")


def _derived_id(source: bytes) -> bytes:
    return hashlib.sha256(b"lastword topic " + source).digest()[:16]


def _ids(topics: dict[str, ServedTopic]) -> dict[str, tuple[bytes, int]]:
    return {name: (topic.id, len(topic.directories)) for name, topic in topics.items()}
