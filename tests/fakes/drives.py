"""Two drives in simulated time: the real scheduler and the real budgets; the work only moves bytes.

Three ways to clean the same partitions with two threads:

    own budgets      lastword: each drive has its budget, a free thread takes work of the idle drive
    one throttle     the same order, and one limit for both drives together, the sum of the two
    Kafka's choice   one limit for both together, and the dirtiest partition next, on either drive
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from lastword.background.scheduler import Done, Scheduler, Stop, Urgency
from lastword.background.states import States
from lastword.cleaner.engine.throttle import DriveBudget
from lastword.logdir import TopicPartition
from lastword.values import Progress
from tests.fakes.simulated import SimulatedClock

MB, MIB = 1_000_000, 1 << 20
WAYS = ("own budgets", "one throttle", "Kafka's choice")
WINDOW_SECONDS = 2.0


@dataclass
class Usage:
    """Bytes used over time, with figures computed from them."""

    events: list[tuple[float, int]] = field(default_factory=list)

    def most_in_a_window(self, seconds: float = WINDOW_SECONDS) -> int:
        """Return the most bytes of any interval of `seconds`, including both its ends."""
        most = total = first = 0
        for at, size in self.events:
            total += size
            while self.events[first][0] < at - seconds:
                total -= self.events[first][1]
                first += 1
            most = max(most, total)
        return most

    def least_in_a_window(self, until: float, seconds: float = WINDOW_SECONDS) -> int:
        """Return the least bytes of any interval; intervals begin every 0.1 s and end before `until`."""
        steps = range(int(max(0.0, until - seconds) * 10))
        return min(
            (sum(n for at, n in self.events if s / 10 <= at < s / 10 + seconds) for s in steps), default=0
        )

    def per_second(self) -> float:
        return sum(size for _, size in self.events) / (self.events[-1][0] - self.events[0][0])


@dataclass(frozen=True)
class Drive:
    name: str
    budget: int  # limit for cleaning, in bytes per second
    disk: int  # throughput of the drive, in bytes per second
    parts: tuple[tuple[float, int], ...]  # dirty ratio and bytes to move, of each partition


SLOW = Drive("slow", 20 * MB, 120 * MB, ((0.6, 50 * MB), (0.55, 40 * MB), (0.52, 30 * MB)))
FAST = Drive("fast", 60 * MB, 400 * MB, ((0.9, 150 * MB), (0.85, 120 * MB), (0.8, 90 * MB)))


@dataclass(frozen=True)
class Outcome:
    """Shares of a drive's budget that its work used.

    used_ratio: until the work was done. least_ratio, peak_ratio: in the two seconds until then that used the
    least and the most. seconds: the time at which the last partition was clean.
    """

    drive: str
    used_ratio: float
    least_ratio: float
    peak_ratio: float
    seconds: float


@dataclass
class _Task:
    work: _Work
    partition: TopicPartition
    drive: str
    urgency: Urgency
    steps: Sequence[Progress] = ()

    def run(self, stop: Stop) -> Done:
        self.work.move(self.partition, stop)
        return Done(*self.partition, self.drive, "expired")  # moved; the scheduler does not check it again


class _Work:
    def __init__(self, clock: SimulatedClock, drives: Collection[Drive], way: str) -> None:
        self.clock, self.way = clock, way
        self.of = {drive.name: drive for drive in drives}
        self.used = {drive.name: Usage() for drive in drives}
        self.left = {
            TopicPartition(drive.name, number): part
            for drive in drives
            for number, part in enumerate(drive.parts)
        }
        common = DriveBudget(sum(drive.budget for drive in drives), clock)
        own = way == "own budgets"
        self.budgets = {d.name: DriveBudget(d.budget, clock, d.name) if own else common for d in drives}

    def drives(self) -> list[str]:
        return ["all"] if self.way == "Kafka's choice" else list(self.of)

    def next(self, drive: str, held: Collection[TopicPartition]) -> _Task | None:
        candidates = [
            (-dirty, tp)
            for tp, (dirty, _) in self.left.items()
            if tp not in held and drive in (tp.topic, "all")
        ]
        return _Task(self, min(candidates)[1], drive, Urgency(2, min(candidates)[0])) if candidates else None

    def move(self, tp: TopicPartition, stop: Stop) -> None:
        drive, budget, usage = self.of[tp.topic], self.budgets[tp.topic], self.used[tp.topic]
        _, left = self.left[tp]
        while left > 0:
            chunk = min(left, MIB)
            left -= chunk
            while chunk:
                piece = min(chunk, budget.piece_bytes)
                budget.take(piece, stop)
                usage.events.append((self.clock.monotonic(), piece))
                self.clock.sleep(piece / drive.disk)
                chunk -= piece
            self.clock.sleep(0.002)  # time to process the bytes read
        del self.left[tp]

    def overtakes(self, task: object, held: Collection[TopicPartition]) -> bool:
        return False

    def chores(self, held: Collection[TopicPartition]) -> Iterator[Done]:
        return iter(())


def simulate(way: str, drives: Collection[Drive] = (SLOW, FAST), threads: int = 2) -> list[Outcome]:
    clock = SimulatedClock()
    work = _Work(clock, drives, way)
    scheduler = Scheduler(work, clock=clock, states=States(clock), threads=threads)
    clock.run(*[scheduler.work_on] * threads)
    outcomes = []
    for drive in drives:
        usage = work.used[drive.name]
        seconds = usage.events[-1][0]
        moved = sum(size for _, size in usage.events)
        window = drive.budget * WINDOW_SECONDS
        least, peak = usage.least_in_a_window(seconds) / window, usage.most_in_a_window() / window
        outcomes.append(Outcome(drive.name, moved / seconds / drive.budget, least, peak, seconds))
    return outcomes
