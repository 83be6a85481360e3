"""A process that answers each line of its stdin, such as a Java program around classes of Kafka."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Any


class AnsweringProcess:
    """A process that stays alive; its answer is `ok` or `error`, a tab and a text. Not safe for threads.

    After a call that was interrupted, for example by a timeout, a new process answers: the answer of the
    old one may come late.
    """

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        """`options`: as for `subprocess.Popen`."""
        self._command, self._options = command, options
        self._process = self._started()

    def _started(self) -> subprocess.Popen[str]:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        return subprocess.Popen(self._command, **pipes, **self._options)

    def ask(self, line: str) -> tuple[str, str]:
        """Send a line; return `ok` or `error`, and the text. Other lines of the process are no answers."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
            for answer in self._process.stdout:
                kind, _, text = answer.rstrip("\n").partition("\t")
                if kind in ("ok", "error"):
                    return kind, text
            raise RuntimeError(f"{self._command!r} ended with {self._process.wait()}")
        except BaseException:
            self._end(0)
            self._process = self._started()
            raise

    def close(self) -> None:
        """Let the process end; it is killed if it does not."""
        self._end(20)

    def _end(self, seconds: float) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=seconds)
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
