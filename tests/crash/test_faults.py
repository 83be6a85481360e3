"""Make every n-th call fail, in each scenario, once and for good.

Allowed: the call that fails succeeds or raises an error of ours; so do later calls. Afterwards the directory
is opened on a healthy drive, and I1 to I13 hold for what was acknowledged, as after a kill, because the
system itself keeps running.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lastword.clock import ManualClock
from lastword.errors import LastwordError
from lastword.files import OsFiles
from tests.crash.faults import CALLS, INTERRUPT, FaultyOs, planted
from tests.crash.history import History
from tests.crash.invariants import NOW, Subject, check
from tests.crash.scenarios import HOUR, Process, keyed, settings_of
from tests.support.exhaustive import stride

SETTINGS = settings_of(segment_bytes=300, index_interval_bytes=100)
Step = Callable[[Process], object]


def _begin(p: Process) -> None:
    p.open().create()
    for number in range(4):
        p.put([keyed(number)], ack="disk" if number == 2 else "os")


APPEND: list[Step] = [
    *[lambda p, n=n: p.put([keyed(n)], ack="disk" if n % 3 == 0 else "os") for n in range(4, 9)],
    lambda p: p.put_many([[keyed(n)] for n in range(5)]),
]
ROLL: list[Step] = [
    lambda p: p.roll(),
    lambda p: p.put([keyed(5)], ack="disk"),
    lambda p: p.checkpoint(),
    lambda p: p.roll(),
    lambda p: p.put([keyed(6)]),
]
CLEAN: list[Step] = [
    lambda p: p.put([keyed(1)]),
    lambda p: p.clean(),
    lambda p: p.put([keyed(2)], ack="disk"),
    lambda p: p.wait(2 * HOUR).clean(),
]
RECOVER: list[Step] = [
    lambda p: p.abandon().open(),
    lambda p: p.put([keyed(6)], ack="disk"),
    lambda p: p.close(),
    lambda p: p.put([keyed(7)]),
]
TRUNCATE: list[Step] = [
    lambda p: p.truncate(3),
    lambda p: p.put([keyed(6)], ack="disk"),
    lambda p: p.trim(2),
    lambda p: p.put([keyed(7)]),
]
TOPICS: list[Step] = [
    lambda p: p.create("other", 2),
    lambda p: p.put([keyed(4)]).checkpoint(),
    lambda p: p.drop("other"),
    lambda p: p.close(),
    lambda p: p.put([keyed(5)], ack="disk"),
]
STEPS = {
    "append": APPEND,
    "roll": ROLL,
    "clean": CLEAN,
    "recover": RECOVER,
    "truncate": TRUNCATE,
    "topics": TOPICS,
}


def attempt(root: Path, steps: list[Step], faulty: FaultyOs) -> History:
    """Run each step; after a step that raises an error of ours or is interrupted, continue with the next."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    history = History(HOUR)
    with planted(faulty):
        p = Process(OsFiles(), history, SETTINGS, ManualClock(NOW), root=str(root))
        _begin(p)
        faulty.armed = True
        for step in steps:
            try:
                if p.logs is None:
                    p.open()
                step(p)
            except (LastwordError, KeyboardInterrupt):
                pass
            except ValueError as error:
                if "closed" not in str(error):  # a log closed by a failed step raises this
                    raise
        faulty.armed = False
    if p.logs is not None:
        p.logs.abandon()
    return history


def judge(root: Path, history: History, label: str, again: set[int]) -> None:
    tree = {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in sorted(root.rglob("*"))
    }
    known = history.at(0)
    subject = Subject(SETTINGS, ManualClock(NOW + 9 * HOUR), kill=True, again=again)
    violations = check(tree, {}, known, subject)
    violations = [
        violation
        for violation in violations
        if violation.invariant != "I12" or "a reader saw" in violation.text
    ]
    assert not violations, label + "\n" + "\n".join(map(str, violations))


def faults(root: Path, steps: list[Step], stride: int) -> int:
    counted = FaultyOs()
    history = attempt(root, steps, counted)
    again: set[int] = set()
    judge(root, history, "no fault", again)
    done = 0
    for name, codes in CALLS.items():
        for code in codes:
            for sticky in (False, True):
                for number in range(0, counted.counts[name], stride):
                    faulty = FaultyOs(name, code, sticky=sticky)
                    faulty.fail_at = number
                    history = attempt(root, steps, faulty)
                    label = f"{name} {number} of {counted.counts[name]}, {os.strerror(code)}, {sticky=}"
                    judge(root, history, label, again)
                    done += bool(faulty.failed)
    return done


def interrupts(root: Path, steps: list[Step], stride: int) -> int:
    """Interrupt every n-th call that changes something, in a process that goes on."""
    counted = FaultyOs()
    attempt(root, steps, counted)
    again: set[int] = set()
    done = 0
    for name in ("open", "pwrite", "ftruncate", "fsync", "fdatasync", "rename", "unlink", "mkdir"):
        for number in range(0, counted.counts[name], stride):
            faulty = FaultyOs(name, INTERRUPT)
            faulty.fail_at = number
            history = attempt(root, steps, faulty)
            judge(root, history, f"{name} {number} of {counted.counts[name]} interrupted", again)
            done += bool(faulty.failed)
    return done


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(
    ("run", "step", "least"),
    [
        pytest.param(interrupts, stride(4), 15, id="every call is interrupted", marks=pytest.mark.slow),
        pytest.param(interrupts, 7, 10, id="some calls are interrupted", marks=pytest.mark.quick),
        pytest.param(faults, stride(24), 30, id="every call fails", marks=pytest.mark.slow),
        pytest.param(faults, 23, 10, id="some calls fail", marks=pytest.mark.quick),
    ],
)
def test_calls(run: Callable[..., int], step: int, least: int, name: str, tmp_path: Path) -> None:
    assert run(tmp_path / "d", STEPS[name], step) > least
