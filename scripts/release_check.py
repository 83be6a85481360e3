"""Build the package as a release does, and check the files: metadata, sizes, contents, and an installation.

    python scripts/release_check.py                                # `make release-check`
    python scripts/release_check.py --tag v0.1.0 --notes notes.md  # the release workflow

Everything is made anew below build/release: `dist` has the files, `tools` the programs that build and check
them, `environment` the installation. With `--tag`, the tag must be that of the version, CHANGELOG.md must
have a section of the version, and the address of the repository must be set. The exit code is 1 if there is a
problem.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterable, Iterator
from email import message_from_bytes
from pathlib import Path

from links import absolute, relative

ROOT = Path(__file__).parent.parent
HOME = ROOT / "build" / "release"
TOOLS = ("build>=1.2", "twine>=6")
MOST_BYTES = {".whl": 1_600_000, ".gz": 4_000_000}
ADDRESS = "the address of the repository is not set: `repository` in [tool.lastword] of pyproject.toml"


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run a command without the caller's PYTHONPATH and return its stdout; a failure ends the check."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    variables["LASTWORD_CACHE_DIR"] = str(HOME / "cache")  # no kernels that another installation has compiled
    done = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(
            f"{' '.join(map(str, command))[:500]}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def python_of(directory: Path, *packages: str | Path) -> Path:
    """Make a virtual environment with these packages, and return its Python."""
    venv.create(directory, with_pip=True)
    python = directory / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    return python


def content(path: Path) -> dict[str, bytes]:
    """Return the files of a wheel, or of a source package without its top folder, by name."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist()}
    files = {}
    with tarfile.open(path) as source:
        for member in source:
            file = source.extractfile(member)
            files[member.name.partition("/")[2]] = file.read() if file else b""
    return files


def differences(kind: str, names: Iterable[str], expected: Iterable[str]) -> Iterator[str]:
    """Yield a sentence if files are missing, and one if there are others than expected, such as caches."""
    found, wanted = set(names), set(expected)
    for verb, files in (("lacks", wanted - found), ("should not have", found - wanted)):
        if files:
            shown = ", ".join(sorted(files)[:5]) + (" ..." if len(files) > 5 else "")
            yield f"the {kind} {verb} {len(files):,} files: {shown}"


def expected_content(tracked: Iterable[str]) -> tuple[set[str], set[str]]:
    """Return the files of wheel and source package, from those of git; without the wheel's metadata."""
    files = set(tracked)
    wheel = {name.removeprefix("src/") for name in files if re.match(r"src/.*(?<!\.pyi)$", name)}
    source = {name for name in files if not name.startswith("tests/golden/data/")} | {"PKG-INFO"}
    return wheel, source


def metadata_problems(metadata: bytes, version: str) -> Iterator[str]:
    """Yield the problems of a METADATA file that a package index would show."""
    message = message_from_bytes(metadata)
    if message["Version"] != version:
        yield f"the version of the package is {message['Version']}, that of version.py {version}"
    for name in ("Author", "License-Expression", "Requires-Python", "Summary"):
        if not message[name]:
            yield f"the metadata have no {name}"
    targets = relative(message.get_payload())
    if targets:
        yield f"links of the package's README hold only in the repository: {', '.join(targets)}"


def version_notes(changelog: str, version: str) -> str:
    """Return the section of a version in the changelog, without its heading; empty if there is none."""
    section = re.search(
        rf"^## \[?{re.escape(version)}\]?(?: [^\n]*)?\n(.*?)(?=^## |\Z)", changelog, re.M | re.S
    )
    return section[1].strip() if section else ""


def release_problems(tag: str, version: str, repository: str, notes: str) -> Iterator[str]:
    """Yield the reasons for which a tag cannot be released."""
    if tag != f"v{version}":
        yield f"the tag is {tag}, and version.py has {version}: the tag must be v{version}"
    if not repository:
        yield ADDRESS
    if not notes:
        yield f"CHANGELOG.md has no section `## {version}`"


