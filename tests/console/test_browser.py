"""Check each view of the page in a real Chromium: content, layout, accessibility, and that it lives.

`make console` runs all variants and takes the pictures of docs/console.md.
"""

from __future__ import annotations

import json
import os
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
from lastword.cli.target import Target
from lastword.console.app import Access, Console, Shell
from lastword.parse import relative_paths
from tests.console import samples
from tests.support.stores import ServerMissing, npm_packages

SCRIPT = Path(__file__).resolve().parent / "browser" / "check.mjs"
PACKAGES = ("playwright-core@1.65.1", "axe-core@4.14.1")
VARIANTS = ("1600-light", "1600-dark", "400-light", "400-dark")
CONTENT = {
    "topics": (
        *("orders", "246 KiB", "~", "1 partition quarantined", "Space target", "Count 1 topic"),
        "191 KiB not clean; due when the drive is above its space target",
    ),
    "topic": ("users-0", "users-1", "lease replica-2", "billing", "lastword clean", "Why is a key kept?"),
    "records": ("user-", '"city"', "offsets"),
    "hostile": (
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(2)>",
        "\\u202e",
        "20 MiB",
        "${alert(3)}",
    ),
    "groups": ("billing", "audit", "orders-0", "2 groups"),
    "transactions": ("4100", "lastword transactions", "--abort 4100"),
    "quarantine": ("payments-0", "wrong checksum", "lastword clean", "--retry"),
    "empty": ("profiles", "0 B"),
}
"""What each view shows."""

Rows = list[dict[str, Any]]


def looked(variants: tuple[str, ...], pictures: Path | None, *topics: str, actions: bool = False) -> Rows:
    """Return what the script prints about a page of the sample, with `topics` counted.

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
        samples.make(data)
        logs = stack.enter_context(lastword.open(data))
        console = stack.enter_context(Console(logs, 0, Access(), Shell(Target(["data"], None, None).command)))
        for topic in ("orders", "events", "__consumer_offsets", *topics):
            counted(console, topic)
        command = [str(shutil.which("node")), str(SCRIPT), str(modules), console.url, str(pictures or "-")]
        environment = {**os.environ, "CHROMIUM": chromium, **({"ACTIONS": "1"} if actions else {})}
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


@pytest.mark.slow
def test_each_view_in_a_browser() -> None:
    try:
        rows = looked(("1600-light", "400-dark"), None, actions=True)
    except ServerMissing as error:
        if error.must_not_skip:
            raise
        pytest.skip(str(error))
    check(rows, ("1600-light", "400-dark"))
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
    assert actions["topic"]["violations"] == actions["hostile"]["violations"] == []
    assert "20,971,523" in actions["hostile"]["text"] or "1,048,576" in actions["hostile"]["text"]
    assert "before=" in actions["older"]["url"] and "user-003" in actions["key"]["text"]
    assert "not connected" in actions["gone"]["text"]


def main(folder: Path) -> None:
    """Check all variants, and write pictures of few colours."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    check(looked(VARIANTS, folder.resolve(), samples.USERS), VARIANTS)
    for path in sorted(folder.glob("*.png")):
        with Image.open(path) as picture:
            small = picture.convert("RGB").quantize(
                64 if "topic" in path.name else 32, method=Image.Quantize.MAXCOVERAGE
            )
        small.save(path, optimize=True)
        print(path.name, path.stat().st_size)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
