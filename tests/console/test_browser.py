"""Check each view of the page in a real Chromium: content, layout, accessibility, and that it lives.

`make console` runs all variants and takes the pictures of docs/console.md.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, chdir
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.api.topics import create_topics
from lastword.cli.target import Target
from lastword.console.app import Access, Console, Shell, listening
from lastword.parse import relative_paths
from tests.console import samples
from tests.support.exhaustive import stride
from tests.support.stores import ServerMissing, npm_packages

SCRIPT = Path(__file__).resolve().parent / "browser" / "check.mjs"
PACKAGES = ("playwright-core@1.65.1", "axe-core@4.14.1")
VARIANTS = ("1600-light", "1600-dark", "400-light", "400-dark", "1920-light")
VIEWS = {
    "topics": "/",
    "topic": "/t/users",
    "records": "/t/users/0/records?offset=900",
    "hostile": "/t/hostile/0/records",
    "groups": "/groups",
    "transactions": "/transactions",
    "quarantine": "/quarantine",
    "empty": "/t/profiles",
}
CONTENT = {
    "topics": (
        *("orders", "246 KiB", "~", "1 partition quarantined", "Space target", "Count 1 topic"),
        "191 KiB not clean; due when the drive is above its space target",
    ),
    "topic": (
        "users-0",
        "users-1",
        "lease replica-2 at 900: 265 offsets behind, holds back at most",
        "billing",
        "lastword clean",
    ),
    "records": ("user-", '"city"', "offsets"),
    "hostile": (
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(2)>",
        "\\u202e",
        "20 MiB",
        "${alert(3)}",
    ),
    "groups": ("billing", "audit", "orders-0", "2 groups"),
    "transactions": ("4100", "Epoch", "64 KiB", "lastword transactions", "--abort 4100"),
    "quarantine": ("payments-0", "wrong checksum", "lastword clean", "--retry"),
    "empty": ("profiles", "0 B"),
}
"""What each view shows."""

COUNTED = ("orders", "events", "__consumer_offsets")
Rows = list[dict[str, Any]]


def looked(
    variants: tuple[str, ...],
    pictures: Path | None,
    *topics: str,
    actions: bool = False,
    make: Callable[[Path], None] = samples.make,
    views: dict[str, str] = VIEWS,
) -> Rows:
    """Return what the script prints about a page of the sample, or what `make` writes, with `topics` counted.

    ServerMissing: it cannot run here.
    """
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise ServerMissing("no Chromium: apt-get install chromium", setup_fault=False)
    name = "-".join(("browser", *PACKAGES)).replace("@", "-")
    modules = npm_packages(name, "the browser's script", *PACKAGES)
    with ExitStack() as stack:
        stack.enter_context(chdir(stack.enter_context(tempfile.TemporaryDirectory())))
        stack.enter_context(relative_paths())  # the page shows the directory as a command would
        data = Path("data")
        make(data)
        logs = stack.enter_context(lastword.open(data))
        shell = Shell(Target(["data"], None, None).command)
        console = stack.enter_context(Console(logs, listening("127.0.0.1", 0), Access(), shell))
        for topic in topics:
            counted(console, topic)
        command = [str(shutil.which("node")), str(SCRIPT), str(modules), console.url, str(pictures or "-")]
        environment = {**os.environ, "CHROMIUM": chromium, "VIEWS": json.dumps(views)}
        environment |= {"ACTIONS": "1"} if actions else {}
        process = stack.enter_context(
            subprocess.Popen(
                [*command, *variants],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
        )
        stack.callback(process.kill)
        steps = {"live": lambda: append(data), "gone": lambda: console.__exit__()}
        return answered(process, steps)


def answered(process: subprocess.Popen[str], steps: dict[str, Callable[[], None]]) -> Rows:
    """Return the lines of a process; take the step that a line is ready for."""
    assert process.stdout is not None and process.stdin is not None
    rows: Rows = []
    for line in process.stdout:
        row = json.loads(line)
        if "ready" in row:
            steps[row["ready"]]()
            process.stdin.write("done\n")
            process.stdin.flush()
        else:
            rows.append(row)
    assert process.wait(60) == 0
    return rows


def counted(console: Console, topic: str) -> None:
    address, _, token = console.url.partition("?token=")
    request = urllib.request.Request(
        f"{address}api/t/{topic}/count", headers={"Authorization": f"Bearer {token}"}
    )
    urllib.request.urlopen(request).read()


def append(data: Path) -> None:
    """Make 14 new partitions beside the page: the topic has 17 then."""
    with lastword.open(data, "a", log_cleaner_enable=False) as logs:
        logs.delete_topic(samples.EVENTS)
        logs.create_topic(samples.EVENTS, 17, cleanup_policy="delete")


def check(rows: Rows, variants: tuple[str, ...]) -> None:
    views = [row for row in rows if "view" in row]
    assert [(row["view"], row["variant"]) for row in views] == [
        (v, size) for size in variants for v in CONTENT
    ]
    for row in views:
        name = row["view"], row["variant"]
        assert row["problems"] == [] and row["violations"] == [], (name, row["problems"], row["violations"])
        assert row["injected"] == 0 and row["overflow"] <= 0, (name, row["overflow"])
        for words in CONTENT[row["view"]]:
            assert words in row["text"], (name, words, row["text"])


def looked_or_skipped(*arguments: Any, **options: Any) -> Rows:
    try:
        return looked(*arguments, **options)
    except ServerMissing as error:
        if error.must_not_skip:
            raise
        pytest.skip(str(error))


@pytest.mark.slow
def test_each_view_in_a_browser() -> None:
    rows = looked_or_skipped(("1920-light", "400-dark"), None, *COUNTED, actions=True)
    check(rows, ("1920-light", "400-dark"))
    actions = {row["action"]: row for row in rows if "action" in row}
    assert actions["problems"]["problems"] == []
    assert actions["sort"]["byGarbage"][0] == "orders" and actions["sort"]["focused"] == "topic"
    assert (
        actions["sort"]["byName"] == sorted(actions["sort"]["byName"])
        and actions["sort"]["sorted"] == "ascending"
    )
    assert actions["filter"] == {"action": "filter", "names": ["hostile"], "focused": "filter"}
    assert "17" in actions["live"]["text"]
    for words in ("kept", "removable", "Rewrites", "within its target"):
        assert words in actions["topic"]["text"], words
    assert re.search(r"replica-2 at 900: .* at most \d tombstones, lapses 20", actions["topic"]["text"])
    assert actions["topic"]["violations"] == actions["hostile"]["violations"] == []
    assert "20,971,523" in actions["hostile"]["text"] or "1,048,576" in actions["hostile"]["text"]
    assert "before=" in actions["older"]["url"] and "user-003" in actions["key"]["text"]
    assert "not connected" in actions["gone"]["text"]


@pytest.mark.slow
def test_an_empty_directory_in_a_browser() -> None:
    def make(path: Path) -> None:
        lastword.open(path, "a", log_cleaner_enable=False).close()

    views = {"topics": "/", "groups": "/groups", "transactions": "/transactions", "quarantine": "/quarantine"}
    rows = looked_or_skipped(("1600-light",), None, make=make, views={**views, "unknown": "/t/nothing"})
    text = {row["view"]: row["text"] for row in rows}
    assert "No topics yet" in text["topics"] and "No group has committed" in text["groups"]
    assert (
        "No transaction is open" in text["transactions"] and "No partition is in quar" in text["quarantine"]
    )
    assert "no topic 'nothing'" in text["unknown"]
    assert [row["violations"] for row in rows] == [[]] * 5
    assert [row["problems"] for row in rows if row["view"] != "unknown"] == [[]] * 4


@pytest.mark.slow
def test_many_partitions_in_a_browser() -> None:
    """500 of them, and 2,000 in `make exhaustive`: the page gets the rows of topics, and of 64 partitions."""
    topic_count = 20 // stride(4)

    def make(path: Path) -> None:
        with lastword.open(path, "a", log_cleaner_enable=False) as logs:
            compacted = (100, {"cleanup.policy": "compact"})
            create_topics(logs.dirs, {f"t{name}": compacted for name in range(topic_count)})
            for name in range(topic_count):
                logs[f"t{name}"].extend((b"k%d" % (i % 300), b"v") for i in range(1000))

    topics, topic = looked_or_skipped(
        ("1600-light",), None, make=make, views={"topics": "/", "topic": "/t/t3"}
    )
    assert f"{100 * topic_count:,}" in topics["text"]
    assert "t3-63" in topic["text"] and "Partitions from 64" in topic["text"]
    for row in (topics, topic):
        assert row["problems"] == row["violations"] == [] and row["overflow"] <= 0
        assert 0 < row["sentBytes"] < 300_000 and 0 < row["cpuSeconds"] < 1, row


def main(folder: Path) -> None:
    """Check all variants, and write pictures of few colours."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    check(looked(VARIANTS, folder.resolve(), *COUNTED, samples.USERS), VARIANTS)
    for path in sorted(folder.glob("*.png")):
        with Image.open(path) as picture:
            small = picture.convert("RGB").quantize(
                64 if "topic" in path.name else 32, method=Image.Quantize.MAXCOVERAGE
            )
        small.save(path, optimize=True)
        print(path.name, path.stat().st_size)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
