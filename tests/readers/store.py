"""Run readers of a log with segments in memory, interleaved with its writer and cleaner at each step.

The writer of `history.py` runs once on `MemorySegments`, which keeps every version. Then readers go through
`PartitionView`, `scan`, `state.newest` and `lookups`, as all readers do. Their store moves along the versions
at each load, opening of a segment, and check whether a segment is in place. The judge is that of `judge.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from lastword.clock import ManualClock
from lastword.config import TopicConfig
from lastword.errors import LastwordError
from lastword.partition import scan
from lastword.partition.log import PartitionLog
from lastword.partition.lookups import records_at
from lastword.partition.moment import Range
from lastword.partition.view import CurrentView, PartitionView
from lastword.state.newest import newest, newest_pairs
from tests.fakes.memory_segments import MemorySegments, State, open_memory_log
from tests.readers.history import SALT, Ends, History, PartitionHistory, Writer, steps_of, writer_of
from tests.readers.judge import Row, Violation, Window
from tests.readers.readers import BULK, PLAIN, Outcome, row
from tests.readers.travel import pace_of
from tests.support.cleaning import clean

MAP_BYTES = 1 << 16
_DIRECTORY_ONLY = ("sharded", "truncate", "recreate", "expire", "waste")


class StoreWriter(Writer):
    """The writer of one log in `MemorySegments`, without a log directory around it."""

    files: MemorySegments
    _log: PartitionLog

    def open(self) -> None:
        begin = self.files.version
        self.history.calls.append((begin, "open"))
        config = {k: v for k, v in self.settings.items() if not k.startswith(("cleanup", "lastword"))}
        self.config = TopicConfig(cleanup_policy=frozenset({"compact"}), **config)
        self.first_dirty = 0
        self._log = open_memory_log(self.files, self.config, self.clock)

    def create(self) -> None:
        self.noted(self.files.version)

    def log(self, number: int) -> PartitionLog:
        return self._log

    def noted(self, begin: int) -> None:
        log, partition = self._log, self.history.partitions[0]
        undecided = partition.lineages[0].undecided(log.undecided)
        ends = Ends(log.log_start, log.stable_offset, log.log_end, 0, undecided)
        partition.note(begin, self.files.version, ends, 0)

    def clean(self, strategy: str, *, due: bool) -> None:
        def record(offset: int) -> None:
            self.first_dirty = offset

        with self.call(f"clean, {strategy}, {'due' if due else 'all'}"):
            clean(
                self._log,
                self.config,
                strategy=strategy,
                due=due,
                first_dirty=self.first_dirty,
                record_first_dirty=record,
                map_bytes=MAP_BYTES,
                salt=SALT,
            )

    def trim(self, number: int) -> None:
        log = self._log
        span = log.stable_offset - log.log_start
        if span >= 4:
            offset = log.log_start + self.rng.randrange(1, max(2, span // 2))
            with self.call(f"trim {offset}"):
                self.files.raise_log_start(offset)
                log.raise_log_start(offset)
                log.remove_prefix()

    def reopen(self, *, kill: bool) -> None:
        if kill:
            self._log.abandon()
        else:
            self._log.close()
        self.open()
        self.noted(self.files.version)


def make(seed: int, steps: int = 60) -> History:
    """Return the history of random calls on a log; the same seed gives the same history."""
    rng = random.Random(seed)

    def store(clock: ManualClock, reuse: bool) -> MemorySegments:
        return MemorySegments(clock=clock)

    writer = writer_of(rng, seed, store, writer_class=StoreWriter)
    assert isinstance(writer, StoreWriter)
    with writer.watched():
        writer.begin(rng)
        steps_of(writer, rng, steps, without=_DIRECTORY_ONLY)
    return writer.history


class Traveller:
    """A reader's position among the versions. Each step advances it by the pace."""

    def __init__(self, history: History, first: int, pace: Callable[[int], int]) -> None:
        self.history = history
        self.now = first
        self.steps = 0
        self._pace = pace

    def __call__(self) -> State:
        self.now = min(self.now + max(0, self._pace(self.steps)), self.history.last)
        self.steps += 1
        states: list[State] = self.history.files.states  # type: ignore[attr-defined]
        return states[self.now]

    def view(self) -> PartitionView:
        files: Any = self.history.files
        return PartitionView.load(files.at(self))


