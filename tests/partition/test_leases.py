"""Leases: what a reader may rely on, and what the cleaner is told."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastword.errors import LastwordError, LeaseRefusedError, OffsetOutOfRangeError, UsageError
from lastword.files import DEFAULT
from lastword.partition import leases
from tests.doubles.forgetful import ForgetfulFiles

NOW = 1_795_168_800_000
DAY = 86_400_000


def take(directory, name, position=None, *, now_ms=NOW, log_start=0, log_end=1000, max_age_ms=7 * DAY):
    return leases.register(
        DEFAULT,
        str(directory),
        name,
        position,
        log_start=log_start,
        log_end=log_end,
        max_age_ms=max_age_ms,
        now_ms=now_ms,
    )


def go_on(directory, name, position, *, now_ms=NOW, log_start=0, log_end=1000):
    return leases.advance(
        DEFAULT, str(directory), name, position, log_start=log_start, log_end=log_end, now_ms=now_ms
    )


def test_the_floor_is_the_lowest_live_position(tmp_path):
    assert leases.load(DEFAULT, str(tmp_path), NOW).floor == leases.NO_FLOOR
    take(tmp_path, "b", 120)
    take(tmp_path, "a", 40)
    found = leases.load(DEFAULT, str(tmp_path), NOW)
    assert [one.name for one in found.live] == ["a", "b"]
    assert found.floor == 40
    assert found.lowest.name == "a"
    go_on(tmp_path, "a", 500)
    assert leases.load(DEFAULT, str(tmp_path), NOW).floor == 120
    assert leases.release(DEFAULT, str(tmp_path), "b")
    assert not leases.release(DEFAULT, str(tmp_path), "b")
    assert leases.load(DEFAULT, str(tmp_path), NOW).floor == 500


def test_a_new_lease_begins_at_the_log_start_and_is_taken_up_where_it_stands(tmp_path):
    assert take(tmp_path, "a", log_start=7).position == 7
    go_on(tmp_path, "a", 90)
    assert take(tmp_path, "a").position == 90


def test_it_lapses_by_the_clock_and_stays_listed(tmp_path):
    take(tmp_path, "a", 5, max_age_ms=DAY)
    assert leases.load(DEFAULT, str(tmp_path), NOW + DAY).floor == 5
    later = leases.load(DEFAULT, str(tmp_path), NOW + DAY + 1)
    assert later.floor == leases.NO_FLOOR
    assert [one.name for one in later.lapsed] == ["a"]
    go_on(tmp_path, "a", 6, now_ms=NOW + 2 * DAY)  # nothing was dropped in the meantime
    assert leases.load(DEFAULT, str(tmp_path), NOW + 2 * DAY).floor == 6


def test_below_what_was_dropped_it_is_refused_and_nothing_is_left(tmp_path):
    leases.note_dropped(DEFAULT, str(tmp_path), 100)
    assert leases.dropped_up_to(DEFAULT, str(tmp_path)) == 101
    with pytest.raises(LeaseRefusedError, match="up to 100 are gone") as caught:
        take(tmp_path, "a", 100)
    assert '"earliest"' in caught.value.remedy and "restore" in caught.value.remedy
    assert leases.load(DEFAULT, str(tmp_path), NOW) == leases.Leases()
    assert take(tmp_path, "a", 101).position == 101
    assert take(tmp_path, "fresh").position == 0  # it holds nothing that a tombstone could have ended
    assert go_on(tmp_path, "fresh", 50).position == 50


def test_a_lapsed_lease_comes_back_only_if_nothing_above_it_went(tmp_path):
    take(tmp_path, "a", 5, max_age_ms=DAY)
    leases.note_dropped(DEFAULT, str(tmp_path), 100)
    with pytest.raises(LeaseRefusedError, match="lapsed 24 h ago"):
        go_on(tmp_path, "a", 6, now_ms=NOW + 2 * DAY)
    with pytest.raises(LeaseRefusedError):
        take(tmp_path, "a", now_ms=NOW + 2 * DAY)
    with pytest.raises(LeaseRefusedError):  # it read on from 5, and missed what was dropped there
        go_on(tmp_path, "a", 101, now_ms=NOW + 2 * DAY)
    assert take(tmp_path, "a", 101, now_ms=NOW + 2 * DAY).position == 101  # restored, as of 101


def test_a_live_lease_goes_forward_but_not_back_below_what_was_dropped(tmp_path):
    take(tmp_path, "a", 20)
    leases.note_dropped(DEFAULT, str(tmp_path), 10)
    go_on(tmp_path, "a", 30)
    assert go_on(tmp_path, "a", 12).position == 12
    with pytest.raises(LeaseRefusedError):
        go_on(tmp_path, "a", 3)


def test_advancing_what_was_released_is_refused(tmp_path):
    with pytest.raises(LeaseRefusedError, match="no lease 'a'"):
        go_on(tmp_path, "a", 3)


def test_positions_outside_the_log_are_refused(tmp_path):
    with pytest.raises(OffsetOutOfRangeError):
        take(tmp_path, "a", 3, log_start=4)
    with pytest.raises(OffsetOutOfRangeError):
        take(tmp_path, "a", 12, log_end=11)
    with pytest.raises(UsageError):
        take(tmp_path, "a", 1, max_age_ms=0)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a b", "ä", "x" * 201, "a.tmp", "a\n", "\0"])
def test_names_that_are_no_file_names_are_refused(tmp_path, name):
    with pytest.raises(UsageError):
        take(tmp_path, name, 1)
    with pytest.raises(UsageError):
        leases.release(DEFAULT, str(tmp_path), name)
    assert not list(tmp_path.iterdir())


def test_the_longest_name_fits(tmp_path):
    take(tmp_path, "x" * 200, 1)
    assert leases.load(DEFAULT, str(tmp_path), NOW).floor == 1


def test_a_damaged_lease_holds_everything_back_until_it_lapses(tmp_path):
    take(tmp_path, "a", 5)
    path = tmp_path / "lastword" / "lease-a"
    path.write_text('{"position": 5')
    written_ms = int(path.stat().st_mtime * 1000)
    found = leases.load(DEFAULT, str(tmp_path), written_ms + DAY)
    assert found.floor == 0 and found.live[0].damaged
    assert leases.load(DEFAULT, str(tmp_path), written_ms + 8 * DAY).floor == leases.NO_FLOOR
    assert take(tmp_path, "a", 9).position == 9


def test_a_damaged_note_refuses_all_but_new_readers(tmp_path):
    leases.note_dropped(DEFAULT, str(tmp_path), 3)
    (tmp_path / "lastword" / "dropped-tombstones").write_text("x")
    with pytest.raises(LeaseRefusedError):
        take(tmp_path, "a", 900)
    assert take(tmp_path, "a").position == 0
    leases.note_dropped(DEFAULT, str(tmp_path), 4)
    assert leases.dropped_up_to(DEFAULT, str(tmp_path)) == leases.NO_FLOOR


def test_a_drop_noted_while_a_lease_is_taken_refuses_it(tmp_path, monkeypatch):
    """The cleaner notes before it looks at the leases, the reader writes before it looks at the note."""
    write = leases._write

    def meanwhile(files, directory, one, **more):
        leases.note_dropped(files, directory, 50)
        return write(files, directory, one, **more)

    monkeypatch.setattr(leases, "_write", meanwhile)
    with pytest.raises(LeaseRefusedError):
        take(tmp_path, "a", 40)
    monkeypatch.undo()
    assert leases.load(DEFAULT, str(tmp_path), NOW).floor == leases.NO_FLOOR


def test_the_note_only_rises(tmp_path):
    for offset in (5, 3, 9, 9):
        leases.note_dropped(DEFAULT, str(tmp_path), offset)
    assert leases.dropped(DEFAULT, str(tmp_path)) == leases.Dropped(up_to=10, drops=4)


def test_a_power_cut_leaves_a_whole_lease(tmp_path):
    """What was returned from is there, and a lease is never half-written."""
    root = tmp_path / "log"
    root.mkdir()
    files = ForgetfulFiles(root)
    for position in (1, 20, 300):
        leases.register(files, str(root), "a", position, log_start=0, log_end=1000, now_ms=NOW)
        files.mark(str(position))
    leases.note_dropped(files, str(root), 250)
    files.mark("noted")
    count = 0
    for image in files.images(seeds=range(3)):
        target = tmp_path / f"image-{count}"
        image.write(target)
        count += 1
        done = [int(mark) for mark in image.marks if mark != "noted"]
        found = leases.read(DEFAULT, str(target), "a") if target.exists() else None
        assert found is None or (not found.damaged and found.position in (1, 20, 300))
        assert not done or found.position >= max(done)
        if "noted" in image.marks:
            assert leases.dropped_up_to(DEFAULT, str(target)) == 251
    assert count > 10


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["take", "advance", "release", "drop", "wait"]),
            st.sampled_from(["a", "b"]),
            st.integers(0, 30),
        ),
        max_size=25,
    )
)
def test_a_tombstone_never_goes_while_an_accepted_reader_has_not_met_it(tmp_path_factory, steps):
    """Readers come and go; a cleaner drops below the floor. No accepted reader ever missed a drop."""
    directory = str(tmp_path_factory.mktemp("leases"))
    now = NOW
    accepted: dict[str, int] = {}  # position of a reader that the lease said yes to
    known: dict[str, set[int]] = {}  # dropped while it stood at or below: what it would miss
    for what, name, number in steps:
        if what == "wait":
            now += number * DAY
        elif what == "drop":
            if number < leases.load(DEFAULT, directory, now).floor:
                leases.note_dropped(DEFAULT, directory, number)
                for reader, position in accepted.items():
                    if position <= number:
                        known[reader].add(number)
        elif what == "release":
            leases.release(DEFAULT, directory, name)
        else:
            arguments = {"log_start": 0, "log_end": 100, "now_ms": now}
            try:
                if what == "take":
                    done = leases.register(DEFAULT, directory, name, number, **arguments)
                else:
                    done = leases.advance(DEFAULT, directory, name, number, **arguments)
            except LastwordError:
                continue
            # It was let through at this position: nothing may be gone that it says it has yet to meet,
            # and nothing between where it last stood and here.
            before = accepted.get(name)
            if what == "advance" and before is not None and number >= before:
                assert not [offset for offset in known[name] if offset >= before]
            accepted[name] = done.position
            known[name] = set()


def test_a_lease_of_an_empty_directory_reads_as_none(tmp_path):
    assert leases.load(DEFAULT, str(tmp_path / "absent"), NOW) == leases.Leases()
    assert leases.read(DEFAULT, str(tmp_path), "a") is None


def test_other_files_are_no_leases(tmp_path):
    take(tmp_path, "a", 5)
    (tmp_path / "lastword" / "lease-a.0011.tmp").write_text(json.dumps({"position": 1}))
    (tmp_path / "lastword" / "producers").write_text("")
    assert leases.load(DEFAULT, str(tmp_path), NOW).floor == 5
    assert sorted(Path(tmp_path, "lastword").iterdir())
