"""`LogDir`: one or several log directories, their topics, and the verbs that work on them.

"r" looks: no lock, no change, also beside a running broker. "a" appends and cleans: it takes Kafka's lock,
repairs what a crash left, and is the only writer until it is closed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cached_property
from types import TracebackType
from typing import Any, Unpack

from lastword.api.background import Background
from lastword.api.cleaner import Cleaner
from lastword.api.found import PathLike
from lastword.api.topic import Topic
from lastword.api.topics import Topics
from lastword.config import remove_topic_settings, write_topic_settings
from lastword.config.keywords import Keywords
from lastword.errors import UsageError
from lastword.ingest.apply import Watch
from lastword.logdir import SetAside, move
from lastword.values import table_html


class LogDir(Topics):
    """An open log directory. Also a context manager, and a mapping of its topics: `logs["users"]`,
    `"users" in logs`, `len(logs)`, `list(logs)`. Safe from any thread.

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

    def __getitem__(self, topic: str) -> Topic[Any, Any]:
        """`logs["users"]`: one topic, as `topic(name)` gives it."""
        return self.topic(topic)

    def __contains__(self, topic: object) -> bool:
        return topic in self._homes()

    def __iter__(self) -> Iterator[str]:
        """The names of the topics."""
        return iter(list(self._homes()))

    def __len__(self) -> int:
        """How many topics there are."""
        return len(self._homes())

    def __bool__(self) -> bool:
        return True  # also without a topic

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

    def delete_topic(self, name: str) -> None:
        """Remove a topic with all its records. Its bytes go after `file.delete.delay.ms`, or at closing.

        OfflineError if a part of it lies in a directory that is offline: nothing was removed.
        """
        self._check_writable()
        partitions = self._partitions(name)
        homes = [home for home in self._directories if home in partitions.values()]
        for home in partitions.values():
            home.check_serves()
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

    def set_config(self, topic: str | None = None, **config: Unpack[Keywords]) -> None:
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

    # -------------------------------------------------------------- lifetime

    _watches: tuple[Watch, ...] = ()

    def _watch_inboxes(self) -> None:
        """Ingest the commits of writers in other processes, as long as this is open."""
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
