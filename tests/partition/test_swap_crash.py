"""The swap of a rewrite, stopped at every change, with every image that a power cut could leave."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from lastword.files import DEFAULT
from lastword.partition import PartitionLog, PartitionView
from lastword.partition.directory_segments import DirectorySegments
from lastword.testing.unsynced import UNSYNCED
from tests.fakes import ForgetfulFiles, RecordingFiles, Stopped
from tests.partition.logs import compacted, fill, indexes_fit, leftovers, make, newest, opened, records
from tests.support.exhaustive import stride


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a directory with five segments, closed cleanly."""
    root = tmp_path_factory.mktemp("before")
    log, _ = opened(make(root))
    fill(log, 38)
    assert len(log.segments) >= 5
    log.close()
    return root


def ready(before: Path, target: Path, files: object = UNSYNCED) -> tuple[PartitionLog, list, object]:
    """Open a copy of the directory, with an output for its second to fourth segment."""
    shutil.copytree(before, target, dirs_exist_ok=True)
    if callable(files):
        files = files(target)
    log, _ = opened(os.path.join(target, "users-0"), files=files, clean=True)  # type: ignore[arg-type]
    sources = list(log.segments[1:4])
    return log, sources, compacted(log, sources)


def both_states(before: Path, target: Path) -> tuple[list, list]:
    log, sources, output = ready(before, target)
    old = records(log)
    log.replace(sources, [output])
    new = records(log)
    log.close()
    assert len(new) < len(old) and newest(new) == newest(old)
    return old, new


def check_recovers(directory: str, old: list, new: list, label: str) -> list:
    """Check that a reader finds the old or the new state, and that a recovery then finds the same state."""
    seen = records(PartitionView.load(DirectorySegments(DEFAULT, directory)))
    assert seen in (old, new), label
    log, _ = opened(directory, files=UNSYNCED)
    pairs = records(log)
    assert pairs == seen, label
    assert leftovers(directory) == [], label
    assert not [
        n for n in DEFAULT.listdir(os.path.join(directory, "lastword")) if n.startswith("rewrite-")
    ], label
    assert indexes_fit(log), label
    fill(log, 2)
    assert records(log)[:-2] == pairs, label
    log.abandon()
    return pairs


def test_every_stop_leaves_old_or_new(before: Path, tmp_path: Path) -> None:
    old, new = both_states(before, tmp_path / "states")
    outcomes = []
    for stop in range(200):
        target = tmp_path / f"stop{stop}"
        log, sources, output = ready(before, target)
        log._local.store = DirectorySegments(RecordingFiles(UNSYNCED, stop_at=stop), log.directory)
        try:
            log.replace(sources, [output])
        except Stopped:
            pass
        else:
            break
        outcomes.append(check_recovers(os.path.join(target, "users-0"), old, new, f"stop {stop}"))
    assert outcomes.count(old) > 5 and outcomes.count(new) > 5
    first_new = outcomes.index(new)
    assert all(outcome == new for outcome in outcomes[first_new:])


@pytest.mark.slow
def test_every_power_cut_leaves_old_or_new(before: Path, tmp_path: Path) -> None:
    old, new = both_states(before, tmp_path / "states")
    log, sources, output = ready(before, tmp_path / "work", ForgetfulFiles)
    files = log.files
    assert isinstance(files, ForgetfulFiles)
    start = len(files.journal)
    log.replace(sources, [output])
    files.mark("published")
    outcomes = {True: 0, False: 0}
    for number, image in enumerate(files.images(start=start, seeds=range(3))):
        if number % stride(2):
            continue
        target = tmp_path / f"image{number}"
        image.write(target)
        pairs = check_recovers(str(target / "users-0"), old, new, image.label + "\n" + files.story())
        outcomes[pairs == new] += 1
        assert pairs == new or not image.marks, image.label
        shutil.rmtree(target)
    assert outcomes[True] > 20 and outcomes[False] > 20


@pytest.mark.slow
def test_every_stop_of_the_recovery_too(before: Path, tmp_path: Path) -> None:
    """Stop a swap, stop its recovery, then recover."""
    old, new = both_states(before, tmp_path / "states")
    for stop in range(1, 40, 3):
        target = tmp_path / f"s{stop}"
        log, sources, output = ready(before, target)
        log._local.store = DirectorySegments(RecordingFiles(UNSYNCED, stop_at=stop), log.directory)
        try:
            log.replace(sources, [output])
        except Stopped:
            pass
        else:
            break
        for again in range(0, 60, stride(3)):
            copy = tmp_path / "copy"
            shutil.copytree(target, copy)
            directory = str(copy / "users-0")
            seen = records(PartitionView.load(DirectorySegments(DEFAULT, directory)))
            try:
                opened(directory, files=RecordingFiles(UNSYNCED, stop_at=again))[0].abandon()
            except Stopped:
                assert check_recovers(directory, old, new, f"stop {stop}, then {again}") == seen
                shutil.rmtree(copy)
            else:
                shutil.rmtree(copy)
                break
        else:
            pytest.fail("recovery never ended")


def test_a_reader_without_a_lock_at_every_step(before: Path, tmp_path: Path) -> None:
    """After each change a new view is loaded and read, and a view from before continues its read."""
    old, new = both_states(before, tmp_path / "states")
    log, sources, output = ready(before, tmp_path / "work")
    held = PartitionView.load(DirectorySegments(DEFAULT, log.directory))
    states = []

    class Watched(RecordingFiles):
        def do(self, call, action, half=None):  # type: ignore[no-untyped-def]
            result = super().do(call, action, half)
            if call.changes:
                states.append(records(PartitionView.load(DirectorySegments(DEFAULT, log.directory))))
                assert newest(records(held)) == newest(old)
            return result

    log._local.store = DirectorySegments(Watched(UNSYNCED), log.directory)
    log.replace(sources, [output])
    assert all(state in (old, new) for state in states)
    assert states[0] == old and states[-1] == new
    turn = states.index(new)
    assert all(state == new for state in states[turn:])


def test_a_read_that_began_before_a_swap_goes_on_after_it(before: Path, tmp_path: Path) -> None:
    log, sources, output = ready(before, tmp_path / "work")
    old = records(log)
    view = PartitionView.load(DirectorySegments(DEFAULT, log.directory))
    batches = view.batches(0)
    read = [next(batches)[1].base_offset for _ in range(sources[0].base_offset + 1)]
    log.replace(sources, [output])
    read += [header.base_offset for _, header, _ in batches if header.count]
    assert read == sorted(set(read))
    assert {offset for offset, _, _ in newest(old).values()} <= set(read)


def test_a_failing_rename_leaves_the_log_usable(before: Path, tmp_path: Path) -> None:
    from lastword.errors import StorageError

    old, new = both_states(before, tmp_path / "states")
    for number in range(100):
        log, sources, output = ready(before, tmp_path / f"w{number}")
        seen = []

        def fail(call, seen=seen, number=number):  # type: ignore[no-untyped-def]
            seen.append(call)
            return StorageError("planted", errno=5) if call.changes and len(seen) == number + 1 else None

        log._local.store = DirectorySegments(RecordingFiles(UNSYNCED, fail=fail), log.directory)
        try:
            log.replace(sources, [output])
        except StorageError:
            pairs = records(log)
            assert pairs in (old, new)
            fill(log, 1)
            assert records(log) == [*pairs, records(log)[-1]]
            log.close()
        else:
            if len(seen) <= number:
                break
    assert number > 20
