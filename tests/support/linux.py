"""What only Linux has: tests of it, and the suite without it (`LASTWORD_PORTABLE=1 make check`)."""

from __future__ import annotations

import fcntl
import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.portable.sitecustomize import take_away

PORTABLE = bool(os.environ.get("LASTWORD_PORTABLE"))
SITE = Path(__file__).parent / "portable"

#: A test of a call, or of a fact of /proc, that the system under test does not have.
linux_only = pytest.mark.skipif(PORTABLE or sys.platform != "linux", reason="only Linux has the call")


def open_paths() -> list[str]:
    """Return the paths of this process's open files."""
    paths = []
    for link in Path("/dev/fd").iterdir():
        with suppress(OSError):  # the descriptor of the listing itself
            get_path = getattr(fcntl, "F_GETPATH", None)  # macOS
            if get_path is None:
                paths.append(str(link.readlink()))
            else:
                paths.append(os.fsdecode(fcntl.fcntl(int(link.name), get_path, bytes(1024)).rstrip(b"\0")))
    return paths


def take_calls_away() -> None:
    """Take them away here, and in every process that tests start."""
    take_away()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SITE), os.environ.get("PYTHONPATH")]))
