"""Run readers that share an open `LogDir` with the writer, in threads of which one runs at a time.

Each file operation, and each wait for a lock, is a switch point: a seeded choice selects the next thread. So
a run is repeatable, and a reader can read the writer's memory in the middle of a cleaning. The locks of the
library are replaced by locks that switch instead of blocking.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from lastword.api.logs import LogDir
from lastword.errors import LastwordError
from lastword.files import Handle
from lastword.partition import scan
from tests.crash.memory import ROOT
from tests.readers.history import (
    History,
    VersionedFiles,
    VersionedHandle,
    Writer,
    small_indexes,
    steps_of,
    writer_of,
)
from tests.readers.judge import Violation, Window
from tests.readers.readers import HOLDING, KINDS, PLAIN, Journey

SHARED_KINDS = (
    *("log", "newest", "keys", "get", "arrow", "follow", "position", "state", "time", "offsets"),
    *HOLDING,
)
"""The kinds of readers that share memory with a writer; the other kinds share only files."""


WRITER = 0
"""Number of the writer's thread."""
READER_SHARES = (0.1, 1, 6)
"""Weights of a reader, if the writer's is 1: slow readers are overtaken, fast readers see each step."""


class Stopped(BaseException):
    """Raised in the remaining threads when the run is over, to end them."""


