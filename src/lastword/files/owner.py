"""Owner, group and permissions of new files in a log directory.

A command that runs as root in a broker's directory must not leave files that the broker cannot open. This
rule holds for every file and directory that `OsFiles` makes or moves inside a log directory:

* A file that replaces another file takes its owner, group and permissions.
* Any other file takes owner and group of its directory, and the permissions of a neighbour: a file with the
  same ending in its directory, else any file there, else a file in a directory above, up to the root of the
  log directory. A directory takes the permissions of a directory beside it, else those of its parent.
* A neighbour counts only if it has the owner of the directory. If the directory belongs to root, owner and
  group are those of a neighbour that does not belong to root, else those of the process.
* Without a neighbour, the permissions are those that both the umask and the directory allow.

If the process may not change the owner, `WrongUserError` names the user to run as. In a directory that its
group shares (set-group-ID and group-writable), files belong to the user who makes them.

Outside a log directory, the system's own rule applies.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from lastword.errors import WrongUserError
from lastword.files.system import open_nameless

ROOT_MARKS = ("meta.properties", "recovery-point-offset-checkpoint", "lastword.toml")
"""A directory with one of these files is the root of a log directory, whether it is open or not."""
MAX_LEVELS = 6  # from a file of a staged output up to the root
MAX_NEIGHBOURS = 32  # of a directory's entries are compared
_READ_WRITE = 0o666
_OVERFLOW_ID = 65534
"""The id that Linux shows for an owner whom the user namespace of this process does not have."""
_root_gives_on: set[int] = set()
"""Drives on which root could give a file to `_OVERFLOW_ID`, and so to every user that it can see.

There the neighbours of a new file need not be looked at: no owner of theirs is refused.
"""
_NOT_READ = frozenset({errno.EACCES, errno.EPERM, errno.ENOENT, errno.ELOOP, errno.ENXIO})
_NO_TMPFILE = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT})


class Ownership(NamedTuple):
    """Owner, group and permissions that a file must get. `required`: fail if the owner cannot be set."""

    uid: int
    gid: int
    mode: int
    required: bool


def root_of(directory: str) -> str | None:
    """Return the root of the log directory that contains `directory`; None outside of any."""
    ancestor = os.path.realpath(directory)
    for _ in range(MAX_LEVELS):
        if any(os.path.lexists(os.path.join(ancestor, mark)) for mark in ROOT_MARKS):
            return ancestor
        parent = os.path.dirname(ancestor)
        if parent == ancestor:
            break
        ancestor = parent
    return None


def open_file(path: str, flags: int, find_root: Callable[[str], str | None]) -> int:
    """Open a file; a file that is made in a log directory gets owner, group and permissions by the rule.

    Args:
        path: The file.
        flags: Flags of `os.open`.
        find_root: Returns the real path of the log directory's root for a path in it; called only if a file
            was made.
    """
    # O_NONBLOCK: opening a pipe under a file's name must not block; it has no effect on a regular file.
    flags |= os.O_CLOEXEC | os.O_NONBLOCK
    if not flags & os.O_CREAT:
        return os.open(path, flags)
    exclusive = flags & os.O_EXCL
    while True:
        if not exclusive:
            with suppress(FileNotFoundError):
                return os.open(path, flags & ~os.O_CREAT)
        try:
            fd = os.open(path, flags | os.O_EXCL, 0o666)
            break
        except FileExistsError:
            if exclusive:
                raise
    try:
        root = find_root(path)
        if root is not None:
            assign_new(fd, path, root)
    except BaseException:
        os.close(fd)
        os.unlink(path)
        raise
    return fd


def assign_new(fd: int, path: str, root: str) -> None:
    """Assign owner, group and permissions to a new file or directory.

    Args:
        fd: Descriptor of the file or directory.
        path: Its path.
        root: Root of its log directory.

    Raises:
        WrongUserError: the process may not change the owner.
    """
    facts = os.fstat(fd)
    _assign(fd, facts, _ownership_of_new(path, facts, root, is_dir=stat.S_ISDIR(facts.st_mode)), path)


def assign_moved(source: str, target: str, find_root: Callable[[str], str | None]) -> None:
    """Assign owner, group and permissions to a file before it is renamed.

    It gets those of the file that it replaces, or those of a new file in the directory that it moves to.
    """
    try:
        replaced = os.lstat(target)
    except FileNotFoundError:
        replaced = None
    if replaced is None and source.rpartition("/")[0] == target.rpartition("/")[0]:
        return
    if replaced is not None and not stat.S_ISREG(replaced.st_mode):
        return
    try:
        fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _NOT_READ:
            return  # the rename raises the error itself, or needs permissions of the directory only
        raise
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode) or facts.st_nlink != 1:
            return
        if replaced is not None:
            ownership = Ownership(replaced.st_uid, replaced.st_gid, stat.S_IMODE(replaced.st_mode), False)
        else:
            root = find_root(target)
            if root is None:
                return
            ownership = _ownership_of_new(target, facts, root, is_dir=False)
        _assign(fd, facts, ownership, target)
    finally:
        os.close(fd)


def check(directory: str) -> None:
    """Raise WrongUserError unless new files in `directory` can get their owner. Changes nothing."""
    facts = os.stat(directory)
    user, uid, gid = os.geteuid(), facts.st_uid, facts.st_gid
    if uid == user and (user != 0 or facts.st_dev in _root_gives_on):
        return  # files get the owner of their directory, unless that is root
    if uid == 0:
        neighbour = _neighbour(directory, "", uid, is_dir=False)
        if neighbour is not None and neighbour.st_uid != 0:
            uid, gid = neighbour.st_uid, neighbour.st_gid
        else:
            uid = user
    if uid == user:
        if user == 0:
            with suppress(OSError):
                if _gives(directory, _OVERFLOW_ID, _OVERFLOW_ID):
                    _root_gives_on.add(facts.st_dev)
        return
    if _is_shared(facts):
        return
    try:
        gives = _gives(directory, uid, gid)
    except PermissionError:
        gives = False
    except OSError as error:
        gives = user == 0 or error.errno not in _NO_TMPFILE
    if not gives:
        raise _wrong_user(directory, uid)


def _gives(directory: str, uid: int, gid: int) -> bool:
    """Return whether this process may give a file in `directory` to another user.

    It is tried on a file without a name: on a network drive, or in a container, even root may be refused.
    OSError: there is no such file.
    """
    fd = open_nameless(directory)
    try:
        os.fchown(fd, uid, gid)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def user_name(uid: int) -> str:
    """Return the name of a user, or `#1000` (the form that sudo accepts)."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"#{uid}"


