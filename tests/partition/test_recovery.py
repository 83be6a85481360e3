"""Opening a damaged log: the bytes that are cut, refused or rebuilt, and the files of other writers."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from lastword.config import TopicConfig
from lastword.errors import CorruptBatchError
from lastword.partition import PartitionView, scan
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.durability import read_synced
from lastword.partition.snapshots import EMPTY_SNAPSHOT, Snapshots
from lastword.records.formats import build_message
from lastword.records.record import RawRecord
from lastword.segment import names
from lastword.testing.unsynced import UNSYNCED
from tests.fakes.recording import RecordingFiles
from tests.partition.logs import (
    at_offset,
    batch,
    build_batch,
    compacted,
    fill,
    indexes_fit,
    leftovers,
    make,
    newest,
    opened,
    pair,
    records,
)
from tests.support.legacy import build_wrapper


def filled(path: Path, count: int, *, sync: bool = False) -> str:
    """Make a directory with `count` records, left as by a killed writer."""
    directory = make(path)
    log, _ = opened(directory, files=UNSYNCED)
    fill(log, count)
    if sync:
        log.sync()
    log.abandon()
    return directory


def append_bytes(path: str, data: bytes) -> None:
    with Path(path).open("ab") as file:
        file.write(data)


def overwrite(path: str, position: int, data: bytes) -> None:
    with Path(path).open("r+b") as file:
        file.seek(position)
        file.write(data)


def log_file(directory: str, base: int) -> str:
    return os.path.join(directory, names.segment_file(base, names.LOG))


def test_opening_after_a_clean_stop_reads_the_last_batch_once(tmp_path: Path) -> None:
    """It read the last batch three times, and 64 KiB of the beginning for one timestamp."""
    directory = make(tmp_path)
    log, _ = opened(directory, files=UNSYNCED, config=TopicConfig())
    for number in range(40):
        log.append_batch(bytearray(batch((b"%d" % number, b"v" * 5000))))
    log.close()
    size = Path(log_file(directory, 0)).stat().st_size
    files = RecordingFiles(UNSYNCED)
    log, _ = opened(directory, files=files, config=TopicConfig(), clean=True, recovery_point=40)
    reads = [call.detail for call in files.calls if call.name == "pread" and call.path.endswith(names.LOG)]
    log.abandon()
    last_batch = size // 40
    assert len(reads) == 2 and sum(n for n, _ in reads) < last_batch + 200, reads


@pytest.mark.parametrize("synced", [False, True])
def test_a_torn_tail_of_every_length_is_cut(tmp_path: Path, synced: bool) -> None:
    directory = filled(tmp_path, 3, sync=synced)
    path = log_file(directory, 0)
    size = Path(path).stat().st_size
    whole = at_offset(build_batch(3), 3)
    for length in range(1, len(whole)):
        append_bytes(path, whole[:length])
        view = PartitionView.load(DirectorySegments(UNSYNCED, directory))
        assert view.log_end == 3 and records(view) == [pair(n) for n in range(3)]
        log, recovery = opened(directory, files=UNSYNCED)
        assert log.log_end == 3
        assert recovery.cut_bytes == (length if whole[:length].strip(b"\0") else 0)  # zeros are no damage
        assert Path(path).stat().st_size == size
        log.abandon()
    append_bytes(path, whole)
    log, recovery = opened(directory, files=UNSYNCED)
    assert log.log_end == 4 and recovery.cut_bytes == 0


def test_a_batch_whose_end_is_zeros_is_cut(tmp_path: Path) -> None:
    """A file size may reach the drive before the bytes: then the end of a batch is zeros.

    Cut behind the length, the batch looks like a message of magic 0.
    """
    directory = filled(tmp_path, 3)
    path = log_file(directory, 0)
    size = Path(path).stat().st_size
    whole = at_offset(build_batch(3), 3)
    for length in range(1, len(whole) - 1):
        append_bytes(path, whole[:length] + bytes(len(whole) - length))
        assert PartitionView.load(DirectorySegments(UNSYNCED, directory)).log_end == 3
        log, recovery = opened(directory, files=UNSYNCED)
        assert (log.log_end, recovery.cut_bytes) == (3, len(whole) if whole[:length].strip(b"\0") else 0)
        assert Path(path).stat().st_size == size
        log.abandon()


@pytest.mark.parametrize(
    "tail",
    [bytes(5), bytes(100_000), b"\xff" * 300, random.Random(1).randbytes(200), b"\x00" * 16 + b"\x02"],
    ids=["few zeros", "zeros", "ones", "random", "a length"],
)
def test_bytes_of_no_batch_are_cut_after_a_clean_stop_too(tmp_path: Path, tail: bytes) -> None:
    """Kafka relies on the marker, and loses the next append behind these bytes."""
    directory = make(tmp_path)
    log, _ = opened(directory)
    fill(log, 4)
    assert log.close()
    append_bytes(log_file(directory, 0), tail)
    log, recovery = opened(directory, clean=True)
    assert recovery.cut_bytes == (len(tail) if tail.strip(b"\0") else 0)
    fill(log, 1)
    assert records(log) == [pair(n) for n in range(5)]


def test_damage_below_what_was_synced_takes_the_partition_offline(tmp_path: Path) -> None:
    directory = filled(tmp_path, 5, sync=True)
    assert read_synced(UNSYNCED, directory) == 5
    path = log_file(directory, 0)
    before = Path(path).read_bytes()
    overwrite(path, 2 * len(build_batch(0)) + 70, b"\xee")
    with pytest.raises(CorruptBatchError) as caught:
        opened(directory, files=UNSYNCED)
    assert (
        caught.value.file == path
        and caught.value.position == 2 * len(build_batch(0))
        and caught.value.offset == 2
    )
    assert len(Path(path).read_bytes()) == len(before)


@pytest.mark.parametrize("broker", [True, False])
def test_a_gap_behind_the_synced_mark(tmp_path: Path, broker: bool) -> None:
    """Without a broker a gap is a wrong base offset, because lastword's appends leave no gap.

    A broker that follows a leader copies the gaps of a compacted log, and begins no epoch.
    """
    directory = filled(tmp_path / "t-0", 5, sync=True)
    append_bytes(log_file(directory, 0), at_offset(batch((b"k", b"v")), 9))
    if broker:
        (Path(directory).parent / names.HIGH_WATERMARKS).write_text("0\n1\nt 0 10\n")
        assert PartitionView.load(DirectorySegments(UNSYNCED, directory)).log_end == 10
        log, _ = opened(directory, files=UNSYNCED)
        assert log.log_end == 10 and [offset for offset, _, _ in records(log)] == [0, 1, 2, 3, 4, 9]
        log.abandon()
    else:
        with pytest.raises(CorruptBatchError, match="offset 9 follows 4"):
            opened(directory, files=UNSYNCED)


def test_damage_in_a_closed_segment_is_not_cut_when_later_ones_were_synced(tmp_path: Path) -> None:
    directory = filled(tmp_path, 20)
    overwrite(log_file(directory, 0), 600 + 70, b"\xee")
    with pytest.raises(CorruptBatchError, match="segment 7"):
        opened(directory, files=UNSYNCED)
    assert os.path.exists(log_file(directory, 14))  # noqa: PTH110


def test_damage_in_a_foreign_log_above_its_recovery_point_is_cut_with_all_behind_it(tmp_path: Path) -> None:
    """A broker syncs late: after a power cut a closed segment may be torn although the next one exists."""
    directory = filled(tmp_path, 20)
    (Path(directory) / names.PRIVATE / names.SYNCED).unlink()
    overwrite(log_file(directory, 7), 2 * len(build_batch(0)) + 70, b"\xee")
    log, recovery = opened(directory, files=UNSYNCED, recovery_point=7)
    assert log.log_end == 9
    assert records(log) == [pair(n) for n in range(9)]
    assert {r.code for r in recovery.repaired} >= {"torn-tail", "lost-segment"}
    assert indexes_fit(log)


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_are_recovered_like_new_ones(tmp_path: Path, magic: int) -> None:
    """Sound entries stay, compressed ones too, with index entries; a torn entry at the end is cut."""
    directory = filled(tmp_path, 2)
    path = log_file(directory, 0)
    pairs = [
        RawRecord(offset, 1_700_000_000_000 if magic else -1, magic - 1, b"k", b"v") for offset in (3, 5)
    ]
    old = build_message(magic, 2, b"k", b"v") + build_wrapper(magic, 3, pairs)
    append_bytes(path, old + old[:20])
    sound = Path(path).stat().st_size - 20
    view = PartitionView.load(DirectorySegments(UNSYNCED, directory))
    assert (view.log_end, view.segments[-1].size) == (6, sound)
    log, recovery = opened(directory, files=UNSYNCED)
    assert (log.log_end, Path(path).stat().st_size) == (6, sound)
    assert recovery.cut_bytes == 20
    for plain in (True, False):
        assert [r.offset for r in scan.records(log.view(), 0, 6, plain=plain)] == [0, 1, 2, 3, 5]
    fill(log, 1)
    assert [r.offset for r in scan.records(log.view(), 4, 7)] == [5, 6]


@pytest.mark.parametrize("magic", [0, 1])
def test_a_damaged_old_message_is_damage_like_any_other(tmp_path: Path, magic: int) -> None:
    directory = filled(tmp_path, 2)
    path = log_file(directory, 0)
    size = Path(path).stat().st_size
    entry = build_message(magic, 2, b"k", b"v")
    append_bytes(path, entry[:-1] + b"?" + entry)
    with pytest.raises(CorruptBatchError) as caught:
        list(scan.records(PartitionView.load(DirectorySegments(UNSYNCED, directory)), 0, 3))
    assert (caught.value.position, caught.value.offset) == (size, 2)
    log, recovery = opened(directory, files=UNSYNCED)  # none of these records was acknowledged at "disk"
    assert (log.log_end, recovery.cut_bytes) == (2, 2 * len(entry))


@pytest.mark.parametrize("extension", [names.INDEX, names.TIME_INDEX])
@pytest.mark.parametrize("damage", ["missing", "empty", "tiny", "zeros", "ones", "short", "foreign"])
def test_indexes_are_built_again(tmp_path: Path, extension: str, damage: str) -> None:
    """6T.243: Index files that are too short are rebuilt."""
    directory = filled(tmp_path, 20)
    path = Path(directory) / names.segment_file(7, extension)
    good = path.read_bytes()
    bad = {
        "empty": b"",
        "tiny": b" " * 7,
        "zeros": bytes(4096),
        "ones": b"\xff" * 120,
        "short": good[:-3],
        "foreign": good[: len(good) // 2] * 4,
    }
    path.unlink()
    if damage != "missing":
        path.write_bytes(bad[damage])
    view = PartitionView.load(DirectorySegments(UNSYNCED, directory))
    assert records(view) == [pair(n) for n in range(20)]
    for number in range(20):
        assert [h.base_offset for _, h, _ in view.batches(number, number + 1)] == [number]
        assert view.offset_at(1_700_000_000_000 + 1000 * number) == number
    log, _ = opened(directory, files=UNSYNCED)
    assert path.read_bytes() == good
    assert indexes_fit(log)


def test_a_swap_of_kafka_with_a_stale_cleaned_below_is_finished(tmp_path: Path) -> None:
    """Kafka would undo the swap although its sources are partly deleted, and lose their range.

    It also deletes the snapshots in the range of a swap that it finishes.
    """
    directory = make(tmp_path)
    log, _ = opened(directory, files=UNSYNCED)
    fill(log, 38)
    old = records(log)
    sources = list(log.segments[1:4])
    output = compacted(log, sources)
    log.abandon()
    root = Path(directory)
    for extension in (names.LOG, names.INDEX, names.TIME_INDEX):
        name = names.segment_file(7, extension)
        os.rename(os.path.join(os.path.dirname(output.file), name), root / f"{name}.swap")  # noqa: PTH104
        os.rename(root / name, root / f"{name}.deleted")  # noqa: PTH104
    (root / f"{names.segment_file(0, names.LOG)}.cleaned").write_bytes(b"half")
    assert newest(records(PartitionView.load(DirectorySegments(UNSYNCED, directory)))) == newest(old)
    log, recovery = opened(directory, files=UNSYNCED)
    assert "swap-finished" in {r.code for r in recovery.repaired}
    assert newest(records(log)) == newest(old) and len(records(log)) < len(old)
    assert leftovers(directory) == [] and (root / names.segment_file(7, names.SNAPSHOT)).exists()


def test_a_torn_swap_is_undone_while_its_sources_are_there(tmp_path: Path) -> None:
    directory = filled(tmp_path, 20)
    whole = Path(log_file(directory, 7)).read_bytes()
    Path(log_file(directory, 7) + ".swap").write_bytes(whole[:-5])
    old = [pair(n) for n in range(20)]
    assert records(PartitionView.load(DirectorySegments(UNSYNCED, directory))) == old
    log, recovery = opened(directory, files=UNSYNCED)
    assert records(log) == old and leftovers(directory) == []
    assert "swap-undone" in {r.code for r in recovery.repaired}


def test_the_log_start_of_the_checkpoint_holds(tmp_path: Path) -> None:
    directory = filled(tmp_path, 20)
    log, _ = opened(directory, files=UNSYNCED, log_start=9)
    assert log.log_start == 9
    assert records(log) == [pair(n) for n in range(9, 20)]


def test_a_log_start_above_the_log_end_is_where_the_log_goes_on(tmp_path: Path) -> None:
    directory = filled(tmp_path, 5)
    log, _ = opened(directory, files=UNSYNCED, log_start=9)
    assert (log.log_start, log.log_end) == (9, 9)
    assert log.append_batch(build_batch(9)).base_offset == 9
    log.abandon()
    log, recovery = opened(directory, files=UNSYNCED, log_start=1 << 60)
    assert log.log_end == 10 and "checkpoint" in {r.code for r in recovery.repaired}


class TestProducerState:
    def test_known_empty_after_a_kill(self, tmp_path: Path) -> None:
        directory = filled(tmp_path, 20)
        log, _ = opened(directory, files=UNSYNCED)
        assert log.close()
        assert (
            Path(directory) / names.segment_file(20, names.SNAPSHOT)
        ).read_bytes().hex() == "000148674bc700000000"

    def test_found_again_without_a_snapshot(self, tmp_path: Path) -> None:
        directory = filled(tmp_path, 3)
        append_bytes(log_file(directory, 0), at_offset(batch((b"k", b"v"), producer_id=7), 3))
        log, _ = opened(directory, files=UNSYNCED)
        assert [p.producer_id for p in log.producers] == [7]
        assert log.close()
        assert Snapshots(UNSYNCED, directory).read(4) == log.producers

    def test_a_snapshot_at_the_end_is_left_alone_until_something_is_appended(self, tmp_path: Path) -> None:
        directory = filled(tmp_path, 3)
        append_bytes(log_file(directory, 0), at_offset(batch((b"k", b"v"), producer_id=7), 3))
        snapshot = Path(directory) / names.segment_file(4, names.SNAPSHOT)
        data = bytes.fromhex(
            "00019ec4871b00000002000000000000000500020000000b0000000000000016000000020000018bcfe56800000000070000"
            "00000000001400000000000000090000ffffffffffffffffffffffff000000000000018bcfe569f4ffffffffffffffffffff"
            "ffff"
        )
        snapshot.write_bytes(data)
        log, _ = opened(directory, files=UNSYNCED, clean=True)
        assert [p.producer_id for p in log.producers] == [5, 9]
        assert log.close()
        assert snapshot.read_bytes() == data
        log, _ = opened(directory, files=UNSYNCED, clean=True)
        fill(log, 1)
        assert log.close()
        assert [p.producer_id for p in Snapshots(UNSYNCED, directory).read(5)] == [5, 9]

    def test_snapshots_above_the_end_go(self, tmp_path: Path) -> None:
        directory = filled(tmp_path, 3)
        (Path(directory) / names.segment_file(9, names.SNAPSHOT)).write_bytes(EMPTY_SNAPSHOT)
        opened(directory, files=UNSYNCED)
        assert not (Path(directory) / names.segment_file(9, names.SNAPSHOT)).exists()
