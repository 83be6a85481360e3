"""Programs that run as a user other than the one who runs the tests."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65_534


def run_as(uid: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run this Python with arguments as another user, or as the same user if that is not root.

    The test is skipped where the user cannot run this interpreter or import the package: a clone in a home
    directory of mode 0700 is closed to every other user.
    """
    reason = _obstacle(uid)
    if reason is not None:
        pytest.skip(reason)
    return _run(uid, arguments)


@contextmanager
def public_directory() -> Iterator[Path]:
    """Make a directory that every user can enter: pytest's own are for one user."""
    with tempfile.TemporaryDirectory(prefix="lastword-users-") as made:
        path = Path(made)
        path.chmod(0o755)
        closed = [parent for parent in path.parents if not parent.stat().st_mode & 0o001]
        if closed and os.geteuid() == 0:
            pytest.skip(f"other users cannot enter {closed[0]}: set TMPDIR to a directory that all may enter")
        yield path


def _run(uid: int, arguments: tuple[object, ...]) -> subprocess.CompletedProcess[str]:
    become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"] if os.geteuid() == 0 else []
    return subprocess.run(
        [*become, sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd="/",
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "HOME": "/nonexistent"},
    )


@functools.cache
def _obstacle(uid: int) -> str | None:
    """Return why the user cannot run the package, or None."""
    if os.geteuid() != 0:
        return None
    if shutil.which("setpriv") is None:
        return "there is no setpriv to become another user"
    tried = _run(uid, ("-c", "import lastword.cli.main, numba"))
    if tried.returncode == 0:
        return None
    last = (tried.stderr.strip().splitlines() or ["no output"])[-1]
    return f"user {uid} cannot run {sys.executable} with this package: {last}"
