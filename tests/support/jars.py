"""Find or fetch the jars of a real Kafka, the newest or an older one; compile our Java programs against them.

Maven fetches the jars of a version once from Maven Central into the user's cache; LASTWORD_KAFKA_LIB names a
directory that has those of the newest. `KafkaMissing` names the missing part in one sentence, and the test is
skipped. With CI=true only an unreachable Maven Central is a reason to skip; every other reason is a fault of
the machine's setup and fails the test.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

KAFKA_VERSION = "4.4.0"
OLDER_VERSION = "4.3.1"
HERE = Path(__file__).parent / "jvm"
BROKERS = HERE / "brokers"
SHORT_LIFE = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Flags of a JVM for some seconds of work: one collector and one compiler."""
#: Patterns of the jars that a complete fetch has: broker, tools and logger; Streams and Connect's connectors.
WANTED = ("kafka_2.13-{}.jar", "kafka-tools-{}.jar", "log4j-core-*.jar")
APPS = ("kafka-streams-{}.jar", "connect-file-*.jar")
#: Maven's messages if it cannot reach a repository. They differ from those for a missing jar or a wrong pom.
UNREACHABLE = re.compile(
    r"Unknown host|UnknownHostException|Connection refused|timed out|Network is unreachable|No route to host"
    r"|Temporary failure in name resolution|Could not transfer|Connect to .* failed|status: 5\d\d|handshake",
    re.IGNORECASE,
)


class KafkaMissing(Exception):
    """Kafka cannot run here; the text says what to install. In CI a `setup_fault` fails the test."""

    def __init__(self, reason: str, *, setup_fault: bool = True) -> None:
        super().__init__(reason)
        self.setup_fault = setup_fault


def must_not_skip(missing: KafkaMissing) -> bool:
    return missing.setup_fault and os.environ.get("CI", "").lower() in ("true", "1")