def _wrong_user(directory: str, uid: int) -> WrongUserError:
    user = user_name(uid)
    error = WrongUserError(
        f"{directory} belongs to {user}, and this process runs as {user_name(os.geteuid())}: "
        f"{user} could not use the files that it would make there; nothing was changed",
        remedy=f"run it as that user: sudo -u {user} ...",
        file=directory,
        errno=errno.EPERM,
    )
    error.user = user
    return error


def _assign(fd: int, facts: os.stat_result, ownership: Ownership, path: str) -> None:
    if facts.st_uid != ownership.uid:
        try:
            os.fchown(fd, ownership.uid, ownership.gid)
        except OSError:
            if ownership.required:
                raise _wrong_user(os.path.dirname(path) or ".", ownership.uid) from None
    elif facts.st_gid != ownership.gid:
        with suppress(OSError):  # the owner is right, and its user could not choose this group either
            os.fchown(fd, -1, ownership.gid)
    if stat.S_IMODE(facts.st_mode) != ownership.mode:
        with suppress(OSError):  # another user's file, in a directory that its group shares
            os.fchmod(fd, ownership.mode)


def _ownership_of_new(path: str, facts: os.stat_result, root: str, *, is_dir: bool) -> Ownership:
    directory, name = os.path.split(path)
    parent = os.stat(directory or ".")
    neighbour = _neighbour(directory or ".", name, parent.st_uid, is_dir)
    ancestor = os.path.realpath(directory) if neighbour is None else ""
    while neighbour is None and not is_dir and ancestor != root and ancestor.startswith(root):
        ancestor = os.path.dirname(ancestor)
        neighbour = _neighbour(ancestor, name, parent.st_uid, is_dir)
    uid, gid = parent.st_uid, parent.st_gid
    if uid == 0:
        uid = os.geteuid()
        if neighbour is not None and neighbour.st_uid != 0:
            uid, gid = neighbour.st_uid, neighbour.st_gid
        elif uid != 0:
            gid = facts.st_gid
    shared = _is_shared(parent)
    if neighbour is not None:
        mode = stat.S_IMODE(neighbour.st_mode)
    else:
        mode = stat.S_IMODE(facts.st_mode & parent.st_mode)
        if parent.st_mode & stat.S_ISGID:
            mode |= parent.st_mode & (stat.S_ISGID | stat.S_IRWXG)
    mode = (mode & 0o2777) | 0o700 if is_dir else (mode & _READ_WRITE) | 0o600
    if shared:
        uid, gid = facts.st_uid, parent.st_gid
    return Ownership(uid, gid, mode, required=not shared)


def _is_shared(directory: os.stat_result) -> bool:
    """Return whether the group of a directory shares it: its files belong to the users who make them."""
    shared = stat.S_ISGID | stat.S_IWGRP
    return directory.st_mode & shared == shared


def _neighbour(directory: str, name: str, owner: int, is_dir: bool) -> os.stat_result | None:
    """Return the facts of the neighbour in `directory` whose permissions a new file `name` takes."""
    kind = _kind(name)
    best: tuple[int, os.stat_result] | None = None
    try:
        with os.scandir(directory) as entries:
            for entry in islice(entries, MAX_NEIGHBOURS):
                same_type = (
                    entry.is_dir(follow_symlinks=False) if is_dir else entry.is_file(follow_symlinks=False)
                )
                if not same_type or entry.name == name:
                    continue
                same_kind = not is_dir and _kind(entry.name) == kind
                if best is not None and owner != 0 and not same_kind:
                    continue
                facts = entry.stat(follow_symlinks=False)
                if owner != 0 and facts.st_uid != owner:
                    continue
                score = 2 * (owner == 0 and facts.st_uid != 0) + same_kind
                if best is None or score > best[0]:
                    best = (score, facts)
                if score == 3 or (owner != 0 and (same_kind or is_dir)):
                    break
    except OSError:
        return None
    return None if best is None else best[1]


def _kind(name: str) -> str:
    """Return the first ending of a file name: `log` for `00000000000000000000.log.cleaned`."""
    parts = name.split(".", 2)
    return parts[1] if len(parts) > 1 else ""
