"""Install an outside system into the user's cache, and return the command that runs its program."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.jars import KafkaJars, KafkaMissing, cache_directory, find_java
from tests.systems.table import System

PROGRAMS = Path(__file__).parent / "programs"


class SystemMissing(Exception):
    """A system cannot be installed here; the text has the reason."""


def installed(system: System) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment of a system's program; install it the first time."""
    source = PROGRAMS / system.program
    digest = hashlib.sha256(repr((system.packages, source.read_bytes())).encode()).hexdigest()[:12]
    home = cache_directory() / "systems" / f"{source.stem}-{digest}"
    if not (home / "ready").exists():
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        shutil.copy(source, home)
        INSTALLERS[system.kind](system, home)
        (home / "ready").touch()
    return STARTERS[system.kind](system, home)


def run(home: Path, *command: str) -> str:
    """Run a command of an installation, and return its output; raise `SystemMissing` if it fails."""
    if shutil.which(command[0]) is None:
        raise SystemMissing(f"no {command[0]}")
    done = subprocess.run(command, cwd=home, capture_output=True, text=True)
    if done.returncode:
        raise SystemMissing(f"{' '.join(command)[:60]}: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout


def _python(system: System, home: Path) -> None:
    run(home, sys.executable, "-m", "venv", "venv")
    run(home, str(home / "venv/bin/python"), "-m", "pip", "install", "--quiet", *system.packages)


def _node(system: System, home: Path) -> None:
    run(home, "npm", "install", "--no-audit", "--no-fund", "--silent", *system.packages)


def _go(system: System, home: Path) -> None:
    run(home, "go", "mod", "init", "program")
    run(home, "go", "get", *system.packages)
    run(home, "go", "mod", "tidy")
    run(home, "go", "build", "-o", "program", ".")


def _rust(system: System, home: Path) -> None:
    head = '[package]\nname = "program"\nversion = "0.0.0"\nedition = "2021"\n[dependencies]\n'
    (home / "Cargo.toml").write_text(head + "\n".join(system.packages) + "\n")
    (home / "src").mkdir()
    (home / system.program).rename(home / "src" / "main.rs")
    run(home, "cargo", "build", "--quiet")


def _jvm(system: System, home: Path) -> None:
    for package in system.packages:
        copy = ("dependency:copy", f"-Dartifact={package}", f"-DoutputDirectory={home}")
        run(home, "mvn", "--batch-mode", "--quiet", *copy)


def _maven(system: System, home: Path) -> None:
    parts = (package.split(":") for package in system.packages)
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
        for group, name, version in parts
    )
    head = (
        "<modelVersion>4.0.0</modelVersion><groupId>p</groupId><artifactId>p</artifactId><version>0</version>"
    )
    (home / "pom.xml").write_text(f"<project>{head}<dependencies>{dependencies}</dependencies></project>")
    copy = ("dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={home}")
    run(home, "mvn", "--batch-mode", "--quiet", *copy)


def _maven_command(system: System, home: Path) -> tuple[list[str], dict[str, str]]:
    try:
        java = find_java()
    except KafkaMissing as missing:
        raise SystemMissing(str(missing)) from missing
    opened = [f"--add-opens=java.base/java.{part}=ALL-UNNAMED" for part in ("lang", "util", "time")]
    return [
        java,
        "-Xmx768m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        *opened,
        "-cp",
        f"{home}/*",
        str(home / system.program),
    ], {}


def _jvm_command(system: System, home: Path) -> tuple[list[str], dict[str, str]]:
    try:
        jars = KafkaJars.find_or_fetch(system.kafka)
    except KafkaMissing as missing:
        raise SystemMissing(str(missing)) from missing
    classpath = f"{home}/*:{jars.classpath}"
    env = {"JARS": classpath, "PLUGINS": str(home)}
    if system.program.endswith(".java"):
        return [
            jars.java,
            "-Xmx384m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            classpath,
            str(home / system.program),
        ], env
    return [sys.executable, str(home / system.program)], env


INSTALLERS: dict[str, Callable[[System, Path], None]] = {
    "python": _python,
    "node": _node,
    "go": _go,
    "rust": _rust,
    "jvm": _jvm,
    "maven": _maven,
}
STARTERS: dict[str, Callable[[System, Path], tuple[list[str], dict[str, str]]]] = {
    "python": lambda system, home: ([str(home / "venv/bin/python"), str(home / system.program)], {}),
    "node": lambda system, home: (["node", str(home / system.program)], {}),
    "go": lambda system, home: ([str(home / "program")], {}),
    "rust": lambda system, home: ([str(home / "target/debug/program")], {}),
    "jvm": _jvm_command,
    "maven": _maven_command,
}


def environment(more: dict[str, str]) -> dict[str, str]:
    """Return the environment of a program: that of this process, without the path of our source."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | more
