"""Compare the code lines of each package, and the lines of each module, with their limits.

    python scripts/limits.py              # what `make lint` runs; exit code 1 if a limit does not hold
    python scripts/limits.py --suggest    # the table with today's sizes plus a tenth

The table `[tool.lastword.limits]` has a line for each folder of src/lastword, and the line `lastword` for the
modules beside the folders. Code lines are those of scripts/figures.py. A module has at most MODULE_LINES
lines, with blank lines, comments and docstrings.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from figures import ROOT, code_lines

MODULE_LINES = 900
TABLE = "[tool.lastword.limits] of pyproject.toml"


def package_sizes(source: Path) -> dict[str, int]:
    """Return the code lines of each folder; under the name of `source` those of the modules beside them."""
    sizes: dict[str, int] = defaultdict(int)
    for path in sorted(source.rglob("*.py")):
        package, *rest = path.relative_to(source).parts
        sizes[package if rest else source.name] += len(code_lines(path.read_text(encoding="utf-8")))
    return dict(sorted(sizes.items()))


def problems(sizes: Mapping[str, int], limits: Mapping[str, int]) -> Iterator[str]:
    """Yield a sentence for each package above its limit or without one, and each limit without a package.

    Args:
        sizes: Code lines of each package.
        limits: The most code lines of each package.
    """
    for package, size in sizes.items():
        limit = limits.get(package)
        if limit is None:
            yield f"{package} has {size:,} code lines and no limit: add a line to {TABLE}"
        elif size > limit:
            yield (
                f"{package} has {size:,} code lines, and its limit is {limit:,}: make the package smaller, "
                f"or raise the limit in {TABLE} and give the reason in the commit"
            )
    for package in sorted(set(limits) - set(sizes)):
        yield f"{package} is no package of src/lastword: remove its line from {TABLE}"


def long_modules(source: Path) -> Iterator[str]:
    """Yield a sentence for each module that is too long."""
    for path in sorted(source.rglob("*.py")):
        name, lines = path.relative_to(source).as_posix(), len(path.read_text(encoding="utf-8").splitlines())
        if lines > MODULE_LINES:
            yield (
                f"{name} has {lines:,} lines, and a module has at most {MODULE_LINES}: divide it where a "
                "reader expects it"
            )


def suggested(sizes: Mapping[str, int]) -> Iterator[str]:
    """Yield the lines of the table: each size plus a tenth, rounded up to ten."""
    for package, size in sizes.items():
        yield f"{package} = {-(-size * 11 // 100) * 10}"


def main(arguments: list[str] | None = None) -> int:
    """Print the problems, or the table that fits today's sizes.

    Returns:
        1 if a limit does not hold, else 0.
    """
    parser = argparse.ArgumentParser(description="The limits of code lines of each package.")
    parser.add_argument(
        "--suggest", action="store_true", help="print the table with today's sizes plus a tenth"
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository; default: this one")
    options = parser.parse_args(arguments)
    sizes = package_sizes(options.root / "src" / "lastword")
    if options.suggest:
        print("\n".join(suggested(sizes)))
        return 0
    project = tomllib.loads((options.root / "pyproject.toml").read_text(encoding="utf-8"))
    broken = [
        *problems(sizes, project["tool"]["lastword"]["limits"]),
        *long_modules(options.root / "src" / "lastword"),
    ]
    print("".join(f"{problem}\n" for problem in broken), end="")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
