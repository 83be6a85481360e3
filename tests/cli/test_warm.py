"""Check that compilation is announced once, and that `lastword warm` leaves nothing to compile."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import lastword
from lastword.api.open_dirs import OpenDirs
from lastword.cli import main
from lastword.kernels import native
from lastword.kernels.warming import warm
from tests.support.exhaustive import only_exhaustive

COMMAND = [sys.executable, "-m", "lastword"]
WARM_AND_RUN = """
import sys
from lastword.kernels.warming import warm
warm()
from lastword.cli import main
codes = [main.run(words.split()) for words in sys.argv[1:]]
print(codes)
"""
NEED_KERNELS = [
    ["ls", "data"],
    ["ls", "data", "--quick"],
    ["read", "data", "users", "--view", "newest", "-n", "1"],
    ["read", "data", "users", "-n", "4000"],
    ["explain", "data", "users", "--key", "key-1"],
    ["duplication", "data"],
    ["simulate", "data", "--strategy", "broker"],
    ["verify", "data", "--md5"],
    ["restore", "data", "users", "users.parquet"],
    ["audit", "data", "users", "users.parquet"],
    ["clean", "data", "--dry-run"],
    ["clean", "data"],
]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with lastword.open("data", "a", log_cleaner_enable=False) as logs:
        for name, codec in (("users", "producer"), ("packed", "lz4")):
            topic = logs.create_topic(
                name, cleanup_policy="compact", compression_type=codec, segment_bytes=50_000
            )
            topic.extend((b"key-%d" % (n % 700), b"value %d" % n) for n in range(5000))
    return tmp_path


def test_compiling_is_announced_once_on_stderr(here, monkeypatch, capsys):
    def compiling(*arguments, **more):
        native.log.warning(native.COMPILING)
        return {}

    monkeypatch.setattr(OpenDirs, "select_by_topic", compiling)
    for more, announced in (([], True), (["-q"], False), (["--json"], False)):
        main.run(["ls", str(here / "data"), *more])
        captured = capsys.readouterr()
        assert captured.err.count("compiling kernels for") == announced and "compiling" not in captured.out
    native.log.warning(native.COMPILING)  # no process listens between commands
    assert capsys.readouterr().err == ""


def test_a_cached_kernel_is_not_announced(here, capsys):
    warm()
    for words in NEED_KERNELS:
        assert main.run(words) == 0, words
        assert "compiling" not in capsys.readouterr().err


@pytest.mark.slow
@only_exhaustive
def test_a_cold_start_says_so_and_warm_ends_it(here):
    """Use a separate cache folder, which is empty. `make kernels` does the same on a new machine."""
    environment = {**os.environ, "LASTWORD_CACHE_DIR": str(here / "cache")}

    def run(*words, command=COMMAND):
        done = subprocess.run([*command, *words], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done

    python = [
        sys.executable,
        "-c",
        "import lastword; lastword.open('data').duplication('users')",
    ]
    for announced in (1, 0):
        assert run(command=python).stderr.count("compiling kernels for") == announced, "no log is configured"
    assert run("warm").stderr.count("compiling kernels for") == 1  # the other kernels
    again = run("warm", "--json")
    assert again.stderr == "" and json.loads(again.stdout)["files"] > 20
    (folder,) = (here / "cache").iterdir()
    assert folder.name == f"kernels-{native.sources_digest()}" and folder.stat().st_mode & 0o777 == 0o700
    compiled = sorted(path.name for path in folder.rglob("*.o"))
    done = run("-c", WARM_AND_RUN, *map(" ".join, NEED_KERNELS), command=[sys.executable])
    lines = done.stdout.splitlines()
    assert lines[-1] == str([0] * len(NEED_KERNELS))
    assert "compiling" not in done.stderr
    assert sorted(path.name for path in folder.rglob("*.o")) == compiled
