"""Run every command line that the help, the README or a task page shows, and check its effect."""

from __future__ import annotations

import io
import re
import runpy
import shlex
import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import lastword
from lastword.cli import main
from lastword.cli.command import CONTEXT
from lastword.clock import ManualClock
from tests.server.client import batch

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/kafka.md", "docs/cleaning.md", "docs/bucket.md", "docs/not-shrinking.md")
HELPED = {
    name: [line.strip() for line in main.command_tree().get_command(None, name).epilog.splitlines()[2:]]
    for name in main.command_tree().list_commands(None)
    if name != "warm"
}
STAYS = (
    "--every",
    "lastword serve",
    "lastword console",
    "lastword pull",
    "lastword demo",
)  # these run for long, or need a cluster; each has its own test
PLACES = {
    "/srv/kafka": "data",
    "/backup/data": "backup",
    "s3://bucket/log": "memory://examples/log",
    "s3://bucket/trial": "memory://examples/trial",
    "s3://bucket/backup": "memory://examples/backup",
    "delta:s3://bucket/lake": "delta:memory://examples/lake",
    "/srv/kraft": "kraft",
    "/etc/kafka/server.properties": "server.properties",
}


@pytest.fixture(scope="module")
def examples_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the directory that the examples use: topics, a consumer's tables, a replica."""
    root = tmp_path_factory.mktemp("examples")
    clock = ManualClock(int((datetime.now(UTC) - timedelta(hours=1)).timestamp() * 1000))
    forms = {"key_serializer": "str", "value_serializer": "json"}
    with lastword.open(root / "data", "a", clock=clock) as logs:
        users = logs.create_topic("users", 4, cleanup_policy="compact", **forms)
        events = logs.create_topic("events", cleanup_policy="delete", retention_ms="7d")
        logs.create_topic("cities", key_serializer="str", value_serializer="str")
        keys = ("ada", "bob", "cyd")
        for partition, count in ((0, 4800), (3, 200)):
            users.extend(((keys[n % 3], {"n": n}) for n in range(count)), partition=partition)
        events.extend((b"%d" % number, b"x") for number in range(4500))
        logs.create_topic("orders")
        open_one = batch((b"k", b"v"), attributes=0x10, producer=(4100, 0, 0), timestamp=clock.now_ms())
        logs.dirs.log("orders", 0).append_batch(open_one)
        logs.restore("users", to=root / "consumer.parquet")
        logs.restore("users", to=root / "delivered.parquet")
        logs.restore("users", to=root / "delivered.jsonl")
    shutil.copytree(root / "data", root / "backup")
    (root / "kraft" / "__cluster_metadata-0").mkdir(parents=True)
    (root / "keys.txt").write_text("ada\nbob\n")
    (root / "server.properties").write_text("metadata.log.dir=kraft\n")
    with lastword.open(PLACES["s3://bucket/log"], "a", log_cleaner_enable=False) as logs:
        logs.create_topic("users", cleanup_policy="compact", **forms)
    return root


@pytest.fixture
def here(examples_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(examples_root, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def typed(line: str, stdin: bytes = b"") -> tuple[int, bytes, str]:
    """Return (exit code, stdout, stderr) of one command of a line."""
    words = [PLACES.get(word, word) for word in shlex.split(line, comments=True)]
    if words[0] == "printf":
        return 0, words[1].encode().decode("unicode_escape").encode(), ""
    assert words.pop(0) == "lastword", line
    words = [
        str(argument) for word in words for argument in (sorted(Path().glob(word)) if "*" in word else [word])
    ]
    if "--follow" in words:
        words += ["--timeout", "0"]
    out, err = io.StringIO(), io.StringIO()
    before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(stdin))
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = main.run(words)
    finally:
        sys.stdin = before
    return code, out.getvalue().encode(), err.getvalue()


def check(line: str) -> None:
    data = b"secret\n" if " --add " in line else b""
    for part in re.split(r" \| ", line):
        code, data, stderr = typed(part, data)
        assert code == 0, f"{part}\n{stderr}"


@pytest.mark.parametrize("command", [name for name in HELPED if name != "demo"])
def test_help(command: str, here: Path) -> None:
    for line in HELPED[command]:
        if command == "create":
            shutil.rmtree("data", ignore_errors=True)
        if line.startswith("lastword read data users --json |"):
            typed("lastword create copy users --key-serializer str --value-serializer json")
        if not any(phrase in line for phrase in STAYS):
            check(line)


def console_lines(page: str) -> list[str]:
    blocks = re.findall(r"^```console\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ lastword")]


@pytest.mark.parametrize(("page", "fewest"), [*zip(PAGES, (9, 10, 3, 8, 18), strict=True)])
def test_pages(page: str, fewest: int, here: Path) -> None:
    lines = console_lines(page)
    assert len(lines) >= fewest
    for line in lines:
        if not any(phrase in line for phrase in STAYS):
            check(line)


def test_the_page_of_commands_is_current() -> None:
    script = runpy.run_path(str(ROOT / "docs/make_commands.py"))
    written = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    assert written == script["page"](), "run docs/make_commands.py"


def test_what_explain_says_on_the_page(here: Path) -> None:
    """The page's own example and times give the page's output."""
    text = (ROOT / "docs/kafka.md").read_text(encoding="utf-8")
    shown = re.search(r"^\$ lastword explain data users --key bob\n((?:offset.*\n)+.*\n)", text, re.M)
    assert shown
    shutil.rmtree("data")
    clock = ManualClock(1_795_168_929_000)  # 2026-11-20 10:02:09Z
    with lastword.open("data", "a", clock=clock) as logs:
        users = logs.state("users")
        for key, city in (("ada", "London"), ("ada", "Turin"), ("bob", "Oslo")):
            users[key] = {"city": city}
            clock.advance(1000)
        del users["bob"]
    CONTEXT.clock = clock
    try:
        _, output, _ = typed("lastword explain data users --key bob")
    finally:
        CONTEXT.clock = None
    assert output.decode() == shown.group(1)
