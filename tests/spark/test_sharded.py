"""One giant partition cleaned by many tasks in a Spark session, with tasks and drivers that die."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import lastword
import lastword.spark
from lastword.files import Files
from lastword.spark import sharded
from tests.spark.conftest import append, create, numbered, read_directly

STEPS = {name: getattr(sharded, name) for name in ("extract", "resolve_shard", "mark_unit", "rewrite_group")}

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Make topic t: a partition of 2400 records in many segments, and a small one."""
    root = tmp_path / "log"
    create(root, "t", 2, segment_bytes="8KiB", index_interval_bytes=200)
    append(root, "t", 0, [numbered(n, 40, 130) for n in range(0, 2400, 40)])
    append(root, "t", 1, [numbered(n, 20, 9) for n in range(100)])
    return root


def files(root: Path, partition: int) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (root / f"t-{partition}").glob("*.log")}


def cleaned_here(root: Path) -> list[Any]:
    """Clean by the library, with the strategy of a divided cleaning."""
    with lastword.open(root, "a", log_cleaner_enable=False) as logs:
        return logs.clean("t", strategy="kafka")


def left_over(root: Path) -> list[Path]:
    return [*root.rglob("sharded-*"), *root.rglob("planned-*"), *root.rglob("rewrite-*")]


def test_the_same_as_the_embedded_clean(spark: Any, root: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(root, tmp_path / "copy")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    reports: list[Any] = []
    given = {"task_bytes": 20_000, "scratch": str(scratch)}
    planned = {row.partition: row for row in lastword.spark.plan(spark, str(root), "t", **given).collect()}
    rounds = {
        row.partition: row
        for row in lastword.spark.clean(spark, str(root), "t", progress=reports.append, **given).collect()
    }
    for here in cleaned_here(copy):
        row, plan = rounds[here.partition], planned[here.partition]
        assert (row.records_read, row.records_kept) == (here.records_read, here.records_kept)
        assert tuple(row.removed) == tuple(here.removed.to_dict().values())
        assert row.written_bytes == here.written_bytes == plan.write_bytes
        assert row.certificate.content_digest == here.certificate.content_digest
        assert row.complete and row.end == here.end and row.segments_after == here.segments_after
    assert read_directly(root) == read_directly(copy)
    assert [len(data) for data in files(root, 0).values()] == [len(data) for data in files(copy, 0).values()]
    assert reports[-1].done_bytes == reports[-1].total_bytes
    assert not left_over(root) and not list(scratch.iterdir())


def test_each_step_dies_once_and_counts_once(
    spark: Any, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copytree(root, tmp_path / "copy")
    for name in STEPS:
        monkeypatch.setattr(sharded, name, DiesOnce(name))
    lastword.spark.clean(spark, str(root), "t", 0, task_bytes=20_000)
    cleaned_here(copy)
    assert {path.stem for path in root.glob("*.died")} == set(STEPS)
    rows = [row for row in read_directly(root) if row["partition"] == 0]
    assert rows == [row for row in read_directly(copy) if row["partition"] == 0]
    assert not left_over(root)


@dataclass(frozen=True)
class DiesOnce:
    """A step of a divided cleaning. Its first attempt fails after it did all its work."""

    name: str

    def __call__(self, files: Files, directory: str, *arguments: Any, **options: Any) -> Any:
        result = STEPS[self.name](files, directory, *arguments, **options)
        try:
            os.close(os.open(Path(directory).parents[2] / f"{self.name}.died", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return result
        raise RuntimeError("the first attempt dies at its end")


def test_a_driver_that_was_killed_is_gone_on_with(spark: Any, root: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(root, tmp_path / "copy")
    program = f"""
import os, signal
from pathlib import Path
import lastword.spark
from lastword.spark import sharded
def die(*given):
    os.kill(os.getpid(), signal.SIGKILL)
sharded.prepared = die
from tests.spark.conftest import FOR_TESTS
spark = lastword.spark.session("local[2,2]", **{{k: v for k, v in FOR_TESTS.items() if k != "spark.master"}})
lastword.spark.clean(spark, {str(root)!r}, "t", 0, task_bytes=20_000)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=120, cwd=Path.cwd())
    assert done.returncode == -signal.SIGKILL
    (job,) = root.rglob("sharded-*")
    built = {path: path.stat().st_mtime_ns for path in job.iterdir()}
    assert any(path.name.startswith("built-") for path in built)
    steps: list[int] = []
    rounds = lastword.spark.clean(
        spark, str(root), "t", 0, task_bytes=20_000, progress=lambda p: steps.append(p.done_bytes)
    ).collect()
    assert rounds[0].complete
    cleaned_here(copy)
    rows = [row for row in read_directly(root) if row["partition"] == 0]
    assert rows == [row for row in read_directly(copy) if row["partition"] == 0]
    assert not left_over(root)
