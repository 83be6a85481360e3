"""Check the operations page and the files in deploy/: their commands run, and their names exist."""

from __future__ import annotations

import configparser
import json
import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

import lastword
from lastword import metrics
from lastword.cli import main
from lastword.errors import LastwordError
from tests.support.exhaustive import only_exhaustive

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
CODES = (ROOT / "docs" / "exit-codes.md").read_text(encoding="utf-8")
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
WINDOW = DEPLOY / "lastword-window"
SERVICES = [path for path in sorted(DEPLOY.glob("*.service")) if path.stem != WINDOW.name]
UNITS = sorted([*DEPLOY.glob("*.service"), *DEPLOY.glob("*.timer")])
ALERTS = (DEPLOY / "alerts.yml").read_text(encoding="utf-8")
DASHBOARD = (DEPLOY / "grafana.json").read_text(encoding="utf-8")


def test_metrics_that_the_page_and_the_alerts_name_exist():
    known = {metrics.PREFIX + metric.name for metric in metrics.metrics()}
    named = set(re.findall(r"\blastword_[a-z_]+\b", PAGE))
    alerted = set(re.findall(r"\blastword_[a-z_]+\b", ALERTS))
    assert named <= known and alerted <= named
    rows = re.findall(r"^\| `(lastword_[a-z_]+)`", PAGE, re.MULTILINE)
    assert "rules for the first ten rows" in PAGE and set(rows[:10]) <= alerted
    assert alerted.isdisjoint(rows[10:])
    labels = {metrics.PREFIX + metric.name: metric.labels for metric in metrics.metrics()}
    for rule in ALERTS.split("- alert: ")[1:]:
        (name, *_) = re.findall(r"\blastword_[a-z_]+\b", rule)
        for label in re.findall(r"\$labels\.(\w+)", rule):
            assert label in labels[name], rule


