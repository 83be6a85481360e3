"""Which leader epoch began at which offset: `leader-epoch-checkpoint`, lines of `epoch start_offset`, both
rising.

A directory with one writer has one epoch that never ends; a broker's has one per leader. Appends go under the
latest. The file is replaced as a whole whenever the list changes. It must not name an offset that the log
does not reach, or followers of a broker would be told of records that do not exist; so recovery cuts it at
the log's end.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise

from lastword.errors import CorruptFileError
from lastword.files import Files
from lastword.partition.checkpoint_file import format_lines, number, read_lines
from lastword.segment import names


@dataclass(frozen=True, slots=True)
class EpochEntry:
    epoch: int
    start_offset: int


class LeaderEpochs:
    """The list, and the file it lives in."""

    def __init__(self, files: Files, directory: str, entries: list[EpochEntry]) -> None:
        self._files = files
        self._path = os.path.join(directory, names.LEADER_EPOCHS)
        self._entries = entries

    @classmethod
    def load(cls, files: Files, directory: str) -> LeaderEpochs:
        """Reads the file; a damaged one counts as empty, for it only says what the batches say too."""
        try:
            return cls(files, directory, read_epochs(files, os.path.join(directory, names.LEADER_EPOCHS)))
        except CorruptFileError:
            return cls(files, directory, [])

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        return tuple(self._entries)

    @property
    def latest(self) -> int | None:
        """The newest epoch, or None while there is none."""
        return self._entries[-1].epoch if self._entries else None

    def at(self, offset: int) -> int:
        """The epoch that holds in front of `offset`; 0 if there is none."""
        return max((e.epoch for e in self._entries if e.start_offset < offset), default=0)

    def assign(self, epoch: int, start_offset: int) -> None:
        """`epoch` holds from `start_offset` on. Entries that contradict it go; the same again changes
        nothing.
        """
        if epoch < 0:
            return
        if (
            self._entries
            and self._entries[-1].epoch == epoch
            and self._entries[-1].start_offset <= start_offset
        ):
            return
        kept = [e for e in self._entries if e.epoch < epoch and e.start_offset < start_offset]
        self._set([*kept, EpochEntry(epoch, start_offset)])

    def truncate_from_end(self, offset: int) -> None:
        """Epochs that begin at or above `offset` go."""
        self._set([e for e in self._entries if e.start_offset < offset])

    def truncate_from_start(self, offset: int) -> None:
        """The epoch that holds at `offset` begins there; those before it go."""
        below = [e for e in self._entries if e.start_offset <= offset]
        above = [e for e in self._entries if e.start_offset > offset]
        if below and below[-1].start_offset < offset:
            below = [EpochEntry(below[-1].epoch, offset)]
        self._set([*below[-1:], *above])

    def _set(self, entries: list[EpochEntry]) -> None:
        if entries != self._entries:
            self._entries = entries
            lines = [f"{e.epoch} {e.start_offset}" for e in entries]
            self._files.write_atomic(self._path, format_lines(lines))


def read_epochs(files: Files, path: str) -> list[EpochEntry]:
    """Entries of a leader-epoch-checkpoint; CorruptFileError if they do not rise."""
    entries = [EpochEntry(number(e, path), number(o, path)) for e, o in read_lines(files, path, 2)]
    for one, following in pairwise(entries):
        if following.epoch <= one.epoch or following.start_offset <= one.start_offset:
            raise CorruptFileError("epochs do not rise", file=path)
    return entries
