"""The server and its clients killed at random; and the judge names each kind of fault."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import lastword
from tests.server import kills

pytest.importorskip("confluent_kafka")
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("kills-server")]
KILLS = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of one run with some kills."""
    folder = tmp_path_factory.mktemp("kills")
    verdict = kills.run(folder, KILLS, 1)
    assert not verdict.violations, verdict.violations[:10]
    assert verdict.counts["acknowledged"] > kills.LEAST_ACKNOWLEDGED
    assert verdict.counts["transactions committed"] > kills.LEAST_COMMITTED
    return folder


def test_nothing_is_lost_when_processes_are_killed(folder: Path) -> None:
    verdict = kills.Verdict()
    kills.judge(folder, verdict)
    assert verdict.violations == []


def lost(lines: list[list[object]]) -> None:
    line = next(line for line in lines if line[0] == "acked" and line[3] == kills.EVENTS)
    line[5] = 10**9  # type: ignore[call-overload]


def superseded(lines: list[list[object]]) -> None:
    line = next(line for line in lines if line[0] == "acked" and line[3] == kills.STATE)
    lines.append(["acked", 10**6, *line[2:]])


def exchanged(lines: list[list[object]]) -> None:
    """Name the transactions that were committed aborted, and those that were aborted committed."""
    names = {"committed": "aborted", "aborted": "committed"}
    for line in lines:
        line[0] = names.get(str(line[0]), line[0])


def phantom(lines: list[list[object]]) -> None:
    read = next(line for line in lines if line[0] == "read")
    read[4] = json.dumps(["nobody", 1, 1])


def backwards(lines: list[list[object]]) -> None:
    """Repeat the first record that a reader read, behind a later one of the same partition."""
    reads = [line for line in lines if line[0] == "read"]
    read, later = next((a, b) for n, a in enumerate(reads) for b in reads[n + 1 :] if a[1:3] == b[1:3])
    lines.insert(lines.index(later) + 1, list(read))


def unread(lines: list[list[object]]) -> None:
    del lines[:]


@pytest.mark.parametrize(
    ("kind", "change", "named"),
    [
        ("idempotent", lost, "lost: idempotent"),
        ("idempotent", superseded, "was acknowledged"),
        ("transactional", exchanged, "aborted, but there"),
        ("transactional", exchanged, "lost: transaction"),
        ("reader", phantom, "phantom"),
        ("reader", backwards, "out of order"),
        ("reader", unread, "not read"),
    ],
)
def test_the_judge_names_a_fault(
    folder: Path, tmp_path: Path, kind: str, change: Callable[[list[list[object]]], None], named: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    # which client of a kind did how much is chance: the one that did most has what the change needs
    journal = kills.Journal(max(copy.glob(f"{kind}-*.jsonl"), key=lambda path: path.stat().st_size))
    lines = journal.lines()
    change(lines)
    journal.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    verdict = kills.Verdict()
    kills.judge(copy, verdict)
    assert any(named in violation for violation in verdict.violations), verdict.violations[:5]


def test_the_judge_names_a_record_that_is_there_twice(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    with lastword.open(copy / "data", "a", log_cleaner_enable=False) as logs:
        events = logs.topic(kills.EVENTS)
        record = next(events.read(partition=0))
        events.append(record.key, record.value, partition=0)
    verdict = kills.Verdict()
    kills.judge(copy, verdict)
    assert any("twice" in violation for violation in verdict.violations)
    assert any("out of order" in violation for violation in verdict.violations)
