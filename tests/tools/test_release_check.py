"""The checks of `make release-check`, each on a package with a fault. The target builds and installs."""

from __future__ import annotations

import importlib
import io
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
METADATA = b"""Metadata-Version: 2.4
Name: lastword
Version: 1.2.3
Summary: A log.
Author: The lastword maintainers
License-Expression: Apache-2.0
Requires-Python: >=3.11

# lastword
"""


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("release_check")


def test_files_that_a_package_lacks_or_should_not_have(check: ModuleType, tmp_path: Path) -> None:
    tracked = ["README.md", "src/lastword/py.typed", "src/lastword/wire.py", "tests/golden/data/old/a.log"]
    tracked.append("src/lastword/a.pyi")  # the wheel has none
    for_wheel, for_source = check.expected_content(tracked)
    wheel, source = tmp_path / "a.whl", tmp_path / "a.tar.gz"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("lastword/wire.py", "")
        archive.writestr("lastword/__pycache__/wire.pyc", "")
    with tarfile.open(source, "w:gz") as archive:
        for name in ("PKG-INFO", *tracked):
            archive.addfile(tarfile.TarInfo(f"lastword-1.2.3/{name}"), io.BytesIO())
    assert list(check.differences("wheel", check.content(wheel), for_wheel)) == [
        "the wheel lacks 1 files: lastword/py.typed",
        "the wheel should not have 1 files: lastword/__pycache__/wire.pyc",
    ]
    assert list(check.differences("source package", check.content(source), for_source)) == [
        "the source package should not have 1 files: tests/golden/data/old/a.log"
    ]


def test_metadata(check: ModuleType) -> None:
    assert list(check.metadata_problems(METADATA, "1.2.3")) == []
    wrong = METADATA.replace(b"Author: The lastword maintainers\n", b"") + b"[a page](docs/spark.md)\n"
    assert list(check.metadata_problems(wrong, "1.2.4")) == [
        "the version of the package is 1.2.3, that of version.py 1.2.4",
        "the metadata have no Author",
        "links of the package's README hold only in the repository: docs/spark.md",
    ]


def test_a_tag_that_cannot_be_released(check: ModuleType) -> None:
    assert list(check.release_problems("v1.2.3", "1.2.3", "https://host.example/owner/name", "notes")) == []
    assert list(check.release_problems("1.2.3", "1.2.3", "", "")) == [
        "the tag is 1.2.3, and version.py has 1.2.3: the tag must be v1.2.3",
        check.ADDRESS,
        "CHANGELOG.md has no section `## 1.2.3`",
    ]


def test_notes_of_a_version(check: ModuleType) -> None:
    changelog = (
        "# Changelog\n\n## Unreleased\n\n- d\n\n## 1.2.3 (2026-12-01)\n\n### a\n\n- b\n\n## 1.2\n\n- c\n"
    )
    assert check.version_notes(changelog, "1.2.3") == "### a\n\n- b"
    assert check.version_notes(changelog, "1.2") == "- c"
    assert check.version_notes(changelog, "1.2.30") == ""


def test_the_blocks_that_an_installation_runs(check: ModuleType) -> None:
    """tests/api/test_readme.py runs them on the source."""
    blocks = check.first_blocks((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(blocks) == 2
    printed = "\n".join(
        [
            "{'ada': {'city': 'Turin'}}",
            "0 ada {'city': 'London'}",
            "3 bob None",
            "users-0: 4 records -> 2; the tombstone at 3 may go in 24 h",
        ]
    )
    assert check.missing_lines(blocks, printed) == []
    assert check.missing_lines(blocks, printed.replace("Turin", "Rome")) == ["{'ada': {'city': 'Turin'}}"]
