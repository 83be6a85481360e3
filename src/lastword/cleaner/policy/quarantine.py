"""A partition that must not be cleaned until a user has checked it.

A damaged source batch, or a certificate that does not hold, puts `<partition>/lastword/quarantine` on disk:
framed JSON with the reason and the time. The file is durable before the error leaves the cleaner, it survives
restarts, and it stops nothing but cleaning. `logs.cleaner.retry` verifies the partition and ends the
quarantine; `retry` here only removes the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lastword import metrics
from lastword.errors import (
    LOST_OBJECT,
    CertificateError,
    CorruptFileError,
    DataError,
    LastwordError,
    UnsupportedBatchError,
)
from lastword.files import Files, normal_path, real_path
from lastword.files.framed import Framed
from lastword.segment import names
from lastword.values import Value

if TYPE_CHECKING:
    from lastword.cleaner.policy.plan import Plan

RESTORE = "restore the file from a copy"

FORM = Framed(
    "quarantine",
    1,
    "bad-quarantine",
    "verify the partition; if its log is sound, `lastword clean DIR TOPIC -p N --retry` removes this file",
)


@dataclass(frozen=True, slots=True)
class Quarantine(Value):
    """Why a partition is not cleaned, and since when; `file`, `position` and `offset` as in the error."""

    reason: str
    time_ms: int
    error: str = ""  # class name of the error
    file: str | None = None
    position: int | None = None
    offset: int | None = None

    def __str__(self) -> str:
        return self.reason


def load(files: Files, directory: str) -> Quarantine | None:
    """Return the partition's quarantine, or None. A file that cannot be decoded is a quarantine too."""
    path = _path(directory)
    if not files.exists(path):
        return None
    try:
        fields = FORM.decode(files.read_bytes(path), path)
        return Quarantine(
            reason=str(fields["reason"]),
            time_ms=int(fields["time_ms"]),
            error=str(fields.get("error", "")),
            file=fields.get("file"),
            position=fields.get("position"),
            offset=fields.get("offset"),
        )
    except (CorruptFileError, ValueError, KeyError, TypeError):
        return Quarantine(reason=f"{path} is there, but not readable", time_ms=0, file=path)


def reason_of(files: Files, directory: str) -> str | None:
    """Return the reason of the partition's quarantine, or None."""
    quarantine = load(files, directory)
    return None if quarantine is None else quarantine.reason


def put(files: Files, directory: str, error: LastwordError, now_ms: int) -> None:
    """Save that `error` stopped the cleaning of this partition, durably. The first reason is kept."""
    if load(files, directory) is not None:
        return
    quarantine = Quarantine(
        reason=error.message,
        time_ms=now_ms,
        error=type(error).__name__,
        file=None if error.file is None else str(error.file),
        position=error.position,
        offset=error.offset,
    )
    ours = f"{directory}/{names.PRIVATE}"
    if not files.exists(ours):
        files.mkdir(ours)
        files.fsync_dir(directory)
    FORM.save(files, _path(directory), quarantine.to_dict())


@contextmanager
def on_damage(files: Files, directory: str, plan: Plan, *, dry: bool = False) -> Iterator[None]:
    """Quarantine the partition, durably, when damage is found inside the block.

    A valid batch of a kind that is not cleaned is no damage. Neither is an object of a bucket that is gone:
    it may be restored, and until then each cleaning raises the error.

    Args:
        files: File system.
        directory: Directory of the partition.
        plan: The plan of the cleaning.
        dry: Only let the error pass.
    """
    if dry:
        yield
        return
    name = f"{plan.topic}-{plan.partition}"
    try:
        yield
    except UnsupportedBatchError:
        raise
    except DataError as error:
        if error.code == LOST_OBJECT:
            raise
        put(files, directory, error, plan.now_ms)
        if isinstance(error, CertificateError):
            metrics.CERTIFICATE_FAILURES.add(1, real_path(os.path.dirname(directory)))
        error.message = f"{error.message}; {name} is quarantined"
        error.remedy = f"{error.remedy or RESTORE}; then {retrying(directory, name)}"
        error.args = (error.message,)
        raise


def retrying(directory: str, name: str) -> str:
    """Return how partition `name` (`<topic>-<number>`) leaves quarantine, for a user."""
    topic, _, number = name.rpartition("-")
    where = os.path.dirname(normal_path(directory))
    command = f"`lastword clean {where} {topic} -p {number} --retry`"
    return f"{command}, in Python logs.cleaner.retry({topic!r}, {number})"


def retry(files: Files, directory: str) -> bool:
    """Let the cleaner try this partition again; return True if it was in quarantine."""
    path = _path(directory)
    if not files.exists(path):
        return False
    files.unlink(path, missing_ok=True)
    files.fsync_dir(f"{directory}/{names.PRIVATE}")
    return True


def _path(directory: str) -> str:
    return f"{directory}/{names.PRIVATE}/{names.QUARANTINE}"
