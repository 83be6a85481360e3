"""Moving a partition between directories: while records are appended, and with every crash of the move."""

from __future__ import annotations

import shutil
import threading
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

import pytest

import lastword
from lastword.api.lease import Lease
from lastword.api.open_dirs import OpenDirs
from lastword.clock import ManualClock
from lastword.errors import (
    BusyError,
    DiskFullError,
    DuplicatePartitionError,
    LastwordError,
    StorageError,
    UnknownTopicError,
    UsageError,
)
from lastword.files import Files
from lastword.logdir import LogDirectory, TopicPartition, log_dir_set
from lastword.logdir.identity import MoveNote, directory_name, write_move_note
from lastword.logdir.log_dir_set import LogDirSet, move
from lastword.partition import leases
from lastword.segment import names
from lastword.testing.unsynced import UNSYNCED
from tests.build import every_stop
from tests.crash.memory import ROOT, MemoryFiles
from tests.fakes import ForgetfulFiles, RecordingFiles
from tests.fakes.failing import FailingFiles
from tests.fakes.forgetful import Image
from tests.fakes.recording import Call
from tests.partition.logs import NOW, append, build_batch, indexes_fit, opened_directory, pair, records
from tests.retention.support import raise_log_start
from tests.support.exhaustive import stride

USERS = TopicPartition("users", 0)


def both(root: Path, files: Files | object = UNSYNCED, mode: str = "a") -> tuple[LogDirectory, LogDirectory]:
    return opened_directory(root / "a", mode, files), opened_directory(root / "b", mode, files)


@cache
def prepared() -> tuple[dict[str, bytes | None], dict[str, int]]:
    """Return the files of two directories, and their times: users-0 in a, topic other in b.

    The partition has 20 records in several segments, log start 7, and is clean up to 12.
    """
    files = MemoryFiles()
    with opened_directory(Path(ROOT, "a"), files=files) as a:
        a.create_topic("users", 1, {"segment.bytes": "700"})
        append(a, *USERS, 20)
        a.sync()
        raise_log_start(a, "users", 0, 7)
        a.set_first_dirty("users", 0, 12)
    with opened_directory(Path(ROOT, "b"), files=files) as b:
        b.create_topic("other")
    return files.tree(), files.mtimes()


def prepare(root: Path) -> None:
    """Write both directories of `prepared`."""
    Image("prepared", 0, *prepared(), []).write(root)


