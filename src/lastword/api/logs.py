"""`open` and `LogDir`: one or several log directories, their topics, and the verbs that work on them.

"r" looks: no lock, no change, also beside a running broker. "a" appends and cleans: it takes Kafka's lock,
repairs what a crash left, and is the only writer until it is closed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
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
    StorageError,
    TopicExistsError,
    UnknownTopicError,
    UsageError,
)
from lastword.files import Files
from lastword.logdir import DirRecovery, LogDirectory, SetAside, Spread, move, partition_numbers
from lastword.segment import names
from lastword.values import ProgressLike, table_html

if TYPE_CHECKING:
    from lastword.api.partitioners import PartitionerLike
    from lastword.api.ranges import Bounds
    from lastword.cleaner import CleanRound, Plan
    from lastword.partition.log import PartitionLog
    from lastword.partition.view import PartitionView
    from lastword.retention import Deletion
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
    was. Of several directories, one whose drive fails is offline (`LogDir.offline`), and the others serve.
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
        return LogDir(Spread(opened, offline), mode, files, clock, config)
    except BaseException:
        for directory in opened:
            directory.close()
        raise


class LogDir:
    """An open log directory. Also a context manager; safe from any thread; after a fork, open again.

    paths      its directories
    mode       "r" or "a"
    offline    directories that failed, with the reason; what they hold raises OfflineError
    recovery   what opening repaired, a `DirRecovery` per directory; partitions are recovered when first used
    """

    def __init__(
        self,
        spread: Spread,
        mode: str,
        files: Files,
        clock: Clock,
        config: PathLike | None = None,
    ) -> None:
        self._spread = spread
        self._directories = spread.directories
        self.paths = [directory.path for directory in self._directories] + list(spread.offline)
        self.mode = mode
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
    def offline(self) -> dict[str, LastwordError]:
        return self._spread.offline

    @property
    def set_aside(self) -> list[tuple[str, SetAside]]:
        """Partition directories that are not served, each with the directory it lies in: `-stray` ones, that
        a broker set aside, and `-future` ones, copies on their way."""
        self._check_open()
        return [(home.path, one) for home in self._directories for one in home.set_aside()]

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
            self._reload()
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

    @property
    def _settings_file(self) -> str:
        """The one lastword.toml of all directories: where it is, or in the first."""
        candidates = [os.path.join(one.path, names.SETTINGS) for one in self._directories]
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
        """What `clean` with these arguments and `expire` would do now, or leave, and why: a `Plan` for each
        partition, and one more with the action `delete` where retention would remove something."""
        from lastword.cleaner.cleaner import plan
        from lastword.retention.expire import outlook

        chosen = self._chosen(topic, partition)
        views = [(name, number, self._view(name, number)) for name, number in chosen]
        meter = Meter("plan", progress, sum(segment.size for *_, view in views for segment in view.segments))
        found = []
        for name, number, view in views:
            config = self._config(name)
            retention = outlook(view, config, self._clock.now_ms())
            if retention.removes:
                found.append(_plan_of(retention, view))
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
            except (DataError, CapacityError, StorageError) as error:
                failed = failed or error
        if failed is not None:
            if len(compacted) > 1:
                failed.message += f"; {len(rounds)} others cleaned"
                failed.args = (failed.message,)
            failed.rounds = rounds  # type: ignore[attr-defined]  # what was done, for who catches it
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
        with home.claim(name, number):
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
        except (DataError, StorageError):
            return 0

    def expire(self, topic: str | None = None, partition: int | None = None) -> list[Deletion]:
        """Apply retention by time, size and log start now; returns a `Deletion` for each partition that lost
        segments. Only what `cleanup.policy` allows; a quarantine of the cleaner does not stop it.

        A partition whose files cannot be changed does not stop the others: its error is raised at the end,
        with `error.deletions`. NoPolicyError for a topic given by name whose policy is not known.
        """
        from lastword.retention.expire import expire

        self._check_writable()
        chosen = self._chosen(topic, partition)
        if topic is not None and self._config(topic).cleanup_policy is None:
            raise NoPolicyError.of(topic, self.paths[0])
        done: list[Deletion] = []
        failed: LastwordError | None = None
        for name, number in chosen:
            if self._config(name).cleanup_policy is None:
                continue
            try:
                found = expire(self._home(name, number), name, number)
            except (DataError, CapacityError, StorageError) as error:
                failed = failed or error
                continue
            if found.removes:
                done.append(found)
        for home in self._directories:
            home.remove_waste()
        if failed is not None:
            failed.deletions = done  # type: ignore[attr-defined]  # likewise
            raise failed
        return done

    def _expire_outlook(self, topic: str | None, partition: int | None) -> list[Deletion]:
        """What `expire` would do with every partition, also with those that lose nothing."""
        from lastword.retention.expire import outlook

        now_ms = self._clock.now_ms()
        return [
            outlook(self._view(name, number), self._config(name), now_ms)
            for name, number in self._chosen(topic, partition)
        ]

    def _trim(
        self, topic: str, partition: int | None, before: int | datetime, *, dry_run: bool = False
    ) -> dict[int, int]:
        """See `Topic.trim`. All partitions are looked at before the first one is changed."""
        from lastword.retention.trim import trim_offset

        numbers = [number for _, number in self._chosen(topic, partition)]
        wanted = {number: trim_offset(self._view(topic, number), before) for number in numbers}
        if dry_run:
            return wanted
        self._check_writable()
        for number, offset in wanted.items():
            home = self._home(topic, number)
            with home.claim(topic, number):
                home.raise_log_start(topic, number, offset, "trim")
                home.log(topic, number).remove_front()
        return {number: self._home(topic, number).log(topic, number).log_start for number in numbers}

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
        return self._spread.homes()

    def _partitions(self, topic: str) -> dict[int, LogDirectory]:
        names.check_topic(topic)
        homes = self._homes()
        if topic not in homes:
            raise UnknownTopicError.named(topic, ", ".join(self.paths), homes)
        return homes[topic]

    def _home(self, topic: str, partition: int) -> LogDirectory:
        found = self._spread.home(topic, partition)
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
        return _Views(topic, self._partitions(topic))

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


class _Views(Mapping[int, "PartitionView"]):
    """Views of a topic's partitions, each made when it is asked for: one that lies in a directory that is
    offline does not stop who reads another."""

    def __init__(self, topic: str, homes: Mapping[int, LogDirectory]) -> None:
        self._topic = topic
        self._homes = homes
        self._made: dict[int, PartitionView] = {}

    def __getitem__(self, partition: int) -> PartitionView:
        if partition not in self._made:
            self._made[partition] = self._homes[partition].view(self._topic, partition)
        return self._made[partition]

    def __contains__(self, partition: object) -> bool:
        return partition in self._homes

    def __iter__(self) -> Iterator[int]:
        return iter(self._homes)

    def __len__(self) -> int:
        return len(self._homes)


def _plan_of(deletion: Deletion, view: PartitionView) -> Plan:
    """A `Deletion` as one of the things that could be done."""
    from lastword.cleaner.choose import Plan, Reason

    return Plan(
        topic=deletion.topic,
        partition=deletion.partition,
        action="delete",
        due=True,
        strategy="retention",
        segments=deletion.segments,
        read_bytes=0,
        write_bytes=0,
        free_bytes=deletion.freed_bytes,
        exact=True,
        reasons=tuple(Reason(code, deletion.reason) for code in deletion.codes[:1]),
        log_start=deletion.log_start,
        total_segments=len(view.segments),
        total_bytes=sum(segment.size for segment in view.segments),
    )