@dataclass(frozen=True)
class KafkaJars:
    """A Java, and a directory with all jars of a Kafka broker, its tools and its clients."""

    java: str
    directory: Path
    version: str = KAFKA_VERSION

    @staticmethod
    def find_or_fetch(version: str = KAFKA_VERSION) -> KafkaJars:
        java = find_java()
        given = os.environ.get("LASTWORD_KAFKA_LIB")
        if given and version == KAFKA_VERSION:
            if not complete(Path(given), version):
                raise KafkaMissing(f"LASTWORD_KAFKA_LIB={given} holds no jars of Kafka {version}")
            return KafkaJars(java, Path(given))
        cached = cache_directory() / f"kafka-{version}"
        if not complete(cached, version):
            fetch(cached, "pom.xml", version, WANTED)
        return KafkaJars(java, cached, version)

    @property
    def apps(self) -> Path:
        """Return a directory with Kafka Streams and Connect's file connectors."""
        if complete(self.directory, self.version, APPS):
            return self.directory
        cached = cache_directory() / f"kafka-apps-{self.version}"
        if not complete(cached, self.version, APPS):
            fetch(cached, "apps_pom.xml", self.version, APPS)
        return cached

    @property
    def classpath(self) -> str:
        return f"{self.directory}/*"

    @property
    def archive(self) -> Path:
        """Return the archive of a broker's loaded classes for this Java; it halves the CPU of a start."""
        return archive_for(self.java, f"kafka-{self.version}")

    def command(
        self,
        main: str,
        *flags: str,
        life: Sequence[str] = SHORT_LIFE,
        sources: Path | None = None,
        more: str = "",
    ) -> list[str]:
        """Return the command of a program in a JVM that maps the archive of a broker's classes.

        Args:
            main: The class.
            flags: More flags of the JVM.
            life: Its flags for the compiler, the collector and the heap.
            sources: The directory with its .java files; None for a class of Kafka.
            more: A class path that it needs besides Kafka's.
        """
        command = [self.java, *life, *flags]
        if self.archive.exists():
            # Warnings of a JVM go to stdout, and some programs answer there.
            command += [f"-XX:SharedArchiveFile={self.archive}", "-Xlog:disable"]
        # An archive fits class paths that begin with the one for which it was written.
        classpath = self.compiled(BROKERS)
        if sources not in (None, BROKERS):
            classpath += self.compiled(sources, more).removeprefix(self.classpath)
        return [*command, "-cp", classpath, main]

    def compiled(self, sources: Path, more: str = "") -> str:
        """Return a class path with the compiled `sources`; compile only if a .java file has changed.

        Args:
            sources: A directory with .java files.
            more: A class path that they need besides Kafka's.
        """
        classpath = f"{self.classpath}:{more}" if more else self.classpath
        files = sorted(sources.glob("*.java"))
        digest = hashlib.sha256()
        for path in files:
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
        classes = cache_directory() / f"kafka-{self.version}-classes" / f"{digest.hexdigest()[:16]}.jar"
        if not classes.exists():
            self._compile(files, classes, classpath)
        return f"{classpath}:{classes}"

    def _compile(self, files: list[Path], classes: Path, classpath: str) -> None:
        javac = shutil.which("javac") or str(Path(self.java).resolve().parent / "javac")
        if not Path(javac).exists():
            raise KafkaMissing(f"no javac beside {self.java}: apt-get install openjdk-17-jdk-headless")
        private = classes.with_name(f"{classes.name}.{os.getpid()}")
        private.mkdir(parents=True)
        command = [javac, "-nowarn", "-d", str(private), "-cp", classpath, *map(str, files)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            shutil.rmtree(private)
            raise RuntimeError(f"javac: {done.stderr}")
        # A jar: a JVM writes no archive of classes if a directory is in its class path.
        Path(shutil.make_archive(str(private), "zip", private)).replace(classes)
        shutil.rmtree(private)


def find_java() -> str:
    """Return the java of JAVA_HOME, or else of PATH, if it is 17 or newer."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    remedy = "apt-get install openjdk-17-jdk-headless"
    if not java or not Path(java).exists():
        raise KafkaMissing(f"no Java: {remedy}")
    said = subprocess.run([java, "-version"], capture_output=True, text=True).stderr
    version = re.search(r'version "(\d+)', said)
    if not version or int(version[1]) < 17:
        raise KafkaMissing(f"{java} is not Java 17 or newer: {remedy}")
    return java


def archive_for(java: str, name: str) -> Path:
    """Return the file of the cache for an archive of loaded classes, of this name, for this Java."""
    built = (Path(java).resolve().parents[1] / "lib" / "modules").stat().st_mtime_ns
    return cache_directory() / f"{name}-{built:x}.jsa"


def cache_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lastword"


def complete(directory: Path, version: str, wanted: Iterable[str] = WANTED) -> bool:
    """Return whether a fetch into `directory` is complete: it has the jars `wanted` of the version."""
    return all(any(directory.glob(pattern.format(version))) for pattern in wanted)


def fetch(target: Path, pom: str, version: str, wanted: Iterable[str]) -> None:
    """Fetch the jars of a pom into `target` with Maven: all of them, or none."""
    maven = shutil.which("mvn")
    if not maven:
        raise KafkaMissing(f"no Maven to fetch Kafka {version} with: apt-get install maven")
    private = target.with_name(f"{target.name}.{os.getpid()}")
    shutil.rmtree(private, ignore_errors=True)
    private.mkdir(parents=True)
    command = [maven, "--batch-mode", "--quiet", f"-Dkafka.version={version}", "--file", str(HERE / pom)]
    command += ["dependency:copy-dependencies", f"-DoutputDirectory={private}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode or not complete(private, version, wanted):
        said = (done.stdout + done.stderr).strip()
        shutil.rmtree(private, ignore_errors=True)
        away = bool(UNREACHABLE.search(said))
        cause = "Maven Central can't be reached" if away else "Maven could not fetch Kafka"
        raise KafkaMissing(f"{cause}: {said[:400]}", setup_fault=not away)
    publish(private, target)


def publish(private: Path, target: Path) -> None:
    """Move a finished directory to its place, unless another process was faster."""
    try:
        private.rename(target)
    except OSError:
        shutil.rmtree(private)
