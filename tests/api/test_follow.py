"""`read(follow=True)`: existing records, then new ones, beside appends, rolls, trims and cleanings."""

from __future__ import annotations

import itertools
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.clock import ManualClock
from lastword.errors import OffsetOutOfRangeError, UsageError
from lastword.partition import PartitionLog
from lastword.partition.directory_segments import DirectorySegments
from lastword.partition.producer_state import PRODUCER_EXPIRATION_MS
from lastword.partition.snapshots import Snapshots, producer_batches_between, replay
from lastword.partition.view import CurrentView, Stability
from lastword.records.batch import BatchBuilder
from tests.api.conftest import Busy
from tests.fakes.hasty import HastyFiles
from tests.fakes.recording import RecordingFiles
from tests.support.threads import together
from tests.transactions import begin_transaction, end_transaction

NOW = 1_700_000_000_000


@pytest.fixture
def clock() -> Busy:
    return Busy(NOW)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[lastword.LogDir]:
    """The writer's directory, connected with `reader` only by files, as in another process."""
    files = HastyFiles()
    clock = ManualClock(NOW)
    with lastword.open(tmp_path / "d", "a", clock=clock, files=files, log_cleaner_enable=False) as logs:
        logs.create_topic("a", partitions=2, segment_bytes=300, cleanup_policy="compact")
        yield logs


@pytest.fixture(params=["r", "a"])
def reader(request: pytest.FixtureRequest, writer: lastword.LogDir, clock: Busy) -> Iterator[lastword.LogDir]:
    """The directory opened without a lock, and as the process that writes it."""
    if request.param == "a":
        writer.dirs.clock = clock
        yield writer
    else:
        with lastword.open(writer.paths[0], clock=clock) as logs:
            yield logs


def put(logs: lastword.LogDir, *values: int, partition: int = 0) -> Callable[[], object]:
    topic = logs.topic("a")
    rows = [(b"k%d" % value, b"%d" % value) for value in values]
    return lambda: topic.extend(rows, partition=partition)


def seen(reader: object) -> list[tuple[int, bytes]]:
    return [(record.partition, record.value) for record in reader]  # type: ignore[attr-defined]


def test_records_as_they_come_from_any_partition(reader, writer, clock):
    put(writer, 1, 2)()
    clock.todo = [put(writer, 3, partition=1), put(writer, 4), put(writer, 5, 6, partition=1)]
    records = reader.topic("a").read(follow=True, timeout=1)
    assert seen(records) == [(0, b"1"), (0, b"2"), (1, b"3"), (0, b"4"), (1, b"5"), (1, b"6")]
    assert records.position == {0: 3, 1: 3}
    assert not clock.todo


def test_it_ends_after_so_much_silence(reader, writer, clock):
    put(writer, 1)()
    before = clock.monotonic()
    clock.todo = [lambda: clock.advance(900), put(writer, 2)]
    assert len(seen(reader.topic("a").read(follow=True, timeout=1))) == 2
    assert clock.monotonic() - before == pytest.approx(0.9 + 1 + 0.015, abs=0.01)
    assert max(clock.sleeps) <= 0.1


def test_a_quiet_log_is_polled_every_3_ms(reader, clock):
    assert seen(reader.topic("a").read(follow=True, timeout=1)) == []
    assert clock.sleeps[:-1] == [0.003] * (len(clock.sleeps) - 1) and len(clock.sleeps) >= 333


def test_polls_that_take_long_are_rarer(reader, clock, monkeypatch):
    """The pause is 50 times the poll's time, at most 0.1 s; one slow poll causes no long pause."""
    costs_ms = [0] * 20
    real = CurrentView.get

    def get(view):
        clock.advance(costs_ms.pop(0) if costs_ms else 0)
        return real(view)

    monkeypatch.setattr(CurrentView, "get", get)
    for cost_ms, pause in ((1, 0.05), (9, 0.1)):
        costs_ms[:] = [cost_ms] * 100
        clock.sleeps.clear()
        reading = reader.topic("a").read(follow=True, timeout=2, partition=0)
        assert seen(reading) == []
        assert clock.sleeps[:10] == pytest.approx([pause] * 10)
    costs_ms[:] = [1, 1, 80, 1, 1] + [1] * 100
    clock.sleeps.clear()
    assert seen(reader.topic("a").read(follow=True, timeout=1, partition=0)) == []
    assert clock.sleeps[:5] == pytest.approx([0.05] * 5)


