"""Producer snapshots. Each docstring states its property (section 6W)."""

from __future__ import annotations

import struct
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastword.errors import CorruptFileError
from lastword.files import DEFAULT, run_steps
from lastword.partition import cut, snapshots
from lastword.partition.producer_state import Producer, ProducerState, SequencedBatch
from lastword.partition.snapshots import Snapshots
from lastword.segment import names
from lastword.segment.segment import Segment
from lastword.segment.stored import SegmentFiles
from tests.fakes.forgetful import ForgetfulFiles
from tests.fakes.recording import RecordingFiles
from tests.formats.batches import T, data

EMPTY = bytes.fromhex("000148674bc700000000")
VECTOR = bytes.fromhex(
    "00019ec4871b00000002000000000000000500020000000b0000000000000016000000020000018bcfe5680000000007000000000000"
    "001400000000000000090000ffffffffffffffffffffffff000000000000018bcfe569f4ffffffffffffffffffffffff"
)
TWO = [
    Producer(5, 2, 7, T, (SequencedBatch(11, 22, 2, T),), 20),
    Producer(9, 0, -1, T + 500, (), None),
]


def store_in(directory: Path, *states: ProducerState) -> Snapshots:
    store = Snapshots(DEFAULT, str(directory))
    for state in states:
        assert run_steps(store.taking(state))
    return store


def state_at(offset: int) -> ProducerState:
    return ProducerState(offset, [Producer(1, 0, -1, T, (SequencedBatch(offset - 1, offset - 1, 0, T),))])


def test_6W_315_vectors() -> None:
    """6W.315: A snapshot round-trips open, finished and empty transactions."""
    assert snapshots.encode([]) == EMPTY
    assert snapshots.decode(EMPTY, "x") == []
    assert snapshots.encode(reversed(TWO)) == VECTOR
    assert snapshots.decode(VECTOR, "x") == TWO


producers = st.builds(
    Producer,
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**15 - 1),
    st.integers(-1, 2**31 - 1),
    st.just(T),
    st.just(())
    | st.tuples(
        st.builds(
            SequencedBatch,
            st.integers(-1, 2**31 - 1),
            st.integers(0, 2**62),
            st.integers(0, 2**31 - 1),
            st.just(T),
        )
    ),
    st.none() | st.integers(0, 2**62),
)


@given(st.lists(producers, unique_by=lambda p: p.producer_id))
def test_round_trip(known: list[Producer]) -> None:
    decoded = snapshots.decode(snapshots.encode(known), "x")
    assert decoded == sorted(known, key=lambda p: p.producer_id)


@given(st.integers(0, len(VECTOR) - 1), st.integers(1, 255))
def test_6W_316_any_byte_changed_is_noticed(position: int, change: int) -> None:
    """6W.316: Empty, truncated and corrupt snapshot files are skipped and deleted; the one before is used."""
    damaged = bytearray(VECTOR)
    damaged[position] ^= change
    with pytest.raises(CorruptFileError) as error:
        snapshots.decode(bytes(damaged), "here.snapshot")
    assert error.value.file == "here.snapshot"
    assert error.value.position is not None


def test_any_cut_is_noticed() -> None:
    for size in range(len(VECTOR)):
        with pytest.raises(CorruptFileError):
            snapshots.decode(VECTOR[:size], "x")


def test_trailing_bytes_of_an_older_longer_snapshot_are_noticed() -> None:
    with pytest.raises(CorruptFileError, match="0 entries"):
        snapshots.decode(EMPTY + bytes(46), "x")


def test_a_wrong_count_is_refused() -> None:
    for count in (-1, 2**31 - 1):
        body = struct.pack(">i", count)
        with pytest.raises(CorruptFileError, match="entries"):
            snapshots.decode(struct.pack(">hI", 1, google_crc32c.value(body)) + body, "x")


def test_taking_one_replaces_another_storys_file_of_that_offset(tmp_path: Path) -> None:
    store_in(tmp_path, ProducerState(40, TWO))
    store = Snapshots(DEFAULT, str(tmp_path))
    assert run_steps(store.taking(state_at(40)))
    assert store.read(40) == state_at(40).producers


def test_6W_317_after_a_truncation(tmp_path: Path) -> None:
    """6W.317: After a truncation no snapshot is left above the log end or at or below the log start."""
    store = store_in(tmp_path, *(state_at(n) for n in (10, 20, 30, 40)))
    store.remove_outside(store.offsets(), 10, 30)
    assert store.offsets() == [20, 30]
    assert store.read(30) == state_at(30).producers


def test_6W_318_nothing_is_written_twice(tmp_path: Path) -> None:
    """6W.318: No snapshot is written if the offset has not changed."""
    files = RecordingFiles(DEFAULT)
    store = Snapshots(files, str(tmp_path))
    assert run_steps(store.taking(state_at(10)))
    changes = len(files.changes)
    assert not run_steps(store.taking(state_at(10)))
    assert len(files.changes) == changes
    assert run_steps(store.taking(state_at(11)))
    loaded = Snapshots(files, str(tmp_path))
    loaded.mark_current(11)
    assert not run_steps(loaded.taking(state_at(11)))


