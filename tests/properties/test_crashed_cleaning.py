"""6L: recovery after a broker's cleaning was interrupted at one of six stages. Our swap takes the same
steps; `tests/crash/test_power.py` stops it at each of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lastword.partition import PartitionView
from lastword.partition.directory_segments import DirectorySegments
from lastword.segment import names
from lastword.segment.names import MAX_RELATIVE_OFFSET
from lastword.testing.unsynced import UNSYNCED
from tests.partition.logs import compacted, fill, indexes_fit, leftovers, make, opened, records

FIRST, LAST = 7, 21
EXTENSIONS = (names.LOG, names.INDEX, names.TIME_INDEX)


class Stage:
    """A directory whose second to fourth segments are rewritten into one, interrupted at some stage."""

    def __init__(self, root: Path) -> None:
        self.directory = make(root)
        log, _ = opened(self.directory, files=UNSYNCED)
        fill(log, 38)
        sources = list(log.segments[1:4])
        assert [s.base_offset for s in sources] == [FIRST, 14, LAST]
        self.old = records(log)
        output = compacted(log, sources)
        gone = {s.base_offset for s in sources}
        log.abandon()
        self.new = Path(output.file).parent
        self.sources = sorted(
            p
            for p in Path(self.directory).iterdir()
            if p.is_file() and int(_stem(p)) in gone and _of_segment(p)
        )

    def put(self, suffix: str, *extensions: str) -> None:
        """Copy files of the new segment into the directory with this suffix."""
        for extension in extensions or EXTENSIONS:
            name = names.segment_file(FIRST, extension)
            shutil.copy(self.new / name, Path(self.directory) / (name + suffix))

    def set_aside(self) -> None:
        for path in self.sources:
            path.rename(f"{path}.deleted")

    def remove_sources(self) -> None:
        for path in self.sources:
            path.unlink()

    def recovered(self) -> list:
        """Return the records after recovery; check that a reader without a lock reads them before."""
        seen = records(PartitionView.load(DirectorySegments(UNSYNCED, self.directory)))
        log, _ = opened(self.directory, files=UNSYNCED)
        recovered = records(log)
        assert recovered == seen
        assert leftovers(self.directory) == [] and indexes_fit(log)
        for segment in log.segments:
            assert segment.next_offset - 1 - segment.base_offset <= MAX_RELATIVE_OFFSET
        log.abandon()
        return recovered


def _stem(path: Path) -> str:
    return path.name.split(".")[0] if path.name[:1].isdigit() else "-1"


def _of_segment(path: Path) -> bool:
    return path.name.endswith(EXTENSIONS)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


@pytest.mark.parametrize(
    ("is_undone", "step"),
    [
        (True, lambda s: s.put(".cleaned")),
        (True, lambda s: (s.put(".swap", names.LOG), s.put(".cleaned", names.INDEX, names.TIME_INDEX))),
        (False, lambda s: s.put(".swap")),
        (False, lambda s: (s.put(".swap"), s.set_aside())),
        (
            False,
            lambda s: (s.set_aside(), s.put("", names.LOG, names.INDEX), s.put(".swap", names.TIME_INDEX)),
        ),
        (
            False,
            lambda s: (
                s.remove_sources(),
                s.put("", names.LOG),
                s.put(".swap", names.INDEX, names.TIME_INDEX),
            ),
        ),
        (False, lambda s: (s.set_aside(), s.put(""))),
    ],
)
def test_6L_116_117_118_119_120_121_122_a_crash_at_each_step(
    stage: Stage, is_undone: bool, step: Callable[[Stage], object]
) -> None:
    """6L.116: After a crash with only `.cleaned` files, all original records are present.
    6L.117: After a crash with the `.log` as `.swap` and its indexes as `.cleaned`, the cleaning is
    undone and all original records are present.
    6L.118: After a crash with all new files as `.swap` and the old files in place, the cleaning is
    completed.
    6L.119: After a crash with all new files as `.swap` and the old ones as `.deleted`, the cleaning is
    completed.
    6L.120: After a crash with some new files in place and one still as `.swap`, the cleaning is
    completed.
    6L.121: After a crash with the swap done and `.deleted` files left, these files are removed, and the
    log has the cleaned records.
    6L.122: After every recovery no `.deleted`, `.cleaned` or `.swap` file is left, and no offset
    overflows an index entry.
    """
    step(stage)
    recovered = stage.recovered()
    assert recovered == stage.recovered()
    gone = [] if is_undone else [r for r in stage.old if FIRST <= r[0] < LAST + 7]
    kept = [r for r in recovered if r in gone]
    assert [r for r in recovered if r not in gone] == [r for r in stage.old if r not in gone]
    assert len(kept) < len(gone) or is_undone


def test_6L_123_opening_removes_what_was_deleted(stage: Stage) -> None:
    """6L.123: Opening a log removes `.deleted` files."""
    root = Path(stage.directory)
    for name in ("00000000000000000099.log.deleted", "00000000000000000099.snapshot.deleted"):
        (root / name).write_bytes(b"anything")
    keep = root / "00000000000000000099.checkpoint.deleted"  # part of a broker's metadata log; not removed
    keep.write_bytes(b"anything")
    log, _ = opened(stage.directory, files=UNSYNCED)
    log.abandon()
    assert [p.name for p in root.glob("*.deleted")] == [keep.name]
