"""The README of the package has links that hold on a package index; a page has the table of extras."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PAGE = """A [guide](docs/spark.md#read), a [page](https://kafka.apache.org), a [section](#licence).

![a picture](docs/a.svg)

```python
logs[0](docs/a.md)
```
"""


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("links")


def test_links_lead_to_the_files_of_the_tag(links: ModuleType) -> None:
    """Links of code, to other hosts and within the page stay."""
    address = "https://host.example/owner/name"
    assert links.absolute(PAGE, address, "1.2.3") == PAGE.replace(
        "(docs/spark.md#read)", f"({address}/blob/v1.2.3/docs/spark.md#read)"
    ).replace("(docs/a.svg)", f"({address}/raw/v1.2.3/docs/a.svg)")


def test_without_an_address_links_become_text(links: ModuleType) -> None:
    page = links.absolute(PAGE, "", "1.2.3")
    assert page == PAGE.replace("[guide](docs/spark.md#read)", "guide").replace(
        "![a picture](docs/a.svg)", "a picture"
    )


@pytest.mark.parametrize("address", ["", "https://host.example/owner/name"])
def test_the_page_of_the_package_has_no_relative_link(links: ModuleType, address: str) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(links.relative(readme)) > 10
    assert links.relative(links.absolute(readme, address, "1.2.3")) == []


def packages_of(requirement: str) -> list[str]:
    """Return the name of the package; for `lastword[a,b]` the names of the extras."""
    name, extras = re.match(r"([\w-]+)(?:\[(.*)\])?", requirement).groups()
    return extras.split(",") if name == "lastword" else [name]


def test_a_page_lists_each_extra_with_its_packages() -> None:
    """`dev` is for contributors."""
    page = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    table = page.partition("| extra | packages | size | for |\n")[2]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", table.partition("\n\n")[0], re.M)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {
        name: [package for requirement in requirements for package in packages_of(requirement)]
        for name, requirements in project["optional-dependencies"].items()
        if name != "dev"
    }
    assert {extra: packages.split(", ") for extra, packages in rows} == extras