def queries():
    """Yield (place, PromQL) of the dashboard and of the alert rules."""
    for panel in json.loads(DASHBOARD)["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in json.loads(DASHBOARD)["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"]).groups()
            yield variable["name"], f"sum by ({label}) ({metric})"
    for group in yaml.safe_load(ALERTS)["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


@pytest.fixture(scope="module")
def scraped():
    """Return the labels of each sample of a real scrape, by its name; a metric without a value has one."""
    registry = CollectorRegistry()
    metrics.register(registry)
    made = []
    for metric in metrics.metrics():
        if not metric.samples():
            labels = ("x",) * len(metric.labels)
            metric.observe(0.1, *labels) if metric.kind == "histogram" else metric.add(0, *labels)
            made.append((metric, labels))
    lines = generate_latest(registry).decode().splitlines()
    for metric, labels in made:
        metric.remove(*labels)
    samples = [re.match(r"(lastword_\w+)(?:\{(.*)\})? ", line) for line in lines]
    return {
        sample[1]: set(re.findall(r'(\w+)="', sample[2] or "")) for sample in samples if sample is not None
    }


@pytest.mark.parametrize(("place", "query"), [*queries()])
def test_a_query_names_metrics_and_labels_of_a_scrape(place, query, scraped):
    names = re.findall(r"lastword_\w+", query)
    assert names, place
    known = set.union(*(scraped[name] for name in names))
    used = re.findall(r"(\w+)(?:=|!=|=~|!~)\"", query)
    used += re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", query)))
    assert set(used) <= known, place
    assert query.count("(") == query.count(")") and query.count("{") == query.count("}")
    counters = [name for name in names if name.endswith(("_total", "_bucket"))]
    assert all(re.search(rf"(rate|increase)\({name}", query) for name in counters), (
        "a counter alone says little"
    )


def test_the_figures_beside_a_broker_are_on_the_dashboard():
    """What `lastword ls --metrics` sets, without a cleaner or a server."""
    shown = {name for _, query in queries() for name in re.findall(r"lastword_(log_\w+|monitor_\w+)", query)}
    assert {"log_size_bytes", "log_live_bytes", "log_garbage_bytes", "log_end_offset"} <= shown
    assert {"monitor_last_pass_timestamp_seconds", "monitor_failed_partitions"} <= shown


def test_exit_codes_of_the_page():
    codes = {error.exit_code for error in _all_errors(LastwordError)}
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", CODES, re.MULTILINE)}
    assert codes <= listed | {70} and {0, 1, 70} <= listed


def _all_errors(kind):
    return [kind, *(inner for sub in kind.__subclasses__() for inner in _all_errors(sub))]


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.stem)
def test_a_unit_calls_a_command_that_exists(path, capsys):
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read_string(path.read_text(encoding="utf-8"))
    service = unit["Service"]
    assert "Conflicts" not in unit["Unit"], "enabling a unit must not stop a running broker"
    assert service["User"] != "root" and service["KillSignal"] == "SIGTERM"
    command = shlex.split(service["ExecStart"])
    assert Path(command[0]).name == "lastword"
    paths = service.get("ReadWritePaths") or service["ReadOnlyPaths"]
    assert paths in command and ("ls" in command) == ("ReadOnlyPaths" in service)
    _parses(command[1:], capsys)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_a_unit(path, tmp_path):
    unit = tmp_path / path.name
    text = re.sub(r"/usr/local/s?bin/lastword(-window)?", "/bin/true", path.read_text(encoding="utf-8"))
    if path.suffix == ".timer":
        shutil.copy(path.with_suffix(".service"), tmp_path)
    unit.write_text(text.replace("User=kafka", "User=root"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert path.stem not in done.stderr, done.stderr


# ---------------------------------------------------------------- the maintenance window


@pytest.fixture
def window(tmp_path):
    """Return a function that runs the script beside a `systemctl` that notes its calls.

    With `ANSWER`, `lastword` is a script that prints it: a run of the window starts four processes.
    """
    data, notes, tools = tmp_path / "data", tmp_path / "notes", tmp_path / "tools"
    with lastword.open(data, "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic("t", cleanup_policy="compact", segment_bytes=2_000)
        for _ in range(6):
            topic.append(b"a", b"x" * 600)
    tools.mkdir()
    program = tools / "lastword"
    program.write_text(
        f'#!/bin/sh\necho "lastword $*" >> {notes}\n'
        f'[ -z "$FAIL" ] || [ "$1" != "$FAIL" ] || exit 3\n'
        '[ -z "$ANSWER" ] || { echo "$ANSWER"; [ "$3" != --wait ] || exec sleep "$SLEEP"; exit; }\n'
        f'exec {sys.executable} -m lastword "$@"\n'
    )
    systemctl = tools / "systemctl"
    systemctl.write_text(f'#!/bin/sh\necho "systemctl $*" >> {notes}\n[ "$1" != "$FAIL_UNIT" ] || exit 5\n')
    for path in (program, systemctl):
        path.chmod(0o755)

    def run(**settings):
        done = subprocess.run(
            [str(WINDOW)],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env=os.environ
            | {"PATH": f"{tools}:{os.environ['PATH']}", "DIR": str(data), "LASTWORD": str(program)}
            | {"OWNER": pwd.getpwuid(os.geteuid()).pw_name, "MIN_FREE": "1000"}
            | settings,
        )
        calls = [line.split(" ")[:2] for line in notes.read_text().splitlines()]
        notes.unlink()
        return done, [" ".join(call) for call in calls]

    return run


STOP, START = "systemctl stop", "systemctl start"
DRY_RUN, CLEAN, VERIFY = "lastword clean", "lastword clean", "lastword verify"


def test_the_window_stops_cleans_verifies_and_starts(window):
    done, calls = window()
    assert (done.returncode, calls) == (0, [DRY_RUN, STOP, CLEAN, VERIFY, START]), done.stderr
    assert "frees 3355 bytes" in done.stdout
    done, calls = window()
    assert (done.returncode, calls) == (0, [DRY_RUN]), "a broker is not stopped for nothing"
    assert "kafka.service was not stopped" in done.stdout


@pytest.mark.parametrize(
    ("settings", "code", "calls"),
    [
        ({"DIR": "/nowhere"}, 2, [DRY_RUN]),
        ({"FAIL_UNIT": "stop"}, 5, [DRY_RUN, STOP, START]),
        ({"FAIL": "verify"}, 3, [DRY_RUN, STOP, CLEAN, VERIFY, START]),
        ({"FAIL_UNIT": "start"}, 5, [DRY_RUN, STOP, CLEAN, VERIFY, START]),
        ({"CLEAN_TIME": "0.01s", "SLEEP": "9"}, 0, [DRY_RUN, STOP, CLEAN, VERIFY, START]),
    ],
    ids=["the dry run", "stop", "verify", "start", "the time is over"],
)
def test_the_window_that_fails_starts_the_broker_again(window, settings, code, calls):
    if "DIR" not in settings:
        settings = {"ANSWER": '{"type":"summary","free_bytes":3355}', "SLEEP": "0"} | settings
    done, called = window(**settings)
    if "CLEAN_TIME" in settings and CLEAN not in called[2:]:
        called.insert(2, CLEAN)  # the process ended before it noted its call
    assert (done.returncode, called) == (code, calls), done.stdout + done.stderr


# ---------------------------------------------------------------- the page


@pytest.mark.parametrize(
    "line", [line for line in re.findall(r"^\$ (.*)$", PAGE, re.MULTILINE) if "lastword " in line]
)
def test_commands_of_the_page_can_be_typed(line, capsys):
    words = shlex.split(re.sub(r"\$\(.*?\)", "1", line))
    if words[0] == "docker":
        if words[1] == "build":
            assert (ROOT / words[words.index("-f") + 1]).exists() and words[-1] == "."
            return
        words = words[words.index("lastword") :]
    _parses(words[words.index("lastword") + 1 :], capsys)


def _parses(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Run the command on a missing directory: the refusal names the directory, not the options.

    `serve` makes a missing directory, so it gets a URL, which it refuses.
    """
    refusal = "does not exist"
    if arguments[0] == "serve":
        arguments, refusal = ["serve", "ftp://bucket/log", *arguments[2:]], "unknown scheme"
    code = main.run(arguments)
    said = capsys.readouterr().err
    assert code in (2, 6) and refusal in said, said


@pytest.mark.slow
@only_exhaustive
def test_the_image_builds(tmp_path):
    """The steps of the Dockerfile run in order, in a separate environment, without a container engine.

    The base image and the creation of the user are left out. Packages installed for this test are used if
    their versions are right.
    """
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    site = next(environment.glob("lib/python*/site-packages"))
    (site / "tests.pth").write_text(next(path for path in sys.path if path.endswith("site-packages")) + "\n")
    pip = environment / "bin" / "pip"
    pip.write_text(f'#!/bin/sh\nexec {environment / "bin" / "python"} -m pip "$@"\n')
    pip.chmod(0o755)
    home = tmp_path / "home"
    home.mkdir()
    variables = {"PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}", "HOME": str(home)}
    variables |= {"PIP_NO_COMPILE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    place = {
        "/src/": f"{tmp_path}/src/",
        "/src ": f"{tmp_path}/src ",
        "/src[": f"{tmp_path}/src[",
        "/home/lastword": str(home),
    }
    steps = re.sub(r"\\\n", "", DOCKERFILE)
    done = []
    for step in re.findall(r"^(COPY|ENV|RUN) (.*)$", steps, re.MULTILINE):
        kind, text = step
        for old, new in place.items():
            text = text.replace(old, new)
        if kind == "COPY":
            *sources, target = text.split()
            Path(target).mkdir(parents=True, exist_ok=True) if len(sources) > 1 else None
            for source in sources:
                copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
                copy(ROOT / source, target)
        elif kind == "ENV":
            name, _, value = text.partition("=")
            variables[name] = value
        elif "useradd" not in text:
            text = text.replace("rm -rf /src", f"rm -rf {tmp_path}/src")
            run = subprocess.run(
                ["sh", "-c", text], env=variables, capture_output=True, text=True, check=False
            )
            assert run.returncode == 0, (text, run.stdout, run.stderr)
            done.append(text.split()[0])
    assert done == ["pip", "lastword"]
    assert list((home / ".cache" / "lastword").glob("kernels-*/*"))
    command = [str(environment / "bin" / "lastword"), "--version"]
    shown = subprocess.run(command, env=variables, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert shown.stdout.startswith("lastword ")
