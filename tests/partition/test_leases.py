"""Leases: what they guarantee a reader, and what the cleaner reads of them."""

import json
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lastword
from lastword.errors import (
    LastwordError,
    LeaseRefusedError,
    NotPermittedError,
    OffsetOutOfRangeError,
    UsageError,
)
from lastword.files import DEFAULT, OsFiles
from lastword.logdir.log_dir import LogDirectory
from lastword.partition import leases, removal_log
from tests.fakes.forgetful import ForgetfulFiles
from tests.fakes.recording import RecordingFiles
from tests.support.exhaustive import few

NOW = 1_795_168_800_000
DAY = 86_400_000


def test_notes_at_the_same_time_lose_none(tmp_path):
    """The first append after a stop that was not clean notes a cut, maybe while a cleaning notes its own."""
    (tmp_path / "lastword").mkdir()
    removal_log.note_cut(DEFAULT, str(tmp_path), 5)
    threads = []

    def other(call):
        if call.name == "create" and not threads:  # the note was read, and is not written
            threads.append(threading.Thread(target=removal_log.note_cut, args=(DEFAULT, str(tmp_path), 9)))
            threads[0].start()
            threads[0].join(0.1)

    removal_log.note_dropped(RecordingFiles(DEFAULT, fail=other), str(tmp_path), 3)
    threads[0].join()
    noted = removal_log.load(DEFAULT, str(tmp_path))
    assert (noted.cuts, noted.up_to) == ((5, 9), 4)


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
    held = leases.load(DEFAULT, str(tmp_path), NOW)
    assert [lease.name for lease in held.live] == ["a", "b"]
    assert held.floor == 40
    assert held.lowest.name == "a"
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
    assert [lease.name for lease in later.lapsed] == ["a"]
    go_on(tmp_path, "a", 6, now_ms=NOW + 2 * DAY)  # no tombstone was dropped meanwhile
    assert leases.load(DEFAULT, str(tmp_path), NOW + 2 * DAY).floor == 6


def test_below_what_was_dropped_it_is_refused_and_nothing_is_left(tmp_path):
    removal_log.note_dropped(DEFAULT, str(tmp_path), 100)
    assert leases.dropped_up_to(DEFAULT, str(tmp_path)) == 101
    with pytest.raises(LeaseRefusedError, match="up to 100 are gone") as caught:
        take(tmp_path, "a", 100)
    assert '"earliest"' in caught.value.remedy and "restore" in caught.value.remedy
    assert leases.load(DEFAULT, str(tmp_path), NOW) == leases.Leases()
    assert take(tmp_path, "a", 101).position == 101
    assert take(tmp_path, "fresh").position == 0  # it has no records that a tombstone deletes
    assert go_on(tmp_path, "fresh", 50).position == 50


def test_a_lapsed_lease_comes_back_only_if_nothing_above_it_went(tmp_path):
    take(tmp_path, "a", 5, max_age_ms=DAY)
    removal_log.note_dropped(DEFAULT, str(tmp_path), 100)
    with pytest.raises(LeaseRefusedError, match="lapsed 24 h ago"):
        go_on(tmp_path, "a", 6, now_ms=NOW + 2 * DAY)
    with pytest.raises(LeaseRefusedError):
        take(tmp_path, "a", now_ms=NOW + 2 * DAY)
    with pytest.raises(LeaseRefusedError):  # the reader continued from 5 and missed the drops
        go_on(tmp_path, "a", 101, now_ms=NOW + 2 * DAY)
    assert take(tmp_path, "a", 101, now_ms=NOW + 2 * DAY).position == 101  # restored from the state at 101


def test_a_live_lease_goes_forward_but_not_back_below_what_was_dropped(tmp_path):
    take(tmp_path, "a", 20)
    removal_log.note_dropped(DEFAULT, str(tmp_path), 10)
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
    held = leases.load(DEFAULT, str(tmp_path), written_ms + DAY)
    assert held.floor == 0 and held.live[0].damaged
    assert leases.load(DEFAULT, str(tmp_path), written_ms + 8 * DAY).floor == leases.NO_FLOOR
    assert take(tmp_path, "a", 9).position == 9


