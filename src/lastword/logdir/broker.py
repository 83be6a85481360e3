"""Read the settings that a KRaft cluster holds for its topics.

A broker in KRaft mode keeps the settings of topics in the records of `__cluster_metadata-0`, which by default
is in its first log directory. The newest snapshot there (`<end offset>-<epoch>.checkpoint`) stands for all
records below its end offset; the log continues it. Snapshots and log are Kafka's batches, so they are read as
every log is: without a lock, up to the last complete batch.

Three kinds of settings are applied: a topic's own, the defaults that were changed while brokers ran, and, if
its path is given, those of a broker's `server.properties`. What cannot be read never removes more than what
can: a value is `Unread` if its text is not understood, if the metadata is damaged or elsewhere, and if the
directory of a topic has another topic id than the metadata names (deleted and created again, or a copy). A
record of a known type that cannot be decoded makes all of the metadata unreadable, since it may change a
policy.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from lastword.config import TOPIC_SETTINGS, TopicConfig
from lastword.config.setting import POLICIES
from lastword.config.settings import UNKNOWN, Layer, SourcedValue, unread
from lastword.config.tables import Unread
from lastword.errors import CorruptFileError, DataError, LastwordError, NotALogDirError, StorageError
from lastword.files import Files
from lastword.logdir.identity import made_by_broker, read_ids, read_topic_id
from lastword.parse import read_properties
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.view import PartitionView
from lastword.records.formats import check_crc, read_records
from lastword.segment import names
from lastword.segment.scan import headers

if TYPE_CHECKING:
    from logging import Logger

    from lastword.records.internal import InternalRecord

TOPIC = 2
BROKER = 4
"""Kinds of resources in a ConfigRecord, as in Kafka's ConfigResource."""

SOURCE = "__cluster_metadata"


def _log() -> Logger:
    import logging  # rarely used: most directories open without a word

    return logging.getLogger("lastword.settings")


DEFAULTS_OF_BROKERS = {
    "log.cleanup.policy": "cleanup.policy",
    "log.segment.bytes": "segment.bytes",
    "log.roll.ms": "segment.ms",
    "log.roll.jitter.ms": "segment.jitter.ms",
    "log.index.size.max.bytes": "segment.index.bytes",
    "log.index.interval.bytes": "index.interval.bytes",
    "log.retention.ms": "retention.ms",
    "log.retention.bytes": "retention.bytes",
    "log.segment.delete.delay.ms": "file.delete.delay.ms",
    "log.cleaner.delete.retention.ms": "delete.retention.ms",
    "log.cleaner.min.compaction.lag.ms": "min.compaction.lag.ms",
    "log.cleaner.max.compaction.lag.ms": "max.compaction.lag.ms",
    "log.cleaner.min.cleanable.ratio": "min.cleanable.dirty.ratio",
    "log.message.timestamp.type": "message.timestamp.type",
    "message.max.bytes": "max.message.bytes",
    "compression.type": "compression.type",
}
"""Kafka's names of a broker's defaults, each with the topic setting whose default it is."""
REMOTE = "remote.storage.enable"
DECIDING = TopicConfig(cleanup_policy=frozenset(POLICIES)).deciding
"""The settings that decide what is removed."""
BY_HAND = "`lastword config DIR TOPIC` shows which settings are unknown, and --set NAME=VALUE sets them here"


@dataclass
class ClusterMetadata:
    """The settings after all metadata records. Values are texts under Kafka's names.

    Attributes:
        topic_ids: Topic id of each topic.
        configs: Settings of each resource, by (kind, name).
    """

    topic_ids: dict[str, str] = field(default_factory=dict)
    configs: dict[tuple[int, str], dict[str, str]] = field(default_factory=dict)

    def apply(self, record: InternalRecord) -> None:
        """Apply one record. Records of other kinds change nothing here."""
        fields: dict[str, Any] = record.value or {}
        if record.type == "TopicRecord":
            self.topic_ids[fields["name"]] = fields["topicId"]
        elif record.type == "RemoveTopicRecord":
            for name in [name for name, topic_id in self.topic_ids.items() if topic_id == fields["topicId"]]:
                del self.topic_ids[name]
                self.configs.pop((TOPIC, name), None)
        elif record.type == "ConfigRecord":
            settings = self.configs.setdefault((fields["resourceType"], fields["resourceName"]), {})
            if fields["value"] is None:
                settings.pop(fields["name"], None)
            else:
                settings[fields["name"]] = fields["value"]


