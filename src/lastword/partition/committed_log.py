"""`CommittedLog`: the log of a partition to which other processes commit, for a server.

It has the parts of a `PartitionLog` that a server reads. They come from the view of the newest version, which
is replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from lastword.config import TopicConfig
from lastword.errors import LastwordError
from lastword.files import Files
from lastword.partition.checkpoint_file import LeaderEpochs
from lastword.partition.producer_state import Producer
from lastword.partition.reads import Reads
from lastword.partition.segment_store import SegmentSet
from lastword.partition.snapshots import Snapshots, replay
from lastword.partition.view import PartitionView
from lastword.segment.indexes import AbortedTransaction, TransactionIndex
from lastword.segment.segment import Segment


class Version(NamedTuple):
    """The view of a partition in one version.

    Attributes:
        number: The number of the version.
        view: The view.
        stamp: Differs if the partition differs.
    """

    number: int
    view: PartitionView
    stamp: object


class CommittedLog(Reads):
    """The newest version of a partition. Safe from any thread.

    Args:
        files: The storage.
        directory: The directory of the partition.
        load: Returns the version of now. It has the given view if the partition has not changed since.
        config: Returns the settings of the topic.
    """

    grows = False

    def __init__(
        self,
        files: Files,
        directory: str,
        load: Callable[[Version | None], Version],
        config: Callable[[], TopicConfig],
    ) -> None:
        self.files = files
        self.directory = directory
        self.name = directory.rpartition("/")[2]
        self._load = load
        self._config = config
        self._known: Version | None = None
        self._on_append: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"CommittedLog({self.name})"

    def view(self) -> PartitionView:
        """Return the view of the newest version."""
        known = self._known
        loaded = self._load(known)
        if loaded is not known:
            if known is not None and loaded.view is not known.view:
                loaded.view.continue_from(known.view)
            if self._known is None or loaded.number > self._known.number:
                self._known = loaded
        return loaded.view

    def refresh(self) -> None:
        """Make the view again: a file of it is gone."""
        self._known = None

    def on_append(self, call: Callable[[], None] | None) -> None:
        """Call `call` after each change of the log; None: no longer."""
        self._on_append = call

    def changed(self) -> None:
        """Make the call of `on_append`, if the log has another version now."""
        call, known = self._on_append, self._known
        if call is None:
            return
        with suppress(LastwordError):  # raised again when the log is used
            if known is not None and self.view() is known.view:
                return
        call()

    # -------------------------------------------------------------- as PartitionLog

    @property
    def config(self) -> TopicConfig:
        """Settings of the topic."""
        return self._config()

    @property
    def log_start(self) -> int:
        """First offset that may be read."""
        return self.view().log_start

    @property
    def log_end(self) -> int:
        """The offset that the next record gets."""
        return self.view().log_end

    @property
    def stable_offset(self) -> int:
        """Last stable offset: every transaction that begins below it is decided."""
        return self.view().stable_offset

    @property
    def segment_set(self) -> SegmentSet:
        """The segments."""
        return self.view().segment_set

    @property
    def active(self) -> Segment:
        """The last segment."""
        return self.view().segment_set.active

    @property
    def epochs(self) -> LeaderEpochs:
        """The leader epochs."""
        return LeaderEpochs.load(self.files, self.directory)

    @property
    def producers(self) -> list[Producer]:
        """The state of every known producer, by producer id."""
        view = self.view()
        return replay(Snapshots(self.files, view.directory), view.segment_set, view.log_end).state.producers

    def aborted_of(self, segment: Segment) -> list[AbortedTransaction]:
        """Return the aborted transactions whose markers are in a segment of this log."""
        return TransactionIndex(segment.stored).entries