def test_the_snapshot_of_an_unchanged_state_is_renamed(tmp_path: Path) -> None:
    """Renamed only if it is durable, above the active segment's base, and has the same content."""
    files = RecordingFiles(DEFAULT)

    def writes(store: Snapshots, state: ProducerState, active_base: int | None) -> list[str]:
        before = len(files.changes)
        assert run_steps(store.taking(state, active_base=active_base))
        return [call.name for call in files.changes[before:]]

    renamed = ["rename", "fsync_dir"]
    store = Snapshots(files, str(tmp_path))
    assert writes(store, ProducerState(10, TWO), 0) != renamed  # there is none
    assert writes(store, ProducerState(20, TWO), 0) == renamed
    assert store.offsets() == [20]
    assert store.read(20) == ProducerState(20, TWO).producers
    assert writes(store, ProducerState(30, TWO), 20) != renamed  # the one at a segment's base stays
    assert writes(store, ProducerState(40, TWO), None) != renamed
    assert writes(store, ProducerState(50), 0) != renamed
    assert store.offsets() == [20, 30, 40, 50]
    for is_durable in (False, True):
        offset = store.offsets()[-1]
        store = Snapshots(files, str(tmp_path))
        store.read(offset)
        store.mark_current(offset, is_durable=is_durable)
        assert (writes(store, ProducerState(offset + 10), 0) == renamed) == is_durable
    store.remove_outside(store.offsets(), -1, -1)
    assert writes(store, ProducerState(80), 0) != renamed
    (tmp_path / f"{80:020d}.snapshot").unlink()
    assert writes(store, ProducerState(90), 0) != renamed
    assert store.read(90) == []


def test_6W_324_stray_ones(tmp_path: Path) -> None:
    """6W.324: Only stray snapshots at segment bases, and the newest beyond them, are kept."""
    for left, bases, kept in (
        ([2, 3, 5, 7], [3, 5], [3, 5, 7]),
        ([2, 3, 5], [3, 5], [3, 5]),
        ([2, 3, 5], [3, 9], [3]),
        ([4], [], [4]),
        ([], [1], []),
    ):
        directory = tmp_path / "-".join(map(str, left or ["none"])) / "-".join(map(str, bases or ["none"]))
        directory.mkdir(parents=True)
        store = store_in(directory, *(state_at(n) for n in left))
        store.remove(store.stray(store.offsets(), bases))
        assert store.offsets() == kept


def test_6W_325_marking_for_deletion_renames(tmp_path: Path) -> None:
    """6W.325: Marking a snapshot for deletion renames it to `.deleted`; if it is gone already, nothing is
    returned.
    """
    store = store_in(tmp_path, state_at(10), state_at(20))
    (tmp_path / names.segment_file(10, names.LOG)).write_bytes(b"")
    segment = Segment.load(SegmentFiles(DEFAULT, str(tmp_path), 10))
    (tmp_path / names.segment_file(10, names.LOG)).unlink()
    listing = DEFAULT.listdir(str(tmp_path))
    renamed: list[str] = []
    cut.set_aside(DEFAULT, str(tmp_path), [segment], listing, renamed)
    (path,) = renamed
    assert path.endswith("00000000000000000010.snapshot.deleted")
    assert Path(path).exists()
    assert store.offsets() == [20]
    cut.set_aside(DEFAULT, str(tmp_path), [segment], DEFAULT.listdir(str(tmp_path)), renamed)
    assert renamed == [path]


def test_only_whole_snapshots_of_numbers_count(tmp_path: Path) -> None:
    store = store_in(tmp_path, state_at(10))
    for name in (
        "x.snapshot",
        "00000000000000000020.snapshot.tmp",
        "00000000000000000020.snapshot.deleted",
        "0.log",
    ):
        (tmp_path / name).write_bytes(b"")
    assert store.offsets() == [10]


def test_a_power_cut_leaves_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    files = ForgetfulFiles(str(root))
    files.mkdir(f"{root}/t-0")
    files.fsync_dir(root)
    store = Snapshots(files, f"{root}/t-0")
    state = state_at(10)
    run_steps(store.taking(state))
    files.mark("first")
    state.update(data(5, 10, 0, transactional=True))
    run_steps(store.taking(state))
    files.mark("second")
    target = tmp_path / "image"
    for image in files.images(seeds=range(5)):
        image.write(target)
        if not (target / "t-0").exists():
            assert not image.marks
            continue
        left = Snapshots(DEFAULT, str(target / "t-0"))
        wanted = {"second": 11, "first": 10}
        due = max((wanted[mark] for mark in image.marks), default=0)
        assert max(left.offsets(), default=0) >= due
        for offset in left.offsets():
            assert left.read(offset)
