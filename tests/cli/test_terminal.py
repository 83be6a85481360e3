"""Check that every table fits a terminal of 80 columns, and that pipes and files get the full table."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import sys
import termios
import threading

import pytest

import lastword
from lastword.cli import main
from lastword.clock import ManualClock
from lastword.values import table

LONG = "a-topic-whose-name-is-long-as-names-of-applications-are.v2"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("wide")
    with lastword.open([root / "one", root / "two"], "a", clock=ManualClock(1_795_168_800_000)) as logs:
        for name, policy in (("users", "compact"), ("events", "delete"), ("plain", None), (LONG, "compact")):
            more = {} if policy is None else {"cleanup_policy": policy}
            topic = logs.create_topic(name, 2, segment_bytes=3000, **more)
            topic.extend((b"key %d" % (n % 7), b"value %d" % n) for n in range(400))
        logs.topic("users").lease("a-reader-with-a-name-of-its-own", position=3)
    return root


def shown(monkeypatch, columns, words):
    """Return the lines that a command writes to a pseudo-terminal of this width."""
    mine, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    text = bytearray()

    def drain():
        while True:
            try:
                data = os.read(mine, 1 << 16)
            except OSError:  # the other side is closed
                return
            if not data:
                return
            text.extend(data)

    reader = threading.Thread(target=drain)
    reader.start()
    with os.fdopen(its, "w", encoding="utf-8") as terminal, monkeypatch.context() as patched:
        patched.delenv("COLUMNS", raising=False)
        patched.setattr(sys, "stdout", terminal)
        code = main.run(words)
        terminal.flush()
    reader.join(30)
    os.close(mine)
    return code, text.decode().replace("\r\n", "\n").splitlines()


COMMANDS = [
    ["ls"],
    ["ls", "--by", "partition"],
    ["ls", "--segments"],
    ["ls", LONG],
    ["clean", "--dry-run"],
    ["expire", "--dry-run"],
    ["duplication"],
    ["duplication", "--by", "segment"],
    ["simulate", "--set", "lastword.space.target=3", "--set", "min.cleanable.dirty.ratio=0.8"],
    ["config"],
    ["config", "users"],
    ["lease", "users"],
    ["read", "users", "--last", "2"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_tables_fit_80_columns(data, words, monkeypatch, capsys):
    line = [words[0], str(data / "one"), *words[1:], "--dir", str(data / "two")]
    code, lines = shown(monkeypatch, 80, line)
    assert code == 0
    rows = [text for text in lines if not text.startswith(("no round", str(data)))]
    assert rows and max(map(len, rows)) <= 80, max(rows, key=len)
    capsys.readouterr()
    assert main.run(line) == 0
    whole = capsys.readouterr().out.splitlines()
    titles = [text for text in whole if text.split()[0].isupper()]
    assert "…" not in "".join(whole)
    if titles:  # a wide terminal, and output that is no terminal, show every column
        assert shown(monkeypatch, 400, line)[1] == whole


def test_the_columns_that_matter_least_go_first():
    header, rows = ("NAME", "START", "SIZE", "WHY"), [("x" * 30, "1" * 9, "2" * 9, "y" * 40)]
    lines = table(header, rows, "lrrl", width=60, spare=("START",))
    assert lines[0].split() == ["NAME", "SIZE", "WHY"] and max(map(len, lines)) == 60
    assert lines[1].split()[1] == "2" * 9  # figures are never cut
    assert table(header, rows, "lrrl", width=200, spare=("START",)) == table(header, rows, "lrrl")
    assert max(map(len, table(header, rows, "lrrl", width=10))) == 10
