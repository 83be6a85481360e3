"""The rewrite: batches without dead records byte for byte, others cut, and exactly the live records."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lastword.cleaner.engine import output
from lastword.files import DEFAULT
from lastword.records.batch import read_header, read_records
from lastword.segment.stored import SegmentFiles
from tests.cleaner.support import (
    HOUR,
    NOW,
    batch,
    contents,
    plan,
    records_of,
    rewrite_all,
    write_segment,
)
from tests.naive import cleaner as naive
from tests.support.exhaustive import few

A5_SOURCE = bytes.fromhex(
    "00000000000000280000004b000000000294d9578c0000000000020000018bcfe568000000018bcfe56802ffffffffffffffffff"
    "ffffffffff000000031000000002610231000e00020202620100100004040263023300"
)
A5_HORIZON = bytes.fromhex(
    "00000000000000280000004e00000000026f32527d0040000000020000018bcfe56ddc0000018bcfe56802ffffffffffffffffff"
    "ffffffffff000000031200b7170002610231001000b51702026201001200b317040263023300"
)
A5_ONLY_A = bytes.fromhex(
    "00000000000000280000003a0000000002e5608a800000000000020000018bcfe568000000018bcfe56800ffffffffffffffffff"
    "ffffffffff00000001100000000261023100"
)


def one_batch(data: bytes) -> tuple[object, list[object]]:
    header = read_header(data, 0, len(data), "memory")
    return header, list(read_records(data, header))


def test_6E_42_a_surviving_tombstone_starts_its_clock_as_in_kafka(tmp_path: Path) -> None:
    """6E.42: The first cleaning of a tombstone sets the batch's delete horizon to now +
    `delete.retention.ms`; all records read back with their own timestamps.

    Kafka's own bytes: every record kept, now is T+1000, delete.retention.ms is 500.
    """
    segment = write_segment(tmp_path / "s", 40, [A5_SOURCE])
    ((_, new),) = rewrite_all([segment], tmp_path / "o", plan(now_ms=NOW + 1000, delete_retention_ms=500))
    assert Path(new.file).read_bytes() == A5_HORIZON


def test_a_cut_batch_keeps_its_range_as_in_kafka(tmp_path: Path) -> None:
    """Kafka's own bytes: only `a` is kept; the batch still ends at offset 42."""
    newer = batch(43, [(43, b"b", b"new"), (44, b"c", b"new")], leader_epoch=1)
    segment = write_segment(tmp_path / "s", 40, [A5_SOURCE, newer])
    ((_, new),) = rewrite_all([segment], tmp_path / "o")
    assert Path(new.file).read_bytes() == A5_ONLY_A + newer


def test_a_batch_without_dead_records_is_copied_byte_for_byte(tmp_path: Path) -> None:
    live = batch(2, [(2, b"a", b"2"), (3, b"b", b"2")], codec=3)
    segment = write_segment(tmp_path / "s", 0, [batch(0, [(0, b"a", b"1"), (1, b"b", b"1")]), live])
    ((facts, new),) = rewrite_all([segment], tmp_path / "o")
    assert Path(new.file).read_bytes() == live
    assert (facts.records_read, facts.records_kept, facts.removed.superseded) == (4, 2, 2)


def test_the_last_batch_of_a_group_stays_as_a_header(tmp_path: Path) -> None:
    """6C.26: If every key of a group is superseded, one segment with one empty batch is left, whose last
    offset is that of the group.
    """
    first = write_segment(tmp_path / "s", 0, [batch(0, [(0, b"x", b"1")]), batch(1, [(1, b"a", b"1")])])
    second = write_segment(tmp_path / "s", 2, [batch(2, [(2, b"a", b"2")]), batch(3, [(3, b"x", b"2")])])
    tight = plan(segment_bytes=140)
    (facts, new), *rest = rewrite_all([first, second], tmp_path / "o", tight)
    assert not rest, "the second segment has nothing dead"
    ((header, records),) = contents(new)
    assert (header.size, header.count, header.base_offset, header.last_offset, records) == (61, 0, 1, 1, [])
    assert header.max_timestamp == -1, "no record has the time that it had"
    assert (new.next_offset, facts.output.next_offset, facts.records_kept) == (2, 2, 0)


def test_a_silent_producer_is_kept_until_it_is_forgotten(tmp_path: Path) -> None:
    """As in Kafka: a producer's last batch is kept only until the producer expires."""
    from lastword.partition.producer_state import FIRST_NAMED_ID

    day = 24 * HOUR
    batches = [
        batch(0, [(0, b"k", b"1")], producer_id=7, timestamp=NOW - day),
        batch(1, [(1, b"k", b"2")], producer_id=8, timestamp=NOW - day),
        batch(2, [(2, b"k", b"3")], producer_id=FIRST_NAMED_ID + 1, timestamp=NOW - day),
        batch(3, [(3, b"only", b"4")], producer_id=9, timestamp=NOW - 9 * day),
        batch(4, [(4, b"k", b"5")]),
    ]
    segment = write_segment(tmp_path / "s", 0, batches)
    named = FIRST_NAMED_ID + 1
    cases = [
        (NOW - 1, day, [7, 8, named]),
        (NOW, day, [8, named]),  # silent for exactly this time
        (NOW + 1, day, [named]),
        (NOW + 1, day + 1, [8, named]),
        (NOW + 99, 1 << 60, [7, 8, named]),
    ]
    for number, (now_ms, expiration_ms, left) in enumerate(cases):
        the_plan = plan(now_ms=now_ms, producer_expiration_ms=expiration_ms)
        ((_, new),) = rewrite_all([segment], tmp_path / f"o{number}", the_plan)
        survivors = contents(new)
        assert [h.producer_id for h, records in survivors if not records] == left
        assert [r.value for _, records in survivors for r in records] == [b"4", b"5"]