def test_everything_comes_along(tmp_path: Path) -> None:
    prepare(tmp_path)
    a, b = both(tmp_path)
    topic_id = a.topic_id("users")
    times = {p.name: p.stat().st_mtime_ns // 10**6 for p in (tmp_path / "a" / "users-0").glob("*.log")}
    move(a, b, "users", 0)
    assert a.topics() == [] and b.topics() == ["other", "users"]
    log = b.log("users", 0)
    assert (log.log_start, log.log_end) == (7, 20) and b.first_dirty("users", 0) == 12
    assert a.first_dirty("users", 0) is None and b.topic_id("users") == topic_id
    assert records(log) == [pair(n) for n in range(7, 20)]
    assert times == {
        p.name: p.stat().st_mtime_ns // 10**6 for p in (tmp_path / "b" / "users-0").glob("*.log")
    }
    append(b, *USERS, 5)
    a.close()
    b.close()
    for root in "ab":
        assert (tmp_path / root / names.CLEAN_SHUTDOWN).exists()
        assert not [p for p in (tmp_path / root).iterdir() if p.name.endswith(("-delete", "-future"))]
    assert not (tmp_path / "b" / "users-0" / names.PRIVATE / names.MOVED_FROM).exists()
    with opened_directory(tmp_path / "b") as b:
        assert b.recovery.clean and b.log("users", 0).log_end == 25
        assert b.recovery.repaired == ()


def test_refusals(tmp_path: Path, monkeypatch) -> None:
    prepare(tmp_path)
    a, b = both(tmp_path)
    with pytest.raises(UsageError):
        move(a, a, "users", 0)
    monkeypatch.setattr(type(UNSYNCED), "free_bytes", lambda self, path: 10)
    with pytest.raises(DiskFullError):
        move(a, b, "users", 0)
    assert a.holds(*USERS) and not b.holds(*USERS)
    a.close()
    b.close()


def test_who_holds_the_old_log_is_told(tmp_path: Path) -> None:
    prepare(tmp_path)
    a, b = both(tmp_path)
    old = a.log("users", 0)
    move(a, b, "users", 0)
    with pytest.raises(BusyError, match="was moved to") as caught:
        old.append_batch(build_batch(20))
    assert caught.value.retriable
    a.close()
    b.close()


def test_readers_that_follow_go_on_in_the_other_directory(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    with lastword.open(roots, "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact", key_serializer="str", value_serializer="str")
        topic.append("k", "1")
        with lastword.open(roots) as others:
            readers = [log.read(follow=True, timeout=1) for log in (topic, others.topic("t"))]
            assert [next(reader).value for reader in readers] == ["1", "1"]
            logs.move("t", 0, next(root for root in roots if not (root / "t-0").is_dir()))
            topic.append("k", "2")
            assert [[record.value for record in reader] for reader in readers] == [["2"], ["2"]]


def test_while_it_is_appended_to(tmp_path: Path) -> None:
    prepare(tmp_path)
    directories = both(tmp_path)
    done = threading.Event()
    acknowledged: list[int] = []
    failed: list[BaseException] = []

    def write() -> None:
        try:
            while not done.is_set():
                for home in directories:
                    try:
                        if home.holds(*USERS):
                            log = home.log("users", 0)
                            with log.lock:
                                acknowledged.append(log.append_batch(build_batch(log.log_end)).base_offset)
                            break
                    except (BusyError, UsageError):
                        continue
        except BaseException as error:
            failed.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for turn in range(6):
            move(directories[turn % 2], directories[1 - turn % 2], "users", 0)
    finally:
        done.set()
        writer.join()
    assert failed == []
    assert acknowledged == list(range(20, 20 + len(acknowledged)))
    log = directories[0].log("users", 0)
    assert records(log) == [pair(n) for n in range(7, log.log_end)]
    for directory in directories:
        directory.close()


def check(root: Path, marks: list[str]) -> None:
    """Check place, records, log start and checkpoints after a crash; opening again changes nothing."""
    a, b = both(root)
    spread = LogDirSet([a, b], {})
    home = spread.log_dirs_by_topic()["users"][0]
    log = home.log("users", 0)
    assert log.log_start == 7 and log.log_end >= 20
    assert records(log) == [pair(n) for n in range(7, log.log_end)]
    assert indexes_fit(log)
    first_dirty = home.first_dirty("users", 0)
    assert first_dirty in (12, None)  # without it, the next round cleans again
    assert ("moved" not in marks) or home is b
    append(home, *USERS, 1)
    for directory in (a, b):
        directory.close()
        left = [p.name for p in Path(directory.path).iterdir() if p.name.endswith(("-delete", "-future"))]
        assert left == []
    assert a.holds(*USERS) != b.holds(*USERS)


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(1), marks=pytest.mark.quick),
        pytest.param(range(6)[:: stride(3)], marks=pytest.mark.slow),
    ],
)
def test_kills_and_power_cuts(tmp_path: Path, seeds: range) -> None:
    root = tmp_path / "root"
    root.mkdir()
    prepare(root)
    files = ForgetfulFiles(root)
    a, b = both(root, files)
    move(a, b, "users", 0)
    files.mark("moved")
    a.close()
    b.close()
    images = list(files.images(seeds=seeds))
    assert len(images) > 100
    every = 60 if len(seeds) == 1 else stride(12)
    kills = files.kills(range(0, len(files.journal) + 1, every))
    for image in [*images[::every], *kills]:
        image.write(tmp_path / "image")
        check(tmp_path / "image", image.marks)


