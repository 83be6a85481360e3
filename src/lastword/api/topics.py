"""`Topics`: what gives a topic, or the state of one, of an open `LogDir`.

A type checker knows keys and values by the names of their serializers, or by a pair of functions. Without
them they are as the topic was saved, which no type checker sees.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast, overload

from lastword.api.found import PathLike
from lastword.api.progress import listener
from lastword.api.serializers import SerializerLike, contradicts, serializer_of
from lastword.api.topic import Topic
from lastword.api.verbs import Verbs
from lastword.config import TOPIC_SETTINGS, TopicConfig, parse_topic_settings, write_topic_settings
from lastword.config.keywords import TopicKeywords
from lastword.errors import (
    InvalidSettingError,
    LastwordError,
    TopicExistsError,
    UsageError,
)
from lastword.logdir import LogDirectory, partition_numbers
from lastword.segment import names
from lastword.values import ProgressLike

if TYPE_CHECKING:
    from lastword.api.logs import LogDir
    from lastword.api.partitioners import PartitionerLike
    from lastword.api.ranges import Bounds
    from lastword.api.serializers import Pair, Raw, Real, Text, Tree, Whole
    from lastword.state.state import State

K = TypeVar("K")
V = TypeVar("V")


class CreateOptions(TopicKeywords, total=False):
    """What `LogDir.create_topic` takes beside the serializers: options, and settings of the topic."""

    partitioner: PartitionerLike | None
    exist_ok: bool


class StateOptions(TopicKeywords, total=False):
    """What `LogDir.state` takes beside the serializers: options, and settings of the topic."""

    partitions: int | None
    default: Callable[[], Any] | None
    end: Bounds
    snapshot: PathLike | None
    max_bytes: int | None
    progress: ProgressLike | bool | None


class Topics(Verbs):
    """How a `LogDir` is asked for topics and states."""

    @overload
    def topic(
        self,
        name: str,
        *,
        key_serializer: Text,
        value_serializer: Text,
        partitioner: PartitionerLike | None = None,
    ) -> Topic[str, str]: ...
    @overload
    def topic(
        self,
        name: str,
        *,
        key_serializer: Text,
        value_serializer: Raw,
        partitioner: PartitionerLike | None = None,
    ) -> Topic[str, bytes]: ...
    @overload
    def topic(
        self,
        name: str,
        *,
        key_serializer: Text,
        value_serializer: Whole,
        partitioner: PartitionerLike | None = None,
    ) -> Topic[str, int]: ...
    @overload
    def topic(
        self,
        name: str,
        *,
        key_serializer: Text,
        value_serializer: Real,
        partitioner: PartitionerLike | None = None,
    ) -> Topic[str, float]: ...
    @overload
    def topic(
        self,
        name: str,
        *,
        key_serializer: Text,
        value_serializer: Tree,
        partitioner: PartitionerLike | None = None,
    ) -> Topic[str, Any]: ...
    @overload
    def topic(
        self,
        name: str,
        *,
        key_serializer: Raw,
        value_serializer: Text,
        partitioner: PartitionerLike | None = None,
    ) -> Topic[bytes, str]: ...
    @overload
    def topic(
        self,
        name: str,
        *,
        key_serializer: Raw,
        value_serializer: Raw,
        partitioner: PartitionerLike | None = None,
    ) -> Topic[bytes, bytes]: ...
    @overload
    def topic(
        self,
        name: str,
        *,
        key_serializer: Raw,
        value_serializer: Whole,
        partitioner: PartitionerLike | None = None,
    ) -> Topic[bytes, int]: ...
    @overload
    def topic(
        self,
        name: str,
        *,
        key_serializer: Raw,
        value_serializer: Real,
        partitioner: PartitionerLike | None = None,
    ) -> Topic[bytes, float]: ...
    @overload
    def topic(
        self,
        name: str,
        *,
        key_serializer: Raw,
        value_serializer: Tree,
        partitioner: PartitionerLike | None = None,
    ) -> Topic[bytes, Any]: ...
    @overload
    def topic(
        self,
        name: str,
        *,
        key_serializer: Whole,
        value_serializer: Text,
        partitioner: PartitionerLike | None = None,
    ) -> Topic[int, str]: ...
    @overload
    def topic(
        self,
        name: str,
        *,
        key_serializer: Whole,
        value_serializer: Raw,
        partitioner: PartitionerLike | None = None,
    ) -> Topic[int, bytes]: ...
    @overload
    def topic(
        self,
        name: str,
        *,
        key_serializer: Whole,
        value_serializer: Whole,
        partitioner: PartitionerLike | None = None,
    ) -> Topic[int, int]: ...
    @overload
    def topic(
        self,
        name: str,
        *,
        key_serializer: Whole,
        value_serializer: Real,
        partitioner: PartitionerLike | None = None,
    ) -> Topic[int, float]: ...
    @overload
    def topic(
        self,
        name: str,
        *,
        key_serializer: Whole,
        value_serializer: Tree,
        partitioner: PartitionerLike | None = None,
    ) -> Topic[int, Any]: ...
    @overload
    def topic(
        self,
        name: str,
        *,
        key_serializer: Text,
        value_serializer: Pair[V],
        partitioner: PartitionerLike | None = None,
    ) -> Topic[str, V]: ...
    @overload
    def topic(
        self,
        name: str,
        *,
        key_serializer: Pair[K],
        value_serializer: Pair[V],
        partitioner: PartitionerLike | None = None,
    ) -> Topic[K, V]: ...
    @overload
    def topic(
        self,
        name: str,
        *,
        key_serializer: SerializerLike | None = None,
        value_serializer: SerializerLike | None = None,
        partitioner: PartitionerLike | None = None,
    ) -> Topic[Any, Any]: ...
    def topic(
        self,
        name: str,
        *,
        key_serializer: SerializerLike | None = None,
        value_serializer: SerializerLike | None = None,
        partitioner: PartitionerLike | None = None,
    ) -> Topic[Any, Any]:
        """Give one topic.

        Args:
            name: The topic's name.
            key_serializer: None: as saved with the topic. A name must be the saved one, or "bytes", which
                reads and writes the bytes as they are; callables are the caller's responsibility.
            value_serializer: As `key_serializer`.
            partitioner: None: as saved.

        Raises:
            UnknownTopicError: no such topic; names the nearest. Also a KeyError.
            InvalidSettingError: a serializer's name contradicts the saved one.
        """
        self._partitions(name)
        return Topic(
            cast("LogDir", self),
            name,
            self._config(name),
            key_serializer=key_serializer,
            value_serializer=value_serializer,
            partitioner=partitioner,
        )

    @overload
    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        key_serializer: Text,
        value_serializer: Text,
        **config: Unpack[CreateOptions],
    ) -> Topic[str, str]: ...
    @overload
    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        key_serializer: Text,
        value_serializer: Raw,
        **config: Unpack[CreateOptions],
    ) -> Topic[str, bytes]: ...
    @overload
    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        key_serializer: Text,
        value_serializer: Whole,
        **config: Unpack[CreateOptions],
    ) -> Topic[str, int]: ...
    @overload
    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        key_serializer: Text,
        value_serializer: Real,
        **config: Unpack[CreateOptions],
    ) -> Topic[str, float]: ...
    @overload
    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        key_serializer: Text,
        value_serializer: Tree,
        **config: Unpack[CreateOptions],
    ) -> Topic[str, Any]: ...
    @overload
    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        key_serializer: Raw,
        value_serializer: Text,
        **config: Unpack[CreateOptions],
    ) -> Topic[bytes, str]: ...
    @overload
    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        key_serializer: Raw | None = None,
        value_serializer: Raw | None = None,
        **config: Unpack[CreateOptions],
    ) -> Topic[bytes, bytes]: ...
    @overload
    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        key_serializer: Raw,
        value_serializer: Whole,
        **config: Unpack[CreateOptions],
    ) -> Topic[bytes, int]: ...
    @overload
    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        key_serializer: Raw,
        value_serializer: Real,
        **config: Unpack[CreateOptions],
    ) -> Topic[bytes, float]: ...
    @overload
    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        key_serializer: Raw,
        value_serializer: Tree,
        **config: Unpack[CreateOptions],
    ) -> Topic[bytes, Any]: ...
    @overload
    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        key_serializer: Whole,
        value_serializer: Text,
        **config: Unpack[CreateOptions],
    ) -> Topic[int, str]: ...
    @overload
    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        key_serializer: Whole,
        value_serializer: Raw,
        **config: Unpack[CreateOptions],
    ) -> Topic[int, bytes]: ...
    @overload
    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        key_serializer: Whole,
        value_serializer: Whole,
        **config: Unpack[CreateOptions],
    ) -> Topic[int, int]: ...
    @overload
    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        key_serializer: Whole,
        value_serializer: Real,
        **config: Unpack[CreateOptions],
    ) -> Topic[int, float]: ...
    @overload
    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        key_serializer: Whole,
        value_serializer: Tree,
        **config: Unpack[CreateOptions],
    ) -> Topic[int, Any]: ...
    @overload
    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        key_serializer: Text,
        value_serializer: Pair[V],
        **config: Unpack[CreateOptions],
    ) -> Topic[str, V]: ...
    @overload
    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        key_serializer: Pair[K],
        value_serializer: Pair[V],
        **config: Unpack[CreateOptions],
    ) -> Topic[K, V]: ...
    @overload
    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        key_serializer: SerializerLike | None = None,
        value_serializer: SerializerLike | None = None,
        **config: Unpack[CreateOptions],
    ) -> Topic[Any, Any]: ...
    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        *,
        key_serializer: SerializerLike | None = None,
        value_serializer: SerializerLike | None = None,
        partitioner: PartitionerLike | None = None,
        exist_ok: bool = False,
        **config: Any,
    ) -> Topic[Any, Any]:
        """Make a topic; durable when it returns.

        Args:
            name: The topic's name.
            partitions: How many it has; None: 1.
            key_serializer: None: "bytes". A name is saved with the topic.
            value_serializer: As `key_serializer`.
            partitioner: None: "murmur2". A name is saved with the topic.
            exist_ok: Take a topic that is there. What is given must be what it has.
            **config: Its settings: `cleanup_policy="compact"`, or "delete" with `retention_ms="7d"`. Without
                a cleanup_policy nothing is ever removed.

        Raises:
            TopicExistsError: there is one, without `exist_ok`.
            InvalidSettingError: a setting that is refused, or with `exist_ok` one that contradicts the topic.
            InvalidTopicError: a name that Kafka would not take.
        """
        from lastword.api.partitioners import partitioner_of

        self._check_writable()
        names.check_topic(name)
        asked = {
            "lastword_key_serializer": serializer_of(key_serializer or "bytes").name,
            "lastword_value_serializer": serializer_of(value_serializer or "bytes").name,
            "lastword_partitioner": partitioner_of(partitioner or "murmur2")[0],
        }
        if name in self._homes():
            if not exist_ok:
                raise TopicExistsError(
                    f"{self.paths[0]} has a topic {name!r} already", remedy="exist_ok=True takes it as it is"
                )
            if isinstance(partitioner, str):
                config = {"lastword_partitioner": partitioner, **config}
            self._refuse_contradictions(name, partitions, (key_serializer, value_serializer), config)
        else:
            settings = {key: value for key, value in asked.items() if value is not None} | config
            self._create(name, 1 if partitions is None else partitions, settings)
        return self.topic(
            name,
            key_serializer=None if isinstance(key_serializer, str) else key_serializer,
            value_serializer=None if isinstance(value_serializer, str) else value_serializer,
            partitioner=None if isinstance(partitioner, str) else partitioner,
        )

    def _refuse_contradictions(
        self,
        name: str,
        partitions: int | None,
        serializers: tuple[SerializerLike | None, SerializerLike | None],
        config: Mapping[str, Any],
    ) -> None:
        """InvalidSettingError if what is given contradicts a topic that is there. None is not given."""
        saved = self.settings.topic(name, saved=True)
        problems, remedies = [], []
        count = max(self._partitions(name), default=-1) + 1
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

    def _create(self, name: str, partitions: int, settings: Mapping[str, Any]) -> None:
        """Partitions go to the directories with the fewest; all have one topic id."""
        partition_numbers(partitions)
        placed = self._spread.place(partitions)
        own = {os.path.join(home.path, names.SETTINGS): home for home in placed}
        if len(placed) > 1 or self._settings_file not in own:
            # Several directories share one settings file; it is written first, as a directory does with its
            # own.
            write_topic_settings(self._files, self._settings_file, name, settings)
            settings = {}
        made: list[LogDirectory] = []
        try:
            for home, numbers in placed.items():
                topic_id = made[0].topic_id(name) if made else None
                home.reload_settings()
                home.create_topic(name, numbers, settings, topic_id=topic_id)
                made.append(home)
        except LastwordError:
            for home in made:
                home.delete_topic(name)
            raise
        finally:
            super()._reload()  # the background need not look: a new topic has nothing that is due
        self._spread.write_list()

    @overload
    def state(
        self, name: str, *, key_serializer: Text, value_serializer: Text, **options: Unpack[StateOptions]
    ) -> State[str, str]: ...
    @overload
    def state(
        self, name: str, *, key_serializer: Text, value_serializer: Raw, **options: Unpack[StateOptions]
    ) -> State[str, bytes]: ...
    @overload
    def state(
        self, name: str, *, key_serializer: Text, value_serializer: Whole, **options: Unpack[StateOptions]
    ) -> State[str, int]: ...
    @overload
    def state(
        self, name: str, *, key_serializer: Text, value_serializer: Real, **options: Unpack[StateOptions]
    ) -> State[str, float]: ...
    @overload
    def state(
        self, name: str, *, key_serializer: Text, value_serializer: Tree, **options: Unpack[StateOptions]
    ) -> State[str, Any]: ...
    @overload
    def state(
        self, name: str, *, key_serializer: Raw, value_serializer: Text, **options: Unpack[StateOptions]
    ) -> State[bytes, str]: ...
    @overload
    def state(
        self, name: str, *, key_serializer: Raw, value_serializer: Raw, **options: Unpack[StateOptions]
    ) -> State[bytes, bytes]: ...
    @overload
    def state(
        self, name: str, *, key_serializer: Raw, value_serializer: Whole, **options: Unpack[StateOptions]
    ) -> State[bytes, int]: ...
    @overload
    def state(
        self, name: str, *, key_serializer: Raw, value_serializer: Real, **options: Unpack[StateOptions]
    ) -> State[bytes, float]: ...
    @overload
    def state(
        self, name: str, *, key_serializer: Raw, value_serializer: Tree, **options: Unpack[StateOptions]
    ) -> State[bytes, Any]: ...
    @overload
    def state(
        self, name: str, *, key_serializer: Whole, value_serializer: Text, **options: Unpack[StateOptions]
    ) -> State[int, str]: ...
    @overload
    def state(
        self, name: str, *, key_serializer: Whole, value_serializer: Raw, **options: Unpack[StateOptions]
    ) -> State[int, bytes]: ...
    @overload
    def state(
        self, name: str, *, key_serializer: Whole, value_serializer: Whole, **options: Unpack[StateOptions]
    ) -> State[int, int]: ...
    @overload
    def state(
        self, name: str, *, key_serializer: Whole, value_serializer: Real, **options: Unpack[StateOptions]
    ) -> State[int, float]: ...
    @overload
    def state(
        self, name: str, *, key_serializer: Whole, value_serializer: Tree, **options: Unpack[StateOptions]
    ) -> State[int, Any]: ...
    @overload
    def state(
        self, name: str, *, key_serializer: Text, value_serializer: Pair[V], **options: Unpack[StateOptions]
    ) -> State[str, V]: ...
    @overload
    def state(
        self,
        name: str,
        *,
        key_serializer: Pair[K],
        value_serializer: Pair[V],
        **options: Unpack[StateOptions],
    ) -> State[K, V]: ...
    @overload
    def state(
        self,
        name: str,
        *,
        key_serializer: SerializerLike | None = None,
        value_serializer: SerializerLike | None = None,
        **options: Unpack[StateOptions],
    ) -> State[Any, Any]: ...
    def state(
        self,
        name: str,
        *,
        key_serializer: SerializerLike | None = None,
        value_serializer: SerializerLike | None = None,
        partitions: int | None = None,
        default: Callable[[], Any] | None = None,
        end: Bounds = "latest",
        snapshot: PathLike | None = None,
        max_bytes: int | None = None,
        progress: ProgressLike | bool | None = None,
        **config: Any,
    ) -> State[Any, Any]:
        """A dict whose changes are the records of one compacted topic. Returns when it is restored.

        Args:
            name: The topic. In mode "a" it is made if it is absent, with `cleanup_policy="compact"`.
            key_serializer: None: as saved with the topic, else "str". A name that contradicts the saved one
                is refused; to read the bytes as they are, "bytes" is taken in mode "r".
            value_serializer: As `key_serializer`, else "json".
            partitions: How many a new topic gets; None: 1.
            default: Makes the value of a key that is absent: `default=int` allows `totals[k] += 1`.
            end: As of then, read only; like `Topic.read`'s.
            snapshot: A file that `restore` wrote: it is loaded, and the log is read from where it ends.
            max_bytes: StateTooLargeError when keys and values need more.
            progress: True, or a function of `Progress`.
            **config: Settings of a new topic: `segment_bytes="16MiB"`. For a topic that is there they must be
                what it has; `LogDir.set_config` changes them.

        Raises:
            InvalidSettingError: serializers, partitions or settings that contradict the topic.
            UsageError: in mode "a", a topic whose cleanup.policy would delete keys, or that has none.
            SnapshotRefusedError: the snapshot would not give what a full restore gives.
        """
        from lastword.api.ranges import ranges
        from lastword.state.state import State

        logs = cast("LogDir", self)
        if default is not None and not callable(default):
            raise UsageError(
                f"default={default!r} is no function", remedy="default=int makes 0 of a key that is not there"
            )
        serializers = key_serializer, value_serializer
        if self.mode == "a" and name not in self._homes():
            config = {"cleanup_policy": "compact", **config}
            given = {TOPIC_SETTINGS[n].keyword: v for n, v in parse_topic_settings(config).items()}
            check_keeps_keys(name, self._config(name).replace(**given))
            topic = self.create_topic(
                name,
                partitions,
                key_serializer=key_serializer or "str",
                value_serializer=value_serializer or "json",
                **config,
            )
        else:
            if self.mode == "a":
                self._refuse_contradictions(name, partitions, serializers, config)
                if end == "latest":
                    check_keeps_keys(name, self._config(name))
            else:
                self._partitions(name)
                if partitions is not None or config:
                    self._refuse_contradictions(name, partitions, (None, None), config)
            saved = self._config(name)
            topic = self.topic(
                name,
                key_serializer=key_serializer or (None if saved.lastword_key_serializer else "str"),
                value_serializer=value_serializer or (None if saved.lastword_value_serializer else "json"),
            )
        start = None
        if snapshot is not None:
            from lastword.api.restore import SnapshotFile

            start = SnapshotFile(logs, os.fspath(snapshot), topic)
        return State(
            topic,
            self.topic(name, key_serializer="bytes", value_serializer="bytes"),
            lambda: self._views(name),
            None if end == "latest" else lambda views: ranges(views, "earliest", end),
            (topic.key_serializer, topic.value_serializer),
            sync=logs.sync,
            first_dirty=lambda partition: self._first_dirty(name, partition),
            default=default,
            max_bytes=max_bytes,
            map_bytes=self.settings.instance.map_bytes,
            snapshot=start,
            progress=listener(progress),
            ttl_ms=self._config(name).lastword_ttl_ms,
            now_ms=self._clock.now_ms,
        )


def check_keeps_keys(topic: str, config: TopicConfig) -> None:
    """UsageError if the topic's policy is not one under which a state keeps its keys."""
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
