"""Drivers ended by SIGKILL: a part of `make kills-spark`, and a whole pipeline."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("pyspark")

from examples.local_s3 import environment_of

from tests.spark import kills
from tests.support.exhaustive import stride
from tests.support.stores import Server

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline"


@pytest.mark.slow
def test_a_driver_killed_at_any_step_leaves_everything_once(tmp_path: Path) -> None:
    counts = kills.run(tmp_path, 10, 0, seed=20)
    assert sum(counts.values()) == 10 and min(counts.values()) >= 1


@pytest.mark.slow
def test_a_kill_that_writes_a_batch_twice_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check of the test: without the writers' last sequences, the repeated batch is in the log twice."""
    from lastword.ingest.staging import Writers

    monkeypatch.setattr(Writers, "last", lambda self, writer: -1)
    with pytest.raises(AssertionError, match="not once"):
        for kill_at in range(400, 20, -20):
            home = tmp_path / str(kill_at)
            home.mkdir()
            kills.one_sink_kill(home, kill_at, "driver", torn=False)


def in_bucket(moto: Server, kills: int, seed: int = 20, before: str = "") -> subprocess.CompletedProcess[str]:
    """Kill drivers over a bucket from a new process: a fork of one that has sent requests can send none.

    `before` is Python that the process runs first.
    """
    arguments = ["--kills", "0", "--bucket", str(kills), "--seed", str(seed), "--server", moto.address]
    command = f"{before}\nfrom tests.spark import kills\nkills.main({arguments})"
    return subprocess.run(
        [sys.executable, "-c", command], cwd=EXAMPLE.parents[1], capture_output=True, text=True, timeout=300
    )


@pytest.mark.slow
def test_a_driver_killed_at_any_request_leaves_everything_once(moto: Server) -> None:
    kills = 12 // stride(4)
    done = in_bucket(moto, kills)
    assert done.returncode == 0, done.stderr[-5000:]
    assert f"{kills} kills, each time every record once" in done.stdout


@pytest.mark.slow
def test_a_kill_that_commits_a_batch_twice_is_noticed(moto: Server) -> None:
    """A check of the test: without the writers' last sequences, the repeated batch is in the log twice."""
    forget = "from lastword.ingest.staging import Writers\nWriters.last = lambda self, writer: -1"
    done = in_bucket(moto, 200, 153, forget)  # this seed begins with the last request
    assert done.returncode and "not once" in done.stderr, done.stdout + done.stderr[-5000:]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLE))
    names = ("main", "worker")
    modules: dict[str, ModuleType] = {name: importlib.import_module(name) for name in names}
    yield modules["main"]
    for name in names:
        sys.modules.pop(name)


@pytest.mark.spark
@pytest.mark.usefixtures("short_lived_jvms")
@pytest.mark.xdist_group("spark")
def test_a_killed_pipeline_restores_from_its_log_and_ends_with_the_same_table(
    example: Any, tmp_path: Path
) -> None:
    rows = list(example.flights(2000))
    expected = example.plainly(rows)
    kept, disk = tmp_path / "killed", tmp_path / "disk"
    data = str(kept / "data")
    kept.mkdir()
    example.fill(data, rows)
    example.run_and_kill(data, kept, disk, 550, 2, at_once=True, clean_every=2)
    for note in ("2", ".2.crc"):  # if the query noted this commit: without the note Spark repeats the batch
        (kept / "checkpoint/commits" / note).unlink(missing_ok=True)
    shutil.rmtree(disk)
    example.run_and_kill(data, kept, disk, 550, None, at_once=False, clean_every=2)
    assert example.table_of(data) == expected
    assert any(kept.glob("snapshot-*.parquet")), "it was restored from one"


@pytest.mark.spark
@pytest.mark.beside
@pytest.mark.usefixtures("short_lived_jvms")
def test_a_killed_pipeline_over_a_bucket_has_its_table_in_the_log(
    example: Any, tmp_path: Path, moto: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is not started a second time, which costs a JVM; `make pipeline-bucket` does that."""
    for name, value in environment_of(moto.address).items():
        monkeypatch.setenv(name, value)
    data = "s3://bucket/pipeline"
    rows = list(example.flights(900))
    example.fill(data, rows)
    example.run_and_kill(data, tmp_path, tmp_path / "disk", 304, 2, at_once=True, clean_every=2)
    table = example.worker.restore(data, tmp_path, tmp_path / "empty")
    assert (tmp_path / "snapshot-000001.parquet").exists(), "it was restored from a snapshot"
    expected = example.plainly(rows)
    assert example.table_of(data) == expected and len(table) == len(expected)
    assert all(table.get(aircraft)["flights"] == flights for aircraft, (flights, *_) in expected.items())