def test_a_lease_that_may_not_be_read_holds_everything_back(tmp_path):
    """The partition could not be opened: the file of another user stopped all appends."""
    with lastword.open(tmp_path, "a", log_cleaner_enable=False) as logs:
        logs.create_topic("t")
        logs.topic("t").append(b"k", b"v")
    partition = tmp_path / "t-0"
    take(partition, "a", 1)
    forbidden = RecordingFiles(
        OsFiles(),
        fail=lambda call: (
            NotPermittedError("no") if call.name == "open_read" and call.path.endswith("lease-a") else None
        ),
    )
    with LogDirectory.open(str(tmp_path), "a", forbidden) as directory:
        assert directory.log("t", 0).log_end == 1
        held = leases.load(forbidden, str(partition), NOW + 10_000 * DAY)
        assert held.floor == 0 and held.live[0].damaged
    assert take(partition, "a", 1).position == 1


def test_a_damaged_note_refuses_all_but_new_readers(tmp_path):
    removal_log.note_dropped(DEFAULT, str(tmp_path), 3)
    (tmp_path / "lastword" / "dropped-tombstones").write_text("x")
    with pytest.raises(LeaseRefusedError):
        take(tmp_path, "a", 900)
    assert take(tmp_path, "a").position == 0
    removal_log.note_dropped(DEFAULT, str(tmp_path), 4)
    assert leases.dropped_up_to(DEFAULT, str(tmp_path)) == leases.NO_FLOOR


def test_a_drop_noted_while_a_lease_is_taken_refuses_it(tmp_path, monkeypatch):
    """The cleaner notes a drop, then reads the leases; the reader writes its lease, then reads the note."""
    write = leases.write

    def meanwhile(files, directory, lease, **more):
        removal_log.note_dropped(files, directory, 50)
        return write(files, directory, lease, **more)

    monkeypatch.setattr(leases, "write", meanwhile)
    with pytest.raises(LeaseRefusedError):
        take(tmp_path, "a", 40)
    monkeypatch.undo()
    assert leases.load(DEFAULT, str(tmp_path), NOW).floor == leases.NO_FLOOR


def test_the_note_only_rises(tmp_path):
    for offset in (5, 3, 9, 9):
        removal_log.note_dropped(DEFAULT, str(tmp_path), offset)
    assert removal_log.load(DEFAULT, str(tmp_path)) == removal_log.RemovalLog(up_to=10, drops=4)


def test_a_power_cut_leaves_a_whole_lease(tmp_path):
    """Every lease whose call returned exists, and no lease is half-written."""
    root = tmp_path / "log"
    root.mkdir()
    files = ForgetfulFiles(root)
    for position in (1, 20, 300):
        leases.register(files, str(root), "a", position, log_start=0, log_end=1000, now_ms=NOW)
        files.mark(str(position))
    removal_log.note_dropped(files, str(root), 250)
    files.mark("noted")
    images = list(files.images(seeds=range(3)))
    target = tmp_path / "image"
    for image in images:
        image.write(target)
        done = [int(mark) for mark in image.marks if mark != "noted"]
        lease = leases.read(DEFAULT, str(target), "a") if target.exists() else None
        assert lease is None or (not lease.damaged and lease.position in (1, 20, 300))
        assert not done or lease.position >= max(done)
        if "noted" in image.marks:
            assert leases.dropped_up_to(DEFAULT, str(target)) == 251
    assert len(images) > 10


@settings(max_examples=few(60), deadline=None)
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
    """Readers register and release; a cleaner drops below the floor; no accepted reader misses a drop."""
    directory = str(tmp_path_factory.mktemp("leases"))
    now = NOW
    accepted: dict[str, int] = {}  # position of each reader that has a lease
    known: dict[str, set[int]] = {}  # offsets dropped at or above the reader's position: it would miss them
    for action, name, number in steps:
        if action == "wait":
            now += number * DAY
        elif action == "drop":
            if number < leases.load(DEFAULT, directory, now).floor:
                removal_log.note_dropped(DEFAULT, directory, number)
                for reader, position in accepted.items():
                    if position <= number:
                        known[reader].add(number)
        elif action == "release":
            leases.release(DEFAULT, directory, name)
        else:
            arguments = {"log_start": 0, "log_end": 100, "now_ms": now}
            try:
                if action == "take":
                    done = leases.register(DEFAULT, directory, name, number, **arguments)
                else:
                    done = leases.advance(DEFAULT, directory, name, number, **arguments)
            except LastwordError:
                continue
            # The reader was accepted at this position: no offset that it has yet to read may be gone,
            # and no offset between its last position and this one.
            before = accepted.get(name)
            if action == "advance" and before is not None and number >= before:
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