def test_no_time_to_wait_takes_what_is_there(reader, writer, clock):
    put(writer, 1, 2)()
    assert len(seen(reader.topic("a").read(follow=True, timeout=0))) == 2
    assert clock.sleeps == []


def test_it_goes_on_after_a_silence_and_after_a_take(reader, writer, clock):
    records = reader.topic("a").read(follow=True, timeout=1)
    for number in range(3):
        put(writer, number)()
        assert seen(records) == [(0, b"%d" % number)]
    put(writer, 3)()
    assert [record.value for record in records.take(9)] == [b"3"]
    put(writer, 4)()
    assert [record.value for record in records.take(9)] == [b"4"]
    clock.todo = [put(writer, 5)]
    assert seen(records) == [(0, b"5")], "it waits again"
    records.close()
    put(writer, 6)()
    assert seen(records) == [] and records.take(9) == []


def test_from_the_end_on(reader, writer, clock):
    put(writer, 1, 2)()
    clock.todo = [put(writer, 3)]
    records = reader.topic("a").read("latest", follow=True, timeout=1, partition=0)
    assert seen(records) == [(0, b"3")]
    assert records.position == {0: 3}


def test_keys_are_looked_for(reader, writer, clock):
    clock.todo = [put(writer, 1, 2, 3), put(writer, 4), put(writer, 2)]
    records = reader.topic("a").read(follow=True, timeout=1, keys=[b"k2"])
    assert seen(records) == [(0, b"2"), (0, b"2")]
    assert records.position == {0: 5, 1: 0}


def test_records_that_went_unread_are_an_error(reader, writer, clock):
    put(writer, 1)()
    clock.todo = [lambda: (put(writer, *range(20))(), writer.topic("a").trim(15, partition=0))]
    records = reader.topic("a").read(follow=True, timeout=1)
    assert next(records).value == b"1"
    with pytest.raises(OffsetOutOfRangeError, match="log start"):
        list(records)
    assert records.position[0] == 1


def test_an_open_transaction_holds_it_up(reader, writer, clock):
    log = writer.dirs.log("a", 0)
    clock.todo = [
        lambda: begin_transaction(log, 1, (b"k", b"10")),
        put(writer, 2),
        lambda: begin_transaction(log, 2, (b"k", b"20")),
        lambda: end_transaction(log, 2, 0, commit=False),
        put(writer, 3),
        lambda: end_transaction(log, 1, 0, commit=True),
        put(writer, 4),
    ]
    records = reader.topic("a").read(follow=True, timeout=1, partition=0)
    assert [value for _, value in seen(records)] == [b"10", b"2", b"3", b"4"]
    assert records.position == {0: log.log_end}
    clock.todo = []
    every = reader.topic("a").read(follow=True, timeout=0, partition=0, isolation="read_uncommitted")
    assert [value for _, value in seen(every)] == [b"10", b"2", b"20", b"3", b"4"]


def test_ctrl_c_leaves_the_position(reader, writer, clock):
    def press() -> None:
        raise KeyboardInterrupt

    put(writer, 1, 2)()
    clock.todo = [put(writer, 3), press]
    records = reader.topic("a").read(follow=True, partition=0)
    got = []
    with pytest.raises(KeyboardInterrupt):
        for record in records:
            got.append(record.offset)
    assert got == [0, 1, 2]
    assert records.position == {0: 3}


def test_as_arrow(reader, writer, clock):
    put(writer, 1, 2)()
    clock.todo = [put(writer, 3, partition=1)]
    table = reader.topic("a").read(follow=True, timeout=1).arrow().read_all()
    assert table["value"].to_pylist() == [b"1", b"2", b"3"]


@pytest.mark.parametrize(
    "asked",
    [
        {"timeout": 1},
        {"follow": True, "end": 5},
        {"follow": True, "view": "newest"},
        {"follow": True, "view": "changes"},
        {"follow": True, "timeout": -1},
        {"follow": True, "timeout": float("nan")},
    ],
)
def test_what_does_not_go_together(reader, asked):
    with pytest.raises(UsageError):
        reader.topic("a").read(**asked)


