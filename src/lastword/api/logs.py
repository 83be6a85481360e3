"""`open` and `LogDir`: one or several log directories, their topics, and the verbs that work on them.

"r" looks: no lock, no change, also beside a running broker. "a" appends and cleans: it takes Kafka's lock,
repairs what a crash left, and is the only writer until it is closed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from lastword import files as storage
from lastword.api.background import Background
from lastword.api.cleaner import Cleaner
from lastword.api.found import PathLike
from lastword.api.progress import listener
from lastword.api.serializers import SerializerLike, serializer_of
from lastword.api.topic import Topic
from lastword.api.verbs import Verbs
from lastword.clock import Clock, SystemClock
from lastword.config import Settings, remove_topic_settings, write_topic_settings
from lastword.errors import (
    LastwordError,
    ReadOnlyError,
    StorageError,
    TopicExistsError,
    UsageError,
)
from lastword.files import Files
from lastword.logdir import LogDirectory, SetAside, Spread, move, partition_numbers
from lastword.logdir.inbox import Watch
from lastword.segment import names
from lastword.values import ProgressLike, table_html

if TYPE_CHECKING:
    from lastword.api.partitioners import PartitionerLike
    from lastword.api.ranges import Bounds
    from lastword.state.state import State


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

    path      one directory, with those that the setting log.dirs names beside it; or a list, and only these
    mode      "r" takes no lock and changes nothing; the directory must exist. "a" reads, appends and
              cleans; it takes the lock and makes the directory if it is absent
    config    another settings file than the directory's lastword.toml
    clock, files   for tests: another source of "now", another storage. With another clock the background
              cleaner starts only when it is told to (`logs.cleaner.start()`)
    settings  Kafka's names with _ for dots; they win over the file: `segment_bytes="64MiB"`

    NotALogDirError, LogDirLockedError, UnknownSettingError and InvalidSettingError leave everything as it
    was. Of several directories, one whose drive fails is offline (`LogDir.offline`), and the others serve.
    """
    if mode not in ("r", "a"):
        raise UsageError(
            f"mode {mode!r} is neither 'r' nor 'a'", remedy='"r" looks, "a" reads, appends and cleans'
        )
    paths = _paths(path)
    if not paths:
        raise UsageError("no directory given", remedy='lastword.open("data")')
    if len({os.path.realpath(one) for one in paths}) != len(paths):
        raise UsageError("a directory is given twice", remedy="name each once")

    def load() -> Settings:
        return Settings.load(paths, config, arguments=settings)

    found = load()  # every mistake in the settings is told before anything is opened
    if isinstance(path, (str, os.PathLike)):
        paths = _together(paths[0], found.instance.log_dirs)
    clock = clock or SystemClock()
    files = files or storage.DEFAULT
    opened: list[LogDirectory] = []
    offline: dict[str, LastwordError] = {}
    try:
        for one in paths:
            try:
                opened.append(LogDirectory.open(one, mode, files, clock, load))
            except (StorageError, ReadOnlyError) as error:
                # A drive that failed, or may not be written: the others serve, if there are any.
                offline[one] = error
        if not opened:
            raise next(iter(offline.values()))
        logs = LogDir(Spread(opened, offline), mode, files, clock, config)
    except BaseException:
        for directory in opened:
            directory.close()
        raise
    # Beside a clock of the caller's own nothing runs by itself.
    if mode == "a" and isinstance(clock, SystemClock):
        logs._watch_inboxes()
        if logs.settings.instance.log_cleaner_enable:
            logs.cleaner.start()
    return logs


def _paths(given: PathLike | Sequence[PathLike]) -> list[str]:
    try:
        several = [given] if isinstance(given, (str, os.PathLike)) else list(given)
        paths = [os.fspath(one) for one in several]
    except TypeError:
        raise UsageError(
            f"{given!r} is no path", remedy='lastword.open("data"), or a list of paths'
        ) from None
    for path in paths:
        if "://" in path:
            raise UsageError(f"{path} is a URL", remedy="give a directory of a file system: /srv/log")
    return paths


