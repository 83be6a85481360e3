"""`AnsweringProcess`: an answer that comes after a timeout is not that of the next question."""

from __future__ import annotations

import signal
import sys
from typing import NoReturn

import pytest

from tests.support.answering import AnsweringProcess

ECHO = """
import os, signal, sys, time
for line in sys.stdin:
    if line == "late\\n":
        os.kill(os.getppid(), signal.SIGUSR1)
        time.sleep(0.1)
    print("a line of a logger")
    print("ok", line, sep="\\t", end="", flush=True)
"""


def test_a_late_answer_does_not_reach_the_next_question() -> None:
    def interrupt(number: int, frame: object) -> NoReturn:
        raise TimeoutError

    before = signal.signal(signal.SIGUSR1, interrupt)
    process = AnsweringProcess([sys.executable, "-c", ECHO])
    try:
        assert process.ask("first") == ("ok", "first")
        for _ in range(2):
            with pytest.raises(TimeoutError):
                process.ask("late")
        assert process.ask("next") == ("ok", "next")
        assert process.ask("last\tword") == ("ok", "last\tword")
    finally:
        process.close()
        signal.signal(signal.SIGUSR1, before)
