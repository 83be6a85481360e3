"""The budget of a drive: used while there is work, exceeded only briefly, with pieces of any size."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastword.cleaner.engine.cleaning import CleanContext
from lastword.cleaner.engine.throttle import CREDIT_SECONDS, DriveBudget, Drives, PacedHandle, Stopped
from lastword.clock import ManualClock
from lastword.errors import UsageError
from lastword.segment.segment import Segment
from lastword.segment.stored import SegmentFiles
from lastword.testing.unsynced import UNSYNCED, UnsyncedFiles
from tests.cleaner.support import batch, write_segment
from tests.fakes.drives import MB, MIB, WINDOW_SECONDS, Usage, simulate
from tests.fakes.recording import RecordingFiles, RecordingHandle
from tests.fakes.simulated import SimulatedClock


def round_of(
    clock: SimulatedClock | ManualClock,
    budget: DriveBudget,
    usage: Usage,
    *,
    seconds: float,
    chunk_bytes: int = MIB,
    disk: float = 400 * MB,
    think_seconds: float = 0.0,
) -> None:
    """Use the budget as a cleaning does: read each chunk in pieces at the speed `disk`, then compute."""
    while clock.monotonic() < seconds:
        left = chunk_bytes
        while left:
            size = min(left, budget.piece_bytes)
            budget.take(size)
            usage.events.append((clock.monotonic(), size))
            clock.sleep(size / disk)
            left -= size
        clock.sleep(think_seconds)


@settings(max_examples=12, deadline=None)
@given(
    rate=st.integers(MIB, 100 * MB),
    chunk_bytes=st.integers(1, 4 * MIB),
    think_ms=st.integers(0, 30),
    idle_seconds=st.floats(0, 3),
)
def test_no_window_holds_more_than_the_budget(
    rate: int, chunk_bytes: int, think_ms: int, idle_seconds: float
) -> None:
    """Rates from 1 MiB/s, chunks of any size, also after a time without any use."""
    clock = ManualClock()
    budget, usage = DriveBudget(rate, clock), Usage()
    size = max(chunk_bytes, 1 << 14)
    for _ in range(2):
        round_of(
            clock,
            budget,
            usage,
            seconds=clock.monotonic() + 2.5,
            chunk_bytes=size,
            disk=2000 * MB,
            think_seconds=think_ms / 1000 if size / rate > 0.05 else 0.0,
        )
        clock.sleep(idle_seconds)
    assert usage.most_in_a_window() <= 1.05 * rate * WINDOW_SECONDS


@pytest.mark.parametrize("rate", [MIB, 20 * MB, 500 * MB])
def test_while_there_is_work_the_budget_is_used(rate: int) -> None:
    clock = ManualClock()
    budget, usage = DriveBudget(rate, clock), Usage()
    round_of(clock, budget, usage, seconds=5, disk=4 * rate, think_seconds=min(0.02, 0.5 * MIB / rate))
    assert usage.per_second() >= 0.9 * rate


def test_another_rate_holds_at_once_also_for_who_sleeps() -> None:
    clock = SimulatedClock()
    budget, usage = DriveBudget(1000, clock), Usage()

    def work() -> None:
        for _ in range(3):
            budget.take(100_000)
            usage.events.append((clock.monotonic(), 100_000))

    def change() -> None:
        clock.sleep(10)
        budget.set(1_000_000)

    clock.run(work, change)
    times = [at for at, _ in usage.events]
    assert times[0] == 0.0 and 10 <= times[1] <= 10.2 and times[2] <= 10.4
    budget.set(None)
    before = clock.monotonic()
    budget.take(1 << 40)
    assert clock.monotonic() == before and budget.bytes_per_second is None
    budget.set(1000)  # use without a limit is not charged later
    budget.take(1)
    assert clock.monotonic() == before


def test_a_stop_ends_the_sleep_and_takes_nothing() -> None:
    clock = ManualClock()
    budget = DriveBudget(1, clock)
    budget.take(3600)
    with pytest.raises(Stopped):
        budget.take(1, lambda: clock.monotonic() > 2)
    assert clock.monotonic() < 2.1 and budget.used_bytes == 3600
    assert budget.throttled_seconds == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("wrong", [0, -1])
def test_a_budget_of_nothing_is_refused(wrong: int) -> None:
    with pytest.raises(UsageError):
        DriveBudget(wrong, ManualClock())
    budget = DriveBudget(5, ManualClock())
    with pytest.raises(UsageError):
        budget.set(wrong)
    assert budget.bytes_per_second == 5


def test_credit_is_small_beside_the_window() -> None:
    clock = ManualClock()
    budget = DriveBudget(1000, clock)
    clock.sleep(3600)
    for _ in range(int(1000 * CREDIT_SECONDS) + 1):
        budget.take(1)
    assert clock.monotonic() == 3600
    budget.take(1)
    assert clock.monotonic() > 3600


# ---------------------------------------------------------------- drives


class Devices(UnsyncedFiles):
    """A file system in which directories below `drive<n>` are on device n."""

    def device(self, path: object) -> int:
        if not self.exists(str(path)):
            return super().device(str(path))  # raises the error of the system
        return int(next(part[5:] for part in Path(str(path)).parts if part.startswith("drive")))


def test_directories_of_one_device_are_one_drive(tmp_path: Path) -> None:
    paths = [tmp_path / "drive1" / "a", tmp_path / "drive2" / "b", tmp_path / "drive1" / "c"]
    for path in paths:
        path.mkdir(parents=True)
    a, b, c = (str(path) for path in paths)
    own = {str(tmp_path / "drive2"): 7, "/nowhere/at/all": 9}
    drives = Drives([a, b, c], Devices(), ManualClock(), limit=5, own=own)
    assert drives.names == [a, b]
    assert drives.drive_of(c) == a and drives.directories(a) == [a, c]
    assert drives.budget(a).bytes_per_second == 5
    assert drives.budget(c) is drives.budget(a)
    assert drives.budget(b).bytes_per_second == 7
    with pytest.raises(UsageError):
        drives.budget("/nowhere/at/all")


# ---------------------------------------------------------------- files that pay


def test_reads_and_writes_pay_in_pieces(tmp_path: Path) -> None:
    clock = ManualClock()
    budget = DriveBudget(MIB, clock)
    with PacedHandle(
        UNSYNCED.open_append(tmp_path / "x", create=True, exclusive=True), budget, None
    ) as handle:
        assert handle.append(b"a" * MIB) == 0
        assert handle.append(b"b" * 10) == MIB
        assert budget.used_bytes == MIB + 10
        assert clock.monotonic() == pytest.approx(1, abs=0.05)
        assert handle.pread(1 << 40, MIB - 1) == b"a" + b"b" * 10
        buffer = bytearray(2 * MIB)
        assert handle.pread_into(buffer, 0) == MIB + 10 and buffer[MIB : MIB + 10] == b"b" * 10
    assert clock.monotonic() == pytest.approx(2, abs=0.1)
    assert (tmp_path / "x").stat().st_size == MIB + 10


def test_segments_read_through_a_budget_are_the_same(tmp_path: Path) -> None:
    segment = write_segment(tmp_path, 5, [batch(5, [(5, b"k", b"v" * 5000)]), batch(6, [(6, b"k", b"w")])])
    budget = DriveBudget(None, ManualClock())
    (paced,) = CleanContext(UNSYNCED, ManualClock(), budget=budget).throttled([segment])
    assert isinstance(paced, Segment) and paced.next_offset == segment.next_offset == 7
    before = budget.used_bytes
    assert sum(chunk.size_bytes for chunk in paced.chunk_reader()) == segment.size
    assert budget.used_bytes - before == segment.size
    assert not isinstance(segment.handle, type(paced.handle))


def test_a_paced_segment_is_opened_by_its_first_read_and_takes_hints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cleaning with a budget opened every segment when it started."""
    files, hints = RecordingFiles(UNSYNCED), []
    for name in ("will_read", "will_read_back", "will_read_pieces", "ends_scan", "may_shrink_to"):
        monkeypatch.setattr(
            RecordingHandle, name, lambda _, *given, name=name: hints.append((name, *given)), raising=False
        )
    for base in (5, 6):
        write_segment(tmp_path, base, [batch(base, [(base, b"k", b"v")])])
    loaded = [Segment.load(SegmentFiles(files, str(tmp_path), base)) for base in (5, 6)]

    def opened() -> int:
        return sum(call.name == "open_read" and call.path.endswith(".log") for call in files.calls)

    context = CleanContext(files, ManualClock(), budget=DriveBudget(None, ManualClock()))
    first, second = context.throttled(loaded)
    assert opened() == 0
    assert first.next_offset == 6 and opened() == 1
    first.handle.will_read(1, 2)
    first.handle.will_read_back()
    first.handle.will_read_pieces()
    first.handle.ends_scan()
    first.ending_at(first.size, active=True)
    calls = ("will_read_back", "will_read_pieces", "ends_scan")
    assert hints == [("will_read", 1, 2), *((name,) for name in calls), ("may_shrink_to", first.size)]
    assert loaded[1].handle and opened() == 2
    (shared,) = context.throttled(loaded[1:])
    assert shared.next_offset == 7 and opened() == 2
    assert second.next_offset == 7 and opened() == 3


def test_taking_from_many_threads_counts_every_byte() -> None:
    clock = SimulatedClock()
    budget = DriveBudget(MIB, clock)
    clock.run(*[lambda: [budget.take(1000) for _ in range(500)] for _ in range(4)])
    assert budget.used_bytes == 2_000_000
    assert clock.monotonic() == pytest.approx(2_000_000 / MIB, rel=0.05)


# ---------------------------------------------------------------- the scheduler over two drives


def test_each_drive_uses_its_own_budget_and_other_ways_do_not() -> None:
    """Budgets of 20 and 60 MB/s, in simulated time. With one throttle for both drives, or in Kafka's order
    with one throttle, one drive is idle and the other is over its budget.
    """
    for drive in simulate("own budgets"):
        assert drive.used_ratio >= 0.9 and drive.least_ratio >= 0.9 and drive.peak_ratio <= 1.05, drive
    slow, fast = simulate("one throttle")
    assert slow.used_ratio > 1.9 and fast.least_ratio < 0.7
    slow, fast = simulate("Kafka's choice")
    assert slow.least_ratio == 0 and slow.peak_ratio > 2.5 and fast.peak_ratio > 1.3
