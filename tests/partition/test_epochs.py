"""The leader epochs of a partition."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword.errors import DiskFullError
from lastword.partition.checkpoint_file import LeaderEpochs
from lastword.partition.durability import read_mark
from lastword.segment import names
from lastword.testing.unsynced import UNSYNCED
from tests.fakes import RecordingFiles
from tests.partition.logs import at_offset, build_batch, fill, make, opened


def epochs(tmp_path: Path, *entries: tuple[int, int]) -> LeaderEpochs:
    leader_epochs = LeaderEpochs.load(UNSYNCED, str(tmp_path))
    for epoch, start in entries:
        leader_epochs.assign(epoch, start)
    return leader_epochs


def pairs(leader_epochs: LeaderEpochs) -> list[tuple[int, int]]:
    return [(entry.epoch, entry.start_offset) for entry in leader_epochs.entries]


@pytest.mark.parametrize(
    ("assigned", "left"),
    [
        ([(2, 6), (1, 9)], [(1, 9)]),  # an older epoch that is assigned later replaces the newer
        ([(2, 6), (3, 5)], [(3, 5)]),
        ([(1, 5), (2, 6), (3, 6)], [(1, 5), (3, 6)]),
        ([(1, 5), (3, 7), (2, 7)], [(1, 5), (2, 7)]),
        ([(-1, 5)], []),
    ],
)
def test_6X_328_epochs_and_offsets_rise(
    assigned: list[tuple[int, int]], left: list[tuple[int, int]], tmp_path: Path
) -> None:
    """6X.328: Epochs and their start offsets strictly increase; a conflicting newer entry is replaced."""
    assert pairs(epochs(tmp_path, *assigned)) == left


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 30)), max_size=12))
def test_whatever_is_assigned(
    tmp_path_factory: pytest.TempPathFactory, assigned: list[tuple[int, int]]
) -> None:
    directory = tmp_path_factory.mktemp("epochs")
    leader_epochs = epochs(directory, *assigned)
    for earlier, later in zip(pairs(leader_epochs), pairs(leader_epochs)[1:], strict=False):
        assert earlier[0] < later[0] and earlier[1] < later[1]
    if assigned:
        assert leader_epochs.latest == assigned[-1][0]
    assert pairs(epochs(directory)) == pairs(leader_epochs)


def test_6X_329_an_epoch_keeps_its_start(tmp_path: Path) -> None:
    """6X.329: Assigning the same epoch again does not move its start."""
    assert pairs(epochs(tmp_path, (2, 6), (2, 9))) == [(2, 6)]


@pytest.mark.parametrize(
    ("offset", "left"), [(8, [(2, 6)]), (9, [(2, 6), (3, 8)]), (6, []), (12, [(2, 6), (3, 8), (4, 11)])]
)
def test_6X_330_from_the_end(offset: int, left: list[tuple[int, int]], tmp_path: Path) -> None:
    """6X.330: Truncation from the end drops the epochs that start at or after the offset."""
    leader_epochs = epochs(tmp_path, (2, 6), (3, 8), (4, 11))
    leader_epochs.truncate_from_end(offset)
    assert pairs(leader_epochs) == left


@pytest.mark.parametrize(
    ("offset", "left"),
    [
        (9, [(3, 9), (4, 11)]),
        (15, [(4, 15)]),
        (1, [(2, 6), (3, 8), (4, 11)]),
        (6, [(2, 6), (3, 8), (4, 11)]),
        (8, [(3, 8), (4, 11)]),
    ],
)
def test_6X_331_from_the_start(offset: int, left: list[tuple[int, int]], tmp_path: Path) -> None:
    """6X.331: Truncation from the start drops older epochs and moves the start of the one that contains
    the offset.
    """
    leader_epochs = epochs(tmp_path, (2, 6), (3, 8), (4, 11))
    leader_epochs.truncate_from_start(offset)
    assert pairs(leader_epochs) == left


def test_6X_332_they_outlive_their_object(tmp_path: Path) -> None:
    """6X.332: Epochs persist from one instance to the next."""
    epochs(tmp_path, (2, 6), (3, 8))
    assert (tmp_path / names.LEADER_EPOCHS).read_text() == "0\n2\n2 6\n3 8\n"
    assert pairs(epochs(tmp_path)) == [(2, 6), (3, 8)]
    assert epochs(tmp_path).latest == 3


def test_6T_252_epochs_come_back_from_the_batches(tmp_path: Path) -> None:
    """6T.252: Leader epochs that are missing in their file are recovered from the batches."""
    directory = make(tmp_path)
    log, _ = opened(directory, files=UNSYNCED)
    log.append_batch(build_batch(0))
    log.abandon()
    with Path(log.active.file).open("ab") as file:
        for offset, epoch in ((1, 4), (2, 4), (3, 9)):
            file.write(at_offset(build_batch(offset), offset, epoch))
    (Path(directory) / names.LEADER_EPOCHS).unlink()
    log, _ = opened(directory, files=UNSYNCED)
    assert pairs(log.epochs) == [(0, 0), (4, 1), (9, 3)]
    log.truncate_to(3)
    assert pairs(log.epochs) == [(0, 0), (4, 1)]
    log.append_batch(build_batch(3))
    *_, (_, header, _) = log.batches(3)
    assert header.leader_epoch == 4


def test_a_full_truncation_does_not_go_back_to_an_older_epoch(tmp_path: Path) -> None:
    log, _ = opened(make(tmp_path), files=UNSYNCED)
    log.append_batch(build_batch(0))
    log.epochs.assign(7, 1)
    log.truncate_fully_and_start_at(5)
    log.append_batch(build_batch(5))
    assert pairs(log.epochs) == [(7, 5)]


def test_an_epoch_that_could_not_be_written_is_written_with_the_next_append(tmp_path: Path) -> None:
    files = RecordingFiles(UNSYNCED)
    log, _ = opened(make(tmp_path), files=files)
    files.fail = lambda call: DiskFullError("planted") if names.LEADER_EPOCHS in call.path else None
    with pytest.raises(DiskFullError):
        fill(log, 1)
    files.fail = None
    fill(log, 1)
    log.sync()
    assert LeaderEpochs.load(UNSYNCED, log.directory).latest == 0
    assert read_mark(UNSYNCED, log.directory).is_current  # else recovery may cut what was synced
    log.abandon()
