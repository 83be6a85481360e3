"""Executors in their own processes: what they need, and what is left after their kill."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark import cloudpickle

import lastword.spark
from lastword.errors import MissingError, NotSharedError, UsageError
from lastword.spark import bootstrap
from lastword.spark.bootstrap import typed
from lastword.spark.options import parse_read
from lastword.spark.schema import full_schema
from lastword.spark.source import LastwordDataSource, LogReader
from lastword.spark.splits import LogPartition
from tests.spark import clusters
from tests.spark.conftest import append, create, numbered
from tests.support.stores import Server


def reader(root: Path) -> LogReader:
    create(root, "t")
    append(root, "t", 0, [numbered(0, 10, 5)])
    return LogReader(parse_read({"path": str(root), "subscribe": "t"}), full_schema(False))


def test_a_worker_without_the_package_says_what_to_do(tmp_path: Path) -> None:
    packed = tmp_path / "reader"
    source = LastwordDataSource({"path": str(tmp_path / "data"), "subscribe": "t"})
    assert cloudpickle.loads(cloudpickle.dumps(source)).options == source.options
    packed.write_bytes(cloudpickle.dumps((source, reader(tmp_path / "data"))))
    python = clusters.python_without(tmp_path)
    load = f"import pickle; print(pickle.load(open({str(packed)!r}, 'rb')))"
    processes = [
        subprocess.run(
            [python, "-c", load],
            capture_output=True,
            text=True,
            env={**os.environ, "LASTWORD_ABSENT": absent},
        )
        for absent in ("yes", "")
    ]
    assert "No module named 'lastword'" in processes[0].stderr and sys.executable in processes[0].stderr
    assert f"fix: install lastword {lastword.__version__} for that Python" in processes[0].stderr
    assert "LogReader" in processes[1].stdout
    error = typed(Exception(f"Job aborted: Traceback (most recent call last):\n{processes[0].stderr}"))
    assert isinstance(error, MissingError) and "install lastword" in str(error.remedy)
    planner = typed(Exception("ModuleNotFoundError: No module named 'lastword'"))
    assert isinstance(planner, MissingError) and "PYSPARK_PYTHON" in str(planner.remedy)


def test_a_worker_with_another_version_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = cloudpickle.dumps(reader(tmp_path))
    monkeypatch.setattr("lastword.version.__version__", "9.9")
    with pytest.raises(ImportError, match=r"lastword of the driver is .*, and 9\.9 is installed for"):
        cloudpickle.loads(packed)


def test_a_worker_without_the_directory_names_it(tmp_path: Path) -> None:
    there = reader(tmp_path / "data")
    elsewhere = LogPartition("t", 0, str(tmp_path / "elsewhere/t-0"), 0, 10)
    with pytest.raises(NotSharedError, match="this executor does not") as caught:
        list(there.read(elsewhere))
    assert str(tmp_path / "elsewhere/t-0") in str(caught.value) and "mount" in str(caught.value)
    spark_says = (
        f"Job aborted due to stage failure:\nlastword.errors.NotSharedError: {caught.value}\n\n\tat org"
    )
    again = typed(Exception(spark_says))
    assert isinstance(again, NotSharedError) and str(again) == str(caught.value)
    other = ValueError("something else")
    assert typed(other) is other


def test_a_relative_path_is_the_drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert bootstrap.shared_path("data") == str(tmp_path / "data")
    with pytest.raises(UsageError, match="not a URL"):
        bootstrap.shared_path("hdfs://host/data")


def test_an_environment_with_the_same_jars_uses_those_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive of classes fits the files from which it was made, also when their environment is gone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    homes = []
    for name, content in (("first", b"1"), ("second", b"2"), ("newer", b"longer")):
        package = tmp_path / name / "pyspark"
        for path in ("bin/spark-submit", "jars/core.jar", "jars/more/repl.jar", "python/lib/pyspark.zip"):
            (package / path).parent.mkdir(parents=True, exist_ok=True)
            (package / path).write_bytes(content)
        monkeypatch.setattr("pyspark.__file__", str(package / "__init__.py"))
        homes.append(clusters.kept_home())
        jars = clusters.farm(tmp_path / name) / "jars"
        assert jars.samefile(homes[-1] / "jars") and not (homes[-1] / "python").exists()
        shutil.rmtree(package)
    assert homes[0] == homes[1] != homes[2]
    assert (homes[0] / "jars/core.jar").read_bytes() == b"1"
    assert (homes[2] / "jars/more/repl.jar").read_bytes() == b"longer"


@pytest.mark.spark
@pytest.mark.timeout(900)  # it takes 70 s of CPU, beside five other processes
@pytest.mark.usefixtures("short_lived_jvms")
@pytest.mark.xdist_group("spark")
def test_executors_die_in_write_and_rewrite_and_nothing_is_lost_or_doubled(
    tmp_path: Path, moto: Server
) -> None:
    """The log in a bucket is used by executors that share no directory with the driver."""
    steps = ["killed_in_write", "killed_in_rewrite"]  # `make clusters` runs the others
    where = {"SPARK_HOME": str(clusters.farm(tmp_path))}
    home = tmp_path / "driver"
    home.mkdir()
    if clusters.private_mounts():
        steps.append("in_bucket")
        where |= clusters.apart(tmp_path, moto, "executors")
    done = clusters.script(
        "cluster_all.py", "local-cluster[2,1,1024]", str(tmp_path), *steps, home=home, **where
    )
    assert done == [*steps, "everything"]
    if "in_bucket" not in steps:
        pytest.skip("no mounts for one process: run as root, or allow namespaces of users (unshare --user)")
