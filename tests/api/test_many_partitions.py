"""Looking at a directory is linear in its partitions: counted in calls on the storage, not in seconds."""

from __future__ import annotations

import pytest

import lastword
from lastword import files as storage
from lastword.cli import main
from lastword.clock import ManualClock
from lastword.files import DEFAULT
from tests.fakes.recording import RecordingFiles

FEW, MANY = 20, 200


@pytest.fixture(scope="module", params=["generational", "kafka", "delete"])
def directories(request, tmp_path_factory):
    root = tmp_path_factory.mktemp(request.param)
    policy = (
        {"cleanup_policy": "delete"}
        if request.param == "delete"
        else {
            "cleanup_policy": "compact",
            "lastword_strategy": request.param,
        }
    )
    for count in (FEW, MANY):
        with lastword.open(root / str(count), "a", clock=ManualClock(1_795_168_800_000)) as logs:
            logs.create_topic("users", count, **policy)
    return root


def calls_of(path, work, monkeypatch):
    """The calls on the storage that `work` makes, those of opening too, and how many list the root."""
    files = RecordingFiles(DEFAULT)
    with monkeypatch.context() as patched:
        patched.setattr(storage, "DEFAULT", files)
        work(path)
    return len(files.calls), sum(call.name == "listdir" and call.path == str(path) for call in files.calls)


def command(*words):
    def work(path):
        assert main.run([words[0], str(path), *words[1:], "-q"]) == 0

    return work


def describe(path):
    with lastword.open(path) as logs:
        assert len(logs.topic("users").describe()) == int(path.name)


@pytest.mark.parametrize(
    "work",
    [
        command("ls"),
        command("ls", "--quick", "--segments"),
        command("explain"),
        command("clean", "--dry-run"),
        command("clean", "--dry-run", "--due"),
        describe,
    ],
    ids=["ls", "ls-segments", "explain", "dry-run", "due", "describe"],
)
def test_ten_times_the_partitions_take_ten_times_the_calls(directories, work, monkeypatch, capsys):
    few, many = (calls_of(directories / str(count), work, monkeypatch) for count in (FEW, MANY))
    assert many[0] <= 10.5 * few[0], (few, many)
    assert many[1] == few[1], "each listing of the root names all partitions: their number must not grow"
