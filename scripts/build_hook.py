"""A hook of hatchling: the README and the links of the package, from the address of the repository.

The address is `repository` in `[tool.lastword]` of pyproject.toml. A package index has no other file of the
repository, so each relative link of the README becomes absolute; without an address it becomes text.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

sys.path.insert(0, str(Path(__file__).parent))

from links import absolute


class PackagePage(MetadataHookInterface):
    """Sets the fields `readme` and `urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the fields of one build.

        Args:
            metadata: The table `[project]`, with the version.
        """
        root = Path(self.root)
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
        repository = project["tool"]["lastword"]["repository"].rstrip("/")
        version = metadata["version"]
        text = (root / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, repository, version)}
        pages = {
            "Source": "",
            "Documentation": f"/tree/v{version}/docs",
            "Changelog": f"/blob/v{version}/CHANGELOG.md",
            "Issues": "/issues",
        }
        metadata["urls"] = {name: repository + page for name, page in pages.items() if repository}