def _together(path: str, log_dirs: Sequence[str]) -> list[str]:
    """The directories of the setting log.dirs, if it is set. UsageError unless `path` is one of them: the
    settings file of a copy names the directories that it was copied from."""
    if not log_dirs:
        return [path]
    relative = [one for one in log_dirs if not Path(one).is_absolute()]
    if relative:
        raise UsageError(f"log.dirs: {relative[0]!r} is not absolute", remedy="give the whole path")
    others = [one for one in log_dirs if os.path.realpath(one) != os.path.realpath(path)]
    if len(others) == len(log_dirs):
        raise UsageError(
            f"{path} is none of log.dirs: {', '.join(log_dirs)}",
            remedy="open one of these, or take log.dirs out of its lastword.toml, if that is a copy",
        )
    return [path, *others]


class LogDir(Verbs):
    """An open log directory. Also a context manager; safe from any thread.

    In a child made by fork what the parent has open to append is closed: it has the lock, the child opens it
    again once the parent has let go of it.

    paths      its directories
    mode       "r" or "a"
    offline    directories that failed, with the reason; what they hold raises OfflineError
    recovery   what opening repaired, a `DirRecovery` per directory; partitions are recovered when first used
    """

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
    def set_aside(self) -> list[tuple[str, SetAside]]:
        """Partition directories that are not served, each with the directory it lies in: `-stray` ones, that
        a broker set aside, and `-future` ones, copies on their way."""
        self._check_open()
        return [(home.path, one) for home in self._directories for one in home.set_aside()]

    @cached_property
    def cleaner(self) -> Cleaner:
        """The background cleaner. In mode "a" it runs, unless `log_cleaner_enable=False`."""
        return Cleaner(self._background)

    @cached_property
    def _background(self) -> Background:
        return Background(self)

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

    def delete_topic(self, name: str) -> None:
        """Remove a topic with all its records. Its bytes go after `file.delete.delay.ms`, or at closing.

        OfflineError if a part of it lies in a directory that is offline: nothing was removed.
        """
        self._check_writable()
        partitions = self._partitions(name)
        homes = [home for home in self._directories if home in partitions.values()]
        for number, home in partitions.items():
            home.check_topic(name, number)
        with ExitStack() as stack:
            for number, home in partitions.items():
                stack.enter_context(home.claim(name, number))
            for home in homes:
                home.delete_topic(name)
        remove_topic_settings(self._files, self._settings_file, name)
        if "_background" in self.__dict__:
            self._background.forget(name, partitions)
        self._reload()
        self._spread.write_list()

    def move(self, topic: str, partition: int, to: PathLike) -> None:
        """Move one partition into another of the directories, while it is read and appended to.

        DiskFullError: there is no room for it; nothing was moved.
        """
        self._check_writable()
        wanted = os.path.realpath(to)
        target = next((one for one in self._directories if os.path.realpath(one.path) == wanted), None)
        if target is None:
            raise UsageError(
                f"{os.fspath(to)} is none of the directories that serve",
                remedy=f"one of {', '.join(one.path for one in self._directories)}",
            )
        self._chosen(topic, partition)
        move(self._home(topic, partition), target, topic, partition)
        self._spread.write_list()

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

    def _reload(self) -> None:
        super()._reload()
        if "_background" in self.__dict__:
            self._background.settings_changed()

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

            start = SnapshotFile(self, os.fspath(snapshot), topic)
            start.check(self, name, views, ends)
        return State(
            topic,
            self.topic(name, key_serializer="bytes", value_serializer="bytes"),
            lambda: self._views(name),
            ends,
            (topic.key_serializer, topic.value_serializer),
            sync=self.sync,
            first_dirty=lambda partition: self._first_dirty(name, partition),
            default=default,
            max_bytes=max_bytes,
            map_bytes=self.settings.instance.map_bytes,
            snapshot=start,
            progress=listener(progress),
        )

    # -------------------------------------------------------------- lifetime

    _watches: tuple[Watch, ...] = ()

    def _watch_inboxes(self) -> None:
        """Take in what writers in other processes commit (Spark's tasks), for as long as this is open."""
        self._watches = tuple(Watch(directory) for directory in self._directories)

    def sync(self) -> None:
        """What was acknowledged "os" is "disk" when this returns."""
        self._check_open()
        for directory in self._directories:
            directory.sync()

    def close(self) -> None:
        """Sync, write what the next opening needs, let go of the lock. A second close does nothing.

        A background round ends at its next safe point and leaves nothing behind.
        """
        if self._closed:
            return
        self._closed = True
        with ExitStack() as stack:  # every directory is closed, whatever another one raises
            for directory in reversed(self._directories):
                stack.callback(directory.close)
            for watch in self._watches:
                stack.callback(watch.close)
            if "_background" in self.__dict__:
                stack.callback(self._background.scheduler.stop)
