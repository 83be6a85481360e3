"""A process that answers each line of its stdin, such as a Java program around classes of Kafka."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any


class AnsweringProcess:
    """A process that stays alive; its answer is `ok` or `error`, a tab and a text. Not safe for threads.

    A timeout that interrupts `ask` leaves the answer unread: the next call passes over it.
    """

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        """`options`: as for `subprocess.Popen`."""
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
        )
        self._unread = 0

    def ask(self, line: str) -> tuple[str, str]:
        """Send a line; return `ok` or `error`, and the text. Other lines of the process are no answers."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._unread += 1
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        for answer in self._process.stdout:
            kind, _, text = answer.rstrip("\n").partition("\t")
            if kind in ("ok", "error"):
                self._unread -= 1
                if not self._unread:
                    return kind, text
        raise RuntimeError(f"{self._process.args!r} ended with {self._process.wait()}")

    def close(self) -> None:
        """Let the process end; it is killed if it does not."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(timeout=20)
        finally:
            self._process.kill()
            self._process.stdout.close()
