"""`OsFiles`: storage on the operating system; and scratch memory on a drive, a mapped file without a name.

Errors of system calls are translated here and in handle.py, and nowhere else.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import stat as modes
import threading
from contextlib import suppress

from lastword.errors import LastwordError, StorageError
from lastword.files import owner
from lastword.files.failures import Root, fsync_or_fail, translate
from lastword.files.handle import Descriptors, OsHandle, facts_of
from lastword.files.interface import FileFacts, Files, Path
from lastword.files.lock import FileLock
from lastword.metrics import DIR_OFFLINE

_NAME = "lastword-scratch-"
_NAMES = re.compile(rf"{_NAME}\d+-[0-9a-f]{{16}}")


def new_path(directory: str) -> str:
    """Return a new path for a `Scratch` in a directory, and remove leftovers there.

    A leftover is a file of a process that was killed between making the file and unlinking it.
    """
    try:
        for name in os.listdir(directory):
            if _NAMES.fullmatch(name):
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(directory, name))
    except OSError as error:
        raise translate(error, directory, "list") from error
    return os.path.join(directory, f"{_NAME}{os.getpid()}-{os.urandom(8).hex()}")


class Scratch:
    """A mapped file without a name: it is unlinked when it is opened, so a killed process leaves nothing.

    `grow` allocates the drive's blocks before they are used: a full drive raises DiskFullError there, not a
    signal at a later store. The content does not survive a restart, so `Files` is not involved.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with suppress(FileNotFoundError):  # another process has removed it as a leftover
                os.unlink(path)
        except OSError as error:
            raise translate(error, path, "open") from error

    def grow(self, size_bytes: int) -> mmap.mmap:
        """Map at least `size_bytes` bytes; the existing content is kept.

        Earlier maps stay valid and show the same bytes.
        """
        try:
            os.posix_fallocate(self._fd, 0, size_bytes)
            return mmap.mmap(self._fd, size_bytes)
        except OSError as error:
            raise translate(error, self.path, "enlarge") from error

    def close(self) -> None:
        """Free the room on the drive when the last map is gone."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()


MAX_CACHED_DIRECTORIES = 10_000  # directories


class OsFiles(Files):
    """Storage on the operating system.

    Args:
        max_open: The number of descriptors that all handles share. None: half of RLIMIT_NOFILE.
    """

    def __init__(self, max_open: int | None = None) -> None:
        self.descriptors = Descriptors(max_open)
        self._roots: dict[str, Root] = {}
        self._unguarded_roots: dict[str, Root] = {}  # outside every guarded root
        self._root_by_directory: dict[str, Root] = {}
        self._mutex = threading.Lock()

    # ---- roots: directories that go offline as a whole

    def guard(self, root: Path) -> None:
        """Take everything below `root` offline together after a failed sync; a second call resets that."""
        path = os.path.realpath(root)
        with self._mutex:
            self._roots[path] = Root(path)
            for unguarded in [p for p in self._unguarded_roots if p == path or p.startswith(path + os.sep)]:
                del self._unguarded_roots[unguarded]
            self._root_by_directory.clear()
        DIR_OFFLINE.set(0, path)

    def offline(self, path: Path) -> StorageError | None:
        """Return the failed sync that took `path` offline, if any."""
        path = os.fspath(path)
        return self._root(os.path.join(path, ".") if os.path.isdir(path) else path).failure

    def _root(self, path: str) -> Root:
        """Return the root of the directory of `path`.

        Cached by the directory's name, because resolving links costs a system call per level of the path.
        """
        directory = os.path.dirname(path)
        result = self._root_by_directory.get(directory)
        if result is not None:
            return result
        real = ancestor = os.path.realpath(directory)
        with self._mutex:
            while (result := self._roots.get(ancestor)) is None and ancestor != os.path.dirname(ancestor):
                ancestor = os.path.dirname(ancestor)
            if result is None:
                result = self._unguarded_roots.setdefault(real, Root(real))
            if os.path.isabs(directory):  # a relative path depends on the working directory
                if len(self._root_by_directory) >= MAX_CACHED_DIRECTORIES:
                    self._root_by_directory.clear()
                self._root_by_directory[directory] = result
        return result

    def _log_root(self, path: str) -> str | None:
        """Return the root of the log directory that contains `path`; None outside of any."""
        root = self._root(path).path
        return root if root in self._roots else owner.root_of(os.path.dirname(path))

    # ---- files

    def _open(self, path: str, flags: int) -> OsHandle:
        try:
            fd = self.descriptors.open(lambda: owner.open_file(path, flags, self._log_root))
        except LastwordError:
            raise
        except OSError as error:
            raise translate(error, path, "open") from error
        if not modes.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise StorageError(
                f"cannot open {path}: not a regular file",
                remedy="give the path of a file",
                file=path,
                errno=errno.EINVAL,
            )
        reopen_flags = flags & ~(os.O_CREAT | os.O_EXCL)
        return OsHandle(fd, path, self._root(path), self.descriptors, reopen_flags)

    def open_read(self, path: Path) -> OsHandle:
        """Open a file to read."""
        return self._open(os.fspath(path), os.O_RDONLY)

    def open_append(self, path: Path, *, create: bool = False, exclusive: bool = False) -> OsHandle:
        """Open a file to read and write."""
        path = os.fspath(path)
        root = self._root(path)
        flags = os.O_RDWR | os.O_NOFOLLOW  # a link could redirect a write out of the directory
        if create or exclusive:
            flags |= os.O_CREAT
            root.check_lock()
        else:
            root.check()
        if exclusive:
            flags |= os.O_EXCL
        return self._open(path, flags)

    def truncate(self, path: Path, size: int) -> None:
        """Set the size of a file."""
        with self.open_append(path) as handle:
            handle.truncate(size)

    def set_mtime(self, path: Path, ms: int) -> None:
        """Set the time of a file's last change, in ms since 1970."""
        path = self._check_change(path)
        try:
            os.utime(path, ns=(ms * 1_000_000, ms * 1_000_000))
        except OSError as error:
            raise translate(error, path, "set the time of") from error

    # ---- names

    def listdir(self, path: Path) -> list[str]:
        """List the names in a directory, sorted."""
        try:
            return sorted(self.descriptors.open(lambda: os.listdir(path)))
        except OSError as error:
            raise translate(error, os.fspath(path), "list") from error

    def stat(self, path: Path) -> FileFacts | None:
        """Return the facts of a file or directory; None if it does not exist."""
        try:
            facts = os.lstat(path)
            link = modes.S_ISLNK(facts.st_mode)
            return facts_of(os.stat(path) if link else facts, link=link)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise translate(error, os.fspath(path), "look at") from error

    def is_dir(self, path: Path) -> bool:
        """Return whether the path is a directory, or a link to one."""
        return os.path.isdir(path)

    def is_link(self, path: Path) -> bool:
        """Return whether the path is a symbolic link."""
        return os.path.islink(path)

    def _check_change(self, path: Path) -> str:
        path = os.fspath(path)
        self._root(path).check_lock()
        return path

    def mkdir(self, path: Path) -> None:
        """Make a directory."""
        path = self._check_change(path)
        try:
            os.mkdir(path)
            root = self._log_root(path)
            if root is not None:
                self._assign_directory(path, root)
        except LastwordError:
            os.rmdir(path)
            raise
        except OSError as error:
            raise translate(error, path, "make") from error

    def _assign_directory(self, path: str, root: str) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = self.descriptors.open(lambda: os.open(path, flags))
        try:
            owner.assign_new(fd, path, root)
        finally:
            os.close(fd)

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory."""
        path = self._check_change(path)
        try:
            os.rmdir(path)
        except OSError as error:
            raise translate(error, path, "remove") from error

    def rename(self, source: Path, target: Path) -> None:
        """Rename atomically; replaces a file at `target`."""
        source = self._check_change(source)
        try:
            self.descriptors.open(lambda: owner.assign_moved(source, os.fspath(target), self._log_root))
            os.rename(source, target)
        except LastwordError:
            raise
        except OSError as error:
            raise translate(error, source, f"rename to {os.fspath(target)}:") from error

    def unlink(self, path: Path, missing_ok: bool = False) -> None:
        """Remove a file."""
        path = self._check_change(path)
        try:
            os.unlink(path)
        except FileNotFoundError as error:
            if not missing_ok:
                raise translate(error, path, "remove") from error
        except OSError as error:
            raise translate(error, path, "remove") from error

    def fsync_dir(self, path: Path) -> None:
        """Wait until the names in a directory are on the drive."""
        path = os.fspath(path)
        root = self._root(os.path.join(path, "."))
        root.check_lock()
        try:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            fd = self.descriptors.open(lambda: os.open(path, flags))
        except OSError as error:
            raise translate(error, path, "open") from error
        try:
            fsync_or_fail(fd, path, root)
        finally:
            os.close(fd)

    # ---- the drive

    def check_owner(self, directory: Path) -> None:
        """Raise WrongUserError unless new files in `directory` can get their owner."""
        try:
            owner.check(os.fspath(directory))
        except LastwordError:
            raise
        except OSError as error:
            raise translate(error, os.fspath(directory), "look at") from error

    def lock(self, path: Path) -> FileLock:
        """Take the exclusive lock of a lock file, which is made if absent."""
        path = os.fspath(path)
        try:
            lock = self.descriptors.open(lambda: FileLock.take(path))
        except OSError as error:
            if isinstance(error, LastwordError):
                raise
            raise translate(error, path, "lock") from error
        root = self._root(path)
        if root.path in self._roots:
            root.lock = lock
        return lock

    def free_bytes(self, path: Path) -> int:
        """Return the room left for this user on the drive of `path`."""
        try:
            facts = os.statvfs(path)
        except OSError as error:
            raise translate(error, os.fspath(path), "look at") from error
        return facts.f_bavail * facts.f_frsize

    def device(self, path: Path) -> int:
        """Return a number that is the same for all paths on one drive."""
        try:
            return os.stat(path).st_dev
        except OSError as error:
            raise translate(error, os.fspath(path), "look at") from error