def test_an_output_takes_the_time_of_its_last_source(tmp_path: Path) -> None:
    first = write_segment(tmp_path / "s", 0, [batch(0, [(0, b"a", b"1")])])
    write_segment(tmp_path / "s", 1, [batch(1, [(1, b"a", b"2")])])
    os.utime(tmp_path / "s" / f"{1:020d}.log", (1_600_000_000, 1_600_000_000))
    second = type(first).load(SegmentFiles(DEFAULT, os.path.dirname(first.file), 1))
    ((_, new),) = rewrite_all([first, second], tmp_path / "o")
    assert new.mtime_ms == 1_600_000_000_000
    assert all(p.stat().st_mtime == 1_600_000_000 for p in Path(new.file).parent.iterdir())


offsets_and_keys = st.lists(
    st.tuples(
        st.sampled_from([None, b"", b"a", b"b", b"c", b"d", b"e" * 300]),
        st.sampled_from([None, b"", b"v", b"w" * 200]),
        st.integers(0, 2),  # the gap before the record
        st.booleans(),  # a new batch begins here
        st.booleans(),  # a new segment begins here
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=few(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(offsets_and_keys, st.integers(0, 4), st.sampled_from([120, 400, 1 << 20]), st.integers(1, 3))
def test_what_is_left_is_what_the_naive_cleaner_leaves(
    tmp_path_factory: pytest.TempPathFactory, items: list, codec: int, segment_bytes: int, rounds: int
) -> None:
    tmp_path = tmp_path_factory.mktemp("naive")
    segments_batches: list[list[list]] = [[[]]]
    offset = 0
    for key, value, gap, new_batch, new_segment in items:
        offset += gap
        if new_segment and segments_batches[-1][-1]:
            segments_batches.append([[]])
        elif new_batch and segments_batches[-1][-1]:
            segments_batches[-1].append([])
        segments_batches[-1][-1].append((offset, key, value))
        offset += 1
    segments = [
        write_segment(tmp_path / "s", rows[0][0][0], [batch(b[0][0], b, codec=codec) for b in rows])
        for rows in segments_batches
    ]
    model = [naive.NaiveBatch(tuple(records)) for s in segments for _, records in contents(s)]
    for number in range(rounds):
        now_ms = NOW + number * HOUR
        model = naive.clean(model, now_ms, HOUR)
        the_plan = plan(now_ms=now_ms, segment_bytes=segment_bytes)
        outputs = rewrite_all(segments, tmp_path / f"o{number}", the_plan)
        for facts, new in outputs:
            bases = {source.base_offset for source in facts.sources}
            segments = sorted(
                [s for s in segments if s.base_offset not in bases] + [new], key=lambda s: s.base_offset
            )
        survivors = [pair for s in segments for pair in contents(s)]
        assert [r for _, records in survivors for r in records] == naive.survivors(model)
        horizons = [h.delete_horizon_ms for h, records in survivors for _ in records]
        assert horizons == [b.horizon_ms for b in model for _ in b.records]


def test_a_small_output_buffer_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """6M.131: An output buffer that is too small is replaced; every retained record is written once."""
    rows = [(i, b"k%d" % (i % 50), b"v" * (i % 90)) for i in range(300)]
    batches = [batch(i, rows[i : i + 7], codec=(0, 3)[i % 2]) for i in range(0, 294, 7)]
    segment = write_segment(tmp_path / "s", 0, batches)
    ((_, big),) = rewrite_all([segment], tmp_path / "big")
    monkeypatch.setattr(output, "OUT_BYTES", 100)
    monkeypatch.setattr(output, "OUT_ROWS", 3)
    ((_, small),) = rewrite_all([segment], tmp_path / "small")
    assert Path(big.file).read_bytes() == Path(small.file).read_bytes()


@pytest.mark.parametrize("codec", [0, 3, 4])
def test_batches_larger_than_every_buffer(
    tmp_path: Path, codec: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch is larger than a chunk and than the output buffer; one stays whole, one is cut."""
    import random

    noise = random.Random(3).randbytes
    whole = batch(0, [(i, b"w%d" % i, noise(300_000)) for i in range(5)], codec=codec)
    cut = batch(5, [(5 + i, b"k%d" % (i % 4), noise(300_000 - i)) for i in range(8)], codec=codec)
    assert min(len(whole), len(cut)) > 1 << 20
    segment = write_segment(tmp_path / "s", 0, [whole, cut, batch(13, [(13, b"k0", b"")])])
    monkeypatch.setattr(output, "OUT_BYTES", 1000)
    ((_, new),) = rewrite_all([segment], tmp_path / "o", plan(max_message_bytes=4 << 20))
    assert Path(new.file).read_bytes().startswith(whole)
    assert [(r.offset, len(r.value or b"")) for r in records_of(new)] == [
        *((i, 300_000) for i in range(5)),
        *((5 + i, 300_000 - i) for i in (5, 6, 7)),
        (13, 0),
    ]
