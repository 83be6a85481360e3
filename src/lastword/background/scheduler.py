"""The scheduler: which partition the background of a process cleans next, and on which thread.

A `TaskSupplier` supplies the drives and the most urgent `BackgroundTask` of each. The scheduler has threads,
states and time:

- A free thread takes the most urgent task of a drive on which none runs; only if there is none may a second
  task begin on a drive. So no drive waits while another one has two.
- `States` says which partitions a task may be given for: none that is paused, quarantined or being cleaned. A
  partition whose cleaning failed, was stopped or did nothing rests for a while: a back-off that doubles with
  each failure in a row.
- A running task ends at its next safe point for another that must not wait for it (`max.compaction.lag.ms` of
  another partition of its drive has passed), if no thread is free. This is checked once per back-off.
- One thread at a time looks for the next task of a drive, so a slow drive does not hold up the others.
- When nothing is due, a thread waits for the back-off, or until `wake`. The first check comes after one
  back-off, so a process that opens a log for a moment does not clean.
- Chores (retention) have their own interval. A thread does them between tasks, and within a long task at its
  safe points.
- A thread that dies is counted and replaced after a back-off. An idle thread holds no reference to the
  scheduler, so a log directory without other references is freed.
- `stop` ends tasks at their next safe point and waits for the threads, a bounded time.

`turn()` takes one task and runs it in the caller's thread: for tests and simulations.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from lastword import metrics
from lastword.background.states import RUNNING, States
from lastword.clock import Clock
from lastword.logdir.checkpoints import TopicPartition
from lastword.values import Progress, Value

if TYPE_CHECKING:
    from lastword.cleaner.engine.report import CleanRound

Result = Literal["ok", "partial", "aborted", "failed", "expired", "scanned"]
Stop = Callable[[], bool]


@dataclass(frozen=True, order=True, slots=True)
class Urgency:
    """The order of tasks: the most urgent task is the smallest.

    Attributes:
        rank: Rank of the obligation (0: max.compaction.lag.ms has passed).
        less: Order among equal ranks.
    """

    rank: int
    less: float = 0.0


@dataclass(frozen=True, slots=True)
class Done(Value):
    """The result of one task, or of one partition's retention: an entry of the history.

    Attributes:
        result: `ok`; `partial`: stopped between two swaps, what was swapped stays; `aborted`: stopped before
            the first; `failed`, with `error`; `expired`: retention removed segments; `scanned`: new segments
            were scanned (not in the history).
        round: The report of the cleaning; None if there is none.
        deletion: Removal by retention.
        damaged: The partition is in quarantine now.
    """

    topic: str
    partition: int
    drive: str
    result: Result
    time_ms: int = 0
    round: CleanRound | None = None
    deletion: Any = None
    error: str | None = None
    damaged: bool = False

    def __str__(self) -> str:
        report = self.round or self.deletion
        text = str(report) if report is not None else f"{self.topic}-{self.partition}: {self.result}"
        return f"{text}: {self.error}" if self.error else text


class BackgroundTask(Protocol):
    """Work on one partition that could be done now."""

    @property
    def partition(self) -> TopicPartition:
        """Return the partition."""

    @property
    def drive(self) -> str:
        """Return the name of its drive."""

    @property
    def urgency(self) -> Urgency:
        """Return how urgent the task is."""

    @property
    def steps(self) -> Sequence[Progress]:
        """Return the newest progress of a task that runs; empty if it counts no bytes."""

    def run(self, stop: Stop) -> Done | None:
        """Run the task. None: there was nothing to do any more.

        `stop` is called at every safe point; once true, the task ends there. Errors of the data or the
        storage are in the result, others are raised.
        """


class TaskSupplier(Protocol):
    """The source of tasks."""

    def drives(self) -> Sequence[str]:
        """Return the names of the drives."""

    def next(self, drive: str, held: Collection[TopicPartition]) -> BackgroundTask | None:
        """Return the most urgent task on a drive for a partition that is not in `held`.

        Called by one thread at a time for each drive, as `overtakes`.
        """

    def overtakes(self, task: BackgroundTask, held: Collection[TopicPartition]) -> bool:
        """Return whether another task on the drive of a running one must not wait for its end.

        Tasks for partitions in `held` do not count.
        """

    def chores(self, held: Collection[TopicPartition]) -> Iterable[Done]:
        """Apply retention to all partitions that are not in `held`; yield the results."""


MOST_DOUBLINGS = 6  # of a back-off: 15 s become 16 minutes
HISTORY = 1000
STOP_SECONDS = 60.0
ABORT_SECONDS = 10.0  # for a task that did not end in time by itself


@dataclass(slots=True)
class _Rest:
    """A partition that is left alone until a time of the monotonic clock."""

    until: float
    failures: int


class Scheduler:
    """Tasks of `work` on a number of threads.

    Attributes:
        on_done: Called with every entry of the history, in the thread that made it.
        on_look: Called before a thread looks for tasks, in that thread.
    """

    def __init__(
        self,
        work: TaskSupplier,
        *,
        clock: Clock,
        states: States,
        threads: int = 1,
        backoff_ms: int = 15_000,
        chores_ms: int | None = None,
        on_done: Callable[[Done], None] | None = None,
        on_look: Callable[[], object] = lambda: None,
    ) -> None:
        self.work = work
        self.states = states
        self.threads = threads
        self.backoff_ms = backoff_ms
        self.chores_ms = chores_ms
        self.on_done = on_done
        self.on_look = on_look
        self.deaths = 0
        self.history: deque[Done] = deque(maxlen=HISTORY)
        self._clock = clock
        self._lock = threading.RLock()
        self._listing = threading.Lock()
        self._looked_at: set[str] = set()
        self._passed_over: set[str] = set()
        self._chores_running = threading.Lock()
        self._chores_due_at = 0.0
        self._running: dict[TopicPartition, BackgroundTask] = {}
        self._overtaken_at: dict[TopicPartition, float] = {}
        """When a task next checks whether it is overtaken."""
        self._rests: dict[TopicPartition, _Rest] = {}
        self._workers: list[Worker] = []
        self._pid = os.getpid()
        self.stopping = False

    # -------------------------------------------------------------- choosing

    def pick(self) -> BackgroundTask | None:
        """Take the next task, if there is one; its partition is in state `cleaning` then."""
        with self._listing:
            drives = list(self.work.drives())
        for on_busy in (False, True):
            busy = {task.drive for task in self.running().values()}
            tasks = [
                task
                for drive in drives
                if (drive in busy) is on_busy and (task := self._next(drive)) is not None
            ]
            for task in sorted(tasks, key=lambda task: task.urgency):
                if self._begin(task, on_busy):
                    return task
        return None

    def _next(self, drive: str) -> BackgroundTask | None:
        """Return the most urgent task of a drive; None without one, or if another thread looks for it."""
        with self._looking_at(drive) as is_mine:
            if not is_mine:
                return None
            task = self.work.next(drive, self._held())
            if task is None:
                with self._lock:  # the threads that passed it over would find nothing either
                    self._passed_over.discard(drive)
        metrics.CLEANER_LAST_CHECK.set(self._clock.now_ms() / 1000, drive)
        return task

    @contextmanager
    def _looking_at(self, drive: str) -> Iterator[bool]:
        """Reserve a drive for this thread; yields False if another thread has it.

        No thread waits for a slow drive that another one reads: it looks at the other drives. When the drive
        is free again, the threads that passed it over check again, unless it has no task.
        """
        with self._lock:
            is_mine = drive not in self._looked_at
            (self._looked_at if is_mine else self._passed_over).add(drive)
        if not is_mine:
            yield False
            return
        try:
            yield True
        finally:
            with self._lock:
                self._looked_at.discard(drive)
                is_wanted = drive in self._passed_over
                self._passed_over.discard(drive)
            if is_wanted:
                self.wake()

    def _begin(self, task: BackgroundTask, on_busy: bool) -> bool:
        """Begin a task. False if another thread has begun it, or, without `on_busy`, another of its drive."""
        with self._lock:
            if not on_busy and any(other.drive == task.drive for other in self._running.values()):
                return False
            if self.stopping or not self.states.begin(task.partition):
                return False
            self._running[task.partition] = task
            self._overtaken_at[task.partition] = self._clock.monotonic() + self.backoff_ms / 1000
        metrics.CLEANER_LAST_PICK.set(self._clock.now_ms() / 1000, task.drive)
        return True

    def _held(self) -> set[TopicPartition]:
        now = self._clock.monotonic()
        with self._lock:
            resting = {tp for tp, rest in self._rests.items() if rest.until > now}
        return resting | self.states.all().keys()

    def running(self) -> dict[TopicPartition, BackgroundTask]:
        """Return the running tasks."""
        with self._lock:
            return dict(self._running)

    # -------------------------------------------------------------- doing

    def turn(self) -> bool:
        """Take one task and run it to its end; False if there was none."""
        task = self.pick()
        if task is None:
            return False
        self.run(task)
        return True

    def run(self, task: BackgroundTask) -> None:
        """Run a task that `pick` returned."""
        tp, done = task.partition, None
        try:
            done = task.run(lambda: self._stop(tp))
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
            done = Done(tp.topic, tp.partition, task.drive, "failed", self._clock.now_ms(), error=text)
            raise
        finally:
            with self._lock:
                self._running.pop(tp, None)
                self._overtaken_at.pop(tp, None)
                self._rest(tp, done)
            self.states.apply(tp, "damage" if done is not None and done.damaged else "end")
            if done is not None and done.result != "scanned":
                self._note(done)  # the last: `on_done` may raise

    def _stop(self, tp: TopicPartition) -> bool:
        if self.stopping or self.states[tp].kind == "aborted":
            return True
        self._chores()
        if not self._is_overtaken(tp):
            return False
        self.states.apply(tp, "abort")
        return True

    def _is_overtaken(self, tp: TopicPartition) -> bool:
        """Return whether another task must not wait for this one, and no thread is free for it."""
        now = self._clock.monotonic()
        with self._lock:
            task, due = self._running.get(tp), self._overtaken_at.get(tp, now)
            if task is None or now < due or len(self._running) < self.threads:
                return False
            self._overtaken_at[tp] = now + self.backoff_ms / 1000
        with self._looking_at(task.drive) as is_mine:
            return is_mine and self.work.overtakes(task, self._held())

    def _rest(self, tp: TopicPartition, done: Done | None) -> None:
        """Set the back-off of a partition.

        A cleaning that moved something may be followed by the next one without a pause. A complete one that
        moved nothing would do so again, so it counts as a failure.
        """
        if done is not None and done.result == "scanned":
            return
        ended = done is not None and done.result == "ok" and done.round is not None
        if done is not None and done.round is not None and ended and _moved(done.round):
            self._rests.pop(tp, None)
            return
        failures = 0
        if ended or (done is not None and done.result == "failed"):
            before = self._rests.get(tp)
            failures = 1 + (before.failures if before is not None else 0)
        seconds = self.backoff_ms / 1000 * 2 ** min(max(0, failures - 1), MOST_DOUBLINGS)
        self._rests[tp] = _Rest(self._clock.monotonic() + seconds, failures)

    def _note(self, done: Done) -> None:
        self.history.append(done)
        if self.on_done is not None:
            self.on_done(done)

    def _chores(self) -> None:
        """Apply retention if it is due and no other thread does it."""
        if self.chores_ms is None or self._clock.monotonic() < self._chores_due_at:
            return
        if not self._chores_running.acquire(blocking=False):
            return
        try:
            self._chores_due_at = self._clock.monotonic() + self.chores_ms / 1000
            held = {tp for tp, state in self.states.all().items() if state.kind in RUNNING}
            for done in self.work.chores(held):
                self._note(done)
        finally:
            self._chores_running.release()

    def work_on(self, leaves: Callable[[], bool] = lambda: False) -> None:
        """Do chores that are due, then one task after another until there is none or it is stopped.

        `leaves`: called before each task; once true, none begins.
        """
        if not self.stopping:
            self._chores()
            self.on_look()
        while not self.stopping and not leaves() and self.turn():
            pass

    def forgive(self, tp: TopicPartition) -> None:
        """End the back-off of a partition."""
        with self._lock:
            self._rests.pop(tp, None)

    # -------------------------------------------------------------- threads

    @property
    def started(self) -> bool:
        """Return whether threads of this process run."""
        return bool(self._workers) and self._pid == os.getpid()

    @property
    def alive(self) -> int:
        """Return the threads that run and are not waiting to take a dead one's place."""
        return sum(worker.counted for worker in self._workers) if self.started else 0

    def start(self, *, at_once: bool = False) -> None:
        """Start the threads; does nothing if they run.

        `at_once`: they check before their first wait.
        """
        with self._lock:
            if self.started:
                return
            self._pid, self.stopping = os.getpid(), False
            self._workers = []
            metrics.CLEANER_THREADS.add(self.threads)
            for number in range(self.threads):
                self._workers.append(Worker(self, self._clock, number))
            _started.add(self)
        for worker in self._workers:
            worker.start(0.0 if at_once else self.backoff_ms / 1000, counted=True)

    def wake(self) -> None:
        """Make the threads check now: settings have changed, or a partition was resumed."""
        for worker in self._workers:
            worker.wake.set()

    def stop(self, *, abort: bool = True, seconds: float = STOP_SECONDS) -> bool:
        """End the threads; return False if one still runs after `seconds`.

        A running task ends at its next safe point, or with `abort=False` at its end if that comes within
        `seconds`.
        """
        with self._lock:
            if not self.started:
                self._workers = []  # threads of the parent process, before a fork
                return True
            stopped = self._workers
            workers = list(stopped)
        deadline = time.monotonic() + seconds
        if not abort:
            for worker in workers:
                worker.leave = True
            self.wake()
            for worker in workers:
                worker.join(deadline)
            deadline = time.monotonic() + ABORT_SECONDS
        with self._lock:
            if self._workers is stopped:  # else another call has stopped them, and new ones may run
                self.stopping = True
        for worker in workers:
            worker.leave = True
        self.wake()
        ended = [worker.join(deadline) for worker in workers]
        with self._lock:
            if self._workers is stopped:
                self._workers = []
                metrics.CLEANER_THREADS.add(-self.threads)
                _started.discard(self)
        return all(ended)

    def replace(self, worker: Worker) -> None:
        """Count a thread that died, and let another one take its place after a back-off."""
        with self._lock:
            self.deaths += 1
            metrics.CLEANER_THREAD_DEATHS.add(1)
            if self.stopping or worker.leave or worker not in self._workers:
                return
            successor = Worker(self, self._clock, worker.number)
            self._workers[self._workers.index(worker)] = successor
        successor.start(self.backoff_ms / 1000, counted=False)


