"""The five-minute example: what it says it prints is what it prints."""

import runpy
import sys
from pathlib import Path

import lastword

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.py"


def five_minutes(path):
    """The README's Python part; returns what it prints."""
    printed = []
    with lastword.open(path, "a") as logs:
        users = logs.state("users")
        users["ada"] = {"city": "London"}
        users["ada"] = {"city": "Turin"}
        users["bob"] = {"city": "Oslo"}
        del users["bob"]

    with lastword.open(path) as logs:
        printed.append(dict(logs.state("users")))
        for r in logs.topic("users").read():
            printed.append((r.offset, r.key, r.value))

    with lastword.open(path, "a") as logs:
        printed.append(str(logs.clean("users")[0]))
    return printed


def test_five_minutes(tmp_path):
    assert five_minutes(tmp_path / "data") == [
        {"ada": {"city": "Turin"}},
        (0, "ada", {"city": "London"}),
        (1, "ada", {"city": "Turin"}),
        (2, "bob", {"city": "Oslo"}),
        (3, "bob", None),
        "users-0: 4 records -> 2; the tombstone at 3 may go in 24 h",
    ]


def test_the_readme_has_this_example():
    text = (QUICKSTART.parents[1] / "README.md").read_text()
    for line in five_minutes_lines():
        assert line in text, line


def five_minutes_lines():
    import inspect

    source = inspect.getsource(five_minutes)
    return [line.strip() for line in source.splitlines() if line.strip().startswith(("users", "del users"))]


def test_quickstart_can_be_run_twice(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["quickstart.py", str(tmp_path / "data")])
    for restored in ("restored: {}", "restored: {'ada': {'city': 'Turin'}}"):
        runpy.run_path(str(QUICKSTART), run_name="__main__")
        printed = capsys.readouterr().out
        assert printed.startswith(restored) and "users-0:" in printed and "verified: sound" in printed