@pytest.mark.slow
def test_every_failing_call(tmp_path: Path) -> None:
    """A full drive, at any call: a typed error, and the partition is in one place with all its records."""
    root = tmp_path / "run"

    def failing_at(number: int) -> bool:
        prepare(root)
        files = FailingFiles(UNSYNCED, "ENOSPC", number)
        a, b = both(root, files)
        a.log("users", 0)
        files.arm()
        try:
            move(a, b, "users", 0)
            moved = True
        except DiskFullError:
            moved = False
        files.disarm()
        home = LogDirSet([a, b], {}).log_dirs_by_topic()["users"][0]
        assert records(home.log("users", 0)) == [pair(n) for n in range(7, 20)] or not moved
        for directory in (a, b):
            try:
                directory.close()
            except LastwordError:
                directory.abandon()
        check(root, ["moved"] if moved else [])
        return not files.hit

    assert every_stop(failing_at, stride(2)) > 20


@pytest.mark.parametrize("where", ["the target is synced", "the source is renamed"])
def test_nothing_is_appended_to_the_source_after_the_target_has_the_name(tmp_path: Path, where: str) -> None:
    """Else both directories have records of their own, and the partition is refused for ever."""
    prepare(tmp_path)
    files = RecordingFiles(UNSYNCED)
    a, b = both(tmp_path, files)
    old = a.log("users", 0)

    def fail(call: Call) -> LastwordError | None:
        if where == "the target is synced":
            fails = call.name == "fsync_dir" and call.path == str(tmp_path / "b") and b.holds(*USERS)
        else:
            fails = call.name == "rename" and call.path == str(tmp_path / "a" / "users-0")
        return StorageError("planted") if fails else None

    files.fail = fail
    with pytest.raises(StorageError, match="planted"):
        move(a, b, "users", 0)
    files.fail = None
    for log in (lambda: old, lambda: a.log("users", 0)):
        with pytest.raises(LastwordError) as refusal:
            log().append_batch(build_batch(20))
        assert refusal.value.remedy
    for directory in (a, b):
        directory.close()
    a, b = both(tmp_path)
    home = LogDirSet([a, b], {}).log_dir(*USERS)
    assert home is b and not a.holds(*USERS)
    assert records(home.log("users", 0)) == [pair(n) for n in range(7, 20)]
    a.close()
    b.close()


def test_a_source_that_grew_alone_is_not_thrown_away(tmp_path: Path) -> None:
    prepare(tmp_path)
    a, b = both(tmp_path)
    a.log("users", 0)
    move(a, b, "users", 0)
    a.close()
    b.close()
    # The state after a kill between the two renames, when a was then opened alone.
    private = tmp_path / "b" / "users-0" / names.PRIVATE
    shutil.copytree(tmp_path / "b" / "users-0", tmp_path / "a" / "users-0")
    note = MoveNote(directory_name(UNSYNCED, str(tmp_path / "a")), 20)
    write_move_note(UNSYNCED, str(private.parent), note)
    with opened_directory(tmp_path / "a") as alone:
        append(alone, *USERS, 1)
    for mode in "ra":
        directories = both(tmp_path, mode=mode)
        log_dir = LogDirSet(directories, {}).log_dir("users", 0)
        assert log_dir is not None
        with pytest.raises(DuplicatePartitionError):
            log_dir.log("users", 0)
        for directory in directories:
            directory.close()
    assert (tmp_path / "a" / "users-0").exists() and (tmp_path / "b" / "users-0").exists()


