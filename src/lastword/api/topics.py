"""Open, create and delete topics.

Partitions of a new topic go to the directories with the fewest partitions, and one of several directories
has the settings of all topics. So a creation is undone after an error, and a deletion claims all partitions
before it changes a file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack, suppress
from typing import Any

from lastword.api.open_dirs import SAVED_DEFAULTS, OpenDirs
from lastword.api.schema import PartitionerLike, TopicSchema, partitioner_of
from lastword.api.serializers import SerializerLike, contradicts, serializer_of
from lastword.api.topic import Topic
from lastword.config import TOPIC_SETTINGS, parse_topic_settings
from lastword.errors import BusyError, InvalidSettingError, LastwordError, TopicExistsError, UnknownTopicError
from lastword.logdir import LogDirectory
from lastword.parse import check_count
from lastword.segment import names


def open_topic(
    dirs: OpenDirs,
    name: str,
    *,
    key_serializer: SerializerLike | None = None,
    value_serializer: SerializerLike | None = None,
    partitioner: PartitionerLike | None = None,
    numbers: Collection[int] | None = None,
) -> Topic[Any, Any]:
    """See `LogDir.topic`. `numbers`: its partitions, if the directory was listed already."""
    is_named = numbers is None
    numbers = dirs.partitions(name) if numbers is None else numbers
    config = dirs.config(name)  # read after the listing, which may have shown a new topic
    if is_named and config.damaged is not None:  # its serializers are not known; a list of topics has it
        raise config.damaged
    schema = TopicSchema.of(
        name,
        numbers,
        config,
        key_serializer=key_serializer,
        value_serializer=value_serializer,
        partitioner=partitioner,
    )
    return Topic(dirs, schema, config)


def settings_of_new(
    name: str,
    *,
    key_serializer: SerializerLike | None,
    value_serializer: SerializerLike | None,
    partitioner: PartitionerLike | None,
    config: Mapping[str, Any],
) -> dict[str, Any]:
    """Check the arguments of a new topic, and return the settings that it saves.

    Raises:
        InvalidTopicError: Kafka would refuse the name.
        UsageError: There is no such serializer or partitioner.
        InvalidSettingError: A setting is invalid.
    """
    names.check_topic(name)
    formats = {
        "lastword_key_serializer": serializer_of(key_serializer or "bytes").name,
        "lastword_value_serializer": serializer_of(value_serializer or "bytes").name,
        "lastword_partitioner": partitioner_of(partitioner or "murmur2")[0],
    }
    settings = {key: value for key, value in formats.items() if value is not None} | dict(config)
    parse_topic_settings(settings)
    return settings


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
    settings = settings_of_new(
        name,
        key_serializer=key_serializer,
        value_serializer=value_serializer,
        partitioner=partitioner,
        config=config,
    )
    dirs.check_new_topic(name, settings)

    def create(dirs: OpenDirs) -> None:
        with dirs.topics_lock:
            if not dirs.has_topic(name):
                _create(dirs, {name: (1 if partitions is None else partitions, settings)})
                return
        if not exist_ok:
            raise TopicExistsError(
                f"{dirs.paths[0]} already has a topic {name!r}", remedy="exist_ok=True returns it"
            )
        given = {"lastword_partitioner": partitioner} if isinstance(partitioner, str) else {}
        serializers = (key_serializer, value_serializer)
        refuse_contradictions(dirs, name, partitions, serializers, {**given, **config})

    dirs.transaction(create)
    return open_topic(
        dirs, name, key_serializer=key_serializer, value_serializer=value_serializer, partitioner=partitioner
    )


def refuse_contradictions(
    dirs: OpenDirs,
    name: str,
    partitions: int | None,
    serializers: tuple[SerializerLike | None, SerializerLike | None],
    config: Mapping[str, Any],
) -> None:
    """Raise InvalidSettingError if an argument contradicts an existing topic; None means not given."""
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
            f"topic {name!r} exists, and {'; '.join(problems)}", problems=problems, remedy="; ".join(remedies)
        )


def create_topics(dirs: OpenDirs, topics: Mapping[str, tuple[int, Mapping[str, Any]]]) -> None:
    """Create topics of bytes. After an error, none was created.

    Args:
        dirs: The directories.
        topics: The number of partitions and the settings of each topic.
    """

    def create(dirs: OpenDirs) -> None:
        with dirs.topics_lock:
            for name in topics:
                names.check_topic(name)
                if dirs.has_topic(name):
                    raise TopicExistsError(f"{dirs.paths[0]} already has a topic {name!r}")
            _create(
                dirs, {name: (count, {**SAVED_DEFAULTS, **given}) for name, (count, given) in topics.items()}
            )

    dirs.require_writable()
    dirs.transaction(create)


def _create(dirs: OpenDirs, topics: Mapping[str, tuple[int, Mapping[str, Any]]]) -> None:
    """Create partitions in the directories with the fewest; all of a topic have one topic id."""
    counts = {
        name: check_count("partitions", count, "partitions", least=1) for name, (count, _) in topics.items()
    }
    placed = dirs.dir_set.assign(counts)
    settings = {name: given for name, (_, given) in topics.items()}
    topic_ids: dict[str, str] = {}
    created: list[LogDirectory] = []
    try:
        for log_dir, numbers in placed.items():  # one of the directories holds the settings of all
            topic_ids |= log_dir.create_topics(numbers, settings, topic_ids, dirs.settings_file)
            created.append(log_dir)
            settings = {}
    except LastwordError:
        for log_dir in created:
            log_dir.delete_topics(list(placed[log_dir]))
        if created:
            with suppress(LastwordError):
                dirs.settings_directory.remove_settings(topics)
        raise
    finally:  # without notifying the background: nothing of a new topic is due
        for log_dir in dirs.directories:
            if log_dir not in created or len(created) < len(placed):
                log_dir.reload_settings(topics)
    dirs.dir_set.write_list()


def delete_topics(dirs: OpenDirs, topics: Iterable[str]) -> dict[str, LastwordError]:
    """See `LogDir.delete_topic`. Return the error of each topic that was not deleted."""
    dirs.require_writable()
    errors: dict[str, LastwordError] = {}
    partitions: dict[str, list[int]] = {}
    for name in sorted(topics):  # in one order for all threads, because each waits for many claims
        try:
            partitions[name] = list(dirs.partitions(name))
        except LastwordError as error:
            errors[name] = error
    if partitions:
        errors |= dirs.transaction(lambda private: _delete(private, partitions))
        dirs.topics_deleted({name: at for name, at in partitions.items() if name not in errors})
    return errors


def _delete(dirs: OpenDirs, topics: Iterable[str]) -> dict[str, LastwordError]:
    """Delete topics, then their settings."""
    errors: dict[str, LastwordError] = {}
    claimed: dict[str, Mapping[int, LogDirectory]] = {}
    with ExitStack() as claims:
        for name in topics:
            try:
                partitions = dirs.partitions(name)
                for number, log_dir in partitions.items():
                    log_dir.check_deletable(name, number)
            except LastwordError as error:
                errors[name] = error
                continue
            for number, log_dir in partitions.items():
                claims.enter_context(log_dir.claim(name, number))
            claimed[name] = partitions
        # After the claims: a creation, or a transaction, need not wait for a cleaning that holds one. What is
        # appended of a transaction gets its markers first.
        with dirs.commits, dirs.topics_lock:
            return errors | _delete_claimed(dirs, claimed)


def _delete_claimed(
    dirs: OpenDirs, claimed: Mapping[str, Mapping[int, LogDirectory]]
) -> dict[str, LastwordError]:
    """Delete topics whose partitions are claimed, unless another thread deleted one before its claims."""
    errors: dict[str, LastwordError] = {}
    placed: dict[LogDirectory, list[str]] = {}
    for name, partitions in claimed.items():
        now = dirs.dir_set.log_dirs(name)
        if now != partitions:
            errors[name] = (
                BusyError(f"partitions of {name} were moved or created meanwhile", remedy="delete it again")
                if now
                else UnknownTopicError.named(name, ", ".join(dirs.paths), dirs.dir_set.log_dirs_by_topic())
            )
            continue
        for log_dir in dict.fromkeys(partitions.values()):
            placed.setdefault(log_dir, []).append(name)
    deleted = [name for name in claimed if name not in errors]
    for log_dir, names_here in placed.items():
        try:
            errors |= log_dir.delete_topics(names_here)
        except LastwordError as error:
            errors |= dict.fromkeys(names_here, error)
    dirs.settings_directory.remove_settings([name for name in deleted if not dirs.has_topic(name)])
    dirs.dir_set.write_list()
    return errors