class Baton:
    """A scheduler that runs one of several threads at a time; `switch` chooses the next thread."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self._share = rng.choice(READER_SHARES)
        self.order: list[int] = []
        self.failed: list[BaseException] = []
        self._go: dict[int, threading.Semaphore] = {}
        self._alive: list[int] = []
        self._mine = threading.local()
        self._all_done = threading.Event()
        self.over = False

    def run(self, works: list[Callable[[], None]]) -> None:
        """Run each function in a thread, until all have ended; the first one starts."""
        threads = []
        for number, work in enumerate(works):
            self._go[number] = threading.Semaphore(0)
            self._alive.append(number)
            threads.append(threading.Thread(target=self._thread, args=(number, work), daemon=True))
        for thread in threads:
            thread.start()
        self._go[0].release()
        if not self._all_done.wait(120):
            raise AssertionError(f"the threads wait for each other after {len(self.order)} switches")
        for thread in threads:
            thread.join()
        if self.failed:
            raise self.failed[0]

    def _thread(self, number: int, work: Callable[[], None]) -> None:
        self._mine.number = number
        self._go[number].acquire()
        try:
            work()
        except Stopped:
            pass
        except BaseException as error:
            self.failed.append(error)
            self.over = True
        self._alive.remove(number)
        if self._alive:
            self._go[self._choose()].release()
        else:
            self._all_done.set()

    def _choose(self) -> int:
        weights = [self._share if number else 1 for number in self._alive]
        return self.rng.choices(self._alive, weights)[0]

    @property
    def number(self) -> int | None:
        """Return the number of the current thread; None if it is not scheduled here."""
        return getattr(self._mine, "number", None)

    def switch(self, *, to: int | None = None) -> None:
        """Continue with a randomly chosen thread, or with thread `to`, for which this thread waits."""
        number = self.number
        if number is None:
            return  # a helper thread, for which its reader waits
        if self.over and number != 0:
            raise Stopped
        if to is None and self.rng.random() < 0.5:
            return
        following = self._choose() if to is None else to
        self.order.append(following)
        if following != number:
            self._go[following].release()
            self._go[number].acquire()


class SwitchingLock:
    """A reentrant lock; a thread that waits for the lock switches to the thread that holds it."""

    def __init__(self, baton: Baton) -> None:
        self._baton = baton
        self._owner: tuple[int | None, int] | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = (self._baton.number, threading.get_ident())
        while self._owner is not None and self._owner != me:
            if not blocking:
                return False
            self._baton.switch(to=self._owner[0])
        self._owner = me
        self._count += 1
        return True

    def release(self) -> None:
        self._count -= 1
        if not self._count:
            self._owner = None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SwitchingCondition:
    """A condition, with a lock of its own or with a given one."""

    def __init__(self, baton: Baton, lock: SwitchingLock | None = None) -> None:
        self._baton = baton
        self._lock = SwitchingLock(baton) if lock is None else lock

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        lock = self._lock
        owner, count = lock._owner, lock._count
        lock._owner, lock._count = None, 0
        self._baton.switch(to=WRITER)
        while lock._owner is not None:
            self._baton.switch(to=lock._owner[0])
        lock._owner, lock._count = owner, count
        return True

    def notify_all(self) -> None:
        pass

    notify = notify_all


@contextmanager
def switching(baton: Baton) -> Iterator[None]:
    """Replace the locks in the modules of a log directory by locks that switch."""
    names = (
        "partition.",
        "keys.",
        "logdir.",
        "api.",
        "cleaner.engine.throttle",
        "cleaner.engine.partition",
    )
    changed: list[Any] = []
    stand_in = SimpleNamespace(**{name: getattr(threading, name) for name in threading.__all__})
    stand_in.Lock = stand_in.RLock = lambda: SwitchingLock(baton)
    stand_in.Condition = lambda lock=None: SwitchingCondition(baton, lock)
    for name, module in list(sys.modules.items()):
        if name.startswith(tuple(f"lastword.{prefix}" for prefix in names)) and hasattr(module, "threading"):
            changed.append(module)
            module.threading = stand_in  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module in changed:
            module.threading = threading


class SwitchingFiles(VersionedFiles):
    """Files whose every operation is a switch point."""

    baton: Baton | None = None

    def pause(self) -> None:
        for _ in range(20):
            self._switch()

    def between_calls(self) -> None:
        for _ in range(4):
            self._switch()

    def _switch(self) -> None:
        if self.baton is not None:
            self.baton.switch()

    def open_append(self, path: Any, *, create: bool = False, exclusive: bool = False) -> Handle:
        self._switch()
        handle = super().open_append(path, create=create, exclusive=exclusive)
        assert isinstance(handle, VersionedHandle)
        return SwitchingHandle(self, handle._node, handle.path)

    def open_read(self, path: Any) -> Handle:
        self._switch()
        return SwitchingHandle(self, self._file(path), str(path))

    def listdir(self, path: Any) -> list[str]:
        self._switch()
        return super().listdir(path)

    def stat(self, path: Any) -> Any:
        self._switch()
        return super().stat(path)

    def rename(self, source: Any, target: Any) -> None:
        self._switch()
        super().rename(source, target)

    def unlink(self, path: Any, missing_ok: bool = False) -> None:
        self._switch()
        super().unlink(path, missing_ok)

    def fsync_dir(self, path: Any) -> None:
        self._switch()
        super().fsync_dir(path)


class SwitchingHandle(VersionedHandle):
    _files: SwitchingFiles

    def pread(self, n: int, position: int) -> bytes:
        self._files._switch()
        return super().pread(n, position)

    def pread_into(self, buffer: Any, position: int) -> int:
        self._files._switch()
        return super().pread_into(buffer, position)

    def append(self, data: Any) -> int:
        self._files._switch()
        return super().append(data)

    def fsync(self) -> None:
        self._files._switch()
        super().fsync()


class SharedClock:
    """The writer's clock; a sleep switches to the writer."""

    def __init__(self, writer: Writer, baton: Baton) -> None:
        self._clock = writer.clock
        self._baton = baton
        self._slept = 0.0

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def monotonic(self) -> float:
        return self._slept

    def sleep(self, seconds: float) -> None:
        self._slept += seconds
        self._baton.switch(to=WRITER)


class _Kept:
    """The writer's own `LogDir`, which stays open when a reader ends."""

    def __init__(self, logs: LogDir) -> None:
        self._logs = logs

    def __enter__(self) -> LogDir:
        return self._logs

    def __exit__(self, *_: object) -> None:
        pass


