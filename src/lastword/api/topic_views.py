"""`TopicViews`: a topic with the settings of now, and its partitions as a read finds them."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from lastword.api.open_dirs import OpenDirs
from lastword.errors import UnknownTopicError, UsageError
from lastword.parse import as_int

if TYPE_CHECKING:
    from lastword.api.batches import Packer
    from lastword.api.schema import TopicSchema
    from lastword.config import TopicConfig
    from lastword.partition import PartitionLog
    from lastword.partition.view import PartitionView

KeptView = tuple["PartitionView", tuple[tuple[str, object], ...], bool]
"""A view of an earlier call, the stamps of all that may make it old, and whether a batch that is appended
changes one for certain: see `TopicViews._readable`."""


class TopicViews:
    """The part of `Topic` with the settings of now, which finds the files of its partitions."""

    def __init__(self, dirs: OpenDirs, schema: TopicSchema, config: TopicConfig) -> None:
        self.dirs = dirs
        self._schema = schema
        self.name = schema.topic
        self._settings = dirs.settings
        self._config = config
        self._views: dict[int, KeptView] = {}

    @property
    def schema(self) -> TopicSchema:
        """Its serializers, as they are saved now or as the caller named them, and its partitioner."""
        if self.dirs.directories[0].settings is not self._settings:  # `dirs.settings`, without a call
            self._take_settings()
        return self._schema

    @property
    def config(self) -> TopicConfig:
        """Its settings in their units: `topic.config.segment_bytes`."""
        if self.dirs.directories[0].settings is not self._settings:
            self._take_settings()
        return self._config

    def _take_settings(self) -> None:
        """Take the settings and the partitions of now, if settings were read again since the last call.

        They are read again, or `OpenDirs.partitions_added` is called, after every change by this process, and
        when a change by another process is seen.

        Raises:
            InvalidSettingError: The saved serializers are other ones than those that the caller named.
        """
        settings = self.dirs.settings
        if settings is self._settings:
            return
        config = self.dirs.config(self.name)
        numbers = tuple(self.dirs.dir_set.log_dirs(self.name)) or self._schema.numbers  # none: it was deleted
        if config is not self._config or numbers != self._schema.numbers:
            from lastword.api.batches import Packer

            schema = self._schema.with_settings(numbers, config)
            self._schema, self._config, self._packer = schema, config, Packer(schema, config)
        self._settings = settings

    @property
    def packer(self) -> Packer:
        """Packs records with the settings of now."""
        if self.dirs.directories[0].settings is not self._settings:
            self._take_settings()
        return self._packer

    @cached_property
    def _packer(self) -> Packer:
        from lastword.api.batches import Packer

        return Packer(self._schema, self._config)

    def _partition_of(self, key: bytes) -> int:
        """Return the partition of a record with this encoded key."""
        if self.dirs.directories[0].settings is not self._settings:
            self._take_settings()
        return 0 if self._packer.has_one_partition else self._packer.assigner.of(key, None)

    def _readable(self, partition: int, *, refreshes: bool = True) -> PartitionLog | PartitionView:
        """Return the open log of a partition, or a view of it as it is now.

        In mode "r" a view is kept until the names in the directory, the log end or the log start change.
        `refreshes`: False shows it as of the last refresh: in a bucket, of the same version.
        """
        dirs = self.dirs
        if partition not in self._schema.numbers or (
            type(partition) is not int and as_int(partition) is None
        ):
            return self._view(partition)
        log = dirs.owned_log(self.name, partition)
        if log is not None:
            return log
        kept = self._views.get(partition)
        if kept is not None and not dirs.closed:
            view, known, is_exact = kept
            if dirs.files.have_stamps(known) and (is_exact or view.is_current()):
                return view
        stamps = dirs.stamps()
        if refreshes:
            dirs.refresh()
        log_dir = dirs.dir_set.log_dir(self.name, partition)
        directory = None if log_dir is None else log_dir.directory(self.name, partition)
        of_names = None if directory is None else (directory, dirs.files.stamp(directory))
        version = None if directory is None else dirs.files.dir_version(directory)
        view = self._view_now(partition)
        # Names that have just changed may change again without another stamp.
        if (
            stamps is None
            or of_names is None
            or version is None
            or not version.is_settled
            or not view.segments
        ):
            return view
        file = view.segments[-1].file
        of_log = file, dirs.files.stamp(file)
        facts = dirs.files.stat(file)
        if facts is not None:
            # A file with more bytes than batches (zeros that a broker fills) may get one at the same size.
            is_exact = (facts.inode, facts.size) == view.segments[-1].id
            self._views[partition] = view, (*stamps, of_names, of_log), is_exact
        return view

    def _view(self, partition: int) -> PartitionView:
        """Return the view of a partition as of now."""
        self.dirs.require_open()
        self.dirs.refresh()
        return self._view_now(partition)

    def _view_now(self, partition: int) -> PartitionView:
        """Return the view of a partition as of the last refresh; lists the topics only if it is missing."""
        if as_int(partition) is None:
            self.packer.assigner.checked(partition)
        if partition in self.schema.numbers:
            with suppress(UnknownTopicError, UsageError):
                return self.dirs.log_dir(self.name, partition).view(self.name, partition)
        views = self.dirs.views(self.name)
        if partition not in views:
            self.packer.assigner.checked(partition)
            raise UsageError(
                f"{self.name}-{partition} is not in this directory", remedy="read another partition"
            )
        return views[partition]