def read_cluster_metadata(files: Files, directory: str) -> ClusterMetadata:
    """Return the settings in the newest snapshot and the log behind it.

    Args:
        files: The storage.
        directory: The partition's directory, `__cluster_metadata-0`.

    Raises:
        DataError: A batch is damaged, or a snapshot or the log that continues it is missing.
    """
    metadata = ClusterMetadata()
    pending: list[InternalRecord] | None = None  # the records of the controller's open transaction
    for record in _records(files, directory):
        if record.type == "BeginTransactionRecord":
            pending = []
        elif record.type == "AbortTransactionRecord":
            pending = None
        elif record.type == "EndTransactionRecord":
            for held in pending or ():
                metadata.apply(held)
            pending = None
        elif pending is not None:
            pending.append(record)
        else:
            metadata.apply(record)
    return metadata


def _records(files: Files, directory: str) -> Iterator[InternalRecord]:
    snapshots = [
        (parsed, name)
        for name in files.listdir(directory)
        if (parsed := names.metadata_snapshot(name)) is not None
    ]
    start = 0
    if snapshots:
        (start, _), newest = max(snapshots)
        yield from _snapshot_records(files, os.path.join(directory, newest))
    view = PartitionView.load(DirectorySegments(files, directory))
    if view.log_start > start:
        raise CorruptFileError(
            f"{directory} begins at offset {view.log_start}, and no snapshot reaches to it",
            remedy="restore the newest .checkpoint file of this directory from a copy",
            file=directory,
        )
    for segment, header, data in view.batches(start):
        yield from _batch_records(data, header, segment.file, start)


def _snapshot_records(files: Files, path: str) -> Iterator[InternalRecord]:
    with files.open_read(path) as handle:
        for header in headers(handle, path, 0, handle.size()):
            yield from _batch_records(handle.pread(header.size, header.position), header, path, 0)


def _batch_records(data: bytes, header: Any, file: str, start: int) -> Iterator[InternalRecord]:
    from lastword.records.internal import METADATA, UndecodableError, UnknownTypeError, decode

    check_crc(data, header, file, position=0)
    if header.control:
        return
    for record in read_records(data, header, file, position=0):
        if record.offset >= start:
            try:
                yield decode(METADATA, record.key, record.value)
            except UnknownTypeError:
                _log().debug("%s offset %d is of a newer Kafka and is passed over", file, record.offset)
            except UndecodableError as error:  # the record may change a policy
                raise CorruptFileError(
                    f"the record at offset {record.offset} cannot be decoded: {error}",
                    remedy="set the policies here: lastword config DIR TOPIC --set cleanup.policy=...",
                    file=file,
                    position=header.position,
                ) from None


@dataclass(frozen=True)
class _Unpickled:
    """The settings of a cluster's topics as they were when `BrokerSettings` was pickled."""

    topics: dict[str, Layer]
    of_all: Layer

    def topic(self, name: str) -> Layer:
        return self.topics.get(name, {})

    def defaults(self) -> Layer:
        return self.of_all


