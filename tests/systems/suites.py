"""Run the own test suites of clients against a server: the outcome of each test."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from tests.support.jars import cache_directory
from tests.systems.install import PROGRAMS, environment, run
from tests.systems.table import Suite

Outcomes = dict[str, str]
"""Of each test that ended: "passed", "failed" or "skipped"."""


def outcomes(suite: Suite, address: str, place: Path, seconds: float) -> Outcomes:
    """Run a suite against the server at an address; install it the first time.

    Raises:
        SystemMissing: It cannot be installed here.
    """
    home = _installed(suite)
    command, read = (_pytest_command, of_pytest) if suite.kind == "python" else (_go_command, of_go)
    report = place / f"{home.name}-{address.rpartition(':')[2]}"
    more = {name: value.replace("ADDRESS", address) for name, value in suite.env}
    with report.with_suffix(".log").open("wb") as out:
        process = subprocess.Popen(
            command(suite, home, report, seconds),
            cwd=home / "source",
            stdout=out,
            stderr=out,
            env=environment(more),
            start_new_session=True,
        )
        try:
            process.wait(seconds + 30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return read(report)


def _installed(suite: Suite) -> Path:
    added = (PROGRAMS / suite.added[0]).read_bytes() if suite.added[0] else b""
    digest = hashlib.sha256(repr((suite.packages, suite.source, suite.package, added)).encode()).hexdigest()
    home = cache_directory() / "systems" / f"{suite.name.replace(' ', '-')}-{digest[:12]}"
    if (home / "ready").exists():
        return home
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    if suite.kind == "go":
        run(home, "go", "mod", "init", "program")
        run(home, "go", "get", *suite.packages)
        run(home, "go", "test", "-mod=mod", "-c", "-o", "suite", *suite.tests)
        listed = run(home, "go", "list", "-mod=mod", "-f", "{{.Dir}}", *suite.tests)
        (home / "source").symlink_to(listed.strip())  # some tests read the source beside them
    else:
        run(home, sys.executable, "-m", "venv", "venv")
        pip = (str(home / "venv/bin/python"), "-m", "pip")
        run(home, *pip, "install", "--quiet", *suite.packages)
        if suite.source == "pip":
            client = suite.packages[0]
            exactly = ("--no-deps", "--no-binary", client.partition("==")[0])
            run(home, *pip, "download", "--quiet", *exactly, client)
            shutil.unpack_archive(next(home.glob("*.tar.gz")), home / "unpacked", filter="data")
            next((home / "unpacked").iterdir()).rename(home / "source")
        else:
            url, tag = suite.source.split()
            run(home, "git", "clone", "--quiet", "--depth", "1", "--branch", tag, url, "source")
        shutil.rmtree(home / "source" / suite.package)
        target = home / "source" / suite.added[1]
        with target.open("ab") as file:
            file.write(b"\n\n" + added)
        (target.parent / "__init__.py").touch()
    (home / "ready").touch()
    return home


def _pytest_command(suite: Suite, home: Path, report: Path, seconds: float) -> list[str]:
    switches = ["-o", "addopts=", "-o", f"cache_dir={report}.cache", "-p", "no:logging", "-p", "no:warnings"]
    switches += ["--timeout=60", "--timeout-method=signal", f"--session-timeout={seconds}"]
    pytest = [str(home / "venv/bin/python"), "-m", "pytest", *switches]
    return [*pytest, f"--junitxml={report}.xml", *suite.tests]


def _go_command(suite: Suite, home: Path, report: Path, seconds: float) -> list[str]:
    return [str(home / "suite"), "-test.v", f"-test.timeout={seconds:.0f}s"]


def of_pytest(report: Path) -> Outcomes:
    """Return the outcomes in a report of pytest; none if the run was ended before it wrote the report."""
    path = report.with_name(report.name + ".xml")
    if not path.exists():
        return {}
    ended: Outcomes = {}
    for case in ElementTree.parse(path).iter("testcase"):
        kinds = {child.tag for child in case}
        file = (case.get("classname") or "").removeprefix("tests.").removeprefix("test.")
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        ended[f"{file}.{case.get('name')}"] = outcome
    return ended


def of_go(report: Path) -> Outcomes:
    """Return the outcomes in the output of Go's tests, with those of the subtests."""
    words = {"PASS": "passed", "FAIL": "failed", "SKIP": "skipped"}
    text = report.with_suffix(".log").read_text(errors="replace")
    found = re.findall(r"^ *--- (PASS|FAIL|SKIP): (\S+) \(", text, re.M)
    return {name: words[word] for word, name in found}
