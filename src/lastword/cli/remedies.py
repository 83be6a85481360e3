"""Convert the remedy of an error to a command line: `lastword.errors` has those for callers in Python."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lastword.errors import (
    LogDirLockedError,
    NotALogDirError,
    OffsetOutOfRangeError,
    ReadOnlyError,
    TopicExistsError,
    UnknownTopicError,
)
from lastword.objects import is_secret


@dataclass(slots=True)
class NamedTarget:
    """The directories, the topic and the options of the store, for the commands in remedies.

    Values of `storage` that may be secret are ****.
    """

    paths: list[str] = field(default_factory=list)
    topic: str | None = None
    storage: dict[str, str] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget the last command line."""
        self.paths, self.topic, self.storage = [], None, {}

    def set_storage(self, options: Mapping[str, str]) -> None:
        """Set the options of the store."""
        self.storage = {name: "****" if is_secret(name) else value for name, value in options.items()}


PLACE = NamedTarget()


def command_line(verb: str, paths: list[str], *words: str) -> str:
    """Return a command that can be pasted: the first directory as DIR, the others with --dir."""
    return shlex.join(["lastword", verb, paths[0], *words, *_options(paths)])


def _options(paths: list[str]) -> list[str]:
    """Return --dir for each further directory; for a URL, the options of the store."""
    options = [part for path in paths[1:] for part in ("--dir", path)]
    if "://" in paths[0]:
        options += [part for pair in PLACE.storage.items() for part in ("--storage", "=".join(pair))]
    return options


def policy_remedy(paths: list[str], topic: str) -> str:
    """Return commands for both values of cleanup.policy.

    Only the owner of the topic can choose: the wrong value removes data that should stay.
    """
    compact, delete = (
        command_line("config", paths, topic, "--set", f"cleanup.policy={value}")
        for value in ("compact", "delete")
    )
    return (
        f"`{compact}` keeps the newest record of each key, `{delete}` removes the oldest records "
        "by age or size"
    )


def no_policy_lines(paths: list[str], unread: list[str], topics: Iterable[str]) -> list[str]:
    """Return a line for each reason why nothing is removed: `unread`, and topics without a policy."""
    lines = [f"no-policy: {sentence}" for sentence in unread]
    names = list(dict.fromkeys(topics))
    if names:
        lines.append(f"no-policy: {policy_remedy(paths, names[0] if len(names) == 1 else 'TOPIC')}")
    return lines


# Options of a call in Python, and their counterparts on the command line.
_AS_TYPED = (
    (
        re.compile(r"^lastword\.spark\.restore\(\.\., to=\)$"),
        "`lastword restore DIR TOPIC OUT` writes such files",
    ),
    (re.compile(r"^create_topic makes one$"), "`lastword create DIR TOPIC` makes one"),
    (re.compile(r"^see lastword ls$"), "`lastword ls DIR TOPIC` shows them"),
    (
        re.compile(r"read it as it is: (key|value)_serializer=\"bytes\""),
        r"dump the file: it shows the stored bytes",
    ),
    (re.compile(r"in storage_options\b"), "with --storage"),
    (re.compile(r"^leave ack out$"), "omit --ack"),
    (re.compile(r'^users="users.toml"'), "--users users.toml"),
    (re.compile(r"\binsecure=True\b"), "--insecure"),
    (re.compile(r'^advertise="([^"]*)"'), r"--advertise \1"),
)


def remedy_of(error: BaseException) -> str | None:
    """Return the remedy of an error for the command line: a sentence or a command."""
    remedy: str | None = getattr(error, "remedy", None)
    paths = PLACE.paths or [getattr(error, "file", None) or "DIR"]
    if isinstance(error, LogDirLockedError):
        return "stop that process; ls, read, explain, verify and every --dry-run need no lock"
    if isinstance(error, NotALogDirError) and remedy and remedy.startswith("lastword.open("):
        place = "URL" if "://" in (error.file or paths[0]) else "path"
        return (
            f"check the {place}, or create one: `{command_line('create', [error.file or paths[0]], 'TOPIC')}`"
        )
    if isinstance(error, ReadOnlyError) and remedy and remedy.startswith("lastword.open("):
        return "check owner and permissions of the directory"
    if isinstance(error, UnknownTopicError) and error.file is not None:
        create = command_line("create", paths, "TOPIC")
        return f"`{command_line('ls', paths)}` lists the topics; `{create}` creates one"
    if isinstance(error, TopicExistsError):
        topic = PLACE.topic or "TOPIC"
        return f"append to the existing topic; `{command_line('config', paths, topic)}` shows its settings"
    if remedy is None:
        return None
    if isinstance(error, OffsetOutOfRangeError) and (error.offset or 0) >= 10**11:
        return f"for milliseconds since 1970 write @{error.offset}; for an offset: {remedy}"
    remedy = remedy.partition(", in Python ")[0]
    for pattern, typed in _AS_TYPED:
        remedy = pattern.sub(typed, remedy)
    return _filled(remedy)


def _filled(remedy: str) -> str:
    """Replace DIR and TOPIC in the commands of a remedy by the directory and topic of the command line."""
    if not PLACE.paths:
        return remedy
    remedy = remedy.replace("`lastword verify`", "`lastword verify DIR`")
    remedy = re.sub(r"(lastword [a-z]+ )DIR\b", lambda match: match[1] + shlex.quote(PLACE.paths[0]), remedy)
    if PLACE.topic is not None:
        remedy = re.sub(
            r"(lastword (?!create)[a-z]+ \S+ )TOPIC\b", lambda match: match[1] + str(PLACE.topic), remedy
        )
    more = shlex.join(_options(PLACE.paths))
    if more:
        remedy = re.sub(
            r"`(lastword [a-z]+ [^`]*)`",
            lambda match: match[0] if more in match[1] else f"`{match[1]} {more}`",
            remedy,
        )
    return remedy
