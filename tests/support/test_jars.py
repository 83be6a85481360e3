"""`KafkaMissing` has one sentence; in CI only an unreachable Maven Central lets a test skip."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import jars
from tests.support.jars import KafkaJars, KafkaMissing, must_not_skip

JARS = (f"kafka_2.13-{jars.KAFKA_VERSION}.jar", f"kafka-tools-{jars.KAFKA_VERSION}.jar", "log4j-core-2.jar")


def script(directory: Path, name: str, text: str) -> None:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with a Java 17 and nothing else, and an empty cache."""
    programs = tmp_path / "bin"
    programs.mkdir()
    script(programs, "java", """echo 'openjdk version "17.0.1"' >&2""")
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("LASTWORD_KAFKA_LIB", raising=False)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return programs


def missing() -> KafkaMissing:
    with pytest.raises(KafkaMissing) as caught:
        KafkaJars.find_or_fetch()
    return caught.value


def test_the_sentence_names_the_missing_part(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("LASTWORD_KAFKA_LIB", str(machine))
        assert "LASTWORD_KAFKA_LIB" in str(missing())
    script(machine, "java", """echo 'openjdk version "11.0.2"' >&2""")
    assert "not Java 17 or newer" in str(missing())
    (machine / "java").unlink()
    assert "apt-get install openjdk" in str(missing())


@pytest.mark.parametrize(
    ("said", "excused"),
    [
        ("Unknown host repo.maven.apache.org: Name or service not known", True),
        ("Could not transfer artifact org.apache.kafka:kafka-tools:pom:4.3.1 from central", True),
        ("Non-resolvable parent POM", False),
    ],
)
def test_only_an_unreachable_repository_is_excused_in_ci(
    said: str, excused: bool, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(machine, "mvn", f"echo '{said}'; exit 1")
    error = missing()
    assert said in str(error)
    monkeypatch.setenv("CI", "true")
    assert must_not_skip(error) == (not excused)
    monkeypatch.setenv("CI", "")
    assert not must_not_skip(error)
    assert list(jars.cache_directory().iterdir()) == [], "half a fetch was left behind"


def test_a_fetch_gives_all_jars_or_none_and_happens_once(machine: Path) -> None:
    create = " ".join(f'"$dir/{name}"' for name in JARS)
    find_target = 'for word in "$@"; do case $word in -DoutputDirectory=*) dir=${word#*=};; esac; done'
    script(machine, "mvn", f"{find_target}; for f in {create}; do : > $f; done")
    kafka_jars = KafkaJars.find_or_fetch()
    assert sorted(path.name for path in kafka_jars.directory.iterdir()) == sorted(JARS)
    (machine / "mvn").unlink()
    assert KafkaJars.find_or_fetch() == kafka_jars
