"""`LogDir.state`: open the state of a topic. The states of one topic share their values.

A `LogDir` has the values of each topic with an open state in mode "a", as long as one of its states is open.
A state as of an earlier end, one from a snapshot, and those of mode "r" have values of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakValueDictionary

from lastword.api.contents import Contents
from lastword.api.open_dirs import OpenDirs, PathLike, caller
from lastword.api.reader import Bounds
from lastword.api.restore import SnapshotFile
from lastword.api.serializers import Serializer, SerializerLike
from lastword.api.state import State
from lastword.api.topic import Topic
from lastword.api.topics import create_topic, open_topic, refuse_contradictions
from lastword.config import TOPIC_SETTINGS, TopicConfig, parse_topic_settings
from lastword.errors import TopicExistsError, UsageError
from lastword.parse import Duration, check_path, parse_bytes
from lastword.values import ProgressLike, listener

if TYPE_CHECKING:
    from lastword.api.indexed_contents import IndexedContents

SharedValues: TypeAlias = "Contents | IndexedContents"
"""Values that several states share, with the arguments of the first of them."""


def _check_same(contents: SharedValues, given: Mapping[str, Any]) -> None:
    """Raise UsageError if another state was opened with other arguments. None: not given."""
    for name, value in given.items():
        first = contents.given[name]
        if value is not None and not _is_same(first, value):
            raise UsageError(
                f"a state of {contents.topic} is open with {name}={_shown(first)}, since "
                f"{contents.opened_at}: all states of a topic share their values",
                remedy=f"leave {name} out, or close the first state before",
            )


def _is_same(first: Any, value: Any) -> bool:
    if callable(first) and callable(value):  # a lambda is another object each time
        code = getattr(value, "__code__", None)
        closed = getattr(first, "__closure__", None) or getattr(value, "__closure__", None)
        if code is not None and code is getattr(first, "__code__", None) and not closed:
            return True
    if isinstance(first, Serializer) and isinstance(value, Serializer):
        return first.name == value.name and (first.name is not None or first == value)
    return bool(first == value)


def _shown(value: Any) -> str:
    return str(getattr(value, "__name__", value))


def open_state(
    dirs: OpenDirs,
    name: str,
    serializers: tuple[SerializerLike | None, SerializerLike | None],
    shared: WeakValueDictionary[str, SharedValues],
    *,
    default: Callable[[], Any] | None,
    end: Bounds,
    snapshot: PathLike | None,
    memory: int | str | None,
    ttl: Duration | None,
    progress: ProgressLike | bool | None,
    new_topic: Mapping[str, Any],
) -> State[Any, Any]:
    """See `LogDir.state`. `shared`: the values of each topic with an open state."""
    if default is not None and not callable(default):
        raise UsageError(
            f"default={default!r} is not a function", remedy="default=int gives 0 for a missing key"
        )
    if memory not in (None, "values", "none"):
        memory = _parsed_limit(memory)
    if memory == "none":
        _check_none(dirs, end=end, snapshot=snapshot)
    dirs.require_open()
    shares = dirs.mode == "a" and end == "latest" and snapshot is None
    topic = _topic(dirs, name, serializers, end, ttl, new_topic)
    coders: tuple[Serializer, Serializer] = topic.schema.key, topic.schema.value
    given = {
        "key_serializer": coders[0] if serializers[0] is not None else None,
        "value_serializer": coders[1] if serializers[1] is not None else None,
        "default": default,
        "memory": memory,
    }
    contents = shared.get(name) if shares else None
    if contents is not None and contents.users:
        _check_same(contents, given)
        coders = contents.given["key_serializer"], contents.given["value_serializer"]
        default = contents.given["default"]
    else:
        start = None
        if snapshot is not None:
            start = SnapshotFile(dirs, check_path("snapshot", snapshot), topic.schema)
        if memory == "none":
            from lastword.api.indexed_contents import IndexedContents

            contents = IndexedContents(dirs, topic)
        else:
            limit = memory if isinstance(memory, int) else None
            contents = Contents(
                dirs, topic, end=end, max_bytes=limit, snapshot=start, progress=listener(progress)
            )
        known = {"key_serializer": coders[0], "value_serializer": coders[1], "memory": memory or "values"}
        contents.given = given | known
        contents.opened_at = caller()
        if shares:
            shared[name] = contents
    return State(topic, contents, coders, default=default, ttl=ttl)


def _parsed_limit(memory: Any) -> int:
    """Return the most bytes of keys and values."""
    remedy = 'give a size such as "1GiB", "values" for all values, or "none"'
    try:
        limit = parse_bytes(memory)
    except UsageError as error:
        raise UsageError(f"memory={memory!r} is not a size", remedy=remedy) from error
    if limit < 0:
        raise UsageError(f"memory={memory!r} is below 0", remedy=remedy)
    return limit


def _check_none(dirs: OpenDirs, **given: Any) -> None:
    """Raise UsageError if a state without values in memory is not possible so."""
    if not dirs.holds_logs:
        raise UsageError(
            'memory="none" is for a directory: in a bucket a state shows a change before its commit',
            remedy="leave memory out, or read single keys with logs.topic(...).get(key)",
        )
    for name, value in given.items():
        if value not in (None, "latest"):
            raise UsageError(
                f'memory="none" reads the newest values when they are asked for, so that {name}={value!r} '
                "has no meaning",
                remedy=f"leave {name} out, or open the state with its values in memory",
            )


def _topic(
    dirs: OpenDirs,
    name: str,
    serializers: tuple[SerializerLike | None, SerializerLike | None],
    end: Bounds,
    ttl: Duration | None,
    new_topic: Mapping[str, Any],
) -> Topic[Any, Any]:
    """Return the topic of a state; a missing topic is created."""
    config = dict(new_topic)
    partitions = config.pop("partitions", None)
    key_serializer, value_serializer = serializers
    if dirs.mode == "a" and not dirs.has_topic(name):
        new = {"cleanup_policy": "compact", **({} if ttl is None else {"lastword_ttl_ms": 0}), **config}
        settings = {TOPIC_SETTINGS[n].keyword: v for n, v in parse_topic_settings(new).items()}
        check_keeps_keys(name, dirs.config(name).replace(**settings))
        try:
            return create_topic(
                dirs,
                name,
                partitions,
                key_serializer=key_serializer or "str",
                value_serializer=value_serializer or "json",
                config=new,
            )
        except TopicExistsError:
            pass  # another thread or process created it
    if dirs.mode == "a":
        refuse_contradictions(dirs, name, partitions, serializers, config)
        if end == "latest":
            check_keeps_keys(name, dirs.config(name))
    else:
        dirs.partitions(name)
        if partitions is not None or config:
            refuse_contradictions(dirs, name, partitions, (None, None), config)
    saved = dirs.config(name)
    return open_topic(
        dirs,
        name,
        key_serializer=key_serializer or (None if saved.lastword_key_serializer else "str"),
        value_serializer=value_serializer or (None if saved.lastword_value_serializer else "json"),
    )


def check_keeps_keys(topic: str, config: TopicConfig) -> None:
    """Raise UsageError if the topic's policy deletes keys of a state, or is unknown."""
    policy = config.policy
    retains = config.retention_ms < 0 and config.retention_bytes < 0
    if policy is not None and "compact" in policy and ("delete" not in policy or retains):
        return
    if not policy:
        why = "its cleanup.policy is none" if policy is not None else "it has no cleanup.policy"
        why = f"{why}, so its log grows without end"
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
        f"topic {topic!r} cannot hold a state: {why}",
        remedy=f'logs.set_config({topic!r}, cleanup_policy="compact"); '
        f'to read only, open the directory with mode "r"',
    )
