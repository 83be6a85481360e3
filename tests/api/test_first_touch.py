"""The first call of a process on a small log loads neither NumPy nor what is built on it."""

import json
import os
import subprocess
import sys

import pytest

import lastword
from lastword.partition import scan

HEAVY = ("numpy", "numba", "llvmlite", "pyarrow", "pandas", "pydantic", "cramjam", "tomlkit", "pyspark")
HEAVY += ("prometheus_client",)
FOR_RARE_CASES = {"html", "logging", "pathlib", "lastword.ingest.apply"}
RECORDS = 20_000


def run(code: str, *arguments: str) -> list[str]:
    """Run a program; return the modules that it has loaded at its end."""
    ending = "\nimport sys, json\nprint(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    command = [sys.executable, "-c", f"import sys\n{code}{ending}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stderr.splitlines()[-1])


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A topic of 20,000 records, another with its garbage index, and one with large gaps between offsets."""
    root = tmp_path_factory.mktemp("first") / "data"
    with lastword.open(root, "a", log_cleaner_enable=False) as logs:
        users = logs.state("users")
        for start in range(0, RECORDS, 500):
            users.update({f"user {n}": {"visits": n, "city": "Turin" * 8} for n in range(start, start + 500)})
        cleaned = logs.state("cleaned", key_serializer="bytes", value_serializer="bytes")
        for turn in range(6):
            for start in range(0, RECORDS, 1000):
                cleaned.update({b"%d" % n: b"%d" % turn for n in range(start, start + 1000)})
        logs.clean("cleaned")
        assert logs["cleaned"].get(b"7") == b"5"  # saves the key index
    return os.fspath(root)


OPENED = "import lastword\nwith lastword.open(sys.argv[1]) as logs:\n    "
CALLS = {
    "ls": "from lastword.cli.main import run\nassert run(['ls', sys.argv[1]]) == 0",
    "ls of a topic": "from lastword.cli.main import run\nassert run(['ls', sys.argv[1], 'users']) == 0",
    "state": OPENED + "assert len(logs.state('users')) == 20000",
    "state of a cleaned topic": OPENED + "assert len(logs.state('cleaned')) == 20000",
    "state to append": OPENED.replace("argv[1]", "argv[1], 'a'") + "assert len(logs.state('users')) == 20000",
    "restore": OPENED + "assert logs.restore('users', to=sys.argv[2])[0].keys == 20000",
    "get": OPENED
    + "assert [logs['cleaned'].get(b'%d' % n) for n in range(20000, 19950, -1)] == [None] + [b'5'] * 49",
    "read": OPENED + "assert len(list(logs['users'].read())) == 20000",
}


@pytest.mark.parametrize("name", CALLS)
def test_a_small_log_needs_no_numpy(directory, tmp_path, name):
    modules = run(CALLS[name], directory, os.fspath(tmp_path / "out.jsonl"))
    assert [module for module in HEAVY if module in modules] == []
    assert "lastword.kernels" not in modules
    assert name not in ("state", "restore") or FOR_RARE_CASES.isdisjoint(modules)


def test_modules_of_the_import():
    ours = [name for name in run("import lastword") if name.partition(".")[0] == "lastword"]
    assert ours == ["lastword", "lastword.version"]


def test_what_is_short(directory, monkeypatch):
    """By bytes, and by records as the first batches estimate them: a cleaned log has gaps."""
    with lastword.open(directory) as logs:
        views = {name: logs.dirs.views(name)[0] for name in ("users", "cleaned")}
    log_end = {name: view.log_end for name, view in views.items()}
    assert log_end == {"users": RECORDS, "cleaned": 6 * RECORDS}
    loaded = []
    monkeypatch.setattr(scan, "_is_loaded", loaded.__contains__)

    def short(name, most_records, most_bytes=1 << 30):
        monkeypatch.setattr(scan, "PLAIN_RECORDS", most_records)
        monkeypatch.setattr(scan, "PLAIN_BYTES", most_bytes)
        return scan.is_short(views[name], 0, log_end[name])

    assert short("users", RECORDS) and not short("users", RECORDS // 2)
    assert short("cleaned", 2 * RECORDS) and not short("cleaned", RECORDS // 2)
    assert not short("users", RECORDS, 1 << 20)
    assert scan.estimated_records(()) == 0
    monkeypatch.setattr(type(views["users"].files), "file_cost_bytes", 1.0)  # as in a bucket
    assert not short("users", RECORDS)
    monkeypatch.undo()
    monkeypatch.setattr(scan, "_is_loaded", loaded.__contains__)
    loaded.append("numpy")
    monkeypatch.setattr(scan, "PLAIN_RECORDS_NUMPY", 10)
    assert not short("users", RECORDS)
    loaded.append("lastword.kernels")
    assert not short("users", 1 << 30)


def test_young_collections_do_not_go_through_the_modules():
    run("import gc, lastword\nlastword.open\nassert len(gc.get_objects(2)) > 10 * len(gc.get_objects(0))")


def test_frozen_objects_of_a_caller_stay_frozen():
    run("import gc, lastword\ngc.freeze()\ncount = gc.get_freeze_count()\nlastword.open\n"
        "assert gc.get_freeze_count() > count // 2 > 0 and gc.isenabled()")  # fmt: skip
