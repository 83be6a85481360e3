"""The root that is to be opened: is it a log directory, may it become one? And how many partitions are asked
for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from lastword.config import Settings
from lastword.errors import LastwordError, NotALogDirError, UsageError
from lastword.files import Files
from lastword.logdir.discover import Listing, discover
from lastword.records import limits
from lastword.segment import names


def check_log_dir(listing: Listing, root: str) -> None:
    """NotALogDirError unless something in the root says that it is one."""
    if not listing.is_log_dir:
        what = "is empty" if listing.is_empty else "holds no log"
        raise NotALogDirError(
            f"{root} {what}",
            remedy=f'lastword.open("{root}", "a") makes a log directory of an empty one'
            if listing.is_empty
            else "name a log directory",
            file=root,
        )


def check_writable(files: Files, root: str) -> bool:
    """True if the root is to be made: absent or empty. NotALogDirError if it holds something else."""
    if not files.exists(root):
        return True
    listing = discover(files, root)
    if listing.is_empty:
        return True
    check_log_dir(listing, root)
    return False


def register_limits(root: str) -> None:
    """Have the bounds of a directory's settings hold for files in it that are read without opening it: by
    `dump`, and by a Spark task. Settings that cannot be read leave the default."""
    with suppress(LastwordError):
        limits.register(root, Settings.load([root]).instance.lastword_decompression_max_bytes)


def make_dirs(files: Files, path: str) -> None:
    """Make a directory and those above it, each durable before the next."""
    if files.exists(path):
        return
    parent = os.path.dirname(os.path.realpath(path))
    make_dirs(files, parent)
    files.mkdir(path)
    files.fsync_dir(parent)


def partition_numbers(given: int | Iterable[int]) -> list[int]:
    """0 to n - 1 of a count, or the numbers themselves. UsageError for what is neither."""
    if isinstance(given, bool) or (isinstance(given, int) and given < 1) or isinstance(given, str):
        raise UsageError(f"a topic cannot have {given!r} partitions", remedy="give 1 or more")
    if isinstance(given, int):
        return list(range(given))
    if not isinstance(given, Iterable):
        raise UsageError(f"a topic cannot have {given!r} partitions", remedy="give 1 or more")
    return [names.check_partition(number) for number in given]
