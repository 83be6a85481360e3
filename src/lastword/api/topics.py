"""`Topics`: what gives a topic, or the state of one, of an open `LogDir`.

A type checker knows keys and values by the names of their serializers, or by a pair of functions. Without
them they are as the topic was saved, which no type checker sees.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, cast, overload

from lastword.api.found import PathLike
from lastword.api.progress import listener
from lastword.api.serializers import SerializerLike, serializer_of
from lastword.api.topic import Topic
from lastword.api.verbs import Verbs
from lastword.config import write_topic_settings
from lastword.errors import LastwordError, TopicExistsError, UsageError
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


class TopicOptions(TypedDict, total=False):
    """What `LogDir.topic` takes beside the serializers."""

    partitioner: PartitionerLike | None


class StateOptions(TypedDict, total=False):
    """What `LogDir.state` takes beside the serializers."""

    partitions: int
    default: Callable[[], Any] | None
    end: Bounds
    snapshot: PathLike | None
    max_bytes: int | None
    progress: ProgressLike | bool | None


class Topics(Verbs):
    """How a `LogDir` is asked for topics and states."""

    @overload
    def topic(
        self, name: str, *, key_serializer: Text, value_serializer: Text, **options: Unpack[TopicOptions]
    ) -> Topic[str, str]: ...
    @overload
    def topic(
        self, name: str, *, key_serializer: Text, value_serializer: Raw, **options: Unpack[TopicOptions]
    ) -> Topic[str, bytes]: ...
    @overload
    def topic(
        self, name: str, *, key_serializer: Text, value_serializer: Whole, **options: Unpack[TopicOptions]
    ) -> Topic[str, int]: ...
    @overload
    def topic(
        self, name: str, *, key_serializer: Text, value_serializer: Real, **options: Unpack[TopicOptions]
    ) -> Topic[str, float]: ...
    @overload
    def topic(
        self, name: str, *, key_serializer: Text, value_serializer: Tree, **options: Unpack[TopicOptions]
    ) -> Topic[str, Any]: ...
    @overload
    def topic(
        self, name: str, *, key_serializer: Text, value_serializer: Pair[V], **options: Unpack[TopicOptions]
    ) -> Topic[str, V]: ...
    @overload
    def topic(
        self, name: str, *, key_serializer: Raw, value_serializer: Raw, **options: Unpack[TopicOptions]
    ) -> Topic[bytes, bytes]: ...
    @overload
    def topic(
        self, name: str, *, key_serializer: Whole, value_serializer: Tree, **options: Unpack[TopicOptions]
    ) -> Topic[int, Any]: ...
    @overload
    def topic(
        self,
        name: str,
        *,
        key_serializer: Pair[K],
        value_serializer: Pair[V],
        **options: Unpack[TopicOptions],
    ) -> Topic[K, V]: ...
    @overload
    def topic(
        self,
        name: str,
        *,
        key_serializer: SerializerLike | None = None,
        value_serializer: SerializerLike | None = None,
        **options: Unpack[TopicOptions],
    ) -> Topic[Any, Any]: ...
    def topic(
        self,
        name: str,
        *,
        key_serializer: SerializerLike | None = None,
        value_serializer: SerializerLike | None = None,
        partitioner: PartitionerLike | None = None,
    ) -> Topic[Any, Any]:
        """One topic; None takes serializers and partitioner as saved. UnknownTopicError names the nearest."""
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
        self, name: str, partitions: int = 1, *, key_serializer: Text, value_serializer: Text, **config: Any
    ) -> Topic[str, str]: ...
    @overload
    def create_topic(
        self, name: str, partitions: int = 1, *, key_serializer: Text, value_serializer: Raw, **config: Any
    ) -> Topic[str, bytes]: ...
    @overload
    def create_topic(
        self, name: str, partitions: int = 1, *, key_serializer: Text, value_serializer: Whole, **config: Any
    ) -> Topic[str, int]: ...
    @overload
    def create_topic(
        self, name: str, partitions: int = 1, *, key_serializer: Text, value_serializer: Real, **config: Any
    ) -> Topic[str, float]: ...
    @overload
    def create_topic(
        self, name: str, partitions: int = 1, *, key_serializer: Text, value_serializer: Tree, **config: Any
    ) -> Topic[str, Any]: ...
    @overload
    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        key_serializer: Text,
        value_serializer: Pair[V],
        **config: Any,
    ) -> Topic[str, V]: ...
    @overload
    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        key_serializer: Raw = "bytes",
        value_serializer: Raw = "bytes",
        **config: Any,
    ) -> Topic[bytes, bytes]: ...
    @overload
    def create_topic(
        self, name: str, partitions: int = 1, *, key_serializer: Whole, value_serializer: Tree, **config: Any
    ) -> Topic[int, Any]: ...
    @overload
    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        key_serializer: Pair[K],
        value_serializer: Pair[V],
        **config: Any,
    ) -> Topic[K, V]: ...
    @overload
    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        key_serializer: SerializerLike = "bytes",
        value_serializer: SerializerLike = "bytes",
        **config: Any,
    ) -> Topic[Any, Any]: ...
    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        key_serializer: SerializerLike = "bytes",
        value_serializer: SerializerLike = "bytes",
        partitioner: PartitionerLike = "murmur2",
        exist_ok: bool = False,
        **config: Any,
    ) -> Topic[Any, Any]:
        """Make a topic; durable when it returns.

        config   its settings: `cleanup_policy="compact"`, or "delete" with `retention_ms="7d"`; without a
                 cleanup_policy nothing is ever removed. Names of serializers and partitioner are saved
                 with them.

        TopicExistsError unless exist_ok, which takes a topic that is there as it is. InvalidTopicError for
        a name that Kafka would not take.
        """
        from lastword.api.partitioners import partitioner_of

        self._check_writable()
        names.check_topic(name)
        saved = {
            "lastword_key_serializer": serializer_of(key_serializer).name,
            "lastword_value_serializer": serializer_of(value_serializer).name,
            "lastword_partitioner": partitioner_of(partitioner)[0],
        }
        if name in self._homes():
            if not exist_ok:
                raise TopicExistsError(
                    f"{self.paths[0]} has a topic {name!r} already", remedy="exist_ok=True takes it as it is"
                )
        else:
            settings = {key: value for key, value in saved.items() if value is not None} | config
            self._create(name, partitions, settings)
        return self.topic(
            name,
            key_serializer=None if isinstance(key_serializer, str) else key_serializer,
            value_serializer=None if isinstance(value_serializer, str) else value_serializer,
            partitioner=None if isinstance(partitioner, str) else partitioner,
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
        self, name: str, *, key_serializer: Text, value_serializer: Pair[V], **options: Unpack[StateOptions]
    ) -> State[str, V]: ...
    @overload
    def state(
        self, name: str, *, key_serializer: Raw, value_serializer: Raw, **options: Unpack[StateOptions]
    ) -> State[bytes, bytes]: ...
    @overload
    def state(
        self, name: str, *, key_serializer: Whole, value_serializer: Tree, **options: Unpack[StateOptions]
    ) -> State[int, Any]: ...
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
        partitions: int = 1,
        default: Callable[[], Any] | None = None,
        end: Bounds = "latest",
        snapshot: PathLike | None = None,
        max_bytes: int | None = None,
        progress: ProgressLike | bool | None = None,
    ) -> State[Any, Any]:
        """A dict whose changes are the records of one compacted topic. Returns when it is restored.

        name         the topic; in mode "a" it is made (compacted, `partitions`) if it is absent
        serializers  None: as saved with the topic, else "str" for keys and "json" for values
        default      makes the value of a key that is not there: `default=int` allows `totals[k] += 1`
        end          as of then, read only; like `Topic.read`'s
        snapshot     a file that `restore` wrote: it is loaded, and only what came after is read from the log.
                     SnapshotRefusedError where that would not give what a full restore gives
        max_bytes    StateTooLargeError when keys and values need more
        progress     True, or a function of `Progress`
        """
        from lastword.api.ranges import ranges
        from lastword.state.state import State

        logs = cast("LogDir", self)
        if default is not None and not callable(default):
            raise UsageError(
                f"default={default!r} is no function", remedy="default=int makes 0 of a key that is not there"
            )
        if self.mode == "a" and name not in self._homes():
            topic = self.create_topic(
                name,
                partitions,
                key_serializer=key_serializer or "str",
                value_serializer=value_serializer or "json",
                cleanup_policy="compact",
            )
        else:
            self._partitions(name)
            config = self._config(name)
            topic = self.topic(
                name,
                key_serializer=key_serializer or config.lastword_key_serializer or "str",
                value_serializer=value_serializer or config.lastword_value_serializer or "json",
            )
        views = self._views(name)
        ends = None if end == "latest" else {r.partition: r.end for r in ranges(views, "earliest", end)}
        start = None
        if snapshot is not None:
            from lastword.api.restore import SnapshotFile

            start = SnapshotFile(logs, os.fspath(snapshot), topic)
            start.check(logs, name, views, ends)
        return State(
            topic,
            self.topic(name, key_serializer="bytes", value_serializer="bytes"),
            lambda: self._views(name),
            ends,
            (topic.key_serializer, topic.value_serializer),
            sync=logs.sync,
            first_dirty=lambda partition: self._first_dirty(name, partition),
            default=default,
            max_bytes=max_bytes,
            map_bytes=self.settings.instance.map_bytes,
            snapshot=start,
            progress=listener(progress),
        )