class SharedJourney(Journey):
    """A read in the writer's own process."""

    def __init__(self, run: SharedRun, rng: random.Random) -> None:
        super().__init__(run.history, run.files, rng, run.files.version, "shared")  # type: ignore[arg-type]
        self._run = run

    def open(self) -> Any:
        assert self._run.writer.logs is not None
        return _Kept(self._run.writer.logs)

    @property
    def now(self) -> int:
        return self._run.files.version

    def now_ms(self) -> int:
        return self._run.writer.clock.now_ms()

    def pause(self) -> None:
        self._run.baton.switch(to=WRITER)

    def windows(self, first: int | None = None, *, committed: bool = True) -> dict[int, Window]:
        last = self._run.files.version
        self._run.wait_for_the_call()
        begin = self.first if first is None else first
        return {
            number: Window(partition, begin, last, committed)
            for number, partition in self.history.partitions.items()
        }


class SharedRun:
    """Random calls of a writer on a topic, beside `readers` threads."""

    def __init__(self, seed: int, readers: int = 2, kinds: Sequence[str] = SHARED_KINDS) -> None:
        self.seed = seed
        self.baton = Baton(random.Random(seed + 1))
        self.reads: list[tuple[str, int, int, Violation | None]] = []
        self.notes: list[str] = []
        self._readers = readers
        self._kinds = kinds
        self._finished = False
        self._seed = seed

    history: History
    files: SwitchingFiles
    writer: Writer

    def wait_for_the_call(self) -> None:
        """Wait for the end of the writer's call, because its effect is recorded then."""
        while self.writer.in_call:
            self.baton.switch(to=WRITER)

    def run(self) -> SharedRun:
        scan.PLAIN_BYTES_LOADED = PLAIN  # kernels read in a thread of their own
        with switching(self.baton):
            rng = random.Random(self._seed)
            self.writer = writer_of(rng, self._seed, SwitchingFiles)
            self.history, files = self.writer.history, self.writer.files
            assert isinstance(files, SwitchingFiles)
            self.files = files
            with self.writer.watched(), small_indexes():
                self.writer.begin(rng)
                assert self.writer.logs is not None
                self.files.baton = self.baton
                self.writer.logs.dirs.clock = SharedClock(self.writer, self.baton)  # type: ignore[assignment]
                works: list[Callable[[], None]] = [lambda: self._write(rng)]
                works += [lambda n=n: self._read(n) for n in range(self._readers)]  # type: ignore[misc]
                self.baton.run(works)
                self.files.baton = None
                self.writer.logs.close()
        return self

    def _write(self, rng: random.Random) -> None:
        try:
            steps_of(self.writer, rng, 40, without=("reopen", "truncate"))
        finally:
            self.baton.over = True

    def _read(self, number: int) -> None:
        rng = random.Random(self._seed * 1_000_003 + number)
        # A state of a writer is refused if retention would delete its keys, and would create a deleted topic.
        no_state = "delete" in self.writer.settings["cleanup_policy"] or self._seed % 16 == 7
        kinds = [kind for kind in self._kinds if not (no_state and kind == "state")]
        while not self.baton.over:
            kind = rng.choice(kinds)
            journey = SharedJourney(self, rng)
            violation: Violation | None = None
            try:
                (HOLDING.get(kind) or KINDS[kind][0])(journey)
            except Violation as wrong:
                violation = wrong
            except LastwordError as error:
                try:
                    journey.check_error(error)
                except Violation as wrong:
                    violation = wrong
            self.reads.append((kind, journey.first, self.files.version, violation))
            self.notes += journey.notes


def run(seed: int, kinds: Sequence[str] = SHARED_KINDS) -> SharedRun:
    """Run a writer and its readers; the same seed gives the same run."""
    return SharedRun(seed, kinds=kinds).run()


__all__ = ["ROOT", "SharedRun", "run"]
