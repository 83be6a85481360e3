"""Open and create the topics and states of a log directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lastword.api.open_dirs import OpenDirs, PathLike
from lastword.api.schema import PartitionerLike, TopicSchema, partitioner_of
from lastword.api.serializers import SerializerLike, contradicts, serializer_of
from lastword.api.topic import Topic
from lastword.config import TOPIC_SETTINGS, TopicConfig, parse_topic_settings, write_topic_settings
from lastword.errors import InvalidSettingError, LastwordError, TopicExistsError, UsageError
from lastword.logdir import LogDirectory, partition_numbers
from lastword.segment import names
from lastword.values import ProgressLike, listener

if TYPE_CHECKING:
    from lastword.api.reader import Bounds
    from lastword.state.state import State


def open_topic(
    dirs: OpenDirs,
    name: str,
    *,
    key_serializer: SerializerLike | None = None,
    value_serializer: SerializerLike | None = None,
    partitioner: PartitionerLike | None = None,
) -> Topic[Any, Any]:
    """See `LogDir.topic`."""
    numbers, config = dirs.partitions(name), dirs.config(name)
    schema = TopicSchema.of(
        name,
        numbers,
        config,
        key_serializer=key_serializer,
        value_serializer=value_serializer,
        partitioner=partitioner,
    )
    return Topic(dirs, schema, config)


def create_topic(
    dirs: OpenDirs,
    name: str,
    partitions: int | None,
    *,
    key_serializer: SerializerLike | None,
    value_serializer: SerializerLike | None,
    partitioner: PartitionerLike | None = None,
    exist_ok: bool = False,
    config: Mapping[str, Any],
) -> Topic[Any, Any]:
    """See `LogDir.create_topic`."""
    dirs.require_writable()
    names.check_topic(name)
    asked = {
        "lastword_key_serializer": serializer_of(key_serializer or "bytes").name,
        "lastword_value_serializer": serializer_of(value_serializer or "bytes").name,
        "lastword_partitioner": partitioner_of(partitioner or "murmur2")[0],
    }
    if name in dirs.topics():
        if not exist_ok:
            raise TopicExistsError(
                f"{dirs.paths[0]} has a topic {name!r} already", remedy="exist_ok=True takes it as it is"
            )
        if isinstance(partitioner, str):
            config = {"lastword_partitioner": partitioner, **config}
        _refuse_contradictions(dirs, name, partitions, (key_serializer, value_serializer), config)
    else:
        settings = {key: value for key, value in asked.items() if value is not None} | dict(config)
        _create(dirs, name, 1 if partitions is None else partitions, settings)
    return open_topic(
        dirs,
        name,
        key_serializer=None if isinstance(key_serializer, str) else key_serializer,
        value_serializer=None if isinstance(value_serializer, str) else value_serializer,
        partitioner=None if isinstance(partitioner, str) else partitioner,
    )


def _refuse_contradictions(
    dirs: OpenDirs,
    name: str,
    partitions: int | None,
    serializers: tuple[SerializerLike | None, SerializerLike | None],
    config: Mapping[str, Any],
) -> None:
    """Raise InvalidSettingError if an argument contradicts an existing topic. None is not given."""
    saved = dirs.settings.topic(name, saved=True)
    problems, remedies = [], []
    count = max(dirs.partitions(name), default=-1) + 1
    if partitions is not None and partitions != count:
        problems.append(f"partitions is {count}, not {partitions!r}")
        remedies.append("leave partitions out")
    for part, given in zip(("key", "value"), serializers, strict=True):
        known = getattr(saved, f"lastword_{part}_serializer")
        if contradicts(known, given):
            problems.append(f"its {part}s are {known}, as saved with the topic, not {given}")
            remedies.append(f"leave {part}_serializer out")
    changes = {}
    for setting, value in parse_topic_settings(config).items():
        known = getattr(saved, TOPIC_SETTINGS[setting].keyword)
        if value is not None and value != known:
            show = TOPIC_SETTINGS[setting].show
            problems.append(f"{setting} is {show(known)}, not {show(value)}")
            changes[TOPIC_SETTINGS[setting].keyword] = show(value)
    if changes:
        arguments = ", ".join(f"{keyword}={value!r}" for keyword, value in changes.items())
        remedies.append(f"to change it: logs.set_config({name!r}, {arguments})")
    if problems:
        raise InvalidSettingError(
            f"topic {name!r} is there already, and {'; '.join(problems)}",
            problems=problems,
            remedy="; ".join(remedies),
        )


def _create(dirs: OpenDirs, name: str, partitions: int, settings: Mapping[str, Any]) -> None:
    """Create partitions in the directories with the fewest; all have one topic id."""
    partition_numbers(partitions)
    placed = dirs.dir_set.assign(partitions)
    own = {os.path.join(log_dir.path, names.SETTINGS): log_dir for log_dir in placed}
    if len(placed) > 1 or dirs.settings_file not in own:
        # Several directories share one settings file; it is written first, as a directory does with its
        # own.
        write_topic_settings(dirs.files, dirs.settings_file, name, settings)
        settings = {}
    made: list[LogDirectory] = []
    try:
        for log_dir, numbers in placed.items():
            topic_id = made[0].topic_id(name) if made else None
            log_dir.reload_settings()
            log_dir.create_topic(name, numbers, settings, topic_id=topic_id)
            made.append(log_dir)
    except LastwordError:
        for log_dir in made:
            log_dir.delete_topic(name)
        raise
    finally:
        dirs.reload()  # without notifying the background: nothing of a new topic is due
    dirs.dir_set.write_list()


def open_state(
    dirs: OpenDirs,
    name: str,
    serializers: tuple[SerializerLike | None, SerializerLike | None],
    *,
    partitions: int | None,
    default: Callable[[], Any] | None,
    end: Bounds,
    snapshot: PathLike | None,
    max_bytes: int | None,
    progress: ProgressLike | bool | None,
    config: Mapping[str, Any],
) -> State[Any, Any]:
    """See `LogDir.state`."""
    from lastword.api.reader import ranges
    from lastword.state.state import State, StateSource

    if default is not None and not callable(default):
        raise UsageError(
            f"default={default!r} is no function", remedy="default=int makes 0 of a key that is not there"
        )
    key_serializer, value_serializer = serializers
    if dirs.mode == "a" and name not in dirs.topics():
        config = {"cleanup_policy": "compact", **config}
        given = {TOPIC_SETTINGS[n].keyword: v for n, v in parse_topic_settings(config).items()}
        check_keeps_keys(name, dirs.config(name).replace(**given))
        topic = create_topic(
            dirs,
            name,
            partitions,
            key_serializer=key_serializer or "str",
            value_serializer=value_serializer or "json",
            config=config,
        )
    else:
        if dirs.mode == "a":
            _refuse_contradictions(dirs, name, partitions, serializers, config)
            if end == "latest":
                check_keeps_keys(name, dirs.config(name))
        else:
            dirs.partitions(name)
            if partitions is not None or config:
                _refuse_contradictions(dirs, name, partitions, (None, None), config)
        saved = dirs.config(name)
        topic = open_topic(
            dirs,
            name,
            key_serializer=key_serializer or (None if saved.lastword_key_serializer else "str"),
            value_serializer=value_serializer or (None if saved.lastword_value_serializer else "json"),
        )
    start = None
    if snapshot is not None:
        from lastword.api.restore import SnapshotFile

        start = SnapshotFile(dirs, os.fspath(snapshot), topic.schema)
    source = StateSource(
        log=open_topic(dirs, name, key_serializer="bytes", value_serializer="bytes"),
        views=lambda: dirs.views(name),
        ranges=None if end == "latest" else lambda views: ranges(views, "earliest", end),
        sync=dirs.sync,
        first_dirty=lambda partition: dirs.first_dirty(name, partition),
        map_bytes=dirs.settings.instance.map_bytes,
        ttl_ms=dirs.config(name).lastword_ttl_ms,
        now_ms=dirs.clock.now_ms,
    )
    return State(
        topic,
        source,
        (topic.schema.key, topic.schema.value),
        default=default,
        max_bytes=max_bytes,
        snapshot=start,
        progress=listener(progress),
    )


def check_keeps_keys(topic: str, config: TopicConfig) -> None:
    """Raise UsageError if the topic's policy deletes keys of a state, or is unknown."""
    policy = config.cleanup_policy
    retains = config.retention_ms < 0 and config.retention_bytes < 0
    if policy is not None and "compact" in policy and ("delete" not in policy or retains):
        return
    if policy is None:
        why = "it has no cleanup.policy, so its log grows without end"
    else:
        limits = [
            f"{name} = {TOPIC_SETTINGS[name].show(value)}"
            for name, value in (
                ("retention.ms", config.retention_ms),
                ("retention.bytes", config.retention_bytes),
            )
            if value >= 0
        ]
        named = ",".join(sorted(policy))
        ends = f" ({' and '.join(limits)})" if limits else ""
        why = f"its cleanup.policy is {named}: retention{ends} deletes keys without a tombstone"
        if "compact" not in policy and not limits:
            why = f"its cleanup.policy is {named}: superseded values are never removed"
    raise UsageError(
        f"a state cannot live in topic {topic!r}: {why}",
        remedy=f'logs.set_config({topic!r}, cleanup_policy="compact"); '
        f'to look only, open the directory with mode "r"',
    )
