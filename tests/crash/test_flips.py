"""Damage to the last batch of a log: it is named or harmless, and synced records are not cut."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.clock import ManualClock
from lastword.errors import CorruptBatchError
from lastword.files import OsFiles
from lastword.partition import recovery
from lastword.partition.durability import LogEnd, Mark, read_log_end
from lastword.segment import indexes, names
from lastword.tools.verify import verify
from tests.crash.flips import (
    BASE_OFFSET,
    DIRECTORY,
    LEADER_EPOCH,
    LIVES,
    Life,
    as_reader,
    as_writer,
    judge,
    judge_flips,
    live,
)
from tests.crash.invariants import NOW
from tests.crash.memory import ROOT, MemoryFiles
from tests.crash.scenarios import Process, keyed
from tests.fakes.recording import RecordingFiles
from tests.support.exhaustive import stride


@pytest.mark.quick
@pytest.mark.parametrize("life", LIVES, ids=lambda life: life.name)
def test_some_bits_of_the_last_batch(life: Life) -> None:
    lived = live(life)
    bits = [*BASE_OFFSET, *range(64, lived.bits.stop, 37)]
    assert list(judge_flips(lived, bits)) == []


@pytest.mark.slow
@pytest.mark.parametrize("life", LIVES, ids=lambda life: life.name)
def test_every_bit_of_the_last_batch(life: Life) -> None:
    lived = live(life)
    assert list(judge_flips(lived, lived.bits[:: stride(11)])) == []


@pytest.mark.parametrize("life", LIVES, ids=lambda life: life.name)
def test_every_value_of_the_lower_base_offset_bytes(life: Life) -> None:
    lived = live(life)
    data = lived.tree[lived.file]
    assert data is not None
    for byte in (6, 7):
        at = lived.start + byte
        for value in set(range(0, 256, stride(11))) - {data[at]}:
            changed = bytearray(data)
            changed[at] = value
            assert list(judge(lived, {**lived.tree, lived.file: bytes(changed)})) == []


@pytest.mark.parametrize("life", [life for life in LIVES if life.synced], ids=lambda life: life.name)
def test_a_file_that_lost_its_end(life: Life) -> None:
    """Cut at every length, the end of a batch included: a torn write does not explain it."""
    lived = live(life)
    data = lived.tree[lived.file]
    assert data is not None
    for size in {lived.start, *range(lived.start + 1, len(data), 11), len(data) - 1}:
        assert list(judge(lived, {**lived.tree, lived.file: data[:size]})) == []


def test_the_leader_epoch_is_the_only_part_that_may_differ_unseen() -> None:
    lived = live(LIVES[0])
    for bit in lived.bits[::3]:
        _, error = as_writer(MemoryFiles(lived.flipped(bit)))
        assert (error is None) == (bit in LEADER_EPOCH)


def test_the_end_is_kept_for_the_next_opening() -> None:
    """The first opening removes the marker of a broker's clean stop, and refuses the log. With the
    bytes restored, the log opens.
    """
    lived = live(LIVES[1])
    files = MemoryFiles(lived.flipped(4 + 8 * 6))
    for _ in range(3):
        shown, error = as_writer(files)
        assert isinstance(error, CorruptBatchError) and shown == []
    with files.open_append(f"/in-memory/{lived.file}") as handle:
        handle.pwrite(lived.tree[lived.file] or b"", 0)
    assert as_writer(files) == (lived.shown, None)


# ---------------------------------------------------------------- damaged files that record the log end


@pytest.mark.parametrize("life", LIVES[:6], ids=lambda life: life.name)
@pytest.mark.parametrize("damage", ["recovery point", "no recovery point", "no snapshots", "no mark", "mark"])
def test_a_sound_log_is_not_refused_for_one_damaged_witness(life: Life, damage: str) -> None:
    lived = live(life)
    tree = dict(lived.tree)
    mark = f"users-0/{names.PRIVATE}/{names.SYNCED}"
    if damage == "recovery point":
        tree[names.RECOVERY_POINTS] = b"0\n1\nusers 0 97\n"
    elif damage == "no recovery point":
        del tree[names.RECOVERY_POINTS]
    elif damage == "no snapshots":
        tree = {path: data for path, data in tree.items() if not path.endswith(names.SNAPSHOT)}
    elif mark in tree:
        data = bytearray(tree[mark] or b"")
        data[5] ^= 1
        tree[mark] = bytes(data)
        if damage == "no mark":
            del tree[mark]
    assert as_reader(MemoryFiles(tree)) == (lived.shown, None)
    assert as_writer(MemoryFiles(tree)) == (lived.shown, None)


def test_a_reader_reads_no_epochs_where_two_witnesses_name_the_end(tmp_path: Path) -> None:
    """No other fact could outvote them: `LogEnd` gives the same answer with each of them."""
    for is_current, is_alone, snapshots in itertools.product((False, True), (False, True), ((), (5,), (12,))):
        known = LogEnd(True, 9, Mark(9, is_current=is_current, is_alone=is_alone), snapshots)
        assert known.contradicts(9) is None
        assert known.contiguous_from in (None, 9)
    with lastword.open(tmp_path, "a", log_cleaner_enable=False) as logs:
        logs.create_topic("t", 1).extend([(b"key", b"value")] * 9)
    partition = str(tmp_path / "t-0")
    listing, mark = OsFiles().listdir(partition), Path(partition, names.PRIVATE, names.SYNCED)
    files = RecordingFiles(OsFiles())
    assert read_log_end(files, partition, 9, listing) is None
    assert not any(call.path.endswith(names.LEADER_EPOCHS) for call in files.calls)
    for end, data in ((8, mark.read_bytes()), (9, b"")):  # a witness is missing
        mark.write_bytes(data)
        known = read_log_end(files, partition, end, listing)
        assert known is not None and (known.contradicts(end) is None) == (end == 9)


def test_what_each_witness_says() -> None:
    current, old = Mark(9, is_current=True), Mark(9)
    for end in (8, 9, 10):
        allowed = end == 9
        for known in (
            LogEnd(True, 9, current, (5, 9)),
            LogEnd(True, 9, Mark(), (5, 9)),
            LogEnd(True, 9, Mark(), ()),
            LogEnd(True, 0, current, ()),
            LogEnd(True, 9, Mark(4, is_current=True), (9,)),
        ):
            assert (known.contradicts(end) is None) == allowed
    assert LogEnd(True, 97, Mark(), (9,)).contradicts(9) is None
    assert LogEnd(True, 5, old, (5,)).contradicts(5) is None  # a broker truncated the log below an old mark
    assert LogEnd(True, 0, Mark(), (5,)).contradicts(9) is None
    assert LogEnd(False, 97, Mark(), ()).contradicts(9) is None
    assert [LogEnd(False, 0, current, ()).contradicts(end) for end in (8, 9, 10)] == [9, None, None]
    assert LogEnd(False, 0, old, ()).contradicts(8) is None
    assert not LogEnd(False, 0, old, ()).is_torn_tail(8, followed=True)
    assert LogEnd(False, 0, old, ()).is_torn_tail(8, followed=False)
    assert not LogEnd(False, 0, current, ()).is_torn_tail(8, followed=False)
    assert not LogEnd(False, 9, Mark(), ()).is_torn_tail(8, followed=False)
    assert LogEnd(False, 9, current, ()).is_torn_tail(9, followed=True)


# ---------------------------------------------------------------- planted bugs


def _found(bits: Any = None) -> list[str]:
    problems: list[str] = []
    for life in LIVES:
        lived = live(life)
        problems += judge_flips(lived, lived.bits[::29] if bits is None else bits)
    return problems


def test_planted_a_tail_that_is_always_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogEnd, "is_torn_tail", lambda self, offset, followed: not followed)
    monkeypatch.setattr(LogEnd, "contradicts", lambda self, end: None)
    assert any("opening shows" in problem for problem in _found())


def test_planted_a_base_offset_that_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery.DamageRepair, "_check_end", lambda *given: None)
    assert any("opening shows" in problem for problem in _found(range(48, 64)))


def test_planted_a_reader_that_does_not_check_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from lastword.partition.directory_segments import DirectorySegments

    monkeypatch.setattr(DirectorySegments, "_with_end_checked", lambda self, version, *given: version)
    assert any("a reader shows" in problem for problem in _found(range(48, 64)))


# ---------------------------------------------------------------- the transaction index


def _aborts(p: Process) -> None:
    """Write two aborted and two committed transactions of the same producers, which overlap."""
    p.put([keyed(0)]).transact(7, [keyed(1)]).end(7, commit=True)
    p.transact(7, [keyed(2)]).transact(8, [keyed(3)]).end(7, commit=False).transact(7, [keyed(4)])
    p.end(8, commit=False).end(7, commit=True).put([keyed(5)]).close()


ABORTS = Life("aborted and committed transactions", _aborts, synced=True, segment_bytes=10_000)


def test_every_bit_of_a_transaction_index() -> None:
    """No flipped bit of the index changes a read, and `verify` names each bit that changes an entry. (A lower
    last stable offset only lets a broker read more entries.)
    """
    lived = live(ABORTS)
    assert [offset for offset, _, _ in lived.shown] == [0, 1, 6, 9]
    (path,) = [path for path in lived.tree if path.endswith(names.TXN_INDEX)]
    data = lived.tree[path]
    assert data is not None and len(data) == 2 * indexes.TXN_ENTRY.size
    for bit in range(0, 8 * len(data), stride(3)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        tree = {**lived.tree, path: bytes(changed)}
        assert as_reader(MemoryFiles(tree)) == (lived.shown, None), bit
        assert as_writer(MemoryFiles(tree)) == (lived.shown, None), bit
        problems = verify(
            MemoryFiles(tree), [ROOT], [("users", 0, DIRECTORY)], clock=ManualClock(NOW)
        ).problems
        position, value = divmod(bit // 8, indexes.TXN_ENTRY.size)[1], changed[bit // 8]
        if not (position >= 26 and value < data[bit // 8]):
            assert [(p.file, p.code) for p in problems] == [(f"{ROOT}/{path}", "bad-txn-index")], bit
    assert verify(MemoryFiles(lived.tree), [ROOT], [("users", 0, DIRECTORY)]).ok
