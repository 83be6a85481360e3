"""The workflows run commands that anyone can run; the nightly one runs every longer proof."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
WORKFLOWS = ROOT / ".github" / "workflows"
PROOFS = {
    *("test", "lowest", "check", "exhaustive", "sail", "systems", "clusters", "memory-spark", "pipeline"),
    *("pipeline-bucket", "release-check", "bench"),
    *re.findall(r"^([a-z-]+):.* make \1 N=", MAKEFILE, re.MULTILINE),
}
"""Each target whose help names a size is one."""


def test_nightly_has_every_longer_proof() -> None:
    (line,) = re.findall(r"for proof in (.*); do", MAKEFILE)
    named = {word.strip("'").split()[0] for word in re.findall(r"'[^']*'|\S+", line)}
    assert named == PROOFS
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    assert named <= targets


def test_workflows_call_what_anyone_can_call() -> None:
    scheduled, ordinary = ((WORKFLOWS / f"{name}.yml").read_text() for name in ("nightly", "ci"))
    assert "schedule:" in scheduled and "run: make nightly 2>&1 | tee nightly.log\n" in scheduled
    assert "schedule:" not in ordinary and "run: .ci/run ${{ matrix.part }}\n" in ordinary
    assert 'exec make "${@:-test}"\n' in (ROOT / ".ci" / "run").read_text()


def test_the_parts_of_the_test_command_are_all_of_it() -> None:
    """CI runs them side by side, on one machine each."""
    parts = yaml.safe_load((WORKFLOWS / "ci.yml").read_text())["jobs"]["test"]["strategy"]["matrix"]["part"]
    assert len(parts) == 4
    (engines,) = re.findall(r",-j 3\) (test-.*)", MAKEFILE)
    (beside,) = re.findall(r"-j 5 COMPILED=bytecode (.*) test-engines test-local; ", MAKEFILE)
    assert {target for part in parts for target in part.split()} == {beside, "test-local", *engines.split()}


def test_a_run_at_night_keeps_the_log_the_exit_code_and_the_time_of_each_proof(tmp_path: Path) -> None:
    stub = tmp_path / "stub"
    stub.write_text("#!/bin/sh\necho ran $*\ncase $* in *soak*) exit 3;; esac\n")
    stub.chmod(0o755)
    command = ["make", "-f", str(ROOT / "Makefile"), "nightly", f"MAKE={stub}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    kept = tmp_path / "build" / "nightly"
    rows = [line.split("\t") for line in (kept / "results.tsv").read_text().splitlines()]
    assert {proof.split()[0] for proof, _, _ in rows} == PROOFS
    assert {proof for proof, code, _ in rows if code != "0"} == {"soak N=10000000"}
    assert done.returncode != 0 and "failed: soak" in done.stdout
    assert len(list(kept.glob("*.log"))) == len(rows)
    assert (kept / "soak N=10000000.log").read_text() == "ran --no-print-directory soak N=10000000\n"


def test_a_failed_proof_fails_the_nightly_run_and_keeps_its_log() -> None:
    """A pipe to `tee` fails with the proof only if the workflow names the shell: then it has pipefail."""
    job = yaml.safe_load((WORKFLOWS / "nightly.yml").read_text())["jobs"]["proofs"]
    proofs, upload = job["steps"][-2:]
    assert proofs["shell"] == "bash" and proofs["timeout-minutes"] < job["timeout-minutes"]
    log, results = upload["with"]["path"].split()
    assert upload["if"] == "always()" and log in proofs["run"] and f'tee "{results}/' in MAKEFILE


def test_a_release_is_built_by_its_check_and_published_without_a_secret() -> None:
    text = (WORKFLOWS / "release.yml").read_text()
    jobs = yaml.safe_load(text)["jobs"]
    assert any("scripts/release_check.py --tag" in step.get("run", "") for step in jobs["build"]["steps"])
    assert jobs["publish"]["needs"] == "build" and "permissions" not in jobs["build"]
    assert jobs["publish"]["permissions"] == {
        "id-token": "write",
        "attestations": "write",
        "contents": "write",
    }
    assert "secrets." not in text


def test_actions_are_pinned_by_major_version() -> None:
    for workflow in WORKFLOWS.glob("*.yml"):
        used = re.findall(r"uses: (\S+)", workflow.read_text())
        assert used
        for action in used:
            assert re.fullmatch(r"[\w./-]+@(release/)?v\d+", action), (workflow.name, action)


def test_forms_and_settings_of_the_repository_are_read() -> None:
    github = ROOT / ".github"
    bug, question = (
        yaml.safe_load((github / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
        for name in ("bug", "question")
    )
    assert any(field["attributes"]["label"] == "lastword verify DIR --json" for field in bug["body"][1:])
    assert bug["name"] and question["name"]
    ecosystems = {
        update["package-ecosystem"]: update["directory"]
        for update in yaml.safe_load((github / "dependabot.yml").read_text())["updates"]
    }
    assert set(ecosystems) == {"github-actions", "pip", "docker"}
    assert (ROOT / ecosystems["docker"].strip("/") / "Dockerfile").is_file()
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    assert container["postCreateCommand"] == "make install"


def test_every_version_of_python_that_is_claimed_is_run() -> None:
    claimed = re.findall(
        r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text()
    )
    ordinary = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert re.findall(r'python: "(3\.\d+)", target: check}', ordinary) == claimed
    rows = yaml.safe_load(ordinary)["jobs"]["versions"]["strategy"]["matrix"]["include"]
    others = {(row.get("machine"), row["python"]) for row in rows if "machine" in row or "trial" in row}
    assert others == {("ubuntu-24.04-arm", "3.11"), ("macos-15", "3.12")}
    (line,) = re.findall(r"for proof in (.*); do", MAKEFILE)
    assert [
        claimed[0],
        *re.findall(r"check PYTHON=python(3\.\d+)", line),
    ] == claimed  # `test` runs on the first
    assert f'python: "{claimed[0]}", target: lowest' in ordinary
    steps = yaml.safe_load((WORKFLOWS / "nightly.yml").read_text())["jobs"]["proofs"]["steps"]
    (installed,) = [
        step["with"]["python-version"].split() for step in steps if "setup-python" in step.get("uses", "")
    ]
    assert installed == [*claimed[1:], claimed[0]]  # the last is python3
