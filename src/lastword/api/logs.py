"""`open` and `LogDir`: one or several log directories, their topics, and the verbs that work on them.

"r" looks: no lock, no change, also beside a running broker. "a" appends and cleans: it takes Kafka's lock,
repairs what a crash left, and is the only writer until it is closed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from lastword import files as storage
from lastword.api.progress import Meter, listener
from lastword.api.serializers import SerializerLike, serializer_of
from lastword.api.topic import Topic
from lastword.clock import Clock, SystemClock
from lastword.config import Settings, TopicConfig, remove_topic_settings, write_topic_settings
from lastword.errors import (
    CapacityError,
    DataError,
    LastwordError,
    NoPolicyError,
    QuarantinedError,
    ReadOnlyError,
    TopicExistsError,
    UnknownTopicError,
    UsageError,
)
from lastword.files import Files
from lastword.logdir import DirRecovery, LogDirectory
from lastword.segment import names
from lastword.values import ProgressLike, table_html

if TYPE_CHECKING:
    from lastword.api.partitioners import PartitionerLike
    from lastword.api.ranges import Bounds
    from lastword.cleaner import CleanRound, Plan
    from lastword.partition.log import PartitionLog
    from lastword.partition.view import PartitionView
    from lastword.state.state import State
    from lastword.tools.verify import Verification

PathLike = str | os.PathLike[str]


def open(
    path: PathLike | Sequence[PathLike],
    mode: Literal["r", "a"] = "r",
    *,
    config: PathLike | None = None,
    clock: Clock | None = None,
    files: Files | None = None,
    **settings: Any,
) -> LogDir:
    """Open a log directory, or several that are seen as one (Kafka's log.dirs).

    mode      "r" takes no lock and changes nothing; the directory must exist. "a" reads, appends and
              cleans; it takes the lock and makes the directory if it is absent
    config    another settings file than the directory's lastword.toml
    clock, files   for tests: another source of "now", another storage
    settings  Kafka's names with _ for dots; they win over the file: `segment_bytes="64MiB"`

    NotALogDirError, LogDirLockedError, UnknownSettingError and InvalidSettingError leave everything as it
    was.
    """
    if mode not in ("r", "a"):
        raise UsageError(
            f"mode {mode!r} is neither 'r' nor 'a'", remedy='"r" looks, "a" reads, appends and cleans'
        )
    paths = [os.fspath(path)] if isinstance(path, (str, os.PathLike)) else [os.fspath(one) for one in path]
    if not paths:
        raise UsageError("no directory given", remedy='lastword.open("data")')
    if len({os.path.realpath(one) for one in paths}) != len(paths):
        raise UsageError("a directory is given twice", remedy="name each once")

    def load() -> Settings:
        return Settings.load(paths, config, arguments=settings)

    load()  # every mistake in the settings is told before anything is opened
    clock = clock or SystemClock()
    files = files or storage.DEFAULT
    opened: list[LogDirectory] = []
    try:
        for one in paths:
            opened.append(LogDirectory.open(one, mode, files, clock, load))
    except BaseException:
        for directory in opened:
            directory.close()
        raise
    return LogDir(opened, mode, files, clock, config)


class LogDir:
    """An open log directory. Also a context manager; safe from any thread; after a fork, open again.

    paths      its directories
    mode       "r" or "a"
    recovery   what opening repaired, a `DirRecovery` per directory; partitions are recovered when first used
    """

    def __init__(
        self,
        directories: Sequence[LogDirectory],
        mode: str,
        files: Files,
        clock: Clock,
        config: PathLike | None = None,
    ) -> None:
        self.paths = [directory.path for directory in directories]
        self.mode = mode
        self._directories = list(directories)
        self._files = files
        self._clock = clock
        self._config_file = config
        self._closed = False

    def __enter__(self) -> LogDir:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        shown = self.paths[0] if len(self.paths) == 1 else self.paths
        return f"LogDir({shown!r}, {self.mode!r}{', closed' if self._closed else ''})"

    def _repr_html_(self) -> str:
        rows = [
            (topic, str(len(numbers)), ",".join(sorted(self._config(topic).cleanup_policy or ())) or "none")
            for topic, numbers in self._homes().items()
        ]
        return table_html(", ".join(self.paths), ("topic", "partitions", "cleanup.policy"), rows)

    @property
    def recovery(self) -> tuple[DirRecovery, ...]:
        return tuple(directory.recovery for directory in self._directories)

    @property
    def settings(self) -> Settings:
        """Every setting with its source."""
        return self._directories[0].settings

    # -------------------------------------------------------------- topics

    def topics(self) -> list[Topic[Any, Any]]:
        """All topics, by name, with their saved serializers."""
        self._check_open()
        return [Topic(self, name, self._config(name)) for name in self._homes()]

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
            self,
            name,
            self._config(name),
            key_serializer=key_serializer,
            value_serializer=value_serializer,
            partitioner=partitioner,
        )

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
            fewest = min(self._directories, key=lambda directory: len(directory.topic_partitions()))
            settings = {key: value for key, value in saved.items() if value is not None} | config
            if self._settings_file != os.path.join(fewest.path, names.SETTINGS):
                # Several directories share one settings file; it is written first, as a directory does
                # with its own.
                write_topic_settings(self._files, self._settings_file, name, settings)
                settings = {}
            fewest.create_topic(name, partitions, settings, exist_ok=exist_ok)
            self._reload()
        return self.topic(
            name,
            key_serializer=None if isinstance(key_serializer, str) else key_serializer,
            value_serializer=None if isinstance(value_serializer, str) else value_serializer,
            partitioner=None if isinstance(partitioner, str) else partitioner,
        )

    def delete_topic(self, name: str) -> None:
        """Remove a topic with all its records."""
        self._check_writable()
        homes = set(self._partitions(name).values())
        for directory in self._directories:
            if directory in homes:
                directory.delete_topic(name)
        remove_topic_settings(self._files, self._settings_file, name)
        self._reload()

    def set_config(self, topic: str | None = None, **config: Any) -> None:
        """Change settings in lastword.toml, of a topic or (None) of all; a value of None resets. Holds
        from now on."""
        self._check_writable()
        if self._config_file is not None:
            raise UsageError(
                f"the settings were read from {os.fspath(self._config_file)}", remedy="change them there"
            )
        if topic is not None:
            self._partitions(topic)
        write_topic_settings(self._files, self._settings_file, topic, config)
        self._reload()

    @property
    def _settings_file(self) -> str:
        """The one lastword.toml of all directories: where it is, or in the first."""
        candidates = [os.path.join(path, names.SETTINGS) for path in self.paths]
        return next((path for path in candidates if self._files.exists(path)), candidates[0])

    def _reload(self) -> None:
        for directory in self._directories:
            directory.reload_settings()

    # -------------------------------------------------------------- state

    def state(
        self,
        name: str,
        *,
        key_serializer: SerializerLike | None = None,
        value_serializer: SerializerLike | None = None,
        partitions: int = 1,
        default: Callable[[], Any] | None = None,
        end: Bounds = "latest",
        max_bytes: int | None = None,
        progress: ProgressLike | bool | None = None,
    ) -> State[Any, Any]:
        """A dict whose changes are the records of one compacted topic. Returns when it is restored.

        name         the topic; in mode "a" it is made (compacted, `partitions`) if it is absent
        serializers  None: as saved with the topic, else "str" for keys and "json" for values
        default      makes the value of a key that is not there: `default=int` allows `totals[k] += 1`
        end          as of then, read only; like `Topic.read`'s
        max_bytes    StateTooLargeError when keys and values need more
        progress     True, or a function of `Progress`
        """
        from lastword.api.ranges import ranges
        from lastword.state.state import State

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
        return State(
            topic,
            self.topic(name, key_serializer="bytes", value_serializer="bytes"),
            lambda: self._views(name),
            ends,
            (topic.key_serializer, topic.value_serializer),
            sync=self.sync,
            default=default,
            max_bytes=max_bytes,
            map_bytes=self.settings.instance.map_bytes,
            progress=listener(progress),
        )

    # -------------------------------------------------------------- verbs

    def plan(
        self,
        topic: str | None = None,
        partition: int | None = None,
        *,
        due: bool = False,
        strategy: str | None = None,
        progress: ProgressLike | bool | None = None,
    ) -> list[Plan]:
        """What `clean` with these arguments would do now, or leave, and why: one `Plan` per partition."""
        from lastword.cleaner.cleaner import plan

        chosen = self._chosen(topic, partition)
        views = [(name, number, self._view(name, number)) for name, number in chosen]
        meter = Meter("plan", progress, sum(segment.size for *_, view in views for segment in view.segments))
        found = []
        for name, number, view in views:
            config = self._config(name)
            with meter.progress_part(sum(segment.size for segment in view.segments)) as part:
                found.append(
                    plan(
                        view,
                        config,
                        files=self._files,
                        clock=self._clock,
                        first_dirty=self._first_dirty(name, number),
                        due=due,
                        strategy=strategy or config.lastword_strategy,
                        map_bytes=self.settings.instance.map_bytes,
                        progress=part,
                    )
                )
        return found

    def clean(
        self,
        topic: str | None = None,
        partition: int | None = None,
        *,
        due: bool = False,
        strategy: str | None = None,
        progress: ProgressLike | bool | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> list[CleanRound]:
        """Remove superseded records now; returns one `CleanRound` for each partition that had a round.

        due       only what its settings make due; without it the active segment is rolled and the dirty
                  ratio ignored
        strategy  which segments a round takes; None: the setting lastword.strategy
        stop      asked while it runs; True ends it at the next safe point

        A partition that is damaged, or for which there is no room, does not stop the others: its error is
        raised at the end, with `error.rounds`. NoPolicyError for a topic given by name that may not be
        compacted.
        """
        from lastword.cleaner.cleaner import clean

        self._check_writable()
        chosen = self._chosen(topic, partition)
        if topic is not None:
            self._check_policy(topic)
        compacted = [(name, number) for name, number in chosen if self._config(name).compacts]
        rounds: list[CleanRound] = []
        failed: LastwordError | None = None
        sizes = {tp: self._size(*tp) for tp in compacted}
        meter = Meter("clean", progress, sum(sizes.values()))
        for name, number in compacted:
            if stop is not None and stop():
                break
            try:
                with meter.progress_part(sizes[name, number]) as part:
                    done = self._clean_one(clean, name, number, due, strategy, part, stop)
                if done is not None:
                    rounds.append(done)
                elif topic is not None:
                    self._check_quarantine(name, number)
            except (DataError, CapacityError) as error:
                failed = failed or error
        if failed is not None:
            if len(compacted) > 1:
                failed.message += f"; {len(rounds)} others cleaned"
                failed.args = (failed.message,)
            failed.rounds = rounds  # type: ignore[attr-defined]
            raise failed
        return rounds

    def _clean_one(
        self,
        clean: Callable[..., CleanRound | None],
        name: str,
        number: int,
        due: bool,
        strategy: str | None,
        progress: ProgressLike | None,
        stop: Callable[[], bool] | None,
    ) -> CleanRound | None:
        config = self._config(name)
        home = self._home(name, number)
        return clean(
            home.log(name, number),
            config,
            first_dirty=home.first_dirty(name, number),
            record_first_dirty=lambda offset: home.set_first_dirty(name, number, offset),
            due=due,
            strategy=strategy or config.lastword_strategy,
            map_bytes=self.settings.instance.map_bytes,
            progress=progress,
            stop=stop,
        )

    def _size(self, name: str, number: int) -> int:
        """Bytes of a partition; 0 for one that cannot be opened, which is told when it is its turn."""
        try:
            return sum(segment.size for segment in self._home(name, number).log(name, number).segments)
        except DataError:
            return 0

    def _check_policy(self, topic: str) -> None:
        policy = self._config(topic).cleanup_policy
        if policy is None:
            raise NoPolicyError.of(topic, self.paths[0])
        if "compact" not in policy:
            raise NoPolicyError(
                f"{topic} has cleanup.policy={','.join(sorted(policy))}: superseded records stay",
                remedy=f"lastword config {self.paths[0]} {topic} --set cleanup.policy=compact,delete",
            )

    def _check_quarantine(self, name: str, number: int) -> None:
        from lastword.cleaner import quarantine

        directory = self._home(name, number).directory(name, number)
        found = quarantine.load(self._files, directory)
        if found is not None:
            raise QuarantinedError(
                f"{name}-{number} is quarantined: {found.reason}",
                remedy=f"restore the file from a copy, then remove {directory}/lastword/quarantine",
                file=found.file,
                position=found.position,
                offset=found.offset,
            )

    def verify(
        self,
        topic: str | None = None,
        partition: int | None = None,
        *,
        quick: bool = False,
        progress: ProgressLike | bool | None = None,
    ) -> Verification:
        """Check every checksum, index, checkpoint and invariant; changes nothing. `quick` skips the
        records."""
        from lastword.tools.verify import verify

        chosen = self._chosen(topic, partition)
        places = [(name, number, self._home(name, number).directory(name, number)) for name, number in chosen]
        return verify(
            self._files, self.paths, places, quick=quick, progress=listener(progress), clock=self._clock
        )

    # -------------------------------------------------------------- lifetime

    def sync(self) -> None:
        """What was acknowledged "os" is "disk" when this returns."""
        self._check_open()
        for directory in self._directories:
            directory.sync()

    def close(self) -> None:
        """Sync, write what the next opening needs, let go of the lock. A second close does nothing."""
        if self._closed:
            return
        self._closed = True
        with ExitStack() as stack:  # every directory is closed, whatever another one raises
            for directory in reversed(self._directories):
                stack.callback(directory.close)

    # -------------------------------------------------------------- for the rest of `api`

    def _homes(self) -> dict[str, dict[int, LogDirectory]]:
        """Topic names, sorted, with their partitions and where each lies."""
        self._check_open()
        found: dict[str, dict[int, LogDirectory]] = {}
        for directory in self._directories:
            for tp in directory.topic_partitions():
                found.setdefault(tp.topic, {}).setdefault(tp.partition, directory)
        return {name: dict(sorted(found[name].items())) for name in sorted(found)}

    def _partitions(self, topic: str) -> dict[int, LogDirectory]:
        names.check_topic(topic)
        homes = self._homes()
        if topic not in homes:
            raise UnknownTopicError.named(topic, ", ".join(self.paths), homes)
        return homes[topic]

    def _home(self, topic: str, partition: int) -> LogDirectory:
        if len(self._directories) == 1:
            return self._directories[0]
        found = self._partitions(topic).get(partition)
        if found is None:
            raise UsageError(f"{topic} has no partition {partition}", remedy="see lastword ls")
        return found

    def _chosen(self, topic: str | None, partition: int | None) -> list[tuple[str, int]]:
        if topic is None:
            if partition is not None:
                raise UsageError("partition= needs a topic", remedy="give both")
            return [(name, number) for name, numbers in self._homes().items() for number in numbers]
        numbers = self._partitions(topic)
        if partition is not None and partition not in numbers:
            raise UsageError(
                f"{topic} has no partition {partition!r}",
                remedy=f"it has {', '.join(str(number) for number in numbers)}",
            )
        return [(topic, number) for number in numbers if partition is None or number == partition]

    def _config(self, topic: str) -> TopicConfig:
        return self._directories[0].topic_config(topic)

    def _view(self, topic: str, partition: int) -> PartitionView:
        self._check_open()
        return self._home(topic, partition).view(topic, partition)

    def _views(self, topic: str) -> Mapping[int, PartitionView]:
        return {number: home.view(topic, number) for number, home in self._partitions(topic).items()}

    def _log(self, topic: str, partition: int) -> PartitionLog:
        self._check_open()
        return self._home(topic, partition).log(topic, partition)

    def _first_dirty(self, topic: str, partition: int) -> int | None:
        return self._home(topic, partition).first_dirty(topic, partition)

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(f"{self.paths[0]} is closed", remedy="open it again: lastword.open(...)")

    def _check_writable(self) -> None:
        self._check_open()
        if self.mode == "r":
            raise ReadOnlyError.opened(self.paths[0])
