"""What helps, as somebody at a shell would do it: errors speak to who calls from Python."""

from __future__ import annotations

from lastword.errors import (
    LogDirLockedError,
    NotALogDirError,
    TopicExistsError,
    UnknownTopicError,
)


def remedy_of(error: BaseException) -> str | None:
    """The error's remedy; of an error that is mended by another command, that command."""
    remedy: str | None = getattr(error, "remedy", None)
    where = getattr(error, "file", None) or "DIR"
    if isinstance(error, LogDirLockedError):
        return "stop it; what only looks (ls, read, explain, verify, every --dry-run) needs no lock"
    if isinstance(error, NotALogDirError) and remedy and remedy.startswith("lastword.open("):
        return f"check the path, or make one: lastword create {where} TOPIC"
    if isinstance(error, UnknownTopicError):
        return f"`lastword ls {where}` shows what there is; lastword create {where} TOPIC makes a new one"
    if isinstance(error, TopicExistsError):
        return "append to it as it is; lastword config DIR TOPIC shows its settings"
    return None if remedy is None else remedy.partition(", in Python ")[0]
