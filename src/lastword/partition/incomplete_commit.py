"""Note where a commit begins in a partition until all of the commit is in the log.

A commit is appended in several steps, and a stop between two steps leaves a part of its batches in the log.
`<partition>/lastword/staging-<commit>/begun.json` (framed JSON) holds the log end before the first append.
A second try compares the batches above that offset with the staged batches and appends what is missing. So
nothing above that offset is cleaned, trimmed or moved meanwhile: a rewritten batch would not be recognized,
and its records would be appended twice.
"""

from __future__ import annotations

import os

from lastword.errors import CorruptFileError, FileVanishedError
from lastword.files import Files
from lastword.files.framed import Framed
from lastword.segment import names

STAGING = "staging-"
BEGUN = "begun.json"
BEGUN_FORM = Framed(
    "begun",
    1,
    "bad-begun",
    "restore the file from a copy; without one the commit is refused when the directory is next opened to "
    "write, and its batches that are in the log stay",
)


def staging_dir(directory: str, commit_id: str) -> str:
    """Return the directory of a commit's staged files in one partition."""
    return os.path.join(directory, names.PRIVATE, STAGING + commit_id)


def begin(files: Files, directory: str, commit_id: str, log_end: int) -> int:
    """Return the log end at which the commit began. The first call notes `log_end` durably.

    CorruptFileError if the note is damaged: batches that are in the log could not be recognized.
    """
    path = os.path.join(staging_dir(directory, commit_id), BEGUN)
    if files.exists(path):
        return read_begun(files, path)
    BEGUN_FORM.save(files, path, {"log_end": log_end})
    return log_end


def discard(files: Files, directory: str, commit_id: str) -> None:
    """Remove what was staged for a commit in one partition, and the note of its beginning."""
    folder = staging_dir(directory, commit_id)
    if files.exists(folder):
        files.remove_tree(folder)


def incomplete_commit_offset(files: Files, directory: str) -> int | None:
    """Return the lowest offset at which an incomplete commit begins; None if all commits are complete.

    An unreadable note counts as 0.
    """
    private = os.path.join(directory, names.PRIVATE)
    offsets: list[int] = []
    try:
        for name in files.listdir(private):
            path = os.path.join(private, name, BEGUN)
            if name.startswith(STAGING) and files.exists(path):
                offsets.append(_read_or_0(files, path))
    except FileVanishedError:  # no private directory, or a commit was completed meanwhile
        pass
    return min(offsets, default=None)


def below(offset: int, incomplete: int | None) -> int:
    """Return `offset`, lowered to where an incomplete commit begins."""
    return offset if incomplete is None else min(offset, incomplete)


def read_begun(files: Files, path: str) -> int:
    """Return the log end that a note holds. CorruptFileError if the note is damaged."""
    log_end = BEGUN_FORM.decode(files.read_bytes(path), path).get("log_end")
    if not isinstance(log_end, int) or isinstance(log_end, bool) or log_end < 0:
        raise BEGUN_FORM.damaged(path, "it names no log end")
    return log_end


def _read_or_0(files: Files, path: str) -> int:
    try:
        return read_begun(files, path)
    except CorruptFileError:
        return 0
