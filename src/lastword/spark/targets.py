"""The topics that a write goes to: found and compared with the options, or made. The partition of a key."""

from __future__ import annotations

import json
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lastword.api.schema import murmur2_partitions
from lastword.arrow import pa
from lastword.config import TOPIC_SETTINGS, TopicConfig, parse_topic_settings
from lastword.errors import KeyRequiredError, LogDirLockedError, SparkOptionError, UnknownTopicError
from lastword.files import DEFAULT, Files
from lastword.ingest.apply import open_to_append
from lastword.ingest.staging import Writers
from lastword.logdir.log_dir import LogDirectory
from lastword.logdir.topics import RootListing
from lastword.objects import is_url
from lastword.segment import names
from lastword.spark.bucket import files_at, open_directory, transaction
from lastword.spark.options import WriteOptions
from lastword.spark.schema import SinkColumns
from lastword.spark.splits import INTERNAL_TOPICS

if TYPE_CHECKING:
    import numpy as np

LOCK_PATIENCE_SECONDS = 10
"""A process that holds the lock for longer is no commit: it has the directory open."""


@dataclass(frozen=True, slots=True)
class TargetTopic:
    """A topic as a task needs it. A recreated topic has another `topic_id`."""

    topic: str
    partitions: int
    config: TopicConfig
    topic_id: str | None


def existing_target(path: str, topic: str, files: Files = DEFAULT) -> TargetTopic:
    """Return an existing topic.

    Raises:
        UnknownTopicError, NotALogDirError: There is no such topic or directory.
        SparkOptionError: Some of its partitions are in another directory. The partition of a key is computed
            among all of them.
    """
    directory = open_directory(path, files=files)
    numbers = directory.partitions(topic)
    absent = sorted(set(range(max(numbers) + 1)).difference(numbers))
    if absent:
        listed, count = ", ".join(map(str, absent)), max(numbers) + 1
        raise SparkOptionError(
            f"partitions {listed} of topic {topic}, which has {count}, are not in {path}",
            remedy="write to a directory that holds all of them",
        )
    return TargetTopic(topic, len(numbers), directory.topic_config(topic), directory.topic_id(topic))


def check_own(topic: str) -> None:
    """Raise SparkOptionError for a topic of brokers."""
    if topic in INTERNAL_TOPICS:
        raise SparkOptionError(
            f"{topic} is a topic of brokers: records of another program would damage it",
            remedy="name a topic of your own",
        )


def make_target(options: WriteOptions, columns: SinkColumns, query: str | None = None) -> TargetTopic:
    """Return the topic of option `topic`. A new topic is made with the settings among the options.

    A new topic stores the serializers of the columns, so that Python reads a string column as strings and
    JSON as objects. `query`: the checkpoint of a streaming query, if it is known.

    Raises:
        SparkOptionError: The topic exists and differs from the options.
        UnknownTopicError: The query has written to a topic of this name, which was deleted since.
    """
    topic = names.check_topic(options.topic or "")
    check_own(topic)
    files = files_at(options.path, options.storage)
    if not exists(options.path, topic, files):
        if query is not None and files.exists(options.path):
            check_never_written(files, options.path, topic, query)
        settings = parse_topic_settings({"cleanup.policy": "compact", **options.settings})
        settings.setdefault("lastword.key.serializer", columns.key_serializer)
        settings.setdefault("lastword.value.serializer", columns.value_serializer)
        if "compact" in settings["cleanup.policy"] and columns.key is None:
            raise KeyRequiredError.of(topic)
        # Another job may make the topic at this moment, so the topic is compared in both cases.
        given = topic, options.partitions or 1, settings
        if is_url(options.path):
            transaction(
                options.path,
                options.storage,
                lambda dirs: dirs.directories[0].create_topic(*given, exist_ok=True),
            )
        else:
            with _locked(options) as directory:
                directory.create_topic(*given, exist_ok=True)
        files = files_at(options.path, options.storage)
    target = existing_target(options.path, topic, files)
    _check_same(options, target)
    if target.config.compacts and columns.key is None:
        raise KeyRequiredError.of(topic)
    return target


def check_never_written(files: Files, root: str, topic: str, checkpoint: str) -> None:
    """Raise UnknownTopicError if the query of a checkpoint has committed a batch to a topic of this name.

    The topic is not there, and a new one would lack all rows of the batches that the query does not repeat.
    A checkpoint that Python cannot read as a file is not checked.
    """
    path = Path(checkpoint.removeprefix("file://").removeprefix("file:"), "metadata")
    try:
        query_id = json.loads(path.read_text(encoding="utf-8"))["id"]
    except (OSError, ValueError, LookupError):
        return
    if Writers.load(files, root).has_written(topic, f"spark-{query_id}"):
        raise UnknownTopicError(
            f"topic {topic} is gone from {root}: it was deleted since the query of checkpoint {checkpoint} "
            "wrote to it",
            remedy="take a new checkpoint to write everything again; or make the topic, to write only "
            "new rows",
        )


def _locked(options: WriteOptions) -> LogDirectory:
    """Open the directory with its lock. Each commit of another query holds the lock for a moment."""
    deadline = time.monotonic() + min(options.commit_timeout_ms / 1000, LOCK_PATIENCE_SECONDS)
    while True:
        try:
            return open_to_append(options.path)
        except LogDirLockedError as error:
            if time.monotonic() >= deadline:
                error.remedy = f"make topic {options.topic} in that process: create_topic; or stop it"
                raise
            time.sleep(0.05)


def exists(path: str, topic: str, files: Files) -> bool:
    """Return whether the topic exists. An absent or empty log has no topics."""
    return files.exists(path) and topic in RootListing(files, path).get().numbers


def _check_same(options: WriteOptions, target: TargetTopic) -> None:
    wrong, changes = [], ""
    if options.partitions is not None and options.partitions != target.partitions:
        wrong.append(f"has {target.partitions} partitions, not {options.partitions}")
    for name, expected in parse_topic_settings(options.settings).items():
        actual = getattr(target.config, name.replace(".", "_"))
        if actual != expected:
            setting = TOPIC_SETTINGS[name]
            wrong.append(f"has {name} = {setting.show(actual)}, not {setting.show(expected)}")
            changes += f" --set {name}={setting.show(expected)}"
    if wrong:
        remedy = "leave the option out"
        if changes:
            remedy += f", or: lastword config {options.path} {target.topic}{changes}"
        raise SparkOptionError(f"topic {target.topic} is there already and {'; '.join(wrong)}", remedy=remedy)


NAMED_PARTITIONERS = ("murmur2", "crc32")


def partitions_of(keys: pa.Array, target: TargetTopic) -> np.ndarray:
    """Return the int64 partition of each key of a binary array without nulls, as `api.schema` does.

    Tasks have only the partitioners with a name. A callable of the topic's creator cannot travel to them, so
    such a topic needs a column `partition`.
    """
    import numpy as np

    partitioner, partitions = target.config.lastword_partitioner or "murmur2", target.partitions
    if partitioner not in NAMED_PARTITIONERS:
        raise SparkOptionError(
            f"the topic's partitioner {partitioner!r} is a function that tasks do not have",
            remedy="give the frame a column `partition`",
        )
    if partitions == 1 or len(keys) == 0:
        return np.zeros(len(keys), np.int64)
    if partitioner == "crc32":
        return np.fromiter((zlib.crc32(key.as_py()) % partitions for key in keys), np.int64, len(keys))
    return murmur2_partitions(keys, partitions)
