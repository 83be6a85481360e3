"""Batches of another replica, appended as they are: gaps, leader epochs, producers, refusals, every crash."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lastword.config import TopicConfig
from lastword.errors import CorruptBatchError, ReadOnlyError, UnknownMagicError
from lastword.partition import PartitionLog
from lastword.partition.checkpoint_file import EpochEntry
from lastword.records.batch import BatchBuilder
from lastword.records.formats import build_message
from lastword.records.record import COMMIT, RawRecord
from lastword.segment import names
from lastword.testing.unsynced import UNSYNCED
from tests.fakes import ForgetfulFiles
from tests.fakes.forgetful import keep_all
from tests.naive.empty_batch import empty_batch
from tests.partition.logs import (
    NOW,
    SMALL,
    at_offset,
    batch,
    fill,
    indexes_fit,
    leftovers,
    make,
    opened,
    records,
)
from tests.support.exhaustive import stride
from tests.support.legacy import build_wrapper
from tests.transactions import control_key, end_transaction, marker_batch

COPIED = TopicConfig(segment_bytes=700, index_interval_bytes=150, lastword_pulled_from="a cluster")


def copy_of(path: Path, *, files: Any = UNSYNCED, config: TopicConfig = COPIED) -> PartitionLog:
    """Open a log for copies, in a directory that is noted as in `LogDirectory.note_copies`."""
    directory = make(path)
    (Path(directory).parent / names.HIGH_WATERMARKS).write_text("0\n1\nusers 0 0\n")
    return opened(directory, files=files, config=config)[0]


def bytes_of(log: PartitionLog) -> bytes:
    return b"".join(Path(segment.file).read_bytes() for segment in log.segments)


def a_history(log: PartitionLog, seed: int, steps: int = 40) -> None:
    """Append batches with and without producers, transactions, and gaps."""
    rng = random.Random(seed)
    open_since: dict[int, int] = {}
    sequences = {7: 0, 8: 0}
    for step in range(steps):
        choice = rng.randrange(6)
        if choice < 3:
            fill(log, 1)
        elif choice == 3:
            log.skip_to(log.log_end + rng.choice([1, 5, 1000]))
        else:
            producer = rng.choice([7, 8])
            if producer in open_since and rng.random() < 0.5:
                end_transaction(log, producer, 0, commit=rng.random() < 0.5)
                del open_since[producer]
                continue
            builder = BatchBuilder(
                producer_id=producer, producer_epoch=0, base_sequence=sequences[producer], transactional=True
            )
            for number in range(rng.randrange(1, 4)):
                builder.append(NOW + step, b"k%d" % number, b"v")
            sequences[producer] += len(builder)
            open_since.setdefault(producer, log.log_end)
            log.append_batch(builder.build())


def facts(log: PartitionLog) -> Any:
    aborted = [entry for segment in log.segments for entry in log.aborted_of(segment)]
    producers = [  # as in a snapshot, which has the last batch of each, without the time of that batch
        replace(p, batches=tuple(b._replace(timestamp=p.last_timestamp) for b in p.batches[-1:]))
        for p in log.producers
    ]
    return records(log), log.stable_offset, producers, aborted, log.log_end


@pytest.mark.parametrize("seed", range(4))
def test_a_copy_has_the_bytes_and_the_state_of_its_source(tmp_path: Path, seed: int) -> None:
    source = opened(make(tmp_path / "source"), files=UNSYNCED, config=SMALL)[0]
    a_history(source, seed)
    copy = copy_of(tmp_path / "copy")
    data, rng = bytes_of(source), random.Random(seed)
    position = 0
    sizes = [header.size for segment in source.segments for header in segment.headers()]
    while sizes:
        size = sum(sizes.pop(0) for _ in range(min(len(sizes), rng.randrange(1, 6))))
        copy.append_copies(data[position : position + size])
        position += size
    copy.skip_to(source.log_end)
    assert bytes_of(copy) == data
    assert facts(copy) == facts(source)
    assert indexes_fit(copy)
    copy.abandon()
    again, recovery = opened(copy.directory, files=UNSYNCED, config=COPIED)
    assert not recovery.repaired
    assert facts(again) == facts(source)


def test_leader_epochs_are_those_of_the_batches(tmp_path: Path) -> None:
    copy = copy_of(tmp_path)
    one = batch((b"a", b"1"))
    copy.append_copies(at_offset(one, 5, 2) + at_offset(one, 6, 2) + at_offset(one, 9, 4))
    copy.append_copies(at_offset(one, 10, 4))
    copy.append_copies(at_offset(one, 20, 7))
    expected = (EpochEntry(2, 5), EpochEntry(4, 9), EpochEntry(7, 20))
    assert copy.epochs.entries == expected
    copy.close()
    assert opened(copy.directory, config=COPIED)[0].epochs.entries == expected


def short_marker() -> bytes:
    builder = BatchBuilder(producer_id=7, producer_epoch=0, transactional=True, control=True)
    builder.append(NOW, control_key(COMMIT), b"")
    return builder.build()


def wrong(which: str) -> bytes:
    one = batch((b"a", b"1"))
    first = at_offset(one, 10, 3)
    if which == "checksum":
        damaged = bytearray(at_offset(one, 11, 3))
        damaged[-1] ^= 1
        return first + damaged
    return (
        first
        + {
            "offsets fall": at_offset(one, 10, 3),
            "epochs fall": at_offset(one, 11, 2),
            "half a batch": at_offset(one, 11, 3)[:-1],
            "a header": at_offset(one, 11, 3)[:30],
            "no length": bytes(8) + b"\xff" * 20 + bytes(60),
            "huge length": bytes(8) + b"\x7f\xff\xff\xff" + bytes(60),
            "last offset": at_offset(one, (1 << 63) - 1, 3),
            "marker": at_offset(short_marker(), 11, 3),
        }[which]
    )


@pytest.mark.parametrize(
    "which",
    [
        "checksum",
        "offsets fall",
        "epochs fall",
        "half a batch",
        "a header",
        "no length",
        "huge length",
        "last offset",
        "marker",
    ],
)
def test_nothing_is_appended_of_data_with_a_wrong_batch(tmp_path: Path, which: str) -> None:
    copy = copy_of(tmp_path)
    copy.append_copies(at_offset(batch((b"a", b"1")), 3, 1))
    before = bytes_of(copy)
    with pytest.raises(CorruptBatchError):
        copy.append_copies(wrong(which))
    assert (bytes_of(copy), copy.log_end, copy.epochs.latest) == (before, 4, 1)
    copy.append_copies(at_offset(batch((b"a", b"1")), 10, 3))


def test_offsets_and_epochs_of_the_log_itself_count(tmp_path: Path) -> None:
    copy = copy_of(tmp_path)
    one = batch((b"a", b"1"))
    copy.append_copies(at_offset(one, 3, 1))
    for again in (at_offset(one, 3, 1), at_offset(one, 2, 1), at_offset(one, 4, 0)):
        with pytest.raises(CorruptBatchError):
            copy.append_copies(again)
    with pytest.raises(UnknownMagicError):
        data = bytearray(at_offset(one, 4, 1))
        data[16] = 9
        copy.append_copies(data)
    assert copy.append_copies(b"") == []
    assert copy.log_end == 4


def test_old_formats_are_copied(tmp_path: Path) -> None:
    copy = copy_of(tmp_path)
    wrapper = build_wrapper(1, 1, [RawRecord(n, NOW, 0, b"k", b"v") for n in (12, 14)])
    data = build_message(1, 10, b"a", b"1", NOW) + wrapper
    copy.append_copies(data)
    assert bytes_of(copy) == data
    assert copy.log_end == 15


def test_gaps_above_the_range_of_an_index_begin_a_segment(tmp_path: Path) -> None:
    copy = copy_of(tmp_path)
    one, far = batch((b"a", b"1")), 1 << 33
    copy.append_copies(at_offset(one, 0))
    copy.append_copies(at_offset(one, far) + at_offset(one, far + 1) + at_offset(one, 3 * far))
    copy.roll()
    copy.append_copies(at_offset(one, 5 * far))
    large = batch((b"a", b"1" * 800))
    copy.append_copies(at_offset(large, 7 * far))
    copy.roll()
    copy.append_copies(at_offset(large, 9 * far))
    copy.append_copies(at_offset(one, 9 * far + 1))
    offsets = [0, far, far + 1, 3 * far, 5 * far, 7 * far, 9 * far, 9 * far + 1]
    assert [offset for offset, _, _ in records(copy)] == offsets
    copy.close()
    again, recovery = opened(copy.directory, config=COPIED, clean=True, recovery_point=copy.log_end)
    assert not recovery.repaired
    assert [offset for offset, _, _ in records(again)] == offsets
    assert again.view().log_end == 9 * far + 2
    again.close()


def test_the_end_is_raised_over_a_gap(tmp_path: Path) -> None:
    copy = copy_of(tmp_path)
    copy.append_copies(at_offset(batch((b"a", b"1")), 7))
    copy.skip_to(8)
    assert len(copy.segments) == 1
    copy.skip_to(100)
    copy.skip_to(200)  # the active segment is empty
    assert (copy.log_end, copy.stable_offset) == (200, 200)
    copy.abandon()
    again, _ = opened(copy.directory, config=COPIED)
    assert (again.log_end, again.stable_offset) == (200, 200)
    again.append_copies(at_offset(batch((b"b", b"2")), 205))
    assert [offset for offset, _, _ in records(again)] == [7, 205]
    again.close()


def test_empty_batches_are_copied(tmp_path: Path) -> None:
    source = opened(make(tmp_path / "source"), config=SMALL)[0]
    source.append_batch(batch((b"a", b"1"), producer_id=5))
    header = next(iter(source.segments[0].headers()))
    copy = copy_of(tmp_path / "copy")
    copy.append_copies(empty_batch(header))
    assert (copy.log_end, records(copy)) == (1, [])
    assert [producer.producer_id for producer in copy.producers] == [5]


def test_only_copies_are_appended(tmp_path: Path) -> None:
    copy = copy_of(tmp_path)
    copy.append_copies(at_offset(batch((b"a", b"1")), 0))
    with pytest.raises(ReadOnlyError, match="a copy that is pulled from the cluster a cluster"):
        copy.append_batch(batch((b"a", b"2")))
    assert copy.append_single(b"a", b"2", NOW, 1 << 20) is None
    copy.config = SMALL
    copy.append_batch(batch((b"a", b"2")))
    assert copy.log_end == 2


def test_recovery_keeps_gaps_above_the_synced_mark(tmp_path: Path) -> None:
    """Without the note of copies, a gap behind the mark is damage: a batch has a wrong base offset."""
    copy = copy_of(tmp_path)
    one = batch((b"a", b"1"))
    copy.append_copies(at_offset(one, 0))
    copy.sync()
    copy.append_copies(at_offset(one, 50) + at_offset(one, 60))
    copy.abandon()
    again, recovery = opened(copy.directory, config=COPIED)
    assert not recovery.repaired
    assert again.log_end == 61
    again.abandon()
    (tmp_path / names.HIGH_WATERMARKS).unlink()
    with pytest.raises(CorruptBatchError):
        opened(copy.directory, config=COPIED)


# ---------------------------------------------------------------- crashes


def work(path: Path, files: ForgetfulFiles, source: PartitionLog) -> None:
    """Copy a log in steps, with a sync between."""
    copy = copy_of(path, files=files)
    sizes = [header.size for segment in source.segments for header in segment.headers()]
    data, position = bytes_of(source), 0
    for number in range(0, len(sizes), 4):
        size = sum(sizes[number : number + 4])
        copy.append_copies(data[position : position + size])
        position += size
        if number == 12:
            copy.sync()
    copy.skip_to(source.log_end)
    copy.close()


def check_image(target: Path, source: PartitionLog, expected: Any, label: str) -> None:
    """Check that a crash left a prefix of the source, from which the copy becomes whole."""
    directory = target / "users-0"
    directory.mkdir(exist_ok=True)
    copy, _ = opened(str(directory), files=UNSYNCED, config=COPIED)
    data = bytes_of(copy)
    assert bytes_of(source).startswith(data), label
    assert indexes_fit(copy), label
    rest = bytes_of(source)[len(data) :]
    copy.append_copies(rest)
    copy.skip_to(source.log_end)
    assert facts(copy) == expected, label
    assert copy.epochs.entries == source.epochs.entries, label
    copy.abandon()
    assert leftovers(str(directory)) == [], label


def crashed(tmp_path: Path) -> tuple[ForgetfulFiles, PartitionLog]:
    source = opened(make(tmp_path / "source"), files=UNSYNCED, config=SMALL)[0]
    a_history(source, 3, 30)
    source.append_batch(marker_batch(9, 0, True, 0, NOW))
    make(tmp_path / "work")
    (tmp_path / "work" / names.HIGH_WATERMARKS).write_text("0\n1\nusers 0 0\n")
    files = ForgetfulFiles(tmp_path / "work")
    work(tmp_path / "work", files, source)
    return files, source


def test_every_kill_leaves_a_prefix_that_is_continued(tmp_path: Path) -> None:
    files, source = crashed(tmp_path)
    expected = facts(source)
    for upto in range(0, len(files.journal) + 1, 3 * stride(3)):
        image = files.crash(upto, keep_all, f"kill after {upto}")
        image.write(tmp_path / "image")
        check_image(tmp_path / "image", source, expected, f"{image.label}\n{files.story()}")


@pytest.mark.slow
def test_every_power_cut_leaves_a_prefix_that_is_continued(tmp_path: Path) -> None:
    files, source = crashed(tmp_path)
    expected = facts(source)
    for image in files.images(moments=range(0, len(files.journal) + 1, stride(21)), seeds=range(2)):
        image.write(tmp_path / "image")
        check_image(tmp_path / "image", source, expected, f"{image.label}\n{files.story()}")