def test_no_marker_speaks_of_a_partition_that_came_and_was_not_opened(tmp_path: Path) -> None:
    """Its move failed after the last rename: it was not recovered, so no clean stop may be noted for it."""
    prepare(tmp_path)
    with opened_directory(tmp_path / "b") as b:
        assert b.recovery.clean
        b.attach(USERS, 20, 7, 12)
        (tmp_path / "a" / "users-0").rename(tmp_path / "b" / "users-0")
    assert not (tmp_path / "b" / names.CLEAN_SHUTDOWN).exists()
    with opened_directory(tmp_path / "b") as b:
        assert (b.log("users", 0).log_start, b.log("users", 0).log_end) == (7, 20)


def test_two_moves_in_opposite_directions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both stop at the same time where each has locked its log, and needs the other's directory."""
    a, b = both(tmp_path)
    a.create_topic("users")
    b.create_topic("other")
    together, real = threading.Barrier(2), log_dir_set._copy_private

    def wait(*given: object) -> None:
        with suppress(threading.BrokenBarrierError):
            together.wait(timeout=0.5)
        real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(log_dir_set, "_copy_private", wait)
    moves = [
        threading.Thread(target=move, args=(a, b, "users", 0), daemon=True),
        threading.Thread(target=move, args=(b, a, "other", 0), daemon=True),
    ]
    for thread in moves:
        thread.start()
    for thread in moves:
        thread.join(timeout=30)
    assert not any(thread.is_alive() for thread in moves)
    assert (a.topics(), b.topics()) == (["other"], ["users"])
    a.close()
    b.close()


LEFT = [("held", 12), ("new", 15)]
"""The leases after `leases_after`."""


def leases_after(root: Path, at: int, disk: Files, *, inside: str) -> list[tuple[str, int]] | None:
    """Move users-0, write two leases and release one; return the leases then.

    At call `at` of one of the two, the other does all of its work. None: it has no such call.

    Args:
        root: What `prepare` has made.
        at: The number of the call.
        disk: The storage of both.
        inside: "move": readers write during the move; "lease": the partition moves while they write.
    """
    files, numbers = RecordingFiles(disk), iter(range(100_000))
    roots = [root / "a", root / "b"]
    is_move = inside == "move"
    a, b = both(root, files if is_move else disk)
    opened = partial(lastword.open, roots, files=disk if is_move else files, clock=ManualClock(NOW))
    with opened() as reader:
        held, ended = (reader.topic("users").lease(name, position=8) for name in ("held", "ended"))

        def write() -> None:
            ended.release()
            held.advance(12)
            with opened() as another:  # it finds the partition where it is now
                another.topic("users").lease("new", position=15)
            if isinstance(disk, ForgetfulFiles):
                disk.mark("written")

        def do_other(call: Call) -> None:
            if next(numbers) == at:
                (write if is_move else partial(move, a, b, "users", 0))()

        files.fail = do_other
        (partial(move, a, b, "users", 0) if is_move else write)()
        files.fail = None
        left = [(lease.name, lease.position) for lease in reader.topic("users").leases()]
    a.close()
    b.close()
    return left if next(numbers) > at else None


@pytest.mark.parametrize("inside", ["move", "lease"])
def test_no_lease_is_lost_that_is_written_while_its_partition_moves(tmp_path: Path, inside: str) -> None:
    def at(number: int) -> bool:
        root = tmp_path / str(number)
        prepare(root)
        left = leases_after(root, number, UNSYNCED, inside=inside)
        assert left in (None, LEFT)
        shutil.rmtree(root)
        return left is None

    assert every_stop(at, stride(5)) > 40


