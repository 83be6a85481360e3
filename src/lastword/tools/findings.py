"""What a verification finds while it goes: counts, problems, and the batches that indexes are checked
against."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from lastword.records.batch import BatchHeader
from lastword.tools.problem import Problem

MAX_PROBLEMS = 10_000  # a file of noise has millions; the first ones tell the story


class EpochRun(NamedTuple):
    """Neighbouring batches with one leader epoch: base offsets of the first and the last of them."""

    first: int
    last: int
    epoch: int


@dataclass(slots=True)
class Account:
    """Counts and problems of one check.

    Attributes:
        sound: (inode, size, mtime) of the log files that were checked with their indexes and have no problem.
            A later check skips them. None of them ends inside a transaction.
        epochs: of each log file, which batches have which leader epoch.
    """

    batches: int = 0
    records: int = 0
    read_bytes: int = 0
    problems: list[Problem] = field(default_factory=list)
    sound: set[tuple[int, int, int]] = field(default_factory=set)
    epochs: dict[tuple[int, int, int], list[EpochRun]] = field(default_factory=dict)

    def report(self, problem: Problem) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)

    def add(
        self, file: str, position: int | None, offset: int | None, code: str, text: str, repairable: bool
    ) -> None:
        self.report(Problem(file, position, offset, code, text, repairable))


@dataclass(slots=True)
class Batches:
    """What the indexes of a segment are checked against: position, last offset and largest timestamp so
    far. `old`: positions of messages of magic 0 and 1."""

    positions: dict[int, int] = field(default_factory=dict)
    old: set[int] = field(default_factory=set)
    largest: dict[int, int] = field(default_factory=dict)
    running: int = -1

    def add(self, header: BatchHeader) -> None:
        self.positions[header.position] = header.last_offset
        if header.magic < 2:
            self.old.add(header.position)
        self.running = max(self.running, header.max_timestamp)
        self.largest[header.last_offset] = self.running

    def indexed(self, offset: int, position: int) -> bool:
        """May an index say that `offset` is reached by the batch at `position`?"""
        last = self.positions.get(position)
        if last is None or position not in self.old:
            return last == offset
        return last <= offset and offset in self.largest