def test_a_quiet_partition_costs_two_looks(writer, tmp_path):
    put(writer, *range(60))()
    clock, files = Busy(NOW), RecordingFiles(HastyFiles())
    with lastword.open(writer.paths[0], clock=clock, files=files) as logs:
        records = logs.topic("a").read(follow=True, timeout=30, partition=0)
        assert len(seen(records)) == 60
        before = len(files.calls)
        assert seen(logs.topic("a").read(records.position, follow=True, timeout=30, partition=0)) == []
        opening = len(files.calls) - before
        looks = len(clock.sleeps) // 2
        assert opening <= 2 * looks + 200  # of the settings, four times in a second


def test_stability_continues_with_the_result_of_a_new_start(tmp_path):
    """After any growth, the result equals that of a whole replay."""
    from lastword.partition.view import PartitionView
    from tests.partition.logs import make, opened

    rng = random.Random(3)
    directory = make(tmp_path)
    log, _ = opened(directory, files=HastyFiles())
    stability, sequences, open_now = Stability(), {}, set()
    for _ in range(150):
        producer = rng.randrange(4)
        if producer in open_now and rng.random() < 0.4:
            end_transaction(log, producer, 0, commit=rng.random() < 0.5)
            open_now.discard(producer)
        else:
            sequence = sequences.get(producer, 0)
            sequences[producer] = sequence + 1
            begin_transaction(log, producer, (b"k", b"v"), sequence=sequence)
            open_now.add(producer)
        if rng.random() < 0.3:
            view = PartitionView.load(DirectorySegments(HastyFiles(), directory))
            state = replay(Snapshots(log.files, directory), view.segment_set, view.log_end).state
            first = state.open_since()
            assert stability.offset(view) == (view.log_end if first is None else first)
            assert stability.offset(view) == log.stable_offset
    log.close()


def test_a_quiet_log_of_ones_own_is_not_listed_again(writer, clock, monkeypatch):
    put(writer, 1)()
    writer.dirs.clock = clock
    views = []
    look = writer.dirs.view
    monkeypatch.setattr(writer.dirs, "view", lambda *of: views.append(of) or look(*of))
    clock.todo = [lambda: None] * 20 + [put(writer, 2)]
    assert len(seen(writer.topic("a").read(follow=True, timeout=9, partition=0))) == 2
    assert views == [("a", 0)]


def test_a_partition_that_the_topic_gets_meanwhile_is_read_from_its_beginning(writer, clock):
    """A broker adds partitions; a reader of a named partition follows only that partition."""
    put(writer, 1)()

    def grow() -> None:
        shutil.copytree(Path(writer.paths[0]) / "a-0", Path(writer.paths[0]) / "a-2")

    for only, more in ((None, [(2, b"1")]), (0, [])):
        with lastword.open(writer.paths[0], clock=clock) as logs:
            topic = logs.topic("a")
            clock.todo = [grow, lambda: clock.advance(1000)]
            records = topic.read(follow=True, timeout=2, partition=only)
            assert seen(records) == [(0, b"1"), *more]
            assert records.position == ({0: 1, 1: 0, 2: 1} if more else {0: 1})
        shutil.rmtree(Path(writer.paths[0]) / "a-2")


@pytest.mark.parametrize("new", [1, 2, 5])
def test_a_topic_that_was_created_again_is_an_error(reader, writer, clock, new):
    """The new topic is shorter than the position, as long, and longer: its offsets are of another log."""

    def create_again() -> None:
        writer.delete_topic("a")
        writer.create_topic("a", partitions=2)
        put(writer, *range(10, 10 + new))()

    put(writer, 1, 2)()
    clock.todo = [create_again, lambda: put(writer, 20)()]
    records = reader.topic("a").read(follow=True, timeout=10)
    assert [next(records).value, next(records).value] == [b"1", b"2"]
    with pytest.raises(OffsetOutOfRangeError, match="deleted and created again"):
        next(records)
    assert records.position == {0: 2, 1: 0}


@pytest.mark.parametrize("mode", ["a", "r"])
def test_another_thread_closes_a_read_that_waits(tmp_path, mode):
    with lastword.open(tmp_path / "data", "a") as writer:
        writer.create_topic("t").append(b"a", b"1")
        with lastword.open(tmp_path / "data") as looked:
            reader = (writer if mode == "a" else looked).topic("t").read(follow=True)
            got, first = [], threading.Event()

            def read():
                for record in reader:
                    got.append(record.value)
                    first.set()

            together(read, lambda: first.wait(30) and reader.close())
            assert got == [b"1"] and reader.position == {0: 1}
            assert list(reader) == []
            reader.close()  # a second close does nothing


