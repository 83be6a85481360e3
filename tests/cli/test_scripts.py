"""Check that every script in scripts/ prints its expected output. `make golden` rewrites them.

A call that is refused with exit code 2 changes no file of a directory that exists.
"""

import os
from pathlib import Path

import pytest

from lastword.clock import ManualClock
from tests.api.conftest import tree_digest
from tests.cli.golden_runner import BEGIN_MS, empty_stores, execute, parse, render

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    empty_stores(monkeypatch)
    for name in [name for name in os.environ if name.startswith("LASTWORD_") and name != "LASTWORD_REWRITE"]:
        monkeypatch.delenv(name)
    clock = ManualClock(BEGIN_MS)
    blocks, rest = parse(script.read_text())
    assert blocks
    printed = []
    for block in blocks:
        before, was_there = tree_digest(tmp_path), any(tmp_path.iterdir())
        printed.append(execute(block, clock))
        is_refused = printed[-1][-1:] == ["[exit 2]"] and printed[-1][0].startswith("! error: ")
        if is_refused and was_there:
            assert tree_digest(tmp_path) == before, f"$ {block.command}"
    if os.environ.get("LASTWORD_REWRITE"):
        for block, lines in zip(blocks, printed, strict=True):
            block.expected = [line for line in lines if line]
        script.write_text(render(blocks, rest))
        return
    for block, lines in zip(blocks, printed, strict=True):
        assert [line for line in lines if line] == block.expected, f"$ {block.command}"


def test_a_wrong_expectation_is_noticed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks, _ = parse("$ lastword create data t\n---\ncreated u\n")
    assert execute(blocks[0], ManualClock(BEGIN_MS)) != blocks[0].expected


def test_render_gives_back_what_was_parsed():
    for script in SCRIPTS:
        assert render(*parse(script.read_text())) == script.read_text()