class BrokerSettings:
    """The settings of a cluster's topics, read when they are first needed.

    After `refresh` they are read again if the metadata changed. Where they are not known, each value that
    decides what is removed is `Unread`: in a directory of a broker whose metadata is elsewhere, if the
    metadata is damaged, and for a topic that is not the cluster's.

    Args:
        files: The storage.
        roots: The log directories.
        source: The directory that holds the metadata, or a broker's server.properties; None: the first of
            `roots` that holds the metadata. Nothing is written there.
    """

    def __init__(self, files: Files, roots: Sequence[str], source: str | None = None) -> None:
        self._files = files
        self._roots = list(roots)
        self._broker = None if source is None else read_broker(files, source)
        self._metadata: ClusterMetadata | None = None
        self._unknown: tuple[str, str] | None = None  # why the settings are not known, and what to do
        self._seen: object = self  # not what a fingerprint is
        self._stale = True
        self._places: dict[str, list[str]] | None = None
        self._of_all: Layer | None = None
        self._said: set[str] = set()

    @property
    def source(self) -> str | None:
        """The directory that was named for the metadata."""
        return None if self._broker is None else self._broker.metadata

    def __reduce__(self) -> tuple[type[_Unpickled], tuple[dict[str, Layer], Layer]]:
        """Pickle the values: the files belong to this process."""
        metadata = self._read()
        topics = self._directories() if metadata is not None or self._unknown is not None else ()
        return _Unpickled, ({name: self.topic(name) for name in topics}, self.defaults())

    def refresh(self) -> BrokerSettings:
        """Read the metadata again at the next use, if its files changed."""
        self._stale = True
        return self

    def topic(self, name: str) -> Layer:
        """Return a topic's own settings, with their source."""
        metadata = self._read()
        if (metadata is None and self._unknown is None) or name not in self._directories():
            return {}  # there is no cluster, or no such topic yet
        if metadata is None:
            assert self._unknown is not None
            return unread(*self._unknown, DECIDING)
        own, wanted = self._id_on_disk(name), metadata.topic_ids.get(name)
        if own is None or own != wanted:
            other = "no topic of that name" if wanted is None else f"the topic id {wanted}"
            why = f"its topic id is {own or 'missing'}, and its cluster has {other}"
            return unread(why, BY_HAND, DECIDING)
        settings = metadata.configs.get((TOPIC, name), {})
        layer = self._layer(settings.items(), f"{SOURCE} topic {name}")
        if settings.get(REMOTE, "").strip().lower() == "true":
            why = f"{REMOTE} is set, and what the remote storage holds is not known here"
            layer |= unread(why, BY_HAND, ["retention.ms"])
        return layer

    def defaults(self) -> Layer:
        """Return the defaults of topics: of the broker's file, then those that were changed at run time."""
        metadata = self._read()
        if self._of_all is not None:
            return self._of_all
        layer: Layer = {}
        if self._broker is not None and self._broker.defaults is not None:
            layer = self._layer(self._broker.defaults.items(), names.SERVER_PROPERTIES)
        elif metadata is not None:
            layer = unread(
                "it has no retention.ms of its own, and the broker's default is in its server.properties",
                "--metadata PATH (in Python metadata=) reads that file, or "
                "`lastword config DIR TOPIC --set retention.ms=...` sets it here",
                ["retention.ms"],
            )
        nodes = {read_ids(self._files, root).get("node.id") for root in self._roots} if metadata else set()
        for name in ("", *filter(None, nodes)):
            settings = metadata.configs.get((BROKER, name), {}) if metadata else {}
            known = (
                (DEFAULTS_OF_BROKERS[key], value)
                for key, value in settings.items()
                if key in DEFAULTS_OF_BROKERS
            )
            layer |= self._layer(known, f"{SOURCE} {f'broker {name}' if name else 'brokers'}")
        self._of_all = layer
        return layer

    def _read(self) -> ClusterMetadata | None:
        if self._stale:
            self._stale, self._places, self._of_all = False, None, None
            try:
                seen = self._fingerprint()
                if seen != self._seen:
                    self._seen = seen
                    self._metadata = read_cluster_metadata(self._files, seen[0]) if seen else None
                    self._unknown = None if seen else self._elsewhere()
            except LastwordError as error:
                self._metadata = None
                self._unknown = f"the settings of its cluster cannot be read: {error.message}", BY_HAND
                self._say(f"the settings of the cluster's topics cannot be read: {error}")
        return self._metadata

    def _elsewhere(self) -> tuple[str, str] | None:
        """Return why the settings of a broker's directory are not known; None: a broker made none of them."""
        for root in self._roots:
            is_made_by_broker = False
            with suppress(StorageError):  # the directory is offline
                is_made_by_broker = made_by_broker(self._files, root)
            if is_made_by_broker:
                why = f"{names.METADATA_DIR}, which has the settings of its cluster, is not in {root}"
                if "://" in root:
                    return why, BY_HAND
                return why, (
                    "--metadata PATH (in Python metadata=) names the directory that holds it "
                    "(metadata.log.dir), or the broker's server.properties"
                )
        return None

    def _fingerprint(self) -> tuple[str, tuple[Any, ...]] | None:
        """Return the metadata's directory with the names and sizes of its files; None if there is none."""
        for root in self._roots if self._broker is None else [self._broker.metadata]:
            directory = os.path.join(root, names.METADATA_DIR)
            if self._files.is_dir(directory):
                listing = sorted(self._files.listdir(directory))
                kept = [name for name in listing if name.endswith((names.LOG, ".checkpoint"))]
                return directory, tuple(
                    (name, self._files.stat(os.path.join(directory, name))) for name in kept
                )
        return None

    def _directories(self) -> dict[str, list[str]]:
        """Return the directories of each topic's partitions. Listed once for all topics."""
        if self._places is None:
            self._places = {}
            for root in self._roots:
                listing: Sequence[str] = ()
                with suppress(StorageError):  # the directory is offline
                    listing = self._files.listdir(root) if self._files.is_dir(root) else ()
                for name in listing:
                    parsed = names.parse_partition_dir(name)
                    if parsed is not None and not parsed.marker:
                        self._places.setdefault(parsed.topic, []).append(os.path.join(root, name))
        return self._places

    def _id_on_disk(self, topic: str) -> str | None:
        """Return the topic's id, from the first of its partitions that has one."""
        for directory in self._directories()[topic]:
            with suppress(DataError):  # raised when that partition is used
                topic_id = read_topic_id(self._files, directory)
                if topic_id is not None:
                    return topic_id
        return None

    def _layer(self, settings: Iterable[tuple[str, str]], source: str) -> Layer:
        """Return the settings that exist here, as values. Kafka has some that concern only brokers."""
        layer: Layer = {}
        for name, text in settings:
            setting = TOPIC_SETTINGS.get(name)
            if setting is None:
                continue
            try:
                layer[name] = SourcedValue(setting.read_kafka(text), source)
            except ValueError as error:
                if name in DECIDING:
                    why = f"its {name} in {source} cannot be read: {error}"
                    remedy = f"`lastword config DIR TOPIC --set {name}=...` sets it here"
                    layer[name] = SourcedValue(Unread(why, remedy), f"{UNKNOWN}: {source}")
                else:
                    self._say(f"{source}: {name}={text} is not used: {error}")
        return layer

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            _log().warning("lastword: %s", text)


