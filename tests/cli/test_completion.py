"""Check completion in bash, zsh and fish, and `lastword help COMMAND`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import lastword
from lastword.cli import main

COMMAND = [sys.executable, "-m", "lastword"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("complete") / "data"
    with lastword.open(path, "a") as logs:
        for name in ("users", "users-old", "events"):
            logs.create_topic(name)
    return path


@pytest.fixture
def completed(monkeypatch, capsys):
    """Return a function from a line to the completions of its last word, as each shell requests them."""

    def complete(shell, line):
        words = line.split(" ")
        asked = {
            "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)},
            "zsh": {"_TYPER_COMPLETE_ARGS": line},
            "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
        }[shell]
        for name, value in (asked | {"_LASTWORD_COMPLETE": f"complete_{shell}"}).items():
            monkeypatch.setenv(name, value)
        assert main.run([]) == 0
        said = capsys.readouterr()
        assert said.err == ""
        return said.out

    return complete


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_commands_topics_and_settings_complete(shell, data, completed):
    assert "verify" in completed(shell, "lastword ver")
    candidates = completed(shell, f"lastword read {data} us")
    assert "users-old" in candidates and "events" not in candidates
    assert "cleanup.policy=" in completed(shell, f"lastword config {data} users --set cleanup.p")
    assert "users" not in completed(shell, f"lastword read {data}/missing us")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell(shell, monkeypatch, capsys):
    monkeypatch.setenv("_LASTWORD_COMPLETE", f"source_{shell}")
    assert main.run([]) == 0
    assert f"complete_{shell}" in capsys.readouterr().out


def test_bash_reads_its_script():
    """As a process, and with the name in the order that most programs take."""
    environment = {**os.environ, "_LASTWORD_COMPLETE": "bash_source"}
    script = subprocess.run(COMMAND, env=environment, capture_output=True, text=True).stdout
    done = subprocess.run(
        ["bash", "-c", 'eval "$1"; complete -p lastword', "bash", script], capture_output=True, text=True
    )
    assert done.returncode == 0 and "-F" in done.stdout, done


def test_help_of_a_command(capsys):
    assert main.run(["help", "clean"]) == 0
    shown = capsys.readouterr().out
    assert main.run(["clean", "--help"]) == 0
    assert capsys.readouterr().out == shown and "--dry-run" in shown
    assert main.run(["help"]) == 0 and "verify" in capsys.readouterr().out
    assert main.run(["help", "claen"]) == 2 and "did you mean `clean`?" in capsys.readouterr().err


def test_a_suggestion_is_a_command_and_no_command_is_suggested_away():
    commands = main.command_tree().list_commands(None)
    for name, calls in main.OTHER_NAMES.items():
        assert name not in commands and name == name.lower()
        for call in calls:
            command, *options = call.split()
            assert command == "--version" or command in commands, name
            assert set(options) <= set(main._options(command)), name


@pytest.mark.parametrize(
    ("name", "partition", "url"),
    [("ls", True, True), ("create", False, True), ("drop", False, True), ("serve", False, True)],
)
def test_the_help_offers_the_directories_that_a_command_takes(name, partition, url, capsys):
    main.run([name, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert ("the directory of one partition" in text) == partition
    assert ("URL of a log in a bucket" in text) == ("--storage" in text) == url


def test_help_loads_no_more_than_before():
    """Count modules, not seconds. Completion imports only `lastword.cli`."""
    code = (
        "import sys; from lastword.cli import main; main.run(['--help']); "
        "print(sum(name.split('.')[0] == 'lastword' for name in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stderr.splitlines()[-1]) <= 175  # 159 before completion and `warm` existed
