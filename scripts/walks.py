"""Count the modules that three calls run through: an append to disk, one cleaning, a restore.

    python scripts/walks.py            # a line for each walk, its modules below it
    python scripts/walks.py --json     # one object

Each call runs twice on a small log, and the second run is traced, so that imports do not count. A module
counts if one of its functions runs after the walk has begun:

    append to disk   `Topic.append`, to the end of the call
    one cleaning     `cleaner.engine.cleaning.clean`, to the end of `LogDir.clean`
    restore          `state.newest.newest_pairs`, to the end of `LogDir.state`

Compiled kernels do not count: they are not Python functions. The packages that every package may import
(`files`, `config`, `clock` ...) are listed apart.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

import lastword

PACKAGE = Path(lastword.__file__).parent
GROUND = (
    "arrow",
    "errors",
    "config",
    "units",
    "parse",
    "clock",
    "files",
    "metrics",
    "values",
    "version",
    "wire",
)


def traced(call: Callable[[], Any], start: tuple[str, str]) -> list[str]:
    """Return the modules whose functions run during the call, in the order in which they are entered.

    Args:
        call: A public call.
        start: Module and function with which the walk begins.
    """
    modules: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if (
            event != "call"
            or code.co_name == "<module>"
            or not code.co_filename.startswith(f"{PACKAGE}{os.sep}")
        ):
            return
        path = Path(code.co_filename).relative_to(PACKAGE)
        name = ".".join((path.parent if path.name == "__init__.py" else path.with_suffix("")).parts)
        if modules or (name, code.co_name) == start:
            modules[name] = None

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return list(modules)


def append_to_disk(directory: Path) -> list[str]:
    """Trace an append of one record at `ack="disk"`. A record with headers is appended the general way."""
    with lastword.open(directory, "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic("users", key_serializer="str", cleanup_policy="compact")
        topic.append("ada", b"London", ack="disk")
        headers = {"source": b"walk"}
        return traced(
            lambda: topic.append("ada", b"Turin", headers=headers, ack="disk"), ("api.topic", "append")
        )


def one_cleaning(directory: Path) -> list[str]:
    """Trace a cleaning of one partition that has garbage in closed segments."""
    modules: list[str] = []
    with lastword.open(directory, "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic(
            "users", key_serializer="str", cleanup_policy="compact", segment_bytes="4KiB"
        )
        for _ in range(2):
            topic.extend((f"user-{number % 50}", b"." * 50) for number in range(1000))
            modules = traced(lambda: logs.clean("users"), ("cleaner.engine.cleaning", "clean"))
    return modules


def restore(directory: Path) -> list[str]:
    """Trace the restore of a state from a log that was never cleaned."""
    with lastword.open(directory, "a", log_cleaner_enable=False) as logs:
        topic = logs.create_topic("users", key_serializer="str", cleanup_policy="compact")
        topic.extend((f"user-{number % 50}", b"." * 50) for number in range(1000))
    modules: list[str] = []
    for _ in range(2):
        with lastword.open(directory) as logs:
            modules = traced(lambda: logs.state("users"), ("state.newest", "newest_pairs"))
    return modules


def walks() -> dict[str, dict[str, list[str]]]:
    """Return the modules of each walk; under `ground` those that every package may import."""
    result = {}
    for walk in (append_to_disk, one_cleaning, restore):
        with tempfile.TemporaryDirectory() as directory:
            modules = walk(Path(directory))
        ground = [name for name in modules if name.partition(".")[0] in GROUND]
        result[walk.__name__.replace("_", " ")] = {
            "modules": [name for name in modules if name not in ground],
            "ground": ground,
        }
    return result


def main() -> None:
    """Print the walks."""
    parser = argparse.ArgumentParser(description="The modules that three calls run through.")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    result = walks()
    if parser.parse_args().json:
        print(json.dumps(result, indent=2))
        return
    for name, walk in result.items():
        print(f"modules of the walk '{name}': {len(walk['modules'])}; ground floor: {len(walk['ground'])}")
        print(f"  {' '.join(walk['modules'])}\n  ground floor: {' '.join(walk['ground'])}")


if __name__ == "__main__":
    main()