def _moved(done: CleanRound) -> bool:
    if done.freed_bytes > 0 or done.segments_after != done.segments_before:
        return True
    return done.strategy == "kafka" and done.end > done.start  # its first dirty offset moved


_started: weakref.WeakSet[Scheduler] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """End tasks at a safe point when the interpreter ends, so that no file is left behind."""
    for scheduler in list(_started):
        scheduler.stop(seconds=10.0)


def _forget_all() -> None:
    """Reset the schedulers of a forked child: it has no threads, and locks in any state."""
    for scheduler in list(_started):
        scheduler._lock, scheduler._listing = threading.RLock(), threading.Lock()
        scheduler._looked_at, scheduler._passed_over = set(), set()
        scheduler._workers = []
    _started.clear()


os.register_at_fork(after_in_child=_forget_all)


class Worker:
    """One thread. Between its checks it has only a weak reference to the scheduler."""

    def __init__(self, scheduler: Scheduler, clock: Clock, number: int) -> None:
        self.number = number
        self.wake = threading.Event()
        self.leave = False
        self.counted = False
        self._clock = clock
        wake = self.wake
        self._scheduler = weakref.ref(scheduler, lambda _: wake.set())
        self._thread = threading.Thread(target=self._run, name=f"lastword-cleaner-{number}", daemon=True)

    def start(self, wait_seconds: float, *, counted: bool) -> None:
        """Start the thread; its first check comes after `wait_seconds`."""
        self._begin_at = self._clock.monotonic() + wait_seconds
        if counted:
            self._count(1)
        self._thread.start()

    def join(self, deadline: float) -> bool:
        """Wait for the thread until `deadline`; return whether it has ended."""
        if self._thread is not threading.current_thread():
            self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def _count(self, change: int) -> None:
        self.counted = change > 0
        metrics.CLEANER_THREADS_ALIVE.add(change)

    def _run(self) -> None:
        died = True
        try:
            with suppress(Exception):  # a bug, or no memory: what it was is in the history
                self._loop()
                died = False
        finally:
            if self.counted:
                self._count(-1)
            scheduler = self._scheduler()
            if scheduler is None:
                metrics.CLEANER_THREADS.add(-1)
            elif died:
                scheduler.replace(self)

    def _loop(self) -> None:
        seconds = self._begin_at - self._clock.monotonic()
        while True:
            self._clock.wait(self.wake, seconds)
            self.wake.clear()
            scheduler = self._scheduler()
            if scheduler is None or scheduler.stopping or self.leave:
                return
            if not self.counted:
                self._count(1)
            scheduler.work_on(lambda: self.leave)
            seconds = max(scheduler.backoff_ms, 1) / 1000
            if scheduler.stopping or self.leave:
                return
            del scheduler