# ---------------------------------------------------------------- the file of a broker


class BrokerFile(NamedTuple):
    """Where a broker keeps its metadata.

    Attributes:
        metadata: The directory that holds `__cluster_metadata-0`.
        defaults: The defaults of topics in its server.properties, by the topic's setting; None: unknown.
    """

    metadata: str
    defaults: dict[str, str] | None


def read_broker(files: Files, source: str) -> BrokerFile:
    """Return the place of a broker's metadata. `source`: its directory, or a server.properties.

    Raises:
        NotALogDirError: There is no metadata.
    """
    defaults = None
    metadata = source
    if not files.is_dir(source):
        properties = read_properties(source)
        dirs = properties.get("log.dirs") or properties.get("log.dir", "")
        metadata = properties.get("metadata.log.dir") or dirs.split(",")[0].strip()
        defaults = _file_defaults(properties)
    if not files.is_dir(os.path.join(metadata, names.METADATA_DIR)):
        raise NotALogDirError(
            f"{metadata or source} has no {names.METADATA_DIR}",
            remedy="name the directory of the setting metadata.log.dir, or the broker's server.properties",
            file=metadata or source,
        )
    return BrokerFile(metadata, defaults)


def _file_defaults(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the defaults of topics in a server.properties. Longer units have less weight, as in Kafka."""
    found = {}
    for key, topic_setting in DEFAULTS_OF_BROKERS.items():
        text = properties.get(key)
        for unit, factor in (("minutes", 60_000), ("hours", 3_600_000)):
            longer = properties.get(f"{key.removesuffix('.ms')}.{unit}") if text is None else None
            if longer is not None:  # not a number: the setting cannot be read
                number = longer.strip()
                text = str(int(number) * factor) if re.fullmatch(r"[+-]?\d+", number) else longer
        if text is not None:
            negative = topic_setting == "retention.ms" and text.strip().startswith("-")
            found[topic_setting] = "-1" if negative else text
    return found
