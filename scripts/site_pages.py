"""A hook of MkDocs: add the repository's own pages to the site, and adapt their links.

README.md becomes the home page; ARCHITECTURE.md, CHANGELOG.md and CONTRIBUTING.md become pages. A link to a
page of the site leads there. A link to another file of the repository becomes plain text, because the site
has no copy of the source.

In docs/reference.md the functions of `lastword.spark` are replaced by their full names, because mkdocstrings
finds modules of the same names first.
"""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
SOURCES = {page: source for source, page in PAGES.items()}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
CODE = re.compile(r"(^```.*?^```)", re.M | re.S)


FUNCTION = re.compile(r"^::: (lastword\.spark)\.(\w+)$", re.M)


def full_name(match: re.Match[str]) -> str:
    """Return the directive for a function with the module that defines it."""
    function = getattr(importlib.import_module(match[1]), match[2])
    return f"::: {function.__module__}.{function.__qualname__}"


def page_of(path: str) -> str | None:
    """Return the page or picture of the site for a path in the repository; None if there is none."""
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/") and path.endswith((".md", ".svg")):
        return path.removeprefix("docs/")
    return None


def adapted(text: str, page: str) -> str:
    """Return the Markdown of a page with links that hold on the site.

    Args:
        text: Markdown with links that hold in the repository.
        page: Path of the page on the site.
    """
    source = SOURCES.get(page, f"docs/{page}")

    def replace(match: re.Match[str]) -> str:
        mark, label, link = match.groups()
        path, hash_mark, anchor = link.partition("#")
        if "://" in link or not path:
            return match[0]
        target = page_of(os.path.normpath(os.path.join(os.path.dirname(source), path)))
        if target is None:
            return label
        return f"{mark}[{label}]({os.path.relpath(target, os.path.dirname(page) or '.')}{hash_mark}{anchor})"

    return "".join(part if part.startswith("```") else LINK.sub(replace, part) for part in CODE.split(text))


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages whose source is outside the folder of documents."""
    from mkdocs.structure.files import File

    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Adapt the links of each page."""
    return FUNCTION.sub(full_name, adapted(markdown, page.file.src_uri))