def first_blocks(readme: str) -> list[str]:
    """Return the Python blocks of the README's section `Five minutes` that need no other package."""
    section = readme.partition("\n## Five minutes\n")[2].partition("\n## ")[0]
    return [b for b in re.findall(r"^```python\n(.*?)^```", section, re.M | re.S) if "spark" not in b]


def missing_lines(blocks: Iterable[str], printed: str) -> list[str]:
    """Return the lines that comments behind `print` announce, and that were not printed."""
    comments = [comment for block in blocks for comment in re.findall(r"print\(.*#\s(.*)", block)]
    announced = [line for comment in comments for line in comment.split(" ... ")]
    return [line for line in announced if line not in printed.splitlines()]


def installation_problems(wheel: Path, version: str) -> Iterator[str]:
    """Install the wheel in an empty environment, run the README's first blocks there, and yield problems."""
    python = python_of(HOME / "environment", wheel)
    blocks = first_blocks((ROOT / "README.md").read_text(encoding="utf-8"))
    place = HOME / "work"
    place.mkdir()
    missing = missing_lines(blocks, run(python, "-I", "-c", "\n".join(blocks), cwd=place))
    if len(blocks) < 2 or missing:
        yield f"of {len(blocks)} blocks of the README these lines were not printed: {missing}"
    command = python.with_name("lastword")
    shown = run(command, "--version", cwd=place)
    if version not in shown.split():
        yield f"`lastword --version` prints {shown!r}"
    run(command, "verify", "data", cwd=place)
    print(f"{len(blocks)} blocks of the README ran on {wheel.name}, then `lastword verify`", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Build and check the package.

    Returns:
        1 if there is a problem, else 0.
    """
    parser = argparse.ArgumentParser(description="Build the package and check the files of a release.")
    parser.add_argument("--tag", help="the tag of a release")
    parser.add_argument("--notes", type=Path, help="write the section of the changelog to this file")
    options = parser.parse_args(arguments)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["lastword"]
    repository = settings["repository"]
    (version,) = re.findall(r'__version__ = "(.*)"', (ROOT / "src/lastword/version.py").read_text())
    notes = version_notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    problems = list(release_problems(options.tag, version, repository, notes)) if options.tag else []

    shutil.rmtree(HOME, ignore_errors=True)
    dist = HOME / "dist"
    tools = python_of(HOME / "tools", *TOOLS)
    run(tools, "-m", "build", "--outdir", dist, ROOT)
    packages = sorted(dist.iterdir())
    run(tools, "-m", "twine", "check", "--strict", *packages)
    for path in packages:
        size = path.stat().st_size
        print(f"{path.name}: {size:,} bytes, {len(content(path)):,} files", flush=True)
        if size > MOST_BYTES[path.suffix]:
            problems.append(f"{path.name} has more than {MOST_BYTES[path.suffix]:,} bytes")
    source, wheel = dist / f"lastword-{version}.tar.gz", dist / f"lastword-{version}-py3-none-any.whl"
    if packages != sorted((source, wheel)):
        sys.exit(f"other packages than {source.name} and {wheel.name}: {[path.name for path in packages]}")
    for_wheel, for_source = expected_content(run("git", "ls-files", "-z").rstrip("\0").split("\0"))
    files = content(wheel)
    about = f"lastword-{version}.dist-info/"
    problems += differences("wheel", {name for name in files if not name.startswith(about)}, for_wheel)
    problems += differences("source package", content(source), for_source)
    problems += metadata_problems(files[f"{about}METADATA"], version)
    problems += installation_problems(wheel, version)
    if not options.tag and not repository:
        print(f"note: {ADDRESS}, so the package's README has no links to pages of the repository")
    if options.notes:
        options.notes.write_text(absolute(notes, repository, version) + "\n", encoding="utf-8")
    print("".join(f"problem: {problem}\n" for problem in problems), end="")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