def lost_leases(root: Path, at: int, *, inside: str, every: int) -> list[str] | None:
    """Return the crashes after which another lease is there than the readers were told. None: as above.

    Args:
        root: What `prepare` has made.
        at: The number of the call, as in `leases_after`.
        inside: As there.
        every: Take every n-th moment.
    """
    files = ForgetfulFiles(root, UNSYNCED)
    if leases_after(root, at, files, inside=inside) is None:
        return None
    written = next(
        n for n, entry in enumerate(files.journal, 1) if (entry.kind, entry.path) == ("mark", "written")
    )
    lost = []
    for image in files.images(range(written + at % every, len(files.journal) + 1, every)):
        left = MemoryFiles(image.tree, image.mtimes)
        with lastword.open([f"{ROOT}/a", f"{ROOT}/b"], "a", files=left, clock=ManualClock(NOW)) as logs:
            if [(lease.name, lease.position) for lease in logs.topic("users").leases()] != LEFT:
                lost.append(image.label)
    return lost


def outcome_beside_the_end(root: Path, at: int, change: str) -> str | None:
    """Change a lease while a move ends between two calls of the reader; return its position, or the error.

    Args:
        root: What `prepare` has made.
        at: The number of the reader's call; those before follow the copy of the leases. None: there is none.
        change: "advance" to 12, "release", or "release again" a lease that is only in the target.
    """
    path = str(root / "a" / "users-0")
    leases.place(UNSYNCED, path, "held", 8, max_age_ms=1000, now_ms=NOW)
    files, calls = RecordingFiles(UNSYNCED), iter(range(100))
    a, b = both(root)
    reached, gone = threading.Event(), threading.Event()

    def stop(_: Call) -> None:
        if next(calls) == at:
            reached.set()
            gone.wait(30)

    def write() -> None:
        if change == "advance":
            leases.advance(files, path, "held", 12, now_ms=NOW, log_start=7, log_end=20)
        else:
            leases.release(files, path, "held")

    def discard(directory: LogDirectory, tp: TopicPartition) -> None:
        if change == "release again":
            Path(path, names.PRIVATE, names.LEASE + "held").unlink()
        thread.start()
        reached.wait(30)
        real(directory, tp)
        gone.set()

    raised: list[str] = []

    def work() -> None:
        files.fail = stop
        try:
            write()
        except LastwordError as error:
            raised.append(type(error).__name__)
        reached.set()

    thread, real = threading.Thread(target=work), LogDirectory.discard
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogDirectory, "discard", discard)
        move(a, b, "users", 0)
    thread.join()
    left = leases.read(UNSYNCED, b.directory(*USERS), "held")
    a.close()
    b.close()
    if next(calls) <= at:
        return None
    return raised[0] if raised else f"taken, {left and left.position}"


@pytest.mark.parametrize(
    ("change", "taken"),
    [
        pytest.param("advance", "taken, 12", marks=pytest.mark.slow),
        ("release", "taken, None"),
        ("release again", ""),
    ],
)
def test_a_lease_that_is_written_at_the_end_of_a_move_is_refused(
    tmp_path: Path, change: str, taken: str
) -> None:
    """The mark that refuses it goes with the directory, so a reader that looked late took its lease."""
    refused = {"BusyError", "FileVanishedError", "LeaseRefusedError"}

    def at(number: int) -> bool:
        root = tmp_path / str(number)
        prepare(root)
        outcome = outcome_beside_the_end(root, number, change)
        assert outcome in {None, taken, *refused}, number
        return outcome is None

    assert every_stop(at) > 1


@pytest.mark.slow
@pytest.mark.parametrize("inside", ["move", "lease"])
def test_no_crash_of_a_move_loses_a_lease(tmp_path: Path, inside: str) -> None:
    root = tmp_path / "root"

    def at(number: int) -> bool:
        prepare(root)
        lost = lost_leases(root, number, inside=inside, every=stride(40))
        assert not lost, number
        return lost is None

    assert every_stop(at, stride(25)) > 40


