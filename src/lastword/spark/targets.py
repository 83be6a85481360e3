"""The topics that a write goes to, found or made, as tasks need them."""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lastword.api.partitioners import murmur2_partitions
from lastword.config import TOPIC_SETTINGS, TopicConfig, parse_topic_settings
from lastword.errors import KeyRequiredError, LogDirLockedError, SparkOptionError
from lastword.files import DEFAULT, Files
from lastword.ingest.apply import open_to_append
from lastword.logdir.discover import discover
from lastword.logdir.log_dir import LogDirectory
from lastword.segment import names
from lastword.spark.options import WriteOptions
from lastword.spark.schema import SinkColumns

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

LOCK_PATIENCE_SECONDS = 10
"""A process that holds the lock for longer is not a commit: it has the directory open."""

CODECS = {"producer": 0, "uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@dataclass(frozen=True, slots=True)
class Target:
    """The properties of a topic that a task needs. A recreated topic has another `topic_id`."""

    topic: str
    partitions: int
    partitioner: str
    compacts: bool
    codec: int
    level: int | None
    max_message_bytes: int
    topic_id: str | None = None

    @classmethod
    def of(cls, topic: str, partitions: int, config: TopicConfig, topic_id: str | None = None) -> Target:
        return cls(
            topic,
            partitions,
            config.lastword_partitioner or "murmur2",
            config.compacts,
            CODECS[config.compression_type],
            config.compression_level,
            config.max_message_bytes,
            topic_id,
        )


def existing_target(path: str, topic: str, files: Files = DEFAULT) -> Target:
    """Return a topic as it is now.

    Raises:
        UnknownTopicError, NotALogDirError: There is no such topic or directory.
        SparkOptionError: Some of its partitions are in another directory. The partition of a key is computed
            among all of them.
    """
    directory = LogDirectory.open(path, "r", files)
    numbers = directory.partitions(topic)
    absent = sorted(set(range(max(numbers) + 1)).difference(numbers))
    if absent:
        listed, count = ", ".join(map(str, absent)), max(numbers) + 1
        raise SparkOptionError(
            f"of topic {topic} {listed} of {count} partitions are not in {path}",
            remedy="write to a directory that holds all of them",
        )
    return Target.of(topic, len(numbers), directory.topic_config(topic), directory.topic_id(topic))


def make_target(options: WriteOptions, columns: SinkColumns) -> Target:
    """Return the topic of option `topic`. Make it, with the settings among the options, if it is new.

    SparkOptionError if it exists and differs from the options. A new topic stores the serializer `str` for
    string columns, so that Python reads them as strings.
    """
    topic = names.check_topic(options.topic or "")
    settings = parse_topic_settings({"cleanup.policy": "compact", **options.settings})
    if exists(options.path, topic):
        target = existing_target(options.path, topic)
        _check_same(options, target, LogDirectory.open(options.path, "r").topic_config(topic))
    else:
        for which, is_text in (("key", columns.key_is_text), ("value", columns.value_is_text)):
            settings.setdefault(f"lastword.{which}.serializer", "str" if is_text else "bytes")
        target = None
    compacts = target.compacts if target is not None else "compact" in settings["cleanup.policy"]
    if compacts and columns.key is None:
        raise KeyRequiredError.of(topic)
    if target is None:
        with _locked(options) as directory:
            directory.create_topic(topic, options.partitions or 1, settings, exist_ok=True)
        target = existing_target(options.path, topic)
    return target


def _locked(options: WriteOptions) -> LogDirectory:
    """Open the directory with its lock, which commits of other queries hold for a moment each."""
    deadline = time.monotonic() + min(options.commit_timeout_ms / 1000, LOCK_PATIENCE_SECONDS)
    while True:
        try:
            return open_to_append(options.path)
        except LogDirLockedError as error:
            if time.monotonic() >= deadline:
                error.remedy = f"make topic {options.topic} in that process: create_topic; or stop it"
                raise
            time.sleep(0.05)


def exists(path: str, topic: str) -> bool:
    """Return whether the topic exists. An absent or empty directory has none."""
    return DEFAULT.exists(path) and topic in discover(DEFAULT, path).topics()


def _check_same(options: WriteOptions, target: Target, config: TopicConfig) -> None:
    wrong = []
    if options.partitions is not None and options.partitions != target.partitions:
        wrong.append(f"has {target.partitions} partitions, not {options.partitions}")
    for name, wanted in parse_topic_settings(options.settings).items():
        has = getattr(config, name.replace(".", "_"))
        if has != wanted:
            setting = TOPIC_SETTINGS[name]
            wrong.append(f"has {name} = {setting.show(has)}, not {setting.show(wanted)}")
    if wrong:
        raise SparkOptionError(
            f"topic {target.topic} is there already and {'; '.join(wrong)}",
            remedy=f"leave the option out, or: lastword config {options.path} {target.topic} --set ...",
        )


BULK = ("murmur2", "crc32")


def partitions_of(keys: pa.Array, partitions: int, partitioner: str) -> np.ndarray:
    """Return the int64 partition of each key of a binary array without nulls, as `api.partitioners` does.

    Only the named partitioners are known here: a callable of the topic's creator cannot travel to tasks, so
    such a topic needs a column `partition`.
    """
    import numpy as np

    if partitioner not in BULK:
        raise SparkOptionError(
            f"the topic's partitioner {partitioner!r} is a function that tasks do not have",
            remedy="give the frame a column `partition`",
        )
    if partitions == 1 or len(keys) == 0:
        return np.zeros(len(keys), np.int64)
    if partitioner == "crc32":
        return np.fromiter((zlib.crc32(key.as_py()) % partitions for key in keys), np.int64, len(keys))
    return murmur2_partitions(keys, partitions)
