"""Run every command that a remedy in the golden scripts shows, in the place where it is shown.

The command must be accepted, and must not end with the error that it should remedy. Remedies without a
command are listed here, so that a new one is reviewed once.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from lastword.cli.command import CONTEXT
from lastword.cli.main import run
from lastword.clock import ManualClock
from tests.cli.golden_runner import BEGIN_MS, copied_stores, empty_stores, execute, parse

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))
QUOTED = re.compile(r"`(lastword [^`]+)`")
BARE = re.compile(r"(?:fix: |To clean it now: |To have it cleaned: |, then: |, or )(lastword [^`;]+)$")
STAYS = ("--every", "lastword serve", "lastword console")
# Placeholders for a value of the user.
STAND_FOR = {
    "TOPIC": "users",
    "KEY": "k",
    "VALUE": "v",
    "NAME": "a-name",
    "OFFSET": "0",
    "OUT": "out.jsonl",
    "OTHER": "out.jsonl",
}
FIRST = ("restore the file", "check the path", "stop that process")
"""Steps before the remedy's command; without them it must be accepted, and may fail as before."""

PYTHON = re.compile(
    r"\bNone\b|=True|=False|lastword\.\w+\(|\blogs\.|create_topic|\bview=|[a-z]_serializer=|\bDIR\b"
)
IN_WORDS = [
    r'"os" survives a kill, "disk" a power cut',
    r"add Z or an offset such as \+02:00",
    r"--\S.*",  # an option, or its value
    r"leave the options out",
    r"(give|omit|name|use|one of|check|append to|answer|correct|add|choose|split|wait|raise|lower|set) .*",
    r"copy .*",
    r"(a|an|the) .*",
    r"at .*",
    r"it has .*",
    r"s3://BUCKET/PREFIX",
    r"start at .*",
    r"earliest, latest, .*",
    r"columns? .*",
    r"offsets? .*",
    r"fields are .*",
    r"stop that process; .*",
    r"for milliseconds since .*",
    r"\d+ \(\"latest\"\) at most; .*",
    r"end at \d+ or later.*",
    r"text is JSON .*",
    r'\{"key": \.\.\., "value": \.\.\.\}',
    r"OTHER: .*",
    r"OUT: .*",
    r"one record per line: KEY D VALUE",
    r"in lastword.toml, above all tables: .*",
    r"restore the file from a copy.*",
    r"rm \S+, then open it to write",
    r"wait until .*",
    r"partitions count from 0",
    r"lines as .*",
    r"create it, or .*",
    r"segments, .* can be dumped",
]


def commands_in(line: str) -> list[str]:
    quoted = QUOTED.findall(line)
    return [command for command in quoted or BARE.findall(line) if command.split()[1:]]


def carried_out(command: str, clock: ManualClock) -> tuple[int, str]:
    """Return (exit code, stderr) of a command, run in a copy of the directory that shows it."""
    words = [STAND_FOR.get(word, word) for word in shlex.split(command)]
    if words[1] == "create":
        words = ["a-new-one" if word == "users" else word for word in words]
    out, err = io.StringIO(), io.StringIO()
    before, sys.stdin, CONTEXT.clock = sys.stdin, io.TextIOWrapper(io.BytesIO(b"")), clock
    here = Path.cwd()
    copy = here.parent / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(here, copy)
    os.chdir(copy)
    try:
        with copied_stores(), redirect_stdout(out), redirect_stderr(err):
            code = run(words[1:])
    finally:
        os.chdir(here)
        sys.stdin, CONTEXT.clock = before, None
    return code, err.getvalue()


def message_before(lines: list[str], at: int) -> str:
    return next((line for line in reversed(lines[:at]) if "error: " in line), "")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_remedies_work_where_they_are_shown(script, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    empty_stores(monkeypatch)
    for name in [name for name in os.environ if name.startswith("LASTWORD_")]:
        monkeypatch.delenv(name)
    clock = ManualClock(BEGIN_MS)
    blocks, _ = parse(script.read_text())
    carried: set[str] = set()
    for block in blocks:
        lines = execute(block, clock)
        if any(word in block.command for word in ("--help", "lastword help")) or block.command == "lastword":
            continue
        for at, line in enumerate(lines):
            remedy = re.match(r"!?\s*fix: (.*)", line)
            commands = commands_in(line)
            if remedy and not commands:
                assert any(re.fullmatch(words, remedy[1]) for words in IN_WORDS), f"{block.command}\n{line}"
            if remedy:
                assert not PYTHON.search(remedy[1]), f"{block.command}\n{line}"
            for command in commands:
                if any(word in command for word in STAYS) or line + command in carried:
                    continue
                carried.add(line + command)
                code, output = carried_out(command, clock)
                shown = f"{block.command}\n{line}\n=> {command}\n{output}"
                before = message_before(lines, at).removeprefix("! ").partition("error: ")[2]
                if remedy is not None and any(first in remedy[1] for first in FIRST):
                    assert "--help" not in output and "unknown" not in output and code != 70, shown
                    continue
                if "needs a confirmation" in output:  # it asks for confirmation, as it should
                    continue
                assert code not in (2, 70), shown
                assert not before or before not in output, shown


def test_a_remedy_that_does_not_work_is_noticed(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    clock = ManualClock(BEGIN_MS)
    assert carried_out("lastword ls data", clock)[0] == 2
    assert carried_out("lastword config data --nothing", clock)[0] == 2
    assert commands_in("!   fix: lastword clean data --retry") == ["lastword clean data --retry"]
    assert commands_in("x: `lastword ls d` and `lastword verify d`") == ["lastword ls d", "lastword verify d"]