def test_a_block_closes_a_reader(tmp_path):
    with lastword.open(tmp_path / "data", "a") as logs:
        topic = logs.create_topic("t")
        topic.extend([(b"a", b"1"), (b"b", b"2")])
        with topic.read() as reader:
            assert next(reader).value == b"1"
        assert list(reader) == [] and reader.position == {0: 1}
        assert [record.value for record in topic.read(reader.position)] == [b"2"]


def test_a_reader_that_saw_a_transaction_goes_on_when_its_marker_was_removed(tmp_path: Path) -> None:
    clock = ManualClock(1_790_000_000_000)
    with (
        lastword.open(tmp_path, "a", clock=clock, log_cleaner_enable=False) as logs,
        lastword.open(tmp_path, "r", clock=clock) as reader,
    ):
        logs.create_topic("t", cleanup_policy="compact", delete_retention_ms=0, min_cleanable_dirty_ratio=0)
        log = logs.dirs.log("t", 0)
        begin_transaction(log, 7, (b"k", b"v"))
        view = reader.dirs.view("t", 0)
        assert (view.stable_offset, view.log_end) == (0, 1)
        end_transaction(log, 7, 0, True)
        later = BatchBuilder(producer_id=7, producer_epoch=0, base_sequence=1)
        later.append(clock.now_ms(), b"k", b"new")
        log.append_batch(later.build())
        for _ in range(3):
            log.roll()
            logs.clean("t")
            clock.advance(100_000)
            logs["t"].append(b"l", b"v")
        view.refresh()
        assert view.stable_offset == view.log_end == log.stable_offset