def test_a_cut_takes_leases_back_and_their_readers_are_told(tmp_path):
    directory = str(tmp_path)
    take(directory, "ahead", 90)
    take(directory, "behind", 40)
    removal_log.note_cut(DEFAULT, directory, 50)
    held = leases.load(DEFAULT, directory, NOW)
    assert [(lease.name, lease.position, lease.cut_from) for lease in held.live] == [
        ("ahead", 50, 90),
        ("behind", 40, None),
    ]
    for name in ("ahead", "behind"):  # either may miss what was appended there since
        with pytest.raises(LeaseRefusedError, match="the log was cut at 50 since"):
            go_on(directory, name, 95)
    assert go_on(directory, "ahead", 50).cut_from == 90  # live, but must be taken again after the cut
    with pytest.raises(LeaseRefusedError, match="cut at 50"):
        go_on(directory, "ahead", 51)
    assert leases.read(DEFAULT, directory, "ahead").cut_from == 90  # nothing was changed
    assert take(directory, "ahead").position == 50
    assert go_on(directory, "behind", 45).position == 45
    for name in ("ahead", "behind"):
        assert go_on(directory, name, 95).cut_from is None


def test_a_log_that_is_found_shorter_than_a_lease_says_was_cut(tmp_path):
    directory = str(tmp_path)
    take(directory, "a", 90)
    leases.log_found(DEFAULT, directory, 90, lambda: 0)
    assert leases.read(DEFAULT, directory, "a").position == 90
    leases.log_found(DEFAULT, directory, 60, lambda: 0)
    assert leases.read(DEFAULT, directory, "a").position == 60
    leases.log_found(DEFAULT, directory, 60, lambda: 0)
    assert removal_log.load(DEFAULT, directory).cuts == (60,)


@pytest.fixture
def beside_a_broker(tmp_path):
    """Make a partition, and a function that writes a broker's cleaner checkpoint up to an offset."""

    def cleaned_to(offset):
        (tmp_path / "cleaner-offset-checkpoint").write_text(f"0\n1\nt 0 {offset}\n")

    (tmp_path / "t-0").mkdir()
    return str(tmp_path / "t-0"), cleaned_to


def test_a_new_lease_below_what_a_broker_cleaned_is_refused(beside_a_broker):
    directory, cleaned_to = beside_a_broker
    removal_log.note_cleaned(DEFAULT, directory, 0, 30)
    cleaned_to(30)
    take(directory, "ours", 10)
    cleaned_to(50)
    with pytest.raises(
        LeaseRefusedError, match="another cleaner, or an erasure, which reads no leases, cleaned up to 50"
    ):
        take(directory, "new", 49)
    take(directory, "new", 50)
    take(directory, "holds-nothing")
    removal_log.note_cleaned(DEFAULT, directory, 50, 70)  # overwrites the broker's checkpoint
    cleaned_to(70)
    with pytest.raises(LeaseRefusedError, match="cleaned up to 50"):
        take(directory, "other", 49)
    take(directory, "other", 50)


def test_a_reader_that_stood_below_when_a_broker_had_the_log_is_told(beside_a_broker):
    """When the log is found after a broker had it, leases below the broker's checkpoint are refused."""
    directory, cleaned_to = beside_a_broker
    take(directory, "low", 10)
    take(directory, "high", 60)
    cleaned_to(50)
    take(directory, "since")  # begins with an empty state; the lease records the broker's checkpoint
    go_on(directory, "since", 20)
    leases.log_found(DEFAULT, directory, 1000, lambda: 50)
    for back in (go_on, take):
        with pytest.raises(LeaseRefusedError, match="lease 'low' at 10 is refused: another cleaner"):
            back(directory, "low", 100 if back is go_on else 10)
    assert go_on(directory, "high", 100).position == go_on(directory, "since", 100).position == 100
    leases.log_found(DEFAULT, directory, 1000, lambda: 50)
    assert removal_log.load(DEFAULT, directory).elsewhere == 1


def test_each_of_64_truncations_is_kept_by_itself(tmp_path):
    """A truncation writes two notes. Readers that passed later cuts are not refused for older, lower cuts."""
    directory = str(tmp_path)
    for cut in range(64):
        for _ in range(2):
            removal_log.note_cut(DEFAULT, directory, 1000 + cut)
    known = removal_log.load(DEFAULT, directory)
    assert [known.cut_since(2 * seen) for seen in range(64)] == [1000 + seen for seen in range(64)]
    assert known.cut_since(known.cut_count) == removal_log.EVERYTHING
    later = removal_log.note_cut(DEFAULT, directory, 7)
    assert (later.cut_count, later.cut_since(127), later.cut_since(129)) == (129, 7, removal_log.EVERYTHING)
