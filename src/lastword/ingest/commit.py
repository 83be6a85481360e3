"""Commit staged files from a process that does not hold the directory's lock."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from lastword.errors import BusyError, DataError, FileVanishedError, LastwordError, LogDirLockedError
from lastword.files import Files
from lastword.ingest.apply import ingest_pending
from lastword.ingest.manifest import Manifest, next_number, read_refusal
from lastword.logdir.log_dir import LogDirectory
from lastword.segment import names


def commit(
    root: str,
    manifest: Manifest,
    files: Files,
    open_log_dir: Callable[[], LogDirectory],
    *,
    patience_seconds: float,
    sleep: Callable[[float], None] = time.sleep,
    monotonic: Callable[[], float] = time.monotonic,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> None:
    """Put the manifest into the inbox, and return when it is ingested, by this process or another.

    Args:
        open_log_dir: Opens the directory to append, or raises LogDirLockedError.
        patience_seconds: How long to wait for another process to ingest the manifest.

    Raises:
        BusyError: The holder of the lock did not ingest the manifest in time: it is a broker, or does not
            watch the inbox. The manifest was removed, and nothing was written.
        DataError: The commit was refused; its staged files are damaged, or a topic is gone.
    """
    name = f"{next_number(files, root, now_ms()):020d}-{manifest.commit_id}"
    waiting = os.path.join(root, names.INBOX + name)
    applying = os.path.join(root, names.APPLYING + name)
    refused = os.path.join(root, names.REFUSED + name)
    files.write_atomic(waiting, manifest.encoded())
    deadline = monotonic() + patience_seconds
    while True:
        _check_refusal(files, refused, manifest)
        if not files.exists(waiting) and not files.exists(applying):
            if files.exists(refused):
                continue
            return
        try:
            with open_log_dir() as directory:
                ingest_pending(directory)
                continue
        except LogDirLockedError as error:
            late = monotonic() - deadline
            if late > 0:
                _stop_waiting(error, files, root, waiting, late, patience_seconds)
        except LastwordError as error:
            if not _add_outcome(error, files, root, waiting, applying, manifest.commit_id):
                continue  # this manifest is ingested: another one failed
            raise
        sleep(0.05)


def _check_refusal(files: Files, refused: str, manifest: Manifest) -> None:
    if files.exists(refused):
        reason = read_refusal(files, refused)
        raise DataError(f"commit {manifest.commit_id} was refused: {reason}", file=refused)


def _stop_waiting(
    error: LogDirLockedError, files: Files, root: str, waiting: str, late: float, patience_seconds: float
) -> None:
    """BusyError if the commit was taken back, or has been in progress for ten times the patience."""
    if late > 10 * patience_seconds:
        raise BusyError(
            f"{error.message}, and has been ingesting the commit for {late:.0f} s; the outcome is not known",
            remedy="run the job again with the same producer and sequence: it is appended once",
        ) from error
    if _take_back(files, root, waiting):
        raise BusyError(
            f"{error.message}, and did not ingest the commit within {patience_seconds:.0f} s; "
            "nothing was written",
            remedy="stop that process, or let it be one that has the directory open in mode 'a'",
        ) from error


def _add_outcome(
    error: LastwordError, files: Files, root: str, waiting: str, applying: str, commit_id: str
) -> bool:
    """Add to the error what became of the commit. False if the commit is ingested."""
    if _take_back(files, root, waiting):
        outcome = f"commit {commit_id} was taken back, and nothing was written"
    elif files.exists(applying):
        outcome = (
            f"commit {commit_id} was begun, and is completed when the directory is next opened to append"
        )
    else:
        return False
    error.message += f"; {outcome}"
    error.args = (error.message,)
    return True


def _take_back(files: Files, root: str, waiting: str) -> bool:
    """Remove the manifest from the inbox. False if another process has begun to ingest it."""
    try:
        files.unlink(waiting)
    except FileVanishedError:
        return False
    files.fsync_dir(root)
    return True
