"""The links of Markdown pages, without those in blocks of code."""

from __future__ import annotations

import re
from collections.abc import Callable

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
"""A link, or a picture: `!` or nothing, label, target."""
CODE = re.compile(r"(^```.*?^```)", re.M | re.S)


def changed(text: str, change: Callable[[re.Match[str]], str]) -> str:
    """Return the text with each match of `LINK` replaced, but for those in blocks of code."""
    return "".join(part if part.startswith("```") else LINK.sub(change, part) for part in CODE.split(text))


def relative(text: str) -> list[str]:
    """Return the targets of links and pictures that hold only beside the files of the repository."""
    prose = CODE.sub("", text)
    return [target for _, _, target in LINK.findall(prose) if "://" not in target and target[0] != "#"]


def absolute(text: str, repository: str, version: str) -> str:
    """Return a page of the root with links that hold elsewhere.

    Args:
        text: Markdown with links that hold in the root of the repository.
        repository: The address of the repository on GitHub. If it is empty, a relative link becomes its label
            and a picture its description.
        version: The links lead to the files of this version's tag.
    """

    def change(match: re.Match[str]) -> str:
        mark, label, target = match.groups()
        if not relative(match[0]):
            return match[0]
        if not repository:
            return label
        return f"{mark}[{label}]({repository}/{'raw' if mark else 'blob'}/v{version}/{target})"

    return changed(text, change)
