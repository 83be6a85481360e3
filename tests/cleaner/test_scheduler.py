"""The order of the cleanings and their threads, with rounds that only count and a clock that stands still."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastword import metrics
from lastword.background.scheduler import Done, Scheduler, Stop, Urgency
from lastword.background.states import IDLE, PartitionState, States
from lastword.cleaner.engine.report import CleanRound, Removed
from lastword.clock import ManualClock, SystemClock
from lastword.errors import BusyError
from lastword.logdir import TopicPartition
from tests.fakes.simulated import SimulatedClock
from tests.support.exhaustive import few
from tests.support.waiting import until

BACKOFF_MS = 15_000
Body = Callable[["FakeTask", Stop], Done | None]


def tp(number: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, number)


def round_of(partition: TopicPartition, *, freed_bytes: int = 10, complete: bool = True) -> CleanRound:
    from lastword.cleaner.engine.report import Phases

    return CleanRound(
        *(*partition, "kafka", 0, 5, complete, 5, 4, Removed(1), 100, 90, freed_bytes),
        *(0.1, Phases(), 0.1, 0.9, None),
    )


def cleaned(task: FakeTask, stop: Stop) -> Done:
    return Done(*task.partition, task.drive, "ok", round=round_of(task.partition))


@dataclass
class FakeTask:
    work: FakeWork
    partition: TopicPartition
    drive: str
    urgency: Urgency

    def run(self, stop: Stop) -> Done | None:
        self.work.ran.append(self.partition)
        body = self.work.bodies.get(self.partition, cleaned)
        done = body(self, stop)
        if done is not None and done.result == "ok":
            self.work.due.pop(self.partition, None)
        return done


@dataclass
class FakeWork:
    """Fake due partitions, each with a drive and an urgency; a round that is `ok` removes its partition."""

    due: dict[TopicPartition, tuple[str, Urgency]] = field(default_factory=dict)
    bodies: dict[TopicPartition, Body] = field(default_factory=dict)
    ran: list[TopicPartition] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    expired: list[set[TopicPartition]] = field(default_factory=list)
    names: list[str] = field(default_factory=lambda: ["a", "b"])

    def drives(self) -> list[str]:
        return self.names

    def next(self, drive: str, held: Collection[TopicPartition]) -> FakeTask | None:
        self.asked.append(drive)
        tasks = [
            FakeTask(self, partition, drive, urgency)
            for partition, (on, urgency) in self.due.items()
            if on == drive and partition not in held
        ]
        return min(tasks, key=lambda task: task.urgency, default=None)

    def overtakes(self, task: FakeTask, held: Collection[TopicPartition]) -> bool:
        candidate = self.next(task.drive, held)
        return candidate is not None and candidate.urgency.rank == 0 < task.urgency.rank

    def chores(self, held: Collection[TopicPartition]) -> Iterable[Done]:
        self.expired.append(set(held))
        return [Done("old", 0, "a", "expired")]

    def add(
        self, number: int, drive: str = "a", rank: int = 2, less: float = 0.0, body: Body = cleaned
    ) -> None:
        self.due[tp(number)] = (drive, Urgency(rank, less))
        self.bodies[tp(number)] = body


def scheduler_of(work: Any, clock: Any = None, **options: Any) -> Scheduler:
    clock = clock or ManualClock()
    options.setdefault("backoff_ms", BACKOFF_MS)
    return Scheduler(work, clock=clock, states=States(clock), **options)


def drain(scheduler: Scheduler) -> list[TopicPartition]:
    while scheduler.turn():
        pass
    ran: list[TopicPartition] = scheduler.work.ran  # type: ignore[attr-defined]
    return ran


# ---------------------------------------------------------------- choosing


def test_the_most_urgent_first_and_the_overdue_before_all() -> None:
    """6J.80: The log with the highest dirty ratio is cleaned first.

    Here: The most urgent log is cleaned first; the ratio is one measure of urgency.
    """
    work = FakeWork()
    for number, (drive, rank, less) in enumerate(
        [("a", 2, -0.6), ("b", 2, -0.9), ("a", 1, -0.1), ("b", 3, -9.0), ("a", 0, -5.0), ("b", 0, -7.0)]
    ):
        work.add(number, drive, rank, less)
    assert drain(scheduler_of(work)) == [tp(5), tp(4), tp(2), tp(1), tp(0), tp(3)]


@settings(max_examples=few(60), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 9)), max_size=14),
    st.integers(1, 5),
    st.randoms(use_true_random=False),
)
def test_no_drive_waits_while_another_has_two(
    parts: list[tuple[str, int, int]], threads: int, random: Any
) -> None:
    """Rounds begin and end in any order: if a round begins on a busy drive, no idle drive has work."""
    work = FakeWork(names=["a", "b", "c"])
    for number, (drive, rank, less) in enumerate(parts):
        work.add(number, drive, rank, less)
    scheduler = scheduler_of(work, threads=threads)
    running: list[Any] = []
    began = []
    while work.due or running:
        if len(running) < threads and (task := scheduler.pick()) is not None:
            busy = {other.drive for other in running}
            taken = {other.partition for other in running}
            waiting = {drive for partition, (drive, _) in work.due.items() if partition not in taken}
            assert task.drive not in busy or waiting <= busy
            same = [
                urgency
                for partition, (drive, urgency) in work.due.items()
                if drive == task.drive and partition not in taken
            ]
            assert task.urgency == min(same)
            running.append(task)
            began.append(task.partition)
        else:
            scheduler.run(running.pop(random.randrange(len(running))))
    assert Counter(began) == Counter(tp(number) for number in range(len(parts)))


def test_what_is_paused_quarantined_or_running_is_not_taken() -> None:
    """6J.81: Partitions that were set aside are not chosen.
    6J.82: Partitions that are being cleaned are not chosen.
    6J.83: If every partition is paused, set aside or being cleaned, none is chosen.
    """
    work = FakeWork()
    scheduler = scheduler_of(work)
    for number in range(4):
        work.add(number)
    scheduler.states.pause(tp(0))
    scheduler.states.apply(tp(1), "find")
    assert scheduler.states.begin(tp(2))
    assert drain(scheduler) == [tp(3)]
    scheduler.states.apply(tp(0), "resume")
    scheduler.states.apply(tp(1), "retry")
    scheduler.states.apply(tp(2), "end")
    assert drain(scheduler) == [tp(3), tp(0), tp(1), tp(2)]


# ---------------------------------------------------------------- back-off


def failing(task: FakeTask, stop: Stop) -> Done:
    return Done(*task.partition, task.drive, "failed", error="no room")


def test_what_fails_is_left_alone_for_longer_and_longer() -> None:
    work, clock = FakeWork(), ManualClock()
    work.add(0, body=failing)
    scheduler = scheduler_of(work, clock)
    waits = []
    for _ in range(9):
        waited = 0
        while not scheduler.turn():
            clock.advance(BACKOFF_MS)
            waited += 1
        waits.append(waited)
    assert waits == [0, 1, 2, 4, 8, 16, 32, 64, 64]
    work.bodies[tp(0)] = cleaned
    clock.advance(64 * BACKOFF_MS)
    assert scheduler.turn() and not scheduler.turn()
    work.add(0, body=failing)  # a successful round resets the back-off
    assert scheduler.turn()
    clock.advance(BACKOFF_MS)
    assert scheduler.turn()


def test_a_result_that_cannot_be_printed_leaves_the_partition_idle() -> None:
    """It stayed in state `cleaning`: it was never cleaned again, and a pause waited for its end."""
    work = FakeWork()
    scheduler = scheduler_of(work)
    work.add(0)

    def on_done(done: Done) -> None:
        raise BrokenPipeError

    scheduler.on_done = on_done
    with pytest.raises(BrokenPipeError):
        scheduler.turn()
    assert not scheduler.states.all() and len(scheduler.history) == 1


def test_one_that_fails_stops_no_other() -> None:
    """6J.84: An exception while a log is evaluated is reported with the log and the cause.

    Here: The error names file and position, and the other logs are cleaned.
    """
    work = FakeWork()
    work.add(0, rank=0, body=failing)
    for number in (1, 2):
        work.add(number)
    scheduler = scheduler_of(work)
    assert drain(scheduler) == [tp(0), tp(1), tp(2)]
    assert [done.result for done in scheduler.history] == ["failed", "ok", "ok"]


@pytest.mark.parametrize("nothing", ["none", "idle round"])
def test_a_round_that_does_nothing_does_not_spin(nothing: str) -> None:
    def body(task: FakeTask, stop: Stop) -> Done | None:
        if nothing == "none":
            return None
        round_ = round_of(task.partition, freed_bytes=0, complete=False)
        return Done(*task.partition, task.drive, "partial", round=round_)

    work, clock = FakeWork(), ManualClock()
    work.add(0, body=body)
    scheduler = scheduler_of(work, clock)
    assert drain(scheduler) == [tp(0)]
    clock.advance(BACKOFF_MS)
    assert drain(scheduler) == [tp(0), tp(0)]
    scheduler.forgive(tp(0))
    assert drain(scheduler) == [tp(0)] * 3


def test_damage_quarantines_and_retry_lets_it_in_again() -> None:
    def damaged(task: FakeTask, stop: Stop) -> Done:
        return Done(*task.partition, task.drive, "failed", error="bad CRC", damaged=True)

    work, clock = FakeWork(), ManualClock()
    work.add(0, body=damaged)
    scheduler = scheduler_of(work, clock)
    assert drain(scheduler) == [tp(0)]
    assert scheduler.states[tp(0)] == PartitionState("quarantined")
    clock.advance(1000 * BACKOFF_MS)
    assert drain(scheduler) == [tp(0)]
    scheduler.states.apply(tp(0), "retry")
    scheduler.forgive(tp(0))
    assert drain(scheduler) == [tp(0), tp(0)]


# ---------------------------------------------------------------- pause, stop


def test_a_pause_aborts_the_round_at_its_next_safe_point() -> None:
    """In simulated time: a round of a minute stops within a tenth of a second, and then the pause returns."""
    clock, work, times = SimulatedClock(), FakeWork(), {}
    scheduler = scheduler_of(work, clock)

    def long(task: FakeTask, stop: Stop) -> Done:
        while not stop():
            assert clock.monotonic() < 60
            clock.sleep(0.1)
        times["stopped"] = clock.monotonic()
        return Done(*task.partition, task.drive, "aborted")

    work.add(0, body=long)

    def pause() -> None:
        clock.sleep(5.05)
        assert scheduler.states.pause(tp(0)) == PartitionState("paused", 1)
        times["paused"] = clock.monotonic()
        assert not scheduler.turn()

    clock.run(scheduler.turn, pause)
    assert 5.05 <= times["stopped"] <= 5.16 and times["stopped"] <= times["paused"] <= 5.2
    assert [done.result for done in scheduler.history] == ["aborted"]


def test_a_pause_may_wait_for_the_end_and_gives_up_in_time() -> None:
    clock, work = SimulatedClock(), FakeWork()
    scheduler = scheduler_of(work, clock)

    def patient(task: FakeTask, stop: Stop) -> Done:
        clock.sleep(30)
        assert not stop()
        return cleaned(task, stop)

    work.add(0, body=patient)

    def pause() -> None:
        clock.sleep(1)
        with pytest.raises(BusyError):
            scheduler.states.pause(tp(0), abort=False, seconds=5)
        assert scheduler.states[tp(0)] == PartitionState("cleaning")  # the pause was withdrawn
        scheduler.states.pause(tp(0), abort=False, seconds=60)
        assert clock.monotonic() == pytest.approx(30, abs=0.05)

    clock.run(scheduler.turn, pause)
    assert scheduler.states[tp(0)] == PartitionState("paused", 1)


def test_threads_clean_what_is_due_after_the_first_back_off() -> None:
    clock, work, done = ManualClock(), FakeWork(), threading.Event()
    scheduler = scheduler_of(work, clock, threads=2, on_done=lambda _: done.set())
    before = metrics.CLEANER_THREADS.value(), metrics.CLEANER_THREADS_ALIVE.value()
    work.add(0)
    scheduler.start()
    scheduler.start()  # a second start has no effect
    try:
        assert scheduler.started and scheduler.alive == 2
        assert metrics.CLEANER_THREADS.value() == before[0] + 2
        assert metrics.CLEANER_THREADS_ALIVE.value() == before[1] + 2
        assert not work.ran
        clock.advance(BACKOFF_MS)
        assert done.wait(10) and work.ran == [tp(0)]
    finally:
        assert scheduler.stop()
    assert not scheduler.started and scheduler.alive == 0
    assert (metrics.CLEANER_THREADS.value(), metrics.CLEANER_THREADS_ALIVE.value()) == before
    work.add(1)
    assert not scheduler.turn()  # a stopped scheduler runs nothing
    done.clear()
    scheduler.start(at_once=True)
    assert done.wait(10)
    assert scheduler.stop()


def test_a_thread_that_dies_is_counted_and_replaced() -> None:
    clock, work, reported, go = ManualClock(), FakeWork(), threading.Event(), threading.Event()

    def fatal(task: FakeTask, stop: Stop) -> Done:
        assert go.wait(10)
        raise MemoryError("no room for the map")

    work.add(0, body=fatal)
    work.add(1, rank=3)
    seen: list[Done] = []
    scheduler = scheduler_of(work, clock, on_done=lambda done: (seen.append(done), reported.set()))  # type: ignore[func-returns-value]
    deaths = metrics.CLEANER_THREAD_DEATHS.value()
    scheduler.start(at_once=True)
    try:
        (first,) = scheduler._workers
        go.set()
        first._thread.join(10)
        assert scheduler.deaths == 1 and metrics.CLEANER_THREAD_DEATHS.value() == deaths + 1
        assert scheduler.alive == 0 and scheduler.started  # the replacement waits before it starts
        assert scheduler.states.all() == {}
        assert seen[0].result == "failed" and "no room for the map" in (seen[0].error or "")
        reported.clear()
        work.due.pop(tp(0))
        while not reported.wait(0.01):
            clock.advance(BACKOFF_MS)
        assert work.ran == [tp(0), tp(1)]
        assert scheduler.alive == 1
    finally:
        assert scheduler.stop()


def held(partitions: int = 1, threads: int = 1) -> tuple[Scheduler, threading.Event]:
    """Return a scheduler with a round that waits for the event, and then ends as it is asked to."""
    work, began, go = FakeWork(), threading.Event(), threading.Event()

    def waits(task: FakeTask, stop: Stop) -> Done:
        began.set()
        assert go.wait(10)
        return Done(*task.partition, task.drive, "aborted") if stop() else cleaned(task, stop)

    for number in range(partitions):
        work.add(number, body=waits)
    scheduler = scheduler_of(work, SystemClock(), threads=threads)
    scheduler.start(at_once=True)
    assert began.wait(10)
    return scheduler, go


@pytest.mark.parametrize(("abort", "result"), [(True, "aborted"), (False, "ok")])
def test_stopping_waits_for_the_round_and_begins_no_other(abort: bool, result: str) -> None:
    """The round ends early, or it ends as usual if the stop is a gentle one."""
    scheduler, go = held(partitions=3)
    threading.Timer(0.02, go.set).start()
    assert scheduler.stop(abort=abort)
    assert [(done.partition, done.result) for done in scheduler.history] == [(0, result)]
    assert not scheduler.states.all()


def test_two_calls_of_stop_count_the_threads_once() -> None:
    before = metrics.CLEANER_THREADS.value()
    scheduler, go = held(threads=2)
    assert metrics.CLEANER_THREADS.value() == before + 2
    stops = [threading.Thread(target=scheduler.stop) for _ in range(2)]
    for each in stops:
        each.start()
    time.sleep(0.05)
    go.set()
    for each in stops:
        each.join(10)
    assert metrics.CLEANER_THREADS.value() == before


def test_a_round_that_never_ends_does_not_hold_up_the_stop() -> None:
    scheduler, go = held()
    (worker,) = scheduler._workers
    assert scheduler.stop(seconds=0.0) is False
    go.set()
    worker._thread.join(10)
    assert not worker._thread.is_alive()


def test_a_slow_drive_does_not_hold_up_the_others() -> None:
    """Its next task is looked for while the other thread takes the tasks of the other drive."""
    work, looking, go, ran = FakeWork(), threading.Event(), threading.Event(), threading.Event()
    real = work.next

    def next(drive: str, held: Collection[TopicPartition]) -> FakeTask | None:
        if drive == "a":
            looking.set()
            assert go.wait(10)
        return real(drive, held)

    def runs(task: FakeTask, stop: Stop) -> Done:
        ran.set()
        return cleaned(task, stop)

    work.next = next  # type: ignore[method-assign]
    work.add(0, "a")
    work.add(1, "b", body=runs)
    scheduler = scheduler_of(work, SystemClock(), threads=2)
    scheduler.start(at_once=True)
    try:
        assert looking.wait(10)
        assert ran.wait(5)
    finally:
        go.set()
        assert scheduler.stop()


def test_a_thread_that_passed_a_drive_over_takes_its_second_task_at_once() -> None:
    """Both threads look at the only drive together; the second does not wait for a back-off."""
    work, both = FakeWork(names=["a"]), threading.Barrier(2)

    def meets(task: FakeTask, stop: Stop) -> Done:
        both.wait(10)
        return cleaned(task, stop)

    real, first = work.next, threading.Event()

    def next(drive: str, held: Collection[TopicPartition]) -> FakeTask | None:
        if not first.is_set():
            first.set()
            time.sleep(0.1)  # the other thread passes the drive over
        return real(drive, held)

    work.next = next  # type: ignore[method-assign]
    for number in range(2):
        work.add(number, body=meets)
    scheduler = scheduler_of(work, SystemClock(), threads=2)
    scheduler.start(at_once=True)
    try:
        until(lambda: len(scheduler.history) == 2)
        assert [done.result for done in scheduler.history] == ["ok", "ok"]
    finally:
        both.abort()
        assert scheduler.stop()


def test_threads_without_a_task_wait_for_the_back_off() -> None:
    """Threads that look at a drive at the same time do not wake each other without an end."""
    work, looked = FakeWork(names=["a"]), Counter[str]()

    def next(drive: str, held: Collection[TopicPartition]) -> FakeTask | None:
        looked[drive] += 1
        time.sleep(0.02)
        return None

    work.next = next  # type: ignore[method-assign]
    scheduler = scheduler_of(work, SystemClock(), threads=2)
    scheduler.start(at_once=True)
    time.sleep(0.5)
    assert scheduler.stop()
    assert 1 <= looked["a"] <= 4


def test_a_scheduler_without_references_ends_its_threads() -> None:
    before = metrics.CLEANER_THREADS.value(), metrics.CLEANER_THREADS_ALIVE.value()
    scheduler = scheduler_of(FakeWork(), ManualClock())
    scheduler.start()
    (worker,) = scheduler._workers
    thread = worker._thread
    del scheduler, worker
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()
    assert (metrics.CLEANER_THREADS.value(), metrics.CLEANER_THREADS_ALIVE.value()) == before


def test_a_forked_child_has_no_threads_and_needs_none() -> None:
    scheduler = scheduler_of(FakeWork(), ManualClock())
    scheduler.start()
    child = os.fork()
    if child == 0:
        os._exit(0 if not scheduler.started and scheduler.alive == 0 and scheduler.stop() else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert scheduler.started and scheduler.stop()


# ---------------------------------------------------------------- chores


def in_pieces(task: FakeTask, stop: Stop) -> Done:
    """Run a round of ten pieces, each of six seconds; end it at the first request to stop."""
    for _ in range(10):
        if stop():
            return Done(*task.partition, task.drive, "aborted")
        task.work.clock.advance(6000)
        task.work.arrive()
    return cleaned(task, stop)


@pytest.mark.parametrize(
    ("rank", "drive", "threads", "order"),
    [
        (2, "a", 1, [1, 2, 1]),  # the round stops, and runs again after its back-off
        (0, "a", 1, [1, 2]),  # an overdue round does not stop
        (2, "b", 1, [1, 2]),  # nor for another drive
        (2, "a", 2, [1, 2]),  # nor if a thread is free for a second round
    ],
)
def test_what_is_overdue_does_not_wait_for_the_end_of_a_round(
    rank: int, drive: str, threads: int, order: list[int]
) -> None:
    work: Any = FakeWork()
    work.clock = clock = ManualClock()
    work.arrive = lambda: tp(2) in work.ran or work.add(2, drive, rank=0)
    work.add(1, "a", rank=rank, body=in_pieces)
    scheduler = scheduler_of(work, clock, threads=threads)
    began = clock.monotonic()
    assert scheduler.turn()
    took = clock.monotonic() - began
    assert took == (18 if order == [1, 2, 1] else 60), "asked once in each back-off of 15 s"
    while drain(scheduler)[-1] != tp(order[-1]) or len(work.ran) < len(order):
        clock.advance(BACKOFF_MS)
    assert work.ran == [tp(number) for number in order]


def test_chores_have_their_own_interval_and_run_within_long_rounds() -> None:
    clock, work = ManualClock(), FakeWork()

    def long(task: FakeTask, stop: Stop) -> Done:
        for _ in range(6):
            clock.advance(100_000)
            assert not stop()
        return cleaned(task, stop)

    work.add(0, body=long)
    scheduler = scheduler_of(work, clock, chores_ms=300_000)
    scheduler.work_on()  # at the start, then twice within the round of 600 s
    assert work.expired == [set(), {tp(0)}, {tp(0)}]
    scheduler.work_on()
    assert len(work.expired) == 3
    clock.advance(300_000)
    scheduler.work_on()
    assert len(work.expired) == 4
    assert Counter(done.result for done in scheduler.history) == {"expired": 4, "ok": 1}


# ---------------------------------------------------------------- states


def test_a_partition_that_is_gone_is_forgotten_but_not_under_a_round() -> None:
    states = States(ManualClock())
    assert not states.abort(tp(0)), "there is no round"
    states.pause(tp(0))
    assert not states.begin(tp(0)), "it was paused after the scheduler had looked at it"
    states.forget(tp(0))
    assert states[tp(0)] == IDLE
    states.begin(tp(0))
    states.forget(tp(0))
    assert states[tp(0)] == PartitionState("cleaning")
