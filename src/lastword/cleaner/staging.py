"""Where outputs are built: a private directory for each, `<partition>/lastword/rewrite-<base
offset>-<token>/`.

Nobody but the round that made it knows its name, so a second attempt at the same group never meets the
first one's files. A directory that was not published is waste, and `remove_leftovers` removes it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from lastword.errors import FileTakenError
from lastword.files import Files
from lastword.segment import names


def _token() -> str:
    return os.urandom(8).hex()


def make(files: Files, partition_directory: str, base_offset: int, token: Callable[[], str] = _token) -> str:
    """A new private directory for one output."""
    private = f"{partition_directory}/{names.PRIVATE}"
    if not files.exists(private):
        with suppress(FileTakenError):  # another output, or a reader's lease, came first
            files.mkdir(private)
        files.fsync_dir(partition_directory)
    path = f"{private}/{names.REWRITE_PREFIX}{base_offset:020d}-{token()}"
    files.mkdir(path)
    return path


def discard(files: Files, path: str) -> None:
    """Remove an output that nobody will publish, or what a swap left of its directory."""
    if files.exists(path):
        files.remove_tree(path)


def remove_leftovers(files: Files, partition_directory: str) -> int:
    """Remove every unpublished output of a partition; returns how many. For its only round."""
    private = f"{partition_directory}/{names.PRIVATE}"
    if not files.exists(private):
        return 0
    found = [name for name in files.listdir(private) if name.startswith(names.REWRITE_PREFIX)]
    for name in found:
        discard(files, f"{private}/{name}")
    return len(found)
