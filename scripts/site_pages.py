"""A hook of MkDocs: add the repository's own pages to the site, and adapt their links.

README.md becomes the home page; ARCHITECTURE.md, CHANGELOG.md and CONTRIBUTING.md become pages. A link to a
page of the site leads there. A link to another file of the repository becomes plain text, because the site
has no copy of the source. The notebooks are executed, and become pages with their outputs and pictures.
SITE_NOTEBOOKS names those to execute (`state,spark` if it is not set); the others are shown without outputs.

With the address of the repository (pyproject.toml, or SITE_REPOSITORY) each page has links to it, and to edit
its source.

The search ranks guides before private formats.

In docs/reference/spark.md the functions of `lastword.spark` are replaced by their full names, because
mkdocstrings finds modules of the same names first.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from links import changed  # MkDocs finds modules beside a hook

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
NOTEBOOKS = {f"examples/{name}.ipynb": f"notebooks/{name}.md" for name in ("state", "spark")}
PAGES |= NOTEBOOKS
SOURCES = {page: source for source, page in PAGES.items()}
GUIDES = (
    "index",
    "kafka",
    "python",
    "spark",
    "cleaning",
    "server",
    "testing",
    "operations",
    "not-shrinking",
    "full-drive",
    "bucket",
    "commands",
)


def notebook_files(notebook: Path) -> dict[str, bytes]:
    """Return the page of a notebook and its pictures by their paths on the site."""
    if notebook.stem not in os.environ.get("SITE_NOTEBOOKS", "state,spark").split(","):
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        texts = [("".join(cell["source"]), cell["cell_type"] == "code") for cell in cells]
        page = "\n\n".join(f"```python\n{text}\n```" if code else text for text, code in texts)
        return {f"notebooks/{notebook.stem}.md": page.encode()}
    # A process of its own, because a Spark session stays in its process.
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "scripts" / "run_notebook.py"), str(notebook), folder]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{notebook.name} failed:\n{done.stderr}")
        return {f"notebooks/{path.name}": path.read_bytes() for path in Path(folder).glob("*.[ms][dv]*")}


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
        if "://" in link or not path or (mark and source in NOTEBOOKS):  # its pictures are beside the page
            return match[0]
        target = page_of(os.path.normpath(os.path.join(os.path.dirname(source), path)))
        if target is None:
            return label
        return f"{mark}[{label}]({os.path.relpath(target, os.path.dirname(page) or '.')}{hash_mark}{anchor})"

    return changed(text, replace)


def repository() -> str:
    """Return the address of the repository; empty if there is none yet."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return os.environ.get("SITE_REPOSITORY", project["tool"]["lastword"]["repository"])


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the link to the repository in the head of each page."""
    if address := repository():
        config.repo_url, config.repo_name = address, address.partition("://")[2].partition("/")[2]
    return config


SHIM = "https://unpkg.com/iframe-worker/shim"
"""The script that the theme loads to search a site that is opened from a disk."""


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """Replace a script of another host by our own."""
    return output.replace(
        SHIM, os.path.relpath("offline-search.js", os.path.dirname(page.file.dest_uri) or ".")
    )


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages whose source is outside the folder of documents."""
    from mkdocs.structure.files import File

    for source, page in PAGES.items():
        pages = notebook_files(ROOT / source) if source in NOTEBOOKS else {page: (ROOT / source).read_bytes()}
        for path, content in pages.items():
            files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Adapt the links of each page, and set its rank in a search."""
    name = page.file.src_uri.removesuffix(".md")
    if config.repo_url:
        page.edit_url = (
            f"{config.repo_url}/edit/main/{SOURCES.get(page.file.src_uri, f'docs/{page.file.src_uri}')}"
        )
    low = {"formats": 0.2, "changelog": 0.2, "reference": 0.3}
    boost = 4 if name in GUIDES else low.get(name.partition("/")[0], 1)
    page.meta["search"] = {"boost": boost}
    return FUNCTION.sub(full_name, adapted(markdown, page.file.src_uri))