class Journey:
    """One reader of one log, from version `first` on."""

    def __init__(self, history: History, traveller: Traveller, rng: random.Random) -> None:
        self.partition: PartitionHistory = history.partitions[0]
        self.traveller = traveller
        self.first = traveller.now
        self.rng = rng

    def window(self, *, committed: bool = True) -> Window:
        return Window(self.partition, self.first, self.traveller.now, committed)

    def range(self) -> Range:
        return Range.of(self.traveller.view(), lambda view: (view.log_start, view.stable_offset))


def read_log(journey: Journey) -> None:
    view = journey.traveller.view()
    rows = [row(record) for record in scan.records(view, view.log_start, view.stable_offset)]
    journey.window().check_log(rows)


def read_uncommitted(journey: Journey) -> None:
    view = journey.traveller.view()
    records = scan.records(view, view.log_start, view.log_end, committed=False)
    rows = [row(record) for record in records]
    journey.window(committed=False).check_log(rows)


def read_newest(journey: Journey) -> None:
    tombstones = journey.rng.random() < 0.5
    plain = journey.rng.choice((True, False))
    records = newest(journey.range(), tombstones=tombstones, map_bytes=MAP_BYTES, plain=plain)
    shown = {record.key: record.offset for record in records if record.key is not None}
    journey.window().check_moment(shown, tombstones=tombstones)


def read_state(journey: Journey) -> None:
    shown: dict[bytes, bytes] = {}
    parts = newest_pairs(journey.range(), tombstones=False, map_bytes=MAP_BYTES, plain=False)
    for part in parts:
        for key, value in zip(part.keys, part.values, strict=True):
            if value is not None:
                shown[key] = value
    journey.window().check_moment(shown, tombstones=False, values=True)


def read_offsets(journey: Journey) -> None:
    view = journey.traveller.view()
    wanted = sorted(journey.rng.sample(range(view.log_end + 1), min(6, view.log_end + 1)))
    records = records_at(view, wanted)
    window = journey.window(committed=False)
    shown = {o: row(record) for o, record in zip(wanted, records, strict=True) if record is not None}
    for shown_row in shown.values():
        window.check_row(shown_row)
    window.check_complete(shown, -1, wanted=[o for o in window.survivors() if o in wanted])


def follow(journey: Journey) -> None:
    current = CurrentView(journey.traveller.view(), journey.traveller.view)
    rows: list[Row] = []
    position = current.get().log_start
    for _ in range(6):
        view = current.get()
        end = view.stable_offset
        rows += [row(record) for record in scan.records(view, position, end)]
        position = max(position, end)
    journey.window().check_log(rows)


KINDS: dict[str, Callable[[Journey], None]] = {
    "log": read_log,
    "uncommitted": read_uncommitted,
    "newest": read_newest,
    "state": read_state,
    "offsets": read_offsets,
    "follow": follow,
}


def interleavings(history: History, count: int) -> Iterator[Outcome]:
    """Yield the first `count` interleavings of a history; each run gives the same interleavings."""
    before = scan.PLAIN_BYTES_LOADED
    try:
        for number in range(count):
            yield _interleave(history, number)
    finally:
        scan.PLAIN_BYTES_LOADED = before


def _interleave(history: History, number: int) -> Outcome:
    rng = random.Random(history.seed * 1_000_003 + number)
    kind = rng.choice(list(KINDS))
    first = rng.randrange(1, history.last + 1)
    story, pace = pace_of(rng, history.last)
    scan.PLAIN_BYTES_LOADED = rng.choice((BULK, PLAIN))
    traveller = Traveller(history, first, pace)
    journey = Journey(history, traveller, rng)
    violation = None
    notes: list[str] = []
    try:
        KINDS[kind](journey)
    except Violation as wrong:
        violation = wrong
    except LastwordError as error:
        notes.append(type(error).__name__)
        try:
            journey.window().check_error(error)
        except Violation as wrong:
            violation = wrong
    label = f"{kind}, from {first} to {traveller.now} of {history.last}, {traveller.steps} steps, {story}"
    return Outcome(label, kind, hash((kind, first, traveller.now, traveller.steps)), violation, notes)