def test_a_reader_that_saw_a_transaction_goes_on_when_it_was_cut_off(tmp_path: Path) -> None:
    """The log has grown again without a newer snapshot."""
    with lastword.open(tmp_path, "a") as logs, lastword.open(tmp_path, "r") as reader:
        topic, log = logs.create_topic("t"), logs.dirs.log("t", 0)
        topic.append(b"k", b"v")
        builder = BatchBuilder(producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        builder.append(0, b"k", b"v")
        log.append_batch(builder.build())
        before = reader.dirs.view("t", 0)
        assert before.stable_offset == 1
        logs.dirs.log_dir("t", 0).truncate("t", 0, 1)
        topic.extend([(b"k", b"%d" % n) for n in range(3)])
        reader.dirs.refresh()
        view = reader.dirs.view("t", 0)
        view.continue_from(before)
        assert view.stable_offset == view.log_end == 4


def test_a_replay_of_a_cleaned_part_leaves_no_transaction_open_whose_marker_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshot at offset 10 has an open transaction. Newer ones, without it, are gone, or cut off."""
    clock = ManualClock(1_790_000_000_000)
    cleaned = {
        "cleanup_policy": "compact",
        "delete_retention_ms": 0,
        "min_cleanable_dirty_ratio": 0,
    }

    def append(log: PartitionLog, sequence: int) -> None:
        builder = BatchBuilder(producer_id=7, producer_epoch=0, base_sequence=sequence, transactional=True)
        builder.append(clock.now_ms(), b"k", b"v")
        log.append_batch(builder.build())

    with (
        lastword.open(tmp_path, "a", clock=clock, log_cleaner_enable=False) as logs,
        lastword.open(tmp_path, "r", clock=clock) as reader,
    ):
        logs.create_topic("t", segment_bytes=10_000, **cleaned)
        log, rng = logs.dirs.log("t", 0), random.Random(1)
        logs["t"].extend([(b"a%d" % n, rng.randbytes(1000)) for n in range(8)])
        append(log, 0)
        logs["t"].append(b"last", b"v")
        log.roll()
        end_transaction(log, 7, 0, True)
        logs["t"].extend([(b"k", b"new"), *((b"b%d" % n, rng.randbytes(1000)) for n in range(8))])
        append(log, 1)
        end_transaction(log, 7, 0, True)
        for n in range(3):
            logs["t"].extend([(b"a%d" % n, b"v"), (b"b%d" % n, b"v")])
            log.roll()
            logs.clean("t")
            clock.advance(100_000)
        assert [segment.base_offset for segment in log.segments[:2]] == [0, 10]
        [last] = [header.base_offset for header in log.segments[1].headers(0) if header.transactional][:1]
        store = Snapshots(log.files, log.directory)
        with_gone = [0, 10, last]
        assert not replay(store, log.segment_set, last, snapshot_offsets=with_gone).state.open_transactions()
        with monkeypatch.context() as patch:
            patch.setattr(type(log.files), "replayed_bytes", 12)  # as in a bucket
            log.tail.secure_snapshot(last, is_first=True)
        assert [producer.transaction_start for producer in store.read(last)] == [None]
        store.remove([last])
        for offset, stable in ((last + 1, last), (last, last), (last - 1, last - 1)):
            logs.dirs.log_dir("t", 0).truncate("t", 0, offset)
            reader.dirs.refresh()
            assert log.stable_offset == reader.dirs.view("t", 0).stable_offset == stable
    with lastword.open(tmp_path, "a", clock=clock) as logs:
        assert logs.dirs.log("t", 0).stable_offset == stable


def test_a_transaction_that_was_cleaned_away_stays_decided_after_a_damaged_snapshot_and_a_crash(
    tmp_path: Path,
) -> None:
    """The first opening removes the snapshot; the second one has only that with the open transaction."""
    clock, rng = ManualClock(1_790_000_000_000), random.Random(1)
    builder = BatchBuilder(producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    builder.append(clock.now_ms(), b"k", b"v")
    with lastword.open(tmp_path / "0", "a", clock=clock, log_cleaner_enable=False) as logs:
        logs.create_topic("t", cleanup_policy="compact", delete_retention_ms=0, segment_bytes=10_000)
        log = logs.dirs.log("t", 0)
        logs["t"].extend([(b"a%d" % n, rng.randbytes(1000)) for n in range(8)])
        log.append_batch(builder.build())
        logs["t"].append(b"last", b"v")
        log.roll()
        end_transaction(log, 7, 0, True)
        logs["t"].extend([(b"k", b"new"), *((b"b%d" % n, rng.randbytes(1000)) for n in range(8))])
        clock.advance(PRODUCER_EXPIRATION_MS)
        for n in range(3):
            logs["t"].extend([(b"a%d" % n, b"v"), (b"b%d" % n, b"v")])
            log.roll()
            logs.clean("t")
            clock.advance(100_000)
        end = log.stable_offset
        assert not [h for s in log.segments for h in s.headers(0) if h.producer_id == 7]
        shutil.copytree(tmp_path / "0", tmp_path / "1")
    damaged = tmp_path / "1" / "t-0" / f"{end:020d}.snapshot"
    damaged.write_bytes(b"damaged" + damaged.read_bytes()[7:])
    for number in (1, 2, 3):
        with lastword.open(tmp_path / str(number), "a", clock=clock) as logs:
            assert logs.dirs.log("t", 0).stable_offset == end
            shutil.copytree(tmp_path / str(number), tmp_path / str(number + 1))  # as a crash leaves it


def test_views_of_two_threads_share_what_is_known_of_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older view ends within a transaction, which a newer view in another thread sees decided."""
    clock = ManualClock(1_790_000_000_000)
    with (
        lastword.open(tmp_path, "a", clock=clock) as logs,
        lastword.open(tmp_path, "r", clock=clock) as reader,
    ):
        topic, log = logs.create_topic("t"), logs.dirs.log("t", 0)
        topic.append(b"k", b"v")
        views = [reader.dirs.view("t", 0)]
        assert views[0].stable_offset == 1
        builder = BatchBuilder(producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        builder.append(clock.now_ms(), b"k", b"v")
        log.append_batch(builder.build())
        views.append(reader.dirs.view("t", 0))
        end_transaction(log, 7, 0, True)
        views.append(reader.dirs.view("t", 0))
        for older, newer in itertools.pairwise(views):
            newer.continue_from(older)
        offsets: list[int] = []
        other = threading.Thread(target=lambda: offsets.append(views[2].stable_offset))

        def with_another_thread(*of: Any) -> Any:
            for found in producer_batches_between(*of):
                yield found
                if threading.current_thread() is not other and other.ident is None:
                    other.start()
                    other.join(0.2)  # it may have to wait for this thread

        monkeypatch.setattr("lastword.partition.view.producer_batches_between", with_another_thread)
        assert views[1].stable_offset == 1
        other.join()
        assert offsets == [3]
