"""Flip single bits in the last batch of a log after each way to stop, and check the guarantees.

A process appends and stops; then one bit of its last batch is flipped. A reader without a lock and two
openings to append must either return the written records, or raise an error that names the file, and must
not change the log. If the batch was acknowledged only at `os`, a torn tail explains the damage: the batch
may then be cut, and the records before it must exist. If such a batch has a base offset that is too high,
an opening refuses the log; a reader returns the batch.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from lastword.clock import ManualClock
from lastword.errors import DataError
from lastword.logdir import LogDirectory
from lastword.partition import PartitionLog, PartitionView, scan
from lastword.partition.directory_segments import DirectorySegments
from lastword.records.formats import read_header
from lastword.segment import names
from tests.crash.history import History
from tests.crash.invariants import NOW
from tests.crash.memory import ROOT, MemoryFiles
from tests.crash.scenarios import Process, keyed, settings_of

Tree = dict[str, bytes | None]
Shown = list[tuple[int, bytes | None, bytes | None]]
DIRECTORY = f"{ROOT}/users-0"
LEADER_EPOCH = range(8 * 12, 8 * 16)
"""Bits that no checksum covers and no reader uses."""
BASE_OFFSET = range(64)


@dataclass(frozen=True)
class Life:
    """A process and its stop. `synced`: the last batch was acknowledged at `disk`, or the stop was clean."""

    name: str
    work: Callable[[Process], None]
    synced: bool
    foreign: bool = False
    """The private files are removed, as a broker leaves the directory."""
    segment_bytes: int = 700


def _clean_stop(p: Process) -> None:
    for number in range(5):
        p.put([keyed(number)])
    p.close()


def _clean_stop_at_a_base(p: Process) -> None:
    p.put([keyed(0)]).roll().put([keyed(1)]).close()


def _clean_stop_after_a_clean_stop(p: Process) -> None:
    p.put([keyed(0)]).put([keyed(1)]).close()
    p.open().put([keyed(2), keyed(3), keyed(4)], codec=4).close()


def _aborted(p: Process) -> None:
    p.put([keyed(0)]).transact(7, [(b"a", b"1")]).end(7, commit=False).close()


def _synced(p: Process) -> None:
    p.put([keyed(0)]).put([keyed(1)], ack="disk").put([keyed(2), keyed(3)], ack="disk")


def _checkpointed(p: Process) -> None:
    p.put([keyed(0)]).put([keyed(1)]).checkpoint()


def _killed(p: Process) -> None:
    p.put([keyed(0)]).put([keyed(1)], ack="disk").put([keyed(2)])


def _truncated(p: Process) -> None:
    """Truncate inside a batch: removed offsets must not be assigned again, and the log end stays."""
    p.put([keyed(0)]).put([keyed(1), keyed(2), keyed(3)], ack="disk")
    p.truncate(2).put([keyed(4)], ack="disk")


LIVES = (
    Life("clean stop", _clean_stop, synced=True),
    Life("clean stop, as a broker's", _clean_stop, synced=True, foreign=True),
    Life("clean stop behind a roll", _clean_stop_at_a_base, synced=True),
    Life("clean stop behind a roll, as a broker's", _clean_stop_at_a_base, synced=True, foreign=True),
    Life("two clean stops", _clean_stop_after_a_clean_stop, synced=True),
    Life("clean stop behind a marker", _aborted, synced=True),
    Life("synced, killed", _synced, synced=True),
    Life("checkpoint, killed", _checkpointed, synced=True),
    Life("synced below the last batch, killed", _killed, synced=False),
    Life("truncated inside a batch, synced, killed", _truncated, synced=True),
)


@dataclass(frozen=True)
class Lived:
    """The tree after a life, the records read from it, and the log file whose last batch is flipped."""

    life: Life
    tree: Tree
    shown: Shown
    file: str
    start: int

    @property
    def bits(self) -> range:
        data = self.tree[self.file]
        assert data is not None
        return range(8 * (len(data) - self.start))

    def flipped(self, bit: int) -> Tree:
        data = bytearray(self.tree[self.file] or b"")
        data[self.start + bit // 8] ^= 1 << bit % 8
        return {**self.tree, self.file: bytes(data)}


def live(life: Life) -> Lived:
    files = MemoryFiles()
    process = Process(files, History(), settings_of(segment_bytes=life.segment_bytes), ManualClock(NOW))
    life.work(process.open().create())
    process.abandon()
    tree = files.tree()
    if life.foreign:
        private = f"users-0/{names.PRIVATE}"
        tree = {path: data for path, data in tree.items() if not path.startswith(private)}
    shown, error = as_reader(MemoryFiles(tree))
    assert error is None and shown
    file = max(path for path in tree if path.endswith(names.LOG))
    data = tree[file]
    if not data:  # the newest segment is empty
        file = max(path for path, data in tree.items() if path.endswith(names.LOG) and data)
        data = tree[file]
    assert data
    start = position = 0
    while position < len(data):
        start = position
        position += read_header(data, position, len(data), file).size
    return Lived(life, tree, shown, file, start)


# ---------------------------------------------------------------- what is seen


def as_reader(files: MemoryFiles) -> tuple[Shown, DataError | None]:
    shown: Shown = []
    try:
        _read(PartitionView.load(DirectorySegments(files, DIRECTORY)), shown)
    except DataError as error:
        return shown, error
    return shown, None


def as_writer(files: MemoryFiles) -> tuple[Shown, DataError | None]:
    """Open the log as a writer, read it, and release it as a killed process would."""
    logs = LogDirectory.open(ROOT, "a", files, ManualClock(NOW), settings_of(), rng=random.Random(7))
    shown: Shown = []
    try:
        _read(logs.log("users", 0), shown)
    except DataError as error:
        return shown, error
    finally:
        logs.abandon()
    return shown, None


def _read(log: PartitionLog | PartitionView, shown: Shown) -> None:
    view = log.view() if isinstance(log, PartitionLog) else log
    for record in scan.records(view, view.log_start, view.stable_offset, plain=True):
        shown.append((record.offset, record.key, record.value))


def logs_of(tree: Tree) -> Tree:
    return {path: data for path, data in tree.items() if path.endswith(names.LOG)}


# ---------------------------------------------------------------- the judgement


def judge(lived: Lived, tree: Tree) -> Iterator[str]:
    """Yield each wrong result of readers and writers on a damaged tree."""
    name = lived.life.name
    shown, error = as_reader(MemoryFiles(tree))
    if not _may_be(shown, error, lived, a_reader=True):
        yield f"{name}: a reader shows {[r[0] for r in shown]}, {error}"
    files = MemoryFiles(tree)
    for opening in ("first", "second"):
        shown, error = as_writer(files)
        if not _may_be(shown, error, lived):
            yield f"{name}: the {opening} opening shows {[r[0] for r in shown]}, {error}"
        if error is not None and logs_of(files.tree()) != logs_of(tree):
            yield f"{name}: the {opening} opening refused the log and changed it"


def _may_be(shown: Shown, error: DataError | None, lived: Lived, *, a_reader: bool = False) -> bool:
    if shown != lived.shown[: len(shown)]:
        last = len(lived.shown) - 1
        moved = shown[:last] == lived.shown[:last] and shown[last][0] > lived.shown[last][0]
        return a_reader and moved and not lived.life.synced
    if error is not None:
        return error.file is not None and error.file.endswith(lived.file) and error.position is not None
    if lived.life.synced:
        return shown == lived.shown
    last = [
        r for r in lived.shown if r[0] < lived.shown[-1][0]
    ]  # the last batch of such a life has one record
    return len(shown) >= len(last)


def judge_flips(lived: Lived, bits: Iterable[int]) -> Iterator[str]:
    for bit in bits:
        for problem in judge(lived, lived.flipped(bit)):
            yield f"bit {bit}: {problem}"
