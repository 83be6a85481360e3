"""Processes that a test ends by SIGKILL; the lines that they wrote before it are not lost."""

from __future__ import annotations

import os
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

Tell = Callable[[str], object]


def teller(fd: int) -> Tell:
    """Return a function that writes a line to a pipe."""
    return lambda text: os.write(fd, f"{text}\n".encode())


class Child:
    """A process, and the pipe to which it writes lines. A line with `failed` or `wrong` fails the test."""

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid = pid
        self.pipe = pipe
        self.words = b""
        self.ended = False

    @staticmethod
    def fork(work: Callable[..., None], *arguments: Any) -> Child:
        """Call `work(*arguments, tell)` in a fork."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:  # this branch ends only by os._exit or the signal
            code, tell = 1, teller(writing)
            try:
                os.close(reading)
                work(*arguments, tell)
                code = 0
            except BaseException as error:
                traceback.print_exc()
                tell(f"failed {type(error).__name__}: {error}".replace("\n", " "))
            os._exit(code)
        os.close(writing)
        return Child(pid, reading)

    def lines(self, seconds: float) -> Iterator[str]:
        """Yield the lines that arrive within `seconds`, or until the process ends."""
        deadline = time.monotonic() + seconds
        while not self.ended and (left := deadline - time.monotonic()) > 0:
            ready, _, _ = select.select([self.pipe], [], [], left)
            if not ready:
                return
            chunk = os.read(self.pipe, 1 << 16)
            self.ended = not chunk
            self.words += chunk
            while b"\n" in self.words:
                line, _, self.words = self.words.partition(b"\n")
                assert not line.startswith((b"failed", b"wrong")), line.decode()
                yield line.decode()

    def kill(self) -> list[str]:
        """Send SIGKILL; return the complete lines written before it."""
        os.kill(self.pid, signal.SIGKILL)
        return self.rest()

    def kill_after(self, seconds: float) -> list[str]:
        """Send SIGKILL so long after the first line, which must arrive within 30 s; return all lines."""
        lines = [*islice(self.lines(30), 1)]
        assert lines, "no line of the process within 30 s"
        lines += self.lines(seconds)
        return lines + self.kill()

    def rest(self) -> list[str]:
        """Return the lines until the end of the process."""
        lines = list(self.lines(3600))
        os.waitpid(self.pid, 0)
        os.close(self.pipe)
        return lines