def test_planted_leases_that_are_copied_once_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_dir_set, "_take_leases", lambda *_: None)
    found = []
    for at in range(200, 330, 5):
        prepare(tmp_path / str(at))
        found.append(leases_after(tmp_path / str(at), at, UNSYNCED, inside="move"))
    assert any(left not in (None, LEFT) for left in found)


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "at"), [("no sync of the target", 288), ("no look for the mark", 306)])
def test_planted_leases_of_a_careless_reader_are_lost_in_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, at: int
) -> None:
    if fault == "no sync of the target":
        monkeypatch.setattr(OpenDirs, "write_lease", OpenDirs.at)
    else:
        monkeypatch.setattr(leases, "_check_open", lambda *_: None)
    prepare(tmp_path / "root")
    assert lost_leases(tmp_path / "root", at, inside="move", every=4)


def late_lease(root: Path, at: int, files: Files, disk: ForgetfulFiles | None = None) -> bool | None:
    """Move users-0; at call `at` a reader that has opened the source alone takes a lease.

    It cannot look in the other directory.

    Returns:
        Whether the lease was taken. None: the move has no such call.
    """
    numbers, taken = iter(range(100_000)), False

    def write(call: Call) -> None:
        nonlocal taken
        if next(numbers) == at:
            with suppress(BusyError, UnknownTopicError):
                with lastword.open(root / "a", files=files, clock=ManualClock(NOW)) as reader:
                    reader.topic("users").lease("late", position=15)
                taken = True
            if disk is not None and taken:
                disk.mark("written")

    recording = RecordingFiles(files)
    a, b = both(root, recording)
    recording.fail = write
    move(a, b, "users", 0)
    recording.fail = None
    a.close()
    b.close()
    return taken if next(numbers) > at else None


def positions(root: str | Path, files: Files = UNSYNCED) -> list[tuple[str, int]]:
    with lastword.open([f"{root}/a", f"{root}/b"], "a", files=files, clock=ManualClock(NOW)) as logs:
        return [(lease.name, lease.position) for lease in logs.topic("users").leases()]


@pytest.mark.slow
def test_no_lease_is_lost_of_a_reader_that_has_opened_the_source_alone(tmp_path: Path) -> None:
    outcomes = []

    def at(number: int) -> bool:
        root = tmp_path / str(number)
        prepare(root)
        taken = late_lease(root, number, UNSYNCED)
        assert not taken or positions(root) == [("late", 15)]
        shutil.rmtree(root)
        outcomes.append(taken)
        return taken is None

    every_stop(at, stride(7))
    known = outcomes[:-1]
    assert known == sorted(known, reverse=True) and {True, False} == set(known)  # once refused, it stays so


def lost_late_leases(root: Path, at: int, every: int) -> list[str] | None:
    """Return the crashes after which a lease is gone that a reader of the source alone had taken.

    None: the move has no call `at`.
    """
    disk, lost = ForgetfulFiles(root, UNSYNCED), []
    taken = late_lease(root, at, disk, disk)
    if not taken:
        return None if taken is None else []
    journal = list(enumerate(disk.journal, 1))
    written = next(n for n, entry in journal if (entry.kind, entry.path) == ("mark", "written"))
    for image in disk.images(range(written, len(journal) + 1, every)):
        if positions(ROOT, MemoryFiles(image.tree, image.mtimes)) != [("late", 15)]:
            lost.append(image.label)
    return lost


@pytest.mark.slow
def test_no_crash_of_a_move_loses_a_lease_of_a_reader_of_the_source_alone(tmp_path: Path) -> None:
    root = tmp_path / "root"

    def at(number: int) -> bool:
        prepare(root)
        lost = lost_late_leases(root, number, stride(20))
        assert not lost, (number, lost)
        return lost is None

    assert every_stop(at, stride(43)) > 250


@pytest.mark.slow
def test_planted_a_source_that_takes_leases_until_its_name_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "close", lambda *_: None)
    prepare(tmp_path / "root")
    assert lost_late_leases(tmp_path / "root", 258, 20)


