"""Every relative link of a page leads to a file and a heading; every module that a page names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("tests/**/*.md")])
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
MODULE = re.compile(r"`((?:\w+/)*\w+\.py)`")
SOURCE = re.compile(r"`((?:src/lastword|tests|examples|bench|deploy|docs|scripts)/[\w./-]*)`")


def prose(page: Path) -> str:
    """Return the text without its code blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub and MkDocs make of the headings."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert target.suffix == ".md" and anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named(page: Path) -> None:
    for path in SOURCE.findall(prose(page)):
        assert (ROOT / path).exists(), path


ABOUT_THE_CODE = [
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "docs/decisions.md",
    *sorted(ROOT.glob("docs/tour/*.md")),
]


@pytest.mark.parametrize("page", ABOUT_THE_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_modules_that_are_named(page: Path) -> None:
    """A name with a folder is a path below package or repository; a name alone may be any module's."""
    for name in MODULE.findall(prose(page)):
        if "/" in name:
            assert any((folder / name).exists() for folder in (ROOT, ROOT / "src/lastword")), name
        else:
            assert any(ROOT.glob(f"src/lastword/**/{name}")), name


def test_where_to_change_what_is_short() -> None:
    """A row names one or two files."""
    table = prose(ROOT / "ARCHITECTURE.md").partition("## Where do I change X?")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in table.splitlines() if line.startswith("|")][2:]
    assert 20 <= len(rows) <= 32
    for row in rows:
        assert 1 <= len(MODULE.findall(row[2])) <= 2, row
