"""Find kcat, or fetch Debian's package of it: no root is needed, it is unpacked into the user's cache."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.jars import cache_directory

PACKAGES = ("kcat", "librdkafka1", "libyajl2")
"""kcat and its libraries that a small system lacks."""


class KcatMissing(Exception):
    """There is no kcat, and it cannot be fetched; the text has the reason."""


@dataclass(frozen=True)
class Kcat:
    """A program and the environment that it needs."""

    program: str
    env: dict[str, str] = field(default_factory=lambda: dict(os.environ))

    @staticmethod
    def find_or_fetch() -> Kcat:
        installed = shutil.which("kcat")
        if installed:
            return Kcat(installed)
        target = cache_directory() / "kcat"
        if not target.exists():
            _fetch(target)
        libraries = ":".join(str(path) for path in target.glob("usr/lib/*-linux-gnu"))
        return Kcat(str(target / "usr/bin/kcat"), {**os.environ, "LD_LIBRARY_PATH": libraries})


def _fetch(target: Path) -> None:
    """Download the packages and unpack them into `target`: all of them, or none."""
    private = target.with_name(f"{target.name}.{os.getpid()}")
    private.mkdir(parents=True)
    try:
        _run(private, "apt-get", "download", *PACKAGES)
        for package in sorted(private.glob("*.deb")):
            _run(private, "dpkg-deb", "--extract", package.name, ".")
            package.unlink()
        private.rename(target)
    finally:
        shutil.rmtree(private, ignore_errors=True)


def _run(directory: Path, *command: str) -> None:
    if shutil.which(command[0]) is None:
        raise KcatMissing(f"no kcat, and no {command[0]} to fetch it with")
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    if done.returncode:
        raise KcatMissing(f"kcat can't be fetched (apt-get install kcat): {done.stderr.strip()[-300:]}")
