"""Read the settings that a KRaft cluster holds for its topics.

A broker in KRaft mode keeps the settings of topics in the records of `__cluster_metadata-0`, which by default
is in its first log directory. The newest snapshot there (`<end offset>-<epoch>.checkpoint`) stands for all
records below its end offset; the log continues it. Snapshots and log are Kafka's batches, so they are read as
every log is: without a lock, up to the last complete batch.

Two kinds of settings are applied: a topic's own, and the defaults that were changed while brokers ran.
`server.properties` is in no log directory, so a topic whose `cleanup.policy` was never set has no known
policy here, and nothing is removed from it. A topic whose directory has another topic id than the metadata
names (deleted and created again, or a copy) gets no settings from there. A record of a known type that cannot
be decoded makes all of the metadata unreadable, since it may change a policy.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lastword.config import TOPIC_SETTINGS
from lastword.config.settings import Layer, SourcedValue
from lastword.errors import CorruptFileError, DataError, LastwordError
from lastword.files import Files
from lastword.logdir.identity import read_node_id, read_topic_id
from lastword.partition.directory_segments import DirectorySegments
from lastword.segment import names

if TYPE_CHECKING:
    from lastword.records.internal import InternalRecord

log = logging.getLogger("lastword.settings")

TOPIC = 2
BROKER = 4
"""Kinds of resources in a ConfigRecord, as in Kafka's ConfigResource."""

SOURCE = "__cluster_metadata"

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
    from lastword.partition.view import PartitionView

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
    from lastword.segment.scan import headers

    with files.open_read(path) as handle:
        for header in headers(handle, path, 0, handle.size()):
            yield from _batch_records(handle.pread(header.size, header.position), header, path, 0)


def _batch_records(data: bytes, header: Any, file: str, start: int) -> Iterator[InternalRecord]:
    from lastword.records.formats import check_crc, read_records
    from lastword.records.internal import METADATA, UndecodableError, UnknownTypeError, decode

    check_crc(data, header, file, position=0)
    if header.control:
        return
    for record in read_records(data, header, file, position=0):
        if record.offset >= start:
            try:
                yield decode(METADATA, record.key, record.value)
            except UnknownTypeError:
                log.debug("%s offset %d is of a newer Kafka and is passed over", file, record.offset)
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

    After `refresh` they are read again if the metadata changed. A damaged metadata log gives no settings: no
    policy is known then, so nothing is removed, and a warning says why.
    """

    def __init__(self, files: Files, roots: Sequence[str]) -> None:
        self._files = files
        self._roots = list(roots)
        self._metadata: ClusterMetadata | None = None
        self._seen: object = None
        self._stale = True
        self._node_id: str | None = None
        self._ids: dict[str, str | None] = {}

    def __reduce__(self) -> tuple[type[_Unpickled], tuple[dict[str, Layer], Layer]]:
        """Pickle the values: the files belong to this process."""
        metadata = self._read()
        topics = [name for kind, name in metadata.configs if kind == TOPIC] if metadata else []
        return _Unpickled, ({name: self.topic(name) for name in topics}, self.defaults())

    def refresh(self) -> BrokerSettings:
        """Read the metadata again at the next use, if its files changed."""
        self._stale = True
        return self

    def topic(self, name: str) -> Layer:
        """Return a topic's own settings, with their source."""
        metadata = self._read()
        settings = metadata.configs.get((TOPIC, name)) if metadata else None
        if not settings or metadata is None or self._id_on_disk(name) != metadata.topic_ids.get(name):
            return {}
        return _layer(settings.items(), f"{SOURCE} topic {name}")

    def defaults(self) -> Layer:
        """Return the defaults of topics that were changed at run time, for all brokers and for this one."""
        metadata = self._read()
        layer: Layer = {}
        for name in ("", self._node_id or "") if metadata else ():
            settings = metadata.configs.get((BROKER, name), {}) if metadata else {}
            known = (
                (DEFAULTS_OF_BROKERS[key], value)
                for key, value in settings.items()
                if key in DEFAULTS_OF_BROKERS
            )
            layer |= _layer(known, f"{SOURCE} {f'broker {name}' if name else 'brokers'}")
        return layer

    def _read(self) -> ClusterMetadata | None:
        if self._stale:
            self._stale = False
            try:
                seen = self._fingerprint()
                if seen != self._seen:
                    self._seen, self._ids = seen, {}
                    self._metadata = read_cluster_metadata(self._files, seen[0]) if seen else None
                    self._node_id = read_node_id(self._files, os.path.dirname(seen[0])) if seen else None
            except LastwordError as error:
                self._metadata = None
                log.warning("lastword: the settings of the cluster's topics cannot be read: %s", error)
        return self._metadata

    def _fingerprint(self) -> tuple[str, tuple[Any, ...]] | None:
        """Return the metadata's directory with the names and sizes of its files; None if there is none."""
        for root in self._roots:
            directory = os.path.join(root, names.METADATA_DIR)
            if self._files.is_dir(directory):
                listing = sorted(self._files.listdir(directory))
                kept = [name for name in listing if name.endswith((names.LOG, ".checkpoint"))]
                return directory, tuple(
                    (name, self._files.stat(os.path.join(directory, name))) for name in kept
                )
        return None

    def _id_on_disk(self, topic: str) -> str | None:
        if topic not in self._ids:
            self._ids[topic] = next(self._ids_on_disk(topic), None)
        return self._ids[topic]

    def _ids_on_disk(self, topic: str) -> Iterator[str]:
        for root in self._roots:
            for name in self._files.listdir(root) if self._files.is_dir(root) else ():
                parsed = names.parse_partition_dir(name)
                if parsed is not None and not parsed.marker and parsed.topic == topic:
                    try:
                        topic_id = read_topic_id(self._files, os.path.join(root, name))
                    except DataError:
                        continue  # raised when that partition is used
                    if topic_id is not None:
                        yield topic_id


def _layer(settings: Iterable[tuple[str, str]], source: str) -> Layer:
    """Return the settings that exist here, as checked values. Kafka has some that concern only brokers."""
    layer: Layer = {}
    for name, text in settings:
        setting = TOPIC_SETTINGS.get(name)
        if setting is not None:
            try:
                layer[name] = SourcedValue(setting.read(text), source)
            except ValueError as error:
                log.warning("lastword: %s: %s=%s is not used: %s", source, name, text, error)
    return layer
