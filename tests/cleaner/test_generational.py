"""The choice of the next rewrite: its obligations in order, its score, and the runs that it never picks."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastword.accounts import DriveAccount, PartitionAccount, SegmentAccount
from lastword.bucket.files import BucketFiles
from lastword.cleaner.policy.generational import all_garbage, choose_drive, crowded
from tests.support.exhaustive import few

MIB = 1 << 20
T = 100 * MIB
NOW_MS = 1_000_000


def segment(number, dead_bytes=0, size_bytes=MIB, **facts):
    given = {"garbage_age_at": T, "written_at": T - 10 * MIB, "records": 1000, "dead_records": 0} | facts
    given.setdefault("oldest_dead_ms", NOW_MS - 1000 if dead_bytes else -1)
    return SegmentAccount(1000 * number, 1000 * (number + 1), size_bytes, dead_bytes=dead_bytes, **given)


def partition(*segments, number=0, topic="t", active_bytes=0, **facts):
    total = sum(segment.size_bytes for segment in segments) + active_bytes
    limit = segments[-1].next_offset if segments else 0
    return PartitionAccount(
        topic, number, "/d", tuple(segments), total, limit, **({"segment_bytes": MIB} | facts)
    )


def drive(*partitions, space_target=1.5, file_cost_bytes=0.05 * MIB):
    return DriveAccount("/d", T, space_target, file_cost_bytes, tuple(partitions))


def chosen(*partitions, **facts):
    return choose_drive(drive(*partitions, **facts), NOW_MS)


def half(number, share=0.5, **facts):
    return segment(number, int(share * MIB), **facts)


# ---------------------------------------------------------------- obligations


def test_within_its_target_nothing_is_cleaned():
    choice = chosen(partition(half(0), segment(1), segment(2)))
    assert (choice.obligation, choice.run, choice.best) == ("none", None, ())
    assert "1.20 times its live bytes, within its target of 1.5" in choice.text


def test_above_its_target_the_run_with_the_most_rent_for_a_byte_moved_goes_first():
    slow, dirty = half(0, 0.2, garbage_age=2.0 * MIB * MIB), half(2, 0.9, garbage_age=9.0 * MIB * MIB)
    choice = chosen(partition(slow, half(1, 0.4), dirty, half(3, 0.4)))
    assert (choice.obligation, choice.run.first, choice.run.last) == ("target", 2, 2)
    assert choice.run.free_bytes == dirty.dead_bytes and choice.run.write_bytes == dirty.live_bytes
    assert choice.best[0] == choice.run and len(choice.best) == 9  # of ten runs, the longest moves too much
    assert "1.90 times" in choice.text


def test_the_target_counts_all_partitions_of_the_drive():
    dirty = partition(*(half(i, 0.6) for i in range(4)), min_cleanable_dirty_ratio=0.9)
    assert chosen(dirty).obligation == "target"
    cold = partition(*(segment(i) for i in range(4)), number=1)
    assert chosen(dirty, cold).obligation == "none"  # the cold partition lends its room


def test_the_ceiling_of_one_partition_holds_although_the_drive_has_room():
    cold = partition(*(segment(i) for i in range(40)), number=1)
    large = [half(i, 0.6) for i in range(5)]
    choice = chosen(partition(*large), cold)
    assert (choice.obligation, choice.run.partition) == ("ceiling", 0)
    assert "2.50 times its live bytes, 2.00 at most" in choice.text
    assert chosen(partition(*large, min_cleanable_dirty_ratio=0.7), cold).obligation == "none"
    assert chosen(partition(*large[:4]), cold).obligation == "none"  # too small for a ceiling


def test_the_partition_furthest_above_its_ceiling_goes_first():
    first = partition(*(half(i, 0.6) for i in range(5)))
    second = partition(*(half(i, 0.7) for i in range(5)), number=1)
    assert chosen(first, second).run.partition == chosen(second, first).run.partition == 1


def test_overdue_garbage_beats_everything():
    cold = partition(half(0, 0.01, oldest_dead_ms=NOW_MS - 61_000), segment(1), max_compaction_lag_ms=60_000)
    hot = partition(*(half(i, 0.9) for i in range(6)), number=1)
    choice = chosen(cold, hot)
    assert (choice.obligation, choice.run.partition, choice.run.first) == ("overdue", 0, 0)
    assert all(run.first == 0 for run in choice.best)  # only runs that hold the overdue garbage
    assert "1 s past its max.compaction.lag.ms" in choice.text
    assert chosen(replace(cold, max_compaction_lag_ms=61_000), hot).run.partition == 1


def test_too_many_files_merge_without_garbage():
    small = [segment(i, size_bytes=MIB // 16) for i in range(100)]
    log = partition(*small)
    assert crowded(log)
    choice = chosen(log)
    assert (choice.obligation, choice.run.free_bytes, choice.run.files_out) == ("files", 0, 1)
    assert choice.run.files_in == 16 and choice.run.write_bytes == MIB
    assert "100 segments, 16 of them fit in one" in choice.text


def test_the_requests_of_a_bucket_favour_the_run_that_leaves_fewer_segments():
    facts = {"segment_bytes": 64 * MIB}
    small = partition(
        *(half(i, garbage_age=0.5 * MIB * MIB) for i in range(8)),
        **facts,
    )
    large = partition(
        segment(0, 4 * MIB, 8 * MIB, garbage_age=80.0 * MIB * MIB),
        number=1,
        **facts,
    )
    assert chosen(small, large, file_cost_bytes=1.5 * MIB).run.partition == 1
    choice = chosen(small, large, file_cost_bytes=BucketFiles.file_cost_bytes)
    assert (choice.run.partition, choice.run.files_in, choice.run.files_out) == (0, 8, 1)


def test_files_whose_indexes_are_full_do_not_merge():
    small = [segment(i, size_bytes=MIB // 16) for i in range(100)]
    assert chosen(partition(*small, file_bytes=MIB // 8)).run.files_in == 2
    choice = chosen(partition(*small, file_bytes=MIB // 8 - 1))
    assert (choice.obligation, choice.run) == ("none", None)


def test_a_rate_next_to_nothing_overflows_nowhere():
    with np.errstate(all="raise"):
        assert chosen(partition(half(0, death_rate=5e-324), half(1), half(2))).run is not None


def test_merging_ends():
    sizes = [MIB // 16] * 200
    rounds = 0
    while True:
        log = partition(*(segment(i, size_bytes=size) for i, size in enumerate(sizes)))
        run = chosen(log).run
        if run is None:
            break
        sizes[run.first : run.last + 1] = [run.write_bytes]
        rounds += 1
    assert not crowded(log) and sum(sizes) == 200 * MIB // 16
    assert rounds <= 10


def test_files_too_far_apart_in_offsets_do_not_merge():
    wide = [
        SegmentAccount(i << 31, (i + 1) << 31, MIB // 16, 1, 0, 0, garbage_age_at=T, written_at=T)
        for i in range(100)
    ]
    assert chosen(partition(*wide)).run is None


# ---------------------------------------------------------------- score


def test_a_segment_that_still_dies_is_left_to_ripen():
    quick = half(0, death_rate=0.2, garbage_age=1e12)
    quiet = half(2, death_rate=0.001, garbage_age=1e12)
    log = partition(quick, segment(1), quiet, min_cleanable_dirty_ratio=0.9)
    assert chosen(log, space_target=1.1).run.first == 2


def test_rent_grows_with_time_and_not_with_looking():
    old, new = half(0, garbage_age_at=T - 20 * MIB), half(2, garbage_age_at=T - MIB)
    assert chosen(partition(old, segment(1), new), space_target=1.1).run.first == 0


def test_what_is_moved_at_once_is_bounded():
    log = partition(*(half(i, 0.3) for i in range(20)))
    choice = chosen(log, space_target=1.1)
    assert max(run.write_bytes for run in choice.best) <= 2 * MIB


def test_a_segment_larger_than_the_bound_is_a_run_by_itself():
    log = partition(segment(0, 2 * MIB, size_bytes=10 * MIB), segment(1))
    choice = chosen(log, space_target=1.1)
    assert (choice.run.files_in, choice.run.files_out) == (1, 8)


def test_neighbours_share_files_of_the_survivors():
    log = partition(*(half(i, 0.75, garbage_age=1e12) for i in range(8)), min_cleanable_dirty_ratio=0.9)
    run = chosen(log).run
    assert (run.files_in, run.files_out, run.write_bytes) == (8, 2, 2 * MIB)


def test_a_wholly_dead_run_leaves_no_file():
    log = partition(half(0, 1.0, garbage_age=1e12), half(1, 1.0, garbage_age=1e12), segment(2))
    run = chosen(log).run
    assert (run.first, run.last, run.write_bytes, run.files_out) == (0, 1, 0, 0)


# ---------------------------------------------------------------- never


def test_a_quarantined_partition_is_not_cleaned_and_causes_no_obligation():
    bad = partition(*(half(i, 0.9) for i in range(6)), quarantined=True)
    good = partition(half(0, 0.1), segment(1), number=1)
    assert chosen(bad, good).run is None
    assert all_garbage(bad) == ()


def test_a_partition_of_another_strategy_is_left_alone():
    assert chosen(partition(*(half(i, 0.9) for i in range(6)), strategy="kafka")).run is None


def test_blocked_tombstones_oblige_but_are_not_chosen():
    blocked = [segment(i, blocked_tombstone_bytes=MIB // 2) for i in range(6)]
    choice = chosen(partition(*blocked))
    assert choice.run is None and "of tombstones wait for older copies" in choice.text
    choice = chosen(partition(*blocked, half(6, 0.1)))
    assert choice.obligation == "target" and choice.run.last == 6


def test_all_garbage_takes_every_run_of_neighbours():
    log = partition(half(0), half(1), segment(2), half(3), *(half(i) for i in range(5, 20)))
    assert [(run.first, run.last) for run in all_garbage(log)] == [(0, 1), (3, 18)]
    assert [run.base_offset for run in all_garbage(log)] == [0, 3000]


def test_nothing_at_all():
    assert chosen().run is None and chosen(partition()).run is None
    assert all_garbage(partition()) == ()


# ---------------------------------------------------------------- properties

segments_drawn = st.lists(
    st.tuples(
        st.integers(0, MIB),
        st.floats(0, 1),
        st.floats(0, 1e14),
        st.integers(0, T),
        st.floats(0, 2),
        st.booleans(),
    ),
    max_size=30,
)


@st.composite
def drives(draw):
    partitions = []
    for number in range(draw(st.integers(0, 4))):
        drawn = draw(segments_drawn)
        segments = [
            segment(
                i,
                int(size * share) if dirty else 0,
                size,
                garbage_age=garbage_age,
                written_at=age,
                death_rate=death_rate,
                blocked_tombstone_bytes=int((1 - share) * size * (not dirty)),
            )
            for i, (size, share, garbage_age, age, death_rate, dirty) in enumerate(drawn)
        ]
        partitions.append(
            partition(
                *segments,
                number=number,
                active_bytes=draw(st.integers(0, MIB)),
                quarantined=draw(st.integers(0, 4)) == 0,
                segment_bytes=draw(st.sampled_from([MIB // 8, MIB, 64 * MIB])),
                max_compaction_lag_ms=draw(st.sampled_from([500, 1 << 62])),
            )
        )
    target = draw(st.sampled_from([1.1, 1.5, 3.0]))
    return drive(*partitions, space_target=target, file_cost_bytes=draw(st.floats(0, MIB)))


@pytest.mark.slow
@settings(max_examples=few(150), deadline=None)
@given(drives(), st.randoms(use_true_random=False))
def test_properties_of_every_choice(account, random):
    choice = choose_drive(account, NOW_MS)
    shuffled = list(account.partitions)
    random.shuffle(shuffled)
    assert choose_drive(replace(account, partitions=tuple(shuffled)), NOW_MS) == choice
    assert (choice.run is None) == (choice.obligation == "none") and choice.text
    assert choice.run is None or choice.best[0] == choice.run
    by_number = {partition.partition: partition for partition in account.partitions}
    for run in choice.best:
        partition = by_number[run.partition]
        taken = partition.segments[run.first : run.last + 1]
        assert not partition.quarantined and len(taken) == run.files_in >= 1
        assert run.free_bytes == sum(s.dead_bytes for s in taken)
        assert run.write_bytes == run.read_bytes - run.free_bytes
        if choice.obligation == "files":
            assert run.files_in >= 2 and run.write_bytes <= partition.segment_bytes
        else:
            assert run.free_bytes > 0 and run.files_in <= 8
            assert run.write_bytes <= 2 * partition.segment_bytes or run.files_in == 1
        if choice.obligation == "overdue":
            assert run.partition == choice.run.partition
    for partition in account.partitions:
        covered = [i for run in all_garbage(partition) for i in range(run.first, run.last + 1)]
        assert covered == [
            i for i, s in enumerate(partition.segments) if s.dead_bytes and not partition.quarantined
        ]


@settings(max_examples=few(100), deadline=None)
@given(drives())
def test_while_nothing_is_dead_only_merging_moves_a_byte(account):
    clean = [
        replace(
            partition,
            segments=tuple(replace(s, dead_bytes=0, blocked_tombstone_bytes=0) for s in partition.segments),
        )
        for partition in account.partitions
    ]
    assert choose_drive(replace(account, partitions=tuple(clean)), NOW_MS).obligation in ("none", "files")


@settings(max_examples=few(60), deadline=None)
@given(drives())
def test_cleaning_as_chosen_comes_to_an_end(account):
    """Every rewrite that is not a merge frees garbage; afterwards its segments have no garbage."""
    for _ in range(1000):
        run = choose_drive(account, NOW_MS).run
        if run is None:
            return
        parts = list(account.partitions)
        at = next(i for i, partition in enumerate(parts) if partition.partition == run.partition)
        partition = parts[at]
        taken = partition.segments[run.first : run.last + 1]
        new = replace(
            taken[0],
            next_offset=taken[-1].next_offset,
            size_bytes=run.write_bytes,
            dead_bytes=0,
            oldest_dead_ms=-1,
            blocked_tombstone_bytes=sum(s.blocked_tombstone_bytes for s in taken),
        )
        rest = (*partition.segments[: run.first], new, *partition.segments[run.last + 1 :])
        parts[at] = replace(partition, segments=rest, total_bytes=partition.total_bytes - run.free_bytes)
        account = replace(account, partitions=tuple(parts))
    pytest.fail("a thousand rewrites, and still obliged")


def calls_to_choose(segments):
    """Count the Python and C calls of one choice among 16 partitions with this number of segments each."""
    parts = []
    for number in range(16):
        drawn = (
            half(i, (i * 7919 % 100) / 250, garbage_age=float(i * 7717 % 10**6)) for i in range(segments)
        )
        parts.append(partition(*drawn, number=number))
    account = drive(*parts, space_target=1.1)
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        choice = choose_drive(account, NOW_MS)
    finally:
        sys.setprofile(None)
    assert choice.obligation == "target"
    return calls


def test_the_calls_of_a_choice_do_not_grow_with_the_segments():
    few, many = calls_to_choose(500), calls_to_choose(2000)
    assert many <= 1.1 * few < 10_000