def test_a_lease_that_is_not_copied_yet_is_not_reported_as_released(tmp_path: Path) -> None:
    """After a crash between the two renames, and before an opening to append finishes the move."""
    root, image_path = tmp_path / "root", tmp_path / "image"
    roots = [image_path / "a", image_path / "b"]
    prepare(root)
    disk = ForgetfulFiles(root, UNSYNCED)
    with lastword.open(root / "a", files=disk, clock=ManualClock(NOW)) as reader:

        def write(call: Call) -> None:
            if call.name == "rename" and call.path.endswith("-future"):
                reader.topic("users").lease("late", position=15)

        a, b = both(root, RecordingFiles(disk, fail=write))
        move(a, b, "users", 0)
        a.close()
        b.close()
    for image in disk.kills(range(len(disk.journal) + 1)):
        image.write(image_path)
        if (roots[0] / "users-0" / names.PRIVATE / names.MOVING).exists():
            break
    assert not (roots[1] / "users-0" / names.PRIVATE / f"{names.LEASE}late").exists()
    with lastword.open(roots, clock=ManualClock(NOW)) as readers:
        lease = Lease(readers.dirs, "users", "late")
        with pytest.raises(BusyError, match="has not come to its end"):
            lease.advance(17)
        with lastword.open(roots, "a", files=UNSYNCED, log_cleaner_enable=False):
            pass
        lease.advance(17)
    assert positions(tmp_path / "image") == [("late", 17)]


def test_the_mark_of_a_move_that_was_not_made_is_removed(tmp_path: Path) -> None:
    prepare(tmp_path)
    leases.close(UNSYNCED, str(tmp_path / "a" / "users-0"))
    with lastword.open(tmp_path / "a", clock=ManualClock(NOW)) as reader:
        with pytest.raises(BusyError, match="is moving to another directory"):
            reader.topic("users").lease("late", position=15)
        with opened_directory(tmp_path / "a") as a:
            a.log(*USERS)
        assert reader.topic("users").lease("late", position=15).position == 15


def test_a_kill_keeps_a_lease_that_was_written_after_the_copy(tmp_path: Path) -> None:
    root, image_path = tmp_path / "root", tmp_path / "image"
    prepare(root)
    files = ForgetfulFiles(root, UNSYNCED)

    def write(call: Call) -> None:
        if call.name == "rename" and call.path.endswith("-future"):
            reader.topic("users").lease("held", position=15)
            files.mark("written")

    a, b = both(root, RecordingFiles(files, fail=write))
    with lastword.open([root / "a", root / "b"], files=files, clock=ManualClock(NOW)) as reader:
        move(a, b, "users", 0)
    kills = [image for image in files.kills(range(len(files.journal) + 1)) if "written" in image.marks]
    assert len(kills) > 10
    for image in kills:
        image.write(image_path)
        with lastword.open([image_path / "a", image_path / "b"], "a", files=UNSYNCED) as logs:
            assert [lease.position for lease in logs.topic("users").leases()] == [15], image.label
    a.close()
    b.close()


def test_directories_are_listed_while_a_partition_moves(tmp_path: Path) -> None:
    """The listing of the source may be older than the move, and that of the target newer."""

    def at(number: int) -> bool:
        root, numbers = tmp_path / str(number), iter(range(100_000))
        prepare(root)
        a, b = both(root)
        files = RecordingFiles(UNSYNCED)
        with lastword.open([root / "a", root / "b"], files=files, clock=ManualClock(NOW)) as reader:

            def do_move(call: Call) -> None:
                if next(numbers) == number:
                    move(a, b, "users", 0)

            (root / "b" / "other-1").mkdir()  # so that both are listed again
            files.fail = do_move
            home = reader.dirs.dir_set.log_dirs_by_topic()["users"][0]
            again = reader.dirs.dir_set.log_dirs("users")[0]
            files.fail = None
            assert isinstance(home, LogDirectory) and isinstance(again, LogDirectory)
        a.close()
        b.close()
        return next(numbers) <= number

    assert every_stop(at) > 3
